"""A verdict over the ways in which floors may join: under the calibration's own, and what the others say of it."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from rooffloor.models.calibration.anchor import rejoined
from rooffloor.models.calibration.draws import Calibration, units
from rooffloor.models.specs.cells import Cells
from rooffloor.models.specs.gpus import GpuSpec
from rooffloor.models.specs.shapes import ModelShapes
from rooffloor.validate.study.margins import Margins
from rooffloor.validate.transfer import family_fit
from rooffloor.validate.transfer.family_fit import Family
from rooffloor.validate.transfer.statements import JOINS, TRANSFERS, UNDECIDED
from rooffloor.validate.transfer.verdict import Verdict, judge, stated

WAYS = ("added", "overlapped")
"""Ways of joining floors under which every family is judged."""
BESIDE = 200
"""Draws of the calibration whose anchor is fitted anew under each way of joining floors."""


def over_joins(
    shapes: ModelShapes,
    cells: Cells,
    specs: Mapping[str, GpuSpec],
    calibration: Calibration,
    rng: np.random.Generator,
    margins: Margins,
    *,
    klass: str | None = None,
    label: str = "measured",
) -> tuple[Verdict, dict[str, Any], Family]:
    """The verdict on a family, what each way of joining floors says, and the family beside the calibration.

    Parameters as `family_fit.family`.
    """
    judged: dict[str, Verdict] = {}
    evidence: dict[str, float] = {}
    families: dict[str, Family] = {}
    few = calibration.rows(units(calibration, min(BESIDE, len(calibration.weight))))
    for combine in dict.fromkeys((calibration.combine, *WAYS)):
        anew, evidence[combine] = rejoined(few, combine, rng)
        joined = calibration if combine == calibration.combine else anew
        families[combine] = family_fit.family(shapes, cells, specs, joined, rng, klass=klass, label=label)
        judged[combine] = judge(families[combine], margins)
        evidence[combine] += judged[combine].data["overall"]["log_evidence"]
    result, joins = _settled(judged, evidence, calibration.combine, margins)
    return result, joins, families[calibration.combine]


def _settled(
    judged: Mapping[str, Verdict], evidence: Mapping[str, float], own: str, margins: Margins
) -> tuple[Verdict, dict[str, Any]]:
    """The verdict under the calibration's way of joining floors, and what each way says.

    Ways are equally probable before the cells are seen. A verdict stands where its probability, averaged over the ways,
    is what a verdict needs; and, since the constants were fitted under the calibration's own way, none but "transfers"
    stands where the cells rule that out.
    """
    top = max(evidence.values())
    total = sum(np.exp(e - top) for e in evidence.values())
    joins = {
        name: {
            "verdict": one.verdict,
            "probabilities": one.probabilities,
            "posterior": float(np.exp(evidence[name] - top) / total),
            "anchor_level": one.data["overall"]["level"]["value"] - one.data["overall"]["difference"]["value"],
        }
        for name, one in judged.items()
    }
    posterior = {name: one["posterior"] for name, one in joins.items()}
    result = judged[own].data
    overall = _over_joins({name: one.data["overall"] for name, one in judged.items()}, posterior, own, margins)
    rows = [
        _over_joins({name: one.data["per_sku"][k] for name, one in judged.items()}, posterior, own, margins)
        for k in range(len(result["per_sku"]))
    ]
    if overall is result["overall"] and all(row is old for row, old in zip(rows, result["per_sku"], strict=True)):
        return judged[own], joins
    notes, question = list(result["notes"]), overall["undecided"] or ""
    if question.startswith(JOINS):
        notes = [f"Undecided, since it depends on how floors join ({question.partition(': ')[2]}).", *notes]
    return stated(result, overall, rows, notes, margins), joins


def _over_joins(
    rows: Mapping[str, dict[str, Any]], posterior: Mapping[str, float], own: str, margins: Margins
) -> dict[str, Any]:
    """The row under the calibration's own way of joining, undecided where its verdict does not stand over all ways."""
    row = rows[own]
    verdict = row["verdict"]
    if verdict == UNDECIDED:
        return row
    spare = 1.0 - margins.probability
    mean = sum(p * rows[name]["probabilities"][verdict] for name, p in posterior.items())
    if mean >= margins.probability and (posterior[own] > spare or verdict == TRANSFERS):
        return row
    name = max((other for other in rows if other != own), key=posterior.__getitem__)
    why = f"{verdict} if floors are {own}, {rows[name]['verdict']} if they are {name}"
    if posterior[own] <= spare:
        why = f"{verdict} if floors are {own}, which these cells rule out: the constants were fitted so"
    return row | {"verdict": UNDECIDED, "undecided": f"{JOINS}: {why}", "mechanism": None}
