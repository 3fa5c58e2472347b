"""How often does `rooffloor check` err? What it says of simulated families, kept in data/calibration/check.csv."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rooffloor.validate.common.runner import run
from rooffloor.validate.estimates.cell_draws import SIMULATED
from rooffloor.validate.fitting import saved
from rooffloor.validate.published.printed_figures import SKUS
from rooffloor.validate.simulation.family import Planted
from rooffloor.validate.simulation.family import studies as made_of
from rooffloor.validate.simulation.hypotheses import GRID
from rooffloor.validate.study.margins import Margins
from rooffloor.validate.transfer.cause import judge
from rooffloor.validate.transfer.error_rates import COUNTS, IMPUTED, KNOWN, OFF, TRUTHS, UNKNOWN, WRONG, CheckRates
from rooffloor.validate.transfer.family_fit import family
from rooffloor.validate.transfer.statements import DOES_NOT_HOLD, HOLDS
from rooffloor.validate.transfer.use import TOLERANCE, on_gpu, predicted, together

type Array = NDArray[np.float64]

DESIGNS: Mapping[str, tuple[tuple[int, int], ...]] = {
    "15": GRID,
    "5": ((1, 512), (1, 8192), (4, 2048), (16, 512), (16, 8192)),
    "3": ((1, 512), (4, 2048), (16, 8192)),
}
"""Cells per GPU."""
GPUS = (SKUS[:1], SKUS)
FEW_TRUTHS = ("nothing differs", "floor 3 ms larger", "DRAM efficiencies 25 % lower")
"""Those that are simulated beside the published study's calibration, a quarter as often."""
LEFTOVER = 0.03
"""Relative sd of what the roof leaves over, where constants are not known."""
SETS, CHUNK = 200, 25


@dataclass(frozen=True)
class _Chunk:
    """Some simulated families of one truth in one design."""

    calibration: str
    truth: str
    gpus: tuple[str, ...]
    cells: str
    sets: int
    seed: int
    first: int


def _run(chunk: _Chunk) -> dict[str, Any]:
    """How often each verdict was said."""
    entropy = [chunk.seed, len(chunk.gpus), int(chunk.cells), list(TRUTHS).index(chunk.truth), chunk.first]
    truth: dict[str, Any] = dict(TRUTHS[chunk.truth][0])
    unknown: dict[str, Any] = {"unknown": True, "leftover": LEFTOVER} if chunk.calibration == UNKNOWN else {}
    plan = Planted(gpus=chunk.gpus, grid=DESIGNS[chunk.cells], **truth, **unknown)
    calibration = saved.load("transfer-study") if chunk.calibration == IMPUTED else None
    rng = np.random.default_rng(entropy)
    counts = dict.fromkeys(COUNTS, 0)
    for shapes, cells, specs, given, true in made_of(plan, rng, chunk.sets, calibration=calibration):
        one = family(shapes, cells, specs, given, rng, label=SIMULATED)
        verdict = together([on_gpu(one, gpu, rng) for gpu in chunk.gpus]).verdict
        errors = [_true_error(predicted(one, gpu), true[cells.gpu == gpu], plan.noise) for gpu in chunk.gpus]
        off = max(errors) > TOLERANCE
        counts[verdict] += 1
        counts[OFF] += off
        counts[WRONG] += verdict == (HOLDS if off else DOES_NOT_HOLD)
        counts[judge(one, Margins(), name=False).cause] += 1
    return {"said": list(counts.values())}


def _true_error(predicted_ms: Array, true_ms: Array, noise: float) -> float:
    """MAPE that further measurements would show under the calibration, percent: of the true steps, with noise."""
    again = 1.0 + noise * np.polynomial.hermite_e.hermegauss(21)[0][:, None]
    mass = np.polynomial.hermite_e.hermegauss(21)[1]
    return float(100.0 * mass @ np.abs(predicted_ms / (true_ms * again) - 1.0).mean(-1) / mass.sum())


def calibrate(
    *,
    studies: int = SETS,
    seed: int = 1,
    jobs: int | None = None,
    dask: str | None = None,
    folder: Path | None = None,
    progress: bool = False,
) -> CheckRates:
    """Verdicts and causes on simulated families at 2 % noise, beside three kinds of calibration.

    Parameters
    ----------
    studies : int
        Families of each truth in each design.
    jobs, dask, folder, progress
        See `runner.run`.
    """
    import pandas as pd

    designs = [
        (kind, truth, gpus, cells)
        for kind in (KNOWN, UNKNOWN, IMPUTED)
        for gpus in GPUS
        for cells in DESIGNS
        for truth in TRUTHS
        if kind == KNOWN or (truth in FEW_TRUTHS and (kind == UNKNOWN or cells != "5"))
    ]
    chunks = [
        _Chunk(*design, min(CHUNK, count - first), seed, first)
        for design in designs
        for count in (studies if design[0] != IMPUTED else -(-studies // 4),)
        for first in range(0, count, CHUNK)
    ]
    keys = [f"check {chunk!r}" for chunk in chunks]
    found = run(_run, chunks, keys=keys, jobs=jobs, dask=dask, folder=folder, progress=progress, desc="families")
    rows = []
    for kind, truth, gpus, cells in designs:
        mine = [
            (chunk.sets, result["said"])
            for chunk, result in zip(chunks, found, strict=True)
            if (chunk.calibration, chunk.truth, chunk.gpus, chunk.cells) == (kind, truth, gpus, cells)
        ]
        said = dict(zip(COUNTS, np.sum([one for _, one in mine], axis=0).tolist(), strict=True))
        row = {"calibration": kind, "truth": truth, "gpus": len(gpus), "cells": int(cells), "seed": seed}
        rows.append(row | {"sets": sum(count for count, _ in mine)} | said)
    return CheckRates(pd.DataFrame(rows))
