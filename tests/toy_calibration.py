"""A small calibration whose draws all say the same, and a grid to predict."""

from dataclasses import replace

import numpy as np

from rooffloor.models.calibration.draws import Calibration, Domain
from rooffloor.models.specs import gpus

GPUS = ("H100", "H200", "A100-40GB")
MODELS = ("Llama-3.1-8B", "Qwen2.5-7B", "Llama-3.2-1B", "Qwen1.5-MoE-A2.7B")
CLASSES = ("dense 5-10B", "dense 5-10B", "dense <2B", "moe")
MEASURED = np.array([[1, 1, 1, 1], [1, 1, 1, 0], [1, 0, 1, 0]], dtype=bool)
SCALES = (1.5, 4.0, 1.0, 0.7, 0.5)
FLOORS = np.array([[1.6, 1.3, 2.0, 19.0], [3.6, 2.9, 3.0, 0.0], [-2.6, 0.0, 5.2, 0.0]])
POSITIVE = np.abs(FLOORS) + 0.1


def toy(n=40, floors=FLOORS, scales=SCALES, noise=0.05, combine="added", q=1.0, **changes) -> Calibration:
    """Draws that all say the same: known constants, floors, noise and scales."""
    array = np.where(MEASURED, floors, np.nan)
    cells = {"anchor_batch": 4.0, "anchor_context": 2048.0, "anchor_step_ms": 10.0, "anchor_gpu_ms": 8.0}
    made = Calibration(
        gpus=GPUS,
        models=MODELS,
        classes=CLASSES,
        anchor=MODELS[0],
        constants={"eta_bw": np.full((n, 3), 0.7), "eta_fa": np.full((n, 3), 0.6)},
        floor_ms=np.broadcast_to(array, (n, 3, 4)).copy(),
        noise_relative=np.where(MEASURED, noise, np.nan) * np.ones((n, 1, 1)),
        combine=combine,
        q=np.full(n, q),
        scales=np.broadcast_to(scales, (n, 5)).copy(),
        weight=np.full(n, 1.0 / n),
        unit=np.arange(n) // 4,
        anchor_gpu=np.arange(3),
        specs={g: gpus.load(g) for g in GPUS},
        experts="active",
        domain=Domain((1.0, 16.0), (512.0, 8192.0), (1.2e9, 14.4e9)),
        label="simulated",
        source="toy",
        **{name: np.full((n, 3), value) for name, value in cells.items()},
    )
    return replace(made, **changes)


def simulated_floors(pairs, scales, rng, overall=(0.0, 5.0)) -> np.ndarray:
    """One floor a pair as a plain sum of effects, each drawn once for all that share it."""
    effects: dict[tuple, float] = {}
    floors = []
    for g, k, m in pairs:
        total = effects.setdefault(("level",), rng.normal(*overall))
        keys = (("g", g), ("k", k), ("gk", g, k), ("m", m), ("gm", g, m))
        for scale, key in zip(scales, keys, strict=True):
            total += effects.setdefault(key, scale * rng.standard_normal())
        floors.append(total)
    return np.array(floors)


def grid(n_gpus=4, n_classes=3, per_class=2) -> list[tuple[str, str, str]]:
    return [(f"g{g}", f"c{k}", f"c{k}m{m}") for g in range(n_gpus) for k in range(n_classes) for m in range(per_class)]
