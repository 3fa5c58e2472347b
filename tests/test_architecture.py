"""The house: which room may import which, no circles, nothing hidden in functions, no long files, the public names."""

import ast
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FILES = {
    ".".join(("rooffloor", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__"): path
    for room in ("models", "validate")
    for path in sorted((ROOT / room).rglob("*.py"))
}
MAY_IMPORT = {
    "models.specs": "",
    "models.roof": "specs",
    "models.floor": "specs",
    "models.inference": "specs roof floor",
    "models.calibration": "specs roof floor inference",
    "validate.common": "specs",
    "validate.estimates": "specs common",
    "validate.measurements": "specs roof common",
    "validate.study": "specs roof floor common measurements",
    "validate.presentation": "common estimates",
    "validate.kernels": "specs common measurements presentation",
    "validate.published": "specs roof floor inference common",
    "validate.comparison": "specs roof floor inference common estimates presentation published",
    "validate.fitting": "specs roof floor inference calibration common estimates study published",
    "validate.hypotheses": "specs roof floor common estimates measurements study presentation published",
    "validate.transfer": "specs roof floor inference calibration common estimates measurements study presentation "
    "fitting hypotheses",
    "validate.simulation": "specs roof floor inference calibration common estimates study published fitting hypotheses "
    "transfer",
    "validate.reporting": "specs roof calibration common estimates presentation published comparison fitting "
    "hypotheses",
    "validate.cli": "common measurements presentation kernels fitting transfer simulation reporting",
}
"""The rooms from the top of the house downwards, and which of those above it each one imports."""
ROOMS = tuple(MAY_IMPORT)
HEAVY = {
    *("arviz", "arviz_base", "arviz_stats", "distributed", "jinja2", "joblib", "matplotlib", "netCDF4", "numba"),
    *("nutpie", "pandas", "pandera", "pydantic", "pymc", "pytensor", "seaborn", "scipy.optimize", "scipy.stats"),
    *("statsmodels", "threadpoolctl", "tqdm", "xarray"),
}
"""What a light command does without: only an import that loads one of these may stand in a function."""
LONGEST_FILE = 500


def imports(node: ast.AST, inside: bool = False) -> Iterator[tuple[str, bool]]:
    """Modules that are imported, and whether a function does it; what type checkers alone read is left out."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        if isinstance(child, ast.Import):
            yield from ((alias.name, inside) for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            for alias in child.names:
                whole = f"{child.module}.{alias.name}"
                yield (whole if whole in FILES or whole in HEAVY else str(child.module)), inside
        yield from imports(child, inside or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef))


IMPORTS = {name: set(imports(ast.parse(path.read_text()))) for name, path in FILES.items()}


@cache
def loads(name: str) -> frozenset[str]:
    """Libraries that importing a module loads."""
    if name not in FILES:
        return frozenset({name, name.split(".")[0]})
    return frozenset().union(*(loads(other) for other, inside in IMPORTS[name] if not inside))


def room(name: str) -> str:
    return ".".join(name.split(".")[1:3])


def test_the_table_of_rooms_goes_downwards() -> None:
    names = [name.split(".")[1] for name in ROOMS]
    assert all(set(above.split()) <= set(names[:n]) for n, above in enumerate(MAY_IMPORT.values()))


@pytest.mark.parametrize("name", ROOMS)
def test_a_room_imports_only_rooms_above_it(name: str) -> None:
    allowed = {*MAY_IMPORT[name].split(), name.split(".")[1]}
    edges = [(file, other) for file in FILES if room(file) == name for other, _ in IMPORTS[file] if other in FILES]
    assert [edge for edge in edges if room(edge[1]).split(".")[-1] not in allowed] == []


def test_every_file_is_in_a_room() -> None:
    assert {room(file) for file in FILES} - set(ROOMS) == {"models", "validate"}


def test_files_import_each_other_without_circles() -> None:
    TopologicalSorter({file: {other for other, _ in IMPORTS[file] if other in FILES} for file in FILES}).prepare()


def test_only_heavy_imports_stand_in_functions() -> None:
    """Not in validate.cli, whose functions import all that a command needs: --help loads the parser alone."""
    hidden = [(file, other) for file in FILES for other, inside in IMPORTS[file] if inside and not loads(other) & HEAVY]
    assert [edge for edge in hidden if room(edge[0]) != "validate.cli"] == []


def test_no_file_is_long_without_a_reason() -> None:
    docs = {file: ast.get_docstring(ast.parse(path.read_text())) or "" for file, path in FILES.items()}
    lines = {file: len(path.read_text().splitlines()) for file, path in FILES.items()}
    allowed = {file for file, doc in docs.items() if "Long because" in doc.split("\n\n")[0]}
    assert {file: count for file, count in lines.items() if count > LONGEST_FILE and file not in allowed} == {}


JUDGING = (
    *("Margins", "Study", "check", "compare_floors", "fit", "load_gpu", "load_measurements", "load_model"),
    *("plan", "predict", "report", "test"),
)
MODELS = (
    *("Calibration", "Cells", "Efficiency", "FloorStructure", "GpuSpec", "ModelShapes", "breakdown_ms", "build_model"),
    *("bytes_floor_ms", "decode_work", "gpu_ms", "prefill_ms"),
)
PUBLIC = {"rooffloor": (*JUDGING, "__version__"), "rooffloor.models": MODELS, "rooffloor.validate": JUDGING}


@pytest.mark.parametrize("package", PUBLIC)
def test_public_names(package: str) -> None:
    module = import_module(package)
    assert sorted(module.__all__) == dir(module) == sorted(PUBLIC[package])
    assert all(getattr(module, name) is not None for name in module.__all__)
    with pytest.raises(AttributeError, match="has no attribute"):
        _ = module.no_such_name
