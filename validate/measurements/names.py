"""Names of models and GPUs: those that a study brings, then the catalog."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from rooffloor.models.specs import gpus, shapes
from rooffloor.models.specs.gpus import GpuSpec
from rooffloor.models.specs.shapes import ModelShapes


@dataclass(frozen=True)
class Names:
    """Resolves names, exact but for upper and lower case; `models` and `gpus` go before the catalog.

    `stored`: the rows that are wanted of a model are those in the number formats of its shapes; else 16-bit ones.
    """

    models: Mapping[str, ModelShapes] = field(default_factory=dict)
    gpus: Mapping[str, GpuSpec] = field(default_factory=dict)
    stored: bool = False

    def shapes(self, name: str) -> ModelShapes:
        """The model called `name`; ValueError that lists the known ones where there is none.

        A hub id that neither `models` nor the catalog has is looked up by its last part in `models`.
        """
        if own := _own(self.models, name):
            return own
        try:
            return shapes.load(name)
        except ValueError:
            if own := _own(self.models, name.rsplit("/", 1)[-1]):
                return own
            raise

    def gpu(self, name: str) -> GpuSpec:
        """The GPU called `name`; ValueError that lists the known ones where there is none."""
        return _own(self.gpus, name) or gpus.load(name)


def _own[Spec](specs: Mapping[str, Spec], name: str) -> Spec | None:
    return next((spec for key, spec in specs.items() if key.casefold() == name.strip().casefold()), None)
