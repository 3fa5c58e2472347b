"""The committed posterior of kernels and hosts: models/specs/catalog/kernels.toml.

    python benchmarks/kernel_posterior.py KERNELS REAL --out models/specs/catalog/kernels.toml

KERNELS holds ai-dynamo/aiconfigurator's Parquet files, REAL the public measured sets (`real_sets.py`). Every figure is
derived: no row of a file goes into the table. docs/kernels.md says what is in it.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
from real_sets import TYPED

from rooffloor.models.roof.kernels import decode_work
from rooffloor.models.specs import gpus
from rooffloor.models.specs.gpus import GpuSpec
from rooffloor.models.specs.hf.config import read_config
from rooffloor.models.specs.shapes import ModelShapes, load
from rooffloor.validate.common.files import write_text
from rooffloor.validate.kernels import benchmarks
from rooffloor.validate.kernels.benchmarks import ATTENTION, GEMM, LEAST_SHAPES, MOST_ROWS, OVER_L2, KernelTimes
from rooffloor.validate.kernels.discrepancy import Difference, discrepancy, time_per_byte
from rooffloor.validate.kernels.hierarchy import Hierarchy, hierarchy
from rooffloor.validate.kernels.host import HostLine, host_line, log_moments
from rooffloor.validate.kernels.line import Line, line

OTHERS = {
    "A40": (696e9, 6e6),
    "RTX4090": (1008e9, 72e6),
    "RTXPRO6000": (1792e9, 128e6),
}
"""Bandwidth (bytes/s) and L2 of GPUs that the catalog has not, by their makers' data sheets."""
VIDUR, SERVINGSIM = "vidur profiler (torch)", "vLLM 0.19 layerwise profiler"
PROJECTIONS = ("qkv", "o", "gate_up", "down")
STACKS_SEQUENCE_MS = (0.07, 0.06, 0.10, 0.14, 0.37)
"""Time per sequence that steps of five stacks show (least squares): vLLM 0.11 and 2024 on H100, vLLM 2024 on A100-40GB,
vLLM 2023 on two A100, a server of 2024 on A100-40GB."""


def sizes(gpu: str) -> tuple[float, float]:
    """Bandwidth and L2 of a GPU."""
    if gpu in OTHERS:
        return OTHERS[gpu]
    spec = gpus.load({"A100": "A100-80GB"}.get(gpu, gpu))
    return spec.bandwidth, spec.l2_bytes


def _times(
    kind: str, gpu: str, stack: str, moved: np.ndarray, time_ms: np.ndarray, shape: Sequence[str]
) -> KernelTimes:
    bandwidth, l2 = sizes(gpu)
    keep = moved > OVER_L2 * l2
    code = np.unique(np.asarray(shape)[keep], return_inverse=True)[1].astype(np.int64)
    name = {"A100": "A100-80GB"}.get(gpu, gpu)
    return KernelTimes(kind, name, "bf16", stack, moved[keep] / bandwidth * 1e3, time_ms[keep], code)


def vidur(folder: Path) -> Iterator[KernelTimes]:
    """Matrix products of one layer by microsoft/vidur's profiler, and its decode attention."""
    frame = pd.read_csv(folder / "vidur_mlp_layer.csv")
    frame = frame[frame["batch"] <= MOST_ROWS]
    head = frame["n_embd"] / frame["n_head"]
    mlp = frame["n_embd"] * frame["n_expanded_embd"] / frame["tp"]
    bytes_of = {
        "attn_pre_proj_ms": frame["n_embd"] * head * (frame["n_head"] + 2 * frame["n_kv_head"]) / frame["tp"],
        "attn_post_proj_ms": frame["n_embd"] ** 2 / frame["tp"],
        "mlp_up_proj_ms": mlp * (1 + frame["use_gated_mlp"].astype(int)),
        "mlp_down_proj_ms": mlp,
    }
    for gpu in frame["gpu"].unique():
        own = frame["gpu"] == gpu
        moved = np.concatenate([2.0 * weights[own].to_numpy(float) for weights in bytes_of.values()])
        took = np.concatenate([frame.loc[own, column].to_numpy(float) for column in bytes_of])
        shape = np.array([f"{b:.0f}" for b in moved])
        good = np.isfinite(took) & (took > 0)
        yield _times(GEMM, gpu, VIDUR, moved[good], took[good], shape[good])
    frame = pd.read_csv(folder / "vidur_a100_attention_decode.csv")
    kv = frame["model"].str.extract(r"kv(\d+)d(\d+)").astype(float).prod(axis=1) / frame["tp"]
    frame, kv = frame[frame["context"] >= benchmarks.LEAST_CONTEXT], kv[frame["context"] >= benchmarks.LEAST_CONTEXT]
    moved = (4.0 * kv * frame["batch"] * frame["context"]).to_numpy(float)
    yield _times(ATTENTION, "A100", VIDUR, moved, frame["step_ms"].to_numpy(float), frame["batch"].astype(str).tolist())


def servingsim(folder: Path) -> Iterator[KernelTimes]:
    """Matrix products of one layer by casys-kaist/LLMServingSim's profiler."""
    frame = pd.read_csv(folder / "llmservingsim_kernels.csv")
    frame = frame[frame["op"].isin(("qkv_proj", "o_proj", "gate_up_proj", "down_proj", "lm_head"))]
    frame = frame[frame["batch"] <= MOST_ROWS]
    shapes = {
        "meta-llama/Llama-3.1-8B": load("Llama-3.1-8B"),
        "Qwen/Qwen3-32B": TYPED["Qwen3-32B"],
    }
    frame = frame[frame["model"].isin(shapes)]
    moved = np.array([2.0 * _weights(shapes[m], op) / tp for m, op, tp in frame[["model", "op", "tp"]].to_numpy()])
    for gpu in frame["gpu"].unique():
        own = (frame["gpu"] == gpu).to_numpy()
        names = np.array([f"{b:.0f}" for b in moved[own]])
        yield _times(GEMM, gpu, SERVINGSIM, moved[own], frame["step_ms"].to_numpy(float)[own], names)


def _weights(s: ModelShapes, op: str) -> float:
    """Weights of one projection."""
    inner = s.heads * s.head_dim
    return {
        "qkv_proj": s.hidden * (inner + 2 * s.kv_heads * s.head_dim),
        "o_proj": s.hidden * inner,
        "gate_up_proj": 2 * s.hidden * s.intermediate,
        "down_proj": s.hidden * s.intermediate,
        "lm_head": s.hidden * s.vocab,
    }[op]


# ---- real steps -----------------------------------------------------------------------------------------------------


def real_cells(folder: Path) -> Iterator[tuple[str, GpuSpec, pd.DataFrame, dict[str, ModelShapes]]]:
    """Sets whose cells tell 1/e: several sizes on one GPU of `KERNELS`, or so large a model that the floor is small."""
    frame = pd.read_csv(folder / "serving-mlenergy-v3.csv")
    keep = (frame["gpu"] == "H100") & (frame["dtype"] == "bfloat16") & (frame["arch"] != "MoE") & frame["flag"].isna()
    frame = frame[keep & (frame["dp"] == 1) & (frame["batch"] <= 40) & (frame["task"] != "image-chat")]
    large = replace(load("Meta-Llama-3-70B"), name="Llama-70B")
    shapes = {
        "Qwen/Qwen3-8B": read_config(folder.parent / "configs" / "Qwen--Qwen3-8B_config.json"),
        "Qwen/Qwen3-32B": TYPED["Qwen3-32B"],
        "google/gemma-3-12b-it": TYPED["gemma-3-12b-it"],
        "meta-llama/Llama-3.1-8B-Instruct": load("Llama-3.1-8B"),
        "meta-llama/Llama-3.1-70B-Instruct": large,
        "meta-llama/Llama-3.3-70B-Instruct": large,
    }
    yield "vLLM 0.11.1, dense models, TP 1 to 4", gpus.load("H100"), frame[frame["model"].isin(shapes)], shapes
    frame = pd.read_csv(folder / "splitwise_perf.csv")
    frame = frame[(frame["model"] == "llama2-70b") & (frame["tp"] == 2) & frame["flag"].isna() & (frame["batch"] <= 16)]
    for name, sku in (("a100-80gb", "A100-80GB"), ("h100-80gb", "H100")):
        yield (
            "vLLM of 2023, Llama-2-70B, TP 2",
            gpus.load(sku),
            frame[frame["gpu"] == name],
            {"llama2-70b": load("Llama-2-70B")},
        )


def real_differences(folder: Path, e: dict[str, float], e_fa: dict[str, float]) -> Iterator[Difference]:
    """What steps say of 1/e: h0, time per layer, per sequence and of all-reduces stand beside with wide priors (ms)."""
    for name, gpu, frame, shapes in real_cells(folder):
        batch, tp = frame["batch"].round().to_numpy(float), frame["tp"].to_numpy(float)
        of = [shapes[m] for m in frame["model"]]
        work = [
            decode_work(s, b, round(c), gpu=gpu).peak_times for s, b, c in zip(of, batch, frame["context"], strict=True)
        ]
        stream = np.array([float(np.sum(w.stream_ms)) for w in work]) / tp
        kv = np.array([float(np.sum(w.kv_ms)) for w in work]) / tp
        layers = np.array([float(s.layers) for s in of])
        columns = np.stack([np.ones_like(batch), layers, batch, stream, kv, np.where(tp > 1, layers, 0.0)], axis=1)
        peak = 1.0 / e_fa[gpu.name]
        of_layer = (0.1, 0.1) if "2023" in name else (0.03, 0.03)  # before CUDA graphs
        prior = [(2.0, 2.0), of_layer, (0.07, 0.05), (1.25, 1.0), (peak, 0.12 * peak), (0.03, 0.02)]
        took = frame["step_ms"].to_numpy(float)
        found, sd = time_per_byte([s.name for s in of], columns, took, prior, 3)
        yield Difference(name, gpu.name, len(took), float(np.log(found * e[gpu.name])), sd / found)


def servingsim_steps(folder: Path) -> Difference:
    """Real steps of one stack and GPU over the sum of its own kernels, measured one by one (Llama-3.1-8B, RTX 4090).

    What is left of a step after attention, small kernels and a host time of 0.5 ± 0.7 ms is compared with the matrix
    products; windows of one run share an error of 3 % of counting, attention one of 10 %.
    """
    kernels = pd.read_csv(folder / "llmservingsim_kernels.csv")
    kernels = kernels[(kernels["gpu"] == "RTX4090") & (kernels["tp"] == 1)]
    steps = pd.read_csv(folder / "llmservingsim_vllm_steps.csv")
    steps = steps[steps["flag"].isna()]
    layers = load("Llama-3.1-8B").layers
    once = ("lm_head", "sampler", "embedding", "final_layernorm")
    batch, context = steps["batch"].to_numpy(float), steps["context"].to_numpy(float)
    products, others = np.zeros(len(steps)), np.full(len(steps), 0.5)
    for op, own in kernels[kernels["op"] != "attention"].groupby("op"):
        by = own.groupby("batch")["step_ms"].mean()
        times = 1 if op in once else layers * (2 if op == "layernorm" else 1)
        took = times * np.interp(batch, by.index.to_numpy(float), by.to_numpy(float))
        if op in ("qkv_proj", "o_proj", "gate_up_proj", "down_proj", "lm_head"):
            products += took
        else:
            others += took
    attention = kernels[(kernels["op"] == "attention") & (kernels["context"] >= 512) & (kernels["context"] <= 2048)]
    tokens = (attention["batch"] * attention["context"]).to_numpy(float)
    slope = np.polyfit(tokens, attention["step_ms"].to_numpy(float), 1)
    cache = layers * np.polyval(slope, batch * context)
    took = steps["step_ms"].to_numpy(float)
    ratio = (took - cache - others) / products
    middle = float(np.median(products))
    sd = float(np.hypot(0.03 * np.median(took), np.hypot(0.7, 0.1 * np.median(cache)))) / middle
    name = "vLLM 0.19 steps over its own kernels, Llama-3.1-8B"
    return Difference(name, "RTX4090", len(took), float(np.median(np.log(ratio))), sd)


def stack_difference(first: Line, second: Line, source: str) -> Difference:
    """Second over first, of the time per byte."""
    values = [(found.coefficients[1], found.covariance[1, 1]) for found in (first, second)]
    sd = float(np.sqrt(sum(variance / value**2 for value, variance in values)))
    return Difference(source, first.gpu, second.shapes, float(np.log(values[1][0] / values[0][0])), sd)


def of_shapes(first: dict[tuple[str, str], Line], kind: str) -> float:
    """What the mean over the four matrices of a layer leaves of the sd between shapes, 16-bit, root mean square."""
    return float(np.sqrt(np.mean([found.shape_sd**2 for (k, _), found in first.items() if k == kind]) / 4.0))


def hosts(folder: Path) -> list[HostLine]:
    """Host lines of microsoft/vidur's CPU overhead, by host, model and number of GPUs."""
    frame = pd.read_csv(folder / "vidur_cpu_overhead.csv")
    return [
        host_line(host, model, tp, own["batch"].to_numpy(float), own["step_ms"].to_numpy(float))
        for (host, model, tp), own in frame.groupby(["gpu", "model", "tp"])
    ]


# ---- the table ------------------------------------------------------------------------------------------------------


def table(gemm: Hierarchy, attention: Hierarchy, spread: dict[str, float], host_lines: list[HostLine]) -> str:
    """The posterior as TOML."""
    out = [
        "# Posterior of measured kernels and hosts, made by benchmarks/kernel_posterior.py; docs/kernels.md says how.",
        "# eta: [mean, sd] of the logit of the share of nominal bandwidth; latency_us: [median, sd of the logarithm].",
        "# Facts derived from ai-dynamo/aiconfigurator 095f58a5 (Apache-2.0), microsoft/vidur 7d475133, 6d98aa8f and",
        "# e2d00e9a (MIT), casys-kaist/LLMServingSim 5daddb21 (MIT); discrepancy from ml-energy/leaderboard 0cd52dab",
        "# (Apache-2.0), Mutinifni/splitwise-sim 8f99e7dc (MIT).",
        "",
        "[discrepancy]",
        "# sd of the logarithm between kernels alone and in real steps, or on another stack",
        *(f"{name} = {value:.3f}" for name, value in spread.items()),
    ]
    for name, found in (("gemm", gemm), ("attention", attention)):
        for fmt, level, sd in zip(found.formats, found.level, found.level_sd, strict=True):
            out += ["", f"[hyper.{name}.{fmt}]", *_rows(level, sd)]
        for own, mean, sd in zip(found.lines, found.mean, found.sd, strict=True):
            if own.stack in (VIDUR, SERVINGSIM):
                continue
            out += ["", f'[gpus."{own.gpu}".{name}.{own.format}]', *_rows(mean, sd)]
            out += [f"kernels = {own.kernels}", f"shapes = {own.shapes}", f"misfit_percent = {own.misfit:.1f}"]
            out += [f'stack = "{own.stack}"']
    for host in ("A100", "A40"):
        own_lines = [found for found in host_lines if found.host == host and found.tp == 1]
        out += ["", f'[hosts."{host}"]', "# one GPU; sd between models", f"models = {len(own_lines)}"]
        for key in ("h0_ms", "h_seq_ms"):
            median, sd = log_moments([getattr(found, key) for found in own_lines])
            out.append(f"{key} = [{median:.4f}, {sd:.3f}]")
    one_gpu = [[found for found in host_lines if found.host == host and found.tp == 1] for host in ("A100", "A40")]
    h0 = log_moments([log_moments([f.h0_ms for f in own])[0] for own in one_gpu], 0.5)
    medians = [log_moments([f.h_seq_ms for f in own])[0] for own in one_gpu]
    h_seq = log_moments([*medians, *STACKS_SEQUENCE_MS])
    out += ["", "[hyper.host]", "# a host and stack not measured", f"h0_ms = [{h0[0]:.3f}, {h0[1]:.3f}]"]
    return "\n".join([*out, f"h_seq_ms = [{h_seq[0]:.4f}, {h_seq[1]:.3f}]"]) + "\n"


def _rows(mean: np.ndarray, sd: np.ndarray) -> list[str]:
    return [f"eta = [{mean[1]:.3f}, {sd[1]:.3f}]", f"latency_us = [{1e3 * np.exp(mean[0]):.2f}, {sd[0]:.3f}]"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Read, fit and write; prints what the page shows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kernels", type=Path)
    parser.add_argument("real", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args(arguments)
    files = [
        file for kind in ("gemm", "generation_attention") for file in options.kernels.glob(f"*{kind}_perf.parquet")
    ]
    lines = [line(times) for file in sorted(files) for times in benchmarks.read(file)]
    others = (*vidur(options.real), *servingsim(options.real))
    second = [line(times) for times in others if times.shape.max() + 1 >= LEAST_SHAPES]
    gemm, attention = (hierarchy([f for f in (*lines, *second) if f.kind == kind]) for kind in (GEMM, ATTENTION))
    first = {(found.kind, found.gpu): found for found in lines if found.format == "bf16"}
    share = {key: 1.0 / float(found.coefficients[1]) for key, found in first.items()}
    e, e_fa = ({gpu: value for (k, gpu), value in share.items() if k == kind} for kind in (GEMM, ATTENTION))
    paired = [f for f in second if (f.kind, f.gpu) in first]
    stacks = {
        kind: [stack_difference(first[kind, f.gpu], f, f.stack) for f in paired if f.kind == kind]
        for kind in (GEMM, ATTENTION)
    }
    steps = [*real_differences(options.real, e, e_fa), servingsim_steps(options.real)]
    sd = discrepancy(steps).sd
    apart = [np.log(max(f.coefficients[0], 1e-3) / first[f.kind, f.gpu].coefficients[0]) for f in paired]
    spread = {
        "eta_bw": float(np.hypot(sd, of_shapes(first, GEMM))),
        "eta_fa": float(np.hypot(discrepancy(stacks[ATTENTION]).sd, of_shapes(first, ATTENTION))),
        "latency": float(np.sqrt(np.mean(np.square(apart)))),
    }
    for found in (*lines, *second):
        a, inverse = found.coefficients
        about = f"{found.stack}: {found.kind} {found.gpu} {found.format}, {found.kernels} of {found.shapes} shapes"
        print(f"{about}: a {1e3 * a:.1f} us, e {1 / inverse:.3f}, {found.misfit:.1f} %")
    for one in (*stacks[GEMM], *stacks[ATTENTION], *steps):
        print(f"{one.source}, {one.gpu}: n {one.n}, log ratio {one.value:+.3f} sd {one.sd:.3f}")
    for name, of in (("steps", steps), ("stacks", stacks[GEMM]), ("together", [*stacks[GEMM], *steps])):
        print(f"discrepancy of {name}: {discrepancy(of)}")
    print(f"of steps {sd:.3f}; of shapes {of_shapes(first, GEMM):.3f}; in all {spread}")
    for name, found in (("gemm", gemm), ("attention", attention)):
        print(f"{name}: sd between GPUs {found.between.tolist()}, left {found.left.tolist()} (log a, logit e)")
    host_lines = hosts(options.real)
    for h in host_lines:
        print(f"{h.host} {h.model} tp {h.tp}: h0 {h.h0_ms:.2f} h_seq {h.h_seq_ms:.4f} ({h.misfit:.1f} %)")
    write_text(options.out, table(gemm, attention, spread, host_lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
