"""The Bayesian model of decode steps: constants of the GPU branch, hierarchical floors, noise.

step[cell] = combine(T_gpu[cell], floor[gpu, group]);  y ~ Normal or Student-t(step, sqrt(s² + (σ·step)² + known²)).
s keeps the noise off zero where a negative floor pushes the step through 0.

Names in the posterior, with their dims:

- ``eta_bw``, ``eta_fa``, ``eta_tc`` (in (0, 1)), ``l_half`` (tokens), ``rho_q``: with free constants.
- ``floor_ms`` (gpu, class), (gpu, model) or (gpu): the floors, also of pairs that were never measured.
- ``floor_sd_gpu_ms``, ``floor_sd_class_ms`` (or ``_model_ms``), ``floor_sd_pair_ms``: scales of the SKU, class and
  pair effects. The effects themselves are integrated out; `predict_floor` draws floors of new SKUs and classes.
- ``noise_relative`` (σ), ``noise_ms`` (s), ``student_nu`` (Student-t only).
- ``z_floor`` (contrast), ``z_unmeasured`` (unmeasured): what the sampler moves in place of ``floor_ms``.

Observed: ``step_ms`` (cell). Data that a refit may replace: ``measured_ms``, ``known_sd_ms``, ``pair_code``, ``gpu_ms``
or the fields of ``PeakTimes``, and ``anchor_floor_ms``. No variable has one value per cell, so that a compiled model
can be refitted to other cells.

Parametrisation. Floors with many cells are known to a tenth of a millisecond whatever the hierarchy says, and an
error of η_bw moves all of them at once: non-centred effects then lie on narrow ridges, and centred floors in a funnel
where the pair effects may vanish. So the effects are integrated out, exactly, and the sampler moves ``z``, the floors'
contrasts (overall, SKUs, classes, pairs) measured from where normal theory puts them given the scales and the mean
residuals, in units of their sd there. The Jacobian is included: the posterior is that of the plain hierarchy.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from numpy.typing import ArrayLike, NDArray

from models.cells import Cells
from models.floors import FloorStructure
from models.kernels import KERNELS, PeakTimes, Work
from models.roofline import CONSTANTS, Efficiency, combine, total_ms

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Priors:
    """Numbers of the priors; times in ms.

    Attributes
    ----------
    eta_bw : (mean, sd) of a Beta
        Streaming of weights. Measured GEMMs with at most 16 rows and weights over twice the L2 reach a median
        of 0.71 (A100), 0.87 (H100), 0.79 (H200) of the nominal bandwidth; 5 to 95 %: 0.64 to 0.91.
    eta_fa : (mean, sd) of a Beta
        Streaming of the KV cache. Measured decode attention with KV over three times the L2 has medians of
        0.63 to 0.80, and 0.75, 0.88, 0.84 once a constant time per kernel is set apart; wide, since older
        stacks are slower than the kernels of 2025 from which these numbers come.
    eta_tc : (mean, sd) of a Beta
        Tensor cores. Measured GEMMs with 1024 rows or more: medians 0.90, 0.83, 0.77.
    l_half : (median, sd of the logarithm) of a LogNormal, tokens
        The constant time of a decode-attention kernel is worth about 300 tokens at batch 16, more below.
    rho_q : (median, sd of the logarithm) of a LogNormal
        Rate of the query-head limb over the nominal bandwidth. Query heads of one group share lines in the
        L2, so that it may exceed 1; wide, since only data with several query-to-KV ratios see it.
    floor_overall_ms : (mean, sd) of a Normal
        Steps of public stacks lie within about 10 ms of the time that their bytes take.
    floor_sd_gpu_ms, floor_sd_group_ms, floor_sd_pair_ms : scale of a half-t with 3 degrees of freedom
        2 ms for SKUs keeps the size of a level test near nominal with three SKUs; classes (or models) differ
        more: a published MoE floor lies 18 ms above the dense one, which the t tail allows.
    noise_relative : (median, sd of the logarithm) of a LogNormal
        Noise and discrepancy together, as a share of the step; with one measurement a cell the two are one.
    noise_ms : (median, sd of the logarithm) of a LogNormal
        The part that does not scale with the step.
    student_nu : (shape, rate) of a Gamma
        Degrees of freedom of the Student-t likelihood (Juarez and Steel 2010).
    """

    eta_bw: tuple[float, float] = (0.80, 0.08)
    eta_fa: tuple[float, float] = (0.72, 0.14)
    eta_tc: tuple[float, float] = (0.78, 0.12)
    l_half: tuple[float, float] = (200.0, 1.0)
    rho_q: tuple[float, float] = (1.5, 0.6)
    floor_overall_ms: tuple[float, float] = (0.0, 5.0)
    floor_sd_gpu_ms: float = 2.0
    floor_sd_group_ms: float = 3.0
    floor_sd_pair_ms: float = 1.0
    noise_relative: tuple[float, float] = (0.05, 0.8)
    noise_ms: tuple[float, float] = (0.1, 1.0)
    student_nu: tuple[float, float] = (2.0, 0.1)


DEFAULT_PRIORS = Priors()


@dataclass(frozen=True)
class KnownFloors:
    """Floors that are given and not estimated: those of an anchor, in the second stage of a cut.

    Attributes
    ----------
    model : str
        The anchor; every model that shares its group under the structure has these floors.
    floor_ms : mapping of GPU name to ms
        One floor per SKU on which the anchor was measured.
    """

    model: str
    floor_ms: Mapping[str, float]


@dataclass(frozen=True, eq=False)
class _Layout:
    """Where each floor of the grid [gpu, group] comes from: estimated, known (the anchor's) or never measured.

    `at` and `unmeasured` are index pairs (gpu, group), each (2, n); `code` [cell] says which floor a cell has,
    -1 - gpu where it is a known one.
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
        rest = [
            p for p in np.ndindex(len(gpus), len(groups.labels)) if p not in given and p not in set(estimated)
        ]
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

    def contrasts(self) -> tuple[Array, NDArray[np.int64]]:
        """Orthonormal contrasts of the estimated floors [pair, contrast], and what each compares.

        0: overall; 1: SKUs; 2: groups; 3: what is left, the pairs. Known floors pin their SKU, so that it has no
        contrast of its own.
        """
        gpu, group = self.measured
        free = np.setdiff1d(gpu, self.known[0])
        blocks = (
            np.ones((len(gpu), 1)),
            (gpu[:, None] == free).astype(float),
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

    def names(self, pairs: NDArray[np.int64]) -> list[str]:
        return [
            self.gpus[g] if self.dim is None else f"{self.gpus[g]} | {self.labels[c]}" for g, c in pairs.T
        ]


def build_model(
    cells: Cells,
    work: Work | None,
    classes: Mapping[str, str],
    structure: FloorStructure,
    constants: Literal["fixed", "free"],
    *,
    gpu_ms: ArrayLike | None = None,
    priors: Priors = DEFAULT_PRIORS,
    query_heads: bool = False,
    likelihood: Literal["normal", "student"] = "normal",
    base: Efficiency | None = None,
    known: KnownFloors | None = None,
) -> pm.Model:
    """PyMC model of measured steps, with coords and dims; everything that a refit may change is ``pm.Data``.

    Parameters
    ----------
    cells : Cells
        Measured cells, with `step_ms`; `step_sd_ms` where part of the noise is known.
    work : Work or None
        FLOPs and bytes of the cells [cell, kernel] with their hardware; needed with free constants.
    classes : mapping of model name to class
    structure : FloorStructure
    constants : "fixed" or "free"
        Fixed: T_gpu is the data `gpu_ms` (imputed grids; the second stage of the cut). Free: η are parameters.
    gpu_ms : array [cell], ms
        T_gpu, with fixed constants.
    query_heads : bool
        With free constants: attention is also bound by the bytes of its query heads, at rate ``rho_q``.
    likelihood : "normal" or "student"
    base : Efficiency or None
        Where constants that are not free come from (the latency per kernel); default: the peak.
    known : KnownFloors or None
        Floors of the anchor's group, taken as they are; the other floors follow the hierarchy given them.

    Raises
    ------
    ValueError
        Cells without steps, without `work` or `gpu_ms` where needed, or with names that `classes` lacks.
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
            branch = _gpu_branch(work, base or Efficiency.peak(), priors, query_heads)
        relative = _log_normal("noise_relative", priors.noise_relative)
        absolute = _log_normal("noise_ms", priors.noise_ms)
        step = branch
        if layout is not None:
            about = pt.sqrt(absolute**2 + (relative * measured) ** 2 + known_sd_ms**2)
            step = structure.step_ms(branch, _cell_floors(layout, priors, measured, about, branch))
        sd = pt.sqrt(absolute**2 + (relative * step) ** 2 + known_sd_ms**2)
        if likelihood == "student":
            shape, rate = priors.student_nu
            nu = pm.Gamma("student_nu", alpha=shape, beta=rate)
            pm.StudentT("step_ms", nu=nu, mu=step, sigma=sd, observed=measured, dims="cell")
        else:
            pm.Normal("step_ms", mu=step, sigma=sd, observed=measured, dims="cell")
    return model


def _log_normal(name: str, prior: tuple[float, float]) -> Any:
    median, sd = prior
    return pm.LogNormal(name, mu=np.log(median), sigma=sd)


def _gpu_branch(work: Work, base: Efficiency, priors: Priors, query_heads: bool) -> Any:
    """T_gpu [cell] with free constants; the times at peak rates become data."""
    model = pm.modelcontext(None)
    model.add_coord("kernel", list(KERNELS))
    times = PeakTimes(**{n: pm.Data(n, v, dims=("cell", "kernel")) for n, v in work_data(work).items()})
    free: dict[str, Any] = {}
    for name in ("eta_bw", "eta_fa", "eta_tc"):
        mean, sd = getattr(priors, name)
        free[name] = pm.Beta(name, mu=mean, sigma=sd)
    free["l_half"] = _log_normal("l_half", priors.l_half)
    if query_heads:
        free["rho_q"] = _log_normal("rho_q", priors.rho_q)
    return total_ms(combine(times, replace(base, **free), xp=pt))


def work_data(work: Work) -> dict[str, Array]:
    """The times of `work` at peak rates as data of a model with free constants: name -> array [cell, kernel]."""
    shape = work.flops.shape
    return {
        f.name: np.broadcast_to(getattr(work.peak_times, f.name), shape).astype(float)
        for f in fields(PeakTimes)
    }


def efficiency_of(posterior: Mapping[str, Any], base: Efficiency | None = None) -> Efficiency:
    """The constants of posterior draws, each shaped (draw, 1) so that they broadcast against cells.

    Parameters
    ----------
    posterior : Dataset or mapping of arrays
        Draws of each constant, (chain, draw) or (draw,); constants that it lacks are taken from `base`.
    """
    draws = {n: np.asarray(posterior[n], dtype=float).reshape(-1, 1) for n in CONSTANTS if n in posterior}
    return replace(base or Efficiency.peak(), **draws)


def _cell_floors(layout: _Layout, priors: Priors, measured: Any, sd: Any, branch: Any) -> Any:
    """Floor of each cell; registers ``floor_ms``, the scales and the prior of the whole grid of floors."""
    model = pm.modelcontext(None)
    model.add_coord("gpu", list(layout.gpus))
    g, c = len(layout.gpus), len(layout.labels)
    dims = ("gpu",) if layout.dim is None else ("gpu", layout.dim)
    sd_gpu = pm.HalfStudentT("floor_sd_gpu_ms", nu=3, sigma=priors.floor_sd_gpu_ms)
    sd_group = sd_pair = None
    spread = [1e6, sd_gpu**2]
    if layout.dim is not None:
        model.add_coord(layout.dim, list(layout.labels))
        sd_group = pm.HalfStudentT(f"floor_sd_{layout.dim}_ms", nu=3, sigma=priors.floor_sd_group_ms)
        sd_pair = pm.HalfStudentT("floor_sd_pair_ms", nu=3, sigma=priors.floor_sd_pair_ms)
        spread = [1e6, c * sd_gpu**2 + sd_pair**2, g * sd_group**2 + sd_pair**2, sd_pair**2]

    code = pm.Data("pair_code", layout.code, dims="cell")
    n = layout.measured.shape[1]
    floors, log_jacobian = [], 0.0
    anchor = pt.zeros(g)
    if len(layout.known_ms):
        model.add_coord("anchor_gpu", [layout.gpus[k] for k in layout.known[0]])
        known = pm.Data("anchor_floor_ms", layout.known_ms, dims="anchor_gpu")
        anchor = pt.set_subtensor(anchor[layout.known[0]], known)
    if n:
        model.add_coord("pair", layout.names(layout.measured))
        model.add_coord("contrast", np.arange(n))
        precision = pt.inc_subtensor(pt.zeros(n + len(layout.known_ms))[code], 1.0 / sd**2)
        level = pt.inc_subtensor(pt.zeros(n + len(layout.known_ms))[code], (measured - branch) / sd**2)
        precision = pt.maximum(precision[:n], 1e-6)
        basis, block = layout.contrasts()
        prior = pt.stack(spread)[block]
        data = (basis**2).T @ (1.0 / precision)
        scale = pt.sqrt(prior * data / (prior + data))
        centre = anchor[layout.measured[0]]
        shrunk = prior / (prior + data) * (basis.T @ (level[:n] / precision - centre))
        floors.append(centre + basis @ (shrunk + scale * pm.Flat("z_floor", dims="contrast")))
        log_jacobian += pt.log(scale).sum()
    if len(layout.known_ms):
        floors.append(known)
    sampled = pt.concatenate(floors)
    at = np.concatenate([layout.measured, layout.known], axis=1)
    grid = pt.set_subtensor(pt.zeros((g, c))[at[0], at[1]], sampled)
    if layout.unmeasured.shape[1]:
        scale = sd_gpu if sd_pair is None else sd_pair
        grid = _fill(grid, at, layout, scale)
        log_jacobian += layout.unmeasured.shape[1] * pt.log(scale)
    pm.Potential("floors", _log_prior(grid, priors, sd_gpu, sd_group, sd_pair) + log_jacobian)
    pm.Deterministic("floor_ms", grid[:, 0] if layout.dim is None else grid, dims=dims)
    return sampled[code]


def _fill(grid: Any, at: NDArray[np.int64], layout: _Layout, scale: Any) -> Any:
    """The grid with the floors of unmeasured pairs: row mean + column mean − overall mean + scale · z."""
    pm.modelcontext(None).add_coord("unmeasured", layout.names(layout.unmeasured))
    there = np.zeros((len(layout.gpus), len(layout.labels)))
    there[at[0], at[1]] = 1.0
    overall = grid.sum() / there.sum()
    row_n, column_n = there.sum(1), there.sum(0)
    row = pt.where(row_n > 0, grid.sum(1) / np.maximum(row_n, 1.0), overall)
    column = pt.where(column_n > 0, grid.sum(0) / np.maximum(column_n, 1.0), overall)
    g, c = layout.unmeasured
    values = row[g] + column[c] - overall + scale * pm.Flat("z_unmeasured", dims="unmeasured")
    return pt.set_subtensor(grid[g, c], values)


def _log_prior(grid: Any, priors: Priors, sd_gpu: Any, sd_group: Any, sd_pair: Any) -> Any:
    """Log density of the floors [gpu, group] with the overall, SKU, group and pair effects integrated out.

    floor = overall + a[gpu] + b[group] + c[gpu, group], all normal: on a whole grid the covariance has the
    eigenspaces of the two-way analysis of variance.
    """
    mean, sd = priors.floor_overall_ms
    g, c = grid.type.shape
    if sd_group is None:
        sd_group = sd_pair = 0.0
    overall = grid.mean()
    rows, columns = grid.mean(1) - overall, grid.mean(0) - overall
    rest = grid - overall - rows[:, None] - columns[None, :]
    spaces = (
        (1, g * c * sd**2 + c * sd_gpu**2 + g * sd_group**2 + sd_pair**2, g * c * (overall - mean) ** 2),
        (g - 1, c * sd_gpu**2 + sd_pair**2, c * (rows**2).sum()),
        (c - 1, g * sd_group**2 + sd_pair**2, g * (columns**2).sum()),
        ((g - 1) * (c - 1), sd_pair**2, (rest**2).sum()),
    )
    return sum(-0.5 * (n * pt.log(2 * np.pi * v) + squares / v) for n, v, squares in spaces if n)
