"""A cut as two models: constants from the anchor's cells alone, floors of all others given them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from rooffloor.models.floor.structures import FloorStructure
from rooffloor.models.inference.layout import KnownFloors
from rooffloor.models.inference.priors import DEFAULT_PRIORS, Priors
from rooffloor.models.inference.step_distribution import efficiency_of
from rooffloor.models.inference.steps import StepModel
from rooffloor.models.roof.kernels import Work, launches_of, layers_of
from rooffloor.models.roof.roofline import Efficiency, work_ms
from rooffloor.models.specs.cells import Cells

type Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class CutModels:
    """The two stages of a cut, for `sampling` and `cut`: fit `upstream`, then `cut(..., downstream, data_of)`.

    Attributes
    ----------
    upstream : StepModel
        The anchor's cells alone, constants free, one floor per SKU.
    downstream : StepModel
        All other cells, constants fixed; floors given the anchor's.
    data_of : callable
        One upstream draw, by name, to the data of the downstream model.
    """

    upstream: StepModel
    downstream: StepModel
    data_of: Callable[[Mapping[str, Array]], dict[str, Array]]


def cut_models(
    cells: Cells,
    work: Work,
    classes: Mapping[str, str],
    structure: FloorStructure,
    anchor: str,
    *,
    constants: Literal["free", "free per gpu"] = "free",
    priors: Priors = DEFAULT_PRIORS,
    query_heads: bool = False,
    likelihood: Literal["normal", "student"] = "normal",
) -> CutModels:
    """Models of the two stages of a cut at the model `anchor`; arguments as in `build_model`.

    Upstream draws η, the noise and the anchor's floors jointly. Downstream takes η as T_gpu and the
    anchor's floors as known, and has noise of its own; the anchor's cells do not re-enter. Models that
    share the anchor's group under the structure have its floors and no others: use "gpu, model" for floors
    of their own.

    Raises
    ------
    ValueError
        The anchor has no cells, or nothing else has; or constants are per SKU, and it has none on one.
    """
    is_anchor = cells.model == anchor
    if not is_anchor.any() or is_anchor.all():
        raise ValueError(f"a cut needs cells of the anchor {anchor!r} and of other models")
    here, there = cells.where(is_anchor), cells.where(~is_anchor)
    # One model does not show how a floor grows with launches: upstream has its floor alone.
    latency = structure.sharing is not None and structure.sharing.kernel_latency
    keep = structure.sharing is None or latency
    floor = structure if keep else replace(structure, shared_by="gpu")
    options: dict[str, Any] = {"priors": priors, "likelihood": likelihood}
    upstream = StepModel(here, work.where(is_anchor), classes, floor, constants, query_heads=query_heads, **options)
    other = work.where(~is_anchor)
    known = None
    if structure.sharing is not None:
        launches = float(launches_of(work.where(is_anchor)).mean())
        known = KnownFloors(anchor, dict.fromkeys(here.gpus, 1.0), launches=launches)
    if constants == "free per gpu" and (lacking := [gpu for gpu in there.gpus if gpu not in here.gpus]):
        raise ValueError(f"constants of {lacking[0]} are unknown: the anchor {anchor!r} has no cells there")
    code = np.array([here.gpus.index(gpu) for gpu in there.gpu]) if constants == "free per gpu" else None
    start = work_ms(other, Efficiency.peak())
    of_cells = other.tokens, layers_of(other)
    term_code = np.array([here.gpus.index(gpu) if gpu in here.gpus else -1 for gpu in there.gpu])
    # Signed floors are added, and so are their terms: given, they go with T_gpu.
    given = structure if structure.positive else replace(structure, terms=())
    downstream = StepModel(there, other, classes, given, "fixed", gpu_ms=start, known=known, **options)

    def data_of(draw: Mapping[str, Array]) -> dict[str, Array]:
        one = {name: np.asarray(value)[None, None] for name, value in draw.items()}
        data = {"gpu_ms": work_ms(other, efficiency_of(one, code))[0]}
        if structure.terms:
            host = structure.host_ms(lambda name: per_sku(np.asarray(draw[name]), term_code), *of_cells)
            if structure.positive:
                data["host_ms"] = np.asarray(host)
            else:
                data["gpu_ms"] = data["gpu_ms"] + host
        if known is not None:
            data["anchor_floor_ms"] = draw["floor_ms"]
        if "q" in draw:
            data["anchor_q"] = draw["q"]
        return data

    return CutModels(upstream, downstream, data_of)


def per_sku(values: Array, code: NDArray[np.int64]) -> Array:
    """A term of the floor in each cell, [..., cell], from its value on each SKU of the anchor [..., gpu].

    `code` [cell] is -1 on another SKU: there the geometric mean of those of the anchor.
    """
    elsewhere = np.exp(np.log(values).mean(-1, keepdims=True))
    return np.where(code >= 0, values[..., code], elsewhere)
