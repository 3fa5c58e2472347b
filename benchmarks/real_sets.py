"""Public measured sets as our own measurements: one stack and one GPU each, 16-bit, TP 1.

What each file is, and its licence, stands in the SOURCE.txt beside it. Contexts are as the sources have them: where a
file counts only the tokens that were generated, or only half of them can be told, so much is unknown in every cell of
the set, and the same for all its models.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from rooffloor.models.specs import gpus
from rooffloor.models.specs.gpus import GpuSpec
from rooffloor.models.specs.hf.config import read_config
from rooffloor.models.specs.shapes import ModelShapes, load
from rooffloor.validate.common.errors import InputError
from rooffloor.validate.measurements.load import Measurements, load_measurements
from rooffloor.validate.measurements.names import Names

MOST_CELLS = 40
"""Cells kept of a model: of larger grids every nth by (batch, context)."""

_QWEN3_32B = ModelShapes(
    name="Qwen3-32B", hidden=5120, intermediate=25600, layers=64, heads=64, kv_heads=8, head_dim=128, vocab=151936,
    max_context=40960, qk_norm=True,
)  # fmt: skip
_GEMMA3_12B = ModelShapes(
    name="gemma-3-12b-it", hidden=3840, intermediate=15360, layers=48, heads=16, kv_heads=8, head_dim=256,
    vocab=262208, max_context=131072, tied_embeddings=True, qk_norm=True, norms_per_layer=4,
)  # fmt: skip
TYPED = {spec.name: spec for spec in (_QWEN3_32B, _GEMMA3_12B)}
"""Shapes by their public cards that no config stands beside; windows are longer than the contexts measured."""


@dataclass(frozen=True, eq=False)
class RealSet:
    """One set: `cells` has model, gpu, batch, context, step_ms (repeats averaged later), `shapes` by model name."""

    name: str
    anchor: str
    cells: pd.DataFrame
    shapes: Mapping[str, ModelShapes]
    gpu: GpuSpec
    stack: str
    mode: str = ""

    @property
    def measurements(self) -> Measurements:
        """Rows of all models, as `load_measurements` has them."""
        return self.of(list(self.shapes))

    def of(self, models: list[str]) -> Measurements:
        """Rows of some models."""
        frame = self.cells[self.cells["model"].isin(models)].reset_index(drop=True)
        frame = frame.assign(stack=self.stack, **({"mode": self.mode} if self.mode else {}))
        frame["repeat"] = frame.groupby(["model", "batch", "context"]).cumcount()
        names = Names({m: self.shapes[m] for m in models}, {self.gpu.name: self.gpu})
        return load_measurements(frame, names=names)


def _short(name: str) -> str:
    return name.replace("__", "/").rsplit("/", 1)[-1]


def _shapes(folder: Path, models: list[str], aliases: Mapping[str, str] = {}) -> dict[str, ModelShapes]:
    """Shapes by name, of those that have a config here or in the catalog."""
    found = {}
    for model in models:
        name = aliases.get(model, model)
        config = folder / "configs" / name / "config.json"
        given = folder.parent / "configs" / f"{name}_config.json"
        try:
            if name in TYPED:
                spec = TYPED[name]
            elif config.is_file() or given.is_file():
                spec = read_config(config if config.is_file() else given)
            else:
                spec = load(name)
        except ValueError:
            plain = _plain(config) if config.is_file() else None
            if plain is None:
                continue
            spec = plain
        found[model] = replace(spec, name=model)
    return found


def _plain(config: Path) -> ModelShapes | None:
    """Shapes of a decoder of 2020 to 2024 that no reader of configs knows; None where it is none of these either."""
    c: dict[str, Any] = json.loads(config.read_text(encoding="utf-8"))
    kind = c["model_type"]
    if kind not in _PLAIN:
        return None
    hidden = c.get("hidden_size") or c.get("n_embd") or c["d_model"]
    heads = c.get("num_attention_heads") or c.get("n_head") or c["n_heads"]
    return ModelShapes(
        name=config.parent.name,
        hidden=hidden,
        intermediate=c.get("intermediate_size") or c.get("n_inner") or 4 * hidden,
        layers=c.get("num_hidden_layers") or c.get("n_layer") or c["n_layers"],
        heads=heads,
        kv_heads=c.get("num_key_value_heads", 1 if c.get("multi_query") else heads),
        head_dim=c.get("head_dim", hidden // heads),
        vocab=c["vocab_size"],
        max_context=c.get("max_position_embeddings") or c.get("n_positions") or c.get("max_seq_len") or 16384,
        **{"tied_embeddings": kind != "codegen"} | _PLAIN[kind],
    )


_BIASED: dict[str, Any] = {"attn_out_bias": True, "mlp_bias": True, "gated_mlp": False, "norm_bias": True}
_PLAIN: Mapping[str, dict[str, Any]] = {
    "gemma": {},
    "mpt": {"gated_mlp": False, "rotary": False},
    "gpt_bigcode": _BIASED | {"qkv_bias": True, "rotary": False, "learned_positions": 8192},
    "starcoder2": _BIASED | {"qkv_bias": True},
    "gpt_neox": _BIASED | {"qkv_bias": True, "tied_embeddings": False},
    "codegen": {"mlp_bias": True, "gated_mlp": False, "norm_bias": True, "lm_head_bias": True},
}
"""What such a decoder is beside its sizes, by model_type."""


def _set(
    name: str, folder: Path, cells: pd.DataFrame, gpu: str, anchor: str, stack: str, aliases: Mapping[str, str] = {}, mode: str = ""  # noqa: E501
) -> RealSet:  # fmt: skip
    cells = cells.assign(batch=cells["batch"].round().astype(int), context=cells["context"].round(), gpu=gpu)
    cells = cells[["model", "gpu", "batch", "context", "step_ms"]].sort_values(["model", "batch", "context"])
    shapes = _shapes(folder, list(dict.fromkeys(cells["model"])), aliases)
    kept = []
    for model in shapes:
        own = cells[cells["model"] == model]
        at = np.unique(np.linspace(0, len(own) - 1, min(len(own), MOST_CELLS)).round().astype(int))
        kept.append(own.iloc[at])
    return RealSet(name, anchor, pd.concat(kept, ignore_index=True), shapes, gpus.load(gpu), stack, mode)


# ---- the sets -----------------------------------------------------------------------------------------------------


def mlenergy_v2(folder: Path) -> RealSet:
    """TGI or vLLM of 2024 on an A100-40GB: chat and code, batch to 1,500."""
    frame = pd.read_csv(folder / "mlenergy-v2-a100-40gb.csv")
    prompt = frame["task"].map({"chat": 200.0, "code": 150.0})
    cells = pd.DataFrame(
        {
            "model": frame["model"].map(_short),
            "batch": frame["mean_batch"],
            "context": prompt + 0.5 * frame["mean_output_tokens"],
            "step_ms": frame["tpot_ms"],
        }
    )
    anchor = "Meta-Llama-3.1-8B-Instruct"
    return _set("mlenergy-v2", folder, cells, "A100-40GB", anchor, "server of 2024", {anchor: "Llama-3.1-8B"})


def mlenergy_v3(folder: Path) -> RealSet:
    """vLLM 0.11.1 on one H100, dense models in BF16."""
    frame = pd.read_csv(folder / "serving-mlenergy-v3.csv")
    keep = (frame["gpu"] == "H100") & (frame["tp"] == 1) & (frame["num_gpus"] == 1) & (frame["dtype"] == "bfloat16")
    frame = frame[keep & (frame["arch"] != "MoE") & frame["flag"].isna()]
    cells = frame.assign(model=frame["model"].map(_short))
    anchor = "Llama-3.1-8B-Instruct"
    aliases = {anchor: "Llama-3.1-8B", "Qwen3-8B": "Qwen--Qwen3-8B"}
    return _set("mlenergy-v3", folder, cells, "H100", anchor, "vllm-0.11.1", aliases, mode="graph")


def optimum(folder: Path) -> RealSet:
    """Eager transformers on an A100-80GB: LLaMA 7B and 13B."""
    parts = []
    for size in ("7b", "13b"):
        frame = pd.read_csv(folder / f"optimum-Llama-{size}_full_report.csv")
        frame = frame[frame["experiment_name"] == "fp16"]
        new, prompt = frame["benchmark.new_tokens"], frame["benchmark.input_shapes.sequence_length"]
        parts.append(
            pd.DataFrame(
                {
                    "model": f"llama-{size}",
                    "batch": frame["benchmark.input_shapes.batch_size"],
                    "context": prompt + 0.5 * new,
                    "step_ms": 1000.0 * frame["decode.latency(s)"] / (new - 1),
                }
            )
        )
    return _set("optimum", folder, pd.concat(parts), "A100-80GB", "llama-7b", "transformers", mode="eager")


def _llmpilot(folder: Path, gpu: str, sku: str) -> RealSet:
    frame = pd.read_csv(folder / "llmpilot.csv")
    frame = frame[(frame["gpu"] == gpu) & (frame["n"] >= 30)]
    cells = pd.DataFrame(
        {
            "model": frame["model"].map(_short),
            "batch": frame["batch"],
            "context": frame["context_mean"],
            "step_ms": frame["step_ms_median"],
        }
    )
    return _set(f"llmpilot-{gpu}", folder, cells, sku, "llama-7b", "TGI")


def llmpilot_a100(folder: Path) -> RealSet:
    """A TGI-like server on an A100-40GB; steps are whole milliseconds."""
    return _llmpilot(folder, "a100", "A100-40GB")


def llmpilot_h100(folder: Path) -> RealSet:
    """The same on an H100."""
    return _llmpilot(folder, "h100", "H100")


def _argonne(folder: Path, gpu: str, stack: str = "vLLM") -> RealSet:
    found = load_measurements(folder.parent / "argonne" / "All_results.csv", format="argonne", stack=stack)
    frame = found.frame[found.frame["gpu"] == gpu]
    frame = frame[frame["model"].map(lambda m: not found.shapes[m].is_moe)]
    cells = frame[["model", "gpu", "batch", "context", "step_ms"]].reset_index(drop=True)
    shapes = {m: found.shapes[m] for m in dict.fromkeys(cells["model"])}
    anchor = "Meta-Llama-3-8B" if "Meta-Llama-3-8B" in shapes else next(iter(shapes))
    return RealSet(f"argonne-{gpu}", anchor, cells, shapes, gpus.load(gpu), stack)


def argonne_h100(folder: Path) -> RealSet:
    """vLLM of 2024 on an H100, batch 1 to 64, contexts to 2,048."""
    return _argonne(folder, "H100")


def argonne_a100(folder: Path) -> RealSet:
    """The same on an A100-40GB."""
    return _argonne(folder, "A100-40GB")


SETS: Mapping[str, Callable[[Path], RealSet]] = {
    "mlenergy-v2": mlenergy_v2,
    "mlenergy-v3": mlenergy_v3,
    "optimum": optimum,
    "llmpilot-a100": llmpilot_a100,
    "llmpilot-h100": llmpilot_h100,
    "argonne-h100": argonne_h100,
    "argonne-a100": argonne_a100,
}
"""Sets by name; those of splitwise are all on two GPUs and more."""


def read(folder: Path, name: str) -> RealSet:
    """One set; InputError where its file is not there."""
    try:
        return SETS[name](folder)
    except FileNotFoundError as error:
        raise InputError(f"{name}: no file {error.filename}; give the folder that holds the public sets") from error
