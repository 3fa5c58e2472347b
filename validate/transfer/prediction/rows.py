"""Predicted cells, and what all cells of one model on one GPU have in common."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from rooffloor.models.roof.capacity import USABLE
from rooffloor.validate.estimates.estimate import LEVELS, Estimate

MEAN, MEASURED = "mean", "measured"
GPU_BRANCH = "T_gpu: the GPU branch (posterior)"
STEPS = {
    MEAN: "mean step (posterior of T_gpu and floor)",
    MEASURED: "step that a measurement would show (posterior predictive)",
}
"""The two steps by name: what their estimates estimate."""
QUANTITIES = {"step_ms": "ms", "tokens_per_s": "tokens/s", "time_per_output_token_ms": "ms"}
"""What is said of each step, and its unit."""
PREDICTED, TOO_LARGE, IMPOSSIBLE = "predicted", "does not fit", "not possible"
LEAST_KEPT = 0.01
"""A model on a GPU of whose floor a smaller share of draws is possible is not predicted."""


@dataclass(frozen=True)
class Row:
    """One cell.

    Attributes
    ----------
    model, gpu, klass : str
    batch, context : int
    status : str
        "predicted"; "does not fit" (the memory) and "not possible" (with every draw of the floor steps would be faster
        than their bytes) have no estimates.
    floor_from : str
        Where the floor comes from.
    outside : tuple of str
        Reasons why the cell lies outside the calibrated domain, each "key: details".
    needed_gb, usable_gb : float
        Weights and cache; 0.95 of the nominal memory; decimal GB.
    bytes_floor_ms : float or None
        What weights and cache take at peak bandwidth at least; None for a cell that does not fit.
    cut_percent : float or None
        Draws of the pair's floor that were cut, the same for all its cells.
    below_distinct_percent : float or None
        How far T_gpu lies below that of `distinct` experts, where the calibration streams `active` ones.
    estimates : mapping of str to Estimate
        "gpu_ms", and `mean_...` and `measured_...` with each of `QUANTITIES`. Empty where nothing is predicted.
    """

    model: str
    gpu: str
    klass: str
    batch: int
    context: int
    status: str
    floor_from: str
    outside: tuple[str, ...]
    needed_gb: float
    usable_gb: float
    bytes_floor_ms: float | None
    cut_percent: float | None
    below_distinct_percent: float | None
    estimates: Mapping[str, Estimate]

    @property
    def reason(self) -> str:
        """Why nothing is predicted; empty where something is."""
        if self.status == TOO_LARGE:
            formats = (
                why.partition(": ")[2].partition(",")[0] for why in self.outside if why.startswith("number format")
            )
            usable = f"usable are {self.usable_gb:.1f} GB ({USABLE:g} of the memory)"
            return "; ".join((f"needs {self.needed_gb:.1f} GB, {usable}", *formats))
        if self.status == IMPOSSIBLE:
            return f"fewer than {LEAST_KEPT:.0%} of the floor's draws are possible"
        return ""

    @property
    def data(self) -> dict[str, Any]:
        """As JSON; without numbers fewer keys."""
        left_out = () if self.status == PREDICTED else ("cut_percent", "below_distinct_percent", "bytes_floor_ms")
        about = {"class": self.klass, "reason": self.reason, "outside": list(self.outside)}
        estimates = {name: estimate.data for name, estimate in self.estimates.items()}
        return _plain(self, "estimates", *left_out) | about | estimates

    def record(self, label: str) -> dict[str, Any]:
        """Flat, with the same keys for all cells: see `Prediction.records`."""
        record: dict[str, Any] = {
            "label": label if self.status == PREDICTED else f"not {label}",
            "model": self.model,
            "gpu": self.gpu,
            "class": self.klass,
            "batch": self.batch,
            "context": self.context,
            "status": self.status,
            "reason": self.reason,
            "outside": "; ".join(self.outside),
            "floor_from": self.floor_from,
        }
        for name in ("gpu_ms", *(f"{step}_{quantity}" for step in STEPS for quantity in QUANTITIES)):
            estimate = self.estimates.get(name)
            record[name] = None if estimate is None else estimate.value
            for level in map(str, LEVELS):
                low, high = (None, None) if estimate is None else estimate.intervals[level]
                record |= {f"{name}_{level}_low": low, f"{name}_{level}_high": high}
            record[f"{name}_mcse"] = None if estimate is None else estimate.mcse
        last = ("bytes_floor_ms", "cut_percent", "below_distinct_percent", "needed_gb", "usable_gb")
        return record | {name: getattr(self, name) for name in last}


@dataclass(frozen=True)
class Pair:
    """What all cells of one model and GPU have in common.

    Attributes
    ----------
    model, gpu, klass : str
    parameters : int
    floor_from : str
        Where the floor comes from.
    floor : Estimate
        Of the draws that are possible, ms; of all where nearly none is.
    outside : tuple of str
        Why all cells lie outside the calibrated domain.
    cut_percent : float
        Draws of the floor that were cut: with them the step at `LIGHTEST` is faster than its bytes.
    lightest_ms : float
        What those bytes take at peak bandwidth.
    """

    model: str
    gpu: str
    klass: str
    parameters: int
    floor_from: str
    floor: Estimate
    outside: tuple[str, ...]
    cut_percent: float
    lightest_ms: float

    @property
    def data(self) -> dict[str, Any]:
        """As JSON."""
        return _plain(self, "floor") | {
            "class": self.klass,
            "floor_ms": self.floor.data,
            "outside": list(self.outside),
        }


def _plain(one: Row | Pair, *others: str) -> dict[str, Any]:
    """The fields that are JSON as they are."""
    return {f.name: getattr(one, f.name) for f in fields(one) if f.name not in ("klass", "outside", *others)}
