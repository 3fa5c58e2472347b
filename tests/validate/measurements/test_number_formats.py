"""Rows and models in number formats other than 16-bit: which are used, and what is said of them."""

import json
from pathlib import Path

import pandas as pd
import pytest

from rooffloor.models.specs.formats import ALL_SIXTEEN_BIT, FORMATS
from rooffloor.models.specs.shapes import load
from rooffloor.validate.cli import main
from rooffloor.validate.common.errors import InputError
from rooffloor.validate.measurements import convert, schema
from rooffloor.validate.measurements.given_specs import in_format, load_models
from rooffloor.validate.measurements.importers.source import Given
from rooffloor.validate.measurements.load import load_measurements
from rooffloor.validate.measurements.names import Names
from rooffloor.validate.measurements.one_model import OwnRows
from rooffloor.validate.transfer.check import check
from rooffloor.validate.transfer.domain import number_format
from rooffloor.validate.transfer.families import check_families

FILES = Path(__file__).parents[2] / "fixtures" / "importers"
LLAMA = "Llama-3.1-8B"
CONFIG = {
    "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 131072,
    "tie_word_embeddings": False, "quantization_config": {"quant_method": "fp8"},
}  # fmt: skip


def fp8_config(folder: Path) -> Path:
    file = folder / "llama-fp8" / "config.json"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps(CONFIG))
    return file


@pytest.mark.parametrize(
    ("dtype", "kv_dtype", "text", "said"),
    [
        (None, None, "", ""),
        ("fp8", None, "fp8, as given", "weights stored as fp8, as given: 9.1 GB, calibrated on 16-bit"),
        (None, "fp8", "16-bit; cache fp8, as given", "weights stored as 16-bit; cache fp8, as given: 16.1 GB"),
        ("int4", "fp8", "int4, as given; cache fp8, as given", "weights stored as int4, as given; cache fp8"),
        ("bf16", None, "16-bit, as given", "number format: weights 16-bit, as given"),
    ],
)
def test_formats_that_are_given(dtype, kv_dtype, text, said):
    plain = load(LLAMA)
    model = in_format(plain, dtype, kv_dtype)
    assert model.number_format == text
    assert said in number_format(model)
    assert model.kv_bytes_per_token == plain.kv_bytes_per_token / (2 if kv_dtype else 1)
    assert (model.weight_bytes < plain.weight_bytes) is (dtype in ("fp8", "int4"))


def test_what_is_given_goes_before_what_the_config_says(tmp_path):
    (stored,), _ = load_models(fp8_config(tmp_path))
    model = in_format(stored, "bf16")
    assert model.formats == ALL_SIXTEEN_BIT
    assert number_format(model) == "number format: weights 16-bit, as given (its config says fp8)"
    assert in_format(stored, None, "fp8").formats.weights == stored.formats.weights
    with pytest.raises(InputError, match="unknown number format 'q5'; known: 16-bit"):
        in_format(stored, "q5")


# --- rows of a file in the schema


def rows(*dtypes: str) -> pd.DataFrame:
    cells = [(LLAMA, "H100", 1, 512 * (n + 1), 9.0 + 0.1 * n, dtype) for n, dtype in enumerate(dtypes)]
    return pd.DataFrame(cells, columns=["model", "gpu", "batch", "context", "step_ms", "dtype"])


TOLD = ("bf16", "", "auto", "fp8", "w4a16", "Q4_K")


@pytest.mark.parametrize(
    ("dtype", "stored", "used"),
    [
        (None, False, ["bf16", "", "auto"]),
        ("fp8", False, ["bf16"]),  # the others are in the model's own format, fp8
        ("fp8", True, ["", "auto", "fp8"]),
        ("int4", True, ["", "auto", "w4a16"]),
        (None, True, ["bf16", "", "auto"]),
    ],
)
def test_rows_in_the_format_that_is_wanted(dtype, stored, used):
    names = Names({LLAMA: in_format(load(LLAMA), dtype)}, stored=stored)
    found = load_measurements(rows(*TOLD), names=names)
    assert found.frame["dtype"].tolist() == used
    reasons = set(found.excluded["reason"])
    assert reasons == {f"dtype is not {FORMATS[dtype].family if stored and dtype else '16-bit'}"}
    if not stored and dtype:
        assert "fp8 by the model's config" in found.excluded["detail"].tolist()


def test_rows_of_a_cache_in_the_format_that_is_wanted():
    frame = rows("", "", "").assign(kv_dtype=["", "fp8_e4m3", "bf16"])
    model = in_format(load(LLAMA), None, "fp8")
    found = load_measurements(frame, names=Names({LLAMA: model}, stored=True))
    assert found.frame["kv_dtype"].tolist() == ["", "fp8_e4m3"]
    assert load_measurements(frame).frame["kv_dtype"].tolist() == ["", "bf16"]


def test_a_check_takes_the_rows_in_the_format_of_the_family(tmp_path):
    model = in_format(load(LLAMA), "fp8")
    found, own = OwnRows(model, None, None, None, "schema", None, None).read(rows(*TOLD))
    assert (own.number_format, found.frame["dtype"].tolist()) == ("fp8, as given", ["", "auto", "fp8"])
    result = check(model, rows("fp8", "fp8", "bf16"))
    assert "number format: weights stored as fp8, as given: 9.1 GB, calibrated on 16-bit" in result.data["outside"]
    assert [cell["context"] for cell in result.data["cells"]] == [512, 1024]
    assert result.data["measurements"]["excluded"][0]["reason"] == "dtype is not fp8"
    assert "formats" not in result.data["shapes"]
    plain = load_measurements(rows("bf16", "bf16"))
    with pytest.raises(InputError, match=r"no row can be used \(2 rows: dtype is not fp8\)"):
        check(model, plain)


def test_a_check_of_many_families_takes_rows_in_the_formats_of_their_configs(tmp_path):
    fp8_config(tmp_path)
    frame = rows("fp8", "", "bf16").assign(model="llama-fp8")
    found = check_families(frame, configs=tmp_path)
    (one,) = found.checks
    assert [cell["context"] for cell in one.data["cells"]] == [512, 1024]
    assert any("weights stored as fp8: 9.1 GB" in reason for reason in one.data["outside"])


# --- rows of other tools


def imported(config: Path, dtype: str | None = None) -> convert.Imported:
    given, names = convert.known("vllm-serve", Given(model=LLAMA, gpu="H100", dtype=dtype), config)
    return convert.run(FILES / "vllm-serve.json", "vllm-serve", given, names)


def test_an_importer_looks_at_the_config(tmp_path):
    config = fp8_config(tmp_path)
    with pytest.raises(InputError, match=r"no row can be used \(1 rows: dtype is not 16-bit"):
        imported(config)
    assert len(imported(config, "bf16").measurements.frame) == 1
    plain = tmp_path / "plain" / "config.json"
    plain.parent.mkdir()
    plain.write_text(json.dumps({k: v for k, v in CONFIG.items() if k != "quantization_config"}))
    assert len(imported(plain).measurements.frame) == 1


def test_16_bit_in_a_tools_file_is_what_it_multiplies_in():
    """vLLM writes bfloat16 as the dtype of an fp8 checkpoint too."""
    frame = rows("bfloat16", "", "fp8")
    for stored, kept in ((False, []), (True, ["bfloat16", "", "fp8"])):
        names = Names({LLAMA: in_format(load(LLAMA), "fp8")}, stored=stored)
        found, excluded = schema.only_modelled(frame, names, config_first=True)
        assert found["dtype"].tolist() == kept
        assert set(excluded["reason"]) == ({"dtype is not 16-bit"} if not stored else set())
    found, _ = schema.only_modelled(frame, Names(), config_first=True)
    assert found["dtype"].tolist() == ["bfloat16", ""]


# --- the command line


def test_predict_takes_formats_and_says_so(tmp_path, capsys):
    file = str(fp8_config(tmp_path))
    command = ["predict", "--config", file, "--gpu", "H100", "--batch", "1", "--context", "512"]
    steps = {}
    for options, said in (
        ((), "weights stored as fp8: 9.1 GB, calibrated on 16-bit"),
        (("--dtype", "bf16"), "weights 16-bit, as given (its config says fp8)"),
        (("--dtype", "int4", "--kv-dtype", "fp8"), "weights stored as int4, as given (its config says fp8); cache fp8"),
    ):
        assert main.main([*command, *options]) == 0
        assert said in capsys.readouterr().out
        assert main.main([*command, *options, "--json"]) == 0
        steps[options] = json.loads(capsys.readouterr().out)["rows"][0]["gpu_ms"]["value"]
    assert steps[("--dtype", "bf16")] > steps[()] > steps[("--dtype", "int4", "--kv-dtype", "fp8")]
    assert main.main([*command, "--dtype", "q5"]) == 2
    assert "unknown number format 'q5'" in capsys.readouterr().err


def test_a_refusal_names_the_format(tmp_path, capsys):
    config = CONFIG | {"num_hidden_layers": 320}
    file = tmp_path / "config.json"
    file.write_text(json.dumps(config))
    assert main.main(["predict", "--config", str(file), "--gpu", "A100-40GB", "--batch", "1", "--context", "512"]) == 0
    out = capsys.readouterr().out
    assert "not predicted, does not fit" in out
    assert "; weights stored as fp8: 71.9 GB" in out


def test_plan_takes_formats(tmp_path, capsys):
    assert main.main(["plan", "--config", LLAMA, "--gpu", "H100", "--budget", "1", "--dtype", "fp8"]) == 0
    assert "weights stored as fp8, as given" in capsys.readouterr().out


def test_formats_of_many_families_are_those_of_their_configs(capsys, tmp_path):
    file = tmp_path / "cells.csv"
    rows("").to_csv(file, index=False)
    assert main.main(["check", "--measurements", str(file), "--dtype", "fp8"]) == 2
    assert "and so are --dtype and --kv-dtype" in capsys.readouterr().err
