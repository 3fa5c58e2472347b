"""How often `rooffloor check` errs: verdicts and causes counted on simulated families, and what they say in words.

`simulation.check` (`rooffloor calibrate --check`) makes the table that is kept in data/calibration/check.csv.
"""

import csv
import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rooffloor.validate.common import resources
from rooffloor.validate.hypotheses.error_rates import NOISE, RateTable
from rooffloor.validate.transfer.statements import (
    CANNOT_TELL,
    CAUSES,
    INDISTINGUISHABLE,
    MISMATCH,
    NOTHING,
    RECALIBRATE,
    VERDICTS,
)

if TYPE_CHECKING:
    pass

FOLDER, TABLE = "calibration", "check.csv"
LEVEL = (RECALIBRATE, INDISTINGUISHABLE)
TRUTHS: Mapping[str, tuple[Mapping[str, Any], tuple[str, ...]]] = {
    "nothing differs": ({}, (NOTHING,)),
    "floor 3 ms larger": ({"floor_ms": 3.0}, LEVEL),
    "weights 25 % slower": ({"weights": 1.25}, (MISMATCH, INDISTINGUISHABLE)),
    "DRAM efficiencies 25 % lower": ({"whole": 1 / 0.75}, (MISMATCH,)),
    "DRAM 25 % slower": ({"whole": 1.25}, (MISMATCH,)),
    "DRAM efficiencies 25 % lower and floor 3 ms larger": ({"whole": 1 / 0.75, "floor_ms": 3.0}, (MISMATCH,)),
    "DRAM 25 % slower and floor 3 ms larger": ({"whole": 1.25, "floor_ms": 3.0}, (MISMATCH,)),
    "DRAM efficiencies 10 % lower": ({"whole": 1 / 0.9}, ()),
    "floors overlapped by half, nothing differs": ({"q": 0.5}, (NOTHING,)),
    "floors overlapped by half, taken for added": ({"q": 0.5, "judged": "added"}, ()),
}
"""What a simulated family does (arguments of `planted.Planted`), and which causes are right. Where none is, the size
lies about at the margin and any confident cause counts as wrong. "Cannot tell" is never wrong."""
KNOWN, UNKNOWN, IMPUTED = "constants known", "constants fitted, 3 % left over", "the published study"
"""Calibrations: known constants beside 15 measured cells of the anchor; constants drawn anew for each family and known
from these cells alone, with a smooth leftover; or that of the published study, one of whose draws is the truth."""
OFF, WRONG = "off", "wrong on use"
COUNTS = (*VERDICTS, OFF, WRONG, *CAUSES)
"""What is counted of each truth and design: verdicts on use, families whose true error is above the tolerance, verdicts
that contradict it, and causes."""


class CheckRates(RateTable):
    """Verdicts on simulated families: `table` has a row per truth and design, and a column per verdict and cause."""

    def __repr__(self) -> str:
        return f"CheckRates({len(self.table)} truths and designs, {int(self.table['sets'].min())} families each)"

    @property
    def data(self) -> dict[str, Any]:
        """Everything, ready for JSON."""
        return {"rates": self.table.to_dict("records")}

    @property
    def text(self) -> str:
        """Text for a person: how often each verdict was said, percent."""
        shown = self.table.copy()
        for name in COUNTS:
            shown[name] = (100.0 * shown[name] / shown["sets"]).round(1)
        shown["wrong cause"] = [round(100.0 * wrong(dict(row)), 1) for _, row in self.table.iterrows()]
        return "Verdicts and causes on simulated families, percent\n" + shown.drop(columns=["seed"]).to_string(
            index=False
        )


def committed() -> "list[dict[str, Any]]":
    """Rows of the result that comes with the package; none where there is none."""
    try:
        file = resources.path(FOLDER) / TABLE
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    whole = ("gpus", "cells", "sets", "seed", *COUNTS)
    rows = csv.DictReader(io.StringIO(text))
    return [row | {name: int(row[name]) for name in whole} for row in rows if WRONG in row]


def wrong(row: Mapping[str, Any]) -> float:
    """Share of the families of one truth that got a cause that is wrong for them."""
    right = (*TRUTHS[row["truth"]][1], CANNOT_TELL)
    return float(sum(row[name] for name in CAUSES if name not in right) / row["sets"])


def nearest(
    gpus: int, cells: int, *, kind: str = UNKNOWN, rows: Sequence[Mapping[str, Any]] | None = None
) -> dict[str, Any] | None:
    """Rates of the largest simulated design that is no larger than one at hand; None where there is none.

    Parameters
    ----------
    gpus : int
    cells : int
        Of the GPU with the fewest.
    kind : str
        Of the calibration that judges, one of `KNOWN`, `UNKNOWN` and `IMPUTED`.
    """
    rows = committed() if rows is None else rows
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
                "said": {name: r[name] / r["sets"] for name in (*VERDICTS, *CAUSES)},
                "off": r[OFF] / r["sets"],
                "wrong_on_use": r[WRONG] / r["sets"],
                "wrong": wrong(r),
            }
            for r in own
        ],
    }


def sentence(rates: Mapping[str, Any] | None, cause: str, noise_percent: float | None = None) -> str:
    """How often verdicts on use contradict the truth, and how often this cause is named wrongly and rightly, in words.

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
    worst = max(rates["truths"], key=lambda t: t["wrong_on_use"])
    told = f"'holds' or 'does not hold' was wrong in {_at_most(worst['wrong_on_use'], worst['truth'])}"
    if cause == CANNOT_TELL:
        worst = max(rates["truths"], key=lambda t: t["wrong"])
        told += f"; a cause that was named was wrong in {_at_most(worst['wrong'], worst['truth'])}"
    else:
        false = [t for t in rates["truths"] if cause not in t["right"]]
        worst = max(false, key=lambda t: t["said"][cause])
        best = " and ".join(
            f"{_percent(t['said'][cause])} ({t['truth']})" for t in rates["truths"] if cause in t["right"]
        )
        rate = _at_most(worst["said"][cause], worst["truth"])
        told += f"; '{cause}' was said wrongly in {rate}" + (f", rightly in {best}" if best else "")
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
