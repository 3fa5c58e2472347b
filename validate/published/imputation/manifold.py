"""Sampling a standard normal that is restricted to a manifold {q : c(q) = 0}.

`project` finds points on the manifold (Gauss-Newton from a prior draw: randomized maximum likelihood), `sample`
moves along it by constrained Hamiltonian Monte Carlo [1]_ [2]_: geodesic steps with a projection, a reversibility
check and a Metropolis rule with the co-area factor ``|det J J'|^(-1/2)``. A transition is one step: with the kinks
that absolute values and medians leave in c, longer orbits cost more than they gain. Each chain runs compiled.

.. [1] M. M. Graham and A. J. Storkey (2017), Asymptotically exact inference in differentiable generative models.
.. [2] E. Zappa, M. Holmes-Cerfon and J. Goodman (2018), Monte Carlo on manifolds: sampling densities and
   integrating functions (the reversibility check).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

type Array = NDArray[np.float64]
type Mask = NDArray[np.bool_]


class Manifold(NamedTuple):
    """c(q) = 0 with its derivatives, as functions compiled by numba of one point and the tables that they share.

    Attributes
    ----------
    size, rows : int
        Lengths of q and of c.
    value : callable (q, tables, out)
        Writes c(q), shape (rows,).
    jacobian : callable (q, tables, out)
        Writes dc/dq, shape (rows, size).
    allowed : callable (q, tables) -> bool
        Hard bounds that the target also obeys.
    tables : any
        A number, array or named tuple of them.
    """

    size: int
    rows: int
    value: Callable[..., None]
    jacobian: Callable[..., None]
    allowed: Callable[..., bool]
    tables: Any

    def values(self, q: Array) -> Array:
        """c of each point, shape (point, rows), for q of shape (point, size)."""
        return _each(self.value, self.tables, np.ascontiguousarray(q), np.empty((len(q), self.rows)))

    def jacobians(self, q: Array) -> Array:
        """dc/dq at each point, shape (point, rows, size)."""
        return _each(self.jacobian, self.tables, np.ascontiguousarray(q), np.empty((len(q), self.rows, self.size)))

    def all_allowed(self, q: Array) -> Mask:
        """Which points obey the hard bounds, shape (point,)."""
        return np.array([self.allowed(row, self.tables) for row in np.ascontiguousarray(q)], dtype=bool)


@njit
def _each(function: Any, tables: Any, q: Array, out: Array) -> Array:  # pragma: no cover (compiled)
    for i in range(len(q)):
        function(q[i], tables, out[i])
    return out


TOLERANCE = 1e-6
"""A point counts as on the manifold when every `|c|` is below this."""


@dataclass(frozen=True)
class Chains:
    """What `sample` returns.

    Attributes
    ----------
    draws : float array, shape (chain, draw, size)
    acceptance : float array, shape (chain,)
        Share of accepted transitions after warm-up.
    step_size : float array, shape (chain,)
        Mean length of a leapfrog step; each transition draws its own around it.
    """

    draws: Array
    acceptance: Array
    step_size: Array


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
        max `|c|` reached; above `TOLERANCE` the chain did not arrive.
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
    value = manifold.values(q)
    size = np.sqrt((value**2).mean(-1))
    damping = np.full(len(q), 1e-2)
    eye = np.eye(value.shape[-1])
    for _ in range(steps):
        active = np.flatnonzero((np.abs(value).max(-1) > TOLERANCE) & (damping < 1e4))
        if not len(active):
            break
        jacobian = manifold.jacobians(q[active])
        gram = jacobian @ np.swapaxes(jacobian, -1, -2)
        scale = np.einsum("cii->c", gram) / gram.shape[-1]
        gram += ((damping[active] * np.minimum(size[active], 1.0) + 1e-12) * scale)[:, None, None] * eye
        shift = np.linalg.solve(gram, value[active][..., None])
        move = np.einsum("cmn,cm->cn", jacobian, shift[..., 0])
        length = np.sqrt((move**2).sum(-1))
        move *= np.minimum(1.0, 4.0 / np.maximum(length, 1e-300))[:, None]
        trial = q[active] - np.where(np.isfinite(move), move, 0.0)
        trial_value = manifold.values(trial)
        trial_size = np.sqrt((trial_value**2).mean(-1))
        better = trial_size < size[active]
        taken = active[better]
        q[taken], value[taken], size[taken] = trial[better], trial_value[better], trial_size[better]
        damping[active] = np.where(better, damping[active] / 3.0, damping[active] * 4.0)
    return q, value


@njit(cache=True)
def _factor(jacobian: Array, factor: Array) -> float:  # pragma: no cover (compiled)
    """Cholesky factor of J J' into `factor`; returns half its log determinant, infinite where singular."""
    m = len(jacobian)
    half = 0.0
    for i in range(m):
        for j in range(i + 1):
            total = 0.0
            for k in range(jacobian.shape[1]):
                total += jacobian[i, k] * jacobian[j, k]
            for k in range(j):
                total -= factor[i, k] * factor[j, k]
            if i == j:
                if not (total > 1e-14 and total < 1e300):
                    return np.inf
                factor[i, i] = np.sqrt(total)
                half += np.log(factor[i, i])
            else:
                factor[i, j] = total / factor[j, j]
    return half


@njit(cache=True)
def _solve(factor: Array, x: Array) -> None:  # pragma: no cover (compiled)
    """x <- (L L')^-1 x."""
    m = len(x)
    for i in range(m):
        for k in range(i):
            x[i] -= factor[i, k] * x[k]
        x[i] /= factor[i, i]
    for i in range(m - 1, -1, -1):
        for k in range(i + 1, m):
            x[i] -= factor[k, i] * x[k]
        x[i] /= factor[i, i]


@njit(cache=True)
def _eliminate(matrix: Array, x: Array) -> bool:  # pragma: no cover (compiled)
    """x <- matrix^-1 x by elimination with pivots, the matrix overwritten; False where singular."""
    m = len(x)
    for i in range(m):
        pivot = i
        for k in range(i + 1, m):
            if abs(matrix[k, i]) > abs(matrix[pivot, i]):
                pivot = k
        if not abs(matrix[pivot, i]) > 1e-14:
            return False
        if pivot != i:
            for j in range(m):
                matrix[i, j], matrix[pivot, j] = matrix[pivot, j], matrix[i, j]
            x[i], x[pivot] = x[pivot], x[i]
        for k in range(i + 1, m):
            ratio = matrix[k, i] / matrix[i, i]
            for j in range(i, m):
                matrix[k, j] -= ratio * matrix[i, j]
            x[k] -= ratio * x[i]
    for i in range(m - 1, -1, -1):
        for j in range(i + 1, m):
            x[i] -= matrix[i, j] * x[j]
        x[i] /= matrix[i, i]
    return True


@njit(cache=True)
def _tangent(jacobian: Array, factor: Array, p: Array) -> None:  # pragma: no cover (compiled)
    """Project a momentum on the tangent space, in place."""
    multiplier = jacobian @ p
    _solve(factor, multiplier)
    p -= multiplier @ jacobian


@njit
def _geodesic(
    on: Manifold, free: Array, jacobian: Array, factor: Array, q: Array
) -> bool:  # pragma: no cover (compiled)
    """Bring `free` back to the manifold along the normals `jacobian`, into `q`; False where it fails.

    Cheap chord iterations first; where kinks of c stall them, Newton's, as long as they halve the worst misfit.
    """
    c = np.empty(len(jacobian))
    multiplier = np.zeros(len(jacobian))
    slope = np.empty(jacobian.shape)
    q[:] = free
    worst = np.inf
    for iteration in range(9):
        on.value(q, on.tables, c)
        before, worst = worst, 0.0
        for i in range(len(c)):
            if not np.isfinite(c[i]):
                return False
            worst = max(worst, abs(c[i]))
        if worst < TOLERANCE:
            return True
        if worst > 1e8 or (iteration > 4 and worst > 0.5 * before):
            return False
        if iteration < 4:
            _solve(factor, c)
        else:
            on.jacobian(q, on.tables, slope)
            if not _eliminate(slope @ jacobian.T, c):
                return False
        multiplier -= c
        q[:] = free + multiplier @ jacobian
    return False


@njit
def _transition(
    on: Manifold, q: Array, jacobian: Array, factor: Array, logdet: float, h: float, rng: Any
) -> Any:  # pragma: no cover (compiled)
    """Where one transition leads, with its Jacobian, factor and log determinant, and the probability to go there."""
    stay = (q, jacobian, factor, logdet, 0.0)
    p = rng.standard_normal(len(q))
    _tangent(jacobian, factor, p)
    energy = 0.5 * (q @ q + p @ p) + logdet
    p -= 0.5 * h * q
    _tangent(jacobian, factor, p)
    there, back = np.empty(len(q)), np.empty(len(q))
    if not _geodesic(on, q + h * p, jacobian, factor, there):
        return stay
    if not on.allowed(there, on.tables):
        return stay
    there_jacobian, there_factor = np.empty(jacobian.shape), np.zeros(factor.shape)
    on.jacobian(there, on.tables, there_jacobian)
    there_logdet = _factor(there_jacobian, there_factor)
    if not np.isfinite(there_logdet):
        return stay
    end_p = (there - q) / h
    _tangent(there_jacobian, there_factor, end_p)
    if not _geodesic(on, there - h * end_p, there_jacobian, there_factor, back):
        return stay
    if np.abs(back - q).max() > 1e-4:
        return stay
    p = end_p - 0.5 * h * there
    _tangent(there_jacobian, there_factor, p)
    change = energy - 0.5 * (there @ there + p @ p) - there_logdet
    probability = np.exp(min(change, 0.0)) if np.isfinite(change) else 0.0
    return there, there_jacobian, there_factor, there_logdet, probability


@njit
def _chain(
    on: Manifold, q: Array, kept: Array, log_h: float, thin: int, warmup: int, target: float, rng: Any
) -> Any:  # pragma: no cover (compiled)
    """Warm-up and draws of one chain; fills `kept`, returns the acceptance rate and the log step size."""
    average, accepted, draws = log_h, 0.0, len(kept)
    jacobian, factor = np.empty((on.rows, len(q))), np.zeros((on.rows, on.rows))
    on.jacobian(q, on.tables, jacobian)
    logdet = _factor(jacobian, factor)
    for step in range(warmup + draws * thin):
        h = np.exp(log_h) * rng.uniform(0.2, 1.3)
        found = _transition(on, q, jacobian, factor, logdet, h, rng)
        taken = rng.random() < found[4]
        if taken:
            q, jacobian, factor, logdet = found[0], found[1], found[2], found[3]
        if step < warmup:
            gain = 0.5 / (1.0 + 0.05 * step) ** 0.75
            log_h = min(max(log_h + gain * (found[4] - target), -7.0), 0.5)
            average += (log_h - average) / (1.0 + 0.1 * step)
            if step == warmup - 1:
                log_h = average
        else:
            accepted += taken
            if (step - warmup + 1) % thin == 0:
                kept[(step - warmup) // thin] = q
    return accepted / max(draws * thin, 1), log_h


def sample(
    manifold: Manifold,
    q: Array,
    *,
    draws: int,
    warmup: int,
    seed: np.random.SeedSequence | int,
    thin: int = 1,
    step_size: float = 0.1,
    target_accept: float = 0.25,
) -> Chains:
    """Constrained HMC from points on the manifold.

    Parameters
    ----------
    q : float array, shape (chain, size)
        Starts, on the manifold (see `project`).
    draws, warmup : int
        Draws kept, and transitions discarded before. The step size adapts during warm-up only, in each chain for
        itself.
    thin : int
        Transitions per kept draw.
    target_accept : float
        Where c has kinks, long steps that often fail mix better than short ones that seldom do.
    """
    if not isinstance(seed, np.random.SeedSequence):
        seed = np.random.SeedSequence(seed)
    kept = np.empty((len(q), draws, manifold.size))
    accepted, log_h = np.empty(len(q)), np.empty(len(q))
    start = float(np.log(step_size))
    for chain, child in enumerate(seed.spawn(len(q))):
        given = start, thin, warmup, target_accept, np.random.default_rng(child)
        accepted[chain], log_h[chain] = _chain(manifold, q[chain].copy(), kept[chain], *given)
    return Chains(kept, accepted, np.exp(log_h))
