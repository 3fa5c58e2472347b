"""How often the tests of the hypotheses err: rates counted on simulated studies, and what they say in words.

`simulation.hypotheses` (`rooffloor calibrate`) makes the table that is kept in data/calibration/tests.csv.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rooffloor.validate.common import files, resources
from rooffloor.validate.study.margins import Margins

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

FOLDER, TABLE = "calibration", "tests.csv"
NOISE = 0.02
LEFTOVER, SMALL_LEFTOVER = 0.12, 0.02
"""sd of the leftover: under the first, the anchor's residual MAPE is about that of the published study, 8 %."""
SLOPES = (1.0, 1.12, 1.5)
"""True slopes of the simulated mixtures of experts."""
BETWEEN, NUMBERS = (0.0, 1.0, 3.0), (3, 5, 8)
"""Spread between GPUs in points, and numbers of GPUs, of the simulated families."""
OVERLAPS = ("half overlapped", "the longer of the two")
"""Ways in which T_gpu and floors of simulated studies join, other than added."""


@dataclass(frozen=True)
class Truth:
    """What a simulated family does.

    Attributes
    ----------
    test : "H1", "H2" or "H3"
    gpus : int
    difference : float
        H1: residual MAPE of the family less the anchor's, mean over GPUs, points.
    between : float
        H1: its sd between GPUs, points.
    mechanism : "leftover" or "floor"
        H1: whether the family's residual is what is left over around the anchor's calibrated floor, or also because
        its floor is another.
    slope : float
        H2, H3: true factor on T_gpu.
    floor_ms : float
        H2, H3: floor of the family less the anchor's.
    noise, leftover : float
        Relative sds.
    join : str
        How T_gpu and floors join: "added", or one of `OVERLAPS`, under which everything transfers.
    """

    test: str = "H1"
    gpus: int = 3
    difference: float = 0.0
    between: float = 0.0
    mechanism: str = "leftover"
    slope: float = 1.0
    floor_ms: float = 0.0
    noise: float = NOISE
    leftover: float = LEFTOVER
    join: str = "added"


FIELDS = tuple(Truth.__dataclass_fields__)


@dataclass(frozen=True, eq=False)
class RateTable:
    """Counts or rates by simulation, a row each in `table`."""

    table: "pd.DataFrame"

    def to_frame(self) -> "pd.DataFrame":
        """`table`."""
        return self.table

    def to_csv(self) -> str:
        """The table as a CSV file."""
        return self.table.to_csv(index=False, float_format="%.4g", lineterminator="\n")

    def save(self, path: Path) -> Path:
        """Write the CSV file."""
        return files.write_text(path, self.to_csv())


class Rates(RateTable):
    """How often each test said what, by simulation.

    `table` has a row per scenario and quantity: the fields of `Truth`, `studies`, `quantity`, `rate` (a share of the
    studies, or of their GPUs), `se`.
    """

    def __repr__(self) -> str:
        scenarios = len(self.table.groupby(list(FIELDS), sort=False))
        return f"Rates({scenarios} scenarios, {int(self.table['studies'].min())} or more simulated studies each)"

    def rate(self, quantity: str, **truth: Any) -> float:
        """Rate of a quantity in the one scenario that has these fields (the others as `Truth` defaults).

        Raises
        ------
        KeyError
            No such scenario or quantity.
        """
        wanted = asdict(Truth(**truth)) | {"quantity": quantity}
        rows = self.table
        for name, value in wanted.items():
            rows = rows[rows[name] == value]
        if len(rows) != 1:
            raise KeyError(f"no rate of {quantity!r} for {truth}")
        return float(rows["rate"].iloc[0])

    @property
    def data(self) -> dict[str, Any]:
        """Everything, ready for JSON."""
        return {"rates": self.table.to_dict("records"), "sentences": sentences(self)}

    @property
    def text(self) -> str:
        """Text for a person."""
        return "\n".join(sentences(self))

    def plot(self, ax: "Axes | None" = None) -> "Axes":
        """How often H1 says "supported" against the true difference, with two standard errors."""
        from rooffloor.validate.presentation.figures.hypotheses import power

        return power(self, ax=ax)

    @classmethod
    def load(cls, path: Path) -> "Rates":
        """Read what `save` wrote."""
        import pandas as pd

        table = pd.read_csv(path)
        added = {name: getattr(Truth, name) for name in FIELDS if name not in table}  # a table from before they were
        return cls(table.assign(**added))


def committed() -> Rates | None:
    """The result that comes with the package (`rooffloor calibrate` makes it anew), or None where there is none."""
    try:
        return Rates.load(resources.path(FOLDER) / TABLE)
    except FileNotFoundError:
        return None


def error_rates(rates: Rates, name: str, gpus: int, margins: Margins) -> list[str]:
    """How often a test is wrong, in words, for a study with so many GPUs; empty where it was not simulated.

    The simulations used the margins of `Margins()`: other margins are named.
    """
    default = Margins()
    found = SAID[name](rates, gpus)
    if found and replace(margins, label=default.label) != default:
        found.append(
            f"These rates are for a margin of {default.h1_points:g} points, a slope within {default.slope_rope:g} of 1 "
            f"and a probability of {default.probability:g}; this study's margins are others."
        )
    return found


def _rates(rates: Rates, quantity: str, truths: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """Rates of a quantity by name, for the scenarios that were run."""
    found = {}
    for name, truth in truths.items():
        try:
            found[name] = rates.rate(quantity, **truth)
        except KeyError:
            continue
    return found


def _percent(rates: Mapping[str, float]) -> str:
    return ", ".join(f"{100 * rate:.3g} % {name}" for name, rate in rates.items())


def _h1_said(rates: Rates, gpus: int) -> list[str]:
    between = {f"where GPUs differ by {sd:g} points (sd)": sd for sd in BETWEEN}
    said = []
    for mechanism, why in (("leftover", "it leaves more over"), ("floor", "its floor differs")):
        at = {n: {"difference": 2.0, "between": sd, "mechanism": mechanism} for n, sd in between.items()}
        found = _rates(rates, "supported", at)
        if found:
            said.append(
                f"In simulated studies of {Truth.gpus} GPUs, a family whose residual MAPE exceeds the anchor's by just "
                f"the margin because {why} is called supported in {_percent(found)}: by mistake."
            )
    near = min(NUMBERS, key=lambda k: abs(k - gpus))
    found = _rates(rates, "supported", {n: {"gpus": near, "between": sd} for n, sd in between.items()})
    if found:
        said.append(f"A family as good as the anchor is called supported on {near} GPUs in {_percent(found)}.")
    clean = {n: {"between": sd, "leftover": SMALL_LEFTOVER} for n, sd in between.items()}
    found = _rates(rates, "supported", clean)
    if found:
        said.append(
            f"Where the roof leaves {100 * SMALL_LEFTOVER:g} % over and not {100 * LEFTOVER:g} %, such a family is "
            f"called supported on {Truth.gpus} GPUs in {_percent(found)}."
        )
    enough = [
        f"{next((k for k in NUMBERS if powers.get(str(k), 0.0) >= 0.8), 'more than 8')} at {sd:g} points between GPUs"
        for sd in BETWEEN
        if (powers := _rates(rates, "non-inferior", {str(k): {"gpus": k, "between": sd} for k in NUMBERS}))
    ]
    if enough:
        said.append(
            f"For such a family to be called non-inferior in 80 % of studies, GPUs needed: {', '.join(enough)}."
        )
    return [*said, *_overlapped(rates, "H1")]


def _h2_said(rates: Rates, gpus: int) -> list[str]:
    truths = {f"at a true slope of {slope:g}": {"gpus": 1, "slope": slope, "floor_ms": 16.0} for slope in SLOPES}
    return _by_leftover(
        rates, "H2", "shape supported", truths, "H2c, one GPU, 2 % noise and {}: the shape is called supported in {}."
    )


def _h3_said(rates: Rates, gpus: int) -> list[str]:
    truths = {
        "where only the floor differs (2.5 ms)": {"slope": 1.0, "floor_ms": 2.5},
        "where only the floor differs (5 ms)": {"slope": 1.0, "floor_ms": 5.0},
        "where only the slope differs (1.5)": {"slope": 1.5, "floor_ms": 0.0},
        "where both do": {"slope": 1.5, "floor_ms": 5.0},
    }
    studies = f"in simulated studies of {Truth.gpus} GPUs"
    said = f"H3, 2 % noise and {{}}: {studies} the floor is called the reason in {{}}."
    against = f"H3, 2 % noise and {{}}: {studies} the floor is called not the reason in {{}}."
    return [
        *_by_leftover(rates, "H3", "supported", truths, said),
        *_by_leftover(rates, "H3", "refuted", truths, against),
        *_overlapped(rates, "H3"),
    ]


def _overlapped(rates: Rates, test: str) -> list[str]:
    """How often a test refutes what transfers, where floors are not added as it takes them to be."""
    at = {f"if T_gpu and floor are {join}": {"test": test, "leftover": 0.0, "join": join} for join in OVERLAPS}
    found = _rates(rates, "refuted", at)
    return [f"{test} is refuted by mistake in {_percent(found)}."] if found else []


def _by_leftover(
    rates: Rates, test: str, quantity: str, truths: Mapping[str, Mapping[str, Any]], said: str
) -> list[str]:
    """A sentence for each leftover, with places for the leftover and for the rates."""
    told = []
    for leftover in (0.0, SMALL_LEFTOVER):
        at = {name: {"test": test, "leftover": leftover, **truth} for name, truth in truths.items()}
        found = _rates(rates, quantity, at)
        if found:
            what = "nothing left over" if not leftover else f"a smooth leftover of {100 * leftover:g} %"
            told.append(said.format(what, _percent(found)))
    return told


SAID = {"H1": _h1_said, "H2": _h2_said, "H3": _h3_said}


def sentences(rates: Rates) -> list[str]:
    """What the simulations say of the tests, in words; scenarios that were not run are left out."""
    return [line for name in SAID for line in SAID[name](rates, 3)] + _covered(rates)


def _covered(rates: Rates) -> list[str]:
    """Least and largest coverage of 90 % intervals over all scenarios."""
    said = []
    for quantity in dict.fromkeys(rates.table["quantity"]):
        if str(quantity).startswith("covers 90: "):
            values = rates.table.loc[rates.table["quantity"] == quantity, "rate"]
            what = str(quantity).removeprefix("covers 90: ")
            said.append(
                f"90 % intervals of the {what} cover {100 * values.min():.0f} to {100 * values.max():.0f} % over "
                f"{len(values)} scenarios."
            )
    return said
