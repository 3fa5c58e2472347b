"""Many families of one file: a row each, one calibration, verdicts that stand given their number."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
import pytest

from rooffloor.models.calibration import store
from rooffloor.models.calibration.draws import Calibration
from rooffloor.validate.cli import main as cli
from rooffloor.validate.common.errors import InputError
from rooffloor.validate.simulation.family import Planted, measured
from rooffloor.validate.transfer.check import Check
from rooffloor.validate.transfer.families import check_families, stands_among
from rooffloor.validate.transfer.statements import DOES_NOT_HOLD, HOLDS, UNDECIDED
from rooffloor.validate.transfer.use import verdict_of


@pytest.fixture(scope="module")
def made() -> tuple[pd.DataFrame, Calibration]:
    """Rows of a family that holds, and of one that needs another floor, beside one calibration."""
    parts = []
    for model, floor in (("Qwen2.5-7B", 0.0), ("Mistral-7B-v0.3", 4.0)):
        truth = Planted(model=model, gpus=("H100",), floor_ms=floor)
        _, cells, _, posterior, _ = measured(truth, np.random.default_rng(4), 300)
        columns = {"batch": cells.batch, "context": cells.context, "step_ms": cells.step_ms}
        parts.append(pd.DataFrame({"model": model, "gpu": "H100"} | columns))
    return pd.concat(parts, ignore_index=True), posterior


def test_each_family_has_a_row_and_the_worst_gives_the_code(
    made: tuple[pd.DataFrame, Calibration], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    frame, posterior = made
    frame.to_csv(tmp_path / "mine.csv", index=False)
    (tmp_path / "posterior.npz").write_bytes(store.to_npz(posterior))
    asked = ["check", "--measurements", str(tmp_path / "mine.csv"), "--study", str(tmp_path), "--out"]
    assert cli.main([*asked, str(tmp_path / "out")]) == 1
    text = capsys.readouterr().out
    assert text.startswith("2 families, tolerance 10 % MAPE: does not hold")
    rows = {line.split()[0]: line for line in text.splitlines() if line.startswith(("Qwen", "Mistral"))}
    assert "  holds  " in rows["Qwen2.5-7B"]
    assert "recalibrate: floor +" in rows["Mistral-7B-v0.3"] or "a floor of +" in rows["Mistral-7B-v0.3"]
    table = pd.read_csv(tmp_path / "out" / "families.csv")
    assert table["model"].tolist() == ["Qwen2.5-7B", "Mistral-7B-v0.3"]
    assert table["verdict"].tolist() == [HOLDS, DOES_NOT_HOLD]
    data = json.loads((tmp_path / "out" / "families.json").read_text())
    assert [one["stands_among_all"] for one in data["families"]] == [True, True]


def test_a_family_that_is_checked_with_others_gets_the_answer_that_it_gets_alone(
    made: tuple[pd.DataFrame, Calibration],
):
    from rooffloor.validate.transfer.check import check

    frame, posterior = made
    found = check_families(frame, calibration=posterior)
    alone = check("Qwen2.5-7B", frame[frame["model"] == "Qwen2.5-7B"], calibration=posterior)
    assert found.checks[0].probability == alone.probability
    assert found.checks[0].data["overall"]["use"] == alone.data["overall"]["use"]
    assert found.verdict == DOES_NOT_HOLD


def test_options_that_do_not_go_together_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    file = tmp_path / "mine.csv"
    file.write_text("model,gpu,batch,context,step_ms\nQwen2.5-7B,H100,1,512,9.0\n")
    base = ["check", "--measurements", str(file)]
    for further, said in (
        (["--config", "Qwen2.5-7B", "--configs", str(tmp_path)], "--configs is for many families"),
        (["--model", "Qwen2.5-7B"], "--model and --class are of one family"),
    ):
        assert cli.main([*base, *further]) == 2
        assert said in capsys.readouterr().err


def test_a_file_of_the_anchor_alone_has_no_family(made: tuple[pd.DataFrame, Calibration]):
    frame, posterior = made
    with pytest.raises(InputError, match="no family can be checked: it has no model but the anchor"):
        check_families(frame[:15].assign(model=posterior.anchor), calibration=posterior)


@dataclass(frozen=True)
class _Said:
    data: dict[str, Any]
    probability: float

    @property
    def verdict(self) -> str:
        return verdict_of(self.probability)


def said(*probabilities: float) -> list[Check]:
    return [cast(Check, _Said({"model": f"m{k}"}, p)) for k, p in enumerate(probabilities)]


def test_of_many_verdicts_only_the_surer_ones_stand():
    assert list(stands_among(said(0.04)).values()) == [True]
    found = stands_among(said(0.04, 0.001, 0.999, 0.5))
    assert {name: found[name] for name in ("m0", "m1", "m2", "m3")} == {
        "m0": False,
        "m1": True,
        "m2": True,
        "m3": False,
    }


def test_named_families_are_wrong_as_seldom_as_one_alone_may_be():
    """All hold with probabilities that are right on average: any wrong 'does not hold' that stands is an error."""
    rng, wrong = np.random.default_rng(1), 0
    for _ in range(2000):
        p = rng.uniform(0.0, 1.0, 12)  # a p-value's: the null of every family
        stands = stands_among(said(*p))
        wrong += any(stands[f"m{k}"] for k in range(12) if verdict_of(p[k]) == DOES_NOT_HOLD)
    assert wrong / 2000 < 0.065
    assert verdict_of(0.5) == UNDECIDED
