"""Least squares of measured cells: constants and floors where no posterior has an answer.

No sampler: a point that the cells and the priors of the constants support, without intervals.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rooffloor.models.inference.priors import DEFAULT_PRIORS, Priors
from rooffloor.models.roof.kernels import Work, stack_work
from rooffloor.models.roof.roofline import Efficiency, work_ms
from rooffloor.models.specs.cells import Cells
from rooffloor.validate.estimates.cell_draws import Draws

if TYPE_CHECKING:
    from rooffloor.validate.measurements.load import Measurements
    from rooffloor.validate.study.study import Study

type Array = NDArray[np.float64]

LEAST_NOISE = 0.005
"""Relative noise that is assumed at least: a handful of cells may be met by chance."""
ROUNDS = 4
"""Times that the noise is taken from what is left over and the constants are found anew."""


@dataclass(frozen=True, eq=False)
class LeastSquares:
    """Constants, T_gpu and floors that fit best.

    Attributes
    ----------
    cells : Cells
    anchor : str
    constants : dict of name to value
        eta_bw, eta_fa, l_half (tokens), rho_q under the query-head limb; eta_tc is its prior's mean.
    of : str
        Whose cells the constants are from, in words.
    gpu_ms : float array, shape (cell,)
    floor_ms : float array, shape (cell,)
        Floor of the cell's own (GPU, model), added, signed: the mean of y - T_gpu, weighed by 1 / y².
    anchor_floor_ms : float array, shape (cell,)
        The anchor's floor on the cell's GPU; NaN where it was not measured there.
    """

    cells: Cells
    anchor: str
    constants: dict[str, float]
    of: str
    gpu_ms: Array
    floor_ms: Array
    anchor_floor_ms: Array

    def __repr__(self) -> str:
        found = ", ".join(f"{name} {value:.3g}" for name, value in self.constants.items())
        return f"LeastSquares({len(self.cells)} cells, constants from {self.of}: {found})"

    def draws(self, study: "Study", label: str) -> Draws:
        """The same as one draw, for what reads points alone (tables of cells as measured, frequentist tests)."""
        cells = self.cells
        assert cells.step_ms is not None
        left = np.empty(len(cells))
        for _, _, at in cells.pairs():
            off = (cells.step_ms - self.gpu_ms - self.floor_ms)[at] / cells.step_ms[at]
            left[at] = np.sqrt((off**2).sum() / max(int(at.sum()) - 1, 1))
        return Draws(
            cells=cells,
            label=label,
            anchor=self.anchor,
            classes={m: study.class_of(m) for m in cells.models},
            batch=cells.batch[None],
            context=cells.context[None],
            step_ms=cells.step_ms[None],
            gpu_ms=self.gpu_ms[None],
            parts_ms={},
            dispatch_ms=np.zeros((1, len(cells))),
            floor_ms=self.floor_ms[None],
            class_floor_ms={},
            anchor_floor_ms=self.anchor_floor_ms[None],
            noise_ms=(np.maximum(left, LEAST_NOISE) * cells.step_ms)[None],
            unit=np.zeros(1, dtype=np.int64),
            weight=np.ones(1),
        )


def least_squares(study: "Study", measurements: "Measurements", priors: Priors = DEFAULT_PRIORS) -> LeastSquares:
    """Constants of the anchor's cells (of all under the joint treatment), and every pair's floor given them.

    Minimises the squared relative residuals, floors free, over the noise; the priors of the constants are further
    observations, since the anchor's steps hardly tell the bandwidth of weights from a floor. One set of constants for
    all GPUs.
    """
    from scipy.optimize import least_squares as minimise

    cells = measurements.cells()
    work = stack_work(cells, measurements.shapes, measurements.gpus, experts=study.efficiency.experts)
    joint = study.efficiency.treatment == "joint"
    at = np.ones(len(cells), bool) if joint else cells.model == study.anchor
    own, own_work = cells.where(at), work.where(at)
    assert own.step_ms is not None
    measured = own.step_ms
    names = ["eta_bw", "eta_fa", "l_half", *(["rho_q"] if study.efficiency.preset == "query heads" else [])]
    positive = ("l_half", "rho_q")  # on the logarithm
    middles, sds = np.array([getattr(priors, name) for name in names]).T
    start = np.where(np.isin(names, positive), np.log(middles), middles)
    low = np.where(np.isin(names, positive), start - 6.0, 0.05)
    high = np.where(np.isin(names, positive), start + 6.0, 1.0)

    def constants(x: Array) -> dict[str, float]:
        values = np.where(np.isin(names, positive), np.exp(np.minimum(x, 50.0)), x)
        return dict(zip(names, values.tolist(), strict=True))

    def residuals(x: Array, noise: float) -> Array:
        T = _gpu_ms(own_work, constants(x), priors)
        off = (measured - T - _floors(own, T)) / measured
        return np.concatenate([off / noise, (x - start) / sds])

    x, noise, freedom = start, priors.noise_relative[0], max(len(own) - len(list(own.pairs())), 1)
    for _ in range(ROUNDS):
        x = minimise(residuals, x, bounds=(low, high), args=(noise,)).x
        left = residuals(x, 1.0)[: len(own)]
        noise = max(float(np.sqrt((left**2).sum() / freedom)), LEAST_NOISE)
    found = constants(x)
    T = _gpu_ms(work, found, priors)
    floor = _floors(cells, T)
    anchors = np.full(len(cells), np.nan)
    for model, gpu, mask in cells.pairs():
        if model == study.anchor:
            anchors[cells.gpu == gpu] = floor[mask][0]
    of = "all cells" if joint else "the anchor's cells"
    return LeastSquares(cells, study.anchor, found | {"eta_tc": priors.eta_tc[0]}, of, T, floor, anchors)


def _gpu_ms(work: Work, constants: dict[str, float], priors: Priors) -> Array:
    given: dict[str, Any] = {"eta_tc": priors.eta_tc[0], **constants}
    return np.asarray(work_ms(work, Efficiency(**given)), dtype=float).reshape(-1)


def _floors(cells: Cells, gpu_ms: Array) -> Array:
    """Floor of each cell's pair, [cell], ms."""
    assert cells.step_ms is not None
    floor = np.empty(len(cells))
    for _, _, at in cells.pairs():
        floor[at] = np.average((cells.step_ms - gpu_ms)[at], weights=cells.step_ms[at] ** -2.0)
    return floor
