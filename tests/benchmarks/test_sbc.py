"""Ranks of the truth: uniform where the posterior is exact, caught where it is shifted or narrow; a small run."""

from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
import pytest
import sbc
from sbc import KEPT, Ranks

from rooffloor.models.floor.structures import FloorStructure
from rooffloor.models.inference.gate import Gate
from rooffloor.models.specs.cells import Cells

SETS = 300
NAMES = ("exact", "shifted", "narrow", "wide")


def ranks_of_normal_posteriors() -> pd.DataFrame:
    """θ ~ N(0, 1), y ~ N(θ, 0.5²): ranks among exact posterior draws, and among wrong ones."""
    rng = np.random.default_rng(4)
    theta = rng.standard_normal(SETS)
    sd = np.sqrt(0.2)
    mean = (theta + 0.5 * rng.standard_normal(SETS)) / 1.25
    wrong = {"exact": (0.0, 1.0), "shifted": (0.4, 1.0), "narrow": (0.0, 0.7), "wide": (0.0, 1.5)}
    return pd.DataFrame(
        {
            name: sbc.rank(theta, mean + sd * (shift + factor * rng.standard_normal((KEPT, SETS))))
            for name, (shift, factor) in wrong.items()
        }
    )


@pytest.fixture(scope="module")
def found() -> Ranks:
    counts = pd.DataFrame(
        {
            "data_set": range(SETS),
            "redrawn": [3, 0, 0] * (SETS // 3),
            "attempts": [1, 1, 2] * (SETS // 3),
            "first_divergences": [0, 0, 4] * (SETS // 3),
            "divergences": [0, 0, 1] * (SETS // 3),
            "rhat": 1.005,
            "passed": [True, True, False] * (SETS // 3),
        }
    )
    return Ranks(pd.concat([counts, ranks_of_normal_posteriors()], axis=1))


def test_only_wrong_posteriors_are_caught(found: Ranks) -> None:
    table = found.to_frame().set_index("quantity")
    assert tuple(table.index) == found.quantities == NAMES
    assert (table["p_holm"] >= table["p"]).all()
    assert table.loc["exact", "p_holm"] > 0.05
    assert (table.loc[["shifted", "narrow", "wide"], "p_holm"] < 0.001).all()
    assert table.loc["exact", "in_50"] == pytest.approx(0.5, abs=0.09)
    assert table.loc["exact", "in_90"] == pytest.approx(0.9, abs=0.06)
    assert table.loc["narrow", "in_90"] < 0.83
    assert table.loc["wide", "in_90"] > 0.96
    assert table.loc["shifted", "mean"] < 0.45


def test_intervals_are_whole_numbers_of_ranks() -> None:
    every = np.arange(KEPT + 1)
    assert sbc.covered(every, 0.5) == 0.5
    assert sbc.covered(every, 0.9) == 0.9
    assert np.array_equal(sbc.rank([0.5, 2.0], [[0.0, 0.0], [1.0, 1.0]]), [1, 2])


def test_band_holds_whole_lines_of_uniform_ranks() -> None:
    _, low, high = sbc.band(100)
    lines = [sbc.ecdf_difference(np.random.default_rng([8, k]).integers(0, KEPT + 1, size=100)) for k in range(300)]
    inside = np.mean([((line >= low) & (line <= high)).all() for line in lines])
    assert 0.91 < inside < 0.99


def test_plot_names_what_leaves_the_band(found: Ranks) -> None:
    matplotlib.use("Agg")
    ax = found.plot()
    named = {text.get_text() for text in ax.get_legend().get_texts()}
    assert named == {"95 % band", "shifted", "narrow", "wide"}
    matplotlib.pyplot.close(ax.figure)


def test_counts_and_text(found: Ranks) -> None:
    data = found.data
    assert data["data_sets"] == SETS
    for name in ("failed", "escalated", "first_divergent", "divergent"):
        assert data[name] == SETS // 3
    assert "100 failed their gate, 100 escalated" in repr(found)
    assert data["redrawn"] == SETS
    assert f"not positive: {SETS}" in repr(found)


def test_csv_round_trip(found: Ranks, tmp_path: Path) -> None:
    path = tmp_path / "sbc.csv"
    found.save(path)
    again = Ranks.load(path)
    assert again.quantities == found.quantities
    pd.testing.assert_frame_equal(again.table, found.table, check_dtype=False)
    assert again.data == found.data


def test_small_run_resumes(tmp_path: Path) -> None:
    rows = [(m, g, b, 2048) for m in ("Llama-3.1-8B", "Llama-3.2-1B") for g in ("H100", "H200") for b in (1, 4, 16)]
    cells = Cells.from_columns(*zip(*rows, strict=True))
    options: dict[str, Any] = {"structure": FloorStructure("gpu"), "seed": 3, "cells": cells, "folder": tmp_path}
    options |= {"draws": 100, "tune": 200, "gate": Gate(rhat=1.2, ess=25)}
    found = sbc.sbc(datasets=4, **options)
    assert found.table["data_set"].tolist() == [0, 1, 2, 3]
    assert set(found.quantities) == {
        *("eta_bw", "eta_fa", "eta_tc", "l_half", "noise_ms", "noise_level", "noise_spread"),
        *("noise_relative[Llama-3.1-8B]", "noise_relative[Llama-3.2-1B]"),
        *("floor_ms[H100]", "floor_ms[H200]", "floor_sd_gpu_ms", "log_likelihood"),
    }
    ranks = found.table[list(found.quantities)].to_numpy()
    assert ((ranks >= 0) & (ranks <= KEPT)).all()
    assert len(np.unique(ranks)) > 20
    assert found.table["attempts"].between(1, 3).all()
    assert (found.table["passed"] | (found.table["attempts"] == 3)).all()
    again = sbc.sbc(datasets=4, **options)  # kept: neither compiled nor fitted
    pd.testing.assert_frame_equal(again.table, found.table)


def test_steps_are_positive_and_made_by_the_seed_alone() -> None:
    cells = sbc.study_cells()
    assert len(cells) == 150
    classes = {m: sbc.default_class(m) for m in cells.models}
    work = sbc.stack_work(cells)
    for structure, overlapped in ((FloorStructure("gpu", "overlapped"), True), (FloorStructure(), False)):
        setting = sbc._Setting(structure, cells, work, classes, 11)
        made = [setting.simulate(k) for k in range(12)]
        assert all((steps > 0).all() for _, steps, _ in made)
        assert (sum(redrawn for *_, redrawn in made) > 0) != overlapped  # signed floors reach below zero
        truth, again, _ = setting.simulate(3)
        np.testing.assert_array_equal(again, made[3][1])
        assert ("q" in setting.scalars(truth, again)) == overlapped
