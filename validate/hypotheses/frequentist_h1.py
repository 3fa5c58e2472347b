"""H1 in the frequentist school beside the Bayesian one: the same cells, tests instead of posterior probabilities.

Imputed studies have many data sets: each test is run on some of them, and p-values are averaged by weight. Such a mean
is no p-value of one data set; it says what these tests would say of the study's own cells, as far as those are known.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rooffloor.models.specs.gpus import load as load_gpu
from rooffloor.validate.estimates.cell_draws import IMPUTED, Draws
from rooffloor.validate.hypotheses import frequentist
from rooffloor.validate.study.study import Margins

type Array = NDArray[np.float64]

SETS = 20
"""Imputations on which the tests are run, spread evenly over all."""
RESAMPLES = 999


def dies(gpus: Sequence[str]) -> dict[str, str]:
    """Die of each GPU, where the catalog knows it; other GPUs are dies of their own."""
    found = {}
    for gpu in gpus:
        try:
            found[gpu] = load_gpu(gpu).die or gpu
        except ValueError:
            found[gpu] = gpu
    return found


def representatives(draws: Draws, most: int) -> tuple[NDArray[np.int64], Array]:
    """A draw of each of up to `most` data sets (imputations; one for cells at hand), and their weights."""
    if draws.label != IMPUTED:
        return np.zeros(1, dtype=np.int64), np.ones(1)
    units, first = np.unique(draws.unit, return_index=True)
    mass = np.array([draws.weight[draws.unit == u].sum() for u in units])
    keep = np.unique(np.linspace(0, len(units) - 1, min(most, len(units))).round().astype(np.int64))
    return first[keep], mass[keep] / mass[keep].sum()


def errors(draws: Draws, model: str, gpus: Sequence[str], rows: NDArray[np.int64]) -> dict[str, Array]:
    """Of the model and the anchor, paired by grid cell, [data set, gpu, grid cell]; NaN where not measured.

    Returns
    -------
    dict
        "family" and "anchor": absolute relative errors under the anchor's calibrated floor, percent; "T" and "y" of
        the family, ms. T_gpu of cells at hand is its posterior mean.
    """
    points = sorted(set(zip(draws.batch[0].tolist(), draws.context[0].tolist(), strict=True)))
    floor = draws.calibrated_ms
    T = draws.gpu_ms[rows] if draws.label == IMPUTED else (draws.weight @ draws.gpu_ms)[None]
    y = draws.step_ms[rows] if len(draws.step_ms) > 1 else draws.step_ms
    error = 100.0 * np.abs((T + floor[rows]) / y - 1.0)
    shape = (len(rows), len(gpus), len(points))
    found = {name: np.full(shape, np.nan) for name in ("family", "anchor", "T", "y")}
    for k, gpu in enumerate(gpus):
        for name, one in (("family", model), ("anchor", draws.anchor)):
            cells = np.flatnonzero(draws.mask(one, gpu))
            at = [points.index(p) for p in zip(draws.batch[0, cells], draws.context[0, cells], strict=True)]
            found[name][:, k, at] = error[:, cells]
            if name == "family":
                found["T"][:, k, at], found["y"][:, k, at] = T[:, cells], y[:, cells]
    return found


def school(draws: Draws, model: str, gpus: Sequence[str], margins: Margins) -> dict[str, Any]:
    """Every test of `frequentist.school`, averaged over data sets.

    Returns
    -------
    dict
        As `frequentist.school` has it, with `quantity` for its `estimand` (report.json keeps that word for estimates);
        for the tests `p_value` (mean), `below` (share of data sets with p below the complement of the margins'
        probability), `estimate`, `pseudo_replicated`, `name`, `df`, `note`; and `data_sets`.
    """
    rows, mass = representatives(draws, SETS)
    paired = errors(draws, model, gpus, rows)
    by_die = dies(gpus)
    clusters = by_die if 1 < len(set(by_die.values())) < len(gpus) else None
    singles = [
        frequentist.school(
            paired["family"][n],
            paired["anchor"][n],
            gpus,
            margins.h1_points,
            clusters=clusters,
            T=paired["T"][n],
            y=paired["y"][n],
            resamples=RESAMPLES,
        )
        for n in range(len(rows))
    ]
    level = 1.0 - margins.probability

    def averaged(tests: Sequence[dict[str, Any]]) -> dict[str, Any]:
        p = np.array([np.nan if t["p_value"] is None else t["p_value"] for t in tests])
        seen = ~np.isnan(p)
        weight = mass[seen] / mass[seen].sum() if seen.any() else mass[seen]
        value = np.array([np.nan if t["estimate"] is None else t["estimate"] for t in tests])[seen]
        return {
            "name": tests[0]["name"],
            "df": tests[0]["df"],
            "p_value": float(weight @ p[seen]) if seen.any() else None,
            "below": float(weight @ (p[seen] < level)) if seen.any() else None,
            "estimate": float(weight @ value) if seen.any() else None,
            "pseudo_replicated": tests[0]["pseudo_replicated"],
            "note": next((t["note"] for t, s in zip(tests, seen, strict=True) if not s), tests[0]["note"]),
        }

    per_gpu = []
    for k, gpu in enumerate(gpus):
        own = [one["per_gpu"][k] for one in singles]
        adjusted = np.array([np.nan if one["p_holm"] is None else one["p_holm"] for one in own])
        seen = ~np.isnan(adjusted)
        p_holm = float(mass[seen] @ adjusted[seen] / mass[seen].sum()) if seen.any() else None
        per_gpu.append({"gpu": gpu, **averaged(own), "p_holm": p_holm})
    first = singles[0]
    return {
        "quantity": first["estimand"],
        **{key: first[key] for key in ("margin", "gpus", "clusters", "cells")},
        "data_sets": len(rows),
        "tests": {key: averaged([one["tests"][key] for one in singles]) for key in first["tests"]},
        "per_gpu": per_gpu,
    }


def agreement(found: dict[str, Any], probability: float, margins: Margins) -> str:
    """Whether the t-test over GPUs and the posterior probability lead to one decision, in words."""
    t = found["tests"]["t_per_gpu"]
    if t["p_value"] is None:
        return f"No test over GPUs is possible ({t['note']})."
    level = 1.0 - margins.probability
    bayes, test = probability >= margins.probability, t["p_value"] < level
    how = "agree" if bayes == test else "disagree"
    what = "p" if found["data_sets"] == 1 else f"a mean p over {found['data_sets']} imputed grids"
    words = (
        f"The t-test of per-GPU differences against the margin ({t['df']:.0f} df) has {what} of "
        f"{t['p_value']:.2f}: the "
        f"two schools {how}"
    )
    if found["clusters"] is not None:
        die = found["tests"]["t_per_gpu_by_cluster"]["p_value"]
        words += f" (p {die:.2f} where GPUs with one die count once)" if die is not None else ""
    cells = found["tests"]["tost_cells"]["p_value"]
    if cells is not None:
        words += f". Taking all {found['cells']} cells for independent would give {cells:.2g}: pseudo-replicated"
    return words + "."
