"""Compile a model once, refit it many times, and let no fit out that fails its gate."""

import gc
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import nutpie
import pymc as pm
import pytensor
import xarray as xr
from numpy.typing import ArrayLike, NDArray
from pymc.model.fgraph import fgraph_from_model, model_from_fgraph
from pytensor.graph import FunctionGraph, clone_replace
from pytensor.graph.traversal import ancestors
from tqdm import tqdm

from rooffloor.models.inference.gate import DEFAULT_GATE, Attempt, Diagnostics, Gate, GateFailure, diagnose

type Array = NDArray[np.float64]
type Data = Mapping[str, ArrayLike]
"""New values of some of a model's data, by name."""

ESCALATION = ((0.95, 1), (0.99, 2), (0.995, 4))
"""Attempts of a gated fit: (target_accept, factor on draws and tuning). Fixed: no result chooses them."""


@dataclass(frozen=True, eq=False)
class Fit:
    """A posterior with its diagnostics.

    Attributes
    ----------
    datatree : xarray.DataTree
        Groups posterior, sample_stats, observed_data, constant_data; opens with ``az.plot_*``.
    attempts : tuple of Attempt
        All attempts in order; the draws are those of the last.
    """

    datatree: xr.DataTree
    attempts: tuple[Attempt, ...]

    @property
    def posterior(self) -> xr.Dataset:
        """The draws, dims (chain, draw, ...)."""
        return self.datatree["posterior"].to_dataset()

    @property
    def diagnostics(self) -> Diagnostics:
        """Of the last attempt."""
        return self.attempts[-1].diagnostics

    @property
    def passed(self) -> bool:
        """Whether the last attempt met the gate."""
        return not self.attempts[-1].failures

    def __repr__(self) -> str:
        last = self.attempts[-1]
        state = "passed" if self.passed else "FAILED: " + "; ".join(last.failures)
        return (
            f"Fit({last.chains} chains x {last.draws} draws, attempt {len(self.attempts)} at target_accept "
            f"{last.target_accept}: {self.diagnostics}; gate {state})"
        )


@dataclass(frozen=True, eq=False)
class Compiled:
    """A compiled model, to be fitted to its own data or to others of the same structure.

    Attributes
    ----------
    free : tuple of str
        Free random variables: what the sampler moves and the gate looks at.
    dims : mapping
        Dims of every variable and data of the model.
    coords : mapping
    data : mapping of str to array
        The model's own data.
    observed : mapping of str to str
        Observed random variable -> its data.
    stacks : mapping of str to tuple of str
        Data as the compiled function takes them: those of one shape as one array, see `_stacked`.
    """

    nutpie_model: Any = field(repr=False)
    free: tuple[str, ...]
    dims: Mapping[str, tuple[str, ...]]
    coords: Mapping[str, Any]
    data: Mapping[str, Array] = field(repr=False)
    observed: Mapping[str, str]
    stacks: Mapping[str, tuple[str, ...]] = field(repr=False)

    def fit(
        self,
        data: Data | None = None,
        *,
        seed: int,
        draws: int = 1000,
        tune: int = 1000,
        chains: int = 4,
        target_accept: float = 0.95,
        cores: int = 2,
        gate: Gate = DEFAULT_GATE,
        progress: bool = False,
    ) -> Fit:
        """Sample once, whatever the gate says (`fit_gated` escalates and refuses).

        Parameters
        ----------
        data : mapping of str to array, or None
            Data that replace the model's own; the number of cells may change, the SKUs and classes may not.

        Raises
        ------
        ValueError
            `data` names what the model does not have, or its shapes or codes do not fit.
        """
        merged = self._merged(data or {})
        sampler = nutpie.sample(
            self.nutpie_model.with_data(**self._taken(merged, data or {})),
            draws=draws,
            tune=tune,
            chains=chains,
            cores=min(cores, chains),
            seed=seed,
            target_accept=target_accept,
            save_warmup=False,
            progress_bar=progress,
            blocking=False,
        )
        try:
            trace = sampler.wait()
        except BaseException:  # nutpie's own waiting takes Ctrl-C for the end and returns what there is
            sampler.cancel()
            raise
        posterior = trace["posterior"].to_dataset()
        stats = trace["sample_stats"].to_dataset()
        found = diagnose({n: posterior[n].values for n in self.free}, stats)
        attempt = Attempt(draws, tune, chains, seed, target_accept, found, gate.failures(found))
        groups = {
            "posterior": posterior,
            "sample_stats": stats,
            "observed_data": self._dataset({n: (like, merged[like]) for n, like in self.observed.items()}),
            "constant_data": self._dataset({n: (n, v) for n, v in merged.items() if n not in self.observed.values()}),
        }
        tree = xr.DataTree.from_dict(groups)
        return Fit(tree, (attempt,))

    def _merged(self, data: Data) -> dict[str, Array]:
        for name in data:
            if name not in self.data:
                raise ValueError(f"the model has no data {name!r}: expected some of {sorted(self.data)}")
        merged = {name: np.asarray(data.get(name, own)) for name, own in self.data.items()}
        fixed = {dim for name, dims in self.dims.items() if name not in merged for dim in dims} - {"cell"}
        size = {dim: len(self.coords[dim]) for dim in fixed}
        for name, value in merged.items():
            dims = self.dims.get(name, ())
            if value.ndim != len(dims):
                raise ValueError(f"data {name!r} must have dims {dims}, got shape {value.shape}")
            for dim, length in zip(dims, value.shape, strict=True):
                if size.setdefault(dim, length) != length:
                    raise ValueError(f"data {name!r} has {length} along {dim!r}, expected {size[dim]}")
            labels = self.coords.get(name.removesuffix("_code")) if name.endswith("_code") else None
            if labels is not None and value.size and not 0 <= value.min() <= value.max() < len(labels):
                raise ValueError(f"data {name!r} must hold codes from 0 to {len(labels) - 1}")
        return merged

    def _taken(self, merged: Mapping[str, Array], data: Data) -> dict[str, Array]:
        """The data that change, as the compiled function takes them."""
        stacks = {stack: names for stack, names in self.stacks.items() if not set(names).isdisjoint(data)}
        alone = set(data).difference(*stacks.values())
        stacked = {stack: np.stack([merged[name].astype(float) for name in names]) for stack, names in stacks.items()}
        return {name: merged[name] for name in alone} | stacked

    def _dataset(self, values: Mapping[str, tuple[str, Array]]) -> xr.Dataset:
        """Variables name -> (whose dims, values), with the coords that still have the right length."""
        dataset = xr.Dataset({name: (self.dims.get(like, ()), value) for name, (like, value) in values.items()})
        coords = {d: self.coords[d] for d, n in dataset.sizes.items() if len(self.coords.get(d, ())) == n}
        return dataset.assign_coords(coords)


def compile_model(model: pm.Model) -> Compiled:
    """Compile `model` once for many fits (nutpie, numba; some seconds)."""
    data = {v.name: np.asarray(v.get_value()) for v in model.data_vars}
    observed = {rv.name: model.rvs_to_values[rv].name for rv in model.observed_RVs}
    stacked, stacks = _stacked(model)
    collecting = gc.isenabled()
    gc.disable()  # it would walk millions of living objects, for a tenth of the time, and find nothing
    try:
        compiled = nutpie.compile_pymc_model(stacked, backend="numba")
    finally:
        if collecting:
            gc.enable()
    # Data that no variable uses were dropped by the compiler: they cannot be replaced.
    taken = {v.name for v in compiled.shared_var_keys}
    used = {name for stack in taken for name in stacks.get(stack, (stack,))}
    return Compiled(
        compiled,
        tuple(rv.name for rv in model.free_RVs),
        {name: tuple(dims) for name, dims in model.named_vars_to_dims.items()},
        {dim: np.asarray(values) for dim, values in model.coords.items() if values is not None},
        {name: value for name, value in data.items() if name in used},
        {rv: name for rv, name in observed.items() if name in used},
        {stack: names for stack, names in stacks.items() if stack in taken},
    )


def _stacked(model: pm.Model) -> tuple[pm.Model, dict[str, tuple[str, ...]]]:
    """The same model with data of the same dims in one array, and the names of each array's rows.

    Of the compiled function's arguments, numba types each one on its own, at about a second apiece.
    """
    if any(value is not None for value in model.rvs_to_initial_values.values()):
        return model, {}  # PyMC cannot rewrite such a model
    values = model.rvs_to_values.values()
    used = set(ancestors([*model.basic_RVs, *model.potentials, *model.deterministics, *values]))
    alike: dict[tuple[str, ...], list[Any]] = {}
    for variable in model.data_vars:
        dims = model.named_vars_to_dims.get(variable.name, ())
        if variable in used and dims:
            alike.setdefault(tuple(dims), []).append(variable)
    graph, memo = fgraph_from_model(model)
    replaced, stacks = {}, {}
    for dims, variables in alike.items():
        if len(variables) > 1:
            rows = np.stack([variable.get_value().astype(float) for variable in variables])
            free = (None,) * len(dims)  # the number of cells may change
            stack = pytensor.shared(rows, name=f"stack ({', '.join(dims)})", shape=(len(variables), *free))
            stacks[stack.name] = tuple(variable.name for variable in variables)
            for k, variable in enumerate(variables):
                replaced[memo[variable].owner.inputs[0]] = stack[k].astype(variable.dtype)
    outputs = clone_replace(graph.outputs, replace=replaced, rebuild_strict=False)
    rewritten = FunctionGraph(outputs=outputs, clone=False)
    rewritten._coords, rewritten._dim_lengths = graph._coords, graph._dim_lengths
    stacked = model_from_fgraph(rewritten, mutate_fgraph=True)
    order = [variable.name for variable in model.free_RVs]
    stacked.free_RVs.sort(key=lambda variable: order.index(variable.name))
    return stacked, stacks


def fit_gated(
    compiled: Compiled,
    data: Data | None = None,
    *,
    seed: int,
    draws: int = 1000,
    tune: int = 1000,
    gate: Gate = DEFAULT_GATE,
    refuse: bool = True,
    escalation: Sequence[tuple[float, int]] = ESCALATION,
    **kwargs: Any,
) -> Fit:
    """Fit, escalating until the gate is met; every attempt is recorded.

    Parameters
    ----------
    seed : int
        Of the first attempt; the later ones' follow from it, so that a chain that was stuck where it started is not
        started there again.
    refuse : bool
        False: return the last attempt although it failed (runs over many data sets count their failures).
    escalation : sequence of (target_accept, factor on draws and tune)
        A fit of the same model to nearly the same data may leave out the steps that failed there.
    kwargs
        `chains`, `cores`, `progress` of `Compiled.fit`.

    Raises
    ------
    GateFailure
        The last attempt fails too.
    """
    attempts: tuple[Attempt, ...] = ()
    for target_accept, factor in escalation:
        fit = compiled.fit(
            data,
            seed=seed if not attempts else int(np.random.SeedSequence([seed, len(attempts)]).generate_state(1)[0]),
            draws=draws * factor,
            tune=tune * factor,
            target_accept=target_accept,
            gate=gate,
            **kwargs,
        )
        attempts += fit.attempts
        if fit.passed:
            break
    fit = Fit(fit.datatree, attempts)
    if refuse and not fit.passed:
        raise GateFailure(f"the fit failed its gate after {len(attempts)} attempts: {'; '.join(attempts[-1].failures)}")
    return fit


@dataclass(frozen=True, eq=False)
class SmallFit:
    """What `fit_many` keeps of a fit: thinned draws (draw, ...) by name, without ``z_*``, and its attempts."""

    draws: Mapping[str, Array]
    attempts: tuple[Attempt, ...]

    @property
    def passed(self) -> bool:
        """Whether the last attempt met the gate."""
        return not self.attempts[-1].failures


def fit_many(
    compiled: Compiled,
    datasets: Sequence[Data],
    seeds: Sequence[int],
    *,
    keep: int = 100,
    jobs: int = 2,
    progress: bool = False,
    **kwargs: Any,
) -> list[SmallFit]:
    """Gated fits of one compiled model to many data sets; failed fits are returned too, marked.

    The sampler works outside Python's lock: threads share the one compiled function. A data set's draws
    depend on its seed alone, not on `jobs`.

    Parameters
    ----------
    datasets, seeds : sequences of one length
    keep : int
        Draws kept per fit, evenly spaced over all chains.
    jobs : int
        Fits at a time.
    kwargs
        Passed to `fit_gated`.
    """

    def one(task: tuple[Data, int]) -> SmallFit:
        data, seed = task
        fit = fit_gated(compiled, data, seed=seed, refuse=False, cores=1, **kwargs)
        posterior = fit.posterior
        kept = [str(n) for n in posterior.data_vars if not str(n).startswith("z_")]
        return SmallFit({n: thin(posterior[n].values, keep) for n in kept}, fit.attempts)

    tasks = list(zip(datasets, seeds, strict=True))
    with ThreadPoolExecutor(jobs) as pool:
        return list(tqdm(pool.map(one, tasks), total=len(tasks), disable=not progress, desc="fits"))


def thin(values: Array, keep: int) -> Array:
    """At most `keep` draws, evenly spaced over all chains end to end: (chain, draw, ...) to (draw, ...)."""
    pooled = values.reshape(-1, *values.shape[2:])
    keep = min(keep, len(pooled))
    return pooled[np.linspace(0, len(pooled) - 1, keep).round().astype(int)]
