"""A cause over the ways in which floors may join: under the calibration's own, and what the others say of it."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rooffloor.models.calibration.anchor import rejoined
from rooffloor.models.calibration.draws import Calibration, units
from rooffloor.models.specs.cells import Cells
from rooffloor.models.specs.gpus import GpuSpec
from rooffloor.models.specs.shapes import ModelShapes
from rooffloor.validate.estimates.cell_draws import IMPUTED
from rooffloor.validate.study.margins import Margins
from rooffloor.validate.transfer import family_fit
from rooffloor.validate.transfer.cause import Cause, judge, stated
from rooffloor.validate.transfer.family_fit import Family
from rooffloor.validate.transfer.statements import CANNOT_TELL, JOINS

type Array = NDArray[np.float64]

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
) -> tuple[Cause, dict[str, Any], Family]:
    """The cause, what each way of joining floors says of it, and the family beside the calibration.

    Parameters as `family_fit.family`.
    """
    judged: dict[str, Cause] = {}
    evidence: dict[str, float] = {}
    families: dict[str, Family] = {}
    few = calibration.rows(units(calibration, min(BESIDE, len(calibration.weight))))
    _, as_fitted = rejoined(few, calibration.combine, rng)
    for combine in dict.fromkeys((calibration.combine, *WAYS)):
        joined, evidence[combine] = calibration, 0.0
        if combine != calibration.combine:
            joined, evidence[combine] = _reweighted(*rejoined(few, combine, rng), as_fitted)
        families[combine] = family_fit.family(shapes, cells, specs, joined, rng, klass=klass, label=label)
        judged[combine] = judge(families[combine], margins, name=combine == calibration.combine)
        evidence[combine] += judged[combine].data["overall"]["log_evidence"]
    result, joins = _settled(judged, evidence, calibration.combine, margins)
    return result, joins, families[calibration.combine]


def _reweighted(anew: Calibration, log_density: Array, as_fitted: Array) -> tuple[Calibration, float]:
    """Constants as this way of joining floors has them, and its log evidence over that of the way they were fitted in.

    The draws are those of the other posterior: each counts by how much better the anchor's steps fit under this way.
    Of imputed cells every draw has its own steps, and draws keep their weights.
    """
    ratio = log_density - as_fitted
    top = float(ratio.max())
    weight = anew.weight * np.exp(ratio - top)
    evidence = top + float(np.log(weight.sum()))
    return (anew if anew.label == IMPUTED else replace(anew, weight=weight / weight.sum())), evidence


def _settled(
    judged: Mapping[str, Cause], evidence: Mapping[str, float], own: str, margins: Margins
) -> tuple[Cause, dict[str, Any]]:
    """The cause under the calibration's way of joining floors, and what each way says.

    Ways are equally probable before the cells are seen. A cause stands where its probability, averaged over the ways
    whatever they say themselves, is what a cause needs, and where the cells do not rule out the calibration's own way.
    """
    top = max(evidence.values())
    total = sum(np.exp(e - top) for e in evidence.values())
    joins = {
        name: {
            "cause": one.cause,
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
    notes, question = list(result["notes"]), overall["open"] or ""
    if question.startswith(JOINS):
        notes = [f"The cause depends on how floors join ({question.partition(': ')[2]}).", *notes]
    return stated(result, overall, rows, notes, margins), joins


def _over_joins(
    rows: Mapping[str, dict[str, Any]], posterior: Mapping[str, float], own: str, margins: Margins
) -> dict[str, Any]:
    """The row under the calibration's own way of joining; its cause cannot be told where it does not stand over all."""
    row = rows[own]
    cause = row["cause"]
    if cause == CANNOT_TELL:
        return row
    spare = 1.0 - margins.probability
    mean = sum(p * rows[name]["probabilities"][cause] for name, p in posterior.items())
    if mean >= margins.probability and (posterior[own] > spare):
        return row
    name = max((other for other in rows if other != own), key=posterior.__getitem__)
    why = f"{cause} if floors are {own}, {rows[name]['cause']} if they are {name}"
    if posterior[own] <= spare:
        why = f"{cause} if floors are {own}, which these cells rule out: the constants were fitted so"
    return row | {"cause": CANNOT_TELL, "open": f"{JOINS}: {why}", "mechanism": None}
