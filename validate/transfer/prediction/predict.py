"""Posterior predictive step times of any shape, GPU, batch and context, from saved draws (NumPy alone, no refit).

Three quantities, each told apart by name: T_gpu; the *mean step* (posterior of T_gpu joined with the floor); the
*measured step* that a new measurement would show (posterior predictive: with the noise of that model on that GPU).
Throughput and time per output token follow from either step.

No step is faster than its bytes at peak bandwidth. Draws whose floor would make one so are dropped once per model and
GPU, so that all its cells and the floor that is told rest on the same draws; noise is truncated there.
"""

import math
import os
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rooffloor.models.calibration.draws import Calibration
from rooffloor.models.roof.capacity import USABLE, fits, memory_bytes
from rooffloor.models.roof.roofline import bytes_floor_ms
from rooffloor.models.specs import shapes as shape_catalog
from rooffloor.models.specs.classes import default_class
from rooffloor.models.specs.gpus import GpuSpec
from rooffloor.models.specs.shapes import ModelShapes
from rooffloor.validate.common.errors import InputError
from rooffloor.validate.common.files import json_ready
from rooffloor.validate.estimates.estimate import LEVELS, Estimate, tails, weighted_quantiles
from rooffloor.validate.fitting import saved
from rooffloor.validate.measurements.csvfile import table_text
from rooffloor.validate.measurements.given_specs import config_files, load_gpu, load_model

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

type Array = NDArray[np.float64]
type Shapes = str | Path | ModelShapes
type Gpu = str | Path | GpuSpec

DEFAULT_STUDY = "transfer-study"
LARGEST_GRID = 20_000
"""Cells of one prediction: models x GPUs x batches x contexts."""
LARGEST_VALUE = 10**9
LIGHTEST = (1.0, 0.0)
"""Batch and context at which a floor below zero is bound: T_gpu exceeds the time of its bytes by least there."""
LEAST_KEPT = 0.01
"""A model on a GPU of whose floor a smaller share of draws is possible is not predicted."""
TOLD_CUT = 1.0
"""Percent of draws cut from which on the text says so."""

MEAN, MEASURED = "mean", "measured"
GPU_BRANCH = "T_gpu: the GPU branch (posterior)"
STEPS = {
    MEAN: "mean step (posterior of T_gpu and floor)",
    MEASURED: "step that a measurement would show (posterior predictive)",
}
"""The two steps by name: what their estimates estimate."""
QUANTITIES = {"step_ms": "ms", "tokens_per_s": "tokens/s", "time_per_output_token_ms": "ms"}
"""What is said of each step, and its unit."""
PREDICTED, TOO_LARGE, IMPOSSIBLE = "predicted", "does not fit", "not possible"

_CHUNK = 128


# ---- results ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """One cell.

    Attributes
    ----------
    model, gpu, klass : str
    batch, context : int
    status : str
        "predicted"; "does not fit" (the memory) and "not possible" (with every draw of the floor steps would be faster
        than their bytes) have no estimates.
    floor_from : str
        Where the floor comes from.
    outside : tuple of str
        Reasons why the cell lies outside the calibrated domain, each "key: details".
    needed_gb, usable_gb : float
        Weights and cache; 0.95 of the nominal memory; decimal GB.
    bytes_floor_ms : float or None
        What weights and cache take at peak bandwidth at least; None for a cell that does not fit.
    cut_percent : float or None
        Draws of the pair's floor that were cut, the same for all its cells.
    below_distinct_percent : float or None
        How far T_gpu lies below that of `distinct` experts, where the calibration streams `active` ones.
    estimates : mapping of str to Estimate
        "gpu_ms", and "mean_..." and "measured_..." with each of `QUANTITIES`. Empty where nothing is predicted.
    """

    model: str
    gpu: str
    klass: str
    batch: int
    context: int
    status: str
    floor_from: str
    outside: tuple[str, ...]
    needed_gb: float
    usable_gb: float
    bytes_floor_ms: float | None
    cut_percent: float | None
    below_distinct_percent: float | None
    estimates: Mapping[str, Estimate]

    @property
    def reason(self) -> str:
        """Why nothing is predicted; empty where something is."""
        if self.status == TOO_LARGE:
            return f"needs {self.needed_gb:.1f} GB, usable are {self.usable_gb:.1f} GB ({USABLE:g} of the memory)"
        if self.status == IMPOSSIBLE:
            return f"fewer than {LEAST_KEPT:.0%} of the floor's draws are possible"
        return ""

    @property
    def data(self) -> dict[str, Any]:
        """As JSON."""
        plain = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("klass", "estimates", "outside")}
        estimates = {name: estimate.data for name, estimate in self.estimates.items()}
        return plain | {"class": self.klass, "reason": self.reason, "outside": list(self.outside)} | estimates


@dataclass(frozen=True)
class Pair:
    """What all cells of one model and GPU have in common.

    Attributes
    ----------
    model, gpu, klass : str
    parameters : int
    floor_from : str
        Where the floor comes from.
    floor : Estimate
        Of the draws that are possible, ms; of all where nearly none is.
    outside : tuple of str
        Why all cells lie outside the calibrated domain.
    cut_percent : float
        Draws of the floor that were cut: with them the step at `LIGHTEST` is faster than its bytes.
    lightest_ms : float
        What those bytes take at peak bandwidth.
    """

    model: str
    gpu: str
    klass: str
    parameters: int
    floor_from: str
    floor: Estimate
    outside: tuple[str, ...]
    cut_percent: float
    lightest_ms: float

    @property
    def data(self) -> dict[str, Any]:
        """As JSON."""
        plain = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("klass", "floor", "outside")}
        return plain | {"class": self.klass, "floor_ms": self.floor.data, "outside": list(self.outside)}


@dataclass(frozen=True, eq=False)
class Prediction:
    """Predicted cells.

    Attributes
    ----------
    rows : tuple of Row
        By model, GPU, batch, context.
    pairs : tuple of Pair
    calibration : mapping
        Study, label of its cells, anchor, GPUs, stack, mode, experts, how floors join, domain, number of draws.
    seed : int
    skipped : tuple of str
        Config files of a folder that are no model of the roof, each "FILE: why".
    """

    rows: tuple[Row, ...]
    pairs: tuple[Pair, ...]
    calibration: Mapping[str, Any]
    seed: int
    skipped: tuple[str, ...] = ()

    def __repr__(self) -> str:
        left = len(self.rows) - len(self.predicted)
        return (
            f"Prediction({len(self.predicted)} cells of {len(self.pairs)} model x GPU"
            f"{f', {left} not predicted' if left else ''}; {self.label})"
        )

    @property
    def label(self) -> str:
        """What the numbers are, and what they rest on; part of every output."""
        return f"predicted; cells of the calibration: {self.calibration['label']}"

    @property
    def predicted(self) -> tuple[Row, ...]:
        """The cells that have numbers."""
        return tuple(row for row in self.rows if row.status == PREDICTED)

    @cached_property
    def data(self) -> dict[str, Any]:
        """As JSON: no NaN, floats of ten digits."""
        found = {
            "schema_version": 1,
            "label": self.label,
            "calibration": self.calibration,
            "estimands": {"gpu_ms": GPU_BRANCH} | {f"{step}_step_ms": of for step, of in STEPS.items()},
            "intervals": "equal-tailed credible intervals, percent",
            "seed": self.seed,
            "skipped": list(self.skipped),
            "pairs": [pair.data for pair in self.pairs],
            "rows": [row.data for row in self.predicted],
            "not_predicted": [
                {
                    key: value
                    for key, value in row.data.items()
                    if key not in ("cut_percent", "below_distinct_percent", "bytes_floor_ms")
                }
                for row in self.rows
                if row.status != PREDICTED
            ],
        }
        return dict(json_ready(found))  # type: ignore[call-overload]

    @property
    def summary(self) -> str:
        """Text with the intervals of the measured step."""
        return self.text()

    def text(self, step: str = MEASURED) -> str:
        """Tables per model and GPU, and what is to be said of them; `step` is "measured" or "mean"."""
        return "\n".join([*_preamble(self, step), *(line for pair in self.pairs for line in _table(self, pair, step))])

    def records(self) -> list[dict[str, Any]]:
        """One flat record a cell, all with the same keys; None where there is no number.

        `NAME` is the posterior mean, `NAME_50_low` ... `NAME_90_high` the intervals, `NAME_mcse` its Monte Carlo error.
        """
        return [_record(row, self.label) for row in self.rows]

    def to_frame(self) -> "pd.DataFrame":
        """`records` as a table."""
        import pandas as pd

        return pd.DataFrame(self.records())

    def csv(self) -> str:
        """`records` as a CSV file; an apostrophe stands before texts that a spreadsheet would take for a formula."""
        records = self.records()
        return table_text(list(records[0]), ([json_ready(value) for value in record.values()] for record in records))

    def plot(self, ax: "Axes | None" = None, against: str = "batch", step: str = MEASURED) -> "Axes":
        """Curves with 50 and 90 % bands against "batch" or "context"; returns the axes."""
        from rooffloor.validate.presentation.figures.prediction import prediction

        return prediction(self._drawn, self.label, against, step=step, ax=ax)

    def figure(self, step: str = MEASURED) -> "Figure":
        """One panel per model and GPU, against batch and, where there are several contexts, against context."""
        from rooffloor.validate.presentation.figures.prediction import predictions

        try:
            figure: Figure = predictions(self._drawn, self.label, step=step)[0].figure
        except ValueError as error:
            raise InputError(f"--figure: {error}") from error
        return figure

    @property
    def _drawn(self) -> list[dict[str, Any]]:
        return [*self.data["rows"], *self.data["not_predicted"]]


# ---- the prediction ---------------------------------------------------------------------------------------------


def predict(
    shapes: Shapes | Sequence[Shapes],
    gpus: Gpu | Sequence[Gpu],
    batch: ArrayLike,
    context: ArrayLike,
    *,
    posterior: Calibration | str | Path = DEFAULT_STUDY,
    klass: str | None = None,
    seed: int = 1,
    stack: str = "",
    mode: str = "",
) -> Prediction:
    """Predict every combination of models, GPUs, batches and contexts.

    Parameters
    ----------
    shapes : ModelShapes, catalog name, config.json, folder or TOML file, or several
        A folder with a config.json is one model, any other all models of its config files that can be read.
    gpus : GpuSpec, name or TOML file, or several
    batch, context : whole numbers, one or several
        Sequences in the step (from 1); tokens in the cache of each before it (from 0).
    posterior : Calibration, or what `saved.load` takes
    klass : str, optional
        Class whose floors the models share; default: the calibration's, else by experts and size.
    seed : int
    stack, mode : str
        What will serve the models; where it is not the calibration's the output says so.

    Returns
    -------
    Prediction

    Raises
    ------
    InputError
        Something is unknown, unreadable, no number in its range, or more than `LARGEST_GRID` cells.

    Notes
    -----
    One set of random numbers serves all cells of a model and GPU, and does not depend on what else is predicted: curves
    are smooth, and a cell has the same numbers in every grid.

    The posterior is conditioned once per model and GPU on steps that are possible (`possible`), where a floor below 0
    is bound first (`LIGHTEST`): T_gpu, floor and steps of all its cells have the same draws, whatever is asked. A
    measured step lies above its bytes too: its noise is truncated there (`noisy`).
    """
    if not isinstance(seed, int) or seed < 0:
        raise InputError(f"seed: expected a whole number from 0, got {shape_catalog.shown(seed)}")
    calibration = posterior if isinstance(posterior, Calibration) else saved.load(posterior)
    read = [_models(given) for given in _several(shapes)]
    models = _once([one for found, _ in read for one in found], "model")
    skus = _once([_gpu(given, calibration) for given in _several(gpus)], "GPU")
    batches, contexts = axis(batch, "batch", 1), axis(context, "context", 0)
    _check_size(len(models) * len(skus) * len(batches) * len(contexts))
    chosen = None if klass is None else domain.known_class(klass, calibration)
    b, c = (grid.ravel() for grid in np.meshgrid(batches, contexts, indexing="ij"))
    rows, pairs = list[Row](), list[Pair]()
    for model in models:
        for sku in skus:
            ask = _ask(model, sku, calibration, chosen, (stack, mode))
            floor = ask.floor(seed)
            pairs.append(ask.pair(floor))
            rows += ask.rows(b, c, floor, seed)
    return Prediction(
        tuple(rows), tuple(pairs), _calibration(calibration), seed, tuple(why for _, left in read for why in left)
    )


@dataclass(frozen=True, eq=False)
class _Ask:
    """One model on one GPU, as the posterior knows them (`model`, `gpu.name`) and as they are shown (`names`)."""

    posterior: Calibration
    shapes: ModelShapes
    gpu: GpuSpec
    model: str
    klass: str
    names: tuple[str, str]
    outside: tuple[str, ...]

    def random(self, seed: int) -> list[np.random.SeedSequence]:
        """Seeds of roof, floor, noise and error, the same wherever this pair is predicted."""
        key = zlib.crc32("\n".join((self.model, self.gpu.name)).encode())
        return np.random.SeedSequence([seed, key]).spawn(4)

    def floor(self, seed: int) -> "_Floor":
        """The pair's floor, and which of its draws are possible."""
        p, (roof, floor, *_) = self.posterior, self.random(seed)
        drawn = p.floor_of(self.gpu.name, self.model, self.klass, np.random.default_rng(floor))
        gpu_ms = p.gpu_ms(self.shapes, self.gpu, *LIGHTEST, np.random.default_rng(roof))[:, 0]
        lightest = float(bytes_floor_ms(self.shapes, self.gpu, *LIGHTEST, "active"))
        weight, kept = possible(drawn, least_floor_ms(lightest, gpu_ms, p.structure.positive), p.weight)
        return _Floor(drawn, weight if kept >= LEAST_KEPT else p.weight, kept, lightest)

    @property
    def floor_from(self) -> str:
        p, gpu = self.posterior, self.gpu.name
        how = p.label.partition(" ")[0] or "measured"  # imputed, simulated
        if p.measured(gpu, self.model):
            return f"{how}: this model on this GPU"
        if gpu not in p.gpus:
            return "GPU not in the calibration: constants of the others, floor through the hierarchy"
        alike = [m for m, k in zip(p.models, p.classes, strict=True) if k == self.klass]
        if any(p.measured(gpu, m) for m in alike):
            return f"class {self.klass!r} {how} on this GPU"
        if alike:
            return f"class {how} on other GPUs only"
        return "class not in the calibration: floor through the hierarchy"

    def pair(self, floor: "_Floor") -> Pair:
        estimate = _estimate(floor.ms[:, None], floor.weight, self.posterior.unit, "floor", "ms")[0]
        about = (*self.names, self.klass, self.shapes.parameters, self.floor_from)
        return Pair(*about, estimate, self.outside, floor.cut_percent, floor.lightest_ms)

    def rows(self, batch: Array, context: Array, floor: "_Floor", seed: int) -> list[Row]:
        """Rows of cells [cell]; those that do not fit the memory, or are not possible, without numbers."""
        fit = fits(self.shapes, self.gpu, batch, context)
        numbers: dict[int, dict[str, Any]] = {}
        at = np.flatnonzero(fit) if floor.kept >= LEAST_KEPT else np.zeros(0, dtype=np.int64)
        for start in range(0, len(at), _CHUNK):
            some = at[start : start + _CHUNK]
            numbers |= dict(zip(some.tolist(), self._numbers(batch[some], context[some], floor, seed), strict=True))
        needed = memory_bytes(self.shapes, batch, context) / 1e9
        least = bytes_floor_ms(self.shapes, self.gpu, batch, context, "active")
        nothing: dict[str, Any] = {"below_distinct_percent": None, "estimates": {}}
        return [
            Row(
                *self.names,
                klass=self.klass,
                batch=int(batch[i]),
                context=int(context[i]),
                floor_from=self.floor_from,
                outside=(*self.outside, *domain.cell_reasons(self.posterior, self.shapes, batch[i], context[i])),
                needed_gb=float(needed[i]),
                usable_gb=USABLE * self.gpu.memory_bytes / 1e9,
                status=PREDICTED if i in numbers else IMPOSSIBLE if fit[i] else TOO_LARGE,
                bytes_floor_ms=float(least[i]) if fit[i] else None,
                cut_percent=floor.cut_percent if fit[i] else None,
                **(numbers.get(i) or nothing),
            )
            for i in range(len(batch))
        ]

    def _numbers(self, batch: Array, context: Array, floor: "_Floor", seed: int) -> list[dict[str, Any]]:
        """What the rows of cells [cell] have beside what holds for all cells of the pair."""
        p, weight = self.posterior, floor.weight
        roof, _, spread, error = self.random(seed)

        def branch(posterior: Calibration) -> Array:
            return posterior.gpu_ms(self.shapes, self.gpu, batch, context, np.random.default_rng(roof))

        gpu_ms = branch(p)
        mean = p.step_ms(gpu_ms, floor.ms)
        noise = p.noise_of(self.gpu.name, self.model, np.random.default_rng(spread))
        shock = np.random.default_rng(error).standard_normal(len(noise))
        measured = noisy(mean, bytes_floor_ms(self.shapes, self.gpu, batch, context, "active"), noise, shock)
        below = np.full(len(batch), np.nan)
        if self.shapes.is_moe and p.experts == "active":
            below = 100.0 * (1.0 - weight @ gpu_ms / (weight @ branch(replace(p, experts="distinct"))))
        found = {"gpu_ms": _estimate(gpu_ms, weight, p.unit, GPU_BRANCH, "ms")}
        for step, values in {MEAN: mean, MEASURED: measured}.items():
            found |= _quantities(values, weight, p.unit, batch, step)
        return [
            {
                "below_distinct_percent": float(below[i]) if batch[i] > 1 and np.isfinite(below[i]) else None,
                "estimates": {name: column[i] for name, column in found.items()},
            }
            for i in range(len(batch))
        ]


@dataclass(frozen=True, eq=False)
class _Floor:
    """Draws of a pair's floor.

    Attributes
    ----------
    ms, weight : arrays [draw]
        Weights sum to 1, and are 0 where the floor is not possible; the calibration's where nearly no draw is possible.
    kept : float
        Share of the draws that are possible.
    lightest_ms : float
        `bytes_floor_ms` at `LIGHTEST`.
    """

    ms: Array
    weight: Array
    kept: float
    lightest_ms: float

    @property
    def cut_percent(self) -> float:
        return 100.0 * (1.0 - self.kept)


# ---- what is possible -------------------------------------------------------------------------------------------


def least_floor_ms(lightest_ms: float, gpu_ms: Array, positive: bool) -> Array:
    """The least floor with which no step of a model on a GPU is faster than its bytes, ms [draw].

    Parameters
    ----------
    lightest_ms : float
        `bytes_floor_ms` at `LIGHTEST`, with the physical minimum of experts: no implementation is faster.
    gpu_ms : array [draw]
        T_gpu there.
    positive : bool
        Whether floors are H >= 0, with which no step is faster than T_gpu.

    Notes
    -----
    Each kernel's time less that of its bytes at peak bandwidth never falls with batch or context, so that an added
    floor that is possible at batch 1 and context 0 is possible in all cells.
    """
    return np.zeros_like(gpu_ms) if positive else lightest_ms - gpu_ms


def possible(floor_ms: Array, least_ms: Array, weight: Array) -> tuple[Array, float]:
    """Weights of draws given that their floor is possible, and the share of draws of which it is.

    Parameters
    ----------
    floor_ms, least_ms : arrays [draw]
        Floor, and the least possible one (`least_floor_ms`).
    weight : array [draw]
        Sums to 1.

    Returns
    -------
    weight : array [draw]
        Sums to 1 where any draw is possible; 0 for one that is cut (a truncated distribution, not a pile of draws at
        the bound).
    kept : float
    """
    mass = weight * (floor_ms >= least_ms)
    kept = float(mass.sum())
    return mass / (kept or 1.0), kept


def noisy(mean_ms: Array, least_ms: Array, noise: Array, shock: Array) -> Array:
    """Measured steps, ms [draw, cell]: normal around the mean step, truncated at the time of its bytes.

    Parameters
    ----------
    mean_ms : array [draw, cell]
    least_ms : array [cell]
        No step is faster.
    noise : array [draw]
        Relative sd, before it is truncated.
    shock : array [draw]
        Standard normal random numbers, the same in all cells: no draw is dropped, and curves are smooth.
    """
    mean = np.maximum(mean_ms, least_ms)
    error = truncated(np.broadcast_to(shock[:, None], mean.shape), (least_ms / mean - 1.0) / noise[:, None])
    return np.maximum(mean * (1.0 + noise[:, None] * error), least_ms)


def truncated(normal: Array, low: Array) -> Array:
    """Standard normal numbers turned into ones of the normal truncated to [low, inf), arrays of one shape.

    Notes
    -----
    By the inverse of the distribution function: monotone in the number and smooth in the bound. The chance to exceed
    the result, given the bound, is the chance to exceed the number.
    """
    found = np.array(normal, dtype=float)
    at = low > -_UNBOUND
    beyond = _exceeded(found[at]) * _exceeded(np.minimum(low[at], _FAR))
    found[at] = np.maximum(-_quantile(beyond.clip(1e-300, 1.0 - 1e-16)), low[at])
    return found


_UNBOUND, _FAR = 8.0, 35.0
"""Sds below the mean from which on a bound cuts less than rounding does; above it, to which its tail is a number."""


def _exceeded(z: Array) -> Array:
    """Chance of a standard normal number above z."""
    return np.asarray(0.5 * np.frompyfunc(math.erfc, 1, 1)(z / math.sqrt(2.0)), dtype=float)


def _quantile(p: Array) -> Array:
    """Quantiles of the standard normal distribution."""
    return np.asarray(np.frompyfunc(NormalDist().inv_cdf, 1, 1)(p), dtype=float)


# ---- estimates --------------------------------------------------------------------------------------------------


def _quantities(
    step_ms: Array, weight: Array, unit: NDArray[np.int64], batch: Array, step: str
) -> dict[str, list[Estimate]]:
    """Estimates [cell] of step, throughput and time per output token, from steps [draw, cell] and weights [draw]."""
    name = f"{step}_{{}}".format
    steps = _estimate(step_ms, weight, unit, STEPS[step], "ms")
    rate = 1000.0 * batch / np.where(weight[:, None] > 0, step_ms, 1.0)
    rates = _estimate(rate, weight, unit, f"batch / {STEPS[step]}", "tokens/s")
    tokens = [replace(s, estimand=f"time between two tokens of a sequence: {STEPS[step]}") for s in steps]
    return {name("step_ms"): steps, name("tokens_per_s"): rates, name("time_per_output_token_ms"): tokens}


def _estimate(values: Array, weight: Array, unit: NDArray[np.int64], estimand: str, kind: str) -> list[Estimate]:
    """Mean, intervals and MCSE of each column of values [draw, cell], with weights [draw]."""
    centre = weight @ values
    error = _mcse(values, weight, unit)
    levels = [q for level in LEVELS for q in tails(level)]
    out = []
    for i in range(values.shape[1]):
        ends = weighted_quantiles(values[:, i], weight, levels)
        spans = {str(level): (ends[2 * k], ends[2 * k + 1]) for k, level in enumerate(LEVELS)}
        out.append(Estimate(float(centre[i]), estimand, kind, spans, float(error[i])))
    return out


def _mcse(values: Array, weight: Array, unit: NDArray[np.int64]) -> Array:
    """Monte Carlo standard errors [cell] of means with weights [draw]; `unit` as the unit, as `Draws.mcse`."""
    order = np.argsort(unit, kind="stable")
    starts = np.flatnonzero(np.diff(unit[order], prepend=unit[order][0] - 1))
    mass = np.add.reduceat(weight[order], starts)[:, None]
    total = np.add.reduceat((weight[:, None] * values)[order], starts)
    count = float((mass > 0).sum())
    squares = ((total - mass * total.sum(0)) ** 2).sum(0)
    return np.asarray(np.sqrt(squares * count / (count - 1.0 if count > 1 else np.nan)))


# ---- what is asked ----------------------------------------------------------------------------------------------


def axis(values: ArrayLike, name: str, least: int) -> Array:
    """Different whole numbers from `least`, in the order given.

    Raises
    ------
    InputError
        There are none, or one is no whole number in that range.
    """
    expected = f"{name}: expected whole numbers from {least} to {LARGEST_VALUE:g}"
    try:
        found = np.atleast_1d(np.asarray(values, dtype=float)).ravel()
    except (TypeError, ValueError):
        raise InputError(f"{expected}, got {shape_catalog.shown(values)}") from None
    _check_size(len(found))
    bad = found[~((found >= least) & (found <= LARGEST_VALUE) & (found == np.round(found)))]
    if not len(found) or len(bad):
        raise InputError(f"{expected}, got {f'{bad[0]:g}' if len(bad) else 'none'}")
    return np.array(list(dict.fromkeys(found.tolist())))


def parse_axis(text: str, name: str, least: int) -> Array:
    """Numbers, lists and ranges as text: "4", "1,4,16", "512:8192:512", "1:64:2x", or a list of those.

    START:STOP:STEP counts up in steps of STEP, START:STOP:FACTORx multiplies; STOP is the last value that may occur.

    Raises
    ------
    InputError
        Anything else; the message names the option `name`.
    """
    values = list[float]()
    for part in text.split(","):
        values += _parse_part(part.strip(), f"--{name}", max(least, 1))
        _check_size(len(values))
    return axis(values, f"--{name}", least)


def _parse_part(part: str, name: str, least: int) -> list[float]:
    if re.fullmatch(r"[0-9]{1,12}", part):
        return [float(part)]
    found = re.fullmatch(r"([0-9]{1,12}):([0-9]{1,12}):([0-9]{1,12})(x?)", part)
    if found is None:
        raise InputError(
            f"{name}: expected whole numbers such as 4, a list 1,4,16, or a range START:STOP:STEP (512:8192:512) or "
            f"START:STOP:FACTORx (1:64:2x), got {shape_catalog.shown(part)}"
        )
    start, stop, step = (int(group) for group in found.groups()[:3])
    times = found[4] == "x"
    if stop < start or step < 1 + times or (times and start < 1):
        raise InputError(
            f"{name}: expected a range that rises from START to STOP in steps of at least 1, or by a FACTOR of at "
            f"least 2 from 1 on, got {part!r}"
        )
    if not times:
        _check_size((stop - start) // step + 1)
        return [float(v) for v in range(start, stop + 1, step)]
    count = int(math.log(stop / start, step) + 1e-9) + 1
    return [float(start * step**k) for k in range(count)]


def _check_size(cells: int) -> None:
    if cells > LARGEST_GRID:
        raise InputError(f"batch x context x GPUs x models: expected at most {LARGEST_GRID} cells, got {cells}")


def _several(given: Any) -> list[Any]:
    found = list(given) if isinstance(given, list | tuple) else [given]
    if not found:
        raise InputError("expected at least one model and one GPU, got an empty list")
    return found


def _once[Spec: (ModelShapes, GpuSpec)](specs: Iterable[Spec], what: str) -> list[Spec]:
    """Each once; InputError where two differ but have one name."""
    named: dict[str, Spec] = {}
    for spec in specs:
        if named.setdefault(spec.name, spec) != spec:
            raise InputError(f"{what} {spec.name!r} is given twice with different figures; give each its own name")
    return list(named.values())


def _models(given: Shapes) -> tuple[list[ModelShapes], list[str]]:
    """One model, or all those of a folder of config files; which of these are none, and why."""
    if isinstance(given, ModelShapes):
        return [given], []
    path = Path(given)
    if path.suffix in (".json", ".toml"):
        return [load_model(path)], []
    if _known(given) or not os.path.isdir(path) or (path / "config.json").is_file():
        return [load_model(given)], []
    found, left = list[ModelShapes](), list[str]()
    for file, name in {file: name for name, file in config_files(path).items()}.items():
        try:
            found.append(ModelShapes.from_hf_config(file, name))
        except ValueError as error:
            why = " ".join(str(error).split())
            left.append(why if why.startswith(str(file)) else f"{file}: {why}")
    if not found:
        others = len(left) - 1
        more = f"; nor of {others} other file{'s' if others > 1 else ''}" if others else ""
        raise InputError(f"{path}: no config of a model that can be predicted: {left[0]}{more}")
    return found, left


def _known(name: str | Path) -> bool:
    try:
        return isinstance(name, str) and bool(shape_catalog.load(name))
    except ValueError:
        return False


def _gpu(given: Gpu, posterior: Calibration) -> GpuSpec:
    """Data sheet of an object, a name (the calibration's first, then the catalog's) or a TOML file."""
    own = {name.casefold(): spec for name, spec in posterior.specs.items()}
    if isinstance(given, str) and given.strip().casefold() in own:
        return own[given.strip().casefold()]
    spec = load_gpu(given)
    name, other = domain.known_gpu(spec, posterior)
    return spec if other else posterior.specs.get(name, spec)


def _ask(
    shapes: ModelShapes, gpu: GpuSpec, posterior: Calibration, klass: str | None, serving: tuple[str, str]
) -> _Ask:
    """A model and a GPU as the posterior knows them, and what of them lies outside what was calibrated."""
    model, _ = domain.known_model(shapes, posterior)
    sku, _ = domain.known_gpu(gpu, posterior)
    own = dict(zip(posterior.models, posterior.classes, strict=True))
    reasons = (
        *domain.model_reasons(posterior, shapes),
        *domain.gpu_reasons(posterior, gpu),
        *domain.serving_reasons(posterior, *serving),
    )
    return _Ask(
        posterior,
        shapes,
        replace(gpu, name=sku),
        model,
        klass or own.get(model) or default_class(shapes),
        (shapes.name, gpu.name),
        reasons,
    )


def _calibration(posterior: Calibration) -> dict[str, Any]:
    p = posterior
    return {
        "study": p.source,
        "label": p.label,
        "anchor": p.anchor,
        "gpus": list(p.gpus),
        "models": dict(zip(p.models, p.classes, strict=True)),
        "stack": p.stack or None,
        "mode": p.mode or None,
        "experts": p.experts,
        "floors": p.combine,
        "draws": len(p.weight),
        "domain": {f.name: [int(end) for end in getattr(p.domain, f.name)] for f in fields(p.domain)},
    }


# ---- text and tables --------------------------------------------------------------------------------------------


def _preamble(prediction: Prediction, step: str) -> list[str]:
    """What holds for all tables."""
    c = prediction.calibration
    batch, context, size = ([*map(float, c["domain"][k])] for k in ("batch", "context", "parameters"))
    lines = [
        f"Decode steps, {prediction.label} (study {c['study']}, {c['draws']} draws)",
        f"calibrated domain: {', '.join(c['gpus'])}; batch {batch[0]:.0f} to {batch[1]:.0f}, context {context[0]:.0f} "
        f"to {context[1]:.0f} tokens, {size[0] / 1e9:.2f} to {size[1] / 1e9:.2f} B parameters of 16 bits; stack "
        f"{c['stack'] or 'not stated'}, mode {c['mode'] or 'not stated'}",
        f"numbers: posterior mean, 50 and 90 % equal-tailed intervals of the {STEPS[step]}",
        "step = time per output token of each sequence; tokens/s = batch / step",
    ]
    lines += [f"left out: {why}" for why in prediction.skipped]
    outside = [row for row in prediction.predicted if row.outside]
    if outside:
        lines.append(f"outside the calibrated domain: {len(outside)} of {len(prediction.predicted)} predicted cells")
        lines += [f"  {line}" for line in _grouped(reason for row in outside for reason in row.outside)]
    return lines


def _grouped(reasons: Iterable[str], most: int = 3) -> list[str]:
    """Different reasons, at most so many with one key."""
    by_key: dict[str, list[str]] = {}
    for reason in dict.fromkeys(reasons):
        by_key.setdefault(_key(reason), []).append(reason)
    return [
        line
        for key, found in by_key.items()
        for line in (*found[:most], *([f"{key}: {len(found) - most} more"] if len(found) > most else []))
    ]


def _key(reason: str) -> str:
    return reason.partition(":")[0]


def _table(prediction: Prediction, pair: Pair, step: str) -> list[str]:
    """One model on one GPU: where its floor comes from, its cells, and what was cut, lies below or does not fit."""
    rows = [row for row in prediction.rows if (row.model, row.gpu) == (pair.model, pair.gpu)]
    shown = [row for row in rows if row.status == PREDICTED]
    lines = [
        "",
        f"{pair.model} ({pair.klass}, {pair.parameters / 1e9:.2f} B parameters) on {pair.gpu}",
        f"  floor {pair.floor} ms; {pair.floor_from}",
    ]
    if pair.cut_percent > TOLD_CUT:
        lines.append(
            f"  of the floor's draws {pair.cut_percent:.0f} % {'were cut' if shown else 'are not possible'}: with them "
            f"a step of batch 1 and context 0 is faster than the {pair.lightest_ms:.2f} ms of its bytes at peak rates"
        )
    below = [row for row in shown if row.below_distinct_percent is not None]
    if below:
        far = max(below, key=lambda row: row.below_distinct_percent or 0.0)
        lines.append(
            f"  experts are streamed as `active`: T_gpu lies up to {far.below_distinct_percent:.0f} % below that of "
            f"`distinct` experts (batch {far.batch}, context {far.context})"
        )
    if shown:
        head = ("batch", "context", "step (ms)", "50 %", "90 %", "tokens/s", "90 %", "outside")
        lines += [f"  {line}" for line in _aligned([head, *(_texts(row, step) for row in shown)])]
    lines += [
        f"  not predicted, {row.status}: batch {row.batch}, context {row.context}: {row.reason}"
        for row in rows
        if row.status != PREDICTED
    ]
    return lines


def _texts(row: Row, step: str) -> tuple[str, ...]:
    found, rate = row.estimates[f"{step}_step_ms"], row.estimates[f"{step}_tokens_per_s"]
    keys = ", ".join(dict.fromkeys(map(_key, row.outside)))
    return (
        str(row.batch),
        str(row.context),
        f"{found.value:.{found.digits}f}",
        _span(found, "50"),
        _span(found, "90"),
        f"{rate.value:.{rate.digits}f}",
        _span(rate, "90"),
        keys,
    )


def _span(estimate: Estimate, level: str) -> str:
    low, high = estimate.intervals[level]
    return f"[{low:.{estimate.digits}f}, {high:.{estimate.digits}f}]"


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns of equal width, to the right but for the last."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join([*(text.rjust(w) for text, w in zip(row[:-1], widths, strict=False)), row[-1]]).rstrip()
        for row in rows
    ]


def _record(row: Row, label: str) -> dict[str, Any]:
    """One flat record; see `Prediction.records`."""
    record: dict[str, Any] = {
        "label": label if row.status == PREDICTED else f"not {label}",
        "model": row.model,
        "gpu": row.gpu,
        "class": row.klass,
        "batch": row.batch,
        "context": row.context,
        "status": row.status,
        "reason": row.reason,
        "outside": "; ".join(row.outside),
        "floor_from": row.floor_from,
    }
    for name in ("gpu_ms", *(f"{step}_{quantity}" for step in STEPS for quantity in QUANTITIES)):
        estimate = row.estimates.get(name)
        record[name] = None if estimate is None else estimate.value
        for level in map(str, LEVELS):
            ends = (None, None) if estimate is None else estimate.intervals[level]
            record |= {f"{name}_{level}_low": ends[0], f"{name}_{level}_high": ends[1]}
        record[f"{name}_mcse"] = None if estimate is None else estimate.mcse
    return record | {
        name: getattr(row, name)
        for name in ("bytes_floor_ms", "cut_percent", "below_distinct_percent", "needed_gb", "usable_gb")
    }
