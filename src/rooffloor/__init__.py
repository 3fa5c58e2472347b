"""rooffloor: tests with real statistics whether an LLM decode-latency model transfers to another family or GPU.

The public names are those of `__all__`; each loads what it needs when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rooffloor.validate import (
        Margins,
        Study,
        check,
        compare_floors,
        fit,
        load_gpu,
        load_measurements,
        load_model,
        plan,
        predict,
        report,
        test,
    )

__version__ = "0.1.0"

__all__ = [
    "Margins",
    "Study",
    "__version__",
    "check",
    "compare_floors",
    "fit",
    "load_gpu",
    "load_measurements",
    "load_model",
    "plan",
    "predict",
    "report",
    "test",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("rooffloor.validate"), name)


def __dir__() -> list[str]:
    return __all__
