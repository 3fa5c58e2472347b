"""GPUs: peak compute, bandwidth, memory and L2 of one SKU, and the names it goes by."""

import functools
import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_CATALOG = Path(__file__).parent / "catalog" / "gpus.toml"
_UNITS = {"bf16_dense_tflops": 1e12, "memory_bandwidth_gb_s": 1e9, "memory_gb": 1e9, "l2_mb": 1e6}
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
        A figure is not a positive finite number.
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
        for field in ("peak_flops", "bandwidth", "memory_bytes", "l2_bytes"):
            value = getattr(self, field)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
                raise ValueError(f"GPU {self.name!r}: {field} must be a positive number, got {value!r}")

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
            A key is missing, unknown or not a positive number.
        """
        unknown = sorted(set(table) - set(_UNITS) - {*_TEXTS, "aliases", "name"})
        missing = sorted(set(_UNITS) - set(table))
        if unknown or missing:
            what = f"unknown key {unknown[0]!r}" if unknown else f"missing key {missing[0]!r}"
            raise ValueError(f"GPU {name!r}: {what}; expected {', '.join((*_UNITS, *_TEXTS))}")
        for key in _UNITS:
            if isinstance(table[key], bool) or not isinstance(table[key], int | float):
                raise ValueError(f"GPU {name!r}: {key} must be a positive number, got {table[key]!r}")
        peak, bandwidth, memory, l2 = (float(table[key] * unit) for key, unit in _UNITS.items())
        return cls(name, peak, bandwidth, memory, l2, **{key: str(table.get(key, "")) for key in _TEXTS})

    @classmethod
    def from_toml(cls, path: str | Path) -> "GpuSpec":
        """A GPU from a TOML file: the keys of `from_table`, optionally `name` (else the file's stem)."""
        table = read_toml(path)
        return cls.from_table(str(table.get("name", Path(path).stem)), table)


def read_toml(path: str | Path) -> dict[str, Any]:
    """The table in a TOML file.

    Raises
    ------
    ValueError
        The file cannot be read or is not TOML; the message names it.
    """
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8-sig"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ValueError(f"{path}: expected a TOML file ({' '.join(str(error).split())})") from error


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
        raise ValueError(f"GPU {name!r} does not say which part it is; the catalog has {found}: name one")
    raise ValueError(f"unknown GPU {name!r}; known: {', '.join(specs)}")


def resolve(gpu: "str | GpuSpec") -> GpuSpec:
    """A GPU given as an object or by name."""
    return gpu if isinstance(gpu, GpuSpec) else load(gpu)
