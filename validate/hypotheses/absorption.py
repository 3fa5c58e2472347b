"""Absorption: what one scalar floor takes up of a residual, and which errors of T_gpu it could be hiding.

`absorption` says how much of y - T_gpu the best scalar removes, beside what it would remove of pure noise.
`hidden_errors` turns the question round: an error of T_gpu of a given kind changes the cells by a direction d
(dT_gpu per unit of its size, ms); what of d lies along the constant cannot be told from a floor. Both are about the
cells at hand: another grid hides something else.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtri

from rooffloor.models.roof.capacity import fits
from rooffloor.models.roof.kernels import KERNELS, Experts, Work, decode_work
from rooffloor.models.roof.roofline import CONSTANTS, Efficiency, gpu_ms, gradient_ms, work_ms
from rooffloor.models.specs.gpus import GpuSpec
from rooffloor.models.specs.shapes import ModelShapes
from rooffloor.validate.estimates.cell_draws import Draws
from rooffloor.validate.estimates.estimate import Estimate, tails, weighted_quantiles
from rooffloor.validate.estimates.metrics import raw_mape, relative_error, residual_mape
from rooffloor.validate.published.imputation.readings import READINGS

type Array = NDArray[np.float64]

SIMULATIONS = 2_000
"""Sets of pure noise per pair."""
LEVEL, POWER = 0.05, 0.8
"""Two-sided level and power of the test whose smallest detectable size is given."""
CANDIDATE_BATCHES = tuple(2.0**k for k in range(9))
CANDIDATE_CONTEXTS = tuple(2.0**k for k in range(9, 17))
"""Axes of the cells that a grid could have besides: 1 to 256 sequences, 512 to 65536 tokens."""


# ---- what a scalar absorbs --------------------------------------------------------------------------------------


class Absorbed(NamedTuple):
    """What the best scalar offset removes of the residual of one set of cells, arrays (draw,); NaN without residual.

    `squared` is the share of the squared relative error that the scalar of relative least squares removes, `absolute`
    that of the mean absolute relative error and the scalar of least MAPE; `left` is the MAPE under the latter, percent.
    """

    squared: Array
    absolute: Array
    left: Array


def absorbed(t_ms: Array, y_ms: Array) -> Absorbed:
    """What the best scalar removes of y - T, each draw by itself.

    Parameters
    ----------
    t_ms, y_ms : float arrays, shape (draw, cell)
        GPU branch and step, ms; one of them may have a single row.

    Notes
    -----
    With the relative error r and u = 1/y the squared share is `(r.u)^2 / (|r|^2 |u|^2)`. The scalars are fitted to the
    very cells that they are judged on.
    """
    t, y = (np.array(a) for a in np.broadcast_arrays(t_ms, y_ms))
    r, u = relative_error(t, y), 1.0 / y
    offset = READINGS["least MAPE"].offset(y, t, np.zeros((y.shape[-1], 2)))
    left = residual_mape(t, y, offset[:, None])
    with np.errstate(invalid="ignore"):
        squared = (r * u).sum(-1) ** 2 / ((r**2).sum(-1) * (u**2).sum(-1))
        return Absorbed(squared, 1.0 - left / raw_mape(t, y), left)


def absorption(draws: Draws, seed: int) -> list[dict[str, Any]]:
    """What the best scalar absorbs of the residual y - T_gpu of every (model, GPU).

    Returns
    -------
    list of dict
        One row per pair: model, gpu, cells; `squared` and `absolute` (shares, see `Absorbed`) and `left` (percent) as
        estimates; `noise_squared` and `noise_absolute`, the shares of pure noise: mean and 90 % interval over
        simulated cells.

    Notes
    -----
    Noise: zero mean, the sd of the pair's posterior, around the same steps. Of noise whose relative sd is the same in
    all cells, a scalar removes on average exactly one part in as many as there are cells.
    """
    rng = np.random.default_rng(seed)
    return [_absorption_row(draws, model, gpu, mask, rng) for model, gpu, mask in draws.pairs()]


def _absorption_row(
    draws: Draws, model: str, gpu: str, mask: NDArray[np.bool_], rng: np.random.Generator
) -> dict[str, Any]:
    found = absorbed(draws.gpu_ms[:, mask], draws.step_ms[:, mask])
    noise = _pure_noise(draws, mask, rng)
    removes = "that the best scalar removes"
    left = draws.estimate(found.left, "MAPE under the best scalar of the pair's own cells", "percent")
    return {
        "model": model,
        "gpu": gpu,
        "cells": int(mask.sum()),
        "squared": draws.estimate(found.squared, f"share of the squared relative error {removes}", "1").data,
        "absolute": draws.estimate(found.absolute, f"share of the absolute relative error {removes}", "1").data,
        "noise_squared": _simulated(noise.squared, f"share of the squared error of pure noise {removes}").data,
        "noise_absolute": _simulated(noise.absolute, f"share of the absolute error of pure noise {removes}").data,
        "left": left.data,
    }


def _pure_noise(draws: Draws, mask: NDArray[np.bool_], rng: np.random.Generator) -> Absorbed:
    """What a scalar removes of the pair's noise alone, `SIMULATIONS` sets of it."""
    rows = rng.choice(len(draws.weight), SIMULATIONS, p=draws.weight)
    y = draws.step_ms[rows if len(draws.step_ms) > 1 else [0]][:, mask]
    noise = draws.noise_ms[rows][:, mask]
    return absorbed(y - noise * rng.standard_normal(noise.shape), y)


def _simulated(values: Array, estimand: str) -> Estimate:
    """Mean, 90 % interval and Monte Carlo error of independent simulations."""
    equal = np.full(len(values), 1.0 / len(values))
    low, high = weighted_quantiles(values, equal, tails(90))
    mcse = float(values.std(ddof=1) / np.sqrt(len(values)))
    return Estimate(float(values.mean()), estimand, "1", {"90": (low, high)}, mcse)


# ---- what a scalar hides ----------------------------------------------------------------------------------------


class ErrorKind(NamedTuple):
    """One way in which T_gpu can be wrong: machine name, words, and the unit of its size."""

    name: str
    label: str
    unit: str


ERRORS = (
    ErrorKind("eta_bw", "an error of the weights' bandwidth (eta_bw)", "percent"),
    ErrorKind("eta_tc", "an error of the tensor-core ceiling (eta_tc)", "percent"),
    ErrorKind("eta_fa", "an error of attention's bandwidth (eta_fa)", "percent"),
    ErrorKind("l_half", "an error of attention's half length (L_half)", "tokens"),
    ErrorKind("query_heads", "attention bound by its query heads, or taken to be", "percent of the switch"),
    ErrorKind("missing_kernel", "a missing kernel of fixed time in every layer", "µs per layer"),
    ErrorKind(
        "missing_batch_kernel",
        "a missing kernel in every layer whose time grows with the batch",
        "µs per layer and sequence",
    ),
    ErrorKind("layers", "a wrong layer count", "layers"),
    ErrorKind("kv_width", "a wrong width of the KV cache", "percent"),
    ErrorKind("experts", "expert traffic under another choice of streamed experts", "percent of the switch"),
)
"""The kinds of error, in the order of the report; `experts` only for mixtures of experts."""


def directions(
    shapes: ModelShapes,
    gpu: GpuSpec,
    batch: ArrayLike,
    context: ArrayLike,
    efficiency: Efficiency,
    experts: Experts = "active",
) -> dict[str, Array]:
    """Change of T_gpu per unit of each kind of error, ms.

    Parameters
    ----------
    shapes, gpu
    batch, context : arrays [...], broadcast
        Sequences in the step, tokens in the cache before it.
    efficiency : Efficiency
        Numbers, where the errors are small departures from.
    experts : {"active", "distinct", "balanced"}

    Returns
    -------
    dict from the name of an error (`ERRORS`) to float array [...]
        Exactly 0 where a cell does not change beyond rounding.

    Notes
    -----
    - `eta_bw`, `eta_tc`, `eta_fa`: the constant 1 % larger (T_gpu falls). `l_half`: one token more.
    - `kv_width`: the bytes of a cache value 1 % larger, read and write. A wrong number of KV heads also changes the
      qkv weights; these are the same in every cell and hidden wholly, so that what shows of it is the same.
    - `layers`: one layer more, with all that belongs to it.
    - `query_heads` (1 % of it): the limb of the query heads is switched off where `efficiency` has it, else on, the
      cache then read once per query head at eta_fa. Nothing where every query head has its own KV head.
    - `experts` (1 % of it): `distinct` in place of the choice at hand; `active` in place of `distinct`.
    - `missing_kernel`: 1 µs in every layer, whatever the cell, like a launch, a norm or a rotation whose tensors stay
      in cache. A scalar hides it by construction; it is listed for what it does to a known floor.
      `missing_batch_kernel`: 1 µs in every layer for each sequence, like an all-reduce or an unfused elementwise
      kernel on hidden states that no longer fit. No formula of the roof is involved in either.
    """
    work = decode_work(shapes, batch, context, gpu=gpu, experts=experts)
    right, slopes = work_ms(work, efficiency), gradient_ms(work, efficiency)
    query_heads = replace(efficiency, rho_q=efficiency.eta_fa if efficiency.rho_q is None else None)
    changes = {name: 0.01 * getattr(efficiency, name) * slopes[name] for name in ("eta_bw", "eta_tc", "eta_fa")}
    changes |= {
        "l_half": slopes["l_half"],
        "query_heads": 0.01 * (work_ms(work, query_heads) - right),
        "missing_kernel": np.full(right.shape, 1e-3 * shapes.layers),
        "missing_batch_kernel": 1e-3 * shapes.layers * work.tokens,
        "layers": gpu_ms(_deeper(shapes), gpu, batch, context, efficiency, experts) - right,
        "kv_width": work_ms(_wider_cache(work, 1.01), efficiency) - right,
    }
    if shapes.is_moe:
        other: Experts = "active" if experts == "distinct" else "distinct"
        changes["experts"] = 0.01 * (gpu_ms(shapes, gpu, batch, context, efficiency, other) - right)
    return {name: np.where(np.abs(d) > 1e-12 * right, d, 0.0) for name, d in changes.items()}


def _deeper(shapes: ModelShapes) -> ModelShapes:
    """The model with one layer more; where KV heads vary by layer, it has the mean number of them."""
    total = shapes.kv_heads_total
    return replace(
        shapes, layers=shapes.layers + 1, kv_heads_total=total + max(1, round(total / shapes.layers)) if total else 0
    )


def _wider_cache(work: Work, factor: float) -> Work:
    """The work with cache values of `factor` times the bytes."""
    wider = np.where(np.array(KERNELS) == "kv_write", factor, 1.0)
    return replace(
        work, bytes=work.bytes * wider, kv_bytes=work.kv_bytes * factor, kv_token_bytes=work.kv_token_bytes * factor
    )


class Visibility(NamedTuple):
    """What of an error shows in some cells beside a free scalar, arrays [...].

    `share_hidden` of the squared direction (weights 1/sd^2) is taken up by the scalar (NaN for a direction of zeros),
    which moves by `floor_ms` per unit of the error. `detectable` is the smallest size, in units of the direction,
    found with a power of 80 % by a two-sided test at 5 %, `detectable_known_floor` that with the scalar known exactly;
    infinite where nothing shows.
    """

    share_hidden: Array
    floor_ms: Array
    detectable: Array
    detectable_known_floor: Array


def visibility(direction_ms: ArrayLike, noise_ms: ArrayLike) -> Visibility:
    """What of an error shows beside a free scalar, under independent normal noise of known sd.

    Parameters
    ----------
    direction_ms : array, shape (..., cell)
        Change of the cells per unit of the error, ms.
    noise_ms : array, broadcast, shape (..., cell)
        sd of a step, ms; above 0.

    Notes
    -----
    The information on the size is d'Wd with the floor known and d'Wd - (d'W1)^2 / 1'W1 with it free, W = 1/sd^2. The
    smallest size is (z_0.975 + z_0.8) = 2.80 over its square root: the estimate is normal, its sd known.
    """
    d, w = np.broadcast_arrays(np.asarray(direction_ms, dtype=float), 1.0 / np.asarray(noise_ms, dtype=float) ** 2)
    centre = (w * d).sum(-1) / w.sum(-1)
    known, free = (w * d**2).sum(-1), (w * (d - centre[..., None]) ** 2).sum(-1)
    free = np.where(free > 1e-18 * known, free, 0.0)
    least = ndtri(1.0 - LEVEL / 2.0) + ndtri(POWER)
    with np.errstate(divide="ignore", invalid="ignore"):
        return Visibility(np.clip(1.0 - free / known, 0.0, 1.0), centre, least / np.sqrt(free), least / np.sqrt(known))


def candidate_cells(shapes: ModelShapes, gpu: GpuSpec, batch: Array, context: Array) -> tuple[Array, Array]:
    """Cells that a grid could have besides its own: batch and context of each, arrays (candidate,).

    Powers of two within `CANDIDATE_BATCHES` and `CANDIDATE_CONTEXTS` that the model's positions allow and that fit
    into the GPU's memory. Cells that the grid has are left out: measured again, they would tell noise from discrepancy
    no better.
    """
    b, c = (axis.ravel() for axis in np.meshgrid(CANDIDATE_BATCHES, CANDIDATE_CONTEXTS, indexing="ij"))
    measured = np.isin(b + 1j * c, np.asarray(batch) + 1j * np.asarray(context))
    possible = (c < shapes.max_context) & fits(shapes, gpu, b, c + 1.0) & ~measured
    return b[possible], c[possible]


def detectable_with(direction_ms: Array, noise_ms: Array, extra_ms: Array, extra_noise_ms: Array) -> Array:
    """`Visibility.detectable` with one more cell, for each of several such cells: arrays (cell,), (candidate,)."""

    def joined(own: Array, extra: Array) -> Array:
        return np.concatenate([np.broadcast_to(own, (len(extra), len(own))), extra[:, None]], axis=-1)

    return visibility(joined(direction_ms, extra_ms), joined(noise_ms, extra_noise_ms)).detectable


def mean_efficiency(draws: Draws, constants: Mapping[str, Mapping[str, Array]]) -> dict[str, Efficiency]:
    """Posterior means of the efficiency constants on each GPU of the draws; peak rates for those not among them.

    `constants` is `Evidence.constants["primary"]`: name to {gpu or "all GPUs": draws, shape (draw,)}.
    """
    found = {}
    for gpu in draws.cells.gpus:
        values = {name: by_gpu.get(gpu, by_gpu.get("all GPUs")) for name, by_gpu in constants.items()}
        means: dict[str, Any] = {
            n: float(draws.weight @ v) for n, v in values.items() if n in CONSTANTS and v is not None
        }
        found[gpu] = replace(Efficiency.peak(), **means)
    return found


def hidden_errors(
    draws: Draws,
    shapes: Mapping[str, ModelShapes],
    gpus: Mapping[str, GpuSpec],
    efficiency: Mapping[str, Efficiency],
    experts: Experts = "active",
) -> list[dict[str, Any]]:
    """What a free scalar hides of each kind of error of T_gpu, per (model, GPU), and the cell that would show more.

    Parameters
    ----------
    draws : Draws
        Grid, noise and mean step of each pair; where imputed grids differ in their axes, those of the grid with most
        weight.
    shapes, gpus, efficiency : mappings from the names in `draws`
        Efficiency in numbers: `mean_efficiency`.
    experts : {"active", "distinct", "balanced"}

    Returns
    -------
    list of dict
        One row per pair and error: model, gpu, error, label, unit; share_hidden, floor_shift (ms per unit),
        detectable, detectable_known_floor (in units); best_batch, best_context (None where no cell helps),
        detectable_with_it.

    Notes
    -----
    The noise is taken as known and independent between cells, and errors one at a time: several at once, or a leftover
    that is smooth over the grid, hide more. At a cell that was not measured the noise is the pair's median relative
    one times the step, and no less than the least on the grid. Sizes are linear continuations: one above 100 percent
    means hidden for all purposes.
    """
    rows = []
    for model, gpu, mask in draws.pairs():
        grid = _Grid.of(draws, mask)
        batch, context = candidate_cells(shapes[model], gpus[gpu], grid.batch, grid.context)
        every = np.append(grid.batch, batch), np.append(grid.context, context)
        roof = (shapes[model], gpus[gpu], *every, efficiency[gpu], experts)
        changes, cells = directions(*roof), len(grid.batch)
        extra_noise = grid.noise_elsewhere(gpu_ms(*roof)[cells:])
        for kind in ERRORS:
            if kind.name not in changes:
                continue
            own, extra = np.split(changes[kind.name], [cells])
            seen = visibility(own, grid.noise_ms)
            sizes = detectable_with(own, grid.noise_ms, extra, extra_noise)
            best = int(sizes.argmin()) if len(sizes) and sizes.min() < seen.detectable else None
            rows.append(
                {
                    "model": model,
                    "gpu": gpu,
                    "error": kind.name,
                    "label": kind.label,
                    "unit": kind.unit,
                    "share_hidden": float(seen.share_hidden),
                    "floor_shift": float(seen.floor_ms),
                    "detectable": float(seen.detectable),
                    "detectable_known_floor": float(seen.detectable_known_floor),
                    "best_batch": None if best is None else float(batch[best]),
                    "best_context": None if best is None else float(context[best]),
                    "detectable_with_it": float(seen.detectable if best is None else sizes[best]),
                }
            )
    return rows


@dataclass(frozen=True, eq=False)
class _Grid:
    """Cells of one pair: axes, posterior means of floor, step and noise sd (ms), arrays (cell,)."""

    batch: Array
    context: Array
    floor_ms: float
    mean_ms: Array
    noise_ms: Array

    @classmethod
    def of(cls, draws: Draws, mask: NDArray[np.bool_]) -> "_Grid":
        axes = np.concatenate([draws.batch[:, mask], draws.context[:, mask]], axis=-1)
        grids, member = np.unique(axes, axis=0, return_inverse=True)
        most, weight = 0, draws.weight
        if len(grids) > 1:
            most = int(np.bincount(member, weight).argmax())
            weight = np.where(member == most, weight, 0.0)
        weight = weight / weight.sum()
        batch, context = np.split(grids[most], 2)
        floor = float(weight @ draws.floor_ms[:, mask].mean(-1))
        return cls(batch, context, floor, weight @ draws.mean_ms[:, mask], weight @ draws.noise_ms[:, mask])

    def noise_elsewhere(self, gpu_ms: Array) -> Array:
        """Noise sd to expect at cells with that T_gpu, ms."""
        relative = np.median(self.noise_ms / np.abs(self.mean_ms))
        return np.maximum(relative * (gpu_ms + self.floor_ms), self.noise_ms.min())
