"""Studies simulated from each structure, as benchmarks/recovery.py makes and counts them; fits are tested elsewhere."""

import numpy as np
import pandas as pd
import pytest
from recovery import APART, GRID, NOISE, PAIRS, TRUTHS, Recovery, Scenario, simulate, twin

from rooffloor.models.floor.structures import FloorStructure
from rooffloor.models.roof.roofline import Efficiency, work_ms
from rooffloor.validate.common import resources
from rooffloor.validate.comparison.comparison import candidates


@pytest.fixture(scope="module")
def scenario() -> Scenario:
    return Scenario.default()


def test_every_truth_competes(scenario: Scenario) -> None:
    assert len(scenario.cells) == len(PAIRS) * len(GRID) == 150
    assert set(TRUTHS) <= set(candidates(scenario.classes))


@pytest.mark.parametrize("truth", TRUTHS, ids=str)
def test_steps_follow_their_structure(scenario: Scenario, truth: FloorStructure) -> None:
    """Without noise steps lie between the longer of T and H and their sum, T being at most what the prior allows."""
    steps, q = simulate(scenario, truth, np.random.default_rng(3), noise=0.0)
    low = work_ms(scenario.work, Efficiency(eta_bw=0.9, eta_fa=0.85, eta_tc=0.9, l_half=200.0))
    assert (steps >= low * (1 - 1e-9)).all()
    assert np.isnan(q) == (truth.sharing is None)
    if truth.q_free:
        assert 0.1 <= q <= 0.9
    again, _ = simulate(scenario, truth, np.random.default_rng(3), noise=0.0)
    np.testing.assert_array_equal(steps, again)


def test_floors_of_groups_lie_apart(scenario: Scenario) -> None:
    """Over the same T, floors per GPU take three values, evenly apart."""
    truth = FloorStructure("gpu", "added")
    loud, _ = simulate(scenario, truth, np.random.default_rng(5), noise=1e-9, apart=APART * NOISE / 1e-9)
    none, _ = simulate(scenario, FloorStructure("none"), np.random.default_rng(5), noise=1e-9)
    floors = np.unique(np.round(loud - none, 3))
    assert len(floors) == 3
    np.testing.assert_allclose(np.diff(floors), np.diff(floors)[0], rtol=0.01)


def test_twins_are_the_two_ways_to_add() -> None:
    assert twin(FloorStructure("gpu", "added")) == FloorStructure("gpu", "added, H >= 0")
    assert twin(twin(FloorStructure("gpu, class", "added"))) == FloorStructure("gpu, class", "added")
    assert twin(FloorStructure("gpu", "max")) == FloorStructure("gpu", "max")


def test_counts_and_text() -> None:
    runs = pd.DataFrame({"truth": ["a", "a", "b"], "near": [True, True, False], "right": [True, False, False]})
    found = Recovery(runs)
    assert (found.data["data_sets"], found.data["near"], found.data["right"]) == (3, 2, 1)
    assert "a: near 2, chosen 1 of 2" in repr(found)


def test_the_committed_result_recovers_the_truth():
    """105 simulated studies, 15 of each of 7 structures, all candidates fitted to each (`recover(each=15)`)."""
    runs = pd.read_csv(resources.path("calibration") / "recovery.csv")
    found = Recovery(runs).data
    assert found["data_sets"] == 105
    assert found["near"] >= 0.95 * 105
    assert found["right"] >= 0.85 * 105
    sure = runs[runs["heaviest_weight"] > 0.9]
    same = sure["heaviest"].str.removesuffix(", H >= 0") == sure["truth"]  # or its twin
    assert same.all()  # a weight near 1 only where cells tell the structures apart
    free = runs[runs["truth"].str.contains("overlapped")]
    assert ((free["q_5"] <= free["q"]) & (free["q"] <= free["q_95"])).mean() > 0.8
