from rooffloor.validate.presentation.text_table import text_table


def test_columns_are_as_wide_as_their_widest_cell_and_lines_end_without_blanks():
    rows = [("model", "ms", "note"), ("a", "12.5", ""), ("longer name", "1.0", "so")]
    assert text_table(rows, "<><", indent=2) == [
        "  model          ms  note",
        "  a            12.5",
        "  longer name   1.0  so",
    ]


def test_the_last_alignment_holds_for_further_columns_and_short_rows_are_filled():
    assert text_table([("a", "bb", "ccc"), ("aaaa",), ("a", "b", "c")], ">", gap=1) == [
        "   a bb ccc",
        "aaaa",
        "   a  b   c",
    ]


def test_no_rows_no_lines():
    assert text_table([]) == []
