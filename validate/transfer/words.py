"""What a check says, whether before why: sentences, and the whole answer as text for a terminal."""

import textwrap
from collections.abc import Mapping
from typing import Any

from rooffloor.validate.estimates.estimate import Estimate
from rooffloor.validate.hypotheses.result import say
from rooffloor.validate.presentation.numbers import Record, full
from rooffloor.validate.presentation.text_table import text_table
from rooffloor.validate.study.margins import POST_HOC, Margins
from rooffloor.validate.transfer import error_rates
from rooffloor.validate.transfer.explanations import MECHANISMS, WEIGHTS, WHOLE, Gap
from rooffloor.validate.transfer.statements import (
    CANNOT_TELL,
    CAUSES,
    FLOOR_OR_WEIGHTS,
    HOLDS,
    INDISTINGUISHABLE,
    MISMATCH,
    NONE,
    NOTHING,
    RECALIBRATE,
    SLOPE,
    UNDER_ANY_FLOOR,
    UNSEEN,
    WITHIN_OR_NOT,
)

WIDTH = 110
SHOWN = (NOTHING, RECALIBRATE, MISMATCH, NONE, INDISTINGUISHABLE)
"""Statements in the order of the tables: those that add up to 1 first."""
SHORT = dict(zip(CAUSES, ("nothing", "another floor", "shape", "floor or weights", "cannot tell"), strict=True))
HEADS = {**SHORT, NONE: NONE}
CHANCES = (
    "The first four add up to 1. Floor or weights overlaps them: the level is off, by a floor or by the weights' "
    "bandwidth, whichever."
)
NUMBERS = (
    "T_gpu: the GPU's time by the roofline. Floor: what every step takes on top. Slope: of the step on T_gpu beside a "
    "free floor. Level: expected MAPE left under the anchor's floor, mean over the calibration's draws."
)
_OPEN = {
    SLOPE: "whether T_gpu is off by more than the margin",
    UNSEEN: "whether T_gpu is right, which varies too little over these cells",
    FLOOR_OR_WEIGHTS: "another floor or the weights' bandwidth",
    WITHIN_OR_NOT: "whether the error of the steps is within the margins",
    UNDER_ANY_FLOOR: "no floor of its own brings the error down, these steps vary more than the anchor's",
}
"""What is open, in words that need no others."""


# ---- whether ------------------------------------------------------------------------------------------------------


def whether(row: Mapping[str, Any]) -> str:
    """Whether the calibration holds for use, in one sentence."""
    use, p = row["use"], say(row["probability"])
    several = "" if row["gpu"] != "all" or not row.get("several") else " on every GPU"
    return (
        f"P(MAPE within {use['tolerance']:g} %{several}) {p}: {use['measured_mape']:.1f} % measured "
        f"({_cells(use['cells'])}, {use['signed_error']:+.1f} % on average), {Estimate(**use['error'])} % expected of "
        "further measurements."
    )


def _cells(count: int) -> str:
    return f"{count} cell{'' if count == 1 else 's'}"


# ---- why ----------------------------------------------------------------------------------------------------------


def why(row: Mapping[str, Any]) -> str:
    """The cause in a few words, with its own uncertainty."""
    cause, question = row["cause"], row["open"] or ""
    floor = _signed(row["floor_above_anchor"])
    if cause == RECALIBRATE:
        return f"recalibrate: floor {floor} ms"
    if cause == INDISTINGUISHABLE:
        return f"a floor of {floor} ms or the weights' bandwidth, which these cells cannot tell apart"
    if cause == MISMATCH:
        slope = f"slope {Estimate(**row['slope'])}" if row["slope"] is not None else "slope"
        told = row["mechanism"]
        part = f"{told['label']}, {_size(told)}" if told else "which part of it cannot be told"
        return f"{slope}: an error of T_gpu; {part}"
    if cause == CANNOT_TELL:
        said = question.partition(": ")[2] or "whether T_gpu is right"
        return f"cannot tell: {_OPEN.get(question, said)}"
    return cause


def _signed(estimate: Mapping[str, Any]) -> str:
    """A number with its sign and its 90 % interval."""
    text = str(Estimate(**estimate))
    return text if text.startswith("-") else f"+{text}"


def cause_of(row: Mapping[str, Any]) -> str:
    """The cause in a table: none where the calibration holds and none is certain."""
    return "none needed" if row["verdict"] == HOLDS and row["cause"] in (NOTHING, CANNOT_TELL) else why(row)


def why_of(row: Mapping[str, Any]) -> str:
    """A sentence on the cause: where the calibration holds, that none is needed."""
    if row["verdict"] == HOLDS:
        least = row["cause"] in (NOTHING, CANNOT_TELL)
        return "Why: no cause is needed." if least else f"Though it holds, what is left has a cause: {why(row)}."
    return f"Why: {why(row)}."


def sentence(row: Mapping[str, Any], margins: Margins, *, brief: bool = False) -> str:
    """One sentence on the cause on some GPUs; the brief one leaves out what stands in a table beside it."""
    p, rope = row["probabilities"], f"{100 * margins.slope_rope:g} %"
    told = [why(row)]
    if not brief:
        told.append(
            f"P(nothing) {say(p[NOTHING])}, P(another floor) {say(p[RECALIBRATE])}, P(shape: an error of T_gpu "
            f"beyond {rope}) {say(p[MISMATCH])}"
        )
    if row["slope"] is not None and not brief:
        told.append(f"slope of the step on T_gpu with a free floor (1: the shape is right) {Estimate(**row['slope'])}")
    if row["cause"] == INDISTINGUISHABLE and not row["floor_or_weights"]["one_column"]:
        shares = row["floor_or_weights"]
        told.append(
            f"a floor has a posterior weight of {say(shares['floor'])}, the weights' bandwidth "
            f"{say(shares['weights'])}: the former may be no more than the latter's image"
        )
    if row["mechanism"] is not None:
        told.append(
            f"that error has {say(row['mechanism']['weight'])} of the weight of all errors beyond the margin, and "
            f"foretells cells left out better than all others (by {row['mechanism']['ahead']:.1f} nats)"
        )
    if not brief:
        told.append(f"MAPE under the anchor's floor, mean over draws {Estimate(**row['level'])} % (90 % intervals)")
    return "; ".join(told) + "."


def _size(cause: Mapping[str, Any]) -> str:
    """How large an error is: of the time it concerns where it is relative, else by what it does to the steps."""
    size, sd = 100.0 * cause["size"], 100.0 * cause["size_sd"]
    if cause["name"] in (WHOLE, WEIGHTS):
        return f"that part takes {abs(size):.0f} ± {sd:.0f} % {'longer' if size > 0 else 'less'}"
    return f"which changes the steps within a GPU as much as {size:+.0f} ± {sd:.0f} % of T_gpu would"


def notes(gap: Gap, overall: Mapping[str, Any]) -> list[str]:
    """What these cells cannot tell, and what hangs on the prior."""
    found = []
    doubled = overall["doubled_priors"]["cause"]
    if doubled != overall["cause"]:
        found.append(f"With twice the prior sds of floors and errors all GPUs together would say: {doubled}.")
    alike = [
        f"{MECHANISMS[name]} from {' and from '.join(MECHANISMS[other] for other in others[1:])}"
        for name, others in gap.names.items()
        if len(others) > 1
    ]
    if alike:
        found.append(f"Of the errors of T_gpu these cells cannot tell {'; '.join(alike)}.")
    if gap.floor_or_weights:
        found.append(
            "A floor and an error of the weights' bandwidth look alike on one GPU; GPUs on which the weights take "
            "different times tell them apart, and batches at which their matrix products are bound by compute."
        )
    if overall["anchor_slope"] is not None:
        found.append(
            f"The anchor's own cells have a slope of {Estimate(**overall['anchor_slope'])} on T_gpu with a free floor: "
            "what they share with this model is no failure to transfer."
        )
    return found


# ---- a check ------------------------------------------------------------------------------------------------------


def label(data: Record) -> str:
    """Where the cells and the calibration come from."""
    c = data["calibration"]
    return f"{data['label']} cells, judged by the calibration {c['source']} ({c['anchor']}, {c['label']})"


def basis(data: Record) -> list[str]:
    """What the answer rests on."""
    m, margins = data["measurements"], data["margins"]
    averaged = ", repeats averaged: what the roof leaves over is common to them" if m["rows"] > m["cells"] else ""
    told = [f"{m['rows']} rows of {m['file']}, {m['cells']} cells{averaged}."]
    if m["repeat_spread_percent"] is not None:
        told.append(f"Repeats differ by {m['repeat_spread_percent']:.1f} % (relative standard deviation).")
    if m["excluded"]:
        reasons = dict.fromkeys(row["reason"] for row in m["excluded"])
        told.append(f"{len(m['excluded'])} rows excluded: {'; '.join(reasons)}.")
    told += [f"Assumed: {text}." for text in m["assumptions"]]
    when = "chosen after the study's figures were known" if margins["label"] == POST_HOC else margins["label"]
    told.append(
        f"Margins of the cause ({when}): residual MAPE {margins['h1_points']:g} points above the anchor's and "
        f"{margins['h1_absolute']:g} % at most; errors of T_gpu within {100 * margins['slope_rope']:g} %; a cause "
        f"needs a probability of {margins['probability']:g}."
    )
    return told


def closing(data: Record) -> list[str]:
    """Error rate, the other way of joining floors, what would help most."""
    deciding = data["deciding"]
    rate = error_rates.sentence(data["error_rates"], data["cause"], data["leftover_percent"])
    return [*filter(None, [rate, _joins(data), deciding and deciding["sentence"]])]


def _joins(data: Record) -> str:
    """What the other way of joining floors would say, and how likely the cells make it."""
    own = data["calibration"]["combine"]
    base = data["joins"][own]
    told = []
    for name, one in data["joins"].items():
        if name == own:
            continue
        says = "the same" if one["cause"] == base["cause"] else repr(one["cause"])
        text = f"were they {name}, the cause would be {says} (P {say(one['posterior'])}"
        if one["anchor_level"] > base["anchor_level"] + 2.0:
            text += (
                f"; the anchor itself is then {one['anchor_level']:.0f} % off instead of {base['anchor_level']:.0f} %"
            )
        told.append(text + ")")
    return f"Floors are taken to be {own}; {'; '.join(told)}." if told else ""


def listed(data: Record) -> list[Record]:
    """Rows by GPU, and the one of all where there are several."""
    return [*data["per_sku"], data["overall"]] if len(data["per_sku"]) > 1 else data["per_sku"]


def first(data: Record) -> list[str]:
    """The first screen, a sentence each: whether, why, and what makes the calibration unusable."""
    found = [whether(data["overall"] | {"several": len(data["per_sku"]) > 1}), why_of(data["overall"])]
    return [*found, *(f"The calibration is not usable as it is: {one['sentence']}" for one in data["conflicts"])]


def verdict_rows(data: Record) -> list[tuple[str, ...]]:
    """Verdict and cause by GPU, a head first."""
    rows: list[tuple[str, ...]] = [("", "verdict", "P(holds)", "measured MAPE", "of further cells (%)", "cause")]
    for row in listed(data):
        use = row["use"]
        numbers = say(row["probability"]), f"{use['measured_mape']:.1f}", str(Estimate(**use["error"]))
        rows.append(
            (row["gpu"], row["verdict"], *numbers, HEADS[row["cause"]] if cause_of(row) == why(row) else cause_of(row))
        )
    return rows


def text(data: Record) -> str:
    """The whole answer for a terminal."""
    chances = [("", *(f"P({HEADS[v]})" for v in SHOWN))]
    numbers = [("", "slope", "floor - anchor's (ms)", "level (%)")]
    for row in listed(data):
        chances.append((row["gpu"], *(say(row["probabilities"][v]) for v in SHOWN)))
        told = [full(row[name], unit=False) if row[name] else "-" for name in ("slope", "floor_above_anchor", "level")]
        numbers.append((row["gpu"], *told))
    below = [textwrap.wrap(told, WIDTH - 2) for told in (CHANCES, f"90 % credible intervals. {NUMBERS}")]
    lines = [*text_table(chances), *below[0], "", *text_table(numbers), *below[1]]
    lines += [f"outside: {reason}" for reason in data["outside"]]
    table = [f"  {line}".rstrip() for line in lines]
    by_gpu = [f"  {line}".rstrip() for line in text_table(verdict_rows(data))] if len(data["per_sku"]) > 1 else []
    opening = [line for told in first(data) for line in textwrap.wrap(told, WIDTH)]
    paragraphs = [*data["sentences"], *closing(data), " ".join(basis(data))]
    wrapped = ("\n".join(textwrap.wrap(paragraph, WIDTH)) for paragraph in paragraphs)
    head = [f"{data['model']}: {data['verdict']}", *opening, f"Data: {label(data)}"]
    return "\n".join([*head, *(["", *by_gpu] if by_gpu else []), "", "What is behind the cause:", *table, "", *wrapped])
