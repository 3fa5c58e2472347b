"""What T_gpu is made of, by what the kernels read."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from rooffloor.models.roof.kernels import GROUPS, KERNELS, Work
from rooffloor.models.roof.roofline import Efficiency, combine, work_ms

type Array = NDArray[np.float64]


def parts_of(work: Work, efficiency: Efficiency, gpu_ms: Array) -> tuple[dict[str, Array], Array]:
    """T_gpu by what the kernels read, and the dispatch term, each (draw, cell), ms.

    Launch latencies count among the others; where T_gpu strays from the roof (free T per cell), its parts do alike.
    """
    kernels = combine(work, replace(efficiency, latency_ms=0.0))
    stray = gpu_ms / work_ms(work, efficiency)

    def share(names: Sequence[str]) -> Array:
        return np.asarray(kernels[..., [KERNELS.index(k) for k in names]].sum(-1) * stray)

    parts = {"weights": share(GROUPS["weights"]), "kv": share(GROUPS["kv"])}
    dispatch = np.where(work.flops[..., KERNELS.index("router")] > 0, share(("router", "dispatch")), 0.0)
    return parts | {"other": gpu_ms - parts["weights"] - parts["kv"]}, dispatch
