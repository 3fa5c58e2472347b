"""Terms of the floor in a calibration: host time per sequence is the host's, launches are the model's."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from toy_calibration import POSITIVE, toy

from rooffloor.models.calibration import store
from rooffloor.models.calibration.anchor import of_anchor, rejoined
from rooffloor.models.calibration.draws import Calibration
from rooffloor.models.calibration.floors import FOLLOWED, MOST_LAUNCHES, at_launches, launch_and_scales
from rooffloor.models.floor.structures import PER_MODEL, FloorStructure
from rooffloor.models.inference.priors import DEFAULT_PRIORS
from rooffloor.models.roof.kernels import launches_of_shapes
from rooffloor.models.roof.roofline import Efficiency, gpu_ms
from rooffloor.models.specs import gpus, shapes
from rooffloor.models.specs.cells import Cells

ANCHOR, GPU, TRUE_MS, FLOOR_MS = "Llama-3.1-8B", "H100", 0.05, 1.6
ETA = Efficiency(eta_bw=0.8, eta_fa=0.7, l_half=100.0)


def planted(rng: np.random.Generator, noise: float = 0.01) -> Cells:
    """Steps of the anchor with host time per sequence."""
    batch, context = (grid.ravel() for grid in np.meshgrid([1, 4, 16, 64], [512, 2048, 4096]))
    step = gpu_ms(ANCHOR, GPU, batch, context, ETA) + FLOOR_MS + TRUE_MS * batch
    step = step * (1.0 + noise * rng.standard_normal(len(batch)))
    return Cells.from_columns([ANCHOR] * len(batch), [GPU] * len(batch), batch, context, step)


def calibrated(each: float = TRUE_MS, count: int = 200, **how: object) -> Calibration:
    """A calibration that knows the constants, and takes `each` for the host's time per sequence."""
    constants = {name: np.full(count, getattr(ETA, name)) for name in ("eta_bw", "eta_fa", "l_half")}
    return of_anchor(
        planted(np.random.default_rng(1)),
        shapes.load(ANCHOR),
        "dense 5-10B",
        constants,
        {GPU: gpus.load(GPU)},
        np.random.default_rng(2),
        terms={"sequence_ms": np.full((count, 1), each)},
        label="simulated",
        source="planted",
        **how,
    )


def test_the_floor_that_is_left_is_the_constant_one_and_steps_of_any_batch_come_back() -> None:
    found, rng = calibrated(), np.random.default_rng(3)
    floor = found.floor_of(GPU, ANCHOR, "dense 5-10B", rng)
    assert abs(floor.mean() - FLOOR_MS) < 3.0 * floor.std()
    batch = np.array([1.0, 256.0])
    host = found.host_ms(shapes.load(ANCHOR), GPU, batch, rng)
    np.testing.assert_allclose(host, np.tile(TRUE_MS * batch, (200, 1)))
    T = found.gpu_ms(shapes.load(ANCHOR), gpus.load(GPU), batch, 512, rng)
    true = gpu_ms(ANCHOR, GPU, batch, 512, ETA) + FLOOR_MS + TRUE_MS * batch
    np.testing.assert_allclose(found.step_ms(T, floor, host).mean(0), true, rtol=0.01)
    np.testing.assert_allclose(found.anchor_host_ms[0], TRUE_MS * found.anchor_batch[0])
    assert str(found.structure) == "floor per (gpu, model) + per sequence, added"


def test_a_constant_alone_takes_what_grows_for_noise() -> None:
    rng = np.random.default_rng(3)
    with_term, without = (calibrated(each).noise_of(GPU, ANCHOR, rng).mean() for each in (TRUE_MS, 1e-9))
    assert without > 3.0 * with_term


@pytest.mark.parametrize("combine", ["overlapped", "max"])
def test_another_join_keeps_the_term_inside_the_floor(combine: str) -> None:
    anew, _ = rejoined(calibrated(), combine, np.random.default_rng(4))
    assert anew.structure == FloorStructure("gpu, model", combine, terms=("sequence",))
    T = np.full((200, 1), 1e-3)
    host = anew.host_ms(shapes.load(ANCHOR), GPU, np.array([100.0]), np.random.default_rng(1))
    assert anew.step_ms(T, np.full(200, 1.0), host) == pytest.approx(1.0 + 100 * TRUE_MS, rel=1e-3)


def test_it_comes_back_from_a_file(tmp_path: Path) -> None:
    assert calibrated().launch_ms is None  # one model tells nothing of them
    made = replace(calibrated(), launch_ms=np.linspace(0.001, 0.01, 200), launches=np.array([334.0]))
    file = tmp_path / "posterior.npz"
    file.write_bytes(store.to_npz(made))
    found = store.load(file)
    np.testing.assert_allclose(found.terms["sequence_ms"], made.terms["sequence_ms"], rtol=1e-6)
    np.testing.assert_allclose(found.launch_ms, made.launch_ms, rtol=1e-6)
    assert (found.launches.tolist(), found.anchor_layers) == ([334.0], 32)
    some = found.rows(np.array([3, 3, 5]))
    np.testing.assert_array_equal(some.launch_ms, found.launch_ms[[3, 3, 5]])
    np.testing.assert_array_equal(some.terms["sequence_ms"], found.terms["sequence_ms"][[3, 3, 5]])


def test_nonsense_is_refused() -> None:
    made = replace(calibrated(), launch_ms=np.full(200, 0.01), launches=np.array([334.0]))
    for changes in (
        {"terms": {"sequence_ms": np.full((200, 1), -0.1)}},
        {"terms": {"sequences": np.zeros((200, 1))}},
        {"terms": {"sequence_ms": np.zeros((200, 2))}},
        {"launch_ms": np.full(200, np.nan)},
        {"launches": np.zeros(1)},
        {"anchor_layers": 0},
    ):
        with pytest.raises(ValueError, match=r"expected|unknown|shape"):
            replace(made, **changes)


def test_where_a_gpu_was_never_measured_host_and_constants_are_of_one_gpu_in_each_draw() -> None:
    n = 60
    terms = {"sequence_ms": np.tile([0.01, 0.02, 0.03], (n, 1))}
    constants = {"eta_bw": np.tile([0.5, 0.6, 0.7], (n, 1)), "eta_fa": np.full((n, 3), 0.6)}
    known = toy(n, terms=terms, constants=constants)
    host = known.host_ms(shapes.load(ANCHOR), "L40S", np.array([1.0]), np.random.default_rng(5))[:, 0]
    eta = known.efficiency("L40S", np.random.default_rng(5)).eta_bw[:, 0]
    np.testing.assert_allclose(host, 0.1 * (eta - 0.4))
    assert len(set(host.tolist())) == 3


# ---- launches -------------------------------------------------------------------------------------------------------


def test_a_floor_moves_with_the_launches_of_a_model_by_no_more_than_it_holds() -> None:
    floors, of_pairs = np.array([[2.0, -1.0]]), np.array([300.0, 300.0])
    moved = at_launches(floors, of_pairs, 600.0, np.array([0.002]))
    np.testing.assert_allclose(moved, [[2.6, -1.0]])
    most = at_launches(floors, of_pairs, 600.0, np.array([1.0]))
    np.testing.assert_allclose(most, [[2.0 * (1.0 + MOST_LAUNCHES), -1.0]])


@pytest.mark.parametrize(("combine", "floors"), [("added", None), ("overlapped", POSITIVE)])
def test_a_model_with_more_launches_has_a_larger_floor(combine: str, floors: np.ndarray | None) -> None:
    given = {} if floors is None else {"floors": floors}
    known = toy(4_000, combine=combine, q=0.5, **given)
    told = replace(known, launches=np.full(4, 300.0), launch_ms=np.full(4_000, 0.004))
    of, rng = (shapes.load(ANCHOR), gpus.load("H100")), np.random.default_rng
    own = launches_of_shapes(of[0])
    fewer = replace(told, launches=np.full(4, own - 200.0))
    same, more = (one.floor_of("H100", "another", "dense 5-10B", rng(6), of=of) for one in (known, fewer))
    assert np.median(same) < np.median(more) < np.median(same) + 1.2 * 200 * 0.004
    alike = replace(told, launches=np.full(4, own)).floor_of("H100", "another", "dense 5-10B", rng(6), of=of)
    np.testing.assert_allclose(alike, same, rtol=1e-12)


def test_floors_of_models_with_other_launches_tell_the_time_per_launch() -> None:
    rng, each, n = np.random.default_rng(7), 0.006, 600
    of_pairs = np.array([170.0, 330.0, 500.0, 800.0])
    pairs = [("H100", "dense", f"m{k}") for k in range(4)]
    floors = 0.5 + each * of_pairs + 0.05 * rng.standard_normal((n, 4))
    told, _ = launch_and_scales(pairs, floors, of_pairs, PER_MODEL, rng)
    low, middle, high = np.quantile(told, [0.05, 0.5, 0.95])
    assert low < each < high
    assert abs(middle / each - 1.0) < 0.25
    alike, _ = launch_and_scales(pairs, floors, np.full(4, 330.0), PER_MODEL, rng)
    assert (alike > 0).mean() == pytest.approx(FOLLOWED, abs=0.08)
    assert np.median(alike[alike > 0]) == pytest.approx(DEFAULT_PRIORS.launch_ms[0], rel=0.2)
    assert np.log(alike[alike > 0]).std() == pytest.approx(DEFAULT_PRIORS.launch_ms[1], rel=0.2)


def test_floors_that_do_not_follow_launches_say_so() -> None:
    rng, n = np.random.default_rng(8), 600
    of_pairs = np.array([170.0, 330.0, 500.0, 800.0])
    pairs = [("H100", "dense", f"m{k}") for k in range(4)]
    told, _ = launch_and_scales(pairs, 2.0 + 0.05 * rng.standard_normal((n, 4)), of_pairs, PER_MODEL, rng)
    assert (told == 0).mean() > 0.8
