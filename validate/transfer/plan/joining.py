"""What cells would tell of how the floor joins T_gpu: added, or overlapped with it."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from rooffloor.models.floor.structures import overlap_ms
from rooffloor.models.inference.priors import DEFAULT_PRIORS
from rooffloor.validate.transfer.plan.outlook import Array, Index, Prospect
from rooffloor.validate.transfer.plan.shape import root

OVERLAPS = tuple(np.linspace(0.05, 0.95, 10).tolist())
"""Overlaps q that are set against q = 1, the sum."""
SHOWN, SHOWN_MS = 200, (0.2, 60.0)
"""Points of the grid of what shows of a floor, and its ends, ms."""
SIMULATIONS = 400
"""Simulated data sets of a promise."""


@dataclass(frozen=True, eq=False)
class Structures:
    """Added and overlapped floors H >= 0 on the same cells; one relative noise per GPU, its median.

    What shows of the floor in the shortest cell of a GPU (step - T_gpu) is log-normal (`Priors.floor_overall`) whatever
    the structure, so that only differences between cells tell it, and not what H was thought to be. The overlap q, one
    for all GPUs, is equally likely at each of `OVERLAPS`.

    T_gpu: means [cell], draws [draw, cell], and R [cell, direction] with R R' its covariance, ms², among the cells of
    one GPU. Relative noise and GPU of each cell; the least mean T_gpu of each GPU; the cells in hand, which every set
    has besides.
    """

    gpu_ms: Array
    draws_ms: Array
    root: Array
    noise: Array
    gpu: Index
    shortest_ms: Array
    measured: Index

    @classmethod
    def of(cls, p: Prospect) -> "Structures":
        """What may be true of the cells of a prospect."""
        off = p.gpu_ms - p.gpu_ms.mean(0)
        noise = np.median(p.noise, axis=0)[p.gpu]
        mean = p.gpu_ms.mean(0)
        shortest = np.array([mean[p.gpu == g].min(initial=np.inf) for g in range(len(p.gpus))])
        own = {g: root(off[:, p.gpu == g]) for g in np.unique(p.gpu).tolist()}
        roots = np.zeros((len(mean), max(one.shape[1] for one in own.values())))
        for g, one in own.items():
            roots[p.gpu == g, : one.shape[1]] = one
        return cls(mean, p.gpu_ms, roots, noise, p.gpu, shortest, p.measured)

    def distances(self, sets: Index, q: Array, shown: Array) -> Array:
        """Distance between overlapped steps and the nearest added ones, in sds, [set, truth].

        `sets` [set, cell]; `q` [truth]; `shown` [truth, gpu] is step - T_gpu in the shortest cell, ms.
        """
        return np.concatenate([self.beside(list(one[:-1]), one[-1:], q, shown) for one in sets])

    def beside(self, chosen: Sequence[int], options: Index, q: Array, shown: Array) -> Array:
        """`distances` of sets of the chosen cells and one of the options each, [option, truth]."""
        hosts = hidden(self.shortest_ms, shown, q[:, None])
        have = np.concatenate([np.asarray(chosen, dtype=np.int64), self.measured])
        squared = np.zeros((len(options), len(q)))
        for g in range(hosts.shape[1]):
            mine = self._columns(have[self.gpu[have] == g], hosts[:, g], q)
            base = mine.transpose(0, 2, 1) @ mine  # [truth, column, column]
            here = self.gpu[options] == g
            more = self._columns(options[here], hosts[:, g], q)  # [truth, option, column]
            squared += _apart(base)
            squared[here] += _apart(base[:, None] + more[..., :, None] * more[..., None, :]).T - _apart(base)
        return np.sqrt(squared.clip(0.0))

    def _columns(self, cells: Index, hosts: Array, q: Array) -> Array:
        """R, step - T_gpu and 1 in each cell over its sd, [truth, cell, column]."""
        step = overlap_ms(self.gpu_ms[cells], hosts[:, None], q[:, None])  # [truth, cell]
        columns = np.empty((*step.shape, self.root.shape[1] + 2))
        columns[..., :-2] = self.root[cells]
        columns[..., -2], columns[..., -1] = step - self.gpu_ms[cells], 1.0
        return columns / (self.noise[cells] * step)[..., None]

    def told(self, cells: Index, rng: np.random.Generator, simulations: int = SIMULATIONS) -> tuple[float, float]:
        """P(the evidence is on the true structure's side), and expected log Bayes factor of the true structure."""
        return self.simulated(rng, simulations).told(cells, rng)

    def simulated(self, rng: np.random.Generator, simulations: int = SIMULATIONS) -> "Simulated":
        """Truths, half of them added, half overlapped, and the evidences of the measured cells."""
        overlapped = np.arange(simulations) % 2 == 1
        q = np.where(overlapped, rng.choice(OVERLAPS, simulations), 1.0)
        rows = rng.integers(0, len(self.draws_ms), simulations)
        median, sd = DEFAULT_PRIORS.floor_overall
        shown = median * np.exp(sd * rng.standard_normal((simulations, len(self.shortest_ms))))
        hosts = hidden(self.shortest_ms, shown, q[:, None])
        mean = overlap_ms(self.draws_ms[rows], hosts[:, self.gpu], q[:, None])
        some = self.measured
        steps = mean[:, some] * (1.0 + self.noise[some] * rng.standard_normal((simulations, len(some))))
        return Simulated(self, overlapped, mean, self.sums(some, steps))

    def sums(self, cells: Index, steps_ms: Array) -> list[list["_Sums"]]:
        """What steps [set, cell] tell of each overlap, q = 1 first, and GPU."""
        log_shown = np.log(np.geomspace(*SHOWN_MS, SHOWN))
        found = []
        for q in (1.0, *OVERLAPS):
            found.append(list[_Sums]())
            for g in range(len(self.shortest_ms)):
                at = self.gpu[cells] == g
                own, y = cells[at], steps_ms[:, at]
                if not len(own):
                    found[-1].append(_Sums(0, 0.0, 0.0, 0.0, 0.0))
                    continue
                T = self.gpu_ms[own]
                step = overlap_ms(T, hidden(self.shortest_ms[g], np.exp(log_shown), q)[:, None], q)  # [host, cell]
                weight = (self.noise[own] * step) ** -2.0
                tilted = ((T / step) ** (1.0 / q - 1.0))[..., None] * self.root[own]
                scaled = weight[..., None] * tilted
                off = y - step.mean(0)  # near the steps, so that squares do not cancel
                left = step - step.mean(0)
                squares = (off**2) @ weight.T - 2.0 * off @ (weight * left).T + (weight * left**2).sum(-1)
                cross = np.tensordot(off, scaled, (1, 1)) - (scaled * left[..., None]).sum(1)  # [set, host, direction]
                inner = scaled.transpose(0, 2, 1) @ tilted
                found[-1].append(_Sums(len(own), squares, cross, inner, -np.log(weight).sum(-1)))
        return found


@dataclass(frozen=True, eq=False)
class _Sums:
    """Sums over the cells of a GPU, of any number, for each floor of the grid.

    Squares [set, host] and products with R [set, host, direction] of what steps are off by, those of R
    [host, direction, direction], log variances [host].
    """

    cells: int
    squares: Array | float
    cross: Array | float
    inner: Array | float
    log_size: Array | float

    def __add__(self, other: "_Sums") -> "_Sums":
        return _Sums(*(getattr(self, name) + getattr(other, name) for name in self.__dataclass_fields__))


def evidence(sums: Sequence[Sequence[_Sums]]) -> Array:
    """log p(steps | overlap), [q, set], with the floor of each GPU summed over its grid; by Woodbury."""
    log_shown = np.log(np.geomspace(*SHOWN_MS, SHOWN))
    median, sd = DEFAULT_PRIORS.floor_overall
    log_prior = -0.5 * ((log_shown - np.log(median)) / sd) ** 2
    log_prior -= logsumexp(log_prior)
    total = []
    for of_q in sums:
        total.append(np.zeros(1))
        for one in of_q:
            if not one.cells:
                continue
            inner, cross = np.asarray(one.inner), np.asarray(one.cross).transpose(1, 2, 0)  # [host, direction, set]
            inner = inner + np.eye(inner.shape[-1])
            explained = (np.linalg.solve(inner, cross) * cross).sum(1)  # [host, set]
            log = -0.5 * (np.asarray(one.squares).T - explained)
            log = log - 0.5 * (one.log_size + np.linalg.slogdet(inner)[1] + one.cells * np.log(2 * np.pi))[:, None]
            total[-1] = total[-1] + logsumexp(log + log_prior[:, None], axis=0)
    return np.stack(np.broadcast_arrays(*total))


def _apart(grams: Array) -> Array:
    """Squared distance of a column (the last but one) from multiples of the last, given R (the others), in sds."""
    r = grams.shape[-1] - 2
    within, both = grams[..., :r, :r] + np.eye(r), grams[..., :r, r:]
    left = grams[..., r:, r:] - np.swapaxes(both, -1, -2) @ np.linalg.solve(within, both)
    weight = left[..., 1, 1]
    return np.asarray(left[..., 0, 0] - left[..., 0, 1] ** 2 / np.where(weight > 0, weight, 1.0))


@dataclass(frozen=True, eq=False)
class Simulated:
    """Truths: whether overlapped [truth], steps without noise [truth, cell], sums of the measured cells with noise."""

    structures: Structures
    overlapped: NDArray[np.bool_]
    mean_ms: Array
    known: list[list[_Sums]]

    def told(self, cells: Index, rng: np.random.Generator) -> tuple[float, float]:
        """P(the evidence is on the true structure's side), and expected log Bayes factor, with these cells besides."""
        shock = rng.standard_normal((len(cells), len(self.mean_ms)))  # of the first cells alike in longer sets
        noise = self.structures.noise[cells] * shock.T
        more = self.structures.sums(cells, self.mean_ms[:, cells] * (1.0 + noise))
        found = evidence([[a + b for a, b in zip(*pair, strict=True)] for pair in zip(self.known, more, strict=True)])
        for_overlap = logsumexp(found[1:], axis=0) - np.log(len(OVERLAPS)) - found[0]
        factor = np.where(self.overlapped, for_overlap, -for_overlap)
        right = np.where(np.abs(factor) < 1e-9, 0.5, factor > 0)
        return float(right.mean()), float(factor.mean())


def hidden(gpu_ms: Array | float, shown: Array, q: Array | float) -> Array:
    """H with (T^(1/q) + H^(1/q))^q = T + shown, ms, broadcast."""
    step = gpu_ms + shown
    return np.asarray(step * (-np.expm1(-np.log1p(shown / gpu_ms) / q)) ** q)
