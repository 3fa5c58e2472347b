"""Figures: drawn where asked, labelled with the data and the units, showing the numbers they are given."""

from types import SimpleNamespace
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgba
from matplotlib.text import Text

from rooffloor.models.specs.cells import Cells
from rooffloor.validate.common.files import json_ready
from rooffloor.validate.estimates.cell_draws import IMPUTED, MEASURED, Draws
from rooffloor.validate.hypotheses.h1 import h1
from rooffloor.validate.hypotheses.h3 import h3
from rooffloor.validate.presentation.figures.absorption import absorption, hidden_errors
from rooffloor.validate.presentation.figures.cells import context_slopes, measured_predicted
from rooffloor.validate.presentation.figures.hypotheses import joint, margins
from rooffloor.validate.presentation.figures.report import breakdown, floors, two_number_table
from rooffloor.validate.presentation.figures.style import model_styles
from rooffloor.validate.presentation.figures.which_floor import structures
from rooffloor.validate.presentation.numbers import number
from rooffloor.validate.study.margins import Margins

ANCHOR, SMALL, MOE = "Llama-3.1-8B", "Llama-3.2-1B", "Qwen1.5-MoE-A2.7B"
DENSE, GPUS = (ANCHOR, "Qwen2.5-7B", SMALL), ("H100", "H200", "A100-40GB")
FLOORS = {"H100": 1.6, "H200": 3.0, "A100-40GB": -2.4}
CLASSES = {SMALL: "dense <2B", MOE: "moe"}
WIDE = tuple((float(b), float(c)) for b in (1, 2, 4, 8, 16) for c in (512, 2048, 8192))
LONG = tuple((float(b), float(c)) for b in (1, 4, 16) for c in (512, 1024, 2048, 4096, 8192))


def simulate(label: str, models=DENSE, gpus=GPUS, moe_on="H100", n=40, anchor_on=None, grids=(WIDE, LONG)) -> Draws:
    """Draws of a study with one floor per GPU, the small model and the MoE with floors of their own."""
    rng = np.random.default_rng(7)
    pairs = [(m, g) for m in models for g in gpus if m != MOE or g == moe_on]
    at = np.repeat(np.arange(len(pairs)), 15)
    grids = [np.tile(np.array(grid), (len(pairs), 1)) for grid in (grids if label == IMPUTED else grids[:1])]
    unit = np.arange(n) // 4
    axes = np.stack([grids[u % len(grids)] for u in unit]) if label == IMPUTED else grids[0][None]
    batch, context = axes[..., 0], axes[..., 1]
    cells = Cells.from_columns([pairs[i][0] for i in at], [pairs[i][1] for i in at], batch[0], context[0])
    size = np.array([{SMALL: 2.5, MOE: 4.0}.get(m, 14.0 + 0.3 * models.index(m)) for m in cells.model])
    speed = np.array([{"H200": 4.8, "A100-40GB": 1.5}.get(g, 3.3) for g in cells.gpu])
    scale = 1 + 0.03 * rng.standard_normal((n, 1))
    weights, kv = scale * size / speed * 1.4, scale * size / speed * 6e-6 * batch * context
    other = 0.02 * weights + 0.1
    moe = cells.model == MOE
    special = {SMALL: 5.0, MOE: 18.0}
    floor = np.array([FLOORS.get(g, 2.0) + special.get(m, 0.0) for m, g in zip(cells.model, cells.gpu, strict=True)])
    floors = floor + 0.4 * rng.standard_normal((n, 1))
    anchor = np.array([FLOORS.get(g, 2.0) if g in (anchor_on or gpus) else np.nan for g in cells.gpu])
    total = weights + kv + other
    step = (total + floors) * (1 + 0.02 * rng.standard_normal((n, len(cells))))
    classes = {m: CLASSES.get(m, "dense 5-10B") for m in models}
    return Draws(
        cells=cells,
        label=label,
        anchor=ANCHOR,
        classes=classes,
        batch=batch,
        context=context,
        step_ms=step if label == IMPUTED else step[:1],
        gpu_ms=total,
        parts_ms={"weights": weights, "kv": kv, "other": other},
        dispatch_ms=np.where(moe, 0.004, 0.0) * scale,
        floor_ms=floors,
        class_floor_ms={(g, c): rng.normal(2, 0.3, n) for g in gpus for c in dict.fromkeys(classes.values())},
        anchor_floor_ms=anchor + 0.3 * rng.standard_normal((n, 1)),
        noise_ms=0.02 * step,
        unit=unit,
        weight=np.full(n, 1 / n),
    )


def table_of(draws: Draws) -> list[dict[str, Any]]:
    rows = []
    for model, gpu, mask in draws.pairs():
        raw = 100 * np.abs(draws.gpu_ms / draws.step_ms - 1)[:, mask].mean(-1)
        row = {"model": model, "gpu": gpu, "cells": 15, "signed": {}, "published": {"raw": 15.9, "residual": None}}
        row["raw"] = {k: draws.estimate(raw, k, "percent").data for k in ("as_measured", "expected", "rerun")}
        row["residual"] = None if gpu == "H200" else row["raw"]
        rows += [row, {**row, "gpu": "pooled", "published": None}] if gpu == "H100" else [row]
    return rows


def floors_of(draws: Draws) -> dict[str, list[dict[str, Any]]]:
    by_class = [
        {"gpu": g, "class": c, "floor": draws.estimate(v, "floor", "ms").data}
        for (g, c), v in draws.class_floor_ms.items()
    ]
    by_model = [
        {"gpu": g, "model": m, "floor": draws.estimate(draws.floor_ms[:, mask][:, 0], "floor", "ms").data}
        for m, g, mask in draws.pairs()
    ]
    row = by_model[-1]
    reading = draws.estimate(draws.floor_ms[:, 0] + 4, "reading", "ms").data
    own = [{"model": row["model"], "gpu": row["gpu"], "published": 5.65, "reading": reading, "floor": row["floor"]}]
    return {"by_class": by_class, "by_model": by_model, "self_floors": own}


def breakdown_of(draws: Draws) -> list[dict[str, Any]]:
    rows = []
    for model, gpu, mask in draws.pairs():
        for group, chosen in (("B = 1", slice(0, 3)), ("largest batch, longest context", slice(14, 15))):

            def mean(values, mask=mask, chosen=chosen):
                every = np.broadcast_to(values, draws.gpu_ms.shape)
                return draws.estimate(every[:, mask][:, chosen].mean(-1), "part", "ms").data

            parts = {name: mean(values) for name, values in draws.parts_ms.items()}
            parts |= {"floor": mean(draws.floor_ms), "leftover": mean(draws.step_ms - draws.mean_ms)}
            rows.append({"model": model, "gpu": gpu, "group": group, "step": mean(draws.step_ms), "parts": parts})
    return rows


def absorption_of(draws: Draws) -> list[dict[str, Any]]:
    rows = []
    for model, gpu, mask in draws.pairs():
        share = draws.estimate(np.clip(draws.floor_ms[:, mask][:, 0] / 30, 0, 1), "share", "1").data
        noise = {"value": 0.07, "estimand": "share", "unit": "1", "intervals": {"90": (0.0, 0.25)}, "mcse": 0.001}
        left = draws.estimate(draws.floor_ms[:, 0], "left", "percent").data
        rows.append({"model": model, "gpu": gpu, "cells": 15, "squared": share, "noise_squared": noise, "left": left})
    return rows


def hidden_of(draws: Draws) -> list[dict[str, Any]]:
    nan, inf = float("nan"), float("inf")
    kinds = {
        "eta_bw": ("bandwidth", "percent", 0.9999, 2e5),
        "eta_tc": ("ceiling", "percent", nan, inf),
        "missing_kernel": ("missing kernel", "µs per layer", 1.0, inf),
        "layers": ("layer count", "layers", 0.96, 18.236),
        "experts": ("experts", "percent of the switch", 0.47, 55.3),
    }
    return [
        {"model": m, "gpu": g, "error": e, "label": w, "unit": unit, "share_hidden": share, "detectable": size}
        for m, g, _ in draws.pairs()
        for e, (w, unit, share, size) in kinds.items()
        if e != "experts" or m == MOE
    ]


def first(axes: Any) -> Any:
    return None if axes is None else axes[0]


FIGURES = {
    "absorption": lambda d, axes=None: absorption(absorption_of(d), d.label, ax=first(axes)),
    "hidden_errors": lambda d, axes=None: hidden_errors(hidden_of(d), d.label, ax=first(axes)),
    "table": lambda d, axes=None: two_number_table(table_of(d), d.label, axes=axes),
    "floors": lambda d, axes=None: floors(
        floors_of(d)["by_model"], floors_of(d)["self_floors"], d.label, ax=first(axes)
    ),
    "measured_predicted": lambda d, axes=None: measured_predicted(d, axes=axes),
    "breakdown": lambda d, axes=None: breakdown(breakdown_of(d), d.label, axes=axes),
    "context": lambda d, axes=None: context_slopes(d, {(ANCHOR, "A100-40GB"): 14.8}, axes=axes),
    "verdicts": lambda d, axes=None: margins(h1(d, Margins()).data, d.label, 2.0, axes=axes),
    "joint": lambda d, axes=None: joint(h3(d, Margins()).data["per_sku"], d.label, axes=axes),
}
STUDIES = {
    "imputed": lambda: simulate(IMPUTED, (*DENSE, MOE)),
    "measured": lambda: simulate(MEASURED),
    "one GPU": lambda: simulate(MEASURED, gpus=("H100",)),
}


def words(figure) -> str:
    """Every text of a figure, on one line."""
    return " ".join(" ".join(t.get_text() for t in figure.findobj(Text)).split())


def xs(ax, marker: str) -> list[float]:
    """Positions along x of every point drawn with a marker."""
    return [float(x) for line in ax.get_lines() if line.get_marker() == marker for x in np.atleast_1d(line.get_xdata())]


@pytest.mark.parametrize("study", STUDIES)
@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_names_data_and_units_and_leaves_no_trace(name, study):
    mpl.get_backend()  # resolves the lazy entry of rcParams
    draws, before = STUDIES[study](), mpl.rcParams.copy()
    axes = np.atleast_1d(FIGURES[name](draws))
    assert mpl.rcParams == before
    assert plt.get_fignums() == []
    assert f"Data: {draws.label}" in words(axes[0].figure)
    assert "interval" in words(axes[0].figure) or name == "verdicts"
    for ax in axes if name != "hidden_errors" else ():  # units by row
        units = ("ms", "percent", "points", "tokens")
        assert any(f"({unit}" in ax.get_xlabel() or f"{unit})" in ax.get_xlabel() for unit in units)
    axes[0].figure.draw_without_rendering()


@pytest.mark.parametrize("name", FIGURES)
def test_given_axes_are_drawn_on_and_returned(name):
    figure, given = plt.subplots(2, 2)
    try:
        axes = np.atleast_1d(FIGURES[name](STUDIES["measured"](), given.ravel()))
        assert plt.get_fignums() == [figure.number]
        assert list(axes) == list(given.ravel()[: len(axes)])
        assert all(ax.has_data() for ax in axes)
        assert "Data: measured" in words(figure)
    finally:
        plt.close(figure)


def test_absorption_shows_shares_noise_and_what_is_left():
    draws = STUDIES["imputed"]()
    rows = absorption_of(draws)
    ax = absorption(rows, draws.label)
    assert xs(ax, "o") == pytest.approx([row["squared"]["value"] for row in rows])
    assert [bar.get_width() for bar in ax.patches] == pytest.approx([0.25] * len(rows))
    assert "pure noise" in words(ax.figure)
    assert [t.get_text() for t in ax.texts].count(number(rows[0]["left"], unit=True)) == len(rows)
    ax.figure.draw_without_rendering()
    assert "100" in [t.get_text() for t in ax.get_xticklabels()]  # percent


def test_hidden_errors_write_sizes_never_and_no_effect_on_the_gpu_with_most_models():
    ax = hidden_errors(hidden_of(STUDIES["imputed"]()), IMPUTED)
    assert ax.get_xlabel() == "model on H100"  # the MoE is there
    assert [t.get_text() for t in ax.texts].count("never") == 4
    assert [t.get_text() for t in ax.texts].count("no effect") == 4
    assert {"> 1000", "18", "55"} <= {t.get_text() for t in ax.texts}
    assert "missing kernel\nin µs per layer" in [t.get_text() for t in ax.get_yticklabels()]
    shown = ax.get_images()[0].get_array()
    assert np.ma.getmaskarray(np.ma.masked_invalid(shown)).sum() == 4 + 3
    assert hidden_errors(hidden_of(STUDIES["imputed"]()), IMPUTED, "H200").get_xlabel() == "model on H200"


def test_hidden_errors_of_report_json_have_null_in_place_of_nan():
    rows = json_ready(hidden_of(STUDIES["one GPU"]()))
    texts = [t.get_text() for t in hidden_errors(rows, MEASURED).texts]
    assert {"never", "no effect"} <= set(texts)


def test_hidden_errors_of_a_gpu_that_is_not_there_are_refused():
    with pytest.raises(ValueError, match="empty"):
        hidden_errors(hidden_of(STUDIES["one GPU"]()), MEASURED, "B200")


def test_too_few_axes_are_refused():
    figure, ax = plt.subplots()
    with pytest.raises(ValueError, match="4 panels, got 1 axes"):
        measured_predicted(STUDIES["measured"](), axes=ax)
    plt.close(figure)


def test_empty_rows_are_refused():
    with pytest.raises(ValueError, match="empty"):
        two_number_table([], MEASURED)


def test_table_shows_the_numbers_of_the_rows_and_the_published_points():
    draws = STUDIES["imputed"]()
    rows = table_of(draws)
    axes = two_number_table(rows, draws.label)
    assert [ax.get_title() for ax in axes] == ["H100", "H200", "A100-40GB", "pooled: mean over GPUs"]
    expected = [row["raw"]["expected"]["value"] for row in rows if row["gpu"] == "H100"]
    assert xs(axes[0], "o")[::2] == pytest.approx(expected)
    assert xs(axes[0], "D") == [15.9] * 4
    assert xs(axes[3], "D") == []
    assert xs(axes[1], "s") == []  # no residual: the anchor was not measured
    assert "no cell" in words(axes[2].figure)  # the MoE on the H200


def test_an_estimate_that_is_null_is_left_out():
    draws = STUDIES["one GPU"]()
    rows = table_of(draws)[:1]
    rows[0]["raw"] = {**rows[0]["raw"], "expected": {"value": None, "intervals": {}}}
    assert len(xs(two_number_table(rows, MEASURED)[0], "o")) == 1


def test_floors_put_a_self_floor_on_the_models_row_or_one_of_its_own():
    draws = STUDIES["imputed"]()
    parts = floors_of(draws)
    by_model = floors(parts["by_model"], parts["self_floors"], draws.label)
    assert len(xs(by_model, "o")) == len(parts["by_model"])
    assert xs(by_model, "s") == pytest.approx([parts["self_floors"][0]["reading"]["value"]])
    assert xs(by_model, "D") == [5.65]
    by_class = floors(parts["by_class"], parts["self_floors"], draws.label)
    assert len(xs(by_class, "o")) == len(parts["by_class"]) + 1
    assert f"{MOE}, self-floor" in [t.get_text() for t in by_class.get_yticklabels()]


def test_the_moe_is_drawn_with_and_without_its_dispatch_term():
    draws = STUDIES["imputed"]()
    last = measured_predicted(draws)[-1]
    with_term, without = np.array(xs(last, "o")), np.array(xs(last, "x"))
    assert len(with_term) == 21  # 15 + 15 cells of two grids, 9 of them shared
    assert with_term - without == pytest.approx(0.004, rel=0.02)


def test_without_a_moe_the_last_panel_has_every_models_own_floor():
    draws = STUDIES["measured"]()
    last = measured_predicted(draws)[-1]
    assert "own floor" in last.get_xlabel()
    assert sorted(xs(last, "o") + xs(last, "s") + xs(last, "D")) == pytest.approx(sorted(draws.mean_ms.mean(0)))


def test_a_gpu_without_the_anchor_shows_own_floors_and_says_so():
    axes = measured_predicted(simulate(MEASURED, anchor_on=("H100",)))
    assert "floor of" in axes[0].get_xlabel()
    assert "not measured here" in axes[1].get_xlabel()


def test_negative_floors_are_hatched_and_left_of_zero():
    draws = STUDIES["measured"]()
    rows = breakdown_of(draws)
    axes = breakdown(rows, draws.label)
    for ax, gpu in zip(axes, GPUS, strict=True):
        steps = [row["step"]["value"] for row in rows if row["gpu"] == gpu]
        assert xs(ax, "d") == pytest.approx(steps)
        assert sum(bar.get_width() for bar in ax.patches) == pytest.approx(sum(steps))
        assert all((bar.get_hatch() is not None) == (bar.get_width() < 0) for bar in ax.patches)
    lefts = [bar.get_x() + bar.get_width() for bar in axes[2].patches if bar.get_hatch()]
    assert min(lefts) < -2


def test_context_slopes_show_the_contexts_all_grids_hold_and_the_published_rise():
    draws = STUDIES["imputed"]()
    ax = context_slopes(draws, {(ANCHOR, "A100-40GB"): 14.8})[2]
    points = next(line for line in ax.get_lines() if line.get_marker() == "o")
    x, y = np.asarray(points.get_xdata()), np.asarray(points.get_ydata())
    assert x[1:] / x[:-1] == pytest.approx([4, 4])
    cell = draws.mask(ANCHOR, "A100-40GB") & (draws.batch == 16) & (draws.context == 512)
    assert y[0] == pytest.approx(draws.step_ms[cell].mean())
    published = next(line for line in ax.get_lines() if line.get_marker() == "D")
    assert np.asarray(published.get_ydata()) == pytest.approx(y[0] + 14.8)
    assert "+14.8" in words(ax.figure)


def test_margins_draw_every_gpu_the_pooled_curve_and_the_decision_lines():
    draws = STUDIES["imputed"]()
    data = h1(draws, Margins()).data
    (ax,) = margins(data, draws.label, 2.0)
    curves = [line.get_ydata() for line in ax.get_lines() if len(np.atleast_1d(line.get_xdata())) == 21]
    assert len(curves) == len(GPUS) + 1
    family = data["families"][0]
    assert np.asarray(curves[-1]) == pytest.approx([p["probability"] for p in family["margins"]])
    flat = [line.get_ydata()[0] for line in ax.get_lines() if list(line.get_xdata()) == [0, 1]]
    assert flat == pytest.approx([0.95, 0.05])


def test_margins_say_why_nothing_was_tested():
    data = h1(simulate(MEASURED, models=(ANCHOR, SMALL)), Margins()).data
    (ax,) = margins(data, MEASURED, 2.0)
    assert "No model of the anchor's class" in words(ax.figure)


def pair(**changed: Any) -> dict[str, Any]:
    found = {"mean": [5.0, 0.9], "covariance": [[2.0, -0.6], [-0.6, 0.25]], "cos2": 0.72, "mean_gpu_ms": 2.0}
    return {"model": SMALL, "gpu": "H100", "verdict": "supported", "offset_slope": found, **changed}


def test_joint_draws_an_ellipse_for_each_level_and_judged_pair_with_its_cos2():
    rows = [pair(), pair(gpu="H200", verdict="not tested"), pair(gpu="A100-40GB", offset_slope=None)]
    axes = joint(rows, IMPUTED)
    assert (xs(axes[0], "o"), xs(axes[1], "o")) == ([5.0], [pytest.approx(5.0 + 0.9 * 2.0 - 2.0)])
    rings = [np.stack(line.get_data()) for line in axes[0].get_lines() if len(line.get_xdata()) > 100]
    inverse = np.linalg.inv([[2.0, -0.6], [-0.6, 0.25]])
    for ring, share in zip(rings, (0.5, 0.9), strict=True):
        away = ring - np.array([[5.0], [0.9]])
        assert np.einsum("in,ij,jn->n", away, inverse, away) == pytest.approx(-2 * np.log(1 - share))
    assert f"{SMALL} on H100: cos² 0.72" in words(axes[0].figure)
    assert "H200" not in words(axes[0].figure)


def test_joint_without_a_judged_pair_is_refused():
    with pytest.raises(ValueError, match="judges no pair"):
        joint([pair(verdict="not tested")], IMPUTED)


@pytest.mark.parametrize("worst", [-12.0, -290.0])
def test_structures_mark_short_fits_and_clip_nothing(worst):
    named = "floor per (gpu, kernel latency) + per sequence, added, H >= 0"
    gates = {"floor per (gpu), added": (0.0, "passed"), named: (-2.0, "short fit"), "no floor": (worst, "short fit")}
    rows = [
        {"name": name, "parameters": 7, "elpd": 70.0 + gap, "elpd_diff": gap, "dse": 2.0, "gate": gate}
        for name, (gap, gate) in gates.items()
    ]
    failed = {"name": "failed", "parameters": 3, "elpd": None, "gate": "R-hat 1.5 in a short fit"}
    found = SimpleNamespace(structures=[*rows, failed], chosen="floor per (gpu), added", cells=135, label="measured")
    ax = structures(found)
    figure = ax.figure
    renderer = FigureCanvasAgg(figure).get_renderer()
    figure.draw(renderer)
    said = [text for text in figure.findobj(Text) if text.get_visible() and text.get_text().strip()]
    assert {f"{named} (7)", "Which floor? Structures on the same cells\nData: 135 measured cells"} <= {
        text.get_text() for text in said
    }
    inside = figure.bbox.expanded(1.001, 1.001)
    for text in said:
        box = text.get_window_extent(renderer)
        assert inside.contains(box.x0, box.y0), text.get_text()
        assert inside.contains(box.x1, box.y1), text.get_text()
    hollow = [to_rgba(line.get_markerfacecolor()) == to_rgba("white") for line in ax.lines if line.get_marker() in "so"]
    assert hollow == [False, True, True]
    assert [tick.get_text() for tick in ax.get_yticklabels()] == [f"{row['name']} (7)" for row in rows]


def test_ten_models_have_ten_looks():
    looks = model_styles([str(i) for i in range(25)])
    assert len(set(looks.values())) == 25
