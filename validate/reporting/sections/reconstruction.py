"""Sections of a report on a published study: what its aggregates alone exclude, and the grids imputed from them."""

from collections import Counter
from collections.abc import Sequence
from itertools import groupby

from rooffloor.validate.presentation.blocks import Block, Field, Fold, Items, Section, Text, records, table
from rooffloor.validate.presentation.numbers import Record, decimal, label, plain, published

READING = ("grid", "reading", "roof", "discrepancy")
"""What the study leaves open; GPUs may be inverted one by one, so that a reading has several parts."""


def aggregates(facts: Sequence[Record]) -> Section:
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
    blocks: list[Block] = []
    for (assumptions, method, figures), group in groupby(
        facts, key=lambda fact: (fact["assumptions"], fact["method"], fact["figures"])
    ):
        used = f"Assumed: {'; '.join(assumptions)}. Method: {method}. Figures: {'; '.join(figures)}."
        blocks.append(Items(tuple(f["statement"] for f in group)))
        blocks.append(Fold("Assumptions and figures used", (Text(used),)))
    return tuple(blocks)


def imputed_grids(found: Record | None) -> Section:
    """Which readings of the study can print its figures, which figures come back, and how well intervals cover."""
    title = "Imputed grids"
    if not found:
        return Section(title)
    feasible = [i for i in found["indices"] if i["feasible"]]
    infeasible = sorted((i for i in found["indices"] if not i["feasible"]), key=lambda i: i["least_misfit"] or 0.0)
    readings = {tuple(plain(i[k]) for k in READING): i["feasible"] for i in (*feasible, *infeasible)}
    how = Text(
        f"The study published no cell. {found['grids']} whole grids were drawn that agree with its published figures: "
        "every grid is one draw of all steps, T_gpu, constants and offsets given the figures, each figure anywhere "
        "within its rounding, under one reading of what the study leaves open (axes of the grid, what its self-floor "
        f"is an offset of, which roof it used, how far steps stray from it). {sum(readings.values())} of "
        f"{len(readings)} readings can print the figures. What the figures do not fix is prior."
    )

    def parts(caption: str, rows: Sequence[Record], *keys: str) -> tuple[Block, ...]:
        return records(caption, [{key: row[key] for key in (*READING, "gpus", *keys)} for row in rows], heads=3)

    tried = "Parts that can print their figures; log_ml is of one ladder, R-hat and ESS are of their chains"
    failed = "Parts that did not reach their figures; misfit in half-widths of the rounding at the figure at fault"
    covered = "Share of simulated studies whose true values the intervals cover"
    below = (
        Section("Feasible readings", parts(tried, feasible, "log_ml", "arrived", "acceptance", "rhat", "ess")),
        Section("Infeasible readings", parts(failed, infeasible, "least_misfit", "worst_figure")),
        _returned(found["figures"]),
        Section("Acceptance on simulated studies", records(covered, found.get("acceptance") or [])),
    )
    return Section(title, (how,), tuple(s for s in below if s))


def _returned(figures: Sequence[Record]) -> Section:
    def share(figure: Record) -> float:
        return 1.0 if figure["share_within"] is None else float(figure["share_within"])

    def printed(figure: Record) -> str:
        unit = "%" if figure["unit"] == "percent" else figure["unit"]
        return f"{published(figure['published'], figure['unit'])} {unit}"

    def within(figure: Record) -> str:
        return decimal(None if figure["share_within"] is None else 100 * share(figure), 0, "percent")

    fields = (
        Field("quantity", lambda f: label(str(f["quantity"]))),
        Field("model", "model"),
        Field("GPU", "gpu"),
        Field("published", printed, numeric=True),
        Field("imputed", "imputed", numeric=True),
        Field("within its rounding", within, "share of the grids", numeric=True),
        Field("mean misfit", "mean_misfit", numeric=True),
        Field("conditioned on", "conditioned_on", numeric=False),
    )
    back = sum(f["share_within"] is not None and f["share_within"] >= 0.9 for f in figures)
    text = Text(
        f"{back} of {len(figures)} published figures come back within their rounding in at least 90 % of the grids."
    )
    caption = "Published figures in the imputed grids, those that come back least first"
    rows = table(caption, sorted(figures, key=share), fields, heads=3)
    return Section("Figures that come back", (text, *rows) if rows else ())
