"""How often does `rooffloor check` err? Its verdicts on simulated families, kept in data/calibration/check.csv."""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from validate import files, resources

if TYPE_CHECKING:
    import pandas as pd

FOLDER, TABLE = "calibration", "check.csv"
TRUTHS: Mapping[str, tuple[Mapping[str, float], tuple[str, ...]]] = {
    "nothing differs": ({}, ("transfers",)),
    "floor 3 ms larger": ({"floor_ms": 3.0}, ("recalibrate the floor",)),
    "DRAM 25 % slower": ({"whole": 1.25}, ("shape mismatch",)),
    "DRAM efficiency 25 % lower": ({"whole": 1 / 0.75}, ("shape mismatch",)),
    "DRAM 25 % slower and floor 3 ms larger": ({"whole": 1.25, "floor_ms": 3.0}, ("shape mismatch",)),
    "DRAM efficiency 10 % lower": ({"whole": 1 / 0.9}, ()),
}
"""What a simulated family does (arguments of `planted.Planted`), and which verdicts are right. Where none is, the size
lies about at the margin and any confident verdict counts as wrong. The last two verdicts are never counted as wrong."""
DESIGNS: Mapping[str, tuple[tuple[int, int], ...]] = {
    "15": tuple((b, c) for b in (1, 2, 4, 8, 16) for c in (512, 2048, 8192)),
    "5": ((1, 512), (1, 8192), (4, 2048), (16, 512), (16, 8192)),
    "3": ((1, 512), (4, 2048), (16, 8192)),
}
"""Cells per GPU."""
GPUS = (("H100",), ("H100", "H200", "A100-40GB"))
SETS, CHUNK = 200, 20


VERDICT_NAMES = (
    "transfers",
    "recalibrate the floor",
    "shape mismatch",
    "floor or weight bandwidth, indistinguishable",
    "undecided",
)
NEUTRAL = VERDICT_NAMES[3:]


@dataclass(frozen=True)
class _Chunk:
    """Some simulated families of one truth in one design."""

    truth: str
    gpus: tuple[str, ...]
    cells: str
    sets: int
    seed: int
    first: int


def _run(chunk: _Chunk) -> dict[str, Any]:
    """How often each verdict was said."""
    import numpy as np

    from validate.planted import Planted, planted
    from validate.study import Margins
    from validate.verdict import judge_family

    entropy = [chunk.seed, len(chunk.gpus), int(chunk.cells), list(TRUTHS).index(chunk.truth), chunk.first]
    truth: dict[str, Any] = dict(TRUTHS[chunk.truth][0])
    plan = Planted(gpus=chunk.gpus, grid=DESIGNS[chunk.cells], **truth)
    made = planted(plan, np.random.default_rng(entropy), chunk.sets)
    said = [judge_family(one, Margins()).verdict for one in made]
    return {"said": [said.count(name) for name in VERDICT_NAMES]}


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
        for name in VERDICT_NAMES:
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
    """Verdicts on simulated families at 2 % noise beside a calibration whose constants are known.

    Parameters
    ----------
    studies : int
        Families of each truth in each design.
    jobs, dask, folder, progress
        See `validate.runner.run`.
    """
    import numpy as np
    import pandas as pd

    from validate.runner import run

    designs = [(truth, gpus, cells) for gpus in GPUS for cells in DESIGNS for truth in TRUTHS]
    chunks = [
        _Chunk(*design, min(CHUNK, studies - first), seed, first)
        for design in designs
        for first in range(0, studies, CHUNK)
    ]
    keys = [f"check {chunk!r}" for chunk in chunks]
    found = run(_run, chunks, keys=keys, jobs=jobs, dask=dask, folder=folder, progress=progress, desc="families")
    rows = []
    for truth, gpus, cells in designs:
        mine = [
            r["said"] for c, r in zip(chunks, found, strict=True) if (c.truth, c.gpus, c.cells) == (truth, gpus, cells)
        ]
        said = dict(zip(VERDICT_NAMES, np.sum(mine, axis=0).tolist(), strict=True))
        rows.append({"truth": truth, "gpus": len(gpus), "cells": int(cells), "sets": studies, "seed": seed} | said)
    return CheckRates(pd.DataFrame(rows))


def committed() -> "list[dict[str, Any]]":
    """Rows of the result that comes with the package; none where there is none."""
    try:
        file = resources.path(FOLDER) / TABLE
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    whole = ("gpus", "cells", "sets", "seed", *VERDICT_NAMES)
    return [row | {name: int(row[name]) for name in whole} for row in csv.DictReader(io.StringIO(text))]


def wrong(row: Mapping[str, Any]) -> float:
    """Share of the families of one truth that got a confident verdict that is wrong for them."""
    right = TRUTHS[row["truth"]][1]
    return float(sum(row[name] for name in VERDICT_NAMES if name not in (*right, *NEUTRAL)) / row["sets"])


def nearest(gpus: int, cells: float, rows: Sequence[Mapping[str, Any]] | None = None) -> dict[str, Any] | None:
    """Rates of the simulated design that is nearest to one at hand, from below where there is one.

    Parameters
    ----------
    gpus : int
    cells : float
        Cells per GPU.
    """
    rows = committed() if rows is None else rows
    if not rows:
        return None
    k = max((r["gpus"] for r in rows if r["gpus"] <= gpus), default=min(r["gpus"] for r in rows))
    sizes = sorted({r["cells"] for r in rows if r["gpus"] == k})
    size = max((n for n in sizes if n <= cells), default=sizes[0])
    own = [r for r in rows if (r["gpus"], r["cells"]) == (k, size)]
    return {
        "gpus": k,
        "cells": size,
        "noise_percent": 2.0,
        "sets": own[0]["sets"],
        "truths": [
            {
                "truth": r["truth"],
                "right": list(TRUTHS[r["truth"]][1]),
                "said": {name: r[name] / r["sets"] for name in VERDICT_NAMES},
                "wrong": wrong(r),
            }
            for r in own
        ],
    }


def sentence(rates: Mapping[str, Any] | None, verdict: str) -> str:
    """How often this verdict is said wrongly, and rightly, in words."""
    if rates is None:
        return "How often such a check errs was not simulated."
    where = (
        f"in simulated families ({rates['sets']} of each kind, {_many(rates['gpus'], 'GPU')}, {rates['cells']} cells "
        f"each, {rates['noise_percent']:g} % noise, constants known)"
    )
    false = [t for t in rates["truths"] if verdict not in t["right"]]
    true = [t for t in rates["truths"] if verdict in t["right"]]
    if verdict in NEUTRAL:
        worst = max(rates["truths"], key=lambda t: t["wrong"])
        rate = _percent(worst["wrong"])
        return f"Error rate: {where}, a confident verdict was wrong in at most {rate} ({worst['truth']})."
    worst = max(false, key=lambda t: t["said"][verdict])
    best = " and ".join(f"{_percent(t['said'][verdict])} where it is right ({t['truth']})" for t in true)
    return (
        f"Error rate: {where}, '{verdict}' was said wrongly in at most {_percent(worst['said'][verdict])} "
        f"({worst['truth']}), and in {best}."
    )


def _percent(share: float) -> str:
    return f"{100.0 * share:.0f} %"


def _many(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
