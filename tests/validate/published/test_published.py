"""The published figures as data, and what the aggregates alone exclude."""

import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from rooffloor.validate.common.errors import InputError
from rooffloor.validate.published.bounds.exclusions import (
    Exclusions,
    exclusions,
)
from rooffloor.validate.published.bounds.grid_programme import Error, GridProgramme, errors_of
from rooffloor.validate.published.printed_figures import (
    A100,
    ANCHOR,
    COLUMNS,
    H100,
    H200,
    MOE,
    SIBLING,
    SMALL,
    PublishedFigures,
)


@pytest.fixture(scope="module")
def figures() -> PublishedFigures:
    return PublishedFigures.load()


@pytest.fixture(scope="module")
def facts(figures: PublishedFigures) -> Exclusions:
    return exclusions(figures)


# --- data
def test_the_figures_are_those_of_the_reference(figures: PublishedFigures, shared: Path) -> None:
    reference = PublishedFigures.load(shared / "reference" / "published_figures.csv")
    assert reference == figures
    assert len(figures) == 42


def test_rounding_is_an_interval(figures: PublishedFigures) -> None:
    assert figures.interval(SMALL, A100, "self_floor") == pytest.approx((5.645, 5.655))
    assert figures.mape(SMALL, A100, "raw_mape") == pytest.approx((0.4845, 0.4855))
    with pytest.raises(InputError, match=r"prints no 'raw_mape' for Qwen1\.5-MoE-A2\.7B/H100"):
        figures.get(MOE, H100, "raw_mape")


HEADER = ",".join(COLUMNS)
ROW = "mape,m,H100,,,raw_mape,15.9,percent,0.05,table"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "column 'kind' is missing"),
        (HEADER + "\n", "holds no figures"),
        (HEADER.replace("rounding,", "") + "\n", "column 'rounding' is missing"),
        (f"{HEADER}\n{ROW.replace('15.9', 'abc')}\n", "row 2, column value: expected a number, got 'abc'"),
        (f"{HEADER}\n{ROW.replace('15.9', 'nan')}\n", "row 2, column value: expected a number"),
        (f"{HEADER}\n{ROW.replace('0.05', '-1')}\n", "row 2, column rounding: expected 0 or more"),
        (f"{HEADER}\n{ROW.replace('percent', 's')}\n", "row 2, column unit: expected percent or ms"),
        (f"{HEADER}\n{ROW.replace('15.9', '-3')}\n", "row 2, column value: expected a mean absolute error"),
        (f"{HEADER}\n{ROW}\n{ROW}\n", "row 3: .* repeats row 2"),
        (f"{HEADER}\nmape,m\n", "row 2, column gpu: expected a name"),
    ],
)
def test_bad_content_is_one_clear_line(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "figures.csv"
    file.write_text(text)
    with pytest.raises(InputError, match=message) as caught:
        PublishedFigures.load(file)
    assert "\n" not in str(caught.value)


def test_a_missing_file_and_a_byte_order_mark(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        PublishedFigures.load(tmp_path / "none.csv")
    file = tmp_path / "bom.csv"
    file.write_bytes(b"\xef\xbb\xbf" + f"{HEADER}\r\n{ROW}\r\n".encode())
    assert PublishedFigures.load(file).value("m", "H100", "raw_mape") == 15.9


# --- programme
def test_one_cell_by_hand() -> None:
    """|r - 1| = 0.5 and |r + w - 1| = 0.3 leave r = 0.5 and w = 0.2 or 0.8 (r = 1.5 would only get worse)."""
    errors = Error("raw", (0, 0), (0.5, 0.5)), Error("residual", (1, 1), (0.3, 0.3))
    programme = GridProgramme(errors, 1, (1.0, 10.0))
    assert programme.mean(programme.inverse()) == pytest.approx((0.2, 0.8))
    assert programme.mean(programme.share()) == pytest.approx((0.5, 0.5))
    assert programme.ratio(programme.share(), programme.inverse()) == pytest.approx((0.625, 2.5))
    assert GridProgramme(errors, 1, (2.0, 10.0)).mean(programme.inverse()) == pytest.approx((0.2, 0.2))
    assert not GridProgramme(errors, 1, (6.0, 10.0)).feasible


def brute_force(errors: tuple[Error, ...], cells: int, steps: tuple[float, float], which: str) -> tuple:
    """The same bounds from every assignment of signs to single cells, offsets fixed."""
    offsets = np.array([e.offset_ms[0] for e in errors])
    low, high = np.inf, -np.inf
    objective = np.r_[np.ones(cells), np.zeros(cells)] if which == "r" else np.r_[np.zeros(cells), np.ones(cells)]
    for pattern in itertools.combinations_with_replacement(range(len(errors) + 1), cells):
        matrix, bound = [], []
        for j, error in enumerate(errors):
            total, constant = np.zeros(2 * cells), 0.0
            for i, c in enumerate(pattern):
                sign = 1.0 if j >= c else -1.0
                row = np.zeros(2 * cells)
                row[i], row[cells + i] = -sign, -sign * offsets[j]
                matrix.append(row)
                bound.append(-sign)
                total -= row
                constant -= sign
            matrix += [total, -total]
            bound += [cells * error.mape[1] - constant, constant - cells * error.mape[0]]
        limits = [(0, None)] * cells + [(1 / steps[1], 1 / steps[0])] * cells
        for sign in (1, -1):
            found = linprog(sign * objective, A_ub=np.array(matrix), b_ub=bound, bounds=limits)
            if found.status == 0:
                low, high = min(low, sign * found.fun), max(high, sign * found.fun)
    return low / cells, high / cells


@pytest.mark.parametrize("seed", range(6))
def test_sums_over_sign_patterns_are_as_good_as_single_cells(seed: int) -> None:
    rng = np.random.default_rng(seed)
    step = rng.uniform(4, 16, 3)
    compute = step * rng.uniform(0.2, 1.5, 3)
    errors = tuple(
        Error(name, (d, d), (max(m - 0.005, 0), m + 0.005))
        for name, d in (("residual", -2.0), ("raw", 0.0), ("self-floor", 3.0))
        for m in [float(np.mean(np.abs((compute + d) / step - 1)))]
    )
    programme = GridProgramme(errors, 3, (3.0, 20.0))
    for which, coefficients in (("r", programme.share()), ("w", programme.inverse())):
        assert programme.mean(coefficients) == pytest.approx(brute_force(errors, 3, (3.0, 20.0), which), abs=1e-5)


@settings(max_examples=30, deadline=None)
@given(
    cells=st.integers(1, 15),
    seed=st.integers(0, 2**32 - 1),
    anchor=st.floats(-4, -0.5),
    floor=st.floats(0.5, 8),
    spread=st.floats(0.01, 1.2),
)
@example(
    cells=6, seed=1121184, anchor=-2.9392143054690307, floor=3.8760486721894476, spread=1.177734375
)  # solver fails
def test_no_grid_violates_a_bound(cells: int, seed: int, anchor: float, floor: float, spread: float) -> None:
    rng = np.random.default_rng(seed)
    step = 10 * np.exp(spread * rng.uniform(-1, 1, cells))
    compute = np.maximum(step * np.exp(spread * rng.normal(size=cells)) - rng.uniform(0, 6), 0)

    def relative(offset: float) -> np.ndarray:
        return (compute + offset) / step - 1

    def error(name: str, offset: float, rounding: float) -> Error:
        shift, turn = rng.uniform(-1, 1, 2)
        middle = np.abs(relative(offset)).mean() + turn * 5e-4
        at = offset + shift * rounding
        return Error(name, (at - rounding, at + rounding), (max(middle - 5e-4, 0), middle + 5e-4))

    errors = error("residual", anchor, 0.05), error("raw", 0.0, 0.0), error("self-floor", floor, 0.05)
    programme = GridProgramme(errors, cells, (float(step.min()) / 2, float(step.max()) * 2))
    slack = 1e-5
    checks = [
        (programme.mean(programme.inverse()), np.mean(1 / step)),
        (programme.mean(programme.share()), np.mean(compute / step)),
        (
            programme.ratio(programme.share(), programme.inverse()),
            np.mean(compute / step) / np.mean(1 / step),
        ),
    ]
    for name, offset in (("residual", anchor), ("raw", 0.0), ("self-floor", floor)):
        checks += [
            (programme.mean(programme.signed(name)), relative(offset).mean()),
            (programme.mean(programme.over_sum(name)), np.maximum(relative(offset), 0).mean()),
            (programme.bounds(programme.over(name)), np.sum(relative(offset) > 0)),
        ]
    for (low, high), truth in checks:
        assert low - slack * (1 + abs(truth)) <= truth <= high + slack * (1 + abs(truth))


def test_overlapping_offsets_and_bad_arguments_are_refused(figures: PublishedFigures) -> None:
    with pytest.raises(ValueError, match="overlap"):
        GridProgramme((Error("raw", (0, 0), (0, 1)), Error("residual", (-1, 1), (0, 1)))[::-1])
    for call in (
        lambda: exclusions(figures, cells=0),
        lambda: exclusions(figures, ratio=0.5),
    ):
        with pytest.raises(ValueError, match=r"expected .*ratio >= 1"):
            call()


# --- facts
def test_mean_inverse_step_of_the_1b_on_the_a100(facts: Exclusions) -> None:
    """From below (71.15 - 48.55) % / 2.45; from above (48.55 + 5.365) % / 5.645: neither needs T < y."""
    fact = facts[f"{SMALL}/{A100}: mean 1/y"]
    assert fact.low == pytest.approx(0.226 / 2.45, rel=1e-4)
    assert fact.high == pytest.approx((0.4855 + 0.05365) / 5.645, rel=1e-4)
    assert 0.092 < fact.low < fact.high < 0.096


def test_the_self_floor_over_predicts(facts: Exclusions) -> None:
    fact = facts[f"{SMALL}/{A100}: excess of the self-floor"]
    assert fact.low == pytest.approx(100 * (5.645 * 0.226 / 2.45 - 0.4855), abs=1e-3)  # 3.52 points
    assert fact.high == pytest.approx(5.365, abs=1e-3)
    under = facts[f"{SMALL}/{A100}: under-prediction of the self-floor"]
    assert under.high == pytest.approx((5.365 - fact.low) / 2, abs=1e-3)
    assert "at most 4 cells by more than 3 points" in under.statement


def test_a_mean_offset_needs_steps_that_differ_several_fold(facts: Exclusions) -> None:
    excess = 5.645 * 0.226 / 2.45 - 0.4855
    expected = (0.05365 + excess) / (0.05365 - excess)
    assert facts[f"{SMALL}/{A100}: steps under a mean offset"].low == pytest.approx(expected, rel=1e-3)
    assert 4.8 < expected < 4.9


def test_that_ratio_is_attained(figures: PublishedFigures, facts: Exclusions) -> None:
    """Fourteen cells alike and one with the longest step print all figures with s = mean(y - T)."""
    n, s, d = 15, 5.645, -2.45
    excess = s * 0.226 / 2.45 - 0.4855
    over, under = n * (0.05365 + excess) / 2, n * (0.05365 - excess) / 2
    ratio = over / under
    short = (n - 1 + 1 / ratio) / (n * 0.226 / 2.45)
    y = np.r_[np.full(n - 1, short), short * ratio]
    compute = y * (1 + np.r_[np.full(n - 1, over / (n - 1)), -under]) - s
    assert (compute > 0).all()
    assert (compute < y).all()
    assert np.mean(y - compute) == pytest.approx(s)
    for error, offset in zip(errors_of(figures, SMALL, A100), (d, 0.0, s), strict=True):
        assert error.mape[0] - 1e-9 <= np.mean(np.abs((compute + offset) / y - 1)) <= error.mape[1] + 1e-9
    assert ratio == pytest.approx(facts[f"{SMALL}/{A100}: steps under a mean offset"].low, rel=1e-3)


def test_compute_of_the_1b(facts: Exclusions) -> None:
    on_a100 = facts[f"{SMALL}/{A100}: mean T, weighted by 1/y"]
    assert on_a100.low == pytest.approx((1 - 0.4855) * 5.645 / (0.4855 + 0.05365), rel=1e-4)  # 5.39 ms
    on_h100 = facts[f"{SMALL}/{H100}: mean T, weighted by 1/y"]
    assert on_h100.low == pytest.approx((1 - 0.5045) * 5.35, rel=1e-3)  # 2.65 ms: no step below the smallest
    assert facts[f"{SMALL}/{H100}: cells over-predicted, raw"].high == 0  # so T < y is derived there
    assert facts[f"{SMALL}/{A100}: T over bytes"].low > 3
    assert facts[f"{SMALL}: T_{H100} / T_{H200}"].high < 4800 / 3350
    assert facts[f"{SMALL}: T_{A100} / T_{H100}"].high < 3350 / 1555
    assert facts[f"{SMALL}/{A100}: mean T/y"].low == pytest.approx(0.5145, abs=1e-4)


def test_signs_of_the_anchor_offsets(facts: Exclusions) -> None:
    """(16.45 - 8.55) % / 2.45 of mean(1/y) lies in over-predicted cells, with steps of at least 9.6 ms."""
    fact = facts[f"{ANCHOR}/{A100}: sign of the offset"]
    assert fact.low >= np.ceil(15 * 0.079 / 2.45 * 9.6)
    assert "exceeds the step" in fact.statement


def test_pooled_and_moe(facts: Exclusions) -> None:
    for model, value in ((ANCHOR, 8.4), (SIBLING, 5.5), (SMALL, 32.1)):
        fact = facts[f"{model}: pooled residual"]
        assert fact.low - 0.05 <= value <= fact.high + 0.05
        assert " agrees" in fact.statement
    error = facts[f"{MOE}/{H100}: error of (16, 8192)"]
    assert (error.low, error.high) == pytest.approx((100 * (33.15 / 24.75 - 1), 100 * (33.25 / 24.65 - 1)))
    assert error.low < 34.6 < error.high
    compute = facts[f"{MOE}/{H100}: T of (16, 8192)"]
    assert (compute.low, compute.high) == pytest.approx((13.5, 13.7))
    assert "balanced (16.05 ms at peak) is excluded" in compute.statement
    assert "active (9.11 ms at peak) would need 66.5 to 67.5 %" in compute.statement


def test_long_context_rises(facts: Exclusions) -> None:
    """The 1B's cache: 16 x 7680 tokens x 32768 bytes at 1555 GB/s is 2.59 ms, above 1.95 ms."""
    fact = facts["rise at batch 16 from 512 to 8192"]
    assert fact.high == pytest.approx(16 * 7680 * 32768 / 1555e9 * 1e3 / 1.85, rel=1e-6)
    assert fact.statement.endswith(f"below what the bytes need at peak: {SMALL}.")
    assert facts["rise at batch 8 from 512 to 8192"].statement.endswith("none is impossible.")
    assert facts[f"{SMALL}/{A100}: tokens of the rise"].high == pytest.approx(1.95e-3 * 1555e9 / 32768)
    ratio = facts[f"rise of {ANCHOR} over {SMALL}"]
    assert (ratio.low, ratio.high) == pytest.approx((14.75 / 1.95, 14.85 / 1.85))
    assert ratio.low > 4


def test_the_result_reads_well(facts: Exclusions) -> None:
    frame = facts.to_frame()
    assert len(frame) == len(facts) == len({f.name for f in facts})
    assert (frame["low"] <= frame["high"]).all()
    assert all(f.statement in repr(facts) and f.assumptions and f.figures for f in facts)
    with pytest.raises(KeyError, match="no fact 'x'"):
        facts["x"]


def test_fewer_cells_and_a_narrow_ratio_only_narrow(figures: PublishedFigures, facts: Exclusions) -> None:
    narrow = exclusions(figures, ratio=1.5)
    name = f"{SMALL}/{H200}: mean T, weighted by 1/y"
    assert facts[name].low - 1e-6 <= narrow[name].low <= narrow[name].high <= facts[name].high + 1e-6
    assert exclusions(figures, cells=5)[f"{SMALL}/{A100}: mean 1/y"].high <= 0.0956
