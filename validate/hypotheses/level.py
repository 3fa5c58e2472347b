"""The level of a residual: MAPEs under a calibrated floor, whatever it was calibrated on, and their mean over GPUs."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp, ndtr

from rooffloor.validate.estimates.cell_draws import IMPUTED, Draws
from rooffloor.validate.estimates.metrics import expected_error

type Array = NDArray[np.float64]

FEW_CELLS, SPLITS = 3, 30
"""Cells that calibrate a floor, and how many choices of them are tried, where few calibrate and the rest test."""


def beside_anchor(draws: Draws, model: str, least: int = 1) -> list[tuple[str, NDArray[np.bool_]]]:
    """GPUs on which the anchor, and a model in at least so many cells, were measured, with the model's cells."""
    return [(g, mask) for m, g, mask in draws.pairs() if m == model and mask.sum() >= least and draws.has_anchor(mask)]


def level_error(draws: Draws, mask: NDArray[np.bool_], floor_ms: Array) -> Array:
    """Expected MAPE (percent, per draw) of some cells predicted as T_gpu + a calibrated floor."""
    predicted = draws.gpu_ms[:, mask] + floor_ms[:, mask]
    return 100.0 * expected_error(predicted, draws.mean_ms[:, mask], draws.noise_ms[:, mask]).mean(-1)


def left_out_error(draws: Draws, mask: NDArray[np.bool_]) -> Array:
    """MAPE (percent, per draw) of cells predicted with an offset fitted to the pair's other cells, weights 1/y^2."""
    T, y = draws.below_floor_ms[:, mask], draws.step_ms[:, mask]
    w = np.broadcast_to(1.0 / y**2, T.shape)
    d = y - T
    total, sum_ = w.sum(-1, keepdims=True), (w * d).sum(-1, keepdims=True)
    offset = (sum_ - w * d) / np.maximum(total - w, 1e-300)
    return np.asarray(100.0 * np.abs((T + offset - y) / y).mean(-1))


def few_cells_error(draws: Draws, mask: NDArray[np.bool_]) -> Array:
    """MAPE (percent, per draw) of the other cells, offset from `FEW_CELLS` cells, mean over `SPLITS` choices."""
    n = int(mask.sum())
    rng = np.random.default_rng(n)
    chosen = [rng.permutation(n) < FEW_CELLS for _ in range(SPLITS)]
    return np.mean([elsewhere_error(draws, mask, at) for at in chosen], axis=0)


def long_context_error(draws: Draws, mask: NDArray[np.bool_]) -> Array | None:
    """MAPE (percent, per draw) of the longest context under an offset from all shorter ones; None without two."""
    context = draws.context[:, mask]  # each draw's own grid
    short = context < context.max(-1, keepdims=True)
    return elsewhere_error(draws, mask, short) if short.any(-1).all() else None


def elsewhere_error(draws: Draws, mask: NDArray[np.bool_], calibrate: NDArray[np.bool_]) -> Array:
    """MAPE (percent, per draw) of a pair's other cells, offset fitted to those of `calibrate`, weights 1/y^2.

    `calibrate` is a mask over the pair's cells, or one for each draw.
    """
    T, y = draws.below_floor_ms[:, mask], np.broadcast_to(draws.step_ms[:, mask], draws.gpu_ms[:, mask].shape)
    w = calibrate / y**2
    offset = (w * (y - T)).sum(-1, keepdims=True) / w.sum(-1, keepdims=True)
    return np.asarray(100.0 * np.abs((T + offset - y) / y).mean(-1, where=~calibrate))


@dataclass(frozen=True, eq=False)
class Pooled:
    """Posterior of a mean over SKUs, a mixture of normals over the sd between SKUs; arrays (..., point)."""

    weight: Array
    centre: Array
    precision: Array

    def below(self, margin: float | Array) -> Array:
        """P(mean below a margin), (...); the margin broadcasts with the leading axes."""
        z = (np.asarray(margin)[..., None] - self.centre) * np.sqrt(self.precision)
        return np.asarray((self.weight * ndtr(z)).sum(-1))

    def sample(self, rng: np.random.Generator) -> Array:
        """One draw of the mean from each mixture, (...)."""
        summed = np.cumsum(self.weight, -1)
        at = (summed < rng.random((*summed.shape[:-1], 1)) * summed[..., -1:]).sum(-1, keepdims=True)
        centre, precision = (np.take_along_axis(v, at, -1)[..., 0] for v in (self.centre, self.precision))
        return np.asarray(centre + rng.standard_normal(centre.shape) / np.sqrt(precision))


def pool(means: Array, sds: Array, scale: float, correlation: Array | None = None) -> Pooled:
    """Mean over SKUs with a between-SKU sd ~ half-Cauchy(scale) and a flat mean.

    Parameters
    ----------
    means, sds : arrays, shape (..., gpu)
        Posterior mean and sd on each SKU.
    correlation : array, shape (..., gpu, gpu), optional
        Of the errors of these means: constants that are uncertain for all SKUs alike move them together. Default:
        independent.
    """
    tau = scale * np.tan(0.5 * np.pi * (np.arange(60) + 0.5) / 60)
    sds, one = np.maximum(sds, 1e-6), np.ones(means.shape)
    variance = sds**2
    if correlation is not None:  # along its axes the errors are independent
        variance, axes = np.linalg.eigh(correlation * sds[..., :, None] * sds[..., None, :])
        variance = np.maximum(variance, 1e-12)
        means, one = ((axes * v[..., None]).sum(-2) for v in (means, one))
    variance = variance[..., None, :] + tau[:, None] ** 2
    means, one = means[..., None, :], one[..., None, :]
    precision = (one**2 / variance).sum(-1)
    centre = (one * means / variance).sum(-1) / precision
    gap = means - one * centre[..., None]
    log_weight = -0.5 * (np.log(variance).sum(-1) + np.log(precision) + (gap**2 / variance).sum(-1))
    weight = np.exp(log_weight - logsumexp(log_weight, axis=-1, keepdims=True))
    return Pooled(weight, centre, precision)


def pool_here(means: Array, sds: Array, scale: float) -> Pooled:
    """Mean over these very SKUs, not over SKUs like them, under the same prior as `pool`, errors independent.

    SKUs draw each other's values together as far as they agree; what SKUs that were not measured would show does not
    widen it.
    """
    of = pool(means, sds, scale)
    tau = scale * np.tan(0.5 * np.pi * (np.arange(60) + 0.5) / 60)
    squared, count = np.maximum(sds, 1e-6)[..., None, :] ** 2, means.shape[-1]
    own = tau[:, None] ** 2 / (squared + tau[:, None] ** 2)  # weight of a SKU's own mean in its value
    centre = (own * means[..., None, :] + (1.0 - own) * of.centre[..., None]).mean(-1)
    variance = (squared * own).sum(-1) / count**2 + (1.0 - own).mean(-1) ** 2 / of.precision
    return Pooled(of.weight, centre, 1.0 / variance)


def pooled_below(
    means: Array, sds: Array, margin: float | Array, scale: float, correlation: Array | None = None
) -> Array:
    """P(mean over SKUs below a margin), (...); see `pool`. The margin broadcasts with the leading axes."""
    return pool(means, sds, scale, correlation).below(margin)


def by_unit(draws: Draws, values: Array, keep: NDArray[np.bool_] | None = None) -> tuple[Array, Array, Array]:
    """Mean and sd of values (draw, ...) within each unit of an imputation (or over all draws), and unit weights.

    `keep` (draw,) leaves draws out.
    """
    rows, mass = _units(draws, keep)
    return np.stack([values[r].mean(0) for r in rows]), np.stack([values[r].std(0) for r in rows]), mass


def correlation_by_unit(draws: Draws, values: Array, keep: NDArray[np.bool_] | None = None) -> Array:
    """Correlation of values (draw, gpu) between GPUs within each unit of `by_unit`, (unit, gpu, gpu)."""
    found = []
    for rows in _units(draws, keep)[0]:
        off = values[rows] - values[rows].mean(0)
        size = np.maximum(np.sqrt((off**2).mean(0)), 1e-300)
        one = (off[:, :, None] * off[:, None, :]).mean(0) / (size[:, None] * size)
        np.fill_diagonal(one, 1.0)
        found.append(one)
    return np.stack(found)


def _units(draws: Draws, keep: NDArray[np.bool_] | None) -> tuple[list[NDArray[np.int64]], Array]:
    """Draws of each imputation (or all together), and their weights, which sum to 1."""
    kept = np.ones(len(draws.weight), dtype=bool) if keep is None else keep
    if draws.label != IMPUTED:
        return [np.flatnonzero(kept)], np.ones(1)
    rows = [np.flatnonzero(kept & (draws.unit == u)) for u in np.unique(draws.unit[kept])]
    mass = np.array([draws.weight[r].sum() for r in rows])
    return rows, mass / mass.sum() if keep is not None else mass


def sampled(draws: Draws, mask: NDArray[np.bool_]) -> tuple[NDArray[np.int64], Array, Array, Array]:
    """One draw per imputation, or 100 draws of a measured posterior: numbers, weights, and T and y of some cells."""
    if draws.label == IMPUTED:
        rows = np.unique(draws.unit, return_index=True)[1]
    else:
        rows = np.linspace(0, len(draws.weight) - 1, min(100, len(draws.weight))).astype(np.int64)
    T, y = draws.gpu_ms[rows][:, mask], draws.step_ms[rows if len(draws.step_ms) > 1 else [0]][:, mask]
    return rows, draws.weight[rows] / draws.weight[rows].sum(), T, np.broadcast_to(y, T.shape)
