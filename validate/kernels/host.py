"""Host time of a decode step, h0 + h_seq B, as measured by host and model."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rooffloor.validate.kernels.benchmarks import Floats


@dataclass(frozen=True)
class HostLine:
    """Host time of one model on one host.

    Attributes
    ----------
    host, model : str
    tp : int
        GPUs that the host serves the model on.
    h0_ms, h_seq_ms : float
        Constant time, and time per sequence, ms.
    misfit : float
        Mean absolute relative error, percent.
    """

    host: str
    model: str
    tp: int
    h0_ms: float
    h_seq_ms: float
    misfit: float


def host_line(host: str, model: str, tp: int, batch: Floats, time_ms: Floats) -> HostLine:
    """The line of one model: the median slope between cells, and the median of what is left (Theil 1950; Sen 1968)."""
    first, second = np.triu_indices(len(batch), 1)
    apart = batch[second] != batch[first]
    slope = float(np.median((time_ms[second] - time_ms[first])[apart] / (batch[second] - batch[first])[apart]))
    constant = float(np.median(time_ms - slope * batch))
    misfit = 100.0 * float(np.mean(np.abs(constant + slope * batch - time_ms) / time_ms))
    return HostLine(host, model, tp, constant, slope, misfit)


def log_moments(values: Sequence[float], extra: float = 0.0) -> tuple[float, float]:
    """Median and sd of the logarithm of positive values; `extra` is added to the sd in squares."""
    logs = np.log(np.asarray(values, dtype=float))
    sd = float(np.std(logs, ddof=1)) if len(logs) > 1 else 0.0
    return float(np.exp(np.mean(logs))), float(np.hypot(sd, extra))
