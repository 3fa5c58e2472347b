"""Fits to the imputed grids of a published study, cached beside the grids.

The Bayesian model is fitted to every grid with that grid's own T_gpu, and the posteriors are mixed by weight; a report
refits some as a check of the cache.
"""

import hashlib
import io
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rooffloor.models.floor.structures import PER_MODEL
from rooffloor.models.inference.noise import variance_ms2
from rooffloor.models.inference.priors import DEFAULT_PRIORS, OF_OTHER_FLOORS
from rooffloor.models.inference.step_distribution import step_distribution
from rooffloor.models.inference.steps import StepModel
from rooffloor.models.roof.kernels import Work, stack_work
from rooffloor.models.roof.roofline import Efficiency
from rooffloor.models.specs.cells import Cells
from rooffloor.validate.common.files import write_bytes
from rooffloor.validate.estimates.cell_draws import IMPUTED, Draws, with_own_noise
from rooffloor.validate.fitting.parts import parts_of
from rooffloor.validate.published.imputation.reconstruction import TABLE
from rooffloor.validate.published.imputation.reconstruction import load as load_reconstruction

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

    from rooffloor.models.inference.sampling import Compiled, SmallFit
    from rooffloor.validate.study.study import Study

type Array = NDArray[np.float64]

CACHE = "imputed_posteriors.npz"
KEEP = 40
"""Draws kept of each imputation's posterior."""
RECOMPUTED = 20
"""Imputations that a report refits as a check of the cache."""
POWER_SCALED = 8
"""Of them, those whose prior and likelihood are power-scaled."""
FIT: dict[str, Any] = {"draws": 1200, "tune": 600, "chains": 4}


@dataclass(frozen=True, eq=False)
class Imputed:
    """The imputed grids as arrays (imputation, cell), with their weights, and roofs with their priors of leftovers."""

    study: "Study"
    cells: Cells
    y: Array
    T: Array
    batch: Array
    context: Array
    constants: dict[str, Array]
    weight: Array
    roof: NDArray[np.str_]

    @classmethod
    def of(cls, study: "Study", frame: "pd.DataFrame") -> "Imputed":
        """The grids of a reconstruction (`Reconstruction.cells`)."""
        heads = frame.drop_duplicates("imputation")
        first = frame[frame["imputation"] == frame["imputation"].iloc[0]]
        cells = Cells.from_columns(
            list(first["model"]), list(first["gpu"]), first["batch"], first["context"], first["step_ms"]
        )

        def column(name: str) -> Array:
            return frame[name].to_numpy(dtype=float).reshape(len(heads), len(cells))

        return cls(
            study,
            cells,
            column("step_ms"),
            column("gpu_ms"),
            column("batch"),
            column("context"),
            {name: column(name) for name in ("eta_bw", "eta_fa", "l_half", "latency_ms")},
            heads["weight"].to_numpy(dtype=float),
            (heads["roof"] + ", " + heads["discrepancy"]).to_numpy(dtype=str),
        )

    @property
    def classes(self) -> dict[str, str]:
        """Class of each model."""
        return {m: self.study.class_of(m) for m in self.cells.models}

    @cached_property
    def compiled(self) -> "Compiled":
        """The model of one grid, for any grid."""
        from rooffloor.models.inference.sampling import compile_model

        return compile_model(StepModel(self.cells, None, self.classes, PER_MODEL, "fixed", gpu_ms=self.T[0]))

    def fits(
        self, which: Sequence[int], first_seed: int, *, quiet: bool, jobs: int, keep: int = KEEP
    ) -> "list[SmallFit]":
        """Posteriors of some imputations."""
        from rooffloor.models.inference.sampling import fit_many

        data = [{"measured_ms": self.y[i], "gpu_ms": self.T[i]} for i in which]
        seeds = [first_seed + int(i) for i in which]
        return fit_many(self.compiled, data, seeds, keep=keep, jobs=jobs, progress=not quiet, **FIT)

    def fit_all(self, *, quiet: bool, jobs: int = 2) -> dict[str, Any]:
        """Posteriors of all imputations, as the cache holds them: arrays whose first axis is the imputation."""
        fits = self.fits(range(len(self.weight)), 1_000, quiet=quiet, jobs=jobs)

        def stack(name: str) -> NDArray[np.float32]:
            return np.stack([f.draws[name] for f in fits]).astype(np.float32)

        last = [f.attempts[-1].diagnostics for f in fits]
        return {
            "gpus": np.array(self.compiled.coords["gpu"], dtype=str),
            "models": np.array(self.compiled.coords["model"], dtype=str),
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

    def draws(self, stored: Mapping[str, Any], which: NDArray[np.int64]) -> Draws:
        """The mixture of the stored posteriors of some imputations."""
        cells, keep, classes = self.cells, stored["floor_model"].shape[1], self.classes
        parts_list: list[dict[str, Array]] = []
        dispatch_list: list[Array] = []
        works: dict[tuple[float, ...], Work] = {}
        for i in which:  # two grids of axes at most: their work is counted once
            axes = tuple(self.context[i, :15])
            if axes not in works:
                moved = replace(cells, batch=self.batch[i], context=self.context[i])
                works[axes] = stack_work(moved, experts=self.study.efficiency.experts)
            own: dict[str, Any] = {n: v[[i]] for n, v in self.constants.items()}
            parts, dispatch = parts_of(works[axes], Efficiency(**own), self.T[[i]])
            parts_list.append(parts)
            dispatch_list.append(dispatch)

        def spread(values: Array) -> Array:
            return np.repeat(values, keep, axis=0)

        def flat(name: str) -> Array:
            values = stored[name][which]
            return values.reshape(-1, *values.shape[2:]).astype(float)

        models, gpus = stored["models"].tolist(), stored["gpus"].tolist()
        model_code = np.array([models.index(m) for m in cells.model])
        gpu_code = np.array([gpus.index(g) for g in cells.gpu])
        floors, T = flat("floor_model"), spread(self.T[which])
        own_floor = floors[:, gpu_code, model_code]
        variance = variance_ms2(T + own_floor, flat("noise_relative")[:, cells.model_code], flat("noise_ms")[:, None])
        weight = np.repeat(self.weight[which] / keep, keep)
        if not weight.sum():
            weight = np.full(len(weight), 1.0)
        members: dict[tuple[str, str], set[int]] = {}
        for g, m in zip(cells.gpu.tolist(), cells.model.tolist(), strict=True):
            members.setdefault((g, classes[m]), set()).add(models.index(m))
        draws = Draws(
            cells,
            IMPUTED,
            self.study.anchor,
            classes,
            spread(self.batch[which]),
            spread(self.context[which]),
            spread(self.y[which]),
            T,
            {k: spread(np.concatenate([p[k] for p in parts_list])) for k in parts_list[0]},
            spread(np.concatenate(dispatch_list)),
            own_floor,
            {(g, c): floors[:, gpus.index(g), sorted(own)].mean(-1) for (g, c), own in members.items()},
            floors[:, gpu_code, models.index(self.study.anchor)],
            np.sqrt(variance),
            np.repeat(which, keep),
            weight / weight.sum(),
        )
        return with_own_noise(draws, np.random.default_rng(len(which)))


# ---- the cache ----------------------------------------------------------------------------------------------------


def cache_key(folder: Path, classes: Mapping[str, str]) -> str:
    """What the cached posteriors depend on: grids, classes, priors, settings of the fits."""
    content = (folder / TABLE).read_bytes()
    priors = {name: value for name, value in asdict(DEFAULT_PRIORS).items() if name not in OF_OTHER_FLOORS}
    settings = repr((sorted(classes.items()), sorted(priors.items()), FIT, KEEP))
    return hashlib.sha256(content + settings.encode()).hexdigest()


def read_cache(path: Path, key: str) -> dict[str, Any] | None:
    """The cached posteriors; None where there are none for this key."""
    if not path.exists():
        return None
    with np.load(path, allow_pickle=False) as stored:
        return {name: stored[name] for name in stored.files} if str(stored["key"]) == key else None


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
    grids = Imputed.of(study, load_reconstruction(folder).cells)
    buffer = io.BytesIO()
    np.savez_compressed(buffer, key=np.array(cache_key(folder, grids.classes)), **grids.fit_all(quiet=quiet))
    return write_bytes(folder / CACHE, buffer.getvalue())


def refitted(grids: Imputed, seed: int, *, quiet: bool, jobs: int) -> tuple[NDArray[np.int64], "list[SmallFit]"]:
    """Some imputations, at random, and fresh fits of them."""
    rng = np.random.default_rng(seed)
    which = np.sort(rng.choice(len(grids.weight), size=min(RECOMPUTED, len(grids.weight)), replace=False))
    first_seed = 1_000_000 + 1_000 * (seed % 1_000_000)
    return which, grids.fits(which.tolist(), first_seed, quiet=quiet, jobs=jobs, keep=25 * KEEP)


def compared_with_cache(
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


def power_scaled(grids: Imputed, which: NDArray[np.int64], fits: "Sequence[SmallFit]") -> list[dict[str, Any]]:
    """Sensitivity of the floors to prior and likelihood given T_gpu, averaged over some imputations."""
    import xarray as xr

    from rooffloor.models.inference.prior_density import log_prior
    from rooffloor.validate.estimates.prior_sensitivity import averaged, floors_against_anchor, power_scaling

    compiled, cells = grids.compiled, grids.cells
    coords = {dim: compiled.coords[dim] for dim in ("gpu", "model", "noisy_model")}
    pairs = list(zip(cells.model.tolist(), cells.gpu.tolist(), strict=True))
    tables = []
    for i, fit in list(zip(which.tolist(), fits, strict=True))[:POWER_SCALED]:
        variables = {n: (("chain", "draw", *compiled.dims.get(n, ())), v[None]) for n, v in fit.draws.items()}
        posterior = xr.Dataset(variables, coords=coords)
        steps = step_distribution(posterior, cells, grids.classes, PER_MODEL, gpu_ms=grids.T[i])
        floors = floors_against_anchor(posterior["floor_ms"], grids.study.anchor, pairs)
        log_density = steps.log_density(grids.y[i])[None]
        tables.append(power_scaling(floors, log_prior(posterior, PER_MODEL), log_density))
    return averaged(tables)


def tree_of(draws: Draws) -> "xr.DataTree":
    """posterior.nc of an imputed study: floors of the mixture, resampled to equal weights."""
    import xarray as xr

    count = 4_000
    position = (np.arange(count) + 0.5) / count
    rows = np.searchsorted(np.cumsum(draws.weight), position).clip(0, len(draws.weight) - 1)
    pairs = list(draws.pairs())
    at = [np.flatnonzero(mask)[0] for _, _, mask in pairs]
    class_floors = [values[rows] for values in draws.class_floor_ms.values()]
    mean_gpu = [draws.gpu_ms[rows][:, mask].mean(-1) for _, _, mask in pairs]
    posterior = xr.Dataset(
        {
            "floor_ms": (("chain", "draw", "pair"), draws.floor_ms[rows][:, at][None]),
            "class_floor_ms": (("chain", "draw", "class_pair"), np.stack(class_floors, -1)[None]),
            "mean_gpu_ms": (("chain", "draw", "pair"), np.stack(mean_gpu, -1)[None]),
        },
        coords={
            "chain": [0],
            "draw": np.arange(count),
            "pair": [f"{g} | {m}" for m, g, _ in pairs],
            "class_pair": [f"{g} | {c}" for g, c in draws.class_floor_ms],
            "imputation": ("draw", draws.unit[rows]),
        },
        attrs={"label": draws.label},
    )
    return xr.DataTree.from_dict({"posterior": posterior})
