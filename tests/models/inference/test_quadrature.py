"""The model with T_gpu given, by quadrature: against NUTS, against closed forms, and calibrated."""

from dataclasses import replace

import numpy as np
import pytest
from simulated import ANCHOR, GPUS, GRID, SIBLING
from three_by_three import CLASSES, FLOORS, branch_ms, grid

from rooffloor.models.floor.structures import FloorStructure
from rooffloor.models.inference import quadrature as quadrature_module
from rooffloor.models.inference.priors import DEFAULT_PRIORS
from rooffloor.models.inference.quadrature import quadrature, quadrature_of_draws
from rooffloor.models.inference.sampling import Compiled, fit_gated
from rooffloor.models.inference.steps import StepModel
from rooffloor.models.roof.kernels import stack_work
from rooffloor.models.roof.roofline import Efficiency, work_ms
from rooffloor.models.specs.cells import Cells

ROWS = [(m, g, b, c) for m in (ANCHOR, SIBLING) for g in GPUS for b, c in GRID]


@pytest.fixture(scope="module")
def cells() -> Cells:
    return Cells.from_columns(*zip(*ROWS, strict=True))


@pytest.fixture(scope="module")
def T(cells: Cells) -> np.ndarray:
    return work_ms(stack_work(cells), Efficiency(eta_bw=0.8, eta_fa=0.7, eta_tc=0.8, l_half=200.0))


def studies(cells: Cells, T: np.ndarray, n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Steps [study, cell] and true floors [study, (model, gpu) pair in order]."""
    rng = np.random.default_rng(seed)
    noise = rng.choice([0.02, 0.06, 0.09], (n, 1))
    floors = rng.normal(2, 2, (n, 1)) + rng.normal(0, 1, (n, 6))
    code = cells.model_code * 3 + cells.gpu_code
    return (T + floors[:, code]) * (1 + noise * rng.standard_normal((n, len(cells)))), floors


def test_it_agrees_with_nuts(compiled: Compiled) -> None:
    cells = grid(contexts=(512, 1024, 2048, 4096, 8192))
    T, rng = branch_ms(cells) + 4.0, np.random.default_rng(1)
    step = T + FLOORS[cells.gpu_code, cells.model_code]
    y = step * (1 + np.array([[0.02], [0.06]]) * rng.standard_normal((2, len(cells))))
    model = StepModel(replace(cells, step_ms=y[0]), None, CLASSES, FloorStructure(), "fixed", gpu_ms=T)
    data = model.data
    options = {"classes": CLASSES, "structure": FloorStructure(), "draws": 2000, "points": 8192}
    found = quadrature(cells, T, y, np.random.default_rng(0), **options)
    for n in range(len(y)):
        posterior = fit_gated(compiled, data | {"measured_ms": y[n]}, seed=n, refuse=False, cores=1).posterior
        floors = [posterior["floor_ms"].sel({"gpu": g, "class": k}).to_numpy().ravel() for g, k in found.pairs]
        sampled = np.stack(
            [
                *floors,
                *np.log(posterior["noise_relative"].to_numpy().reshape(-1, 3)).T,
                np.log(posterior["noise_ms"].to_numpy().ravel()),
            ]
        )
        weighed = np.stack([*found.floor_ms[n].T, *np.log(found.noise_relative[n]).T, np.log(found.noise_ms[n])])
        assert (weighed.mean(1) - sampled.mean(1)) / sampled.std(1) == pytest.approx(0, abs=0.16)
        assert weighed.std(1) / sampled.std(1) == pytest.approx(1, abs=0.15)


@pytest.mark.parametrize(("n", "ess"), [(120, 50), pytest.param(300, 0, marks=pytest.mark.calibration)])
def test_intervals_of_floors_cover_in_studies_from_the_prior(cells: Cells, T: np.ndarray, n: int, ess: int):
    """Truths from the prior: 90 % intervals of floors and noises cover 90 %; in few studies, of those to be used."""
    rng, p = np.random.default_rng(7), DEFAULT_PRIORS
    scale = np.abs(rng.standard_t(3, (n, 3))) * (p.floor_sd_gpu_ms, p.floor_sd_group_ms, p.floor_sd_pair_ms)
    code = np.array([(g, m) for m in range(2) for g in range(3)])
    floors = (
        p.floor_overall_ms[1] * rng.standard_normal((n, 1))
        + scale[:, [0]] * rng.standard_normal((n, 3))[:, code[:, 0]]
        + scale[:, [1]] * rng.standard_normal((n, 2))[:, code[:, 1]]
        + scale[:, [2]] * rng.standard_normal((n, 6))
    )
    level = np.log(p.noise_relative[0]) + p.noise_relative[1] * rng.standard_normal((n, 1))
    relative = np.exp(level + np.abs(p.noise_spread * rng.standard_normal((n, 1))) * rng.standard_normal((n, 2)))
    absolute = np.exp(np.log(p.noise_ms[0]) + p.noise_ms[1] * rng.standard_normal((n, 1)))
    mean = T + floors[:, cells.model_code * 3 + cells.gpu_code]
    y = mean + np.hypot(absolute, relative[:, cells.model_code] * mean) * rng.standard_normal(mean.shape)
    good = (y > 0).all(1)  # chosen by the data alone
    found = quadrature(cells, T, y[good], rng, draws=300)
    use = found.ess >= ess
    assert use.mean() > 0.85
    for draws, truth in ((found.floor_ms, floors[good]), (found.noise_relative, relative[good])):
        draws, truth = draws[use], truth[use]
        low, high = np.quantile(draws, [0.05, 0.95], axis=1)
        covered = ((low <= truth) & (truth <= high)).mean()
        assert 0.84 < covered < 0.96


def test_many_cells_fix_floors_at_least_squares(cells: Cells, T: np.ndarray):
    y, floors = studies(cells, T, 4, 2)
    floors = floors + 4.0  # a floor that takes a step near 0 is beyond the closed form, and has no ESS
    exact = T + floors[:, cells.model_code * 3 + cells.gpu_code]
    rng = np.random.default_rng(3)
    y = exact * (1 + 1e-3 * rng.standard_normal(y.shape))
    found = quadrature(cells, T, y, rng)
    assert found.pairs == tuple((g, m) for m in (ANCHOR, SIBLING) for g in GPUS)
    assert found.floor_ms.mean(1) == pytest.approx(floors, abs=0.15)
    assert found.ess.min() >= 100


def test_classes_share_a_floor(cells: Cells, T: np.ndarray):
    y, _ = studies(cells, T, 2, 4)
    found = quadrature(
        cells, T, y, np.random.default_rng(0), classes=dict.fromkeys(cells.models, "dense"),
        structure=FloorStructure("gpu, class"),
    )  # fmt: skip
    assert found.floor_ms.shape == (2, 400, 3)
    assert [label for _, label in found.pairs] == ["dense"] * 3
    assert "2 data sets" in repr(found)


def test_a_chunk_of_studies_is_judged_as_each_alone(cells: Cells, T: np.ndarray, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(quadrature_module, "CHUNK", 4)
    y, _ = studies(cells, T, 6, 6)  # more than one chunk
    together = quadrature(cells, T, y, np.random.default_rng(0), draws=1500, points=4096)
    alone = quadrature(cells, T, y[[5]], np.random.default_rng(1), draws=1500, points=4096)
    gap = together.floor_ms[5].mean(0) - alone.floor_ms[0].mean(0)
    assert gap / alone.floor_ms[0].std(0) == pytest.approx(0, abs=0.2)


@pytest.mark.parametrize("structure", [FloorStructure("gpu"), FloorStructure("gpu, model", "overlapped"),
                                       FloorStructure("gpu, launches"), FloorStructure("none")])  # fmt: skip
def test_other_structures_are_refused(cells: Cells, T: np.ndarray, structure: FloorStructure):
    with pytest.raises(ValueError, match="signed floors of groups of models, added"):
        quadrature(cells, T, T, np.random.default_rng(0), structure=structure)


def test_one_cell_a_pair_leaves_the_noise_to_its_prior():
    rows = [(m, g, 4, 2048) for m in (ANCHOR, SIBLING) for g in GPUS]
    few = Cells.from_columns(*zip(*rows, strict=True))
    T = work_ms(stack_work(few), Efficiency(eta_bw=0.8, eta_fa=0.7, eta_tc=0.8, l_half=200.0))
    found = quadrature(few, T, T + 3.0, np.random.default_rng(0))
    assert np.isfinite(found.floor_ms).all()
    assert 0.001 < np.median(found.noise_relative) < 0.1
    assert found.floor_ms.mean(1) == pytest.approx(3.0, abs=0.5)


def test_draws_of_the_branch_have_floors_and_noise_of_their_own(cells: Cells, T: np.ndarray) -> None:
    rng = np.random.default_rng(4)
    y = (T + 3.0) * (1 + 0.02 * rng.standard_normal((2, len(cells))))
    still = np.broadcast_to(T, (2, 600, len(cells)))
    known = quadrature(cells, T, y, np.random.default_rng(1), draws=600)
    given = quadrature_of_draws(cells, still, y, np.random.default_rng(2))
    for name in ("floor_ms", "noise_relative", "floor_sds_ms"):
        one, other = getattr(known, name), getattr(given, name)
        assert one.shape == other.shape
        scale = one.std(1) / np.sqrt(np.minimum(known.ess, given.ess))[:, None] if one.ndim == 3 else 1.0
        assert (np.abs(np.median(one, 1) - np.median(other, 1)) < 6 * scale).all(), name
    moved = still + rng.normal(0.0, 0.5, (2, 600, 1))  # a branch that is off alike in all cells: the floor takes it
    found = quadrature_of_draws(cells, moved, y, np.random.default_rng(3))
    for study in range(2):
        off = (moved - still)[study, :, 0]
        for pair in range(found.floor_ms.shape[-1]):
            assert np.corrcoef(off, found.floor_ms[study, :, pair])[0, 1] < -0.95
            together = off + found.floor_ms[study, :, pair]
            assert together.std() == pytest.approx(given.floor_ms[study, :, pair].std(), rel=0.25)
