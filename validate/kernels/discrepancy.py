"""How far the bandwidth of real decode steps lies from that of kernel benchmarks on the same GPU."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import halfnorm

from rooffloor.validate.kernels.benchmarks import Floats

SCALE = 0.1
"""Scale of the half-normal prior of the discrepancy's sd (logarithm of time)."""
_NODES = 200
_MODEL_SD, _NOISE = 0.04, 0.03
"""What a model's steps have of their own, and what a cell has, as shares of the step."""


@dataclass(frozen=True)
class Difference:
    """Logarithm of the time per byte of real steps, or of another stack's kernels, over that of a GPU's kernels.

    Attributes
    ----------
    source, gpu : str
    n : int
        Cells, or shapes of kernels.
    value, sd : float
    """

    source: str
    gpu: str
    n: int
    value: float
    sd: float


@dataclass(frozen=True)
class Discrepancy:
    """The sd of the discrepancy (logarithm of time) between kernels alone and real steps.

    Attributes
    ----------
    sd : float
        Root of the posterior mean of its square.
    spread : float
        Posterior sd of the sd.
    evidence : float
        Logarithm of the marginal likelihood of the differences.
    """

    sd: float
    spread: float
    evidence: float


def discrepancy(differences: Sequence[Difference]) -> Discrepancy:
    """What differences of one kind say: each is Normal(0, s² + sd²), s half-normal with `SCALE`."""
    s = SCALE * halfnorm.ppf((np.arange(_NODES) + 0.5) / _NODES)
    logs = np.zeros_like(s)
    for one in differences:
        spread = np.hypot(s, one.sd)
        logs -= 0.5 * (one.value / spread) ** 2 + np.log(spread) + 0.5 * np.log(2.0 * np.pi)
    weights = np.exp(logs - logs.max())
    evidence = float(logs.max() + np.log(weights.mean()))
    weights /= weights.sum()
    mean = float(weights @ s)
    return Discrepancy(float(np.sqrt(weights @ s**2)), float(np.sqrt(weights @ (s - mean) ** 2)), evidence)


def time_per_byte(
    model: Sequence[str],
    columns: Floats,
    step_ms: Floats,
    prior: Sequence[tuple[float, float]],
    stream: int,
) -> tuple[float, float]:
    """Posterior mean and sd of the coefficient of one column of real steps, by generalised least squares.

    Parameters
    ----------
    model : sequence of str [n]
        Cells of one model share an error of `_MODEL_SD` of the step.
    columns : float array [n, k]
        Terms of the floor, peak times of weights and of the cache, ms.
    step_ms : float array [n]
    prior : sequence of (mean, sd) [k]
        Normal priors of the coefficients.
    stream : int
        The column of the weights: its coefficient is 1/e.
    """
    mean, sd = np.array(prior).T
    names = np.asarray(model)
    covariance = np.diag((_NOISE * step_ms) ** 2)
    covariance += (names[:, None] == names) * np.outer(step_ms, step_ms) * _MODEL_SD**2
    weight = np.linalg.inv(covariance)
    spread = np.linalg.inv(columns.T @ weight @ columns + np.diag(sd**-2.0))
    found = spread @ (columns.T @ weight @ step_ms + mean / sd**2)
    return float(found[stream]), float(np.sqrt(spread[stream, stream]))
