"""Importers of other tools' results: steps by hand, every exclusion, hostile files, and the way back in."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from rooffloor.models.roof.prefill import prefill_ms
from rooffloor.validate.cli import main
from rooffloor.validate.common.errors import InputError
from rooffloor.validate.measurements import convert, csvfile, importers, load, schema
from rooffloor.validate.measurements.importers import source, steps
from rooffloor.validate.measurements.importers.source import Given
from rooffloor.validate.measurements.load import FORMATS, load_measurements

FILES = Path(__file__).parents[2] / "fixtures" / "importers"
LATENCY = Given(model="Llama-3.1-8B", gpu="H100", batch=8, input_len=1024, output_len=129)
READ = {
    "vllm-latency.json": ("vllm-latency", LATENCY),
    "vllm-serve.json": ("vllm-serve", Given(gpu="H100")),
    "llama-bench.json": ("llama-bench", Given()),
    "optimum.json": ("optimum-benchmark", Given()),
}
FOLDER = Path(__file__).parents[3]


def content(name):
    return json.loads((FILES / name).read_text())


def put(document, path, value):
    """Set the value at a path of keys; drop the key for Ellipsis."""
    *keys, last = path.split(".")
    for key in keys:
        document = document[int(key) if isinstance(document, list) else key]
    if value is ...:
        del document[last]
    else:
        document[last] = value


@pytest.fixture
def read(tmp_path):
    """Import a fixture after changes at paths of keys."""

    def of(name, changes=None, given=None, **said):
        value = content(name)
        for path, new in (changes or {}).items():
            put(value, path, new)
        file = tmp_path / name
        file.write_text(json.dumps(value))
        format, default = READ[name]
        return convert.run(file, format, Given(**said) if said else given or default)

    return of


@pytest.fixture
def refusal(read):
    """The one line with which a changed fixture is refused."""

    def of(name, changes=None, **options):
        with pytest.raises(InputError) as error:
            read(name, changes, **options)
        assert "\n" not in str(error.value)
        return str(error.value)

    return of


def rendered(frame):
    return csvfile.table_text(frame.columns, frame.itertuples(index=False))


def only(imported):
    (row,) = imported.rows.to_dict("records")
    return row


# ---- shared arithmetic


def test_the_mean_context_is_the_mean_over_the_steps():
    assert steps.mean_context(100, 5) == np.mean([100, 101, 102, 103])  # tokens 2 .. 5
    assert steps.mean_context(100, 9, first=5) == np.mean([104, 105, 106, 107])  # tokens 6 .. 9
    assert steps.mean_context(1024, 1024) == 1.5 * 1024 - 1  # argonne's


def test_the_registry_is_what_load_and_the_command_know():
    assert ("schema", *importers.FORMATS) == FORMATS
    for format in importers.FORMATS:
        assert callable(importers.reader(format).read)
        assert set(importers.FORMATS[format].takes) <= set(Given.__dataclass_fields__)


# ---- vllm bench latency


def test_a_latency_by_hand(read):
    row = only(read("vllm-latency.json"))
    prefill, slow, fast = (float(prefill_ms("Llama-3.1-8B", "H100", 8, 1024, 0.5 * np.exp(s))) for s in (0, -0.4, 0.4))
    assert row["step_ms"] == pytest.approx((1200 - prefill) / 128)
    assert row["context"] == 1024 + np.arange(128).mean()
    error_ms = np.std([1200, 1220, 1210, 1170], ddof=1) / 2
    assert row["step_sd_ms"] == pytest.approx(np.hypot((slow - fast) / 2, error_ms) / 128)
    assert (row["batch"], row["n_steps"], row["statistic"], row["origin"]) == (8, 512, "mean", "derived")
    assert (row["stack"], row["mode"]) == ("vLLM", "unknown")
    assert row["source"].startswith("vllm-latency.json sha256:")


def test_with_a_shorter_run_the_prefill_cancels(read):
    given = Given(**{**vars(LATENCY), "shorter": FILES / "vllm-latency-short.json", "shorter_output_len": 1})
    imported = read("vllm-latency.json", given=given)
    row = only(imported)
    assert row["step_ms"] == pytest.approx((1200 - 170) / 128)
    assert row["context"] == 1024 + 63.5
    expected = np.hypot(np.std([1200, 1220, 1210, 1170], ddof=1) / 2, 10 / np.sqrt(3)) / 128
    assert row["step_sd_ms"] == pytest.approx(expected)
    assert "cancels" in imported.text


def test_the_shorter_run_must_be_the_same_cell_and_shorter(refusal):
    short = FILES / "vllm-latency-short.json"
    base = vars(LATENCY) | {"shorter": short}
    assert "expected fewer than 129" in refusal("vllm-latency.json", given=Given(**base | {"shorter_output_len": 129}))
    alone = Given(**vars(LATENCY) | {"shorter_output_len": 1})
    assert "only with --shorter FILE" in refusal("vllm-latency.json", given=alone)
    assert "give --shorter-output-len N" in refusal("vllm-latency.json", given=Given(**base))


def test_records_of_the_pytorch_benchmark_say_how_it_was_run():
    imported = convert.run(FILES / "vllm-latency.pytorch.json", "vllm-latency", Given(gpu="H100"))
    row = only(imported)
    assert (row["model"], row["batch"], row["context"]) == ("Llama-3.1-8B", 8, 1087.5)
    assert (row["mode"], row["dtype"], row["kv_dtype"]) == ("graph", "bfloat16", "auto")
    with pytest.raises(InputError, match="--batch 4 contradicts batch_size of the file, 8"):
        convert.run(FILES / "vllm-latency.pytorch.json", "vllm-latency", Given(gpu="H100", batch=4))


@pytest.mark.parametrize(
    ("argument", "value", "reason"),
    [
        ("use_beam_search", True, "beam search"),
        ("n", 2, "several answers to a prompt"),
        ("speculative_config", {"method": "ngram"}, "speculative decoding"),
        ("quantization", "fp8", "dtype is not 16-bit"),
        ("kv_cache_dtype", "fp8", "kv_dtype is not 16-bit"),
        ("tensor_parallel_size", 2, "more than one GPU"),
        ("output_len", 1, "no decode step"),
    ],
)
def test_latency_runs_that_are_not_one_token_a_step(tmp_path, argument, value, reason):
    records = content("vllm-latency.pytorch.json")
    put(records, f"0.benchmark.extra_info.args.{argument}", value)
    file = tmp_path / "x.json"
    file.write_text(json.dumps(records))
    with pytest.raises(InputError, match=f"^x.json: no row can be used .1 rows: {reason}"):
        convert.run(file, "vllm-latency", Given(gpu="H100"))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"latencies": ...}, "no key 'latencies' (a list of seconds): expected the JSON of `vllm bench latency"),
        ({"latencies": []}, "key 'latencies' is [], expected a list of seconds"),
        ({"latencies": [1.2, "1.2"]}, "expected a list of seconds"),
        ({"latencies": [1.2, float("nan")]}, "expected a list of seconds"),
        ({"latencies": [1.2, -1]}, "expected a list of seconds"),
        ({"latencies": [[1.2]]}, "expected a list of seconds"),
        ({"latencies": [10**400]}, "expected a list of seconds"),
        ({"latencies": [True]}, "expected a list of seconds"),
        ({"latencies": {"a": 1}}, "expected a list of seconds"),
        ({"avg_latency": 1.3}, "avg_latency is 1.3 s, but the mean of latencies is 1.2 s"),
        ({"avg_latency": "1.2"}, "key 'avg_latency' is \"1.2\", expected seconds above 0"),
    ],
)
def test_latency_files_that_are_none(refusal, changes, said):
    message = refusal("vllm-latency.json", changes)
    assert message.startswith("vllm-latency.json: ")
    assert said in message


def test_what_the_caller_must_say(refusal):
    assert refusal("vllm-latency.json", gpu="H100") == "vllm-latency.json does not name the model: give --model NAME"
    said = {"model": "Llama-3.1-8B", "gpu": "H100"}
    assert "does not say batch_size: give --batch N" in refusal("vllm-latency.json", **said)
    assert "unknown model 'GPT'" in refusal("vllm-latency.json", model="GPT", gpu="H100")
    assert "contradicts the file" in refusal("vllm-serve.json", model="Qwen2.5-7B", gpu="H100")
    assert "--batch: not with format vllm-serve" in refusal("vllm-serve.json", batch=3, gpu="H100")
    assert "A100-40GB" in refusal("vllm-serve.json", gpu="A100")


# ---- vllm bench serve


def test_a_served_step_by_hand(read):
    imported = read("vllm-serve.json")
    row = only(imported)
    assert (row["step_ms"], row["statistic"], row["batch"]) == (10.0, "median", 32)
    assert row["context"] == 1000 + (201 - 2) / 2
    assert row["n_steps"] == 256 * 200 / 32
    running = 256 * 11 * 200 / 20_000  # Little's law
    kv_bytes = 2 * 8 * 128 * 2 * 32  # keys and values, 8 heads of 128, 2 bytes, 32 layers
    batch_ms = (32 - running) * 1099.5 * kv_bytes / 3350e9 * 1e3
    assert row["step_sd_ms"] == pytest.approx(np.sqrt((6 / 40) ** 2 + (11 - 10) ** 2 + batch_ms**2))
    assert (row["origin"], row["stack_version"], row["stack"]) == ("derived", "0.11.0", "vLLM")
    assert "max_concurrency 32 was reached" in imported.text
    assert "the server is vLLM: backend 'openai' does not say it" in imported.text


@pytest.mark.parametrize(
    ("changes", "batch", "said"),
    [
        ({"max_concurrency": None}, 28, "Little's law: 28.2 requests"),
        ({"max_concurrency": ...}, 28, "Little's law"),
        ({"max_concurrency": 64}, 28, "max_concurrency 64 was not reached (31.4 in flight)"),
        ({"request_rate": 12.0}, 28, "was not reached"),
        ({"duration": 2000.0, "max_concurrency": None}, 1, "Little's law: 0.282 requests"),
        ({"mean_e2el_ms": 1000.0}, 28, "was not reached (12.8 in flight)"),
        ({"mean_ttft_ms": 5000.0, "mean_tpot_ms": 6.0, "mean_itl_ms": 6.0, "median_itl_ms": 6.0}, 15, "Little's law"),
    ],
)
def test_the_batch_under_load(read, changes, batch, said):
    imported = read("vllm-serve.json", changes)
    assert only(imported)["batch"] == batch
    assert said in imported.text


def test_without_inter_token_latencies_tpot_stands_in(read):
    no_itl = {"mean_itl_ms": ..., "median_itl_ms": ..., "std_itl_ms": ...}
    row = only(read("vllm-serve.json", no_itl))
    assert (row["step_ms"], row["statistic"]) == (10.9, "median")
    row = only(read("vllm-serve.json", no_itl | {"median_tpot_ms": ...}))
    assert (row["step_ms"], row["statistic"]) == (11.0, "mean")
    assert row["step_sd_ms"] == pytest.approx(0.8, abs=0.03)  # the whole spread


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"spec_decode_acceptance_rate": 60.0}, "several tokens a step"),
        ({"mean_itl_ms": 22.0}, "a chunk is not one token"),
        ({"mean_itl_ms": 5.0}, "a chunk is not one token"),
        ({"total_output_tokens": 256}, "no decode step"),
        ({"tensor_parallel_size": "2"}, "more than one GPU"),
        ({"tp": "4"}, "more than one GPU"),
        ({"median_itl_ms": 1.0}, "step below the physical minimum"),
    ],
)
def test_serving_runs_that_are_no_decode_steps(refusal, changes, reason):
    assert f"no row can be used (1 rows: {reason}" in refusal("vllm-serve.json", changes)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"duration": ...}, "no key 'duration' (seconds above 0)"),
        ({"duration": 0}, "key 'duration' is 0"),
        ({"completed": 1.5}, "key 'completed' is 1.5"),
        ({"completed": 1e300}, "key 'completed'"),
        ({"mean_tpot_ms": "11"}, "key 'mean_tpot_ms' is \"11\", expected milliseconds above 0"),
        ({"std_itl_ms": [1]}, "key 'std_itl_ms' is [1]"),
        ({"max_concurrency": 0}, "key 'max_concurrency' is 0"),
        ({"model_id": 7}, "key 'model_id' is 7, expected a text"),
        ({"model_id": "own/model"}, "the catalog has no model 'own/model': give --model NAME"),
        ({"tp": "two"}, "key 'tp' is \"two\", expected a whole number of GPUs"),
    ],
)
def test_serving_files_that_are_none(refusal, changes, said):
    assert said in refusal("vllm-serve.json", changes)


def test_appended_results_are_rows_and_equal_cells_repeats(tmp_path):
    line = json.dumps(content("vllm-serve.json"))
    file = tmp_path / "all.json"
    file.write_text(f"{line}\n{line}\n")
    rows = convert.run(file, "vllm-serve", Given(gpu="H100")).rows
    assert rows["repeat"].tolist() == [0, 1]
    line, other = (line.replace('"backend": "openai"', f'"backend": "{name}"') for name in ("vllm", "sglang"))
    file.write_text(f"{line}\n{other}\n")
    with pytest.raises(InputError, match="the file mixes SGLang, vLLM; choose one with --stack"):
        convert.run(file, "vllm-serve", Given(gpu="H100"))
    assert len(convert.run(file, "vllm-serve", Given(gpu="H100", stack="sglang")).rows) == 1


# ---- llama-bench


@pytest.mark.parametrize("name", ["llama-bench.csv", "llama-bench.json", "llama-bench.jsonl"])
def test_text_generation_by_hand(name):
    m = load_measurements(FILES / name, format="llama-bench")
    f = m.frame
    assert f["step_ms"].tolist() == [10.0, 10.9375]
    assert f["context"].tolist() == [63.5, 4096 + 63.5]
    assert (f["batch"] == 1).all()
    assert m.label == "measured"
    runs = 1 if name.endswith("csv") else 3
    assert f["n_steps"].tolist() == [128 * runs, 128 * runs]
    assert f["step_sd_ms"].to_numpy() == pytest.approx(10 / 128 / np.sqrt(runs), rel=1e-3)  # 10 ms over 128 tokens
    assert m.excluded["reason"].value_counts().to_dict() == {
        "prompt processing, no decode step": 1,
        "prompt and generation in one time (pg)": 1,
        "dtype is not 16-bit": 1,
    }
    assert m.excluded.set_index("reason").loc["dtype is not 16-bit", "detail"] == "Q4_K - Medium"
    assert f[["stack", "stack_version", "dtype", "kv_dtype", "attention"]].iloc[0].tolist() == [
        "llama.cpp",
        "b5163 8cf427ff",
        "fp16",
        "fp16",
        "flash",
    ]


@pytest.mark.parametrize(
    ("column", "value", "reason"),
    [
        ("backends", "CPU", "no GPU backend"),
        ("backends", "BLAS", "no GPU backend"),
        ("gpu_info", "", "no GPU backend"),
        ("devices", "none", "no GPU backend"),
        ("backends", "CUDA,RPC", "layers on other machines (RPC)"),
        ("gpu_info", "NVIDIA H100 80GB HBM3, NVIDIA H100 80GB HBM3", "more than one GPU"),
        ("devices", "CUDA0/CUDA1", "more than one GPU"),
        ("gpu_info", "NVIDIA GeForce RTX 4090", "GPU not in the catalog (--gpu names it)"),
        ("model_filename", "models/own.gguf", "model not in the catalog (--model names it)"),
        ("n_gpu_layers", 32, "layers on the CPU"),
        ("n_gpu_layers", 0, "layers on the CPU"),
        ("n_cpu_moe", 3, "experts on the CPU"),
        ("no_kv_offload", True, "KV cache not on the GPU"),
        ("embeddings", True, "embeddings instead of tokens"),
        ("tensor_buft_overrides", "exps=CPU", "tensors placed by hand"),
        ("type_k", "q8_0", "kv_dtype is not 16-bit"),
        ("model_type", "llama 8B all F32", "dtype is not 16-bit"),
        ("avg_ts", 50.0, "avg_ts is not n_gen / avg_ns"),
        ("avg_ns", 128e6, "avg_ts is not n_gen / avg_ns"),
        ("n_depth", 700_000, "step below the physical minimum"),
    ],
)
def test_rows_that_are_not_16_bit_on_one_gpu(read, column, value, reason):
    m = read("llama-bench.json", {f"1.{column}": value}).measurements
    assert m.excluded.loc[2, "reason"] == reason
    assert m.frame.index.tolist() == [3]


@pytest.mark.parametrize(
    "changes",
    [
        {"n_gpu_layers": -1},
        {"n_gpu_layers": 33},
        {"gpu_info": "NVIDIA H100 80GB HBM3, NVIDIA H100 80GB HBM3", "split_mode": "none"},
        {"gpu_info": "NVIDIA H100 80GB HBM3, NVIDIA H100 80GB HBM3", "devices": "CUDA0"},
        {"model_type": "llama 8B BF16", "model_filename": "/m/Llama-3.1-8B-BF16-00001-of-00002.gguf"},
        {"model_filename": "C:\\m\\Llama-3.1-8B.gguf"},
        {"n_depth": ..., "n_cpu_moe": ..., "stddev_ts": ...},
    ],
)
def test_rows_that_are(read, changes):
    m = read("llama-bench.json", {f"1.{column}": value for column, value in changes.items()}).measurements
    assert m.frame["step_ms"].tolist() == [10.0, 10.9375]


def test_backends_of_files_before_december_2024(tmp_path):
    rows = content("llama-bench.json")
    for row in rows:
        del row["backends"]
        row |= {"cuda": True, "vulkan": False, "gpu_blas": True}
    file = tmp_path / "old.json"
    file.write_text(json.dumps(rows))
    assert len(load_measurements(file, format="llama-bench").frame) == 2
    file.write_text(json.dumps([row | {"cuda": False} for row in rows]))
    with pytest.raises(InputError, match="3 rows: no GPU backend"):
        load_measurements(file, format="llama-bench")


def test_flash_attention_and_other_backends_are_other_stacks(read, refusal):
    message = refusal("llama-bench.json", {"1.flash_attn": 0})
    assert "mixes llama.cpp, llama.cpp without flash attention; choose one with --stack" in message
    assert len(read("llama-bench.json", {"1.flash_attn": 0}, stack="llama.cpp").rows) == 1
    assert "llama.cpp Vulkan" in refusal("llama-bench.json", {"1.backends": "Vulkan"})


def test_a_named_model_must_have_the_files_size(read, refusal):
    rows = read("llama-bench.json", {"1.model_filename": "own.gguf"}, model="Llama-3.1-8B").rows
    assert len(rows) == 2
    message = refusal("llama-bench.json", model="Llama-3.2-1B")
    assert "row 2, column model_n_params: found 8.03e+09 weights, but --model Llama-3.2-1B has 1.2" in message


def test_a_named_gpu_stands_for_one_kind(read, refusal):
    card = "NVIDIA A100 80GB PCIe"
    everywhere = {f"{row}.gpu_info": card for row in range(5)}
    assert set(read("llama-bench.json", everywhere, gpu="A100-80GB").rows["gpu"]) == {"A100-80GB"}
    assert "--gpu cannot name" in refusal("llama-bench.json", {"1.gpu_info": card}, gpu="A100-80GB")
    assert "contradicts" in refusal("llama-bench.json", gpu="A100-80GB")


@pytest.mark.parametrize(
    ("column", "value", "said"),
    [
        ("n_gen", "many", "row 2, column n_gen: found 'many', expected a whole number of tokens"),
        ("n_gen", -128, "row 2, column n_gen"),
        ("n_gen", 1e30, "row 2, column n_gen"),
        ("n_prompt", [0], "row 2, column n_prompt: found '[0]'"),
        ("avg_ns", None, "row 2, column avg_ns: the cell is empty"),
        ("avg_ns", float("nan"), "row 2, column avg_ns"),
        ("avg_ns", float("inf"), "row 2, column avg_ns"),
        ("avg_ns", 0, "row 2, column avg_ns"),
        ("avg_ts", {"a": 1}, "row 2, column avg_ts"),
        ("n_gpu_layers", 1.5, "row 2, column n_gpu_layers"),
    ],
)
def test_cells_that_are_no_numbers(refusal, column, value, said):
    assert said in refusal("llama-bench.json", {f"1.{column}": value})


def test_a_file_that_is_not_of_llama_bench(tmp_path):
    for name, text in (("x.csv", "a,b\n1,2\n"), ("x.json", '[{"a": 1}]')):
        (tmp_path / name).write_text(text)
        with pytest.raises(InputError, match=f"^{name}: no 'model_filename' in it: expected the output of `llama-"):
            load_measurements(tmp_path / name, format="llama-bench")


# ---- optimum-benchmark


def test_a_decode_phase_by_hand(read):
    imported = read("optimum.json")
    row = only(imported)
    assert row["step_ms"] == pytest.approx(25.4)  # 2.54 s over 100 steps
    assert row["step_sd_ms"] == pytest.approx(10 * np.std([2.5, 2.52, 2.54, 2.56, 2.58], ddof=1) / np.sqrt(5))
    assert (row["batch"], row["context"], row["n_steps"]) == (4, 512 + 49.5, 500)
    assert (row["origin"], row["statistic"], row["mode"]) == ("measured", "mean", "eager")
    assert (row["stack"], row["stack_version"], row["attention"]) == ("transformers", "4.45.2", "sdpa")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"config.backend.torch_compile": True}, {"mode": "unknown"}),
        (
            {"config.backend.torch_compile": True, "config.backend.torch_compile_config": {"mode": "reduce-overhead"}},
            {"mode": "graph"},
        ),
        ({"config.scenario.generate_kwargs.cache_implementation": "static"}, {"mode": "unknown"}),
        ({"config.backend.name": "vllm"}, {"stack": "vLLM", "origin": "derived", "mode": "unknown"}),
        ({"config.scenario.generate_kwargs": {}}, {"step_ms": 25.4}),  # as the throughput implies
        ({"config.environment.transformers_version": "5.0.0", "config.backend.torch_dtype": None}, {"dtype": "auto"}),
        ({"report.decode": {}}, {"step_ms": 25.0, "statistic": "median", "n_steps": 5}),
    ],
)
def test_what_the_config_says(read, changes, expected):
    row = only(read("optimum.json", changes))
    assert {key: row[key] for key in expected} == pytest.approx(expected)


def test_the_report_alone_needs_the_rest(tmp_path):
    file = tmp_path / "benchmark_report.json"
    file.write_text(json.dumps(content("optimum.json")["report"]))
    given = {"model": "Llama-3.1-8B", "gpu": "H100", "batch": 4, "input_len": 512}
    row = only(convert.run(file, "optimum-benchmark", Given(**given)))
    assert row["step_ms"] == pytest.approx(25.4)
    with pytest.raises(InputError, match=r"--output-len 64 contradicts decode\.throughput of the file, 101"):
        convert.run(file, "optimum-benchmark", Given(**given, output_len=64))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"config.backend.device": "cpu"}, "not on a GPU"),
        ({"config.backend.device_ids": "0,1"}, "more than one GPU"),
        ({"config.backend.quantization_scheme": "bnb"}, "dtype is not 16-bit"),
        ({"config.backend.torch_dtype": None}, "dtype is not 16-bit"),
        ({"config.backend.torch_dtype": "float32"}, "dtype is not 16-bit"),
        ({"config.scenario.generate_kwargs.num_beams": 4}, "beam search"),
        ({"config.scenario.generate_kwargs.num_return_sequences": 4}, "several answers"),
        ({"config.scenario.generate_kwargs.use_cache": False}, "without a KV cache"),
        ({"config.scenario.generate_kwargs.max_new_tokens": 1}, "no decode step"),
    ],
)
def test_runs_that_are_no_decode_steps(refusal, changes, reason):
    assert f"no row can be used (1 rows: {reason}" in refusal("optimum.json", changes)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"report.decode": ..., "report.per_token": ...}, "no key 'report.decode.latency'"),
        ({"report.decode.latency": "fast"}, "no key 'report.decode.latency.count'"),
        ({"report.decode.latency.unit": "ms"}, "key 'report.decode.latency.unit' is \"ms\", expected 's' for seconds"),
        ({"report.decode.latency.mean": float("nan")}, "key 'report.decode.latency.mean'"),
        ({"config.environment.gpu": ["NVIDIA H100 80GB HBM3", "NVIDIA L40S"]}, "give --gpu NAME"),
        ({"config.environment.gpu": [1]}, "expected a list of names of GPUs"),
        ({"config.environment.gpu": ["NVIDIA GeForce RTX 4090"]}, "the catalog has no gpu"),
        ({"config.backend.torch_compile": "yes"}, "expected true or false"),
        ({"config.scenario.input_shapes.batch_size": ...}, "does not say batch_size: give --batch N"),
    ],
)
def test_benchmark_files_that_are_none(refusal, changes, said):
    assert said in refusal("optimum.json", changes)


# ---- hostile files


@pytest.mark.parametrize("format", ["llama-bench", "optimum-benchmark", "vllm-latency", "vllm-serve"])
@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"   ",
        b"null",
        b"7",
        b"[]",
        b"[[]]",
        b"[7]",
        b"{}",
        b"{",
        b"[" * 100_000,
        b'{"a":' * 50_000,
        b'{"latencies": ' + b"9" * 10_000 + b"}",
        b'{"latencies": 1}\n{"latencies":',
        b"\xff\xfe{\x00",
        b'{"a": "\xe9"}',
        b"\x00" * 100,
        b"PK\x03\x04",
        b"<html></html>",
    ],
)
def test_what_is_no_result_is_one_line(tmp_path, format, text):
    file = tmp_path / "x.json"
    file.write_bytes(text)
    with pytest.raises(InputError) as error:
        load_measurements(file, format=format)
    assert "\n" not in str(error.value)
    assert "x.json" in str(error.value)
    assert len(str(error.value)) < 500


@pytest.mark.parametrize("name", list(READ))
def test_no_value_at_any_key_ends_in_a_traceback(tmp_path, monkeypatch, name):
    format, given = READ[name]
    judge, judged = load._judge, {}

    def once(selected, *of):
        """What physics says of rows that a reader made alike of several files is found once."""
        key = selected.frame.to_csv() + selected.excluded.to_csv()
        if key not in judged:
            judged[key] = judge(selected, *of)
        return judged[key]

    monkeypatch.setattr(load, "_judge", once)
    value = content(name)
    if isinstance(value, list):
        value = value[1:2]

    def paths(item, prefix=()):
        yield prefix
        if isinstance(item, dict | list):
            for key, below in item.items() if isinstance(item, dict) else enumerate(item[:2]):
                yield from paths(below, (*prefix, key))

    def with_value(item, path, new):
        if not path:
            return new
        copy = dict(item) if isinstance(item, dict) else list(item)
        copy[path[0]] = with_value(item[path[0]], path[1:], new)
        return copy

    file = tmp_path / name
    hostile = [None, True, -1, 0, 1e308, 10**400, float("nan"), "", "=1+1", "x" * 5000, [], [[]], {}, {"a": {}}]
    messages = []
    for path, new in zip(paths(value), hostile * 100, strict=False):
        for item in (new,) if new is None else (new, None):
            file.write_text(json.dumps(with_value(value, path, item)))
            try:
                rows = convert.run(file, format, given).rows
            except InputError as error:
                messages.append(str(error))
            else:
                assert np.isfinite(rows.select_dtypes("number").to_numpy()).all()
    assert len(messages) > 5
    assert not any("\n" in message for message in messages)


def test_large_files_are_refused_unread(tmp_path, monkeypatch):
    monkeypatch.setattr(source, "MOST_BYTES", 100)
    file = tmp_path / "x.json"
    file.write_text(json.dumps({"latencies": [1.0] * 1000}))
    for format in ("vllm-latency", "optimum-benchmark"):
        with pytest.raises(InputError, match=r"x\.json: cannot be read \(it is larger than 0 KB\)"):
            load_measurements(file, format=format)
    assert source.MOST_BYTES == 100
    with pytest.raises(InputError, match="cannot be read"):
        load_measurements(tmp_path / "none.json", format="vllm-latency")


# ---- out and in again


@pytest.mark.parametrize("name", list(READ))
def test_what_is_written_is_read_as_the_same(read, tmp_path, name):
    imported = read(name)
    file = tmp_path / "steps.csv"
    file.write_text(imported.csv)
    again, m = load_measurements(file), imported.measurements
    assert list(pd.read_csv(file).columns) == [c for c in schema.KNOWN if c in imported.rows]
    for column in ("model", "gpu", "batch", "context", "step_ms", "step_sd_ms", "repeat", "n_steps"):
        assert again.frame[column].tolist() == m.frame[column].tolist()
    assert (again.label, again.provenance["stack"]) == (m.label, m.provenance["stack"])
    assert again.excluded.empty


def test_the_argonne_grid_goes_out_and_in(shared, tmp_path):
    imported = convert.run(shared / "data" / "argonne" / "All_results.csv", "argonne", Given(stack="vLLM"))
    file = tmp_path / "steps.csv"
    file.write_text(imported.csv)
    again, m = load_measurements(file), imported.measurements
    assert len(again.frame) == len(m.frame) == 340
    assert (again.frame["step_ms"].to_numpy() == m.frame["step_ms"].to_numpy()).all()
    assert (again.frame["step_sd_ms"].to_numpy() == m.frame["step_sd_ms"].to_numpy()).all()
    assert (again.label, again.provenance["stack"], again.provenance["mode"]) == ("derived", "vLLM", "unknown")


@pytest.mark.parametrize("text", ["=1+1", "+x", "-x", "@x", "plain", "it's", "'quoted'", 'a "b", c'])
def test_texts_that_a_spreadsheet_would_run(tmp_path, text):
    file = tmp_path / "x.csv"
    written = rendered(pd.DataFrame({"a": [text], "b": [-1.5], "c": [3.0], "d": [np.nan], "e": [-7]}))
    file.write_text(written)
    cells = written.splitlines()[1]
    assert cells.endswith(",-1.5,3,,-7")
    assert cells[0] not in "=+-@"
    assert csvfile.read(file).frame.iloc[0].tolist() == [text, "-1.5", "3", "", "-7"]


def test_control_characters_are_not_written():
    assert rendered(pd.DataFrame({"a": ["\t=1", "x\r\ny\0z"]})) == "a\n'=1\nx  y z\n"


# ---- the command


def run(*arguments):
    return main.main(["import", *map(str, arguments)])


def test_the_command_prints_csv_and_says_what_it_did_on_stderr(capsys):
    assert run("llama-bench", FILES / "llama-bench.csv") == 0
    out, err = capsys.readouterr()
    assert out.splitlines()[0].startswith("model,gpu,batch,context,step_ms,repeat,step_sd_ms")
    assert len(out.splitlines()) == 3
    assert "excluded: dtype is not 16-bit: 1 rows" in err
    assert "assumed: batch 1" in err


def test_the_command_writes_a_file_and_json(capsys, tmp_path):
    file = tmp_path / "new" / "steps.csv"
    assert run("vllm-serve", FILES / "vllm-serve.json", "--gpu", "H100", "--out", file, "--json") == 0
    data = json.loads(capsys.readouterr().out)
    assert set(data) == {"rows", "excluded", "assumptions", "provenance"}
    assert data["rows"][0]["batch"] == 32
    assert data["provenance"]["given"] == {"gpu": "H100"}
    assert load_measurements(file).frame["step_ms"].tolist() == [10.0]
    assert [p.name for p in file.parent.iterdir()] == ["steps.csv"]
    assert run("vllm-serve", FILES / "vllm-serve.json", "--gpu", "H100", "--out", file) == 0
    assert capsys.readouterr().out.startswith("vllm-serve.json: 1 derived decode steps")


def test_the_command_reads_models_of_a_folder(capsys, tmp_path, shared):
    value = content("vllm-serve.json") | {"model_id": "Qwen/Qwen3-8B"}
    file = tmp_path / "x.json"
    file.write_text(json.dumps(value))
    assert run("vllm-serve", file, "--gpu", "H100", "--configs", shared / "data" / "configs") == 0
    assert "Qwen3-8B,H100,32" in capsys.readouterr().out


def test_bad_input_is_one_line_and_exit_code_2(capsys, tmp_path):
    assert run("vllm-latency", FILES / "llama-bench.csv", "--gpu", "H100") == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("rooffloor: llama-bench.csv is not JSON (")
    assert err.count("\n") == 1
    assert run("argonne", FILES / "llama-bench.csv", "--gpu", "H100") == 2
    assert "--gpu: not with format argonne" in capsys.readouterr().err


# ---- the published schema


def test_the_descriptor_refuses_what_the_reader_refuses(tmp_path):
    descriptor = json.loads((Path(schema.__file__).parent / "measurements.schema.json").read_text())
    fields = {f["name"]: f for f in descriptor["fields"]}
    assert list(fields) == list(schema.KNOWN)
    assert len(fields) == len(descriptor["fields"])
    assert all(f["description"] for f in fields.values())
    assert {name for name, f in fields.items() if f["type"] != "string"} == set(schema.SCHEMA.columns)
    good = {"model": "Llama-3.1-8B", "gpu": "H100", "batch": "1", "context": "512", "step_ms": "8"}

    def accepts(column, value):
        file = tmp_path / "x.csv"
        file.write_text(rendered(pd.DataFrame([good | {column: value}])))
        try:
            load_measurements(file)
        except InputError as error:
            return "no row can be used" in str(error) or "physical minimum" in str(error)
        return True

    for name, described in fields.items():
        limits = described.get("constraints", {})
        assert accepts(name, "") != limits.get("required", False), name
        if "minimum" in limits:
            assert accepts(name, str(limits["minimum"])), name
            assert not accepts(name, str(limits["minimum"] - 0.01)), name
        if "maximum" in limits:
            assert not accepts(name, str(limits["maximum"] + 1)), name
        if described["type"] == "integer":
            assert not accepts(name, "1.5"), name
        elif described["type"] == "number":
            assert accepts(name, "1.5"), name
        for word in limits.get("enum", ()):
            assert accepts(name, word), name
        if "enum" in limits:
            assert not accepts(name, "otherwise"), name


def test_the_documentation_names_every_column_format_and_unit():
    text = (FOLDER / "docs" / "measurements.md").read_text()
    for column in schema.KNOWN:
        unit = schema.FIELDS[column].get("unit", "")
        row = next(line for line in text.splitlines() if line.startswith(f"| `{column}` "))
        assert unit in row
    for format in importers.FORMATS:
        assert f"`{format}`" in text


def test_the_example_of_the_documentation_is_read(tmp_path):
    text = (FOLDER / "docs" / "measurements.md").read_text()
    file = tmp_path / "example.csv"
    file.write_text(text.split("```csv\n")[1].split("```")[0])
    m = load_measurements(file)
    assert (len(m.frame), len(m.excluded), len(m.flagged), m.label) == (3, 0, 0, "measured")
