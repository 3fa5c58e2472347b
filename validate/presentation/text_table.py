"""A table as lines of text, for a terminal."""

from collections.abc import Sequence
from itertools import zip_longest


def text_table(rows: Sequence[Sequence[str]], align: str = "<", *, indent: int = 0, gap: int = 2) -> list[str]:
    """Rows of cells as lines with columns of equal width, without trailing blanks.

    Parameters
    ----------
    rows : sequence of sequences of str
        Rows may be shorter than others: the cells that they lack are empty.
    align : str
        "<" (left) or ">" (right) for each column; the last one also holds for all further columns.
    indent, gap : int
        Blanks before a line, and between two columns.

    Examples
    --------
    >>> text_table([("GPU", "ms"), ("H100", "7.1")], "<>", indent=1)
    [' GPU    ms', ' H100  7.1']
    """
    columns = list(zip_longest(*rows, fillvalue=""))
    sides = align + align[-1] * len(columns)
    padded = [[f"{text:{side}{max(map(len, c))}}" for text in c] for c, side in zip(columns, sides, strict=False)]
    return [(" " * indent + (" " * gap).join(line)).rstrip() for line in zip(*padded, strict=True)]
