"""What T_gpu is made of, by what the kernels read."""

from collections.abc import Sequence
from dataclasses import fields, replace

import numpy as np
from numpy.typing import NDArray

from rooffloor.models.roof.kernels import GROUPS, KERNELS, PeakTimes, Work
from rooffloor.models.roof.roofline import Efficiency, combine, work_ms

type Array = NDArray[np.float64]


def parts_of(work: Work, efficiency: Efficiency, gpu_ms: Array) -> tuple[dict[str, Array], Array]:
    """T_gpu by what the kernels read, and the dispatch term, each (draw, cell), ms.

    Launch latencies count among the others; where T_gpu strays from the roof (free T per cell), its parts do alike.
    Sums kernel by kernel: there is never an array [draw, cell, kernel].
    """
    plain, stray = replace(efficiency, latency_ms=0.0), gpu_ms / work_ms(work, efficiency)
    parts = {name: _sum_ms(work, plain, GROUPS[name]) * stray for name in ("weights", "kv")}
    routed = work.flops[..., KERNELS.index("router")] > 0
    dispatch = np.zeros_like(stray)
    if routed.any():
        dispatch = np.where(routed, _sum_ms(work, plain, ("router", "dispatch")) * stray, 0.0)
    return parts | {"other": gpu_ms - parts["weights"] - parts["kv"]}, dispatch


def _sum_ms(work: Work, efficiency: Efficiency, names: Sequence[str]) -> Array:
    """Time of some kernels together, (draw, cell), ms."""
    total: Array = np.zeros(1)
    for k in map(KERNELS.index, names):
        columns = {f.name: getattr(work.peak_times, f.name)[..., k : k + 1] for f in fields(PeakTimes)}
        if any(np.any(values) for values in columns.values()):
            total = total + combine(PeakTimes(**columns), efficiency)[..., 0]
    return total
