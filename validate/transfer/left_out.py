"""Which error of T_gpu predicts cells that it has not seen? Batches, contexts and GPUs left out in turn.

Posterior weights say which of the explanations that were tried fits best; when none of them is right they are as sure
of the least wrong. An error is named only where it also foretells the cells of a batch, context or GPU left out better
than every other explanation does, the one without an error among them.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from rooffloor.validate.transfer.explanations import Explanation, Gap, explanations

type Mask = NDArray[np.bool_]

MOST_GROUPS = 4
"""Groups of neighbouring batches, of contexts and of GPUs that are left out."""
MOST_CELLS = 300
"""Of more cells every nth takes part."""


def scores(gap: Gap, rope: float, *, own: Gap | None = None) -> dict[str | None, float]:
    """Log density of left-out cells given the others, by error (None: T_gpu is right), summed over groups.

    Parameters as `explanations.explanations`. Floors, sizes and noise are integrated out given the cells that stay.
    Empty where no batch and no context can be left out.
    """
    if len(gap.gap_ms) > MOST_CELLS:
        keep = np.zeros(len(gap.gap_ms), dtype=bool)
        keep[:: -(-len(keep) // MOST_CELLS)] = True
        gap, own = gap.where(keep), None if own is None else own.where(keep)
    whole = _by_error(explanations(gap, rope, own=own))
    found: dict[str | None, float] = {}
    for out in (*_groups(gap.batch), *_groups(gap.context), *_groups(gap.sku.astype(float))):
        rest = None if own is None else own.where(~out)
        part = _by_error(explanations(gap.where(~out), rope, own=rest))
        for error, density in whole.items():
            found[error] = found.get(error, 0.0) + density - part[error]
    return found


def ahead(gap: Gap, error: str, rope: float, *, own: Gap | None = None) -> float:
    """By how much an error foretells left-out cells better than the best of all others, nats; -inf where unknown."""
    found = scores(gap, rope, own=own)
    mine = found.pop(error, -np.inf)
    return float(mine - max(found.values())) if found else -np.inf


def _by_error(found: list[Explanation]) -> dict[str | None, float]:
    """Log density of the cells under each error, whichever floor."""
    joint: dict[str | None, float] = {}
    for one in found:
        joint[one.error] = float(np.logaddexp(joint.get(one.error, -np.inf), one.log_joint))
    return joint


def _groups(values: NDArray[np.float64]) -> Iterator[Mask]:
    """Cells of neighbouring values, `MOST_GROUPS` groups at most; none where all have one value."""
    different = np.unique(values)
    if len(different) > 1:
        for some in np.array_split(different, min(MOST_GROUPS, len(different))):
            yield np.isin(values, some)
