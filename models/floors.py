"""The floor: what is added beyond the GPU branch, and which cells share one.

A structure has two choices, each one entry in a table here: who shares a floor (`SHARED_BY`) and how the
floor joins the GPU branch (`COMBINE`). New structures are registered by adding an entry.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.cells import Cells


@dataclass(frozen=True)
class Sharing:
    """Which models share a floor on one SKU.

    Attributes
    ----------
    dim : str or None
        Name of the second dimension of the floors, beside ``gpu``; None where every model shares one.
    label : callable(model, class) -> str
        The group that a model belongs to.
    """

    dim: str | None
    label: Callable[[str, str], str]


SHARED_BY: Mapping[str, Sharing | None] = MappingProxyType(
    {
        "none": None,
        "gpu": Sharing(None, lambda model, klass: "all models"),
        "gpu, class": Sharing("class", lambda model, klass: klass),
        "gpu, model": Sharing("model", lambda model, klass: model),
    }
)
"""Who shares a floor: nobody has one, one per SKU, per (SKU, class), per (SKU, model)."""

COMBINE: Mapping[str, Callable[[Any, Any], Any]] = MappingProxyType(
    {"added": lambda gpu_ms, floor_ms: gpu_ms + floor_ms}
)
"""How a floor joins the GPU branch: step_ms = combine(gpu_ms, floor_ms), for NumPy and PyTensor alike."""


@dataclass(frozen=True)
class FloorStructure:
    """A floor structure: `shared_by` is a key of `SHARED_BY`, `combine` one of `COMBINE`.

    Raises
    ------
    ValueError
        A name that is not registered; the message lists those that are.
    """

    shared_by: str = "gpu, class"
    combine: str = "added"

    def __post_init__(self) -> None:
        for field, value, table in (
            ("shared_by", self.shared_by, SHARED_BY),
            ("combine", self.combine, COMBINE),
        ):
            if value not in table:
                raise ValueError(f"floor {field} {value!r} is unknown: expected one of {sorted(table)}")

    def __str__(self) -> str:
        return "no floor" if self.sharing is None else f"floor per ({self.shared_by}), {self.combine}"

    @property
    def sharing(self) -> Sharing | None:
        """Who shares, or None where the structure has no floor."""
        return SHARED_BY[self.shared_by]

    def step_ms(self, gpu_ms: Any, floor_ms: Any) -> Any:
        """Step time in ms from the GPU branch and the floor, both in ms and broadcast."""
        return COMBINE[self.combine](gpu_ms, floor_ms)

    def groups(self, cells: Cells, classes: Mapping[str, str]) -> "Groups":
        """Groups of models that share a floor, and the group of each cell.

        Raises
        ------
        ValueError
            The structure has no floor, or `classes` misses a model of `cells`.
        """
        if self.sharing is None:
            raise ValueError("a structure without floors has no groups")
        missing = [m for m in cells.models if m not in classes]
        if missing:
            raise ValueError(f"classes name no class for model '{missing[0]}'")
        label = [self.sharing.label(m, classes[m]) for m in cells.models]
        labels = tuple(dict.fromkeys(label))
        code = np.array([labels.index(one) for one in label], dtype=np.int64)
        return Groups(self.sharing.dim, labels, code[cells.model_code])


@dataclass(frozen=True, eq=False)
class Groups:
    """Groups that share a floor: the name of their dimension, their labels, and their code [cell]."""

    dim: str | None
    labels: tuple[str, ...]
    code: NDArray[np.int64]

    def including(self, label: str) -> "Groups":
        """The same groups, with `label` among them."""
        return self if label in self.labels else Groups(self.dim, (*self.labels, label), self.code)
