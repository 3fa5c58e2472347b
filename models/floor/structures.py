"""The floor: what the host adds to the GPU branch, which cells share one, and how the two join.

A structure has three choices, each one entry in a table here: who shares a floor (`SHARED_BY`), which terms it has
beside that constant (`TERMS`: host time that grows with the batch), and how the floor joins the GPU branch (`COMBINE`).
New structures are registered by adding an entry.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType, ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rooffloor.models.specs.cells import Cells


@dataclass(frozen=True)
class Sharing:
    """Which models share a floor on one SKU.

    Attributes
    ----------
    dim : str or None
        Name of the second dimension of the floors, beside ``gpu``; None where every model shares one.
    label : callable(model, class) -> str
        The group that a model belongs to.
    per_launch : bool
        The floor also grows with the kernel launches of the model: H = c0 + c1 launches, per SKU.
    kernel_latency : bool
        The same column on the other side: each launch costs a latency inside T_gpu, a parameter; the floor
        itself does not grow. Only one of the two can be free.
    """

    dim: str | None
    label: Callable[[str, str], str]
    per_launch: bool = False
    kernel_latency: bool = False


def _all(model: str, klass: str) -> str:
    return "all models"


SHARED_BY: Mapping[str, Sharing | None] = MappingProxyType(
    {
        "none": None,
        "gpu": Sharing(None, _all),
        "gpu, class": Sharing("class", lambda model, klass: klass),
        "gpu, model": Sharing("model", lambda model, klass: model),
        "gpu, launches": Sharing(None, _all, per_launch=True),
        "gpu, kernel latency": Sharing(None, _all, kernel_latency=True),
    }
)
"""Who shares a floor: nobody has one, one per SKU, per (SKU, class), per (SKU, model), c0 + c1 launches per SKU; or one
per SKU with a latency per kernel inside T_gpu."""


@dataclass(frozen=True)
class Term:
    """Host time that grows with what a step holds: its parameter, ms per unit on each SKU, and its column of cells.

    Attributes
    ----------
    parameter : str
        Name in the posterior, and of the prior in `Priors`.
    column : callable(sequences [cell], layers [cell]) -> [cell]
        Units in each cell.
    words : str
        As in "h0 + b per ...".
    """

    parameter: str
    column: Callable[[Any, Any], Any]
    words: str


TERMS: Mapping[str, Term] = MappingProxyType(
    {
        "sequence": Term("sequence_ms", lambda sequences, layers: sequences * 1.0, "sequence"),
        "sequence layer": Term("sequence_layer_ms", lambda sequences, layers: sequences * layers, "sequence and layer"),
    }
)
"""Terms of a floor beside the part that cells share: scheduling, sampling and detokenising of each sequence, which
belong to host and stack and not to the model; the same once per layer. (What grows with launches alone: `SHARED_BY`.)
"""


@dataclass(frozen=True)
class Combine:
    """How a floor H joins the GPU branch T.

    Attributes
    ----------
    positive : bool
        Whether H >= 0; else the floor is signed and is added.
    q : float or None
        Overlap: step = (T^(1/q) + H^(1/q))^q. 1 is the sum, 0 the maximum, above 1 labelled misfit; None: a
        parameter.
    """

    positive: bool
    q: float | None = 1.0


COMBINE: Mapping[str, Combine] = MappingProxyType(
    {
        "added": Combine(positive=False),
        "added, H >= 0": Combine(positive=True),
        "overlapped": Combine(positive=True, q=None),
        "max": Combine(positive=True, q=0.0),
    }
)
"""How a floor joins the GPU branch."""

Q_MAX = 1.25
"""Upper end of the prior of q, which is uniform from 0."""


def overlap_ms(gpu_ms: Any, floor_ms: Any, q: Any, xp: ModuleType | Any = np) -> Any:
    """(T^(1/q) + H^(1/q))^q: T + H at q = 1, max(T, H) at q = 0; ms, for NumPy and PyTensor alike.

    Parameters
    ----------
    gpu_ms, floor_ms : arrays, broadcast, ms, positive
    q : array or float, from 0
    """
    longer, shorter = xp.maximum(gpu_ms, floor_ms), xp.minimum(gpu_ms, floor_ms)
    ratio = xp.log(xp.maximum(shorter, 1e-12)) - xp.log(xp.maximum(longer, 1e-12))
    power = xp.maximum(q, 1e-3)  # below, the two differ from the maximum by less than 0.07 %
    return longer * xp.exp(power * xp.log1p(xp.exp(ratio / power)))


@dataclass(frozen=True)
class FloorStructure:
    """A floor structure: `shared_by` is a key of `SHARED_BY`, `combine` one of `COMBINE`.

    Attributes
    ----------
    combine_of : tuple of (class, combine)
        Classes whose floors join in another way, with H >= 0 as the others: a serving loop may synchronise for
        experts alone.
    terms : tuple of str
        Keys of `TERMS`: what the floor of each cell has beside what it shares, per SKU.

    Raises
    ------
    ValueError
        A name that is not registered (the message lists those that are), or signed and positive floors mixed.

    Examples
    --------
    >>> print(FloorStructure("gpu, model", "overlapped"))
    floor per (gpu, model), overlapped
    >>> print(FloorStructure("gpu", "added", terms=("sequence",)))
    floor per (gpu) + per sequence, added
    """

    shared_by: str = "gpu, class"
    combine: str = "added"
    combine_of: tuple[tuple[str, str], ...] = ()
    terms: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for field, value, table in (
            ("shared_by", self.shared_by, SHARED_BY),
            ("combine", self.combine, COMBINE),
            *(("combine", name, COMBINE) for _, name in self.combine_of),
            *(("term", name, TERMS) for name in self.terms),
        ):
            if value not in table:
                raise ValueError(f"floor {field} {value!r} is unknown: expected one of {sorted(table)}")
        if any(COMBINE[name].positive != self.positive for _, name in self.combine_of):
            raise ValueError("floors of one structure are either all signed or all H >= 0")
        if self.terms and self.sharing is None:
            raise ValueError("a structure without floors has no terms")
        if len(set(self.terms)) != len(self.terms):
            raise ValueError("a floor has each term once")

    def __str__(self) -> str:
        if self.sharing is None:
            return "no floor"
        other = "".join(f", {name} for {klass}" for klass, name in self.combine_of)
        terms = "".join(f" + per {TERMS[name].words}" for name in self.terms)
        return f"floor per ({self.shared_by}){terms}, {self.combine}{other}"

    @property
    def sharing(self) -> Sharing | None:
        """Who shares, or None where the structure has no floor."""
        return SHARED_BY[self.shared_by]

    @property
    def positive(self) -> bool:
        """Whether floors are H >= 0."""
        return COMBINE[self.combine].positive

    @property
    def q_free(self) -> bool:
        """Whether the overlap q is a parameter."""
        return self.sharing is not None and any(
            COMBINE[name].q is None for name in (self.combine, *(n for _, n in self.combine_of))
        )

    def q_of(self, classes: NDArray[np.str_]) -> NDArray[np.float64]:
        """q of each cell's class [cell]; NaN where it is the parameter."""
        by_class = dict(self.combine_of)
        values = {k: COMBINE[by_class.get(k, self.combine)].q for k in dict.fromkeys(classes.tolist())}
        return np.array([np.nan if values[k] is None else values[k] for k in classes.tolist()], dtype=float)

    def step_ms(self, gpu_ms: Any, floor_ms: Any, q: Any = 1.0, xp: ModuleType | Any = np) -> Any:
        """Step time in ms from the GPU branch and the floor, both in ms and broadcast; `q` only where H >= 0."""
        return overlap_ms(gpu_ms, floor_ms, q, xp) if self.positive else gpu_ms + floor_ms

    def term_units(self, sequences: Any, layers: Any) -> dict[str, NDArray[np.float64]]:
        """What each term is counted in, by the name of its parameter, from sequences and layers of cells [...]."""
        return {TERMS[name].parameter: np.asarray(TERMS[name].column(sequences, layers)) for name in self.terms}

    def host_ms(self, each: Callable[[str], Any], sequences: Any, layers: Any) -> Any:
        """Host time of all terms in cells, ms [..., cell]; 0.0 where there is none.

        Parameters
        ----------
        each : callable
            The value of a parameter in every cell, ms [..., cell].
        sequences, layers : arrays [..., cell]
        """
        units = self.term_units(sequences, layers)
        return sum((each(name) * column for name, column in units.items()), start=0.0)

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


PER_MODEL = FloorStructure("gpu, model", "added")
"""What the hypotheses of a published study are tested under: a floor of each model on each SKU."""
PER_SEQUENCE = FloorStructure("gpu, model", "added", terms=("sequence",))
"""What those on measured cells are tested under by default: beside it host time per sequence, which is the SKU's."""


@dataclass(frozen=True, eq=False)
class Groups:
    """Groups that share a floor: the name of their dimension, their labels, and their code [cell]."""

    dim: str | None
    labels: tuple[str, ...]
    code: NDArray[np.int64]

    def including(self, label: str) -> "Groups":
        """The same groups, with `label` among them."""
        return self if label in self.labels else Groups(self.dim, (*self.labels, label), self.code)
