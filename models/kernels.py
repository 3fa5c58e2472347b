"""Kernels: FLOPs, bytes and launches of one decode step, kernel by kernel (NumPy only)."""

import functools
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from models.cells import Cells
from models.gpus import GpuSpec
from models.gpus import resolve as resolve_gpu
from models.shapes import BYTES_PER_VALUE, ModelShapes
from models.shapes import resolve as resolve_shapes

type Floats = NDArray[np.float64]
type Experts = Literal["active", "distinct", "balanced"]

KERNELS: tuple[str, ...] = (
    "embedding",
    "norms",
    "qkv",
    "rope",
    "kv_write",
    "attention",
    "attn_out",
    "router",
    "dispatch",
    "gate_up",
    "activation",
    "down",
    "shared_gate_up",
    "shared_down",
    "lm_head",
)
"""The kernel axis, one order for all models; a kernel that a model lacks is 0 there.

Each is summed over the layers. Residual additions are fused into the norms. `gate_up` and `down` are the
routed experts where there are experts.
"""

GROUPS: dict[str, tuple[str, ...]] = {
    "weights": ("qkv", "attn_out", "router", "gate_up", "down", "shared_gate_up", "shared_down", "lm_head"),
    "kv": ("attention",),
    "other": ("embedding", "norms", "rope", "kv_write", "dispatch", "activation"),
}
"""The kernels by what they read."""

EXPERTS: tuple[str, ...] = get_args(Experts.__value__)
"""Names of the choices of `experts_streamed`."""

_TILE_ROWS = 64


@dataclass(frozen=True, eq=False)
class PeakTimes:
    """Times at peak rates, ms, as `roofline.combine` needs them: NumPy or PyTensor, [..., kernel].

    Attributes
    ----------
    compute_ms
        FLOPs at the peak that the tile occupancy leaves.
    stream_ms
        Weights and activations at peak bandwidth.
    kv_ms, kv_token_ms
        Cache read at peak bandwidth, and the share of it that one more token of context adds.
    query_ms
        The cache read once per *query* head at peak bandwidth (extension `query heads`).
    launches
        Kernel launches.
    """

    compute_ms: Any
    stream_ms: Any
    kv_ms: Any
    kv_token_ms: Any
    query_ms: Any
    launches: Any


@dataclass(frozen=True, eq=False)
class Work:
    """What one decode step has to do, and the rates of the hardware that does it.

    Attributes
    ----------
    flops : float array [..., kernel]
        Floating-point operations of the matrix products.
    bytes : float array [..., kernel]
        DRAM traffic except the cache read: weights, biases, norms, cache write, embedding rows, dispatch, and
        any activation tensor larger than L2.
    kv_bytes, kv_token_bytes, query_bytes : float arrays [..., kernel]
        Cache read of all attended tokens; of one token of every sequence; of all attended tokens once per
        query head. 0 except for attention.
    floor_bytes : float array [..., kernel]
        The part that no implementation avoids: linear weights, LM head, cache read.
    occupancy : float array [..., kernel]
        Rows of the matrix product over the rows of the 64-row tiles that hold them.
    launches : float array [..., kernel]
    tokens, context : float arrays [...]
        Tokens in the step (one per sequence); tokens in the cache before it.
    peak_flops, bandwidth : float arrays [...]
        FLOP/s and bytes/s.
    """

    flops: Floats
    bytes: Floats
    kv_bytes: Floats
    kv_token_bytes: Floats
    query_bytes: Floats
    floor_bytes: Floats
    occupancy: Floats
    launches: Floats
    tokens: Floats
    context: Floats
    peak_flops: Floats
    bandwidth: Floats

    @functools.cached_property
    def peak_times(self) -> PeakTimes:
        """The times at peak rates (computed once)."""
        peak, bandwidth = self.peak_flops[..., None], self.bandwidth[..., None]
        return PeakTimes(
            self.flops / (peak * self.occupancy) * 1e3,
            self.bytes / bandwidth * 1e3,
            self.kv_bytes / bandwidth * 1e3,
            self.kv_token_bytes / bandwidth * 1e3,
            self.query_bytes / bandwidth * 1e3,
            self.launches,
        )

    @functools.cached_property
    def kernel_peak_times(self) -> tuple[PeakTimes, ...]:
        """The same by kernel: arrays [...], or 0.0 where a kernel has none; absent kernels left out."""
        columns = []
        for k in range(len(KERNELS)):
            column = {f.name: getattr(self.peak_times, f.name)[..., k] for f in fields(PeakTimes)}
            if any(values.any() for values in column.values()):
                columns.append({name: v.copy() if v.any() else 0.0 for name, v in column.items()})
        return tuple(PeakTimes(**column) for column in columns)

    def __repr__(self) -> str:
        return f"Work({self.tokens.shape} cells x {len(KERNELS)} kernels)"


def experts_streamed(shapes: ModelShapes, tokens: ArrayLike, experts: Experts = "active") -> Floats:
    """Routed experts per layer whose weights one step reads, a named choice.

    Parameters
    ----------
    shapes : ModelShapes
    tokens : array [...]
    experts : {"active", "distinct", "balanced"}
        `active`: top_k whatever the batch; `distinct`: E (1 - (1 - k/E)^tokens), the expected number of
        different experts under independent uniform routing; `balanced`: min(tokens k, E).

    Returns
    -------
    float array [...]

    Raises
    ------
    ValueError
        The choice is unknown.
    """
    tokens = np.asarray(tokens, dtype=float)
    total, k = shapes.experts, shapes.top_k
    if experts not in EXPERTS:
        raise ValueError(f"experts must be one of {', '.join(EXPERTS)}, got {experts!r}")
    if experts == "active" or not shapes.is_moe:
        return np.full(tokens.shape, float(k))
    if experts == "distinct":
        return total * (1.0 - (1.0 - k / total) ** tokens)
    return np.minimum(tokens * k, float(total))


def checked_axes(
    batch: ArrayLike, context: ArrayLike, *, least: float = 0.0, label: str = "context"
) -> tuple[Floats, Floats]:
    """Batch (from 1) and context (from `least`) as float arrays of one shape.

    Raises
    ------
    ValueError
        A value is no finite number in its range, or the shapes do not broadcast.
    """
    try:
        tokens, cached = np.broadcast_arrays(np.asarray(batch, dtype=float), np.asarray(context, dtype=float))
    except (TypeError, ValueError) as error:
        raise ValueError(f"batch and {label} must be numbers of shapes that broadcast ({error})") from error
    for name, values, lowest in (("batch", tokens, 1.0), (label, cached, least)):
        wrong = ~((values >= lowest) & np.isfinite(values))
        if wrong.any():
            raise ValueError(f"{name} must be a finite number from {lowest:g}, got {values[wrong].flat[0]:g}")
    return tokens, cached


def decode_work(
    shapes: str | ModelShapes,
    batch: ArrayLike,
    context: ArrayLike,
    *,
    gpu: str | GpuSpec,
    experts: Experts = "active",
) -> Work:
    """FLOPs, bytes and launches of one decode step.

    Parameters
    ----------
    shapes : ModelShapes or str
    batch, context : arrays [...], broadcast
        Sequences in the step (from 1), tokens in the cache before it (from 0).
    gpu : GpuSpec or str
        Gives the rates, and the L2 that decides which activations are DRAM traffic.
    experts : {"active", "distinct", "balanced"}
        See `experts_streamed`.

    Returns
    -------
    Work
        Arrays [..., kernel], the kernels in the order of `KERNELS`.

    Raises
    ------
    ValueError
        A batch below 1, a negative context, an unknown name or choice.

    Notes
    -----
    With M = batch tokens and 2 bytes a value:

    - *Matrix product*: 2 M weights FLOPs; bytes = weights + biases. Routed experts: FLOPs of top_k experts a
      token, bytes of the experts streamed. Rows per tile: M.
    - *Attention* over L cached tokens (at most the sliding window): 4 M L heads head_dim FLOPs a layer;
      bytes = M L times the cache bytes of a token. Rows per tile: the query heads that share a KV head, as
      in flash decoding (with M rows a batch of 1 would make grouped attention compute-bound, which it is
      not).
    - *Cache write*: M times the cache bytes of a token. *Embedding*: M rows (also of learned positions).
    - *Dispatch* in closed form: `router` reads its hidden x experts weights; `dispatch` gathers M rows into
      M top_k and scatters M top_k back into M, so it moves 2 M (top_k + 1) hidden values a layer, counted as
      DRAM traffic whether or not they fit into L2. Qwen1.5-MoE-A2.7B at M = 4 on an H100: 5.9 MB + 3.9 MB =
      2.9 us at peak bandwidth, 0.0049 to 0.0033 ms for an eta_bw of 0.6 to 0.9.
    - *Activations*: a tensor larger than L2 is written once by its producer and read once by its consumer.
    - *Launches*, one per kernel and layer as a fused inference engine has them: 2 norms (residual addition
      fused), qkv, rope, cache write, attention, output projection, up (and gate) as one, activation, down;
      router, 2 for dispatch; the routed experts as one grouped launch; the shared expert as two launches and
      an activation; query and key norms as one. Per step: embedding, final norm, LM head. An eager stack
      launches more; that is a matter of the floor.
    """
    shapes, gpu = resolve_shapes(shapes), resolve_gpu(gpu)
    tokens, cached = checked_axes(batch, context)
    attended = np.minimum(cached, shapes.sliding_window) if shapes.sliding_window else cached
    streamed = experts_streamed(shapes, tokens, experts)
    layers, hidden = shapes.layers, shapes.hidden
    query_width = shapes.heads * shapes.head_dim  # of one layer
    spilled = _spilled_bytes(shapes, tokens, gpu.l2_bytes)

    zero = np.zeros(tokens.shape)
    one = np.ones(tokens.shape)
    flops, traffic = dict.fromkeys(KERNELS, zero), dict.fromkeys(KERNELS, zero)
    floor, occupancy = dict.fromkeys(KERNELS, zero), dict.fromkeys(KERNELS, _occupancy(tokens))
    small = shapes.small_weights
    for kernel, weights in shapes.linear_weights.items():
        routed = shapes.is_moe and kernel in ("gate_up", "down")
        copies = streamed if routed else one
        flops[kernel] = 2.0 * tokens * weights * (shapes.top_k if routed else 1)
        floor[kernel] = copies * (weights * BYTES_PER_VALUE)
        traffic[kernel] = floor[kernel] + copies * (small.get(kernel, 0) * BYTES_PER_VALUE)
    traffic["norms"] = one * (small["norms"] * BYTES_PER_VALUE)
    traffic["embedding"] = tokens * (hidden * (2 if shapes.learned_positions else 1) * BYTES_PER_VALUE)
    traffic["kv_write"] = tokens * shapes.kv_bytes_per_token
    if shapes.is_moe:
        traffic["dispatch"] = tokens * (2 * (shapes.top_k + 1) * hidden * layers * BYTES_PER_VALUE)
    for kernel, spill in spilled.items():
        traffic[kernel] = traffic[kernel] + spill

    flops["attention"] = 4.0 * tokens * attended * (query_width * layers)
    occupancy["attention"] = _occupancy(one * (shapes.heads * layers / shapes.kv_heads_summed))
    kv_token = tokens * shapes.kv_bytes_per_token
    floor["attention"] = kv_token * attended
    query = tokens * attended * (2 * query_width * layers * BYTES_PER_VALUE)

    launches = _launches(shapes)
    return Work(
        flops=_stack(flops),
        bytes=_stack(traffic),
        kv_bytes=_stack(dict.fromkeys(KERNELS, zero) | {"attention": floor["attention"]}),
        kv_token_bytes=_stack(dict.fromkeys(KERNELS, zero) | {"attention": kv_token}),
        query_bytes=_stack(dict.fromkeys(KERNELS, zero) | {"attention": query}),
        floor_bytes=_stack(floor),
        occupancy=_stack(occupancy),
        launches=_stack({kernel: one * launches.get(kernel, 0) for kernel in KERNELS}),
        tokens=tokens,
        context=cached,
        peak_flops=one * gpu.peak_flops,
        bandwidth=one * gpu.bandwidth,
    )


def stack_work(
    cells: Cells,
    shapes: Mapping[str, ModelShapes] | None = None,
    gpus: Mapping[str, GpuSpec] | None = None,
    *,
    experts: Experts = "active",
) -> Work:
    """The work of cells of several models and GPUs, rows in the order of the cells.

    Parameters
    ----------
    cells : Cells
    shapes, gpus : mappings from the names in `cells`, optional
        Default, also for names they lack: the catalogs.
    experts : {"active", "distinct", "balanced"}

    Returns
    -------
    Work
        Arrays (cell, kernel).

    Raises
    ------
    ValueError
        As `decode_work`.
    """
    rows = len(cells)
    flat = ("tokens", "context", "peak_flops", "bandwidth")
    stacked = {f.name: np.empty(rows if f.name in flat else (rows, len(KERNELS))) for f in fields(Work)}
    for i, model in enumerate(cells.models):
        for j, gpu in enumerate(cells.gpus):
            here = (cells.model_code == i) & (cells.gpu_code == j)
            if not here.any():
                continue
            part = decode_work(
                (shapes or {}).get(model, model),
                cells.batch[here],
                cells.context[here],
                gpu=(gpus or {}).get(gpu, gpu),
                experts=experts,
            )
            for name, array in stacked.items():
                array[here] = getattr(part, name)
    return Work(**stacked)


def _stack(columns: Mapping[str, Floats]) -> Floats:
    """Columns by kernel -> [..., kernel] in the order of KERNELS."""
    return np.stack([columns[kernel] for kernel in KERNELS], axis=-1)


def _occupancy(rows: Floats) -> Floats:
    """Rows over the rows of the tiles that hold them, M / (64 ceil(M / 64))."""
    return rows / (_TILE_ROWS * np.ceil(rows / _TILE_ROWS))


def _launches(shapes: ModelShapes) -> dict[str, int]:
    """Launches per step by kernel; see the notes of `decode_work`."""
    layers, moe, shared = shapes.layers, int(shapes.is_moe), int(shapes.shared_width > 0)
    per_layer = {
        "norms": shapes.norms_per_layer + shapes.qk_norm,
        "qkv": 1,
        "rope": int(shapes.rotary),
        "kv_write": 1,
        "attention": 1,
        "attn_out": 1,
        "router": moe,
        "dispatch": 2 * moe,
        "gate_up": 1,
        "activation": 1 + shared,
        "down": 1,
        "shared_gate_up": shared,
        "shared_down": shared,
    }
    per_step = {"embedding": 1, "norms": 1 + shapes.embedding_norm, "lm_head": 1}
    return {kernel: per_layer.get(kernel, 0) * layers + per_step.get(kernel, 0) for kernel in KERNELS}


def _spilled_bytes(shapes: ModelShapes, tokens: Floats, l2_bytes: float) -> dict[str, Floats]:
    """DRAM bytes of the activation tensors larger than L2, by kernel.

    Each kernel reads and writes tensors of `rows` x `width` values; those that fit into L2 cost nothing. The
    gather and scatter of `dispatch` are counted in full elsewhere. A norm reads the residual and the branch
    and writes both.
    """
    routed = tokens * max(shapes.top_k, 1)
    hidden, query = shapes.hidden, shapes.heads * shapes.head_dim
    qkv = query + 2 * shapes.kv_heads_summed * shapes.head_dim // shapes.layers
    width = shapes.expert_width if shapes.is_moe else shapes.intermediate
    up, shared = (2 if shapes.gated_mlp else 1), shapes.shared_width
    tensors: list[tuple[str, int, Floats, tuple[int, ...]]] = [
        ("embedding", 1, tokens, (hidden,)),
        ("norms", shapes.norms_per_layer * shapes.layers + 1, tokens, (hidden,) * 4),
        ("qkv", shapes.layers, tokens, (hidden, qkv)),
        ("rope", shapes.layers * shapes.rotary, tokens, (qkv, qkv)),
        ("attention", shapes.layers, tokens, (query, query)),
        ("attn_out", shapes.layers, tokens, (query, hidden)),
        ("gate_up", shapes.layers, routed, (hidden, up * width)),
        ("activation", shapes.layers, routed, (up * width, width)),
        ("down", shapes.layers, routed, (width, hidden)),
        ("shared_gate_up", shapes.layers, tokens, (hidden, up * shared)),
        ("activation", shapes.layers, tokens, (up * shared, shared)),
        ("shared_down", shapes.layers, tokens, (shared, hidden)),
        ("lm_head", 1, tokens, (hidden, shapes.vocab)),
    ]
    spilled: dict[str, Floats] = {}
    for kernel, times, rows, widths in tensors:
        if kernel.startswith("shared") and not shared:
            continue
        for values in widths:
            size = rows * (values * BYTES_PER_VALUE)
            spill = np.where(size > l2_bytes, times * size, 0.0)
            spilled[kernel] = spilled.get(kernel, 0.0) + spill
    return spilled
