"""What the roof does not model: refused by name, never guessed."""

from collections.abc import Mapping
from typing import Any

from rooffloor.models.specs.hf.architectures import LAYER_TYPES, Fields, windows
from rooffloor.models.specs.hf.keys import Config
from rooffloor.models.specs.inputs import shown

_EXPERT_KEYS = ("num_local_experts", "num_experts", "n_routed_experts")
NOT_MODELLED = {
    **dict.fromkeys(("mamba", "mamba2", "falcon_mamba", "xlstm", "rwkv"), "state-space or recurrent layers"),
    **dict.fromkeys(
        ("nemotron_h", "jamba", "bamba", "zamba", "zamba2", "falcon_h1", "granitemoehybrid"),
        "state-space (Mamba) layers beside attention",
    ),
    **dict.fromkeys(("qwen3_next", "qwen3_5", "qwen3_5_moe", "kimi_linear", "minimax"), "linear-attention layers"),
    "recurrent_gemma": "recurrent (RG-LRU) layers",
    **dict.fromkeys(("lfm2", "lfm2_moe", "lfm2_vl"), "short-convolution layers"),
    **dict.fromkeys(("llama4", "llama4_text"), "chunked-attention layers"),
    **dict.fromkeys(("gemma4", "gemma4_text"), "attention layers of two head sizes"),
    **dict.fromkeys(("gemma3n", "gemma3n_text"), "per-layer embeddings and layers that share a KV cache"),
    "deepseek_v32": "sparse-attention layers (indexer)",
    **dict.fromkeys(
        ("t5", "mt5", "umt5", "longt5", "t5gemma", "bart", "mbart", "pegasus", "marian", "whisper", "m2m_100"),
        "encoder and cross-attention layers (encoder-decoder)",
    ),
    **dict.fromkeys(
        ("bert", "roberta", "xlm-roberta", "distilbert", "electra", "albert", "deberta-v2", "modernbert", "vit"),
        "encoder layers",
    ),
}
"""Why a model_type is refused: the layers that the roof does not model."""

FOREIGN_KEYS = {
    "hybrid_override_pattern": "state-space layers",
    "ssm_state_size": "state-space layers",
    "mamba_d_state": "state-space layers",
    "mamba_d_ssm": "state-space layers",
    "attn_layer_period": "state-space layers beside attention",
    "linear_num_value_heads": "linear-attention layers",
    "linear_attn_config": "linear-attention layers",
    "attention_chunk_size": "chunked-attention layers",
    "global_head_dim": "attention layers of two head sizes",
    "num_kv_shared_layers": "layers that share a KV cache",
    "cross_attention_layers": "cross-attention layers",
    "is_encoder_decoder": "encoder and cross-attention layers",
    "use_bidirectional_attention": "encoder (bidirectional attention) layers",
}
"""Keys that, where set, stand for layers that the roof does not model."""


def fault(table: Mapping[str, Any], kind: object) -> str:
    """The layers for which an architecture is not modelled, where that is known."""
    if isinstance(kind, str) and kind in NOT_MODELLED:
        return NOT_MODELLED[kind]
    text = table.get("text_config")
    for part in (table, text if isinstance(text, Mapping) else {}):
        for key, what in FOREIGN_KEYS.items():
            if part.get(key):
                return f"{what} ({key})"
        layers = part.get("layer_types")
        for entry in layers if isinstance(layers, list) else ():
            if entry not in LAYER_TYPES:
                return f"{shown(entry)} layers (layer_types)"
    return ""


def check_unread(config: Config, fields: Fields) -> None:
    """Refuses experts, windows and biases that the config states and the architecture does not have."""
    table, none = config.table, f"contradicts model_type {config.kind!r}, which has none"
    for key in _EXPERT_KEYS:
        if table.get(key) and key not in config.consulted:
            raise config.error(f"{key} {none}")
    switch = "use_sliding_window"
    unknown = not config.consulted & {"sliding_window", switch}
    if unknown and (table.get(switch) or (table.get(switch) is None and table.get("sliding_window"))):
        raise config.error(f"{switch if table.get(switch) else 'sliding_window'} {none}")
    if "layer_types" not in config.consulted and windows(config, fields["layers"], 0):
        raise config.error(f"a sliding window in layer_types {none}")
    for key, field in (("attention_bias", "qkv_bias"), ("mlp_bias", "mlp_bias")):
        if config.flag(key) and not fields.get(field):
            raise config.error(f"{key} {none}")
