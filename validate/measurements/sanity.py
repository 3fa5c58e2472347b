"""What can be said of measured steps from physics and common sense alone: units, minima, odd growth."""

from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pandas as pd

from rooffloor.validate.measurements.csvfile import Table
from rooffloor.validate.measurements.names import Names

SECONDS_BELOW_FLOOR, MICROSECONDS_ABOVE_FLOOR = 50.0, 1000.0
"""A step that many times below (above) the physical minimum is taken to be in seconds (microseconds)."""
JUMP_RATIO = 1.5
"""Batch or context must grow at least this much between two cells for their steps to be compared."""
FALL = 0.05
"""A larger batch or context that is faster by more than this fraction is implausible."""


def per_pair(
    frame: pd.DataFrame, names: Names, function: Callable[..., Any], tokens: str, chunk: int = 65_536
) -> pd.Series:
    """function(shapes, gpu, batch, frame[tokens]) [row], in chunks: it may hold an array per kernel."""
    values = np.full(len(frame), np.nan)
    for pair, at in frame.groupby(["model", "gpu"]).indices.items():
        model, gpu = cast(tuple[str, str], pair)
        for start in range(0, len(at), chunk):
            here = at[start : start + chunk]
            batch, length = (frame[c].to_numpy()[here] for c in ("batch", tokens))
            values[here] = function(names.shapes(model), names.gpu(gpu), batch, length)
    return pd.Series(values, index=frame.index)


def refuse_other_units(frame: pd.DataFrame, floor_ms: pd.Series, table: Table) -> None:
    """InputError where a step is far from the physical minimum, or most steps are below it."""
    below = frame["step_ms"] < floor_ms
    far_below = frame["step_ms"] * SECONDS_BELOW_FLOOR < floor_ms
    far_above = frame["step_ms"] > floor_ms * MICROSECONDS_ABOVE_FLOOR
    if (far := far_below | far_above).any():
        row = frame.index[far][0]
        guess = "microseconds" if far_above[row] else "seconds"
    elif below.sum() * 2 > len(frame):
        row, guess = frame.index[below][0], f"seconds: {below.sum()} of {len(frame)} rows are below theirs"
    else:
        return
    cell = frame.loc[row]
    bound = f"at most {MICROSECONDS_ABOVE_FLOOR:g} times" if far_above[row] else "at least"
    expected = (
        f"milliseconds, {bound} the physical minimum of {floor_ms[row]:.3g} ms for {cell['model']} on "
        f"{cell['gpu']} at batch {cell['batch']:g}, context {cell['context']:g} (is it in {guess}?)"
    )
    table.fail(row, "step_ms", expected)


def flags(frame: pd.DataFrame) -> pd.DataFrame:
    """Rows whose step jumps or falls against the next smaller batch or context of the same grid.

    With r the ratio of the batches (or contexts), T(rB) <= r T(B) as long as T is a constant plus something
    proportional; faster growth means that something else changed, such as requests that queued.
    """
    grid = ["model", "gpu", *(c for c in ("imputation",) if c in frame)]
    cell = [*grid, "batch", "context"]
    median = frame.groupby(cell, dropna=False)["step_ms"].median().reset_index()
    found = []
    for axis, other in (("batch", "context"), ("context", "batch")):
        smaller = median.rename(columns={axis: "smaller", "step_ms": "smaller_ms"}).sort_values("smaller")
        pairs = pd.merge_asof(
            median.assign(target=median[axis] / JUMP_RATIO).sort_values("target"),
            smaller,
            left_on="target",
            right_on="smaller",
            by=[*grid, other],
        ).dropna(subset="smaller")
        grown = pairs["step_ms"] / pairs["smaller_ms"]
        with np.errstate(divide="ignore"):
            linear = pairs[axis] / pairs["smaller"]
        for odd, what in (
            (grown > linear, "more than linear growth"),
            (grown < 1 - FALL, "falls by over 5 %"),
        ):
            rows = pairs[odd]
            neighbour = [
                f"{axis} {value:g}: {ms:.3g} ms" for value, ms in zip(rows["smaller"], rows["smaller_ms"], strict=True)
            ]
            found.append(rows[cell].assign(reason=f"{what} with {axis}", neighbour=neighbour))
    marks = pd.concat(found)
    at = frame[cell].assign(**{"": np.arange(len(frame))}).merge(marks, on=cell)  # no column of a file has no name
    flagged = frame.iloc[at[""]].assign(reason=at["reason"].to_numpy(), neighbour=at["neighbour"].to_numpy())
    if "flag" in frame:
        named = frame[frame["flag"] != ""]
        flagged = pd.concat([flagged, named.assign(reason="flagged in the file", neighbour=named["flag"])])
    return flagged.sort_index(kind="stable").rename_axis(None)
