"""Imputed grids: whole grids of cells that would print every published figure of the study.

The study published aggregates; its cells are unseen. `reconstruct` samples cells, GPU times, constants and offsets
given all figures at once, under each reading of the study (`inversion.Index`); `imputation.acceptance` measures on
simulated studies how well the sampler's intervals cover the truth. Everything made here is *imputed from published
aggregates*: it follows from the published figures and the stated priors, and is no measurement.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rooffloor.models.roof.kernels import KERNELS
from rooffloor.models.roof.roofline import Efficiency, combine
from rooffloor.validate.published.imputation.inversion import (
    BOUNDS,
    CELLS,
    CONSTANTS,
    DISCREPANCIES,
    GRIDS,
    MOE,
    READINGS,
    ROOFS,
    SKUS,
    SMALL,
    Index,
    Inversion,
    row_names,
)
from rooffloor.validate.published.imputation.manifold import TOLERANCE, project, sample
from rooffloor.validate.published.printed_figures import Figure, PublishedFigures

if TYPE_CHECKING:
    import pandas as pd

type Array = NDArray[np.float64]
type Intervals = Mapping[str, tuple[float, float]]

LABEL = "imputed from published aggregates"


@dataclass(frozen=True)
class Effort:
    """How hard the sampler works on one index.

    Attributes
    ----------
    chains : int
        Starts, and chains.
    tries : int
        Fresh sets of starts until one arrives at the figures; an index where none does is infeasible.
    draws : int
        Draws kept per chain.
    warmup, thin : int
        Transitions discarded, and transitions per draw, of the first round; each round doubles both and goes on
        where the last one ended.
    rounds : int
        Most rounds.
    rhat, ess : float
        A round is the last when the largest R-hat and the smallest bulk ESS of `summaries` are within these.
    """

    chains: int = 16
    tries: int = 4
    draws: int = 100
    warmup: int = 1000
    thin: int = 20
    rounds: int = 5
    rhat: float = 1.05
    ess: float = 200.0


def targets(figures: Iterable[Figure]) -> dict[str, tuple[float, float]]:
    """Intervals of the published figures that the inversion conditions on, by row name.

    Four figures are left out because the study does not say what they are of, and are only checked: the 1B's "about
    2 to 5 ms" of GPU time and "roughly 10 ms" step (no GPU named), and the dispatch median (a closed form of ours).
    """
    known = set(row_names())
    found = {}
    for row in figures:
        name = row_name(row.quantity, row.model, row.gpu)
        if name in known:
            found[name] = row.interval
    return found


def row_name(quantity: str, model: str, gpu: str) -> str:
    """Name of a published figure among `inversion.row_names`."""
    fixed = {
        "measured": "cell measured",
        "predicted_with_self_floor": "cell predicted",
        "error": "cell error",
    }
    if quantity in fixed:
        return fixed[quantity]
    if quantity == "anchor_offset":
        return f"anchor_offset {gpu}"
    if quantity in ("raw_mape", "residual_mape"):
        return f"{quantity} {model} {gpu}"
    if quantity == "step_typical" and gpu == "unspecified":
        return "step_typical unspecified"
    return f"{quantity} {model}"


@dataclass(frozen=True)
class Part:
    """Draws of one independent part of an index (one GPU where constants are per GPU, else all GPUs).

    Attributes
    ----------
    q : float array, shape (chain, draw, size)
        Empty where no start arrived.
    arrived : float
        Share of the starts that the annealed projection brought onto every figure.
    least_misfit : float
        Least worst misfit over the starts, in units of half the rounding; 0 where one arrived.
    worst_row : str
        The figure at fault where none arrived.
    acceptance, rhat, ess : float
        Of the chains: acceptance rate, largest rank-normalised split R-hat and smallest bulk ESS over `summaries`.
    """

    inversion: Inversion
    q: Array
    arrived: float
    least_misfit: float
    worst_row: str = ""
    acceptance: float = float("nan")
    rhat: float = float("nan")
    ess: float = float("nan")


def parts_of(index: Index) -> tuple[tuple[str, ...], ...]:
    """Groups of GPUs that an index inverts separately."""
    return tuple((gpu,) for gpu in SKUS) if index.roof.per_gpu else (SKUS,)


def sample_part(
    index: Index,
    intervals: Intervals,
    gpus: tuple[str, ...],
    seed: Sequence[int],
    effort: Effort | None = None,
) -> Part:
    """Sample the grids of some GPUs under one index."""
    effort = effort or Effort()
    inversion = Inversion(index, intervals, gpus)
    manifold = inversion.manifold()
    start_seed, chain_seed = np.random.SeedSequence(seed).spawn(2)
    least, worst = np.inf, ""
    for child in start_seed.spawn(effort.tries):
        q, misfit = starts(inversion, effort.chains, child)
        good = misfit < TOLERANCE
        if good.any():
            break
        best = int(np.argmin(misfit))
        if misfit[best] < least:
            least, worst = float(misfit[best]), inversion.rows[int(np.argmax(np.abs(manifold.values(q[[best]])[0])))]
    else:
        return Part(inversion, np.empty((0, 0, inversion.size)), 0.0, least, worst)
    for step, child in enumerate(chain_seed.spawn(effort.rounds)):
        chains = sample(
            manifold, q, draws=effort.draws, warmup=effort.warmup << step, thin=effort.thin << step, seed=child
        )
        rhat, ess = _mixing(inversion, chains.draws)
        if rhat <= effort.rhat and ess >= effort.ess:
            break
        q = chains.draws[:, -1]
    return Part(inversion, chains.draws, float(good.mean()), 0.0, "", float(chains.acceptance.mean()), rhat, ess)


WIDENINGS = (16.0, 4.0, 1.0)


def starts(inversion: Inversion, number: int, seed: np.random.SeedSequence) -> tuple[Array, Array]:
    """Prior draws brought onto the figures with annealed tolerance (randomized maximum likelihood).

    The rounding intervals start wide and shrink. At each width the starts are projected; those that do not arrive, or
    break a bound, are replaced by copies of those that do; some transitions of the sampler then part the copies
    and carry all away from the kinks at which Gauss-Newton would be trapped.

    Returns
    -------
    q : float array, shape (number, size)
        Starts on the figures; where none arrived, the last trial points.
    misfit : float array, shape (number,)
        max |c| of the last trial points; above `TOLERANCE`, or infinite where a bound is broken: not arrived.
    """
    seeds = seed.spawn(2 + 2 * len(WIDENINGS))
    q = np.random.default_rng(seeds[0]).standard_normal((number, inversion.size))
    copies = np.random.default_rng(seeds[1])
    misfit = np.full(number, np.inf)
    for step, width in enumerate(WIDENINGS):
        wide = inversion.manifold(width)
        q, misfit = project(wide, q, seed=seeds[2 + 2 * step], enough=0.25)
        good = (misfit < TOLERANCE) & wide.all_allowed(q)
        if not good.any():
            continue
        q[~good] = q[copies.choice(np.flatnonzero(good), size=int((~good).sum()))]
        if width > 1.0:
            q = sample(wide, q, draws=1, warmup=100, seed=seeds[3 + 2 * step]).draws[:, -1]
    return q, np.where((misfit < TOLERANCE) & ~good, np.inf, misfit)


def summaries(inversion: Inversion, q: Array) -> dict[str, Array]:
    """Block means of y and T in ms, offsets and constants of each draw; q of shape (draw, size)."""
    grids = inversion.grids(q)
    by_block = {"mean step": grids.y, "mean T_gpu": grids.T}
    out = {
        f"{name}, {model} on {gpu}": values[:, at * CELLS : (at + 1) * CELLS].mean(-1)
        for name, values in by_block.items()
        for at, (model, gpu) in enumerate(inversion.blocks)
    }
    figures = inversion.figures(q)
    out |= {name: figures[name] for name in figures if "offset" in name or name.startswith("self_floor ")}
    for name, values in grids.constants.items():
        columns = inversion.gpus if inversion.index.roof.per_gpu else ("all GPUs",)
        out |= {f"{name}, {gpu}": values[:, k] for k, gpu in enumerate(columns)}
    return out


def _mixing(inversion: Inversion, draws: Array) -> tuple[float, float]:
    from arviz_stats.base import array_stats

    chains, length, size = draws.shape
    values = summaries(inversion, draws.reshape(-1, size))
    stacked = np.stack([v.reshape(chains, length) for v in values.values()])
    rhat = max(float(array_stats.rhat(v, chain_axis=0, draw_axis=1)) for v in stacked)
    ess = min(float(array_stats.ess(v, chain_axis=0, draw_axis=1)) for v in stacked)
    return rhat, ess


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
    pooled = [r for r in BOUNDS if r.endswith("pooled") and r in intervals]
    if len(parts) > 1:
        residuals: dict[str, Array] = {}
        for part, q in zip(parts, picked, strict=True):
            residuals |= part.inversion.figures(q)
        for row in pooled:
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
        One row per imputation and cell; `origin` is "imputed". `weight` sums to 1 over imputations: the prior weight
        of an index (equal for all feasible ones) shared by its grids; 0 for the sensitivity roof.
    indices : DataFrame
        One row per index and part tried: feasible or not, least misfit, figure at fault, sampler diagnostics.
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
    def summary(self) -> str:
        """The same, with the figures that do not return and the readings that are infeasible."""
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
    per_index: int = 10,
    effort: Effort | None = None,
    jobs: int = 2,
    progress: bool = False,
    folder: Path | None = None,
) -> Reconstruction:
    """Sample imputed grids under every feasible reading of the study.

    The leanest `Roof` under which any index fits supplies the grids that carry weight; "free T per cell" supplies
    grids of weight 0 for sensitivity. Each part is seeded by its own name, so that any subset gives the same draws.

    Parameters
    ----------
    per_index : int
        Grids kept per index; a third as many for the sensitivity roof.
    folder : Path, optional
        Where finished parts are kept, so that an interrupted run resumes; nothing is kept if None.
    """
    figures = figures or PublishedFigures.load()
    intervals = targets(figures)
    tried: list[tuple[Index, tuple[Part, ...]]] = []
    chosen = ROOFS[-1]
    for roof in ROOFS[:-1]:
        # Leftovers of any shape can be reached under either discrepancy prior: one is enough to try a lean roof.
        first = [Index(g, r, roof, DISCREPANCIES[0]) for g in GRIDS for r in READINGS]
        done = _run(first, intervals, seed, effort, jobs, progress, folder)
        tried += done
        feasible = [index for index, parts in done if all(p.q.size for p in parts)]
        if feasible:
            chosen = roof
            second = [Index(i.grid, i.reading, roof, DISCREPANCIES[1]) for i in feasible]
            tried += _run(second, intervals, seed, effort, jobs, progress, folder)
            break
    free = [Index(g, r, ROOFS[-1], DISCREPANCIES[0]) for g in GRIDS for r in ("median", "smallest batch")]
    tried += _run(free, intervals, seed, effort, jobs, progress, folder)
    return _collect(tried, chosen.name, figures, intervals, per_index, seed)


def run(
    *,
    out: str | Path | None = None,
    seed: int = 20261129,
    per_index: int = 10,
    jobs: int = 2,
    accept: int = 0,
    quiet: bool = False,
) -> Reconstruction:
    """What `rooffloor reconstruct` does: everything that the embedded study ships beside its published figures.

    Writes into the folder `out` (default reports/reconstruction) imputed_grids.csv.gz, indices.csv, figures.csv and
    imputed_posteriors.npz, and with `accept` > 0 the acceptance on so many simulated studies. Finished parts are kept
    in `out`/.parts: an interrupted run resumes.
    """
    from rooffloor.validate.fitting import evidence
    from rooffloor.validate.published.imputation import acceptance
    from rooffloor.validate.study.study import Study

    target = Path(out) if out is not None else Path("reports") / "reconstruction"
    parts = target / ".parts"
    result = reconstruct(seed=seed, per_index=per_index, jobs=jobs, progress=not quiet, folder=parts)
    save(result, target)
    evidence.build_cache(Study.load("transfer-study"), target, quiet=quiet)
    if accept:
        acceptance.save(acceptance.accept(accept, seed=seed, jobs=jobs, progress=not quiet, folder=parts), target)
    return result


def _run(
    tasks: Sequence[Index],
    intervals: Intervals,
    seed: int,
    effort: Effort | None,
    jobs: int,
    progress: bool,
    folder: Path | None,
) -> list[tuple[Index, tuple[Part, ...]]]:
    from joblib import Parallel, delayed
    from tqdm import tqdm

    calls = [
        delayed(sample_kept)(index, intervals, gpus, _seed_of(index, gpus, seed), effort, folder)
        for index in tasks
        for gpus in parts_of(index)
    ]
    results = Parallel(n_jobs=jobs, return_as="generator")(calls)
    bar = iter(tqdm(results, total=len(calls), desc=tasks[0].roof.name, disable=not progress, unit="part"))
    return [(index, tuple(next(bar) for _ in parts_of(index))) for index in tasks]


def _seed_of(index: Index, gpus: tuple[str, ...], seed: int) -> list[int]:
    digest = hashlib.sha256(repr((index.labels(), gpus)).encode()).digest()
    return [seed, *np.frombuffer(digest[:8], dtype=np.uint32).tolist()]


def sample_kept(
    index: Index,
    intervals: Intervals,
    gpus: tuple[str, ...],
    seed: Sequence[int],
    effort: Effort | None = None,
    folder: Path | None = None,
) -> Part:
    """`sample_part` on one thread, kept in `folder` and read back from there."""
    from threadpoolctl import threadpool_limits

    effort = effort or Effort()
    kept = None
    if folder is not None:
        key = repr((index, gpus, sorted(intervals.items()), list(seed), effort))
        kept = folder / f"{hashlib.sha256(key.encode()).hexdigest()[:20]}.npz"
        if kept.exists():
            return _load_part(kept, Inversion(index, intervals, gpus))
    with threadpool_limits(limits=1):
        part = sample_part(index, intervals, gpus, seed, effort)
    if kept is not None:
        _save_part(kept, part)
    return part


_NUMBERS = ("arrived", "least_misfit", "acceptance", "rhat", "ess")


def _save_part(path: Path, part: Part) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".part.npz")
    numbers = np.array([getattr(part, name) for name in _NUMBERS])
    np.savez(partial, q=part.q, numbers=numbers, worst_row=np.array(part.worst_row))
    partial.replace(path)


def _load_part(path: Path, inversion: Inversion) -> Part:
    with np.load(path, allow_pickle=False) as stored:
        numbers = dict(zip(_NUMBERS, stored["numbers"].tolist(), strict=True))
        return Part(inversion, stored["q"], worst_row=str(stored["worst_row"]), **numbers)


def _collect(
    tried: Sequence[tuple[Index, tuple[Part, ...]]],
    chosen: str,
    figures: PublishedFigures,
    intervals: Intervals,
    per_index: int,
    seed: int,
) -> Reconstruction:
    import pandas as pd

    diagnostics, frames, checks = [], [], []
    weighted = sum(i.roof.name == chosen and all(p.q.size for p in parts) for i, parts in tried)
    imputation = 0
    for index, parts in tried:
        feasible = all(p.q.size for p in parts)
        for gpus, part in zip(parts_of(index), parts, strict=True):
            diagnostics.append(
                index.labels()
                | {"gpus": " + ".join(gpus), "feasible": bool(part.q.size), "worst_figure": part.worst_row}
                | {name: getattr(part, name) for name in _NUMBERS}
            )
        if not feasible:
            continue
        wanted = per_index if index.roof.name == chosen else max(1, per_index // 3)
        draws = assemble(parts, intervals, wanted, [*_seed_of(index, SKUS, seed), 1])
        count = len(draws[0])
        weight = 1.0 / (weighted * count) if index.roof.name == chosen and count else 0.0
        for k in range(count):
            rows = [_frame(part.inversion, q[[k]]) for part, q in zip(parts, draws, strict=True)]
            frame = pd.concat(rows, ignore_index=True)
            labels: dict[str, Any] = {"imputation": imputation, **index.labels(), "weight": weight}
            frames.append(frame.assign(**labels)[[*labels, *frame.columns]])
            found: dict[str, Array] = {}
            for part, q in zip(parts, draws, strict=True):
                found |= part.inversion.figures(q[[k]])
            checks.append((weight, figures_of(frame, found)))
            imputation += 1
    return Reconstruction(pd.concat(frames, ignore_index=True), pd.DataFrame(diagnostics), _returned(figures, checks))


def _frame(inversion: Inversion, q: Array) -> "pd.DataFrame":
    """Cells of one draw in the measurement schema, with T_gpu and the constants behind it."""
    import pandas as pd

    grids = inversion.grids(q)
    cells = inversion.cells
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
        values = grids.constants.get(name)
        frame[name] = 0.0 if values is None else values[0, inversion.set_of_cell]
    return frame


def figures_of(frame: "pd.DataFrame", found: Mapping[str, Array]) -> dict[str, float]:
    """Every published figure that an imputed study returns, by row name; those that are only checked included."""
    out = {name: float(value[0]) for name, value in found.items()}
    for model in {name.split()[1] for name in out if name.startswith("residual_mape")}:
        own = [out[f"residual_mape {model} {gpu}"] for gpu in SKUS]
        out[f"residual_mape {model} pooled"] = float(np.mean(own))
    small = frame[frame["model"] == SMALL].groupby("gpu")
    out[f"gpu_compute_low {SMALL}"] = float(small["gpu_ms"].mean().min())
    out[f"gpu_compute_high {SMALL}"] = float(small["gpu_ms"].mean().max())
    out["step_typical unspecified"] = float(small["step_ms"].median()["A100-40GB"])
    moe = frame[frame["model"] == MOE]
    out[f"dispatch_median {MOE}"] = float(np.median(dispatch_ms(moe)))
    return out


def dispatch_ms(moe: "pd.DataFrame") -> Array:
    """Time of router and dispatch without launch latency, ms, shape (cell,), under each row's own constants."""
    from rooffloor.models.roof.kernels import stack_work
    from rooffloor.models.specs.cells import Cells

    cells = Cells.from_columns(list(moe["model"]), list(moe["gpu"]), moe["batch"], moe["context"])
    kernels = combine(stack_work(cells, experts="active"), Efficiency(eta_bw=moe["eta_bw"].to_numpy()))
    return kernels[:, KERNELS.index("router")] + kernels[:, KERNELS.index("dispatch")]


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
    import gzip

    from rooffloor.validate.common.files import write_bytes, write_text

    text = result.cells.to_csv(index=False, float_format="%.8g", lineterminator="\n")
    folder.mkdir(parents=True, exist_ok=True)
    write_bytes(folder / TABLE, gzip.compress(text.encode(), compresslevel=9, mtime=0))
    for name in ("indices", "figures"):
        table = getattr(result, name).to_csv(index=False, float_format="%.6g", lineterminator="\n")
        write_text(folder / f"{name}.csv", table)


def load(folder: Path) -> Reconstruction:
    """Read what `save` wrote."""
    import pandas as pd

    indices = pd.read_csv(folder / "indices.csv", keep_default_na=True)
    return Reconstruction(pd.read_csv(folder / TABLE), indices, pd.read_csv(folder / "figures.csv"))
