"""Frequentist tests of H1 against statsmodels, scipy, numbers worked by hand, and their size by simulation."""

import json
from typing import Any

import numpy as np
import pytest
import statsmodels.api as sm
from scipy.stats import ttest_1samp, ttest_rel
from simulated import SIBLING, simulate
from statsmodels.stats.multitest import multipletests

from rooffloor.validate.estimates.cell_draws import IMPUTED, MEASURED
from rooffloor.validate.hypotheses import frequentist as fr
from rooffloor.validate.hypotheses.frequentist_h1 import errors as paired_errors
from rooffloor.validate.hypotheses.frequentist_h1 import representatives, school
from rooffloor.validate.study.margins import Margins

GPUS = ("H100", "H200", "A100-40GB")
DIE = {"H100": "Hopper", "H200": "Hopper"}
MARGIN = 2.0


def t_per_gpu(family: Any, anchor: Any, *given: Any) -> fr.TestResult:
    """That of one study."""
    return fr.t_per_gpu(np.subtract(family, anchor), *given).results()[0]


def two_way_t(family: Any, anchor: Any, *given: Any) -> fr.TestResult:
    return fr.two_way_t(np.subtract(family, anchor), *given).results()[0]


def t_per_cell(family: Any, anchor: Any, *given: Any) -> fr.TestResult:
    return fr.t_per_cell(np.subtract(family, anchor), *given).results(pseudo_replicated=True)[0]


FAMILY_MINUS_ANCHOR = (t_per_gpu, two_way_t)
"""Tests of one study with the arguments (family, anchor, gpus, margin, clusters)."""


def errors(seed: int, *, between: float = 1.0, shape: tuple[int, ...] = (3, 15)) -> tuple[np.ndarray, np.ndarray]:
    """Family and anchor [..., gpu, cell]: a mean difference of 1 point, an effect of each GPU, and noise."""
    rng = np.random.default_rng(seed)
    anchor = np.abs(rng.normal(6.0, 2.0, shape))
    return anchor + 1.0 + between * rng.standard_normal((*shape[:-1], 1)) + rng.standard_normal(shape), anchor


def ragged(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """As `errors`, with cells that only one of the two, or neither, was measured in."""
    family, anchor = errors(seed)
    family[0, 11:] = np.nan
    anchor[1, [0, 5, 6]] = np.nan
    family[2, 3] = anchor[2, 3] = np.nan
    return family, anchor


def long(family, anchor, gpus=GPUS, clusters=None):
    """Differences that were measured with their cluster and grid cell: three arrays [cell]."""
    d = family - anchor
    gpu, cell = np.nonzero(~np.isnan(d))
    return d[gpu, cell], fr.cluster_codes(gpus, clusters)[gpu], cell


def agree(result: fr.TestResult, statistic, p_value, df):
    assert (result.statistic, result.p_value, result.df) == pytest.approx((statistic, p_value, df), rel=1e-9)


# ---- pieces ---------------------------------------------------------------------------------------------------


def test_a_gpu_that_no_cluster_names_is_its_own():
    apart, joined = fr.cluster_codes(GPUS), fr.cluster_codes(GPUS, DIE)
    assert len(set(apart)) == 3
    assert joined[0] == joined[1] != joined[2]
    with pytest.raises(ValueError, match="2 names of GPUs for 3 rows"):
        t_per_gpu(*errors(0), GPUS[:2], MARGIN)


# ---- t per GPU ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [errors, ragged])
def test_t_per_gpu_is_scipys_on_the_means_of_the_gpus(make):
    family, anchor = make(2)
    means = np.nanmean(family - anchor, axis=1)
    result = t_per_gpu(family, anchor, GPUS, MARGIN)
    test = ttest_1samp(means, MARGIN, alternative="less")
    agree(result, test.statistic, test.pvalue, 2)
    assert result.estimate == pytest.approx(means.mean())


def test_t_per_gpu_by_hand():
    # Means 0, 1, 2: mean 1, variance 1, standard error 1/sqrt(3); (1 - 2) sqrt(3) = -1.732; p of t with 2 df is
    # (1 + t / sqrt(2 + t^2)) / 2 = (1 - 1.732 / 2.236) / 2.
    result = t_per_gpu([[-1.0, 1.0], [0.0, 2.0], [1.0, 3.0]], np.zeros((3, 2)), GPUS, MARGIN)
    agree(result, -(3**0.5), (1 - 0.6**0.5) / 2, 2)
    assert (result.estimate, result.standard_error) == pytest.approx((1.0, 3**-0.5))


def test_gpus_of_a_cluster_are_averaged_first():
    family, anchor = errors(3)
    means = (family - anchor).mean(1)
    result = t_per_gpu(family, anchor, GPUS, MARGIN, DIE)
    test = ttest_1samp([means[:2].mean(), means[2]], MARGIN, alternative="less")
    agree(result, test.statistic, test.pvalue, 1)
    one = t_per_gpu(family[:2], anchor[:2], GPUS[:2], MARGIN, DIE)
    assert np.isnan(one.p_value)
    assert one.note == fr.TOO_FEW


def test_a_gpu_without_cells_does_not_count():
    family, anchor = errors(4)
    family[1] = np.nan
    rest = [0, 2]
    names = [GPUS[k] for k in rest]
    for test in FAMILY_MINUS_ANCHOR:
        agree_with = test(family[rest], anchor[rest], names, MARGIN)
        agree(test(family, anchor, GPUS, MARGIN), agree_with.statistic, agree_with.p_value, 1)


# ---- two-way --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("clusters", [None, DIE])
@pytest.mark.parametrize("make", [errors, ragged])
def test_two_way_t_is_that_of_statsmodels(make, clusters):
    family, anchor = make(5)
    d, gpu, cell = long(family, anchor, clusters=clusters)
    fit = sm.OLS(d - MARGIN, np.ones(len(d))).fit(
        cov_type="cluster", cov_kwds={"groups": np.column_stack([gpu, cell])}, use_t=True
    )
    assert fit.df_resid_inference == len(set(gpu)) - 1
    result = two_way_t(family, anchor, GPUS, MARGIN, clusters)
    assert fit.tvalues[0] < 0
    agree(result, fit.tvalues[0], fit.pvalues[0] / 2, len(set(gpu)) - 1)
    assert result.note == ""


def test_two_way_t_where_the_variance_is_not_positive():
    # Every GPU and every grid cell has mean 0, cells cancel: by GPU 0, by cell 0, minus the intersection: negative,
    # and no one-way variance to stand in for it.
    checkered = np.array([[1.0, -1.0], [-1.0, 1.0]])
    nothing = two_way_t(checkered, np.zeros((2, 2)), GPUS[:2], MARGIN)
    assert np.isnan(nothing.p_value)
    assert nothing.note == fr.NO_SPREAD
    # With a small effect of the GPU, its one-way variance stands in: that of t_per_gpu on a balanced grid.
    family, zero = checkered + np.array([[0.1], [-0.1]]), np.zeros((2, 2))
    fit = sm.OLS(family.ravel(), np.ones(4)).fit()
    groups = np.array([[0, 0], [0, 1], [1, 0], [1, 1]])
    assert sm.stats.sandwich_covariance.cov_cluster_2groups(fit, groups)[0] < 0
    result, plain = two_way_t(family, zero, GPUS[:2], MARGIN), t_per_gpu(family, zero, GPUS[:2], MARGIN)
    agree(result, plain.statistic, plain.p_value, 1)
    assert result.note == fr.REPLACED


# ---- slope ----------------------------------------------------------------------------------------------------


def steps(seed: int, slope: float = 1.0) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """T, y, weight and GPU code [gpu, cell] with a floor for each GPU and 3 % noise."""
    rng = np.random.default_rng(seed)
    T = rng.uniform(4.0, 20.0, (3, 15))
    mean = np.array([[2.0], [5.0], [8.0]]) + slope * T
    gpu = np.broadcast_to(np.arange(3)[:, None], T.shape)
    return T, mean * (1.0 + 0.03 * rng.standard_normal(T.shape)), (0.03 * mean) ** -2.0, gpu


def test_wald_slope_by_hand():
    T, y, weight, gpu = steps(10)
    # Within each GPU, weighted: the slope of centred y on centred T; the score of a GPU is sum(w T e).
    total = weight.sum(1, keepdims=True)
    x = T - (weight * T).sum(1, keepdims=True) / total
    z = y - (weight * y).sum(1, keepdims=True) / total
    spread = (weight * x**2).sum()
    slope = (weight * x * z).sum() / spread
    score = (weight * x * (z - slope * x)).sum(1)
    error = (score @ score / spread**2 * (3 / 2) * (44 / 41)) ** 0.5
    result = fr.wald_slope(T, y, weight, gpu)
    assert (result.estimate, result.standard_error) == pytest.approx((slope, error), rel=1e-8)
    t = (slope - 1.0) / error
    agree(result, t, 1 - abs(t) / (2 + t**2) ** 0.5, 2)


def test_wald_slope_sees_a_slope_and_takes_names_scales_and_clusters():
    T, y, weight, gpu = steps(11, slope=1.5)
    result = fr.wald_slope(T, y, weight, gpu)
    assert result.p_value < 0.01
    assert "against transfer" in result.note
    named = fr.wald_slope(T.T, y.T, 7.0 * weight.T, np.array(GPUS)[gpu].T)
    agree(named, result.statistic, result.p_value, 2)
    assert fr.wald_slope(T, y, weight, gpu, np.minimum(gpu, 1)).df == 1


def test_wald_slope_leaves_out_what_knows_no_slope():
    T, y, weight, gpu = steps(12)
    T[0] = 4.0  # T does not vary
    y[1, 3] = np.nan
    keep = ~np.isnan(y) & (gpu > 0)
    part = fr.wald_slope(T[keep], y[keep], weight[keep], gpu[keep])
    agree(fr.wald_slope(T, y, weight, gpu), part.statistic, part.p_value, 1)
    one = fr.wald_slope(T[:2], y[:2], weight[:2], gpu[:2])
    assert np.isnan(one.p_value)
    assert one.note == fr.TOO_FEW
    assert one.estimate == pytest.approx(1.0, abs=0.2)
    none = fr.wald_slope(T[:1], y[:1], weight[:1], gpu[:1])
    assert "does not vary" in none.note
    exact = fr.wald_slope(*(v[1:] for v in (T, 2.0 + T, weight, gpu)))
    assert np.isnan(exact.p_value)
    assert (exact.estimate, exact.note) == (pytest.approx(1.0), fr.NO_SPREAD)
    with pytest.raises(ValueError, match="one shape"):
        fr.wald_slope(T, y[0], weight, gpu)


# ---- cells ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("margin", [0.4, 2.0])
def test_the_cell_level_test_is_that_of_scipy(margin):
    family, anchor = ragged(13)
    keep = ~np.isnan(family - anchor)
    a, b = family[keep], anchor[keep]
    one = t_per_cell(family, anchor, margin)
    test = ttest_rel(a - margin, b, alternative="less")
    agree(one, test.statistic, test.pvalue, keep.sum() - 1)
    assert one.note == fr.PSEUDO


# ---- what all share -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("test", FAMILY_MINUS_ANCHOR)
def test_one_gpu_is_no_sample_and_two_have_one_df(test):
    one = test(*errors(17, shape=(1, 15)), GPUS[:1], MARGIN)
    assert np.isnan([one.p_value, one.df, one.standard_error]).all()
    assert one.note == fr.TOO_FEW
    assert np.isfinite(one.estimate)
    two = test(*errors(17, shape=(2, 15)), GPUS[:2], MARGIN)
    assert two.df == 1
    assert 0 < two.p_value < 1


@pytest.mark.parametrize("constant", [0.0, 0.1, 1 / 3])
def test_without_spread_there_is_no_test(constant):
    anchor = np.random.default_rng(18).uniform(1.0, 9.0, (3, 15))
    family = anchor + constant
    results = [test(family, anchor, GPUS, MARGIN) for test in FAMILY_MINUS_ANCHOR]
    results += [t_per_cell(family, anchor, MARGIN)]
    for result in results:
        assert np.isnan(result.p_value), result
        assert "no spread" in result.note
        assert result.estimate == pytest.approx(constant)


def test_nothing_measured_is_no_test_and_no_error():
    nothing = np.full((3, 15), np.nan)
    results = [test(nothing, nothing, GPUS, MARGIN, of) for test in FAMILY_MINUS_ANCHOR for of in (None, DIE)]
    codes = np.broadcast_to(np.arange(3)[:, None], nothing.shape)
    results += [t_per_cell(nothing, nothing, MARGIN), fr.wald_slope(nothing, nothing, nothing, codes)]
    assert all(np.isnan(result.p_value) and result.note for result in results)


def test_order_of_gpus_and_cells_does_not_matter():
    family, anchor = ragged(19)
    rng = np.random.default_rng(0)
    rows, columns = rng.permutation(3), rng.permutation(15)
    names = [GPUS[k] for k in rows]
    moved_family, moved_anchor = (v[rows][:, columns] for v in (family, anchor))
    for clusters in (None, DIE):
        for test in FAMILY_MINUS_ANCHOR:
            first = test(family, anchor, GPUS, MARGIN, clusters)
            moved = test(moved_family, moved_anchor, names, MARGIN, clusters)
            assert moved.p_value == pytest.approx(first.p_value, rel=1e-3), test
    first, moved = t_per_cell(family, anchor, MARGIN), t_per_cell(moved_family, moved_anchor, MARGIN)
    agree(moved, first.statistic, first.p_value, first.df)


def test_shift_of_family_and_margin_together_changes_nothing():
    family, anchor = ragged(20)
    for test in FAMILY_MINUS_ANCHOR:
        first, shifted = test(family, anchor, GPUS, 2.0), test(family + 3.0, anchor, GPUS, 5.0)
        assert shifted.p_value == pytest.approx(first.p_value, rel=1e-3)


# ---- batches --------------------------------------------------------------------------------------------------

BATCHES = {
    "t_per_gpu": (t_per_gpu, fr.t_per_gpu),
    "two_way_t": (two_way_t, fr.two_way_t),
}


@pytest.mark.parametrize("clusters", [None, DIE])
@pytest.mark.parametrize("name", BATCHES)
def test_a_batch_is_its_studies_one_by_one(name, clusters):
    single, batch = BATCHES[name]
    family, anchor = errors(21, between=0.3, shape=(40, 3, 15))
    family[np.random.default_rng(1).random(family.shape) < 0.2] = np.nan
    family[0, 1] = family[1, :2] = family[2] = np.nan
    margins = np.linspace(0.5, 2.5, 40)
    tests = batch(family - anchor, GPUS, margins, clusters)
    for s in range(40):
        one = single(family[s], anchor[s], GPUS, margins[s], clusters)
        assert (tests.p_value[s], tests.df[s], tests.estimate[s]) == pytest.approx(
            (one.p_value, one.df, one.estimate), nan_ok=True
        )
        assert tests.replaced[s] == (one.note == fr.REPLACED)
    assert "40 tests" in repr(tests)


def test_a_batch_of_cell_level_tests_is_its_studies_one_by_one():
    family, anchor = errors(22, shape=(5, 4, 3, 15))
    family[0, 0] = np.nan
    tests = fr.t_per_cell(family - anchor, MARGIN)
    assert tests.p_value.shape == (5, 4)
    for at in np.ndindex(5, 4):
        one = t_per_cell(family[at], anchor[at], MARGIN)
        assert tests.p_value[at] == pytest.approx(one.p_value, nan_ok=True)


def test_one_study_against_many_margins_is_a_falling_curve():
    family, anchor = errors(23)
    for tests in (
        fr.t_per_gpu(family - anchor, GPUS, np.linspace(0, 5, 21)),
        fr.two_way_t(family - anchor, GPUS, np.linspace(0, 5, 21)),
        fr.t_per_cell(family - anchor, np.linspace(0, 5, 21)),
    ):
        assert tests.p_value.shape == tests.df.shape == tests.replaced.shape == (21,)
        assert (np.diff(tests.p_value) < 0).all()


# ---- size -----------------------------------------------------------------------------------------------------


def studies(seed: int, n: int, *, gpu: float = 0.0, cell: float = 0.0, noise: float = 3.0) -> np.ndarray:
    """Differences [study, gpu, cell] whose mean is the margin: the edge of the null hypothesis."""
    rng = np.random.default_rng(seed)
    effects = gpu * rng.standard_normal((n, 3, 1)) + cell * rng.standard_normal((n, 1, 15))
    return MARGIN + effects + noise * rng.standard_normal((n, 3, 15))


def size(tests: fr.TTests) -> float:
    return float((tests.p_value < 0.05).mean())


def test_size_on_independent_cells_is_nominal():
    d = studies(24, 20_000)
    assert size(fr.t_per_gpu(d, GPUS, MARGIN)) == pytest.approx(0.05, abs=0.006)
    assert size(fr.t_per_cell(d, MARGIN)) == pytest.approx(0.05, abs=0.006)
    two_way = fr.two_way_t(d, GPUS, MARGIN)
    assert size(two_way) < 0.05
    assert two_way.replaced.mean() == pytest.approx(0.085, abs=0.02)  # the share that its docstring tells


@pytest.mark.parametrize(("between", "low", "high"), [(0.7, 0.08, 0.14), (1.0, 0.11, 0.19), (2.0, 0.20, 0.30)])
def test_a_shared_floor_inflates_the_cell_level_test_and_not_that_of_gpus(between, low, high):
    d = studies(25, 10_000, gpu=between)
    assert low < size(fr.t_per_cell(d, MARGIN)) < high
    assert size(fr.t_per_gpu(d, GPUS, MARGIN)) == pytest.approx(0.05, abs=0.01)
    assert size(fr.two_way_t(d, GPUS, MARGIN)) < 0.06


def test_an_effect_of_the_shared_grid_is_seen_by_the_two_way_test_alone():
    """Grid cells as a sample of grids: what all GPUs share never cancels, and only the two-way variance counts it."""
    d = studies(26, 10_000, cell=3.0)
    assert size(fr.t_per_gpu(d, GPUS, MARGIN)) > 0.10
    assert size(fr.t_per_cell(d, MARGIN)) > 0.09
    assert size(fr.two_way_t(d, GPUS, MARGIN)) < 0.05


def test_size_of_the_wald_test_with_three_gpus():
    p = np.array([fr.wald_slope(*steps(seed)).p_value for seed in range(300)])
    assert 0.02 < np.mean(p < 0.05) < 0.09


# ---- the school -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("label", [MEASURED, IMPUTED])
def test_school_holds_every_test_averaged_over_data_sets_and_is_json(label: str):
    draws = simulate(label, floors={SIBLING: 4.5}, noise=0.03)
    out = school(draws, SIBLING, GPUS, Margins())
    by_gpu = ["t_per_gpu", "two_way_t", "wald_slope"]
    assert set(out["tests"]) == {*by_gpu, *(f"{k}_by_cluster" for k in by_gpu), "tost_cells"}
    assert {k for k, t in out["tests"].items() if t["pseudo_replicated"]} == {"tost_cells"}
    assert out["tests"]["wald_slope_by_cluster"]["df"] == 1
    assert len(set(out["clusters"].values())) == 2
    assert (out["cells"], out["data_sets"]) == (45, 1 if label == MEASURED else 20)
    assert json.loads(json.dumps(out, allow_nan=False)) == out == school(draws, SIBLING, GPUS, Margins())
    rows, mass = representatives(draws, 20)
    paired = paired_errors(draws, SIBLING, GPUS, rows)
    one = [t_per_gpu(f, a, GPUS, 2.0) for f, a in zip(paired["family"], paired["anchor"], strict=True)]
    found = out["tests"]["t_per_gpu"]
    assert found["p_value"] == pytest.approx(mass @ np.array([t.p_value for t in one]))
    assert found["below"] == pytest.approx(mass @ np.array([t.p_value < 0.05 for t in one]))
    assert found["estimate"] == pytest.approx(mass @ np.array([t.estimate for t in one]))
    slopes = [
        fr.wald_slope(T, y, y**-2.0, fr.cluster_codes(GPUS)[:, None] + 0 * y)
        for T, y in zip(paired["T"], paired["y"], strict=True)
    ]
    assert out["tests"]["wald_slope"]["p_value"] == pytest.approx(mass @ np.array([t.p_value for t in slopes]))


def test_school_of_one_gpu_has_no_clusters_and_says_why_there_is_no_test():
    out = school(simulate(gpus=("H100",)), SIBLING, ("H100",), Margins())
    assert out["clusters"] is None
    assert not [k for k in out["tests"] if "cluster" in k]
    assert (out["tests"]["t_per_gpu"]["p_value"], out["tests"]["t_per_gpu"]["df"]) == (None, None)
    assert out["tests"]["t_per_gpu"]["note"] == fr.TOO_FEW


def test_holm_is_that_of_statsmodels_without_collecting_garbage(monkeypatch):
    def fail(*_):
        raise AssertionError("garbage was collected")

    rng = np.random.default_rng(8)
    cases = [rng.random(n) ** 3 for n in (1, 2, 7, 40)] + [np.array([0.01, 0.01, 0.04]), np.array([0.9, 0.8])]
    expected = [multipletests(p, method="holm")[1] for p in cases]
    monkeypatch.setattr("gc.collect", fail)
    for p, adjusted in zip(cases, expected, strict=True):
        np.testing.assert_allclose(fr.holm(p), adjusted)
    with_gap = fr.holm([0.02, np.nan, 0.01])
    assert np.isnan(with_gap[1])
    np.testing.assert_allclose(with_gap[[0, 2]], [0.02, 0.02])
    assert fr.holm([]).shape == (0,)
