"""report.html, report.md, the terminal summary and the JSON Schema, on a small made-up report."""

import copy
import functools
import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from matplotlib.figure import Figure

from rooffloor.validate.common.files import json_dumps
from rooffloor.validate.estimates.cell_draws import IMPUTED, MEASURED
from rooffloor.validate.estimates.metrics import AS_MEASURED, EXPECTED, RERUN
from rooffloor.validate.presentation import numbers as formatting
from rooffloor.validate.presentation import writers
from rooffloor.validate.reporting import pages
from rooffloor.validate.reporting.figures import FIGURES
from rooffloor.validate.reporting.sections import hypotheses as hypotheses_section

SCHEMA = json.loads((Path(pages.__file__).parent / "schemas" / "report.schema.json").read_text())
HOSTILE = '<script>alert("x")</script>|*b* `c` [d](javascript:e)'


def estimate(
    value: float | None, unit: str, estimand: str = "made up", *, spread: float | None = 1.0, mcse: float | None = 0.001
) -> dict[str, Any]:
    """An estimate with intervals `spread` and 2 `spread` to both sides; `spread` None: a measured number."""
    intervals = {}
    if spread is not None and value is not None:
        intervals = {"50": [value - spread, value + spread], "90": [value - 2 * spread, value + 2 * spread]}
    return {"value": value, "estimand": estimand, "unit": unit, "intervals": intervals, "mcse": mcse}


def probability(value: float, of: str = "P(made up)") -> dict[str, Any]:
    return estimate(value, "probability", of, spread=None)


def table(model: str, *, imputed: bool) -> list[dict[str, Any]]:
    spread = 0.4 if imputed else None

    def mape(level: float) -> dict[str, Any]:
        return {
            "as_measured": estimate(level, "percent", AS_MEASURED, spread=spread, mcse=0.001 if imputed else None),
            "expected": estimate(level + 0.3, "percent", EXPECTED),
            "rerun": estimate(level + 0.8, "percent", RERUN, spread=1.7),
        }

    rows = []
    for name, levels in (("Llama-3.1-8B", (15.9, 8.0)), (model, (14.94, 5.83)), ("Llama-3.2-1B", (50.4, 21.8))):
        for shift, gpu in enumerate(("H100", "A100-40GB", "pooled")):
            raw, residual = (level + shift for level in levels)
            anchored = gpu != "A100-40GB" or imputed
            rows.append(
                {
                    "model": name,
                    "gpu": gpu,
                    "cells": 15,
                    "raw": mape(raw),
                    "residual": mape(residual) if anchored else None,
                    "signed": {
                        "raw": estimate(-raw, "percent", "signed", spread=None) if gpu != "pooled" else None,
                        "residual": estimate(1.5, "percent", "signed") if anchored and gpu != "pooled" else None,
                    },
                    "published": {"raw": None if gpu == "pooled" else raw, "residual": residual} if imputed else None,
                }
            )
    return rows


def absorption(model: str) -> list[dict[str, Any]]:
    def share(level: float, *, simulated: bool = False) -> dict[str, Any]:
        made = estimate(level, "1", "share", spread=0.02)
        return made | {"intervals": {"90": made["intervals"]["90"]}} if simulated else made

    return [
        {
            "model": model,
            "gpu": gpu,
            "cells": 15,
            "squared": share(level),
            "absolute": share(0.5),
            "noise_squared": share(0.07, simulated=True),
            "noise_absolute": share(0.05, simulated=True),
            "left": estimate(7.9, "percent", "MAPE under the best scalar"),
        }
        for gpu, level in (("H100", 0.69), ("A100-40GB", 0.08))
    ]


def hidden_errors(model: str) -> list[dict[str, Any]]:
    """One error that is hidden wholly, one that no cell depends on, one that shows."""
    nan, inf = float("nan"), float("inf")
    kinds = (
        ("missing_kernel", "a missing kernel", "µs per layer", 1.0, inf, 25.0, (None, None, inf)),
        ("eta_tc", "a wrong ceiling", "percent", nan, inf, inf, (256.0, 512.0, 53.0)),
        ("eta_fa", "a wrong bandwidth", "percent", 0.301, 57.0, 47.6, (128.0, 1024.0, 38.5)),
        ("eta_bw", "weights", "percent", 0.99999, 2e5, 12.0, (256.0, 512.0, 1.3e4)),
    )
    return [
        {
            "model": model,
            "gpu": gpu,
            "error": error,
            "label": label,
            "unit": unit,
            "share_hidden": share,
            "floor_shift": -0.01,
            "detectable": size,
            "detectable_known_floor": known,
            "best_batch": batch,
            "best_context": context,
            "detectable_with_it": with_it,
        }
        for gpu in ("H100", "A100-40GB")
        for error, label, unit, share, size, known, (batch, context, with_it) in kinds
    ]


def frequentist(sets: int = 20) -> dict[str, Any]:
    def test(name: str, p: float | None, *, pseudo: bool = False, note: str = "") -> dict[str, Any]:
        numbers = {"df": None if pseudo else 1.0, "p_value": p, "below": None if p is None else 0.25, "estimate": -1.75}
        return {"name": name, **numbers, "pseudo_replicated": pseudo, "note": note}

    return {
        "quantity": "mean difference of absolute relative errors",
        "margin": 2.0,
        "gpus": ["H100", "A100-40GB"],
        "clusters": {"H100": "GH100", "A100-40GB": "GA100"},
        "cells": 30,
        "data_sets": sets,
        "tests": {
            "t_per_gpu": test("t on per-GPU differences", 0.0312),
            "wald_slope_by_cluster": test("Wald test of slope 1", 0.45, note="two-sided: a small p-value speaks"),
            "two_way_t": test("two-way t", None, note="no spread to judge by"),
            "tost_cells": test("cell-level one-sided t", 0.0001, pseudo=True, note="pseudo-replicated: of no use"),
        },
    }


def hypotheses(model: str) -> dict[str, Any]:
    slope = {
        "slope": estimate(1.04, "1", "slope of y on T_gpu with a free offset", spread=0.05),
        "slope_in_rope": probability(0.88, "P(slope within 1 +- 0.12)"),
        "varying_share": 0.4321,
    }
    family = {
        "family": model,
        "verdict": "supported",
        "sentences": [f"{model}: the sentence of the family."],
        "probability": probability(0.998),
        "absolute_probability": probability(0.97),
        "difference": estimate(-2.9, "points", "the same, mean over GPUs"),
        "per_sku": [
            {
                "gpu": gpu,
                "probability": probability(0.93, "P(difference < 2 points)"),
                "absolute_probability": probability(0.99, "P(residual MAPE < 10 %)"),
                "difference": estimate(-2.2, "points", "family minus anchor"),
                "level": estimate(5.8, "percent", "expected residual MAPE under the anchor's floor"),
                **slope,
            }
            for gpu in ("H100", "A100-40GB")
        ],
        "joint": probability(0.64, "P(difference < 2 on every GPU)"),
        "by_die": 0.9435,
        "frequentist": frequentist(),
        "margins": [{"margin": m, "probability": p, "on H100": p} for m, p in ((0.0, 0.7), (2.0, 0.9), (5.0, 1.0))],
    }

    def part(verdict: str, **numbers: Any) -> dict[str, Any]:
        row = {"model": "Qwen1.5-MoE-A2.7B", "gpu": "H100", "verdict": verdict, **numbers}
        return {
            "verdict": verdict,
            "as_reported": verdict,
            "sentences": [f"The part is {verdict}."],
            "per_sku": [row],
        }

    def told(name: str, first: str) -> dict[str, Any]:
        return {"as_reported": first, "robustness": [f"{name} is {first} as reported."], "error_rates": []}

    joined = {"q": 1.0, "error": estimate(-23.9, "percent", "relative error, floor H >= 0"), "p": 0.0312}
    corner = {"batch": 16.0, "context": 8192.0, "error": estimate(34.6, "percent"), "joined": {"added": joined}}
    return {
        "H1": {
            "verdict": "supported",
            **told("H1", "supported"),
            "statement": "The GPU-compute branch transfers.",
            "sentences": family["sentences"],
            "families": [family],
        },
        "H2": {
            "verdict": "refuted",
            **told("H2a", "refuted"),
            "statement": "So does that of a mixture of experts.",
            "sentences": ["The part is refuted."],
            "parts": {
                "a": part("refuted", probability=probability(0.001), level=estimate(77.0, "percent")),
                "b": part(
                    "negligible", term=estimate(0.004, "ms", spread=0.001, mcse=1e-5), kappa_sd=21.3, detectable_ms=0.4
                ),
                "c": part("undecided", **slope, corner=corner),
            },
        },
        "H3": {
            "verdict": "undecided",
            **told("H3", "supported"),
            "statement": "The floor is the reason.",
            "sentences": ["A sentence on H3.", "H3 is supported as reported."],
            "per_sku": [
                {
                    "model": "Llama-3.2-1B",
                    "gpu": "A100-40GB",
                    "verdict": "undecided",
                    **slope,
                    "weights": {"as stated": {"offset only": 0.6123, "scale only": 0.0001, "both": 0.3876}},
                    "cos2": 0.991,
                    "own_level": estimate(6.1, "percent", "each cell left out in turn"),
                    "calibrated_elsewhere": {"few": estimate(9.4, "percent", "floor from 3 cells"), "contexts": None},
                    "offset_slope": {
                        "mean": [5.1, 0.9],
                        "covariance": [[1.5, -0.3], [-0.3, 0.0625]],
                        "cos2": 0.991,
                        "mean_gpu_ms": 3.25,
                    },
                }
            ],
        },
    }


def as_published(tests: dict[str, Any], model: str) -> dict[str, Any]:
    """The hypotheses of a published study: what it prints beside the tests on imputed cells."""
    per_sku = [
        {"gpu": gpu, "residual": 5.8, "anchor_residual": 8.0, "difference": -2.2, "probability": probability(0.999)}
        for gpu in ("H100", "A100-40GB")
    ]
    test = {"statistic": -5.7, "df": 1.0, "p_value": 0.0145, "estimate": -2.9, "standard_error": 0.85, "note": ""}
    family = {
        "family": model,
        "anchor": "Llama-3.1-8B",
        "verdict": "supported",
        "probability": probability(0.991),
        "absolute_probability": probability(0.988),
        "mean_difference": -2.9,
        "per_sku": per_sku,
        "tests": {"t_per_gpu": test, "t_per_die": {**test, "p_value": None, "df": None, "note": "no test"}},
        "margins": [{"margin": 2.0, "probability": 0.99, "on H100": 1.0}],
    }
    pair = dict.fromkeys(("raw", "self_floor", "self_mape", "anchor_offset", "step", "dispatch", "cell"))
    pair |= {"model": "Llama-3.2-1B", "gpu": "A100-40GB", "residual": 71.2}
    first, third = (f"As published, {name} says something." for name in ("H1", "H3"))
    tests["H1"] |= {
        "as_published": {"families": [family], "sentences": [first], "error_rates": ["The printed test errs rarely."]},
        "refitted": "undecided",
        "sentences": [first, *tests["H1"]["sentences"]],
    }
    tests["H3"] |= {
        "as_published": {"pairs": [pair], "sentences": [third]},
        "refitted": "supported",
        "sentences": [third, *tests["H3"]["sentences"]],
    }
    for row in (*tests["H1"]["families"][0]["per_sku"], *tests["H3"]["per_sku"]):
        row["published_residual"] = 21.8
    return tests


def robustness() -> dict[str, Any]:
    """The primary row, one choice that turns H3, and two cells left out, one of which softens H2c."""
    verdicts = {"H1": "supported", "H2a": "refuted", "H2b": "negligible", "H2c": "undecided", "H3": "supported"}
    return {
        "rows": [
            {"kind": "primary", "name": "as reported", **verdicts},
            {"kind": "GPU left out", "name": "H100", **verdicts, "H3": "refuted"},
            {"kind": "cell left out", "name": "B = 1, L = 512", **verdicts},
            {"kind": "cell left out", "name": "B = 2, L = 512", **verdicts, "H2c": "refuted"},
        ],
        "settled": {
            name: {
                "verdict": "undecided" if name == "H3" else verdict,
                "turned": ["GPU left out: H100"] if name == "H3" else [],
                "softened": [],
                "sentence": f"The sentence on whether {name} stands.",
            }
            for name, verdict in verdicts.items()
        },
    }


def floors(model: str, *, imputed: bool) -> dict[str, Any]:
    own = {
        "model": "Llama-3.2-1B",
        "gpu": "A100-40GB",
        "published": 5.65,
        "reading": estimate(5.65, "ms", "median of y - T", spread=0.002),
        "floor": estimate(4.4, "ms", "floor"),
        "why": "The study's reading over-predicts almost every cell.",
    }
    return {
        "by_class": [{"gpu": "H100", "class": "dense 5-10B", "floor": estimate(1.6, "ms", "floor", spread=0.2)}],
        "by_model": [{"gpu": "H100", "model": model, "floor": estimate(-0.0, "ms", "floor")}],
        "self_floors": [own] if imputed else [],
    }


def which_floor(model: str, *, imputed: bool) -> dict[str, Any]:
    """The record of a competition on published figures, or of a comparison on measured cells."""
    answer = [f"The data support the floor of {model}."]
    if imputed:
        judged = {"log_ml": -40.1, "se": 0.2, "log_bf": 3.4, "log_bf_se": 0.3}
        lost = dict.fromkeys(judged)
        rows = [
            {
                "name": f"floor of {model}" if numbers is judged else "no floor",
                "shared_by": model,
                "combine": "added",
                "log_ml": numbers["log_ml"],
                "se": numbers["se"],
                "per_gpu": [{"gpu": gpu, **numbers, "ended_at": 1.31} for gpu in ("H100", "A100-40GB")],
                "per_scale": [{"scale": scale, **numbers} for scale in ("default", "floors halved")],
                "verdict": "not determined" if numbers is judged else "less likely",
                "verdict_against_best": "the same" if numbers is judged else "less likely",
            }
            for numbers in (judged, lost)
        ]
        return {
            "data": "published aggregates",
            "run": True,
            "answer": answer,
            "notes": [f"Out of reach: {model}."],
            "reference": "another",
            "best": rows[0]["name"],
            "structures": rows,
            "readings": [{"grid": "5 x 3", "reading": "median", "discrepancy": "narrow", **judged}],
            "scales": ["default", "floors halved"],
        }
    row = {"name": f"floor of {model}", "parameters": 3, "elpd": 12.3456, "elpd_diff": 0.0, "dse": 0.0, "weight": 0.8}
    return {
        "data": MEASURED,
        "run": True,
        "answer": answer,
        "structures": [
            row | {"gate": "passed"},
            row | {"name": "no floor", **dict.fromkeys(("elpd", "elpd_diff", "dse", "weight")), "gate": "R-hat 1.2"},
        ],
        "chosen": row["name"],
        "overlap": {
            "structure": row["name"],
            "q": {"mean": 0.41, "sd": 0.1, "low_90": 0.0, "high_90": 0.61},
            "p": {"median": 2.4, "low_90": 1.6, "high_90": None},
            "identified": False,
            "misfit": 0.001,
            "informative_share": 0.4321,
        },
        "left_out": [],
        "leftover": [{"trend": "log batch", "slope": 0.01, "low_90": -0.2, "high_90": 0.22}],
        "likelihood": {},
        "warnings": [f"A warning on {model}."],
        "cells": 45,
        "roles": [f"The launches of {model} are on the floor's side."],
        "constants": [{"structure": row["name"], "constant": "eta_bw", "gpu": "H100", "joint": 0.7712, "cut": 0.7654}],
    }


def sample(*, imputed: bool = True, model: str = "Qwen2.5-7B") -> dict[str, Any]:
    """A report's dict as record.py builds it: of the published study, or of a measured file."""
    label = IMPUTED if imputed else MEASURED
    parts = {
        "weights": estimate(6.1, "ms"),
        "kv": estimate(1.0, "ms"),
        "other": estimate(0.2, "ms"),
        "floor": estimate(1.6, "ms"),
        "leftover": estimate(-0.1, "ms", spread=None, mcse=None),
    }
    fit = {"rhat": 1.003, "ess_bulk": 812.0, "ess_tail": 640.5, "divergences": 0, "ebfmi": 0.93, "attempts": 1}
    diagnostics = {
        "fits": [{"name": "fit 1", **fit, "passed": True}, {"name": "fit 2", **fit, "passed": False}],
        "recomputed": {"fits": 20, "largest difference in MCSE": 1.4} if imputed else None,
    }
    odd = {"row": 7, "model": model, "gpu": "H100", "batch": 64, "context": 1024.0}
    index = {"grid": "5 x 3", "reading": "median", "roof": "c", "discrepancy": "narrow", "gpus": ["H100", "H200"]}
    arrived = {
        "feasible": True,
        "least_misfit": 0.0,
        "worst_figure": "",
        "arrived": 0.8,
        "log_ml": -50.1,
        "acceptance": 0.77,
    }
    stuck = {"feasible": False, "least_misfit": 3.21, "worst_figure": "self_floor_mape", "arrived": 0.0, "log_ml": None}
    figure = {
        "model": model,
        "gpu": "H100",
        "quantity": "raw_mape",
        "published": 15.0,
        "unit": "percent",
        "conditioned_on": True,
        "imputed": 15.012345,
        "share_within": 1.0,
        "mean_misfit": 0.0123,
    }
    facts = [
        ("Llama-3.1-8B/H100: mean 1/y", "The mean of 1/y is 0.05 to 0.1 per ms."),
        ("Llama-3.1-8B/H100: mean T/y", "T_gpu is 84 to 99 % of the step."),
        ("rise at batch 1 from 512 to 8192", f"The rise of {model} is possible."),
    ]
    variant = {
        "table": table(model, imputed=imputed),
        "floors": floors(model, imputed=imputed),
        "hypotheses": hypotheses(model),
        "efficiency": [{"constant": "eta_bw", "gpu": "H100", "estimate": estimate(0.84, "1", spread=0.01)}],
    }
    return {
        "schema_version": "1",
        "status": {"label": label, "sentences": ["No cell was seen; trust orders, not decimals."]},
        "study": {
            "name": "a-study",
            "hash": "0a1b2c",
            "anchor": "Llama-3.1-8B",
            "margins": {
                "h1_points": 2.0,
                "h1_absolute": 10.0,
                "slope_rope": 0.12,
                "dispatch_percent": 1.0,
                "probability": 0.95,
                "label": "post hoc" if imputed else "fixed beforehand",
            },
            "data_file": "steps.csv",
            "format": "schema",
            "stack": None if imputed else "vLLM",
            "mode": "eager",
            "structure": "added, signed, per GPU and class",
            "constants": "cut",
        },
        "summary": [f"H1 is supported for {model}."],
        "absorption": absorption(model),
        "hidden_errors": hidden_errors(model),
        "table": table(model, imputed=imputed),
        "floors": floors(model, imputed=imputed),
        "which_floor": which_floor(model, imputed=imputed),
        "sensitivity": [
            {
                "quantity": f"floor of {model} less the anchor's on H100",
                "prior": 0.08,
                "likelihood": 0.2,
                "components": {"floors": 0.08, "noise": 0.01},
                "diagnosis": "prior-data conflict",
            }
        ],
        "hypotheses": as_published(hypotheses(model), model) if imputed else hypotheses(model),
        "robustness": robustness(),
        "breakdown": [
            {"model": m, "gpu": "H100", "group": g, "step": estimate(9.0, "ms", "mean step"), "parts": parts}
            for m in ("Llama-3.2-1B", model)
            for g in ("B = 1", "all cells")
        ],
        "structural": [
            {
                "name": "Small-batch order",
                "statement": "The order of the steps is that of the sizes.",
                "as_published": "As published, the order is that of the sizes." if imputed else None,
                "in_order": True,
                "probability": probability(0.981) if imputed else None,
                "rerun": probability(0.7),
                "rerun_sentence": "A re-run would show it less surely.",
                "concordant": estimate(0.9, "1", "share of pairs", spread=0.05),
                "rows": [
                    {
                        "label": model,
                        "value": estimate(8.72, "ms", "step"),
                        "published": 8.7 if imputed else None,
                        "below_peak": probability(0.02),
                    }
                ],
            }
        ],
        "aggregates": [
            {
                "name": name,
                "statement": statement,
                "assumptions": ["y > 0"],
                "method": "interval algebra",
                "figures": ["raw_mape"],
            }
            for name, statement in facts
        ]
        if imputed
        else [],
        "reconstruction": {
            "grids": 200,
            "indices": [
                {**index, **arrived, "rhat": 1.01, "ess": 512.0},
                {**index, **arrived, "rhat": 1.0, "ess": 500.0, "roof": "b"},
                {**index, **stuck, "gpus": "A100-40GB", "acceptance": None, "rhat": None, "ess": None},
            ],
            "figures": [figure, {**figure, "gpu": "H200", "share_within": 0.25}],
            "acceptance": [{"kind": "mean step", "in_50": 0.48, "in_90": 0.91, "number": 40}],
        }
        if imputed
        else None,
        "variants": [
            {"name": "cut", "primary": True, **variant},
            {"name": "joint", "primary": False, **variant},
        ],
        "excluded": [] if imputed else [{**odd, "reason": "memory", "detail": "needs 45 GB"}],
        "flagged": [] if imputed else [{**odd, "reason": "falls by over 5 % with batch", "neighbour": "batch 32"}],
        "without_flagged": None
        if imputed
        else {"grids": [f"{model} on H100"], "table": table(model, imputed=False), "hypotheses": hypotheses(model)},
        "assumptions": ["One measurement a cell: noise and discrepancy cannot be told apart."],
        "warnings": [f"{model} is a warning."],
        "diagnostics": diagnostics,
        "provenance": {"data": "steps.csv", "sha256": "ab" * 32, "rows": 45, "models": ["a", "b"]},
    }


def plot() -> Figure:
    figure = Figure(figsize=(2, 1))
    figure.subplots().plot([1, 2])
    return figure


@functools.cache
def plots() -> dict[str, bytes]:
    return dict.fromkeys(FIGURES, writers.image(plot()))


VOID = {"meta", "img", "br"}


class Page(HTMLParser):
    """Reads a page strictly: every tag is closed in turn; keeps headings, figures, links, ids and text."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if data.strip():
            self.texts.append((self.open[-1] if self.open else "", " ".join(data.split())))

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]

    def said(self, tag: str) -> list[str]:
        return [text for name, text in self.texts if name == tag]

    @property
    def text(self) -> str:
        return " ".join(text for name, text in self.texts if name != "style")


@pytest.fixture(scope="module", params=[True, False], ids=["imputed", "measured"])
def data(request: pytest.FixtureRequest) -> dict[str, Any]:
    return sample(imputed=request.param, model=HOSTILE)


@pytest.fixture(scope="module")
def page(data: dict[str, Any]) -> str:
    return pages.html(data, plots())


# ---- HTML -------------------------------------------------------------------------------------------------------


def test_page_is_well_formed_and_stands_alone(page: str) -> None:
    parsed = Page(page)
    assert "<!DOCTYPE html>" in page[:20]
    assert not re.search(r"https?:|//[a-z]|url\(|@import", re.sub(r"base64,[^\"]*", "", page))
    assert {tag for tag, _ in parsed.tags}.isdisjoint({"script", "link", "iframe", "object"})
    assert all(a["src"].startswith("data:image/png;base64,") for a in parsed.all("img"))  # type: ignore[union-attr]
    ids = [a["id"] for _, a in parsed.tags if "id" in a]
    assert len(ids) == len(set(ids))
    assert {a["href"] for a in parsed.all("a")} <= {f"#{i}" for i in ids}


def test_headings_are_nested(page: str) -> None:
    levels = [int(tag[1]) for tag, _ in Page(page).tags if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(later <= earlier + 1 for earlier, later in pairwise(levels))
    assert max(levels) >= 4


def test_contents_name_every_section(page: str) -> None:
    parsed = Page(page)
    assert parsed.said("a") == parsed.said("h2")
    assert len(parsed.said("a")) > 8


def test_figures_have_alternative_text_and_a_caption_with_the_data_label(page: str, data: dict[str, Any]) -> None:
    parsed = Page(page)
    assert len(parsed.all("img")) == len(parsed.said("figcaption")) == len(FIGURES)
    assert all(len(a["alt"] or "") > 20 for a in parsed.all("img"))
    for caption in parsed.said("figcaption"):
        of = "simulated studies, none of them this one" if "in studies that were simulated" in caption else None
        assert f"Data: {of or data['status']['label']}." in caption
    assert all("interval" in caption for caption in parsed.said("figcaption"))


def test_hostile_names_are_shown_and_do_nothing(page: str) -> None:
    assert "<script" not in page
    assert f"H1 is supported for {HOSTILE}." in Page(page).text


def test_everything_of_the_report_is_told(data: dict[str, Any]) -> None:
    told = Page(pages.html(data, plots())).text
    written = pages.markdown(data, plots())
    for sentence in (
        *data["status"]["sentences"],
        *data["assumptions"],
        data["hypotheses"]["H3"]["statement"],
        data["diagnostics"]["fits"][1]["name"],
        data["provenance"]["sha256"],
        "B = 128, L = 1024",
        "offset only",
        "joint",
        "50 %: [5.13, 7.13]",
        "P(slope within 1 +- 0.12)",
        "Share of pairs in that order: 0.90 [0.80, 1.00].",
    ):
        assert sentence in told
        assert sentence in written


def test_banner_carries_label_and_status_before_all_else(page: str, data: dict[str, Any]) -> None:
    start = Page(page[: page.index("<nav")] + "</body></html>").text
    assert f"Data: {data['status']['label']}" in start
    assert data["status"]["sentences"][0] in start


def test_sections_without_content_are_left_out() -> None:
    imputed = Page(pages.html(sample(), {})).said("h2")
    measured = Page(pages.html(sample(imputed=False), {})).said("h2")
    both = set(imputed) & set(measured)
    assert set(imputed) - both == {"What the published aggregates alone exclude", "Imputed grids"}
    assert set(measured) - both == {"Excluded and flagged cells"}
    assert "Measured against predicted" not in both  # only a figure, and there is none
    bare = sample(imputed=False) | {"structural": [], "breakdown": [], "warnings": [], "variants": []}
    assert not {"Structural reads", "Breakdown", "Warnings"} & set(Page(pages.html(bare, {})).said("h2"))


def test_a_reading_is_feasible_where_all_its_parts_are() -> None:
    told = pages.markdown(sample(), {})
    assert "1 of 2 readings can print the figures" in told
    assert "1 of 2 published figures come back" in told
    assert "| 25 % |" in told


def rows_below(caption: str, page: Page) -> list[list[str]]:
    """Texts of the rows of a table, as far as the next caption."""
    start = next(i for i, (tag, text) in enumerate(page.texts) if tag == "caption" and text.startswith(caption))
    rows: list[list[str]] = []
    for tag, text in page.texts[start + 1 :]:
        if tag not in ("th", "td", "small"):
            break
        rows += [[]] if tag == "th" else []
        rows[-1].append(text)
    return rows


def test_what_a_floor_absorbs_and_hides_stands_before_the_mapes() -> None:
    page = Page(pages.html(sample(), plots()))
    heads = page.said("h2")
    assert heads.index("What a floor absorbs, and what it hides") == heads.index("The two-number table") - 1
    assert "than pure noise gives in 1 of 2 pairs" in page.text
    assert "cannot show them: a wrong ceiling." in page.text
    assert "wherever cells depend on them: a missing kernel; weights." in page.text
    assert "In effect hidden in some pairs" not in page.text


def test_absorption_table_is_in_percent() -> None:
    said = " ".join(" ".join(row) for row in rows_below("What the best scalar removes", Page(pages.html(sample(), {}))))
    assert "69 50 %: [67, 71] 90 %: [65, 73]" in said
    assert "7 90 %: [3, 11]" in said


def test_hidden_errors_say_never_and_no_effect() -> None:
    page = Page(pages.html(sample(), {}))
    over = {row[0]: row[1:] for row in rows_below("Errors of T_gpu that a free floor hides, over all", page)}
    own = {row[0]: row[1:] for row in rows_below("Errors of T_gpu that a free floor hides: Qwen2.5-7B on H100", page)}
    assert over["a missing kernel"] == ["in µs per layer", "2 of 2", "> 99.9 %", "never", "25", "never"]
    assert over["a wrong ceiling"] == ["in percent", "0 of 2", "–", "–", "–", "53"]
    assert own["a missing kernel"][1:] == ["> 99.9 %", "-0.01", "never", "25", "none", "never"]
    assert own["a wrong ceiling"][1:] == ["no effect", "-0.01", "never", "never", "B = 256, L = 512", "53"]
    assert own["a wrong bandwidth"][1:] == ["30.1 %", "-0.01", "57", "48", "B = 128, L = 1024", "38"]
    assert own["weights"][1:] == ["> 99.9 %", "-0.01", "> 1000", "12", "B = 256, L = 512", "> 1000"]


def test_pairs_of_one_cell_show_nothing_and_no_rows_no_section() -> None:
    data = sample()
    for row in data["absorption"]:
        row["cells"] = 1
    assert "nothing is shown" in Page(pages.html(data, {})).text
    bare = pages.markdown(data | {"absorption": [], "hidden_errors": []}, {})
    assert "What a floor absorbs" not in bare


def test_shares_that_the_constants_leave_open_are_counted() -> None:
    data = sample()
    data["absorption"][1]["squared"]["intervals"]["90"] = [0.05, 0.6]
    assert "in 1 that depends on the constants" in Page(pages.html(data, {})).text


def test_missing_anchor_leaves_residual_rows_out() -> None:
    data = sample(imputed=False)
    for row in data["table"]:
        row["residual"] = row["signed"]["residual"] = None
    told = Page(pages.html(data | {"variants": [], "without_flagged": None}, {})).said("caption")
    assert any(caption.startswith("Raw MAPE") for caption in told)
    assert not any(caption.startswith("Residual MAPE") for caption in told)


def test_hypotheses_that_were_not_tested_say_why() -> None:
    data = sample(imputed=False)
    none = {"verdict": "not tested", "statement": "S.", "sentences": ["No mixture of experts was measured."]}
    none |= {"as_reported": "not tested", "robustness": [], "error_rates": []}
    data["hypotheses"]["H2"] = none
    validator().validate(json.loads(json_dumps(data)))
    assert "No mixture of experts was measured." in Page(pages.html(data, {})).text
    assert "not tested" in pages.text(data)


def test_both_schools_mark_units_pseudo_replication_and_shares_of_grids() -> None:
    page = Page(pages.html(sample(), {}))
    start = next(i for i, (_, text) in enumerate(page.texts) if text.startswith("Tests of Qwen2.5-7B against a margin"))
    row = [text for _, text in page.texts[start : start + 80]]
    at = row.index("t on per-GPU differences")
    assert row[at + 1 : at + 6] == ["GPU", "-1.75", "1", "0.031", "25"]
    at = row.index("Wald test of slope 1")
    assert row[at + 1 : at + 3] == ["a small p speaks against transfer", "die"]
    at = row.index("cell-level one-sided t")
    assert row[at + 1 : at + 4] == ["pseudo-replicated", "unit: cell", "-1.75"]
    assert "no spread to judge by" in row
    assert "of 1 tests whose unit is the GPU or the die, 1 finds the same" in page.text
    assert "mean over 20 imputed grids" in page.text
    data = sample(imputed=False)
    data["hypotheses"]["H1"]["families"][0]["frequentist"] = frequentist(sets=1)
    alone = Page(pages.html(data, {}))
    assert "share of grids" not in alone.text


def test_error_rates_stand_under_the_verdict_where_there_are_any() -> None:
    data = sample(imputed=False)
    assert "How often is this test wrong?" not in Page(pages.html(data, {})).text
    data["hypotheses"]["H1"]["error_rates"] = ["A family at the margin is called supported in 4 %.", "More."]
    validator().validate(json.loads(json_dumps(data)))
    said = Page(pages.html(data, {})).text
    assert "beforehand How often is this test wrong? By simulation: A family at the margin is called" in said
    data = sample()
    data["hypotheses"]["H1"]["error_rates"] = ["More."]
    assert "How often is the test on cells wrong?" in Page(pages.html(data, {})).text  # not that on printed figures


def test_what_is_published_stands_before_imputed_cells() -> None:
    text = Page(pages.html(sample(), {})).text
    for name in ("H1", "H3"):
        assert f"As published, {name} says something." in text
    assert text.index("As published, H1 says") < text.index("The printed test errs rarely.")
    assert text.index("The printed test errs rarely.") < text.index("the sentence of the family")
    assert text.index("As published, H3 says") < text.index("On imputed cells A sentence on H3.")
    found = hypotheses_section.verdicts(sample()["hypotheses"])
    assert found["H1 as published: Qwen2.5-7B"].lines == ("supported", "P 0.99", "P 0.99 (absolute margin)")
    assert "H1: Qwen2.5-7B, floor refitted to imputed cells" in found
    assert "H1: Qwen2.5-7B" in hypotheses_section.verdicts(sample(imputed=False)["hypotheses"])


def test_do_the_verdicts_stand() -> None:
    page = Page(pages.html(sample(), {}))
    heads = page.said("h2")
    assert heads.index("Do the verdicts stand?") == heads.index("Hypotheses") + 1
    assert "The sentence on whether H3 stands." in page.said("li")
    assert "A sentence on H3." in page.said("li")
    assert "H3 is supported as reported." not in page.said("li")  # told by that section
    assert "margins post hoc · supported before other choices" in page.text
    assert "One grid cell left out in turn (2 cells): other verdicts: H2c in 1" in page.said("summary")
    written = pages.markdown(sample(), {})
    assert "| GPU left out | H100 | supported | refuted | negligible | undecided | **refuted** |" in written
    assert "| cell left out | B = 2, L = 512 | supported | refuted | negligible | **refuted** | supported |" in written


def test_hypotheses_that_were_not_tested_have_no_sentence_on_other_choices() -> None:
    data = sample()
    for row in data["robustness"]["rows"]:
        row["H1"] = "not tested"
    assert "The sentence on whether H1 stands." not in Page(pages.html(data, {})).text


def test_corner_cell_and_calibration_elsewhere_have_tables_of_their_own() -> None:
    page = Page(pages.html(sample(), {}))
    assert "B = 16, L = 8192" in page.said("th")
    assert "added -23.90 50 %: [-24.90, -22.90] 90 %: [-25.90, -21.90] 0.03" in page.text
    own = rows_below("MAPE with an offset of its own", page)
    assert " ".join(text for row in own for text in row).endswith(
        "6.10 50 %: [5.10, 7.10] 90 %: [4.10, 8.10] 9.40 50 %: [8.40, 10.40] 90 %: [7.40, 11.40] –"
    )
    for key in ("corner cell: joined", "calibrated elsewhere", "offset slope"):
        assert key not in page.text


def test_content_may_hold_arrays_and_nan_as_report_json_may_not() -> None:
    data = sample()
    data["breakdown"][0]["step"] = estimate(1.0, "ms") | {"value": np.float64("nan"), "intervals": {"90": (1.0, 2.0)}}
    data["flagged"] = [{"row": np.int64(3), "model": "m", "gpu": "g", "batch": float("nan"), "reason": "r"}]
    data["aggregates"][0]["figures"] = ("a", "b")
    written = json.loads(json_dumps(data))
    assert pages.html(data, {}) == pages.html(written, {})
    assert pages.markdown(data, {}) == pages.markdown(written, {})
    assert pages.text(data) == pages.text(written)
    assert not re.search(r"\bnan\b", pages.markdown(data, {}))


def test_table_alone() -> None:
    lines = pages.table_text(table("Qwen2.5-7B", imputed=False)).splitlines()
    assert len(lines) == 2 + 9
    assert "published" not in lines[1]
    assert lines[3].split() == ["Llama-3.1-8B", "A100-40GB", "17.20", "[15.20,", "19.20]", "–"]


def test_long_lists_are_folded_and_counted() -> None:
    data = sample(imputed=False)
    data["excluded"] = [{**data["excluded"][0], "row": row} for row in range(2500)]
    parsed = Page(pages.html(data, {}))
    assert "2500" in parsed.said("td")
    assert "1500 more are listed in report.json." in parsed.said("p")
    assert len(parsed.all("tr")) < 1500


def test_unknown_figure_is_shown_at_the_end() -> None:
    written = pages.markdown(sample(), ["something_new"])
    assert "## Further figures" in written
    assert "![something new" in written


def test_figure_files_are_the_same_twice() -> None:
    figure = plot()
    for kind, start in (("png", b"\x89PNG"), ("svg", b"<?xml")):
        first = writers.image(figure, kind)
        assert first.startswith(start)
        assert first == writers.image(figure, kind)


# ---- Markdown and terminal --------------------------------------------------------------------------------------


def test_markdown_escapes_and_links_figures(data: dict[str, Any]) -> None:
    written = pages.markdown(data, plots())
    assert "<script" not in written
    assert "](javascript" not in written
    assert set(re.findall(r"<(/?\w+)", written)) <= {"br", "details", "/details", "summary", "/summary"}
    assert re.findall(r"!\[[^\n]*\]\((.*?)\)", written) == re.findall(r"figures/\w+\.png", written)
    assert sorted(re.findall(r"figures/(\w+)\.png", written)) == sorted(FIGURES)


def test_markdown_tables_have_equal_rows(data: dict[str, Any]) -> None:
    written = pages.markdown(data, {})
    tables = re.findall(r"(?:^\|.*\|\n)+", written, flags=re.MULTILINE)
    assert len(tables) > 10
    for table in tables:
        widths = {len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}
        assert len(widths) == 1


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("a|b", r"a\|b"),
        ("T_gpu of step_ms", "T_gpu of step_ms"),
        ("_a_", r"\_a\_"),
        ("a <b> & c", "a &lt;b&gt; &amp; c"),
        ("# no heading\n- no item", r"\# no heading - no item"),
        ("1. no list", r"\1. no list"),
        ("-1.5", "-1.5"),
        ("- 1.5", r"\- 1.5"),
        ("---", r"\---"),
        ("[1.0, 2.0]", "[1.0, 2.0]"),
    ],
)
def test_escaping_for_markdown(text: str, escaped: str) -> None:
    assert writers._escaped(text) == escaped


def test_terminal_summary_is_short(data: dict[str, Any]) -> None:
    many = copy.deepcopy(data)
    many["table"] = many["table"] * 20
    many["status"]["sentences"] = ["A long sentence about how far to trust this report."] * 40
    many["hypotheses"]["H1"]["families"] = many["hypotheses"]["H1"]["families"] * 20
    for one in (data, many):
        lines = pages.text(one).splitlines()
        assert len(lines) <= 40
        assert one["status"]["label"] in lines[0]
    short = pages.text(data)
    assert re.search(r"H2a: level +refuted", short)
    assert "supported  P > 0.99" in short
    assert "8.30 [6.30, 10.30]" in short
    assert ("15.9 / 8.0" in short) == (data["status"]["label"] == IMPUTED)
    assert "more lines in report.md" in lines[-1]


# ---- numbers ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "unit", "mcse", "text"),
    [
        (8.4321, "percent", 0.001, "8.43 %"),
        (8.4321, "percent", 0.02, "8.4 %"),
        (8.4321, "ms", 0.3, "8 ms"),
        (8.4321, "ms", None, "8.43 ms"),
        (-0.001, "ms", None, "0.00 ms"),
        (None, "percent", None, "–"),
        (0.931, "probability", 0.001, "0.93"),
        (0.9949, "probability", None, "0.99"),
        (0.9951, "probability", None, "> 0.99"),
        (1.0, "probability", 0.0, "> 0.99"),
        (0.0, "probability", None, "< 0.01"),
        (0.97, "probability", 0.02, "> 0.9"),
        (0.7, "probability", 0.2, "0.7"),
    ],
)
def test_numbers_have_the_digits_that_the_monte_carlo_error_supports(
    value: float | None, unit: str, mcse: float | None, text: str
) -> None:
    assert formatting.number(estimate(value, unit, mcse=mcse), unit=True) == text


def test_intervals_and_published_figures() -> None:
    made = estimate(2.0, "ms", spread=1.0, mcse=0.02)
    assert formatting.lines(made) == ("2.0", "50 %: [1.0, 3.0]", "90 %: [0.0, 4.0]")
    assert formatting.full(made) == "2.0 ms [0.0, 4.0]"
    assert formatting.lines(made, signed=True)[::2] == ("+2.0", "90 %: [+0.0, +4.0]")
    assert formatting.lines(estimate(2.0, "ms", spread=None, mcse=None)) == ("2.00",)
    assert formatting.lines(None) == ("–",)
    assert [formatting.published(v, "percent") for v in (8.0, 5.36, None)] == ["8.0", "5.36", "–"]
    assert [formatting.published(v) for v in (18.0, 0.004)] == ["18", "0.004"]


@pytest.mark.parametrize(
    ("value", "text"),
    [(True, "yes"), (None, "–"), (1.00321, "1.003"), (3, "3"), ([], "–"), (["H100", 2], "H100, 2"), ("a", "a")],
)
def test_plain_values(value: object, text: str) -> None:
    assert formatting.plain(value) == text


# ---- schema -----------------------------------------------------------------------------------------------------


@functools.cache
def validator() -> jsonschema.Draft202012Validator:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    return jsonschema.Draft202012Validator(SCHEMA)


@functools.cache
def short() -> str:
    """The report as report.json, its lists of records cut to the first one."""

    def cut(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: cut(item) for key, item in value.items()}
        return [cut(value[0])] if isinstance(value, list) and value and isinstance(value[0], dict) else value

    return json_dumps(cut(json.loads(json_dumps(sample()))))


def faults(data: Any) -> Iterator[jsonschema.ValidationError]:
    """Every error and those below it."""
    queue = list(validator().iter_errors(data))
    while queue:
        error = queue.pop()
        queue += error.context or ()
        yield error


def test_report_obeys_the_schema(data: dict[str, Any]) -> None:
    validator().validate(json.loads(json_dumps(data)))


def places(value: Any, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """Paths to every value below `value`."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [p for key, item in pairs for p in ((*path, key), *places(item, (*path, key)))]


def holder(data: Any, path: tuple[str | int, ...]) -> Any:
    for key in path[:-1]:
        data = data[key]
    return data


REQUIRED = (
    "",
    "status",
    "study",
    "study margins",
    "absorption 0",
    "absorption 0 squared",
    "hidden_errors 0",
    "table 0",
    "table 0 raw",
    "table 0 raw expected",
    "table 0 residual",
    "table 0 signed",
    "table 0 published",
    "floors",
    "floors by_class 0",
    "floors by_model 0",
    "floors self_floors 0",
    "floors self_floors 0 reading",
    "which_floor structures 0",
    "which_floor structures 0 per_gpu 0",
    "which_floor structures 0 per_scale 0",
    "hypotheses",
    "hypotheses H1",
    "hypotheses H1 families 0",
    "hypotheses H1 families 0 frequentist",
    "hypotheses H1 families 0 frequentist tests tost_cells",
    "hypotheses H1 families 0 difference",
    "hypotheses H1 families 0 margins 0",
    "hypotheses H2",
    "hypotheses H2 parts",
    "hypotheses H2 parts a",
    "hypotheses H2 parts c per_sku 0 corner",
    "hypotheses H2 parts c per_sku 0 corner joined added",
    "hypotheses H3",
    "hypotheses H3 per_sku 0 calibrated_elsewhere",
    "hypotheses H3 per_sku 0 offset_slope",
    "robustness",
    "robustness rows 0",
    "robustness settled",
    "robustness settled H1",
    "breakdown 0",
    "breakdown 0 parts",
    "structural 0",
    "structural 0 rows 0",
    "aggregates 0",
    "reconstruction",
    "reconstruction indices 0",
    "reconstruction figures 0",
    "variants 0 efficiency 0",
    "diagnostics fits 0",
)


def test_the_short_report_obeys_the_schema() -> None:
    validator().validate(json.loads(short()))


@pytest.mark.parametrize("where", REQUIRED)
def test_schema_refuses_a_report_without_a_required_key(where: str) -> None:
    whole = json.loads(short())
    path = tuple(int(part) if part.isdecimal() else part for part in where.split())
    record = holder(whole, (*path, ""))
    some = {"on H100", "concordant", "below_peak", "ended_at", "as_published", "refitted", "published_residual"}
    missing = set(record) - (
        some if path[:1] != ("structural",) else some - {"as_published"}
    )  # not every report has these
    record.clear()
    said = {e.message for e in faults(whole) if e.validator == "required" and tuple(e.absolute_path) == path}
    assert said == {f"{key!r} is a required property" for key in missing}


def test_schema_refuses_nan_anywhere() -> None:
    whole = sample()
    numbers = {path for path in places(whole) if isinstance(holder(whole, path)[path[-1]], float)}
    assert len(numbers) > 500
    for path in numbers:
        holder(whole, path)[path[-1]] = float("nan")
    refused = {tuple(e.absolute_path) for e in faults(whole) if e.validator == "not"}
    assert refused == numbers


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("schema_version",), "2"),
        (("status", "label"), "guessed"),
        (("summary",), []),
        (("table", 0, "raw", "expected", "unit"), "seconds"),
        (("table", 0, "raw", "expected", "intervals"), {"95": [1, 2]}),
        (("table", 0, "raw", "expected", "intervals", "90"), [1]),
        (("table", 0, "raw", "expected", "intervals", "90"), [1, None]),
        (("table", 0, "raw", "expected", "value"), "8.4"),
        (("table", 0, "cells"), 0),
        (("absorption", 0, "cells"), 0),
        (("absorption", 0, "squared"), 0.69),
        (("hidden_errors", 0, "detectable"), "never"),
        (("hidden_errors", 0, "unit"), None),
        (("which_floor", "answer"), []),
        (("which_floor", "structures", 0, "verdict"), "maybe"),
        (("which_floor", "structures", 0, "log_ml"), "out of reach"),
        (("which_floor", "data"), MEASURED),
        (("hypotheses", "H1", "verdict"), "maybe"),
        (("hypotheses", "H1", "families"), []),
        (("hypotheses", "H3", "per_sku", 0, "slope", "mcse"), "small"),
        (("hypotheses", "H1", "as_reported"), "maybe"),
        (("hypotheses", "H1", "families", 0, "by_die"), 1.5),
        (("hypotheses", "H1", "families", 0, "frequentist", "tests"), {}),
        (("hypotheses", "H1", "families", 0, "frequentist", "tests", "t_per_gpu", "p_value"), 1.1),
        (("hypotheses", "H2", "parts", "b", "per_sku", 0, "detectable_ms"), "much"),
        (("hypotheses", "H3", "per_sku", 0, "offset_slope", "mean"), [1.0]),
        (("robustness", "rows"), []),
        (("robustness", "rows", 0, "H2b"), "maybe"),
        (("structural", 0, "probability"), 0.9),
        (("diagnostics", "fits", 0, "passed"), "yes"),
    ],
)
def test_schema_refuses_wrong_values(path: tuple[str | int, ...], value: object) -> None:
    whole = json.loads(short())
    holder(whole, path)[path[-1]] = value
    assert not validator().is_valid(whole)


def test_estimate_without_a_value_may_have_no_interval_either() -> None:
    data = sample()
    data["breakdown"][0]["step"] = estimate(float("nan"), "ms")
    validator().validate(json.loads(json_dumps(data)))
    assert "–" in pages.markdown(json.loads(json_dumps(data)), {})
