"""Draws of a cut posterior: a downstream model refitted given each of many upstream draws."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from rooffloor.models.inference.cut_model import CutModels
from rooffloor.models.inference.gate import Gate, GateFailure
from rooffloor.models.inference.quadrature import has_closed_form, quadrature_given
from rooffloor.models.inference.sampling import ESCALATION, Compiled, Data, SmallFit, compile_model, fit_many, thin

type Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class CutFit:
    """A cut posterior: upstream draws, and downstream draws given each.

    Attributes
    ----------
    datatree : xarray.DataTree
        Group posterior, dims (chain = 1, draw = upstream draws x `inner`, ...). A coordinate ``upstream``
        (draw) numbers the upstream draw behind each draw. Upstream variables are called ``anchor_<name>``
        where the downstream model has the same name.
    inner : int
        Downstream draws per upstream draw.
    failed : tuple of int
        Upstream draws whose downstream fit failed its gate; they are left out.
    attempts : int
        Downstream fits that were run, escalations included.
    """

    datatree: xr.DataTree
    inner: int
    failed: tuple[int, ...]
    attempts: int

    @property
    def posterior(self) -> xr.Dataset:
        """The draws, dims (chain, draw, ...)."""
        return self.datatree["posterior"].to_dataset()

    def __repr__(self) -> str:
        return (
            f"CutFit({self.posterior.sizes['draw'] // self.inner} upstream draws x {self.inner}, "
            f"{len(self.failed)} failed, {self.attempts} downstream fits)"
        )


MAX_FAILED = 0.02
"""Share of second stages that may fail."""
CLOSED_FORM_ESS, CLOSED_FORM_POINTS = 15.0, 512
"""Least effective number of points of a second stage in closed form, of which a few draws are kept, and its points."""
MOST_SAMPLED = 0.1
"""Share of second stages that are sampled where their closed form has too few effective points."""
STAGE_TWO = Gate(rhat=1.05, ess=50.0)
"""Gate of the short downstream fits of a cut: only their mixture is read, and its error counts upstream
draws."""
STAGE_TWO_ESCALATION = (*ESCALATION, (0.999, 8))
"""They are short: few cells leave the scales of the hierarchy to their prior, where long steps fail."""


def cut(
    upstream: Mapping[str, Any],
    downstream: Compiled,
    data_of: Callable[[Mapping[str, Array]], Data],
    *,
    seed: int,
    outer: int = 100,
    inner: int = 10,
    draws: int = 300,
    tune: int = 500,
    chains: int = 2,
    jobs: int = 2,
    max_failed: float = MAX_FAILED,
    progress: bool = False,
) -> CutFit:
    """Draws of a cut posterior p(u | upstream data) · p(d | u, downstream data).

    Downstream data never inform the upstream parameters: each of `outer` upstream draws is passed on as
    data, and the downstream model is refitted given it.

    Parameters
    ----------
    upstream : Dataset or mapping of arrays (chain, draw, ...)
        Posterior of the upstream model (`Fit.posterior`).
    downstream : Compiled
    data_of : callable
        One upstream draw, by name, to the data of the downstream model.
    outer, inner : int
        Upstream draws; downstream draws kept for each.
    draws, tune, chains : int
        Length of the first attempt of each downstream fit; one that fails `STAGE_TWO` escalates.
    max_failed : float
        Share of downstream fits that may fail.

    Raises
    ------
    GateFailure
        More downstream fits fail than `max_failed` allows.
    """
    outer_draws, one_by_one = _outer(upstream, outer)
    data = [data_of(u) for u in one_by_one]
    length = {"draws": draws, "tune": tune, "chains": chains}
    fits = _fits(downstream, data, seed, keep=inner, jobs=jobs, progress=progress, **length)
    failed = tuple(k for k, fit in enumerate(fits) if not fit.passed)
    if len(failed) > max_failed * len(fits):
        why = "; ".join(fits[failed[0]].attempts[-1].failures)
        raise GateFailure(f"cut: {len(failed)} of {len(fits)} downstream fits failed their gate ({why})")
    down = {n: [fit.draws[n] for fit in fits] for n in fits[0].draws}
    dims, coords = downstream.dims, downstream.coords
    return _cut_fit(upstream, outer_draws, down, dims, coords, inner, failed, sum(len(f.attempts) for f in fits))


def _fits(
    downstream: Compiled,
    data: Sequence[Data],
    seed: int,
    *,
    draws: int = 300,
    tune: int = 500,
    chains: int = 2,
    **how: Any,
) -> list[SmallFit]:
    """Short gated fits of a second stage to many data."""
    seeds = np.random.SeedSequence(seed).generate_state(len(data)).tolist()
    gated: dict[str, Any] = {"gate": STAGE_TWO, "escalation": STAGE_TWO_ESCALATION}
    return fit_many(downstream, data, seeds, draws=draws, tune=tune, chains=chains, **gated, **how)


def cut_of_steps(
    upstream: xr.Dataset,
    stages: CutModels,
    *,
    seed: int,
    outer: int = 400,
    inner: int = 5,
    jobs: int = 2,
    progress: bool = False,
) -> CutFit:
    """The cut posterior of a model of steps: its second stage in closed form where floors are signed and added.

    Where few points of the closed form count, that stage is sampled. Other structures are sampled, given each of a
    quarter of the `outer` upstream draws.

    Parameters
    ----------
    upstream : Dataset (chain, draw, ...)
        Posterior of `stages.upstream`.
    stages : CutModels
    outer, inner : int
        Upstream draws; downstream draws for each.

    Raises
    ------
    GateFailure
        More second stages fail than `MAX_FAILED` allows.
    """
    model = stages.downstream
    if not has_closed_form(model):
        options: dict[str, Any] = {"outer": max(outer // 4, 1), "inner": 2 * inner, "jobs": jobs, "progress": progress}
        return cut(upstream, compile_model(model), stages.data_of, seed=seed, **options)
    outer_draws, one_by_one = _outer(upstream, outer)
    data = [{**model.data, **stages.data_of(one)} for one in one_by_one]
    found, ess = quadrature_given(model, data, np.random.default_rng(seed), draws=inner, points=CLOSED_FORM_POINTS)
    failed = tuple(np.flatnonzero(~(ess >= CLOSED_FORM_ESS)).tolist())
    if failed and len(failed) <= MOST_SAMPLED * len(data):
        fits = _fits(compile_model(model), [data[k] for k in failed], seed, keep=inner, jobs=jobs)
        for k, fit in zip(failed, fits, strict=True):
            for name, values in found.items():
                values[k] = fit.draws[name]
        failed = tuple(k for k, fit in zip(failed, fits, strict=True) if not fit.passed)
    if len(failed) > MAX_FAILED * len(data):
        least = f"effective points {ess.min():.0f} < {CLOSED_FORM_ESS:.0f}"
        raise GateFailure(f"cut: {len(failed)} of {len(data)} second stages failed their gate ({least})")
    down = {name: list(values) for name, values in found.items()}
    return _cut_fit(upstream, outer_draws, down, model.dims, model.coords, inner, failed, len(data))


def _outer(upstream: Mapping[str, Any], outer: int) -> tuple[dict[str, Array], list[dict[str, Array]]]:
    """Upstream draws that are passed on: by variable [draw, ...], and one by one."""
    names = [str(n) for n in upstream if not str(n).startswith("z_")]
    drawn = {n: thin(np.asarray(upstream[n]), outer) for n in names}
    return drawn, [{n: v[k] for n, v in drawn.items()} for k in range(len(drawn[names[0]]))]


def _cut_fit(
    upstream: Mapping[str, Any],
    outer_draws: Mapping[str, Array],
    downstream: Mapping[str, Sequence[Array]],
    dims_of: Mapping[str, tuple[str, ...]],
    labels: Mapping[str, Any],
    inner: int,
    failed: tuple[int, ...],
    attempts: int,
) -> CutFit:
    """The draws of both stages as one data set; `downstream` has an array [inner, ...] for each upstream draw."""
    good = [k for k in range(len(next(iter(downstream.values())))) if k not in failed]
    down = {n: np.concatenate([values[k] for k in good]) for n, values in downstream.items()}
    up = {
        f"anchor_{n}" if n in down or n in dims_of else n: np.repeat(v[good], inner, axis=0)
        for n, v in outer_draws.items()
    }
    variables = {n: (dims_of.get(n, ()), v) for n, v in down.items()}
    for name, value in up.items():
        source = upstream[name.removeprefix("anchor_") if name not in upstream else name]
        dims = tuple(f"anchor_{d}" for d in getattr(source, "dims", ())[2:])
        variables[name] = (dims or tuple(f"{name}_dim_{i}" for i in range(value.ndim - 1)), value)
    dataset = xr.Dataset({n: (("chain", "draw", *dims), v[None]) for n, (dims, v) in variables.items()})
    coords = {d: labels[d] for d in dataset.dims if d in labels}
    for source in upstream.values():
        for d in getattr(source, "dims", ())[2:]:
            if f"anchor_{d}" in dataset.dims and d in source.coords:
                coords[f"anchor_{d}"] = source.coords[d].values
    coords |= {"chain": [0], "draw": np.arange(len(good) * inner)}
    dataset = dataset.assign_coords(coords).assign_coords(upstream=("draw", np.repeat(good, inner)))
    tree = xr.DataTree.from_dict({"posterior": dataset})
    return CutFit(tree, inner, failed, attempts)
