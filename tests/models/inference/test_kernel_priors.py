"""Priors from measured kernels: what they are by GPU and format, and how much narrower a prediction they make."""

from dataclasses import dataclass, fields

import numpy as np
import pytest

from rooffloor.models.inference.kernel_priors import gpu_prior, kernel_prior, kernel_priors
from rooffloor.models.inference.priors import DEFAULT_PRIORS, beta_shapes
from rooffloor.models.roof.kernels import decode_work

MEASURED = {"A100-80GB": 0.79, "H100": 0.90, "H200": 0.82, "L40S": 0.81}
"""Share of the bandwidth that matrix products of decode reach, as the issue that asked for these priors states it."""


@pytest.mark.parametrize("gpu", MEASURED)
def test_a_measured_gpu_has_its_own_kernels(gpu):
    prior = gpu_prior(gpu)
    assert prior.eta_bw[0] == pytest.approx(MEASURED[gpu], abs=0.015)
    assert prior.eta_bw[1] < 0.75 * DEFAULT_PRIORS.eta_bw[1]
    assert prior.eta_bw_from == prior.eta_fa_from == f"kernels of {gpu}"


def test_aliases_are_the_same_gpu():
    assert gpu_prior("NVIDIA H100 80GB HBM3") == gpu_prior("H100")


def test_a_gpu_without_kernels_gets_the_hyperprior_which_is_wider():
    unknown, known = gpu_prior("some GPU of next year"), gpu_prior("H100")
    assert unknown.eta_bw_from == unknown.eta_fa_from == "hyperprior"
    assert unknown.eta_bw[1] > 1.5 * known.eta_bw[1]
    assert unknown.launch_ms[1] > known.launch_ms[1]
    assert gpu_prior("A100-40GB").eta_bw == unknown.eta_bw


def test_a_constant_for_several_gpus_is_as_wide_as_they_differ():
    both = kernel_prior(["H100", "A100-80GB"])
    means = [both.per_gpu[gpu].eta_bw[0] for gpu in both.gpus]
    within = np.mean([both.per_gpu[gpu].eta_bw[1] ** 2 for gpu in both.gpus])
    assert both.eta_bw == pytest.approx((np.mean(means), np.sqrt(within + np.var(means))))
    assert kernel_prior(["H100"]).eta_bw == gpu_prior("H100").eta_bw
    assert "kernels of H100" in both.text
    assert "hyperprior (GH200)" in kernel_prior(["H100", "GH200"]).text


def test_formats_differ_and_unknown_ones_are_refused():
    assert gpu_prior("H200", "fp8_block").eta_bw[0] < gpu_prior("H200", "fp8").eta_bw[0] - 0.1
    assert gpu_prior("H100", "float16") == gpu_prior("H100", "bf16")
    assert gpu_prior("A100-80GB", "fp8").eta_bw_from == "hyperprior"
    assert gpu_prior("H200", "fp8", "bf16").eta_fa == gpu_prior("H200").eta_fa
    with pytest.raises(ValueError, match="unknown format 'int3'; known: bf16"):
        kernel_prior(["H100"], "int3")
    with pytest.raises(ValueError, match="at least one GPU"):
        kernel_prior([])


def test_priors_are_the_defaults_but_for_what_kernels_and_hosts_say():
    priors, prior = kernel_priors(["H100"]), kernel_prior(["H100"])
    changed = {n for n in (f.name for f in fields(priors)) if getattr(priors, n) != getattr(DEFAULT_PRIORS, n)}
    assert changed >= {"eta_bw", "eta_fa", "launch_ms", "sequence_ms"}
    assert changed <= {"eta_bw", "eta_fa", "l_half", "launch_ms", "sequence_ms"}
    assert (priors.eta_bw, priors.launch_ms) == (prior.eta_bw, prior.launch_ms)
    middle, sd = prior.h_seq_ms  # a Gamma with the mean of that log-normal, which lets a stack hide it wholly
    assert priors.sequence_ms == (1.0, pytest.approx(middle * np.exp(0.5 * sd**2)))
    assert all(shape > 1.0 for moments in (priors.eta_bw, priors.eta_fa) for shape in beta_shapes(moments))


def test_host_times_hold_what_was_measured():
    """0.8 ms + 0.043 ms per sequence on one host, 0.05 to 0.13 on others, to 0.37 on a server of 2024."""
    prior = kernel_prior(["H100"])
    for (median, sd), values in ((prior.h0_ms, (0.8,)), (prior.h_seq_ms, (0.043, 0.07, 0.13, 0.3))):
        assert all(abs(np.log(value / median)) < 2.0 * sd for value in values)


# ---- the width of a prediction ------------------------------------------------------------------------------------

DRAWS, STUDIES, NOISE = 4000, 60, 0.02


@dataclass(frozen=True, eq=False)
class Case:
    """Peak times of weights and cache [model, cell], ms: an 8B, then a 1B."""

    stream: np.ndarray
    cache: np.ndarray


def case(gpu: str) -> Case:
    batch, context = (axis.ravel() for axis in np.meshgrid([1, 4, 16], [512, 1024, 2048, 4096, 8192]))
    work = [decode_work(m, batch, context, gpu=gpu).peak_times for m in ("Llama-3.1-8B", "Llama-3.2-1B")]
    return Case(*(np.array([getattr(w, name).sum(axis=-1) for w in work]) for name in ("stream_ms", "kv_ms")))


def predicted(case: Case, step: np.ndarray, rng: np.random.Generator, eta_bw, eta_fa) -> np.ndarray:
    """Draws [draw, cell] of the 1B's steps from the 8B's: constants by importance, an added floor N(0, 5²) exactly."""
    bw, fa = (rng.beta(*beta_shapes(moments), DRAWS)[:, None] for moments in (eta_bw, eta_fa))
    anchor, small = (case.stream[m] / bw + case.cache[m] / fa for m in (0, 1))
    weight = 1.0 / (NOISE * step) ** 2
    precision = weight.sum() + 1.0 / 25.0
    floor = ((step - anchor) @ weight / precision)[:, None]
    off = step - anchor - floor
    logs = -0.5 * ((off**2) @ weight + floor[:, 0] ** 2 / 25.0)
    chance = np.exp(logs - logs.max())
    kept = rng.choice(DRAWS, DRAWS, p=chance / chance.sum())
    return small[kept] + floor[kept] + rng.standard_normal((DRAWS, 1)) / np.sqrt(precision)


def widths(gpu: str, studies: int, first: int = 0) -> tuple[dict[str, float], dict[str, float]]:
    """Mean width of the 90 % interval of the 1B's mean step, ms, and coverage; by prior."""
    here, own = case(gpu), gpu_prior(gpu)
    priors = {"kernels": (own.eta_bw, own.eta_fa), "wide": (DEFAULT_PRIORS.eta_bw, DEFAULT_PRIORS.eta_fa)}
    width = {name: [] for name in priors}
    covered = {name: [] for name in priors}
    for seed in range(first, first + studies):
        rng = np.random.default_rng(seed)
        bw, fa = (rng.beta(*beta_shapes(moments)) for moments in priors["kernels"])
        floor = rng.uniform(0.5, 4.0)
        true = here.stream / bw + here.cache / fa + floor
        step = true[0] * (1.0 + NOISE * rng.standard_normal(true.shape[1]))
        for name, moments in priors.items():
            low, high = np.quantile(predicted(here, step, rng, *moments), (0.05, 0.95), axis=0)
            width[name].append(np.mean(high - low))
            covered[name].append(np.mean((low <= true[1]) & (true[1] <= high)))
    return ({n: float(np.mean(v)) for n, v in of.items()} for of in (width, covered))


@pytest.mark.parametrize("gpu", ["H100", "A100-80GB"])
def test_a_small_model_is_predicted_with_little_more_than_half_the_width_and_covered(gpu):
    width, covered = widths(gpu, STUDIES)
    assert width["kernels"] < 0.7 * width["wide"]
    assert covered["kernels"] > 0.80
