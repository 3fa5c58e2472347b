"""Constants of simulated studies: against the sampled model's answer in numbers, and by how often they cover."""

from functools import cache

import numpy as np
import pytest

from rooffloor.models.roof.kernels import stack_work
from rooffloor.models.roof.roofline import Efficiency, work_ms
from rooffloor.validate.published.printed_figures import ANCHOR
from rooffloor.validate.simulation.constants import NAMES, anchor_constants
from rooffloor.validate.simulation.hypotheses import SILICON, cells_of

GPUS = SILICON[:3]
FLOORS = np.array([2.0, 1.0, 3.0])


@cache
def planted(studies: int, noise: float = 0.02, seed: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """True constants [study, 3] and steps [study, cell] of the anchor on three GPUs."""
    rng = np.random.default_rng(seed)
    cells = cells_of((ANCHOR, g) for g in GPUS)
    true = np.stack([rng.uniform(*between, studies) for between in ((0.7, 0.9), (0.55, 0.85), (20.0, 600.0))], -1)
    of = {name: true[:, [k]] for k, name in enumerate(NAMES)}
    mean = work_ms(stack_work(cells), Efficiency(eta_tc=0.8, **of)) + FLOORS[cells.gpu_code]
    return true, mean * (1 + noise * rng.standard_normal(mean.shape))


def test_posterior_does_not_depend_on_the_number_of_points():
    cells = cells_of((ANCHOR, g) for g in GPUS)
    work, (_, steps) = stack_work(cells), planted(6)
    found = [
        anchor_constants(work, cells.gpu_code, steps, np.random.default_rng(seed), draws=1000, points=points)
        for seed, points in ((1, 512), (2, 8192))
    ]
    assert found[1].ess.min() > 1000
    sd = found[1].values.std(1)
    assert (np.abs(found[0].values.mean(1) - found[1].values.mean(1)) < 0.3 * sd).all()
    assert (found[0].values.std(1) / sd < 1.35).all()
    assert (found[0].values.std(1) / sd > 0.75).all()


def test_intervals_cover_constants_that_cells_tell_and_the_prior_stays_where_they_do_not():
    cells = cells_of((ANCHOR, g) for g in GPUS)
    true, steps = planted(120)
    found = anchor_constants(stack_work(cells), cells.gpu_code, steps, np.random.default_rng(3), draws=300)
    low, high = np.quantile(found.values, [0.05, 0.95], axis=1)
    covered = ((low <= true) & (true <= high)).mean(0)
    assert covered[1] == pytest.approx(0.9, abs=0.09)  # eta_fa
    assert covered[2] == pytest.approx(0.9, abs=0.09)  # l_half
    assert found.values[..., 1].std(1).mean() < 0.03
    assert found.values[..., 0].std(1).mean() > 0.05  # eta_bw: a floor on each GPU hides it
    assert found.efficiency(0.8).eta_bw.shape == (120, 300, 1)
