"""Structural reads: orderings and slopes that one floor per model cannot fake (orderings across models it can)."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rooffloor.models.specs.gpus import GpuSpec
from rooffloor.models.specs.shapes import ModelShapes
from rooffloor.validate.estimates.cell_draws import Draws
from rooffloor.validate.hypotheses.result import say

type Array = NDArray[np.float64]
type Point = tuple[float, float]
type Published = Mapping[tuple[str, str, str], float]

FEWEST = 2
"""Cells that a pair must have to enter: models with single cells would leave no cell that all share."""


def structural(
    draws: Draws,
    shapes: Mapping[str, ModelShapes],
    gpus: Mapping[str, GpuSpec],
    published: Published | None = None,
) -> list[dict[str, Any]]:
    """Ordering of small-batch steps by T_gpu, and of context rises by KV bytes, per GPU.

    Each step is allowed its measurement noise: what is ordered is what a re-run would show.

    Parameters
    ----------
    published : mapping of (quantity, model, gpu) to value
        Figures to stand beside, "small_batch_step" and "long_context_rise".
    """
    published = published or {}
    rng = np.random.default_rng(len(draws.cells))
    noisy = draws.step_ms + draws.noise_ms * rng.standard_normal(draws.noise_ms.shape)
    found = []
    for gpu in draws.cells.gpus:
        shared = _shared(draws, gpu)
        found += _small_batch(draws, noisy, gpu, shared, published)
        found += _context_rise(draws, noisy, gpu, shared, shapes, gpus[gpu], published)
    return found


def _shared(draws: Draws, gpu: str) -> dict[Point, dict[str, int]]:
    """Points of the first grid at which all dense models were measured on a GPU, in order: each model's cell."""
    pairs = [(m, mask) for m, g, mask in draws.pairs() if g == gpu and draws.classes[m] != "moe"]
    models = [(m, mask) for m, mask in pairs if mask.sum() >= FEWEST]
    found: dict[Point, dict[str, int]] = {}
    for model, mask in models:
        for cell in np.flatnonzero(mask).tolist():
            found.setdefault((draws.batch[0, cell], draws.context[0, cell]), {}).setdefault(model, cell)
    return {point: found[point] for point in sorted(found) if len(found[point]) == len(models)}


def _small_batch(
    draws: Draws, noisy: Array, gpu: str, shared: Mapping[Point, Mapping[str, int]], published: Published
) -> list[dict[str, Any]]:
    (batch, context), cells = next(iter(shared.items()), ((0.0, 0.0), {}))
    if len(cells) < 2:
        return []
    predicted = {m: float(draws.weight @ draws.gpu_ms[:, cell]) for m, cell in cells.items()}
    models = sorted(cells, key=lambda m: (predicted[m], cells[m]))
    rows = [
        {
            "label": m,
            "value": _estimate(draws, draws.step_ms[:, cells[m]], "step"),
            "published": published.get(("small_batch_step", m, gpu)),
        }
        for m in models
    ]
    what = f"steps at B = {batch:g}, L = {context:g} rise with T_gpu, the order that shapes alone predict"
    ordered = [noisy[:, cells[m]] for m in models]
    return [_read(draws, "small-batch order", gpu, ordered, [predicted[m] for m in models], what, rows)]


def _context_rise(
    draws: Draws,
    noisy: Array,
    gpu: str,
    shared: Mapping[Point, Mapping[str, int]],
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
    rises, rows = [], []
    for m in models:
        top, bottom = shared[batch, high][m], shared[batch, low][m]
        rises.append(noisy[:, top] - noisy[:, bottom])
        rise = np.broadcast_to(draws.step_ms[:, top] - draws.step_ms[:, bottom], draws.weight.shape)
        at_peak = kv[m] * batch * (high - low) / spec.bandwidth * 1e3
        rows.append(
            {
                "label": m,
                "value": _estimate(draws, rise, "rise of the step"),
                "published": published.get(("long_context_rise", m, gpu)),
                "kv_ms_at_peak": at_peak,
                "below_peak": draws.probability(rise < at_peak, "P(rise < its KV bytes at peak bandwidth)").data,
            }
        )
    what = f"rise of the step from L = {low:g} to {high:g} at B = {batch:g} grows with the KV bytes per token"
    return [_read(draws, "context rise", gpu, rises, [kv[m] for m in models], what, rows)]


def _estimate(draws: Draws, values: Array, what: str) -> dict[str, Any]:
    return draws.estimate(np.broadcast_to(values, draws.weight.shape), f"{what}, {draws.label}", "ms").data


def _read(
    draws: Draws,
    name: str,
    gpu: str,
    values: Sequence[Array],
    key: Sequence[float],
    what: str,
    rows: list[dict[str, Any]],
) -> dict[str, Any]:
    """How far the values rise with their key; pairs of equal keys do not count."""
    below = [values[i] < values[j] for i in range(len(key)) for j in range(len(key)) if key[i] < key[j]]
    probability = draws.probability(np.all(below, axis=0), f"P({what})")
    concordant = draws.estimate(np.sum(below, axis=0) / len(below), "share of pairs in that order", "1")
    if len(values) <= 4:
        said = f"Probability that on {gpu} the {what}, without exception: {say(probability.value)}."
    else:
        said = f"On {gpu} the {what} in {100 * concordant.value:.0f} % of the {len(below)} pairs of models."
    return {
        "name": f"{name} on {gpu}",
        "statement": said,
        "probability": probability.data,
        "concordant": concordant.data,
        "pairs": len(below),
        "rows": rows,
    }
