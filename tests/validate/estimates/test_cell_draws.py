"""Weighted estimates, their Monte Carlo errors and the expected errors, against closed forms and simulation."""

from dataclasses import replace

import numpy as np
import pytest
from simulated import ANCHOR, GPUS, SIBLING, simulate

from rooffloor.validate.common.files import json_dumps
from rooffloor.validate.estimates.cell_draws import IMPUTED, MEASURED, Draws
from rooffloor.validate.estimates.estimate import Estimate, estimates, mcse, tails, weighted_quantiles
from rooffloor.validate.estimates.metrics import AS_MEASURED


def _mcse(draws: Draws, values: np.ndarray) -> float:
    return mcse(values, draws.weight, draws.unit)


def test_estimates_of_columns_are_those_of_each_column():
    draws = simulate(IMPUTED)
    values = np.random.default_rng(3).normal(5, 2, (len(draws.weight), 3))
    for column, found in zip(values.T, estimates(values, draws.weight, draws.unit, "something", "ms"), strict=True):
        alone = draws.estimate(column, "something", "ms")
        assert (found.value, found.mcse) == pytest.approx((alone.value, alone.mcse))
        assert found.intervals == alone.intervals


def test_quantiles_of_equal_weights_are_those_of_hazen():
    values = np.random.default_rng(1).normal(size=37)
    asked = [0.05, 0.25, 0.5, 0.75, 0.95]
    expected = np.quantile(values, asked, method="hazen")
    assert weighted_quantiles(values, np.full(37, 1 / 37), asked) == pytest.approx(expected)


def test_quantiles_by_hand_whatever_the_order_and_the_scale_of_weights():
    values, weight = np.array([20.0, -99.0, 10.0]), np.array([0.75, 0.0, 0.25])  # midpoints .625 and .125
    assert weighted_quantiles(values, weight, [0.375, 0.0, 1.0]) == pytest.approx([15.0, 10.0, 20.0])
    assert weighted_quantiles(values, 7 * weight, [0.375]) == pytest.approx([15.0])


def test_quantiles_of_importance_weights_are_those_of_the_target():
    values = np.random.default_rng(2).normal(size=200_000)
    weight = np.exp(values)  # from N(0, 1) to N(1, 1)
    low, middle, high = weighted_quantiles(values, weight / weight.sum(), [0.05, 0.5, 0.95])
    assert (low, middle, high) == pytest.approx((1 - 1.645, 1.0, 1 + 1.645), abs=0.03)


def test_tails_leave_half_of_the_rest_on_each_side():
    assert tails(90) == pytest.approx((0.05, 0.95))
    assert tails(50) == pytest.approx((0.25, 0.75))


def test_an_estimate_is_the_weighted_mean_with_equal_tailed_intervals():
    draws = simulate(IMPUTED)
    values = np.random.default_rng(3).normal(5, 2, len(draws.weight))
    found = draws.estimate(values, "something", "ms")
    assert found.value == pytest.approx(np.average(values, weights=draws.weight))
    for level, sides in (("50", (0.25, 0.75)), ("90", (0.05, 0.95))):
        assert found.intervals[level] == pytest.approx(weighted_quantiles(values, draws.weight, sides))
    assert found.intervals["90"][0] < found.intervals["50"][0] < found.intervals["50"][1] < found.intervals["90"][1]
    assert json_dumps(found.data)
    assert set(found.data) == {"value", "estimand", "unit", "intervals", "mcse"}
    chance = draws.probability(values > 5, "P(above 5)")
    assert chance.value == pytest.approx(draws.weight[values > 5].sum())
    assert (chance.unit, chance.intervals) == ("probability", {})


def test_mcse_of_independent_draws_is_sd_over_root_n():
    draws = simulate(MEASURED, draws=100, units=100)
    values = np.random.default_rng(4).normal(size=100)
    assert _mcse(draws, values) == pytest.approx(values.std(ddof=1) / 10)


def test_mcse_counts_units_and_not_draws():
    draws = simulate(IMPUTED, draws=400, units=20)
    between = np.random.default_rng(5).normal(size=20)
    same = between[draws.unit]  # forty thousand draws of the same 20 values would be no better
    alone = simulate(IMPUTED, draws=20, units=20)
    mass = np.bincount(draws.unit, draws.weight)
    assert _mcse(draws, same) == pytest.approx(_mcse(replace(alone, weight=mass), between))


def test_mcse_of_weighted_units_is_the_sd_over_repeated_simulations():
    draws = simulate(IMPUTED, draws=60, units=60)
    rng = np.random.default_rng(6)
    found = [(draws.weight @ v, _mcse(draws, v) ** 2) for v in rng.normal(size=(2_000, 60))]
    means, squares = np.array(found).T
    assert np.sqrt((draws.weight**2).sum()) == pytest.approx(means.std(), rel=0.05)
    assert np.sqrt(squares.mean()) == pytest.approx(means.std(), rel=0.07)


def test_mcse_of_one_unit_is_unknown():
    draws = simulate(MEASURED, units=1)
    assert np.isnan(_mcse(draws, np.arange(200.0)))
    two = simulate(IMPUTED, units=2)
    only = np.where(two.unit == 0, 0.01, 0.0)  # the other one carries no weight
    assert np.isnan(_mcse(replace(two, weight=only), np.arange(200.0)))


@pytest.mark.parametrize(
    ("mcse", "text"),
    [
        (None, "12.35 [11.11, 13.58]"),
        (0.0, "12.35 [11.11, 13.58]"),
        (0.004, "12.35 [11.11, 13.58]"),
        (0.006, "12.3 [11.1, 13.6]"),
        (0.06, "12 [11, 14]"),
        (3.0, "12 [11, 14]"),
    ],
)
def test_text_has_the_digits_that_the_mcse_supports(mcse: float | None, text: str):
    assert str(Estimate(12.3456, AS_MEASURED, "percent", {"90": (11.111, 13.579)}, mcse)) == text


def test_pairs_and_masks_part_the_cells():
    draws = simulate(MEASURED, anchor_on=("H100", "H200"))
    found = list(draws.pairs())
    assert [(m, g) for m, g, _ in found] == [(ANCHOR, "H100"), (ANCHOR, "H200"), *((SIBLING, g) for g in GPUS)]
    assert (sum(mask.astype(int) for _, _, mask in found) == 1).all()
    for model, gpu, mask in found:
        assert (draws.mask(model, gpu) == mask).all()
        assert draws.has_anchor(mask) is (gpu != "A100-40GB")
    assert not draws.mask(ANCHOR, "A100-40GB").any()


def test_a_calibrated_floor_is_the_posterior_mean_within_each_unit():
    measured, imputed = simulate(MEASURED), simulate(IMPUTED)
    assert measured.calibrated_ms == pytest.approx(
        np.broadcast_to(measured.anchor_floor_ms.mean(0), measured.gpu_ms.shape)
    )
    for unit in (0, 7):
        rows = imputed.unit == unit
        assert imputed.calibrated_ms[rows] == pytest.approx(
            np.tile(imputed.anchor_floor_ms[rows].mean(0), (rows.sum(), 1))
        )
        assert imputed.own_calibrated_ms[rows][0] == pytest.approx(imputed.floor_ms[rows].mean(0))
    assert np.ptp(imputed.calibrated_ms, axis=0).min() > 0


def test_a_calibrated_floor_that_is_given_goes_with_its_draw_and_its_cell():
    draws = simulate(MEASURED)
    anchors, own = draws.anchor_floor_ms + 1.0, draws.floor_ms + 2.0
    given = replace(draws, calibrated_floor_ms=anchors, own_calibrated_floor_ms=own)
    assert (given.calibrated_ms == anchors).all()
    assert (given.own_calibrated_ms == own).all()
    keep, rows = draws.mask(SIBLING, "H200"), np.array([3, 77, 150])
    some = given.where(keep).rows(rows)
    assert (some.calibrated_ms == anchors[rows][:, keep]).all()
    assert (some.own_calibrated_ms == own[rows][:, keep]).all()


def test_means_of_weighted_draws_at_hand_count_weights():
    draws = simulate(MEASURED)
    weight = np.linspace(0.1, 1.9, len(draws.weight)) / len(draws.weight)
    heavy = replace(draws, weight=weight, floor_ms=draws.floor_ms + np.arange(len(weight))[:, None])
    assert heavy.own_calibrated_ms[0] == pytest.approx(weight @ heavy.floor_ms)
