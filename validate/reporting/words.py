"""Sentences of report.json: status, assumptions, warnings; its summary has a module of its own."""

from collections.abc import Mapping, Sequence
from typing import Any

from rooffloor.validate.estimates.cell_draws import IMPUTED
from rooffloor.validate.estimates.prior_sensitivity import warnings_of
from rooffloor.validate.fitting.evidence import Evidence
from rooffloor.validate.reporting import imputed_grids, tables


def status(evidence: Evidence) -> list[str]:
    """How far to trust the report."""
    draws = evidence.draws
    if draws.label == IMPUTED and evidence.reconstruction is not None:
        weighted = int((evidence.reconstruction.cells.groupby("imputation")["weight"].first() > 0).sum())
        return [
            "No cell of this study is public. Every cell here is imputed from its published aggregates: "
            f"{weighted} whole grids that print the published figures, sampled under stated priors and readings.",
            "Published figures are facts; everything about single cells, floors and slopes mixes them with priors.",
            f"Margins are {evidence.study.margins.label}: they were not fixed before the data were known.",
        ]
    measurements = evidence.measurements
    assert measurements is not None
    derived = "origin" in measurements.frame and (measurements.frame["origin"] == "derived").all()
    how = "derived from measured end-to-end latencies" if derived else "measured"
    repeats = measurements.frame.duplicated(["model", "gpu", "batch", "context"], keep=False)
    noise = (
        f"{int(repeats.sum())} rows repeat a cell; they are the only estimate of measurement noise."
        if repeats.any()
        else "No cell was measured twice: measurement noise and discrepancy of the model cannot be told apart."
    )
    return [
        f"{len(measurements.frame)} decode steps, {how}; {len(measurements.excluded)} rows excluded, each with its "
        "reason.",
        noise,
        f"Margins: {evidence.study.margins.label}.",
    ]


def assumptions(evidence: Evidence) -> list[str]:
    """What the numbers rest on; nothing here is tested by them."""
    shared = [
        f"A step is T_gpu plus one additive, signed floor per (GPU, model){_terms(evidence)}; noise is normal, its "
        "sd a share of the step that may differ by model, plus a constant. For MAPEs, slopes and tests it is then "
        "corrected per (GPU, model) by that pair's own residuals, where its model counts as much as four cells.",
        "Floors follow a hierarchy (overall, GPU, model, pair) with half-t scales; leftover structure within a grid is "
        "taken as noise.",
        f"Experts streamed per step: {evidence.study.efficiency.experts}.",
        "No GEMM at these batches is bound by compute unless the constants say so: where batches stay at 16 or less, "
        "eta_tc is its prior.",
    ]
    if evidence.draws.label == IMPUTED:
        shared[3] = (
            "The grid's batches stay at 16 or less, so that no GEMM is bound by compute: eta_tc cannot be seen and is "
            "left at 1."
        )
        assert evidence.reconstruction is not None
        readings = evidence.reconstruction.readings
        fit, unfit = ([name for name, fits in readings.items() if fits is wanted] for wanted in (True, False))
        return [
            *shared,
            "Grid axes are assumed: 5 batches (1, 2, 4, 8, 16) x 3 contexts (512, 2048, 8192), or 3 batches (1, 4, 16) "
            "x 5 contexts (512, 1024, 2048, 4096, 8192); the study says five by three and names (16, 8192).",
            f"An offset is one of {len(fit)} statistics of y - T_gpu ({', '.join(fit)}), equally likely a priori; "
            f"{', '.join(unfit) or 'none'} did not fit.",
            "The small-batch step is the cell with the smallest batch and shortest context and, as the text calls it a "
            "floor, the least of its grid; the long-context rise is that of the largest batch from the shortest to the "
            "longest context; the typical MoE step is the mean over its grid.",
            *imputed_grids.order(evidence.reconstruction, evidence.draws),
            "Each published figure may lie anywhere within its rounding, uniformly.",
            "Four published figures are checked but not conditioned on: the study does not say what they are of.",
            "The weights of readings are prior weights; they are not updated by how well a reading fits.",
            *imputed_grids.roofs(evidence.reconstruction),
            imputed_grids.CONSTANTS,
        ]
    measurements = evidence.measurements
    given = measurements.provenance.get("assumptions", ()) if measurements is not None else ()
    prior = evidence.priors_said
    return [*shared, prior, *(str(a) for a in given)]


def _terms(evidence: Evidence) -> str:
    """What a floor has beside the part that a pair shares."""
    names = {"sequence": "host time per sequence", "sequence layer": "host time per sequence and layer"}
    found = [names[name] for name in evidence.study.floor.terms]
    return f" and {' and '.join(found)} of each GPU" if found else ""


def warnings(evidence: Evidence, reconstruction: Mapping[str, Any] | None) -> list[str]:
    """What a reader must know besides; `reconstruction` as in report.json."""
    found = [*(str(w) for w in evidence.warnings), *warnings_of(list(evidence.sensitivity))]
    gpus = len(evidence.draws.cells.gpus)
    if gpus < 5:
        found.append(
            f"{gpus} GPUs stand for all GPUs: the spread between GPUs is hardly known, and pooled verdicts lean on its "
            "prior."
        )
    if {"H100", "H200"} <= set(evidence.draws.cells.gpus):
        found.append(
            "H100 and H200 are one die with different memory: as evidence on GPUs they count for less than two."
        )
    passed = [r for r in evidence.fits if r["passed"] and evidence.measurements is not None]
    slow = [r["name"] for r in passed if r.get("attempts", 1) > 1]
    if slow:
        found.append(f"Fits that needed the stated escalation: {'; '.join(slow)}.")
    if evidence.reconstruction is not None and reconstruction is not None:
        sampled = evidence.reconstruction.indices.query("feasible")
        slow_parts = int((sampled["rhat"] > 1.05).sum())
        if slow_parts:
            found.append(
                f"The chains of {slow_parts} of {len(sampled)} parts of the reconstruction disagree (R-hat above "
                f"1.05, median {sampled['rhat'].median():.2f}): imputed grids depend on where their chains started "
                "as well as on the posterior. What coverage that leaves is measured on simulated studies, in the "
                "section on imputed grids."
            )
        found += _undercoverage(reconstruction["acceptance"])
        if share := tables.falling_share(evidence.draws):
            found.append(
                f"In {100 * share:.0f} % of neighbouring cells an imputed step falls by more than 5 % where batch or "
                "context grows. Measured steps hardly do."
            )
    again = evidence.recomputed
    if again is not None and (not again["passed"] or again["share_within_2_mcse"] < 0.9):
        found.append(
            f"Refitted imputations differ from their cached posteriors: {100 * again['share_within_2_mcse']:.0f} % of "
            "floors lie within 2 MCSE."
        )
    return found


def _undercoverage(coverage: Sequence[Mapping[str, Any]]) -> list[str]:
    """A warning where 90 % intervals of the reconstruction covered less than 90 % by more than 2 standard errors."""
    short = [row for row in coverage if row["in_90"] + 2.0 * row["se_90"] < 0.9]
    if not short:
        return []
    worst = ", ".join(f"{row['kind']} {100 * row['in_90']:.0f} %" for row in short)
    return [
        "On simulated studies the 90 % intervals of the reconstruction covered less than 90 %: "
        f"{worst}. Intervals that come from the imputed grids are too narrow by that much."
    ]
