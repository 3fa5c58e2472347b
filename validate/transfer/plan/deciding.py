"""Which further cells would do most for what a verdict leaves open."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from rooffloor.models.calibration.draws import Calibration
from rooffloor.models.specs import gpus as gpu_catalog
from rooffloor.models.specs.gpus import GpuSpec
from rooffloor.models.specs.shapes import ModelShapes
from rooffloor.validate.common.errors import InputError
from rooffloor.validate.transfer.explanations import WEIGHTS, WHOLE
from rooffloor.validate.transfer.plan.candidates import candidates
from rooffloor.validate.transfer.plan.choice import choose
from rooffloor.validate.transfer.plan.outlook import (
    FLOOR,
    HALF,
    SHAPE,
    Array,
    Calibrated,
    Cell,
    Index,
    Prospect,
    floor_given,
    prospect,
)
from rooffloor.validate.transfer.plan.shape import belief
from rooffloor.validate.transfer.plan.words import told

WIDE_BATCHES, WIDE_CONTEXTS = tuple(2**k for k in range(11)), tuple(2**k for k in range(9, 17))
"""Axes of the cells that are tried: a grid that was measured leaves nothing to choose within itself."""
SMALL_BATCH = 16
"""Up to here no GEMM of a dense model is compute-bound on today's GPUs: the weights' time is the same in all cells."""
FAR, FAR_GAIN = 4.0, 2.0
"""A cell beyond so many times the largest calibrated batch or context is named only where it tells so much more."""
LEAST_GAIN, WORTH = 0.01, 0.1
"""Gains, nats, below which a cell tells nothing, and from which on several cells are worth their while."""
MOST = 6
"""So many cells are tried together where one alone does not show."""


@dataclass(frozen=True)
class Deciding:
    """Further cells that would help with an open question.

    Attributes
    ----------
    cell : Cell
    kind : "same GPU", "same GPU, larger batch", "another GPU" or "several"
    gain : float
        Expected information, log(before / after), nats.
    before, after : float
        Half the 90 % interval before and after: of the floor on this cell's GPU, ms, or of the relative error.
    inside : bool
        Whether the calibration has seen such cells.
    far : bool
        Whether batch or context lie far beyond what the calibration has seen (`FAR`).
    alone : float
        Largest gain of one cell of this kind; several: of any cell.
    further : tuple of Cell
        several: what is measured besides.
    """

    cell: Cell
    kind: str
    gain: float
    before: float
    after: float
    inside: bool
    far: bool
    alone: float
    further: tuple[Cell, ...] = ()


SAME, LARGER, OTHER, SEVERAL = "same GPU", "same GPU, larger batch", "another GPU", "several"


def deciding(
    shapes: ModelShapes,
    specs: Sequence[GpuSpec],
    measured: Sequence[Cell],
    calibration: Calibrated,
    question: str,
    *,
    seed: int = 1,
) -> list[Deciding]:
    """Which one further cell would do most for what a verdict leaves open; several where no single one does.

    Parameters
    ----------
    specs : sequence of GpuSpec
        On which the family was measured.
    measured : sequence of Cell
        In hand (`step_ms` where known).
    question : str
        What is open, as a verdict names it: "slope..." , "level..." or "level: a floor or the weights' bandwidth".

    Returns
    -------
    list of Deciding
        The best cell of each kind, best first: on a GPU in hand up to batch 16, there at larger batches, and (weights)
        on another GPU. Where none of them changes the width that is told, several cells last.

    Raises
    ------
    InputError
        The question is none of these.

    Notes
    -----
    A floor and an error of the weights' bandwidth have one column on one GPU while the weights' time is the same in all
    cells, hence no gain there at small batches. It differs between GPUs, and at batches where GEMMs become
    compute-bound. That the anchor is measured on another GPU too is not assumed where there are draws.

    A floor is one GPU's: gain and widths are those of the cell's own GPU. Cells whose width is told as another one go
    first, of these the ones on GPUs in hand and near the calibration, then those that gain most; far outside the
    calibration a gain counts as 1 / `FAR_GAIN` of it. The same product with other memory (A100-40GB, A100-80GB) is no
    other GPU, unless there is none.
    """
    if not question.startswith(("slope", "level")):
        raise InputError(f"open question {question!r} is unknown: expected slope... or level...")
    rng = np.random.default_rng(seed)
    known = [*specs, *(_other_gpus(specs, calibration) if "weights" in question else ())]
    found, _, _ = candidates(shapes, known, WIDE_BATCHES, WIDE_CONTEXTS, measured)
    if not found:
        return []
    used = {cell.gpu for cell in (*found, *measured)}
    p = prospect(shapes, [s for s in known if s.name in used], found, measured, calibration, rng)
    widths, single = _widths(p, question), np.arange(p.candidates)
    own = p.gpu[: p.candidates]
    before, after = widths(np.zeros((1, 0), dtype=np.int64))[0, own], widths(single[:, None])[single, own]
    gain = np.log(before / after).clip(0.0)
    far = np.array([_far(cell, calibration) for cell in found])
    shown = np.array([shows(question, *ends) for ends in zip(before, after, strict=True)])
    mine = {spec.name for spec in specs}
    kinds = [OTHER if c.gpu not in mine else SAME if c.batch <= SMALL_BATCH else LARGER for c in found]
    alone = {kind: float(max(gain[i] for i in single if kinds[i] == kind)) for kind in kinds}
    best: dict[str, Deciding] = {}
    elsewhere = np.array([kind == OTHER for kind in kinds]) & bool((shown & ~far & (np.array(kinds) != OTHER)).any())
    order = np.lexsort((-np.where(far, gain / FAR_GAIN, gain), elsewhere, ~shown))
    for i in order.tolist():
        told = (float(gain[i]), float(before[i]), float(after[i]), bool(p.inside[i]), bool(far[i]))
        best.setdefault(kinds[i], Deciding(found[i], kinds[i], *told, alone[kinds[i]]))
    together = [] if shown.any() else [_together(p, widths, int(own[order[0]]), far, question)]
    return [*best.values(), *(replace(one, alone=float(gain.max())) for one in together)]


def _widths(p: Prospect, question: str) -> Callable[[Index], Array]:
    """Half the 90 % interval of what is open after sets of cells, [set, cell] -> [set, gpu]; errors: alike on all."""
    if goal_of(question) == FLOOR:
        return lambda sets: HALF * floor_given(p, sets)
    size = belief(p, WEIGHTS if "weights" in question else WHOLE)
    return lambda sets: HALF * np.repeat(size.sds(sets)[:, None], len(p.gpus), 1)


def goal_of(question: str) -> str:
    """Whether a floor or a relative error is open."""
    return SHAPE if question.startswith("slope") or "weights" in question else FLOOR


def shows(question: str, before: float, after: float) -> bool:
    """Whether a width is told as another one."""
    goal = goal_of(question)
    return bool(np.log(before / after) >= LEAST_GAIN and told(goal, before) != told(goal, after))


def _far(cell: Cell, calibration: Calibrated) -> bool:
    if not isinstance(calibration, Calibration):
        return False
    seen = calibration.domain
    return cell.batch > FAR * seen.batch[1] or cell.context > FAR * seen.context[1]


def _together(
    p: Prospect, widths: Callable[[Index], Array], gpu: int, far: NDArray[np.bool_], question: str
) -> Deciding:
    """The fewest cells that are worth their while, `MOST` at most, for the floor on a GPU or for the relative error.

    Far outside the calibration only where there are no others.
    """
    here = p.gpu[: p.candidates] == gpu if goal_of(question) == FLOOR else np.ones(p.candidates, dtype=bool)
    pool = np.flatnonzero(here & ~far) if (here & ~far).any() else np.flatnonzero(here)

    def loss(sets: Index) -> Array:
        return widths(pool[sets])[:, gpu]

    chosen = choose(loss, len(pool), min(MOST, len(pool)))
    before, *after = (float(loss(np.array([chosen[:n]], dtype=np.int64))[0]) for n in range(len(chosen) + 1))
    worth = [n for n, width in enumerate(after, 1) if np.log(before / width) >= WORTH and n > 1]
    count = worth[0] if worth else len(after)
    some = pool[chosen[:count]]
    first, *rest = (p.cells[i] for i in some)
    ends = (max(float(np.log(before / after[count - 1])), 0.0), before, after[count - 1])
    return Deciding(first, SEVERAL, *ends, bool(p.inside[some].all()), bool(far[some].any()), 0.0, tuple(rest))


def _other_gpus(specs: Sequence[GpuSpec], calibration: Calibrated) -> list[GpuSpec]:
    """Further GPUs to try: the rest of the calibration, without draws the rest of the catalog."""
    mine = {spec.name for spec in specs}
    products = {name.partition("-")[0] for name in mine}  # A100 of A100-40GB
    known = calibration if isinstance(calibration, Mapping) else gpu_catalog.names()
    rest = [gpu_catalog.load(name) for name in known if name not in mine and name in gpu_catalog.names()]
    if isinstance(calibration, Calibration):
        seen = [calibration.specs[name] for name in calibration.gpus if name not in mine]
        rest = seen or rest
    return [spec for spec in rest if spec.name.partition("-")[0] not in products] or rest
