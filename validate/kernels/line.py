"""One straight line through the kernels of a GPU and format: time = a + bytes / (bandwidth e)."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from rooffloor.validate.kernels.benchmarks import LEAST_SHAPES, Floats, KernelTimes

_LEAST = 0.2
"""Share of the time below which a line is not taken on the way to the best one."""
_HUBER = 1.5
"""Residuals beyond so many robust sd count less."""


@dataclass(frozen=True, eq=False)
class Line:
    """The line of one GPU, format and stack.

    Attributes
    ----------
    kind, gpu, format, stack : str
        As in `KernelTimes`.
    kernels, shapes : int
        How many times it was drawn through, and of how many shapes.
    coefficients : float array [2]
        a in ms, and 1/e.
    covariance : float array [2, 2]
        Of them, with shapes as the units whose errors are independent.
    misfit : float
        Mean absolute error of log(time), percent.
    shape_sd : float
        Robust sd between shapes of their mean error of log(time): what the line does not know of one matrix.
    """

    kind: str
    gpu: str
    format: str
    stack: str
    kernels: int
    shapes: int
    coefficients: Floats
    covariance: Floats
    misfit: float
    shape_sd: float


def line(times: KernelTimes) -> Line:
    """The line by least squares of log(time / line), with Huber's weights.

    Errors of one shape go together (tiling, not noise): the covariance is the jackknife over shapes, to first
    order in what is left out (Cameron and Miller 2015, section VI: CV3), times G / (G - 2) for G of them.

    Raises
    ------
    ValueError
        Fewer than `LEAST_SHAPES` shapes.
    """
    if (shapes := int(times.shape.max()) + 1) < LEAST_SHAPES:
        raise ValueError(f"{times.gpu}, {times.format}: expected at least {LEAST_SHAPES} shapes, found {shapes}")
    design = np.stack([np.ones_like(times.peak_ms), times.peak_ms], axis=1)
    found, near = _robust(design, times.time_ms)
    line_ms = np.maximum(design @ found, _LEAST * times.time_ms)
    relative = design / line_ms[:, None]
    squares, pulls = np.zeros((shapes, 2, 2)), np.zeros((shapes, 2))
    np.add.at(squares, times.shape, near.slope[:, None, None] * relative[:, :, None] * relative[:, None, :])
    np.add.at(pulls, times.shape, near.pull[:, None] * relative)
    away = np.linalg.solve(squares.sum(axis=0) - squares, pulls[..., None])[..., 0]
    covariance = shapes / (shapes - 2.0) * away.T @ away
    residuals = np.log(times.time_ms / line_ms)
    of_shape = np.bincount(times.shape, residuals) / np.bincount(times.shape)
    about = (times.kind, times.gpu, times.format, times.stack, len(residuals), shapes, found, covariance)
    shape_sd = 1.4826 * float(np.median(np.abs(of_shape - np.median(of_shape))))
    return Line(*about, 100.0 * float(np.mean(np.abs(residuals))), shape_sd)


class _Pulls(NamedTuple):
    """Huber's function of the residuals, and its derivative, float [n]."""

    pull: Floats
    slope: Floats


def _robust(design: Floats, target: Floats) -> tuple[Floats, _Pulls]:
    """Coefficients of iterated least squares of log(time / line)."""
    found, weights, working = np.zeros(2), target**-2.0, target
    for _ in range(100):
        root = np.sqrt(weights)
        new = np.linalg.lstsq(design * root[:, None], working * root, rcond=None)[0]
        line_ms = np.maximum(design @ new, _LEAST * target)
        away = np.log(target / line_ms)
        scale = _HUBER * 1.4826 * float(np.median(np.abs(away))) + 1e-12
        weights = np.minimum(1.0, scale / np.maximum(np.abs(away), 1e-12)) / line_ms**2
        working = line_ms * (1.0 + away)
        if np.allclose(new, found, rtol=1e-8, atol=0.0):
            break
        found = new
    return new, _Pulls(np.clip(away, -scale, scale), (np.abs(away) < scale).astype(float))
