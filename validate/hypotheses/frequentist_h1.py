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
from rooffloor.validate.estimates.grid_axes import GridAxes
from rooffloor.validate.hypotheses import frequentist
from rooffloor.validate.hypotheses.frequentist import TestResult
from rooffloor.validate.study.margins import Margins

type Array = NDArray[np.float64]

SETS = 20
"""Imputations on which the tests are run, spread evenly over all."""


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
        the family, ms. Predictions and T_gpu of cells at hand are posterior means.
    """
    axes = GridAxes.of(draws)
    points = list(axes.points(np.ones(len(draws.cells), dtype=bool), everywhere=False))
    floor = draws.calibrated_ms
    T, predicted = draws.gpu_ms[rows], (draws.gpu_ms + floor)[rows]
    if draws.label != IMPUTED:  # each draw's T_gpu with the floor that goes with it, then their mean
        T, predicted = ((draws.weight @ values)[None] for values in (draws.gpu_ms, draws.gpu_ms + floor))
    y = draws.step_ms[rows] if len(draws.step_ms) > 1 else draws.step_ms
    error = 100.0 * np.abs(predicted / y - 1.0)
    shape = (len(rows), len(gpus), len(points))
    found = {name: np.full(shape, np.nan) for name in ("family", "anchor", "T", "y")}
    for k, gpu in enumerate(gpus):
        for name, one in (("family", model), ("anchor", draws.anchor)):
            for point, columns in axes.points(draws.mask(one, gpu), everywhere=False).items():
                held, at = axes.holding(columns)[rows], columns[axes.member[rows]]
                place, own = np.flatnonzero(held), at[held]
                found[name][place, k, points.index(point)] = error[place, own]
                if name == "family":
                    found["T"][place, k, points.index(point)] = T[place, own]
                    found["y"][place, k, points.index(point)] = y[np.minimum(place, len(y) - 1), own]
    return found


def school(draws: Draws, model: str, gpus: Sequence[str], margins: Margins) -> dict[str, Any]:
    """Every test of `frequentist`, averaged over data sets.

    Returns
    -------
    dict
        `quantity`, `margin`, `gpus`, `clusters`, `cells` (paired), `data_sets` and `tests`, for each `p_value` (mean),
        `below` (share of data sets with p below the complement of the margins' probability), `estimate`,
        `pseudo_replicated`, `name`, `df`, `note`. Tests whose unit is the GPU are repeated with the GPUs of one die as
        a cluster, under the same key with `_by_cluster`.
    """
    rows, mass = representatives(draws, SETS)
    paired = errors(draws, model, gpus, rows)
    by_die = dies(gpus)
    clusters = by_die if 1 < len(set(by_die.values())) < len(gpus) else None
    tests: dict[str, dict[str, Any]] = {}

    def add(key: str, name: str, found: Sequence[TestResult], pseudo_replicated: bool = False) -> None:
        told = {"name": name, "pseudo_replicated": pseudo_replicated}
        tests[key] = told | _averaged(found, mass, 1.0 - margins.probability)

    difference = paired["family"] - paired["anchor"]
    for suffix, unit, cluster in (("", "GPU", None), ("_by_cluster", "cluster", clusters)):
        if suffix and clusters is None:
            continue
        given = (difference, gpus, margins.h1_points, cluster)
        add(f"t_per_gpu{suffix}", f"t on per-{unit} differences", frequentist.t_per_gpu(*given).results())
        add(f"two_way_t{suffix}", f"two-way clustered t ({unit}, grid cell)", frequentist.two_way_t(*given).results())
        gpu_code, code = (
            np.broadcast_to(frequentist.cluster_codes(gpus, c)[:, None], paired["y"].shape[1:]) for c in (None, cluster)
        )
        slopes = [
            frequentist.wald_slope(T, y, y**-2.0, gpu_code, code) for T, y in zip(paired["T"], paired["y"], strict=True)
        ]
        add(f"wald_slope{suffix}", f"Wald test of slope 1, clustered by {unit}", slopes)
    single = frequentist.t_per_cell(difference, margins.h1_points).results(pseudo_replicated=True)
    add("tost_cells", "cell-level one-sided t", single, pseudo_replicated=True)
    return {
        "quantity": frequentist.ESTIMAND,
        "margin": float(margins.h1_points),
        "gpus": list(gpus),
        "clusters": clusters,
        "cells": int((~np.isnan(difference[0])).sum()),
        "data_sets": len(rows),
        "tests": tests,
    }


def _averaged(tests: Sequence[TestResult], mass: Array, level: float) -> dict[str, Any]:
    """Means over data sets, by weight, of those that have a p-value; None where none has."""
    p, estimate = np.array([t.p_value for t in tests]), np.array([t.estimate for t in tests])
    seen = ~np.isnan(p)
    weight = mass[seen] / mass[seen].sum() if seen.any() else mass[seen]
    numbers = {"p_value": p[seen], "below": p[seen] < level, "estimate": estimate[seen]}
    return {
        "df": None if np.isnan(tests[0].df) else tests[0].df,
        "note": next((t.note for t, s in zip(tests, seen, strict=True) if not s), tests[0].note),
        **{name: float(weight @ values) if seen.any() else None for name, values in numbers.items()},
    }
