"""All grids that print given MAPEs, as one mixed-integer linear programme.

With w = 1/y and r = T/y the relative error of a cell under an offset d is r + d w - 1, linear in (r, w).
Given its sign under each offset, every published MAPE is linear too, and cells of one sign pattern can be
replaced by their sums: all grids of n cells are one small programme, however the cells look. Rounding is an
interval throughout. An offset may take any value within its rounding in every sign pattern, so that the
bounds are never too narrow.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import Bounds, LinearConstraint, milp

from rooffloor.models.roof.roofline import bytes_floor_ms
from rooffloor.validate.published.printed_figures import ANCHOR, CELLS, Interval, PublishedFigures

type Floats = NDArray[np.float64]

SOLVER_FAILED = 4
"""Status of scipy.optimize.milp: neither solved, nor infeasible, nor unbounded."""
RATIO = 3.0
"""Largest over smallest step of one grid. The published rises are at most 14.8 ms (8B on the A100), on steps
that cannot be below 9.6 ms (weights at peak bandwidth): 2.6-fold, if no batch adds more than the longest
context."""


@dataclass(frozen=True)
class Error:
    """A published MAPE (fraction) of T + offset (ms) against the step, each an interval."""

    name: str
    offset_ms: Interval
    mape: Interval


def errors_of(figures: PublishedFigures, model: str, gpu: str) -> tuple[Error, ...]:
    """The MAPEs that the study prints of one grid, by rising offset."""
    errors = []
    if figures.has(model, gpu, "raw_mape"):
        errors.append(Error("raw", (0.0, 0.0), figures.mape(model, gpu, "raw_mape")))
    if figures.has(model, gpu, "residual_mape"):
        offset = figures.interval(ANCHOR, gpu, "anchor_offset")
        errors.append(Error("residual", offset, figures.mape(model, gpu, "residual_mape")))
    if figures.has(model, gpu, "self_floor_mape"):
        offset = figures.interval(model, gpu, "self_floor")
        errors.append(Error("self-floor", offset, figures.mape(model, gpu, "self_floor_mape")))
    return tuple(sorted(errors, key=lambda e: e.offset_ms))


class GridProgramme:
    """All grids of `cells` cells with steps in `steps_ms` and T >= 0 that print the given MAPEs.

    A cell over-predicted under one offset is so under every larger one: the sign patterns are J + 1 for J
    errors. Variables per pattern: number of cells (integer), sum of r, sum of w, sum of d w for each offset.

    Parameters
    ----------
    errors : tuple of Error
        By rising offset; the intervals of the offsets must not overlap.
    cells : int
    steps_ms : (low, high)
        Range of the steps, ms; high may be inf.
    """

    def __init__(self, errors: tuple[Error, ...], cells: int = CELLS, steps_ms: Interval = (0.1, np.inf)) -> None:
        offsets = [e.offset_ms for e in errors]
        if any(a[1] > b[0] for a, b in pairwise(offsets)):
            raise ValueError("the offsets' intervals overlap: the order of the errors is not known")
        if cells < 1 or not 0 < steps_ms[0] <= steps_ms[1]:
            raise ValueError(f"expected cells >= 1 and 0 < low <= high steps, got {cells} and {steps_ms}")
        self.errors, self.cells, self.steps_ms = errors, cells, steps_ms
        patterns, width = len(errors) + 1, 3 + len(errors)
        self._shape = patterns, width
        self._sign = np.array([[1 if j >= c else -1 for j in range(len(errors))] for c in range(patterns)])
        rows: list[Floats] = []
        low: list[float] = []
        high: list[float] = []

        def constrain(coefficients: Floats, lo: float, hi: float) -> None:
            rows.append(coefficients.ravel())
            low.append(lo)
            high.append(hi)

        constrain(self._column(0), cells, cells)
        for j, error in enumerate(errors):
            constrain(self._sign[:, j, None] * self._error(j), cells * error.mape[0], cells * error.mape[1])
        for c in range(patterns):
            at = np.zeros(self._shape)
            for coefficient, lo, hi in ((1 / steps_ms[0], 0.0, np.inf), (1 / steps_ms[1], -np.inf, 0.0)):
                at[c] = 0
                at[c, 0], at[c, 2] = coefficient, -1
                constrain(at.copy(), lo, hi)
            for j, error in enumerate(errors):
                constrain(self._sign[c, j] * self._error(j, [c]), 0.0, np.inf)
                largest = np.zeros(self._shape)  # no cell's error exceeds n MAPE: an empty pattern holds nothing
                largest[c, 0] = cells * error.mape[1]
                constrain(largest - self._error(j, [c]), 0.0, np.inf)
                for bound, lo, hi in zip(error.offset_ms, (0.0, -np.inf), (np.inf, 0.0), strict=True):
                    at[c] = 0
                    at[c, 3 + j], at[c, 2] = 1, -bound
                    constrain(at.copy(), lo, hi)
        self._constraints = LinearConstraint(np.array(rows), np.array(low), np.array(high))
        least = np.where(np.arange(width) >= 3, -np.inf, 0.0) + np.zeros(self._shape)
        self._integrality, self._bounds = self._column(0).ravel(), Bounds(least.ravel(), np.inf)

    def _column(self, k: int, chosen: Floats | float = 1.0) -> Floats:
        at = np.zeros(self._shape)
        at[:, k] = chosen
        return at

    def _error(self, j: int, patterns: list[int] | slice = slice(None)) -> Floats:
        at = np.zeros(self._shape)
        at[patterns, 0], at[patterns, 1], at[patterns, 3 + j] = -1, 1, 1
        return at

    def _index(self, name: str) -> int:
        return [e.name for e in self.errors].index(name)

    def inverse(self) -> Floats:
        """Coefficients of sum(1/y)."""
        return self._column(2)

    def share(self) -> Floats:
        """Coefficients of sum(T/y)."""
        return self._column(1)

    def signed(self, name: str) -> Floats:
        """Coefficients of the sum of the signed error called `name`."""
        return self._error(self._index(name))

    def over(self, name: str) -> Floats:
        """Coefficients of the number of cells over-predicted under the error called `name`."""
        return self._column(0, (self._sign[:, self._index(name)] > 0).astype(float))

    def over_sum(self, name: str) -> Floats:
        """Coefficients of the sum of the positive part of the error called `name`."""
        j = self._index(name)
        return self._error(j) * (self._sign[:, j, None] > 0)

    def minimum(self, objective: Floats) -> tuple[float, Floats]:
        """Least value of a linear objective and the solution; value inf where no grid prints the figures."""
        given: Any = {"constraints": self._constraints, "integrality": self._integrality, "bounds": self._bounds}
        found = milp(objective.ravel(), **given)
        if found.status == SOLVER_FAILED:
            found = milp(objective.ravel(), **given, options={"presolve": False})
        if found.status == SOLVER_FAILED:
            raise RuntimeError(f"the bounds of a grid could not be solved: {found.message}")
        if found.x is None:
            return (-np.inf if found.status == 3 else np.inf), np.full(objective.size, np.nan)
        return float(found.fun), found.x

    @property
    def feasible(self) -> bool:
        """Whether any grid prints the figures."""
        return bool(np.isfinite(self.minimum(np.zeros(self._shape))[0]))

    def bounds(self, objective: Floats) -> Interval:
        """Least and largest value over all grids (low > high where there is none)."""
        return self.minimum(objective)[0] + 0.0, -self.minimum(-objective)[0] + 0.0

    def mean(self, objective: Floats) -> Interval:
        """`bounds` of the mean over cells."""
        low, high = self.bounds(objective)
        return low / self.cells, high / self.cells

    def ratio(self, over: Floats, under: Floats) -> Interval:
        """Bounds of one sum over another that is positive (Dinkelbach's iteration)."""
        ends = []
        for sign in (1.0, -1.0):
            value = 0.0
            for _ in range(20):
                gap, x = self.minimum(sign * (over - value * under))
                if not np.isfinite(gap):
                    value = sign * gap
                    break
                if abs(gap) <= 1e-9:
                    break
                base = float(under.ravel() @ x)
                if base <= 1e-12:
                    value = sign * np.inf
                    break
                new = float(over.ravel() @ x) / base
                if abs(new - value) <= 1e-9 * max(1.0, abs(new)):
                    break
                value = new
            ends.append(value)
        return ends[0], ends[1]


def grid_programme(
    figures: PublishedFigures, model: str, gpu: str, cells: int = CELLS, ratio: float = RATIO
) -> GridProgramme:
    """The programme of one (model, SKU) row, with its range of steps.

    From below: the published small-batch step, else the weights at peak bandwidth. The harmonic mean of the
    steps is bounded by the MAPEs; no step lies further from it than `ratio`.
    """
    errors = errors_of(figures, model, gpu)
    smallest, ceiling = float(bytes_floor_ms(model, gpu, 1, 0)), np.inf
    if figures.has(model, gpu, "small_batch_step"):
        smallest, step = figures.interval(model, gpu, "small_batch_step")
        ceiling = step * ratio
    if len(errors) == 1 and figures.has(model, gpu, "step_typical"):
        harmonic = figures.interval(model, gpu, "step_typical")
    else:
        wide = GridProgramme(errors, cells, (smallest, np.inf))
        inverse = wide.mean(wide.inverse())
        if not inverse[0] <= inverse[1]:
            return wide
        harmonic = 1 / inverse[1], 1 / max(inverse[0], 1e-300)
    range_ms = max(smallest, harmonic[0] / ratio), min(harmonic[1] * ratio, ceiling)
    return GridProgramme(errors, cells, range_ms)
