"""The content of report.json: every number of the report, with what it rests on."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rooffloor import __version__
from rooffloor.models.roof.kernels import Experts
from rooffloor.models.roof.roofline import bytes_floor_ms
from rooffloor.models.specs.gpus import GpuSpec
from rooffloor.models.specs.shapes import ModelShapes
from rooffloor.validate.estimates.cell_draws import Draws
from rooffloor.validate.fitting.evidence import Evidence
from rooffloor.validate.hypotheses import as_published
from rooffloor.validate.hypotheses.absorption import absorption, hidden_errors, mean_efficiency
from rooffloor.validate.hypotheses.breakdown import breakdown, point_name
from rooffloor.validate.hypotheses.structural import RISE, SMALL_STEP, structural
from rooffloor.validate.hypotheses.test import TESTS, judged
from rooffloor.validate.published.bounds.exclusions import exclusions
from rooffloor.validate.published.imputation import acceptance
from rooffloor.validate.published.printed_figures import PublishedFigures
from rooffloor.validate.reporting import summary, tables, words
from rooffloor.validate.reporting.sections import which_floor

if TYPE_CHECKING:
    from rooffloor.validate.comparison.comparison import Comparison
    from rooffloor.validate.study.study import Study

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
    small = {(f.quantity, f.model, f.gpu): f.value for f in published or () if f.quantity in (SMALL_STEP, RISE)}
    reads, absorbed = structural(draws, shapes, gpus, small), absorption(draws, seed)
    efficiency = mean_efficiency(draws, evidence.constants["primary"])
    hidden = hidden_errors(draws, shapes, gpus, efficiency, study.efficiency.experts)
    facts = as_published.read(evidence)
    told = summary.of_tests(tests) if facts is None else summary.of_published(tests, facts, reads, absorbed, hidden)
    kept = evidence.without_flagged
    which, reconstruction = _which_floor(evidence, floors), _reconstruction(evidence)
    return {
        "schema_version": SCHEMA_VERSION,
        "status": {"label": draws.label, "sentences": [*filter(None, [evidence.instead]), *words.status(evidence)]},
        "study": study_facts(study) | {"structure": evidence.structure, "constants": evidence.treatment},
        "summary": [*told, *summary.which_floor(which)],
        "absorption": absorbed,
        "hidden_errors": hidden,
        "table": tables.two_numbers(draws, published, offsets, seed),
        "floors": tables.floors(draws, published, offsets),
        "which_floor": which,
        "hypotheses": tests,
        "robustness": steady.data,
        "breakdown": [row | {"published": _printed_step(row, published)} for row in breakdown(draws)],
        "structural": reads,
        "aggregates": [] if published is None else [asdict(fact) for fact in exclusions(published)],
        "reconstruction": reconstruction,
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
        "assumptions": words.assumptions(evidence),
        "warnings": words.warnings(evidence, reconstruction),
        "diagnostics": {
            "fits": list(evidence.fits),
            "recomputed": evidence.recomputed,
            "least_t_gpu_over_bytes": _least_over_bytes(draws, shapes, gpus, study.efficiency.experts),
        },
        "provenance": _provenance(evidence, seed),
    }


def _printed_step(row: Mapping[str, Any], published: PublishedFigures | None) -> float | None:
    """The step of a pair, or of a named cell of it, that the study prints."""
    for figure in published or ():
        if (figure.model, figure.gpu) == (row["model"], row["gpu"]):
            cell = (
                None if figure.batch is None or figure.context is None else point_name((figure.batch, figure.context))
            )
            if (figure.quantity, row["group"]) in (("step_typical", "all cells"), ("measured", cell)):
                return figure.value
    return None


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


def _reconstruction(evidence: Evidence) -> dict[str, Any] | None:
    """What was imputed, and its coverage on simulated studies as committed beside the grids."""
    result = evidence.reconstruction
    if result is None:
        return None
    coverage = acceptance.load(evidence.study.data.path.parent).coverage().to_dict("records")
    return {"grids": int(result.cells["imputation"].nunique()), **result.data, "acceptance": coverage}


def _cells(evidence: Evidence, which: str) -> list[dict[str, Any]]:
    if evidence.measurements is None:
        return []
    frame = getattr(evidence.measurements, which)
    wanted = ("model", "gpu", "batch", "context", "step_ms", "reason", "detail", "neighbour")
    kept = frame[[c for c in wanted if c in frame]]
    return [{"row": row, **record} for row, record in zip(frame.index.tolist(), kept.to_dict("records"), strict=True)]


def _provenance(evidence: Evidence, seed: int) -> dict[str, Any]:
    study = evidence.study
    if evidence.measurements is not None:
        p = evidence.measurements.provenance
        found = provenance_facts(study, p, seed)
        found |= {f"MFU of prefill, {gpu}": f"{m['mfu']:.3f}" for gpu, m in p.get("mfu", {}).items()}
        return found
    source = {"file": study.data.path.name, "source": "figures quoted from the published study (see its README)"}
    return provenance_facts(study, {}, seed) | source


def provenance_facts(study: "Study", given: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """Where the numbers come from: the study, the seed, the code, and what is `given` of the file."""
    facts = {k: given[k] for k in ("file", "sha256", "format", "stack", "mode", "rows", "accepted") if k in given}
    return {"study_hash": study.hash, "seed": seed, "code_version": __version__} | facts


def study_facts(study: "Study") -> dict[str, Any]:
    """What report.json says of a study, whether or not it has an answer."""
    return {
        "name": study.name,
        "hash": study.hash,
        "anchor": study.anchor,
        "margins": asdict(study.margins),
        "data_file": study.data.path.name,
        "format": study.data.format,
        "stack": study.data.stack,
        "mode": study.data.mode,
    }
