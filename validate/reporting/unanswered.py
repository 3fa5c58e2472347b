"""What can be said of a study whose fits have no answer: measured numbers, least squares, frequentist tests.

The content of report.json is then another one (schemas/unanswered.schema.json): no posterior, no verdict, no interval.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rooffloor.validate.common.errors import GateError
from rooffloor.validate.estimates.cell_draws import Draws
from rooffloor.validate.fitting.least_squares import LeastSquares, least_squares
from rooffloor.validate.hypotheses.frequentist_h1 import school
from rooffloor.validate.presentation import writers
from rooffloor.validate.presentation.blocks import PAIR, Block, Field, Section, Text, decimals, items, records, table
from rooffloor.validate.presentation.numbers import Record, decimal
from rooffloor.validate.reporting.record import SCHEMA_VERSION, provenance_facts, study_facts

if TYPE_CHECKING:
    from rooffloor.validate.study.study import Study

FAILED = "failed gate"
"""The state of such a report."""
ROOF = {
    "study": "plain roof",
    "query heads": "query-head limb",
    "per gpu": "one set of constants, though per GPU asked",
}


def assemble(study: "Study", failure: GateError, *, seed: int) -> dict[str, Any]:
    """All that report.json holds where no treatment of measured cells passed its gate."""
    measurements = study.measurements()
    points = least_squares(study, measurements)
    draws = points.draws(study, measurements.label)
    given = measurements.provenance
    return {
        "schema_version": SCHEMA_VERSION,
        "status": {
            "state": FAILED,
            "label": draws.label,
            "sentences": [
                f"No posterior has an answer, and there is no verdict: {failure}.",
                "What follows needs none: the cells as measured, least squares, and tests on them. None of its numbers "
                "has an interval, and what the constants' uncertainty does to them is not told.",
            ],
        },
        "study": study_facts(study),
        "measured": [_measured(draws, *pair) for pair in draws.pairs()],
        "least_squares": {
            "roof": ROOF[study.efficiency.preset],
            "constants": points.constants,
            "constants_from": points.of,
            "floors": [_floor(draws, *pair) for pair in draws.pairs()],
        },
        "table": _two_numbers(draws),
        "frequentist": [{"family": m} | school(draws, m, gpus, study.margins) for m, gpus in _families(draws)],
        "cells": _cells(points),
        "excluded": len(measurements.excluded),
        "flagged": [f"{m} on {g}" for m, g in measurements.flagged_grids],
        "warnings": [str(w) for w in given.get("warnings", ())],
        "diagnostics": {"fits": [dict(row) for row in failure.fits]},
        "provenance": provenance_facts(study, given, seed),
    }


def _measured(draws: Draws, model: str, gpu: str, at: NDArray[np.bool_]) -> dict[str, Any]:
    step = draws.step_ms[0, at]
    return {
        "model": model,
        "gpu": gpu,
        "cells": int(at.sum()),
        "batch": [float(draws.batch[0, at].min()), float(draws.batch[0, at].max())],
        "context": [float(draws.context[0, at].min()), float(draws.context[0, at].max())],
        "least_ms": float(step.min()),
        "median_ms": float(np.median(step)),
        "largest_ms": float(step.max()),
    }


def _floor(draws: Draws, model: str, gpu: str, at: NDArray[np.bool_]) -> dict[str, Any]:
    off = (draws.mean_ms / draws.step_ms - 1.0)[0, at]
    own, anchor = float(draws.floor_ms[0, at][0]), float(draws.anchor_floor_ms[0, at][0])
    return {
        "model": model,
        "gpu": gpu,
        "cells": int(at.sum()),
        "floor_ms": own,
        "above_anchor_ms": own - anchor if np.isfinite(anchor) else None,
        "leftover_percent": 100.0 * float(np.sqrt((off**2).mean())),
    }


def _two_numbers(draws: Draws) -> list[dict[str, Any]]:
    """Raw and residual MAPE and signed mean relative error of the cells as measured, percent; pooled over GPUs."""
    rows: list[dict[str, Any]] = []
    for model, gpu, at in draws.pairs():
        raw = 100.0 * (draws.gpu_ms / draws.step_ms - 1.0)[0, at]
        rest = 100.0 * ((draws.gpu_ms + draws.anchor_floor_ms) / draws.step_ms - 1.0)[0, at]
        numbers = {"raw": np.abs(raw), "raw_signed": raw, "residual": np.abs(rest), "residual_signed": rest}
        found = {name: _number(values.mean()) for name, values in numbers.items()}
        rows.append({"model": model, "gpu": gpu, "cells": int(at.sum()), **found})
    for model in draws.cells.models:
        own = [row for row in rows if row["model"] == model]
        if len(own) < 2:
            continue
        means = {
            name: None if any(row[name] is None for row in own) else float(np.mean([row[name] for row in own]))
            for name in ("raw", "raw_signed", "residual", "residual_signed")
        }
        rows.append({"model": model, "gpu": "pooled", "cells": sum(row["cells"] for row in own), **means})
    return rows


def _number(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _families(draws: Draws) -> list[tuple[str, list[str]]]:
    """Models beside the anchor, with the GPUs on which both were measured."""
    found = []
    for model in draws.cells.models:
        gpus = [gpu for one, gpu, at in draws.pairs() if one == model and draws.has_anchor(at)]
        if model != draws.anchor and gpus:
            found.append((model, gpus))
    return found


def _cells(points: LeastSquares) -> list[dict[str, Any]]:
    cells = points.cells
    assert cells.step_ms is not None
    columns = {
        "model": cells.model.tolist(),
        "gpu": cells.gpu.tolist(),
        "batch": cells.batch.tolist(),
        "context": cells.context.tolist(),
        "step_ms": cells.step_ms.tolist(),
        "gpu_ms": points.gpu_ms.tolist(),
    }
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


# ---- pages ------------------------------------------------------------------------------------------------------


def sections(data: Record) -> tuple[Section, ...]:
    """Sections of the page, from the content of report.json."""
    fits, squares = data["diagnostics"]["fits"], data["least_squares"]
    digits = {name: 0 if name == "l_half" else 3 for name in squares["constants"]}
    said = ", ".join(f"{name} = {decimal(value, digits[name])}" for name, value in squares["constants"].items())
    found = (
        Section("What failed", records("Fits", fits, heads=1)),
        Section("Measured numbers", _measured_table(data["measured"])),
        Section(
            "The two numbers of the cells as measured",
            (
                Text(
                    "T_gpu and the anchor's floor are those of least squares; the anchor's own residual MAPE is of the "
                    "cells that its floor is from. Pooled is the plain mean over GPUs; signed means tell "
                    "over-prediction (+) from under-prediction (-)."
                ),
                *_mape_table(data["table"]),
            ),
        ),
        Section(
            "Floors by least squares",
            (
                Text(
                    f"Constants from {squares['constants_from']} ({squares['roof']}): {said}. Their priors count as "
                    "further observations. A floor is the mean of y - T_gpu over the cells of a GPU and model, weighed "
                    "by 1 / y²."
                ),
                *_floor_table(squares["floors"]),
            ),
        ),
        Section("Frequentist tests", tuple(b for one in data["frequentist"] for b in _tests(one, data["study"]))),
        Section("Warnings", items(data["warnings"])),
    )
    return tuple(section for section in found if section)


def _measured_table(rows: Sequence[Record]) -> tuple[Block, ...]:
    def between(key: str) -> Field:
        return Field(key, lambda row: " to ".join(f"{end:g}" for end in dict.fromkeys(row[key])), numeric=False)

    steps = [decimals(f"{name} step, ms", f"{name}_ms", 2) for name in ("least", "median", "largest")]
    fields = (*PAIR, Field("cells", "cells"), between("batch"), between("context"), *steps)
    return table("Cells as measured", rows, fields, heads=2)


def _mape_table(rows: Sequence[Record]) -> tuple[Block, ...]:
    fields = (
        *PAIR,
        Field("cells", "cells"),
        decimals("raw MAPE", "raw", 1),
        decimals("signed mean, raw", "raw_signed", 1, signed=True),
        decimals("residual MAPE", "residual", 1),
        decimals("signed mean, residual", "residual_signed", 1, signed=True),
    )
    return table("Raw and residual MAPE, percent", rows, fields, heads=2)


def _floor_table(rows: Sequence[Record]) -> tuple[Block, ...]:
    fields = (
        *PAIR,
        Field("cells", "cells"),
        decimals("floor, ms", "floor_ms", 2, signed=True),
        decimals("above the anchor's, ms", "above_anchor_ms", 2, signed=True),
        decimals("left over (root mean square), percent", "leftover_percent", 1),
    )
    return table("Floors", rows, fields, heads=2)


def _tests(found: Record, study: Record) -> tuple[Block, ...]:
    margin = f"the margin of {found['margin']:g} points ({study['margins']['label']})"
    text = (
        f"{found['family']} against {study['anchor']} on {', '.join(found['gpus'])}: {found['quantity']}. A small "
        f"p-value says that it lies below {margin}; of the slope, that it is not 1."
    )
    fields = (
        Field("test", "name"),
        decimals("estimate", "estimate", 2, signed=True),
        decimals("degrees of freedom", "df", 0),
        decimals("p-value", "p_value", 3, unit="probability"),
        Field("note", "note"),
    )
    return (Text(text), *table(f"Tests of {found['family']}", list(found["tests"].values()), fields, fold=False))


def html(data: Record) -> str:
    """The page as one HTML file."""
    study, status = data["study"], data["status"]
    return writers.page(
        title=study["name"],
        subtitle="rooffloor report: no fit has an answer; what can still be said",
        status=status["label"],
        sentences=status["sentences"],
        sections=sections(data),
        images={},
        footer=f"Data: {status['label']}. Study hash {study['hash']}. All numbers: report.json.",
    )


def markdown(data: Record) -> str:
    """The page as Markdown."""
    status = data["status"]
    title = f"rooffloor report: {data['study']['name']}, without an answer"
    return writers.markdown(title, status["label"], status["sentences"], sections(data))
