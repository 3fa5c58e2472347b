"""Files of kernel benchmarks: matrix products and decode attention that are bound by DRAM, as bytes and time."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rooffloor.models.specs import gpus
from rooffloor.models.specs.gpus import GpuSpec
from rooffloor.models.specs.inputs import called, shown
from rooffloor.validate.common.errors import InputError
from rooffloor.validate.common.files import readable_file
from rooffloor.validate.measurements import csvfile

if TYPE_CHECKING:
    import pandas as pd

type Floats = NDArray[np.float64]

GEMM, ATTENTION = "gemm", "attention"
MOST_ROWS = 64
"""Rows M of a matrix product up to which it is taken for one of decode."""
OVER_L2 = 3.0
"""Bytes read over the L2's below which a buffer may be reused between repeats: such rows are left out."""
LARGEST_BATCH, LEAST_CONTEXT = 128, 256
"""Decode attention of serving: larger batches of short contexts are bound by other things than bytes."""
LEAST_KERNELS, LEAST_SHAPES = 10, 5
"""Fewer in a GPU, format and stack are left out: they make no line."""
BYTES: Mapping[str, float] = {
    **dict.fromkeys(("bf16", "bfloat16", "fp16", "float16"), 2.0),
    **dict.fromkeys(("fp8", "fp8_block", "int8"), 1.0),
}
"""Bytes per value of a weight or a cached key by the name of its format."""
SAME = {"bfloat16": "bf16", "fp16": "bf16", "float16": "bf16"}
"""Formats that move the same bytes by the same kernels."""
_GEMM_COLUMNS = ("device", "gemm_dtype", "m", "n", "k", "latency")
_ATTENTION_COLUMNS = ("device", "kv_cache_dtype", "batch_size", "num_key_value_heads", "head_dim", "step", "latency")


@dataclass(frozen=True, eq=False)
class KernelTimes:
    """Kernels of one GPU, format and stack.

    Attributes
    ----------
    kind : str
        "gemm" or "attention".
    gpu : str
        Name in the catalog.
    format : str
        Of the weights, or of the cached keys and values.
    stack : str
    peak_ms : float array [n]
        Bytes at the nominal bandwidth, ms.
    time_ms : float array [n]
        Measured, ms.
    shape : int array [n]
        Rows of one shape (n and k of a matrix; heads of an attention) have one number: their errors go together.
    """

    kind: str
    gpu: str
    format: str
    stack: str
    peak_ms: Floats
    time_ms: Floats
    shape: NDArray[np.int64]


def read(path: str | Path) -> list[KernelTimes]:
    """Kernels bound by DRAM in a Parquet or CSV file, by GPU, format and stack.

    A file of matrix products has the columns device, gemm_dtype, m, n, k, latency (ms); one of decode attention device,
    kv_cache_dtype, batch_size, num_key_value_heads, head_dim, step (tokens in the cache), latency (ms). Optional are
    framework and version, which name the stack. Formats whose bytes are not known are left out.

    Raises
    ------
    InputError
        The file cannot be read, lacks a column, names an unknown GPU, holds what is no positive number, or no kernel
        that is bound by DRAM.
    """
    name = called(Path(path).name)
    frame, first = _frame(path)
    columns = set(frame.columns)
    kind = GEMM if "gemm_dtype" in columns else ATTENTION
    needed = _GEMM_COLUMNS if kind == GEMM else _ATTENTION_COLUMNS
    if missing := [c for c in needed if c not in columns]:
        raise InputError(
            f"{name}, row 1: column {missing[0]!r} is missing; expected {', '.join(_GEMM_COLUMNS)} "
            f"(matrix products) or {', '.join(_ATTENTION_COLUMNS)} (decode attention)"
        )
    numbers = {c: _numbers(frame, c, name, first) for c in needed if c not in ("device", needed[1])}
    specs = {device: _gpu(frame, device, name, first) for device in dict.fromkeys(frame["device"].astype(str))}
    device_of, stack = frame["device"].astype(str), frame["device"].astype(str).map(lambda _: "")
    for column in ("framework", "version"):
        stack = stack + " " + frame[column].astype(str) if column in columns else stack
    formats = frame[needed[1]].astype(str).str.strip().str.lower()
    found = []
    keys = [column.to_numpy(dtype=object) for column in (device_of, formats, stack)]
    for device, fmt, of in dict.fromkeys(zip(*keys, strict=True)):
        if fmt not in BYTES:
            continue
        own = (keys[0] == device) & (keys[1] == fmt) & (keys[2] == of)
        of_rows = {c: v[own] for c, v in numbers.items()}
        bound = _bound(kind, of_rows, BYTES[fmt], specs[device])
        times = _kernels(kind, specs[device], SAME.get(fmt, fmt), str(of).strip() or "unnamed", bound)
        found += [times] if times is not None else []
    if not found:
        raise InputError(
            f"{name}: no kernel of decode that reads more than {OVER_L2:g} times the L2 in a known format "
            f"({', '.join(BYTES)}); expected at least 10 in 3 shapes"
        )
    return found


def _frame(path: str | Path) -> "tuple[pd.DataFrame, int]":
    """The file as a table, and the number of its first row of data."""
    import pandas as pd

    if Path(path).suffix != ".parquet":
        table = csvfile.read(path)
        if table.frame.empty:
            raise InputError(f"{table.name} has a header but no rows")
        return table.frame, 0
    file = readable_file(path)
    try:
        frame = pd.read_parquet(file)
    except ImportError as error:
        raise InputError(
            f"{called(file.name)}: Parquet is read by pyarrow, which is not installed; give CSV"
        ) from error
    except (ValueError, OSError) as error:
        raise InputError(f"{called(file.name)}: expected a Parquet file; it cannot be read as one") from error
    if frame.empty:
        raise InputError(f"{called(file.name)} has no rows")
    return frame, 1


def _numbers(frame: "pd.DataFrame", column: str, name: str, first: int) -> Floats:
    """A column of positive numbers, float [n]."""
    import pandas as pd

    values = pd.to_numeric(frame[column], errors="coerce").to_numpy(dtype=float)
    bad = ~(np.isfinite(values) & (values > 0))
    if bad.any():
        at = int(np.argmax(bad))
        row = int(frame.index[at]) + first
        raise InputError(
            f"{name}, row {row}, column {column}: found {shown(str(frame[column].iloc[at]), 40)}, "
            "expected a number above 0"
        )
    return values


def _gpu(frame: "pd.DataFrame", device: str, name: str, first: int) -> GpuSpec:
    try:
        return gpus.load(device)
    except ValueError as error:
        row = int(frame.index[int(np.argmax((frame["device"].astype(str) == device).to_numpy()))]) + first
        raise InputError(f"{name}, row {row}, column device: {error}") from error


def _bound(kind: str, of: dict[str, Floats], size: float, gpu: GpuSpec) -> tuple[Floats, Floats, Any]:
    """Bytes, times and shapes of the rows that DRAM binds."""
    if kind == GEMM:
        weights = of["n"] * of["k"] * size
        moved = weights + of["m"] * of["k"] * size + of["m"] * of["n"] * 2.0
        keep = (weights > OVER_L2 * gpu.l2_bytes) & (of["m"] <= MOST_ROWS)
        shape = np.stack([of["n"], of["k"]], axis=1)
    else:
        moved = 2.0 * of["batch_size"] * of["num_key_value_heads"] * of["head_dim"] * (of["step"] + 1.0) * size
        keep = (moved > OVER_L2 * gpu.l2_bytes) & (of["batch_size"] <= LARGEST_BATCH) & (of["step"] >= LEAST_CONTEXT)
        shape = np.stack([of["batch_size"], of["num_key_value_heads"]], axis=1)
    return moved[keep], of["latency"][keep], shape[keep]


def _kernels(kind: str, gpu: GpuSpec, fmt: str, stack: str, bound: tuple[Floats, Floats, Any]) -> KernelTimes | None:
    moved, time_ms, shape = bound
    if len(moved) < LEAST_KERNELS:
        return None
    numbered = np.unique(shape, axis=0, return_inverse=True)[1].reshape(-1).astype(np.int64)
    if numbered.max() + 1 < LEAST_SHAPES:
        return None
    return KernelTimes(kind, gpu.name, fmt, stack, moved / gpu.bandwidth * 1e3, time_ms, numbered)
