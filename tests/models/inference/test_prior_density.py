"""Draws from the prior, and its density: those of `Priors`, of each other, and of the PyMC model."""

from dataclasses import replace
from typing import Literal

import numpy as np
import pytest
import xarray as xr
from scipy import special, stats

from rooffloor.models.floor.structures import COMBINE, Q_MAX, SHARED_BY, FloorStructure
from rooffloor.models.inference import step_distribution, step_model
from rooffloor.models.inference.prior_density import log_prior, sample_prior
from rooffloor.models.inference.priors import DEFAULT_PRIORS, Priors
from rooffloor.models.roof.kernels import launches_of, stack_work
from rooffloor.models.specs.cells import Cells

CLASSES = {"Llama-3.1-8B": "dense", "Llama-3.2-1B": "small", "Qwen1.5-MoE-A2.7B": "moe"}
LAUNCHES = FloorStructure("gpu, launches", "added")
OVERLAPPED = FloorStructure("gpu, class", "overlapped")


def some_cells() -> Cells:
    """Cells of three catalog models on two SKUs, with steps of no particular size."""
    rows = [(m, g, b, 2048) for m in CLASSES for g in ("H100", "A100-80GB") for b in (1, 16)]
    model, gpu, batch, context = zip(*rows, strict=True)
    return Cells.from_columns(model, gpu, batch, context, np.linspace(5.0, 30.0, len(rows)))


def draws_of(
    structure: FloorStructure, draws: int, priors: Priors = DEFAULT_PRIORS, seed: int = 0, **options: str
) -> xr.Dataset:
    cells = some_cells()
    rng, work = np.random.default_rng(seed), stack_work(cells)
    return sample_prior(rng, draws, cells, CLASSES, structure, work=work, priors=priors, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("shared_by", "combine", "constants", "likelihood"),
    [
        ("none", "added", "free", "normal"),
        ("gpu", "max", "fixed", "student"),
        ("gpu, class", "overlapped", "free", "student"),
        ("gpu, model", "added", "fixed", "normal"),
        ("gpu, launches", "added", "free", "normal"),
        ("gpu, launches", "overlapped", "fixed", "normal"),
        ("gpu, kernel latency", "added", "free", "normal"),
        ("gpu, kernel latency", "added, H >= 0", "fixed", "normal"),
    ],
)
def test_names_dims_and_coords_are_those_of_the_posterior(
    shared_by: str, combine: str, constants: Literal["fixed", "free"], likelihood: Literal["normal", "student"]
) -> None:
    cells, structure = some_cells(), FloorStructure(shared_by, combine)
    work = stack_work(cells)
    model = step_model.build_model(cells, work, CLASSES, structure, constants, gpu_ms=5.0, likelihood=likelihood)
    dims = {v.name: tuple(model.named_vars_to_dims.get(v.name) or ()) for v in (*model.free_RVs, *model.deterministics)}
    expected = {name: ("chain", "draw", *own) for name, own in dims.items() if not name.startswith("z_")}
    found = draws_of(structure, 3, constants=constants, likelihood=likelihood)
    assert {name: values.dims for name, values in found.items()} == expected
    for dim in {d for own in expected.values() for d in own[2:]}:
        assert found[dim].values.tolist() == list(model.coords[dim])
    assert (found.sizes["chain"], found.sizes["draw"]) == (1, 3)


def test_draws_have_the_moments_of_the_priors() -> None:
    n, p = 40_000, DEFAULT_PRIORS
    constants = draws_of(FloorStructure("gpu, kernel latency"), n, likelihood="student")
    for name in ("eta_bw", "eta_fa", "eta_tc"):
        mean, sd = getattr(p, name)
        assert constants[name].mean().item() == pytest.approx(mean, abs=5 * sd / n**0.5)
        assert constants[name].std().item() == pytest.approx(sd, rel=0.03)
        assert 0.0 < constants[name].min() < constants[name].max() < 1.0
    for name, (median, sd) in {"l_half": p.l_half, "latency_ms": p.launch_ms, "noise_ms": p.noise_ms}.items():
        assert stats.kstest(np.log(constants[name].values.ravel()), stats.norm(np.log(median), sd).cdf).pvalue > 1e-3
    shape, rate = p.student_nu
    assert constants["student_nu"].mean().item() == pytest.approx(shape / rate, rel=0.03)
    assert constants["student_nu"].var().item() == pytest.approx(shape / rate**2, rel=0.06)
    level = constants["noise_level"].values.ravel()
    assert np.exp(np.median(level)) == pytest.approx(p.noise_relative[0], rel=0.03)
    assert level.std() == pytest.approx(p.noise_relative[1], rel=0.03)
    spread = constants["noise_spread"]
    assert (spread**2).mean().item() == pytest.approx(p.noise_spread**2, rel=0.04)
    away = (np.log(constants["noise_relative"]) - constants["noise_level"]) / spread
    assert away.std(("chain", "draw")).values == pytest.approx(np.ones(3), rel=0.03)


def test_draws_of_overlap_and_launches_follow_the_priors() -> None:
    n, p = 20_000, DEFAULT_PRIORS
    positive = draws_of(FloorStructure("gpu, launches", "overlapped"), n, constants="fixed")
    assert stats.kstest(positive["q"].values.ravel(), stats.uniform(0.0, Q_MAX).cdf).pvalue > 1e-3
    assert stats.kstest(positive["launch_share"].values[0, :, 1], stats.uniform().cdf).pvalue > 1e-3
    each = draws_of(LAUNCHES, n, constants="fixed")["launch_ms"].values[0, :, 0]
    assert stats.kstest(np.log(each), stats.norm(np.log(p.launch_ms[0]), p.launch_ms[1]).cdf).pvalue > 1e-3
    launches = launches_of(stack_work(some_cells()))
    assert (positive["launches_at_floor"] == launches.mean()).all()
    with pytest.raises(ValueError, match="need work"):
        sample_prior(np.random.default_rng(0), 2, some_cells(), CLASSES, LAUNCHES)
    with pytest.raises(ValueError, match="no class for model"):
        sample_prior(np.random.default_rng(0), 2, some_cells(), {}, OVERLAPPED)


@pytest.mark.parametrize("combine", ["added", "added, H >= 0"])
def test_drawn_floors_are_the_sum_of_their_effects(combine: str) -> None:
    n, p, structure = 40_000, DEFAULT_PRIORS, FloorStructure(combine=combine)
    unit = "" if structure.positive else "_ms"
    found = draws_of(structure, n, constants="fixed")
    for name, effect in (("gpu", "gpu"), ("class", "group"), ("pair", "pair")):
        scale = getattr(p, f"floor_sd_{effect}{unit}")
        half = stats.norm(scale=scale) if structure.positive else stats.t(3, scale=scale)
        values = found[f"floor_sd_{name}{unit}"].values.ravel()
        assert stats.kstest(values, lambda x, half=half: 2.0 * half.cdf(x) - 1.0).pvalue > 1e-3
    floor = found["floor_ms"].values[0]
    value = np.log(floor) if structure.positive else floor
    centre, sd = (np.log(p.floor_overall[0]), p.floor_overall[1]) if structure.positive else p.floor_overall_ms
    assert np.median(value) == pytest.approx(centre, abs=0.05 * sd)

    def standard(contrast: np.ndarray, **variance: float) -> np.ndarray:
        """A contrast of the floors [gpu, class] of each draw, over its sd there."""
        squares = sum(k * found[f"floor_sd_{name}{unit}"].values[0] ** 2 for name, k in variance.items())
        return (value * contrast).sum(axis=(1, 2)) / np.sqrt(squares)

    # (A, x) - (B, x): SKU and pair effects; (A, x) - (A, y): class and pair; the interaction: pair alone
    by_gpu = standard(np.array([[1.0, 0.0, 0.0], [-1.0, 0.0, 0.0]]), gpu=2.0, pair=2.0)
    by_class = standard(np.array([[1.0, -1.0, 0.0], [0.0, 0.0, 0.0]]), **{"class": 2.0, "pair": 2.0})
    by_pair = standard(np.array([[1.0, -1.0, 0.0], [-1.0, 1.0, 0.0]]), pair=4.0)
    for contrast in (by_gpu, by_class, by_pair):
        assert stats.kstest(contrast, stats.norm.cdf).pvalue > 1e-3


@pytest.mark.parametrize("combine", ["added", "added, H >= 0"])
@pytest.mark.parametrize("shared_by", ["gpu, class", "gpu, model", "gpu"])
def test_density_of_floors_is_the_joint_normal_of_the_grid(shared_by: str, combine: str) -> None:
    p, structure = DEFAULT_PRIORS, FloorStructure(shared_by, combine)
    unit = "" if structure.positive else "_ms"
    posterior = draws_of(structure, 5, seed=4)
    floor, (_, dim) = posterior["floor_ms"], shared_by.rpartition(", ")[::2]
    centre, sd = (np.log(p.floor_overall[0]), p.floor_overall[1]) if structure.positive else p.floor_overall_ms
    scales = {"gpu": "gpu"} if shared_by == "gpu" else {"gpu": "gpu", "group": dim, "pair": "pair"}
    g, c = floor.sizes["gpu"], floor[0, 0].size // floor.sizes["gpu"]
    gpu, group = (i.ravel() for i in np.indices((g, c)))
    same = {"gpu": gpu[:, None] == gpu, "group": group[:, None] == group, "pair": np.eye(g * c)}
    found = log_prior(posterior, structure)["floors"]
    assert found.dims == ("chain", "draw")
    for draw in range(5):
        expected, covariance = 0.0, np.full((g * c, g * c), sd**2)
        for effect, name in scales.items():
            value = posterior[f"floor_sd_{name}{unit}"].values[0, draw]
            covariance = covariance + value**2 * same[effect]
            scale = getattr(p, f"floor_sd_{effect}{unit}")
            half = stats.norm(scale=scale) if structure.positive else stats.t(3, scale=scale)
            expected += np.log(2.0) + half.logpdf(value)
        grid = floor.values[0, draw].ravel()
        grid = np.log(grid) if structure.positive else grid
        expected += stats.multivariate_normal.logpdf(grid, np.full(g * c, centre), covariance)
        assert found.values[0, draw] == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(
    ("structure", "likelihood"),
    [(LAUNCHES, "student"), (OVERLAPPED, "normal"), (FloorStructure("gpu, class", "added"), "normal")],
    ids=str,
)
def test_density_is_that_of_the_pymc_model(structure: FloorStructure, likelihood: Literal["normal", "student"]) -> None:
    """The model's own prior, without the Jacobians of its transforms and of z, which move floors and noise linearly."""
    cells, rng = some_cells(), np.random.default_rng(1)
    work = stack_work(cells)
    model = step_model.build_model(cells, work, CLASSES, structure, "free", query_heads=True, likelihood=likelihood)
    point = {k: rng.normal(0.0, 0.3, np.shape(v)) for k, v in model.initial_point().items()}
    prior = model.compile_logp(vars=[*model.free_RVs, *model.potentials], jacobian=False, mode="FAST_COMPILE")
    names = [v.name for v in (*model.free_RVs, *model.deterministics) if not v.name.startswith("z_")]
    read = model.compile_fn(
        model.replace_rvs_by_values([model[n] for n in names]),
        inputs=model.value_vars,
        on_unused_input="ignore",
        mode="FAST_COMPILE",
    )
    dims = {n: tuple(model.named_vars_to_dims.get(n) or ()) for n in names}

    def posterior(at: dict[str, np.ndarray]) -> xr.Dataset:
        values = dict(zip(names, read(at), strict=True))
        return xr.Dataset({n: (("chain", "draw", *dims[n]), np.asarray(v)[None, None]) for n, v in values.items()})

    def coordinate(z_floor: np.ndarray) -> np.ndarray:
        floor = posterior(point | {"z_floor": z_floor})["floor_ms"].values.ravel()
        return np.log(floor) if structure.positive else floor

    z = point["z_floor"]
    moved = [(coordinate(z + step) - coordinate(z - step)) / 2.0 for step in np.eye(len(z))]
    found = log_prior(posterior(point), structure)
    total = float(found.to_array().sum())
    expected = float(prior(point)) - np.linalg.slogdet(np.array(moved))[1]
    expected -= np.log(DEFAULT_PRIORS.noise_relative[1])  # z of the noise: the level in sds, turned with the rest
    if "z_eta_bw" in point:  # on the logit scale, in units that depend on the scales of floors
        here, there = (posterior(at)["eta_bw"].item() for at in (point, point | {"z_eta_bw": point["z_eta_bw"] + 1.0}))
        expected -= np.log(abs(special.logit(there) - special.logit(here))) + np.log(here * (1.0 - here))
    assert total == pytest.approx(expected, abs=1e-6)  # PyMC's constant of a half-t has 8 digits


@pytest.mark.parametrize("shared_by", SHARED_BY)
def test_components_are_those_that_the_structure_has(shared_by: str) -> None:
    for combine in COMBINE:
        structure = FloorStructure(shared_by, combine)
        found = log_prior(draws_of(structure, 4, constants="fixed"), structure)
        expected = (
            {"noise"} | ({"floors"} if structure.sharing else set()) | ({"overlap"} if structure.q_free else set())
        )
        assert set(found.data_vars) == expected | ({"launches"} if shared_by == "gpu, launches" else set())
        assert all(v.dims == ("chain", "draw") and np.isfinite(v).all() for v in found.values())
        if structure.q_free:
            assert found["overlap"].values == pytest.approx(np.full((1, 4), -np.log(Q_MAX)))


def test_constants_of_each_gpu_add_up() -> None:
    values = np.array([[[0.7, 0.8]]])
    posterior = xr.Dataset({"eta_bw": (("chain", "draw", "constants_gpu"), values)})
    one = [log_prior(posterior.isel(constants_gpu=i), FloorStructure("none"))["constants"] for i in (0, 1)]
    both = log_prior(posterior, FloorStructure("none"))["constants"]
    assert both.item() == pytest.approx(one[0].item() + one[1].item())


OTHER = replace(
    DEFAULT_PRIORS,
    eta_bw=(0.78, 0.06),
    l_half=(250.0, 0.8),
    floor_overall_ms=(1.0, 4.0),
    floor_overall=(5.0, 0.8),
    floor_sd_gpu_ms=1.5,
    floor_sd_gpu=0.25,
    floor_sd_group=0.4,
    launch_ms=(0.01, 0.8),
    noise_relative=(0.06, 0.7),
    noise_spread=0.4,
    student_nu=(2.5, 0.13),
)


@pytest.mark.parametrize("structure", [LAUNCHES, OVERLAPPED], ids=str)
def test_draws_and_density_agree(structure: FloorStructure) -> None:
    """Draws weighted by the ratio of two priors are draws from the other one."""
    n = 40_000
    drawn = draws_of(structure, n, likelihood="student")
    ratio = log_prior(drawn, structure, OTHER) - log_prior(drawn, structure)
    for component, values in ratio.items():
        weight = np.exp(values.values.ravel())
        assert weight.mean() == pytest.approx(1.0, abs=5 * weight.std() / n**0.5 + 1e-12), component
    total = np.exp(ratio.to_array().sum("variable"))
    weight = total / total.sum()
    size = 1.0 / float((weight**2).sum())
    direct = draws_of(structure, n, OTHER, seed=1, likelihood="student")
    for name in set(drawn.data_vars) - {"launches_at_floor"}:
        there, here = (np.arctan(values[name] / np.abs(direct[name]).median()) for values in (drawn, direct))
        difference = (weight * there).sum(("chain", "draw")) - here.mean(("chain", "draw"))
        se = here.std(("chain", "draw")) * np.sqrt(1.0 / size + 1.0 / n)
        assert (np.abs(difference) < 5 * se).all(), name


def test_prior_predictive_steps() -> None:
    """At one of its draws the prior predictive steps scatter about T_gpu and the floor drawn with it."""
    cells = some_cells()
    work, n = stack_work(cells), 2000
    for structure in (LAUNCHES, OVERLAPPED):
        prior = draws_of(structure, n)
        steps = step_distribution.step_distribution(prior, cells, CLASSES, structure, work=work)
        replicated = steps.sample(np.random.default_rng(2))
        assert replicated.shape == (n, len(cells))
        away = (replicated - steps.step_ms) / steps.sd_ms
        assert stats.kstest(away[:, 0], stats.norm.cdf).pvalue > 1e-3
    fixed = draws_of(OVERLAPPED, n, constants="fixed")
    steps = step_distribution.step_distribution(fixed, cells, CLASSES, OVERLAPPED, gpu_ms=5.0)
    assert (steps.step_ms >= 5.0 * 0.999).all()
