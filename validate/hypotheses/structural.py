"""Structural reads: orderings and slopes that one floor per model cannot fake (orderings across models it can).

Facts stand first: figures as a study prints them, or steps as measured, are in an order or they are not. What a
re-run of the measurement would show is another line, and what imputed grids say of cells that nobody printed a third.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rooffloor.models.specs.gpus import GpuSpec
from rooffloor.models.specs.shapes import ModelShapes
from rooffloor.validate.estimates.cell_draws import IMPUTED, Draws
from rooffloor.validate.estimates.grid_axes import Columns, GridAxes, Point
from rooffloor.validate.hypotheses.result import say

type Array = NDArray[np.float64]
type Published = Mapping[tuple[str, str, str], float]

SMALL_STEP, RISE = "small_batch_step", "long_context_rise"
"""Quantities that a study may print."""
FEWEST = 2
"""Cells that a pair must have to enter: models with single cells would leave no cell that all share."""
FEW_MODELS = 4
"""Up to so many models, an order is told without exception; of more, by its pairs."""


def structural(
    draws: Draws,
    shapes: Mapping[str, ModelShapes],
    gpus: Mapping[str, GpuSpec],
    published: Published | None = None,
) -> list[dict[str, Any]]:
    """Ordering of small-batch steps by T_gpu, and of context rises by KV bytes, per GPU.

    Parameters
    ----------
    published : mapping of (quantity, model, gpu) to value
        Figures as printed, "small_batch_step" and "long_context_rise", ms.

    Returns
    -------
    list of dict
        `name`, `statement`, `in_order` (as printed or as measured; None where nobody printed or measured it),
        `as_published` (a sentence or None), `probability` (of imputed cells alone, given what was printed),
        `concordant`, `pairs`, `rerun` (the probability that a re-run, with its noise, would show the order), and
        `rows` by model.
    """
    published, axes = published or {}, GridAxes.of(draws)
    rng = np.random.default_rng(len(draws.cells))
    noisy = draws.step_ms + draws.noise_ms * rng.standard_normal(draws.noise_ms.shape)
    found = []
    for gpu in draws.cells.gpus:
        shared = _shared(draws, axes, gpu)
        found += _small_batch(draws, axes, noisy, gpu, shared, published)
        found += _context_rise(draws, axes, noisy, gpu, shared, shapes, gpus[gpu], published)
    return found


def _shared(draws: Draws, axes: GridAxes, gpu: str) -> dict[Point, dict[str, Columns]]:
    """Points of every grid at which all dense models were measured on a GPU, in order: each model's columns."""
    pairs = [(m, mask) for m, g, mask in draws.pairs() if g == gpu and draws.classes[m] != "moe"]
    models = [(m, axes.points(mask)) for m, mask in pairs if mask.sum() >= FEWEST]
    points = sorted(set.intersection(*(set(own) for _, own in models))) if models else []
    return {point: {m: own[point] for m, own in models} for point in points}


def _small_batch(
    draws: Draws,
    axes: GridAxes,
    noisy: Array,
    gpu: str,
    shared: Mapping[Point, Mapping[str, Columns]],
    published: Published,
) -> list[dict[str, Any]]:
    (batch, context), cells = next(iter(shared.items()), ((0.0, 0.0), {}))
    if len(cells) < 2:
        return []
    predicted = {m: float(draws.weight @ axes.take(draws.gpu_ms, at)) for m, at in cells.items()}
    models = sorted(cells, key=lambda m: (predicted[m], list(cells).index(m)))
    steps = [axes.take(draws.step_ms, cells[m]) for m in models]
    printed = [published.get((SMALL_STEP, m, gpu)) for m in models]
    rows = [
        {"label": m, "value": _estimate(draws, y, "step", "ms"), "published": value}
        for m, y, value in zip(models, steps, printed, strict=True)
    ]
    read = _Read(
        f"small-batch order on {gpu}",
        f"steps at B = {batch:g}, L = {context:g}",
        "rise with T_gpu, the order that shapes alone predict",
        "small-batch steps",
        gpu,
    )
    again = [axes.take(noisy, cells[m]) for m in models]
    return [_told(draws, read, models, [predicted[m] for m in models], printed, steps, again, rows)]


def _context_rise(
    draws: Draws,
    axes: GridAxes,
    noisy: Array,
    gpu: str,
    shared: Mapping[Point, Mapping[str, Columns]],
    shapes: Mapping[str, ModelShapes],
    spec: GpuSpec,
    published: Published,
) -> list[dict[str, Any]]:
    spans = {b: [c for bb, c in shared if bb == b] for b, _ in shared}
    batch = max((b for b, contexts in spans.items() if len(contexts) > 1), default=None)
    kv = {m: shapes[m].kv_bytes_per_token for cells in shared.values() for m in cells}
    if batch is None or len(set(kv.values())) < 2:
        return []
    low, high = min(spans[batch]), max(spans[batch])
    models = sorted(kv, key=kv.__getitem__)

    def rise(values: Array, model: str) -> Array:
        return axes.take(values, shared[batch, high][model]) - axes.take(values, shared[batch, low][model])

    rises, printed = [rise(draws.step_ms, m) for m in models], [published.get((RISE, m, gpu)) for m in models]
    rows = []
    for m, own, value in zip(models, rises, printed, strict=True):
        at_peak = kv[m] * batch * (high - low) / spec.bandwidth * 1e3
        rows.append(
            {
                "label": m,
                "value": _estimate(draws, own, "rise of the step", "ms"),
                "published": value,
                "kv_ms_at_peak": at_peak,
                "below_peak": draws.probability(own < at_peak, "P(rise < its KV bytes at peak bandwidth)").data,
            }
        )
    read = _Read(
        f"context rise on {gpu}",
        f"rises of the step from L = {low:g} to {high:g} at B = {batch:g}",
        "grow with the KV bytes per token",
        "long-context rises",
        gpu,
    )
    again = [rise(noisy, m) for m in models]
    return [_told(draws, read, models, [float(kv[m]) for m in models], printed, rises, again, rows)]


@dataclass(frozen=True)
class _Read:
    """What is read on a GPU: its name, the quantity, how it should go, and what the study calls the quantity."""

    name: str
    what: str
    how: str
    printed: str
    gpu: str


def _estimate(draws: Draws, values: Array, what: str, unit: str) -> dict[str, Any]:
    """An estimate; of cells at hand the number alone."""
    found = draws.estimate(values, f"{what}, {draws.label}", unit).data
    return found if draws.label == IMPUTED else found | {"intervals": {}, "mcse": None}


def _rising(values: Sequence[Any], key: Sequence[float]) -> list[Any]:
    """Whether the values rise with their key, for every pair of unequal keys."""
    return [values[i] < values[j] for i in range(len(key)) for j in range(len(key)) if key[i] < key[j]]


def _told(
    draws: Draws,
    read: _Read,
    models: Sequence[str],
    key: Sequence[float],
    printed: Sequence[float | None],
    values: Sequence[Array],
    again: Sequence[Array],
    rows: list[dict[str, Any]],
) -> dict[str, Any]:
    """How far the values rise with their key; pairs of equal keys do not count."""
    below, repeated = _rising(values, key), _rising(again, key)
    order = f"the {read.what} {read.how}"
    cells = draws.probability(np.all(below, axis=0), f"P({order}), {draws.label}")
    rerun = draws.probability(np.all(repeated, axis=0), f"P(a re-run, with its noise, shows that {order})")
    concordant = _estimate(draws, np.sum(below, axis=0) / len(below), "share of pairs in that order", "1")
    imputed, share = draws.label == IMPUTED, f"in {100 * concordant['value']:.0f} % of the {len(below)} pairs of models"
    fact = _as_published(read, models, key, printed)
    known = fact is not None or not imputed
    in_order = None
    if fact is not None:
        in_order = all(_rising([v for v in printed if v is not None], _of(key, printed)))
    elif not imputed:
        in_order = bool(np.all(below))
    if imputed:
        told = share if len(models) > FEW_MODELS else f"with probability {say(cells.value)}"
        said = f"{'In' if known else 'Not printed; in'} the imputed grids of {read.gpu}, {told}, {order}."
    elif len(models) > FEW_MODELS:
        said = f"As measured on {read.gpu}, {order}, {share}."
    elif in_order:
        said = f"As measured on {read.gpu}, {order}, without exception."
    else:
        said = f"As measured on {read.gpu}, the {read.what} do not all {read.how}: {share} they do."
    return {
        "name": read.name,
        "statement": " ".join([*([fact] if fact else []), said]),
        "as_published": fact,
        "in_order": in_order,
        "probability": cells.data if imputed else None,
        "concordant": concordant,
        "pairs": len(below),
        "rerun": rerun.data,
        "rerun_sentence": f"Probability that a re-run, whose steps have the noise of the fit, would show that order "
        f"without exception: {say(rerun.value)}.",
        "rows": rows,
    }


def _of(key: Sequence[float], printed: Sequence[float | None]) -> list[float]:
    return [k for k, value in zip(key, printed, strict=True) if value is not None]


def _as_published(
    read: _Read, models: Sequence[str], key: Sequence[float], printed: Sequence[float | None]
) -> str | None:
    """The printed figures in the order of their key, and whether they rise; None where fewer than two are printed."""
    values = [value for value in printed if value is not None]
    if len(values) < 2:
        return None
    told = ", ".join(f"{m} {v:g} ms" for m, v in zip(models, printed, strict=True) if v is not None)
    rising, short = _rising(values, _of(key, printed)), read.how.partition(",")[0]
    if all(rising):
        return f"As published, the {read.printed} on {read.gpu} {short}: {told}."
    wrong = f"{len(rising) - sum(rising)} of {len(rising)} pairs do not"
    return f"As published, the {read.printed} on {read.gpu} do not all {short} ({wrong}): {told}."
