"""The likelihood of a measured step, written once: y ~ Normal or Student-t(step, sqrt(s² + (σ·step)² + known²)).

Every fit, exact or sampled, takes the scatter of steps from here. Plain arithmetic: NumPy and PyTensor alike.
"""

from typing import Any

import numpy as np


def variance_ms2(step_ms: Any, relative: Any, absolute_ms: Any = 0.0, known_sd_ms: Any = 0.0) -> Any:
    """Variance of a measured step around `step_ms`, ms²; arrays broadcast.

    Parameters
    ----------
    step_ms : array, ms
        The mean step.
    relative : array
        σ, the part that grows with the step.
    absolute_ms : array, ms
        s, which keeps the noise off zero where a negative floor pushes the step through 0.
    known_sd_ms : array, ms
        Known measurement uncertainty of the cell.

    Examples
    --------
    >>> float(variance_ms2(10.0, 0.03, absolute_ms=0.4))
    0.25
    """
    return absolute_ms**2 + (relative * step_ms) ** 2 + known_sd_ms**2


def log_density(measured_ms: Any, step_ms: Any, variance: Any, xp: Any = np) -> Any:
    """Log density of measured steps, Normal(step, variance), per cell.

    Examples
    --------
    >>> round(float(log_density(10.0, 10.0, 1.0)), 4)
    -0.9189
    """
    return -0.5 * (measured_ms - step_ms) ** 2 / variance - 0.5 * xp.log(2.0 * np.pi * variance)
