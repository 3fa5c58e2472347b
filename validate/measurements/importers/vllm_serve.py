"""vllm bench serve (older: benchmarks/benchmark_serving.py): inter-token latency of requests under load.

https://github.com/vllm-project/vllm, vllm/benchmarks/serve.py. A request's TPOT is (latency - TTFT) / (tokens - 1),
an ITL the time between two chunks of one answer; `mean_`, `median_`, `std_` and percentiles of both are saved, in
ms. The batch of a step is not: it comes from Little's law. With R requests of N output tokens (on average) in D
seconds, the mean number that decode at a time is::

    running = R * TPOT * (N - 1) / D

If the client kept `max_concurrency` requests in flight, most steps had that many. A step under load may also
hold a piece of another request's prompt, which makes the mean longer than the median: the median is taken, and
the difference is part of `step_sd_ms`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from rooffloor.models.roof.roofline import bytes_floor_ms
from rooffloor.validate.measurements.importers.source import (
    LONGEST_S,
    MILLISECONDS,
    MOST_TOKENS,
    Document,
    Documents,
    Given,
    Kind,
    answers,
    as_number,
    named,
    of_documents,
    read_json,
)
from rooffloor.validate.measurements.names import Names
from rooffloor.validate.measurements.schema import Selected

EXPECTED = "the JSON of `vllm bench serve --save-result`"
FROM_0 = Kind("milliseconds, at least 0", 0, 1e3 * LONGEST_S)
TOKENS = Kind("a number of tokens, at least 1", 1, 1e15)
REACHED, MOSTLY_DECODING = 0.9, 0.5
"""max_concurrency is the batch if so large a share of it was in flight, and so large a share decoded."""
CHUNK = 1.25
"""Where mean ITL and mean TPOT differ by this factor, a chunk is not one token."""
STACKS = {
    "vllm": "vLLM",
    "tgi": "TGI",
    "sglang": "SGLang",
    "tensorrt-llm": "TensorRT-LLM",
    "lmdeploy": "LMDeploy",
    "deepspeed-mii": "DeepSpeed-MII",
    "scalellm": "ScaleLLM",
    "llama.cpp": "llama.cpp",
}
"""Serving stacks by the backend they are asked through; openai and openai-chat may be any."""


@dataclass(frozen=True)
class Load:
    """What ran at a time: means over the whole run.

    Attributes
    ----------
    in_flight, running : float
        Requests that were under way, and those of them that decoded.
    batch : float
        Sequences of a step, a whole number.
    how : str
        Where `batch` comes from.
    """

    in_flight: float
    running: float
    batch: float
    how: str


read = partial(read_json, expected=EXPECTED)
"""The file's results: one, a list, or one a line (`--append-result`)."""


def select(source: Documents, names: Names, given: Given) -> Selected:
    """One row for each result; `given` names the GPU, and what else the file lacks."""
    warnings = [
        f"{d.where}: {failed:g} requests failed"
        for d in source.documents
        if (failed := d.maybe("failed", Kind("a number of requests, at least 0", 0, 1e12)))
    ]
    return of_documents(source, given, lambda document: _row(document, names, given), warnings=warnings)


def _load(document: Document, completed: float, tokens: float) -> Load:
    """Little's law on the run of `completed` requests with `tokens` output tokens each."""
    duration_ms = 1e3 * document.number("duration", Kind("seconds above 0", 1e-6, LONGEST_S))
    tpot = document.number("mean_tpot_ms", MILLISECONDS)
    first = document.maybe("mean_ttft_ms", FROM_0) or 0.0
    whole = document.maybe("mean_e2el_ms", MILLISECONDS)
    decoding = tpot * (tokens - 1)
    running = completed * decoding / duration_ms
    in_flight = completed * (first + decoding if whole is None else whole) / duration_ms
    limit = document.maybe("max_concurrency", Kind("a whole number of requests, at least 1", 1, 1e9, True))
    unlimited_rate = document.get("request_rate") in (None, "inf") or as_number(document.get("request_rate")) > 1e9
    if limit is not None and unlimited_rate and in_flight >= REACHED * limit and running >= MOSTLY_DECODING * limit:
        how = f"max_concurrency {limit:g} was reached ({in_flight:.3g} in flight on average) and is the batch"
        return Load(in_flight, running, limit, how)
    batch = max(1.0, float(np.rint(running)))
    reason = "" if limit is None else f", max_concurrency {limit:g} was not reached ({in_flight:.3g} in flight)"
    how = f"Little's law: {running:.3g} requests decoded at a time on average, taken as batch {batch:g}{reason}"
    return Load(in_flight, running, batch, how)


def _row(document: Document, names: Names, given: Given) -> tuple[dict[str, Any], Sequence[str]]:
    """The row of one result, and what it assumes."""
    completed = document.number("completed", Kind("a number of requests, at least 1", 1, 1e12, True))
    prompts = document.number("total_input_tokens", TOKENS)
    answered = document.number("total_output_tokens", TOKENS)
    tokens = answered / completed
    model = named(document.where, "model", names.shapes, given.model, document.text("model_id"))
    gpu = named(document.where, "gpu", names.gpu, given.gpu, "")
    stack, assumed_stack = _stack(document, given)
    row = {
        "model": model,
        "gpu": gpu,
        "stack": stack,
        "stack_version": given.stack_version or _metadata(document, "version"),
        "mode": given.mode or "unknown",
        "dtype": given.dtype or "",
        "tensor_parallel": _cards(document),
    }
    if tokens <= 1 or max(tokens, prompts / completed) > MOST_TOKENS:
        return row | {"reason": "no decode step: one output token", "detail": f"{tokens:g} tokens a request"}, ()
    if document.get("spec_decode_acceptance_rate") is not None or document.get("diffusion_denoising_steps"):
        return row | {"reason": "several tokens a step: speculative or diffusion decoding"}, ()
    load = _load(document, completed, tokens)
    chunk = _chunk(document)
    if not 1 / CHUNK <= chunk <= CHUNK:
        detail = f"mean ITL is {chunk:.3g} times the mean TPOT"
        return row | {"reason": "a chunk is not one token", "detail": detail}, ()

    kind, statistic, step_ms = _step(document)
    mean_ms = document.number(f"mean_{kind}_ms", MILLISECONDS)
    spread_ms = document.maybe(f"std_{kind}_ms", FROM_0) or 0.0
    steps = max(1.0, float(np.floor((answered - completed) / load.batch)))
    step = answers(prompts / completed, tokens, batch=load.batch, step_ms=step_ms, n_steps=steps, statistic=statistic)
    shapes, card = names.shapes(model), names.gpu(gpu)
    least = bytes_floor_ms(shapes, card, [load.batch, max(1.0, load.running)], step["context"])
    spread = spread_ms if statistic == "mean" else spread_ms / np.sqrt(steps)
    parts = [spread, mean_ms - step_ms, float(least[0] - least[1])]
    return row | step | {"step_sd_ms": float(np.linalg.norm(parts)), "origin": "derived"}, (
        load.how,
        f"the step is the {statistic} {kind.upper()}, {step_ms:.4g} ms (mean {mean_ms:.4g} ms): steps with a piece "
        "of another request's prompt are in it; step_sd_ms holds the difference, the spread, and the bytes by which "
        "the batch is uncertain",
        "context: mean input + half of the mean output; requests of unequal length count alike",
        assumed_stack,
        "one GPU, 16-bit weights and cache, where the file does not say otherwise",
    )


def _step(document: Document) -> tuple[str, str, float]:
    """Metric, statistic and time of a step: the median ITL, else the median TPOT, else its mean, ms."""
    for kind, statistic in (("itl", "median"), ("tpot", "median")):
        value = document.maybe(f"{statistic}_{kind}_ms", MILLISECONDS)
        if value is not None and document.get(f"mean_{kind}_ms") is not None:
            return kind, statistic, value
    return "tpot", "mean", document.number("mean_tpot_ms", MILLISECONDS)


def _chunk(document: Document) -> float:
    """Tokens in a chunk, as far as mean ITL and mean TPOT tell."""
    itl = document.maybe("mean_itl_ms", MILLISECONDS)
    return 1.0 if itl is None else itl / document.number("mean_tpot_ms", MILLISECONDS)


def _stack(document: Document, given: Given) -> tuple[str, str]:
    """The serving stack, and what had to be assumed of it."""
    backend = document.text("backend", "endpoint_type")
    if backend in STACKS:
        return STACKS[backend], f"the stack is that of backend {backend!r}"
    if given.stack:
        return given.stack, f"the stack is {given.stack}, as given"
    return "vLLM", f"the server is vLLM: backend {backend or 'unknown'!r} does not say it (--stack does)"


def _metadata(document: Document, key: str) -> str:
    """A value that the user of `--metadata` noted, as text."""
    value = document.get(key)
    return "" if value is None or isinstance(value, bool | list | dict) else str(value)[:100]


def _cards(document: Document) -> float:
    """GPUs as `--metadata tensor_parallel_size=N` or `tp=N` notes them, 1 where nothing does."""
    for key in ("tensor_parallel_size", "tp"):
        if found := _metadata(document, key):
            if not found.isdecimal() or not 1 <= int(found[:6]) <= 10_000:
                document.fail(key, "a whole number of GPUs, at least 1")
            return float(found[:6])
    return 1.0
