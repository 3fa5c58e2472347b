"""The config.json reader: published sizes, what configs leave out, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from rooffloor.models.specs import shapes
from rooffloor.models.specs.hf.config import SUPPORTED, read_config


def sizes(hidden: int, intermediate: int, layers: int, heads: int, kv: int | None, vocab: int) -> dict[str, Any]:
    """The keys that most architectures share; without `kv` num_key_value_heads is left out."""
    found = {
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "vocab_size": vocab,
    }
    return found if kv is None else found | {"num_key_value_heads": kv}


QWEN_MOE_15 = {"num_experts": 60, "num_experts_per_tok": 4, "moe_intermediate_size": 1408}
DEEPSEEK_LITE = {
    "kv_lora_rank": 512,
    "q_lora_rank": None,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "n_routed_experts": 64,
    "n_shared_experts": 2,
    "num_experts_per_tok": 6,
    "moe_intermediate_size": 1408,
    "first_k_dense_replace": 1,
}
FALCON_7B = {"hidden_size": 4544, "vocab_size": 65024, "multi_query": True, "parallel_attn": True, "bias": False}

# name: (config, parameters of the checkpoint, of its text part where there is a vision tower)
PUBLISHED: dict[str, tuple[dict[str, Any], int]] = {
    "Llama-3.1-8B": ({"model_type": "llama"} | sizes(4096, 14336, 32, 32, 8, 128256), 8_030_261_248),
    "Llama-2-7b": ({"model_type": "llama"} | sizes(4096, 11008, 32, 32, None, 32000), 6_738_415_616),
    "Llama-3.2-1B": (
        {"model_type": "llama", "tie_word_embeddings": True, "head_dim": 64} | sizes(2048, 8192, 16, 32, 8, 128256),
        1_235_814_400,
    ),
    "Mistral-7B-v0.1": ({"model_type": "mistral"} | sizes(4096, 14336, 32, 32, 8, 32000), 7_241_732_096),
    "Mixtral-8x7B-v0.1": ({"model_type": "mixtral"} | sizes(4096, 14336, 32, 32, 8, 32000), 46_702_792_704),
    "Qwen2-7B": ({"model_type": "qwen2"} | sizes(3584, 18944, 28, 28, 4, 152064), 7_615_616_512),
    "Qwen1.5-MoE-A2.7B": (
        {"model_type": "qwen2_moe", "shared_expert_intermediate_size": 5632}
        | sizes(2048, 5632, 24, 16, 16, 151936)
        | QWEN_MOE_15,
        14_315_784_192,
    ),
    "Qwen3-8B": ({"model_type": "qwen3"} | sizes(4096, 12288, 36, 32, 8, 151936), 8_190_735_360),
    "Qwen3-30B-A3B": (
        {"model_type": "qwen3_moe", "head_dim": 128} | sizes(2048, 6144, 48, 32, 4, 151936),
        30_532_122_624,
    ),
    "Qwen3-VL-4B": (
        {
            "model_type": "qwen3_vl",
            "tie_word_embeddings": True,
            "vision_config": {"hidden_size": 1024},
            "text_config": {"model_type": "qwen3_vl_text"} | sizes(2560, 9728, 36, 32, 8, 151936),
        },
        4_022_468_096,
    ),
    "Qwen3-VL-30B-A3B": (
        {
            "model_type": "qwen3_vl_moe",
            "text_config": {"head_dim": 128, "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768}
            | sizes(2048, 6144, 48, 32, 4, 151936),
        },
        30_532_122_624,
    ),
    "gemma-2-2b": ({"model_type": "gemma2"} | sizes(2304, 9216, 26, 8, 4, 256000), 2_614_341_888),
    "gemma-2-9b": ({"model_type": "gemma2"} | sizes(3584, 14336, 42, 16, 8, 256000), 9_241_705_984),
    "gemma-2-27b": (
        {"model_type": "gemma2", "head_dim": 128} | sizes(4608, 36864, 46, 32, 16, 256000),
        27_227_128_320,
    ),
    "gemma-3-1b": ({"model_type": "gemma3_text"} | sizes(1152, 6912, 26, 4, 1, 262144), 999_885_952),
    "gemma-3-4b": (
        {
            "model_type": "gemma3",
            "text_config": {"hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34},
        },
        4_300_079_472 - 416_866_032 - 1153 * 2560 + 2560 - 1152,  # less the vision tower and its projector
    ),
    "gemma-3-27b": (
        {
            "model_type": "gemma3",
            "text_config": {"head_dim": 128} | sizes(5376, 21504, 62, 32, 16, 262208),
        },
        27_432_406_640 - 416_866_032 - 1153 * 5376 + 5376 - 1152,
    ),
    "Phi-3-mini": (
        {"model_type": "phi3", "sliding_window": 2047} | sizes(3072, 8192, 32, 32, 32, 32064),
        3_821_079_552,
    ),
    "Phi-3-medium": ({"model_type": "phi3"} | sizes(5120, 17920, 40, 40, 10, 32064), 13_960_238_080),
    "Phi-4-mini": (
        {"model_type": "phi3", "tie_word_embeddings": True} | sizes(3072, 8192, 32, 24, 8, 200064),
        3_836_021_760,
    ),
    "gpt-oss-20b": (
        {"model_type": "gpt_oss", "num_local_experts": 32} | sizes(2880, 2880, 24, 64, 8, 201088),
        20_914_757_184,
    ),
    "gpt-oss-120b": ({"model_type": "gpt_oss"} | sizes(2880, 2880, 36, 64, 8, 201088), 116_829_156_672),
    "OLMo-7B": ({"model_type": "olmo"} | sizes(4096, 11008, 32, 32, 32, 50304), 6_888_095_744),
    "OLMo-2-7B": ({"model_type": "olmo2"} | sizes(4096, 11008, 32, 32, 32, 100352), 7_298_617_344),
    "opt-1.3b": (
        {"model_type": "opt", "ffn_dim": 8192, "word_embed_proj_dim": 2048} | sizes(2048, 1, 24, 32, None, 50272),
        1_315_758_080,
    ),
    "opt-6.7b": ({"model_type": "opt", "ffn_dim": 16384} | sizes(4096, 1, 32, 32, None, 50272), 6_658_473_984),
    "bloom-560m": (
        {"model_type": "bloom", "n_embed": 1024, "n_layer": 24, "num_attention_heads": 16, "vocab_size": 250880},
        559_214_592,
    ),
    "bloom-7b1": (
        {"model_type": "bloom", "hidden_size": 4096, "n_layer": 30, "n_head": 32, "vocab_size": 250880},
        7_069_016_064,
    ),
    "gpt-j-6b": (
        {"model_type": "gptj", "n_embd": 4096, "n_layer": 28, "n_head": 16, "n_inner": None, "vocab_size": 50400},
        6_050_882_784,
    ),
    "DeepSeek-V2-Lite": (
        {"model_type": "deepseek_v2"} | sizes(2048, 10944, 27, 16, 16, 102400) | DEEPSEEK_LITE,
        15_706_484_224,
    ),
    "DeepSeek-V3": (  # with the routers' correction biases, without the multi-token prediction module
        {"model_type": "deepseek_v3"} | sizes(7168, 18432, 61, 128, 128, 129280),
        671_026_419_200,
    ),
}
# Falcon checkpoints hold the tied table twice, and their published sizes count it twice
FALCONS: dict[str, tuple[dict[str, Any], int]] = {
    "falcon-7b": (
        {"model_type": "falcon", "num_hidden_layers": 32, "num_attention_heads": 71, "num_kv_heads": 71} | FALCON_7B,
        7_217_189_760,
    ),
    "falcon-7b, original": ({"model_type": "RefinedWebModel", "n_layer": 32, "n_head": 71} | FALCON_7B, 7_217_189_760),
    "falcon-40b": (
        {
            "model_type": "falcon",
            "hidden_size": 8192,
            "num_hidden_layers": 60,
            "num_attention_heads": 128,
            "num_kv_heads": 8,
            "new_decoder_architecture": True,
            "vocab_size": 65024,
        },
        41_835_970_560,
    ),
    "falcon-40b, original": (
        {
            "model_type": "RefinedWeb",
            "architectures": ["RWForCausalLM"],
            "hidden_size": 8192,
            "n_layer": 60,
            "n_head": 128,
            "n_head_kv": 8,
            "parallel_attn": True,
            "vocab_size": 65024,
        },
        41_835_970_560,
    ),
}
FALCON_11B = {
    "model_type": "falcon",
    "hidden_size": 4096,
    "num_hidden_layers": 60,
    "num_attention_heads": 32,
    "num_kv_heads": 8,
    "new_decoder_architecture": True,
    "num_ln_in_parallel_attn": 1,
    "ffn_hidden_size": 16384,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": False,
    "vocab_size": 65024,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_the_published_ones(name):
    config, parameters = PUBLISHED[name]
    assert read_config(config, name).parameters == parameters


@pytest.mark.parametrize("name", FALCONS)
def test_falcon_parameters_are_the_published_ones_less_the_second_copy_of_the_tied_table(name):
    config, parameters = FALCONS[name]
    model = read_config(config, name)
    assert model.tied_embeddings
    assert model.parameters + model.hidden * model.vocab == parameters


def test_every_architecture_has_a_published_size():
    assert {config["model_type"] for config, _ in (PUBLISHED | FALCONS).values()} == set(SUPPORTED)


# --- real files


@pytest.mark.parametrize(
    ("file", "parameters_b", "number_format"),
    [
        ("meta-llama--Meta-Llama-3.1-8B", 8.030, ""),
        ("meta-llama--Meta-Llama-3.1-70B", 70.554, ""),
        ("mistralai--Mixtral-8x7B-v0.1", 46.703, ""),
        ("Qwen--Qwen3-0.6B", 0.596, ""),
        ("Qwen--Qwen3-8B", 8.191, ""),
        ("Qwen--Qwen3-30B-A3B", 30.532, ""),
        ("Qwen--Qwen3-VL-4B-Instruct", 4.022, ""),
        ("openai--gpt-oss-20b", 20.915, "mxfp4"),
        ("deepseek-ai--DeepSeek-V3", 671.026, "fp8"),
    ],
)
def test_real_configs(shared: Path, file, parameters_b, number_format):
    model = read_config(real(shared, file))
    assert model.parameters / 1e9 == pytest.approx(parameters_b, rel=1e-3)
    assert (model.name, model.number_format) == (file, number_format)


def test_real_config_equals_the_catalog(shared: Path):
    read = read_config(real(shared, "meta-llama--Meta-Llama-3.1-8B"), name="Llama-3.1-8B")
    known = shapes.load("Llama-3.1-8B")
    assert read.linear_weights == known.linear_weights
    assert read.small_weights == known.small_weights
    assert (read.max_context, read.name) == (known.max_context, known.name)


@pytest.mark.parametrize(
    ("file", "what"),
    [
        ("google--gemma-4-26B-A4B", "'gemma4' is not modelled: it has attention layers of two head sizes"),
        ("meta-llama--Llama-4-Scout-17B-16E-Instruct", "'llama4' is not modelled: it has chunked-attention layers"),
        ("nvidia--Nemotron-H-56B-Base-8K", r"'nemotron_h' is not modelled: it has state-space \(Mamba\) layers"),
    ],
)
def test_real_configs_that_the_roof_does_not_model(shared: Path, file, what):
    with pytest.raises(ValueError, match=f"{file}_config.json: model_type {what}") as error:
        read_config(real(shared, file))
    assert "\n" not in str(error.value)


def real(shared: Path, file: str) -> Path:
    path = shared / "data" / "configs" / f"{file}_config.json"
    if not path.exists():
        pytest.skip(f"{path} is not here")
    return path


# --- what a config says and leaves out

LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "max_position_embeddings": 2048,
} | sizes(64, 160, 3, 4, 2, 1000)
BARE = LLAMA | {"architectures": None}
QWEN_MOE = BARE | {
    "model_type": "qwen2_moe",
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 96,
    "decoder_sparse_step": 1,
}
OPT = {"model_type": "opt", "ffn_dim": 256} | sizes(64, 1, 3, 4, None, 1000)
GPTJ = {"model_type": "gptj", "n_embd": 64, "n_layer": 3, "n_head": 4, "vocab_size": 1000}
BLOOM = {"model_type": "bloom", "hidden_size": 64, "n_layer": 3, "n_head": 4, "vocab_size": 1000}
FALCON = {"model_type": "falcon"} | sizes(64, 1, 3, 4, None, 1000)
DEEPSEEK = BARE | DEEPSEEK_LITE | {"model_type": "deepseek_v2", "num_hidden_layers": 9, "num_key_value_heads": 4}
GPT_OSS = BARE | {"model_type": "gpt_oss", "num_local_experts": 8, "num_hidden_layers": 5}
MIXED = ["sliding_attention", "full_attention", "sliding_attention"]


def test_config_from_file_folder_and_dict(tmp_path: Path):
    folder = tmp_path / "tiny"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA))
    by_folder = read_config(folder)
    assert by_folder == read_config(folder / "config.json")
    assert by_folder.name == "tiny"
    by_dict = read_config(LLAMA, name="tiny")
    assert by_dict.parameters == by_folder.parameters == 2 * 64000 + 3 * (64 * 128 + 64 * 64 + 3 * 64 * 160) + 7 * 64


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"num_key_value_heads": None}, {"kv_heads": 4}),
        ({"attention_bias": True, "mlp_bias": True}, {"qkv_bias": True, "attn_out_bias": True, "mlp_bias": True}),
        ({"tie_word_embeddings": True, "head_dim": 32}, {"tied_embeddings": True, "head_dim": 32}),
        ({}, {"tied_embeddings": False, "sliding_window": 0, "number_format": ""}),
        ({"use_sliding_window": False, "sliding_window": 4096}, {"sliding_window": 0}),
        ({"model_type": "mistral", "sliding_window": 512}, {"sliding_window": 512, "qkv_bias": False}),
        ({"model_type": "mistral", "sliding_window": None}, {"sliding_window": 0}),
        ({"model_type": "mistral", "num_key_value_heads": None}, {"kv_heads": 4, "sliding_window": 4096}),
        (
            {"model_type": "mistral", "sliding_window": 8, "layer_types": MIXED},
            {"sliding_window": 8, "windowed_layers": 2},
        ),
        (
            {"model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2},
            {"experts": 8, "top_k": 2, "expert_width": 160, "shared_width": 0, "sliding_window": 0},
        ),
        (
            {"model_type": "qwen2", "use_sliding_window": False, "sliding_window": 99},
            {"qkv_bias": True, "attn_out_bias": False, "sliding_window": 0},
        ),
        (
            {"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 99, "max_window_layers": 2},
            {"sliding_window": 99, "windowed_layers": 1},
        ),
        (
            {"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 99, "max_window_layers": 3},
            {"sliding_window": 0, "windowed_layers": 0},
        ),
        (
            {"model_type": "qwen3", "use_sliding_window": True, "max_window_layers": 0},
            {"sliding_window": 4096, "windowed_layers": 0},
        ),
        (QWEN_MOE, {"experts": 8, "expert_width": 32, "shared_width": 96, "shared_gate": True, "qkv_bias": True}),
        (QWEN_MOE | {"decoder_sparse_step": 2}, {"dense_layers": 2}),
        (QWEN_MOE | {"mlp_only_layers": [0, 2, 2]}, {"dense_layers": 2}),
        (QWEN_MOE | {"decoder_sparse_step": 2, "mlp_only_layers": [0]}, {"dense_layers": 2}),
        (QWEN_MOE | {"num_local_experts": 8}, {"experts": 8}),
        ({"model_type": "qwen3"}, {"qk_norm": True, "qkv_bias": False, "head_dim": 128}),
        (
            QWEN_MOE | {"model_type": "qwen3_moe"},
            {"qk_norm": True, "shared_width": 0, "shared_gate": False, "top_k": 2, "head_dim": 16},
        ),
        (
            {"model_type": "gemma2", "num_key_value_heads": 4},
            {"tied_embeddings": True, "head_dim": 256, "norms_per_layer": 4, "sliding_window": 4096}
            | {"windowed_layers": 2, "qk_norm": False},
        ),
        (
            {"model_type": "gemma3_text", "num_hidden_layers": 13, "sliding_window": 512},
            {"tied_embeddings": True, "qk_norm": True, "windowed_layers": 11, "sliding_window": 512},
        ),
        ({"model_type": "gemma3_text", "sliding_window_pattern": 1}, {"sliding_window": 0}),
        ({"model_type": "gemma3_text", "sliding_window_pattern": 2}, {"windowed_layers": 2}),
        (
            {"model_type": "gemma3_text", "sliding_window": 8, "layer_types": ["full_attention"] * 3},
            {"sliding_window": 0},
        ),
        (
            {"model_type": "phi3", "sliding_window": 2047},
            {"sliding_window": 2047, "windowed_layers": 0, "qkv_bias": False, "mlp_bias": False},
        ),
        (
            GPT_OSS,
            {"windowed_layers": 3, "sliding_window": 128, "router_bias": True, "attention_sinks": True}
            | {"mlp_bias": True, "qkv_bias": True, "attn_out_bias": True, "expert_width": 160, "top_k": 4},
        ),
        ({"model_type": "olmo"}, {"norm_weights": False, "norms_per_layer": 2, "tied_embeddings": False}),
        ({"model_type": "olmo2"}, {"qk_norm_wide": True}),
        (
            DEEPSEEK,
            {"kv_heads": 1, "head_dim": 192, "q_lora_rank": 0, "dense_layers": 1, "shared_width": 2816, "top_k": 6},
        ),
        (DEEPSEEK | {"moe_layer_freq": 3, "first_k_dense_replace": 4}, {"dense_layers": 8}),
        (DEEPSEEK | {"n_shared_experts": None}, {"shared_width": 0}),
    ],
)
def test_what_a_config_says_and_leaves_out(config, expected):
    model = read_config(BARE | config)
    assert {field: getattr(model, field) for field in expected} == expected


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (OPT, {"learned_positions": 2050, "max_context": 2048, "rotary": False, "qkv_bias": True}),
        (OPT | {"enable_bias": False, "layer_norm_elementwise_affine": False}, {"mlp_bias": False}),
        (OPT | {"tie_word_embeddings": False}, {"tied_embeddings": False}),
        (BLOOM | {"seq_length": 512}, {"max_context": 512, "intermediate": 256, "embedding_norm": True}),
        (BLOOM, {"max_context": 2048, "rotary": False, "tied_embeddings": True}),
        (GPTJ, {"max_context": 2048, "intermediate": 256, "norms_per_layer": 1, "tied_embeddings": False}),
        (GPTJ | {"n_inner": 100, "n_positions": 99}, {"intermediate": 100, "max_context": 99}),
        (FALCON, {"kv_heads": 1, "norms_per_layer": 1, "max_context": 2048, "qkv_bias": False, "rotary": True}),
        (
            FALCON | {"multi_query": False, "parallel_attn": False, "bias": True, "alibi": True},
            {"kv_heads": 4, "norms_per_layer": 2, "mlp_bias": True, "rotary": False},
        ),
        (FALCON | {"new_decoder_architecture": True, "num_kv_heads": 2}, {"kv_heads": 2, "norms_per_layer": 2}),
        (FALCON | {"new_decoder_architecture": True}, {"kv_heads": 4}),
        (FALCON_11B, {"norms_per_layer": 1, "tied_embeddings": False, "parameters": 11_102_822_400}),
        (
            {"model_type": "gemma3", "text_config": {}},
            {"hidden": 2304, "intermediate": 9216, "layers": 26, "heads": 8, "kv_heads": 4, "head_dim": 256}
            | {"vocab": 262208, "max_context": 131072, "sliding_window": 4096, "windowed_layers": 22},
        ),
    ],
)
def test_older_and_nested_configs(config, expected):
    model = read_config(config)
    assert {field: getattr(model, field) for field in expected} == expected


@pytest.mark.parametrize(
    ("stated", "expected"),
    [
        ({"quant_method": "mxfp4", "modules_to_not_convert": []}, "mxfp4"),
        ({"quant_method": "gptq", "bits": 4}, "gptq 4-bit"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": False, "load_in_8bit": True}, "bitsandbytes 8-bit"),
        ({}, ""),
    ],
)
def test_the_number_format_is_kept_and_changes_no_shape(stated, expected):
    model = read_config(LLAMA | {"quantization_config": stated})
    assert model.number_format == expected
    assert model.parameters == read_config(LLAMA).parameters


def test_names_are_kept_as_they_are():
    assert read_config(LLAMA | {"_name_or_path": "<script>x</script>"}).name == "<script>x</script>"
    assert read_config(LLAMA | {"_name_or_path": "theirs"}, "mine").name == "mine"


# --- what is refused


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": None}, "model_type None is not modelled; read are bloom, "),
        ({"model_type": ["llama"]}, "is not modelled"),
        ({"model_type": "x" * 10_000}, "x\\.\\.\\. is not modelled"),
        ({"model_type": "qwen3_next"}, "'qwen3_next' is not modelled: it has linear-attention layers"),
        ({"model_type": "own", "ssm_state_size": 16}, "it has state-space layers \\(ssm_state_size\\)"),
        ({"model_type": "own", "layer_types": ["mamba"]}, "it has 'mamba' layers \\(layer_types\\)"),
        ({"model_type": "own", "text_config": {"attention_chunk_size": 9}}, "chunked-attention layers"),
        ({"mamba_d_state": 16}, "mamba_d_state: state-space layers are not modelled"),
        ({"is_encoder_decoder": True}, "is_encoder_decoder: encoder and cross-attention layers"),
        ({"architectures": ["MixtralForCausalLM"]}, "contradict model_type 'llama'"),
        ({"architectures": "LlamaForCausalLM"}, "contradict model_type 'llama'"),
        ({"num_local_experts": 8}, "num_local_experts contradicts model_type 'llama', which has none"),
        ({"sliding_window": 8}, "sliding_window contradicts model_type 'llama', which has none"),
        ({"use_sliding_window": True}, "use_sliding_window contradicts"),
        ({"layer_types": MIXED, "use_sliding_window": False, "sliding_window": 8}, "a sliding window in layer_types"),
        ({"num_key_value_heads": 3}, "4 query heads cannot be shared by 3 KV heads"),
        ({"hidden_size": 66}, "head_dim is missing and hidden_size 66 is no multiple"),
        ({"hidden_size": None}, "hidden_size must be a whole number from 1 to 1000000000, it is missing"),
        ({"hidden_size": "64"}, "hidden_size must be a whole number from 1 to 1000000000, got '64'"),
        ({"num_attention_heads": 4.0}, "num_attention_heads must be a whole number .* got 4\\.0"),
        ({"num_hidden_layers": -3}, "num_hidden_layers must be a whole number .* got -3"),
        ({"num_hidden_layers": True}, "num_hidden_layers must be a whole number .* got True"),
        ({"vocab_size": 10**12}, "vocab_size must be a whole number from 1 to 1000000000, got 1000000000000"),
        ({"vocab_size": 10**5000}, "vocab_size must be a whole number .* a int too large to show"),
        ({"vocab_size": float("nan")}, "vocab_size must be a whole number .* got nan"),
        ({"vocab_size": float("inf")}, "vocab_size must be a whole number .* got inf"),
        ({"vocab_size": [[1] * 9999]}, "vocab_size must be a whole number .* got \\[\\[1, 1"),
        ({"vocab_size": 10**9, "hidden_size": 4 * 10**8}, "parameters are more than any model has"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings must be true or false, got 'yes'"),
        ({"attention_bias": 1}, "attention_bias must be true or false, got 1"),
        ({"quantization_config": {"bits": 4}}, "quantization_config must name its quant_method"),
        ({"quantization_config": "fp8"}, "quantization_config must name its quant_method"),
        ({"quantization_config": {"quant_method": "gptq", "bits": "4"}}, "quantization_config.bits"),
        ({"_name_or_path": ["llama"]}, "_name_or_path must be text"),
        ({"_name_or_path": "two\nlines"}, "one line of printable text"),
        ({"_name_or_path": "x" * 201}, "at most 200 characters"),
        ({"layer_types": ["full_attention"] * 2}, "layer_types must list 3 layers, got 2 of them"),
        ({"layer_types": "full"}, "layer_types must list 3 layers, got 'full'"),
        ({"layer_types": ["full_attention", "linear_attention", {}]}, "'linear_attention' layers are not modelled"),
        ({"layer_types": ["full_attention", {}, None]}, "layer_types: {} layers are not modelled"),
    ],
)
def test_llama_configs_that_cannot_be_used(change, message):
    check_refused(LLAMA | change, message)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (BARE | {"model_type": "mistral", "attention_bias": True}, "attention_bias contradicts model_type 'mistral'"),
        (BARE | {"model_type": "mistral", "mlp_bias": True}, "mlp_bias contradicts model_type 'mistral'"),
        (BARE | {"model_type": "mistral", "sliding_window": 10**10}, "sliding_window must be a whole number"),
        (BARE | {"model_type": "mistral", "sliding_window": True}, "sliding_window must be a whole number"),
        (BARE | {"model_type": "mistral", "num_attention_heads": 8, "num_key_value_heads": 16}, "cannot be shared"),
        (BARE | {"model_type": "qwen2", "layer_types": MIXED}, "contradict use_sliding_window"),
        (BARE | {"model_type": "qwen2", "use_sliding_window": 1}, "use_sliding_window must be true or false"),
        (BARE | {"model_type": "gemma2", "sliding_window": None}, "sliding_window is missing"),
        (BARE | {"model_type": "gemma3_text", "use_bidirectional_attention": True}, "encoder"),
        (BARE | {"model_type": "gemma3_text", "sliding_window_pattern": 0}, "sliding_window_pattern must be"),
        (QWEN_MOE | {"num_experts_per_tok": 9}, "top_k"),
        (QWEN_MOE | {"num_experts": 0}, "num_experts must be a whole number from 1"),
        (QWEN_MOE | {"num_experts": None}, "num_experts must be a whole number from 1 .*it is missing"),
        (QWEN_MOE | {"n_routed_experts": 8}, "n_routed_experts contradicts"),
        (QWEN_MOE | {"num_local_experts": 9}, "num_experts and num_local_experts contradict each other"),
        (QWEN_MOE | {"decoder_sparse_step": 4}, "leave no layer with experts"),
        (QWEN_MOE | {"mlp_only_layers": [3]}, "mlp_only_layers must list layers from 0 to 2"),
        (QWEN_MOE | {"mlp_only_layers": [True]}, "mlp_only_layers must list layers"),
        (QWEN_MOE | {"mlp_only_layers": 1}, "mlp_only_layers must list layers"),
        (GPT_OSS | {"attention_bias": False}, "attention_bias false contradicts model_type 'gpt_oss'"),
        (GPT_OSS | {"layer_types": MIXED}, "layer_types must list 5 layers, got 3 of them"),
        (OPT | {"word_embed_proj_dim": 32}, "word_embed_proj_dim 32: projections of the embedding are not modelled"),
        (OPT | {"do_layer_norm_before": False}, "a model without a final norm is not modelled"),
        (OPT | {"head_dim": 8}, "head_dim 8 contradicts model_type 'opt' \\(16\\)"),
        (GPTJ | {"hidden_size": 128}, "n_embd and hidden_size contradict each other"),
        (GPTJ | {"n_head": 5}, "hidden size 64 is no multiple of 5 heads"),
        (BLOOM | {"num_hidden_layers": 4}, "num_hidden_layers and n_layer contradict each other"),
        (FALCON | {"new_decoder_architecture": True, "num_ln_in_parallel_attn": 3}, "must be 1 or 2, got 3"),
        ({"model_type": "RefinedWebModel", "parallel_attn": True} | sizes(64, 1, 3, 4, None, 9), "multi_query is miss"),
        (DEEPSEEK | {"num_key_value_heads": 2}, "num_key_value_heads 2 contradicts 4 heads"),
        (DEEPSEEK | {"n_routed_experts": None}, "n_routed_experts must be a whole number"),
        (DEEPSEEK | {"first_k_dense_replace": 9}, "leave no layer with experts"),
        (DEEPSEEK | {"num_experts_per_tok": None}, "num_experts_per_tok must be a whole number"),
        ({"model_type": "gemma3"}, "needs a text_config, got None"),
        ({"model_type": "gemma3", "text_config": [1]}, "needs a text_config"),
        ({"model_type": "gemma3", "text_config": {"model_type": "llama"}}, "text_config.model_type 'llama'"),
        (
            {"model_type": "gemma3", "tie_word_embeddings": False, "text_config": {"tie_word_embeddings": True}},
            "tie_word_embeddings False contradicts tie_word_embeddings True of text_config",
        ),
    ],
)
def test_other_configs_that_cannot_be_used(config, message):
    check_refused(config, message)


def check_refused(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        read_config(config)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 400


@pytest.mark.parametrize("config", [BARE | {"model_type": "gemma2"}, GPT_OSS, QWEN_MOE, DEEPSEEK, FALCON])
def test_a_hostile_number_of_layers_costs_no_time(config):
    check_refused(config | {"num_hidden_layers": 10**9, "hidden_size": 10**8, "head_dim": None}, "more than any model")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "expected a config.json \\(Expecting value"),
        (b"[1]", "expected a JSON object, got list"),
        (b"null", "expected a JSON object, got NoneType"),
        (b"{", "expected a config.json \\(Expecting property name"),
        (b"\xff\xfe{}", "it is not UTF-8 text"),
        (json.dumps(LLAMA).encode("utf-16"), "it is not UTF-8 text"),
        (json.dumps(LLAMA).encode("utf-16-le"), "expected a config.json"),
        ('{"_name_or_path": "caf\xe9"}'.encode("latin-1"), "it is not UTF-8 text"),
        (b"[" * 100_000, "it is nested too deeply"),
        (b'{"a":' * 100_000, "it is nested too deeply"),
        (b'{"vocab_size": ' + b"9" * 5000 + b"}", "expected a config.json"),
        (b'{"hidden_size": 1, "hidden_size": 2}', "the key 'hidden_size' is stated twice"),
        (b" " * (8 * 1024**2 + 1), "it is larger than 8 MB"),
    ],
)
def test_files_that_are_no_config(tmp_path: Path, content, message):
    path = tmp_path / "broken.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=rf"broken\.json: expected a.*{message.removeprefix('expected a')}") as error:
        read_config(path)
    assert "\n" not in str(error.value)
    assert len(str(error.value).removeprefix(str(tmp_path))) < 200


def test_a_byte_order_mark_is_read_over(tmp_path: Path):
    path = tmp_path / "config.json"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(LLAMA).encode())
    assert read_config(path).hidden == 64


@pytest.mark.parametrize("path", ["nowhere.json", "x" * 5000, "/dev/zero", "nowhere\x00.json", "two\nlines.json"])
def test_paths_that_hold_no_config(path):
    with pytest.raises(ValueError, match=r"expected a config\.json") as error:
        read_config(path)
    assert "\n" not in str(error.value)
