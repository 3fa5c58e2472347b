"""Files of kernel benchmarks: what is taken, what is refused in one line, and the command."""

import json

import numpy as np
import pandas as pd
import pytest

from rooffloor.validate.cli import main
from rooffloor.validate.common.errors import InputError
from rooffloor.validate.kernels.benchmarks import read


def gemms(device="NVIDIA H100 80GB HBM3", fmt="bfloat16", share=0.9, latency_ms=0.004) -> pd.DataFrame:
    """Products on the line, weights many times the L2, of 8 shapes and 4 batches; and one that fits in the L2."""
    rng = np.random.default_rng(0)
    rows = [{"device": device, "gemm_dtype": fmt, "m": 1, "n": 1024, "k": 1024, "latency": 0.001}]
    size = {"bfloat16": 2, "fp8": 1}.get(fmt, 2)
    for n in (16384, 20480, 24576, 28672, 32768, 40960, 49152, 65536):
        for m in (1, 4, 16, 64):
            moved = n * 16384 * size + m * 16384 * size + m * n * 2
            took = (latency_ms + moved / 3.35e12 * 1e3 / share) * (1.0 + 0.01 * rng.standard_normal())
            rows.append({"device": device, "gemm_dtype": fmt, "m": m, "n": n, "k": 16384, "latency": took})
    return pd.DataFrame(rows)


def attention() -> pd.DataFrame:
    rng = np.random.default_rng(1)
    rows = []
    for batch in (8, 16, 32, 64):
        for heads in (4, 8):
            for step in (2047, 4095, 8191):
                took = (0.02 + 4.0 * batch * heads * 128 * (step + 1) / 3.35e12 * 1e3 / 0.85) * rng.normal(1.0, 0.02)
                rows.append((batch, heads, 128, step, took))
    frame = pd.DataFrame(rows, columns=["batch_size", "num_key_value_heads", "head_dim", "step", "latency"])
    return frame.assign(device="H100", kv_cache_dtype="bfloat16", framework="VLLM", version="1")


def test_kernels_that_fit_in_the_l2_and_unknown_formats_are_left_out(tmp_path):
    whole = pd.concat([gemms(), gemms(fmt="fp8"), gemms(fmt="fp4")])
    whole.to_csv(tmp_path / "g.csv", index=False)
    found = read(tmp_path / "g.csv")
    assert [(t.gpu, t.format, t.stack) for t in found] == [("H100", "bf16", "unnamed"), ("H100", "fp8", "unnamed")]
    assert [len(t.time_ms) for t in found] == [32, 32]
    assert found[0].peak_ms == pytest.approx(2.0 * found[1].peak_ms, rel=0.01)


def test_parquet_is_csv(tmp_path):
    attention().to_parquet(tmp_path / "a.parquet")
    attention().to_csv(tmp_path / "a.csv", index=False)
    [one], [other] = read(tmp_path / "a.parquet"), read(tmp_path / "a.csv")
    assert one.kind == "attention"
    assert one.stack == "VLLM 1"
    assert np.allclose(one.peak_ms, other.peak_ms)
    assert np.allclose(one.time_ms, other.time_ms)


REFUSED = {
    "no column": (lambda f: f.drop(columns="k"), "row 1: column 'k' is missing"),
    "no number": (lambda f: f.assign(latency=f["latency"].astype(object).where(f.index != 3, "fast")), "row 5, column"),
    "no time": (lambda f: f.assign(latency=f["latency"].where(f.index != 0, 0.0)), "row 2, column latency: found '0"),
    "no GPU": (lambda f: f.assign(device="Pascal"), "row 2, column device: unknown GPU 'Pascal'"),
    "many GPUs": (lambda f: f.assign(device="A100"), "does not say which part it is"),
    "nothing": (lambda f: f.assign(m=4096), "no kernel of decode"),
    "empty": (lambda f: f.iloc[:0], "has a header but no rows"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_bad_input_is_one_line_and_exit_2(what, tmp_path, capsys):
    spoil, says = REFUSED[what]
    spoil(gemms()).to_csv(tmp_path / "g.csv", index=False)
    with pytest.raises(InputError, match=r"^g\.csv") as error:
        read(tmp_path / "g.csv")
    assert says in str(error.value)
    assert main.main(["kernels", str(tmp_path / "g.csv"), "--out", str(tmp_path / "t.csv")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not (tmp_path / "t.csv").exists()


def test_a_row_of_parquet_is_named(tmp_path):
    attention().assign(step=-1).to_parquet(tmp_path / "a.parquet")
    with pytest.raises(InputError, match=r"a\.parquet, row 1, column step: found '-1', expected a number above 0"):
        read(tmp_path / "a.parquet")
    (tmp_path / "b.parquet").write_bytes(b"PAR1 nothing")
    with pytest.raises(InputError, match=r"b\.parquet: expected a Parquet file"):
        read(tmp_path / "b.parquet")


def test_the_command_prints_one_screen_and_writes_the_table(tmp_path, capsys):
    pd.concat([gemms(), gemms(fmt="fp8", share=0.7)]).to_csv(tmp_path / "g.csv", index=False)
    attention().to_parquet(tmp_path / "a.parquet")
    files = [str(tmp_path / "g.csv"), str(tmp_path / "a.parquet")]
    assert main.main(["kernels", *files, "--out", str(tmp_path / "t.csv")]) == 0
    text = capsys.readouterr().out
    assert "Matrix products" in text
    assert "any other" in text
    assert len(text.splitlines()) < 24
    table = pd.read_csv(tmp_path / "t.csv").set_index(["kind", "gpu", "format"])
    for kind, fmt, share in (("gemm", "bf16", 0.9), ("gemm", "fp8", 0.7), ("attention", "bf16", 0.85)):
        row = table.loc[(kind, "H100", fmt)]
        assert row["eta_low"] < share < row["eta_high"]
    assert main.main(["kernels", *files, "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["rows"]) == len(table)


def test_an_output_is_no_input(tmp_path, capsys):
    gemms().to_csv(tmp_path / "g.csv", index=False)
    before = (tmp_path / "g.csv").read_bytes()
    assert main.main(["kernels", str(tmp_path / "g.csv"), "--out", str(tmp_path / "g.csv")]) == 2
    assert main.main(["kernels", str(tmp_path / "g.csv"), "--out", str(tmp_path / "t.toml")]) == 2
    assert (tmp_path / "g.csv").read_bytes() == before
    assert capsys.readouterr().err.count("\n") == 2
