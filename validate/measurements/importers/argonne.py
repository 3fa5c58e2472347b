"""LLM-Inference-Bench of Argonne National Laboratory: end-to-end latencies turned into mean decode steps.

A row says how long B sequences with L input and L output tokens took (arXiv:2411.00136,
https://github.com/argonne-lcf/LLM-Inference-Bench, Plots/All_results.csv). The first output token comes from
the pass over the prompt, so L - 1 decode steps follow; before step k = 1 .. L - 1 the cache holds L + k - 1
tokens, from L to 2L - 2. Hence::

    step_ms = (latency_ms - prefill_ms) / (L - 1)    at a mean context of 1.5 L - 1 tokens
    prefill_ms = max(FLOPs / (peak * MFU), weight bytes / bandwidth)    (roof.prefill)

The model-FLOP utilisation (MFU) of the pass over the prompt is calibrated for each GPU of the chosen stack on
the time-to-first-token table of the same study (Plots/Fig_21/all_results_TTFT.csv): batch 16, prompt 1024,
three models. Its spread is carried into `step_sd_ms`. That error is shared by all cells of a GPU and grows
with B, so `length`, `latency_ms` and `prefill_ms` stay in the frame for whoever treats MFU as a parameter.
"""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from rooffloor.models.roof import capacity
from rooffloor.models.roof.prefill import prefill_ms
from rooffloor.validate.common.errors import InputError
from rooffloor.validate.measurements import csvfile
from rooffloor.validate.measurements.importers.source import LONGEST_S, MOST_TOKENS, Given, Sieve, known
from rooffloor.validate.measurements.importers.steps import (
    DEFAULT,
    DEFAULT_LOG_SD,
    DEFAULT_MFU,
    Mfu,
    half_width,
    mean_context,
    prefill,
)
from rooffloor.validate.measurements.names import Names
from rooffloor.validate.measurements.sanity import per_pair
from rooffloor.validate.measurements.schema import LARGEST_BATCH, Selected, choose, number_column, numbers

GPUS = {"nvidia a100 gpu": "A100-40GB", "nvidia h100 gpu": "H100", "nvidia gh200 gpu": "GH200"}
"""Hardware by its name in the file, folded; the A100 has 40 GB: steps jump where those overflow."""
TTFT_FILES = ("Fig_21_all_results_TTFT.csv", "Fig_21/all_results_TTFT.csv")
LEAST_LOG_SD = 0.15
"""At least that much: three models at one batch and prompt length do not show how MFU varies with both.
(Fig_1_b of the same study implies 0.61 to 0.72 for prompts of 1024 to 4096 at batch 1; 0.71 at batch 16.)"""
THROUGHPUT_TOLERANCE = 0.02

COLUMNS = {
    "Num of Hardware": number_column("a whole number of GPUs, at least 1", 1, LARGEST_BATCH, whole=True, required=True),
    "Input Output Length": number_column(
        "a whole number of tokens, at least 1", 1, MOST_TOKENS, whole=True, required=True
    ),
    "Batch Size": number_column("a whole number of sequences, at least 1", 1, LARGEST_BATCH, whole=True, required=True),
    "Latency": number_column("seconds above 0", 1e-6, LONGEST_S, required=True),
    "Throughput": number_column("tokens per second, at least 0", 0, 1e12, required=True),
}
TTFT_COLUMNS = {
    "Num of Hardware": COLUMNS["Num of Hardware"],
    "Input Length": COLUMNS["Input Output Length"],
    "Batch Size": COLUMNS["Batch Size"],
    "Latency": COLUMNS["Latency"],
}
NAMES = ("Hardware", "Framework", "Model")


read = csvfile.read


def select(table: csvfile.Table, names: Names, given: Given) -> Selected:
    """The single-GPU rows of one stack as decode steps.

    Parameters
    ----------
    table : the file All_results.csv; the time-to-first-token table may lie beside it
    names : models and GPUs that can be used
    given : `stack`, the column Framework, exact, case-insensitive; `mode`, None or "unknown": the file does not
        say how steps were launched

    Raises
    ------
    InputError
        The stack is not in the file, or none is chosen though there are several; a cell is no number.
    """
    table.require((*NAMES, *COLUMNS))
    if given.mode not in (None, "unknown"):
        raise InputError(f"{table.name}: mode {given.mode!r} cannot be chosen: the file does not say it ('unknown')")
    everything = table.frame.index
    of_stack, stack = choose(table, everything, "Framework", given.stack, "stack")
    cards = numbers(table, everything, {"Num of Hardware": COLUMNS["Num of Hardware"]})["Num of Hardware"]
    rows = everything[of_stack & (cards == 1)]
    raw = numbers(table, rows, COLUMNS)
    length = raw["Input Output Length"]
    frame = pd.DataFrame(
        {
            "model": table.frame.loc[rows, "Model"],
            "gpu": table.frame.loc[rows, "Hardware"],
            "batch": raw["Batch Size"],
            "context": mean_context(length, length),
            "length": length,
            "peak_context": 2 * length,
            "latency_ms": 1e3 * raw["Latency"],
            "token_share": raw["Latency"] * raw["Throughput"] / (raw["Batch Size"] * 2 * length),
        }
    )
    frame, excluded = _exclude(frame, names)
    calibration, warnings = _calibrate(table.folder, stack, sorted(frame["gpu"].unique()), names)
    frame = _decode_steps(frame, names, calibration)
    provenance = {
        "stack": stack,
        "mode": "unknown",
        "not_selected": {
            "another stack": int((~of_stack).sum()),
            "more than one GPU": int((of_stack & (cards > 1)).sum()),
        },
        "extra_columns": [c for c in table.frame.columns if c not in (*NAMES, *COLUMNS)],
        "warnings": warnings,
        "mfu": {gpu: asdict(value) for gpu, value in calibration.items()},
        "assumptions": [
            "all rows are 16-bit: the file does not say otherwise",
            "the mean of L - 1 decode steps stands for one step at the mean context 1.5 L - 1",
            "prefill = max(FLOPs / (peak MFU), weight bytes / bandwidth), MFU shared by all cells of a GPU",
        ],
    }
    return Selected(frame, excluded, provenance)


def _exclude(frame: pd.DataFrame, names: Names) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Rows with catalog names that obey the rules, and the others with their reason."""
    sieve = Sieve(frame)
    sieve.translate("gpu", frame["gpu"].str.casefold().map(GPUS), "GPU not in the catalog")
    models = {name: known(names.shapes, name) for name in frame["model"].unique()}
    sieve.translate("model", frame["model"].map(models), "model not in the catalog")
    sieve.leave_out(
        (sieve.frame["token_share"] - 1).abs() > THROUGHPUT_TOLERANCE,
        "throughput x latency is not batch x 2L tokens",
        sieve.frame["token_share"].map("{:.3g} of them".format),
    )
    limit = sieve.frame["model"].map({m: names.shapes(m).max_context for m in sieve.frame["model"].unique()})
    sieve.leave_out(
        sieve.frame["peak_context"] > limit.astype(float),
        "2L is beyond the model's position limit",
        limit.map("{:g} positions".format),
    )
    sieve.leave_out(sieve.frame["length"] < 2, "no decode step: L is 1")
    fits = per_pair(sieve.frame, names, capacity.fits, "peak_context").astype(bool)
    sieve.leave_out(~fits, "does not fit the GPU's memory at 2L tokens")
    return sieve.frame.drop(columns="token_share"), sieve.excluded.drop(columns="token_share")


def _decode_steps(frame: pd.DataFrame, names: Names, calibration: Mapping[str, Mfu]) -> pd.DataFrame:
    """Add prefill_ms, step_ms, step_sd_ms, repeat and origin."""

    def prefill_at(log_shift: float) -> pd.Series:
        """prefill_ms [row] with every GPU's log MFU shifted by so many of its sd."""

        def one_pair(shapes: Any, gpu: Any, batch: Any, prompt: Any) -> Any:
            return prefill(shapes, gpu, batch, prompt, calibration[gpu.name], log_shift)

        return per_pair(frame, names, one_pair, "length")

    steps = frame["length"] - 1
    key = ["model", "gpu", "batch", "context"]
    return frame.assign(
        prefill_ms=prefill_at(0.0),
        step_ms=(frame["latency_ms"] - prefill_at(0.0)) / steps,
        step_sd_ms=half_width(prefill_at(-1.0), prefill_at(1.0)) / steps,
        repeat=frame.groupby(key).cumcount(),
        n_steps=steps,
        statistic="mean",
        origin="derived",
    )


def ttft_file(folder: Path) -> Path | None:
    """The table of times to first token in the folder of All_results.csv, None where there is none."""
    return next((file for name in TTFT_FILES if (file := folder / name).is_file()), None)


def _calibrate(folder: Path | None, stack: str, gpus: list[str], names: Names) -> tuple[dict[str, Mfu], list[str]]:
    """MFU of every GPU, and what has to be said about it."""
    file = None if folder is None else ttft_file(folder)
    seen = {} if file is None else _measured_mfu(file, stack, names)
    calibration, warnings = {}, []
    for gpu in gpus:
        logs = np.log(seen.get(gpu, []))
        if not len(logs):
            calibration[gpu] = DEFAULT
            where = "no table of times to first token lies beside the file" if file is None else "it has no rows"
            warnings.append(
                f"prefill MFU of {stack} on {gpu} is the default {DEFAULT_MFU} with log sd {DEFAULT_LOG_SD} "
                f"({where}; expected {TTFT_FILES[0]})"
            )
            continue
        spread = float(np.std(logs, ddof=1)) if len(logs) > 1 else np.nan
        log_sd = LEAST_LOG_SD if np.isnan(spread) else max(spread, LEAST_LOG_SD)
        source = f"{len(logs)} models in {TTFT_FILES[0]}"
        calibration[gpu] = Mfu(float(np.exp(logs.mean())), log_sd, spread, source)
    return calibration, warnings


def _measured_mfu(file: Path, stack: str, names: Names) -> dict[str, list[float]]:
    """MFU of every model of the time-to-first-token table, by GPU: time at peak over time taken."""
    table = csvfile.read(file)
    table.require((*NAMES, *TTFT_COLUMNS))
    text = table.frame
    wanted = (text["Framework"].str.casefold() == stack.casefold()) & (text["Latency"] != "")
    raw = numbers(table, text.index[wanted], TTFT_COLUMNS)
    found: dict[str, list[float]] = {}
    single = raw[raw["Num of Hardware"] == 1].join(text[list(NAMES)])
    for cell in single.to_dict("records"):
        gpu, model = GPUS.get(cell["Hardware"].casefold()), known(names.shapes, cell["Model"])
        if gpu and model:
            at_peak = prefill_ms(names.shapes(model), names.gpu(gpu), cell["Batch Size"], cell["Input Length"], mfu=1.0)
            found.setdefault(gpu, []).append(float(at_peak) / (1e3 * cell["Latency"]))
    return found
