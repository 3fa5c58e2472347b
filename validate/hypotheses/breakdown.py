"""Where the time of a step goes: weights, KV cache, other kernels, floor, leftover, with intervals."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rooffloor.validate.estimates.cell_draws import Draws

type Array = NDArray[np.float64]

PARTS = ("weights", "kv", "other", "floor", "leftover")


def breakdown(draws: Draws) -> list[dict[str, Any]]:
    """One row per (model, GPU) and group of cells; models of other classes than the anchor's come first.

    Leftover is the step minus T_gpu minus the pair's own floor, mean over the cells of the group.
    """
    pairs = list(draws.pairs())
    own = draws.classes[draws.anchor]
    pairs.sort(key=lambda p: (draws.classes[p[0]] == own, p[0] == draws.anchor))
    return [_row(draws, m, g, name, cells) for m, g, mask in pairs for name, cells in groups(draws, mask)]


def groups(draws: Draws, mask: NDArray[np.bool_]) -> list[tuple[str, NDArray[np.int64]]]:
    """Named groups of the cells of a pair: all, and the two corners that every grid has."""
    cells = np.flatnonzero(mask)
    order = np.lexsort((draws.context[0, cells], draws.batch[0, cells]))
    first, last = cells[order[:1]], cells[order[-1:]]
    named = [("all cells", cells)]
    if len(cells) > 1:
        named += [(cell_name(draws, first[0]), first), (cell_name(draws, last[0]), last)]
    return named


def cell_name(draws: Draws, cell: int) -> str:
    """Batch and context of a cell in words."""
    return f"B = {draws.batch[0, cell]:g}, L = {draws.context[0, cell]:g}"


def _row(draws: Draws, model: str, gpu: str, group: str, cells: NDArray[np.int64]) -> dict[str, Any]:
    parts = {name: draws.parts_ms[name][:, cells].mean(-1) for name in ("weights", "kv", "other")}
    parts["floor"] = draws.floor_ms[:, cells].mean(-1)
    step = np.broadcast_to(draws.step_ms[:, cells].mean(-1), parts["floor"].shape)
    parts["leftover"] = step - draws.mean_ms[:, cells].mean(-1)
    return {
        "model": model,
        "gpu": gpu,
        "group": group,
        "cells": len(cells),
        "step": draws.estimate(step, f"step, {draws.label}, mean over the group", "ms").data,
        "parts": {n: draws.estimate(v, f"{n}, mean over the group", "ms").data for n, v in parts.items()},
    }
