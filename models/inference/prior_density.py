"""The prior of `step_model.build_model`, without PyMC: draws from it, and its density at posterior draws.

Draws serve prior predictive checks and simulation-based calibration; densities, one per component of the
prior, serve power-scaling sensitivity. Both read one table of distributions, `_distributions`. The whole grid
of floors is one component: its joint normal density with the effects integrated out, as in the model.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import xarray as xr
from numpy.typing import NDArray
from scipy import stats

from rooffloor.models.floor.structures import Q_MAX, TERMS, FloorStructure
from rooffloor.models.inference.priors import DEFAULT_PRIORS, Priors, beta_shapes
from rooffloor.models.roof.kernels import Work, launches_of
from rooffloor.models.specs.cells import Cells

Array = NDArray[np.float64]

COMPONENTS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("constants", ("eta_bw", "eta_fa", "eta_tc", "l_half", "rho_q", "latency_ms")),
    ("overlap", ("q",)),
    ("launches", ("launch_ms", "launch_share")),
    ("terms", tuple(term.parameter for term in TERMS.values())),
    ("noise", ("noise_level", "noise_spread", "noise_own", "noise_ms", "student_nu")),
)
"""Components of the prior beside the floors, and the parameters that each may have, all independent."""


@dataclass(frozen=True)
class _HalfT:
    """Half-t with 3 degrees of freedom."""

    scale: float

    def logpdf(self, value: Any) -> Any:
        return np.log(2.0) + stats.t.logpdf(value, 3, scale=self.scale)

    def rvs(self, size: tuple[int, ...], random_state: np.random.Generator) -> Array:
        return np.abs(stats.t.rvs(3, scale=self.scale, size=size, random_state=random_state))


def _beta(moments: tuple[float, float]) -> Any:
    return stats.beta(*beta_shapes(moments))


def _log_normal(prior: tuple[float, float]) -> Any:
    median, sd = prior
    return stats.lognorm(sd, scale=median)


def _gamma(prior: tuple[float, float]) -> Any:
    shape, mean = prior
    return stats.gamma(shape, scale=mean / shape)


def _distributions(priors: Priors) -> dict[str, Any]:
    """Prior of each parameter that is independent of the others, by its name in the posterior."""
    level, level_sd = priors.noise_relative
    shape, rate = priors.student_nu
    return {
        "eta_bw": _beta(priors.eta_bw),
        "eta_fa": _beta(priors.eta_fa),
        "eta_tc": _beta(priors.eta_tc),
        "l_half": _log_normal(priors.l_half),
        "rho_q": _log_normal(priors.rho_q),
        "latency_ms": _log_normal(priors.launch_ms),
        "q": stats.uniform(0.0, Q_MAX),
        "launch_ms": _log_normal(priors.launch_ms),
        "launch_share": stats.uniform(0.0, 1.0),
        **{term.parameter: _gamma(getattr(priors, term.parameter)) for term in TERMS.values()},
        "noise_level": stats.norm(np.log(level), level_sd),
        "noise_spread": stats.halfnorm(scale=priors.noise_spread),
        "noise_own": stats.norm(),
        "noise_ms": _log_normal(priors.noise_ms),
        "student_nu": stats.gamma(shape, scale=1.0 / rate),
    }


def _scales(structure: FloorStructure, priors: Priors) -> dict[str, tuple[str, Any]]:
    """Scales of the effects "gpu", "group" and "pair" that the structure has: name in the posterior, and prior."""
    assert structure.sharing is not None
    unit, dim = "" if structure.positive else "_ms", structure.sharing.dim
    names = {"gpu": "gpu"} if dim is None else {"gpu": "gpu", "group": dim, "pair": "pair"}
    prior = stats.halfnorm if structure.positive else _HalfT
    return {
        effect: (f"floor_sd_{name}{unit}", prior(scale=priors.floor_scale(effect, structure.positive)))
        for effect, name in names.items()
    }


def sample_prior(
    rng: np.random.Generator,
    draws: int,
    cells: Cells,
    classes: Mapping[str, str],
    structure: FloorStructure,
    *,
    work: Work | None = None,
    priors: Priors = DEFAULT_PRIORS,
    constants: Literal["fixed", "free"] = "free",
    likelihood: Literal["normal", "student"] = "normal",
) -> xr.Dataset:
    """Draws from the prior of `build_model`, in the names, dims and coords of its posterior (one chain).

    With `step_distribution` they give prior predictive data. The sampler's own ``z_*`` are left out.

    Parameters
    ----------
    rng : Generator
    draws : int
    cells : Cells
        Their models and SKUs are the grid of floors; steps are not looked at.
    classes : mapping of model name to class
    structure : FloorStructure
    work : Work, optional
        Of `cells`; needed where floors grow with launches.
    constants : "fixed" or "free"
        Fixed: no constants are drawn. Free: one set for all SKUs.
    likelihood : "normal" or "student"

    Returns
    -------
    Dataset (chain, draw, ...)

    Raises
    ------
    ValueError
        `classes` lacks a model, or `work` is missing where floors grow with launches.
    """
    sharing, table = structure.sharing, _distributions(priors)
    coords: dict[str, list[Any]] = {"chain": [0], "draw": list(range(draws)), "noisy_model": list(cells.models)}
    dims: dict[str, tuple[str, ...]] = {}
    if constants == "free":
        dims |= dict.fromkeys(("eta_bw", "eta_fa", "eta_tc", "l_half"), ())
        if sharing is not None and sharing.kernel_latency:
            dims["latency_ms"] = ()
    if structure.q_free:
        dims["q"] = ()
    if sharing is not None and sharing.per_launch:
        coords["launch_gpu"] = list(cells.gpus)
        dims["launch_share" if structure.positive else "launch_ms"] = ("launch_gpu",)
    if structure.terms:
        coords["term_gpu"] = list(cells.gpus)
        dims |= {TERMS[name].parameter: ("term_gpu",) for name in structure.terms}
    dims |= {"noise_level": (), "noise_spread": (), "noise_own": ("noisy_model",), "noise_ms": ()}
    if likelihood == "student":
        dims["student_nu"] = ()
    drawn = {
        name: (
            ("chain", "draw", *own),
            table[name].rvs(size=(1, draws, *(len(coords[d]) for d in own)), random_state=rng),
        )
        for name, own in dims.items()
    }
    out = xr.Dataset(drawn, coords=coords)
    out["noise_relative"] = np.exp(out["noise_level"] + out["noise_spread"] * out["noise_own"])
    if sharing is not None and sharing.per_launch:
        if work is None:
            raise ValueError("floors that grow with launches need work")
        out["launches_at_floor"] = (("chain", "draw"), np.full((1, draws), float(launches_of(work).mean())))
    return out if sharing is None else out.assign(_sample_floors(rng, draws, cells, classes, structure, priors))


def _sample_floors(
    rng: np.random.Generator,
    draws: int,
    cells: Cells,
    classes: Mapping[str, str],
    structure: FloorStructure,
    priors: Priors,
) -> xr.Dataset:
    """``floor_ms`` of the whole grid and the scales of its effects, as overall + SKU + group + pair effects."""
    groups = structure.groups(cells, classes)
    coords: dict[str, list[Any]] = {"chain": [0], "draw": list(range(draws)), "gpu": list(cells.gpus)}
    if groups.dim is not None:
        coords[groups.dim] = list(groups.labels)
    grid = tuple(d for d in coords if d not in ("chain", "draw"))

    def normal(*dims: str) -> xr.DataArray:
        names = ("chain", "draw", *dims)
        return xr.DataArray(rng.standard_normal([len(coords[d]) for d in names]), dims=names)

    effects = {"gpu": ("gpu",), "group": grid[1:], "pair": grid}
    mean, sd = priors.floor_level(structure.positive)
    floor, scales = mean + sd * normal(), {}
    for effect, (name, prior) in _scales(structure, priors).items():
        scales[name] = xr.DataArray(prior.rvs(size=(1, draws), random_state=rng), dims=("chain", "draw"))
        floor = floor + scales[name] * normal(*effects[effect])
    floor = floor.transpose("chain", "draw", *grid)
    return xr.Dataset({"floor_ms": np.exp(floor) if structure.positive else floor, **scales}, coords=coords)


def log_prior(posterior: xr.Dataset, structure: FloorStructure, priors: Priors = DEFAULT_PRIORS) -> xr.Dataset:
    """Log prior density of posterior draws, one variable per component of the prior.

    Densities are those of the parameters as the posterior names them, and of the logarithm of the floors where they
    are H >= 0. Components that the fit has not are left out; one that is uniform is constant.

    Parameters
    ----------
    posterior : Dataset (chain, draw, ...)
        Of `build_model`, or of `sample_prior`.
    structure : FloorStructure
        Of the fit.

    Returns
    -------
    Dataset (chain, draw)
        "constants" (constants of the GPU branch), "floors" (the grid of floors and its scales), "overlap" (q),
        "launches" (growth per launch), "terms" (other terms of the floor), "noise".
    """
    table = _distributions(priors)
    components = {}
    for component, names in COMPONENTS:
        there = [name for name in names if name in posterior]
        if there:
            components[component] = _summed(_log_density(posterior[name], table[name]) for name in there)
    if structure.sharing is not None:
        scales = _scales(structure, priors)
        densities = [_log_density(posterior[name], prior) for name, prior in scales.values()]
        components["floors"] = _summed([_log_grid(posterior, structure, priors), *densities])
    return xr.Dataset(components)


def _summed(terms: Iterable[xr.DataArray]) -> xr.DataArray:
    first, *rest = terms
    return sum(rest, first)


def _log_density(values: xr.DataArray, distribution: Any) -> xr.DataArray:
    """Log density of independent parameters, summed over all dims but (chain, draw)."""
    density = values.copy(data=distribution.logpdf(values.values)).transpose("chain", "draw", ...)
    return density.sum(density.dims[2:])


def _log_grid(posterior: xr.Dataset, structure: FloorStructure, priors: Priors) -> xr.DataArray:
    """Log density of the grid of floors given the scales of its effects, (chain, draw).

    The covariance sd² 11' + sd_gpu² same SKU + sd_group² same group + sd_pair² I of g x c floors has four
    eigenvalues; the squares that go with each are those of a two-way analysis of variance.
    """
    assert structure.sharing is not None
    dim = structure.sharing.dim
    floor = posterior["floor_ms"] if dim else posterior["floor_ms"].expand_dims("group", axis=-1)
    other = dim or "group"
    value = np.log(floor) if structure.positive else floor
    g, c = value.sizes["gpu"], value.sizes[other]
    mean, sd = priors.floor_level(structure.positive)
    variance = {effect: posterior[name] ** 2 for effect, (name, _) in _scales(structure, priors).items()}
    pair = variance.get("pair", 0.0)
    by_gpu, by_group = c * variance["gpu"] + pair, g * variance.get("group", 0.0) + pair
    whole, gpu, group = value.mean(("gpu", other)), value.mean(other), value.mean("gpu")
    terms = (  # eigenvalue, its multiplicity, sum of squares
        (by_gpu + by_group - pair + g * c * sd**2, 1, g * c * (whole - mean) ** 2),
        (by_gpu, g - 1, c * ((gpu - whole) ** 2).sum("gpu")),
        (by_group, c - 1, g * ((group - whole) ** 2).sum(other)),
        (pair, (g - 1) * (c - 1), ((value - gpu - group + whole) ** 2).sum(("gpu", other))),
    )
    return _summed(-0.5 * (n * np.log(2 * np.pi * size) + squares / size) for size, n, squares in terms if n)
