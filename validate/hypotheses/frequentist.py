"""The frequentist school of H1: is a family's residual MAPE less than a margin above the anchor's? (DESIGN section 6)

Every test but that of the slope reads the same differences: absolute relative error of the family minus that of the
anchor, percent, [gpu, grid cell], NaN where either was not measured. Its null hypothesis is that their mean is the
margin or more, so that a small p-value speaks for transfer. Cells of one GPU share a floor and all GPUs share the
grid: only tests whose unit is the GPU (or the die) keep their size. Those whose unit is the cell are kept beside them
to show what they would claim, and say *pseudo-replicated* in every result.

Functions that end in `_batch` take any leading axes (simulated studies) and return `TTests`; those without are the
same test of one study, as a `TestResult`.
"""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import stdtr
from scipy.stats import bootstrap

from rooffloor.validate.estimates.metrics import pooled

type Array = NDArray[np.float64]

ESTIMAND = "mean difference of absolute relative errors under the anchor's floor, family minus anchor, in points"

NULL_SPREAD = 1e-12
"""A standard error below this share of the largest difference is rounding, not spread."""

LEAST_WITHIN = 1e-5
"""Below this share of the largest difference, spread within clusters is lost in the rounding of a mixed model."""

PSEUDO = "pseudo-replicated: cells of one GPU share a floor, so that the p-value is too small"
TOO_FEW = "fewer than 2 clusters"
NO_SPREAD = "no spread to judge by"
REPLACED = "the two-way variance estimate is not positive; the larger of the one-way ones stands in for it"
ON_BOUNDARY = "variance of the intercepts at 0: the standard error is that of independent cells"


@dataclass(frozen=True)
class TestResult:
    """One test of one study.

    Attributes
    ----------
    name : str
    statistic : float
        (estimate - null value) / standard error.
    df : float
        Of the t distribution; NaN where none is used.
    p_value : float
        NaN where there is no test: fewer than 2 clusters, no spread, or a fit that failed.
    estimate, standard_error : float
        Points of MAPE; a pure number for the slope.
    pseudo_replicated : bool
        Whether cells that share a floor count as replicates.
    converged : bool
        False only where an iterative fit did not converge.
    note : str
        What a reader must know beside the number; empty where nothing.
    """

    name: str
    statistic: float
    df: float
    p_value: float
    estimate: float
    standard_error: float
    pseudo_replicated: bool
    converged: bool
    note: str

    def __repr__(self) -> str:
        parts = [f"{self.name}: {self.estimate:z.3g} +- {self.standard_error:.2g}"]
        if self.p_value == self.p_value:
            parts.append(f"statistic {self.statistic:z.2f}")
            if self.df == self.df:
                parts.append(f"df {self.df:g}")
            parts.append("p < 0.0001" if self.p_value < 1e-4 else f"p = {self.p_value:.2g}")
        else:
            parts.append("no p-value")
        if not self.converged:
            parts.append("not converged")
        return ", ".join(parts) + (f" [{self.note}]" if self.note else "")

    @property
    def data(self) -> dict[str, Any]:
        """As JSON: numbers that are not finite are None."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return {k: None if isinstance(v, float) and not np.isfinite(v) else v for k, v in values.items()}


@dataclass(frozen=True, eq=False)
class TTests:
    """The same t-test of many studies; every array has shape (...), the leading axes of the data.

    Attributes
    ----------
    statistic, df, p_value, estimate, standard_error : float arrays
        As in `TestResult`; a study without a test has a NaN p-value, which is below no level.
    replaced : bool array
        Whether another variance stands in for one that is not positive.
    """

    statistic: Array
    df: Array
    p_value: Array
    estimate: Array
    standard_error: Array
    replaced: NDArray[np.bool_]

    def __repr__(self) -> str:
        return f"TTests({self.p_value.size} tests, {100 * np.mean(self.p_value < 0.05):.1f} % with p < 0.05)"

    def single(self, name: str, *, pseudo_replicated: bool = False, note: str = "") -> TestResult:
        """The result of a batch of one study (0-dimensional arrays)."""
        p_value = float(self.p_value)
        notes = [PSEUDO] if pseudo_replicated else []
        notes += [note] if note else []
        if p_value != p_value:
            notes.append(NO_SPREAD if self.df >= 1 else "fewer than 2 cells" if pseudo_replicated else TOO_FEW)
        elif self.replaced:
            notes.append(REPLACED)
        return TestResult(
            name,
            float(self.statistic),
            float(self.df),
            p_value,
            float(self.estimate),
            float(self.standard_error),
            pseudo_replicated,
            True,
            "; ".join(notes),
        )


# ---- pieces ---------------------------------------------------------------------------------------------------


def differences(family: ArrayLike, anchor: ArrayLike) -> Array:
    """Family minus anchor, points: shape (..., gpu, cell); NaN where either was not measured.

    Parameters
    ----------
    family, anchor : array_like, shape (..., gpu, cell)
        Absolute relative errors under the anchor's floor, percent, paired by grid cell.
    """
    a, b = np.asarray(family, dtype=float), np.asarray(anchor, dtype=float)
    if a.shape != b.shape or a.ndim < 2:
        raise ValueError(f"family and anchor must have one shape (..., gpu, cell), got {a.shape} and {b.shape}")
    return np.asarray(a - b)


def cluster_codes(gpus: Sequence[str], clusters: Mapping[str, str] | None = None) -> NDArray[np.int64]:
    """Cluster of each GPU as a code from 0; a GPU that `clusters` does not name is a cluster of its own.

    Parameters
    ----------
    gpus : sequence of str
    clusters : mapping of GPU to cluster
        GPUs that are not independent, such as {"H100": "Hopper", "H200": "Hopper"}: one die.

    Returns
    -------
    int array, shape (gpu,)
    """
    names = [(clusters or {}).get(gpu, gpu) for gpu in gpus]
    codes: NDArray[np.int64] = np.unique(names, return_inverse=True)[1]
    return codes


def _paired(
    family: ArrayLike, anchor: ArrayLike, gpus: Sequence[str], clusters: Mapping[str, str] | None
) -> tuple[Array, NDArray[np.bool_]]:
    """Differences [..., gpu, cell], and which GPU is in which cluster, [gpu, cluster]."""
    difference, codes = differences(family, anchor), cluster_codes(gpus, clusters)
    if len(codes) != difference.shape[-2]:
        raise ValueError(f"{len(codes)} names of GPUs for {difference.shape[-2]} rows of differences")
    return difference, codes[:, None] == np.arange(codes.max(initial=-1) + 1)


def _flat(difference: Array) -> Array:
    """All cells on one axis: (..., gpu, cell) -> (..., gpu * cell)."""
    *lead, gpus, cells = difference.shape
    return difference.reshape(*lead, gpus * cells)


def _least_variance(difference: Array) -> Array:
    """Variance of a mean below which it is rounding: (..., value) -> (...)."""
    return (NULL_SPREAD * np.abs(np.nan_to_num(difference)).max(-1, initial=0.0)) ** 2


def _below(estimate: Array, variance: Array, df: Array, margin: ArrayLike, least: Array) -> TTests:
    """t-tests that estimates lie below a margin, from their variances; none where those do not exceed `least`."""
    usable = (df >= 1) & (variance > least)
    error = np.where(usable, np.sqrt(np.where(usable, variance, 1.0)), np.nan)
    statistic = (estimate - np.asarray(margin, dtype=float)) / error
    df = np.broadcast_to(np.where(df >= 1, df, np.nan), statistic.shape)
    p_value = stdtr(df, statistic)
    estimate, error = np.broadcast_to(estimate, statistic.shape), np.broadcast_to(error, statistic.shape)
    return TTests(statistic, df, p_value, estimate, error, np.zeros(statistic.shape, dtype=bool))


def _mean_below(values: Array, margin: ArrayLike) -> TTests:
    """One-sample t-test that the mean over the last axis lies below a margin, NaN left out: (..., value) -> (...)."""
    seen = ~np.isnan(values)
    count, mean = seen.sum(-1), pooled(values)
    squares = np.where(seen, values - mean[..., None], 0.0) ** 2
    variance = squares.sum(-1) / (np.maximum(count - 1, 1) * np.maximum(count, 1))
    return _below(mean, variance, count - 1, margin, _least_variance(values))


# ---- the GPU is the unit --------------------------------------------------------------------------------------


def t_per_gpu_batch(
    family: ArrayLike,
    anchor: ArrayLike,
    gpus: Sequence[str],
    margin: ArrayLike,
    clusters: Mapping[str, str] | None = None,
) -> TTests:
    """One-sided t-tests of per-GPU mean differences against the margin, K - 1 df: (..., gpu, cell) -> (...).

    Parameters
    ----------
    family, anchor : array_like, shape (..., gpu, cell)
        See `differences`. The mean of a GPU is over the cells in which both were measured; a GPU without any counts
        for nothing.
    gpus : sequence of str
    margin : float, or array that broadcasts with the leading axes
        Points of MAPE.
    clusters : mapping of GPU to cluster, optional
        GPUs of a cluster are averaged first, so that K counts clusters; see `cluster_codes`.
    """
    difference, member = _paired(family, anchor, gpus, clusters)
    means = pooled(difference)
    empty = np.full((*means.shape[:-1], 0), np.nan)
    columns = [pooled(means[..., of])[..., None] for of in member.T]
    return _mean_below(np.concatenate([empty, *columns], axis=-1), margin)


def t_per_gpu(
    family: ArrayLike,
    anchor: ArrayLike,
    gpus: Sequence[str],
    margin: float,
    clusters: Mapping[str, str] | None = None,
) -> TestResult:
    """One-sided t-test of per-GPU mean differences against the margin, K - 1 df; see `t_per_gpu_batch`.

    It keeps its size where GPUs are exchangeable, whatever their cells share. An effect of a grid cell that all GPUs
    share is part of its estimand: it says nothing of other grids.
    """
    name = "t on per-GPU differences" if clusters is None else "t on per-cluster differences"
    return t_per_gpu_batch(family, anchor, gpus, margin, clusters).single(name)


def two_way_t_batch(
    family: ArrayLike,
    anchor: ArrayLike,
    gpus: Sequence[str],
    margin: ArrayLike,
    clusters: Mapping[str, str] | None = None,
) -> TTests:
    """One-sided t-tests of the mean cell difference, clustered by GPU and by grid cell: (..., gpu, cell) -> (...).

    The variance is that of Cameron, Gelbach and Miller (2011): by GPU, plus by grid cell, minus by their
    intersection, each with its own correction n/(n-1); df = min(GPUs, grid cells) - 1. Where it is not positive,
    which happens in one study in twelve of 3 GPUs and 15 grid cells where neither have an effect of their own, the
    larger of the two one-way variances stands in for it (`TTests.replaced`).

    Parameters
    ----------
    family, anchor, gpus, margin, clusters
        See `t_per_gpu_batch`; with clusters, these take the place of the GPUs. The mean is over cells, so that a GPU
        with more cells weighs more.
    """
    difference, member = _paired(family, anchor, gpus, clusters)
    seen = ~np.isnan(difference)
    count, mean = np.maximum(seen.sum((-2, -1)), 1), pooled(_flat(difference))
    score = np.where(seen, difference - mean[..., None, None], 0.0)
    score = np.einsum("...gc,gk->...kc", score, member)
    present = np.einsum("...gc,gk->...kc", seen, member)
    n_gpu, n_cell = present.any(-1).sum(-1), present.any(-2).sum(-1)

    def variance(sums: Array, n: NDArray[np.int64]) -> Array:
        return np.asarray(n / np.maximum(n - 1, 1) * _flat(sums**2).sum(-1) / count**2)

    by_gpu = variance(score.sum(-1, keepdims=True), n_gpu)
    by_cell = variance(score.sum(-2, keepdims=True), n_cell)
    both = by_gpu + by_cell - variance(score, present.sum((-2, -1)))
    df = np.minimum(n_gpu, n_cell) - 1
    least = _least_variance(_flat(difference))
    replaced = both <= least
    tests = _below(mean, np.where(replaced, np.maximum(by_gpu, by_cell), both), df, margin, least)
    return replace(tests, replaced=replaced & ~np.isnan(tests.p_value))


def two_way_t(
    family: ArrayLike,
    anchor: ArrayLike,
    gpus: Sequence[str],
    margin: float,
    clusters: Mapping[str, str] | None = None,
) -> TestResult:
    """One-sided t-test of the mean cell difference, clustered by GPU and by grid cell; see `two_way_t_batch`."""
    unit = "GPU" if clusters is None else "cluster"
    return two_way_t_batch(family, anchor, gpus, margin, clusters).single(f"two-way clustered t ({unit}, grid cell)")


def mixed_model(
    family: ArrayLike,
    anchor: ArrayLike,
    gpus: Sequence[str],
    margin: float,
    clusters: Mapping[str, str] | None = None,
) -> TestResult:
    """One-sided test of the mean cell difference in a linear mixed model with a random GPU intercept (REML).

    With K = 3 GPUs the p-value that statsmodels prints, from a normal, is anti-conservative: three intercepts do not
    tell their variance. The t distribution with K - 1 df is used instead. On a balanced grid the test is then that of
    `t_per_gpu` wherever the variance of the intercepts is estimated above 0; at 0 its standard error is that of
    independent cells, which is then the larger one. The optimiser is Powell's: the default ones of statsmodels 0.15
    stop short of a variance of 0 or, at exactly 0, report convergence with a standard error of millions.

    Parameters
    ----------
    family, anchor, gpus, margin, clusters
        See `t_per_gpu_batch`; with clusters, the random intercept is theirs.
    """
    from statsmodels.regression.mixed_linear_model import MixedLM

    difference, member = _paired(family, anchor, gpus, clusters)
    name = f"mixed model, random intercept of the {'GPU' if clusters is None else 'cluster'}"
    seen = ~np.isnan(difference)
    values, group = difference[seen], np.nonzero(seen)[0]
    cluster = member[group].argmax(-1) if len(group) else group
    df, mean = float(len(np.unique(cluster)) - 1), float(pooled(values))
    within = values - np.array([values[cluster == c].mean() for c in cluster])
    if df < 1 or np.std(within) <= LEAST_WITHIN * np.abs(values).max():
        note = TOO_FEW if df < 1 else "no spread within clusters to fit by"
        return _untested(name, note, df=df, estimate=mean)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what they say is told by `converged` and by the note
        try:
            fit = MixedLM(values, np.ones((len(values), 1)), groups=cluster).fit(reml=True, method="powell")
            estimate, variance = np.asarray(fit.fe_params[0]), np.asarray(fit.bse_fe[0] ** 2)
        except np.linalg.LinAlgError as failure:
            return _untested(name, f"the fit failed: {failure}", df=df, estimate=mean, converged=False)
    tests = _below(estimate, variance, np.asarray(df), margin, _least_variance(values))
    result = tests.single(name, note=ON_BOUNDARY if fit.cov_re[0, 0] <= 1e-6 * fit.scale else "")
    return replace(result, converged=bool(fit.converged))


def wald_slope(
    T: ArrayLike,
    y: ArrayLike,
    weight: ArrayLike,
    gpu_code: ArrayLike,
    cluster_code: ArrayLike | None = None,
) -> TestResult:
    """Wald test of slope 1 in y = delta[gpu] + lambda T, weighted least squares, variance clustered by GPU, K - 1 df.

    Two-sided: a small p-value says that the slope is off 1, so that it speaks *against* transfer, and a large one that
    it is not known to be. A GPU on which T does not vary (or with one cell) knows no slope and is left out.

    Parameters
    ----------
    T, y : array_like, shape (cell,) or any shape that all arguments share
        GPU-compute branch and step, ms; NaN where not measured.
    weight : array_like, same shape
        1 / (sd of the noise, ms)^2.
    gpu_code : array_like, same shape
        Whose floor each cell has.
    cluster_code : array_like, same shape, optional
        Clusters of the variance where GPUs are not independent; default: the GPU.
    """
    from statsmodels.regression.linear_model import WLS

    name = f"Wald test of slope 1, clustered by {'GPU' if cluster_code is None else 'cluster'}"
    t, step, w = (np.asarray(v, dtype=float).ravel() for v in (T, y, weight))
    gpu = np.asarray(gpu_code).ravel()
    cluster = gpu if cluster_code is None else np.asarray(cluster_code).ravel()
    if not len(t) == len(step) == len(w) == len(gpu) == len(cluster):
        raise ValueError("T, y, weight and codes must have one shape")
    keep = np.isfinite(t) & np.isfinite(step) & np.isfinite(w) & (w > 0)
    for code in np.unique(gpu):
        on = keep & (gpu == code)
        if on.any() and np.ptp(t[on]) <= 1e-9 * np.abs(t[on]).max():
            keep &= gpu != code
    t, step, w, gpu, cluster = t[keep], step[keep], w[keep], gpu[keep], cluster[keep]
    codes = np.unique(cluster, return_inverse=True)[1]
    df = float(len(np.unique(codes)) - 1)
    if not len(t):
        return _untested(name, "T does not vary on any GPU", df=df)
    model = WLS(step, np.column_stack([t, gpu[:, None] == np.unique(gpu)]), weights=w)
    if df < 1:
        return _untested(name, TOO_FEW, df=df, estimate=float(model.fit().params[0]))
    fit = model.fit(cov_type="cluster", cov_kwds={"groups": codes}, use_t=True)
    estimate, error = float(fit.params[0]), float(fit.bse[0])
    if not error > 1e-10:
        return _untested(name, NO_SPREAD, df=df, estimate=estimate)
    test = fit.t_test((np.eye(1, len(fit.params)), 1.0))
    statistic, p_value = np.asarray(test.tvalue).item(), np.asarray(test.pvalue).item()
    note = "two-sided: a small p-value speaks against transfer"
    return TestResult(name, statistic, df, p_value, estimate, error, False, True, note)


def _untested(
    name: str,
    note: str,
    *,
    df: float = np.nan,
    estimate: float = np.nan,
    pseudo_replicated: bool = False,
    converged: bool = True,
) -> TestResult:
    df = df if df >= 1 else np.nan
    return TestResult(name, np.nan, df, np.nan, estimate, np.nan, pseudo_replicated, converged, note)


# ---- the cell is the unit: pseudo-replicated ------------------------------------------------------------------


def tost_cells_batch(family: ArrayLike, anchor: ArrayLike, margin: ArrayLike, *, equivalence: bool = False) -> TTests:
    """Paired t-tests over all cells of all GPUs, as if these were independent: (..., gpu, cell) -> (...).

    Parameters
    ----------
    family, anchor, margin
        See `t_per_gpu_batch`.
    equivalence : bool
        False: mean difference below the margin (the question of H1). True: within +- margin by two one-sided tests
        (TOST); p-value and statistic are those of the side that decides.
    """
    values = _flat(differences(family, anchor))
    below = _mean_below(values, margin)
    if not equivalence:
        return below
    statistic = (np.abs(below.estimate) - np.asarray(margin, dtype=float)) / below.standard_error
    return replace(below, statistic=statistic, p_value=stdtr(below.df, statistic))


def tost_cells(family: ArrayLike, anchor: ArrayLike, margin: float, *, equivalence: bool = False) -> TestResult:
    """Paired t-test over all cells, one-sided or TOST; pseudo-replicated. See `tost_cells_batch`."""
    name = "cell-level TOST" if equivalence else "cell-level one-sided t"
    return tost_cells_batch(family, anchor, margin, equivalence=equivalence).single(name, pseudo_replicated=True)


def bootstrap_cells(
    family: ArrayLike, anchor: ArrayLike, margin: float, *, rng: np.random.Generator, resamples: int = 9_999
) -> TestResult:
    """One-sided percentile bootstrap of the mean cell difference, resampling cells of all GPUs; pseudo-replicated.

    Parameters
    ----------
    family, anchor : array_like, shape (gpu, cell)
    margin : float
        Points of MAPE.
    rng : Generator
    resamples : int
        The smallest p-value is 1 / (resamples + 1).
    """
    name = "cell-level bootstrap"
    difference = _flat(differences(family, anchor))
    values = difference[~np.isnan(difference)]
    if len(values) < 2 or np.var(values) <= _least_variance(values):
        note = f"{PSEUDO}; {'fewer than 2 cells' if len(values) < 2 else NO_SPREAD}"
        return _untested(name, note, estimate=float(pooled(values)), pseudo_replicated=True)
    fit = bootstrap((values,), np.mean, n_resamples=resamples, method="percentile", rng=rng)
    p_value = float((1 + (fit.bootstrap_distribution >= margin).sum()) / (resamples + 1))
    mean, error = float(values.mean()), float(fit.standard_error)
    return TestResult(name, (mean - margin) / error, np.nan, p_value, mean, error, True, True, PSEUDO)


def per_gpu_tests(family: ArrayLike, anchor: ArrayLike, gpus: Sequence[str], margin: float) -> list[TestResult]:
    """Paired one-sided t-test over the cells of each GPU, in order; pseudo-replicated. For many GPUs see `holm`."""
    difference, _ = _paired(family, anchor, gpus, None)
    tests = (_mean_below(row, margin) for row in difference)
    return [
        t.single(f"cell-level one-sided t on {gpu}", pseudo_replicated=True) for gpu, t in zip(gpus, tests, strict=True)
    ]


def holm(p_values: ArrayLike) -> Array:
    """p-values adjusted for their number (Holm), shape (test,); NaN stays NaN and does not count as a test."""
    from statsmodels.stats.multitest import multipletests

    p = np.array(p_values, dtype=float)
    run = ~np.isnan(p)
    if run.any():
        p[run] = multipletests(p[run], method="holm")[1]
    return p


# ---- the school -----------------------------------------------------------------------------------------------


def school(
    family: ArrayLike,
    anchor: ArrayLike,
    gpus: Sequence[str],
    margin: float,
    *,
    clusters: Mapping[str, str] | None = None,
    T: ArrayLike | None = None,
    y: ArrayLike | None = None,
    weight: ArrayLike | None = None,
    rng: np.random.Generator | None = None,
    resamples: int = 9_999,
) -> dict[str, Any]:
    """Every test on one data set, JSON-ready.

    Parameters
    ----------
    family, anchor : array_like, shape (gpu, cell)
        See `differences`.
    gpus : sequence of str
    margin : float
        Points of MAPE.
    clusters : mapping of GPU to cluster, optional
        Tests whose unit is the GPU are repeated with clusters, under the same key with `_by_cluster`.
    T, y, weight : array_like, shape (gpu, cell), optional
        Of the family, for `wald_slope`; without them there is no such test. Weights default to 1 / y^2.
    rng : Generator, optional
        Of the bootstrap; default: seed 0.
    resamples : int

    Returns
    -------
    dict
        `estimand`, `margin`, `gpus`, `clusters`, `cells` (paired), `tests` (key -> `TestResult.data`) and `per_gpu`
        (a list with `gpu` and `p_holm` beside each test).
    """
    if (T is None) != (y is None):
        raise ValueError("the slope needs both T and y")
    difference = differences(family, anchor)
    tests: dict[str, TestResult] = {}
    for suffix, of in (("", None), ("_by_cluster", clusters))[: 1 if clusters is None else 2]:
        tests[f"t_per_gpu{suffix}"] = t_per_gpu(family, anchor, gpus, margin, of)
        tests[f"two_way_t{suffix}"] = two_way_t(family, anchor, gpus, margin, of)
        tests[f"mixed_model{suffix}"] = mixed_model(family, anchor, gpus, margin, of)
        if T is not None and y is not None:
            shape = np.shape(y)
            gpu, cluster = (np.broadcast_to(cluster_codes(gpus, c)[:, None], shape) for c in (None, of))
            w = np.asarray(y, dtype=float) ** -2.0 if weight is None else weight
            tests[f"wald_slope{suffix}"] = wald_slope(T, y, w, gpu, None if of is None else cluster)
    tests["tost_cells"] = tost_cells(family, anchor, margin)
    tests["equivalence_cells"] = tost_cells(family, anchor, margin, equivalence=True)
    tests["bootstrap_cells"] = bootstrap_cells(
        family, anchor, margin, rng=np.random.default_rng(0) if rng is None else rng, resamples=resamples
    )
    singles = per_gpu_tests(family, anchor, gpus, margin)
    adjusted = holm([t.p_value for t in singles]).tolist()
    return {
        "estimand": ESTIMAND,
        "margin": float(margin),
        "gpus": list(gpus),
        "clusters": None if clusters is None else {g: clusters.get(g, g) for g in gpus},
        "cells": int((~np.isnan(difference)).sum()),
        "tests": {key: test.data for key, test in tests.items()},
        "per_gpu": [
            {"gpu": gpu, **test.data, "p_holm": None if np.isnan(p) else p}
            for gpu, test, p in zip(gpus, singles, adjusted, strict=True)
        ],
    }
