"""What a report says, in which order: the report's dict as sections of paragraphs, lists, tables and figures.

`sections` decides the content once; pages.py has it written as HTML or Markdown. Nothing is escaped here. A section
without content does not come into being. Modules of sections take report.json or a piece of it, and `image`: the figure
of a key, where there is one.
"""

from collections.abc import Collection

from rooffloor.validate.presentation.blocks import Section, items
from rooffloor.validate.presentation.numbers import Record
from rooffloor.validate.reporting.figures import FIGURES, images
from rooffloor.validate.reporting.sections import (
    absorption,
    basis,
    estimates,
    hypotheses,
    reconstruction,
    robustness,
    which_floor,
)


def sections(data: Record, figures: Collection[str]) -> tuple[Section, ...]:
    """Sections of a report, those without content left out.

    Parameters
    ----------
    data : mapping
        The content of report.json (schemas/report.schema.json).
    figures : collection of str
        Keys of the figures there are (`FIGURES`, others come last).
    """
    image = images(data, figures)
    found = (
        Section("Summary", (*items(data["summary"]), *estimates.verdicts(data))),
        absorption.section(data["absorption"], data["hidden_errors"], image),
        estimates.two_numbers(data, image("table")),
        reconstruction.aggregates(data["aggregates"]),
        estimates.floors(data["floors"], image("floors")),
        which_floor.section(data["which_floor"], image),
        Section("Measured against predicted", image("measured_predicted")),
        estimates.breakdown(data["breakdown"], image("breakdown")),
        hypotheses.section(data, image),
        robustness.section(data),
        estimates.structural(data["structural"], image("context")),
        estimates.variants(data["variants"]),
        reconstruction.imputed_grids(data["reconstruction"]),
        basis.cells(data),
        basis.diagnostics(data["diagnostics"]),
        basis.sensitivity(data),
        Section("Assumptions", items(data["assumptions"])),
        Section("Warnings", items(data["warnings"])),
        Section("Further figures", tuple(i for key in figures if key not in FIGURES for i in image(key))),
        basis.provenance(data),
    )
    return tuple(s for s in found if s)
