"""H1, H2, H3 as statements with posterior probabilities (DESIGN section 6, first version).

H1: the GPU branch of a same-class dense family transfers under the anchor's floor. H2: so does that of a mixture of
experts, in three parts: level (a), dispatch term (b), shape (c). H3: where a smaller dense model diverges, its floor
is the reason and not its shape. Every function reads `Draws`; every number names its estimand; a verdict is
"supported", "refuted", "undecided", "negligible" (a term), "untestable here" or "not tested".
"""

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp, ndtr

from rooffloor.models.floor.structures import overlap_ms
from rooffloor.models.specs.shapes import load as load_shapes
from rooffloor.validate.estimates.cell_draws import IMPUTED, Draws, Estimate, expected_error, tails, weighted_quantiles
from rooffloor.validate.hypotheses.frequentist_h1 import agreement, dies, school
from rooffloor.validate.study.study import Margins

if TYPE_CHECKING:
    from rooffloor.validate.study.study import Study

type Array = NDArray[np.float64]

SUPPORTED, REFUTED, UNDECIDED = "supported", "refuted", "undecided"
NEGLIGIBLE, UNTESTABLE, NOT_TESTED = "negligible", "untestable here", "not tested"

STATEMENTS = {
    "H1": "The GPU-compute branch transfers to a same-class dense family under the anchor's floor.",
    "H2": "The GPU-compute branch with its dispatch term transfers to a mixture of experts.",
    "H3": "Where a smaller dense model diverges, the reason is its floor, not the shape of its GPU-compute branch.",
}


@dataclass(frozen=True)
class Result:
    """One hypothesis: `verdict`, sentences for people, and all numbers in `data`."""

    name: str
    verdict: str
    sentences: tuple[str, ...]
    data: dict[str, Any]

    def __repr__(self) -> str:
        return f"{self.name}: {self.verdict}"

    @property
    def summary(self) -> str:
        """The verdict and its sentences, as text for a terminal."""
        lines = textwrap.TextWrapper(110, initial_indent="- ", subsequent_indent="  ", break_on_hyphens=False)
        told = map(lines.fill, self.sentences)
        return "\n".join([f"{self.name} {self.verdict}: {STATEMENTS[self.name]}", *told])


def evaluate(study: "Study", name: str, *, seed: int | None = None, quiet: bool = True) -> Result:
    """Test one hypothesis on a study's data, as `rooffloor test` does."""
    from rooffloor.validate.fitting.evidence import gather
    from rooffloor.validate.hypotheses.robustness import robustness, settled

    evidence = gather(study, seed=seed, quiet=quiet)
    result = TESTS[name](evidence.draws, study.margins)
    data = settled({name: result}, robustness(evidence), study.margins, evidence.draws)[name]
    data_are = f"Data: {evidence.draws.label}. Margins: {study.margins.label}."
    return Result(name, data["verdict"], (*data["sentences"], *data["error_rates"], data_are), data)


def verdict_of(probability: float, margins: Margins) -> str:
    """Supported at `margins.probability` or more, refuted at its complement or less, else undecided."""
    if probability >= margins.probability:
        return SUPPORTED
    return REFUTED if probability <= 1.0 - margins.probability else UNDECIDED


def say(probability: float) -> str:
    """A probability in words that claim no more digits than it has."""
    if probability > 0.99:
        return "above 0.99"
    return "below 0.01" if probability < 0.01 else f"{probability:.2f}"


# ---- pieces ---------------------------------------------------------------------------------------------------


def level_error(draws: Draws, mask: NDArray[np.bool_], floor_ms: Array) -> Array:
    """Expected MAPE (percent, per draw) of some cells predicted as T_gpu + a calibrated floor."""
    predicted = draws.gpu_ms[:, mask] + floor_ms[:, mask]
    return 100.0 * expected_error(predicted, draws.mean_ms[:, mask], draws.noise_ms[:, mask]).mean(-1)


def slope(draws: Draws, mask: NDArray[np.bool_]) -> tuple[Array, Array]:
    """Slope of y on T_gpu with a free offset, per draw: its mean and sd (`weighted_slope`, flat prior)."""
    return weighted_slope(draws.gpu_ms[:, mask], draws.step_ms[:, mask], 1.0 / draws.noise_ms[:, mask] ** 2)


def weighted_slope(T: Array, y: Array, w: Array) -> tuple[Array, Array]:
    """Slope of y on T with a free offset by weighted least squares, and its sd, [..., cell] -> [...].

    The sd is infinite, and the slope 1, where T does not vary over the cells.
    """
    total = w.sum(-1, keepdims=True)
    centred = T - (w * T).sum(-1, keepdims=True) / total
    spread = (w * centred**2).sum(-1)
    flat = spread <= 1e-12 * total[..., 0]
    safe = np.where(flat, 1.0, spread)
    mean = np.where(flat, 1.0, (w * centred * y).sum(-1) / safe)
    return mean, np.where(flat, np.inf, 1.0 / np.sqrt(safe))


def slope_summary(draws: Draws, mask: NDArray[np.bool_], margins: Margins) -> dict[str, Any]:
    """Slope with its interval, its place around the ROPE, how much T_gpu varies over the cells, and a verdict.

    Supported where the slope lies within the ROPE, refuted where it lies below it, or above it, each with the
    margins' probability (a slope that is merely unknown lies outside as a whole, but on neither side); untestable,
    without numbers, where T_gpu does not vary.
    """
    mean, sd = slope(draws, mask)
    T = draws.gpu_ms[:, mask]
    varying = {"varying_share": float(draws.weight @ ((T.max(-1) - T.min(-1)) / T.max(-1)))}
    if not np.isfinite(sd).all():
        return {"slope": None, "slope_in_rope": None, "slope_verdict": UNTESTABLE, **varying}
    low, high = 1 - margins.slope_rope, 1 + margins.slope_rope
    below, above = ndtr((low - mean) / sd), ndtr((mean - high) / sd)
    drawn = mean + sd * np.random.default_rng(int(mask.sum())).standard_normal(mean.shape)
    inside = draws.probability(1.0 - below - above, f"P(slope within 1 +- {margins.slope_rope:g})")
    outside = max(draws.weight @ below, draws.weight @ above)
    verdict = SUPPORTED if inside.value >= margins.probability else UNDECIDED
    return {
        "slope": draws.estimate(drawn, "slope of y on T_gpu with a free offset", "1").data,
        "slope_in_rope": inside.data,
        "slope_verdict": REFUTED if outside >= margins.probability else verdict,
        **varying,
    }


def pooled_below(means: Array, sds: Array, margin: float | Array, scale: float) -> Array:
    """P(mean over SKUs below a margin) with a between-SKU sd ~ half-Cauchy(scale) and a flat mean.

    Parameters
    ----------
    means, sds : arrays, shape (..., gpu)
        Posterior mean and sd of the difference on each SKU.
    margin : float or array that broadcasts with the leading axes

    Returns
    -------
    array, shape (...)
    """
    tau = scale * np.tan(0.5 * np.pi * (np.arange(60) + 0.5) / 60)
    variance = np.maximum(sds, 1e-6)[..., None, :] ** 2 + tau[:, None] ** 2
    precision = (1.0 / variance).sum(-1)
    centre = (means[..., None, :] / variance).sum(-1) / precision
    gap = means[..., None, :] - centre[..., None]
    log_weight = -0.5 * (np.log(variance).sum(-1) + np.log(precision) + (gap**2 / variance).sum(-1))
    weight = np.exp(log_weight - logsumexp(log_weight, axis=-1, keepdims=True))
    below = ndtr((np.asarray(margin)[..., None] - centre) * np.sqrt(precision))
    return (weight * below).sum(-1)


def by_unit(draws: Draws, values: Array) -> tuple[Array, Array, Array]:
    """Mean and sd of values (draw, ...) within each unit of an imputation (or over all draws), and unit weights."""
    if draws.label != IMPUTED:
        return values.mean(0)[None], values.std(0)[None], np.ones(1)
    units = np.unique(draws.unit)
    rows = [draws.unit == u for u in units]
    mass = np.array([draws.weight[r].sum() for r in rows])
    return np.stack([values[r].mean(0) for r in rows]), np.stack([values[r].std(0) for r in rows]), mass


def _gpus(draws: Draws, model: str, least: int = 1) -> list[tuple[str, NDArray[np.bool_]]]:
    """GPUs on which the anchor, and a model in at least so many cells, were measured, with the model's cells."""
    return [(g, mask) for m, g, mask in draws.pairs() if m == model and mask.sum() >= least and draws.has_anchor(mask)]


def _not_tested(name: str, why: str) -> Result:
    data = {"verdict": NOT_TESTED, "statement": STATEMENTS[name], "sentences": [why]}
    return Result(name, NOT_TESTED, (why,), data)


# ---- H1 -------------------------------------------------------------------------------------------------------


SPREAD = 1.25
"""Scale of the half-Cauchy prior on the sd between GPUs, in margins."""


def h1(draws: Draws, margins: Margins, *, both_schools: bool = True, spread: float = SPREAD) -> Result:
    """Same-class dense transfer, per family and SKU and pooled over SKUs; beside it the frequentist tests."""
    own_class = draws.classes[draws.anchor]
    names = [m for m in draws.cells.models if m != draws.anchor and draws.classes[m] == own_class]
    families = [_family(draws, m, margins, both_schools, spread) for m in names if _gpus(draws, m)]
    if not families:
        return _not_tested("H1", f"No model of the anchor's class ({own_class}) was measured beside the anchor.")
    verdicts = {f["verdict"] for f in families}
    verdict = REFUTED if REFUTED in verdicts else UNDECIDED if UNDECIDED in verdicts else SUPPORTED
    sentences = tuple(s for f in families for s in f["sentences"])
    data = {
        "verdict": verdict,
        "statement": STATEMENTS["H1"],
        "sentences": list(sentences),
        "families": families,
    }
    return Result("H1", verdict, sentences, data)


def _family(draws: Draws, family: str, margins: Margins, both_schools: bool, spread: float) -> dict[str, Any]:
    gpus = _gpus(draws, family)
    levels, gaps, rows = [], [], []
    for gpu, mask in gpus:
        level = level_error(draws, mask, draws.calibrated_ms)
        anchor = level_error(draws, draws.mask(draws.anchor, gpu), draws.calibrated_ms)
        levels.append(level)
        gaps.append(level - anchor)
        rows.append(
            {
                "gpu": gpu,
                "probability": draws.probability(
                    gaps[-1] < margins.h1_points, f"P(difference < {margins.h1_points:g} points)"
                ).data,
                "absolute_probability": draws.probability(
                    level < margins.h1_absolute, f"P(residual MAPE < {margins.h1_absolute:g} %)"
                ).data,
                "difference": draws.estimate(
                    gaps[-1], "expected residual MAPE of the family minus that of the anchor", "points"
                ).data,
                "level": draws.estimate(level, "expected residual MAPE under the anchor's floor", "percent").data,
                **slope_summary(draws, mask, margins),
            }
        )
    gap, level = np.stack(gaps, -1), np.stack(levels, -1)
    scale = spread * margins.h1_points
    means, sds, mass = by_unit(draws, gap)
    better = float(mass @ pooled_below(means, sds, margins.h1_points, scale))
    level_means, level_sds, _ = by_unit(draws, level)
    good = float(mass @ pooled_below(level_means, level_sds, margins.h1_absolute, scale))
    probability = min(better, good)
    joint = draws.probability((gap < margins.h1_points).all(-1), f"P(difference < {margins.h1_points:g} on every GPU)")
    by_die = _by_die(draws, gap, [g for g, _ in gpus], margins, scale)
    curve = [
        {"margin": m, "probability": float(mass @ pooled_below(means, sds, m, scale))}
        | {f"on {g}": float(draws.weight @ (gap[:, k] < m)) for k, (g, _) in enumerate(gpus)}
        for m in np.linspace(0.0, 5.0, 21).tolist()
    ]
    verdict = verdict_of(probability, margins)
    where = ", ".join(g for g, _ in gpus)
    mean_gap = draws.estimate(gap.mean(-1), "the same, mean over GPUs", "points")
    sentences = [
        f"{family} on {where}: P(its residual MAPE under the anchor's floor, averaged over GPUs like these, is less "
        f"than {margins.h1_points:g} points above the anchor's) is {say(better)}, P(it is below "
        f"{margins.h1_absolute:g} %) is {say(good)}; mean difference on these GPUs {mean_gap} points (90 % interval). "
        f"H1 is {verdict} for it.",
    ]
    if len(gpus) == 1:
        sentences.append(
            f"{family}: one GPU does not show how much GPUs differ, so the prior on that (half-Cauchy, scale {scale:g} "
            "points) sets the width of both averages."
        )
    if len(gpus) > 1:
        sentences.append(
            f"{family}: P(the difference is below the margin on every one of these GPUs) is {say(joint.value)}"
            + (f"; with GPUs of one die taken as one, P(on average) is {say(by_die)}." if by_die is not None else ".")
        )
    tests = school(draws, family, [g for g, _ in gpus], margins) if both_schools else None
    if tests is not None:
        sentences.append(f"{family}: {agreement(tests, better, margins)}")
    off = [r["gpu"] for r in rows if r["slope_verdict"] == REFUTED]
    if off:
        sentences.append(
            f"{family}: the slope of the step on T_gpu lies outside 1 +- {margins.slope_rope:g} on {', '.join(off)}: "
            "either the part of T_gpu that varies over the grid is wrong there, or the floor is not constant. The "
            "level alone would not show it."
        )
    return {
        "family": family,
        "verdict": verdict,
        "sentences": sentences,
        "probability": Estimate(
            better, f"P(mean difference < {margins.h1_points:g} points)", "probability", {}, None
        ).data,
        "absolute_probability": Estimate(
            good, f"P(mean residual MAPE < {margins.h1_absolute:g} %)", "probability", {}, None
        ).data,
        "difference": mean_gap.data,
        "per_sku": rows,
        "joint": joint.data,
        "by_die": by_die,
        "frequentist": tests,
        "margins": curve,
    }


def _by_die(draws: Draws, gap: Array, gpus: Sequence[str], margins: Margins, scale: float) -> float | None:
    """P(mean difference below the margin) with the GPUs of one die averaged first; None where each has its own."""
    die = np.array(list(dies(gpus).values()))
    if not 1 < len(set(die)) < len(gpus):
        return None
    means, sds, mass = by_unit(draws, np.stack([gap[:, die == d].mean(-1) for d in dict.fromkeys(die)], -1))
    return float(mass @ pooled_below(means, sds, margins.h1_points, scale))


# ---- H2 -------------------------------------------------------------------------------------------------------


def h2(draws: Draws, margins: Margins) -> Result:
    """Mixture of experts: level under the anchor's floor, dispatch term, shape."""
    moes = [m for m in draws.cells.models if draws.classes[m] == "moe" and _gpus(draws, m)]
    if not moes:
        return _not_tested("H2", "No mixture of experts was measured beside the anchor.")
    a = [_moe_level(draws, m, g, mask, margins) for m in moes for g, mask in _gpus(draws, m)]
    b = [_moe_dispatch(draws, m, g, mask, margins) for m in moes for g, mask in _gpus(draws, m)]
    c = [_moe_shape(draws, m, g, mask, margins) for m in moes for g, mask in _gpus(draws, m)]
    parts = {key: _part(rows) for key, rows in (("a", a), ("b", b), ("c", c))}
    level = parts["a"]["verdict"]
    sentences = [s for part in parts.values() for s in part["sentences"]]
    data = {"verdict": level, "statement": STATEMENTS["H2"], "sentences": sentences, "parts": parts}
    return Result("H2", level, tuple(sentences), data)


def _part(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    verdicts = [r["verdict"] for r in rows]
    order = (REFUTED, UNDECIDED, UNTESTABLE, SUPPORTED, NEGLIGIBLE)
    return {
        "verdict": min(verdicts, key=order.index),
        "sentences": [r["sentence"] for r in rows],
        "per_sku": [{k: v for k, v in r.items() if k != "sentence"} for r in rows],
    }


def _moe_level(draws: Draws, model: str, gpu: str, mask: NDArray[np.bool_], margins: Margins) -> dict[str, Any]:
    level = level_error(draws, mask, draws.calibrated_ms)
    gap = draws.floor_ms[:, mask][:, 0] - draws.anchor_floor_ms[:, mask][:, 0]
    share = draws.probability(level < margins.h1_absolute, f"P(residual MAPE < {margins.h1_absolute:g} %)")
    estimate = draws.estimate(level, "expected residual MAPE under the anchor's floor", "percent")
    floor = draws.estimate(gap, "floor of the model minus the anchor's", "ms")
    verdict = verdict_of(share.value, margins)
    return {
        "model": model,
        "gpu": gpu,
        "verdict": verdict,
        "probability": share.data,
        "level": estimate.data,
        "floor_above_anchor": floor.data,
        "sentence": f"H2a {verdict}: under the anchor's floor {model} on {gpu} has an expected MAPE of {estimate} %; "
        f"P(it is below {margins.h1_absolute:g} %) is {say(share.value)}. Its own floor minus the anchor's is {floor} "
        "ms (90 % intervals).",
    }


DETECTABLE = 2.8
"""A term of so many standard errors is found at 5 % (two-sided) with a power of 0.8."""


def _moe_dispatch(draws: Draws, model: str, gpu: str, mask: NDArray[np.bool_], margins: Margins) -> dict[str, Any]:
    term = draws.dispatch_ms[:, mask]
    percent = 100.0 * term / draws.mean_ms[:, mask]
    below = draws.probability(
        percent.max(-1) < margins.dispatch_percent, f"P(term < {margins.dispatch_percent:g} % of every step)"
    )
    # kappa, the factor on the term, from the step's dependence on it beside a free offset.
    w = 1.0 / draws.noise_ms[:, mask] ** 2
    centred = term - (w * term).sum(-1, keepdims=True) / w.sum(-1, keepdims=True)
    sd = 1.0 / np.sqrt(np.maximum((w * centred**2).sum(-1), 1e-300))
    kappa_sd = float(np.exp(draws.weight @ np.log(sd)))
    median = draws.estimate(np.median(term, axis=-1), "median dispatch term", "ms")
    verdict = NEGLIGIBLE if below.value > margins.probability else UNTESTABLE if kappa_sd > 0.5 else UNDECIDED
    detectable = kappa_sd * DETECTABLE * median.value
    sentence = (
        f"H2b {verdict}: beside a free floor, the smallest dispatch term of this shape that the steps of {model} on "
        f"{gpu} would show (power 0.8) has a median of {detectable:.2g} ms; as modelled it has {median.value:.4f} ms, "
        f"and P(it is below {margins.dispatch_percent:g} % of every step) is {say(below.value)}."
        if kappa_sd < 1e3
        else f"H2b {verdict}: beside a free floor no dispatch term of this shape would show on the grid of {model} on "
        f"{gpu}; as modelled it has a median of {median.value:.4f} ms, and P(it is below "
        f"{margins.dispatch_percent:g} % of every step) is {say(below.value)}."
    )
    if kappa_sd > 0.5:
        spread = f"by +-{kappa_sd:.1f}" if kappa_sd < 1e3 else "without bound"
        sentence += (
            f" Whether it really is of that size cannot be tested here: beside a free floor the steps leave a factor "
            f"on it uncertain {spread}, where half the sd of 1 that a prior on it would have is the limit."
        )
    return {
        "model": model,
        "gpu": gpu,
        "verdict": verdict,
        "probability": below.data,
        "term": median.data,
        "kappa_sd": kappa_sd,
        "detectable_ms": detectable if kappa_sd < 1e3 else None,
        "sentence": sentence,
    }


def _moe_shape(draws: Draws, model: str, gpu: str, mask: NDArray[np.bool_], margins: Margins) -> dict[str, Any]:
    numbers = slope_summary(draws, mask, margins)
    own = level_error(draws, mask, draws.own_calibrated_ms)
    batch, context = draws.batch[0, mask], draws.context[0, mask]  # the corner is the same cell in every grid
    corner = int(np.lexsort((context, batch))[-1])
    predicted = draws.gpu_ms[:, mask][:, corner] + draws.own_calibrated_ms[:, mask][:, corner]
    y = draws.step_ms[:, mask][:, corner]
    error = draws.estimate(100.0 * (predicted / y - 1.0), "relative error of the cell, own floor", "percent")
    joined = {name: _joined_corner(draws, mask, corner, q) for name, q in JOINS.items()}
    verdict = numbers["slope_verdict"]
    own_level = draws.estimate(own, "expected MAPE under its own floor", "percent")
    if numbers["slope"] is None:
        told = "T_gpu does not vary over the cells, so that there is no slope;"
    else:
        told = (
            f"the slope of the step on T_gpu is {Estimate(**numbers['slope'])} and "
            f"P(it is within 1 +- {margins.slope_rope:g}) is {say(numbers['slope_in_rope']['value'])};"
        )
    return {
        "model": model,
        "gpu": gpu,
        "verdict": verdict,
        **numbers,
        "own_level": own_level.data,
        "corner": {"batch": float(batch[corner]), "context": float(context[corner]), "error": error.data}
        | {"joined": joined},
        "sentence": f"H2c {verdict}: with a floor of its own, {model} on {gpu}: {told} expected MAPE {own_level} %; "
        f"relative error of the prediction at B = {batch[corner]:g}, L = {context[corner]:g}: {error} % (90 % "
        "intervals). With the floor refitted to all cells, that cell is "
        + ", ".join(
            f"{row['error']['value']:+z.0f} % off if {name} (posterior predictive p {say(row['p'])})"
            for name, row in joined.items()
        )
        + ".",
    }


JOINS = {"added": 1.0, "half overlapped": 0.5, "the longer of the two": 0.0}
"""q of the ways in which T_gpu and a floor H >= 0 may join, for the corner cell."""


def _joined_corner(draws: Draws, mask: NDArray[np.bool_], corner: int, q: float) -> dict[str, Any]:
    """Relative error of the corner cell under a floor H >= 0 refitted to the pair's cells, and its predictive p.

    H is the relative least-squares one of each data set (or of 100 draws of T_gpu); the predictive p is two-sided,
    with the spread that this floor leaves over all cells.
    """
    _, mass, T, y = _sampled(draws, mask)
    H = np.linspace(0.0, 1.2, 241)[:, None, None] * y.max(-1)[:, None]
    errors = overlap_ms(T, H, q) / y - 1.0  # [H, row, cell]
    best = (errors**2).sum(-1).argmin(0)
    chosen = np.take_along_axis(errors, best[None, :, None], 0)[0]
    spread = np.sqrt((chosen**2).sum(-1) / max(chosen.shape[-1] - 1, 1))
    p = 2.0 * ndtr(-np.abs(chosen[:, corner]) / np.maximum(spread, 1e-9))
    percent = 100.0 * chosen[:, corner]
    low, high = weighted_quantiles(percent, mass, tails(90))
    mean = float(mass @ percent)
    mcse = float(np.sqrt(mass**2 @ (percent - mean) ** 2))
    of = Estimate(mean, "relative error of the cell, floor H >= 0", "percent", {"90": (low, high)}, mcse)
    return {"q": q, "error": of.data, "p": float(mass @ p)}


# ---- H3 -------------------------------------------------------------------------------------------------------

PRIOR_SCALES = {"as stated": 1.0, "doubled": 2.0}
OFFSET_SD_MS, SLOPE_SD = 5.0, 0.5
"""Prior sd of a floor around the anchor's, and of a slope around 1, in the comparison of H3."""


def h3(draws: Draws, margins: Margins) -> Result:
    """Smaller dense models: does an offset, a scale, or both explain their distance from the anchor's prediction?"""
    anchor = load_shapes(draws.anchor).parameters if _known(draws.anchor) else None
    smaller = [
        m
        for m in draws.cells.models
        if draws.classes[m] not in ("moe", draws.classes[draws.anchor])
        and _gpus(draws, m, 2)
        and (anchor is None or not _known(m) or load_shapes(m).parameters < anchor)
    ]
    if not smaller:
        return _not_tested("H3", "No smaller dense model of another class was measured in two cells beside the anchor.")
    rows = [_divergence(draws, m, g, mask, margins) for m in smaller for g, mask in _gpus(draws, m, 2)]
    diverging = [r for r in rows if r["verdict"] != NOT_TESTED]
    verdicts = {r["verdict"] for r in diverging}
    if not diverging:
        verdict = NOT_TESTED
        closing = "No smaller model is shown to diverge under the anchor's floor."
    else:
        verdict = REFUTED if REFUTED in verdicts else UNDECIDED if UNDECIDED in verdicts else SUPPORTED
        pairs = ", ".join(f"{r['model']} on {r['gpu']}" for r in diverging)
        closing = f"The verdict is that of the diverging pairs: {pairs}."
        if verdict == SUPPORTED:
            closing += " An error of T_gpu that is the same in every cell of a pair would look like such a floor."
    sentences = (*(r.pop("sentence") for r in rows), closing)
    data = {
        "verdict": verdict,
        "statement": STATEMENTS["H3"],
        "sentences": list(sentences),
        "per_sku": rows,
    }
    return Result("H3", verdict, sentences, data)


def _known(model: str) -> bool:
    try:
        load_shapes(model)
    except ValueError:
        return False
    return True


def _divergence(draws: Draws, model: str, gpu: str, mask: NDArray[np.bool_], margins: Margins) -> dict[str, Any]:
    shared = level_error(draws, mask, draws.calibrated_ms)
    own = left_out_error(draws, mask)
    diverges = draws.probability(
        shared > margins.h1_absolute, f"P(residual MAPE under the anchor's floor > {margins.h1_absolute:g} %)"
    )
    recovered = draws.probability(
        own < margins.h1_absolute, f"P(cross-validated MAPE under its own floor < {margins.h1_absolute:g} %)"
    )
    weights = {name: explanation_weights(draws, mask, scale) for name, scale in PRIOR_SCALES.items()}
    numbers = slope_summary(draws, mask, margins)
    inside = 0.0 if numbers["slope_in_rope"] is None else numbers["slope_in_rope"]["value"]
    # A slope within the ROPE is as good as 1: there the floor alone explains.
    shares = {name: w["offset only"] + w["both"] * inside for name, w in weights.items()}
    offset, most = min(shares.values()), max(shares.values())
    if diverges.value < margins.probability:
        verdict = NOT_TESTED
    elif offset >= margins.probability and recovered.value >= margins.probability:
        verdict = SUPPORTED
    else:
        verdict = REFUTED if most <= 1.0 - margins.probability else UNDECIDED
    few = few_cells_error(draws, mask) if mask.sum() > FEW_CELLS else None
    far = long_context_error(draws, mask)
    elsewhere = {
        "few": None
        if few is None
        else draws.estimate(few, f"MAPE of the rest, floor from {FEW_CELLS} cells", "percent"),
        "contexts": None
        if far is None
        else draws.estimate(far, "MAPE at the longest context, floor from shorter ones", "percent"),
    }
    gap = draws.floor_ms[:, mask][:, 0] - draws.anchor_floor_ms[:, mask][:, 0]
    floor = draws.estimate(gap, "floor of the model minus the anchor's", "ms")
    level = draws.estimate(shared, "expected residual MAPE under the anchor's floor", "percent")
    own_level = draws.estimate(own, "MAPE with its own floor, each cell left out in turn", "percent")
    first, doubled = weights["as stated"], weights["doubled"]
    if verdict == NOT_TESTED:
        told = (
            f"P(the former is above {margins.h1_absolute:g} %) is {say(diverges.value)}: no divergence is shown, so "
            "that there is nothing to test there."
        )
    else:
        told = (
            f"P(the latter is below {margins.h1_absolute:g} %) is {say(recovered.value)}. Posterior weights of three "
            f"explanations: offset only {say(first['offset only'])}, scale only {say(first['scale only'])}, both "
            f"{say(first['both'])} (offset only {say(doubled['offset only'])} with twice the prior sds). P(it is the "
            f"floor, with a slope within 1 +- {margins.slope_rope:g}) is {say(shares['as stated'])} "
            f"({say(shares['doubled'])}): {verdict} there."
        )
        tried = [
            f"{estimate} % {where}"
            for estimate, where in (
                (elsewhere["few"], f"on the rest where {FEW_CELLS} cells calibrate it"),
                (elsewhere["contexts"], "at the longest context where shorter ones calibrate it"),
            )
            if estimate is not None
        ]
        told += f" An offset of its own leaves {' and '.join(tried)}." if tried else ""
    return {
        "model": model,
        "gpu": gpu,
        "verdict": verdict,
        "diverges": diverges.data,
        "recovered": recovered.data,
        "level": level.data,
        "own_level": own_level.data,
        "calibrated_elsewhere": {key: None if e is None else e.data for key, e in elsewhere.items()},
        "floor_above_anchor": floor.data,
        **numbers,
        "weights": weights,
        "floor_probability": shares,
        "cos2": collinearity(draws, mask),
        "offset_slope": offset_slope(draws, mask),
        "sentence": f"{model} on {gpu} has an expected MAPE of {level} % under the anchor's floor and a MAPE of "
        f"{own_level} % with an offset of its own (each cell left out in turn); its floor minus the anchor's is "
        f"{floor} ms (90 % intervals). {told}",
    }


def left_out_error(draws: Draws, mask: NDArray[np.bool_]) -> Array:
    """MAPE (percent, per draw) of cells predicted with an offset fitted to the pair's other cells, weights 1/y^2."""
    T, y = draws.gpu_ms[:, mask], draws.step_ms[:, mask]
    w = np.broadcast_to(1.0 / y**2, T.shape)
    d = y - T
    total, sum_ = w.sum(-1, keepdims=True), (w * d).sum(-1, keepdims=True)
    offset = (sum_ - w * d) / np.maximum(total - w, 1e-300)
    return np.asarray(100.0 * np.abs((T + offset - y) / y).mean(-1))


FEW_CELLS, SPLITS = 3, 30
"""Cells that calibrate a floor, and how many choices of them are tried, where few calibrate and the rest test."""


def few_cells_error(draws: Draws, mask: NDArray[np.bool_]) -> Array:
    """MAPE (percent, per draw) of the other cells, offset from `FEW_CELLS` cells, mean over `SPLITS` choices."""
    n = int(mask.sum())
    rng = np.random.default_rng(n)
    chosen = [rng.permutation(n) < FEW_CELLS for _ in range(SPLITS)]
    return np.mean([elsewhere_error(draws, mask, at) for at in chosen], axis=0)


def long_context_error(draws: Draws, mask: NDArray[np.bool_]) -> Array | None:
    """MAPE (percent, per draw) of the longest context under an offset from all shorter ones; None without two."""
    context = draws.context[0, mask]
    short = context < context.max()
    return elsewhere_error(draws, mask, short) if short.any() else None


def elsewhere_error(draws: Draws, mask: NDArray[np.bool_], calibrate: NDArray[np.bool_]) -> Array:
    """MAPE (percent, per draw) of a pair's other cells, offset fitted to those of `calibrate`, weights 1/y^2."""
    T, y = draws.gpu_ms[:, mask], np.broadcast_to(draws.step_ms[:, mask], draws.gpu_ms[:, mask].shape)
    w = calibrate / y**2
    offset = (w * (y - T)).sum(-1, keepdims=True) / w.sum(-1, keepdims=True)
    return np.asarray(100.0 * np.abs((T + offset - y) / y)[:, ~calibrate].mean(-1))


def collinearity(draws: Draws, mask: NDArray[np.bool_]) -> float:
    """cos^2 between offset and slope on the pair's cells (1: the two cannot be told apart)."""
    T = draws.gpu_ms[:, mask]
    w = 1.0 / draws.noise_ms[:, mask] ** 2
    return float(draws.weight @ ((w * T).sum(-1) ** 2 / (w.sum(-1) * (w * T**2).sum(-1))))


def offset_slope(draws: Draws, mask: NDArray[np.bool_]) -> dict[str, Any] | None:
    """Joint posterior of a pair's offset and slope by its first two moments; None where T_gpu does not vary.

    y on (1, T_gpu) by weighted least squares with a flat prior in each draw, mixed over draws. The offset is less the
    anchor's floor in the same draw, so that the anchor's prediction lies at (0, 1).

    Returns
    -------
    dict
        `mean` (offset in ms, slope), `covariance` (2 x 2), `cos2` (`collinearity`), `mean_gpu_ms` (mean T_gpu as the
        fit weighs cells: the offset there hardly depends on the slope).
    """
    tilt, sd = slope(draws, mask)
    if not np.isfinite(sd).all():
        return None
    T, y = draws.gpu_ms[:, mask], draws.step_ms[:, mask]
    w = 1.0 / draws.noise_ms[:, mask] ** 2
    total = w.sum(-1)
    T_mean, y_mean = (w * T).sum(-1) / total, (w * y).sum(-1) / total
    drawn = np.stack([y_mean - tilt * T_mean - draws.anchor_floor_ms[:, mask][:, 0], tilt], -1)
    crossed = -T_mean * sd**2
    own = np.stack([np.stack([1.0 / total + (T_mean * sd) ** 2, crossed], -1), np.stack([crossed, sd**2], -1)], -1)
    mean = draws.weight @ drawn
    apart = drawn - mean
    covariance = np.einsum("d,dij->ij", draws.weight, own + apart[:, :, None] * apart[:, None, :])
    return {
        "mean": mean.tolist(),
        "covariance": covariance.tolist(),
        "cos2": collinearity(draws, mask),
        "mean_gpu_ms": float(draws.weight @ T_mean),
    }


def explanation_weights(draws: Draws, mask: NDArray[np.bool_], scale: float) -> dict[str, float]:
    """Posterior weights of "offset only", "scale only" and "both" for one pair, equal prior weights.

    Each explains y - T - (anchor's floor) by a free offset (prior sd 5 ms), a free slope (prior sd 0.5), or both,
    prior sds times `scale`; noise is relative with sd integrated over a lognormal prior (6 %, log sd 0.7). Weights
    are averaged over imputations, or over draws of T_gpu.
    """
    rows, mass, T, y = _sampled(draws, mask)
    left = y - T - draws.calibrated_ms[rows][:, mask]
    offset, tilt = np.ones_like(T) * OFFSET_SD_MS * scale, T * SLOPE_SD * scale
    models = {"offset only": [offset], "scale only": [tilt], "both": [offset, tilt]}
    evidence = np.stack([_log_evidence(left / y, np.stack(c, -1) / y[..., None]) for c in models.values()], -1)
    weight = np.exp(evidence - logsumexp(evidence, axis=-1, keepdims=True))
    return dict(zip(models, (mass @ weight).tolist(), strict=True))


def _sampled(draws: Draws, mask: NDArray[np.bool_]) -> tuple[NDArray[np.int64], Array, Array, Array]:
    """One draw per imputation, or 100 draws of a measured posterior: numbers, weights, and T and y of some cells."""
    if draws.label == IMPUTED:
        rows = np.unique(draws.unit, return_index=True)[1]
    else:
        rows = np.linspace(0, len(draws.weight) - 1, min(100, len(draws.weight))).astype(np.int64)
    T, y = draws.gpu_ms[rows][:, mask], draws.step_ms[rows if len(draws.step_ms) > 1 else [0]][:, mask]
    return rows, draws.weight[rows] / draws.weight[rows].sum(), T, np.broadcast_to(y, T.shape)


def _log_evidence(residual: Array, design: Array) -> Array:
    """log p(residual) for residual = design b + noise, b standard normal, noise sd lognormal(6 %, 0.7), integrated.

    residual has shape (draw, cell), design (draw, cell, column).
    """
    z = np.linspace(-7.0, 5.0, 161)  # steps of 5 % in the noise: fine enough for 200 cells
    variance = (0.06 * np.exp(0.7 * z)) ** 2
    size, axes = np.linalg.eigh(np.einsum("dci,dcj->dij", design, design))
    cross = np.einsum("dci,dc,dij->dj", design, residual, axes)
    inner = 1.0 + size[..., None] / variance
    fitted = (cross[..., None] ** 2 / inner).sum(-2) / variance**2
    quadratic = (residual**2).sum(-1)[..., None] / variance - fitted
    log_density = -0.5 * (quadratic + np.log(inner).sum(-2) + design.shape[-2] * np.log(2 * np.pi * variance))
    return np.asarray(logsumexp(log_density - 0.5 * z**2 + np.log((z[1] - z[0]) / np.sqrt(2 * np.pi)), axis=-1))


TESTS = {"H1": h1, "H2": h2, "H3": h3}
