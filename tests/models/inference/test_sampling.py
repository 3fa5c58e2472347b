"""Compile once, refit many: the gate, data that replace data, storage."""

import os
import signal
import threading
from collections.abc import Callable

import numpy as np
import pymc as pm
import pytest
import xarray as xr

from rooffloor.models.floor.structures import FloorStructure
from rooffloor.models.inference import gate, sampling, step_model
from rooffloor.models.specs.cells import Cells

CLASSES = {"m": "small", "n": "large"}


def cells_and_branch(seed: int, contexts: tuple[int, ...] = (512, 2048, 8192)) -> tuple[Cells, np.ndarray]:
    rows = [(m, g, b, c) for m in "mn" for g in "AB" for b in (1, 8) for c in contexts]
    cells = Cells.from_columns(*zip(*rows, strict=True))
    branch = 2.0 + 4.0 * cells.model_code + cells.batch * cells.context * 6e-5
    step = branch + np.array([1.0, 3.0])[cells.gpu_code] + 2.0 * cells.model_code
    step = step + np.random.default_rng(seed).standard_normal(len(cells)) * np.hypot(0.1, 0.03 * step)
    return Cells.from_columns(list(cells.model), list(cells.gpu), cells.batch, cells.context, step), branch


def build(cells: Cells, branch: np.ndarray) -> pm.Model:
    return step_model.build_model(cells, None, CLASSES, FloorStructure(), "fixed", gpu_ms=branch)


@pytest.fixture(scope="module")
def compiled() -> sampling.Compiled:
    return sampling.compile_model(build(*cells_and_branch(0)))


@pytest.fixture(scope="module")
def fit(compiled: sampling.Compiled) -> sampling.Fit:
    return sampling.fit_gated(compiled, seed=1)


def test_datatree_has_groups_dims_and_coords(fit: sampling.Fit) -> None:
    tree = fit.datatree
    assert {"posterior", "sample_stats", "observed_data", "constant_data"} <= set(tree.children)
    floor = tree["posterior"]["floor_ms"]
    assert dict(floor.sizes) == {"chain": 4, "draw": 1000, "gpu": 2, "class": 2}
    assert floor["gpu"].values.tolist() == ["A", "B"]
    assert floor["class"].values.tolist() == ["small", "large"]
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
    assert len(summary) == 4
    az.plot_forest(fit.datatree, var_names=["floor_ms"])
    matplotlib.pyplot.close("all")


def test_same_seed_same_draws_whatever_the_cores(compiled: sampling.Compiled) -> None:
    one, two = (compiled.fit(seed=5, draws=50, tune=100, cores=c).posterior for c in (1, 2))
    other = compiled.fit(seed=6, draws=50, tune=100).posterior
    xr.testing.assert_equal(one, two)
    assert not np.array_equal(one["floor_ms"], other["floor_ms"])


def test_fit_many_depends_on_seeds_alone(compiled: sampling.Compiled) -> None:
    data = [{"measured_ms": cells_and_branch(s)[0].step_ms} for s in range(4)]
    options = {"draws": 100, "tune": 200, "keep": 30, "gate": gate.Gate(rhat=1.2, ess=20)}
    one, two = (sampling.fit_many(compiled, data, range(4), jobs=j, **options) for j in (1, 2))
    for a, b in zip(one, two, strict=True):
        assert a.attempts == b.attempts
        assert all(np.array_equal(a.draws[n], b.draws[n]) for n in a.draws)
    assert one[0].draws["floor_ms"].shape == (30, 2, 2)
    assert not any(n.startswith("z_") for n in one[0].draws)
    assert not np.array_equal(one[0].draws["floor_ms"], one[1].draws["floor_ms"])


def test_refit_to_other_cells_equals_a_fresh_model(compiled: sampling.Compiled) -> None:
    cells, branch = cells_and_branch(9, contexts=(1024, 4096))
    own = build(cells, branch)
    data = {v.name: v.get_value() for v in own.data_vars}
    refit = sampling.fit_gated(compiled, data, seed=2)
    fresh = sampling.fit_gated(sampling.compile_model(own), seed=3)
    assert refit.datatree["observed_data"].sizes["cell"] == len(cells)
    for name in ("floor_ms", "noise_relative", "noise_ms"):
        a, b = refit.posterior[name], fresh.posterior[name]
        error = np.hypot(a.std(("chain", "draw")), b.std(("chain", "draw"))) / np.sqrt(400)  # ESS passes 400
        assert (np.abs(a.mean(("chain", "draw")) - b.mean(("chain", "draw"))) < 4 * error).all()
        np.testing.assert_allclose(a.std(("chain", "draw")), b.std(("chain", "draw")), rtol=0.2)


def test_unfit_data_are_refused(compiled: sampling.Compiled) -> None:
    cells = len(compiled.data["measured_ms"])
    with pytest.raises(ValueError, match="no data 'gpu_msec': expected some of"):
        compiled.fit({"gpu_msec": np.ones(cells)}, seed=0)
    with pytest.raises(ValueError, match="along 'cell', expected"):
        compiled.fit({"gpu_ms": np.ones(cells + 1)}, seed=0)
    with pytest.raises(ValueError, match=r"'pair_code' must hold codes from 0 to 3"):
        compiled.fit({"pair_code": np.full(cells, 4)}, seed=0)
    with pytest.raises(ValueError, match="must have dims"):
        compiled.fit({"gpu_ms": np.ones((cells, 2))}, seed=0)


def test_gate_refuses_a_posterior_that_does_not_mix() -> None:
    with pm.Model() as model:  # two modes that no chain leaves
        x = pm.Uniform("x", -20.0, 20.0)
        pm.Potential("modes", pm.math.logsumexp(pm.math.stack([-0.5 * ((x - s) / 0.05) ** 2 for s in (-8.0, 8.0)])))
    compiled = sampling.compile_model(model)
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


def test_data_in_stacks_leave_the_density_as_it_is(compiled: sampling.Compiled) -> None:
    """Codes and times go to the compiled function as rows of one array."""
    model = build(*cells_and_branch(0))
    ((stack, names),) = compiled.stacks.items()
    assert stack == "stack (cell)"
    assert {"measured_ms", "gpu_ms", "pair_code"} <= set(names) == set(compiled.data)
    logp, gradient = model.compile_logp(mode="FAST_COMPILE"), model.compile_dlogp(mode="FAST_COMPILE")
    rng, start = np.random.default_rng(4), model.initial_point()
    for _ in range(3):
        point = {name: rng.normal(0.0, 0.5, np.shape(value)) for name, value in start.items()}
        flat = np.concatenate([np.ravel(value) for value in point.values()])  # in the order of the model
        found, slopes = compiled.nutpie_model.logp_func(flat)
        assert found == pytest.approx(logp(point), rel=1e-10)
        assert slopes == pytest.approx(gradient(point), rel=1e-7, abs=1e-8)


def test_a_model_with_initial_values_is_compiled_as_it_is() -> None:
    with pm.Model(coords={"cell": range(3)}) as model:
        x, y = (pm.Data(name, np.ones(3), dims="cell") for name in "xy")
        pm.Normal("z", x.sum(), initval=2.0)
        pm.Potential("p", y.sum())
    compiled = sampling.compile_model(model)
    assert compiled.stacks == {}
    assert set(compiled.data) == {"x", "y"}


def run_one(compiled: sampling.Compiled) -> None:
    compiled.fit(seed=1, draws=1_000_000, tune=100)


def run_many(compiled: sampling.Compiled) -> None:
    sampling.fit_many(compiled, [{}] * 40, range(40), draws=400, jobs=2, chains=2)


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
