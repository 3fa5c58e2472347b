"""Which floor do the published figures support? Structures compete by the probability that they give the figures.

No grid is imputed and then fitted (that would test the structure under which it was imputed): every structure is
judged by its own `marginal.marginal` likelihood of all figures, summed over the GPUs, whose constants, floors and
overlaps are independent of each other, and averaged over the readings of the study. The three pooled residuals are
left out: given the residuals per GPU that they average they only say how those were rounded, in the same way
under every structure.
"""

import dataclasses
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from rooffloor.models.floor.structures import COMBINE, FloorStructure
from rooffloor.validate.published.evidence.marginal import Effort, marginal
from rooffloor.validate.published.imputation.inversion import PER_MODEL, Inversion, Prior
from rooffloor.validate.published.imputation.readings import (
    BOUNDS,
    DISCREPANCIES,
    FEASIBLE_READINGS,
    GRIDS,
    ROOF,
    Index,
    Intervals,
    row_names,
    targets,
)
from rooffloor.validate.published.printed_figures import SKUS, PublishedFigures

if TYPE_CHECKING:
    import pandas as pd

type Array = NDArray[np.float64]

REFERENCE = PER_MODEL
"""What the study assumes at its richest: added, signed, one per (GPU, model)."""
PLAIN = FloorStructure("gpu", "added")
"""What the study's transfer claim assumes: added, signed, one per GPU for all models."""

STRUCTURES = (
    FloorStructure("none"),
    *(FloorStructure(shared_by, how) for how in COMBINE for shared_by in ("gpu", "gpu, class", "gpu, model")),
)

SCALES: Mapping[str, tuple[float, float]] = {
    "default": (1.0, 1.0),
    "floors halved": (0.5, 1.0),
    "floors doubled": (2.0, 1.0),
    "leftovers halved": (1.0, 0.5),
    "leftovers doubled": (1.0, 2.0),
}
"""Factors on the prior scales of floors and leftovers (`Prior.scaled`)."""

INDICES = tuple(
    Index(GRIDS[k % 2], reading, ROOF, DISCREPANCIES[k // 2 % 2]) for k, reading in enumerate(FEASIBLE_READINGS[:1])
)
"""One of the 24 feasible ways to read the study: a second one doubles hours of computing."""

EFFORT = Effort(chains=40, levels=80)
LIGHT = dataclasses.replace(EFFORT, repeats=2)
"""For the other prior scales."""
CLOSE = dataclasses.replace(EFFORT, chains=200)
COARSE = 2.0
"""Runs of the best structure and its rival whose standard error is larger are made again with `CLOSE`."""
WIDE = 1e4
"""So many times as wide as its rounding, the interval of a figure that is left out does not bind."""

SIDE = np.log(3.0)
"""A Bayes factor within 1/3 to 3 takes no side."""

INDEX = ["grid", "reading", "discrepancy"]
KEYS = ["structure", *INDEX, "gpu", "scale", "left_out"]


@dataclass(frozen=True)
class Task:
    """One marginal likelihood: a structure on one GPU under one index and prior scale, but for a left-out figure."""

    floor: FloorStructure
    index: Index
    gpu: str
    scale: str = "default"
    left_out: str = ""

    @property
    def labels(self) -> dict[str, str]:
        """The columns `KEYS` of this task's row."""
        index = {name: label for name, label in self.index.labels().items() if name != "roof"}
        left = {"gpu": self.gpu, "scale": self.scale, "left_out": self.left_out}
        return {"structure": str(self.floor), **index, **left}

    @property
    def canonical(self) -> "Task":
        """The task with the same answer that is run: one GPU without the MoE has no classes, no floor no scale."""
        floor, scale = self.floor, self.scale
        if self.gpu != "H100":
            shared_by = "gpu" if floor.shared_by == "gpu, class" else floor.shared_by
            floor = FloorStructure(shared_by, floor.combine)
        if floor.sharing is None:
            scale = "default" if scale.startswith("floors") else scale
        return Task(floor, self.index, self.gpu, scale, self.left_out)


@dataclass(frozen=True, eq=False)
class Competition:
    """Marginal likelihoods of the published figures under each structure, and what follows from them.

    Attributes
    ----------
    runs : DataFrame
        One row per structure, index, GPU, prior scale and left-out figure: the numbers of `marginal.Marginal`
        (`log_ml` -inf: out of reach), `log_given` and `given_se` being those of the left-out figure given all others.
    """

    runs: "pd.DataFrame"

    def scores(self, scale: str = "default") -> "pd.DataFrame":
        """Log marginal likelihood of the study, log-mean-exp over indices, with `se`; best first.

        Columns `log_ml_{gpu}` are the same for the figures of one GPU alone.
        """
        import pandas as pd

        kept = self._whole[self._whole["scale"] == scale]
        rows = []
        for structure in kept["structure"].unique():
            log_ml, se = averaged_study(*self.logs(structure, scale))
            row: dict[str, Any] = {"structure": structure, "log_ml": log_ml, "se": se}
            row |= {f"log_ml_{gpu}": averaged_study(*self.logs(structure, scale, gpu))[0] for gpu in self.gpus}
            rows.append(row)
        return pd.DataFrame(rows).sort_values("log_ml", ascending=False, ignore_index=True, kind="stable")

    @cached_property
    def _whole(self) -> "pd.DataFrame":
        """The runs that condition on all figures."""
        return self.runs[self.runs["left_out"] == ""]

    @property
    def gpus(self) -> list[str]:
        """The GPUs, in the order of the study."""
        found = self._whole["gpu"].unique().tolist()
        return sorted(found, key=lambda gpu: SKUS.index(gpu) if gpu in SKUS else len(SKUS))

    @property
    def scales(self) -> list[str]:
        """The prior scales that were run, "default" first."""
        return sorted(self._whole["scale"].unique().tolist(), key=lambda scale: scale != "default")

    def logs(self, structure: str, scale: str = "default", gpu: str = "", reading: str = "") -> tuple[Array, Array]:
        """Log marginal likelihoods and standard errors of one structure, each of shape (index, gpu)."""
        own = self._by_structure.get((structure, scale))
        if own is None:
            return np.empty((0, 1)), np.empty((0, 1))
        kept = [own["gpu"] == gpu] if gpu else []
        kept += [own["reading"] == reading] if reading else []
        at = np.logical_and.reduce(kept) if kept else np.ones(len(own["gpu"]), dtype=bool)
        width = max(len(np.unique(own["gpu"][at])), 1)
        return own["log_ml"][at].reshape(-1, width), own["se"][at].reshape(-1, width)

    @cached_property
    def _by_structure(self) -> dict[tuple[str, str], dict[str, NDArray[Any]]]:
        """Columns of the runs of each (structure, prior scale), sorted by index and GPU."""
        names = ("gpu", "reading", "log_ml", "se")
        ordered = self._whole.sort_values([*INDEX, "gpu"])
        return {
            (str(structure), str(scale)): {name: own[name].to_numpy() for name in names}
            for (structure, scale), own in ordered.groupby(["structure", "scale"], sort=False)
        }

    def log_bf(
        self, first: str, second: str, scale: str = "default", gpu: str = "", reading: str = ""
    ) -> tuple[float, float]:
        """Log Bayes factor of two structures and its standard error (`log_bayes_factor`); NaN where one was not run."""
        own, other = (self.logs(structure, scale, gpu, reading) for structure in (first, second))
        if own[0].shape != other[0].shape or not own[0].size:
            return float("nan"), float("nan")
        return log_bayes_factor(*own, *other)

    @property
    def best(self) -> str:
        """The structure with the largest marginal likelihood under the default prior."""
        return str(self.scores()["structure"].iloc[0])

    def against(self, other: str) -> "pd.DataFrame":
        """Log Bayes factors of every structure against another, one column per prior scale, and the verdict."""
        import pandas as pd

        order = self.scores()["structure"].tolist()
        table = pd.DataFrame({"structure": order})
        for scale in self.scales:
            table[f"log_bf, {scale}"] = [self.log_bf(one, other, scale)[0] for one in order]
        table["verdict"] = [self.verdict(one, other) for one in order]
        return table

    def verdict(self, first: str, second: str) -> str:
        """Whether the figures are more likely under the first structure than under the second, over prior scales."""
        if first == second:
            return "the same"
        run = [scale for scale in self.scales if all(self.logs(one, scale)[0].size for one in (first, second))]
        return verdict([side for scale in run for side in sides_of(*self.log_bf(first, second, scale))])

    def to_frame(self) -> "pd.DataFrame":
        """One row per structure, best first: scores, log Bayes factors against `REFERENCE` and the best, verdicts."""
        import pandas as pd

        table = self.scores()
        for label, other in (("reference", str(REFERENCE)), ("best", self.best)):
            one = self.against(other).drop(columns="structure").add_suffix(f" against {label}")
            table = pd.concat([table, one], axis=1)
        return table

    def influence(self) -> "pd.DataFrame":
        """What each left-out figure adds to the log Bayes factor of the two swept structures, largest first.

        Under one index and the default prior; the Bayes factors are those of the figures of one GPU alone. `change` is
        how much likelier the figure is under `first` than under `second`, given all others of its GPU; `log_bf_without`
        the log Bayes factor of all others. Empty where no sweep was made.
        """
        import pandas as pd

        columns = ["figure", "gpu", "first", "second", "log_bf", "log_bf_without", "change", "se"]
        swept = self.runs[self.runs["left_out"] != ""]
        rows = []
        for (figure, gpu), pair in swept.groupby(["left_out", "gpu"], sort=False):
            first, second = pair["structure"]
            log_bf, _ = self.log_bf(first, second, gpu=str(gpu), reading=pair["reading"].iloc[0])
            with np.errstate(invalid="ignore"):  # out of reach against out of reach
                change = float(np.subtract(*pair["log_given"]))
            se = float(np.hypot(*pair["given_se"]))
            rows.append([figure, gpu, first, second, log_bf, log_bf - change, change, se])
        found = pd.DataFrame(rows, columns=columns)
        order = found["change"].abs().sort_values(ascending=False, kind="stable").index
        return found.loc[order].reset_index(drop=True)

    @property
    def answer(self) -> list[str]:
        """Which structure the published figures support, in sentences."""
        from rooffloor.validate.reporting.sections import which_floor

        return which_floor.answer(self)

    @property
    def data(self) -> dict[str, Any]:
        """Everything as JSON can hold it; None is out of reach (a likelihood) or without meaning (all else)."""
        reference, best, scores = str(REFERENCE), self.best, self.scores().to_dict("records")

        shared = {str(f): (f.shared_by, f.combine if f.sharing is not None else "none") for f in STRUCTURES}

        def judged(one: str, **given: str) -> dict[str, float | None]:
            log_ml, error = averaged_study(*self.logs(one, **given))
            log_bf, log_bf_error = self.log_bf(one, reference, **given)
            numbers = {"log_ml": log_ml, "se": error, "log_bf": log_bf, "log_bf_se": log_bf_error}
            return {name: finite(value) for name, value in numbers.items()}

        rows = [
            {
                "name": row["structure"],
                "shared_by": shared.get(row["structure"], (row["structure"], ""))[0],
                "combine": shared.get(row["structure"], (row["structure"], ""))[1],
                "log_ml": finite(row["log_ml"]),
                "se": finite(row["se"]),
                "per_gpu": [
                    {"gpu": gpu, **judged(row["structure"], gpu=gpu), "ended_at": self.ended_at(row["structure"], gpu)}
                    for gpu in self.gpus
                ],
                "per_scale": [
                    {
                        "scale": scale,
                        "run": bool(self.logs(row["structure"], scale)[0].size),
                        **judged(row["structure"], scale=scale),
                    }
                    for scale in self.scales
                ],
                "verdict": self.verdict(row["structure"], reference),
                "verdict_against_best": self.verdict(row["structure"], best),
            }
            for row in scores
        ]
        moved = self.influence().to_dict(orient="records")
        return {
            "reference": reference,
            "best": best,
            "structures": rows,
            "influence": [{k: finite(v) if isinstance(v, float) else v for k, v in row.items()} for row in moved],
            "readings": [{**index, **judged(best, reading=index["reading"])} for index in self.indices()],
            "scales": self.scales,
        }

    def indices(self, scale: str = "default") -> list[dict[str, str]]:
        """Grid, reading and discrepancy prior of each index that was run under a prior scale."""
        own = self._whole[self._whole["scale"] == scale]
        return [dict(zip(INDEX, row, strict=True)) for row in own[INDEX].drop_duplicates().to_numpy().tolist()]

    def ended_at(self, structure: str, gpu: str = "") -> float:
        """Width, in roundings, at which the worst ladder of a structure ended under the default prior; 1 at best."""
        own = self._whole[(self._whole["structure"] == structure) & (self._whole["scale"] == "default")]
        return float((own[own["gpu"] == gpu] if gpu else own)["width"].max())

    def __repr__(self) -> str:
        table, count = self.to_frame(), len(self.indices())
        lines = [f"Competition({len(table)} floor structures on the published figures, {count} readings of the study)"]
        for row in table.to_dict("records"):
            lines.append(
                f"{row['structure']}: log marginal likelihood {row['log_ml']:.1f} ± {row['se']:.1f}; against "
                f"{REFERENCE} {row['log_bf, default against reference']:+.1f} "
                f"({row['verdict against reference']}); against the best {row['verdict against best']}"
            )
        moved = self.influence()
        if len(moved):
            top = moved.iloc[0]
            lines.append(
                f"figure that moves {top['first']} against {top['second']} most: {top['figure']} ({top['gpu']}), "
                f"log Bayes factor {top['log_bf_without']:+.1f} without it, {top['log_bf']:+.1f} with it "
                f"(change ± {top['se']:.1f})"
            )
        return "\n".join(lines)


def averaged(log_ml: Array, variance: Array) -> tuple[float, float]:
    """Log-mean-exp over indices and its standard error from the variances of the logs, both of shape (index,)."""
    total = logsumexp(log_ml)
    if not np.isfinite(total):
        return float("-inf"), float("nan")
    share = np.exp(log_ml - total)
    return float(total - np.log(len(log_ml))), float(np.sqrt((share[share > 0] ** 2 * variance[share > 0]).sum()))


def averaged_study(log_ml: Array, se: Array) -> tuple[float, float]:
    """`averaged` for independent GPUs, whose logs add up; both of shape (index, gpu)."""
    return averaged(log_ml.sum(1), (se**2).sum(1))


def log_bayes_factor(first: Array, first_se: Array, second: Array, second_se: Array) -> tuple[float, float]:
    """Difference of the averages of two structures and its standard error, all of shape (index, gpu).

    A run that both share (`Task.canonical`) has one error, not two. Infinite where one is out of reach, NaN where
    both are.
    """
    totals = [logsumexp(log.sum(1)) for log in (first, second)]
    if not np.isfinite(totals).all():
        with np.errstate(invalid="ignore"):
            return float(np.subtract(*totals)), float("nan")
    shares = [np.exp(log.sum(1) - total)[:, None] for log, total in zip((first, second), totals, strict=True)]
    a, b = (np.where(w > 0, w * e, 0.0) for w, e in zip(shares, (first_se, second_se), strict=True))
    shared = (first == second) & (first_se == second_se)
    variance = np.where(shared, (a - b) ** 2, a**2 + b**2).sum()
    return float(totals[0] - totals[1]), float(np.sqrt(variance))


def finite(value: float) -> float | None:
    """A number as JSON can hold it."""
    return float(value) if np.isfinite(value) else None


def side_of(log_bf: float) -> int:
    """1 for a Bayes factor above 3, -1 below 1/3, 0 between."""
    return int(log_bf > SIDE) - int(log_bf < -SIDE)


def sides_of(log_bf: float, se: float) -> tuple[int, ...]:
    """Sides of both ends of two standard errors; any side where the factor or its error is not known."""
    if np.isinf(log_bf):
        return (side_of(log_bf),)
    if np.isnan(log_bf) or np.isnan(se):
        return -1, 1
    return side_of(log_bf - 2.0 * se), side_of(log_bf + 2.0 * se)


def verdict(sides: Sequence[int]) -> str:
    """In words, the sides that the Bayes factors take over prior scales and two standard errors."""
    if len(set(sides)) > 1:
        return "not determined"
    return {1: "more likely", -1: "less likely", 0: "not told apart"}[sides[0]]


# ---- running ----------------------------------------------------------------------------------------------------


def compete(
    figures: PublishedFigures | None = None,
    *,
    seed: int,
    structures: Sequence[FloorStructure] = STRUCTURES,
    indices: Sequence[Index] = INDICES,
    scales: Sequence[str] = ("default", "floors halved", "floors doubled"),
    gpus: tuple[str, ...] = SKUS,
    effort: Effort = EFFORT,
    light: Effort = LIGHT,
    close: Effort = CLOSE,
    sweep: bool = True,
    jobs: int = 2,
    progress: bool = False,
    folder: Path | None = None,
) -> Competition:
    """Marginal likelihoods of the study under each structure, and which figure moves the verdict most.

    Each run is seeded by its own name, so that any subset gives the same numbers.

    Parameters
    ----------
    indices : sequence of Index
        With constants per GPU: the GPUs are independent problems only there.
    scales : sequence of str
        Keys of `SCALES`, "default" among them; the others are run under the first index alone, and only for structures
        that reach the figures under the default prior.
    effort, light, close : Effort
        Under the default prior; under the other scales and in the sweep; for the best structure and its rival again
        where the error is larger than `COARSE`, or a ladder of the sweep did not arrive.
    sweep : bool
        Leave out each figure in turn, for the best structure against `REFERENCE` (the runner-up where that is the
        best) under the index that is likeliest for the best, on the GPUs whose figures tell the two apart.
    folder : Path, optional
        Where finished runs are kept, so that an interrupted competition resumes.
    """
    import pandas as pd

    if not all(index.roof.per_gpu for index in indices):
        raise ValueError("the GPUs compete separately: every index needs a roof with constants per GPU")
    intervals = {n: i for n, i in targets(figures or PublishedFigures.load()).items() if not n.endswith("pooled")}

    def run(tasks: Sequence[Task], effort: Effort) -> list[dict[str, Any]]:
        return _run(tasks, intervals, seed, effort, jobs, progress, folder)

    def closer(
        tasks: Sequence[Task], rows: Sequence[dict[str, Any]], rough: Callable[[Task, dict[str, Any]], bool]
    ) -> list[dict[str, Any]]:
        """The rows of the tasks, rough ones made again."""
        again = [task for task, row in zip(tasks, rows, strict=True) if rough(task, row)]
        found = dict(zip(again, run(again, close), strict=True))
        return [found.get(task, row) for task, row in zip(tasks, rows, strict=True)]

    tasks = [Task(f, i, g) for i in indices for f in structures for g in gpus]
    rows = run(tasks, effort)
    result = Competition(pd.DataFrame(rows))
    scores = result.scores().set_index("structure")
    reached = [f for f in structures if np.isfinite(scores["log_ml"][str(f)])]
    others = [Task(f, indices[0], g, s) for s in scales if s != "default" for f in reached for g in gpus]
    tasks, rows = [*tasks, *others], [*rows, *run(others, light)]
    ranked = [str(name) for name in scores.index]
    if len(reached) < 2:
        return Competition(pd.DataFrame(rows))
    rival = str(REFERENCE) if str(REFERENCE) in ranked[1:] else ranked[1]
    pair = [f for name in (ranked[0], rival) for f in structures if str(f) == name]
    rows = closer(tasks, rows, lambda task, row: task.floor in pair and not row["se"] <= COARSE)
    if sweep:
        scores = Competition(pd.DataFrame(rows)).scores().set_index("structure")
        gap = {g: abs(scores[f"log_ml_{g}"][ranked[0]] - scores[f"log_ml_{g}"][rival]) for g in gpus}
        index = _likeliest(result, ranked[0], indices)
        left_out = [
            Task(floor, index, gpu, left_out=name)
            for gpu in gpus
            if not gap[gpu] <= SIDE
            for name in row_names((gpu,))
            if name in intervals and name not in BOUNDS
            for floor in pair
        ]
        rows += closer(left_out, run(left_out, light), lambda _, row: not np.isfinite(row["given_se"]))
    return Competition(pd.DataFrame(rows))


def _likeliest(result: Competition, structure: str, indices: Sequence[Index]) -> Index:
    own = result.runs[(result.runs["structure"] == structure) & (result.runs["scale"] == "default")]
    total = own.groupby(INDEX)["log_ml"].sum()
    return max(indices, key=lambda i: float(total[(i.grid.name, i.reading, i.discrepancy.name)]))


def _run(
    tasks: Sequence[Task],
    intervals: Intervals,
    seed: int,
    effort: Effort,
    jobs: int,
    progress: bool,
    folder: Path | None,
) -> list[dict[str, Any]]:
    """A row per task; tasks with the same canonical one share its run."""
    from joblib import Parallel, delayed
    from tqdm import tqdm

    distinct = list(dict.fromkeys(task.canonical for task in tasks))
    calls = [delayed(run_kept)(task, intervals, seed, effort, folder) for task in distinct]
    results = Parallel(n_jobs=jobs, return_as="generator")(calls)
    bar = tqdm(results, total=len(calls), desc="marginal likelihoods", disable=not progress, unit="run")
    found = dict(zip(distinct, bar, strict=True))
    return [task.labels | found[task.canonical] for task in tasks]


def run_kept(
    task: Task, intervals: Intervals, seed: int, effort: Effort, folder: Path | None = None
) -> dict[str, float]:
    """The marginal likelihood of one task on one thread, kept in `folder` and read back from there."""
    from threadpoolctl import threadpool_limits

    from rooffloor.validate.common.files import write_text

    prior = Prior().scaled(**dict(zip(("floor", "leftover"), SCALES[task.scale], strict=True)))
    name = hashlib.sha256(repr(task).encode()).digest()
    seeds = [seed, *np.frombuffer(name[:8], dtype=np.uint32).tolist()]
    kept = None
    if folder is not None:
        key = repr((task, sorted(intervals.items()), prior, seeds, effort))
        kept = folder / f"{hashlib.sha256(key.encode()).hexdigest()[:20]}.json"
        if kept.exists():
            return json.loads(kept.read_text())
    wanted, narrow = dict(intervals), None
    if task.left_out:
        low, high = wanted[task.left_out]
        middle, half = 0.5 * (low + high), 0.5 * WIDE * (high - low)
        wanted[task.left_out] = (middle - half, middle + half)
        narrow = (task.left_out, 1.0 / WIDE)
    inversion = Inversion(task.index, wanted, (task.gpu,), prior, task.floor)
    with threadpool_limits(limits=1):
        found = marginal(inversion, seed=seeds, effort=effort, narrow=narrow)
    row = dataclasses.asdict(found)
    if kept is not None:
        write_text(kept, json.dumps(row))
    return row


TABLE = "competition.csv"


def save(result: Competition, folder: Path) -> None:
    """Write the runs as `competition.csv`, all that a `Competition` holds."""
    from rooffloor.validate.common.files import write_text

    write_text(folder / TABLE, result.runs.to_csv(index=False, float_format="%.8g", lineterminator="\n"))


def load(folder: Path) -> Competition:
    """Read what `save` wrote."""
    import pandas as pd

    numbers = ("log_ml", "se", "log_possible", "levels", "width", "log_given", "given_se")
    return Competition(
        pd.read_csv(
            folder / TABLE,
            dtype=dict.fromkeys(KEYS, str) | dict.fromkeys(numbers, float),
            keep_default_na=False,
            na_values={name: [""] for name in numbers},
        )
    )


def run(
    *,
    out: str | Path | None = None,
    seed: int = 20261129,
    jobs: int = 2,
    quiet: bool = False,
    **given: Any,
) -> Competition:
    """The competition on the embedded study, saved into the folder `out` (default reports/competition).

    Finished runs are kept in `out`/.parts: an interrupted run resumes. `given` goes to `compete`.
    """
    target = Path(out) if out is not None else Path("reports") / "competition"
    result = compete(seed=seed, jobs=jobs, progress=not quiet, folder=target / ".parts", **given)
    save(result, target)
    return result
