"""`rooffloor check`: from a stranger's file to a verdict, a page and an exit code."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from rooffloor.models.calibration import store
from rooffloor.models.calibration.anchor import rejoined
from rooffloor.models.calibration.draws import Calibration
from rooffloor.models.specs import shapes as model_catalog
from rooffloor.validate.cli import main as cli
from rooffloor.validate.common.errors import InputError
from rooffloor.validate.fitting import saved
from rooffloor.validate.fitting.evidence import fit
from rooffloor.validate.measurements.load import load_measurements
from rooffloor.validate.simulation import check as simulated_checks
from rooffloor.validate.simulation.family import Planted, measured
from rooffloor.validate.simulation.hypotheses import GRID
from rooffloor.validate.study.margins import Margins
from rooffloor.validate.study.study import Study
from rooffloor.validate.transfer import check as transfer
from rooffloor.validate.transfer import error_rates
from rooffloor.validate.transfer.cause import Cause
from rooffloor.validate.transfer.plan.plan import plan
from rooffloor.validate.transfer.words import SHOWN

FAMILY = "Qwen2.5-7B"


def simulate(seed: int = 1, draws: int = 300, **truth: Any) -> tuple[pd.DataFrame, Calibration]:
    """Rows of a planted family as a user has them, and the calibration beside it."""
    _, cells, _, posterior, _ = measured(Planted(**truth), np.random.default_rng(seed), draws)
    columns = {"model": cells.model, "gpu": cells.gpu, "batch": cells.batch, "context": cells.context}
    return pd.DataFrame({**columns, "step_ms": cells.step_ms}), posterior


@pytest.fixture(scope="module")
def moved() -> tuple[pd.DataFrame, Calibration]:
    return simulate(floor_ms=3.0)


@pytest.fixture(scope="module")
def found(moved: tuple[pd.DataFrame, Calibration]) -> transfer.Check:
    frame, posterior = moved
    return transfer.check(FAMILY, frame, calibration=posterior)


def write(folder: Path, frame: pd.DataFrame, name: str = "mine.csv") -> Path:
    path = folder / name
    frame.to_csv(path, index=False)
    return path


@pytest.fixture
def npz(tmp_path: Path, moved: tuple[pd.DataFrame, Calibration]) -> Path:
    path = tmp_path / "posterior.npz"
    path.write_bytes(store.to_npz(moved[1]))
    return path


# ---- verdicts -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("truth", "verdict", "causes", "code"),
    [
        ({}, transfer.HOLDS, (transfer.NOTHING, transfer.CANNOT_TELL), 0),
        ({"floor_ms": 3.0}, transfer.DOES_NOT_HOLD, (transfer.RECALIBRATE,), 1),
        ({"whole": 1.25}, transfer.DOES_NOT_HOLD, (transfer.MISMATCH,), 1),
        ({"whole": 1 / 0.9}, transfer.HOLDS, (transfer.CANNOT_TELL,), 0),
        ({"weights": 1 / 0.7, "gpus": ("H100",)}, transfer.DOES_NOT_HOLD, (transfer.INDISTINGUISHABLE,), 1),
        ({"q": 0.5, "floor_ms": 3.0}, transfer.DOES_NOT_HOLD, (transfer.RECALIBRATE,), 1),
        ({"q": 0.5, "whole": 1.25}, transfer.DOES_NOT_HOLD, (transfer.MISMATCH,), 1),
        ({"q": 0.5}, transfer.HOLDS, (transfer.NOTHING, transfer.CANNOT_TELL), 0),
    ],
)
def test_the_exit_code_is_the_verdict_on_a_planted_family(
    truth: dict[str, Any],
    verdict: str,
    causes: tuple[str, ...],
    code: int,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
):
    frame, posterior = simulate(seed=4, **truth)
    (tmp_path / "posterior.npz").write_bytes(store.to_npz(posterior))
    path = write(tmp_path, frame)
    arguments = ["check", "--config", FAMILY, "--measurements", str(path), "--study", str(tmp_path), "--json"]
    assert cli.main(arguments) == code
    data = json.loads(capsys.readouterr().out)
    assert data["verdict"] == verdict
    assert data["cause"] in causes
    assert (data["probability"] >= 0.95, data["probability"] <= 0.05) == (code == 0, code == 1)
    assert set(data["probabilities"]) == set(transfer.STATED)


def test_an_error_far_beyond_the_tolerance_does_not_hold_whatever_the_cause():
    frame, posterior = simulate(gpus=("H100",), seed=3)
    told = transfer.check(FAMILY, frame.assign(step_ms=frame["step_ms"] * 3.0), calibration=posterior)
    assert told.verdict == transfer.DOES_NOT_HOLD
    assert told.probability < 0.001
    assert told.data["overall"]["use"]["measured_mape"] > 60.0


def test_a_tolerance_moves_the_verdict_and_not_the_error():
    frame, posterior = simulate(gpus=("H100",), seed=3, floor_ms=1.0)
    tight, wide = (transfer.check(FAMILY, frame, calibration=posterior, tolerance=t) for t in (2.0, 30.0))
    assert (tight.verdict, wide.verdict) == (transfer.DOES_NOT_HOLD, transfer.HOLDS)
    assert tight.data["overall"]["use"]["error"] == wide.data["overall"]["use"]["error"]
    assert tight.cause == wide.cause
    with pytest.raises(InputError, match="--tolerance 0: expected a MAPE above 0"):
        transfer.check(FAMILY, frame, calibration=posterior, tolerance=0.0)


def test_the_first_lines_say_whether_then_why(found: transfer.Check):
    lines = found.text.splitlines()
    assert lines[0] == "Qwen2.5-7B: does not hold"
    assert lines[1].startswith("P(MAPE within 10 % on every GPU) below 0.01: ")
    why = [n for n, line in enumerate(lines) if line.startswith("Why: recalibrate: floor +")]
    assert why
    assert why[0] <= 3


def test_a_new_floor_comes_with_its_interval_and_its_error_rate(found: transfer.Check):
    assert found.cause == transfer.RECALIBRATE
    low, high = found.data["overall"]["floor_above_anchor"]["intervals"]["90"]
    assert low < 3.0 < high
    assert "Error rate" in found.text or "not simulated" in found.text
    assert "were they overlapped, the cause would be" in " ".join(found.text.split())


def test_three_cells_are_enough_to_say_something_and_never_wrongly_sure(moved: tuple[pd.DataFrame, Calibration]):
    frame, posterior = moved
    few = frame[frame[["batch", "context"]].apply(tuple, axis=1).isin([(1, 512), (4, 2048), (16, 8192)])]
    said = transfer.check(FAMILY, few, calibration=posterior)
    assert said.verdict == transfer.DOES_NOT_HOLD
    assert said.cause in (transfer.RECALIBRATE, transfer.CANNOT_TELL)
    assert len(said.cells) == 9


def test_a_family_whose_class_is_never_measured_is_judged_by_its_own_cells():
    frame, posterior = simulate(model="Llama-3.2-1B", seed=2)
    said = transfer.check("Llama-3.2-1B", frame, calibration=posterior)
    assert said.cause in (transfer.NOTHING, transfer.CANNOT_TELL)
    assert any(reason.startswith("parameters:") for reason in said.data["outside"])


def test_the_published_study_judges_new_cells_without_a_fit(tmp_path: Path):
    frame, _ = simulate(gpus=("H100",))
    said = transfer.check(FAMILY, frame)
    assert said.data["calibration"]["label"] == "imputed from published aggregates"
    assert said.data["margins"]["label"] == "post hoc"
    assert "imputed from published aggregates" in said.text


def test_where_it_depends_on_how_floors_join_nothing_is_claimed():
    """Overlapped steps beside a calibration that adds: the slope of T_gpu is then the floor's."""
    shapes, cells, _, posterior, _ = measured(Planted(q=0.3, floor_ms=3.0), np.random.default_rng(8), 300)
    anew, _ = rejoined(posterior, "added", np.random.default_rng(1))
    columns = {"gpu": cells.gpu, "batch": cells.batch, "context": cells.context, "step_ms": cells.step_ms}
    said = transfer.check(shapes, pd.DataFrame(columns), calibration=anew)
    assert said.data["joins"]["overlapped"]["posterior"] > 0.99
    assert said.cause == transfer.CANNOT_TELL
    assert said.verdict == transfer.DOES_NOT_HOLD
    assert "depends on how floors join" in said.text


# ---- what a user has ----------------------------------------------------------------------------------------------


def test_model_and_gpu_need_no_column_where_options_say_them(tmp_path: Path, moved: tuple[pd.DataFrame, Calibration]):
    frame, posterior = moved
    one = frame[frame["gpu"] == "H100"]
    whole = transfer.check(FAMILY, one, calibration=posterior)
    bare = transfer.check(FAMILY, one[["batch", "context", "step_ms"]], gpu="H100", calibration=posterior)
    assert bare.data["probabilities"] == whole.data["probabilities"]
    with pytest.raises(InputError, match="no column gpu; name the GPU with --gpu"):
        transfer.check(FAMILY, one[["batch", "context", "step_ms"]], calibration=posterior)


def test_gpu_chooses_rows(moved: tuple[pd.DataFrame, Calibration]):
    frame, posterior = moved
    said = transfer.check(FAMILY, frame, gpu="H200", calibration=posterior)
    assert [row["gpu"] for row in said.data["per_sku"]] == ["H200"]
    with pytest.raises(InputError, match=r"no row of Qwen2\.5-7B on L40S; the file has"):
        transfer.check(FAMILY, frame, gpu="L40S", calibration=posterior)


def test_rows_of_other_models_are_left_alone_and_a_missing_model_is_named(moved: tuple[pd.DataFrame, Calibration]):
    frame, posterior = moved
    both = pd.concat([frame, frame.assign(model="something else")])
    assert transfer.check(FAMILY, both, calibration=posterior).data["measurements"]["rows"] == len(frame)
    with pytest.raises(InputError, match=r"no row of 'Mistral-7B-v0\.3'; the file has Qwen2\.5-7B: name one with"):
        transfer.check("Mistral-7B-v0.3", frame, calibration=posterior)


def test_a_config_file_goes_by_the_name_that_the_file_has_for_its_model(
    tmp_path: Path, moved: tuple[pd.DataFrame, Calibration]
):
    config = {
        "model_type": "qwen2",
        "hidden_size": 3584,
        "intermediate_size": 18944,
        "num_hidden_layers": 28,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "vocab_size": 152064,
        "max_position_embeddings": 32768,
        "tie_word_embeddings": False,
    }
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    frame, posterior = moved
    said = transfer.check(path, frame.assign(model="our/new-7B"), calibration=posterior)
    assert said.data["model"] == "our/new-7B"
    assert said.cause == transfer.RECALIBRATE


def test_repeats_are_averaged_and_do_not_count_as_evidence(moved: tuple[pd.DataFrame, Calibration]):
    frame, posterior = moved
    many = pd.concat([frame.assign(repeat=k) for k in range(20)])
    once, often = (transfer.check(FAMILY, f, calibration=posterior) for f in (frame, many))
    assert often.data["probabilities"] == pytest.approx(once.data["probabilities"], abs=1e-9)
    assert often.data["measurements"]["rows"] == 20 * len(frame)
    assert "repeats averaged" in often.text


def test_thousands_of_cells_are_taken():
    grid = tuple((batch, context + 3 * k) for batch, context in GRID for k in range(100))
    frame, posterior = simulate(seed=3, floor_ms=3.0, gpus=("H100",), grid=grid)
    said = transfer.check(FAMILY, frame, calibration=posterior)
    assert len(said.cells) == 1500
    assert said.verdict == transfer.DOES_NOT_HOLD
    assert said.cause in (transfer.RECALIBRATE, transfer.INDISTINGUISHABLE)


def test_on_a_gpu_that_was_never_measured_the_floor_is_predicted_and_said_so(moved: tuple[pd.DataFrame, Calibration]):
    frame, posterior = moved
    said = transfer.check(FAMILY, frame[frame["gpu"] == "H100"].assign(gpu="L40S", step_ms=30.0), calibration=posterior)
    reasons = " ".join(said.data["outside"])
    assert "GPU: L40S not measured" in reasons
    assert "its floor there is predicted" in reasons
    assert said.verdict == transfer.DOES_NOT_HOLD
    assert said.cause in (transfer.CANNOT_TELL, transfer.MISMATCH)


def test_the_anchor_itself_can_be_checked_anew(moved: tuple[pd.DataFrame, Calibration]):
    _, posterior = moved
    at = posterior.anchor_gpu == 0
    frame = pd.DataFrame(
        {
            "batch": posterior.anchor_batch[0, at],
            "context": posterior.anchor_context[0, at],
            "step_ms": posterior.anchor_step_ms[0, at],
        }
    )
    said = transfer.check(posterior.anchor, frame, gpu=posterior.gpus[0], calibration=posterior)
    assert said.verdict == transfer.HOLDS


def test_an_anchor_in_the_same_file_is_calibrated_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    frame, posterior = simulate(seed=6, whole=1.3, gpus=("H100",))
    anchor = pd.DataFrame(
        {
            "model": posterior.anchor,
            "gpu": "H100",
            "batch": posterior.anchor_batch[0],
            "context": posterior.anchor_context[0],
            "step_ms": posterior.anchor_step_ms[0],
        }
    )
    path = write(tmp_path, pd.concat([anchor, frame]))
    asked = ["check", "--config", FAMILY, "--measurements", str(path), "--anchor", "llama-3.1-8b"]
    assert cli.main(asked) in (1, 4)
    text = capsys.readouterr().out
    assert "judged by the calibration Llama-3.1-8B in mine.csv (Llama-3.1-8B, measured)" in text
    with pytest.raises(InputError, match="no row of the anchor 'Llama-2-7B'"):
        transfer.check(FAMILY, path, anchor="Llama-2-7B")


# ---- what comes out -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("verdict", "cause", "question", "combine", "goal"),
    [
        (transfer.HOLDS, transfer.NOTHING, None, "added", "floor"),
        (transfer.UNDECIDED, transfer.NOTHING, None, "added", "floor"),
        (transfer.DOES_NOT_HOLD, transfer.RECALIBRATE, None, "overlapped", "floor"),
        (transfer.DOES_NOT_HOLD, transfer.MISMATCH, None, "added", "shape"),
        (transfer.DOES_NOT_HOLD, transfer.INDISTINGUISHABLE, None, "added", "shape"),
        (transfer.DOES_NOT_HOLD, transfer.CANNOT_TELL, "slope", "added", "shape"),
        (transfer.UNDECIDED, transfer.CANNOT_TELL, "slope", "overlapped", "overlap"),
        (transfer.UNDECIDED, transfer.CANNOT_TELL, "level: within the margins or not", "added", "floor"),
        (transfer.UNDECIDED, transfer.CANNOT_TELL, "joins: slope if floors are added", "added", "overlap"),
    ],
)
def test_the_open_question_is_a_goal_that_a_plan_takes(
    found: transfer.Check, verdict: str, cause: str, question: str | None, combine: str, goal: str
):
    overall = found.data["overall"] | {"open": question}
    data = found.data | {"verdict": verdict, "cause": cause, "overall": overall}
    asked: Any = SimpleNamespace(combine=combine)
    assert replace(found, result=Cause(data), data=data, calibration=asked).open_question == goal


def test_a_plan_goes_on_from_a_check(found: transfer.Check):
    further = plan(FAMILY, "H100", 2, calibration=found.calibration, measured=found.cells, goal=found.open_question)
    assert further.goal == "floor"
    assert further.data["measured"] == sum(cell.gpu == "H100" for cell in found.cells)
    assert not {(c.gpu, c.batch, c.context) for c in further.cells} & {(c.gpu, c.batch, c.context) for c in found.cells}


def test_loaded_measurements_are_judged_as_their_file(tmp_path: Path, moved: tuple[pd.DataFrame, Calibration]):
    frame, posterior = moved
    path = write(tmp_path, frame[frame["gpu"] == "H100"])
    loaded = transfer.check(FAMILY, load_measurements(path), calibration=posterior)
    assert loaded.data == transfer.check(FAMILY, path, calibration=posterior).data
    lines = loaded.to_csv(tmp_path / "verdict.csv").splitlines()
    assert [line.split(",")[0] for line in lines] == ["gpu", "H100", "all"]
    assert (tmp_path / "verdict.csv").read_text() == loaded.to_csv()


def test_same_seed_same_json(moved: tuple[pd.DataFrame, Calibration], found: transfer.Check):
    frame, posterior = moved
    again = transfer.check(FAMILY, frame, calibration=posterior)
    assert again.data == found.data


def test_frames_hold_what_the_page_says(found: transfer.Check):
    assert len(found.cells_frame()) == len(found.cells)
    frame = found.to_frame()
    assert frame["verdict"].iloc[-1] == found.verdict
    assert frame["cause"].iloc[-1] == found.cause
    assert frame["error_low"].lt(frame["error_high"]).all()
    assert frame["floor_above_anchor_low"].lt(frame["floor_above_anchor_high"]).all()
    assert frame["gpu"].tolist() == [*dict.fromkeys(c.gpu for c in found.cells), "all"]
    assert repr(found).startswith("Check(Qwen2.5-7B: does not hold (recalibrate the floor, P 0.00)")
    title = " ".join(found.plot().get_title(loc="left").split())
    assert title.endswith("measured cells, judged by the calibration simulated (Llama-3.1-8B, simulated)")


def test_page_escapes_names_and_holds_every_cell(tmp_path: Path, moved: tuple[pd.DataFrame, Calibration]):
    frame, posterior = moved
    name = "<script>alert(1)</script> $\\frac{"
    said = transfer.check(
        replace(model_catalog.load(FAMILY), name=name), frame.assign(model=name), calibration=posterior
    )
    page = said.save(tmp_path / "out")
    text = page.read_text()
    assert "<script>" not in text
    assert "&lt;script&gt;" in text
    assert text.count("data:image/png;base64,") == 2
    assert sorted(p.relative_to(tmp_path).as_posix() for p in tmp_path.rglob("*") if p.is_file()) == [
        "out/cells.csv",
        "out/check.html",
        "out/check.json",
        "out/figures/cells.png",
        "out/figures/verdict.png",
    ]
    cells = pd.read_csv(tmp_path / "out" / "cells.csv")
    assert len(cells) == len(frame)
    assert cells["label"].str.startswith("measured cells, judged by the calibration simulated").all()


def test_formulas_in_cells_csv_are_disarmed(tmp_path: Path, moved: tuple[pd.DataFrame, Calibration]):
    frame, posterior = moved
    frame = frame[frame["gpu"] == "H100"]
    said = transfer.check(FAMILY, frame, calibration=replace(posterior, label="=cmd|' /C calc'!A0"))
    said.save(tmp_path)
    lines = (tmp_path / "cells.csv").read_text().splitlines()[1:]
    assert not any(cell.startswith(("=", "+", "@")) for line in lines for cell in line.split(","))


def test_nothing_is_written_where_the_input_is_bad(tmp_path: Path, npz: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "bad.csv"
    path.write_text("batch,context,step_ms\n1,512,abc\n")
    out = tmp_path / "out"
    arguments = ["check", "--config", FAMILY, "--gpu", "H100", "--measurements", str(path), "--study", str(npz)]
    assert cli.main([*arguments, "--out", str(out)]) == 2
    error = capsys.readouterr().err
    assert (
        error == "rooffloor: bad.csv, row 2, column step_ms: found 'abc', expected milliseconds from 0.05 to 20000 "
        "(seconds? microseconds?)\n"
    )
    assert not out.exists() or not any(out.iterdir())


# ---- the calibration ----------------------------------------------------------------------------------------------


def test_committed_draws_are_those_of_the_study(tmp_path: Path):
    committed = saved.load("transfer-study")
    made = store.load(saved.build(fit(Study.load("transfer-study"), primary_only=True), tmp_path))
    for name in ("floor_ms", "noise_relative", "weight", "anchor_gpu_ms", "scales"):
        np.testing.assert_allclose(getattr(committed, name), getattr(made, name), rtol=1e-5)


def test_a_study_without_saved_draws_is_refused(tmp_path: Path):
    with pytest.raises(InputError, match=r"expected transfer-study, a posterior\.npz or a report's folder"):
        saved.load("no-such-study")
    with pytest.raises(InputError, match=r"posterior\.npz"):
        saved.load(tmp_path)


# ---- error rates --------------------------------------------------------------------------------------------------

ROW = {"calibration": error_rates.UNKNOWN, "truth": "nothing differs", "gpus": 3, "cells": 15, "sets": 100, "seed": 1}
ROW |= {"holds": 99, "does not hold": 0, "undecided": 1, "off": 0, "wrong on use": 0} | {
    transfer.NOTHING: 90,
    "recalibrate the floor": 4,
    "shape mismatch": 1,
    "floor or weight bandwidth, indistinguishable": 2,
    transfer.CANNOT_TELL: 3,
}
OTHER = ROW | {"truth": "floor 3 ms larger", transfer.NOTHING: 2, "recalibrate the floor": 92, "wrong on use": 4}


def test_rates_are_those_of_the_largest_design_that_is_no_larger():
    rows = [ROW, ROW | {"cells": 3}, ROW | {"gpus": 1, "cells": 5}]
    assert error_rates.nearest(3, 14, rows=rows)["cells"] == 3
    assert error_rates.nearest(5, 100, rows=rows)["cells"] == 15
    assert error_rates.nearest(2, 6, rows=rows)["cells"] == 5
    assert error_rates.nearest(2, 2, rows=rows) is None
    assert error_rates.nearest(3, 15, rows=[]) is None
    assert error_rates.nearest(3, 15, kind=error_rates.IMPUTED, rows=rows) is None


def test_a_wrong_cause_is_one_that_is_neither_right_nor_open():
    assert error_rates.wrong(ROW) == pytest.approx(0.07)
    assert error_rates.wrong(OTHER) == pytest.approx(0.03)


def test_words_give_rates_of_the_verdict_and_of_the_cause():
    rates = error_rates.nearest(3, 15, rows=[ROW, OTHER])
    said = error_rates.sentence(rates, transfer.NOTHING)
    assert "'holds' or 'does not hold' was wrong in at most 4 % (floor 3 ms larger)" in said
    assert "'nothing beyond the margins' was said wrongly in at most 2 % (floor 3 ms larger)" in said
    assert "rightly in 90 % (nothing differs)" in said
    assert "in at most 7 % (nothing differs)" in error_rates.sentence(rates, transfer.CANNOT_TELL)
    assert error_rates.sentence(rates, transfer.NOTHING, 9.0).endswith(
        "These steps leave over 9 %: the rates are not theirs."
    )
    assert "was not simulated" in error_rates.sentence(None, transfer.NOTHING)


@pytest.mark.parametrize("calibration", [error_rates.KNOWN, error_rates.UNKNOWN, error_rates.IMPUTED])
def test_a_small_simulation_counts_every_family(calibration: str):
    chunk = simulated_checks._Chunk(calibration, "floor 3 ms larger", ("H100",), "15", 2, 1, 0)
    said = dict(zip(error_rates.COUNTS, simulated_checks._run(chunk)["said"], strict=True))
    assert sum(said[name] for name in transfer.VERDICTS) == sum(said[name] for name in transfer.CAUSES) == 2
    assert said[error_rates.OFF] == 2  # 3 ms of 10
    assert said[error_rates.WRONG] == 0


def test_the_columns_of_chances_add_up_and_speak_as_the_sentences_do(found: transfer.Check):
    for row in [*found.data["per_sku"], found.data["overall"]]:
        assert sum(row["probabilities"][v] for v in SHOWN[:4]) == pytest.approx(1.0, abs=1e-6)
    lines = found.text.splitlines()
    head = next(k for k, line in enumerate(lines) if "P(nothing)" in line)
    assert lines[head].split("  ")[-1] == "P(floor or weights)"
    assert "below 0.01" in lines[head + 1]
    assert " 0.00" not in "".join(lines[head : head + 5])
    assert "The first four add up to 1." in found.text


def test_what_is_said_needs_no_names_of_the_code(tmp_path: Path):
    """Sizes with a unit, what is open in words, margins too, and a text that fits a screen."""
    frame, posterior = simulate(seed=4, whole=1.25)
    said = " ".join(transfer.check(FAMILY, frame, calibration=posterior).text.split())
    assert "that part takes 2" in said
    assert " % longer" in said
    assert "(slope)" not in said
    one = transfer.check(FAMILY, frame, gpu="H100").text
    assert "post hoc" not in one
    assert "chosen after the study's figures were known" in " ".join(one.split())
    assert len(one.splitlines()) <= 42


def test_text_of_one_gpu_has_one_row(moved: tuple[pd.DataFrame, Calibration]):
    frame, posterior = moved
    said = transfer.check(FAMILY, frame, gpu="H100", calibration=posterior, margins=Margins())
    assert said.text.count("H100  ") == 2  # of either table
    assert "\n  all" not in said.text


def test_calibrate_check_writes_its_table(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch):
    monkeypatch.setattr(simulated_checks, "DESIGNS", {"3": simulated_checks.DESIGNS["3"]})
    monkeypatch.setattr(simulated_checks, "GPUS", (("H100",),))
    out = tmp_path / "check.csv"
    assert cli.main(["calibrate", "--check", "--studies", "2", "--jobs", "1", "--out", str(out)]) == 0
    frame = pd.read_csv(out)
    assert frame["truth"].tolist() == [*error_rates.TRUTHS, *simulated_checks.FEW_TRUTHS, *simulated_checks.FEW_TRUTHS]
    assert (frame[list(transfer.CAUSES)].sum(axis=1) == frame["sets"]).all()
    assert "nothing differs" in capsys.readouterr().out
