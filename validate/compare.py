"""Which floor? Structures fitted to the same cells and compared by how well each predicts a cell that it has not seen.

Every structure is fitted with constants free (one set for all SKUs), scored by PSIS-LOO (exact refits where the Pareto
k exceeds 0.7), weighted by stacking, and the simplest one that predicts about as well as the best is chosen. The
chosen one and the study's are then refitted without one model, one SKU, one (model, SKU) at a time.
"""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from models.cells import Cells
from models.floors import COMBINE, Q_MAX, FloorStructure
from models.kernels import Work, stack_work

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

    from models.sampling import Compiled
    from validate.measurements import Measurements
    from validate.study import Study

type Array = NDArray[np.float64]

STUDY = FloorStructure("gpu", "added")
"""What the published study assumes: one floor per SKU, added."""
GOOD_K = 0.7
CLOSE_ELPD = 4.0
CLOSE_SE = 2.0
"""A structure predicts about as well as the best within so much elpd or so many standard errors of the difference."""
SMALL_SAMPLE = 100
Q_PRIOR_SD = Q_MAX / np.sqrt(12.0)
FIT: dict[str, Any] = {"draws": 1000, "tune": 800, "chains": 4}


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
    return (FloorStructure("none"), *several)


def parameters(structure: FloorStructure, cells: Cells, classes: Mapping[str, str]) -> int:
    """Free parameters of the floors, the measure of simplicity: floors, growth with launches, latency, q."""
    if structure.sharing is None:
        return 0
    groups = structure.groups(cells, classes)
    floors = len(set(zip(cells.gpu_code.tolist(), groups.code.tolist(), strict=True)))
    growth = len(cells.gpus) * structure.sharing.per_launch + structure.sharing.kernel_latency
    return floors + growth + structure.q_free


# ---- one structure ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Task:
    """One structure on one data set, as a worker gets it."""

    cells: Cells
    work: Work
    classes: Mapping[str, str]
    structure: FloorStructure
    likelihood: str
    seed: int
    folds: tuple[tuple[str, str, NDArray[np.bool_]], ...] = ()

    def compiled(self) -> "Compiled":
        from models.bayes import build_model
        from models.sampling import compile_model

        likelihood: Any = self.likelihood
        model = build_model(self.cells, self.work, self.classes, self.structure, "free", likelihood=likelihood)
        return compile_model(model)

    def without(self, compiled: "Compiled", out: NDArray[np.bool_]) -> dict[str, Array]:
        """The model's data without the cells of `out` [cell]."""
        return {n: v[~out] for n, v in compiled.data.items() if compiled.dims.get(n, ())[:1] == ("cell",)}

    def log_density(self, posterior: Any, at: NDArray[np.bool_] | None = None) -> Array:
        """Log density of the measured steps where `at` [cell], under each draw, [draw, cell]."""
        return self.distribution(posterior, at).log_density(self._measured(at))

    def distribution(self, posterior: Any, at: NDArray[np.bool_] | None = None) -> Any:
        from models.bayes import rows, step_distribution

        cells, work = (self.cells, self.work) if at is None else (self.cells.where(at), rows(self.work, at))
        rng = np.random.default_rng(self.seed)
        return step_distribution(posterior, cells, self.classes, self.structure, rng, work=work)

    def _measured(self, at: NDArray[np.bool_] | None) -> Array:
        assert self.cells.step_ms is not None
        return self.cells.step_ms if at is None else self.cells.step_ms[at]


def _contend(task: _Task) -> dict[str, ArrayLike]:
    """Fit one structure and score it: elpd of each cell, exact where PSIS is not to be trusted."""
    from arviz_stats.base import array_stats

    from models.sampling import fit_gated

    compiled = task.compiled()
    fit = fit_gated(compiled, seed=task.seed, refuse=False, cores=1, **FIT)
    posterior = fit.posterior
    chains, draws = posterior.sizes["chain"], posterior.sizes["draw"]
    log = task.log_density(posterior).reshape(chains, draws, -1)
    elpd, k, p = (np.array(v, dtype=float) for v in array_stats.loo(log, chain_axis=0, draw_axis=1))
    exact, refused = np.zeros(len(k), bool), 0
    for cell in np.flatnonzero(~(k <= GOOD_K)):
        out = np.arange(len(k)) == cell
        again = fit_gated(compiled, task.without(compiled, out), seed=task.seed + 1, refuse=False, cores=1, **FIT)
        refused += not again.passed
        if again.passed:
            elpd[cell] = _log_mean(task.log_density(again.posterior, out))[0]
            exact[cell] = True
    found = fit.diagnostics
    result: dict[str, ArrayLike] = {
        "elpd": elpd,
        "pareto_k": k,
        "p": p,
        "exact": exact,
        "passed": fit.passed and refused == 0,
        "failures": "; ".join(fit.attempts[-1].failures) or (f"{refused} exact refits failed" if refused else ""),
        "rhat": found.rhat,
        "ess": min(found.ess_bulk, found.ess_tail),
        "divergences": found.divergences,
        "attempts": len(fit.attempts),
        "informative": _informative(task, posterior),
    }
    if task.structure.q_free:
        result["q"] = np.ravel(posterior["q"])
    return result | _leftover(task, posterior)


def _informative(task: _Task, posterior: Any) -> float:
    """Share of cells whose T/H lies in [1/3, 3] at the posterior mean: only they tell added from overlapped."""
    if not task.structure.positive or task.structure.sharing is None:
        return float("nan")
    from models.bayes import efficiency_of, floors_of
    from models.roofline import work_ms

    T = work_ms(task.work, efficiency_of(posterior)).mean(0)
    rng = np.random.default_rng(task.seed)
    H = floors_of(posterior, task.cells, task.classes, task.structure, rng, work=task.work).mean(0)
    return float(((T / H >= 1 / 3) & (T / H <= 3)).mean())


TRENDS = ("log batch", "log context", "log T_gpu")


def _leftover(task: _Task, posterior: Any) -> dict[str, ArrayLike]:
    """What the fit leaves over: trends of standardised residuals and a posterior predictive check of their size.

    `trend` [draw, 3]: slopes of the residual, in units of its sd, per sd of each of `TRENDS`, one at a time.
    `largest_p`: posterior predictive p of the largest |residual|.
    """
    from models.bayes import efficiency_of
    from models.roofline import work_ms

    found = task.distribution(posterior)
    z = (task._measured(None) - found.step_ms) / found.sd_ms
    T = work_ms(task.work, efficiency_of(posterior)).mean(0)
    covariates = np.stack([np.log(task.cells.batch), np.log(task.cells.context + 1.0), np.log(T)], -1)
    spread = covariates.std(0)
    scaled = (covariates - covariates.mean(0)) / np.where(spread > 0, spread, 1.0)
    rng = np.random.default_rng(task.seed + 2)
    again = (found.sample(rng) - found.step_ms) / found.sd_ms
    largest = float((np.abs(again).max(1) >= np.abs(z).max(1)).mean())
    return {"trend": z @ scaled / len(scaled), "largest_p": largest}


def _log_mean(log: Array) -> Array:
    """log mean exp over draws, [draw, ...] -> [...]."""
    top = log.max(0)
    return np.asarray(top + np.log(np.exp(log - top).mean(0)))


def _leave_out(task: _Task) -> dict[str, ArrayLike]:
    """Exact refits without each fold, and how the cells left out were predicted."""
    from models.sampling import fit_gated

    compiled = task.compiled()
    rows = []
    for _, _, out in task.folds:
        fit = fit_gated(compiled, task.without(compiled, out), seed=task.seed + 3, refuse=False, cores=1, **FIT)
        found = task.distribution(fit.posterior, out)
        measured = task._measured(out)
        drawn = np.sort(found.sample(np.random.default_rng(task.seed + 4)), axis=0)
        low, high = np.quantile(drawn, [0.05, 0.95], axis=0)
        inner_low, inner_high = np.quantile(drawn, [0.25, 0.75], axis=0)
        rows.append(
            (
                float(((inner_low <= measured) & (measured <= inner_high)).mean()),
                float(((low <= measured) & (measured <= high)).mean()),
                float(((high - low) / measured).mean()),
                float(_log_mean(found.log_density(measured).sum(1, keepdims=True))[0]),
                float(fit.passed),
            )
        )
    return {"folds": np.array(rows, dtype=float).reshape(-1, 5)}


def folds(cells: Cells) -> tuple[tuple[str, str, NDArray[np.bool_]], ...]:
    """(kind, name, cells left out [cell]): each model, each SKU, each (model, SKU), where others remain."""
    found = [("model", m, cells.model == m) for m in cells.models]
    found += [("gpu", g, cells.gpu == g) for g in cells.gpus]
    pairs = dict.fromkeys(zip(cells.model.tolist(), cells.gpu.tolist(), strict=True))
    if len(cells.models) > 1 and len(cells.gpus) > 1:
        found += [("model, gpu", f"{m} on {g}", (cells.model == m) & (cells.gpu == g)) for m, g in pairs]
    return tuple(f for f in found if not f[2].all())


def baseline_log_score(cells: Cells, out: NDArray[np.bool_]) -> float:
    """Joint log density of the steps left out under no model of the hardware.

    Least squares of log step on log batch and log context over the other cells, whatever their model and SKU, with
    its predictive Student t.
    """
    from scipy import stats

    assert cells.step_ms is not None
    X = np.stack([np.ones(len(cells)), np.log(cells.batch), np.log(cells.context + 1.0)], -1)
    y = np.log(cells.step_ms)
    inside, outside = X[~out], X[out]
    freedom = max(len(inside) - int(np.linalg.matrix_rank(inside)), 1)
    inverse = np.linalg.pinv(inside.T @ inside)
    beta = inverse @ inside.T @ y[~out]
    variance = float(((y[~out] - inside @ beta) ** 2).sum()) / freedom
    shape = variance * (np.eye(len(outside)) + outside @ inverse @ outside.T)
    log = stats.multivariate_t.logpdf(y[out], outside @ beta, shape, df=freedom)
    return float(log - y[out].sum())


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
    likelihood : dict
        The chosen structure under Normal and Student-t noise; empty without refits.
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
    likelihood: dict[str, Any]
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
        return "\n".join([*lines, "", *(f"warning: {w}" for w in self.warnings)])

    def plot(self, ax: "Axes | None" = None) -> "Axes":
        """elpd below the best with two standard errors of the difference, per structure."""
        from validate import plots

        return plots.structures(self, ax=ax)


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
        Whether the chosen structure is fitted with Student-t noise too, and it and the study's without each model,
        SKU and pair.
    jobs, dask, folder
        See `validate.runner.run`.

    Raises
    ------
    GateError
        No structure's fit passed its gate.
    InputError
        The study's data cannot be used.
    """
    from validate.errors import GateError
    from validate.runner import run

    measurements = measurements or study.measurements()
    cells = measurements.cells()
    classes = {m: study.class_of(m) for m in cells.models}
    work = stack_work(cells, measurements.shapes, measurements.gpus, experts=study.efficiency.experts)
    seed = study.seed if seed is None else seed
    contenders = tuple(structures or candidates(classes))
    options: dict[str, Any] = {"jobs": jobs, "dask": dask, "folder": folder, "progress": not quiet}

    def task(structure: FloorStructure, likelihood: str = "normal", some: Any = ()) -> _Task:
        return _Task(cells, work, classes, structure, likelihood, seed, some)

    def key(kind: str, structure: FloorStructure, likelihood: str = "normal") -> str:
        return f"{kind} {study.hash} {seed} {structure!r} {likelihood} {FIT!r} {len(cells)}"

    found = run(
        _contend, [task(s) for s in contenders], keys=[key("fit", s) for s in contenders], desc="structures", **options
    )
    rows = _rows(contenders, found, cells, classes)
    if rows[0]["elpd"] is None:
        raise GateError(f"no floor structure's fit passed its gate ({rows[0]['name']}: {rows[0]['gate']})")
    chosen = _chosen(rows)
    by_name = {str(s): (s, r) for s, r in zip(contenders, found, strict=True)}
    best, best_result = by_name[chosen]
    left_out: list[dict[str, Any]] = []
    likelihood: dict[str, Any] = {}
    if refits:
        student = run(
            _contend, [task(best, "student")], keys=[key("fit", best, "student")], desc="likelihood", **options
        )[0]
        likelihood = _likelihoods(best_result, student)
        some = tuple(dict.fromkeys([best, *(s for s in contenders if s == STUDY)]))
        out = folds(cells)
        results = run(
            _leave_out,
            [task(s, some=out) for s in some],
            keys=[key("leave out", s) for s in some],
            desc="left out",
            **options,
        )
        base = [baseline_log_score(cells, mask) for _, _, mask in out]
        left_out = [
            {
                "structure": str(s),
                "kind": kind,
                "left_out": name,
                "cells": int(mask.sum()),
                "coverage_50": row[0],
                "coverage_90": row[1],
                "relative_width_90": row[2],
                "log_score": row[3],
                "baseline_log_score": base[i],
                "passed": bool(row[4]),
            }
            for s, result in zip(some, results, strict=True)
            for i, ((kind, name, mask), row) in enumerate(zip(out, result["folds"].tolist(), strict=True))
        ]
    overlap = _overlap(rows, by_name)
    notes = _notes(rows, cells, measurements)
    return Comparison(
        rows,
        chosen,
        overlap,
        left_out,
        _trends(best_result["trend"]),
        likelihood,
        notes,
        _answer(rows, chosen, overlap),
        len(cells),
        measurements.label,
    )


def _rows(
    contenders: Sequence[FloorStructure], found: Sequence[Mapping[str, Any]], cells: Cells, classes: Mapping[str, str]
) -> list[dict[str, Any]]:
    """Rows of the table, best first; failed fits last."""
    good = [(s, r) for s, r in zip(contenders, found, strict=True) if r["passed"]]
    weights = dict(zip((str(s) for s, _ in good), stacking_weights([r["elpd"] for _, r in good]), strict=True))
    top = max((r["elpd"] for _, r in good), key=np.sum, default=None)
    rows = []
    for s, r in zip(contenders, found, strict=True):
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


def stacking_weights(elpd: Sequence[Array]) -> Array:
    """Weights of a mixture of predictions that scores best, [structure], from the elpd of each cell."""
    if len(elpd) < 2:
        return np.ones(len(elpd))
    import arviz_stats
    import xarray as xr
    from arviz_stats.utils import ELPDDataLOO

    def wrapped(values: Array) -> Any:
        n = len(values)
        return ELPDDataLOO(
            elpd=float(values.sum()),
            se=float(np.sqrt(n * values.var())),
            p=float("nan"),
            n_samples=1,
            n_data_points=n,
            scale="log",
            warning=False,
            good_k=GOOD_K,
            elpd_i=xr.DataArray(values, dims="cell"),
            pareto_k=xr.DataArray(np.zeros(n), dims="cell"),
        )

    with warnings.catch_warnings():  # p is not known here, and not needed
        warnings.simplefilter("ignore")
        table = arviz_stats.compare({str(i): wrapped(v) for i, v in enumerate(elpd)}, round_to="none")
    return table["weight"].reindex([str(i) for i in range(len(elpd))]).to_numpy(dtype=float)


def is_close(row: Mapping[str, Any]) -> bool:
    """Whether a structure predicts about as well as the best."""
    return row["elpd"] is not None and -row["elpd_diff"] <= max(CLOSE_ELPD, CLOSE_SE * row["dse"])


def _chosen(rows: Sequence[Mapping[str, Any]]) -> str:
    close = [row for row in rows if is_close(row)]
    return str(min(close, key=lambda row: (row["parameters"], -row["elpd"]))["name"])


def _overlap(
    rows: Sequence[Mapping[str, Any]], by_name: Mapping[str, tuple[FloorStructure, Mapping[str, Any]]]
) -> dict[str, Any]:
    """q of the best structure that frees it."""
    free = [row["name"] for row in rows if row["elpd"] is not None and by_name[row["name"]][0].q_free]
    if not free:
        return {"structure": None, "identified": False}
    found = by_name[free[0]][1]
    q = found["q"]
    low, high = np.quantile(q, [0.05, 0.95])
    with np.errstate(divide="ignore"):
        p = 1.0 / np.array([np.median(q), high, low])
    return {
        "structure": free[0],
        "q": {"mean": float(q.mean()), "sd": float(q.std()), "low_90": float(low), "high_90": float(high)},
        "p": {"median": float(p[0]), "low_90": float(p[1]), "high_90": float(p[2])},
        "identified": bool(q.std() <= 0.5 * Q_PRIOR_SD),
        "misfit": float((q > 1.0).mean()),
        "informative_share": found["informative"].item(),
    }


def _trends(slopes: Array) -> list[dict[str, Any]]:
    return [
        {
            "trend": name,
            "slope": float(s.mean()),
            "low_90": float(np.quantile(s, 0.05)),
            "high_90": float(np.quantile(s, 0.95)),
        }
        for name, s in zip(TRENDS, slopes.T, strict=True)
    ]


def _likelihoods(normal: Mapping[str, Any], student: Mapping[str, Any]) -> dict[str, Any]:
    """Normal against Student-t noise: elpd difference and the posterior predictive p of the largest residual."""
    if not student["passed"]:
        return {"normal_largest_p": normal["largest_p"].item(), "student": str(student["failures"])}
    gap = student["elpd"] - normal["elpd"]
    return {
        "student_minus_normal_elpd": float(gap.sum()),
        "dse": float(np.sqrt(len(gap) * gap.var())),
        "normal_largest_p": normal["largest_p"].item(),
        "student_largest_p": student["largest_p"].item(),
    }


def _notes(rows: Sequence[Mapping[str, Any]], cells: Cells, measurements: "Measurements") -> list[str]:
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
    if np.isnan(measurements.repeat_spread()):
        notes.append("No cell was measured twice: noise and what the structure leaves over cannot be told apart.")
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
    kind = "close to none" if q["low_90"] > 0.85 else "close to full" if q["high_90"] < 0.15 else "partial"
    return words + (
        f"; overlap of host and GPU is {kind}: q {q['mean']:.2f} [{q['low_90']:.2f}, {q['high_90']:.2f}] "
        "(1: added, 0: the longer of the two)."
    )
