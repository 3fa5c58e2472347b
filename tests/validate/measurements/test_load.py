"""Measurements in: what is read, refused, excluded and flagged, each error as one line with its row."""

import numpy as np
import pandas as pd
import pytest

from rooffloor.models.roof.roofline import bytes_floor_ms
from rooffloor.models.specs.shapes import ModelShapes
from rooffloor.models.specs.shapes import load as load_shapes
from rooffloor.validate.common.errors import InputError
from rooffloor.validate.measurements import csvfile
from rooffloor.validate.measurements.load import load_measurements
from rooffloor.validate.measurements.names import Names

HEADER = "model,gpu,batch,context,step_ms"
CELL = "Llama-3.1-8B,H100,{},{},{}"
GOOD = [CELL.format(1, 512, 8.0), CELL.format(2, 512, 8.2), CELL.format(1, 8192, 8.6)]


@pytest.fixture
def read(tmp_path):
    """Load the measurements of lines, text or bytes."""

    def of(content, **options):
        file = tmp_path / "steps.csv"
        text = "\n".join(content) + "\n" if isinstance(content, list) else content
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
        return load_measurements(file, **options)

    return of


@pytest.fixture
def refusal(read):
    """The message with which content is refused: always one line that names the file."""

    def of(content, **options):
        with pytest.raises(InputError) as error:
            read(content, **options)
        message = str(error.value)
        assert "\n" not in message
        assert "steps.csv" in message
        return message

    return of


# ---- reading


def test_a_plain_file(read):
    m = read([HEADER, *GOOD])
    assert list(m.frame.index) == [2, 3, 4]
    assert m.frame["step_ms"].tolist() == [8.0, 8.2, 8.6]
    assert m.frame["step_sd_ms"].tolist() == [0, 0, 0]
    assert m.label == "measured"
    assert (len(m.excluded), len(m.flagged)) == (0, 0)
    assert m.provenance["rows"] == m.provenance["accepted"] == 3
    assert "3 rows" in repr(m)
    cells = m.cells()
    assert cells.models == ("Llama-3.1-8B",)
    assert cells.context.tolist() == [512, 512, 8192]
    assert cells.step_ms.tolist() == [8.0, 8.2, 8.6]
    assert cells.step_sd_ms.tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    "disguise",
    [
        lambda t: b"\xef\xbb\xbf" + t.encode(),
        lambda t: t.replace("\n", "\r\n").encode(),
        lambda t: t.replace("\n", "\r").encode(),
        lambda t: t.replace(",", " , ").encode(),
        lambda t: t.rstrip("\n").encode(),
        lambda t: t.replace("\n", "\n\n").encode(),
        lambda t: ("\n \n" + t).encode(),
    ],
    ids=["BOM", "CRLF", "CR", "spaces", "no last line end", "blank lines", "blank lines above"],
)
def test_the_same_file_in_another_dress(read, disguise):
    text = "\n".join([HEADER, *GOOD]) + "\n"
    plain, other = read(text), read(disguise(text))
    pd.testing.assert_frame_equal(plain.frame.reset_index(drop=True), other.frame.reset_index(drop=True))


def test_column_order_and_extra_columns_do_not_matter(read):
    lines = ["note,step_ms,context,batch,gpu,model", '"fast, quiet",8.0,512,1,H100,Llama-3.1-8B']
    m = read(lines)
    assert m.frame["step_ms"].tolist() == [8.0]
    assert m.provenance["extra_columns"] == ["note"]
    assert m.frame["note"].tolist() == ["fast, quiet"]


def test_a_line_break_in_quotes_shifts_the_row_numbers(read, refusal):
    lines = [f"{HEADER},source", GOOD[0] + ',"two\nlines"', GOOD[1] + ",x"]
    assert list(read(lines).frame.index) == [2, 4]
    assert "row 4, column batch" in refusal([*lines[:2], GOOD[1].replace(",2,", ",two,") + ",x"])


def test_a_million_rows_are_read(read):
    n = 1_000_000
    frame = pd.DataFrame(
        {
            "model": "Llama-3.1-8B",
            "gpu": np.where(np.arange(n) % 2, "H100", "H200"),
            "batch": np.arange(n) % 4 + 1,
            "context": np.arange(n) // 8,
            "step_ms": 40.0,
            "repeat": np.arange(n) % 8 // 2,
        }
    )
    m = read(frame.to_csv(index=False))
    assert len(m.frame) + len(m.excluded) == n
    assert len(m.cells()) == len(m.frame) > 900_000
    assert max(m.frame.index[-1], m.excluded.index[-1]) == n + 1


def test_names_are_resolved_through_the_catalog(read):
    m = read([HEADER, "meta-llama/llama-3.1-8b,nvidia h100 80gb hbm3,1,512,8"])
    assert m.frame[["model", "gpu"]].iloc[0].tolist() == ["Llama-3.1-8B", "H100"]
    assert m.shapes["Llama-3.1-8B"] == load_shapes("Llama-3.1-8B")
    assert m.gpus["H100"].name == "H100"


def test_a_study_may_bring_models_that_the_catalog_lacks(read):
    tiny = ModelShapes(
        "Tiny", hidden=1024, intermediate=4096, layers=8, heads=8, kv_heads=8, head_dim=128, vocab=32000,
        max_context=4096,
    )  # fmt: skip
    m = read([HEADER, "tiny,H100,1,512,2.0"], names=Names(models={"Tiny": tiny}))
    assert m.shapes == {"Tiny": tiny}


def test_a_data_frame_is_as_good_as_a_file(read):
    m = read([HEADER, *GOOD])
    again = load_measurements(m.frame[["model", "gpu", "batch", "context", "step_ms"]])
    assert again.frame["step_ms"].tolist() == m.frame["step_ms"].tolist()
    assert list(again.frame.index) == [1, 2, 3]
    bad = m.frame.assign(batch=[1.0, np.nan, 2.0])
    with pytest.raises(InputError, match="data frame, row 2, column batch: the cell is empty"):
        load_measurements(bad)
    with pytest.raises(InputError, match=r"data frame, row 3, column step_ms: found '-1.0', expected milliseconds"):
        load_measurements(m.frame.assign(step_ms=[7.9, 8.0, -1.0]))
    with pytest.raises(InputError, match="data frame, row 1, column model: unknown model 'Llama-9'"):
        load_measurements(m.frame.assign(model=[" Llama-9 ", *m.frame["model"][1:]]))
    with pytest.raises(InputError, match="data frame: column 'gpu' appears twice"):
        load_measurements(pd.concat([m.frame, m.frame[["gpu"]]], axis=1))
    with pytest.raises(InputError, match="data frame, row 1: column 'model' is missing"):
        load_measurements(pd.DataFrame())


# ---- refusals


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        (b"", ["is empty"]),
        (b"\xef\xbb\xbf\r\n\r\n", ["is empty"]),
        (HEADER + "\n", ["no rows"]),
        ("model,gpu,batch,context\nLlama-3.1-8B,H100,1,512\n", ["row 1", "'step_ms' is missing"]),
        (HEADER.replace(",", ";") + "\n1;2;3;4;5\n", ["row 1", "separated by ';' but", "commas"]),
        (HEADER.replace(",", ";") + "\na;b;1;512;7,9\n", ["row 1", "separated by ';', with commas in numbers"]),
        (HEADER.replace(",", "\t") + "\na\tb\t1\t512\t7.9\n", ["row 1", "separated by tabs"]),
        (f"# my data, of today\n{HEADER}\n{GOOD[0]}\n", ["row 1", "'# my data'", "expected a header"]),
        (f"{HEADER}{',x' * 1000}\n", ["row 1", "found 1005 columns, expected at most 1000"]),
        (HEADER.replace("step_ms", "Step_S") + f"\n{GOOD[0]}\n", ["'step_ms' is missing", "1000 times Step_S"]),
        (HEADER.replace("step_ms", "tpot_ms") + f"\n{GOOD[0]}\n", ["'step_ms' is missing", "tpot_ms"]),
        (f"{HEADER},GPU\n{GOOD[0]},H100\n", ["row 1", "'gpu' and 'GPU'"]),
        (f"{HEADER},gpu\n{GOOD[0]},H100\n", ["row 1", "'gpu' appears twice"]),
        (f"{HEADER}\n{GOOD[0]},7\n", ["row 2", "6 cells, expected 5"]),
        (f'{HEADER}\n{GOOD[0]}\n"{GOOD[0]}\n', ["row 3", "never closed"]),
        (f"{HEADER},µ\n{GOOD[0]},1\n".encode("latin-1"), ["row 1", "0xb5 is not UTF-8"]),
        (f"{HEADER}\n{GOOD[0]}\n".encode("utf-16"), ["not UTF-8"]),
        (f"{HEADER}\n{GOOD[0]}\n".encode("utf-16-le"), ["not a text file in UTF-8"]),
    ],
    ids=lambda value: "" if isinstance(value, list) else None,
)
def test_what_is_not_such_a_table_is_refused(refusal, content, parts):
    message = refusal(content)
    assert [part for part in parts if part not in message] == []


@pytest.mark.parametrize(
    ("column", "text", "expected"),
    [
        ("batch", "four", "found 'four', expected a whole number of sequences"),
        ("batch", "1.5", "found '1.5', expected a whole number"),
        ("batch", "0", "at least 1"),
        ("batch", "", "the cell is empty, expected a whole number"),
        ("batch", "1,000", None),
        ("context", "-1", "at least 0"),
        ("context", "inf", "found 'inf'"),
        ("step_ms", "nan", "found 'nan', expected milliseconds"),
        ("step_ms", "-8", "found '-8', expected milliseconds"),
        ("step_ms", "0", "expected milliseconds"),
        ("step_ms", "8 ms", "found '8 ms'"),
        ("step_ms", "0.004", "expected milliseconds"),
        ("step_ms", "40000", "expected milliseconds"),
        ("step_ms", "0.08", "expected milliseconds, at least the physical minimum of 4.5"),
        ("step_ms", "0.05", "(is it in seconds?)"),
        ("step_ms", "8200", "(is it in microseconds?)"),
        ("gpu", "RTX 9090", "unknown GPU 'RTX 9090'"),
        ("gpu", "A100", "A100-80GB"),
        ("model", "Llama-9", "unknown model 'Llama-9'"),
    ],
)
def test_a_bad_cell_is_named_with_row_column_and_expectation(refusal, column, text, expected):
    names = HEADER.split(",")
    cells = GOOD[1].split(",")
    cells[names.index(column)] = text
    message = refusal([HEADER, GOOD[0], ",".join(cells), GOOD[2]])
    assert "row 3" in message
    if expected is not None:
        assert f"column {column}: " in message
        assert expected in message


def test_unknown_names_come_with_the_known_ones(refusal):
    assert "Qwen2.5-7B" in refusal([HEADER, GOOD[0].replace("Llama-3.1-8B", "Llama-9")])
    assert "L40S" in refusal([HEADER, GOOD[0].replace("H100", "H900")])


def test_the_first_bad_row_of_the_file_is_named_whatever_the_column(refusal):
    message = refusal([HEADER, GOOD[0], CELL.format(2, 512, -1), CELL.format(-3, 512, 8)])
    assert "row 3, column step_ms" in message


def test_optional_columns_are_checked_too(refusal):
    assert "column mode: found 'turbo', expected eager or graph or unknown" in refusal(
        [f"{HEADER},mode", GOOD[0] + ",turbo"]
    )
    assert "column step_sd_ms: found '-1'" in refusal([f"{HEADER},step_sd_ms", GOOD[0] + ",-1"])
    assert "column tensor_parallel: found '0'" in refusal([f"{HEADER},tensor_parallel", GOOD[0] + ",0"])


def test_a_file_in_seconds_is_refused_even_where_no_single_row_is_absurd(refusal):
    # Half of the physical minimum: each row alone could be one bad measurement.
    message = refusal([HEADER, CELL.format(1, 512, 2.2), CELL.format(2, 512, 2.2), GOOD[2]])
    assert "row 2, column step_ms: found '2.2'" in message
    assert "2 of 3 rows are below" in message


def test_the_same_key_twice_needs_repeat(read, refusal):
    message = refusal([HEADER, *GOOD, GOOD[1]])
    assert "row 5" in message
    assert "stands at row 3 already" in message
    assert "a column repeat" in message
    twice = [f"{HEADER},repeat", *(line + ",0" for line in GOOD), CELL.format(2, 512, 8.4) + ",1"]
    m = read(twice)
    assert len(m.frame) == len(m.cells()) == 4
    # log(8.4/8.2)/sqrt(2), the sd of two logarithms
    assert m.repeat_spread() == pytest.approx(np.log(8.4 / 8.2) / np.sqrt(2))
    assert "different repeat" in refusal([*twice[:-1], GOOD[1] + ",0"])


def test_without_repeats_no_noise_is_claimed(read):
    assert np.isnan(read([HEADER, *GOOD]).repeat_spread())


def test_mixed_stacks_and_modes_need_a_choice(read, refusal):
    lines = [f"{HEADER},stack,mode", *(line + ",vLLM,graph" for line in GOOD), GOOD[0] + ",HF,graph"]
    assert "row 5, column stack" in refusal(lines)
    assert "HF, vLLM; choose one with --stack" in refusal(lines)
    m = read(lines, stack="VLLM")
    assert len(m.frame) == 3
    assert (m.provenance["stack"], m.provenance["mode"]) == ("vLLM", "graph")
    assert m.provenance["not_selected"] == {"other stack than vLLM": 1}
    assert "expected one of HF, vLLM" in refusal(lines, stack="TGI")
    modes = [f"{HEADER},mode", GOOD[0] + ",eager", GOOD[1] + ",graph"]
    assert "choose one with --mode" in refusal(modes)
    assert read(modes, mode="graph").frame["batch"].tolist() == [2]
    assert "no column 'stack'" in refusal([HEADER, *GOOD], stack="vLLM")


def test_an_unknown_format_and_a_missing_file(tmp_path, read):
    with pytest.raises(InputError, match="format 'xls' is unknown: expected one of schema, argonne"):
        read([HEADER, *GOOD], format="xls")
    with pytest.raises(InputError, match="nowhere"):
        load_measurements(tmp_path / "nowhere.csv")
    with pytest.raises(InputError, match="directory"):
        load_measurements(tmp_path)


# ---- exclusions


def test_a_row_below_the_physical_minimum_is_excluded_with_its_reason(read):
    least = float(bytes_floor_ms("Llama-3.1-8B", "H100", 2, 512))
    m = read([HEADER, *GOOD, CELL.format(4, 512, 4.4)])
    assert m.excluded.index.tolist() == [5]
    assert m.excluded["reason"].tolist() == ["step below the physical minimum"]
    assert m.excluded["detail"].iloc[0].startswith("4.4 ms < 4.5")
    assert read([HEADER, CELL.format(2, 512, least * 1.001)]).excluded.empty


def test_what_is_not_16_bit_on_one_gpu_is_excluded(read):
    lines = [
        f"{HEADER},dtype,kv_dtype,tensor_parallel",
        GOOD[0] + ",bfloat16,auto,1",
        GOOD[0] + ",fp8,,1",
        GOOD[0] + ",float16,fp8_e5m2,1",
        GOOD[0] + ",,,2",
    ]
    m = read(lines)
    assert len(m.frame) == 1
    assert m.excluded["reason"].to_dict() == {
        3: "dtype is not 16-bit",
        4: "kv_dtype is not 16-bit",
        5: "more than one GPU",
    }
    assert m.excluded.loc[3, "detail"] == "fp8"


def test_rows_that_the_author_excludes_need_no_number(read):
    lines = [f"{HEADER},excluded", GOOD[0] + ",", "Llama-3.1-8B,H100,2,512,,out of memory", "x,y,z,,,crashed"]
    m = read(lines)
    assert len(m.frame) == 1
    assert m.excluded["reason"].tolist() == ["excluded in the file"] * 2
    assert m.excluded["detail"].tolist() == ["out of memory", "crashed"]


def test_what_does_not_fit_the_memory_is_excluded(read):
    # 16.1 GB of weights and 256 * 8192 * 131072 bytes of cache on 80 GB
    m = read([HEADER, *GOOD, CELL.format(256, 8192, 400)])
    assert m.excluded["reason"].tolist() == ["does not fit the GPU's memory"]


def test_a_file_of_which_nothing_can_be_used_is_refused(refusal):
    message = refusal([f"{HEADER},dtype", *(line + ",fp8" for line in GOOD)])
    assert "no row can be used (3 rows: dtype is not 16-bit)" in message


# ---- flags


def grid_lines(steps, gpu="H100"):
    """Lines for steps[batch, context] of batches 1, 2, 4 and contexts 512, 1024."""
    return [
        f"Llama-3.1-8B,{gpu},{b},{c},{steps[i][j]}" for i, b in enumerate((1, 2, 4)) for j, c in enumerate((512, 1024))
    ]


def test_a_plausible_grid_has_no_flags(read):
    assert read([HEADER, *grid_lines([[8, 8.1], [8.2, 8.4], [8.5, 9.0]])]).flagged.empty


def test_superlinear_growth_and_falls_are_flagged_but_stay(read):
    m = read([HEADER, *grid_lines([[8, 8.1], [8.2, 8.4], [17.0, 7.0]])])
    assert len(m.frame) == 6
    found = m.flagged[["batch", "context", "reason", "neighbour"]].to_numpy().tolist()
    assert sorted(found) == [
        [4.0, 512.0, "more than linear growth with batch", "batch 2: 8.2 ms"],
        [4.0, 1024.0, "falls by over 5 % with batch", "batch 2: 8.4 ms"],
        [4.0, 1024.0, "falls by over 5 % with context", "context 512: 17 ms"],
    ]
    assert m.flagged.index.tolist() == [6, 7, 7]


def test_growth_in_proportion_is_not_flagged(read):
    assert read([HEADER, *grid_lines([[8, 16], [16, 32], [32, 64]])]).flagged.empty


def test_repeats_are_compared_by_their_median(read):
    lines = [f"{HEADER},repeat"]
    lines += [CELL.format(1, 512, t) + f",{i}" for i, t in enumerate((8.0, 8.1, 8.2))]
    lines += [CELL.format(2, 512, t) + f",{i}" for i, t in enumerate((8.1, 8.2, 30.0))]
    assert read(lines).flagged.empty


def test_close_neighbours_are_not_compared(read):
    assert read([HEADER, CELL.format(1, 512, 8.0), CELL.format(1, 514, 8.2)]).flagged.empty


def test_flags_of_the_file_are_kept(read):
    m = read([f"{HEADER},flag", GOOD[0] + ",", GOOD[1] + ",GPU was hot"])
    assert m.flagged[["reason", "neighbour"]].to_numpy().tolist() == [["flagged in the file", "GPU was hot"]]


def test_the_data_without_flagged_grids(read):
    odd = [[8, 8.1], [8.2, 8.4], [17.0, 9.0]]
    good = [[8, 8.1], [8.2, 8.4], [8.5, 9.0]]
    m = read([HEADER, *grid_lines(odd), *grid_lines(good, gpu="H200")])
    assert m.flagged_grids == (("Llama-3.1-8B", "H100"),)
    calm = m.without_flagged()
    assert set(calm.frame["gpu"]) == {"H200"}
    assert calm.flagged_grids == ()
    assert calm.excluded["reason"].tolist() == ["grid is flagged"] * 6
    assert len(m.frame) == 12
    with pytest.raises(InputError, match=r"every \(model, GPU\) grid is flagged"):
        read([HEADER, *grid_lines(odd)]).without_flagged()


# ---- labels and text


def test_the_label_says_where_numbers_come_from(read):
    assert read([f"{HEADER},origin", GOOD[0] + ",simulated", GOOD[1] + ",Simulated"]).label == "simulated"
    assert read([f"{HEADER},origin", GOOD[0] + ",imputed", GOOD[1] + ","]).label == "measured, imputed"


def test_the_summary_tells_rows_reasons_and_flags(read):
    odd = grid_lines([[8, 8.1], [8.2, 8.4], [17.0, 9.0]])
    text = read([f"{HEADER},dtype", *(line + "," for line in odd), GOOD[2] + ",int4"]).text
    assert "Llama-3.1-8B on H100: 6 rows" in text
    assert "excluded: dtype is not 16-bit: 1 rows" in text
    assert "flagged: more than linear growth with batch: 1 rows" in text
    assert "flagged grid: Llama-3.1-8B on H100" in text


def test_a_table_names_the_line_of_its_header(tmp_path):
    file = tmp_path / "late.csv"
    file.write_text("\n\na,b\n1,2\n")
    with pytest.raises(InputError, match=r"late.csv, row 3: column 'c' is missing"):
        csvfile.read(file).require(["c"])
