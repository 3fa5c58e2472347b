"""A prediction as text for a terminal: what it rests on, a table per model and GPU, what is not predicted and why."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from rooffloor.validate.estimates.estimate import Estimate
from rooffloor.validate.presentation.text_table import text_table
from rooffloor.validate.transfer.prediction.rows import PREDICTED, STEPS, Pair, Row

if TYPE_CHECKING:
    from rooffloor.validate.transfer.prediction.predict import Prediction

TOLD_CUT = 1.0
"""Percent of draws cut from which on the text says so."""
HEAD = ("batch", "context", "step (ms)", "50 %", "90 %", "tokens/s", "90 %", "outside")


def text(prediction: "Prediction", step: str) -> str:
    """Tables per model and GPU of "measured" or "mean" steps, and what is to be said of them."""
    tables = (line for pair in prediction.pairs for line in _table(prediction, pair, step))
    return "\n".join([*_preamble(prediction, step), *tables])


def _preamble(prediction: "Prediction", step: str) -> list[str]:
    """What holds for all tables."""
    c = prediction.calibration
    batch, context, size = ([*map(float, c["domain"][k])] for k in ("batch", "context", "parameters"))
    lines = [
        f"Decode steps, {prediction.label} (study {c['study']}, {c['draws']} draws)",
        f"calibrated domain: {', '.join(c['gpus'])}; batch {batch[0]:.0f} to {batch[1]:.0f}, context {context[0]:.0f} "
        f"to {context[1]:.0f} tokens, {size[0] / 1e9:.2f} to {size[1] / 1e9:.2f} B parameters of 16 bits; stack "
        f"{c['stack'] or 'not stated'}, mode {c['mode'] or 'not stated'}",
        f"numbers: posterior median, 50 and 90 % equal-tailed intervals of the {STEPS[step]}",
        "step = time per output token of each sequence; tokens/s = batch / step",
    ]
    lines += [f"left out: {why}" for why in prediction.skipped]
    outside = [row for row in prediction.predicted if row.outside]
    if outside:
        lines.append(f"outside the calibrated domain: {len(outside)} of {len(prediction.predicted)} predicted cells")
        lines += [f"  {line}" for line in _grouped(reason for row in outside for reason in row.outside)]
    return lines


def _grouped(reasons: Iterable[str], most: int = 3) -> list[str]:
    """Different reasons, at most so many with one key."""
    by_key: dict[str, list[str]] = {}
    for reason in dict.fromkeys(reasons):
        by_key.setdefault(_key(reason), []).append(reason)
    lines = []
    for key, found in by_key.items():
        lines += found[:most] + [f"{key}: {len(found) - most} more"] * (len(found) > most)
    return lines


def _key(reason: str) -> str:
    return reason.partition(":")[0]


def _table(prediction: "Prediction", pair: Pair, step: str) -> list[str]:
    """One model on one GPU: where its floor comes from, its cells, and what was cut, lies below or does not fit."""
    rows = [row for row in prediction.rows if (row.model, row.gpu) == (pair.model, pair.gpu)]
    shown = [row for row in rows if row.status == PREDICTED]
    lines = [
        "",
        f"{pair.model} ({pair.klass}, {pair.parameters / 1e9:.2f} B parameters) on {pair.gpu}",
        f"  floor {pair.floor} ms; {pair.floor_from}",
    ]
    if pair.cut_percent > TOLD_CUT:
        lines.append(
            f"  of the floor's draws {pair.cut_percent:.0f} % {'were cut' if shown else 'are not possible'}: with them "
            f"a step of batch 1 and context 0 is faster than the {pair.lightest_ms:.2f} ms of its bytes at peak rates"
        )
    below = [row for row in shown if row.below_distinct_percent is not None]
    if below:
        far = max(below, key=lambda row: row.below_distinct_percent or 0.0)
        lines.append(
            f"  experts are streamed as `active`: T_gpu lies up to {far.below_distinct_percent:.0f} % below that of "
            f"`distinct` experts (batch {far.batch}, context {far.context})"
        )
    if shown:
        lines += text_table([HEAD, *(_texts(row, step) for row in shown)], ">>>>>>><", indent=2)
    lines += [
        f"  not predicted, {row.status}: batch {row.batch}, context {row.context}: {row.reason}"
        for row in rows
        if row.status != PREDICTED
    ]
    return lines


def _texts(row: Row, step: str) -> tuple[str, ...]:
    """One row of a table."""
    found, rate = row.estimates[f"{step}_step_ms"], row.estimates[f"{step}_tokens_per_s"]
    numbers = (_value(found), _span(found, "50"), _span(found, "90"), _value(rate), _span(rate, "90"))
    return str(row.batch), str(row.context), *numbers, ", ".join(dict.fromkeys(map(_key, row.outside)))


def _value(estimate: Estimate) -> str:
    return f"{estimate.value:.{estimate.digits}f}"


def _span(estimate: Estimate, level: str) -> str:
    low, high = estimate.intervals[level]
    return f"[{low:.{estimate.digits}f}, {high:.{estimate.digits}f}]"
