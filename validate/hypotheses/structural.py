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

FEWEST = 2
"""Cells that a pair must have to enter: models with single cells would leave no cell that all share."""


def structural(
    draws: Draws,
    shapes: Mapping[str, ModelShapes],
    gpus: Mapping[str, GpuSpec],
    published: Mapping[tuple[str, str, str], float] | None = None,
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
        dense = [(m, mask) for m, g, mask in draws.pairs() if g == gpu and draws.classes[m] != "moe"]
        models = [m for m, mask in dense if mask.sum() >= FEWEST]
        read = _small_batch(draws, noisy, gpu, models, published)
        found += [read] if read else []
        read = _context_rise(draws, noisy, gpu, models, shapes, gpus[gpu], published)
        found += [read] if read else []
    return found


def _corner(draws: Draws, model: str, gpu: str, batch: float, context: float) -> int | None:
    """The cell of a pair at (batch, context) of the first grid, or None."""
    mask = draws.mask(model, gpu) & (draws.batch[0] == batch) & (draws.context[0] == context)
    found = np.flatnonzero(mask)
    return int(found[0]) if len(found) else None


def _common(draws: Draws, gpu: str, models: Sequence[str]) -> list[tuple[float, float]]:
    """(batch, context) at which all models were measured, in order."""
    sets = []
    for model in models:
        mask = draws.mask(model, gpu)
        sets.append(set(zip(draws.batch[0, mask].tolist(), draws.context[0, mask].tolist(), strict=True)))
    return sorted(set.intersection(*sets)) if sets else []


def _order_probability(draws: Draws, values: Sequence[Array], key: Sequence[float], what: str) -> dict[str, Any]:
    """P(the values rise with their key); pairs of equal keys do not count."""
    right = np.ones(len(draws.weight), bool)
    concordant, pairs = np.zeros(len(draws.weight)), 0
    for i in range(len(key)):
        for j in range(len(key)):
            if key[i] < key[j]:
                below = values[i] < values[j]
                right &= below
                concordant += below
                pairs += 1
    return {
        "probability": draws.probability(right, f"P({what})").data,
        "concordant": draws.estimate(concordant / pairs, "share of pairs in that order", "1").data,
        "pairs": pairs,
    }


def _small_batch(
    draws: Draws,
    noisy: Array,
    gpu: str,
    models: Sequence[str],
    published: Mapping[tuple[str, str, str], float],
) -> dict[str, Any] | None:
    common = _common(draws, gpu, models)
    if not common or len(models) < 2:
        return None
    batch, context = common[0]
    predicted = {}
    for m in models:
        cell = _corner(draws, m, gpu, batch, context)
        assert cell is not None
        predicted[m] = float(draws.weight @ draws.gpu_ms[:, cell]), cell
    models = sorted(models, key=lambda m: predicted[m])
    cells = [predicted[m][1] for m in models]
    what = f"steps at B = {batch:g}, L = {context:g} rise with T_gpu, the order that shapes alone predict"
    order = _order_probability(draws, [noisy[:, c] for c in cells], [predicted[m][0] for m in models], what)
    return {
        "name": f"small-batch order on {gpu}",
        "statement": _statement(gpu, what, order, len(models)),
        **order,
        "rows": [
            {
                "label": m,
                "value": draws.estimate(
                    np.broadcast_to(draws.step_ms[:, c], draws.weight.shape), f"step, {draws.label}", "ms"
                ).data,
                "published": published.get(("small_batch_step", m, gpu)),
            }
            for m, c in zip(models, cells, strict=True)
        ],
    }


def _context_rise(
    draws: Draws,
    noisy: Array,
    gpu: str,
    models: Sequence[str],
    shapes: Mapping[str, ModelShapes],
    spec: GpuSpec,
    published: Mapping[tuple[str, str, str], float],
) -> dict[str, Any] | None:
    common = _common(draws, gpu, models)
    spans = {b: [c for bb, c in common if bb == b] for b in {b for b, _ in common}}
    long = [b for b, contexts in spans.items() if len(contexts) > 1]
    if not long or len({shapes[m].kv_bytes_per_token for m in models}) < 2:
        return None
    batch = max(long)
    low, high = min(spans[batch]), max(spans[batch])
    models = sorted(models, key=lambda m: shapes[m].kv_bytes_per_token)
    rises, rows = [], []
    for m in models:
        top, bottom = _corner(draws, m, gpu, batch, high), _corner(draws, m, gpu, batch, low)
        rises.append(noisy[:, top] - noisy[:, bottom])
        rise = np.broadcast_to(draws.step_ms[:, top] - draws.step_ms[:, bottom], draws.weight.shape)
        at_peak = shapes[m].kv_bytes_per_token * batch * (high - low) / spec.bandwidth * 1e3
        rows.append(
            {
                "label": m,
                "value": draws.estimate(rise, f"rise of the step, {draws.label}", "ms").data,
                "published": published.get(("long_context_rise", m, gpu)),
                "kv_ms_at_peak": at_peak,
                "below_peak": draws.probability(rise < at_peak, "P(rise < its KV bytes at peak bandwidth)").data,
            }
        )
    what = f"rise of the step from L = {low:g} to {high:g} at B = {batch:g} grows with the KV bytes per token"
    order = _order_probability(draws, rises, [shapes[m].kv_bytes_per_token for m in models], what)
    return {
        "name": f"context rise on {gpu}",
        "statement": _statement(gpu, what, order, len(models)),
        **order,
        "rows": rows,
    }


def _statement(gpu: str, what: str, order: Mapping[str, Any], models: int) -> str:
    if models <= 4:
        return f"Probability that on {gpu} the {what}, without exception: {say(order['probability']['value'])}."
    share = 100 * order["concordant"]["value"]
    return f"On {gpu} the {what} in {share:.0f} % of the {order['pairs']} pairs of models."
