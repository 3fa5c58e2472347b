"""Numbers and names of a report as text: one rule for digits, wherever a number is printed."""

from collections.abc import Mapping
from typing import Any

from rooffloor.validate.estimates.estimate import Estimate

type Record = Mapping[str, Any]

UNITS = {"percent": " %", "ms": " ms", "points": " points", "tokens": " tokens", "1": "", "probability": ""}
MISSING = "–"


def decimal(value: float | None, digits: int = 2, unit: str = "1", *, signed: bool = False) -> str:
    """A number with so many decimals and its unit (a key of `UNITS`), or "–" for None and NaN.

    A probability has at least one decimal, and stands at the edge as a bound.
    """
    if value is None or value != value:
        return MISSING
    if unit == "probability":
        digits = max(digits, 1)
        step = 10.0**-digits
        if value > 1.0 - step / 2:
            return f"> {1.0 - step:.{digits}f}"
        if value < step / 2:
            return f"< {step:.{digits}f}"
    return f"{value:{'+' if signed else ''}z.{digits}f}{UNITS.get(unit, f' {unit}')}"


def is_estimate(value: object) -> bool:
    """Whether a piece of report.json is an estimate."""
    return isinstance(value, Mapping) and "estimand" in value and "value" in value


def estimate_digits(estimate: Record) -> int:
    """Decimals that an estimate's MCSE supports (`Estimate.digits`), at most 2."""
    return Estimate(0.0, "", "", {}, estimate["mcse"]).digits


def number(estimate: Record | None, *, unit: bool = False, signed: bool = False) -> str:
    """The value of an estimate, with or without its unit."""
    if estimate is None:
        return MISSING
    # a probability keeps its unit, which decides how it is written
    shown = estimate["unit"] if unit or estimate["unit"] == "probability" else "1"
    return decimal(estimate["value"], estimate_digits(estimate), shown, signed=signed)


def interval(estimate: Record | None, level: str = "90", *, signed: bool = False) -> str:
    """The interval of so many percent as "[l, h]", empty where there is none."""
    if estimate is None or level not in estimate["intervals"]:
        return ""
    digits = estimate_digits(estimate)
    low, high = (decimal(end, digits, signed=signed) for end in estimate["intervals"][level])
    return f"[{low}, {high}]"


def full(estimate: Record | None, *, unit: bool = True) -> str:
    """Value and 90 % interval of an estimate in one line."""
    return f"{number(estimate, unit=unit)} {interval(estimate)}".strip()


def lines(estimate: Record | None, *, unit: bool = False, signed: bool = False) -> tuple[str, ...]:
    """Value and intervals of an estimate, one a line: the cell of a table."""
    spans = [(level, interval(estimate, level, signed=signed)) for level in ("50", "90")]
    return (number(estimate, unit=unit, signed=signed), *(f"{level} %: {span}" for level, span in spans if span))


def published(value: float | None, unit: str = "") -> str:
    """A published figure with the decimals that the study prints: one for percents of its table."""
    if value is None:
        return MISSING
    one = unit == "percent" and round(value, 1) == value
    return f"{value:.1f}" if one else f"{value:g}"


def plain(value: object) -> str:
    """Anything that is not an estimate: counts, diagnostics, names, lists of them."""
    match value:
        case None:
            return MISSING
        case bool():
            return "yes" if value else "no"
        case float():
            return MISSING if value != value else f"{value:.4g}"
        case list() | tuple():
            return ", ".join(plain(v) for v in value) or MISSING
        case Mapping():
            return full(value) if is_estimate(value) else ", ".join(f"{label(k)} {plain(v)}" for k, v in value.items())
    return str(value)


def size_number(size: float, unit: str) -> str:
    """A size with two digits, without its unit; percents stop at 1000."""
    return "> 1000" if unit.startswith("percent") and size > 1e3 else f"{float(f'{size:.2g}'):g}"


LABELS = {
    "absolute_probability": "P(below the absolute margin)",
    "acceptance": "acceptance rate",
    "by_die": "P(mean difference below the margin), GPUs of one die as one",
    "below_peak": "P(rise below that)",
    "concordant": "share of pairs in that order",
    "cos2": "cos² of offset and slope",
    "corner": "corner cell",
    "data_file": "data file",
    "df": "degrees of freedom",
    "detectable_ms": "smallest term that the steps would show, ms",
    "diverges": "diverges",
    "ebfmi": "E-BFMI",
    "ess": "ESS",
    "ess_bulk": "bulk ESS",
    "ess_tail": "tail ESS",
    "floor_above_anchor": "floor above the anchor's",
    "floor_probability": "P(it is the floor)",
    "gpu": "GPU",
    "gpus": "GPUs",
    "in_50": "within the 50 % interval",
    "in_90": "within the 90 % interval",
    "kappa_sd": "sd of the factor κ",
    "kv_ms_at_peak": "KV read at peak bandwidth, ms",
    "least_misfit": "least misfit",
    "level": "level under the anchor's floor",
    "own_level": "level under its own floor",
    "p_value": "p-value",
    "published_residual": "residual MAPE as published, %",
    "recovered": "recovered by its own floor",
    "rhat": "R-hat",
    "se_50": "standard error (study as unit), 50 %",
    "se_90": "standard error (study as unit), 90 %",
    "sha256": "SHA-256",
    "slope": "slope λ",
    "slope_in_rope": "P(slope in the ROPE)",
    "term": "dispatch term",
    "varying_share": "share of T_gpu that varies over the grid",
    "weights": "posterior weight",
    "worst_figure": "figure at fault",
}


def label(key: str) -> str:
    """A key of report.json as words."""
    return LABELS.get(key, key.replace("_", " "))
