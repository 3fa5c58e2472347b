"""The mathematics: what one decode step should cost. Knows nothing of `validate`."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rooffloor.models.calibration.draws import Calibration as Calibration
    from rooffloor.models.floor.structures import FloorStructure as FloorStructure
    from rooffloor.models.inference.step_model import build_model as build_model
    from rooffloor.models.roof.kernels import decode_work as decode_work
    from rooffloor.models.roof.prefill import prefill_ms as prefill_ms
    from rooffloor.models.roof.roofline import Efficiency as Efficiency
    from rooffloor.models.roof.roofline import breakdown_ms as breakdown_ms
    from rooffloor.models.roof.roofline import bytes_floor_ms as bytes_floor_ms
    from rooffloor.models.roof.roofline import gpu_ms as gpu_ms
    from rooffloor.models.specs.cells import Cells as Cells
    from rooffloor.models.specs.gpus import GpuSpec as GpuSpec
    from rooffloor.models.specs.shapes import ModelShapes as ModelShapes

_HOMES = {
    "Calibration": "calibration.draws",
    "FloorStructure": "floor.structures",
    "build_model": "inference.step_model",
    "decode_work": "roof.kernels",
    "prefill_ms": "roof.prefill",
    "Efficiency": "roof.roofline",
    "breakdown_ms": "roof.roofline",
    "bytes_floor_ms": "roof.roofline",
    "gpu_ms": "roof.roofline",
    "Cells": "specs.cells",
    "GpuSpec": "specs.gpus",
    "ModelShapes": "specs.shapes",
}
"""Public names by the module that is imported when one of them is first used."""

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
