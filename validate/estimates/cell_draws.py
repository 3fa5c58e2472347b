"""Draws: what the judging sees of a posterior, whether the cells were measured or imputed.

`Draws` holds per draw and cell the step, its GPU branch, the cell's own floor, the anchor's floor on that GPU and the
noise.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rooffloor.models.specs.cells import Cells
from rooffloor.validate.estimates.estimate import Estimate, estimate, mcse

type Array = NDArray[np.float64]

MEASURED = "measured"
SIMULATED = "simulated"
IMPUTED = "imputed from published aggregates"


@dataclass(frozen=True, eq=False)
class Draws:
    """Draws of cells, GPU branch, floors and noise.

    Attributes
    ----------
    cells : Cells
        Model and GPU of each cell. Its batch and context are those of the first grid: use `batch` and `context`.
    batch, context : float arrays, shape (draw, cell) or (1, cell)
        Imputed grids may have different axes.
    label : str
        `IMPUTED`, or the origin of cells at hand: `MEASURED`, derived, simulated; it goes with the data into every
        plot and table.
    anchor : str
    classes : mapping of model to class
    step_ms : float array, shape (draw, cell) or (1, cell)
        Measured steps (one row) or imputed ones.
    gpu_ms : float array, shape (draw, cell)
        T_gpu.
    parts_ms : mapping of "weights", "kv", "other" to float array (draw, cell)
        What T_gpu is made of; launch latencies are among the others.
    dispatch_ms : float array, shape (draw, cell)
        The dispatch term (router, gather, scatter) without launch latency; 0 for dense models.
    floor_ms : float array, shape (draw, cell)
        The floor of the cell's own (GPU, model).
    class_floor_ms : mapping of (gpu, class) to float array (draw,)
        Measured: from a fit in which the models of a class share one floor per GPU. Imputed: mean of their floors.
    anchor_floor_ms : float array, shape (draw, cell)
        The anchor's floor on the cell's GPU; NaN where the anchor was not measured.
    noise_ms : float array, shape (draw, cell)
        sd of a measured step around its mean.
    unit : int array, shape (draw,)
        Imputation of each draw, or the batch of draws: the unit of Monte Carlo errors.
    weight : float array, shape (draw,)
        Sums to 1.
    model_noise_ms : float array, shape (draw, cell), or None
        `noise_ms` before `with_own_noise`.
    calibrated_floor_ms : float array, shape (draw, cell), or None
        Posterior mean of the anchor's floor given the constants of each draw, where constants differ between draws.
    own_calibrated_floor_ms : float array, shape (draw, cell), or None
        The same of the cell's own floor.
    host_ms : float array, shape (draw, cell), or None
        What floors of cells hold beside the part that a pair shares: host time per sequence. It is in all floors above.
    """

    cells: Cells
    label: str
    anchor: str
    classes: Mapping[str, str]
    batch: Array
    context: Array
    step_ms: Array
    gpu_ms: Array
    parts_ms: Mapping[str, Array]
    dispatch_ms: Array
    floor_ms: Array
    class_floor_ms: Mapping[tuple[str, str], Array]
    anchor_floor_ms: Array
    noise_ms: Array
    unit: NDArray[np.int64]
    weight: Array
    model_noise_ms: Array | None = None
    calibrated_floor_ms: Array | None = None
    own_calibrated_floor_ms: Array | None = None
    host_ms: Array | None = None

    def __repr__(self) -> str:
        return f"Draws({len(self.weight)} draws of {len(self.cells)} cells, {self.label})"

    @cached_property
    def mean_ms(self) -> Array:
        """Mean step of each cell under the model: T_gpu + its own floor, shape (draw, cell)."""
        return self.gpu_ms + self.floor_ms

    @cached_property
    def calibrated_ms(self) -> Array:
        """What a user of the anchor's calibration adds: its floor's posterior mean given the constants, (draw, cell).

        T_gpu and the floor are all but collinear over draws, so that a floor goes with the T_gpu of its draw. Without
        `calibrated_floor_ms` the constants are those of the unit (an imputation), or known: its mean there.
        """
        if self.calibrated_floor_ms is not None:
            return self.calibrated_floor_ms
        return self._unit_mean(self.anchor_floor_ms)

    @cached_property
    def own_calibrated_ms(self) -> Array:
        """Posterior mean of each cell's own floor given the constants, (draw, cell); as `calibrated_ms`."""
        if self.own_calibrated_floor_ms is not None:
            return self.own_calibrated_floor_ms
        return self._unit_mean(self.floor_ms)

    @property
    def shared_floor_ms(self) -> Array:
        """The part of its floor that a cell shares with its pair, (draw, cell)."""
        return self.floor_ms if self.host_ms is None else self.floor_ms - self.host_ms

    @property
    def below_floor_ms(self) -> Array:
        """What the floor of a pair is added to, T_gpu and host time of each cell, (draw, cell)."""
        return self.gpu_ms if self.host_ms is None else self.gpu_ms + self.host_ms

    @property
    def pair_ms(self) -> Array:
        """Steps without what their floors hold beside the pair's: T_gpu, a constant and noise, (draw or 1, cell)."""
        return self.step_ms if self.host_ms is None else self.step_ms - self.host_ms

    def _unit_mean(self, values: Array) -> Array:
        if self.label != IMPUTED:
            return np.broadcast_to(self.weight @ values, values.shape)
        out = np.empty_like(values)
        for unit in np.unique(self.unit):
            rows = self.unit == unit
            out[rows] = values[rows].mean(0)
        return out

    def _by_cell(self, some: Callable[[Array], Array]) -> dict[str, Any]:
        """Some part of every array whose last axis is the cell, by field."""
        names = ("batch", "context", "step_ms", "gpu_ms", "dispatch_ms", "floor_ms", "anchor_floor_ms", "noise_ms")
        optional = ("model_noise_ms", "calibrated_floor_ms", "own_calibrated_floor_ms", "host_ms")
        given = {n: getattr(self, n) for n in (*names, *optional)}
        found: dict[str, Any] = {name: some(values) for name, values in given.items() if values is not None}
        return found | {"parts_ms": {name: some(values) for name, values in self.parts_ms.items()}}

    def where(self, keep: NDArray[np.bool_]) -> "Draws":
        """The same draws for some of the cells (a mask over cells); floors of classes stay."""
        return replace(self, cells=self.cells.where(keep), **self._by_cell(lambda values: values[:, keep]))

    def gathered(self, keep: NDArray[np.bool_], columns: NDArray[np.int64]) -> "Draws":
        """The same draws for other columns in each draw, (draw, cell), whose models and GPUs are those of `keep`."""

        def some(values: Array) -> Array:
            return np.take_along_axis(np.broadcast_to(values, (len(columns), values.shape[-1])), columns, axis=1)

        return replace(self, cells=self.cells.where(keep), **self._by_cell(some))

    def rows(self, keep: NDArray[Any]) -> "Draws":
        """Some of the draws (a mask over draws, or their numbers), with weights that sum to 1.

        Raises
        ------
        ValueError
            The draws kept have no weight.
        """
        mass = self.weight[keep]
        if not mass.sum() > 0:
            raise ValueError("the draws kept have no weight")

        def some(values: Array) -> Array:
            return values[keep] if len(values) == len(self.weight) else values

        return replace(
            self,
            **self._by_cell(some),
            class_floor_ms={key: some(values) for key, values in self.class_floor_ms.items()},
            unit=self.unit[keep],
            weight=mass / mass.sum(),
        )

    def pairs(self) -> Iterator[tuple[str, str, NDArray[np.bool_]]]:
        """(model, gpu, mask over cells) of every measured pair, in order."""
        return self.cells.pairs()

    def mask(self, model: str, gpu: str) -> NDArray[np.bool_]:
        """Cells of one pair."""
        return (self.cells.model == model) & (self.cells.gpu == gpu)

    def has_anchor(self, mask: NDArray[np.bool_]) -> bool:
        """Whether the anchor was measured on the GPU of these cells."""
        return bool(np.isfinite(self.anchor_floor_ms[0, mask]).all())

    def estimate(self, values: ArrayLike, estimand: str, unit: str) -> Estimate:
        """Weighted mean, 50 and 90 % equal-tailed intervals and Monte Carlo error of one value per draw."""
        return estimate(values, self.weight, self.unit, estimand, unit)

    def probability(self, event: ArrayLike, of: str) -> Estimate:
        """Posterior probability of an event per draw (or of a probability per draw)."""
        array = np.asarray(event, dtype=float)
        return Estimate(float(self.weight @ array), of, "probability", {}, mcse(array, self.weight, self.unit))


OWN_NOISE = 4.0
"""So many cells is the noise of its model worth to a pair, beside the pair's own cells."""


def with_own_noise(draws: Draws, rng: np.random.Generator) -> Draws:
    """The same draws, with noise that may differ between the GPUs of a model.

    The model of steps has one relative noise per model. What a roofline leaves over differs by GPU too, by factors in
    the published study, and the level of a pair is as large as its own residuals. So each draw's noise of a pair is
    multiplied by a factor f with f² ~ scaled inverse chi-squared(`OWN_NOISE`, 1) before the pair's residuals
    are seen, drawn given them. `simulation.hypotheses` counts how often intervals then cover.
    """
    noise = draws.noise_ms.copy()
    for _, _, mask in draws.pairs():
        z = (draws.step_ms[:, mask] - draws.mean_ms[:, mask]) / noise[:, mask]
        freedom = OWN_NOISE + z.shape[-1]
        squared = (OWN_NOISE + (z**2).sum(-1)) / rng.chisquare(freedom, len(z))
        noise[:, mask] *= np.sqrt(squared)[:, None]
    return replace(draws, noise_ms=noise, model_noise_ms=draws.noise_ms)
