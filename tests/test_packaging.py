"""What a user gets: the wheel and the checkout in clean environments, and `make` in a fresh checkout."""

import ast
import importlib.metadata
import json
import os
import re
import shutil
import sys
import tarfile
import tomllib
import zipfile
from itertools import chain
from pathlib import Path

import pytest
from commands import ROOT, run, run_well

from rooffloor import __version__

# What is built -------------------------------------------------------------------------------------

BESIDE_STRANGERS = """
import models_file_of_this_folder
import rooffloor as rf

print(rf.__file__)
print(rf.__version__)
for name in rf.__all__:
    getattr(rf, name)
print(rf.load_model("Llama-3.1-8B").name, rf.Study.load("transfer-study").anchor)
"""


@pytest.fixture(params=["archive", "editable"])
def bin_folder(request, bins) -> Path:
    return bins[request.param]


def test_the_archive_holds_every_file_once_and_makes_the_same_wheel(built):
    with tarfile.open(built["sources"]) as archive:
        members = archive.getmembers()
    names = [member.name.split("/", 1)[1] for member in members]
    assert len(names) == len(set(names))
    assert all(member.isfile() for member in members)
    assert {"LICENSE", "README.md", "CHANGELOG.md", "src/rooffloor/models/roof/roofline.py"} <= {*names}
    assert [name for name in names if name.startswith(("models/", "validate/", "data/", "site/"))] == []
    [archive, checkout] = [zipfile.ZipFile(built[kind]) for kind in ("archive", "checkout")]
    assert sorted(archive.namelist()) == sorted(checkout.namelist())
    for name in archive.namelist():
        assert name.endswith("/RECORD") or archive.read(name) == checkout.read(name), name


def test_the_wheel_holds_the_package_and_its_data_and_nothing_else(built):
    names = {*zipfile.ZipFile(built["checkout"]).namelist()}
    shipped = {name for name in names if not name.startswith("rooffloor-")}
    links = ("models", "validate", "data/transfer-study", "data/calibration")
    folders = {f"rooffloor/{name}": ROOT / "src/rooffloor" / name for name in links}
    expected = {"rooffloor/__init__.py", "rooffloor/__main__.py", "rooffloor/py.typed"}
    for inside, folder in folders.items():
        files = {f.relative_to(folder) for f in folder.rglob("*") if f.is_file() and "__pycache__" not in f.parts}
        assert len(files) > 3
        expected |= {f"{inside}/{file.as_posix()}" for file in files}
    assert shipped == expected
    assert {Path(name).suffix for name in shipped} >= {".py", ".toml", ".j2", ".json", ".csv", ".npz"}


def test_an_editable_install_links_one_package(built):
    wheel = zipfile.ZipFile(built["editable"])
    links = [name for name in wheel.namelist() if not name.startswith("rooffloor-")]
    assert [wheel.read(name).decode().split() for name in links] == [[str(ROOT / "src")]]
    assert [path.name for path in (ROOT / "src").iterdir()] == ["rooffloor"]


def test_a_script_runs_beside_foreign_packages(bins, foreign_folder):
    """Every public name loads, from the wheel and from the checkout; the script's own folder comes first."""
    (foreign_folder / "models_file_of_this_folder.py").touch()
    script = foreign_folder / "script.py"
    script.write_text(BESIDE_STRANGERS)
    for kind, home in (("archive", bins["archive"].parent), ("editable", ROOT / "src")):
        file, version, names = run_well(bins[kind] / "python", script, cwd=foreign_folder).splitlines()
        assert Path(file).is_relative_to(home)
        assert version == __version__
        assert names == "Llama-3.1-8B Llama-3.1-8B"


def test_commands_run_beside_foreign_packages(bin_folder, foreign_folder):
    assert run_well(bin_folder / "rooffloor", "--version", cwd=foreign_folder) == f"rooffloor {__version__}\n"
    assert "report" in run_well(bin_folder / "python", "-m", "rooffloor", "--help", cwd=foreign_folder)


def test_the_table_prints_from_the_checkout_beside_foreign_packages(bins, foreign_folder):
    assert json.loads(run_well(bins["editable"] / "rooffloor", "table", "--json", cwd=foreign_folder))


def test_the_installed_version_is_the_one_in_the_source(bin_folder, foreign_folder):
    code = "import importlib.metadata; print(importlib.metadata.version('rooffloor'))"
    assert run_well(bin_folder / "python", "-P", "-c", code, cwd=foreign_folder).strip() == __version__


def test_package_data_come_from_the_wheel(bins, foreign_folder):
    code = "from rooffloor.validate.common import resources; print(resources.path('transfer-study'))"
    printed = run_well(bins["archive"] / "python", "-P", "-c", code, cwd=foreign_folder)
    assert Path(printed.strip()).is_relative_to(bins["archive"].parent)


# The pinned set ------------------------------------------------------------------------------------


def test_constraints_are_pins_without_hosts_or_paths():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    assert [line for line in lines if not re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.+!]+", line)] == []
    names = [canonical(line.split("==")[0]) for line in lines]
    assert len(names) == len(set(names))


def test_every_dependency_is_pinned_within_its_bounds():
    from packaging.requirements import Requirement

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pins = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines())
    pins = {canonical(name): version for name, version in pins.items()}
    for text in [*project["dependencies"], *chain.from_iterable(project["optional-dependencies"].values())]:
        requirement = Requirement(text)
        assert requirement.specifier.contains(pins[canonical(requirement.name)]), text


def test_what_is_imported_is_what_is_declared():
    """netCDF4 is what xarray writes posterior.nc with, arviz what a user opens it with; distributed is an extra."""
    imported = set()
    for file in chain.from_iterable((ROOT / "src/rooffloor" / half).rglob("*.py") for half in ("models", "validate")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                imported |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                imported.add(str(node.module).split(".")[0])
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    names = {canonical(re.split(r"[<>=]", text)[0]) for text in declared}
    strangers = {canonical(name) for name in imported - set(sys.stdlib_module_names) - {"rooffloor"}}
    assert strangers - {"distributed"} == names - {"netcdf4", "arviz"}


def test_what_the_tests_run_on_is_the_pinned_set():
    pins = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines())
    here = {canonical(found.name): found.version for found in importlib.metadata.distributions()}
    for name in ("numpy", "pandas", "pymc", "pytensor", "nutpie", "arviz", "xarray", "numba"):
        assert here[name] == pins[name], f"{name}: run make test, or renew constraints.txt"


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


# make ----------------------------------------------------------------------------------------------

# Stands for Python: is new enough, makes environments of itself and logs what pip and the rest are told.
FAKE_PYTHON = """#!/bin/sh
case "$1 $2" in
"-c "*) echo "$0" ;;
"-m venv") mkdir -p "$3/bin"; cp "$0" "$3/bin/python"; cp "$0" "$3/bin/rooffloor"
    echo "venv" >> log; ! [ -e break-venv ] ;;
"-m pip") echo "pip $*" >> log; ! [ -e break-pip ] ;;
*) echo "$*" >> log ;;
esac
"""


@pytest.fixture
def checkout(tmp_path) -> Path:
    """A folder with what `make` reads, and a stand-in for Python."""
    if shutil.which("make") is None:
        pytest.skip("make is absent")
    folder = tmp_path / "checkout"
    folder.mkdir()
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, folder)
    python = folder / "fake-python"
    python.write_text(FAKE_PYTHON)
    python.chmod(0o755)
    return folder


def make(target: str, folder: Path) -> tuple[int, list[str]]:
    """Exit code, and what the stand-in was told since the last time, without options of pip."""
    log = folder / "log"
    log.unlink(missing_ok=True)
    env = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    done = run("make", target, f"PYTHON={folder}/fake-python", cwd=folder, env=env)
    told = log.read_text().splitlines() if log.exists() else []
    return done.returncode, [re.sub(r"pip .* (\S+)$", r"pip \1", line) for line in told]


CHECKS = ["-m ruff check .", "-m ruff format --check .", "-m mypy -p rooffloor", "-m pytest -n auto --dist loadfile"]


def test_make_report_installs_once(checkout):
    assert make("report", checkout) == (0, ["venv", "pip .", "report"])
    assert make("report", checkout) == (0, ["report"])


def test_make_test_adds_the_development_tools_once(checkout):
    make("report", checkout)
    assert make("test", checkout) == (0, ["pip .[dev]", *CHECKS])
    assert make("test", checkout) == (0, CHECKS)
    assert make("report", checkout) == (0, ["report"])


def test_make_test_serves_a_later_report(checkout):
    assert make("test", checkout) == (0, ["venv", "pip .[dev]", *CHECKS])
    assert make("report", checkout) == (0, ["report"])


def test_make_docs_adds_sphinx_once_and_serves_the_tests(checkout):
    build = "-m sphinx --fail-on-warning --keep-going --quiet --doctree-dir site/.doctrees docs site"
    assert make("docs", checkout) == (0, ["venv", "pip .[dev,docs]", build])
    assert make("docs", checkout) == (0, [build])
    assert make("test", checkout) == (0, CHECKS)


@pytest.mark.parametrize(("broken", "told"), [("venv", ["venv"]), ("pip", ["venv", "pip ."])])
def test_an_install_broken_off_starts_over(checkout, broken, told):
    (checkout / f"break-{broken}").touch()
    assert make("report", checkout) == (2, told)
    (checkout / f"break-{broken}").unlink()
    (checkout / ".venv" / "half").touch()
    assert make("report", checkout) == (0, ["venv", "pip .", "report"])
    assert not (checkout / ".venv" / "half").exists()


def test_new_pins_install_again_into_the_same_environment(checkout):
    make("report", checkout)
    ready = max(file.stat().st_mtime for file in (checkout / ".venv").glob(".ready-*"))
    os.utime(checkout / "constraints.txt", (ready + 5, ready + 5))
    assert make("report", checkout) == (0, ["pip .", "report"])


def test_an_interpreter_that_has_gone_starts_over(checkout):
    make("report", checkout)
    (checkout / ".venv" / "bin" / "python").unlink()
    assert make("report", checkout) == (0, ["venv", "pip .", "report"])


def test_a_moved_checkout_is_linked_anew(checkout):
    make("report", checkout)
    moved = checkout.rename(checkout.with_name("moved"))
    assert make("report", moved) == (0, ["pip .", "report"])


def test_no_fitting_python_is_one_line(checkout):
    tools = checkout / "tools"
    tools.mkdir()
    for tool in ("make", "sh", "cksum", "cut"):
        (tools / tool).symlink_to(shutil.which(tool) or tool)
    old = tools / "python3"
    old.write_text("#!/bin/sh\nexit 1\n")
    old.chmod(0o755)
    done = run("make", "report", cwd=checkout, env={"PATH": str(tools), "HOME": str(checkout)})
    assert done.returncode == 2
    [line] = (done.stdout + done.stderr).splitlines()
    assert "rooffloor needs Python 3.12 or newer" in line
    assert not (checkout / ".venv").exists()
