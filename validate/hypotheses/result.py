"""What a test of a hypothesis finds: a verdict, the numbers behind it, and both in words.

H1: the GPU branch of a same-class dense family transfers under the anchor's floor. H2: so does that of a mixture of
experts, in three parts: level (a), dispatch term (b), shape (c). H3: where a smaller dense model diverges, its floor
is the reason and not its shape.
"""

import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rooffloor.validate.common.files import write_text
from rooffloor.validate.measurements.csvfile import table_text
from rooffloor.validate.study.margins import Margins

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

SUPPORTED, REFUTED, UNDECIDED = "supported", "refuted", "undecided"
NEGLIGIBLE, UNTESTABLE, NOT_TESTED = "negligible", "untestable here", "not tested"

STATEMENTS = {
    "H1": "The GPU-compute branch transfers to a same-class dense family under the anchor's floor.",
    "H2": "The GPU-compute branch with its dispatch term transfers to a mixture of experts.",
    "H3": "Where a smaller dense model diverges, the reason is its floor, not the shape of its GPU-compute branch.",
}


@dataclass(frozen=True, eq=False)
class Result:
    """One tested hypothesis.

    Attributes
    ----------
    name : "H1", "H2" or "H3"
    verdict : str
        "supported", "refuted", "undecided", "negligible" (a term), "untestable here" or "not tested".
    data : dict
        As in report.json: every number is an estimate that names its estimand.
    label : str
        Where the cells come from.
    margins : Margins
    """

    name: str
    verdict: str
    data: dict[str, Any]
    label: str
    margins: Margins

    def __repr__(self) -> str:
        return f"{self.name}: {self.verdict}"

    @property
    def statements(self) -> dict[str, str]:
        """Verdict by statement: H2 makes one of each of its parts."""
        if self.name != "H2":
            return {self.name: self.verdict}
        parts = self.data.get("parts")
        return {f"H2{part}": parts[part]["verdict"] if parts else NOT_TESTED for part in "abc"}

    @property
    def sentences(self) -> list[str]:
        """What was found, in words."""
        return list(self.data["sentences"])

    @property
    def text(self) -> str:
        """The verdict and its sentences, as text for a terminal."""
        lines = textwrap.TextWrapper(110, initial_indent="- ", subsequent_indent="  ", break_on_hyphens=False)
        about = f"Data: {self.label}. Margins: {self.margins.label}."
        told = [*self.sentences, *self.data.get("error_rates", ()), about]
        return "\n".join([f"{self.name} {self.verdict}: {STATEMENTS[self.name]}", *map(lines.fill, told)])

    @property
    def table(self) -> "pd.DataFrame":
        """One row per model and GPU (H2: and part): plain numbers; `NAME_low`, `NAME_high` are 90 % intervals."""
        import pandas as pd

        return pd.DataFrame([_flat(row) for row in self._rows()])

    def _rows(self) -> Iterator[dict[str, Any]]:
        for family in self.data.get("families", ()):
            yield from ({"model": family["family"], "verdict": family["verdict"]} | row for row in family["per_sku"])
        for part, found in self.data.get("parts", {}).items():
            yield from ({"part": part} | row for row in found["per_sku"])
        yield from self.data.get("per_sku", ())

    def to_frame(self) -> "pd.DataFrame":
        """`table`."""
        return self.table

    def to_csv(self, path: str | Path | None = None) -> str:
        """`table` as a CSV file's text; written to `path` where one is given."""
        rows = [_flat(row) for row in self._rows()]
        names = list(dict.fromkeys(name for row in rows for name in row))
        text = table_text(names, ([row.get(name) for name in names] for row in rows))
        if path is not None:
            write_text(Path(path), text)
        return text

    def plot(self, ax: "Axes | None" = None) -> "Axes":
        """Expected residual MAPE of every model and GPU under the anchor's floor: means with 50 and 90 % intervals.

        The dotted line is the absolute margin.
        """
        import matplotlib.pyplot as plt

        if ax is None:
            _, ax = plt.subplots(layout="constrained")
        rows = [row for row in self._rows() if "level" in row]
        for place, row in enumerate(rows):
            for level, width in (("90", 1.2), ("50", 3.5)):
                ax.plot(row["level"]["intervals"][level], [place, place], color="C0", lw=width)
            ax.plot(row["level"]["value"], place, "o", color="C0")
        ax.axvline(self.margins.h1_absolute, color="0.3", ls=":")
        ax.set_yticks(range(len(rows)), [f"{row['model']}, {row['gpu']}" for row in rows])
        ax.set_xlabel("expected MAPE under the anchor's floor, percent")
        ax.set_title(f"{self.name}: {self.verdict} ({self.label})", loc="left")
        return ax


def _flat(row: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, dict) and "estimand" in value:
            found[name] = value["value"]
            if "90" in value["intervals"]:
                found[f"{name}_low"], found[f"{name}_high"] = value["intervals"]["90"]
        elif not isinstance(value, dict | list):
            found[name] = value
    return found


def not_tested(name: str, why: str, label: str, margins: Margins) -> Result:
    """The result where the data have nothing to test."""
    data = {"verdict": NOT_TESTED, "statement": STATEMENTS[name], "sentences": [why]}
    return Result(name, NOT_TESTED, data, label, margins)


def verdict_of(probability: float, margins: Margins) -> str:
    """Supported at `margins.probability` or more, refuted at its complement or less, else undecided."""
    if probability >= margins.probability:
        return SUPPORTED
    return REFUTED if probability <= 1.0 - margins.probability else UNDECIDED


def weakest(verdicts: "set[str]") -> str:
    """Refuted if one verdict is, else undecided if one is, else supported."""
    return REFUTED if REFUTED in verdicts else UNDECIDED if UNDECIDED in verdicts else SUPPORTED


def say(probability: float) -> str:
    """A probability in words that claim no more digits than it has."""
    if probability > 0.99:
        return "above 0.99"
    return "below 0.01" if probability < 0.01 else f"{probability:.2f}"
