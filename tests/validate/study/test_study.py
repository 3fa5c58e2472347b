"""study.toml: read, refused, hashed."""

import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from rooffloor.models.specs.shapes import ModelShapes
from rooffloor.validate.common import resources
from rooffloor.validate.common.errors import InputError
from rooffloor.validate.measurements.load import load_measurements
from rooffloor.validate.measurements.names import Names
from rooffloor.validate.study.margins import Margins
from rooffloor.validate.study.study import Roof, Study

STEPS = "model,gpu,batch,context,step_ms\nLlama-3.1-8B,H100,1,512,8.0\n"
FULL = """
name = "mine"
seed = 7
[data]
path = "steps.csv"
format = "schema"
stack = "vLLM"
mode = "graph"
[anchor]
model = "meta-llama/Llama-3.1-8B"
[classes]
"Qwen/Qwen2.5-7B" = "odd ones"
[margins]
h1_points = 3
h1_absolute = 12.5
slope_rope = 0.2
dispatch_percent = 2.0
probability = 0.9
[efficiency]
preset = "query heads"
treatment = "joint"
experts = "distinct"
[floor]
shared_by = "gpu, class"
combine = "added, H >= 0"
[gpus.B300]
bf16_dense_tflops = 2250
memory_bandwidth_gb_s = 8000
memory_gb = 288
l2_mb = 126
[models.Tiny]
config = "tiny.toml"
"""
TINY = (
    "hidden = 1024\nintermediate = 4096\nlayers = 8\nheads = 8\nkv_heads = 8\nhead_dim = 128\n"
    "vocab = 32000\nmax_context = 4096\n"
)
LEAN = 'name = "lean"\n[data]\npath = "steps.csv"\n'


@pytest.fixture
def write(tmp_path):
    """Write a study with its data and model; gives the path of study.toml."""

    def of(text, folder="study"):
        place = tmp_path / folder
        place.mkdir(exist_ok=True)
        (place / "steps.csv").write_text(STEPS)
        (place / "tiny.toml").write_text(TINY)
        (place / "study.toml").write_text(text)
        return place / "study.toml"

    return of


def test_everything_that_a_study_says_is_read(write):
    file = write(FULL)
    study = Study.load(file)
    assert (study.name, study.seed, study.anchor) == ("mine", 7, "Llama-3.1-8B")
    assert (study.data.path, study.data.format) == (file.parent / "steps.csv", "schema")
    assert (study.data.stack, study.data.mode) == ("vLLM", "graph")
    assert study.margins == Margins(3, 12.5, 0.2, 2.0, 0.9, "fixed beforehand")
    assert study.efficiency == Roof("query heads", "joint", "distinct")
    assert (study.floor.shared_by, study.floor.combine) == ("gpu, class", "added, H >= 0")
    assert study.names.gpu("b300").bandwidth == 8e12
    assert study.names.shapes("tiny").layers == 8
    assert study.class_of("Qwen2.5-7B") == "odd ones"
    assert study.class_of("Tiny") == "dense <2B"
    assert Study.load(file.parent) == study


def test_what_a_study_leaves_out_has_defaults_and_its_margins_say_so(write):
    study = Study.load(write(LEAN))
    assert study.margins == Margins(2.0, 10.0, 0.12, 1.0, 0.95, "defaults, not fixed beforehand")
    assert (study.anchor, study.efficiency) == ("Llama-3.1-8B", Roof("study", "study", "active"))
    assert (study.floor.shared_by, study.floor.combine) == ("gpu, model", "added")
    assert len(study.measurements().frame) == 1


def test_the_published_study_is_embedded_and_its_margins_are_post_hoc():
    study = Study.load("transfer-study")
    assert study.data.path == resources.path("transfer-study") / "published_figures.csv"
    assert study.data.format == "published"
    assert study.margins == Margins(label="post hoc")
    assert (study.anchor, study.efficiency.treatment) == ("Llama-3.1-8B", "study")
    assert [study.class_of(m) for m in ("Qwen2.5-7B", "Llama-3.2-1B", "Qwen1.5-MoE-A2.7B")] == [
        "dense 5-10B",
        "dense <2B",
        "moe",
    ]


def test_a_folder_of_that_name_does_not_hide_the_embedded_study(tmp_path, monkeypatch):
    (tmp_path / "transfer-study").mkdir()
    monkeypatch.chdir(tmp_path)
    assert Study.load("transfer-study").margins.label == "post hoc"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("seed = 7", "sead = 7"), "unknown key 'sead' in the study; expected name, seed, data"),
        (('path = "st', 'pfad = "x"\npath = "st'), r"unknown key 'pfad' in \[data\]; expected path, format"),
        (("h1_points", "h1_pts"), r"unknown key 'h1_pts' in \[margins\]"),
        (("[efficiency]", "[grid]"), r"\[grid\] is not read: cells are those of the data"),
        (("[efficiency]", "[roof]"), "unknown key 'roof'"),
        (("probability = 0.9", "probability = 95"), "probability must be a number from 0.5 to 1, got 95"),
        (("h1_points = 3", "h1_points = '3'"), r"\[margins\] h1_points must be a number"),
        (("h1_points = 3", "h1_points = nan"), "h1_points must be a number"),
        (("query heads", "magic"), "preset 'magic' is unknown; expected one of study, query heads"),
        (('"joint"', '"guess"'), "treatment 'guess' is unknown; expected one of study, cut, joint"),
        (('"distinct"', '"all"'), "experts 'all' is unknown"),
        (('shared_by = "gpu, class"', 'shared_by = "rack"'), r"\[floor\] floor shared_by 'rack' is unknown"),
        (
            ('format = "schema"', 'format = "xls"'),
            r"\[data\] format 'xls' is unknown; expected one of schema",
        ),
        (("meta-llama/Llama-3.1-8B", "Llama-9"), "unknown model 'Llama-9'; known: "),
        (("Qwen/Qwen2.5-7B", "Qwen-9"), "unknown model 'Qwen-9'"),
        (('"odd ones"', "5"), "class of 'Qwen/Qwen2.5-7B' must be a name, got 5"),
        (("seed = 7", "seed = -1"), "seed must be a whole number"),
        (('name = "mine"', 'name = "../mine"'), "name must be letters"),
        (('name = "mine"', ""), "name is missing"),
        (('path = "steps.csv"', ""), r"\[data\] path must name a file"),
        (("steps.csv", "none.csv"), "none.csv: cannot be read"),
        (("tiny.toml", "none.toml"), "none.toml: cannot be read"),
        (("l2_mb = 126", ""), "GPU 'B300': missing key 'l2_mb'"),
        (("config =", "konfig ="), r"\[models.Tiny\] needs config"),
        (("seed = 7", "seed ="), "expected a TOML file"),
    ],
)
def test_a_study_that_makes_no_sense_is_refused_in_one_line(write, change, message):
    assert change[0] in FULL
    with pytest.raises(InputError, match=message) as error:
        Study.load(write(FULL.replace(*change)))
    assert "\n" not in str(error.value)
    assert "study" in str(error.value)


def test_a_section_must_be_a_table(write):
    with pytest.raises(InputError, match=r"study.toml: \[anchor\] must be a table, got 'Llama-3.1-8B'"):
        Study.load(write('anchor = "Llama-3.1-8B"\n' + LEAN))


def test_a_study_that_is_not_there(tmp_path):
    with pytest.raises(InputError, match="no-such-study: no study of that name and no such file"):
        Study.load("no-such-study")
    with pytest.raises(InputError, match=r"study\.toml: cannot be read"):
        Study.load(tmp_path)


def test_a_study_of_one_file(tmp_path):
    file = tmp_path / "my steps.csv"
    file.write_text(STEPS)
    study = Study.from_data(file, anchor="Qwen/Qwen2.5-7B", stack="vLLM")
    assert study.name == "my-steps-vLLM"
    assert study.anchor == "Qwen2.5-7B"
    assert study.margins == Margins()
    assert study.margins.label == "defaults, not fixed beforehand"
    with pytest.raises(InputError, match="unknown model 'Llama-9'"):
        Study.from_data(file, anchor="Llama-9")
    with pytest.raises(InputError, match=r"nowhere\.csv: cannot be read"):
        Study.from_data(tmp_path / "nowhere.csv")


def test_a_study_of_data_at_hand():
    rows = pd.DataFrame([("Llama-3.1-8B", "H100", 1, 512, 8.0)], columns=STEPS.splitlines()[0].split(","))
    study, other = Study(rows), Study(rows.assign(step_ms=8.1))
    assert (study.name, study.data.path.name, study.data.files) == ("data", "data frame", ())
    assert study.measurements() is study.measurements()
    assert study.measurements().frame["step_ms"].tolist() == [8.0]
    assert study == Study(rows)
    assert study != other
    assert study.hash != other.hash
    tiny = ModelShapes.from_table("Tiny", tomllib.loads(TINY))
    cells = load_measurements(rows.assign(model="Tiny"), names=Names(models={"Tiny": tiny}))
    brought = Study(cells, anchor="tiny", margins=Margins(h1_points=3), name="mine")
    assert brought.measurements() is cells
    assert (brought.name, brought.anchor, brought.class_of("Tiny"), brought.data.stack) == (
        "mine",
        "Tiny",
        "dense <2B",
        None,
    )
    assert len({study.hash, Study(rows, seed=2).hash, brought.hash}) == 3


def test_a_study_of_a_path_is_called_as_the_file(tmp_path):
    file = tmp_path / "cells.csv"
    file.write_text(STEPS)
    assert Study(str(file)).name == Study(load_measurements(file)).name == "cells"
    assert len(Study(file).measurements().frame) == 1
    with pytest.raises(InputError, match="nowhere"):
        Study(tmp_path / "nowhere.csv")
    with pytest.raises(ValueError, match="unknown model 'Llama-9'"):
        Study(file, anchor="Llama-9")


def test_the_hash_does_not_depend_on_where_the_study_lies(write):
    assert Study.load(write(FULL, "here")).hash == Study.load(write(FULL, "there")).hash


@pytest.mark.parametrize(
    "change",
    [
        ("seed = 7", "seed = 8"),
        ("h1_points = 3", "h1_points = 4"),
        ('"vLLM"', '"TGI"'),
        ('"joint"', '"cut"'),
        ('"gpu, class"', '"gpu, model"'),
        ("memory_gb = 288", "memory_gb = 289"),
        ("odd ones", "others"),
    ],
)
def test_the_hash_covers_what_the_study_says(write, change):
    before = Study.load(write(FULL)).hash
    assert Study.load(write(FULL.replace(*change))).hash != before


def test_the_hash_covers_data_models_and_the_code_version(write, monkeypatch):
    file = write(FULL)
    hashes = [Study.load(file).hash]
    (file.parent / "steps.csv").write_text(STEPS.replace("8.0", "8.1"))
    hashes.append(Study.load(file).hash)
    (file.parent / "tiny.toml").write_text(TINY.replace("layers = 8", "layers = 9"))
    hashes.append(Study.load(file).hash)
    monkeypatch.setattr("rooffloor.validate.study.study.__version__", "99")
    hashes.append(Study.load(file).hash)
    assert len(set(hashes)) == 4


def test_the_hash_of_an_argonne_study_covers_its_ttft_table(tmp_path):
    file = tmp_path / "All_results.csv"
    file.write_text("any\n1\n")
    study = Study.from_data(file, format="argonne")
    before = study.hash
    (tmp_path / "Fig_21_all_results_TTFT.csv").write_text("other\n1\n")
    assert study.hash != before
    assert [path.name for path in study.data.files] == ["All_results.csv", "Fig_21_all_results_TTFT.csv"]


def test_a_study_is_frozen_and_can_be_varied(write):
    study = Study.load(write(FULL))
    with pytest.raises(AttributeError):
        study.seed = 3
    assert replace(study, seed=3).hash != study.hash


def test_reading_a_study_loads_no_heavy_package():
    code = (
        "import sys; from rooffloor.validate.study.study import Study; Study.load('transfer-study').hash\n"
        "heavy = {'pandas', 'pandera', 'xarray', 'arviz', 'pymc', 'matplotlib'} & set(sys.modules)\n"
        "sys.exit(f'{sorted(heavy)}' if heavy else 0)"
    )
    root = Path(__file__).resolve().parents[3]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
