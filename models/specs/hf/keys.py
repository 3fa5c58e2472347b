"""The keys of a config.json, read with checks; an error is one line that names the file and the key."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rooffloor.models.specs.inputs import shown
from rooffloor.models.specs.shapes import LARGEST


@dataclass
class Config:
    """The keys of one config.json.

    Attributes
    ----------
    where : str
        The file, for messages.
    kind : str
        The model_type.
    table, outer : mapping
        The keys of the text model, and those of the file around it (the same where nothing is nested).
    defaults : mapping
        Values of keys that the config leaves out.
    consulted : set of str
        The keys asked for so far.
    """

    where: str
    kind: str
    table: Mapping[str, Any]
    outer: Mapping[str, Any]
    defaults: Mapping[str, Any]
    consulted: set[str] = field(default_factory=set)

    def error(self, text: str) -> ValueError:
        """One line that says where."""
        return ValueError(f"{self.where}: {text}")

    def value(self, *keys: str) -> Any:
        """The value of a key that has several names; null where it is null, the default where it is left out."""
        self.consulted.update(keys)
        stated = {key: self.table[key] for key in keys if self.table.get(key) is not None}
        first = next(iter(stated.values()), None)
        if len(stated) > 1 and any(type(v) is not type(first) or v != first for v in stated.values()):
            raise self.error(f"{' and '.join(stated)} contradict each other")
        left_out = not any(key in self.table for key in keys)
        return self.defaults.get(keys[0]) if left_out else first

    def whole(self, *keys: str, least: int = 1) -> int:
        """A whole number from `least`."""
        value = self.value(*keys)
        if type(value) is not int or not least <= value <= LARGEST:
            got = "it is missing" if value is None else f"got {shown(value)}"
            name = next((key for key in keys if key in self.table), keys[0])
            raise self.error(f"{name} must be a whole number from {least} to {LARGEST}, {got}")
        return value

    def optional(self, *keys: str) -> int:
        """A whole number from 1; 0 where it is null, or left out and without a default."""
        return 0 if self.value(*keys) is None else self.whole(*keys)

    def flag(self, key: str) -> bool:
        """True or false; where it is null or left out the default, without one false."""
        value = self.value(key)
        if value is None:
            value = self.defaults.get(key, False)
        if type(value) is not bool:
            raise self.error(f"{key} must be true or false, got {shown(value)}")
        return value

    def tied(self) -> bool:
        """Whether the LM head is the embedding table: as the text model says, else the file around it."""
        key = "tie_word_embeddings"
        inner, outer = self.table.get(key), self.outer.get(key)
        if type(inner) is bool and type(outer) is bool and inner is not outer:
            raise self.error(f"{key} {outer} contradicts {key} {inner} of text_config")
        if inner is None and type(outer) is bool:
            return outer
        return self.flag(key)
