"""From a fitted study to the plain draws (posterior.npz) that `predict`, `plan` and `check` read."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from rooffloor.models.calibration import store
from rooffloor.models.calibration.draws import Calibration, Domain
from rooffloor.models.calibration.floors import floor_scales
from rooffloor.models.floor.structures import FloorStructure
from rooffloor.models.specs.inputs import called
from rooffloor.validate.common import resources
from rooffloor.validate.common.errors import GateError, InputError
from rooffloor.validate.estimates.cell_draws import IMPUTED

if TYPE_CHECKING:
    from rooffloor.validate.fitting.evidence import Evidence
    from rooffloor.validate.measurements.load import Measurements
    from rooffloor.validate.study.margins import Margins
from rooffloor.validate.study.study import Study

FILE = "posterior.npz"
ADDED = FloorStructure("gpu, model")
PER_UNIT = 8
"""Draws kept of each imputation."""
DRAWS = 800
"""Draws kept of a fit to measured cells."""


def posterior(evidence: "Evidence") -> Calibration:
    """The primary treatment of a study as plain draws.

    Imputed studies keep `PER_UNIT` draws of each imputation, measured ones all draws of the report.
    """
    study, draws = evidence.study, evidence.draws
    names, cells = study.names, draws.cells
    constants = {
        name: np.stack([by_gpu.get(g, by_gpu.get("all GPUs", np.empty(0))) for g in cells.gpus], -1)
        for name, by_gpu in evidence.constants["primary"].items()
    }
    keep = np.arange(len(draws.weight))
    if draws.label == IMPUTED:
        _, first, size = np.unique(draws.unit, return_index=True, return_counts=True)
        steps = (np.arange(PER_UNIT) + 0.5) / PER_UNIT
        keep = (first[:, None] + (size[:, None] * steps).astype(int)).ravel()
    shape = (len(draws.weight), len(cells.gpus), len(cells.models))
    floor, noise = np.full(shape, np.nan), np.full(shape, np.nan)
    pairs, columns = [], []
    for model, gpu, mask in draws.pairs():
        at = (slice(None), cells.gpus.index(gpu), cells.models.index(model))
        floor[at] = draws.floor_ms[:, mask][:, 0]
        pairs.append((gpu, draws.classes[model], model))
        columns.append(floor[at][keep])
        noise[at] = (draws.noise_ms[:, mask] / np.abs(draws.mean_ms[:, mask])).mean(-1)
    anchor = cells.model == draws.anchor

    def every(values: np.ndarray) -> np.ndarray:
        """[draw or 1, cell] -> [draw kept, anchor's cell]."""
        return np.broadcast_to(values, (len(draws.weight), len(cells)))[keep][:, anchor]

    sizes = [names.shapes(m).parameters for m in cells.models]
    weight = draws.weight[keep]
    return Calibration(
        gpus=cells.gpus,
        models=cells.models,
        classes=tuple(draws.classes[m] for m in cells.models),
        anchor=draws.anchor,
        constants={name: values[keep] for name, values in constants.items()},
        floor_ms=floor[keep],
        noise_relative=noise[keep],
        combine=ADDED.combine,
        q=np.ones(len(keep)),
        scales=floor_scales(pairs, np.stack(columns, -1), ADDED, np.random.default_rng(study.seed)),
        weight=weight / weight.sum(),
        unit=draws.unit[keep].astype(np.int64),
        anchor_gpu=cells.gpu_code[anchor],
        anchor_batch=every(draws.batch),
        anchor_context=every(draws.context),
        anchor_step_ms=every(draws.step_ms),
        anchor_gpu_ms=every(draws.gpu_ms),
        specs={g: names.gpu(g) for g in cells.gpus},
        experts=study.efficiency.experts,
        domain=Domain.of(draws.batch, draws.context, sizes),
        label=draws.label,
        source=study.name,
        treatment=evidence.treatment.split(":")[0] if draws.label != IMPUTED else "study",
        stack=study.data.stack or "",
        mode=study.data.mode or "",
    )


def load(study: str | Path | Calibration) -> Calibration:
    """Saved draws of a study, without fitting anything.

    Parameters
    ----------
    study : name of an embedded study, a posterior.npz, the folder of a report that holds one, or a Calibration (as is)

    Raises
    ------
    InputError
        There is none.
    """
    if isinstance(study, Calibration):
        return study
    path = resources.embedded(study) or Path(study)
    if not os.path.exists(path):  # unlike Path.exists never an error
        raise InputError(
            f"{called(path)}: no study with saved draws; expected transfer-study, a posterior.npz or a report's folder"
        )
    file = path / FILE if path.is_dir() else path
    try:
        return store.load(file)
    except ValueError as error:
        raise InputError(str(error)) from error


def margins(study: str | Path) -> "Margins | None":
    """Margins of a study that is named, None where `study` names saved draws alone."""
    from rooffloor.validate.study.study import Study

    folder = resources.embedded(study) or Path(study)
    return Study.load(study).margins if (folder / "study.toml").is_file() else None


def calibrated(measurements: "Measurements", anchor: str, *, seed: int = 1, quiet: bool = True) -> Calibration:
    """Fit the constants to one model's measured cells, and its floor and noise on each GPU given them.

    Parameters
    ----------
    measurements : Measurements
        Rows of other models are not looked at: the first stage of a cut. Repeats are averaged.
    anchor : str
        As `measurements` names it.

    Raises
    ------
    GateError
        The fit failed its convergence gate.
    """
    from rooffloor.models.calibration.anchor import of_anchor
    from rooffloor.models.inference.gate import GateFailure
    from rooffloor.models.inference.sampling import compile_model, fit_gated, thin
    from rooffloor.models.inference.step_model import build_model
    from rooffloor.models.roof.kernels import stack_work
    from rooffloor.models.roof.roofline import CONSTANTS
    from rooffloor.models.specs.classes import default_class

    cells, _ = measurements.averaged(anchor)
    shapes = measurements.shapes[anchor]
    klass = default_class(shapes)
    work = stack_work(cells, {anchor: shapes}, measurements.gpus)
    try:
        model = build_model(cells, work, {anchor: klass}, FloorStructure("gpu"), "free")
        fit = fit_gated(compile_model(model), seed=seed, progress=not quiet)
    except GateFailure as error:
        raise GateError(str(error)) from error
    names = [name for name in CONSTANTS if name in fit.posterior]
    return of_anchor(
        cells,
        shapes,
        klass,
        {n: thin(fit.posterior[n].to_numpy().reshape(-1), DRAWS) for n in names},
        measurements.gpus,
        np.random.default_rng(seed),
        label=measurements.label,
        source=f"{anchor} in {measurements.provenance.get('file')}",
        stack=str(measurements.provenance.get("stack") or "").replace("unknown", ""),
        mode=str(measurements.provenance.get("mode") or "").replace("unknown", ""),
    )


def build(study: "Study", folder: Path | None = None) -> Path:
    """Write the saved draws of a published study beside its data (after `fitting.build_cache`)."""
    from rooffloor.validate.common.files import write_bytes
    from rooffloor.validate.fitting.evidence import gather

    evidence = gather(study, primary_only=True)
    return write_bytes((folder or study.data.path.parent) / FILE, store.to_npz(posterior(evidence)))
