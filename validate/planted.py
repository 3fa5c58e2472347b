"""Simulated families beside an anchor whose calibration is right: what `transfer` is tested and calibrated on."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from models import gpus as gpu_catalog
from models import shapes as model_catalog
from models.cells import Cells
from models.classes import default_class
from models.floorfit import fit_floors
from models.floors import FloorStructure
from models.gpus import GpuSpec
from models.kernels import stack_work
from models.posterior import Domain, Posterior, floor_scales
from models.priors import DEFAULT_PRIORS
from models.roofline import Efficiency, work_ms
from models.shapes import ModelShapes
from validate.draws import SIMULATED
from validate.family import Family, family
from validate.power import ANCHOR, CONSTANTS, FAMILY, GRID, NOISE

type Array = NDArray[np.float64]


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

    model: str = FAMILY
    gpus: tuple[str, ...] = ("H100", "H200", "A100-40GB")
    grid: tuple[tuple[int, int], ...] = GRID
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


def planted(truth: Planted, rng: np.random.Generator, sets: int, *, draws: int = 300) -> list[Family]:
    """Families of data sets in which the truth holds, fitted beside a calibration whose constants are the true ones.

    Returns
    -------
    list of Family
        With the constants of `power.CONSTANTS`.
    """
    return [family(*measured(truth, rng, draws), rng, label=SIMULATED) for _ in range(sets)]


def measured(
    truth: Planted, rng: np.random.Generator, draws: int
) -> tuple[ModelShapes, Cells, dict[str, GpuSpec], Posterior]:
    """Arguments of `family.family` for one data set."""
    floor = rng.uniform(2.0, 6.0, len(truth.gpus))
    said, anchor = _steps(ANCHOR, GRID, truth, floor, CONSTANTS, ())
    slower = Efficiency(
        eta_bw=CONSTANTS.eta_bw / (truth.whole * truth.weights),
        eta_fa=CONSTANTS.eta_fa / (truth.whole * truth.kv),
        eta_tc=CONSTANTS.eta_tc,
        l_half=CONSTANTS.l_half,
    )
    _, own = _steps(truth.model, truth.grid, truth, floor, slower, truth.on or truth.gpus)
    anchor, own = (
        replace(c, step_ms=np.asarray(c.step_ms) * (1.0 + truth.noise * rng.standard_normal(len(c))))
        for c in (anchor, own)
    )
    specs = {gpu: gpu_catalog.load(gpu) for gpu in truth.gpus}
    return model_catalog.load(truth.model), own, specs, anchored(anchor, said, truth.combine, specs, draws, rng)


def _steps(
    model: str,
    grid: tuple[tuple[int, int], ...],
    truth: Planted,
    floor: Array,
    efficiency: Efficiency,
    wrong: tuple[str, ...],
) -> tuple[Array, Cells]:
    """T_gpu as the roof says [cell], and the true steps of one model; `wrong` names the GPUs where it errs."""
    rows = [(model, g, b, c) for g in truth.gpus for b, c in grid]
    cells = Cells.from_columns(*zip(*rows, strict=True))
    work = stack_work(cells)
    said, off = work_ms(work, CONSTANTS), np.isin(cells.gpu, wrong)
    true = np.where(off, work_ms(work, efficiency), said)
    step = FloorStructure("gpu, model", truth.combine).step_ms(
        true, floor[cells.gpu_code] + truth.floor_ms * off, truth.q
    )
    return said, replace(cells, step_ms=np.asarray(step))


def anchored(
    cells: Cells,
    gpu_ms: Array,
    combine: str,
    specs: dict[str, GpuSpec],
    draws: int,
    rng: np.random.Generator,
) -> Posterior:
    """A calibration of an anchor's cells with known constants: T_gpu [cell], floors and noise from its steps."""
    structure = FloorStructure("gpu, model", combine)
    middle = DEFAULT_PRIORS.floor_overall if structure.positive else DEFAULT_PRIORS.floor_overall_ms
    assert cells.step_ms is not None
    batch, context, step, T = (
        np.tile(values, (draws, 1)) for values in (cells.batch, cells.context, cells.step_ms, gpu_ms)
    )
    floor, noise, q = fit_floors(
        cells.gpu_code,
        T,
        step,
        structure,
        rng,
        floor_prior=(float(np.log(middle[0])) if structure.positive else middle[0], middle[1]),
        noise_prior=(float(np.log(DEFAULT_PRIORS.noise_relative[0])), DEFAULT_PRIORS.noise_relative[1]),
    )
    (anchor,) = cells.models
    klass, shape = default_class(anchor), (draws, len(cells.gpus))
    size = model_catalog.load(anchor).parameters
    return Posterior(
        gpus=cells.gpus,
        models=(anchor,),
        classes=(klass,),
        anchor=anchor,
        constants={name: np.full(shape, getattr(CONSTANTS, name)) for name in ("eta_tc", "eta_bw", "eta_fa", "l_half")},
        floor_ms=floor[..., None],
        noise_relative=noise[..., None],
        combine=combine,
        q=q,
        scales=floor_scales([(g, klass, anchor) for g in cells.gpus], floor, structure, rng),
        weight=np.full(draws, 1.0 / draws),
        unit=np.arange(draws) // 15,
        anchor_gpu=cells.gpu_code,
        anchor_batch=batch,
        anchor_context=context,
        anchor_step_ms=step,
        anchor_gpu_ms=T,
        specs=specs,
        experts="active",
        domain=Domain(
            (float(cells.batch.min()), float(cells.batch.max())),
            (float(cells.context.min()), float(cells.context.max())),
            (float(size), float(size)),
        ),
        label=SIMULATED,
        source="simulated",
    )
