"""Sphinx: the documentation from docs/, notebooks/ and the docstrings of the package."""

import shutil
from pathlib import Path

from pygments.lexers.special import TextLexer
from sphinx.application import Sphinx

import rooffloor

HERE = Path(__file__).resolve().parent
shutil.copytree(HERE.parent / "notebooks", HERE / "notebooks", dirs_exist_ok=True)

project = "rooffloor"
author = "rooffloor developers"
project_copyright = f"2026, {author}"
version = release = rooffloor.__version__

extensions = ["sphinx.ext.autodoc", "sphinx.ext.autosummary", "sphinx.ext.napoleon", "sphinx.ext.viewcode", "myst_nb"]
exclude_patterns = ["**/.ipynb_checkpoints"]
templates_path = ["templates"]
suppress_warnings = ["ref.python"]  # a class shown on its room's page and in the public API
default_role = "literal"  # docstrings write names in single backticks

autodoc_member_order = "bysource"
napoleon_google_docstring = False
napoleon_use_ivar = True
python_maximum_signature_line_length = 100

myst_heading_anchors = 3
nb_execution_mode = "cache"
nb_execution_cache_path = str(HERE.parent / "site" / ".notebooks")
nb_execution_timeout = 900
nb_execution_raise_on_error = True
nb_ipywidgets_js = {}

html_theme = "furo"
html_title = f"rooffloor {version}"
html_copy_source = False
html_show_sphinx = False


def setup(app: Sphinx) -> None:
    """CSV is shown as plain text."""
    app.add_lexer("csv", TextLexer)
