"""Every key of study.toml: changing it changes what is fitted or a verdict, or is refused by name."""

import tomllib
from dataclasses import fields, replace
from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest
from simulated import MOE, SMALL, simulate

from rooffloor.models.floor.structures import FloorStructure
from rooffloor.models.specs.gpus import LIMITS, GpuSpec
from rooffloor.validate.common import resources
from rooffloor.validate.common.errors import InputError
from rooffloor.validate.common.files import json_dumps
from rooffloor.validate.fitting import evidence, measured
from rooffloor.validate.fitting.imputed import CACHE, Imputed, cache_key, read_cache
from rooffloor.validate.hypotheses.test import TESTS
from rooffloor.validate.published.imputation import reconstruction
from rooffloor.validate.study.margins import Margins
from rooffloor.validate.study.study import Data, Roof, Study

ROWS = "".join(
    f"{model},{gpu},{batch},{context},{step + more},{stack},{mode}\n"
    for step, model, gpu in (
        (8.1, "Llama-3.1-8B", "B300"),
        (8.0, "Llama-3.1-8B", "H100"),
        (7.9, "Qwen2.5-7B", "B300"),
        (7.7, "Qwen2.5-7B", "H100"),
        (3.1, "Tiny", "H100"),
        (20.0, MOE, "H100"),
    )
    for batch, context in ((1, 512), (4, 2048))
    for more, stack, mode in ((0.0, "vLLM", "graph"), (1.0, "vLLM", "eager"), (2.0, "TGI", "graph"))
)
TINY = (
    "hidden = 1024\nintermediate = 4096\nlayers = {}\nheads = 8\nkv_heads = 8\nhead_dim = 128\n"
    "vocab = 32000\nmax_context = 4096\n"
)
BASE = {
    "name": "mine",
    "seed": 1,
    "data": {"path": "cells.csv", "format": "schema", "stack": "vLLM", "mode": "graph"},
    "anchor": {"model": "Llama-3.1-8B"},
    "classes": {"Tiny": "tiny ones"},
    "margins": {"label": "post hoc"},
    "efficiency": {"preset": "study", "treatment": "study", "experts": "active"},
    "floor": {"shared_by": "gpu, model", "combine": "added"},
    "gpus": {"B300": {"bf16_dense_tflops": 2250, "memory_bandwidth_gb_s": 8000, "memory_gb": 288, "l2_mb": 126}},
    "models": {"Tiny": {"config": "tiny.toml"}},
}
OTHER = {
    "name": ["theirs"],
    "seed": [2],
    "data.path": ["others.csv"],
    "data.format": ["argonne", "llama-bench", "optimum-benchmark", "published"],
    "data.stack": ["TGI"],
    "data.mode": ["eager"],
    "anchor.model": ["Qwen2.5-7B"],
    "classes.Tiny": ["dense 5-10B"],
    "margins.h1_points": [0.01],
    "margins.h1_absolute": [0.01],
    "margins.slope_rope": [0.001],
    "margins.dispatch_percent": [50.0],
    "margins.probability": [0.5],
    "margins.label": ["fixed beforehand"],
    "efficiency.preset": ["query heads", "per gpu", "latency"],
    "efficiency.treatment": ["joint"],
    "efficiency.experts": ["distinct", "balanced"],
    "efficiency.priors": ["wide"],
    "floor.shared_by": ["gpu, class", "gpu", "none", "gpu, launches", "gpu, kernel latency"],
    "floor.combine": ["added, H >= 0", "overlapped", "max"],
    "floor.combine_of": [[["tiny ones", "added"]]],
    "floor.terms": [[], ["sequence layer"], ["sequence", "sequence layer"]],
    "gpus.B300.bf16_dense_tflops": [1.0],
    "gpus.B300.memory_bandwidth_gb_s": [9000],
    "gpus.B300.memory_gb": [1.0],
    "gpus.B300.l2_mb": [0.001],
    "gpus.B300.die": ["GB100"],
    "gpus.B300.aliases": [["B300 SXM"]],
    "gpus.B300.name": ["GB300"],
    "models.Tiny.config": ["tinier.toml"],
}
"""Other values of every key."""
REMARKS = ("gpus.B300.note", "gpus.B300.source")
"""Where a figure comes from: said for people, computed with nowhere."""
REFUSED = "is not fitted|is not read"


def keys():
    """Every key that study.toml may have, from the dataclasses behind its sections."""
    sections = {"data": Data, "margins": Margins, "efficiency": Roof, "floor": FloorStructure}
    found = ["name", "seed", "anchor.model", "classes.Tiny", "models.Tiny.config", "gpus.B300.aliases"]
    found += [
        f"{name}.{f.name}" for name, cls in sections.items() for f in fields(cls) if f.name not in ("content", "digest")
    ]
    texts = [f.name for f in fields(GpuSpec) if f.type is str]
    return [*found, *(f"gpus.B300.{key}" for key in (*LIMITS, *texts))]


def test_every_key_is_walked():
    assert set(OTHER) | set(REMARKS) == set(keys())
    assert {f.name for f in fields(Study)} == set(BASE), "a section that the walk has not"


class Stop(Exception):
    """All that a fit is handed has been seen."""


@pytest.fixture
def outcome(tmp_path, monkeypatch):
    """What becomes of a study with one key changed: the name of its reports, what its fit is handed, and verdicts."""
    for name, text in (
        ("cells.csv", ROWS),
        ("others.csv", ROWS.replace("8.1", "8.2")),
    ):
        (tmp_path / name).write_text("model,gpu,batch,context,step_ms,stack,mode\n" + text)
    for name, layers in (("tiny.toml", 8), ("tinier.toml", 4)):
        (tmp_path / name).write_text(TINY.format(layers))
    seen = []

    def built(*args, **options):
        seen.append(("build", args, options))

    def cut(*args, **options):
        seen.append(("cut", args, options))
        return SimpleNamespace(upstream=None)

    def fit(model, **options):
        seen.append(("fit", options))
        raise Stop

    monkeypatch.setattr(measured, "StepModel", built)
    monkeypatch.setattr(measured, "cut_models", cut)
    monkeypatch.setattr(measured, "compile_model", lambda model: model)
    monkeypatch.setattr(measured, "fit_gated", fit)
    monkeypatch.setattr(measured, "_class_floors", lambda *_: {})
    monkeypatch.setattr(measured, "fit_row", lambda *_: {})

    def of(key=None, value=None):
        table = {k: {**v} if isinstance(v, dict) else v for k, v in BASE.items()}
        table["gpus"] = {"B300": {**BASE["gpus"]["B300"]}}
        table["models"] = {"Tiny": {**BASE["models"]["Tiny"]}}
        if key:
            *parents, last = key.split(".")
            place = table
            for parent in parents:
                place = place[parent]
            place[last] = value
        (tmp_path / "study.toml").write_text(toml(table))
        study = Study.load(tmp_path / "study.toml")
        seen.clear()
        with pytest.raises(Stop):
            evidence.fit(study, primary_only=True)
        return json_dumps([study.name, seen, verdicts(study.margins)])

    return of


def toml(table, head=""):
    """A table as TOML: plain values first, then its tables."""
    lines = [f'"{k}" = {json_dumps(v).strip()}' for k, v in table.items() if not isinstance(v, dict)]
    for name, value in table.items():
        if isinstance(value, dict):
            place = f'{head}"{name}"'
            lines += [f"[{place}]", toml(value, f"{place}.")]
    return "\n".join(lines)


DRAWS = simulate(
    models=("Llama-3.1-8B", "Qwen2.5-7B", SMALL, MOE), floors={SMALL: 6.0, MOE: 20.0}, noise=0.05, draws=40
)


@cache
def verdicts(margins):
    """Verdicts on canned draws with all that is said beside them."""
    return [[test(DRAWS, margins).data, test(DRAWS, margins).text] for test in TESTS.values()]


@pytest.mark.parametrize(("key", "value"), [(key, value) for key, values in OTHER.items() for value in values])
def test_no_key_is_accepted_and_ignored(outcome, key, value):
    before = outcome()
    try:
        after = outcome(key, value)
    except InputError as error:
        text = str(error)
        assert "\n" not in text
        assert key.startswith("data.format") or key.rsplit(".", 1)[-1] in text or f"[{key.split('.')[0]}]" in text
        return
    assert after != before


# ---- a published study: grids that were imputed beforehand

IMPUTED_REFUSES = (
    ("efficiency.preset", "query heads"),
    ("efficiency.treatment", "joint"),
    ("efficiency.priors", "wide"),
    ("floor.shared_by", "gpu, class"),
    ("floor.combine", "added, H >= 0"),
    ("floor.terms", ["sequence"]),
    ("gpus.B300", BASE["gpus"]["B300"]),
    ("models.Tiny", {"config": "tiny.toml"}),
)


@pytest.fixture
def published(tmp_path):
    """The published study with one key changed."""
    folder = resources.path("transfer-study")
    (tmp_path / "tiny.toml").write_text(TINY.format(8))

    def of(key=None, value=None):
        table = tomllib.loads((folder / "study.toml").read_text())
        table["data"]["path"] = str(folder / table["data"]["path"])
        if key:
            section, last = key.split(".", 1)
            table.setdefault(section, {})[last] = value
        (tmp_path / "study.toml").write_text(toml(table))
        return Study.load(tmp_path / "study.toml")

    return of


@pytest.mark.parametrize(("key", "value"), IMPUTED_REFUSES)
def test_what_imputed_grids_have_no_place_for_is_refused(published, key, value):
    with pytest.raises(
        InputError, match="is not fitted: the imputed grids of a published study were made with"
    ) as error:
        published(key, value)
    assert f"[{key.split('.')[0]}]" in str(error.value)
    assert "\n" not in str(error.value)


def test_what_is_said_of_a_published_study_changes_its_draws(published):
    study = published()
    grids = Imputed.of(study, reconstruction.load(study.data.path.parent).cells)
    stored = read_cache(study.data.path.parent / CACHE, cache_key(study.data.path.parent, grids.classes))

    def draws(key=None, value=None):
        return replace(grids, study=published(key, value)).draws(stored, np.arange(2))

    usual = draws()
    assert not np.array_equal(draws("anchor.model", "Qwen2.5-7B").anchor_floor_ms, usual.anchor_floor_ms)
    assert not np.array_equal(draws("efficiency.experts", "distinct").dispatch_ms, usual.dispatch_ms)
    other = replace(grids, study=published("classes.Qwen2.5-7B", "odd ones"))
    assert cache_key(study.data.path.parent, other.classes) != cache_key(study.data.path.parent, grids.classes)
    with pytest.raises(InputError, match=r"the anchor 'Mistral-7B-v0.3' has no usable cells"):
        evidence.fit(published("anchor.model", "Mistral-7B-v0.3"))
