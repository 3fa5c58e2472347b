"""What the compiled density needs to know of one model of steps: plain arrays, and the order of the parameters.

The sampler moves one vector x: logits of what lies in an interval, logarithms of what is positive, the rest as it is
(as PyMC transforms them). `Parameters` says where each parameter lies in it.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rooffloor.models.inference.priors import Priors, beta_shapes

type Array = NDArray[np.float64]
type Codes = NDArray[np.int64]

LOGIT, LOG, IDENTITY = range(3)
"""How a parameter lies on the real line."""

NO_OVERLAP, Q_GIVEN, Q_FREE = range(3)
"""Floors are signed and added; q is data; q is a parameter where `overlap_free` is 1."""
NO_GROWTH, GROWS_BY_MS, GROWS_BY_SHARE = range(3)
"""Floors do not grow with launches; by milliseconds per launch; by a share of themselves."""
FIXED, SHARED, PER_GPU = range(3)
"""Constants are not parameters; one set for all SKUs; one for each."""


class Tables(NamedTuple):
    """Data, priors and layout of one model; shapes in brackets, times in ms."""

    measured: Array
    """[cell]"""
    known_sd: Array
    """[cell]"""
    branch: Array
    """[cell]: T_gpu with constants FIXED; else [0]."""
    times: Array
    """[6, cell, kernel]: the fields of `PeakTimes`, kernels that some cell has."""
    columns: Array
    """[3, cell]: stream_ms, kv_ms and kv_token_ms of all kernels."""
    overlap: Array
    overlap_free: Array
    relative_launches: Array
    """[cell]"""
    units: Array
    """[term, cell]: what each term of the floor is counted in."""
    host: Array
    """[cell]: host time that is given, ms."""
    pair: Codes
    model: Codes
    constants_of: Codes
    launch_gpu: Codes
    term_gpu: Codes
    """[cell]: which floor, noise, set of constants, growth and terms."""
    sets: int
    """Sets of constants; 0: FIXED."""
    ridge: bool
    """Whether the logit of eta_bw is measured from where the floors' hierarchy expects it."""
    query: bool
    latency: bool
    models: int
    noise_basis: Array
    """[model, model - 1]: contrasts of log noise."""
    student: bool
    has_floor: bool
    positive: bool
    grouped: bool
    """Whether floors have groups beside SKUs."""
    q_mode: int
    anchor_q: float
    growth: int
    launch_gpus: int
    term_gpus: int
    has_host: bool
    """Whether floors have terms, or host time is given."""
    launches: float
    """Launches at which floors are stated."""
    size: Codes
    """[2]: SKUs and groups of the grid of floors."""
    basis: Array
    """[floor, contrast]: of the measured floors."""
    block: Codes
    """[contrast]: which of the four variances it has a priori."""
    start: Array
    """[floor]: prior mean, or the anchor's floor; of the logarithm where floors are positive."""
    known: Array
    """[known floor]: logarithms where positive."""
    fill: Array
    """[unmeasured floor, sampled and known floor]: additive least squares."""
    fill_sd: Array
    """[unmeasured floor]: in units of the sd of pair effects."""
    order: Codes
    """[grid]: sampled, known and unmeasured floors in the order of the grid."""
    grid_basis: Array
    grid_block: Codes
    """[grid, contrast], [contrast]."""
    eta: Array
    """[3, 2]: shapes of the Beta priors of eta_bw, eta_fa, eta_tc."""
    logarithms: Array
    """[3, 2]: mean and sd of log l_half, rho_q, latency_ms."""
    inverse: Array
    """[2]: mean and sd of 1 / eta_bw, about."""
    noise: Array
    """[5]: mean and sd of log relative noise, scale of its spread, mean and sd of log noise_ms."""
    nu: Array
    """[2]: shape and rate of student_nu."""
    level: Array
    """[2]: mean and sd of the overall floor."""
    scales: Array
    """[3]: prior scales of SKU, group and pair effects."""
    launch: Array
    """[2]: mean and sd of log launch_ms."""
    term: Array
    """[term, 2]: shape and rate of the Gamma prior of each term."""


def inverse_moments(moments: tuple[float, float]) -> tuple[float, float]:
    """Mean and sd of 1 / eta, to first order, for an eta of this mean and sd."""
    mean, sd = moments
    return 1.0 / mean, sd / mean**2


def log_moments(prior: tuple[float, float]) -> tuple[float, float]:
    """Mean and sd of the logarithm, of (median, sd of the logarithm)."""
    return math.log(prior[0]), prior[1]


def prior_tables(priors: Priors, positive: bool, terms: tuple[str, ...] = ()) -> dict[str, Array]:
    """The fields of `Tables` that hold numbers of the priors; `terms` are parameters of the floor's terms."""
    return {
        "eta": np.array([beta_shapes(getattr(priors, name)) for name in ("eta_bw", "eta_fa", "eta_tc")]),
        "logarithms": np.array([log_moments(p) for p in (priors.l_half, priors.rho_q, priors.launch_ms)]),
        "inverse": np.array(inverse_moments(priors.eta_bw)),
        "noise": np.array([*priors.noise_level(), priors.noise_spread, *log_moments(priors.noise_ms)]),
        "nu": np.array(priors.student_nu, dtype=float),
        "level": np.array(priors.floor_level(positive)),
        "scales": np.array([priors.floor_scale(k, positive) for k in ("gpu", "group", "pair")]),
        "launch": np.array(log_moments(priors.launch_ms)),
        "term": np.array([(shape, shape / mean) for shape, mean in (getattr(priors, n) for n in terms)]).reshape(-1, 2),
    }


@dataclass(frozen=True)
class Parameter:
    """One parameter of x: its dims, where it lies, how it is transformed, where chains start (on the real line)."""

    name: str
    dims: tuple[str, ...]
    at: slice
    transform: int
    start: float
    upper: float = 1.0
    """Upper end of the interval of a LOGIT."""

    @property
    def value_name(self) -> str:
        """PyMC's name of it on the real line."""
        suffix = {LOGIT: "_logodds__" if self.name.startswith("eta") else "_interval__", LOG: "_log__", IDENTITY: ""}
        return self.name + suffix[self.transform]

    def value(self, x: Array) -> Array:
        """The parameter itself, from its place on the real line."""
        if self.transform == LOG:
            return np.exp(x)
        return self.upper / (1.0 + np.exp(-x)) if self.transform == LOGIT else x
