"""GPUs within the hyperdistribution, formats within GPUs: what lines say of each, and of a GPU without kernels."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from scipy.special import expit
from scipy.stats import halfnorm

from rooffloor.validate.kernels.benchmarks import Floats
from rooffloor.validate.kernels.line import Line

LEVEL = {"gemm": ((np.log(0.008), 1.0), (1.4, 1.0)), "attention": ((np.log(0.02), 1.0), (1.2, 1.0))}
"""Prior of the common level by kind: (mean, sd) of log a (ms) and of logit e."""
FORMAT_SD = (0.7, 0.5)
"""Prior sd of what a format adds on every GPU, log a and logit e."""
SCALE = (0.7, 0.35)
"""Scale of the half-normal priors of the sd between GPUs, and of what is left, log a and logit e."""
_NODES = 6
_STEPS = 30


@dataclass(frozen=True, eq=False)
class Hierarchy:
    """Posterior of the lines, with the sd between GPUs integrated over.

    Attributes
    ----------
    lines : sequence of Line
    mean, sd : float array [line, 2]
        Of log a (a in ms) and logit e of each line.
    level, level_sd : float array [format, 2]
        The same of a GPU that has no kernels, by `formats`.
    formats : tuple of str
    between, left : float array [2, 2]
        (mean, sd) of the sd between GPUs and of the sd of formats and stacks within a GPU; log a, then logit e.
    """

    lines: tuple[Line, ...]
    mean: Floats
    sd: Floats
    formats: tuple[str, ...]
    level: Floats
    level_sd: Floats
    between: Floats
    left: Floats


def hierarchy(lines: Sequence[Line]) -> Hierarchy:
    """Posterior of lines of one kind.

    u = (log a, logit e) of a line is Normal: a common level, a format's own, a GPU's own and what is left, each normal.
    The sd of the two last are integrated over by a grid with equal prior weight a node; u given them by Laplace's
    approximation, since lines are normal in a and 1/e (Rue, Martino and Chopin 2009).

    Raises
    ------
    ValueError
        No lines, or lines of several kinds.
    """
    if not lines or len({found.kind for found in lines}) != 1:
        raise ValueError("expected lines of one kind")
    level = LEVEL[lines[0].kind]
    gpus = np.array([found.gpu for found in lines])
    formats = tuple(dict.fromkeys(found.format for found in lines))
    format_of = np.array([found.format for found in lines])
    same_gpu = (gpus[:, None] == gpus).astype(float)
    same_format = (format_of[:, None] == format_of).astype(float)
    new_format = (np.array(formats)[:, None] == format_of).astype(float)
    prior_mean = np.array([[m for m, _ in level]] * len(lines))
    nodes = halfnorm.ppf((np.arange(_NODES) + 0.5) / _NODES)
    start = prior_mean.copy()
    parts = []
    for taus in product(nodes, repeat=4):
        (gpu_a, left_a), (gpu_e, left_e) = [(SCALE[d] * taus[2 * d], SCALE[d] * taus[2 * d + 1]) for d in (0, 1)]
        covariances, crosses, news = [], [], []
        for d, (gpu_sd, left_sd) in enumerate(((gpu_a, left_a), (gpu_e, left_e))):
            common = level[d][1] ** 2 + FORMAT_SD[d] ** 2 * same_format
            covariances.append(common + gpu_sd**2 * same_gpu + left_sd**2 * np.eye(len(lines)))
            crosses.append(level[d][1] ** 2 + FORMAT_SD[d] ** 2 * new_format)
            news.append(level[d][1] ** 2 + FORMAT_SD[d] ** 2 + gpu_sd**2 + left_sd**2)
        found = _laplace(lines, prior_mean, covariances, start)
        start = found[0]
        parts.append((*found, covariances, crosses, news, (gpu_a, gpu_e), (left_a, left_e)))
    logs = np.array([part[2] for part in parts])
    weights = np.exp(logs - logs.max())
    weights /= weights.sum()
    return _mixed(tuple(lines), formats, prior_mean, parts, weights)


def _times(u: Floats) -> tuple[Floats, Floats]:
    """a and 1/e [line, 2] of u [line, 2], and their derivatives."""
    a, inverse = np.exp(u[:, 0]), 1.0 + np.exp(-u[:, 1])
    return np.stack([a, inverse], axis=1), np.stack([a, -np.exp(-u[:, 1])], axis=1)


def _laplace(
    lines: Sequence[Line], prior_mean: Floats, covariances: Sequence[Floats], start: Floats
) -> tuple[Floats, Floats, float]:
    """Mode [line, 2], covariance [2 line, 2 line] (log a of all lines first) and log marginal likelihood."""
    n = len(lines)
    seen = np.array([found.coefficients for found in lines])
    weight = np.array([np.linalg.inv(found.covariance) for found in lines])
    precision = np.zeros((2 * n, 2 * n))
    for d, covariance in enumerate(covariances):
        precision[d * n : (d + 1) * n, d * n : (d + 1) * n] = np.linalg.inv(covariance)

    def half(u: Floats) -> float:
        away, gap = _times(u)[0] - seen, (u - prior_mean).T.ravel()
        return 0.5 * float(np.einsum("ni,nij,nj", away, weight, away) + gap @ precision @ gap)

    u, value = start, half(start)
    for _ in range(_STEPS):
        at, slope = _times(u)
        pull = np.einsum("nij,nj->ni", weight, at - seen) * slope
        curve = weight * slope[:, :, None] * slope[:, None, :]
        bend = precision.copy()
        index = np.arange(n)
        for i in (0, 1):
            for j in (0, 1):
                bend[i * n + index, j * n + index] += curve[:, i, j]
        gradient = pull.T.ravel() + precision @ (u - prior_mean).T.ravel()
        move = -np.linalg.solve(bend, gradient)
        step = min(1.0, 2.0 / float(np.max(np.abs(move)) + 1e-12))
        while True:
            new = u + step * move.reshape(2, n).T
            new_value = half(new)
            if new_value <= value + 1e-10 or step < 1e-4:
                break
            step /= 2.0
        done = value - new_value < 1e-7
        u, value = new, new_value
        if done:
            break
    logdet = float(np.linalg.slogdet(precision)[1] - np.linalg.slogdet(bend)[1])
    return u, np.linalg.inv(bend), -value + 0.5 * logdet


def _mixed(
    lines: tuple[Line, ...], formats: tuple[str, ...], prior_mean: Floats, parts: Sequence[tuple], weights: Floats
) -> Hierarchy:
    """Moments of the mixture over the grid."""
    n = len(lines)
    means, variances, levels, level_variances = [], [], [], []
    for mode, covariance, _, covariances, crosses, news, _, _ in parts:
        means.append(mode)
        variances.append(np.diag(covariance).reshape(2, n).T)
        new, new_variance = np.empty((len(formats), 2)), np.empty((len(formats), 2))
        for d in (0, 1):
            pull = crosses[d] @ np.linalg.inv(covariances[d])
            own = covariance[d * n : (d + 1) * n, d * n : (d + 1) * n]
            new[:, d] = prior_mean[0, d] + pull @ (mode[:, d] - prior_mean[:, d])
            new_variance[:, d] = (
                news[d] - np.einsum("fi,fi->f", pull, crosses[d]) + np.einsum("fi,ij,fj->f", pull, own, pull)
            )
        levels.append(new)
        level_variances.append(new_variance)
    mean, sd = _moments(np.array(means), np.array(variances), weights)
    level, level_sd = _moments(np.array(levels), np.array(level_variances), weights)
    scales = [np.array([part[which] for part in parts]) for which in (6, 7)]
    between, left = (np.stack(_moments(s, np.zeros_like(s), weights), axis=1) for s in scales)
    return Hierarchy(lines, mean, sd, formats, level, level_sd, between, left)


def _moments(means: Floats, variances: Floats, weights: Floats) -> tuple[Floats, Floats]:
    mean = np.tensordot(weights, means, axes=1)
    return mean, np.sqrt(np.tensordot(weights, variances + (means - mean) ** 2, axes=1))


def interval(mean: float, sd: float, *, share: bool, z: float = 1.645) -> tuple[float, float, float]:
    """Median and 90 % interval of a (in µs) or, `share`, of e."""
    points = mean + sd * np.array([0.0, -z, z])
    values = expit(points) if share else 1e3 * np.exp(points)
    return float(values[0]), float(values[1]), float(values[2])
