"""Files of calibrations: one .npz, read without trust."""

import io
import tokenize
import zipfile
import zlib
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from rooffloor.models.calibration.draws import FLOATS, TEXTS, Array, Calibration, Domain
from rooffloor.models.specs import inputs
from rooffloor.models.specs.gpus import FIGURES, GpuSpec

VERSION = 2
"""Of the format: 2 has terms of floors and launches."""
LARGEST_FILE = 256 * inputs.MEGABYTE
"""Bytes of a saved calibration, also once it is unpacked."""
ROUNDED = 1e-6
"""A constant at most so far above 1 was rounded there when it was saved in single precision."""
_UNREADABLE = (
    OSError,
    ValueError,
    LookupError,
    TypeError,
    EOFError,
    MemoryError,
    OverflowError,
    RuntimeError,  # encrypted, or a compression that zipfile does not know
    SyntaxError,
    tokenize.TokenError,  # both of the header of an array
    zipfile.BadZipFile,
    zlib.error,
)
"""What NumPy and zipfile raise over a file that is no .npz of ours."""


def to_npz(calibration: Calibration) -> bytes:
    """The content of an .npz file that holds a calibration."""
    specs = [calibration.specs[g] for g in calibration.gpus]
    arrays: dict[str, Any] = {
        "version": np.array(VERSION),
        "texts": np.array([getattr(calibration, name) for name in TEXTS]),
        "gpus": np.array(calibration.gpus),
        "models": np.array(calibration.models),
        "classes": np.array(calibration.classes),
        "spec": np.array([[getattr(s, name) for name in FIGURES] for s in specs]),
        "domain": np.array([pair for f in fields(Domain) if (pair := getattr(calibration.domain, f.name)) is not None]),
        "unit": calibration.unit.astype(np.int32),
        "anchor_gpu": calibration.anchor_gpu.astype(np.int16),
        "weight": calibration.weight,
        "anchor_layers": np.array(calibration.anchor_layers),
    }
    if calibration.launch_ms is not None:
        arrays |= {"launch_ms": calibration.launch_ms, "launches": calibration.launches}
    floats = {f"constant_{name}": values for name, values in calibration.constants.items()}
    floats |= {f"term_{name}": values for name, values in calibration.terms.items()}
    floats |= {name: getattr(calibration, name) for name in FLOATS}
    arrays |= {name: values.astype(np.float32) for name, values in floats.items()}
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    return buffer.getvalue()


def load(path: str | Path) -> Calibration:
    """Read what `to_npz` made.

    Raises
    ------
    ValueError
        The file cannot be read or is no saved calibration; the message names it.
    """
    file = Path(path)
    try:
        inputs.check(file, LARGEST_FILE)
        with zipfile.ZipFile(file) as members:
            if sum(member.file_size for member in members.infolist()) > LARGEST_FILE:
                raise ValueError(f"{inputs.too_large(LARGEST_FILE)} once unpacked")
        with np.load(file, allow_pickle=False) as stored:
            a = {name: stored[name] for name in stored.files}
        if raw := [name for name, values in a.items() if not isinstance(values, np.ndarray)]:
            raise ValueError(f"{raw[0]} is no array")
        if int(a["version"]) not in (1, VERSION):
            raise ValueError(f"version {int(a['version'])} of the format is not known")
        texts: dict[str, Any] = dict(zip(TEXTS, a["texts"].tolist(), strict=True))
        gpus, models, classes = (tuple(a[name].tolist()) for name in ("gpus", "models", "classes"))
        domain = [(float(low), float(high)) for low, high in a["domain"]]
        constants = {n.removeprefix("constant_"): _double(v) for n, v in a.items() if n.startswith("constant_")}
        terms = {n.removeprefix("term_"): _double(v) for n, v in a.items() if n.startswith("term_")}
        for name in ("eta_tc", "eta_bw", "eta_fa"):
            if name in constants:  # single precision may round up to just above 1; more is no rounding
                values = constants[name]
                constants[name] = np.where(values <= 1.0 + ROUNDED, values.clip(max=1.0), values)
        known: dict[str, Any] = {name: _double(a[name]) for name in FLOATS}
        return Calibration(
            gpus=gpus,
            models=models,
            classes=classes,
            constants=constants,
            weight=_weight(a["weight"]),
            unit=a["unit"].astype(np.int64),
            anchor_gpu=a["anchor_gpu"].astype(np.int64),
            specs={g: _spec(g, row) for g, row in zip(gpus, a["spec"], strict=True)},
            domain=Domain(*domain),
            terms=terms,
            anchor_layers=int(a.get("anchor_layers", 1)),
            launch_ms=_double(a["launch_ms"]) if "launch_ms" in a else None,
            launches=_double(a["launches"]) if "launch_ms" in a else None,
            **texts,
            **known,
        )
    except _UNREADABLE as found:
        why = " ".join(str(found).split())
        raise ValueError(f"{inputs.called(file)}: expected a posterior.npz of rooffloor ({why[:120]})") from found


def _spec(gpu: str, row: Array) -> GpuSpec:
    peak, bandwidth, memory, l2 = map(float, row)
    return GpuSpec(gpu, peak, bandwidth, memory, l2)


def _double(values: Any) -> Array:
    return np.asarray(values, dtype=np.float64)


def _weight(values: Array) -> Array:
    """Weights that sum to 1, of weights that are at least numbers of 0 or more (else as they are)."""
    total = _double(values).sum()
    return _double(values) / total if 0 < total < np.inf else _double(values)
