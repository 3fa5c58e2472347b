"""Verdicts under other choices: what counts as a flip, and that each choice changes what it says it changes."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from simulated import EFFICIENCY, MOE, SIBLING, SMALL, simulate

from rooffloor.validate.estimates.cell_draws import IMPUTED, with_own_noise
from rooffloor.validate.hypotheses.result import NOT_TESTED, REFUTED, SUPPORTED, UNDECIDED
from rooffloor.validate.hypotheses.robustness import SAW, STATEMENTS, Choice, choices, robustness, settle, verdicts
from rooffloor.validate.hypotheses.test import TESTS
from rooffloor.validate.study.study import Study


def rows(*h1: str) -> list[dict[str, str]]:
    rest = dict.fromkeys(STATEMENTS, NOT_TESTED)
    return [{"kind": "k", "name": str(n), **rest, "H1": verdict} for n, verdict in enumerate(h1)]


def test_a_verdict_that_flips_is_undecided():
    found = settle(rows(SUPPORTED, SUPPORTED, REFUTED))["H1"]
    assert (found["verdict"], found["turned"]) == (UNDECIDED, ["k: 2"])
    assert found["sentence"] == "H1 is supported as reported and refuted under k: 2: undecided."


def test_constants_that_saw_the_family_are_shown_and_decide_nothing(evidence: SimpleNamespace):
    joint = {"plain roof, joint": evidence.draws, "query-head limb, cut": evidence.draws}
    cut = SimpleNamespace(**vars(evidence) | {"variants": joint, "saw_families": frozenset(["plain roof, joint"])})
    kinds = {choice.name: choice.kind for choice in choices(cut)}
    assert (kinds["plain roof, joint"], kinds["query-head limb, cut"]) == (SAW, "treatment")
    primary, other = rows(REFUTED, SUPPORTED)
    assert settle([primary, other])["H1"]["verdict"] == UNDECIDED
    found = settle([primary, other | {"kind": SAW}])["H1"]
    assert (found["verdict"], found["turned"], found["softened"]) == (REFUTED, [], [])


def test_a_verdict_that_softens_stands_and_says_so():
    found = settle(rows(REFUTED, UNDECIDED, NOT_TESTED))["H1"]
    assert (found["verdict"], found["turned"], found["softened"]) == (REFUTED, [], ["k: 1"])
    assert "not decided under k: 1" in found["sentence"]


def test_a_steady_verdict_counts_the_choices_under_which_it_was_tested():
    assert settle(rows(SUPPORTED, SUPPORTED, NOT_TESTED))["H1"]["sentence"] == (
        "H1 is supported as reported and under each of 1 other choices."
    )
    assert "would be decided under k: 1" in settle(rows(UNDECIDED, SUPPORTED))["H1"]["sentence"]


@pytest.fixture(scope="module", params=["measured", IMPUTED])
def evidence(request: pytest.FixtureRequest) -> SimpleNamespace:
    """What `robustness` reads of an `Evidence`; the mixture is measured on one GPU more than it would matter."""
    draws = simulate(request.param, models=("Llama-3.1-8B", SIBLING, SMALL, MOE), floors={SMALL: 9.0, MOE: 22.0})
    draws = with_own_noise(draws, np.random.default_rng(0))
    constants = {n: {"all GPUs": np.full(len(draws.weight), getattr(EFFICIENCY, n))} for n in ("eta_bw", "eta_fa")}
    return SimpleNamespace(
        study=Study.load("transfer-study"),
        draws=draws,
        variants={"another roof": draws},
        saw_families=frozenset(),
        reconstruction=None,
        constants={"primary": constants},
    )


def test_choices_change_one_thing_each(evidence: SimpleNamespace):
    found = list(choices(evidence))
    by_kind: dict[str, list[str]] = {}
    for choice in found:
        by_kind.setdefault(choice.kind, []).append(choice.name)
    assert by_kind["GPU left out"] == ["H100", "H200", "A100-40GB"]
    assert len(by_kind["cell left out"]) == 15
    assert by_kind["experts streamed"] == ["distinct", "balanced"]
    assert len(by_kind["prior of the spread between GPUs"]) == 2
    primary = evidence.draws
    for choice in found:
        if choice.kind == "experts streamed":
            moe = choice.draws.cells.model == MOE
            assert np.array_equal(choice.draws.gpu_ms[:, ~moe], primary.gpu_ms[:, ~moe])
            single = moe & (choice.draws.batch[0] == 1)
            many = moe & (choice.draws.batch[0] == 16)
            assert choice.draws.gpu_ms[:, single] == pytest.approx(primary.gpu_ms[:, single])  # one token: k experts
            assert (choice.draws.gpu_ms[:, many] > 1.3 * primary.gpu_ms[:, many]).all()
            assert (choice.draws.floor_ms[:, many] < primary.floor_ms[:, many]).all()
        if choice.kind == "noise":
            assert not np.array_equal(choice.draws.noise_ms, primary.noise_ms)
        if choice.kind == "cell left out":
            assert len(choice.draws.cells) == len(primary.cells) * 14 // 15


def test_robustness_judges_every_choice(evidence: SimpleNamespace):
    margins = evidence.study.margins
    results = {name: test(evidence.draws, margins) for name, test in TESTS.items()}
    found = robustness(evidence, results)
    assert [row["kind"] for row in found.rows[:2]] == ["primary", "treatment"]
    assert found.rows[0]["H1"] == SUPPORTED
    reported = {k: v for k, v in found.rows[0].items() if k in STATEMENTS}
    assert reported == verdicts(Choice("", "", evidence.draws), margins)
    alone = robustness(evidence, {"H2": results["H2"]})  # one hypothesis by itself: the same
    assert alone.settled == {name: one for name, one in found.settled.items() if name.startswith("H2")}
    assert found.settled["H1"]["verdict"] == SUPPORTED
    assert found.settled["H2a"]["verdict"] == REFUTED
    assert "choices" in repr(found)
    assert set(found.data) == {"rows", "settled"}


def test_a_wide_prior_on_the_spread_weakens_h1(evidence: SimpleNamespace):
    draws, margins = evidence.draws, evidence.study.margins
    assert verdicts(Choice("", "", draws, 1.25), margins)["H1"] == SUPPORTED
    assert verdicts(Choice("", "", draws, 1e4), margins)["H1"] == UNDECIDED
    assert verdicts(Choice("", "", draws, 1.25), replace(margins, h1_points=0.0))["H1"] != SUPPORTED
