"""Constrained HMC against closed forms and brute force."""

import numpy as np
import pytest
from numba import njit
from numpy.typing import NDArray

from rooffloor.validate.published.imputation.manifold import TOLERANCE, Manifold, project, sample

type Array = NDArray[np.float64]

MATRIX = np.array([[1.0, 2.0, 0.0, -1.0], [0.5, -1.0, 1.5, 0.0]])
OFFSET = np.array([1.0, -0.5])


@njit
def value(q: Array, tables: tuple[Array, Array, float], out: Array) -> None:
    matrix, offset, bend = tables
    out[:] = matrix @ q + bend * (np.abs(matrix) @ q**2) - offset


@njit
def jacobian(q: Array, tables: tuple[Array, Array, float], out: Array) -> None:
    matrix, _, bend = tables
    out[:] = matrix + 2.0 * bend * np.abs(matrix) * q


@njit
def anywhere(q: Array, tables: tuple[Array, Array, float]) -> bool:
    return True


@njit
def bounded(q: Array, tables: tuple[Array, Array, float]) -> bool:
    return q[0] > -0.5


PLANE = Manifold(4, 2, value, jacobian, anywhere, (MATRIX, OFFSET, 0.0))
"""A q = b: the restricted normal is known in closed form."""
BENT = PLANE._replace(allowed=bounded, tables=(MATRIX, OFFSET, 0.4))
"""Curved, so that the co-area factor matters, and with a hard bound."""


@njit
def kinked_value(q: Array, radius: float, out: Array) -> None:
    out[0] = np.abs(q).sum() - radius


@njit
def kinked_jacobian(q: Array, radius: float, out: Array) -> None:
    out[0] = np.sign(q)


@njit
def free(q: Array, radius: float) -> bool:
    return True


DIAMOND = Manifold(3, 1, kinked_value, kinked_jacobian, free, 2.0)
"""|q1| + |q2| + |q3| = 2: nothing but kinks between its eight faces."""


def test_starts_arrive_on_the_manifold() -> None:
    q, misfit = project(BENT, np.random.default_rng(0).standard_normal((50, 4)))
    assert (misfit < TOLERANCE).all()
    assert np.abs(BENT.values(q)).max() < TOLERANCE


def test_projection_of_a_plane_is_the_nearest_point() -> None:
    start = np.random.default_rng(1).standard_normal((5, 4))
    q, _ = project(PLANE, start)
    nearest = start - PLANE.values(start) @ np.linalg.pinv(MATRIX).T
    np.testing.assert_allclose(q, nearest, atol=1e-5)


def test_an_impossible_constraint_reports_its_misfit() -> None:
    never = DIAMOND._replace(tables=-1.0)
    _, misfit = project(never, np.random.default_rng(2).standard_normal((3, 3)), hops=1)
    assert (misfit >= 1.0).all()


def test_a_plane_has_the_conditional_normal() -> None:
    q, _ = project(PLANE, np.random.default_rng(3).standard_normal((20, 4)))
    chains = sample(PLANE, q, draws=1500, warmup=300, seed=3)
    draws = chains.draws.reshape(-1, 4)
    pinv = np.linalg.pinv(MATRIX)
    mean, covariance = pinv @ OFFSET, np.eye(4) - pinv @ MATRIX
    np.testing.assert_allclose(draws.mean(0), mean, atol=0.05)
    np.testing.assert_allclose(np.cov(draws.T), covariance, atol=0.06)
    assert np.abs(PLANE.values(draws)).max() < 1e-4


def test_a_curved_manifold_agrees_with_rejection() -> None:
    rng = np.random.default_rng(4)
    prior = rng.standard_normal((1_500_000, 4))
    near = prior[(np.abs(BENT.values(prior)).max(-1) < 0.05) & BENT.all_allowed(prior)]
    q, misfit = project(BENT, rng.standard_normal((60, 4)))
    q = q[(misfit < TOLERANCE) & BENT.all_allowed(q)]
    draws = sample(BENT, q, draws=800, warmup=200, thin=2, seed=4).draws.reshape(-1, 4)
    assert BENT.all_allowed(draws).all()
    error = near.std(0) / np.sqrt(len(near))
    assert (np.abs(draws.mean(0) - near.mean(0)) < 5 * error + 0.03).all()
    np.testing.assert_allclose(draws.std(0), near.std(0), rtol=0.1)


def test_chains_pass_kinks() -> None:
    """Started on one face, the chains find all eight, each as often, and the spread that rejection gives."""
    q = np.full((16, 3), 2.0 / 3.0)
    draws = sample(DIAMOND, q, draws=2000, warmup=500, thin=4, seed=6).draws
    for face in range(8):
        signs = 1 - 2 * np.array([face >> k & 1 for k in range(3)])
        assert (draws * signs > 0).all(-1).mean() == pytest.approx(1 / 8, abs=0.02)
    prior = np.random.default_rng(7).standard_normal((2_000_000, 3))
    near = prior[np.abs(np.abs(prior).sum(-1) - 2.0) < 0.02]
    np.testing.assert_allclose(draws.reshape(-1, 3).std(0), near.std(0), rtol=0.03)


def test_same_seed_same_draws() -> None:
    q, _ = project(BENT, np.random.default_rng(5).standard_normal((4, 4)))
    one, two = (sample(BENT, q, draws=5, warmup=5, seed=9).draws for _ in range(2))
    np.testing.assert_array_equal(one, two)
    other = sample(BENT, q, draws=5, warmup=5, seed=10).draws
    assert not np.array_equal(one, other)


@pytest.mark.parametrize("draws", [1, 7])
def test_shapes(draws: int) -> None:
    q, _ = project(PLANE, np.random.default_rng(6).standard_normal((3, 4)))
    chains = sample(PLANE, q, draws=draws, warmup=2, thin=3, seed=1)
    assert chains.draws.shape == (3, draws, 4)
    assert chains.acceptance.shape == chains.step_size.shape == (3,)
