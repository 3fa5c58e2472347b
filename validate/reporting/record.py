"""The content of report.json: every number of the report, with what it rests on."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rooffloor import __version__
from rooffloor.models.roof.kernels import Experts
from rooffloor.models.roof.roofline import bytes_floor_ms
from rooffloor.models.specs.gpus import GpuSpec
from rooffloor.models.specs.shapes import ModelShapes
from rooffloor.validate.estimates.cell_draws import IMPUTED, Draws
from rooffloor.validate.estimates.prior_sensitivity import warnings_of
from rooffloor.validate.fitting.evidence import Evidence
from rooffloor.validate.hypotheses.absorption import absorption, hidden_errors, mean_efficiency
from rooffloor.validate.hypotheses.breakdown import breakdown
from rooffloor.validate.hypotheses.structural import structural
from rooffloor.validate.hypotheses.test import TESTS, judged
from rooffloor.validate.published.printed_figures import PublishedFigures
from rooffloor.validate.reporting import tables
from rooffloor.validate.reporting.sections import which_floor

if TYPE_CHECKING:
    from rooffloor.validate.comparison.comparison import Comparison

SCHEMA_VERSION = "1"


def published_of(evidence: Evidence) -> tuple[PublishedFigures | None, Mapping[Any, Any] | None]:
    """The published figures and the offsets of each imputation; none of measured cells."""
    if evidence.reconstruction is None:
        return None, None
    offsets = tables.published_offsets(evidence.draws, evidence.reconstruction)
    return PublishedFigures.load(evidence.study.data.path), offsets


def assemble(evidence: Evidence, floors: "Comparison | None" = None, *, seed: int) -> dict[str, Any]:
    """All numbers of the report, as report.json holds them."""
    study, draws = evidence.study, evidence.draws
    published, offsets = published_of(evidence)
    results, steady = judged(evidence)
    tests = {name: result.data for name, result in results.items()}
    names = study.names
    shapes = {m: names.shapes(m) for m in draws.cells.models}
    gpus = {g: names.gpu(g) for g in draws.cells.gpus}
    small = {
        (f.quantity, f.model, f.gpu): f.value
        for f in published or ()
        if f.quantity in ("small_batch_step", "long_context_rise")
    }
    kept = evidence.without_flagged
    which = _which_floor(evidence, floors)
    return {
        "schema_version": SCHEMA_VERSION,
        "status": {"label": draws.label, "sentences": _status(evidence)},
        "study": {
            "name": study.name,
            "hash": study.hash,
            "anchor": study.anchor,
            "margins": asdict(study.margins),
            "data_file": study.data.path.name,
            "format": study.data.format,
            "stack": study.data.stack,
            "mode": study.data.mode,
            "structure": evidence.structure,
            "constants": evidence.treatment,
        },
        "summary": [
            *(line for name, test in tests.items() for line in _headline(name, test)),
            *([_floor_headline(which["answer"])] if which["run"] else []),
        ],
        "absorption": absorption(draws, seed),
        "hidden_errors": hidden_errors(
            draws, shapes, gpus, mean_efficiency(draws, evidence.constants["primary"]), study.efficiency.experts
        ),
        "table": tables.two_numbers(draws, published, offsets, seed),
        "floors": tables.floors(draws, published, offsets),
        "which_floor": which,
        "hypotheses": tests,
        "robustness": steady.data,
        "breakdown": breakdown(draws),
        "structural": structural(draws, shapes, gpus, small),
        "aggregates": _aggregates(published),
        "reconstruction": _reconstruction(evidence),
        "variants": [
            _variant(f"{evidence.structure}; {evidence.treatment}", draws, evidence, seed, offsets, tests),
            *(_variant(name, other, evidence, seed) for name, other in evidence.variants.items()),
        ],
        "excluded": _cells(evidence, "excluded"),
        "flagged": _cells(evidence, "flagged"),
        "without_flagged": None
        if kept is None or evidence.measurements is None
        else {
            "grids": [f"{m} on {g}" for m, g in evidence.measurements.flagged_grids],
            "table": tables.two_numbers(kept, None, None, seed),
            "hypotheses": {name: test(kept, study.margins).data for name, test in TESTS.items()},
        },
        "sensitivity": list(evidence.sensitivity),
        "assumptions": _assumptions(evidence),
        "warnings": _warnings(evidence),
        "diagnostics": {
            "fits": list(evidence.fits),
            "recomputed": evidence.recomputed,
            "least_t_gpu_over_bytes": _least_over_bytes(draws, shapes, gpus, study.efficiency.experts),
        },
        "provenance": _provenance(evidence, seed),
    }


def _floor_headline(answer: Sequence[str]) -> str:
    """The first sentence of the answer, and whether it is determined at all."""
    hedge = next((line for line in answer[1:] if line.startswith("Not determined")), None)
    return " ".join(["Which floor?", answer[0], *([hedge] if hedge else [])])


def _which_floor(evidence: Evidence, floors: "Comparison | None") -> dict[str, Any]:
    """Which floor structure the published figures, or the measured cells, support."""
    if evidence.reconstruction is not None:
        return which_floor.published(evidence.study.data.path.parent)
    return which_floor.of_comparison(floors, evidence.draws.label)


def _least_over_bytes(
    draws: Draws, shapes: Mapping[str, ModelShapes], gpus: Mapping[str, GpuSpec], experts: Experts
) -> float:
    """Smallest T_gpu / (bytes at peak bandwidth) over all draws and cells; below 1 the roof would be broken."""
    least = float("inf")
    for model, gpu, mask in draws.pairs():
        floor = bytes_floor_ms(shapes[model], gpus[gpu], draws.batch[:, mask], draws.context[:, mask], experts)
        least = min(least, float((draws.gpu_ms[:, mask] / floor).min()))
    return least


def _headline(name: str, test: Mapping[str, Any]) -> list[str]:
    """The verdict, and at most four sentences of it; all of them stand in the section on hypotheses."""
    return [f"{name} is {test['verdict']}: {test['statement']}", *test["sentences"][:4]]


def _variant(
    name: str,
    draws: Draws,
    evidence: Evidence,
    seed: int,
    offsets: Mapping[Any, Any] | None = None,
    tests: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """One treatment; the primary one comes with its offsets and its tests, which the report already has."""
    primary = tests is not None
    constants = evidence.constants.get("primary" if primary else name, {})
    return {
        "name": name,
        "primary": primary,
        "table": tables.two_numbers(draws, None, offsets, seed),
        "floors": tables.floors(draws, None, None),
        "hypotheses": tests or {test: TESTS[test](draws, evidence.study.margins).data for test in TESTS},
        "efficiency": tables.constants(draws, constants),
    }


def _status(evidence: Evidence) -> list[str]:
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


def _aggregates(figures: PublishedFigures | None) -> list[dict[str, Any]]:
    if figures is None:
        return []
    from rooffloor.validate.published.bounds.exclusions import exclusions

    return [asdict(fact) for fact in exclusions(figures)]


def _reconstruction(evidence: Evidence) -> dict[str, Any] | None:
    result = evidence.reconstruction
    if result is None:
        return None
    return {
        "grids": int(result.cells["imputation"].nunique()),
        **result.data,
        "acceptance": _acceptance(evidence.study.data.path.parent),
    }


def _acceptance(folder: Path) -> list[dict[str, Any]]:
    """Coverage of the reconstruction on simulated studies, as committed beside the grids."""
    from rooffloor.validate.published.imputation import acceptance

    return [dict(row) for _, row in acceptance.load(folder).coverage().iterrows()]


def _cells(evidence: Evidence, which: str) -> list[dict[str, Any]]:
    if evidence.measurements is None:
        return []
    frame = getattr(evidence.measurements, which)
    wanted = ("model", "gpu", "batch", "context", "step_ms", "reason", "detail", "neighbour")
    kept = frame[[c for c in wanted if c in frame]]
    return [{"row": row, **record} for row, record in zip(frame.index.tolist(), kept.to_dict("records"), strict=True)]


def _assumptions(evidence: Evidence) -> list[str]:
    """What the numbers rest on; nothing here is tested by them."""
    shared = [
        "A step is T_gpu plus one additive, signed floor per (GPU, model); noise is normal, its sd a share of the step "
        "that may differ by model, plus a constant. For MAPEs, slopes and tests it is then corrected per (GPU, model) "
        "by that pair's own residuals, where its model counts as much as four cells.",
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
            "The small-batch step is the cell with the smallest batch and shortest context; the long-context rise is "
            "that of the largest batch from the shortest to the longest context; the typical MoE step is the mean "
            "over its grid.",
            "Each published figure may lie anywhere within its rounding, uniformly.",
            "Four published figures are checked but not conditioned on: the study does not say what they are of.",
            "The weights of readings are prior weights; they are not updated by how well a reading fits.",
        ]
    measurements = evidence.measurements
    given = measurements.provenance.get("assumptions", ()) if measurements is not None else ()
    return [*shared, *(str(a) for a in given)]


def _warnings(evidence: Evidence) -> list[str]:
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
    slow = [r["name"] for r in evidence.fits if r.get("attempts", 1) > 1 and evidence.measurements is not None]
    if slow:
        found.append(f"Fits that needed the stated escalation: {'; '.join(slow)}.")
    if evidence.reconstruction is not None:
        sampled = evidence.reconstruction.indices.query("feasible")
        slow_parts = int((sampled["rhat"] > 1.05).sum())
        if slow_parts:
            found.append(
                f"The chains of {slow_parts} of {len(sampled)} parts of the reconstruction disagree (R-hat above "
                f"1.05, median {sampled['rhat'].median():.2f}): imputed grids depend on where their chains started "
                "as well as on the posterior. What coverage that leaves is measured on simulated studies, in the "
                "section on imputed grids."
            )
        found += _undercoverage(_acceptance(evidence.study.data.path.parent))
        share = falling_share(evidence.draws)
        found.append(
            f"In {100 * share:.0f} % of neighbouring cells an imputed step falls by more than 5 % where batch or "
            "context grows. Measured steps hardly do; the priors do not forbid it, so that single imputed cells are "
            "less orderly than real ones."
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


def falling_share(draws: Draws, fall: float = 0.05) -> float:
    """Share of neighbouring cells of a pair, by weight, whose step falls by more than `fall` where one axis grows."""
    total = fallen = 0.0
    _, first = np.unique(draws.unit, return_index=True)
    for row in first:
        at = min(row, len(draws.step_ms) - 1)
        batch, context = draws.batch[min(row, len(draws.batch) - 1)], draws.context[min(row, len(draws.context) - 1)]
        for _, _, mask in draws.pairs():
            y, b, c = draws.step_ms[at, mask], batch[mask], context[mask]
            for own, other in ((b, c), (c, b)):
                order = np.lexsort((own, other))
                same = np.diff(other[order]) == 0
                down = y[order][1:] < (1.0 - fall) * y[order][:-1]
                total += draws.weight[row] * same.sum()
                fallen += draws.weight[row] * (same & down).sum()
    return fallen / total if total else 0.0


def _provenance(evidence: Evidence, seed: int) -> dict[str, Any]:
    study = evidence.study
    found: dict[str, Any] = {"study_hash": study.hash, "seed": seed, "code_version": __version__}
    if evidence.measurements is not None:
        p = evidence.measurements.provenance
        found |= {k: p[k] for k in ("file", "sha256", "format", "stack", "mode", "rows", "accepted") if k in p}
        found |= {f"MFU of prefill, {gpu}": f"{m['mfu']:.3f}" for gpu, m in p.get("mfu", {}).items()}
    else:
        found |= {"file": study.data.path.name, "source": "figures quoted from the published study (see its README)"}
    return found
