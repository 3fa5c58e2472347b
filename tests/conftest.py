"""Shared fixtures."""

import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import ROOT, MainJob, run_well


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder ../shared beside the checkout (public data and references); skips where it is absent."""
    folder = Path(__file__).resolve().parents[2] / "shared"
    if not (folder / "data").is_dir():
        pytest.skip("../shared is absent: this test reads its public data")
    return folder


@pytest.fixture(autouse=True)
def _no_figure_stays_open() -> Iterator[None]:
    """A figure that a fixture or a test leaves open is no other test's concern."""
    yield
    if "matplotlib.pyplot" in sys.modules:
        sys.modules["matplotlib.pyplot"].close("all")


# ---- the package as it is installed: test_run.py has the whole report of it, test_packaging.py the rest ------------


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The source archive, the wheel made from it, and the wheels of the checkout, whole and editable."""
    folder = tmp_path_factory.mktemp("built")
    build = (sys.executable, "-m", "build", "--no-isolation", "--outdir")
    run_well(*build, folder / "archive", ROOT, cwd=folder)
    run_well(*build, folder / "checkout", "--wheel", ROOT, cwd=folder)
    code = "import sys; from hatchling.build import build_editable; build_editable(sys.argv[1])"
    (folder / "editable").mkdir()
    run_well(sys.executable, "-c", code, folder / "editable", cwd=ROOT)
    files = {kind: next((folder / kind).glob("*.whl")) for kind in ("archive", "checkout", "editable")}
    return files | {"sources": next((folder / "archive").glob("*.tar.gz"))}


@pytest.fixture(scope="session")
def bins(built: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The wheel and the editable one, each in a clean environment with this one's dependencies, but not its links."""
    folder = tmp_path_factory.mktemp("installed")
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
    found = {}
    for kind in ("archive", "editable"):
        run_well(sys.executable, "-m", "venv", "--without-pip", folder / kind, cwd=folder)
        options = ("--quiet", "--no-deps", "--no-index")
        run_well(*pip, "--python", folder / kind / "bin/python", "install", *options, built[kind], cwd=folder)
        # A path named in a .pth file is searched, but the .pth files in it (an editable install) are not read.
        [site] = (folder / kind).glob("lib/python*/site-packages")
        (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
        found[kind] = folder / kind / "bin"
    return found


def _with_strangers(folder: Path) -> Path:
    """The folder with packages of the names of rooffloor's folders, that are somebody else's."""
    for name in ("models", "validate"):
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text("raise ImportError('somebody else owns this package')\n")
    return folder


@pytest.fixture
def foreign_folder(tmp_path: Path) -> Path:
    """A folder of somebody else's."""
    return _with_strangers(tmp_path)


@pytest.fixture(scope="session")
def main_job(bins: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> MainJob:
    """`rooffloor report` of the wheel beside foreign packages, the one whole report of all tests."""

    def package_files() -> set[Path]:
        return {file for file in bins["archive"].parent.rglob("*") if "__pycache__" not in file.parts}

    home, before = _with_strangers(tmp_path_factory.mktemp("main-job")), package_files()
    printed = run_well(bins["archive"] / "rooffloor", "report", cwd=home)
    return MainJob(home, printed, package_files() ^ before)
