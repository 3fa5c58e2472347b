"""The section "Which floor?" of a report: what it says, the record in report.json, and the page.

Published aggregates: the committed competition of structures by the probability that they give the figures
(published/evidence/competition.py). Measured cells: the comparison of structures by how they predict unseen cells
(validate/comparison/comparison.py). The page is made from the record alone.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rooffloor.validate.comparison import answer
from rooffloor.validate.comparison.answer import OUT_OF_REACH, plus_minus
from rooffloor.validate.presentation.blocks import (
    Block,
    Cell,
    Field,
    Fold,
    Image,
    Section,
    Text,
    decimals,
    items,
    key_values,
    records,
    table,
)
from rooffloor.validate.presentation.numbers import Record, decimal, label, plain
from rooffloor.validate.published.evidence import competition
from rooffloor.validate.published.evidence.competition import Competition

if TYPE_CHECKING:
    from rooffloor.validate.comparison.comparison import Comparison

TITLE = "Which floor?"
AGGREGATES = "published aggregates"
NOT_RUN = (
    "The competition of floor structures on the published figures was not run: there is no {file} beside the study's "
    "data. It takes hours: rooffloor.validate.published.evidence.compete.run(out=FOLDER), then copy FOLDER/{file} "
    "there."
)
NO_REFITS = "Refits without a model, GPU or pair: only with --full or rooffloor compare."


# ---- the record -------------------------------------------------------------------------------------------------


def published(folder: Path) -> dict[str, Any]:
    """The record of the published study: what the competition beside its data found, or that it was not run."""
    if not (folder / competition.TABLE).exists():
        return {"data": AGGREGATES, "run": False, "answer": [NOT_RUN.format(file=competition.TABLE)]}
    return of_competition(competition.load(folder))


def of_competition(found: Competition) -> dict[str, Any]:
    """The record of a competition on the published figures."""
    return {
        "data": AGGREGATES,
        "run": True,
        "answer": answer.of_competition(found),
        "notes": answer.notes(found),
        **found.data,
    }


def of_comparison(found: "Comparison | None", label: str) -> dict[str, Any]:
    """The record of a comparison on measured cells."""
    if found is None:
        return {"data": label, "run": False, "answer": ["No floor structures were compared: rooffloor compare does."]}
    content = {k: v for k, v in found.data.items() if k not in ("answer", "label")}
    return {"data": label, "run": True, "answer": [found.answer[:1].upper() + found.answer[1:]], **content}


# ---- the page ---------------------------------------------------------------------------------------------------


def section(found: Record | None, image: Callable[[str], tuple[Image, ...]]) -> Section:
    """The section on which floor the data support, from `which_floor` of report.json."""
    figures = (*image("competition"), *image("structures"))
    if not found:
        return Section(TITLE, figures)
    text = Text(" ".join(found["answer"]))
    if not found["run"]:
        return Section(TITLE, (text, *figures))
    body = _competition if found["data"] == AGGREGATES else _comparison
    return Section(TITLE, (text, *figures, *body(found)))


def _competition(found: Record) -> tuple[Block, ...]:
    reference = found["reference"]
    scales, gpus = found["scales"], [one["gpu"] for one in found["structures"][0]["per_gpu"]]
    names = (
        Field("shared by", "shared_by"),
        Field("joined", lambda row: (row["combine"], *(["the reference"] if row["name"] == reference else []))),
    )

    def likelihoods(row: Record) -> list[tuple[str, ...]]:
        return [_likelihood(one) for one in row["per_gpu"]]

    def factors(of: str) -> Callable[[Record], list[str | None]]:
        return lambda row: [None if row["name"] == reference else _bayes_factor(one) for one in row[of]]

    def each(titles: Sequence[str], of: Callable[[Record], Sequence[object]], note: str) -> list[Field]:
        def at(k: int) -> Callable[[Record], object]:
            return lambda row: of(row)[k]

        return [Field(title, at(k), note, numeric=True) for k, title in enumerate(titles)]

    whole = (
        *names,
        Field("log marginal likelihood", _likelihood, "± two standard errors", numeric=True),
        *each(scales, factors("per_scale"), "log Bayes factor"),
        Field("verdict", lambda row: Cell((row["verdict"],), verdict=True), "over all prior scales"),
    )
    per_gpu = (
        *names,
        *each(gpus, likelihoods, "log marginal likelihood"),
        *each(gpus, factors("per_gpu"), "log Bayes factor"),
    )
    caption = f"Floor structures on the published figures, against {reference}, best first"
    alone = table("Each GPU's figures alone, default prior", found["structures"], per_gpu, heads=2, fold=False)
    return (
        *table(caption, found["structures"], whole, heads=2),
        Fold("What the figures of each GPU say", alone),
        *items(found["notes"]),
    )


def _likelihood(row: Record) -> tuple[str, ...]:
    """A log marginal likelihood with two standard errors, or that it was out of reach."""
    if row["log_ml"] is not None:
        return (plus_minus(row["log_ml"], row["se"], sign=False),)
    width = row.get("ended_at")
    return (OUT_OF_REACH, *([f"ended at {width:.1f} roundings"] if width is not None else []))


def _bayes_factor(one: Record) -> str:
    """A log Bayes factor against the reference."""
    if not one.get("run", True):
        return "not run"
    if one["log_bf"] is not None:
        return plus_minus(one["log_bf"], one["log_bf_se"])
    return OUT_OF_REACH if one["log_ml"] is None else f"reference {OUT_OF_REACH}"


KNOWN = {"data", "run", "answer", "structures", "chosen", "overlap", "leftover", "left_out", "warnings", "cells"}
"""What the page of measured cells has a place for."""
MOST_OPEN = 8
"""Rows of a table without a place that are shown open."""


def _comparison(found: Record) -> tuple[Block, ...]:
    """Measured cells; keys that this page does not know are shown as they are."""
    others = {k: v for k, v in found.items() if k not in KNOWN and v not in (None, [], {}, "")}
    return (
        *_structures(found),
        *_overlap(found["overlap"]),
        *[block for key, value in others.items() for block in anything(key, value, found["chosen"])],
        *_leftover(found["leftover"]),
        *_left_out(found["left_out"]),
        *items(f"Warning: {warning}" for warning in found["warnings"]),
    )


def anything(key: str, value: object, chosen: str = "") -> tuple[Block, ...]:
    """A value of a key without a place: its sentences open, what they rest on folded.

    Of rows with a sentence each, those of the chosen structure are open where there are any.
    """
    title = label(key)[:1].upper() + label(key)[1:]
    if isinstance(value, Mapping):
        numbers = key_values({k: v for k, v in value.items() if k != "sentence"}, title)
        return (Text(value["sentence"]), Fold(title, numbers)) if "sentence" in value else numbers
    if isinstance(value, list) and all(isinstance(v, Mapping) for v in value):
        said = [row for row in value if "sentence" in row]
        first = [row for row in said if row.get("structure") == chosen] or said
        numbers = records(
            title, [{k: v for k, v in row.items() if k != "sentence" or row not in first} for row in value]
        )
        fold = len(value) > MOST_OPEN or bool(said)
        return (*items(row["sentence"] for row in first), *((Fold(title, numbers),) if fold else numbers))
    if isinstance(value, list) and all(isinstance(v, str) for v in value):
        return items(value)
    return (Text(f"{title}: {plain(value)}."),)


def _structures(found: Record) -> tuple[Block, ...]:
    def gap(row: Record) -> str | None:
        return None if row["elpd"] is None else f"{decimal(row['elpd_diff'], 1)} ± {decimal(row['dse'], 1)}"

    fields = (
        Field("structure", lambda row: (row["name"], *(["chosen"] if row["name"] == found["chosen"] else []))),
        Field("parameters", "parameters", "of the floor"),
        decimals("elpd", "elpd", 1),
        Field("difference", gap, "from the best, ± standard error", numeric=True),
        decimals("weight", "weight", note="of a stacked prediction", unit="probability"),
        Field("gate", lambda row: row["gate"] if row["elpd"] is not None else f"failed: {row['gate']}"),
    )
    caption = f"Floor structures on {found['cells']} {found['data']} cells, best first (log score of unseen cells)"
    return table(caption, found["structures"], fields, fold=False)


def _overlap(found: Record) -> tuple[Block, ...]:
    if found.get("structure") is None:
        return (Text("No structure that frees the overlap passed its gate: nothing is said of the overlap."),)
    q, p = found["q"], found["p"]
    known = (
        "These cells identify it: its posterior sd is at most half of its prior sd."
        if found["identified"]
        else "It is not identified: its posterior sd exceeds half of its prior sd."
    )
    ends = [decimal(p[k], 1) if p[k] is not None and np.isfinite(p[k]) else "∞" for k in ("low_90", "high_90")]
    share = found["informative_share"]
    informs = (
        ""
        if share is None or np.isnan(share)
        else f" {100 * share:.0f} % of the cells inform it (T between a third and three times H)."
    )
    return (
        Text(
            f"Overlap under {found['structure']}: q = {decimal(q['mean'])} [{decimal(q['low_90'])}, "
            f"{decimal(q['high_90'])}] (90 %; 1: added, 0: the longer of the two), as a power p = 1/q "
            f"{decimal(p['median'], 1)} [{', '.join(ends)}]. {known}{informs} Probability of q above 1, a misfit: "
            f"{decimal(found['misfit'], unit='probability')}."
        ),
    )


def _leftover(rows: Sequence[Record]) -> tuple[Block, ...]:
    def interval(row: Record) -> str:
        return f"[{decimal(row['low_90'], signed=True)}, {decimal(row['high_90'], signed=True)}]"

    fields = (
        Field("trend over", "trend"),
        decimals("slope", "slope", note="sd of the noise per sd of the trend", signed=True),
        Field("90 %", interval, numeric=True),
    )
    return table("What the chosen structure leaves over", rows, fields)


def _left_out(rows: Sequence[Record]) -> tuple[Block, ...]:
    fields = (
        Field("structure", "structure"),
        Field("left out", "left_out"),
        Field("cells", "cells"),
        decimals("within 50 %", "coverage_50", note="share of the cells"),
        decimals("within 90 %", "coverage_90", note="share of the cells"),
        decimals("width of 90 %", "relative_width_90", note="share of the step"),
        decimals("joint log score", "log_score", 1),
        decimals("baseline", "baseline_log_score", 1, "no model of the hardware"),
        Field("gate", lambda row: "passed" if row["passed"] else "failed"),
    )
    caption = "Refits without each model, GPU and pair; cells of one fold share a floor and stand or fall together"
    return table(caption, rows, fields, heads=2) or (Text(NO_REFITS),)
