"""Which cells to measure next: for a floor, for the shape of T_gpu, or for how the floor joins.

Three goals, each with a loss that is known before anything is measured:

- `floor`: the 90 % interval of the family's floor on each GPU beside the calibration's constants. For every draw of
  these the floor is a normal mean under known noise, so that its variance has a closed form. What the draws differ by
  is told separately: cells of the family do not narrow it, since the constants do not learn from them (the second stage
  of a cut, as `inference.one_pair` has it), and in predicted steps it cancels against T_gpu's.
- `shape`: the 90 % interval of a relative error of T_gpu beside a free floor on each GPU, with the priors of
  `transfer.explanations`; the uncertainty of the calibration is a correlated error of the steps, as there.
- `overlap`: the chance to tell added from overlapped floors. Cells are chosen by the distance between an overlapped
  step and the nearest added one, in sds; what is promised comes from simulated data and exact evidences on a grid.

What is asked is bound (`MOST_CELLS`, `MOST_CANDIDATES`), and so are the exchanges (`EXCHANGES`): a plan takes seconds.

The noise is relative to the step and independent between cells. It holds what the roof leaves over, which a second
measurement of the same cell repeats: therefore distinct cells, unless repeats are asked for.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from rooffloor.models.calibration.draws import Calibration
from rooffloor.models.inference.priors import DEFAULT_PRIORS
from rooffloor.models.roof.capacity import fits
from rooffloor.models.specs import gpus as gpu_catalog
from rooffloor.models.specs.gpus import GpuSpec
from rooffloor.models.specs.shapes import ModelShapes
from rooffloor.validate.common.errors import InputError
from rooffloor.validate.hypotheses.hypotheses import OFFSET_SD_MS, SLOPE_SD
from rooffloor.validate.measurements.csvfile import table_text
from rooffloor.validate.transfer import domain
from rooffloor.validate.transfer.explanations import FLOOR_BETWEEN_MS, WEIGHTS, WHOLE
from rooffloor.validate.transfer.plan.outlook import (
    OVERLAPS,
    SIMULATIONS,
    Array,
    Calibrated,
    Cell,
    Index,
    Prospect,
    Structures,
    belief,
    floor_given,
    floor_sds,
    prospect,
)

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

FLOOR, SHAPE, OVERLAP = "floor", "shape", "overlap"
GOALS = {
    FLOOR: "to narrow the floor",
    SHAPE: "to tell a floor from an error of T_gpu's shape",
    OVERLAP: "to tell added from overlapped floors",
}
BATCHES, CONTEXTS = (1, 2, 4, 8, 16), (512, 1024, 2048, 4096, 8192)
"""Default axes of the cells that could be measured."""
WIDE_BATCHES, WIDE_CONTEXTS = tuple(2**k for k in range(11)), tuple(2**k for k in range(9, 17))
"""Axes of `deciding`: a grid that was measured leaves nothing to choose within itself."""
SMALL_BATCH = 16
"""Up to here no GEMM of a dense model is compute-bound on today's GPUs: the weights' time is the same in all cells."""
HALF = float(ndtri(0.95))
"""Half a 90 % interval in sds."""
FAR, FAR_GAIN = 4.0, 2.0
"""A cell beyond so many times the largest calibrated batch or context is named only where it tells so much more."""
LEAST_GAIN, WORTH = 0.01, 0.1
"""Gains, nats, below which a cell tells nothing, and from which on several cells are worth their while."""
MOST = 6
"""So many cells are tried together where one alone does not show."""
MOST_CELLS = {FLOOR: 60, SHAPE: 30, OVERLAP: 12}
"""Cells of a plan; after so many one measures, and plans again."""
MOST_CANDIDATES, LARGEST_GRID = 400, 20_000
"""Cells that are tried, thinned evenly from at most so many of the axes."""
ROUNDS, EXCHANGES = 20, 240
"""Rounds of exchanges, and places that are tried in all of them, each with every candidate."""
SOLVED = 5e7
"""Candidates x cells³ x draws of the noise while cells are chosen for the shape."""
RANDOM_SETS = 100
TRUTHS, RANDOM_SIMULATED, RANDOM_SIMULATIONS = 16, 4, 200
"""Truths per overlap by which cells are chosen; random sets of which each is simulated so often."""


# ---- what comes out ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PlannedCell:
    """One cell of a plan, and what is expected after it and those before it.

    Attributes
    ----------
    gpu : str
    batch, context : float
    step_ms : float
        Expected step.
    inside : bool
        Whether the calibration has seen such batches and contexts on that GPU.
    expected : float
        Half the 90 % interval: of the widest floor given the constants, ms, or of the relative error; or the
        probability of telling the structure.
    own : float
        floor: half the 90 % interval on this cell's GPU, ms; else as `expected`.
    with_constants : float
        floor: that of the widest floor with the uncertainty of the constants, ms; else as `expected`.
    log_bayes_factor : float or None
        overlap: expected log Bayes factor of the true structure against the other.
    """

    gpu: str
    batch: float
    context: float
    step_ms: float
    inside: bool
    expected: float
    own: float
    with_constants: float
    log_bayes_factor: float | None = None


@dataclass(frozen=True)
class Plan:
    """Which cells to measure next, and what to expect of them.

    Attributes
    ----------
    model : str
    gpus : tuple of str
    goal : "floor", "shape" or "overlap"
    cells : tuple of PlannedCell
        In the order in which they should be measured.
    before, before_with_constants : float
        What `PlannedCell.expected` and `with_constants` are before any of them.
    random : tuple of float
        The same for as many random cells as the plan has so far, mean over random sets.
    width, needed : float or None, int or None
        Asked half-width, and the cells that it takes; None where no number of the candidates does.
    sentences : tuple of str
        Assumptions, domain, what does not fit.
    data : dict
        Everything, ready for JSON.
    """

    model: str
    gpus: tuple[str, ...]
    goal: str
    cells: tuple[PlannedCell, ...]
    before: float
    before_with_constants: float
    random: tuple[float, ...]
    width: float | None
    needed: int | None
    sentences: tuple[str, ...]
    data: dict[str, Any]

    def __repr__(self) -> str:
        cells = ", ".join(f"({c.gpu}, {c.batch:g}, {c.context:g})" for c in self.cells)
        last = self.cells[-1].expected if self.cells else self.before
        return f"Plan({self.model}, {self.goal}: {cells} -> {told(self.goal, last)})"

    @property
    def summary(self) -> str:
        """The table and the sentences, as text."""
        several = self.goal == FLOOR and len(self.gpus) > 1
        head = ["", "GPU", "batch", "context", "expected step", _HEADS[self.goal]]
        head += ["on that GPU"] if several else []
        head += ["with constants'"] if self.goal == FLOOR else []
        head += ["log Bayes factor"] if self.goal == OVERLAP else []
        head += ["random cells"]
        first = ["0", "", "", "", "", told(self.goal, self.before), *([""] if several else [])]
        rows = [head, [*first, *([told(self.goal, self.before_with_constants)] if self.goal == FLOOR else [])]]
        for n, (cell, random) in enumerate(zip(self.cells, self.random, strict=True), 1):
            mark = "" if cell.inside else " *"
            row = [f"{n}{mark}", cell.gpu, f"{cell.batch:g}", f"{cell.context:g}", f"{cell.step_ms:.1f} ms"]
            row += [told(self.goal, cell.expected)]
            row += [told(self.goal, cell.own)] if several else []
            row += [told(self.goal, cell.with_constants)] if self.goal == FLOOR else []
            row += [f"{cell.log_bayes_factor:z.1f}"] if cell.log_bayes_factor is not None else []
            rows.append([*row, told(self.goal, random)])
        widths = [max(len(row[k]) for row in rows if k < len(row)) for k in range(len(head))]
        table = ["  ".join(text.rjust(w) for text, w in zip(row, widths, strict=False)).rstrip() for row in rows]
        title = f"{self.model} on {', '.join(self.gpus)}: {_cells(len(self.cells))} {GOALS[self.goal]}"
        return "\n".join([title, *table, *self.sentences])

    def to_frame(self) -> "pd.DataFrame":
        """One row per cell, in order."""
        import pandas as pd

        return pd.DataFrame(self.data["cells"], columns=list(_COLUMNS))

    def to_csv(self) -> str:
        """The cells as CSV text."""
        return table_text(_COLUMNS, ([row[name] for name in _COLUMNS] for row in self.data["cells"]))

    def plot(self, ax: "Axes | None" = None) -> "Axes":
        """What is expected against the number of cells, beside random cells."""
        from rooffloor.validate.presentation.figures.plan import plan

        return plan(self, ax=ax)


_HEADS = {FLOOR: "floor, 90 %", SHAPE: "slope, 90 %", OVERLAP: "P(structure told)"}


def _cells(count: int) -> str:
    return f"{count} cell{'' if count == 1 else 's'}"


def told(goal: str, value: float) -> str:
    """A half-width or a probability as text."""
    if goal == OVERLAP:
        return f"{value:.2f}"
    if goal == SHAPE:
        return f"±{100 * value:.2g} %"
    return f"±{value:.2f} ms" if value >= 0.095 else f"±{value:.2g} ms"


# ---- choosing ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Aim:
    """What a goal wants of sets of cells.

    Attributes
    ----------
    loss : callable, int array [set, cell] -> array [set]
        To be made small.
    expected : callable, the same
        What is promised.
    beside : callable (chosen cells, options) -> array [option], optional
        The loss of the chosen cells with each option, where that is faster.
    starts : sequence of cells
        To begin with where one cell alone tells nothing; empty: the best one.
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
    beside = beside or (lambda chosen, options: loss(_with(chosen, options)))
    chosen = _grown(beside, candidates, budget, repeats=repeats, starts=starts)
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


def _grown(
    beside: Beside, candidates: int, budget: int, *, repeats: bool = False, starts: Sequence[int] = ()
) -> list[int]:
    """Cells added one by one; the first is the start with the best second one."""
    chosen: list[int] = []
    if len(starts) > 1 and budget > 1:
        chosen.append(min(starts, key=lambda i: float(beside([i], _options([i], candidates, repeats)).min())))
    while len(chosen) < budget:
        options = _options(chosen, candidates, repeats)
        chosen.append(int(options[beside(chosen, options).argmin()]))
    return chosen


def _options(chosen: Sequence[int], candidates: int, repeats: bool) -> Index:
    every = np.arange(candidates)
    return every if repeats else np.setdiff1d(every, chosen)


def _with(chosen: Sequence[int], options: Index) -> Index:
    """Each option beside the chosen cells, [option, cell]."""
    return np.concatenate([np.tile(np.asarray(chosen, dtype=np.int64), (len(options), 1)), options[:, None]], -1)


def random_sets(rng: np.random.Generator, candidates: int, size: int, sets: int) -> Index:
    """Random sets of distinct cells, [set, cell]."""
    return np.argsort(rng.random((sets, candidates)), axis=-1)[:, :size]


# ---- the plan ---------------------------------------------------------------------------------------------------


def plan(
    shapes: ModelShapes,
    specs: Sequence[GpuSpec],
    budget: int | None = None,
    *,
    calibration: Calibrated,
    goal: str = FLOOR,
    width: float | None = None,
    batches: Sequence[int] = BATCHES,
    contexts: Sequence[int] = CONTEXTS,
    measured: Sequence[Cell] = (),
    noise: float | None = None,
    repeats: bool = False,
    seed: int = 1,
) -> Plan:
    """Which cells of a family to measure next.

    Parameters
    ----------
    shapes : ModelShapes
    specs : sequence of GpuSpec
    budget : int, optional
        How many cells, up to `MOST_CELLS`; without it those that `width` needs.
    calibration, noise
        As in `prospect`.
    goal : "floor", "shape" or "overlap"
    width : float, optional
        Wanted half of the 90 % interval: of every floor, ms, or of the relative error (shape).
    batches, contexts : sequences of int
        Axes of the candidates; of more than `MOST_CANDIDATES` cells every few are tried.
    measured : sequence of Cell
        What is in hand, with steps; cells on other GPUs are left out.
    repeats : bool
        A cell may be chosen more than once, and cells in hand again.
    seed : int

    Returns
    -------
    Plan

    Raises
    ------
    InputError
        The goal is unknown, the budget exceeds the candidates, neither budget nor width is given, or the calibration
        joins floors in a way that the goal does not know.
    """
    _check(calibration, goal, budget, width, noise, specs)
    if len(batches) * len(contexts) * len(specs) > LARGEST_GRID:
        asked = len(batches) * len(contexts) * len(specs)
        raise InputError(
            f"batches x contexts x GPUs: expected at most {LARGEST_GRID} cells to choose from, got {asked}"
        )
    rng = np.random.default_rng(seed)
    names = tuple(spec.name for spec in specs)
    own = [cell for cell in measured if cell.gpu in names]
    found, unfit, long = candidates(shapes, specs, batches, contexts, () if repeats else own)
    bare = [name for name in names if name not in {cell.gpu for cell in (*found, *own)}]
    if bare:
        raise InputError(f"no cell fits {bare[0]}: {shapes.name} has none there among these batches and contexts")
    if not found or (budget is not None and budget > len(found) and not repeats):
        kind = "one that fits and is not measured yet" if own else "one that fits"
        raise InputError(
            f"a budget of {_cells(budget or 1)} is more than the {len(found)} candidates: a cell counts once, and is "
            f"{kind}; give more --batches or --contexts"
        )
    every, found = len(found), _thinned(found)
    p = prospect(shapes, specs, found, own, calibration, rng, noise=noise)
    most = min(MOST_CELLS[goal], p.candidates)
    wanted = aim(p, goal, rng, most if width is not None else budget or 1)
    before = float(_nothing(p, goal))
    needed, least = _needed(wanted, p.candidates, most, before, width)
    if budget is None:
        budget = min(3, p.candidates) if needed is None else needed
    how: dict[str, Any] = {"beside": wanted.beside, "starts": () if own else wanted.starts}
    chosen = choose(wanted.loss, p.candidates, budget, repeats=repeats, **how) if budget else []
    cells = _planned(p, goal, wanted, chosen, seed)
    random = tuple(
        float(wanted.expected(random_sets(rng, p.candidates, min(n, p.candidates), _random(goal, n))).mean())
        for n in range(1, budget + 1)
    )
    errors = {
        name: HALF * float(belief(p, name).sds(np.array([chosen], dtype=np.int64))[0])
        for name in (p.columns if goal == SHAPE else ())
    }
    with_constants = _all(p, goal, before)
    sentences = (
        *_answer(goal, width, needed, least, most, p.candidates),
        _assumed(p, goal, calibration, noise),
        *_limits(p, goal, cells, chosen, errors, with_constants),
        *_outside(cells, shapes, specs, calibration),
        *_left_out(unfit, long),
        *([f"Of {every} cells that could be measured {len(found)} were tried, evenly spread."] * (every > len(found))),
        REPEATS if repeats else DISTINCT,
    )
    data = {
        "model": shapes.name,
        "gpus": list(names),
        "goal": goal,
        "unit": {FLOOR: "ms", SHAPE: "1", OVERLAP: "probability"}[goal],
        "estimand": _ESTIMANDS[goal],
        "before": before,
        "before_with_constants": with_constants,
        "cells": [
            _row(shapes.name, n, cell, value) for n, (cell, value) in enumerate(zip(cells, random, strict=True), 1)
        ],
        "width": width,
        "needed": needed,
        "errors": errors,
        "candidates": p.candidates,
        "possible": every,
        "measured": len(own),
        "unfit": [[cell.gpu, cell.batch, cell.context] for cell in unfit],
        "beyond_positions": [[cell.gpu, cell.batch, cell.context] for cell in long],
        "noise": {gpu: float(np.median(p.noise[:, g])) for g, gpu in enumerate(names)},
        "calibration": _source(calibration),
        "repeats": repeats,
        "seed": seed,
        "sentences": list(sentences),
    }
    return Plan(shapes.name, names, goal, cells, before, with_constants, random, width, needed, sentences, data)


_ESTIMANDS = {
    FLOOR: "expected half of the 90 % interval of the family's floor given the constants, widest of the GPUs",
    SHAPE: "expected half of the 90 % interval of the relative error of T_gpu as a whole beside free floors",
    OVERLAP: "probability that the Bayes factor of added and overlapped floors is on the true one's side",
}


def _check(
    calibration: Calibrated,
    goal: str,
    budget: int | None,
    width: float | None,
    noise: float | None,
    specs: Sequence[GpuSpec],
) -> None:
    if goal not in GOALS:
        raise InputError(f"goal {goal!r} is unknown: expected one of {', '.join(GOALS)}")
    if not specs or len({spec.name for spec in specs}) < len(specs):
        raise InputError("a plan needs one GPU or more, each named once")
    if budget is None and width is None:
        raise InputError("a plan needs a number of cells (--budget N) or a wanted interval (--width X)")
    if budget is not None and budget < 1:
        raise InputError(f"the budget must be 1 cell or more, got {budget}")
    if budget is not None and budget > MOST_CELLS[goal]:
        raise InputError(
            f"a budget of {budget} cells: a plan for goal {goal} has {MOST_CELLS[goal]} at most; measure those, and "
            "plan again with --measurements"
        )
    if width is not None and (goal == OVERLAP or not 0 < width < np.inf):
        raise InputError("a width is a positive number, for the goals floor (ms) and shape (relative error)")
    if noise is not None and not 0 < noise < 1:
        raise InputError(f"noise is relative to the step, between 0 and 1, got {noise:g}")
    if isinstance(calibration, Mapping) and (missing := [s.name for s in specs if s.name not in calibration]):
        raise InputError(f"no constants for GPU {missing[0]!r}")
    if isinstance(calibration, Calibration) and calibration.combine != "added" and goal == SHAPE:
        raise InputError(f"floors of {calibration.source} are {calibration.combine}: goal shape knows added ones only")


def candidates(
    shapes: ModelShapes,
    specs: Sequence[GpuSpec],
    batches: Sequence[int],
    contexts: Sequence[int],
    measured: Sequence[Cell],
) -> tuple[list[Cell], list[Cell], list[Cell]]:
    """Cells that could be measured; those that do not fit into memory; those beyond the model's positions."""
    taken = {(cell.gpu, cell.batch, cell.context) for cell in measured}
    good, unfit, long = [], [], []
    for spec in specs:
        b, c = (axis.ravel() for axis in np.meshgrid(batches, contexts, indexing="ij"))
        roomy = fits(shapes, spec, b, c + 1.0)
        for batch, context, room in zip(b.tolist(), c.tolist(), roomy, strict=True):
            cell = Cell(spec.name, float(batch), float(context))
            if context >= shapes.max_context:
                long.append(cell)
            elif not room:
                unfit.append(cell)
            elif (cell.gpu, cell.batch, cell.context) not in taken:
                good.append(cell)
    return good, unfit, long


def _thinned(cells: list[Cell]) -> list[Cell]:
    """Up to `MOST_CANDIDATES` cells: every second value of the longer axis, first and last kept, until they are few."""
    while len(cells) > MOST_CANDIDATES:
        axes = {axis: sorted({getattr(cell, axis) for cell in cells}) for axis in ("batch", "context")}
        longer = max(axes, key=lambda axis: len(axes[axis]))
        if len(axes[longer]) <= 2:
            break
        kept = {*axes[longer][::2], axes[longer][-1]}
        cells = [cell for cell in cells if getattr(cell, longer) in kept]
    return cells


def _random(goal: str, size: int) -> int:
    """Random sets of so many cells: fewer of large ones, which differ less."""
    if goal == OVERLAP:
        return max(2, min(RANDOM_SIMULATED, 20 // size))
    return RANDOM_SETS if goal == FLOOR else min(RANDOM_SETS, max(10, 300 // size))


def _all(p: Prospect, goal: str, before: float) -> float:
    """`_nothing` with the uncertainty of the constants."""
    return HALF * float(floor_sds(p, np.zeros((1, 0), dtype=np.int64))[1].max()) if goal == FLOOR else before


def _nothing(p: Prospect, goal: str) -> float:
    """What is promised without a further cell."""
    none = np.zeros((1, 0), dtype=np.int64)
    if goal == FLOOR:
        return HALF * float(floor_given(p, none).max())
    if goal == SHAPE:
        return HALF * float(belief(p, WHOLE).sds(none)[0])
    if not len(p.measured):
        return 0.5
    return Structures.of(p).told(none[0], np.random.default_rng(0))[0]


def _needed(
    wanted: Aim, candidates: int, most: int, before: float, width: float | None
) -> tuple[int | None, float | None]:
    """Cells that a width takes when added one by one, and the least width that up to `most` of them reach."""
    if width is None:
        return None, None
    if before <= width:
        return 0, before
    chosen = _grown(wanted.beside or (lambda chosen, options: wanted.loss(_with(chosen, options))), candidates, most)
    least = before
    for n in range(1, most + 1):
        least = min(least, float(wanted.expected(np.array([chosen[:n]]))[0]))
        if least <= width:
            return n, least
    return None, least


def _planned(p: Prospect, goal: str, wanted: Aim, chosen: Sequence[int], seed: int) -> tuple[PlannedCell, ...]:
    """The chosen cells with what is expected after each."""
    cells, steps = [], p.step_ms.mean(0)
    simulated = Structures.of(p).simulated(np.random.default_rng(seed)) if goal == OVERLAP else None
    for n, i in enumerate(chosen, 1):
        some = np.array(chosen[:n], dtype=np.int64)
        factor: float | None = None
        if simulated is not None:
            expected, factor = simulated.told(some, np.random.default_rng([seed, 1]))
            own = whole = expected
        elif goal == FLOOR:
            given, total = (HALF * sds[0] for sds in floor_sds(p, some[None]))
            expected, own, whole = float(given.max()), float(given[p.gpu[i]]), float(total.max())
        else:
            expected = own = whole = float(wanted.expected(some[None])[0])
        cell = p.cells[i]
        found = (cell.gpu, cell.batch, cell.context, float(steps[i]), bool(p.inside[i]))
        cells.append(PlannedCell(*found, expected, own, whole, factor))
    return tuple(cells)


_COLUMNS = (
    "order",
    "model",
    "gpu",
    "batch",
    "context",
    "expected_step_ms",
    "inside_domain",
    "expected",
    "expected_on_gpu",
    "expected_with_constants",
    "log_bayes_factor",
    "random_cells",
)


def _row(model: str, order: int, cell: PlannedCell, random: float) -> dict[str, Any]:
    told = (cell.gpu, cell.batch, cell.context, cell.step_ms, cell.inside, cell.expected, cell.own, cell.with_constants)
    return dict(zip(_COLUMNS, (order, model, *told, cell.log_bayes_factor, random), strict=True))


# ---- words ------------------------------------------------------------------------------------------------------

DISTINCT = (
    "Cells are distinct: at one cell measurement noise and what the roof leaves over cannot be told apart, and a "
    "repeat lowers only the former."
)
REPEATS = (
    "Repeats were allowed and count as independent: what the roof leaves over does not average out in them, so that "
    "the expected widths are too narrow by as much as the noise holds of it."
)


def _source(calibration: Calibrated) -> str:
    if isinstance(calibration, Calibration):
        return f"{calibration.source}, {calibration.label}"
    return "constants taken as known"


def _assumed(p: Prospect, goal: str, calibration: Calibrated, noise: float | None) -> str:
    per_gpu = " and ".join(f"{100 * np.median(p.noise[:, g]):.2g} % ({gpu})" for g, gpu in enumerate(p.gpus))
    level = f"noise of {per_gpu} of a step" if noise is None else f"noise of {100 * noise:.3g} % of a step"
    if goal == FLOOR:
        prior = "floors before these cells: " + ", ".join(
            f"{p.mean_ms[:, g].mean():.1f} ± {np.sqrt(p.variance[:, g].mean() + p.mean_ms[:, g].var()):.1f} ms ({gpu})"
            for g, gpu in enumerate(p.gpus)
        )
    elif goal == SHAPE:
        prior = (
            f"an error N(0, {SLOPE_SD:g}) common to the GPUs beside floors off the anchor's by N(0, {OFFSET_SD_MS:g} "
            f"ms) in common and N(0, {FLOOR_BETWEEN_MS:g} ms) by GPU"
        )
    else:
        median, sd = DEFAULT_PRIORS.floor_overall
        prior = (
            f"a floor that shows log-normal around {median:g} ms (sd of the log {sd:g}) in the shortest cell under "
            f"both structures, an overlap q anywhere in (0, 1); {SIMULATIONS} simulated data sets, so that "
            f"probabilities are known to ±{2 * np.sqrt(0.25 / SIMULATIONS):.2f}"
        )
    return f"Assumed: T_gpu of {_source(calibration)}; {level}, independent between cells; {prior}."


def _answer(
    goal: str, width: float | None, needed: int | None, least: float | None, most: int, candidates: int
) -> list[str]:
    if width is None or least is None:
        return []
    asked = told(goal, width)
    if needed is None:
        tried = f"the {candidates} candidates" if most == candidates else f"up to {most} cells"
        return [f"No number of {tried} gives {asked}: the narrowest is {told(goal, least)}."]
    if needed == 0:
        return [f"{asked} is reached without a further cell: it is {told(goal, least)}."]
    return [f"{asked} takes {_cells(needed)}: {told(goal, least)} is then expected."]


def _limits(
    p: Prospect,
    goal: str,
    cells: Sequence[PlannedCell],
    chosen: Sequence[int],
    errors: Mapping[str, float],
    with_constants: float,
) -> list[str]:
    """What the constants alone leave of a floor; how far other errors of T_gpu show."""
    if goal == FLOOR and cells:
        last = cells[-1]
        if last.with_constants > 1.05 * last.expected:
            text = (
                f"Widths are those beside the calibration's constants. With their uncertainty the floor itself is "
                f"{told(goal, last.with_constants)}: no cell of this family narrows that part, and in predicted steps "
                "it cancels against T_gpu's."
            )
            if last.with_constants > 1.01 * min(with_constants, *(cell.with_constants for cell in cells)):
                some = np.array(chosen)
                means = [p.gpu_ms[:, some[p.gpu[some] == g]].mean(-1) for g in set(p.gpu[some].tolist())]
                alone = HALF * max(float(mean.std()) for mean in means)
                text += (
                    " It can grow with cells: the floor is then read off as step - T_gpu, and T_gpu alone is uncertain "
                    f"by {told(goal, alone)}."
                )
            return [text]
    if goal == SHAPE:
        unseen = HALF * SLOPE_SD
        seen = ", ".join(f"{name} {told(goal, half)}" for name, half in errors.items() if name != WHOLE)
        return [f"Each other error alone beside the floors after these cells ({told(goal, unseen)}: not seen): {seen}."]
    return []


def _outside(
    cells: Sequence[PlannedCell], shapes: ModelShapes, specs: Sequence[GpuSpec], calibration: Calibrated
) -> list[str]:
    if not isinstance(calibration, Calibration):
        return []
    reasons = domain.model_reasons(calibration, shapes)
    reasons += [reason for spec in specs for reason in domain.gpu_reasons(calibration, spec)]
    odd = sum(not cell.inside for cell in cells)
    if odd:
        seen = calibration.domain
        reasons.append(
            f"cells marked * ({odd}): batch {seen.batch[0]:g} to {seen.batch[1]:g}, context {seen.context[0]:g} to "
            f"{seen.context[1]:g} on {', '.join(calibration.gpus)} calibrated"
        )
    return [f"Outside what the calibration has seen: {'; '.join(reasons)}."] if reasons else []


def _left_out(unfit: Sequence[Cell], long: Sequence[Cell]) -> list[str]:
    told = []
    for cells, why in ((unfit, "do not fit into memory"), (long, "lie beyond the model's positions")):
        if cells:
            some = ", ".join(f"({c.gpu}, {c.batch:g}, {c.context:g})" for c in cells[:4])
            more = f" and {len(cells) - 4} more" if len(cells) > 4 else ""
            told.append(f"Left out, since they {why}: {some}{more}.")
    return told


# ---- which cells would help most --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Deciding:
    """Further cells that would help with an open question.

    Attributes
    ----------
    cell : Cell
    kind : "same GPU", "same GPU, larger batch", "another GPU" or "several"
    gain : float
        Expected information, log(before / after), nats.
    before, after : float
        Half the 90 % interval before and after: of the floor on this cell's GPU, ms, or of the relative error.
    inside : bool
        Whether the calibration has seen such cells.
    far : bool
        Whether batch or context lie far beyond what the calibration has seen (`FAR`).
    alone : float
        Largest gain of one cell of this kind; several: of any cell.
    further : tuple of Cell
        several: what is measured besides.
    """

    cell: Cell
    kind: str
    gain: float
    before: float
    after: float
    inside: bool
    far: bool
    alone: float
    further: tuple[Cell, ...] = ()


SAME, LARGER, OTHER, SEVERAL = "same GPU", "same GPU, larger batch", "another GPU", "several"
_NOWHERE = {
    SAME: f"up to batch {SMALL_BATCH} on the same GPU",
    LARGER: f"above batch {SMALL_BATCH} on the same GPU",
    OTHER: "on another GPU",
}


def deciding(
    shapes: ModelShapes,
    specs: Sequence[GpuSpec],
    measured: Sequence[Cell],
    calibration: Calibrated,
    question: str,
    *,
    noise: float | None = None,
    others: Sequence[GpuSpec] | None = None,
    seed: int = 1,
) -> list[Deciding]:
    """Which one further cell would do most for what a verdict leaves open; several where no single one does.

    Parameters
    ----------
    specs : sequence of GpuSpec
        On which the family was measured.
    measured : sequence of Cell
        In hand (`step_ms` where known).
    question : str
        What is open, as a verdict names it: "slope..." , "level..." or "level: a floor or the weights' bandwidth".
    others : sequence of GpuSpec, optional
        Further GPUs to try where the weights are in question; default: the rest of the calibration, without draws the
        rest of the catalog.

    Returns
    -------
    list of Deciding
        The best cell of each kind, best first: on a GPU in hand up to batch 16, there at larger batches, and (weights)
        on another GPU. Where none of them changes the width that is told, several cells last.

    Raises
    ------
    InputError
        The question is none of these.

    Notes
    -----
    A floor and an error of the weights' bandwidth have one column on one GPU while the weights' time is the same in all
    cells, hence no gain there at small batches. It differs between GPUs, and at batches where GEMMs become
    compute-bound. That the anchor is measured on another GPU too is not assumed where there are draws.

    A floor is one GPU's: gain and widths are those of the cell's own GPU. Cells whose width is told as another one go
    first, of these the ones on GPUs in hand and near the calibration, then those that gain most; far outside the
    calibration a gain counts as 1 / `FAR_GAIN` of it. The same product with other memory (A100-40GB, A100-80GB) is no
    other GPU, unless there is none.
    """
    if not question.startswith(("slope", "level")):
        raise InputError(f"open question {question!r} is unknown: expected slope... or level...")
    rng = np.random.default_rng(seed)
    known = list(specs)
    if "weights" in question:
        known += _other_gpus(specs, calibration) if others is None else list(others)
    found, _, _ = candidates(shapes, known, WIDE_BATCHES, WIDE_CONTEXTS, measured)
    if not found:
        return []
    used = {cell.gpu for cell in (*found, *measured)}
    p = prospect(shapes, [s for s in known if s.name in used], found, measured, calibration, rng, noise=noise)
    widths, single = _widths(p, question), np.arange(p.candidates)
    own = p.gpu[: p.candidates]
    before, after = widths(np.zeros((1, 0), dtype=np.int64))[0, own], widths(single[:, None])[single, own]
    gain = np.log(before / after).clip(0.0)
    far = np.array([_far(cell, calibration) for cell in found])
    shown = np.array([_shows(question, *ends) for ends in zip(before, after, strict=True)])
    mine = {spec.name for spec in specs}
    kinds = [OTHER if c.gpu not in mine else SAME if c.batch <= SMALL_BATCH else LARGER for c in found]
    alone = {kind: float(max(gain[i] for i in single if kinds[i] == kind)) for kind in kinds}
    best: dict[str, Deciding] = {}
    elsewhere = np.array([kind == OTHER for kind in kinds]) & bool((shown & ~far & (np.array(kinds) != OTHER)).any())
    order = np.lexsort((-np.where(far, gain / FAR_GAIN, gain), elsewhere, ~shown))
    for i in order.tolist():
        told = (float(gain[i]), float(before[i]), float(after[i]), bool(p.inside[i]), bool(far[i]))
        best.setdefault(kinds[i], Deciding(found[i], kinds[i], *told, alone[kinds[i]]))
    together = [] if shown.any() else [_together(p, widths, int(own[order[0]]), far, question)]
    return [*best.values(), *(replace(one, alone=float(gain.max())) for one in together)]


def _widths(p: Prospect, question: str) -> Callable[[Index], Array]:
    """Half the 90 % interval of what is open after sets of cells, [set, cell] -> [set, gpu]; errors: alike on all."""
    if _goal(question) == FLOOR:
        return lambda sets: HALF * floor_given(p, sets)
    size = belief(p, WEIGHTS if "weights" in question else WHOLE)
    return lambda sets: HALF * np.repeat(size.sds(sets)[:, None], len(p.gpus), 1)


def _goal(question: str) -> str:
    """Whether a floor or a relative error is open."""
    return SHAPE if question.startswith("slope") or "weights" in question else FLOOR


def _shows(question: str, before: float, after: float) -> bool:
    """Whether a width is told as another one."""
    goal = _goal(question)
    return bool(np.log(before / after) >= LEAST_GAIN and told(goal, before) != told(goal, after))


def _far(cell: Cell, calibration: Calibrated) -> bool:
    if not isinstance(calibration, Calibration):
        return False
    seen = calibration.domain
    return cell.batch > FAR * seen.batch[1] or cell.context > FAR * seen.context[1]


def _together(
    p: Prospect, widths: Callable[[Index], Array], gpu: int, far: NDArray[np.bool_], question: str
) -> Deciding:
    """The fewest cells that are worth their while, `MOST` at most, for the floor on a GPU or for the relative error.

    Far outside the calibration only where there are no others.
    """
    here = p.gpu[: p.candidates] == gpu if _goal(question) == FLOOR else np.ones(p.candidates, dtype=bool)
    pool = np.flatnonzero(here & ~far) if (here & ~far).any() else np.flatnonzero(here)

    def loss(sets: Index) -> Array:
        return widths(pool[sets])[:, gpu]

    chosen = choose(loss, len(pool), min(MOST, len(pool)))
    before, *after = (float(loss(np.array([chosen[:n]], dtype=np.int64))[0]) for n in range(len(chosen) + 1))
    worth = [n for n, width in enumerate(after, 1) if np.log(before / width) >= WORTH and n > 1]
    count = worth[0] if worth else len(after)
    some = pool[chosen[:count]]
    first, *rest = (p.cells[i] for i in some)
    ends = (max(float(np.log(before / after[count - 1])), 0.0), before, after[count - 1])
    return Deciding(first, SEVERAL, *ends, bool(p.inside[some].all()), bool(far[some].any()), 0.0, tuple(rest))


def _other_gpus(specs: Sequence[GpuSpec], calibration: Calibrated) -> list[GpuSpec]:
    mine, products = {spec.name for spec in specs}, {_product(spec) for spec in specs}
    known = calibration if isinstance(calibration, Mapping) else gpu_catalog.names()
    rest = [gpu_catalog.load(name) for name in known if name not in mine and name in gpu_catalog.names()]
    if isinstance(calibration, Calibration):
        seen = [calibration.specs[name] for name in calibration.gpus if name not in mine]
        rest = seen or rest
    return [spec for spec in rest if _product(spec) not in products] or rest


def _product(gpu: GpuSpec) -> str:
    """A100 of A100-40GB."""
    return gpu.name.partition("-")[0]


def say_deciding(found: Sequence[Deciding], question: str) -> str:
    """What `deciding` found, as a sentence."""
    head, goal = f"What would help most {_wanted(question)}", _goal(question)
    if not found:
        return f"{head}: no further cell of those tried fits."
    several = [one for one in found if one.kind == SEVERAL]
    if several:
        return f"{head}: {_say_several(several[0], goal)}."
    parts = []
    for one in found:
        if _shows(question, one.before, one.after):
            like = "a GPU like " if one.kind == OTHER else ""
            parts.append(f"{like}{one.cell}{_mark(one)}: {told(goal, one.before)} to {told(goal, one.after)}")
        elif one.alone < LEAST_GAIN:
            parts.append(f"no cell {_NOWHERE[one.kind]} tells anything")
        else:
            parts.append(f"no cell {_NOWHERE[one.kind]} narrows it by more than {_percent(one.alone)} %")
    return f"{head}: {'; '.join(parts)}."


def _wanted(question: str) -> str:
    """What is open, and whose interval is told."""
    if "weights" in question:
        return "to tell a floor from the weights' bandwidth (90 % interval of the latter's error)"
    if _goal(question) == SHAPE:
        return "to see whether T_gpu is off (90 % interval of its relative error)"
    return "to narrow the floor (its 90 % interval)"


def _say_several(one: Deciding, goal: str) -> str:
    before, after = told(goal, one.before), told(goal, one.after)
    cells = (one.cell, *one.further)
    if one.gain < LEAST_GAIN or before == after:
        return f"no further cell tells anything; it stays {before} with {len(cells)} more"
    more = f" and {len(cells) - 3} more" if len(cells) > 3 else ""
    return (
        f"no single further cell narrows it by more than {_percent(one.alone)} %; {len(cells)} further cells "
        f"({'; '.join(map(str, cells[:3]))}{more}){_mark(one)} bring it from {before} to {after}"
    )


def _mark(one: Deciding) -> str:
    return " (far outside the calibration)" if one.far else "" if one.inside else " (outside the calibration)"


def _percent(gain: float) -> int:
    """By how much a gain narrows a width, whole percent from 1, rounded up."""
    return max(1, int(np.ceil(-100.0 * np.expm1(-gain))))


# ---- the command ------------------------------------------------------------------------------------------------


def read_measured(
    path: Path,
    shapes: ModelShapes,
    specs: Sequence[GpuSpec],
    *,
    model: str | None = None,
    format: str = "schema",
    stack: str | None = None,
    mode: str | None = None,
) -> list[Cell]:
    """Cells of one model in a file of measurements on the GPUs at hand, repeats averaged; read as `check` does.

    Parameters
    ----------
    model, format, stack, mode
        As in `OwnRows`.

    Raises
    ------
    InputError
        The file cannot be read, or has no cell of that model on these GPUs.
    """
    from rooffloor.validate.measurements.one_model import OwnRows

    rows = OwnRows(shapes, specs[0] if len(specs) == 1 else None, model, None, format, stack, mode, tuple(specs))
    found, own = rows.read(path)
    cells, _ = found.averaged(own.name)
    columns = (cells.gpu, cells.batch, cells.context, np.asarray(cells.step_ms))
    return [Cell(*one) for one in zip(*(column.tolist() for column in columns), strict=True)]
