"""The section "Do the verdicts stand?" of a report: verdict by choice, made from `robustness` of report.json."""

from collections.abc import Callable, Sequence

from rooffloor.validate.hypotheses.result import NOT_TESTED
from rooffloor.validate.hypotheses.robustness import SAW, STATEMENTS
from rooffloor.validate.presentation.blocks import Block, Cell, Field, Fold, Section, Text, items, table
from rooffloor.validate.presentation.numbers import Record
from rooffloor.validate.reporting.sections.hypotheses import of_data

TITLE = "Do the verdicts stand?"
SEEN = "Constants fitted to all cells saw the families that are judged: such a row is shown and decides nothing. "
FOLDED = "cell left out"
"""The kind of choice whose rows are behind a line that opens them."""


def section(data: Record) -> Section:
    """The section on other choices; it stands after the hypotheses."""
    rows = data["robustness"]["rows"]
    if not rows:
        return Section(TITLE)
    primary, *rest = rows
    kinds = dict.fromkeys(row["kind"] for row in rest)
    shown = [row for kind in kinds if kind != FOLDED for row in rest if row["kind"] == kind]
    folded = [row for row in rest if row["kind"] == FOLDED]
    text = Text(
        f"Each test again with one choice changed at a time, {len(rest)} in all. A verdict that some choice turns into "
        "its opposite is undecided; one that is only not decided under some choice stands, and the choice is named. "
        f"{SEEN if SAW in kinds else ''}"
        "Where GPUs or cells are left out, floors and constants stay those of all cells: only the judging changes. "
        "In the table, bold verdicts are other than the primary one's; a choice that does not concern a hypothesis "
        f"leaves it {NOT_TESTED}."
    )
    told = items(one["sentence"] for name, one in data["robustness"]["settled"].items() if _tested(name, primary))
    choices = _table(of_data("Verdict under each choice", data), [primary, *shown], primary)
    fold = Fold(_counted(folded, primary), _table(of_data("One grid cell left out", data), folded, primary))
    return Section(TITLE, (text, *told, *choices, *((fold,) if folded else ())))


def _tested(name: str, primary: Record) -> bool:
    return bool(primary[name] != "not tested")


def _table(caption: str, rows: Sequence[Record], primary: Record) -> tuple[Block, ...]:
    def verdict(name: str) -> Callable[[Record], Cell]:
        return lambda row: Cell((row[name],), verdict=row[name] not in (primary[name], NOT_TESTED))

    fields = (Field("choice", "kind"), Field("changed to", "name"), *(Field(n, verdict(n)) for n in STATEMENTS))
    return table(caption, rows, fields, heads=2, fold=False)


def _counted(rows: Sequence[Record], primary: Record) -> str:
    """How many cells were left out in turn, and which verdicts that changes."""
    changed = {name: sum(row[name] != primary[name] for row in rows) for name in STATEMENTS}
    said = ", ".join(f"{name} in {n}" for name, n in changed.items() if n)
    return f"One grid cell left out in turn ({len(rows)} cells): {f'other verdicts: {said}' if said else 'no change'}"
