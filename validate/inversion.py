"""From unknown grids to the published figures, with derivatives: what `reconstruction` inverts.

A published figure is an interval (its rounding), uniform inside. `Inversion` maps a standard normal vector to whole
grids (step times y, GPU times T, constants, floors) and to every figure of the study, and is the manifold on
which `manifold.sample` moves. All grids are block-major: ten (model, GPU) blocks of 15 cells.
"""

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logit, ndtr

from models.cells import Cells
from models.kernels import stack_work
from models.roofline import Efficiency, gradient_ms, work_floor_ms, work_ms

type Array = NDArray[np.float64]
type Slope = tuple[slice, Array, Array]

ANCHOR = "Llama-3.1-8B"
SMALL = "Llama-3.2-1B"
MOE = "Qwen1.5-MoE-A2.7B"
DENSE = (ANCHOR, "Qwen2.5-7B", SMALL)
SKUS = ("H100", "H200", "A100-40GB")
BLOCKS = (*((model, gpu) for model in DENSE for gpu in SKUS), (MOE, "H100"))
CELLS = 15
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
    Grid("5 batches x 3 contexts", (1, 2, 4, 8, 16), (512, 2048, 8192)),
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
    free : bool
        Each cell's T also strays from the roof by a lognormal factor.
    """

    name: str
    latency: bool = False
    per_gpu: bool = False
    free: bool = False


ROOFS = (
    Roof("three constants"),
    Roof("three constants + launch latency", latency=True),
    Roof("constants per GPU", latency=True, per_gpu=True),
    Roof("free T per cell", latency=True, per_gpu=True, free=True),
)


@dataclass(frozen=True)
class Discrepancy:
    """Prior on what roof and floor leave over within one (model, GPU): the share that varies smoothly over the grid."""

    name: str
    smooth_share: float


DISCREPANCIES = (Discrepancy("independent cells", 0.0), Discrepancy("smooth over the grid", 0.8))

# An offset reading says how one offset is read off the differences d = y - T of one grid: it returns the offset
# and its derivatives with respect to d and (directly) to y. Arrays have shape (chain, 15).
type Reading = Callable[[Array, Array, Array], tuple[Array, Array, Array]]


def _mean_where(keep: Callable[[Array], NDArray[np.bool_]]) -> Reading:
    def read(d: Array, y: Array, points: Array) -> tuple[Array, Array, Array]:
        weight = keep(points) / keep(points).sum()
        return d @ weight, np.broadcast_to(weight, d.shape), np.zeros_like(d)

    return read


def _weighted_median(d: Array, weight: Array) -> tuple[Array, Array, Array]:
    order = np.argsort(d, axis=-1)
    cumulated = np.cumsum(np.take_along_axis(weight, order, -1), -1)
    position = np.argmax(cumulated >= 0.5 * cumulated[..., -1:], axis=-1)
    chosen = np.take_along_axis(order, position[..., None], -1)
    slope = np.zeros_like(d)
    np.put_along_axis(slope, chosen, 1.0, -1)
    return np.take_along_axis(d, chosen, -1)[..., 0], slope, np.zeros_like(d)


def _relative_least_squares(d: Array, y: Array, points: Array) -> tuple[Array, Array, Array]:
    square = 1.0 / y**2
    total = square.sum(-1, keepdims=True)
    offset = (d * square).sum(-1) / total[..., 0]
    return offset, square / total, -2.0 * square / y * (d - offset[..., None]) / total


READINGS: Mapping[str, Reading] = {
    "mean": _mean_where(lambda p: np.ones(len(p), bool)),
    "relative least squares": _relative_least_squares,
    "median": lambda d, y, points: _weighted_median(d, np.ones_like(d)),
    "least MAPE": lambda d, y, points: _weighted_median(d, 1.0 / y),
    "smallest batch": _mean_where(lambda p: p[:, 0] == p[:, 0].min()),
    "largest batch": _mean_where(lambda p: p[:, 0] == p[:, 0].max()),
    "shortest context": _mean_where(lambda p: p[:, 1] == p[:, 1].min()),
    "longest context": _mean_where(lambda p: p[:, 1] == p[:, 1].max()),
}


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


@dataclass(frozen=True)
class Prior:
    """Priors of the inversion as (median, sd on the logit or log scale).

    Measured GEMMs stream weights at 0.75 (A100) to 0.87 (Hopper) of peak and eager stacks do worse; kernels follow one
    another within a few microseconds at best, tens in eager stacks; the published offsets run from -2.4 to
    19.6 ms and the published residuals from 3 to 9 %.
    """

    eta_bw: tuple[float, float] = (0.75, 0.8)
    eta_fa: tuple[float, float] = (0.6, 1.0)
    l_half: tuple[float, float] = (200.0, 1.0)
    latency_ms: tuple[float, float] = (0.006, 1.0)
    floor_sd_ms: float = 8.0
    leftover: tuple[float, float] = (0.06, 0.7)
    free: float = 0.15
    """Under `Roof.free`: sd of log T around the roof; half the variance is a block's, half a cell's."""


CONSTANTS = ("eta_bw", "eta_fa", "l_half", "latency_ms")
"""The study's constants that its grid can see. At B <= 16 no GEMM is compute-bound: eta_tc stays at 1, unseen."""


@dataclass(frozen=True)
class Grids:
    """Imputed grids; `y` and `T` have shape (chain, cell) in ms, `constants` (chain, set), the rest (chain, block)."""

    y: Array
    T: Array
    floor: Array
    leftover: Array
    constants: dict[str, Array]


class Inversion:
    """The study under one `Index`: from q, standard normal, to grids, figures and their derivatives.

    q holds the constants (of all GPUs, or of each), per block a floor, a leftover scale and 15 leftovers, under
    `Roof.free` a block factor and 15 cell factors, and last one latent per figure: where in its rounding it lies.

    Parameters
    ----------
    index : Index
    targets : mapping from row name (see `row_names`) to (low, high)
        The intervals of the figures that are conditioned on; others are computed but left free.
    gpus : tuple of str
        The GPUs to invert; figures of others, and pooled ones, are left out.
    """

    def __init__(
        self,
        index: Index,
        targets: Mapping[str, tuple[float, float]],
        gpus: tuple[str, ...] = SKUS,
        prior: Prior | None = None,
    ):
        self.index, self.prior, self.gpus = index, prior or Prior(), gpus
        self.blocks = [(m, g) for m, g in BLOCKS if g in gpus]
        points = self.points = index.grid.points
        columns = [(m, g, b, c) for m, g in self.blocks for b, c in points]
        model, gpu, batch, context = zip(*columns, strict=True)
        self.cells = Cells.from_columns(model, gpu, batch, context)
        self.work = stack_work(self.cells, experts="active")
        self.minimum_ms = work_floor_ms(self.work)
        gap = np.log(points)[:, None, :] - np.log(points)[None, :, :]
        smooth = np.exp(-0.5 * (gap**2).sum(-1) / np.log(8.0) ** 2)
        share = index.discrepancy.smooth_share
        self.root = np.linalg.cholesky(share * smooth + (1.0 - share + 1e-9) * np.eye(CELLS))
        self.set_of_cell = np.array([gpus.index(g) if index.roof.per_gpu else 0 for g in gpu])
        self.sets = len(gpus) if index.roof.per_gpu else 1
        self.constants = CONSTANTS if index.roof.latency else CONSTANTS[:3]
        self.block_start = len(self.constants) * self.sets
        self.block_size = 2 + CELLS + (1 + CELLS) * index.roof.free
        self.unknowns = self.block_start + len(self.blocks) * self.block_size
        known = [r for r in row_names(gpus) if r in targets]
        self.rows = [r for r in known if r not in BOUNDS]
        self.bounded = [r for r in known if r in BOUNDS]
        targets = _tightened(targets)
        bounds = np.array([targets[r] for r in [*self.rows, *self.bounded]]).reshape(-1, 2)
        self.centre, self.half = bounds.mean(1), 0.5 * np.diff(bounds, axis=1)[:, 0]
        self.size = self.unknowns + len(self.rows)

    def widened(self, factor: float) -> "Inversion":
        """The same inversion with every rounding interval made wider by `factor`."""
        wide = copy.copy(self)
        wide.half = self.half * factor
        return wide

    # ---- the manifold -------------------------------------------------------------------------------------------
    def value(self, q: Array) -> Array:
        """Figures minus the place that their latents claim, in units of half the rounding; shape (chain, row)."""
        return self._misfit(self.grids(q))[:, : len(self.rows)] - (2.0 * ndtr(q[:, self.unknowns :]) - 1.0)

    def jacobian(self, q: Array) -> Array:
        """Derivative of `value`, shape (chain, row, size)."""
        grids, parts = self._grids(q, derivatives=True)
        by_y, by_T = self._slopes(grids.y, grids.T)
        half = self.half[: len(self.rows), None]
        return self._chain_rule(q, grids, parts, by_y / half, by_T / half)

    def allowed(self, q: Array) -> NDArray[np.bool_]:
        """Whether the figures of `BOUNDS` lie in their intervals and no step below its bytes at peak bandwidth."""
        grids = self.grids(q)
        within = np.abs(self._misfit(grids)[:, len(self.rows) :]) <= 1.0
        return np.all(within, axis=-1) & np.all(grids.y >= self.minimum_ms, axis=-1)

    def _misfit(self, grids: Grids) -> Array:
        """Row figures and bounded figures from the middle of their intervals, in units of half the rounding."""
        figures = self._figures(grids.y, grids.T)[0]
        values = np.stack([figures[row] for row in (*self.rows, *self.bounded)], axis=-1)
        return (values - self.centre) / self.half

    # ---- physical quantities ------------------------------------------------------------------------------------
    def grids(self, q: Array) -> Grids:
        """The grids that q stands for."""
        return self._grids(q, derivatives=False)[0]

    def figures(self, q: Array) -> dict[str, Array]:
        """Every figure, unrounded, shape (chain,) each."""
        grids = self.grids(q)
        return self._figures(grids.y, grids.T)[0]

    def _constants(self, q: Array) -> tuple[dict[str, Array], dict[str, Array]]:
        """Constants and their derivative by their own latent, each of shape (chain, set)."""
        values, slopes = {}, {}
        for i, name in enumerate(self.constants):
            latent = q[:, i * self.sets : (i + 1) * self.sets]
            median, sd = getattr(self.prior, name)
            if name.startswith("eta"):
                values[name] = expit(logit(median) + sd * latent)
                slopes[name] = sd * values[name] * (1.0 - values[name])
            else:
                values[name] = median * np.exp(sd * latent)
                slopes[name] = sd * values[name]
        return values, slopes

    def _grids(self, q: Array, derivatives: bool) -> tuple[Grids, dict[str, Array]]:
        q = np.clip(q, -8.0, 8.0)  # beyond lies a prior mass of 1e-15; keeps trial points finite
        constants, slopes = self._constants(q)
        by_cell: dict[str, Any] = {name: v[:, self.set_of_cell] for name, v in constants.items()}
        efficiency = Efficiency(**by_cell)
        roof = work_ms(self.work, efficiency)
        block = q[:, self.block_start : self.unknowns].reshape(len(q), len(self.blocks), self.block_size)
        floor = self.prior.floor_sd_ms * block[..., 0]
        median, sd = self.prior.leftover
        scale = median * np.exp(sd * block[..., 1])
        leftover = block[..., 2 : 2 + CELLS] @ self.root.T
        T = roof.reshape(leftover.shape)
        if self.index.roof.free:
            side = self.prior.free * np.sqrt(0.5)
            T = T * np.exp(side * (block[..., 2 + CELLS, None] + block[..., 3 + CELLS :]))
        # The level T + floor is kept positive by a smooth hinge, so that a negative floor cannot pass through zero.
        level, hinge = _positive(T + floor[..., None], 0.2 * T)
        factor = np.exp(scale[..., None] * leftover)
        y = level * factor
        flat = (len(q), -1)
        grids = Grids(y.reshape(flat), T.reshape(flat), floor, scale, constants)
        if not derivatives:
            return grids, {}
        gradient = gradient_ms(self.work, efficiency)
        parts = {f"d{name}": gradient[name] * slopes[name][:, self.set_of_cell] for name in self.constants}
        if self.index.roof.free:
            parts = {name: part * (T / roof.reshape(T.shape)).reshape(flat) for name, part in parts.items()}
        own, bound = hinge
        parts["y_by_T"] = ((own + 0.2 * bound) * factor).reshape(flat)
        parts["y_by_floor"] = (own * factor * self.prior.floor_sd_ms).reshape(flat)
        parts["y_by_scale"] = (y * leftover * sd * scale[..., None]).reshape(flat)
        parts["y_by_leftover"] = (y * scale[..., None]).reshape(flat)
        return grids, parts

    def _chain_rule(self, q: Array, grids: Grids, parts: Mapping[str, Array], by_y: Array, by_T: Array) -> Array:
        chains, rows = by_y.shape[:2]
        out = np.zeros((chains, rows, self.size))
        total_T = by_T + by_y * parts["y_by_T"][:, None, :]
        for i, name in enumerate(self.constants):
            through = total_T * parts[f"d{name}"][:, None, :]
            for k in range(self.sets):
                out[:, :, i * self.sets + k] = through[..., self.set_of_cell == k].sum(-1)
        shape = (chains, rows, len(self.blocks), CELLS)
        block = out[:, :, self.block_start : self.unknowns].reshape(chains, rows, len(self.blocks), self.block_size)
        block[..., 0] = (by_y * parts["y_by_floor"][:, None, :]).reshape(shape).sum(-1)
        block[..., 1] = (by_y * parts["y_by_scale"][:, None, :]).reshape(shape).sum(-1)
        block[..., 2 : 2 + CELLS] = (by_y * parts["y_by_leftover"][:, None, :]).reshape(shape) @ self.root
        if self.index.roof.free:
            side = self.prior.free * np.sqrt(0.5)
            through = (total_T * grids.T[:, None, :] * side).reshape(shape)
            block[..., 2 + CELLS] = through.sum(-1)
            block[..., 3 + CELLS :] = through
        out[:, :, self.block_start : self.unknowns] = block.reshape(chains, rows, -1)
        density = np.exp(-0.5 * q[:, self.unknowns :] ** 2) / np.sqrt(2.0 * np.pi)
        at = np.arange(rows)
        out[:, at, self.unknowns + at] = -2.0 * density
        return out

    # ---- the published figures ----------------------------------------------------------------------------------
    def _slopes(self, y: Array, T: Array) -> tuple[Array, Array]:
        """Derivatives of the conditioned figures by y and by T, each (chain, row, cell)."""
        slopes = self._figures(y, T)[1]
        by_y = np.zeros((len(y), len(self.rows), y.shape[1]))
        by_T = np.zeros_like(by_y)
        for i, row in enumerate(self.rows):
            for at, slope_y, slope_T in slopes[row]:
                by_y[:, i, at] += slope_y
                by_T[:, i, at] += slope_T
        return by_y, by_T

    def _figures(self, y: Array, T: Array) -> tuple[dict[str, Array], dict[str, list[Slope]]]:
        """Every figure (chain,) by row name, and its derivatives by y and T over the slices they touch."""
        figures: dict[str, Array] = {}
        slopes: dict[str, list[Slope]] = {}
        points = self.points

        def block(model: str, gpu: str) -> slice:
            at = self.blocks.index((model, gpu)) * CELLS
            return slice(at, at + CELLS)

        def mape(at: slice, offset: Array | float) -> tuple[Array, Array, Array, Array]:
            """MAPE in percent; derivatives by y, T and the offset."""
            predicted = T[:, at] + (offset[:, None] if isinstance(offset, np.ndarray) else offset)
            error = predicted / y[:, at] - 1.0
            by = np.sign(error) / y[:, at] * (100.0 / CELLS)
            return np.abs(error).mean(-1) * 100.0, -by * predicted / y[:, at], by, by.sum(-1)

        def put(name: str, value: Array, *by: Slope) -> None:
            figures[name], slopes[name] = value, list(by)

        def read_offset(at: slice) -> tuple[Array, Array, Array]:
            value, by_d, by_y = READINGS[self.index.reading](y[:, at] - T[:, at], y[:, at], points)
            return value, by_d + by_y, -by_d

        for gpu in self.gpus:
            anchor = block(ANCHOR, gpu)
            offset, offset_y, offset_T = read_offset(anchor)
            put(f"anchor_offset {gpu}", offset, (anchor, offset_y, offset_T))
            for model in DENSE:
                at = block(model, gpu)
                value, by_y, by_T, _ = mape(at, 0.0)
                put(f"raw_mape {model} {gpu}", value, (at, by_y, by_T))
                value, by_y, by_T, by_offset = mape(at, offset)
                through = by_offset[:, None]
                put(
                    f"residual_mape {model} {gpu}",
                    value,
                    (at, by_y, by_T),
                    (anchor, through * offset_y, through * offset_T),
                )
        if self.gpus == SKUS:
            for model in DENSE:
                own = [figures[f"residual_mape {model} {gpu}"] for gpu in SKUS]
                put(f"residual_mape {model} pooled", np.mean(own, axis=0))
        for model, gpu in ((SMALL, "A100-40GB"), (MOE, "H100")):
            if gpu not in self.gpus:
                continue
            at = block(model, gpu)
            offset, offset_y, offset_T = read_offset(at)
            put(f"self_floor {model}", offset, (at, offset_y, offset_T))
            value, by_y, by_T, by_offset = mape(at, offset)
            through = by_offset[:, None]
            put(f"self_floor_mape {model}", value, (at, by_y + through * offset_y, by_T + through * offset_T))
        one_hot = np.eye(CELLS)
        if "H100" in self.gpus:
            named = one_hot[int(np.flatnonzero((points == NAMED_CELL).all(1))[0])]
            moe = block(MOE, "H100")
            offset, offset_y, offset_T = read_offset(moe)
            measured, predicted = y[:, moe] @ named, T[:, moe] @ named + offset
            put("cell measured", measured, (moe, named, 0.0 * named))
            put("cell predicted", predicted)
            ratio, hundred = (predicted / measured)[:, None], (100.0 / measured)[:, None]
            by_y, by_T = hundred * (offset_y - ratio * named), hundred * (offset_T + named)
            put("cell error", 100.0 * (ratio[:, 0] - 1.0), (moe, by_y, by_T))
            even = np.full(CELLS, 1.0 / CELLS)
            put(f"step_typical {MOE}", y[:, moe] @ even, (moe, even, 0.0 * even))
            first = one_hot[int(np.lexsort((points[:, 1], points[:, 0]))[0])]
            for model in DENSE:
                at = block(model, "H100")
                put(f"small_batch_step {model}", y[:, at] @ first, (at, first, 0.0 * first))
        if "A100-40GB" in self.gpus:
            big = np.flatnonzero(points[:, 0] == points[:, 0].max())
            rise = one_hot[big[np.argmax(points[big, 1])]] - one_hot[big[np.argmin(points[big, 1])]]
            for model in DENSE:
                at = block(model, "A100-40GB")
                put(f"long_context_rise {model}", y[:, at] @ rise, (at, rise, 0.0 * rise))
        return figures, slopes


def _tightened(targets: Mapping[str, tuple[float, float]]) -> dict[str, tuple[float, float]]:
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


def _positive(level: Array, bound: Array) -> tuple[Array, tuple[Array, Array]]:
    """max(level, bound), smoothed over the width of the bound, with derivatives by level and by bound."""
    gap = level - bound
    root = np.sqrt(gap**2 + (0.2 * bound) ** 2)
    value = bound + 0.5 * (gap + root)
    own = 0.5 * (1.0 + gap / root)
    return value, (own, 1.0 - own + 0.5 * 0.04 * bound / root)


def row_names(gpus: tuple[str, ...] = SKUS) -> list[str]:
    """Names of the figures of some GPUs that `Inversion` can condition on, in a fixed order."""
    names = [f"anchor_offset {g}" for g in gpus]
    names += [f"{q} {m} {g}" for q in ("raw_mape", "residual_mape") for m in DENSE for g in gpus]
    if "H100" in gpus:
        names += [
            f"self_floor {MOE}",
            f"self_floor_mape {MOE}",
            "cell measured",
            "cell predicted",
            "cell error",
        ]
        names += [f"step_typical {MOE}", *(f"small_batch_step {m}" for m in DENSE)]
    if "A100-40GB" in gpus:
        names += [f"self_floor {SMALL}", f"self_floor_mape {SMALL}"]
        names += [f"long_context_rise {m}" for m in DENSE]
    if gpus == SKUS:
        names += [f"residual_mape {m} pooled" for m in DENSE]
    return names
