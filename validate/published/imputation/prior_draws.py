"""Draws of the prior, restricted to grids that are possible (`aggregates.is_possible`).

Of unordered grids most are, and prior draws are kept or not. Hardly one ordered grid in a thousand is, but given the
constants the blocks are independent: each is drawn until it is possible, and the draw weighs as much as the product
of the blocks' chances, estimated without bias from the tries that k successes took: (k - 1) / (tries - 1).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from rooffloor.validate.published.imputation.aggregates import Tables, is_possible, state_of
from rooffloor.validate.published.imputation.inversion import Inversion
from rooffloor.validate.published.printed_figures import CELLS

type Array = NDArray[np.float64]

WINS, MOST = 6, 4000
"""Successes waited for in each block, and tries after which the constants count as impossible."""


@dataclass(frozen=True)
class PriorDraws:
    """Possible draws of the prior.

    Attributes
    ----------
    q : float array, shape (draw, size)
        Latents of figures are 0.
    log_weight : float array, shape (draw,)
        Their mean is the prior probability that all grids are possible.
    log_possible : float
        Log of that.
    """

    q: Array
    log_weight: Array
    log_possible: float

    def one(self, rng: np.random.Generator) -> Array:
        """One draw, shape (1, size)."""
        weight = np.exp(self.log_weight - self.log_weight.max())
        return self.q[[rng.choice(len(weight), p=weight / weight.sum())]]


def prior_draws(inversion: Inversion, number: int, rng: np.random.Generator) -> PriorDraws:
    """Draws of the prior, possible ones kept.

    Parameters
    ----------
    number : int
        Draws tried.

    Raises
    ------
    ValueError
        Ordered grids whose floors are shared: their blocks are not independent.
    """
    q = np.zeros((number, inversion.size))
    q[:, : inversion.unknowns] = rng.standard_normal((number, inversion.unknowns))
    tables = inversion.tables
    if not tables.ratio:
        _, possible = inversion.places(q)
        chance = np.log(possible.sum() / number)
        return PriorDraws(q[possible], np.full(int(possible.sum()), chance), float(chance))
    blocks = len(inversion.blocks)
    if tables.powers or not np.array_equal(tables.floor_of_block, np.arange(blocks)):
        raise ValueError(f"{inversion.floor}: ordered grids are drawn with a floor of each (GPU, model) alone")
    first = tables.constants * tables.sets
    size = (tables.unknowns - first) // blocks
    log_weight = np.zeros(number)
    for b in range(blocks):
        own, at = _of_block(tables, b, first + size), slice(first + b * size, first + (b + 1) * size)
        block = np.ascontiguousarray(np.concatenate([q[:, :first], q[:, at]], axis=1))
        tries = np.zeros(number, dtype=np.int64)
        _draw_each(block, own, first, np.isfinite(log_weight), rng, tries)
        q[:, at] = block[:, first:]
        with np.errstate(divide="ignore"):
            log_weight += np.where(tries > 0, np.log((WINS - 1) / np.maximum(tries - 1, 1)), -np.inf)
    kept = np.isfinite(log_weight)
    chance = np.exp(log_weight).mean()
    return PriorDraws(q[kept], log_weight[kept], float(np.log(chance)))


def _of_block(tables: Tables, block: int, unknowns: int) -> Tables:
    """The tables of one block alone, q being all constants and its own latents."""
    cells = slice(block * CELLS, (block + 1) * CELLS)
    return tables._replace(
        work=np.ascontiguousarray(tables.work[:, cells]),
        minimum_ms=tables.minimum_ms[cells],
        set_of_block=tables.set_of_block[[block]],
        floor_of_block=np.zeros(1, dtype=np.int64),
        unknowns=unknowns,
    )


@njit(cache=True)
def _draw_each(
    q: Array, t: Tables, first: int, wanted: Any, rng: Any, tries: Any
) -> None:  # pragma: no cover (compiled)
    """Fill each q behind its constants with its first possible draw; `tries` until `WINS` of them, 0: too many."""
    for d in range(len(q)):
        if not wanted[d]:
            continue
        trial, wins = q[d].copy(), 0
        for n in range(1, MOST + 1):
            for i in range(first, len(trial)):
                trial[i] = rng.standard_normal()
            state = state_of(trial, t)
            if is_possible(state.y, state.T, t):
                if wins == 0:
                    q[d] = trial
                wins += 1
                if wins == WINS:
                    tries[d] = n
                    break
