"""Which cells to measure next: for a floor, for the shape of T_gpu, or for how the floor joins.

What is asked is bound (`MOST_CELLS`, `candidates.MOST_CANDIDATES`), and so are the exchanges (`choice.EXCHANGES`): a
plan takes seconds.

The noise is relative to the step and independent between cells. It holds what the roof leaves over, which a second
measurement of the same cell repeats: therefore distinct cells, unless repeats are asked for.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rooffloor.models.calibration.draws import Calibration
from rooffloor.models.specs.gpus import GpuSpec
from rooffloor.models.specs.shapes import ModelShapes
from rooffloor.validate.common.errors import InputError
from rooffloor.validate.common.files import written
from rooffloor.validate.fitting import saved
from rooffloor.validate.measurements.csvfile import table_text
from rooffloor.validate.measurements.given_specs import load_gpu, load_model
from rooffloor.validate.transfer.domain import DEFAULT_STUDY
from rooffloor.validate.transfer.explanations import WHOLE
from rooffloor.validate.transfer.plan import words
from rooffloor.validate.transfer.plan.candidates import BATCHES, CONTEXTS, candidates, thinned
from rooffloor.validate.transfer.plan.choice import Aim, aim, choose, grown, random_sets
from rooffloor.validate.transfer.plan.joining import Structures
from rooffloor.validate.transfer.plan.measured import Measured, read_measured
from rooffloor.validate.transfer.plan.outlook import (
    FLOOR,
    HALF,
    OVERLAP,
    SHAPE,
    Calibrated,
    Prospect,
    floor_given,
    floor_sds,
    prospect,
)
from rooffloor.validate.transfer.plan.shape import belief

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

type Gpu = str | Path | GpuSpec

MOST_CELLS = {FLOOR: 60, SHAPE: 30, OVERLAP: 12}
"""Cells of a plan; after so many one measures, and plans again."""
LARGEST_GRID = 20_000
"""Cells of the axes from which candidates are thinned."""
RANDOM_SETS, RANDOM_SIMULATED = 100, 4
"""Random sets of cells beside a plan; so many where each is simulated."""
ESTIMANDS = {
    FLOOR: "expected half of the 90 % interval of the family's floor given the constants, widest of the GPUs",
    SHAPE: "expected half of the 90 % interval of the relative error of T_gpu as a whole beside free floors",
    OVERLAP: "probability that the Bayes factor of added and overlapped floors is on the true one's side",
}


@dataclass(frozen=True)
class PlannedCell:
    """One cell of a plan, and what is expected after it and those before it.

    Attributes
    ----------
    order : int
        From 1.
    model, gpu : str
    batch, context : float
    expected_step_ms : float
    inside_domain : bool
        Whether the calibration has seen such batches and contexts on that GPU.
    expected : float
        Half the 90 % interval: of the widest floor given the constants, ms, or of the relative error; or the
        probability of telling the structure.
    expected_on_gpu : float
        floor: half the 90 % interval on this cell's GPU, ms; else as `expected`.
    expected_with_constants : float
        floor: that of the widest floor with the uncertainty of the constants, ms; else as `expected`.
    log_bayes_factor : float or None
        overlap: expected log Bayes factor of the true structure against the other.
    random_cells : float
        What as many random cells are expected to give, mean over random sets.
    """

    order: int
    model: str
    gpu: str
    batch: float
    context: float
    expected_step_ms: float
    inside_domain: bool
    expected: float
    expected_on_gpu: float
    expected_with_constants: float
    log_bayes_factor: float | None
    random_cells: float


_COLUMNS = [field.name for field in fields(PlannedCell)]


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
        What `PlannedCell.expected` and `expected_with_constants` are before any of them.
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
    width: float | None
    needed: int | None
    sentences: tuple[str, ...]
    data: dict[str, Any]

    def __repr__(self) -> str:
        cells = ", ".join(f"({c.gpu}, {c.batch:g}, {c.context:g})" for c in self.cells)
        last = self.cells[-1].expected if self.cells else self.before
        return f"Plan({self.model}, {self.goal}: {cells} -> {words.told(self.goal, last)})"

    @property
    def text(self) -> str:
        """The table and the sentences."""
        return words.text(self)

    def to_frame(self) -> "pd.DataFrame":
        """One row per cell, in order."""
        import pandas as pd

        return pd.DataFrame(self.data["cells"], columns=_COLUMNS)

    def to_csv(self, path: str | Path | None = None) -> str:
        """The cells as CSV text, written to `path` where one is given."""
        return written(table_text(_COLUMNS, (row.values() for row in self.data["cells"])), path)

    def plot(self, ax: "Axes | None" = None) -> "Axes":
        """What is expected against the number of cells, beside random cells."""
        from rooffloor.validate.presentation.figures.plan import plan

        return plan(self, ax=ax)


def plan(
    family: str | Path | ModelShapes,
    gpus: Gpu | Sequence[Gpu],
    budget: int | None = None,
    *,
    calibration: Calibrated | str | Path = DEFAULT_STUDY,
    goal: str = FLOOR,
    width: float | None = None,
    batches: Sequence[int] = BATCHES,
    contexts: Sequence[int] = CONTEXTS,
    measured: Measured = (),
    noise: float | None = None,
    repeats: bool = False,
    seed: int = 1,
) -> Plan:
    """Which cells of a family to measure next.

    Parameters
    ----------
    family : ModelShapes, catalog name, config.json, folder or TOML file
    gpus : GpuSpec, name or TOML file, or several
    budget : int, optional
        How many cells, up to `MOST_CELLS`; without it those that `width` needs.
    calibration : Calibration, what `saved.load` takes, or constants without draws (Efficiency, or one by GPU)
    goal : "floor", "shape" or "overlap"
    width : float, optional
        Wanted half of the 90 % interval: of every floor, ms, or of the relative error (shape).
    batches, contexts : sequences of int
        Axes of the candidates; of more than `candidates.MOST_CANDIDATES` cells every few are tried.
    measured : Cells of a Check, sequence of Cell, path, DataFrame or Measurements
        What is in hand, with steps; cells on other GPUs are left out.
    noise : float, optional
        Relative sd of a step; default: the calibration's, or 5 % without draws.
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

    Examples
    --------
    >>> found = plan("Qwen2.5-7B", "H100", budget=2)
    >>> [(cell.batch, cell.context) for cell in found.cells]
    [(1.0, 512.0), (1.0, 1024.0)]
    """
    shapes = load_model(family)
    specs = [load_gpu(gpu) for gpu in ([gpus] if isinstance(gpus, str | Path | GpuSpec) else gpus)]
    known = saved.load(calibration) if isinstance(calibration, str | Path) else calibration
    _check(known, goal, budget, width, noise, specs)
    asked = len(batches) * len(contexts) * len(specs)
    if asked > LARGEST_GRID:
        raise InputError(
            f"batches x contexts x GPUs: expected at most {LARGEST_GRID} cells to choose from, got {asked}"
        )
    rng = np.random.default_rng(seed)
    names = tuple(spec.name for spec in specs)
    own = [cell for cell in read_measured(measured, shapes, specs) if cell.gpu in names]
    found, unfit, long = candidates(shapes, specs, batches, contexts, () if repeats else own)
    bare = [name for name in names if name not in {cell.gpu for cell in (*found, *own)}]
    if bare:
        raise InputError(f"no cell fits {bare[0]}: {shapes.name} has none there among these batches and contexts")
    if not found or (budget is not None and budget > len(found) and not repeats):
        kind = "one that fits and is not measured yet" if own else "one that fits"
        raise InputError(
            f"a budget of {words.cells(budget or 1)} is more than the {len(found)} candidates: a cell counts once, and "
            f"is {kind}; give more --batches or --contexts"
        )
    every, found = len(found), thinned(found)
    p = prospect(shapes, specs, found, own, known, rng, noise=noise)
    most = min(MOST_CELLS[goal], p.candidates)
    wanted = aim(p, goal, rng, most if width is not None else budget or 1)
    before, with_constants = _before(p, goal)
    needed, least = _needed(wanted, p.candidates, most, before, width)
    if budget is None:
        budget = min(3, p.candidates) if needed is None else needed
    starts = () if own else wanted.starts
    chosen = []
    if budget:
        chosen = choose(wanted.loss, p.candidates, budget, repeats=repeats, beside=wanted.beside, starts=starts)
    expected = _expected(p, goal, wanted, chosen, seed)
    random = [
        float(wanted.expected(random_sets(rng, p.candidates, min(n, p.candidates), _random(goal, n))).mean())
        for n in range(1, budget + 1)
    ]
    steps = p.step_ms.mean(0)
    cells = tuple(
        PlannedCell(
            n,
            shapes.name,
            p.cells[i].gpu,
            p.cells[i].batch,
            p.cells[i].context,
            float(steps[i]),
            bool(p.inside[i]),
            *some,
            value,
        )
        for n, (i, some, value) in enumerate(zip(chosen, expected, random, strict=True), 1)
    )
    errors = {
        name: HALF * float(belief(p, name).sds(np.array([chosen], dtype=np.int64))[0])
        for name in (p.columns if goal == SHAPE else ())
    }
    sentences = (
        *words.answer(goal, width, needed, least, most, p.candidates),
        words.assumed(p, goal, known, noise),
        *words.limits(p, goal, cells, chosen, errors, with_constants),
        *words.outside(cells, shapes, specs, known),
        *words.left_out(unfit, long),
        *([f"Of {every} cells that could be measured {len(found)} were tried, evenly spread."] * (every > len(found))),
        words.REPEATS if repeats else words.DISTINCT,
    )
    data = {
        "model": shapes.name,
        "gpus": list(names),
        "goal": goal,
        "unit": {FLOOR: "ms", SHAPE: "1", OVERLAP: "probability"}[goal],
        "estimand": ESTIMANDS[goal],
        "before": before,
        "before_with_constants": with_constants,
        "cells": [asdict(cell) for cell in cells],
        "width": width,
        "needed": needed,
        "errors": errors,
        "candidates": p.candidates,
        "possible": every,
        "measured": len(own),
        "unfit": [[cell.gpu, cell.batch, cell.context] for cell in unfit],
        "beyond_positions": [[cell.gpu, cell.batch, cell.context] for cell in long],
        "noise": {gpu: float(np.median(p.noise[:, g])) for g, gpu in enumerate(names)},
        "calibration": words.source(known),
        "repeats": repeats,
        "seed": seed,
        "sentences": list(sentences),
    }
    return Plan(shapes.name, names, goal, cells, before, with_constants, width, needed, sentences, data)


def _check(
    calibration: Calibrated,
    goal: str,
    budget: int | None,
    width: float | None,
    noise: float | None,
    specs: Sequence[GpuSpec],
) -> None:
    """InputError where a request makes no sense."""
    if goal not in words.GOALS:
        raise InputError(f"goal {goal!r} is unknown: expected one of {', '.join(words.GOALS)}")
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


def _random(goal: str, size: int) -> int:
    """Random sets of so many cells: fewer of large ones, which differ less."""
    if goal == OVERLAP:
        return max(2, min(RANDOM_SIMULATED, 20 // size))
    return RANDOM_SETS if goal == FLOOR else min(RANDOM_SETS, max(10, 300 // size))


def _before(p: Prospect, goal: str) -> tuple[float, float]:
    """What is promised without a further cell; floor: also with the uncertainty of the constants."""
    none = np.zeros((1, 0), dtype=np.int64)
    if goal == FLOOR:
        return HALF * float(floor_given(p, none).max()), HALF * float(floor_sds(p, none)[1].max())
    if goal == SHAPE:
        found = HALF * float(belief(p, WHOLE).sds(none)[0])
    elif len(p.measured):
        found = Structures.of(p).told(none[0], np.random.default_rng(0))[0]
    else:
        found = 0.5
    return found, found


def _needed(
    wanted: Aim, candidates: int, most: int, before: float, width: float | None
) -> tuple[int | None, float | None]:
    """Cells that a width takes when added one by one, and the least width that up to `most` of them reach."""
    if width is None:
        return None, None
    if before <= width:
        return 0, before
    chosen = grown(wanted.loss, candidates, most, beside=wanted.beside)
    least = before
    for n in range(1, most + 1):
        least = min(least, float(wanted.expected(np.array([chosen[:n]]))[0]))
        if least <= width:
            return n, least
    return None, least


def _expected(
    p: Prospect, goal: str, wanted: Aim, chosen: Sequence[int], seed: int
) -> list[tuple[float, float, float, float | None]]:
    """What is expected after each of the chosen cells: in all, on its GPU, with the constants; log Bayes factor."""
    simulated = Structures.of(p).simulated(np.random.default_rng(seed)) if goal == OVERLAP else None
    found: list[tuple[float, float, float, float | None]] = []
    for n, i in enumerate(chosen, 1):
        some = np.array(chosen[:n], dtype=np.int64)
        if simulated is not None:
            told, factor = simulated.told(some, np.random.default_rng([seed, 1]))
            found.append((told, told, told, factor))
        elif goal == FLOOR:
            given, total = (HALF * sds[0] for sds in floor_sds(p, some[None]))
            found.append((float(given.max()), float(given[p.gpu[i]]), float(total.max()), None))
        else:
            told = float(wanted.expected(some[None])[0])
            found.append((told, told, told, None))
    return found
