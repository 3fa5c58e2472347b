"""Plans of cells: they promise what simulated measurements then give, and they beat random cells and corners."""

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import multivariate_normal

from rooffloor.models.floor.structures import overlap_ms
from rooffloor.models.inference.priors import DEFAULT_PRIORS
from rooffloor.models.roof.roofline import Efficiency
from rooffloor.models.specs import gpus, shapes
from rooffloor.validate.cli import main as cli
from rooffloor.validate.common.errors import InputError
from rooffloor.validate.fitting import saved
from rooffloor.validate.transfer.plan import candidates as candidate_cells
from rooffloor.validate.transfer.plan import deciding as further
from rooffloor.validate.transfer.plan import joining, outlook
from rooffloor.validate.transfer.plan.advice import say_deciding
from rooffloor.validate.transfer.plan.candidates import candidates
from rooffloor.validate.transfer.plan.choice import aim, choose, random_sets
from rooffloor.validate.transfer.plan.deciding import deciding
from rooffloor.validate.transfer.plan.joining import OVERLAPS, Structures, evidence, hidden
from rooffloor.validate.transfer.plan.measured import read_measured
from rooffloor.validate.transfer.plan.outlook import HALF, Cell, Prospect, floor_given, floor_sds, prospect
from rooffloor.validate.transfer.plan.plan import plan
from rooffloor.validate.transfer.plan.shape import FLOOR_BETWEEN_MS, OFFSET_SD_MS, SLOPE_SD, Belief, belief

TRUE = Efficiency(eta_bw=0.8, eta_fa=0.7, eta_tc=0.8, l_half=200.0)
NOISE = 0.02
BATCHES, CONTEXTS = (1, 2, 4, 8, 16), (512, 2048, 8192)
MODELS = ("Llama-3.2-1B", "Qwen2.5-7B", "Llama-3.1-8B", "Mistral-7B-v0.3", "Qwen1.5-MoE-A2.7B", "Qwen3-Coder-30B-A3B")
GPUS = ("H100", "H200", "A100-40GB", "A100-80GB", "GH200")
CORNERS = ((1, 512), (1, 8192), (16, 512), (16, 8192))


@pytest.fixture(scope="module")
def study():
    """A calibration that is vague about its constants: the published study's as it once was."""
    return saved.load(Path(__file__).with_name("data") / "vague.npz")


def grid(model: str, gpu: str) -> list[Cell]:
    return candidates(shapes.load(model), [gpus.load(gpu)], BATCHES, CONTEXTS, ())[0]


def known(model: str, *names: str, noise: float = NOISE, cells=None, calibration=TRUE, seed: int = 1) -> Prospect:
    cells = cells or [cell for gpu in names for cell in grid(model, gpu)]
    specs = [gpus.load(gpu) for gpu in names]
    return prospect(shapes.load(model), specs, cells, (), calibration, np.random.default_rng(seed), noise=noise)


def weighted_floor(T: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Floor of least relative squares with T known: [set, cell] -> [set]."""
    step = y
    for _ in range(4):
        floor = ((y - T) / step**2).sum(-1) / (1.0 / step**2).sum(-1)
        step = np.maximum(T + floor[..., None], 0.3 * y)
    return floor


def planned(model: str, names, budget=None, **given):
    given = {"calibration": TRUE, "noise": NOISE} | given
    return plan(shapes.load(model), [gpus.load(name) for name in names], budget, **given)


# ---- simulations; with more of them: simulate_floor(np.random.default_rng(1), 200) ------------------------------


def numbers(p: Prospect, cells) -> np.ndarray:
    """Which cells of a prospect those of a plan are."""
    at = {(c.gpu, c.batch, c.context): i for i, c in enumerate(p.cells)}
    return np.array([at[c.gpu, c.batch, c.context] for c in cells])


def corners(p: Prospect, rng: np.random.Generator, count: int, sets: int) -> np.ndarray:
    """Random choices of `count` of the corners of a grid, [set, cell]."""
    at = np.array([i for i, c in enumerate(p.cells) if (c.batch, c.context) in CORNERS])
    return at[random_sets(rng, len(at), min(count, len(at)), sets)]


def rivals(p: Prospect, planned: np.ndarray, rng: np.random.Generator, sets: int) -> dict[str, np.ndarray]:
    """Planned cells, random ones and corners, as many of each, [set, cell]."""
    return {
        "planned": np.tile(planned, (sets, 1)),
        "random": random_sets(rng, p.candidates, len(planned), sets),
        "corners": corners(p, rng, len(planned), sets),
    }


def simulate_floor(rng: np.random.Generator, per_pair: int, cells: int = 3, share: float | None = None) -> dict:
    """Relative errors of the floor from a few cells against that of the whole grid; errors in ms against the truth.

    Truth: floors uniform in +-[1.5, 8] ms with which steps stay above their physical minimum, or `share` of T_gpu.
    """
    found: dict[str, list[np.ndarray]] = {}
    for model in MODELS:
        for gpu in GPUS:
            if len(grid(model, gpu)) < 5:
                continue
            p = known(model, gpu)
            T = p.gpu_ms[0]
            floor = rng.uniform(1.5, 8.0, 20 * per_pair) * rng.choice([-1.0, 1.0], 20 * per_pair)
            least = p.least_ms if share is None else share * T
            floor = floor[(T + floor[:, None] > least).all(-1)][:per_pair]
            y = (T + floor[:, None]) * (1.0 + NOISE * rng.standard_normal((len(floor), len(T))))
            whole = weighted_floor(T, y)
            chosen = plan(
                shapes.load(model),
                [gpus.load(gpu)],
                cells,
                calibration=TRUE,
                noise=NOISE,
                batches=BATCHES,
                contexts=CONTEXTS,
            )
            one = {"ratio": T.min() / np.abs(floor), "gpu_ms": np.full(len(floor), T.min()), "floor": floor}
            for name, sets in rivals(p, numbers(p, chosen.cells), rng, len(floor)).items():
                few = weighted_floor(T[sets], np.take_along_axis(y, sets, 1))
                one |= {name: np.abs(few - whole) / np.abs(whole), f"{name}, ms": np.abs(few - floor)}
            for name, value in one.items():
                found.setdefault(name, []).append(value)
    return {name: np.concatenate(values) for name, values in found.items()}


def simulate_floor_promise(calibration, gpu: str, noise: float | None, rng: np.random.Generator, sets: int) -> dict:
    """Promised and realised sd of a floor of 3 cells, and how often its 90 % interval holds it.

    Given the constants, and in all.
    """
    cells = 3
    model = "Mistral-7B-v0.3"
    every = candidates(shapes.load(model), [gpus.load(gpu)], BATCHES, CONTEXTS, ())[0]
    p = known(model, gpu, noise=noise, cells=every, calibration=calibration)
    sets_ = np.array([choose(lambda s: floor_sds(p, s)[0].sum(-1), p.candidates, cells)])
    promised = [float(sd[0, 0]) for sd in floor_sds(p, sets_)]
    at, rows = sets_[0], rng.integers(0, len(p.noise), 4 * sets)
    floor = p.mean_ms[rows, 0] + np.sqrt(p.variance[rows, 0]) * rng.standard_normal(len(rows))
    possible = floor > p.least_floor_ms[rows, 0]
    rows, floor = rows[possible][:sets], floor[possible][:sets]
    mean = p.gpu_ms[rows][:, at] + floor[:, None]
    sigma = p.noise[rows]
    y = mean * (1.0 + sigma * rng.standard_normal(mean.shape))
    step = y
    for _ in range(4):
        level = ((y - p.gpu_ms[rows][:, at]) / step**2).sum(-1) / (1.0 / step**2).sum(-1)
        step = np.maximum(p.gpu_ms[rows][:, at] + level[:, None], 0.3 * y)
    weight = 1.0 / (sigma * step) ** 2
    variance = 1.0 / (1.0 / p.variance[rows, 0] + weight.sum(-1))
    off = y[:, None] - p.gpu_ms[None][:, :, at]  # [truth, draw of the constants, cell]
    inner = variance[:, None] * (p.mean_ms[:, 0] / p.variance[0, 0] + (weight[:, None] * off).sum(-1))
    given = inner[np.arange(len(rows)), rows]
    between = inner.var(1)
    whole = np.sqrt(variance + between)
    return {
        "ratio": promised[0] / np.sqrt(variance.mean()),
        "covered": np.mean(np.abs(floor - given) < HALF * promised[0]),
        "realised covered": np.mean(np.abs(floor - given) < HALF * np.sqrt(variance)),
        "error over promise": np.sqrt(np.mean((floor - given) ** 2)) / promised[0],
        "whole ratio": promised[1] / np.sqrt((whole**2).mean()),
        "whole covered": np.mean(np.abs(floor - inner.mean(1)) < HALF * promised[1]),
    }


def simulate_slopes(p: Prospect, rng: np.random.Generator, sets: int, cells: int = 3) -> dict:
    """Promised and realised sd of the slope and its errors, for planned and random cells and corners."""
    size = belief(p, "whole")
    planned = np.array(choose(size.sds, p.candidates, cells))
    rows = rng.integers(0, len(p.noise), 5 * sets)
    truth = SLOPE_SD * rng.standard_normal(len(rows))
    predicted = p.gpu_ms + p.anchor_ms[:, p.gpu]
    floor = OFFSET_SD_MS * rng.standard_normal((len(rows), 1))
    floor = floor + FLOOR_BETWEEN_MS * rng.standard_normal((len(rows), len(p.gpus)))
    mean = predicted[rows] + floor[:, p.gpu] + truth[:, None] * p.columns["whole"]
    possible = (mean > p.least_ms).all(-1)
    rows, truth, mean = (values[possible][:sets] for values in (rows, truth, mean))
    sets = len(rows)
    sigma = p.noise[rows][:, p.gpu]
    y = mean * (1.0 + sigma * rng.standard_normal(mean.shape))
    found = {"promised": float(size.sds(planned[None])[0])}
    for name, some in rivals(p, planned, rng, sets).items():
        noise = np.take_along_axis((sigma * y) ** 2, some, 1)
        told = size.steps[some[:, :, None], some[:, None, :]] + noise[..., None] * np.eye(cells)
        cross = size.cross[some]
        off = np.take_along_axis(y - predicted.mean(0), some, 1)
        solved = np.linalg.solve(told, np.stack([cross, off], -1))
        variance = size.variance - (solved[..., 0] * cross).sum(-1)
        error = (cross * solved[..., 1]).sum(-1) - truth
        found |= {f"{name} sd": np.sqrt(variance.mean()), f"{name} error": np.sqrt(np.mean(error**2))}
        found[f"{name} covered"] = np.mean(np.abs(error) < HALF * np.sqrt(variance))
        if name == "planned":
            found["promise covered"] = np.mean(np.abs(error) < HALF * found["promised"])
    found["ratio"] = found["promised"] / found["planned sd"]
    return found


def simulate_structures(p: Prospect, rng: np.random.Generator, sets: int, cells: int = 3, groups: int = 10) -> dict:
    """Share of data sets whose log Bayes factor is on the true side; any q in (0, 1), not only those of the grid."""
    wanted = aim(p, "overlap", np.random.default_rng(1))
    planned = np.array(choose(wanted.loss, p.candidates, cells))
    structures = Structures.of(p)
    found = {"promised": structures.told(planned, np.random.default_rng(2), 2000)[0]}
    for name, some in rivals(p, planned, rng, groups).items():
        right = [_told_right(structures, one, rng, sets // groups) for one in some]
        found[name] = float(np.mean(right))
    return found


def _told_right(structures: Structures, cells: np.ndarray, rng: np.random.Generator, sets: int) -> float:
    overlapped = np.arange(sets) % 2 == 1
    q = np.where(overlapped, rng.uniform(0.0, 1.0, sets), 1.0)[:, None]
    shown = 4.0 * np.exp(rng.standard_normal((sets, len(structures.shortest_ms))))
    hosts = hidden(structures.shortest_ms, shown, q)
    rows = rng.integers(0, len(structures.draws_ms), sets)
    mean = overlap_ms(structures.draws_ms[rows][:, cells], hosts[:, structures.gpu[cells]], q)
    y = mean * (1.0 + structures.noise[cells] * rng.standard_normal(mean.shape))
    log = evidence(structures.sums(cells, y))
    factor = np.logaddexp.reduce(log[1:], axis=0) - np.log(len(OVERLAPS)) - log[0]
    return float(np.mean((factor > 0) == overlapped))


# ---- what is measured -------------------------------------------------------------------------------------------


def test_three_cells_give_the_floor_of_the_whole_grid():
    found = simulate_floor(np.random.default_rng(1), 20)
    assert len(found["planned"]) > 500
    assert np.mean(found["planned"] < 0.1) > 0.97
    hard = found["ratio"] > 4.0  # a floor that is small beside T_gpu drowns in noise relative to the step
    assert np.mean(found["planned"][hard] < 0.1) < np.mean(found["planned"][~hard] < 0.1)


def test_planned_cells_narrow_a_floor_more_than_random_ones_and_corners():
    found = simulate_floor(np.random.default_rng(2), 100)
    error = {name: np.sqrt(np.mean(found[f"{name}, ms"] ** 2)) for name in ("planned", "random", "corners")}
    assert error["planned"] < 0.97 * error["random"] < 0.97 * error["corners"]


@pytest.mark.parametrize("noise", [NOISE, None])
@pytest.mark.parametrize("gpu", ["H100", "A100-40GB"])
def test_the_promised_width_of_a_floor_is_the_one_obtained(study, gpu, noise):
    found = simulate_floor_promise(study, gpu, noise, np.random.default_rng(3), 8000)
    assert found["ratio"] == pytest.approx(1.0, abs=0.05)
    assert found["error over promise"] == pytest.approx(1.0, abs=0.08)
    assert found["covered"] == pytest.approx(0.9, abs=0.03)
    assert found["whole ratio"] == pytest.approx(1.0, abs=0.05)
    assert found["whole covered"] == pytest.approx(0.9, abs=0.04)


@pytest.mark.parametrize("noise", [NOISE, None])
def test_the_promised_width_of_a_slope_is_the_one_obtained_and_beats_others(study, noise):
    p = known("Mistral-7B-v0.3", "H100", noise=noise, calibration=study)
    found = simulate_slopes(p, np.random.default_rng(4), 2000)
    assert found["ratio"] == pytest.approx(1.0, abs=0.06)
    assert found["promise covered"] == pytest.approx(0.9, abs=0.03)
    assert found["planned sd"] < 0.9 * found["corners sd"] < 0.9 * found["random sd"]
    assert found["planned error"] < 0.95 * found["corners error"] < 0.95 * found["random error"]


def test_planned_cells_tell_added_from_overlapped_floors_more_often(study):
    found = simulate_structures(known("Mistral-7B-v0.3", "H100"), np.random.default_rng(5), 1000)
    assert found["planned"] == pytest.approx(found["promised"], abs=0.05)
    assert found["planned"] > found["corners"] + 0.03
    assert found["planned"] > found["random"] + 0.06


# ---- its parts --------------------------------------------------------------------------------------------------


def test_exchange_finds_the_best_of_all_sets():
    for goal in ("floor", "shape", "overlap"):
        p = known("Llama-3.1-8B", "H100")
        wanted = aim(p, goal, np.random.default_rng(1))
        every = np.array(list(combinations(range(p.candidates), 3)))
        chosen = choose(wanted.loss, p.candidates, 3)
        assert wanted.loss(np.array([chosen]))[0] <= wanted.loss(every).min() * (1.0 + 1e-6), goal


def test_a_floor_of_known_constants_is_a_weighted_mean():
    p = known("Llama-3.1-8B", "H100")
    some = np.array([[0, 7, 14]])
    by_hand = 1.0 / (1.0 / OFFSET_SD_MS**2 + (1.0 / p.noise_squared[:, some[0]]).sum(-1))
    given, whole = floor_sds(p, some)
    assert given[0, 0] == pytest.approx(np.sqrt(by_hand.mean()), rel=1e-12)
    assert whole == pytest.approx(given, rel=1e-9)


def test_a_belief_after_a_set_is_the_regression_on_its_steps():
    rng = np.random.default_rng(6)
    root = rng.standard_normal((6, 6))
    joint = root @ root.T
    b = Belief(joint[0, 0], joint[0, 1:], joint[1:, 1:], np.full((1, 5), 0.3))
    by_hand = joint[0, 0] - joint[0, 1:] @ np.linalg.solve(joint[1:, 1:] + 0.3 * np.eye(5), joint[0, 1:])
    assert b.sds(np.arange(5)[None])[0] == pytest.approx(np.sqrt(by_hand), rel=1e-9)


@pytest.mark.parametrize("names", [("H100",), ("H100", "A100-40GB")])
def test_a_belief_is_that_of_the_whole_covariance_matrix(study, names):
    """The parts of a step, added up cell by cell: what is in hand counts as one set with what is chosen."""
    cells = [cell for gpu in names for cell in grid("Mistral-7B-v0.3", gpu)]
    hand = [replace(cell, step_ms=10.0 + cell.batch * cell.context / 2e4) for cell in cells[:4]]
    specs = [gpus.load(name) for name in names]
    p = prospect(shapes.load("Mistral-7B-v0.3"), specs, cells, hand, study, np.random.default_rng(1), noise=NOISE)
    b = belief(p, "weights")
    predicted = p.gpu_ms + p.anchor_ms[:, p.gpu]
    off = predicted - predicted.mean(0)
    column, same = p.columns["weights"], p.gpu[:, None] == p.gpu
    steps = off.T @ off / len(off) + OFFSET_SD_MS**2 + FLOOR_BETWEEN_MS**2 * same
    steps = steps + SLOPE_SD**2 * np.outer(column, column)
    noise = np.diag([(NOISE * p.cells[i].step_ms) ** 2 for i in p.measured])
    told = steps[np.ix_(p.measured, p.measured)] + noise
    cross = SLOPE_SD**2 * column[p.measured]
    assert b.variance == pytest.approx(SLOPE_SD**2 - cross @ np.linalg.solve(told, cross), rel=1e-5)
    some = steps[p.measured][:, : p.candidates]
    left = steps[: p.candidates, : p.candidates] - some.T @ np.linalg.solve(told, some)
    assert b.steps == pytest.approx(left, abs=1e-5 * left.max())
    few = b.coarse(5)
    assert few.noise_squared.shape == (5, p.candidates)
    assert few.noise_squared.mean() == pytest.approx(b.noise_squared.mean(), rel=0.1)


def test_distances_and_evidences_are_those_of_whole_covariance_matrices(study):
    cells = [cell for gpu in ("H100", "A100-40GB") for cell in grid("Mistral-7B-v0.3", gpu)]
    specs = [gpus.load("H100"), gpus.load("A100-40GB")]
    p = prospect(shapes.load("Mistral-7B-v0.3"), specs, cells, cells[:2], study, np.random.default_rng(1))
    s = Structures.of(p)
    off = p.gpu_ms - p.gpu_ms.mean(0)
    known = off.T @ off / len(off)
    same = p.gpu[:, None] == p.gpu
    assert (s.root @ s.root.T)[same] == pytest.approx(known[same], abs=1e-6)
    some, q, shown = np.array([3, 9, 17, 20]), np.array([0.3]), np.array([[4.0, 2.0]])
    every = np.concatenate([some, p.measured])
    squared = 0.0
    for g, host in enumerate(hidden(s.shortest_ms, shown, q[:, None])[0]):
        at = every[p.gpu[every] == g]
        step = overlap_ms(s.gpu_ms[at], host, q[0])
        told = known[np.ix_(at, at)] + np.diag((s.noise[at] * step) ** 2)
        left, ones = step - s.gpu_ms[at], np.ones(len(at))
        level = ones @ np.linalg.solve(told, left) / (ones @ np.linalg.solve(told, ones))
        squared += (left - level) @ np.linalg.solve(told, left - level)
    assert s.distances(some[None], q, shown)[0, 0] == pytest.approx(np.sqrt(squared), rel=1e-4)
    y = s.gpu_ms[some] + np.array([[2.0, 2.5, 3.0, 1.0]])
    log_shown = np.log(np.geomspace(*joining.SHOWN_MS, joining.SHOWN))
    log_prior = -0.5 * (log_shown - np.log(DEFAULT_PRIORS.floor_overall[0])) ** 2
    log_prior -= np.logaddexp.reduce(log_prior)
    by_hand = 0.0
    for g in range(2):
        at = p.gpu[some] == g
        own = some[at]
        steps = s.gpu_ms[own] + np.exp(log_shown)[:, None]
        each = [
            multivariate_normal(step, known[np.ix_(own, own)] + np.diag((s.noise[own] * step) ** 2)).logpdf(y[0, at])
            for step in steps
        ]
        by_hand += np.logaddexp.reduce(np.array(each) + log_prior)
    assert evidence(s.sums(some, y))[0, 0] == pytest.approx(by_hand, rel=1e-5)


def test_floors_of_many_sets_at_once_are_those_of_each(study):
    p = known("Mistral-7B-v0.3", "H100", "A100-40GB", calibration=study)
    sets = np.random.default_rng(1).integers(0, p.candidates, (5, 6))  # with repeats
    assert floor_given(p, sets) == pytest.approx(floor_sds(p, sets)[0], rel=1e-9)


def test_chunks_of_sets_change_nothing(study, monkeypatch):
    p = known("Mistral-7B-v0.3", "H100", "A100-40GB", calibration=study)
    sets = random_sets(np.random.default_rng(1), p.candidates, 4, 7)
    before = floor_sds(p, sets)[0], belief(p, "whole").sds(sets)
    monkeypatch.setattr(outlook, "CHUNK", 1)
    assert floor_sds(p, sets)[0] == pytest.approx(before[0], rel=1e-12)
    assert belief(p, "whole").sds(sets) == pytest.approx(before[1], rel=1e-12)


@pytest.mark.parametrize("q", [1.0, 0.6, 0.05])
def test_a_hidden_floor_shows_what_it_should(q):
    shown = np.array([0.2, 4.0, 60.0])
    assert overlap_ms(6.0, hidden(6.0, shown, q), q) - 6.0 == pytest.approx(shown, rel=1e-6)


def test_one_cell_tells_nothing_of_a_slope_beside_a_free_floor_nor_of_how_it_joins():
    p = known("Llama-3.1-8B", "H100")
    structures = Structures.of(p)
    assert structures.distances(np.array([[3]]), np.array([0.1]), np.array([[4.0]]))[0, 0] == pytest.approx(
        0.0, abs=1e-6
    )
    assert structures.told(np.array([0]), np.random.default_rng(1))[1] == pytest.approx(0.0, abs=0.1)


def test_cells_for_a_join_begin_on_the_gpu_whose_pair_tells_most(study):
    """One cell tells nothing, so that which is the first must not be left to rounding."""
    cells = [cell for gpu in ("L40S", "H100") for cell in grid("Llama-3.2-1B", gpu)]
    p = known("Llama-3.2-1B", "L40S", "H100", cells=cells, calibration=study, noise=None)
    wanted = aim(p, "overlap", np.random.default_rng(1))
    every = np.array(list(combinations(range(p.candidates), 2)))
    pair = choose(wanted.loss, p.candidates, 2, beside=wanted.beside, starts=wanted.starts)
    assert wanted.loss(np.array([pair]))[0] <= wanted.loss(every).min() * (1.0 + 1e-6)


# ---- plans ------------------------------------------------------------------------------------------------------


def test_a_plan_says_what_it_promises(study):
    found = planned("Mistral-7B-v0.3", ["H100"], 3, calibration=study, width=0.3)
    widths = [found.before, *(cell.expected for cell in found.cells)]
    assert widths == sorted(widths, reverse=True)
    assert all(cell.expected <= cell.random_cells for cell in found.cells)
    assert found.needed == 1
    assert repr(found).startswith("Plan(Mistral-7B-v0.3, floor: (H100, 1, 512), ")
    assert "takes 1 cell" in found.text
    assert "Cells are distinct" in found.text
    frame = found.to_frame()
    assert list(frame["order"]) == [1, 2, 3]
    assert frame["inside_domain"].all()
    assert found.to_csv().splitlines()[1].startswith("1,Mistral-7B-v0.3,H100,1,512,")
    json.dumps(found.data)
    again = planned("Mistral-7B-v0.3", ["H100"], 3, calibration=study, width=0.3)
    assert again.data == found.data


@pytest.mark.parametrize(("goal", "label"), [("floor", "floor"), ("shape", "slope"), ("overlap", "probability")])
def test_plot(goal, label):
    found = planned("Llama-3.1-8B", ["H100"], 2, goal=goal)
    axes = found.plot()
    assert axes.get_ylabel().startswith(label)
    assert "expected" in axes.figure.get_suptitle()
    assert [line.get_label() for line in axes.lines][:2] == ["random cells, mean", "planned cells"]


def test_each_gpu_gets_its_cells():
    found = planned("Llama-3.1-8B", ["H100", "A100-40GB"], 4)
    assert {cell.gpu for cell in found.cells} == {"H100", "A100-40GB"}
    assert found.cells[-1].expected == pytest.approx(max(cell.expected_on_gpu for cell in found.cells), rel=0.5)
    assert "on that GPU" in found.text


def test_measured_cells_count_and_are_not_chosen_again(study):
    measured = [Cell("H100", 1, 512, 9.0), Cell("H100", 2, 512, 9.1), Cell("H100", 1, 1024, 9.1)]
    alone = planned("Mistral-7B-v0.3", ["H100"], 5, calibration=study)
    more = planned("Mistral-7B-v0.3", ["H100"], 2, calibration=study, measured=measured)
    assert more.before == pytest.approx(alone.cells[2].expected, rel=0.1)
    assert not {(c.batch, c.context) for c in more.cells} & {(c.batch, c.context) for c in measured}
    assert more.data["measured"] == 3
    for goal in ("shape", "overlap"):
        few = planned("Mistral-7B-v0.3", ["H100"], 1, calibration=study, goal=goal, measured=measured)
        assert few.cells[0].context == 8192  # cells alike are in hand, the other end is missing


def test_what_does_not_fit_and_what_was_not_seen_is_said(study):
    given = {"calibration": study, "batches": (1, 64)}
    found = planned("Mistral-7B-v0.3", ["A100-40GB"], 2, contexts=(4096, 8192, 65536), **given)
    assert "do not fit into memory: (A100-40GB, 64, 4096), (A100-40GB, 64, 8192)." in found.text
    assert "beyond the model's positions: (A100-40GB, 1, 65536), (A100-40GB, 64, 65536)." in found.text
    found = planned("Qwen3-Coder-30B-A3B", ["GH200", "H100"], 2, goal="shape", **given)
    assert "Outside what the calibration has seen: parameters" in found.text
    assert "GH200" in found.sentences[-3]
    assert not all(cell.inside_domain for cell in found.cells)
    assert " *" in found.text
    with pytest.raises(InputError, match="no cell fits L40S"):
        planned("Qwen3-Coder-30B-A3B", ["L40S", "H100"], 1)


def test_a_width_out_of_reach_is_said():
    found = planned("Llama-3.1-8B", ["H100"], width=0.001)
    assert found.needed is None
    assert "No number of the" in found.text
    found = planned("Llama-3.1-8B", ["H100"], width=100.0)
    assert found.needed == 0
    assert found.cells == ()
    assert found.to_csv().count("\n") == 1
    assert "is reached without a further cell" in found.text


def test_what_the_constants_leave_is_told_from_the_start_and_why_it_grows(study):
    found = planned("Mistral-7B-v0.3", ["L40S"], 4, calibration=study)
    widths = [found.before_with_constants, *(cell.expected_with_constants for cell in found.cells)]
    assert widths[0] >= found.before
    assert widths[-1] > min(widths)  # cells replace the prior of the floor by step - T_gpu, whose constants stay
    assert "T_gpu alone is uncertain by ±" in found.text
    first = next(line for line in found.text.splitlines() if line.strip().startswith("0 "))
    assert first.count("±") == 2
    assert found.data["before_with_constants"] == widths[0]
    assert ": 1 cell to narrow" in planned("Mistral-7B-v0.3", ["L40S"], 1, calibration=study).text


def test_many_candidates_are_thinned_and_their_ends_kept(study):
    found = planned(
        "Mistral-7B-v0.3",
        ["H100"],
        2,
        calibration=study,
        goal="shape",
        batches=range(1, 65),
        contexts=range(9, 9000, 99),
    )
    every, tried = found.data["possible"], found.data["candidates"]
    assert tried <= candidate_cells.MOST_CANDIDATES < 5000 < every <= 64 * 91
    assert f"Of {every} cells that could be measured {tried} were tried" in found.text
    assert (1, 9) in {(c.batch, c.context) for c in found.cells}
    far = planned("Mistral-7B-v0.3", ["H100"], calibration=study, width=1e-4, batches=range(1, 65))
    assert "No number of up to 60 cells gives" in far.text


def test_a_weight_question_goes_to_gpus_in_hand_first(study):
    model, hand = shapes.load("Mistral-7B-v0.3"), [*HAND[:3], Cell("A100-40GB", 1, 512)]
    found = deciding(model, [gpus.load("H100"), gpus.load("A100-40GB")], hand, study, EITHER)
    assert found[0].kind == "same GPU"
    alone = deciding(model, [gpus.load("A100-80GB")], [Cell("A100-80GB", b, 512) for b in (1, 4)], study, EITHER)
    others = {one.cell.gpu for one in alone if one.kind == "another GPU"}
    assert others <= {"H100", "H200"}  # not an A100 with less memory


def test_repeats_only_where_asked():
    found = planned("Llama-3.1-8B", ["H100"], 3, batches=(1,), contexts=(512, 8192), repeats=True)
    assert len({(c.batch, c.context) for c in found.cells}) < 3
    assert "Repeats were allowed" in found.text


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"goal": "fun"}, "goal 'fun' is unknown"),
        ({"budget": 26}, "more than the 25 candidates"),
        ({"budget": None}, r"--budget N\) or a wanted interval \(--width X"),
        ({"budget": 61}, "goal floor has 60 at most"),
        ({"budget": 13, "goal": "overlap"}, "goal overlap has 12 at most"),
        ({"batches": range(1, 402), "contexts": range(1, 51)}, "at most 20000 cells to choose from, got 20050"),
        ({"goal": "overlap", "width": 0.1}, "a width is"),
        ({"width": -1.0}, "a width is"),
        ({"noise": 2.0}, "noise is relative"),
        ({"batches": (100000,)}, "no cell fits H100"),
    ],
)
def test_bad_requests(given, said):
    with pytest.raises(InputError, match=said) as error:
        planned("Llama-3.1-8B", ["H100"], **({"budget": 3} | given))
    assert "\n" not in str(error.value)


# ---- which cells would help most --------------------------------------------------------------------------------

HAND = [Cell("H100", b, c) for b in BATCHES for c in CONTEXTS]


@pytest.mark.parametrize("calibration", ["study", "known"])
def test_no_small_batch_on_one_gpu_tells_a_floor_from_the_weights(study, calibration):
    given = study if calibration == "study" else TRUE
    question = "level: a floor or the weights' bandwidth"
    found = {d.kind: d for d in deciding(shapes.load("Mistral-7B-v0.3"), [gpus.load("H100")], HAND, given, question)}
    assert found["same GPU"].gain < 0.01
    assert found["another GPU"].gain > 0.2
    assert found["same GPU, larger batch"].cell.batch >= 256  # compute-bound there
    assert found["same GPU, larger batch"].gain > 5 * found["same GPU"].gain
    if calibration == "study":
        assert next(iter(found)) == "another GPU"  # large batches lie far outside
    said = say_deciding(list(found.values()), question)
    assert said.startswith("What would help most to tell a floor from the weights' bandwidth (90 % interval of ")
    assert f" a GPU like {found['another GPU'].cell}" in said
    assert "no cell up to batch 16 on the same GPU tells anything" in said


def test_cells_that_decide_a_slope_or_a_level(study):
    arguments = (shapes.load("Mistral-7B-v0.3"), [gpus.load("H100")])
    best = deciding(*arguments, HAND[:5], study, "slope: T_gpu varies too little over the cells")[0]
    assert best.cell.batch * best.cell.context >= 16 * 8192
    assert best.after < best.before
    level = deciding(*arguments, HAND[:2], study, "level: within the margins or not")[0]
    assert level.cell.batch <= 2
    assert level.gain == pytest.approx(np.log(level.before / level.after), rel=1e-9)
    with pytest.raises(InputError, match="open question 'why' is unknown"):
        deciding(*arguments, HAND, study, "why")


def every_question():
    """Questions on one and two GPUs, from one cell of each to the whole grid."""
    for names in (["H100"], ["H100", "A100-40GB"]):
        hand = [Cell(gpu, c.batch, c.context) for c in HAND for gpu in names]
        for count in (len(names), len(hand)):
            for question in (SLOPE, LEVEL, EITHER):
                yield [gpus.load(name) for name in names], hand[:count], question


SLOPE, LEVEL = "slope: T_gpu varies too little over the cells", "level: within the margins or not"
EITHER = "level: a floor or the weights' bandwidth"


@pytest.mark.parametrize("model", ["Llama-3.2-1B", "Mistral-7B-v0.3"])
def test_widths_are_those_of_the_cell_and_change_where_they_are_told(study, model):
    for specs, hand, question in every_question():
        found = deciding(shapes.load(model), specs, hand, study, question)
        said = say_deciding(found, question)
        wanted = {SLOPE: "to see whether T_gpu is off", LEVEL: "to narrow the floor", EITHER: "to tell a floor from"}
        assert said.startswith(f"What would help most {wanted[question]}")
        for before, after in re.findall(r"(±[0-9.]+ m?[%s]) to (±[0-9.]+ m?[%s])", said):
            assert before != after
        for one in found:
            assert one.gain == pytest.approx(np.log(one.before / one.after), abs=1e-9)
            assert one.alone >= one.gain or one.kind == "several"


def test_a_floor_is_that_of_the_cells_own_gpu(study):
    """The widest floor is another GPU's, which a cell on this one does not narrow."""
    arguments = (shapes.load("Mistral-7B-v0.3"), [gpus.load("H100"), gpus.load("H200")])
    hand = [cell for cell in HAND if cell.batch < 4] + [Cell("H200", 16, 8192)]
    found = deciding(*arguments, hand, study, LEVEL)[0]
    p = prospect(*arguments, [found.cell], hand, study, np.random.default_rng(1))
    g = p.gpus.index(found.cell.gpu)
    none, one = np.zeros((1, 0), dtype=int), np.array([[0]])
    assert found.before == pytest.approx(HALF * floor_sds(p, none)[0][0, g], rel=0.05)
    assert found.after == pytest.approx(HALF * floor_sds(p, one)[0][0, g], rel=0.05)
    full = [*HAND, *(Cell("H200", c.batch, c.context) for c in HAND if c.batch > 1)]
    for one in deciding(*arguments, full, study, LEVEL):
        assert one.after < one.before


def test_where_no_single_cell_shows_several_are_named(study):
    arguments = (shapes.load("Llama-3.2-1B"), [gpus.load("H100")], HAND, study, LEVEL)
    *singles, several = deciding(*arguments)
    assert several.kind == "several"
    assert several.alone == max(one.gain for one in singles)
    assert {one.kind for one in singles} == {"same GPU", "same GPU, larger batch"}
    assert several.gain > 3 * several.alone
    cells = {(c.gpu, c.batch, c.context) for c in (several.cell, *several.further)}
    assert 1 < len(cells) == 1 + len(several.further)
    assert not cells & {(c.gpu, c.batch, c.context) for c in HAND}
    said = say_deciding([*singles, several], LEVEL)
    percent = int(re.search(r"no single further cell narrows it by more than (\d+) %", said)[1])
    assert percent - 1 <= 100 * (1 - np.exp(-several.alone)) <= percent
    assert f"{len(cells)} further cells ({several.cell}; " in said
    assert said.count("context") == min(len(cells), 3)
    nothing = replace(several, after=several.before, gain=0.0)
    assert "no further cell tells anything" in say_deciding([*singles, nothing], LEVEL)
    assert (
        say_deciding([], LEVEL)
        == "What would help most to narrow the floor (its 90 % interval): no further cell of those tried fits."
    )


def test_cells_far_outside_the_calibration_come_after_others(study):
    """One far outside is the best of its kind, or goes first, only where it tells at least twice as much."""
    for specs, hand, question in every_question():
        for one in deciding(shapes.load("Llama-3.2-1B"), specs, hand, study, question):
            far = one.cell.batch > 4 * study.domain.batch[1] or one.cell.context > 4 * study.domain.context[1]
            assert one.far == far
            assert one.kind == "several" or one.alone <= further.FAR_GAIN * max(one.gain, 1e-9)
    mistral = shapes.load("Mistral-7B-v0.3")
    weights = deciding(mistral, [gpus.load("H100")], HAND, study, EITHER)
    assert any(one.far for one in weights)  # nothing nearer tells half as much
    assert not weights[0].far
    assert "(far outside the calibration)" in say_deciding(weights, EITHER)
    assert not any(one.far for one in deciding(mistral, [gpus.load("H100")], HAND, TRUE, EITHER))


def test_floors_are_bound_as_predicted_ones_whatever_cells_are_asked(study):
    model, spec = replace(shapes.load("Llama-3.2-1B"), name="3B", hidden=3072, layers=28, heads=24), gpus.load("H100")
    some = [
        prospect(model, [spec], [Cell("H100", *at)], (), study, np.random.default_rng(1)) for at in ((1, 0), (16, 8192))
    ]
    light, heavy = some
    assert light.least_floor_ms[:, 0] == pytest.approx(light.least_ms[0] - light.gpu_ms[:, 0])
    assert heavy.least_floor_ms == pytest.approx(light.least_floor_ms)
    assert np.all(light.floor_ms >= light.least_floor_ms)
    assert np.all(light.step_ms >= light.least_ms)
    assert np.all(heavy.gpu_ms[:, 0] + heavy.floor_ms[:, 0] >= heavy.least_ms)


# ---- the command ------------------------------------------------------------------------------------------------


def test_command(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    asked = ["plan", "--config", "Mistral-7B-v0.3", "--gpu", "H100", "--budget", "3", "--out", "plan.csv"]
    assert cli.main(asked) == 0
    said = capsys.readouterr().out
    assert said.startswith("Mistral-7B-v0.3 on H100: 3 cells to narrow the floor")
    assert [file.name for file in Path().iterdir()] == ["plan.csv"]
    assert cli.main([*asked, "--json", "--goal", "shape", "--width", "0.4", "--noise", "0.03", "--seed", "3"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["goal"] == "shape"
    assert data["seed"] == 3
    Path("far.csv").write_text("model,gpu,batch,context,step_ms\nMistral-7B-v0.3,H100,1,512,8.0\n")
    assert cli.main([*asked, "--measurements", "far.csv"]) == 0
    assert "1,Mistral-7B-v0.3,H100,1,512," not in Path("plan.csv").read_text()


def test_a_file_is_read_as_check_reads_it(tmp_path):
    model, h100, l40s = shapes.load("Mistral-7B-v0.3"), gpus.load("H100"), gpus.load("L40S")
    (tmp_path / "bare.csv").write_text("batch,context,step_ms\n1,512,8.0\n1,513,9.0\n4,512,8.8\n")
    expected = [Cell("H100", 1, 512, 8.0), Cell("H100", 1, 513, 9.0), Cell("H100", 4, 512, 8.8)]
    assert read_measured(tmp_path / "bare.csv", model, [h100]) == expected
    rows = [
        "H100,1,512,1,7",
        "H100,1,512,2,9",
        "H100,1,513,1,9.0",
        "H100,4,512,1,8.8",
        "L40S,1,512,1,30",
        "H200,1,512,1,7",
    ]
    text = ["model,gpu,batch,context,repeat,step_ms", *(f"my-model,{row}" for row in rows)]
    (tmp_path / "mine.csv").write_text("\n".join(text))
    assert read_measured(tmp_path / "mine.csv", model, [h100]) == expected
    both = read_measured(tmp_path / "mine.csv", model, [h100, l40s], model="my-model")
    assert both == [*expected, Cell("L40S", 1, 512, 30.0)]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--goal", "fun"], "goal 'fun' is unknown"),
        (["--budget", "26"], "more than the 25 candidates"),
        (["--budget", "99"], "has 60 at most"),
        (
            ["--measurements", "other.csv"],
            "no row of 'Mistral-7B-v0.3'; the file has Llama-3.1-8B: name one with --model",
        ),
        (["--measurements", "away.csv"], "no row of Mistral-7B-v0.3 on H100; the file has Mistral-7B-v0.3 on L40S"),
        (["--measurements", "bare.csv", "--gpu", "L40S"], "no column gpu; name one GPU with --gpu"),
        (["--model", "mine"], "--model: only with --measurements FILE"),
        (["--measurements", "none.csv"], "none.csv"),
        (["--study", "nowhere"], "nowhere"),
        (["--gpu", "A100"], "does not say which part"),
        (["--batches", "one"], "--batches"),
        (["--out", "plan.txt"], "expected the name of a .csv file"),
    ],
)
def test_command_errors(tmp_path, monkeypatch, capsys, more, said):
    monkeypatch.chdir(tmp_path)
    Path("other.csv").write_text("model,gpu,batch,context,step_ms\nLlama-3.1-8B,H100,1,512,8.0\n")
    Path("away.csv").write_text("model,gpu,batch,context,step_ms\nMistral-7B-v0.3,L40S,1,512,30.0\n")
    Path("bare.csv").write_text("batch,context,step_ms\n1,512,8.0\n")
    assert cli.main(["plan", "--config", "Mistral-7B-v0.3", "--gpu", "H100", "--budget", "3", *more]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_command_loads_nothing_heavy():
    code = (
        "import sys; from rooffloor.validate.cli import main as cli; code = cli.main(sys.argv[1:]); "
        "print(sorted({'pandas', 'xarray', 'arviz', 'pymc', 'pytensor', 'matplotlib'} & set(sys.modules)), code)"
    )
    root = Path(__file__).resolve().parents[3]
    done = subprocess.run(
        [sys.executable, "-c", code, "plan", "--config", "Llama-3.2-1B", "--gpu", "H200", "--budget", "1"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(root)},
    )
    assert done.stdout.splitlines()[-1] == "[] 0"
