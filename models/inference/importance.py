"""Adaptive importance sampling of many small posteriors at a time: a multivariate t, fitted to each in rounds [1]_.

.. [1] J.-M. Cornuet, J.-M. Marin, A. Mira and C. Robert (2012), Adaptive multiple importance sampling.
"""

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from scipy.special import ndtri

type Array = NDArray[np.float64]

FREEDOM = 5.0
"""Degrees of freedom of the multivariate t from which points come: its tails are heavier than the posterior's."""
WIDE = 0.2
"""Share of points that come from a proposal twice as wide."""
LEAST_SHARE = 0.1
"""Share of the points that weights leave effective, flattened where they do not."""


def proposed(mean: Array, covariance: Array, rng: np.random.Generator, points: int) -> tuple[Array, Array]:
    """Quasi-random points [data set, point, dimension], and the log density from which they come, up to a constant.

    A multivariate t, mixed with one twice as wide so that no tail is missed.

    Parameters
    ----------
    mean, covariance : arrays [data set, dimension], [data set, dimension, dimension]
    points : int
        A power of two.
    """
    sets, dims = mean.shape
    cube = stats.qmc.Sobol(dims + 1, seed=rng).random(points)
    cube = (cube + rng.random((sets, 1, dims + 1))) % 1.0
    cube = cube.clip(1e-9, 1.0 - 1e-9)
    z = ndtri(cube[..., :-1]) * np.sqrt(FREEDOM / stats.chi2.ppf(cube[..., -1:], FREEDOM))
    z[:, : int(WIDE * points)] *= 2.0
    root = np.linalg.cholesky(covariance)
    squared = (z**2).sum(-1) / FREEDOM
    power = -0.5 * (FREEDOM + dims)
    wide = WIDE * 2.0**-dims * (1.0 + squared / 4.0) ** power
    log = np.log((1.0 - WIDE) * (1.0 + squared) ** power + wide)
    log = log - np.log(np.diagonal(root, axis1=-2, axis2=-1)).sum(-1)[:, None]
    return mean[:, None] + z @ np.swapaxes(root, -1, -2), log


def tempered(log_weight: Array, rounds: int = 12) -> Array:
    """Weights [data set, point] that sum to 1, flattened in `rounds` where a few points would carry all."""
    least = LEAST_SHARE * log_weight.shape[-1]
    log_weight = log_weight - log_weight.max(-1, keepdims=True)
    power = np.ones((len(log_weight), 1))
    for _ in range(rounds):
        weight = np.exp(power * log_weight)
        ess = weight.sum(-1) ** 2 / (weight**2).sum(-1)
        power[ess < least] *= 0.6
    weight = np.exp(power * log_weight)
    return np.asarray(weight / weight.sum(-1, keepdims=True))


def moments(theta: Array, weight: Array, more: float = 1e-4) -> tuple[Array, Array]:
    """Weighted mean [data set, dimension] and covariance of points, with `more` on its diagonal."""
    mean = np.einsum("sp,spd->sd", weight, theta)
    off = theta - mean[:, None]
    covariance = np.einsum("sp,spd,spe->sde", weight, off, off)
    return mean, covariance + more * np.eye(theta.shape[-1])


def resampled(weight: Array, draws: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Numbers of `draws` points in proportion to their weights, [data set, draw], by systematic resampling."""
    position = (np.arange(draws) + rng.random((len(weight), 1))) / draws
    rows = np.array([np.searchsorted(np.cumsum(w), u) for w, u in zip(weight, position, strict=True)])
    return rows.clip(0, weight.shape[-1] - 1)
