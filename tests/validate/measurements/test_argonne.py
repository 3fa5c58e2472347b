"""The importer of the public Argonne grid: worked rows, rules, and what the real file says."""

import shutil

import numpy as np
import pandas as pd
import pytest

from rooffloor.models.roof.capacity import memory_bytes
from rooffloor.models.roof.prefill import prefill_ms
from rooffloor.validate.common.errors import InputError
from rooffloor.validate.measurements.importers import argonne
from rooffloor.validate.measurements.load import load_measurements

HEADER = "Hardware,Num of Hardware,Framework,Model,Input Output Length,Batch Size,Latency,Throughput"
TTFT_HEADER = "Hardware,Num of Hardware,Framework,Model,Input Length,Output Length,Batch Size,Latency"
LLAMA = "meta-llama/Meta-Llama-3-8B"


def row(length, batch, latency, gpu="Nvidia H100 GPU", model=LLAMA, stack="vLLM", cards=1, throughput=None):
    tokens_per_s = batch * 2 * length / latency if throughput is None else throughput
    return f"{gpu},{cards},{stack},{model},{length},{batch},{latency},{tokens_per_s}"


@pytest.fixture
def read(tmp_path):
    """Load rows of All_results.csv, beside them a table of times to first token if one is given."""

    def of(lines, ttft=None, **options):
        file = tmp_path / "All_results.csv"
        file.write_text("\n".join([HEADER, *lines]) + "\n")
        if ttft is not None:
            (tmp_path / "Fig_21_all_results_TTFT.csv").write_text("\n".join([TTFT_HEADER, *ttft]) + "\n")
        return load_measurements(file, format="argonne", **options)

    return of


@pytest.fixture(scope="module")
def grids(request):
    """The real grids of both stacks."""
    file = request.getfixturevalue("shared") / "data" / "argonne" / "All_results.csv"
    return {stack: load_measurements(file, format="argonne", stack=stack) for stack in ("vLLM", "TensorRT-LLM")}


# ---- worked rows


def test_the_mean_step_by_hand(read):
    m = read([row(1024, 16, 11.0)])
    cell = m.frame.iloc[0]
    prefill = float(prefill_ms("Meta-Llama-3-8B", "H100", 16, 1024, 0.5))
    assert cell["step_ms"] == pytest.approx((11_000 - prefill) / 1023)
    assert cell["prefill_ms"] == pytest.approx(prefill)
    assert (cell["latency_ms"], cell["n_steps"], cell["length"]) == (11_000, 1023, 1024)
    cached = 1024 + np.arange(1023)  # tokens before each of the decode steps
    assert cell["context"] == cached.mean() == 1.5 * 1024 - 1
    assert (cell["origin"], cell["statistic"], m.label) == ("derived", "mean", "derived")
    assert (m.provenance["stack"], m.provenance["mode"]) == ("vLLM", "unknown")


def test_without_a_ttft_table_the_default_mfu_is_wide_and_warned_of(read):
    m = read([row(1024, 16, 11.0)])
    assert m.provenance["mfu"]["H100"]["mfu"] == argonne.DEFAULT_MFU
    assert m.provenance["mfu"]["H100"]["source"] == "default"
    assert "default" in m.provenance["warnings"][0]
    cell = m.frame.iloc[0]
    # d prefill / d log MFU = -prefill where compute-bound: sd = prefill sinh(log sd)
    expected = cell["prefill_ms"] * np.sinh(argonne.DEFAULT_LOG_SD) / 1023
    assert cell["step_sd_ms"] == pytest.approx(expected)


def test_mfu_is_calibrated_on_the_ttft_table(read):
    mfus = (0.4, 0.7)
    times = [float(prefill_ms("Meta-Llama-3-8B", "H100", 16, 1024, mfu)) / 1e3 for mfu in mfus]
    ttft = [
        "",
        *(f"Nvidia H100 GPU,1,vLLM,{LLAMA},1024,1,16,{t}" for t in times),
        "",
        f"Nvidia H100 GPU,1,vLLM,{LLAMA},1024,1,16",  # no value
        f"Nvidia H100 GPU,2,vLLM,{LLAMA},1024,1,16,0.01",  # two GPUs
        f"Nvidia H100 GPU,1,TensorRT-LLM,{LLAMA},1024,1,16,0.01",  # another stack
        f"AMD MI250 GPU,1,vLLM,{LLAMA},1024,1,16,0.01",
        "Nvidia H100 GPU,1,vLLM,someone/else,1024,1,16,0.01",
    ]
    m = read([row(1024, 16, 11.0), row(512, 1, 5.0, gpu="Nvidia GH200 GPU")], ttft)
    found = m.provenance["mfu"]["H100"]
    assert found["mfu"] == pytest.approx(np.sqrt(0.4 * 0.7))
    assert found["log_sd"] == found["seen_log_sd"] == pytest.approx(np.std(np.log(mfus), ddof=1))
    assert m.provenance["mfu"]["GH200"]["source"] == "default"
    assert [text.split(" is ")[0] for text in m.provenance["warnings"]] == ["prefill MFU of vLLM on GH200"]


def test_a_spread_of_three_alike_models_is_not_taken_for_certainty(read):
    time = float(prefill_ms("Meta-Llama-3-8B", "H100", 16, 1024, 0.6)) / 1e3
    m = read([row(1024, 16, 11.0)], [f"Nvidia H100 GPU,1,vLLM,{LLAMA},1024,1,16,{time}"] * 3)
    assert m.provenance["mfu"]["H100"]["seen_log_sd"] == pytest.approx(0, abs=1e-12)
    assert m.provenance["mfu"]["H100"]["log_sd"] == argonne.LEAST_LOG_SD


def test_a_prefill_bound_by_weights_carries_no_mfu_error(read):
    time = float(prefill_ms("Meta-Llama-3-8B", "H100", 16, 1024, 0.6)) / 1e3
    m = read([row(128, 1, 1.2), row(128, 64, 1.5)], [f"Nvidia H100 GPU,1,vLLM,{LLAMA},1024,1,16,{time}"])
    by_weights, by_compute = m.frame["step_sd_ms"]
    assert by_weights == 0
    assert by_compute > 0.05


def test_repeated_rows_become_repeats(read):
    m = read([row(1024, 16, 11.0), row(512, 16, 5.0), row(1024, 16, 11.3)])
    assert m.frame["repeat"].tolist() == [0, 0, 1]
    assert len(m.cells()) == 3


# ---- rules


def test_each_rule_excludes_with_its_reason(read):
    lines = [
        row(1024, 16, 11.0),
        row(1024, 16, 11.0, gpu="AMD MI250 GPU"),
        row(1024, 16, 11.0, model="someone/else"),
        row(1024, 16, 11.0, throughput=186.2),
        row(8192, 1, 90.0),
        row(2048, 128, 95.0),
        row(1, 1, 0.1),
        row(1024, 32, 1.0),
    ]
    m = read(lines)
    assert m.frame.index.tolist() == [2]
    assert m.excluded["reason"].to_dict() == {
        3: "GPU not in the catalog",
        4: "model not in the catalog",
        5: "throughput x latency is not batch x 2L tokens",
        6: "2L is beyond the model's position limit",
        7: "does not fit the GPU's memory at 2L tokens",
        8: "no decode step: L is 1",
        9: "step below the physical minimum",
    }


def test_rows_that_were_not_asked_for_are_counted_not_listed(read):
    lines = [row(1024, 16, 11.0), row(1024, 16, 9.0, cards=2), row(1024, 16, 9.0, stack="llama.cpp")]
    m = read(lines, stack="vllm")
    assert m.excluded.empty
    assert m.provenance["not_selected"] == {"another stack": 1, "more than one GPU": 1}
    assert m.provenance["stack"] == "vLLM"


def test_the_stack_must_be_chosen_and_exist(read):
    lines = [row(1024, 16, 11.0), row(1024, 16, 9.0, stack="TensorRT-LLM")]
    with pytest.raises(InputError, match=r"mixes TensorRT-LLM, vLLM; choose one with --stack"):
        read(lines)
    with pytest.raises(InputError, match=r"stack 'TGI' is not in the file; expected one of TensorRT-LLM, vLLM"):
        read(lines, stack="TGI")
    with pytest.raises(InputError, match="mode 'eager' cannot be chosen"):
        read(lines, stack="vLLM", mode="eager")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (row(1024, 16, 11.0).replace(",16,", ",some,"), "row 2, column Batch Size: found 'some'"),
        (row(1024, 16, 11.0).replace(",1024,", ",10.5,"), "row 2, column Input Output Length: found '10.5'"),
        (row(1024, 16, 11.0, throughput="inf"), "row 2, column Throughput: found 'inf'"),
        (row(1024, 16, 11.0).replace(",11.0,", ",,"), "row 2, column Latency: the cell is empty"),
    ],
)
def test_a_bad_cell_is_named(read, line, message):
    with pytest.raises(InputError, match=message):
        read([line])


def test_another_table_is_refused_by_its_columns(tmp_path):
    file = tmp_path / "steps.csv"
    file.write_text("model,gpu,batch,context,step_ms\nLlama-3.1-8B,H100,1,512,8\n")
    with pytest.raises(InputError, match=r"steps.csv, row 1: column 'Hardware' is missing"):
        load_measurements(file, format="argonne")


# ---- the real file


def test_every_row_of_the_file_is_accounted_for(grids):
    for m in grids.values():
        p = m.provenance
        assert p["rows"] == 4772
        assert p["rows"] == len(m.frame) + len(m.excluded) + sum(p["not_selected"].values())
        assert p["warnings"] == []
        assert set(m.frame["gpu"]) == {"A100-40GB", "H100", "GH200"}
    assert {stack: len(m.frame) for stack, m in grids.items()} == {"vLLM": 340, "TensorRT-LLM": 184}


def test_mfu_of_a_prompt_is_plausible_on_every_gpu(grids):
    for m in grids.values():
        for value in m.provenance["mfu"].values():
            assert 0.5 < value["mfu"] < 0.75
            assert value["seen_log_sd"] < 0.05
        # an error of MFU moves no step by much
        assert (m.frame["step_sd_ms"] / m.frame["step_ms"]).max() < 0.05


def test_mfu_at_batch_1_agrees_with_the_spread_that_is_carried(shared, grids):
    """Fig_1_b of the same study (A100, TensorRT-LLM, batch 1) varies prompt and output length separately."""
    series = pd.read_csv(shared / "data" / "argonne" / "Fig_1_b_Heatmap_input_vs_output.csv")
    latency_ms = 1e3 * series.pivot_table(index="max_input_length", columns="max_output_len", values="latency")
    step_ms = (latency_ms[256] - latency_ms[128]) / 128  # mean at context prompt + 191.5
    per_token = (step_ms[4096] - step_ms[1024]) / 3072
    prefill = latency_ms[128] - 127 * (step_ms - 128.5 * per_token)  # 127 steps, mean context prompt + 63
    mfu = grids["TensorRT-LLM"].provenance["mfu"]["A100-40GB"]
    for prompt in (1024, 2048, 4096):
        seen = float(prefill_ms("Meta-Llama-3-8B", "A100-40GB", 1, prompt, 1.0)) / prefill[prompt]
        assert abs(np.log(seen / mfu["mfu"])) < 1.5 * mfu["log_sd"]


def test_qwen2_of_tensorrt_on_h100_at_2048_is_corrupt_and_nothing_else_is(grids):
    below = {s: m.excluded[m.excluded["reason"] == "step below the physical minimum"] for s, m in grids.items()}
    assert below["vLLM"].empty
    cells = below["TensorRT-LLM"][["model", "gpu", "length"]].drop_duplicates().to_numpy().tolist()
    assert cells == [["Qwen2-7B", "H100", 2048.0]]
    assert sorted(below["TensorRT-LLM"]["batch"]) == [1, 16, 32, 64]


def test_memory_separates_what_ran_from_what_queued(grids):
    def share(m, rows):
        need = [memory_bytes(m.shapes[c.model], c.batch, 2 * c.length) for c in rows.itertuples()]
        return np.array(need) / [m.gpus[name].memory_bytes for name in rows["gpu"]]

    for m in grids.values():
        too_large = m.excluded[m.excluded["reason"].str.contains("memory")]
        assert share(m, m.frame).max() < 0.88
        assert share(m, too_large).min() > 1.02


def test_the_a100_has_40_gb_because_its_steps_jump_where_those_overflow(shared):
    raw = pd.read_csv(shared / "data" / "argonne" / "All_results.csv")
    llama2 = raw[
        (raw["Hardware"] == "Nvidia A100 GPU")
        & (raw["Num of Hardware"] == 1)
        & raw["Framework"].isin(["vLLM", "TensorRT-LLM"])
        & (raw["Model"] == "meta-llama/Llama-2-7b-hf")
        & (raw["Batch Size"] == 64)
    ]
    latency = llama2.pivot_table(index="Framework", columns="Input Output Length", values="Latency")
    need = {length: float(memory_bytes("Llama-2-7B", 64, 2 * length)) for length in (256, 512)}
    assert need[256] < 40e9 < need[512] < 80e9
    # twice as many steps, each hardly longer; beyond 40 GB each takes more than 1.6 times as long
    assert (latency[256] / latency[128] < 2 * 1.25).all()
    assert (latency[512] / latency[256] > 2 * 1.6).all()


def test_flags_of_the_real_grids(grids):
    assert grids["TensorRT-LLM"].flagged.empty
    flagged = grids["vLLM"].flagged
    assert grids["vLLM"].flagged_grids == (
        ("BLOOM-7B1", "GH200"),
        ("DeciLM-7B", "GH200"),
        ("Mistral-7B-v0.1", "H100"),
    )
    jump = flagged[flagged["reason"].str.startswith("more than linear")]
    assert jump[["model", "gpu", "batch", "length"]].to_numpy().tolist() == [["Mistral-7B-v0.1", "H100", 32.0, 2048.0]]
    assert len(grids["vLLM"].without_flagged().frame) == 340 - 16 - 20 - 20


def test_mistral_of_vllm_on_h100_is_odd_from_batch_32(grids):
    """It has the shapes of Meta-Llama-3-8B but for the vocabulary: steps agree, and do elsewhere."""

    def ratio(stack, gpu):
        f = grids[stack].frame
        cells = f[f["gpu"] == gpu].pivot_table(index="model", columns=["batch", "length"], values="step_ms")
        return cells.loc["Mistral-7B-v0.1"] / cells.loc["Meta-Llama-3-8B"]

    odd = ratio("vLLM", "H100")
    assert odd.loc[:16].between(0.9, 1.06).all()
    assert odd.loc[32:].max() > 1.9
    assert (odd.loc[32:, 512:] > 1.3).all()
    assert ratio("TensorRT-LLM", "H100").between(0.9, 1.0).all()
    assert ratio("vLLM", "A100-40GB").between(0.9, 1.15).all()


def test_repeats_are_few_and_differ_by_percents(grids):
    repeated = grids["vLLM"].frame
    repeated = repeated[repeated["repeat"] > 0]
    assert sorted(repeated["model"]) == ["DeciLM-7B", "Llama-2-7B", "Qwen2-7B"]
    assert set(zip(repeated["gpu"], repeated["batch"], repeated["length"], strict=True)) == {("H100", 32, 1024)}
    assert 0.01 < grids["vLLM"].repeat_spread() < 0.03
    assert np.isnan(grids["TensorRT-LLM"].repeat_spread())


def test_llama_cpp_rows_are_something_else(shared):
    m = load_measurements(shared / "data" / "argonne" / "All_results.csv", format="argonne", stack="LLAMA.CPP")
    assert (m.frame["batch"] == 1).all()
    odd = m.excluded[m.excluded["reason"] == "throughput x latency is not batch x 2L tokens"]
    assert len(odd) == 150
    assert (odd["batch"] > 1).all()


def test_the_ttft_table_is_optional(shared, tmp_path, grids):
    shutil.copy(shared / "data" / "argonne" / "All_results.csv", tmp_path)
    alone = load_measurements(tmp_path / "All_results.csv", format="argonne", stack="vLLM")
    assert len(alone.provenance["warnings"]) == 3
    assert len(alone.frame) == len(grids["vLLM"].frame)
    moved = (alone.frame["step_ms"] / grids["vLLM"].frame["step_ms"] - 1).abs().max()
    assert 0 < moved < 0.1
