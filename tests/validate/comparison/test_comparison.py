"""Which floor? Scores, weights, the rule of choice, and one competition on simulated cells."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from rooffloor.models.floor.structures import FloorStructure
from rooffloor.models.roof.kernels import stack_work
from rooffloor.models.roof.roofline import Efficiency, work_ms
from rooffloor.models.specs.cells import Cells
from rooffloor.validate.common.files import json_dumps
from rooffloor.validate.comparison import answer, comparison, findings, ranking, worker
from rooffloor.validate.comparison.worker import baseline_log_score, folds
from rooffloor.validate.measurements.given_specs import config_files
from rooffloor.validate.study.study import Study

DENSE = {"Llama-3.1-8B": "dense", "Llama-3.2-1B": "dense", "Qwen2.5-7B": "dense"}


def cells_of(models: tuple[str, ...] = tuple(DENSE), gpus: tuple[str, ...] = ("H100", "A100-80GB")) -> Cells:
    rows = [(m, g, b, c) for m in models for g in gpus for b in (1, 4, 16) for c in (512, 8192)]
    cells = Cells.from_columns(*zip(*rows, strict=True))
    work = stack_work(cells)
    T = work_ms(work, Efficiency(eta_bw=0.8, eta_fa=0.7, l_half=200.0, eta_tc=0.8))
    step = T + np.array([4.0, 9.0])[cells.gpu_code]
    step = step * (1 + 0.02 * np.random.default_rng(0).standard_normal(len(step)))
    return Cells.from_columns(list(cells.model), list(cells.gpu), cells.batch, cells.context, step)


def row(name: str, elpd: float | None, diff: float = 0.0, dse: float = 0.0, parameters: int = 1) -> dict[str, Any]:
    return {"name": name, "elpd": elpd, "elpd_diff": diff, "dse": dse, "parameters": parameters}


def test_candidates_are_those_that_the_models_can_tell_apart() -> None:
    one = {str(s) for s in comparison.candidates({"m": "dense"})}
    assert not any("launches" in name or "class" in name for name in one)
    several = {str(s) for s in comparison.candidates(DENSE)}
    assert "floor per (gpu, launches), overlapped" in several
    assert not any("class" in name for name in several)
    assert "floor per (gpu, class), max" in {str(s) for s in comparison.candidates(DENSE | {"moe": "moe"})}
    grows = [str(s) for s in comparison.candidates(DENSE, batches=5)]
    assert "floor per (gpu, launches) + per sequence, overlapped" in grows
    assert {name for name in grows if "per sequence" not in name} == {
        *("no floor", "floor per (gpu), added", "floor per (gpu), overlapped"),
    }
    assert len(grows) == len(set(grows)) == len(several) + 3


def test_parameters_count_what_the_floor_adds() -> None:
    cells = cells_of()

    def count(*names: str) -> int:
        return ranking.parameters(FloorStructure(*names), cells, DENSE)

    assert count("none") == 0
    assert count("gpu", "added") == count("gpu", "max") == 2
    assert count("gpu", "overlapped") == 3
    assert count("gpu, launches", "overlapped") == 5
    assert count("gpu, kernel latency", "added") == 3
    assert count("gpu, model", "added") == 6


def test_the_simplest_of_those_close_to_the_best_is_chosen() -> None:
    rows = [row("rich", 10.0, parameters=6), row("middle", 7.0, -3.0, 0.5, 3), row("plain", 0.0, -10.0, 4.0, 1)]
    assert ranking.choose(rows) == "middle"  # plain: neither within 4 nor within 2 standard errors
    rows[2] = row("plain", 0.0, -10.0, 6.0, 1)
    assert ranking.choose(rows) == "plain"
    assert ranking.choose([*rows, row("failed", None, parameters=0)]) == "plain"
    twins = [row("better", 5.0, parameters=2), row("worse", 4.0, -1.0, 1.0, 2)]
    assert ranking.choose(twins[::-1]) == "better"


def test_a_short_fit_that_has_not_settled_is_left_behind_where_its_best_chain_is() -> None:
    rng = np.random.default_rng(3)
    best = {"elpd": rng.normal(0.5, 1.0, 135), "passed": np.array(True)}
    stuck = {"passed": np.array(False), "elpd": best["elpd"] - 5.0, "failures": "R-hat 1.5"}
    assert ranking.is_below(stuck | {"ceiling": best["elpd"] - 2.0}, best)
    assert not ranking.is_below(stuck | {"ceiling": best["elpd"] - 0.1}, best)  # its draws are bad, it may be good


def test_of_failed_short_fits_the_one_that_scores_best_is_fitted_again() -> None:
    names = [FloorStructure("gpu", combine) for combine in ("added", "overlapped", "max", "added, H >= 0")]
    elpd = dict(zip(map(str, names), (10.0, 12.0, 9.0, 8.0), strict=True))
    short = {
        name: {
            "elpd": np.full(50, value / 50),
            "ceiling": np.full(50, 0.3),
            "passed": np.array(value < 11 and value != 9),
        }
        for name, value in elpd.items()
    }
    rows = [row(str(names[0]), 10.0, parameters=2), row(str(names[3]), 8.0, -2.0, 1.0, 2)]
    rows += [row(str(s), None) for s in names[1:3]]
    again = comparison._fitted_again(names, short, rows, refits=False)
    assert again == names[:2]  # the best one, and of the two that failed the better one
    short[str(names[1])]["ceiling"] = np.full(50, -3.0)  # even its best chain is far behind
    assert comparison._fitted_again(names, short, rows, refits=False) == [names[0], names[2]]


def test_stacking_takes_the_mixture_that_scores_best() -> None:
    rng = np.random.default_rng(0)
    good, poor = rng.normal(0.0, 0.3, 60), rng.normal(-3.0, 0.3, 60)
    np.testing.assert_allclose(ranking.stacking_weights([poor, good]), [0.0, 1.0], atol=0.02)
    halves = np.where(np.arange(60) < 30, 0.0, -5.0)  # each is right on its own half
    np.testing.assert_allclose(ranking.stacking_weights([halves, halves[::-1]]), [0.5, 0.5], atol=0.08)
    np.testing.assert_array_equal(ranking.stacking_weights([good]), [1.0])


def test_folds_leave_out_each_model_gpu_and_pair() -> None:
    cells = cells_of()
    found = folds(cells)
    assert [kind for kind, _, _ in found] == ["model"] * 3 + ["gpu"] * 2 + ["model, gpu"] * 6
    assert sum(mask.sum() for kind, _, mask in found if kind == "model, gpu") == len(cells)
    assert [kind for kind, _, _ in folds(cells.where(cells.gpu == "H100"))] == ["model"] * 3


def test_baseline_is_the_predictive_density_of_least_squares() -> None:
    """For one cell left out: the textbook prediction interval, on the scale of the step."""
    cells = cells_of()
    assert cells.step_ms is not None
    out = np.arange(len(cells)) == 7
    X = np.stack([np.ones(len(cells)), np.log(cells.batch), np.log(cells.context + 1.0)], -1)
    y = np.log(cells.step_ms)
    beta, rest, *_ = np.linalg.lstsq(X[~out], y[~out], rcond=None)
    freedom = (~out).sum() - 3
    sd = np.sqrt(rest[0] / freedom * (1 + X[7] @ np.linalg.inv(X[~out].T @ X[~out]) @ X[7]))
    expected = stats.t.logpdf((y[7] - X[7] @ beta) / sd, freedom) - np.log(sd) - y[7]
    assert baseline_log_score(cells, out) == pytest.approx(expected)


def test_words_follow_the_numbers() -> None:
    study = str(comparison.STUDY)
    rows = [row("best", 10.0, parameters=3), row(study, -40.0, -50.0, 9.0, 1)]
    overlap = {"structure": "best", "identified": True, "q": {"mean": 0.4, "low_90": 0.3, "high_90": 0.5}}
    said = answer.of_comparison(rows, "best", overlap)
    assert "predicts worse by 50.0 elpd" in said
    assert "partial: q 0.40 [0.30, 0.50]" in said
    assert "not identified" in answer.of_comparison(rows, "best", overlap | {"identified": False})
    beyond = {"mean": 1.2, "sd": 0.05, "low_90": 1.09, "high_90": 1.25}
    assert "a misfit and no overlap" in answer.of_comparison(rows, "best", overlap | {"q": beyond})
    near = [row("best", 10.0, parameters=3), row(study, 9.0, -1.0, 1.0, 1)]
    said = answer.of_comparison(near, study, {"structure": None})
    assert said.startswith(f"the data support {study}, the simplest within reach of the best, best (1.0 elpd ahead")


def test_the_study_s_structure_wins_where_it_is_true(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "FIT", {"draws": 500, "tune": 500, "chains": 4})
    cells = cells_of(models=("Llama-3.1-8B", "Llama-3.2-1B"))
    frame = "model,gpu,batch,context,step_ms,origin\n" + "".join(
        f"{m},{g},{b:.0f},{c:.0f},{y:.4f},simulated\n"
        for m, g, b, c, y in zip(cells.model, cells.gpu, cells.batch, cells.context, cells.step_ms, strict=True)
    )
    (tmp_path / "cells.csv").write_text(frame)
    study = Study.from_data(tmp_path / "cells.csv")
    structures = (FloorStructure("none"), FloorStructure("gpu", "added"))
    options = {"structures": structures, "refits": False, "seed": 2, "folder": tmp_path / "kept", "jobs": 1}
    found = comparison.compare_floors(study, **options)
    assert found.chosen == str(comparison.STUDY)
    assert found.label == "simulated"
    first = found.structures[0]
    assert first["weight"] > 0.9
    assert first["gate"] == "passed"
    assert "fewer than 100" in found.warnings[0]
    assert len(found.to_frame()) == 2
    assert found.to_csv(tmp_path / "structures.csv") == (tmp_path / "structures.csv").read_text()
    assert found.verdict == found.chosen
    assert found.text.startswith(f"the data support {found.chosen}")
    ax = found.plot()
    assert found.chosen in ax.get_yticklabels()[0].get_text()
    again = comparison.compare_floors(study, **options)
    assert json_dumps(again.data) == json_dumps(found.data)


def test_configs_are_found_by_hub_id_and_by_name(tmp_path: Path) -> None:
    (tmp_path / "Qwen--Tiny-1B_config.json").write_text("{}")
    (tmp_path / "Other-2B").mkdir()
    (tmp_path / "Other-2B" / "config.json").write_text("{}")
    assert list(config_files(tmp_path)) == ["Other-2B", "Qwen/Tiny-1B", "Tiny-1B"]
    (tmp_path / "Tiny-1B.json").write_text("{}")
    with pytest.raises(ValueError, match="a second config of 'Tiny-1B'"):
        config_files(tmp_path)
    with pytest.raises(ValueError, match="no such folder"):
        config_files(tmp_path / "nowhere")


def scored(elpd: float, cells: int = 50, **constants: Any) -> dict[str, Any]:
    """What a worker returns of a structure, as far as words need it; elpd differs a little from cell to cell."""
    wiggle = 0.01 * np.random.default_rng(int(abs(elpd))).standard_normal(cells)
    return {
        "elpd": elpd / cells + wiggle - wiggle.mean(),
        "passed": np.array(True),
        "largest_p": np.array(0.4),
        **{f"constant_{name}": draws for name, draws in constants.items()},
    }


def test_heavy_tails_need_a_clear_gain() -> None:
    assert findings.likelihoods(scored(10.0), scored(30.0))["chosen"] == "student"
    assert findings.likelihoods(scored(10.0), scored(12.0))["chosen"] == "normal"
    failed = findings.likelihoods(scored(10.0), scored(30.0) | {"passed": np.array(False), "failures": "R-hat"})
    assert failed["chosen"] == "normal"
    assert "failed its gate" in failed["sentence"]


def test_repeats_separate_noise_from_discrepancy() -> None:
    assert "cannot be told" in findings.noise(float("nan"), 0.05)["sentence"]
    told = findings.noise(0.03, 0.05)
    assert told["discrepancy_share"] == pytest.approx(0.64)
    assert findings.noise(0.06, 0.05)["discrepancy_share"] == 0.0


def test_the_column_of_launches_is_read_in_both_roles() -> None:
    host, kernel = FloorStructure("gpu, launches", "overlapped"), FloorStructure("gpu, kernel latency", "overlapped")
    rows = [
        {"name": str(s), "shared_by": s.shared_by, "combine": s.combine, "elpd": e}
        for s, e in ((host, 40.0), (kernel, 10.0))
    ]
    latency = np.full(100, 0.004)
    found = {str(host): scored(40.0), str(kernel): scored(10.0, latency_ms=latency)}
    told = findings.roles(rows, found)
    assert "speak for a floor of the host" in told["sentence"]
    assert told["latency_us"]["mean"] == pytest.approx(4.0)
    found[str(host)] = scored(11.0)
    assert "cannot tell" in findings.roles(rows, found)["sentence"]
    assert findings.roles(rows[:1], found) == {}


def test_constants_under_the_cut_and_jointly() -> None:
    rng = np.random.default_rng(4)

    def drawn(mean: float, sd: float) -> dict[str, Any]:
        return scored(1.0, eta_bw=np.clip(mean + sd * rng.standard_normal(4000), 0.01, 0.99))

    apart = {"same": drawn(0.8, 0.02), "moved": drawn(0.8, 0.02), "failed": {"passed": np.array(False)}}
    found = {"same": drawn(0.8, 0.01), "moved": drawn(0.7, 0.01)}
    constants, pulled = findings.constants(apart, found, "moved", np.array([1.0, 2.0, np.nan]))
    assert [row["structure"] for row in constants] == ["same", "moved"]
    assert "are compatible" in pulled[0]["sentence"]
    assert pulled[0]["p"] is None
    assert pulled[1]["p"] == pytest.approx(1 / 3)  # one above both simulated ones; the failed one does not count
    assert pulled[1]["p_chi2"] < 1e-4
    assert "failed its gate" in pulled[2]["sentence"]


def test_trends_are_told_where_they_are_clear() -> None:
    rng = np.random.default_rng(5)
    slopes = np.array([0.5, 0.0, 0.0]) + 0.1 * rng.standard_normal((500, 3))
    clear, dull, _ = findings.trends(slopes)
    assert "grows with log batch" in clear["sentence"]
    assert dull["sentence"] == ""
