"""The gate: what a fit must meet before it counts as a result, and what was found of it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

type Array = NDArray[np.float64]


class GateFailure(RuntimeError):
    """A fit failed its gate after the whole escalation: it is not a result."""


@dataclass(frozen=True)
class Diagnostics:
    """Convergence of one fit over its free random variables.

    Attributes
    ----------
    rhat : float
        Largest rank-normalised split R-hat; `rhat_of` names its parameter.
    ess_bulk, ess_tail : float
        Smallest effective sample sizes; `ess_of` names the parameter of the smaller of the two.
    divergences : int
    ebfmi : float
        Smallest E-BFMI of a chain.
    """

    rhat: float
    rhat_of: str
    ess_bulk: float
    ess_tail: float
    ess_of: str
    divergences: int
    ebfmi: float

    def __str__(self) -> str:
        return (
            f"R-hat {self.rhat:.4f} ({self.rhat_of}), ESS bulk {self.ess_bulk:.0f} tail {self.ess_tail:.0f} "
            f"({self.ess_of}), {self.divergences} divergences, E-BFMI {self.ebfmi:.2f}"
        )


@dataclass(frozen=True)
class Gate:
    """What a fit must meet before it counts as a result."""

    rhat: float = 1.01
    ess: float = 400.0
    divergences: int = 0
    ebfmi: float = 0.3

    def failures(self, found: Diagnostics) -> tuple[str, ...]:
        """What `found` fails, in words; empty where it passes. NaN fails."""
        checks = (
            (found.rhat <= self.rhat, f"R-hat {found.rhat:.3f} of {found.rhat_of} > {self.rhat}"),
            (
                min(found.ess_bulk, found.ess_tail) >= self.ess,
                f"ESS {min(found.ess_bulk, found.ess_tail):.0f} of {found.ess_of} < {self.ess:.0f}",
            ),
            (found.divergences <= self.divergences, f"{found.divergences} divergences"),
            (found.ebfmi >= self.ebfmi, f"E-BFMI {found.ebfmi:.2f} < {self.ebfmi}"),
        )
        return tuple(words for passed, words in checks if not passed)


DEFAULT_GATE = Gate()


@dataclass(frozen=True)
class Attempt:
    """One attempt of a gated fit: its settings, what was found, what failed."""

    draws: int
    tune: int
    chains: int
    seed: int
    target_accept: float
    diagnostics: Diagnostics
    failures: tuple[str, ...]


def diagnose(draws: Mapping[str, Array], stats: Mapping[str, Any]) -> Diagnostics:
    """Worst R-hat, ESS and E-BFMI, and the number of divergences.

    Parameters
    ----------
    draws : mapping of str to array (chain, draw, ...)
    stats : Dataset
        With ``diverging`` and ``energy``, (chain, draw).
    """
    from arviz_stats.base import array_stats

    names, columns = [], []
    for name, values in draws.items():
        flat = np.asarray(values).reshape(*values.shape[:2], -1)
        columns.append(flat)
        index = np.ndindex(values.shape[2:])
        names += [f"{name}[{', '.join(map(str, i))}]" if i else name for i in index]
    stacked = np.concatenate(columns, axis=2)
    axes = {"chain_axis": 0, "draw_axis": 1}
    rhat = array_stats.rhat(stacked, **axes)
    bulk = array_stats.ess(stacked, method="bulk", **axes)
    tail = array_stats.ess(stacked, method="tail", prob=(0.05, 0.95), **axes)
    ebfmi = array_stats.bfmi(stats["energy"].values, **axes)
    worst, least = int(np.argmax(rhat)), int(np.argmin(np.minimum(bulk, tail)))  # argmax finds NaN first
    return Diagnostics(
        float(rhat[worst]),
        names[worst],
        float(bulk.min()),
        float(tail.min()),
        names[least],
        int(stats["diverging"].values.sum()),
        float(ebfmi.min()),
    )
