"""Choosing cells: the loss of each goal, and a search for the set of cells that makes it small.

Three goals, each with a loss that is known before anything is measured:

- `floor`: the 90 % interval of the family's floor on each GPU beside the calibration's constants. For every draw of
  these the floor is a normal mean under known noise, so that its variance has a closed form. What the draws differ by
  is told separately: cells of the family do not narrow it, since the constants do not learn from them (the second stage
  of a cut, as `inference.one_pair` has it), and in predicted steps it cancels against T_gpu's.
- `shape`: the 90 % interval of a relative error of T_gpu beside a free floor on each GPU, with the priors of
  `transfer.explanations`; the uncertainty of the calibration is a correlated error of the steps, as there.
- `overlap`: the chance to tell added from overlapped floors. Cells are chosen by the distance between an overlapped
  step and the nearest added one, in sds; what is promised comes from simulated data and exact evidences on a grid.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr, ndtri

from rooffloor.models.inference.priors import DEFAULT_PRIORS
from rooffloor.validate.transfer.explanations import WHOLE
from rooffloor.validate.transfer.plan.joining import OVERLAPS, Structures
from rooffloor.validate.transfer.plan.outlook import FLOOR, HALF, SHAPE, Array, Index, Prospect, floor_given
from rooffloor.validate.transfer.plan.shape import belief

ROUNDS, EXCHANGES = 20, 240
"""Rounds of exchanges, and places that are tried in all of them, each with every candidate."""
SOLVED = 5e7
"""Candidates x cells³ x draws of the noise while cells are chosen for the shape."""
TRUTHS, RANDOM_SIMULATIONS = 16, 200
"""Truths per overlap by which cells are chosen; how often a random set is simulated."""


@dataclass(frozen=True, eq=False)
class Aim:
    """What a goal wants of sets of cells [set, cell]: a loss [set] to be made small, and what is promised [set].

    `beside` is the loss of chosen cells with each option, where that is faster; `starts` are cells to begin with where
    one alone tells nothing (empty: the best one).
    """

    loss: Callable[[Index], Array]
    expected: Callable[[Index], Array]
    beside: "Beside | None" = None
    starts: Sequence[int] = ()


type Beside = Callable[[Sequence[int], Index], Array]


def aim(p: Prospect, goal: str, rng: np.random.Generator, size: int = 3) -> Aim:
    """The loss and the promise of a goal, for sets of up to `size` cells."""
    if goal == FLOOR:
        return Aim(lambda sets: floor_given(p, sets).sum(-1), lambda sets: HALF * floor_given(p, sets).max(-1))
    if goal == SHAPE:
        known = belief(p, WHOLE)
        few = known.coarse(max(4, int(SOLVED / (p.candidates * size**3))))
        return Aim(few.sds, lambda sets: HALF * known.sds(sets))
    structures = Structures.of(p)
    median, sd = DEFAULT_PRIORS.floor_overall
    at = (np.arange(TRUTHS) + 0.5) / TRUTHS
    shown = np.stack(
        [np.concatenate([median * np.exp(sd * ndtri(rng.permutation(at))) for _ in OVERLAPS]) for _ in p.gpus], -1
    )
    q = np.repeat(OVERLAPS, TRUTHS)
    simulated = structures.simulated(rng, RANDOM_SIMULATIONS)

    def loss(sets: Index) -> Array:
        return np.asarray(ndtr(-0.5 * structures.distances(sets, q, shown)).mean(-1))

    def beside(chosen: Sequence[int], options: Index) -> Array:
        return np.asarray(ndtr(-0.5 * structures.beside(chosen, options, q, shown)).mean(-1))

    def expected(sets: Index) -> Array:
        seed = int(rng.integers(2**32))  # the same data for all sets of a call
        return np.array([simulated.told(one, np.random.default_rng(seed))[0] for one in sets])

    level = p.gpu_ms.mean(0)[: p.candidates]
    mine = [np.flatnonzero(p.gpu[: p.candidates] == g) for g in range(len(p.gpus))]
    ends = [int(some[at]) for some in mine if len(some) for at in (level[some].argmin(), level[some].argmax())]
    return Aim(loss, expected, beside, tuple(dict.fromkeys(ends)))


def choose(
    loss: Callable[[Index], Array],
    candidates: int,
    budget: int,
    *,
    repeats: bool = False,
    beside: Beside | None = None,
    starts: Sequence[int] = (),
) -> list[int]:
    """Cells of small loss: added one by one, then exchanged until no exchange of one cell helps (`EXCHANGES` at most).

    Parameters
    ----------
    loss, beside, starts
        As in `Aim`.

    Returns
    -------
    list of int
        In an order in which each cell is the best of those left.
    """
    beside = beside or _each(loss)
    chosen = grown(loss, candidates, budget, repeats=repeats, beside=beside, starts=starts)
    best = float(beside(chosen[:-1], np.array(chosen[-1:]))[0])
    for _ in range(min(ROUNDS, EXCHANGES // budget)):
        before = best
        for k in range(budget):
            others = chosen[:k] + chosen[k + 1 :]
            options = _options(others, candidates, repeats)
            losses = beside(others, options)
            if losses.min() < best - 1e-9 * abs(best):
                chosen[k], best = int(options[losses.argmin()]), float(losses.min())
        if best == before:
            break
    ordered: list[int] = []
    while len(ordered) < budget:
        left = list(chosen)
        for cell in ordered:
            left.remove(cell)
        ordered.append(left[int(beside(ordered, np.array(left)).argmin())])
    return ordered


def grown(
    loss: Callable[[Index], Array],
    candidates: int,
    budget: int,
    *,
    repeats: bool = False,
    beside: Beside | None = None,
    starts: Sequence[int] = (),
) -> list[int]:
    """Cells added one by one; the first is the start with the best second one. Arguments as of `choose`."""
    beside = beside or _each(loss)
    chosen: list[int] = []
    if len(starts) > 1 and budget > 1:
        chosen.append(min(starts, key=lambda i: float(beside([i], _options([i], candidates, repeats)).min())))
    while len(chosen) < budget:
        options = _options(chosen, candidates, repeats)
        chosen.append(int(options[beside(chosen, options).argmin()]))
    return chosen


def _options(chosen: Sequence[int], candidates: int, repeats: bool) -> Index:
    """Cells that may be added."""
    every = np.arange(candidates)
    return every if repeats else np.setdiff1d(every, chosen)


def _each(loss: Callable[[Index], Array]) -> Beside:
    """The loss of chosen cells with each option."""

    def beside(chosen: Sequence[int], options: Index) -> Array:
        before = np.tile(np.asarray(chosen, dtype=np.int64), (len(options), 1))
        return loss(np.concatenate([before, options[:, None]], -1))

    return beside


def random_sets(rng: np.random.Generator, candidates: int, size: int, sets: int) -> Index:
    """Random sets of distinct cells, [set, cell]."""
    return np.argsort(rng.random((sets, candidates)), axis=-1)[:, :size]
