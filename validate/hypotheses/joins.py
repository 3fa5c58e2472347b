"""Would another way of joining T_gpu and floor explain the same cells with a right roof?

Draws have floors that are added. Where a host runs beside the GPU (step = max(T_gpu, H), or something between that and
the sum), an added floor leaves a slope off 1 and a level off, however right the roof is. So before a slope or a level
refutes anything, the same cells are fitted once more under each join of `JOINS`, with the constants free again: least
squares in the logarithm of the step, the noise of each model profiled, the constants held by their priors.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares
from scipy.special import gammaincinv

from rooffloor.models.floor.structures import overlap_ms
from rooffloor.validate.estimates.cell_draws import IMPUTED, Draws
from rooffloor.validate.hypotheses.level import beside_anchor
from rooffloor.validate.study.margins import Margins

type Array = NDArray[np.float64]

JOINS = {"slightly overlapped": 0.75, "half overlapped": 0.5, "mostly overlapped": 0.25, "the longer of the two": 0.0}
"""q of the joins that are tried: T_gpu and a floor H >= 0 as (T^(1/q) + H^(1/q))^q; 1 would be the sum."""
PRIOR_SDS = (0.12, 0.25, 1.0)
"""Prior sds of the logarithms of weight time, cache time and L_half around their means in the draws."""
SLOPE_SD = 1.0
"""Prior sd of the logarithm of a free slope."""
STARTS = (0.1, 0.5, 0.9)
"""Floors at the start, as shares of the least step of their cells."""
CHANCE = 0.999
"""A join that is true falls further short in one study of a thousand; wrong ones fall short by tens."""
SETS = 6
"""Imputations that are tried, spread evenly over all."""
LEAST_NOISE = 1e-3
"""No model is taken to scatter less."""


@dataclass(frozen=True, eq=False)
class _Cells:
    """Cells of one data set, [cell]: times at the constants of the draws, whose floor and whose noise each has."""

    step_ms: Array
    weights_ms: Array
    kv_ms: Array
    token_ms: Array
    host_ms: Array
    model: NDArray[np.int64]
    floor: NDArray[np.int64]
    tilted: NDArray[np.bool_]


class Explained:
    """Joins under which a right roof explains a model beside the anchor as well as added floors and a free slope do.

    As well: the log likelihood of all cells of both models falls short by less than chance would make it (`CHANCE`) for
    the parameters that the join does without; and, under the anchor's floors, the model lies within the margins of a
    level. Each model is tried once, when it is first asked for.
    """

    def __init__(self, draws: Draws, margins: Margins):
        self._draws, self._margins = draws, margins
        self._known: dict[tuple[str, bool], dict[str, float]] = {}

    def by(self, model: str, *, own_floor: bool) -> dict[str, float]:
        """Name of the join -> share of the data sets (by weight) that it explains as well; without those of share 0.

        Parameters
        ----------
        model : str
        own_floor : bool
            Whether the model may have floors of its own under the join (a test of the slope), or has the anchor's (a
            test of the level).

        Returns
        -------
        dict
            Empty where T_gpu has no parts, so that constants cannot be freed.
        """
        key = model, own_floor
        if key not in self._known:
            self._known[key] = _explained(self._draws, self._margins, model, own_floor)
        return self._known[key]

    def likeliest(self, model: str, *, own_floor: bool) -> str | None:
        """The join that explains most data sets, if a refutation would leave it aside; else None."""
        found = self.by(model, own_floor=own_floor)
        name = max(found, key=found.__getitem__, default=None)
        return name if name is not None and found[name] > 1.0 - self._margins.probability else None


def _explained(draws: Draws, margins: Margins, model: str, own_floor: bool) -> dict[str, float]:
    gpus = [gpu for gpu, _ in beside_anchor(draws, model)]
    if not draws.parts_ms or not gpus:
        return {}
    keep = np.isin(draws.cells.gpu, gpus) & np.isin(draws.cells.model, [draws.anchor, model])
    rows, mass = _sets(draws)
    found = dict.fromkeys(JOINS, 0.0)
    extra = 1 if own_floor else 1 + len(gpus)
    short = float(gammaincinv(0.5 * extra, CHANCE))  # half that point of a chi-squared
    for row, share in zip(rows, mass, strict=True):
        free, _ = _fitted(_cells(draws, row, keep, model, own_floor=True, tilted=True), 1.0)
        right = _cells(draws, row, keep, model, own_floor=own_floor, tilted=False)
        for name, q in JOINS.items():
            log, error = _fitted(right, q)
            good = own_floor or _within(error, right, margins)
            found[name] += share * (good and log >= free - short)
    return {name: float(share) for name, share in found.items() if share > 0}


def _within(error: Array, cells: _Cells, margins: Margins) -> bool:
    """Whether relative errors leave the model within the margins of H1."""
    anchor, family = (100.0 * np.abs(error[cells.model == m]).mean() for m in (0, 1))
    return bool(family < margins.h1_absolute and family < anchor + margins.h1_points)


def _sets(draws: Draws) -> tuple[list[NDArray[np.int64]], Array]:
    """The draws of each data set that is tried (all of cells at hand), and the weights of the sets."""
    if draws.label != IMPUTED:
        return [np.arange(len(draws.weight))], np.ones(1)
    units = np.unique(draws.unit)
    chosen = np.unique(np.linspace(0, len(units) - 1, min(SETS, len(units))).round().astype(np.int64))
    rows = [np.flatnonzero(draws.unit == unit) for unit in units[chosen]]
    mass = np.array([draws.weight[r].sum() for r in rows])
    return rows, mass / mass.sum() if mass.sum() else np.full(len(rows), 1.0 / len(rows))


def _cells(
    draws: Draws, rows: NDArray[np.int64], keep: NDArray[np.bool_], model: str, *, own_floor: bool, tilted: bool
) -> _Cells:
    total = draws.weight[rows].sum()
    weight = draws.weight[rows] / total if total else np.full(len(rows), 1.0 / len(rows))
    kv = weight @ draws.parts_ms["kv"][rows][:, keep]
    rest = weight @ (draws.parts_ms["weights"] + draws.parts_ms["other"])[rows][:, keep]
    axes = draws.batch, draws.context, draws.step_ms
    batch, context, step = (values[rows[0] if len(values) > 1 else 0, keep] for values in axes)
    cells = draws.cells.where(keep)
    family = cells.model == model
    token = _token_ms(kv, batch, context, [family, ~family], cells.gpu)
    floor = cells.gpu_code + (len(cells.gpus) * family if own_floor else 0)
    floor = np.unique(floor, return_inverse=True)[1]
    host = np.zeros(len(step)) if draws.host_ms is None else weight @ draws.host_ms[rows][:, keep]
    return _Cells(step, rest, kv - token, token, host, family.astype(np.int64), floor, family & tilted)


def _token_ms(
    kv: Array, batch: Array, context: Array, models: Sequence[NDArray[np.bool_]], gpu: NDArray[np.str_]
) -> Array:
    """The part of the cache's time that does not grow with the context, B L_half of its B (L + L_half), [cell]."""
    token = np.zeros_like(kv)
    for mask in (of & (gpu == g) for of in models for g in np.unique(gpu)):
        if len(np.unique(context[mask])) > 1:
            start = np.polyfit(context[mask], kv[mask] / batch[mask], 1)[1]
            token[mask] = np.clip(start * batch[mask], 0.0, kv[mask])
    return token


def _fitted(cells: _Cells, q: float) -> tuple[float, Array]:
    """Largest log posterior density of the cells under a join, up to a constant that all joins share.

    Beside it the relative errors of the steps there, (modelled - measured) / measured, [cell].
    """
    floors, models = int(cells.floor.max()) + 1, np.unique(cells.model)
    least = np.array([cells.step_ms[cells.floor == k].min() for k in range(floors)])
    members = [cells.model == m for m in models]
    tilt = 1 if cells.tilted.any() else 0
    sds = np.array([*PRIOR_SDS, *[SLOPE_SD] * tilt])
    n = len(sds)

    def left(x: Array) -> Array:
        """Logarithm of measured over modelled steps."""
        a, b, c = np.exp(x[:3].clip(-5.0, 5.0))
        T = a * cells.weights_ms + b * (cells.kv_ms + c * cells.token_ms)
        if tilt:
            T = T * np.where(cells.tilted, np.exp(np.clip(x[3], -5.0, 5.0)), 1.0)
        H = (x[n:] if q == 1.0 else np.exp(x[n:].clip(-20.0, 5.0)))[cells.floor] * least[cells.floor]
        H = H + cells.host_ms
        step = T + H if q == 1.0 else overlap_ms(T, H, q)
        return np.asarray(np.log(cells.step_ms / np.maximum(step, 0.02 * cells.step_ms)))

    best, error = -np.inf, np.zeros(len(cells.step_ms))
    for start in STARTS if q < 1.0 else STARTS[:1]:
        x = np.concatenate([np.zeros(n), np.full(floors, start if q == 1.0 else np.log(start))])
        noise = np.full(len(cells.step_ms), 0.1)
        for _ in range(4):

            def scaled(x: Array, noise: Array = noise) -> Array:
                return np.concatenate([left(x) / noise, x[:n] / sds])

            x = least_squares(scaled, x, method="lm" if len(noise) + n > len(x) else "trf", max_nfev=400).x
            residual = left(x)
            of = [max(float(np.sqrt((residual[m] ** 2).mean())), LEAST_NOISE) for m in members]
            noise = np.select(members, of)
        log = -sum(m.sum() * np.log(sd) for m, sd in zip(members, of, strict=True)) - 0.5 * ((x[:n] / sds) ** 2).sum()
        if log > best:
            best, error = float(log), np.expm1(-residual)
    return best, error
