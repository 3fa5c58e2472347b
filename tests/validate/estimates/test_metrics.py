"""The two-number report against numbers worked by hand."""

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


def test_signed_mean_shows_the_direction_that_mape_hides():
    over, under = metrics.relative_error([12.0], [10.0]), metrics.relative_error([8.0], [10.0])
    assert metrics.mape(over) == pytest.approx(metrics.mape(under))
    assert metrics.signed_mean(over) == pytest.approx(20.0)
    assert metrics.signed_mean(under) == pytest.approx(-20.0)


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


def test_group_mean_keeps_draws_and_marks_empty_groups():
    means = metrics.group_mean([[1.0, 3.0, 10.0], [2.0, 4.0, np.nan]], [0, 0, 2], 3)
    assert means == pytest.approx(np.array([[2.0, np.nan, 10.0], [3.0, np.nan, np.nan]]), nan_ok=True)


def test_two_numbers_agree_with_cell_by_cell_means():
    rng = np.random.default_rng(2)
    model, gpu = np.repeat([0, 0, 1], 5), np.repeat([0, 1, 0], 5)
    t, y = rng.uniform(1, 9, (7, 15)), rng.uniform(5, 9, 15)
    delta = np.array([1.5, -0.5])
    table = metrics.two_numbers(("A", "B"), ("x", "z"), model, gpu, t, y, delta[gpu])
    assert table.raw.shape == (7, 2, 2)
    assert table.cells.tolist() == [[5, 5], [5, 0]]
    assert table.raw[:, 0, 1] == pytest.approx(metrics.raw_mape(t[:, 5:10], y[5:10]))
    assert table.residual[:, 1, 0] == pytest.approx(metrics.residual_mape(t[:, 10:], y[10:], 1.5))
    error = metrics.relative_error(t[:, 5:10], y[5:10], -0.5)
    assert table.residual_signed[:, 0, 1] == pytest.approx(metrics.signed_mean(error))
    assert np.isnan(table.raw[:, 1, 1]).all()
    assert table.pooled_residual[:, 0] == pytest.approx(table.residual[:, 0].mean(axis=-1))
    assert table.pooled_raw[:, 1] == pytest.approx(table.raw[:, 1, 0])
