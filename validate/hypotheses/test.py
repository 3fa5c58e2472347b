"""The tests of a fitted study: verdicts that other choices do not turn, with their error rates."""

from typing import TYPE_CHECKING, Any

from rooffloor.validate.common.errors import InputError
from rooffloor.validate.hypotheses import as_published
from rooffloor.validate.hypotheses.as_published import published_first
from rooffloor.validate.hypotheses.h1 import h1
from rooffloor.validate.hypotheses.h2 import h2
from rooffloor.validate.hypotheses.h3 import h3
from rooffloor.validate.hypotheses.result import Result
from rooffloor.validate.hypotheses.robustness import Robustness, robustness, settled

if TYPE_CHECKING:
    from rooffloor.validate.fitting.evidence import Evidence

TESTS: dict[str, Any] = {"H1": h1, "H2": h2, "H3": h3}
"""Each hypothesis as a function of draws and margins, for the primary choices alone."""


def test(fit: "Evidence", name: str) -> Result:
    """Test one hypothesis on a fitted study.

    Parameters
    ----------
    fit : Evidence
        Of `rooffloor.fit`; nothing is fitted again.
    name : "H1", "H2" or "H3"

    Returns
    -------
    Result
        The verdict that other choices leave, sentences with the test's error rates, and a table by model and GPU.

    Raises
    ------
    InputError
        There is no such hypothesis.

    Examples
    --------
    >>> import rooffloor as rf
    >>> fit = rf.fit(rf.Study.load("transfer-study"), primary_only=True)
    >>> rf.test(fit, "H2")
    H2: refuted
    """
    if name not in TESTS:
        raise InputError(f"there is no hypothesis {name!r}; expected one of {', '.join(TESTS)}")
    return judged(fit, (name,))[0][name]


test.__test__ = False  # type: ignore[attr-defined]  # its name would make pytest collect it


def judged(fit: "Evidence", names: tuple[str, ...] = tuple(TESTS)) -> tuple[dict[str, Result], Robustness]:
    """Settled results of several hypotheses, and the verdicts under every choice.

    Of a published study, what its printed figures say stands first (`as_published`).
    """
    printed, margins = as_published.read(fit), fit.study.margins
    refitted = {name: TESTS[name](fit.draws, margins) for name in names}
    results = {n: one if printed is None else published_first(one, printed) for n, one in refitted.items()}
    found = robustness(fit, results, printed, refitted)
    gpus = len(fit.draws.cells.gpus)
    return {name: settled(result, found, gpus) for name, result in results.items()}, found
