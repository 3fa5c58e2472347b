"""Relative errors and MAPE with and without a floor, of the cells as measured and of such as a re-run would show.

Every function takes arrays whose last axis is the cell; leading axes (draws, imputations) broadcast. MAPEs are in
percent, errors of cells are fractions.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtri

Floats = NDArray[np.float64]

AS_MEASURED = "MAPE of the cells as measured"
EXPECTED = "expected MAPE of the grid"
RERUN = "MAPE that a re-run would show"


def relative_error(t_ms: ArrayLike, y_ms: ArrayLike, floor_ms: ArrayLike = 0.0) -> Floats:
    """Signed relative error (T + floor - y) / y as a fraction.

    Parameters
    ----------
    t_ms : array_like, shape (..., cell)
        GPU-compute branch, ms.
    y_ms : array_like, shape (..., cell)
        Measured or imputed step, ms; positive.
    floor_ms : array_like, broadcastable to (..., cell)
        What is added under each cell, ms (may be negative).

    Raises
    ------
    ValueError
        A step is not a positive number, so that no relative error exists.
    """
    y = np.asarray(y_ms, dtype=float)
    if not np.all(y > 0):
        raise ValueError(f"step_ms must be positive to form relative errors, got {y[~(y > 0)].flat[0]}")
    return (np.asarray(t_ms, dtype=float) + np.asarray(floor_ms, dtype=float) - y) / y


def mape(error: ArrayLike) -> Floats:
    """Mean absolute of relative errors over the last axis, percent: shape (..., cell) -> (...)."""
    return 100.0 * np.mean(np.abs(np.asarray(error, dtype=float)), axis=-1)


def raw_mape(t_ms: ArrayLike, y_ms: ArrayLike) -> Floats:
    """Mean `|T - y| / y` over the last axis, percent; see `relative_error` for shapes and errors."""
    return mape(relative_error(t_ms, y_ms))


def residual_mape(t_ms: ArrayLike, y_ms: ArrayLike, floor_ms: ArrayLike) -> Floats:
    """Mean `|T + floor - y| / y` over the last axis, percent; see `relative_error` for shapes and errors."""
    return mape(relative_error(t_ms, y_ms, floor_ms))


def pooled(per_gpu: ArrayLike) -> Floats:
    """Plain mean over the SKUs (last axis), SKUs without cells (NaN) left out: shape (..., gpu) -> (...).

    The published table obeys this rule, whatever the number of cells of each SKU.
    """
    values = np.asarray(per_gpu, dtype=float)
    present = ~np.isnan(values)
    count = present.sum(axis=-1)
    total = np.where(present, values, 0.0).sum(axis=-1)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def expected_error(predicted: Floats, mean: Floats, sd: Floats, nodes: int = 24) -> Floats:
    """E `|predicted - y| / y` of each cell for a new measurement y ~ Normal(mean, sd), as a fraction; broadcast.

    The normal is replaced by `nodes` equally likely points; y is kept above a tenth of its mean.
    """
    total = np.zeros(np.broadcast_shapes(predicted.shape, mean.shape, sd.shape))
    for z in ndtri((np.arange(nodes) + 0.5) / nodes):
        y = np.maximum(mean + z * sd, 0.1 * np.abs(mean))
        total += np.abs(predicted / y - 1.0)
    return total / nodes


def rerun_error(predicted: Floats, mean: Floats, sd: Floats, rng: np.random.Generator) -> Floats:
    """`|predicted - y| / y` of each cell for one simulated re-run, as a fraction."""
    y = np.maximum(mean + sd * rng.standard_normal(mean.shape), 0.1 * np.abs(mean))
    return np.abs(predicted / y - 1.0)
