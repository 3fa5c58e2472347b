"""Constants far from what physics and measured kernels allow: an alarm that the calibration lacks a term.

A fit that has no term for what its cells show puts it into the constant that looks most like it, where it is multiplied
by shapes that have nothing to do with it: a floor that grows with the batch becomes `l_half`, thousands of tokens of
every sequence's cache, and a model with more bytes per token is then predicted several times too slow.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import beta, gamma, norm

from rooffloor.models.calibration.draws import TERM_OF, Calibration
from rooffloor.models.inference.priors import beta_shapes
from rooffloor.validate.estimates.cell_draws import IMPUTED
from rooffloor.validate.estimates.estimate import weighted_quantiles

type Array = NDArray[np.float64]

ALARM = 0.01
"""Probability of a value at least so far out, before any cell is seen, below which a constant is an alarm."""
NAMES = {
    "eta_bw": "the weights' share of the memory bandwidth (eta_bw)",
    "eta_fa": "the KV cache's share of the memory bandwidth (eta_fa)",
    "eta_tc": "the share of peak compute (eta_tc)",
    "l_half": "attention's time per sequence in tokens (l_half)",
    "rho_q": "the rate of query heads (rho_q)",
    "sequence_ms": "host time per sequence in ms",
    "sequence_layer_ms": "host time per sequence and layer in ms",
}
MISSING: Mapping[tuple[str, bool], str] = {
    ("eta_bw", False): "a floor that grows with layers or kernel launches, or another format or clock than assumed",
    ("eta_bw", True): "an overlap of floor and GPU, or weights of fewer bytes than assumed",
    ("eta_fa", False): "attention bound by its query heads, or a floor that grows with batch and context",
    ("eta_fa", True): "a window that shortens what attention reads, or shorter contexts than stated",
    ("eta_tc", False): "a floor that grows with the batch",
    ("eta_tc", True): "matrix products in another number format than assumed",
    ("l_half", False): "an overlap of attention's constant time with other work",
    ("l_half", True): "a floor that grows with the batch (host time per sequence)",
    ("rho_q", False): "a floor that grows with batch and context",
    ("rho_q", True): "attention that its query heads do not bind",
    ("sequence_ms", True): "a kernel whose time grows with the batch, or steps that hold prompts",
    ("sequence_layer_ms", True): "a kernel whose time grows with the batch, or steps that hold prompts",
}
"""Which term is probably missing where a constant is too small (False) or too large (True)."""


@dataclass(frozen=True)
class Conflict:
    """One constant that lies far out.

    Attributes
    ----------
    name : str
    gpu : str
        Empty where it is alike on all.
    value : float
        Posterior median.
    tail : float
        Prior probability of a value at least so far from the middle, either side.
    missing : str
        The term that is probably missing.
    """

    name: str
    gpu: str
    value: float
    tail: float
    missing: str

    @property
    def sentence(self) -> str:
        """What is wrong and what is probably missing."""
        on = f" on {self.gpu}" if self.gpu else ""
        chance = f"{self.tail:.1g}" if self.tail >= 1e-4 else "below 0.0001"
        return (
            f"{NAMES.get(self.name, self.name)}{on} is {self.value:.3g}, where its prior has a chance of {chance}; "
            f"probably missing: {self.missing}."
        )

    @property
    def data(self) -> dict[str, Any]:
        """Ready for JSON."""
        return asdict(self) | {"sentence": self.sentence}


def conflicts(calibration: Calibration) -> list[Conflict]:
    """Constants and floor terms whose posterior median its prior makes improbable, the least probable first.

    None of a calibration whose cells are imputed: its constants are those that make the printed figures.
    """
    if calibration.label == IMPUTED:
        return []
    found = dict[tuple[str, str], Conflict]()
    for name, values in {**calibration.constants, **calibration.terms}.items():
        moments = getattr(calibration.priors, name, None)
        if moments is None:
            continue
        alike = bool((values == values[:, :1]).all())
        for g, gpu in enumerate(calibration.gpus[:1] if alike else calibration.gpus):
            (value,) = weighted_quantiles(values[:, g], calibration.weight, [0.5])
            below = _below(name, value, moments)
            tail, missing = 2.0 * min(below, 1.0 - below), MISSING.get((name, below > 0.5))
            if tail < ALARM and missing is not None:
                at = "" if alike else gpu
                found[name, at] = Conflict(name, at, value, tail, _beyond_terms(missing, name, calibration))
    return sorted(found.values(), key=lambda one: one.tail)


def _below(name: str, value: float, moments: tuple[float, float]) -> float:
    """Prior probability of a smaller value."""
    if name.startswith("eta_"):
        return float(beta(*beta_shapes(moments)).cdf(value))
    if name in TERM_OF:
        shape, mean = moments
        return float(gamma(shape, scale=mean / shape).cdf(value))
    median, sd = moments
    return float(norm.cdf(np.log(max(value, 1e-300) / median) / sd))


def _beyond_terms(missing: str, name: str, calibration: Calibration) -> str:
    """The same, of calibrations that have a floor per sequence already."""
    has = [TERM_OF[term] for term in calibration.terms]
    if name in ("l_half", "eta_tc") and "sequence" in has:
        return "time that grows with the batch beyond the floor per sequence that it has (per layer, or a kernel's)"
    return missing
