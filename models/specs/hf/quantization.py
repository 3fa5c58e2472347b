"""What a checkpoint's quantisation config says of its weights and cache, kernel by kernel.

Read are `quantization_config` (or `compression_config`) of config.json and, where a folder has one, the side file
hf_quant_config.json of ModelOpt. The keys are those that transformers, compressed-tensors, ModelOpt and Quark write.
"""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from rooffloor.models.specs.formats import FORMATS, SIXTEEN_BIT, Formats, NumberFormat
from rooffloor.models.specs.hf.keys import Config
from rooffloor.models.specs.hf.modules import Module, matcher, modules
from rooffloor.models.specs.inputs import shown
from rooffloor.models.specs.shapes import ModelShapes

SIDE_FILE = "hf_quant_config.json"
"""ModelOpt's file beside config.json."""

_LONGEST_METHOD = 40
_ALGORITHMS = {  # quant_algo of ModelOpt and TensorRT-LLM
    "FP8": "fp8",
    "FP8_PER_CHANNEL_PER_TOKEN": "fp8",
    "FP8_PB_WO": "fp8",
    "FP8_PB_REAL": "fp8",
    "FP8_BLOCK_SCALES": "fp8",
    "MXFP8": "mxfp8",
    "W8A8_SQ_PER_CHANNEL": "int8",
    "W8A8_SQ_PER_CHANNEL_PER_TOKEN_PLUGIN": "int8",
    "INT8_SQ": "int8",
    "W8A16": "int8, 16-bit inputs",
    "INT4_AWQ": "int4",
    "W4A16": "int4",
    "W4A16_AWQ": "int4",
    "W4A16_GPTQ": "int4",
    "W4A8_AWQ": "int4",
    "NVFP4": "nvfp4",
    "NVFP4_AWQ": "nvfp4",
    "NVFP4_SVDQUANT": "nvfp4",
    "W4A16_NVFP4": "nvfp4, 16-bit inputs",
    "W4A16_MXFP4": "mxfp4",
    "W4A8_MXFP4_FP8": "mxfp4",
    "W4A8_MXFP4_MXFP8": "mxfp4",
    "W4A8_NVFP4_FP8": "nvfp4, 16-bit inputs",
}
_METHODS = {  # quant_method without bits of its own
    "fp8": "fp8",
    "fbgemm_fp8": "fp8",
    "finegrained_fp8": "fp8",
    "mxfp4": "mxfp4",
    "mxfp8": "mxfp8",
    "nvfp4": "nvfp4",
    "eetq": "int8, 16-bit inputs",
    "modelopt_fp4": "nvfp4",
}
_BY_BITS = ("gptq", "gptq_marlin", "awq", "awq_marlin", "auto-round", "intel/auto-round", "auto_round", "moe_wna16")
_WEIGHTS_ALONE = ", 16-bit inputs"
_LISTS = ("modules_to_not_convert", "ignored_layers", "ignore", "exclude_modules", "exclude", "llm_int8_skip_modules")


type Rule = tuple[tuple[str, ...] | None, NumberFormat]

_NO_HEAD: Rule = (("lm_head",), SIXTEEN_BIT)


@dataclass(frozen=True)
class Quantisation:
    """What a checkpoint says of its number formats.

    Attributes
    ----------
    text : str
        For the reader, such as "fp8", "gptq 4-bit" or "modelopt NVFP4"; "": 16-bit.
    rules : tuple of (patterns, format)
        Modules that match a pattern are in the format of the first rule that names them; patterns None: all modules.
        Format 16-bit: left as they are.
    cache : NumberFormat
    known : bool
        Whether the format is one whose bytes are known here; else counts take 16-bit values.
    """

    text: str = ""
    rules: tuple[Rule, ...] = ()
    cache: NumberFormat = SIXTEEN_BIT
    known: bool = True

    def formats(self, shapes: ModelShapes) -> Formats:
        """The share of each kernel's weights that is in each format."""
        found: dict[tuple[str, NumberFormat], int] = {}
        total: dict[str, int] = {}
        rules = [(None if patterns is None else matcher(patterns), stored) for patterns, stored in self.rules]
        for module in modules(shapes, [p for patterns, _ in self.rules for p in patterns or ()]):
            total[module.kernel] = total.get(module.kernel, 0) + module.weights
            stored = _of(module, rules)
            if stored != SIXTEEN_BIT:
                key = module.kernel, stored
                found[key] = found.get(key, 0) + module.weights
        weights = tuple((kernel, stored, count / total[kernel]) for (kernel, stored), count in found.items())
        return Formats(weights, self.cache)


def _of(module: Module, rules: list[tuple[Callable[[str], bool] | None, NumberFormat]]) -> NumberFormat:
    """The format of the first rule that names a module; a router has to be named itself."""
    for named, stored in rules:
        if module.kernel != "router" if named is None else any(named(name) for name in module.names):
            return stored
    return SIXTEEN_BIT


def stored(shapes: ModelShapes, said: Quantisation) -> ModelShapes:
    """The shapes with the number formats that a checkpoint has, or is given."""
    return replace(shapes, number_format=said.text, formats=said.formats(shapes))


def of(config: Config, side: object = None) -> Quantisation:
    """What a config.json, and the content of its side file, say; ValueError as `read`."""
    for table in (config.outer, config.table):
        for key in ("quantization_config", "compression_config"):
            if table.get(key):
                return read(config.error, table[key], side)
    return read(config.error, None, side)


def read(error: Callable[[str], ValueError], stated: object, side: object = None) -> Quantisation:
    """What a `quantization_config`, and the content of a side file, say.

    Parameters
    ----------
    error : function
        Makes the error of one line of text that says where.
    stated : object
        The parsed `quantization_config`; None or empty: none.
    side : object, optional
        The parsed hf_quant_config.json.

    Raises
    ------
    ValueError
        It names no method, or a value has no sense.
    """
    if side is not None and not stated:
        inner = side.get("quantization") if isinstance(side, Mapping) else None
        if not isinstance(inner, Mapping):
            raise error(f"{SIDE_FILE} must have a table quantization, got {shown(inner)}")
        stated = dict(inner) | {"quant_method": "modelopt"}
    if not stated:
        return Quantisation()
    if not isinstance(stated, Mapping):
        raise error(f"quantization_config must name its quant_method, got {shown(stated)}")
    return _Reader(error, stated).read()


class _Reader:
    """One quantization_config, read with checks."""

    def __init__(self, error: Callable[[str], ValueError], stated: Mapping[str, Any]) -> None:
        self.stated, self._error = stated, error

    def read(self) -> Quantisation:
        """The whole config."""
        algorithm, method = self.name("quant_algo"), self.name("quant_method")
        if not method and not algorithm:
            raise self.error(f" must name its quant_method, got {shown(self.stated)}")
        if algorithm or method.startswith("modelopt"):
            return self.modelopt(method or "modelopt", algorithm)
        if method in ("compressed-tensors", "compressed_tensors", "sparseml"):
            return self.compressed(method)
        if method == "quark":
            return self.quark()
        return self.plain(method)

    def error(self, text: str) -> ValueError:
        return self._error(f"quantization_config{text}")

    def name(self, key: str) -> str:
        value = self.stated.get(key)
        if value is None:
            return ""
        if not isinstance(value, str) or not value.isprintable() or not 0 < len(value) <= _LONGEST_METHOD:
            raise self.error(f" must name its quant_method, got {shown(value)}")
        return value

    def whole(self, table: Mapping[str, Any], *keys: str, most: int = 1 << 20) -> int | None:
        """A whole number from 1 under the first of several keys that is there; -1 (one group) reads as None."""
        for key in keys:
            value = table.get(key)
            if value is None or value == -1:
                continue
            if type(value) is not int or not 1 <= value <= most:
                raise self.error(f".{key} must be a whole number from 1 to {most}, got {shown(value)}")
            return value
        return None

    def listed(self, value: object, key: str) -> tuple[str, ...]:
        """A list of names of modules."""
        if value is None:
            return ()
        if not isinstance(value, list) or not all(isinstance(entry, str) for entry in value):
            raise self.error(f".{key} must list names of modules, got {shown(value)}")
        return tuple(entry for entry in value if entry)

    def table(self, value: object, key: str) -> Mapping[str, Any]:
        if not isinstance(value, Mapping):
            raise self.error(f".{key} must be a table, got {shown(value)}")
        return value

    def left_alone(self) -> Rule:
        """The rule of what is not quantised."""
        names = [name for key in _LISTS for name in self.listed(self.stated.get(key), key)]
        dynamic = self.table(self.stated.get("dynamic") or {}, "dynamic")  # GPTQModel: "-:" and a regular expression
        names += [f"re:{pattern[2:]}" for pattern in dynamic if pattern.startswith("-:")]
        extra = self.table(self.stated.get("extra_config") or {}, "extra_config")  # AutoRound: bits of single modules
        names += [name for name, entry in extra.items() if isinstance(entry, Mapping) and entry.get("bits") == 16]
        return tuple(names), SIXTEEN_BIT

    def rules(self, stored: NumberFormat, *, head: bool = False) -> tuple[Rule, ...]:
        """One format for all modules but those that are left alone; `head`: also the LM head."""
        return (self.left_alone(), *(() if head else (_NO_HEAD,)), (None, stored))

    def plain(self, method: str) -> Quantisation:
        """A method with one format for all that it touches."""
        key = method.casefold()
        bits = self.whole(self.stated, "bits", "w_bit", most=64)
        if bits is None:
            bits = next((n for n in (4, 8) if self.stated.get(f"load_in_{n}bit") is True), None)
        text = method if bits is None else f"{method} {bits}-bit"
        stored: NumberFormat | None = None
        if key in _BY_BITS:
            stored = self.grouped(bits or 4, self.stated, zero=bits or 4 if key.startswith(("gptq", "awq")) else 0)
        elif key == "bitsandbytes":
            stored = FORMATS["nf4"] if bits == 4 else FORMATS["int8, 16-bit inputs"]
            if bits == 4 and self.stated.get("bnb_4bit_use_double_quant") is True:
                stored = replace(stored, group_bits=8)
        elif key in ("hqq", "quanto", "torchao"):
            stored = self.named_inside(key)
        elif key in _METHODS:
            stored = FORMATS[_METHODS[key]]
        if stored is None:
            return Quantisation(text, known=False)
        if key == "mxfp4":  # gpt-oss: the experts alone
            return Quantisation(text, (self.left_alone(), (("experts",), stored)))
        return Quantisation(text, self.rules(stored, head=self.stated.get("lm_head") is True))

    def named_inside(self, method: str) -> NumberFormat | None:
        """HQQ: bits of a group in a table; quanto: a name; torchao: the name of a class, with its group."""
        if method == "hqq":
            outer = self.table(self.stated.get("quant_config"), "quant_config")
            table = self.table(outer.get("weight_quant_params"), "quant_config.weight_quant_params")
            bits = self.whole(table, "nbits", most=8)
            return None if bits is None else self.grouped(bits, table, zero=16)
        if method == "quanto":
            known = {"int8": "int8, 16-bit inputs", "float8": "fp8, 16-bit inputs", "int4": "int4"}
            name = known.get(str(self.stated.get("weights")))
            return None if name is None else FORMATS[name]
        kind = self.stated.get("quant_type")
        inner = kind.get("default") if isinstance(kind, Mapping) else kind
        text = str(inner.get("_type", "") if isinstance(inner, Mapping) else inner).casefold().replace("_", "")
        data = inner.get("_data") if isinstance(inner, Mapping) else None
        table = data if isinstance(data, Mapping) else {}
        if text.startswith("int4weightonly"):
            return self.grouped(4, {"group_size": table.get("group_size", 128)}, zero=16)
        whole = {"float8dynamic": "fp8", "float8weightonly": "fp8, 16-bit inputs", "int8dynamic": "int8"}
        whole["int8weightonly"] = "int8, 16-bit inputs"
        return next((FORMATS[name] for start, name in whole.items() if text.startswith(start)), None)

    def grouped(self, bits: int, table: Mapping[str, Any], zero: int = 0) -> NumberFormat:
        """Integers with a 16-bit scale, and a zero point of `zero` bits, per group of values."""
        group = self.whole(table, "group_size", "q_group_size")
        if bits == 8 and not group:
            return FORMATS["int8, 16-bit inputs"]
        return NumberFormat(f"int{bits}", bits, group or 0, 16 + zero if group else 0)

    def modelopt(self, method: str, algorithm: str) -> Quantisation:
        """ModelOpt: quant_algo, the format of the cache, and layers with algorithms of their own."""
        cache = self.stated.get("kv_cache_quant_algo", self.stated.get("kv_cache_scheme"))
        if not algorithm and "config_groups" in self.stated:
            return self.compressed(method)
        text = f"{method} {algorithm}".strip()
        if algorithm == "MIXED_PRECISION":
            layers = self.table(self.stated.get("quantized_layers"), "quantized_layers")
            by_format: dict[NumberFormat, list[str]] = {}
            for name, entry in layers.items():
                inner = self.table(entry, f"quantized_layers.{name[:80]}")
                stored = self.algorithm(inner.get("quant_algo"), inner)
                by_format.setdefault(stored or SIXTEEN_BIT, []).append(name)
            rules = tuple((tuple(names), stored) for stored, names in by_format.items())
            return Quantisation(text, rules, self.cache(cache))
        found = self.algorithm(algorithm, self.stated)
        if found is None:
            return Quantisation(text, cache=self.cache(cache), known=False)
        return Quantisation(text, self.rules(found), self.cache(cache))

    def algorithm(self, algorithm: object, table: Mapping[str, Any]) -> NumberFormat | None:
        """The format of a quant_algo, with the group that is stated beside it."""
        known = _ALGORITHMS.get(str(algorithm).upper())
        if known is None:
            return None
        group = self.whole(table, "group_size")
        return replace(FORMATS[known], group=group) if group and FORMATS[known].group else FORMATS[known]

    def cache(self, stated: object) -> NumberFormat:
        """The format of the cache: the name of an algorithm, or a table of bits and type."""
        if stated is None:
            return SIXTEEN_BIT
        if isinstance(stated, str):
            known = {"FP8": "fp8", "INT8": "int8", "NVFP4": "nvfp4", "NONE": "16-bit", "AUTO": "16-bit"}
            name = known.get(stated.upper())
            return SIXTEEN_BIT if name is None else FORMATS[name]
        stored = self.of_scheme(self.table(stated, "kv_cache_scheme"), None) or SIXTEEN_BIT
        return FORMATS.get(stored.name.removesuffix(_WEIGHTS_ALONE), stored)

    def compressed(self, method: str) -> Quantisation:
        """compressed-tensors: groups of modules, each with its scheme; what `ignore` lists is left as it is."""
        groups = self.table(self.stated.get("config_groups", {}), "config_groups")
        rules, everything = [self.left_alone()], list[Rule]()
        known = bool(groups)
        for name, entry in groups.items():
            group = self.table(entry, f"config_groups.{str(name)[:80]}")
            scheme = group.get("weights")
            if scheme is None:
                continue
            inputs = group.get("input_activations")
            stored = self.of_scheme(self.table(scheme, "config_groups.weights"), inputs)
            if stored is None:
                known = False
                continue
            targets = self.listed(group.get("targets"), "config_groups.targets")
            classes = [t for t in targets if t.isidentifier() and t[:1].isupper()]  # such as Linear
            if classes or not targets:
                everything.append((None, stored))
            else:
                rules.append((targets, stored))
        form = self.stated.get("format")
        text = f"{method} {form}" if isinstance(form, str) and form.isprintable() and len(form) <= 40 else method
        return Quantisation(text, (*rules, *everything), self.cache(self.stated.get("kv_cache_scheme")), known)

    def of_scheme(self, weights: Mapping[str, Any], inputs: object) -> NumberFormat | None:
        """The format of a scheme of compressed-tensors; None where its bytes are not known."""
        bits, kind = self.whole(weights, "num_bits", most=64), weights.get("type", "int")
        group = self.whole(weights, "group_size")
        activations = inputs.get("num_bits") if isinstance(inputs, Mapping) else None
        if kind == "float" and bits == 8:
            scales = weights.get("scale_dtype")
            mx = group == 32 and (scales is None or "e8m0" in str(scales) or "uint8" in str(scales))
            return FORMATS["mxfp8" if mx else "fp8" if activations == 8 else "fp8, 16-bit inputs"]
        if kind == "float" and bits == 4 and group:
            name = "nvfp4" if group == 16 else "mxfp4"
            if name == "nvfp4" and activations != 4:
                name = "nvfp4, 16-bit inputs"
            return replace(FORMATS[name], group=group)
        if kind == "int" and bits is not None and bits <= 8:
            if bits == 8 and activations == 8:
                return FORMATS["int8"]
            return self.grouped(bits, weights, zero=0 if weights.get("symmetric", True) else bits)
        return None

    def quark(self) -> Quantisation:
        """Quark: a global scheme, and schemes of layers by pattern."""
        layers = self.table(self.stated.get("layer_quant_config") or {}, "layer_quant_config")
        schemes = [*layers.items(), ("", self.stated.get("global_quant_config"))]
        rules, known, names = [self.left_alone()], True, list[str]()
        for pattern, entry in schemes:
            weight = entry.get("weight") if isinstance(entry, Mapping) else None
            weight = weight[0] if isinstance(weight, list) and weight else weight
            if not isinstance(weight, Mapping):
                continue
            inputs = entry.get("input_tensors") if isinstance(entry, Mapping) else None
            stored = self.of_quark(weight, inputs)
            known &= stored is not None
            if stored is not None:
                names.append(stored.name)
                rules.append(((pattern,) if pattern else None, stored))
        cache = self.stated.get("export")
        groups = cache.get("kv_cache_group") if isinstance(cache, Mapping) else None
        kv = FORMATS["fp8"] if groups else SIXTEEN_BIT
        return Quantisation(" ".join(("quark", *dict.fromkeys(names))), tuple(rules), kv, known and bool(names))

    def of_quark(self, weight: Mapping[str, Any], inputs: object) -> NumberFormat | None:
        """The format of a tensor of Quark."""
        dtype, group = str(weight.get("dtype", "")).casefold(), self.whole(weight, "group_size")
        if dtype.startswith("fp8"):
            return FORMATS["fp8" if inputs else "fp8, 16-bit inputs"]
        if dtype in ("fp4", "mx", "mxfp4") or (dtype.startswith("fp4") and group):
            return replace(FORMATS["mxfp4"], group=group or 32)
        if dtype in ("int8", "uint8"):
            return FORMATS["int8" if inputs else "int8, 16-bit inputs"]
        if dtype in ("int4", "uint4"):
            return self.grouped(4, weight, zero=4 if dtype == "uint4" else 0)
        return None


@functools.cache
def uniform(stored: NumberFormat, cache: NumberFormat = SIXTEEN_BIT) -> Quantisation:
    """All matrix products but the LM head in one format."""
    return Quantisation("" if stored == SIXTEEN_BIT else stored.name, (_NO_HEAD, (None, stored)), cache)
