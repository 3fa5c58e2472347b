"""A model of decode steps, as its two forms read it: PyMC's (`step_model`) and the compiled density's (`density`).

`StepModel` holds what is fitted to what, checked; which parameters there are, with dims and coords; and the data that a
refit may replace.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rooffloor.models.floor.structures import Q_MAX, TERMS, FloorStructure
from rooffloor.models.inference import packing
from rooffloor.models.inference.layout import KnownFloors, Layout, noise_basis
from rooffloor.models.inference.packing import IDENTITY, LOG, LOGIT, Parameter, Tables
from rooffloor.models.inference.priors import DEFAULT_PRIORS, Priors
from rooffloor.models.roof.kernels import KERNELS, PeakTimes, Work, launches_of, layers_of
from rooffloor.models.specs.cells import Cells

type Array = NDArray[np.float64]

TIMES = tuple(f.name for f in fields(PeakTimes))
ETA = ("eta_bw", "eta_fa", "eta_tc")
UNITS = "units of "
"""Before the parameter of a term of the floor: the data that it multiplies, [cell]."""


@dataclass(frozen=True, eq=False)
class StepModel:
    """Measured steps under one floor structure; what a refit may change is `data`.

    Attributes
    ----------
    cells : Cells
        Measured cells, with `step_ms`; `step_sd_ms` where part of the noise is known.
    work : Work or None
        FLOPs and bytes of the cells [cell, kernel] with their hardware; needed with free constants, and for
        their launches where floors grow with them.
    classes : mapping of model name to class
    structure : FloorStructure
    constants : "fixed", "free" or "free per gpu"
        Fixed: T_gpu is the data `gpu_ms` (imputed grids; the second stage of the cut). Free: η are
        parameters, one set for all SKUs or one for each.
    gpu_ms : array [cell], ms
        T_gpu, with fixed constants.
    priors : Priors
    query_heads : bool
        With free constants: attention is also bound by the bytes of its query heads, at rate ``rho_q``.
    likelihood : "normal" or "student"
    known : KnownFloors or None
        Floors of the anchor's group, taken as they are; the other floors follow the hierarchy given them.

    Raises
    ------
    ValueError
        Cells without steps, without `work` or `gpu_ms` where needed, or with names that `classes` lacks.
    """

    cells: Cells
    work: Work | None
    classes: Mapping[str, str]
    structure: FloorStructure
    constants: Literal["fixed", "free", "free per gpu"]
    gpu_ms: ArrayLike | None = None
    priors: Priors = DEFAULT_PRIORS
    query_heads: bool = False
    likelihood: Literal["normal", "student"] = "normal"
    known: KnownFloors | None = None
    layout: Layout | None = field(init=False)

    def __post_init__(self) -> None:
        if self.cells.step_ms is None or len(self.cells) == 0:
            raise ValueError("a model needs measured cells: step_ms is missing or empty")
        if self.constants == "fixed" and self.gpu_ms is None:
            raise ValueError("constants='fixed' needs gpu_ms")
        if self.constants != "fixed" and self.work is None:
            raise ValueError("constants='free' needs work")
        if (self.per_launch or self.terms) and self.work is None:
            raise ValueError("floors that grow with launches or sequences need work")
        sharing = self.structure.sharing
        layout = None if sharing is None else Layout.of(self.cells, self.classes, self.structure, self.known)
        object.__setattr__(self, "layout", layout)

    @property
    def per_launch(self) -> bool:
        """Whether floors grow with launches."""
        return self.structure.sharing is not None and self.structure.sharing.per_launch

    @property
    def terms(self) -> tuple[str, ...]:
        """Parameters of the floor's terms; none where host time is given with the anchor's floors."""
        return () if self.known is not None else tuple(TERMS[name].parameter for name in self.structure.terms)

    @property
    def host_given(self) -> bool:
        """Whether host time of the terms is data: in the second stage of a cut."""
        return self.known is not None and bool(self.structure.terms)

    @property
    def latency(self) -> bool:
        """Whether each launch costs a latency inside T_gpu that is a parameter."""
        sharing = self.structure.sharing
        return self.constants != "fixed" and sharing is not None and sharing.kernel_latency

    @property
    def positive(self) -> bool:
        """Whether the model has floors, H >= 0."""
        return self.layout is not None and self.structure.positive

    @property
    def q_sampled(self) -> bool:
        """Whether q is a parameter."""
        return self.structure.q_free and self.known is None

    @property
    def ridge(self) -> bool:
        """Whether eta_bw is measured from where the floors' hierarchy expects it (``z_eta_bw``).

        Signed floors of few pairs and eta_bw are one column: the hierarchy alone tells them apart, the more sharply the
        smaller its scales, which is a funnel otherwise.
        """
        has_floors = self.layout is not None and self.layout.measured.shape[1] > 0
        return self.constants == "free" and has_floors and not self.positive

    @cached_property
    def scales(self) -> dict[str, str]:
        """Effects "gpu", "group", "pair" that floors have, and the names of their scales in the posterior."""
        if self.layout is None:
            return {}
        unit, dim = "" if self.positive else "_ms", self.layout.dim
        names = {"gpu": "gpu"} if dim is None else {"gpu": "gpu", "group": dim, "pair": "pair"}
        return {effect: f"floor_sd_{name}{unit}" for effect, name in names.items()}

    @cached_property
    def launches_at(self) -> float:
        """Kernel launches at which floors are stated: the mean of the cells, or the anchor's."""
        if not self.per_launch:
            return 0.0
        assert self.work is not None
        if self.known is not None and self.known.launches:
            return self.known.launches
        return float(launches_of(self.work).mean())

    # ---- data -------------------------------------------------------------------------------------------------------

    @cached_property
    def data_dims(self) -> dict[str, tuple[str, ...]]:
        """Dims of the data."""
        dims = {name: ("cell", "kernel") if np.ndim(value) == 2 else ("cell",) for name, value in self.data.items()}
        other = {"anchor_floor_ms": ("anchor_gpu",), "anchor_q": ()}
        return dims | {name: own for name, own in other.items() if name in self.data}

    @cached_property
    def data(self) -> dict[str, Any]:
        """What a refit may replace, by name: arrays of cells, the anchor's floors and q."""
        cells, layout, rows = self.cells, self.layout, len(self.cells)
        known_sd = np.zeros(rows) if cells.step_sd_ms is None else cells.step_sd_ms
        data: dict[str, Any] = {
            "measured_ms": cells.step_ms,
            "known_sd_ms": known_sd,
            "noisy_model_code": cells.model_code,
        }
        if self.constants == "fixed":
            data["gpu_ms"] = np.broadcast_to(np.asarray(self.gpu_ms, dtype=float), rows)
        else:
            assert self.work is not None
            shape = self.work.flops.shape
            data |= {n: np.broadcast_to(getattr(self.work.peak_times, n), shape).astype(float) for n in TIMES}
        if self.constants == "free per gpu":
            data["constants_gpu_code"] = cells.gpu_code
        if layout is None:
            return data
        data["pair_code"] = layout.code
        if len(layout.known_ms):
            data["anchor_floor_ms"] = layout.known_ms
        if self.positive:
            fixed = self.structure.q_of(np.array([self.classes[m] for m in cells.models]))[cells.model_code]
            if not np.isnan(fixed).all():
                data["overlap"] = np.nan_to_num(fixed)
                data |= {"overlap_free": np.isnan(fixed).astype(float)} if self.structure.q_free else {}
            if self.structure.q_free and self.known is not None:
                data["anchor_q"] = np.asarray(self.known.q, dtype=float)
        if self.per_launch:
            assert self.work is not None
            data |= {"relative_launches": launches_of(self.work) / self.launches_at, "launch_gpu_code": cells.gpu_code}
        if self.host_given:
            data["host_ms"] = np.zeros(rows)
        elif self.terms:
            assert self.work is not None
            rows_of = self.work.tokens, layers_of(self.work)
            data |= {UNITS + name: _floats(units) for name, units in self.structure.term_units(*rows_of).items()}
            data["term_gpu_code"] = cells.gpu_code
        return data

    @cached_property
    def coords(self) -> dict[str, Any]:
        """Labels along the dims of parameters and data."""
        cells, layout, models = self.cells, self.layout, len(self.cells.models)
        coords: dict[str, Any] = {"cell": np.arange(len(cells)), "noisy_model": list(cells.models)}
        if self.constants != "fixed":
            coords["kernel"] = list(KERNELS)
        if self.constants == "free per gpu":
            coords["constants_gpu"] = list(cells.gpus)
        if models > 1:
            coords["noise_contrast"] = np.arange(models - 1)
        if self.per_launch:
            coords["launch_gpu"] = list(cells.gpus)
        if self.terms:
            coords["term_gpu"] = list(cells.gpus)
        if layout is None:
            return coords
        coords["gpu"] = list(layout.gpus)
        if layout.dim is not None:
            coords[layout.dim] = list(layout.labels)
        if len(layout.known_ms):
            coords["anchor_gpu"] = [layout.gpus[k] for k in layout.known[0]]
        if n := layout.measured.shape[1]:
            coords |= {"pair": layout.names(layout.measured), "contrast": np.arange(n)}
        if layout.unmeasured.shape[1]:
            coords["unmeasured"] = layout.names(layout.unmeasured)
        return coords

    # ---- parameters ------------------------------------------------------------------------------------------------

    @cached_property
    def parameters(self) -> tuple[Parameter, ...]:
        """What the sampler moves, in the order of x."""
        found: list[Parameter] = []
        at = 0

        def add(name: str, transform: int, start: float, dims: tuple[str, ...] = (), upper: float = 1.0) -> None:
            nonlocal at
            size = int(np.prod([len(self.coords[d]) for d in dims], dtype=int))
            found.append(Parameter(name, dims, slice(at, at + size), transform, start, upper))
            at += size

        p = self.priors
        if self.constants != "fixed":
            own = ("constants_gpu",) if self.constants == "free per gpu" else ()
            for name in ETA:
                mean = getattr(p, name)[0]
                if name == "eta_bw" and self.ridge:
                    add("z_eta_bw", IDENTITY, 0.0)
                else:
                    add(name, LOGIT, float(np.log(mean / (1.0 - mean))), own)
            add("l_half", LOG, float(np.log(p.l_half[0])), own)
            if self.query_heads:
                add("rho_q", LOG, float(np.log(p.rho_q[0])), own)
            if self.latency:
                add("latency_ms", LOG, float(np.log(p.launch_ms[0])), own)
        add("noise_spread", LOG, float(np.log(p.noise_spread)))
        add("z_noise_level", IDENTITY, 0.0)
        add("z_noise_mean", IDENTITY, 0.0)
        if len(self.cells.models) > 1:
            add("z_noise", IDENTITY, 0.0, ("noise_contrast",))
        add("noise_ms", LOG, float(np.log(p.noise_ms[0])))
        if self.likelihood == "student":
            add("student_nu", LOG, float(np.log(p.student_nu[0] / p.student_nu[1])))
        if self.q_sampled:
            add("q", LOGIT, 0.0, upper=Q_MAX)
        if self.per_launch and self.positive:
            add("launch_share", LOGIT, 0.0, ("launch_gpu",))
        elif self.per_launch:
            add("launch_ms", LOG, float(np.log(p.launch_ms[0])), ("launch_gpu",))
        for name in self.terms:
            add(name, LOG, float(np.log(0.5 * getattr(p, name)[1])), ("term_gpu",))
        for effect, name in self.scales.items():
            add(name, LOG, float(np.log(p.floor_scale(effect, self.positive))))
        for name, dim in (("z_floor", "contrast"), ("z_unmeasured", "unmeasured")):
            if dim in self.coords:
                add(name, IDENTITY, 0.0, (dim,))
        return tuple(found)

    @property
    def size(self) -> int:
        """Length of x."""
        return self.parameters[-1].at.stop

    @cached_property
    def dims(self) -> dict[str, tuple[str, ...]]:
        """Dims of every variable of the posterior and of the data."""
        dims = self.data_dims | {p.name: p.dims for p in self.parameters}
        dims |= {"noise_level": (), "launches_at_floor": ()} | ({"eta_bw": ()} if self.ridge else {})
        dims |= dict.fromkeys(("noise_own", "noise_relative"), ("noisy_model",))
        if self.layout is not None:
            dims["floor_ms"] = ("gpu",) if self.layout.dim is None else ("gpu", self.layout.dim)
        return dims

    # ---- the compiled form ----------------------------------------------------------------------------------------

    def tables(self, data: Mapping[str, Any]) -> Tables:
        """Everything that the compiled density reads, with these data (of any number of cells)."""
        measured, layout = _floats(data["measured_ms"]), self.layout
        rows, nothing = len(measured), np.zeros(0)
        zeros, codes = np.zeros(rows), np.zeros(rows, dtype=np.int64)
        times = np.zeros((6, rows, 0))
        if self.constants != "fixed":
            stacked = np.stack([_floats(data[name]) for name in TIMES])
            times = np.ascontiguousarray(stacked[:, :, stacked.any((0, 1))])
        q_mode = packing.NO_OVERLAP
        if self.positive:
            q_mode = packing.Q_FREE if self.q_sampled else packing.Q_GIVEN
        growth = packing.NO_GROWTH
        if self.per_launch:
            growth = packing.GROWS_BY_SHARE if self.positive else packing.GROWS_BY_MS
        free = zeros if not self.structure.q_free else _floats(data.get("overlap_free", zeros + 1.0))
        known = _floats(data.get("anchor_floor_ms", nothing))
        basis, block, grid_basis, grid_block = (np.zeros((0, 0)), codes[:0]) * 2
        fill, fill_sd, start, order, size = np.zeros((0, 0)), nothing, nothing, codes[:0], codes[:0]
        if layout is not None:
            known = np.log(known) if self.positive else known
            (basis, block), (grid_basis, grid_block) = layout.contrasts(), layout.grid_contrasts()
            (fill, fill_sd), order = layout.fill(), layout.order
            centre = np.full(len(layout.gpus), self.priors.floor_level(self.positive)[0])
            centre[layout.known[0]] = known
            start, size = centre[layout.measured[0]], np.array(layout.size)
        return Tables(
            measured=measured,
            known_sd=_floats(data["known_sd_ms"]),
            branch=_floats(data.get("gpu_ms", nothing)),
            times=times,
            columns=np.ascontiguousarray(times[1:4].sum(-1)),
            overlap=_floats(data.get("overlap", zeros)),
            overlap_free=free,
            relative_launches=_floats(data.get("relative_launches", zeros)),
            units=np.ascontiguousarray(np.array([data[UNITS + name] for name in self.terms]).reshape(-1, rows)),
            host=_floats(data.get("host_ms", zeros)),
            pair=_codes(data.get("pair_code", codes)),
            model=_codes(data["noisy_model_code"]),
            constants_of=_codes(data.get("constants_gpu_code", codes)),
            launch_gpu=_codes(data.get("launch_gpu_code", codes)),
            term_gpu=_codes(data.get("term_gpu_code", codes)),
            sets=0 if self.constants == "fixed" else len(self.coords.get("constants_gpu", (0,))),
            ridge=self.ridge,
            query=self.query_heads and self.constants != "fixed",
            latency=self.latency,
            models=len(self.cells.models),
            noise_basis=np.ascontiguousarray(noise_basis(len(self.cells.models))),
            student=self.likelihood == "student",
            has_floor=layout is not None,
            positive=self.positive,
            grouped=layout is not None and layout.dim is not None,
            q_mode=q_mode,
            anchor_q=float(data.get("anchor_q", 1.0)),
            growth=growth,
            launch_gpus=len(self.coords.get("launch_gpu", ())),
            term_gpus=len(self.coords.get("term_gpu", ())),
            has_host=self.host_given or bool(self.terms),
            launches=self.launches_at,
            size=_codes(size),
            basis=np.ascontiguousarray(basis),
            block=_codes(block),
            start=_floats(start),
            known=_floats(known),
            fill=np.ascontiguousarray(fill),
            fill_sd=_floats(fill_sd),
            order=_codes(order),
            grid_basis=np.ascontiguousarray(grid_basis),
            grid_block=_codes(grid_block),
            **packing.prior_tables(self.priors, self.positive, self.terms),
        )

    def posterior(self, x: Array, grids: Array, logits: Array) -> dict[str, Array]:
        """Every variable of the posterior from draws x [draw, x], floors [draw, grid] and logits of eta_bw [draw].

        Floors as the density has them: logarithms where positive.
        """
        found: dict[str, Array] = {}
        for p in self.parameters:
            values = p.value(x[:, p.at])
            found[p.name] = values.reshape(len(x), *(len(self.coords[d]) for d in p.dims))
        if self.ridge:
            found["eta_bw"] = 1.0 / (1.0 + np.exp(-logits))
        mean0, sd, _, _, _ = packing.prior_tables(self.priors, self.positive)["noise"]
        spread, models = found["noise_spread"], len(self.cells.models)
        total = np.sqrt(sd**2 + spread**2 / models)
        mean = mean0 + total * found["z_noise_mean"]
        z_level = found["z_noise_level"]
        level = mean0 + sd / total * (sd * found["z_noise_mean"] + spread / np.sqrt(models) * z_level)
        off = found["z_noise"] @ noise_basis(models).T if models > 1 else np.zeros((len(x), 1))
        found["noise_level"] = level
        found["noise_own"] = ((mean - level) / spread)[:, None] + off
        found["noise_relative"] = np.exp(mean[:, None] + spread[:, None] * off)
        if self.per_launch:
            found["launches_at_floor"] = np.full(len(x), self.launches_at)
        if self.layout is not None:
            floors = np.exp(grids) if self.positive else grids
            shape = (len(x), *self.layout.size) if self.layout.dim is not None else (len(x), -1)
            found["floor_ms"] = floors.reshape(shape)
        return found


def _floats(values: Any) -> Array:
    return np.ascontiguousarray(values, dtype=float)


def _codes(values: Any) -> NDArray[np.int64]:
    return np.ascontiguousarray(values, dtype=np.int64)
