"""Sections of a report that are tables of estimates: two numbers, floors, breakdown, structure, treatments."""

from collections.abc import Callable, Sequence
from typing import Any

from rooffloor.validate.estimates.cell_draws import IMPUTED
from rooffloor.validate.presentation.blocks import (
    PAIR,
    Block,
    Field,
    Image,
    Section,
    Text,
    table,
)
from rooffloor.validate.presentation.numbers import Record, full, is_estimate, label, plain, published
from rooffloor.validate.reporting.sections import hypotheses

type Values = dict[tuple[str, ...], object]
type Extract = Callable[[Record], Values]

KINDS = {"as_measured": "as measured", "expected": "expected", "rerun": "re-run"}
PARTS = {"weights": "weights", "kv": "KV cache", "other": "other kernels", "floor": "floor", "leftover": "leftover"}


def verdicts(data: Record) -> tuple[Block, ...]:
    """The table of verdicts of the summary."""
    found = hypotheses.verdicts(data["hypotheses"])
    rows = [{"hypothesis": name, "verdict": cell} for name, cell in found.items()]
    return table("Verdicts", rows, (Field("hypothesis", "hypothesis"), Field("verdict", "verdict")), fold=False)


# ---- the two-number table ---------------------------------------------------------------------------------------


def two_numbers(data: Record, image: tuple[Image, ...]) -> Section:
    """Raw and residual MAPE under the three estimands."""
    rows = data["table"]
    note = (
        "Every MAPE is given three times, and the three are never mixed: of the cells as measured, expected for the "
        "grid under the model, and what a re-run of the measurement would show. The signed mean relative error of the "
        "cells as measured tells over-prediction (+) from under-prediction (-). Pooled is the plain mean over GPUs."
    )
    if data["status"]["label"] == IMPUTED:
        note += (
            " No cell was seen: the study's own figures stand first, and intervals in the column as measured come from "
            "imputing the cells alone."
        )
    of = data["status"]["label"]
    tables = (
        *_mape_table(rows, "raw", "Raw MAPE, percent: T_gpu without a floor", of),
        *_mape_table(rows, "residual", "Residual MAPE, percent: T_gpu plus the anchor's floor of that GPU", of),
    )
    return Section("The two-number table", (*image, *([Text(note), *tables] if rows else [])))


def _mape_table(rows: Sequence[Record], which: str, caption: str, of: str) -> tuple[Block, ...]:
    rows = [r for r in rows if r[which]]

    def given(row: Record) -> float | None:
        found = (row["published"] or {}).get(which)
        return None if found is None else float(found)

    by_study = Field("published", lambda r: published(given(r), "percent"), "by the study", numeric=True)
    imputed = ", imputed" if of == IMPUTED else ""
    fields = (
        *PAIR,
        Field("cells", "cells"),
        *([by_study] if any(given(r) is not None for r in rows) else []),
        *(Field(f"{title}{imputed}", (which, key)) for key, title in KINDS.items()),
        Field(f"signed mean{imputed}", ("signed", which), signed=True),
    )
    return table(caption, rows, fields, heads=2, fold=False)


# ---- floors, breakdown, structure -------------------------------------------------------------------------------


def floors(found: Record, image: tuple[Image, ...]) -> Section:
    """Floors by class and by model, and the study's self-floors."""

    def by(group: str, rows: Sequence[Record]) -> tuple[Block, ...]:
        fields = (Field("GPU", "gpu"), Field(group, group), Field("floor δ, ms", "floor", signed=True))
        return table(f"Floors by GPU and {group}", rows, fields, heads=2)

    own = (
        *PAIR,
        Field("published, ms", lambda r: published(r["published"]), "the study's own", numeric=True),
        Field("its reading, ms", "reading", signed=True),
        Field("the model's floor δ, ms", "floor", signed=True),
        Field("why they differ", "why"),
    )
    tables = (
        *table(
            "Floors that the study prints, under its reading and beside the model's", found["self_floors"], own, heads=2
        ),
        *by("class", found["by_class"]),
        *by("model", found["by_model"]),
    )
    note = Text(
        "A floor is what is added beyond T_gpu: host time and unmodelled GPU latency. Steps alone cannot tell the two "
        "apart. A negative floor means that T_gpu over-predicts."
    )
    return Section("Floors", (*image, note, *tables) if tables or image else ())


def breakdown(rows: Sequence[Record], image: tuple[Image, ...]) -> Section:
    """What a step is made of."""
    parts = (Field(title, ("parts", part)) for part, title in PARTS.items())
    given = any(row.get("published") is not None for row in rows)
    by_study = [Field("published", lambda row: published(row.get("published")), "by the study", numeric=True)]
    fields = (*PAIR, Field("cells", "group"), *(by_study if given else []), Field("step", "step"), *parts)
    return Section(
        "Breakdown", (*image, *table("What a step is made of, mean of the cells, ms", rows, fields, heads=3))
    )


def structural(reads: Sequence[Record], image: tuple[Image, ...]) -> Section:
    """A section for each structural read: what was printed or measured, then what a re-run would show."""
    below = []
    for read in reads:
        rows, text = read["rows"], f"{read['statement']} {read['rerun_sentence']}"
        for key, value in read.items():
            if key not in ("probability", "rerun") and is_estimate(value):
                text += f" {label(key).capitalize()}: {full(value)}."
        by_study = Field("published", lambda r: published(r["published"]), "by the study", numeric=True)
        others = [k for k in dict.fromkeys(k for r in rows for k in r) if k not in ("label", "value", "published")]
        fields = (
            Field("what", "label"),
            *([by_study] if any(r["published"] is not None for r in rows) else []),
            Field("value", "value", unit=True),
            *(Field(label(key), key, "", numeric=True, unit=True) for key in others),
        )
        below.append(Section(read["name"], (Text(text), *table(read["name"], rows, fields))))
    return Section("Structural reads", image, tuple(below))


# ---- side by side -----------------------------------------------------------------------------------------------


def variants(found: Sequence[Record]) -> Section:
    """Every treatment beside the primary one."""
    named = [(v["name"] + (" (primary)" if v["primary"] else ""), v) for v in found]
    return Section("Other treatments side by side", side_by_side(named) if len(named) > 1 else ())


def side_by_side(versions: Sequence[tuple[str, Record]]) -> tuple[Block, ...]:
    """Tables with a column for each version of the same analysis."""

    def mape(which: str) -> Extract:
        return lambda v: {(r["model"], r["gpu"]): r[which]["expected"] for r in v.get("table") or () if r[which]}

    def floors(version: Record) -> Values:
        return {(r["gpu"], r["class"]): r["floor"] for r in (version.get("floors") or {}).get("by_class", ())}

    def constants(version: Record) -> Values:
        return {(r["constant"], plain(r.get("gpu"))): r["estimate"] for r in version.get("efficiency") or ()}

    def tests(version: Record) -> Values:
        return {(name,): cell for name, cell in hypotheses.verdicts(version.get("hypotheses") or {}).items()}

    def compared(caption: str, heads: Sequence[str], extract: Extract, **how: bool) -> tuple[Block, ...]:
        found = {name: extract(version) for name, version in versions}
        rows: list[dict[str, Any]] = [
            dict(zip(heads, key, strict=True)) | {"of": {name: values.get(key) for name, values in found.items()}}
            for key in dict.fromkeys(key for values in found.values() for key in values)
        ]
        names = (Field(head, head, numeric=False) for head in heads)
        columns = (Field(name, ("of", name), "", numeric=True, **how) for name in found)
        return table(caption, rows, (*names, *columns), heads=len(heads))

    return (
        *compared("Verdicts", ["hypothesis"], tests),
        *compared("Expected residual MAPE, percent", ["model", "GPU"], mape("residual")),
        *compared("Expected raw MAPE, percent", ["model", "GPU"], mape("raw")),
        *compared("Floors δ, ms", ["GPU", "class"], floors, signed=True),
        *compared("Efficiency constants", ["constant", "GPU"], constants, unit=True),
    )
