"""Number formats of checkpoints: what configs say of them, and the bytes that follow."""

import json
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from rooffloor.models.roof.capacity import fits, memory_bytes
from rooffloor.models.roof.kernels import EXPERTS, KERNELS, decode_work, speed_of
from rooffloor.models.roof.prefill import prefill_ms
from rooffloor.models.roof.roofline import Efficiency, bytes_floor_ms, combine, gpu_ms, total_ms
from rooffloor.models.specs.formats import FORMATS, SIXTEEN_BIT, Formats, NumberFormat, named
from rooffloor.models.specs.gpus import GpuSpec
from rooffloor.models.specs.hf.config import read_config
from rooffloor.models.specs.hf.quantization import SIDE_FILE, stored, uniform
from rooffloor.models.specs.shapes import ModelShapes, load

LLAMA_8B = {
    "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 131072,
    "tie_word_embeddings": False,
}  # fmt: skip
LLAMA_70B = LLAMA_8B | {
    "hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80, "num_attention_heads": 64,
}  # fmt: skip
QWEN_72B = LLAMA_70B | {"model_type": "qwen2", "intermediate_size": 29696, "vocab_size": 152064}
GPT_OSS_20B = {
    "model_type": "gpt_oss", "hidden_size": 2880, "intermediate_size": 2880, "num_hidden_layers": 24,
    "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 201088,
    "max_position_embeddings": 131072, "num_local_experts": 32, "num_experts_per_tok": 4, "sliding_window": 128,
    "attention_bias": True, "tie_word_embeddings": False,
}  # fmt: skip
GPT_OSS_120B = GPT_OSS_20B | {"num_hidden_layers": 36, "num_local_experts": 128}
DEEPSEEK_V3 = {
    "model_type": "deepseek_v3", "hidden_size": 7168, "intermediate_size": 18432, "moe_intermediate_size": 2048,
    "num_hidden_layers": 61, "num_attention_heads": 128, "vocab_size": 129280, "max_position_embeddings": 163840,
    "n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 8, "first_k_dense_replace": 3,
    "moe_layer_freq": 1, "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
    "v_head_dim": 128, "tie_word_embeddings": False,
}  # fmt: skip
KIMI_K2 = DEEPSEEK_V3 | {
    "num_attention_heads": 64, "vocab_size": 163840, "n_routed_experts": 384, "first_k_dense_replace": 1,
}  # fmt: skip
GPT_OSS_KEPT = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]


def group(bits: int, kind: str = "int", targets: tuple[str, ...] = ("Linear",), inputs: int | None = None, **more):
    activations = None if inputs is None else {"num_bits": inputs, "type": kind}
    weights = {"num_bits": bits, "type": kind, "symmetric": True} | more
    return {"targets": list(targets), "weights": weights, "input_activations": activations}


def compressed(*groups: dict, ignore: tuple[str, ...] = ("lm_head",), **more) -> dict:
    config = {f"group_{n}": one for n, one in enumerate(groups)}
    return {"quant_method": "compressed-tensors", "config_groups": config, "ignore": list(ignore)} | more


KIMI_KEPT = ("lm_head", "re:.*self_attn.*", "re:.*shared_experts.*", r"re:.*mlp\.(gate|up|gate_up|down)_proj.*")


@pytest.mark.parametrize(
    ("config", "quantization", "published"),
    [
        # model.safetensors.index.json of the checkpoint: metadata.total_size
        (GPT_OSS_20B, {"quant_method": "mxfp4", "modules_to_not_convert": GPT_OSS_KEPT}, 13_761_264_768),
        # the model card of gpt-oss-120b, table of parameters: checkpoint size 60.8 GiB
        (GPT_OSS_120B, {"quant_method": "mxfp4", "modules_to_not_convert": GPT_OSS_KEPT}, 60.8 * 2**30),
        # metadata.total_size; 2 % of it is the module for multi-token prediction, which is left out here
        (DEEPSEEK_V3, {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]}, 688_586_727_753),
        # Qwen2.5-72B-Instruct-AWQ on the hub: sum of the safetensors files
        (QWEN_72B | {"attention_bias": None},
         {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "modules_to_not_convert": None},
         41_607_438_677),
        # vLLM's log of a 4-bit GPTQ of Llama-3-8B: "Model loading took 5.3473 GiB"
        (LLAMA_8B, {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False}, 5.3473 * 2**30),
        # vLLM's log of Llama-3.3-70B-Instruct-FP8: "Model loading took 67.7 GiB"
        (LLAMA_70B, compressed(group(8, "float", inputs=8, strategy="tensor"), format="float-quantized"),
         67.7 * 2**30),
        # Kimi-K2.5, 595 GB on the hub, with a vision tower of 0.4 B parameters that is left out here
        (KIMI_K2, compressed(group(4, group_size=32, strategy="group"), ignore=KIMI_KEPT, format="pack-quantized"),
         595e9),
    ],
    ids=["gpt-oss-20b", "gpt-oss-120b", "DeepSeek-V3", "Qwen2.5-72B-AWQ", "Llama-3-8B-GPTQ", "70B-FP8", "Kimi-K2.5"],
)  # fmt: skip
def test_stored_bytes_are_the_published_size_of_the_checkpoint(config, quantization, published):
    model = read_config(config | {"quantization_config": quantization})
    assert model.weight_bytes == pytest.approx(published, rel=0.03)
    assert model.parameters == read_config(config).parameters


@pytest.mark.parametrize(
    ("kept", "published_b"),
    [
        (("self_attn*",), 396.8),
        (("self_attn.q_a_proj", "self_attn.q_b_proj", "self_attn.kv_a_proj_with_mqa", "self_attn.kv_b_proj"), 393.6),
    ],
    ids=["DeepSeek-R1-NVFP4", "DeepSeek-R1-0528-NVFP4-v2"],
)
def test_stored_elements_are_those_that_the_hub_counts(kept, published_b):
    """The hub counts two packed 4-bit values, a scale and a 16-bit value each as one parameter."""
    ignored = [f"model.layers.{n}.{name}" for n in range(61) for name in kept] + ["lm_head"]
    nvfp4 = {"producer": {"name": "modelopt"}, "quant_algo": "NVFP4", "group_size": 16, "ignore": ignored}
    model = read_config(DEEPSEEK_V3 | {"quantization_config": nvfp4})
    weights, own = model.linear_weights, [kernel for kernel, _, _ in model.formats.weights]
    packed = sum(weights[k] * (model.experts if k in ("gate_up", "down") else 1) for k in own)
    layer = (weights["gate_up"] + weights["down"]) / 58 * 256 + (weights["qkv"] + weights["attn_out"]) / 61
    prediction = layer + 2 * weights["lm_head"] + 2 * 7168**2  # the module for multi-token prediction, left at 16 bit
    stored_elements = packed * (1 / 2 + 1 / 16) + (model.parameters - packed) + prediction
    assert stored_elements / 1e9 == pytest.approx(published_b, rel=1e-3)


def bits(model: ModelShapes) -> dict[str, float]:
    """Stored bits of a weight by kernel, with its scales."""
    weights = model.linear_weights
    return {
        kernel: round(8 * size / weights[kernel], 4) for kernel, size in model.linear_bytes.items() if weights[kernel]
    }


ALL = ("qkv", "attn_out", "gate_up", "down")


@pytest.mark.parametrize(
    ("quantization", "text", "each", "cache"),
    [
        ({"quant_method": "fp8"}, "fp8", 8, "16-bit"),
        ({"quant_method": "fbgemm_fp8"}, "fbgemm_fp8", 8, "16-bit"),
        ({"quant_method": "gptq", "bits": 8, "group_size": -1}, "gptq 8-bit", 8, "16-bit"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 32}, "gptq 4-bit", 4.625, "16-bit"),
        ({"quant_method": "gptq", "bits": 4, "group_size": -1}, "gptq 4-bit", 4, "16-bit"),
        ({"quant_method": "awq", "w_bit": 4, "q_group_size": 64}, "awq 4-bit", 4.3125, "16-bit"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "bitsandbytes 4-bit", 4.5, "16-bit"),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "bitsandbytes 8-bit", 8, "16-bit"),
        ({"quant_algo": "FP8", "kv_cache_scheme": "FP8"}, "modelopt FP8", 8, "fp8"),
        ({"quant_algo": "NVFP4", "group_size": 16, "ignore": ["lm_head"]}, "modelopt NVFP4", 4.5, "16-bit"),
        ({"quant_algo": "INT4_AWQ", "group_size": 128}, "modelopt INT4_AWQ", 4.125, "16-bit"),
        ({"quant_method": "modelopt", "quant_algo": "MXFP8"}, "modelopt MXFP8", 8.25, "16-bit"),
        (compressed(group(8, inputs=8)), "compressed-tensors", 8, "16-bit"),
        (compressed(group(4, group_size=128)), "compressed-tensors", 4.125, "16-bit"),
        (compressed(group(4, group_size=128, symmetric=False)), "compressed-tensors", 4.1562, "16-bit"),
        (compressed(group(4, "float", inputs=4, group_size=16)), "compressed-tensors", 4.5, "16-bit"),
        (compressed(group(4, "float", group_size=32)), "compressed-tensors", 4.25, "16-bit"),
        (compressed(group(8, "float", inputs=8), kv_cache_scheme={"num_bits": 8, "type": "float"}),
         "compressed-tensors", 8, "fp8"),
        ({"quant_method": "quark", "exclude": ["lm_head"],
          "global_quant_config": {"weight": {"dtype": "fp4", "qscheme": "per_group", "group_size": 32}},
          "export": {"kv_cache_group": ["*k_proj"]}}, "quark mxfp4", 4.25, "fp8"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_use_double_quant": True},
         "bitsandbytes 4-bit", 4.125, "16-bit"),
        ({"quant_method": "hqq", "quant_config": {"weight_quant_params": {"nbits": 4, "group_size": 64}}}, "hqq", 4.5,
         "16-bit"),
        ({"quant_method": "quanto", "weights": "int8"}, "quanto", 8, "16-bit"),
        ({"quant_method": "torchao", "quant_type": {"default": {"_type": "Int4WeightOnlyConfig",
          "_data": {"group_size": 64}}}}, "torchao", 4.5, "16-bit"),
        ({"quant_method": "torchao", "quant_type": "float8_dynamic_activation_float8_weight"}, "torchao", 8, "16-bit"),
        ({"quant_method": "auto-round", "bits": 4, "group_size": 128}, "auto-round 4-bit", 4.125, "16-bit"),
    ],
)  # fmt: skip
def test_formats_that_are_read(quantization, text, each, cache):
    model = read_config(LLAMA_8B | {"quantization_config": quantization})
    assert model.number_format == text
    assert bits(model) == dict.fromkeys(ALL, each) | {"lm_head": 16}
    assert model.formats.cache == FORMATS[cache]
    assert model.kv_bytes_per_token == (131072 if cache == "16-bit" else 65536)


def test_a_format_whose_bytes_are_not_known_counts_as_16_bit():
    model = read_config(LLAMA_8B | {"quantization_config": {"quant_method": "aqlm"}})
    assert (model.number_format, model.formats) == ("aqlm", Formats())


def test_the_lm_head_is_quantised_where_the_config_says_so():
    for quantization in (
        {"quant_method": "gptq", "bits": 4, "lm_head": True},
        compressed(group(4, group_size=128), ignore=()),
    ):
        assert bits(read_config(LLAMA_8B | {"quantization_config": quantization}))["lm_head"] < 5


@pytest.mark.parametrize(
    ("ignored", "expected"),
    [
        (["model.layers.0.self_attn"], {"qkv": 15 / 16, "attn_out": 15 / 16}),
        (["model.layers.0.self_attn*", "*lm_head*"], {"qkv": 15 / 16, "attn_out": 15 / 16}),
        (["model.layers.0.self_attn.q_proj"], {"qkv": 1 - 2 / 3 / 16}),
        (["self_attn"], {"qkv": 0, "attn_out": 0}),
        (["language_model.model.layers.3.mlp.down_proj"], {"down": 15 / 16}),
        (["model.language_model.layers.3.mlp"], {"down": 15 / 16, "gate_up": 15 / 16}),
        (["re:.*self_attn.*"], {"qkv": 0, "attn_out": 0}),
        ([r"re:model\.layers\.(0|1)\..*"], dict.fromkeys(ALL, 14 / 16)),
        (["*.mlp.gate"], {}),  # a router's name, not the start of gate_proj
        (["*.mlp.gate*"], {"gate_up": 0}),
        ([r"re:.*\.layers\.(?:[3-9]|1[0-5])\.mlp\.(gate|up|gate_up|down)_proj$"], {"down": 3 / 16, "gate_up": 3 / 16}),
        ([r"re:^model\.layers\.\d+\.mlp[.]down_proj.*"], {"down": 0}),
        (["re:.*mlp.gate$", "re:.*shared_expert_gate$", "visual", "re:mtp.*"], {}),
        (["model.layers.*.mlp.down_proj"], {"down": 0}),
    ],
)
def test_modules_that_are_left_alone(ignored, expected):
    config = LLAMA_8B | {"num_hidden_layers": 16, "num_key_value_heads": 8}
    model = read_config(config | {"quantization_config": {"quant_method": "fp8", "ignored_layers": ignored}})
    shares = {kernel: share for kernel, _, share in model.formats.weights}
    assert {k: shares.get(k, 0) for k in ALL} == pytest.approx(dict.fromkeys(ALL, 1) | expected)


def test_experts_alone_and_layers_with_a_format_of_their_own():
    model = read_config(GPT_OSS_20B | {"quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": []}})
    kept = {"qkv": 16, "attn_out": 16, "router": 16, "lm_head": 16}
    assert bits(model) == kept | {"gate_up": 4.25, "down": 4.25}
    moe = {"quant_algo": "NVFP4", "group_size": 16}
    layers = {f"model.layers.{n}.mlp.experts": moe for n in range(3, 61)}
    layers |= {f"model.layers.{n}.self_attn.o_proj": {"quant_algo": "FP8"} for n in range(61)}
    mixed = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": layers}
    found = bits(read_config(DEEPSEEK_V3 | {"quantization_config": mixed}))
    assert found == dict.fromkeys((*found,), 16) | {"attn_out": 8, "gate_up": 4.5, "down": 4.5}
    groups = compressed(
        group(8, "float", inputs=8, targets=("re:.*self_attn.*",)),
        group(4, "float", inputs=4, group_size=16, targets=(r"re:.*mlp\.experts\..*(gate|up|down)_proj$",)),
    )
    found = bits(read_config(DEEPSEEK_V3 | {"quantization_config": groups}))
    assert found == dict.fromkeys((*found,), 16) | {"qkv": 8, "attn_out": 8, "gate_up": 4.5, "down": 4.5}


def test_the_side_file_of_modelopt(tmp_path: Path):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_8B))
    side = {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8", "group_size": 16, "exclude_modules": ["lm_head"]}
    (tmp_path / SIDE_FILE).write_text(json.dumps({"producer": {"name": "modelopt"}, "quantization": side}))
    for path in (tmp_path, tmp_path / "config.json"):
        model = read_config(path)
        assert (model.number_format, model.formats.cache.name) == ("modelopt NVFP4", "fp8")
        assert bits(model) == dict.fromkeys(ALL, 4.5) | {"lm_head": 16}
    (tmp_path / SIDE_FILE).write_text("{}")
    with pytest.raises(ValueError, match=r"hf_quant_config\.json must have a table quantization"):
        read_config(tmp_path)


@pytest.mark.parametrize(
    ("quantization", "message"),
    [
        ({"bits": 4}, "quantization_config must name its quant_method"),
        ("fp8", "quantization_config must name its quant_method"),
        ({"quant_method": "gptq", "bits": "4"}, "quantization_config.bits must be a whole number from 1 to 64"),
        ({"quant_method": "awq", "bits": 4, "group_size": 0}, "quantization_config.group_size must be a whole number"),
        ({"quant_method": "fp8", "ignored_layers": "lm_head"}, "quantization_config.ignored_layers must list names"),
        ({"quant_method": "fp8", "ignored_layers": ["re:(a+)+$"]}, "is of a kind that is not read"),
        *(
            ({"quant_method": "fp8", "ignored_layers": [f"re:{text}"]}, "is of a kind that is not read")
            for text in (
                ".?" * 50 + "9",
                "(.|.)" * 3,
                "(a|a)b",
                "(?:(?:a?){20}){20}b",
                ".*a.*b.*c.*d",
                "(?=a)",
                "x" * 501,
            )
        ),
        (
            {"quant_method": "fp8", "ignored_layers": [f"*{n}*" for n in range(101)]},
            "101 patterns with .* are more than",
        ),
        ({"quant_method": "fp8", "ignored_layers": [f"re:a{n}" for n in range(21)]}, "21 regular expressions are more"),
        ({"quant_method": "fp8", "ignored_layers": ["re:.*(gate"]}, "is of a kind that is not read"),
        ({"quant_method": "compressed-tensors", "config_groups": []}, "config_groups must be a table"),
        ({"quant_algo": "MIXED_PRECISION"}, "quantized_layers must be a table, got None"),
    ],
)
def test_configs_without_sense_are_refused(quantization, message):
    with pytest.raises(ValueError, match=message):
        read_config(LLAMA_8B | {"quantization_config": quantization})


# --- formats


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("bf16", "16-bit"),
        ("torch.float16", "16-bit"),
        ("FP8_E4M3", "fp8"),
        ("w4a16", "int4"),
        ("nvfp4", "nvfp4"),
        ("", "16-bit"),
    ],
)
def test_names_of_formats(text, name):
    assert named(text) == FORMATS[name]


def test_an_unknown_format_lists_the_known_ones():
    with pytest.raises(ValueError, match="unknown number format 'q5'; known: 16-bit, fp32, fp8, int8, int4"):
        named("q5")


def test_bytes_with_scales():
    assert [FORMATS[n].bytes_of(1024) for n in ("16-bit", "fp8", "int4", "mxfp4", "nvfp4")] == [
        2048,
        1024,
        528,
        544,
        576,
    ]
    assert NumberFormat("odd", 3).bytes_of(3) == 2


# --- what follows for the roof

QUANTISED = [stored(load(m), uniform(f, c)) for m in ("Llama-3.1-8B", "Qwen1.5-MoE-A2.7B") for f, c in
             [(FORMATS[n], FORMATS[k]) for n in FORMATS for k in ("16-bit", "fp8", "nvfp4")]]  # fmt: skip


@pytest.mark.parametrize("model", QUANTISED, ids=lambda m: f"{m.name} {m.number_format} {m.formats.cache.name}")
@pytest.mark.parametrize("experts", EXPERTS)
def test_never_below_the_bytes_floor_and_never_slower_than_wider_values(model, experts):
    batch, context = np.array([1, 7.5, 64, 300, 5000])[:, None], [0, 100.5, 8192, 100_000]
    plain = load(model.name)
    for efficiency in (Efficiency.peak(), Efficiency(0.2, 0.8, 0.7, 60.0, 0.004)):
        step = gpu_ms(model, "H100", batch, context, efficiency, experts)
        assert np.all(step >= bytes_floor_ms(model, "H100", batch, context, experts))
        if max(f.bits for _, f, _ in model.formats.weights or (("", SIXTEEN_BIT, 1.0),)) <= 16:
            assert np.all(step <= gpu_ms(plain, "H100", batch, context, efficiency, experts) * (1 + 1e-13))
    assert np.all(
        prefill_ms(model, "H100", batch, [1, 100], 0.5) <= prefill_ms(plain, "H100", batch, [1, 100], 0.5) * 2
    )


def test_a_step_in_fp8_by_hand():
    model = stored(load("Llama-3.1-8B"), uniform(FORMATS["fp8"], FORMATS["fp8"]))
    work = decode_work(model, 4, 2048, gpu="H100")
    column = dict(zip(KERNELS, work.bytes.T, strict=True))
    assert column["down"] == 32 * 14336 * 4096
    assert column["lm_head"] == 2 * 4096 * 128256
    assert column["norms"] == 2 * 65 * 4096
    assert column["kv_write"] == 4 * 65536
    assert work.kv_bytes.sum() == 4 * 2048 * 65536
    # 7,504,658,432 weights, of them 525,336,576 of the LM head at 2 bytes; the cache
    assert work.floor_bytes.sum() == 7_504_658_432 + 525_336_576 + 4 * 2048 * 65536
    assert memory_bytes(model, 1, 0) == 2 * 8_030_261_248 - (7_504_658_432 - 525_336_576)


@dataclass(frozen=True)
class WithPeaks(GpuSpec):
    """A GPU whose data sheet has peaks of other formats."""

    format_flops: tuple[tuple[str, float], ...] = ()


def test_products_have_the_peak_of_their_format_where_the_gpu_has_it():
    plain = WithPeaks("mine", 100e12, 1e12, 80e9, 50e6)
    gpu = replace(plain, format_flops=(("fp8", 200e12), ("fp4", 400e12)))
    model = stored(load("Llama-3.1-8B"), uniform(FORMATS["fp8"]))
    assert [speed_of(model, "down", card) for card in (plain, gpu)] == [1.0, 2.0]
    assert speed_of(model, "lm_head", gpu) == 1.0
    assert speed_of(stored(model, uniform(FORMATS["int4"])), "down", gpu) == 1.0  # dequantised
    assert speed_of(stored(model, uniform(FORMATS["nvfp4, 16-bit inputs"])), "down", gpu) == 1.0
    mixed = replace(model, formats=Formats((("down", FORMATS["fp8"], 0.5), ("down", FORMATS["nvfp4"], 0.25))))
    assert speed_of(mixed, "down", gpu) == pytest.approx(1 / (0.5 / 2 + 0.25 / 4 + 0.25))
    # batch 512 is bound by compute: products take half the time, at 512 / (64 * 8) of full tiles, but the LM head
    heads = 2 * 512 * 4096 * 128256 / 100e12
    slow, fast = (gpu_ms(model, card, 512, 0, Efficiency()) for card in (plain, gpu))
    work = decode_work(model, 512, 0, gpu=gpu)
    others = float(
        (work.bytes[[KERNELS.index(k) for k in ("embedding", "norms", "kv_write", "rope", "activation")]]).sum()
    )
    products = 2 * 512 * 6_979_321_856 / 100e12
    assert slow == pytest.approx(1e3 * (products + heads + others / 1e12), rel=1e-12)
    assert fast == pytest.approx(1e3 * (products / 2 + heads + others / 1e12), rel=1e-12)
    assert fast == total_ms(combine(work, Efficiency()))
    half = prefill_ms(model, gpu, 2, 5000, 1.0) / prefill_ms(model, plain, 2, 5000, 1.0)
    assert 0.5 < half < 0.6


def test_16_bit_said_aloud_changes_nothing():
    plain = load("Qwen1.5-MoE-A2.7B")
    same = stored(plain, uniform(SIXTEEN_BIT))
    batch, context = np.array([1, 7.5, 64, 300])[:, None], [0, 100.5, 8192]
    np.testing.assert_array_equal(gpu_ms(same, "H100", batch, context), gpu_ms(plain, "H100", batch, context))
    assert same.weight_bytes == plain.weight_bytes == 2 * plain.parameters


def test_gpt_oss_120b_fits_one_h100():
    model = read_config(GPT_OSS_120B | {"quantization_config": {"quant_method": "mxfp4"}})
    assert fits(model, "H100", 4, 1535)
    assert not fits(read_config(GPT_OSS_120B), "H100", 4, 1535)
