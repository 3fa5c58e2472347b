"""A calibration as plain arrays: draws of constants, floors and noise, and the steps that they predict (NumPy alone).

`report` writes one beside posterior.nc (posterior.npz); `predict`, `plan` and `check` read it: no fit, no xarray.
"""

import functools
import io
import math
import tokenize
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rooffloor.models.floor.structures import COMBINE, Q_MAX, FloorStructure
from rooffloor.models.inference.priors import DEFAULT_PRIORS, Priors
from rooffloor.models.roof.kernels import EXPERTS, Experts, decode_work, stack_work
from rooffloor.models.roof.roofline import CONSTANTS, Efficiency, work_ms
from rooffloor.models.specs import inputs
from rooffloor.models.specs.cells import Cells
from rooffloor.models.specs.gpus import GpuSpec
from rooffloor.models.specs.shapes import ModelShapes

type Array = NDArray[np.float64]

EFFECTS = {
    "gpu": ("gpu", (0,)),
    "class": ("group", (1,)),
    "gpu, class": ("pair", (0, 1)),
    "model": ("pair", (2,)),
    "gpu, model": ("pair", (0, 2)),
}
"""Effects behind floors: the prior of their scale (`Priors.floor_sd_...`), and what two pairs that have one alike share
(0 the SKU, 1 the class, 2 the model)."""
SCALES = 8192
"""Points of the scales of the effects, weighed by the floors of each draw."""
BATCHES = 50
"""Consecutive batches of draws that are the units of the Monte Carlo error."""
NOISE_FREEDOM = 4.0
"""So many pairs is the prior spread of noise between pairs worth, beside the measured pairs."""
LARGEST_FILE = 256 * inputs.MEGABYTE
"""Bytes of a saved calibration, also once it is unpacked."""
_GPU_FIELDS = ("peak_flops", "bandwidth", "memory_bytes", "l2_bytes")


@dataclass(frozen=True)
class Domain:
    """What the calibration has seen: ranges of batch, context (tokens) and total parameters, all 16-bit on one GPU."""

    batch: tuple[float, float]
    context: tuple[float, float]
    parameters: tuple[float, float]

    @classmethod
    def of(cls, batch: ArrayLike, context: ArrayLike, parameters: ArrayLike) -> "Domain":
        """The ranges of what was seen."""
        seen = [np.asarray(values, dtype=float) for values in (batch, context, parameters)]
        return cls(*((float(values.min()), float(values.max())) for values in seen))


@dataclass(frozen=True, eq=False)
class Posterior:
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
        NaN where a pair was not measured.
    noise_relative : array [draw, gpu, model]
        sd of a measured step over its mean, leftover of the roof included; NaN as above.
    combine : str
        How floors join the GPU branch, a key of `floors.COMBINE`.
    q : array [draw]
        The overlap (1: added).
    scales : array [draw, effect]
        sds of the effects behind the floors (`floor_scales`).
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
    priors: Priors = field(default=DEFAULT_PRIORS)

    def __post_init__(self) -> None:
        n, g, m = len(self.weight), len(self.gpus), len(self.models)
        wanted = {
            "floor_ms": (n, g, m),
            "noise_relative": (n, g, m),
            "q": (n,),
            "scales": (n, len(EFFECTS)),
            "unit": (n,),
            **{name: (n, len(self.anchor_gpu)) for name in _ANCHOR},
        }
        found = {name: np.shape(getattr(self, name)) for name in wanted}
        found |= {name: np.shape(values) for name, values in self.constants.items()}
        for name, shape in (wanted | dict.fromkeys(self.constants, (n, g))).items():
            if found[name] != shape:
                raise ValueError(f"{name} must have the shape {shape}, got {found[name]}")
        unknown = [name for name in self.constants if name not in CONSTANTS]
        if unknown or self.combine not in COMBINE or self.experts not in EXPERTS:
            raise ValueError(f"unknown constant, combine or experts: {unknown}, {self.combine!r}, {self.experts!r}")
        if len(self.classes) != m or self.anchor not in self.models or not set(self.gpus) <= set(self.specs):
            raise ValueError("classes, anchor and specs must go with the models and GPUs")
        self._check_names()
        self._check_values()

    def _check_names(self) -> None:
        """ValueError unless names are single lines of text and stand once."""
        for name in ("gpus", "models", "classes", *_TEXTS):
            texts = [getattr(self, name)] if name in _TEXTS else getattr(self, name)
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
        cells = np.stack([getattr(self, name) for name in _ANCHOR])
        for good, expected in (
            (bool(measured.any()), "at least one draw of one floor"),
            (bool((measured == measured[:1]).all()), "floors of the same pairs in every draw"),
            (
                not self.structure.positive or bool((floors > 0).all()),
                f"floors above 0 where they are {self.combine!r}",
            ),
            (bool((np.isfinite(noise) & (noise > 0)).all()), "noise above 0 for every measured pair"),
            (bool((np.isfinite(self.scales) & (self.scales >= 0)).all()), "scales of 0 or more"),
            (bool(((self.q >= 0) & (self.q <= Q_MAX)).all()), f"q from 0 to {Q_MAX:g}"),
            (bool((self.weight >= 0).all()) and math.isclose(self.weight.sum(), 1.0, rel_tol=1e-6), "weights of sum 1"),
            (bool(np.isfinite(cells).all()), "finite cells of the anchor"),
            (bool(((self.anchor_gpu >= 0) & (self.anchor_gpu < len(self.gpus))).all()), "GPUs of the anchor's cells"),
            (bool((np.isfinite([low, high]).all(0) & (low <= high)).all()), "a domain of rising finite numbers"),
        ):
            if not good:
                raise ValueError(f"expected {expected}")

    def __repr__(self) -> str:
        return (
            f"Posterior({self.source}, {self.label}: {len(self.weight)} draws, {len(self.models)} models x "
            f"{len(self.gpus)} GPUs, floors {self.combine})"
        )

    # ---- what it predicts ---------------------------------------------------------------------------------------

    @functools.cached_property
    def structure(self) -> FloorStructure:
        """Floors per (GPU, model), joined as `combine` says."""
        return FloorStructure("gpu, model", self.combine)

    def rows(self, keep: NDArray[np.int64]) -> "Posterior":
        """Some of the draws (their numbers, repeats allowed), equally weighted."""
        arrays = {name: getattr(self, name)[keep] for name in (*_FLOATS, "unit")}
        constants = {name: values[keep] for name, values in self.constants.items()}
        return replace(self, constants=constants, weight=np.full(len(keep), 1.0 / len(keep)), **arrays)

    def without(self, model: str) -> "Posterior":
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
        count, known = len(self.weight), gpu in self.gpus
        code = np.full(count, self.gpus.index(gpu)) if known else rng.integers(0, len(self.gpus), count)
        own: dict[str, Any] = {n: np.take_along_axis(v, code[:, None], 1) for n, v in self.constants.items()}
        return Efficiency(**own, gpu=gpu, stack=self.stack, mode=self.mode)

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

    def floor_of(self, gpu: str, model: str, klass: str, rng: np.random.Generator) -> Array:
        """Floor of a model on a SKU, ms, [draw].

        Notes
        -----
        A measured pair has its own draws. Any other floor is drawn given those of the measured pairs and `scales`: all
        floors (their logarithms where H >= 0) are jointly normal with the effects of `EFFECTS`. A class or SKU that
        was never measured thus widens the floor by what classes and SKUs differ, instead of borrowing one.
        """
        if self.measured(gpu, model):
            return self.floor_ms[:, self.gpus.index(gpu), self.models.index(model)]
        pairs = self._pairs
        covariance = _covariance([*pairs, (gpu, klass, model)], self.scales, self.priors, self.structure)
        mean, _ = floor_level(self.priors, self.structure)
        gain = np.linalg.solve(covariance[:, :-1, :-1], covariance[:, :-1, -1:])[..., 0]
        floors = np.stack([self.floor_ms[:, g, m] for g, m in self._codes], -1)
        values = np.log(floors) if self.structure.positive else floors
        centre = mean + (gain * (values - mean)).sum(-1)
        left = covariance[:, -1, -1] - (gain * covariance[:, :-1, -1]).sum(-1)
        drawn = centre + np.sqrt(left.clip(0.0)) * rng.standard_normal(len(centre))
        return np.asarray(np.exp(drawn) if self.structure.positive else drawn)

    def noise_of(self, gpu: str, model: str, rng: np.random.Generator) -> Array:
        """Relative sd of a measured step, [draw]: the pair's own, or log-normal around those of the measured pairs."""
        if self.measured(gpu, model):
            return self.noise_relative[:, self.gpus.index(gpu), self.models.index(model)]
        logs = np.log(np.stack([self.noise_relative[:, g, m] for g, m in self._codes], -1))
        mean, count = logs.mean(-1), logs.shape[-1]
        squares = ((logs - mean[:, None]) ** 2).sum(-1) + NOISE_FREEDOM * self.priors.noise_spread**2
        sd = np.sqrt(squares / (count - 1 + NOISE_FREEDOM) * (1.0 + 1.0 / count))
        return np.asarray(np.exp(mean + sd * rng.standard_normal(len(mean))))

    def step_ms(self, gpu_ms: Array, floor_ms: Array) -> Array:
        """Mean step, ms, from T_gpu [draw, cell] and floors [draw]."""
        return np.asarray(self.structure.step_ms(gpu_ms, floor_ms[:, None], self.q[:, None]))

    @functools.cached_property
    def _codes(self) -> list[tuple[int, int]]:
        return [(g, m) for g, m in np.ndindex(len(self.gpus), len(self.models)) if np.isfinite(self.floor_ms[0, g, m])]

    @functools.cached_property
    def _pairs(self) -> list[tuple[str, str, str]]:
        return [(self.gpus[g], self.classes[m], self.models[m]) for g, m in self._codes]

    # ---- files --------------------------------------------------------------------------------------------------

    def save(self) -> bytes:
        """The content of an .npz file."""
        specs = [self.specs[g] for g in self.gpus]
        arrays: dict[str, Any] = {
            "version": np.array(1),
            "texts": np.array([getattr(self, name) for name in _TEXTS]),
            "gpus": np.array(self.gpus),
            "models": np.array(self.models),
            "classes": np.array(self.classes),
            "spec": np.array([[getattr(s, name) for name in _GPU_FIELDS] for s in specs]),
            "domain": np.array([self.domain.batch, self.domain.context, self.domain.parameters]),
            "unit": self.unit.astype(np.int32),
            "anchor_gpu": self.anchor_gpu.astype(np.int16),
            "weight": self.weight,
        }
        floats = {f"constant_{name}": values for name, values in self.constants.items()}
        floats |= {name: getattr(self, name) for name in _FLOATS}
        arrays |= {name: values.astype(np.float32) for name, values in floats.items()}
        buffer = io.BytesIO()
        np.savez_compressed(buffer, **arrays)
        return buffer.getvalue()

    @classmethod
    def load(cls, path: str | Path) -> "Posterior":
        """Read what `save` wrote.

        Raises
        ------
        ValueError
            The file cannot be read or is no saved calibration; the message names it.
        """
        file = Path(path)
        try:
            inputs.check(file, LARGEST_FILE)
            with zipfile.ZipFile(file) as members:
                if sum(member.file_size for member in members.infolist()) > LARGEST_FILE:
                    raise ValueError(f"{inputs.too_large(LARGEST_FILE)} once unpacked")
            with np.load(file, allow_pickle=False) as stored:
                a = {name: stored[name] for name in stored.files}
            if int(a["version"]) != 1:
                raise ValueError(f"version {int(a['version'])} of the format is not known")
            texts: dict[str, Any] = dict(zip(_TEXTS, a["texts"].tolist(), strict=True))
            gpus, models, classes = (tuple(a[name].tolist()) for name in ("gpus", "models", "classes"))
            batch, context, parameters = ((float(low), float(high)) for low, high in a["domain"])
            constants = {n.removeprefix("constant_"): _double(v) for n, v in a.items() if n.startswith("constant_")}
            for name in ("eta_tc", "eta_bw", "eta_fa"):
                if name in constants:
                    constants[name] = constants[name].clip(max=1.0)
            known: dict[str, Any] = {name: _double(a[name]) for name in _FLOATS}
            return cls(
                gpus=gpus,
                models=models,
                classes=classes,
                constants=constants,
                weight=_weight(a["weight"]),
                unit=a["unit"].astype(np.int64),
                anchor_gpu=a["anchor_gpu"].astype(np.int64),
                specs={g: _spec(g, row) for g, row in zip(gpus, a["spec"], strict=True)},
                domain=Domain(batch, context, parameters),
                **texts,
                **known,
            )
        except _UNREADABLE as found:
            why = " ".join(str(found).split())
            raise ValueError(f"{inputs.called(file)}: expected a posterior.npz of rooffloor ({why[:120]})") from found


def rejoined(posterior: Posterior, combine: str, rng: np.random.Generator) -> tuple[Posterior, float]:
    """The same constants with the anchor's floors fitted anew to its cells, joined in another way.

    Parameters
    ----------
    combine : str
        A key of `floors.COMBINE`. Where it leaves q free, q is drawn given the anchor's cells alone.

    Returns
    -------
    Posterior
        Of the anchor alone: floors of other models are not refitted.
    float
        Log density of the anchor's steps under these floors, mean over the draws of the constants. The constants are as
        calibrated: under the joining that they were fitted with it is higher than a fit under the other would find.
    """
    from rooffloor.models.inference.one_pair import fit_floors

    structure = FloorStructure("gpu, model", combine)
    used = np.unique(posterior.anchor_gpu)
    fit = fit_floors(
        np.searchsorted(used, posterior.anchor_gpu),
        posterior.anchor_gpu_ms,
        posterior.anchor_step_ms,
        structure,
        rng,
        floor_prior=floor_level(posterior.priors, structure),
        noise_prior=noise_level(posterior.priors),
    )
    shape = (len(posterior.weight), len(posterior.gpus), 1)
    floors, noises = np.full(shape, np.nan), np.full(shape, np.nan)
    floors[:, used, 0], noises[:, used, 0] = fit.floor_ms, fit.noise_relative
    klass = posterior.anchor_class
    pairs = [(posterior.gpus[g], klass, posterior.anchor) for g in used]
    anew = replace(
        posterior,
        models=(posterior.anchor,),
        classes=(klass,),
        floor_ms=floors,
        noise_relative=noises,
        combine=combine,
        q=fit.q,
        scales=floor_scales(pairs, fit.floor_ms, structure, rng, posterior.priors),
    )
    top = fit.log_evidence.max()
    return anew, float(top + np.log(posterior.weight @ np.exp(fit.log_evidence - top)))


def of_anchor(
    cells: Cells,
    shapes: ModelShapes,
    klass: str,
    constants: Mapping[str, Array],
    specs: Mapping[str, GpuSpec],
    rng: np.random.Generator,
    *,
    combine: str = "added",
    experts: Experts = "active",
    priors: Priors = DEFAULT_PRIORS,
    **said: str,
) -> Posterior:
    """A calibration from the cells of one model: floors and noise of each SKU given draws of the constants.

    Parameters
    ----------
    cells : Cells
        Of one model, with steps; SKUs in the order of their codes.
    constants : mapping of constant to array [draw]
        The same for all SKUs.
    said
        `label`, `source`, `treatment`, `stack` and `mode` of the posterior.
    """
    from rooffloor.models.inference.one_pair import fit_floors

    assert cells.step_ms is not None
    (anchor,) = cells.models
    count = len(next(iter(constants.values())))
    own: dict[str, Any] = {name: values[:, None] for name, values in constants.items()}
    work = stack_work(cells, {anchor: shapes}, specs, experts=experts)
    T = np.broadcast_to(work_ms(work, Efficiency(**own)), (count, len(cells)))
    every = {name: np.tile(getattr(cells, name), (count, 1)) for name in ("batch", "context", "step_ms")}
    structure = FloorStructure("gpu, model", combine)
    fit = fit_floors(
        cells.gpu_code,
        T,
        every["step_ms"],
        structure,
        rng,
        floor_prior=floor_level(priors, structure),
        noise_prior=noise_level(priors),
        known_sd_ms=0.0 if cells.step_sd_ms is None else cells.step_sd_ms,
    )
    texts: dict[str, Any] = {"treatment": "anchor alone"} | said
    return Posterior(
        gpus=cells.gpus,
        models=(anchor,),
        classes=(klass,),
        anchor=anchor,
        constants={name: np.repeat(values[:, None], len(cells.gpus), 1) for name, values in constants.items()},
        floor_ms=fit.floor_ms[..., None],
        noise_relative=fit.noise_relative[..., None],
        combine=combine,
        q=fit.q,
        scales=floor_scales([(g, klass, anchor) for g in cells.gpus], fit.floor_ms, structure, rng, priors),
        weight=np.full(count, 1.0 / count),
        unit=np.arange(count) * BATCHES // count,
        anchor_gpu=cells.gpu_code,
        anchor_batch=every["batch"],
        anchor_context=every["context"],
        anchor_step_ms=every["step_ms"],
        anchor_gpu_ms=T,
        specs={g: specs[g] for g in cells.gpus},
        experts=experts,
        domain=Domain.of(cells.batch, cells.context, [shapes.parameters]),
        **texts,
    )


def floor_scales(
    pairs: Sequence[tuple[str, str, str]],
    floor_ms: Array,
    structure: FloorStructure,
    rng: np.random.Generator,
    priors: Priors = DEFAULT_PRIORS,
) -> Array:
    """Scales of the effects behind the floors, given the floors: [draw, effect], ms or of the logarithm.

    Parameters
    ----------
    pairs : sequence of (gpu, class, model)
    floor_ms : array [draw, pair]

    Notes
    -----
    Priors as in `Priors`, half-t or half-normal. Points come from the prior, and in a second round half of them from a
    log-normal around what the first round chose; each draw takes one, with probability proportional to the joint normal
    density of its floors times the prior over the density of the points. Points are common to all draws.
    """
    mean, _ = floor_level(priors, structure)
    values = (np.log(floor_ms) if structure.positive else floor_ms) - mean
    tops = np.array([_scale(priors, structure, prior) for prior, _ in EFFECTS.values()])

    def half(number: int) -> Array:
        size = (number, len(EFFECTS))
        return np.abs(rng.standard_normal(size) if structure.positive else rng.standard_t(3, size)) * tops

    points = half(SCALES // 4)
    first = np.log(points[_chosen(pairs, values, points, np.zeros(len(points)), structure, rng, priors)])
    centre, root = first.mean(0), 1.5 * np.linalg.cholesky(np.cov(first.T) + 0.01 * np.eye(len(EFFECTS)))
    logs = np.concatenate(
        [np.log(half(SCALES // 2)), centre + rng.standard_normal((SCALES // 2, len(EFFECTS))) @ root.T]
    )
    white = np.linalg.solve(root, (logs - centre).T)
    around = -0.5 * (white**2).sum(0) - np.log(np.diag(root)).sum() - 0.5 * len(EFFECTS) * np.log(2.0 * np.pi)
    points = np.exp(logs)
    if structure.positive:
        density = 0.5 * np.log(2.0 / np.pi) - np.log(tops) - 0.5 * (points / tops) ** 2
    else:
        density = np.log(4.0 / (np.pi * np.sqrt(3.0) * tops)) - 2.0 * np.log1p((points / tops) ** 2 / 3.0)
    prior = (density + logs).sum(-1)  # of the logarithm
    weight = prior - np.logaddexp(prior, around)
    return points[_chosen(pairs, values, points, weight, structure, rng, priors)]


def _chosen(
    pairs: Sequence[tuple[str, str, str]],
    values: Array,
    points: Array,
    log_weight: Array,
    structure: FloorStructure,
    rng: np.random.Generator,
    priors: Priors,
) -> NDArray[np.int64]:
    """A point for each draw, with probability proportional to its weight and the density of that draw's floors."""
    best, chosen = np.full(len(values), -np.inf), np.zeros(len(values), dtype=np.int64)
    for start in range(0, len(points), _CHUNK):
        some = slice(start, start + _CHUNK)
        root = np.linalg.cholesky(_covariance(pairs, points[some], priors, structure))
        white = np.linalg.solve(root, np.broadcast_to(values.T, (len(root), *values.T.shape)))
        log = -0.5 * (white**2).sum(1) - np.log(np.diagonal(root, axis1=1, axis2=2)).sum(1)[:, None]
        log += log_weight[some, None] + rng.gumbel(size=log.shape)
        top = log.argmax(0)
        better = np.take_along_axis(log, top[None], 0)[0] > best
        chosen[better] = start + top[better]
        best = np.maximum(best, log.max(0))
    return chosen


_CHUNK = 256


def _scale(priors: Priors, structure: FloorStructure, effect: str) -> float:
    return float(getattr(priors, f"floor_sd_{effect}{'' if structure.positive else '_ms'}"))


def floor_level(priors: Priors, structure: FloorStructure) -> tuple[float, float]:
    """Mean and sd of the level common to all floors, ms or of the logarithm."""
    middle, sd = priors.floor_overall if structure.positive else priors.floor_overall_ms
    return float(np.log(middle)) if structure.positive else middle, sd


def noise_level(priors: Priors) -> tuple[float, float]:
    """Mean and sd of the logarithm of the relative noise of a model before any cell is seen."""
    median, sd = priors.noise_relative
    return float(np.log(median)), sd


def _covariance(
    pairs: Sequence[tuple[str, str, str]], scales: Array, priors: Priors, structure: FloorStructure
) -> Array:
    """Covariance of floors of pairs (gpu, class, model) [row of scales, pair, pair]."""
    same = [np.array([[a[i] == b[i] for b in pairs] for a in pairs], dtype=float) for i in range(3)]
    total = np.full((len(scales), len(pairs), len(pairs)), floor_level(priors, structure)[1] ** 2)
    for k, (_, shared) in enumerate(EFFECTS.values()):
        total = total + scales[:, k, None, None] ** 2 * np.prod([same[i] for i in shared], axis=0)
    return np.asarray(total + 1e-6 * np.eye(len(pairs)))


_UNREADABLE = (
    OSError,
    ValueError,
    LookupError,
    TypeError,
    EOFError,
    MemoryError,
    OverflowError,
    RuntimeError,  # encrypted, or a compression that zipfile does not know
    SyntaxError,
    tokenize.TokenError,  # both of the header of an array
    zipfile.BadZipFile,
    zlib.error,
)
"""What NumPy and zipfile raise over a file that is no .npz of ours."""
_TEXTS = ("anchor", "combine", "experts", "label", "source", "treatment", "stack", "mode")
_ANCHOR = ("anchor_batch", "anchor_context", "anchor_step_ms", "anchor_gpu_ms")
_FLOATS = ("scales", "floor_ms", "noise_relative", "q", *_ANCHOR)


def _spec(gpu: str, row: Array) -> GpuSpec:
    peak, bandwidth, memory, l2 = map(float, row)
    return GpuSpec(gpu, peak, bandwidth, memory, l2)


def _double(values: Any) -> Array:
    return np.asarray(values, dtype=np.float64)


def _weight(values: Array) -> Array:
    """Weights that sum to 1, of weights that are at least numbers of 0 or more (else as they are)."""
    total = _double(values).sum()
    return _double(values) / total if 0 < total < np.inf else _double(values)


def units(posterior: Posterior, count: int) -> NDArray[np.int64]:
    """Rows of `count` draws of the constants, one per unit or batch, in equal steps of the cumulated weight."""
    position = (np.arange(count) + 0.5) / count
    return np.searchsorted(np.cumsum(posterior.weight), position).clip(0, len(posterior.weight) - 1)
