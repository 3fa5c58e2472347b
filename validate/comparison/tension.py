"""Transfer tension: do the other models pull the constants away from where the anchor's cells alone put them?

Under the cut the constants come from the anchor's cells; jointly, from all cells. Were the model true, the joint
posterior would be the cut posterior with more information, so that (m_cut - m_joint) has the variance
V_cut - V_joint (Hausman's argument [1]_). The statistic

    (m_cut - m_joint)' (V_cut - V_joint)+ (m_cut - m_joint)

is taken over the directions in which the other cells say something. In large samples it is chi-squared with as many
degrees of freedom; its distribution at this size is simulated by refitting steps drawn from the joint posterior.

.. [1] J. A. Hausman (1978), Specification tests in econometrics, Econometrica 46.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

type Array = NDArray[np.float64]

CONSTANTS = ("eta_bw", "eta_fa", "eta_tc", "l_half", "rho_q", "latency_ms", "q")
"""What is drawn upstream and shared by all models."""
LEAST_GAIN = 0.1
"""Directions in which the other cells take less than this share off the variance say nothing and are left out."""


@dataclass(frozen=True)
class Tension:
    """Cut against joint constants.

    Attributes
    ----------
    statistic : float
    freedom : int
        Directions in which the other cells say something; 0: there is nothing to test.
    p_chi2 : float
        Probability of at least this tension were the model true, in large samples; NaN without directions.
    z : mapping of constant to float
        (m_cut - m_joint) / sqrt(V_cut - V_joint) of each, on the unbounded scale; NaN where the joint posterior is
        not narrower by `LEAST_GAIN`.
    """

    statistic: float
    freedom: int
    p_chi2: float
    z: Mapping[str, float]


def unbounded(name: str, draws: ArrayLike) -> Array:
    """Draws of a constant on a scale without bounds: logit of efficiencies, log of the rest, q as it is."""
    values = np.asarray(draws, dtype=float).reshape(-1)
    if name == "q":
        return values
    if name.startswith("eta_"):
        inside = np.clip(values, 1e-9, 1.0 - 1e-9)
        return np.log(inside) - np.log1p(-inside)
    return np.log(values)


def shared_constants(posterior: Any) -> dict[str, Array]:
    """Draws (draw,) of the constants that a posterior holds."""
    return {n: np.asarray(posterior[n], dtype=float).reshape(-1) for n in CONSTANTS if n in posterior}


def tension(cut: Mapping[str, ArrayLike], joint: Mapping[str, ArrayLike]) -> Tension:
    """Transfer tension between draws (draw,) of the same constants under the cut and jointly.

    Raises
    ------
    ValueError
        The two do not hold the same constants, or none.
    """
    if set(cut) != set(joint) or not cut:
        raise ValueError(f"tension compares the same constants: {sorted(cut)} against {sorted(joint)}")
    names = list(cut)
    apart, together = (np.stack([unbounded(n, draws[n]) for n in names]) for draws in (cut, joint))
    gap = apart.mean(1) - together.mean(1)
    own = np.atleast_2d(np.cov(apart))
    gain = own - np.atleast_2d(np.cov(together))
    # Whitened by the cut's own covariance, `gain` has the shares of variance that the other cells take off.
    size, axes = np.linalg.eigh(own)
    white = axes / np.sqrt(np.maximum(size, 1e-12 * size.max()))
    shares, turn = np.linalg.eigh(white.T @ gain @ white)
    told = shares > LEAST_GAIN
    along = (turn.T @ white.T @ gap)[told]
    statistic, freedom = float((along**2 / shares[told]).sum()), int(told.sum())
    left = np.diag(gain)
    z = np.where(left > LEAST_GAIN * np.diag(own), gap / np.sqrt(np.maximum(left, 1e-300)), np.nan)
    p = float(stats.chi2.sf(statistic, freedom)) if freedom else float("nan")
    return Tension(statistic, freedom, p, dict(zip(names, z.tolist(), strict=True)))


def simulated_p(statistic: float, reference: Sequence[float]) -> float:
    """Share of a reference, the observed one included, that is at least as large."""
    return (1.0 + float((np.asarray(reference) >= statistic).sum())) / (1.0 + len(reference))
