"""The exam of the verdicts: what H1 to H3 and `check` say of measured grids with planted truths.

    python benchmarks/planted.py GRIDS --out planted.csv [--seeds 1 2 3] [--truths null kv_x2]

GRIDS is a folder of files TRUTH-SEED.csv (model, gpu, batch, context, step_ms), made without this package. For each the
study is fitted with its primary treatment, judged, and the families checked against the anchor in the same file. Out
comes, per truth and statement (a hypothesis; a family, why it is off; a family, whether the calibration holds for use),
how many grids were judged right, fair (undecided, or not tested), wrong, or had no answer, and the verdicts they got.
`--rows` keeps the verdicts of every grid, and runs only those that it does not hold.
"""

import argparse
import csv
import io
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import rooffloor as rf
from rooffloor.validate.common.errors import GateError, InputError
from rooffloor.validate.common.files import write_text
from rooffloor.validate.common.runner import one_thread
from rooffloor.validate.hypotheses.result import NOT_TESTED, REFUTED, SUPPORTED, UNDECIDED
from rooffloor.validate.hypotheses.test import judged as hypotheses
from rooffloor.validate.transfer.statements import (
    CANNOT_TELL,
    DOES_NOT_HOLD,
    INDISTINGUISHABLE,
    MISMATCH,
    NOTHING,
    RECALIBRATE,
)
from rooffloor.validate.transfer.statements import HOLDS as USED_HOLDS

NO_ANSWER = "no answer"
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
USE = " (use)"
"""Behind the name of a family: whether the calibration holds for use."""
USABLE, USELESS = ({USED_HOLDS}, {DOES_NOT_HOLD}), ({DOES_NOT_HOLD}, {USED_HOLDS})
OF_USE: dict[str, dict[str, tuple[set[str], set[str]]]] = {
    "null": {SIBLING: USABLE, SMALL: USABLE},
    "noisy": {SIBLING: USABLE},
    "kv_common": {SIBLING: USABLE},
    "small_floor": {SIBLING: USABLE, SMALL: USELESS},
    "moe_floor": {MOE: USELESS},
}
"""The same of use, where errors are far from the tolerance in every grid."""


def said(path: Path, families: Sequence[str], seed: int) -> Iterator[tuple[str, str]]:
    """(statement or family, verdict) of one file; "no answer" where a fit failed."""
    try:
        fit = rf.fit(rf.Study(path, anchor=ANCHOR), seed=seed, primary_only=True)
    except (GateError, InputError) as error:
        yield "fit", f"{NO_ANSWER}: {error}"
        return
    yield "fit", "passed"
    for result in hypotheses(fit)[0].values():  # all at once: other choices are made once for all
        yield from result.statements.items()
    for family in families:
        try:
            found = rf.check(family, path, calibration=fit.calibration)
        except (GateError, InputError) as error:
            yield family, f"{NO_ANSWER}: {error}"
        else:
            yield family, found.cause
            yield f"{family}{USE}", found.verdict


def judged(truth: str, statement: str, verdict: str) -> str:
    """Whether a verdict is right, fair or wrong; "" where nothing is said of it."""
    if verdict.startswith(NO_ANSWER):
        return NO_ANSWER
    of_use = {f"{family}{USE}": sides for family, sides in OF_USE.get(truth, {}).items()}
    expected = EXPECTED[truth] | of_use
    if statement not in expected:
        return ""
    right, wrong = expected[statement]
    if verdict in right or (not right and verdict not in wrong and verdict not in (CANNOT_TELL, UNDECIDED, NOT_TESTED)):
        return "right"
    return "wrong" if verdict in wrong else "fair"


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line: judge every grid, write the counts after each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("grids", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument(
        "--rows", type=Path, help="one row per grid and statement; grids that are there are not run again"
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(1, 21)))
    parser.add_argument("--truths", nargs="+", choices=list(EXPECTED), default=list(EXPECTED))
    options = parser.parse_args(arguments)
    rows = read(options.rows)
    done = {(row["truth"], row["seed"]) for row in rows}
    for seed in options.seeds:
        for truth in options.truths:
            path, started = options.grids / f"{truth}-{seed}.csv", time.perf_counter()
            if not path.exists() or (truth, str(seed)) in done:
                continue
            families = [name for name in EXPECTED[truth] if name in (SIBLING, SMALL, MOE)]
            with one_thread():
                found = list(said(path, families, seed))
            rows += [dict(zip(ROW, (truth, str(seed), *one, judged(truth, *one)), strict=True)) for one in found]
            if options.rows is not None:
                write_text(options.rows, written(rows))
            write_text(options.out, written(counted(rows)))
            print(f"{truth} {seed}: {time.perf_counter() - started:.0f} s", file=sys.stderr, flush=True)


ROW = ("truth", "seed", "statement", "verdict", "judged")
JUDGED = ("right", "fair", "wrong", NO_ANSWER)


def read(path: Path | None) -> list[dict[str, str]]:
    """The rows of a file, where there is one."""
    if path is None or not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def counted(rows: Sequence[Mapping[str, str]]) -> list[dict[str, str]]:
    """One row per truth and statement: grids, how many were judged what, and the verdicts with their numbers."""
    found = []
    for truth, statement in dict.fromkeys((row["truth"], row["statement"]) for row in rows):
        own = [row for row in rows if (row["truth"], row["statement"]) == (truth, statement)]
        numbers = {name: sum(row["judged"] == name for row in own) for name in JUDGED}
        verdicts = Counter(row["verdict"].partition(":")[0] for row in own)
        told = "; ".join(f"{verdict} {number}" for verdict, number in verdicts.most_common())
        found.append({"truth": truth, "statement": statement, "grids": str(len(own))})
        found[-1] |= {name: str(number) for name, number in numbers.items()} | {"verdicts": told}
    return found


def written(rows: Sequence[Mapping[str, str]]) -> str:
    """Rows as the text of a CSV file."""
    text = io.StringIO()
    out = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    out.writeheader()
    out.writerows(rows)
    return text.getvalue()


if __name__ == "__main__":
    main()
