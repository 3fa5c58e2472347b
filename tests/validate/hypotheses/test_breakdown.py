"""Where the time goes: parts that sum to the step, in the order and the groups that the report shows."""

import numpy as np
import pytest
from simulated import ANCHOR, GPUS, MOE, SIBLING, SMALL, simulate

from rooffloor.models.roof.roofline import breakdown_ms
from rooffloor.validate.common.files import json_dumps
from rooffloor.validate.estimates.cell_draws import IMPUTED, MEASURED
from rooffloor.validate.estimates.grid_axes import GridAxes
from rooffloor.validate.hypotheses.breakdown import PARTS, breakdown, groups

EVERYTHING = (ANCHOR, SIBLING, SMALL, MOE)
LABELS = pytest.mark.parametrize("label", [MEASURED, IMPUTED])


@LABELS
def test_parts_sum_to_the_step(label: str):
    draws = simulate(label, models=EVERYTHING, scales={SMALL: 1.4}, noise=0.03)
    for row in breakdown(draws):
        assert tuple(row["parts"]) == PARTS
        assert sum(part["value"] for part in row["parts"].values()) == pytest.approx(row["step"]["value"])


@LABELS
def test_parts_are_weighted_means_over_the_cells(label: str):
    draws = simulate(label, models=EVERYTHING, noise=0.03)
    row = next(r for r in breakdown(draws) if (r["model"], r["gpu"], r["group"]) == (MOE, "H200", "all cells"))
    mask = draws.mask(MOE, "H200")
    assert row["cells"] == mask.sum() == 15
    assert row["parts"]["kv"]["value"] == pytest.approx(draws.weight @ draws.parts_ms["kv"][:, mask].mean(-1))
    assert row["parts"]["floor"]["value"] == pytest.approx(draws.weight @ draws.floor_ms[:, mask].mean(-1))
    left = draws.step_ms[:, mask] - draws.gpu_ms[:, mask] - draws.floor_ms[:, mask]
    assert row["parts"]["leftover"]["value"] == pytest.approx(draws.weight @ left.mean(-1))
    assert label in row["step"]["estimand"]


def test_a_planted_miss_is_left_over():
    draws = simulate(models=EVERYTHING, scales={SMALL: 1.5}, noise=0.001)
    rows = {r["group"]: r for r in breakdown(draws) if (r["model"], r["gpu"]) == (SMALL, "A100-40GB")}
    assert list(rows) == ["all cells", "B = 1, L = 512", "B = 16, L = 8192"]
    leftover = {group: row["parts"]["leftover"]["value"] for group, row in rows.items()}
    assert leftover["B = 16, L = 8192"] > 1 > 0 > leftover["B = 1, L = 512"]


def test_models_of_other_classes_come_first_and_the_anchor_last():
    rows = breakdown(simulate(models=EVERYTHING))
    models = list(dict.fromkeys(row["model"] for row in rows))
    assert models == [SMALL, MOE, SIBLING, ANCHOR]
    assert [row["gpu"] for row in rows[::3][:3]] == list(GPUS)
    assert len(rows) == 4 * 3 * 3


def test_groups_are_all_cells_and_the_two_corners_whatever_the_order_of_cells():
    grid = [(4.0, 512.0), (16.0, 512.0), (1.0, 8192.0), (16.0, 2048.0), (1.0, 512.0)]
    draws = simulate(grid=grid, gpus=("H100",))
    axes, mask = GridAxes.of(draws), draws.mask(SIBLING, "H100")
    found = dict(groups(axes, mask))
    assert list(found) == ["all cells", "B = 1, L = 512", "B = 16, L = 2048"]
    assert found["all cells"].tolist() == [np.flatnonzero(mask).tolist()] == [[5, 6, 7, 8, 9]]
    assert (found["B = 1, L = 512"].tolist(), found["B = 16, L = 2048"].tolist()) == ([[9]], [[8]])
    one = simulate(grid=[(4, 2048)], gpus=("H100",))
    assert [name for name, _ in groups(GridAxes.of(one), one.mask(SIBLING, "H100"))] == ["all cells"]


def test_what_a_1b_spends_is_what_the_roof_says():
    draws = simulate(models=(ANCHOR, SMALL), noise=0.001)
    corner = next(
        r for r in breakdown(draws) if (r["model"], r["gpu"], r["group"]) == (SMALL, "H100", "B = 1, L = 512")
    )
    kernels = breakdown_ms(SMALL, "H100", 1, 512)
    at_peak = sum(kernels[k] for k in ("qkv", "attn_out", "gate_up", "down", "lm_head"))
    assert corner["parts"]["weights"]["value"] == pytest.approx(at_peak / 0.8, rel=0.01)  # eta_bw of the simulation


@LABELS
def test_rows_are_json_with_intervals(label: str):
    rows = breakdown(simulate(label))
    assert json_dumps(rows)
    low, high = rows[0]["parts"]["floor"]["intervals"]["90"]
    assert low < rows[0]["parts"]["floor"]["value"] < high
