"""Model shapes: what a decoder-only transformer is made of, and how many weights and cache bytes follow."""

import dataclasses
import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rooffloor.models.specs.formats import ALL_SIXTEEN_BIT, Formats
from rooffloor.models.specs.inputs import read_toml, shown, toml_name

BYTES_PER_VALUE = 2
"""Bytes of one 16-bit value: activations, embeddings, norms and biases whatever the number format."""

_CATALOG = Path(__file__).parent / "catalog" / "models.toml"
LARGEST = 10**9
"""Largest value of one shape."""

_LARGEST_TOTAL = 10**15  # parameters: twice as many bytes are still exact in a float64
_LONGEST_NAME = 200


@dataclass(frozen=True)
class ModelShapes:
    """Shapes of one decoder-only transformer; layers alike but for `dense_layers` and `windowed_layers`.

    Attributes
    ----------
    name : str
    hidden, intermediate, layers, heads, kv_heads, head_dim, vocab : int
        `intermediate` is the width of a dense MLP; unused where every layer has experts.
    max_context : int
        Largest number of positions of one sequence.
    tied_embeddings : bool
        The LM head is the embedding table (counted once as parameters, still read in every step).
    qkv_bias, attn_out_bias, mlp_bias, lm_head_bias : bool
    experts, top_k, expert_width : int
        Routed experts per layer (0: dense), how many a token visits, the width of one.
    dense_layers : int
        Layers of a model with experts that have a dense MLP of width `intermediate` instead.
    shared_width : int
        Width of the shared expert that every token visits (0: none).
    shared_gate : bool
        The shared expert's output passes a sigmoid gate (one more row of weights).
    gated_mlp : bool
        SwiGLU-like: two matrices before the activation; else one.
    router_bias, attention_sinks : bool
        A bias per expert; one learned logit per query head and layer that takes attention away.
    norms_per_layer : int
    norm_weights, norm_bias, embedding_norm : bool
        Norms scale (OLMo's have no weights, yet are launched); LayerNorm with bias; a norm behind the
        embedding.
    qk_norm, qk_norm_wide : bool
        RMS norms of queries and keys: with the weights of one head, or (wide) of all heads together.
    rotary : bool
        Queries and keys are rotated.
    learned_positions : int
        Rows of a learned position table (0: none).
    kv_heads_total : int
        KV heads summed over the layers where they vary (`kv_heads` is then the largest); 0 means
        `layers * kv_heads`.
    sliding_window : int
        A token attends to that many tokens at most (0: to all): in `windowed_layers` layers, in all of them
        where that is 0.
    windowed_layers : int
    kv_lora_rank, qk_rope_head_dim, qk_nope_head_dim, v_head_dim, q_lora_rank : int
        Multi-head latent attention (0: none). The cache holds one latent of kv_lora_rank + qk_rope_head_dim
        values per token and layer, which all heads share: `kv_heads` is 1, `head_dim` is that of the queries,
        qk_nope_head_dim + qk_rope_head_dim. q_lora_rank 0: queries are projected directly.
    number_format : str
        How the checkpoint stores its weights where that is not 16-bit ("fp8", "gptq 4-bit"), as it says itself.
    formats : Formats
        The same kernel by kernel, and the format of the cache, for every count of bytes.
    source : str

    Raises
    ------
    ValueError
        A field has no sensible value or contradicts another.

    Examples
    --------
    >>> load("meta-llama/Llama-3.1-8B").kv_bytes_per_token
    131072
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
    windowed_layers: int = 0
    dense_layers: int = 0
    router_bias: bool = False
    attention_sinks: bool = False
    norm_weights: bool = True
    qk_norm_wide: bool = False
    kv_lora_rank: int = 0
    q_lora_rank: int = 0
    qk_rope_head_dim: int = 0
    qk_nope_head_dim: int = 0
    v_head_dim: int = 0
    number_format: str = ""
    formats: Formats = ALL_SIXTEEN_BIT
    source: str = "config.json of the model"

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name.isprintable() or len(self.name) > _LONGEST_NAME:
            raise ValueError(
                f"a model's name must be one line of printable text, at most {_LONGEST_NAME} characters, "
                f"got {shown(self.name)}"
            )
        for field in dataclasses.fields(self):
            value, least = getattr(self, field.name), int(field.default is dataclasses.MISSING)
            if field.type is int:
                good, wanted = type(value) is int and least <= value <= LARGEST, f"a whole number, {least} to {LARGEST}"
            elif field.type is bool:
                good, wanted = type(value) is bool, "true or false"
            elif field.type is Formats:
                good, wanted = isinstance(value, Formats), "Formats"
            else:
                good, wanted = isinstance(value, str), "text"
            if not good:
                raise self._error(f"{field.name} must be {wanted}, got {shown(value)}")
        if self.heads % self.kv_heads:
            raise self._error(f"{self.heads} query heads cannot be shared by {self.kv_heads} KV heads")
        if self.kv_heads_total and not self.layers <= self.kv_heads_total <= self.layers * self.kv_heads:
            raise self._error(
                f"kv_heads_total {self.kv_heads_total} does not fit {self.layers} layers "
                f"of 1 to {self.kv_heads} KV heads"
            )
        self._check_experts()
        self._check_attention()
        if self.parameters > _LARGEST_TOTAL:
            raise self._error(f"{self.parameters:.3g} parameters are more than any model has")

    def _check_experts(self) -> None:
        if self.experts and not (1 <= self.top_k <= self.experts and self.expert_width):
            raise self._error(
                f"{self.experts} experts need 1 <= top_k <= experts and an expert width, "
                f"got top_k {self.top_k} and width {self.expert_width}"
            )
        if not self.experts and (self.top_k or self.expert_width or self.shared_width):
            raise self._error("top_k, expert_width and shared_width need experts")
        if not self.experts and (self.dense_layers or self.router_bias):
            raise self._error("dense_layers and router_bias need experts")
        if self.dense_layers >= self.layers:
            raise self._error(f"{self.dense_layers} dense_layers leave none of {self.layers} layers for experts")
        if self.shared_gate and not self.shared_width:
            raise self._error("shared_gate needs a shared_width")

    def _check_attention(self) -> None:
        if self.windowed_layers and not self.sliding_window:
            raise self._error("windowed_layers needs a sliding_window")
        if self.windowed_layers > self.layers:
            raise self._error(f"{self.windowed_layers} windowed_layers are more than {self.layers} layers")
        if self.windowed_layers and self.kv_heads_total:
            raise self._error("windowed_layers and KV heads that vary by layer are not modelled together")
        if self.qk_norm_wide and not self.qk_norm:
            raise self._error("qk_norm_wide needs qk_norm")
        latent = (self.kv_lora_rank, self.qk_rope_head_dim, self.qk_nope_head_dim, self.v_head_dim)
        if not self.kv_lora_rank and (any(latent) or self.q_lora_rank):
            raise self._error("q_lora_rank, qk_rope_head_dim, qk_nope_head_dim and v_head_dim need a kv_lora_rank")
        if self.kv_lora_rank:
            if not all(latent):
                raise self._error("kv_lora_rank needs qk_rope_head_dim, qk_nope_head_dim and v_head_dim")
            if self.kv_heads != 1 or self.kv_heads_total:
                raise self._error("latent attention has one KV head in each layer: kv_heads must be 1")
            if self.head_dim != self.qk_nope_head_dim + self.qk_rope_head_dim:
                raise self._error("head_dim must be qk_nope_head_dim + qk_rope_head_dim")
            if self.sliding_window or self.qk_norm:
                raise self._error("latent attention with sliding_window or qk_norm is not modelled")

    def _error(self, text: str) -> ValueError:
        return ValueError(f"model {shown(self.name)}: {text}")

    @property
    def is_moe(self) -> bool:
        """Whether the MLP is a mixture of routed experts."""
        return self.experts > 0

    @property
    def is_mla(self) -> bool:
        """Whether attention reads one latent that all heads share (multi-head latent attention)."""
        return self.kv_lora_rank > 0

    @property
    def moe_layers(self) -> int:
        """Layers with routed experts."""
        return self.layers - self.dense_layers if self.is_moe else 0

    @property
    def kv_heads_summed(self) -> int:
        """KV heads summed over the layers."""
        return self.kv_heads_total or self.layers * self.kv_heads

    @property
    def value_width(self) -> int:
        """Values that attention hands to the output projection, per token and layer."""
        return self.heads * (self.v_head_dim if self.is_mla else self.head_dim)

    @property
    def cache_width(self) -> int:
        """Cached values of one token, all layers: keys and values, or one latent for both."""
        if self.is_mla:
            return self.layers * (self.kv_lora_rank + self.qk_rope_head_dim)
        return 2 * self.kv_heads_summed * self.head_dim

    @functools.cached_property
    def kv_bytes_per_token(self) -> int:
        """Cache bytes of one token, all layers."""
        return self.formats.cache.bytes_of(self.cache_width)

    @functools.cached_property
    def decode_attention_flops(self) -> int:
        """FLOPs of decode attention per token and attended token, all layers.

        With a latent in the absorbed form: scores over kv_lora_rank + qk_rope_head_dim values, outputs over
        kv_lora_rank, for every head.
        """
        if self.is_mla:
            return 2 * self.layers * self.heads * (2 * self.kv_lora_rank + self.qk_rope_head_dim)
        return 4 * self.layers * self.heads * self.head_dim

    @functools.cached_property
    def query_head_bytes(self) -> int:
        """Cache bytes of one token, all layers, were they read once per query head."""
        if self.is_mla:
            return self.heads * self.kv_bytes_per_token
        return self.formats.cache.bytes_of(2 * self.layers * self.heads * self.head_dim)

    @functools.cached_property
    def linear_weights(self) -> dict[str, int]:
        """Weights of the matrix products by kernel, summed over the layers.

        `gate_up` and `down` hold *one* routed expert per layer where there are experts; `shared_gate_up` and
        `shared_down` are the MLP weights beside them that every token visits: shared experts and dense layers.
        A tied LM head counts: it is read in every step.
        """
        up = 2 if self.gated_mlp else 1
        width = self.expert_width if self.is_moe else self.intermediate
        mlp_layers = self.moe_layers if self.is_moe else self.layers
        always = self.moe_layers * self.shared_width + self.dense_layers * self.intermediate
        gate = self.hidden if self.shared_gate else 0
        return {
            "qkv": self._qkv_weights,
            "attn_out": self.hidden * self.layers * self.value_width,
            "router": self.moe_layers * self.hidden * self.experts,
            "gate_up": mlp_layers * self.hidden * width * up,
            "down": mlp_layers * self.hidden * width,
            "shared_gate_up": self.hidden * always * up + self.moe_layers * gate,
            "shared_down": self.hidden * always,
            "lm_head": self.hidden * self.vocab,
        }

    @functools.cached_property
    def linear_bytes(self) -> dict[str, int]:
        """Bytes of `linear_weights` as they are stored, with their scales."""
        return {kernel: self.formats.bytes_of(kernel, count) for kernel, count in self.linear_weights.items()}

    @property
    def _qkv_weights(self) -> int:
        query_width = self.heads * self.head_dim
        if not self.is_mla:
            return self.hidden * (self.layers * query_width + self.cache_width)
        rank = self.q_lora_rank
        query = rank * (self.hidden + query_width) if rank else self.hidden * query_width
        down = self.hidden * (self.kv_lora_rank + self.qk_rope_head_dim)
        up = self.kv_lora_rank * self.heads * (self.qk_nope_head_dim + self.v_head_dim)
        return self.layers * (query + down + up)

    @functools.cached_property
    def small_weights(self) -> dict[str, int]:
        """Biases by kernel (`attention`: sinks) and all norm weights (`norms`), summed over the layers.

        `gate_up` and `down` of one expert, as above.
        """
        up = 2 if self.gated_mlp else 1
        width = self.expert_width if self.is_moe else self.intermediate
        mlp_layers = self.moe_layers if self.is_moe else self.layers
        always = self.moe_layers * self.shared_width + self.dense_layers * self.intermediate
        always_layers = self.moe_layers * (self.shared_width > 0) + self.dense_layers
        if self.is_mla:  # of the projections into the latents
            qkv_width = self.layers * self.q_lora_rank + self.cache_width
        else:
            qkv_width = self.layers * self.heads * self.head_dim + self.cache_width
        return {
            "qkv": self.qkv_bias * qkv_width,
            "attention": self.attention_sinks * self.layers * self.heads,
            "attn_out": self.attn_out_bias * self.layers * self.hidden,
            "router": self.router_bias * self.moe_layers * self.experts,
            "gate_up": self.mlp_bias * mlp_layers * width * up,
            "down": self.mlp_bias * mlp_layers * self.hidden,
            "shared_gate_up": self.mlp_bias * always * up,
            "shared_down": self.mlp_bias * always_layers * self.hidden,
            "lm_head": self.lm_head_bias * self.vocab,
            "norms": self._norm_weights,
        }

    @property
    def _norm_weights(self) -> int:
        norms = self.norms_per_layer * self.layers + 1 + self.embedding_norm
        heads = self.layers * self.heads + self.kv_heads_summed if self.qk_norm_wide else 2 * self.layers
        latents = self.layers * (self.q_lora_rank + self.kv_lora_rank)
        return (
            self.norm_weights * norms * self.hidden * (1 + self.norm_bias)
            + self.qk_norm * heads * self.head_dim
            + latents
        )

    @property
    def parameters(self) -> int:
        """Total parameters: all experts, embedding and position tables; a tied head once."""
        head = self.tied_embeddings * self.linear_weights["lm_head"]
        return self._table + sum(self._all(self.linear_weights)) + sum(self._all(self.small_weights)) - head

    @property
    def weight_bytes(self) -> int:
        """Bytes of all `parameters` as they are stored."""
        head = self.tied_embeddings * self.linear_bytes["lm_head"]
        small = self._table + sum(self._all(self.small_weights))
        return small * BYTES_PER_VALUE + sum(self._all(self.linear_bytes)) - head

    @property
    def _table(self) -> int:
        """Values of the embedding and position tables."""
        return self.hidden * (self.vocab + self.learned_positions)

    def _all(self, of_one: Mapping[str, int]) -> Iterator[int]:
        """Counts by kernel, of every expert."""
        for kernel, count in of_one.items():
            yield count * (self.experts if self.is_moe and kernel in ("gate_up", "down") else 1)

    @classmethod
    def from_table(cls, name: str, table: Mapping[str, Any]) -> "ModelShapes":
        """Shapes from a table whose keys are the fields of this class (as in `catalog/models.toml`).

        Raises
        ------
        ValueError
            A key is missing or unknown, or a value has no sense.
        """
        fields = [field for field in dataclasses.fields(cls) if field.type is not Formats]
        known = {field.name: field.default is dataclasses.MISSING for field in fields}
        needed = [name for name, must in known.items() if must and name != "name"]
        unknown = sorted(set(table) - set(known) - {"aliases"})
        missing = [name for name in needed if name not in table]
        if unknown or missing:
            what = f"unknown key {shown(unknown[0])}" if unknown else f"missing key {missing[0]!r}"
            raise ValueError(f"model {shown(name)}: {what}; needed are {', '.join(needed)}")
        return cls(name=name, **{key: value for key, value in table.items() if key not in ("aliases", "name")})

    @classmethod
    def from_toml(cls, path: str | Path) -> "ModelShapes":
        """Shapes from a TOML file: the keys of `from_table`, optionally `name` (else the file's stem)."""
        table = read_toml(path)
        return cls.from_table(toml_name(path, table), table)


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


def known(name: str) -> bool:
    """Whether the catalog has a model of that name, or alias."""
    return name.strip().casefold() in _catalog()[1]


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
        raise ValueError(f"unknown model {shown(name)}; known: {', '.join(shapes)} (or give its config.json)")
    return shapes[aliases[key]]


def resolve(shapes: "str | ModelShapes") -> ModelShapes:
    """Shapes given as an object or by name."""
    return shapes if isinstance(shapes, ModelShapes) else load(shapes)
