"""Where the time of a step goes: weights, KV cache, other kernels, floor, leftover, with intervals."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rooffloor.validate.estimates.cell_draws import Draws
from rooffloor.validate.estimates.grid_axes import Columns, GridAxes, Point

type Array = NDArray[np.float64]

PARTS = ("weights", "kv", "other", "floor", "leftover")


def breakdown(draws: Draws) -> list[dict[str, Any]]:
    """One row per (model, GPU) and group of cells; models of other classes than the anchor's come first.

    Leftover is the step minus T_gpu minus the pair's own floor, mean over the cells of the group.
    """
    pairs, axes = list(draws.pairs()), GridAxes.of(draws)
    own = draws.classes[draws.anchor]
    pairs.sort(key=lambda p: (draws.classes[p[0]] == own, p[0] == draws.anchor))
    return [_row(draws, axes, m, g, *group) for m, g, mask in pairs for group in groups(axes, mask)]


def groups(axes: GridAxes, mask: NDArray[np.bool_]) -> list[tuple[str, Columns]]:
    """Named groups of the cells of a pair, their columns in each grid, (grid, cell): all, and the two outermost cells.

    These are the first and the last, by batch and then context, of the points that every grid holds.
    """
    cells, points = np.flatnonzero(mask), axes.points(mask)
    named = [("all cells", np.broadcast_to(cells, (len(axes.batch), len(cells))))]
    if len(points) > 1:
        named += [(point_name(point), points[point][:, None]) for point in (min(points), max(points))]
    return named


def point_name(point: Point) -> str:
    """Batch and context of a cell in words."""
    return f"B = {point[0]:g}, L = {point[1]:g}"


def _row(draws: Draws, axes: GridAxes, model: str, gpu: str, group: str, columns: Columns) -> dict[str, Any]:
    def mean(values: Array) -> Array:
        return axes.take(values, columns).mean(-1)

    parts = {name: mean(draws.parts_ms[name]) for name in ("weights", "kv", "other")}
    parts["floor"] = mean(draws.floor_ms)
    step = mean(draws.step_ms)
    parts["leftover"] = step - mean(draws.mean_ms)
    return {
        "model": model,
        "gpu": gpu,
        "group": group,
        "cells": columns.shape[-1],
        "step": draws.estimate(step, f"step, {draws.label}, mean over the group", "ms").data,
        "parts": {n: draws.estimate(v, f"{n}, mean over the group", "ms").data for n, v in parts.items()},
    }
