"""Model shapes against published sizes, and the config.json reader."""

import csv
import json
import subprocess
import sys
from pathlib import Path

import pytest

from models import shapes
from models.classes import CLASSES, default_class
from models.shapes import ModelShapes

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

LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 1000,
    "max_position_embeddings": 2048,
}
QWEN_MOE = LLAMA | {
    "model_type": "qwen2_moe",
    "architectures": ["Qwen2MoeForCausalLM"],
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 96,
    "decoder_sparse_step": 1,
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


# --- config.json


@pytest.mark.parametrize(
    ("file", "parameters_b"),
    [
        ("meta-llama--Meta-Llama-3.1-8B", 8.030),
        ("meta-llama--Meta-Llama-3.1-70B", 70.554),
        ("mistralai--Mixtral-8x7B-v0.1", 46.703),
        ("Qwen--Qwen3-0.6B", 0.596),
        ("Qwen--Qwen3-8B", 8.191),
        ("Qwen--Qwen3-30B-A3B", 30.532),
    ],
)
def test_real_configs(shared: Path, file, parameters_b):
    model = ModelShapes.from_hf_config(shared / "data" / "configs" / f"{file}_config.json")
    assert model.parameters / 1e9 == pytest.approx(parameters_b, rel=1e-3)
    assert model.name == file


def test_real_config_equals_the_catalog(shared: Path):
    path = shared / "data" / "configs" / "meta-llama--Meta-Llama-3.1-8B_config.json"
    read = ModelShapes.from_hf_config(path, name="Llama-3.1-8B")
    known = shapes.load("Llama-3.1-8B")
    assert read.linear_weights == known.linear_weights
    assert read.small_weights == known.small_weights
    assert (read.max_context, read.name) == (known.max_context, known.name)


@pytest.mark.parametrize("kind", ["gpt_oss", "gemma4", "nemotron_h", "deepseek_v3", "llama4"])
def test_other_architectures_are_refused_by_name(shared: Path, kind):
    files = (shared / "data" / "configs").glob("*.json")
    path = next(f for f in files if json.loads(f.read_text())["model_type"] == kind)
    with pytest.raises(ValueError, match=f"{path.name}: model_type '{kind}' is not modelled") as error:
        ModelShapes.from_hf_config(path)
    assert "\n" not in str(error.value)


def test_config_from_file_folder_and_dict(tmp_path: Path):
    folder = tmp_path / "tiny"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA))
    by_folder, by_file = (
        ModelShapes.from_hf_config(folder),
        ModelShapes.from_hf_config(folder / "config.json"),
    )
    assert by_folder == by_file
    assert by_folder.name == "tiny"
    by_dict = ModelShapes.from_hf_config(LLAMA, name="tiny")
    assert by_dict.parameters == by_folder.parameters == 2 * 64000 + 3 * (64 * 128 + 64 * 64 + 3 * 64 * 160) + 7 * 64


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"num_key_value_heads": None}, {"kv_heads": 4}),
        (
            {"attention_bias": True, "mlp_bias": True},
            {"qkv_bias": True, "attn_out_bias": True, "mlp_bias": True},
        ),
        ({"tie_word_embeddings": True, "head_dim": 32}, {"tied_embeddings": True, "head_dim": 32}),
        ({"model_type": "mistral", "sliding_window": 512}, {"sliding_window": 512, "qkv_bias": False}),
        (
            {"model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2},
            {"experts": 8, "top_k": 2, "expert_width": 160, "shared_width": 0},
        ),
        (
            {"model_type": "qwen2", "use_sliding_window": False, "sliding_window": 99},
            {"qkv_bias": True, "attn_out_bias": False, "sliding_window": 0},
        ),
        (
            QWEN_MOE,
            {"experts": 8, "expert_width": 32, "shared_width": 96, "shared_gate": True, "qkv_bias": True},
        ),
        ({"model_type": "qwen3"}, {"qk_norm": True, "qkv_bias": False}),
        (
            QWEN_MOE | {"model_type": "qwen3_moe"},
            {"qk_norm": True, "shared_width": 0, "shared_gate": False, "top_k": 2},
        ),
    ],
)
def test_what_a_config_says_and_leaves_out(config, expected):
    model = ModelShapes.from_hf_config(LLAMA | config | {"architectures": None})
    assert {field: getattr(model, field) for field in expected} == expected


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": None}, "model_type None is not modelled"),
        ({"model_type": ["llama"]}, "is not modelled"),
        ({"architectures": ["MixtralForCausalLM"]}, "contradict model_type 'llama'"),
        ({"num_local_experts": 8}, "num_local_experts contradicts model_type 'llama'"),
        ({"num_key_value_heads": 3}, "4 query heads cannot be shared by 3 KV heads"),
        ({"hidden_size": 66}, "head_dim is missing and hidden_size 66 is no multiple"),
        ({"hidden_size": None}, "hidden_size must be a whole number from 1, it is missing"),
        ({"hidden_size": "64"}, "hidden_size must be a whole number from 1, got '64'"),
        ({"num_hidden_layers": -3}, "num_hidden_layers must be a whole number from 1, got -3"),
        ({"num_hidden_layers": True}, "num_hidden_layers must be a whole number"),
        ({"vocab_size": 10**12}, "vocab must be a whole number, 1 to 1000000000"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings must be true or false, got 'yes'"),
        ({"quantization_config": {"quant_method": "fp8"}}, "only 16-bit weights are modelled"),
        ({"model_type": "mistral", "architectures": [], "num_key_value_heads": None}, "num_key_value_heads"),
        ({"model_type": "qwen2", "architectures": [], "use_sliding_window": True}, "use_sliding_window"),
    ],
)
def test_configs_that_cannot_be_used_are_refused_in_one_line(change, message):
    with pytest.raises(ValueError, match=message) as error:
        ModelShapes.from_hf_config(LLAMA | change)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_experts_per_tok": 9}, "top_k"),
        ({"decoder_sparse_step": 2}, "dense layers among MoE ones"),
        ({"mlp_only_layers": [0]}, "dense layers among MoE ones"),
        ({"n_routed_experts": 8}, "contradicts"),
    ],
)
def test_moe_configs_that_cannot_be_used(change, message):
    with pytest.raises(ValueError, match=message):
        ModelShapes.from_hf_config(QWEN_MOE | change)


@pytest.mark.parametrize("content", [b"", b"[1]", b"{", b"\xff\xfe{}", b"[" * 100_000])
def test_files_that_are_no_config(tmp_path: Path, content):
    path = tmp_path / "broken.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"broken\.json: expected a"):
        ModelShapes.from_hf_config(path)


def test_missing_config():
    with pytest.raises(ValueError, match=r"nowhere\.json: expected a config\.json"):
        ModelShapes.from_hf_config("nowhere.json")


def test_shapes_from_toml(tmp_path: Path):
    path = tmp_path / "own.toml"
    path.write_text(
        "hidden = 64\nintermediate = 160\nlayers = 3\nheads = 4\nkv_heads = 2\nhead_dim = 16\n"
        "vocab = 1000\nmax_context = 2048\n"
    )
    assert ModelShapes.from_toml(path).parameters == ModelShapes.from_hf_config(LLAMA).parameters
    assert ModelShapes.from_toml(path).name == "own"
    with pytest.raises(ValueError, match="missing key 'head_dim'"):
        ModelShapes.from_table("own", {"hidden": 64, "intermediate": 160, "layers": 3, "heads": 4, "kv_heads": 2})
    with pytest.raises(ValueError, match="unknown key 'hiden'"):
        ModelShapes.from_table("own", {"hiden": 4})


def test_importing_shapes_is_cheap():
    heavy = ("numpy", "pandas", "xarray", "arviz", "pymc", "pandera", "pytensor")
    code = f"import sys, models.shapes\nprint([m for m in {heavy} if m in sys.modules])"
    root = Path(__file__).resolve().parents[1]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root)
    assert done.stdout.strip() == "[]"
