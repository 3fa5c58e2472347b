"""A report as one HTML file, as Markdown and as a summary for a terminal.

All three only read the dict that report.json holds (reporting/schemas/report.schema.json); reporting/document.py says what
stands where.
"""

import base64
import io
import re
import textwrap
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rooffloor.validate.common.files import json_ready
from rooffloor.validate.presentation.blocks import Block, Cell, Fold, Image, Items, Section, Table, Text, Verdict
from rooffloor.validate.presentation.numbers import Record
from rooffloor.validate.presentation.text_table import text_table
from rooffloor.validate.reporting import document
from rooffloor.validate.reporting.sections import hypotheses

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TEMPLATES = Path(__file__).parent / "templates"
DPI = 160
"""Of the figures: 1600 px for 10 inches."""

TONES = {
    "supported": "good",
    "refuted": "bad",
    "negligible": "good",
    "transfers": "good",
    "recalibrate the floor": "bad",
    "shape mismatch": "bad",
    "floor or weight bandwidth, indistinguishable": "bad",
}
"""Colour of a verdict; every other one is open."""

# ---- HTML -------------------------------------------------------------------------------------------------------


def html(data: Record, figures: "Mapping[str, Figure]") -> str:
    """The report as one self-contained HTML page, figures inlined.

    Parameters
    ----------
    data : mapping
        The content of report.json.
    figures : mapping of str to matplotlib Figure
        By key (`document.FIGURES`); those that are missing are left out.
    """
    data = _plain(data)
    status, sentences = document.banner(data)
    study = data["study"]
    return page(
        title=study["name"],
        subtitle=f"rooffloor report: does a latency model calibrated on {study['anchor']} transfer?",
        status=status,
        sentences=sentences,
        sections=document.sections(data, list(figures)),
        figures=figures,
        footer=f"Data: {status}. Study hash {study['hash']}. All numbers with all intervals: report.json.",
    )


def page(
    *,
    title: str,
    subtitle: str,
    status: str,
    sentences: Sequence[str],
    sections: Sequence[Section],
    figures: "Mapping[str, Figure]",
    footer: str,
) -> str:
    """A self-contained HTML page of sections under a banner that names the data; every text is escaped."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("report.html.j2").render(
        title=title,
        subtitle=subtitle,
        status=status,
        sentences=sentences,
        measured=status == "measured",
        sections=sections,
        images={key: base64.b64encode(image(figure)).decode() for key, figure in figures.items()},
        tones=TONES,
        footer=footer,
    )


def _plain(data: object) -> Any:
    """The content as report.json holds it: NaN is None, arrays and tuples are lists."""
    return json_ready(data)


def image(figure: "Figure", format: str = "png") -> bytes:
    """A figure as the bytes of a file, the same bytes for the same figure.

    Parameters
    ----------
    figure : matplotlib Figure
    format : str
        "png" or "svg".
    """
    import matplotlib as mpl

    metadata = {"svg": {"Date": None}, "png": {"Software": None}}[format]
    stream = io.BytesIO()
    with mpl.rc_context({"svg.hashsalt": "rooffloor"}):
        figure.savefig(stream, format=format, dpi=DPI, metadata=metadata)
    return stream.getvalue()


# ---- Markdown ---------------------------------------------------------------------------------------------------


def markdown(data: Record, figures: Collection[str], folder: str = "figures") -> str:
    """The report as GitHub-flavoured Markdown.

    Parameters
    ----------
    data : mapping
        The content of report.json.
    figures : collection of str
        Keys of the figures (a mapping by key will do); each is linked as `folder`/key.png.
    folder : str
        Where the figures lie, relative to the Markdown file.
    """
    data = _plain(data)
    status, sentences = document.banner(data)
    parts = [
        f"# rooffloor report: {_escaped(data['study']['name'])}",
        "\n".join(["> **Data: " + _escaped(status) + "**", *(f">\n> {_escaped(s)}" for s in sentences)]),
    ]
    for section in document.sections(data, list(figures)):
        parts += _section(section, 2, folder)
    return "\n\n".join(parts) + "\n"


def _section(section: Section, level: int, folder: str) -> list[str]:
    parts = [f"{'#' * level} {_escaped(section.title)}", *(_block(b, folder) for b in section.blocks)]
    return parts + [part for below in section.sections for part in _section(below, level + 1, folder)]


def _block(block: Block, folder: str) -> str:
    match block:
        case Text(text):
            return _escaped(text)
        case Items(items):
            return "\n".join(f"- {_escaped(item)}" for item in items)
        case Verdict(verdict, text):
            return f"**{_escaped(verdict)}** ({_escaped(text)})"
        case Image(key, alt, caption):
            return f"![{_escaped(alt)}]({folder}/{key}.png)\n\n*{_escaped(caption)}*"
        case Fold(title, blocks):
            inner = "\n\n".join(_block(b, folder) for b in blocks)
            return f"<details><summary>{_escaped(title)}</summary>\n\n{inner}\n\n</details>"
        case Table():
            return _table(block)


def _table(table: Table) -> str:
    heads = [_escaped(c.title) + (f"<br>({_escaped(c.note)})" if c.note else "") for c in table.columns]
    rule = ["---:" if c.numeric else "---" for c in table.columns]
    rows = [heads, rule, *([_cell(c) for c in row] for row in table.rows)]
    return f"*{_escaped(table.caption)}*\n\n" + "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _cell(cell: Cell) -> str:
    first, *rest = (_escaped(line) for line in cell.lines)
    return "<br>".join([f"**{first}**" if cell.verdict else first, *rest])


def _escaped(text: str) -> str:
    """Text that Markdown shows as it is, on one line: no tag, no cell border, no emphasis, no link."""
    text = " ".join(text.split()).replace("\\", "\\\\")
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    text = re.sub(r"([|*`~$])", r"\\\1", text).replace("](", "]\\(").replace("![", "\\!\\[")
    text = re.sub(r"(?<![0-9A-Za-z])_|_(?![0-9A-Za-z])", r"\\_", text)
    return re.sub(r"^(#+|[-+]+|=+|\d+[.)])(?=\s|$)", r"\\\1", text)


# ---- terminal ---------------------------------------------------------------------------------------------------

MOST_LINES, WIDTH = 40, 110


def text(data: Record) -> str:
    """The report in at most 40 lines for a terminal: label, verdicts, the two-number table."""
    data = _plain(data)
    status, sentences = document.banner(data)
    found = hypotheses.verdicts(data["hypotheses"])
    head = [f"{data['study']['name']}: data {status}"]
    head += _few(textwrap.wrap(" ".join(sentences), WIDTH), 5)
    verdicts = text_table([(name, "  ".join(cell.lines)) for name, cell in found.items()], indent=2)
    head += ["", f"Verdicts (margins {data['study']['margins']['label']})", *_few(verdicts, 12)]
    if data["table"]:
        heading, *table = table_text(data["table"]).splitlines()
        head += ["", heading, *_few(table, MOST_LINES - len(head) - 2)]
    return "\n".join(head) + "\n"


def table_text(rows: Sequence[Record]) -> str:
    """The two-number table as text: published figures beside expected MAPEs with 90 % intervals.

    Parameters
    ----------
    rows : list of mappings
        `table` of report.json.
    """
    heads = ("model", "GPU", "published raw / residual", "raw", "residual")
    cells = [heads, *(document.table_line(r) for r in _plain(rows))]
    if not any(line[2] for line in cells[1:]):
        cells = [(*line[:2], *line[3:]) for line in cells]
    lines = ["Expected MAPE of the grid, percent, with 90 % intervals", *text_table(cells, indent=2)]
    return "\n".join(lines) + "\n"


def _few(lines: list[str], most: int) -> list[str]:
    """At most so many lines; the last says what is left out."""
    if len(lines) <= most:
        return lines
    return [*lines[: most - 1], f"  … {len(lines) - most + 1} more lines in report.md"]
