"""From a study to `Draws`: which models are fitted to which cells, and what is kept of them.

An imputed study: the Bayesian model is fitted to every imputed grid with that grid's own T_gpu ("study" constants),
and the posteriors are mixed by weight. They are cached beside the grids; a report recomputes some as a check. A
measured study: constants joint (all cells) and cut (anchor's cells alone), under the roof's plain structure and with
the query-head limb.
"""

import hashlib
import io
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rooffloor.models.floor.structures import FloorStructure
from rooffloor.models.roof.kernels import GROUPS, KERNELS, Work, stack_work
from rooffloor.models.roof.roofline import Efficiency, combine, work_ms
from rooffloor.models.specs.cells import Cells
from rooffloor.validate.common.errors import GateError, InputError
from rooffloor.validate.common.files import write_bytes
from rooffloor.validate.estimates.cell_draws import IMPUTED, Draws, with_own_noise
from rooffloor.validate.published.imputation.inversion import PER_MODEL
from rooffloor.validate.published.imputation.reconstruction import Reconstruction
from rooffloor.validate.published.imputation.reconstruction import load as load_reconstruction

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

    from rooffloor.models.inference.sampling import Compiled, Fit, SmallFit
    from rooffloor.validate.comparison.comparison import Comparison
    from rooffloor.validate.measurements.load import Measurements
    from rooffloor.validate.study.study import Study

type Array = NDArray[np.float64]

CACHE = "imputed_posteriors.npz"
PER_CLASS = FloorStructure("gpu, class")
KEEP = 40
"""Draws kept of each imputation's posterior."""
RECOMPUTED = 20
"""Imputations that a report refits as a check of the cache."""
POWER_SCALED = 8
"""Of them, those whose prior and likelihood are power-scaled."""
MAX_FAILED = 0.02
"""Share of imputations whose fit may fail its gate; they are listed and left out."""
FIT: dict[str, Any] = {"draws": 1200, "tune": 600, "chains": 4}
BATCHES = 50
"""Consecutive batches of a measured posterior that serve as units of the Monte Carlo error."""


@dataclass(frozen=True, eq=False)
class Evidence:
    """Everything that a report is made from.

    Attributes
    ----------
    study : Study
    draws : Draws
        Of the primary treatment.
    variants : mapping of name to Draws
        Other treatments of the same data.
    without_flagged : Draws or None
        The primary treatment without flagged (model, GPU) grids, where there are any: refitted where they could have
        moved the constants or the anchor's floors.
    measurements : Measurements or None
    reconstruction : Reconstruction or None
    fits : list of dict
        One row of diagnostics per fit, or one for all imputations.
    constants : mapping of variant name ("primary" too) to {constant: {gpu or "all GPUs": draws}}
    recomputed : dict or None
        How refitted imputations compare with their cached posteriors.
    datatree : xarray.DataTree
        What posterior.nc holds.
    structure, treatment : str
        Of the primary treatment, in words.
    comparison : Comparison or None
        Floor structures side by side on measured cells, where they were compared.
    sensitivity : list of dict
        Power-scaling of prior and likelihood for the floors and constants behind the hypotheses.
    """

    study: "Study"
    draws: Draws
    variants: Mapping[str, Draws]
    without_flagged: Draws | None
    measurements: "Measurements | None"
    reconstruction: Reconstruction | None
    fits: Sequence[dict[str, Any]]
    constants: Mapping[str, Mapping[str, Mapping[str, Array]]]
    recomputed: dict[str, Any] | None
    datatree: "xr.DataTree"
    structure: str
    treatment: str
    warnings: Sequence[str] = field(default_factory=tuple)
    comparison: "Comparison | None" = None
    sensitivity: Sequence[dict[str, Any]] = ()


def gather(
    study: "Study",
    *,
    seed: int | None = None,
    refit: bool = False,
    quiet: bool = True,
    primary_only: bool = False,
    full: bool = False,
    jobs: int | None = None,
    dask: str | None = None,
    keep: Path | None = None,
) -> Evidence:
    """Fit (or read from the cache) what a study needs.

    Parameters
    ----------
    refit : bool
        Fit every imputation anew instead of reading cached posteriors.
    primary_only : bool
        Leave the side-by-side treatments, the check of the cache and the comparison of floor structures out.
    full : bool
        Measured cells: refit without each model, GPU and pair in that comparison.
    jobs, dask
        Where that comparison's fits run (`runner.run`); `jobs` also says how many imputations are fitted at
        a time (default: 2).
    keep : path, optional
        Folder for the finished fits of that comparison: an interrupted run resumes.

    Raises
    ------
    GateError
        A fit failed its gate, or too many imputations did.
    InputError
        The study's data cannot be used.
    """
    from rooffloor.models.inference.gate import GateFailure

    seed = study.seed if seed is None else seed
    try:
        if study.data.format == "published":
            return _imputed(study, seed, refit, quiet, primary_only, jobs or 2)
        evidence = _measured(study, seed, quiet, primary_only)
        if primary_only:
            return evidence
        _tell(quiet, "floor structures" + (" and refits without each model, GPU and pair" if full else ""))
        given = {"jobs": jobs, "dask": dask, "folder": keep, "quiet": quiet}
        return replace(evidence, comparison=_compared(study, evidence, seed, full, **given))
    except GateFailure as error:
        raise GateError(str(error)) from error


def _compared(study: "Study", evidence: Evidence, seed: int, full: bool, **given: Any) -> "Comparison":
    from rooffloor.validate.comparison.comparison import compare_floors

    return compare_floors(study, evidence.measurements, seed=seed, refits=full, **given)


def _tell(quiet: bool, what: str) -> None:
    """Say on the terminal what is being fitted."""
    if not quiet:
        print(f"rooffloor: fitting {what}", file=sys.stderr)


def parts_of(work: Work, efficiency: Efficiency, gpu_ms: Array) -> tuple[dict[str, Array], Array]:
    """T_gpu by what the kernels read, and the dispatch term, each (draw, cell), ms.

    Launch latencies count among the others; where T_gpu strays from the roof (free T per cell), its parts do alike.
    """
    kernels = combine(work, replace(efficiency, latency_ms=0.0))
    stray = gpu_ms / work_ms(work, efficiency)

    def share(names: Sequence[str]) -> Array:
        return np.asarray(kernels[..., [KERNELS.index(k) for k in names]].sum(-1) * stray)

    parts = {"weights": share(GROUPS["weights"]), "kv": share(GROUPS["kv"])}
    dispatch = np.where(work.flops[..., KERNELS.index("router")] > 0, share(("router", "dispatch")), 0.0)
    return parts | {"other": gpu_ms - parts["weights"] - parts["kv"]}, dispatch


# ---- imputed studies ------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Imputed:
    """The imputed grids as arrays: y, T and constants (imputation, cell); labels and weights (imputation,)."""

    cells: Cells
    y: Array
    T: Array
    batch: Array
    context: Array
    constants: dict[str, Array]
    weight: Array
    roof: NDArray[np.str_]

    @classmethod
    def of(cls, frame: "pd.DataFrame") -> "_Imputed":
        count = frame["imputation"].nunique()
        first = frame[frame["imputation"] == frame["imputation"].iloc[0]]
        cells = Cells.from_columns(
            list(first["model"]), list(first["gpu"]), first["batch"], first["context"], first["step_ms"]
        )

        def column(name: str) -> Array:
            return frame[name].to_numpy(dtype=float).reshape(count, len(cells))

        heads = frame.drop_duplicates("imputation")
        names = ("eta_bw", "eta_fa", "l_half", "latency_ms")
        return cls(
            cells,
            column("step_ms"),
            column("gpu_ms"),
            column("batch"),
            column("context"),
            {n: column(n) for n in names},
            heads["weight"].to_numpy(dtype=float),
            heads["roof"].to_numpy(dtype=str),
        )


def _imputed(study: "Study", seed: int, refit: bool, quiet: bool, primary_only: bool, jobs: int) -> Evidence:
    folder = study.data.path.parent
    result = load_reconstruction(folder)
    grids = _Imputed.of(result.cells)
    classes = {m: study.class_of(m) for m in grids.cells.models}
    key = _cache_key(folder, classes)
    stored = None if refit else _read_cache(folder / CACHE, key)
    notes = []
    compiled = None
    if stored is None:
        if not refit:
            notes.append("No cached posteriors match the imputed grids: every imputation was fitted anew.")
        compiled = _compile(grids, classes, PER_MODEL)
        stored = _fit_all(compiled, grids, quiet, jobs)
    failed = np.flatnonzero(~stored["passed"])
    if len(failed) > MAX_FAILED * len(grids.weight):
        raise GateError(f"{len(failed)} of {len(grids.weight)} fits to imputed grids failed their gate")
    recomputed, scaled = None, []
    if not primary_only and compiled is None:
        compiled = _compile(grids, classes, PER_MODEL)
        which, fits = _refitted(compiled, grids, seed, quiet, jobs)
        recomputed = _compared_with_cache(which, fits, stored)
        scaled = _power_scaled(compiled, grids, classes, study.anchor, which, fits)
    good = np.flatnonzero(stored["passed"])
    main = good[grids.weight[good] > 0]
    draws = _imputed_draws(study, grids, classes, stored, main)
    sensitivity = good[grids.weight[good] == 0]
    variants = {}
    if len(sensitivity) and not primary_only:
        name = f"sensitivity: {grids.roof[sensitivity[0]]}"
        variants[name] = _imputed_draws(study, grids, classes, stored, sensitivity)
    gpus = grids.cells.gpus
    constants = {
        "primary": {
            name: {g: np.repeat(values[main][:, np.flatnonzero(grids.cells.gpu == g)[0]], KEEP) for g in gpus}
            for name, values in grids.constants.items()
        }
    }
    row = {
        "name": f"{len(grids.weight)} imputed grids, floor per (GPU, model)",
        "passed": not len(failed),
        "failed": failed.tolist(),
        "rhat": float(stored["rhat"][good].max()),
        "ess_bulk": float(stored["ess"][good].min()),
        "ess_tail": float(stored["ess"][good].min()),
        "divergences": int(stored["divergences"][good].sum()),
        "ebfmi": float(stored["ebfmi"][good].min()),
        "attempts": int(stored["attempts"].max()),
    }
    return Evidence(
        study,
        draws,
        variants,
        None,
        None,
        result,
        [row],
        constants,
        recomputed,
        _imputed_tree(draws),
        "three constants and a launch latency per GPU; floors per (GPU, model), added, signed",
        "the study's own, latent in each imputation",
        tuple(notes),
        sensitivity=scaled,
    )


def _cache_key(folder: Path, classes: Mapping[str, str]) -> str:
    from rooffloor.models.inference.priors import DEFAULT_PRIORS, OF_POSITIVE_FLOORS
    from rooffloor.validate.published.imputation.reconstruction import TABLE

    content = (folder / TABLE).read_bytes()
    priors = {name: value for name, value in asdict(DEFAULT_PRIORS).items() if name not in OF_POSITIVE_FLOORS}
    settings = repr((sorted(classes.items()), sorted(priors.items()), FIT, KEEP))
    return hashlib.sha256(content + settings.encode()).hexdigest()


def _read_cache(path: Path, key: str) -> dict[str, Any] | None:
    if not path.exists():
        return None
    with np.load(path, allow_pickle=False) as stored:
        if str(stored["key"]) != key:
            return None
        return {name: stored[name] for name in stored.files}


def build_cache(study: "Study", folder: Path | None = None, *, quiet: bool = True) -> Path:
    """Fit every imputed grid of a published study and store the posteriors beside the grids.

    Parameters
    ----------
    folder : Path, optional
        Where the grids lie (`reconstruction.save`); default: beside the study's data.

    Returns
    -------
    Path
        The file of thinned draws, .npz.
    """
    folder = folder or study.data.path.parent
    grids = _Imputed.of(load_reconstruction(folder).cells)
    classes = {m: study.class_of(m) for m in grids.cells.models}
    stored = _fit_all(_compile(grids, classes, PER_MODEL), grids, quiet)
    buffer = io.BytesIO()
    np.savez_compressed(buffer, key=np.array(_cache_key(folder, classes)), **stored)
    return write_bytes(folder / CACHE, buffer.getvalue())


def _compile(grids: _Imputed, classes: Mapping[str, str], structure: FloorStructure) -> "Compiled":
    from rooffloor.models.inference.sampling import compile_model
    from rooffloor.models.inference.step_model import build_model

    return compile_model(build_model(grids.cells, None, classes, structure, "fixed", gpu_ms=grids.T[0]))


def _fit_some(
    compiled: "Compiled",
    grids: _Imputed,
    which: Sequence[int],
    first_seed: int,
    quiet: bool,
    jobs: int,
    keep: int = KEEP,
) -> "list[SmallFit]":
    from rooffloor.models.inference.sampling import fit_many

    data = [{"measured_ms": grids.y[i], "gpu_ms": grids.T[i]} for i in which]
    seeds = [first_seed + int(i) for i in which]
    return fit_many(compiled, data, seeds, keep=keep, jobs=jobs, progress=not quiet, **FIT)


def _fit_all(compiled: "Compiled", grids: _Imputed, quiet: bool, jobs: int = 2) -> dict[str, Any]:
    fits = _fit_some(compiled, grids, range(len(grids.weight)), 1_000, quiet, jobs)

    def stack(name: str) -> NDArray[np.float32]:
        return np.stack([f.draws[name] for f in fits]).astype(np.float32)

    last = [f.attempts[-1].diagnostics for f in fits]
    return {
        "gpus": np.array(compiled.coords["gpu"], dtype=str),
        "models": np.array(compiled.coords["model"], dtype=str),
        "floor_model": stack("floor_ms"),
        "noise_relative": stack("noise_relative"),
        "noise_ms": stack("noise_ms"),
        "passed": np.array([f.passed for f in fits]),
        "rhat": np.array([d.rhat for d in last]),
        "ess": np.array([min(d.ess_bulk, d.ess_tail) for d in last]),
        "divergences": np.array([d.divergences for d in last]),
        "ebfmi": np.array([d.ebfmi for d in last]),
        "attempts": np.array([len(f.attempts) for f in fits]),
    }


def _refitted(
    compiled: "Compiled", grids: _Imputed, seed: int, quiet: bool, jobs: int
) -> tuple[NDArray[np.int64], "list[SmallFit]"]:
    """Some imputations, at random, and fresh fits of them."""
    rng = np.random.default_rng(seed)
    which = np.sort(rng.choice(len(grids.weight), size=min(RECOMPUTED, len(grids.weight)), replace=False))
    first_seed = 1_000_000 + 1_000 * (seed % 1_000_000)
    return which, _fit_some(compiled, grids, which.tolist(), first_seed, quiet, jobs, keep=25 * KEEP)


def _compared_with_cache(
    which: NDArray[np.int64], fits: "Sequence[SmallFit]", stored: Mapping[str, Any]
) -> dict[str, Any]:
    """Posterior means of all floors of fresh fits against the cached ones, in MCSE."""
    fresh = np.stack([f.draws["floor_ms"][::25] for f in fits])
    cached = stored["floor_model"][which].astype(float)
    error = np.sqrt((fresh.var(1) + cached.var(1)) / KEEP)
    z = np.abs(fresh.mean(1) - cached.mean(1)) / np.maximum(error, 1e-9)
    return {
        "imputations": which.tolist(),
        "passed": bool(all(f.passed for f in fits)),
        "floors_compared": int(z.size),
        "share_within_2_mcse": float((z <= 2).mean()),
        "largest_z": float(z.max()),
    }


def _power_scaled(
    compiled: "Compiled",
    grids: _Imputed,
    classes: Mapping[str, str],
    anchor: str,
    which: NDArray[np.int64],
    fits: "Sequence[SmallFit]",
) -> list[dict[str, Any]]:
    """Sensitivity of the floors to prior and likelihood given T_gpu, averaged over some imputations."""
    import xarray as xr

    from rooffloor.models.inference.prior_density import log_prior
    from rooffloor.models.inference.step_distribution import step_distribution
    from rooffloor.validate.estimates.prior_sensitivity import averaged, floors_against_anchor, power_scaling

    coords = {dim: compiled.coords[dim] for dim in ("gpu", "model", "noisy_model")}
    pairs = list(zip(grids.cells.model.tolist(), grids.cells.gpu.tolist(), strict=True))
    tables = []
    for i, fit in list(zip(which.tolist(), fits, strict=True))[:POWER_SCALED]:
        variables = {n: (("chain", "draw", *compiled.dims.get(n, ())), v[None]) for n, v in fit.draws.items()}
        posterior = xr.Dataset(variables, coords=coords)
        rng = np.random.default_rng(i)
        steps = step_distribution(posterior, grids.cells, classes, PER_MODEL, rng, gpu_ms=grids.T[i])
        tables.append(
            power_scaling(
                floors_against_anchor(posterior["floor_ms"], anchor, pairs),
                log_prior(posterior, PER_MODEL),
                steps.log_density(grids.y[i])[None],
            )
        )
    return averaged(tables)


def _imputed_draws(
    study: "Study", grids: _Imputed, classes: Mapping[str, str], stored: Mapping[str, Any], which: NDArray[np.int64]
) -> Draws:
    cells, keep = grids.cells, stored["floor_model"].shape[1]
    experts = study.efficiency.experts
    parts_list: list[dict[str, Array]] = []
    dispatch_list: list[Array] = []
    works: dict[tuple[float, ...], Work] = {}
    for i in which:  # two grids of axes at most: their work is counted once
        axes = tuple(grids.context[i, :15])
        if axes not in works:
            moved = replace(cells, batch=grids.batch[i], context=grids.context[i])
            works[axes] = stack_work(moved, experts=experts)
        own: dict[str, Any] = {n: v[[i]] for n, v in grids.constants.items()}
        efficiency = Efficiency(**own)
        parts, dispatch = parts_of(works[axes], efficiency, grids.T[[i]])
        parts_list.append(parts)
        dispatch_list.append(dispatch)

    def spread(values: Array) -> Array:
        return np.repeat(values, keep, axis=0)

    def flat(values: Array) -> Array:
        return values.reshape(-1, *values.shape[2:]).astype(float)

    models, gpus = stored["models"].tolist(), stored["gpus"].tolist()
    model_code = np.array([models.index(m) for m in cells.model])
    gpu_code = np.array([gpus.index(g) for g in cells.gpu])
    floors = flat(stored["floor_model"][which])
    anchor = models.index(study.anchor)
    T = spread(grids.T[which])
    own_floor = floors[:, gpu_code, model_code]
    relative = flat(stored["noise_relative"][which])[:, [cells.models.index(m) for m in cells.model]]
    noise = np.sqrt(flat(stored["noise_ms"][which])[:, None] ** 2 + (relative * (T + own_floor)) ** 2)
    weight = np.repeat(grids.weight[which] / keep, keep)
    if not weight.sum():
        weight = np.full(len(weight), 1.0)
    members: dict[tuple[str, str], set[int]] = {}
    for g, m in zip(cells.gpu.tolist(), cells.model.tolist(), strict=True):
        members.setdefault((g, classes[m]), set()).add(models.index(m))
    by_class = {(g, c): floors[:, gpus.index(g), sorted(own)].mean(-1) for (g, c), own in members.items()}
    draws = Draws(
        cells,
        IMPUTED,
        study.anchor,
        classes,
        spread(grids.batch[which]),
        spread(grids.context[which]),
        spread(grids.y[which]),
        T,
        {k: spread(np.concatenate([p[k] for p in parts_list])) for k in parts_list[0]},
        spread(np.concatenate(dispatch_list)),
        own_floor,
        by_class,
        floors[:, gpu_code, anchor],
        noise,
        np.repeat(which, keep),
        weight / weight.sum(),
    )
    return with_own_noise(draws, np.random.default_rng(len(which)))


def _imputed_tree(draws: Draws) -> "xr.DataTree":
    """posterior.nc of an imputed study: floors of the mixture, resampled to equal weights."""
    import xarray as xr

    count = 4_000
    position = (np.arange(count) + 0.5) / count
    rows = np.searchsorted(np.cumsum(draws.weight), position).clip(0, len(draws.weight) - 1)
    pairs = [(m, g, np.flatnonzero(mask)[0]) for m, g, mask in draws.pairs()]
    names = [f"{g} | {m}" for m, g, _ in pairs]
    at = [cell for _, _, cell in pairs]
    classes = list(draws.class_floor_ms)
    posterior = xr.Dataset(
        {
            "floor_ms": (("chain", "draw", "pair"), draws.floor_ms[rows][:, at][None]),
            "class_floor_ms": (
                ("chain", "draw", "class_pair"),
                np.stack([draws.class_floor_ms[c][rows] for c in classes], -1)[None],
            ),
            "mean_gpu_ms": (
                ("chain", "draw", "pair"),
                np.stack([draws.gpu_ms[rows][:, mask].mean(-1) for _, _, mask in draws.pairs()], -1)[None],
            ),
        },
        coords={
            "chain": [0],
            "draw": np.arange(count),
            "pair": names,
            "class_pair": [f"{g} | {c}" for g, c in classes],
            "imputation": ("draw", draws.unit[rows]),
        },
        attrs={"label": draws.label},
    )
    return xr.DataTree.from_dict({"posterior": posterior})


# ---- measured studies -----------------------------------------------------------------------------------------


def _measured(study: "Study", seed: int, quiet: bool, primary_only: bool) -> Evidence:
    measurements = study.measurements()
    cells = measurements.cells()
    if study.anchor not in cells.models:
        raise InputError(
            f"{study.data.path.name}: the anchor {study.anchor!r} has no usable cells; "
            f"models there: {', '.join(cells.models)}"
        )
    fitted = _Measured(study, measurements, seed, quiet)
    query = study.efficiency.preset == "query heads"
    treatment = "cut" if study.efficiency.treatment == "study" else study.efficiency.treatment
    treatments = ("cut", "joint") if len(cells.models) > 1 else ("joint",)
    treatment = treatment if treatment in treatments else "joint"
    fits: list[dict[str, Any]] = []
    constants: dict[str, Mapping[str, Mapping[str, Array]]] = {}
    name = _variant(query, treatment)
    draws, found, constants["primary"], tree = fitted.fit(query, treatment, with_classes=True)
    fits += found
    variants = {}
    if not primary_only:
        for other_query in (query, not query):
            for other in treatments:
                if (other_query, other) != (query, treatment):
                    label = _variant(other_query, other)
                    variants[label], found, constants[label], _ = fitted.fit(other_query, other)
                    fits += found
    tree.attrs["label"] = draws.label
    kept = None
    flagged = set(measurements.flagged_grids)
    if flagged and not primary_only:
        if treatment == "cut" and not any(model == study.anchor for model, _ in flagged):
            # Constants and anchor floors come from the anchor's cells, which all stay; all that a refit could move is
            # how far other floors are drawn together.
            pairs = zip(cells.model.tolist(), cells.gpu.tolist(), strict=True)
            kept = draws.where(np.array([pair not in flagged for pair in pairs]))
        else:
            kept, found, _, _ = _Measured(study, measurements.without_flagged(), seed, quiet).fit(query, treatment)
            fits += [row | {"name": f"{row['name']}, without flagged grids"} for row in found]
    return Evidence(
        study,
        draws,
        variants,
        kept,
        measurements,
        None,
        fits,
        constants,
        None,
        tree,
        name.split(",")[0],
        "cut: constants from the anchor's cells alone" if treatment == "cut" else "joint: constants from all cells",
        tuple(str(w) for w in measurements.provenance.get("warnings", ())),
        sensitivity=fitted.sensitivity,
    )


def _label(measurements: "Measurements") -> str:
    """Where the cells come from, in the words of plots and tables."""
    return measurements.label.replace("derived", "derived from end-to-end measurements")


def _variant(query: bool, treatment: str) -> str:
    return f"{'query-head limb' if query else 'plain roof'}, {treatment}"


class _Measured:
    """Fits of one measured data set."""

    def __init__(self, study: "Study", measurements: "Measurements", seed: int, quiet: bool):
        self.study, self.seed, self.quiet = study, seed, quiet
        self._downstream: Compiled | None = None
        self.sensitivity: list[dict[str, Any]] = []
        """Of the joint treatment under the roof that was fitted first."""
        self.cells, self.label = measurements.cells(), _label(measurements)
        self.classes = {m: study.class_of(m) for m in self.cells.models}
        self.work = stack_work(self.cells, measurements.shapes, measurements.gpus, experts=study.efficiency.experts)

    def fit(
        self, query: bool, treatment: str, *, with_classes: bool = False
    ) -> tuple[Draws, list[dict[str, Any]], dict[str, dict[str, Array]], "xr.DataTree"]:
        """Draws, diagnostics, constants and posterior of one treatment.

        `with_classes` adds floors per (GPU, class), from a joint fit of that structure.
        """
        class_floors: dict[tuple[str, str], Array] = {}
        rows: list[dict[str, Any]] = []
        if with_classes:
            per_class, row = self._joint(query, PER_CLASS)
            class_floors = _class_floors(per_class.posterior, self.cells, self.classes)
            rows.append(row)
        if treatment == "cut":
            posterior, gpus, models, unit, row, tree = self._cut(query)
            draws = self._draws(posterior, gpus, models, class_floors, "anchor_", unit)
        else:
            fit, row = self._joint(query, PER_MODEL)
            self.sensitivity = self.sensitivity or self._power_scaled(fit.posterior)
            posterior, gpus, models = _arrays(fit.posterior)
            tree = fit.datatree
            draws = self._draws(posterior, gpus, models, class_floors, None)
        return draws, [row, *rows], self._constants(posterior), tree

    def _joint(self, query: bool, structure: FloorStructure) -> tuple["Fit", dict[str, Any]]:
        from rooffloor.models.inference.sampling import compile_model, fit_gated
        from rooffloor.models.inference.step_model import build_model

        _tell(self.quiet, f"{_variant(query, 'joint')}, {structure}")
        model = build_model(self.cells, self.work, self.classes, structure, "free", query_heads=query)
        fit = fit_gated(compile_model(model), seed=self.seed, progress=not self.quiet)
        return fit, _fit_row(f"{_variant(query, 'joint')}, {structure}", fit)

    def _power_scaled(self, posterior: "xr.Dataset") -> list[dict[str, Any]]:
        from rooffloor.models.inference.prior_density import log_prior
        from rooffloor.models.inference.step_distribution import step_distribution
        from rooffloor.models.roof.roofline import CONSTANTS
        from rooffloor.validate.estimates.prior_sensitivity import floors_against_anchor, power_scaling

        cells = self.cells
        assert cells.step_ms is not None
        quantities = {
            name if name.startswith("eta_") else f"log {name}": values if name.startswith("eta_") else np.log(values)
            for name, values in ((n, posterior[n].to_numpy()) for n in CONSTANTS if n in posterior)
        }
        pairs = zip(cells.model.tolist(), cells.gpu.tolist(), strict=True)
        quantities |= floors_against_anchor(posterior["floor_ms"], self.study.anchor, pairs)
        rng = np.random.default_rng(self.seed)
        steps = step_distribution(posterior, cells, self.classes, PER_MODEL, rng, work=self.work)
        shape = (posterior.sizes["chain"], posterior.sizes["draw"], len(cells))
        log = steps.log_density(cells.step_ms).reshape(shape)
        return power_scaling(quantities, log_prior(posterior, PER_MODEL), log)

    def _cut(
        self, query: bool
    ) -> tuple[dict[str, Array], list[str], list[str], NDArray[np.int64], dict[str, Any], "xr.DataTree"]:
        from rooffloor.models.inference.cut import cut
        from rooffloor.models.inference.cut_model import cut_models
        from rooffloor.models.inference.sampling import compile_model, fit_gated

        _tell(self.quiet, f"{_variant(query, 'cut')}, {PER_MODEL}")
        stages = cut_models(self.cells, self.work, self.classes, PER_MODEL, self.study.anchor, query_heads=query)
        upstream = fit_gated(compile_model(stages.upstream), seed=self.seed, progress=not self.quiet)
        if self._downstream is None:  # given the constants as data, the same model for every roof
            self._downstream = compile_model(stages.downstream)
        result = cut(upstream.posterior, self._downstream, stages.data_of, seed=self.seed, progress=not self.quiet)
        posterior, gpus, models = _arrays(result.posterior)
        row = _fit_row(f"{_variant(query, 'cut')}, anchor's cells", upstream)
        row |= {"downstream_fits": result.attempts, "downstream_failed": len(result.failed)}
        unit = result.posterior["upstream"].to_numpy().astype(np.int64)
        return posterior, gpus, models, unit, row, result.datatree

    def _draws(
        self,
        posterior: Mapping[str, Array],
        gpus: Sequence[str],
        models: Sequence[str],
        class_floors: Mapping[tuple[str, str], Array],
        anchor_prefix: str | None,
        unit: NDArray[np.int64] | None = None,
    ) -> Draws:
        from rooffloor.models.inference.sampling import thin
        from rooffloor.models.inference.step_distribution import efficiency_of

        cells, anchor = self.cells, self.study.anchor
        assert cells.step_ms is not None
        efficiency = efficiency_of(posterior)
        T = work_ms(self.work, efficiency)
        parts, dispatch = parts_of(self.work, efficiency, T)
        model_code = np.array([models.index(m) for m in cells.model])
        gpu_code = np.array([gpus.index(g) for g in cells.gpu])
        floors = posterior["floor_ms"]
        own = floors[:, gpu_code, model_code]
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
        noise = np.sqrt(absolute**2 + (relative * mean) ** 2)
        if cells.step_sd_ms is not None:
            noise = np.sqrt(noise**2 + cells.step_sd_ms**2)
        with_anchor = {g for g, m in zip(cells.gpu, cells.model, strict=True) if m == anchor}
        anchor_floor = np.where(
            np.isin(cells.gpu, list(with_anchor)), floors[:, gpu_code, models.index(anchor)], np.nan
        )
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
            noise,
            unit if unit is not None else np.arange(count) * BATCHES // count,
            np.full(count, 1.0 / count),
        )
        return with_own_noise(found, np.random.default_rng(self.seed))

    def _constants(self, posterior: Mapping[str, Array]) -> dict[str, dict[str, Array]]:
        names = ("eta_bw", "eta_fa", "eta_tc", "l_half", "rho_q")
        return {n: {"all GPUs": posterior[n]} for n in names if n in posterior}


def _arrays(posterior: "xr.Dataset") -> tuple[dict[str, Array], list[str], list[str]]:
    """Pooled draws of every variable, and the names along the floors' two axes."""
    gpus, models = (posterior[d].to_numpy().tolist() for d in ("gpu", "model"))
    return {str(n): _pool(posterior[n]) for n in posterior.data_vars}, gpus, models


def _pool(variable: "xr.DataArray", most: int = 2_000) -> Array:
    """All draws of a variable, chains end to end and thinned to at most `most`: (draw, ...)."""
    from rooffloor.models.inference.sampling import thin

    return thin(np.asarray(variable.transpose("chain", "draw", ...).values, dtype=float), most)


def _class_floors(posterior: "xr.Dataset", cells: Cells, classes: Mapping[str, str]) -> dict[tuple[str, str], Array]:
    measured = dict.fromkeys((g, classes[m]) for g, m in zip(cells.gpu, cells.model, strict=True))
    return {(g, c): _pool(posterior["floor_ms"].sel({"gpu": g, "class": c})) for g, c in measured}


def _fit_row(name: str, fit: "Fit") -> dict[str, Any]:
    found = fit.diagnostics
    return {
        "name": name,
        "passed": fit.passed,
        "rhat": found.rhat,
        "ess_bulk": found.ess_bulk,
        "ess_tail": found.ess_tail,
        "divergences": found.divergences,
        "ebfmi": found.ebfmi,
        "attempts": len(fit.attempts),
    }
