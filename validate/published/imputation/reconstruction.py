"""Imputed grids: whole grids of cells that would print every published figure of the study.

The study published aggregates; its cells are unseen. `reconstruct` samples cells, GPU times, constants and offsets
given all figures at once, under each reading of the study (`readings.Index`), ordered (`readings.Discrepancy`), so
that each obeys what `bounds.exclusions` says of all grids; `imputation.acceptance` measures on simulated studies how
well the sampler's intervals cover the truth. Everything made here is *imputed from published
aggregates*: it follows from the published figures and the stated priors, and is no measurement.
"""

import gzip
import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from rooffloor.models.roof.kernels import KERNELS, stack_work
from rooffloor.models.roof.roofline import Efficiency, combine
from rooffloor.models.specs.cells import Cells
from rooffloor.validate.common.files import write_bytes, write_text
from rooffloor.validate.published.bounds.exclusions import exclusions
from rooffloor.validate.published.bounds.grid_programme import RATIO
from rooffloor.validate.published.imputation.chains import STORED, Effort, Part, pieces_of, sample_parts
from rooffloor.validate.published.imputation.inversion import CONSTANTS, Inversion
from rooffloor.validate.published.imputation.prior_draws import prior_draws
from rooffloor.validate.published.imputation.readings import (
    BOUNDS,
    DISCREPANCIES,
    GRIDS,
    PIECES,
    READINGS,
    ROOF,
    ROOFS,
    UNORDERED,
    WEIGHTED,
    Index,
    Intervals,
    Piece,
    row_name,
    row_names,
    targets,
)
from rooffloor.validate.published.printed_figures import A100, CELLS, H100, MOE, SKUS, SMALL, PublishedFigures

if TYPE_CHECKING:
    import pandas as pd

type Array = NDArray[np.float64]

LABEL = "imputed from published aggregates"


def assemble(parts: Sequence[Part], intervals: Intervals, number: int, seed: Sequence[int]) -> list[Array]:
    """Whole studies from independent parts: random draws of each that together obey the pooled figures.

    Returns
    -------
    list of float arrays, one per part, each of shape (found, size)
        `found` is `number` unless hardly any combination obeys the pooled figures.
    """
    rng = np.random.default_rng(np.random.SeedSequence(seed))
    tries = 40 * number
    picked = []
    for part in parts:
        chains, length, _ = part.q.shape
        # Distinct chains first: the order of chains is a random permutation, repeated as needed.
        order = np.concatenate([rng.permutation(chains) for _ in range(-(-tries // chains))])[:tries]
        picked.append(part.q[order, rng.integers(length, size=tries)])
    good = np.ones(tries, bool)
    if len(parts) > 1:
        residuals = {n: v for part, q in zip(parts, picked, strict=True) for n, v in part.inversion.figures(q).items()}
        for row in (r for r in BOUNDS if r.endswith("pooled") and r in intervals):
            mean = np.mean([residuals[row.replace("pooled", gpu)] for gpu in SKUS], axis=0)
            low, high = intervals[row]
            good &= (mean >= low) & (mean <= high)
    keep = np.flatnonzero(good)[:number]
    return [q[keep] for q in picked]


# ---- the whole reconstruction -----------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Reconstruction:
    """Imputed grids with their labels and weights, and what was tried.

    Attributes
    ----------
    cells : DataFrame
        One row per imputation and cell; `origin` is "imputed". `weight` sums to 1 over imputations: that of a roof, by
        the evidence of the figures (`roof_weights`), shared by its indices and their grids; 0 under the rougher prior.
    indices : DataFrame
        One row per index and part tried: feasible or not, least misfit, figure at fault, log marginal likelihood,
        sampler diagnostics.
    figures : DataFrame
        One row per published figure: share of imputations, by weight, that return it within its rounding.
    """

    cells: "pd.DataFrame"
    indices: "pd.DataFrame"
    figures: "pd.DataFrame"

    def __repr__(self) -> str:
        grids = self.cells["imputation"].nunique()
        back = int((self.figures["share_within"] > 0.995).sum())
        return f"Reconstruction({grids} grids {LABEL}; {back} of {len(self.figures)} published figures return)"

    @property
    def readings(self) -> dict[str, bool]:
        """Offset readings, and whether each fits under any grid, roof and prior: on every GPU at once."""
        whole = self.indices.groupby(["reading", "grid", "roof", "discrepancy"], sort=False)["feasible"].all()
        return {str(name): bool(fits) for name, fits in whole.groupby("reading", sort=False).any().items()}

    @property
    def text(self) -> str:
        """Text for a person: figures that do not return and readings that are infeasible."""
        unfit = [name for name, fits in self.readings.items() if not fits]
        lines = [repr(self), f"infeasible offset readings: {', '.join(unfit) or 'none'}"]
        for row in self.data["figures"]:
            if row["share_within"] <= 0.995:
                lines.append(
                    f"not always within its rounding: {row['model']} {row['gpu']} {row['quantity']} "
                    f"{row['published']:g} {row['unit']} (imputed {row['imputed']:.4g})"
                )
        return "\n".join(lines)

    @property
    def data(self) -> dict[str, Any]:
        """The tables of indices and figures as records."""
        return {name: getattr(self, name).to_dict(orient="records") for name in ("indices", "figures")}


def reconstruct(
    figures: PublishedFigures | None = None,
    *,
    seed: int,
    per_index: int = 24,
    effort: Effort | None = None,
    jobs: int = 2,
    progress: bool = False,
    folder: Path | None = None,
) -> Reconstruction:
    """Sample imputed grids under every feasible reading of the study.

    The first of `WEIGHTED` is run under every reading, the second under `FEW`; both carry weight. Grids under the
    rougher of `DISCREPANCIES` have weight 0. Each part is seeded by its own name, so that any subset gives the same
    draws.

    Parameters
    ----------
    per_index : int
        Grids kept per index.
    folder : Path, optional
        Where finished parts are kept, so that an interrupted run resumes; nothing is kept if None.
    """
    figures = figures or PublishedFigures.load()
    intervals = targets(figures)
    tried: list[Tried] = []

    def run(tasks: Sequence[tuple[Index, Sequence[Piece]]], *, search: bool = False) -> list[Tried]:
        asked = [(i, intervals, piece, _seed_of(i, piece, seed)) for i, pieces in tasks for piece in pieces]
        given: dict[str, Any] = {"jobs": jobs, "progress": progress, "folder": folder, "desc": tasks[0][0].roof.name}
        parts = iter(sample_parts(asked, effort, search=search, **given))
        return [(index, [(piece, next(parts)) for piece in pieces]) for index, pieces in tasks]

    main, free = WEIGHTED
    # What no start reaches without order is infeasible with it.
    tried += run([(Index(GRIDS[0], r, roof, UNORDERED[1]), (Piece(),)) for roof in ROOFS[:2] for r in FEW], search=True)
    excluded = _excluded(figures)
    tried += run([(Index(g, r, main, UNORDERED[1]), (PIECES[-1],)) for g in GRIDS for r in excluded], search=True)
    # The mixture's steps are flat: ordered grids of it exist under some readings alone.
    readings = [(g, r) for g in GRIDS for r in READINGS if r not in excluded]
    mixtures = run([(Index(g, r, main, DISCREPANCIES[0]), (PIECES[1],)) for g, r in readings])
    tried += [one for one in mixtures if not one[1][0][1].q.size]
    tried += run([(index, PIECES) for index, ((_, part),) in mixtures if part.q.size])
    tried += run([(Index(g, r, free, DISCREPANCIES[0]), PIECES) for g in GRIDS for r in FEW])
    tried += run([(Index(g, r, main, DISCREPANCIES[1]), PIECES) for g in GRIDS for r in FEW])
    # One set of constants per GPU: the H100 alone tells whether classes share them.
    tried += run([(Index(GRIDS[0], FEW[0], ROOF, DISCREPANCIES[0]), (Piece((H100,)),))])
    return _collect(tried, figures, intervals, per_index, seed)


def _excluded(figures: PublishedFigures) -> list[str]:
    """Offset readings, means over all cells, that need steps farther apart than `RATIO` (`bounds.exclusions`)."""
    far = exclusions(figures)[f"{SMALL}/{A100}: steps under a mean offset"].low > RATIO
    return ["mean", "relative least squares"] if far else []


FEW = ("median",)
"""Readings of what is not run under all."""

type Tried = tuple[Index, Sequence[tuple[Piece, Part]]]


def _seed_of(index: Index, piece: Piece, seed: int) -> list[int]:
    digest = hashlib.sha256(repr((index.labels(), piece.gpus, piece.models)).encode()).digest()
    return [seed, *np.frombuffer(digest[:8], dtype=np.uint32).tolist()]


def complete(one: Tried) -> bool:
    """Whether all pieces of an index have draws."""
    index, parts = one
    return [piece for piece, _ in parts] == list(pieces_of(index)) and all(part.q.size for _, part in parts)


def log_bayes_factor(part: Part, rng: np.random.Generator) -> float:
    """Log Bayes factor of a roof against the same roof with a factor on T per model, from draws of the latter.

    The first is the second with all factors 1: posterior over prior density of their latents at 0 (Savage and Dickey),
    both by a normal through the draws, the prior's restricted to possible grids.
    """
    t = part.inversion.tables
    blocks, first = len(part.inversion.blocks), t.constants * t.sets
    size = (t.unknowns - first) // blocks
    at = first + size * np.arange(blocks) + 2 + CELLS
    prior = prior_draws(part.inversion, 2000, rng)
    weight = np.exp(prior.log_weight - prior.log_weight.max())
    posterior = part.q.reshape(-1, part.q.shape[-1])[:, at]
    return _log_density_at_0(posterior, np.ones(len(posterior))) - _log_density_at_0(prior.q[:, at], weight)


def _log_density_at_0(draws: Array, weight: Array) -> float:
    mean = np.average(draws, axis=0, weights=weight)
    covariance = np.atleast_2d(np.cov(draws.T, aweights=weight))
    _, log_determinant = np.linalg.slogdet(2.0 * np.pi * covariance)
    return float(-0.5 * (log_determinant + mean @ np.linalg.solve(covariance, mean)))


def roof_weights(tried: Sequence[Tried], seed: int) -> tuple[dict[str, float], float]:
    """Posterior weights of the roofs of `WEIGHTED`, equally likely a priori, given the figures.

    Returns
    -------
    weights : mapping of roof name to weight
    log_bf : float
        Mean log Bayes factor of the first against the second over the indices of the second, with which it is made.
    """
    main, free = WEIGHTED
    rng = np.random.default_rng([seed, 2])
    logs = [
        sum(log_bayes_factor(part, rng) for _, part in one[1])
        for one in tried
        if one[0].roof == free and one[0].discrepancy == DISCREPANCIES[0] and complete(one)
    ]
    log_bf = float(np.mean(logs)) if logs else np.inf
    share = float(expit(log_bf))
    return {main.name: share, free.name: 1.0 - share}, log_bf


def _collect(
    tried: Sequence[Tried], figures: PublishedFigures, intervals: Intervals, per_index: int, seed: int
) -> Reconstruction:
    import pandas as pd

    frames: list[pd.DataFrame] = []
    diagnostics, checks = [], []
    weights, _ = roof_weights(tried, seed)
    drawn = []
    for index, parts in tried:
        for piece, part in parts:
            diagnostics.append(
                index.labels()
                | {"gpus": piece.label, "feasible": bool(part.q.size), "worst_figure": part.worst_row}
                | {name: getattr(part, name) for name in STORED if name not in ("q", "worst_row")}
            )
        if complete((index, parts)):
            own = [part for _, part in parts]
            draws = assemble(own, intervals, per_index, [*_seed_of(index, Piece(), seed), 1])
            if len(draws[0]):
                drawn.append((index, own, draws))
    weighted = Counter(i.roof.name for i, _, _ in drawn if i.discrepancy == DISCREPANCIES[0])
    for index, own, draws in drawn:
        count = len(draws[0])
        of_roof = weights.get(index.roof.name, 0.0) if index.discrepancy == DISCREPANCIES[0] else 0.0
        weight = of_roof / (weighted[index.roof.name] * count) if of_roof else 0.0
        for k in range(count):
            one = [(part.inversion, q[[k]]) for part, q in zip(own, draws, strict=True)]
            frame = pd.concat([_frame(*piece) for piece in one], ignore_index=True)
            labels: dict[str, Any] = {"imputation": len(frames), **index.labels(), "weight": weight}
            frames.append(frame.assign(**labels)[[*labels, *frame.columns]])
            found = {name: float(value[0]) for inversion, q in one for name, value in inversion.figures(q).items()}
            checks.append((weight, found | _followed(frame, found)))
    return Reconstruction(pd.concat(frames, ignore_index=True), pd.DataFrame(diagnostics), _returned(figures, checks))


def _frame(inversion: Inversion, q: Array) -> "pd.DataFrame":
    """Cells of one draw in the measurement schema, with T_gpu and the constants behind it."""
    import pandas as pd

    grids, cells = inversion.grids(q), inversion.cells
    frame = pd.DataFrame(
        {
            "model": cells.model,
            "gpu": cells.gpu,
            "batch": cells.batch.astype(int),
            "context": cells.context.astype(int),
            "step_ms": grids.y[0],
            "gpu_ms": grids.T[0],
            "origin": "imputed",
        }
    )
    for name in CONSTANTS:
        frame[name] = grids.constants[name][0, inversion.set_of_cell] if name in grids.constants else 0.0
    return frame


def _followed(frame: "pd.DataFrame", found: Mapping[str, float]) -> dict[str, float]:
    """Published figures of an imputed study that follow from its cells and other figures, by row name."""
    out = {}
    for model in {name.split()[1] for name in found if name.startswith("residual_mape")}:
        out[f"residual_mape {model} pooled"] = float(np.mean([found[f"residual_mape {model} {gpu}"] for gpu in SKUS]))
    small = frame[frame["model"] == SMALL].groupby("gpu")
    out[f"gpu_compute_low {SMALL}"] = float(small["gpu_ms"].mean().min())
    out[f"gpu_compute_high {SMALL}"] = float(small["gpu_ms"].mean().max())
    out["step_typical unspecified"] = float(small["step_ms"].median()["A100-40GB"])
    moe = frame[frame["model"] == MOE]
    cells = Cells.from_columns(list(moe["model"]), list(moe["gpu"]), moe["batch"], moe["context"])
    # Without launch latency, under each row's own constants.
    kernels = combine(stack_work(cells, experts="active"), Efficiency(eta_bw=moe["eta_bw"].to_numpy()))
    dispatch = kernels[:, KERNELS.index("router")] + kernels[:, KERNELS.index("dispatch")]
    return out | {f"dispatch_median {MOE}": float(np.median(dispatch))}


def _returned(figures: PublishedFigures, checks: Sequence[tuple[float, dict[str, float]]]) -> "pd.DataFrame":
    import pandas as pd

    weight = np.array([w for w, _ in checks])
    rows = []
    for figure in figures:
        name = row_name(figure.quantity, figure.model, figure.gpu)
        values = np.array([found[name] for _, found in checks])
        low, high = figure.interval
        slack = 1e-6 * max(1.0, abs(figure.value))
        within = (values >= low - slack) & (values <= high + slack)
        distance = np.maximum(np.maximum(low - values, values - high), 0.0)
        rows.append(
            {
                "model": figure.model,
                "gpu": figure.gpu,
                "quantity": figure.quantity,
                "published": figure.value,
                "rounding": figure.rounding,
                "unit": figure.unit,
                "conditioned_on": name in set(row_names()),
                "imputed": float(weight @ values),
                "share_within": float(weight @ within),
                "mean_misfit": float(weight @ distance),
            }
        )
    return pd.DataFrame(rows)


TABLE = "imputed_grids.csv.gz"


def save(result: Reconstruction, folder: Path) -> None:
    """Write the three tables; the cells compressed, with 8 significant digits and no time stamp inside."""
    text = result.cells.to_csv(index=False, float_format="%.8g", lineterminator="\n")
    write_bytes(folder / TABLE, gzip.compress(text.encode(), compresslevel=9, mtime=0))
    for name in ("indices", "figures"):
        table = getattr(result, name).to_csv(index=False, float_format="%.6g", lineterminator="\n")
        write_text(folder / f"{name}.csv", table)


def load(folder: Path) -> Reconstruction:
    """Read what `save` wrote."""
    import pandas as pd

    indices = pd.read_csv(folder / "indices.csv", keep_default_na=True)
    return Reconstruction(pd.read_csv(folder / TABLE), indices, pd.read_csv(folder / "figures.csv"))
