"""The density as nutpie calls it, with no Python in between: C functions over one buffer.

nutpie hands a model's functions one pointer beside the point. Behind it lies what `Tables` holds, flat: integers first
(how many there are, lengths, where each field lies, its shape, codes), then numbers. Reading it back costs next to
nothing: every array is a view.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numba import carray, cfunc, types
from numpy.typing import NDArray
from nutpie.compile_pymc import CompiledPyMCModel

from rooffloor.models.inference.density import log_density
from rooffloor.models.inference.density_stages import cached, compiled
from rooffloor.models.inference.packing import Tables

type Buffer = NDArray[np.int64]

HEAD = 2
"""Integers, and numbers, that follow."""
ENTRY = 4
"""Integers per field: where it starts, and up to three lengths."""

BAD_POINT, WRONG_SIZE = 4, -1
"""What a density returns beside 0: where it is not finite nutpie takes the step for a divergence."""


def flat(tables: Tables) -> Buffer:
    """The tables as one buffer; scalars are arrays of one."""
    head = np.zeros((len(tables), ENTRY), dtype=np.int64)
    parts: dict[str, list[NDArray[Any]]] = {"i": [], "f": []}
    length = {"i": HEAD + head.size, "f": 0}
    for row, value in zip(head, tables, strict=True):
        array = np.atleast_1d(np.asarray(value))
        kind = "f" if array.dtype.kind == "f" else "i"
        row[0], row[1 : 1 + array.ndim] = length[kind], array.shape
        parts[kind].append(array.ravel())
        length[kind] += array.size
    integers = np.concatenate([[length["i"], length["f"]], head.ravel(), *parts["i"]]).astype(np.int64)
    return np.concatenate([integers, np.concatenate(parts["f"]).astype(float).view(np.int64)])


@compiled
def _i(ints, field):
    return ints[ints[HEAD + ENTRY * field]]


@compiled
def _codes(ints, field):
    at = HEAD + ENTRY * field
    return ints[ints[at] : ints[at] + ints[at + 1]]


@compiled
def _f(ints, floats, field):
    return floats[ints[HEAD + ENTRY * field]]


@compiled
def _line(ints, floats, field):
    at = HEAD + ENTRY * field
    return floats[ints[at] : ints[at] + ints[at + 1]]


@compiled
def _square(ints, floats, field):
    at = HEAD + ENTRY * field
    rows, columns = ints[at + 1], ints[at + 2]
    return floats[ints[at] : ints[at] + rows * columns].reshape((rows, columns))


@compiled
def _cube(ints, floats, field):
    at = HEAD + ENTRY * field
    a, b, c = ints[at + 1], ints[at + 2], ints[at + 3]
    return floats[ints[at] : ints[at] + a * b * c].reshape((a, b, c))


@compiled
def unpacked(ints, floats):
    """`Tables` of a buffer, in the order of its fields; views, but for scalars."""
    return Tables(
        _line(ints, floats, 0),  # measured
        _line(ints, floats, 1),  # known_sd
        _line(ints, floats, 2),  # branch
        _cube(ints, floats, 3),  # times
        _square(ints, floats, 4),  # columns
        _line(ints, floats, 5),  # overlap
        _line(ints, floats, 6),  # overlap_free
        _line(ints, floats, 7),  # relative_launches
        _square(ints, floats, 8),  # units
        _line(ints, floats, 9),  # host
        _codes(ints, 10),  # pair
        _codes(ints, 11),  # model
        _codes(ints, 12),  # constants_of
        _codes(ints, 13),  # launch_gpu
        _codes(ints, 14),  # term_gpu
        _i(ints, 15),  # sets
        _i(ints, 16) != 0,  # ridge
        _i(ints, 17) != 0,  # query
        _i(ints, 18) != 0,  # latency
        _i(ints, 19),  # models
        _square(ints, floats, 20),  # noise_basis
        _i(ints, 21) != 0,  # student
        _i(ints, 22) != 0,  # has_floor
        _i(ints, 23) != 0,  # positive
        _i(ints, 24) != 0,  # grouped
        _i(ints, 25),  # q_mode
        _f(ints, floats, 26),  # anchor_q
        _i(ints, 27),  # growth
        _i(ints, 28),  # launch_gpus
        _i(ints, 29),  # term_gpus
        _i(ints, 30) != 0,  # has_host
        _f(ints, floats, 31),  # launches
        _codes(ints, 32),  # size
        _square(ints, floats, 33),  # basis
        _codes(ints, 34),  # block
        _line(ints, floats, 35),  # start
        _line(ints, floats, 36),  # known
        _square(ints, floats, 37),  # fill
        _line(ints, floats, 38),  # fill_sd
        _codes(ints, 39),  # order
        _square(ints, floats, 40),  # grid_basis
        _codes(ints, 41),  # grid_block
        _square(ints, floats, 42),  # eta
        _square(ints, floats, 43),  # logarithms
        _line(ints, floats, 44),  # inverse
        _line(ints, floats, 45),  # noise
        _line(ints, floats, 46),  # nu
        _line(ints, floats, 47),  # level
        _line(ints, floats, 48),  # scales
        _line(ints, floats, 49),  # launch
        _square(ints, floats, 50),  # term
    )


@compiled
def _density(buffer, x, grad):
    """Log density at `x` of the model in a buffer."""
    ints = buffer[: buffer[0]]
    floats = buffer[buffer[0] :].view(np.float64)
    tables = unpacked(ints, floats)
    log, _ = log_density(tables, x, grad, np.empty(tables.order.size))
    return log


_DOUBLE = types.CPointer(types.double)
_DATA = types.CPointer(types.int64)


def _c_function(signature: Any) -> Callable[[Callable[..., Any]], Any]:
    """A C function."""
    return lambda function: cached(partial(cfunc, signature), function)


@_c_function(types.int64(types.uint64, _DOUBLE, _DOUBLE, _DOUBLE, _DATA))
def density_of_point(size, point, gradient, value, data):
    """nutpie's density: 0, or why there is none."""
    head = carray(data, HEAD)
    buffer = carray(data, head[0] + head[1])
    grad = carray(gradient, size)
    log = _density(buffer, carray(point, size), grad)
    carray(value, 1)[0] = log
    if not (math.isfinite(log) and np.isfinite(grad).all()):
        return BAD_POINT
    return 0


@_c_function(types.int64(types.uint64, types.uint64, _DOUBLE, _DOUBLE, _DATA))
def point_itself(size, expanded, point, out, data):
    """nutpie's expansion of a draw: x as it is, for `density.expand` to read all at once."""
    if size != expanded:
        return WRONG_SIZE
    carray(out, size)[:] = carray(point, size)
    return 0


def sampled(tables: Tables, size: int, start: Callable[[Any], NDArray[np.float64]]) -> CompiledPyMCModel:
    """A model as nutpie takes it, with x [size] as its one variable; chains begin at `start` of a seed."""
    return CompiledPyMCModel(
        dims={},
        compiled_logp_func=density_of_point,
        compiled_expand_func=point_itself,
        initial_point_func=start,
        shared_data={},
        shared_var_keys={},
        user_data=flat(tables),
        n_expanded=size,
        shape_info=(["x"], [slice(0, size)], [(size,)]),
        logp_func=None,
        expand_func=None,
        _n_dim=size,
        _shapes={"x": (size,)},
        _coords={},
    )
