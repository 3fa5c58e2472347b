"""Where each draw's grid has its cells: imputed grids may differ in their axes, so that a column is no one cell.

Read cells of `Draws` by their place (batch, context) here, never by the axes of the first draw.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rooffloor.validate.estimates.cell_draws import Draws

type Array = NDArray[np.float64]
type Columns = NDArray[np.int64]
type Point = tuple[float, float]

ABSENT = -1
"""Column of a point in a grid that lacks it."""


@dataclass(frozen=True, eq=False)
class GridAxes:
    """The different axes that the draws have.

    Attributes
    ----------
    member : int array, shape (draw,)
        Which of the grids a draw has.
    batch, context : float arrays, shape (grid, cell)
    """

    member: Columns
    batch: Array
    context: Array

    @classmethod
    def of(cls, draws: Draws) -> "GridAxes":
        """The axes of these draws."""
        both = np.concatenate([draws.batch, draws.context], axis=1)
        axes, member = np.unique(both, axis=0, return_inverse=True)
        batch, context = np.split(axes, 2, axis=1)
        return cls(np.broadcast_to(member.ravel(), len(draws.weight)), batch, context)

    def points(self, mask: NDArray[np.bool_], *, everywhere: bool = True) -> dict[Point, Columns]:
        """The points (batch, context) of some cells, ascending, each with its column in every grid, (grid,).

        Parameters
        ----------
        mask : bool array, shape (cell,)
            Cells of one pair; of cells that repeat a point, the first counts.
        everywhere : bool
            Only points that every grid holds; else all, with the column `ABSENT` where a grid lacks one.
        """
        found: dict[Point, Columns] = {}
        cells = np.flatnonzero(mask)
        for grid, (batch, context) in enumerate(zip(self.batch[:, cells], self.context[:, cells], strict=True)):
            for cell, point in zip(cells.tolist(), zip(batch.tolist(), context.tolist(), strict=True), strict=True):
                columns = found.setdefault(point, np.full(len(self.batch), ABSENT))
                if columns[grid] == ABSENT:
                    columns[grid] = cell
        return {point: found[point] for point in sorted(found) if not everywhere or (found[point] != ABSENT).all()}

    def take(self, values: Array, columns: Columns) -> Array:
        """Values (draw or 1, cell) at one column of each grid, (grid,) -> (draw,); or at several, (grid, k)."""
        own = columns[self.member]
        whole = np.broadcast_to(values, (len(self.member), values.shape[1]))
        rows = np.arange(len(own)) if own.ndim == 1 else np.arange(len(own))[:, None]
        return np.asarray(whole[rows, own])

    def holding(self, columns: Columns) -> NDArray[np.bool_]:
        """Draws whose grid holds a point, (draw,), from its column in every grid."""
        return np.asarray((columns != ABSENT)[self.member])


def without(draws: Draws, point: Point) -> Draws:
    """The draws whose grid holds a point, without the cells there; all draws where every grid has it.

    Raises
    ------
    ValueError
        No draw's grid holds the point, or grids hold it in different numbers of cells of a pair.
    """
    axes = GridAxes.of(draws)
    gone = (axes.batch == point[0]) & (axes.context == point[1])  # [grid, cell]
    holds = gone.any(1)
    if not holds.any():
        raise ValueError(f"no grid holds B = {point[0]:g}, L = {point[1]:g}")
    first = ~gone[holds][0]
    if holds.all() and (gone == ~first).all():
        return draws.where(first)
    columns = np.zeros((len(gone), int(first.sum())), dtype=np.int64)  # [grid, cell left]
    for _, _, mask in draws.pairs():
        place = np.flatnonzero(mask[first])
        for grid in np.flatnonzero(holds).tolist():
            own = np.flatnonzero(mask & ~gone[grid])
            if len(own) != len(place):
                raise ValueError("grids hold the point in different numbers of cells of a pair")
            columns[grid, place] = own
    keep = holds[axes.member]
    return draws.rows(keep).gathered(first, columns[axes.member[keep]])
