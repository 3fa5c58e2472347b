"""Acceptance of the reconstruction: simulated studies, reduced to rounded aggregates and reconstructed.

A sampler of imputed grids is right when its intervals cover what produced the aggregates. `accept` draws whole studies
from the prior under random readings, rounds their figures as the publication did, reconstructs each under its own
reading, and compares intervals with the truth. Failed reconstructions are counted, never dropped.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rooffloor.validate.common.files import write_text
from rooffloor.validate.published.imputation.chains import Effort, sample_parts, summaries
from rooffloor.validate.published.imputation.inversion import Inversion
from rooffloor.validate.published.imputation.prior_draws import prior_draws
from rooffloor.validate.published.imputation.readings import (
    DISCREPANCIES,
    FEASIBLE_READINGS,
    GRIDS,
    PIECES,
    WEIGHTED,
    Index,
    Intervals,
    Piece,
    row_name,
    row_names,
)
from rooffloor.validate.published.printed_figures import PublishedFigures

if TYPE_CHECKING:
    import pandas as pd

type Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Acceptance:
    """Coverage over simulated studies.

    Attributes
    ----------
    quantities : DataFrame
        One row per study, GPU and quantity: truth, posterior mean, the truth's rank among the draws (0 to 1),
        whether the 50 and 90 % intervals hold it.
    studies : DataFrame
        One row per study and GPU: reading, grid, discrepancy, whether it was reconstructed, R-hat, ESS.
    """

    quantities: "pd.DataFrame"
    studies: "pd.DataFrame"

    def coverage(self) -> "pd.DataFrame":
        """Coverage of the 50 and 90 % intervals by kind of quantity.

        Columns `in_50` and `in_90` are shares, `number` the quantities behind them, `se_50` and `se_90` standard
        errors with the study as the unit: quantities of one study share its constants.
        """
        grouped = self.quantities.groupby("kind")
        table = grouped.agg(in_50=("in_50", "mean"), in_90=("in_90", "mean"), number=("in_90", "size"))
        for level in (50, 90):
            by_study = self.quantities.groupby(["kind", "study"])[f"in_{level}"].mean().groupby("kind")
            table[f"se_{level}"] = by_study.std() / by_study.size() ** 0.5
        return table.reset_index()

    def __repr__(self) -> str:
        failed = int((~self.studies["reconstructed"]).sum())
        lines = [f"Acceptance({self.studies['study'].nunique()} simulated studies, {failed} parts not reconstructed)"]
        for row in self.coverage().to_dict("records"):
            lines.append(
                f"{row['kind']}: 50 % intervals cover {100 * row['in_50']:.0f} %, 90 % cover "
                f"{100 * row['in_90']:.0f} % of {row['number']}"
            )
        return "\n".join(lines)


def accept(
    studies: int,
    *,
    seed: int,
    jobs: int = 2,
    effort: Effort | None = None,
    progress: bool = False,
    folder: Path | None = None,
) -> Acceptance:
    """Simulate, reduce, reconstruct, compare.

    Parameters
    ----------
    studies : int
        Simulated studies; each is four separate pieces: the GPUs, and the mixture of experts.
    folder : Path, optional
        Where finished parts are kept, so that an interrupted run resumes.
    """
    import pandas as pd

    known = set(row_names())
    named = {row_name(f.quantity, f.model, f.gpu): f.rounding for f in PublishedFigures.load()}
    roundings = {name: rounding for name, rounding in named.items() if name in known}
    cases, truths = [], []
    for study in range(studies):
        choose = np.random.default_rng([seed, study])
        index = Index(
            GRIDS[choose.integers(len(GRIDS))],
            FEASIBLE_READINGS[choose.integers(len(FEASIBLE_READINGS))],
            WEIGHTED[choose.integers(len(WEIGHTED))],
            DISCREPANCIES[choose.integers(len(DISCREPANCIES))],
        )
        for where, piece in enumerate(PIECES):
            rng = np.random.default_rng([seed, study, where])
            inversion, q, intervals = simulate(index, piece, roundings, rng)
            idle = np.zeros((1, len(inversion.rows)))
            truths.append(summaries(inversion, np.concatenate([q, idle], axis=1)))
            cases.append((index, intervals, piece, [seed, study, where, 1]))
    parts = sample_parts(cases, effort, jobs=jobs, progress=progress, folder=folder, desc="simulated studies")
    heads, rows = [], []
    for (index, _, piece, (_, study, *_)), part, truth in zip(cases, parts, truths, strict=True):
        head = {"study": study, "gpu": piece.label, **index.labels(), "reconstructed": bool(part.q.size)}
        heads.append(head | {"least_misfit": part.least_misfit, "rhat": part.rhat, "ess": part.ess})
        if part.q.size:
            rows += _compared(
                study, piece.label, truth, summaries(part.inversion, part.q.reshape(-1, part.inversion.size))
            )
    return Acceptance(pd.DataFrame(rows), pd.DataFrame(heads))


def _compared(study: int, gpu: str, truth: Mapping[str, Array], draws: Mapping[str, Array]) -> list[dict[str, Any]]:
    """Rows of `Acceptance.quantities`: the draws of each quantity against its truth."""
    rows = []
    for name, values in draws.items():
        value = truth[name][0]
        rank = float((values < value).mean())
        offset = name.startswith(("anchor_offset", "self_floor"))
        rows.append(
            {
                "study": study,
                "gpu": gpu,
                "kind": "offset (unrounded)" if offset else name.split(",")[0],
                "quantity": name,
                "truth": value,
                "mean": float(values.mean()),
                "rank": rank,
                "in_50": bool(0.25 <= rank <= 0.75),
                "in_90": bool(0.05 <= rank <= 0.95),
            }
        )
    return rows


def save(result: Acceptance, folder: Path) -> None:
    """Write `acceptance.csv` (quantities) and `acceptance_studies.csv` into `folder`."""
    for name, table in (("acceptance", result.quantities), ("acceptance_studies", result.studies)):
        write_text(folder / f"{name}.csv", table.to_csv(index=False, float_format="%.6g", lineterminator="\n"))


def load(folder: Path) -> Acceptance:
    """Read what `save` wrote."""
    import pandas as pd

    return Acceptance(pd.read_csv(folder / "acceptance.csv"), pd.read_csv(folder / "acceptance_studies.csv"))


def simulate(
    index: Index, piece: Piece, roundings: dict[str, float], rng: np.random.Generator
) -> tuple[Inversion, Array, Intervals]:
    """A study drawn from the prior and its figures, each as the interval that its printed digits stand for.

    Returns
    -------
    inversion : Inversion
        Of the true index, with the intervals of the simulated figures.
    q : float array, shape (1, unknowns)
        The truth.
    intervals : mapping of figure to (low, high)
    """
    blank = Inversion(index, {}, piece.gpus, models=piece.models)
    q = prior_draws(blank, 500, rng).one(rng)
    exact = blank.figures(q)
    intervals = {}
    for name in row_names(*piece):
        digit = 2.0 * roundings[name]
        centre = np.round(exact[name][0] / digit) * digit
        intervals[name] = (centre - roundings[name], centre + roundings[name])
    return Inversion(index, intervals, piece.gpus, models=piece.models), q, intervals
