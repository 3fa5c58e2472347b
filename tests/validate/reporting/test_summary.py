"""The summary of a published study: printed figures first, each sentence true for its numbers."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import published_numbers as numbers
import pytest
from simulated import ANCHOR, GPUS, MOE, SIBLING, SMALL, simulate

from rooffloor.models.specs import gpus as catalog
from rooffloor.models.specs import shapes
from rooffloor.validate.estimates.cell_draws import IMPUTED
from rooffloor.validate.hypotheses import as_published
from rooffloor.validate.hypotheses.as_published import AsPublished
from rooffloor.validate.hypotheses.structural import RISE, SMALL_STEP, structural
from rooffloor.validate.hypotheses.test import TESTS
from rooffloor.validate.published.printed_figures import Figure, PublishedFigures
from rooffloor.validate.reporting import summary
from rooffloor.validate.study.margins import Margins

MARGINS = Margins()
CLASSES = {ANCHOR: "dense 5-10B", SIBLING: "dense 5-10B", SMALL: "dense <2B", MOE: "moe"}


@pytest.fixture(scope="module")
def fit() -> SimpleNamespace:
    draws = simulate(IMPUTED, models=(ANCHOR, SIBLING, SMALL, MOE), floors={SMALL: 9.0, MOE: 22.0}, noise=0.05)
    draws = draws.where(~((draws.cells.model == MOE) & (draws.cells.gpu != "H100")))
    study = SimpleNamespace(data=SimpleNamespace(path=numbers.COMMITTED), margins=MARGINS)
    return SimpleNamespace(draws=draws, study=study, reconstruction=object())


@pytest.fixture(scope="module")
def facts(fit: SimpleNamespace) -> AsPublished:
    found = as_published.read(fit)  # type: ignore[arg-type]
    assert found is not None
    return found


@pytest.fixture(scope="module")
def reads(fit: SimpleNamespace) -> list[dict[str, Any]]:
    printed = {
        (f.quantity, f.model, f.gpu): f.value for f in PublishedFigures.load() if f.quantity in (SMALL_STEP, RISE)
    }
    models = {m: shapes.load(m) for m in fit.draws.cells.models}
    return structural(fit.draws, models, {g: catalog.load(g) for g in GPUS}, printed)


@pytest.fixture(scope="module")
def said(fit: SimpleNamespace, facts: AsPublished, reads: list[dict[str, Any]]) -> list[str]:
    results = {n: as_published.published_first(t(fit.draws, MARGINS), facts).data for n, t in TESTS.items()}
    return summary.of_published(results, facts, reads, absorbed(0.69, 0.997), hidden())


def absorbed(*shares: float) -> list[dict[str, Any]]:
    return [{"cells": 15, "squared": {"value": s}, "noise_squared": {"value": 0.07}} for s in shares]


def hidden() -> list[dict[str, Any]]:
    kinds = (("eta_bw", "weights", 0.9999), ("kv_width", "a wrong width", 0.30), ("eta_tc", "ceiling", None))
    return [{"error": error, "label": label, "share_hidden": share} for error, label, share in kinds]


def test_every_number_stated_as_published_is_the_committed_one(said: list[str]):
    table, seen = numbers.read(), set()
    for sentence in numbers.as_published(said):
        if not sentence.startswith("As published"):
            continue
        values, _ = numbers.stated(sentence)
        assert values, sentence
        for key, value in values.items():
            assert float(value) == float(table[key]), (key, sentence)
        seen |= set(values)
    wanted = {key for key in table if key[0] in ("residual_mape", *numbers.ORDERS.values()) and key[2] in GPUS}
    assert wanted <= seen
    assert {("raw_mape", ANCHOR, gpu) for gpu in GPUS} <= seen
    assert {("self_floor_mape", SMALL, "A100-40GB"), ("error", MOE, "H100"), ("dispatch_median", MOE, "H100")} <= seen


def test_h1_stands_first_then_what_absolute_latency_needs(said: list[str]):
    assert said[0].startswith("H1 is supported")
    assert said[1].startswith(f"As published, {SIBLING} lies below {ANCHOR} on every GPU")
    assert any("raw MAPE" in s and s.endswith("Absolute latency is not fit-free.") for s in said)
    assert any("removes 69 to 99.7 %" in s and "hides weights wholly, and 30 %" in s for s in said)
    assert "of those printed, all hold." in " ".join(said)
    assert "statement about the model's term" in " ".join(said)
    assert said[-1].startswith("In use, as far as the printed figures go: reuse the shape")
    assert f"({SMALL} and {MOE})" in said[-1]


def test_sentences_follow_their_numbers(facts: AsPublished):
    """Other figures, other sentences: nothing is said because the study says it."""

    def with_raw(**values: float) -> AsPublished:
        def own(f: Figure) -> Figure:
            return replace(f, value=values.get(f.gpu, 3.0)) if (f.model, f.quantity) == (ANCHOR, "raw_mape") else f

        return AsPublished.of(PublishedFigures(tuple(map(own, facts.figures))), ANCHOR, CLASSES, GPUS, MARGINS)

    assert "more than 10 % off on H200. Absolute" in summary._raw(with_raw(H100=4.0, H200=12.0))[0]
    assert "the anchor itself stays within 10 %" in summary._raw(with_raw())[0]
    nothing = AsPublished.of(PublishedFigures(()), ANCHOR, CLASSES, GPUS, MARGINS)
    assert summary._raw(nothing) == summary._in_use(nothing) == summary._orders([]) == summary._absorbed([], []) == []


def test_an_order_that_fails_is_counted(reads: list[dict[str, Any]]):
    broken = [dict(read) for read in reads]
    first = next(read for read in broken if read["as_published"])
    first["in_order"] = False
    assert "of those printed, 1 of 2 holds." in summary._orders(broken)[0]


def test_measured_cells_keep_verdicts_and_their_first_sentences():
    tests = {"H1": {"verdict": "undecided", "statement": "It transfers.", "sentences": list("abcdef")}}
    assert summary.of_tests(tests) == ["H1 is undecided: It transfers.", *"abcd"]
    assert summary.which_floor({"run": False, "answer": ["x"]}) == []
