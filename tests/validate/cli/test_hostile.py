"""Hostile files and options for check, predict, plan and import.

Either exit code 2 with one line on stderr and nothing written, or a sensible answer: no traceback, no long wait,
nothing outside the folder that was named, no text of a file unescaped on a page.
"""

import io
import json
import os
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from rooffloor.models.calibration.draws import units
from rooffloor.models.calibration.store import to_npz
from rooffloor.validate.cli import main
from rooffloor.validate.cli.commands import check as check_command
from rooffloor.validate.fitting import saved
from rooffloor.validate.measurements import csvfile

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
    "tie_word_embeddings": False,
}
HEAD = "batch,context,step_ms\n"
ROWS = "1,512,7.6\n4,512,7.9\n16,2048,9.4\n"
EVIL = "<script>alert(1)</script> $\\frac{ ../../x"
SHEET = {
    "name": '"Mine"',
    "bf16_dense_tflops": "989.0",
    "memory_bandwidth_gb_s": "3350.0",
    "memory_gb": "80",
    "l2_mb": "50",
}
LLAMA_BENCH: dict[str, Any] = {
    "build_commit": "abc1234",
    "build_number": 5000,
    "gpu_info": "NVIDIA H100 80GB HBM3",
    "backends": "CUDA",
    "model_filename": "Meta-Llama-3.1-8B-F16.gguf",
    "model_type": "llama 8B F16",
    "type_k": "f16",
    "type_v": "f16",
    "n_gpu_layers": 99,
    "flash_attn": True,
    "n_prompt": 0,
    "n_gen": 128,
    "n_depth": 512,
    "avg_ns": 980_000_000,
    "stddev_ns": 2_000_000,
    "avg_ts": 130.6,
    "stddev_ts": 0.3,
}
SERVE: dict[str, Any] = {
    "backend": "vllm",
    "model_id": "meta-llama/Llama-3.1-8B",
    "max_concurrency": 4,
    "request_rate": "inf",
    "duration": 120.5,
    "completed": 200,
    "total_input_tokens": 204_800,
    "total_output_tokens": 51_200,
    "mean_tpot_ms": 9.6,
    "median_tpot_ms": 9.5,
    "std_tpot_ms": 0.3,
    "mean_itl_ms": 9.6,
    "median_itl_ms": 9.4,
    "std_itl_ms": 1.0,
}


class Said(NamedTuple):
    """What a command left behind: exit code, both streams, new files."""

    code: int
    out: str
    err: str
    new: set[str]


type Shell = Callable[..., Said]


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    """Runs a command in an empty folder, where files are given as content: {"name": text or bytes}."""
    home = tmp_path / "a" / "b" / "home"  # so deep that ../../x would still be seen
    home.mkdir(parents=True)
    monkeypatch.chdir(home)
    Path("good.json").write_text(json.dumps(CONFIG))
    Path("good.csv").write_text(HEAD + ROWS)

    def run(*arguments: object, **files: str | bytes) -> Said:
        for name, content in files.items():
            Path(name.replace("__", ".")).write_bytes(content.encode() if isinstance(content, str) else content)
        before = {str(path) for path in tmp_path.rglob("*")}
        try:
            code = main.main([str(argument) for argument in arguments])
        except SystemExit as stop:  # of the parser
            code = int(str(stop.code))
        captured = capsys.readouterr()
        new = {str(path.relative_to(home, walk_up=True)) for path in tmp_path.rglob("*") if str(path) not in before}
        return Said(code, captured.out, captured.err, new)

    return run


def assert_refused(said: Said, *words: str) -> None:
    """Exit code 2, one printable line that says what is wrong, and nothing written."""
    assert (said.code, said.out) == (2, ""), said
    lines = said.err.splitlines()
    assert len(lines) == 1, said.err
    assert lines[0].startswith("rooffloor")
    assert lines[0].isprintable()
    assert len(lines[0]) <= 500
    for word in words:
        assert word in lines[0]
    assert not said.new


def _short(value: object) -> str:
    return repr(value)[:24]


def check(shell: Shell, *more: object, **files: str | bytes) -> Said:
    return shell("check", "--config", "good.json", "--measurements", "x.csv", "--gpu", "H100", *more, **files)


def predict(shell: Shell, *more: object, **files: str | bytes) -> Said:
    return shell("predict", "--batch", "1", "--context", "512", *more, **files)


def plan(shell: Shell, *more: object, **files: str | bytes) -> Said:
    return shell("plan", "--config", "good.json", "--gpu", "H100", *more, **files)


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The study's calibration with few draws: a check takes a fraction of the time."""
    whole = saved.load("transfer-study")
    path = tmp_path_factory.mktemp("few") / "posterior.npz"
    path.write_bytes(to_npz(whole.rows(units(whole, 48))))
    return path


# ---- config.json --------------------------------------------------------------------------------------------------


def config(**changes: Any) -> str:
    return json.dumps({key: value for key, value in (CONFIG | changes).items() if value is not ...})


CONFIGS: dict[str, tuple[str | bytes, str]] = {
    "negative": (config(hidden_size=-1), "hidden_size"),
    "zero layers": (config(num_hidden_layers=0), "num_hidden_layers"),
    "400 digits": (config(vocab_size=10**400), "vocab_size"),
    "5000 digits": (config()[:-1] + ', "x": ' + "9" * 5000 + "}", "config.json"),
    "1e308": (config(intermediate_size=1e308), "intermediate_size"),
    "nan": (config(head_dim=float("nan")), "head_dim"),
    "bool": (config(num_attention_heads=True), "num_attention_heads"),
    "text": (config(num_hidden_layers="36"), "num_hidden_layers"),
    "missing": (config(hidden_size=...), "hidden_size"),
    "all huge": (config(**{key: 10**9 for key, value in CONFIG.items() if type(value) is int}), "parameters"),
    "more KV heads than heads": (config(num_key_value_heads=64), "KV heads"),
    "uneven KV heads": (config(num_key_value_heads=7), "KV heads"),
    "empty": ("", "config.json"),
    "list": ("[]", "JSON object"),
    "deep": ('{"a":' * 100_000, "nested too deeply"),
    "UTF-16": (config().encode("utf-16"), "UTF-8"),
    "latin-1": (config()[:-1].encode() + b', "x": "\xe9"}', "UTF-8"),
    "NUL": (config() + "\0", "config.json"),
    "twice": (config()[:-1] + ', "hidden_size": 1}', "twice"),
    "unknown type": (config(model_type="<script>" * 100), "model_type"),
    "type is a table": (config(model_type={"a": 1}), "model_type"),
    "layers of two kinds": (config(architectures=["<b>"]), "architectures"),
    "name of two lines": (config(_name_or_path="a\nb"), "name"),
    "name with an escape": (config(_name_or_path="\x1b[2J"), "name"),
    "long name": (config(_name_or_path="x" * 100_000), "name"),
    "name with a surrogate": (config(_name_or_path="\ud800"), "name"),
    "name that turns the line around": (config(_name_or_path="\u202ex"), "name"),
}


@pytest.mark.parametrize("key", CONFIGS)
def test_config_is_refused(shell: Shell, key: str) -> None:
    content, word = CONFIGS[key]
    assert_refused(predict(shell, "--config", "x.json", "--gpu", "H100", x__json=content), word)


@pytest.mark.parametrize("path", ["/dev/zero", "/dev/null", "no/such.json", "folder"])
def test_config_that_is_no_file_is_refused(shell: Shell, path: str) -> None:
    Path("folder").mkdir()
    assert_refused(predict(shell, "--config", path, "--gpu", "H100"))


# ---- measurements -------------------------------------------------------------------------------------------------


def step(text: str) -> str:
    return f"{HEAD}1,512,{text}\n{ROWS}"


TABLES: dict[str, tuple[str | bytes, tuple[str, ...]]] = {
    "empty": ("", ("empty",)),
    "blank": (" \n\n \r\n", ("empty",)),
    "header alone": (HEAD, ("no rows",)),
    "NUL": (HEAD + ROWS + "\0", ("NUL",)),
    "UTF-16": ((HEAD + ROWS).encode("utf-16"), ("UTF-8",)),
    "latin-1": (b"batch,context,step_ms,\xe9\n", ("UTF-8",)),
    "quote never closed": (HEAD + '1,512,"7.6\n', ("row 2", "never closed")),
    "too many cells": (HEAD + "1,512,7.6,9\n", ("row 2",)),
    "a cell is missing": (HEAD + "1,512\n", ("row 2", "step_ms")),
    "column twice": ("batch,batch,context,step_ms\n1,1,512,7\n", ("twice",)),
    "step 1e308": (step("1e308"), ("row 2", "step_ms")),
    "step 1e400": (step("1e400"), ("row 2", "step_ms")),
    "step nan": (step("nan"), ("row 2", "step_ms")),
    "step inf": (step("inf"), ("row 2", "step_ms")),
    "step negative": (step("-1"), ("row 2", "step_ms")),
    "step true": (step("True"), ("row 2", "step_ms")),
    "step formula": (step("=1+1"), ("row 2", "step_ms")),
    "step with a comma": (step('"7,6"'), ("row 2", "step_ms")),
    "step with an escape": (step("\x1b[2J"), ("row 2", "step_ms")),
    "seconds": (HEAD + "1,512,0.06\n4,512,0.07\n", ("seconds",)),
    "below the physical minimum": (HEAD + "1,512,4\n", ("physical minimum",)),
    "batch 1.5": (HEAD + "1.5,512,7.6\n", ("batch",)),
    "batch 0": (HEAD + "0,512,7.6\n", ("batch",)),
    "batch 1e6": (HEAD + "1e6,512,7.6\n", ("physical minimum",)),
    "context negative": (HEAD + "1,-1,7.6\n", ("context",)),
    "does not fit": (HEAD + "512,32768,900\n", ("memory",)),
    "cell twice": (HEAD + "1,512,7.6\n" * 2, ("row 3", "repeat")),
    "two models": ("model,batch,context,step_ms\na,1,512,7.6\nb,4,512,7.9\n", ("--model",)),
    "another model": ("model,batch,context,step_ms\nLlama-3.1-8B,1,512,7.6\n", ("--model",)),
    "unknown GPU": ("gpu,batch,context,step_ms\n\x1b[31mX,1,512,7.6\n", ("row 2", "gpu")),
    "8-bit": ("dtype,batch,context,step_ms\nint8,1,512,7.6\n", ("16-bit",)),
    "two GPUs": ("tensor_parallel,batch,context,step_ms\n2,1,512,7.6\n", ("more than one GPU",)),
    "batch 1e308": (HEAD + "1e308,512,7.6\n", ("row 2", "batch", "at most 1e+06")),
    "context 1e308": (HEAD + "1,1e308,7.6\n", ("row 2", "context", "at most 1e+08")),
    "error 1e155": ("step_sd_ms,batch,context,step_ms\n1e155,1,512,7.6\n", ("row 2", "step_sd_ms", "at most 20000")),
    "steps 1e308": ("n_steps,batch,context,step_ms\n1e308,1,512,7.6\n", ("row 2", "n_steps")),
    "5000 columns": (HEAD[:-1] + "".join(f",c{i}" for i in range(5000)) + "\n" + ROWS, ("5003 columns", "1000")),
    "100000 columns in one line": ("[" + "{}," * 100_000 + "]", ("columns",)),
    "semicolons": (HEAD.replace(",", ";") + "1;512;7,6\n", ("row 1", "';'", "commas in numbers", "points")),
    "tabs": (HEAD.replace(",", "\t") + "1\t512\t7.6\n", ("row 1", "tabs")),
    "comment": ("# H100, today, me\n" + HEAD[:-1] + ",x\n", ("row 1", "comment", "header")),
    "comment of one cell": ("# measured today\n" + HEAD + ROWS, ("row 1", "comment", "header")),
    "escape in the header": ("\x1b[31mx,batch,context\n0,1,512\n", ("step_ms", "\\x1b[31mx")),
    "long header": ("x" * 10_000 + ",batch,context\n0,1,512\n", ("step_ms",)),
    "many columns": (",".join(f"c{i}" for i in range(300)) + "\n" + "1," * 299 + "1\n", ("and 290 more",)),
    "escape in a stack": (
        "stack,batch,context,step_ms\n\x1b[31ma,1,512,7.6\nb,4,512,7.9\n",
        ("row 3", "mixes", "\\x1b[31ma"),
    ),
    "many stacks": (
        "stack,batch,context,step_ms\n" + "".join(f"s{i},{i + 1},512,7.6\n" for i in range(300)),
        ("row 3", "mixes", "and 290 more"),
    ),
    "seconds by name": ("batch,context,step_s\n1,512,0.0076\n", ("row 1", "'step_ms' is missing", "1000 times step_s")),
    "a rate": ("batch,context,tokens_per_s\n1,512,130\n", ("'step_ms' is missing", "1000 * batch / tokens_per_s")),
    "TPOT": ("batch,context,TPOT_ms\n1,512,7.6\n", ("'step_ms' is missing", "name TPOT_ms step_ms")),
    "one column in two spellings": ("batch,Batch,context,step_ms\n1,1,512,7.6\n", ("'batch' and 'Batch'",)),
    "all excluded": ("excluded,batch,context,step_ms\n<script>,1,512,7.6\n", ("excluded",)),
}


@pytest.mark.parametrize("key", TABLES)
def test_measurements_are_refused(shell: Shell, key: str) -> None:
    content, words = TABLES[key]
    assert_refused(check(shell, "--out", "out", x__csv=content), *words)


def test_a_large_file_is_refused_at_once(shell: Shell) -> None:
    with open("x.csv", "wb") as file:
        file.truncate(200 * 2**20)
    assert_refused(check(shell))
    assert_refused(predict(shell, "--config", "x.csv", "--gpu", "H100"), "larger")
    assert_refused(predict(shell, "--config", "good.json", "--gpu", "H100", "--study", "x.csv"), "npz")
    assert_refused(shell("import", "vllm-serve", "x.csv", "--gpu", "H100"), "larger than 64 MB")
    with open("x.csv", "wb") as file:
        file.truncate(300 * 2**20)
    assert_refused(check(shell), "larger than 256 MB")


@pytest.mark.parametrize("kind", ["/dev/zero", "pipe.csv", "pipe.toml", "pipe.npz", "folder"])
def test_what_is_no_file_is_refused_at_once(shell: Shell, kind: str) -> None:
    Path("folder").mkdir()
    if kind.startswith("pipe"):
        os.mkfifo(kind)
    assert_refused(shell("check", "--config", "good.json", "--gpu", "H100", "--measurements", kind), "cannot be read")
    assert_refused(check(shell, "--study", kind, x__csv=HEAD + ROWS), "posterior.npz")
    assert_refused(predict(shell, "--config", kind, "--gpu", "H100"))
    assert_refused(shell("table", kind))
    assert_refused(shell("table", "--data", kind), "cannot be read")
    if kind != "folder":
        assert_refused(predict(shell, "--config", "good.json", "--gpu", Path(kind)))
    for format in FORMATS:
        assert_refused(shell("import", format, kind), "cannot be read")


ANSWERED = {
    "one row": HEAD + "1,512,7.6\n",
    "steps all equal": HEAD + "".join(f"{b},{c},9\n" for b in (1, 4) for c in (512, 1024)),
    "no context": HEAD + "1,0,7.6\n2,0,7.7\n4,0,7.8\n",
    "context beyond the model's": HEAD + "1,512,7.6\n1,50000,12\n",
    "equal repeats": "repeat,batch,context,step_ms\n" + "".join(f"{i},1,512,7.6\n" for i in range(5)),
    "one row below the minimum": HEAD + ROWS + "2,512,4\n",
    "carriage returns and a BOM": "\ufeff" + (HEAD + ROWS).replace("\n", "\r"),
    "columns named as ours": "reason,detail,index,label,predicted,batch,context,step_ms\n0,0,0,0,0,1,512,7.6\n",
    "columns named as ours within": (
        "row,peak_context,neighbour,level_0,smaller,smaller_ms,target,backend,card,name,klass,below,"
        + HEAD
        + "".join(f"1,x,2,3,4,5,6,7,8,9,y,z,{row}\n" for row in ROWS.split())
        + "1,x,2,3,4,5,6,7,8,9,y,z,8,512,90\n"  # jumps: flagged
    ),
    "columns in capitals": HEAD.replace(",", " , ").title() + ROWS,
}


@pytest.mark.parametrize("key", ANSWERED)
def test_odd_measurements_get_a_verdict(shell: Shell, few: Path, key: str) -> None:
    said = check(shell, "--study", few, "--json", x__csv=ANSWERED[key])
    assert said.code in (0, 1, 4)
    assert (said.err, said.new) == ("", set())
    data = json.loads(said.out)
    assert 0 <= min(data["probabilities"].values()) <= max(data["probabilities"].values()) <= 1
    if key == "one row":
        assert data["verdict"] == "does not hold"  # far off, whatever the cause
        assert data["cause"].startswith("cannot tell")


# ---- GPUs ---------------------------------------------------------------------------------------------------------


def sheet(**changes: str) -> str:
    return "".join(f"{key} = {value}\n" for key, value in (SHEET | changes).items())


SHEETS: dict[str, str | bytes] = {
    "empty": "",
    "nan": sheet(memory_gb="nan"),
    "inf": sheet(memory_bandwidth_gb_s="inf"),
    "1e308": sheet(bf16_dense_tflops="1e308"),
    "zero": sheet(l2_mb="0"),
    "negative": sheet(bf16_dense_tflops="-1"),
    "bool": sheet(memory_gb="true"),
    "text": sheet(memory_gb='"80"'),
    "date": sheet(memory_gb="1979-05-27"),
    "6000 digits": sheet(memory_gb="9" * 6000),
    "L2 of 400 digits": sheet(l2_mb="1" + "0" * 400),
    "bandwidth 1e-300": sheet(memory_bandwidth_gb_s="1e-300"),
    "FLOPs 1e-300": sheet(bf16_dense_tflops="1e-300"),
    "deep lists": "a=" + "[" * 5000,
    "deep tables": "a=" + "{a=" * 5000,
    "6000 nines": "zzz=" + "9" * 6000,
    "large comment": sheet() + "#" + "x" * 2**20,
    "name is a list": sheet(name="['x']"),
    "note is a table": sheet(note="{a = 1}"),
    "unknown key": sheet(price="1"),
    "unknown long key": sheet(**{"x" * 9000: "1"}),
    "twice": sheet() * 2,
    "binary": b"\xff\xfe\0",
    "name of two lines": sheet(name='"a\\nb"'),
    "name with an escape": sheet(name='"\\u001b[2J"'),
    "long name": sheet(name=f'"{"x" * 300}"'),
}


@pytest.mark.parametrize("key", SHEETS)
def test_gpu_is_refused(shell: Shell, key: str) -> None:
    assert_refused(predict(shell, "--config", "good.json", "--gpu", "x.toml", x__toml=SHEETS[key]))


@pytest.mark.parametrize("key", ["deep lists", "deep tables", "6000 nines", "large comment", "empty", "binary"])
def test_model_in_toml_is_refused(shell: Shell, key: str) -> None:
    assert_refused(predict(shell, "--config", "x.toml", "--gpu", "H100", x__toml=SHEETS[key]))


def test_a_measured_name_with_other_figures_is_another_gpu(shell: Shell) -> None:
    said = predict(shell, "--config", "Llama-3.1-8B", "--gpu", "x.toml", x__toml=sheet(name='"H100"', l2_mb="1"))
    assert said.code == 0
    assert "data sheet differs" in said.out


# ---- saved calibrations -------------------------------------------------------------------------------------------


def archive(**members: bytes) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in members.items():
            file.writestr(f"{name}.npy", content)
    return stream.getvalue()


def claimed(shape: str) -> bytes:
    """The header of an .npy file that claims a shape."""
    header = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode()


BROKEN: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "pickled": lambda a: {"floor_ms": np.array([object()], dtype=object)},
    "another version": lambda a: {"version": np.array(3)},
    "weights of nan": lambda a: {"weight": a["weight"] * np.nan},
    "negative weights": lambda a: {"weight": -a["weight"]},
    "no floors": lambda a: {"floor_ms": a["floor_ms"] * np.nan},
    "no draws": lambda a: {k: v[:0] for k, v in a.items() if v.shape[:1] == a["weight"].shape},
    "negative bandwidth": lambda a: {"constant_eta_bw": -a["constant_eta_bw"]},
    "unknown constant": lambda a: {"constant_x": a["constant_eta_bw"]},
    "GPU without figures": lambda a: {"spec": a["spec"] * np.nan},
    "same GPU twice": lambda a: {"gpus": np.repeat(a["gpus"][:1], len(a["gpus"]))},
    "cells of no GPU": lambda a: {"anchor_gpu": a["anchor_gpu"] + 100},
    "domain that falls": lambda a: {"domain": a["domain"][:, ::-1]},
    "names of two lines": lambda a: {"models": np.char.add(a["models"], "\n")},
}


@pytest.mark.parametrize("key", BROKEN)
def test_calibration_is_refused(shell: Shell, few: Path, key: str) -> None:
    with np.load(few) as stored:
        arrays = dict(stored)
    stream = io.BytesIO()
    np.savez(stream, **(arrays | BROKEN[key](arrays)))
    given = ("--config", "good.json", "--gpu", "H100", "--study", "x.npz")
    assert_refused(predict(shell, *given, x__npz=stream.getvalue()), "x.npz")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"hello",
        archive(version=claimed("(-5,)")),
        archive(version=claimed("(1000000000000000,)")),
        archive(version=claimed("(40000000,)") + b"\0" * (320 * 2**20)),
        archive(version=b"\x93NUMPY\x01\x00" + struct.pack("<H", 9000) + b"(" * 9000),
        archive(**{"../../x": b"x"}),
    ],
    ids=["empty", "text", "negative shape", "8 PB claimed", "bomb", "parentheses", "climbs out"],
)
def test_archive_is_refused(shell: Shell, content: bytes) -> None:
    given = ("--config", "good.json", "--gpu", "H100", "--study", "x.npz")
    assert_refused(predict(shell, *given, x__npz=content), "x.npz")


def test_a_calibration_may_have_any_name(shell: Shell, few: Path) -> None:
    said = check(shell, "--study", "copy.bin", x__csv=HEAD + ROWS, copy__bin=few.read_bytes())
    assert said.code in (0, 1, 4)
    assert said.err == ""


def test_a_cut_off_calibration_is_refused(shell: Shell, few: Path) -> None:
    given = ("--config", "good.json", "--gpu", "H100", "--study", "x.npz")
    assert_refused(predict(shell, *given, x__npz=few.read_bytes()[:-500]), "x.npz")


# ---- options ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("axis", ["0", "-1", "", ",", "1e9", "1:2:0", "5:1:1", "1:9:1x", "1:1000000000:1", "9" * 5000])
def test_axis_is_refused(shell: Shell, axis: str) -> None:
    assert_refused(shell("predict", "--config", "good.json", "--gpu", "H100", f"--batch={axis}"))


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--budget", "1000"),
        ("--budget", "2", "--goal", "<b>"),
        ("--budget", "2", "--noise=nan"),
        ("--budget", "2", "--noise=0"),
        ("--budget", "2", "--width=-1"),
        ("--width", "inf"),
        ("--width", "0.1", "--goal", "overlap"),
        ("--budget", "2", "--contexts", "900000"),
        ("--budget", "2", "--batches", "0"),
        ("--budget", "2", "--gpu", "h100"),
        ("--budget", "2", "--measurements", "."),
    ],
    ids=" ".join,
)
def test_plan_is_refused(shell: Shell, options: tuple[str, ...]) -> None:
    assert_refused(plan(shell, *options))


@pytest.mark.parametrize(
    "study", ["no-such-study", "../../etc", "/etc/passwd", "folder", "", "x" * 5000, "\udcff"], ids=_short
)
def test_study_is_refused(shell: Shell, study: str) -> None:
    Path("folder").mkdir()
    assert_refused(plan(shell, "--budget", "2", "--study", study))


@pytest.mark.parametrize("option", ["--config", "--measurements", "--gpu", "--out", "--model", "--class", "--study"])
@pytest.mark.parametrize("value", ["", " ", "\udcff", "x" * 5000, "a\nb", "\x1b[2J"], ids=_short)
def test_option_is_refused(shell: Shell, few: Path, option: str, value: str) -> None:
    if option == "--out" and value in ("\udcff", "a\nb", "\x1b[2J"):
        pytest.skip("may be the name of a folder")
    given = {"--config": "good.json", "--measurements": "good.csv", "--gpu": "H100", "--study": few, option: value}
    assert_refused(shell("check", *(part for pair in given.items() for part in pair)))


@pytest.mark.parametrize("config", ["x" * 5000, "a/" * 3000, "typo.json", "no/such", "folder"], ids=_short)
def test_config_that_is_missing_is_told_so(shell: Shell, config: str) -> None:
    Path("folder").mkdir()
    for name in ("a", "b"):
        Path(f"folder/{name}_config.json").write_text(json.dumps(CONFIG))
    said = shell("check", "--config", config, "--measurements", "good.csv", "--gpu", "H100")
    words = {"typo.json": "no such file", "no/such": "no such file", "folder": "holds 2 configs"}
    assert_refused(said, words.get(config, ""))
    if config != "folder":
        assert_refused(predict(shell, "--config", config, "--gpu", "H100"))


def test_a_class_with_a_typo_is_refused(shell: Shell, few: Path) -> None:
    assert_refused(check(shell, "--study", few, "--class", "foo", x__csv=HEAD + ROWS), "--class", "moe")


@pytest.mark.parametrize("name", ["x" * 300, '"a\nb"', "\x1b[2J"], ids=_short)
def test_model_of_a_file_is_refused(shell: Shell, name: str) -> None:
    assert_refused(check(shell, x__csv=f"model,{HEAD}{name},1,512,7.6\n"), "name")
    assert_refused(check(shell, "--model", name.strip('"'), x__csv=HEAD + ROWS), "name")


@pytest.mark.parametrize(
    "arguments",
    [(), ("frobnicate",), ("check",), ("check", "--x" * 1000), ("import", "\x1b[2J", "x"), ("predict", "--mode", "x")],
    ids=_short,
)
def test_wrong_arguments_are_one_line(shell: Shell, arguments: tuple[str, ...]) -> None:
    assert_refused(shell(*arguments), "see --help")


# ---- results of other tools ---------------------------------------------------------------------------------------

FORMATS = ("llama-bench", "optimum-benchmark", "vllm-latency", "vllm-serve", "argonne")


@pytest.mark.parametrize(
    "content",
    ["", "[]", "null", "[1, 2]", "[[{}]]", "[" * 100_000, b'{"a": "\xe9"}', "{}\0", "a,b\n1\n", '{"a": 1}\n{}\nx'],
    ids=["empty", "list", "null", "numbers", "nested", "deep", "latin-1", "NUL", "table", "lines"],
)
def test_result_file_is_refused(shell: Shell, content: str | bytes) -> None:
    given = ("--model", "Llama-3.1-8B", "--gpu", "H100")
    for format in FORMATS[:-1]:
        assert_refused(shell("import", format, "x.json", *given, x__json=content), "x.json")


@pytest.mark.parametrize("value", [-1, 1e308, float("nan"), 10**400, "x", "<script>", [1], {"a": 1}], ids=repr)
def test_number_of_a_result_is_refused(shell: Shell, value: object) -> None:
    for key in ("avg_ns", "n_gen", "n_depth"):
        content = json.dumps([LLAMA_BENCH | {key: value}])
        assert_refused(shell("import", "llama-bench", "x.json", x__json=content), "x.json")
    for key in ("completed", "duration", "mean_tpot_ms", "total_output_tokens", "max_concurrency"):
        content = json.dumps(SERVE | {key: value})
        assert_refused(shell("import", "vllm-serve", "x.json", "--gpu", "H100", x__json=content), "x.json")


@pytest.mark.parametrize("key", ["unused", "build_commit", "\ud800"])
def test_half_a_surrogate_pair_in_a_result_is_read(shell: Shell, key: str) -> None:
    content = json.dumps([LLAMA_BENCH | {key: ["\ud800", {"\udc00": "x\ud800"}] if key == "unused" else "\ud800"}])
    said = shell("import", "llama-bench", "x.json", "--json", x__json=content)
    assert (said.code, said.err) == (0, "")


def test_many_keys_are_refused(shell: Shell) -> None:
    content = json.dumps([LLAMA_BENCH | {f"k{i}": 1, f"j{i}": 2} for i in range(1000)])
    assert_refused(shell("import", "llama-bench", "x.json", x__json=content), "different keys", "1000")
    content = json.dumps([dict.fromkeys(map(str, range(20)), 1)] * 5000)
    assert_refused(shell("import", "argonne", "x.json", x__json=content), "columns")


@pytest.mark.parametrize("value", ["1e308", "1e-300", "inf", "nan", "-1"])
def test_number_of_a_table_is_refused(shell: Shell, value: str) -> None:
    row = {"Hardware": "Nvidia H100 GPU", "Framework": "vLLM", "Model": "LLaMA-3-8B", "Num of Hardware": "1"}
    row |= {"Input Output Length": "128", "Batch Size": "1", "Latency": "1", "Throughput": "256"}
    for column in ("Num of Hardware", "Input Output Length", "Batch Size", "Latency", "Throughput"):
        content = ",".join(row) + "\n" + ",".join((row | {column: value}).values()) + "\n"
        assert_refused(shell("import", "argonne", "x.csv", x__csv=content))


def test_a_model_beyond_the_catalog_is_named_by_its_config(shell: Shell) -> None:
    result = json.dumps(SERVE | {"model_id": "own/Mine-8B"})
    given = ("import", "vllm-serve", "x.json", "--gpu", "H100")
    assert_refused(shell(*given, x__json=result), "--config FILE", "--configs DIR", "--model NAME")
    assert_refused(shell(*given, "--model", "Mine-8B"), "--config FILE", "--configs DIR")
    Path("configs").mkdir()
    Path("configs/Mine-8B_config.json").write_text(config())
    for more, name in (
        (("--configs", "configs"), "Mine-8B"),
        (("--config", "configs/Mine-8B_config.json"), "Mine-8B"),
        (("--config", "good.json", "--model", "other"), "other"),
    ):
        said = shell(*given, *more)
        assert said.code == 0
        assert f"\n{name},H100,4," in said.out
    assert_refused(shell(*given, "--config", "good.json", "--model", "\x1b[2J"), "name")
    assert_refused(shell("import", "argonne", "good.csv", "--config", "good.json"), "--configs DIR")
    assert_refused(shell(*given, "--config", "configs"))
    assert_refused(shell(*given, "--config", "typo.json"), "no such file")


def test_texts_of_a_result_are_disarmed(shell: Shell) -> None:
    given = ("--gpu", "H100", "--stack-version", '=1+1\n\x1b,"')
    assert shell("import", "vllm-serve", "x.json", *given, "--out", "out.csv", x__json=json.dumps(SERVE)).code == 0
    assert csvfile.read("out.csv").frame["stack_version"].tolist() == ['=1+1  ,"']
    assert "'=1+1" in Path("out.csv").read_text()


# ---- names on pages, in figures and tables ------------------------------------------------------------------------


def test_names_are_escaped_and_stay_in_the_folder(shell: Shell, few: Path) -> None:
    table = "model,excluded,batch,context,step_ms\n" + "".join(f'"{EVIL}",,{row}\n' for row in ROWS.split())
    table += f'"{EVIL}","{EVIL}",1,600,7\n'
    said = shell(
        *("check", "--config", "evil.json", "--measurements", "x.csv", "--gpu", "x.toml", "--out", "out"),
        *("--study", few),
        evil__json=config(_name_or_path=EVIL),
        x__csv=table,
        x__toml=sheet(name=json.dumps(EVIL)),
    )
    assert said.code in (0, 1, 4)
    figures = {f"out/figures/{name}.png" for name in ("cells", "verdict")}
    assert said.new == {"out", "out/check.html", "out/check.json", "out/cells.csv", "out/figures"} | figures
    assert said.new - {"out", "out/figures"} == {f"out/{name}" for name in check_command.FILES}
    page = Path("out/check.html").read_text()
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)" in page


def test_curves_of_a_hostile_name_are_drawn(shell: Shell) -> None:
    given = ("--config", "evil.json", "--gpu", "H100", "--figure", "out.svg", "--out", "out.csv")
    said = predict(shell, *given, evil__json=config(_name_or_path="=" + EVIL))
    assert (said.code, said.new) == (0, {"out.svg", "out.csv"})
    assert "<script" not in Path("out.svg").read_text()
    assert "'=<script>" in Path("out.csv").read_text()


def test_planned_cells_hold_no_formula(shell: Shell) -> None:
    given = ("--config", "evil.json", "--gpu", "H100", "--budget", "1", "--out", "out.csv")
    assert shell("plan", *given, evil__json=config(_name_or_path="=cmd|x")).new == {"out.csv"}
    assert ",'=cmd|x," in Path("out.csv").read_text()


# ---- where it is written ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["file", "file/below", "/proc/x", "x" * 300])
def test_out_that_cannot_be_written_is_refused_before_the_work(shell: Shell, target: str) -> None:
    assert_refused(check(shell, "--out", target, x__csv=HEAD + ROWS, file="keep"), "cannot be written")
    assert Path("file").read_text() == "keep"


@pytest.mark.parametrize("target", ["folder", "file/below.csv", "/proc/x.csv", "..", ".", "/", "x" * 300], ids=_short)
def test_import_out_that_cannot_be_written_is_refused(shell: Shell, target: str) -> None:
    Path("folder").mkdir()
    given = ("import", "llama-bench", "x.json", "--out", target)
    assert_refused(shell(*given, x__json=json.dumps([LLAMA_BENCH]), file="keep"), "cannot be written")


@pytest.mark.parametrize("name", ["cells.csv", "link.csv", "hard.csv"])
def test_what_is_read_is_not_overwritten(shell: Shell, name: str) -> None:
    Path("cells.csv").write_text(HEAD + ROWS)
    Path("link.csv").symlink_to("cells.csv")
    os.link("cells.csv", "hard.csv")
    given = ("--config", "good.json", "--gpu", "H100", "--measurements")
    assert_refused(shell("check", *given, name, "--out", "."), "would overwrite", name)
    Path("full.csv").write_text("model,gpu," + HEAD + "good,H100,1,512,7.6\n")
    assert_refused(shell("plan", *given, "full.csv", "--budget", "1", "--out", "./full.csv"), "would overwrite")
    content = json.dumps([LLAMA_BENCH])
    assert_refused(shell("import", "llama-bench", "ll.json", "--out", "ll.json", ll__json=content), "would overwrite")
    given = ("--configs", ".", "--out", "good.json")
    assert_refused(shell("import", "llama-bench", "ll.json", *given), "would overwrite")
    Path("c.csv").write_text(config())
    assert_refused(predict(shell, "--config", "c.csv", "--gpu", "H100", "--out", "c.csv"), "would overwrite")
    Path("report.json").write_text(HEAD)
    assert_refused(shell("report", "--data", "report.json", "--out", "."), "would overwrite")
    assert (Path("cells.csv").read_text(), Path("ll.json").read_text()) == (HEAD + ROWS, content)


def test_all_of_a_folder_or_nothing_is_written(shell: Shell, few: Path) -> None:
    def refused(word: str) -> None:
        files = {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()}
        assert_refused(check(shell, "--study", few, "--out", "out", x__csv=HEAD + ROWS), word, "cannot be written")
        assert files.keys() == {path for path in Path().rglob("*") if path.is_file()}

    Path("x.csv").write_text(HEAD + ROWS)
    Path("out/check.html").mkdir(parents=True)
    refused("is a directory")
    Path("out/check.html").rmdir()
    Path("out/figures").write_text("mine")
    refused("is no directory")
    Path("out/figures").unlink()
    Path("elsewhere").mkdir()
    Path("out/figures").symlink_to(Path("elsewhere").absolute())
    refused("is a link")
    assert list(Path("elsewhere").iterdir()) == []


def test_a_name_that_is_no_text_is_escaped(shell: Shell, few: Path) -> None:
    name = "m\udcff.csv"
    Path(name).write_text(HEAD + ROWS)
    given = ("--config", "good.json", "--gpu", "H100", "--measurements", name, "--study", few, "--out", "out")
    said = shell("check", *given)
    assert (said.code in (0, 1, 4), said.err) == (True, "")
    assert json.loads(Path("out/check.json").read_text())["measurements"]["file"] == "m?.csv"
    Path("m\udcff.json").write_text(json.dumps([LLAMA_BENCH]))
    said = shell("import", "llama-bench", "m\udcff.json", "--out", "out.csv")
    assert (said.code, said.err) == (0, "")


def test_other_files_in_the_folder_stay(shell: Shell, few: Path) -> None:
    Path("out").mkdir()
    Path("out/mine.txt").write_text("keep")
    Path("out/check.html").symlink_to(Path("file").absolute())
    assert check(shell, "--study", few, "--out", "out", x__csv=HEAD + ROWS, file="keep").code in (0, 1, 4)
    assert (Path("out/mine.txt").read_text(), Path("file").read_text()) == ("keep", "keep")
    assert not Path("out/check.html").is_symlink()


def test_an_interrupt_leaves_nothing(shell: Shell, few: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> bytes:
        raise KeyboardInterrupt

    monkeypatch.setattr("rooffloor.validate.presentation.writers.image", interrupted)
    said = check(shell, "--study", few, "--out", "out", x__csv=HEAD + ROWS)
    assert said == (130, "", "rooffloor: interrupted\n", set())
