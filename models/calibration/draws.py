"""A calibration as plain arrays: draws of constants, floors and noise, and the steps that they predict (NumPy alone).

`report` writes one beside posterior.nc (posterior.npz); `predict`, `plan` and `check` read it: no fit, no xarray.
"""

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rooffloor.models.calibration.floors import EFFECTS, at_launches, effect_sizes, floor_given, light_step
from rooffloor.models.floor.structures import COMBINE, Q_MAX, TERMS, FloorStructure
from rooffloor.models.inference.priors import DEFAULT_PRIORS, Priors
from rooffloor.models.roof.kernels import EXPERTS, Experts, decode_work, launches_of_shapes
from rooffloor.models.roof.roofline import CONSTANTS, Efficiency, work_ms
from rooffloor.models.specs.gpus import GpuSpec
from rooffloor.models.specs.shapes import ModelShapes

type Array = NDArray[np.float64]

NOISE_FREEDOM = 4.0
"""So many pairs is the prior spread of noise between pairs worth, beside the measured pairs."""
LIGHTEST = (1.0, 0.0)
"""Batch and context of the lightest step; T_gpu exceeds the time of its bytes by least there."""
FITTED_WITH_FLOORS = "study"
"""Treatment whose scales were sampled beside the floors, in ms alike for all pairs."""
TEXTS = ("anchor", "combine", "experts", "label", "source", "treatment", "stack", "mode")
ANCHOR = ("anchor_batch", "anchor_context", "anchor_step_ms", "anchor_gpu_ms")
FLOATS = ("scales", "floor_ms", "noise_relative", "q", *ANCHOR)
"""Fields that are texts; the cells of the anchor; and all arrays by draw that every calibration has, but weight and
unit."""


TERM_OF = {term.parameter: name for name, term in TERMS.items()}
"""Term of the floor by its parameter."""
LEAST_NOISE, MOST_NOISE, LARGEST_SCALE, SHORTEST_MS, LONGEST_MS, MOST_TOKENS = 1e-6, 100.0, 1e4, 1e-6, 1e7, 1e9
"""No calibration of decode steps has other numbers: noise, scales of floors, times, batches and contexts."""


@dataclass(frozen=True)
class Domain:
    """What the calibration has seen: ranges of batch, context (tokens) and shapes, all 16-bit on one GPU.

    Shapes: total parameters, KV bytes per token, query heads per KV head; the last two are None in files that do not
    say them.
    """

    batch: tuple[float, float]
    context: tuple[float, float]
    parameters: tuple[float, float]
    kv_bytes: tuple[float, float] | None = None
    heads_per_kv: tuple[float, float] | None = None

    @classmethod
    def of(cls, batch: ArrayLike, context: ArrayLike, models: Sequence[ModelShapes]) -> "Domain":
        """The ranges of what was seen."""
        of_models = [(m.parameters, m.kv_bytes_per_token, m.heads / m.kv_heads) for m in models]
        seen = [np.asarray(values, dtype=float) for values in (batch, context, *zip(*of_models, strict=True))]
        return cls(*((float(values.min()), float(values.max())) for values in seen))


@dataclass(frozen=True, eq=False)
class Calibration:
    """Draws of one calibration.

    Attributes
    ----------
    gpus, models, classes : tuple of str
        SKUs; models that were measured, and the class of each.
    anchor : str
        The model on which the constants were calibrated.
    constants : mapping of constant to array [draw, gpu]
        Those of `roofline.CONSTANTS` that are not at their peak.
    floor_ms : array [draw, gpu, model]
        What the cells of a pair share of their floor; NaN where a pair was not measured.
    noise_relative : array [draw, gpu, model]
        sd of a measured step over its mean, leftover of the roof included; NaN as above.
    combine : str
        How floors join the GPU branch, a key of `structures.COMBINE`.
    q : array [draw]
        The overlap (1: added).
    scales : array [draw, effect]
        sds of the effects behind the floors (`floor_scales`), ms; those of class and model on a pair of mean size where
        they were drawn given the floors.
    weight : array [draw]
        Sums to 1.
    unit : int array [draw]
        Draws of one imputation, or one batch of draws: the unit of Monte Carlo errors.
    anchor_gpu : int array [cell]; anchor_batch, anchor_context, anchor_step_ms, anchor_gpu_ms : arrays [draw, cell]
        The anchor's cells, as measured or imputed, and their T_gpu.
    specs : mapping of GPU name to GpuSpec
    experts : {"active", "distinct", "balanced"}
    domain : Domain
    label : str
        Where the cells come from.
    source : str
        Name of the study and its hash.
    treatment : str
        What the constants were fitted to: "study" (latent in imputed cells), "cut" or "anchor alone" (the anchor's
        cells), "joint" (all cells).
    stack, mode : str
        Serving stack and launch mode of the cells, empty where unknown.
    terms : mapping of parameter to array [draw, gpu], ms
        Of `structures.TERMS`: what a floor has beside the part that cells share.
    anchor_layers : int
        Layers of the anchor, for terms that grow with layers.
    launch_ms : array [draw] or None
        Host time per kernel launch: by how much the floor of a model that was not measured differs from those that were
        where it has more or fewer launches; None: floors do not follow launches.
    launches : array [model] or None
        Kernel launches in a step of each model.

    Examples
    --------
    >>> from rooffloor.models.calibration.anchor import of_anchor
    >>> from rooffloor.models.specs import cells, gpus, shapes
    >>> measured = cells.Cells.from_columns(["Llama-3.1-8B"] * 2, ["H100"] * 2, [1, 8], [512, 2048], [7.4, 8.2])
    >>> given, rng = {"eta_bw": np.full(50, 0.8)}, np.random.default_rng(1)
    >>> specs = {"H100": gpus.load("H100")}
    >>> calibration = of_anchor(
    ...     measured, shapes.load("Llama-3.1-8B"), "7B", given, specs, rng, label="example", source="mine"
    ... )
    >>> calibration
    Calibration(mine, example: 50 draws, 1 models x 1 GPUs, floors added)
    >>> calibration.floor_of("H100", "Llama-3.1-8B", "7B", rng).mean().round(1)
    np.float64(1.9)
    """

    gpus: tuple[str, ...]
    models: tuple[str, ...]
    classes: tuple[str, ...]
    anchor: str
    constants: Mapping[str, Array]
    floor_ms: Array
    noise_relative: Array
    combine: str
    q: Array
    scales: Array
    weight: Array
    unit: NDArray[np.int64]
    anchor_gpu: NDArray[np.int64]
    anchor_batch: Array
    anchor_context: Array
    anchor_step_ms: Array
    anchor_gpu_ms: Array
    specs: Mapping[str, GpuSpec]
    experts: Experts
    domain: Domain
    label: str
    source: str
    treatment: str = ""
    stack: str = ""
    mode: str = ""
    terms: Mapping[str, Array] = field(default_factory=dict)
    anchor_layers: int = 1
    launch_ms: Array | None = None
    launches: Array | None = None
    priors: Priors = field(default=DEFAULT_PRIORS)

    def __post_init__(self) -> None:
        n, g, m = len(self.weight), len(self.gpus), len(self.models)
        wanted = {
            "floor_ms": (n, g, m),
            "noise_relative": (n, g, m),
            "q": (n,),
            **({} if self.launch_ms is None else {"launch_ms": (n,), "launches": (m,)}),
            "scales": (n, len(EFFECTS)),
            "unit": (n,),
            **{name: (n, len(self.anchor_gpu)) for name in ANCHOR},
        }
        found = {name: np.shape(getattr(self, name)) for name in wanted}
        of_gpus = {**self.constants, **self.terms}
        found |= {name: np.shape(values) for name, values in of_gpus.items()}
        for name, shape in (wanted | dict.fromkeys(of_gpus, (n, g))).items():
            if found[name] != shape:
                raise ValueError(f"{name} must have the shape {shape}, got {found[name]}")
        unknown = [name for name in self.constants if name not in CONSTANTS]
        unknown += [name for name in self.terms if name not in TERM_OF]
        if unknown or self.combine not in COMBINE or self.experts not in EXPERTS:
            raise ValueError(f"unknown constant, combine or experts: {unknown}, {self.combine!r}, {self.experts!r}")
        if len(self.classes) != m or self.anchor not in self.models or not set(self.gpus) <= set(self.specs):
            raise ValueError("classes, anchor and specs must go with the models and GPUs")
        self._check_names()
        self._check_values()

    def _check_names(self) -> None:
        """ValueError unless names are single lines of text and stand once."""
        for name in ("gpus", "models", "classes", *TEXTS):
            texts = [getattr(self, name)] if name in TEXTS else getattr(self, name)
            if not all(isinstance(text, str) and text.isprintable() and len(text) <= 200 for text in texts):
                raise ValueError(f"{name} must be printable text of at most 200 characters")
            if name in ("gpus", "models") and len(set(texts)) != len(texts):
                raise ValueError(f"{name} must differ")

    def _check_values(self) -> None:
        """ValueError unless every number has a sense; `Efficiency` checks the constants."""
        constants: dict[str, Any] = dict(self.constants)
        Efficiency(**constants)
        measured = np.isfinite(self.floor_ms)
        floors, noise = self.floor_ms[measured], self.noise_relative[measured]
        low, high = np.transpose([self.domain.batch, self.domain.context, self.domain.parameters])
        cells = np.stack([getattr(self, name) for name in ANCHOR])
        each = np.zeros(1) if self.launch_ms is None else self.launch_ms
        of_models = np.ones(1) if self.launches is None else self.launches
        for good, expected in (
            (bool(measured.any()), "at least one draw of one floor"),
            (bool((measured == measured[:1]).all()), "floors of the same pairs in every draw"),
            (
                not self.structure.positive or bool((floors > 0).all()),
                f"floors above 0 where they are {self.combine!r}",
            ),
            (bool((np.abs(floors) <= LONGEST_MS).all()), f"floors of at most {LONGEST_MS:g} ms"),
            (
                all(((v >= 0) & (v <= LONGEST_MS)).all() for v in (*self.terms.values(), each)),
                f"terms of floors from 0 to {LONGEST_MS:g} ms",
            ),
            (
                bool(((of_models >= 1) & (of_models <= MOST_TOKENS)).all()) and 1 <= self.anchor_layers <= MOST_TOKENS,
                "at least one launch and one layer",
            ),
            (
                bool(((noise >= LEAST_NOISE) & (noise <= MOST_NOISE)).all()),
                f"noise from {LEAST_NOISE:g} to {MOST_NOISE:g} of a step for every measured pair",
            ),
            (
                bool(((self.scales >= 0) & (self.scales <= LARGEST_SCALE)).all()),
                f"scales from 0 to {LARGEST_SCALE:g}",
            ),
            (bool(((self.q >= 0) & (self.q <= Q_MAX)).all()), f"q from 0 to {Q_MAX:g}"),
            (bool((self.weight >= 0).all()) and math.isclose(self.weight.sum(), 1.0, rel_tol=1e-6), "weights of sum 1"),
            (
                bool(((cells >= [[[1.0]], [[0.0]], [[SHORTEST_MS]], [[SHORTEST_MS]]]) & (cells <= MOST_TOKENS)).all()),
                f"cells of the anchor: batch from 1, context from 0, step and T_gpu from {SHORTEST_MS:g} ms, "
                f"none above {MOST_TOKENS:g}",
            ),
            (bool(((self.anchor_gpu >= 0) & (self.anchor_gpu < len(self.gpus))).all()), "GPUs of the anchor's cells"),
            (bool((np.isfinite([low, high]).all(0) & (low <= high)).all()), "a domain of rising finite numbers"),
        ):
            if not good:
                raise ValueError(f"expected {expected}")

    def __repr__(self) -> str:
        return (
            f"Calibration({self.source}, {self.label}: {len(self.weight)} draws, {len(self.models)} models x "
            f"{len(self.gpus)} GPUs, floors {self.combine})"
        )

    @functools.cached_property
    def structure(self) -> FloorStructure:
        """Floors per (GPU, model), with the terms, joined as `combine` says."""
        return FloorStructure("gpu, model", self.combine, terms=tuple(TERM_OF[name] for name in self.terms))

    def rows(self, keep: NDArray[np.int64]) -> "Calibration":
        """Some of the draws (their numbers, repeats allowed), equally weighted."""
        arrays: dict[str, Any] = {name: getattr(self, name)[keep] for name in (*FLOATS, "unit")}
        constants = {name: values[keep] for name, values in self.constants.items()}
        terms = {name: values[keep] for name, values in self.terms.items()}
        arrays["launch_ms"] = None if self.launch_ms is None else self.launch_ms[keep]
        return replace(self, constants=constants, terms=terms, weight=np.full(len(keep), 1.0 / len(keep)), **arrays)

    def without(self, model: str) -> "Calibration":
        """The same draws without one model's floors and noise; the anchor stays."""
        if model == self.anchor or model not in self.models:
            return self
        keep = [m for m, name in enumerate(self.models) if name != model]
        return replace(
            self,
            models=tuple(self.models[m] for m in keep),
            classes=tuple(self.classes[m] for m in keep),
            floor_ms=self.floor_ms[:, :, keep],
            noise_relative=self.noise_relative[:, :, keep],
            launches=None if self.launches is None else self.launches[keep],
        )

    @property
    def anchor_class(self) -> str:
        """Class of the anchor."""
        return self.classes[self.models.index(self.anchor)]

    def measured(self, gpu: str, model: str) -> bool:
        """Whether this pair's own floor is among the draws."""
        if gpu not in self.gpus or model not in self.models:
            return False
        return bool(np.isfinite(self.floor_ms[0, self.gpus.index(gpu), self.models.index(model)]))

    def efficiency(self, gpu: str, rng: np.random.Generator) -> Efficiency:
        """Constants on one SKU, each [draw, 1]; on one that was never measured those of some SKU in each draw."""
        code = self._code_of(gpu, rng)
        own: dict[str, Any] = {n: np.take_along_axis(v, code[:, None], 1) for n, v in self.constants.items()}
        return Efficiency(**own, gpu=gpu, stack=self.stack, mode=self.mode)

    def _code_of(self, gpu: str, rng: np.random.Generator) -> NDArray[np.int64]:
        """Whose constants a SKU has in each draw: its own, or those of some SKU where it was never measured."""
        count = len(self.weight)
        return np.full(count, self.gpus.index(gpu)) if gpu in self.gpus else rng.integers(0, len(self.gpus), count)

    def host_ms(self, shapes: ModelShapes, gpu: str, batch: ArrayLike, rng: np.random.Generator) -> Array:
        """What floors of cells have beside the part that they share, ms: batch [cell] or [draw, cell] -> [draw, cell].

        On a SKU that was never measured, that of some SKU in each draw: the same as `efficiency` takes with the same
        state of `rng`.
        """
        return self._host_ms(shapes.layers, self._code_of(gpu, rng), np.asarray(batch, dtype=float))

    def _host_ms(self, layers: int, code: NDArray[np.int64], batch: Array) -> Array:
        def each(name: str) -> Array:
            values = self.terms[name]
            return np.take_along_axis(values, code[:, None], 1) if code.ndim == 1 else values[:, code[0]]

        none = np.zeros((len(self.weight), batch.shape[-1]))
        return np.asarray(none + self.structure.host_ms(each, batch, layers))

    @functools.cached_property
    def anchor_host_ms(self) -> Array:
        """`host_ms` of the anchor's cells, [draw, cell]."""
        return self._host_ms(self.anchor_layers, self.anchor_gpu[None], self.anchor_batch)

    def typical(self, efficiency: Efficiency) -> Efficiency:
        """Posterior means of the constants of `efficiency`, as numbers."""
        means: dict[str, Any] = {name: float(np.mean(getattr(efficiency, name))) for name in self.constants}
        return Efficiency(**means)

    def gpu_ms(
        self, shapes: ModelShapes, gpu: GpuSpec, batch: ArrayLike, context: ArrayLike, rng: np.random.Generator
    ) -> Array:
        """T_gpu of cells of one model and SKU, ms: batch and context [cell] or [draw, cell] -> [draw, cell]."""
        work = decode_work(shapes, batch, context, gpu=gpu, experts=self.experts)
        return np.asarray(work_ms(work, self.efficiency(gpu.name, rng)))

    def floor_of(
        self,
        gpu: str,
        model: str,
        klass: str,
        rng: np.random.Generator,
        *,
        of: tuple[ModelShapes, GpuSpec] | None = None,
    ) -> Array:
        """Floor of a model on a SKU, ms, [draw]: a measured pair's own, or drawn given those (`floors.floor_given`).

        `of`, where they are known: measured floors are first brought to the model's number of launches, and what it
        may differ by is a share of its own light step, not of the anchor's.
        """
        if self.measured(gpu, model):
            return self.floor_ms[:, self.gpus.index(gpu), self.models.index(model)]
        floors = np.stack([self.floor_ms[:, g, m] for g, m in self._codes], -1)
        if of is not None and self.launch_ms is not None:
            floors = self._at_launches(floors, launches_of_shapes(of[0]))
        pairs = [(self.gpus[g], self.classes[m], self.models[m]) for g, m in self._codes]
        new, sizes = (gpu, klass, model), None
        if self.treatment != FITTED_WITH_FLOORS and not self.structure.positive:
            own = self.light_ms
            if of is not None:
                alike = [k for k, pair in enumerate(pairs) if pair[0] == gpu] or slice(None)
                work = decode_work(of[0], *LIGHTEST, gpu=of[1], experts=self.experts)
                on_gpu = self.efficiency(gpu, np.random.default_rng(0))
                own = float(work_ms(work, self.typical(on_gpu))) + max(float(floors[:, alike].mean()), 0.0)
            sizes = effect_sizes([*pairs, new], self.light_ms, own)
        return floor_given(pairs, floors, new, self.scales, self.structure, rng, self.priors, sizes)

    @functools.cached_property
    def light_ms(self) -> float:
        """Mean over GPUs of the anchor's lightest step on each, ms."""
        return light_step(self.anchor_step_ms, self.anchor_gpu)

    def anchors_floor_at(self, floor_ms: Array, launches: float) -> Array:
        """The anchor's floor [draw], ms, as a model with this many kernel launches would have it."""
        if self.launches is None or self.launch_ms is None:
            return floor_ms
        own = self.launches[[self.models.index(self.anchor)]]
        return at_launches(floor_ms[:, None], own, launches, self.launch_ms)[:, 0]

    def _at_launches(self, floors: Array, launches: float) -> Array:
        """Measured floors [draw, pair] as if their models had this many launches."""
        assert self.launches is not None
        assert self.launch_ms is not None
        of_pairs = np.array([self.launches[m] for _, m in self._codes])
        return at_launches(floors, of_pairs, launches, self.launch_ms)

    def noise_of(self, gpu: str, model: str, rng: np.random.Generator) -> Array:
        """Relative sd of a measured step, [draw]: the pair's own, or log-normal around those of the measured pairs."""
        if self.measured(gpu, model):
            return self.noise_relative[:, self.gpus.index(gpu), self.models.index(model)]
        logs = np.log(np.stack([self.noise_relative[:, g, m] for g, m in self._codes], -1))
        mean, count = logs.mean(-1), logs.shape[-1]
        squares = ((logs - mean[:, None]) ** 2).sum(-1) + NOISE_FREEDOM * self.priors.noise_spread**2
        sd = np.sqrt(squares / (count - 1 + NOISE_FREEDOM) * (1.0 + 1.0 / count))
        return np.asarray(np.exp(mean + sd * rng.standard_normal(len(mean))))

    def step_ms(self, gpu_ms: Array, floor_ms: Array, host_ms: Array | float = 0.0) -> Array:
        """Mean step, ms, from T_gpu [draw, cell], floors [draw] and what cells have beside those (`host_ms`)."""
        return np.asarray(self.structure.step_ms(gpu_ms, floor_ms[:, None] + host_ms, self.q[:, None]))

    @functools.cached_property
    def _codes(self) -> list[tuple[int, int]]:
        return [(g, m) for g, m in np.ndindex(len(self.gpus), len(self.models)) if np.isfinite(self.floor_ms[0, g, m])]


def units(calibration: Calibration, count: int) -> NDArray[np.int64]:
    """Rows of `count` draws of the constants, one per unit or batch, in equal steps of the cumulated weight."""
    position = (np.arange(count) + 0.5) / count
    return np.searchsorted(np.cumsum(calibration.weight), position).clip(0, len(calibration.weight) - 1)
