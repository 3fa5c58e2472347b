"""Posterior predictive step times of any shape, GPU, batch and context, from saved draws (NumPy alone, no refit).

Three quantities, each told apart by name: T_gpu; the *mean step* (posterior of T_gpu joined with the floor); the
*measured step* that a new measurement would show (posterior predictive: with the noise of that model on that GPU).
Throughput and time per output token follow from either step.

No step is faster than its bytes at peak bandwidth. Draws whose floor would make one so are dropped once per model and
GPU, so that all its cells and the floor that is told rest on the same draws; noise is truncated there.
"""

import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rooffloor.models.calibration.draws import LIGHTEST, Calibration
from rooffloor.models.roof.capacity import USABLE, fits, memory_bytes
from rooffloor.models.roof.roofline import bytes_floor_ms
from rooffloor.models.specs.classes import default_class
from rooffloor.models.specs.gpus import GpuSpec
from rooffloor.models.specs.inputs import shown
from rooffloor.models.specs.shapes import ModelShapes
from rooffloor.validate.common.errors import InputError
from rooffloor.validate.common.files import json_ready, written
from rooffloor.validate.estimates.estimate import Estimate, medians
from rooffloor.validate.fitting import saved
from rooffloor.validate.measurements.csvfile import table_text
from rooffloor.validate.measurements.given_specs import in_format, load_gpu, load_models
from rooffloor.validate.transfer import domain
from rooffloor.validate.transfer.prediction import words
from rooffloor.validate.transfer.prediction.axes import axis, check_size
from rooffloor.validate.transfer.prediction.floors import least_floor_ms, noisy, possible
from rooffloor.validate.transfer.prediction.rows import (
    GPU_BRANCH,
    IMPOSSIBLE,
    LEAST_KEPT,
    MEAN,
    MEASURED,
    PREDICTED,
    STEPS,
    TOO_LARGE,
    Pair,
    Row,
)

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

type Array = NDArray[np.float64]
type Family = str | Path | ModelShapes
type Gpu = str | Path | GpuSpec

_CHUNK = 128


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
            "not_predicted": [row.data for row in self.rows if row.status != PREDICTED],
        }
        return dict(json_ready(found))  # type: ignore[call-overload]

    @property
    def text(self) -> str:
        """Tables per model and GPU with the intervals of the measured step, and what is to be said of them."""
        return self.text_of(MEASURED)

    def text_of(self, step: str) -> str:
        """The same of the "measured" or the "mean" step."""
        return words.text(self, step)

    def records(self) -> list[dict[str, Any]]:
        """One flat record a cell, all with the same keys; None where there is no number.

        `NAME` is the posterior median, `NAME_50_low` ... `NAME_90_high` the intervals, `NAME_mcse` the median's Monte
        Carlo error.
        """
        return [row.record(self.label) for row in self.rows]

    def to_frame(self) -> "pd.DataFrame":
        """`records` as a table."""
        import pandas as pd

        return pd.DataFrame(self.records())

    def to_csv(self, path: str | Path | None = None) -> str:
        """`records` as a CSV file; an apostrophe stands before texts that a spreadsheet would take for a formula."""
        records = self.records()
        rows = ([json_ready(value) for value in record.values()] for record in records)
        return written(table_text(list(records[0]), rows), path)

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


def predict(
    family: Family | Sequence[Family],
    gpus: Gpu | Sequence[Gpu],
    batch: ArrayLike,
    context: ArrayLike,
    *,
    calibration: Calibration | str | Path = domain.DEFAULT_STUDY,
    klass: str | None = None,
    seed: int = 1,
    stack: str = "",
    mode: str = "",
    dtype: str | None = None,
    kv_dtype: str | None = None,
) -> Prediction:
    """Predict every combination of models, GPUs, batches and contexts.

    Parameters
    ----------
    family : ModelShapes, catalog name, config.json, folder or TOML file, or several
        A folder with a config.json is one model, any other all models of its config files that can be read.
    gpus : GpuSpec, name or TOML file, or several
    batch, context : whole numbers, one or several
        Sequences in the step (from 1); tokens in the cache of each before it (from 0).
    calibration : Calibration, or what `saved.load` takes
    klass : str, optional
        Class whose floors the models share; default: the calibration's, else by experts and size.
    seed : int
    stack, mode : str
        What will serve the models; where it is not the calibration's the output says so.
    dtype, kv_dtype : str, optional
        Number formats of weights and cache (`in_format`) in place of those of the checkpoint.

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

    Examples
    --------
    >>> found = predict("Qwen2.5-7B", ["H100", "H200"], batch=[1, 16], context=2048)
    >>> print(found.rows[0].estimates["measured_step_ms"], "ms")
    9.8 [8.5, 11.1] ms
    """
    if not isinstance(seed, int) or seed < 0:
        raise InputError(f"seed: expected a whole number from 0, got {shown(seed)}")
    calibration = saved.load(calibration)
    read = [load_models(given) for given in _several(family)]
    models = _once([in_format(one, dtype, kv_dtype) for found, _ in read for one in found], "model")
    skus = _once([_gpu(given, calibration) for given in _several(gpus)], "GPU")
    batches, contexts = axis(batch, "batch", 1), axis(context, "context", 0)
    check_size(len(models) * len(skus) * len(batches) * len(contexts))
    chosen = None if klass is None else domain.known_class(klass, calibration)
    b, c = (grid.ravel() for grid in np.meshgrid(batches, contexts, indexing="ij"))
    rows, pairs = list[Row](), list[Pair]()
    for model in models:
        for sku in skus:
            asked = _Asked.of(model, sku, calibration, chosen, (stack, mode))
            floor = asked.floor(seed)
            pairs.append(asked.pair(floor))
            rows += asked.rows(b, c, floor, seed)
    return Prediction(
        tuple(rows), tuple(pairs), _calibration(calibration), seed, tuple(why for _, left in read for why in left)
    )


def step_draws(
    shapes: ModelShapes,
    gpu: GpuSpec,
    batch: Array,
    context: Array,
    calibration: Calibration,
    *,
    klass: str | None = None,
    seed: int = 1,
) -> tuple[Array, Array]:
    """Mean steps of cells [cell] as `predict` has them with this seed, ms [draw, cell], and weights of the draws."""
    asked = _Asked.of(shapes, gpu, calibration, klass, ("", ""))
    floor, roof = asked.floor(seed), asked.random(seed)[0]
    gpu_ms = calibration.gpu_ms(shapes, asked.gpu, batch, context, np.random.default_rng(roof))
    return calibration.step_ms(gpu_ms, floor.ms, asked.host_ms(batch, roof)), floor.weight


@dataclass(frozen=True, eq=False)
class _Floor:
    """Draws of a pair's floor [draw], the share of them that are possible, and `bytes_floor_ms` at `LIGHTEST`.

    Weights sum to 1, and are 0 where the floor is not possible; the calibration's where nearly no draw is possible.
    """

    ms: Array
    weight: Array
    kept: float
    lightest_ms: float

    @property
    def cut_percent(self) -> float:
        return 100.0 * (1.0 - self.kept)


@dataclass(frozen=True, eq=False)
class _Asked:
    """One model on one GPU, as the calibration knows them (`model`, `gpu.name`) and as they are shown (`names`)."""

    calibration: Calibration
    shapes: ModelShapes
    gpu: GpuSpec
    model: str
    klass: str
    names: tuple[str, str]
    outside: tuple[str, ...]

    @classmethod
    def of(
        cls, shapes: ModelShapes, gpu: GpuSpec, calibration: Calibration, klass: str | None, serving: tuple[str, str]
    ) -> "_Asked":
        """With what of them lies outside what was calibrated; `serving` is stack and mode."""
        model, sku = domain.known_model(shapes, calibration)[0], domain.known_gpu(gpu, calibration)[0]
        own = dict(zip(calibration.models, calibration.classes, strict=True))
        outside = (
            *domain.model_reasons(calibration, shapes),
            *domain.gpu_reasons(calibration, gpu),
            *domain.serving_reasons(calibration, *serving),
        )
        klass = klass or own.get(model) or default_class(shapes)
        return cls(calibration, shapes, replace(gpu, name=sku), model, klass, (shapes.name, gpu.name), outside)

    def random(self, seed: int) -> list[np.random.SeedSequence]:
        """Seeds of roof, floor, noise and error, the same wherever this pair is predicted."""
        key = zlib.crc32("\n".join((self.model, self.gpu.name)).encode())
        return np.random.SeedSequence([seed, key]).spawn(4)

    def floor(self, seed: int) -> _Floor:
        """The pair's floor, and which of its draws are possible."""
        p, (roof, floor, *_) = self.calibration, self.random(seed)
        rng = np.random.default_rng(floor)
        drawn = p.floor_of(self.gpu.name, self.model, self.klass, rng, of=(self.shapes, self.gpu))
        gpu_ms = p.gpu_ms(self.shapes, self.gpu, *LIGHTEST, np.random.default_rng(roof))[:, 0]
        host = self.host_ms(np.array([LIGHTEST[0]]), roof)[:, 0]
        lightest = float(bytes_floor_ms(self.shapes, self.gpu, *LIGHTEST, "active"))
        weight, kept = possible(drawn + host, least_floor_ms(lightest, gpu_ms, p.structure.positive), p.weight)
        return _Floor(drawn, weight if kept >= LEAST_KEPT else p.weight, kept, lightest)

    def host_ms(self, batch: Array, roof: np.random.SeedSequence) -> Array:
        """What floors of cells have beside the pair's, ms, [draw, cell]; the SKU of each draw as the roof has it."""
        return self.calibration.host_ms(self.shapes, self.gpu.name, batch, np.random.default_rng(roof))

    @property
    def floor_from(self) -> str:
        """Where the floor comes from, in words."""
        p, gpu = self.calibration, self.gpu.name
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

    def pair(self, floor: _Floor) -> Pair:
        """What holds for all cells."""
        estimate = medians(floor.ms[:, None], floor.weight, self.calibration.unit, "floor", "ms")[0]
        about = (*self.names, self.klass, self.shapes.parameters, self.floor_from)
        return Pair(*about, estimate, self.outside, floor.cut_percent, floor.lightest_ms)

    def rows(self, batch: Array, context: Array, floor: _Floor, seed: int) -> list[Row]:
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
                outside=(*self.outside, *domain.cell_reasons(self.calibration, self.shapes, batch[i], context[i])),
                needed_gb=float(needed[i]),
                usable_gb=USABLE * self.gpu.memory_bytes / 1e9,
                status=PREDICTED if i in numbers else IMPOSSIBLE if fit[i] else TOO_LARGE,
                bytes_floor_ms=float(least[i]) if fit[i] else None,
                cut_percent=floor.cut_percent if fit[i] else None,
                **(numbers.get(i) or nothing),
            )
            for i in range(len(batch))
        ]

    def _numbers(self, batch: Array, context: Array, floor: _Floor, seed: int) -> list[dict[str, Any]]:
        """What the rows of cells [cell] have beside what holds for all cells of the pair."""
        p, weight = self.calibration, floor.weight
        roof, _, spread, error = self.random(seed)

        def branch(calibration: Calibration) -> Array:
            return calibration.gpu_ms(self.shapes, self.gpu, batch, context, np.random.default_rng(roof))

        gpu_ms = branch(p)
        mean = p.step_ms(gpu_ms, floor.ms, self.host_ms(batch, roof))
        noise = p.noise_of(self.gpu.name, self.model, np.random.default_rng(spread))
        shock = np.random.default_rng(error).standard_normal(len(noise))
        measured = noisy(mean, bytes_floor_ms(self.shapes, self.gpu, batch, context, "active"), noise, shock)
        below = np.full(len(batch), np.nan)
        if self.shapes.is_moe and p.experts == "active":
            below = 100.0 * (1.0 - weight @ gpu_ms / (weight @ branch(replace(p, experts="distinct"))))
        found = {"gpu_ms": medians(gpu_ms, weight, p.unit, GPU_BRANCH, "ms")}
        for step, values in {MEAN: mean, MEASURED: measured}.items():
            found |= _quantities(values, weight, p.unit, batch, step)
        return [
            {
                "below_distinct_percent": float(below[i]) if batch[i] > 1 and np.isfinite(below[i]) else None,
                "estimates": {name: column[i] for name, column in found.items()},
            }
            for i in range(len(batch))
        ]


# ---- estimates --------------------------------------------------------------------------------------------------


def _quantities(
    step_ms: Array, weight: Array, unit: NDArray[np.int64], batch: Array, step: str
) -> dict[str, list[Estimate]]:
    """Estimates [cell] of step, throughput and time per output token, from steps [draw, cell] and weights [draw]."""
    steps = medians(step_ms, weight, unit, STEPS[step], "ms")
    rate = 1000.0 * batch / np.where(weight[:, None] > 0, step_ms, 1.0)
    rates = medians(rate, weight, unit, f"batch / {STEPS[step]}", "tokens/s")
    tokens = [replace(s, estimand=f"time between two tokens of a sequence: {STEPS[step]}") for s in steps]
    return {f"{step}_step_ms": steps, f"{step}_tokens_per_s": rates, f"{step}_time_per_output_token_ms": tokens}


# ---- what is asked ----------------------------------------------------------------------------------------------


def _several(given: Any) -> list[Any]:
    """A list, also of one."""
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


def _gpu(given: Gpu, calibration: Calibration) -> GpuSpec:
    """Data sheet of an object, a name (the calibration's first, then the catalog's) or a TOML file."""
    own = {name.casefold(): spec for name, spec in calibration.specs.items()}
    if isinstance(given, str) and given.strip().casefold() in own:
        return own[given.strip().casefold()]
    spec = load_gpu(given)
    name, other = domain.known_gpu(spec, calibration)
    return spec if other else calibration.specs.get(name, spec)


def _calibration(p: Calibration) -> dict[str, Any]:
    """What a prediction says of its calibration, as JSON."""
    seen = {f.name: ends for f in fields(p.domain) if (ends := getattr(p.domain, f.name)) is not None}
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
        "domain": {name: [float(f"{end:g}") if end % 1 else int(end) for end in ends] for name, ends in seen.items()},
    }
