"""By what the hypotheses are judged, and when that was chosen."""

from dataclasses import dataclass

FIXED, POST_HOC, DEFAULTS = "fixed beforehand", "post hoc", "defaults, not fixed beforehand"


@dataclass(frozen=True)
class Margins:
    """By what the hypotheses are judged.

    Attributes
    ----------
    h1_points : float
        Residual MAPE of a transferred model may exceed the anchor's by so many points.
    h1_absolute : float
        Residual MAPE may be at most so many percent.
    slope_rope : float
        A slope within 1 +- this is as good as 1.
    dispatch_percent : float
        A term below so many percent of the step is negligible.
    probability : float
        Posterior probability that a verdict needs.
    label : str
        When the margins were chosen: "fixed beforehand", "post hoc" or "defaults, not fixed beforehand".

    Raises
    ------
    ValueError
        A margin is no number from 0 to 100, the probability none from 0.5 to 1, or the label is unknown.

    Examples
    --------
    >>> Margins(h1_points=3).label
    'defaults, not fixed beforehand'
    """

    h1_points: float = 2.0
    h1_absolute: float = 10.0
    slope_rope: float = 0.12
    dispatch_percent: float = 1.0
    probability: float = 0.95
    label: str = DEFAULTS

    def __post_init__(self) -> None:
        for name in ("h1_points", "h1_absolute", "slope_rope", "dispatch_percent"):
            _number(name, getattr(self, name), 0.0, 100.0)
        _number("probability", self.probability, 0.5, 1.0)
        one_of("label", self.label, (FIXED, POST_HOC, DEFAULTS))


def one_of(name: str, value: object, known: tuple[str, ...]) -> None:
    """ValueError where `value` is not one of the words `known`."""
    if value not in known:
        raise ValueError(f"{name} {value!r} is unknown; expected one of {', '.join(known)}")


def _number(name: str, value: object, low: float, high: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise ValueError(f"{name} must be a number from {low:g} to {high:g}, got {value!r}")
