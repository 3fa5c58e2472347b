"""Fits to measured cells: constants joint (all cells) or cut (the anchor's alone), under either roof."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rooffloor.models.floor.structures import TERMS, FloorStructure
from rooffloor.models.inference.cut import cut_of_steps
from rooffloor.models.inference.cut_model import cut_models, per_sku
from rooffloor.models.inference.gate import Attempt, GateFailure
from rooffloor.models.inference.kernel_priors import named_priors
from rooffloor.models.inference.noise import variance_ms2
from rooffloor.models.inference.prior_density import log_prior
from rooffloor.models.inference.sampling import Fit, compile_model, fit_gated, thin
from rooffloor.models.inference.step_distribution import efficiency_of, step_distribution
from rooffloor.models.inference.steps import StepModel
from rooffloor.models.roof.kernels import layers_of, stack_work
from rooffloor.models.roof.roofline import CONSTANTS, work_ms
from rooffloor.models.specs.cells import Cells
from rooffloor.validate.estimates.cell_draws import Draws, with_own_noise
from rooffloor.validate.estimates.prior_sensitivity import floors_against_anchor, power_scaling
from rooffloor.validate.fitting import kept
from rooffloor.validate.fitting.given import FitOfCells
from rooffloor.validate.fitting.parts import parts_of

if TYPE_CHECKING:
    import xarray as xr

    from rooffloor.models.inference.cut import CutFit
    from rooffloor.validate.measurements.load import Measurements
    from rooffloor.validate.study.study import Study

type Array = NDArray[np.float64]

ROOFS = {"study": "plain roof", "query heads": "query-head limb", "per gpu": "constants per GPU"}
"""The presets of a study in words."""
FITTED = ("eta_bw", "eta_fa", "eta_tc", "l_half", "rho_q")
"""Constants that a fit may leave free."""
BESIDE = 200
"""Upstream draws of a cut under a roof that is not the study's own: a row among other choices."""
BATCHES = 50
"""Consecutive batches of a measured posterior that serve as units of the Monte Carlo error."""


def variant(preset: str, treatment: str) -> str:
    """Roof and treatment of the constants in words."""
    return f"{ROOFS[preset]}, {treatment}"


def roof_options(preset: str) -> dict[str, Any]:
    """What `StepModel` and `cut_models` are told of the constants."""
    return {"query_heads": preset == "query heads", "constants": "free per gpu" if preset == "per gpu" else "free"}


class Measured:
    """Fits of one measured data set: the study's floors beside any roof."""

    def __init__(
        self,
        study: "Study",
        measurements: "Measurements",
        seed: int,
        *,
        quiet: bool = True,
        tell: Callable[[str], None] | None = None,
        folder: Path | None = None,
    ):
        """Fits keep themselves in `folder`; `tell` is told what is being fitted, bars show unless `quiet`."""
        self.study, self.seed, self.quiet = study, seed, quiet
        self.tell, self.folder = tell, folder
        self.sensitivity: list[dict[str, Any]] = []
        """Of the joint treatment under the study's own roof."""
        self.cells = measurements.cells()
        self.label = measurements.label.replace("derived", "derived from end-to-end measurements")
        self.classes = {m: study.class_of(m) for m in self.cells.models}
        self.structure, sharing = study.floor, study.floor.sharing
        assert sharing is not None
        assert sharing.dim is not None
        self.shared_by = sharing.dim
        self.group = {m: sharing.label(m, self.classes[m]) for m in self.cells.models}
        """Whose floor each model has: its own, or that of its class."""
        self.priors = named_priors(study.efficiency.priors, list(measurements.gpus.values()))
        self.work = stack_work(self.cells, measurements.shapes, measurements.gpus, experts=study.efficiency.experts)

    def fit(
        self, preset: str, treatment: str
    ) -> tuple[Draws, dict[str, Any], dict[str, dict[str, Array]], "xr.DataTree"]:
        """Draws, a row of diagnostics, constants and posterior of one treatment.

        Raises
        ------
        GateFailure
            It has no answer.
        """
        if treatment == "cut":
            posterior, axes, unit, row, tree = self._cut(preset)
            draws = self._draws(posterior, axes, {}, "anchor_", unit)
        else:
            fit, row = self._joint(preset, self.structure)
            if preset == self.study.efficiency.preset and not self.sensitivity:
                self.sensitivity = self._power_scaled(fit.posterior)
            posterior, axes = self._arrays(fit.posterior)
            tree = fit.datatree
            draws = self._draws(posterior, axes, {}, None)
        of = axes["constants"]
        constants = {
            n: dict(zip(of, posterior[n].T, strict=True)) if of else {"all GPUs": posterior[n]}
            for n in FITTED
            if n in posterior
        }
        constants |= {n: dict(zip(axes["terms"], posterior[n].T, strict=True)) for n in self.terms}
        return draws, row, constants, tree

    def with_class_floors(self, draws: Draws, preset: str) -> tuple[Draws, dict[str, Any]]:
        """The draws with floors per (GPU, class), from a joint fit of that structure, and its row of diagnostics.

        Raises
        ------
        GateFailure
            That fit has no answer.
        """
        fit, row = self._joint(preset, self.per_class)
        floors = _class_floors(fit.posterior, self.cells, self.classes)
        count = len(draws.weight)
        return replace(draws, class_floor_ms={pair: thin(v, count) for pair, v in floors.items()}), row

    @property
    def terms(self) -> tuple[str, ...]:
        """Parameters of the floor's terms."""
        return tuple(TERMS[name].parameter for name in self.structure.terms)

    def _host_ms(self, posterior: Mapping[str, Array], gpus: Sequence[str]) -> Array:
        """What floors of cells hold beside the part that a pair shares, ms, [draw, cell]; as the cut has it."""
        cells = self.cells
        code = np.array([gpus.index(g) if g in gpus else -1 for g in cells.gpu])
        none = np.zeros((len(posterior["eta_bw"]), len(cells)))
        of_cells = cells.batch, layers_of(self.work)
        return none + self.structure.host_ms(lambda name: per_sku(posterior[name], code), *of_cells)

    @property
    def per_class(self) -> FloorStructure:
        """The study's structure, with one floor per (GPU, class)."""
        return replace(self.structure, shared_by="gpu, class")

    def _say(self, what: str) -> None:
        """Say what is being fitted."""
        if self.tell is not None:
            self.tell(f"fitting {what}")

    def _key(self, what: str) -> str:
        """All that a fit depends on, for `kept`."""
        columns = (self.cells.batch, self.cells.context, self.cells.step_ms, self.cells.step_sd_ms)
        text = repr([None if c is None else c.tolist() for c in columns] + [self.cells.model.tolist()])
        digest = sha256(f"{text} {self.cells.gpu.tolist()} {self.classes}".encode()).hexdigest()
        return f"{what} {self.structure!r} {self.study.hash} {self.study.anchor} {self.seed} {digest}"

    def _joint(self, preset: str, structure: FloorStructure) -> tuple["Fit", dict[str, Any]]:
        name = f"{variant(preset, 'joint')}, {structure}"
        self._say(name)

        def make() -> "Fit":
            how = roof_options(preset) | {"priors": self.priors}
            model = StepModel(self.cells, self.work, self.classes, structure, **how)
            return fit_gated(compile_model(model), seed=self.seed, progress=not self.quiet)

        fit = kept.fit(self.folder, self._key(f"joint {preset} {structure!r}"), make)
        return fit, fit_row(name, fit)

    def _power_scaled(self, posterior: "xr.Dataset") -> list[dict[str, Any]]:
        cells = self.cells
        assert cells.step_ms is not None
        quantities: dict[str, Array] = {}
        for name in (n for n in CONSTANTS if n in posterior):
            values = posterior[name].to_numpy() if name.startswith("eta_") else np.log(posterior[name].to_numpy())
            label = name if name.startswith("eta_") else f"log {name}"
            per_gpu = posterior[name].dims[2:]
            quantities |= (
                {label: values}
                if not per_gpu
                else {f"{label} of {gpu}": values[..., i] for i, gpu in enumerate(posterior[per_gpu[0]].to_numpy())}
            )
        floors = posterior["floor_ms"].rename({self.shared_by: "model"})
        pairs = zip([self.group[m] for m in cells.model.tolist()], cells.gpu.tolist(), strict=True)
        quantities |= floors_against_anchor(floors, self.group[self.study.anchor], pairs)
        steps = step_distribution(posterior, cells, self.classes, self.structure, work=self.work)
        shape = (posterior.sizes["chain"], posterior.sizes["draw"], len(cells))
        log = steps.log_density(cells.step_ms).reshape(shape)
        return power_scaling(quantities, log_prior(posterior, self.structure, self.priors), log)

    def _cut(
        self, preset: str
    ) -> tuple[dict[str, Array], dict[str, list[str]], NDArray[np.int64], dict[str, Any], "xr.DataTree"]:
        self._say(f"{variant(preset, 'cut')}, {self.structure}")
        of = (self.cells, self.work, self.classes, self.structure, self.study.anchor)
        stages = cut_models(*of, priors=self.priors, **roof_options(preset))
        bar = not self.quiet

        def first() -> "Fit":
            return fit_gated(compile_model(stages.upstream), seed=self.seed, progress=bar)

        def second() -> "CutFit":
            outer = {} if preset == self.study.efficiency.preset else {"outer": BESIDE}
            return cut_of_steps(upstream.posterior, stages, seed=self.seed, progress=bar, **outer)

        upstream = kept.fit(self.folder, self._key(f"upstream {preset}"), first)
        result = kept.cut(self.folder, self._key(f"downstream {preset}"), second)
        posterior, axes = self._arrays(result.posterior)
        row = fit_row(f"{variant(preset, 'cut')}, anchor's cells", upstream)
        row |= {"downstream_fits": result.attempts, "downstream_failed": len(result.failed)}
        unit = result.posterior["upstream"].to_numpy().astype(np.int64)
        return posterior, axes, unit, row, result.datatree

    def _arrays(self, posterior: "xr.Dataset") -> tuple[dict[str, Array], dict[str, list[str]]]:
        """Pooled draws of every variable, and the names along the axes of floors and of constants per GPU."""
        dims = posterior["eta_bw"].dims[2:]
        terms = [posterior[name].dims[2:] for name in self.terms]
        axes = {"gpu": ("gpu",), "group": (self.shared_by,), "constants": dims, "terms": terms[0] if terms else ()}
        names = {axis: posterior[of[0]].to_numpy().tolist() if of else [] for axis, of in axes.items()}
        return {str(n): _pool(posterior[n]) for n in posterior.data_vars}, names

    def _draws(
        self,
        posterior: Mapping[str, Array],
        axes: Mapping[str, Sequence[str]],
        class_floors: Mapping[tuple[str, str], Array],
        anchor_prefix: str | None,
        unit: NDArray[np.int64] | None = None,
    ) -> Draws:
        cells, anchor = self.cells, self.study.anchor
        assert cells.step_ms is not None
        gpus, groups, of = axes["gpu"], axes["group"], axes["constants"]
        constants = {n: posterior[n][None] for n in FITTED if n in posterior}
        efficiency = efficiency_of(constants, np.array([of.index(g) for g in cells.gpu]) if of else None)
        T = work_ms(self.work, efficiency)
        parts, dispatch = parts_of(self.work, efficiency, T)
        group_code = np.array([groups.index(self.group[m]) for m in cells.model])
        gpu_code = np.array([gpus.index(g) for g in cells.gpu])
        floors = posterior["floor_ms"]
        host = self._host_ms(posterior, axes["terms"])
        own = floors[:, gpu_code, group_code] + host
        mean = T + own
        # Under the cut the anchor's cells have the noise of the upstream fit, the others that of the downstream fit.
        others = [m for m in cells.models if anchor_prefix is None or m != anchor]
        noise_of = dict(zip(others, posterior["noise_relative"].T, strict=True))
        absolute_of = dict.fromkeys(others, posterior["noise_ms"])
        if anchor_prefix is not None:
            noise_of[anchor] = posterior[f"{anchor_prefix}noise_relative"][:, 0]
            absolute_of[anchor] = posterior[f"{anchor_prefix}noise_ms"]
        relative = np.stack([noise_of[m] for m in cells.models], -1)[:, cells.model_code]
        absolute = np.stack([absolute_of[m] for m in cells.models], -1)[:, cells.model_code]
        known = 0.0 if cells.step_sd_ms is None else cells.step_sd_ms
        with_anchor = {g for g, m in zip(cells.gpu, cells.model, strict=True) if m == anchor}
        of_anchor = floors[:, gpu_code, groups.index(self.group[anchor])]
        anchor_floor = np.where(np.isin(cells.gpu, list(with_anchor)), of_anchor + host, np.nan)
        is_anchor, noise = cells.model == anchor, (relative, absolute, known)
        calibrated, own_calibrated = FitOfCells(
            posterior=posterior,
            structure=self.structure,
            gpu_code=gpu_code,
            group_code=group_code,
            anchor_group=groups.index(self.group[anchor]),
            is_anchor=is_anchor,
            gpu_ms=T,
            step_ms=cells.step_ms,
            noise=noise,
            cut=anchor_prefix is not None,
            host_ms=host,
        ).floors()
        count = len(T)
        class_floors = {pair: thin(v, count) for pair, v in class_floors.items()}
        found = Draws(
            cells,
            self.label,
            anchor,
            self.classes,
            cells.batch[None],
            cells.context[None],
            cells.step_ms[None],
            T,
            parts,
            dispatch,
            own,
            class_floors,
            anchor_floor,
            np.sqrt(variance_ms2(mean, relative, absolute, known)),
            unit if unit is not None else np.arange(count) * BATCHES // count,
            np.full(count, 1.0 / count),
            calibrated_floor_ms=calibrated,
            own_calibrated_floor_ms=own_calibrated,
            host_ms=host,
        )
        return with_own_noise(found, np.random.default_rng(self.seed))


def _pool(variable: "xr.DataArray", most: int = 2_000) -> Array:
    """All draws of a variable, chains end to end and thinned to at most `most`: (draw, ...)."""
    return thin(np.asarray(variable.transpose("chain", "draw", ...).values, dtype=float), most)


def _class_floors(posterior: "xr.Dataset", cells: Cells, classes: Mapping[str, str]) -> dict[tuple[str, str], Array]:
    measured = dict.fromkeys((g, classes[m]) for g, m in zip(cells.gpu, cells.model, strict=True))
    return {(g, c): _pool(posterior["floor_ms"].sel({"gpu": g, "class": c})) for g, c in measured}


def fit_row(name: str, fit: "Fit") -> dict[str, Any]:
    """A row of diagnostics; `note` says what nuisances miss of the gate."""
    return _row(name, fit.attempts)


def failed_row(name: str, failure: GateFailure) -> dict[str, Any]:
    """The row of a fit that has no answer; `note` says why, numbers are those of the last attempt where known."""
    row = _row(name, failure.attempts) if failure.attempts else dict.fromkeys(_NUMBERS) | {"name": name, "attempts": 0}
    return row | {"passed": False, "note": str(failure)}


_NUMBERS = ("name", "passed", "rhat", "ess_bulk", "ess_tail", "divergences", "ebfmi", "attempts", "note")


def _row(name: str, attempts: Sequence[Attempt]) -> dict[str, Any]:
    last = attempts[-1]
    found = asdict(last.diagnostics)
    facts = {"name": name, "passed": not last.failures, "attempts": len(attempts), "note": "; ".join(last.warnings)}
    return {key: facts[key] if key in facts else found[key] for key in _NUMBERS}
