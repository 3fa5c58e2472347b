"""The frequentist school of H1: is a family's residual MAPE less than a margin above the anchor's?

Every test but that of the slope reads the same differences: absolute relative error of the family minus that of the
anchor, percent, [gpu, grid cell], NaN where either was not measured. Its null hypothesis is that their mean is the
margin or more, so that a small p-value speaks for transfer. Cells of one GPU share a floor and all GPUs share the
grid: only tests whose unit is the GPU (or the die) keep their size. The one whose unit is the cell is kept beside them
to show what it would claim, and says *pseudo-replicated* in every result.

Tests take any leading axes (data sets, simulated studies) and return `TTests`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import stdtr

from rooffloor.validate.estimates.metrics import pooled

type Array = NDArray[np.float64]

ESTIMAND = "mean difference of absolute relative errors under the anchor's floor, family minus anchor, in points"
NULL_SPREAD = 1e-12
"""A standard error below this share of the largest difference is rounding, not spread."""
PSEUDO = "pseudo-replicated: cells of one GPU share a floor, so that the p-value is too small"
TOO_FEW = "fewer than 2 clusters"
NO_SPREAD = "no spread to judge by"
REPLACED = "the two-way variance estimate is not positive; the larger of the one-way ones stands in for it"
SLOPE_NOTE = "two-sided: a small p-value speaks against transfer"


@dataclass(frozen=True)
class TestResult:
    """One test of one data set.

    `statistic` is (estimate - null value) / standard error, `df` that of the t distribution (NaN with fewer than 2
    clusters); `p_value` is NaN where there is no test: fewer than 2 clusters, or no spread. `estimate` and
    `standard_error` are points of MAPE, or a pure number for the slope. `note` is what a reader must know besides.
    """

    statistic: float
    df: float
    p_value: float
    estimate: float
    standard_error: float
    note: str


@dataclass(frozen=True, eq=False)
class TTests:
    """The same t-test of many data sets; every array has shape (...), the leading axes of the data.

    As in `TestResult`; a data set without a test has a NaN p-value, which is below no level. `replaced` says whether
    another variance stands in for one that is not positive.
    """

    statistic: Array
    df: Array
    p_value: Array
    estimate: Array
    standard_error: Array
    replaced: NDArray[np.bool_]

    def __repr__(self) -> str:
        return f"TTests({self.p_value.size} tests, {100 * np.mean(self.p_value < 0.05):.1f} % with p < 0.05)"

    def results(self, *, pseudo_replicated: bool = False) -> list[TestResult]:
        """One result for each data set, its note saying why there is no p-value or what stands behind it."""
        found = []
        arrays = (self.statistic, self.df, self.p_value, self.estimate, self.standard_error, self.replaced)
        for statistic, df, p_value, estimate, error, replaced in zip(
            *(a.ravel().tolist() for a in arrays), strict=True
        ):
            notes = [PSEUDO] if pseudo_replicated else []
            if np.isnan(p_value):
                notes.append(NO_SPREAD if df >= 1 else "fewer than 2 cells" if pseudo_replicated else TOO_FEW)
            elif replaced:
                notes.append(REPLACED)
            found.append(TestResult(statistic, df, p_value, estimate, error, "; ".join(notes)))
        return found


# ---- pieces ---------------------------------------------------------------------------------------------------


def cluster_codes(gpus: Sequence[str], clusters: Mapping[str, str] | None = None) -> NDArray[np.int64]:
    """Cluster of each GPU as a code from 0, (gpu,); a GPU that `clusters` does not name is a cluster of its own.

    `clusters` tells GPUs that are not independent, such as {"H100": "Hopper", "H200": "Hopper"}: one die.
    """
    names = [(clusters or {}).get(gpu, gpu) for gpu in gpus]
    codes: NDArray[np.int64] = np.unique(names, return_inverse=True)[1]
    return codes


def _member(difference: Array, gpus: Sequence[str], clusters: Mapping[str, str] | None) -> NDArray[np.bool_]:
    """Which GPU is in which cluster, [gpu, cluster]."""
    codes = cluster_codes(gpus, clusters)
    if len(codes) != difference.shape[-2]:
        raise ValueError(f"{len(codes)} names of GPUs for {difference.shape[-2]} rows of differences")
    return codes[:, None] == np.arange(codes.max(initial=-1) + 1)


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


# ---- the tests ------------------------------------------------------------------------------------------------


def t_per_gpu(
    difference: Array, gpus: Sequence[str], margin: ArrayLike, clusters: Mapping[str, str] | None = None
) -> TTests:
    """One-sided t-tests of per-GPU mean differences against the margin, K - 1 df: (..., gpu, cell) -> (...).

    It keeps its size where GPUs are exchangeable, whatever their cells share. An effect of a grid cell that all GPUs
    share is part of its estimand: it says nothing of other grids.

    Parameters
    ----------
    difference : array, shape (..., gpu, cell)
        Absolute relative error under the anchor's floor, family less anchor, points; NaN where either was not
        measured. A GPU without cells counts for nothing.
    gpus : sequence of str
    margin : float, or array that broadcasts with the leading axes
        Points of MAPE.
    clusters : mapping of GPU to cluster, optional
        GPUs of a cluster are averaged first, so that K counts clusters; see `cluster_codes`.
    """
    member = _member(difference, gpus, clusters)
    means = pooled(difference)
    empty = np.full((*means.shape[:-1], 0), np.nan)
    columns = [pooled(means[..., of])[..., None] for of in member.T]
    return _mean_below(np.concatenate([empty, *columns], axis=-1), margin)


def two_way_t(
    difference: Array, gpus: Sequence[str], margin: ArrayLike, clusters: Mapping[str, str] | None = None
) -> TTests:
    """One-sided t-tests of the mean cell difference, clustered by GPU and by grid cell: (..., gpu, cell) -> (...).

    The variance is that of Cameron, Gelbach and Miller (2011): by GPU, plus by grid cell, minus by their
    intersection, each with its own correction n/(n-1); df = min(GPUs, grid cells) - 1. Where it is not positive,
    which happens in one study in twelve of 3 GPUs and 15 grid cells where neither have an effect of their own, the
    larger of the two one-way variances stands in for it (`TTests.replaced`). Arguments as in `t_per_gpu`; clusters
    take the place of the GPUs. The mean is over cells, so that a GPU with more cells weighs more.
    """
    member = _member(difference, gpus, clusters)
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


def t_per_cell(difference: Array, margin: ArrayLike) -> TTests:
    """One-sided paired t-tests over all cells of all GPUs, as if these were independent: (..., gpu, cell) -> (...).

    Pseudo-replicated: cells of one GPU share a floor. See `t_per_gpu` for the arguments.
    """
    return _mean_below(_flat(difference), margin)


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
        return _untested("T does not vary on any GPU", df)
    model = WLS(step, np.column_stack([t, gpu[:, None] == np.unique(gpu)]), weights=w)
    if df < 1:
        return _untested(TOO_FEW, df, float(model.fit().params[0]))
    fit = model.fit(cov_type="cluster", cov_kwds={"groups": codes}, use_t=True)
    estimate, error = float(fit.params[0]), float(fit.bse[0])
    if not error > 1e-10:
        return _untested(NO_SPREAD, df, estimate)
    test = fit.t_test((np.eye(1, len(fit.params)), 1.0))
    statistic, p_value = np.asarray(test.tvalue).item(), np.asarray(test.pvalue).item()
    return TestResult(statistic, df, p_value, estimate, error, SLOPE_NOTE)


def holm(p_values: ArrayLike) -> Array:
    """p-values adjusted for their number by Holm's step-down, in the order given; NaN stay and count for nothing.

    As `multipletests(p, method="holm")` of statsmodels, which collects garbage on every call: 0.4 s in a process that
    holds a compiled model.
    """
    p = np.asarray(p_values, dtype=float)
    order = np.argsort(p)[: int((~np.isnan(p)).sum())]
    adjusted = np.full(p.shape, np.nan)
    adjusted[order] = np.minimum(np.maximum.accumulate(p[order] * np.arange(len(order), 0, -1)), 1.0)
    return adjusted


def _untested(note: str, df: float, estimate: float = np.nan) -> TestResult:
    return TestResult(np.nan, df if df >= 1 else np.nan, np.nan, estimate, np.nan, note)
