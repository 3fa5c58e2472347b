"""One compiled model for all tests of fits: refits replace its data (compiling takes ten seconds)."""

import numpy as np
import pytest
from three_by_three import CLASSES, branch_ms, grid, measured, simulated

from rooffloor.models.floor.structures import FloorStructure
from rooffloor.models.inference import sampling
from rooffloor.models.inference.steps import StepModel


@pytest.fixture(scope="session")
def compiled() -> sampling.Compiled:
    """Floors per SKU and class, added, T_gpu given, on the cells of `three_by_three.grid`."""
    cells = grid()
    data = measured(cells, branch_ms(cells), np.random.default_rng(0))
    model = StepModel(data, None, CLASSES, FloorStructure(), "fixed", gpu_ms=branch_ms(cells))
    return sampling.compile_model(model)


@pytest.fixture(scope="session")
def fit(compiled: sampling.Compiled) -> sampling.Fit:
    """A gated fit to steps under the known floors."""
    return sampling.fit_gated(compiled, simulated(1), seed=1)
