"""What the roof does not model: refused by name, never guessed."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rooffloor.models.specs.hf.architectures import LAYER_TYPES, Fields, windows
from rooffloor.models.specs.hf.keys import Config
from rooffloor.models.specs.inputs import read_toml, shown

_EXPERT_KEYS = ("num_local_experts", "num_experts", "n_routed_experts")
_TABLE = read_toml(Path(__file__).with_suffix(".toml"))
NOT_MODELLED = {kind: what for what, kinds in _TABLE["model_types"].items() for kind in kinds}
"""Why a model_type is refused: the layers that the roof does not model."""
FOREIGN_KEYS = {key: what for what, keys in _TABLE["keys"].items() for key in keys}
"""Keys that, where set, stand for layers that the roof does not model."""


def fault(table: Mapping[str, Any], kind: object) -> str:
    """The layers for which an architecture is not modelled, where that is known."""
    if isinstance(kind, str) and kind in NOT_MODELLED:
        return NOT_MODELLED[kind]
    text = table.get("text_config")
    for part in (table, text if isinstance(text, Mapping) else {}):
        for key, what in FOREIGN_KEYS.items():
            if part.get(key):
                return f"{what} ({key})"
        layers = part.get("layer_types")
        for entry in layers if isinstance(layers, list) else ():
            if entry not in LAYER_TYPES:
                return f"{shown(entry)} layers (layer_types)"
    return ""


def check_unread(config: Config, fields: Fields) -> None:
    """Refuses experts, windows and biases that the config states and the architecture does not have."""
    table, none = config.table, f"contradicts model_type {config.kind!r}, which has none"
    for key in _EXPERT_KEYS:
        if table.get(key) and key not in config.consulted:
            raise config.error(f"{key} {none}")
    switch = "use_sliding_window"
    unknown = not config.consulted & {"sliding_window", switch}
    if unknown and (table.get(switch) or (table.get(switch) is None and table.get("sliding_window"))):
        raise config.error(f"{switch if table.get(switch) else 'sliding_window'} {none}")
    if "layer_types" not in config.consulted and windows(config, fields["layers"], 0):
        raise config.error(f"a sliding window in layer_types {none}")
    for key, field in (("attention_bias", "qkv_bias"), ("mlp_bias", "mlp_bias")):
        if config.flag(key) and not fields.get(field):
            raise config.error(f"{key} {none}")
