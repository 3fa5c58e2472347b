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
_PASSES = 6
_REACH, _POINTS, _LEAST_INVERSE = 6.0, 201, 1.001
"""Grid of a line: standard errors, points in each direction, least 1/e."""

type Sites = tuple[Floats, Floats]
"""Normal likelihoods of u by line: precision [line, 2, 2], precision times mean [line, 2]."""


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
    The sd of the two last are integrated over by a grid with equal prior weight a node. A line is normal in a and 1/e;
    in u it is replaced by the normal that has the moments of its posterior (expectation propagation, Minka 2001; one
    set of these for all nodes), since a may be anything below its standard error.

    Raises
    ------
    ValueError
        No lines, or lines of several kinds.
    """
    if not lines or len({found.kind for found in lines}) != 1:
        raise ValueError("expected lines of one kind")
    grid = _grid(lines)
    n = len(lines)
    sites = (np.zeros((n, 2, 2)), np.zeros((n, 2)))
    for _ in range(_PASSES):
        mean, covariance = _marginals(grid, sites)
        sites = _sites(lines, mean, covariance, sites)
    mean, covariance = _marginals(grid, sites)
    level, level_sd = _moments(*grid.new(sites), grid.weights(sites))
    weights = grid.weights(sites)
    between, left = (np.stack(_moments(s, np.zeros_like(s), weights), axis=1) for s in (grid.between, grid.left))
    sd = np.sqrt(np.stack([covariance[:, 0, 0], covariance[:, 1, 1]], axis=1))
    return Hierarchy(tuple(lines), mean, sd, grid.formats, level, level_sd, between, left)


@dataclass(frozen=True, eq=False)
class _Grid:
    """The normal prior of u at every node of the grid over sd: u of all lines, log a first.

    Attributes
    ----------
    formats : tuple of str
    between, left : float array [node, 2]
        The sd.
    mean : float array [2 line]
    precision : float array [node, 2 line, 2 line]
    cross : float array [node, 2 format, 2 line]
        Covariance of u of a GPU that has no lines with u of the lines, times `precision`.
    new_mean, new_variance : float array [2 format], [node, 2 format]
        Prior of that GPU, and its variance given u of the lines.
    """

    formats: tuple[str, ...]
    between: Floats
    left: Floats
    mean: Floats
    precision: Floats
    cross: Floats
    new_mean: Floats
    new_variance: Floats

    def posterior(self, sites: Sites) -> tuple[Floats, Floats, Floats]:
        """Mean [node, 2 line], covariance [node, 2 line, 2 line], log evidence [node] under normal likelihoods."""
        precision, shift = _stacked(sites)
        joint = self.precision + precision
        covariance = np.linalg.inv(joint)
        pull = self.precision @ self.mean + shift
        mean = np.einsum("gij,gj->gi", covariance, pull)
        fit = np.einsum("gi,gi->g", pull, mean) - np.einsum("i,gij,j->g", self.mean, self.precision, self.mean)
        size = np.linalg.slogdet(self.precision)[1] - np.linalg.slogdet(joint)[1]
        return mean, covariance, 0.5 * (fit + size)

    def weights(self, sites: Sites) -> Floats:
        """Posterior weights of the nodes."""
        logs = self.posterior(sites)[2]
        weights = np.exp(logs - logs.max())
        return weights / weights.sum()

    def new(self, sites: Sites) -> tuple[Floats, Floats]:
        """Mean and variance [node, format, 2] of a GPU that has no lines."""
        mean, covariance, _ = self.posterior(sites)
        found = self.new_mean + np.einsum("gfi,gi->gf", self.cross, mean - self.mean)
        variance = self.new_variance + np.einsum("gfi,gij,gfj->gf", self.cross, covariance, self.cross)
        shape = (len(mean), 2, len(self.formats))
        return found.reshape(shape).transpose(0, 2, 1), variance.reshape(shape).transpose(0, 2, 1)


def _grid(lines: Sequence[Line]) -> _Grid:
    level = LEVEL[lines[0].kind]
    n = len(lines)
    gpus, of = np.array([found.gpu for found in lines]), np.array([found.format for found in lines])
    formats = tuple(dict.fromkeys(of.tolist()))
    same_gpu, same_format = (gpus[:, None] == gpus).astype(float), (of[:, None] == of).astype(float)
    new_format = (np.array(formats)[:, None] == of).astype(float)
    nodes = halfnorm.ppf((np.arange(_NODES) + 0.5) / _NODES)
    scales = np.array(list(product(nodes, repeat=4)))
    between, left = scales[:, :2] * SCALE, scales[:, 2:] * SCALE
    precision = np.zeros((len(scales), 2 * n, 2 * n))
    cross = np.zeros((len(scales), 2 * len(formats), 2 * n))
    new_variance = np.zeros((len(scales), 2 * len(formats)))
    for d in (0, 1):
        rows, out = slice(d * n, (d + 1) * n), slice(d * len(formats), (d + 1) * len(formats))
        common = level[d][1] ** 2 + FORMAT_SD[d] ** 2 * same_format
        own = between[:, d, None, None] ** 2 * same_gpu + left[:, d, None, None] ** 2 * np.eye(n)
        precision[:, rows, rows] = np.linalg.inv(common + own)
        shared = level[d][1] ** 2 + FORMAT_SD[d] ** 2 * new_format
        cross[:, out, rows] = shared @ precision[:, rows, rows]
        new = level[d][1] ** 2 + FORMAT_SD[d] ** 2 + between[:, d] ** 2 + left[:, d] ** 2
        new_variance[:, out] = new[:, None] - np.einsum("gfi,fi->gf", cross[:, out, rows], shared)
    mean = np.repeat([float(m) for m, _ in level], n)
    new_mean = np.repeat([float(m) for m, _ in level], len(formats))
    return _Grid(formats, between, left, mean, precision, cross, new_mean, new_variance)


def _stacked(sites: Sites) -> tuple[Floats, Floats]:
    """Precision [2 line, 2 line] and shift [2 line] of the likelihoods."""
    precision, shift = sites
    n = len(shift)
    whole, index = np.zeros((2 * n, 2 * n)), np.arange(n)
    for i in (0, 1):
        for j in (0, 1):
            whole[i * n + index, j * n + index] = precision[:, i, j]
    return whole, shift.T.ravel()


def _marginals(grid: _Grid, sites: Sites) -> tuple[Floats, Floats]:
    """Mean [line, 2] and covariance [line, 2, 2] of each line's u over the grid."""
    means, covariances, _ = grid.posterior(sites)
    weights = grid.weights(sites)
    n = means.shape[1] // 2
    mean = weights @ means
    away = means - mean
    whole = np.einsum("g,gij->ij", weights, covariances) + np.einsum("g,gi,gj->ij", weights, away, away)
    index = np.arange(n)
    own = np.array([[whole[i * n + index, j * n + index] for j in (0, 1)] for i in (0, 1)])
    return mean.reshape(2, n).T, own.transpose(2, 0, 1)


def _sites(lines: Sequence[Line], mean: Floats, covariance: Floats, sites: Sites) -> Sites:
    """Normal likelihoods that give each line the moments of its posterior, beside what the other lines say of it."""
    precision, shift = (part.copy() for part in sites)
    for i, found in enumerate(lines):
        whole = np.linalg.inv(covariance[i])
        cavity = whole - precision[i]
        if np.linalg.eigvalsh(cavity)[0] <= 1e-9:
            continue
        spread = np.linalg.inv(cavity)
        middle = spread @ (whole @ mean[i] - shift[i])
        tilted_mean, tilted = _tilted(found, middle, spread)
        values, vectors = np.linalg.eigh(np.linalg.inv(tilted) - cavity)
        new = (vectors * np.maximum(values, 0.0)) @ vectors.T
        new_shift = (cavity + new) @ tilted_mean - cavity @ middle
        precision[i], shift[i] = new, new_shift
    return precision, shift


def _tilted(found: Line, middle: Floats, spread: Floats) -> tuple[Floats, Floats]:
    """Moments of u [2], [2, 2] of a line with a normal prior, on a grid over what its standard errors allow."""
    (a_hat, x_hat), (a_se, x_se) = found.coefficients, np.sqrt(np.diag(found.covariance))
    most = max(a_hat, 0.0) + _REACH * a_se
    log_a = np.linspace(np.log(max(a_hat - _REACH * a_se, min(1e-5, 1e-3 * most))), np.log(most), _POINTS)
    inverse = np.array([max(x_hat - _REACH * x_se, _LEAST_INVERSE), max(x_hat + _REACH * x_se, 2.0 * _LEAST_INVERSE)])
    ends = -np.log(inverse - 1.0)
    logit = np.linspace(ends[1], ends[0], _POINTS)
    off_a, off_x = np.exp(log_a) - a_hat, 1.0 + np.exp(-logit) - x_hat
    weight, prior = np.linalg.inv(found.covariance), np.linalg.inv(spread)
    from_a, from_e = log_a - middle[0], logit - middle[1]
    logs = -np.outer(weight[0, 1] * off_a, off_x) - np.outer(prior[0, 1] * from_a, from_e)
    logs -= 0.5 * (weight[0, 0] * off_a**2 + prior[0, 0] * from_a**2)[:, None]
    logs -= 0.5 * (weight[1, 1] * off_x**2 + prior[1, 1] * from_e**2)
    weights = np.exp(logs - logs.max())
    weights /= weights.sum()
    of_a, of_e = weights.sum(axis=1), weights.sum(axis=0)
    mean = np.array([of_a @ log_a, of_e @ logit])
    away_a, away_e = log_a - mean[0], logit - mean[1]
    both = float(away_a @ weights @ away_e)
    return mean, np.array([[of_a @ away_a**2, both], [both, of_e @ away_e**2]])


def _moments(means: Floats, variances: Floats, weights: Floats) -> tuple[Floats, Floats]:
    """Mean and sd of a mixture over the first axis."""
    mean = np.tensordot(weights, means, axes=1)
    return mean, np.sqrt(np.tensordot(weights, variances + (means - mean) ** 2, axes=1))


def interval(mean: float, sd: float, *, share: bool, z: float = 1.645) -> tuple[float, float, float]:
    """Median and 90 % interval of a (in µs) or, `share`, of e."""
    points = mean + sd * np.array([0.0, -z, z])
    values = expit(points) if share else 1e3 * np.exp(points)
    return float(values[0]), float(values[1]), float(values[2])
