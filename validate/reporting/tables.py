"""Sections of the report that are tables of estimates: the two numbers, floors, constants, excluded cells."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rooffloor.validate.estimates.cell_draws import IMPUTED, Draws
from rooffloor.validate.estimates.metrics import AS_MEASURED, EXPECTED, RERUN, expected_error, rerun_error
from rooffloor.validate.published.imputation.readings import READINGS
from rooffloor.validate.published.imputation.reconstruction import Reconstruction
from rooffloor.validate.published.printed_figures import PublishedFigures

type Array = NDArray[np.float64]


def published_offsets(draws: Draws, reconstruction: Reconstruction) -> dict[tuple[str, str], Array]:
    """The offset of each (model, gpu) under the reading of each draw's imputation, ms, shape (draw,)."""
    heads = reconstruction.cells.drop_duplicates("imputation")
    readings = dict(zip(heads["imputation"], heads["reading"], strict=True))
    reading_of = np.array([readings[unit] for unit in draws.unit.tolist()])
    offsets = {}
    for model, gpu, mask in draws.pairs():
        value = np.empty(len(draws.unit))
        for name in np.unique(reading_of):
            rows = reading_of == name
            y, T = draws.step_ms[rows][:, mask], draws.gpu_ms[rows][:, mask]
            points = np.stack([draws.batch[rows][:, mask], draws.context[rows][:, mask]], -1)
            for own in np.unique(points, axis=0):
                same = (points == own).all((-2, -1))
                value[np.flatnonzero(rows)[same]] = READINGS[name].offset(y[same], T[same], own)
        offsets[model, gpu] = value
    return offsets


def two_numbers(
    draws: Draws, figures: PublishedFigures | None, offsets: Mapping[tuple[str, str], Array] | None, seed: int
) -> list[dict[str, Any]]:
    """Raw and residual MAPE of every (model, gpu) and pooled, under the three estimands.

    As measured: the cells at hand, with the published offset of each imputation or, for measured cells, with the
    posterior mean of T_gpu and the anchor's floor given it. Expected: over new measurements, given the parameters.
    Re-run: of one new measurement of every cell.
    """
    rng = np.random.default_rng(seed)
    rows, columns, none = [], dict[tuple[str, str], dict[str, dict[str, Array]]](), np.zeros_like(draws.gpu_ms)
    for model, gpu, mask in draws.pairs():
        added = {"raw": none} | ({"residual": draws.calibrated_ms} if draws.has_anchor(mask) else {})
        known = {"raw": np.zeros(len(draws.weight)), "residual": (offsets or {}).get((draws.anchor, gpu))}
        found = {kind: _numbers(draws, mask, floor, known[kind], rng) for kind, floor in added.items()}
        signed = {kind: _signed(draws, mask, floor) for kind, floor in added.items()}
        columns[model, gpu] = found
        rows.append(_row(draws, model, gpu, int(mask.sum()), found, signed, figures))
    for model in draws.cells.models:
        own = [f for (m, _), f in columns.items() if m == model]
        if len(own) < 2:
            continue
        pooled = {
            kind: {k: np.mean([f[kind][k] for f in own], axis=0) for k in _ESTIMANDS}
            for kind in ("raw", "residual")
            if all(kind in f for f in own)
        }
        cells = int((draws.cells.model == model).sum())
        rows.append(_row(draws, model, "pooled", cells, pooled, {}, figures))
    return rows


def _row(
    draws: Draws,
    model: str,
    gpu: str,
    cells: int,
    found: Mapping[str, Mapping[str, Array]],
    signed: Mapping[str, Any],
    figures: PublishedFigures | None,
) -> dict[str, Any]:
    residual = _estimates(draws, found["residual"]) if "residual" in found else None
    return {
        "model": model,
        "gpu": gpu,
        "cells": cells,
        "raw": _estimates(draws, found["raw"]),
        "residual": residual,
        "signed": {kind: signed.get(kind) for kind in ("raw", "residual")},
        "published": _published(figures, model, gpu),
    }


_ESTIMANDS = {"as_measured": AS_MEASURED, "expected": EXPECTED, "rerun": RERUN}


def _numbers(
    draws: Draws, mask: NDArray[np.bool_], floor: Array, offset: Array | None, rng: np.random.Generator
) -> dict[str, Array]:
    """MAPE in percent per draw under the three estimands; `offset` is the published one, where there is one."""
    T, y, added = draws.gpu_ms[:, mask], draws.step_ms[:, mask], floor[:, mask]
    mean, sd = draws.mean_ms[:, mask], draws.noise_ms[:, mask]
    if draws.label == IMPUTED:
        known = added if offset is None else offset[:, None]
        as_measured = np.abs((T + known) / y - 1.0).mean(-1)
    else:
        # The sign is that of the mean prediction, so that the mean over draws is its MAPE, with its Monte Carlo error.
        centre = draws.weight @ (T + added)
        as_measured = (np.sign(centre / y[0] - 1.0) * ((T + added) / y[0] - 1.0)).mean(-1)
    return {
        "as_measured": 100.0 * as_measured,
        "expected": 100.0 * expected_error(T + added, mean, sd).mean(-1),
        "rerun": 100.0 * rerun_error(T + added, mean, sd, rng).mean(-1),
    }


def _estimates(draws: Draws, found: Mapping[str, Array]) -> dict[str, Any]:
    out = {}
    for key, values in found.items():
        estimate = draws.estimate(values, _ESTIMANDS[key], "percent").data
        if key == "as_measured" and draws.label != IMPUTED:
            estimate |= {"intervals": {}}
        out[key] = estimate
    return out


def _signed(draws: Draws, mask: NDArray[np.bool_], floor: Array) -> dict[str, Any]:
    predicted = draws.gpu_ms[:, mask] + floor[:, mask]
    error = 100.0 * (predicted / draws.step_ms[:, mask] - 1.0).mean(-1)
    return draws.estimate(error, "signed mean relative error of the cells", "percent").data


def _published(figures: PublishedFigures | None, model: str, gpu: str) -> dict[str, float | None] | None:
    if figures is None:
        return None
    found = {
        short: figures.value(model, gpu, name) if figures.has(model, gpu, name) else None
        for short, name in (("raw", "raw_mape"), ("residual", "residual_mape"))
    }
    return found if any(v is not None for v in found.values()) else None


def floors(
    draws: Draws, figures: PublishedFigures | None, offsets: Mapping[tuple[str, str], Array] | None
) -> dict[str, Any]:
    """Floors per (GPU, class) and per (GPU, model), and published self-floors beside the model's."""
    what = "mean floor of the models of a class" if draws.label == IMPUTED else "floor shared by a (GPU, class)"
    by_class = [
        {"gpu": gpu, "class": klass, "floor": draws.estimate(v, what, "ms").data}
        for (gpu, klass), v in draws.class_floor_ms.items()
    ]
    by_model, own = [], []
    for model, gpu, mask in draws.pairs():
        floor = draws.floor_ms[:, mask][:, 0]
        estimate = draws.estimate(floor, "floor of a (GPU, model)", "ms")
        by_model.append({"gpu": gpu, "model": model, "floor": estimate.data})
        if figures is None or offsets is None:
            continue
        named = [q for q in ("anchor_offset", "self_floor") if figures.has(model, gpu, q)]
        if not named:
            continue
        value = figures.value(model, gpu, named[0])
        reading = draws.estimate(offsets[model, gpu], "offset under the study's reading", "ms")
        gap = draws.estimate(floor - offsets[model, gpu], "floor minus the study's reading", "ms")
        own.append(
            {
                "model": model,
                "gpu": gpu,
                "published": value,
                "reading": reading.data,
                "floor": estimate.data,
                "difference": gap.data,
                "why": f"The study's {value:g} ms is one statistic of the pair's 15 differences y - T_gpu (a median, a "
                "least-MAPE offset, or the mean of a subset; which one is unknown, so the readings that fit are "
                "mixed). The model's floor is an offset for all 15 cells, each weighed by its noise, and is drawn "
                f"towards the floors of the same GPU and model. It lies {gap} ms above the study's (90 % interval).",
            }
        )
    return {"by_class": by_class, "by_model": by_model, "self_floors": own}


def constants(draws: Draws, found: Mapping[str, Mapping[str, Array]]) -> list[dict[str, Any]]:
    """Efficiency constants of one treatment."""
    units = {"l_half": "tokens", "latency_ms": "ms", "sequence_ms": "ms", "sequence_layer_ms": "ms"}
    return [
        {"constant": name, "gpu": gpu, "estimate": draws.estimate(values, name, units.get(name, "1")).data}
        for name, by_gpu in found.items()
        for gpu, values in by_gpu.items()
    ]


def falling_share(draws: Draws, fall: float = 0.05) -> float:
    """Share of neighbouring cells of a pair, by weight, whose step falls by more than `fall` where one axis grows."""
    total = fallen = 0.0
    _, first = np.unique(draws.unit, return_index=True)
    for row in first:
        at = min(row, len(draws.step_ms) - 1)
        batch, context = draws.batch[min(row, len(draws.batch) - 1)], draws.context[min(row, len(draws.context) - 1)]
        for _, _, mask in draws.pairs():
            y, b, c = draws.step_ms[at, mask], batch[mask], context[mask]
            for own, other in ((b, c), (c, b)):
                order = np.lexsort((own, other))
                same = np.diff(other[order]) == 0
                down = y[order][1:] < (1.0 - fall) * y[order][:-1]
                total += draws.weight[row] * same.sum()
                fallen += draws.weight[row] * (same & down).sum()
    return fallen / total if total else 0.0
