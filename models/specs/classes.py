"""Classes: models that share a floor by default."""

from rooffloor.models.specs.shapes import ModelShapes, resolve

_UPPER_BOUNDS = {"dense <2B": 2e9, "dense 2-5B": 5e9, "dense 5-10B": 10e9, "dense 10-20B": 20e9}
CLASSES: tuple[str, ...] = ("moe", *_UPPER_BOUNDS, "dense >20B")
"""All default classes."""


def default_class(shapes: str | ModelShapes) -> str:
    """`moe` where there are routed experts, else dense by total parameters (bounds 2, 5, 10, 20 billion).

    Raises
    ------
    ValueError
        The model's name is unknown.
    """
    shapes = resolve(shapes)
    if shapes.is_moe:
        return "moe"
    for name, bound in _UPPER_BOUNDS.items():
        if shapes.parameters < bound:
            return name
    return "dense >20B"
