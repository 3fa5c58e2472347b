"""What `rooffloor check` says as a page with tables and figures."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rooffloor.validate.common import files
from rooffloor.validate.estimates.estimate import Estimate
from rooffloor.validate.hypotheses.result import say
from rooffloor.validate.measurements.csvfile import table_text
from rooffloor.validate.presentation import writers
from rooffloor.validate.presentation.blocks import (
    Cell,
    Field,
    Image,
    Section,
    Text,
    Verdict,
    decimals,
    items,
    key_values,
    table,
)
from rooffloor.validate.presentation.numbers import Record
from rooffloor.validate.transfer.explanations import MECHANISMS
from rooffloor.validate.transfer.words import (
    CHANCES,
    HEADS,
    NUMBERS,
    SHOWN,
    basis,
    cause_of,
    closing,
    first,
    label,
    listed,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from rooffloor.validate.transfer.check import Check


def sections(data: Record) -> tuple[Section, ...]:
    """Sections of the page; figures are `verdict` and `cells`."""
    found = (
        Section(
            "Verdict",
            (
                Verdict(data["verdict"], _probability(data)),
                *(Text(told) for told in first(data)),
                *_whether(data),
            ),
        ),
        Section(
            "Measured against predicted",
            (
                Image("cells", "Error of the predicted step against T_gpu, by GPU", CELLS_CAPTION),
                *_cells(data["cells"]),
            ),
        ),
        Section(
            "Why",
            (
                *items([*data["sentences"], *closing(data)]),
                Image("verdict", f"Posterior probabilities of the causes for {data['model']}", VERDICT_CAPTION),
                *_by_gpu(data),
                *_explanations(data),
            ),
        ),
        Section("Outside the calibration", items(data["outside"])),
        Section("What it rests on", (*items(basis(data)), *_calibration(data), *_excluded(data))),
    )
    return tuple(part for part in found if part)


def _probability(data: Record) -> str:
    """How likely it is that the calibration holds."""
    return f"P(MAPE within {data['overall']['use']['tolerance']:g} %) {say(data['probability'])}"


def _whether(data: Record) -> tuple[Any, ...]:
    """Verdict on use by GPU."""
    fields = (
        Field("GPU", "gpu"),
        Field("verdict", lambda row: Cell((row["verdict"],), verdict=True)),
        Field("P(holds)", lambda row: say(row["probability"]), numeric=True),
        Field("measured MAPE (%)", lambda row: f"{row['use']['measured_mape']:.1f}", numeric=True),
        Field("MAPE of further cells (%)", lambda row: str(Estimate(**row["use"]["error"])), numeric=True),
        Field("cause", cause_of),
    )
    return table("Does the calibration hold for use? 90 % credible intervals", listed(data), fields, fold=False)


VERDICT_CAPTION = (
    "Posterior probability of each cause, on each GPU from its cells alone and on all together. Dashed: what a "
    "cause needs. 'Floor or weight bandwidth' contains 'recalibrate the floor' and overlaps 'shape mismatch'."
)
CELLS_CAPTION = (
    "Predicted over measured step, minus 1. Filled: as the calibration predicts; open: with the family's own floor. "
    "Bars: 90 % credible intervals of the prediction. Grey: the absolute margin. A floor that differs bends the filled "
    "points towards zero as steps get longer; an error that varies over the cells leaves the open points tilted. An "
    "error that does not vary, as of the weights at small batches, looks like a floor."
)


def _chance(verdict: str) -> Callable[[Record], str]:
    return lambda row: say(row["probabilities"][verdict])


def _by_gpu(data: Record) -> tuple[Any, ...]:
    """What each statement's probability is, and the numbers behind, each with its words."""
    chances = (
        Field("GPU", "gpu"),
        Field("cause", lambda row: Cell((row["cause"],), verdict=True)),
        *(Field(f"P({HEADS[v]})", _chance(v), numeric=True) for v in SHOWN),
    )
    numbers = (
        Field("GPU", "gpu"),
        Field("slope", "slope", "step on T_gpu, free floor"),
        Field("floor - anchor's", "floor_above_anchor", "ms"),
        Field("level", "level", "expected MAPE under the anchor's floor, %"),
    )
    return (
        *table("Probability of each statement, by GPU", listed(data), chances, fold=False),
        Text(CHANCES),
        *table("Numbers behind, by GPU", listed(data), numbers, fold=False),
        Text(NUMBERS),
    )


def _cells(rows: Sequence[Record]) -> tuple[Any, ...]:
    fields = (
        Field("GPU", "gpu"),
        Field("batch", lambda r: f"{r['batch']:g}", numeric=True),
        Field("context", lambda r: f"{r['context']:g}", numeric=True),
        decimals("measured (ms)", "step_ms"),
        Field("predicted (ms)", "predicted", "by the calibration"),
        Field("with its own floor (ms)", "own_floor", ""),
        Field("error (%)", lambda r: f"{r['error_percent']:+.0f}", "of the prediction", numeric=True),
        Field("outside", lambda r: "; ".join(r["outside"])),
    )
    return table("Every cell; 90 % credible intervals of the mean step", rows, fields)


def _explanations(data: Record) -> tuple[Any, ...]:
    rows = data["overall"]["explanations"]
    fields = (
        Field("floor", "floor"),
        Field("error of T_gpu", lambda r: MECHANISMS[r["error"]] if r["error"] else "none"),
        Field("posterior weight", lambda r: say(r["weight"]), numeric=True),
        Field("size", _size, "± sd", numeric=True),
        Field("P(beyond the margin)", lambda r: say(r["beyond"]) if r["error"] else "", numeric=True),
    )
    intro = Text(
        "Every way of explaining what the steps are off by: the anchor's floor or one of its own, "
        "with or without an error of one part of T_gpu. What looks alike in these cells stands here once. "
        "Size: how much longer the memory's part of T_gpu takes, or the weights'; of the other errors, what relative "
        "error of T_gpu would change the steps within a GPU as much."
    )
    return intro, *table("Explanations", rows, fields, heads=2)


def _size(row: Record) -> str:
    return f"{100 * row['size']:+.0f} ± {100 * row['size_sd']:.0f} %" if row["error"] else ""


def _calibration(data: Record) -> tuple[Any, ...]:
    c = data["calibration"]
    d = c["domain"]
    facts = {
        "calibration": c["source"],
        "its cells": c["label"],
        "anchor": c["anchor"],
        "GPUs": ", ".join(c["gpus"]),
        "constants": "as their priors allow" if c["usable"] else "far from their priors",
        "stack, mode": ", ".join(filter(None, (c["stack"], c["mode"]))) or "not stated",
        "floors": c["combine"],
        "experts streamed": c["experts"],
        "batch": "{:g} to {:g}".format(*d["batch"]),
        "context (tokens)": "{:g} to {:g}".format(*d["context"]),
        "parameters (billion)": "{:.2f} to {:.2f}".format(*(n / 1e9 for n in d["parameters"])),
        "parameters of this model (billion)": f"{data['shapes']['parameters'] / 1e9:.2f}",
    }
    return key_values(facts, "The calibration")


def _excluded(data: Record) -> tuple[Any, ...]:
    fields = (Field("row", "row", numeric=True), Field("reason", "reason"), Field("detail", "detail"))
    return table("Rows excluded", data["measurements"]["excluded"], fields)


def figures(check: "Check") -> "Mapping[str, Figure]":
    """Figures of the page by key."""
    from rooffloor.validate.presentation.figures.check import checked

    data = check.data
    drawn = check.plot().figure
    return {"verdict": drawn, "cells": checked(data["cells"], label(data), data["margins"])[0].figure}


def save(check: "Check", folder: Path) -> Path:
    """Write check.html, check.json, cells.csv and the figures into a folder; the path of the page."""
    data, drawn, cells = check.data, figures(check), check.cells_frame()
    with files.folder(folder) as temporary:
        files.write_json(temporary / "check.json", data)
        files.write_text(temporary / "cells.csv", table_text(cells.columns, cells.itertuples(index=False)))
        images = {key: writers.image(figure) for key, figure in drawn.items()}
        page = writers.page(
            title=f"{data['model']}: {data['verdict']}",
            subtitle=f"rooffloor check: does the calibration of {data['calibration']['anchor']} hold for this model?",
            status=label(data),
            sentences=[f"Outside what was calibrated: {reason}." for reason in data["outside"]],
            sections=sections(data),
            images=images,
            footer=f"Data: {label(data)}. All numbers with all intervals: check.json.",
        )
        files.write_text(temporary / "check.html", page)
        for key, png in images.items():
            files.write_bytes(temporary / "figures" / f"{key}.png", png)
    return folder / "check.html"
