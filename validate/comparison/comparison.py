"""Which floor? Structures fitted to the same cells and compared by how well each predicts a cell that it has not seen.

Every structure is fitted with constants free (one set for all SKUs), shortly first; those that are reported beyond
their rank again, and with `refits` all that are not far behind. They are scored by PSIS-LOO (exact refits where the
Pareto k exceeds 0.7), weighted by stacking, and the simplest one that predicts about as well as the best is chosen. The
chosen one and the study's are then refitted without one model, one SKU, one (model, SKU) at a time, and under the cut.
`worker` holds what is done with one structure, `ranking` and `findings` what follows, `answer` the words.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from rooffloor.models.floor.structures import COMBINE, FloorStructure
from rooffloor.models.inference.kernel_priors import named_priors
from rooffloor.models.inference.sampling import ESCALATION
from rooffloor.models.roof.kernels import stack_work
from rooffloor.validate.common.errors import GateError
from rooffloor.validate.common.files import written
from rooffloor.validate.common.runner import run
from rooffloor.validate.comparison import answer, findings, worker
from rooffloor.validate.comparison.ranking import STUDY, Found, choose, is_below, is_far, rank
from rooffloor.validate.comparison.worker import FIT, Task, folds
from rooffloor.validate.estimates.prior_sensitivity import warnings_of

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

    from rooffloor.validate.measurements.load import Measurements
    from rooffloor.validate.study.study import Study

type Array = NDArray[np.float64]

CHAINS = int(FIT["chains"])
FOLDS = 10
"""Refits without some cells that one worker makes with one compiled model."""


def candidates(classes: Mapping[str, str], batches: int = 1) -> tuple[FloorStructure, ...]:
    """Structures worth comparing for these models: every sharing that they can tell apart, every way to join.

    Where cells have several batches all have host time per sequence too; beside them stand two without it, of one floor
    per SKU, and one whose host time is per sequence and layer.

    Parameters
    ----------
    classes : mapping of model name to class
    batches : int
        How many batches the cells have.

    Examples
    --------
    >>> for structure in candidates({"Llama-3.1-8B": "dense"}):
    ...     print(structure)
    no floor
    floor per (gpu), added
    floor per (gpu), added, H >= 0
    floor per (gpu), overlapped
    floor per (gpu), max
    """
    sharings = ["gpu"]
    if len(set(classes.values())) > 1:
        sharings.append("gpu, class")
    if len(classes) > 1:
        sharings.append("gpu, launches")
    several = [FloorStructure(shared_by, combine) for shared_by in sharings for combine in COMBINE]
    if len(classes) > 1:
        several += [FloorStructure("gpu, kernel latency", combine) for combine in ("added, H >= 0", "overlapped")]
        several.append(FloorStructure("gpu, model", "added"))
    if {"moe"} < set(classes.values()):  # a loop over experts that waits for each adds its host time by construction
        several.append(FloorStructure("gpu, class", "overlapped", (("moe", "added, H >= 0"),)))
    if batches > 1:
        plain = [FloorStructure("gpu", combine) for combine in ("added", "overlapped")]
        layered = [FloorStructure("gpu", "added", terms=("sequence layer",))] if len(classes) > 1 else []
        several = [*plain, *(replace(s, terms=("sequence",)) for s in several), *layered]
    return (FloorStructure("none"), *several)


@dataclass(frozen=True, eq=False)
class Comparison:
    """Floor structures side by side on one data set.

    Attributes
    ----------
    structures : list of dict
        One row per structure, best first: name, shared_by, combine, parameters, elpd, se, elpd_diff and dse (from
        the best), weight (stacking), p_loo, exact (cells refitted), gate (passed or what failed). Structures whose
        fit failed its gate stand last, without numbers; `gate` says "short fit" of one that was not fitted again.
    chosen : str
        The simplest structure within `CLOSE_ELPD` or `CLOSE_SE` standard errors of the best; `verdict` too.
    overlap : dict
        q of the best structure that frees it, whether it is identified, and the share of cells that inform it.
    left_out : list of dict
        Exact refits: structure, kind, left out, cells, coverage, width, joint log score against the baseline.
    leftover : list of dict
        Of the chosen structure: trends of what it leaves over.
    noise : dict
        Measurement noise from repeats against what the chosen structure leaves over.
    likelihood : dict
        The chosen structure under Normal and Student-t noise, and which of them the data ask for; empty without refits.
    roles : dict
        The column of kernel launches as a floor of the host and as a latency of the GPU's kernels.
    constants : list of dict
        Constants of every structure under the cut (the anchor's cells alone) and jointly.
    tension : list of dict
        Transfer tension of every structure; for the chosen one with a simulated reference.
    cut_floors : list of dict
        Floors of the chosen structure and the study's, under the cut and jointly; empty without refits.
    sensitivity : list of dict
        Power-scaling of prior and likelihood for every quantity of the chosen structure.
    warnings, answer : list of str, str
    cells : int
    label : str
        Where the data come from.
    """

    structures: list[dict[str, Any]]
    chosen: str
    overlap: dict[str, Any]
    left_out: list[dict[str, Any]]
    leftover: list[dict[str, Any]]
    noise: dict[str, Any]
    likelihood: dict[str, Any]
    roles: dict[str, Any]
    constants: list[dict[str, Any]]
    tension: list[dict[str, Any]]
    cut_floors: list[dict[str, Any]]
    sensitivity: list[dict[str, Any]]
    warnings: list[str]
    answer: str
    cells: int
    label: str

    def __repr__(self) -> str:
        return f"Comparison({len(self.structures)} floor structures on {self.cells} {self.label} cells: {self.answer})"

    @property
    def verdict(self) -> str:
        """The chosen structure."""
        return self.chosen

    def to_frame(self) -> "pd.DataFrame":
        """The structures as a table."""
        import pandas as pd

        return pd.DataFrame(self.structures)

    def to_csv(self, path: str | Path | None = None) -> str:
        """The structures as the text of a CSV file, written to `path` where one is given."""
        return written(self.to_frame().to_csv(index=False, lineterminator="\n"), path)

    @property
    def data(self) -> dict[str, Any]:
        """Everything, ready for JSON."""
        return asdict(self)

    @property
    def text(self) -> str:
        """Text for a person."""
        lines = [self.answer, "", f"{'structure':52s} {'elpd':>9s} {'diff':>8s} {'se':>6s} {'weight':>6s} gate"]
        for row in self.structures:
            if row["elpd"] is None:
                lines.append(f"{row['name']:52s} {'':>9s} {'':>8s} {'':>6s} {'':>6s} FAILED: {row['gate']}")
                continue
            lines.append(
                f"{row['name']:52s} {row['elpd']:9.1f} {row['elpd_diff']:8.1f} {row['dse']:6.1f} "
                f"{row['weight']:6.2f} {row['gate']}"
            )
        said = [self.noise["sentence"], *(d["sentence"] for d in (self.likelihood, self.roles) if "sentence" in d)]
        said += [row["sentence"] for row in self.tension if row["structure"] == self.chosen]
        said += [row["sentence"] for row in self.leftover if row["sentence"]]
        return "\n".join([*lines, "", *said, "", *(f"warning: {w}" for w in self.warnings)]).rstrip()

    def plot(self, ax: "Axes | None" = None) -> "Axes":
        """elpd below the best with two standard errors of the difference, per structure."""
        from rooffloor.validate.presentation.figures.which_floor import structures

        return structures(self, ax=ax)


def compare_floors(
    study: "Study",
    measurements: "Measurements | None" = None,
    *,
    jobs: int | None = None,
    seed: int | None = None,
    refits: bool = True,
    structures: Sequence[FloorStructure] | None = None,
    dask: str | None = None,
    folder: Path | None = None,
    quiet: bool = True,
) -> Comparison:
    """Fit every structure to the cells of a study and say which the data support.

    Parameters
    ----------
    study : Study
    measurements : Measurements, optional
        The study's cells where they have been read already.
    jobs, dask, folder
        See `runner.run`.
    seed : int, optional
        Default: the study's.
    refits : bool
        Whether the chosen structure is fitted with Student-t noise too, it and the study's without each model, SKU
        and pair and under the cut, every structure to the anchor's cells alone (else those two), and the transfer
        tension of the chosen one gets a simulated reference.
    structures : sequence of FloorStructure, optional
        Default: `candidates`.

    Raises
    ------
    GateError
        No structure's fit passed its gate.
    InputError
        The study's data cannot be used.

    Examples
    --------
    Minutes on all cores, without refits:

    >>> import rooffloor as rf
    >>> study = rf.Study("cells.csv", anchor="Llama-3.1-8B")  # doctest: +SKIP
    >>> floors = rf.compare_floors(study, jobs=2, refits=False)  # doctest: +SKIP
    >>> floors.verdict  # doctest: +SKIP
    'floor per (gpu, launches), overlapped'
    """
    measurements = measurements or study.measurements()
    cells = measurements.cells()
    classes = {m: study.class_of(m) for m in cells.models}
    work = stack_work(cells, measurements.shapes, measurements.gpus, experts=study.efficiency.experts)
    priors = named_priors(study.efficiency.priors, list(measurements.gpus.values()))
    seed = study.seed if seed is None else seed
    competing = tuple(structures or candidates(classes, len(np.unique(cells.batch))))
    attempts = len(ESCALATION) if refits else 2  # the last step takes as long as all other fits together
    cores = 1
    if jobs is None and dask is None and (os.cpu_count() or 1) <= CHAINS:
        jobs, cores = 1, os.cpu_count() or 1  # chains side by side: no process needs to start

    def task(structure: FloorStructure, likelihood: Literal["normal", "student"] = "normal", folds: Any = ()) -> Task:
        return Task(cells, work, classes, structure, likelihood, seed, study.anchor, folds, cores, priors, attempts)

    def each(function: Any, tasks: Sequence[Task], desc: str) -> Sequence[Found]:
        def key(one: Task) -> str:
            left_out = [name for _, name, _ in one.folds]
            what = f"{function.__name__} {one.structure!r} {one.likelihood} {left_out}"
            return f"{what} {study.hash} {study.anchor} {seed} {FIT!r} {attempts} {len(cells)}"

        keys = [key(one) for one in tasks]
        return run(function, tasks, keys=keys, desc=desc, jobs=jobs, dask=dask, folder=folder, progress=not quiet)

    def by_name(function: Any, some: Sequence[FloorStructure], desc: str) -> dict[str, Found]:
        return dict(zip(map(str, some), each(function, [task(s) for s in some], desc), strict=True))

    short = by_name(worker.screen, competing, "short fits")
    near = _fitted_again(competing, short, rank(competing, short, cells, classes, weighted=False), refits)
    found = short | by_name(worker.score, near, "structures")
    rows = rank(competing, found, cells, classes)
    if rows[0]["elpd"] is None:
        raise GateError(f"no floor structure's fit passed its gate ({rows[0]['name']}: {rows[0]['gate']})")
    chosen = choose(rows)
    best = next(s for s in competing if str(s) == chosen)
    shown = tuple(dict.fromkeys([best, *(s for s in competing if s == STUDY)]))
    has_cut = study.anchor in cells.models and len(cells.models) > 1
    passed = [s for s in near if found[str(s)]["passed"]]
    apart = by_name(worker.upstream, passed if refits else shown, "cut") if has_cut else {}
    reference: Array | None = None
    likelihood: dict[str, Any] = {}
    left_out: list[dict[str, Any]] = []
    under_cut: list[dict[str, Any]] = []
    if refits:
        student = each(worker.score, [task(best, "student")], "Student-t noise")[0]
        likelihood = findings.likelihoods(found[chosen], student)
        out = folds(cells)
        some = [task(s, folds=out[k : k + FOLDS]) for s in shown for k in range(0, len(out), FOLDS)]
        left_out = findings.left_out(some, each(worker.leave_out, some, "left out"), cells)
        if has_cut:
            reference = each(worker.tension_reference, [task(best)], "tension under the model")[0]["statistic"]
            floored = [s for s in shown if s.sharing is not None]
            refitted = by_name(worker.cut_floors, floored, "floors under the cut")
            under_cut = findings.cut_floors(refitted, found, cells, study.anchor)
    constants, pulled = findings.constants(apart, found, chosen, reference)
    overlap = findings.overlap(rows, competing, found)
    sensitivity = json.loads(str(found[chosen]["sensitivity"]))
    return Comparison(
        structures=rows,
        chosen=chosen,
        overlap=overlap,
        left_out=left_out,
        leftover=findings.trends(found[chosen]["trend"]),
        noise=findings.noise(measurements.repeat_spread(), float(found[chosen]["noise"])),
        likelihood=likelihood,
        roles=findings.roles(rows, found),
        constants=constants,
        tension=pulled,
        cut_floors=under_cut,
        sensitivity=sensitivity,
        warnings=[*answer.warnings_of(rows, len(cells)), *warnings_of(sensitivity)],
        answer=answer.of_comparison(rows, chosen, overlap),
        cells=len(cells),
        label=measurements.label,
    )


def _fitted_again(
    competing: Sequence[FloorStructure],
    short: Mapping[str, Found],
    rows: Sequence[Mapping[str, Any]],
    refits: bool,
) -> list[FloorStructure]:
    """Structures that a short fit does not do for: the study's, and those that may be chosen or speak of the overlap.

    Of those whose short fit failed, the one that scores best: the others would take longer than all else, and mostly
    fail again. With refits, and where no short fit passed, all that are not far behind.
    """
    best = rows[0] if rows[0]["elpd"] is not None else None
    if refits or best is None:
        return [s for s in competing if s == STUDY or best is None or not is_far(short[str(s)], short[best["name"]])]
    frees = {str(s) for s in competing if s.q_free}
    overlapped = next((row["name"] for row in rows if row["elpd"] is not None and row["name"] in frees), None)
    top = short[best["name"]]
    failed = [str(s) for s in competing if not (short[str(s)]["passed"] or is_below(short[str(s)], top))]
    failed = sorted(failed, key=lambda name: float(np.nan_to_num(short[name]["elpd"].sum(), nan=-np.inf)))[-1:]
    wanted = {best["name"], choose(rows), overlapped, str(STUDY), *failed}
    return [s for s in competing if str(s) in wanted]
