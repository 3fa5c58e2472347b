"""Pages of the repository: what they link to is there, and so are the modules that they name."""

import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted(
    page
    for folder in (ROOT, ROOT / "docs", *(ROOT / "data").iterdir(), ROOT / "benchmarks")
    for page in folder.glob("*.md")
)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_resolve_and_named_modules_exist(page: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    targets = [target.split("#")[0] for target in re.findall(r"\]\(([^)\s]+)\)", text)]
    assert [t for t in targets if not t.startswith("https://") and not (page.parent / t).exists()] == []
    for name in set(re.findall(r"`(rooffloor(?:\.\w+)+)", text)):
        found, *rest = name.split(".")
        thing = importlib.import_module(found)
        for part in rest:
            found = f"{found}.{part}"
            thing = getattr(thing, part, None) or importlib.import_module(found)


def test_files_that_are_named_exist() -> None:
    """Files under the folders of the repository; of one that is yet to be written the folder."""
    folders = r"models|validate|data|docs|tests|benchmarks|notebooks|reports/example|src"
    for page in PAGES:
        for name in re.findall(rf"`((?:{folders})/[\w./-]+)`", page.read_text()):
            place = re.sub(r"/(NAME|SUBJECT|hN)\.py$", "", name)
            assert (ROOT / place).exists(), f"{page.name}: {name}"
