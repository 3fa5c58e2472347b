"""Floor and noise on a grid: against direct integration, calibrated where simulated, limits."""

import numpy as np
import pytest
from scipy.stats import norm

from rooffloor.models.floor.structures import FloorStructure, overlap_ms
from rooffloor.models.inference.one_pair import fit_floor, fit_floors

ADDED, OVERLAPPED = FloorStructure("gpu, model"), FloorStructure("gpu, model", "overlapped")
GPU_MS = np.array([6.0, 6.3, 7.0, 8.0, 10.0, 14.0])
NOISE = (float(np.log(0.04)), 0.6)


def moments(structure: FloorStructure, y: np.ndarray, prior: tuple[float, float], q: float, known: float) -> tuple:
    """Mean and sd of the floor and log evidence by direct integration over (floor, log noise)."""

    def points(low: float, high: float) -> tuple[np.ndarray, np.ndarray]:
        """Nodes and weights of Gauss and Legendre between two ends."""
        node, weight = np.polynomial.legendre.leggauss(240)
        return low + (high - low) * (node + 1.0) / 2.0, weight * (high - low) / 2.0

    x, x_weight = points(*((np.log(0.5), np.log(9.0)) if structure.positive else (1.0, 5.0)))
    s, s_weight = points(NOISE[0] - 3.2 * NOISE[1], NOISE[0] + 3.2 * NOISE[1])
    floor = np.exp(x) if structure.positive else x
    step = np.asarray(structure.step_ms(GPU_MS, floor[:, None], q))[:, None]
    sd = np.sqrt((np.exp(s)[:, None] * step) ** 2 + known**2)
    density = np.exp(norm.logpdf(y, step, sd).sum(-1) + norm.logpdf(x, *prior)[:, None] + norm.logpdf(s, *NOISE))
    value = [float((floor**k * x_weight) @ density @ s_weight) for k in range(3)]
    mean = value[1] / value[0]
    return mean, np.sqrt(value[2] / value[0] - mean**2), np.log(value[0])


@pytest.mark.parametrize(
    ("structure", "prior", "q", "known"),
    [(ADDED, (2.0, 3.0), 1.0, 0.0), (ADDED, (2.0, 3.0), 1.0, 0.2), (OVERLAPPED, (float(np.log(4)), 0.8), 0.5, 0.0)],
)
def test_moments_and_evidence_agree_with_direct_integration(structure, prior, q, known):
    rng = np.random.default_rng(3)
    y = np.asarray(structure.step_ms(GPU_MS, 3.0, q)) * (1 + 0.03 * rng.standard_normal(len(GPU_MS)))
    mean, sd, evidence = moments(structure, y, prior, q, known)
    found = fit_floor(
        np.tile(GPU_MS, (4000, 1)),
        y,
        structure,
        rng,
        floor_prior=prior,
        noise_prior=NOISE,
        q=q,
        known_sd_ms=known,
    )
    assert found.mean_ms == pytest.approx(mean, abs=0.02 * sd)
    assert found.floor_ms.mean() == pytest.approx(mean, abs=4 * sd / np.sqrt(4000))
    assert found.floor_ms.std() == pytest.approx(sd, rel=0.06)
    assert found.log_evidence == pytest.approx(evidence, abs=0.02)


@pytest.mark.parametrize(("structure", "q"), [(ADDED, 1.0), (OVERLAPPED, 0.3)])
def test_intervals_cover_what_the_prior_draws(structure, q):
    rng = np.random.default_rng(11)
    prior = (float(np.log(4)), 0.6) if structure.positive else (4.0, 2.0)
    below = []
    for n in range(300):
        x, sigma = rng.normal(*prior), np.exp(rng.normal(*NOISE))
        floor = np.exp(x) if structure.positive else x
        T = GPU_MS[: 3 + n % 4]
        y = np.asarray(structure.step_ms(T, floor, q)) * (1 + sigma * rng.standard_normal(len(T)))
        if (y < 0.5).any():
            continue
        found = fit_floor(
            np.tile(T, (200, 1)), y, structure, rng, floor_prior=prior, noise_prior=NOISE, q=np.full(200, q)
        )
        below.append((found.floor_ms < floor).mean())
    share = np.mean((np.array(below) > 0.05) & (np.array(below) < 0.95))
    assert abs(share - 0.9) < 3 * np.sqrt(0.09 / len(below))
    assert abs(np.mean(below) - 0.5) < 3 / np.sqrt(12 * len(below))


def test_each_draw_of_t_gpu_has_its_own_floor():
    T = np.stack([GPU_MS, GPU_MS - 1.0, GPU_MS])
    found = fit_floor(
        T,
        GPU_MS + 2.0,
        ADDED,
        np.random.default_rng(1),
        floor_prior=(0.0, 20.0),
        noise_prior=(float(np.log(1e-3)), 0.1),
    )
    assert found.mean_ms == pytest.approx([2.0, 3.0, 2.0], abs=0.02)


def test_several_gpus_share_the_overlap_that_their_cells_show():
    rng = np.random.default_rng(5)
    T = np.concatenate([np.linspace(2.0, 20.0, 12)] * 2)
    code = np.repeat([0, 1], 12)
    y = overlap_ms(T, np.where(code, 6.0, 9.0), 0.25) * (1 + 0.01 * rng.standard_normal(24))
    found = fit_floors(
        code,
        np.tile(T, (400, 1)),
        np.tile(y, (400, 1)),
        OVERLAPPED,
        rng,
        floor_prior=(float(np.log(4)), 1.0),
        noise_prior=NOISE,
    )
    assert abs(found.q.mean() - 0.25) < 0.06
    assert found.floor_ms.mean(0) == pytest.approx([9.0, 6.0], rel=0.05)
    assert found.noise_relative.mean() < 0.03
    assert found.floor_ms.shape == found.noise_relative.shape == (400, 2)


def test_where_the_gpu_hides_the_floor_the_prior_stands():
    found = fit_floor(
        np.full((2000, 3), 50.0),
        np.full(3, 50.0),
        FloorStructure("gpu, model", "max"),
        np.random.default_rng(2),
        floor_prior=(float(np.log(4)), 0.5),
        noise_prior=(float(np.log(0.01)), 0.2),
        q=0.0,
    )
    assert np.log(found.floor_ms).mean() == pytest.approx(np.log(4), abs=0.05)
    assert np.log(found.floor_ms).std() == pytest.approx(0.5, abs=0.05)
