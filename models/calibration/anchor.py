"""Calibrations fitted to the cells of one model: floors and noise of each SKU given draws of the constants."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from rooffloor.models.calibration.draws import TERM_OF, Array, Calibration, Domain
from rooffloor.models.calibration.floors import effect_sizes, floor_scales, light_step
from rooffloor.models.floor.structures import FloorStructure
from rooffloor.models.inference.one_pair import fit_floors
from rooffloor.models.inference.priors import DEFAULT_PRIORS, Priors
from rooffloor.models.roof.kernels import Experts, stack_work
from rooffloor.models.roof.roofline import Efficiency, work_ms
from rooffloor.models.specs.cells import Cells
from rooffloor.models.specs.gpus import GpuSpec
from rooffloor.models.specs.shapes import ModelShapes

BATCHES = 50
"""Consecutive batches of draws that are the units of the Monte Carlo error."""


def of_anchor(
    cells: Cells,
    shapes: ModelShapes,
    klass: str,
    constants: Mapping[str, Array],
    specs: Mapping[str, GpuSpec],
    rng: np.random.Generator,
    *,
    combine: str = "added",
    terms: Mapping[str, Array] | None = None,
    experts: Experts = "active",
    priors: Priors = DEFAULT_PRIORS,
    **said: str,
) -> Calibration:
    """A calibration from the cells of one model: floors and noise of each SKU given draws of the constants.

    Parameters
    ----------
    cells : Cells
        Of one model, with steps; SKUs in the order of their codes.
    constants : mapping of constant to array [draw]
        The same for all SKUs.
    terms : mapping of parameter to array [draw, gpu], ms, optional
        Of `structures.TERMS`, drawn with the constants.
    said
        `label`, `source`, `treatment`, `stack` and `mode` of the calibration.
    """
    assert cells.step_ms is not None
    (anchor,) = cells.models
    count = len(next(iter(constants.values())))
    own: dict[str, Any] = {name: values[:, None] for name, values in constants.items()}
    work = stack_work(cells, {anchor: shapes}, specs, experts=experts)
    T = np.broadcast_to(work_ms(work, Efficiency(**own)), (count, len(cells)))
    every = {name: np.tile(getattr(cells, name), (count, 1)) for name in ("batch", "context", "step_ms")}
    terms = dict(terms or {})
    structure = FloorStructure("gpu, model", combine, terms=tuple(TERM_OF[name] for name in terms))
    none = np.zeros((count, len(cells)))
    host = none + structure.host_ms(lambda name: terms[name][:, cells.gpu_code], cells.batch, shapes.layers)
    fit = fit_floors(
        cells.gpu_code,
        T,
        every["step_ms"],
        structure,
        rng,
        floor_prior=priors.floor_level(structure.positive),
        noise_prior=priors.noise_level(),
        known_sd_ms=0.0 if cells.step_sd_ms is None else cells.step_sd_ms,
        host_ms=host,
    )
    texts: dict[str, Any] = {"treatment": "anchor alone"} | said
    pairs = [(g, klass, anchor) for g in cells.gpus]
    sizes = None if structure.positive else effect_sizes(pairs, light_step(every["step_ms"], cells.gpu_code))
    return Calibration(
        gpus=cells.gpus,
        models=(anchor,),
        classes=(klass,),
        anchor=anchor,
        constants={name: np.repeat(values[:, None], len(cells.gpus), 1) for name, values in constants.items()},
        floor_ms=fit.floor_ms[..., None],
        noise_relative=fit.noise_relative[..., None],
        combine=combine,
        q=fit.q,
        scales=floor_scales(pairs, fit.floor_ms, structure, rng, priors, sizes),
        anchor_layers=shapes.layers,
        weight=np.full(count, 1.0 / count),
        unit=np.arange(count) * BATCHES // count,
        anchor_gpu=cells.gpu_code,
        anchor_batch=every["batch"],
        anchor_context=every["context"],
        anchor_step_ms=every["step_ms"],
        anchor_gpu_ms=T,
        specs={g: specs[g] for g in cells.gpus},
        experts=experts,
        domain=Domain.of(cells.batch, cells.context, [shapes]),
        terms=terms,
        priors=priors,
        **texts,
    )


def rejoined(calibration: Calibration, combine: str, rng: np.random.Generator) -> tuple[Calibration, Array]:
    """The same constants with the anchor's floors fitted anew to its cells, joined in another way.

    Parameters
    ----------
    combine : str
        A key of `structures.COMBINE`. Where it leaves q free, q is drawn given the anchor's cells alone.

    Returns
    -------
    Calibration
        Of the anchor alone: floors of other models are not refitted.
    array [draw]
        Log density of the anchor's steps under these floors, given the constants of each draw. The draws are those of
        the joining that they were fitted under.
    """
    structure = replace(calibration.structure, combine=combine)
    used = np.unique(calibration.anchor_gpu)
    fit = fit_floors(
        np.searchsorted(used, calibration.anchor_gpu),
        calibration.anchor_gpu_ms,
        calibration.anchor_step_ms,
        structure,
        rng,
        floor_prior=calibration.priors.floor_level(structure.positive),
        noise_prior=calibration.priors.noise_level(),
        host_ms=calibration.anchor_host_ms,
    )
    shape = (len(calibration.weight), len(calibration.gpus), 1)
    floors, noises = np.full(shape, np.nan), np.full(shape, np.nan)
    floors[:, used, 0], noises[:, used, 0] = fit.floor_ms, fit.noise_relative
    klass = calibration.anchor_class
    pairs = [(calibration.gpus[g], klass, calibration.anchor) for g in used]
    sizes = None if structure.positive else effect_sizes(pairs, calibration.light_ms)
    own = calibration.launches
    own = None if own is None else own[[calibration.models.index(calibration.anchor)]]
    anew = replace(
        calibration,
        models=(calibration.anchor,),
        classes=(klass,),
        floor_ms=floors,
        noise_relative=noises,
        combine=combine,
        q=fit.q,
        launches=own,
        scales=floor_scales(pairs, fit.floor_ms, structure, rng, calibration.priors, sizes),
    )
    return anew, fit.log_evidence
