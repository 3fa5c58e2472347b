"""Which floors and steps are possible: no step is faster than its bytes at peak bandwidth."""

import math
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

type Array = NDArray[np.float64]

_UNBOUND, _FAR = 8.0, 35.0
"""Sds below the mean from which on a bound cuts less than rounding does; above it, to which its tail is a number."""


def least_floor_ms(lightest_ms: float, gpu_ms: Array, positive: bool) -> Array:
    """The least floor with which no step of a model on a GPU is faster than its bytes, ms [draw].

    Parameters
    ----------
    lightest_ms : float
        `bytes_floor_ms` at `LIGHTEST`, with the physical minimum of experts: no implementation is faster.
    gpu_ms : array [draw]
        T_gpu there.
    positive : bool
        Whether floors are H >= 0, with which no step is faster than T_gpu.

    Notes
    -----
    Each kernel's time less that of its bytes at peak bandwidth never falls with batch or context, so that an added
    floor that is possible at batch 1 and context 0 is possible in all cells.
    """
    return np.zeros_like(gpu_ms) if positive else lightest_ms - gpu_ms


def possible(floor_ms: Array, least_ms: Array, weight: Array) -> tuple[Array, float]:
    """Weights of draws given that their floor is possible, and the share of draws of which it is.

    Weights, least floors (`least_floor_ms`) and floors are arrays [draw]. The weights found sum to 1 where any draw is
    possible, and are 0 for one that is cut: a truncated distribution, not a pile of draws at the bound.
    """
    mass = weight * (floor_ms >= least_ms)
    kept = float(mass.sum())
    return mass / (kept or 1.0), kept


def noisy(mean_ms: Array, least_ms: Array, noise: Array, shock: Array) -> Array:
    """Measured steps, ms [draw, cell]: normal around the mean step, truncated at the time of its bytes.

    Parameters
    ----------
    mean_ms : array [draw, cell]
    least_ms : array [cell]
        No step is faster.
    noise : array [draw]
        Relative sd, before it is truncated.
    shock : array [draw]
        Standard normal random numbers, the same in all cells: no draw is dropped, and curves are smooth.
    """
    mean = np.maximum(mean_ms, least_ms)
    error = truncated(np.broadcast_to(shock[:, None], mean.shape), (least_ms / mean - 1.0) / noise[:, None])
    return np.maximum(mean * (1.0 + noise[:, None] * error), least_ms)


def truncated(normal: Array, low: Array) -> Array:
    """Standard normal numbers turned into ones of the normal truncated to [low, inf), arrays of one shape.

    By the inverse of the distribution function: monotone in the number and smooth in the bound. The chance to exceed
    the result, given the bound, is the chance to exceed the number.
    """
    found = np.array(normal, dtype=float)
    at = low > -_UNBOUND
    beyond = _exceeded(found[at]) * _exceeded(np.minimum(low[at], _FAR))
    quantile = np.frompyfunc(NormalDist().inv_cdf, 1, 1)(beyond.clip(1e-300, 1.0 - 1e-16))
    found[at] = np.maximum(-np.asarray(quantile, dtype=float), low[at])
    return found


def _exceeded(z: Array) -> Array:
    """Chance of a standard normal number above z."""
    return np.asarray(0.5 * np.frompyfunc(math.erfc, 1, 1)(z / math.sqrt(2.0)), dtype=float)
