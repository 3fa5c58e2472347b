"""What a study's printed figures say of the hypotheses, in sentences made from `as_published`.

A printed number stands as "QUANTITY of MODEL: VALUE UNIT on GPU, VALUE UNIT on GPU" or, of one pair, as "MODEL on GPU
(QUANTITY: VALUE UNIT; QUANTITY: VALUE UNIT)", so that it can be held against the study. What follows from printed
numbers says that it follows.
"""

from collections.abc import Callable, Iterable, Sequence
from math import floor
from typing import TYPE_CHECKING, Any

from rooffloor.validate.estimates.estimate import Estimate
from rooffloor.validate.hypotheses.result import REFUTED, Result, say
from rooffloor.validate.published.printed_figures import Figure

if TYPE_CHECKING:
    from rooffloor.validate.hypotheses.as_published import AsPublished, PublishedDivergence, PublishedFamily

QUANTITIES = {
    "raw_mape": "raw MAPE",
    "residual_mape": "residual MAPE",
    "self_floor_mape": "MAPE under its own floor",
    "self_floor": "own floor",
    "anchor_offset": "anchor's floor",
    "step_typical": "typical step",
    "dispatch_median": "median dispatch term",
    "predicted_with_self_floor": "predicted step",
    "measured": "measured step",
    "error": "error",
}
"""Quantities of printed figures in words."""
UNITS = {"percent": "%", "ms": "ms"}
MODEL_ONLY = "That is a statement about the model's term, not about what dispatch costs the GPU."


def printed(figures: Iterable[Figure]) -> str:
    """Figures of one quantity and model, as printed, with the GPU of each."""
    found = list(figures)
    values = ", ".join(f"{figure.printed} {UNITS[figure.unit]} on {figure.gpu}" for figure in found)
    return f"{QUANTITIES[found[0].quantity]} of {found[0].model}: {values}"


def pair_of(pair: "PublishedDivergence", figures: Iterable[Figure | None], where: str = "") -> str:
    """A pair with several of its figures as printed; with `where`, also those of the cell that is printed."""
    cell = list(pair.cell.values()) if where else []
    told = [f"{QUANTITIES[f.quantity]}: {f.printed} {UNITS[f.unit]}" for f in (*figures, *cell) if f is not None]
    if cell:
        told[-len(cell)] = f"{where} {told[-len(cell)]}"
    return f"{pair.model} on {pair.gpu} ({'; '.join(told)})"


def imputed(sentences: Iterable[str]) -> list[str]:
    """Sentences on imputed cells, labelled."""
    return [f"Imputed: {sentence}" for sentence in sentences]


def listed(names: Sequence[str]) -> str:
    """Names as a list in words."""
    return ", ".join(names[:-1]) + (" and " if len(names) > 1 else "") + names[-1]


# ---- H1 ---------------------------------------------------------------------------------------------------------


def family(found: "PublishedFamily") -> list[str]:
    """H1 of one family on printed residuals: on which GPUs it lies below the anchor, and the tests."""
    below, gpus, margins, gap = found.below_anchor, found.gpus, found.margins, found.difference.mean()
    where = "every GPU" if len(below) == len(gpus) > 1 else listed(below) if below else "no GPU"
    return [
        f"As published, {found.family} lies below {found.anchor} on {where} ({printed(found.residual)}; "
        f"{printed(found.anchor_residual)}); the mean difference is {gap:+z.1f} points.",
        f"From these figures P(mean difference over GPUs like these is below {margins.h1_points:g} points) is "
        f"{say(found.mean_below(margins.h1_points))} and P(mean residual MAPE is below {margins.h1_absolute:g} %) is "
        f"{say(found.level_below)}: H1 is {found.verdict} as published. {_t_tests(found)}",
    ]


def _t_tests(found: "PublishedFamily") -> str:
    one = found.t_test()
    if one.p_value != one.p_value:
        return f"A t-test over GPUs is not possible ({one.note})."
    said = f"The t-test over {len(found.gpus)} GPUs has p {one.p_value:.2g} ({one.df:.0f} df)"
    if found.clusters is None:
        return f"{said}."
    dies = list(found.clusters.values())
    shared = [gpu for gpu in found.gpus if dies.count(found.clusters[gpu]) > 1]
    die = found.t_test(found.clusters)
    p = "is not possible" if die.p_value != die.p_value else f"has p {die.p_value:.2g}"
    return f"{said}; where {listed(shared)}, which share a die, count once, it {p}."


SPREADS = (1.0, 3.0)
"""sd between GPUs, points, of the studies that are simulated for error rates."""


def rates(found: "PublishedFamily") -> str:
    """How often the test on printed figures supports H1 by mistake, and rightly, by simulation."""

    def often(difference: float) -> str:
        return " and ".join(f"{100 * found.supported_rate(difference, sd):.0f} %" for sd in SPREADS)

    margin, gpus = found.margins.h1_points, len(found.gpus)
    return (
        f"In simulated studies of {gpus} GPUs that differ by {' and '.join(f'{sd:g}' for sd in SPREADS)} points (sd), "
        f"printed figures support H1 for {found.family} by the difference alone in {often(margin)} where the true "
        f"difference is the margin of {margin:g} points, which is a mistake, and in {often(0.0)} where the family is "
        "as good as the anchor."
    )


def refitted(found: "AsPublished", result: Result, verdict: str) -> str:
    """H1 with floors refitted to imputed cells beside the printed figures: the same verdict, or why another."""
    lead = f"With the anchor's floor refitted to the imputed cells H1 is {result.verdict}"
    if result.verdict == verdict:
        return f"{lead} as well."
    why = " ".join(_why(found, family, result) for family in result.data["families"])
    end = (
        "What speaks against H1 are imputed cells, not the printed figures."
        if result.verdict == REFUTED
        else "No printed figure speaks against H1: what is added is doubt about cells that nobody printed."
    )
    return f"{lead}, where it is {verdict} as published. {why} {end}"


def _why(found: "AsPublished", refit: Any, result: Result) -> str:
    """What of a family's test falls short once floors are refitted, in numbers."""
    margins = result.margins
    own = next((f for f in found.families if f.family == refit["family"]), None)
    if own is None:
        return f"Residuals of {refit['family']} are not printed."
    better, good = refit["probability"]["value"], refit["absolute_probability"]["value"]
    named = (
        (better, own.mean_below(margins.h1_points), f"P(mean difference below {margins.h1_points:g} points)"),
        (good, own.level_below, f"P(mean residual MAPE below {margins.h1_absolute:g} %)"),
    )
    short = [f"{what} is {say(p)} in place of {say(first)}" for p, first, what in named if p < margins.probability]
    return (
        f"It reads another quantity, the error expected of new measurements, under a floor that is fitted and not read "
        f"off: for {own.family} the mean difference is {Estimate(**refit['difference'])} points (90 % interval) in "
        f"place of the printed {own.difference.mean():+z.1f}, and {' and '.join(short) or 'both probabilities suffice'}"
        f", where a verdict needs {margins.probability:g}."
    )


# ---- H2 ---------------------------------------------------------------------------------------------------------


def mixture_level(found: "AsPublished") -> list[str]:
    """H2a: how far the floor of a mixture lies from the anchor's, and what its residual is at least."""
    return [_level(pair, found) for pair in found.mixtures if pair.self_floor is not None or pair.residual is not None]


def _level(pair: "PublishedDivergence", found: "AsPublished") -> str:
    if pair.residual is not None:
        return f"As published, {pair_of(pair, [pair.residual])} under the anchor's floor."
    gap, margin = pair.floor_above_anchor, found.margins.h1_absolute
    if gap is None:
        return f"As published, {pair_of(pair, [pair.self_floor])}; no residual under the anchor's floor is printed."
    said = (
        f"As published, {pair_of(pair, [pair.self_floor, pair.anchor_offset, pair.step])} has a floor of its own "
        f"{abs(gap):.1f} ms {'above' if gap > 0 else 'below'} the anchor's. Its residual MAPE under the anchor's floor "
        "is not printed"
    )
    half, mean = pair.least_residual(), pair.least_residual(1.0)
    if half is None or mean is None or mean <= 0:
        return f"{said}."
    said += (
        f"; it follows that it is at least {floor(half)} % if half of the steps are no longer than the typical one, "
        f"and at least {floor(mean)} % if that is their mean"
    )
    return said + (f": H2a is {REFUTED} as published." if half > margin else ".")


def mixture_dispatch(found: "AsPublished") -> list[str]:
    """H2b: the term as modelled, which is a statement about the model."""
    said = []
    for pair in found.mixtures:
        if pair.dispatch is None:
            continue
        share = (
            "" if pair.step is None else f", {100 * pair.dispatch.value / pair.step.value:.2g} % of the typical step"
        )
        told = f"As published, the dispatch term of {pair_of(pair, [pair.dispatch, pair.step])} is small as modelled"
        said.append(f"{told}{share}. {MODEL_ONLY}")
    return said


def mixture_shape(found: "AsPublished") -> list[str]:
    """H2c: what a floor of its own leaves on average, and in the cell that is printed."""
    said, margin = [], found.margins.h1_absolute
    for pair in found.mixtures:
        if pair.self_mape is None and not pair.cell:
            continue
        first, error = next(iter(pair.cell.values()), None), pair.cell.get("error")
        where = "" if first is None else f"at B = {first.batch:g}, L = {first.context:g}"
        text = f"As published, {pair_of(pair, [pair.self_mape], where)}"
        if pair.self_mape is not None and pair.self_mape.value <= margin:
            text += " is matched on average by a floor of its own, on the cells that it was fitted to"
            text += ", but not in that cell" if error is not None and error.value > margin else ""
        said.append(f"{text}.")
    return said


MIXTURES: dict[str, Callable[["AsPublished"], list[str]]] = {
    "a": mixture_level,
    "b": mixture_dispatch,
    "c": mixture_shape,
}
"""Sentences of each part of H2."""


# ---- H3 ---------------------------------------------------------------------------------------------------------


def divergences(found: "AsPublished") -> list[str]:
    """H3: where smaller models diverge as printed, and what a floor of their own leaves there."""
    said = []
    for model in dict.fromkeys(pair.model for pair in found.smaller):
        pairs = [pair for pair in found.smaller if pair.model == model]
        figures = [pair.residual for pair in pairs if pair.residual is not None]
        off = [pair.gpu for pair in pairs if pair.diverges(found.margins)]
        fine = [pair.gpu for pair in pairs if pair.diverges(found.margins) is False]
        limit = f"{found.margins.h1_absolute:g} %"
        told = [
            *([f"above {limit} on {listed(off)}, where it diverges"] if off else []),
            *([f"not above {limit} on {listed(fine)}, where it does not"] if fine else []),
        ]
        if figures:
            said.append(f"As published, {printed(figures)}: {'; '.join(told)}.")
        said += [_recovered(pair, found) for pair in pairs if pair.gpu in off and pair.self_mape is not None]
        unseen = [pair.gpu for pair in pairs if pair.gpu in off and pair.self_mape is None]
        if unseen:
            said.append(
                f"What a floor of its own leaves of {model} on {listed(unseen)} is not printed: only imputed cells "
                "speak there."
            )
    return said


def _recovered(pair: "PublishedDivergence", found: "AsPublished") -> str:
    figures = [pair.residual, pair.anchor_offset, pair.self_floor, pair.self_mape]
    said = f"As published, {pair_of(pair, figures)}"
    if pair.self_mape is None or pair.self_mape.value > found.margins.h1_absolute:
        return f"{said} is not recovered by a floor of its own."
    return (
        f"{said} is recovered by a floor of its own, on the cells that it was fitted to: a constant in time removes "
        "the divergence, and would remove an error of T_gpu that is alike in all cells as well."
    )
