"""Hugging Face config.json -> ModelShapes, one function per architecture.

An architecture is a function under `@_reads(model_type, class name, default keys ...)`. Keys that a config leaves
out get the default of the architecture's configuration class in transformers 4.57; those defaults stand beside the
function. Sizes have a default only where published configs leave them out (nested `text_config`): else a missing
one is an error, for a config without its hidden_size is damaged. What the roof does not model is refused by name
(`_NOT_MODELLED`, `_FOREIGN_KEYS`), never guessed.
"""

import contextlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rooffloor.models.specs import inputs
from rooffloor.models.specs.inputs import shown
from rooffloor.models.specs.shapes import LARGEST, ModelShapes

type Fields = dict[str, Any]

_LARGEST_FILE = 8 * inputs.MEGABYTE  # published configs have a few thousand

_EXPERT_KEYS = ("num_local_experts", "num_experts", "n_routed_experts")

_LAYER_TYPES = ("full_attention", "sliding_attention")

_NOT_MODELLED = {
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

_FOREIGN_KEYS = {
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


class _Config:
    """The keys of a config.json, read with checks; an error is one line that names the file and the key.

    Attributes
    ----------
    where : str
        The file, for messages.
    kind : str
        The model_type.
    table, outer : mapping
        The keys of the text model, and those of the file around it (the same where nothing is nested).
    defaults : mapping
        Values of keys that the config leaves out.
    consulted : set of str
        The keys asked for so far.
    """

    def __init__(
        self,
        where: str,
        kind: str,
        table: Mapping[str, Any],
        outer: Mapping[str, Any],
        defaults: Mapping[str, Any],
    ) -> None:
        self.where, self.kind, self.table, self.outer, self.defaults = where, kind, table, outer, defaults
        self.consulted: set[str] = set()

    def error(self, text: str) -> ValueError:
        return ValueError(f"{self.where}: {text}")

    def value(self, *keys: str) -> Any:
        """The value of a key that has several names; null where it is null, the default where it is left out."""
        self.consulted.update(keys)
        stated = {key: self.table[key] for key in keys if self.table.get(key) is not None}
        first = next(iter(stated.values()), None)
        if len(stated) > 1 and any(type(v) is not type(first) or v != first for v in stated.values()):
            raise self.error(f"{' and '.join(stated)} contradict each other")
        left_out = not any(key in self.table for key in keys)
        return self.defaults.get(keys[0]) if left_out else first

    def whole(self, *keys: str, least: int = 1) -> int:
        """A whole number from `least`."""
        value = self.value(*keys)
        if type(value) is not int or not least <= value <= LARGEST:
            got = "it is missing" if value is None else f"got {shown(value)}"
            name = next((key for key in keys if key in self.table), keys[0])
            raise self.error(f"{name} must be a whole number from {least} to {LARGEST}, {got}")
        return value

    def optional(self, *keys: str) -> int:
        """A whole number from 1; 0 where it is null, or left out and without a default."""
        return 0 if self.value(*keys) is None else self.whole(*keys)

    def flag(self, key: str) -> bool:
        """True or false; where it is null or left out the default, without one false."""
        value = self.value(key)
        if value is None:
            value = self.defaults.get(key, False)
        if type(value) is not bool:
            raise self.error(f"{key} must be true or false, got {shown(value)}")
        return value

    def tied(self) -> bool:
        """Whether the LM head is the embedding table: as the text model says, else the file around it."""
        key = "tie_word_embeddings"
        inner, outer = self.table.get(key), self.outer.get(key)
        if type(inner) is bool and type(outer) is bool and inner is not outer:
            raise self.error(f"{key} {outer} contradicts {key} {inner} of text_config")
        if inner is None and type(outer) is bool:
            return outer
        return self.flag(key)


@dataclass(frozen=True)
class _Architecture:
    """How configs of one model_type are read.

    Attributes
    ----------
    classes : tuple of str
        What `architectures` may name.
    defaults : mapping
    read : function
        _Config -> fields of ModelShapes.
    nested : str
        The model_type of the `text_config` that holds the keys; "": nothing is nested.
    """

    classes: tuple[str, ...]
    defaults: Mapping[str, Any]
    read: Callable[[_Config], Fields]
    nested: str = ""


_ARCHITECTURES: dict[str, _Architecture] = {}


def _reads[F: Callable[[_Config], Fields]](
    kind: str, *classes: str, nested: str = "", **defaults: Any
) -> Callable[[F], F]:
    """Registers a function as the reader of a model_type."""

    def register(read: F) -> F:
        _ARCHITECTURES[kind] = _Architecture(classes, defaults, read, nested)
        return read

    return register


# --- what several architectures share


def _attention_sizes(config: _Config, hidden: int, heads: int) -> Fields:
    """KV heads and head_dim; null or no default: one KV head per query head, and hidden_size / heads."""
    head_dim = config.optional("head_dim")
    if not head_dim and hidden % heads:
        raise config.error(f"head_dim is missing and hidden_size {hidden} is no multiple of {heads} heads")
    return {
        "heads": heads,
        "kv_heads": config.optional("num_key_value_heads") or heads,
        "head_dim": head_dim or hidden // heads,
    }


def _plain_heads(config: _Config, hidden: int, heads: int) -> Fields:
    """Heads of architectures that know neither grouped heads nor a head_dim of their own."""
    if hidden % heads:
        raise config.error(f"hidden size {hidden} is no multiple of {heads} heads")
    for key, derived in (("num_key_value_heads", heads), ("head_dim", hidden // heads)):
        if config.table.get(key) not in (None, derived):
            raise config.error(f"{key} {shown(config.table[key])} contradicts model_type {config.kind!r} ({derived})")
    return {"heads": heads, "kv_heads": heads, "head_dim": hidden // heads}


def _common(config: _Config) -> Fields:
    """The sizes under the names that most architectures give them."""
    hidden, heads = config.whole("hidden_size"), config.whole("num_attention_heads")
    return {
        "hidden": hidden,
        "intermediate": config.whole("intermediate_size"),
        "layers": config.whole("num_hidden_layers"),
        "vocab": config.whole("vocab_size"),
        "max_context": config.whole("max_position_embeddings"),
        "tied_embeddings": config.tied(),
        **_attention_sizes(config, hidden, heads),
    }


def _attention_bias(config: _Config) -> Fields:
    bias = config.flag("attention_bias")
    return {"qkv_bias": bias, "attn_out_bias": bias}


def _windows(config: _Config, layers: int, windowed: int) -> Fields:
    """Window fields: `layer_types` says which layers have the sliding window, else `windowed` of them do."""
    stated, window = config.value("layer_types"), config.optional("sliding_window")
    if stated is not None:
        if not isinstance(stated, list) or len(stated) != layers:
            got = f"{len(stated)} of them" if isinstance(stated, list) else shown(stated)
            raise config.error(f"layer_types must list {layers} layers, got {got}")
        for entry in stated:
            if entry not in _LAYER_TYPES:
                raise config.error(f"layer_types: {shown(entry)} layers are not modelled")
        windowed = stated.count("sliding_attention")
    if not windowed:
        return {}
    if not window:
        raise config.error("sliding_window is missing, yet layers have sliding attention")
    return {"sliding_window": window, "windowed_layers": windowed if windowed < layers else 0}


def _window_everywhere(config: _Config, layers: int) -> Fields:
    """Window fields where every layer has the window, if there is one."""
    return _windows(config, layers, layers if config.optional("sliding_window") else 0)


def _switched_window(config: _Config, layers: int, first: str = "") -> Fields:
    """Window fields of Qwen: with `use_sliding_window` the layers from number `first` (a key) on have the window."""
    if config.flag("use_sliding_window"):
        return _windows(config, layers, max(layers - config.whole(first, least=0), 0) if first else layers)
    if config.value("layer_types") is not None and _windows(config, layers, 0):
        raise config.error("layer_types with a sliding window contradict use_sliding_window, which is not true")
    return {}


def _sparse_layers(config: _Config, layers: int) -> Fields:
    """Dense layers of Qwen's MoE: those in `mlp_only_layers`, and all but every `decoder_sparse_step`-th."""
    step = config.whole("decoder_sparse_step")
    only = config.value("mlp_only_layers")
    only = [] if only is None else only
    if not isinstance(only, list) or not all(type(i) is int and 0 <= i < layers for i in only):
        raise config.error(f"mlp_only_layers must list layers from 0 to {layers - 1}, got {shown(only)}")
    sparse = layers // step - sum((i + 1) % step == 0 for i in set(only))
    if not sparse:
        raise config.error("mlp_only_layers and decoder_sparse_step leave no layer with experts")
    return {"dense_layers": layers - sparse}


def _routed(config: _Config, experts: str, *others: str, width: str = "moe_intermediate_size") -> Fields:
    return {
        "experts": config.whole(experts, *others),
        "top_k": config.whole("num_experts_per_tok"),
        "expert_width": config.whole(width),
    }


_QWEN_EXPERTS = ("num_experts", "num_local_experts")
_LAYER_NORM = {"norm_bias": True, "gated_mlp": False}


# --- the architectures


@_reads("llama", "LlamaForCausalLM", "LLaMAForCausalLM", max_position_embeddings=2048)
def _llama(config: _Config) -> Fields:
    return _common(config) | _attention_bias(config) | {"mlp_bias": config.flag("mlp_bias")}


@_reads("mistral", "MistralForCausalLM", num_key_value_heads=8, max_position_embeddings=131072, sliding_window=4096)
def _mistral(config: _Config) -> Fields:
    fields = _common(config)
    return fields | _window_everywhere(config, fields["layers"])


@_reads(
    "mixtral",
    "MixtralForCausalLM",
    num_key_value_heads=8,
    max_position_embeddings=131072,
    num_local_experts=8,
    num_experts_per_tok=2,
)
def _mixtral(config: _Config) -> Fields:
    fields = _common(config)
    experts = _routed(config, "num_local_experts", width="intermediate_size")
    return fields | _window_everywhere(config, fields["layers"]) | experts


@_reads(
    "qwen2",
    "Qwen2ForCausalLM",
    num_key_value_heads=32,
    max_position_embeddings=32768,
    qkv_bias=True,
    sliding_window=4096,
    max_window_layers=28,
)
def _qwen2(config: _Config) -> Fields:
    fields = _common(config) | {"qkv_bias": config.flag("qkv_bias")}
    return fields | _switched_window(config, fields["layers"], "max_window_layers")


@_reads(
    "qwen2_moe",
    "Qwen2MoeForCausalLM",
    num_key_value_heads=16,
    max_position_embeddings=32768,
    qkv_bias=True,
    sliding_window=4096,
    max_window_layers=28,
    num_experts=60,
    num_experts_per_tok=4,
    moe_intermediate_size=1408,
    shared_expert_intermediate_size=5632,
    decoder_sparse_step=1,
)
def _qwen2_moe(config: _Config) -> Fields:
    fields = _qwen2(config)
    shared = {"shared_width": config.whole("shared_expert_intermediate_size"), "shared_gate": True}
    return fields | _routed(config, *_QWEN_EXPERTS) | shared | _sparse_layers(config, fields["layers"])


@_reads(
    "qwen3",
    "Qwen3ForCausalLM",
    num_key_value_heads=32,
    head_dim=128,
    max_position_embeddings=32768,
    sliding_window=4096,
    max_window_layers=28,
)
def _qwen3(config: _Config) -> Fields:
    fields = _qwen3_text(config)
    return fields | _switched_window(config, fields["layers"], "max_window_layers")


@_reads(
    "qwen3_moe",
    "Qwen3MoeForCausalLM",
    num_key_value_heads=4,
    max_position_embeddings=32768,
    sliding_window=4096,
    num_experts=128,
    num_experts_per_tok=8,
    moe_intermediate_size=768,
    decoder_sparse_step=1,
)
def _qwen3_moe(config: _Config) -> Fields:
    """The window holds in every layer: this architecture does not know max_window_layers."""
    fields = _qwen3_moe_text(config)
    return fields | _switched_window(config, fields["layers"])


@_reads(
    "qwen3_vl",
    "Qwen3VLForConditionalGeneration",
    nested="qwen3_vl_text",
    vocab_size=151936,
    hidden_size=4096,
    intermediate_size=22016,
    num_hidden_layers=32,
    num_attention_heads=32,
    num_key_value_heads=32,
    head_dim=128,
    max_position_embeddings=128000,
)
def _qwen3_text(config: _Config) -> Fields:
    return _common(config) | _attention_bias(config) | {"qk_norm": True}


@_reads(
    "qwen3_vl_moe",
    "Qwen3VLMoeForConditionalGeneration",
    nested="qwen3_vl_moe_text",
    vocab_size=151936,
    hidden_size=2048,
    intermediate_size=5632,
    num_hidden_layers=24,
    num_attention_heads=16,
    num_key_value_heads=16,
    max_position_embeddings=128000,
    num_experts=60,
    num_experts_per_tok=4,
    moe_intermediate_size=1408,
    decoder_sparse_step=1,
)
def _qwen3_moe_text(config: _Config) -> Fields:
    fields = _qwen3_text(config)
    return fields | _routed(config, *_QWEN_EXPERTS) | _sparse_layers(config, fields["layers"])


@_reads(
    "gemma2",
    "Gemma2ForCausalLM",
    num_key_value_heads=4,
    head_dim=256,
    max_position_embeddings=8192,
    sliding_window=4096,
    tie_word_embeddings=True,
)
def _gemma2(config: _Config) -> Fields:
    fields = _common(config) | _attention_bias(config) | {"norms_per_layer": 4}
    return fields | _windows(config, fields["layers"], (fields["layers"] + 1) // 2)


_GEMMA3: dict[str, Any] = {
    "vocab_size": 262208,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 131072,
    "sliding_window": 4096,
    "sliding_window_pattern": 6,
    "tie_word_embeddings": True,
}


@_reads("gemma3_text", "Gemma3ForCausalLM", **_GEMMA3)
@_reads("gemma3", "Gemma3ForConditionalGeneration", nested="gemma3_text", **_GEMMA3)
def _gemma3(config: _Config) -> Fields:
    fields = _common(config) | _attention_bias(config) | {"norms_per_layer": 4, "qk_norm": True}
    whole = fields["layers"] // config.whole("sliding_window_pattern", "_sliding_window_pattern")
    return fields | _windows(config, fields["layers"], fields["layers"] - whole)


@_reads("phi3", "Phi3ForCausalLM", max_position_embeddings=4096)
def _phi3(config: _Config) -> Fields:
    fields = _common(config)
    return fields | _window_everywhere(config, fields["layers"])


@_reads(
    "gpt_oss",
    "GptOssForCausalLM",
    num_key_value_heads=8,
    head_dim=64,
    max_position_embeddings=131072,
    sliding_window=128,
    num_local_experts=128,
    num_experts_per_tok=4,
    attention_bias=True,
)
def _gpt_oss(config: _Config) -> Fields:
    if not config.flag("attention_bias"):
        raise config.error("attention_bias false contradicts model_type 'gpt_oss'")
    fields = _common(config) | _routed(config, "num_local_experts", width="intermediate_size")
    biases = dict.fromkeys(("qkv_bias", "attn_out_bias", "mlp_bias", "router_bias", "attention_sinks"), True)
    return fields | biases | _windows(config, fields["layers"], (fields["layers"] + 1) // 2)


@_reads("olmo", "OlmoForCausalLM", max_position_embeddings=2048)
def _olmo(config: _Config) -> Fields:
    return _common(config) | _attention_bias(config) | {"norm_weights": False}


@_reads("olmo2", "Olmo2ForCausalLM", max_position_embeddings=2048)
def _olmo2(config: _Config) -> Fields:
    return _common(config) | _attention_bias(config) | {"qk_norm": True, "qk_norm_wide": True}


@_reads(
    "opt",
    "OPTForCausalLM",
    max_position_embeddings=2048,
    tie_word_embeddings=True,
    enable_bias=True,
    layer_norm_elementwise_affine=True,
    do_layer_norm_before=True,
)
def _opt(config: _Config) -> Fields:
    hidden, positions = config.whole("hidden_size"), config.whole("max_position_embeddings")
    if (projected := config.optional("word_embed_proj_dim")) and projected != hidden:
        raise config.error(f"word_embed_proj_dim {projected}: projections of the embedding are not modelled")
    if not config.flag("do_layer_norm_before") or config.flag("_remove_final_layer_norm"):
        raise config.error("do_layer_norm_before: a model without a final norm is not modelled")
    bias = config.flag("enable_bias")
    return {
        "hidden": hidden,
        "intermediate": config.whole("ffn_dim"),
        "layers": config.whole("num_hidden_layers"),
        "vocab": config.whole("vocab_size"),
        "max_context": positions,
        "learned_positions": positions + 2,  # the table starts with an offset of 2
        "tied_embeddings": config.tied(),
        "qkv_bias": bias,
        "attn_out_bias": bias,
        "mlp_bias": bias,
        "norm_weights": config.flag("layer_norm_elementwise_affine"),
        "rotary": False,
        **_plain_heads(config, hidden, config.whole("num_attention_heads")),
        **_LAYER_NORM,
    }


@_reads("bloom", "BloomForCausalLM", seq_length=2048, tie_word_embeddings=True)
def _bloom(config: _Config) -> Fields:
    hidden = config.whole("hidden_size", "n_embed")
    return {
        "hidden": hidden,
        "intermediate": 4 * hidden,
        "layers": config.whole("num_hidden_layers", "n_layer"),
        "vocab": config.whole("vocab_size"),
        "max_context": config.whole("seq_length"),  # trained on; ALiBi has no hard limit
        "tied_embeddings": config.tied(),
        "qkv_bias": True,
        "attn_out_bias": True,
        "mlp_bias": True,
        "embedding_norm": True,
        "rotary": False,
        **_plain_heads(config, hidden, config.whole("num_attention_heads", "n_head")),
        **_LAYER_NORM,
    }


@_reads("gptj", "GPTJForCausalLM", n_positions=2048)
def _gptj(config: _Config) -> Fields:
    hidden = config.whole("n_embd", "hidden_size")
    return {
        "hidden": hidden,
        "intermediate": config.optional("n_inner") or 4 * hidden,
        "layers": config.whole("n_layer", "num_hidden_layers"),
        "vocab": config.whole("vocab_size"),
        "max_context": config.whole("n_positions", "max_position_embeddings"),
        "tied_embeddings": config.tied(),
        "mlp_bias": True,
        "lm_head_bias": True,
        "norms_per_layer": 1,
        **_plain_heads(config, hidden, config.whole("n_head", "num_attention_heads")),
        **_LAYER_NORM,
    }


_FALCON: dict[str, Any] = {"max_position_embeddings": 2048, "tie_word_embeddings": True}


@_reads("falcon", "FalconForCausalLM", "RWForCausalLM", multi_query=True, parallel_attn=True, **_FALCON)
@_reads("RefinedWebModel", "RWForCausalLM", "FalconForCausalLM", **_FALCON)
@_reads("RefinedWeb", "RWForCausalLM", "FalconForCausalLM", new_decoder_architecture=True, **_FALCON)
def _falcon(config: _Config) -> Fields:
    hidden = config.whole("hidden_size", "n_embed")
    heads = config.whole("num_attention_heads", "n_head")
    new = config.flag("new_decoder_architecture")
    needed = {"falcon": (), "RefinedWeb": ("parallel_attn",), "RefinedWebModel": ("multi_query", "parallel_attn")}
    for key in needed[config.kind]:  # older files, whose code came with them in several versions
        if config.table.get(key) is None:
            raise config.error(f"{key} is missing")
    if new:
        kv_heads = config.optional("num_kv_heads", "n_head_kv") or heads
    else:
        kv_heads = 1 if config.flag("multi_query") else heads
    norms = (config.optional("num_ln_in_parallel_attn") or 2) if new else 1
    if norms > 2:
        raise config.error(f"num_ln_in_parallel_attn must be 1 or 2, got {norms}")
    bias = config.flag("bias")
    return {
        "hidden": hidden,
        "intermediate": config.optional("ffn_hidden_size") or 4 * hidden,
        "layers": config.whole("num_hidden_layers", "n_layer"),
        "vocab": config.whole("vocab_size"),
        "max_context": config.whole("max_position_embeddings"),
        "tied_embeddings": config.tied(),
        "qkv_bias": bias,
        "attn_out_bias": bias,
        "mlp_bias": bias,
        "rotary": not config.flag("alibi"),
        "norms_per_layer": norms if config.flag("parallel_attn") else 2,
        **_plain_heads(config, hidden, heads),
        "kv_heads": kv_heads,
        **_LAYER_NORM,
    }


_DEEPSEEK: dict[str, Any] = {
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "moe_layer_freq": 1,
}


@_reads(
    "deepseek_v2",
    "DeepseekV2ForCausalLM",
    max_position_embeddings=2048,
    n_routed_experts=64,
    n_shared_experts=2,
    moe_intermediate_size=1407,
    first_k_dense_replace=0,
    **_DEEPSEEK,
)
def _deepseek(config: _Config) -> Fields:
    heads, layers = config.whole("num_attention_heads"), config.whole("num_hidden_layers")
    if (stated := config.optional("num_key_value_heads")) not in (0, heads):
        raise config.error(f"num_key_value_heads {stated} contradicts {heads} heads over one latent")
    first, step = config.whole("first_k_dense_replace", least=0), config.whole("moe_layer_freq")
    sparse = max(-(-layers // step) - -(-first // step), 0)  # multiples of step from first on, below layers
    if not sparse:
        raise config.error("first_k_dense_replace and moe_layer_freq leave no layer with experts")
    experts = _routed(config, "n_routed_experts", "num_local_experts")
    nope, rope = config.whole("qk_nope_head_dim"), config.whole("qk_rope_head_dim")
    return {
        "hidden": config.whole("hidden_size"),
        "intermediate": config.whole("intermediate_size"),
        "layers": layers,
        "heads": heads,
        "kv_heads": 1,
        "head_dim": nope + rope,
        "vocab": config.whole("vocab_size"),
        "max_context": config.whole("max_position_embeddings"),
        "tied_embeddings": config.tied(),
        "mlp_bias": config.flag("mlp_bias"),
        "kv_lora_rank": config.whole("kv_lora_rank"),
        "q_lora_rank": config.optional("q_lora_rank"),
        "qk_nope_head_dim": nope,
        "qk_rope_head_dim": rope,
        "v_head_dim": config.whole("v_head_dim"),
        "dense_layers": layers - sparse,
        "shared_width": config.optional("n_shared_experts") * experts["expert_width"],
        **experts,
        **_attention_bias(config),
    }


@_reads(
    "deepseek_v3",
    "DeepseekV3ForCausalLM",
    max_position_embeddings=4096,
    n_routed_experts=256,
    n_shared_experts=1,
    num_experts_per_tok=8,
    moe_intermediate_size=2048,
    first_k_dense_replace=3,
    **_DEEPSEEK,
)
def _deepseek_v3(config: _Config) -> Fields:
    """The module for multi-token prediction (num_nextn_predict_layers) is left out."""
    return _deepseek(config) | {"router_bias": True}  # e_score_correction_bias


SUPPORTED: tuple[str, ...] = tuple(sorted(_ARCHITECTURES, key=str.casefold))
"""Every model_type that is read."""


# --- the file


def read_config(config: str | Path | Mapping[str, Any], name: str | None = None) -> ModelShapes:
    """Shapes from a config.json; see `ModelShapes.from_hf_config`."""
    if isinstance(config, Mapping):
        where, default_name, table = "config", "config.json", config
    else:
        path, where = _config_path(Path(config))
        table = _read_json(path, where)
        default_name = path.parent.name if path.stem == "config" else path.stem.removesuffix("_config")
    stated = table.get("_name_or_path")
    if not isinstance(stated, str | None):
        raise ValueError(f"{where}: _name_or_path must be text, got {shown(stated)}")
    read = _checked(where, table)
    fields = _ARCHITECTURES[read.kind].read(read)
    _check_unread(read, fields)
    number_format = _number_format(read)
    try:
        return ModelShapes(name=name or stated or default_name, source=where, number_format=number_format, **fields)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error


def _checked(where: str, table: Mapping[str, Any]) -> _Config:
    """The config of an architecture that is read, its general contradictions refused."""
    kind = table.get("model_type")
    if not isinstance(kind, str) or kind not in _ARCHITECTURES:
        why = _fault(table, kind)
        what = f": it has {why}" if why else f"; read are {', '.join(SUPPORTED)}"
        raise ValueError(f"{where}: model_type {shown(kind)} is not modelled{what}")
    known = _ARCHITECTURES[kind]
    inner = table.get("text_config") if known.nested else table
    if not isinstance(inner, Mapping):
        raise ValueError(f"{where}: model_type {kind!r} needs a text_config, got {shown(inner)}")
    if known.nested and inner.get("model_type", known.nested) != known.nested:
        raise ValueError(
            f"{where}: text_config.model_type {shown(inner['model_type'])} contradicts model_type {kind!r}"
        )
    config = _Config(where, kind, inner, table, known.defaults)
    stated = table.get("architectures")
    if stated and not (isinstance(stated, list) and len(stated) == 1 and stated[0] in known.classes):
        raise config.error(f"architectures {shown(stated)} contradict model_type {kind!r} ({known.classes[0]})")
    for key, what in _FOREIGN_KEYS.items():
        if inner.get(key) or (key == "is_encoder_decoder" and table.get(key)):
            raise config.error(f"{key}: {what} are not modelled")
    return config


def _fault(table: Mapping[str, Any], kind: object) -> str:
    """The layers for which an architecture is not modelled, where that is known."""
    if isinstance(kind, str) and kind in _NOT_MODELLED:
        return _NOT_MODELLED[kind]
    text = table.get("text_config")
    for part in (table, text if isinstance(text, Mapping) else {}):
        for key, what in _FOREIGN_KEYS.items():
            if part.get(key):
                return f"{what} ({key})"
        layers = part.get("layer_types")
        for entry in layers if isinstance(layers, list) else ():
            if entry not in _LAYER_TYPES:
                return f"{shown(entry)} layers (layer_types)"
    return ""


def _check_unread(config: _Config, fields: Fields) -> None:
    """Refuses experts, windows and biases that the config states and the architecture does not have."""
    table, none = config.table, f"contradicts model_type {config.kind!r}, which has none"
    for key in _EXPERT_KEYS:
        if table.get(key) and key not in config.consulted:
            raise config.error(f"{key} {none}")
    switch = "use_sliding_window"
    unknown = not config.consulted & {"sliding_window", switch}
    if unknown and (table.get(switch) or (table.get(switch) is None and table.get("sliding_window"))):
        raise config.error(f"{switch if table.get(switch) else 'sliding_window'} {none}")
    if "layer_types" not in config.consulted and _windows(config, fields["layers"], 0):
        raise config.error(f"a sliding window in layer_types {none}")
    for key, field in (("attention_bias", "qkv_bias"), ("mlp_bias", "mlp_bias")):
        if config.flag(key) and not fields.get(field):
            raise config.error(f"{key} {none}")


def _number_format(config: _Config) -> str:
    """What `quantization_config` says of the stored weights, such as "fp8" or "gptq 4-bit"; "": nothing."""
    stated = config.outer.get("quantization_config") or config.table.get("quantization_config")
    if not stated:
        return ""
    method = stated.get("quant_method") if isinstance(stated, Mapping) else None
    if not isinstance(method, str) or not method.isprintable() or not 0 < len(method) <= 40:
        raise config.error(f"quantization_config must name its quant_method, got {shown(stated)}")
    bits = stated.get("bits", stated.get("w_bit"))
    if bits is None:
        bits = next((n for n in (4, 8) if stated.get(f"load_in_{n}bit") is True), None)
    if bits is None:
        return method
    if type(bits) is not int or not 1 <= bits <= 64:
        raise config.error(f"quantization_config.bits must be a whole number from 1 to 64, got {shown(bits)}")
    return f"{method} {bits}-bit"


def _config_path(path: Path) -> tuple[Path, str]:
    """The file, also where the folder that holds it is given, and how messages call it."""
    with contextlib.suppress(OSError, ValueError):  # no possible name of a file; reading it says so
        path = path / "config.json" if path.is_dir() else path
    return path, inputs.called(path)


def _read_json(path: Path, where: str) -> dict[str, Any]:
    """The object in a JSON file; ValueError that names the file where there is none."""

    def refuse(why: str) -> ValueError:
        return ValueError(f"{where}: expected a config.json ({why})")

    try:
        content = inputs.read(path, _LARGEST_FILE)
    except ValueError as error:
        raise refuse(str(error)) from error
    try:
        table = json.loads(content.decode("utf-8-sig"), object_pairs_hook=_object)
    except UnicodeDecodeError as error:
        raise refuse("it is not UTF-8 text") from error
    except RecursionError as error:
        raise refuse("it is nested too deeply") from error
    except ValueError as error:
        raise refuse(" ".join(str(error).split())[:120]) from error
    if not isinstance(table, dict):
        raise ValueError(f"{where}: expected a JSON object, got {type(table).__name__}")
    return table


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object; a key that is stated twice is an error."""
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key {shown(key)} is stated twice")
        found[key] = value
    return found
