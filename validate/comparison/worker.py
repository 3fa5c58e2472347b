"""One floor structure on one data set, as a worker fits it: scores, what is left over, refits without cells, the cut.

Constants are free, one set for all SKUs; every fit goes through the gate. Results are arrays by name, so that
`common.runner` can keep them.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from arviz_stats.base import array_stats
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from rooffloor.models.floor.structures import FloorStructure
from rooffloor.models.inference.cut import cut_of_steps
from rooffloor.models.inference.cut_model import CutModels, cut_models
from rooffloor.models.inference.gate import Gate, GateFailure
from rooffloor.models.inference.prior_density import log_prior
from rooffloor.models.inference.priors import DEFAULT_PRIORS, Priors
from rooffloor.models.inference.sampling import ESCALATION, Compiled, Fit, compile_model, fit_gated
from rooffloor.models.inference.step_distribution import StepDistribution, efficiency_of, floors_of, step_distribution
from rooffloor.models.inference.steps import StepModel
from rooffloor.models.roof.kernels import Work
from rooffloor.models.roof.roofline import work_ms
from rooffloor.models.specs.cells import Cells
from rooffloor.validate.comparison.ranking import GOOD_K
from rooffloor.validate.comparison.tension import shared_constants, tension
from rooffloor.validate.estimates.prior_sensitivity import power_scaling

type Array = NDArray[np.float64]
type Mask = NDArray[np.bool_]

FEW = 5
"""Where more cells have a larger Pareto k, the posterior is drawn again at the next step of the escalation first."""
FIT: dict[str, Any] = {"draws": 600, "tune": 600, "chains": 4}
GATE = Gate(rhat=1.02, ess=200.0, divergences=2)
"""What is reported of a structure is its elpd, whose standard error over cells is some units: a laxer gate does, with
one divergence in a thousand draws."""
SHORT: dict[str, Any] = {"draws": 200, "tune": 300, "chains": 4, "target_accept": 0.9}
SHORT_GATE = Gate(rhat=1.05, ess=60.0, divergences=10, nuisance_rhat=1.1, nuisance_ess=30.0)
"""Of short fits, and what they must meet: enough for an elpd that is compared with others to some units."""
TRENDS = ("log batch", "log context", "log T_gpu")
REFERENCE = 39
"""Simulated data sets behind the reference distribution of the transfer tension."""


@dataclass(frozen=True, eq=False)
class Task:
    """One structure on one data set.

    Attributes
    ----------
    cells, work, classes
        With steps; see `StepModel`.
    structure : FloorStructure
    likelihood : "normal" or "student"
    seed : int
    anchor : str
        Whose cells alone inform the constants under the cut.
    folds : tuple of (kind, name, cells left out [cell])
    cores : int
        Chains at a time; no draw depends on it.
    attempts : int
        Steps of the escalation that a fit may take.
    """

    cells: Cells
    work: Work
    classes: Mapping[str, str]
    structure: FloorStructure
    likelihood: Literal["normal", "student"]
    seed: int
    anchor: str
    folds: tuple[tuple[str, str, Mask], ...] = ()
    cores: int = 1
    priors: Priors = DEFAULT_PRIORS
    attempts: int = len(ESCALATION)

    def compiled(self) -> Compiled:
        """The model of the cells, compiled."""
        from rooffloor.models.inference.sampling import compile_model

        data = self.cells, self.work, self.classes, self.structure
        return compile_model(StepModel(*data, "free", likelihood=self.likelihood, priors=self.priors))

    def stages(self) -> CutModels:
        """The models of the two stages of a cut at the anchor."""
        data = self.cells, self.work, self.classes, self.structure
        return cut_models(*data, self.anchor, likelihood=self.likelihood, priors=self.priors)

    def fit(
        self,
        compiled: Compiled,
        data: Mapping[str, ArrayLike] | None = None,
        *,
        more: int = 0,
        first: int = 0,
        shorter: bool = False,
    ) -> Fit:
        """Gated fit with seed `seed` + `more`, from step `first` of the escalation; one that fails is returned too.

        `shorter`: that step's target_accept, with no more draws than the very first has.
        """
        steps = ESCALATION[first : self.attempts]
        if shorter:
            steps = tuple((target_accept, factor // steps[0][1]) for target_accept, factor in steps)
        return fit_gated(
            compiled, data, seed=self.seed + more, refuse=False, escalation=steps, cores=self.cores, gate=GATE, **FIT
        )

    def without(self, compiled: Compiled, out: Mask) -> dict[str, Array]:
        """The model's data without the cells of `out` [cell]."""
        return {n: v[~out] for n, v in compiled.data.items() if compiled.dims.get(n, ())[:1] == ("cell",)}

    def distribution(self, posterior: Any, at: Mask | None = None) -> StepDistribution:
        """What the draws say of the cells where `at` [cell] (default: of all)."""
        cells, work = (self.cells, self.work) if at is None else (self.cells.where(at), self.work.where(at))
        return step_distribution(posterior, cells, self.classes, self.structure, work=work)

    def measured(self, at: Mask | None = None) -> Array:
        """Measured steps [cell], ms."""
        assert self.cells.step_ms is not None
        return self.cells.step_ms if at is None else self.cells.step_ms[at]


def log_mean(log: Array) -> Array:
    """log mean exp over draws, [draw, ...] -> [...]."""
    top = log.max(0)
    return np.asarray(top + np.log(np.exp(log - top).mean(0)))


# ---- scores -----------------------------------------------------------------------------------------------------


def leave_one_out(task: Task, posterior: Any) -> tuple[Array, Array, Array, Array]:
    """PSIS-LOO of every cell: elpd, Pareto k and p [cell]; and the log densities (chain, draw, cell) behind them.

    NaN with k = inf where a chain that did not move leaves no tail to smooth.
    """
    chains, draws = posterior.sizes["chain"], posterior.sizes["draw"]
    log = task.distribution(posterior).log_density(task.measured()).reshape(chains, draws, -1)
    try:
        elpd, k, p = (np.array(v, dtype=float) for v in array_stats.loo(log, chain_axis=0, draw_axis=1))
    except ValueError:  # "All tail values are the same"
        nothing = np.full(log.shape[-1], np.nan)
        return nothing, np.full(log.shape[-1], np.inf), nothing, log
    return elpd, k, p, log


def screen(task: Task) -> dict[str, ArrayLike]:
    """As `score`, from one short fit under a laxer gate and without exact refits; `short` is in it.

    Where Pareto k exceeds 0.7 for some cells PSIS puts their elpd too high by little; which structures come near the
    best it does not change. `ceiling` [cell] is the log density of the cells themselves under the chain that fits them
    best: more than a fit that has settled would predict, whether or not this one has.
    """
    fit = task.compiled().fit(seed=task.seed + 8, cores=task.cores, gate=SHORT_GATE, **SHORT)
    elpd, k, p, log = leave_one_out(task, fit.posterior)
    ceiling = max((log_mean(chain) for chain in log), key=np.sum)
    passed = fit.passed and bool(np.isfinite(elpd).all())
    failures = "; ".join(fit.attempts[-1].failures) or ("" if passed else "its elpd is not finite")
    found = _scored(task, fit, elpd, k, p, np.zeros(len(k), bool))
    return found | {"passed": passed, "failures": failures, "sensitivity": "[]", "short": True, "ceiling": ceiling}


def score(task: Task) -> dict[str, ArrayLike]:
    """Fit and score: elpd of each cell (exact where PSIS is not to be trusted), constants, what is left over."""
    compiled = task.compiled()
    fit = task.fit(compiled)
    elpd, k, p, log = leave_one_out(task, fit.posterior)
    step = len(fit.attempts) - 1
    if fit.passed and (~(k <= GOOD_K)).sum() > FEW and step < task.attempts - 1:
        longer = task.fit(compiled, more=2, first=step + 1)  # one stray draw spoils many cells: more draws cost less
        if longer.passed:
            fit = longer
            elpd, k, p, log = leave_one_out(task, fit.posterior)
    posterior = fit.posterior
    exact, refused = np.zeros(len(k), bool), False
    for cell in np.flatnonzero(~(k <= GOOD_K)) if fit.passed else ():
        out = np.arange(len(k)) == cell
        again = task.fit(compiled, task.without(compiled, out), more=1, first=step, shorter=True)
        if not again.passed:  # without this cell's score there is no comparison: no need of the others
            refused = True
            break
        elpd[cell] = log_mean(task.distribution(again.posterior, out).log_density(task.measured(out)))[0]
        exact[cell] = True
    return _scored(task, fit, elpd, k, p, exact) | {
        "passed": fit.passed and not refused,
        "failures": "; ".join(fit.attempts[-1].failures) or ("an exact refit failed" if refused else ""),
        "sensitivity": json.dumps(_sensitivity(task, posterior, log) if fit.passed else []),
    }


def _scored(task: Task, fit: Fit, elpd: Array, k: Array, p: Array, exact: Mask) -> dict[str, ArrayLike]:
    """What a fit and its scores say, but for whether it passed."""
    found, posterior = fit.diagnostics, fit.posterior
    result: dict[str, ArrayLike] = {
        "elpd": elpd,
        "pareto_k": k,
        "p": p,
        "exact": exact,
        "rhat": found.rhat,
        "ess": min(found.ess_bulk, found.ess_tail),
        "divergences": found.divergences,
        "attempts": len(fit.attempts),
        "noise": np.sqrt((posterior["noise_relative"].to_numpy() ** 2).mean()),
    }
    constants = {f"constant_{name}": values for name, values in shared_constants(posterior).items()}
    return result | constants | _leftover(task, posterior)


POSITIVE = ("l_half", "launch_ms", "latency_ms", "noise_relative")
"""Quantities with long upper tails, which power-scaling must see as logarithms; floors H >= 0 too."""


def _sensitivity(task: Task, posterior: Any, log: Array) -> list[dict[str, Any]]:
    """Power-scaling of what the fit says: constants, overlap, floors and how they grow, noise."""
    logged = (*POSITIVE, *(("floor_ms",) if task.structure.positive else ()))
    quantities = {}
    for name in ("eta_bw", "eta_fa", "eta_tc", "q", "launch_share", "floor_ms", *POSITIVE):
        if name not in posterior:
            continue
        values = np.log(posterior[name]) if name in logged else posterior[name]
        shown = f"log {name}" if name in logged else name
        for at in np.ndindex(values.shape[2:]):
            labels = [str(values[dim].values[i]) for dim, i in zip(values.dims[2:], at, strict=True)]
            quantities[f"{shown} [{', '.join(labels)}]" if at else shown] = values.to_numpy()[(..., *at)]
    return power_scaling(quantities, log_prior(posterior, task.structure, task.priors), log)


def _leftover(task: Task, posterior: Any) -> dict[str, ArrayLike]:
    """What the fit leaves over: trends of standardised residuals and a posterior predictive check of their size.

    `trend` [draw, 3]: slopes of the residual, in units of its sd, per sd of each of `TRENDS`, one at a time.
    `largest_p`: posterior predictive p of the largest |residual|. `floor_mean`, `floor_sd` [cell], ms.
    `informative`: share of cells whose T/H lies in [1/3, 3] at the posterior mean; only they tell added from
    overlapped (NaN for signed floors).
    """
    found = task.distribution(posterior)
    z = (task.measured() - found.step_ms) / found.sd_ms
    T = work_ms(task.work, efficiency_of(posterior)).mean(0)
    covariates = np.stack([np.log(task.cells.batch), np.log(task.cells.context + 1.0), np.log(T)], -1)
    spread = covariates.std(0)
    scaled = (covariates - covariates.mean(0)) / np.where(spread > 0, spread, 1.0)
    rng = np.random.default_rng(task.seed + 2)
    again = (found.sample(rng) - found.step_ms) / found.sd_ms
    result: dict[str, ArrayLike] = {
        "trend": z @ scaled / len(scaled),
        "largest_p": float((np.abs(again).max(1) >= np.abs(z).max(1)).mean()),
        "informative": float("nan"),
    }
    if task.structure.sharing is None:
        return result
    floors = floors_of(posterior, task.cells, task.classes, task.structure, work=task.work)
    H = floors.mean(0)
    if task.structure.positive:
        result["informative"] = float(((T / H >= 1 / 3) & (T / H <= 3)).mean())
    return result | {"floor_mean": H, "floor_sd": floors.std(0)}


# ---- refits without some cells ----------------------------------------------------------------------------------


def folds(cells: Cells) -> tuple[tuple[str, str, Mask], ...]:
    """(kind, name, cells left out [cell]): each model, each SKU, each (model, SKU), where others remain."""
    found = [("model", m, cells.model == m) for m in cells.models]
    found += [("gpu", g, cells.gpu == g) for g in cells.gpus]
    pairs = dict.fromkeys(zip(cells.model.tolist(), cells.gpu.tolist(), strict=True))
    if len(cells.models) > 1 and len(cells.gpus) > 1:
        found += [("model, gpu", f"{m} on {g}", (cells.model == m) & (cells.gpu == g)) for m, g in pairs]
    return tuple(f for f in found if not f[2].all())


def leave_out(task: Task) -> dict[str, ArrayLike]:
    """Exact refits without each fold, and how the cells left out were predicted.

    `folds` [fold, 5]: shares of 50 and 90 % intervals that cover, mean relative width of the latter, joint log score,
    whether the fit passed.
    """
    compiled = task.compiled()
    rows = []
    for _, _, out in task.folds:
        fit = task.fit(compiled, task.without(compiled, out), more=3)
        found = task.distribution(fit.posterior, out)
        measured = task.measured(out)
        drawn = found.sample(np.random.default_rng(task.seed + 4))
        low, inner_low, inner_high, high = np.quantile(drawn, [0.05, 0.25, 0.75, 0.95], axis=0)
        rows.append(
            (
                float(((inner_low <= measured) & (measured <= inner_high)).mean()),
                float(((low <= measured) & (measured <= high)).mean()),
                float(((high - low) / measured).mean()),
                float(log_mean(found.log_density(measured).sum(1, keepdims=True))[0]),
                float(fit.passed),
            )
        )
    return {"folds": np.array(rows, dtype=float).reshape(-1, 5)}


def baseline_log_score(cells: Cells, out: Mask) -> float:
    """Joint log density of the steps left out under no model of the hardware.

    Least squares of log step on log batch and log context over the other cells, whatever their model and SKU, with
    its predictive Student t.
    """
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


# ---- the cut ----------------------------------------------------------------------------------------------------


def upstream(task: Task) -> dict[str, ArrayLike]:
    """Constants from the anchor's cells alone, `constant_*` (draw,): their distribution under the cut."""
    fit = task.fit(compile_model(task.stages().upstream), more=5)
    constants: dict[str, ArrayLike] = {f"constant_{n}": v for n, v in shared_constants(fit.posterior).items()}
    return constants | {"passed": fit.passed, "failures": "; ".join(fit.attempts[-1].failures)}


def tension_reference(task: Task) -> dict[str, ArrayLike]:
    """Transfer tension of data sets simulated from the joint posterior, `statistic` [data set]; failed fits are NaN."""
    compiled, alone = task.compiled(), compile_model(task.stages().upstream)
    drawn = task.distribution(task.fit(compiled).posterior).sample(np.random.default_rng(task.seed + 6))
    at = task.cells.model == task.anchor
    statistic = []
    for k, row in enumerate(np.linspace(0, len(drawn) - 1, REFERENCE).round().astype(int)):
        again = replace(task, seed=task.seed + 10 + k)
        joint = again.fit(compiled, {"measured_ms": drawn[row]})
        own = again.fit(alone, {"measured_ms": drawn[row][at]})
        both = joint.passed and own.passed
        found = tension(shared_constants(own.posterior), shared_constants(joint.posterior)) if both else None
        statistic.append(np.nan if found is None else found.statistic)
    return {"statistic": np.array(statistic, dtype=float)}


def cut_floors(task: Task) -> dict[str, ArrayLike]:
    """Floors under the cut of the cells that are not the anchor's, `mean` and `sd` [cell of them], ms.

    `failed`: why the second stage was refused, if it was.
    """
    stages = task.stages()
    first = task.fit(compile_model(stages.upstream), more=5)
    theirs = task.cells.model != task.anchor
    others, work = task.cells.where(theirs), task.work.where(theirs)
    try:
        found = cut_of_steps(first.posterior, stages, seed=task.seed + 7, jobs=1)
    except GateFailure as error:
        nothing = np.full(len(others), np.nan)
        return {"mean": nothing, "sd": nothing, "failed": str(error)}
    floors = floors_of(found.posterior, others, task.classes, task.structure, work=work)
    return {"mean": floors.mean(0), "sd": floors.std(0), "failed": ""}
