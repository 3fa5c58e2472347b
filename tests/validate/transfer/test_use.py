"""Whether a calibration holds for use: probabilities that are calibrated, and what moves them."""

from collections.abc import Sequence

import numpy as np
import pytest

from rooffloor.validate.transfer import use
from rooffloor.validate.transfer.statements import DOES_NOT_HOLD, HOLDS, UNDECIDED, VERDICTS

BATCH, CONTEXT = np.array([1.0, 4.0, 16.0, 1.0, 16.0]), np.array([512.0, 2048.0, 512.0, 8192.0, 8192.0])
STEP = 8.0 + 0.2 * BATCH
DRAWS = 200


def drawn(sd: float, rng: np.random.Generator, cells: int = 5) -> np.ndarray:
    """Steps of a calibration whose draws differ by a common factor, [draw, cell]."""
    return np.asarray(np.resize(STEP, cells) * np.exp(sd * rng.standard_normal((DRAWS, 1))))


def errors(off: Sequence[float] | np.ndarray, *, seed: int = 1, sd: float = 0.01, known: float = 0.0) -> np.ndarray:
    """Draws of the error where the first cells are measured and the prediction is off by these relative errors."""
    rng, n = np.random.default_rng(seed), len(off)
    steps = drawn(sd, rng, n)
    y = steps.mean(0) / (1.0 + np.asarray(off))
    axes = np.resize(BATCH, n), np.resize(CONTEXT, n)
    return use.errors(steps, steps.mean(0), y, axes, rng, noise=0.03, known_sd_ms=known * y)


def test_with_five_noisy_cells_the_probability_is_calibrated():
    """Truths off by a constant and a slope in log B, noise of 1 to 6 %; the prior of the noise does not know it."""
    rng, told = np.random.default_rng(3), []
    for _ in range(400):
        offset, slope = 0.09 * rng.standard_cauchy(), 0.02 * rng.standard_normal()
        sigma = np.exp(np.log(0.03) + 0.5 * rng.standard_normal())
        s = np.clip(offset, -0.6, 0.6) + slope * (np.log(BATCH) - np.log(BATCH).mean())
        steps = drawn(0.03, rng)
        predicted = steps.mean(0)
        y = predicted * np.exp(s + sigma * rng.standard_normal(5))
        further = predicted * np.exp(s + sigma * rng.standard_normal((4000, 5)))
        truth = 100.0 * np.abs(predicted / further - 1.0).mean()
        found = use.errors(steps, steps.mean(0), y, (BATCH, CONTEXT), rng, noise=0.03)
        told.append(((found <= use.TOLERANCE).mean(), truth <= use.TOLERANCE, (found <= truth).mean()))
    p, holds, rank = np.array(told, dtype=float).T
    assert holds[p >= 0.95].mean() > 0.93
    assert holds[p <= 0.05].mean() < 0.07
    assert ((p >= 0.95) | (p <= 0.05)).mean() > 0.5
    middle = (p > 0.05) & (p < 0.95)
    assert abs(holds[middle].mean() - p[middle].mean()) < 0.12
    assert 0.82 < ((rank > 0.05) & (rank < 0.95)).mean() < 0.97


def test_many_cells_tell_what_was_measured_whatever_the_tails():
    rng = np.random.default_rng(2)
    off = 0.05 * rng.standard_t(2, 300).clip(-8, 8)
    found = errors(off)
    shown = 100.0 * np.abs(off).mean()
    assert found.mean() == pytest.approx(shown, rel=0.05)
    assert np.ptp(np.quantile(found, [0.05, 0.95])) < 0.5 * shown


def test_an_error_of_all_cells_alike_is_surer_with_more_cells():
    spread = [np.ptp(np.quantile(errors([0.08] * n), [0.05, 0.95])) for n in (1, 5, 20)]
    assert spread[0] > spread[1] > spread[2]
    assert use.verdict_of(float((errors([0.08] * 20) <= 10.0).mean())) == HOLDS
    assert use.verdict_of(float((errors([0.14] * 20) <= 10.0).mean())) == DOES_NOT_HOLD
    assert use.verdict_of(float((errors([0.09]) <= 10.0).mean())) == UNDECIDED


def test_known_standard_errors_are_no_errors_of_the_calibration():
    off = 0.09 * np.random.default_rng(5).standard_normal(40)
    assert errors(off, known=0.09).mean() < 0.75 * errors(off).mean()


def test_cells_with_equal_and_with_unequal_known_noise_take_the_same_way():
    off = [0.02, 0.05, 0.04, 0.08, 0.01]
    rng = np.random.default_rng(1)
    steps = drawn(0.01, rng)
    y = steps.mean(0) / (1.0 + np.array(off))
    same, nearly = (
        use.errors(steps, steps.mean(0), y, (BATCH, CONTEXT), np.random.default_rng(4), known_sd_ms=y * known)
        for known in (np.full(5, 0.01), np.array([0.01, 0.01, 0.01, 0.01, 0.010001]))
    )
    np.testing.assert_allclose(np.sort(same), np.sort(nearly), rtol=1e-3)


def test_between_the_bounds_alone_a_verdict_is_open():
    for p in np.linspace(0.0, 1.0, 201):
        assert use.verdict_of(float(p)) in VERDICTS
        assert (use.verdict_of(float(p)) == UNDECIDED) == (0.05 < p < 0.95)


def test_several_gpus_hold_where_each_does():
    def one(probability: float, error: float) -> use.Use:
        return use.Use(10.0, np.full(50, error), np.full(50, error), error, -error, 5, probability)

    both = use.together([one(0.99, 4.0), one(0.02, 20.0)])
    assert both.verdict == DOES_NOT_HOLD
    assert both.measured == 12.0
    assert both.cells == 10
    assert use.together([one(0.99, 4.0), one(0.99, 6.0)]).verdict == HOLDS
    assert use.together([one(0.4, 9.0)]).data["verdict"] == UNDECIDED


def test_thousands_of_cells_take_little_time_and_memory():
    rng = np.random.default_rng(1)
    found = errors(0.05 + 0.03 * rng.standard_normal(20_000))
    assert len(found) == use.FEWEST
    assert found.mean() == pytest.approx(5.2, abs=0.3)
