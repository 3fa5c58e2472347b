"""Transfer tension: chi-squared where the model is true, large where the other cells contradict the anchor's."""

import numpy as np
import pytest
from scipy import stats

from rooffloor.validate.comparison.tension import simulated_p, tension, unbounded


def linear(rng: np.random.Generator, shift: float = 0.0, draws: int = 4000) -> tuple[dict[str, object], ...]:
    """Cut and joint draws of two log constants seen by 5 anchor rows and 20 other rows, exactly normal."""
    truth = np.array([0.3, 0.8])
    X, Z = rng.standard_normal((5, 2)), rng.standard_normal((20, 2))
    y, w = X @ truth + rng.standard_normal(5), Z @ (truth + shift) + rng.standard_normal(20)
    out = []
    for rows, values in ((X, y), (np.vstack([X, Z]), np.concatenate([y, w]))):
        precision = rows.T @ rows + 0.01 * np.eye(2)
        mean = np.linalg.solve(precision, rows.T @ values)
        sample = rng.multivariate_normal(mean, np.linalg.inv(precision), draws)
        out.append({"l_half": np.exp(sample[:, 0]), "latency_ms": np.exp(sample[:, 1])})
    return tuple(out)


def test_true_model_gives_a_chi_squared() -> None:
    rng = np.random.default_rng(1)
    found = [tension(*linear(rng)) for _ in range(200)]
    assert {f.freedom for f in found} == {2}
    assert stats.kstest([f.p_chi2 for f in found], "uniform").pvalue > 0.01


def test_contradicting_cells_give_tension() -> None:
    rng = np.random.default_rng(2)
    found = [tension(*linear(rng, shift=3.0)) for _ in range(20)]
    assert np.median([f.p_chi2 for f in found]) < 1e-3
    assert all(f.z["l_half"] < 0 for f in found)


def test_directions_without_information_are_left_out() -> None:
    rng = np.random.default_rng(3)
    same = rng.beta(80, 20, 4000)
    cut = {"eta_bw": same, "eta_fa": rng.beta(30, 10, 4000)}
    joint = {"eta_bw": rng.permutation(same), "eta_fa": rng.beta(300, 100, 4000)}
    found = tension(cut, joint)
    assert found.freedom == 1
    assert np.isnan(found.z["eta_bw"])
    assert abs(found.z["eta_fa"]) < 2
    nothing = tension({"eta_bw": same}, {"eta_bw": same})
    assert nothing.freedom == 0
    assert np.isnan(nothing.p_chi2)


def test_bad_input() -> None:
    with pytest.raises(ValueError, match="same constants"):
        tension({"q": np.ones(3)}, {"eta_bw": np.ones(3)})
    with pytest.raises(ValueError, match="same constants"):
        tension({}, {})


def test_scales_and_simulated_p() -> None:
    np.testing.assert_allclose(unbounded("eta_bw", [0.5, 0.8]), [0.0, np.log(4.0)])
    np.testing.assert_allclose(unbounded("q", [0.5]), [0.5])
    assert simulated_p(3.0, [1.0, 2.0, 4.0]) == 0.5
    assert simulated_p(9.0, np.arange(4.0)) == 0.2
