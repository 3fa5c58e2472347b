"""Which floor? Structures fitted to the same cells and compared by how well each predicts a cell that it has not seen.

Every structure is fitted with constants free (one set for all SKUs), scored by PSIS-LOO (exact refits where the Pareto
k exceeds 0.7), weighted by stacking, and the simplest one that predicts about as well as the best is chosen. The
chosen one and the study's are then refitted without one model, one SKU, one (model, SKU) at a time, and under the cut.
What a worker does with one structure is in validate/worker.py; here is what follows from it.
"""

import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rooffloor.models.floor.structures import COMBINE, Q_MAX, FloorStructure
from rooffloor.models.roof.kernels import stack_work
from rooffloor.models.specs.cells import Cells
from rooffloor.validate.comparison import worker
from rooffloor.validate.comparison.tension import simulated_p, tension
from rooffloor.validate.comparison.worker import FIT, GOOD_K, TRENDS, Task, baseline_log_score, folds

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

    from rooffloor.validate.measurements.load import Measurements
    from rooffloor.validate.study.study import Study

type Array = NDArray[np.float64]
type Found = Mapping[str, Any]
"""What a worker returned."""

STUDY = FloorStructure("gpu", "added")
"""What the published study assumes: one floor per SKU, added."""
CLOSE_ELPD = 4.0
CLOSE_SE = 2.0
"""A structure predicts about as well as the best within so much elpd or so many standard errors of the difference."""
SMALL_SAMPLE = 100
FOLDS = 10
"""Refits without some cells that one worker makes with one compiled model."""
RESAMPLES = 40
"""Bootstrap samples of the cells that stacking weights are averaged over."""
Q_PRIOR_SD = Q_MAX / np.sqrt(12.0)


def candidates(classes: Mapping[str, str]) -> tuple[FloorStructure, ...]:
    """Structures worth comparing for these models: every sharing that they can tell apart, every way to join."""
    sharings = ["gpu"]
    if len(set(classes.values())) > 1:
        sharings.append("gpu, class")
    if len(classes) > 1:
        sharings.append("gpu, launches")
    several = [FloorStructure(shared_by, combine) for shared_by in sharings for combine in COMBINE]
    if len(classes) > 1:
        several += [FloorStructure("gpu, kernel latency", combine) for combine in ("added, H >= 0", "overlapped")]
        several.append(FloorStructure("gpu, model", "added"))
    if {"moe"} < set(classes.values()):  # a loop over experts that waits for each adds its host time by construction
        several.append(FloorStructure("gpu, class", "overlapped", (("moe", "added, H >= 0"),)))
    return (FloorStructure("none"), *several)


def parameters(structure: FloorStructure, cells: Cells, classes: Mapping[str, str]) -> int:
    """Free parameters of the floors, the measure of simplicity: floors, growth with launches, latency, q."""
    if structure.sharing is None:
        return 0
    groups = structure.groups(cells, classes)
    floors = len(set(zip(cells.gpu_code.tolist(), groups.code.tolist(), strict=True)))
    growth = len(cells.gpus) * structure.sharing.per_launch + structure.sharing.kernel_latency
    return floors + growth + structure.q_free


# ---- the competition --------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Comparison:
    """Floor structures side by side on one data set.

    Attributes
    ----------
    structures : list of dict
        One row per structure, best first: name, shared_by, combine, parameters, elpd, se, elpd_diff and dse (from
        the best), weight (stacking), p_loo, exact (cells refitted), gate (passed or what failed). Structures whose
        fit failed its gate stand last, without numbers.
    chosen : str
        The simplest structure within `CLOSE_ELPD` or `CLOSE_SE` standard errors of the best.
    overlap : dict
        q of the best structure that frees it, whether it is identified, and the share of cells that inform it.
    left_out : list of dict
        Exact refits: structure, kind, left out, cells, coverage, width, joint log score against the baseline.
    leftover : list of dict
        Of the chosen structure: trends of what it leaves over.
    noise : dict
        Measurement noise from repeats against what the chosen structure leaves over.
    likelihood : dict
        The chosen structure under Normal and Student-t noise, and which of them the data ask for; empty without refits.
    roles : dict
        The column of kernel launches as a floor of the host and as a latency of the GPU's kernels.
    constants : list of dict
        Constants of every structure under the cut (the anchor's cells alone) and jointly.
    tension : list of dict
        Transfer tension of every structure; for the chosen one with a simulated reference.
    cut_floors : list of dict
        Floors of the chosen structure and the study's, under the cut and jointly; empty without refits.
    sensitivity : list of dict
        Power-scaling of prior and likelihood for every quantity of the chosen structure.
    warnings, answer : list of str, str
    cells : int
    label : str
        Where the data come from.
    """

    structures: list[dict[str, Any]]
    chosen: str
    overlap: dict[str, Any]
    left_out: list[dict[str, Any]]
    leftover: list[dict[str, Any]]
    noise: dict[str, Any]
    likelihood: dict[str, Any]
    roles: dict[str, Any]
    constants: list[dict[str, Any]]
    tension: list[dict[str, Any]]
    cut_floors: list[dict[str, Any]]
    sensitivity: list[dict[str, Any]]
    warnings: list[str]
    answer: str
    cells: int
    label: str

    def __repr__(self) -> str:
        return f"Comparison({len(self.structures)} floor structures on {self.cells} {self.label} cells: {self.answer})"

    def to_frame(self) -> "pd.DataFrame":
        """The structures as a table."""
        import pandas as pd

        return pd.DataFrame(self.structures)

    @property
    def data(self) -> dict[str, Any]:
        """Everything, ready for JSON."""
        from dataclasses import asdict

        return asdict(self)

    @property
    def summary(self) -> str:
        """Text for a person."""
        lines = [self.answer, "", f"{'structure':52s} {'elpd':>9s} {'diff':>8s} {'se':>6s} {'weight':>6s} gate"]
        for row in self.structures:
            if row["elpd"] is None:
                lines.append(f"{row['name']:52s} {'':>9s} {'':>8s} {'':>6s} {'':>6s} FAILED: {row['gate']}")
                continue
            lines.append(
                f"{row['name']:52s} {row['elpd']:9.1f} {row['elpd_diff']:8.1f} {row['dse']:6.1f} "
                f"{row['weight']:6.2f} {row['gate']}"
            )
        said = [self.noise["sentence"], *(d["sentence"] for d in (self.likelihood, self.roles) if "sentence" in d)]
        said += [row["sentence"] for row in self.tension if row["structure"] == self.chosen]
        said += [row["sentence"] for row in self.leftover if row["sentence"]]
        return "\n".join([*lines, "", *said, "", *(f"warning: {w}" for w in self.warnings)]).rstrip()

    def plot(self, ax: "Axes | None" = None) -> "Axes":
        """elpd below the best with two standard errors of the difference, per structure."""
        from rooffloor.validate.presentation.figures.which_floor import structures

        return structures(self, ax=ax)


def compare(
    study: "Study",
    measurements: "Measurements | None" = None,
    *,
    structures: Sequence[FloorStructure] | None = None,
    seed: int | None = None,
    refits: bool = True,
    jobs: int | None = None,
    dask: str | None = None,
    folder: Path | None = None,
    quiet: bool = True,
) -> Comparison:
    """Fit every structure to the cells of a study and say which the data support.

    Parameters
    ----------
    structures : sequence of FloorStructure, optional
        Default: `candidates`.
    refits : bool
        Whether the chosen structure is fitted with Student-t noise too, it and the study's without each model, SKU
        and pair and under the cut, every structure to the anchor's cells alone (else those two), and the transfer
        tension of the chosen one gets a simulated reference.
    jobs, dask, folder
        See `runner.run`.

    Raises
    ------
    GateError
        No structure's fit passed its gate.
    InputError
        The study's data cannot be used.
    """
    from rooffloor.validate.common.errors import GateError
    from rooffloor.validate.common.runner import run
    from rooffloor.validate.estimates.prior_sensitivity import warnings_of

    measurements = measurements or study.measurements()
    cells = measurements.cells()
    classes = {m: study.class_of(m) for m in cells.models}
    work = stack_work(cells, measurements.shapes, measurements.gpus, experts=study.efficiency.experts)
    seed = study.seed if seed is None else seed
    competing = tuple(structures or candidates(classes))

    def task(structure: FloorStructure, likelihood: str = "normal", folds: Any = ()) -> Task:
        return Task(cells, work, classes, structure, likelihood, seed, study.anchor, folds)

    def each(function: Any, tasks: Sequence[Task], desc: str) -> Sequence[Found]:
        def key(one: Task) -> str:
            left_out = [name for _, name, _ in one.folds]
            what = f"{function.__name__} {one.structure!r} {one.likelihood} {left_out}"
            return f"{what} {study.hash} {study.anchor} {seed} {FIT!r} {len(cells)}"

        keys = [key(one) for one in tasks]
        return run(function, tasks, keys=keys, desc=desc, jobs=jobs, dask=dask, folder=folder, progress=not quiet)

    def by_name(function: Any, some: Sequence[FloorStructure], desc: str) -> dict[str, Found]:
        return dict(zip(map(str, some), each(function, [task(s) for s in some], desc), strict=True))

    found = by_name(worker.score, competing, "structures")
    rows = _rows(competing, found, cells, classes)
    if rows[0]["elpd"] is None:
        raise GateError(f"no floor structure's fit passed its gate ({rows[0]['name']}: {rows[0]['gate']})")
    chosen = choose(rows)
    best = next(s for s in competing if str(s) == chosen)
    shown = tuple(dict.fromkeys([best, *(s for s in competing if s == STUDY)]))
    has_cut = study.anchor in cells.models and len(cells.models) > 1
    passed = [s for s in competing if found[str(s)]["passed"]]
    apart = by_name(worker.upstream, passed if refits else shown, "cut") if has_cut else {}
    student: Found | None = None
    reference: Array | None = None
    left_out: list[dict[str, Any]] = []
    under_cut: list[dict[str, Any]] = []
    if refits:
        student = each(worker.score, [task(best, "student")], "Student-t noise")[0]
        out = folds(cells)
        some = [task(s, folds=out[k : k + FOLDS]) for s in shown for k in range(0, len(out), FOLDS)]
        left_out = _left_out(some, each(worker.leave_out, some, "left out"), cells)
        if has_cut:
            reference = each(worker.tension_reference, [task(best)], "tension under the model")[0]["statistic"]
            floored = [s for s in shown if s.sharing is not None]
            under_cut = _cut_floors(by_name(worker.cut_floors, floored, "floors under the cut"), found, cells, study)
    constants, pulled = _constants(apart, found, chosen, reference)
    overlap = _overlap(rows, {str(s): s for s in competing}, found)
    sensitivity = json.loads(str(found[chosen]["sensitivity"]))
    return Comparison(
        structures=rows,
        chosen=chosen,
        overlap=overlap,
        left_out=left_out,
        leftover=_trends(found[chosen]["trend"]),
        noise=_noise(measurements.repeat_spread(), float(found[chosen]["noise"])),
        likelihood={} if student is None else _likelihoods(found[chosen], student),
        roles=_roles(rows, found),
        constants=constants,
        tension=pulled,
        cut_floors=under_cut,
        sensitivity=sensitivity,
        warnings=[*_notes(rows, cells), *warnings_of(sensitivity)],
        answer=_answer(rows, chosen, overlap),
        cells=len(cells),
        label=measurements.label,
    )


def _rows(
    competing: Sequence[FloorStructure], found: Mapping[str, Found], cells: Cells, classes: Mapping[str, str]
) -> list[dict[str, Any]]:
    """Rows of the table, best first; failed fits last."""
    good = [(s, found[str(s)]) for s in competing if found[str(s)]["passed"]]
    weights = dict(zip((str(s) for s, _ in good), stacking_weights([r["elpd"] for _, r in good]), strict=True))
    top = max((r["elpd"] for _, r in good), key=np.sum, default=None)
    rows = []
    for s in competing:
        r = found[str(s)]
        row: dict[str, Any] = {
            "name": str(s),
            "shared_by": s.shared_by,
            "combine": s.combine if s.sharing is not None else "none",
            "parameters": parameters(s, cells, classes),
        }
        if r["passed"] and top is not None:
            gap = r["elpd"] - top
            row |= {
                "elpd": float(r["elpd"].sum()),
                "se": float(np.sqrt(len(gap) * r["elpd"].var())),
                "elpd_diff": float(gap.sum()),
                "dse": float(np.sqrt(len(gap) * gap.var())),
                "weight": float(weights[str(s)]),
                "p_loo": float(r["p"].sum()),
                "exact": int(r["exact"].sum()),
                "gate": "passed",
            }
        else:
            row |= dict.fromkeys(("elpd", "se", "elpd_diff", "dse", "weight", "p_loo"))
            row |= {"exact": int(r["exact"].sum()), "gate": str(r["failures"])}
        row |= {name: r[name].item() for name in ("rhat", "ess", "divergences", "attempts")}
        rows.append(row)
    return sorted(rows, key=lambda row: -np.inf if row["elpd"] is None else row["elpd"], reverse=True)


def stacking_weights(elpd: Sequence[Array], *, resamples: int = RESAMPLES) -> Array:
    """Weights of a mixture of predictions that scores best, [structure], from the elpd of each cell.

    The mean over bootstrap samples of the cells: where two structures predict alike, as nested ones do, one set of
    cells gives all weight to either by a hair, and another set to the other.
    """
    if len(elpd) < 2:
        return np.ones(len(elpd))
    values, rng = np.array(elpd), np.random.default_rng(len(elpd))
    cells = values.shape[1]
    return np.asarray(np.mean([_stacked(values[:, rng.integers(cells, size=cells)]) for _ in range(resamples)], axis=0))


def _stacked(values: Array) -> Array:
    """Stacking weights [structure] for elpd [structure, cell]."""
    import arviz_stats
    import xarray as xr
    from arviz_stats.utils import ELPDDataLOO

    def wrapped(own: Array) -> Any:
        n = len(own)
        return ELPDDataLOO(
            elpd=float(own.sum()),
            se=float(np.sqrt(n * own.var())),
            p=float("nan"),
            n_samples=1,
            n_data_points=n,
            scale="log",
            warning=False,
            good_k=GOOD_K,
            elpd_i=xr.DataArray(own, dims="cell"),
            pareto_k=xr.DataArray(np.zeros(n), dims="cell"),
        )

    with warnings.catch_warnings():  # p is not known here, and not needed
        warnings.simplefilter("ignore")
        table = arviz_stats.compare({str(i): wrapped(v) for i, v in enumerate(values)}, round_to="none")
    return table["weight"].reindex([str(i) for i in range(len(values))]).to_numpy(dtype=float)


def is_close(row: Mapping[str, Any]) -> bool:
    """Whether a structure predicts about as well as the best."""
    return row["elpd"] is not None and -row["elpd_diff"] <= max(CLOSE_ELPD, CLOSE_SE * row["dse"])


def choose(rows: Sequence[Mapping[str, Any]]) -> str:
    close = [row for row in rows if is_close(row)]
    return str(min(close, key=lambda row: (row["parameters"], -row["elpd"]))["name"])


def _overlap(
    rows: Sequence[Mapping[str, Any]], structures: Mapping[str, FloorStructure], found: Mapping[str, Found]
) -> dict[str, Any]:
    """q of the best structure that frees it."""
    free = [row["name"] for row in rows if row["elpd"] is not None and structures[row["name"]].q_free]
    if not free:
        return {"structure": None, "identified": False}
    best = found[free[0]]
    q = best["constant_q"]
    low, high = np.quantile(q, [0.05, 0.95])
    with np.errstate(divide="ignore"):
        p = 1.0 / np.array([np.median(q), high, low])
    return {
        "structure": free[0],
        "q": {"mean": float(q.mean()), "sd": float(q.std()), "low_90": float(low), "high_90": float(high)},
        "p": {"median": float(p[0]), "low_90": float(p[1]), "high_90": float(p[2])},
        "identified": bool(q.std() <= 0.5 * Q_PRIOR_SD),
        "misfit": float((q > 1.0).mean()),
        "informative_share": best["informative"].item(),
    }


def _trends(slopes: Array) -> list[dict[str, Any]]:
    rows = []
    for name, s in zip(TRENDS, slopes.T, strict=True):
        low, high = (float(v) for v in np.quantile(s, [0.05, 0.95]))
        way = "grows" if low > 0 else "falls" if high < 0 else ""
        rows.append(
            {
                "trend": name,
                "slope": float(s.mean()),
                "low_90": low,
                "high_90": high,
                "sentence": way
                and f"What the chosen structure leaves over {way} with {name}: {s.mean():+.2f} "
                f"[{low:+.2f}, {high:+.2f}] residual sds per sd of it.",
            }
        )
    return rows


def _noise(repeats: float, residual: float) -> dict[str, Any]:
    """Spread of repeats against the relative sd that a structure leaves over."""
    if np.isnan(repeats):
        return {
            "repeats": None,
            "residual": residual,
            "discrepancy_share": None,
            "sentence": f"The chosen structure leaves {100 * residual:.1f} % of a step over. No cell was measured "
            "twice: how much of that is measurement noise and how much is wrong in the structure cannot be told.",
        }
    share = max(0.0, 1.0 - repeats**2 / residual**2)
    return {
        "repeats": repeats,
        "residual": residual,
        "discrepancy_share": share,
        "sentence": f"Repeats of a cell differ by {100 * repeats:.1f} %, the chosen structure leaves "
        f"{100 * residual:.1f} % over: {100 * share:.0f} % of that variance is not measurement noise.",
    }


def _likelihoods(normal: Found, student: Found) -> dict[str, Any]:
    """Normal against Student-t noise: elpd difference and the posterior predictive p of the largest residual."""
    tail = f"the largest residual has posterior predictive p {normal['largest_p'].item():.2f} under normal noise"
    if not student["passed"]:
        return {
            "chosen": "normal",
            "normal_largest_p": normal["largest_p"].item(),
            "student": str(student["failures"]),
            "sentence": f"Normal noise: the fit with Student-t noise failed its gate; {tail}.",
        }
    gap = student["elpd"] - normal["elpd"]
    gain, dse = float(gap.sum()), float(np.sqrt(len(gap) * gap.var()))
    heavy = gain > max(CLOSE_ELPD, CLOSE_SE * dse)
    words = (
        f"Student-t noise predicts {'better' if gain > 0 else 'worse'} by {abs(gain):.1f} elpd (standard error "
        f"{dse:.1f}); {tail}, {student['largest_p'].item():.2f} under Student-t noise"
    )
    return {
        "chosen": "student" if heavy else "normal",
        "student_minus_normal_elpd": gain,
        "dse": dse,
        "normal_largest_p": normal["largest_p"].item(),
        "student_largest_p": student["largest_p"].item(),
        "sentence": f"{words}: "
        + (
            "the residuals have heavy tails, and the structures were compared under normal noise all the same."
            if heavy
            else "normal noise stands."
        ),
    }


LAUNCHES, LATENCY = "gpu, launches", "gpu, kernel latency"


def _roles(rows: Sequence[Mapping[str, Any]], found: Mapping[str, Found]) -> dict[str, Any]:
    """The column of launches read in both ways: the host's time per launch, or the GPU's latency per kernel."""
    best = {}
    for shared_by in (LAUNCHES, LATENCY):
        own = [row for row in rows if row["shared_by"] == shared_by and row["elpd"] is not None]
        own = [row for row in own if row["combine"] in ("added, H >= 0", "overlapped")]
        if own:
            best[shared_by] = own[0]
    if len(best) < 2:
        return {}
    host, kernel = best[LAUNCHES], best[LATENCY]
    gap = found[host["name"]]["elpd"] - found[kernel["name"]]["elpd"]
    gain, dse = float(gap.sum()), float(np.sqrt(len(gap) * gap.var()))
    latency = 1e3 * found[kernel["name"]]["constant_latency_ms"]
    low, high = np.quantile(latency, [0.05, 0.95])
    sides = {True: "a floor of the host that grows with launches", False: "a latency of every kernel inside T_gpu"}
    verdict = (
        f"the cells speak for {sides[gain > 0]}"
        if abs(gain) > max(CLOSE_ELPD, CLOSE_SE * dse)
        else "the cells cannot tell which of the two it is"
    )
    return {
        "launches": host["name"],
        "latency": kernel["name"],
        "elpd_diff": gain,
        "dse": dse,
        "latency_us": {"mean": float(latency.mean()), "low_90": float(low), "high_90": float(high)},
        "sentence": f"Time per launch may be the host's or the GPU's; only one is free at a time, the other held at "
        f"zero. {sides[True]} "
        f"({host['name']}) against {sides[False]} ({kernel['name']}): {gain:+.1f} elpd (standard error {dse:.1f}): "
        f"{verdict}. With the roles exchanged the latency comes out at {latency.mean():.1f} "
        f"[{low:.1f}, {high:.1f}] us per kernel.",
    }


def _constants(
    apart: Mapping[str, Found], found: Mapping[str, Found], chosen: str, reference: Array | None
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Constants under the cut and jointly, and the transfer tension, of every structure whose fits passed."""
    constants, pulled = [], []
    for name, cut in apart.items():
        row: dict[str, Any] = {"structure": name, "statistic": None, "freedom": None, "p_chi2": None, "p": None}
        if not cut["passed"]:
            pulled.append(row | {"sentence": f"{name}: the fit to the anchor's cells failed its gate."})
            continue
        own, joint = (
            {k.removeprefix("constant_"): v for k, v in one.items() if k.startswith("constant_")}
            for one in (cut, found[name])
        )
        result = tension(own, joint) if own else None
        for constant in own:
            one: dict[str, Any] = {"structure": name, "constant": constant}
            for treatment, draws in (("cut", own[constant]), ("joint", joint[constant])):
                one |= {f"{treatment}_mean": float(draws.mean()), f"{treatment}_sd": float(draws.std())}
            z = result.z[constant] if result is not None else np.nan
            constants.append(one | {"z": None if np.isnan(z) else float(z)})
        if result is None:
            continue
        p = None if np.isnan(result.p_chi2) else result.p_chi2
        good = None if name != chosen or reference is None else reference[np.isfinite(reference)]
        simulated = None if good is None or not len(good) else simulated_p(result.statistic, good.tolist())
        row |= {"statistic": result.statistic, "freedom": result.freedom, "p_chi2": p, "p": simulated}
        pulled.append(row | {"simulated": 0 if good is None else len(good), "sentence": _pull(name, row)})
    return constants, pulled


def _pull(name: str, row: Mapping[str, Any]) -> str:
    if not row["freedom"]:
        return f"{name}: the other models say nothing on the constants beyond the anchor's cells."
    p, how = (row["p"], "simulated") if row["p"] is not None else (row["p_chi2"], "chi-squared, large samples")
    verdict = "pull the constants away from" if p < 0.05 else "are compatible with"
    return (
        f"{name}: the other models {verdict} the constants of the anchor's cells (transfer tension "
        f"{row['statistic']:.1f} on {row['freedom']} directions, p {p:.3f}, {how})."
    )


def _left_out(tasks: Sequence[Task], results: Sequence[Found], cells: Cells) -> list[dict[str, Any]]:
    return [
        {
            "structure": str(task.structure),
            "kind": kind,
            "left_out": what,
            "cells": int(mask.sum()),
            "coverage_50": row[0],
            "coverage_90": row[1],
            "relative_width_90": row[2],
            "log_score": row[3],
            "baseline_log_score": baseline_log_score(cells, mask),
            "passed": bool(row[4]),
        }
        for task, result in zip(tasks, results, strict=True)
        for (kind, what, mask), row in zip(task.folds, result["folds"].tolist(), strict=True)
    ]


def _cut_floors(
    results: Mapping[str, Found], found: Mapping[str, Found], cells: Cells, study: "Study"
) -> list[dict[str, Any]]:
    """Mean floor of each (model, SKU) but the anchor's under the cut and jointly, ms."""
    theirs = cells.model != study.anchor
    others = cells.where(theirs)
    rows = []
    for name, cut in results.items():
        joint = {key: found[name][f"floor_{key}"][theirs] for key in ("mean", "sd")}
        for model, gpu in dict.fromkeys(zip(others.model.tolist(), others.gpu.tolist(), strict=True)):
            at = (others.model == model) & (others.gpu == gpu)
            row: dict[str, Any] = {"structure": name, "model": model, "gpu": gpu}
            for treatment, one in (("cut", cut), ("joint", joint)):
                for key in ("mean", "sd"):
                    value = float(one[key][at].mean())
                    row[f"{treatment}_{key}_ms"] = value if np.isfinite(value) else None
            rows.append(row | {"failed": str(cut["failed"])})
    return rows


def _notes(rows: Sequence[Mapping[str, Any]], cells: Cells) -> list[str]:
    notes = []
    if len(cells) < SMALL_SAMPLE:
        notes.append(
            f"{len(cells)} cells are fewer than {SMALL_SAMPLE}: standard errors of elpd differences are then too small "
            "and their normal approximation is poor."
        )
    near = [row["name"] for row in rows[1:] if row["elpd"] is not None and -row["elpd_diff"] < CLOSE_ELPD]
    if near:
        notes.append(f"Within {CLOSE_ELPD:g} elpd of the best, predictions hardly differ: {'; '.join(near)}.")
    failed = [row["name"] for row in rows if row["elpd"] is None]
    if failed:
        notes.append(f"Not compared, since the fit failed its gate: {'; '.join(failed)}.")
    return notes


def _answer(rows: Sequence[Mapping[str, Any]], chosen: str, overlap: Mapping[str, Any]) -> str:
    by_name = {row["name"]: row for row in rows}
    best = rows[0]
    words = f"the data support {chosen}"
    if chosen != best["name"]:
        gap = by_name[chosen]
        words += (
            f", the simplest within reach of the best, {best['name']} "
            f"({-gap['elpd_diff']:.1f} elpd ahead, standard error {gap['dse']:.1f})"
        )
    study = by_name.get(str(STUDY))
    if study is not None and study["elpd"] is not None and str(STUDY) != chosen:
        if is_close(study):
            words += f"; the study's {STUDY} does about as well"
        else:
            words += (
                f"; the study's {STUDY} predicts worse by {-study['elpd_diff']:.1f} elpd "
                f"(standard error {study['dse']:.1f})"
            )
    if overlap["structure"] is None:
        return words + "."
    q = overlap["q"]
    if not overlap["identified"]:
        return words + "; how much host and GPU overlap is not identified by these cells."
    measured = f"q {q['mean']:.2f} [{q['low_90']:.2f}, {q['high_90']:.2f}] (1: added, 0: the longer of the two)"
    if q["low_90"] > 1.0:
        return f"{words}; {measured}: steps longer than host and GPU together, a misfit and no overlap."
    kind = "close to none" if q["low_90"] > 0.85 else "close to full" if q["high_90"] < 0.15 else "partial"
    return f"{words}; overlap of host and GPU is {kind}: {measured}."
