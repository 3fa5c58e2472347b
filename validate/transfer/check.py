"""`rooffloor check`: does the calibration hold for a model family, given its config.json and a few timings?

A saved calibration (`fitting.saved`) predicts each cell from shapes alone. Whether it holds for use `transfer.use` says
from predicted and measured steps; why it does not, `transfer.cause`, with floor and noise of the family that
`transfer.family_fit` fits beside it. This module reads what the user has, joins these, and says what they rest on:
cells outside what was calibrated, the other way of joining floors, how often such a check errs, and which further cells
would decide.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from rooffloor.models.calibration.draws import Calibration
from rooffloor.models.specs.cells import Cells
from rooffloor.models.specs.gpus import GpuSpec
from rooffloor.models.specs.shapes import ModelShapes
from rooffloor.validate.common.errors import InputError
from rooffloor.validate.common.files import written
from rooffloor.validate.estimates.cell_draws import IMPUTED
from rooffloor.validate.estimates.estimate import estimates
from rooffloor.validate.fitting import saved
from rooffloor.validate.fitting.calibration import calibrated
from rooffloor.validate.measurements.csvfile import table_text
from rooffloor.validate.measurements.given_specs import load_gpu, load_model
from rooffloor.validate.measurements.load import Measurements
from rooffloor.validate.measurements.one_model import OwnRows, named_in
from rooffloor.validate.study.margins import Margins
from rooffloor.validate.transfer import domain, error_rates, page, use, words
from rooffloor.validate.transfer.answer import answered
from rooffloor.validate.transfer.cause import Cause
from rooffloor.validate.transfer.conflicts import conflicts
from rooffloor.validate.transfer.family_fit import Family
from rooffloor.validate.transfer.joins import over_joins
from rooffloor.validate.transfer.plan.advice import say_deciding
from rooffloor.validate.transfer.plan.deciding import deciding, goal_of
from rooffloor.validate.transfer.plan.outlook import OVERLAP, SHAPE, Cell
from rooffloor.validate.transfer.statements import (
    CANNOT_TELL,
    CAUSES,
    DOES_NOT_HOLD,
    FLOOR_OR_WEIGHTS,
    HOLDS,
    INDISTINGUISHABLE,
    JOINS,
    MISMATCH,
    NOTHING,
    RECALIBRATE,
    STATED,
    UNDECIDED,
    VERDICTS,
    WITHIN_OR_NOT,
)
from rooffloor.validate.transfer.use import TOLERANCE

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = [
    "CANNOT_TELL",
    "CAUSES",
    "DOES_NOT_HOLD",
    "HOLDS",
    "INDISTINGUISHABLE",
    "MISMATCH",
    "NOTHING",
    "RECALIBRATE",
    "STATED",
    "UNDECIDED",
    "VERDICTS",
    "Check",
    "check",
]


@dataclass(frozen=True, eq=False)
class Check:
    """What a family's measurements say of the calibration.

    Attributes
    ----------
    result : Cause
        What explains the steps, by GPU and overall.
    family : Family
        Draws of its floors and noise behind it.
    calibration : Calibration
    cells : tuple of Cell
        The measured cells, repeats averaged, as `plan` takes them.
    data : dict
        Everything, ready for JSON.
    """

    result: Cause
    family: Family
    calibration: Calibration
    cells: tuple[Cell, ...]
    data: dict[str, Any]

    def __repr__(self) -> str:
        why = f"{self.cause}, P {self.probability:.2f}"
        return f"Check({self.data['model']}: {self.verdict} ({why}), calibration {self.calibration.source})"

    @property
    def verdict(self) -> str:
        """Whether the calibration holds for use, one of `VERDICTS`; undecided where P is between .05 and .95."""
        return str(self.data["verdict"])

    @property
    def probability(self) -> float:
        """P(the family's error under the calibration is within the tolerance, on every GPU)."""
        return float(self.data["probability"])

    @property
    def cause(self) -> str:
        """Why it does not hold, one of `CAUSES`."""
        return str(self.data["cause"])

    @property
    def open_question(self) -> str:
        """What would decide, as a goal of `plan`: "floor", "shape" or "overlap".

        Where nothing is open, what the cause rests on. The shape is asked of calibrations that add floors alone, of the
        others how the floor joins.
        """
        question = _question(self.data) or {MISMATCH: "slope"}.get(self.cause, "level")
        goal = OVERLAP if question.startswith(JOINS) else goal_of(question)
        return OVERLAP if goal == SHAPE and self.calibration.combine != "added" else goal

    @property
    def text(self) -> str:
        """Whether, why, and what both rest on."""
        return words.text(self.data)

    def to_frame(self) -> pd.DataFrame:
        """One row per GPU and one for all: verdict, error, cause, slope and floor with their 90 % intervals."""
        rows = []
        for row in (*self.data["per_sku"], self.data["overall"]):
            flat = {"gpu": row["gpu"], "verdict": row["verdict"], "P(holds)": row["probability"]}
            flat |= {"measured_mape": row["use"]["measured_mape"], "tolerance": row["use"]["tolerance"]}
            low, high = row["use"]["error"]["intervals"]["90"]
            flat |= {"error": row["use"]["error"]["value"], "error_low": low, "error_high": high, "cause": row["cause"]}
            flat |= {f"P({v})": row["probabilities"][v] for v in STATED}
            for name in ("slope", "floor_above_anchor", "difference", "level"):
                estimate = row.get(name)
                low, high = estimate["intervals"]["90"] if estimate else (None, None)
                flat |= {name: estimate["value"] if estimate else None, f"{name}_low": low, f"{name}_high": high}
            rows.append(flat | {"mechanism": row["mechanism"]["name"] if row["mechanism"] else None})
        return pd.DataFrame(rows)

    def to_csv(self, path: str | Path | None = None) -> str:
        """`to_frame` as CSV text, written to `path` where one is given."""
        frame = self.to_frame()
        return written(table_text(frame.columns, frame.to_numpy()), path)

    def cells_frame(self) -> pd.DataFrame:
        """One row per cell: measured step, predicted steps with their 90 % intervals (ms), error (percent), label."""
        frame = pd.DataFrame(self.data["cells"])
        for name in ("predicted", "own_floor"):
            frame[f"{name}_ms"] = [e["value"] for e in frame[name]]
            for side, end in (("low", 0), ("high", 1)):
                frame[f"{name}_{side}_90_ms"] = [e["intervals"]["90"][end] for e in frame[name]]
        frame["outside"] = ["; ".join(reasons) for reasons in frame["outside"]]
        return frame.drop(columns=["predicted", "own_floor"]).assign(label=words.label(self.data))

    def plot(self, ax: "Axes | None" = None) -> "Axes":
        """Probabilities of the verdicts, by GPU and overall; the title names the cells and the calibration."""
        from rooffloor.validate.presentation.figures.check import verdicts

        return verdicts(self.data | {"label": words.label(self.data)}, ax=ax)

    def save(self, path: str | Path) -> Path:
        """Write check.html, check.json, cells.csv and figures into a folder; nothing is left half-written.

        Returns the path of the page.
        """
        return page.save(self, Path(path))


def judge_by(
    found: Measurements,
    calibration: str | Path | Calibration,
    anchor: str | None,
    margins: Margins | None,
    *,
    seed: int,
    quiet: bool,
) -> tuple[Calibration, Margins]:
    """The calibration and the margins of `check`'s arguments: fitted to the anchor's rows where one is named."""
    if anchor is not None:
        return calibrated(found, named_in(found, anchor), seed=seed, quiet=quiet), margins or Margins()
    given = saved.load(calibration)
    if margins is None and not isinstance(calibration, Calibration):
        margins = saved.margins(calibration)
    return given, margins or Margins()


def check(
    family: str | Path | ModelShapes,
    measurements: str | Path | pd.DataFrame | Measurements,
    *,
    gpu: str | Path | GpuSpec | None = None,
    calibration: str | Path | Calibration = domain.DEFAULT_STUDY,
    anchor: str | None = None,
    margins: Margins | None = None,
    tolerance: float = TOLERANCE,
    model: str | None = None,
    klass: str | None = None,
    format: str = "schema",
    stack: str | None = None,
    mode: str | None = None,
    seed: int = 1,
    quiet: bool = True,
) -> Check:
    """Judge whether a calibration holds for use with a model family, and why it does not.

    Parameters
    ----------
    family : name, config.json, folder, TOML file or ModelShapes
    measurements : path, DataFrame or Measurements
        Rows of batch, context, step_ms; `model` and `gpu` may be left out where `family` and `gpu` say them.
    gpu : name, TOML file or GpuSpec, optional
        Of rows without a column gpu; else only rows of this GPU count.
    calibration : name of an embedded study, a posterior.npz, a report's folder, or a Calibration
    anchor : str, optional
        Calibrate on this model's rows of the same file instead (a fit of half a minute).
    margins : Margins, optional
        Of the cause. Default: those of an embedded study, else defaults.
    tolerance : float
        MAPE, percent, up to which a calibration holds for use.
    model : str, optional
        Name of the family in the file, where it is not that of its shapes.
    klass : str, optional
        Class of the family; default by its size.
    format, stack, mode
        Of the file, as `load.load`.

    Returns
    -------
    Check

    Raises
    ------
    InputError
        One line: what of the input cannot be used.
    GateError
        The fit of `anchor` failed its gate.

    Examples
    --------
    >>> steps = {"batch": [1, 4, 16], "context": [512, 2048, 8192], "step_ms": [7.4, 7.9, 11.0]}
    >>> found = check("Qwen2.5-7B", pd.DataFrame(steps), gpu="H100")
    >>> found.verdict, found.cause, found.open_question
    ('does not hold', 'cannot tell', 'shape')
    """
    spec = None if gpu is None else load_gpu(gpu)
    if not 0.0 < tolerance < 1000.0:
        raise InputError(f"--tolerance {tolerance:g}: expected a MAPE above 0 and below 1000 percent")
    found, own = OwnRows(load_model(family), spec, model, anchor, format, stack, mode).read(measurements)
    given, margins = judge_by(found, calibration, anchor, margins, seed=seed, quiet=quiet)
    klass = None if klass is None else domain.known_class(klass, given)
    cells, repeats = found.averaged(own.name)
    specs = {name: found.gpus[name] for name in cells.gpus}
    known = replace(own, name=domain.known_model(own, given)[0])
    renamed, specs = _as_calibrated(cells, specs, given)
    rng = np.random.default_rng(seed)
    result, joins, chosen = over_joins(known, renamed, specs, given, rng, margins, klass=klass, label=found.label)
    counts = dict(zip(_keys(renamed), repeats, strict=True))
    rows = _rows(chosen, counts, given)
    fewest = min(int((renamed.gpu == g).sum()) for g in renamed.gpus)
    alarms = conflicts(given)
    uses = [use.on_gpu(chosen, row["gpu"], rng, tolerance) for row in result.per_sku]
    data = {
        **answered(result, uses, margins, usable=not alarms),
        "conflicts": [one.data for one in alarms],
        "model": own.name,
        "shapes": _shapes(own),
        "calibration": _calibration(given) | {"usable": not alarms},
        "outside": _outside(given, own, specs, chosen, rows, found),
        "joins": joins,
        "error_rates": error_rates.nearest(len(cells.gpus), fewest, kind=_kind(given)),
        "leftover_percent": _leftover(chosen),
        "cells": rows,
        "measurements": _told(found, repeats),
    }
    data["deciding"] = _deciding(data, own, specs, rows, given, seed)
    columns = (cells.gpu, cells.batch, cells.context, np.asarray(cells.step_ms))
    in_hand = tuple(Cell(*one) for one in zip(*(column.tolist() for column in columns), strict=True))
    return Check(result, chosen, given, in_hand, data)


# ---- the calibration and the family -------------------------------------------------------------------------------


def _as_calibrated(
    cells: Cells, specs: Mapping[str, GpuSpec], calibration: Calibration
) -> tuple[Cells, dict[str, GpuSpec]]:
    """GPUs under the names that the calibration has for them."""
    names = {gpu: domain.known_gpu(spec, calibration)[0] for gpu, spec in specs.items()}
    return (
        replace(cells, gpus=tuple(names[g] for g in cells.gpus)),
        {names[gpu]: replace(spec, name=names[gpu]) for gpu, spec in specs.items()},
    )


def _shapes(shapes: ModelShapes) -> dict[str, Any]:
    """What a check says of the family's shapes: the fields that are set, number formats in words."""
    found = {name: value for name, value in asdict(shapes).items() if value not in (0, "", False) and name != "formats"}
    return found | {"parameters": shapes.parameters}


def _kind(calibration: Calibration) -> str:
    """Which of the simulated calibrations is like this one."""
    return error_rates.IMPUTED if calibration.label == IMPUTED else error_rates.UNKNOWN


# ---- what is said ---------------------------------------------------------------------------------------------------


type _Key = tuple[str, float, float]
"""GPU, batch and context of a cell."""


def _keys(cells: Cells) -> list[_Key]:
    return list(zip(cells.gpu.tolist(), cells.batch.tolist(), cells.context.tolist(), strict=True))


def _rows(found: Family, repeats: Mapping[_Key, int], calibration: Calibration) -> list[dict[str, Any]]:
    """Measured and predicted step of every cell, by GPU."""
    mine = found.draws.cells.model == found.model
    draws = found.draws.where(mine)
    about = draws.weight, draws.unit
    gpus = list(dict.fromkeys(draws.cells.gpu.tolist()))
    predicted = np.hstack([found.predicted_ms[gpu] for gpu in gpus])
    even = np.full(len(predicted), 1.0 / len(predicted)), np.arange(len(predicted))
    told = estimates(predicted, *even, "step as the calibration predicts it", "ms")
    values = np.concatenate([use.predicted(found, gpu) for gpu in gpus])
    means = [replace(one, value=float(value)) for one, value in zip(told, values, strict=True)]
    own = estimates(draws.mean_ms, *about, "mean step with the family's own floor", "ms")
    gpu_ms = (draws.weight @ draws.gpu_ms).tolist()
    return [
        {
            "gpu": key[0],
            "batch": key[1],
            "context": key[2],
            "step_ms": step,
            "repeats": int(repeats[key]),
            "predicted": mean.data,
            "own_floor": of_own.data,
            "gpu_ms": T,
            "error_percent": 100.0 * (mean.value / step - 1.0),
            "outside": domain.cell_reasons(calibration, found.shapes, *key[1:]),
        }
        for key, step, mean, of_own, T in zip(
            _keys(draws.cells), draws.step_ms[0].tolist(), means, own, gpu_ms, strict=True
        )
    ]


def _calibration(p: Calibration) -> dict[str, Any]:
    """What a check says of its calibration."""
    return {
        "source": p.source,
        "label": p.label,
        "anchor": p.anchor,
        "gpus": list(p.gpus),
        "models": list(p.models),
        "combine": p.combine,
        "experts": p.experts,
        "stack": p.stack or None,
        "mode": p.mode or None,
        "domain": asdict(p.domain),
    }


def _outside(
    calibration: Calibration,
    shapes: ModelShapes,
    specs: Mapping[str, GpuSpec],
    found: Family,
    rows: Sequence[Mapping[str, Any]],
    measured: Measurements,
) -> list[str]:
    """What of the family lies outside what the calibration has seen."""
    reasons = domain.model_reasons(calibration, shapes)
    if calibration.treatment == "joint":
        reasons.append("constants: fitted to all cells of the calibration, not to the anchor's alone")
    for spec in specs.values():
        reasons += domain.gpu_reasons(calibration, spec)
    for gpu in found.unmeasured:
        draws = found.draws
        at = int(np.flatnonzero((draws.cells.gpu == gpu) & (draws.cells.model == found.model))[0])
        floor = draws.estimate(draws.anchor_floor_ms[:, at], "floor of the anchor", "ms")
        reasons.append(
            f"floor: {calibration.anchor} was never measured on {gpu}: its floor there is predicted, {floor}"
        )
    said = [str(measured.provenance.get(name) or "").replace("unknown", "") for name in ("stack", "mode")]
    reasons += domain.serving_reasons(calibration, *said)
    odd = [row for row in rows if row["outside"]]
    if odd:
        kinds = sorted({reason.split(":")[0] for row in odd for reason in row["outside"]})
        reasons.append(f"cells: {len(odd)} of {len(rows)} lie outside the calibrated {' and '.join(kinds)}")
    return reasons


def _leftover(found: Family) -> float:
    """Relative sd of the steps around T_gpu and the family's own floors, percent; mean over draws and cells."""
    draws = found.draws
    own = draws.cells.model == found.model
    return float(100.0 * draws.weight @ (draws.noise_ms / np.abs(draws.mean_ms))[:, own].mean(-1))


def _question(data: Mapping[str, Any]) -> str | None:
    """What is open: of an undecided verdict whether, where the cause leaves nothing else open."""
    if data["cause"] == INDISTINGUISHABLE:
        return FLOOR_OR_WEIGHTS
    question: str | None = data["overall"]["open"]
    return WITHIN_OR_NOT if question is None and data["verdict"] == UNDECIDED else question


def _deciding(
    data: Mapping[str, Any],
    shapes: ModelShapes,
    specs: Mapping[str, GpuSpec],
    rows: Sequence[Mapping[str, Any]],
    calibration: Calibration,
    seed: int,
) -> dict[str, Any] | None:
    """Which further cells would help most with what is open."""
    question = _question(data)
    if question is None or data["verdict"] == HOLDS or question.startswith(JOINS):
        return None
    cells = [Cell(r["gpu"], r["batch"], r["context"], r["step_ms"]) for r in rows]
    found = deciding(shapes, list(specs.values()), cells, calibration, question, seed=seed)
    return {"question": question, "cells": [asdict(one) for one in found], "sentence": say_deciding(found, question)}


def _told(found: Measurements, repeats: Sequence[int]) -> dict[str, Any]:
    """What was read of the file."""
    p = found.provenance
    spread = found.repeat_spread()
    excluded = zip(found.excluded.index.tolist(), found.excluded.to_dict("records"), strict=True)
    return {
        **{name: p.get(name) for name in ("file", "sha256", "format", "stack", "mode")},
        "rows": int(sum(repeats)),
        "cells": len(repeats),
        "repeat_spread_percent": None if np.isnan(spread) else 100.0 * spread,
        "excluded": [
            {"row": row, "reason": str(r["reason"]), "detail": str(r.get("detail", ""))} for row, r in excluded
        ],
        "flagged": len(found.flagged),
        "warnings": [str(w) for w in p.get("warnings", ())],
        "assumptions": [str(a) for a in p.get("assumptions", ())],
    }
