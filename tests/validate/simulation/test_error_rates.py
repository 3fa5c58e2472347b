"""Simulated studies have the truth they are said to have, and the committed error rates are what the tests do."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.stats import norm
from simulated import simulate as simulate_draws

from rooffloor.validate.hypotheses import error_rates
from rooffloor.validate.hypotheses.error_rates import Rates, Truth
from rooffloor.validate.hypotheses.level import pooled_below
from rooffloor.validate.hypotheses.slope import slope, slope_summary
from rooffloor.validate.simulation import hypotheses as power
from rooffloor.validate.simulation.hypotheses import ANCHOR, calibrate, judge, simulate
from rooffloor.validate.study.margins import Margins

MARGINS = Margins()


@pytest.mark.parametrize("mechanism", ["leftover", "floor"])
@pytest.mark.parametrize("between", [0.0, 3.0])
def test_a_family_is_as_much_worse_as_it_should_be(mechanism: str, between: float):
    made = simulate(Truth(difference=2.0, between=between, mechanism=mechanism), np.random.default_rng(1), 300)
    assert made.difference.shape == (300, 3)
    assert made.difference.mean() == pytest.approx(2.0, abs=0.02 if between == 0 else 0.35)
    assert made.difference.std() == pytest.approx(between, abs=0.05 if between == 0 else 0.3)
    assert (made.level - made.difference).mean() == pytest.approx(8.2, abs=0.6)  # as the published anchor's
    assert (made.step_ms > 0).all()
    noise = (made.step_ms / made.mean_ms - 1).std()
    assert noise == pytest.approx(0.02, rel=0.02)


def test_the_leftover_is_smooth_and_shared():
    made = simulate(Truth(), np.random.default_rng(2), 200)
    wrong = made.by_pair(made.mean_ms, ANCHOR) / made.by_pair(made.gpu_ms, ANCHOR)
    off = wrong / wrong.mean((0, 1)) - 1
    near = np.corrcoef(off[..., 0].ravel(), off[..., 3].ravel())[0, 1]  # B = 1 and 2 at one context
    far = np.corrcoef(off[..., 0].ravel(), off[..., 14].ravel())[0, 1]
    assert near > far + 0.2


def test_judging_tells_the_good_from_the_bad():
    rng = np.random.default_rng(3)
    good = judge(simulate(Truth(leftover=0.02), rng, 12), MARGINS, rng)
    bad = judge(simulate(Truth(difference=12.0, leftover=0.02, mechanism="floor"), rng, 12), MARGINS, rng)
    assert good["supported"].mean() > 0.8
    assert bad["refuted"].mean() > 0.8
    assert bad["supported"].max() == 0
    assert {"non-inferior", "t, K-1 df", "covers 90: level", "two-way clustered t"} <= set(good)


def test_h3_is_told_from_a_slope():
    rng = np.random.default_rng(4)
    floor = judge(simulate(Truth("H3", floor_ms=2.5, leftover=0.0), rng, 20), MARGINS, rng)
    slope = judge(simulate(Truth("H3", slope=2.0, floor_ms=5.0, leftover=0.0), rng, 20), MARGINS, rng)
    assert floor["supported"].mean() > 0.1
    assert floor["refuted"].max() == 0
    assert floor["refuted on a GPU"].max() == 0
    assert slope["supported"].max() == 0
    assert slope["refuted"].mean() > 0.8  # one GPU alone decides less often
    assert slope["refuted"].mean() > slope["refuted on a GPU"].mean()
    assert floor["covers 90: floor less the anchor's"].mean() > 0.8


@pytest.mark.parametrize("join", error_rates.OVERLAPS)
def test_nothing_is_refuted_where_floors_overlap_and_all_else_is_right(join: str):
    rng = np.random.default_rng(6)
    for test in ("H1", "H3"):
        made = simulate(Truth(test, leftover=0.0, join=join), rng, 10)
        T, y = (made.by_pair(v, ANCHOR) for v in (made.gpu_ms, made.mean_ms))
        assert (y >= T).all()  # no floor is added that the GPU does not leave free
        assert (y - T).max() > 1.0
        assert judge(made, MARGINS, rng)["refuted"].max() == 0


def test_constants_are_unknown_and_intervals_cover_all_the_same():
    """Few studies: the committed table has the rates."""
    rng = np.random.default_rng(11)
    made = simulate(Truth(leftover=0.0), rng, 60)
    assert made.gpu_ms[:, 0].std() > 0.05 * made.gpu_ms[:, 0].mean()  # true constants differ from study to study
    found = judge(made, MARGINS, rng)
    assert found["supported"].mean() >= 0.9
    assert found["refuted"].max() == 0
    for what in ("difference", "level"):
        assert found[f"covers 90: {what}"].mean() == pytest.approx(0.9, abs=0.08)
        assert found[f"covers 50: {what}"].mean() == pytest.approx(0.5, abs=0.12)


def test_floors_of_simulated_draws_go_with_their_constants():
    rng = np.random.default_rng(12)
    made = simulate(Truth(leftover=0.0), rng, 2)
    draws = power._of_study(made, power._posterior(made, rng), 1)
    mask = draws.mask(ANCHOR, "GPU 1")
    T, floor, given = (
        draws.gpu_ms[:, mask].mean(-1),
        draws.anchor_floor_ms[:, mask][:, 0],
        draws.calibrated_ms[:, mask][:, 0],
    )
    assert np.corrcoef(T, floor)[0, 1] < -0.95
    assert np.corrcoef(T, given)[0, 1] < -0.99
    assert (floor - given).mean() == pytest.approx(0.0, abs=0.03)
    assert (floor - given).std() < 0.3 * floor.std()
    assert abs(np.corrcoef(T, floor - given)[0, 1]) < 0.3


def test_a_table_from_before_floors_could_overlap_is_of_added_floors(tmp_path: Path):
    old = calibrate((Truth(leftover=0.02),), studies=2, seed=7, jobs=1).table.drop(columns="join")
    old.to_csv(tmp_path / "old.csv", index=False)
    assert 0 <= Rates.load(tmp_path / "old.csv").rate("supported", leftover=0.02) <= 1


def test_h2_reads_the_slope_of_a_mixture():
    rng = np.random.default_rng(5)
    right = judge(simulate(Truth("H2", gpus=1, floor_ms=16.0, leftover=0.0), rng, 12), MARGINS, rng)
    wrong = judge(simulate(Truth("H2", gpus=1, slope=2.0, floor_ms=16.0, leftover=0.0), rng, 12), MARGINS, rng)
    assert right["shape refuted"].max() == 0
    assert wrong["shape supported"].max() == 0


def test_calibration_resumes_and_repeats(tmp_path: Path):
    truths = (Truth(leftover=0.02), Truth("H3", floor_ms=5.0))
    once = calibrate(truths, studies=6, seed=7, jobs=1, folder=tmp_path)
    kept = sorted(p.name for p in tmp_path.iterdir())
    again = calibrate(truths, studies=6, seed=7, jobs=1, folder=tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == kept
    pd.testing.assert_frame_equal(once.table, again.table)
    pd.testing.assert_frame_equal(once.table, calibrate(truths, studies=6, seed=7, jobs=1).table)
    assert not calibrate(truths[:1], studies=6, seed=8, jobs=1).table.equals(once.table)
    assert "2 scenarios" in repr(once)
    once.save(tmp_path / "t.csv")
    assert Rates.load(tmp_path / "t.csv").rate("supported", leftover=0.02) == once.rate("supported", leftover=0.02)
    with pytest.raises(KeyError, match="no rate of 'supported'"):
        once.rate("supported", gpus=9)


def test_with_flat_priors_and_known_noise_the_schools_agree():
    """One GPU, sd known: P(difference below the margin) is 1 - p of the z-test; so is the slope's."""
    for gap in (-1.0, 0.5, 1.9, 2.4, 4.0):
        bayes = pooled_below(np.full((1, 3), gap), np.full((1, 3), 0.8), 2.0, 1e-9)[0]
        p = norm.sf((2.0 - gap) / (0.8 / np.sqrt(3)))
        assert bayes == pytest.approx(1 - p, abs=0.02)
    draws = simulate_draws(noise=0.02, seed=4)
    mask = draws.mask("Qwen2.5-7B", "H100")
    mean, sd = slope(draws, mask)
    found = slope_summary(draws, mask, MARGINS)["slope_in_rope"]["value"]
    z = norm.cdf((1.12 - mean) / sd) - norm.cdf((0.88 - mean) / sd)
    assert found == pytest.approx(z.mean(), abs=0.02)


COMMITTED = error_rates.committed()


@pytest.mark.skipif(COMMITTED is None, reason="data/calibration/tests.csv is not there")
class TestCommitted:
    def test_size_at_the_margin(self):
        assert COMMITTED is not None
        for mechanism in ("leftover", "floor"):
            for between, most in ((0.0, 0.065), (1.0, 0.065), (3.0, 0.098)):  # 5 and 8 % plus two standard errors
                truth = {"difference": 2.0, "between": between, "mechanism": mechanism}
                assert COMMITTED.rate("supported", **truth) <= most

    def test_every_scenario_is_there_with_many_studies(self):
        assert COMMITTED is not None
        assert COMMITTED.table["studies"].min() >= 500
        assert COMMITTED.table.loc[COMMITTED.table["difference"] == 2.0, "studies"].max() >= 1000
        for truth in power.SCENARIOS:
            name = {"H1": "supported", "H2": "shape supported", "H3": "supported"}[truth.test]
            assert 0 <= COMMITTED.rate(name, **{f: getattr(truth, f) for f in error_rates.FIELDS}) <= 1

    def test_a_few_studies_anew_agree(self):
        assert COMMITTED is not None
        truth = Truth(between=1.0)
        rate = COMMITTED.rate("non-inferior", between=1.0)
        rng = np.random.default_rng(99)
        again = judge(simulate(truth, rng, 40), MARGINS, rng)["non-inferior"].mean()
        assert again == pytest.approx(rate, abs=4 * np.sqrt(rate * (1 - rate) / 40) + 0.01)

    def test_words(self):
        assert COMMITTED is not None
        said = error_rates.error_rates(COMMITTED, "H1", 3, MARGINS)
        assert "by mistake" in said[0]
        assert any("GPUs needed" in line for line in said)
        assert error_rates.error_rates(COMMITTED, "H1", 3, Margins(h1_points=1.0))[-1].startswith(
            "These rates are for a margin"
        )
        for name in ("H2", "H3"):
            assert error_rates.error_rates(COMMITTED, name, 3, MARGINS)
