"""The lines of files of kernel benchmarks in one screen, and as a table."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rooffloor.validate.kernels.benchmarks import ATTENTION, GEMM, read
from rooffloor.validate.kernels.hierarchy import Hierarchy, hierarchy, interval
from rooffloor.validate.kernels.line import Line, line
from rooffloor.validate.measurements.csvfile import table_text
from rooffloor.validate.presentation.text_table import text_table

COLUMNS = (
    *("kind", "gpu", "format", "stack", "kernels", "shapes", "misfit_percent"),
    *("latency_us", "latency_us_low", "latency_us_high", "eta", "eta_low", "eta_high"),
    *("latency_us_least_squares", "eta_least_squares"),
)
NEW = "any other"
_WORDS = {GEMM: "matrix products", ATTENTION: "decode attention"}


@dataclass(frozen=True, eq=False)
class KernelReport:
    """What files of kernel benchmarks say.

    Attributes
    ----------
    rows : tuple of dict
        By `COLUMNS`: one for each kind, GPU, format and stack, then one for a GPU without kernels; times in µs, ends of
        90 % intervals.
    text, csv : str
    data : dict
        Rows, and the sd between GPUs and within one, for JSON.
    """

    rows: tuple[dict[str, Any], ...]
    text: str
    csv: str
    data: dict[str, Any]


def run(files: Sequence[str | Path]) -> KernelReport:
    """Lines of all files, fitted together; InputError as `benchmarks.read`."""
    lines = [line(times) for file in files for times in read(file)]
    fits = [hierarchy(own) for kind in (GEMM, ATTENTION) if (own := [found for found in lines if found.kind == kind])]
    rows = tuple(row for found in fits for row in _rows(found))
    text = "\n\n".join(_text(found) for found in fits)
    data = {"rows": rows, "sd": {found.lines[0].kind: _scales(found) for found in fits}}
    return KernelReport(rows, f"{text}\n{_LEGEND}", table_text(COLUMNS, [[r[c] for c in COLUMNS] for r in rows]), data)


_LEGEND = (
    "time = a + bytes / (bandwidth e), 90 % intervals; misfit: mean absolute error. Kernels alone: real steps differ "
    "(docs/kernels.md)."
)


def _scales(found: Hierarchy) -> dict[str, list[float]]:
    return {
        "between_gpus_log_a": found.between[0].tolist(),
        "between_gpus_logit_e": found.between[1].tolist(),
        "within_gpu_log_a": found.left[0].tolist(),
        "within_gpu_logit_e": found.left[1].tolist(),
    }


def _rows(found: Hierarchy) -> list[dict[str, Any]]:
    rows = [_row(one, mean, sd) for one, mean, sd in zip(found.lines, found.mean, found.sd, strict=True)]
    kind = found.lines[0].kind
    for fmt, mean, sd in zip(found.formats, found.level, found.level_sd, strict=True):
        about = {"kind": kind, "gpu": NEW, "format": fmt, "stack": "", "kernels": 0, "shapes": 0}
        rows.append(about | _ends(mean, sd) | dict.fromkeys(COLUMNS[-2:]) | {"misfit_percent": None})
    return rows


def _row(one: Line, mean: np.ndarray, sd: np.ndarray) -> dict[str, Any]:
    a, inverse = one.coefficients
    about = {name: getattr(one, name) for name in COLUMNS[:6]}
    seen = {"misfit_percent": one.misfit, COLUMNS[-2]: 1e3 * float(a), COLUMNS[-1]: 1.0 / float(inverse)}
    return about | _ends(mean, sd) | seen


def _ends(mean: np.ndarray, sd: np.ndarray) -> dict[str, float]:
    named: dict[str, float] = {}
    for column, name in enumerate(("latency_us", "eta")):
        ends = interval(float(mean[column]), float(sd[column]), share=name == "eta")
        named |= dict(zip((name, f"{name}_low", f"{name}_high"), ends, strict=True))
    return named


def _text(found: Hierarchy) -> str:
    table = [("GPU", "format", "kernels", "shapes", "a, µs", "", "e", "", "misfit, %", "stack")]
    for row in _rows(found):
        seen = row["kernels"] > 0
        table.append(
            (
                *(row["gpu"], row["format"], str(row["kernels"]) if seen else "", str(row["shapes"]) if seen else ""),
                *(f"{row['latency_us']:.1f}", f"[{row['latency_us_low']:.1f}, {row['latency_us_high']:.1f}]"),
                *(f"{row['eta']:.3f}", f"[{row['eta_low']:.3f}, {row['eta_high']:.3f}]"),
                *(f"{row['misfit_percent']:.1f}" if seen else "", row["stack"][:24]),
            )
        )
    head = f"{_WORDS[found.lines[0].kind].capitalize()} bound by DRAM"
    return "\n".join([head, *text_table(table, "<<>>><><><", indent=1)])
