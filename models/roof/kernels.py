"""Kernels: FLOPs, bytes and launches of one decode step, kernel by kernel (NumPy only)."""

import functools
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rooffloor.models.roof.blocks import Floats, checked_axes
from rooffloor.models.roof.spills import spilled_bytes
from rooffloor.models.specs.cells import Cells
from rooffloor.models.specs.gpus import GpuSpec
from rooffloor.models.specs.gpus import resolve as resolve_gpu
from rooffloor.models.specs.shapes import BYTES_PER_VALUE, ModelShapes
from rooffloor.models.specs.shapes import resolve as resolve_shapes

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
routed experts where there are experts; `shared_gate_up` and `shared_down` are then the MLP weights that every
token visits: shared experts, and the MLPs of dense layers.
"""

ROUTED: tuple[str, str] = ("gate_up", "down")
"""The kernels of the routed experts, where a model has experts."""

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


class Counts(NamedTuple):
    """What one kernel has to do in a step: the fields of `Work` without the kernel axis, arrays [...] or numbers."""

    flops: Any = 0.0
    bytes: Any = 0.0
    kv_bytes: Any = 0.0
    kv_token_bytes: Any = 0.0
    query_bytes: Any = 0.0
    floor_bytes: Any = 0.0
    occupancy: Any = 1.0
    launches: Any = 0.0
    speed: Any = 1.0

    def unavoidable(self) -> "Counts":
        """Only the bytes that no implementation avoids."""
        return Counts(bytes=self.floor_bytes)


def peak_times(counts: "Counts | Work", peak_flops: Any, bandwidth: Any) -> PeakTimes:
    """The times of counts at peak rates (FLOP/s, bytes/s)."""
    idle = type(counts.flops) is float and counts.flops == 0.0
    same = type(counts.speed) is float and counts.speed == 1.0
    rate = peak_flops * counts.occupancy
    return PeakTimes(
        0.0 if idle else counts.flops / (rate if same else rate * counts.speed) * 1e3,
        counts.bytes / bandwidth * 1e3,
        counts.kv_bytes / bandwidth * 1e3,
        counts.kv_token_bytes / bandwidth * 1e3,
        counts.query_bytes / bandwidth * 1e3,
        counts.launches,
    )


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
    speed : float array [..., kernel]
        Peak FLOP/s in the number format of the product over the 16-bit peak.
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
    speed: Floats
    tokens: Floats
    context: Floats
    peak_flops: Floats
    bandwidth: Floats

    @functools.cached_property
    def peak_times(self) -> PeakTimes:
        """The times at peak rates (computed once)."""
        return peak_times(self, self.peak_flops[..., None], self.bandwidth[..., None])

    @functools.cached_property
    def kernel_peak_times(self) -> tuple[PeakTimes, ...]:
        """The same by kernel: arrays [...], or 0.0 where a kernel has none; absent kernels left out."""
        columns = []
        for k in range(len(KERNELS)):
            column = {f.name: getattr(self.peak_times, f.name)[..., k] for f in fields(PeakTimes)}
            if any(values.any() for values in column.values()):
                columns.append({name: v.copy() if v.any() else 0.0 for name, v in column.items()})
        return tuple(PeakTimes(**column) for column in columns)

    def where(self, mask: NDArray[np.bool_]) -> "Work":
        """The cells where `mask` [cell] is true."""
        return Work(**{f.name: getattr(self, f.name)[mask] for f in fields(Work)})

    def __repr__(self) -> str:
        return f"Work({self.tokens.shape} cells x {len(KERNELS)} kernels)"


def launches_of(work: Work) -> Floats:
    """Kernel launches of one step, [...]."""
    return np.asarray(work.launches.sum(axis=-1), dtype=float)


def launches_of_shapes(shapes: ModelShapes) -> int:
    """Kernel launches of one step of a model."""
    return sum(_launches(shapes).values())


def layers_of(work: Work) -> Floats:
    """Layers with attention of the model of each cell, [...]."""
    return np.asarray(work.launches[..., KERNELS.index("attention")], dtype=float)


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


def mean_over_layers(shapes: ModelShapes, whole: Floats, windowed: Floats) -> Floats:
    """Mean over the layers of a quantity that is `whole` in layers without a sliding window, else `windowed`."""
    if not shapes.windowed_layers:
        return windowed if shapes.sliding_window else whole
    inside = shapes.windowed_layers
    return ((shapes.layers - inside) * whole + inside * windowed) / shapes.layers


def decode_work(
    shapes: str | ModelShapes, batch: ArrayLike, context: ArrayLike, *, gpu: str | GpuSpec, experts: Experts = "active"
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

    Examples
    --------
    >>> work = decode_work("Llama-3.1-8B", [1, 16], 2048, gpu="H100")
    >>> work
    Work((2,) cells x 15 kernels)
    >>> work.kv_bytes.sum(-1) / 1e9
    array([0.26843546, 4.2949673 ])

    Notes
    -----
    With M = batch tokens; activations have 2 bytes a value, weights and cache those of their `formats`:

    - *Matrix product*: 2 M weights FLOPs at the peak of the product's format (`speed_of`); bytes = weights with their
      scales + biases. Rows per tile: M. Routed experts: FLOPs of top_k experts a token, bytes of the experts streamed.
      Each of these is a product of its own, so that rows per tile are those of one of them, M top_k / streamed on
      average: M of `active` ones, which all tokens share; max(1, M top_k / E) of `balanced` ones.
    - *Attention* over L cached tokens (at most the sliding window, in the layers that have one): 4 M L heads
      head_dim FLOPs a layer; bytes = M L times the cache bytes of a token. Rows per tile: the query heads
      that share a KV head, as in flash decoding (with M rows a batch of 1 would make grouped attention
      compute-bound, which it is not). `kv_token_bytes` is one token in every layer, windows or not.
    - *Latent attention* (MLA) in the absorbed form: 2 M L heads (2 kv_lora_rank + qk_rope_head_dim) FLOPs a
      layer over a cache of kv_lora_rank + qk_rope_head_dim values, which are read once for all heads (rows
      per tile: the heads), and once per query head in `query_bytes`. The two halves of kv_b_proj, absorbed
      into queries and outputs, are read once a step and count in `qkv`.
    - *Cache write*: M times the cache bytes of a token. *Embedding*: M rows (also of learned positions).
    - *Dispatch* in closed form: `router` reads its hidden x experts weights; `dispatch` gathers M rows into
      M top_k and scatters M top_k back into M: 2 M (top_k + 1) hidden values a layer with experts, counted as
      DRAM traffic whether or not they fit into L2. Qwen1.5-MoE-A2.7B at M = 4 on an H100: 5.9 MB + 3.9 MB =
      2.9 us at peak bandwidth, 0.0049 to 0.0033 ms for an eta_bw of 0.6 to 0.9.
    - *Activations*: a tensor larger than L2 is written once by its producer and read once by its consumer.
    - *Launches*, one per kernel and layer as a fused inference engine has them: 2 norms (residual addition
      fused), qkv, rope, cache write, attention, output projection, up (and gate) as one, activation, down;
      router, 2 for dispatch; the routed experts as one grouped launch; the shared expert as two launches and
      an activation, and so a dense layer's MLP; query and key norms as one. Latent attention: 4 for `qkv`
      (into the latents, queries, absorbed keys, absorbed values), the latents' norms as one. Per step:
      embedding, final norm, LM head. An eager stack launches more; that is a matter of the floor.
    """
    shapes, gpu = resolve_shapes(shapes), resolve_gpu(gpu)
    tokens, cached = checked_axes(batch, context)
    counts = step_counts(shapes, tokens, gpu, experts)
    counts["attention"] = with_cache(counts["attention"], shapes, tokens, cached)
    by_kernel = {name: np.empty((*tokens.shape, len(KERNELS))) for name in Counts._fields}
    for name, array in by_kernel.items():
        for k, kernel in enumerate(KERNELS):
            array[..., k] = getattr(counts[kernel], name)
    rates = {"peak_flops": np.full(tokens.shape, gpu.peak_flops), "bandwidth": np.full(tokens.shape, gpu.bandwidth)}
    return Work(**by_kernel, tokens=tokens, context=cached, **rates)


def step_counts(shapes: ModelShapes, tokens: Floats, gpu: GpuSpec, experts: Experts) -> dict[str, Counts]:
    """What each kernel has to do for `tokens` [...], in the order of `KERNELS`; attention without its cache read.

    Nothing here depends on the context. See `decode_work`.
    """
    streamed = experts_streamed(shapes, tokens, experts)
    spilled, launches = spilled_bytes(shapes, tokens, gpu.l2_bytes), _launches(shapes)
    small, stored, tiles = shapes.small_weights, shapes.linear_bytes, _occupancy(tokens)
    hidden, layers = shapes.hidden, shapes.layers
    traffic: dict[str, Any] = {
        "embedding": tokens * (hidden * (2 if shapes.learned_positions else 1) * BYTES_PER_VALUE),
        "norms": float(small["norms"] * BYTES_PER_VALUE),
        "kv_write": tokens * shapes.kv_bytes_per_token,
        "attention": float(small["attention"] * BYTES_PER_VALUE),
    }
    if shapes.is_moe:
        traffic["dispatch"] = tokens * (2 * (shapes.top_k + 1) * hidden * shapes.moe_layers * BYTES_PER_VALUE)
    products: dict[str, dict[str, Any]] = {}
    for kernel, weights in shapes.linear_weights.items():
        routed = shapes.is_moe and kernel in ROUTED
        copies = streamed if routed else 1.0
        products[kernel] = {
            "flops": 2.0 * tokens * weights * (shapes.top_k if routed else 1) if weights else 0.0,
            "floor_bytes": copies * stored[kernel],
            "speed": speed_of(shapes, kernel, gpu),
        }
        traffic[kernel] = products[kernel]["floor_bytes"] + copies * (small.get(kernel, 0) * BYTES_PER_VALUE)
        if routed and experts != "active":
            products[kernel]["occupancy"] = _occupancy(tokens * shapes.top_k / streamed)
    products["attention"] = {"occupancy": _occupancy(shapes.heads * layers / shapes.kv_heads_summed)}
    return {
        kernel: Counts(
            bytes=traffic.get(kernel, 0.0) + spilled.get(kernel, 0.0),
            launches=float(launches[kernel]),
            **{"occupancy": tiles} | products.get(kernel, {}),
        )
        for kernel in KERNELS
    }


def with_cache(
    attention: Counts, shapes: ModelShapes, tokens: Any, cached: Any, *, per_query_head: bool = True
) -> Counts:
    """The counts of attention over `cached` tokens of each of `tokens` sequences, arrays [...] or numbers.

    `per_query_head`: with `query_bytes`.
    """
    window = shapes.sliding_window
    attended = mean_over_layers(shapes, cached, np.minimum(cached, window)) if window else cached
    pairs, kv_token = tokens * attended, tokens * shapes.kv_bytes_per_token
    kv = kv_token * attended
    return attention._replace(
        flops=pairs * float(shapes.decode_attention_flops),
        kv_bytes=kv,
        kv_token_bytes=kv_token,
        query_bytes=pairs * shapes.query_head_bytes if per_query_head else 0.0,
        floor_bytes=kv,
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


def speed_of(shapes: ModelShapes, kernel: str, gpu: GpuSpec) -> float:
    """Peak FLOP/s of a GPU for a kernel's weights over its 16-bit peak.

    A format that the GPU does not multiply is dequantised to 16 bit; of several formats the times add up.
    """
    if not shapes.formats.weights:
        return 1.0
    peaks = dict(getattr(gpu, "format_flops", ()))
    own = [(peaks.get(stored.multiplied_as, gpu.peak_flops), share) for stored, share in shapes.formats.of(kernel)]
    return own[0][0] / gpu.peak_flops if len(own) == 1 else 1.0 / sum(s * gpu.peak_flops / peak for peak, s in own)


def _occupancy(rows: Any) -> Any:
    """Rows (of several products: their mean) over the rows of the tiles that hold them, M / (64 ceil(M / 64))."""
    return rows / (_TILE_ROWS * np.ceil(rows / _TILE_ROWS))


def _launches(shapes: ModelShapes) -> dict[str, int]:
    """Launches per step by kernel; see the notes of `decode_work`."""
    layers, moe, dense = shapes.layers, shapes.moe_layers, shapes.dense_layers
    always = moe * (shapes.shared_width > 0) + dense
    mlps = moe if shapes.is_moe else layers
    return {
        "embedding": 1,
        "norms": layers * (shapes.norms_per_layer + shapes.qk_norm + shapes.is_mla) + 1 + shapes.embedding_norm,
        "qkv": layers * (4 if shapes.is_mla else 1),
        "rope": layers * shapes.rotary,
        "kv_write": layers,
        "attention": layers,
        "attn_out": layers,
        "router": moe,
        "dispatch": 2 * moe,
        "gate_up": mlps,
        "activation": mlps + always,
        "down": mlps,
        "shared_gate_up": always,
        "shared_down": always,
        "lm_head": 1,
    }
