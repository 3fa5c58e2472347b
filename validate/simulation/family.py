"""Simulated families beside an anchor whose calibration is right: what `transfer` is tested and calibrated on."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from rooffloor.models.calibration.anchor import of_anchor
from rooffloor.models.calibration.draws import Calibration
from rooffloor.models.floor.structures import FloorStructure
from rooffloor.models.roof.kernels import decode_work, stack_work
from rooffloor.models.roof.roofline import Efficiency, work_ms
from rooffloor.models.specs import gpus as gpu_catalog
from rooffloor.models.specs import shapes as model_catalog
from rooffloor.models.specs.cells import Cells
from rooffloor.models.specs.classes import default_class
from rooffloor.models.specs.gpus import GpuSpec
from rooffloor.models.specs.shapes import ModelShapes
from rooffloor.validate.estimates.cell_draws import SIMULATED
from rooffloor.validate.hypotheses.error_rates import NOISE
from rooffloor.validate.published.printed_figures import ANCHOR, SIBLING, SKUS
from rooffloor.validate.simulation.hypotheses import CONSTANTS, GRID, cells_of
from rooffloor.validate.transfer.family_fit import Family, family

type Array = NDArray[np.float64]
type Grid = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Planted:
    """What a simulated family does, beside an anchor whose calibration is right.

    Attributes
    ----------
    model : str
    gpus : tuple of str
    grid : tuple of (batch, context)
        Cells of the family on each GPU; the anchor has those of the study.
    whole, weights, kv : float
        True time of every DRAM-bound kernel, of the weights, of the cache read, over what T_gpu says.
    floor_ms : float
        The family's floor less the anchor's, which is uniform in 2 to 6 ms on each GPU.
    on : tuple of str
        GPUs on which this is so; empty: on all.
    noise : float
        Relative sd of a step.
    q : float
        Overlap of floors and T_gpu; 1: added.
    """

    model: str = SIBLING
    gpus: tuple[str, ...] = SKUS
    grid: Grid = GRID
    whole: float = 1.0
    weights: float = 1.0
    kv: float = 1.0
    floor_ms: float = 0.0
    on: tuple[str, ...] = ()
    noise: float = NOISE
    q: float = 1.0

    @property
    def combine(self) -> str:
        """How the calibration takes floors to join."""
        return "added" if self.q == 1.0 else "overlapped"


def planted(
    truth: Planted,
    rng: np.random.Generator,
    sets: int,
    *,
    draws: int = 300,
    calibration: Calibration | None = None,
) -> list[Family]:
    """Families of data sets in which the truth holds, fitted beside a calibration.

    Parameters
    ----------
    calibration : Calibration, optional
        Judges all of them; the constants and anchor's floors of one of its draws are true in each. Default: one with
        the true constants (`hypotheses.CONSTANTS`) and floors fitted to simulated cells of the anchor.
    """
    found = []
    for _ in range(sets):
        made = measured(truth, rng, draws) if calibration is None else _of_draw(truth, calibration, rng)
        found.append(family(*made, rng, label=SIMULATED))
    return found


def _of_draw(
    truth: Planted, calibration: Calibration, rng: np.random.Generator
) -> tuple[ModelShapes, Cells, dict[str, GpuSpec], Calibration]:
    """Arguments of `family.family` where one draw of the calibration is the truth."""
    one = calibration.rows(rng.choice(len(calibration.weight), 1, p=calibration.weight))
    shapes = model_catalog.load(truth.model)
    cells = cells_of([(truth.model, gpu) for gpu in truth.gpus], truth.grid)
    steps = np.empty(len(cells))
    for gpu in truth.gpus:
        at, wrong = cells.gpu == gpu, gpu in (truth.on or truth.gpus)
        right = one.efficiency(gpu, rng)
        off = _slower(right, truth) if wrong else right
        work = decode_work(shapes, cells.batch[at], cells.context[at], gpu=one.specs[gpu], experts=one.experts)
        floor = one.floor_of(gpu, one.anchor, one.anchor_class, rng) + truth.floor_ms * wrong
        steps[at] = one.step_ms(np.asarray(work_ms(work, off)), floor)[0]
    steps *= 1.0 + truth.noise * rng.standard_normal(len(cells))
    return shapes, replace(cells, step_ms=steps), {g: one.specs[g] for g in truth.gpus}, calibration


def _slower(efficiency: Efficiency, truth: Planted) -> Efficiency:
    """Constants with which the weights and the cache take as much longer as the truth says."""
    return replace(
        efficiency,
        eta_bw=efficiency.eta_bw / (truth.whole * truth.weights),
        eta_fa=efficiency.eta_fa / (truth.whole * truth.kv),
    )


def measured(
    truth: Planted, rng: np.random.Generator, draws: int
) -> tuple[ModelShapes, Cells, dict[str, GpuSpec], Calibration]:
    """Arguments of `family.family` for one data set."""
    floor = rng.uniform(2.0, 6.0, len(truth.gpus))
    anchor = _steps(ANCHOR, GRID, truth, floor, CONSTANTS, ())
    slower = _slower(CONSTANTS, truth)
    own = _steps(truth.model, truth.grid, truth, floor, slower, truth.on or truth.gpus)
    anchor, own = (
        replace(c, step_ms=np.asarray(c.step_ms) * (1.0 + truth.noise * rng.standard_normal(len(c))))
        for c in (anchor, own)
    )
    specs = {gpu: gpu_catalog.load(gpu) for gpu in truth.gpus}
    constants = {name: np.full(draws, getattr(CONSTANTS, name)) for name in ("eta_tc", "eta_bw", "eta_fa", "l_half")}
    shapes = model_catalog.load(ANCHOR)
    calibration = of_anchor(
        anchor,
        shapes,
        default_class(shapes),
        constants,
        specs,
        rng,
        combine=truth.combine,
        label=SIMULATED,
        source="simulated",
    )
    return model_catalog.load(truth.model), own, specs, calibration


def _steps(model: str, grid: Grid, truth: Planted, floor: Array, efficiency: Efficiency, wrong: Sequence[str]) -> Cells:
    """The true steps of one model; `wrong` names the GPUs where its roof errs."""
    cells = cells_of([(model, gpu) for gpu in truth.gpus], grid)
    work = stack_work(cells)
    said, off = work_ms(work, CONSTANTS), np.isin(cells.gpu, wrong)
    true = np.where(off, work_ms(work, efficiency), said)
    own = floor[cells.gpu_code] + truth.floor_ms * off
    step = FloorStructure("gpu, model", truth.combine).step_ms(true, own, truth.q)
    return replace(cells, step_ms=np.asarray(step))
