"""Axes of cells: checked, broadcast, and taken block by block, so that arrays of any size need little memory."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

type Floats = NDArray[np.float64]

SMALL, LARGE = 4096, 16384
"""Cells at a time: where a cell is cheap, so that arrays stay in the nearest cache, and where it is not."""


def checked(
    batch: ArrayLike, context: ArrayLike, *, least: float = 0.0, label: str = "context"
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Batch (from 1) and context (from `least`) as arrays of real numbers, each of its own shape.

    Raises
    ------
    ValueError
        A value is no finite number in its range.
    """
    try:
        tokens, cached = _real(batch), _real(context)
    except (TypeError, ValueError) as error:
        raise _no_axes(label, error) from error
    for name, values, lowest in (("batch", tokens, 1.0), (label, cached, least)):
        low, high = (values.min(initial=lowest), values.max(initial=lowest)) if values.ndim else 2 * (values.item(),)
        if not (low >= lowest and high < np.inf):
            wrong = values[~((values >= lowest) & np.isfinite(values))]
            raise ValueError(f"{name} must be a finite number from {lowest:g}, got {wrong.flat[0]:g}")
    return tokens, cached


def checked_axes(
    batch: ArrayLike, context: ArrayLike, *, least: float = 0.0, label: str = "context"
) -> tuple[Floats, Floats]:
    """The same as float arrays of one shape; ValueError also where the shapes do not broadcast."""
    axes = (axis.astype(float, copy=False) for axis in checked(batch, context, least=least, label=label))
    try:
        tokens, cached = np.broadcast_arrays(*axes)
    except ValueError as error:
        raise _no_axes(label, error) from error
    return tokens, cached


def _real(values: ArrayLike) -> NDArray[Any]:
    array = np.asarray(values)
    return array if array.dtype.kind in "iuf" else np.asarray(values, dtype=float)


def by_block(of: Callable[..., Any], *axes: NDArray[Any], size: int = SMALL) -> Floats:
    """`of` the axes, broadcast, by blocks of `size`: a function of float arrays [...] (or numbers) that gives one.

    Raises
    ------
    ValueError
        The shapes do not broadcast.
    """
    try:
        cells = np.broadcast(*axes)
    except ValueError as error:
        raise _no_axes("context", error) from error
    if cells.size <= size:
        result: Floats = of(*(axis.astype(float, copy=False) if axis.ndim else np.float64(axis) for axis in axes))
        return result
    roles: Any = [["readonly"]] * len(axes) + [["writeonly", "allocate"]]
    with np.nditer(
        [*axes, None],
        flags=["external_loop", "buffered"],
        op_flags=roles,
        op_dtypes=[np.float64] * (len(axes) + 1),
        order="C",
        casting="same_kind",
        buffersize=size,
    ) as blocks:
        for *given, out in blocks:
            out[...] = of(*given)
        result = blocks.operands[-1]
    return result


def _no_axes(label: str, error: Exception) -> ValueError:
    return ValueError(f"batch and {label} must be numbers of shapes that broadcast ({error})")
