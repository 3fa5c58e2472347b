"""The section "Which floor?": words, record and page of made-up competitions and comparisons."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text as Drawn

from rooffloor.models.floor.structures import FloorStructure
from rooffloor.validate.common.files import json_dumps
from rooffloor.validate.comparison import answer
from rooffloor.validate.comparison.comparison import Comparison
from rooffloor.validate.presentation import blocks
from rooffloor.validate.presentation.figures import which_floor as figures
from rooffloor.validate.published.evidence import competition
from rooffloor.validate.published.evidence.compete import Task
from rooffloor.validate.published.evidence.competition import (
    PLAIN,
    REFERENCE,
    Competition,
    log_bayes_factor,
    sides_of,
)
from rooffloor.validate.published.imputation.readings import DISCREPANCIES, FEASIBLE_READINGS, GRIDS, ROOF, Index
from rooffloor.validate.reporting.sections import which_floor
from rooffloor.validate.study.study import Study

GPUS = ("H100", "A100-40GB")
INDICES = tuple(Index(GRIDS[0], reading, ROOF, DISCREPANCIES[0]) for reading in FEASIBLE_READINGS[:2])
BEST = FloorStructure("gpu, model", "overlapped")
OTHERS = {"log_possible": 0.0, "levels": 20.0, "width": 1.0}


def made_up(
    gains: dict[FloorStructure, float],
    scales: dict[str, float] | None = None,
    se: float = 0.1,
) -> Competition:
    """A competition whose structures lie so far above log likelihood -40 in all, the best one more per prior scale."""
    rows = []
    for scale, more in ({"default": 0.0} | (scales or {})).items():
        for index in INDICES if scale == "default" else INDICES[:1]:
            for floor, gain in gains.items():
                log_ml = -20.0 + (gain + more * (floor == BEST)) / len(GPUS)
                out = {"log_ml": log_ml, "se": se if np.isfinite(log_ml) else np.nan}
                rows += [Task(floor, index, gpu, scale).labels | OTHERS | out for gpu in GPUS]
    return Competition(pd.DataFrame(rows))


def no_image(key: str) -> tuple[blocks.Image, ...]:
    return ()


def told(part: object) -> str:
    """Every text of a section or a block, on one line."""
    match part:
        case blocks.Section():
            return " ".join(told(one) for one in (*part.blocks, *part.sections))
        case blocks.Table():
            heads = [f"{c.title} {c.note}" for c in part.columns]
            return " ".join([part.caption, *heads, *(line for row in part.rows for cell in row for line in cell.lines)])
        case blocks.Items():
            return " ".join(part.items)
        case blocks.Fold():
            return " ".join([part.title, *map(told, part.blocks)])
        case blocks.Text():
            return part.text
    return ""


def page(record: dict[str, Any]) -> str:
    """The section as the report makes it: from the record as report.json holds it."""
    return told(which_floor.section(json.loads(json_dumps(record)), no_image))


def cells_of(record: dict[str, Any], name: str) -> list[str]:
    """The cells of one structure's row."""
    section = which_floor.section(json.loads(json_dumps(record)), no_image)
    table = next(b for b in section.blocks if isinstance(b, blocks.Table))
    at = [row["name"] for row in record["structures"]].index(name)
    return [" ".join(cell.lines) for cell in table.rows[at]]


# ---- published aggregates: words --------------------------------------------------------------------------------


def test_the_answer_names_the_best_its_factors_and_what_each_gpu_adds() -> None:
    found = made_up({BEST: 4.0, REFERENCE: 0.0, PLAIN: -16.0}, {"floors halved": 1.0, "floors doubled": -1.0})
    said = " ".join(answer.of_competition(found))
    assert f"Of 3 floor structures, the published figures are likeliest under {BEST}." in said
    assert f"Against {REFERENCE} (the study's own at its richest) the log Bayes factor is +4.0 ± " in said
    assert f"Against {PLAIN} (one floor for all models of a GPU) the log Bayes factor is +20.0 ± " in said
    assert "more than 10 000 times as probable" in said
    assert "H100 +2.0 ± " in said
    assert "A100-40GB +2.0 ± " in said
    assert "stays above 3 over all prior scales, the log from +3.0 ± 0.4 (floors doubled) to +5.0" in said
    assert "not about cells" in said
    assert "No imputed grid was fitted" in said
    notes = " ".join(answer.notes(found))
    assert "other than the default (floors halved, floors doubled) were run under the first reading only" in notes
    assert f"({INDICES[0].reading})" in notes


def test_one_reading_alone_is_said() -> None:
    runs = made_up({BEST: 4.0, REFERENCE: 0.0}).runs
    alone = Competition(runs[runs["reading"] == INDICES[0].reading])
    said = " ".join(answer.notes(alone))
    assert f"One reading of the study alone was run ({GRIDS[0].name}; {INDICES[0].reading};" in said


def test_a_side_that_depends_on_the_prior_is_not_determined() -> None:
    found = made_up({BEST: 4.0, REFERENCE: 0.0}, {"floors halved": -3.5})
    assert "Not determined: " in " ".join(answer.of_competition(found))
    assert "the log from +0.5 ± 0.4 (floors halved) to +4.0 ± 0.3 (default)." in " ".join(answer.of_competition(found))
    assert found.data["structures"][0]["verdict"] == "not determined"
    assert "Against the best, not told apart or not determined: " in " ".join(answer.notes(found))
    wide = made_up({BEST: 1.5, REFERENCE: 0.0}, se=0.3)  # 1.5 with an error of 2 × 0.42
    assert "to one side of the band 1/3 to 3 under the one prior scale that was run." in " ".join(
        answer.of_competition(wide)
    )


def test_gpus_that_disagree_are_named() -> None:
    runs = made_up({BEST: 4.0, REFERENCE: 0.0}).runs
    own = runs["structure"] == str(BEST)
    runs.loc[own & (runs["gpu"] == "H100"), "log_ml"] += 8.0
    runs.loc[own & (runs["gpu"] != "H100"), "log_ml"] -= 8.0
    said = " ".join(answer.of_competition(Competition(runs)))
    assert f"The GPUs disagree: the figures of H100 speak for {BEST}, those of A100-40GB for {REFERENCE}." in said
    assert "disagree" not in " ".join(answer.of_competition(made_up({BEST: 4.0, REFERENCE: 0.0})))


def test_structures_that_are_alike_are_not_told_apart() -> None:
    found = made_up({BEST: 0.2, REFERENCE: 0.0}, {"floors halved": 0.0})
    assert "stays within 1/3 to 3 over all prior scales" in " ".join(answer.of_competition(found))
    assert "do not tell the two apart" in " ".join(answer.of_competition(found))


def test_where_the_study_s_own_is_best_the_runner_up_stands_against_it() -> None:
    said = " ".join(answer.of_competition(made_up({BEST: -5.0, REFERENCE: 0.0, PLAIN: -9.0})))
    assert f"likeliest under {REFERENCE}, the study's own at its richest." in said
    assert f"Against {BEST} (the runner-up) the log Bayes factor is +5.0" in said
    assert f"Against {PLAIN} (one floor" in said


@pytest.mark.parametrize("lost", [PLAIN, REFERENCE, BEST])
def test_out_of_reach_is_said_and_breaks_nothing(lost: FloorStructure) -> None:
    gains = {BEST: 4.0, REFERENCE: 0.0, PLAIN: -3.0} | {lost: -np.inf}
    found = made_up(gains, {"floors halved": 0.0})
    record = which_floor.of_competition(found)
    text = json_dumps(record)
    assert "NaN" not in text
    assert "Infinity" not in text
    assert "; 1 stayed out of reach, not judged." in record["answer"][0]
    assert f"{lost} (" not in record["answer"][0]
    assert cells_of(record, str(lost))[2] == "out of reach"
    assert "out of reach ended at 1.0 roundings" in page(record)
    assert any("does not make the structure less likely" in note for note in record["notes"])
    assert "nan" not in page(record).replace("dominant", "")
    figures.competition(record).figure.draw_without_rendering()
    if lost == REFERENCE:
        assert "so that there is no Bayes factor against it" in " ".join(record["answer"])
        assert cells_of(record, str(BEST))[-2] == "reference out of reach"
        assert cells_of(record, str(BEST))[-1] == "not determined"  # not more likely than what was not reached
    if lost == PLAIN:
        assert cells_of(record, str(PLAIN))[-2:] == ["out of reach", "out of reach"]


def test_a_prior_scale_that_was_not_run_is_no_reach() -> None:
    found = made_up({BEST: 4.0, REFERENCE: 0.0, PLAIN: -np.inf}, {"floors halved": 1.0})
    lacking = (found.runs["structure"] == str(PLAIN)) & (found.runs["scale"] != "default")
    record = which_floor.of_competition(Competition(found.runs[~lacking]))
    assert cells_of(record, str(PLAIN))[-3:] == ["out of reach", "not run", "out of reach"]
    assert "and not for structures that were out of reach under the default." in " ".join(record["notes"])
    ax = figures.competition(record)
    assert sum(line.get_marker() == "<" for line in ax.get_lines()) == 1


def test_all_out_of_reach() -> None:
    record = which_floor.of_competition(made_up({BEST: -np.inf, REFERENCE: -np.inf}))
    assert record["answer"][0] == "All 2 floor structures stayed out of reach of the published figures."
    assert record["structures"][0]["verdict_against_best"] == "the same"
    assert record["structures"][1]["verdict_against_best"] == "out of reach"
    figures.competition(record).figure.draw_without_rendering()


def test_a_factor_of_unknown_error_takes_no_side() -> None:
    assert sides_of(5.0, 0.1) == (1, 1)
    assert sides_of(5.0, np.nan) == (-1, 1)
    assert sides_of(np.nan, np.nan) == (-1, 1)
    assert sides_of(-np.inf, np.nan) == (-1, 1)  # out of reach is not less likely
    found = made_up({BEST: 9.0, REFERENCE: 0.0}, se=np.nan)
    assert "+9.0 unknown error" in " ".join(answer.of_competition(found))
    assert found.verdict(str(BEST), str(REFERENCE)) == "not determined"
    assert "some repeats of a run arrived" in " ".join(answer.notes(found))


def test_a_run_that_two_structures_share_has_one_error() -> None:
    first, second = np.array([[-10.0, -20.0]]), np.array([[-12.0, -20.0]])
    error, shared = np.array([[0.3, 5.0]]), np.array([[0.4, 5.0]])
    assert log_bayes_factor(first, error, second, shared) == pytest.approx((2.0, 0.5))
    two = np.array([[-10.0, -20.0], [-np.inf, -20.0]])  # an index out of reach weighs nothing
    twice = np.array([[0.3, 5.0], [np.nan, 5.0]])
    assert log_bayes_factor(two, twice, two, twice) == pytest.approx((0.0, 0.0))


@pytest.mark.parametrize(
    ("log_bf", "se", "text"),
    [
        (3.0, 0.2, "the figures are 13 to 30 times as probable"),
        (0.5, 0.5, "no more than the error of the computation"),
        (9.0, 0.5, "the figures are 3000 to more than 10 000 times as probable"),
        (30.0, 0.5, "the figures are more than 10 000 times as probable"),
    ],
)
def test_factors_in_words(log_bf: float, se: float, text: str) -> None:
    assert answer.factor(log_bf, se) == text


# ---- published aggregates: record and page ----------------------------------------------------------------------


def test_the_record_comes_from_the_file_beside_the_study(tmp_path: Path) -> None:
    absent = which_floor.published(tmp_path)
    assert not absent["run"]
    assert "was not run" in page(absent)
    assert "rooffloor.validate.published.evidence.compete.run" in page(absent)
    found = made_up({BEST: 4.0, REFERENCE: 0.0, PLAIN: -np.inf}, {"floors halved": 1.0})
    competition.save(found, tmp_path)
    assert json_dumps(which_floor.published(tmp_path)) == json_dumps(which_floor.of_competition(found))


def test_the_page_has_a_column_for_each_gpu_and_each_prior_scale() -> None:
    record = which_floor.of_competition(made_up({BEST: 4.0, REFERENCE: 0.0}, {"floors halved": -3.5}))
    assert cells_of(record, str(BEST))[:2] == ["gpu, model", "overlapped"]
    assert len(cells_of(record, str(BEST))) == 2 + 1 + 2 + 1
    assert "H100 log Bayes factor" in page(record)
    assert cells_of(record, str(BEST))[-3:] == ["+4.0 ± 0.3", "+0.5 ± 0.4", "not determined"]
    assert cells_of(record, str(REFERENCE))[:2] == ["gpu, model", "added the reference"]
    assert cells_of(record, str(REFERENCE))[-3:] == ["–", "–", "the same"]


def test_the_figure_has_a_marker_for_each_scale_and_names_its_data() -> None:
    found = made_up({BEST: 4.0, REFERENCE: 0.0, PLAIN: -np.inf}, {"floors halved": -3.5})
    figure, given = plt.subplots()
    try:
        ax = figures.competition(which_floor.of_competition(found), ax=given)
        assert ax is given
    finally:
        plt.close(figure)
    points = {line.get_marker(): line for line in ax.get_lines() if line.get_marker() not in ("None", None)}
    assert set(points) == {"o", "s", "<"}
    at = [float(line.get_xdata()[0]) for line in ax.get_lines() if line.get_marker() in "os"]
    assert at == pytest.approx([4.0, 0.5, 0.0, 0.0])
    own = figures.competition(which_floor.of_competition(found)).figure
    assert isinstance(own, Figure)
    words = " ".join(text.get_text() for text in own.findobj(Drawn))
    assert "Data: published aggregates" in words
    assert "out of reach" in words


def test_far_structures_are_drawn_on_a_bent_axis() -> None:
    near, far = (made_up({BEST: 4.0, REFERENCE: 0.0, PLAIN: low}) for low in (-20.0, -300.0))
    scales = [figures.competition(which_floor.of_competition(found)).get_xscale() for found in (near, far)]
    assert scales == ["linear", "symlog"]


def test_the_report_reads_the_competition_of_the_study() -> None:
    study = Study.load("transfer-study")
    committed = (study.data.path.parent / competition.TABLE).exists()
    assert which_floor.published(study.data.path.parent)["run"] == committed


# ---- measured cells ---------------------------------------------------------------------------------------------


def row(name: str, elpd: float | None, diff: float | None = None, gate: str = "passed") -> dict[str, Any]:
    known = {} if elpd is None else {"dse": 1.5, "weight": 0.5}
    numbers = {"elpd": elpd, "elpd_diff": diff, "dse": None, "weight": None} | known
    return {"name": name, "shared_by": "gpu", "combine": "max", "parameters": 3, **numbers, "gate": gate}


def comparison(**given: Any) -> Comparison:
    overlap = {
        "structure": "floor b",
        "q": {"mean": 0.4, "sd": 0.1, "low_90": 0.0, "high_90": 0.6},
        "p": {"median": 2.5, "low_90": 1.7, "high_90": float("inf")},
        "identified": True,
        "misfit": 0.001,
        "informative_share": 0.75,
    }
    content: dict[str, Any] = {
        "structures": [row("floor b", 10.0, 0.0), row("floor a", 8.0, -2.0), row("floor c", None, gate="R-hat 1.3")],
        "chosen": "floor a",
        "overlap": overlap,
        "left_out": [],
        "leftover": [{"trend": "log batch", "slope": 0.1, "low_90": -0.1, "high_90": 0.3}],
        "likelihood": {},
        "warnings": ["24 cells are few."],
        "answer": "the data support floor a.",
        "cells": 24,
        "label": "measured",
    }
    later = {f.name: [] for f in dataclasses.fields(Comparison) if f.name not in content}  # that this page only lists
    return Comparison(**(later | content | given))


def test_a_comparison_without_refits() -> None:
    record = which_floor.of_comparison(comparison(), "measured")
    assert record["data"] == "measured"
    assert record["answer"] == ["The data support floor a."]
    said = page(record)
    assert "q = 0.40 [0.00, 0.60] (90 %; 1: added, 0: the longer of the two)" in said
    assert "as a power p = 1/q 2.5 [1.7, ∞]" in said
    assert "These cells identify it" in said
    assert "75 % of the cells inform it" in said
    assert "Refits without a model, GPU or pair: only with --full or rooffloor compare." in said
    assert "24 cells are few." in said
    assert "log batch" in said
    assert cells_of(record, "floor a") == ["floor a chosen", "3", "8.0", "-2.0 ± 1.5", "0.50", "passed"]
    assert cells_of(record, "floor c")[2:] == ["–", "–", "–", "failed: R-hat 1.3"]


def test_an_overlap_that_is_not_identified_or_not_free() -> None:
    record = which_floor.of_comparison(comparison(), "measured")
    record["overlap"] = record["overlap"] | {"identified": False}
    assert "It is not identified: its posterior sd exceeds half" in page(record)
    record["overlap"] = {"structure": None, "identified": False}
    assert "nothing is said of the overlap" in page(record)


def test_refits_and_likelihoods_are_shown_where_there_are_any() -> None:
    left = {"structure": "floor a", "kind": "gpu", "left_out": "A100", "cells": 6, "coverage_50": 0.5}
    left |= {"coverage_90": 0.83, "relative_width_90": 0.2, "log_score": -3.2, "baseline_log_score": -9.1}
    student = {"chosen": "normal", "dse": 1.0, "sentence": "Normal noise stands."}
    record = which_floor.of_comparison(comparison(left_out=[left | {"passed": True}], likelihood=student), "measured")
    said = page(record)
    assert "only with --full" not in said
    assert "A100 6 0.50 0.83 0.20 -3.2 -9.1 passed" in said
    assert "Normal noise stands." in said


def test_keys_that_the_page_does_not_know_are_shown_as_they_are() -> None:
    record = which_floor.of_comparison(comparison(), "measured")
    record["roles"] = ["The launches are on the floor's side."]
    record["constants"] = [{"structure": "floor a", "constant": "eta_bw", "gpu": "H100", "joint": 0.77, "cut": 0.75}]
    record["odd"] = {"a": 1.5, "rows": [{"b": 2}]}
    record["empty"] = []
    pulls = [{"structure": f"floor {s}", "p": 0.5, "sentence": f"Sentence on {s}."} for s in "abc"]
    record["tension"] = pulls
    record["noise"] = {"repeats": 0.01, "sentence": "Repeats differ by 1 %."}
    said = page(record)
    assert "The launches are on the floor's side." in said
    assert "Constants" in said
    assert "eta_bw H100 0.77 0.75" in said
    assert "Odd" in said
    assert "Empty" not in said
    section = which_floor.section(record, no_image)
    assert any(b == blocks.Items(("Sentence on a.",)) for b in section.blocks)  # the chosen one
    folds = {b.title: told(b) for b in section.blocks if isinstance(b, blocks.Fold)}
    assert "Sentence on b." in folds["Tension"]
    assert "0.01" in folds["Noise"]
    assert "Repeats differ by 1 %." in said


def test_nothing_was_compared() -> None:
    record = which_floor.of_comparison(None, "measured")
    assert not record["run"]
    assert "rooffloor compare" in page(record)
    assert not which_floor.section(None, no_image)
