"""Imputed grids: whole grids of cells that would print every published figure of the study.

The study published aggregates; its cells are unseen. `reconstruct` samples cells, GPU times, constants and offsets
given all figures at once, under each reading of the study (`inversion.Index`); `imputation.acceptance` measures on
simulated studies how well the sampler's intervals cover the truth. Everything made here is *imputed from published
aggregates*: it follows from the published figures and the stated priors, and is no measurement.
"""

import gzip
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rooffloor.models.roof.kernels import KERNELS, stack_work
from rooffloor.models.roof.roofline import Efficiency, combine
from rooffloor.models.specs.cells import Cells
from rooffloor.validate.common.files import write_bytes, write_text
from rooffloor.validate.published.imputation.chains import STORED, Effort, Part, parts_of, sample_parts
from rooffloor.validate.published.imputation.inversion import CONSTANTS, Inversion
from rooffloor.validate.published.imputation.readings import (
    BOUNDS,
    DISCREPANCIES,
    GRIDS,
    READINGS,
    ROOFS,
    Index,
    Intervals,
    row_name,
    row_names,
    targets,
)
from rooffloor.validate.published.printed_figures import MOE, SKUS, SMALL, PublishedFigures

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
    tried: list[tuple[Index, list[Part]]] = []

    def sampled(indices: Sequence[Index]) -> list[Index]:
        """Those that are feasible."""
        asked = [(i, intervals, gpus, _seed_of(i, gpus, seed)) for i in indices for gpus in parts_of(i)]
        given: dict[str, Any] = {"jobs": jobs, "progress": progress, "folder": folder, "desc": indices[0].roof.name}
        parts = iter(sample_parts(asked, effort, **given))
        tried.extend((index, [next(parts) for _ in parts_of(index)]) for index in indices)
        return [index for index, own in tried[-len(indices) :] if all(p.q.size for p in own)]

    chosen = ROOFS[-1]
    for roof in ROOFS[:-1]:
        # Leftovers of any shape can be reached under either discrepancy prior: one is enough to try a lean roof.
        feasible = sampled([Index(g, r, roof, DISCREPANCIES[0]) for g in GRIDS for r in READINGS])
        if feasible:
            chosen = roof
            sampled([Index(i.grid, i.reading, roof, DISCREPANCIES[1]) for i in feasible])
            break
    sampled([Index(g, r, ROOFS[-1], DISCREPANCIES[0]) for g in GRIDS for r in ("median", "smallest batch")])
    return _collect(tried, chosen.name, figures, intervals, per_index, seed)


def _seed_of(index: Index, gpus: tuple[str, ...], seed: int) -> list[int]:
    digest = hashlib.sha256(repr((index.labels(), gpus)).encode()).digest()
    return [seed, *np.frombuffer(digest[:8], dtype=np.uint32).tolist()]


def _collect(
    tried: Sequence[tuple[Index, Sequence[Part]]],
    chosen: str,
    figures: PublishedFigures,
    intervals: Intervals,
    per_index: int,
    seed: int,
) -> Reconstruction:
    import pandas as pd

    frames: list[pd.DataFrame] = []
    diagnostics, checks = [], []
    weighted = sum(i.roof.name == chosen and all(p.q.size for p in parts) for i, parts in tried)
    for index, parts in tried:
        for gpus, part in zip(parts_of(index), parts, strict=True):
            diagnostics.append(
                index.labels()
                | {"gpus": " + ".join(gpus), "feasible": bool(part.q.size), "worst_figure": part.worst_row}
                | {name: getattr(part, name) for name in STORED if name not in ("q", "worst_row")}
            )
        if not all(part.q.size for part in parts):
            continue
        wanted = per_index if index.roof.name == chosen else max(1, per_index // 3)
        draws = assemble(parts, intervals, wanted, [*_seed_of(index, SKUS, seed), 1])
        count = len(draws[0])
        weight = 1.0 / (weighted * count) if index.roof.name == chosen and count else 0.0
        for k in range(count):
            own = [(part.inversion, q[[k]]) for part, q in zip(parts, draws, strict=True)]
            frame = pd.concat([_frame(*one) for one in own], ignore_index=True)
            labels: dict[str, Any] = {"imputation": len(frames), **index.labels(), "weight": weight}
            frames.append(frame.assign(**labels)[[*labels, *frame.columns]])
            found = {name: float(value[0]) for inversion, q in own for name, value in inversion.figures(q).items()}
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
