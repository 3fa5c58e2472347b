"""The roofline: published floors, a scalar twin, hand-computed cells, properties."""

import csv
import dataclasses
import tracemalloc
from pathlib import Path

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
import scalar_oracle
from hypothesis import given, settings
from hypothesis import strategies as st

from rooffloor.models.roof.kernels import EXPERTS, KERNELS, PeakTimes, decode_work, stack_work
from rooffloor.models.roof.roofline import (
    Efficiency,
    breakdown_ms,
    bytes_floor_ms,
    combine,
    gpu_ms,
    gradient_ms,
    total_ms,
    work_floor_ms,
    work_ms,
)
from rooffloor.models.specs import gpus, shapes
from rooffloor.models.specs.cells import Cells

etas = st.floats(0.01, 1.0)
batches = st.integers(1, 512)
contexts = st.floats(0, 131072)
models = st.sampled_from(shapes.names())
skus = st.sampled_from(gpus.names())
experts_choices = st.sampled_from(EXPERTS)
efficiencies = st.builds(
    Efficiency,
    eta_tc=etas,
    eta_bw=etas,
    eta_fa=etas,
    l_half=st.floats(0, 4096),
    latency_ms=st.floats(0, 0.05),
    rho_q=st.none() | st.floats(0.05, 4),
)


def mixed_cells() -> Cells:
    rng = np.random.default_rng(7)
    names = ["Llama-3.1-8B", "Llama-2-7B", "Llama-3.2-1B", "Qwen1.5-MoE-A2.7B", "OPT-6.7B"]
    return Cells.from_columns(
        list(rng.choice(names, 40)),
        list(rng.choice(["H100", "A100-40GB", "L40S"], 40)),
        rng.choice([1, 4, 16, 64, 300], 40),
        rng.choice([0.0, 512.5, 8192], 40),
    )


# --- references


@pytest.mark.parametrize(
    ("gpu", "expected"),
    [("H100", [4.50, 4.80, 4.80, 4.80, 9.61]), ("A100-40GB", [9.70, 10.34, 10.34, 10.34, 20.70])],
)
def test_bytes_floor_of_the_design(gpu, expected):
    floor = bytes_floor_ms("Llama-3.1-8B", gpu, [1, 1, 4, 16, 16], [512, 8192, 2048, 512, 8192])
    np.testing.assert_allclose(floor, expected, atol=0.0051)


def test_bytes_floor_of_the_reference_rows(shared: Path):
    with (shared / "reference" / "peer_predictions.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["peer"].startswith("REFERENCE")]
    assert len(rows) == 125
    for row in rows:
        floor = bytes_floor_ms(row["model"], row["gpu"], int(row["batch"]), int(row["context"]))
        assert floor == pytest.approx(float(row["decode_ms"]), rel=2e-5)


# --- cells by hand


def test_peak_by_hand():
    # A100-40GB, (1, 512), bytes: 7,504,658,432 weights of layers and LM head * 2 = 15,009,316,864
    # + cache 512 * 131,072 = 67,108,864 + cache write 131,072 + 65 norms * 4096 * 2 = 532,480
    # + embedding 8,192 = 15,077,097,472; over 1555 GB/s = 9.6959 ms
    # all products are memory-bound: 64 FLOP/B < 312/1.555 = 201
    by_hand = 15_077_097_472 / 1555e9 * 1e3
    assert by_hand == pytest.approx(9.6959, abs=5e-5)
    assert gpu_ms("Llama-3.1-8B", "A100-40GB", 1, 512) == pytest.approx(by_hand, rel=1e-14)


def test_all_constants_by_hand():
    # H100, (4, 2048), at 0.8 of 3350 GB/s: 15,009,316,864 + 4 * 131,072 + 532,480 + 4 * 8,192
    # = 15,010,406,400 bytes; at 0.5 of it the cache, 4 * 131,072 * (2048 + 100) bytes; 323 launches of 4 us
    # = 5.6009 + 0.6723 + 1.292 = 7.5652 ms
    efficiency = Efficiency(eta_bw=0.8, eta_fa=0.5, l_half=100.0, latency_ms=0.004)
    by_hand = 15_010_406_400 / (3350e9 * 0.8) + 4 * 131_072 * 2148 / (3350e9 * 0.5)
    assert by_hand * 1e3 + 1.292 == pytest.approx(7.5652, abs=5e-5)
    step = gpu_ms("Llama-3.1-8B", "H100", 4, 2048, efficiency)
    assert step == pytest.approx(by_hand * 1e3 + 323 * 0.004, rel=1e-13)


def test_compute_bound_by_hand():
    # H100, (64, 0), eta_tc 0.1: products take 2 * 64 * 7,504,658,432 / 98.9e12 = 9.7128 ms (bytes: 4.48);
    # norms, embedding and cache write stream 532,480 + 64 * 8,192 + 64 * 131,072 = 9,445,376 bytes, 0.0028 ms
    step = gpu_ms("Llama-3.1-8B", "H100", 64, 0, Efficiency(eta_tc=0.1))
    by_hand = 128 * 7_504_658_432 / 98.9e12 + 9_445_376 / 3350e9
    assert by_hand * 1e3 == pytest.approx(9.7156, abs=5e-5)
    assert step == pytest.approx(by_hand * 1e3, rel=1e-13)
    # one sequence more needs a second tile of 64 rows: twice the time of the products
    more = breakdown_ms("Llama-3.1-8B", "H100", [64, 65], 0, Efficiency(eta_tc=0.1))["down"]
    assert more[1] / more[0] == pytest.approx(2.0, rel=1e-14)


def test_query_heads_by_hand():
    # H100, (1, 8192): the cache once per query head, 2 * 4096 * 2 bytes * 32 layers * 8192 = 4,294,967,296,
    # at 0.9 of 3350 GB/s = 1.4245 ms; more than the cache itself, 1,073,741,824 bytes at 0.5 = 0.6410 ms
    on = breakdown_ms("Llama-3.1-8B", "H100", 1, 8192, Efficiency(eta_fa=0.5, rho_q=0.9))["attention"]
    off = breakdown_ms("Llama-3.1-8B", "H100", 1, 8192, Efficiency(eta_fa=0.5))["attention"]
    assert on == pytest.approx(1.4245, abs=5e-5)
    assert off == pytest.approx(0.6410, abs=5e-5)


# --- one formula, three implementations


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(sorted(scalar_oracle.GPUS)), st.integers(1, 128), contexts, efficiencies)
def test_numpy_equals_the_scalar_oracle_bit_for_bit(gpu, batch, context, efficiency):
    names = ("eta_tc", "eta_bw", "eta_fa", "l_half", "latency_ms", "rho_q")
    constants = {name: getattr(efficiency, name) for name in names}
    work = decode_work("Llama-3.1-8B", batch, context, gpu=gpu)
    expected = scalar_oracle.step_ms(gpu, batch, context, **constants)
    assert float(work_ms(work, efficiency)) == expected
    assert float(total_ms(combine(work, efficiency))) == expected
    assert float(gpu_ms("Llama-3.1-8B", gpu, batch, context, efficiency)) == expected
    present = work.launches > 0
    assert combine(work, efficiency)[present].tolist() == scalar_oracle.kernel_times_ms(
        gpu, batch, context, **constants
    )


@pytest.mark.parametrize("rho_q", [None, 0.8])
def test_pytensor_equals_numpy(rho_q):
    work = stack_work(mixed_cells(), experts="distinct")
    values = {"eta_tc": 0.3, "eta_bw": 0.8, "eta_fa": 0.6, "l_half": 60.0, "latency_ms": 0.004}
    values |= {} if rho_q is None else {"rho_q": rho_q}
    symbols = {name: pt.dscalar(name) for name in values}
    times = PeakTimes(*(pt.matrix(f.name) for f in dataclasses.fields(PeakTimes)))
    step = total_ms(combine(times, Efficiency(**symbols), pt))
    arrays = {f.name: getattr(work.peak_times, f.name) for f in dataclasses.fields(PeakTimes)}
    function = pytensor.function(
        [*symbols.values(), *(getattr(times, name) for name in arrays)],
        step,
        mode="FAST_COMPILE",
        on_unused_input="ignore",
    )
    got = function(*values.values(), *arrays.values())
    np.testing.assert_allclose(got, work_ms(work, Efficiency(**values)), rtol=1e-12)


def test_pytensor_takes_numpy_work_and_constants_per_cell():
    work = stack_work(mixed_cells())
    eta = pt.dvector("eta")
    step = total_ms(combine(work, Efficiency(eta_bw=eta), pt))
    values = np.linspace(0.5, 1, 40)
    by_kernel = work_ms(work, Efficiency(eta_bw=eta), pt)
    for symbol in (step, by_kernel):
        got = symbol.eval({eta: values}, mode="FAST_COMPILE")
        np.testing.assert_allclose(got, work_ms(work, Efficiency(eta_bw=values)), rtol=1e-12)


# --- properties


@settings(max_examples=300, deadline=None)
@given(models, skus, batches, contexts, efficiencies, experts_choices)
def test_never_below_the_bytes_floor(model, gpu, batch, context, efficiency, experts):
    floor = bytes_floor_ms(model, gpu, batch, context, experts)
    assert gpu_ms(model, gpu, batch, context, efficiency, experts) >= floor
    assert gpu_ms(model, gpu, batch, context, experts=experts) >= floor


@settings(max_examples=150, deadline=None)
@given(models, skus, batches, contexts, efficiencies, experts_choices, st.integers(0, 300), st.floats(0, 1e5))
def test_monotone_in_batch_and_context(model, gpu, batch, context, efficiency, experts, more, longer):
    batch_axis, context_axis = np.array([batch, batch + more]), np.array([context, context + longer])
    step = gpu_ms(model, gpu, batch_axis[:, None], context_axis, efficiency, experts)
    floor = bytes_floor_ms(model, gpu, batch_axis[:, None], context_axis, experts)
    for values in (step, floor):  # rounding may cost a unit in the last place
        assert np.all(np.diff(values, axis=0) >= -1e-13 * values.max())
        assert np.all(np.diff(values, axis=1) >= -1e-13 * values.max())


@settings(max_examples=100, deadline=None)
@given(models, skus, batches, contexts, efficiencies, st.sampled_from(KERNELS), st.floats(1, 3))
def test_monotone_in_bytes(model, gpu, batch, context, efficiency, kernel, factor):
    work = decode_work(model, batch, context, gpu=gpu)
    scale = np.where(np.array(KERNELS) == kernel, factor, 1.0)
    for field in ("bytes", "kv_bytes", "kv_token_bytes", "query_bytes", "flops"):
        more = dataclasses.replace(work, **{field: getattr(work, field) * scale})
        assert work_ms(more, efficiency) >= work_ms(work, efficiency)


@settings(max_examples=100, deadline=None)
@given(models, skus, batches, contexts, efficiencies, experts_choices)
def test_peak_is_the_least(model, gpu, batch, context, efficiency, experts):
    peak = gpu_ms(model, gpu, batch, context, Efficiency.peak(), experts)
    assert peak <= gpu_ms(model, gpu, batch, context, efficiency, experts)


@settings(max_examples=50, deadline=None)
@given(models, skus, batches, contexts, efficiencies)
def test_active_experts_cost_no_more_than_distinct_than_balanced(model, gpu, batch, context, efficiency):
    active, distinct, balanced = (
        gpu_ms(model, gpu, batch, context, efficiency, choice) for choice in ("active", "distinct", "balanced")
    )
    assert active <= distinct * (1 + 1e-13)
    assert distinct <= balanced * (1 + 1e-13)


# --- shapes of the arrays


def test_everything_broadcasts():
    step = gpu_ms("Llama-3.1-8B", "H100", np.array([1, 2, 4])[:, None], [512, 2048], Efficiency(eta_bw=0.8))
    assert step.shape == (3, 2)
    parts = breakdown_ms(
        shapes.load("Llama-3.1-8B"), gpus.load("H100"), [[1], [2], [4]], [512, 2048], Efficiency(eta_bw=0.8)
    )
    assert tuple(parts) == KERNELS
    np.testing.assert_allclose(sum(parts.values()), step, rtol=1e-14)
    assert np.ndim(gpu_ms("Llama-3.1-8B", "H100", 1, 512)) == 0


def test_chains_lead_the_cells():
    work = stack_work(mixed_cells())
    eta = np.linspace(0.3, 1, 5)[:, None]
    efficiency = Efficiency(eta / 2, eta, eta**2, 80 * eta, eta / 100, eta)
    step, kernel_ms = work_ms(work, efficiency), combine(work, efficiency)
    assert step.shape == (5, 40)
    assert kernel_ms.shape == (5, 40, len(KERNELS))
    for chain, value in enumerate(eta[:, 0]):
        alone = Efficiency(value / 2, value, value**2, 80 * value, value / 100, value)
        np.testing.assert_array_equal(step[chain], work_ms(work, alone))
        np.testing.assert_array_equal(step[chain], total_ms(kernel_ms)[chain])
        for name, derivative in gradient_ms(work, alone).items():
            np.testing.assert_allclose(gradient_ms(work, efficiency)[name][chain], derivative, rtol=1e-13)


def test_constants_per_cell():
    work = stack_work(mixed_cells())
    eta = np.linspace(0.3, 1, 40)
    step = work_ms(work, Efficiency(eta_bw=eta))
    assert step.shape == (40,)
    assert step[3] == work_ms(work, Efficiency(eta_bw=float(eta[3])))[3]


def test_the_floor_of_stacked_work():
    cells = mixed_cells()
    floor = work_floor_ms(stack_work(cells))
    alone = [
        bytes_floor_ms(str(m), str(g), b, c)
        for m, g, b, c in zip(cells.model, cells.gpu, cells.batch, cells.context, strict=True)
    ]
    np.testing.assert_array_equal(floor, alone)


# --- many cells, block by block

MANY = 40_000
"""Several blocks of cells, the last one not full."""


def many_cells(kind: str) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    batch = {
        "whole": rng.integers(1, 300, MANY),
        "whole float32": rng.integers(1, 300, MANY).astype(np.float32),
        "fractions": rng.uniform(1, 300, MANY),
        "beyond the table": rng.integers(1, 30_000, MANY),
        "grid": rng.integers(1, 300, 400)[:, None],
    }[kind]
    return batch, rng.integers(0, 10**5, 100 if kind == "grid" else MANY)


@pytest.mark.parametrize("kind", ["whole", "whole float32", "fractions", "beyond the table", "grid"])
@pytest.mark.parametrize("experts", EXPERTS)
@pytest.mark.parametrize("model", ["Llama-3.1-8B", "Qwen1.5-MoE-A2.7B", "Mistral-7B-v0.1"])
def test_blocks_agree_with_the_sum_of_all_kernels_bit_for_bit(model, kind, experts):
    batch, context = many_cells(kind)
    work = decode_work(model, batch, context, gpu="A100-40GB", experts=experts)
    for efficiency in (Efficiency.peak(), Efficiency(0.1, 0.8, 0.7, 60.0, 0.004, 0.8)):
        step = gpu_ms(model, "A100-40GB", batch, context, efficiency, experts)
        np.testing.assert_array_equal(step, total_ms(combine(work, efficiency)))
        assert np.all(step >= bytes_floor_ms(model, "A100-40GB", batch, context, experts))
    np.testing.assert_array_equal(bytes_floor_ms(model, "A100-40GB", batch, context, experts), work_floor_ms(work))


@pytest.mark.parametrize("name", ["eta_tc", "eta_bw", "eta_fa", "l_half", "latency_ms", "rho_q"])
def test_blocks_take_constants_per_cell_and_chain(name):
    batch, context = many_cells("whole")
    for values in (np.linspace(0.01, 1, MANY), np.array([[0.3], [0.4], [1.0]]), np.array(0.7)):
        efficiency = Efficiency(**{name: values})
        step = gpu_ms("Qwen1.5-MoE-A2.7B", "H100", batch, context, efficiency)
        work = decode_work("Qwen1.5-MoE-A2.7B", batch, context, gpu="H100")
        np.testing.assert_array_equal(step, total_ms(combine(work, efficiency)))


@settings(max_examples=100, deadline=None)
@given(models, skus, st.integers(1, 5000) | st.floats(1, 5000), contexts, efficiencies, experts_choices)
def test_one_cell_is_that_of_an_array(model, gpu, batch, context, efficiency, experts):
    alone = gpu_ms(model, gpu, batch, context, efficiency, experts)
    among = gpu_ms(model, gpu, [1, batch, 7.5], [0, context, 10], efficiency, experts)
    assert alone == among[1] == work_ms(decode_work(model, batch, context, gpu=gpu, experts=experts), efficiency)


@pytest.mark.parametrize("function", [gpu_ms, bytes_floor_ms])
def test_arrays_of_cells_need_little_memory_beyond_the_result(function):
    batch, context = np.arange(1, 1001)[:, None], np.arange(2000)
    function("Qwen1.5-MoE-A2.7B", "H100", batch, context[:10])
    tracemalloc.start()
    step = function("Qwen1.5-MoE-A2.7B", "H100", batch, context)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert step.shape == (1000, 2000)
    assert peak - step.nbytes < step.nbytes / 8


def test_no_cells():
    for batch in ([], np.ones((0, 1))):
        assert gpu_ms("Llama-3.1-8B", "H100", batch, [[3.0]]).size == 0


# --- gradients


@pytest.mark.parametrize(
    "constants",
    [
        {"eta_tc": 0.6, "eta_bw": 0.8, "eta_fa": 0.55, "l_half": 70.0, "latency_ms": 0.004},
        {"eta_tc": 0.15, "eta_bw": 0.9, "eta_fa": 0.9, "l_half": 10.0, "latency_ms": 0.001, "rho_q": 0.7},
        {"eta_tc": 0.03, "eta_bw": 0.9, "eta_fa": 0.9, "l_half": 500.0, "latency_ms": 0.0, "rho_q": 3.0},
    ],
)
def test_gradient_against_finite_differences(constants):
    work = stack_work(mixed_cells())
    gradient = gradient_ms(work, Efficiency(**constants))
    assert set(gradient) == set(constants)
    for name, value in constants.items():
        step = 1e-6 * max(value, 1e-3)
        up, down = value + step, max(value - step, 0.0)
        high, low = (work_ms(work, Efficiency(**constants | {name: v})) for v in (up, down))
        np.testing.assert_allclose(gradient[name], (high - low) / (up - down), rtol=1e-5, atol=1e-6)


def test_each_limb_has_a_gradient_somewhere():
    work = stack_work(mixed_cells())
    gradient = gradient_ms(work, Efficiency(eta_tc=0.15, eta_bw=0.9, eta_fa=0.9, l_half=10.0, rho_q=0.7))
    for name in ("eta_tc", "eta_bw", "eta_fa", "rho_q"):
        assert gradient[name].min() < 0
        assert gradient[name].max() <= 0
    assert gradient["l_half"].max() > 0
    assert gradient["latency_ms"].min() > 100


# --- bad input


@pytest.mark.parametrize(
    ("constants", "message"),
    [
        ({"eta_bw": 0.0}, r"eta_bw must be in \(0, 1\], got 0"),
        ({"eta_tc": 1.01}, r"eta_tc must be in \(0, 1\], got 1.01"),
        ({"eta_fa": -0.5}, r"eta_fa must be in \(0, 1\], got -0.5"),
        ({"eta_fa": np.array([0.5, np.nan])}, r"eta_fa must be in \(0, 1\], got nan"),
        ({"l_half": -1.0}, "l_half must be 0 or more, got -1"),
        ({"latency_ms": np.inf}, "latency_ms must be 0 or more, got inf"),
        ({"rho_q": 0.0}, "rho_q must be above 0, got 0"),
        ({"eta_bw": "high"}, "eta_bw must be a number or an array, got 'high'"),
        ({"eta_bw": None}, "eta_bw must be a number or an array, got None"),
    ],
)
def test_constants_out_of_range(constants, message):
    with pytest.raises(ValueError, match=message):
        Efficiency(**constants)


@pytest.mark.parametrize(("batch", "context"), [(-1, 5), (1, -5), (0, 5)])
def test_bad_cells(batch, context):
    for function in (gpu_ms, breakdown_ms, bytes_floor_ms):
        with pytest.raises(ValueError, match="must be a finite number from"):
            function("Llama-3.1-8B", "H100", batch, context)


def test_unknown_names():
    with pytest.raises(ValueError, match="unknown model"):
        gpu_ms("Llama-9", "H100", 1, 1)
    with pytest.raises(ValueError, match="does not say which part"):
        gpu_ms("Llama-3.1-8B", "A100", 1, 1)
