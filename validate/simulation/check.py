"""How often does `rooffloor check` err? Its verdicts on simulated families, kept in data/calibration/check.csv."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rooffloor.validate.common.runner import run
from rooffloor.validate.fitting import saved
from rooffloor.validate.published.printed_figures import SKUS
from rooffloor.validate.simulation.family import Planted, planted
from rooffloor.validate.simulation.hypotheses import GRID
from rooffloor.validate.study.margins import Margins
from rooffloor.validate.transfer.error_rates import IMPUTED, KNOWN, TRUTHS, CheckRates
from rooffloor.validate.transfer.statements import VERDICTS
from rooffloor.validate.transfer.verdict import judge

DESIGNS: Mapping[str, tuple[tuple[int, int], ...]] = {
    "15": GRID,
    "5": ((1, 512), (1, 8192), (4, 2048), (16, 512), (16, 8192)),
    "3": ((1, 512), (4, 2048), (16, 8192)),
}
"""Cells per GPU."""
GPUS = (SKUS[:1], SKUS)
FEW_TRUTHS = ("nothing differs", "floor 3 ms larger", "DRAM efficiencies 25 % lower")
"""Those that are simulated beside the published study's calibration, a quarter as often."""
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
    plan = Planted(gpus=chunk.gpus, grid=DESIGNS[chunk.cells], **truth)
    calibration = saved.load("transfer-study") if chunk.calibration == IMPUTED else None
    made = planted(plan, np.random.default_rng(entropy), chunk.sets, calibration=calibration)
    said = [judge(one, Margins()).verdict for one in made]
    return {"said": [said.count(name) for name in VERDICTS]}


def calibrate(
    *,
    studies: int = SETS,
    seed: int = 1,
    jobs: int | None = None,
    dask: str | None = None,
    folder: Path | None = None,
    progress: bool = False,
) -> CheckRates:
    """Verdicts on simulated families at 2 % noise, beside both kinds of calibration.

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
        for kind in (KNOWN, IMPUTED)
        for gpus in GPUS
        for cells in DESIGNS
        for truth in TRUTHS
        if kind == KNOWN or (truth in FEW_TRUTHS and cells != "5")
    ]
    chunks = [
        _Chunk(*design, min(CHUNK, count - first), seed, first)
        for design in designs
        for count in (studies if design[0] == KNOWN else -(-studies // 4),)
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
        said = dict(zip(VERDICTS, np.sum([one for _, one in mine], axis=0).tolist(), strict=True))
        row = {"calibration": kind, "truth": truth, "gpus": len(gpus), "cells": int(cells), "seed": seed}
        rows.append(row | {"sets": sum(count for count, _ in mine)} | said)
    return CheckRates(pd.DataFrame(rows))
