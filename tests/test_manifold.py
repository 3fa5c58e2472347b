"""Constrained HMC against closed forms and brute force."""

import numpy as np
import pytest
from numpy.typing import NDArray

from validate.manifold import TOLERANCE, project, sample

type Array = NDArray[np.float64]


class Plane:
    """A q = b: the restricted normal is known in closed form."""

    size = 4

    def __init__(self) -> None:
        self.matrix = np.array([[1.0, 2.0, 0.0, -1.0], [0.5, -1.0, 1.5, 0.0]])
        self.offset = np.array([1.0, -0.5])

    def value(self, q: Array) -> Array:
        return q @ self.matrix.T - self.offset

    def jacobian(self, q: Array) -> Array:
        return np.broadcast_to(self.matrix, (len(q), 2, 4))

    def allowed(self, q: Array) -> NDArray[np.bool_]:
        return np.ones(len(q), bool)


class Bent(Plane):
    """Curved, so that the co-area factor matters, and with a hard bound."""

    def value(self, q: Array) -> Array:
        return q @ self.matrix.T + 0.4 * (q**2) @ np.abs(self.matrix).T - self.offset

    def jacobian(self, q: Array) -> Array:
        return self.matrix + 0.8 * np.abs(self.matrix) * q[:, None, :]

    def allowed(self, q: Array) -> NDArray[np.bool_]:
        return q[:, 0] > -0.5


def test_starts_arrive_on_the_manifold() -> None:
    q, misfit = project(Bent(), np.random.default_rng(0).standard_normal((50, 4)))
    assert (misfit < TOLERANCE).all()
    assert np.abs(Bent().value(q)).max() < TOLERANCE


def test_projection_of_a_plane_is_the_nearest_point() -> None:
    plane, start = Plane(), np.random.default_rng(1).standard_normal((5, 4))
    q, _ = project(plane, start)
    nearest = start - plane.value(start) @ np.linalg.pinv(plane.matrix).T
    np.testing.assert_allclose(q, nearest, atol=1e-5)


def test_an_impossible_constraint_reports_its_misfit() -> None:
    class Never(Plane):
        def value(self, q: Array) -> Array:
            return np.stack([(q**2).sum(-1) + 1.0], -1)

        def jacobian(self, q: Array) -> Array:
            return 2.0 * q[:, None, :]

    _, misfit = project(Never(), np.random.default_rng(2).standard_normal((3, 4)), hops=1)
    assert (misfit >= 1.0).all()


def test_a_plane_has_the_conditional_normal() -> None:
    plane = Plane()
    q, _ = project(plane, np.random.default_rng(3).standard_normal((40, 4)))
    chains = sample(plane, q, draws=250, warmup=60, leapfrogs=6, seed=3)
    draws = chains.draws.reshape(-1, 4)
    pinv = np.linalg.pinv(plane.matrix)
    mean, covariance = pinv @ plane.offset, np.eye(4) - pinv @ plane.matrix
    np.testing.assert_allclose(draws.mean(0), mean, atol=0.06)
    np.testing.assert_allclose(np.cov(draws.T), covariance, atol=0.08)
    assert np.abs(plane.value(draws)).max() < 1e-4


def test_a_curved_manifold_agrees_with_rejection() -> None:
    bent, rng = Bent(), np.random.default_rng(4)
    prior = rng.standard_normal((1_500_000, 4))
    near = prior[(np.abs(bent.value(prior)).max(-1) < 0.05) & bent.allowed(prior)]
    q, misfit = project(bent, rng.standard_normal((120, 4)))
    q = q[(misfit < TOLERANCE) & bent.allowed(q)]
    draws = sample(bent, q, draws=150, warmup=80, leapfrogs=6, seed=4).draws.reshape(-1, 4)
    assert bent.allowed(draws).all()
    error = near.std(0) / np.sqrt(len(near))
    assert (np.abs(draws.mean(0) - near.mean(0)) < 5 * error + 0.03).all()
    np.testing.assert_allclose(draws.std(0), near.std(0), rtol=0.12)


def test_same_seed_same_draws() -> None:
    q, _ = project(Bent(), np.random.default_rng(5).standard_normal((4, 4)))
    one, two = (sample(Bent(), q, draws=5, warmup=5, leapfrogs=3, seed=9).draws for _ in range(2))
    np.testing.assert_array_equal(one, two)
    other = sample(Bent(), q, draws=5, warmup=5, leapfrogs=3, seed=10).draws
    assert not np.array_equal(one, other)


@pytest.mark.parametrize("draws", [1, 7])
def test_shapes_and_progress(draws: int) -> None:
    q, _ = project(Plane(), np.random.default_rng(6).standard_normal((3, 4)))
    steps: list[int] = []
    chains = sample(Plane(), q, draws=draws, warmup=2, leapfrogs=2, seed=1, advance=steps.append)
    assert chains.draws.shape == (3, draws, 4)
    assert sum(steps) == draws + 2
