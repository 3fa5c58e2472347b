"""Constants far from their priors are an alarm that names the missing term; the domain knows caches and heads."""

from dataclasses import replace

import numpy as np
import pytest
from toy_calibration import toy

from rooffloor.models.calibration import store
from rooffloor.models.calibration.draws import Calibration, Domain
from rooffloor.models.inference.priors import DEFAULT_PRIORS
from rooffloor.models.specs import shapes as catalog
from rooffloor.validate.estimates.cell_draws import IMPUTED
from rooffloor.validate.transfer import domain
from rooffloor.validate.transfer.conflicts import conflicts


def with_constant(name: str, value: float, on: int | None = None) -> Calibration:
    """The toy with a constant of this value, on all GPUs or on one of them."""
    made = toy()
    usual = dict(zip(("eta_bw", "eta_fa", "l_half"), (0.8, 0.72, 200.0), strict=True))
    constants = {n: np.full((len(made.weight), 3), v) for n, v in usual.items()}
    constants[name][:, slice(None) if on is None else on] = value
    return replace(made, constants=constants)


def test_constants_that_priors_allow_are_no_alarm():
    assert conflicts(with_constant("l_half", 600.0)) == []
    assert conflicts(with_constant("eta_bw", 0.65)) == []


@pytest.mark.parametrize(
    ("name", "value", "missing"),
    [
        ("l_half", 3270.0, "a floor that grows with the batch"),
        ("eta_bw", 0.5, "a floor that grows with layers or kernel launches"),
        ("eta_fa", 0.2, "attention bound by its query heads"),
        ("eta_bw", 0.985, "an overlap of floor and GPU"),
    ],
)
def test_a_constant_far_out_names_the_missing_term(name: str, value: float, missing: str):
    (found,) = conflicts(with_constant(name, value))
    assert (found.name, found.gpu) == (name, "")
    assert found.tail < 0.01
    assert missing in found.sentence
    assert f"{value:.3g}" in found.sentence


def test_one_gpu_is_named_and_the_least_probable_comes_first():
    made = with_constant("l_half", 3270.0)
    made.constants["eta_bw"][:, 1] = 0.3
    found = conflicts(made)
    assert [(one.name, one.gpu) for one in found] == [("eta_bw", "H200"), ("l_half", "")]


def test_with_a_floor_per_sequence_something_beyond_it_is_missing():
    made = with_constant("l_half", 3270.0)
    made = replace(made, terms={"sequence_ms": np.full((len(made.weight), 3), 0.05)})
    assert "beyond the floor per sequence that it has" in conflicts(made)[0].sentence


def test_wider_priors_allow_more_and_imputed_cells_raise_no_alarm():
    made = with_constant("l_half", 3270.0)
    assert conflicts(replace(made, priors=replace(DEFAULT_PRIORS, l_half=(200.0, 2.0)))) == []
    assert conflicts(replace(made, label=IMPUTED)) == []


def test_caches_and_heads_far_from_the_calibrated_lie_outside():
    llama3, mha, qwen = (catalog.load(name) for name in ("Llama-3.1-8B", "Llama-2-7B", "Qwen2.5-7B"))
    seen = Domain.of([1.0, 16.0], [512.0, 8192.0], [llama3])
    assert seen.kv_bytes == (131072.0, 131072.0)
    assert seen.heads_per_kv == (4.0, 4.0)
    alone = toy()
    for name in alone.models[1:]:
        alone = alone.without(name)
    alone = replace(alone, domain=seen)
    reasons = " ".join(domain.model_reasons(alone, mha))
    assert "KV cache: 524 KB per token, calibrated 131" in reasons
    assert "query heads: 1 per KV head, calibrated 4" in reasons
    assert "query heads" not in " ".join(domain.model_reasons(alone, qwen))
    assert not [r for r in domain.model_reasons(alone, llama3) if "KV" in r or "heads" in r]


def test_ranges_survive_a_file_and_files_without_them_ask_the_catalog(tmp_path):
    made = replace(toy(), domain=Domain.of([1.0], [512.0], [catalog.load("Llama-3.1-8B")]))
    (tmp_path / "a.npz").write_bytes(store.to_npz(made))
    assert store.load(tmp_path / "a.npz").domain == made.domain
    (tmp_path / "b.npz").write_bytes(store.to_npz(toy()))
    old = store.load(tmp_path / "b.npz")
    assert old.domain.kv_bytes is None
    wide = replace(catalog.load("Llama-2-7B"), heads=64, kv_heads=64)  # 1 MB per token, the widest known has 196 KB
    assert any(reason.startswith("KV cache") for reason in domain.model_reasons(old, wide))
