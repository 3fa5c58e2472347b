"""What a report says, in which order: the report's dict as sections of paragraphs, lists, tables and figures.

`sections` decides the content once; presentation/writers.py writes it as HTML or Markdown. Nothing is escaped here.
A section without content does not come into being.
"""

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from itertools import groupby

from rooffloor.validate.estimates.cell_draws import IMPUTED
from rooffloor.validate.presentation.blocks import (
    Block,
    Cell,
    Column,
    Fold,
    Image,
    Items,
    Section,
    Table,
    Text,
    any_cell,
    common_estimand,
    estimate_cell,
    flat,
    items,
    key_values,
    long_table,
    records,
    text_cell,
)
from rooffloor.validate.presentation.numbers import Record, decimal, full, is_estimate, label, number, plain, published
from rooffloor.validate.reporting.figures import FIGURES, images
from rooffloor.validate.reporting.sections import absorption, hypotheses, robustness, which_floor

MOST_ROWS = 1000
"""Rows of a list of cells that are printed at all; report.json has every one."""


def sections(data: Record, figures: Collection[str]) -> tuple[Section, ...]:
    """Sections of a report, those without content left out.

    Parameters
    ----------
    data : mapping
        The content of report.json (reporting/schemas/report.schema.json).
    figures : collection of str
        Keys of the figures there are (`FIGURES`, others come last).
    """
    image = images(data, figures)
    found = (
        Section("Summary", (*items(data["summary"]), _verdicts_table(data))),
        absorption.section(data["absorption"], data["hidden_errors"], image),
        _two_numbers(data, image("table")),
        _aggregates(data["aggregates"]),
        _floors(data["floors"], image("floors")),
        which_floor.section(data["which_floor"], image),
        Section("Measured against predicted", image("measured_predicted")),
        _breakdown(data["breakdown"], image("breakdown")),
        hypotheses.section(data, image),
        robustness.section(data),
        _structural(data["structural"], image("context")),
        _variants(data["variants"]),
        _reconstruction(data["reconstruction"]),
        _cells(data),
        _diagnostics(data["diagnostics"]),
        _sensitivity(data),
        Section("Assumptions", items(data["assumptions"])),
        Section("Warnings", items(data["warnings"])),
        Section("Further figures", tuple(i for key in figures if key not in FIGURES for i in image(key))),
        Section(
            "Provenance",
            (*_settings(data["study"]), *key_values(data["provenance"], "What this report was made from")),
        ),
    )
    return tuple(s for s in found if s)


# ---- summary ----------------------------------------------------------------------------------------------------


def _verdicts_table(data: Record) -> Table:
    rows = tuple((Cell((name,)), cell) for name, cell in hypotheses.verdicts(data["hypotheses"]).items())
    return Table("Verdicts", (Column("hypothesis"), Column("verdict")), rows)


# ---- the two-number table ---------------------------------------------------------------------------------------


def _two_numbers(data: Record, image: tuple[Image, ...]) -> Section:
    rows = data["table"]
    if not rows:
        return Section("The two-number table", image)
    note = (
        "Every MAPE is given three times, and the three are never mixed: of the cells as measured, expected for the "
        "grid under the model, and what a re-run of the measurement would show. The signed mean relative error of the "
        "cells as measured tells over-prediction (+) from under-prediction (-). Pooled is the plain mean over GPUs."
    )
    if data["status"]["label"] == IMPUTED:
        note += " No cell was seen: intervals in the column as measured come from imputing the cells alone."
    return Section(
        "The two-number table",
        (
            *image,
            Text(note),
            _mape_table(rows, "raw", "Raw MAPE, percent: T_gpu without a floor"),
            *(
                [_mape_table(rows, "residual", "Residual MAPE, percent: T_gpu plus the anchor's floor of that GPU")]
                if any(r["residual"] for r in rows)
                else []
            ),
        ),
    )


def _mape_table(rows: Sequence[Record], which: str, caption: str) -> Table:
    kinds = {"as_measured": "as measured", "expected": "expected", "rerun": "re-run"}
    rows = [r for r in rows if r[which]]
    with_published = any((r["published"] or {}).get(which) is not None for r in rows)
    columns = [Column("model"), Column("GPU"), Column("cells", numeric=True)]
    if with_published:
        columns.append(Column("published", "by the study", True))
    columns += [Column(title, common_estimand(r[which][key] for r in rows), True) for key, title in kinds.items()]
    columns.append(Column("signed mean", common_estimand(r["signed"][which] for r in rows), True))

    def cells(row: Record) -> tuple[Cell, ...]:
        value = [Cell((published((row["published"] or {}).get(which), "percent"),))] if with_published else []
        return (
            *(text_cell(row[key]) for key in ("model", "gpu", "cells")),
            *value,
            *(estimate_cell(row[which][key]) for key in kinds),
            estimate_cell(row["signed"][which], signed=True),
        )

    return Table(caption, tuple(columns), tuple(cells(r) for r in rows), heads=2)


# ---- what the aggregates exclude --------------------------------------------------------------------------------


def _aggregates(facts: Sequence[Record]) -> Section:
    """Statements: those that are made of most grids folded grid by grid, all others open."""
    title = "What the published aggregates alone exclude"
    if not facts:
        return Section(title)
    parts = [fact["name"].partition(": ") for fact in facts]
    grids = {grid for grid, colon, _ in parts if colon and "/" in grid}
    often = Counter(what for grid, _, what in parts if grid in grids)
    special, routine = list[Record](), dict[str, list[Record]]()
    for (grid, _, what), fact in zip(parts, facts, strict=True):
        shared = grid in grids and often[what] > len(grids) / 2
        (routine.setdefault(grid, []) if shared else special).append(fact)
    folds = [Fold(f"{grid}: {len(group)} statements", _facts(group)) for grid, group in routine.items()]
    intro = Text(
        f"{len(facts)} statements that hold whatever the unseen cells are, as long as the named assumptions do. No "
        "model of the step and no prior enters."
    )
    below = (Section("In particular", _facts(special)), Section("Grid by grid", tuple(folds)))
    return Section(title, (intro,), tuple(part for part in below if part))


def _facts(facts: Sequence[Record]) -> tuple[Block, ...]:
    """Sentences, and below those that rest on the same grounds, the grounds."""

    def grounds(fact: Record) -> tuple[tuple[str, ...], str, tuple[str, ...]]:
        return tuple(fact["assumptions"]), fact["method"], tuple(fact["figures"])

    blocks: list[Block] = []
    for (assumptions, method, figures), group in groupby(facts, key=grounds):
        blocks.append(Items(tuple(f["statement"] for f in group)))
        used = f"Assumed: {'; '.join(assumptions)}. Method: {method}. Figures: {'; '.join(figures)}."
        blocks.append(Fold("Assumptions and figures used", (Text(used),)))
    return tuple(blocks)


# ---- floors, breakdown, structure -------------------------------------------------------------------------------


def _floors(floors: Record, image: tuple[Image, ...]) -> Section:
    def table(rows: Sequence[Record], group: str, caption: str) -> tuple[Block, ...]:
        columns = (Column("GPU"), Column(group), Column("floor δ, ms", common_estimand(r["floor"] for r in rows), True))
        cells = [(text_cell(r["gpu"]), text_cell(r[group]), estimate_cell(r["floor"], signed=True)) for r in rows]
        return long_table(caption, columns, cells, heads=2)

    self_floors = floors["self_floors"]
    columns = (
        Column("model"),
        Column("GPU"),
        Column("published, ms", "the study's self-floor", True),
        Column("its reading, ms", common_estimand(r["reading"] for r in self_floors), True),
        Column("the model's floor δ, ms", common_estimand(r["floor"] for r in self_floors), True),
        Column("why they differ"),
    )
    rows = [
        (
            text_cell(r["model"]),
            text_cell(r["gpu"]),
            Cell((published(r["published"]),)),
            estimate_cell(r["reading"], signed=True),
            estimate_cell(r["floor"], signed=True),
            text_cell(r["why"]),
        )
        for r in self_floors
    ]
    tables = (
        *table(floors["by_class"], "class", "Floors by GPU and class"),
        *long_table("Self-floors under the study's reading beside the model's floor", columns, rows, heads=2),
        *table(floors["by_model"], "model", "Floors by GPU and model"),
    )
    note = Text(
        "A floor is what is added beyond T_gpu: host time and unmodelled GPU latency. Steps alone cannot tell the two "
        "apart. A negative floor means that T_gpu over-predicts."
    )
    return Section("Floors", (*image, note, *tables) if tables or image else ())


PARTS = {"weights": "weights", "kv": "KV cache", "other": "other kernels", "floor": "floor", "leftover": "leftover"}


def _breakdown(rows: Sequence[Record], image: tuple[Image, ...]) -> Section:
    columns = [
        Column("model"),
        Column("GPU"),
        Column("cells"),
        Column("step", common_estimand(r["step"] for r in rows), True),
    ]
    columns += [Column(title, common_estimand(r["parts"].get(p) for r in rows), True) for p, title in PARTS.items()]
    cells = [
        (
            *(text_cell(r[key]) for key in ("model", "gpu", "group")),
            estimate_cell(r["step"]),
            *(estimate_cell(r["parts"].get(part)) for part in PARTS),
        )
        for r in rows
    ]
    return Section(
        "Breakdown", (*image, *long_table("What a step is made of, mean of the cells, ms", columns, cells, heads=3))
    )


def _structural(reads: Sequence[Record], image: tuple[Image, ...]) -> Section:
    below = []
    for read in reads:
        rows, text = read["rows"], read["statement"]
        if read["probability"]:
            text += f" Posterior probability: {number(read['probability'])}."
        for key, value in read.items():
            if key != "probability" and is_estimate(value):
                text += f" {label(key).capitalize()}: {full(value)}."
        with_published = any(r["published"] is not None for r in rows)
        others = [k for k in dict.fromkeys(k for r in rows for k in r) if k not in ("label", "value", "published")]
        columns = [Column("what"), Column("value", common_estimand(r["value"] for r in rows), True)]
        columns += [Column("published", "by the study", True)] if with_published else []
        columns += [Column(label(k), numeric=True) for k in others]
        cells = [
            (
                text_cell(r["label"]),
                estimate_cell(r["value"], unit=True),
                *([Cell((published(r["published"]),))] if with_published else []),
                *(any_cell(r.get(k)) for k in others),
            )
            for r in rows
        ]
        below.append(Section(read["name"], (Text(text), *long_table(read["name"], columns, cells))))
    return Section("Structural reads", image, tuple(below))


# ---- side by side -----------------------------------------------------------------------------------------------


def _variants(variants: Sequence[Record]) -> Section:
    if len(variants) < 2:
        return Section("Other treatments side by side")
    named = [(v["name"] + (" (primary)" if v["primary"] else ""), v) for v in variants]
    return Section("Other treatments side by side", _side_by_side(named))


def _side_by_side(versions: Sequence[tuple[str, Record]]) -> tuple[Block, ...]:
    """Tables with a column for each version of the same analysis."""

    def mape(which: str) -> Callable[[Record], dict[tuple[str, ...], Cell]]:
        return lambda v: {
            (r["model"], r["gpu"]): estimate_cell(r[which]["expected"]) for r in v.get("table") or () if r[which]
        }

    def floors(version: Record) -> dict[tuple[str, ...], Cell]:
        rows = (version.get("floors") or {}).get("by_class", ())
        return {(r["gpu"], r["class"]): estimate_cell(r["floor"], signed=True) for r in rows}

    def constants(version: Record) -> dict[tuple[str, ...], Cell]:
        rows = version.get("efficiency") or ()
        return {(r["constant"], plain(r.get("gpu"))): estimate_cell(r["estimate"], unit=True) for r in rows}

    def fits(version: Record) -> dict[tuple[str, ...], Cell]:
        fits = (version.get("diagnostics") or {}).get("fits", ())
        return {("fits that passed the gate",): Cell((_passed(fits),))} if fits else {}

    return (
        *_compared(
            "Verdicts",
            ("hypothesis",),
            versions,
            lambda v: {(k,): c for k, c in hypotheses.verdicts(v.get("hypotheses") or {}).items()},
        ),
        *_compared("Expected residual MAPE, percent", ("model", "GPU"), versions, mape("residual")),
        *_compared("Expected raw MAPE, percent", ("model", "GPU"), versions, mape("raw")),
        *_compared("Floors δ, ms", ("GPU", "class"), versions, floors),
        *_compared("Efficiency constants", ("constant", "GPU"), versions, constants),
        *_compared("Gate", ("diagnostic",), versions, fits),
    )


def _compared(
    caption: str,
    keys: tuple[str, ...],
    versions: Sequence[tuple[str, Record]],
    extract: Callable[[Record], dict[tuple[str, ...], Cell]],
) -> tuple[Block, ...]:
    found = [extract(version) for _, version in versions]
    names = list(dict.fromkeys(key for cells in found for key in cells))
    columns = [*(Column(k) for k in keys), *(Column(name, numeric=True) for name, _ in versions)]
    absent = text_cell(None)
    rows = [(*(Cell((part,)) for part in key), *(cells.get(key, absent) for cells in found)) for key in names]
    return long_table(caption, columns, rows, heads=len(keys))


# ---- imputed grids ----------------------------------------------------------------------------------------------


READING = ("grid", "reading", "roof", "discrepancy")
"""What the study leaves open; GPUs may be inverted one by one, so that a reading has several parts."""


def _reconstruction(found: Record | None) -> Section:
    title = "Imputed grids"
    if not found:
        return Section(title)
    feasible = [i for i in found["indices"] if i["feasible"]]
    infeasible = sorted((i for i in found["indices"] if not i["feasible"]), key=lambda i: i["least_misfit"] or 0.0)
    reading = {tuple(plain(i[k]) for k in READING): True for i in found["indices"]}
    for i in infeasible:
        reading[tuple(plain(i[k]) for k in READING)] = False
    how = Text(
        f"The study published no cell. {found['grids']} whole grids were drawn that agree with its published figures: "
        "every grid is one draw of all steps, T_gpu, constants and offsets given the figures, each figure anywhere "
        "within its rounding, under one reading of what the study leaves open (axes of the grid, what its self-floor "
        f"is an offset of, which roof it used, how far steps stray from it). {sum(reading.values())} of "
        f"{len(reading)} readings can print the figures. What the figures do not fix is prior."
    )
    tried = records(
        "Parts that can print their figures; R-hat and ESS are of their chains",
        [{k: i[k] for k in (*READING, "gpus", "arrived", "acceptance", "rhat", "ess")} for i in feasible],
        heads=3,
    )
    failed = records(
        "Infeasible parts; misfit in half-widths of the rounding at the figure at fault",
        [{k: i[k] for k in (*READING, "gpus", "least_misfit", "worst_figure")} for i in infeasible],
        heads=3,
    )
    below = (
        Section("Feasible readings", tried),
        Section("Infeasible readings", failed),
        _returned(found["figures"]),
        _acceptance(found),
    )
    return Section(title, (how,), tuple(s for s in below if s))


def _acceptance(found: Record) -> Section:
    rows = records("Share of simulated studies whose true values the intervals cover", found.get("acceptance") or [])
    return Section("Acceptance on simulated studies", rows)


def _returned(figures: Sequence[Record]) -> Section:
    columns = (
        Column("quantity"),
        Column("model"),
        Column("GPU"),
        Column("published", numeric=True),
        Column("imputed", common_estimand(f["imputed"] for f in figures if is_estimate(f["imputed"])), True),
        Column("within its rounding", "share of the grids", True),
        Column("mean misfit", numeric=True),
        Column("conditioned on"),
    )

    def row(f: Record) -> tuple[Cell, ...]:
        imputed = estimate_cell(f["imputed"]) if is_estimate(f["imputed"]) else text_cell(f["imputed"])
        share = f["share_within"]
        return (
            *(text_cell(label(str(f[key])) if key == "quantity" else f[key]) for key in ("quantity", "model", "gpu")),
            Cell((f"{published(f['published'], f['unit'])} {'%' if f['unit'] == 'percent' else f['unit']}",)),
            imputed,
            Cell((decimal(None if share is None else 100 * share, 0, "percent"),)),
            text_cell(f["mean_misfit"]),
            text_cell(f["conditioned_on"]),
        )

    ordered = sorted(figures, key=lambda f: 1.0 if f["share_within"] is None else f["share_within"])
    back = sum(1 for f in figures if f["share_within"] is not None and f["share_within"] >= 0.9)
    text = Text(
        f"{back} of {len(figures)} published figures come back within their rounding in at least 90 % of the grids."
    )
    rows = long_table(
        "Published figures in the imputed grids, those that come back least first",
        columns,
        [row(f) for f in ordered],
        3,
    )
    return Section("Figures that come back", (text, *rows) if rows else ())


# ---- cells left out, diagnostics --------------------------------------------------------------------------------


def _cells(data: Record) -> Section:
    without = data["without_flagged"]
    below = [
        Section("Excluded", _reasons(data["excluded"], "excluded")),
        Section("Flagged", _reasons(data["flagged"], "flagged")),
    ]
    if without:
        grids = ", ".join(without["grids"])
        versions = [("all grids", data), ("without flagged grids", without)]
        main = [(name, {key: v.get(key) for key in ("table", "hypotheses")}) for name, v in versions]
        blocks = (Text(f"Grids with a flagged cell: {grids}."), *_side_by_side(main))
        below.append(Section("With and without flagged grids", blocks))
    return Section("Excluded and flagged cells", (), tuple(s for s in below if s))


def _reasons(rows: Sequence[Record], what: str) -> tuple[Block, ...]:
    """Counts by reason, and the cells themselves folded."""
    if not rows:
        return ()
    counts = Counter(row["reason"] for row in rows).most_common()
    counted = tuple((Cell((reason,)), text_cell(n)) for reason, n in counts)
    left = len(rows) - MOST_ROWS
    more = (Text(f"{left} more are listed in report.json."),) if left > 0 else ()
    return (
        Table(f"Cells {what}, by reason", (Column("reason"), Column("cells", numeric=True)), counted),
        Fold(f"The cells ({len(rows)})", (*records(f"Cells {what}", rows[:MOST_ROWS]), *more)),
    )


def _passed(fits: Sequence[Record]) -> str:
    return f"{sum(1 for f in fits if f['passed'])} of {len(fits)}"


def _diagnostics(diagnostics: Record) -> Section:
    fits = sorted(diagnostics["fits"], key=lambda f: bool(f["passed"]))
    blocks: list[Block] = []
    if fits:
        blocks.append(
            Text(
                f"{_passed(fits)} fits passed the gate: R-hat at most 1.01, bulk and tail ESS at least 400, no "
                "divergence, E-BFMI at least 0.3."
            )
        )
        blocks += records("Fits", fits)
    others = {k: v for k, v in diagnostics.items() if k != "fits" and v is not None}
    blocks += key_values(others, "Further diagnostics")
    return Section("Diagnostics", tuple(blocks))


def _sensitivity(data: Record) -> Section:
    rows = data["sensitivity"]
    if not rows:
        return Section("Prior sensitivity", ())
    given = (
        " given T_gpu, averaged over some imputed grids; the priors under which the grids were imputed are not scaled"
        if data["status"]["label"] == IMPUTED
        else " under joint constants, floors per (GPU, model)"
    )
    said = (
        "Prior and likelihood are raised to powers near 1 (power-scaling); a sensitivity is the distance that the "
        f"posterior of a quantity moves per doubling of the power,{given}. From 0.05 on, a move of about a quarter of "
        "a posterior sd, it counts: of the prior alone, the prior decides; of both, they may pull apart."
    )
    return Section("Prior sensitivity", (Text(said), *records("Power-scaling sensitivity", [flat(r) for r in rows])))


def _settings(study: Record) -> tuple[Block, ...]:
    return key_values({k: v for k, v in study.items() if v is not None and k != "margins"}, "The study")
