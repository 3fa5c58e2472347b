"""The section "Hypotheses" of a report: each verdict, how often its test is wrong, both schools, every GPU.

Made from `hypotheses` of report.json alone. Whether the verdicts stand under other choices is told by
validate/reporting/sections/robustness.py.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Any

from rooffloor.validate.presentation.blocks import (
    Block,
    Cell,
    Column,
    Field,
    Fold,
    Image,
    Section,
    Table,
    Text,
    Verdict,
    common_estimand,
    estimate_cell,
    flat,
    items,
    key_values,
    long_table,
    text_cell,
)
from rooffloor.validate.presentation.numbers import MISSING, Record, decimal, is_estimate, label, number, plain

TITLE = "Hypotheses"
PART_TITLES = {"a": "H2a: level", "b": "H2b: dispatch term", "c": "H2c: shape"}
TOLD = (
    "verdict",
    "as_reported",
    "statement",
    "sentences",
    "robustness",
    "error_rates",
    "families",
    "parts",
    "per_sku",
    "family",
    "frequentist",
    "margins",
)
"""What of a hypothesis, a family or a part is told in a way of its own."""
NAMES = {"joint": "P(below the margin on every GPU)"}
TOLD_OF_PAIR = ("model", "gpu", "calibrated_elsewhere", "offset_slope")
"""The same for a pair; of its corner cell, `joined`."""


def section(data: Record, image: Callable[[str], tuple[Image, ...]]) -> Section:
    """The section on hypotheses.

    Parameters
    ----------
    data : mapping
        The content of report.json.
    image : callable(str) -> tuple of Image
        The figure of a key, where there is one: `verdicts`, `power`, `joint`.
    """
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
    """Verdict and probabilities of each hypothesis, each of its families and each of its parts, by name."""

    def cell(found: Record) -> Cell:
        kinds = {"probability": "", "absolute_probability": " (absolute margin)"}
        extra = [f"P {number(found[key])}{what}" for key, what in kinds.items() if is_estimate(found.get(key))]
        return Cell((found["verdict"], *extra, *_before(found)), verdict=True)

    out = {}
    for name, found in hypotheses.items():
        out[name] = cell(found)
        out |= {f"{name}: {f['family']}": cell(f) for f in found.get("families", ())}
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
    families = [_family(f, found, data) for f in found.get("families", ())]
    parts = [
        Section(PART_TITLES.get(key, key), _judged(PART_TITLES.get(key, key), p, data))
        for key, p in found.get("parts", {}).items()
    ]
    # Parts and families tell their sentences themselves; what other choices do stands in a section of its own.
    own = [s for s in found["sentences"] if s not in found.get("robustness", ())]
    rates = found.get("error_rates") or []
    often: tuple[Block, ...] = (Text("How often is this test wrong? By simulation:"), *items(rates)) if rates else ()
    first, *rest = _judged(name, {**found, "sentences": () if families or parts else own}, data)
    return Section(name, (Text(found["statement"]), first, *often, *image, *rest), (*families, *parts))


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
        *_per_sku(title, pairs, data),
        *_elsewhere(pairs, data),
        *_joined(pairs, data),
        *key_values(others, of_data(f"{title}: all GPUs together", data)),
    )


def _curve(curve: Sequence[Record]) -> tuple[Block, ...]:
    if not curve:
        return ()
    keys = [k for k in curve[0] if k != "margin"]
    rows = tuple(
        (Cell((f"{p['margin']:g}",)), *(Cell((decimal(p[k], unit="probability"),)) for k in keys)) for p in curve
    )
    columns = (Column("margin, points", numeric=True), *(Column(label(k), numeric=True) for k in keys))
    table = Table("Probability that the difference lies below the margin", columns, rows)
    return (Fold("Probability at other margins", (table,)),)


# ---- GPUs and pairs ---------------------------------------------------------------------------------------------


def _per_sku(title: str, rows: Sequence[Record], data: Record) -> tuple[Block, ...]:
    """A table for each model: a column for each GPU, a row for each quantity."""
    blocks: list[Block] = []
    for model, group in groupby(rows, key=lambda r: r.get("model", "")):
        by_gpu = [(r["gpu"], flat(_untold(r))) for r in group]
        names = list(dict.fromkeys(name for _, record in by_gpu for name in record))
        table_rows = []
        for name in names:
            values = [record.get(name) for _, record in by_gpu]
            estimand = common_estimand(v for v in values if is_estimate(v))
            head = Cell((name, estimand) if estimand and estimand != name else (name,))
            table_rows.append((head, *(_sku_cell(name, v) for v in values)))
        caption = f"{title}, per GPU" + (f": {model}" if model and model != title else "")
        columns = (Column("quantity"), *(Column(gpu, numeric=True) for gpu, _ in by_gpu))
        blocks.append(Table(of_data(caption, data), columns, tuple(table_rows)))
    return tuple(blocks)


def _untold(pair: Record) -> dict[str, Any]:
    """What of a pair has no table of its own."""
    left = {key: value for key, value in pair.items() if key not in TOLD_OF_PAIR}
    if isinstance(left.get("corner"), Mapping):
        left["corner"] = {key: value for key, value in left["corner"].items() if key != "joined"}
    return left


def _sku_cell(name: str, value: object) -> Cell:
    if name.endswith("verdict"):
        return Cell((plain(value),), verdict=value is not None)
    if name.startswith((label("weights"), label("floor_probability"))) and isinstance(value, float):
        return Cell((decimal(value, unit="probability"),))
    return Field("", "", unit=True).cell(value)


def _elsewhere(pairs: Sequence[Record], data: Record) -> tuple[Block, ...]:
    """H3: MAPE under an offset of the pair's own, by the cells that calibrate it; no cell tests its own offset."""
    told = [(p, p.get("calibrated_elsewhere") or {}) for p in pairs]
    if not any(value for _, found in told for value in found.values()):
        return ()
    ways = {"few": "few cells calibrate, the rest test", "contexts": "shorter contexts calibrate, the longest tests"}
    columns = (
        Column("model"),
        Column("GPU"),
        Column("each cell left out in turn", common_estimand(p.get("own_level") for p in pairs), True),
        *(Column(title, common_estimand(found.get(key) for _, found in told), True) for key, title in ways.items()),
    )
    rows = [
        (
            *(text_cell(p.get(key)) for key in ("model", "gpu")),
            estimate_cell(p.get("own_level")),
            *(estimate_cell(found.get(key)) for key in ways),
        )
        for p, found in told
    ]
    caption = of_data("MAPE with an offset of its own, percent, by the cells that calibrate it", data)
    return long_table(caption, columns, rows, heads=2)


def _joined(pairs: Sequence[Record], data: Record) -> tuple[Block, ...]:
    """H2c: the corner cell where T_gpu and a floor join in other ways."""
    corners = [(p, p["corner"]) for p in pairs if isinstance(p.get("corner"), Mapping) and p["corner"].get("joined")]
    errors = [one["error"] for _, corner in corners for one in corner["joined"].values()]
    columns = (
        Column("model"),
        Column("GPU"),
        Column("cell"),
        Column("T_gpu and floor are"),
        Column("error of the cell, %", common_estimand(errors), True),
        Column("predictive p", "two-sided: would the other cells' spread give such an error?", True),
    )
    rows = [
        (
            *(text_cell(p.get(key)) for key in ("model", "gpu")),
            Cell((f"B = {corner['batch']:g}, L = {corner['context']:g}",)),
            text_cell(how),
            estimate_cell(one["error"], signed=True),
            Cell((decimal(one["p"], unit="probability"),)),
        )
        for p, corner in corners
        for how, one in corner["joined"].items()
    ]
    caption = of_data("The corner cell under a floor refitted to all cells of the pair", data)
    return long_table(caption, columns, rows, heads=3)


# ---- both schools -----------------------------------------------------------------------------------------------

UNITS = {
    "t_per_gpu": "GPU",
    "two_way_t": "GPU and grid cell",
    "mixed_model": "GPU",
    "wald_slope": "GPU",
}
"""What counts as a replicate, by test; those of `_by_cluster` have dies in place of GPUs, all others cells."""
AGAINST = "a small p speaks against transfer"
WITHIN = "asks whether the difference is within the margin on both sides"


def _schools(found: Record, family: Record, data: Record) -> tuple[Block, ...]:
    """Every frequentist test of a family beside its posterior probability, and the tests of each GPU."""
    margins, sets = data["study"]["margins"], found["data_sets"]
    level = 1.0 - margins["probability"]
    sure = {key: one for key, one in found["tests"].items() if not one["pseudo_replicated"] and not _against(key)}
    passed = [key for key, one in sure.items() if one["p_value"] is not None and one["p_value"] < level]
    count = sum(one["p_value"] is not None for one in sure.values())
    find = f"{len(passed) or 'none'} {'find' if len(passed) > 1 else 'finds'}"
    text = (
        f"The Bayesian probability that the family's MAPE lies less than {found['margin']:g} points above the anchor's "
        f"is {number(family['probability'])}; of {count} tests whose unit is the GPU or the die, {find} the same with "
        f"p below {level:.2g}: with {_gpus(found)} as replicates, tests tell little unless the GPUs agree closely."
    )
    how = "A small p speaks for transfer, but for the slope, where it speaks against it."
    if sets > 1:
        how += (
            f" p is the mean over {sets} imputed grids, no p-value of one data set; beside it stands the share of "
            f"these grids in which p is below {level:.2g}."
        )
    if any(one["pseudo_replicated"] for one in found["tests"].values()):
        how += (
            " Tests marked pseudo-replicated take cells that share a floor for independent: their p is too small, and "
            "they decide nothing here."
        )
    tests = long_table(
        of_data(f"Tests of {family['family']} against a margin of {found['margin']:g} points", data),
        (Column("test"), Column("unit"), *_numbers(sets, level), Column("note")),
        [(*_test(key, one), *_p(one, sets), Cell((_note(one),))) for key, one in found["tests"].items()],
    )
    per_gpu = long_table(
        of_data("GPU by GPU, cells as the unit: pseudo-replicated", data),
        (
            Column("GPU"),
            *_numbers(sets, level, "points"),
            Column("p, Holm", f"for {len(found['per_gpu'])} tests", True),
        ),
        [(text_cell(one["gpu"]), *_p(one, sets), Cell((_p_value(one["p_holm"]),))) for one in found["per_gpu"]],
    )
    return (Text(text), Text(how), *tests, *per_gpu)


def _against(key: str) -> bool:
    return key.startswith("wald_slope")


def _gpus(found: Record) -> str:
    """How many GPUs, and how many dies where some share one."""
    many = len(found["gpus"])
    dies = len(set(found["clusters"].values())) if found["clusters"] else many
    return f"{many} GPU{'s' * (many > 1)}" + (f" ({dies} dies)" if dies < many else "")


def _numbers(sets: int, level: float, unit: str = "points; a pure number for the slope") -> tuple[Column, ...]:
    return (
        Column("estimate", unit, True),
        Column("df", numeric=True),
        Column("p", "mean over grids" if sets > 1 else "", True),
        *([Column(f"p < {level:.2g}", "share of grids, %", True)] if sets > 1 else []),
    )


def _test(key: str, one: Record) -> tuple[Cell, Cell]:
    """Name of a test, and its unit; marked where that is no replicate."""
    asks = AGAINST if _against(key) else WITHIN if key.startswith("equivalence") else ""
    name = Cell((one["name"], *([asks] if asks else [])))
    unit = UNITS.get(key.removesuffix("_by_cluster"), "cell")
    if key.endswith("_by_cluster"):
        unit = unit.replace("GPU", "die")
    return name, Cell((PSEUDO, f"unit: {unit}"), verdict=True) if one["pseudo_replicated"] else Cell((unit,))


PSEUDO = "pseudo-replicated"


def _p(one: Record, sets: int) -> tuple[Cell, ...]:
    share = None if one["below"] is None else 100.0 * one["below"]
    return (
        Cell((decimal(one["estimate"]),)),
        Cell((MISSING if one["df"] is None else f"{one['df']:g}",)),
        Cell((_p_value(one["p_value"]),)),
        *([Cell((decimal(share, 0),))] if sets > 1 else []),
    )


def _p_value(p: float | None) -> str:
    return "< 0.001" if p is not None and p < 0.0005 else decimal(p, 3)


def _note(one: Record) -> str:
    """The note of a test without what its mark or its name says."""
    said = (n for n in (one["note"] or "").split("; ") if not n.startswith((PSEUDO, "two-sided: a small p-value")))
    return "; ".join(said)
