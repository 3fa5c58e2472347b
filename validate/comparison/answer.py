"""Which floor? The sentences that say what a `Comparison` on cells, or a `Competition` on published figures, found."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rooffloor.validate.comparison.ranking import CLOSE_ELPD, STUDY, is_close
from rooffloor.validate.presentation.numbers import decimal
from rooffloor.validate.published.evidence.competition import PLAIN, REFERENCE, Competition, sides_of

OUT_OF_REACH = "out of reach"

type Row = Mapping[str, Any]


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


# ---- published figures ------------------------------------------------------------------------------------------


def of_competition(found: Competition) -> list[str]:
    """Which structure the published figures support, and what that rests on, in sentences."""
    scores = found.scores()
    names, best, reference, plain = scores["structure"].tolist(), found.best, str(REFERENCE), str(PLAIN)
    reached = int(np.isfinite(scores["log_ml"]).sum())
    circular = (
        "This is a statement about published aggregates, not about cells: each structure is judged by the probability "
        "that it gives the figures. No imputed grid was fitted, since that would favour the structure under which the "
        "grids were imputed."
    )
    if not reached:
        return [f"All {len(names)} floor structures stayed {OUT_OF_REACH} of the published figures.", circular]
    lost = f"; {len(names) - reached} stayed {OUT_OF_REACH}, not judged" if reached < len(names) else ""
    own = ", the study's own at its richest" if best == reference else ""
    said = [f"Of {len(names)} floor structures, the published figures are likeliest under {best}{own}{lost}."]
    roles = {reference: "the study's own at its richest", plain: "one floor for all models of a GPU"}
    rivals = [reference if best != reference else next((n for n in names if n != best), best)]
    rivals += [plain] if plain not in (best, *rivals) else []
    for rival in (r for r in rivals if r in names and r != best):
        said += _against(found, best, rival, roles.get(rival, "the runner-up"), first=rival == rivals[0])
    return [*said, circular]


def _against(found: Competition, best: str, rival: str, role: str, *, first: bool) -> list[str]:
    """The Bayes factor of two structures: its size, whether it keeps to one side and, the first, what each GPU adds."""
    gain, se = found.log_bf(best, rival)
    if not np.isfinite(gain):
        return [f"{_sentence(rival)} ({role}) stayed {OUT_OF_REACH}, so that there is no Bayes factor against it."]
    size = f"Against {rival} ({role}) the log Bayes factor is {plus_minus(gain, se)}"
    if not first:
        return [f"{size}: {factor(gain, se)}.", _kept(found, best, rival)]
    alone = {gpu: found.log_bf(best, rival, gpu=gpu) for gpu in found.gpus}
    sides = {gpu: set(sides_of(*one)) for gpu, one in alone.items()}
    ours, theirs = ([gpu for gpu, own in sides.items() if own == {side}] for side in (1, -1))
    said = [
        f"{size} (two standard errors of the computation): {factor(gain, se)}.",
        f"On the figures of one GPU alone it is {', '.join(f'{g} {plus_minus(*one)}' for g, one in alone.items())}.",
    ]
    if ours and theirs:
        said.append(
            f"The GPUs disagree: the figures of {' and '.join(ours)} speak for {best}, those of "
            f"{' and '.join(theirs)} for {rival}."
        )
    return [*said, _kept(found, best, rival)]


def _kept(found: Competition, best: str, rival: str) -> str:
    """Whether a Bayes factor keeps to one side of 1/3 to 3 whatever the prior scales."""
    known = {scale: found.log_bf(best, rival, scale) for scale in found.scales}
    ordered = sorted((s for s in known if not np.isnan(known[s][0])), key=lambda scale: known[scale][0])
    ends = [f"{plus_minus(*known[scale])} ({scale})" for scale in (ordered[0], ordered[-1])]
    several = len(found.scales) > 1
    over = "over all prior scales" if several else "under the one prior scale that was run"
    told = f", the log from {ends[0]} to {ends[1]}" if several else ""
    match found.verdict(best, rival):
        case "more likely":
            return f"The Bayes factor stays above 3 {over}{told}."
        case "not told apart":
            return f"The Bayes factor stays within 1/3 to 3 {over}{told}: the figures do not tell the two apart."
    return (
        f"Not determined: with two standard errors the Bayes factor does not keep to one side of the band 1/3 to 3 "
        f"{over}{told}."
    )


def notes(found: Competition) -> list[str]:
    """What qualifies the answer on published figures, in sentences."""
    best, reference, indices, scores = found.best, str(REFERENCE), found.indices(), found.scores()
    names = scores["structure"].tolist()
    said = []
    near = [n for n in names if found.verdict(n, best) in ("not told apart", "not determined")]
    if near:
        said.append(f"Against the best, not told apart or not determined: {'; '.join(near)}.")
    if len(indices) > 1 and best != reference:
        one = [f"{i['reading']} {plus_minus(*found.log_bf(best, reference, reading=i['reading']))}" for i in indices]
        said.append(
            f"Likelihoods are averaged over {len(indices)} readings of the study (what its floor is an offset of, with "
            f"a grid and a prior of leftovers each). Under one reading alone the log Bayes factor against {reference} "
            f"is: {'; '.join(one)}."
        )
    if len(indices) == 1:
        said.append(
            f"One reading of the study alone was run ({'; '.join(indices[0].values())}): others may say otherwise."
        )
    others = [scale for scale in found.scales if scale != "default"]
    if others:
        first = {i["reading"] for scale in others for i in found.indices(scale)}
        some = any(not found.logs(name, scale)[0].size for name in names for scale in others)
        only = f", and not for structures that were {OUT_OF_REACH} under the default" if some else ""
        said.append(
            f"Prior scales other than the default ({', '.join(others)}) were run under the first reading only "
            f"({', '.join(sorted(first))}){only}."
        )
    said.append(
        "Standard errors come from few independent repeats of every run and are rough themselves; they hold the error "
        "of the computation alone. Figures pooled over GPUs are left out: they only repeat the rounding of the others."
    )
    if (np.isfinite(scores["log_ml"]) & scores["se"].isna()).any():
        said.append(
            "Unknown error: some repeats of a run arrived at the figures and others did not; no side is taken then."
        )
    if not np.isfinite(scores["log_ml"]).all():
        said.append(
            f"{_sentence(OUT_OF_REACH)}: when its levels were used up, the ladder from the prior to the figures had "
            "not arrived; the widest end of its repeats is given in roundings of the figures (at 1.0 only the change "
            "from normal to uniform errors was left). That is a limit of the computation and no verdict: it does not "
            "make the structure less likely, and is no proof that it cannot give the figures."
        )
    return said


def plus_minus(value: float | None, se: float | None, *, sign: bool = True) -> str:
    """A number and two standard errors; where it has no error, whether a side was out of reach."""
    if value is None or np.isnan(value):
        return "not defined"
    if np.isinf(value):
        return f"{'+' if value > 0 else '-'}∞ ({OUT_OF_REACH})"
    error = "unknown error" if se is None or not np.isfinite(se) else f"± {2.0 * se:.1f}"
    return f"{decimal(value, 1, signed=sign)} {error}"


MOST = np.log(1e4)


def factor(log_bf: float, se: float) -> str:
    """A Bayes factor in words, as precise as two standard errors allow."""
    if np.isnan(se):
        return "by how much the figures are more probable is not known"
    low, high = log_bf - 2.0 * se, log_bf + 2.0 * se
    if low <= 0.0:
        return "no more than the error of the computation"
    if low > MOST:
        return "the figures are more than 10 000 times as probable"
    ends = " to ".join("more than 10 000" if end > MOST else f"{float(f'{np.exp(end):.2g}'):g}" for end in (low, high))
    return f"the figures are {ends} times as probable"


# ---- measured cells ---------------------------------------------------------------------------------------------


def of_comparison(rows: Sequence[Row], chosen: str, overlap: Row) -> str:
    """Which structure measured cells support, and how host and GPU overlap, in a sentence."""
    by_name = {row["name"]: row for row in rows}
    best, study = rows[0], by_name.get(str(STUDY))
    words = f"the data support {chosen}"
    if chosen != best["name"]:
        gap = by_name[chosen]
        words += (
            f", the simplest within reach of the best, {best['name']} "
            f"({-gap['elpd_diff']:.1f} elpd ahead, standard error {gap['dse']:.1f})"
        )
    if study is not None and study["elpd"] is not None and str(STUDY) != chosen:
        words += f"; the study's {STUDY} " + (
            "does about as well"
            if is_close(study)
            else f"predicts worse by {-study['elpd_diff']:.1f} elpd (standard error {study['dse']:.1f})"
        )
    if overlap["structure"] is None:
        return words + "."
    q = overlap["q"]
    if not overlap["identified"]:
        return words + "; how much host and GPU overlap is not identified by these cells."
    measured = f"q {q['mean']:.2f} [{q['low_90']:.2f}, {q['high_90']:.2f}] (1: added, 0: the longer of the two)"
    if q["low_90"] > 1.0:
        return f"{words}; {measured}: steps longer than host and GPU together, a misfit and no overlap."
    kind = "close to none" if q["low_90"] > 0.85 else "close to full" if q["high_90"] < 0.15 else "partial"
    return f"{words}; overlap of host and GPU is {kind}: {measured}."


SMALL_SAMPLE = 100


def warnings_of(rows: Sequence[Row], cells: int) -> list[str]:
    """What qualifies the ranking of structures on so many measured cells."""
    said = []
    if cells < SMALL_SAMPLE:
        said.append(
            f"{cells} cells are fewer than {SMALL_SAMPLE}: standard errors of elpd differences are then too small "
            "and their normal approximation is poor."
        )
    near = [row["name"] for row in rows[1:] if row["elpd"] is not None and -row["elpd_diff"] < CLOSE_ELPD]
    if near:
        said.append(f"Within {CLOSE_ELPD:g} elpd of the best, predictions hardly differ: {'; '.join(near)}.")
    failed = [row["name"] for row in rows if row["elpd"] is None]
    if failed:
        said.append(f"Not compared, since the fit failed its gate: {'; '.join(failed)}.")
    return said


def of_trend(row: Row) -> str:
    """A trend that the chosen structure leaves over; empty where its 90 % interval holds 0."""
    way = "grows" if row["low_90"] > 0 else "falls" if row["high_90"] < 0 else ""
    return way and (
        f"What the chosen structure leaves over {way} with {row['trend']}: {row['slope']:+.2f} "
        f"[{row['low_90']:+.2f}, {row['high_90']:+.2f}] residual sds per sd of it."
    )


def of_noise(row: Row) -> str:
    """Repeats of a cell against what the chosen structure leaves over."""
    if row["repeats"] is None:
        return (
            f"The chosen structure leaves {100 * row['residual']:.1f} % of a step over. No cell was measured twice: "
            "how much of that is measurement noise and how much is wrong in the structure cannot be told."
        )
    return (
        f"Repeats of a cell differ by {100 * row['repeats']:.1f} %, the chosen structure leaves "
        f"{100 * row['residual']:.1f} % over: {100 * row['discrepancy_share']:.0f} % of that variance is not "
        "measurement noise."
    )


def of_likelihoods(row: Row) -> str:
    """Normal against Student-t noise."""
    tail = f"the largest residual has posterior predictive p {row['normal_largest_p']:.2f} under normal noise"
    if "student" in row:
        return f"Normal noise: the fit with Student-t noise failed its gate; {tail}."
    gain = row["student_minus_normal_elpd"]
    verdict = (
        "the residuals have heavy tails, and the structures were compared under normal noise all the same"
        if row["chosen"] == "student"
        else "normal noise stands"
    )
    return (
        f"Student-t noise predicts {'better' if gain > 0 else 'worse'} by {abs(gain):.1f} elpd (standard error "
        f"{row['dse']:.1f}); {tail}, {row['student_largest_p']:.2f} under Student-t noise: {verdict}."
    )


def of_roles(row: Row, clear: bool) -> str:
    """The column of launches as the host's time per launch, or as the GPU's latency per kernel."""
    host, kernel = "a floor of the host that grows with launches", "a latency of every kernel inside T_gpu"
    gain, us = row["elpd_diff"], row["latency_us"]
    verdict = (
        f"the cells speak for {host if gain > 0 else kernel}"
        if clear
        else "the cells cannot tell which of the two it is"
    )
    return (
        "Time per launch may be the host's or the GPU's; only one is free at a time, the other held at zero. "
        f"{host} ({row['launches']}) against {kernel} ({row['latency']}): {gain:+.1f} elpd (standard error "
        f"{row['dse']:.1f}): {verdict}. With the roles exchanged the latency comes out at {us['mean']:.1f} "
        f"[{us['low_90']:.1f}, {us['high_90']:.1f}] us per kernel."
    )


def of_tension(row: Row) -> str:
    """Whether the other models pull a structure's constants away from those of the anchor's cells."""
    name, freedom = row["structure"], row["freedom"]
    if freedom is None:
        return f"{name}: the fit to the anchor's cells failed its gate."
    if not freedom:
        return f"{name}: the other models say nothing on the constants beyond the anchor's cells."
    p, how = (row["p"], "simulated") if row["p"] is not None else (row["p_chi2"], "chi-squared, large samples")
    verdict = "pull the constants away from" if p < 0.05 else "are compatible with"
    return (
        f"{name}: the other models {verdict} the constants of the anchor's cells (transfer tension "
        f"{row['statistic']:.1f} on {freedom} directions, p {p:.3f}, {how})."
    )
