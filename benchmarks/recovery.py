"""Does the comparison find the structure that made the data? Studies simulated from each, all structures fitted.

A data set has the study's size and is simulated from one structure: noise is a share of the median step of its SKU,
floors are some noise sds apart. All candidate structures are fitted to it and ranked as `comparison` ranks them.
"""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from rooffloor.models.floor.structures import FloorStructure, overlap_ms
from rooffloor.models.roof.kernels import Work, launches_of, stack_work
from rooffloor.models.roof.roofline import Efficiency, work_ms
from rooffloor.models.specs.cells import Cells
from rooffloor.models.specs.classes import default_class
from rooffloor.validate.common.files import write_text
from rooffloor.validate.common.runner import run
from rooffloor.validate.comparison.comparison import candidates
from rooffloor.validate.comparison.ranking import choose, is_close, parameters, stacking_weights
from rooffloor.validate.comparison.worker import Task, leave_one_out
from rooffloor.validate.simulation.hypotheses import GRID

type Array = NDArray[np.float64]

ANCHOR, MOE = "Llama-3.1-8B", "Qwen1.5-MoE-A2.7B"
GPUS = ("H100", "H200", "A100-40GB")
PAIRS = (*((m, g) for m in (ANCHOR, "Qwen2.5-7B", "Llama-3.2-1B") for g in GPUS), (MOE, "H100"))
NOISE = 0.02
"""Noise of a step over the median step of its SKU."""
APART = 3.0
"""Distance of floors in noise sds."""
LEAST_FLOOR_MS = 3.0
TRUTHS = (
    FloorStructure("none"),
    FloorStructure("gpu", "added"),
    FloorStructure("gpu, class", "added"),
    FloorStructure("gpu, model", "added"),
    FloorStructure("gpu", "overlapped"),
    FloorStructure("gpu", "max"),
    FloorStructure("gpu, launches", "overlapped"),
)
FIT: dict[str, Any] = {"draws": 600, "tune": 500, "chains": 2, "cores": 1, "target_accept": 0.9}
"""Shorter than `worker.FIT`: only elpd is read."""
AGAIN: dict[str, Any] = FIT | {"tune": 1000, "target_accept": 0.98}
"""For fits whose R-hat exceeds `WORST_RHAT`; one that does so again is not ranked, as in a comparison."""
WORST_RHAT = 1.05


@dataclass(frozen=True, eq=False)
class Scenario:
    """Cells of the study's size, their work at peak rates and the classes of their models."""

    cells: Cells
    work: Work
    classes: Mapping[str, str]

    @classmethod
    def default(cls) -> "Scenario":
        """The study's grid."""
        rows = [(m, g, b, c) for m, g in PAIRS for b, c in GRID]
        cells = Cells.from_columns(*zip(*rows, strict=True))
        return cls(cells, stack_work(cells), {m: default_class(m) for m in cells.models})


def simulate(
    scenario: Scenario, truth: FloorStructure, rng: np.random.Generator, *, noise: float = NOISE, apart: float = APART
) -> tuple[Array, float]:
    """Steps [cell], ms, under a structure, and the overlap q used (NaN where it has none).

    Constants are drawn from the middle of their priors; q uniformly from 0.1 to 0.9. Floors of the groups that the
    structure tells apart lie `apart` noise sds from each other, in random order, the least at `LEAST_FLOOR_MS`; with
    launches, half of the floor grows with them.
    """
    cells = scenario.cells
    constants = Efficiency(
        eta_bw=rng.uniform(0.7, 0.9), eta_fa=rng.uniform(0.55, 0.85), eta_tc=rng.uniform(0.7, 0.9), l_half=200.0
    )
    T = work_ms(scenario.work, constants)
    sd = noise * np.array([np.median(T[cells.gpu_code == k]) for k in range(len(cells.gpus))])[cells.gpu_code]
    q = float("nan")
    step = T
    if truth.sharing is not None:
        code = cells.gpu_code * len(cells.models)
        if truth.sharing.dim is not None:
            code = code + truth.groups(cells, scenario.classes).code
        distinct, at = np.unique(code, return_inverse=True)
        floor = LEAST_FLOOR_MS + apart * sd.max() * rng.permutation(len(distinct))[at]
        if truth.sharing.per_launch:
            launches = launches_of(scenario.work)
            floor = floor * (0.5 + 0.5 * launches / launches.mean())
        q = rng.uniform(0.1, 0.9) if truth.q_free else 0.0 if truth.combine == "max" else 1.0
        step = overlap_ms(T, floor, q)
    return step + sd * rng.standard_normal(len(step)), q


def twin(structure: FloorStructure) -> FloorStructure:
    """The structure that makes the same steps where floors are positive: signed and H >= 0 floors, added."""
    other = {"added": "added, H >= 0", "added, H >= 0": "added"}
    return replace(structure, combine=other.get(structure.combine, structure.combine))


@dataclass(frozen=True, eq=False)
class _Chunk:
    """One candidate structure on many data sets."""

    structure: FloorStructure
    steps: Array
    seed: int


def _fit(chunk: _Chunk) -> dict[str, Any]:
    """elpd [data set, cell] of one candidate on every data set, divergences, largest Pareto k, mean and sd of q."""
    scenario = Scenario.default()
    first = replace(scenario.cells, step_ms=chunk.steps[0])
    task = Task(first, scenario.work, scenario.classes, chunk.structure, "normal", chunk.seed, ANCHOR)
    compiled = task.compiled()
    rows, elpds, qs = [], [], []
    for n, step in enumerate(chunk.steps):
        fit = compiled.fit({"measured_ms": step}, seed=chunk.seed + n, **FIT)
        if not fit.diagnostics.rhat <= WORST_RHAT:
            fit = compiled.fit({"measured_ms": step}, seed=chunk.seed + n, **AGAIN)
        own = replace(task, cells=replace(first, step_ms=step))
        elpd, k, _, _ = leave_one_out(own, fit.posterior)
        elpds.append(elpd if fit.diagnostics.rhat <= WORST_RHAT else np.full(len(step), np.nan))
        rows.append((fit.diagnostics.divergences, fit.diagnostics.rhat, float(np.max(k))))
        if chunk.structure.q_free:
            q = fit.posterior["q"].to_numpy()
            qs.append((*np.quantile(q, [0.05, 0.25, 0.75, 0.95]), q.std()))
    numbers = np.array(rows, dtype=float)
    found = {"elpd": np.array(elpds), "divergences": numbers[:, 0], "rhat": numbers[:, 1], "pareto_k": numbers[:, 2]}
    return found | ({"q": np.array(qs, dtype=float)} if qs else {})


@dataclass(frozen=True, eq=False)
class Recovery:
    """What the comparison made of simulated studies.

    Attributes
    ----------
    runs : DataFrame
        One row per data set: `truth`, `q`, `best`, `chosen`, `right` (chosen is the truth or its `twin`),
        `truth_diff` and `truth_dse` (elpd of the truth below the best and its standard error), `near` (within 4 elpd
        or 2 se), `weight` of the truth, `heaviest` structure and its weight, quantiles and sd of q of the best
        structure that frees it, `not_ranked` (structures whose fit failed twice), `rhat`, `divergences`, `pareto_k`
        (worst of those ranked).
    """

    runs: pd.DataFrame

    @property
    def data(self) -> dict[str, Any]:
        """Shares over all data sets, and per truth."""
        by = self.runs.groupby("truth", sort=False)
        table = by.agg(data_sets=("near", "size"), near=("near", "sum"), chosen=("right", "sum")).reset_index()
        return {
            "data_sets": len(self.runs),
            "near": int(self.runs["near"].sum()),
            "right": int(self.runs["right"].sum()),
            "per_truth": table.to_dict("records"),
        }

    def __repr__(self) -> str:
        d = self.data
        lines = [
            f"Recovery({d['data_sets']} simulated studies: the truth is within 4 elpd or 2 se of the best in "
            f"{d['near']}, chosen (it or its twin) in {d['right']})"
        ]
        lines += [f"  {r['truth']}: near {r['near']}, chosen {r['chosen']} of {r['data_sets']}" for r in d["per_truth"]]
        return "\n".join(lines)


def recover(
    *,
    each: int = 10,
    seed: int,
    truths: Sequence[FloorStructure] = TRUTHS,
    structures: Sequence[FloorStructure] | None = None,
    jobs: int | None = None,
    folder: Path | None = None,
    progress: bool = False,
) -> Recovery:
    """Simulate `each` studies from every truth, fit all candidates to each and rank them.

    Parameters
    ----------
    structures : sequence of FloorStructure, optional
        Candidates; default: those of `comparison.candidates`.
    jobs, folder
        See `runner.run`.
    """
    import pandas as pd

    scenario = Scenario.default()
    competing = tuple(structures or candidates(scenario.classes))
    rng = np.random.default_rng(seed)
    made = [(truth, *simulate(scenario, truth, rng)) for truth in truths for _ in range(each)]
    steps = np.array([step for _, step, _ in made])
    found = dict(
        zip(
            map(str, competing),
            run(
                _fit,
                [_Chunk(s, steps, seed) for s in competing],
                keys=[f"recovery {seed} {each} {truths!r} {FIT!r} {s!r}" for s in competing],
                jobs=jobs,
                folder=folder,
                progress=progress,
                desc="structures",
            ),
            strict=True,
        )
    )
    rows = []
    for n, (truth, _, q) in enumerate(made):
        elpd = {name: result["elpd"][n] for name, result in found.items() if np.isfinite(result["elpd"][n]).all()}
        best = max(elpd, key=lambda name: float(elpd[name].sum()))
        table = [
            {
                "name": str(s),
                "elpd": float(elpd[str(s)].sum()),
                "elpd_diff": float((gap := elpd[str(s)] - elpd[best]).sum()),
                "dse": float(np.sqrt(len(gap) * gap.var())),
                "parameters": parameters(s, scenario.cells, scenario.classes),
            }
            for s in competing
            if str(s) in elpd
        ]
        own = next((row for row in table if row["name"] == str(truth)), None)
        chosen = choose(table)
        weights = dict(zip(elpd, stacking_weights(list(elpd.values())), strict=True))
        heaviest = max(weights, key=lambda name: weights[name])
        free = max(
            (s for s in competing if s.q_free and str(s) in elpd), key=lambda s: float(elpd[str(s)].sum()), default=None
        )
        interval = [np.nan] * 5 if free is None else found[str(free)]["q"][n].tolist()
        rows.append(
            {
                "truth": str(truth),
                "q": q,
                "best": best,
                "chosen": chosen,
                "right": chosen in {str(truth), str(twin(truth))},
                "near": own is not None and is_close(own),
                "truth_diff": np.nan if own is None else own["elpd_diff"],
                "truth_dse": np.nan if own is None else own["dse"],
                "weight": float(weights.get(str(truth), np.nan)),
                "heaviest": heaviest,
                "heaviest_weight": float(weights[heaviest]),
                **dict(zip(("q_5", "q_25", "q_75", "q_95", "q_sd"), interval, strict=True)),
                "not_ranked": len(competing) - len(elpd),
                "rhat": max(float(found[name]["rhat"][n]) for name in elpd),
                "divergences": int(sum(found[name]["divergences"][n] for name in elpd)),
                "pareto_k": max(float(found[name]["pareto_k"][n]) for name in elpd),
            }
        )
    return Recovery(pd.DataFrame(rows))


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line: print the counts, write the rows."""
    parser = argparse.ArgumentParser(description=__doc__, prog="python benchmarks/recovery.py")
    parser.add_argument("--each", type=int, default=15, metavar="N", help="studies per structure (default: 15)")
    parser.add_argument("--seed", type=int, default=20261130, metavar="N")
    parser.add_argument("--jobs", type=int, metavar="N", help="processes (default: one per core)")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep finished work there: an interrupted run resumes")
    parser.add_argument("--out", type=Path, metavar="FILE", help="one row per study, as CSV")
    given = parser.parse_args(arguments)
    found = recover(each=given.each, seed=given.seed, jobs=given.jobs, folder=given.keep, progress=True)
    print(found)
    if given.out:
        write_text(given.out, found.runs.to_csv(index=False, float_format="%.4g"))


if __name__ == "__main__":
    main()
