"""Simulated families beside an anchor whose calibration is right: what `transfer` is tested and calibrated on."""

from collections.abc import Mapping, Sequence
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
from rooffloor.validate.simulation.constants import NAMES, anchor_constants
from rooffloor.validate.simulation.hypotheses import CONSTANTS, GRID, cells_of, smooth_leftover
from rooffloor.validate.transfer.family_fit import Family, family

type Array = NDArray[np.float64]
type Grid = tuple[tuple[int, int], ...]
type Study = tuple[ModelShapes, Cells, dict[str, GpuSpec], Calibration, Array]
"""A family's shapes, cells and GPUs, the calibration that judges it, and the true steps of the cells, ms."""


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
        Overlap of floors and T_gpu; 1: added, 0: the maximum.
    judged : str
        How the calibration takes floors to join, a key of `structures.COMBINE`; empty: as they do.
    unknown : bool
        Whether the constants are drawn anew for each data set and known from the anchor's cells alone, as posterior;
        else they are `hypotheses.CONSTANTS`, and known.
    leftover : float
        Relative sd of what the roof leaves over, a smooth function of log B and log L: half of its variance is common
        to all pairs, a quarter to the cells of a model, and a quarter is a pair's own.
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
    judged: str = ""
    unknown: bool = False
    leftover: float = 0.0

    @property
    def join(self) -> FloorStructure:
        """How floors join in truth."""
        return FloorStructure("gpu, model", "added" if self.q == 1.0 else "overlapped")

    @property
    def combine(self) -> str:
        """How the calibration takes floors to join."""
        return self.judged or self.join.combine


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
    return [
        family(*made[:4], rng, label=SIMULATED)
        for made in studies(truth, rng, sets, draws=draws, calibration=calibration)
    ]


def studies(
    truth: Planted,
    rng: np.random.Generator,
    sets: int,
    *,
    draws: int = 300,
    calibration: Calibration | None = None,
) -> list[Study]:
    """Data sets in which the truth holds, each with its calibration; parameters as `planted`."""
    if calibration is not None:
        return [_of_draw(truth, calibration, rng) for _ in range(sets)]
    if not truth.unknown:
        return [measured(truth, rng, draws) for _ in range(sets)]
    made = [_made(truth, rng, _any_constants(rng)) for _ in range(sets)]
    steps = np.stack([np.asarray(anchor.step_ms, dtype=float) for anchor, *_ in made])
    work = stack_work(made[0][0])
    known = anchor_constants(work, made[0][0].gpu_code, steps, rng, draws=draws)
    return [
        _calibrated(truth, *cells, dict(zip(NAMES, values.T, strict=True)), rng)
        for cells, values in zip(made, known.values, strict=True)
    ]


def _of_draw(truth: Planted, calibration: Calibration, rng: np.random.Generator) -> Study:
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
    noisy = steps * (1.0 + truth.noise * rng.standard_normal(len(cells)))
    return shapes, replace(cells, step_ms=noisy), {g: one.specs[g] for g in truth.gpus}, calibration, steps


def _slower(efficiency: Efficiency, truth: Planted) -> Efficiency:
    """Constants with which the weights and the cache take as much longer as the truth says."""
    return replace(
        efficiency,
        eta_bw=efficiency.eta_bw / (truth.whole * truth.weights),
        eta_fa=efficiency.eta_fa / (truth.whole * truth.kv),
    )


def measured(truth: Planted, rng: np.random.Generator, draws: int) -> Study:
    """Arguments of `family.family` for one data set beside known constants."""
    constants = {name: np.full(draws, getattr(CONSTANTS, name)) for name in NAMES}
    return _calibrated(truth, *_made(truth, rng, CONSTANTS), constants, rng)


def _any_constants(rng: np.random.Generator) -> Efficiency:
    """True constants of one data set: wherever those of real stacks may lie."""
    bandwidth, attention, tokens = rng.uniform(0.7, 0.9), rng.uniform(0.55, 0.85), rng.uniform(0.0, 500.0)
    return replace(CONSTANTS, eta_bw=bandwidth, eta_fa=attention, l_half=tokens)


def _made(truth: Planted, rng: np.random.Generator, right: Efficiency) -> tuple[Cells, Cells, Array]:
    """Measured cells of the anchor and of the family, and the true steps of the latter."""
    floor = rng.uniform(2.0, 6.0, len(truth.gpus))
    anchor = _steps(ANCHOR, GRID, truth, floor, right, right, ())
    own = _steps(truth.model, truth.grid, truth, floor, right, _slower(right, truth), truth.on or truth.gpus)
    left = _leftovers(truth, rng)
    true = np.asarray(own.step_ms) * (1.0 + left[1])
    anchor, own = (
        replace(c, step_ms=np.asarray(c.step_ms) * (1.0 + over + truth.noise * rng.standard_normal(len(c))))
        for c, over in zip((anchor, own), left, strict=True)
    )
    return anchor, own, true


def _leftovers(truth: Planted, rng: np.random.Generator) -> tuple[Array, Array]:
    """Relative leftovers of the anchor's cells and of the family's, [cell]."""
    K = len(truth.gpus)
    if not truth.leftover:
        return np.zeros(K * len(GRID)), np.zeros(K * len(truth.grid))
    common, *models = smooth_leftover(rng, 3, 1)
    pairs = smooth_leftover(rng, 2, K)
    anchor, own = (
        truth.leftover * (np.sqrt(0.5) * common + 0.5 * model + 0.5 * pair)
        for model, pair in zip(models, pairs, strict=True)
    )
    return anchor.ravel(), own[:, [GRID.index(cell) for cell in truth.grid]].ravel()


def _calibrated(
    truth: Planted, anchor: Cells, own: Cells, true: Array, constants: Mapping[str, Array], rng: np.random.Generator
) -> Study:
    """The data set with the calibration that the anchor's cells and draws of the constants make."""
    specs = {gpu: gpu_catalog.load(gpu) for gpu in truth.gpus}
    shapes = model_catalog.load(ANCHOR)
    count = len(next(iter(constants.values())))
    calibration = of_anchor(
        anchor,
        shapes,
        default_class(shapes),
        {"eta_tc": np.full(count, CONSTANTS.eta_tc), **constants},
        specs,
        rng,
        combine=truth.combine,
        label=SIMULATED,
        source="simulated",
    )
    return model_catalog.load(truth.model), own, specs, calibration, true


def _steps(
    model: str,
    grid: Grid,
    truth: Planted,
    floor: Array,
    right: Efficiency,
    efficiency: Efficiency,
    wrong: Sequence[str],
) -> Cells:
    """The true steps of one model; `wrong` names the GPUs where its roof errs."""
    cells = cells_of([(model, gpu) for gpu in truth.gpus], grid)
    work = stack_work(cells)
    said, off = work_ms(work, right), np.isin(cells.gpu, wrong)
    true = np.where(off, work_ms(work, efficiency), said)
    own = floor[cells.gpu_code] + truth.floor_ms * off
    return replace(cells, step_ms=np.asarray(truth.join.step_ms(true, own, truth.q)))
