"""Which floor do the published figures support? What the competing structures' marginal likelihoods say.

No grid is imputed and then fitted (that would test the structure under which it was imputed): every structure is
judged by its own `marginal.marginal` likelihood of all figures, summed over the GPUs, whose constants, floors and
overlaps are independent of each other, and averaged over the readings of the study. The three pooled residuals are
left out: given the residuals per GPU that they average they only say how those were rounded, in the same way
under every structure. `compete` makes the runs, `comparison.answer` puts them in words.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from rooffloor.models.floor.structures import COMBINE, PER_MODEL, FloorStructure
from rooffloor.validate.common.files import write_text
from rooffloor.validate.published.printed_figures import PER_GPU, SKUS

if TYPE_CHECKING:
    import pandas as pd

type Array = NDArray[np.float64]

REFERENCE, PLAIN = PER_MODEL, PER_GPU

STRUCTURES = (
    FloorStructure("none"),
    *(FloorStructure(shared_by, how) for how in COMBINE for shared_by in ("gpu", "gpu, class", "gpu, model")),
)

SIDE = np.log(3.0)
"""A Bayes factor within 1/3 to 3 takes no side."""

INDEX = ["grid", "reading", "discrepancy"]
KEYS = ["structure", *INDEX, "gpu", "scale"]


@dataclass(frozen=True, eq=False)
class Competition:
    """Marginal likelihoods of the published figures under each structure, and what follows from them.

    Attributes
    ----------
    runs : DataFrame
        One row per structure, index, GPU and prior scale: the numbers of `marginal.Marginal` (`log_ml` -inf: out of
        reach).
    """

    runs: "pd.DataFrame"

    def scores(self, scale: str = "default") -> "pd.DataFrame":
        """Log marginal likelihood of the study, log-mean-exp over indices, with `se`; best first.

        Columns `log_ml_{gpu}` are the same for the figures of one GPU alone.
        """
        import pandas as pd

        rows = []
        for structure in self.runs.loc[self.runs["scale"] == scale, "structure"].unique():
            log_ml, se = averaged(*self.logs(structure, scale))
            row: dict[str, Any] = {"structure": structure, "log_ml": log_ml, "se": se}
            row |= {f"log_ml_{gpu}": averaged(*self.logs(structure, scale, gpu))[0] for gpu in self.gpus}
            rows.append(row)
        return pd.DataFrame(rows).sort_values("log_ml", ascending=False, ignore_index=True, kind="stable")

    @property
    def gpus(self) -> list[str]:
        """The GPUs, in the order of the study."""
        found = set(self.runs["gpu"])
        return [gpu for gpu in SKUS if gpu in found]

    @property
    def scales(self) -> list[str]:
        """The prior scales that were run, "default" first."""
        return sorted(self.runs["scale"].unique().tolist(), key=lambda scale: scale != "default")

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
        ordered = self.runs.sort_values([*INDEX, "gpu"])
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

    def verdict(self, first: str, second: str) -> str:
        """Whether the figures are more likely under the first structure than under the second, over prior scales.

        A first structure whose likelihood the computation did not reach is "out of reach": that is not "less likely".
        """
        if first == second:
            return "the same"
        if not np.isfinite(averaged(*self.logs(first))[0]):
            return "out of reach"
        run = [scale for scale in self.scales if all(self.logs(one, scale)[0].size for one in (first, second))]
        return verdict([side for scale in run for side in sides_of(*self.log_bf(first, second, scale))])

    def to_frame(self) -> "pd.DataFrame":
        """One row per structure, best first: scores, log Bayes factors against `REFERENCE` and the best, verdicts."""
        table = self.scores()
        order = table["structure"].tolist()
        for label, other in (("reference", str(REFERENCE)), ("best", self.best)):
            for scale in self.scales:
                table[f"log_bf, {scale} against {label}"] = [self.log_bf(one, other, scale)[0] for one in order]
            table[f"verdict against {label}"] = [self.verdict(one, other) for one in order]
        return table

    @property
    def data(self) -> dict[str, Any]:
        """Everything as JSON can hold it; None is out of reach (a likelihood) or without meaning (all else)."""
        reference, best = str(REFERENCE), self.best
        known = {str(f): (f.shared_by, f.combine if f.sharing is not None else "none") for f in STRUCTURES}

        def judged(one: str, **given: str) -> dict[str, float | None]:
            log_ml, error = averaged(*self.logs(one, **given))
            log_bf, log_bf_error = self.log_bf(one, reference, **given)
            numbers = {"log_ml": log_ml, "se": error, "log_bf": log_bf, "log_bf_se": log_bf_error}
            return {name: finite(value) for name, value in numbers.items()}

        def row(one: str, log_ml: float, se: float) -> dict[str, Any]:
            shared_by, combine = known.get(one, (one, ""))
            return {
                "name": one,
                "shared_by": shared_by,
                "combine": combine,
                "log_ml": finite(log_ml),
                "se": finite(se),
                "per_gpu": [
                    {"gpu": gpu, **judged(one, gpu=gpu), "ended_at": self.ended_at(one, gpu)} for gpu in self.gpus
                ],
                "per_scale": [
                    {"scale": scale, "run": bool(self.logs(one, scale)[0].size), **judged(one, scale=scale)}
                    for scale in self.scales
                ],
                "verdict": self.verdict(one, reference),
                "verdict_against_best": self.verdict(one, best),
            }

        scores = self.scores()
        return {
            "reference": reference,
            "best": best,
            "structures": [row(*one) for one in zip(scores["structure"], scores["log_ml"], scores["se"], strict=True)],
            "readings": [{**index, **judged(best, reading=index["reading"])} for index in self.indices()],
            "scales": self.scales,
        }

    def indices(self, scale: str = "default") -> list[dict[str, str]]:
        """Grid, reading and discrepancy prior of each index that was run under a prior scale."""
        own = self.runs[self.runs["scale"] == scale]
        return [dict(zip(INDEX, row, strict=True)) for row in own[INDEX].drop_duplicates().to_numpy().tolist()]

    def ended_at(self, structure: str, gpu: str) -> float:
        """Width, in roundings, at which the worst ladder of a structure ended under the default prior; 1 at best."""
        of = {"structure": structure, "scale": "default", "gpu": gpu}
        return float(self.runs.loc[np.logical_and.reduce([self.runs[k] == v for k, v in of.items()]), "width"].max())

    def __repr__(self) -> str:
        table, count = self.to_frame(), len(self.indices())
        lines = [f"Competition({len(table)} floor structures on the published figures, {count} readings of the study)"]
        for row in table.to_dict("records"):
            lines.append(
                f"{row['structure']}: log marginal likelihood {row['log_ml']:.1f} ± {row['se']:.1f}; against "
                f"{REFERENCE} {row['log_bf, default against reference']:+.1f} "
                f"({row['verdict against reference']}); against the best {row['verdict against best']}"
            )
        return "\n".join(lines)


def averaged(log_ml: Array, se: Array) -> tuple[float, float]:
    """Log-mean-exp over indices of independent GPUs, whose logs add up, and its standard error.

    Parameters
    ----------
    log_ml, se : float arrays, shape (index, gpu)
    """
    logs, variance = log_ml.sum(1), (se**2).sum(1)
    total = logsumexp(logs)
    if not np.isfinite(total):
        return float("-inf"), float("nan")
    share = np.exp(logs - total)
    return float(total - np.log(len(logs))), float(np.sqrt((share[share > 0] ** 2 * variance[share > 0]).sum()))


def log_bayes_factor(first: Array, first_se: Array, second: Array, second_se: Array) -> tuple[float, float]:
    """Difference of the averages of two structures and its standard error, all of shape (index, gpu).

    A run that both share (`compete.Task.canonical`) has one error, not two. Infinite where one is out of reach, NaN
    where both are.
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
    """Sides of both ends of two standard errors; any side where the factor (out of reach) or its error is not known."""
    if not np.isfinite(log_bf) or np.isnan(se):
        return -1, 1
    return side_of(log_bf - 2.0 * se), side_of(log_bf + 2.0 * se)


def verdict(sides: Sequence[int]) -> str:
    """In words, the sides that the Bayes factors take over prior scales and two standard errors."""
    if len(set(sides)) > 1:
        return "not determined"
    return {1: "more likely", -1: "less likely", 0: "not told apart"}[sides[0]]


TABLE = "competition.csv"


def save(result: Competition, folder: Path) -> None:
    """Write the runs as `competition.csv`, all that a `Competition` holds."""
    write_text(folder / TABLE, result.runs.to_csv(index=False, float_format="%.8g", lineterminator="\n"))


def load(folder: Path) -> Competition:
    """Read what `save` wrote."""
    import pandas as pd

    numbers = ("log_ml", "se", "log_possible", "levels", "width")
    types = dict.fromkeys(KEYS, str) | dict.fromkeys(numbers, float)
    missing = {name: [""] for name in numbers}
    return Competition(pd.read_csv(folder / TABLE, dtype=types, keep_default_na=False, na_values=missing))
