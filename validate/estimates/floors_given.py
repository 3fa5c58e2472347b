"""Posterior means of floors given everything else in a draw: the T_gpu of its constants, its noise, its scales.

Weight bandwidth and floors are one column where memory binds: over the draws of a fit T_gpu and the floor run against
each other (correlation near -1), and their sum is known far better than either. So a calibration predicts T_gpu with
the floor *given* that T_gpu, in each draw; the mean of a floor over all draws goes with no T_gpu but the mean.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

type Array = NDArray[np.float64]

POINTS, REACH = 401, 8.0
"""Points of the grid of a floor H >= 0, and how many sds of the likelihood it reaches to each side."""


def told_by_cells(left_ms: Array, variance_ms2: Array, pair_code: NDArray[np.int64], pairs: int) -> tuple[Array, Array]:
    """What cells say of the floor of their pair, given T_gpu: mean and precision.

    Parameters
    ----------
    left_ms : array, shape (draw, cell)
        Step less T_gpu.
    variance_ms2 : array, shape (draw, cell)
        Of a measured step around its mean.
    pair_code : int array, shape (cell,)
        From 0.
    pairs : int

    Returns
    -------
    value, precision : arrays, shape (draw, pair), ms and 1/ms^2
        Precision-weighted means; 0 and 0 for a pair without cells.
    """
    member = (pair_code[:, None] == np.arange(pairs)).astype(float)
    precision = (1.0 / variance_ms2) @ member
    weighed = (left_ms / variance_ms2) @ member
    return weighed / np.where(precision > 0, precision, 1.0), precision


def offset_step_ms(gpu_ms: Array, step_ms: Array, pair_code: NDArray[np.int64], pairs: int) -> Array:
    """T_gpu with the mean offset of each pair, weights 1/step^2, (draw, cell): where the noise of a step is read off.

    A floor drawn at random would make the noise, and with it the weights of the cells, random as well.
    """
    y = np.broadcast_to(step_ms, gpu_ms.shape)
    offset, _ = told_by_cells(y - gpu_ms, y**2, pair_code, pairs)
    return np.asarray(gpu_ms + offset[:, pair_code])


def floor_covariance(
    gpu_code: NDArray[np.int64],
    group_code: NDArray[np.int64] | None,
    overall_sd: float,
    scales: tuple[Array, Array | float, Array | float],
) -> Array:
    """Prior covariance of floors (or of their logarithms) given the scales of each draw, (draw, pair, pair).

    Parameters
    ----------
    gpu_code, group_code : int arrays, shape (pair,)
        GPU and group of models; no group where each GPU has one floor.
    overall_sd : float
        Prior sd of the level common to all floors.
    scales : arrays, shape (draw,)
        sd of GPU, group and pair effects.
    """
    same_gpu = (gpu_code[:, None] == gpu_code).astype(float)
    same_group = np.zeros_like(same_gpu) if group_code is None else (group_code[:, None] == group_code).astype(float)
    effects = zip(scales, (same_gpu, same_group, np.eye(len(gpu_code))), strict=True)
    by_effect = [np.square(np.asarray(sd, dtype=float))[..., None, None] * same for sd, same in effects]
    return np.asarray(overall_sd**2 + sum(by_effect))


def floor_means(
    value: Array,
    precision: Array,
    covariance: Array,
    level: float,
    known_ms: ArrayLike = 0.0,
    known: NDArray[np.bool_] | None = None,
) -> Array:
    """Posterior means of signed floors given what cells say and a joint normal prior, ms, (draw, pair).

    Precision-weighted means of what the cells say (`told_by_cells`), shrunk towards each other and towards the level as
    the scales of the draw have it: level + C (C + 1/precision)^-1 (value - level).

    Parameters
    ----------
    value, precision : arrays, shape (draw, pair)
    covariance : array, shape (draw, pair, pair)
        `floor_covariance`.
    level : float
        Prior mean of every floor, ms.
    known_ms : array_like, shape (draw, pair)
        Floors that are given, where `known` (pair,) is true: an anchor's, in the second stage of a cut.
    """
    error = 1.0 / np.maximum(precision, 1e-12)
    if known is not None:
        value = np.where(known, known_ms, value)
        error = np.where(known, 0.0, error)
    seen = covariance + error[..., None] * np.eye(error.shape[-1])
    seen = seen + 1e-12 * np.trace(seen, axis1=-2, axis2=-1)[..., None, None] * np.eye(error.shape[-1])
    gain = np.linalg.solve(seen, (value - level)[..., None])
    means = level + (covariance @ gain)[..., 0]
    return np.asarray(means if known is None else np.where(known, known_ms, means))


def positive_floor_means(value: Array, precision: Array, level: float, log_sd: Array) -> Array:
    """Posterior means of floors H >= 0 with a lognormal prior, each alone, ms, (draw, pair).

    Parameters
    ----------
    value, precision : arrays, shape (draw, pair)
        `told_by_cells`.
    level : float
        Prior mean of log H.
    log_sd : array, shape (draw, 1) or (draw, pair)
        Prior sd of log H: all effects together.
    """
    sd = 1.0 / np.sqrt(np.maximum(precision, 1e-12))
    prior_end = np.exp(level + 4.0 * log_sd)
    low = np.maximum(value - REACH * sd, 1e-4)
    high = np.maximum(np.minimum(np.maximum(value, 0.0) + REACH * sd, np.maximum(value, prior_end)), low + 1e-3)
    H = low[..., None] + (high - low)[..., None] * np.linspace(0.0, 1.0, POINTS)
    log = -0.5 * ((H - value[..., None]) / sd[..., None]) ** 2
    log = log - 0.5 * ((np.log(H) - level) / np.asarray(log_sd)[..., None]) ** 2 - np.log(H)
    mass = np.exp(log - log.max(-1, keepdims=True))
    return np.asarray((H * mass).sum(-1) / mass.sum(-1))
