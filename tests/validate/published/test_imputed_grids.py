"""The committed imputed grids obey what the aggregates exclude, statement by statement, and are in order."""

from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray

from rooffloor.models.roof.roofline import bytes_floor_ms
from rooffloor.models.specs import gpus
from rooffloor.models.specs.shapes import load as load_shapes
from rooffloor.validate.common import resources
from rooffloor.validate.published.bounds.exclusions import Fact, exclusions
from rooffloor.validate.published.bounds.grid_programme import RATIO, grid_programme
from rooffloor.validate.published.imputation import reconstruction
from rooffloor.validate.published.imputation.readings import BLOCKS, DISCREPANCIES, FALL, READINGS, WEIGHTED
from rooffloor.validate.published.printed_figures import A100, ANCHOR, H100, MOE, SKUS, SMALL, PublishedFigures

type Array = NDArray[np.float64]

FIGURES = PublishedFigures.load()
FACTS = exclusions(FIGURES)


class Grids:
    """The weighted grids of the committed file, shape (imputation, cell) by (model, GPU)."""

    def __init__(self) -> None:
        cells = reconstruction.load(resources.path("transfer-study")).cells
        self.all = cells
        weighted = cells[cells["weight"] > 0]
        self.y, self.T, self.batch, self.context = (
            self._of(weighted, name) for name in ("step_ms", "gpu_ms", "batch", "context")
        )
        heads = weighted.drop_duplicates("imputation")
        self.reading = heads["reading"].to_numpy()

    @staticmethod
    def _of(cells: pd.DataFrame, name: str) -> dict[tuple[str, str], Array]:
        count = cells["imputation"].nunique()
        return {
            (str(m), str(g)): own[name].to_numpy(dtype=float).reshape(count, -1)
            for (m, g), own in cells.groupby(["model", "gpu"], sort=False)
        }

    def own_offset(self, model: str, gpu: str) -> Array:
        """The offset of a (model, GPU) under each grid's reading."""
        at = model, gpu
        rows = zip(self.reading, self.y[at], self.T[at], self.batch[at], self.context[at], strict=True)
        return np.array([READINGS[r].offset(y[None], T[None], np.stack([b, c], 1))[0] for r, y, T, b, c in rows])

    def error(self, model: str, gpu: str, name: str) -> Array:
        """Signed relative errors of the cells under an offset called as in `bounds`, shape (imputation, cell)."""
        owner = {"raw": None, "residual": ANCHOR, "self-floor": model}[name]
        offset = self.own_offset(owner, gpu)[:, None] if owner else 0.0
        return (self.T[model, gpu] + offset) / self.y[model, gpu] - 1.0

    def level(self, gpu: str) -> Array:
        """Mean T of the 1B, cells weighted by 1/y."""
        y, T = self.y[SMALL, gpu], self.T[SMALL, gpu]
        return (T / y).mean(1) / (1.0 / y).mean(1)

    def rise(self, model: str) -> Array:
        """Rise at batch 16 from 512 to 8192 tokens on the A100."""
        at = model, A100
        ends = [(self.batch[at] == 16) & (self.context[at] == c) for c in (8192, 512)]
        return self.y[at][ends[0]] - self.y[at][ends[1]]

    def named(self, values: Array) -> Array:
        """Of the mixture's cells, (16, 8192)."""
        return values[(self.batch[MOE, H100] == 16) & (self.context[MOE, H100] == 8192)]


def of_row(grids: Grids, model: str, gpu: str, what: str) -> Array:
    """The quantity of a statement on one (model, GPU)."""
    y, T = grids.y[model, gpu], grids.T[model, gpu]
    simple: dict[str, Callable[[], Array]] = {
        "mean 1/y": lambda: (1 / y).mean(1),
        "mean T/y": lambda: (T / y).mean(1),
        "almost entirely floor": lambda: (T / y).mean(1),
        "mean T, weighted by 1/y": lambda: (T / y).mean(1) / (1 / y).mean(1),
        "cells with T > y": lambda: (y < T).sum(1),
        "excess of the self-floor": lambda: 100 * grids.error(model, gpu, "self-floor").mean(1),
        "under-prediction of the self-floor": lambda: (
            100 * np.maximum(-grids.error(model, gpu, "self-floor"), 0).mean(1)
        ),
        "T over bytes": lambda: grids.level(gpu) / float(bytes_floor_ms(SMALL, gpu, 1, 0)),
        "error of (16, 8192)": lambda: 100 * grids.named(grids.error(model, gpu, "self-floor")),
        "T of (16, 8192)": lambda: grids.named(T),
    }
    if what in simple:
        return simple[what]()
    if what.startswith("mean signed "):
        return 100 * grids.error(model, gpu, what.split()[2]).mean(1)
    if what.startswith("cells over-predicted, "):
        return (grids.error(model, gpu, what.split(", ")[1]) > 0).sum(1)
    assert what == "sign of the offset"
    offset = FIGURES.get(ANCHOR, gpu, "anchor_offset")
    below = np.sign(offset.value) * (y - T)
    assert (below.max(1) >= min(map(abs, offset.interval)) - 1e-5).all()
    return (below > 0).sum(1)


def quantity(grids: Grids, fact: Fact) -> Array:
    """What a statement bounds, in each grid."""
    row, _, what = fact.name.partition(": ")
    if what == "pooled residual":
        errors = [100 * np.abs(grids.error(row, gpu, "residual")).mean(1) for gpu in SKUS]
        return np.mean(errors, axis=0)
    if what.startswith("T_"):
        slow, fast = (part.strip().removeprefix("T_") for part in what.split("/"))
        return grids.level(slow) / grids.level(fast)
    if row.startswith("rise of "):
        first, second = row.removeprefix("rise of ").split(" over ")
        return grids.rise(first) / grids.rise(second)
    return of_row(grids, *row.split("/"), what)


@pytest.fixture(scope="module")
def grids() -> Grids:
    return Grids()


CONDITIONAL = {f"{SMALL}/{A100}: steps under a mean offset", f"{SMALL}/{A100}: tokens of the rise"}
OF_GRIDS = [f for f in FACTS if f.name not in CONDITIONAL and not f.name.startswith("rise at batch")]


@pytest.mark.parametrize("fact", OF_GRIDS, ids=[f.name for f in OF_GRIDS])
def test_every_weighted_grid_obeys(fact: Fact, grids: Grids) -> None:
    found = quantity(grids, fact)
    assert len(found) == len(grids.reading)
    slack = 2e-5 * max(1.0, np.abs(found).max())
    assert found.min() >= fact.low - slack
    assert found.max() <= fact.high + slack


def test_conditional_statements(grids: Grids) -> None:
    """A mean offset needs steps that differ 4.8-fold, above `RATIO`: no grid reads one; rises are read at batch 16."""
    assert FACTS[f"{SMALL}/{A100}: steps under a mean offset"].low > RATIO
    assert not {"mean", "relative least squares"} & set(grids.reading)
    fact = FACTS["rise at batch 16 from 512 to 8192"]
    for model in (ANCHOR, "Qwen2.5-7B", SMALL):
        need = 1e3 * load_shapes(model).kv_bytes_per_token / gpus.load(A100).bandwidth * 16 * 7680
        implied = need / grids.rise(model)
        assert implied.min() >= fact.low - 1e-5
        assert implied.max() <= fact.high + 1e-5
        if model == SMALL:  # the tokens of the statement assume a rise of at least these bytes
            tokens = FACTS[f"{SMALL}/{A100}: tokens of the rise"]
            assert tokens.high < 16 * 7680
            assert (grids.rise(model) < need).all()
            assert any("at least by the KV read" in one for one in tokens.assumptions)


@pytest.mark.parametrize(("model", "gpu"), BLOCKS)
def test_steps_lie_in_the_range_of_the_programme(model: str, gpu: str, grids: Grids) -> None:
    low, high = grid_programme(FIGURES, model, gpu).steps_ms
    assert grids.y[model, gpu].min() >= low - 1e-5
    assert grids.y[model, gpu].max() <= high + 1e-5


@pytest.mark.parametrize(("model", "gpu"), BLOCKS)
def test_grids_are_in_order(model: str, gpu: str, grids: Grids) -> None:
    """Weighted or not: no step falls by more than the stated noise, T never falls, none is below the first."""
    own = grids.all[(grids.all["model"] == model) & (grids.all["gpu"] == gpu)]
    for _, grid in own.groupby("grid"):
        shape = grid["imputation"].nunique(), grid["batch"].nunique(), grid["context"].nunique()
        y, T = (grid[name].to_numpy().reshape(shape) for name in ("step_ms", "gpu_ms"))
        for axis in (1, 2):
            first, second = (np.take(y, range(k, shape[axis] - 1 + k), axis) for k in (0, 1))
            assert (second >= (1.0 - FALL) * first * (1 - 1e-6)).all()
            assert (np.diff(T, axis=axis) >= -1e-6).all()
        assert (y >= y[:, :1, :1] * (1 - 1e-6)).all()
        assert (y.max((1, 2)) <= RATIO * y[:, 0, 0] * (1 + 1e-6)).all()


def test_the_small_batch_step_is_a_cell_and_the_least(grids: Grids) -> None:
    for figure in (f for f in FIGURES if f.quantity == "small_batch_step"):
        y = grids.y[figure.model, figure.gpu]
        low, high = figure.interval
        for steps in (y[:, 0], y.min(1)):
            assert (steps >= low - 1e-5).all()
            assert (steps <= high + 1e-5).all()


def test_two_roofs_carry_weight_and_the_rougher_prior_none(grids: Grids) -> None:
    heads = grids.all.drop_duplicates("imputation")
    rough = heads["discrepancy"] == DISCREPANCIES[1].name
    assert (heads.loc[rough, "weight"] == 0).all()
    assert (heads.loc[~rough, "weight"] > 0).all()
    assert set(heads.loc[~rough, "roof"]) == {roof.name for roof in WEIGHTED}
    assert rough.sum() >= 20


def test_readings_without_an_ordered_mixture_are_listed() -> None:
    """Floors read at the largest batch or longest context: (16, 8192), whose y - T is 11 ms, is among few cells."""
    indices = reconstruction.load(resources.path("transfer-study")).indices
    own = indices[indices["reading"].isin(["largest batch", "longest context"])]
    assert len(own) == 4
    assert not own["feasible"].any()
    assert set(own["gpus"]) == {"H100 (MoE)"}
    assert (own["least_misfit"] > 1).all()
