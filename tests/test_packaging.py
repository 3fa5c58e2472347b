"""What a user gets: the wheel in a clean environment, and `make` in a fresh checkout."""

import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def run(*command: str | Path, cwd: Path, **options) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(part) for part in command], cwd=cwd, capture_output=True, text=True, **options)


def run_well(*command: str | Path, cwd: Path) -> str:
    done = run(*command, cwd=cwd)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


# The wheel -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    run_well(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT, cwd=folder)
    [file] = folder.glob("*.whl")
    return file


@pytest.fixture(scope="module")
def bin_folder(wheel, tmp_path_factory) -> Path:
    """The wheel in a clean environment that sees this one's dependencies, but not the checkout."""
    environment = tmp_path_factory.mktemp("installed") / "venv"
    run_well(sys.executable, "-m", "venv", "--without-pip", environment, cwd=ROOT)
    [python] = environment.glob("bin/python")
    pip = (sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check")
    run_well(*pip, "install", "--quiet", "--no-deps", "--no-index", wheel, cwd=ROOT)
    # A path named in a .pth file is searched, but the .pth files in it (an editable install) are not read.
    [site] = environment.glob("lib/python*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python.parent


@pytest.fixture
def foreign_folder(tmp_path) -> Path:
    """A folder of somebody else's, with packages of the names that rooffloor uses."""
    for name in ("models", "validate"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise ImportError('somebody else owns this package')\n")
    return tmp_path


def test_the_wheel_holds_the_packages_and_their_data_and_nothing_else(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert {
        "rooffloor/validate/cli/main.py",
        "rooffloor/models/specs/cells.py",
        "rooffloor/data/transfer-study/published_figures.csv",
    } <= {*names}
    catalogs = {
        f"rooffloor/models/specs/catalog/{file.name}" for file in (ROOT / "models/specs/catalog").glob("*.toml")
    }
    assert len(catalogs) >= 2
    assert catalogs <= {*names}
    study = ROOT / "data" / "transfer-study"
    shipped = {f"rooffloor/data/transfer-study/{f.relative_to(study)}" for f in study.rglob("*") if f.is_file()}
    assert shipped <= {*names}
    assert {name.split("/")[0].split("-")[0] for name in names} == {"rooffloor"}


def test_the_installed_version_is_the_one_in_the_source(bin_folder, foreign_folder):
    from rooffloor import __version__

    assert run_well(bin_folder / "rooffloor", "--version", cwd=foreign_folder) == f"rooffloor {__version__}\n"
    code = "import importlib.metadata; print(importlib.metadata.version('rooffloor'))"
    assert run_well(bin_folder / "python", "-P", "-c", code, cwd=foreign_folder).strip() == __version__


def test_help_runs_beside_a_foreign_models_package(bin_folder, foreign_folder):
    assert "report" in run_well(bin_folder / "rooffloor", "--help", cwd=foreign_folder)


def test_package_data_come_from_the_wheel(bin_folder, foreign_folder):
    code = "from rooffloor.validate.common import resources; print(resources.path('transfer-study'))"
    printed = run_well(bin_folder / "python", "-P", "-c", code, cwd=foreign_folder)
    assert Path(printed.strip()).is_relative_to(bin_folder.parent)


def test_the_table_prints_beside_a_foreign_models_package(bin_folder, foreign_folder):
    table = json.loads(run_well(bin_folder / "rooffloor", "table", "--json", cwd=foreign_folder))
    assert table


def test_the_main_job_runs_installed_and_writes_only_here(bin_folder, foreign_folder):
    installed = bin_folder.parent

    def package_files() -> set[Path]:
        return {file for file in installed.rglob("*") if "__pycache__" not in file.parts}

    before = package_files()
    printed = run_well(bin_folder / "rooffloor", "report", cwd=foreign_folder)
    folder = foreign_folder / "reports" / "transfer-study"
    written = {file.name for file in folder.iterdir()}
    assert {"report.html", "report.md", "report.json", "run.json", "posterior.nc", "posterior.npz"} <= written
    assert "reports/transfer-study" in printed
    assert package_files() == before
    assert {file.name for file in foreign_folder.iterdir()} == {"models", "validate", "reports"}


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
    for text in [*project["dependencies"], *project["optional-dependencies"]["dev"]]:
        requirement = Requirement(text)
        assert requirement.specifier.contains(pins[canonical(requirement.name)]), text


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


CHECKS = ["-m ruff check .", "-m ruff format --check .", "-m mypy models validate", "-m pytest"]


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
