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
    named,
    of_documents,
    read_json,
    settled,
)
from rooffloor.validate.measurements.importers.steps import DEFAULT, half_width, mean_context, prefill, standard_error
from rooffloor.validate.measurements.names import Names
from rooffloor.validate.measurements.schema import Selected

EXPECTED = "the JSON of `vllm bench latency --output-json`"
SECONDS = "a list of seconds"
RECORD = "metric.benchmark_values"


def read(path: Path) -> Documents:
    """The file's results."""
    return read_json(path, EXPECTED)


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
    seconds = document.numbers(RECORD if record else "latencies", SECONDS, 1e-6, LONGEST_S)
    average = document.maybe(
        "metric.extra_info.avg_latency" if record else "avg_latency", "seconds above 0", 1e-6, LONGEST_S
    )
    if average is not None and abs(np.mean(seconds) / average - 1) > 1e-3:
        raise InputError(
            f"{document.where}: avg_latency is {average:g} s, but the mean of latencies is {np.mean(seconds):g} s"
        )
    return seconds


def _argument(document: Document, name: str) -> str:
    return f"benchmark.extra_info.args.{name}"


def _lengths(document: Document, given: Given, output_option: str = "output-len") -> tuple[float, float, float]:
    """Batch, input and output tokens."""

    def settle(option: str, key: str, value: int | None) -> float:
        what = "a whole number, at least 1"
        said = document.maybe(_argument(document, key), what, 1, MOST_TOKENS, whole=True)
        return settled(document.where, key, option, value, said)

    return (
        settle("batch", "batch_size", given.batch),
        settle("input-len", "input_len", given.input_len),
        settle(output_option, "output_len", given.output_len),
    )


def _row(document: Document, names: Names, given: Given) -> tuple[dict[str, Any], Sequence[str]]:
    """The row of one result, and what it assumes."""
    seconds = _latencies(document)
    model = named(document.where, "model", names.shapes, given.model, document.text(_argument(document, "model")))
    gpu = named(document.where, "gpu", names.gpu, given.gpu, "")
    batch, prompt, output = _lengths(document, given)
    row = {"model": model, "gpu": gpu, "batch": batch} | _settings(document, given)
    if reason := _not_a_plain_batch(document):
        return row | {"reason": reason}, ()
    if output < 2:
        return row | {"reason": "no decode step: one output token"}, ()
    shapes, card = names.shapes(model), names.gpu(gpu)
    if given.shorter is None:
        first, error_ms = 1.0, 1e3 * standard_error(seconds)
        before_ms = float(prefill(shapes, card, batch, prompt, DEFAULT))
        slow, fast = (prefill(shapes, card, batch, prompt, DEFAULT, shift) for shift in (-1.0, 1.0))
        before_sd_ms = float(half_width(slow, fast))
        how = (
            f"prefill = max(FLOPs / (peak MFU), weight bytes / bandwidth) with MFU {DEFAULT.mfu:g}, log sd "
            f"{DEFAULT.log_sd:g}: {before_ms:.4g} +- {before_sd_ms:.2g} ms of {1e3 * np.mean(seconds):.4g} ms"
        )
    else:
        first, before, other = _shorter(document, given, output)
        before_ms, before_sd_ms = 1e3 * float(np.mean(before)), 1e3 * standard_error(before)
        error_ms = 1e3 * standard_error(seconds)
        how = f"the prefill is the same in the run with {first:g} output tokens ({other}), and cancels"
    steps = output - first
    row |= {
        "context": mean_context(prompt, output, first),
        "peak_context": prompt + output,
        "step_ms": (1e3 * float(np.mean(seconds)) - before_ms) / steps,
        "step_sd_ms": float(np.hypot(before_sd_ms, error_ms)) / steps,
        "n_steps": steps * len(seconds),
        "statistic": "mean",
        "origin": "derived",
    }
    return row, (
        how,
        f"the mean of {steps:g} decode steps stands for one step at the mean context",
        "the whole batch ran at once: vLLM splits what does not fit its budget of sequences and tokens",
        "one GPU, 16-bit weights and cache, where the file does not say otherwise",
    )


def _shorter(document: Document, given: Given, output: float) -> tuple[float, list[float], str]:
    """Output tokens and seconds of the shorter run, and what it is called."""
    assert given.shorter is not None
    source = read(given.shorter)
    other, asked = source.documents[0], replace(given, output_len=given.shorter_output_len)
    batch, prompt, first = _lengths(other, asked, "shorter-output-len")
    if (batch, prompt) != _lengths(document, given)[:2]:
        raise InputError(f"{other.where}: batch or input length is not that of {document.where}")
    if first >= output:
        raise InputError(f"{other.where}: {first:g} output tokens, expected fewer than {output:g} of the longer run")
    return first, _latencies(other), f"{source.name} sha256:{source.sha256[:12]}"


def _settings(document: Document, given: Given) -> dict[str, Any]:
    """Columns that tell how it was run; the arguments stand in the records alone."""
    eager = document.flag(_argument(document, "enforce_eager"))
    said = "" if eager is None else "eager" if eager else "graph"
    quantized = document.text(_argument(document, "quantization"))
    cards = [
        document.maybe(_argument(document, f"{kind}_parallel_size"), "a number of GPUs, at least 1", 1, 1e4, whole=True)
        for kind in ("tensor", "pipeline")
    ]
    return {
        "stack": given.stack or "vLLM",
        "stack_version": given.stack_version or "",
        "mode": said or given.mode or "unknown",
        "dtype": quantized or document.text(_argument(document, "dtype")) or given.dtype or "",
        "kv_dtype": document.text(_argument(document, "kv_cache_dtype")),
        "tensor_parallel": (cards[0] or 1) * (cards[1] or 1),
    }


def _not_a_plain_batch(document: Document) -> str:
    """Why a run is not one token of each sequence a step, empty where it is."""
    if document.flag(_argument(document, "use_beam_search")):
        return "beam search"
    if (document.maybe(_argument(document, "n"), "a whole number, at least 1", 1, 1e6) or 1) > 1:
        return "several answers to a prompt (n)"
    if document.get(_argument(document, "speculative_config")):
        return "speculative decoding"
    return ""
