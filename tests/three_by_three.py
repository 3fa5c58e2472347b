"""Simulated cells of three models on three SKUs, a floor for each pair, and T_gpu given: what fits are tried on."""

import numpy as np

from rooffloor.models.specs.cells import Cells

GPUS, CLASSES = ("A", "B", "C"), {"m": "small", "n": "large", "o": "moe"}

FLOORS = np.array([[1.0, 2.5, 6.0], [3.0, 3.5, 8.5], [-4.0, -2.0, 1.0]])
"""True floors [gpu, class], ms; the negative ones take steps of model m on C to about 1 ms."""


def grid(
    models: tuple[str, ...] = ("m", "n", "o"),
    without: tuple[tuple[str, str], ...] = (),
    contexts: tuple[int, ...] = (512, 2048, 8192),
) -> Cells:
    """Cells of every model and SKU, two per pair and context, without steps; pairs in `without` are left out."""
    cells = [(m, g, b, c) for m in models for g in GPUS for b in (1, 8) for c in contexts if (m, g) not in without]
    model, gpu, batch, context = zip(*cells, strict=True)
    return Cells.from_columns(model, gpu, batch, context)


def branch_ms(cells: Cells) -> np.ndarray:
    """Some T_gpu [cell] that differs by model and SKU and grows with batch and context."""
    weights = 2.0 + 3.0 * cells.model_code + 1.5 * cells.gpu_code
    return weights + cells.batch * cells.context * 6e-5 * (1 + cells.gpu_code)


def measured(cells: Cells, step_ms: np.ndarray, rng: np.random.Generator, relative: float = 0.03) -> Cells:
    """The cells with noisy steps."""
    y = step_ms + rng.standard_normal(len(cells)) * np.hypot(0.1, relative * step_ms)
    return Cells.from_columns(list(cells.model), list(cells.gpu), cells.batch, cells.context, y)


def simulated(seed: int) -> dict[str, np.ndarray]:
    """Data of the compiled model: noisy steps under `FLOORS`."""
    cells = grid()
    data = measured(cells, branch_ms(cells) + FLOORS[cells.gpu_code, cells.model_code], np.random.default_rng(seed))
    assert data.step_ms is not None
    return {"measured_ms": data.step_ms, "gpu_ms": branch_ms(cells)}
