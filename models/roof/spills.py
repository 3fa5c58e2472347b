"""Activations that leave the last-level cache: their DRAM traffic, kernel by kernel."""

import numpy as np

from rooffloor.models.roof.blocks import Floats
from rooffloor.models.specs.shapes import BYTES_PER_VALUE, ModelShapes


def spilled_bytes(shapes: ModelShapes, tokens: Floats, l2_bytes: float) -> dict[str, Floats]:
    """DRAM bytes [...] of the activation tensors larger than L2, by kernel; kernels without any are left out.

    Each kernel reads and writes tensors of `rows` x `width` values; those that fit into L2 cost nothing. The
    gather and scatter of `dispatch` are counted in full elsewhere. A norm reads the residual and the branch
    and writes both.
    """
    largest, routed = np.max(tokens, initial=0.0), max(shapes.top_k, 1)
    layers, moe, dense = shapes.layers, shapes.moe_layers, shapes.dense_layers
    mlps = moe if shapes.is_moe else layers
    hidden, width = shapes.hidden, shapes.expert_width if shapes.is_moe else shapes.intermediate
    up, shared, inner = (2 if shapes.gated_mlp else 1), shapes.shared_width, shapes.intermediate
    qkv, rotated, attention = _attention_tensors(shapes)
    tensors: list[tuple[str, int, int, tuple[int, ...]]] = [  # kernel, how often, rows per token, widths
        ("embedding", 1, 1, (hidden,)),
        ("norms", shapes.norms_per_layer * layers + 1, 1, (hidden,) * 4),
        ("qkv", layers, 1, qkv),
        ("rope", layers * shapes.rotary, 1, (rotated, rotated)),
        ("attention", layers, 1, attention),
        ("attn_out", layers, 1, (shapes.value_width, hidden)),
        ("gate_up", mlps, routed, (hidden, up * width)),
        ("activation", mlps, routed, (up * width, width)),
        ("down", mlps, routed, (width, hidden)),
        ("lm_head", 1, 1, (hidden, shapes.vocab)),
    ]
    for times, visited in ((moe * (shared > 0), shared), (dense, inner)):
        tensors += [
            ("shared_gate_up", times, 1, (hidden, up * visited)),
            ("activation", times, 1, (up * visited, visited)),
            ("shared_down", times, 1, (visited, hidden)),
        ]
    spilled: dict[str, Floats] = {}
    for kernel, times, rows, widths in tensors:
        for values in widths if times else ():
            if largest * rows * (values * BYTES_PER_VALUE) > l2_bytes:
                size = tokens * rows * (values * BYTES_PER_VALUE)
                spill = np.where(size > l2_bytes, times * size, 0.0)
                spilled[kernel] = spilled.get(kernel, 0.0) + spill
    return spilled


def _attention_tensors(shapes: ModelShapes) -> tuple[tuple[int, ...], int, tuple[int, ...]]:
    """Widths of the activations that the kernels `qkv`, `rope` and `attention` read and write, one layer.

    With a latent, `qkv` also turns queries into the latent's space, and attention's outputs out of it.
    """
    query = shapes.heads * shapes.head_dim
    cached = shapes.cache_width // shapes.layers
    if not shapes.is_mla:
        return (shapes.hidden, query + cached), query + cached, (query, query)
    latent, rope = shapes.kv_lora_rank, shapes.qk_rope_head_dim
    ranks = (shapes.q_lora_rank, shapes.q_lora_rank) if shapes.q_lora_rank else ()
    absorbed = (shapes.heads * shapes.qk_nope_head_dim, shapes.heads * latent)
    outwards = (shapes.heads * latent, shapes.value_width)
    qkv = (shapes.hidden, cached, *ranks, query, *absorbed, *outwards)
    return qkv, (shapes.heads + 1) * rope, (shapes.heads * (latent + rope), shapes.heads * latent)
