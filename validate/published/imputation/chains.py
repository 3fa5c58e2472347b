"""Chains of grids that print every figure of some GPUs: a ladder onto the figures, draws, how well they mix."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rooffloor.validate.common.runner import run
from rooffloor.validate.published.evidence.marginal import Effort as LadderEffort
from rooffloor.validate.published.evidence.marginal import ladder
from rooffloor.validate.published.imputation.inversion import Inversion, Prior
from rooffloor.validate.published.imputation.manifold import TOLERANCE, project, sample
from rooffloor.validate.published.imputation.readings import PIECES, Index, Intervals, Piece
from rooffloor.validate.published.printed_figures import CELLS, SKUS

type Array = NDArray[np.float64]


LADDER = LadderEffort(prior=4000, first=200.0, chains=32, draws=6, thin=4, levels=100, repeats=1)


TRIES = 2
"""Ladders until one arrives at the figures; a piece where none does counts as infeasible."""


@dataclass(frozen=True)
class Effort:
    """How hard the sampler works on one piece of an index.

    Attributes
    ----------
    ladder : marginal.Effort
        Of the ladder from the prior to the figures; its last rung starts the chains.
    draws : int
        Draws kept per chain.
    warmup, thin : int
        Transitions discarded, and transitions per draw, of the first round; each round doubles both and goes on
        where the last one ended.
    rounds : int
        Most rounds.
    rhat, ess : float
        A round is the last when the largest R-hat and the smallest bulk ESS of `summaries` are within these.
    """

    ladder: LadderEffort = LADDER
    draws: int = 20
    warmup: int = 100
    thin: int = 15
    rounds: int = 3
    rhat: float = 1.1
    ess: float = 60.0


@dataclass(frozen=True)
class Part:
    """Draws of one piece of an index.

    Attributes
    ----------
    q : float array, shape (chain, draw, size)
        Empty where the figures were not reached.
    arrived : float
        Share of the chains whose starts differ; of a search (`reach`) that of the starts that arrived.
    least_misfit : float
        Least worst misfit over the starts of a search, or over the last draws of a ladder that did not arrive, in units
        of half the rounding; 0 where the figures were reached.
    worst_row : str
        The figure at fault where they were not.
    log_ml : float
        Log marginal likelihood of the piece's figures, by one ladder.
    acceptance, rhat, ess : float
        Of the chains: acceptance rate, largest rank-normalised split R-hat and smallest bulk ESS over `summaries`.
    """

    inversion: Inversion
    q: Array
    arrived: float
    least_misfit: float
    worst_row: str = ""
    log_ml: float = float("nan")
    acceptance: float = float("nan")
    rhat: float = float("nan")
    ess: float = float("nan")


def pieces_of(index: Index) -> tuple[Piece, ...]:
    """Blocks that an index inverts separately."""
    if index.roof.per_class:
        return PIECES
    return tuple(Piece((gpu,)) for gpu in SKUS) if index.roof.per_gpu else (Piece(),)


def sample_part(
    index: Index, intervals: Intervals, piece: Piece, seed: Sequence[int], effort: Effort | None = None
) -> Part:
    """Sample the grids of a piece under one index: a ladder from the prior to the figures, then chains on them."""
    effort = effort or Effort()
    inversion = Inversion(index, intervals, piece.gpus, models=piece.models)
    start_seed, chain_seed = np.random.SeedSequence(seed).spawn(2)
    for _ in range(TRIES):
        found, q = ladder(inversion, start_seed, effort.ladder)
        if np.isfinite(found.log_ml):
            break
    else:
        places = np.abs(inversion.places(q)[0])
        best = places[int(np.argmin(places.max(1)))]
        names = [*inversion.rows, *inversion.bounded]
        return Part(inversion, _nothing(inversion), 0.0, float(best.max()), names[int(np.argmax(best))])
    arrived = len(np.unique(q[:, 0])) / len(q)
    for step, child in enumerate(chain_seed.spawn(effort.rounds)):
        given: dict[str, Any] = {"draws": effort.draws, "warmup": effort.warmup << step, "thin": effort.thin << step}
        chains = sample(inversion.manifold(), q, seed=child, **given)
        rhat, ess = _mixing(inversion, chains.draws)
        if rhat <= effort.rhat and ess >= effort.ess:
            break
        q = chains.draws[:, -1]
    acceptance = float(chains.acceptance.mean())
    return Part(inversion, chains.draws, arrived, 0.0, "", float(found.log_ml), acceptance, rhat, ess)


def reach(index: Index, intervals: Intervals, piece: Piece, seed: Sequence[int], number: int = 12) -> Part:
    """Whether any start arrives at the figures of a piece; the part has no draws."""
    inversion = Inversion(index, intervals, piece.gpus, models=piece.models)
    q, misfit = starts(inversion, number, np.random.SeedSequence(seed))
    good, best = misfit < TOLERANCE, int(np.argmin(misfit))
    worst = "" if good.any() else inversion.rows[int(np.argmax(np.abs(inversion.manifold().values(q[[best]])[0])))]
    least = 0.0 if good.any() else float(misfit[best])
    return Part(inversion, _nothing(inversion), float(good.mean()), least, worst)


def _nothing(inversion: Inversion) -> Array:
    return np.empty((0, 0, inversion.size))


WIDENINGS = (16.0, 4.0, 1.0)
HOPS = 4


def starts(inversion: Inversion, number: int, seed: np.random.SeedSequence) -> tuple[Array, Array]:
    """Prior draws brought onto the figures with annealed tolerance (randomized maximum likelihood).

    The rounding intervals start wide and shrink. At each width the starts are projected; those that do not arrive, or
    break a bound, are replaced by copies of those that do; some transitions of the sampler then part the copies
    and carry all away from the kinks at which Gauss-Newton would be trapped.

    Returns
    -------
    q : float array, shape (number, size)
        Starts on the figures; where none arrived, the last trial points.
    misfit : float array, shape (number,)
        max `|c|` of the last trial points; above `TOLERANCE`, or infinite where a bound is broken: not arrived.
    """
    seeds = seed.spawn(2 + 2 * len(WIDENINGS))
    q = np.random.default_rng(seeds[0]).standard_normal((number, inversion.size))
    copies = np.random.default_rng(seeds[1])
    misfit = np.full(number, np.inf)
    for step, width in enumerate(WIDENINGS):
        wide = inversion.manifold(width)
        q, misfit = project(wide, q, seed=seeds[2 + 2 * step], enough=0.05, hops=HOPS)
        good = (misfit < TOLERANCE) & wide.all_allowed(q)
        if not good.any():
            continue
        q[~good] = q[copies.choice(np.flatnonzero(good), size=int((~good).sum()))]
        if width > 1.0:
            q = sample(wide, q, draws=1, warmup=100, seed=seeds[3 + 2 * step]).draws[:, -1]
    return q, np.where((misfit < TOLERANCE) & ~good, np.inf, misfit)


def summaries(inversion: Inversion, q: Array) -> dict[str, Array]:
    """Block means of y and T in ms, offsets and constants of each draw; q of shape (draw, size)."""
    grids = inversion.grids(q)
    by_block = {"mean step": grids.y, "mean T_gpu": grids.T}
    out = {
        f"{name}, {model} on {gpu}": values[:, at * CELLS : (at + 1) * CELLS].mean(-1)
        for name, values in by_block.items()
        for at, (model, gpu) in enumerate(inversion.blocks)
    }
    figures = inversion.figures(q)
    out |= {name: figures[name] for name in figures if "offset" in name or name.startswith("self_floor ")}
    for name, values in grids.constants.items():
        columns = inversion.gpus if inversion.index.roof.per_gpu else ("all GPUs",)
        out |= {f"{name}, {gpu}": values[:, k] for k, gpu in enumerate(columns)}
    return out


def _mixing(inversion: Inversion, draws: Array) -> tuple[float, float]:
    from arviz_stats.base import array_stats

    chains, length, size = draws.shape
    values = summaries(inversion, draws.reshape(-1, size))
    stacked = np.stack([v.reshape(chains, length) for v in values.values()])
    rhat = max(float(array_stats.rhat(v, chain_axis=0, draw_axis=1)) for v in stacked)
    ess = min(float(array_stats.ess(v, chain_axis=0, draw_axis=1)) for v in stacked)
    return rhat, ess


STORED = ("q", "arrived", "least_misfit", "worst_row", "log_ml", "acceptance", "rhat", "ess")
"""What of a `Part` is kept on disk."""

type Asked = tuple[Index, Intervals, Piece, Sequence[int]]
"""Arguments of `sample_part` but for the effort."""


def sample_parts(
    asked: Sequence[Asked],
    effort: Effort | None = None,
    *,
    search: bool = False,
    jobs: int | None = None,
    progress: bool = False,
    desc: str = "",
    folder: Path | None = None,
) -> list[Part]:
    """`sample_part` (or `reach`, to `search`) of each; what is finished is kept in `folder` and read from there."""
    tasks: list[tuple[Any, ...]] = [one if search else (*one, effort or Effort()) for one in asked]
    keys = [f"{'reach' if search else 'ordered grids'} {one!r} {Prior()!r}" for one in tasks]
    function = _reached if search else _stored
    found = run(function, tasks, keys=keys, folder=folder, jobs=jobs, progress=progress, desc=desc)
    parts = []
    for (index, intervals, piece, *_), result in zip(tasks, found, strict=True):
        known: dict[str, Any] = {name: result[name].item() for name in STORED[1:]}
        parts.append(Part(Inversion(index, intervals, piece.gpus, models=piece.models), result["q"], **known))
    return parts


def _stored(task: tuple[Index, Intervals, Piece, Sequence[int], Effort]) -> dict[str, Any]:
    part = sample_part(*task)
    return {name: getattr(part, name) for name in STORED}


def _reached(task: Asked) -> dict[str, Any]:
    part = reach(*task)
    return {name: getattr(part, name) for name in STORED}
