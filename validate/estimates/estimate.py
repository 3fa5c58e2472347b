"""One reported number: value, intervals, Monte Carlo error, and the name of its estimand."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

type Array = NDArray[np.float64]

LEVELS = (50, 90)
"""Equal-tailed credible intervals that are reported, percent."""


@dataclass(frozen=True)
class Estimate:
    """One reported number.

    Attributes
    ----------
    value : float
        Posterior mean (of `predict` the median), or the number itself where it is not uncertain.
    estimand : str
        What it is an estimate of.
    unit : str
        "percent", "ms", "points", "1" (a pure number) or "probability".
    intervals : mapping of "50" and "90" to (low, high)
        Equal-tailed credible intervals; empty for measured numbers and probabilities.
    mcse : float or None
        Monte Carlo standard error of `value`, with the imputation (or a batch of draws) as the unit.
    """

    value: float
    estimand: str
    unit: str
    intervals: Mapping[str, tuple[float, float]]
    mcse: float | None = None

    def __str__(self) -> str:
        digits = self.digits
        text = f"{self.value:z.{digits}f}"
        if "90" in self.intervals:
            low, high = self.intervals["90"]
            text += f" [{low:z.{digits}f}, {high:z.{digits}f}]"
        return text

    @property
    def digits(self) -> int:
        """Decimals that the Monte Carlo error supports: half a unit of the last one is not below it; at most 2."""
        if self.mcse is None or not np.isfinite(self.mcse) or self.mcse <= 0:
            return 2
        return int(np.clip(np.floor(-np.log10(2.0 * self.mcse)), 0, 2))

    @property
    def data(self) -> dict[str, Any]:
        """As in report.json."""
        return {
            "value": self.value,
            "estimand": self.estimand,
            "unit": self.unit,
            "intervals": {level: list(pair) for level, pair in self.intervals.items()},
            "mcse": self.mcse,
        }


def estimate(values: ArrayLike, weight: Array, group: NDArray[np.int64], estimand: str, unit: str) -> Estimate:
    """Weighted mean, intervals of `LEVELS` and Monte Carlo error of one value per draw; see `mcse` for `group`."""
    array = np.asarray(values, dtype=float)
    return Estimate(float(weight @ array), estimand, unit, intervals(array, weight), mcse(array, weight, group))


def estimates(values: Array, weight: Array, group: NDArray[np.int64], estimand: str, unit: str) -> list[Estimate]:
    """`estimate` of every column of values [draw, cell]."""
    order = np.argsort(group, kind="stable")
    starts = np.flatnonzero(np.diff(group[order], prepend=group[order][0] - 1))
    mass = np.add.reduceat(weight[order], starts)[:, None]
    total = np.add.reduceat((weight[:, None] * values)[order], starts)
    count = float((mass > 0).sum())
    squares = ((total - mass * total.sum(0)) ** 2).sum(0)
    errors = np.sqrt(squares * count / (count - 1.0 if count > 1 else np.nan))
    return [
        Estimate(float(centre), estimand, unit, intervals(column, weight), float(error))
        for centre, column, error in zip(weight @ values, values.T, errors, strict=True)
    ]


def medians(values: Array, weight: Array, group: NDArray[np.int64], estimand: str, unit: str) -> list[Estimate]:
    """As `estimates`, with the median as the value of each column.

    Draws of steps never measured are skewed, and their mean lies where few of them do; the median also keeps its place
    under 1/x, so that throughput and step are of one prediction. Its Monte Carlo error is that of the share of draws
    below it, carried to the values by their quantiles around it.
    """
    found = []
    for column in values.T:
        centre = weighted_quantiles(column, weight, [0.5])[0]
        share = mcse(column < centre, weight, group)
        low, high = weighted_quantiles(column, weight, np.clip([0.5 - share, 0.5 + share], 0.0, 1.0))
        found.append(Estimate(centre, estimand, unit, intervals(column, weight), 0.5 * (high - low)))
    return found


def intervals(values: Array, weight: Array) -> dict[str, tuple[float, float]]:
    """Equal-tailed intervals of `LEVELS` of weighted draws."""
    ends = weighted_quantiles(values, weight, [q for level in LEVELS for q in tails(level)])
    return {str(level): (ends[2 * i], ends[2 * i + 1]) for i, level in enumerate(LEVELS)}


def mcse(values: ArrayLike, weight: Array, group: NDArray[np.int64]) -> float:
    """Monte Carlo standard error of a weighted mean; `group` (draw,) is the unit: an imputation, or a batch of draws.

    NaN with fewer than two units that have weight.
    """
    at = np.unique(group, return_inverse=True)[1]
    mass = np.bincount(at, weight)
    total = np.bincount(at, weight * np.asarray(values, dtype=float))
    used = mass > 0
    count = int(used.sum())
    if count < 2:
        return float("nan")
    gap = (total - mass * total.sum())[used]
    return float(np.sqrt((gap**2).sum() * count / (count - 1)))


def tails(level: int) -> tuple[float, float]:
    """Lower and upper quantile of an equal-tailed interval of so many percent."""
    side = (100.0 - level) / 200.0
    return side, 1.0 - side


def weighted_quantiles(values: Array, weight: Array, probabilities: ArrayLike) -> list[float]:
    """Quantiles of weighted draws, by linear interpolation between midpoints of the cumulated weights."""
    keep = weight > 0
    order = np.argsort(values[keep], kind="stable")
    sorted_values, mass = values[keep][order], weight[keep][order]
    position = (np.cumsum(mass) - 0.5 * mass) / mass.sum()
    return [float(v) for v in np.interp(np.asarray(probabilities, dtype=float), position, sorted_values)]
