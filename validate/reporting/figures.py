"""Figures of the report: which there are, and what stands below each."""

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any

from rooffloor.validate.fitting.evidence import Evidence
from rooffloor.validate.hypotheses.error_rates import committed
from rooffloor.validate.hypotheses.result import NOT_TESTED
from rooffloor.validate.presentation.blocks import Image
from rooffloor.validate.presentation.numbers import Record, label
from rooffloor.validate.reporting.sections import which_floor

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from rooffloor.validate.comparison.comparison import Comparison

INTERVALS = "Points are posterior means, thick and thin bars 50 % and 90 % equal-tailed credible intervals"
PUBLISHED = "open diamonds, where there are any, are published figures"
FIGURES = {
    "absorption": (
        "Share of the squared relative error of T_gpu that the best scalar removes, a row for each model and GPU",
        f"What a scalar floor absorbs: share of the squared relative error of T_gpu that the best constant in time "
        f"removes. {INTERVALS}; the grey bar is no posterior but where 90 % of simulated pure noise of the same size "
        "falls, its line the mean. Up to the bar's right end, noise alone can explain the share. At the right, the "
        "MAPE that the scalar of least MAPE leaves.",
    ),
    "hidden_errors": (
        "Grid of kinds of error by models on one GPU, coloured by the share that a free floor hides",
        "What a scalar floor hides on one GPU: colour is the share of an error's squared effect that a free floor "
        "takes up, the number the smallest size that then shows (two-sided test at 5 %, power 80 %), in the unit of "
        "its row; never: the floor hides it wholly. All are given the posterior means of constants and noise, without "
        "an interval. The tables have every GPU.",
    ),
    "table": (
        "Raw and residual MAPE of every model, one panel for each GPU and one for the pooled means",
        f"The two numbers: raw MAPE (T_gpu alone) and residual MAPE (T_gpu plus the anchor's floor of that GPU), each "
        f"as expected for the grid (filled) and of the cells as measured (hollow). {INTERVALS}; {PUBLISHED}.",
    ),
    "floors": (
        "Forest plot of the floors, grouped by GPU",
        f"Floors in ms: what is added beyond T_gpu. {INTERVALS}; a hollow square is a self-floor under the study's "
        f"reading; {PUBLISHED}.",
    ),
    "measured_predicted": (
        "Decode steps against predicted steps, one panel for each GPU and a last one for the mixtures of experts, or "
        "for each model under its own floor",
        "Decode step against T_gpu plus the anchor's floor, in ms. A point is a cell (model, batch, context) at its "
        "posterior means, bars are 90 % credible intervals (50 % ones are not drawn); on the diagonal the prediction "
        "is the step. The last panel shows the mixtures of experts with and without the dispatch term or, where "
        "there are none, every model with its own floor.",
    ),
    "breakdown": (
        "Stacked bars: what the mean step of each group of cells is made of",
        "What a mean step is made of, in ms: weights, KV cache, other kernels, floor and what is left over. Bars are "
        "posterior means, negative parts hatched to the left of zero; whiskers at the step (diamond) and at the end "
        "of the floor are 90 % credible intervals; those of all parts are in the table.",
    ),
    "competition": (
        "Log Bayes factor of every floor structure against the study's own, a marker for each prior scale",
        "How much more probable the published figures are under each floor structure than under the study's own: log "
        "Bayes factors under each prior scale. Bars are two standard errors of the computation to both sides, no "
        "credible intervals; within the grey band (Bayes factor 1/3 to 3) no side is taken; an arrow at the edge is a "
        "structure that stayed out of reach of the figures. Aggregates alone: no imputed grid was fitted.",
    ),
    "structures": (
        "Predictive score of every floor structure below the best one",
        "Floor structures on the same cells: elpd (log score of unseen cells) below the best. Bars are two standard "
        "errors of the difference to both sides, no credible intervals; the square is the structure that is chosen, "
        "the simplest that predicts about as well as the best; hollow points are short fits, enough for a rank. "
        "Beyond 10 the axis is logarithmic where some structures are far behind.",
    ),
    "verdicts": (
        "Probability of transfer within the class as a curve over the margin, one panel for each family",
        "Posterior probability, without an interval of its own, that the residual MAPE of a family exceeds the "
        "anchor's by less than the margin, for margins of 0 to 5 points: coloured for each GPU, black for the mean "
        "over GPUs. Points mark the stated margin (dotted); where a curve crosses a grey line, a verdict flips. The "
        "hollow point is the probability of the absolute margin. Of a published study the printed figures have a panel "
        "of their own, where rounding is all that a GPU leaves open; no cell is imputed there.",
    ),
    "power": (
        "Share of simulated studies in which H1 is supported, or refuted, against the true difference of MAPEs",
        "How often H1 is supported or refuted, and how often the t-test over GPUs finds transfer, in studies that were "
        "simulated with a known difference between the family's residual MAPE and the anchor's, on three GPUs that "
        "differ by 1 point (sd). Left of the dashed margin H1 is true, right of it every supported is a mistake; the "
        "dotted line is 5 %. Bars are two standard errors of the simulation, no credible intervals.",
    ),
    "joint": (
        "Ellipses of offset and slope for each model and GPU that H3 judges",
        "What the steps of a pair say of offset and slope together: y = offset + slope x T_gpu, the offset less the "
        "anchor's floor; left at T_gpu = 0, right at the mean T_gpu of the pair. Ellipses hold 50 % (thick) and 90 % "
        "(thin) of the normal distribution that has the posterior's mean and covariance: joint regions, no intervals. "
        "On the line of slope 1 an offset alone explains the pair, on that of no offset a scale alone. cos² near 1 "
        "(a slanted, narrow ellipse at the left) says that these cells hardly tell the two apart.",
    ),
    "context": (
        "Decode step against context at the largest batch of each model, one panel for each GPU",
        f"Decode step against context at the largest batch. {INTERVALS}; dashed lines with bands are T_gpu plus the "
        f"model's own floor with its 90 % interval; {PUBLISHED} (the rise above the shortest context).",
    ),
}
"""Alternative text and caption of each figure; the data label is added to the caption."""


SIMULATED = {"power": "simulated studies, none of them this one"}
"""Figures that show other data than the study's."""


def images(data: Record, figures: Collection[str]) -> Callable[[str], tuple[Image, ...]]:
    """The figure of a key, where there is one, with its caption and the label of the data."""

    def image(key: str) -> tuple[Image, ...]:
        alt, caption = FIGURES.get(key, (label(key), f"{label(key).capitalize()}. {INTERVALS}."))
        text = f"{caption} Data: {SIMULATED.get(key, data['status']['label'])}."
        return (Image(key, f"{alt} ({data['study']['name']})", text),) if key in figures else ()

    return image


def draw(evidence: Evidence, data: Mapping[str, Any], floors: "Comparison | None" = None) -> "dict[str, Figure]":
    """The report's figures by key; each shows the numbers of `data`, or the cells."""
    from rooffloor.validate.presentation.figures import absorption, cells, report
    from rooffloor.validate.presentation.figures import hypotheses as tests
    from rooffloor.validate.presentation.figures import which_floor as structures

    draws, label = evidence.draws, evidence.draws.label
    rises = {
        (row["label"], read["name"].rsplit(" on ", 1)[1]): row["published"]
        for read in data["structural"]
        if read["name"].startswith("context rise")
        for row in read["rows"]
        if row["published"] is not None
    }
    h1, limits = data["hypotheses"]["H1"], evidence.study.margins
    of_h1 = f"printed figures, and {label}" if "as_published" in h1 else label
    by_class, alone = data["floors"]["by_class"], data["floors"]["self_floors"]
    drawn = {
        "absorption": absorption.absorption(data["absorption"], label),
        "hidden_errors": absorption.hidden_errors(data["hidden_errors"], label),
        "table": report.two_number_table(data["table"], label)[0],
        **({"floors": report.floors(by_class, alone, label)} if by_class or alone else {}),
        "measured_predicted": cells.measured_predicted(draws)[0],
        "breakdown": report.breakdown(data["breakdown"], label)[0],
        "context": cells.context_slopes(draws, rises)[0],
        "verdicts": tests.margins(_panels(h1), of_h1, limits.h1_points, probability=limits.probability)[0],
    }
    which = data["which_floor"]
    if which["run"] and which["data"] == which_floor.AGGREGATES:
        drawn["competition"] = structures.competition(which)
    pairs = data["hypotheses"]["H3"].get("per_sku", ())
    if any(row["verdict"] != NOT_TESTED and row["offset_slope"] is not None for row in pairs):
        drawn["joint"] = tests.joint(pairs, label)[0]
    rates = committed()
    if rates is not None:
        drawn["power"] = tests.power(rates)
    if floors is not None:
        drawn["structures"] = structures.structures(floors)
    return {key: axes.figure for key, axes in drawn.items()}


def _panels(h1: Mapping[str, Any]) -> dict[str, Any]:
    """H1 with its families as published, where they are, before those on imputed cells."""
    printed = h1.get("as_published", {}).get("families", ())
    first = [family | {"family": f"{family['family']} as published"} for family in printed]
    how = " on imputed cells" if printed else ""
    own = [family | {"family": f"{family['family']}{how}"} for family in h1.get("families", ())]
    return {**h1, "families": [*first, *own]}
