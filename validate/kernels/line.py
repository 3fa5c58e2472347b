"""One straight line through the kernels of a GPU and format: time = a + bytes / (bandwidth e)."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rooffloor.validate.kernels.benchmarks import LEAST_SHAPES, Floats, KernelTimes

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
        Mean absolute relative error, percent.
    shape_sd : float
        Robust sd between shapes of their mean relative error: what the line does not know of one matrix.
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
    """The line by relative least squares with Huber's weights.

    Errors of one shape go together (tiling, not noise): the covariance is the sandwich over shapes with the factor
    G / (G - 2) for G of them (Cameron and Miller 2015, section VI).

    Raises
    ------
    ValueError
        Fewer than `LEAST_SHAPES` shapes.
    """
    if (shapes := int(times.shape.max()) + 1) < LEAST_SHAPES:
        raise ValueError(f"{times.gpu}, {times.format}: expected at least {LEAST_SHAPES} shapes, found {shapes}")
    design, target = _relative(times)
    found, weights = _huber(design, target)
    residuals = design @ found - target
    bread = np.linalg.inv(design.T @ (weights[:, None] * design))
    scores = np.zeros((shapes, 2))
    np.add.at(scores, times.shape, (weights * residuals)[:, None] * design)
    covariance = bread @ (scores.T @ scores) @ bread * shapes / (shapes - 2.0)
    about = (times.kind, times.gpu, times.format, times.stack)
    misfit = 100.0 * float(np.mean(np.abs(residuals)))
    of_shape = np.bincount(times.shape, residuals) / np.bincount(times.shape)
    shape_sd = 1.4826 * float(np.median(np.abs(of_shape - np.median(of_shape))))
    return Line(*about, len(target), shapes, found, covariance, misfit, shape_sd)


def _relative(times: KernelTimes) -> tuple[Floats, Floats]:
    columns = np.stack([np.ones_like(times.peak_ms), times.peak_ms], axis=1)
    return columns / times.time_ms[:, None], np.ones_like(times.time_ms)


def _huber(design: Floats, target: Floats) -> tuple[Floats, NDArray[np.float64]]:
    """Coefficients and weights of iterated least squares."""
    weights = np.ones_like(target)
    found = np.zeros(design.shape[1])
    for _ in range(50):
        root = np.sqrt(weights)
        new = np.linalg.lstsq(design * root[:, None], target * root, rcond=None)[0]
        away = np.abs(design @ new - target)
        scale = _HUBER * 1.4826 * float(np.median(away)) + 1e-12
        weights = np.minimum(1.0, scale / np.maximum(away, 1e-12))
        if np.allclose(new, found, rtol=1e-8, atol=0.0):
            break
        found = new
    return new, weights
