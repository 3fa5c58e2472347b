"""Capacity: what fits into a GPU's memory."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rooffloor.models.roof.blocks import Floats, checked_axes
from rooffloor.models.specs.gpus import GpuSpec
from rooffloor.models.specs.gpus import resolve as resolve_gpu
from rooffloor.models.specs.shapes import ModelShapes
from rooffloor.models.specs.shapes import resolve as resolve_shapes

USABLE = 0.95
"""Share of the nominal memory that weights and cache may fill."""


def memory_bytes(shapes: str | ModelShapes, batch: ArrayLike, peak_context: ArrayLike) -> Floats:
    """Bytes of all weights (every expert) and of the cache at its largest.

    Parameters
    ----------
    shapes : ModelShapes or str
    batch, peak_context : arrays [...], broadcast
        Sequences (from 1); tokens in the cache of each at the end of the run (not the mean), from 0.

    Returns
    -------
    float array [...]

    Raises
    ------
    ValueError
        An unknown name, a batch below 1, a negative context.

    Notes
    -----
    Layers with a sliding window are taken to keep the whole context, as engines do that give all layers one
    cache; an engine with a cache per kind of layer keeps the window alone and holds more. Weights and cache in
    their `formats`.
    """
    shapes = resolve_shapes(shapes)
    sequences, cached = checked_axes(batch, peak_context)
    return shapes.weight_bytes + sequences * cached * shapes.kv_bytes_per_token


def fits(shapes: str | ModelShapes, gpu: str | GpuSpec, batch: ArrayLike, peak_context: ArrayLike) -> NDArray[np.bool_]:
    """Whether weights + batch * peak_context * cache bytes stay within 0.95 of the nominal memory.

    Arguments and errors as `memory_bytes`; bool array [...].
    """
    return np.asarray(memory_bytes(shapes, batch, peak_context) <= USABLE * resolve_gpu(gpu).memory_bytes)
