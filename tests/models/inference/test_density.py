"""The compiled density is PyMC's, gradient included, for every structure that a fit may have."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from pytensor.compile.mode import Mode
from three_by_three import CLASSES, branch_ms, grid, measured

from rooffloor.models.floor.structures import COMBINE, SHARED_BY, FloorStructure
from rooffloor.models.inference.density import log_density
from rooffloor.models.inference.layout import KnownFloors
from rooffloor.models.inference.native import flat, unpacked
from rooffloor.models.inference.packing import Tables
from rooffloor.models.inference.step_model import pymc_model
from rooffloor.models.inference.steps import StepModel
from rooffloor.models.roof.kernels import stack_work
from rooffloor.models.specs.cells import Cells

REAL = {"Llama-3.1-8B": "7B", "Qwen2.5-7B": "7B", "Qwen1.5-MoE-A2.7B": "moe"}


PLAIN = Mode(linker="py", optimizer=None)
"""No rewriting and no compiler: seconds less for each structure; sums of 32 terms and more it cannot do."""
SINGLE = 1e-6
"""PyMC has constants of half-normal and half-t densities in single precision: so much may the density be off, by the
same at every point."""


def real_cells(rng: np.random.Generator) -> Cells:
    """Cells of catalogued models and GPUs, one pair missing, with steps about where floors of 3 ms would put them."""
    model, gpu = np.meshgrid(list(REAL), ["H100", "A100-40GB"], indexing="ij")
    keep = ~((model == "Qwen1.5-MoE-A2.7B") & (gpu == "H100"))
    at = np.repeat(np.arange(keep.sum()), 4)
    batch, context = np.tile([1, 16, 1, 512], keep.sum()), np.tile([512, 2048, 8192, 64], keep.sum())
    cells = Cells.from_columns(model[keep][at], gpu[keep][at], batch, context)
    T = stack_work(cells).bytes.sum(-1) / stack_work(cells).bandwidth * 1.3e3
    return replace(cells, step_ms=(T + 3.0) * np.exp(0.1 * rng.standard_normal(len(T))), step_sd_ms=0.01 * T)


def structures() -> list[FloorStructure]:
    """Every sharing with every way to join, and one that joins a class in another way."""
    found = [FloorStructure("none")]
    for shared_by, sharing in SHARED_BY.items():
        for combine, how in COMBINE.items():
            if sharing is not None and (how.positive or not sharing.kernel_latency):
                found.append(FloorStructure(shared_by, combine))
    found += [FloorStructure("gpu, launches", combine, terms=("sequence", "sequence layer")) for combine in COMBINE]
    return [*found, FloorStructure("gpu, class", "overlapped", (("moe", "added, H >= 0"),))]


def held_together(model: StepModel, rng: np.random.Generator, points: int = 3) -> None:
    """Density and gradient of both forms at some points, and the variables that the compiled one makes of them."""
    slow = pymc_model(model)
    names = [v.name for v in slow.value_vars]
    assert sorted(p.value_name for p in model.parameters) == sorted(names)
    shown = [v.name for v in slow.deterministics]
    outputs = slow.replace_rvs_by_values([slow[name] for name in shown])
    terms = [term.sum() for term in slow.logp(sum=False)]
    wanted = [*terms, slow.dlogp(), *outputs]
    mode = "FAST_COMPILE" if model.q_sampled or model.query_heads or model.likelihood == "student" else PLAIN
    read = slow.compile_fn(wanted, inputs=slow.value_vars, mode=mode, on_unused_input="ignore")
    tables = model.tables(model.data)
    grad, floors = np.empty(model.size), np.empty(int(np.prod(model.layout.size)) if model.layout else 0)
    single = None
    for _ in range(points):
        x = np.empty(model.size)
        for p in model.parameters:
            x[p.at] = p.start + 0.7 * rng.standard_normal(p.at.stop - p.at.start)
        log, logit = log_density(tables, x, grad, floors)
        point = {p.value_name: x[p.at].reshape([len(model.coords[d]) for d in p.dims]) for p in model.parameters}
        found = read(point)
        expected, gradient, values = sum(map(float, found[: len(terms)])), found[len(terms)], found[len(terms) + 1 :]
        single = log - expected if single is None else single
        assert abs(single) < SINGLE
        assert log == pytest.approx(expected + single, rel=1e-11, abs=1e-10)
        at = {p.value_name: np.arange(model.size)[p.at] for p in model.parameters}
        order = np.concatenate([at[name] for name in names])
        size = 1.0 + np.abs(gradient).max()
        assert np.abs(grad[order] - gradient).max() < 1e-10 * size
        own = model.posterior(x[None], floors[None], np.array([logit]))
        for name, value in zip(shown, values, strict=True):
            assert own[name][0] == pytest.approx(np.asarray(value), rel=1e-10, abs=1e-12), name


@pytest.mark.parametrize("structure", structures(), ids=str)
def test_it_is_pymcs_with_free_constants(structure: FloorStructure) -> None:
    rng = np.random.default_rng(3)
    cells = real_cells(rng)
    held_together(StepModel(cells, stack_work(cells), REAL, structure, "free"), rng)


@pytest.mark.parametrize(
    "options",
    [
        {"query_heads": True},
        {"likelihood": "student"},
        {"constants": "free per gpu", "query_heads": True},
        {"structure": FloorStructure("gpu, class", "overlapped"), "query_heads": True, "likelihood": "student"},
        {"structure": FloorStructure("none"), "constants": "free per gpu"},
        {"structure": FloorStructure("gpu, launches"), "constants": "free per gpu", "likelihood": "student"},
    ],
    ids=lambda options: ", ".join(map(str, options.values())),
)
def test_it_is_pymcs_with_every_option(options: dict[str, Any]) -> None:
    rng = np.random.default_rng(4)
    cells = real_cells(rng)
    structure = {"structure": FloorStructure("gpu, model"), "constants": "free"}
    held_together(StepModel(cells, stack_work(cells), REAL, **(structure | options)), rng)


@pytest.mark.parametrize("combine", COMBINE)
@pytest.mark.parametrize(
    ("without", "known"),
    [
        ((), None),
        ((("o", "A"),), KnownFloors("anchor", {"B": 3.0, "C": 1.5, "D": 2.0}, q=0.4)),
    ],
    ids=["whole grid", "known floors of an anchor"],
)
def test_it_is_pymcs_with_t_gpu_given(
    without: tuple[tuple[str, str], ...], known: KnownFloors | None, combine: str
) -> None:
    cells, rng = grid(without=without), np.random.default_rng(5)
    data = measured(cells, branch_ms(cells) + 2.0, rng)
    classes = CLASSES | {"anchor": "other"}
    structure = FloorStructure(combine=combine)
    held_together(StepModel(data, None, classes, structure, "fixed", branch_ms(cells), known=known), rng)


@pytest.mark.parametrize("combine", ["overlapped", "max"])
def test_it_is_pymcs_with_host_time_given(combine: str) -> None:
    rng = np.random.default_rng(8)
    cells = real_cells(rng)
    structure = FloorStructure("gpu, model", combine, terms=("sequence",))
    known = KnownFloors("anchor", {"H100": 3.0, "A100-40GB": 2.0}, q=0.4)
    classes, T = REAL | {"anchor": "7B"}, 0.6 * np.asarray(cells.step_ms)
    model = StepModel(cells, stack_work(cells), classes, structure, "fixed", T, known=known)
    model.data["host_ms"][:] = 0.04 * cells.batch
    held_together(model, rng)


def test_one_model_on_one_gpu() -> None:
    rng = np.random.default_rng(6)
    cells = real_cells(rng)
    cells = cells.where((cells.model == "Qwen2.5-7B") & (cells.gpu == "H100"))
    for combine in COMBINE:
        held_together(StepModel(cells, stack_work(cells), REAL, FloorStructure("gpu", combine), "free"), rng)


@pytest.mark.parametrize("structure", [FloorStructure("none"), FloorStructure("gpu, launches", "overlapped")], ids=str)
def test_the_buffer_of_the_sampler_holds_every_field(structure: FloorStructure) -> None:
    rng = np.random.default_rng(7)
    cells = real_cells(rng)
    given = StepModel(cells, stack_work(cells), REAL, structure, "free", query_heads=True)
    tables = given.tables(given.data)
    buffer = flat(tables)
    read = unpacked(buffer[: buffer[0]], buffer[buffer[0] :].view(np.float64))
    for name, own, back in zip(Tables._fields, tables, read, strict=True):
        np.testing.assert_array_equal(back, own, err_msg=name)
        assert np.ndim(back) == np.ndim(own), name
