"""From unknown grids to the published figures: what `reconstruction` inverts.

A published figure is an interval (its rounding), uniform inside. `Inversion` maps a standard normal vector to whole
grids (step times y, GPU times T, constants, floors) and to every figure of the study, and gives the manifold on
which `manifold.sample` moves. All grids are block-major: ten (model, GPU) blocks of 15 cells. The arithmetic is in
`aggregates`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaincinv, betaln, expit, logit, ndtr, xlog1py, xlogy

from rooffloor.models.floor.structures import PER_MODEL, Q_MAX, FloorStructure
from rooffloor.models.inference.priors import DEFAULT_PRIORS
from rooffloor.models.roof.kernels import Work, stack_work
from rooffloor.models.roof.roofline import Efficiency, gradient_ms, work_floor_ms
from rooffloor.models.specs.cells import Cells
from rooffloor.validate.published.bounds.grid_programme import RATIO
from rooffloor.validate.published.imputation import aggregates
from rooffloor.validate.published.imputation.aggregates import Tables
from rooffloor.validate.published.imputation.manifold import Manifold
from rooffloor.validate.published.imputation.readings import (
    BLOCKS,
    BOUNDS,
    FALL,
    NAMED_CELL,
    READINGS,
    Index,
    Intervals,
    row_names,
)
from rooffloor.validate.published.printed_figures import A100, ANCHOR, CELLS, DENSE, H100, MOE, SKUS

type Array = NDArray[np.float64]


@dataclass(frozen=True)
class Prior:
    """Priors of the inversion; those of the constants are those of every fit (`inference.priors`, with their grounds).

    Attributes
    ----------
    eta_bw, eta_fa : (mean, sd) of a Beta
        Where `logit`: (median, sd on the logit scale).
    l_half, latency_ms, positive_floor_ms, leftover : (median, sd of the logarithm)
    floor_sd_ms : float
        sd of a signed floor: the published offsets run from -2.4 to 19.6 ms.
    leftover : tuple
        sd of the leftovers of a block, as a share of the step: the published residuals run from 3 to 9 %.
    free : float
        Under `Roof.free`: sd of the logarithm of a block's factor on the roof.
    logit : bool
    """

    eta_bw: tuple[float, float] = DEFAULT_PRIORS.eta_bw
    eta_fa: tuple[float, float] = DEFAULT_PRIORS.eta_fa
    l_half: tuple[float, float] = DEFAULT_PRIORS.l_half
    latency_ms: tuple[float, float] = DEFAULT_PRIORS.launch_ms
    floor_sd_ms: float = 8.0
    positive_floor_ms: tuple[float, float] = (4.0, 1.0)
    leftover: tuple[float, float] = (0.06, 0.7)
    free: float = 0.15
    logit: bool = False

    def scaled(self, floor: float) -> "Prior":
        """The same prior with floors so many times as large."""
        median, sd = self.positive_floor_ms
        return replace(self, floor_sd_ms=floor * self.floor_sd_ms, positive_floor_ms=(floor * median, sd))

    def eta(self) -> tuple[Array, Array]:
        """The two eta at `aggregates.KNOTS` of their standard normal latents and their slopes, shape (2, knot) each."""
        values, slopes = zip(*(self._curve(*numbers) for numbers in (self.eta_bw, self.eta_fa)), strict=True)
        return np.array(values), np.array(slopes)

    def _curve(self, middle: float, sd: float) -> tuple[Array, Array]:
        z = aggregates.KNOTS
        if self.logit:
            value = expit(logit(middle) + sd * z)
            return value, sd * value * (1.0 - value)
        total = middle * (1.0 - middle) / sd**2 - 1.0
        a, b = middle * total, (1.0 - middle) * total
        value = np.where(z < 0, betaincinv(a, b, ndtr(z)), 1.0 - betaincinv(b, a, ndtr(-z)))
        log_density = xlogy(a - 1.0, value) + xlog1py(b - 1.0, -value) - betaln(a, b)
        return value, np.exp(-0.5 * z**2 - 0.5 * np.log(2.0 * np.pi) - log_density)


WIDE = Prior((0.75, 0.8), (0.6, 1.0), latency_ms=(0.006, 1.0), logit=True)
"""For the competition of floors alone: constants so wide that a structure is not put out of reach by them."""

_JOINED = {"added, H >= 0": aggregates.ADDED, "overlapped": aggregates.OVERLAPPED, "max": aggregates.MAX}
CONSTANTS = ("eta_bw", "eta_fa", "l_half", "latency_ms")
"""The study's constants that its grid can see. At B <= 16 no GEMM is compute-bound: eta_tc stays at 1, unseen."""


@dataclass(frozen=True)
class Grids:
    """Imputed grids: `y`, `T` (chain, cell) and `floor` (chain, block) in ms, `constants` (chain, set)."""

    y: Array
    T: Array
    floor: Array
    constants: dict[str, Array]


class Inversion:
    """The study under one `Index`: from q, standard normal, to grids, figures and their derivatives.

    q holds the constants (of all GPUs, or of each), per block a floor, a leftover scale and 15 leftovers, under
    `Roof.free` a factor on its T, then where the floor is overlapped its 1/p, and last one latent
    per figure: where in its rounding it lies. Blocks that share a floor use the first one's; the others' are idle.

    Parameters
    ----------
    index : Index
    targets : mapping from row name (see `row_names`) to (low, high)
        The intervals of the figures that are conditioned on; others are computed but left free.
    gpus : tuple of str
        The GPUs to invert; figures of others, and pooled ones, are left out.
    floor : FloorStructure
        Shared by none, "gpu", "gpu, class" or "gpu, model".
    models : tuple of str
        The models to invert, those of a class together.

    Raises
    ------
    ValueError
        The floor depends on launches or latencies, which these grids do not set apart; or two classes are inverted
        together under a roof that gives each its own constants.
    """

    def __init__(
        self,
        index: Index,
        targets: Intervals,
        gpus: tuple[str, ...] = SKUS,
        prior: Prior | None = None,
        floor: FloorStructure = PER_MODEL,
        models: tuple[str, ...] = (*DENSE, MOE),
    ):
        self.index, self.prior, self.gpus, self.floor = index, prior or Prior(), gpus, floor
        if floor.sharing is not None and (floor.sharing.per_launch or floor.sharing.kernel_latency):
            raise ValueError(f"{floor}: not for the inversion, whose constants hold a latency per launch")
        if index.roof.per_class and MOE in models and len(models) > 1:
            raise ValueError(f"{index.roof.name}: each class is inverted by itself")
        self.models = models
        self.blocks = [(m, g) for m, g in BLOCKS if g in gpus and m in models]
        self.points = index.grid.points
        columns = [(m, g, b, c) for m, g in self.blocks for b, c in self.points]
        model, gpu, batch, context = zip(*columns, strict=True)
        self.cells = Cells.from_columns(model, gpu, batch, context)
        self.set_of_cell = np.array([gpus.index(g) if index.roof.per_gpu else 0 for g in gpu])
        self.constants = CONSTANTS if index.roof.latency else CONSTANTS[:3]
        known = [r for r in row_names(gpus, models) if r in targets]
        self.rows = [r for r in known if r not in BOUNDS]
        self.bounded = [r for r in known if r in BOUNDS]
        self.names = [*self.rows, *self.bounded, *(r for r in row_names(gpus, models) if r not in known)]
        self.tables = self._tables(_tightened(targets))
        self.unknowns = self.tables.unknowns
        self.size = self.unknowns + len(self.rows)

    def _tables(self, targets: Intervals) -> Tables:
        roof, prior, floor = self.index.roof, self.prior, self.floor
        signed = floor.sharing is None or not floor.positive
        floor_sd = 0.0 if floor.sharing is None else prior.floor_sd_ms if signed else prior.positive_floor_ms[1]
        sets = len(self.gpus) if roof.per_gpu else 1
        logs = np.log(self.points)
        smooth = np.exp(-0.5 * ((logs[:, None, :] - logs[None, :, :]) ** 2).sum(-1) / np.log(8.0) ** 2)
        share, ordered = self.index.discrepancy.smooth_share, self.index.discrepancy.ordered
        eta, eta_slope = prior.eta()
        reading = READINGS[self.index.reading]
        medians = np.array([getattr(prior, name)[0] for name in CONSTANTS])
        figures = [self._figure(name) for name in self.names]
        bounds = np.array([targets.get(name, (-np.inf, np.inf)) for name in self.names])
        free = np.isinf(bounds[:, 0])
        block_size = 2 + CELLS + roof.free
        work = stack_work(self.cells, experts="active")
        return Tables(
            work=_linear_work(work),
            minimum_ms=work_floor_ms(work),
            constants=len(self.constants),
            sets=sets,
            set_of_block=np.ascontiguousarray(self.set_of_cell[::CELLS]),
            eta=eta,
            eta_slope=eta_slope,
            centre=np.log(medians),
            spread=np.array([getattr(prior, name)[1] for name in CONSTANTS]),
            floor_sd_ms=floor_sd,
            leftover=prior.leftover[0],
            leftover_sd=prior.leftover[1],
            free_sd=prior.free * roof.free,
            combine=aggregates.ADDED if signed else _JOINED[floor.combine],
            floor_median_ms=0.0 if signed else prior.positive_floor_ms[0],
            floor_of_block=self._leaders(),
            powers=int(floor.q_free),
            most_power=Q_MAX,
            root=np.linalg.cholesky(share * smooth + (1.0 - share + 1e-9) * np.eye(CELLS)),
            contexts=len(self.index.grid.contexts),
            fall=FALL if ordered else 0.0,
            ratio=RATIO if ordered else 0.0,
            reading=reading.code,
            share=reading.share(self.points),
            kind=np.array([f.kind for f in figures]),
            block=np.array([f.block for f in figures]),
            source=np.array([f.source for f in figures]),
            weight=np.array([f.weight for f in figures]),
            members=np.array([f.members for f in figures]),
            middle=np.where(free, 0.0, 0.5 * (bounds[:, 0] + np.where(free, 0.0, bounds[:, 1]))),
            half=0.5 * (bounds[:, 1] - bounds[:, 0]),
            rows=len(self.rows),
            unknowns=len(self.constants) * sets + len(self.blocks) * block_size + floor.q_free,
        )

    def _leaders(self) -> NDArray[np.int64]:
        """Of each block the first block with the same floor."""
        sharing = self.floor.sharing
        label = (lambda model, _: model) if sharing is None else sharing.label
        owners = [(gpu, label(model, "moe" if model == MOE else "dense")) for model, gpu in self.blocks]
        return np.array([owners.index(owner) for owner in owners], dtype=np.int64)

    def _figure(self, name: str) -> "_Figure":
        """What the figure of a row name is."""
        quantity, model, gpu = [*name.split(), "", ""][:3]

        def at(model: str, gpu: str) -> int:
            return self.blocks.index((model, gpu))

        def only(*cells: int) -> Array:
            return np.isin(np.arange(CELLS), cells).astype(float)

        batch, context = self.points.T
        if gpu == "pooled":
            return _Figure(aggregates.POOLED, members=[self.names.index(f"residual_mape {model} {g}") for g in SKUS])
        if quantity == "anchor_offset":
            return _Figure(aggregates.OFFSET, at(ANCHOR, model), at(ANCHOR, model))
        if quantity == "raw_mape":
            return _Figure(aggregates.RAW, at(model, gpu), at(model, gpu))
        if quantity == "residual_mape":
            return _Figure(aggregates.SHIFTED, at(model, gpu), at(ANCHOR, gpu))
        if quantity in ("self_floor", "self_floor_mape"):
            own = at(model, H100 if model == MOE else A100)
            return _Figure(aggregates.OFFSET if quantity == "self_floor" else aggregates.SHIFTED, own, own)
        if quantity == "cell":
            own, named = at(MOE, H100), np.flatnonzero((self.points == NAMED_CELL).all(1))
            kind = {"measured": aggregates.STEPS, "predicted": aggregates.PREDICTED, "error": aggregates.ERROR}[model]
            return _Figure(kind, own, own, only(*named))
        if quantity == "step_typical":
            own, weight = at(MOE, H100), np.full(CELLS, 1.0 / CELLS)
        elif quantity == "small_batch_step":
            own, weight = at(model, H100), only(np.lexsort((context, batch))[0])
        else:  # long_context_rise
            own, big = at(model, A100), np.flatnonzero(batch == batch.max())
            weight = only(big[np.argmax(context[big])]) - only(big[np.argmin(context[big])])
        return _Figure(aggregates.STEPS, own, own, weight)

    def manifold(self, widen: float = 1.0, blur: float = 0.0) -> Manifold:
        """All q that return the figures, every rounding interval made wider by `widen`.

        `blur` from 0 to 1 turns the uniform place of a figure in its interval into a normal one of the same variance.
        """
        tables = self.tables._replace(half=self.tables.half * widen, blur=float(blur))
        core = (aggregates.value, aggregates.jacobian, aggregates.allowed)
        return Manifold(self.size, len(self.rows), *core, tables)

    def grids(self, q: Array) -> Grids:
        """The grids that each q stands for; q of shape (chain, size)."""
        states = [aggregates.state_of(row, self.tables) for row in np.ascontiguousarray(q)]
        constants = {name: np.stack([s.constant[i] for s in states]) for i, name in enumerate(self.constants)}
        y, T, floor = (np.stack([getattr(s, name) for s in states]) for name in ("y", "T", "floor"))
        return Grids(y, T, floor, constants)

    def places(self, q: Array) -> tuple[Array, NDArray[np.bool_]]:
        """Where in its interval (-1 to 1) each conditioned figure lies; whether all steps of the draw are possible.

        Parameters
        ----------
        q : float array, shape (draw, at least `unknowns`)

        Returns
        -------
        places : float array, shape (draw, figure)
            Of `rows` and then `bounded`.
        possible : bool array, shape (draw,)
        """
        places, possible = aggregates.places(np.ascontiguousarray(q), self.tables)
        return places[:, : len(self.rows) + len(self.bounded)], possible

    def figures(self, q: Array) -> dict[str, Array]:
        """Every figure, unrounded, shape (chain,) each."""
        found = self.grids(q)
        values = [aggregates.figures_of(y, T, self.tables)[0] for y, T in zip(found.y, found.T, strict=True)]
        return dict(zip(self.names, np.array(values).T, strict=True))


class _Figure(NamedTuple):
    """One row of `aggregates.Tables`."""

    kind: int
    block: int = 0
    source: int = 0
    weight: Array = np.zeros(CELLS)
    members: Sequence[int] = (0, 0, 0)


def _linear_work(work: Work) -> Array:
    """T_gpu as a linear function of 1/eta_bw, 1/eta_fa, l_half/eta_fa and latency, shape (4, cell), ms.

    True where no kernel is compute-bound at peak rates: constants only slow the DRAM limb down further.
    """
    peak = gradient_ms(work, Efficiency.peak())
    if np.any(peak["eta_tc"] != 0.0):
        raise ValueError("a kernel of the grid is compute-bound: its roof is not linear in the constants")
    return np.stack([-peak["eta_bw"], -peak["eta_fa"], peak["l_half"], peak["latency_ms"]])


def _tightened(targets: Intervals) -> Intervals:
    """Narrow the named cell's intervals by each other: predicted = measured (1 + error)."""
    out = dict(targets)
    if {"cell measured", "cell predicted", "cell error"} <= set(out):
        (low, high), (p_low, p_high), (e_low, e_high) = (
            out[f"cell {part}"] for part in ("measured", "predicted", "error")
        )
        low, high = max(low, p_low / (1 + e_high / 100)), min(high, p_high / (1 + e_low / 100))
        e_low, e_high = max(e_low, 100 * (p_low / high - 1)), min(e_high, 100 * (p_high / low - 1))
        if low < high and e_low < e_high:
            out["cell measured"], out["cell error"] = (low, high), (e_low, e_high)
    return out
