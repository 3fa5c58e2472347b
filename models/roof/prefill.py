"""Prefill: the time to read a prompt."""

import numpy as np
from numpy.typing import ArrayLike

from rooffloor.models.roof.blocks import Floats, checked_axes
from rooffloor.models.roof.kernels import ROUTED, experts_streamed, mean_over_layers, speed_of
from rooffloor.models.specs.gpus import GpuSpec
from rooffloor.models.specs.gpus import resolve as resolve_gpu
from rooffloor.models.specs.shapes import ModelShapes
from rooffloor.models.specs.shapes import resolve as resolve_shapes


def prefill_flops(shapes: str | ModelShapes, batch: ArrayLike, prompt: ArrayLike) -> Floats:
    """FLOPs of the matrix products of a prefill.

    Parameters
    ----------
    shapes : ModelShapes or str
    batch, prompt : arrays [...], broadcast
        Sequences (from 1) and tokens of each (from 1).

    Returns
    -------
    float array [...]

    Raises
    ------
    ValueError
        An unknown name, a batch or prompt below 1.

    Notes
    -----
    2 FLOPs per token and weight that it visits (top_k experts and the shared one), the LM head only for the
    last token of each sequence, and causal attention: a token attends on average to (prompt + 1)/2 tokens (at
    most the sliding window, in the layers that have one), 4 heads head_dim FLOPs each and layer. Latent
    attention is taken in the plain form, as engines prefill: keys and values per head, 2 heads (head_dim +
    v_head_dim).
    """
    shapes = resolve_shapes(shapes)
    sequences, tokens = checked_axes(batch, prompt, least=1.0, label="prompt")
    weights = dict(shapes.linear_weights)
    head = weights.pop("lm_head")
    if shapes.is_moe:
        weights |= {kernel: shapes.top_k * weights[kernel] for kernel in ROUTED}
    attended = tokens * (tokens + 1) / 2  # pairs of a token and one it attends to
    if shapes.sliding_window:
        beyond = np.maximum(tokens - shapes.sliding_window, 0.0)
        attended = mean_over_layers(shapes, attended, attended - beyond * (beyond + 1) / 2)
    per_pair = 2 * (shapes.heads * shapes.head_dim + shapes.value_width) * shapes.layers
    return sequences * (2.0 * tokens * sum(weights.values()) + 2.0 * head + attended * per_pair)


def prefill_ms(
    shapes: str | ModelShapes, gpu: str | GpuSpec, batch: ArrayLike, prompt: ArrayLike, mfu: ArrayLike
) -> Floats:
    """Time of a prefill, ms: max(FLOPs / (peak mfu), weight bytes / bandwidth).

    Parameters
    ----------
    shapes : ModelShapes or str
    gpu : GpuSpec or str
    batch, prompt : arrays [...], broadcast
        Sequences (from 1) and tokens of each (from 1).
    mfu : array [...], broadcast
        Model FLOPs utilisation, in (0, 1].

    Returns
    -------
    float array [...]

    Raises
    ------
    ValueError
        An unknown name, a batch or prompt below 1, an mfu outside (0, 1].

    Examples
    --------
    >>> prefill_ms("Llama-3.1-8B", "H100", 1, [512, 8192], mfu=0.5).round(1)
    array([ 14.6, 266.8])

    Notes
    -----
    The weight bytes are the linear weights once, of the experts min(batch prompt top_k, E). Products in a format
    that the GPU multiplies faster than 16 bit count that much less.
    """
    shapes, gpu = resolve_shapes(shapes), resolve_gpu(gpu)
    share = np.asarray(mfu, dtype=float)
    if not np.all((share > 0) & (share <= 1)):
        raise ValueError(f"mfu must be in (0, 1], got {share[~((share > 0) & (share <= 1))].flat[0]:g}")
    sequences, tokens = checked_axes(batch, prompt, least=1.0, label="prompt")
    spared = sum(
        count
        * (1.0 - 1.0 / speed_of(shapes, kernel, gpu))
        * (shapes.top_k if shapes.is_moe and kernel in ROUTED else 1)
        for kernel, count in shapes.linear_weights.items()
        if kernel != "lm_head"
    )
    flops = prefill_flops(shapes, batch, prompt) - 2.0 * sequences * tokens * spared
    weights = shapes.linear_bytes
    routed = sum(weights[kernel] for kernel in ROUTED)
    copies = experts_streamed(shapes, sequences * tokens, "balanced") if shapes.is_moe else 1.0
    weight_bytes = sum(weights.values()) - routed + copies * routed
    return np.maximum(flops / (gpu.peak_flops * share), weight_bytes / gpu.bandwidth) * 1e3
