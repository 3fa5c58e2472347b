"""The Bayesian model of decode steps: constants of the GPU branch, hierarchical floors, noise.

step[cell] = combine(T_gpu[cell], floor[cell]);  y ~ Normal or Student-t(step, sqrt(s² + (σ·step)² +
known²)). s keeps the noise off zero where a negative floor pushes the step through 0.

Names in the posterior, with their dims:

- ``eta_bw``, ``eta_fa``, ``eta_tc`` (in (0, 1)), ``l_half`` (tokens), ``rho_q``: with free constants.
- ``floor_ms`` (gpu, class), (gpu, model) or (gpu): the floors, also of pairs that were never measured.
- ``floor_sd_gpu_ms``, ``floor_sd_class_ms`` (or ``_model_ms``), ``floor_sd_pair_ms``: scales of the SKU,
  class and pair effects; of the logarithm, and without ``_ms``, where floors are H >= 0. The effects
  themselves are integrated out.
- ``q``: the overlap, where it is free.
- ``launch_ms`` (gpu) (signed floors) or ``launch_share`` (gpu) (H >= 0): how a floor per launch grows; ``floor_ms``
  is then the floor at the mean number of launches, ``launches_at_floor``.
- ``latency_ms``: latency per kernel inside T_gpu, where the structure frees it.
- ``noise_relative`` (noisy_model) (σ) with its hierarchy over models ``noise_level``, ``noise_spread`` and
  ``noise_own``; ``noise_ms`` (s); ``student_nu`` (Student-t only).
- ``z_floor`` (contrast), ``z_unmeasured`` (unmeasured), ``z_noise`` (noise_contrast), ``z_noise_mean`` and
  ``z_noise_level``: what the sampler moves in place of ``floor_ms`` and of the hierarchy of the noise.

Observed: ``step_ms`` (cell). Data that a refit may replace: ``measured_ms``, ``known_sd_ms``,
``pair_code``, ``noisy_model_code``, ``gpu_ms`` or the fields of ``PeakTimes``, ``anchor_floor_ms``, ``anchor_q``
and ``relative_launches``. No variable has one value per cell, so that a compiled model can be refitted to other cells.

Parametrisation. Floors with many cells are known to a tenth of a millisecond whatever the hierarchy says,
and an error of η_bw moves all of them at once: non-centred effects then lie on narrow ridges, and centred
floors in a funnel where the pair effects may vanish. So the effects are integrated out, exactly, and the
sampler moves ``z``, the contrasts of the floors (of their logarithms where H >= 0; overall, SKUs, classes,
pairs) measured from where normal theory puts them given the scales and what each cell says (`_guess`), in units of
their sd there. The Jacobian is included: the posterior is that of the plain hierarchy.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from numpy.typing import ArrayLike, NDArray

from rooffloor.models.floor.structures import Q_MAX, FloorStructure
from rooffloor.models.inference.noise import variance_ms2
from rooffloor.models.inference.priors import DEFAULT_PRIORS, Priors
from rooffloor.models.roof.kernels import KERNELS, PeakTimes, Work, launches_of
from rooffloor.models.roof.roofline import Efficiency, combine
from rooffloor.models.specs.cells import Cells

Array = NDArray[np.float64]


@dataclass(frozen=True)
class KnownFloors:
    """Floors that are given and not estimated: those of an anchor, in the second stage of a cut.

    Attributes
    ----------
    model : str
        The anchor; every model that shares its group under the structure has these floors.
    floor_ms : mapping of GPU name to ms
        One floor per SKU on which the anchor was measured.
    q : float
        The overlap drawn with them, where the structure has one.
    launches : float
        Kernel launches of the anchor in one step, where floors grow with them.
    """

    model: str
    floor_ms: Mapping[str, float]
    q: float = 1.0
    launches: float = 0.0


@dataclass(frozen=True, eq=False)
class _Layout:
    """Where each floor of the grid [gpu, group] comes from: estimated, known (the anchor's) or never measured.

    `measured`, `known` and `unmeasured` are index pairs (gpu, group), each (2, n); `code` [cell] counts the measured
    floors and then the known ones.
    """

    gpus: tuple[str, ...]
    dim: str | None
    labels: tuple[str, ...]
    measured: NDArray[np.int64]
    known: NDArray[np.int64]
    unmeasured: NDArray[np.int64]
    code: NDArray[np.int64]
    known_ms: Array

    @classmethod
    def of(
        cls, cells: Cells, classes: Mapping[str, str], structure: FloorStructure, known: KnownFloors | None
    ) -> "_Layout":
        sharing = structure.sharing
        assert sharing is not None
        groups = structure.groups(cells, classes)
        gpus, anchor = cells.gpus, -1
        if known is not None:
            gpus = tuple(dict.fromkeys((*gpus, *known.floor_ms)))
            label = sharing.label(known.model, classes[known.model])
            groups = groups.including(label)
            anchor = groups.labels.index(label)
        given = {(gpus.index(g), anchor): ms for g, ms in (known.floor_ms if known else {}).items()}
        of_cell = list(zip(cells.gpu_code.tolist(), groups.code.tolist(), strict=True))
        estimated = [pair for pair in dict.fromkeys(of_cell) if pair not in given]
        rest = [p for p in np.ndindex(len(gpus), len(groups.labels)) if p not in given and p not in set(estimated)]
        order = {pair: i for i, pair in enumerate([*estimated, *given])}

        def index(pairs: list[tuple[int, int]]) -> NDArray[np.int64]:
            return np.array(pairs, dtype=np.int64).reshape(-1, 2).T

        return cls(
            gpus,
            groups.dim,
            groups.labels,
            index(estimated),
            index(list(given)),
            index(rest),
            np.array([order[pair] for pair in of_cell], dtype=np.int64),
            np.array(list(given.values()), dtype=float),
        )

    def names(self, pairs: NDArray[np.int64]) -> list[str]:
        return [self.gpus[g] if self.dim is None else f"{self.gpus[g]} | {self.labels[c]}" for g, c in pairs.T]


def build_model(
    cells: Cells,
    work: Work | None,
    classes: Mapping[str, str],
    structure: FloorStructure,
    constants: Literal["fixed", "free", "free per gpu"],
    *,
    gpu_ms: ArrayLike | None = None,
    priors: Priors = DEFAULT_PRIORS,
    query_heads: bool = False,
    likelihood: Literal["normal", "student"] = "normal",
    known: KnownFloors | None = None,
) -> pm.Model:
    """PyMC model of measured steps, with coords and dims; everything that a refit may change is ``pm.Data``.

    Parameters
    ----------
    cells : Cells
        Measured cells, with `step_ms`; `step_sd_ms` where part of the noise is known.
    work : Work or None
        FLOPs and bytes of the cells [cell, kernel] with their hardware; needed with free constants, and for
        their launches where floors grow with them.
    classes : mapping of model name to class
    structure : FloorStructure
    constants : "fixed", "free" or "free per gpu"
        Fixed: T_gpu is the data `gpu_ms` (imputed grids; the second stage of the cut). Free: η are
        parameters, one set for all SKUs or one for each.
    gpu_ms : array [cell], ms
        T_gpu, with fixed constants.
    query_heads : bool
        With free constants: attention is also bound by the bytes of its query heads, at rate ``rho_q``.
    likelihood : "normal" or "student"
    known : KnownFloors or None
        Floors of the anchor's group, taken as they are; the other floors follow the hierarchy given them.

    Raises
    ------
    ValueError
        Cells without steps, without `work` or `gpu_ms` where needed, or with names that `classes` lacks.

    Examples
    --------
    >>> cells = Cells.from_columns(["Llama-3.1-8B"] * 2, ["H100"] * 2, [1, 8], [512, 512], step_ms=[6.1, 6.6])
    >>> model = build_model(cells, None, {"Llama-3.1-8B": "7B"}, FloorStructure("gpu"), "fixed", gpu_ms=[4.5, 4.9])
    >>> [variable.name for variable in model.observed_RVs]
    ['step_ms']
    """
    if cells.step_ms is None or len(cells) == 0:
        raise ValueError("a model needs measured cells: step_ms is missing or empty")
    layout = None if structure.sharing is None else _Layout.of(cells, classes, structure, known)
    with pm.Model(coords={"cell": np.arange(len(cells))}) as model:
        measured = pm.Data("measured_ms", cells.step_ms, dims="cell")
        known_sd = np.zeros(len(cells)) if cells.step_sd_ms is None else cells.step_sd_ms
        known_sd_ms = pm.Data("known_sd_ms", known_sd, dims="cell")
        if constants == "fixed":
            if gpu_ms is None:
                raise ValueError("constants='fixed' needs gpu_ms")
            branch = pm.Data("gpu_ms", np.broadcast_to(np.asarray(gpu_ms, float), len(cells)), dims="cell")
        else:
            if work is None:
                raise ValueError("constants='free' needs work")
            latency = structure.sharing is not None and structure.sharing.kernel_latency
            per_gpu = cells if constants == "free per gpu" else None
            branch = _gpu_branch(work, priors, query_heads, latency, per_gpu)
        relative = _noise_by_model(cells, priors)
        absolute = _log_normal("noise_ms", priors.noise_ms)
        step = branch
        if layout is not None:
            about = pt.sqrt(variance_ms2(measured, relative, absolute, known_sd_ms))
            q = _overlap(structure, cells, classes, known) if structure.positive else None
            growth = _growth(structure, cells, work, priors, known)
            guess = _guess(measured, about, branch, q, growth)
            floor = _cell_floors(layout, priors, guess, structure.positive)
            floor = floor if growth is None else floor * growth if structure.positive else floor + growth
            step = structure.step_ms(branch, floor, q, xp=pt)
        sd = pt.sqrt(variance_ms2(step, relative, absolute, known_sd_ms))
        if likelihood == "student":
            shape, rate = priors.student_nu
            nu = pm.Gamma("student_nu", alpha=shape, beta=rate)
            pm.StudentT("step_ms", nu=nu, mu=step, sigma=sd, observed=measured, dims="cell")
        else:
            pm.Normal("step_ms", mu=step, sigma=sd, observed=measured, dims="cell")
    return model


def _noise_by_model(cells: Cells, priors: Priors) -> Any:
    """σ of each cell: one per model, drawn towards a common level; registers ``noise_relative`` (noisy_model).

    log σ[model] = level + spread own[model]. Cells fix σ of their model and not the level: a far level with all `own`
    on one side fits as well. So the sampler moves the mean and the contrasts of log σ, and the level given them.
    """
    model = pm.modelcontext(None)
    model.add_coord("noisy_model", list(cells.models))
    code = pm.Data("noisy_model_code", cells.model_code, dims="cell")
    median, sd = priors.noise_relative
    spread = pm.HalfNormal("noise_spread", sigma=priors.noise_spread)
    n = len(cells.models)
    z_level = pm.Normal("z_noise_level")
    z_mean = pm.Normal("z_noise_mean")
    if n > 1:
        model.add_coord("noise_contrast", np.arange(n - 1))
        basis = np.linalg.svd(np.eye(n) - 1.0 / n)[0][:, : n - 1]
        off = pt.dot(basis, pm.Normal("z_noise", dims="noise_contrast"))
    else:
        off = pt.zeros(1)
    total = pt.sqrt(sd**2 + spread**2 / n)
    mean = np.log(median) + total * z_mean
    level = pm.Deterministic("noise_level", np.log(median) + sd / total * (sd * z_mean + spread / np.sqrt(n) * z_level))
    pm.Deterministic("noise_own", (mean - level) / spread + off, dims="noisy_model")
    relative = pm.Deterministic("noise_relative", pt.exp(mean + spread * off), dims="noisy_model")
    return relative[code]


def _log_normal(name: str, prior: tuple[float, float], dims: str | None = None) -> Any:
    median, sd = prior
    return pm.LogNormal(name, mu=np.log(median), sigma=sd, dims=dims)


def _growth(
    structure: FloorStructure, cells: Cells, work: Work | None, priors: Priors, known: KnownFloors | None
) -> Any:
    """What the floor at the mean number of launches becomes at each cell's number, [cell]; None where it does not grow.

    Signed: plus c1 (n - mean). Positive: times 1 - s + s n / mean, s in [0, 1], so that H = c0 + c1 n with both from
    0. Given an anchor, its launches stand for the mean.
    """
    if structure.sharing is None or not structure.sharing.per_launch:
        return None
    if work is None:
        raise ValueError("floors that grow with launches need work")
    launches = launches_of(work)
    at = known.launches if known is not None and known.launches else float(launches.mean())
    relative = pm.Data("relative_launches", launches / at, dims="cell")
    pm.modelcontext(None).add_coord("launch_gpu", list(cells.gpus))
    code = pm.Data("launch_gpu_code", cells.gpu_code, dims="cell")
    pm.Deterministic("launches_at_floor", pt.as_tensor(at))
    if structure.positive:
        share = pm.Uniform("launch_share", 0.0, 1.0, dims="launch_gpu")
        return 1.0 + share[code] * (relative - 1.0)
    median, sd = priors.launch_ms
    each = pm.LogNormal("launch_ms", mu=np.log(median), sigma=sd, dims="launch_gpu")
    return each[code] * at * (relative - 1.0)


def _guess(measured: Any, sd: Any, branch: Any, q: Any, growth: Any) -> tuple[Any, Any]:
    """What each cell alone says of its floor (of the logarithm, given q): precision, and precision times value.

    Signed, y - T. Positive, with the floor's share s = 1 - (T/y)^(1/q) in y^(1/q): log H = log y + q log s, and a
    step moves by y s per unit of log H. s is kept off zero where T reaches y: there the cell says nothing. Nor does one
    where a floor may hide below T (q near 0) and y - T is within the noise: H may then be anything up to about T, and a
    precision would put chains on a scale far too fine for that.
    """
    if q is None:
        value = measured - branch if growth is None else measured - branch - growth
        precision = 1.0 / sd**2
        return precision, precision * value
    power = pt.maximum(q, 0.1)  # nearer the maximum the guess would turn within the noise of a step
    beyond = 1.0 - pt.exp(pt.minimum((pt.log(branch) - pt.log(measured)) / power, 5.0))
    share = 0.5 * (beyond + pt.sqrt(beyond**2 + 1e-3))
    value = pt.log(measured) + power * pt.log(share)
    if growth is not None:
        value = value - pt.log(growth)
    excess = (measured - branch) / sd
    excess = 0.5 * (excess + pt.sqrt(excess**2 + 0.1))
    hidden = 4.0 * pt.maximum(1.0 - 4.0 * q, 0.0)  # the excess, in sds, that may be noise
    precision = (measured * share / sd) ** 2 * (excess**2 / (excess**2 + hidden**2)) ** 4
    return precision, precision * value


def _overlap(structure: FloorStructure, cells: Cells, classes: Mapping[str, str], known: KnownFloors | None) -> Any:
    """q of each cell: fixed by its class, given with the anchor's floors, or the parameter ``q``."""
    fixed = structure.q_of(np.array([classes[m] for m in cells.models]))[cells.model_code]
    if not structure.q_free:
        return pm.Data("overlap", fixed, dims="cell")
    q = pm.Uniform("q", 0.0, Q_MAX) if known is None else pm.Data("anchor_q", known.q)
    if not np.isnan(fixed).all():
        free = pm.Data("overlap_free", np.isnan(fixed).astype(float), dims="cell")
        return free * q + (1.0 - free) * pm.Data("overlap", np.nan_to_num(fixed), dims="cell")
    return q


def _gpu_branch(work: Work, priors: Priors, query_heads: bool, latency: bool, per_gpu: Cells | None) -> Any:
    """T_gpu [cell] with free constants; the times at peak rates become data.

    `per_gpu`: the cells, where each SKU has constants of its own.
    """
    model = pm.modelcontext(None)
    model.add_coord("kernel", list(KERNELS))
    times = PeakTimes(**{n: pm.Data(n, v, dims=("cell", "kernel")) for n, v in _times(work).items()})
    free: dict[str, Any] = {}
    dims = None if per_gpu is None else "constants_gpu"
    for name in ("eta_bw", "eta_fa", "eta_tc"):
        mean, sd = getattr(priors, name)
        if per_gpu is not None:
            model.add_coord("constants_gpu", list(per_gpu.gpus))
        free[name] = pm.Beta(name, mu=mean, sigma=sd, dims=dims)
    free["l_half"] = _log_normal("l_half", priors.l_half, dims)
    if query_heads:
        free["rho_q"] = _log_normal("rho_q", priors.rho_q, dims)
    if latency:
        free["latency_ms"] = _log_normal("latency_ms", priors.launch_ms, dims)
    if per_gpu is not None:
        code = pm.Data("constants_gpu_code", per_gpu.gpu_code, dims="cell")
        free = {name: value[code] for name, value in free.items()}
    return combine(times, Efficiency(**free), xp=pt).sum(axis=-1)


def _times(work: Work) -> dict[str, Array]:
    shape = work.flops.shape
    return {f.name: np.broadcast_to(getattr(work.peak_times, f.name), shape).astype(float) for f in fields(PeakTimes)}


def _contrasts(pairs: NDArray[np.int64], pinned: NDArray[np.int64]) -> tuple[Array, NDArray[np.int64]]:
    """Orthonormal contrasts of the floors of `pairs` [pair, contrast], and what each compares.

    0: overall; 1: SKUs; 2: groups; 3: what is left, the pairs. SKUs in `pinned` have a known floor and so
    no contrast.
    """
    gpu, group = pairs
    blocks = (
        np.ones((len(gpu), 1)),
        (gpu[:, None] == np.setdiff1d(gpu, pinned)).astype(float),
        (group[:, None] == np.unique(group)).astype(float),
        np.eye(len(gpu)),
    )
    basis, block = np.zeros((len(gpu), 0)), []
    for kind, columns in enumerate(blocks):
        left, size, _ = np.linalg.svd(columns - basis @ (basis.T @ columns), full_matrices=False)
        new = left[:, size > 1e-8]
        basis = np.concatenate([basis, new], axis=1)
        block += [kind] * new.shape[1]
    return basis, np.array(block, dtype=np.int64)


def _cell_floors(layout: _Layout, priors: Priors, guess: tuple[Any, Any], positive: bool = False) -> Any:
    """Floor of each cell; registers ``floor_ms``, the scales and the prior of the whole grid of floors.

    floor (or its logarithm, where `positive`) = overall + a[gpu] + b[group] + c[gpu, group], all normal: the
    contrasts of the whole grid are independent, with the four variances of a two-way analysis of variance.
    """
    model = pm.modelcontext(None)
    model.add_coord("gpu", list(layout.gpus))
    g, c = len(layout.gpus), len(layout.labels)
    mean, sd_overall = priors.floor_level(positive)
    unit = "" if positive else "_ms"
    scale_gpu, scale_group, scale_pair = (priors.floor_scale(k, positive) for k in ("gpu", "group", "pair"))
    dims = ("gpu",) if layout.dim is None else ("gpu", layout.dim)

    def scale(effect: str, top: float) -> Any:
        name = f"floor_sd_{effect}{unit}"
        return pm.HalfNormal(name, sigma=top) if positive else pm.HalfStudentT(name, nu=3, sigma=top)

    sd_gpu = scale("gpu", scale_gpu)
    if layout.dim is None:
        variance = pt.stack([g * sd_overall**2 + sd_gpu**2, sd_gpu**2])
        sd_pair = sd_gpu
    else:
        model.add_coord(layout.dim, list(layout.labels))
        sd_group, sd_pair = scale(layout.dim, scale_group), scale("pair", scale_pair)
        by_gpu, by_group = c * sd_gpu**2, g * sd_group**2
        variance = sd_pair**2 + pt.stack([g * c * sd_overall**2 + by_gpu + by_group, by_gpu, by_group, 0.0])

    code = pm.Data("pair_code", layout.code, dims="cell")
    n, n_known = layout.measured.shape[1], len(layout.known_ms)
    floors, log_jacobian = [], 0.0
    centre = np.full(g, float(mean))
    if n_known:
        model.add_coord("anchor_gpu", [layout.gpus[k] for k in layout.known[0]])
        known = pm.Data("anchor_floor_ms", layout.known_ms, dims="anchor_gpu")
        known = pt.log(known) if positive else known
        centre = pt.set_subtensor(pt.as_tensor(centre)[layout.known[0]], known)
    if n:
        model.add_coord("pair", layout.names(layout.measured))
        model.add_coord("contrast", np.arange(n))
        sums = pt.inc_subtensor(pt.zeros((n + n_known, 2))[code], pt.stack(guess, axis=1))[:n]
        data_variance = 1.0 / pt.maximum(sums[:, 0], 1e-6)
        basis, block = _contrasts(layout.measured, layout.known[0])
        start, told = centre[layout.measured[0]], sums[:, 1] * data_variance
        z = pm.Flat("z_floor", dims="contrast")
        floor, log_scale = (_correlated if positive else _contrasted)(
            basis, variance[block], start, told, data_variance, z
        )
        floors.append(floor)
        log_jacobian += log_scale
    if n_known:
        floors.append(known)
    sampled = pt.concatenate(floors)
    at = np.concatenate([layout.measured, layout.known], axis=1)
    if layout.unmeasured.shape[1]:
        filled, log_scale = _fill(sampled, at, layout, sd_pair)
        log_jacobian += log_scale
        at = np.concatenate([at, layout.unmeasured], axis=1)
    else:
        filled = sampled
    order = np.argsort(at[0] * c + at[1])
    grid = filled[order]
    basis, block = _contrasts(at[:, order], np.array([], dtype=np.int64))
    wide = variance[block]
    log_prior = -0.5 * (pt.log(2 * np.pi * wide) + (basis.T @ (grid - mean)) ** 2 / wide).sum()
    pm.Potential("floors", log_prior + log_jacobian)
    floor_ms = pt.exp(grid) if positive else grid
    pm.Deterministic("floor_ms", floor_ms if layout.dim is None else floor_ms.reshape((g, c)), dims=dims)
    return (pt.exp(sampled) if positive else sampled)[code]


def _contrasted(basis: Array, prior: Any, start: Any, told: Any, data_variance: Any, z: Any) -> tuple[Any, Any]:
    """Floors from `z`, one contrast at a time, and the log Jacobian; good where cells know all floors about alike.

    `prior` [contrast]: variances around `start` [floor]; `told`, `data_variance` [floor]: what the cells say.
    """
    data = (basis**2).T @ data_variance
    scale = pt.sqrt(prior * data / (prior + data))
    shrunk = prior / (prior + data) * (basis.T @ (told - start))
    return start + basis @ (shrunk + scale * z), pt.log(scale).sum()


def _correlated(basis: Array, prior: Any, start: Any, told: Any, data_variance: Any, z: Any) -> tuple[Any, Any]:
    """The same with all correlations: floors H >= 0 that T_gpu hides are known far less than others.

    Floors are start + spread w, w ~ N(0, 1) a priori; what the cells say gives w the precision root root'.
    """
    spread = basis * pt.sqrt(prior)
    weighed = spread.T / data_variance
    root = pt.linalg.cholesky(pt.eye(basis.shape[1]) + weighed @ spread)
    pull = pt.linalg.solve_triangular(root, weighed @ (told - start), lower=True)
    w = pt.linalg.solve_triangular(root.T, pull + z, lower=False)
    return start + spread @ w, (0.5 * pt.log(prior) - pt.log(pt.diagonal(root))).sum()


def _fill(sampled: Any, at: NDArray[np.int64], layout: _Layout, sd_pair: Any) -> tuple[Any, Any]:
    """`sampled` with the floors of unmeasured pairs after it, and their log Jacobian.

    Each is the additive least-squares fit to the others + z times its sd if pair effects have sd `sd_pair`.
    """
    pm.modelcontext(None).add_coord("unmeasured", layout.names(layout.unmeasured))

    def design(pairs: NDArray[np.int64]) -> Array:
        return np.hstack([pairs[k][:, None] == np.arange(n) for k, n in enumerate(sizes)]).astype(float)

    sizes = len(layout.gpus), len(layout.labels)
    fit = design(layout.unmeasured) @ np.linalg.pinv(design(at))
    sd = sd_pair * np.sqrt(1.0 + (fit**2).sum(axis=1))
    floors = fit @ sampled + sd * pm.Flat("z_unmeasured", dims="unmeasured")
    return pt.concatenate([sampled, floors]), pt.log(sd).sum()
