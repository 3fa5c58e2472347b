"""One function per architecture: the keys of its config.json -> fields of ModelShapes.

An architecture is a function under `@_reads(model_type, class name, default keys ...)`. Keys that a config leaves
out get the default of the architecture's configuration class in transformers 4.57; those defaults stand beside the
function. Sizes have a default only where published configs leave them out (nested `text_config`): else a missing
one is an error, for a config without its hidden_size is damaged.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rooffloor.models.specs.hf.keys import Config
from rooffloor.models.specs.inputs import shown

type Fields = dict[str, Any]

LAYER_TYPES = ("full_attention", "sliding_attention")


@dataclass(frozen=True)
class Architecture:
    """How configs of one model_type are read.

    Attributes
    ----------
    classes : tuple of str
        What `architectures` may name.
    defaults : mapping
    read : function
        Config -> fields of ModelShapes.
    nested : str
        The model_type of the `text_config` that holds the keys; "": nothing is nested.
    """

    classes: tuple[str, ...]
    defaults: Mapping[str, Any]
    read: Callable[[Config], Fields]
    nested: str = ""


ARCHITECTURES: dict[str, Architecture] = {}


def _reads[F: Callable[[Config], Fields]](
    kind: str, *classes: str, nested: str = "", **defaults: Any
) -> Callable[[F], F]:
    """Registers a function as the reader of a model_type."""

    def register(read: F) -> F:
        ARCHITECTURES[kind] = Architecture(classes, defaults, read, nested)
        return read

    return register


# --- what several architectures share


def _attention_sizes(config: Config, hidden: int, heads: int) -> Fields:
    """KV heads and head_dim; null or no default: one KV head per query head, and hidden_size / heads."""
    head_dim = config.optional("head_dim")
    if not head_dim and hidden % heads:
        raise config.error(f"head_dim is missing and hidden_size {hidden} is no multiple of {heads} heads")
    return {
        "heads": heads,
        "kv_heads": config.optional("num_key_value_heads") or heads,
        "head_dim": head_dim or hidden // heads,
    }


def _plain_heads(config: Config, hidden: int, heads: int) -> Fields:
    """Heads of architectures that know neither grouped heads nor a head_dim of their own."""
    if hidden % heads:
        raise config.error(f"hidden size {hidden} is no multiple of {heads} heads")
    for key, derived in (("num_key_value_heads", heads), ("head_dim", hidden // heads)):
        if config.table.get(key) not in (None, derived):
            raise config.error(f"{key} {shown(config.table[key])} contradicts model_type {config.kind!r} ({derived})")
    return {"heads": heads, "kv_heads": heads, "head_dim": hidden // heads}


def _common(config: Config) -> Fields:
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


_QWEN_EXPERTS = ("num_experts", "num_local_experts")
_LAYER_NORM = {"norm_bias": True, "gated_mlp": False}


# --- the architectures


@_reads("llama", "LlamaForCausalLM", "LLaMAForCausalLM", max_position_embeddings=2048)
def _llama(config: Config) -> Fields:
    return _common(config) | _attention_bias(config) | {"mlp_bias": config.flag("mlp_bias")}


@_reads("mistral", "MistralForCausalLM", num_key_value_heads=8, max_position_embeddings=131072, sliding_window=4096)
def _mistral(config: Config) -> Fields:
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
def _mixtral(config: Config) -> Fields:
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
def _qwen2(config: Config) -> Fields:
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
def _qwen2_moe(config: Config) -> Fields:
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
def _qwen3(config: Config) -> Fields:
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
def _qwen3_moe(config: Config) -> Fields:
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
def _qwen3_text(config: Config) -> Fields:
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
def _qwen3_moe_text(config: Config) -> Fields:
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
def _gemma2(config: Config) -> Fields:
    fields = _common(config) | _attention_bias(config) | {"norms_per_layer": 4}
    return fields | windows(config, fields["layers"], (fields["layers"] + 1) // 2)


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
def _gemma3(config: Config) -> Fields:
    fields = _common(config) | _attention_bias(config) | {"norms_per_layer": 4, "qk_norm": True}
    whole = fields["layers"] // config.whole("sliding_window_pattern", "_sliding_window_pattern")
    return fields | windows(config, fields["layers"], fields["layers"] - whole)


@_reads("phi3", "Phi3ForCausalLM", max_position_embeddings=4096)
def _phi3(config: Config) -> Fields:
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
def _gpt_oss(config: Config) -> Fields:
    if not config.flag("attention_bias"):
        raise config.error("attention_bias false contradicts model_type 'gpt_oss'")
    fields = _common(config) | _routed(config, "num_local_experts", width="intermediate_size")
    biases = dict.fromkeys(("qkv_bias", "attn_out_bias", "mlp_bias", "router_bias", "attention_sinks"), True)
    return fields | biases | windows(config, fields["layers"], (fields["layers"] + 1) // 2)


@_reads("olmo", "OlmoForCausalLM", max_position_embeddings=2048)
def _olmo(config: Config) -> Fields:
    return _common(config) | _attention_bias(config) | {"norm_weights": False}


@_reads("olmo2", "Olmo2ForCausalLM", max_position_embeddings=2048)
def _olmo2(config: Config) -> Fields:
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
def _opt(config: Config) -> Fields:
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
def _bloom(config: Config) -> Fields:
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
def _gptj(config: Config) -> Fields:
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
def _falcon(config: Config) -> Fields:
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
def _deepseek(config: Config) -> Fields:
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
def _deepseek_v3(config: Config) -> Fields:
    """The module for multi-token prediction (num_nextn_predict_layers) is left out."""
    return _deepseek(config) | {"router_bias": True}  # e_score_correction_bias


SUPPORTED: tuple[str, ...] = tuple(sorted(ARCHITECTURES, key=str.casefold))
"""Every model_type that is read."""
