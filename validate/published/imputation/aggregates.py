"""Compiled core of the inversion: from one latent vector to grids, figures and their derivatives.

`inversion.Inversion` says what the numbers mean and fills `Tables`; the functions here work on one vector q at a time
and are what `manifold.sample` calls in its inner loop. Every array is block-major: blocks of `CELLS` cells.
"""

import math
from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from rooffloor.validate.published.printed_figures import CELLS

type Array = NDArray[np.float64]
type Codes = NDArray[np.int64]

LINEAR, RELATIVE_LEAST_SQUARES, MEDIAN, LEAST_MAPE = range(4)
"""How an offset is read off the differences d = y - T of one grid."""

OFFSET, RAW, SHIFTED, STEPS, PREDICTED, ERROR, POOLED = range(7)
"""What a figure is: an offset; MAPE of T; MAPE of T plus an offset; a weighted sum of steps; T plus offset in one
cell; its error there in percent; mean of other figures."""

ADDED, OVERLAPPED, MAX = range(3)
"""How a floor H joins T in the level of a step: T + H, (T^p + H^p)^(1/p), max(T, H)."""


class Tables(NamedTuple):
    """What the compiled functions need to know about one inversion; shapes in brackets."""

    work: Array
    """[4, cell]: T = work[0] / eta_bw + (work[1] + l_half work[2]) / eta_fa + latency work[3], ms: no kernel of the
    grid is compute-bound."""
    minimum_ms: Array
    """[cell]: bytes at peak bandwidth."""
    constants: int
    sets: int
    """Constants in use, and sets of them; the set of each block follows."""
    set_of_block: Codes
    eta: Array
    eta_slope: Array
    """[2, knot] each: the two eta, and their slopes, at `KNOTS` of their latents."""
    centre: Array
    spread: Array
    """[4] each: prior of the constants on the log scale; not used for the two eta."""
    floor_sd_ms: float
    leftover: float
    leftover_sd: float
    free_sd: float
    """Priors of a block; `free_sd` 0: T is the roof."""
    combine: int
    """How a floor joins T."""
    floor_median_ms: float
    """0: a floor is signed, normal with sd `floor_sd_ms`. Else it is lognormal, `floor_sd_ms` the sd of its log."""
    floor_of_block: Codes
    """Of each block the block whose floor latent it uses."""
    powers: int
    most_power: float
    """Overlap latents, behind those of the blocks; 1/p of an overlap is uniform from 0 to `most_power`."""
    root: Array
    """[CELLS, CELLS]: Cholesky factor of the leftovers' correlation."""
    contexts: int
    """Contexts of a grid, whose cells are batch-major."""
    fall: float
    ratio: float
    """Of ordered grids (`Discrepancy.ordered`): the most that a step falls, and most over least step; 0: unordered."""
    reading: int
    share: Array
    """Code of the offset reading, and [CELLS] its weights where it is linear."""
    kind: Codes
    block: Codes
    source: Codes
    """[figure] each: its kind, its block and the block on which its offset is read."""
    weight: Array
    """[figure, CELLS]: of `STEPS`, `PREDICTED` and `ERROR` the cells meant."""
    members: Codes
    """[figure, 3]: of `POOLED` the figures averaged."""
    middle: Array
    half: Array
    """[figure] each: its interval."""
    rows: int
    unknowns: int
    """Figures that are rows of the manifold (the first ones); length of q without their latents."""
    blur: float = 0.0
    """0: a figure lies uniformly in its interval; 1: normally about its middle, with the same variance; between them a
    mixture of the two maps from a normal latent."""


KNOTS = np.linspace(-8.0, 8.0, 1601)
"""Beyond 8 sd lies a prior mass of 1e-15."""
FIRST_KNOT, GAP = float(KNOTS[0]), float(KNOTS[1] - KNOTS[0])


class State(NamedTuple):
    """Everything that follows from q but the figures; shapes (4, set), (block,) and (cell,); `stray` by block."""

    constant: Array
    constant_slope: Array
    floor: Array
    floor_slope: Array
    power_slope: Array
    scale: Array
    leftover: Array
    T: Array
    stray: Array
    y: Array
    y_by_floor: Array
    y_by_power: Array
    y_by_T: Array


@njit(cache=True)
def level_of(T: float, floor: float, power: float, combine: int) -> Any:  # pragma: no cover (compiled)
    """The level of a step, ms, from T and a floor, and its derivatives by T, floor and power = 1/p."""
    if combine == ADDED:
        return T + floor, 1.0, 1.0, 0.0
    most, least = max(T, floor), min(T, floor)
    if combine == MAX:
        return most, 1.0 * (most == T), 1.0 * (least == T), 0.0
    log = math.log(least / most)
    share = math.exp(log / power)
    level = most * (1.0 + share) ** power
    by_most = (1.0 + share) ** (power - 1.0)
    by_least = by_most * share / (least / most)
    by_power = level * (math.log1p(share) - share / (1.0 + share) * log / power)
    if most == T:
        return level, by_most, by_least, by_power
    return level, by_least, by_most, by_power


@njit(cache=True)
def on_curve(z: float, values: Array, slopes: Array) -> Any:  # pragma: no cover (compiled)
    """A value and its slope at z between `KNOTS`: the cubic with the values and slopes of both neighbours."""
    at = (min(max(z, -8.0), 8.0) - FIRST_KNOT) / GAP
    k = min(int(at), len(values) - 2)
    u = at - k
    rise, left, right = values[k + 1] - values[k], slopes[k] * GAP, slopes[k + 1] * GAP
    square, cube = 3.0 * rise - 2.0 * left - right, left + right - 2.0 * rise
    value = values[k] + u * (left + u * (square + u * cube))
    return value, (left + u * (2.0 * square + 3.0 * u * cube)) / GAP


@njit(cache=True)
def state_of(q: Array, t: Tables) -> Any:  # pragma: no cover (compiled)
    """Constants, floors, T and y of one q."""
    blocks = len(t.set_of_block)
    cells = blocks * CELLS
    constant, slope = np.zeros((4, t.sets)), np.zeros((4, t.sets))
    constant[:2] = 1.0
    for i in range(t.constants):
        for k in range(t.sets):
            z = q[i * t.sets + k]
            if i < 2:
                constant[i, k], slope[i, k] = on_curve(z, t.eta[i], t.eta_slope[i])
            else:
                constant[i, k] = math.exp(t.centre[i] + t.spread[i] * min(max(z, -8.0), 8.0))
                slope[i, k] = t.spread[i] * constant[i, k]
    floor, scale = np.empty(blocks), np.empty(blocks)
    floor_slope, power_slope = np.empty(blocks), np.zeros(blocks)
    leftover, T, stray, y = np.empty(cells), np.empty(cells), np.ones(blocks), np.empty(cells)
    by_floor, by_power, by_T = np.empty(cells), np.empty(cells), np.empty(cells)
    first = t.constants * t.sets
    size = (t.unknowns - first - t.powers) // blocks
    for b in range(blocks):
        own = q[first + b * size : first + (b + 1) * size]
        k = t.set_of_block[b]
        # beyond 8 sd lies a prior mass of 1e-15: trial points far out stay finite
        floor[b] = t.floor_sd_ms * min(max(q[first + t.floor_of_block[b] * size], -8.0), 8.0)
        floor_slope[b] = t.floor_sd_ms
        if t.floor_median_ms > 0.0:
            floor[b] = t.floor_median_ms * math.exp(floor[b])
            floor_slope[b] *= floor[b]
        power = 1.0
        if t.powers:
            at = min(max(q[first + blocks * size], -8.0), 8.0)
            power = t.most_power * 0.5 * math.erfc(-at * math.sqrt(0.5))
            power_slope[b] = t.most_power * math.exp(-0.5 * at * at) / math.sqrt(2.0 * math.pi)
        scale[b] = t.leftover * math.exp(t.leftover_sd * min(max(own[1], -8.0), 8.0))
        bw, fa, l_half, latency = constant[0, k], constant[1, k], constant[2, k], constant[3, k]
        if t.free_sd > 0.0:
            stray[b] = math.exp(t.free_sd * min(max(own[2 + CELLS], -8.0), 8.0))
        for i in range(CELLS):
            c = b * CELLS + i
            roof = t.work[0, c] / bw + (t.work[1, c] + l_half * t.work[2, c]) / fa + latency * t.work[3, c]
            T[c] = roof * stray[b]
            left = 0.0
            for j in range(i + 1):
                left += t.root[i, j] * min(max(own[2 + j], -8.0), 8.0)
            leftover[c] = left
            # The level is kept positive by a smooth hinge at 0.2 T of width 0.04 T: a negative floor cannot pass
            # through zero.
            bound = 0.2 * T[c]
            level, level_by_T, level_by_floor, level_by_power = level_of(T[c], floor[b], power, t.combine)
            gap = level - bound
            root = math.sqrt(gap**2 + (0.2 * bound) ** 2)
            factor = math.exp(scale[b] * left)
            y[c] = (bound + 0.5 * (gap + root)) * factor
            up = 0.5 * (1.0 + gap / root)
            by_floor[c] = up * level_by_floor * factor
            by_power[c] = up * level_by_power * factor
            by_T[c] = (up * level_by_T + 0.2 * (1.0 - up + 0.5 * 0.04 * bound / root)) * factor
    return State(
        constant, slope, floor, floor_slope, power_slope, scale, leftover, T, stray, y, by_floor, by_power, by_T
    )


@njit(cache=True, error_model="numpy")  # far out steps underflow: such trial points are refused
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
def claim_of(z: float, blur: float) -> Any:  # pragma: no cover (compiled)
    """Where in its interval (-1 to 1) a figure lies whose latent is z, and the derivative by z."""
    claim = math.erf(z * math.sqrt(0.5))
    slope = math.sqrt(2.0 / math.pi) * math.exp(-0.5 * z * z)
    if blur > 0.0:
        sd = math.sqrt(1.0 / 3.0)
        claim += blur * (sd * z - claim)
        slope += blur * (sd - slope)
    return claim, slope


@njit(cache=True)
def latent_of(place: float, blur: float) -> float:  # pragma: no cover (compiled)
    """The latent that claims a place, for blur > 0: Newton's method, from below on a concave function."""
    z = 0.0
    for _ in range(200):
        claim, slope = claim_of(z, blur)
        step = (abs(place) - claim) / slope
        z += step
        if step < 1e-13 * (1.0 + z):
            break
    return math.copysign(z, place)


@njit(cache=True)
def latents(places: Array, blur: float) -> Any:  # pragma: no cover (compiled)
    """`latent_of` each place, shape (draw, row), and the log density of each draw's places, shape (draw,)."""
    z, density = np.zeros(places.shape), np.zeros(len(places))
    for i in range(len(places)):
        for r in range(places.shape[1]):
            if blur > 0.0:
                z[i, r] = latent_of(places[i, r], blur)
                slope = claim_of(z[i, r], blur)[1]
                density[i] -= 0.5 * z[i, r] ** 2 + 0.5 * math.log(2.0 * math.pi) + math.log(slope)
            else:
                density[i] -= math.log(2.0) if abs(places[i, r]) <= 1.0 else np.inf
    return z, density


@njit(cache=True)
def is_possible(y: Array, T: Array, t: Tables) -> bool:  # pragma: no cover (compiled)
    """Whether no step lies below its bytes at peak bandwidth, and ordered grids are in order."""
    for c in range(len(y)):
        if not y[c] >= t.minimum_ms[c]:
            return False
    if t.ratio == 0.0:
        return True
    kept = 1.0 - t.fall
    for first in range(0, len(y), CELLS):
        for c in range(first, first + CELLS):
            if not (T[c] >= t.minimum_ms[c] and y[first] <= y[c] <= t.ratio * y[first]):
                return False
            for back in (1, t.contexts):
                before = c - back
                if before < first or (back == 1 and (c - first) % t.contexts == 0):
                    continue
                if y[c] < kept * y[before] or T[c] < T[before]:
                    return False
    return True


@njit(cache=True)
def place_of(q: Array, t: Tables, out: Array) -> bool:  # pragma: no cover (compiled)
    """Where in its interval (-1 to 1) each figure lies, shape (figure,); whether the grids are possible."""
    s = state_of(q, t)
    figures = figures_of(s.y, s.T, t)[0]
    for f in range(len(figures)):
        out[f] = (figures[f] - t.middle[f]) / t.half[f]
    return is_possible(s.y, s.T, t)


@njit(cache=True)
def places(q: Array, t: Tables) -> Any:  # pragma: no cover (compiled)
    """`place_of` each q of shape (draw, at least `unknowns`): shapes (draw, figure) and (draw,)."""
    out, possible = np.empty((len(q), len(t.kind))), np.empty(len(q), np.bool_)
    for i in range(len(q)):
        possible[i] = place_of(q[i], t, out[i])
    return out, possible


@njit(cache=True)
def value(q: Array, t: Tables, out: Array) -> None:  # pragma: no cover (compiled)
    """c(q): figures minus the place that their latents claim, in units of half the rounding; shape (row,)."""
    place = np.empty(len(t.kind))
    place_of(q, t, place)
    for r in range(t.rows):
        out[r] = place[r] - claim_of(q[t.unknowns + r], t.blur)[0]


@njit(cache=True)
def allowed(q: Array, t: Tables) -> bool:  # pragma: no cover (compiled)
    """Whether the bounded figures lie in their intervals and the grids are possible."""
    place = np.empty(len(t.kind))
    return place_of(q, t, place) and bool(np.all(np.abs(place[t.rows :]) <= 1.0))


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
    size = (t.unknowns - start - t.powers) // len(t.set_of_block)
    own = out[start + b * size : start + (b + 1) * size]
    by_floor = by_power = 0.0
    by_bw = by_fa = by_half = by_latency = 0.0
    for i in range(CELLS):
        c = first + i
        if by_y[i] == 0.0 and by_T[i] == 0.0:
            continue
        total = by_T[i] + by_y[i] * s.y_by_T[c]
        roof = total * s.stray[b]
        by_bw -= roof * t.work[0, c] / bw**2
        by_fa -= roof * (t.work[1, c] + l_half * t.work[2, c]) / fa**2
        by_half += roof * t.work[2, c] / fa
        by_latency += roof * t.work[3, c]
        by_floor += by_y[i] * s.y_by_floor[c] * s.floor_slope[b]
        by_power += by_y[i] * s.y_by_power[c] * s.power_slope[b]
        own[1] += by_y[i] * s.y[c] * s.leftover[c] * t.leftover_sd * s.scale[b]
        for j in range(i + 1):
            own[2 + j] += by_y[i] * s.y[c] * s.scale[b] * t.root[i, j]
        if t.free_sd > 0.0:
            own[2 + CELLS] += total * s.T[c] * t.free_sd
    out[start + t.floor_of_block[b] * size] += by_floor
    if t.powers:
        out[start + len(t.set_of_block) * size] += by_power
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
        out[r, t.unknowns + r] = -claim_of(q[t.unknowns + r], t.blur)[1]
