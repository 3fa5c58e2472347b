"""vllm bench latency (older: benchmarks/benchmark_latency.py): end-to-end time of one batch.

https://github.com/vllm-project/vllm, vllm/benchmarks/latency.py. `--output-json` holds `avg_latency`, `latencies`
(seconds, one an iteration) and `percentiles`, but neither model nor GPU, batch, nor lengths: the caller gives
them. The records that vLLM writes beside it for the PyTorch benchmark database (NAME.pytorch.json) hold the
arguments too. With N output tokens::

    step_ms = (mean latency - prefill) / (N - 1)          (`steps`)
    step_ms = (mean latency of N - of M) / (N - M)        with a second run of M < N tokens: the prefill cancels
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from rooffloor.validate.common.errors import InputError
from rooffloor.validate.measurements.importers.source import (
    COUNT,
    LONGEST_S,
    Document,
    Documents,
    Given,
    Kind,
    answers,
    named,
    of_documents,
    read_json,
    settled,
)
from rooffloor.validate.measurements.importers.steps import DEFAULT, half_width, prefill, standard_error
from rooffloor.validate.measurements.names import Names
from rooffloor.validate.measurements.schema import Selected

EXPECTED = "the JSON of `vllm bench latency --output-json`"
LATENCIES = Kind("a list of seconds", 1e-6, LONGEST_S)
GPUS = Kind("a number of GPUs, at least 1", 1, 1e4, True)

read = partial(read_json, expected=EXPECTED)


def select(source: Documents, names: Names, given: Given) -> Selected:
    """One row for each result; `given` has what the file lacks, and may have a shorter run of the same cell."""
    if given.shorter is None and given.shorter_output_len is not None:
        raise InputError("--shorter-output-len: only with --shorter FILE")
    if given.shorter is not None and source.rows > 1:
        raise InputError(f"{source.name} holds {source.rows} results: expected one beside a shorter run")
    return of_documents(source, given, lambda document: _row(document, names, given))


def _latencies(document: Document) -> list[float]:
    """Seconds of each iteration, which must agree with the mean that the file states."""
    record = document.get("metric") is not None
    seconds = document.numbers("metric.benchmark_values" if record else "latencies", LATENCIES)
    stated = "metric.extra_info.avg_latency" if record else "avg_latency"
    average = document.maybe(stated, LATENCIES._replace(what="seconds above 0"))
    if average is not None and abs(np.mean(seconds) / average - 1) > 1e-3:
        raise InputError(
            f"{document.where}: avg_latency is {average:g} s, but the mean of latencies is {np.mean(seconds):g} s"
        )
    return seconds


def _arguments(document: Document) -> Document:
    return document.at("benchmark.extra_info.args")


def _lengths(document: Document, given: Given, output_option: str = "output-len") -> list[float]:
    """Batch, input and output tokens."""
    said = _arguments(document)
    return [
        settled(document.where, key, option, value, said.maybe(key, COUNT))
        for option, key, value in (
            ("batch", "batch_size", given.batch),
            ("input-len", "input_len", given.input_len),
            (output_option, "output_len", given.output_len),
        )
    ]


def _row(document: Document, names: Names, given: Given) -> tuple[dict[str, Any], Sequence[str]]:
    """The row of one result, and what it assumes."""
    seconds, said = _latencies(document), _arguments(document)
    model = named(document.where, "model", names.shapes, given.model, said.text("model"))
    gpu = named(document.where, "gpu", names.gpu, given.gpu, "")
    batch, prompt, output = _lengths(document, given)
    row = {"model": model, "gpu": gpu, "batch": batch} | _settings(said, given)
    if reason := _not_a_plain_batch(said):
        return row | {"reason": reason}, ()
    if output < 2:
        return row | {"reason": "no decode step: one output token"}, ()
    mean_ms = 1e3 * float(np.mean(seconds))
    first, before_ms, before_sd_ms, how = _before(document, names, given, row, mean_ms)
    steps = output - first
    row |= answers(
        prompt,
        output,
        first,
        step_ms=(mean_ms - before_ms) / steps,
        step_sd_ms=float(np.hypot(before_sd_ms, 1e3 * standard_error(seconds))) / steps,
        n_steps=steps * len(seconds),
        statistic="mean",
        origin="derived",
    )
    return row, (
        how,
        f"the mean of {steps:g} decode steps stands for one step at the mean context",
        "the whole batch ran at once: vLLM splits what does not fit its budget of sequences and tokens",
        "one GPU, 16-bit weights and cache, where the file does not say otherwise",
    )


def _before(
    document: Document, names: Names, given: Given, row: dict[str, Any], mean_ms: float
) -> tuple[float, float, float, str]:
    """What comes before the steps: output tokens, ms with its standard error, and how that is known."""
    batch, prompt, output = _lengths(document, given)
    if given.shorter is None:
        of = (names.shapes(row["model"]), names.gpu(row["gpu"]), batch, prompt, DEFAULT)
        ms, sd_ms = float(prefill(*of)), float(half_width(prefill(*of, -1.0), prefill(*of, 1.0)))
        how = (
            f"prefill = max(FLOPs / (peak MFU), weight bytes / bandwidth) with MFU {DEFAULT.mfu:g}, log sd "
            f"{DEFAULT.log_sd:g}: {ms:.4g} +- {sd_ms:.2g} ms of {mean_ms:.4g} ms"
        )
        return 1.0, ms, sd_ms, how
    source = read(given.shorter)
    other, asked = source.documents[0], replace(given, output_len=given.shorter_output_len)
    *same, first = _lengths(other, asked, "shorter-output-len")
    if same != [batch, prompt]:
        raise InputError(f"{other.where}: batch or input length is not that of {document.where}")
    if first >= output:
        raise InputError(f"{other.where}: {first:g} output tokens, expected fewer than {output:g} of the longer run")
    seconds, called = _latencies(other), f"{source.name} sha256:{source.sha256[:12]}"
    how = f"the prefill is the same in the run with {first:g} output tokens ({called}), and cancels"
    return first, 1e3 * float(np.mean(seconds)), 1e3 * standard_error(seconds), how


def _settings(said: Document, given: Given) -> dict[str, Any]:
    """Columns that tell how it was run; the arguments stand in the records alone."""
    eager = said.flag("enforce_eager")
    dtype = said.text("quantization", "dtype") or given.dtype or ""
    tensor, pipeline = (said.maybe(f"{kind}_parallel_size", GPUS) for kind in ("tensor", "pipeline"))
    return {
        "stack": given.stack or "vLLM",
        "stack_version": given.stack_version or "",
        "mode": given.mode or "unknown" if eager is None else "eager" if eager else "graph",
        "dtype": dtype,
        "kv_dtype": said.text("kv_cache_dtype"),
        "tensor_parallel": (tensor or 1) * (pipeline or 1),
    }


def _not_a_plain_batch(said: Document) -> str:
    """Why a run is not one token of each sequence a step, empty where it is."""
    if said.flag("use_beam_search"):
        return "beam search"
    if (said.maybe("n", COUNT._replace(high=1e6)) or 1) > 1:
        return "several answers to a prompt (n)"
    return "speculative decoding" if said.get("speculative_config") else ""
