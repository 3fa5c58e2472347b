"""Calibrations from fits: plain draws that `predict`, `plan` and `check` read."""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from rooffloor.models.calibration.anchor import of_anchor
from rooffloor.models.calibration.draws import TERM_OF, Calibration, Domain
from rooffloor.models.calibration.floors import effect_sizes, floor_scales, launch_and_scales, light_step
from rooffloor.models.floor.structures import FloorStructure
from rooffloor.models.inference.gate import GateFailure
from rooffloor.models.inference.kernel_priors import named_priors
from rooffloor.models.inference.priors import DEFAULT_PRIORS, Priors
from rooffloor.models.inference.steps import StepModel
from rooffloor.models.roof.kernels import launches_of_shapes, stack_work
from rooffloor.models.roof.roofline import CONSTANTS
from rooffloor.models.specs.classes import default_class
from rooffloor.validate.common.errors import GateError
from rooffloor.validate.estimates.cell_draws import IMPUTED, Draws

if TYPE_CHECKING:
    from rooffloor.validate.measurements.load import Measurements
    from rooffloor.validate.study.study import Study

type Array = NDArray[np.float64]

OF_ANCHOR = FloorStructure("gpu", "added", terms=("sequence",))
"""Floor that a calibration from one model's cells has."""
TELL_LAUNCHES = 3
"""From so many different numbers of launches on, floors tell how they follow them."""
PER_UNIT = 8
"""Draws kept of each imputation."""
DRAWS = 800
"""Draws kept of a fit to measured cells."""


def of_draws(
    study: "Study",
    draws: Draws,
    constants: Mapping[str, Mapping[str, Array]],
    treatment: str,
    priors: Priors = DEFAULT_PRIORS,
) -> Calibration:
    """The primary treatment of a study as plain draws.

    Imputed studies keep `PER_UNIT` draws of each imputation, measured ones `DRAWS` in all.

    Parameters
    ----------
    constants : mapping of name to {gpu or "all GPUs": draws, shape (draw,)}
        Terms of the floor among them.
    treatment : "cut", "joint" or "study"
    """
    names, cells, structure = study.names, draws.cells, study.floor
    assert structure.sharing is not None
    own_floors = replace(structure, shared_by="gpu, model")
    by_gpu = {
        name: np.stack([values.get(g, values.get("all GPUs", np.empty(0))) for g in cells.gpus], -1)
        for name, values in constants.items()
    }
    count = len(draws.weight)
    keep = np.linspace(0, count - 1, min(count, DRAWS)).round().astype(np.int64)
    if draws.label == IMPUTED:
        _, first, size = np.unique(draws.unit, return_index=True, return_counts=True)
        steps = (np.arange(PER_UNIT) + 0.5) / PER_UNIT
        keep = (first[:, None] + (size[:, None] * steps).astype(int)).ravel()
    shape = (len(draws.weight), len(cells.gpus), len(cells.models))
    floor, noise = np.full(shape, np.nan), np.full(shape, np.nan)
    pairs, columns, of_pairs = [], [], []
    for model, gpu, mask in draws.pairs():
        at = (slice(None), cells.gpus.index(gpu), cells.models.index(model))
        floor[at] = draws.shared_floor_ms[:, mask][:, 0]
        pair = (gpu, draws.classes[model], structure.sharing.label(model, draws.classes[model]))
        if pair not in pairs:  # a floor that several models share counts once
            pairs.append(pair)
            columns.append(floor[at][keep])
            of_pairs.append(float(launches_of_shapes(names.shapes(model))))
        noise[at] = (draws.noise_ms[:, mask] / np.abs(draws.mean_ms[:, mask])).mean(-1)
    anchor = cells.model == draws.anchor

    def every(values: Array) -> Array:
        """[draw or 1, cell] -> [draw kept, anchor's cell]."""
        return np.broadcast_to(values, (len(draws.weight), len(cells)))[keep][:, anchor]

    weight, rng = draws.weight[keep], np.random.default_rng(study.seed)
    launches = np.array([launches_of_shapes(names.shapes(m)) for m in cells.models], dtype=float)
    floors, each = np.stack(columns, -1), None
    # Floors of two models differ for any reason: from three on they may follow launches, where those differ.
    sizes = None
    if draws.label != IMPUTED and not own_floors.positive:
        sizes = effect_sizes(pairs, light_step(every(draws.step_ms), cells.gpu_code[anchor]))
    if draws.label == IMPUTED or len(set(of_pairs)) < TELL_LAUNCHES:
        scales = floor_scales(pairs, floors, own_floors, rng, sizes=sizes)
    else:
        each, scales = launch_and_scales(pairs, floors, np.array(of_pairs), own_floors, rng, priors, sizes)
    return Calibration(
        gpus=cells.gpus,
        models=cells.models,
        classes=tuple(draws.classes[m] for m in cells.models),
        anchor=draws.anchor,
        constants={name: values[keep] for name, values in by_gpu.items() if name not in TERM_OF},
        floor_ms=floor[keep],
        noise_relative=noise[keep],
        combine=structure.combine,
        q=np.ones(len(keep)),
        scales=scales,
        weight=weight / weight.sum(),
        unit=draws.unit[keep].astype(np.int64),
        anchor_gpu=cells.gpu_code[anchor],
        anchor_batch=every(draws.batch),
        anchor_context=every(draws.context),
        anchor_step_ms=every(draws.step_ms),
        anchor_gpu_ms=every(draws.gpu_ms),
        specs={g: names.gpu(g) for g in cells.gpus},
        experts=study.efficiency.experts,
        domain=Domain.of(draws.batch, draws.context, [names.shapes(m) for m in cells.models]),
        label=draws.label,
        source=study.name,
        treatment=treatment,
        stack=study.data.stack or "",
        mode=study.data.mode or "",
        terms={name: values[keep] for name, values in by_gpu.items() if name in TERM_OF},
        anchor_layers=names.shapes(draws.anchor).layers,
        launch_ms=each,
        launches=None if each is None else launches,
        priors=priors,
    )


def served_by(measurements: "Measurements") -> dict[str, str]:
    """Stack and mode of the rows, as their columns or options say them; empty where they do not."""
    return {of: str(measurements.provenance.get(of) or "").replace("unknown", "") for of in ("stack", "mode")}


def calibrated(
    measurements: "Measurements",
    anchor: str,
    *,
    structure: FloorStructure = OF_ANCHOR,
    priors: str = "kernels",
    seed: int = 1,
    quiet: bool = True,
) -> Calibration:
    """Fit the constants to one model's measured cells, and its floor and noise on each GPU given them.

    Parameters
    ----------
    measurements : Measurements
        Rows of other models are not looked at: the first stage of a cut. Repeats are averaged.
    anchor : str
        As `measurements` names it.
    structure : FloorStructure
        One floor per SKU, with terms, joined in some way.
    priors : "kernels" or "wide"
        As in `study.Roof`.

    Raises
    ------
    GateError
        The fit failed its convergence gate.
    """
    from rooffloor.models.inference.sampling import compile_model, fit_gated, thin

    cells, _ = measurements.averaged(anchor)
    shapes = measurements.shapes[anchor]
    klass = default_class(shapes)
    work = stack_work(cells, {anchor: shapes}, measurements.gpus)
    used = named_priors(priors, list(measurements.gpus.values()))
    try:
        model = StepModel(cells, work, {anchor: klass}, structure, "free", priors=used)
        fit = fit_gated(compile_model(model), seed=seed, progress=not quiet)
    except GateFailure as error:
        raise GateError(str(error)) from error

    def drawn(name: str) -> Array:
        return thin(fit.posterior[name].to_numpy(), DRAWS)

    about = served_by(measurements)
    return of_anchor(
        cells,
        shapes,
        klass,
        {n: drawn(n) for n in CONSTANTS if n in fit.posterior},
        measurements.gpus,
        np.random.default_rng(seed),
        combine=structure.combine,
        terms={n: drawn(n) for n in TERM_OF if n in fit.posterior},
        priors=used,
        label=measurements.label,
        source=f"{anchor} in {measurements.provenance.get('file')}",
        stack=about["stack"],
        mode=about["mode"],
    )
