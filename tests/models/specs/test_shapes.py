"""Model shapes against published sizes, and what they refuse."""

import csv
import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest

from rooffloor.models.specs import shapes
from rooffloor.models.specs.classes import CLASSES, default_class
from rooffloor.models.specs.shapes import ModelShapes

PUBLISHED = {  # parameters, from the checkpoints on the hub
    "Llama-3.1-8B": 8_030_261_248,
    "Llama-3.2-1B": 1_235_814_400,
    "Qwen2.5-7B": 7_615_616_512,
    "Qwen1.5-MoE-A2.7B": 14_315_784_192,
    "Mistral-7B-v0.3": 7_248_023_552,
    "Qwen3-Coder-30B-A3B": 30_532_122_624,
    "Llama-2-7B": 6_738_415_616,
    "Meta-Llama-3-8B": 8_030_261_248,
    "Mistral-7B-v0.1": 7_241_732_096,
    "Qwen2-7B": 7_615_616_512,
    "Qwen1.5-7B": 7_721_324_544,
    "OPT-6.7B": 6_658_473_984,
    "BLOOM-7B1": 7_069_016_064,
    "GPT-J-6B": 6_050_882_784,
    "LLaMA-7B": 6_738_415_616,
    "Aquila-7B": 7_295_537_152,
    "DeciLM-7B": 7_043_551_232,
    "Mixtral-8x7B-v0.1": 46_702_792_704,
    "Llama-2-70B": 68_976_648_192,
    "Meta-Llama-3-70B": 70_553_706_496,
    "Qwen2-72B": 72_706_203_648,
}


def test_catalog_has_the_published_number_of_parameters():
    assert {name: shapes.load(name).parameters for name in shapes.names()} == PUBLISHED


def test_catalog_agrees_with_the_reference_table(shared: Path):
    with (shared / "reference" / "shapes.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 6
    for row in rows:
        model = shapes.load(row["model"])
        assert f"{model.parameters / 1e9:.3f}" == row["parameters_b"]
        assert model.kv_bytes_per_token == int(row["kv_bytes_per_token_bf16"])
        for column in ("hidden", "intermediate", "layers", "heads", "kv_heads", "head_dim", "vocab"):
            assert getattr(model, column) == int(row[column]), (row["model"], column)
        for column in ("experts", "top_k", "expert_width", "shared_width"):
            assert getattr(model, column) == int(row[column]), (row["model"], column)
        assert str(model.tied_embeddings).lower() == row["tied_embeddings"]
        assert str(model.qkv_bias).lower() == row["qkv_bias"]


def test_every_model_of_the_argonne_grid_on_one_gpu_is_known(shared: Path):
    with (shared / "data" / "argonne" / "All_results.csv").open() as file:
        hub_ids = {row["Model"] for row in csv.DictReader(file)}
    assert len(hub_ids) >= 14
    for hub_id in hub_ids:
        assert shapes.load(hub_id).name in shapes.names()


def test_position_limits():
    limits = {
        "OPT-6.7B": 2048,
        "BLOOM-7B1": 2048,
        "GPT-J-6B": 2048,
        "Llama-2-7B": 4096,
        "LLaMA-7B": 2048,
        "Aquila-7B": 2048,
        "Qwen1.5-7B": 32768,
        "Qwen2-7B": 131072,
        "Mistral-7B-v0.1": 32768,
        "Meta-Llama-3-8B": 8192,
    }
    assert {name: shapes.load(name).max_context for name in limits} == limits


@pytest.mark.parametrize("alias", ["meta-llama/Llama-3.1-8B", "LLAMA-3.1-8b", " Llama-3.1-8B-Instruct "])
def test_aliases_match_whatever_the_case(alias):
    assert shapes.load(alias).name == "Llama-3.1-8B"


@pytest.mark.parametrize("name", ["Llama-3.1", "Llama-3.1-8", "", "gpt-5"])
def test_there_is_no_fuzzy_match(name):
    with pytest.raises(ValueError, match=r"unknown model .*known: Llama-3\.1-8B, ") as error:
        shapes.load(name)
    assert "\n" not in str(error.value)


def test_kv_heads_that_vary_by_layer_are_summed():
    model = shapes.load("DeciLM-7B")
    assert model.kv_bytes_per_token == 67 * 2 * 128 * 2
    assert model.linear_weights["qkv"] == 4096 * (32 * 4096 + 2 * 67 * 128)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Qwen1.5-MoE-A2.7B", "moe"),
        ("Llama-3.2-1B", "dense <2B"),
        ("Llama-3.1-8B", "dense 5-10B"),
        ("Llama-2-70B", "dense >20B"),
    ],
)
def test_default_classes(name, expected):
    assert default_class(name) == expected
    assert expected in CLASSES


def test_class_bounds():
    def dense(vocab: int) -> ModelShapes:  # about 2 * 1000 * vocab parameters
        return ModelShapes("dense", 1000, 1, 1, 1, 1, 1, vocab, 2048)

    sizes = {1.9e9: "dense <2B", 2.1e9: "dense 2-5B", 9.9e9: "dense 5-10B", 10.1e9: "dense 10-20B"}
    assert {size: default_class(dense(int(size / 2000))) for size in sizes} == sizes


# --- layers that differ, latent attention, what has no sense

TINY = ModelShapes("tiny", 64, 160, 3, 4, 2, 16, 1000, 2048)
MOE = dataclasses.replace(TINY, experts=8, top_k=2, expert_width=32)
MLA = dataclasses.replace(
    TINY,
    kv_heads=1,
    head_dim=24,
    kv_lora_rank=20,
    q_lora_rank=28,
    qk_rope_head_dim=8,
    qk_nope_head_dim=16,
    v_head_dim=12,
)


def test_dense_layers_among_moe_ones_count_as_weights_that_every_token_visits():
    model = dataclasses.replace(MOE, dense_layers=1, shared_width=48, shared_gate=True)
    weights = model.linear_weights
    assert model.moe_layers == 2
    assert weights["router"] == 2 * 64 * 8
    assert (weights["gate_up"], weights["down"]) == (2 * 64 * 32 * 2, 2 * 64 * 32)
    assert weights["shared_gate_up"] == 2 * (64 * 48 * 2 + 64) + 64 * 160 * 2
    assert weights["shared_down"] == 2 * 64 * 48 + 64 * 160
    one_more = dataclasses.replace(model, dense_layers=2)
    moe_mlp = 64 * 8 + 8 * 3 * 64 * 32 + 3 * 64 * 48 + 64
    assert model.parameters - one_more.parameters == moe_mlp - 3 * 64 * 160


def test_latent_attention():
    assert MLA.kv_bytes_per_token == 3 * 28 * 2
    assert MLA.linear_weights["qkv"] == 3 * (64 * 28 + 28 * 4 * 24 + 64 * 28 + 20 * 4 * (16 + 12))
    assert MLA.linear_weights["attn_out"] == 3 * 4 * 12 * 64
    assert MLA.small_weights["norms"] == 7 * 64 + 3 * (28 + 20)
    assert MLA.decode_attention_flops == 2 * 3 * 4 * (2 * 20 + 8)
    assert MLA.query_head_bytes == 3 * 4 * 28 * 2
    direct = dataclasses.replace(MLA, q_lora_rank=0)
    assert direct.linear_weights["qkv"] == 3 * (64 * 4 * 24 + 64 * 28 + 20 * 4 * (16 + 12))
    assert direct.small_weights["norms"] == 7 * 64 + 3 * 20
    biased = dataclasses.replace(MLA, qkv_bias=True, attn_out_bias=True)
    assert biased.parameters - MLA.parameters == 3 * (28 + 28) + 3 * 64


def test_biases_sinks_and_norms():
    def more(base: ModelShapes, **fields: object) -> int:
        return dataclasses.replace(base, **fields).parameters - base.parameters

    assert more(MOE, router_bias=True, attention_sinks=True) == 3 * 8 + 3 * 4
    assert more(MOE, mlp_bias=True) == 3 * 8 * (64 + 64)
    shared = dataclasses.replace(MOE, shared_width=48, dense_layers=1)
    assert more(shared, mlp_bias=True) == 2 * 8 * (64 + 64) + 2 * (96 + 64) + 320 + 64
    assert more(TINY, norm_weights=False) == -7 * 64
    assert more(TINY, qk_norm=True) == 3 * 2 * 16
    assert more(TINY, qk_norm=True, qk_norm_wide=True) == 3 * (4 + 2) * 16


@pytest.mark.parametrize(
    ("base", "fields", "message"),
    [
        (TINY, {"name": "two\nlines"}, r"one line of printable text, .* got 'two\\nlines'"),
        (TINY, {"name": "x" * 201}, "at most 200 characters"),
        (TINY, {"name": "a\u202eb"}, "printable"),
        (TINY, {"number_format": None}, "number_format must be text, got None"),
        (TINY, {"layers": 3.0}, r"layers must be a whole number, 1 to 1000000000, got 3\.0"),
        (TINY, {"layers": True}, "layers must be a whole number"),
        (TINY, {"layers": 10**9, "hidden": 10**9, "vocab": 10**9}, r"e\+\d+ parameters are more than any model"),
        (TINY, {"vocab": 10**5000}, "vocab must be a whole number, .* got a int too large to show"),
        (TINY, {"dense_layers": 1}, "dense_layers and router_bias need experts"),
        (TINY, {"router_bias": True}, "dense_layers and router_bias need experts"),
        (MOE, {"dense_layers": 3}, "3 dense_layers leave none of 3 layers"),
        (TINY, {"windowed_layers": 1}, "needs a sliding_window"),
        (TINY, {"windowed_layers": 4, "sliding_window": 8}, "4 windowed_layers are more than 3"),
        (TINY, {"windowed_layers": 1, "sliding_window": 8, "kv_heads_total": 5}, "not modelled together"),
        (TINY, {"qk_norm_wide": True}, "qk_norm_wide needs qk_norm"),
        (TINY, {"v_head_dim": 8}, "need a kv_lora_rank"),
        (TINY, {"q_lora_rank": 8}, "need a kv_lora_rank"),
        (MLA, {"v_head_dim": 0}, "kv_lora_rank needs"),
        (MLA, {"kv_heads": 2}, "kv_heads must be 1"),
        (MLA, {"head_dim": 16}, "head_dim must be qk_nope_head_dim"),
        (MLA, {"sliding_window": 16}, "latent attention with sliding_window"),
    ],
)
def test_shapes_without_sense_are_refused_in_one_short_line(base, fields, message):
    with pytest.raises(ValueError, match=message) as error:
        dataclasses.replace(base, **fields)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 300


def test_shapes_from_toml(tmp_path: Path):
    path = tmp_path / "own.toml"
    path.write_text(
        "hidden = 64\nintermediate = 160\nlayers = 3\nheads = 4\nkv_heads = 2\nhead_dim = 16\n"
        "vocab = 1000\nmax_context = 2048\n"
    )
    assert ModelShapes.from_toml(path).parameters == 2 * 64000 + 3 * (64 * 128 + 64 * 64 + 3 * 64 * 160) + 7 * 64
    assert ModelShapes.from_toml(path).name == "own"
    with pytest.raises(ValueError, match="missing key 'head_dim'"):
        ModelShapes.from_table("own", {"hidden": 64, "intermediate": 160, "layers": 3, "heads": 4, "kv_heads": 2})
    with pytest.raises(ValueError, match="unknown key 'hiden'"):
        ModelShapes.from_table("own", {"hiden": 4})


def test_importing_shapes_is_cheap():
    heavy = ("numpy", "pandas", "xarray", "arviz", "pymc", "pandera", "pytensor")
    code = (
        f"import sys, rooffloor.models, rooffloor.models.specs.shapes\nprint([m for m in {heavy} if m in sys.modules])"
    )
    root = Path(__file__).resolve().parents[3]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root)
    assert done.stdout.strip() == "[]"
