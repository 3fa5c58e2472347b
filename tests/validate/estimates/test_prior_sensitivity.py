"""Power-scaling tells a flat prior, a conflict and a weak likelihood apart where the posterior is known."""

import numpy as np
import pytest
import xarray as xr
from scipy import stats

from rooffloor.validate.estimates.prior_sensitivity import (
    CONFLICT,
    MIN_DRAWS,
    NONE,
    THRESHOLD,
    WEAK,
    averaged,
    diagnosis_of,
    floors_against_anchor,
    power_scaling,
    warnings_of,
)

SHAPE = (4, 1000)


def dataset(**densities: np.ndarray) -> xr.Dataset:
    return xr.Dataset({name: (("chain", "draw"), values) for name, values in densities.items()})


def conjugate(y: np.ndarray, prior_sd: float, seed: int = 0) -> tuple[np.ndarray, xr.Dataset, np.ndarray]:
    """Posterior draws of mu where y ~ N(mu, 1) and mu ~ N(0, prior_sd), log prior and log likelihood.

    The prior has a second part that mu has nothing to do with.
    """
    rng = np.random.default_rng(seed)
    variance = 1.0 / (len(y) + prior_sd**-2)
    mu = variance * y.sum() + np.sqrt(variance) * rng.standard_normal(SHAPE)
    other = stats.norm.logpdf(rng.standard_normal(SHAPE))
    return mu, dataset(mean=stats.norm.logpdf(mu, 0.0, prior_sd), other=other), stats.norm.logpdf(y, mu[..., None], 1.0)


@pytest.mark.parametrize(
    ("y", "prior_sd", "diagnosis"),
    [
        (np.array([4.0, 5.0, 5.0, 6.0]), 100.0, NONE),
        (np.array([4.0, 5.0, 5.0, 6.0]), 1.0, CONFLICT),
        (np.array([0.1]), 0.1, WEAK),
    ],
    ids=["flat prior", "prior far from the data", "one cell that says little"],
)
def test_normal_mean(y: np.ndarray, prior_sd: float, diagnosis: str) -> None:
    mu, prior, likelihood = conjugate(y, prior_sd)
    (row,) = power_scaling({"mu": mu}, prior, likelihood)
    assert row["quantity"] == "mu"
    assert row["diagnosis"] == diagnosis
    assert (row["prior"] >= THRESHOLD) == (diagnosis != NONE)
    assert (row["likelihood"] >= THRESHOLD) == (diagnosis != WEAK)
    assert row["components"]["other"] < 0.02
    assert row["components"]["mean"] == pytest.approx(row["prior"], abs=0.02)


def test_threshold_is_a_quarter_of_an_sd_per_doubling() -> None:
    x = np.random.default_rng(0).permutation(stats.norm.ppf((np.arange(4000) + 0.5) / 4000)).reshape(SHAPE)
    pull = 0.25 / np.log(2.0) * x  # weights exp(pull (power - 1)) move the mean by 0.25 per unit of log2(power)
    (row,) = power_scaling({"x": x}, dataset(pull=pull), np.zeros((*SHAPE, 1)))
    assert row["prior"] == pytest.approx(THRESHOLD, rel=0.1)


def test_each_quantity_answers_to_its_own_component() -> None:
    rng = np.random.default_rng(1)
    a, b = rng.standard_normal((2, *SHAPE))
    prior = dataset(first=2.0 * a, second=b, uniform=np.full(SHAPE, -0.22))
    rows = power_scaling({"a": a, "b / c": b, "level": np.full(SHAPE, 0.3)}, prior, 3.0 * b[..., None])
    assert [row["quantity"] for row in rows] == ["a", "b / c", "level"]
    assert rows[0]["components"]["first"] > 0.2 > 0.02 > rows[0]["components"]["second"]
    assert rows[1]["components"]["second"] > 0.1 > 0.02 > rows[1]["components"]["first"]
    assert [row["diagnosis"] for row in rows] == [WEAK, CONFLICT, NONE]
    assert all(row["components"]["uniform"] == 0.0 for row in rows)
    assert (rows[2]["prior"], rows[2]["likelihood"], *rows[2]["components"].values()) == (0.0,) * 5
    assert all(type(row[key]) is float for row in rows for key in ("prior", "likelihood"))


def test_no_prior_and_no_quantities() -> None:
    mu, _, likelihood = conjugate(np.array([1.0, 2.0]), 1.0)
    (row,) = power_scaling({"mu": mu}, xr.Dataset(), likelihood)
    assert (row["prior"], row["components"], row["diagnosis"]) == (0.0, {}, NONE)
    assert power_scaling({}, dataset(mean=mu), likelihood) == []


def test_bad_draws_are_refused() -> None:
    mu, prior, likelihood = conjugate(np.array([1.0]), 1.0)
    few = slice(0, MIN_DRAWS // 4 - 1)
    with pytest.raises(ValueError, match="96 draws are too few for power-scaling: 100 are needed"):
        power_scaling({"mu": mu[:, few]}, prior.isel(draw=few), likelihood[:, few])
    with pytest.raises(ValueError, match="mu has shape"):
        power_scaling({"mu": mu[0]}, prior, likelihood)
    broken = mu.copy()
    broken[1, 2] = np.nan
    with pytest.raises(ValueError, match="mu is not finite in 1 of 4000 draws"):
        power_scaling({"mu": broken}, prior, likelihood)
    with pytest.raises(ValueError, match="mean is not finite"):
        power_scaling({"mu": mu}, dataset(mean=np.where(mu < 0, -np.inf, mu)), likelihood)
    with pytest.raises(ValueError, match="log likelihood is not finite"):
        power_scaling({"mu": mu}, prior, np.where(likelihood < -3, -np.inf, likelihood))


def test_diagnosis_counts_from_the_threshold() -> None:
    assert diagnosis_of(THRESHOLD, THRESHOLD) == CONFLICT
    assert diagnosis_of(THRESHOLD, 0.049) == WEAK
    assert diagnosis_of(0.049, 0.0) == diagnosis_of(0.0, 0.4) == NONE


def test_warnings_group_quantities_by_what_moves_them() -> None:
    def row(quantity: str, prior: float, likelihood: float, **components: float) -> dict[str, object]:
        return {
            "quantity": quantity,
            "prior": prior,
            "likelihood": likelihood,
            "components": components,
            "diagnosis": diagnosis_of(prior, likelihood),
        }

    rows = [
        row("eta_tc", 0.2, 0.01, constants=0.2, floors=0.01),
        row("floor_ms [A, x]", 0.1, 0.3, constants=0.02, floors=0.12),
        row("floor_ms [B, x]", 0.25, 0.3, constants=0.02, floors=0.2),
        row("noise", 0.01, 0.3, constants=0.0, floors=0.0),
    ]
    conflict, weak = warnings_of(rows)
    assert conflict.startswith("prior-data conflict: floor_ms [A, x], floor_ms [B, x] (sensitivities 0.10 to 0.25")
    assert "widen the priors of 'floors'" in conflict
    assert weak.startswith("strong prior or weak likelihood: eta_tc (sensitivity 0.20 to the prior, most to its part")
    assert "justify the priors of 'constants'" in weak
    assert warnings_of(rows[3:]) == []


def test_posteriors_are_averaged_and_diagnosed_anew() -> None:
    def table(prior: float) -> list[dict[str, object]]:
        one = {"quantity": "x", "prior": prior, "likelihood": 0.2, "components": {"floors": prior}, "diagnosis": "-"}
        return [one]

    (row,) = averaged([table(0.02), table(0.10)])
    assert row["prior"] == pytest.approx(0.06)
    assert row["components"] == {"floors": pytest.approx(0.06)}
    assert row["diagnosis"] == "prior-data conflict"


def test_floors_are_those_of_the_measured_pairs() -> None:
    floors = xr.DataArray(
        np.arange(8.0).reshape(1, 2, 2, 2),
        dims=("chain", "draw", "gpu", "model"),
        coords={"gpu": ["H100", "A100"], "model": ["anchor", "other"]},
    )
    found = floors_against_anchor(floors, "anchor", [("anchor", "H100"), ("other", "H100"), ("other", "H100")])
    assert list(found) == ["floor of anchor on H100", "floor of other less the anchor's on H100"]
    np.testing.assert_array_equal(found["floor of other less the anchor's on H100"], [[1.0, 1.0]])
