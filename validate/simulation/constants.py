"""Constants of simulated studies from their anchor's cells alone, without a sampler: the first stage of a cut.

The model is that of `inference.step_model` for the anchor: constants with their priors, one floor per GPU, noise. Given
the constants, the noise and the spread of the floors, floors are jointly normal and integrate out; the six scalars
that are left are drawn by adaptive importance sampling (`inference.importance`). In the closed form the noise of a
cell is that of its step under the GPU's mean offset.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logit, ndtr, stdtrit

from rooffloor.models.inference.importance import moments, proposed, resampled, tempered
from rooffloor.models.inference.noise import variance_ms2
from rooffloor.models.inference.priors import DEFAULT_PRIORS, Priors, beta_shapes
from rooffloor.models.roof.kernels import Work
from rooffloor.models.roof.roofline import Efficiency, work_ms

type Array = NDArray[np.float64]

NAMES = ("eta_bw", "eta_fa", "l_half")
"""Constants that cells of at most 16 sequences can tell of; the tensor-core ceiling binds no kernel there."""
ROUNDS = 5
"""Rounds that fit the proposal."""
LEAST = 60.0
"""Studies with a smaller effective number of points are done again with eight times as many."""


@dataclass(frozen=True, eq=False)
class Constants:
    """Equally weighted draws of the constants of each study.

    Attributes
    ----------
    values : float array, shape (study, draw, constant)
        In the order of `NAMES`.
    ess : float array, shape (study,)
        Effective number of weighted points behind the draws.
    """

    values: Array
    ess: Array

    def efficiency(self, eta_tc: float) -> Efficiency:
        """The constants as they broadcast against cells: (study, draw, 1)."""
        found: dict[str, Any] = {name: self.values[..., k, None] for k, name in enumerate(NAMES)}
        return Efficiency(eta_tc=eta_tc, **found)


def anchor_constants(
    work: Work,
    gpu_code: NDArray[np.int64],
    step_ms: Array,
    rng: np.random.Generator,
    *,
    draws: int,
    eta_tc: float = 0.8,
    points: int = 512,
    priors: Priors = DEFAULT_PRIORS,
) -> Constants:
    """Posterior of the constants given the anchor's cells, for many studies with the same cells.

    Parameters
    ----------
    work : Work
        Of the anchor's cells [cell].
    gpu_code : int array [cell]
        GPU of each, from 0.
    step_ms : array [study, cell]
    eta_tc : float
        Tensor-core ceiling, taken as known.
    points : int
        Weighted points of each round, a power of two.
    """
    found = _rounds(work, gpu_code, step_ms, rng, draws, eta_tc, points, priors)
    for k in np.flatnonzero(found.ess < LEAST):
        again = _rounds(work, gpu_code, step_ms[[k]], rng, draws, eta_tc, 8 * points, priors)
        found.values[k], found.ess[k] = again.values[0], again.ess[0]
    return found


def _rounds(
    work: Work,
    gpu_code: NDArray[np.int64],
    y: Array,
    rng: np.random.Generator,
    draws: int,
    eta_tc: float,
    points: int,
    priors: Priors,
) -> Constants:
    mean, covariance = _start(len(y), priors)
    for last in [*[False] * ROUNDS, True]:
        theta, log_proposal = proposed(mean, covariance, rng, points)
        theta = theta.clip(-30.0, 30.0)
        log = _log_density(theta, work, gpu_code, y, eta_tc, priors) - log_proposal
        log -= log.max(-1, keepdims=True)
        if not last:
            mean, covariance = moments(theta, tempered(log, rounds=15), more=1e-6)
    weight = np.exp(log)
    weight /= weight.sum(-1, keepdims=True)
    rows = np.array([rng.permutation(row) for row in resampled(weight, draws, rng)])
    chosen = theta[np.arange(len(y))[:, None], rows, :3]
    values = np.stack([expit(chosen[..., 0]), expit(chosen[..., 1]), np.exp(chosen[..., 2])], -1)
    return Constants(values, 1.0 / (weight**2).sum(-1))


def _start(studies: int, priors: Priors) -> tuple[Array, Array]:
    """The prior, about: mean and covariance of the first proposal, (study, dimension)."""
    (bw, bw_sd), (fa, fa_sd) = priors.eta_bw, priors.eta_fa
    noise, noise_sd = priors.noise_level()
    mean = [logit(bw), logit(fa), np.log(priors.l_half[0]), noise, np.log(priors.noise_ms[0]), 0.0]
    sd = [bw_sd / (bw * (1 - bw)), fa_sd / (fa * (1 - fa)), priors.l_half[1], noise_sd, priors.noise_ms[1], 1.0]
    return np.tile(mean, (studies, 1)), np.tile(np.diag(np.square(sd)), (studies, 1, 1))


def _log_density(
    theta: Array, work: Work, gpu_code: NDArray[np.int64], y: Array, eta_tc: float, priors: Priors
) -> Array:
    """Log p(theta, y) with floors integrated out, up to a constant, (study, point)."""
    eta_bw, eta_fa = (expit(theta[..., k]).clip(1e-6, 1.0 - 1e-9) for k in (0, 1))
    l_half, noise, absolute = (np.exp(theta[..., k].clip(-12.0, 12.0)) for k in (2, 3, 4))
    T = work_ms(
        work, Efficiency(eta_tc=eta_tc, eta_bw=eta_bw[..., None], eta_fa=eta_fa[..., None], l_half=l_half[..., None])
    )
    member = (gpu_code[:, None] == np.arange(gpu_code.max() + 1)).astype(float)
    left = y[:, None] - T
    rough = 1.0 / y[:, None] ** 2
    offset = (rough * left) @ member / (rough @ member)
    variance = variance_ms2(T + offset[..., gpu_code], noise[..., None], absolute[..., None])
    information = (1.0 / variance) @ member
    value = (left / variance) @ member / information
    residual = left - value[..., gpu_code]
    log = -0.5 * (residual**2 / variance + np.log(variance)).sum(-1) - 0.5 * np.log(information).sum(-1)
    overall, sd = priors.floor_overall_ms
    spread = priors.floor_sd_gpu_ms * stdtrit(3.0, 0.5 + 0.5 * ndtr(theta[..., 5].clip(-7.5, 7.5)))
    own = 1.0 / information + spread[..., None] ** 2  # floors: independent given the level common to all GPUs
    precision = 1.0 / sd**2 + (1.0 / own).sum(-1)
    centre = ((value - overall) / own).sum(-1)
    log += 0.5 * centre**2 / precision - 0.5 * np.log(precision)
    log -= 0.5 * (((value - overall) ** 2 / own) + np.log(own)).sum(-1)
    return np.asarray(log + _log_prior(theta, eta_bw, eta_fa, priors))


def _log_prior(theta: Array, eta_bw: Array, eta_fa: Array, priors: Priors) -> Array:
    """Log prior density of theta up to a constant: the Beta priors on the logit scale, normals for the others."""

    def beta(eta: Array, prior: tuple[float, float]) -> Array:
        a, b = beta_shapes(prior)
        return np.asarray(a * np.log(eta) + b * np.log1p(-eta))

    def normal(x: Array, mean: float, sd: float) -> Array:
        return np.asarray(-0.5 * ((x - mean) / sd) ** 2)

    noise, noise_sd = priors.noise_level()
    log = beta(eta_bw, priors.eta_bw) + beta(eta_fa, priors.eta_fa)
    log += normal(theta[..., 2], float(np.log(priors.l_half[0])), priors.l_half[1])
    log += normal(theta[..., 3], noise, float(np.hypot(noise_sd, priors.noise_spread)))
    log += normal(theta[..., 4], float(np.log(priors.noise_ms[0])), priors.noise_ms[1])
    return log + normal(theta[..., 5], 0.0, 1.0)
