"""Model shapes: what a decoder-only transformer is made of, and how many weights and cache bytes follow."""

import dataclasses
import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from models.gpus import read_toml

BYTES_PER_VALUE = 2
"""Bytes of one 16-bit weight, activation or cache value."""

_CATALOG = Path(__file__).parent / "catalog" / "models.toml"
_LARGEST = 10**9
_POSITIVE = ("hidden", "intermediate", "layers", "heads", "kv_heads", "head_dim", "vocab", "max_context")
_COUNTS = (
    "experts",
    "top_k",
    "expert_width",
    "shared_width",
    "kv_heads_total",
    "sliding_window",
    "learned_positions",
    "norms_per_layer",
)


@dataclass(frozen=True)
class ModelShapes:
    """Shapes of one decoder-only transformer; all layers alike.

    Attributes
    ----------
    name : str
    hidden, intermediate, layers, heads, kv_heads, head_dim, vocab : int
        `intermediate` is the width of a dense MLP; unused where there are experts.
    max_context : int
        Largest number of positions of one sequence.
    tied_embeddings : bool
        The LM head is the embedding table (counted once as parameters, still read in every step).
    qkv_bias, attn_out_bias, mlp_bias, lm_head_bias : bool
    experts, top_k, expert_width : int
        Routed experts per layer (0: dense), how many a token visits, the width of one.
    shared_width : int
        Width of the shared expert that every token visits (0: none).
    shared_gate : bool
        The shared expert's output passes a sigmoid gate (one more row of weights).
    gated_mlp : bool
        SwiGLU-like: two matrices before the activation; else one.
    norm_bias, embedding_norm, qk_norm : bool
        LayerNorm with bias; a norm behind the embedding; RMS norms of queries and keys per head.
    norms_per_layer : int
    rotary : bool
        Queries and keys are rotated.
    learned_positions : int
        Rows of a learned position table (0: none).
    kv_heads_total : int
        KV heads summed over the layers where they vary (`kv_heads` is then the largest); 0 means
        `layers * kv_heads`.
    sliding_window : int
        A token attends to that many tokens at most, in every layer (0: to all).
    source : str

    Raises
    ------
    ValueError
        A field has no sensible value or contradicts another.
    """

    name: str
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    max_context: int
    tied_embeddings: bool = False
    qkv_bias: bool = False
    attn_out_bias: bool = False
    mlp_bias: bool = False
    lm_head_bias: bool = False
    experts: int = 0
    top_k: int = 0
    expert_width: int = 0
    shared_width: int = 0
    shared_gate: bool = False
    gated_mlp: bool = True
    norm_bias: bool = False
    embedding_norm: bool = False
    qk_norm: bool = False
    norms_per_layer: int = 2
    rotary: bool = True
    learned_positions: int = 0
    kv_heads_total: int = 0
    sliding_window: int = 0
    source: str = "config.json of the model"

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name in _POSITIVE or field.name in _COUNTS:
                least = 1 if field.name in _POSITIVE else 0
                if type(value) is not int or not least <= value <= _LARGEST:
                    raise self._error(f"{field.name} must be a whole number, {least} to {_LARGEST}, got {value!r}")
            elif field.name not in ("name", "source") and type(value) is not bool:
                raise self._error(f"{field.name} must be true or false, got {value!r}")
        if self.heads % self.kv_heads:
            raise self._error(f"{self.heads} query heads cannot be shared by {self.kv_heads} KV heads")
        if self.kv_heads_total and not self.layers <= self.kv_heads_total <= self.layers * self.kv_heads:
            raise self._error(
                f"kv_heads_total {self.kv_heads_total} does not fit {self.layers} layers "
                f"of 1 to {self.kv_heads} KV heads"
            )
        if self.experts and not (1 <= self.top_k <= self.experts and self.expert_width):
            raise self._error(
                f"{self.experts} experts need 1 <= top_k <= experts and an expert width, "
                f"got top_k {self.top_k} and width {self.expert_width}"
            )
        if not self.experts and (self.top_k or self.expert_width or self.shared_width):
            raise self._error("top_k, expert_width and shared_width need experts")
        if self.shared_gate and not self.shared_width:
            raise self._error("shared_gate needs a shared_width")

    def _error(self, text: str) -> ValueError:
        return ValueError(f"model {self.name!r}: {text}")

    @property
    def is_moe(self) -> bool:
        """Whether the MLP is a mixture of routed experts."""
        return self.experts > 0

    @property
    def kv_heads_summed(self) -> int:
        """KV heads summed over the layers."""
        return self.kv_heads_total or self.layers * self.kv_heads

    @property
    def kv_bytes_per_token(self) -> int:
        """Cache bytes of one token, all layers, keys and values, 16-bit."""
        return 2 * self.kv_heads_summed * self.head_dim * BYTES_PER_VALUE

    @property
    def linear_weights(self) -> dict[str, int]:
        """Weights of the matrix products by kernel, summed over the layers.

        `gate_up` and `down` hold *one* routed expert per layer where there are experts. A tied LM head
        counts: it is read in every step.
        """
        up = 2 if self.gated_mlp else 1
        width = self.expert_width if self.is_moe else self.intermediate
        gate = self.hidden if self.shared_gate else 0
        query_width = self.layers * self.heads * self.head_dim
        return {
            "qkv": self.hidden * (query_width + 2 * self.kv_heads_summed * self.head_dim),
            "attn_out": self.hidden * query_width,
            "router": self.layers * self.hidden * self.experts,
            "gate_up": self.layers * self.hidden * width * up,
            "down": self.layers * self.hidden * width,
            "shared_gate_up": self.layers * (self.hidden * self.shared_width * up + gate),
            "shared_down": self.layers * self.hidden * self.shared_width,
            "lm_head": self.hidden * self.vocab,
        }

    @property
    def small_weights(self) -> dict[str, int]:
        """Biases by kernel and all norm weights (`norms`), summed over the layers; of one expert as above."""
        up = 2 if self.gated_mlp else 1
        width = self.expert_width if self.is_moe else self.intermediate
        norms = self.norms_per_layer * self.layers + 1 + self.embedding_norm
        return {
            "qkv": self.qkv_bias
            * (self.layers * self.heads * self.head_dim + 2 * self.kv_heads_summed * self.head_dim),
            "attn_out": self.attn_out_bias * self.layers * self.hidden,
            "gate_up": self.mlp_bias * self.layers * width * up,
            "down": self.mlp_bias * self.layers * self.hidden,
            "lm_head": self.lm_head_bias * self.vocab,
            "norms": norms * self.hidden * (1 + self.norm_bias) + self.qk_norm * 2 * self.layers * self.head_dim,
        }

    @property
    def parameters(self) -> int:
        """Total parameters: all experts, embedding and position tables; a tied head once."""
        total = self.hidden * (self.vocab + self.learned_positions)
        for weights in (self.linear_weights, self.small_weights):
            for kernel, count in weights.items():
                routed = self.is_moe and kernel in ("gate_up", "down")
                total += count * (self.experts if routed else 1)
        return total - self.tied_embeddings * self.linear_weights["lm_head"]

    @classmethod
    def from_table(cls, name: str, table: Mapping[str, Any]) -> "ModelShapes":
        """Shapes from a table whose keys are the fields of this class (as in `catalog/models.toml`).

        Raises
        ------
        ValueError
            A key is missing or unknown, or a value has no sense.
        """
        known = {field.name for field in dataclasses.fields(cls)}
        unknown = sorted(set(table) - known - {"aliases"})
        missing = [field for field in _POSITIVE if field not in table]
        if unknown or missing:
            what = f"unknown key {unknown[0]!r}" if unknown else f"missing key {missing[0]!r}"
            raise ValueError(f"model {name!r}: {what}; needed are {', '.join(_POSITIVE)}")
        fields = {key: value for key, value in table.items() if key not in ("aliases", "name")}
        return cls(name=name, **fields)

    @classmethod
    def from_toml(cls, path: str | Path) -> "ModelShapes":
        """Shapes from a TOML file: the keys of `from_table`, optionally `name` (else the file's stem)."""
        table = read_toml(path)
        return cls.from_table(str(table.get("name", Path(path).stem)), table)

    @classmethod
    def from_hf_config(cls, config: str | Path | Mapping[str, Any], name: str | None = None) -> "ModelShapes":
        """Shapes from a Hugging Face config.json.

        Parameters
        ----------
        config : path or mapping
            The file, a folder that holds a config.json, or the parsed content.
        name : str, optional
            Name of the model; default: `_name_or_path`, else the file's or folder's name.

        Raises
        ------
        ValueError
            Not a JSON object; a `model_type` that is not read; a missing key; weights that are not 16-bit;
            layers that differ among themselves; a config that contradicts itself. One line that names the
            file and the key.

        Notes
        -----
        Read are llama, mistral, mixtral, qwen2, qwen2_moe, qwen3 and qwen3_moe. What their configs leave out
        is taken from the architecture: qwen2 and qwen2_moe have query, key and value biases, qwen3 has query
        and key norms, and a llama without `num_key_value_heads` has one KV head per query head.
        """
        return _from_hf_config(config, name)


_SHARED_KEYS = {
    "hidden": "hidden_size",
    "intermediate": "intermediate_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "vocab": "vocab_size",
    "max_context": "max_position_embeddings",
}
_EXPERT_KEYS = {
    "mixtral": {"experts": "num_local_experts", "expert_width": "intermediate_size"},
    "qwen2_moe": {
        "experts": "num_experts",
        "expert_width": "moe_intermediate_size",
        "shared_width": "shared_expert_intermediate_size",
    },
    "qwen3_moe": {"experts": "num_experts", "expert_width": "moe_intermediate_size"},
}
_ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "mixtral": "MixtralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen2_moe": "Qwen2MoeForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
}


def _from_hf_config(config: str | Path | Mapping[str, Any], name: str | None) -> ModelShapes:
    if isinstance(config, Mapping):
        where, default_name, table = "config", "config.json", config
    else:
        path = Path(config)
        path = path / "config.json" if path.is_dir() else path
        where, table = str(path), _read_json(path)
        default_name = path.parent.name if path.stem == "config" else path.stem.removesuffix("_config")
    name = name or str(table.get("_name_or_path") or default_name)

    def refuse(text: str) -> ValueError:
        return ValueError(f"{where}: {text}")

    def whole(key: str, default: int | None = None) -> int:
        value = table.get(key)
        if value is None and default is not None:
            return default
        if type(value) is not int or value < 1:
            got = "it is missing" if value is None else f"got {value!r}"
            raise refuse(f"{key} must be a whole number from 1, {got}")
        return value

    def flag(key: str, default: bool = False) -> bool:
        value = table.get(key)
        if value is None:
            return default
        if type(value) is not bool:
            raise refuse(f"{key} must be true or false, got {value!r}")
        return value

    kind = table.get("model_type")
    if not isinstance(kind, str) or kind not in _ARCHITECTURES:
        raise refuse(f"model_type {kind!r} is not modelled; read are {', '.join(_ARCHITECTURES)}")
    if (stated := table.get("architectures")) and stated != [_ARCHITECTURES[kind]]:
        raise refuse(f"architectures {stated!r} contradict model_type {kind!r} ({_ARCHITECTURES[kind]})")
    if table.get("quantization_config"):
        raise refuse("quantization_config: only 16-bit weights are modelled")
    if table.get("mlp_only_layers") or (kind in _EXPERT_KEYS and whole("decoder_sparse_step", 1) != 1):
        raise refuse("dense layers among MoE ones (mlp_only_layers, decoder_sparse_step) are not modelled")
    foreign = [key for key in ("num_local_experts", "num_experts", "n_routed_experts") if table.get(key)]
    if foreign and foreign != [_EXPERT_KEYS.get(kind, {}).get("experts")]:
        raise refuse(f"{foreign[0]} contradicts model_type {kind!r}")

    fields: dict[str, Any] = {field: whole(key) for field, key in _SHARED_KEYS.items()}
    fields["kv_heads"] = whole("num_key_value_heads", fields["heads"] if kind == "llama" else None)
    if table.get("head_dim") is None and fields["hidden"] % fields["heads"]:
        raise refuse(
            f"head_dim is missing and hidden_size {fields['hidden']} is no multiple of "
            f"num_attention_heads {fields['heads']}"
        )
    fields["head_dim"] = whole("head_dim", fields["hidden"] // fields["heads"])
    fields["tied_embeddings"] = flag("tie_word_embeddings")
    if kind in _EXPERT_KEYS:
        fields |= {field: whole(key) for field, key in _EXPERT_KEYS[kind].items()}
        fields["top_k"] = whole("num_experts_per_tok")
        fields["shared_gate"] = "shared_width" in fields
    if kind.startswith("qwen2"):
        fields["qkv_bias"] = flag("qkv_bias", default=True)
    else:
        fields["qkv_bias"] = fields["attn_out_bias"] = flag("attention_bias")
    fields["mlp_bias"] = flag("mlp_bias")
    fields["qk_norm"] = kind.startswith("qwen3")
    if kind.startswith("qwen") and flag("use_sliding_window"):
        raise refuse("use_sliding_window: layers with and without a window are not modelled")
    if kind in ("mistral", "mixtral") and table.get("sliding_window") is not None:
        fields["sliding_window"] = whole("sliding_window")
    try:
        return ModelShapes(name=name, source=where, **fields)
    except ValueError as error:
        raise refuse(str(error)) from error


def _read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; ValueError that names the file where there is none."""
    try:
        table = json.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{path}: expected a config.json ({' '.join(str(error).split())})") from error
    if not isinstance(table, dict):
        raise ValueError(f"{path}: expected a JSON object, got {type(table).__name__}")
    return table


@functools.cache
def _catalog() -> tuple[dict[str, ModelShapes], dict[str, str]]:
    """Shapes by name; names by folded alias."""
    table = read_toml(_CATALOG)
    shapes = {name: ModelShapes.from_table(name, entry) for name, entry in table.items()}
    aliases = {alias.casefold(): name for name, entry in table.items() for alias in (name, *entry["aliases"])}
    return shapes, aliases


def names() -> tuple[str, ...]:
    """Names of the models in the catalog."""
    return tuple(_catalog()[0])


def load(name: str) -> ModelShapes:
    """The model called `name` or one of its aliases, such as its hub id (exact, upper and lower case alike).

    Raises
    ------
    ValueError
        The name is unknown; the message lists the known ones.
    """
    shapes, aliases = _catalog()
    key = str(name).strip().casefold()
    if key not in aliases:
        raise ValueError(f"unknown model {name!r}; known: {', '.join(shapes)} (or give its config.json)")
    return shapes[aliases[key]]


def resolve(shapes: "str | ModelShapes") -> ModelShapes:
    """Shapes given as an object or by name."""
    return shapes if isinstance(shapes, ModelShapes) else load(shapes)
