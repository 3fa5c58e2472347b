"""Sphinx: the documentation from docs/, notebooks/, the pages at the top of the repository and the docstrings."""

import re
import shutil
from pathlib import Path
from typing import Any

from pygments.lexers.special import TextLexer
from sphinx.application import Sphinx

import rooffloor

HERE = Path(__file__).resolve().parent
PAGES = ("ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
"""Of the top of the repository; shown as project/NAME.md."""


def as_project_page(text: str) -> str:
    """A page with its links to other pages turned, and those to files that the site does not hold taken off."""

    def turned(link: re.Match[str]) -> str:
        words, target = link.groups()
        if target.startswith("https://"):
            return link[0]
        if target.startswith("docs/"):
            return f"[{words}](../{target.removeprefix('docs/')})"
        return f"[{words}]({target.lower()})" if target in PAGES else words

    return re.sub(r"\[([^\]]+)\]\(([^)]+)\)", turned, text)


for made in ("api/generated", "notebooks", "project"):
    shutil.rmtree(HERE / made, ignore_errors=True)
shutil.copytree(HERE.parent / "notebooks", HERE / "notebooks", ignore=shutil.ignore_patterns(".*"))
(HERE / "project").mkdir()
for page in PAGES:
    (HERE / "project" / page.lower()).write_text(as_project_page((HERE.parent / page).read_text()))

project = "rooffloor"
author = "rooffloor developers"
project_copyright = f"2026, {author}"
version = release = rooffloor.__version__

extensions = ["sphinx.ext.autodoc", "sphinx.ext.autosummary", "sphinx.ext.napoleon", "sphinx.ext.viewcode", "myst_nb"]
templates_path = ["templates"]
suppress_warnings = ["ref.python"]  # a class is shown in the public API and on its room's page
default_role = "literal"  # docstrings write names in single backticks

autodoc_member_order = "bysource"
napoleon_google_docstring = False
napoleon_custom_sections = [("Attributes", "params_style")]
python_maximum_signature_line_length = 100

myst_heading_anchors = 3
nb_execution_mode = "cache"
nb_execution_cache_path = str(HERE.parent / "site" / ".notebooks")
nb_execution_timeout = 900
nb_execution_raise_on_error = True
nb_ipywidgets_js = {}  # would name scripts of other sites

highlight_language = "none"

html_theme = "furo"
html_title = f"rooffloor {version}"
html_copy_source = False
html_show_sphinx = False


def without_paths(app: Sphinx, what: str, name: str, thing: object, options: object, *signature: str | None) -> Any:
    """Defaults that are modules are shown by name: None for no change, else arguments and result."""
    arguments, result = signature
    return arguments and (re.sub(r"<module '(\w+)'[^>]*>", r"\1", arguments), result)


def setup(app: Sphinx) -> None:
    """CSV is shown as plain text."""
    app.add_lexer("csv", TextLexer)
    app.connect("autodoc-process-signature", without_paths)
