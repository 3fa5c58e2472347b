"""What the tests of the hypotheses found, in sentences made from their results."""

from collections.abc import Mapping, Sequence
from typing import Any

from rooffloor.validate.estimates.estimate import Estimate
from rooffloor.validate.hypotheses.level import FEW_CELLS
from rooffloor.validate.hypotheses.result import NEGLIGIBLE, NOT_TESTED, REFUTED, SUPPORTED, UNDECIDED, say
from rooffloor.validate.study.margins import Margins

type Row = Mapping[str, Any]


def _shown(estimate: Row) -> str:
    """Value and 90 % interval with the digits that the Monte Carlo error allows."""
    return str(Estimate(**estimate))


def other_join(join: str) -> str:
    """That cells speak against added floors and not against T_gpu."""
    return (
        f"A right T_gpu that joins a floor H >= 0 in another way ({join}) explains these cells as well, so that they "
        "refute no more than that floors are added: undecided. `rooffloor compare` says which join they support."
    )


def family(found: Row, margins: Margins, scale: float) -> list[str]:
    """One family of H1; `scale` is that of the prior on the sd between GPUs, in points."""
    name, rows = found["family"], found["per_sku"]
    better, good = found["probability"]["value"], found["absolute_probability"]["value"]
    said = [
        f"{name} on {', '.join(row['gpu'] for row in rows)}: P(its residual MAPE under the anchor's floor, averaged "
        f"over GPUs like these, is less than {margins.h1_points:g} points above the anchor's) is {say(better)}, "
        f"P(it is below {margins.h1_absolute:g} %) is {say(good)}; mean difference on these GPUs "
        f"{_shown(found['difference'])} points (90 % interval). H1 is {found['verdict']} for it.",
    ]
    if found["joined"] is not None:
        said.append(f"{name}: {other_join(found['joined'])}")
    if len(rows) == 1:
        said.append(
            f"{name}: one GPU does not show how much GPUs differ, so the prior on that (half-Cauchy, scale {scale:g} "
            "points) sets the width of both averages."
        )
    else:
        by_die = found["by_die"]
        on_average = "" if by_die is None else f"; with GPUs of one die taken as one, P(on average) is {say(by_die)}"
        said.append(
            f"{name}: P(the difference is below the margin on every one of these GPUs) is "
            f"{say(found['joint']['value'])}{on_average}."
        )
    if found["frequentist"] is not None:
        said.append(f"{name}: {agreement(found['frequentist'], better, margins)}")
    off = [row["gpu"] for row in rows if row["slope_verdict"] == REFUTED]
    if found["slope_verdict"] == REFUTED:
        said.append(
            f"{name}: over all GPUs the slope of the step on T_gpu is {_shown(found['slope'])}, outside 1 +- "
            f"{margins.slope_rope:g}"
            + (", so that the level alone does not support H1." if found["verdict"] == UNDECIDED else ".")
        )
    if off:
        said.append(
            f"{name}: the slope of the step on T_gpu lies outside 1 +- {margins.slope_rope:g} on {', '.join(off)}: "
            "either the part of T_gpu that varies over the grid is wrong there, or the floor is not constant. The "
            "level alone would not show it."
        )
    return said


def agreement(found: Row, probability: float, margins: Margins) -> str:
    """Whether the t-test over GPUs and the posterior probability lead to one decision."""
    t = found["tests"]["t_per_gpu"]
    if t["p_value"] is None:
        return f"No test over GPUs is possible ({t['note']})."
    if found["data_sets"] == 1:
        passed = t["p_value"] < 1.0 - margins.probability
        how = "agree" if (probability >= margins.probability) == passed else "disagree"
        what, end = f"p of {t['p_value']:.2f}", f": the two schools {how}"
    else:
        what, end = f"mean p over {found['data_sets']} imputed grids of {t['p_value']:.2f}", ", no p of one data set"
    said = f"The t-test of per-GPU differences against the margin ({t['df']:.0f} df) has a {what}{end}"
    if found["clusters"] is not None:
        die = found["tests"]["t_per_gpu_by_cluster"]["p_value"]
        said += f" (p {die:.2f} where GPUs with one die count once)" if die is not None else ""
    cells = found["tests"]["tost_cells"]["p_value"]
    if cells is not None:
        said += f". Taking all {found['cells']} cells for independent would give {cells:.2g}: pseudo-replicated"
    return said + "."


def moe_level(row: Row, margins: Margins) -> str:
    """H2a of one model on one GPU."""
    return (
        f"H2a {row['verdict']}: under the anchor's floor {row['model']} on {row['gpu']} has an expected MAPE of "
        f"{_shown(row['level'])} %; P(it is below {margins.h1_absolute:g} %) is {say(row['probability']['value'])}. "
        f"Its own floor minus the anchor's is {_shown(row['floor_above_anchor'])} ms (90 % intervals)."
        + ("" if row["joined"] is None else f" {other_join(row['joined'])}")
    )


def moe_dispatch(row: Row, margins: Margins) -> str:
    """H2b of one model on one GPU."""
    where, kappa_sd, least = f"{row['model']} on {row['gpu']}", row["kappa_sd"], row["detectable_ms"]
    below = f"P(it is below {margins.dispatch_percent:g} % of every step) is {say(row['probability']['value'])}."
    term = row["term"]["value"]
    if least is None:
        said = (
            f"H2b {row['verdict']}: beside a free floor no dispatch term of this shape would show on the grid of "
            f"{where}; as modelled it has a median of {term:.4f} ms, and {below}"
        )
    else:
        said = (
            f"H2b {row['verdict']}: beside a free floor, the smallest dispatch term of this shape that the steps of "
            f"{where} would show (power 0.8) has a median of {least:.2g} ms; as modelled it has {term:.4f} ms, "
            f"and {below}"
        )
    if row["verdict"] == NEGLIGIBLE:
        said += " That is a statement about the model's term, not about what dispatch costs the GPU."
    if kappa_sd > 0.5:
        spread = "without bound" if least is None else f"by +-{kappa_sd:.1f}"
        said += (
            f" Whether it really is of that size cannot be tested here: beside a free floor the steps leave a factor "
            f"on it uncertain {spread}, where half the sd of 1 that a prior on it would have is the limit."
        )
    return said


def moe_shape(row: Row, margins: Margins) -> str:
    """H2c of one model on one GPU."""
    corner = row["corner"]
    if row["slope"] is None:
        told = "T_gpu does not vary over the cells, so that there is no slope;"
    else:
        told = (
            f"the slope of the step on T_gpu is {_shown(row['slope'])} and "
            f"P(it is within 1 +- {margins.slope_rope:g}) is {say(row['slope_in_rope']['value'])};"
        )
    refitted = ", ".join(
        f"{one['error']['value']:+z.0f} % off if {name} (posterior predictive p {say(one['p'])})"
        for name, one in corner["joined"].items()
    )
    return (
        f"H2c {row['verdict']}: with a floor of its own, {row['model']} on {row['gpu']}: {told} expected MAPE "
        f"{_shown(row['own_level'])} %; relative error of the prediction at B = {corner['batch']:g}, "
        f"L = {corner['context']:g}: {_shown(corner['error'])} % (90 % intervals). With the floor refitted to all "
        f"cells, that cell is {refitted}." + ("" if row["joined"] is None else f" {other_join(row['joined'])}")
    )


def divergences(pooled: Sequence[Row], rows: Sequence[Row], verdict: str, margins: Margins) -> list[str]:
    """H3: a sentence per model over the GPUs on which it diverges, then one per GPU."""
    said = [_pooled(model, margins) for model in pooled if model["verdict"] != NOT_TESTED]
    said += [_divergence(row, margins) for row in rows]
    if verdict == NOT_TESTED:
        said.append("No smaller model is shown to diverge under the anchor's floor.")
    elif verdict == SUPPORTED:
        said.append("An error of T_gpu that is the same in every cell of a pair would look like such a floor.")
    return said


def _pooled(found: Row, margins: Margins) -> str:
    name, gpus = found["model"], found["gpus"]
    where = f"{name} diverges on {', '.join(gpus)}"
    if found["slope"] is None:
        return f"{where}; T_gpu does not vary over its cells, so that there is no slope: {found['verdict']}."
    first, doubled = found["weights"]["as stated"], found["weights"]["doubled"]
    over = "there" if len(gpus) == 1 else "on average over them"
    said = (
        f"{where}. The slope of its steps on T_gpu beside a free floor is {_shown(found['slope'])} {over} (90 % "
        f"interval); P(it is within 1 +- {margins.slope_rope:g}) is {say(found['slope_in_rope']['value'])}; "
        f"P(floors of its own leave less than {margins.h1_absolute:g} %, each cell left out in turn) is "
        f"{say(found['recovered']['value'])}. Posterior weights of three explanations: offset only "
        f"{say(first['offset only'])}, scale only {say(first['scale only'])}, both {say(first['both'])} (scale only "
        f"{say(doubled['scale only'])} with twice the prior sds). H3 is {found['verdict']} for it."
    )
    why = _why_undecided(found, margins) if found["verdict"] == UNDECIDED else ""
    return f"{said}{why}"


def _why_undecided(found: Row, margins: Margins) -> str:
    """What keeps one model from a verdict."""
    if found["joined"] is not None:
        return f" {other_join(found['joined'])}"
    if found["slope_verdict"] != SUPPORTED:
        return " More cells at large batches and long contexts would tell the slope."
    if found["recovered"]["value"] < margins.probability:
        return " The slope is right, but floors of its own leave too much over: noise, or another shape, would do that."
    return " The slope is as good as 1, but T_gpu varies so little that a factor on all of it explains the cells too."


def _divergence(row: Row, margins: Margins) -> str:
    said = (
        f"{row['model']} on {row['gpu']} has an expected MAPE of {_shown(row['level'])} % under the anchor's floor and "
        f"a MAPE of {_shown(row['own_level'])} % with an offset of its own (each cell left out in turn); its floor "
        f"minus the anchor's is {_shown(row['floor_above_anchor'])} ms (90 % intervals). "
    )
    if row["verdict"] == NOT_TESTED:
        return said + (
            f"P(the former is above {margins.h1_absolute:g} %) is {say(row['diverges']['value'])}: no divergence is "
            "shown, so that there is nothing to test there."
        )
    elsewhere = row["calibrated_elsewhere"]
    tilt = "T_gpu does not vary over its cells"
    if row["slope"] is not None:
        inside = say(row["slope_in_rope"]["value"])
        tilt = f"the slope there is {_shown(row['slope'])}, P(within 1 +- {margins.slope_rope:g}) {inside}"
    said += (
        f"P(the latter is below {margins.h1_absolute:g} %) is {say(row['recovered']['value'])}; {tilt}: "
        f"{row['verdict']} by this GPU alone."
    )
    tried = [
        f"{_shown(elsewhere[key])} % {where}"
        for key, where in (
            ("few", f"on the rest where {FEW_CELLS} cells calibrate it"),
            ("contexts", "at the longest context where shorter ones calibrate it"),
        )
        if elsewhere[key] is not None
    ]
    return said + (f" An offset of its own leaves {' and '.join(tried)}." if tried else "")
