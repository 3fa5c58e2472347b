"""What posterior draws of `step_model` say of any cells, measured or not: constants, floors, noise, steps (no PyMC)."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rooffloor.models.floor.structures import FloorStructure
from rooffloor.models.inference.noise import variance_ms2
from rooffloor.models.inference.priors import DEFAULT_PRIORS, Priors
from rooffloor.models.roof.kernels import Work, launches_of
from rooffloor.models.roof.roofline import CONSTANTS, Efficiency, work_ms
from rooffloor.models.specs.cells import Cells

type Array = NDArray[np.float64]


def efficiency_of(
    posterior: Mapping[str, Any], base: Efficiency | None = None, gpu_code: NDArray[np.int64] | None = None
) -> Efficiency:
    """The constants of posterior draws, each shaped (draw, 1) so that they broadcast against cells.

    Parameters
    ----------
    posterior : Dataset or mapping of arrays
        Draws of each constant, (chain, draw) or (draw,); constants that it lacks are taken from `base`.
    gpu_code : int array [cell], optional
        With constants per SKU, (chain, draw, gpu): the SKU of each cell; the constants are then (draw, cell).
    """
    draws: dict[str, Any] = {}
    for name in CONSTANTS:
        if name in posterior:
            values = np.asarray(posterior[name], dtype=float)
            draws[name] = values.reshape(-1, 1) if gpu_code is None else _pooled(values)[:, gpu_code]
    return replace(base or Efficiency.peak(), **draws)


def _pooled(values: Any) -> Array:
    """Draws (chain, draw, ...) end to end: (draw, ...)."""
    array = np.asarray(values, dtype=float)
    return array.reshape(-1, *array.shape[2:])


@dataclass(frozen=True, eq=False)
class StepDistribution:
    """The likelihood of each posterior draw at some cells: Normal, or Student-t where `nu` is given.

    Attributes
    ----------
    step_ms : array [draw, cell]
        The model's step, combine(T_gpu, floor).
    sd_ms : array [draw, cell]
        Scale of the noise around it.
    nu : array [draw, 1] or None
        Degrees of freedom.
    """

    step_ms: Array
    sd_ms: Array
    nu: Array | None = None

    def log_density(self, measured_ms: ArrayLike) -> Array:
        """Log density of measured steps [cell] under each draw, [draw, cell]."""
        from scipy import stats

        z = (np.asarray(measured_ms, dtype=float) - self.step_ms) / self.sd_ms
        log = stats.norm.logpdf(z) if self.nu is None else stats.t.logpdf(z, self.nu)
        return np.asarray(log - np.log(self.sd_ms))

    def sample(self, rng: np.random.Generator) -> Array:
        """One measured step per draw and cell, ms, [draw, cell]."""
        shape = self.step_ms.shape
        noise = rng.standard_normal(shape) if self.nu is None else rng.standard_t(np.broadcast_to(self.nu, shape))
        return self.step_ms + self.sd_ms * noise


def step_distribution(
    posterior: Any,
    cells: Cells,
    classes: Mapping[str, str],
    structure: FloorStructure,
    rng: np.random.Generator,
    *,
    work: Work | None = None,
    gpu_ms: ArrayLike | None = None,
    base: Efficiency | None = None,
    priors: Priors = DEFAULT_PRIORS,
) -> StepDistribution:
    """What the posterior of `build_model` says of any cells, measured or not.

    SKUs, classes and models that the fit had not get floors, noise and constants through the hierarchy.

    Parameters
    ----------
    posterior : Dataset (chain, draw, ...)
    cells : Cells
        Their steps are not looked at; a known part of their noise (`step_sd_ms`) is added.
    classes : mapping of model name to class
    structure : FloorStructure
        Of the fit.
    rng : Generator
        Draws what the fit had not.
    work : Work, optional
        Of `cells`; T_gpu follows from the constants of each draw, and launches where floors grow with them.
    gpu_ms : array [cell], ms, optional
        T_gpu, where constants were fixed.
    """
    if gpu_ms is None:
        if work is None:
            raise ValueError("step_distribution needs work or gpu_ms")
        code = None
        if "constants_gpu" in posterior.dims:
            code = _codes_of(cells.gpu, posterior["constants_gpu"].values, "constants of GPU")
        T = work_ms(work, efficiency_of(posterior, base, code))
    else:
        T = np.broadcast_to(np.asarray(gpu_ms, dtype=float), (1, len(cells)))
    step = T
    if structure.sharing is not None:
        floor = floors_of(posterior, cells, classes, structure, rng, work=work, priors=priors)
        step = structure.step_ms(T, floor, _q_of(posterior, cells, classes, structure))
    level = np.broadcast_to(step, (posterior.sizes["chain"] * posterior.sizes["draw"], len(cells)))
    relative, absolute = _noise_of(posterior, cells, rng), _pooled(posterior["noise_ms"])[:, None]
    known = np.zeros(len(cells)) if cells.step_sd_ms is None else cells.step_sd_ms
    sd = np.sqrt(variance_ms2(level, relative, absolute, known))
    return StepDistribution(level, sd, _pooled(posterior["student_nu"])[:, None] if "student_nu" in posterior else None)


def _codes_of(names: NDArray[Any], known: NDArray[Any], what: str) -> NDArray[np.int64]:
    """Position of each name among the known ones."""
    known_list = known.tolist()
    missing = [n for n in dict.fromkeys(names.tolist()) if n not in known_list]
    if missing:
        raise ValueError(f"{what} {missing[0]!r}: the fit had none, only {known_list}")
    return np.array([known_list.index(n) for n in names.tolist()], dtype=np.int64)


def floors_of(
    posterior: Any,
    cells: Cells,
    classes: Mapping[str, str],
    structure: FloorStructure,
    rng: np.random.Generator,
    *,
    work: Work | None = None,
    priors: Priors = DEFAULT_PRIORS,
) -> Array:
    """Floor of each cell, ms, [draw, cell]; those outside the grid of the fit are drawn, one for each pair.

    `work` is needed where floors grow with launches; other arguments as in `step_distribution`.
    """
    assert structure.sharing is not None
    floor, dim = posterior["floor_ms"], structure.sharing.dim
    gpus = posterior["gpu"].values.tolist()
    groups = posterior[dim].values.tolist() if dim else [None]
    out = np.empty((posterior.sizes["chain"] * posterior.sizes["draw"], len(cells)))
    labels = [structure.sharing.label(m, classes[m]) if dim else None for m in cells.model.tolist()]
    pairs = list(zip(cells.gpu.tolist(), labels, strict=True))
    for gpu, group in dict.fromkeys(pairs):
        known_gpu, known_group = gpu in gpus, group in groups
        if known_gpu and known_group:
            values = floor.sel(gpu=gpu) if dim is None else floor.sel({"gpu": gpu, dim: group})
        else:
            new_gpu, new_group = gpu if known_gpu else None, group if dim and known_group else None
            values = _new_floor(posterior, rng, new_gpu, new_group, priors)
        out[:, [pair == (gpu, group) for pair in pairs]] = np.asarray(values).reshape(-1, 1)
    if not structure.sharing.per_launch:
        return out
    if work is None:
        raise ValueError("floors that grow with launches need work")
    return _grown(posterior, out, cells, launches_of(work), rng, priors)


def _new_floor(posterior: Any, rng: np.random.Generator, gpu: str | None, group: str | None, priors: Priors) -> Array:
    """Floor of a pair outside the grid of the fit, ms, (chain, draw), given the floors inside it.

    `gpu`, `group`: a SKU or a class (model) of the posterior; None: one that was never measured.
    """
    floor = posterior["floor_ms"]
    dim = floor.dims[-1] if floor.ndim == 4 else None
    positive = "floor_sd_gpu" in posterior
    unit = "" if positive else "_ms"
    labels = floor[dim].values.tolist() if dim else [None]
    pairs = [(g, c) for g in floor["gpu"].values.tolist() for c in labels]
    new = (gpu or object(), group or object()) if dim else (object(), None)
    same_gpu, same_group = (
        np.array([[a[i] == b[i] for b in [*pairs, new]] for a in [*pairs, new]], dtype=float) for i in (0, 1)
    )

    def variance(name: str) -> Array:
        return np.asarray(posterior[name])[..., None, None] ** 2

    covariance = priors.floor_level(positive)[1] ** 2 + variance(f"floor_sd_gpu{unit}") * same_gpu
    if dim:
        covariance = covariance + variance(f"floor_sd_{dim}{unit}") * same_group
        covariance = covariance + variance(f"floor_sd_pair{unit}") * same_gpu * same_group
    return priors.draw_floor(np.asarray(floor).reshape(*floor.shape[:2], -1), covariance, positive, rng)


def _grown(
    posterior: Any, floor: Array, cells: Cells, launches: Array, rng: np.random.Generator, priors: Priors
) -> Array:
    """Floors per launch of each cell, from those at the mean number of launches; see `step_model`."""
    at = float(np.asarray(posterior["launches_at_floor"]).flat[0])
    name = "launch_share" if "launch_share" in posterior else "launch_ms"
    known = posterior["launch_gpu"].values.tolist()
    each = np.empty(floor.shape)
    for gpu in cells.gpus:
        if gpu in known:
            values = _pooled(posterior[name].sel(launch_gpu=gpu))
        elif name == "launch_share":
            values = rng.uniform(size=len(floor))
        else:
            values = np.exp(np.log(priors.launch_ms[0]) + priors.launch_ms[1] * rng.standard_normal(len(floor)))
        each[:, cells.gpu == gpu] = values[:, None]
    if name == "launch_share":
        return floor * (1.0 + each * (launches / at - 1.0))
    return floor + each * (launches - at)


def _q_of(posterior: Any, cells: Cells, classes: Mapping[str, str], structure: FloorStructure) -> Array:
    """q of each cell, [draw or 1, cell]."""
    fixed = structure.q_of(np.array([classes[m] for m in cells.models]))[cells.model_code]
    if not structure.q_free:
        return fixed[None]
    return np.where(np.isnan(fixed), _pooled(posterior["q"])[:, None], fixed)


def _noise_of(posterior: Any, cells: Cells, rng: np.random.Generator) -> Array:
    """σ of each cell, [draw, cell]; a model that the fit had not draws one from the hierarchy."""
    known = posterior["noisy_model"].values.tolist()
    level, spread = _pooled(posterior["noise_level"]), _pooled(posterior["noise_spread"])
    by_model = [
        _pooled(posterior["noise_relative"].sel(noisy_model=m))
        if m in known
        else np.exp(level + spread * rng.standard_normal(len(level)))
        for m in cells.models
    ]
    return np.stack(by_model, axis=-1)[:, cells.model_code]
