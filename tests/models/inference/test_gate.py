"""What is reported must meet the gate; nuisances get more draws, then a warning."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
import xarray as xr

from rooffloor.models.inference import gate
from rooffloor.models.inference.gate import Attempt, Diagnostics, Gate, Worst

GOOD = Diagnostics(1.001, "eta_bw", 900.0, 800.0, "q", 0, 0.9, Worst(1.002, "z_noise[2]", 700.0, 650.0, "z_floor[0]"))


def nuisance(**change: float) -> Diagnostics:
    assert GOOD.nuisance is not None
    return replace(GOOD, nuisance=replace(GOOD.nuisance, **change))


def test_a_nuisance_just_beyond_the_gate_warns_by_name_and_does_not_fail() -> None:
    found = nuisance(rhat=1.011)
    assert Gate().failures(found) == ()
    assert Gate().warnings(found) == ("R-hat 1.011 of z_noise[2] > 1.01",)
    assert Gate().warnings(GOOD) == ()


@pytest.mark.parametrize(
    ("change", "words"), [({"rhat": 1.06}, "R-hat 1.060 of z_noise[2] > 1.05"), ({"ess_tail": 99.0}, "ESS 99 of")]
)
def test_a_nuisance_far_from_convergence_fails_the_fit(change: dict[str, float], words: str) -> None:
    (failure,) = Gate().failures(nuisance(**change))
    assert words in failure
    assert failure.endswith("(a nuisance)")
    assert Gate().warnings(nuisance(**change)) == ()


def test_nan_of_a_nuisance_fails() -> None:
    assert Gate().failures(nuisance(rhat=float("nan")))
    assert Gate().failures(nuisance(ess_bulk=float("nan")))


def test_a_laxer_gate_is_lax_for_nuisances_too() -> None:
    lax = Gate(rhat=1.2, ess=20.0)
    assert lax.failures(nuisance(rhat=1.15, ess_bulk=25.0)) == ()


@pytest.mark.parametrize(
    ("name", "is_one"),
    [
        *[(n, True) for n in ("z_floor[3]", "floor_sd_pair_ms", "noise_own[0]", "noise_spread", "launch_share[H100]")],
        *[
            (n, False)
            for n in ("eta_bw", "eta_fa[H100]", "floor_ms[H100, a]", "noise_relative[b]", "q", "mine", "l_half")
        ],
    ],
)
def test_what_reports_read_is_no_nuisance(name: str, is_one: bool) -> None:
    assert gate.is_nuisance(name) is is_one


def posterior() -> xr.Dataset:
    rng = np.random.default_rng(3)
    draw = rng.standard_normal
    floors = draw((4, 500, 2, 2))
    floors[..., 1, 1] += 3.0 * np.arange(4)[:, None]  # chains apart: but that pair was never measured
    floors[..., 0, 0] = 1.5  # given
    dims = ("chain", "draw", "gpu", "model")
    coords = {"gpu": ["H100", "A100"], "model": ["one", "two"], "unmeasured": ["A100 | two"]}
    variables = {
        "eta_bw": (("chain", "draw"), draw((4, 500))),
        "floor_ms": (dims, floors),
        "z_unmeasured": (("chain", "draw", "unmeasured"), draw((4, 500, 1))),
        "z_noise": (("chain", "draw", "contrast"), draw((4, 500, 2))),
        "noise_own": (("chain", "draw", "model"), draw((4, 500, 2))),
    }
    return xr.Dataset(variables, coords)


def stats(divergences: int = 0) -> xr.Dataset:
    diverging = np.zeros((4, 500), bool)
    diverging[0, :divergences] = True
    energy = np.random.default_rng(4).standard_normal((4, 500))
    return xr.Dataset({"energy": (("chain", "draw"), energy), "diverging": (("chain", "draw"), diverging)})


def test_floors_are_judged_by_their_labels_and_those_never_measured_are_not() -> None:
    judged = gate.examined(("eta_bw", "z_noise", "z_unmeasured"), posterior())
    assert set(judged) == {
        *("eta_bw", "z_noise[0]", "z_noise[1]", "z_unmeasured[A100 | two]"),
        *("floor_ms[H100, one]", "floor_ms[H100, two]", "floor_ms[A100, one]"),
    }
    assert gate.DEFAULT_GATE.failures(gate.diagnose(judged, stats())) == ()


def test_each_class_names_its_worst() -> None:
    drawn = posterior()
    drawn["floor_ms"][2, :, 1, 0] += 2.0
    drawn["z_noise"][1, :, 1] += 0.4
    found = gate.diagnose(gate.examined(("eta_bw", "z_noise"), drawn), stats(2))
    assert found.rhat_of == found.ess_of == "floor_ms[A100, one]"
    assert found.nuisance is not None
    assert found.nuisance.rhat_of == "z_noise[1]"
    assert found.nuisance.rhat < found.rhat
    assert found.divergences == 2


def test_what_never_varies_is_no_parameter_unless_nothing_does() -> None:
    same = {"eta_bw": np.full((4, 500), 0.7)}
    assert gate.DEFAULT_GATE.failures(gate.diagnose(same, stats()))
    broken = {"eta_bw": np.full((4, 500), np.nan), "q": posterior()["eta_bw"].to_numpy()}
    assert gate.DEFAULT_GATE.failures(gate.diagnose(broken, stats()))


def test_nuisances_alone_are_what_is_judged() -> None:
    found = gate.diagnose({"z_floor": posterior()["z_noise"].to_numpy()}, stats())
    assert found.nuisance is None
    assert found.rhat_of.startswith("z_floor")


@dataclass(frozen=True)
class Fake:
    attempts: tuple[Attempt, ...]

    @property
    def passed(self) -> bool:
        return not self.attempts[-1].failures


def run(*outcomes: str) -> tuple[str, list[str]]:
    """Which attempt counts, and in which order all are told; p passes, w warns, f fails."""

    def attempt(step: int) -> Fake:
        one = outcomes[step]
        failures = ("bad",) if one[0] == "f" else ()
        return Fake((Attempt(1, 1, 4, step, 0.9, GOOD, failures, ("hm",) if one[0] == "w" else ()),))

    fit, attempts = gate.escalated(attempt, len(outcomes))
    named = {step: outcomes[step] for step in range(len(outcomes))}
    assert fit.attempts[-1] is attempts[-1]
    return named[fit.attempts[-1].seed], [named[a.seed] for a in attempts]


@pytest.mark.parametrize(
    ("outcomes", "counts", "told"),
    [
        (["p1", "p2", "p3"], "p1", ["p1"]),
        (["f1", "p2", "p3"], "p2", ["f1", "p2"]),
        (["f1", "f2", "f3"], "f3", ["f1", "f2", "f3"]),
        (["w1", "p2", "p3"], "p2", ["w1", "p2"]),
        (["w1", "w2", "p3"], "w2", ["w1", "w2"]),  # once more, not until it happens to pass
        (["w1", "f2", "p3"], "w1", ["f2", "w1"]),  # more draws that fail take no result away
        (["f1", "f2", "w3"], "w3", ["f1", "f2", "w3"]),
    ],
)
def test_the_escalation_goes_on_once_for_nuisances(outcomes: list[str], counts: str, told: list[str]) -> None:
    assert run(*outcomes) == (counts, told)


def test_an_escalation_without_steps_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one step"):
        run()
