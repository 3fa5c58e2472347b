"""From the time of a whole answer to the time of a decode step: the arithmetic that importers share.

The first of N output tokens comes from the pass over the prompt of I tokens, so N - 1 decode steps follow;
before step k = 1 .. N - 1 the cache holds I + k - 1 tokens, on average I + (N - 2) / 2. The pass over the
prompt takes max(FLOPs / (peak * MFU), weight bytes / bandwidth) (`roof.prefill`), with a model-FLOP
utilisation (MFU) that is known but roughly.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from rooffloor.models.roof.prefill import prefill_ms
from rooffloor.models.specs.gpus import GpuSpec
from rooffloor.models.specs.shapes import ModelShapes


@dataclass(frozen=True)
class Mfu:
    """Utilisation of the peak in a prompt's pass on one GPU, and the sd of its logarithm.

    `seen_log_sd` is the sd over the measured models (NaN with fewer than two), `source` says where from.
    """

    mfu: float
    log_sd: float
    seen_log_sd: float
    source: str


DEFAULT_MFU, DEFAULT_LOG_SD = 0.5, 0.4
"""Where no time to first token was measured: a usual MFU, and a factor of 1.5 either way as one sd."""
DEFAULT = Mfu(DEFAULT_MFU, DEFAULT_LOG_SD, np.nan, "default")


def mean_context(prompt: Any, output: Any, first: Any = 1) -> Any:
    """Mean tokens in the cache before the steps that make tokens first + 1 .. output of an answer."""
    return prompt + (first + output - 3) / 2


def prefill(shapes: ModelShapes, gpu: GpuSpec, batch: Any, prompt: Any, mfu: Mfu, log_shift: float = 0.0) -> Any:
    """Time of the pass over the prompts, ms, with log MFU shifted by so many of its sd."""
    return prefill_ms(shapes, gpu, batch, prompt, mfu.mfu * np.exp(log_shift * mfu.log_sd))


def half_width(low: Any, high: Any) -> Any:
    """The sd of a time whose values at -1 and +1 sd of log MFU are given, ms: the slower one first."""
    return (low - high) / 2


def standard_error(values: list[float]) -> float:
    """Standard error of the mean of values, 0 of a single one (unknown)."""
    return float(np.std(values, ddof=1) / np.sqrt(len(values))) if len(values) > 1 else 0.0
