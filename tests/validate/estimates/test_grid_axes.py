"""Cells are read by their place: results do not depend on the order of axes, which imputed grids differ in."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from simulated import ANCHOR, GPUS, GRID, MOE, SIBLING, SMALL, other_order, simulate

from rooffloor.models.specs import gpus as catalog
from rooffloor.models.specs import shapes
from rooffloor.validate.estimates.cell_draws import IMPUTED, Draws
from rooffloor.validate.estimates.grid_axes import ABSENT, GridAxes, without
from rooffloor.validate.hypotheses.breakdown import breakdown
from rooffloor.validate.hypotheses.frequentist_h1 import errors
from rooffloor.validate.hypotheses.h2 import h2
from rooffloor.validate.hypotheses.level import level_error, long_context_error
from rooffloor.validate.hypotheses.structural import structural
from rooffloor.validate.study.margins import Margins

MODELS = (ANCHOR, SIBLING, SMALL, MOE)


@pytest.fixture(scope="module")
def both() -> tuple[Draws, Draws]:
    """Draws whose grids have one order, and the same draws whose grids have two."""
    one = simulate(IMPUTED, models=MODELS, floors={SMALL: 9.0, MOE: 22.0}, noise=0.05)
    two = other_order(one)
    assert not np.array_equal(one.context, two.context)
    return one, two


def _structural(draws: Draws) -> Any:
    return structural(
        draws, {m: shapes.load(m) for m in draws.cells.models}, {g: catalog.load(g) for g in draws.cells.gpus}
    )


READS: dict[str, Callable[[Draws], Any]] = {
    "structural": _structural,
    "breakdown": breakdown,
    "long context": lambda draws: long_context_error(draws, draws.mask(SMALL, "H100")),
    "corner": lambda draws: h2(draws, Margins()).data["parts"]["c"]["per_sku"][0]["corner"],
    "paired errors": lambda draws: errors(draws, SIBLING, GPUS, np.arange(len(draws.weight))),
}


def flat(found: Any) -> list[Any]:
    """Leaves in order; numbers to 9 digits, since sums over cells may run in another order."""
    if isinstance(found, dict):
        return [leaf for key, value in found.items() for leaf in (key, *flat(value))]
    if isinstance(found, list | tuple):
        return [leaf for value in found for leaf in flat(value)]
    if isinstance(found, np.ndarray):
        return flat(found.ravel().tolist())
    return [f"{found:.9g}" if isinstance(found, float) else found]


@pytest.mark.parametrize("name", READS)
def test_reads_do_not_depend_on_the_order_of_axes(both: tuple[Draws, Draws], name: str):
    one, two = map(READS[name], both)
    if name == "structural":  # what a re-run would show is simulated: its noise is drawn anew
        for read in (*one, *two):
            assert read.pop("rerun")["value"] is not None
            read.pop("rerun_sentence")
    assert flat(one) == flat(two)


def test_a_cell_left_out_is_the_one_that_it_says(both: tuple[Draws, Draws]):
    one, two = (without(draws, (2.0, 8192.0)) for draws in both)
    assert len(two.cells) == len(both[1].cells) * 14 // 15
    for draws in (one, two):
        assert not ((draws.batch == 2) & (draws.context == 8192)).any()
    for model, gpu, mask in one.pairs():
        assert level_error(two, two.mask(model, gpu), two.calibrated_ms) == pytest.approx(
            level_error(one, mask, one.calibrated_ms)
        )
    with pytest.raises(ValueError, match="no grid holds B = 3, L = 512"):
        without(both[1], (3.0, 512.0))


def test_a_point_that_some_grids_lack_is_left_out_in_the_others(both: tuple[Draws, Draws]):
    draws = both[1]
    batch = np.where((draws.unit % 2 == 0)[:, None] & (draws.batch == 2), 3.0, draws.batch)
    mixed = replace(draws, batch=batch)
    axes = GridAxes.of(mixed)
    everywhere, some = (axes.points(mixed.mask(SIBLING, "H200"), everywhere=e) for e in (True, False))
    assert list(everywhere) == sorted(p for p in GRID if p[0] != 2)
    assert list(some) == sorted((*GRID, *((3.0, c) for b, c in GRID if b == 2)))
    assert ABSENT in some[2.0, 512.0].tolist()
    held = axes.holding(some[3.0, 512.0])
    assert np.array_equal(held, draws.unit % 2 == 0)
    left = without(mixed, (3.0, 512.0))
    assert np.array_equal(left.unit, mixed.unit[held])
    assert left.weight.sum() == pytest.approx(1)
    assert not ((left.batch == 3) & (left.context == 512)).any()
    step = axes.take(mixed.step_ms, everywhere[4.0, 2048.0])
    at = (mixed.batch == 4) & (mixed.context == 2048) & mixed.mask(SIBLING, "H200")
    assert np.array_equal(step, mixed.step_ms[at])
