"""What posterior draws of `step_model` say of any cells, measured or not: constants, floors, noise, steps (no PyMC)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rooffloor.models.floor.structures import FloorStructure
from rooffloor.models.inference.noise import variance_ms2
from rooffloor.models.roof.kernels import Work, launches_of, layers_of
from rooffloor.models.roof.roofline import CONSTANTS, Efficiency, work_ms
from rooffloor.models.specs.cells import Cells

type Array = NDArray[np.float64]


def efficiency_of(posterior: Mapping[str, Any], gpu_code: NDArray[np.int64] | None = None) -> Efficiency:
    """The constants of posterior draws, each shaped (draw, 1) so that they broadcast against cells.

    Parameters
    ----------
    posterior : Dataset or mapping of arrays
        Draws of each constant, (chain, draw) or (draw,); constants that it lacks are at their peak.
    gpu_code : int array [cell], optional
        With constants per SKU, (chain, draw, gpu): the SKU of each cell; the constants are then (draw, cell).
    """
    draws: dict[str, Any] = {}
    for name in CONSTANTS:
        if name in posterior:
            values = np.asarray(posterior[name], dtype=float)
            draws[name] = values.reshape(-1, 1) if gpu_code is None else _pooled(values)[:, gpu_code]
    return Efficiency(**draws)


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
    *,
    work: Work | None = None,
    gpu_ms: ArrayLike | None = None,
) -> StepDistribution:
    """What the posterior of `build_model` says of any cells of its SKUs, classes and models, measured or not.

    Parameters
    ----------
    posterior : Dataset (chain, draw, ...)
    cells : Cells
        Their steps are not looked at; a known part of their noise (`step_sd_ms`) is added.
    classes : mapping of model name to class
    structure : FloorStructure
        Of the fit.
    work : Work, optional
        Of `cells`; T_gpu follows from the constants of each draw, and launches where floors grow with them.
    gpu_ms : array [cell], ms, optional
        T_gpu, where constants were fixed.

    Raises
    ------
    ValueError
        Neither `work` nor `gpu_ms`; a SKU, class or model that the fit had not.
    """
    if gpu_ms is None:
        if work is None:
            raise ValueError("step_distribution needs work or gpu_ms")
        code = None
        if "constants_gpu" in posterior.dims:
            code = _codes_of(cells.gpu, posterior["constants_gpu"].values, "constants of GPU")
        T = work_ms(work, efficiency_of(posterior, code))
    else:
        T = np.broadcast_to(np.asarray(gpu_ms, dtype=float), (1, len(cells)))
    step = T
    if structure.sharing is not None:
        floor = floors_of(posterior, cells, classes, structure, work=work)
        step = structure.step_ms(T, floor, _q_of(posterior, cells, classes, structure))
    level = np.broadcast_to(step, (posterior.sizes["chain"] * posterior.sizes["draw"], len(cells)))
    code = _codes_of(cells.model, posterior["noisy_model"].values, "noise of model")
    relative, absolute = _pooled(posterior["noise_relative"])[:, code], _pooled(posterior["noise_ms"])[:, None]
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
    posterior: Any, cells: Cells, classes: Mapping[str, str], structure: FloorStructure, *, work: Work | None = None
) -> Array:
    """Floor of each cell, ms, [draw, cell].

    `work` is needed where floors grow with launches; other arguments and errors as in `step_distribution`.
    """
    assert structure.sharing is not None
    floor, dim = _pooled(posterior["floor_ms"]), structure.sharing.dim
    at: tuple[Any, ...] = (slice(None), _codes_of(cells.gpu, posterior["gpu"].values, "floors of GPU"))
    if dim:
        labels = np.array([structure.sharing.label(m, classes[m]) for m in cells.model.tolist()])
        at = (*at, _codes_of(labels, posterior[dim].values, f"floors of {dim}"))
    out = np.ascontiguousarray(floor[at])
    if not (structure.sharing.per_launch or structure.terms):
        return out
    if work is None:
        raise ValueError("floors that grow with launches or sequences need work")
    host = host_ms_of(posterior, cells, structure, work)
    return host + (_per_launch(posterior, cells, out, work) if structure.sharing.per_launch else out)


def host_ms_of(posterior: Any, cells: Cells, structure: FloorStructure, work: Work) -> Array:
    """Host time of the terms of a floor, ms, [draw, cell]; [1, cell] of 0 where it has none."""
    if not structure.terms:
        return np.zeros((1, len(cells)))
    code = _codes_of(cells.gpu, posterior["term_gpu"].values, "floor terms on GPU")
    each = structure.host_ms(lambda name: _pooled(posterior[name])[:, code], work.tokens, layers_of(work))
    return np.asarray(each)


def _per_launch(posterior: Any, cells: Cells, floor_ms: Array, work: Work) -> Array:
    """Floors that grow with launches, from those at the mean number, ms, [draw, cell]."""
    of_mean, launches = float(np.asarray(posterior["launches_at_floor"]).flat[0]), launches_of(work)
    name = "launch_share" if "launch_share" in posterior else "launch_ms"
    code = _codes_of(cells.gpu, posterior["launch_gpu"].values, "launches on GPU")
    each = np.ascontiguousarray(_pooled(posterior[name])[:, code])
    if name == "launch_share":
        return np.asarray(floor_ms * (1.0 + each * (launches / of_mean - 1.0)))
    return np.asarray(floor_ms + each * (launches - of_mean))


def _q_of(posterior: Any, cells: Cells, classes: Mapping[str, str], structure: FloorStructure) -> Array:
    """q of each cell, [draw or 1, cell]."""
    fixed = structure.q_of(np.array([classes[m] for m in cells.models]))[cells.model_code]
    if not structure.q_free:
        return fixed[None]
    return np.where(np.isnan(fixed), _pooled(posterior["q"])[:, None], fixed)
