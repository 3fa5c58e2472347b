"""Priors from measured kernels and hosts: what is known of a GPU's constants before a step is measured.

The numbers are those of `specs/catalog/kernels.toml`; docs/kernels.md says from what and how. `kernel_priors` is the
set that a fit takes; `kernel_prior` also says, GPU by GPU, what came from which.
"""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np

from rooffloor.models.inference.priors import DEFAULT_PRIORS, Priors
from rooffloor.models.specs import gpus as catalog
from rooffloor.models.specs import inputs
from rooffloor.models.specs.gpus import GpuSpec
from rooffloor.models.specs.inputs import shown

type Moments = tuple[float, float]

_TABLE = Path(inputs.__file__).parent / "catalog" / "kernels.toml"
FORMATS: Mapping[str, str] = {
    **dict.fromkeys(("bf16", "bfloat16", "fp16", "float16"), "bf16"),
    **{name: name for name in ("fp8", "fp8_block")},
}
"""Formats by the names that they go by."""
HYPERPRIOR = "hyperprior"
_MOST = 0.995
"""Share of the bandwidth that no kernel exceeds: what lies above is there."""
_NODES = np.array([NormalDist().inv_cdf((n + 0.5) / 201) for n in range(201)])


@dataclass(frozen=True)
class GpuPrior:
    """Prior of one GPU's own constants.

    Attributes
    ----------
    gpu : str
    eta_bw, eta_fa : (mean, sd)
        Share of the nominal bandwidth that weights and cache get in real steps.
    launch_ms : (median, sd of the logarithm)
        Latency of a kernel, ms.
    eta_bw_from, eta_fa_from : str
        "kernels of H100" or "hyperprior"; the latency is from where eta_bw is.
    """

    gpu: str
    eta_bw: Moments
    eta_fa: Moments
    launch_ms: Moments
    eta_bw_from: str
    eta_fa_from: str


@dataclass(frozen=True)
class KernelPrior:
    """Prior of constants that some GPUs share, and of each GPU's own.

    Attributes
    ----------
    gpus : tuple of str
    eta_bw, eta_fa : (mean, sd)
        Of one constant for all of them, moments of a Beta as `Priors` has them: spread within GPUs, between them, and
        the discrepancy between kernels alone and in real steps.
    launch_ms : (median, sd of the logarithm)
        The same of the latency of a kernel, ms.
    h0_ms, h_seq_ms : (median, sd of the logarithm)
        Host time of a step: constant, and per sequence, on a host that was not measured.
    per_gpu : mapping from GPU to GpuPrior
        For constants that every GPU has for itself.
    """

    gpus: tuple[str, ...]
    eta_bw: Moments
    eta_fa: Moments
    launch_ms: Moments
    h0_ms: Moments
    h_seq_ms: Moments
    per_gpu: Mapping[str, GpuPrior]

    @property
    def text(self) -> str:
        """Where eta_bw, eta_fa and host times come from, in a line."""
        parts = []
        for name in ("eta_bw", "eta_fa"):
            sources = dict.fromkeys(getattr(self.per_gpu[gpu], f"{name}_from") for gpu in self.gpus)
            of = [
                source + (f" ({', '.join(g for g in self.gpus if getattr(self.per_gpu[g], f'{name}_from') == source)})"
                if source == HYPERPRIOR else "")
                for source in sources
            ]  # fmt: skip
            mean, sd = getattr(self, name)
            parts.append(f"{name} {mean:.2f} ± {sd:.2f}: {', '.join(of)}")
        return "; ".join([*parts, "host time: hosts measured by others"])


@functools.cache
def _table() -> dict[str, Any]:
    return inputs.read_toml(_TABLE)


def _name(gpu: str | GpuSpec) -> str:
    """A GPU's name in the catalog; one that is not there keeps its own."""
    name = gpu.name if isinstance(gpu, GpuSpec) else str(gpu)
    try:
        return catalog.load(name).name
    except ValueError:
        return name


def _format(dtype: str) -> str:
    if (known := FORMATS.get(str(dtype).strip().casefold())) is None:
        raise ValueError(f"unknown format {shown(dtype)}; known: {', '.join(FORMATS)}")
    return known


def _found(gpu: str, kind: str, fmt: str) -> tuple[dict[str, Any], str]:
    """Entry of a GPU, else of the hyperprior; and which it was."""
    own = _table()["gpus"].get(gpu, {}).get(kind, {})
    if fmt in own:
        return own[fmt], f"kernels of {gpu}"
    hyper = _table()["hyper"][kind]
    return hyper.get(fmt, hyper["bf16"]), HYPERPRIOR


def _share(entry: Mapping[str, Any], discrepancy: float) -> Moments:
    """Mean and sd of eta in real steps: a logit-normal share over a log-normal discrepancy of the time."""
    mean, sd = entry["eta"]
    kernels = 1.0 / (1.0 + np.exp(-(mean + sd * _NODES)))
    steps = np.minimum(_MOST, kernels[:, None] * np.exp(-discrepancy * _NODES))
    return float(steps.mean()), float(steps.std())


def _latency(entry: Mapping[str, Any], discrepancy: float) -> Moments:
    median, sd = entry["latency_us"]
    return 1e-3 * float(median), float(np.hypot(sd, discrepancy))


def gpu_prior(gpu: str | GpuSpec, dtype: str = "bf16", kv_dtype: str = "bf16") -> GpuPrior:
    """Prior of one GPU's constants: from its kernels where they were measured in that format, else the hyperprior.

    Raises
    ------
    ValueError
        An unknown format.
    """
    name, away = _name(gpu), _table()["discrepancy"]
    gemm, gemm_from = _found(name, "gemm", _format(dtype))
    attention, attention_from = _found(name, "attention", _format(kv_dtype))
    return GpuPrior(
        name,
        _share(gemm, away["eta_bw"]),
        _share(attention, away["eta_fa"]),
        _latency(gemm, away["latency"]),
        gemm_from,
        attention_from,
    )


def kernel_prior(gpus: Sequence[str | GpuSpec], dtype: str = "bf16", kv_dtype: str = "bf16") -> KernelPrior:
    """Priors of constants of some GPUs.

    Parameters
    ----------
    gpus : sequence of str or GpuSpec
        Names that the catalog has not get the hyperprior.
    dtype, kv_dtype : str
        Formats of weights and of the cache (`FORMATS`).

    Raises
    ------
    ValueError
        No GPU, or an unknown format.

    Examples
    --------
    >>> prior = kernel_prior(["H100"])
    >>> round(prior.eta_bw[0], 1), prior.per_gpu["H100"].eta_bw_from
    (0.9, 'kernels of H100')
    """
    if isinstance(gpus, str):
        gpus = [gpus]
    own = {prior.gpu: prior for prior in (gpu_prior(gpu, dtype, kv_dtype) for gpu in gpus)}
    if not own:
        raise ValueError("expected at least one GPU")
    latency = [(float(np.log(p.launch_ms[0])), p.launch_ms[1]) for p in own.values()]
    middle, spread = _pooled(latency)
    host = _table()["hyper"]["host"]
    return KernelPrior(
        tuple(own),
        _pooled([p.eta_bw for p in own.values()]),
        _pooled([p.eta_fa for p in own.values()]),
        (float(np.exp(middle)), spread),
        tuple(host["h0_ms"]),
        tuple(host["h_seq_ms"]),
        own,
    )


def _pooled(moments: Sequence[Moments]) -> Moments:
    """Moments of an even mixture: variance within and between."""
    means, sds = np.array(moments, dtype=float).T
    return float(means.mean()), float(np.sqrt(np.mean(sds**2) + means.var()))


SETS = ("kernels", "wide")
"""Names of the sets of priors: from measured kernels and hosts, or `DEFAULT_PRIORS`."""
L_HALF = (150.0, 0.7)
"""Prior of L_half beside a latency of kernels of its own: what a decode-attention kernel takes whatever the context is
in that latency, so that less is left per sequence (median, sd of the logarithm; tokens)."""


def named_priors(name: str, gpus: Sequence[str | GpuSpec]) -> Priors:
    """The set of priors of this name (`SETS`) for 16-bit models on these GPUs.

    Raises
    ------
    ValueError
        Another name.
    """
    if name not in SETS:
        raise ValueError(f"priors {shown(name)} are not known: expected {' or '.join(SETS)}")
    return kernel_priors(gpus) if name == "kernels" else DEFAULT_PRIORS


def kernel_priors(gpus: Sequence[str | GpuSpec], dtype: str = "bf16", kv_dtype: str = "bf16") -> Priors:
    """The default priors, but eta_bw, eta_fa, latency of a launch and time per sequence from kernels and hosts.

    Arguments and errors as `kernel_prior`.
    """
    found = kernel_prior(gpus, dtype, kv_dtype)
    return replace(
        DEFAULT_PRIORS,
        eta_bw=found.eta_bw,
        eta_fa=found.eta_fa,
        l_half=L_HALF,
        launch_ms=found.launch_ms,
        sequence_ms=(1.0, float(found.h_seq_ms[0] * np.exp(0.5 * found.h_seq_ms[1] ** 2))),
    )
