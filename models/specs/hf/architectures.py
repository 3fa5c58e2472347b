"""One function per architecture: the keys of its config.json -> fields of ModelShapes.

An architecture is a table in architectures.toml, which has the names and the defaults, and a function under
`@_reads(model_type)`; or `like` in its table, the model_type whose function reads it too. A key that neither the config
nor the table has is an error: a config without its hidden_size is damaged.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rooffloor.models.specs.hf.keys import Config
from rooffloor.models.specs.inputs import read_toml, shown

type Fields = dict[str, Any]

LAYER_TYPES = ("full_attention", "sliding_attention")


@dataclass(frozen=True)
class Architecture:
    """How configs of one model_type are read.

    Attributes
    ----------
    read : function
        Config -> fields of ModelShapes.
    classes : tuple of str
        What `architectures` may name.
    defaults : mapping
        Values of keys that a config leaves out.
    nested : str
        The model_type of the `text_config` that holds the keys; "": nothing is nested.
    """

    read: Callable[[Config], Fields]
    classes: tuple[str, ...]
    defaults: Mapping[str, Any]
    nested: str = ""


_TABLE = read_toml(Path(__file__).with_suffix(".toml"))
ARCHITECTURES: dict[str, Architecture] = {}


def _reads[F: Callable[[Config], Fields]](*kinds: str) -> Callable[[F], F]:
    """Registers a function as the reader of some model_types."""

    def register(read: F) -> F:
        for kind, entry in _TABLE.items():
            if entry.get("like", kind) in kinds:
                ARCHITECTURES[kind] = Architecture(
                    read, tuple(entry["classes"]), entry.get("defaults", {}), entry.get("nested", "")
                )
        return read

    return register


# --- what several architectures share

_SIZES = {
    "hidden": ("hidden_size",),
    "intermediate": ("intermediate_size",),
    "layers": ("num_hidden_layers",),
    "vocab": ("vocab_size",),
    "max_context": ("max_position_embeddings",),
}
_QWEN_EXPERTS = ("num_experts", "num_local_experts")
_LAYER_NORM = {"norm_bias": True, "gated_mlp": False}


def _sizes(config: Config, **named: tuple[str, ...]) -> Fields:
    """Sizes under the names that most architectures give them, or those in `named` (empty: not read)."""
    sizes = {field: config.whole(*keys) for field, keys in (_SIZES | named).items() if keys}
    return sizes | {"tied_embeddings": config.tied()}


def _common(config: Config) -> Fields:
    """Sizes and heads; null or no default: one KV head per query head, and a head_dim of hidden_size / heads."""
    fields = _sizes(config)
    hidden, heads, head_dim = fields["hidden"], config.whole("num_attention_heads"), config.optional("head_dim")
    if not head_dim and hidden % heads:
        raise config.error(f"head_dim is missing and hidden_size {hidden} is no multiple of {heads} heads")
    kv_heads = config.optional("num_key_value_heads") or heads
    return fields | {"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim or hidden // heads}


def _plain_heads(config: Config, hidden: int, heads: int) -> Fields:
    """Heads of architectures that know neither grouped heads nor a head_dim of their own."""
    if hidden % heads:
        raise config.error(f"hidden size {hidden} is no multiple of {heads} heads")
    for key, derived in (("num_key_value_heads", heads), ("head_dim", hidden // heads)):
        if config.table.get(key) not in (None, derived):
            raise config.error(f"{key} {shown(config.table[key])} contradicts model_type {config.kind!r} ({derived})")
    return {"heads": heads, "kv_heads": heads, "head_dim": hidden // heads}


def _biases(bias: bool) -> Fields:
    return dict.fromkeys(("qkv_bias", "attn_out_bias", "mlp_bias"), bias)


def _attention_bias(config: Config) -> Fields:
    bias = config.flag("attention_bias")
    return {"qkv_bias": bias, "attn_out_bias": bias}


def windows(config: Config, layers: int, windowed: int) -> Fields:
    """Window fields: `layer_types` says which layers have the sliding window, else `windowed` of them do."""
    stated, window = config.value("layer_types"), config.optional("sliding_window")
    if stated is not None:
        if not isinstance(stated, list) or len(stated) != layers:
            got = f"{len(stated)} of them" if isinstance(stated, list) else shown(stated)
            raise config.error(f"layer_types must list {layers} layers, got {got}")
        for entry in stated:
            if entry not in LAYER_TYPES:
                raise config.error(f"layer_types: {shown(entry)} layers are not modelled")
        windowed = stated.count("sliding_attention")
    if not windowed:
        return {}
    if not window:
        raise config.error("sliding_window is missing, yet layers have sliding attention")
    return {"sliding_window": window, "windowed_layers": windowed if windowed < layers else 0}


def _window_everywhere(config: Config, layers: int) -> Fields:
    """Window fields where every layer has the window, if there is one."""
    return windows(config, layers, layers if config.optional("sliding_window") else 0)


def _switched_window(config: Config, layers: int, first: str = "") -> Fields:
    """Window fields of Qwen: with `use_sliding_window` the layers from number `first` (a key) on have the window."""
    if config.flag("use_sliding_window"):
        return windows(config, layers, max(layers - config.whole(first, least=0), 0) if first else layers)
    if config.value("layer_types") is not None and windows(config, layers, 0):
        raise config.error("layer_types with a sliding window contradict use_sliding_window, which is not true")
    return {}


def _sparse_layers(config: Config, layers: int) -> Fields:
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


def _routed(config: Config, experts: str, *others: str, width: str = "moe_intermediate_size") -> Fields:
    return {
        "experts": config.whole(experts, *others),
        "top_k": config.whole("num_experts_per_tok"),
        "expert_width": config.whole(width),
    }


# --- the architectures


@_reads("llama")
def _llama(config: Config) -> Fields:
    return _common(config) | _attention_bias(config) | {"mlp_bias": config.flag("mlp_bias")}


@_reads("mistral")
def _mistral(config: Config) -> Fields:
    fields = _common(config)
    return fields | _window_everywhere(config, fields["layers"])


@_reads("mixtral")
def _mixtral(config: Config) -> Fields:
    return _mistral(config) | _routed(config, "num_local_experts", width="intermediate_size")


@_reads("qwen2")
def _qwen2(config: Config) -> Fields:
    fields = _common(config) | {"qkv_bias": config.flag("qkv_bias")}
    return fields | _switched_window(config, fields["layers"], "max_window_layers")


@_reads("qwen2_moe")
def _qwen2_moe(config: Config) -> Fields:
    fields = _qwen2(config)
    shared = {"shared_width": config.whole("shared_expert_intermediate_size"), "shared_gate": True}
    return fields | _routed(config, *_QWEN_EXPERTS) | shared | _sparse_layers(config, fields["layers"])


@_reads("qwen3_vl")
def _qwen3_text(config: Config) -> Fields:
    return _common(config) | _attention_bias(config) | {"qk_norm": True}


@_reads("qwen3")
def _qwen3(config: Config) -> Fields:
    fields = _qwen3_text(config)
    return fields | _switched_window(config, fields["layers"], "max_window_layers")


@_reads("qwen3_vl_moe")
def _qwen3_moe_text(config: Config) -> Fields:
    fields = _qwen3_text(config)
    return fields | _routed(config, *_QWEN_EXPERTS) | _sparse_layers(config, fields["layers"])


@_reads("qwen3_moe")
def _qwen3_moe(config: Config) -> Fields:
    """The window holds in every layer: this architecture does not know max_window_layers."""
    fields = _qwen3_moe_text(config)
    return fields | _switched_window(config, fields["layers"])


@_reads("gemma2")
def _gemma2(config: Config) -> Fields:
    fields = _common(config) | _attention_bias(config) | {"norms_per_layer": 4}
    return fields | windows(config, fields["layers"], (fields["layers"] + 1) // 2)


@_reads("gemma3_text", "gemma3")
def _gemma3(config: Config) -> Fields:
    fields = _common(config) | _attention_bias(config) | {"norms_per_layer": 4, "qk_norm": True}
    whole = fields["layers"] // config.whole("sliding_window_pattern", "_sliding_window_pattern")
    return fields | windows(config, fields["layers"], fields["layers"] - whole)


@_reads("gpt_oss")
def _gpt_oss(config: Config) -> Fields:
    if not config.flag("attention_bias"):
        raise config.error("attention_bias false contradicts model_type 'gpt_oss'")
    fields = _common(config) | _routed(config, "num_local_experts", width="intermediate_size")
    fields |= _biases(True) | {"router_bias": True, "attention_sinks": True}
    return fields | windows(config, fields["layers"], (fields["layers"] + 1) // 2)


@_reads("olmo")
def _olmo(config: Config) -> Fields:
    return _common(config) | _attention_bias(config) | {"norm_weights": False}


@_reads("olmo2")
def _olmo2(config: Config) -> Fields:
    return _common(config) | _attention_bias(config) | {"qk_norm": True, "qk_norm_wide": True}


@_reads("opt")
def _opt(config: Config) -> Fields:
    fields = _sizes(config, intermediate=("ffn_dim",))
    hidden = fields["hidden"]
    if (projected := config.optional("word_embed_proj_dim")) and projected != hidden:
        raise config.error(f"word_embed_proj_dim {projected}: projections of the embedding are not modelled")
    if not config.flag("do_layer_norm_before") or config.flag("_remove_final_layer_norm"):
        raise config.error("do_layer_norm_before: a model without a final norm is not modelled")
    return {
        **fields,
        "learned_positions": fields["max_context"] + 2,  # the table starts with an offset of 2
        "norm_weights": config.flag("layer_norm_elementwise_affine"),
        "rotary": False,
        **_biases(config.flag("enable_bias")),
        **_plain_heads(config, hidden, config.whole("num_attention_heads")),
        **_LAYER_NORM,
    }


@_reads("bloom")
def _bloom(config: Config) -> Fields:
    fields = _sizes(
        config,
        hidden=("hidden_size", "n_embed"),
        intermediate=(),
        layers=("num_hidden_layers", "n_layer"),
        max_context=("seq_length",),  # trained on; ALiBi has no hard limit
    )
    return {
        **fields,
        "intermediate": 4 * fields["hidden"],
        "embedding_norm": True,
        "rotary": False,
        **_biases(True),
        **_plain_heads(config, fields["hidden"], config.whole("num_attention_heads", "n_head")),
        **_LAYER_NORM,
    }


@_reads("gptj")
def _gptj(config: Config) -> Fields:
    fields = _sizes(
        config,
        hidden=("n_embd", "hidden_size"),
        intermediate=(),
        layers=("n_layer", "num_hidden_layers"),
        max_context=("n_positions", "max_position_embeddings"),
    )
    return {
        **fields,
        "intermediate": config.optional("n_inner") or 4 * fields["hidden"],
        "mlp_bias": True,
        "lm_head_bias": True,
        "norms_per_layer": 1,
        **_plain_heads(config, fields["hidden"], config.whole("n_head", "num_attention_heads")),
        **_LAYER_NORM,
    }


@_reads("falcon", "RefinedWebModel", "RefinedWeb")
def _falcon(config: Config) -> Fields:
    fields = _sizes(config, hidden=("hidden_size", "n_embed"), intermediate=(), layers=("num_hidden_layers", "n_layer"))
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
    return {
        **fields,
        "intermediate": config.optional("ffn_hidden_size") or 4 * fields["hidden"],
        "rotary": not config.flag("alibi"),
        "norms_per_layer": norms if config.flag("parallel_attn") else 2,
        **_biases(config.flag("bias")),
        **_plain_heads(config, fields["hidden"], heads),
        "kv_heads": kv_heads,
        **_LAYER_NORM,
    }


@_reads("deepseek_v2")
def _deepseek(config: Config) -> Fields:
    fields, heads = _sizes(config), config.whole("num_attention_heads")
    layers = fields["layers"]
    if (stated := config.optional("num_key_value_heads")) not in (0, heads):
        raise config.error(f"num_key_value_heads {stated} contradicts {heads} heads over one latent")
    first, step = config.whole("first_k_dense_replace", least=0), config.whole("moe_layer_freq")
    sparse = max(-(-layers // step) - -(-first // step), 0)  # multiples of step from first on, below layers
    if not sparse:
        raise config.error("first_k_dense_replace and moe_layer_freq leave no layer with experts")
    experts = _routed(config, "n_routed_experts", "num_local_experts")
    latent = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    fields |= {name: config.whole(name) for name in latent}
    return {
        **fields,
        "heads": heads,
        "kv_heads": 1,
        "head_dim": fields["qk_nope_head_dim"] + fields["qk_rope_head_dim"],
        "mlp_bias": config.flag("mlp_bias"),
        "q_lora_rank": config.optional("q_lora_rank"),
        "dense_layers": layers - sparse,
        "shared_width": config.optional("n_shared_experts") * experts["expert_width"],
        **experts,
        **_attention_bias(config),
    }


@_reads("deepseek_v3")
def _deepseek_v3(config: Config) -> Fields:
    """The module for multi-token prediction (num_nextn_predict_layers) is left out."""
    return _deepseek(config) | {"router_bias": True}  # e_score_correction_bias


SUPPORTED: tuple[str, ...] = tuple(sorted(ARCHITECTURES, key=str.casefold))
"""Every model_type that is read."""
