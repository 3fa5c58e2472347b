"""The notebooks run from top to bottom, draw with the library alone, and are committed without outputs."""

import ast
import json
import re
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

import rooffloor

pytestmark = pytest.mark.timeout(900)
FOLDER = Path(__file__).resolve().parents[1] / "notebooks"
LABELS = {
    "01-transfer-study": "imputed",
    "02-what-a-floor-hides": "simulated",
    "03-check-a-new-family": "simulated",
}
"""What the cells of each notebook are."""
PACKAGES = Path(rooffloor.__file__).parents[1]
"""Where the packages under test lie: the checkout, or the installed wheel."""


def code(notebook: Any) -> list[Any]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def draws(cell: Any) -> bool:
    return re.search(r"plots\.|\.plot\(\)", cell.source) is not None


def texts(cell: Any) -> list[str]:
    """What a cell shows as text: printed, or as a table."""
    shown = [output.get("data", {}) for output in cell.outputs]
    tables = [data["text/html"] for data in shown if "text/html" in data]
    return [output.text for output in cell.outputs if output.output_type == "stream"] + tables


@pytest.fixture(scope="module", params=LABELS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def committed(name: str) -> Any:
    return nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)


@pytest.fixture(scope="module")
def executed(committed: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The notebook after a run by this interpreter in an empty folder, which stays empty."""
    home, here = tmp_path_factory.mktemp("home"), tmp_path_factory.mktemp("here")
    kernel = home / "kernels" / "this-interpreter"
    kernel.mkdir(parents=True)
    command = [sys.executable, "-P", "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    (kernel / "kernel.json").write_text(json.dumps({"argv": command, "display_name": "", "language": "python"}))
    notebook = nbformat.from_dict(committed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(PACKAGES))
        patch.setenv("JUPYTER_PATH", str(home))
        patch.delenv("MPLBACKEND", raising=False)
        for variable in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR"):
            patch.setenv(variable, str(home / variable.lower()))
        resources = {"metadata": {"path": str(here)}}
        NotebookClient(notebook, kernel_name=kernel.name, timeout=600, resources=resources).execute()
    assert list(here.iterdir()) == []
    return notebook


def test_every_notebook_is_tested():
    assert {path.stem for path in FOLDER.glob("*.ipynb")} == set(LABELS)


def test_committed_without_outputs(committed: Any):
    nbformat.validate(committed)
    assert [cell.source for cell in code(committed) if cell.outputs or cell.execution_count is not None] == []
    assert [cell.metadata for cell in committed.cells if cell.metadata] == []
    assert set(committed.metadata) == {"kernelspec", "language_info"}


def test_all_drawing_goes_through_the_library(committed: Any):
    for cell in code(committed):
        source = re.sub(r"^%matplotlib inline\n", "", cell.source)
        assert not re.search(r"pyplot|matplotlib|seaborn|\bplt\b|\bax\b|\.plot(?!\(\)\.figure)", source)
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.ImportFrom):
                assert str(node.module).split(".")[0] in ("rooffloor", "itertools")
    assert sum(map(draws, code(committed))) >= 3


def test_runs_without_errors_and_warnings(executed: Any):
    assert executed.metadata.language_info.version == sys.version.split()[0]
    for cell in code(executed):
        assert cell.execution_count is not None
        assert {output.output_type for output in cell.outputs} <= {"stream", "display_data", "execute_result"}
        assert [output.text for output in cell.outputs if output.get("name") == "stderr"] == []
        assert [text for text in texts(cell) if re.search("warning", text, re.IGNORECASE)] == []


def test_every_figure_is_an_image(executed: Any):
    for cell in filter(draws, code(executed)):
        if cell.source.startswith("%matplotlib"):
            continue
        images = [output for output in cell.outputs if "image/png" in output.get("data", {})]
        assert [image.output_type for image in images] == ["execute_result"], cell.source


def test_every_table_and_text_says_what_the_cells_are(executed: Any, name: str):
    assert f"**{LABELS[name]}**" in executed.cells[0].source or f"{LABELS[name]}.**" in executed.cells[0].source
    for cell in code(executed):
        shown = "".join(texts(cell))
        assert not shown or LABELS[name] in shown, cell.source
