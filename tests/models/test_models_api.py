"""The public names of the models: each loads when it is used, and its examples run."""

import doctest
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import rooffloor.models
from rooffloor.models.inference import noise


@pytest.mark.parametrize("name", rooffloor.models.__all__)
def test_examples_of_public_names_run(name: str) -> None:
    public = getattr(rooffloor.models, name)
    module = importlib.import_module(public.__module__)
    (found,) = doctest.DocTestFinder(recurse=False).find(public, name, module=module, globs=vars(module).copy())
    assert found.examples
    assert doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(found).failed == 0


def test_examples_of_the_noise_run() -> None:
    assert doctest.testmod(noise).failed == 0


def test_importing_the_models_loads_nothing_heavy() -> None:
    heavy = ("numpy", "scipy", "pandas", "xarray", "arviz", "pymc", "pytensor", "nutpie", "matplotlib")
    code = f"import sys, rooffloor.models\nprint([m for m in {heavy} if m in sys.modules])"
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root)
    assert done.stdout.strip() == "[]"
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        rooffloor.models.nothing  # noqa: B018
