"""The section "Hypotheses" of a report: each verdict, how often its test is wrong, both schools, every GPU.

Made from `hypotheses` of report.json alone. Whether the verdicts stand under other choices is told by
validate/reporting/sections/robustness.py.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Any

from rooffloor.validate.presentation.blocks import (
    PAIR,
    Block,
    Cell,
    Field,
    Fold,
    Image,
    Section,
    Text,
    Verdict,
    any_cell,
    common_estimand,
    decimals,
    flat,
    items,
    key_values,
    table,
)
from rooffloor.validate.presentation.numbers import (
    MISSING,
    Record,
    decimal,
    is_estimate,
    label,
    number,
    plain,
    published,
)

TITLE = "Hypotheses"
PART_TITLES = {"a": "H2a: level", "b": "H2b: dispatch term", "c": "H2c: shape"}
TOLD = {"verdict", "as_reported", "statement", "sentences", "robustness", "error_rates"}
TOLD |= {"families", "parts", "per_sku", "family", "frequentist", "margins", "as_published", "refitted"}
TOLD |= {"pooled", "joined"}
"""What of a hypothesis, a family or a part is told in a way of its own."""
NAMES = {"joint": "P(below the margin on every GPU)"}
TOLD_OF_PAIR = ("model", "gpu", "calibrated_elsewhere", "offset_slope", "joined")
"""The same for a pair; of its corner cell, `joined`."""


def section(data: Record, image: Callable[[str], tuple[Image, ...]]) -> Section:
    """The section on hypotheses, with the figures `verdicts`, `power` and `joint`."""
    found, margins = data["hypotheses"], data["study"]["margins"]
    if not found:
        return Section(TITLE, image("verdicts"))
    when = "post hoc, chosen after the figures were known" if margins["label"] == "post hoc" else margins["label"]
    note = Text(
        f"Margins ({when}): residual MAPE at most {margins['h1_points']:g} points above the anchor's and below "
        f"{margins['h1_absolute']:g} %; slope within {margins['slope_rope']:g} of 1; a term is negligible below "
        f"{margins['dispatch_percent']:g} % of the step. A verdict needs a probability of {margins['probability']:g}, "
        f"a refutation one of {1 - margins['probability']:.3g} or less."
    )
    images = {"H1": image("power"), "H3": image("joint")}
    below = tuple(_hypothesis(name, h, data, images.get(name, ())) for name, h in found.items())
    return Section(TITLE, (note, *image("verdicts")), below)


def verdicts(hypotheses: Record) -> dict[str, Cell]:
    """Verdict and probabilities of each hypothesis, each of its families and each of its parts, by name.

    Of a published study, families stand twice: as published, and with floors refitted to imputed cells.
    """

    def cell(found: Record) -> Cell:
        kinds = {"probability": "", "absolute_probability": " (absolute margin)"}
        extra = [f"P {number(found[key])}{what}" for key, what in kinds.items() if is_estimate(found.get(key))]
        return Cell((found["verdict"], *extra, *_before(found)), verdict=True)

    out = {}
    for name, found in hypotheses.items():
        out[name] = cell(found)
        printed = (found.get("as_published") or {}).get("families", ())
        out |= {f"{name} as published: {f['family']}": cell(f) for f in printed}
        how = ", floor refitted to imputed cells" if printed else ""
        out |= {f"{name}: {f['family']}{how}": cell(f) for f in found.get("families", ())}
        out |= {PART_TITLES.get(key, key): cell(p) for key, p in found.get("parts", {}).items()}
    return out


def _before(found: Record) -> tuple[str, ...]:
    """The verdict before other choices were tried, where it was another."""
    first = found.get("as_reported", found["verdict"])
    return () if first == found["verdict"] else (f"{first} before other choices",)


def of_data(caption: str, data: Record) -> str:
    """A caption with the label of the data."""
    return f"{caption} (data: {data['status']['label']})"


# ---- one hypothesis ---------------------------------------------------------------------------------------------


def _hypothesis(name: str, found: Record, data: Record, image: tuple[Image, ...]) -> Section:
    printed = found.get("as_published")
    families = [_family(f, found, data) for f in found.get("families", ())]
    named = {PART_TITLES.get(key, key): part for key, part in found.get("parts", {}).items()}
    parts = [Section(title, _judged(title, part, data)) for title, part in named.items()]
    # Parts and families tell their sentences themselves; what other choices do stands in a section of its own.
    told = (*found.get("robustness", ()), *(printed["sentences"] if printed else ()))
    own = [s for s in found["sentences"] if s not in told]
    rates = found.get("error_rates") or []
    which = "the test on cells" if printed else "this test"
    often: tuple[Block, ...] = (Text(f"How often is {which} wrong? By simulation:"), *items(rates)) if rates else ()
    first, *rest = _judged(name, {**found, "sentences": () if families or parts else own}, data)
    facts = [_as_published(printed, data)] if printed else []
    blocks = (Text(found["statement"]), first, *often, *image, *rest)
    if not printed or families or parts:
        return Section(name, blocks, (*facts, *families, *parts))
    return Section(name, blocks[:2], (*facts, Section("On imputed cells", blocks[2:])))


# ---- as published -----------------------------------------------------------------------------------------------


def _as_published(found: Record, data: Record) -> Section:
    """What the printed figures say, before any cell is imputed."""
    blocks: list[Block] = [*items(found["sentences"]), *items(found.get("error_rates", ()))]
    for family in found.get("families", ()):
        blocks += _printed_residuals(family, data)
    if found.get("pairs"):
        blocks += _printed_pairs(found["pairs"])
    return Section("As published", tuple(blocks))


def _printed_residuals(family: Record, data: Record) -> tuple[Block, ...]:
    fields = (
        Field("GPU", "gpu"),
        Field(family["family"], lambda row: published(row["residual"], "percent"), "residual MAPE, %", numeric=True),
        Field(family["anchor"], lambda row: published(row["anchor_residual"], "percent"), "the anchor", numeric=True),
        decimals("difference", "difference", 1, "points", signed=True),
        Field("P(difference below the margin)", lambda row: number(row["probability"]), "rounding alone", numeric=True),
    )
    margin = data["study"]["margins"]["h1_points"]
    tests = [{"unit": UNITS_OF_TESTS[name], **test} for name, test in family["tests"].items()]
    of_tests = (
        Field("unit", "unit"),
        decimals("estimate", "estimate", 1, "points", signed=True),
        Field("df", lambda one: MISSING if one["df"] is None else f"{one['df']:g}", numeric=True),
        Field("p", lambda one: _p_value(one["p_value"]), "small: below the margin", numeric=True),
    )
    return (
        *table(f"{family['family']} and the anchor as the study prints them", family["per_sku"], fields, fold=False),
        *table(f"t-tests of the printed differences against {margin:g} points", tests, of_tests, fold=False),
        *_curve(family["margins"]),
    )


UNITS_OF_TESTS = {"t_per_gpu": "GPU", "t_per_die": "die"}
PRINTED = {
    "raw": ("raw MAPE, %", "percent"),
    "residual": ("residual MAPE, %", "percent"),
    "self_floor": ("own floor, ms", "ms"),
    "self_mape": ("MAPE under its own floor, %", "percent"),
    "anchor_offset": ("anchor's floor, ms", "ms"),
    "step": ("typical step, ms", "ms"),
    "dispatch": ("dispatch term, ms", "ms"),
}
"""Printed figures of a pair: title and unit."""


def _printed_pairs(pairs: Sequence[Record]) -> tuple[Block, ...]:
    shown = [key for key in PRINTED if any(pair[key] is not None for pair in pairs)]

    def column(key: str) -> Field:
        title, unit = PRINTED[key]
        return Field(title, lambda pair: published(pair[key], unit), numeric=True)

    return table("Figures as the study prints them", pairs, (*PAIR, *map(column, shown)), heads=2, fold=False)


# ---- families ---------------------------------------------------------------------------------------------------


def _family(family: Record, of: Record, data: Record) -> Section:
    """One family of H1; its verdict is the one before other choices."""
    blocks = _judged(family["family"], family, data, more="before other choices" if _before(of) else "")
    tests = family.get("frequentist")
    return Section(
        family["family"],
        (*blocks, *_curve(family["margins"])),
        (Section("Both schools", _schools(tests, family, data)),) if tests else (),
    )


def _judged(title: str, found: Record, data: Record, *, more: str = "") -> tuple[Block, ...]:
    """Verdict, sentences, tables of the GPUs and of their pairs, and whatever else there is."""
    probability = found.get("probability")
    said = (
        *([f"probability {number(probability)}"] if is_estimate(probability) else []),
        f"margins {data['study']['margins']['label']}",
        *_before(found),
        *([more] if more else []),
    )
    others = {NAMES.get(key, key): value for key, value in found.items() if key not in TOLD}
    if isinstance(others.get("by_die"), float):
        others["by_die"] = decimal(others["by_die"], unit="probability")
    elif "by_die" in others:  # each GPU has a die of its own, or all share one
        del others["by_die"]
    pairs = found.get("per_sku") or []
    return (
        Verdict(found["verdict"], " · ".join(said)),
        *items(found["sentences"]),
        *_pooled(title, found.get("pooled") or [], data),
        *_per_sku(title, pairs, data),
        *_elsewhere(pairs, data),
        *_joined(pairs, data),
        *key_values(others, of_data(f"{title}: all GPUs together", data)),
    )


def _curve(curve: Sequence[Record]) -> tuple[Block, ...]:
    keys = [key for key in (curve[0] if curve else ()) if key != "margin"]
    fields = (
        Field("margin, points", lambda point: f"{point['margin']:g}", numeric=True),
        *(decimals(label(key), key, unit="probability") for key in keys),
    )
    shown = table("Probability that the difference lies below the margin", curve, fields, fold=False)
    return (Fold("Probability at other margins", shown),) if shown else ()


# ---- GPUs and pairs ---------------------------------------------------------------------------------------------


def _per_sku(title: str, rows: Sequence[Record], data: Record) -> tuple[Block, ...]:
    """A table for each model: a column for each GPU, a row for each quantity."""
    blocks: list[Block] = []
    for model, group in groupby(rows, key=lambda r: r.get("model", "")):
        by_gpu = {r["gpu"]: flat(_untold(r)) for r in group}
        names = dict.fromkeys(name for record in by_gpu.values() for name in record)
        quantities = [{"name": name, **{gpu: record.get(name) for gpu, record in by_gpu.items()}} for name in names]
        fields = (Field("quantity", _quantity), *(Field(gpu, _of_sku(gpu), "", numeric=True) for gpu in by_gpu))
        caption = f"{title}, per GPU" + (f": {model}" if model and model != title else "")
        blocks += table(of_data(caption, data), quantities, fields, fold=False)
    return tuple(blocks)


def _pooled(title: str, models: Sequence[Record], data: Record) -> tuple[Block, ...]:
    """H3: each model over the GPUs on which it diverges."""
    shown = [{**model, "where": ", ".join(model["gpus"])} for model in models if model.get("slope") is not None]
    fields = (
        Field("model", "model"),
        Field("diverges on", "where"),
        Field("verdict", lambda row: Cell((plain(row["verdict"]),), verdict=True)),
        Field(label("slope"), "slope"),
        Field(label("slope_in_rope"), "slope_in_rope"),
        Field(label("recovered"), "recovered"),
    )
    return table(of_data(f"{title}, per model", data), shown, fields, fold=False) if shown else ()


def _untold(pair: Record) -> dict[str, Any]:
    """What of a pair has no table of its own."""
    left = {key: value for key, value in pair.items() if key not in TOLD_OF_PAIR}
    if isinstance(left.get("corner"), Mapping):
        left["corner"] = {key: value for key, value in left["corner"].items() if key != "joined"}
    return left


def _quantity(row: Record) -> tuple[str, ...]:
    """Name of a quantity and, where all GPUs estimate the same, what it estimates."""
    estimand = common_estimand(row.values())
    return (row["name"], *([estimand] if estimand not in ("", row["name"]) else []))


def _of_sku(gpu: str) -> Callable[[Record], Cell]:
    def cell(row: Record) -> Cell:
        name, value = row["name"], row[gpu]
        if name.endswith("verdict"):
            return Cell((plain(value),), verdict=value is not None)
        if name.startswith((label("weights"), label("floor_probability"))) and isinstance(value, float):
            return Cell((decimal(value, unit="probability"),))
        return any_cell(value)

    return cell


def _elsewhere(pairs: Sequence[Record], data: Record) -> tuple[Block, ...]:
    """H3: MAPE under an offset of the pair's own, by the cells that calibrate it; no cell tests its own offset."""
    if not any(value for pair in pairs for value in (pair.get("calibrated_elsewhere") or {}).values()):
        return ()
    ways = {"few": "few cells calibrate, the rest test", "contexts": "shorter contexts calibrate, the longest tests"}
    fields = (
        *PAIR,
        Field("each cell left out in turn", "own_level"),
        *(Field(title, key) for key, title in ways.items()),
    )
    caption = of_data("MAPE with an offset of its own, percent, by the cells that calibrate it", data)
    return table(caption, [{**pair, **(pair.get("calibrated_elsewhere") or {})} for pair in pairs], fields, heads=2)


def _joined(pairs: Sequence[Record], data: Record) -> tuple[Block, ...]:
    """H2c: the corner cell where T_gpu and a floor join in other ways."""
    rows = [
        {"model": p.get("model"), "gpu": p.get("gpu"), **corner, "how": how, "of": one}
        for p in pairs
        if isinstance(corner := p.get("corner"), Mapping)
        for how, one in (corner.get("joined") or {}).items()
    ]
    fields = (
        *PAIR,
        Field("cell", lambda r: f"B = {r['batch']:g}, L = {r['context']:g}"),
        Field("T_gpu and floor are", "how"),
        Field("error of the cell, %", ("of", "error"), signed=True),
        Field("predictive p", lambda r: decimal(r["of"]["p"], unit="probability"), SPREAD, numeric=True),
    )
    return table(
        of_data("The corner cell under a floor refitted to all cells of the pair", data), rows, fields, heads=3
    )


SPREAD = "two-sided: would the other cells' spread give such an error?"


# ---- both schools -----------------------------------------------------------------------------------------------

UNITS = {"t_per_gpu": "GPU", "two_way_t": "GPU and grid cell", "wald_slope": "GPU"}
"""What counts as a replicate, by test; those of `_by_cluster` have dies in place of GPUs, all others cells."""
PSEUDO, AGAINST = "pseudo-replicated", "a small p speaks against transfer"


def _schools(found: Record, family: Record, data: Record) -> tuple[Block, ...]:
    """Every frequentist test of a family beside its posterior probability."""
    margins, sets = data["study"]["margins"], found["data_sets"]
    level = 1.0 - margins["probability"]
    tests = [{"key": key, **one} for key, one in found["tests"].items()]
    sure = [one for one in tests if not one["pseudo_replicated"] and not _against(one) and one["p_value"] is not None]
    passed = sum(one["p_value"] < level for one in sure)
    find = f"{passed or 'none'} {'find' if passed > 1 else 'finds'}"
    text = (
        f"The Bayesian probability that the family's MAPE lies less than {found['margin']:g} points above the anchor's "
        f"is {number(family['probability'])}; of {len(sure)} tests whose unit is the GPU or the die, {find} the same "
        f"with p below {level:.2g}: with {_gpus(found)} as replicates, tests tell little unless the GPUs agree closely."
    )
    how = "A small p speaks for transfer, but for the slope, where it speaks against it."
    if sets > 1:
        how += (
            f" p is the mean over {sets} imputed grids, no p-value of one data set; beside it stands the share of "
            f"these grids in which p is below {level:.2g}."
        )
    if any(one["pseudo_replicated"] for one in tests):
        how += (
            " Tests marked pseudo-replicated take cells that share a floor for independent: their p is too small, and "
            "they decide nothing here."
        )
    share = Field(f"p < {level:.2g}", _share_below, "share of grids, %", numeric=True)
    fields = (
        Field("test", lambda one: (one["name"], *([AGAINST] if _against(one) else []))),
        Field("unit", _unit),
        decimals("estimate", "estimate", note="points; a pure number for the slope"),
        Field("df", lambda one: MISSING if one["df"] is None else f"{one['df']:g}", numeric=True),
        Field("p", lambda one: _p_value(one["p_value"]), "mean over grids" if sets > 1 else "", numeric=True),
        *([share] if sets > 1 else []),
        Field("note", _note),
    )
    caption = f"Tests of {family['family']} against a margin of {found['margin']:g} points"
    return (Text(text), Text(how), *table(of_data(caption, data), tests, fields))


def _against(one: Record) -> bool:
    return str(one["key"]).startswith("wald_slope")


def _gpus(found: Record) -> str:
    """How many GPUs, and how many dies where some share one."""
    many = len(found["gpus"])
    dies = len(set(found["clusters"].values())) if found["clusters"] else many
    return f"{many} GPU{'s' * (many > 1)}" + (f" ({dies} dies)" if dies < many else "")


def _unit(one: Record) -> Cell:
    """What counts as a replicate; marked where that is none."""
    unit = UNITS.get(one["key"].removesuffix("_by_cluster"), "cell")
    if one["key"].endswith("_by_cluster"):
        unit = unit.replace("GPU", "die")
    return Cell((PSEUDO, f"unit: {unit}"), verdict=True) if one["pseudo_replicated"] else Cell((unit,))


def _share_below(one: Record) -> str:
    return decimal(None if one["below"] is None else 100.0 * one["below"], 0)


def _p_value(p: float | None) -> str:
    return "< 0.001" if p is not None and p < 0.0005 else decimal(p, 3)


def _note(one: Record) -> str:
    """The note of a test without what its mark or its name says."""
    said = (n for n in (one["note"] or "").split("; ") if not n.startswith((PSEUDO, "two-sided: a small p-value")))
    return "; ".join(said)
