"""Sections of a report on what its numbers rest on: cells left out, diagnostics, priors, the study."""

from collections import Counter
from collections.abc import Sequence

from rooffloor.validate.estimates.cell_draws import IMPUTED
from rooffloor.validate.presentation.blocks import (
    Block,
    Field,
    Fold,
    Section,
    Text,
    flat,
    key_values,
    records,
    table,
)
from rooffloor.validate.presentation.numbers import Record
from rooffloor.validate.reporting.sections.estimates import side_by_side

MOST_ROWS = 1000
"""Rows of a list of cells that are printed at all; report.json has every one."""


def cells(data: Record) -> Section:
    """Cells that were excluded or flagged, and what the latter change."""
    without = data["without_flagged"]
    below = [
        Section("Excluded", _reasons(data["excluded"], "excluded")),
        Section("Flagged", _reasons(data["flagged"], "flagged")),
    ]
    if without:
        versions = (("all grids", data), ("without flagged grids", without))
        main = [(name, {key: v.get(key) for key in ("table", "hypotheses")}) for name, v in versions]
        text = Text(f"Grids with a flagged cell: {', '.join(without['grids'])}.")
        below.append(Section("With and without flagged grids", (text, *side_by_side(main))))
    return Section("Excluded and flagged cells", (), tuple(s for s in below if s))


def _reasons(rows: Sequence[Record], what: str) -> tuple[Block, ...]:
    """Counts by reason, and the cells themselves folded."""
    if not rows:
        return ()
    counts = Counter(row["reason"] for row in rows).most_common()
    counted = [{"reason": reason, "cells": n} for reason, n in counts]
    left = len(rows) - MOST_ROWS
    more = (Text(f"{left} more are listed in report.json."),) if left > 0 else ()
    return (
        *table(f"Cells {what}, by reason", counted, (Field("reason", "reason"), Field("cells", "cells")), fold=False),
        Fold(f"The cells ({len(rows)})", (*records(f"Cells {what}", rows[:MOST_ROWS]), *more)),
    )


def diagnostics(found: Record) -> Section:
    """Which fits passed the gate, and further diagnostics."""
    fits = sorted(found["fits"], key=lambda f: bool(f["passed"]))
    passed = Text(
        f"{sum(bool(f['passed']) for f in fits)} of {len(fits)} fits passed the gate: R-hat at most 1.01, bulk and "
        "tail ESS at least 400, no divergence, E-BFMI at least 0.3."
    )
    others = {k: v for k, v in found.items() if k != "fits" and v is not None}
    tables = (*((passed, *records("Fits", fits)) if fits else ()), *key_values(others, "Further diagnostics"))
    return Section("Diagnostics", tables)


def sensitivity(data: Record) -> Section:
    """How much prior and likelihood move the floors."""
    rows = data["sensitivity"]
    given = (
        " given T_gpu, averaged over some imputed grids; the priors under which the grids were imputed are not scaled"
        if data["status"]["label"] == IMPUTED
        else " under joint constants, floors per (GPU, model)"
    )
    said = Text(
        "Prior and likelihood are raised to powers near 1 (power-scaling); a sensitivity is the distance that the "
        f"posterior of a quantity moves per doubling of the power,{given}. From 0.05 on, a move of about a quarter of "
        "a posterior sd, it counts: of the prior alone, the prior decides; of both, they may pull apart."
    )
    found = records("Power-scaling sensitivity", [flat(r) for r in rows])
    return Section("Prior sensitivity", (said, *found) if rows else ())


def provenance(data: Record) -> Section:
    """The study's settings, and what the report was made from."""
    study = {k: v for k, v in data["study"].items() if v is not None and k != "margins"}
    made = key_values(data["provenance"], "What this report was made from")
    return Section("Provenance", (*key_values(study, "The study"), *made))
