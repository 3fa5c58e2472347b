"""The public functions: the program that a user writes, and the example of every name."""

import doctest
import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes

import rooffloor as rf
from rooffloor.models.floor.structures import FloorStructure
from rooffloor.models.roof.kernels import stack_work
from rooffloor.models.roof.roofline import Efficiency, work_ms
from rooffloor.models.specs.cells import Cells
from rooffloor.validate.fitting import measured
from rooffloor.validate.hypotheses.result import Result
from rooffloor.validate.transfer.check import Check
from rooffloor.validate.transfer.statements import VERDICTS

pytestmark = pytest.mark.timeout(900)

TRUE = Efficiency(eta_bw=0.8, eta_fa=0.7, l_half=150.0)
ANCHOR, FAMILY, GPUS = "Llama-3.1-8B", "Qwen2.5-7B", ("H100", "A100-40GB")
FLOOR_MS = {"H100": 2.0, "A100-40GB": 2.6}
CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "_name_or_path": "own/Mine-8B",
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
    "tie_word_embeddings": False,
}
PROGRAM = """
import rooffloor as rf
cells = rf.load_measurements("cells.csv", stack="vLLM")
study = rf.Study(cells, anchor="Llama-3.1-8B", margins=rf.Margins(h1_points=2))
fit = rf.fit(study, seed=1)
h1 = rf.test(fit, "H1")
h1.verdict, h1.table, h1.text
axes = h1.plot()
floors = rf.compare_floors(study, jobs=2, refits=False)
report = rf.report(fit, floors=floors, out="reports/mine")
family = rf.load_model("config.json")
check = rf.check(family, "mine.csv", gpu="H100", calibration=fit.calibration)
plan = rf.plan(family, "H100", budget=3, calibration=fit.calibration, measured=check.cells, goal=check.open_question)
predicted = rf.predict(
    family, ["H100", "A100-80GB"], batch=[1, 16], context=[512, 8192], calibration=fit.calibration
).to_frame()
"""


def simulated(model: str, gpus: tuple[str, ...], rng: np.random.Generator, shapes: Any = None) -> pd.DataFrame:
    """Six cells on each GPU of known truth: 1 % noise about T_gpu and a floor that models share."""
    batch, context = np.tile(np.array([(b, c) for b in (1, 4, 16) for c in (512, 8192)]).T, len(gpus))
    gpu = np.repeat(gpus, 6)
    cells = Cells.from_columns([model] * len(gpu), gpu.tolist(), batch, context)
    gpu_ms = work_ms(stack_work(cells, shapes and {model: shapes}), TRUE).ravel()
    step_ms = (gpu_ms + [FLOOR_MS[g] for g in gpu]) * (1 + 0.01 * rng.standard_normal(len(gpu)))
    frame = pd.DataFrame({"model": model, "gpu": gpu, "batch": batch, "context": context, "step_ms": step_ms})
    return frame.assign(stack="vLLM")


SHORTER = {
    "rf.fit(study, seed=1)": "rf.fit(study, seed=1, primary_only=True)",
    "refits=False": 'refits=False, structures=[FloorStructure("gpu")]',
}
"""One treatment of the constants in place of four, one structure in place of twelve; a cut of fewer draws beside."""


@pytest.fixture(scope="module", params=["short", pytest.param("whole", marks=pytest.mark.calibration)])
def program(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the program leaves in its variables, and the folder in which it ran."""
    typed = PROGRAM
    for long, short in SHORTER.items() if request.param == "short" else ():
        assert typed.count(long) == 1
        typed = typed.replace(long, short)
    folder, rng = tmp_path_factory.mktemp("program"), np.random.default_rng(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        if request.param == "short":
            patch.setattr(measured, "cut_of_steps", partial(measured.cut_of_steps, outer=20))
        pd.concat([simulated(m, GPUS, rng) for m in (ANCHOR, FAMILY)]).to_csv("cells.csv", index=False)
        Path("config.json").write_text(json.dumps(CONFIG))
        mine = simulated("mine", ("H100",), rng, rf.load_model("config.json"))
        mine[["batch", "context", "step_ms"]].to_csv("mine.csv", index=False)
        found: dict[str, Any] = {"folder": folder, "FloorStructure": FloorStructure}
        exec(typed, found)
    return found


def test_one_fit_serves_tests_and_report(program: dict[str, Any]) -> None:
    h1, data = program["h1"], json.loads((program["folder"] / "reports/mine/report.json").read_text())
    assert isinstance(h1, Result)
    assert h1.verdict in ("supported", "refuted", "undecided", "untestable here", "not identified")
    for name in ("H1", "H2", "H3"):
        assert rf.test(program["fit"], name).verdict == data["hypotheses"][name]["verdict"]
    assert h1.text.startswith(f"H1 {h1.verdict}: ")
    assert set(h1.table["gpu"]) >= set(GPUS)
    assert isinstance(program["axes"], Axes)
    assert data["study"]["margins"]["h1_points"] == 2
    assert data["status"]["label"] == program["fit"].draws.label == "measured"
    assert data["which_floor"]["run"]
    assert program["report"].paths["report.json"] == Path("reports/mine/report.json")


def test_a_fit_knows_its_draws_diagnostics_and_calibration(program: dict[str, Any]) -> None:
    fit = program["fit"]
    assert "posterior" in fit.datatree
    assert fit.diagnostics["passed"].all()
    assert (fit.calibration.anchor, set(fit.calibration.gpus)) == (ANCHOR, set(GPUS))
    floor = fit.calibration.floor_ms[:, fit.calibration.gpus.index("H100"), fit.calibration.models.index(ANCHOR)]
    assert floor.mean() == pytest.approx(FLOOR_MS["H100"], abs=4 * floor.std())


def test_floors_are_compared(program: dict[str, Any]) -> None:
    floors = program["floors"]
    assert floors.chosen in set(floors.to_frame()["name"])
    assert floors.label == "measured"


def test_a_new_family_is_checked_planned_and_predicted(program: dict[str, Any]) -> None:
    check, plan, predicted = program["check"], program["plan"], program["predicted"]
    assert isinstance(check, Check)
    assert check.verdict in VERDICTS
    assert len(check.cells) == 6
    assert list(check.to_frame()["verdict"])[-1] == check.verdict
    assert check.verdict in check.text
    assert len(plan.to_frame()) == 3
    assert set(plan.to_frame()["gpu"]) == {"H100"}
    assert plan.to_csv().count("\n") == 4
    assert len(predicted) == 8
    assert set(predicted["gpu"]) == {"H100", "A100-80GB"}


@pytest.mark.parametrize("name", sorted({*rf.__all__} - {"__version__"}))
def test_the_example_of_a_public_name_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    [example] = doctest.DocTestFinder(recurse=False).find(getattr(rf, name), name)
    assert example.examples, f"{name} has no example"
    said: list[str] = []
    failed, _ = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE).run(
        example, out=said.append
    )
    assert not failed, "".join(said)
