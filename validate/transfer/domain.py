"""What a calibration has seen, and why a model, a GPU or a cell lies outside of it: short reasons, "what: how"."""

from dataclasses import asdict

from rooffloor.models.calibration.draws import Calibration, Domain
from rooffloor.models.specs import gpus as gpu_catalog
from rooffloor.models.specs import shapes as shape_catalog
from rooffloor.models.specs.classes import CLASSES
from rooffloor.models.specs.formats import ALL_SIXTEEN_BIT, SIXTEEN_BIT
from rooffloor.models.specs.gpus import GpuSpec
from rooffloor.models.specs.inputs import shown
from rooffloor.models.specs.shapes import ModelShapes
from rooffloor.validate.common.errors import InputError, listed

DEFAULT_STUDY = "transfer-study"
"""Whose saved draws are the calibration where none is named."""


FAR = 2.0
"""Bytes of the cache per token, and query heads per KV head, may be so many times larger or smaller than calibrated."""


def known_model(shapes: ModelShapes, posterior: Calibration) -> tuple[str, str]:
    """The model's name in the calibration, and a reason where only the name agrees.

    A name alone lends no floor: shapes that differ from the catalog's under that name are another model.
    """
    try:
        listed = shape_catalog.load(shapes.name)
    except ValueError:
        return shapes.name, ""
    ignored = dict.fromkeys(("name", "source", "number_format", "formats", "max_context"))
    if asdict(listed) | ignored == asdict(shapes) | ignored:
        return listed.name, ""
    if listed.name not in posterior.models:
        return shapes.name, ""
    return f"{shapes.name}, other shapes", f"model: shapes differ from those of {listed.name} that was measured"


def known_class(klass: str, posterior: Calibration) -> str:
    """A class of the calibration, or a default one, as it is spelled there; InputError where there is none."""
    known = {name.casefold(): name for name in (*CLASSES, *posterior.classes)}
    if klass.strip().casefold() not in known:
        raise InputError(
            f"--class {shown(klass)}: expected a class of the calibration or a default one: "
            f"{listed(dict.fromkeys(known.values()))}"
        )
    return known[klass.strip().casefold()]


def known_gpu(gpu: GpuSpec, posterior: Calibration) -> tuple[str, str]:
    """The GPU's name in the calibration, and a reason where only the name agrees."""
    try:
        name = gpu.name if gpu.name in posterior.specs else gpu_catalog.load(gpu.name).name
    except ValueError:
        return gpu.name, ""
    if name not in posterior.specs or _sheet(gpu) == _sheet(posterior.specs[name]):
        return name, ""
    return f"{gpu.name}, other data sheet", f"GPU: data sheet differs from that of the {name} that was measured"


def _sheet(gpu: GpuSpec) -> tuple[float, ...]:
    return gpu.peak_flops, gpu.bandwidth, gpu.memory_bytes, gpu.l2_bytes


def model_reasons(posterior: Calibration, shapes: ModelShapes) -> list[str]:
    """Why a model lies outside: other shapes under a measured name, its size, its number format."""
    low, high = posterior.domain.parameters
    reasons = [known_model(shapes, posterior)[1]]
    if not low <= shapes.parameters <= high:
        reasons.append(f"parameters: {shapes.parameters / 1e9:.2f} B, calibrated {low / 1e9:.2f} to {high / 1e9:.2f} B")
    reasons += _head_reasons(posterior, shapes)
    return [reason for reason in (*reasons, number_format(shapes)) if reason]


def number_format(shapes: ModelShapes) -> str:
    """Why the number formats of a model lie outside, where they do: calibrations are of 16-bit models."""
    stored, cache = shapes.number_format, shapes.formats.cache
    if shapes.formats == ALL_SIXTEEN_BIT:
        if not stored or stored.startswith(SIXTEEN_BIT.name):
            return f"number format: weights {stored}" if stored else ""
        return f"number format: weights stored as {stored}: predicted as if 16-bit"
    if cache != SIXTEEN_BIT and "cache" not in stored:
        stored += f"; cache {cache.name}"
    return f"number format: weights stored as {stored}: {shapes.weight_bytes / 1e9:.1f} GB, calibrated on 16-bit"


def _head_reasons(posterior: Calibration, shapes: ModelShapes) -> list[str]:
    """Why a model's cache or its heads lie outside: beyond `FAR` times what was calibrated."""
    reasons = []
    for what, unit, own, seen in (
        ("KV cache", "KB per token", shapes.kv_bytes_per_token / 1e3, _seen(posterior, "kv_bytes", 1e3)),
        ("query heads", "per KV head", shapes.heads / shapes.kv_heads, _seen(posterior, "heads_per_kv", 1.0)),
    ):
        if seen is not None and not seen[0] / FAR <= own <= seen[1] * FAR:
            low, high = seen
            calibrated = f"{low:.3g}" if low == high else f"{low:.3g} to {high:.3g}"
            reasons.append(f"{what}: {own:.3g} {unit}, calibrated {calibrated}")
    return reasons


def _seen(posterior: Calibration, name: str, unit: float) -> tuple[float, float] | None:
    """The calibrated range: as saved, or of the models that the catalog knows; None where it knows none."""
    saved: tuple[float, float] | None = getattr(posterior.domain, name)
    if saved is None:
        known = [shape_catalog.load(model) for model in posterior.models if model in shape_catalog.names()]
        if not known:
            return None
        domain = Domain.of([1.0], [1.0], known)
        saved = domain.kv_bytes if name == "kv_bytes" else domain.heads_per_kv
    return None if saved is None else (saved[0] / unit, saved[1] / unit)


def gpu_reasons(posterior: Calibration, gpu: GpuSpec) -> list[str]:
    """Why a GPU lies outside: never measured, or another data sheet under a measured name."""
    sku, other = known_gpu(gpu, posterior)
    if other:
        return [other]
    return [] if sku in posterior.gpus else [f"GPU: {gpu.name} not measured, calibrated on {', '.join(posterior.gpus)}"]


def serving_reasons(posterior: Calibration, stack: str, mode: str) -> list[str]:
    """Why a serving stack or mode lies outside; empty names say nothing."""
    return [
        f"{what}: {asked}, calibrated on {fitted or 'one that is not stated'}"
        for what, asked, fitted in (("stack", stack, posterior.stack), ("mode", mode, posterior.mode))
        if asked and asked.casefold() != fitted.casefold()
    ]


def cell_reasons(posterior: Calibration, shapes: ModelShapes, batch: float, context: float) -> list[str]:
    """Why a cell lies outside, beside what holds for all cells of its model and GPU."""
    reasons = []
    for name, value in (("batch", batch), ("context", context)):
        low, high = getattr(posterior.domain, name)
        if not low <= value <= high:
            reasons.append(f"{name}: {value:.0f}, calibrated {low:.0f} to {high:.0f}")
    if context > shapes.max_context:
        reasons.append(f"max_context: {context:.0f} tokens, {shapes.name} has {shapes.max_context} at most")
    return reasons
