"""Tables of the report: the two numbers, offsets under the study's readings, floors, constants."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
from simulated import ANCHOR, GPUS, MOE, SIBLING, SMALL, simulate

from rooffloor.validate.common.files import json_dumps
from rooffloor.validate.estimates import metrics
from rooffloor.validate.estimates.cell_draws import IMPUTED, MEASURED, Draws
from rooffloor.validate.estimates.metrics import AS_MEASURED, EXPECTED, RERUN, expected_error
from rooffloor.validate.published.imputation.readings import READINGS
from rooffloor.validate.published.imputation.reconstruction import Reconstruction
from rooffloor.validate.published.printed_figures import PublishedFigures
from rooffloor.validate.reporting import tables

EVERYTHING = (ANCHOR, SIBLING, SMALL, MOE)
LABELS = pytest.mark.parametrize("label", [MEASURED, IMPUTED])


def table(draws: Draws, **given: Any) -> dict[tuple[str, str], dict[str, Any]]:
    rows = tables.two_numbers(draws, given.get("figures"), given.get("offsets"), seed=3)
    return {(row["model"], row["gpu"]): row for row in rows}


def imputations(readings: list[str]) -> Reconstruction:
    """What `published_offsets` reads of a reconstruction: the reading of each imputation (out of order here)."""
    cells = pd.DataFrame({"imputation": np.arange(len(readings)), "reading": readings})
    twice = pd.concat([cells.iloc[::-1], cells], ignore_index=True)
    return Reconstruction(twice, pd.DataFrame(), pd.DataFrame())


# ---- the two numbers --------------------------------------------------------------------------------------------


def test_measured_cells_have_the_mape_of_metrics_without_an_interval():
    draws = simulate(models=EVERYTHING, noise=0.05, floors={SMALL: 7.0})
    found = table(draws)
    centre, floor = draws.gpu_ms.mean(0), draws.anchor_floor_ms.mean(0)
    for model in EVERYTHING:
        masks = [draws.mask(model, gpu) for gpu in GPUS]
        raw = [metrics.raw_mape(centre[mask], draws.step_ms[0, mask]) for mask in masks]
        residual = [metrics.residual_mape(centre[mask], draws.step_ms[0, mask], floor[mask]) for mask in masks]
        for g, gpu in enumerate(GPUS):
            row, t, y = found[model, gpu], centre[masks[g]], draws.step_ms[0, masks[g]]
            assert row["cells"] == 15
            assert row["raw"]["as_measured"]["value"] == pytest.approx(raw[g])
            assert row["residual"]["as_measured"]["value"] == pytest.approx(residual[g])
            assert row["residual"]["as_measured"]["intervals"] == {}
            predicted = 100 * (draws.gpu_ms + floor)[:, masks[g]].mean(-1) / y.mean()  # about: its Monte Carlo error
            assert 0 < row["residual"]["as_measured"]["mcse"] < predicted.std()
            signed = [100 * metrics.relative_error(t, y, added).mean() for added in (0.0, floor[masks[g]])]
            assert row["signed"]["raw"]["value"] == pytest.approx(signed[0], abs=0.01)
            assert row["signed"]["residual"]["value"] == pytest.approx(signed[1], abs=0.01)
        assert found[model, "pooled"]["raw"]["as_measured"]["value"] == pytest.approx(np.mean(raw))
        assert found[model, "pooled"]["residual"]["as_measured"]["value"] == pytest.approx(np.mean(residual))
        assert found[model, "pooled"]["cells"] == 45


@LABELS
def test_expected_and_rerun_mape_are_means_over_draws(label: str):
    draws = simulate(label, noise=0.05, floors={SIBLING: 6.0})
    row = table(draws)[SIBLING, "H200"]
    mask = draws.mask(SIBLING, "H200")
    predicted = (draws.gpu_ms + draws.calibrated_ms)[:, mask]
    mean, sd = draws.mean_ms[:, mask], draws.noise_ms[:, mask]
    expected = draws.weight @ (100 * expected_error(predicted, mean, sd).mean(-1))
    assert row["residual"]["expected"]["value"] == pytest.approx(expected)
    rng = np.random.default_rng(5)
    y = np.maximum(mean + sd * rng.standard_normal((400, *mean.shape)), 0.1 * mean)
    simulated = 100 * np.abs(predicted / y - 1).mean(-1)
    assert row["residual"]["rerun"]["value"] == pytest.approx(simulated.mean(0) @ draws.weight, rel=0.03)
    low, high = row["residual"]["rerun"]["intervals"]["90"]
    assert (low, high) == pytest.approx(np.quantile(simulated, [0.05, 0.95]), rel=0.08)
    widths = {k: np.ptp(row["residual"][k]["intervals"]["90"]) for k in ("expected", "rerun")}
    assert widths["rerun"] > widths["expected"]
    assert [row["raw"][k]["estimand"] for k in ("as_measured", "expected", "rerun")] == [AS_MEASURED, EXPECTED, RERUN]


def test_imputed_cells_have_the_mape_under_the_published_offset_with_an_interval():
    draws = simulate(IMPUTED, floors={SIBLING: 5.0})
    offsets = {(ANCHOR, g): 3.0 + 0.1 * draws.unit for g in GPUS}
    row = table(draws, offsets=offsets)[SIBLING, "H100"]
    mask = draws.mask(SIBLING, "H100")
    T, y = draws.gpu_ms[:, mask], draws.step_ms[:, mask]
    expected = metrics.residual_mape(T, y, offsets[ANCHOR, "H100"][:, None])
    assert row["residual"]["as_measured"]["value"] == pytest.approx(draws.weight @ expected)
    low, high = row["residual"]["as_measured"]["intervals"]["90"]
    assert low < row["residual"]["as_measured"]["value"] < high
    assert row["raw"]["as_measured"]["value"] == pytest.approx(draws.weight @ metrics.raw_mape(T, y))


def test_without_the_anchor_there_is_no_residual_and_one_gpu_is_not_pooled():
    found = table(simulate(models=EVERYTHING, anchor_on=("H100",)))
    assert found[SMALL, "H200"]["residual"] is None
    assert found[SMALL, "H200"]["signed"]["residual"] is None
    assert found[SMALL, "H100"]["residual"] is not None
    assert found[SMALL, "pooled"]["residual"] is None
    assert (ANCHOR, "pooled") not in found


def test_published_figures_stand_beside_the_pairs_that_have_them():
    figures = PublishedFigures.load()
    found = table(simulate(models=(ANCHOR, SMALL, "Mistral-7B-v0.3")), figures=figures)
    published = found[SMALL, "A100-40GB"]["published"]
    assert published["raw"] == figures.value(SMALL, "A100-40GB", "raw_mape")
    assert published["residual"] == figures.value(SMALL, "A100-40GB", "residual_mape")
    assert found["Mistral-7B-v0.3", "H100"]["published"] is None
    assert table(simulate())[ANCHOR, "H100"]["published"] is None


@LABELS
def test_the_table_is_json_and_the_same_for_the_same_seed(label: str):
    draws = simulate(label)
    first, second = (json_dumps(tables.two_numbers(draws, None, None, seed=4)) for _ in range(2))
    assert first == second


# ---- offsets and floors -----------------------------------------------------------------------------------------


def by_hand(reading: str, d: np.ndarray, y: np.ndarray, batch: np.ndarray, context: np.ndarray) -> float:
    """One offset read off differences, written out."""
    match reading:
        case "mean":
            return float(d.mean())
        case "relative least squares":
            return float((d / y**2).sum() / (1 / y**2).sum())
        case "median":
            return float(np.sort(d)[len(d) // 2])
        case "least MAPE":
            return float(min(d, key=lambda offset: np.abs((d - offset) / y).sum()))
        case "smallest batch":
            return float(d[batch == 1].mean())
        case "largest batch":
            return float(d[batch == 16].mean())
        case "shortest context":
            return float(d[context == 512].mean())
    return float(d[context == 8192].mean())


def test_an_offset_follows_the_reading_of_its_imputation():
    names = list(READINGS)
    draws = simulate(IMPUTED, models=(ANCHOR, SMALL), noise=0.05, draws=32, units=len(names))
    found = tables.published_offsets(draws, imputations(names))
    assert set(found) == {(m, g) for m in (ANCHOR, SMALL) for g in GPUS}
    for (model, gpu), offsets in found.items():
        mask = draws.mask(model, gpu)
        for row, unit in enumerate(draws.unit):
            y, batch, context = (array[row, mask] for array in (draws.step_ms, draws.batch, draws.context))
            expected = by_hand(names[unit], y - draws.gpu_ms[row, mask], y, batch, context)
            assert offsets[row] == pytest.approx(expected), (names[unit], model, gpu)
    assert len(np.unique(found[SMALL, "H100"])) == len(names)


def test_an_offset_follows_the_axes_of_its_grid():
    names = ["smallest batch", "shortest context", "smallest batch", "shortest context"]
    draws = simulate(IMPUTED, models=(ANCHOR, SMALL), gpus=("H100",), noise=0.05, draws=8, units=4)
    batch, context = np.array(draws.batch), np.array(draws.context)
    wide = np.tile(np.array([(b, c) for b in (1, 4, 16) for c in (512, 1024, 2048, 4096, 8192)], float), (2, 1))
    batch[4:], context[4:] = wide.T  # the last two imputations have three batches and five contexts
    moved = Draws(**{**vars(draws), "batch": batch, "context": context})
    found = tables.published_offsets(moved, imputations(names))[SMALL, "H100"]
    mask = draws.mask(SMALL, "H100")
    d = (draws.step_ms - draws.gpu_ms)[:, mask]
    for row in range(8):
        used = batch[row, mask] == 1 if row // 2 % 2 == 0 else context[row, mask] == 512
        assert used.sum() == [3, 5, 5, 3][row // 2]
        assert found[row] == pytest.approx(d[row, used].mean())


def test_floors_are_posterior_means_and_stand_beside_published_ones():
    draws = simulate(IMPUTED, models=(ANCHOR, SMALL), floors={SMALL: 7.0}, units=4)
    offsets = tables.published_offsets(draws, imputations(["median"] * 4))
    found = tables.floors(draws, PublishedFigures.load(), offsets)
    assert {(r["model"], r["gpu"]) for r in found["by_model"]} == {(m, g) for m in (ANCHOR, SMALL) for g in GPUS}
    for row in found["by_model"]:
        floor = draws.floor_ms[:, draws.mask(row["model"], row["gpu"])][:, 0]
        assert row["floor"]["value"] == pytest.approx(draws.weight @ floor)
    by_class = {(r["gpu"], r["class"]): r["floor"]["value"] for r in found["by_class"]}
    for key, floor in draws.class_floor_ms.items():
        assert by_class[key] == pytest.approx(draws.weight @ floor)
    own = {(r["model"], r["gpu"]): r for r in found["self_floors"]}
    row = own[SMALL, "A100-40GB"]
    assert row["published"] == PublishedFigures.load().value(SMALL, "A100-40GB", "self_floor")
    assert row["reading"]["value"] == pytest.approx(draws.weight @ offsets[SMALL, "A100-40GB"])
    assert row["difference"]["value"] == pytest.approx(row["floor"]["value"] - row["reading"]["value"])
    assert f"{row['published']:g} ms" in row["why"]
    assert json_dumps(found)


def test_measured_floors_have_no_published_ones():
    assert tables.floors(simulate(), None, None)["self_floors"] == []


def test_constants_carry_their_units():
    draws = simulate()
    values = np.random.default_rng(1).uniform(0.7, 0.9, 200)
    rows = tables.constants(draws, {"eta_bw": {"all GPUs": values}, "l_half": {"H100": 100 * values}})
    assert [(r["constant"], r["gpu"], r["estimate"]["unit"]) for r in rows] == [
        ("eta_bw", "all GPUs", "1"),
        ("l_half", "H100", "tokens"),
    ]
    assert rows[0]["estimate"]["value"] == pytest.approx(values.mean())
