"""The exam of the verdicts: what H1 to H3 and `check` say of measured grids with planted truths.

    python benchmarks/planted.py GRIDS --out planted.csv [--seeds 1 2 3] [--truths null kv_x2]

GRIDS is a folder of files TRUTH-SEED.csv (model, gpu, batch, context, step_ms), made without this package. For each the
study is fitted with its primary treatment, judged, and the families checked against the anchor in the same file. One
row per truth, seed and statement: its verdict, and whether that is right, fair (undecided, or not tested) or wrong.
"""

import argparse
import csv
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import rooffloor as rf
from rooffloor.validate.common.errors import GateError, InputError
from rooffloor.validate.common.files import write_text
from rooffloor.validate.hypotheses.result import NOT_TESTED, REFUTED, SUPPORTED
from rooffloor.validate.transfer.statements import CANNOT_TELL, INDISTINGUISHABLE, MISMATCH, NOTHING, RECALIBRATE

ANCHOR, SIBLING, SMALL, MOE = "Llama-3.1-8B", "Qwen2.5-7B", "Llama-3.2-1B", "Qwen1.5-MoE-A2.7B"
HOLDS, FAILS = ({SUPPORTED}, {REFUTED}), ({REFUTED}, {SUPPORTED})
"""Right and wrong verdicts where a hypothesis holds, and where it does not; all others are fair."""
NOT_REFUTED, NOT_SUPPORTED = (set[str](), {REFUTED}), (set[str](), {SUPPORTED})
SAME = ({NOTHING}, {RECALIBRATE, MISMATCH, INDISTINGUISHABLE})
FLOOR = ({RECALIBRATE, INDISTINGUISHABLE}, {NOTHING, MISMATCH})
SHAPE = ({MISMATCH}, {NOTHING, RECALIBRATE, INDISTINGUISHABLE})
WEIGHTS = ({MISMATCH, INDISTINGUISHABLE}, {NOTHING, RECALIBRATE})
NO_MISMATCH, NO_TRANSFER = (set[str](), {MISMATCH}), (set[str](), {NOTHING})
NO_SAME_CAUSE = (set[str](), {MISMATCH, NOTHING})

EXPECTED: dict[str, dict[str, tuple[set[str], set[str]]]] = {
    "null": {"H1": HOLDS, "H3": NOT_REFUTED, SIBLING: SAME, SMALL: SAME},
    "small_floor": {"H1": HOLDS, "H3": NOT_REFUTED, SIBLING: SAME, SMALL: FLOOR},
    "sibling_floor": {"H1": FAILS, SIBLING: FLOOR},
    "weights_25": {"H1": FAILS, SIBLING: WEIGHTS},
    "kv_25": {"H1": NOT_SUPPORTED, SIBLING: (set(), {NOTHING, RECALIBRATE, INDISTINGUISHABLE})},
    "kv_x2": {"H1": FAILS, SIBLING: SHAPE},
    "query_heads": {"H1": FAILS, SIBLING: SHAPE},
    "noisy": {"H1": NOT_REFUTED, SIBLING: SAME},
    "one_gpu": {"H1": NOT_SUPPORTED, SIBLING: NO_TRANSFER},
    "small_scale": {"H1": HOLDS, "H3": FAILS, SIBLING: SAME, SMALL: NO_TRANSFER},
    "moe_floor": {"H1": HOLDS, "H2a": FAILS, "H2c": HOLDS, MOE: FLOOR},
    "moe_clean": {"H1": HOLDS, "H2a": NOT_REFUTED, "H2c": HOLDS, MOE: NO_MISMATCH},
    "max": {"H1": NOT_REFUTED, "H3": NOT_REFUTED, SIBLING: NO_MISMATCH, SMALL: NO_MISMATCH},
    "half_overlap": {"H1": NOT_REFUTED, "H3": NOT_REFUTED, SIBLING: NO_MISMATCH, SMALL: NO_MISMATCH},
    "kv_common": {"H1": HOLDS, SIBLING: SAME},
    "per_sequence": {"H1": NOT_REFUTED, "H3": NOT_REFUTED, SIBLING: NO_MISMATCH, SMALL: NO_MISMATCH},
    "per_layer": {"H3": NOT_REFUTED, SIBLING: NO_MISMATCH, SMALL: NO_SAME_CAUSE},
    "per_layer_max": {"H3": NOT_REFUTED, SIBLING: NO_MISMATCH, SMALL: NO_MISMATCH},
}
"""What is right and what is wrong to say, by truth and statement or family."""


def said(path: Path, families: Sequence[str], seed: int) -> Iterator[tuple[str, str]]:
    """(statement or family, verdict) of one file; "no answer" where a fit failed."""
    try:
        fit = rf.fit(rf.Study(path, anchor=ANCHOR), seed=seed, primary_only=True)
    except (GateError, InputError) as error:
        yield "fit", f"no answer: {error}"
        return
    yield "fit", "passed"
    for name in ("H1", "H2", "H3"):
        yield from rf.test(fit, name).statements.items()
    for family in families:
        try:
            yield family, rf.check(family, path, calibration=fit.calibration).verdict
        except (GateError, InputError) as error:
            yield family, f"no answer: {error}"


def judged(truth: str, statement: str, verdict: str) -> str:
    """Whether a verdict is right, fair or wrong; "" where nothing is said of it."""
    if verdict.startswith("no answer"):
        return "no answer"
    if statement not in EXPECTED[truth]:
        return ""
    right, wrong = EXPECTED[truth][statement]
    if verdict in right or (not right and verdict not in wrong and verdict not in (CANNOT_TELL, NOT_TESTED)):
        return "right"
    return "wrong" if verdict in wrong else "fair"


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line: judge every grid, write the rows, print the counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("grids", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(1, 21)))
    parser.add_argument("--truths", nargs="+", choices=list(EXPECTED), default=list(EXPECTED))
    options = parser.parse_args(arguments)
    rows, counts = [], dict[tuple[str, str, str], int]()
    for seed in options.seeds:
        for truth in options.truths:
            path, started = options.grids / f"{truth}-{seed}.csv", time.perf_counter()
            if not path.exists():
                continue
            families = [name for name in EXPECTED[truth] if name in (SIBLING, SMALL, MOE)]
            for statement, verdict in said(path, families, seed):
                one = judged(truth, statement, verdict)
                rows.append((truth, seed, statement, verdict, one))
                counts[truth, statement, one] = counts.get((truth, statement, one), 0) + 1
            print(f"{truth} {seed}: {time.perf_counter() - started:.0f} s", file=sys.stderr, flush=True)
    lines = [",".join(("truth", "seed", "statement", "verdict", "judged"))]
    lines += [",".join(f'"{v}"' if "," in str(v) else str(v) for v in row) for row in rows]
    write_text(options.out, "\n".join(lines) + "\n")
    out = csv.writer(sys.stdout)
    out.writerows((*key, n) for key, n in sorted(counts.items()) if key[2])


if __name__ == "__main__":
    main()
