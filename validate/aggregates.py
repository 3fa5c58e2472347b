"""Compiled core of the inversion: from one latent vector to grids, figures and their derivatives.

`inversion.Inversion` says what the numbers mean and fills `Tables`; the functions here work on one vector q at a time
and are what `manifold.sample` calls in its inner loop. Every array is block-major: blocks of `CELLS` cells.
"""

import math
from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

type Array = NDArray[np.float64]
type Codes = NDArray[np.int64]

CELLS = 15

LINEAR, RELATIVE_LEAST_SQUARES, MEDIAN, LEAST_MAPE = range(4)
"""How an offset is read off the differences d = y - T of one grid."""

OFFSET, RAW, SHIFTED, STEPS, PREDICTED, ERROR, POOLED = range(7)
"""What a figure is: an offset; MAPE of T; MAPE of T plus an offset; a weighted sum of steps; T plus offset in one
cell; its error there in percent; mean of other figures."""


class Tables(NamedTuple):
    """What the compiled functions need to know about one inversion.

    Attributes
    ----------
    work : float array, shape (4, cell)
        T = work[0] / eta_bw + (work[1] + l_half work[2]) / eta_fa + latency work[3], ms: no kernel of the grid is
        compute-bound.
    minimum_ms : float array, shape (cell,)
        Bytes at peak bandwidth.
    constants, sets : int
        Constants in use, and sets of them.
    set_of_block : int array, shape (block,)
    centre, spread : float arrays, shape (4,)
        Prior of the constants, on the logit scale (the two eta) or the log scale.
    floor_sd_ms, leftover, leftover_sd, free_sd : float
        Priors of a block; `free_sd` 0: T is the roof.
    root : float array, shape (CELLS, CELLS)
        Cholesky factor of the leftovers' correlation.
    reading : int
        Code of the offset reading; `share`, shape (CELLS,), its weights where it is linear.
    kind, block, source : int arrays, shape (figure,)
        Of each figure its kind, its block and the block on which its offset is read.
    weight : float array, shape (figure, CELLS)
        Of `STEPS`, `PREDICTED` and `ERROR`: the cells meant.
    members : int array, shape (figure, 3)
        Of `POOLED`: the figures averaged.
    middle, half : float arrays, shape (figure,)
        Interval of each figure.
    rows, unknowns : int
        Figures that are rows of the manifold (the first ones); length of q without their latents.
    """

    work: Array
    minimum_ms: Array
    constants: int
    sets: int
    set_of_block: Codes
    centre: Array
    spread: Array
    floor_sd_ms: float
    leftover: float
    leftover_sd: float
    free_sd: float
    root: Array
    reading: int
    share: Array
    kind: Codes
    block: Codes
    source: Codes
    weight: Array
    members: Codes
    middle: Array
    half: Array
    rows: int
    unknowns: int


class State(NamedTuple):
    """Everything that follows from q but the figures; shapes (4, set), (block,) and (cell,)."""

    constant: Array
    constant_slope: Array
    floor: Array
    scale: Array
    leftover: Array
    T: Array
    stray: Array
    y: Array
    y_by_level: Array
    y_by_T: Array


@njit(cache=True)
def state_of(q: Array, t: Tables) -> Any:  # pragma: no cover (compiled)
    """Constants, floors, T and y of one q."""
    blocks = len(t.set_of_block)
    cells = blocks * CELLS
    constant, slope = np.zeros((4, t.sets)), np.zeros((4, t.sets))
    constant[:2] = 1.0
    for i in range(t.constants):
        for k in range(t.sets):
            at = t.centre[i] + t.spread[i] * min(max(q[i * t.sets + k], -8.0), 8.0)
            if i < 2:
                value = 1.0 / (1.0 + math.exp(-at))
                slope[i, k] = t.spread[i] * value * (1.0 - value)
            else:
                value = math.exp(at)
                slope[i, k] = t.spread[i] * value
            constant[i, k] = value
    floor, scale = np.empty(blocks), np.empty(blocks)
    leftover, T, stray, y = np.empty(cells), np.empty(cells), np.ones(cells), np.empty(cells)
    by_level, by_T = np.empty(cells), np.empty(cells)
    first = t.constants * t.sets
    size = (t.unknowns - first) // blocks
    side = t.free_sd * math.sqrt(0.5)
    for b in range(blocks):
        own = q[first + b * size : first + (b + 1) * size]
        k = t.set_of_block[b]
        # beyond 8 sd lies a prior mass of 1e-15: trial points far out stay finite
        floor[b] = t.floor_sd_ms * min(max(own[0], -8.0), 8.0)
        scale[b] = t.leftover * math.exp(t.leftover_sd * min(max(own[1], -8.0), 8.0))
        bw, fa, l_half, latency = constant[0, k], constant[1, k], constant[2, k], constant[3, k]
        for i in range(CELLS):
            c = b * CELLS + i
            roof = t.work[0, c] / bw + (t.work[1, c] + l_half * t.work[2, c]) / fa + latency * t.work[3, c]
            if t.free_sd > 0.0:
                log = own[2 + CELLS] + own[3 + CELLS + i]
                stray[c] = math.exp(side * min(max(log, -16.0), 16.0))
            T[c] = roof * stray[c]
            left = 0.0
            for j in range(i + 1):
                left += t.root[i, j] * min(max(own[2 + j], -8.0), 8.0)
            leftover[c] = left
            # The level T + floor is kept positive by a smooth hinge at 0.2 T of width 0.04 T: a negative floor
            # cannot pass through zero.
            bound = 0.2 * T[c]
            gap = T[c] + floor[b] - bound
            root = math.sqrt(gap**2 + (0.2 * bound) ** 2)
            factor = math.exp(scale[b] * left)
            y[c] = (bound + 0.5 * (gap + root)) * factor
            up = 0.5 * (1.0 + gap / root)
            by_level[c] = up * factor
            by_T[c] = (up + 0.2 * (1.0 - up + 0.5 * 0.04 * bound / root)) * factor
    return State(constant, slope, floor, scale, leftover, T, stray, y, by_level, by_T)


@njit(cache=True)
def read_offset(d: Array, y: Array, reading: int, share: Array, by_d: Array, by_y: Array) -> float:  # pragma: no cover
    """An offset read off one grid's d = y - T; fills its derivatives by d and (directly) by y."""
    by_y[:] = 0.0
    if reading == LINEAR:
        by_d[:] = share
        return (share * d).sum()
    if reading == RELATIVE_LEAST_SQUARES:
        total = (1.0 / y**2).sum()
        offset = (d / y**2).sum() / total
        for i in range(len(d)):
            by_d[i] = 1.0 / y[i] ** 2 / total
            by_y[i] = -2.0 / y[i] ** 3 * (d[i] - offset) / total
        return offset
    by_d[:] = 0.0
    order = np.argsort(d)
    whole = float(len(d)) if reading == MEDIAN else (1.0 / y).sum()
    cumulated = 0.0
    for i in order:
        cumulated += 1.0 if reading == MEDIAN else 1.0 / y[i]
        if cumulated >= 0.5 * whole:
            by_d[i] = 1.0
            return d[i]
    return np.nan


@njit(cache=True)
def figures_of(y: Array, T: Array, t: Tables) -> Any:  # pragma: no cover (compiled)
    """Figures, shape (figure,), and offsets with derivatives by d and y, shapes (block,), (block, CELLS) twice."""
    blocks = len(t.set_of_block)
    offset, by_d, by_y = np.empty(blocks), np.empty((blocks, CELLS)), np.empty((blocks, CELLS))
    for b in range(blocks):
        at = slice(b * CELLS, (b + 1) * CELLS)
        offset[b] = read_offset(y[at] - T[at], y[at], t.reading, t.share, by_d[b], by_y[b])
    figures = np.zeros(len(t.kind))
    for f in range(len(t.kind)):
        kind, first, o = t.kind[f], t.block[f] * CELLS, offset[t.source[f]]
        value = 0.0
        if kind == OFFSET:
            value = o
        elif kind in (RAW, SHIFTED):
            shift = o if kind == SHIFTED else 0.0
            for i in range(first, first + CELLS):
                value += abs((T[i] + shift) / y[i] - 1.0)
            value *= 100.0 / CELLS
        elif kind != POOLED:
            steps = predicted = 0.0
            for i in range(CELLS):
                steps += t.weight[f, i] * y[first + i]
                predicted += t.weight[f, i] * T[first + i]
            if kind == STEPS:
                value = steps
            elif kind == PREDICTED:
                value = predicted + o
            else:
                value = 100.0 * ((predicted + o) / steps - 1.0)
        figures[f] = value
    for f in range(len(t.kind)):
        if t.kind[f] == POOLED:
            for i in t.members[f]:
                figures[f] += figures[i] / len(t.members[f])
    return figures, offset, by_d, by_y


@njit(cache=True)
def value(q: Array, t: Tables, out: Array) -> None:  # pragma: no cover (compiled)
    """c(q): figures minus the place that their latents claim, in units of half the rounding; shape (row,)."""
    s = state_of(q, t)
    figures = figures_of(s.y, s.T, t)[0]
    for r in range(t.rows):
        claim = math.erf(q[t.unknowns + r] * math.sqrt(0.5))
        out[r] = (figures[r] - t.middle[r]) / t.half[r] - claim


@njit(cache=True)
def allowed(q: Array, t: Tables) -> bool:  # pragma: no cover (compiled)
    """Whether the bounded figures lie in their intervals and no step below its bytes at peak bandwidth."""
    s = state_of(q, t)
    if not np.all(s.y >= t.minimum_ms):
        return False
    figures = figures_of(s.y, s.T, t)[0]
    bounded = slice(t.rows, len(figures))
    return bool(np.all(np.abs(figures[bounded] - t.middle[bounded]) <= t.half[bounded]))


@njit(cache=True)
def _slope(f: int, s: State, offsets: Any, t: Tables, by_y: Array, by_T: Array) -> float:  # pragma: no cover
    """Derivatives of figure f by y and T of its own block at a fixed offset; returns that by the offset."""
    kind, first = t.kind[f], t.block[f] * CELLS
    o = offsets[t.source[f]]
    by_y[:] = 0.0
    by_T[:] = 0.0
    if kind == OFFSET:
        return 1.0
    if kind in (RAW, SHIFTED):
        total = 0.0
        shift = o if kind == SHIFTED else 0.0
        for i in range(CELLS):
            ratio = (s.T[first + i] + shift) / s.y[first + i]
            by_T[i] = (100.0 if ratio > 1.0 else -100.0) / CELLS / s.y[first + i]
            by_y[i] = -by_T[i] * ratio
            total += by_T[i]
        return total if kind == SHIFTED else 0.0
    if kind == STEPS:
        by_y[:] = t.weight[f]
        return 0.0
    steps = predicted = 0.0
    for i in range(CELLS):
        steps += t.weight[f, i] * s.y[first + i]
        predicted += t.weight[f, i] * s.T[first + i]
    for i in range(CELLS):
        by_T[i] = 100.0 / steps * t.weight[f, i]
        by_y[i] = -100.0 * (predicted + o) / steps**2 * t.weight[f, i]
    return 100.0 / steps


@njit(cache=True)
def _through(b: int, by_y: Array, by_T: Array, s: State, t: Tables, out: Array) -> None:  # pragma: no cover
    """Add to `out`, shape (size,), what derivatives by y and T of block b mean for q."""
    k, first = t.set_of_block[b], b * CELLS
    bw, fa, l_half = s.constant[0, k], s.constant[1, k], s.constant[2, k]
    start = t.constants * t.sets
    size = (t.unknowns - start) // len(t.set_of_block)
    own = out[start + b * size : start + (b + 1) * size]
    side = t.free_sd * math.sqrt(0.5)
    by_bw = by_fa = by_half = by_latency = 0.0
    for i in range(CELLS):
        c = first + i
        if by_y[i] == 0.0 and by_T[i] == 0.0:
            continue
        total = by_T[i] + by_y[i] * s.y_by_T[c]
        roof = total * s.stray[c]
        by_bw -= roof * t.work[0, c] / bw**2
        by_fa -= roof * (t.work[1, c] + l_half * t.work[2, c]) / fa**2
        by_half += roof * t.work[2, c] / fa
        by_latency += roof * t.work[3, c]
        own[0] += by_y[i] * s.y_by_level[c] * t.floor_sd_ms
        own[1] += by_y[i] * s.y[c] * s.leftover[c] * t.leftover_sd * s.scale[b]
        for j in range(i + 1):
            own[2 + j] += by_y[i] * s.y[c] * s.scale[b] * t.root[i, j]
        if t.free_sd > 0.0:
            own[2 + CELLS] += total * s.T[c] * side
            own[3 + CELLS + i] += total * s.T[c] * side
    slopes = (by_bw, by_fa, by_half, by_latency)
    for i in range(t.constants):
        out[i * t.sets + k] += slopes[i] * s.constant_slope[i, k]


@njit(cache=True)
def jacobian(q: Array, t: Tables, out: Array) -> None:  # pragma: no cover (compiled)
    """dc/dq, shape (row, size)."""
    s = state_of(q, t)
    _, offset, offset_d, offset_y = figures_of(s.y, s.T, t)
    by_y, by_T = np.empty(CELLS), np.empty(CELLS)
    out[:] = 0.0
    for r in range(t.rows):
        through = _slope(r, s, offset, t, by_y, by_T)
        source = t.source[r]
        if source != t.block[r] and through != 0.0:
            _through(source, through * (offset_d[source] + offset_y[source]), -through * offset_d[source], s, t, out[r])
        elif through != 0.0:
            by_y += through * (offset_d[source] + offset_y[source])
            by_T -= through * offset_d[source]
        _through(t.block[r], by_y, by_T, s, t, out[r])
        out[r] /= t.half[r]
        z = q[t.unknowns + r]
        out[r, t.unknowns + r] = -math.sqrt(2.0 / math.pi) * math.exp(-0.5 * z * z)
