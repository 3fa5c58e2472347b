"""Compile once, refit many: the gate, data that replace data, storage."""

import os
import signal
import threading
from collections.abc import Callable

import numpy as np
import pymc as pm
import pytest
import xarray as xr
from any_pymc import AnyCompiled
from three_by_three import CLASSES, branch_ms, grid, measured, simulated

from rooffloor.models.floor.structures import FloorStructure
from rooffloor.models.inference import gate, sampling
from rooffloor.models.inference.step_model import pymc_model
from rooffloor.models.inference.steps import StepModel


def test_datatree_has_groups_dims_and_coords(fit: sampling.Fit) -> None:
    tree = fit.datatree
    assert {"posterior", "sample_stats", "observed_data", "constant_data"} <= set(tree.children)
    floor = tree["posterior"]["floor_ms"]
    assert dict(floor.sizes) == {"chain": 4, "draw": 1000, "gpu": 3, "class": 3}
    assert floor["gpu"].values.tolist() == ["A", "B", "C"]
    assert floor["class"].values.tolist() == ["small", "large", "moe"]
    assert tree["observed_data"]["step_ms"].dims == ("cell",)
    assert set(tree["constant_data"].data_vars) == {
        "gpu_ms",
        "known_sd_ms",
        "noisy_model_code",
        "pair_code",
    }


def test_opens_with_arviz(fit: sampling.Fit) -> None:
    import arviz as az
    import matplotlib

    matplotlib.use("Agg")
    summary = az.summary(fit.datatree, var_names=["floor_ms"], round_to="none")
    assert summary["r_hat"].max() <= 1.01
    assert len(summary) == 9
    az.plot_forest(fit.datatree, var_names=["floor_ms"])
    matplotlib.pyplot.close("all")


def test_same_seed_same_draws_whatever_the_cores(compiled: sampling.Compiled) -> None:
    one, two = (compiled.fit(seed=5, draws=50, tune=100, cores=c).posterior for c in (1, 2))
    other = compiled.fit(seed=6, draws=50, tune=100).posterior
    xr.testing.assert_equal(one, two)
    assert not np.array_equal(one["floor_ms"], other["floor_ms"])


def test_fit_many_depends_on_seeds_alone(compiled: sampling.Compiled) -> None:
    data = [simulated(s) for s in range(4)]
    options = {"draws": 100, "tune": 200, "keep": 30, "gate": gate.Gate(rhat=1.2, ess=20)}
    one, two = (sampling.fit_many(compiled, data, range(4), jobs=j, **options) for j in (1, 2))
    for a, b in zip(one, two, strict=True):
        assert a.attempts == b.attempts
        assert all(np.array_equal(a.draws[n], b.draws[n]) for n in a.draws)
    assert one[0].draws["floor_ms"].shape == (30, 3, 3)
    assert not any(n.startswith("z_") for n in one[0].draws)
    assert not np.array_equal(one[0].draws["floor_ms"], one[1].draws["floor_ms"])


def test_refit_to_other_cells_equals_a_fresh_model(compiled: sampling.Compiled) -> None:
    """What the sampler says of the density of its draws is what a model of the other cells says there."""
    cells = grid(contexts=(1024, 4096))
    cells = measured(cells, branch_ms(cells) + 2.0, np.random.default_rng(9))
    own = StepModel(cells, None, CLASSES, FloorStructure(), "fixed", gpu_ms=branch_ms(cells))
    refit = compiled.fit(own.data, seed=2, draws=10, tune=200, chains=2, cores=1)
    assert refit.datatree["observed_data"].sizes["cell"] == len(cells) != len(compiled.data["measured_ms"])
    definition, posterior = pymc_model(own), refit.posterior
    logp = definition.compile_logp(mode="FAST_COMPILE")
    found = refit.datatree["sample_stats"]["logp"].values
    assert found.std() > 0.1
    for at in np.ndindex(found.shape):
        drawn = {rv.name: posterior[rv.name].values[at] for rv in definition.free_RVs}
        point = {n.removesuffix("_log__"): n for n in definition.initial_point()}
        there = {to: np.log(drawn[n]) if to.endswith("_log__") else drawn[n] for n, to in point.items()}
        assert found[at] == pytest.approx(float(logp(there)), rel=1e-9, abs=1e-6)


def test_unfit_data_are_refused(compiled: sampling.Compiled) -> None:
    cells = len(compiled.data["measured_ms"])
    with pytest.raises(ValueError, match="no data 'gpu_msec': expected some of"):
        compiled.fit({"gpu_msec": np.ones(cells)}, seed=0)
    with pytest.raises(ValueError, match="along 'cell', expected"):
        compiled.fit({"gpu_ms": np.ones(cells + 1)}, seed=0)
    with pytest.raises(ValueError, match=r"'pair_code' must hold codes from 0 to 8"):
        compiled.fit({"pair_code": np.full(cells, 9)}, seed=0)
    with pytest.raises(ValueError, match="must have dims"):
        compiled.fit({"gpu_ms": np.ones((cells, 2))}, seed=0)


def test_gate_refuses_a_posterior_that_does_not_mix() -> None:
    with pm.Model() as model:  # two modes that no chain leaves
        x = pm.Uniform("x", -20.0, 20.0)
        pm.Potential("modes", pm.math.logsumexp(pm.math.stack([-0.5 * ((x - s) / 0.05) ** 2 for s in (-8.0, 8.0)])))
    compiled = AnyCompiled(model)
    with pytest.raises(gate.GateFailure, match=r"after 3 attempts: R-hat .* of x"):
        sampling.fit_gated(compiled, seed=0, draws=100, tune=100)
    last = sampling.fit_gated(compiled, seed=0, draws=100, tune=100, refuse=False)
    assert not last.passed
    assert "FAILED" in repr(last)
    assert [a.target_accept for a in last.attempts] == [0.95, 0.99, 0.995]
    assert [a.draws for a in last.attempts] == [100, 200, 400]


def test_gate_names_each_failure_and_nan_fails() -> None:
    good = gate.Diagnostics(1.001, "a", 900.0, 800.0, "b", 0, 0.9)
    strict = gate.Gate()
    assert strict.failures(good) == ()
    for change, word in (
        ({"rhat": 1.02}, "R-hat 1.020 of a"),
        ({"rhat": float("nan")}, "R-hat"),
        ({"ess_tail": 399.0}, "ESS 399 of b"),
        ({"divergences": 1}, "1 divergences"),
        ({"ebfmi": 0.2}, "E-BFMI 0.20"),
    ):
        (failure,) = strict.failures(gate.Diagnostics(**{**vars(good), **change}))
        assert word in failure


def test_diagnostics_find_the_bad_parameter() -> None:
    rng = np.random.default_rng(0)
    draws = {"good": rng.standard_normal((4, 500)), "pair": rng.standard_normal((4, 500, 2))}
    draws["pair"][2, :, 1] += 1.0
    diverging = np.zeros((4, 500), dtype=bool)
    diverging[0, :3] = True
    stats = xr.Dataset(
        {
            "energy": (("chain", "draw"), rng.standard_normal((4, 500))),
            "diverging": (("chain", "draw"), diverging),
        }
    )
    found = gate.diagnose(draws, stats)
    assert found.rhat_of == found.ess_of == "pair[1]"
    assert found.rhat > 1.05
    assert found.divergences == 3


def run_one(compiled: sampling.Compiled) -> None:
    compiled.fit(seed=1, draws=1_000_000, tune=100)


def run_many(compiled: sampling.Compiled) -> None:
    options = {"draws": 100, "tune": 100, "chains": 2, "escalation": [(0.9, 1)]}
    sampling.fit_many(compiled, [{}] * 1000, range(1000), jobs=2, **options)


@pytest.mark.parametrize("work", [run_one, run_many])
def test_an_interrupt_ends_the_sampling(compiled: sampling.Compiled, work: Callable[[sampling.Compiled], None]) -> None:
    """And is not taken for the end of the draws."""
    timer = threading.Timer(1.0, lambda: os.kill(os.getpid(), signal.SIGINT))
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    timer.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            work(compiled)
    finally:
        timer.join()
        signal.signal(signal.SIGINT, before)
