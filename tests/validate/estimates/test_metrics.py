"""Relative errors and MAPEs against numbers worked by hand."""

import numpy as np
import pytest

from rooffloor.validate.estimates import metrics


def test_relative_error_is_signed_and_adds_the_floor():
    assert metrics.relative_error([8.0, 12.0], [10.0, 10.0]) == pytest.approx([-0.2, 0.2])
    assert metrics.relative_error([8.0, 12.0], [10.0, 10.0], 2.0) == pytest.approx([0.0, 0.4])
    assert metrics.relative_error([8.0], [10.0], -2.4) == pytest.approx([-0.44])


def test_raw_and_residual_mape_by_hand():
    t, y = [8.0, 15.0], [10.0, 20.0]
    assert metrics.raw_mape(t, y) == pytest.approx(22.5)  # (20 + 25) / 2
    assert metrics.residual_mape(t, y, 1.0) == pytest.approx(15.0)  # (10 + 20) / 2
    assert metrics.raw_mape(t, y) == metrics.residual_mape(t, y, 0.0)


@pytest.mark.parametrize("bad", [0.0, -1.0, np.nan])
def test_a_step_that_is_not_positive_has_no_relative_error(bad):
    with pytest.raises(ValueError, match="step_ms must be positive"):
        metrics.relative_error([1.0, 1.0], [2.0, bad])


def test_leading_axes_are_draws():
    rng = np.random.default_rng(1)
    t, y = rng.uniform(1, 9, (4, 50, 12)), rng.uniform(1, 9, 12)
    floor = rng.normal(size=(4, 50, 1))
    values = metrics.residual_mape(t, y, floor)
    assert values.shape == (4, 50)
    assert values[2, 7] == pytest.approx(metrics.residual_mape(t[2, 7], y, floor[2, 7, 0]))


def test_pooled_is_the_plain_mean_over_skus_as_in_the_published_table():
    assert metrics.pooled([8.0, 8.8, 8.5]) == pytest.approx(8.4, abs=0.05)
    assert metrics.pooled([5.8, 6.9, 3.9]) == pytest.approx(5.5, abs=0.05)
    assert metrics.pooled([21.8, 3.3, 71.2]) == pytest.approx(32.1, abs=0.05)
    assert metrics.pooled([[1.0, np.nan, 3.0], [np.nan] * 3]) == pytest.approx([2.0, np.nan], nan_ok=True)


@pytest.mark.parametrize("predicted", [6.0, 9.5, 10.0, 10.6, 13.0])
@pytest.mark.parametrize("sd", [0.05, 0.5, 1.5])
def test_expected_error_is_the_mean_over_new_measurements(predicted: float, sd: float):
    y = np.maximum(np.random.default_rng(8).normal(10.0, sd, 400_000), 1.0)
    found = metrics.expected_error(np.array([predicted]), np.array([10.0]), np.array([sd]))
    assert found == pytest.approx(np.abs(predicted / y - 1).mean(), rel=0.03)


def test_expected_error_without_noise_is_the_error():
    found = metrics.expected_error(np.array([[12.0, 8.0]]), np.array([10.0, 10.0]), np.zeros(1))
    assert found == pytest.approx(np.array([[0.2, 0.2]]))


def test_a_rerun_shows_the_expected_error_on_average_and_scatters_around_it():
    mean, sd = np.full((40_000, 1), 10.0), np.full((40_000, 1), 0.8)
    found = metrics.rerun_error(np.full((40_000, 1), 10.5), mean, sd, np.random.default_rng(9))
    assert found.mean() == pytest.approx(metrics.expected_error(np.array([10.5]), mean[0], sd[0])[0], rel=0.03)
    assert found.std() > 0.03
