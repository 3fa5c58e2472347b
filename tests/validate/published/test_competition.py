"""The competition of floor structures: their derivatives, their marginal likelihoods, and the verdicts."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from rooffloor.models.floor.structures import FloorStructure
from rooffloor.validate.published.evidence import compete, competition
from rooffloor.validate.published.evidence.compete import Task
from rooffloor.validate.published.evidence.competition import (
    REFERENCE,
    STRUCTURES,
    Competition,
    averaged,
    verdict,
)
from rooffloor.validate.published.evidence.marginal import Effort, Marginal, marginal
from rooffloor.validate.published.imputation import aggregates
from rooffloor.validate.published.imputation.inversion import Inversion, Prior
from rooffloor.validate.published.imputation.readings import (
    FEASIBLE_READINGS,
    GRIDS,
    ROOF,
    ROOFS,
    UNORDERED,
    Index,
    targets,
)
from rooffloor.validate.published.printed_figures import PublishedFigures

INTERVALS = targets(PublishedFigures.load())
INDICES = tuple(
    Index(GRIDS[k % 2], reading, ROOF, UNORDERED[k // 2 % 2]) for k, reading in enumerate(FEASIBLE_READINGS[:3])
)
INDEX = Index(GRIDS[0], "median", ROOFS[2], UNORDERED[1])
FEW = {
    "anchor_offset H200": (1.0, 5.0),
    "raw_mape Llama-3.1-8B H200": (22.0, 37.0),
    "residual_mape Llama-3.1-8B H200": (6.0, 12.0),
    "raw_mape Llama-3.2-1B H200": (40.0, 65.0),
}


@pytest.mark.parametrize("floor", STRUCTURES, ids=str)
def test_derivatives_agree_with_differences(floor: FloorStructure) -> None:
    rng = np.random.default_rng(1)
    for blur in (0.0, 0.3, 1.0):
        inversion = Inversion(INDEX, INTERVALS, ("H100",), floor=floor)
        manifold = inversion.manifold(2.0, blur)
        q = 0.5 * rng.standard_normal((1, inversion.size))
        jacobian = manifold.jacobians(q)[0]
        floors = [4 + 17 * block for block in range(4)]
        powers = range(inversion.unknowns - inversion.tables.powers, inversion.unknowns)
        for column in [*floors, *powers, *rng.choice(inversion.size, 20, replace=False)]:
            step = np.zeros(inversion.size)
            step[column] = 1e-6
            slope = (manifold.values(q + step) - manifold.values(q - step))[0] / 2e-6
            np.testing.assert_allclose(jacobian[:, column], slope, rtol=1e-3, atol=1e-2)


@pytest.mark.parametrize(("T", "floor"), [(5.0, 3.0), (3.0, 5.0), (4.0, 4.0), (20.0, 1e-3)])
def test_overlap_lies_between_its_limits(T: float, floor: float) -> None:
    def overlapped(power: float) -> float:
        return float(aggregates.level_of(T, floor, power, aggregates.OVERLAPPED)[0])

    assert overlapped(1.0) == pytest.approx(T + floor, rel=1e-12)
    assert overlapped(1e-12) == pytest.approx(max(T, floor), rel=1e-9)
    assert overlapped(0.4) == pytest.approx((T**2.5 + floor**2.5) ** 0.4, rel=1e-12)
    _, by_T, by_floor, by_power = aggregates.level_of(T, floor, 0.4, aggregates.OVERLAPPED)
    assert by_T == pytest.approx((T / overlapped(0.4)) ** 1.5)
    assert by_floor == pytest.approx((floor / overlapped(0.4)) ** 1.5)
    assert by_power == pytest.approx((overlapped(0.4 + 1e-6) - overlapped(0.4 - 1e-6)) / 2e-6, rel=1e-6, abs=1e-9)


def test_who_shares_a_floor() -> None:
    rng = np.random.default_rng(2)
    for shared_by, distinct in (("gpu", 1), ("gpu, class", 2), ("gpu, model", 4)):
        inversion = Inversion(INDEX, {}, ("H100",), floor=FloorStructure(shared_by, "added, H >= 0"))
        floor = inversion.grids(rng.standard_normal((3, inversion.size))).floor
        assert (floor > 0).all()
        assert all(len(np.unique(row)) == distinct for row in floor)
    none = Inversion(INDEX, {}, ("H100",), floor=FloorStructure("none"))
    assert (none.grids(rng.standard_normal((1, none.size))).floor == 0).all()
    with pytest.raises(ValueError, match="expected one of"):
        FloorStructure("gpu", "multiplied")


def test_prior_scales() -> None:
    inversion = Inversion(INDEX, {}, ("H200",), Prior().scaled(2.0), FloorStructure("gpu, model", "max"))
    q = np.random.default_rng(3).standard_normal((4000, inversion.size))
    assert np.median(inversion.grids(q).floor) == pytest.approx(8.0, rel=0.06)


@pytest.mark.parametrize("blur", [0.1, 0.5, 1.0])
def test_places_and_latents(blur: float) -> None:
    z = np.linspace(-5, 5, 41)[:, None]
    places = np.array([[aggregates.claim_of(one, blur)[0]] for one in z[:, 0]])
    found, _ = aggregates.latents(places, blur)
    np.testing.assert_allclose(found, z, atol=1e-8)
    fine = np.linspace(-8, 8, 40001)
    density = np.exp(aggregates.latents(fine[:, None], blur)[1])
    assert np.trapezoid(density, fine) == pytest.approx(1.0, abs=1e-5)
    assert np.exp(aggregates.latents(np.array([[0.5], [1.5]]), 0.0)[1]).tolist() == [0.5, 0.0]


@pytest.mark.parametrize("floor", [REFERENCE, FloorStructure("gpu", "overlapped")], ids=str)
def test_marginal_likelihood_agrees_with_counting(floor: FloorStructure) -> None:
    """Prior draws that hit wide intervals are counted; ladders that start at different widths agree with them."""
    inversion = Inversion(INDEX, FEW, ("H200",), floor=floor)
    q = np.random.default_rng(4).standard_normal((100_000, inversion.unknowns))
    places, possible = inversion.places(q)
    hits = (possible & (np.abs(places) <= 1.0).all(1)).sum()
    counted = np.log(hits / possible.sum())
    for first in (50.0, 1000.0):
        effort = Effort(prior=10_000, first=first, chains=32, draws=4, repeats=2)
        found = marginal(inversion, seed=[5], effort=effort)
        assert found.width == 1.0
        assert abs(found.log_ml - counted) < 3 * np.sqrt(0.15**2 + 1 / hits)
        assert found.log_possible == pytest.approx(np.log(possible.mean()), abs=0.05)


def test_same_seed_same_marginal_likelihood() -> None:
    inversion = Inversion(INDEX, FEW, ("H200",))
    effort = Effort(prior=1000, first=50.0, chains=4, draws=2, repeats=2)
    first, again, other = (marginal(inversion, seed=[seed], effort=effort) for seed in (5, 5, 6))
    assert first.log_ml == again.log_ml != other.log_ml


def test_tasks_with_the_same_answer_share_a_run() -> None:
    by_class = FloorStructure("gpu, class", "max")
    assert Task(by_class, INDEX, "H200").canonical.floor == FloorStructure("gpu", "max")
    assert Task(by_class, INDEX, "H100").canonical.floor == by_class
    assert Task(FloorStructure("none"), INDEX, "H100", "floors halved").canonical.scale == "default"
    assert Task(by_class, INDEX, "H100", "floors halved").canonical.scale == "floors halved"


# ---- what follows from the runs ---------------------------------------------------------------------------------


OTHERS = {"se": 0.1, "log_possible": 0.0, "levels": 20.0, "width": 1.0}


def made_up(best: str, advantage: dict[str, float]) -> Competition:
    """Two structures on two GPUs and two indices; `advantage` in log marginal likelihood per prior scale."""
    rows = []
    for scale, gain in advantage.items():
        for index in INDICES[:2]:
            for floor in (REFERENCE, FloorStructure("gpu, model", "max")):
                for gpu in ("H100", "H200"):
                    task = Task(floor, index, gpu, scale)
                    log_ml = -40.0 + (gain / 2 if str(floor) == best else 0.0)
                    rows.append(task.labels | OTHERS | {"log_ml": log_ml})
    return Competition(pd.DataFrame(rows))


def test_scores_and_verdicts() -> None:
    best = str(FloorStructure("gpu, model", "max"))
    result = made_up(best, {"default": 4.0, "floors halved": 3.0})
    scores = result.scores()
    assert result.best == best
    assert scores["log_ml"].tolist() == pytest.approx([-76.0, -80.0])
    assert scores["se"].tolist() == pytest.approx([0.1, 0.1])
    table = result.to_frame().set_index("structure")
    assert table.loc[best, "verdict against reference"] == "more likely"
    assert table.loc[str(REFERENCE), "verdict against reference"] == "the same"
    assert table.loc[best, "log_bf, floors halved against reference"] == pytest.approx(3.0)
    changed = made_up(best, {"default": 4.0, "floors halved": 0.5})
    assert changed.to_frame()["verdict against reference"].tolist() == ["not determined", "the same"]
    assert f"{best}: log marginal likelihood -76.0" in repr(result)
    assert len(result.to_frame()) == 2


def test_verdicts_in_words() -> None:
    assert verdict([1, 1, 1]) == "more likely"
    assert verdict([-1, -1]) == "less likely"
    assert verdict([0, 0]) == "not told apart"
    assert verdict([0, 1]) == "not determined"


def test_indices_out_of_reach_weigh_nothing() -> None:
    log_ml, se = averaged(np.array([[-10.0], [-np.inf]]), np.array([[0.2], [np.nan]]))
    assert log_ml == pytest.approx(-10.0 - np.log(2))
    assert se == pytest.approx(0.2)
    assert averaged(np.array([[-np.inf]]), np.array([[np.nan]]))[0] == -np.inf


def tiny(**given: Any) -> Competition:
    """One GPU, one prior scale, in this process."""
    return compete.compete(seed=1, scales=("default",), gpus=("H200",), jobs=1, **given)


def test_coarse_runs_are_made_again_with_more_chains(monkeypatch: pytest.MonkeyPatch) -> None:
    light, close = Effort(chains=7, repeats=2), Effort(chains=9)
    calls = []

    def canned(inversion: Inversion, *, effort: Effort, **_: object) -> Marginal:
        best = inversion.floor == REFERENCE
        calls.append((best, effort))
        return Marginal(-40.0 - 5.0 * (not best), 3.0 if effort == light else 0.5, 0.0, 9.0, 1.0)

    monkeypatch.setattr(compete, "marginal", canned)
    structures = (FloorStructure("gpu", "added"), REFERENCE)
    result = tiny(structures=structures, indices=INDICES[:1], effort=light, light=light, close=close)
    assert result.runs["se"].tolist() == [0.5, 0.5]
    assert calls == [(False, light), (True, light), (False, close), (True, close)]


def test_a_small_competition_resumes_and_repeats(tmp_path: Path) -> None:
    structures = (REFERENCE, FloorStructure("gpu", "added, H >= 0"))
    effort = Effort(prior=2000, first=50, chains=6, draws=2, thin=1, repeats=2)

    def small(folder: Path | None) -> Competition:
        given = {"effort": effort, "close": effort, "folder": folder}
        return tiny(structures=structures, indices=INDICES[2:3], **given)

    first = small(tmp_path / "parts")
    assert len(list((tmp_path / "parts").glob("*.npz"))) == 2
    for other in (small(tmp_path / "parts"), small(None)):
        pd.testing.assert_frame_equal(first.runs, other.runs)
    competition.save(first, tmp_path)
    back = competition.load(tmp_path)
    pd.testing.assert_frame_equal(back.runs, first.runs, rtol=1e-6)
    assert back.data["structures"][0]["name"] == first.best
    with pytest.raises(ValueError, match="constants per GPU"):
        compete.compete(seed=1, indices=[Index(GRIDS[0], "median", ROOFS[0], UNORDERED[0])])
