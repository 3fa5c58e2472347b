"""`rooffloor check`: does the calibration hold for a model family, given its config.json and a few timings?

A saved calibration (`fit.saved`) predicts each cell from shapes alone; `transfer.family_fit` fits floor and noise of
the family beside it, `transfer.verdict` judges. This module reads what the user has, joins the three, and says what the
verdict rests on: cells outside what was calibrated, the other way of joining floors, how often such a check errs, and
which further cells would decide.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from rooffloor.models.calibration.anchor import rejoined
from rooffloor.models.calibration.draws import Calibration, units
from rooffloor.models.specs.cells import Cells
from rooffloor.models.specs.gpus import GpuSpec
from rooffloor.models.specs.shapes import ModelShapes
from rooffloor.validate.estimates.cell_draws import IMPUTED
from rooffloor.validate.estimates.estimate import Estimate
from rooffloor.validate.fitting import saved
from rooffloor.validate.measurements import load
from rooffloor.validate.measurements.given_specs import load_gpu, load_model
from rooffloor.validate.measurements.one_model import OwnRows, named_in
from rooffloor.validate.simulation import check as checkrates
from rooffloor.validate.study.margins import Margins
from rooffloor.validate.transfer import domain
from rooffloor.validate.transfer.family_fit import Family, family
from rooffloor.validate.transfer.verdict import (
    INDISTINGUISHABLE,
    MISMATCH,
    RECALIBRATE,
    TRANSFERS,
    UNDECIDED,
    VERDICTS,
    Verdict,
    judge_family,
)

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.axes import Axes

type Array = NDArray[np.float64]

__all__ = ["INDISTINGUISHABLE", "MISMATCH", "RECALIBRATE", "TRANSFERS", "UNDECIDED", "VERDICTS", "Check", "check"]

DEFAULT_STUDY = "transfer-study"
JOINS = ("added", "overlapped")
"""Ways of joining floors under which every family is judged."""
BESIDE = 200
"""Draws of the calibration whose anchor is fitted anew under each way of joining floors."""


@dataclass(frozen=True, eq=False)
class Check:
    """What a family's measurements say of the calibration.

    Attributes
    ----------
    result : Verdict
        By GPU and overall.
    family : Family
        Posterior of floors and noise behind it.
    posterior : Calibration
        The calibration.
    cells : list of dict
        Measured and predicted step of every cell, ms.
    data : dict
        Everything, ready for JSON.
    """

    result: Verdict
    family: Family
    posterior: Calibration
    cells: list[dict[str, Any]]
    data: dict[str, Any]

    def __repr__(self) -> str:
        return f"Check({self.result!r}, calibration {self.posterior.source})"

    @property
    def verdict(self) -> str:
        """One of `VERDICTS`."""
        return self.result.verdict

    @property
    def probabilities(self) -> Mapping[str, float]:
        """Posterior probability of each verdict's statement."""
        return self.result.probabilities

    @property
    def per_sku(self) -> list[dict[str, Any]]:
        """The same by GPU."""
        return self.result.per_sku

    @property
    def summary(self) -> str:
        """The verdict and what it rests on, as text."""
        from rooffloor.validate.transfer.page import text

        return text(self.data)

    def to_frame(self) -> pd.DataFrame:
        """One row per GPU and one for all, as `Verdict.to_frame`."""
        return self.result.to_frame()

    def cells_frame(self) -> pd.DataFrame:
        """One row per cell: measured step, predicted step with its 90 % interval (ms), error (percent)."""
        return pd.DataFrame(self.cells)

    def plot(self, ax: "Axes | None" = None) -> "Axes":
        """Probabilities of the verdicts, by GPU and overall; the title names the cells and the calibration."""
        from rooffloor.validate.presentation.figures.check import verdicts
        from rooffloor.validate.transfer.page import label

        return verdicts(self.data | {"label": label(self.data)}, ax=ax)

    @property
    def datatree(self) -> "xr.DataTree":
        """Posterior draws: floors (gpu), steps and T_gpu (cell), noise (cell); opens with ArviZ."""
        import xarray as xr

        draws = self.family.draws
        own = draws.cells.model == self.family.model
        cells = draws.cells.where(own)
        first = [int(np.flatnonzero(own & (draws.cells.gpu == g))[0]) for g in cells.gpus]
        above = draws.floor_ms - draws.anchor_floor_ms if self.family.around is None else self.family.around.above_ms
        coords = {
            "chain": [0],
            "draw": np.arange(len(draws.weight)),
            "gpu": list(cells.gpus),
            "cell": np.arange(len(cells)),
            "cell_gpu": ("cell", cells.gpu.tolist()),
            "batch": ("cell", cells.batch),
            "context": ("cell", cells.context),
        }
        posterior = xr.Dataset(
            {
                "floor_above_anchor_ms": (("chain", "draw", "gpu"), above[None][:, :, first]),
                "gpu_ms": (("chain", "draw", "cell"), draws.gpu_ms[None][:, :, own]),
                "step_ms": (("chain", "draw", "cell"), draws.mean_ms[None][:, :, own]),
                "predicted_ms": (("chain", "draw", "cell"), (draws.gpu_ms + draws.anchor_floor_ms)[None][:, :, own]),
                "noise_ms": (("chain", "draw", "cell"), draws.noise_ms[None][:, :, own]),
            },
            coords=coords,
            attrs={"label": draws.label, "calibration": self.posterior.label, "model": self.family.model},
        )
        observed = xr.Dataset({"step_ms": ("cell", draws.step_ms[0, own])}, coords={"cell": np.arange(len(cells))})
        return xr.DataTree.from_dict({"posterior": posterior, "observed_data": observed})

    def save(self, folder: str | Path) -> Path:
        """Write check.html, check.json, cells.csv and figures; nothing is left half-written."""
        from rooffloor.validate.transfer.page import save

        return save(self, Path(folder))


def check(
    shapes: str | Path | ModelShapes,
    measured: "str | Path | pd.DataFrame",
    *,
    gpu: "str | Path | GpuSpec | None" = None,
    study: str | Path | Calibration = DEFAULT_STUDY,
    anchor: str | None = None,
    margins: Margins | None = None,
    model: str | None = None,
    klass: str | None = None,
    format: str = "schema",
    stack: str | None = None,
    mode: str | None = None,
    seed: int = 1,
    quiet: bool = True,
) -> Check:
    """Judge whether a calibration transfers to a model family.

    Parameters
    ----------
    shapes : name, config.json, folder, TOML file or ModelShapes
        The family.
    measured : path or DataFrame
        Rows of batch, context, step_ms; `model` and `gpu` may be left out where `shapes` and `gpu` say them.
    gpu : name, TOML file or GpuSpec, optional
        Of rows without a column gpu; else only rows of this GPU count.
    study : name of an embedded study, a posterior.npz, a report's folder, or a Calibration
        The calibration.
    anchor : str, optional
        Calibrate on this model's rows of the same file instead (a fit of half a minute).
    margins : Margins, optional
        Default: those of an embedded study, else defaults.
    model : str, optional
        Name of the family in the file, where it is not that of `shapes`.
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
    """
    own = load_model(shapes)
    spec = None if gpu is None else load_gpu(gpu)
    found, own = OwnRows(own, spec, model, anchor, format, stack, mode).read(measured)
    if anchor is not None:
        calibration = saved.calibrated(found, named_in(found, anchor), seed=seed, quiet=quiet)
    else:
        calibration = study if isinstance(study, Calibration) else saved.load(study)
    klass = None if klass is None else domain.known_class(klass, calibration)
    margins = (
        margins
        or (saved.margins(study) if anchor is None and not isinstance(study, Calibration) else None)
        or Margins()
    )
    cells, repeats = found.averaged(own.name)
    specs = {name: found.gpus[name] for name in cells.gpus}
    renamed, specs = _as_calibrated(cells, specs, calibration)
    known = replace(own, name=domain.known_model(own, calibration)[0])
    rng = np.random.default_rng(seed)
    judged: dict[str, Verdict] = {}
    evidence: dict[str, float] = {}
    families: dict[str, Family] = {}
    few = calibration.rows(units(calibration, min(BESIDE, len(calibration.weight))))
    for combine in dict.fromkeys((calibration.combine, *JOINS)):
        anew, evidence[combine] = rejoined(few, combine, rng)
        joined = calibration if combine == calibration.combine else anew
        families[combine] = family(known, renamed, specs, joined, rng, klass=klass, label=found.label)
        judged[combine] = judge_family(families[combine], margins)
        evidence[combine] += judged[combine].data["overall"]["log_evidence"]
    result, joins = _settled(judged, evidence, calibration.combine, margins)
    chosen = families[calibration.combine]
    rows = _rows(chosen, repeats, calibration)
    fewest = min(int((renamed.gpu == g).sum()) for g in renamed.gpus)
    rates = checkrates.nearest(len(cells.gpus), fewest, imputed=calibration.label == IMPUTED)
    data = {
        **result.data,
        "model": own.name,
        "shapes": {k: v for k, v in asdict(own).items() if v not in (0, "", False)} | {"parameters": own.parameters},
        "calibration": _calibration(calibration),
        "outside": _outside(calibration, own, specs, chosen, rows, found),
        "joins": joins,
        "error_rates": rates,
        "leftover_percent": _leftover(chosen),
        "deciding": _deciding(result, own, specs, rows, calibration, seed),
        "cells": rows,
        "measurements": _told(found, int(sum(repeats)), repeats),
    }
    return Check(result, chosen, calibration, rows, data)


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


def _settled(
    judged: Mapping[str, Verdict], evidence: Mapping[str, float], own: str, margins: Margins
) -> tuple[Verdict, dict[str, Any]]:
    """The verdict under the calibration's way of joining floors, undecided where another way cannot be ruled out and
    says something else; and what each way says, with its posterior probability (equal before the cells are seen)."""
    top = max(evidence.values())
    total = sum(np.exp(e - top) for e in evidence.values())
    joins = {
        name: {
            "verdict": one.verdict,
            "probabilities": one.probabilities,
            "posterior": float(np.exp(evidence[name] - top) / total),
            "anchor_level": one.data["overall"]["level"]["value"] - one.data["overall"]["difference"]["value"],
        }
        for name, one in judged.items()
    }
    result = judged[own]
    rivals = [
        name
        for name, one in joins.items()
        if one["verdict"] not in (result.verdict, UNDECIDED) and one["posterior"] > 1.0 - margins.probability
    ]
    if result.verdict == UNDECIDED or not rivals:
        return result, joins
    why = f"joins: {result.verdict} if floors are {own}, {joins[rivals[0]]['verdict']} if they are {rivals[0]}"
    overall = result.data["overall"] | {"verdict": UNDECIDED, "undecided": why}
    sentences = (f"Undecided, since it depends on how floors join ({why[7:]}).", *result.sentences)
    data = result.data | {"verdict": UNDECIDED, "overall": overall, "sentences": list(sentences)}
    return replace(result, verdict=UNDECIDED, sentences=sentences, data=data), joins


# ---- what is said ---------------------------------------------------------------------------------------------------


def _rows(found: Family, repeats: Sequence[int], calibration: Calibration) -> list[dict[str, Any]]:
    """Measured and predicted step of every cell."""
    draws = found.draws
    predicted = draws.gpu_ms + draws.anchor_floor_ms
    rows = []
    for k, i in enumerate(np.flatnonzero(draws.cells.model == found.model)):
        step = float(draws.step_ms[0, i])
        mean = draws.estimate(predicted[:, i], "step as calibrated: T_gpu + the anchor's floor", "ms")
        own = draws.estimate(draws.mean_ms[:, i], "mean step with the family's own floor", "ms")
        rows.append(
            {
                "gpu": str(draws.cells.gpu[i]),
                "batch": float(draws.cells.batch[i]),
                "context": float(draws.cells.context[i]),
                "step_ms": step,
                "repeats": int(repeats[k]),
                "predicted": mean.data,
                "own_floor": own.data,
                "gpu_ms": float(draws.weight @ draws.gpu_ms[:, i]),
                "error_percent": 100.0 * (mean.value / step - 1.0),
                "outside": domain.cell_reasons(
                    calibration, found.shapes, float(draws.cells.batch[i]), float(draws.cells.context[i])
                ),
            }
        )
    return rows


def _calibration(p: Calibration) -> dict[str, Any]:
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
    measured: load.Measurements,
) -> list[str]:
    """What of the family lies outside what the calibration has seen."""
    reasons = domain.model_reasons(calibration, shapes)
    if calibration.treatment == "joint":
        reasons.append("constants: fitted to all cells of the calibration, not to the anchor's alone")
    for spec in specs.values():
        reasons += domain.gpu_reasons(calibration, spec)
    for gpu in found.unmeasured:
        floor = _floor_there(found, gpu)
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


def _floor_there(found: Family, gpu: str) -> Estimate:
    draws = found.draws
    at = int(np.flatnonzero((draws.cells.gpu == gpu) & (draws.cells.model == found.model))[0])
    return draws.estimate(draws.anchor_floor_ms[:, at], "floor of the anchor", "ms")


def _deciding(
    result: Verdict,
    shapes: ModelShapes,
    specs: Mapping[str, GpuSpec],
    rows: Sequence[Mapping[str, Any]],
    calibration: Calibration,
    seed: int,
) -> dict[str, Any] | None:
    """Which further cells would help most with what is open."""
    question = result.data["overall"]["undecided"]
    if result.verdict == INDISTINGUISHABLE:
        question = "level: a floor or the weights' bandwidth"
    if question is None or question.startswith("joins"):
        return None
    from rooffloor.validate.transfer.plan import advice, deciding, outlook

    cells = [outlook.Cell(r["gpu"], r["batch"], r["context"], r["step_ms"]) for r in rows]
    found = deciding.deciding(shapes, list(specs.values()), cells, calibration, question, seed=seed)
    return {
        "question": question,
        "cells": [asdict(one) for one in found],
        "sentence": advice.say_deciding(found, question),
    }


def _told(found: load.Measurements, rows: int, repeats: Sequence[int]) -> dict[str, Any]:
    p = found.provenance
    return {
        "file": p.get("file"),
        "sha256": p.get("sha256"),
        "format": p.get("format"),
        "stack": p.get("stack"),
        "mode": p.get("mode"),
        "rows": rows,
        "cells": len(repeats),
        "repeat_spread_percent": None if np.isnan(s := found.repeat_spread()) else 100.0 * s,
        "excluded": [
            {"row": row, "reason": str(r["reason"]), "detail": str(r.get("detail", ""))}
            for row, r in zip(found.excluded.index.tolist(), found.excluded.to_dict("records"), strict=True)
        ],
        "flagged": len(found.flagged),
        "warnings": [str(w) for w in p.get("warnings", ())],
        "assumptions": [str(a) for a in p.get("assumptions", ())],
    }
