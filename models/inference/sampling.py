"""Compile a model once, refit it many times, and let no fit out that fails its gate (DESIGN section 5)."""

import gc
import json
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import nutpie
import pymc as pm
import pytensor
import xarray as xr
from arviz_stats.base import array_stats
from numpy.typing import ArrayLike, NDArray
from pymc.model.fgraph import fgraph_from_model, model_from_fgraph
from pytensor.graph import FunctionGraph, clone_replace
from pytensor.graph.traversal import ancestors
from tqdm import tqdm

Array = NDArray[np.float64]
Data = Mapping[str, ArrayLike]
"""New values of some of a model's data, by name."""

ESCALATION = ((0.95, 1), (0.99, 2), (0.995, 4))
"""Attempts of a gated fit: (target_accept, factor on draws and tuning). Fixed: no result chooses them."""


class GateFailure(RuntimeError):
    """A fit failed its gate after the whole escalation: it is not a result."""


@dataclass(frozen=True)
class Diagnostics:
    """Convergence of one fit over its free random variables.

    Attributes
    ----------
    rhat : float
        Largest rank-normalised split R-hat; `rhat_of` names its parameter.
    ess_bulk, ess_tail : float
        Smallest effective sample sizes; `ess_of` names the parameter of the smaller of the two.
    divergences : int
    ebfmi : float
        Smallest E-BFMI of a chain.
    """

    rhat: float
    rhat_of: str
    ess_bulk: float
    ess_tail: float
    ess_of: str
    divergences: int
    ebfmi: float

    def __str__(self) -> str:
        return (
            f"R-hat {self.rhat:.4f} ({self.rhat_of}), ESS bulk {self.ess_bulk:.0f} tail {self.ess_tail:.0f} "
            f"({self.ess_of}), {self.divergences} divergences, E-BFMI {self.ebfmi:.2f}"
        )


@dataclass(frozen=True)
class Gate:
    """What a fit must meet before it counts as a result."""

    rhat: float = 1.01
    ess: float = 400.0
    divergences: int = 0
    ebfmi: float = 0.3

    def failures(self, found: Diagnostics) -> tuple[str, ...]:
        """What `found` fails, in words; empty where it passes. NaN fails."""
        checks = (
            (found.rhat <= self.rhat, f"R-hat {found.rhat:.3f} of {found.rhat_of} > {self.rhat}"),
            (
                min(found.ess_bulk, found.ess_tail) >= self.ess,
                f"ESS {min(found.ess_bulk, found.ess_tail):.0f} of {found.ess_of} < {self.ess:.0f}",
            ),
            (found.divergences <= self.divergences, f"{found.divergences} divergences"),
            (found.ebfmi >= self.ebfmi, f"E-BFMI {found.ebfmi:.2f} < {self.ebfmi}"),
        )
        return tuple(words for passed, words in checks if not passed)


DEFAULT_GATE = Gate()


@dataclass(frozen=True)
class Attempt:
    """One attempt of a gated fit: its settings, what was found, what failed."""

    draws: int
    tune: int
    chains: int
    seed: int
    target_accept: float
    diagnostics: Diagnostics
    failures: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Fit:
    """A posterior with its diagnostics.

    Attributes
    ----------
    datatree : xarray.DataTree
        Groups posterior, sample_stats, observed_data, constant_data; opens with ``az.plot_*``.
    gate : Gate
    attempts : tuple of Attempt
        All attempts in order; the draws are those of the last.
    """

    datatree: xr.DataTree
    gate: Gate
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

    def save(self, path: str | Path) -> None:
        """Write as netCDF, whole or not at all."""
        path = Path(path)
        tree = self.datatree.copy()
        tree.attrs["gate"] = json.dumps(asdict(self.gate))
        tree.attrs["attempts"] = json.dumps([asdict(a) for a in self.attempts])
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        os.close(handle)
        try:
            tree.to_netcdf(name)
            os.replace(name, path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise

    @classmethod
    def load(cls, path: str | Path) -> "Fit":
        """Read what `save` wrote.

        Raises
        ------
        ValueError
            The file is not a stored fit.
        """
        with xr.open_datatree(path) as stored:
            tree = stored.load()
        if not {"gate", "attempts"} <= set(tree.attrs):
            raise ValueError(f"{path}: not a stored fit (attributes gate and attempts are missing)")
        gate, attempts = Gate(**json.loads(tree.attrs.pop("gate"))), json.loads(tree.attrs.pop("attempts"))
        for a in attempts:
            a.update(diagnostics=Diagnostics(**a["diagnostics"]), failures=tuple(a["failures"]))
        return cls(tree, gate, tuple(Attempt(**a) for a in attempts))


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
        start: ArrayLike | None = None,
        gate: Gate = DEFAULT_GATE,
        progress: bool = False,
    ) -> Fit:
        """Sample once, whatever the gate says (`fit_gated` escalates and refuses).

        Parameters
        ----------
        data : mapping of str to array, or None
            Data that replace the model's own; the number of cells may change, the SKUs and classes may not.
        start : array [free parameter] or None
            Where chains start, on the unconstrained scale; default: zeros, jittered.

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
            init_mean=None if start is None else np.asarray(start, dtype=float),
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
        return Fit(tree, gate, (attempt,))

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


def diagnose(draws: Mapping[str, Array], stats: xr.Dataset) -> Diagnostics:
    """Worst R-hat, ESS and E-BFMI, and the number of divergences.

    Parameters
    ----------
    draws : mapping of str to array (chain, draw, ...)
    stats : Dataset
        With ``diverging`` and ``energy``, (chain, draw).
    """
    names, columns = [], []
    for name, values in draws.items():
        flat = np.asarray(values).reshape(*values.shape[:2], -1)
        columns.append(flat)
        index = np.ndindex(values.shape[2:])
        names += [f"{name}[{', '.join(map(str, i))}]" if i else name for i in index]
    stacked = np.concatenate(columns, axis=2)
    axes = {"chain_axis": 0, "draw_axis": 1}
    rhat = array_stats.rhat(stacked, **axes)
    bulk = array_stats.ess(stacked, method="bulk", **axes)
    tail = array_stats.ess(stacked, method="tail", prob=(0.05, 0.95), **axes)
    ebfmi = array_stats.bfmi(stats["energy"].values, **axes)
    worst, least = int(np.argmax(rhat)), int(np.argmin(np.minimum(bulk, tail)))  # argmax finds NaN first
    return Diagnostics(
        float(rhat[worst]),
        names[worst],
        float(bulk.min()),
        float(tail.min()),
        names[least],
        int(stats["diverging"].values.sum()),
        float(ebfmi.min()),
    )


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
        `chains`, `cores`, `start`, `progress` of `Compiled.fit`.

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
    fit = Fit(fit.datatree, gate, attempts)
    if refuse and not fit.passed:
        raise GateFailure(f"the fit failed its gate after {len(attempts)} attempts: {'; '.join(attempts[-1].failures)}")
    return fit


@dataclass(frozen=True, eq=False)
class SmallFit:
    """What `fit_many` keeps of a fit: thinned draws by name (draw, ...) and its attempts."""

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
    names: Sequence[str] | None = None,
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
    names : sequence of str or None
        Variables kept; default: all but the standardised effects ``z_*``.
    jobs : int
        Fits at a time.
    kwargs
        Passed to `fit_gated`.
    """

    def one(task: tuple[Data, int]) -> SmallFit:
        data, seed = task
        fit = fit_gated(compiled, data, seed=seed, refuse=False, cores=1, **kwargs)
        posterior = fit.posterior
        kept = names or [n for n in posterior.data_vars if not str(n).startswith("z_")]
        return SmallFit({str(n): thin(posterior[n].values, keep) for n in kept}, fit.attempts)

    tasks = list(zip(datasets, seeds, strict=True))
    with ThreadPoolExecutor(jobs) as pool:
        return list(tqdm(pool.map(one, tasks), total=len(tasks), disable=not progress, desc="fits"))


def thin(values: Array, keep: int) -> Array:
    """At most `keep` draws, evenly spaced over all chains end to end: (chain, draw, ...) to (draw, ...)."""
    pooled = values.reshape(-1, *values.shape[2:])
    keep = min(keep, len(pooled))
    return pooled[np.linspace(0, len(pooled) - 1, keep).round().astype(int)]


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

    def mcse(self, name: str) -> Array:
        """Monte Carlo standard error of the mean of variable `name`, with the upstream draw as the unit."""
        values = self.posterior[name].values[0]
        units = values.reshape(-1, self.inner, *values.shape[1:]).mean(axis=1)
        return units.std(axis=0, ddof=1) / np.sqrt(len(units))


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
    max_failed: float = 0.02,
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
    names = [str(n) for n in upstream if not str(n).startswith("z_")]
    outer_draws = {n: thin(np.asarray(upstream[n]), outer) for n in names}
    one_by_one = [{n: v[k] for n, v in outer_draws.items()} for k in range(len(outer_draws[names[0]]))]
    fits = fit_many(
        downstream,
        [data_of(u) for u in one_by_one],
        np.random.SeedSequence(seed).generate_state(len(one_by_one)).tolist(),
        keep=inner,
        jobs=jobs,
        progress=progress,
        draws=draws,
        tune=tune,
        chains=chains,
        gate=STAGE_TWO,
        escalation=STAGE_TWO_ESCALATION,
    )
    failed = tuple(k for k, fit in enumerate(fits) if not fit.passed)
    if len(failed) > max_failed * len(fits):
        why = "; ".join(fits[failed[0]].attempts[-1].failures)
        raise GateFailure(f"cut: {len(failed)} of {len(fits)} downstream fits failed their gate ({why})")
    good = [k for k in range(len(fits)) if k not in failed]
    down = {n: np.concatenate([fits[k].draws[n] for k in good]) for n in fits[0].draws}
    up = {f"anchor_{n}" if n in down else n: np.repeat(v[good], inner, axis=0) for n, v in outer_draws.items()}
    variables = {n: (downstream.dims.get(n, ()), v) for n, v in down.items()}
    for name, value in up.items():
        source = upstream[name.removeprefix("anchor_") if name not in upstream else name]
        dims = tuple(f"anchor_{d}" for d in getattr(source, "dims", ())[2:])
        variables[name] = (dims or tuple(f"{name}_dim_{i}" for i in range(value.ndim - 1)), value)
    dataset = xr.Dataset({n: (("chain", "draw", *dims), v[None]) for n, (dims, v) in variables.items()})
    coords = {d: downstream.coords[d] for d in dataset.dims if d in downstream.coords}
    for source in upstream.values():
        for d in getattr(source, "dims", ())[2:]:
            if f"anchor_{d}" in dataset.dims and d in source.coords:
                coords[f"anchor_{d}"] = source.coords[d].values
    coords |= {"chain": [0], "draw": np.arange(len(good) * inner)}
    dataset = dataset.assign_coords(coords).assign_coords(upstream=("draw", np.repeat(good, inner)))
    tree = xr.DataTree.from_dict({"posterior": dataset})
    return CutFit(tree, inner, failed, sum(len(f.attempts) for f in fits))
