"""Chains of grids that print every figure of some GPUs: starts brought onto the figures, draws, how well they mix."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rooffloor.validate.common.runner import run
from rooffloor.validate.published.imputation.inversion import Inversion
from rooffloor.validate.published.imputation.manifold import TOLERANCE, project, sample
from rooffloor.validate.published.imputation.readings import Index, Intervals
from rooffloor.validate.published.printed_figures import CELLS, SKUS

type Array = NDArray[np.float64]


@dataclass(frozen=True)
class Effort:
    """How hard the sampler works on one index.

    Attributes
    ----------
    chains : int
        Starts, and chains.
    tries : int
        Fresh sets of starts until one arrives at the figures; an index where none does is infeasible.
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

    chains: int = 16
    tries: int = 4
    draws: int = 100
    warmup: int = 1000
    thin: int = 20
    rounds: int = 5
    rhat: float = 1.05
    ess: float = 200.0


@dataclass(frozen=True)
class Part:
    """Draws of one independent part of an index (one GPU where constants are per GPU, else all GPUs).

    Attributes
    ----------
    q : float array, shape (chain, draw, size)
        Empty where no start arrived.
    arrived : float
        Share of the starts that the annealed projection brought onto every figure.
    least_misfit : float
        Least worst misfit over the starts, in units of half the rounding; 0 where one arrived.
    worst_row : str
        The figure at fault where none arrived.
    acceptance, rhat, ess : float
        Of the chains: acceptance rate, largest rank-normalised split R-hat and smallest bulk ESS over `summaries`.
    """

    inversion: Inversion
    q: Array
    arrived: float
    least_misfit: float
    worst_row: str = ""
    acceptance: float = float("nan")
    rhat: float = float("nan")
    ess: float = float("nan")


def parts_of(index: Index) -> tuple[tuple[str, ...], ...]:
    """Groups of GPUs that an index inverts separately."""
    return tuple((gpu,) for gpu in SKUS) if index.roof.per_gpu else (SKUS,)


def sample_part(
    index: Index, intervals: Intervals, gpus: tuple[str, ...], seed: Sequence[int], effort: Effort | None = None
) -> Part:
    """Sample the grids of some GPUs under one index."""
    effort = effort or Effort()
    inversion = Inversion(index, intervals, gpus)
    manifold = inversion.manifold()
    start_seed, chain_seed = np.random.SeedSequence(seed).spawn(2)
    least, worst = np.inf, ""
    for child in start_seed.spawn(effort.tries):
        q, misfit = starts(inversion, effort.chains, child)
        good = misfit < TOLERANCE
        if good.any():
            break
        best = int(np.argmin(misfit))
        if misfit[best] < least:
            least, worst = float(misfit[best]), inversion.rows[int(np.argmax(np.abs(manifold.values(q[[best]])[0])))]
    else:
        return Part(inversion, np.empty((0, 0, inversion.size)), 0.0, least, worst)
    for step, child in enumerate(chain_seed.spawn(effort.rounds)):
        chains = sample(
            manifold, q, draws=effort.draws, warmup=effort.warmup << step, thin=effort.thin << step, seed=child
        )
        rhat, ess = _mixing(inversion, chains.draws)
        if rhat <= effort.rhat and ess >= effort.ess:
            break
        q = chains.draws[:, -1]
    return Part(inversion, chains.draws, float(good.mean()), 0.0, "", float(chains.acceptance.mean()), rhat, ess)


WIDENINGS = (16.0, 4.0, 1.0)


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
        q, misfit = project(wide, q, seed=seeds[2 + 2 * step], enough=0.25)
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


STORED = ("q", "arrived", "least_misfit", "worst_row", "acceptance", "rhat", "ess")
"""What of a `Part` is kept on disk."""

type Asked = tuple[Index, Intervals, tuple[str, ...], Sequence[int]]
"""Arguments of `sample_part` but for the effort."""


def sample_parts(
    asked: Sequence[Asked],
    effort: Effort | None = None,
    *,
    jobs: int | None = None,
    progress: bool = False,
    desc: str = "",
    folder: Path | None = None,
) -> list[Part]:
    """`sample_part` of each, in processes of one thread; what is finished is kept in `folder` and read from there."""
    tasks = [(*one, effort or Effort()) for one in asked]
    keys = [f"grids {one!r}" for one in tasks]
    found = run(_stored, tasks, keys=keys, folder=folder, jobs=jobs, progress=progress, desc=desc)
    parts = []
    for (index, intervals, gpus, *_), result in zip(tasks, found, strict=True):
        known: dict[str, Any] = {name: result[name].item() for name in STORED[1:]}
        parts.append(Part(Inversion(index, intervals, gpus), result["q"], **known))
    return parts


def _stored(task: tuple[Index, Intervals, tuple[str, ...], Sequence[int], Effort]) -> dict[str, Any]:
    part = sample_part(*task)
    return {name: getattr(part, name) for name in STORED}
