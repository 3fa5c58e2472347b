"""optimum-benchmark of Hugging Face: the decode phase of its inference scenario.

https://github.com/huggingface/optimum-benchmark, scenarios/inference and trackers/latency.py. benchmark.json holds
`config` and `report`; benchmark_report.json the report alone, and the caller gives the rest. `report.decode.latency`
is the time from the first token to the last of N (seconds, one value an iteration), `report.per_token.latency` the
time between two tokens. Hence::

    step_ms = decode / (N - 1)    at a mean context of prompt + (N - 2) / 2 tokens

The per-token latencies are used only where there is no decode latency: some versions count the gap between two
iterations among them. Backends that do not time tokens (py-txi, vllm, trt-llm) subtract the mean prefill from the
time of whole answers: those steps are derived.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rooffloor.validate.common.errors import InputError
from rooffloor.validate.measurements.importers.source import (
    COUNT,
    LONGEST_S,
    MOST_TOKENS,
    SECONDS,
    Document,
    Documents,
    Given,
    Kind,
    answers,
    known,
    named,
    of_documents,
    read_json,
    settled,
)
from rooffloor.validate.measurements.names import Names
from rooffloor.validate.measurements.schema import Selected

EXPECTED = "optimum-benchmark's benchmark.json or benchmark_report.json of a text generation run"
TIMED_BACKENDS = ("pytorch", "onnxruntime", "openvino", "neural-compressor", "ipex")
"""Backends whose tokens are timed; of the others the tool subtracts prefill from whole answers."""
TOKENS = Kind("a whole number of tokens, at least 1", 1, MOST_TOKENS, True)
GRAPHED = ("reduce-overhead", "max-autotune")
"""Modes of torch.compile that record CUDA graphs."""


def read(path: Path) -> Documents:
    """The file's results."""
    source = read_json(path, EXPECTED)
    for report in map(_report, source.documents):
        if report.get("decode.latency") is None and report.get("per_token.latency") is None:
            report.fail("decode.latency", "the latency of the decode phase")
    return source


def _report(document: Document) -> Document:
    """The report: below `report` in benchmark.json."""
    return document if document.get("report") is None else document.at("report")


def _scenario(document: Document) -> Document:
    """The scenario: below `benchmark` before version 0.3."""
    return document.at("config.benchmark" if document.get("config.scenario") is None else "config.scenario")


def select(source: Documents, names: Names, given: Given) -> Selected:
    """One row for each result; `given` has what the file lacks."""
    return of_documents(source, given, lambda document: _row(document, names, given))


def _row(document: Document, names: Names, given: Given) -> tuple[dict[str, Any], Sequence[str]]:
    """The row of one result, and what it assumes."""
    config = document.at("config.backend")
    backend, device = config.text("name"), config.text("device")
    model = named(document.where, "model", names.shapes, given.model, config.text("model"))
    card, cards = _cards(document, given, names)
    gpu = named(document.where, "gpu", names.gpu, given.gpu, card)
    dtype, assumed_dtype = _dtype(document, given)
    row: dict[str, Any] = {
        "model": model,
        "gpu": gpu,
        "stack": _stack(backend) or given.stack or "unknown",
        "stack_version": given.stack_version or _version(document),
        "mode": _mode(document) or given.mode or "unknown",
        "attention": config.text("attn_implementation"),
        "dtype": dtype,
        "tensor_parallel": cards,
    }
    if device not in ("", "cuda"):
        return row | {"reason": "not on a GPU", "detail": device}, ()
    if reason := _not_a_plain_batch(document):
        return row | {"reason": reason}, ()
    shapes = _scenario(document).at("input_shapes")
    batch, prompt = (
        settled(document.where, key, option, value, shapes.maybe(key, COUNT))
        for option, key, value in (
            ("batch", "batch_size", given.batch),
            ("input-len", "sequence_length", given.input_len),
        )
    )
    output = _output(document, given, batch)
    if output < 2:
        return row | {"reason": "no decode step: one output token"}, ()
    origin = "measured" if backend in (*TIMED_BACKENDS, "") else "derived"
    row |= answers(prompt, output, batch=batch, origin=origin, **_step(_report(document), output))
    return row, (
        f"the {row['statistic']} of {output - 1:g} decode steps stands for one step at the mean context",
        assumed_dtype,
        "the time between tokens, with sampling and the loop of generate"
        if row["origin"] == "measured"
        else "decode = whole answers - mean prefill, as the tool subtracts it",
    )


def _step(report: Document, output: float) -> dict[str, Any]:
    """Step, its standard error (ms), statistic and number of steps."""
    timed = report.get("decode.latency") is not None
    latency = report.at("decode.latency" if timed else "per_token.latency")
    if latency.text("unit") not in ("", "s"):
        latency.fail("unit", "'s' for seconds")
    count = latency.number("count", Kind("a whole number of values, at least 1", 1, 1e12, True))
    value = latency.number("mean" if timed else "p50", SECONDS)
    spread = latency.number("stdev", Kind("seconds, at least 0", 0, LONGEST_S))
    steps = output - 1 if timed else 1.0
    error = spread / np.sqrt(count - 1) if count > 1 else 0.0
    return {
        "step_ms": 1e3 * value / steps,
        "step_sd_ms": 1e3 * error / steps,
        "n_steps": steps * count,
        "statistic": "mean" if timed else "median",
    }


def _output(document: Document, given: Given, batch: float) -> float:
    """Output tokens: as the config says, else as the throughput of the decode phase implies."""
    scenario, decode = _scenario(document), _report(document).at("decode")
    keys = ("generate_kwargs.max_new_tokens", "generate_kwargs.min_new_tokens", "new_tokens")
    source, said = "max_new_tokens", next((found for key in keys if (found := scenario.maybe(key, TOKENS))), None)
    if said is None:
        rate = decode.maybe("throughput.value", Kind("tokens per second, at least 0", 0, 1e12))
        mean = decode.maybe("latency.mean", SECONDS)
        if rate and mean:
            implied = rate * mean / batch + 1
            source, said = "decode.throughput", float(np.rint(implied))
            if abs(implied - said) > 0.01:
                raise InputError(f"{document.where}: {source} is that of {implied:g} output tokens, no whole number")
    return settled(document.where, source, "output-len", given.output_len, said)


def _cards(document: Document, given: Given, names: Names) -> tuple[str, float]:
    """Name of the GPU as the file has it, and how many were used."""
    found = document.get("config.environment.gpu")
    listed = [found] if isinstance(found, str) else found or []
    if not isinstance(listed, list) or not all(isinstance(name, str) for name in listed):
        document.fail("config.environment.gpu", "a list of names of GPUs")
    ids = document.get("config.backend.device_ids")
    used = 1
    if ids is not None:
        used = len([part for part in str(ids).split(",") if part.strip()])
    elif document.get("config.backend.device_map") is not None:
        used = len(listed)
    if given.gpu is None and len(set(listed)) > 1:
        raise InputError(f"{document.where}: the machine has {', '.join(sorted(set(listed)))}: give --gpu NAME")
    card = listed[0] if len(set(listed)) == 1 else ""
    return (card if given.gpu is None or known(names.gpu, card) else ""), float(max(used, 1))


def _dtype(document: Document, given: Given) -> tuple[str, str]:
    """Type of the weights, and what had to be assumed of it."""
    backend = document.at("config.backend")
    if quantized := backend.text("quantization_scheme", "quantization_strategy", "quantize"):
        return quantized, f"weights are {quantized}"
    if backend.get("quantization_config"):
        return "quantized", "weights are quantized"
    said = backend.text("torch_dtype", "dtype")
    if said or given.dtype:
        return said or given.dtype or "", "the dtype is that of the file" if said else "the dtype is as given"
    if backend.text("name") != "pytorch":
        return "", "16-bit weights: the file does not say it"
    version = document.text("config.environment.transformers_version")
    if version.split(".")[0].isdecimal() and int(version.split(".")[0][:4]) >= 5:
        return "auto", f"torch_dtype is not set: transformers {version} takes that of the weights"
    return "float32", "torch_dtype is not set: transformers before 5 loads weights as float32 (--dtype says otherwise)"


def _stack(backend: str) -> str:
    return {"pytorch": "transformers", "vllm": "vLLM", "tensorrt-llm": "TensorRT-LLM"}.get(backend, backend)


def _version(document: Document) -> str:
    key = "environment.transformers_version" if document.text("config.backend.name") == "pytorch" else "backend.version"
    return document.text(f"config.{key}")


def _mode(document: Document) -> str:
    """Eager or graph where the config tells, else empty."""
    backend, scenario = document.at("config.backend"), _scenario(document)
    if backend.text("name") != "pytorch":
        return ""
    if backend.flag("torch_compile"):
        return "graph" if backend.text("torch_compile_config.mode") in GRAPHED else "unknown"
    static = scenario.get("generate_kwargs.cache_implementation") or backend.get("cache_implementation")
    return "unknown" if static else "eager"  # generate compiles by itself with a static cache


def _not_a_plain_batch(document: Document) -> str:
    """Why a run is not one token of each sequence a step, empty where it is."""
    kwargs = _scenario(document).at("generate_kwargs")
    for key, reason in (("num_beams", "beam search"), ("num_return_sequences", "several answers to a prompt")):
        if (kwargs.maybe(key, COUNT._replace(high=1e6)) or 1) > 1:
            return reason
    return "without a KV cache" if kwargs.flag("use_cache") is False else ""
