"""The discrepancy between kernels and steps, and host times, come back from simulated ones."""

import numpy as np
import pytest

from rooffloor.validate.kernels.discrepancy import SCALE, Difference, discrepancy, time_per_byte
from rooffloor.validate.kernels.host import host_line, log_moments


def drawn(rng: np.random.Generator, s: float, sds) -> list[Difference]:
    return [Difference("x", "g", 1, float(s * rng.standard_normal() + sd * rng.standard_normal()), sd) for sd in sds]


def test_the_sd_comes_back_over_its_prior():
    """Truths from the prior: the mean of the squares is right, and large ones are told from small ones."""
    rng = np.random.default_rng(0)
    truths = SCALE * np.abs(rng.standard_normal(200))
    found = np.array([discrepancy(drawn(rng, s, [0.02] * 6)).sd for s in truths])
    assert np.mean(found**2) == pytest.approx(np.mean(truths**2), rel=0.2)
    assert np.corrcoef(found, truths)[0, 1] > 0.8


def test_no_differences_leave_the_prior_and_close_ones_make_it_small():
    assert discrepancy([]).sd == pytest.approx(SCALE, rel=0.02)
    assert discrepancy([Difference("x", "g", 9, 0.0, 0.005)] * 8).sd < 0.3 * SCALE


def test_the_time_per_byte_of_steps_lies_in_its_interval():
    """Sizes of 4 models on one GPU; what a model has of its own is as large as the regression allows."""
    inside = []
    for seed in range(100):
        rng = np.random.default_rng(seed)
        stream, layers = np.repeat([2.0, 5.0, 8.0, 20.0], 4), np.repeat([20.0, 32.0, 40.0, 64.0], 4)
        batch = np.tile([1.0, 4.0, 8.0, 16.0], 4)
        truth = np.array([rng.normal(2.0, 1.0), rng.normal(0.03, 0.02), rng.normal(0.07, 0.03), 1.15])
        columns = np.stack([np.ones(16), layers, batch, stream], axis=1)
        step = columns @ truth
        model = np.repeat(list("abcd"), 4)
        step *= 1 + 0.04 * np.repeat(rng.standard_normal(4), 4) + 0.03 * rng.standard_normal(16)
        prior = [(2.0, 1.0), (0.03, 0.02), (0.07, 0.03), (1.25, 1.0)]
        mean, sd = time_per_byte(model, columns, step, prior, 3)
        inside.append(abs(mean - 1.15) < 1.645 * sd)
    assert 0.83 <= np.mean(inside) <= 0.97


def test_host_lines_shrug_off_outliers():
    batch = np.arange(8.0, 129.0, 8.0)
    took = 0.8 + 0.043 * batch
    took[3] += 5.0
    found = host_line("A100", "m", 1, batch, took)
    assert (found.h0_ms, found.h_seq_ms) == pytest.approx((0.8, 0.043), rel=0.01)


def test_log_moments_hold_spread_and_what_is_added():
    assert log_moments([0.1]) == (pytest.approx(0.1), 0.0)
    median, sd = log_moments([0.05, 0.2], 0.5)
    assert median == pytest.approx(0.1)
    assert sd == pytest.approx(np.hypot(np.log(4.0) / np.sqrt(2.0), 0.5))
