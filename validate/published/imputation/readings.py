"""How the published study can be read: its grid, its offsets, its roof, and its figures by name.

The study says five by three cells and names one; which offset its floors are and what its GPU branch holds is open.
An `Index` is one choice of everything; `row_names` are the figures that can be conditioned on.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rooffloor.validate.published.imputation import aggregates
from rooffloor.validate.published.printed_figures import BATCHES, CONTEXTS, DENSE, MOE, SKUS, SMALL, Figure, Interval

type Array = NDArray[np.float64]
type Intervals = Mapping[str, Interval]

BLOCKS = (*((model, gpu) for model in DENSE for gpu in SKUS), (MOE, "H100"))
BOUNDS = (*(f"residual_mape {m} pooled" for m in DENSE), "cell predicted")
"""Figures that follow from others but for rounding: kept as bounds, not as rows of the manifold."""
NAMED_CELL = (16.0, 8192.0)
"""The only (batch, context) that the study names."""


@dataclass(frozen=True)
class Grid:
    """Axes of the decode grid. The study says five by three and names one cell, (16, 8192); the rest is assumed."""

    name: str
    batches: tuple[int, ...]
    contexts: tuple[int, ...]

    @property
    def points(self) -> Array:
        """(batch, context) of each cell, shape (15, 2), batch-major."""
        return np.array([(b, c) for b in self.batches for c in self.contexts], dtype=float)


GRIDS = (
    Grid("5 batches x 3 contexts", BATCHES, CONTEXTS),
    Grid("3 batches x 5 contexts", (1, 4, 16), (512, 1024, 2048, 4096, 8192)),
)


@dataclass(frozen=True)
class Roof:
    """A hypothesis on the study's GPU branch T, from lean to rich.

    Attributes
    ----------
    latency : bool
        A fixed time per kernel launch is added.
    per_gpu : bool
        Each GPU has its own constants, independent a priori (the study claims one set for all). Then the GPUs are
        separate problems, coupled only by the pooled figures.
    per_class : bool
        The mixture of experts has its own constants, too (only with `per_gpu`): its kernels are not those of dense
        layers. The study claims one set.
    free : bool
        T of each (model, GPU) also strays from the roof by a lognormal factor.
    """

    name: str
    latency: bool = False
    per_gpu: bool = False
    free: bool = False
    per_class: bool = False


ROOFS = (
    Roof("three constants"),
    Roof("three constants + launch latency", latency=True),
    Roof("constants per GPU", latency=True, per_gpu=True),
    Roof("constants per GPU and class", latency=True, per_gpu=True, per_class=True),
    Roof("free T per model", latency=True, per_gpu=True, free=True, per_class=True),
)
ROOF = ROOFS[2]
"""The leanest roof under which any reading fits without order; with order its H100 hardly does."""
WEIGHTED = ROOFS[3:]
"""The roofs whose grids carry weight, by the evidence of the figures."""


class Piece(NamedTuple):
    """(model, GPU) blocks that are inverted together."""

    gpus: tuple[str, ...] = SKUS
    models: tuple[str, ...] = (*DENSE, MOE)

    @property
    def label(self) -> str:
        """The GPUs, and the class where it is no dense one."""
        return " + ".join(self.gpus) + (" (MoE)" if self.models == (MOE,) else "")


PIECES = tuple(Piece((gpu,), models) for gpu in SKUS for models in (DENSE, (MOE,)) if models == DENSE or gpu == "H100")
"""Of a roof with constants per GPU and class."""


@dataclass(frozen=True)
class Discrepancy:
    """Prior on what roof and floor leave over within one (model, GPU).

    Attributes
    ----------
    smooth_share : float
        Share of its variance that varies smoothly over the grid; the rest is independent from cell to cell.
    ordered : bool
        Grids are ordered: no step falls by more than `FALL` where batch or context grows, none lies below that of the
        least batch and context or above `RATIO` times it, and T, a formula, never falls.
    """

    name: str
    smooth_share: float
    ordered: bool = field(default=True, repr=False)


FALL = 0.02
"""Share by which a step of an ordered grid may lie below its neighbour of smaller batch or context: noise."""
DISCREPANCIES = (Discrepancy("smooth, rising", 0.98), Discrepancy("rougher, rising", 0.9))
"""The first one's grids carry the weight; those of the second show what its smoothness decides."""
UNORDERED = (
    Discrepancy("independent cells", 0.0, ordered=False),
    Discrepancy("smooth over the grid", 0.8, ordered=False),
)
"""Without order: the competition of floors, and the search for any grid at all that prints the figures."""


@dataclass(frozen=True)
class Reading:
    """How one offset is read off the differences d = y - T of one grid.

    Attributes
    ----------
    code : int
        `LINEAR`, `RELATIVE_LEAST_SQUARES`, `MEDIAN` or `LEAST_MAPE` of `imputation.aggregates`.
    axis, end : int
        A linear reading averages the cells at one end (0 least, -1 most) of one axis (0 batch, 1 context); all
        cells where `axis` is -1.
    """

    code: int = aggregates.LINEAR
    axis: int = -1
    end: int = 0

    def share(self, points: Array) -> Array:
        """Weights of the cells at `points` (batch, context) in a linear reading, shape (cell,)."""
        if self.axis < 0:
            return np.full(len(points), 1.0 / len(points))
        level = points[:, self.axis]
        kept = level == np.sort(level)[self.end]
        return kept / kept.sum()

    def offset(self, step_ms: Array, gpu_ms: Array, points: Array) -> Array:
        """Offset of each grid, ms, shape (grid,); steps and T of shape (grid, cell) in ms."""
        share, unused = self.share(points), (np.empty(len(points)), np.empty(len(points)))
        rows = zip(step_ms, gpu_ms, strict=True)
        return np.array([aggregates.read_offset(y - T, y, self.code, share, *unused) for y, T in rows])


READINGS: Mapping[str, Reading] = {
    "mean": Reading(),
    "relative least squares": Reading(aggregates.RELATIVE_LEAST_SQUARES),
    "median": Reading(aggregates.MEDIAN),
    "least MAPE": Reading(aggregates.LEAST_MAPE),
    "smallest batch": Reading(axis=0, end=0),
    "largest batch": Reading(axis=0, end=-1),
    "shortest context": Reading(axis=1, end=0),
    "longest context": Reading(axis=1, end=-1),
}

FEASIBLE_READINGS = tuple(READINGS)[2:]
"""Readings that some grid prints, in order or not (see `Reconstruction.readings`)."""


@dataclass(frozen=True)
class Index:
    """One way of reading the study: grid, offset reading, roof and discrepancy prior."""

    grid: Grid
    reading: str
    roof: Roof
    discrepancy: Discrepancy

    def labels(self) -> dict[str, str]:
        """The four labels that travel with every imputed grid."""
        return {
            "grid": self.grid.name,
            "reading": self.reading,
            "roof": self.roof.name,
            "discrepancy": self.discrepancy.name,
        }


def row_names(gpus: tuple[str, ...] = SKUS, models: tuple[str, ...] = (*DENSE, MOE)) -> list[str]:
    """Names of the figures of some GPUs and models that `Inversion` can condition on, in a fixed order."""
    names = [f"anchor_offset {g}" for g in gpus]
    names += [f"{q} {m} {g}" for q in ("raw_mape", "residual_mape") for m in DENSE for g in gpus]
    if "H100" in gpus:
        names += [f"self_floor {MOE}", f"self_floor_mape {MOE}", "cell measured", "cell predicted", "cell error"]
        names += [f"step_typical {MOE}", *(f"small_batch_step {m}" for m in DENSE)]
    if "A100-40GB" in gpus:
        names += [f"self_floor {SMALL}", f"self_floor_mape {SMALL}"]
        names += [f"long_context_rise {m}" for m in DENSE]
    if gpus == SKUS:
        names += [f"residual_mape {m} pooled" for m in DENSE]
    of_moe = {name for name in names if MOE in name or name.startswith("cell ")}
    return [name for name in names if (MOE in models if name in of_moe else set(DENSE) <= set(models))]


def targets(figures: Iterable[Figure]) -> Intervals:
    """Intervals of the published figures that the inversion conditions on, by row name.

    Four figures are left out because the study does not say what they are of, and are only checked: the 1B's "about
    2 to 5 ms" of GPU time and "roughly 10 ms" step (no GPU named), and the dispatch median (a closed form of ours).
    """
    known = set(row_names())
    found = {}
    for row in figures:
        name = row_name(row.quantity, row.model, row.gpu)
        if name in known:
            found[name] = row.interval
    return found


def row_name(quantity: str, model: str, gpu: str) -> str:
    """Name of a published figure among `inversion.row_names`."""
    fixed = {"measured": "cell measured", "predicted_with_self_floor": "cell predicted", "error": "cell error"}
    if quantity in fixed:
        return fixed[quantity]
    if quantity == "anchor_offset":
        return f"anchor_offset {gpu}"
    if quantity in ("raw_mape", "residual_mape"):
        return f"{quantity} {model} {gpu}"
    if quantity == "step_typical" and gpu == "unspecified":
        return "step_typical unspecified"
    return f"{quantity} {model}"
