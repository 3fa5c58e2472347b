"""The summary of a report: the verdicts in plain sentences; of a published study, what it prints stands first.

Sentences that begin with "As published" hold printed numbers, in a form that can be held against the study
(`published_words`); what rests on imputed cells says so.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from rooffloor.validate.hypotheses.as_published import RAW, AsPublished
from rooffloor.validate.hypotheses.published_words import MODEL_ONLY, listed, printed
from rooffloor.validate.hypotheses.result import NEGLIGIBLE, SUPPORTED

type Row = Mapping[str, Any]

HIDDEN = 0.999
"""An error of which a free floor takes up this share of the squared effect is hidden."""
KV = "kv_width"
"""The kind of error whose hidden share is told beside those that are hidden wholly."""


def of_tests(tests: Mapping[str, Row]) -> list[str]:
    """Of measured cells: each verdict, and at most four sentences of it; all stand in the section on hypotheses."""
    return [line for name, test in tests.items() for line in (_headline(name, test), *test["sentences"][:4])]


def _headline(name: str, test: Row) -> str:
    return f"{name} is {test['verdict']}: {test['statement']}"


def which_floor(found: Row) -> list[str]:
    """The first sentence of the answer, and whether it is determined at all."""
    if not found["run"]:
        return []
    hedge = next((line for line in found["answer"][1:] if line.startswith("Not determined")), None)
    return [" ".join(["Which floor?", found["answer"][0], *([hedge] if hedge else [])])]


def of_published(
    tests: Mapping[str, Row], facts: AsPublished, reads: Sequence[Row], absorbed: Sequence[Row], hidden: Sequence[Row]
) -> list[str]:
    """Of a published study: what its reader wants to know, as published, then what imputed cells add.

    Parameters
    ----------
    tests : mapping of name to hypothesis
        As in report.json, as are `reads` (structural), `absorbed` (absorption) and `hidden` (hidden_errors).
    """
    said = []
    for name, test in tests.items():
        told = test.get("as_published")
        said += [_headline(name, test), *(told["sentences"] if told else test["sentences"][:4])]
        if name == "H1":
            said += [*_raw(facts), *_absorbed(absorbed, hidden), *_orders(reads)]
    return [*said, *_unprinted(tests), *_in_use(facts)]


def _raw(facts: AsPublished) -> list[str]:
    """The anchor's own error without a floor: whether absolute latency comes free of a fit."""
    found = [
        facts.figures.get(facts.anchor, gpu, RAW) for gpu in facts.gpus if facts.figures.has(facts.anchor, gpu, RAW)
    ]
    if not found:
        return []
    limit = facts.margins.h1_absolute
    off = [figure.gpu for figure in found if figure.value > limit]
    if not off:
        return [f"As published, {printed(found)}: without a floor the anchor itself stays within {limit:g} %."]
    where = "every GPU" if len(off) == len(found) > 1 else listed(off)
    return [
        f"As published, {printed(found)}: without a floor the anchor itself is more than {limit:g} % off on {where}. "
        "Absolute latency is not fit-free."
    ]


def _absorbed(absorbed: Sequence[Row], hidden: Sequence[Row]) -> list[str]:
    """What a scalar takes away, and which errors it would take away as well."""
    shares = [100.0 * row["squared"]["value"] for row in absorbed if row["cells"] > 1]
    if not shares:
        return []
    noise = [100.0 * row["noise_squared"]["value"] for row in absorbed if row["cells"] > 1]
    said = (
        f"What a scalar absorbs (imputed cells): the best constant of each model and GPU removes {_span(shares)} % of "
        f"the squared relative error of T_gpu, and would remove {_span(noise)} % of pure noise."
    )
    seen = [row for row in hidden if row["share_hidden"] is not None and row["share_hidden"] == row["share_hidden"]]
    wholly = [
        label
        for label in dict.fromkeys(row["label"] for row in seen)
        if all(row["share_hidden"] > HIDDEN for row in seen if row["label"] == label)
    ]
    part = [100.0 * row["share_hidden"] for row in seen if row["error"] == KV]
    hides = [*([f"{listed(wholly)} wholly"] if wholly else [])]
    hides += [f"{_span(part)} % of the squared effect of a wrong width of the KV cache"] if part else []
    if hides:
        said += f" A free floor hides {', and '.join(hides)}: a small residual does not prove T_gpu right."
    return [said]


def _span(percents: Sequence[float]) -> str:
    """Shares in percent as a range that claims neither all nor nothing where it is not."""
    low, high = (f"{end:.3g}" if end < 1.0 or end > 99.0 else f"{end:.0f}" for end in (min(percents), max(percents)))
    return low if low == high else f"{low} to {high}"


def _orders(reads: Sequence[Row]) -> list[str]:
    """Orders as printed; that they hold is a fact, what a re-run would show is not told here."""
    facts = [read for read in reads if read.get("as_published")]
    if not facts:
        return []
    held = sum(read["in_order"] for read in facts)
    how = "all hold" if held == len(facts) > 1 else f"{held} of {len(facts)} {'hold' if held != 1 else 'holds'}"
    lead = f"Orders that the shapes predict and one floor for all models cannot make: of those printed, {how}."
    return [lead, *(read["as_published"] for read in facts)]


def _unprinted(tests: Mapping[str, Row]) -> list[str]:
    """Verdicts that rest on imputed cells alone, in one line."""
    told = [f"{name}{key} {part['verdict']}" for name in tests for key, part in tests[name].get("parts", {}).items()]
    told = [one for one in told if not one.startswith("H2a")]
    told += [f"H3 {tests['H3']['verdict']}"] if "H3" in tests else []
    if not told:
        return []
    said = f"Slopes are not printed. On imputed cells: {', '.join(told)}."
    parts = tests.get("H2", {}).get("parts", {})
    already = any(
        MODEL_ONLY in sentence for sentence in tests.get("H2", {}).get("as_published", {}).get("sentences", ())
    )
    if "b" in parts and parts["b"]["verdict"] == NEGLIGIBLE and not already:
        said += f" H2b {NEGLIGIBLE}: {MODEL_ONLY[0].lower()}{MODEL_ONLY[1:]}"
    return [said]


def _in_use(facts: AsPublished) -> list[str]:
    """What to reuse and what to recalibrate, as far as the printed figures go."""
    reuse = [family.family for family in facts.families if family.verdict == SUPPORTED]
    smaller = [pair.model for pair in facts.smaller if pair.diverges(facts.margins)]
    mixed = [p.model for p in facts.mixtures if (p.least_residual() or 0.0) > facts.margins.h1_absolute]
    again = list(dict.fromkeys([*smaller, *mixed]))
    said = [
        *([f"reuse the shape, and the anchor's floor, within the class ({listed(reuse)})"] if reuse else []),
        *([f"recalibrate the floor where size or architecture changes ({listed(again)})"] if again else []),
    ]
    return [f"In use, as far as the printed figures go: {'; '.join(said)}."] if said else []
