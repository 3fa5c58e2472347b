"""The content of report.json (schemas/report.schema.json) as an HTML page, as Markdown and as text for a terminal."""

import textwrap
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from rooffloor.validate.common.files import json_ready
from rooffloor.validate.presentation import writers
from rooffloor.validate.presentation.numbers import MISSING, Record, full, published
from rooffloor.validate.presentation.text_table import text_table
from rooffloor.validate.reporting.document import sections
from rooffloor.validate.reporting.sections import hypotheses

MOST_LINES, WIDTH = 40, 110


def html(data: Record, images: Mapping[str, bytes]) -> str:
    """The report as one self-contained HTML page, with the PNG files there are, by key (`figures.FIGURES`)."""
    data = _plain(data)
    study, label = data["study"], data["status"]["label"]
    return writers.page(
        title=study["name"],
        subtitle=f"rooffloor report: does a latency model calibrated on {study['anchor']} transfer?",
        status=label,
        sentences=data["status"]["sentences"],
        sections=sections(data, list(images)),
        images=images,
        footer=f"Data: {label}. Study hash {study['hash']}. All numbers with all intervals: report.json.",
    )


def markdown(data: Record, figures: Collection[str]) -> str:
    """The report as GitHub-flavoured Markdown; the figures of these keys are linked as figures/key.png."""
    data = _plain(data)
    title, status = f"rooffloor report: {data['study']['name']}", data["status"]
    return writers.markdown(title, status["label"], status["sentences"], sections(data, list(figures)))


def text(data: Record) -> str:
    """The report in at most 40 lines for a terminal: label, verdicts, the two-number table."""
    data = _plain(data)
    status = data["status"]
    found = hypotheses.verdicts(data["hypotheses"])
    verdicts = text_table([(name, "  ".join(cell.lines)) for name, cell in found.items()], indent=2)
    lines = [f"{data['study']['name']}: data {status['label']}"]
    lines += _few(textwrap.wrap(" ".join(status["sentences"]), WIDTH), 5)
    lines += ["", f"Verdicts (margins {data['study']['margins']['label']})", *_few(verdicts, 12)]
    if data["table"]:
        heading, *table = table_text(data["table"]).splitlines()
        lines += ["", heading, *_few(table, MOST_LINES - len(lines) - 2)]
    return "\n".join(lines) + "\n"


def table_text(rows: Sequence[Record]) -> str:
    """The two-number table, `table` of report.json, as text: published figures beside expected MAPEs."""
    cells = [("model", "GPU", "published raw / residual", "raw", "residual"), *map(_line, _plain(rows))]
    if not any(line[2] for line in cells[1:]):
        cells = [(*line[:2], *line[3:]) for line in cells]
    lines = ["Expected MAPE of the grid, percent, with 90 % intervals", *text_table(cells, indent=2)]
    return "\n".join(lines) + "\n"


def _line(row: Record) -> tuple[str, ...]:
    """Model, GPU, published, expected raw and residual MAPE of one row."""
    shown = row["published"] or {}
    pair = f"{published(shown.get('raw'), 'percent')} / {published(shown.get('residual'), 'percent')}"
    residual = full(row["residual"]["expected"], unit=False) if row["residual"] else MISSING
    return row["model"], row["gpu"], pair if shown else "", full(row["raw"]["expected"], unit=False), residual


def _plain(data: object) -> Any:
    """The content as report.json holds it: NaN is None, arrays and tuples are lists."""
    return json_ready(data)


def _few(lines: list[str], most: int) -> list[str]:
    """At most so many lines; the last says what is left out."""
    if len(lines) <= most:
        return lines
    return [*lines[: most - 1], f"  … {len(lines) - most + 1} more lines in report.md"]
