"""Sections as one HTML file and as Markdown, and figures as files."""

import base64
import io
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rooffloor.validate.presentation.blocks import Block, Cell, Fold, Image, Items, Section, Table, Text, Verdict

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TEMPLATES = Path(__file__).parent / "templates"
DPI = 160
"""Of the figures: 1600 px for 10 inches."""

TONES = {
    "supported": "good",
    "refuted": "bad",
    "negligible": "good",
    "holds": "good",
    "does not hold": "bad",
    "nothing beyond the margins": "good",
    "recalibrate the floor": "bad",
    "shape mismatch": "bad",
    "floor or weight bandwidth, indistinguishable": "bad",
}
"""Colour of a verdict; every other one is open."""

# ---- HTML -------------------------------------------------------------------------------------------------------


def page(
    *, status: str, sentences: Sequence[str], sections: Sequence[Section], images: Mapping[str, bytes], **texts: str
) -> str:
    """A self-contained HTML page of sections under a banner that names the data; every text is escaped.

    `images` are those of the figures, as PNG files; `texts` are `title`, `subtitle` and `footer`.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    loader = FileSystemLoader(TEMPLATES)
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.get_template("report.html.j2").render(
        **texts,
        status=status,
        sentences=sentences,
        measured=status == "measured",
        sections=sections,
        images={key: base64.b64encode(png).decode() for key, png in images.items()},
        tones=TONES,
    )


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


def markdown(title: str, status: str, sentences: Sequence[str], sections: Sequence[Section]) -> str:
    """Sections under a banner that names the data as GitHub-flavoured Markdown; each figure is figures/key.png."""
    parts = [
        f"# {_escaped(title)}",
        "\n".join(["> **Data: " + _escaped(status) + "**", *(f">\n> {_escaped(s)}" for s in sentences)]),
    ]
    for section in sections:
        parts += _section(section, 2)
    return "\n\n".join(parts) + "\n"


def _section(section: Section, level: int) -> list[str]:
    parts = [f"{'#' * level} {_escaped(section.title)}", *(_block(b) for b in section.blocks)]
    return parts + [part for below in section.sections for part in _section(below, level + 1)]


def _block(block: Block) -> str:
    match block:
        case Text(text):
            return _escaped(text)
        case Items(items):
            return "\n".join(f"- {_escaped(item)}" for item in items)
        case Verdict(verdict, text):
            return f"**{_escaped(verdict)}** ({_escaped(text)})"
        case Image(key, alt, caption):
            return f"![{_escaped(alt)}](figures/{key}.png)\n\n*{_escaped(caption)}*"
        case Fold(title, blocks):
            inner = "\n\n".join(_block(b) for b in blocks)
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
