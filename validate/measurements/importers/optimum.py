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
    LONGEST_S,
    MOST_TOKENS,
    Document,
    Documents,
    Given,
    known_gpu,
    named,
    of_documents,
    read_json,
    settled,
)
from rooffloor.validate.measurements.importers.steps import mean_context
from rooffloor.validate.measurements.names import Names
from rooffloor.validate.measurements.schema import Selected

EXPECTED = "optimum-benchmark's benchmark.json or benchmark_report.json of a text generation run"
TIMED_BACKENDS = ("pytorch", "onnxruntime", "openvino", "neural-compressor", "ipex")
"""Backends whose tokens are timed; of the others the tool subtracts prefill from whole answers."""
SECONDS = "seconds above 0"
GRAPHED = ("reduce-overhead", "max-autotune")
"""Modes of torch.compile that record CUDA graphs."""


def read(path: Path) -> Documents:
    """The file's results."""
    source = read_json(path, EXPECTED)
    for document in source.documents:
        if document.get(f"{_report(document)}decode.latency") is None and not _per_token(document):
            document.fail(f"{_report(document)}decode.latency", "the latency of the decode phase")
    return source


def _report(document: Document) -> str:
    """Where the report is: below `report` in benchmark.json."""
    return "report." if document.get("report") is not None else ""


def _per_token(document: Document) -> bool:
    return document.get(f"{_report(document)}per_token.latency") is not None


def _scenario(document: Document) -> str:
    """Where the scenario is: below `benchmark` before version 0.3."""
    return "config.scenario" if document.get("config.scenario") is not None else "config.benchmark"


def select(source: Documents, names: Names, given: Given) -> Selected:
    """One row for each result; `given` has what the file lacks."""
    return of_documents(source, given, lambda document: _row(document, names, given))


def _row(document: Document, names: Names, given: Given) -> tuple[dict[str, Any], Sequence[str]]:
    """The row of one result, and what it assumes."""
    backend = document.text("config.backend.name")
    model = named(document.where, "model", names.shapes, given.model, document.text("config.backend.model"))
    card, cards = _cards(document, given, names)
    gpu = named(document.where, "gpu", names.gpu, given.gpu, card)
    dtype, assumed_dtype = _dtype(document, given)
    row: dict[str, Any] = {
        "model": model,
        "gpu": gpu,
        "stack": _stack(backend) or given.stack or "unknown",
        "stack_version": given.stack_version or _version(document),
        "mode": _mode(document) or given.mode or "unknown",
        "attention": document.text("config.backend.attn_implementation"),
        "dtype": dtype,
        "tensor_parallel": cards,
    }
    if document.text("config.backend.device") not in ("", "cuda"):
        return row | {"reason": "not on a GPU", "detail": document.text("config.backend.device")}, ()
    if reason := _not_a_plain_batch(document):
        return row | {"reason": reason}, ()
    shapes = f"{_scenario(document)}.input_shapes"
    what = "a whole number, at least 1"
    batch, prompt = (
        settled(document.where, key, option, value, document.maybe(f"{shapes}.{key}", what, 1, MOST_TOKENS, True))
        for option, key, value in (
            ("batch", "batch_size", given.batch),
            ("input-len", "sequence_length", given.input_len),
        )
    )
    output = _output(document, given, batch)
    if output < 2:
        return row | {"reason": "no decode step: one output token"}, ()
    row |= {
        "batch": batch,
        "context": mean_context(prompt, output),
        "peak_context": prompt + output,
        "origin": "measured" if backend in (*TIMED_BACKENDS, "") else "derived",
        **_step(document, output),
    }
    return row, (
        f"the {row['statistic']} of {output - 1:g} decode steps stands for one step at the mean context",
        assumed_dtype,
        "the time between tokens, with sampling and the loop of generate"
        if row["origin"] == "measured"
        else "decode = whole answers - mean prefill, as the tool subtracts it",
    )


def _step(document: Document, output: float) -> dict[str, Any]:
    """Step, its standard error (ms), statistic and number of steps."""
    decode = f"{_report(document)}decode.latency"
    timed = document.get(decode) is not None
    path = decode if timed else f"{_report(document)}per_token.latency"
    if document.text(f"{path}.unit") not in ("", "s"):
        document.fail(f"{path}.unit", "'s' for seconds")
    count = document.number(f"{path}.count", "a whole number of values, at least 1", 1, 1e12, whole=True)
    value = document.number(f"{path}.{'mean' if timed else 'p50'}", SECONDS, 1e-9, LONGEST_S)
    spread = document.number(f"{path}.stdev", "seconds, at least 0", 0, LONGEST_S)
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
    scenario, report = _scenario(document), _report(document)
    what = "a whole number of tokens, at least 1"
    for path in ("generate_kwargs.max_new_tokens", "generate_kwargs.min_new_tokens", "new_tokens"):
        said = document.maybe(f"{scenario}.{path}", what, 1, MOST_TOKENS, whole=True)
        if said is not None:
            return settled(document.where, "max_new_tokens", "output-len", given.output_len, said)
    rate = document.maybe(f"{report}decode.throughput.value", "tokens per second, at least 0", 0, 1e12)
    mean = document.maybe(f"{report}decode.latency.mean", SECONDS, 1e-9, LONGEST_S)
    if not rate or not mean:
        return settled(document.where, "max_new_tokens", "output-len", given.output_len, None)
    implied = rate * mean / batch + 1
    if abs(implied - np.rint(implied)) > 0.01:
        raise InputError(f"{document.where}: decode.throughput is that of {implied:g} output tokens, no whole number")
    return settled(document.where, "decode.throughput", "output-len", given.output_len, float(np.rint(implied)))


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
    return (card if given.gpu is None or known_gpu(card, names) else ""), float(max(used, 1))


def _dtype(document: Document, given: Given) -> tuple[str, str]:
    """Type of the weights, and what had to be assumed of it."""
    backend = "config.backend"
    for key in ("quantization_scheme", "quantization_strategy", "quantize"):
        if quantized := document.text(f"{backend}.{key}"):
            return quantized, f"weights are {quantized}"
    if document.get(f"{backend}.quantization_config"):
        return "quantized", "weights are quantized"
    said = document.text(f"{backend}.torch_dtype") or document.text(f"{backend}.dtype")
    if said or given.dtype:
        return said or given.dtype or "", "the dtype is that of the file" if said else "the dtype is as given"
    if document.text(f"{backend}.name") != "pytorch":
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
    if document.text("config.backend.name") != "pytorch":
        return ""
    kwargs = f"{_scenario(document)}.generate_kwargs"
    if document.flag("config.backend.torch_compile"):
        return "graph" if document.text("config.backend.torch_compile_config.mode") in GRAPHED else "unknown"
    static = document.get(f"{kwargs}.cache_implementation") or document.get("config.backend.cache_implementation")
    return "unknown" if static else "eager"  # generate compiles by itself with a static cache


def _not_a_plain_batch(document: Document) -> str:
    """Why a run is not one token of each sequence a step, empty where it is."""
    kwargs = f"{_scenario(document)}.generate_kwargs"
    what = "a whole number, at least 1"
    if (document.maybe(f"{kwargs}.num_beams", what, 1, 1e6) or 1) > 1:
        return "beam search"
    if (document.maybe(f"{kwargs}.num_return_sequences", what, 1, 1e6) or 1) > 1:
        return "several answers to a prompt"
    return "without a KV cache" if document.flag(f"{kwargs}.use_cache") is False else ""
