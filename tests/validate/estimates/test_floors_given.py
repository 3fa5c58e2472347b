"""Floors given the constants of a draw: against the plain normal model, quadrature, and what predictions then cover."""

import numpy as np
import pytest
from scipy.integrate import quad

from rooffloor.validate.estimates.floors_given import (
    floor_covariance,
    floor_means,
    offset_step_ms,
    positive_floor_means,
    told_by_cells,
)

RNG = np.random.default_rng(7)
GPU, GROUP = np.array([0, 0, 1, 1, 2]), np.array([0, 1, 0, 1, 0])
CODE = np.repeat(np.arange(5), [4, 3, 5, 2, 6])
DRAWS, CELLS = 6, len(CODE)
SCALES = tuple(RNG.uniform(0.3, 3.0, DRAWS) for _ in range(3))
VARIANCE = RNG.uniform(0.05, 0.4, (DRAWS, CELLS))
LEFT = RNG.normal(2.0, 1.5, (DRAWS, CELLS))


def brute_force(known: np.ndarray | None = None, known_ms: np.ndarray | None = None) -> np.ndarray:
    """Means of floors by conditioning all steps (and given floors) of one joint normal, cell by cell, [draw, pair]."""
    found = np.empty((DRAWS, 5))
    for d in range(DRAWS):
        prior = np.full((5, 5), 25.0)
        for i in range(5):
            for j in range(5):
                prior[i, j] += SCALES[0][d] ** 2 * (GPU[i] == GPU[j]) + SCALES[1][d] ** 2 * (GROUP[i] == GROUP[j])
                prior[i, j] += SCALES[2][d] ** 2 * (i == j)
        use = np.ones(CELLS, bool) if known is None else ~known[CODE]
        design = np.eye(5)[CODE[use]]
        noise, seen = np.diag(VARIANCE[d, use]), LEFT[d, use]
        if known is not None:
            design = np.vstack([design, np.eye(5)[known]])
            noise = np.block(
                [[noise, np.zeros((len(noise), known.sum()))], [np.zeros((known.sum(), len(noise) + known.sum()))]]
            )
            seen = np.concatenate([seen, known_ms[d, known]])
        found[d] = prior @ design.T @ np.linalg.solve(design @ prior @ design.T + noise, seen)
    return found


def test_floor_means_are_those_of_the_joint_normal_of_floors_and_steps():
    told = told_by_cells(LEFT, VARIANCE, CODE, 5)
    means = floor_means(*told, floor_covariance(GPU, GROUP, 5.0, SCALES), 0.0)
    np.testing.assert_allclose(means, brute_force(), rtol=1e-8)
    assert np.abs(means - told[0]).max() > 0.01  # they are drawn together


def test_given_floors_stay_and_draw_the_others_towards_them():
    known, given = np.array([True, False, True, False, True]), RNG.normal(2.0, 1.0, (DRAWS, 5))
    others = ~known[CODE]
    told = told_by_cells(LEFT[:, others], VARIANCE[:, others], CODE[others], 5)
    means = floor_means(*told, floor_covariance(GPU, GROUP, 5.0, SCALES), 0.0, given, known)
    np.testing.assert_allclose(means, brute_force(known, given), rtol=1e-6)
    np.testing.assert_array_equal(means[:, known], given[:, known])


def test_a_pair_without_cells_follows_the_others():
    told = told_by_cells(LEFT[:, :18], VARIANCE[:, :18], CODE[:18], 6)
    assert (told[1][:, 5] == 0).all()
    covariance = floor_covariance(np.append(GPU, 0), np.append(GROUP, 0), 5.0, SCALES)  # a twin of the first
    means = floor_means(*told, covariance, 0.0)
    assert np.isfinite(means).all()
    assert np.abs(means[:, 5] - means[:, 0]).max() < 3 * max(s.max() for s in SCALES)


@pytest.mark.parametrize(("value", "precision"), [(4.0, 50.0), (0.1, 30.0), (-1.0, 30.0), (9.0, 0.02)])
def test_positive_floor_means_are_those_of_the_integral(value: float, precision: float):
    level, sd = np.log(4.0), 1.2

    def density(h: float) -> float:
        return float(np.exp(-0.5 * precision * (h - value) ** 2 - 0.5 * ((np.log(h) - level) / sd) ** 2) / h)

    top = max(value, 0.0) + 12.0 / np.sqrt(precision)
    total = quad(density, 1e-9, top, limit=400)[0]
    expected = quad(lambda h: h * density(h), 1e-9, top, limit=400)[0] / total
    found = positive_floor_means(np.array([[value]]), np.array([[precision]]), level, np.array([[sd]]))
    assert found[0, 0] == pytest.approx(expected, rel=0.01)


def test_the_step_that_noise_is_read_off_has_the_mean_offset_and_no_draw_of_a_floor():
    T = RNG.uniform(4.0, 9.0, (DRAWS, CELLS))
    y = RNG.uniform(8.0, 12.0, CELLS)
    step = offset_step_ms(T, y, CODE, 5)
    for pair in range(5):
        at = pair == CODE
        offset = np.average(y[at] - T[:, at], axis=-1, weights=1 / y[at] ** 2)
        np.testing.assert_allclose(step[:, at], T[:, at] + offset[:, None])


def test_a_floor_given_its_constants_predicts_what_the_mean_floor_does_not():
    """One GPU, weights alone: T and floor are one column, so that only their sum is known."""
    rng = np.random.default_rng(3)
    eta = rng.normal(0.8, 0.05, (500, 1))
    anchor, family = np.full(15, 4.0) / eta, np.full(15, 3.8) / eta
    y = 4.0 / 0.8 + 2.0 + 0.1 * rng.standard_normal(15)
    told = told_by_cells(y - anchor, np.full((500, 15), 0.01), np.zeros(15, int), 1)
    means = floor_means(*told, np.full((500, 1, 1), 29.0), 0.0)
    assert np.corrcoef(anchor[:, 0], means[:, 0])[0, 1] < -0.999
    paired = family + means
    apart = family + means.mean()
    assert paired.std(0)[0] < 0.06 * apart.std(0)[0]
    assert paired.mean() == pytest.approx(3.8 / 0.8 + 2.0, abs=0.1)
