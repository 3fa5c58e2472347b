"""llama-bench of llama.cpp: the rows of its text generation test (tg), in CSV, JSON or JSON lines.

https://github.com/ggml-org/llama.cpp/tree/master/tools/llama-bench. A tg test decodes `n_gen` tokens one by one
after `n_depth` others, at batch 1, without sampling, and is repeated; `avg_ns` is the mean time of one
repetition. Before step k = 1 .. n_gen the cache holds n_depth + k - 1 tokens. Hence::

    step_ms = avg_ns / n_gen / 10^6    at a mean context of n_depth + (n_gen - 1) / 2 tokens

`stddev_ns` is not used: llama-bench computes it in 64-bit integers, which overflow for tests of a few seconds.
"""

import json
import re
from pathlib import Path

import numpy as np
import pandas as pd

from rooffloor.validate.common.errors import InputError
from rooffloor.validate.common.files import readable_file
from rooffloor.validate.measurements import csvfile
from rooffloor.validate.measurements.csvfile import Table
from rooffloor.validate.measurements.importers.source import (
    LONGEST_S,
    MOST_TOKENS,
    Given,
    Sieve,
    as_table,
    finish,
    known,
    named,
    read_json,
)
from rooffloor.validate.measurements.importers.steps import mean_context
from rooffloor.validate.measurements.names import Names
from rooffloor.validate.measurements.schema import Selected, number_column, numbers

EXPECTED = "the output of `llama-bench -o csv`, `json` or `jsonl`"
TOKENS = "a whole number of tokens, at least 0"
COUNTS = {name: number_column(TOKENS, 0, MOST_TOKENS, whole=True, required=True) for name in ("n_prompt", "n_gen")}
COLUMNS = {
    "n_depth": number_column(TOKENS, 0, MOST_TOKENS, whole=True),
    "avg_ns": number_column("nanoseconds above 0", 1, 1e9 * LONGEST_S, required=True),
    "avg_ts": number_column("tokens per second above 0", 1e-6, 1e9, required=True),
    "stddev_ts": number_column("tokens per second, at least 0", 0, 1e9),
    "n_gpu_layers": number_column("a whole number of layers, -1 for all", -2, 1e6, whole=True, required=True),
    "n_cpu_moe": number_column("a whole number of layers, at least 0", 0, 1e6, whole=True),
    "model_n_params": number_column("a whole number of weights, at least 1", 1, 1e15, whole=True),
}
TEXTS = ("model_filename", "model_type", "gpu_info")
OLD_BACKENDS = ("cuda", "vulkan", "kompute", "metal", "sycl")
"""Columns of truth values that told the backend before `backends` did (December 2024)."""
NO_GPU = frozenset({"CPU", "BLAS", "ZenDNN", ""})
SPEED_TOLERANCE = 0.1
"""avg_ts is a mean of rates, avg_ns of times: they differ by the square of the relative spread."""
SIZE_TOLERANCE = 0.3
"""Weights of a named model and of the file: a file may hold a tied head twice."""


def read(path: Path) -> Table:
    """The file as a table; JSON is recognised by its first character."""
    file = readable_file(path)
    with file.open("rb") as stream:
        start = stream.read(64).lstrip(b"\xef\xbb\xbf \t\r\n")
    table = as_table(read_json(path, EXPECTED)) if start[:1] in (b"[", b"{") else csvfile.read(path)
    missing = [c for c in (*TEXTS, *COUNTS, "avg_ns", "avg_ts", "n_gpu_layers") if c not in table.frame.columns]
    if missing:
        raise InputError(f"{table.name}: no {missing[0]!r} in it: expected {EXPECTED}")
    return table


def select(table: Table, names: Names, given: Given) -> Selected:
    """The tg rows with all layers on one GPU; `given` may name the model and the GPU of all of them."""
    table.require((*TEXTS, *COUNTS))
    text = table.frame
    counts = numbers(table, text.index, COUNTS)
    sieve = Sieve(text[[c for c in text.columns if c not in counts]].join(counts))
    sieve.leave_out((counts["n_gen"] == 0), "prompt processing, no decode step")
    both = sieve.frame["n_prompt"] > 0
    sieve.leave_out(both, "prompt and generation in one time (pg)")
    _leave_out_other_places(sieve)
    _name(sieve, table, names, given)

    raw = numbers(table, sieve.frame.index, COLUMNS).reindex(columns=list(COLUMNS))
    sieve.frame = sieve.frame.drop(columns=list(COLUMNS), errors="ignore").join(raw.fillna({"n_depth": 0}))
    layers = sieve.frame["model"].map({m: names.shapes(m).layers for m in sieve.frame["model"].unique()})
    offloaded = sieve.frame["n_gpu_layers"]
    sieve.leave_out((offloaded >= 0) & (offloaded <= layers.astype(float)), "layers on the CPU", offloaded.astype(str))
    sieve.leave_out(sieve.frame["n_cpu_moe"] > 0, "experts on the CPU", sieve.frame["n_cpu_moe"].astype(str))
    _check_size(sieve.frame, table, names, given)
    _add_steps(sieve, given)
    assumptions = [
        "batch 1, and all repetitions of a test in one mean step (time, not rate, averaged)",
        "n_gpu_layers -1 means that all layers are on the GPU",
        "tests that differ in threads, batch or other options of llama-bench count as repeats of one cell",
        "sampling is not part of the step",
    ]
    columns = "model gpu batch context step_ms step_sd_ms n_steps statistic stack stack_version mode attention dtype"
    kept = [*columns.split(), "kv_dtype", "origin", "peak_context"]
    sieve.frame = sieve.frame[kept]
    return finish(table, sieve, given, assumptions)


def _column(sieve: Sieve, name: str, default: str = "") -> pd.Series:
    """A column of the rows still in, `default` where the file has no such column or an empty cell."""
    if name not in sieve.frame:
        return pd.Series(default, index=sieve.frame.index, dtype=object)
    return sieve.frame[name].replace("", default)


def _is_on(column: pd.Series) -> pd.Series:
    return column.str.casefold().isin(["1", "true"])


def _leave_out_other_places(sieve: Sieve) -> None:
    """Rows that did not run on one GPU alone; adds `backend`."""
    frame = sieve.frame
    if "backends" in frame:
        backends = frame["backends"].map(lambda cell: {part.strip() for part in cell.split(",")} - NO_GPU)
    else:
        old = pd.DataFrame({name: _is_on(_column(sieve, name)) for name in OLD_BACKENDS}, index=frame.index)
        backends = pd.Series([{n.upper() for n in OLD_BACKENDS if row[n]} for _, row in old.iterrows()], frame.index)
    sieve.frame = frame.assign(backend=backends.map(lambda found: ",".join(sorted(found))).astype(object))
    sieve.leave_out((sieve.frame["backend"] == "") | (sieve.frame["gpu_info"] == ""), "no GPU backend")
    sieve.leave_out(sieve.frame["backend"].str.contains("RPC"), "layers on other machines (RPC)")
    devices, split = _column(sieve, "devices", "auto"), _column(sieve, "split_mode", "layer")
    sieve.leave_out(devices == "none", "no GPU backend", "devices none")
    several = frame["gpu_info"].str.contains(", ")
    one_used = (split == "none") | ((devices != "auto") & ~devices.str.contains("/"))
    sieve.leave_out(several & ~one_used | devices.str.contains("/"), "more than one GPU", sieve.frame["gpu_info"])
    cards = sieve.frame["gpu_info"].map(lambda cell: cell.split(", "))
    sieve.leave_out(cards.map(lambda c: len(set(c)) > 1), "which of several GPUs is not said", sieve.frame["gpu_info"])
    sieve.frame = sieve.frame.assign(card=cards[sieve.frame.index].map(lambda c: c[0]).astype(object))
    for name, reason in (
        ("no_kv_offload", "KV cache not on the GPU"),
        ("embeddings", "embeddings instead of tokens"),
    ):
        sieve.leave_out(_is_on(_column(sieve, name)), reason)
    overrides = _column(sieve, "tensor_buft_overrides", "none")
    sieve.leave_out(overrides != "none", "tensors placed by hand", overrides)


def _name(sieve: Sieve, table: Table, names: Names, given: Given) -> None:
    """Add `model` and `gpu`; leave out the rows that cannot be named."""
    frame = sieve.frame
    if given.gpu is not None:
        cards = sorted(set(frame["card"]))
        if len(cards) > 1:
            raise InputError(f"{table.name}: --gpu cannot name {', '.join(cards)} at once")
        gpus: dict[str, str | None] = {card: named(table.name, "gpu", names.gpu, given.gpu, card) for card in cards}
    else:
        gpus = {card: known(names.gpu, card) for card in frame["card"].unique()}
    gpu = frame["card"].map(gpus)
    if given.model is not None:
        model = pd.Series(named(table.name, "model", names.shapes, given.model, ""), index=frame.index)
    else:
        pairs = zip(frame["model_filename"], frame["model_type"], strict=True)
        found = [_model_of(filename, kind, names) for filename, kind in pairs]
        model = pd.Series(found, index=frame.index, dtype=object)
    sieve.frame = frame.assign(gpu=gpu.astype(object), model=model)
    sieve.leave_out(sieve.frame["gpu"].isna(), "GPU not in the catalog (--gpu names it)", sieve.frame["card"])
    unknown = sieve.frame["model"].isna()
    sieve.leave_out(unknown, "model not in the catalog (--model names it)", sieve.frame["model_filename"])


def _model_of(filename: str, kind: str, names: Names) -> str | None:
    """The model by the name of its file without folder, type and .gguf, else by `model_type`."""
    stem = re.split(r"[/\\]", filename)[-1]
    stem = re.sub(r"(?:-\d{5}-of-\d{5})?\.gguf$", "", stem, flags=re.IGNORECASE)
    stem = re.sub(r"[-._](?:bf16|fp16|f16|fp32|f32|i?q\d\w*)$", "", stem, flags=re.IGNORECASE)
    return known(names.shapes, stem) or known(names.shapes, kind)


def _check_size(frame: pd.DataFrame, table: Table, names: Names, given: Given) -> None:
    """InputError where --model names a model of another size than the file has."""
    if given.model is None:
        return
    for row, model, size in frame[["model", "model_n_params"]].dropna().itertuples():
        expected = names.shapes(model).parameters
        if abs(np.log(size / expected)) > np.log1p(SIZE_TOLERANCE):
            raise InputError(
                f"{table.name}, row {row}, column model_n_params: found {size:.4g} weights, "
                f"but --model {given.model} has {expected:.4g}"
            )


def _add_steps(sieve: Sieve, given: Given) -> None:
    """Add the columns of the schema; leave out rows whose time and rate contradict each other."""
    frame = sieve.frame
    rate = frame["avg_ts"] * frame["avg_ns"] / (1e9 * frame["n_gen"])
    sieve.leave_out((rate - 1).abs() > SPEED_TOLERANCE, "avg_ts is not n_gen / avg_ns", rate.map("{:.3g} of it".format))
    frame = sieve.frame
    step_ms = frame["avg_ns"] / frame["n_gen"] / 1e6
    runs = _column(sieve, "samples_ns").map(_count).astype(float)
    off = _column(sieve, "flash_attn").str.casefold().isin(["0", "false"])
    auto = _column(sieve, "flash_attn").isin(["", "-1"])
    on_cuda = frame["backend"].isin(["CUDA", "ROCm", "CUDA,ROCm"]) & ~frame["backend"].str.contains(",")
    stack = np.where(on_cuda, "llama.cpp", "llama.cpp " + frame["backend"])
    build = [f"b{n} {commit}".strip() for n, commit in zip(*_builds(sieve), strict=True)]
    sieve.frame = frame.assign(
        batch=1.0,
        context=mean_context(frame["n_depth"], frame["n_gen"] + 1),
        peak_context=frame["n_depth"] + frame["n_gen"],
        step_ms=step_ms,
        step_sd_ms=step_ms * frame["stddev_ts"].fillna(0) / frame["avg_ts"] / np.sqrt(runs),
        n_steps=frame["n_gen"] * runs,
        statistic="mean",
        stack=pd.Series(stack, index=frame.index, dtype=object) + np.where(off, " without flash attention", ""),
        stack_version=build,
        mode=given.mode or "unknown",
        attention=np.where(off, "", np.where(auto, "auto", "flash")),
        dtype=frame["model_type"].map(_dtype).astype(object),
        kv_dtype=[_cache_type(k, v) for k, v in zip(_column(sieve, "type_k"), _column(sieve, "type_v"), strict=True)],
        origin="measured",
    )


def _builds(sieve: Sieve) -> tuple[pd.Series, pd.Series]:
    return _column(sieve, "build_number", "?"), _column(sieve, "build_commit")


def _count(cell: str) -> int:
    """Repetitions in a cell of samples, 1 where there are none (CSV): the spread is then not divided."""
    try:
        samples = json.loads(cell)
    except (ValueError, RecursionError):
        return 1
    return max(1, len(samples)) if isinstance(samples, list) else 1


def _dtype(kind: str) -> str:
    """Type of the weights in `model_type`, such as "llama 8B F16" or "qwen2 7B Q4_K - Medium"."""
    kind = kind.removesuffix("(guessed)").strip()
    if found := re.search(r"\b(BF16|F16|F32)$", kind):
        return _plain(found[1])
    return kind.split(maxsplit=2)[-1] if kind else "unknown"


def _cache_type(k: str, v: str) -> str:
    k, v = _plain(k), _plain(v)
    return k if k == v else f"{k}/{v}"


def _plain(kind: str) -> str:
    """A type of ggml as the schema calls it."""
    return {"f16": "fp16", "bf16": "bf16", "f32": "float32"}.get(kind.casefold(), kind)
