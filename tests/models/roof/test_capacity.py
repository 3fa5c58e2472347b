"""What fits into memory."""

import dataclasses

import numpy as np
import pytest

from rooffloor.models.roof.capacity import fits, memory_bytes
from rooffloor.models.specs import shapes


def test_bytes_by_hand():
    weights = 2 * 14_315_784_192
    np.testing.assert_array_equal(
        memory_bytes("Qwen1.5-MoE-A2.7B", [1, 8], [0, 8192]), [weights, weights + 8 * 8192 * 196608]
    )


def test_the_moe_cells_that_do_not_fit_a100_40gb():
    # 28.6 GB of weights; one sequence of 8192 tokens adds 1.61 GB; the limit is 38 GB
    batches = [1, 2, 4, 5, 6, 8, 16]
    fitting = [True, True, True, True, False, False, False]
    assert fits("Qwen1.5-MoE-A2.7B", "A100-40GB", batches, 8192).tolist() == fitting
    assert fits("Qwen1.5-MoE-A2.7B", "H100", batches, 8192).all()


def test_layers_with_a_window_keep_the_whole_context():
    mistral = shapes.load("Mistral-7B-v0.1")
    some = dataclasses.replace(mistral, windowed_layers=16)
    assert memory_bytes(some, 2, 20_000) == memory_bytes(mistral, 2, 20_000) == 2 * 7_241_732_096 + 40_000 * 131072


def test_a_latent_is_cached_once():
    model = shapes.ModelShapes(
        "latent", 64, 160, 3, 4, 1, 24, 1000, 2048,
        kv_lora_rank=20, qk_rope_head_dim=8, qk_nope_head_dim=16, v_head_dim=12,
    )  # fmt: skip
    assert memory_bytes(model, 2, 10) - memory_bytes(model, 2, 0) == 20 * 3 * 28 * 2


def test_the_limit_is_95_percent_of_the_nominal_memory():
    # Llama-3.1-8B on 40 GB: (38e9 - 16,060,522,496) / 131072 = 167,384.2 tokens
    assert fits("Llama-3.1-8B", "A100-40GB", 1, [167_384, 167_385]).tolist() == [True, False]


def test_one_cell_gives_one_answer():
    assert bool(fits("Llama-2-70B", "H100", 1, 0)) is False


@pytest.mark.parametrize(("batch", "context"), [(0, 1), (1, -1), (np.nan, 1)])
def test_bad_cells_are_refused(batch, context):
    with pytest.raises(ValueError, match="must be a finite number"):
        fits("Llama-2-7B", "H100", batch, context)
