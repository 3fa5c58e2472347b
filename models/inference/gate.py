"""The gate: what a fit must meet before it counts as a result, what was found of it, and how it is tried again.

Two classes of parameters. What reports read (constants, floors, overlap, noise) must meet the gate. Nuisances, which
only stand behind those (what the sampler moves, scales and levels of hierarchies), get more draws where they fall short
of it, and a warning that names them; only where they are far from convergence does the fit fail for them.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

type Array = NDArray[np.float64]

NUISANCES = (
    *("z_*", "floor_sd_*", "noise_level", "noise_spread", "noise_own", "noise_ms"),
    *("launch_share", "launches_at_floor", "student_nu"),
)
"""Patterns of the names of nuisances; every other variable is reported."""
DERIVED = ("eta_bw", "floor_ms", "noise_relative")
"""Reported variables that the sampler does not move itself; floors of pairs that were never measured are nuisances."""


class GateFailure(RuntimeError):
    """A fit failed its gate after the whole escalation: it is not a result.

    Attributes
    ----------
    attempts : tuple of Attempt
        All that were made, where they are known.
    """

    def __init__(self, message: str, attempts: "tuple[Attempt, ...]" = ()):
        super().__init__(message)
        self.attempts = attempts


@dataclass(frozen=True)
class Worst:
    """Convergence of some parameters: largest R-hat and smallest effective sample sizes, with their names."""

    rhat: float
    rhat_of: str
    ess_bulk: float
    ess_tail: float
    ess_of: str


@dataclass(frozen=True)
class Diagnostics:
    """Convergence of one fit.

    Attributes
    ----------
    rhat : float
        Largest rank-normalised split R-hat of a reported parameter; `rhat_of` names it.
    ess_bulk, ess_tail : float
        Smallest effective sample sizes of reported parameters; `ess_of` names that of the smaller of the two.
    divergences : int
    ebfmi : float
        Smallest E-BFMI of a chain.
    nuisance : Worst or None
        The same of the nuisances, where there are any.
    """

    rhat: float
    rhat_of: str
    ess_bulk: float
    ess_tail: float
    ess_of: str
    divergences: int
    ebfmi: float
    nuisance: Worst | None = None

    def __str__(self) -> str:
        return (
            f"R-hat {self.rhat:.4f} ({self.rhat_of}), ESS bulk {self.ess_bulk:.0f} tail {self.ess_tail:.0f} "
            f"({self.ess_of}), {self.divergences} divergences, E-BFMI {self.ebfmi:.2f}"
        )


@dataclass(frozen=True)
class Gate:
    """What a fit must meet before it counts as a result.

    Attributes
    ----------
    rhat, ess : float
        Most and least for what is reported; nuisances beyond them get more draws and a warning.
    nuisance_rhat, nuisance_ess : float
        Beyond these a nuisance ends the fit too: chains that far apart have not sampled one posterior. Where `rhat` or
        `ess` are laxer, those count.
    divergences, ebfmi
        Of the fit as a whole: they are no parameter's.
    """

    rhat: float = 1.01
    ess: float = 400.0
    divergences: int = 0
    ebfmi: float = 0.3
    nuisance_rhat: float = 1.05
    nuisance_ess: float = 100.0

    def failures(self, found: Diagnostics) -> tuple[str, ...]:
        """What `found` fails, in words; empty where it is a result. NaN fails."""
        failed = _short(found, self.rhat, self.ess)
        if found.nuisance is not None:
            rhat, ess = max(self.rhat, self.nuisance_rhat), min(self.ess, self.nuisance_ess)
            failed += [f"{words} (a nuisance)" for words in _short(found.nuisance, rhat, ess)]
        if not found.divergences <= self.divergences:
            failed.append(f"{found.divergences} divergences")
        if not found.ebfmi >= self.ebfmi:
            failed.append(f"E-BFMI {found.ebfmi:.2f} < {self.ebfmi}")
        return tuple(failed)

    def warnings(self, found: Diagnostics) -> tuple[str, ...]:
        """What nuisances miss of the gate, in words; none where one of them fails the fit."""
        if found.nuisance is None or self.failures(found):
            return ()
        return tuple(_short(found.nuisance, self.rhat, self.ess))


def _short(found: Diagnostics | Worst, rhat: float, ess: float) -> list[str]:
    """What of R-hat and ESS is not within these bounds, in words."""
    least, digits = min(found.ess_bulk, found.ess_tail), 3 if found.rhat < 10 else 1
    failed = [] if found.rhat <= rhat else [f"R-hat {found.rhat:.{digits}f} of {found.rhat_of} > {rhat}"]
    return failed if least >= ess else [*failed, f"ESS {least:.0f} of {found.ess_of} < {ess:.0f}"]


DEFAULT_GATE = Gate()


@dataclass(frozen=True)
class Attempt:
    """One attempt of a gated fit: its settings, what was found, what failed, what only warns."""

    draws: int
    tune: int
    chains: int
    seed: int
    target_accept: float
    diagnostics: Diagnostics
    failures: tuple[str, ...]
    warnings: tuple[str, ...] = ()


class Tried(Protocol):
    """A fit with its attempts, the one whose draws it has last."""

    @property
    def attempts(self) -> tuple[Attempt, ...]:
        """In order; the draws are those of the last."""
        ...

    @property
    def passed(self) -> bool:
        """Whether the last attempt met the gate."""
        ...


def escalated[F: Tried](attempt: Callable[[int], F], steps: int) -> tuple[F, tuple[Attempt, ...]]:
    """Try until the gate is met, and once more for nuisances that fall short of it.

    Parameters
    ----------
    attempt : callable
        The fit of one step of the escalation, by its number.
    steps : int
        So many there are.

    Returns
    -------
    fit
        The last one that is a result (it has the most draws), else the last.
    attempts : tuple of Attempt
        All of them, that of `fit` last: it is the one that counts, whatever was tried after it.

    Raises
    ------
    ValueError
        There are no steps.
    """
    kept: F | None = None
    attempts: list[Attempt] = []
    for step in range(steps):
        once_more = kept is not None
        fit = attempt(step)
        attempts.append(fit.attempts[-1])
        if fit.passed:
            kept = fit
        if once_more or (fit.passed and not fit.attempts[-1].warnings):
            break
    if not attempts:
        raise ValueError("an escalation needs at least one step")
    if kept is not None:
        fit = kept
    counts = fit.attempts[-1]
    return fit, (*(one for one in attempts if one is not counts), counts)


def examined(free: Collection[str], posterior: Mapping[str, Any]) -> dict[str, Array]:
    """What a fit is judged by: its free variables and what reports read of the others.

    Parameters
    ----------
    free : names of the variables that the sampler moves
    posterior : Dataset, or mapping of arrays (chain, draw, ...)

    Returns
    -------
    dict of parameter to array (chain, draw)
        One for each element of a variable, named by its labels, as "floor_ms[H100, Llama-3.1-8B]", or by its index.
    """
    found: dict[str, Array] = {}
    skipped = _never_measured(posterior)
    for name in (*free, *(name for name in DERIVED if name in posterior and name not in free)):
        values = np.asarray(posterior[name])
        dims = getattr(posterior[name], "dims", ())[2:]
        coords = getattr(posterior[name], "coords", {})
        labels = [
            coords[d].values if d in coords else np.arange(n) for d, n in zip(dims, values.shape[2:], strict=True)
        ]
        for at in np.ndindex(values.shape[2:]):
            of = [str(label[i]) for label, i in zip(labels, at, strict=True)] or [str(i) for i in at]
            if name != "floor_ms" or " | ".join(of) not in skipped:
                found[f"{name}[{', '.join(of)}]" if at else name] = values[(..., *at)]
    return found


def _never_measured(posterior: Mapping[str, Any]) -> frozenset[str]:
    """Labels of floors that only the hierarchy speaks of; `z_unmeasured` is looked at in their place."""
    coords = getattr(posterior, "coords", {})
    return frozenset(map(str, coords["unmeasured"].values)) if "unmeasured" in coords else frozenset()


def diagnose(draws: Mapping[str, Array], stats: Mapping[str, Any]) -> Diagnostics:
    """Worst R-hat, ESS and E-BFMI, and the number of divergences.

    What never varies is no parameter (a floor that is given), unless nothing does.

    Parameters
    ----------
    draws : mapping of str to array (chain, draw, ...)
        See `examined`.
    stats : Dataset
        With ``diverging`` and ``energy``, (chain, draw).
    """
    from arviz_stats.base import array_stats

    names, columns = [], []
    for name, values in draws.items():
        columns.append(np.asarray(values).reshape(*values.shape[:2], -1))
        index = np.ndindex(values.shape[2:])
        names += [f"{name}[{', '.join(map(str, i))}]" if i else name for i in index]
    stacked = np.concatenate(columns, axis=2)
    varies = ~(stacked.max((0, 1)) == stacked.min((0, 1)))  # NaN does
    if varies.any():
        names, stacked = [name for name, v in zip(names, varies, strict=True) if v], stacked[..., varies]
    axes = {"chain_axis": 0, "draw_axis": 1}
    with np.errstate(divide="ignore", invalid="ignore"):  # NaN where a chain does not move
        rhat = np.atleast_1d(array_stats.rhat(stacked, **axes))
        bulk = np.atleast_1d(array_stats.ess(stacked, method="bulk", **axes))
        tail = np.atleast_1d(array_stats.ess(stacked, method="tail", prob=(0.05, 0.95), **axes))
    nuisance = np.array([is_nuisance(name) for name in names])

    def worst(of: NDArray[np.bool_]) -> Worst:
        own = [name for name, one in zip(names, of, strict=True) if one]
        most, least = int(np.argmax(rhat[of])), int(np.argmin(np.minimum(bulk, tail)[of]))  # NaN comes first
        return Worst(float(rhat[of][most]), own[most], float(bulk[of].min()), float(tail[of].min()), own[least])

    reported = ~nuisance if not nuisance.all() else nuisance  # of nuisances alone, they are what is reported
    ebfmi = array_stats.bfmi(stats["energy"].values, **axes)
    return Diagnostics(
        **asdict(worst(reported)),
        divergences=int(stats["diverging"].values.sum()),
        ebfmi=float(ebfmi.min()),
        nuisance=worst(nuisance) if nuisance.any() and not nuisance.all() else None,
    )


def is_nuisance(name: str) -> bool:
    """Whether a parameter, with or without its index, only stands behind what is reported."""
    return any(fnmatchcase(name.partition("[")[0], pattern) for pattern in NUISANCES)
