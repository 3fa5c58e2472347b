"""The Bayesian model of decode steps: constants of the GPU branch, hierarchical floors, noise.

step[cell] = combine(T_gpu[cell], floor[cell]);  y ~ Normal or Student-t(step, sqrt(s² + (σ·step)² +
known²)). s keeps the noise off zero where a negative floor pushes the step through 0.

Names in the posterior, with their dims:

- ``eta_bw``, ``eta_fa``, ``eta_tc`` (in (0, 1)), ``l_half`` (tokens), ``rho_q``: with free constants.
- ``floor_ms`` (gpu, class), (gpu, model) or (gpu): the floors, also of pairs that were never measured.
- ``floor_sd_gpu_ms``, ``floor_sd_class_ms`` (or ``_model_ms``), ``floor_sd_pair_ms``: scales of the SKU,
  class and pair effects; of the logarithm, and without ``_ms``, where floors are H >= 0. The effects
  themselves are integrated out.
- ``q``: the overlap, where it is free.
- ``launch_ms`` (gpu) (signed floors) or ``launch_share`` (gpu) (H >= 0): how a floor per launch grows; ``floor_ms``
  is then the floor at the mean number of launches, ``launches_at_floor``.
- ``sequence_ms``, ``sequence_layer_ms`` (term_gpu): terms of the floor, ms per sequence (and layer); ``floor_ms`` is
  then the floor without them.
- ``latency_ms``: latency per kernel inside T_gpu, where the structure frees it.
- ``noise_relative`` (noisy_model) (σ) with its hierarchy over models ``noise_level``, ``noise_spread`` and
  ``noise_own``; ``noise_ms`` (s); ``student_nu`` (Student-t only).
- ``z_floor`` (contrast), ``z_unmeasured`` (unmeasured), ``z_noise`` (noise_contrast), ``z_noise_mean`` and
  ``z_noise_level``, ``z_eta_bw``: what the sampler moves in place of ``floor_ms``, of the hierarchy of the noise and of
  ``eta_bw``.

Observed: ``step_ms`` (cell). Data that a refit may replace: ``measured_ms``, ``known_sd_ms``,
``pair_code``, ``noisy_model_code``, ``gpu_ms`` or the fields of ``PeakTimes``, ``anchor_floor_ms``, ``anchor_q``,
``relative_launches``, ``host_ms``, units of the terms. No variable has one value per cell, so that a compiled model can
be refitted to other cells.

``steps.StepModel`` holds what a model is made of; the compiled form that the product samples is `density`.

Parametrisation. Floors with many cells are known to a tenth of a millisecond whatever the hierarchy says,
and an error of η_bw moves all of them at once: non-centred effects then lie on narrow ridges, and centred
floors in a funnel where the pair effects may vanish. So the effects are integrated out, exactly, and the
sampler moves ``z``, the contrasts of the floors (of their logarithms where H >= 0; overall, SKUs, classes,
pairs) measured from where normal theory puts them given the scales and what each cell says (`_guess`), in units of
their sd there. The Jacobian is included: the posterior is that of the plain hierarchy.

Where constants are shared and floors signed, η_bw and the floors of a few pairs are one column (bytes of weights over
a bandwidth), and only the hierarchy tells them apart: the smaller its scales, the more sharply. That funnel is taken
out in the same way: ``z_eta_bw`` measures the logit of η_bw from where least squares puts it given them (`_ridge`).
"""

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from numpy.typing import ArrayLike, NDArray
from scipy import special

from rooffloor.models.floor.structures import Q_MAX, FloorStructure
from rooffloor.models.inference.layout import KnownFloors, noise_basis
from rooffloor.models.inference.noise import variance_ms2
from rooffloor.models.inference.packing import inverse_moments
from rooffloor.models.inference.priors import DEFAULT_PRIORS, Priors, beta_shapes
from rooffloor.models.inference.steps import ETA, TIMES, UNITS, StepModel
from rooffloor.models.roof.kernels import PeakTimes, Work
from rooffloor.models.roof.roofline import Efficiency, combine
from rooffloor.models.specs.cells import Cells

Array = NDArray[np.float64]


def build_model(
    cells: Cells,
    work: Work | None,
    classes: Mapping[str, str],
    structure: FloorStructure,
    constants: Literal["fixed", "free", "free per gpu"],
    *,
    gpu_ms: ArrayLike | None = None,
    priors: Priors = DEFAULT_PRIORS,
    query_heads: bool = False,
    likelihood: Literal["normal", "student"] = "normal",
    known: KnownFloors | None = None,
) -> pm.Model:
    """PyMC model of measured steps, with coords and dims; everything that a refit may change is ``pm.Data``.

    Parameters, and errors raised, are those of `steps.StepModel`.

    Examples
    --------
    >>> cells = Cells.from_columns(["Llama-3.1-8B"] * 2, ["H100"] * 2, [1, 8], [512, 512], step_ms=[6.1, 6.6])
    >>> model = build_model(cells, None, {"Llama-3.1-8B": "7B"}, FloorStructure("gpu"), "fixed", gpu_ms=[4.5, 4.9])
    >>> [variable.name for variable in model.observed_RVs]
    ['step_ms']
    """
    return pymc_model(
        StepModel(cells, work, classes, structure, constants, gpu_ms, priors, query_heads, likelihood, known)
    )


def pymc_model(m: StepModel) -> pm.Model:
    """The PyMC form of a model of steps; see `build_model`."""
    structure, layout, data = m.structure, m.layout, m.data
    with pm.Model(coords={"cell": m.coords["cell"]}) as model:
        for dim, labels in m.coords.items():
            model.add_coord(dim, labels)
        given = {name: pm.Data(name, value, dims=m.data_dims[name]) for name, value in data.items()}
        measured, known_sd_ms = given["measured_ms"], given["known_sd_ms"]
        relative = _noise_by_model(m)[given["noisy_model_code"]]
        absolute = _log_normal("noise_ms", m.priors.noise_ms)
        about = variance_ms2(measured, relative, absolute, known_sd_ms)
        growth, host = _growth(m, given), _host(m, given)
        if host is not None and not m.positive:  # added like growth
            growth, host = (host if growth is None else growth + host), None
        variance, scales = _floor_scales(m)
        step = branch = given["gpu_ms"] if m.constants == "fixed" else _gpu_branch(m, given, about, growth, variance)
        if layout is not None:
            q = _overlap(m, given) if m.positive else None
            guess = _guess(measured, pt.sqrt(about), branch, q, growth, host)
            floor = _cell_floors(m, given, guess, variance, scales)
            floor = floor if growth is None else floor * growth if m.positive else floor + growth
            floor = floor if host is None else floor + host
            step = structure.step_ms(branch, floor, q, xp=pt)
        sd = pt.sqrt(variance_ms2(step, relative, absolute, known_sd_ms))
        if m.likelihood == "student":
            shape, rate = m.priors.student_nu
            nu = pm.Gamma("student_nu", alpha=shape, beta=rate)
            pm.StudentT("step_ms", nu=nu, mu=step, sigma=sd, observed=measured, dims="cell")
        else:
            pm.Normal("step_ms", mu=step, sigma=sd, observed=measured, dims="cell")
    return model


def _noise_by_model(m: StepModel) -> Any:
    """σ of each model, drawn towards a common level; registers ``noise_relative`` (noisy_model).

    log σ[model] = level + spread own[model]. Cells fix σ of their model and not the level: a far level with all `own`
    on one side fits as well. So the sampler moves the mean and the contrasts of log σ, and the level given them.
    """
    median, sd = m.priors.noise_relative
    spread = pm.HalfNormal("noise_spread", sigma=m.priors.noise_spread)
    n = len(m.cells.models)
    z_level = pm.Normal("z_noise_level")
    z_mean = pm.Normal("z_noise_mean")
    off = pt.dot(noise_basis(n), pm.Normal("z_noise", dims="noise_contrast")) if n > 1 else pt.zeros(1)
    total = pt.sqrt(sd**2 + spread**2 / n)
    mean = np.log(median) + total * z_mean
    level = pm.Deterministic("noise_level", np.log(median) + sd / total * (sd * z_mean + spread / np.sqrt(n) * z_level))
    pm.Deterministic("noise_own", (mean - level) / spread + off, dims="noisy_model")
    return pm.Deterministic("noise_relative", pt.exp(mean + spread * off), dims="noisy_model")


def _log_normal(name: str, prior: tuple[float, float], dims: str | None = None) -> Any:
    median, sd = prior
    return pm.LogNormal(name, mu=np.log(median), sigma=sd, dims=dims)


def _growth(m: StepModel, given: Mapping[str, Any]) -> Any:
    """What the floor at the mean number of launches becomes at each cell's number, [cell]; None where it does not grow.

    Signed: plus c1 (n - mean). Positive: times 1 - s + s n / mean, s in [0, 1], so that H = c0 + c1 n with both from
    0. Given an anchor, its launches stand for the mean.
    """
    if not m.per_launch:
        return None
    relative, code = given["relative_launches"], given["launch_gpu_code"]
    pm.Deterministic("launches_at_floor", pt.as_tensor(m.launches_at))
    if m.positive:
        share = pm.Uniform("launch_share", 0.0, 1.0, dims="launch_gpu")
        return 1.0 + share[code] * (relative - 1.0)
    each = _log_normal("launch_ms", m.priors.launch_ms, "launch_gpu")
    return each[code] * m.launches_at * (relative - 1.0)


def _host(m: StepModel, given: Mapping[str, Any]) -> Any:
    """Host time of the terms of the floor, ms, [cell]; None where it has none."""
    if m.host_given:
        return given["host_ms"]
    if not m.terms:
        return None
    code = given["term_gpu_code"]
    found = []
    for name in m.terms:
        shape, mean = getattr(m.priors, name)
        each = pm.Gamma(name, alpha=np.array(shape), beta=np.array(shape / mean), dims="term_gpu")
        found.append(each[code] * given[UNITS + name])
    return sum(found[1:], found[0])


def _guess(measured: Any, sd: Any, branch: Any, q: Any, growth: Any, host: Any) -> tuple[Any, Any]:
    """What each cell alone says of its floor (of the logarithm, given q): precision, and precision times value.

    Signed, y - T. Positive, with the floor's share s = 1 - (T/y)^(1/q) in y^(1/q): log H = log y + q log s, and a
    step moves by y s per unit of log H. s is kept off zero where T reaches y: there the cell says nothing. Nor does one
    where a floor may hide below T (q near 0) and y - T is within the noise: H may then be anything up to about T, and a
    precision would put chains on a scale far too fine for that. Where the floor has terms, what they leave of it, kept
    above 0, is the part that cells share.
    """
    if q is None:
        value = measured - branch if growth is None else measured - branch - growth
        precision = 1.0 / sd**2
        return precision, precision * value
    power = pt.maximum(q, 0.1)  # nearer the maximum the guess would turn within the noise of a step
    beyond = 1.0 - pt.exp(pt.minimum((pt.log(branch) - pt.log(measured)) / power, 5.0))
    share = 0.5 * (beyond + pt.sqrt(beyond**2 + 1e-3))
    value = pt.log(measured) + power * pt.log(share)
    if growth is not None:
        value = value - pt.log(growth)
    excess = (measured - branch) / sd
    excess = 0.5 * (excess + pt.sqrt(excess**2 + 0.1))
    hidden = 4.0 * pt.maximum(1.0 - 4.0 * q, 0.0)  # the excess, in sds, that may be noise
    precision = (measured * share / sd) ** 2 * (excess**2 / (excess**2 + hidden**2)) ** 4
    if host is not None:
        rest = 1.0 - host * pt.exp(-pt.log(measured) - power * pt.log(share))
        root = pt.sqrt(rest**2 + 0.01)
        rest = pt.switch(rest > 0.0, 0.5 * (rest + root), 0.005 / (root - rest))  # one number, without cancellation
        precision, value = precision * rest**2, value + pt.log(rest)
    return precision, precision * value


def _overlap(m: StepModel, given: Mapping[str, Any]) -> Any:
    """q of each cell: fixed by its class, given with the anchor's floors, or the parameter ``q``."""
    if not m.structure.q_free:
        return given["overlap"]
    q = pm.Uniform("q", 0.0, Q_MAX) if m.q_sampled else given["anchor_q"]
    if "overlap" in given:
        free = given["overlap_free"]
        return free * q + (1.0 - free) * given["overlap"]
    return q


def _gpu_branch(m: StepModel, given: Mapping[str, Any], about: Any, growth: Any, variance: Any) -> Any:
    """T_gpu [cell] with free constants; the times at peak rates are data."""
    times = PeakTimes(**{name: given[name] for name in TIMES})
    free: dict[str, Any] = {}
    dims = "constants_gpu" if m.constants == "free per gpu" else None
    for name in ETA:
        mean, sd = getattr(m.priors, name)
        if name != "eta_bw" or not m.ridge:
            free[name] = pm.Beta(name, mu=mean, sigma=sd, dims=dims)
    free["l_half"] = _log_normal("l_half", m.priors.l_half, dims)
    if m.query_heads:
        free["rho_q"] = _log_normal("rho_q", m.priors.rho_q, dims)
    if m.latency:
        free["latency_ms"] = _log_normal("latency_ms", m.priors.launch_ms, dims)
    if m.ridge:
        free["eta_bw"] = _ridge(m, given, times, free, about, growth, variance)
    if dims is not None:
        free = {name: value[given["constants_gpu_code"]] for name, value in free.items()}
    return combine(times, Efficiency(**free), xp=pt).sum(axis=-1)


def _ridge(
    m: StepModel,
    given: Mapping[str, Any],
    times: PeakTimes,
    free: Mapping[str, Any],
    about: Any,
    growth: Any,
    variance: Any,
) -> Any:
    """``eta_bw`` from ``z_eta_bw``: where the floors' hierarchy expects it, in units of its sd there.

    Kernels bound by bandwidth make T linear in 1 / η_bw, and so each floor that the cells tell: `told` less `slope` /
    η_bw. The prior of 1 / η_bw, about normal, and the contrasts of the floors, normal given their scales, make a normal
    with this precision and mean: least squares. It is turned to the logit to first order.
    """
    layout = m.layout
    assert layout is not None
    code, n = given["pair_code"], layout.measured.shape[1]
    basis, block = layout.contrasts()
    weight = 1.0 / about
    rest = given["measured_ms"] - (times.kv_ms + free["l_half"] * times.kv_token_ms).sum(axis=-1) / free["eta_fa"]
    rest = rest if growth is None else rest - growth
    columns = pt.stack([weight, weight * rest, weight * times.stream_ms.sum(axis=-1)], axis=1)
    sums = pt.inc_subtensor(pt.zeros((n, 3))[code], columns)
    told, slope = sums[:, 1] / sums[:, 0], sums[:, 2] / sums[:, 0]
    total = variance[block] + (basis**2).T @ (1.0 / sums[:, 0])
    along, off = basis.T @ slope, basis.T @ (told - m.priors.floor_level(False)[0])
    mean, sd = inverse_moments(m.priors.eta_bw)
    precision = 1.0 / sd**2 + (along**2 / total).sum()
    above = (mean / sd**2 + (along * off / total).sum()) / precision - 1.0
    middle = 0.5 * (above + pt.sqrt(above**2 + 1.6e-3))  # 1 / eta_bw - 1, kept above 0
    unit = 1.0 / pt.sqrt(middle**2 * precision + 4.0)
    logit = -(pt.log(middle) + unit * pm.Flat("z_eta_bw"))
    a, b = beta_shapes(m.priors.eta_bw)
    density = a * pt.log(pt.sigmoid(logit)) + b * pt.log(pt.sigmoid(-logit)) - pt.as_tensor(special.betaln(a, b))
    pm.Potential("eta_bw_prior", density + pt.log(unit))
    return pm.Deterministic("eta_bw", pt.sigmoid(logit))


def _floor_scales(m: StepModel) -> tuple[Any, dict[str, Any]]:
    """Variances of the four kinds of contrasts of a grid of floors, and the scales of the effects behind them.

    floor (or its logarithm, where positive) = overall + a[gpu] + b[group] + c[gpu, group], all normal: the
    contrasts of the whole grid are independent, with the four variances of a two-way analysis of variance.
    """
    if m.layout is None:
        return None, {}
    g, c = m.layout.size
    overall = m.priors.floor_level(m.positive)[1] ** 2
    scales: dict[str, Any] = {}
    for effect, name in m.scales.items():
        top = m.priors.floor_scale(effect, m.positive)
        half = pm.HalfNormal(name, sigma=top) if m.positive else pm.HalfStudentT(name, nu=3, sigma=top)
        scales[effect] = half
    if m.layout.dim is None:
        only = scales["gpu"] ** 2
        return pt.stack([g * overall + only, only]), scales
    by_gpu, by_group = c * scales["gpu"] ** 2, g * scales["group"] ** 2
    return scales["pair"] ** 2 + pt.stack([g * c * overall + by_gpu + by_group, by_gpu, by_group, 0.0]), scales


def _cell_floors(
    m: StepModel, given: Mapping[str, Any], guess: tuple[Any, Any], variance: Any, scales: Mapping[str, Any]
) -> Any:
    """Floor of each cell; registers ``floor_ms`` and the prior of the whole grid of floors."""
    layout, positive = m.layout, m.positive
    assert layout is not None
    mean = m.priors.floor_level(positive)[0]
    code, n, n_known = given["pair_code"], layout.measured.shape[1], len(layout.known_ms)
    floors, log_jacobian = [], 0.0
    centre = np.full(len(layout.gpus), float(mean))
    if n_known:
        known = pt.log(given["anchor_floor_ms"]) if positive else given["anchor_floor_ms"]
        centre = pt.set_subtensor(pt.as_tensor(centre)[layout.known[0]], known)
    if n:
        sums = pt.inc_subtensor(pt.zeros((n + n_known, 2))[code], pt.stack(guess, axis=1))[:n]
        data_variance = 1.0 / pt.maximum(sums[:, 0], 1e-6)
        basis, block = layout.contrasts()
        start, told = centre[layout.measured[0]], sums[:, 1] * data_variance
        z = pm.Flat("z_floor", dims="contrast")
        floor, log_scale = (_correlated if positive else _contrasted)(
            basis, variance[block], start, told, data_variance, z
        )
        floors.append(floor)
        log_jacobian += log_scale
    if n_known:
        floors.append(known)
    sampled = filled = pt.concatenate(floors)
    if layout.unmeasured.shape[1]:
        fit, unit = layout.fill()
        sd = scales["gpu" if layout.dim is None else "pair"] * unit
        filled = pt.concatenate([sampled, fit @ sampled + sd * pm.Flat("z_unmeasured", dims="unmeasured")])
        log_jacobian += pt.log(sd).sum()
    grid = filled[layout.order]
    basis, block = layout.grid_contrasts()
    wide = variance[block]
    log_prior = -0.5 * (pt.log(2 * np.pi * wide) + (basis.T @ (grid - mean)) ** 2 / wide).sum()
    pm.Potential("floors", log_prior + log_jacobian)
    floor_ms = pt.exp(grid) if positive else grid
    dims = m.dims["floor_ms"]
    pm.Deterministic("floor_ms", floor_ms.reshape(layout.size) if len(dims) > 1 else floor_ms, dims=dims)
    return (pt.exp(sampled) if positive else sampled)[code]


def _contrasted(basis: Array, prior: Any, start: Any, told: Any, data_variance: Any, z: Any) -> tuple[Any, Any]:
    """Floors from `z`, one contrast at a time, and the log Jacobian; good where cells know all floors about alike.

    `prior` [contrast]: variances around `start` [floor]; `told`, `data_variance` [floor]: what the cells say.
    """
    data = (basis**2).T @ data_variance
    scale = pt.sqrt(prior * data / (prior + data))
    shrunk = prior / (prior + data) * (basis.T @ (told - start))
    return start + basis @ (shrunk + scale * z), pt.log(scale).sum()


def _correlated(basis: Array, prior: Any, start: Any, told: Any, data_variance: Any, z: Any) -> tuple[Any, Any]:
    """The same with all correlations: floors H >= 0 that T_gpu hides are known far less than others.

    Floors are start + spread w, w ~ N(0, 1) a priori; what the cells say gives w the precision root root'.
    """
    spread = basis * pt.sqrt(prior)
    weighed = spread.T / data_variance
    root = pt.linalg.cholesky(pt.eye(basis.shape[1]) + weighed @ spread)
    pull = pt.linalg.solve_triangular(root, weighed @ (told - start), lower=True)
    w = pt.linalg.solve_triangular(root.T, pull + z, lower=False)
    return start + spread @ w, (0.5 * pt.log(prior) - pt.log(pt.diagonal(root))).sum()
