"""A report without an answer: measured numbers, least squares and tests in one page, and no posterior."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pandas as pd
import pytest
from simulated import ANCHOR, SIBLING, SMALL, simulate

from rooffloor.validate.common.errors import GateError, InputError
from rooffloor.validate.reporting import run, unanswered
from rooffloor.validate.study.study import Study

SCHEMA = json.loads((Path(run.__file__).parent / "schemas" / "unanswered.schema.json").read_text())
ROW = {"name": "plain roof, cut", "passed": False, "rhat": 1.4, "ess_bulk": None, "attempts": 3, "note": "R-hat 1.4"}
FAILURE = GateError("plain roof, cut: R-hat 1.400 of eta_bw > 1.01", [ROW])


def study_of(folder: Path, **how: Any) -> Study:
    """A study of simulated cells in `folder`."""
    cells = simulate(noise=0.02, **how).cells
    columns = {"model": cells.model, "gpu": cells.gpu, "batch": cells.batch, "context": cells.context}
    pd.DataFrame(columns | {"step_ms": cells.step_ms}).to_csv(folder / "cells.csv", index=False)
    return Study.from_data(folder / "cells.csv", anchor=ANCHOR)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Study, dict[str, Path]]:
    folder = tmp_path_factory.mktemp("unanswered")
    study = study_of(folder, models=(ANCHOR, SIBLING, SMALL), floors={ANCHOR: 4.0, SIBLING: 4.0, SMALL: 7.0})
    return study, dict(run.report_unanswered(study, FAILURE, out=folder / "out", seed=5))


@pytest.fixture(scope="module")
def data(written: tuple[Study, dict[str, Path]]) -> dict[str, Any]:
    return json.loads(written[1]["report.json"].read_text())


def test_it_has_a_page_and_no_posterior(written: tuple[Study, dict[str, Path]]) -> None:
    _, paths = written
    assert set(paths) == {"report.html", "report.md", "report.json", "run.json"}
    assert {file.name for file in paths["run.json"].parent.iterdir()} == set(paths)


def test_the_json_obeys_its_schema_and_says_its_state(data: dict[str, Any]) -> None:
    jsonschema.validate(data, SCHEMA)
    assert data["status"]["state"] == "failed gate"
    assert "R-hat 1.400 of eta_bw" in data["status"]["sentences"][0]
    assert data["diagnostics"]["fits"] == [ROW]
    assert data["provenance"]["seed"] == 5
    assert "intervals" not in json.dumps(data)


def test_the_page_begins_with_the_failure_and_shows_every_table(written: tuple[Study, dict[str, Path]]) -> None:
    text = written[1]["report.md"].read_text()
    assert text.index("No posterior has an answer") < text.index("## What failed") < text.index("## Measured numbers")
    for title in ("The two numbers of the cells as measured", "Floors by least squares", "Frequentist tests"):
        assert f"## {title}" in text
    html = written[1]["report.html"].read_text()
    assert "no fit has an answer" in html
    assert "measured" in html
    assert "verdict:" not in html.lower().replace("no verdict:", "")


def test_its_numbers_are_those_of_the_cells(written: tuple[Study, dict[str, Path]], data: dict[str, Any]) -> None:
    frame = written[0].measurements().frame
    for row in data["measured"]:
        own = frame[(frame["model"] == row["model"]) & (frame["gpu"] == row["gpu"])]["step_ms"]
        assert (row["cells"], row["least_ms"]) == (len(own), pytest.approx(own.min()))
        assert row["median_ms"] == pytest.approx(own.median())
    cells = pd.DataFrame(data["cells"])
    floors = {(r["model"], r["gpu"]): r["floor_ms"] for r in data["least_squares"]["floors"]}
    for row in (r for r in data["table"] if r["gpu"] != "pooled"):
        own = cells[(cells["model"] == row["model"]) & (cells["gpu"] == row["gpu"])]
        raw = 100 * (own["gpu_ms"] / own["step_ms"] - 1)
        rest = 100 * ((own["gpu_ms"] + floors[ANCHOR, row["gpu"]]) / own["step_ms"] - 1)
        found = [row[name] for name in ("raw", "raw_signed", "residual", "residual_signed")]
        assert found == pytest.approx([raw.abs().mean(), raw.mean(), rest.abs().mean(), rest.mean()])
    pooled = next(r for r in data["table"] if r["gpu"] == "pooled" and r["model"] == SMALL)
    own = [r["residual"] for r in data["table"] if r["model"] == SMALL and r["gpu"] != "pooled"]
    assert pooled["residual"] == pytest.approx(np.mean(own))


def test_it_sees_what_is_there(data: dict[str, Any]) -> None:
    """The 1B's floor lies 3 ms above the anchor's, the 7B's does not; the tests say so."""
    above = {(r["model"], r["gpu"]): r["above_anchor_ms"] for r in data["least_squares"]["floors"]}
    for gpu in ("H100", "H200", "A100-40GB"):
        assert above[SMALL, gpu] == pytest.approx(3.0, abs=0.6)
        assert above[SIBLING, gpu] == pytest.approx(0.0, abs=0.6)
    by_family = {one["family"]: one["tests"] for one in data["frequentist"]}
    assert set(by_family) == {SIBLING, SMALL}
    assert by_family[SIBLING]["t_per_gpu"]["p_value"] < 0.1
    assert by_family[SMALL]["t_per_gpu"]["p_value"] > 0.9


def test_an_earlier_report_is_named_and_stays(written: tuple[Study, dict[str, Path]], tmp_path: Path) -> None:
    (tmp_path / "posterior.npz").write_bytes(b"old")
    run.report_unanswered(written[0], FAILURE, out=tmp_path)
    sentences = json.loads((tmp_path / "report.json").read_text())["status"]["sentences"]
    assert sentences[-1] == "Of an earlier report are, in this folder: posterior.npz."
    assert (tmp_path / "posterior.npz").read_bytes() == b"old"


@pytest.mark.parametrize(
    "how",
    [
        {"models": (ANCHOR,)},
        {"gpus": ("H100",)},
        {"grid": ((1, 512), (1, 2048), (1, 8192))},
        {"anchor_on": ("H100",)},
        {"grid": ((4, 2048),)},
    ],
    ids=["one model", "one GPU", "batch 1", "anchor on one GPU", "a cell a pair"],
)
def test_small_designs_get_theirs(tmp_path: Path, how: dict[str, Any]) -> None:
    study = study_of(tmp_path, **how)
    data = unanswered.assemble(study, FAILURE, seed=1)
    run.report_unanswered(study, FAILURE, out=tmp_path / "out")
    jsonschema.validate(json.loads((tmp_path / "out" / "report.json").read_text()), SCHEMA)
    assert len(data["cells"]) == len(study.measurements().cells())
    if "anchor_on" in how:
        assert {row["gpu"] for row in data["table"] if row["residual"] is None} == {"H200", "A100-40GB", "pooled"}


def test_a_folder_that_cannot_be_written_is_one_line(written: tuple[Study, dict[str, Path]], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(InputError, match="cannot be written"):
        run.report_unanswered(written[0], FAILURE, out=tmp_path / "file")
