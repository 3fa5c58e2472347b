"""Cells of a family that are in hand."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from rooffloor.models.specs.gpus import GpuSpec
from rooffloor.models.specs.shapes import ModelShapes
from rooffloor.validate.transfer.plan.outlook import Cell

if TYPE_CHECKING:
    import pandas as pd

    from rooffloor.validate.measurements.load import Measurements

type Measured = "Sequence[Cell] | str | Path | pd.DataFrame | Measurements"


def read_measured(
    measured: Measured,
    shapes: ModelShapes,
    specs: Sequence[GpuSpec],
    *,
    model: str | None = None,
    format: str = "schema",
    stack: str | None = None,
    mode: str | None = None,
) -> Sequence[Cell]:
    """Cells as they are; of anything else those of one model on the GPUs at hand, averaged, read as `check` does.

    Parameters
    ----------
    model, format, stack, mode
        As in `OwnRows`.

    Raises
    ------
    InputError
        The file cannot be read, or has no cell of that model on these GPUs.
    """
    if isinstance(measured, list | tuple):
        return measured
    from rooffloor.validate.measurements.one_model import OwnRows

    rows = OwnRows(shapes, specs[0] if len(specs) == 1 else None, model, None, format, stack, mode, tuple(specs))
    found, own = rows.read(measured)  # type: ignore[arg-type]
    cells, _ = found.averaged(own.name)
    columns = (cells.gpu, cells.batch, cells.context, np.asarray(cells.step_ms))
    return [Cell(*one) for one in zip(*(column.tolist() for column in columns), strict=True)]
