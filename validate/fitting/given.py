"""Floors given the constants of each draw: what a calibration adds to the T_gpu of that draw; see `floors_given`."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rooffloor.models.floor.structures import FloorStructure
from rooffloor.models.inference.noise import variance_ms2
from rooffloor.models.inference.priors import DEFAULT_PRIORS
from rooffloor.validate.estimates.floors_given import (
    floor_covariance,
    floor_means,
    offset_step_ms,
    positive_floor_means,
    told_by_cells,
)

type Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class FitOfCells:
    """Draws of one fit, cell by cell.

    Attributes
    ----------
    posterior : mapping of name to array (draw, ...)
        Of `inference.step_model`; of a cut, with `anchor_` before what both stages have.
    structure : FloorStructure
    gpu_code, group_code : int arrays, shape (cell,)
        Of the floor of each cell.
    anchor_group : int
        Whose floors the anchor has.
    is_anchor : bool array, shape (cell,)
    gpu_ms : array, shape (draw, cell)
    step_ms : array, shape (cell,)
    noise : (relative, absolute, known) that broadcast to (draw, cell)
        As `variance_ms2` takes them.
    cut : bool
        Whether the anchor's floors come from the anchor's cells alone, and the others are given them.
    host_ms : array, shape (draw, cell), or 0
        What floors hold beside the part that the cells of a pair share.
    """

    posterior: Mapping[str, Array]
    structure: FloorStructure
    gpu_code: NDArray[np.int64]
    group_code: NDArray[np.int64]
    anchor_group: int
    is_anchor: NDArray[np.bool_]
    gpu_ms: Array
    step_ms: Array
    noise: tuple[Array, Array, Array | float]
    cut: bool
    host_ms: Array | float = 0.0

    def floors(self) -> tuple[Array, Array]:
        """The anchor's floor on each cell's GPU (NaN where it has no cells) and the cell's own, ms, (draw, cell)."""
        pairs, code = np.unique(np.stack([self.gpu_code, self.group_code]), axis=1, return_inverse=True)
        code = code.ravel()
        known = self.gpu_ms + self.host_ms
        step = offset_step_ms(known, self.step_ms, code, pairs.shape[1])
        variance = variance_ms2(step, *self.noise)
        left = self.step_ms - known
        if self.cut:
            means = self._cut(pairs, code, left, variance)
        else:
            means = self._means(pairs, *told_by_cells(left, variance, code, pairs.shape[1]), "")
        return self._anchors(pairs, means) + self.host_ms, means[:, code] + self.host_ms

    def _cut(self, pairs: NDArray[np.int64], code: NDArray[np.int64], left: Array, variance: Array) -> Array:
        """The anchor's floors from its own cells; the others given the anchor's floors of the draw, (draw, pair)."""
        theirs = pairs[1] == self.anchor_group
        count = pairs.shape[1]
        told = told_by_cells(left[:, self.is_anchor], variance[:, self.is_anchor], code[self.is_anchor], count)
        seen = told[1][0] > 0
        upstream = self._means(pairs[:, seen], told[0][:, seen], told[1][:, seen], "anchor_")
        others = ~self.is_anchor
        value, precision = told_by_cells(left[:, others], variance[:, others], code[others], count)
        known = theirs & seen
        drawn = self.posterior["floor_ms"][:, pairs[0], pairs[1]]
        means = self._means(pairs, value, precision, "", drawn, known)
        means[:, seen] = upstream
        return means

    def _means(
        self,
        pairs: NDArray[np.int64],
        value: Array,
        precision: Array,
        prefix: str,
        known_ms: Array | float = 0.0,
        known: NDArray[np.bool_] | None = None,
    ) -> Array:
        positive = self.structure.positive
        level, overall_sd = DEFAULT_PRIORS.floor_level(positive)
        unit = "" if positive else "_ms"

        def scale(effect: str) -> Array:
            name = f"floor_sd_{effect}{unit}"
            return self.posterior[prefix + name if prefix + name in self.posterior else name]

        sharing = self.structure.sharing
        assert sharing is not None
        if prefix:  # the anchor alone: one floor per GPU
            group, scales = None, (scale("gpu"), np.zeros(1), np.zeros(1))
        else:
            group, scales = pairs[1], (scale("gpu"), scale(str(sharing.dim)), scale("pair"))
        if positive:
            log_sd = np.sqrt(overall_sd**2 + sum(np.square(sd) for sd in scales))[:, None]
            means = positive_floor_means(value, precision, level, log_sd)
            return means if known is None else np.where(known, known_ms, means)
        return floor_means(
            value, precision, floor_covariance(pairs[0], group, overall_sd, scales), level, known_ms, known
        )

    def _anchors(self, pairs: NDArray[np.int64], means: Array) -> Array:
        """Of the anchor on each cell's GPU, NaN where it has no cells, (draw, cell)."""
        found = np.full((len(means), len(self.gpu_code)), np.nan)
        for gpu in np.unique(self.gpu_code[self.is_anchor]).tolist():
            pair = np.flatnonzero((pairs[0] == gpu) & (pairs[1] == self.anchor_group))[0]
            found[:, self.gpu_code == gpu] = means[:, [pair]]
        return found
