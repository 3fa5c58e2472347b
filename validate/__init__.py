"""The judging: what measurements say of the models."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rooffloor.validate.comparison.comparison import compare_floors as compare_floors
    from rooffloor.validate.fitting.evidence import fit as fit
    from rooffloor.validate.hypotheses.test import test as test
    from rooffloor.validate.measurements.given_specs import load_gpu as load_gpu
    from rooffloor.validate.measurements.given_specs import load_model as load_model
    from rooffloor.validate.measurements.load import load_measurements as load_measurements
    from rooffloor.validate.reporting.run import report as report
    from rooffloor.validate.study.margins import Margins as Margins
    from rooffloor.validate.study.study import Study as Study
    from rooffloor.validate.transfer.check import check as check
    from rooffloor.validate.transfer.plan.plan import plan as plan
    from rooffloor.validate.transfer.prediction.predict import predict as predict

_HOMES = {
    "load_measurements": "measurements.load",
    "load_model": "measurements.given_specs",
    "load_gpu": "measurements.given_specs",
    "Study": "study.study",
    "Margins": "study.margins",
    "fit": "fitting.evidence",
    "test": "hypotheses.test",
    "report": "reporting.run",
    "compare_floors": "comparison.comparison",
    "check": "transfer.check",
    "plan": "transfer.plan.plan",
    "predict": "transfer.prediction.predict",
}
"""Public names by the module that is imported when one of them is first used."""

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
