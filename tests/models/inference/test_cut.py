"""The cut: against the linear-Gaussian closed form, and against brute-force nested sampling."""

from typing import Any

import numpy as np
import pymc as pm
import pytest
import xarray as xr
from any_pymc import AnyCompiled

from rooffloor.models.floor.structures import FloorStructure
from rooffloor.models.inference import cut, cut_model, gate, sampling
from rooffloor.models.roof.kernels import stack_work
from rooffloor.models.roof.roofline import Efficiency, work_ms
from rooffloor.models.specs.cells import Cells

ENOUGH = gate.Gate(rhat=1.03, ess=100)
"""Of the nested fits: the error of eight of their means is that of the upstream draws."""
UPSTREAM, DOWNSTREAM = np.array([1.0, 1.6, 1.3]), np.array([5.0, 5.5])


def mcse(found: cut.CutFit, name: str) -> np.ndarray:
    """Monte Carlo standard error of the mean of a variable, with the upstream draw as the unit."""
    values = found.posterior[name].values[0]
    units = values.reshape(-1, found.inner, *values.shape[1:]).mean(axis=1)
    return units.std(axis=0, ddof=1) / np.sqrt(len(units))


def test_cut_of_a_linear_gaussian_model_is_the_closed_form() -> None:
    # a ~ N(0, 2²), u = a + noise(1); b ~ N(0, 1), d = 2a + b + noise(0.5); the cut keeps d from informing a.
    var_a = 1.0 / (1 / 4 + len(UPSTREAM))
    mean_a = var_a * UPSTREAM.sum()
    with pm.Model(coords={"cell": np.arange(len(DOWNSTREAM))}) as model:
        a = pm.Data("a_given", np.array(0.0))
        b = pm.Normal("b")
        d = pm.Data("d", DOWNSTREAM, dims="cell")
        pm.Normal("y", 2 * a + b, 0.5, observed=d, dims="cell")
    rng = np.random.default_rng(0)
    upstream = {"a": mean_a + np.sqrt(var_a) * rng.standard_normal((4, 1000))}
    found = cut.cut(
        upstream,
        AnyCompiled(model),
        lambda draw: {"a_given": draw["a"]},
        seed=1,
        outer=100,
        inner=20,
    )
    weight = len(DOWNSTREAM) / 0.25
    var_b = 1.0 / (1.0 + weight)
    mean_b = var_b * weight * (DOWNSTREAM.mean() - 2 * mean_a)
    sd_b = np.sqrt(var_b + (2 * var_b * weight) ** 2 * var_a)
    a, b = (found.posterior[n].values[0] for n in ("a", "b"))
    assert found.failed == ()
    assert a.mean() == pytest.approx(mean_a, abs=4 * np.sqrt(var_a / 100))
    assert b.mean() == pytest.approx(mean_b, abs=4 * mcse(found, "b"))
    assert mcse(found, "b") == pytest.approx(sd_b / np.sqrt(100), rel=0.25)
    assert b.std() == pytest.approx(sd_b, rel=0.2)
    slope = np.polyfit(a, b, 1)[0]
    assert slope == pytest.approx(-2 * var_b * weight, rel=0.1)
    joint_b = np.linalg.solve(
        np.array([[1 / 4 + 3 + 4 * weight, 2 * weight], [2 * weight, 1 + weight]]),
        np.array([UPSTREAM.sum() + 2 * weight * DOWNSTREAM.mean(), weight * DOWNSTREAM.mean()]),
    )[1]
    assert abs(joint_b - mean_b) > 10 * mcse(found, "b")  # the joint posterior is something else


@pytest.fixture(scope="module")
def roofline() -> tuple[cut_model.CutModels, xr.Dataset, sampling.Compiled]:
    """Cut models of simulated steps, draws in place of an anchor's posterior, the compiled second stage."""
    rows = [
        (m, g, b, c)
        for m in ("Llama-3.1-8B", "Llama-3.2-1B", "Qwen2.5-7B")
        for g in ("H100", "A100-40GB")
        for b in (1, 16)
        for c in (512, 2048, 8192)
        if (m, g) != ("Llama-3.2-1B", "H100")
    ]
    cells = Cells.from_columns(*zip(*rows, strict=True))
    work = stack_work(cells)
    floor = np.array([2.0, -1.0])[cells.gpu_code] + np.array([0.0, 3.0, 0.5])[cells.model_code]
    step = work_ms(work, Efficiency(eta_bw=0.85, eta_fa=0.6, l_half=150.0, eta_tc=0.7)) + floor
    step = step + np.random.default_rng(4).standard_normal(len(cells)) * np.hypot(0.1, 0.02 * step)
    data = Cells.from_columns(list(cells.model), list(cells.gpu), cells.batch, cells.context, step)
    classes = {m: "small" if "1B" in m else "7B" for m in cells.models}
    models = cut_model.cut_models(data, work, classes, FloorStructure("gpu, model"), "Llama-3.1-8B")
    rng = np.random.default_rng(1)
    eta = {"eta_bw": (0.85, 0.03), "eta_fa": (0.6, 0.02), "eta_tc": (0.7, 0.05), "l_half": (150.0, 20.0)}
    upstream = xr.Dataset(
        {n: (("chain", "draw"), mean + sd * rng.standard_normal((2, 500))) for n, (mean, sd) in eta.items()}
        | {"floor_ms": (("chain", "draw", "gpu"), [2.0, -1.0] + 0.3 * rng.standard_normal((2, 500, 2)))},
        coords={"gpu": ["H100", "A100-40GB"]},
    )
    return models, upstream, sampling.compile_model(models.downstream)


@pytest.fixture(scope="module")
def found(roofline: tuple[cut_model.CutModels, xr.Dataset, sampling.Compiled]) -> cut.CutFit:
    models, upstream, downstream = roofline
    return cut.cut(upstream, downstream, models.data_of, seed=2, outer=24, inner=20)


def test_cut_agrees_with_brute_force_nested_sampling(
    roofline: tuple[cut_model.CutModels, xr.Dataset, sampling.Compiled], found: cut.CutFit
) -> None:
    models, upstream, downstream = roofline
    assert found.posterior.sizes["draw"] == 20 * (24 - len(found.failed))
    nested = []
    for k in np.random.default_rng(0).choice(1000, 8, replace=False):
        draw = {n: upstream[n].values.reshape(1000, *upstream[n].shape[2:])[k] for n in map(str, upstream)}
        fit = sampling.fit_gated(downstream, models.data_of(draw), seed=int(k), draws=500, tune=500, gate=ENOUGH)
        nested.append(fit.posterior)
    for name in ("floor_ms", "noise_relative", "floor_sd_gpu_ms"):
        means = np.array([p[name].mean(("chain", "draw")).values for p in nested])
        error = np.hypot(means.std(axis=0, ddof=1) / np.sqrt(len(means)), mcse(found, name))
        cut_mean = found.posterior[name].mean(("chain", "draw")).values
        assert (np.abs(cut_mean - means.mean(axis=0)) < 4 * error + 1e-9).all()
        assert (error < 0.5).all()
    floor = found.posterior["floor_ms"].sel(model="Qwen2.5-7B", gpu="H100")
    alone = float(np.mean([p["floor_ms"].sel(model="Qwen2.5-7B", gpu="H100").std() for p in nested]))
    assert float(floor.std()) > 1.5 * alone  # the spread of the upstream draws comes on top


def test_upstream_knows_nothing_of_the_rest(
    roofline: tuple[cut_model.CutModels, xr.Dataset, sampling.Compiled], found: cut.CutFit
) -> None:
    models, upstream, _ = roofline
    assert len(models.upstream.cells) == 12  # the anchor's cells alone
    assert len(models.downstream.cells) == 18
    assert "Llama-3.1-8B" not in " ".join(models.downstream.coords["pair"])
    posterior = found.posterior
    good = np.setdiff1d(np.arange(24), found.failed)
    thinned = sampling.thin(upstream["eta_bw"].values, 24)[good]
    np.testing.assert_array_equal(posterior["eta_bw"].values[0], np.repeat(thinned, 20))
    np.testing.assert_array_equal(posterior["upstream"].values, np.repeat(good, 20))
    for gpu in ("H100", "A100-40GB"):
        anchor = posterior["floor_ms"].sel(model="Llama-3.1-8B", gpu=gpu).values
        np.testing.assert_allclose(anchor, posterior["anchor_floor_ms"].sel(anchor_gpu=gpu).values)


def test_a_stage_whose_closed_form_does_not_tell_is_sampled(
    roofline: tuple[cut_model.CutModels, xr.Dataset, sampling.Compiled], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its draws are worth as much as those of the closed form: they differ by no more than draws do."""
    models, upstream, _ = roofline
    whole = cut.cut_of_steps(upstream, models, seed=3, outer=20, inner=40)
    closed = cut.quadrature_given

    def spoilt(*args: Any, **how: Any) -> Any:
        found, ess = closed(*args, **how)
        for values in found.values():
            values[[4, 11]] = np.nan
        ess[[4, 11]] = 2.0
        return found, ess

    monkeypatch.setattr(cut, "quadrature_given", spoilt)
    mended = cut.cut_of_steps(upstream, models, seed=3, outer=20, inner=40)
    assert not mended.failed
    for name in ("floor_ms", "noise_relative", "floor_sd_gpu_ms"):
        before, after = (
            one.posterior[name].values[0].reshape(20, 40, *one.posterior[name].shape[2:])[[4, 11]]
            for one in (whole, mended)
        )
        assert np.isfinite(after).all()
        error = np.hypot(before.std(1), after.std(1)) / np.sqrt(20)  # draws of a short chain are not independent
        assert (np.abs(before.mean(1) - after.mean(1)) < 4 * error + 1e-9).all(), name
    monkeypatch.setattr(cut, "MOST_SAMPLED", 0.05)
    with pytest.raises(gate.GateFailure, match="2 of 20 second stages failed"):
        cut.cut_of_steps(upstream, models, seed=3, outer=20, inner=40)


def test_cut_needs_an_anchor_and_something_else() -> None:
    cells = Cells.from_columns(["Llama-3.1-8B"], ["H100"], [1], [512], [9.0])
    with pytest.raises(ValueError, match=r"of the anchor 'Qwen2\.5-7B' and of other models"):
        cut_model.cut_models(cells, stack_work(cells), {}, FloorStructure(), "Qwen2.5-7B")
    with pytest.raises(ValueError, match="and of other models"):
        cut_model.cut_models(cells, stack_work(cells), {}, FloorStructure(), "Llama-3.1-8B")


def test_too_many_failed_stages_are_no_result() -> None:
    with pm.Model() as model:
        centre = pm.Data("centre", np.array(8.0))
        x = pm.Uniform("x", -20.0, 20.0)
        pm.Potential("modes", pm.math.logaddexp(-200 * (x - centre) ** 2, -200 * (x + centre) ** 2))
    with pytest.raises(gate.GateFailure, match=r"cut: \d+ of 6 downstream fits failed"):
        cut.cut(
            {"c": np.full((1, 6), 8.0)},
            AnyCompiled(model),
            lambda draw: {"centre": draw["c"]},
            seed=0,
            outer=6,
            chains=4,
        )
