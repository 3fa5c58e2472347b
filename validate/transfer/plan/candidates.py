"""Which cells could be measured next, and which are in hand."""

from collections.abc import Sequence

import numpy as np

from rooffloor.models.roof.capacity import fits
from rooffloor.models.specs.gpus import GpuSpec
from rooffloor.models.specs.shapes import ModelShapes
from rooffloor.validate.transfer.plan.outlook import Cell

BATCHES, CONTEXTS = (1, 2, 4, 8, 16), (512, 1024, 2048, 4096, 8192)
"""Default axes of the cells that could be measured."""
MOST_CANDIDATES = 400
"""Cells that are tried."""


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


def thinned(cells: list[Cell]) -> list[Cell]:
    """Up to `MOST_CANDIDATES` cells: every second value of the longer axis, first and last kept, until they are few."""
    while len(cells) > MOST_CANDIDATES:
        axes = {axis: sorted({getattr(cell, axis) for cell in cells}) for axis in ("batch", "context")}
        longer = max(axes, key=lambda axis: len(axes[axis]))
        if len(axes[longer]) <= 2:
            break
        kept = {*axes[longer][::2], axes[longer][-1]}
        cells = [cell for cell in cells if getattr(cell, longer) in kept]
    return cells
