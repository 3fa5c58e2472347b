"""Sampling a standard normal that is restricted to a manifold {q : c(q) = 0}.

`project` finds points on the manifold (Gauss-Newton from a prior draw: randomized maximum likelihood), `sample`
moves along it by constrained Hamiltonian Monte Carlo [1]_ [2]_: geodesic steps with a projection, a reversibility
check and a Metropolis rule with the co-area factor ``|det J J'|^(-1/2)``. All chains advance together, as rows of one
array.

.. [1] M. M. Graham and A. J. Storkey (2017), Asymptotically exact inference in differentiable generative models.
.. [2] E. Zappa, M. Holmes-Cerfon and J. Goodman (2018), Monte Carlo on manifolds: sampling densities and
   integrating functions (the reversibility check).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

type Array = NDArray[np.float64]
type Mask = NDArray[np.bool_]


class Manifold(Protocol):
    """c(q) = 0 with its derivatives, for many chains at once."""

    @property
    def size(self) -> int:
        """Length of q."""
        ...

    def value(self, q: Array) -> Array:
        """c(q), shape (chain, m) for q of shape (chain, size)."""
        ...

    def jacobian(self, q: Array) -> Array:
        """dc/dq, shape (chain, m, size)."""
        ...

    def allowed(self, q: Array) -> Mask:
        """Hard bounds that the target also obeys, shape (chain,)."""
        ...


TOLERANCE = 1e-6
"""A point counts as on the manifold when every |c| is below this."""


@dataclass(frozen=True)
class Chains:
    """What `sample` returns.

    Attributes
    ----------
    draws : float array, shape (chain, draw, size)
    acceptance : float array, shape (chain,)
        Share of accepted steps after warm-up.
    step_size : float
        Mean length of a leapfrog step, common to all chains; each transition draws its own around it.
    """

    draws: Array
    acceptance: Array
    step_size: float


def _gram_solve(left: Array, right: Array, rhs: Array) -> Array:
    """Solve (left right') x = rhs per chain; a singular system yields NaN for that chain."""
    gram = left @ np.swapaxes(right, -1, -2)
    try:
        return np.linalg.solve(gram, rhs[..., None])[..., 0]
    except np.linalg.LinAlgError:
        solution = np.full_like(rhs, np.nan)
        for i in range(len(rhs)):
            try:
                solution[i] = np.linalg.solve(gram[i], rhs[i])
            except np.linalg.LinAlgError:
                continue
        return solution


@np.errstate(all="ignore")  # trial points far out overflow, and are then refused
def project(
    manifold: Manifold,
    q: Array,
    *,
    seed: np.random.SeedSequence | int = 0,
    steps: int = 40,
    hops: int = 12,
    enough: float = 1.0,
) -> tuple[Array, Array]:
    """Bring prior draws onto the manifold: damped Gauss-Newton steps of least length, with random hops.

    Kinks of c (absolute values, medians) can trap Gauss-Newton. A trapped chain hops: it is mixed with a fresh
    prior draw, q <- sqrt(1 - b^2) q + b xi, and projected again; the better end is kept.

    Parameters
    ----------
    q : float array, shape (chain, size)
    steps : int
        Gauss-Newton steps per hop.
    hops : int
        Most hops per chain.
    enough : float
        Hopping ends when this share of the chains has arrived.

    Returns
    -------
    q : float array, shape (chain, size)
    misfit : float array, shape (chain,)
        max |c| reached; above `TOLERANCE` the chain did not arrive.
    """
    rng = np.random.default_rng(seed)
    q, value = _gauss_newton(manifold, q, steps)
    for hop in range(hops):
        rows = np.flatnonzero(np.abs(value).max(-1) > TOLERANCE)
        if len(rows) <= (1.0 - enough) * len(q):
            break
        mix = 0.6 / (1.0 + 0.3 * hop)
        start = np.sqrt(1.0 - mix**2) * q[rows] + mix * rng.standard_normal((len(rows), q.shape[1]))
        trial, trial_value = _gauss_newton(manifold, start, steps)
        better = (trial_value**2).sum(-1) < (value[rows] ** 2).sum(-1)
        q[rows[better]], value[rows[better]] = trial[better], trial_value[better]
    return q, np.abs(value).max(-1)


def _gauss_newton(manifold: Manifold, q: Array, steps: int) -> tuple[Array, Array]:
    """Levenberg-Marquardt in the normal directions, per chain; returns points and c."""
    q = q.copy()
    value = manifold.value(q)
    size = np.sqrt((value**2).mean(-1))
    damping = np.full(len(q), 1e-2)
    eye = np.eye(value.shape[-1])
    for _ in range(steps):
        active = np.flatnonzero((np.abs(value).max(-1) > TOLERANCE) & (damping < 1e4))
        if not len(active):
            break
        jacobian = manifold.jacobian(q[active])
        gram = jacobian @ np.swapaxes(jacobian, -1, -2)
        scale = np.einsum("cii->c", gram) / gram.shape[-1]
        gram += ((damping[active] * np.minimum(size[active], 1.0) + 1e-12) * scale)[:, None, None] * eye
        shift = np.linalg.solve(gram, value[active][..., None])
        move = np.einsum("cmn,cm->cn", jacobian, shift[..., 0])
        length = np.sqrt((move**2).sum(-1))
        move *= np.minimum(1.0, 4.0 / np.maximum(length, 1e-300))[:, None]
        trial = q[active] - np.where(np.isfinite(move), move, 0.0)
        trial_value = manifold.value(trial)
        trial_size = np.sqrt((trial_value**2).mean(-1))
        better = trial_size < size[active]
        taken = active[better]
        q[taken], value[taken], size[taken] = trial[better], trial_value[better], trial_size[better]
        damping[active] = np.where(better, damping[active] / 3.0, damping[active] * 4.0)
    return q, value


def _tangent(jacobian: Array, p: Array) -> Array:
    """Project momenta on the tangent space of each chain."""
    multiplier = _gram_solve(jacobian, jacobian, np.einsum("cmn,cn->cm", jacobian, p))
    return p - np.einsum("cmn,cm->cn", jacobian, multiplier)


def _geodesic(manifold: Manifold, q: Array, p: Array, jacobian: Array, inverse: Array, h: Array) -> tuple[Array, Mask]:
    """One step of length h along p, brought back to the manifold along the normals at q.

    Cheap chord iterations first; where kinks of c stall them, Newton's.
    """
    free = q + h[:, None] * p
    multiplier = np.zeros(jacobian.shape[:2])
    target = free.copy()
    todo = np.flatnonzero(np.isfinite(free).all(-1))
    done = np.zeros(len(q), bool)
    for iteration in range(8):
        value = manifold.value(target[todo])
        worst = np.abs(value).max(-1)
        done[todo[worst < TOLERANCE]] = True
        go = (worst >= TOLERANCE) & (worst < 1e8)
        todo, value = todo[go], value[go]
        if not len(todo):
            break
        if iteration < 3:
            shift = np.einsum("cij,cj->ci", inverse[todo], value)
        else:
            shift = _gram_solve(manifold.jacobian(target[todo]), jacobian[todo], value)
        multiplier[todo] -= shift
        target[todo] = free[todo] + np.einsum("cmn,cm->cn", jacobian[todo], multiplier[todo])
        todo = todo[np.isfinite(target[todo]).all(-1)]
    return target, done


@np.errstate(all="ignore")
def sample(
    manifold: Manifold,
    q: Array,
    *,
    draws: int,
    warmup: int,
    leapfrogs: int,
    seed: np.random.SeedSequence | int,
    step_size: float = 0.1,
    target_accept: float = 0.5,
    advance: Callable[[int], None] | None = None,
) -> Chains:
    """Constrained HMC from points on the manifold.

    Parameters
    ----------
    q : float array, shape (chain, size)
        Starts, on the manifold (see `project`).
    draws, warmup : int
        Kept and discarded transitions. The step size adapts during warm-up only.
    leapfrogs : int
        Most steps per transition; the number is uniform on 1..leapfrogs, which keeps orbits from closing.
    advance : callable, optional
        Called with 1 after every transition.
    """
    rng = np.random.default_rng(seed)
    chains, size = q.shape
    common = average = float(np.log(step_size))
    kept = np.empty((chains, draws, size))
    accepted = np.zeros(chains)
    q = q.copy()
    jacobian = manifold.jacobian(q)
    inverse, half_logdet = _factor(jacobian)
    for step in range(warmup + draws):
        p = _tangent(jacobian, rng.standard_normal(q.shape))
        energy = 0.5 * (q**2).sum(-1) + half_logdet + 0.5 * (p**2).sum(-1)
        new, new_p, new_jacobian, new_inverse, new_logdet = q, p, jacobian, inverse, half_logdet
        valid = np.ones(chains, bool)
        count = int(rng.integers(1, leapfrogs + 1))
        h = np.exp(common) * rng.uniform(0.2, 1.3, chains)
        for _ in range(count):
            kicked = _tangent(new_jacobian, new_p - 0.5 * h[:, None] * new)
            moved, arrived = _geodesic(manifold, new, kicked, new_jacobian, new_inverse, h)
            moved[~arrived] = new[~arrived]
            moved_jacobian = manifold.jacobian(moved)
            moved_inverse, moved_logdet = _factor(moved_jacobian)
            end_p = _tangent(moved_jacobian, (moved - new) / h[:, None])
            back, returned = _geodesic(manifold, moved, -end_p, moved_jacobian, moved_inverse, h)
            reversible = returned & (np.abs(back - new).max(-1) < 1e-4)
            valid &= arrived & reversible & manifold.allowed(moved) & np.isfinite(moved_logdet)
            new_p = _tangent(moved_jacobian, end_p - 0.5 * h[:, None] * moved)
            new, new_jacobian = moved, moved_jacobian
            new_inverse, new_logdet = moved_inverse, moved_logdet
            if not valid.any():
                break
        end = 0.5 * (new**2).sum(-1) + new_logdet + 0.5 * (new_p**2).sum(-1)
        change = np.where(valid, energy - end, -np.inf)
        change = np.where(np.isnan(change), -np.inf, change)
        probability = np.exp(np.minimum(change, 0.0))
        take = rng.random(chains) < probability
        q = np.where(take[:, None], new, q)
        jacobian = np.where(take[:, None, None], new_jacobian, jacobian)
        inverse = np.where(take[:, None, None], new_inverse, inverse)
        half_logdet = np.where(take, new_logdet, half_logdet)
        if step < warmup:
            gain = 0.5 / (1.0 + 0.05 * step) ** 0.75
            common = float(np.clip(common + gain * (probability.mean() - target_accept), -7.0, 0.0))
            weight = 1.0 / (1.0 + 0.1 * step)
            average = (1 - weight) * average + weight * common
            if step == warmup - 1:
                common = average
        else:
            kept[:, step - warmup] = q
            accepted += take
        if advance is not None:
            advance(1)
    return Chains(kept, accepted / max(draws, 1), float(np.exp(common)))


def _factor(jacobian: Array) -> tuple[Array, Array]:
    """Inverse and half the log determinant of J J', per chain (NaN or infinite where singular)."""
    gram = jacobian @ np.swapaxes(jacobian, -1, -2)
    sign, logdet = np.linalg.slogdet(gram)
    good = (sign > 0) & np.isfinite(logdet)
    safe = np.where(good[:, None, None], gram, np.eye(gram.shape[-1]))
    return np.linalg.inv(safe), np.where(good, 0.5 * logdet, np.inf)
