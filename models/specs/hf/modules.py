"""The modules of a checkpoint by the names that configs have for them, and patterns of such names."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from rooffloor.models.specs.inputs import shown
from rooffloor.models.specs.shapes import ModelShapes

_MOST_LAYERS = 128
"""Layers beyond are taken to be as those before."""
_MOST_STARS, _MOST_EXPRESSIONS = 100, 20
"""Patterns with `*` that name one layer, or none, and regular expressions of one config."""
_LONGEST_EXPRESSION, _MOST_REPEATS, _MOST_GROUPS = 500, 2, 3
_CLASS = r"(?:\\[dw]|\[[\w.-]+\])"
_CHOICE = r"(?:[\w-]|\\[.-]|\\d|\[[\d-]+\])+"
_EXPRESSION = re.compile(rf"\^?(?:[\w-]|\\[._-]|{_CLASS}[+*]?|\.[+*]?|\((?:\?:)?{_CHOICE}(?:\|{_CHOICE})*\)\??)*\$?")
"""Regular expressions that are read: names, classes, `.*`, choices between names; others may take hours to match."""

_ATTENTION = ("self_attn", "attn", "attention", "self_attention")
_MLP = ("mlp", "feed_forward", "block_sparse_moe", "ffn")
_ROOTS = ("model.", "model.language_model.", "language_model.model.", "transformer.", "")
_UP, _DOWN = ("gate_proj", "up_proj", "gate_up_proj", "w1", "w3"), ("down_proj", "w2")


@dataclass(frozen=True)
class Module:
    """One matrix of a layer, or the LM head: its kernel, its weights, and the names it may go by."""

    kernel: str
    weights: int
    names: tuple[str, ...]


def modules(shapes: ModelShapes, patterns: Sequence[str]) -> Iterator[Module]:
    """The matrices of a model, of one layer of each kind where no pattern names a layer.

    Routed experts are those of one expert; layers with a dense MLP come first.
    """
    dense = shapes.dense_layers if shapes.is_moe else shapes.layers
    alike = dense in (0, shapes.layers) and not any(re.search(r"layers|\d", pattern) for pattern in patterns)
    layers = range(1 if alike else min(shapes.layers, _MOST_LAYERS))
    for layer in layers:
        yield from _layer(shapes, layer, layer < dense)
    yield Module("lm_head", shapes.linear_weights["lm_head"], ("lm_head", "output", "embed_out", "head"))


def _layer(shapes: ModelShapes, layer: int, dense: bool) -> Iterator[Module]:
    def named(parents: Sequence[str], *leaves: str) -> tuple[str, ...]:
        return tuple(f"layers.{layer}.{parent}.{leaf}" for parent in parents for leaf in leaves)

    query, value = shapes.heads * shapes.head_dim, shapes.value_width
    if shapes.is_mla:
        rank, latent = shapes.q_lora_rank, shapes.kv_lora_rank
        if rank:
            yield Module("qkv", shapes.hidden * rank, named(_ATTENTION, "q_a_proj", "wq_a"))
            yield Module("qkv", rank * query, named(_ATTENTION, "q_b_proj", "wq_b"))
        else:
            yield Module("qkv", shapes.hidden * query, named(_ATTENTION, "q_proj"))
        width = latent + shapes.qk_rope_head_dim
        yield Module("qkv", shapes.hidden * width, named(_ATTENTION, "kv_a_proj_with_mqa", "wkv_a"))
        width = shapes.heads * (shapes.qk_nope_head_dim + shapes.v_head_dim)
        yield Module("qkv", latent * width, named(_ATTENTION, "kv_b_proj", "wkv_b"))
    else:
        whole = ("qkv_proj", "query_key_value", "c_attn", "Wqkv")
        yield Module("qkv", shapes.hidden * query, named(_ATTENTION, "q_proj", "wq", *whole))
        width = shapes.kv_heads * shapes.head_dim
        yield Module("qkv", shapes.hidden * width, named(_ATTENTION, "k_proj", "wk", *whole))
        yield Module("qkv", shapes.hidden * width, named(_ATTENTION, "v_proj", "wv", *whole))
    yield Module("attn_out", value * shapes.hidden, named(_ATTENTION, "o_proj", "out_proj", "dense", "c_proj", "wo"))
    up = shapes.hidden * (2 if shapes.gated_mlp else 1)
    plain = tuple(parent for parent in _MLP if parent != "block_sparse_moe")
    if dense:
        kernels = ("shared_gate_up", "shared_down") if shapes.is_moe else ("gate_up", "down")
        old = ("fc1", "fc_in", "c_fc", "dense_h_to_4h"), ("fc2", "fc_out", "c_proj", "dense_4h_to_h")
        names = named(plain, *_UP, *old[0]), named(plain, *_DOWN, *old[1])
        yield Module(kernels[0], up * shapes.intermediate, names[0])
        yield Module(kernels[1], shapes.hidden * shapes.intermediate, names[1])
        return
    yield Module("router", shapes.hidden * shapes.experts, named(_MLP, "gate", "router", "gate.wg", "router.layer"))
    each = tuple(f"{parent}.experts{one}" for parent in _MLP for one in (".0", ""))
    yield Module("gate_up", up * shapes.expert_width, named(each, *_UP))
    yield Module("down", shapes.hidden * shapes.expert_width, named(each, *_DOWN))
    if shapes.shared_width:
        shared = tuple(f"{parent}.{name}" for parent in _MLP for name in ("shared_experts", "shared_expert"))
        yield Module("shared_gate_up", up * shapes.shared_width, named(shared, *_UP))
        yield Module("shared_down", shapes.hidden * shapes.shared_width, named(shared, *_DOWN))


def matcher(patterns: Sequence[str]) -> Callable[[str], bool]:
    """Whether a module of this name, or one that it lies in, is named by a pattern.

    A pattern is a name (a module, a part of its path, or the path of what holds it), a name with `*`, or a regular
    expression after "re:", as compressed-tensors has it.

    Raises
    ------
    ValueError
        A regular expression is none, or could take very long.
    """
    expressions = [_compiled(p[3:]) for p in patterns if p.startswith("re:")]
    plain, globs = dict[str, set[str]](), dict[str, list[list[str]]]()
    for pattern in (_rooted(p) for p in patterns if not p.startswith("re:")):
        layer = _layer_of(pattern)
        if "*" in pattern:
            globs.setdefault(layer, []).append(pattern.split("*"))
        else:
            plain.setdefault(layer, set()).add(pattern)
    for what, count, most in (
        ("regular expressions", len(expressions), _MOST_EXPRESSIONS),
        ("patterns with *", max(map(len, globs.values()), default=0), _MOST_STARS),
    ):
        if count > most:
            raise ValueError(f"{count} {what} are more than the {most} that are read")

    def named(name: str) -> bool:
        for layer in ("", _layer_of(name)):
            if layer in plain and not plain[layer].isdisjoint(_parts(name)):
                return True
            if layer in globs and any(_in_order(pieces, f"{name}.") for pieces in globs[layer]):
                return True
        return any(expression.match(root + name) for expression in expressions for root in _ROOTS)

    return named


def _layer_of(name: str) -> str:
    """The layer that a name or pattern begins with, such as "layers.3"; "": none, or several."""
    found = re.match(r"layers\.\d+(?=\.|$)", name)
    return found.group() if found else ""


def _parts(name: str) -> Iterator[str]:
    """The name and all parts of its path."""
    parts = name.split(".")
    yield from (".".join(parts[i:j]) for i in range(len(parts)) for j in range(i + 1, len(parts) + 1))


def _rooted(pattern: str) -> str:
    """A plain pattern without what stands before its layers or, in a part without layers, before its module."""
    pattern = pattern.strip().strip(".").removesuffix(".weight")
    pattern = re.sub(r"^.*?\b(?:layers|h|blocks)\.(?=[\d*])", "layers.", pattern)
    return re.sub(r"^(?:(?:model|language_model|transformer|text_model)\.)+", "", pattern)


def _in_order(pieces: Sequence[str], name: str) -> bool:
    """Whether a name has what stands between the stars in this order, from the start of a part to the end of one."""
    first, *others = pieces
    at = 0 if name.startswith(first) else name.find(f".{first}") + 1 or -1
    for n, piece in enumerate(others if at >= 0 else ()):
        last = n == len(others) - 1
        found = name.find(f"{piece}." if piece and last else piece, at + len(first) if n == 0 else at)
        if found < 0:
            return False
        at = found + len(piece)
    return at >= 0


def _compiled(text: str) -> re.Pattern[str]:
    """A regular expression that can be matched in little time."""
    core = re.sub(r"^\^?\.\*|\.\*\$?$", "", text)
    many = len(re.findall(r"(?<!\\)[*+]", core)) > _MOST_REPEATS or text.count("(") > _MOST_GROUPS
    doubled = any(
        len(set(choices)) < len(choices) for choices in (g.split("|") for g in re.findall(r"\(([^)]*)\)", text))
    )
    if len(text) > _LONGEST_EXPRESSION or many or doubled or not _EXPRESSION.fullmatch(text):
        raise ValueError(f"the regular expression {shown(text)} is of a kind that is not read")
    return re.compile(text)
