"""How often does `rooffloor check` err? Its verdicts on simulated families, kept in data/calibration/check.csv."""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rooffloor.validate.common import files, resources
from rooffloor.validate.fitting import saved
from rooffloor.validate.hypotheses.error_rates import NOISE
from rooffloor.validate.transfer.verdict import INDISTINGUISHABLE, MISMATCH, RECALIBRATE, TRANSFERS, UNDECIDED, VERDICTS

if TYPE_CHECKING:
    import pandas as pd

FOLDER, TABLE = "calibration", "check.csv"
LEVEL = (RECALIBRATE, INDISTINGUISHABLE)
TRUTHS: Mapping[str, tuple[Mapping[str, float], tuple[str, ...]]] = {
    "nothing differs": ({}, (TRANSFERS,)),
    "floor 3 ms larger": ({"floor_ms": 3.0}, LEVEL),
    "weights 25 % slower": ({"weights": 1.25}, (MISMATCH, INDISTINGUISHABLE)),
    "DRAM efficiencies 25 % lower": ({"whole": 1 / 0.75}, (MISMATCH,)),
    "DRAM 25 % slower": ({"whole": 1.25}, (MISMATCH,)),
    "DRAM efficiencies 25 % lower and floor 3 ms larger": ({"whole": 1 / 0.75, "floor_ms": 3.0}, (MISMATCH,)),
    "DRAM 25 % slower and floor 3 ms larger": ({"whole": 1.25, "floor_ms": 3.0}, (MISMATCH,)),
    "DRAM efficiencies 10 % lower": ({"whole": 1 / 0.9}, ()),
    "floors overlapped by half, nothing differs": ({"q": 0.5}, (TRANSFERS,)),
}
"""What a simulated family does (arguments of `planted.Planted`), and which verdicts are right. Where none is, the size
lies about at the margin and any confident verdict counts as wrong. "Undecided" is never wrong."""
KNOWN, IMPUTED = "constants known", "the published study"
"""Calibrations: known constants beside 15 measured cells of the anchor; or that of the published study, one of whose
draws is the truth."""
DESIGNS: Mapping[str, tuple[tuple[int, int], ...]] = {
    "15": tuple((b, c) for b in (1, 2, 4, 8, 16) for c in (512, 2048, 8192)),
    "5": ((1, 512), (1, 8192), (4, 2048), (16, 512), (16, 8192)),
    "3": ((1, 512), (4, 2048), (16, 8192)),
}
"""Cells per GPU."""
GPUS = (("H100",), ("H100", "H200", "A100-40GB"))
FEW_TRUTHS = ("nothing differs", "floor 3 ms larger", "DRAM efficiencies 25 % lower")
"""Those that are simulated beside the published study's calibration, a quarter as often."""
SETS, CHUNK = 200, 25


@dataclass(frozen=True)
class _Chunk:
    """Some simulated families of one truth in one design."""

    calibration: str
    truth: str
    gpus: tuple[str, ...]
    cells: str
    sets: int
    seed: int
    first: int


def _run(chunk: _Chunk) -> dict[str, Any]:
    """How often each verdict was said."""
    import numpy as np

    from rooffloor.validate.simulation.family import Planted, planted
    from rooffloor.validate.study.margins import Margins
    from rooffloor.validate.transfer.verdict import judge_family

    entropy = [chunk.seed, len(chunk.gpus), int(chunk.cells), list(TRUTHS).index(chunk.truth), chunk.first]
    truth: dict[str, Any] = dict(TRUTHS[chunk.truth][0])
    plan = Planted(gpus=chunk.gpus, grid=DESIGNS[chunk.cells], **truth)
    calibration = saved.load("transfer-study") if chunk.calibration == IMPUTED else None
    made = planted(plan, np.random.default_rng(entropy), chunk.sets, calibration=calibration)
    said = [judge_family(one, Margins()).verdict for one in made]
    return {"said": [said.count(name) for name in VERDICTS]}


@dataclass(frozen=True, eq=False)
class CheckRates:
    """Verdicts on simulated families: `table` has a row per truth and design, and a column per verdict."""

    table: "pd.DataFrame"

    def __repr__(self) -> str:
        return f"CheckRates({len(self.table)} truths and designs, {int(self.table['sets'].min())} families each)"

    def to_frame(self) -> "pd.DataFrame":
        return self.table

    @property
    def data(self) -> dict[str, Any]:
        """Everything, ready for JSON."""
        return {"rates": self.table.to_dict("records")}

    @property
    def summary(self) -> str:
        """Text for a person: how often each verdict was said, percent."""
        shown = self.table.copy()
        for name in VERDICTS:
            shown[name] = (100.0 * shown[name] / shown["sets"]).round(1)
        shown["wrong"] = [round(100.0 * wrong(dict(row)), 1) for _, row in self.table.iterrows()]
        return "Verdicts on simulated families, percent\n" + shown.drop(columns=["seed"]).to_string(index=False)

    def save(self, path: Path) -> Path:
        """Write the table as CSV."""
        return files.write_text(path, self.table.to_csv(index=False, lineterminator="\n"))


def calibrate(
    *,
    studies: int = SETS,
    seed: int = 1,
    jobs: int | None = None,
    dask: str | None = None,
    folder: Path | None = None,
    progress: bool = False,
) -> CheckRates:
    """Verdicts on simulated families at 2 % noise, beside both kinds of calibration.

    Parameters
    ----------
    studies : int
        Families of each truth in each design.
    jobs, dask, folder, progress
        See `runner.run`.
    """
    import numpy as np
    import pandas as pd

    from rooffloor.validate.common.runner import run

    designs = [
        (kind, truth, gpus, cells)
        for kind in (KNOWN, IMPUTED)
        for gpus in GPUS
        for cells in DESIGNS
        for truth in TRUTHS
        if kind == KNOWN or (truth in FEW_TRUTHS and cells != "5")
    ]
    chunks = [
        _Chunk(*design, min(CHUNK, count - first), seed, first)
        for design in designs
        for count in (studies if design[0] == KNOWN else -(-studies // 4),)
        for first in range(0, count, CHUNK)
    ]
    keys = [f"check {chunk!r}" for chunk in chunks]
    found = run(_run, chunks, keys=keys, jobs=jobs, dask=dask, folder=folder, progress=progress, desc="families")
    rows = []
    for kind, truth, gpus, cells in designs:
        mine = [
            (chunk.sets, result["said"])
            for chunk, result in zip(chunks, found, strict=True)
            if (chunk.calibration, chunk.truth, chunk.gpus, chunk.cells) == (kind, truth, gpus, cells)
        ]
        said = dict(zip(VERDICTS, np.sum([one for _, one in mine], axis=0).tolist(), strict=True))
        row = {"calibration": kind, "truth": truth, "gpus": len(gpus), "cells": int(cells), "seed": seed}
        rows.append(row | {"sets": sum(count for count, _ in mine)} | said)
    return CheckRates(pd.DataFrame(rows))


def committed() -> "list[dict[str, Any]]":
    """Rows of the result that comes with the package; none where there is none."""
    try:
        file = resources.path(FOLDER) / TABLE
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    whole = ("gpus", "cells", "sets", "seed", *VERDICTS)
    return [row | {name: int(row[name]) for name in whole} for row in csv.DictReader(io.StringIO(text))]


def wrong(row: Mapping[str, Any]) -> float:
    """Share of the families of one truth that got a verdict that is wrong for them."""
    right = (*TRUTHS[row["truth"]][1], UNDECIDED)
    return float(sum(row[name] for name in VERDICTS if name not in right) / row["sets"])


def nearest(
    gpus: int, cells: int, *, imputed: bool = False, rows: Sequence[Mapping[str, Any]] | None = None
) -> dict[str, Any] | None:
    """Rates of the largest simulated design that is no larger than one at hand; None where there is none.

    Parameters
    ----------
    gpus : int
    cells : int
        Of the GPU with the fewest.
    imputed : bool
        Whether the judge is the published study's calibration.
    """
    rows = committed() if rows is None else rows
    kind = IMPUTED if imputed else KNOWN
    fitting = [r for r in rows if r["calibration"] == kind and r["gpus"] <= gpus and r["cells"] <= cells]
    if not fitting:
        return None
    k = max(r["gpus"] for r in fitting)
    size = max(r["cells"] for r in fitting if r["gpus"] == k)
    own = [r for r in fitting if (r["gpus"], r["cells"]) == (k, size)]
    return {
        "calibration": kind,
        "gpus": k,
        "cells": size,
        "noise_percent": 100.0 * NOISE,
        "sets": min(r["sets"] for r in own),
        "truths": [
            {
                "truth": r["truth"],
                "right": list(TRUTHS[r["truth"]][1]),
                "said": {name: r[name] / r["sets"] for name in VERDICTS},
                "wrong": wrong(r),
            }
            for r in own
        ],
    }


def sentence(rates: Mapping[str, Any] | None, verdict: str, noise_percent: float | None = None) -> str:
    """How often this verdict is said wrongly, and rightly, in words.

    Parameters
    ----------
    noise_percent : float, optional
        What is left over of the steps at hand: said where it is more than twice that of the simulations.
    """
    if rates is None:
        return "How often such a check errs was not simulated for so few cells."
    where = (
        f"in simulated families ({rates['sets']} or more of each kind, {_many(rates['gpus'], 'GPU')}, {rates['cells']} "
        f"cells each, {rates['noise_percent']:g} % noise, calibration: {rates['calibration']})"
    )
    if verdict == UNDECIDED:
        worst = max(rates["truths"], key=lambda t: t["wrong"])
        told = f"a verdict other than 'undecided' was wrong in {_at_most(worst['wrong'], worst['truth'])}"
    else:
        false = [t for t in rates["truths"] if verdict not in t["right"]]
        worst = max(false, key=lambda t: t["said"][verdict])
        best = " and ".join(
            f"{_percent(t['said'][verdict])} ({t['truth']})" for t in rates["truths"] if verdict in t["right"]
        )
        rate = _at_most(worst["said"][verdict], worst["truth"])
        told = f"'{verdict}' was said wrongly in {rate}, rightly in {best}"
    apart = noise_percent is not None and noise_percent > 2.0 * rates["noise_percent"]
    other = f" These steps leave over {noise_percent:.0f} %: the rates are not theirs." if apart else ""
    return f"Error rate: {where}, {told}.{other}"


def _at_most(share: float, truth: str) -> str:
    """The largest rate over all truths, and of which; none where it is 0."""
    return f"at most {_percent(share)} ({truth})" if share else "none"


def _percent(share: float) -> str:
    return f"{100.0 * share:.0f} %"


def _many(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
