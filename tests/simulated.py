"""Simulated `Draws` of known truth: y = scale * T_gpu + floor (1 + noise), judged by someone who knows neither."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from rooffloor.models.roof.kernels import stack_work
from rooffloor.models.roof.roofline import Efficiency, work_ms
from rooffloor.models.specs import gpus as catalog
from rooffloor.models.specs import shapes
from rooffloor.models.specs.cells import Cells
from rooffloor.models.specs.classes import default_class
from rooffloor.validate.estimates.cell_draws import MEASURED, Draws
from rooffloor.validate.fitting.parts import parts_of

ANCHOR, SIBLING, SMALL, MOE = "Llama-3.1-8B", "Qwen2.5-7B", "Llama-3.2-1B", "Qwen1.5-MoE-A2.7B"
GPUS = ("H100", "H200", "A100-40GB")
GRID = tuple((b, c) for b in (1, 2, 4, 8, 16) for c in (512, 2048, 8192))
EFFICIENCY = Efficiency(eta_bw=0.8, eta_fa=0.7, eta_tc=0.7, l_half=100.0)
ANCHOR_FLOOR_MS = 4.0


def simulate(
    label: str = MEASURED,
    *,
    models: Sequence[str] = (ANCHOR, SIBLING),
    gpus: Sequence[str] = GPUS,
    grid: Sequence[tuple[float, float]] = GRID,
    floors: Mapping[str, float] | None = None,
    scales: Mapping[str, float] | None = None,
    noise: float = 0.01,
    draws: int = 200,
    units: int = 20,
    anchor_on: Sequence[str] | None = None,
    seed: int = 1,
) -> Draws:
    """Draws of a posterior that knows T_gpu to 0.2 % and fits one floor to each (model, GPU).

    Parameters
    ----------
    floors : mapping of model to ms
        True floor, by default the anchor's, 4 ms.
    scales : mapping of model to float
        True factor on T_gpu, 1 by default, which the posterior does not know.
    noise : float
        Relative sd of a measured step. The posterior's noise is what its floor leaves over.
    units : int
        Imputations, each with steps and T_gpu of its own and a weight of its own (label `IMPUTED`), or batches.
    anchor_on : GPUs on which the anchor was measured; default: all.
    """
    rng = np.random.default_rng(seed)
    anchor_on = gpus if anchor_on is None else anchor_on
    pairs = [(m, g) for m in models for g in gpus if m != ANCHOR or g in anchor_on]
    model, gpu = (np.repeat(column, len(grid)) for column in zip(*pairs, strict=True))
    batch, context = np.tile(np.array(grid, dtype=float), (len(pairs), 1)).T
    cells = Cells.from_columns(model.tolist(), gpu.tolist(), batch, context)
    work = stack_work(
        cells, {m: shapes.load(m) for m in cells.models}, {g: catalog.load(g) for g in cells.gpus}, experts="active"
    )
    measured = label == MEASURED
    unit = np.arange(draws) * units // draws
    grids = 1 if measured else units
    exact = np.broadcast_to(work_ms(work, EFFICIENCY), (grids, len(cells)))
    if not measured:
        exact = exact * (1 + 0.01 * rng.standard_normal((grids, 1)))
    factor = np.array([(scales or {}).get(m, 1.0) for m in cells.model])
    floor = np.array([(floors or {}).get(m, ANCHOR_FLOOR_MS) for m in cells.model])
    y = (factor * exact + floor) * (1 + noise * rng.standard_normal(exact.shape))
    row = np.zeros(draws, int) if measured else unit
    T = exact[row] * (1 + 0.002 * rng.standard_normal((draws, 1)) if measured else 1.0)
    step = y[row]
    fitted, left = np.empty_like(T), np.empty_like(T)
    anchor_floor = np.full_like(T, np.nan)
    for m, g in pairs:
        at = (cells.model == m) & (cells.gpu == g)
        weight = 1 / step[:, at] ** 2
        offset = (weight * (step - T)[:, at]).sum(-1, keepdims=True) / weight.sum(-1, keepdims=True)
        relative = np.sqrt((((step - T)[:, at] - offset) ** 2 * weight).mean(-1, keepdims=True))
        sd = relative / np.sqrt(weight.sum(-1, keepdims=True))
        fitted[:, at] = offset + sd * rng.standard_normal((draws, 1))
        left[:, at] = np.maximum(relative, 1e-4)
        if m == ANCHOR:
            anchor_floor[:, cells.gpu == g] = fitted[:, at][:, :1]
    parts, dispatch = parts_of(work, EFFICIENCY, T)
    mass = np.ones(draws) if measured else rng.uniform(0.2, 1.0, units)[unit]
    classes = {m: default_class(m) for m in {*models, ANCHOR}}
    by_class = {(g, classes[m]): fitted[:, np.flatnonzero((cells.model == m) & (cells.gpu == g))[0]] for m, g in pairs}
    return Draws(
        cells=replace(cells, step_ms=y[0]),
        label=label,
        anchor=ANCHOR,
        classes=classes,
        batch=np.broadcast_to(batch, (1 if measured else draws, len(cells))),
        context=np.broadcast_to(context, (1 if measured else draws, len(cells))),
        step_ms=y if measured else step,
        gpu_ms=T,
        parts_ms=parts,
        dispatch_ms=dispatch,
        floor_ms=fitted,
        class_floor_ms=by_class,
        anchor_floor_ms=anchor_floor,
        noise_ms=left * (T + fitted),
        unit=unit,
        weight=mass / mass.sum(),
    )


def other_order(draws: Draws) -> Draws:
    """The same imputed draws, the cells of each pair the other way round in every second one: nothing may change."""
    columns = np.tile(np.arange(len(draws.cells)), (len(draws.weight), 1))
    for _, _, mask in draws.pairs():
        own = np.flatnonzero(mask)
        columns[1::2, own] = own[::-1]
    return draws.gathered(np.ones(len(draws.cells), dtype=bool), columns)
