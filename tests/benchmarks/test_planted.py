"""The exam of the verdicts: what counts as right, what is counted, and a short sitting on grids that others make."""

import runpy
import sys
from pathlib import Path

import planted
import pytest
from planted import EXPECTED, JUDGED, MOE, OF_USE, SIBLING, SMALL, USE, counted, judged, read

TABLE = Path(__file__).parents[2] / "data" / "calibration" / "planted.csv"
PLANT = Path(__file__).parents[3] / "shared" / "tools" / "plant.py"


@pytest.mark.parametrize(
    ("truth", "statement", "verdict", "expected"),
    [
        ("null", "H1", "supported", "right"),
        ("null", "H1", "undecided", "fair"),
        ("null", "H1", "refuted", "wrong"),
        ("null", "H2a", "not tested", ""),
        ("kv_x2", "H1", "supported", "wrong"),
        ("kv_x2", SIBLING, "shape mismatch", "right"),
        ("kv_x2", SIBLING, "recalibrate the floor", "wrong"),
        ("half_overlap", "H3", "undecided", "fair"),
        ("null", SIBLING + USE, "holds", "right"),
        ("moe_floor", MOE + USE, "holds", "wrong"),
        ("small_floor", SMALL + USE, "undecided", "fair"),
        ("null", SIBLING, "no answer: the fit failed its gate", "no answer"),
    ],
)
def test_what_is_right_to_say(truth: str, statement: str, verdict: str, expected: str) -> None:
    assert judged(truth, statement, verdict) == expected


def test_counts_add_up_to_the_grids() -> None:
    names = ("truth", "seed", "statement", "verdict", "judged")
    verdicts = [
        ("supported", "right"),
        ("undecided", "fair"),
        ("supported", "right"),
        ("no answer: R-hat", "no answer"),
    ]
    rows = [dict(zip(names, ("null", str(n), "H1", *one), strict=True)) for n, one in enumerate(verdicts)]
    [row] = counted(rows)
    assert row["verdicts"] == "supported 2; undecided 1; no answer 1"
    assert [row[name] for name in ("grids", *JUDGED)] == ["4", "2", "1", "0", "1"]


def test_use_is_asked_of_families_that_are_checked() -> None:
    assert all(family in EXPECTED[truth] for truth, families in OF_USE.items() for family in families)


@pytest.mark.skipif(not TABLE.exists(), reason="the table has not been made since check says whether before why")
def test_the_committed_table_is_no_wrong_verdict_and_its_counts_add_up() -> None:
    rows = read(TABLE)
    assert rows
    for row in rows:
        assert row["truth"] in EXPECTED
        counts = [int(row[name]) for name in JUDGED]
        expects = {*EXPECTED[row["truth"]], *(family + USE for family in OF_USE.get(row["truth"], {}))}
        if row["statement"] in expects:
            assert sum(counts) == int(row["grids"]), row
    assert sum(int(row["wrong"]) for row in rows) <= 0.05 * sum(int(row["grids"]) for row in rows)


@pytest.mark.calibration
@pytest.mark.skipif(not PLANT.exists(), reason="the tool that plants truths is not part of the repository")
@pytest.mark.parametrize("truth", ["null", "kv_x2", "query_heads", "max", "moe_floor", "small_scale"])
def test_no_confident_wrong_verdict_on_a_fresh_grid(
    truth: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["plant.py", str(tmp_path / f"{truth}-91.csv"), "--truth", truth, "--seed", "91"])
    runpy.run_path(str(PLANT), run_name="__main__")
    planted.main([str(tmp_path), "--out", str(tmp_path / "planted.csv"), "--seeds", "91", "--truths", truth])
    rows = read(tmp_path / "planted.csv")
    assert [row["statement"] for row in rows][:2] == ["fit", "H1"]
    assert {row["statement"] for row in rows if row["wrong"] != "0"} == set()
