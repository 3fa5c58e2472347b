"""The section "Which floor?" of a report: what it says, the record in report.json, and the page.

Published aggregates: the committed competition of structures by the probability that they give the figures
(published/evidence/competition.py). Measured cells: the comparison of structures by how they predict unseen cells
(validate/comparison/comparison.py). The page is made from the record alone.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rooffloor.validate.presentation.blocks import (
    Block,
    Cell,
    Column,
    Fold,
    Image,
    Section,
    Table,
    Text,
    items,
    key_values,
    long_table,
    records,
    text_cell,
)
from rooffloor.validate.presentation.numbers import Record, decimal, label, plain

if TYPE_CHECKING:
    from rooffloor.validate.comparison.comparison import Comparison
    from rooffloor.validate.published.evidence.competition import Competition

TITLE = "Which floor?"
AGGREGATES = "published aggregates"
OUT_OF_REACH = "out of reach"
NOT_RUN = (
    "The competition of floor structures on the published figures was not run: there is no {file} beside the study's "
    "data. It takes hours: rooffloor.validate.published.evidence.competition.run(out=FOLDER), then copy FOLDER/{file} "
    "there."
)
NO_REFITS = "Refits without a model, GPU or pair: only with --full or rooffloor compare."


# ---- the record -------------------------------------------------------------------------------------------------


def published(folder: Path) -> dict[str, Any]:
    """The record of the published study: what the competition beside its data found, or that it was not run."""
    from rooffloor.validate.published.evidence import competition

    if not (folder / competition.TABLE).exists():
        return {"data": AGGREGATES, "run": False, "answer": [NOT_RUN.format(file=competition.TABLE)]}
    return of_competition(competition.load(folder))


def of_competition(found: "Competition") -> dict[str, Any]:
    """The record of a competition on the published figures."""
    return {"data": AGGREGATES, "run": True, "answer": answer(found), "notes": notes(found), **found.data}


def of_comparison(found: "Comparison | None", label: str) -> dict[str, Any]:
    """The record of a comparison on measured cells."""
    if found is None:
        return {"data": label, "run": False, "answer": ["No floor structures were compared: rooffloor compare does."]}
    content = {k: v for k, v in found.data.items() if k not in ("answer", "label")}
    return {"data": label, "run": True, "answer": [_sentence(found.answer)], **content}


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


# ---- the published figures in words -----------------------------------------------------------------------------


def answer(found: "Competition") -> list[str]:
    """Which structure the published figures support, and what that rests on, in sentences."""
    from rooffloor.validate.published.evidence.competition import PLAIN, REFERENCE

    scores = found.scores()
    names, best, reference = scores["structure"].tolist(), found.best, str(REFERENCE)
    reached = int(np.isfinite(scores["log_ml"]).sum())
    circular = (
        "This is a statement about published aggregates, not about cells: each structure is judged by the probability "
        "that it gives the figures. No imputed grid was fitted, since that would favour the structure under which the "
        "grids were imputed."
    )
    if not reached:
        return [f"All {len(names)} floor structures stayed {OUT_OF_REACH} of the published figures.", circular]
    lost = f"; {len(names) - reached} stayed {OUT_OF_REACH}" if reached < len(names) else ""
    own = ", the study's own at its richest" if best == reference else ""
    said = [f"Of {len(names)} floor structures, the published figures are likeliest under {best}{own}{lost}."]
    rivals = [reference if best != reference else next((n for n in names if n != best), best)]
    rivals += [str(PLAIN)] if str(PLAIN) not in (best, *rivals) else []
    for rival in (r for r in rivals if r in names and r != best):
        said += _against(found, best, rival, _role(rival, reference, str(PLAIN)), first=rival == rivals[0])
    return [*said, *_most_moving(found), circular]


def _role(rival: str, reference: str, plain: str) -> str:
    roles = {reference: "the study's own at its richest", plain: "one floor for all models of a GPU"}
    return roles.get(rival, "the runner-up")


def _against(found: "Competition", best: str, rival: str, role: str, *, first: bool) -> list[str]:
    """The Bayes factor of two structures: its size, whether it keeps to one side and, the first, what each GPU adds."""
    gain, se = found.log_bf(best, rival)
    if not np.isfinite(gain):
        return [f"{_sentence(rival)} ({role}) stayed {OUT_OF_REACH}, so that there is no Bayes factor against it."]
    size = f"Against {rival} ({role}) the log Bayes factor is {plus_minus(gain, se)}"
    size += " (two standard errors of the computation)" if first else ""
    parts = [f"{gpu} {plus_minus(*found.log_bf(best, rival, gpu=gpu))}" for gpu in found.gpus]
    alone = [f"On the figures of one GPU alone it is {', '.join(parts)}."] if first else []
    alone += _apart(found, best, rival) if first else []
    return [f"{size}: {factor(gain, se)}.", *alone, _kept(found, best, rival)]


def _apart(found: "Competition", best: str, rival: str) -> list[str]:
    """Which GPUs speak for which of two structures, where they disagree."""
    from rooffloor.validate.published.evidence.competition import sides_of

    sides = {gpu: set(sides_of(*found.log_bf(best, rival, gpu=gpu))) for gpu in found.gpus}
    speak = {side: [gpu for gpu, own in sides.items() if own == {side}] for side in (1, -1)}
    if not speak[1] or not speak[-1]:
        return []
    return [
        f"The GPUs disagree: the figures of {' and '.join(speak[1])} speak for {best}, those of "
        f"{' and '.join(speak[-1])} for {rival}."
    ]


def _kept(found: "Competition", best: str, rival: str) -> str:
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


def _most_moving(found: "Competition") -> list[str]:
    swept = found.influence()
    moved = swept[swept["change"].notna()]
    if moved.empty:
        return []
    top = moved.iloc[0]
    se = plus_minus(top["change"], top["se"]).split(" ", 1)[-1] if np.isfinite(top["change"]) else ""
    name = figure_words(top["figure"])
    gpus = [gpu for gpu in found.gpus if gpu in set(moved["gpu"])]
    of = "" if gpus == found.gpus else f" of the {' and '.join(gpus)} (those of other GPUs were not left out)"
    words = (
        f"The published number{of} that moves {top['first']} against {top['second']} most is {name}: without it "
        f"the log Bayes factor on the figures of the {top['gpu']} would be {signed(top['log_bf_without'])} instead of "
        f"{signed(top['log_bf'])}"
    )
    words += f" (change {signed(top['change'])} {se})" if se else ""
    whole, reading = _swept(found, top)
    if np.isfinite(whole) and np.isfinite(top["change"]):
        words += f", and on all GPUs {signed(whole - top['change'])} instead of {signed(whole)}"
    said = [f"{words}, under the reading {reading!r} and the default prior."]
    error = 2.0 * np.hypot(moved["se"], top["se"]).fillna(np.inf)
    with np.errstate(invalid="ignore"):
        near = moved[(abs(top["change"]) - moved["change"].abs() <= error) & (moved["figure"] != top["figure"])]
    if np.isfinite(top["change"]) and not abs(top["change"]) > 2.0 * top["se"]:
        said.append("That is no more than the error of the computation.")
    if len(near):
        names = ", ".join(f"{figure_words(row.figure)} ({signed(row.change)})" for row in near.itertuples())
        said.append(f"Within two standard errors of the computation, others may move it as much: {names}.")
    unknown = swept[swept["change"].isna()]
    if len(unknown):
        names = ", ".join(figure_words(name) for name in unknown["figure"])
        said.append(f"Not known for {names}: without it the computation did not reach the other figures.")
    return said


def _swept(found: "Competition", top: Any) -> tuple[float, str]:
    """Log Bayes factor of all GPUs under the reading that the sweep was made under, and that reading."""
    reading = str(found.runs[found.runs["left_out"] != ""]["reading"].iloc[0])
    return found.log_bf(top["first"], top["second"], reading=reading)[0], reading


def notes(found: "Competition") -> list[str]:
    """What qualifies the answer, in sentences."""
    from rooffloor.validate.published.evidence.competition import REFERENCE

    best, reference, indices = found.best, str(REFERENCE), found.indices()
    said = []
    names = found.scores()["structure"].tolist()
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
    if len(found.scales) > 1:
        others = [scale for scale in found.scales if scale != "default"]
        first = {i["reading"] for scale in others for i in found.indices(scale)}
        said.append(
            f"Prior scales other than the default ({', '.join(others)}) were run under the first reading only "
            f"({', '.join(sorted(first))}){_only_reached(found, others)}."
        )
    said.append(
        "Standard errors come from few independent repeats of every run and are rough themselves; they hold the error "
        "of the computation alone. Figures pooled over GPUs are left out: they only repeat the rounding of the others."
    )
    scores = found.scores()
    if (np.isfinite(scores["log_ml"]) & scores["se"].isna()).any():
        said.append(
            "Unknown error: some repeats of a run arrived at the figures and others did not; no side is taken then."
        )
    if not np.isfinite(scores["log_ml"]).all():
        said.append(
            f"{_sentence(OUT_OF_REACH)}: when its levels were used up, the ladder from the prior to the figures had "
            "not arrived; the widest end of its repeats is given in roundings of the figures (at 1.0 only the change "
            "from normal to uniform errors was left). The likelihood is then very small, but that is no proof that the "
            "structure cannot give the figures."
        )
    return said


def _only_reached(found: "Competition", scales: Sequence[str]) -> str:
    names = found.scores()["structure"].tolist()
    some = any(not found.logs(name, scale)[0].size for name in names for scale in scales)
    return f", and not for structures that were {OUT_OF_REACH} under the default" if some else ""


def signed(value: float | None) -> str:
    """A log Bayes factor; infinite where one side is out of reach."""
    if value is None or np.isnan(value):
        return "not defined"
    if np.isinf(value):
        return f"{'+' if value > 0 else '-'}∞ ({OUT_OF_REACH})"
    return decimal(value, 1, signed=True)


def plus_minus(value: float | None, se: float | None, *, sign: bool = True) -> str:
    """A number and two standard errors."""
    if value is None or not np.isfinite(value):
        return signed(value)
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


# ---- the page ---------------------------------------------------------------------------------------------------


def section(found: Record | None, image: Callable[[str], tuple[Image, ...]]) -> Section:
    """The section on which floor the data support.

    Parameters
    ----------
    found : mapping or None
        `which_floor` of report.json.
    image : callable(str) -> tuple of Image
        The figure of a key, where there is one.
    """
    figures = (*image("competition"), *image("structures"))
    if not found:
        return Section(TITLE, figures)
    text = Text(" ".join(found["answer"]))
    if not found["run"]:
        return Section(TITLE, (text, *figures))
    body = _competition if found["data"] == AGGREGATES else _comparison
    return Section(TITLE, (text, *figures, *body(found)))


def _competition(found: Record) -> tuple[Block, ...]:
    names = (Column("shared by"), Column("joined"))
    columns = (
        *names,
        Column("log marginal likelihood", "± two standard errors", True),
        *(Column(scale, "log Bayes factor", True) for scale in found["scales"]),
        Column("verdict", "over all prior scales"),
    )
    cells = [
        (
            *_named(row, found["reference"]),
            likelihood_cell(row),
            *(bayes_factor_cell(one, row["name"] == found["reference"]) for one in row["per_scale"]),
            Cell((row["verdict"],), verdict=True),
        )
        for row in found["structures"]
    ]
    caption = f"Floor structures on the published figures, against {found['reference']}, best first"
    return (
        *long_table(caption, columns, cells, heads=2),
        Fold("What the figures of each GPU say", (_per_gpu(found, names),)),
        *_influence(found["influence"]),
        *items(found["notes"]),
    )


def _named(row: Record, reference: str) -> tuple[Cell, Cell]:
    return text_cell(row["shared_by"]), Cell(
        (row["combine"], "the reference") if row["name"] == reference else (row["combine"],)
    )


def _per_gpu(found: Record, names: tuple[Column, ...]) -> Table:
    gpus = [one["gpu"] for one in found["structures"][0]["per_gpu"]]
    columns = [*names, *(Column(gpu, "log marginal likelihood", True) for gpu in gpus)]
    columns += [Column(gpu, "log Bayes factor", True) for gpu in gpus]
    rows = [
        (
            *_named(row, found["reference"]),
            *(likelihood_cell(one) for one in row["per_gpu"]),
            *(bayes_factor_cell(one, row["name"] == found["reference"]) for one in row["per_gpu"]),
        )
        for row in found["structures"]
    ]
    return Table("Each GPU's figures alone, default prior", tuple(columns), tuple(rows), heads=2)


def likelihood_cell(row: Record) -> Cell:
    """A log marginal likelihood with two standard errors, or that it was out of reach."""
    if row["log_ml"] is not None:
        return Cell((plus_minus(row["log_ml"], row["se"], sign=False),))
    width = row.get("ended_at")
    return Cell((OUT_OF_REACH, *([f"ended at {width:.1f} roundings"] if width is not None else [])))


def bayes_factor_cell(one: Record, reference: bool) -> Cell:
    """A log Bayes factor against the reference, which has none against itself."""
    if reference:
        return text_cell(None)
    if not one.get("run", True):
        return Cell(("not run",))
    if one["log_bf"] is not None:
        return Cell((plus_minus(one["log_bf"], one["log_bf_se"]),))
    return Cell((OUT_OF_REACH if one["log_ml"] is None else f"reference {OUT_OF_REACH}",))


MOST_MOVING = 6
"""Published numbers that are shown with what they change; the others are folded away."""


def figure_words(name: str) -> str:
    """A published figure as words: its row's name is a quantity, a model and a GPU."""
    quantity, _, where = name.partition(" ")
    return f"{label(quantity).replace('mape', 'MAPE')} {where}".strip()


def _influence(rows: Sequence[Record]) -> tuple[Block, ...]:
    if not rows:
        return ()
    columns = (
        Column("published number left out"),
        Column("GPU"),
        Column("log Bayes factor with it", "figures of this GPU", True),
        Column("without it", "figures of this GPU", True),
        Column("change", "± two standard errors", True),
    )
    cells = [
        (
            text_cell(figure_words(row["figure"])),
            text_cell(row["gpu"]),
            *(Cell((OUT_OF_REACH if row[k] is None else signed(row[k]),)) for k in ("log_bf", "log_bf_without")),
            Cell((OUT_OF_REACH if row["change"] is None else plus_minus(row["change"], row["se"]),)),
        )
        for row in rows
    ]
    caption = f"What single published numbers add in favour of {rows[0]['first']} against {rows[0]['second']}"
    rest = cells[MOST_MOVING:]
    more = (Fold(f"The {len(rest)} others", (Table(f"{caption} (continued)", columns, tuple(rest)),)),) if rest else ()
    return (Table(caption, columns, tuple(cells[:MOST_MOVING])), *more)


KNOWN = {"data", "run", "answer", "structures", "chosen", "overlap", "leftover", "left_out", "warnings", "cells"}
"""What the page of measured cells has a place for."""
MOST_OPEN = 8
"""Rows of a table without a place that are shown open."""


def _comparison(found: Record) -> tuple[Block, ...]:
    """Measured cells; keys that this page does not know are shown as they are."""
    others = {k: v for k, v in found.items() if k not in KNOWN and v not in (None, [], {}, "")}
    return (
        _structures(found),
        *_overlap(found["overlap"]),
        *[block for key, value in others.items() for block in anything(key, value, found["chosen"])],
        *_leftover(found["leftover"]),
        *_left_out(found["left_out"]),
        *items(f"Warning: {warning}" for warning in found["warnings"]),
    )


def anything(key: str, value: object, chosen: str = "") -> tuple[Block, ...]:
    """A value of a key without a place: its sentences open, what they rest on folded.

    Of rows with a sentence each, those of the chosen structure are open where there are any.
    """
    title = _sentence(label(key))
    if isinstance(value, Mapping):
        numbers = key_values({k: v for k, v in value.items() if k != "sentence"}, title)
        return (*([Text(value["sentence"]), Fold(title, numbers)] if "sentence" in value else numbers),)
    if isinstance(value, list) and all(isinstance(v, Mapping) for v in value):
        said = [row for row in value if "sentence" in row]
        first = [row for row in said if row.get("structure") == chosen] or said
        numbers = records(
            title, [{k: v for k, v in row.items() if k != "sentence" or row not in first} for row in value]
        )
        fold = len(value) > MOST_OPEN or bool(said)
        return (*items(row["sentence"] for row in first), *((Fold(title, numbers),) if fold else numbers))
    if isinstance(value, list) and all(isinstance(v, str) for v in value):
        return items(value)
    return (Text(f"{title}: {plain(value)}."),)


def _structures(found: Record) -> Table:
    columns = (
        Column("structure"),
        Column("parameters", "of the floor", True),
        Column("elpd", numeric=True),
        Column("difference", "from the best, ± standard error", True),
        Column("weight", "of a stacked prediction", True),
        Column("gate"),
    )

    def cells(row: Record) -> tuple[Cell, ...]:
        gap = None if row["elpd"] is None else f"{decimal(row['elpd_diff'], 1)} ± {decimal(row['dse'], 1)}"
        weight = decimal(row["weight"], unit="probability")
        return (
            Cell((row["name"], "chosen") if row["name"] == found["chosen"] else (row["name"],)),
            text_cell(row["parameters"]),
            Cell((decimal(row["elpd"], 1),)),
            text_cell(gap),
            Cell((weight,)),
            Cell((row["gate"] if row["elpd"] is not None else f"failed: {row['gate']}",)),
        )

    caption = f"Floor structures on {found['cells']} {found['data']} cells, best first (log score of unseen cells)"
    return Table(caption, columns, tuple(cells(row) for row in found["structures"]))


def _overlap(found: Record) -> tuple[Block, ...]:
    if found.get("structure") is None:
        return (Text("No structure that frees the overlap passed its gate: nothing is said of the overlap."),)
    q, p = found["q"], found["p"]
    known = (
        "These cells identify it: its posterior sd is at most half of its prior sd."
        if found["identified"]
        else "It is not identified: its posterior sd exceeds half of its prior sd."
    )
    ends = [decimal(p[k], 1) if p[k] is not None and np.isfinite(p[k]) else "∞" for k in ("low_90", "high_90")]
    share = found["informative_share"]
    informs = (
        ""
        if share is None or np.isnan(share)
        else f" {100 * share:.0f} % of the cells inform it (T between a third and three times H)."
    )
    return (
        Text(
            f"Overlap under {found['structure']}: q = {decimal(q['mean'])} [{decimal(q['low_90'])}, "
            f"{decimal(q['high_90'])}] (90 %; 1: added, 0: the longer of the two), as a power p = 1/q "
            f"{decimal(p['median'], 1)} [{', '.join(ends)}]. {known}{informs} Probability of q above 1, a misfit: "
            f"{decimal(found['misfit'], unit='probability')}."
        ),
    )


def _leftover(rows: Sequence[Record]) -> tuple[Block, ...]:
    columns = (
        Column("trend over"),
        Column("slope", "sd of the noise per sd of the trend", True),
        Column("90 %", "", True),
    )
    cells = [
        (
            text_cell(row["trend"]),
            Cell((decimal(row["slope"], signed=True),)),
            Cell((f"[{decimal(row['low_90'], signed=True)}, {decimal(row['high_90'], signed=True)}]",)),
        )
        for row in rows
    ]
    return long_table("What the chosen structure leaves over", columns, cells)


def _left_out(rows: Sequence[Record]) -> tuple[Block, ...]:
    if not rows:
        return (Text(NO_REFITS),)
    columns = (
        Column("structure"),
        Column("left out"),
        Column("cells", numeric=True),
        Column("within 50 %", "share of the cells", True),
        Column("within 90 %", "share of the cells", True),
        Column("width of 90 %", "share of the step", True),
        Column("joint log score", numeric=True),
        Column("baseline", "no model of the hardware", True),
        Column("gate"),
    )
    cells = [
        (
            text_cell(row["structure"]),
            text_cell(row["left_out"]),
            text_cell(row["cells"]),
            *(Cell((decimal(row[k]),)) for k in ("coverage_50", "coverage_90", "relative_width_90")),
            *(Cell((decimal(row[k], 1),)) for k in ("log_score", "baseline_log_score")),
            Cell(("passed" if row["passed"] else "failed",)),
        )
        for row in rows
    ]
    caption = "Refits without each model, GPU and pair; cells of one fold share a floor and stand or fall together"
    return long_table(caption, columns, cells, heads=2)
