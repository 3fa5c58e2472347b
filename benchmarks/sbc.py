"""Simulation-based calibration: is the truth, drawn from the prior, a typical draw of the posterior of its own data?

Constants, floors and noise are drawn from the prior, steps are simulated from them, and the model is refitted. If
model, prior and sampler are right, the rank of every true scalar among independent posterior draws is uniform, and so
is that of the log likelihood, which also sees what the data say of all scalars jointly (Talts et al. 2018; Modrák et
al. 2023). Fits that fail their gate are counted and kept: their ranks are what a user would have got.

The likelihood is normal, so that wide priors also simulate steps below zero. No clock shows those: such draws are
thrown away and counted. Ranks stay uniform within data sets that are picked by their data alone.
"""

import argparse
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import xarray as xr
from numpy.typing import ArrayLike, NDArray
from scipy.stats import chisquare

from rooffloor.models.floor.structures import FloorStructure
from rooffloor.models.inference.prior_density import sample_prior
from rooffloor.models.inference.sampling import Compiled, SmallFit, compile_model, fit_many
from rooffloor.models.inference.step_distribution import step_distribution
from rooffloor.models.inference.steps import StepModel
from rooffloor.models.roof.kernels import Work, stack_work
from rooffloor.models.specs.cells import Cells
from rooffloor.models.specs.classes import default_class
from rooffloor.validate.common.files import write_text
from rooffloor.validate.common.runner import run
from rooffloor.validate.hypotheses.frequentist import holm
from rooffloor.validate.published.printed_figures import ANCHOR, MOE, SIBLING, SKUS, SMALL
from rooffloor.validate.simulation.hypotheses import cells_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

type Array = NDArray[np.float64]

KEPT = 99
"""Draws that a truth is ranked among: 100 ranks, so that intervals of 50 and 90 % are whole numbers of ranks."""
BINS = 10
"""Bins of the chi-squared test of a scalar's ranks."""
CHUNK = 20
"""Data sets that are kept on disk together."""
COUNTS = ("data_set", "redrawn", "attempts", "first_divergences", "divergences", "rhat", "passed")
"""Columns of `Ranks.table` that are not ranks."""
LOG_LIKELIHOOD = "log_likelihood"


@dataclass(frozen=True, eq=False)
class Ranks:
    """Ranks of true scalars among posterior draws.

    Attributes
    ----------
    table : DataFrame
        One row per data set: `data_set`; `redrawn`, draws thrown away before it; `attempts` of the gated fit,
        `first_divergences` of the first attempt, `divergences` and `rhat` of the last, whether that `passed` the gate;
        then one column per scalar with the truth's rank, 0 to `KEPT`.
    """

    table: pd.DataFrame

    @property
    def quantities(self) -> tuple[str, ...]:
        """The scalars."""
        return tuple(c for c in self.table.columns if c not in COUNTS)

    def ranks(self, quantity: str) -> NDArray[np.int64]:
        """Ranks of one scalar, [data set]."""
        return self.table[quantity].to_numpy(dtype=np.int64)

    def to_frame(self) -> pd.DataFrame:
        """One row per scalar: mean rank (share of `KEPT`), coverage, p-values.

        Columns `in_50` and `in_90` are the shares of data sets whose central interval holds the truth; `p` is that of
        the chi-squared test of uniform ranks in `BINS` bins, `p_holm` the same adjusted for all scalars (Holm).
        """
        rows = [_row(quantity, self.ranks(quantity)) for quantity in self.quantities]
        frame = pd.DataFrame(rows)
        frame["p_holm"] = holm(frame["p"])
        return frame

    @property
    def data(self) -> dict[str, Any]:
        """Counts of data sets and fits, coverage over all scalars, and the table of scalars, for JSON."""
        frame, table = self.to_frame(), self.table
        return {
            "data_sets": len(table),
            "redrawn": int(table["redrawn"].sum()),
            "failed": int((~table["passed"]).sum()),
            "escalated": int((table["attempts"] > 1).sum()),
            "first_divergent": int((table["first_divergences"] > 0).sum()),
            "divergent": int((table["divergences"] > 0).sum()),
            "in_50": float(frame["in_50"].mean()),
            "in_90": float(frame["in_90"].mean()),
            "least_p_holm": float(frame["p_holm"].min()),
            "quantities": frame.to_dict("records"),
        }

    def __repr__(self) -> str:
        d = self.data
        least = min(d["quantities"], key=lambda row: row["p"])
        return (
            f"Ranks({d['data_sets']} data sets, {len(d['quantities'])} scalars, ranks among {KEPT} draws)\n"
            f"50 % intervals cover {100 * d['in_50']:.1f} %, 90 % cover {100 * d['in_90']:.1f} %\n"
            f"least p {least['p']:.4f} ({least['quantity']}), {least['p_holm']:.3f} adjusted for all scalars\n"
            f"fits: {d['failed']} failed their gate, {d['escalated']} escalated, {d['first_divergent']} with "
            f"divergences at first, {d['divergent']} in the end\n"
            f"prior draws thrown away for steps that are not positive: {d['redrawn']}"
        )

    def plot(self, ax: "Axes | None" = None, *, level: float = 0.95) -> "Axes":
        """ECDF of the ranks less the uniform one, a line per scalar, with the band that holds a whole line.

        Scalars whose line leaves the band are named. The band is simultaneous over ranks, not over scalars
        (Säilynoja, Bürkner and Vehtari 2022).
        """
        import matplotlib.pyplot as plt

        if ax is None:
            _, ax = plt.subplots(figsize=(10, 4.5), layout="constrained")
        at, low, high = band(len(self.table), level)
        ax.fill_between(at, low, high, color="0.9", lw=0, step="mid", label=f"{100 * level:.0f} % band")
        for quantity in self.quantities:
            difference = ecdf_difference(self.ranks(quantity))
            outside = bool(((difference < low) | (difference > high)).any())
            style: dict[str, Any] = {"lw": 1.6, "label": quantity} if outside else {"lw": 0.8, "color": "0.45"}
            ax.plot(at, difference, **style)
        ax.axhline(0, color="0.2", lw=0.8)
        ax.set_xlabel(f"rank of the truth among {KEPT} posterior draws, as a share")
        ax.set_ylabel("ECDF less uniform")
        ax.set_title(f"Simulation-based calibration, {len(self.table)} data sets", loc="left")
        ax.legend(loc="upper right", fontsize=8, frameon=False)
        return ax

    def save(self, path: Path) -> Path:
        """Write the table as CSV."""
        return write_text(path, self.table.to_csv(index=False, float_format="%.4g", lineterminator="\n"))

    @classmethod
    def load(cls, path: Path) -> "Ranks":
        """Read what `save` wrote."""
        return cls(pd.read_csv(path))


def _row(quantity: str, ranks: NDArray[np.int64]) -> dict[str, Any]:
    counts = np.bincount(ranks * BINS // (KEPT + 1), minlength=BINS)
    mean, p = float(ranks.mean() / KEPT), float(chisquare(counts).pvalue)
    return {"quantity": quantity, "mean": mean, "in_50": covered(ranks, 0.5), "in_90": covered(ranks, 0.9), "p": p}


def covered(ranks: NDArray[np.int64], level: float) -> float:
    """Share of ranks inside the central interval of so many of the `KEPT` + 1 ranks."""
    out = round((1.0 - level) / 2.0 * (KEPT + 1))
    return float(((ranks >= out) & (ranks <= KEPT - out)).mean())


def rank(truth: ArrayLike, draws: ArrayLike) -> NDArray[np.int64]:
    """Number of draws below the truth; draws along axis 0."""
    return (np.asarray(draws) < np.asarray(truth)).sum(axis=0)


def ecdf_difference(ranks: NDArray[np.int64]) -> Array:
    """Share of ranks below k less k / (`KEPT` + 1), for k from 1 to `KEPT`."""
    at = np.arange(1, KEPT + 1)
    return np.searchsorted(np.sort(ranks), at) / len(ranks) - at / (KEPT + 1)


def band(number: int, level: float = 0.95, *, simulations: int = 1000) -> tuple[Array, Array, Array]:
    """Where `ecdf_difference` of `number` uniform ranks lies as a whole with probability `level`: k, low, high."""
    from arviz_stats.ecdf_utils import get_pointwise_confidence_band, simulate_confidence_bands

    at = np.arange(1, KEPT + 1) / (KEPT + 1)
    pointwise = simulate_confidence_bands(number, 1, at, level, simulations, np.random.default_rng(0))
    low, high = get_pointwise_confidence_band(pointwise, number, at)
    return at, low - at, high - at


# Simulating and refitting ---------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Setting:
    """What all data sets share."""

    structure: FloorStructure
    cells: Cells
    work: Work
    classes: Mapping[str, str]
    seed: int

    def simulate(self, data_set: int) -> tuple[xr.Dataset, Array, int]:
        """A draw from the prior (one chain, one draw), the steps [cell], ms, that it makes, draws thrown away."""
        rng = np.random.default_rng([self.seed, data_set])
        for redrawn in count():
            truth = sample_prior(rng, 1, self.cells, self.classes, self.structure, work=self.work)
            given = step_distribution(truth, self.cells, self.classes, self.structure, work=self.work)
            steps = given.sample(rng)[0]
            if steps.min() > 0:
                return truth, steps, redrawn
        raise AssertionError  # count() has no end

    def compiled(self) -> Compiled:
        """The model, for any data set."""
        cells = replace(self.cells, step_ms=np.ones(len(self.cells)))
        return compile_model(StepModel(cells, self.work, self.classes, self.structure, "free"))

    def scalars(self, draws: xr.Dataset, steps: Array) -> dict[str, Array]:
        """Every scalar of a posterior or a prior by name, and the log likelihood of `steps`; each (draw,)."""
        likelihood = step_distribution(draws, self.cells, self.classes, self.structure, work=self.work)
        hidden = ("noise_own", "launches_at_floor")  # standardised; no parameter
        names = sorted(str(name) for name in draws.data_vars if name not in hidden)
        found = {name: values for variable in names for name, values in _flat(draws[variable]).items()}
        return found | {LOG_LIKELIHOOD: likelihood.log_density(steps).sum(axis=1)}


def _flat(values: xr.DataArray) -> dict[str, Array]:
    """A variable (chain, draw, ...) as scalars named by its labels, each (chain x draw,)."""
    dims = [d for d in values.dims if d not in ("chain", "draw")]
    pooled = values.transpose("chain", "draw", *dims).to_numpy().reshape(-1, *(values.sizes[d] for d in dims))
    found = {}
    for index in np.ndindex(pooled.shape[1:]):
        labels = ", ".join(str(values[d].to_numpy()[i]) for d, i in zip(dims, index, strict=True))
        found[f"{values.name}[{labels}]" if dims else str(values.name)] = pooled[:, *index]
    return found


def study_cells() -> Cells:
    """Cells of the study's size: its models on its three GPUs, the mixture of experts on one."""
    pairs = [(m, g) for m in (ANCHOR, SIBLING, SMALL, MOE) for g in SKUS if m != MOE or g == SKUS[0]]
    return cells_of(pairs)


def sbc(
    structure: FloorStructure | None = None,
    *,
    datasets: int = 300,
    seed: int,
    jobs: int = 2,
    folder: Path | None = None,
    progress: bool = False,
    cells: Cells | None = None,
    **fit: Any,
) -> Ranks:
    """Draw from the prior, simulate, refit, rank.

    Parameters
    ----------
    structure : FloorStructure, optional
        Default: floors per SKU and class, added.
    datasets : int
    jobs : int
        Fits at a time.
    folder : Path, optional
        Where finished data sets are kept, `CHUNK` to a file, so that an interrupted run resumes.
    cells : Cells, optional
        Default: `study_cells`.
    fit
        Arguments of `sampling.fit_gated`; default: 4 chains of 1000 draws, the gate of the study.
    """
    structure, cells = structure or FloorStructure(), cells or study_cells()
    classes = {m: default_class(m) for m in cells.models}
    setting = _Setting(structure, cells, stack_work(cells), classes, seed)
    compiled = functools.cache(setting.compiled)  # one compilation, and none where all chunks are kept
    chunks = [range(k, min(k + CHUNK, datasets)) for k in range(0, datasets, CHUNK)]
    rows = run(
        lambda chunk: _calibrate(setting, compiled(), chunk, jobs, fit),
        chunks,
        keys=[f"sbc {structure!r} {_named(cells)} {KEPT} {fit!r} {seed} {chunk!r}" for chunk in chunks],
        folder=folder,
        jobs=1,  # this process: fits run in threads, which share the compiled model
        progress=progress,
        desc="calibration",
    )
    frames = [pd.DataFrame(r["values"], columns=r["names"].tolist()) for r in rows]
    table = pd.concat(frames, ignore_index=True)
    whole = {c: int for c in table.columns if c != "rhat"} | {"passed": bool}
    return Ranks(table.astype(whole))


def _named(cells: Cells) -> str:
    columns = (cells.model, cells.gpu, cells.batch, cells.context)
    return sha256(repr([c.tolist() for c in columns]).encode()).hexdigest()[:12]


def _calibrate(
    setting: _Setting, compiled: Compiled, chunk: range, jobs: int, fit: Mapping[str, Any]
) -> dict[str, Any]:
    """Rows of `Ranks.table` for some data sets, as numbers, with the names of their columns."""
    made = [setting.simulate(k) for k in chunk]
    seeds = [int(np.random.SeedSequence([setting.seed, k, 1]).generate_state(1)[0]) for k in chunk]
    fits = fit_many(compiled, [{"measured_ms": y} for _, y, _ in made], seeds, keep=KEPT, jobs=jobs, **fit)
    rows = []
    for k, (truth, y, redrawn), one in zip(chunk, made, fits, strict=True):
        first, last = one.attempts[0].diagnostics, one.attempts[-1].diagnostics
        counts = (k, redrawn, len(one.attempts), first.divergences, last.divergences, last.rhat, one.passed)
        ranks = _ranks(setting, compiled, truth, y, one)
        rows.append(dict(zip(COUNTS, map(float, counts), strict=True)) | ranks)
    return {"names": list(rows[0]), "values": [list(row.values()) for row in rows]}


def _ranks(setting: _Setting, compiled: Compiled, truth: xr.Dataset, steps: Array, fit: SmallFit) -> dict[str, float]:
    draws = xr.Dataset(
        {n: (("chain", "draw", *compiled.dims.get(n, ())), v[None]) for n, v in fit.draws.items() if n in truth}
    )
    draws = draws.assign_coords({d: compiled.coords[d] for d in draws.dims if d in compiled.coords})
    posterior = setting.scalars(draws, steps)
    return {n: float(rank(value[0], posterior[n])) for n, value in setting.scalars(truth, steps).items()}


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line: print how ranks are spread, write them."""
    parser = argparse.ArgumentParser(description=__doc__, prog="python benchmarks/sbc.py")
    parser.add_argument("--datasets", type=int, default=300, metavar="N", help="simulated data sets (default: 300)")
    parser.add_argument("--seed", type=int, default=2026, metavar="N")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="fits at a time (default: 2)")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep finished work there: an interrupted run resumes")
    parser.add_argument("--out", type=Path, metavar="FILE", help="one row per data set, as CSV")
    given = parser.parse_args(arguments)
    found = sbc(datasets=given.datasets, seed=given.seed, jobs=given.jobs, folder=given.keep, progress=True)
    print(found)
    if given.out:
        found.save(given.out)


if __name__ == "__main__":
    main()
