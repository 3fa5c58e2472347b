"""The roofline: efficiency constants turn work into kernel times and T_gpu, in NumPy and PyTensor alike."""

import functools
import operator
from collections.abc import Iterable
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from rooffloor.models.roof.blocks import LARGE, SMALL, by_block, checked
from rooffloor.models.roof.kernels import (
    KERNELS,
    Counts,
    Experts,
    Floats,
    PeakTimes,
    Work,
    decode_work,
    peak_times,
    step_counts,
    with_cache,
)
from rooffloor.models.specs.gpus import GpuSpec
from rooffloor.models.specs.gpus import resolve as resolve_gpu
from rooffloor.models.specs.shapes import ModelShapes
from rooffloor.models.specs.shapes import resolve as resolve_shapes

CONSTANTS: tuple[str, ...] = ("eta_tc", "eta_bw", "eta_fa", "l_half", "latency_ms", "rho_q")
"""Names of the efficiency constants, in the order of the fields of `Efficiency`."""

_ATTENTION = KERNELS.index("attention")
_LARGEST_TABLE = 16384
"""Whole batches up to here are looked up."""


@dataclass(frozen=True, eq=False)
class Efficiency:
    """Efficiency constants, and what they were fitted on.

    Each constant is a number, an array [...] that broadcasts against the cells (for example (chain, 1)
    against (cell,) gives (chain, cell)), or a PyTensor variable.

    Attributes
    ----------
    eta_tc, eta_bw, eta_fa
        Tensor-core ceiling, DRAM streaming of weights, attention's cache read; all in (0, 1].
    l_half
        Tokens by which attention reads as if the context were longer; from 0.
    latency_ms
        Fixed time per launch, ms (extension `latency`); from 0.
    rho_q
        Bandwidth of attention's read per query head over DRAM bandwidth (extension `query heads`); above 0,
        None: off.
    gpu, stack, mode : str
        Where the constants were fitted; empty: not fitted, or for all alike.

    Raises
    ------
    ValueError
        A concrete number lies outside its range.

    Examples
    --------
    >>> Efficiency(eta_bw=0.8, l_half=200.0).eta_fa
    1.0
    """

    eta_tc: Any = 1.0
    eta_bw: Any = 1.0
    eta_fa: Any = 1.0
    l_half: Any = 0.0
    latency_ms: Any = 0.0
    rho_q: Any = None
    gpu: str = ""
    stack: str = ""
    mode: str = ""

    def __post_init__(self) -> None:
        for name in CONSTANTS:
            value = getattr(self, name)
            if (name == "rho_q" and value is None) or hasattr(value, "owner"):  # off, or a PyTensor variable
                continue
            if isinstance(value, bool) or not isinstance(value, int | float | np.ndarray | np.number):
                raise ValueError(f"{name} must be a number or an array, got {value!r}")
            array = np.asarray(value)
            good, expected = (array >= 0) & np.isfinite(array), "0 or more"
            if name.startswith("eta"):
                good, expected = (array > 0) & (array <= 1), "in (0, 1]"
            elif name == "rho_q":
                good, expected = good & (array > 0), "above 0"
            if not np.all(good):
                raise ValueError(f"{name} must be {expected}, got {array[~good].flat[0]:g}")

    @classmethod
    @functools.cache
    def peak(cls) -> "Efficiency":
        """Peak rates: all eta 1, no latency, no extension."""
        return cls()

    @functools.cached_property
    def numbers(self) -> tuple[float | None, ...] | None:
        """The constants, in the order of `CONSTANTS`, where each is one number; else None."""
        values = [getattr(self, name) for name in CONSTANTS]
        if any(np.ndim(value) or hasattr(value, "owner") for value in values):
            return None
        return tuple(None if value is None else float(value) for value in values)


def _constants(efficiency: Efficiency, kernel_axis: bool) -> SimpleNamespace:
    """The constants, shaped to meet arrays: with one more axis of length 1 where the work has a kernel axis."""
    values: dict[str, Any] = {name: getattr(efficiency, name) for name in CONSTANTS}
    return SimpleNamespace(**{n: v[..., None] if kernel_axis and np.ndim(v) else v for n, v in values.items()})


def _none(value: Any) -> bool:
    """Whether something is the number 0, whose terms are left out; of arrays and variables nothing is known."""
    return type(value) is float and value == 0.0


def _limbs_ms(times: PeakTimes, c: SimpleNamespace) -> tuple[Any, Any, Any]:
    """Time of the compute limb, the DRAM limb and the query-head limb (None where off), ms; any shape."""
    compute, memory = times.compute_ms / c.eta_tc, times.stream_ms / c.eta_bw
    if not (_none(times.kv_ms) and _none(times.kv_token_ms)):
        memory = memory + (times.kv_ms + c.l_half * times.kv_token_ms) / c.eta_fa
    return compute, memory, None if c.rho_q is None else times.query_ms / c.rho_q


def _kernel_ms(times: PeakTimes, c: SimpleNamespace, xp: ModuleType | Any) -> Any:
    """The largest limb and the latency of the launches, ms; any shape."""
    compute, longest, query = _limbs_ms(times, c)
    if not _none(times.compute_ms):
        longest = xp.maximum(compute, longest)
    if query is not None and not _none(times.query_ms):
        longest = xp.maximum(longest, query)
    return longest if _none(c.latency_ms) else longest + c.latency_ms * times.launches


def combine(work: Work | PeakTimes, efficiency: Efficiency, xp: ModuleType | Any = np) -> Any:
    """Time of each kernel, ms.

    Parameters
    ----------
    work : Work or PeakTimes
        Arrays [..., kernel], NumPy or PyTensor.
    efficiency : Efficiency
    xp : module
        numpy or pytensor.tensor.

    Returns
    -------
    array [..., kernel]

    Notes
    -----
    t = max(flops / (peak eta_tc occupancy),
    bytes / (bandwidth eta_bw) + kv_bytes (L + L_half)/L / (bandwidth eta_fa),
    query bytes / (bandwidth rho_q)) + latency launches.

    The cache term is written as kv_bytes + L_half times the bytes of one token, which is finite at L = 0.
    Only attention has cache and query bytes. Every operation is monotone in floating point, so t is never
    below its bytes at peak bandwidth.
    """
    times = work.peak_times if isinstance(work, Work) else work
    return _kernel_ms(times, _constants(efficiency, kernel_axis=True), xp)


def total_ms(kernel_ms: Any) -> Any:
    """Sum over the kernel axis, [..., kernel] -> [...]; left to right, so that all implementations agree."""
    total = kernel_ms[..., 0]
    for kernel in range(1, len(KERNELS)):
        total = total + kernel_ms[..., kernel]
    return total


def work_ms(work: Work, efficiency: Efficiency, xp: ModuleType | Any = np) -> Any:
    """T_gpu [...] of work that is already counted, ms: `total_ms(combine(work, efficiency, xp))` to the last bit.

    Sums kernel by kernel without an array [..., kernel]: several times faster with many chains. `xp` is numpy or
    pytensor.tensor, the latter for constants that are PyTensor variables.
    """
    constants = _constants(efficiency, kernel_axis=False)
    return functools.reduce(operator.add, (_kernel_ms(times, constants, xp) for times in work.kernel_peak_times))


class _Step(NamedTuple):
    """What the time of a step depends on beside cell and constants; `unavoidable`: that of its bytes floor."""

    shapes: ModelShapes
    gpu: GpuSpec
    experts: Experts
    unavoidable: bool = False

    def kernel_ms(self, counts: Counts, c: SimpleNamespace) -> Any:
        """Time of one kernel, [...]."""
        counts = counts.unavoidable() if self.unavoidable else counts
        return _kernel_ms(peak_times(counts, self.gpu.peak_flops, self.gpu.bandwidth), c, np)

    def columns(self, tokens: Any, c: SimpleNamespace) -> "_Columns":
        """What the context leaves alone, for `tokens` [...]."""
        counts = step_counts(self.shapes, tokens, self.gpu, self.experts)
        times = [self.kernel_ms(own, c) for own in counts.values()]
        after = tuple(ms for ms in times[_ATTENTION + 1 :] if np.any(ms))
        return _Columns(counts["attention"], functools.reduce(operator.add, times[:_ATTENTION]), after)

    def total_ms(self, columns: "_Columns", rows: Any, tokens: Any, cached: Any, c: SimpleNamespace) -> Any:
        """The kernels [...] in the order of `KERNELS`, as `total_ms` adds them, from these rows of the columns."""
        attention, spilled = columns.attention, columns.attention.bytes
        if isinstance(spilled, np.ndarray):
            attention = attention._replace(bytes=spilled[rows])
        attention = with_cache(attention, self.shapes, tokens, cached, per_query_head=c.rho_q is not None)
        total = _rows(columns.before, rows) + self.kernel_ms(attention, c)
        for ms in columns.after:
            total += _rows(ms, rows)
        return total


class _Columns(NamedTuple):
    """A step without its cache read, by batch [...]: attention, the time before it, that of each kernel after it."""

    attention: Counts
    before: Any
    after: tuple[Any, ...]


def _rows(values: Any, index: Any) -> Any:
    return values[index] if isinstance(values, np.ndarray) else values


def _named(constants: Iterable[Any]) -> SimpleNamespace:
    return SimpleNamespace(**dict(zip(CONSTANTS, constants, strict=True)))


@functools.lru_cache(maxsize=32)
def _table(step: _Step, numbers: tuple[float | None, ...], rows: int) -> tuple[_Columns, SimpleNamespace]:
    """The columns of batches 1 to `rows`, and the constants by name."""
    c = _named(numbers)
    return step.columns(np.arange(1.0, rows + 1), c), c


def _step_ms(step: _Step, batch: ArrayLike, context: ArrayLike, efficiency: Efficiency) -> Floats:
    """The time of a step at cells [...], ms: to the last bit `total_ms` of its kernels, without an array of them.

    Cells are taken block by block. Where the constants are numbers, whole batches are looked up in a table of what
    the context leaves alone.
    """
    tokens, cached = checked(batch, context)
    if efficiency.numbers is None:
        constants = [np.asarray(np.nan if c is None else c) for c in (getattr(efficiency, name) for name in CONSTANTS)]

        def direct(tokens: Any, cached: Any, *arrays: Any) -> Any:
            c = _named(arrays)
            c.rho_q = None if efficiency.rho_q is None else c.rho_q
            return step.total_ms(step.columns(tokens, c), (), tokens, cached, c)

        return by_block(direct, tokens, cached, *constants, size=LARGE)

    largest = int(tokens.max(initial=1.0) if tokens.ndim else tokens) - 1
    rows = min(1 << largest.bit_length(), _LARGEST_TABLE)
    table, c = _table(step, efficiency.numbers, rows)

    def looked_up(tokens: Any, cached: Any) -> Any:
        if largest < rows or tokens.max() <= rows:
            index = tokens.astype(np.intp)
            if (index == tokens).all():
                return step.total_ms(table, index - 1, tokens, cached, c)
        return step.total_ms(step.columns(tokens, c), (), tokens, cached, c)

    if not (tokens.ndim or cached.ndim):
        return looked_up(np.float64(tokens), np.float64(cached))
    few = tokens.flat[:SMALL]
    return by_block(looked_up, tokens, cached, size=SMALL if np.all((few == np.rint(few)) & (few <= rows)) else LARGE)


def gpu_ms(
    shapes: str | ModelShapes,
    gpu: str | GpuSpec,
    batch: ArrayLike,
    context: ArrayLike,
    efficiency: Efficiency | None = None,
    experts: Experts = "active",
) -> Floats:
    """T_gpu: the GPU-compute branch of one decode step, ms.

    Parameters
    ----------
    shapes : ModelShapes or str
    gpu : GpuSpec or str
    batch, context : arrays [...], broadcast
        Sequences in the step (from 1), tokens in the cache before it (from 0).
    efficiency : Efficiency, optional
        Default: peak.
    experts : {"active", "distinct", "balanced"}

    Returns
    -------
    float array [...]
        Never below `bytes_floor_ms` of the same arguments.

    Raises
    ------
    ValueError
        Unknown names, a batch below 1, a negative context.

    Examples
    --------
    >>> gpu_ms("Llama-3.1-8B", "H100", [1, 16], 2048).round(2)
    array([4.56, 5.76])
    """
    return _step_ms(
        _Step(resolve_shapes(shapes), resolve_gpu(gpu), experts), batch, context, efficiency or Efficiency.peak()
    )


def breakdown_ms(
    shapes: str | ModelShapes,
    gpu: str | GpuSpec,
    batch: ArrayLike,
    context: ArrayLike,
    efficiency: Efficiency | None = None,
    experts: Experts = "active",
) -> dict[str, Floats]:
    """T_gpu by kernel: arguments as `gpu_ms`; kernel -> float array [...], ms, in the order of `KERNELS`.

    Examples
    --------
    >>> parts = breakdown_ms("Llama-3.1-8B", "H100", 16, 2048)
    >>> round(float(parts["attention"]), 2)
    1.28
    """
    work = decode_work(shapes, batch, context, gpu=gpu, experts=experts)
    kernel_ms = combine(work, efficiency or Efficiency.peak())
    return {kernel: kernel_ms[..., k] for k, kernel in enumerate(KERNELS)}


def work_floor_ms(work: Work) -> Floats:
    """The bytes floor [...] of work that is already counted, ms; see `bytes_floor_ms`."""
    return total_ms(work.floor_bytes / work.bandwidth[..., None] * 1e3)


def bytes_floor_ms(
    shapes: str | ModelShapes, gpu: str | GpuSpec, batch: ArrayLike, context: ArrayLike, experts: Experts = "active"
) -> Floats:
    """(Linear weights + LM head + cache read) / peak bandwidth: arguments as `gpu_ms`; float array [...], ms.

    With `experts="active"` it is the physical minimum: top_k routed experts and the shared one.

    Examples
    --------
    >>> round(float(bytes_floor_ms("Llama-3.1-8B", "H100", 1, 0)), 2)
    4.48
    """
    step = _Step(resolve_shapes(shapes), resolve_gpu(gpu), experts, unavoidable=True)
    return _step_ms(step, batch, context, Efficiency.peak())


def gradient_ms(work: Work, efficiency: Efficiency) -> dict[str, Floats]:
    """Derivative of T_gpu by each efficiency constant.

    Returns
    -------
    dict from constant to float array [...]
        ms per unit of the constant; `rho_q` only where it is on. Where two limbs tie, the derivative of the DRAM limb.
    """
    c = _constants(efficiency, kernel_axis=False)
    bound: dict[str, Any] = dict.fromkeys(("compute", "stream", "kv", "kv_token", "query", "launches"), 0.0)
    for times in work.kernel_peak_times:  # sum what each limb holds over the kernels that it binds
        compute, memory, query = _limbs_ms(times, c)
        by_memory, by_query = _where(compute <= memory), 0.0
        if query is not None:
            by_query = _where(query > np.maximum(compute, memory))
            by_memory = by_memory * (1.0 - by_query)
        by_compute = 1.0 - by_memory - by_query
        for limb, mask in (
            ("compute", by_compute),
            ("stream", by_memory),
            ("kv", by_memory),
            ("kv_token", by_memory),
            ("query", by_query),
        ):
            bound[limb] = bound[limb] + mask * getattr(times, f"{limb}_ms")
        bound["launches"] = bound["launches"] + times.launches
    gradient = {
        "eta_tc": -bound["compute"] / c.eta_tc**2,
        "eta_bw": -bound["stream"] / c.eta_bw**2,
        "eta_fa": -(bound["kv"] + c.l_half * bound["kv_token"]) / c.eta_fa**2,
        "l_half": bound["kv_token"] / c.eta_fa,
        "latency_ms": bound["launches"],
    }
    if c.rho_q is not None:
        gradient["rho_q"] = -bound["query"] / c.rho_q**2
    shape = np.broadcast_shapes(work.tokens.shape, *(np.shape(v) for v in vars(c).values() if v is not None))
    return {name: np.broadcast_to(value, shape) for name, value in gradient.items()}


def _where(mask: Any) -> Any:
    """A mask as numbers 0 and 1; a single number where all agree, which spares a sampler large arrays."""
    if np.all(mask):
        return 1.0
    return np.asarray(mask, dtype=float) if np.any(mask) else 0.0
