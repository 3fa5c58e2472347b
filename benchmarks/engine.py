"""What the roof of many cells costs, and compiling and refitting a model, side by side with plainer ways."""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pymc as pm

from rooffloor.models.floor.structures import FloorStructure
from rooffloor.models.inference.gate import diagnose
from rooffloor.models.inference.sampling import compile_model
from rooffloor.models.inference.step_model import pymc_model
from rooffloor.models.inference.steps import StepModel
from rooffloor.models.roof.kernels import Experts, Work, decode_work, stack_work
from rooffloor.models.roof.roofline import Efficiency, combine, gpu_ms, total_ms, work_ms
from rooffloor.models.specs.cells import Cells
from rooffloor.models.specs.classes import default_class
from rooffloor.validate.common.files import write_json

STRUCTURES: Mapping[str, FloorStructure] = {
    "default": FloorStructure("gpu, class", "added"),
    "overlapped": FloorStructure("gpu", "overlapped"),
}
ROOFS: Sequence[tuple[str, Experts]] = (("Llama-3.1-8B", "active"), ("Qwen1.5-MoE-A2.7B", "distinct"))
MODELS = ("Llama-3.1-8B", "Qwen2.5-7B", "Llama-3.2-1B", "Qwen1.5-MoE-A2.7B")
GPUS = ("H100", "H200", "A100-40GB")
GRID = tuple((b, c) for b in (1, 2, 4, 8, 16) for c in (512, 2048, 8192))
TRUTH = Efficiency(eta_bw=0.8, eta_fa=0.7, eta_tc=0.8, l_half=200.0)
FLOOR_MS = {"H100": 4.0, "H200": 3.0, "A100-40GB": 9.0}
MOE_FLOOR_MS = 15.0
NOISE = 0.02
DRAWS, CHAINS, CORES = 1000, 4, 2
SETTINGS: Mapping[str, Any] = {"draws": DRAWS, "tune": 1000, "chains": CHAINS, "cores": CORES, "target_accept": 0.95}


@dataclass(frozen=True)
class Timing:
    """One structure; times in seconds of wall clock, ESS the lowest bulk ESS over the free variables.

    Attributes
    ----------
    cold_compile, warm_compile : float
        First compilation in a fresh process with an empty cache of compiled code, and with what that one left.
    refits : tuple of float
        4 x 1000 draws on data sets that the compiled model had not seen.
    ess : float
        Mean over the refits.
    pymc : float or None
        The whole call of ``pm.sample``, which compiles each time: what a refit costs there.
    pymc_sampling : float or None
        Of it, the chains.
    pymc_ess : float or None
    """

    structure: str
    cells: int
    cold_compile: float
    warm_compile: float
    refits: tuple[float, ...]
    ess: float
    divergences: int
    pymc: float | None = None
    pymc_sampling: float | None = None
    pymc_ess: float | None = None
    pymc_divergences: int | None = None

    @property
    def refit(self) -> float:
        """Median of the refits."""
        return float(np.median(self.refits))

    @property
    def ratios(self) -> dict[str, float]:
        """ESS per second of ours over PyMC's: against the whole call, and against its chains alone."""
        if self.pymc is None or self.pymc_sampling is None or self.pymc_ess is None:
            return {}
        ours = self.ess / self.refit
        return {
            "time_of_refit": self.pymc / self.refit,
            "ess_per_second": ours * self.pymc / self.pymc_ess,
            "ess_per_second_sampling_alone": ours * self.pymc_sampling / self.pymc_ess,
        }

    def record(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self) | {"refit": self.refit, "ratios": self.ratios}


@dataclass(frozen=True)
class RoofTiming:
    """T_gpu of random cells, millions of cells a second on one core, best of three runs.

    Attributes
    ----------
    blocks : float
        `gpu_ms` of all cells.
    kernels : float
        The sum over an array [cell, kernel] of the same cells.
    loop : float
        `gpu_ms` of one cell after another.
    """

    model: str
    experts: Experts
    cells: int
    blocks: float
    kernels: float
    loop: float

    def __str__(self) -> str:
        return (
            f"T_gpu of {self.cells:,} cells, {self.model}, experts {self.experts}: {self.blocks:.1f} M cells a second, "
            f"{self.blocks / self.kernels:.0f} times [cell, kernel] ({self.kernels:.2f} M), "
            f"{self.blocks / self.loop:.0f} times a loop ({1 / self.loop:.1f} us a cell)"
        )


def roof_timing(model: str, experts: Experts, cells: int, seed: int = 1) -> RoofTiming:
    """`gpu_ms` on an H100 at batches of 1 to 512 and contexts to 100,000 tokens, and two plainer ways."""
    rng, few = np.random.default_rng(seed), min(cells, 2000)
    batch, context = rng.integers(1, 513, cells), rng.integers(0, 100_001, cells)

    def by_kernel() -> Any:
        return total_ms(combine(decode_work(model, batch, context, gpu="H100", experts=experts), TRUTH))

    def one_by_one() -> Any:
        return [gpu_ms(model, "H100", b, c, TRUTH, experts) for b, c in zip(batch[:few], context[:few], strict=True)]

    def rate(call: Callable[[], Any], count: int) -> float:
        return count / min(seconds(call)[0] for _ in range(4)) / 1e6

    blocks = rate(partial(gpu_ms, model, "H100", batch, context, TRUTH, experts), cells)
    return RoofTiming(model, experts, cells, blocks, rate(by_kernel, cells), rate(one_by_one, few))


def simulated(structure: FloorStructure, seed: int) -> tuple[Cells, Work]:
    """150 cells (the MoE on one GPU alone) whose steps follow `structure`, with 2 % noise."""
    pairs = [(m, g) for m in MODELS for g in GPUS if m != MODELS[-1] or g == GPUS[0]]
    rows = [(m, g, b, c) for m, g in pairs for b, c in GRID]
    cells = Cells.from_columns(*zip(*rows, strict=True))
    work = stack_work(cells)
    floor = np.array([FLOOR_MS[g] for g in cells.gpus])[cells.gpu_code]
    if structure.shared_by == "gpu, class":
        floor = floor + np.where(cells.model == MODELS[-1], MOE_FLOOR_MS, 0.0)
    exact = structure.step_ms(work_ms(work, TRUTH), floor, 0.6)
    noise = NOISE * np.random.default_rng(seed).standard_normal(len(cells))
    return replace(cells, step_ms=exact * (1.0 + noise)), work


def model_of(structure: FloorStructure, seed: int = 0) -> StepModel:
    """The model of simulated cells, constants free."""
    cells, work = simulated(structure, seed)
    return StepModel(cells, work, {m: default_class(m) for m in MODELS}, structure, "free")


def seconds(call: Callable[[], Any]) -> tuple[float, Any]:
    """Wall time of a call, and what it returned."""
    start = time.perf_counter()
    result = call()
    return time.perf_counter() - start, result


def compile_seconds(structure: str, cache: Path) -> float:
    """Of a first, short fit in a fresh process that keeps compiled code under `cache`."""
    flags = ",".join(filter(None, (os.environ.get("PYTENSOR_FLAGS"), f"base_compiledir={cache}")))
    environment = os.environ | {"PYTENSOR_FLAGS": flags, "NUMBA_CACHE_DIR": str(cache)}
    command = [sys.executable, __file__, "--structures", structure, "--only-compile"]
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    return float(done.stdout.split()[-1])


def measure(name: str, *, with_pymc: bool = True, refits: int = 3, seed: int = 1) -> Timing:
    """Compile, refit, and sample the same data with PyMC."""
    structure = STRUCTURES[name]
    with tempfile.TemporaryDirectory() as folder:
        cold, warm = (compile_seconds(name, Path(folder)) for _ in range(2))
    compiled = compile_model(model_of(structure))
    compiled.fit(seed=seed, draws=10, tune=10, cores=CORES)  # threads and imports of the first call
    times, found = [], []
    for k in range(refits):
        data = {"measured_ms": np.asarray(simulated(structure, seed + k)[0].step_ms)}
        took, fit = seconds(partial(compiled.fit, data, seed=seed + k, **SETTINGS))
        times.append(took)
        found.append(fit.diagnostics)
    timing = Timing(
        name,
        len(compiled.data["measured_ms"]),
        cold,
        warm,
        tuple(times),
        float(np.mean([d.ess_bulk for d in found])),
        sum(d.divergences for d in found),
    )
    return replace(timing, **_by_pymc(structure, seed)) if with_pymc else timing


def _by_pymc(structure: FloorStructure, seed: int) -> dict[str, Any]:
    with pymc_model(model_of(structure, seed)) as model:
        sample = partial(pm.sample, nuts_sampler="pymc", progressbar=False, random_seed=seed, **SETTINGS)
        took, tree = seconds(sample)
    posterior, stats = (tree[group].to_dataset() for group in ("posterior", "sample_stats"))
    found = diagnose({rv.name: posterior[rv.name].values for rv in model.free_RVs}, stats)
    return {
        "pymc": took,
        "pymc_sampling": float(posterior.attrs["sampling_time"]),
        "pymc_ess": found.ess_bulk,
        "pymc_divergences": found.divergences,
    }


def table(timings: Sequence[Timing]) -> str:
    """The figures as text."""
    lines = []
    for t in timings:
        lines += [
            f"{t.structure} ({STRUCTURES[t.structure]}), {t.cells} cells, {CHAINS} x {DRAWS} draws, {CORES} cores",
            f"  compile      cold {t.cold_compile:6.1f} s   warm {t.warm_compile:6.1f} s",
            f"  rooffloor    refit {t.refit:5.1f} s   ESS {t.ess:6.0f}   {t.ess / t.refit:7.2f} a second   "
            f"{t.divergences} divergences in {len(t.refits)} refits",
        ]
        if t.pymc is not None and t.pymc_ess is not None:
            lines += [
                f"  PyMC NUTS    refit {t.pymc:5.1f} s   ESS {t.pymc_ess:6.0f}   {t.pymc_ess / t.pymc:7.2f} a second   "
                f"{t.pymc_divergences} divergences; chains alone {t.pymc_sampling:.1f} s",
                "  ratios       " + ", ".join(f"{n.replace('_', ' ')} {v:.1f}" for n, v in t.ratios.items()),
            ]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line: print the table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, prog="python benchmarks/engine.py")
    parser.add_argument("--structures", nargs="+", choices=list(STRUCTURES), default=list(STRUCTURES))
    parser.add_argument("--no-pymc", action="store_true", help="leave PyMC's sampler out (it takes minutes)")
    parser.add_argument("--no-fits", action="store_true", help="only the roof")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--only-compile", action="store_true", help="print the seconds of one compilation")
    options = parser.parse_args(arguments)
    if options.only_compile:
        model = model_of(STRUCTURES[options.structures[0]])
        print(seconds(lambda: compile_model(model).fit(seed=1, draws=10, tune=10))[0])
        return
    roof = []
    for cells in (1000, 100_000, 1_000_000):
        for name, experts in ROOFS:
            roof.append(roof_timing(name, experts, cells))
            print(roof[-1], flush=True)
    timings = []
    for name in options.structures if not options.no_fits else ():
        timings.append(measure(name, with_pymc=not options.no_pymc))
        print(table(timings[-1:]), flush=True)
    if options.json:
        record = {"load": os.getloadavg(), "cores": os.cpu_count(), "roof": [asdict(t) for t in roof]}
        record["timings"] = [t.record() for t in timings]
        write_json(options.json, record)


if __name__ == "__main__":
    main()
