"""Kernel benchmarks with known truths: GPUs and formats drawn from the hierarchy, errors that go with the shape."""

from dataclasses import dataclass

import numpy as np

from rooffloor.validate.kernels.benchmarks import KernelTimes
from rooffloor.validate.kernels.hierarchy import FORMAT_SD, LEVEL, SCALE

SHAPES, ROWS = 30, 8
OF_SHAPE, NOISE = 0.04, 0.02


@dataclass(frozen=True, eq=False)
class Truth:
    """u [line, 2] = (log a, logit e), that of one more GPU [2], and the sd between GPUs and within one [2]."""

    u: np.ndarray
    new: np.ndarray
    between: np.ndarray
    left: np.ndarray


def simulated(rng: np.random.Generator, gpus: int = 5) -> tuple[list[KernelTimes], Truth]:
    between, left = (np.abs(rng.standard_normal(2)) * SCALE for _ in range(2))
    level = np.array([rng.normal(*of) for of in LEVEL["gemm"]])
    formats = {name: rng.standard_normal(2) * FORMAT_SD for name in ("bf16", "fp8")}
    times, truths = [], []
    for gpu in range(gpus):
        own = level + rng.standard_normal(2) * between
        for name, offset in formats.items():
            u = own + offset + rng.standard_normal(2) * left
            peak = np.repeat(np.exp(rng.uniform(np.log(0.05), np.log(1.0), SHAPES)), ROWS)
            shape = np.repeat(np.arange(SHAPES), ROWS)
            line = np.exp(u[0]) + peak * (1.0 + np.exp(-u[1]))
            error = OF_SHAPE * rng.standard_normal(SHAPES)[shape] + NOISE * rng.standard_normal(len(peak))
            times.append(KernelTimes("gemm", f"gpu {gpu}", name, "stack", peak, line * (1.0 + error), shape))
            truths.append(u)
    new = level + formats["bf16"] + rng.standard_normal(2) * between + rng.standard_normal(2) * left
    return times, Truth(np.array(truths), new, between, left)
