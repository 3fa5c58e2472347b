"""Which offset of y - T a published self-floor can be: a mean, a median, a subset's, ..."""

from dataclasses import dataclass

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp

from rooffloor.validate.published.bounds.grid_programme import RATIO, Error, Floats, GridProgramme, errors_of
from rooffloor.validate.published.printed_figures import A100, ANCHOR, BATCHES, CONTEXTS, SMALL, PublishedFigures


@dataclass(frozen=True, eq=False)
class ReadingFeasibility:
    """Whether the self-floor of the 1B on the A100 can be the offset that `name` says.

    Attributes
    ----------
    name : str
    feasible : bool
        Some grid with steps within the stated ratio prints all figures under this reading.
    least_misfit : float
        Points by which every MAPE's interval must be widened; 0 where feasible.
    note : str
    step_ms, gpu_ms : float arrays, shape (cell,), or None
        A grid that prints the figures (infeasible readings: None); batch-major, batches x contexts.
    """

    name: str
    feasible: bool
    least_misfit: float
    note: str
    step_ms: Floats | None = None
    gpu_ms: Floats | None = None


READINGS = (
    "mean",
    "median",
    "least MAPE",
    "relative least squares",
    "smallest batch",
    "largest batch",
    "shortest context",
    "longest context",
)


def offset_readings(
    figures: PublishedFigures | None = None,
    ratio: float = RATIO,
    batches: tuple[int, ...] = BATCHES,
    contexts: tuple[int, ...] = CONTEXTS,
) -> list[ReadingFeasibility]:
    """Which offset of y - T the published self-floor of the 1B on the A100 can be.

    Parameters
    ----------
    figures : PublishedFigures, optional
    ratio : float
        Largest over smallest step of the grid.
    batches, contexts : tuple of int
        Axes of the grid that is exhibited for a feasible reading. Its steps rise by the published
        long-context rise up to the largest cell; T rises with batch and context. The offsets take their
        printed values.

    Returns
    -------
    list of ReadingFeasibility, in the order of `READINGS`

    Raises
    ------
    ValueError
        ratio < 1.
    """
    if ratio < 1:
        raise ValueError(f"expected ratio >= 1, got {ratio:g}")
    figures = PublishedFigures.load() if figures is None else figures
    cells = len(batches) * len(contexts)
    errors = errors_of(figures, SMALL, A100)
    needed, misfit = _sided_ratio(errors, cells), _least_misfit(errors, cells, ratio)
    profiles = _plausible_steps(figures, batches, contexts)
    found = []
    for name in READINGS:
        if name in ("mean", "relative least squares"):
            note = f"needs steps that differ {needed:.2f}-fold within the grid, allowed are {ratio:g}-fold"
            found.append(ReadingFeasibility(name, misfit == 0, misfit, note))
            continue
        gpu, miss, steps = min(((*_witness(figures, name, y), y) for y in profiles), key=lambda w: w[1])
        spread = float(steps.max() / steps.min())
        shown = miss <= 1e-7 and spread <= ratio
        note = f"steps of {steps.min():.1f} to {steps.max():.1f} ms ({spread:.2f}-fold)"
        found.append(
            ReadingFeasibility(name, True, 0.0, f"fits a grid with {note}", steps.ravel(), gpu)
            if shown
            else ReadingFeasibility(name, False, 100 * miss, f"no grid found: nearest has {note}")
        )
    return found


def _sided_ratio(errors: tuple[Error, ...], cells: int) -> float:
    """Least sum of over-predictions over sum of under-predictions under the self-floor (below 1: they can
    balance)."""
    programme = GridProgramme(errors, cells)
    over = programme.over_sum("self-floor")
    return programme.ratio(over, over - programme.signed("self-floor"))[0]


def _least_misfit(errors: tuple[Error, ...], cells: int, ratio: float) -> float:
    """Points by which the MAPEs must be widened until over- and under-predictions are within `ratio`."""

    def fits(widen: float) -> bool:
        programme = GridProgramme(tuple(e.widened(widen) for e in errors), cells)
        over = programme.over_sum("self-floor")
        return programme.minimum((1 - ratio) * over + ratio * programme.signed("self-floor"))[0] <= 1e-9

    low, high = 0.0, 1.0
    if fits(0.0):
        return 0.0
    while high - low > 1e-5:
        middle = (low + high) / 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return 100 * high


def _plausible_steps(figures: PublishedFigures, batches: tuple[int, ...], contexts: tuple[int, ...]) -> list[Floats]:
    """Grids of steps [batch, context], ms, with the published rise and the implied mean(1/y).

    The rise goes with the tokens in the cache, with the context alone, or half with the batch, half with the
    context.
    """
    batch = np.divide(batches, max(batches))[:, None] + np.zeros(len(contexts))
    context = np.divide(contexts, max(contexts)) + np.zeros((len(batches), 1))
    offset = abs(figures.value(ANCHOR, A100, "anchor_offset"))
    gain = figures.value(SMALL, A100, "residual_mape") - figures.value(SMALL, A100, "raw_mape")
    level = gain / 100 / offset - 2e-4  # mean(1/y) that suits the printed offset, the MAPEs within their rounding
    grids = []
    for shape in (batch * context, context, (batch + context) / 2):
        rise = figures.value(SMALL, A100, "long_context_rise") * shape
        low, high = 1e-3, 1 / level
        while high - low > 1e-9:
            middle = (low + high) / 2
            low, high = (middle, high) if np.mean(1 / (middle + rise)) > level else (low, middle)
        grids.append(low + rise)
    return grids


def _witness(figures: PublishedFigures, reading: str, steps: Floats) -> tuple[Floats, float]:
    """T_gpu (cell,) in [0, y], rising with batch and context, nearest to the figures; and its misfit
    (fraction).

    Variables: T/y (cell), over- and under-prediction (cell), over-predicted? (cell, binary), misfit.
    """
    shape, n = steps.shape, steps.size
    y = steps.ravel()
    w = 1 / y
    floor = figures.value(SMALL, A100, "self_floor")
    anchor = figures.value(ANCHOR, A100, "anchor_offset")
    eye, none, one = np.eye(n), np.zeros((n, n)), np.ones(n)
    zero = np.zeros(n)
    rows: list[tuple[Floats, Floats | float, Floats | float]] = []

    def columns(*parts: Floats, misfit: float = 0.0) -> Floats:
        block = np.atleast_2d(np.hstack(parts))
        return np.hstack([block, np.full((len(block), 1), misfit)])

    rows.append((columns(eye, -eye, eye, none), 1 - floor * w, 1 - floor * w))  # T/y + s/y - 1 = over - under
    rows.append((columns(none, eye, none, -eye), -np.inf, 0.0))
    rows.append((columns(none, none, eye, eye), -np.inf, 1.0))
    for quantity, block, shift in (
        ("raw_mape", (-one, zero, zero, zero), n),
        ("residual_mape", (-one, zero, zero, zero), n - anchor * w.sum()),
        ("self_floor_mape", (zero, one, one, zero), 0.0),
    ):
        low, high = figures.mape(SMALL, A100, quantity)
        rows.append((columns(*block, misfit=n), n * low - shift, np.inf))
        rows.append((columns(*block, misfit=-n), -np.inf, n * high - shift))
    index = np.arange(n).reshape(shape)
    for before, after in ((index[:-1], index[1:]), (index[:, :-1], index[:, 1:])):
        growth = np.zeros((before.size, n))
        growth[np.arange(before.size), after.ravel()] = y[after.ravel()]
        growth[np.arange(before.size), before.ravel()] -= y[before.ravel()]
        pad = np.zeros_like(growth)
        rows.append((columns(growth, pad, pad, pad), 0.0, np.inf))
    subsets = {
        "smallest batch": index[0],
        "largest batch": index[-1],
        "shortest context": index[:, 0],
        "longest context": index[:, -1],
    }
    if reading in subsets:
        chosen = np.isin(np.arange(n), subsets[reading]).astype(float)
        target = float(chosen @ y - chosen.sum() * floor)  # mean of y - T over the subset = floor
        rows.append((columns(chosen * y, zero, zero, zero), target, target))
    else:  # a (weighted) median: one cell lies on the offset, at most half of the weight on either side
        weight = w if reading == "least MAPE" else one
        middle = n // 2
        others = np.where(np.arange(n) == middle, 0.0, weight)
        rows.append((columns(zero, eye[middle], eye[middle], zero), 0.0, 0.0))
        half = weight.sum() / 2
        rows.append((columns(zero, zero, zero, others), others.sum() - half, half))
    matrix = np.vstack([r[0] for r in rows])
    low_end, high_end = (np.concatenate([np.broadcast_to(r[k], len(r[0])) for r in rows]).astype(float) for k in (1, 2))
    found = milp(
        np.r_[np.zeros(4 * n), 1.0],
        constraints=LinearConstraint(matrix, low_end, high_end),
        integrality=np.r_[np.zeros(3 * n), np.ones(n), 0],
        bounds=Bounds(np.zeros(4 * n + 1), np.r_[np.minimum(one, 1 - 1e-9), np.full(2 * n, np.inf), one, np.inf]),
    )
    if found.x is None:
        return np.full(n, np.nan), np.inf
    return found.x[:n] * y, float(found.x[-1])
