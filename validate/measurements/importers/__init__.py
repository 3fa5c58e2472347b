"""Readers of other tools' result files; each turns one format into the measurement schema.

A reader is a module with `read(path)`, which parses a file and checks that it is one, and
`select(source, names, given)`, which makes decode steps of it.
"""

import importlib
from dataclasses import dataclass
from types import ModuleType


@dataclass(frozen=True)
class Format:
    """A format.

    Attributes
    ----------
    module : str
        What reads it.
    what : str
        What a file of it is.
    takes : tuple of str
        What the caller may say of a file: fields of `Given`.
    tabular : bool
        Whether a file is a table.
    whole : bool
        Whether a file says everything itself, so that a study may be of one.
    """

    module: str
    what: str
    takes: tuple[str, ...]
    tabular: bool = False
    whole: bool = False


_CHOICE = ("stack", "mode")
_RUN = (*_CHOICE, "model", "gpu", "stack_version", "dtype")
_LENGTHS = ("batch", "input_len", "output_len")
FORMATS = {
    "argonne": Format("argonne", "LLM-Inference-Bench's All_results.csv", _CHOICE, tabular=True, whole=True),
    "llama-bench": Format(
        "llama_bench", "llama-bench -o csv, json or jsonl", (*_CHOICE, "model", "gpu"), tabular=True, whole=True
    ),
    "optimum-benchmark": Format(
        "optimum", "optimum-benchmark's benchmark.json or benchmark_report.json", (*_RUN, *_LENGTHS), whole=True
    ),
    "vllm-latency": Format(
        "vllm_latency",
        "vllm bench latency --output-json",
        (*_RUN, *_LENGTHS, "shorter", "shorter_output_len"),
    ),
    "vllm-serve": Format("vllm_serve", "vllm bench serve --save-result", _RUN),
}

STUDY_FORMATS = ("schema", *(name for name, format in FORMATS.items() if format.whole))
"""Formats of files that say everything themselves: what a study may be of."""


def reader(format: str) -> ModuleType:
    """The module that reads a format of `FORMATS`."""
    return importlib.import_module(f"{__name__}.{FORMATS[format].module}")
