"""GPUs: peak compute, bandwidth, memory and L2 of one SKU, and the names it goes by."""

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rooffloor.models.specs.inputs import read_toml, shown, toml_name

_CATALOG = Path(__file__).parent / "catalog" / "gpus.toml"
FIGURES = ("peak_flops", "bandwidth", "memory_bytes", "l2_bytes")
"""The fields of a GpuSpec that are numbers."""
_UNITS = {"bf16_dense_tflops": 1e12, "memory_bandwidth_gb_s": 1e9, "memory_gb": 1e9, "l2_mb": 1e6}
LIMITS = {
    "bf16_dense_tflops": (1e-3, 1e6),
    "memory_bandwidth_gb_s": (0.1, 1e6),
    "memory_gb": (1e-3, 1e6),
    "l2_mb": (1e-3, 1e6),
}
"""Least and largest figure of a data sheet; what lies outside is no GPU but another unit."""
_TEXTS = ("note", "source", "die")


@dataclass(frozen=True)
class GpuSpec:
    """One GPU SKU, as its maker's data sheet has it.

    Attributes
    ----------
    name : str
    peak_flops : float
        Dense BF16 tensor-core peak, FLOP/s.
    bandwidth : float
        DRAM bandwidth, bytes/s.
    memory_bytes : float
        Nominal memory, bytes (decimal GB).
    l2_bytes : float
        Last-level cache, bytes.
    note, source : str
    die : str
        The chip: SKUs with one die are less than two witnesses. Empty where it is not known.

    Raises
    ------
    ValueError
        A figure is no number within `LIMITS`.

    Examples
    --------
    >>> GpuSpec("mine", peak_flops=400e12, bandwidth=1.5e12, memory_bytes=24e9, l2_bytes=48e6).bandwidth
    1500000000000.0
    """

    name: str
    peak_flops: float
    bandwidth: float
    memory_bytes: float
    l2_bytes: float
    note: str = ""
    source: str = ""
    die: str = ""

    def __post_init__(self) -> None:
        for field, (key, unit) in zip(FIGURES, _UNITS.items(), strict=True):
            low, high = LIMITS[key]
            value = getattr(self, field)
            _check_figure(self.name, field, value, low * unit * (1 - 1e-9), high * unit * (1 + 1e-9))

    @classmethod
    def from_table(cls, name: str, table: Mapping[str, Any]) -> "GpuSpec":
        """A GPU from a table in data-sheet units (the keys of `catalog/gpus.toml`).

        Parameters
        ----------
        name : str
        table : mapping
            `bf16_dense_tflops`, `memory_bandwidth_gb_s`, `memory_gb`, `l2_mb`; optional `note`, `source`, `die`.

        Raises
        ------
        ValueError
            A key is missing, unknown or no number within `LIMITS`.
        """
        unknown = sorted(set(table) - set(_UNITS) - {*_TEXTS, "aliases", "name"})
        missing = sorted(set(_UNITS) - set(table))
        if unknown or missing:
            what = f"unknown key {shown(unknown[0])}" if unknown else f"missing key {missing[0]!r}"
            raise ValueError(f"GPU {shown(name)}: {what}; expected {', '.join((*_UNITS, *_TEXTS))}")
        for key, limits in LIMITS.items():
            _check_figure(name, key, table[key], *limits)
        texts = {key: table.get(key, "") for key in _TEXTS}
        if odd := [key for key, text in texts.items() if not isinstance(text, str)]:
            raise ValueError(f"GPU {shown(name)}: {odd[0]} must be text, got {shown(texts[odd[0]])}")
        peak, bandwidth, memory, l2 = (float(table[key] * unit) for key, unit in _UNITS.items())
        return cls(name, peak, bandwidth, memory, l2, **texts)

    @classmethod
    def from_toml(cls, path: str | Path) -> "GpuSpec":
        """A GPU from a TOML file: the keys of `from_table`, optionally `name` (else the file's stem)."""
        table = read_toml(path)
        return cls.from_table(toml_name(path, table), table)


def _check_figure(gpu: str, what: str, value: object, low: float, high: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise ValueError(f"GPU {shown(gpu)}: {what} must be a number from {low:g} to {high:g}, got {shown(value)}")


@functools.cache
def _catalog() -> tuple[dict[str, GpuSpec], dict[str, str], dict[str, list[str]]]:
    """GPUs by name; names by folded alias; candidates by folded ambiguous name."""
    table = read_toml(_CATALOG)
    specs = {name: GpuSpec.from_table(name, entry) for name, entry in table["gpus"].items()}
    aliases = {alias.casefold(): name for name, entry in table["gpus"].items() for alias in (name, *entry["aliases"])}
    return specs, aliases, {name.casefold(): found for name, found in table["ambiguous"].items()}


def names() -> tuple[str, ...]:
    """Names of the GPUs in the catalog."""
    return tuple(_catalog()[0])


def load(name: str) -> GpuSpec:
    """The GPU called `name` or one of its aliases (exact, upper and lower case alike).

    Raises
    ------
    ValueError
        The name is unknown, or could mean several parts; the message lists the candidates.
    """
    specs, aliases, ambiguous = _catalog()
    key = str(name).strip().casefold()
    if key in aliases:
        return specs[aliases[key]]
    if key in ambiguous:
        found = ", ".join(f"{c} ({specs[c].note})" for c in ambiguous[key])
        raise ValueError(f"GPU {shown(name)} does not say which part it is; the catalog has {found}: name one")
    raise ValueError(f"unknown GPU {shown(name)}; known: {', '.join(specs)}")


def resolve(gpu: "str | GpuSpec") -> GpuSpec:
    """A GPU given as an object or by name."""
    return gpu if isinstance(gpu, GpuSpec) else load(gpu)
