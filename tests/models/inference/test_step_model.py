"""The Bayesian model: its density is the stated one, and it finds what was put into simulated data."""

from typing import Any, Literal

import numpy as np
import pytest
import xarray as xr
from scipy import stats
from three_by_three import CLASSES, FLOORS, branch_ms, grid, measured, simulated

from rooffloor.models.floor.structures import COMBINE, Q_MAX, SHARED_BY, FloorStructure
from rooffloor.models.inference import gate, sampling, step_distribution, step_model
from rooffloor.models.inference.layout import KnownFloors
from rooffloor.models.inference.prior_density import sample_prior
from rooffloor.models.inference.priors import DEFAULT_PRIORS
from rooffloor.models.inference.steps import StepModel
from rooffloor.models.roof.kernels import stack_work
from rooffloor.models.roof.roofline import Efficiency, work_ms
from rooffloor.models.specs.cells import Cells


def hierarchy_covariance(scales: tuple[float, float, float], shape: tuple[int, int], sd: float) -> np.ndarray:
    """Covariance of the floors (or their logarithms), row by row, from the effects as they are written down."""
    gpu, group = (i.ravel() for i in np.indices(shape))
    same_gpu, same_group = gpu[:, None] == gpu, group[:, None] == group
    return sd**2 + scales[0] ** 2 * same_gpu + scales[1] ** 2 * same_group + scales[2] ** 2 * same_gpu * same_group


@pytest.mark.parametrize("combine", ["added", "added, H >= 0", "overlapped", "max"])
@pytest.mark.parametrize(
    ("without", "known"),
    [
        ((), None),
        ((("o", "A"), ("o", "C")), None),
        ((("o", "A"),), KnownFloors("anchor", {"B": 3.0, "C": 1.5, "D": 2.0}, q=0.4)),
    ],
    ids=["whole grid", "pairs never measured", "known floors of an anchor"],
)
def test_density_is_that_of_the_plain_hierarchy(
    without: tuple[tuple[str, str], ...], known: KnownFloors | None, combine: str
) -> None:
    structure, p = FloorStructure(combine=combine), DEFAULT_PRIORS
    unit = "" if structure.positive else "_ms"
    cells, rng = grid(without=without), np.random.default_rng(3)
    classes = CLASSES | {"anchor": "other"}
    data = measured(cells, branch_ms(cells) + 2.0, rng)
    model = step_model.build_model(data, None, classes, structure, "fixed", gpu_ms=branch_ms(cells), known=known)
    point = {k: rng.normal(0.0, 0.5, np.shape(v)) for k, v in model.initial_point().items()}
    scales = tuple(f"floor_sd_{k}{unit}" for k in ("gpu", "class", "pair"))
    flats = [n for n in ("z_floor", "z_unmeasured") if n in point]
    outputs = model.replace_rvs_by_values([model[n] for n in ("floor_ms", "noise_level", "noise_own")])
    inputs = {"inputs": model.value_vars, "on_unused_input": "ignore", "mode": "FAST_COMPILE"}
    read = model.compile_fn([*outputs, model.logp()], **inputs)
    grid_ms, level, own, logp = read(point)
    sds = [float(np.exp(point[f"{n}_log__"])) for n in scales]
    spread = np.exp(point["noise_spread_log__"])
    relative, absolute = np.exp(level + spread * own)[data.model_code], float(np.exp(point["noise_ms_log__"]))

    def coordinate(ms: np.ndarray) -> np.ndarray:
        return np.log(ms) if structure.positive else ms

    free = [(n, i) for n in flats for i in np.ndindex(point[n].shape)]
    moved = []
    for name, i in free:  # floors, or their logarithms, are linear in z: central differences are exact
        ends = []
        for sign in (1.0, -1.0):
            there = {k: v.copy() for k, v in point.items()}
            there[name][i] += sign
            ends.append(coordinate(read(there)[0]).ravel())
        moved.append((ends[0] - ends[1]) / 2)
    columns = np.array(moved)
    columns = columns[:, np.abs(columns).sum(axis=0) > 1e-12]
    expected = np.linalg.slogdet(columns)[1]
    mean, sd_overall = (np.log(p.floor_overall[0]), p.floor_overall[1]) if structure.positive else p.floor_overall_ms
    covariance = hierarchy_covariance((sds[0], sds[1], sds[2]), grid_ms.shape, sd_overall)
    expected += stats.multivariate_normal.logpdf(coordinate(grid_ms).ravel() - mean, cov=covariance)
    for sd, name in zip(sds, ("gpu", "group", "pair"), strict=True):
        scale = getattr(p, f"floor_sd_{name}{unit}")
        half = stats.norm(scale=scale) if structure.positive else stats.t(3, scale=scale)
        expected += np.log(2.0) + half.logpdf(sd) + np.log(sd)
    median, sd = p.noise_relative
    # What the sampler moves is an orthogonal turn of the level, in sds, and of the models' own deviations.
    expected += stats.norm.logpdf((level - np.log(median)) / sd) + stats.norm.logpdf(own).sum()
    expected += np.log(2.0) + stats.norm.logpdf(spread, 0.0, p.noise_spread) + np.log(spread)
    expected += stats.norm.logpdf(np.log(absolute), np.log(p.noise_ms[0]), p.noise_ms[1])
    gpus, labels = list(model.coords["gpu"]), list(model.coords["class"])
    at = [gpus.index(g) for g in data.gpu], [labels.index(CLASSES[m]) for m in data.model]
    q = 0.0 if combine == "max" else 1.0
    if structure.q_free:
        q = known.q if known is not None else Q_MAX / (1.0 + float(np.exp(-point["q_interval__"])))
        if known is None:  # uniform, and the Jacobian of its logit
            expected += np.log(q * (1.0 - q / Q_MAX)) - np.log(Q_MAX)
    step = structure.step_ms(branch_ms(cells), grid_ms[at], q)
    assert data.step_ms is not None
    expected += stats.norm.logpdf(data.step_ms, step, np.hypot(absolute, relative * step)).sum()
    assert logp == pytest.approx(expected, rel=1e-9)
    if known is not None:
        anchor = grid_ms[:, labels.index("other")]
        assert {g: anchor[gpus.index(g)] for g in known.floor_ms} == pytest.approx(dict(known.floor_ms))


def test_floors_and_noise_are_recovered(fit: sampling.Fit) -> None:
    assert fit.passed
    floor = fit.posterior["floor_ms"]
    assert floor.dims == ("chain", "draw", "gpu", "class")
    assert floor["class"].values.tolist() == ["small", "large", "moe"]
    low, high = floor.quantile([0.0005, 0.9995], ("chain", "draw")).values
    assert ((low < FLOORS) & (high > FLOORS)).all()
    assert float(floor.std(("chain", "draw")).max()) < 0.6
    assert float(fit.posterior["noise_relative"].mean()) == pytest.approx(0.03, abs=0.015)


@pytest.mark.parametrize(
    ("sets", "options"),
    [
        (10, {"draws": 300, "tune": 300, "chains": 2, "gate": gate.Gate(rhat=1.05, ess=100)}),
        pytest.param(24, {"draws": 500, "tune": 300}, marks=pytest.mark.calibration),
    ],
    ids=["short", "full"],
)
def test_coverage_of_floors_and_noise(compiled: sampling.Compiled, sets: int, options: dict[str, Any]) -> None:
    seeds = range(100, 100 + sets)
    fits = sampling.fit_many(compiled, [simulated(s) for s in seeds], seeds, keep=500, **options)
    assert all(fit.passed for fit in fits)
    inside, n = 0, 0
    for fit in fits:
        low, high = np.quantile(fit.draws["floor_ms"], [0.05, 0.95], axis=0)
        inside += int(((low < FLOORS) & (high > FLOORS)).sum())
        n += FLOORS.size
    low, high = stats.binom.interval(0.999, n, 0.9)
    assert low <= inside <= high
    away = np.array([(f.draws["floor_ms"].mean(0) - FLOORS) / f.draws["floor_ms"].std(0) for f in fits])
    assert np.sqrt((away**2).mean()) == pytest.approx(1.0, abs=3.3 / np.sqrt(2 * n))  # an sd off by 1.4 is seen
    low, high = np.array([np.quantile(f.draws["noise_relative"], [0.05, 0.95], axis=0) for f in fits]).swapaxes(0, 1)
    assert ((low < 0.03) & (high > 0.03)).sum() >= stats.binom.ppf(0.001, low.size, 0.9)


def test_negative_floor_through_zero_is_no_barrier(compiled: sampling.Compiled) -> None:
    cells = grid()
    step = branch_ms(cells) - 6.0
    assert step.min() < -2 < 2 < step.max()
    data = measured(cells, step, np.random.default_rng(5))
    assert data.step_ms is not None
    fit = sampling.fit_gated(compiled, {"measured_ms": data.step_ms, "gpu_ms": branch_ms(cells)}, seed=2)
    assert fit.posterior["floor_ms"].mean().item() == pytest.approx(-6.0, abs=0.3)


def test_free_constants_are_recovered_where_the_data_see_them() -> None:
    truth = Efficiency(eta_bw=0.85, eta_fa=0.6, l_half=150.0, eta_tc=0.7)
    rows = [
        (m, g, b, c)
        for m in ("Llama-3.1-8B", "Llama-3.2-1B", "Qwen2.5-7B")
        for g in ("H100", "A100-40GB")
        for b in (1, 4, 16)
        for c in (512, 2048, 8192)
    ]
    cells = Cells.from_columns(*zip(*rows, strict=True))
    work = stack_work(cells)
    step = work_ms(work, truth) + np.array([2.0, 5.0])[cells.gpu_code]
    data = measured(cells, step, np.random.default_rng(7), relative=0.01)
    classes = {m: "small" if "1B" in m else "7B" for m in cells.models}
    posterior = sampling.fit_gated(
        sampling.compile_model(StepModel(data, work, classes, FloorStructure("gpu"), "free")), seed=3
    ).posterior
    for name in ("eta_bw", "eta_fa"):
        mean, sd = float(posterior[name].mean()), float(posterior[name].std())
        assert abs(mean - getattr(truth, name)) < 3.3 * sd
        assert sd < 0.5 * getattr(DEFAULT_PRIORS, name)[1]  # three model sizes under one floor
    # At 16 sequences no matrix product is bound by compute: the posterior of eta_tc is its prior.
    assert float(posterior["eta_tc"].std()) == pytest.approx(DEFAULT_PRIORS.eta_tc[1], rel=0.15)
    efficiency = step_distribution.efficiency_of(posterior)
    assert work_ms(work, efficiency).shape == (4000, len(cells))


def test_bad_requests_say_what_is_missing() -> None:
    cells = grid()
    with pytest.raises(ValueError, match="step_ms is missing"):
        step_model.build_model(cells, None, CLASSES, FloorStructure(), "fixed", gpu_ms=1.0)
    data = measured(cells, branch_ms(cells), np.random.default_rng(0))
    with pytest.raises(ValueError, match="needs gpu_ms"):
        step_model.build_model(data, None, CLASSES, FloorStructure(), "fixed")
    with pytest.raises(ValueError, match="needs work"):
        step_model.build_model(data, None, CLASSES, FloorStructure(), "free")
    with pytest.raises(ValueError, match="no class for model 'o'"):
        step_model.build_model(data, None, {"m": "x", "n": "x"}, FloorStructure(), "fixed", gpu_ms=1.0)
    with pytest.raises(ValueError, match=r"'gpu, klass' is unknown: expected one of .*'gpu, class'"):
        FloorStructure("gpu, klass")


REAL = {"Llama-3.1-8B": "dense", "Llama-3.2-1B": "small", "Qwen1.5-MoE-A2.7B": "moe"}


def real_cells() -> Cells:
    """Cells of catalog models, with steps of no particular size."""
    rows = [(m, g, b, 2048) for m in REAL for g in ("H100", "A100-80GB") for b in (1, 16)]
    cells = Cells.from_columns(*zip(*rows, strict=True))
    return Cells.from_columns(list(cells.model), list(cells.gpu), cells.batch, cells.context, np.linspace(5, 30, 12))


@pytest.mark.parametrize(
    ("shared_by", "combine", "constants"),
    [(s, c, "free") for s in SHARED_BY for c in COMBINE] + [("gpu, launches", "overlapped", "free per gpu")],
)
def test_numpy_and_pytensor_agree_on_the_likelihood(
    shared_by: str, combine: str, constants: Literal["free", "free per gpu"]
) -> None:
    """`step_distribution` at one point of the posterior is the observed density of the model there."""
    cells, rng = real_cells(), np.random.default_rng(1)
    work, structure = stack_work(cells), FloorStructure(shared_by, combine)
    model = step_model.build_model(cells, work, REAL, structure, constants, likelihood="student")
    point = {k: rng.normal(0.0, 0.3, np.shape(v)) for k, v in model.initial_point().items()}
    names = [v.name for v in (*model.free_RVs, *model.deterministics) if not v.name.startswith("z_")]
    outputs = [*model.replace_rvs_by_values([model[n] for n in names]), *model.logp(vars=[model["step_ms"]], sum=False)]
    inputs = {"inputs": model.value_vars, "on_unused_input": "ignore", "mode": "FAST_COMPILE"}
    *values, expected = model.compile_fn(outputs, **inputs)(point)
    dims = {n: tuple(model.named_vars_to_dims.get(n) or ()) for n in names}
    posterior = xr.Dataset(
        {n: (("chain", "draw", *dims[n]), np.asarray(v)[None, None]) for n, v in zip(names, values, strict=True)},
        coords={d: list(model.coords[d]) for d in {d for ds in dims.values() for d in ds}},
    )
    found = step_distribution.step_distribution(posterior, cells, REAL, structure, work=work)
    np.testing.assert_allclose(found.log_density(cells.step_ms)[0], expected, rtol=1e-8)
    assert found.sample(rng).shape == (1, len(cells))


def test_pairs_that_the_fit_had_not_are_refused() -> None:
    prior = sample_prior(np.random.default_rng(2), 3, grid(("m",)), CLASSES, FloorStructure())
    known = grid(("m",))
    assert step_distribution.floors_of(prior, known, CLASSES, FloorStructure()).shape == (3, len(known))
    with pytest.raises(ValueError, match="floors of class 'large': the fit had none"):
        step_distribution.floors_of(prior, grid(("n",)), CLASSES, FloorStructure())
    with pytest.raises(ValueError, match="noise of model 'n': the fit had none"):
        step_distribution.step_distribution(prior, grid(("n",)), CLASSES, FloorStructure("none"), gpu_ms=3.0)


def test_overlap_runs_from_the_maximum_to_the_sum() -> None:
    gpu_ms, floor_ms = np.array([1.0, 4.0, 9.0]), np.array([4.0, 4.0, 2.0])
    np.testing.assert_allclose(FloorStructure("gpu", "overlapped").step_ms(gpu_ms, floor_ms, 1.0), gpu_ms + floor_ms)
    np.testing.assert_allclose(
        FloorStructure("gpu", "max").step_ms(gpu_ms, floor_ms, 0.0), np.maximum(gpu_ms, floor_ms), rtol=1e-3
    )
    half = FloorStructure("gpu", "overlapped").step_ms(gpu_ms, floor_ms, 0.5)
    np.testing.assert_allclose(half, np.hypot(gpu_ms, floor_ms))
    with pytest.raises(ValueError, match="all signed or all H >= 0"):
        FloorStructure("gpu", "overlapped", (("moe", "added"),))
    mixed = FloorStructure("gpu", "overlapped", (("moe", "added, H >= 0"),))
    np.testing.assert_array_equal(mixed.q_of(np.array(["moe", "dense"])), [1.0, np.nan])
