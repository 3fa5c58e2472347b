"""A cut hands the host time per sequence that the anchor tells to the other families' cells."""

from dataclasses import replace

import numpy as np
import pytest

from rooffloor.models.floor.structures import FloorStructure
from rooffloor.models.inference.cut_model import cut_models, per_sku
from rooffloor.models.inference.quadrature import has_closed_form
from rooffloor.models.inference.sampling import compile_model, fit_gated
from rooffloor.models.inference.step_distribution import step_distribution
from rooffloor.models.inference.steps import StepModel
from rooffloor.models.roof.kernels import stack_work
from rooffloor.models.roof.roofline import Efficiency, work_ms
from rooffloor.models.specs.cells import Cells

ANCHOR, OTHER = "Llama-3.1-8B", "Qwen2.5-7B"
ETA = Efficiency(eta_bw=0.8, eta_fa=0.72, l_half=100.0, eta_tc=0.8)
HOST = {"H100": 0.043, "A100-40GB": 0.08}


def planted(rng: np.random.Generator, noise: float = 0.02) -> Cells:
    """Two models on two GPUs whose hosts take 0.043 and 0.08 ms per sequence, floors of 2 ms."""
    axes = np.meshgrid([ANCHOR, OTHER], list(HOST), [1, 4, 16, 64], [512, 2048, 4096], indexing="ij")
    model, gpu, batch, context = (axis.ravel() for axis in axes)
    cells = Cells.from_columns(model, gpu, batch.astype(int), context.astype(int))
    step = work_ms(stack_work(cells), ETA) + 2.0 + np.array([HOST[g] for g in cells.gpu]) * cells.batch
    return replace(cells, step_ms=np.asarray(step) * (1.0 + noise * rng.standard_normal(len(cells))))


def stages(combine: str):
    cells = planted(np.random.default_rng(1))
    structure = FloorStructure("gpu, model", combine, terms=("sequence",))
    classes = {ANCHOR: "7B", OTHER: "7B"}
    return cells, cut_models(cells, stack_work(cells), classes, structure, ANCHOR)


DRAW = {
    **{name: np.array(getattr(ETA, name)) for name in ("eta_bw", "eta_fa", "eta_tc", "l_half")},
    "floor_ms": np.array([2.0, 2.0]),
    "sequence_ms": np.array([0.05, 0.09]),
}


def test_added_it_goes_with_t_gpu_and_the_second_stage_stays_closed() -> None:
    cells, made = stages("added")
    others = cells.where(cells.model == OTHER)
    T = np.asarray(work_ms(stack_work(others), ETA))
    each = np.array([{"H100": 0.05, "A100-40GB": 0.09}[g] for g in others.gpu])
    np.testing.assert_allclose(made.data_of(DRAW)["gpu_ms"], T + each * others.batch)
    assert has_closed_form(made.downstream)
    assert made.upstream.structure.terms == ("sequence",)


@pytest.mark.parametrize("combine", ["overlapped", "max"])
def test_joined_otherwise_it_stays_inside_the_floor(combine: str) -> None:
    cells, made = stages(combine)
    others = cells.where(cells.model == OTHER)
    data = made.data_of(DRAW)
    np.testing.assert_allclose(data["gpu_ms"], np.asarray(work_ms(stack_work(others), ETA)))
    each = np.array([{"H100": 0.05, "A100-40GB": 0.09}[g] for g in others.gpu])
    np.testing.assert_allclose(data["host_ms"], each * others.batch)
    assert "host_ms" in made.downstream.data


def test_a_sku_without_the_anchor_has_the_geometric_mean() -> None:
    found = per_sku(np.array([[0.02, 0.08]]), np.array([0, 1, -1]))
    np.testing.assert_allclose(found, [[0.02, 0.08, 0.04]])


def test_host_time_per_sequence_is_recovered() -> None:
    cells = planted(np.random.default_rng(2))
    structure = FloorStructure("gpu, model", "added", terms=("sequence",))
    work = stack_work(cells)
    fit = fit_gated(compile_model(StepModel(cells, work, {ANCHOR: "7B", OTHER: "7B"}, structure, "free")), seed=1)
    assert fit.attempts[-1].diagnostics.divergences == 0
    drawn = fit.posterior["sequence_ms"].to_numpy().reshape(-1, 2)
    for k, gpu in enumerate(cells.gpus):
        low, high = np.quantile(drawn[:, k], [0.01, 0.99])
        assert low < HOST[gpu] < high, gpu
        assert high - low < HOST[gpu]
    steps = step_distribution(fit.posterior, cells, {ANCHOR: "7B", OTHER: "7B"}, structure, work=work)
    assert abs(np.log(steps.step_ms.mean(0) / cells.step_ms)).mean() < 0.03
