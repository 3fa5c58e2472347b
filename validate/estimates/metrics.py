"""The two-number report: relative errors and MAPE with and without a floor (DESIGN section 1).

Every function takes arrays whose last axis is the cell; leading axes (draws, imputations) broadcast.
Errors are in percent except `relative_error`, which is a fraction.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]


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


def signed_mean(error: ArrayLike) -> Floats:
    """Signed mean of relative errors over the last axis, percent: shape (..., cell) -> (...).

    Stands beside every MAPE, which alone cannot tell over- from under-prediction.
    """
    return 100.0 * np.mean(np.asarray(error, dtype=float), axis=-1)


def raw_mape(t_ms: ArrayLike, y_ms: ArrayLike) -> Floats:
    """Mean |T - y| / y over the last axis, percent; see `relative_error` for shapes and errors."""
    return mape(relative_error(t_ms, y_ms))


def residual_mape(t_ms: ArrayLike, y_ms: ArrayLike, floor_ms: ArrayLike) -> Floats:
    """Mean |T + floor - y| / y over the last axis, percent; see `relative_error` for shapes and errors."""
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


def group_mean(values: ArrayLike, codes: ArrayLike, n_groups: int) -> Floats:
    """Mean of `values` within groups of cells.

    Parameters
    ----------
    values : array_like, shape (..., cell)
    codes : int array_like, shape (cell,)
        Group of each cell, 0 <= code < n_groups.
    n_groups : int

    Returns
    -------
    array, shape (..., n_groups)
        NaN where a group has no cell.
    """
    v, group = np.asarray(values, dtype=float), np.asarray(codes)
    members = [group == g for g in range(n_groups)]
    empty = np.full(v.shape[:-1], np.nan)
    return np.stack([v[..., m].mean(axis=-1) if m.any() else empty for m in members], axis=-1)


@dataclass(frozen=True, eq=False)
class TwoNumbers:
    """The two-number table; every array is in percent, NaN where a model was not measured on a GPU.

    Attributes
    ----------
    models, gpus : tuple of str
    cells : int array, shape (model, gpu)
        Number of cells behind each entry.
    raw, residual, raw_signed, residual_signed : arrays, shape (..., model, gpu)
        MAPE without and with the floor, and the signed mean relative errors.
    pooled_raw, pooled_residual : arrays, shape (..., model)
        Plain means over the GPUs.
    """

    models: tuple[str, ...]
    gpus: tuple[str, ...]
    cells: NDArray[np.int64]
    raw: Floats
    residual: Floats
    raw_signed: Floats
    residual_signed: Floats

    @property
    def pooled_raw(self) -> Floats:
        return pooled(self.raw)

    @property
    def pooled_residual(self) -> Floats:
        return pooled(self.residual)


def two_numbers(
    models: Sequence[str],
    gpus: Sequence[str],
    model_code: ArrayLike,
    gpu_code: ArrayLike,
    t_ms: ArrayLike,
    y_ms: ArrayLike,
    floor_ms: ArrayLike,
) -> TwoNumbers:
    """Raw and residual MAPE of every (model, GPU), the signed means beside them.

    Parameters
    ----------
    models, gpus : sequences of str
        Names that the codes index.
    model_code, gpu_code : int array_like, shape (cell,)
    t_ms, y_ms, floor_ms : array_like, broadcastable to (..., cell)
        GPU-compute branch, step and floor (the anchor's, of each cell's SKU), ms.
    """
    pair = np.asarray(model_code) * len(gpus) + np.asarray(gpu_code)
    raw, residual = relative_error(t_ms, y_ms), relative_error(t_ms, y_ms, floor_ms)

    def table(error: Floats) -> Floats:
        means = 100.0 * group_mean(error, pair, len(models) * len(gpus))
        return means.reshape(*means.shape[:-1], len(models), len(gpus))

    counts = np.bincount(pair, minlength=len(models) * len(gpus)).reshape(len(models), len(gpus))
    return TwoNumbers(
        tuple(models),
        tuple(gpus),
        counts,
        table(np.abs(raw)),
        table(np.abs(residual)),
        table(raw),
        table(residual),
    )
