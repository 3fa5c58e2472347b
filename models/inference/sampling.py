"""Sample a model of steps, refit it to other data, and let no fit out that fails its gate."""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import numpy as np
import nutpie
import xarray as xr
from numpy.typing import ArrayLike, NDArray
from tqdm import tqdm

from rooffloor.models.inference.density import expand
from rooffloor.models.inference.gate import (
    DEFAULT_GATE,
    Attempt,
    Diagnostics,
    Gate,
    GateFailure,
    diagnose,
    escalated,
    examined,
)
from rooffloor.models.inference.native import sampled
from rooffloor.models.inference.packing import Tables
from rooffloor.models.inference.steps import StepModel

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
    """A model whose density is compiled, to be fitted to its own data or to others of the same structure.

    Attributes
    ----------
    model : StepModel
    """

    model: StepModel = field(repr=False)

    @property
    def data(self) -> Mapping[str, Array]:
        """The model's own data."""
        return self.model.data

    @property
    def dims(self) -> Mapping[str, tuple[str, ...]]:
        """Dims of every variable and data of the model."""
        return self.model.dims

    @property
    def coords(self) -> Mapping[str, Any]:
        """Labels along the dims."""
        return self.model.coords

    @cached_property
    def free(self) -> tuple[str, ...]:
        """Free random variables: what the sampler moves."""
        return tuple(p.name for p in self.model.parameters)

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
        tables = self.model.tables(merged)
        sampler = nutpie.sample(
            sampled(tables, self.model.size, partial(_start, self.model)),
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
        posterior = self._posterior(tables, trace["posterior"]["x"].values)
        stats = trace["sample_stats"].to_dataset()
        found = diagnose(examined(self.free, posterior), stats)
        attempt = Attempt(draws, tune, chains, seed, target_accept, found, gate.failures(found), gate.warnings(found))
        groups = {
            "posterior": posterior,
            "sample_stats": stats,
            "observed_data": self._dataset({"step_ms": ("measured_ms", merged["measured_ms"])}),
            "constant_data": self._dataset({n: (n, v) for n, v in merged.items() if n != "measured_ms"}),
        }
        return Fit(xr.DataTree.from_dict(groups), (attempt,))

    def _posterior(self, tables: Tables, x: Array) -> xr.Dataset:
        """Every variable, (chain, draw, ...), of what was sampled, x [chain, draw, x]."""
        flat = np.ascontiguousarray(x.reshape(-1, x.shape[-1]))
        grids, logits = np.empty((len(flat), len(tables.order))), np.empty(len(flat))
        expand(tables, flat, grids, logits)
        found = self.model.posterior(flat, grids, logits)
        shape = x.shape[:2]
        variables = {
            name: (("chain", "draw", *self.dims.get(name, ())), values.reshape(*shape, *values.shape[1:]))
            for name, values in found.items()
        }
        labels = {"chain": np.arange(shape[0]), "draw": np.arange(shape[1])}
        used = {d for dims, _ in variables.values() for d in dims} - set(labels)
        return xr.Dataset(variables, coords=labels | {d: self.coords[d] for d in used})

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

    def _dataset(self, values: Mapping[str, tuple[str, Array]]) -> xr.Dataset:
        """Variables name -> (whose dims, values), with the coords that still have the right length."""
        dataset = xr.Dataset({name: (self.dims.get(like, ()), value) for name, (like, value) in values.items()})
        coords = {d: self.coords[d] for d, n in dataset.sizes.items() if len(self.coords.get(d, ())) == n}
        return dataset.assign_coords(coords)


def _start(model: StepModel, seed: Any) -> Array:
    """Where a chain begins: prior medians, each moved by up to 1 on the real line."""
    x = np.concatenate([np.full(p.at.stop - p.at.start, p.start) for p in model.parameters])
    return np.asarray(x + np.random.default_rng(seed).uniform(-1.0, 1.0, len(x)))


def compile_model(model: StepModel) -> Compiled:
    """The model with its compiled density (loaded from disk but for the first time on a machine)."""
    return Compiled(model)


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

    def attempt(step: int) -> Fit:
        target_accept, factor = escalation[step]
        return compiled.fit(
            data,
            seed=seed if not step else int(np.random.SeedSequence([seed, step]).generate_state(1)[0]),
            draws=draws * factor,
            tune=tune * factor,
            target_accept=target_accept,
            gate=gate,
            **kwargs,
        )

    fit, attempts = escalated(attempt, len(escalation))
    fit = Fit(fit.datatree, attempts)
    if refuse and not fit.passed:
        why = "; ".join(attempts[-1].failures)
        raise GateFailure(f"the fit failed its gate after {len(attempts)} attempts: {why}", attempts)
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
