"""Do the verdicts stand under other choices? The same tests with one choice changed at a time.

Choices: of a published study, floors refitted to imputed cells in place of the printed figures; constants and roof, the
grid and the offset reading of imputed studies, the experts that are streamed, the prior on the spread between GPUs, the
noise, one GPU or one grid cell left out. A verdict that some choice turns into its opposite is undecided; constants
that were fitted to all cells beside a cut are shown, and decide nothing: they saw the families that are judged. Where
cells are left out, floors and constants stay those of all cells: only the judging changes.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rooffloor.models.roof.kernels import EXPERTS, stack_work
from rooffloor.models.roof.roofline import work_ms
from rooffloor.validate.estimates.cell_draws import IMPUTED, Draws
from rooffloor.validate.estimates.grid_axes import ABSENT, GridAxes, without
from rooffloor.validate.hypotheses.absorption import mean_efficiency
from rooffloor.validate.hypotheses.breakdown import point_name
from rooffloor.validate.hypotheses.error_rates import committed, error_rates
from rooffloor.validate.hypotheses.h1 import SPREAD, h1
from rooffloor.validate.hypotheses.h2 import h2
from rooffloor.validate.hypotheses.h3 import h3
from rooffloor.validate.hypotheses.joins import Explained
from rooffloor.validate.hypotheses.result import NOT_TESTED, REFUTED, SUPPORTED, UNDECIDED, Result
from rooffloor.validate.study.margins import Margins

if TYPE_CHECKING:
    from rooffloor.validate.fitting.evidence import Evidence
    from rooffloor.validate.hypotheses.as_published import AsPublished

type Array = NDArray[np.float64]

SAW = "treatment that saw the families"
"""Kind of a choice that is no test of transfer: its constants were fitted to the cells that are judged."""
MOST_DRAWS = 4_000
"""Draws that each choice is judged on."""
MOST_POINTS = 20
"""Points of a grid up to which each is left out in turn."""
PRIMARY = "as reported"
STATEMENTS = ("H1", "H2a", "H2b", "H2c", "H3")


@dataclass(frozen=True, eq=False)
class Choice:
    """One choice changed: `kind` ("one GPU left out"), `name` ("H100"), and what is judged then."""

    kind: str
    name: str
    draws: Draws
    spread: float = SPREAD


@dataclass(frozen=True, eq=False)
class Robustness:
    """Verdicts under every choice.

    Attributes
    ----------
    rows : list of dict
        `kind`, `name` and a verdict for each of `STATEMENTS`; the first is the primary one.
    settled : dict
        Per statement: `verdict` (undecided where a choice turns it into its opposite), `turned` and `softened` (names
        of choices under which it is the opposite, or not decided), `sentence`.
    """

    rows: list[dict[str, Any]]
    settled: dict[str, dict[str, Any]]

    def __repr__(self) -> str:
        found = ", ".join(f"{name} {one['verdict']}" for name, one in self.settled.items())
        return f"Robustness({len(self.rows)} choices: {found})"

    @property
    def data(self) -> dict[str, Any]:
        """Everything, ready for JSON."""
        return {"rows": self.rows, "settled": self.settled}


def robustness(
    evidence: "Evidence",
    results: Mapping[str, Result],
    printed: "AsPublished | None" = None,
    refitted: Mapping[str, Result] | None = None,
) -> Robustness:
    """The tests of `results` under every choice; the first row holds the verdicts that they have.

    Of a published study, `printed` adds H1 on printed figures under other choices, and `refitted` the verdicts on
    imputed cells, of which all other choices are variations.
    """
    primary = _statements(results)
    rows: list[dict[str, Any]] = [{"kind": "primary", "name": PRIMARY, **primary}]
    if printed is not None and refitted is not None:
        if "H1" in results:
            untold = dict.fromkeys(primary, NOT_TESTED)
            rows += [{"kind": kind, "name": n, **untold, "H1": verdict} for kind, n, verdict in printed.choices()]
        rows.append({"kind": "floor", "name": "refitted to imputed cells", **_statements(refitted)})
    explained = Explained(evidence.draws, evidence.study.margins)  # joins are tried once, on all cells
    for choice in choices(evidence):
        found = verdicts(choice, evidence.study.margins, list(results), explained)
        rows.append({"kind": choice.kind, "name": choice.name, **found})
    return Robustness(rows, settle(rows))


def _statements(results: Mapping[str, Result]) -> dict[str, str]:
    return {name: verdict for result in results.values() for name, verdict in result.statements.items()}


def verdicts(
    choice: Choice,
    margins: Margins,
    names: Sequence[str] = ("H1", "H2", "H3"),
    explained: Explained | None = None,
) -> dict[str, str]:
    """Verdict on each statement of these hypotheses under one choice; `explained` as in `h1`."""
    tests: dict[str, Callable[..., Result]] = {"H1": partial(h1, both_schools=False, spread=choice.spread)}
    tests |= {"H2": h2, "H3": h3}
    results = [tests[name](choice.draws, margins, explained=explained) for name in names]
    return {name: verdict for result in results for name, verdict in result.statements.items()}


def settle(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """What remains of the first row's verdicts, given those of the others that test (not `SAW`)."""
    first, *rest = rows
    rest = [row for row in rest if row["kind"] != SAW]
    opposite = {SUPPORTED: REFUTED, REFUTED: SUPPORTED}
    found = {}
    for name in (n for n in STATEMENTS if n in first):
        own = str(first[name])
        others = [row for row in rest if row[name] != NOT_TESTED]
        against = opposite.get(own)
        turned = [_named(row) for row in others if row[name] == against]
        softened = [_named(row) for row in others if row[name] not in (own, against)] if against else []
        decided = [_named(row) for row in others if row[name] in opposite] if own == UNDECIDED else []
        if turned:
            said = f"{name} is {own} {PRIMARY} and {against} under {_list(turned)}: undecided."
        elif softened:
            said = f"{name} is {own} {PRIMARY}, and not decided under {_list(softened)}."
        elif decided:
            said = f"{name} is undecided {PRIMARY}; it would be decided under {_list(decided)}."
        else:
            said = f"{name} is {own} {PRIMARY} and under each of {len(others)} other choices."
        found[name] = {
            "verdict": UNDECIDED if turned else own,
            "turned": turned,
            "softened": softened,
            "sentence": said,
        }
    return found


def settled(result: Result, found: Robustness, gpus: int) -> Result:
    """The result with the verdict that remains, what choices do to it, and the test's own error rates.

    `data` has `verdict` settled, `as_reported` (the verdict of the primary treatment alone), `robustness` and
    `error_rates` (sentences); `gpus` is the number of GPUs of the study.
    """
    data, tested = dict(result.data), result.verdict != NOT_TESTED
    of = {name: found.settled[name] for name in result.statements} if tested else {}
    if "parts" in data:
        data["parts"] = {
            key: part | {"verdict": of[f"{result.name}{key}"]["verdict"], "as_reported": part["verdict"]}
            for key, part in data["parts"].items()
        }
    told = [one["sentence"] for one in of.values()]
    rates = committed() if tested else None
    data |= {
        "verdict": next((one["verdict"] for one in of.values()), NOT_TESTED),
        "as_reported": result.verdict,
        "robustness": told,
        "error_rates": error_rates(rates, result.name, gpus, result.margins) if rates else [],
        "sentences": [*data["sentences"], *told],
    }
    return replace(result, verdict=data["verdict"], data=data)


def _named(row: Mapping[str, Any]) -> str:
    return f"{row['kind']}: {row['name']}"


def _list(names: Sequence[str], most: int = 4) -> str:
    shown = "; ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


# ---- the choices ------------------------------------------------------------------------------------------------


def choices(evidence: "Evidence") -> Iterator[Choice]:
    """Every choice that these data allow, beside the primary ones."""
    draws = _fewer(evidence.draws)
    for name, other in evidence.variants.items():
        yield Choice(SAW if name in evidence.saw_families else "treatment", name, _fewer(other))
    yield from _readings(evidence)
    for factor in (0.5, 2.0):
        yield Choice("prior of the spread between GPUs", f"scale times {factor:g}", draws, SPREAD * factor)
    if draws.model_noise_ms is not None:
        yield Choice("noise", "one for all GPUs of a model", replace(draws, noise_ms=draws.model_noise_ms))
    yield from _expert_traffic(evidence, draws)
    if len(draws.cells.gpus) > 1:
        for gpu in draws.cells.gpus:
            yield Choice("GPU left out", gpu, draws.where(draws.cells.gpu != gpu))
    yield from _cells_left_out(draws)


def _cells_left_out(draws: Draws) -> Iterator[Choice]:
    """Each point of the grid left out in turn; one that only some imputed grids hold, in those."""
    axes = GridAxes.of(draws)
    points = axes.points(np.ones(len(draws.cells), dtype=bool), everywhere=False)
    if not 2 < max(sum(columns != ABSENT for columns in points.values())) <= MOST_POINTS:
        return
    for point, columns in points.items():
        share = float(draws.weight @ axes.holding(columns))
        where = "" if (columns != ABSENT).all() else f" (in the {100 * share:.0f} % of grids that hold it)"
        if share > 0:
            yield Choice("cell left out", point_name(point) + where, without(draws, point))


def _fewer(draws: Draws) -> Draws:
    step = -(-len(draws.weight) // MOST_DRAWS)
    if step == 1:
        return draws
    if draws.label != IMPUTED:
        return draws.rows(np.arange(0, len(draws.weight), step))
    rank = np.concatenate([np.arange(n) for n in np.unique(draws.unit, return_counts=True)[1]])
    return draws.rows(np.argsort(draws.unit, kind="stable")[rank % step == 0])


def _readings(evidence: "Evidence") -> Iterator[Choice]:
    """Imputations under one reading of the study's offset, and on one grid."""
    if evidence.reconstruction is None:
        return
    draws = evidence.draws
    heads = evidence.reconstruction.cells.drop_duplicates("imputation").set_index("imputation")
    readings, roofs = (heads[name].reindex(draws.unit).to_numpy() for name in ("reading", "roof"))
    grids = np.array([len(set(row)) for row in draws.context])
    for kind, labels in (("offset reading", readings), ("roof of the grids", roofs), ("contexts of the grid", grids)):
        for one in dict.fromkeys(labels.tolist()):
            keep = labels == one
            if 0 < draws.weight[keep].sum() < 1:
                yield Choice(kind, str(one), _fewer(draws.rows(keep)))


def _expert_traffic(evidence: "Evidence", draws: Draws) -> Iterator[Choice]:
    """Other experts streamed per step: T_gpu of mixtures changes by the ratio of the roofs, its own floor follows."""
    at = np.isin(draws.cells.model, [m for m in draws.cells.models if draws.classes[m] == "moe"])
    if not at.any():
        return
    names, cells = evidence.study.names, draws.cells.where(at)
    shapes, gpus = {m: names.shapes(m) for m in cells.models}, {g: names.gpu(g) for g in cells.gpus}
    efficiency = mean_efficiency(evidence.draws, evidence.constants["primary"])
    used = evidence.study.efficiency.experts
    batch, context = (np.broadcast_to(v, draws.gpu_ms.shape)[:, at] for v in (draws.batch, draws.context))
    grids, which = np.unique(np.concatenate([batch, context], axis=1), axis=0, return_inverse=True)

    def roof(experts: Any) -> Array:
        """T_gpu of the mixtures' cells under each draw's own grid, at the mean constants, [draw, cell]."""
        found = np.empty((len(grids), len(cells)))
        for n, (b, c) in enumerate(zip(*np.split(grids, 2, axis=1), strict=True)):
            work = stack_work(replace(cells, batch=b, context=c), shapes, gpus, experts=experts)
            for gpu in cells.gpus:
                found[n, cells.gpu == gpu] = np.asarray(work_ms(work, efficiency[gpu]))[cells.gpu == gpu]
        return found[which.ravel()]

    before = roof(used)
    for experts in (e for e in EXPERTS if e != used):
        T = draws.gpu_ms.copy()
        T[:, at] *= roof(experts) / before
        floor = draws.floor_ms.copy()
        for _, _, mask in draws.pairs():
            if at[mask].any():
                weight = 1.0 / draws.noise_ms[:, mask] ** 2
                moved = (weight * (T - draws.gpu_ms)[:, mask]).sum(-1) / weight.sum(-1)
                floor[:, mask] -= moved[:, None]
        moved_own = draws.own_calibrated_ms + floor - draws.floor_ms
        changed = replace(draws, gpu_ms=T, floor_ms=floor, own_calibrated_floor_ms=moved_own)
        yield Choice("experts streamed", experts, changed)
