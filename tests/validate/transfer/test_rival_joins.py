"""Constants weighted for another way of joining floors, and errors that must foretell left-out cells to be named."""

from dataclasses import replace

import numpy as np
import pytest
from toy_calibration import toy

from rooffloor.validate.estimates.cell_draws import IMPUTED
from rooffloor.validate.simulation.family import Planted, planted
from rooffloor.validate.transfer.explanations import gap
from rooffloor.validate.transfer.joins import _reweighted
from rooffloor.validate.transfer.left_out import ahead, scores


def test_constants_count_by_how_much_better_the_anchor_fits_under_the_other_way():
    """A constant that is normal around 0 under one way and around 1 under the other: weights bring its mean there."""
    made = replace(toy(n=4000), label="measured")
    theta = np.random.default_rng(1).standard_normal(4000)
    moved, evidence = _reweighted(made, -0.5 * (theta - 1.0) ** 2 + 0.7, -0.5 * theta**2)
    assert moved.weight.sum() == pytest.approx(1.0)
    assert moved.weight @ theta == pytest.approx(1.0, abs=0.1)
    assert evidence == pytest.approx(0.7, abs=0.1)  # both densities are normalised but for this constant


def test_draws_of_imputed_cells_keep_their_weights():
    made = replace(toy(), label=IMPUTED)
    moved, _ = _reweighted(made, np.linspace(0.0, 5.0, 40), np.zeros(40))
    np.testing.assert_array_equal(moved.weight, made.weight)


@pytest.mark.parametrize(("error", "truth"), [("kv", {"kv": 1.6}), ("whole", {"whole": 1.25})])
def test_the_true_error_foretells_left_out_cells_best(error: str, truth: dict[str, float]):
    (made,) = planted(Planted(**truth), np.random.default_rng(3), 1, draws=200)
    found = gap(made, [made.draws.mask(made.model, gpu) for gpu in made.gpus])
    told = scores(found, 0.12)
    assert max(told, key=lambda name: told[name]) == error
    assert ahead(found, error, 0.12) > 3.0
    assert ahead(found, "weights", 0.12) < 0.0


def test_one_cell_leaves_nothing_out():
    (made,) = planted(Planted(gpus=("H100",), grid=((4, 2048),)), np.random.default_rng(1), 1, draws=150)
    found = gap(made, [made.draws.mask(made.model, "H100")])
    assert scores(found, 0.12) == {}
    assert ahead(found, "whole", 0.12) == -np.inf
