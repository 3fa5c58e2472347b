"""Fits that fail their gate: what passed is told, what failed is named, and an interrupted run goes on where it was."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pandas as pd
import pytest
import xarray as xr
from simulated import ANCHOR, SIBLING, SMALL, simulate

from rooffloor.models.inference.cut import CutFit
from rooffloor.models.inference.gate import Attempt, Diagnostics, GateFailure, Worst
from rooffloor.models.inference.sampling import Fit
from rooffloor.validate.common.errors import GateError, InputError
from rooffloor.validate.common.files import json_ready
from rooffloor.validate.fitting import evidence as fitting
from rooffloor.validate.fitting import kept, measured
from rooffloor.validate.fitting.evidence import Evidence
from rooffloor.validate.fitting.least_squares import least_squares
from rooffloor.validate.reporting import run as reporting
from rooffloor.validate.study.study import Study

SCHEMA = json.loads((Path(reporting.__file__).parent / "schemas" / "report.schema.json").read_text())
MODELS = (ANCHOR, SIBLING, SMALL)
GOOD = Diagnostics(1.001, "eta_bw", 900.0, 800.0, "q", 0, 0.9, Worst(1.002, "z_noise[2]", 700.0, 650.0, "z_floor[0]"))
PASSED = (Attempt(1000, 1000, 4, 1, 0.95, GOOD, ()),)
WHY = "the fit failed its gate after 3 attempts: R-hat 1.034 of eta_bw > 1.01"
FAILED = (Attempt(4000, 4000, 4, 1, 0.995, replace(GOOD, rhat=1.034), ("R-hat 1.034 of eta_bw > 1.01",)),) * 3
PRIMARY, JOINT, HEADS_CUT = "plain roof, cut", "plain roof, joint", "query-head limb, cut"
CLASSES = "plain roof, joint, floor per (gpu, class) + per sequence, added"


@pytest.fixture(scope="module")
def cells(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Measured cells of three models on three GPUs, little noise (no grid looks odd), one floor for all."""
    found = simulate(models=MODELS, noise=0.001)
    path = tmp_path_factory.mktemp("cells") / "cells.csv"
    columns = {"model": found.cells.model, "gpu": found.cells.gpu, "batch": found.cells.batch}
    columns |= {"context": found.cells.context, "step_ms": found.cells.step_ms}
    pd.DataFrame(columns).to_csv(path, index=False)
    return path


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Puts fakes in place of all fits to measured cells; those of these names fail. Returns what was tried."""

    def fail(*names: str, warns: str = "") -> list[str]:
        tried: list[str] = []

        def attempt(name: str) -> dict[str, Any]:
            tried.append(name)
            if name in names:
                raise GateFailure(WHY, FAILED)
            warned = (replace(PASSED[0], warnings=("R-hat 1.011 of z_noise[2] > 1.01",)),)
            tree = xr.DataTree.from_dict({"posterior": xr.Dataset()})
            return measured.fit_row(name, Fit(tree, warned if name == warns else PASSED))

        def fit(self: measured.Measured, preset: str, treatment: str) -> tuple[Any, ...]:
            name = measured.variant(preset, treatment)
            if len(self.cells.models) < len(MODELS):
                name += " of fewer"
            row = attempt(name)
            of_all = simulate(models=self.cells.models, noise=0.02, draws=60)
            at = of_all.gpu_ms[:, :1] * 0 + 0.8
            constants = {n: {"all GPUs": at[:, 0]} for n in ("eta_bw", "eta_fa")}
            tree = xr.DataTree.from_dict({"posterior": xr.Dataset(attrs={"name": name})})
            return replace(of_all, class_floor_ms={}), row, constants, tree

        def with_class_floors(self: measured.Measured, draws: Any, preset: str) -> tuple[Any, ...]:
            row = attempt(f"{measured.variant(preset, 'joint')}, {self.per_class}")
            return replace(draws, class_floor_ms={("H100", "5-10B"): draws.floor_ms[:, 0]}), row

        monkeypatch.setattr(measured.Measured, "fit", fit)
        monkeypatch.setattr(measured.Measured, "with_class_floors", with_class_floors)
        return tried

    return fail


def fitted(cells: Path, **how: Any) -> Evidence:
    return fitting.fit(Study.from_data(cells, anchor=ANCHOR), **how)


def rows(evidence: Evidence) -> dict[str, bool]:
    return {row["name"]: row["passed"] for row in evidence.fits}


def test_where_nothing_fails_nothing_is_said(cells: Path, failing: Callable[..., list[str]]) -> None:
    tried = failing()
    found = fitted(cells)
    assert tried == [PRIMARY, CLASSES, JOINT, HEADS_CUT]
    assert list(found.variants) == [JOINT, HEADS_CUT]
    assert list(found.constants) == ["primary", JOINT, HEADS_CUT]
    assert found.datatree["posterior"].attrs["name"] == PRIMARY
    assert (found.treatment.split(":")[0], found.structure, found.instead) == ("cut", "plain roof", "")
    assert found.warnings == ()
    assert all(rows(found).values())
    assert found.draws.class_floor_ms


@pytest.mark.parametrize("name", [JOINT, HEADS_CUT, CLASSES])
def test_a_side_variant_that_fails_is_a_warning_in_its_place(
    cells: Path, failing: Callable[..., list[str]], name: str
) -> None:
    failing(name)
    found = fitted(cells)
    assert found.instead == ""
    assert found.warnings == (f"{name} has no answer and is left out: {WHY}.",)
    assert {row for row, passed in rows(found).items() if not passed} == {name}
    [row] = [row for row in found.fits if not row["passed"]]
    assert (row["rhat"], row["attempts"], row["note"]) == (1.034, 3, WHY)
    assert name not in found.variants
    assert bool(found.draws.class_floor_ms) == (name != CLASSES)
    assert len(found.variants) == (2 if name == CLASSES else 1)


@pytest.mark.parametrize(
    ("fail", "chosen", "treatment", "roof"),
    [
        ([PRIMARY], JOINT, "joint", "plain roof"),
        ([PRIMARY, JOINT], HEADS_CUT, "cut", "query-head limb"),
    ],
)
def test_another_treatment_stands_in_for_the_primary_one_and_says_so(
    cells: Path, failing: Callable[..., list[str]], fail: list[str], chosen: str, treatment: str, roof: str
) -> None:
    failing(*fail)
    found = fitted(cells)
    assert found.instead == (
        f"The primary treatment, {PRIMARY}, has no answer ({WHY}). This report stands under {chosen} in its place."
    )
    assert (found.treatment.split(":")[0], found.structure) == (treatment, roof)
    assert found.datatree["posterior"].attrs["name"] == chosen
    assert chosen not in found.variants
    assert [w.split(" has no")[0] for w in found.warnings] == fail[1:]
    assert found.calibration.treatment == treatment


def test_the_primary_treatment_alone_needs_no_other_unless_it_fails(
    cells: Path, failing: Callable[..., list[str]]
) -> None:
    failing(HEADS_CUT)
    assert fitted(cells, primary_only=True).warnings == ()
    tried = failing(PRIMARY)
    assert fitted(cells, primary_only=True).treatment.startswith("joint")
    assert tried == [PRIMARY, JOINT, CLASSES]


def test_without_any_answer_every_failure_is_named(cells: Path, failing: Callable[..., list[str]]) -> None:
    everything = [PRIMARY, JOINT, HEADS_CUT]
    failing(*everything)
    with pytest.raises(GateError, match="no treatment of the constants has an answer: plain roof, cut: ") as error:
        fitted(cells)
    assert [row["name"] for row in error.value.fits] == everything
    assert all(name in str(error.value) for name in everything)


def test_a_nuisance_short_of_the_gate_is_a_warning_that_names_it(
    cells: Path, failing: Callable[..., list[str]]
) -> None:
    failing(warns=JOINT)
    found = fitted(cells)
    assert found.warnings == (f"{JOINT}: R-hat 1.011 of z_noise[2] > 1.01. {fitting.NUISANCE}",)
    assert all(rows(found).values())


def with_odd_cell(cells: Path, folder: Path, *whose: str, gpus: tuple[str, ...] = ("H100",)) -> Study:
    """The study of these cells, the first step of each of these models on each of these GPUs forty times as long."""
    frame = pd.read_csv(cells)
    for model in whose:
        for gpu in gpus:
            first = frame.index[(frame["model"] == model) & (frame["gpu"] == gpu)][0]
            frame.loc[first, "step_ms"] *= 40.0
    frame.to_csv(folder / "odd.csv", index=False)
    study = Study.from_data(folder / "odd.csv", anchor=ANCHOR)
    assert set(study.measurements().flagged_grids) == {(m, g) for m in whose for g in gpus}
    return study


def test_a_refit_without_flagged_grids_that_fails_is_a_warning(
    cells: Path, failing: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    failing()
    study = with_odd_cell(cells, tmp_path, ANCHOR)
    assert fitting.fit(study).without_flagged is not None
    whole, fit = len(study.measurements().cells()), measured.Measured.fit

    def fail(self: measured.Measured, *of: str) -> Any:
        if len(self.cells) < whole:
            raise GateFailure(WHY)
        return fit(self, *of)

    monkeypatch.setattr(measured.Measured, "fit", fail)
    found = fitting.fit(study)
    assert found.without_flagged is None
    name = f"{PRIMARY}, without flagged grids"
    assert found.warnings == (f"{name} has no answer and is left out: {WHY}.",)
    assert rows(found)[name] is False
    [row] = [row for row in found.fits if not row["passed"]]
    assert (row["rhat"], row["attempts"]) == (None, 0)


@pytest.mark.parametrize("whose", [(ANCHOR,), MODELS, (SIBLING, SMALL)], ids=len)
def test_flags_that_leave_too_few_cells_end_nothing(
    cells: Path, failing: Callable[..., list[str]], tmp_path: Path, whose: tuple[str, ...]
) -> None:
    failing()
    found = fitting.fit(with_odd_cell(cells, tmp_path, *whose, gpus=("H100", "H200", "A100-40GB")))
    if ANCHOR in whose:
        said = f"{PRIMARY}, without flagged grids has no answer and is left out: too few cells are left."
        assert (found.warnings, found.without_flagged) == ((said,), None)
    else:  # the anchor's cells are all there: floors of others cannot have moved them
        assert found.warnings == ()
        assert found.without_flagged is not None


def test_the_report_says_first_what_stands_in_and_names_what_failed(
    cells: Path, failing: Callable[..., list[str]], tmp_path: Path
) -> None:
    failing(PRIMARY, HEADS_CUT, CLASSES)
    result = reporting.report(fitted(cells), out=tmp_path)
    jsonschema.validate(json_ready(result.data), SCHEMA)
    first = result.data["status"]["sentences"][0]
    assert first.startswith(f"The primary treatment, {PRIMARY}, has no answer")
    text = (tmp_path / "report.md").read_text()
    assert text.index("has no answer") < text.index("## Summary")
    for name in (CLASSES, HEADS_CUT):
        assert f"{name} has no answer and is left out" in " ".join(result.data["warnings"])
    shown = [row["name"] for row in result.data["variants"]]
    assert shown == ["plain roof; joint: constants from all cells"]
    assert not any("escalation" in line for line in result.data["warnings"])
    assert "figures/floors.png" not in result.paths
    assert "figures/table.png" in result.paths


def test_the_table_alone_says_what_stands_in(cells: Path, failing: Callable[..., list[str]]) -> None:
    failing(PRIMARY)
    found = reporting.table(Study.from_data(cells, anchor=ANCHOR))
    assert found.data["instead"].startswith(f"The primary treatment, {PRIMARY}, has no answer")
    assert found.text.splitlines()[1] == found.data["instead"]
    failing()
    assert "instead" not in reporting.table(Study.from_data(cells, anchor=ANCHOR)).data


# ---- what is kept --------------------------------------------------------------------------------------------------


def a_tree(seed: int = 1) -> xr.DataTree:
    rng = np.random.default_rng(seed)
    dims, labels = (
        ("chain", "draw", "gpu", "model"),
        {"gpu": np.array(["H100", "A"], dtype=object), "model": ["a", "b"]},
    )
    posterior = {
        "floor_ms": (dims, rng.standard_normal((2, 5, 2, 2))),
        "eta_bw": (dims[:2], rng.random((2, 5))),
        "upstream": ("draw", np.arange(5)),
    }
    stats = {"diverging": (dims[:2], np.zeros((2, 5), bool)), "energy": (dims[:2], rng.random((2, 5)))}
    whole = {
        "posterior": xr.Dataset(posterior, labels, {"label": "measured", "steps": np.float64(2.5)}),
        "sample_stats": xr.Dataset(stats, attrs={"unit": 1}),
    }
    whole["posterior"] = whole["posterior"].set_coords("upstream")
    return xr.DataTree.from_dict(whole)


def never() -> Any:
    raise AssertionError("must not be made again")


def test_a_kept_fit_is_the_same_to_the_bit(tmp_path: Path) -> None:
    warned = (*FAILED, replace(PASSED[0], warnings=("ESS 399 of z < 400",)))
    made = Fit(a_tree(), warned)
    first = kept.fit(tmp_path, "a", lambda: made)
    again = kept.fit(tmp_path, "a", never)
    for found in (first, again):
        assert found.attempts == warned
        assert found.passed
        xr.testing.assert_identical(found.posterior, made.posterior.assign_coords(gpu=["H100", "A"]))
        for name, values in made.posterior.data_vars.items():
            assert found.posterior[name].dtype == values.dtype
            np.testing.assert_array_equal(found.posterior[name].values, values.values, strict=True)
        assert found.datatree["sample_stats"].attrs == {"unit": 1}
    assert kept.fit(tmp_path, "b", lambda: Fit(a_tree(2), PASSED)).attempts == PASSED


def test_a_kept_cut_is_the_same_to_the_bit(tmp_path: Path) -> None:
    made = CutFit(a_tree(), 10, (3, 7), 120)
    for found in (kept.cut(tmp_path, "a", lambda: made), kept.cut(tmp_path, "a", never)):
        assert (found.inner, found.failed, found.attempts) == (10, (3, 7), 120)
        np.testing.assert_array_equal(found.posterior["upstream"], np.arange(5))
        assert "upstream" in found.posterior.coords


def test_a_failure_is_kept_too(tmp_path: Path) -> None:
    def fail() -> Fit:
        raise GateFailure(WHY, FAILED)

    for make in (fail, never):
        with pytest.raises(GateFailure, match=r"R-hat 1\.034") as failure:
            kept.fit(tmp_path, "a", make)
        assert failure.value.attempts == FAILED
    with pytest.raises(GateFailure):
        kept.fit(None, "a", fail)


def test_a_damaged_file_is_made_anew_and_nothing_else_is_kept_for_other_reasons(tmp_path: Path) -> None:
    kept.fit(tmp_path, "a", lambda: Fit(a_tree(), PASSED))
    [file] = tmp_path.iterdir()
    file.write_bytes(file.read_bytes()[:200])
    assert kept.fit(tmp_path, "a", lambda: Fit(a_tree(), PASSED)).attempts == PASSED
    with pytest.raises(ZeroDivisionError):
        kept.fit(tmp_path, "b", lambda: 1 // 0)  # type: ignore[arg-type,return-value]
    assert len(list(tmp_path.iterdir())) == 1
    with pytest.raises(InputError, match="cannot be written"):
        kept.fit(file, "a", never)


def test_every_fit_is_kept_under_a_key_of_its_own(cells: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has its data, roof, structure, study and seed in it."""
    asked: list[str] = []

    def note(_: Path, key: str, __: Any) -> Any:
        asked.append(key)
        raise GateFailure(WHY)

    monkeypatch.setattr(kept, "fit", note)
    for seed in (1, 2):
        with pytest.raises(GateError):
            fitted(cells, folder=tmp_path, seed=seed)
    frame = pd.read_csv(cells)
    frame.loc[0, "step_ms"] *= 1.001
    other = tmp_path / "cells.csv"
    frame.to_csv(other, index=False)
    with pytest.raises(GateError):
        fitted(other, folder=tmp_path, seed=1)
    assert len(asked) == len(set(asked)) == 9
    with pytest.raises(GateError):
        fitted(cells, folder=tmp_path, seed=1)
    assert asked[9:] == asked[:3]


# ---- least squares -------------------------------------------------------------------------------------------------


def test_least_squares_recover_planted_floors_and_constants(cells: Path) -> None:
    study = Study.from_data(cells, anchor=ANCHOR)
    found = least_squares(study, study.measurements())
    assert found.of == "the anchor's cells"
    assert found.constants["eta_bw"] == pytest.approx(0.8, abs=0.06)
    assert found.constants["eta_fa"] == pytest.approx(0.7, abs=0.1)
    draws = found.draws(study, "measured")
    for model, gpu, at in draws.pairs():
        floor = draws.floor_ms[0, at]
        assert np.ptp(floor) == 0
        assert floor[0] == pytest.approx(4.0, abs=1.2), (model, gpu)
        assert draws.anchor_floor_ms[0, at][0] == draws.floor_ms[0, draws.mask(ANCHOR, gpu)][0]
        off = draws.step_ms[0, at] / draws.mean_ms[0, at] - 1
        assert np.sqrt((off**2).mean()) < 0.04
    assert "eta_bw 0." in repr(found)


def test_least_squares_without_noise_are_exact_given_the_constants(tmp_path: Path) -> None:
    """The floors are those of the formula: mean of y - T weighed by 1 / y²."""
    clean = simulate(models=(ANCHOR,), gpus=("H100",), noise=0.0)
    path = tmp_path / "clean.csv"
    c = clean.cells
    columns = {"model": c.model, "gpu": c.gpu, "batch": c.batch, "context": c.context, "step_ms": c.step_ms}
    pd.DataFrame(columns).to_csv(path, index=False)
    study = Study.from_data(path, anchor=ANCHOR)
    found = least_squares(study, study.measurements())
    y, weight = found.cells.step_ms, found.cells.step_ms**-2.0
    assert found.floor_ms == pytest.approx((weight * (y - found.gpu_ms)).sum() / weight.sum())
    np.testing.assert_allclose(found.gpu_ms + found.floor_ms, y, rtol=0.01)
