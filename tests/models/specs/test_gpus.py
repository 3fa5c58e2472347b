"""GPU data sheets and names."""

import csv
import os
from pathlib import Path

import pytest

from rooffloor.models.specs import gpus
from rooffloor.models.specs.gpus import GpuSpec
from rooffloor.models.specs.inputs import read_toml
from rooffloor.models.specs.shapes import ModelShapes


def test_catalog_agrees_with_the_reference_table(shared: Path):
    with (shared / "reference" / "gpus.csv").open() as file:
        rows = {row["gpu"]: row for row in csv.DictReader(file)}
    assert set(gpus.names()) == set(rows)
    for name, row in rows.items():
        spec = gpus.load(name)
        assert spec.peak_flops == float(row["bf16_dense_tflops"]) * 1e12
        assert spec.bandwidth == float(row["memory_bandwidth_gb_s"]) * 1e9
        assert spec.memory_bytes == float(row["memory_gb"]) * 1e9
        assert spec.l2_bytes == float(row["l2_mb"]) * 1e6
        assert spec.note == row["note"]


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA A100-SXM4-40GB", "A100-40GB"),
        ("nvidia a100-pcie-40gb", "A100-40GB"),
        ("NVIDIA A100-SXM4-80GB", "A100-80GB"),
        ("NVIDIA GH200 480GB", "GH200"),
        ("NVIDIA H200", "H200"),
        (" NVIDIA L40S", "L40S"),
        ("h200", "H200"),
    ],
)
def test_aliases(alias, name):
    assert gpus.load(alias).name == name


@pytest.mark.parametrize(
    ("name", "candidates"),
    [
        ("A100", ["A100-40GB", "A100-80GB"]),
        ("nvidia a100", ["A100-40GB", "A100-80GB"]),
        ("H100 PCIe", ["H100"]),
        ("NVIDIA A100 80GB PCIe", ["A100-80GB"]),
        ("GH200 144GB", ["GH200"]),
    ],
)
def test_names_of_several_parts_are_refused_with_the_candidates(name, candidates):
    with pytest.raises(ValueError, match="does not say which part") as error:
        gpus.load(name)
    assert all(candidate in str(error.value) for candidate in candidates)


@pytest.mark.parametrize("name", ["H10", "A100-40", "", "Tesla"])
def test_unknown_names_list_the_known_ones(name):
    with pytest.raises(ValueError, match=r"unknown GPU .*H100, H200, A100-40GB"):
        gpus.load(name)


def test_no_alias_names_two_parts():
    table = read_toml(Path(gpus.__file__).parent / "catalog" / "gpus.toml")
    every = [a.casefold() for name, entry in table["gpus"].items() for a in (name, *entry["aliases"])]
    every += [name.casefold() for name in table["ambiguous"]]
    assert len(every) == len(set(every))
    assert {c for found in table["ambiguous"].values() for c in found} <= set(gpus.names())


GOOD = {"bf16_dense_tflops": 100, "memory_bandwidth_gb_s": 1000, "memory_gb": 24, "l2_mb": 32}


def test_gpu_from_toml(tmp_path: Path):
    path = tmp_path / "mine.toml"
    path.write_text("\n".join(f"{key} = {value}" for key, value in GOOD.items()))
    assert GpuSpec.from_toml(path) == GpuSpec("mine", 1e14, 1e12, 24e9, 32e6)
    path.write_text("bf16_dense_tflops = = 1")
    with pytest.raises(ValueError, match=r"mine\.toml: expected a TOML file"):
        GpuSpec.from_toml(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"l2_mb": 0}, r"l2_mb must be a number from 0\.001 to 1e\+06, got 0"),
        ({"memory_gb": -1}, "memory_gb must be a number from"),
        ({"memory_bandwidth_gb_s": "fast"}, "memory_bandwidth_gb_s must be a number from .*, got 'fast'"),
        ({"bf16_dense_tflops": float("nan")}, "bf16_dense_tflops must be a number from .*, got nan"),
        ({"l2_mb": 10**400}, "l2_mb must be a number from"),
        ({"memory_gb": 1e-300}, "memory_gb must be a number from"),
        ({"note": ["x"]}, "note must be text"),
        ({"bandwith": 3}, "unknown key 'bandwith'"),
    ],
)
def test_tables_that_cannot_be_used(change, message):
    with pytest.raises(ValueError, match=message):
        GpuSpec.from_table("mine", GOOD | change)


def test_figures_of_other_units_are_refused():
    with pytest.raises(ValueError, match=r"GPU 'mine': peak_flops must be a number from 1e\+09 to 1e\+18, got 989"):
        GpuSpec("mine", 989.0, 1e12, 24e9, 32e6)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a = " + b"[" * 5000, "nested too deeply"),
        (b"a = " + b"{a=" * 5000, "nested too deeply"),
        (b"a = " + b"9" * 6000, "integer string"),
        (b"name = ['x']", "name must be text"),
        (b"\xff", "not UTF-8 text"),
        (b"#" + b"x" * 2**16, "larger than 64 KB"),
        (b"a" + b".a" * 30_000 + b" = 1", "more than 500 dots"),
    ],
    ids=["lists", "tables", "6000 digits", "name", "latin-1", "large", "dots"],
)
def test_hostile_toml_is_one_line_with_the_file(tmp_path: Path, content, message):
    path = tmp_path / "mine.toml"
    path.write_bytes(content)
    for read in (GpuSpec.from_toml, ModelShapes.from_toml):
        with pytest.raises(ValueError, match=rf"mine\.toml: .*{message}") as error:
            read(path)
        assert "\n" not in str(error.value)


def test_what_is_no_file_is_not_waited_for(tmp_path: Path):
    os.mkfifo(tmp_path / "pipe.toml")
    for path in (tmp_path / "pipe.toml", "/dev/zero"):
        with pytest.raises(ValueError, match="a pipe or a device"):
            read_toml(path)


def test_a_missing_key_is_named():
    with pytest.raises(ValueError, match="missing key 'l2_mb'"):
        GpuSpec.from_table("mine", {key: value for key, value in GOOD.items() if key != "l2_mb"})
