"""Floors given the constants of each draw, from a posterior's own variables: joint, cut, and H >= 0."""

from typing import Any

import numpy as np
import pytest

from rooffloor.models.floor.structures import PER_MODEL, FloorStructure
from rooffloor.models.roof.kernels import KERNELS, stack_work
from rooffloor.models.roof.roofline import Efficiency, combine, work_ms
from rooffloor.models.specs.cells import Cells
from rooffloor.validate.fitting.given import FitOfCells
from rooffloor.validate.fitting.parts import parts_of

DRAWS = 5
GPU, GROUP = np.repeat([0, 0, 1, 1, 2], 4), np.repeat([0, 1, 0, 1, 1], 4)  # the anchor (0) is not on the third GPU
IS_ANCHOR = GROUP == 0


def fitted(structure: FloorStructure = PER_MODEL, *, cut: bool, noise: float = 0.02) -> FitOfCells:
    rng = np.random.default_rng(5)
    T = rng.uniform(4.0, 9.0, len(GPU)) * rng.uniform(0.9, 1.1, (DRAWS, 1))
    y = T.mean(0) + 2.0 + GPU + GROUP
    unit = "" if structure.positive else "_ms"
    size = 0.5 if structure.positive else 2.0
    scales = {f"floor_sd_{effect}{unit}": rng.uniform(0.5, size, DRAWS) for effect in ("gpu", "model", "pair")}
    posterior: dict[str, Any] = scales | {"floor_ms": rng.uniform(1.0, 5.0, (DRAWS, 3, 2))}
    if cut:
        posterior[f"anchor_floor_sd_gpu{unit}"] = rng.uniform(0.5, size, DRAWS)
    of = (np.full((DRAWS, 1), noise), np.full((DRAWS, 1), 1e-3), 0.0)
    return FitOfCells(posterior, structure, GPU, GROUP, 0, IS_ANCHOR, T, y, of, cut=cut)


@pytest.mark.parametrize("cut", [True, False])
@pytest.mark.parametrize("structure", [PER_MODEL, FloorStructure("gpu, model", "added, H >= 0")])
def test_without_noise_floors_are_the_mean_offsets_of_their_pairs(cut: bool, structure: FloorStructure) -> None:
    fit = fitted(structure, cut=cut, noise=1e-5)
    anchor, own = fit.floors()
    for gpu, group in {(0, 0), (0, 1), (1, 0), (1, 1), (2, 1)}:
        at = (gpu == GPU) & (group == GROUP)
        spread = np.ptp((fit.step_ms - fit.gpu_ms)[:, at], axis=-1)
        offset = (fit.step_ms - fit.gpu_ms)[:, at].mean(-1)
        if cut and group == 0:
            assert (np.abs(own[:, at][:, 0] - offset) <= spread).all()
        if group == 0:
            np.testing.assert_array_equal(anchor[:, gpu == GPU], np.repeat(own[:, at][:, :1], (gpu == GPU).sum(), 1))
        assert (np.abs(own[:, at][:, 0] - offset) <= spread + 1e-2).all()
    assert np.isnan(anchor[:, GPU == 2]).all()
    assert np.isfinite(own).all()


def test_in_a_cut_the_anchors_floors_come_from_its_own_cells_alone() -> None:
    fit = fitted(cut=True)
    moved = FitOfCells(**{**vars(fit), "step_ms": fit.step_ms + np.where(IS_ANCHOR, 0.0, 3.0)})
    np.testing.assert_array_equal(fit.floors()[0], moved.floors()[0])
    assert (moved.floors()[1] - fit.floors()[1])[:, ~IS_ANCHOR].min() > 2.0
    joint, shifted = fitted(cut=False), fitted(cut=False)
    shifted = FitOfCells(**{**vars(shifted), "step_ms": shifted.step_ms + np.where(IS_ANCHOR, 0.0, 3.0)})
    assert (joint.floors()[0] != shifted.floors()[0])[:, GPU != 2].all()  # there the hierarchy is one


def test_in_a_cut_others_follow_the_anchors_floors_of_the_draw() -> None:
    fit = fitted(cut=True, noise=2.0)  # so noisy that the hierarchy decides
    floors = fit.posterior["floor_ms"] + np.array([4.0, 0.0])
    higher = FitOfCells(**{**vars(fit), "posterior": {**fit.posterior, "floor_ms": floors}})
    assert (higher.floors()[1] - fit.floors()[1])[:, ~IS_ANCHOR].min() > 0.1
    np.testing.assert_array_equal(higher.floors()[0], fit.floors()[0])


def test_parts_are_sums_over_kernels_and_no_array_of_all_kernels_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    models = ["Qwen1.5-MoE-A2.7B", "Llama-3.1-8B", "Llama-3.2-1B"]
    cells = Cells.from_columns(models, ["H100"] * 3, [1, 4, 16], [512, 2048, 8192])
    work, rng = stack_work(cells), np.random.default_rng(1)
    efficiency = Efficiency(eta_bw=rng.uniform(0.6, 0.9, (7, 1)), eta_fa=rng.uniform(0.6, 0.9, (7, 1)), rho_q=1.1)
    kernels = combine(work, efficiency)
    seen = []
    monkeypatch.setattr(
        "rooffloor.validate.fitting.parts.combine",
        lambda times, constants: seen.append(combine(times, constants)) or seen[-1],
    )
    parts, _ = parts_of(work, efficiency, work_ms(work, efficiency))
    np.testing.assert_allclose(parts["kv"], kernels[..., KERNELS.index("attention")], rtol=1e-14)
    np.testing.assert_allclose(sum(parts.values()), kernels.sum(-1), rtol=1e-12)
    assert {one.shape for one in seen} == {(7, 3, 1)}
