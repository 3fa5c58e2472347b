"""FLOPs, bytes and launches of a step, and of a prefill."""

import dataclasses

import numpy as np
import pytest

from rooffloor.models.roof.kernels import GROUPS, KERNELS, Work, decode_work, experts_streamed, stack_work
from rooffloor.models.roof.prefill import prefill_flops, prefill_ms
from rooffloor.models.specs import gpus, shapes
from rooffloor.models.specs.cells import Cells
from rooffloor.models.specs.shapes import ModelShapes

K = {name: i for i, name in enumerate(KERNELS)}


def kernel(work: Work, field: str, name: str) -> np.ndarray:
    return getattr(work, field)[..., K[name]]


def test_llama_counted_by_hand():
    work = decode_work("Llama-3.1-8B", 4, 2048, gpu="H100")
    assert kernel(work, "bytes", "qkv") == 32 * 2 * 4096 * (4096 + 2 * 8 * 128)
    assert kernel(work, "bytes", "attn_out") == 32 * 2 * 4096 * 4096
    assert kernel(work, "bytes", "gate_up") == 32 * 2 * 4096 * 2 * 14336
    assert kernel(work, "bytes", "down") == 32 * 2 * 14336 * 4096
    assert kernel(work, "bytes", "lm_head") == 2 * 4096 * 128256
    assert kernel(work, "bytes", "norms") == 2 * 65 * 4096
    assert kernel(work, "bytes", "embedding") == 4 * 2 * 4096
    assert kernel(work, "bytes", "kv_write") == 4 * 131072
    assert kernel(work, "kv_bytes", "attention") == 4 * 2048 * 131072
    assert kernel(work, "kv_token_bytes", "attention") == 4 * 131072
    assert kernel(work, "query_bytes", "attention") == 2 * 32 * 128 * 2 * 4 * 2048 * 32
    assert kernel(work, "flops", "down") == 2 * 4 * 32 * 14336 * 4096
    assert kernel(work, "flops", "attention") == 4 * 4 * 2048 * 4096 * 32
    assert work.launches.sum() == 32 * 10 + 3
    for name in ("router", "dispatch", "shared_gate_up", "shared_down"):
        assert kernel(work, "bytes", name) == kernel(work, "launches", name) == 0


def test_linear_weights_are_the_parameters_without_embedding_biases_and_norms():
    for name in shapes.names():
        model = shapes.load(name)
        if model.is_moe or model.tied_embeddings or model.lm_head_bias:
            continue
        work = decode_work(model, 1, 0, gpu="H100")
        small = model.small_weights
        rest = model.hidden * model.vocab + sum(small.values())
        assert work.floor_bytes.sum() == 2 * (model.parameters - rest), name


def test_groups_share_out_the_kernels():
    assert sorted(k for group in GROUPS.values() for k in group) == sorted(KERNELS)


def test_only_attention_reads_the_cache():
    for name in shapes.names():
        work = decode_work(name, 3, 700, gpu="H200")
        for field in ("kv_bytes", "kv_token_bytes", "query_bytes"):
            assert np.flatnonzero(getattr(work, field)).tolist() == [K["attention"]]
        assert np.all(work.bytes + work.kv_bytes >= work.floor_bytes)
        absent = work.launches == 0
        assert not np.any((work.bytes + work.kv_bytes)[absent])


@pytest.mark.parametrize(
    ("experts", "expected"),
    [
        ("active", [4, 4, 4, 4]),
        ("distinct", [4, 60 * (1 - (14 / 15) ** 2), 60 * (1 - (14 / 15) ** 16), 60 * (1 - (14 / 15) ** 64)]),
        ("balanced", [4, 8, 60, 60]),
    ],
)
def test_experts_streamed(experts, expected):
    model = shapes.load("Qwen1.5-MoE-A2.7B")
    streamed = experts_streamed(model, [1, 2, 16, 64], experts)
    np.testing.assert_allclose(streamed, expected, rtol=1e-13)
    work = decode_work(model, [1, 2, 16, 64], 0, gpu="H100", experts=experts)
    one = 24 * 2 * 2048 * 2 * 1408
    np.testing.assert_allclose(kernel(work, "bytes", "gate_up"), streamed * one, rtol=1e-13)
    np.testing.assert_allclose(kernel(work, "flops", "gate_up"), [b * 4 * one for b in (1, 2, 16, 64)])
    np.testing.assert_array_equal(kernel(work, "bytes", "shared_down"), 24 * 2 * 2048 * 5632)


@pytest.mark.parametrize(
    ("experts", "batch", "rows"),
    [
        ("active", 1, 1),
        ("active", 100, 100),  # all tokens share the same experts
        ("distinct", 16, 16 * 4 / (60 * (1 - (14 / 15) ** 16))),
        ("distinct", 960, 64),
        ("balanced", 8, 1),  # 32 experts of one row
        ("balanced", 15, 1),
        ("balanced", 30, 2),
        ("balanced", 960, 64),
        ("balanced", 1920, 128),
        ("balanced", 990, 66),  # two tiles of 64
    ],
)
def test_tiles_of_routed_experts_hold_the_rows_of_one_expert(experts, batch, rows):
    work = decode_work("Qwen1.5-MoE-A2.7B", batch, 512, gpu="H100", experts=experts)
    expected = rows / (64 * np.ceil(rows / 64 - 1e-12))
    for name in ("gate_up", "down"):
        assert kernel(work, "occupancy", name) == pytest.approx(expected, rel=1e-12)
    for name in ("qkv", "shared_gate_up", "shared_down", "router", "lm_head"):
        assert kernel(work, "occupancy", name) == batch / (64 * np.ceil(batch / 64))


def test_compute_time_of_routed_experts_by_hand():
    # H100, batch 30, balanced: 60 experts of 2 rows, each in a tile of 64: as long as 60 x 64 rows would take
    work = decode_work("Qwen1.5-MoE-A2.7B", 30, 512, gpu="H100", experts="balanced")
    one = 24 * 2 * 2048 * 1408  # weights of gate and up of one expert in every layer
    seconds = kernel(work, "flops", "gate_up") / kernel(work, "occupancy", "gate_up") / 989e12
    assert seconds == pytest.approx(2 * 60 * 64 * one / 989e12, rel=1e-12)


def test_active_experts_are_tiled_to_the_bit_as_the_dense_kernels_are():
    batches = np.array([1.0, 3.0, 7.3, 16.0, 65.0, 1000.1])
    work = decode_work("Qwen1.5-MoE-A2.7B", batches, 512, gpu="H100")
    np.testing.assert_array_equal(kernel(work, "occupancy", "gate_up"), kernel(work, "occupancy", "qkv"))


def test_dispatch_is_near_the_published_0_004_ms():
    work = decode_work("Qwen1.5-MoE-A2.7B", 4, 512, gpu="H100")
    router, dispatch = kernel(work, "bytes", "router"), kernel(work, "bytes", "dispatch")
    assert router == 24 * 2 * 2048 * 60
    assert dispatch == 24 * 2 * 2048 * 2 * 4 * (4 + 1)
    at_peak_ms = (router + dispatch) / 3350e9 * 1e3
    assert at_peak_ms / 0.9 == pytest.approx(0.0033, abs=5e-5)
    assert at_peak_ms / 0.6 == pytest.approx(0.0049, abs=5e-5)


def test_a_tied_head_is_read():
    work = decode_work("Llama-3.2-1B", 1, 0, gpu="H100")
    assert kernel(work, "bytes", "lm_head") == 2 * 2048 * 128256


def test_architectures_other_than_llama():
    opt = decode_work("OPT-6.7B", 2, 100, gpu="H100")
    assert kernel(opt, "bytes", "gate_up") == 32 * 2 * (4096 * 16384 + 16384)
    assert kernel(opt, "bytes", "qkv") == 32 * 2 * (3 * 4096 * 4096 + 3 * 4096)
    assert kernel(opt, "bytes", "embedding") == 2 * 2 * 2 * 4096
    assert kernel(opt, "bytes", "norms") == 65 * 2 * 2 * 4096
    assert kernel(opt, "launches", "rope") == 0
    gptj = decode_work("GPT-J-6B", 2, 100, gpu="H100")
    assert kernel(gptj, "launches", "norms") == 28 + 1
    bloom = decode_work("BLOOM-7B1", 2, 100, gpu="H100")
    assert kernel(bloom, "launches", "norms") == 60 + 2
    deci = decode_work("DeciLM-7B", 2, 100, gpu="H100")
    assert kernel(deci, "kv_bytes", "attention") == 2 * 100 * 67 * 2 * 128 * 2


def test_a_sliding_window_ends_the_growth_of_the_cache_read():
    work = decode_work("Mistral-7B-v0.1", 2, [4095, 4096, 9000], gpu="H100")
    np.testing.assert_array_equal(kernel(work, "kv_bytes", "attention"), 2 * 131072 * np.array([4095, 4096, 4096]))


def test_a_window_in_some_layers_ends_the_growth_of_their_cache_read_alone():
    mistral = shapes.load("Mistral-7B-v0.1")
    model = dataclasses.replace(mistral, windowed_layers=24)
    contexts = np.array([0, 4095, 4096, 9000])
    full = dataclasses.replace(mistral, sliding_window=0)
    works = [decode_work(m, 2, contexts, gpu="H100") for m in (model, mistral, full)]
    for field in ("kv_bytes", "flops", "query_bytes", "floor_bytes"):
        mixed, windowed, whole = (kernel(work, field, "attention") for work in works)
        np.testing.assert_allclose(mixed, (24 * windowed + 8 * whole) / 32, rtol=1e-15)
    np.testing.assert_array_equal(
        kernel(works[0], "kv_bytes", "attention")[-1], 2 * 4096 * (24 * 4096 + 8 * 9000)
    )  # 4096 bytes per token and layer
    np.testing.assert_array_equal(kernel(works[0], "kv_token_bytes", "attention"), 2 * 131072)
    everywhere = decode_work(dataclasses.replace(mistral, windowed_layers=32), 2, contexts, gpu="H100")
    np.testing.assert_array_equal(
        kernel(everywhere, "kv_bytes", "attention"), kernel(works[1], "kv_bytes", "attention")
    )


def test_dense_layers_among_moe_ones():
    moe = shapes.load("Qwen1.5-MoE-A2.7B")
    model = dataclasses.replace(moe, dense_layers=4)
    work, before = (decode_work(m, 3, 100, gpu="H100") for m in (model, moe))
    for name in ("router", "dispatch", "gate_up", "down"):
        for field in ("bytes", "flops", "launches"):
            np.testing.assert_allclose(kernel(work, field, name), kernel(before, field, name) * 20 / 24, rtol=1e-15)
    assert kernel(work, "bytes", "shared_down") == 2 * 2048 * (20 * 5632 + 4 * 5632)
    assert kernel(work, "bytes", "shared_gate_up") == 2 * 2048 * (20 * (2 * 5632 + 1) + 4 * 2 * 5632)
    assert kernel(work, "launches", "shared_down") == 24
    assert kernel(work, "launches", "activation") == 20 + 24
    unshared = dataclasses.replace(model, shared_width=0, shared_gate=False)
    work = decode_work(unshared, 30_000, 100, gpu="H100")
    assert kernel(work, "launches", "shared_gate_up") == 4
    inner = 30_000 * 5632 * 2  # bytes; twice that for gate and up
    hidden = 30_000 * 2048 * 2
    assert kernel(work, "bytes", "shared_down") == 4 * (2 * 2048 * 5632 + inner + hidden)


DEEPSEEK_V2_LITE = ModelShapes(
    "DeepSeek-V2-Lite", hidden=2048, intermediate=10944, layers=27, heads=16, kv_heads=1, head_dim=192, vocab=102400,
    max_context=163840, kv_lora_rank=512, qk_rope_head_dim=64, qk_nope_head_dim=128, v_head_dim=128, experts=64,
    top_k=6, expert_width=1408, shared_width=2816, dense_layers=1,
)  # fmt: skip


def test_latent_attention_in_the_absorbed_form():
    work = decode_work(DEEPSEEK_V2_LITE, 4, 1000, gpu="H100")
    assert kernel(work, "kv_bytes", "attention") == 4 * 1000 * 27 * 576 * 2
    assert kernel(work, "bytes", "kv_write") == 4 * 27 * 576 * 2
    assert kernel(work, "flops", "attention") == 2 * 4 * 1000 * 27 * 16 * (576 + 512)
    assert kernel(work, "query_bytes", "attention") == 16 * kernel(work, "kv_bytes", "attention")
    assert kernel(work, "occupancy", "attention") == 16 / 64
    assert kernel(work, "bytes", "qkv") == 2 * 27 * (2048 * 16 * 192 + 2048 * 576 + 512 * 16 * 256)
    assert kernel(work, "bytes", "attn_out") == 2 * 27 * 16 * 128 * 2048
    assert kernel(work, "launches", "qkv") == 4 * 27
    assert kernel(work, "launches", "norms") == 3 * 27 + 1
    big = decode_work(DEEPSEEK_V2_LITE, 40_000, 0, gpu="H100")  # every activation tensor exceeds L2 but the latent's
    spilled = 27 * 2 * 40_000 * (2048 + 16 * (192 + 128 + 512 + 512 + 128))
    assert kernel(big, "bytes", "qkv") - kernel(work, "bytes", "qkv") == spilled
    assert kernel(big, "bytes", "attention") == 27 * 2 * 40_000 * 16 * (576 + 512)


def test_sinks_and_biases_of_experts():
    model = ModelShapes(
        "oss", 2880, 2880, 24, 64, 8, 64, 201088, 131072, qkv_bias=True, attn_out_bias=True, mlp_bias=True,
        experts=32, top_k=4, expert_width=2880, router_bias=True, attention_sinks=True, sliding_window=128,
        windowed_layers=12,
    )  # fmt: skip
    work = decode_work(model, 2, 1000, gpu="H100")
    assert kernel(work, "bytes", "attention") == 2 * 24 * 64
    assert kernel(work, "bytes", "router") == 2 * 24 * (2880 * 32 + 32)
    assert kernel(work, "bytes", "down") == 2 * 24 * 4 * (2880 * 2880 + 2880)
    assert kernel(work, "kv_bytes", "attention") == 2 * 12 * (1000 + 128) * 2 * 8 * 64 * 2


def test_norms_without_weights_are_launched():
    olmo = dataclasses.replace(shapes.load("Llama-2-7B"), norm_weights=False)
    work = decode_work(olmo, 2, 100, gpu="H100")
    assert kernel(work, "bytes", "norms") == 0
    assert kernel(work, "launches", "norms") == 65


def test_activations_count_only_where_a_tensor_exceeds_the_l2():
    # logits of B sequences: B * 128256 * 2 bytes; 40 MB holds 155 of them
    work = decode_work("Llama-3.1-8B", [155, 156], 10, gpu="A100-40GB")
    weights = 2 * 4096 * 128256
    np.testing.assert_array_equal(kernel(work, "bytes", "lm_head"), [weights, weights + 156 * 128256 * 2])
    # the 57,344-byte rows behind gate and up: written by one kernel, read by the next
    work = decode_work("Llama-3.1-8B", [697, 698], 10, gpu="A100-40GB")
    spill = 32 * 698 * 57344
    np.testing.assert_array_equal(kernel(work, "bytes", "activation"), [0, spill])
    np.testing.assert_array_equal(np.diff(kernel(work, "bytes", "gate_up")), spill)


def test_occupancy():
    work = decode_work("Llama-3.1-8B", [1, 64, 65, 128], 10, gpu="H100")
    np.testing.assert_array_equal(kernel(work, "occupancy", "qkv"), [1 / 64, 1, 65 / 128, 1])
    np.testing.assert_array_equal(kernel(work, "occupancy", "attention"), 4 / 64)


def test_stacked_cells_are_the_single_ones():
    cells = Cells.from_columns(
        ["Llama-3.1-8B", "Qwen1.5-MoE-A2.7B", "Llama-3.1-8B", "mine"],
        ["H100", "A100-40GB", "A100-40GB", "H100"],
        [1, 4, 16, 2],
        [512, 100.5, 0, 77],
    )
    mine = dataclasses.replace(shapes.load("Llama-3.2-1B"), name="mine")
    work = stack_work(cells, {"mine": mine}, {"H100": gpus.load("H200")}, experts="distinct")
    for row in range(4):
        model = mine if cells.model[row] == "mine" else str(cells.model[row])
        gpu = "H200" if cells.gpu[row] == "H100" else str(cells.gpu[row])
        alone = decode_work(model, cells.batch[row], cells.context[row], gpu=gpu, experts="distinct")
        for field in dataclasses.fields(Work):
            np.testing.assert_array_equal(getattr(work, field.name)[row], getattr(alone, field.name))


@pytest.mark.parametrize(
    ("batch", "context", "message"),
    [
        (-1, 10, "batch must be a finite number from 1, got -1"),
        (0, 10, "batch must be a finite number from 1, got 0"),
        (1, -3, "context must be a finite number from 0, got -3"),
        (1, np.nan, "context must be a finite number from 0, got nan"),
        (np.inf, 1, "batch must be a finite number from 1, got inf"),
        ("four", 1, "batch and context must be numbers"),
        ([1, 2], [1, 2, 3], "batch and context must be numbers of shapes that broadcast"),
    ],
)
def test_cells_without_sense_are_refused(batch, context, message):
    with pytest.raises(ValueError, match=message):
        decode_work("Llama-3.1-8B", batch, context, gpu="H100")


def test_unknown_expert_choice():
    with pytest.raises(ValueError, match="experts must be one of active, distinct, balanced, got 'all'"):
        decode_work("Llama-3.1-8B", 1, 1, gpu="H100", experts="all")


def test_prefill_by_hand():
    # Llama-2-7B, weights of the layers: 32 * (4 * 4096^2 + 3 * 4096 * 11008) = 6,476,005,376
    weights, head = 6_476_005_376, 4096 * 32000
    flops = 2 * 1000 * weights + 2 * head + 4 * 4096 * 32 * 1000 * 1001 / 2
    assert prefill_flops("Llama-2-7B", 3, 1000) == pytest.approx(3 * flops, rel=1e-14)
    assert prefill_ms("Llama-2-7B", "A100-40GB", 3, 1000, 0.5) == pytest.approx(
        3 * flops / (312e12 * 0.5) * 1e3, rel=1e-14
    )
    assert prefill_ms("Llama-2-7B", "A100-40GB", 1, 1, 0.5) == pytest.approx(
        2 * (weights + head) / 1555e9 * 1e3, rel=1e-14
    )


def test_prefill_of_experts_and_windows():
    model = shapes.load("Mixtral-8x7B-v0.1")
    weights = model.linear_weights
    streamed = prefill_ms(model, "H100", 1, [1, 2, 100], 1.0)[:2] * 3350e9 / 1e3 / 2
    dense = sum(weights.values()) - weights["gate_up"] - weights["down"]
    np.testing.assert_allclose(streamed, dense + np.array([2, 4]) * (weights["gate_up"] + weights["down"]))
    windowed = dataclasses.replace(shapes.load("Llama-2-7B"), sliding_window=2)
    # 5 tokens attend to 1 + 2 + 2 + 2 + 2 = 9 instead of 15
    lost = prefill_flops("Llama-2-7B", 1, 5) - prefill_flops(windowed, 1, 5)
    assert lost == 6 * 4 * 4096 * 32
    some = dataclasses.replace(windowed, windowed_layers=8)
    assert prefill_flops("Llama-2-7B", 1, 5) - prefill_flops(some, 1, 5) == lost / 4


def test_prefill_with_a_latent_is_in_the_plain_form():
    two, one = (prefill_flops(DEEPSEEK_V2_LITE, 1, n) for n in (2, 1))
    weights = DEEPSEEK_V2_LITE.linear_weights
    routed = weights["gate_up"] + weights["down"]
    visited = sum(weights.values()) - weights["lm_head"] + 5 * routed
    assert two - one == 2 * visited + 2 * 2 * 16 * (192 + 128) * 27


@pytest.mark.parametrize(
    ("batch", "prompt", "mfu", "message"),
    [
        (1, 10, 0.0, "mfu must be in \\(0, 1\\], got 0"),
        (1, 10, [0.5, 1.5], "mfu must be in \\(0, 1\\], got 1.5"),
        (1, 0, 0.5, "prompt must be a finite number from 1, got 0"),
        (0, 5, 0.5, "batch must be a finite number from 1, got 0"),
    ],
)
def test_prefills_without_sense(batch, prompt, mfu, message):
    with pytest.raises(ValueError, match=message):
        prefill_ms("Llama-2-7B", "H100", batch, prompt, mfu)
