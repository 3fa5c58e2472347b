"""Other joins of T_gpu and floor: found where they are true, never an excuse where the roof is wrong."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from simulated import ANCHOR, GPUS, MOE, SIBLING, SMALL, simulate

from rooffloor.models.floor.structures import overlap_ms
from rooffloor.validate.estimates.cell_draws import IMPUTED, MEASURED, Draws
from rooffloor.validate.hypotheses.h1 import h1
from rooffloor.validate.hypotheses.h2 import h2
from rooffloor.validate.hypotheses.h3 import h3
from rooffloor.validate.hypotheses.joins import JOINS, Explained
from rooffloor.validate.hypotheses.result import NOT_TESTED, REFUTED, SUPPORTED, UNDECIDED
from rooffloor.validate.study.margins import Margins

MARGINS = Margins()
HIDING = {"H100": 6.0, "H200": 5.0, "A100-40GB": 11.0}
"""Floors that hide part of each GPU's T_gpu, ms."""


def refitted(draws: Draws, step_ms: np.ndarray) -> Draws:
    """Draws whose added floors and noise are what least squares makes of other steps."""
    floor, noise = np.empty_like(draws.floor_ms), np.empty_like(draws.noise_ms)
    anchor = np.empty_like(draws.floor_ms)
    for model, gpu, mask in draws.pairs():
        T, y = draws.gpu_ms[:, mask], step_ms[:, mask]
        weight = 1 / y**2
        offset = (weight * (y - T)).sum(-1, keepdims=True) / weight.sum(-1, keepdims=True)
        floor[:, mask] = offset
        relative = np.sqrt((((y - T - offset) / y) ** 2).mean(-1, keepdims=True))
        noise[:, mask] = relative * y
        if model == ANCHOR:
            anchor[:, draws.cells.gpu == gpu] = offset
    given = {"calibrated_floor_ms": anchor, "own_calibrated_floor_ms": floor}
    return replace(draws, step_ms=step_ms, floor_ms=floor, anchor_floor_ms=anchor, noise_ms=noise, **given)


@cache
def overlapped(q: float, label: str = MEASURED, seed: int = 1) -> Draws:
    """Every model right under the join q with the GPU's floor, 2 % noise, judged as if floors were added."""
    draws = simulate(label, models=(ANCHOR, SIBLING, SMALL, MOE), noise=0.02, seed=seed)
    H = np.array([HIDING[gpu] for gpu in draws.cells.gpu])
    exact = draws.gpu_ms.mean(0, keepdims=True) if label == MEASURED else draws.gpu_ms
    units = np.unique(draws.unit, return_index=True, return_inverse=True)
    noise = np.random.default_rng(seed).standard_normal((len(units[1]), len(H)))
    noise = noise[:1] if label == MEASURED else noise[units[2]]
    return refitted(draws, overlap_ms(exact, H, q) * (1 + 0.02 * noise))


@pytest.mark.parametrize(("q", "name"), [(0.0, "the longer of the two"), (0.5, "half overlapped")])
@pytest.mark.parametrize("seed", [1, 2])
def test_a_join_that_is_true_is_found_and_nothing_is_refuted(q: float, name: str, seed: int):
    draws = overlapped(q, seed=seed)
    explained = Explained(draws, MARGINS)
    assert JOINS[name] == q
    for model in (SIBLING, SMALL):
        assert explained.by(model, own_floor=False)[name] == 1.0
        assert explained.by(model, own_floor=True)[name] == 1.0
    results = [test(draws, MARGINS) for test in (h1, h2, h3)]
    assert REFUTED not in {verdict for result in results for verdict in result.statements.values()}
    told = results[2].data["pooled"][0]
    assert (told["model"], told["verdict"], told["slope_verdict"]) == (SMALL, UNDECIDED, REFUTED)
    assert f"({told['joined']})" in results[2].sentences[0]  # the join is named


def test_without_the_join_the_same_slopes_would_refute():
    draws = overlapped(0.0)
    blind = replace(draws, parts_ms={})  # constants cannot be freed: no join is tried
    assert Explained(blind, MARGINS).by(SMALL, own_floor=True) == {}
    assert h3(blind, MARGINS).verdict == REFUTED


def test_a_join_is_found_in_imputed_grids_too():
    found = Explained(overlapped(0.0, IMPUTED), MARGINS).by(SMALL, own_floor=True)
    assert found["the longer of the two"] > 0.9


@pytest.mark.parametrize("scale", [1.6, 2.5])
def test_no_join_excuses_a_roof_that_is_too_fast(scale: float):
    draws = simulate(models=(ANCHOR, SIBLING, SMALL), scales={SIBLING: scale, SMALL: scale}, noise=0.02)
    explained = Explained(draws, MARGINS)
    assert explained.likeliest(SIBLING, own_floor=False) is None
    assert explained.likeliest(SIBLING, own_floor=True) is None
    assert h1(draws, MARGINS).verdict == REFUTED
    assert h1(draws, MARGINS).data["families"][0]["joined"] is None


def test_no_join_excuses_a_floor_of_its_own():
    draws = simulate(floors={SIBLING: 7.0}, noise=0.02)
    assert Explained(draws, MARGINS).by(SIBLING, own_floor=False) == {}
    assert h1(draws, MARGINS).verdict == REFUTED


def test_a_join_does_not_excuse_a_level_that_it_leaves():
    draws = simulate(noise=0.3)  # so noisy that any join explains as well, and none predicts
    assert Explained(draws, MARGINS).by(SIBLING, own_floor=True)
    assert Explained(draws, MARGINS).by(SIBLING, own_floor=False) == {}


def test_each_model_is_tried_once():
    draws = overlapped(0.5)
    explained = Explained(draws, MARGINS)
    first = explained.by(SMALL, own_floor=True)
    assert explained.by(SMALL, own_floor=True) is first
    assert Explained(draws, MARGINS).by("no such model", own_floor=True) == {}


def test_a_clean_study_needs_no_join():
    draws = simulate(models=(ANCHOR, SIBLING, SMALL), noise=0.02)
    assert h1(draws, MARGINS).data["families"][0]["joined"] is None
    assert h3(draws, MARGINS).verdict == NOT_TESTED
    assert h1(draws, MARGINS).verdict == SUPPORTED
    assert tuple(HIDING) == GPUS
