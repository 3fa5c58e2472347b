"""The runs behind a `Competition`: one marginal likelihood per structure, reading, GPU and prior scale.

It takes hours on the embedded study: `run` resumes where it was interrupted.
"""

import dataclasses
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from rooffloor.models.floor.structures import FloorStructure
from rooffloor.validate.common import runner
from rooffloor.validate.published.evidence.competition import REFERENCE, STRUCTURES, Competition, save
from rooffloor.validate.published.evidence.marginal import Effort, marginal
from rooffloor.validate.published.imputation.inversion import WIDE, Inversion
from rooffloor.validate.published.imputation.readings import (
    FEASIBLE_READINGS,
    GRIDS,
    ROOF,
    UNORDERED,
    Index,
    Intervals,
    targets,
)
from rooffloor.validate.published.printed_figures import SKUS, PublishedFigures

SCALES = {"default": 1.0, "floors halved": 0.5, "floors doubled": 2.0}
"""Factors on the prior scales of floors."""

INDICES = (Index(GRIDS[0], FEASIBLE_READINGS[0], ROOF, UNORDERED[0]),)
"""One of the 24 feasible ways to read the study: a second one doubles hours of computing."""

EFFORT = Effort(chains=40, levels=80)
LIGHT = dataclasses.replace(EFFORT, repeats=2)
"""For the other prior scales."""
CLOSE = dataclasses.replace(EFFORT, chains=200)
COARSE = 2.0
"""Runs of the best structure and its rival whose standard error is larger are made again with `CLOSE`."""


@dataclass(frozen=True)
class Task:
    """One marginal likelihood: a structure on one GPU under one index and prior scale."""

    floor: FloorStructure
    index: Index
    gpu: str
    scale: str = "default"

    @property
    def labels(self) -> dict[str, str]:
        """The columns `competition.KEYS` of this task's row."""
        index = {name: label for name, label in self.index.labels().items() if name != "roof"}
        return {"structure": str(self.floor), **index, "gpu": self.gpu, "scale": self.scale}

    @property
    def canonical(self) -> "Task":
        """The task with the same answer that is run: one GPU without the MoE has no classes, no floor no scale."""
        floor = self.floor
        if self.gpu != "H100":
            floor = FloorStructure("gpu" if floor.shared_by == "gpu, class" else floor.shared_by, floor.combine)
        return Task(floor, self.index, self.gpu, self.scale if floor.sharing is not None else "default")

    def seeds(self, seed: int) -> list[int]:
        """Seeds of this task's run; the committed runs were named with a figure to leave out, here none."""
        name = hashlib.sha256(f"{repr(self)[:-1]}, left_out='')".encode()).digest()
        return [seed, *np.frombuffer(name[:8], dtype=np.uint32).tolist()]


def compete(
    figures: PublishedFigures | None = None,
    *,
    seed: int,
    structures: Sequence[FloorStructure] = STRUCTURES,
    indices: Sequence[Index] = INDICES,
    scales: Sequence[str] = tuple(SCALES),
    gpus: tuple[str, ...] = SKUS,
    effort: Effort = EFFORT,
    light: Effort = LIGHT,
    close: Effort = CLOSE,
    jobs: int = 2,
    progress: bool = False,
    folder: Path | None = None,
) -> Competition:
    """Marginal likelihoods of the study under each structure.

    Each run is seeded by its own name, so that any subset gives the same numbers.

    Parameters
    ----------
    indices : sequence of Index
        With constants per GPU: the GPUs are independent problems only there.
    scales : sequence of str
        Keys of `SCALES`, "default" among them; the others are run under the first index alone, and only for structures
        that reach the figures under the default prior.
    effort, light, close : Effort
        Under the default prior; under the other scales; for the best structure and its rival (`REFERENCE`, or the
        runner-up where that is the best) again where the error is larger than `COARSE`.
    folder : Path, optional
        Where finished runs are kept, so that an interrupted competition resumes.

    Raises
    ------
    ValueError
        An index whose roof has one set of constants for all GPUs.
    """
    if not all(index.roof.per_gpu for index in indices):
        raise ValueError("the GPUs compete separately: every index needs a roof with constants per GPU")
    intervals = {n: i for n, i in targets(figures or PublishedFigures.load()).items() if not n.endswith("pooled")}

    def rows_of(tasks: Sequence[Task], effort: Effort) -> list[dict[str, Any]]:
        """A row per task; tasks with the same canonical one share its run."""
        distinct = list(dict.fromkeys(task.canonical for task in tasks))
        asked = [(task, intervals, seed, effort) for task in distinct]
        keys = [f"marginal {one!r} {WIDE!r}" for one in asked]
        desc = "marginal likelihoods"
        results = runner.run(_likelihood, asked, keys=keys, folder=folder, jobs=jobs, progress=progress, desc=desc)
        found = {task: {k: v.item() for k, v in row.items()} for task, row in zip(distinct, results, strict=True)}
        return [task.labels | found[task.canonical] for task in tasks]

    tasks = [Task(f, i, g) for i in indices for f in structures for g in gpus]
    rows = rows_of(tasks, effort)
    scores = Competition(pd.DataFrame(rows)).scores().set_index("structure")
    reached = [f for f in structures if np.isfinite(scores["log_ml"][str(f)])]
    others = [Task(f, indices[0], g, s) for s in scales if s != "default" for f in reached for g in gpus]
    tasks, rows = [*tasks, *others], [*rows, *rows_of(others, light)]
    if len(reached) > 1:
        best, *rest = (str(name) for name in scores.index)
        pair = {best, str(REFERENCE) if str(REFERENCE) in rest else rest[0]}
        coarse = [k for k, t in enumerate(tasks) if str(t.floor) in pair and not rows[k]["se"] <= COARSE]
        for k, row in zip(coarse, rows_of([tasks[k] for k in coarse], close), strict=True):
            rows[k] = row
    return Competition(pd.DataFrame(rows))


def _likelihood(asked: tuple[Task, Intervals, int, Effort]) -> dict[str, float]:
    """The marginal likelihood of one task."""
    task, intervals, seed, effort = asked
    prior = WIDE.scaled(SCALES[task.scale])
    inversion = Inversion(task.index, intervals, (task.gpu,), prior, task.floor)
    return dataclasses.asdict(marginal(inversion, seed=task.seeds(seed), effort=effort))


def run(
    *, out: str | Path | None = None, seed: int = 20261129, jobs: int = 2, quiet: bool = False, **given: Any
) -> Competition:
    """The competition on the embedded study, saved into the folder `out` (default reports/competition).

    Finished runs are kept in `out`/.parts: an interrupted run resumes. `given` goes to `compete`.
    """
    target = Path(out) if out is not None else Path("reports") / "competition"
    result = compete(seed=seed, jobs=jobs, progress=not quiet, folder=target / ".parts", **given)
    save(result, target)
    return result
