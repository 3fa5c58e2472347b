"""What a check answers, whether before why: verdict on use and cause of each GPU and of all, as plain data."""

from collections.abc import Sequence
from typing import Any

from rooffloor.validate.study.margins import Margins
from rooffloor.validate.transfer.cause import Cause, stated
from rooffloor.validate.transfer.statements import CANNOT_TELL, DOES_NOT_HOLD, NOTHING, WITHIN_OR_NOT
from rooffloor.validate.transfer.use import Use, together


def answered(found: Cause, uses: Sequence[Use], margins: Margins, *, usable: bool = True) -> dict[str, Any]:
    """`Cause.data` with the verdicts on use, by GPU in its order, and overall.

    Parameters
    ----------
    uses : sequence of Use
        One a GPU.
    usable : bool
        Whether the constants are what their physical priors allow; an error of T_gpu is not named where they are not.
    """
    whole = together(uses)
    rows = [_row(row, use, usable) for row, use in zip(found.per_sku, uses, strict=True)]
    overall = _row(found.data["overall"], whole, usable)
    told = stated(found.data, overall, rows, found.data["notes"], margins).data
    return {
        **told,
        "verdict": overall["verdict"],
        "probability": overall["probability"],
    }


def _row(row: dict[str, Any], use: Use, usable: bool) -> dict[str, Any]:
    """Verdict and cause of some GPUs.

    A calibration that does not hold is not within its margins, whatever the level that its draws expect.
    """
    found = {"gpu": row["gpu"], "verdict": use.verdict, "probability": use.probability, "use": use.data} | row
    if row["cause"] == NOTHING and use.verdict == DOES_NOT_HOLD:
        found |= {"cause": CANNOT_TELL, "open": WITHIN_OR_NOT}
    if not usable:
        found |= {"mechanism": None}
    return found
