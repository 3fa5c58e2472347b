"""Batches and contexts as a user asks for them: numbers, lists and ranges."""

import math
import re

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rooffloor.models.specs.inputs import shown
from rooffloor.validate.common.errors import InputError

LARGEST_GRID = 20_000
"""Cells of one prediction: models x GPUs x batches x contexts."""
LARGEST_VALUE = 10**9


def axis(values: ArrayLike, name: str, least: int) -> NDArray[np.float64]:
    """Different whole numbers from `least`, in the order given.

    Raises
    ------
    InputError
        There are none, or one is no whole number in that range.
    """
    expected = f"{name}: expected whole numbers from {least} to {LARGEST_VALUE:g}"
    try:
        found = np.atleast_1d(np.asarray(values, dtype=float)).ravel()
    except (TypeError, ValueError):
        raise InputError(f"{expected}, got {shown(values)}") from None
    check_size(len(found))
    bad = found[~((found >= least) & (found <= LARGEST_VALUE) & (found == np.round(found)))]
    if not len(found) or len(bad):
        raise InputError(f"{expected}, got {f'{bad[0]:g}' if len(bad) else 'none'}")
    return np.array(list(dict.fromkeys(found.tolist())))


def parse_axis(text: str, name: str, least: int) -> NDArray[np.float64]:
    """Numbers, lists and ranges as text: "4", "1,4,16", "512:8192:512", "1:64:2x", or a list of those.

    START:STOP:STEP counts up in steps of STEP, START:STOP:FACTORx multiplies; STOP is the last value that may occur.

    Raises
    ------
    InputError
        Anything else; the message names the option `name`.
    """
    values = list[float]()
    for part in text.split(","):
        values += _parse_part(part.strip(), f"--{name}")
        check_size(len(values))
    return axis(values, f"--{name}", least)


def _parse_part(part: str, name: str) -> list[float]:
    """The values of one number or one range."""
    if re.fullmatch(r"[0-9]{1,12}", part):
        return [float(part)]
    found = re.fullmatch(r"([0-9]{1,12}):([0-9]{1,12}):([0-9]{1,12})(x?)", part)
    if found is None:
        raise InputError(
            f"{name}: expected whole numbers such as 4, a list 1,4,16, or a range START:STOP:STEP (512:8192:512) or "
            f"START:STOP:FACTORx (1:64:2x), got {shown(part)}"
        )
    start, stop, step = (int(group) for group in found.groups()[:3])
    times = found[4] == "x"
    if stop < start or step < 1 + times or (times and start < 1):
        raise InputError(
            f"{name}: expected a range that rises from START to STOP in steps of at least 1, or by a FACTOR of at "
            f"least 2 from 1 on, got {part!r}"
        )
    if not times:
        check_size((stop - start) // step + 1)
        return [float(v) for v in range(start, stop + 1, step)]
    count = int(math.log(stop / start, step) + 1e-9) + 1
    return [float(start * step**k) for k in range(count)]


def check_size(cells: int) -> None:
    """InputError where so many cells are too many for one prediction."""
    if cells > LARGEST_GRID:
        raise InputError(f"batch x context x GPUs x models: expected at most {LARGEST_GRID} cells, got {cells}")
