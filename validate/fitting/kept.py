"""Fits that are kept on disk, so that an interrupted run resumes from its first fit on and says the same.

A posterior is kept as plain arrays, its labels and attempts as JSON; that a fit failed its gate is kept too.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rooffloor.models.inference.gate import Attempt, Diagnostics, GateFailure, Worst
from rooffloor.validate.common import runner

if TYPE_CHECKING:
    import xarray as xr

    from rooffloor.models.inference.cut import CutFit
    from rooffloor.models.inference.sampling import Fit


def fit(folder: Path | None, key: str, make: Callable[[], "Fit"]) -> "Fit":
    """A gated fit from `folder`, or made and kept there; made each time if `folder` is None.

    Parameters
    ----------
    key : str
        All that the fit depends on: data, model, settings, seed.
    make : callable
        Makes the fit; refuses by `GateFailure`.

    Raises
    ------
    GateFailure
        The fit failed its gate, now or when it was made.
    InputError
        `folder` cannot be written.
    """
    from rooffloor.models.inference.sampling import Fit

    def arrays() -> dict[str, ArrayLike]:
        fit = make()
        return to_arrays(fit.datatree) | {"attempts": _text(fit.attempts)}

    if folder is None:
        return make()
    found = _unless_failed(folder, key, arrays)
    return Fit(to_tree(found), _attempts(found["attempts"]))


def cut(folder: Path | None, key: str, make: Callable[[], "CutFit"]) -> "CutFit":
    """The second stage of a cut; as `fit` otherwise."""
    from rooffloor.models.inference.cut import CutFit

    def arrays() -> dict[str, ArrayLike]:
        made = make()
        facts: dict[str, ArrayLike] = {
            "inner": made.inner,
            "failed": np.array(made.failed, np.int64),
            "attempts": made.attempts,
        }
        return to_arrays(made.datatree) | facts

    if folder is None:
        return make()
    found = _unless_failed(folder, key, arrays)
    failed = tuple(int(k) for k in found["failed"])
    return CutFit(to_tree(found), int(found["inner"]), failed, int(found["attempts"]))


def _unless_failed(folder: Path, key: str, arrays: Callable[[], Mapping[str, ArrayLike]]) -> dict[str, NDArray[Any]]:
    """What is kept; GateFailure where that is a failure."""

    def attempted() -> Mapping[str, ArrayLike]:
        try:
            return arrays()
        except GateFailure as error:
            return {"failure": str(error), "attempts": _text(error.attempts)}

    found = runner.kept(folder, key, attempted)
    if "failure" in found:
        raise GateFailure(str(found["failure"]), _attempts(found["attempts"]))
    return found


def _text(attempts: tuple[Attempt, ...]) -> str:
    return json.dumps([asdict(one) for one in attempts])


def _attempts(text: NDArray[Any]) -> tuple[Attempt, ...]:
    found = []
    for one in json.loads(str(text)):
        about = one["diagnostics"]
        nuisance = None if about["nuisance"] is None else Worst(**about["nuisance"])
        words = {name: tuple(one[name]) for name in ("failures", "warnings")}
        found.append(Attempt(**one | words | {"diagnostics": Diagnostics(**about | {"nuisance": nuisance})}))
    return tuple(found)


def to_arrays(tree: "xr.DataTree") -> dict[str, ArrayLike]:
    """A tree of datasets as arrays by name: `labels` (JSON) says what each of the others, `array_N`, is."""
    groups: list[dict[str, Any]] = []
    arrays: dict[str, ArrayLike] = {}
    for node in tree.subtree:
        dataset, variables = node.to_dataset(inherit=False), []
        for name, variable in dataset.variables.items():
            values = variable.values
            arrays[f"array_{len(arrays)}"] = values.astype(str) if values.dtype.kind == "O" else values
            about = {"name": name, "dims": variable.dims, "coord": name in dataset.coords}
            variables.append(about | {"attrs": _plain(variable.attrs)})
        groups.append({"path": node.path, "variables": variables, "attrs": _plain(node.attrs)})
    return arrays | {"labels": json.dumps(groups)}


def to_tree(arrays: Mapping[str, NDArray[Any]]) -> "xr.DataTree":
    """The tree that `to_arrays` took apart."""
    import xarray as xr

    groups, number = {}, 0
    for group in json.loads(str(arrays["labels"])):
        sorts: dict[bool, dict[str, Any]] = {True: {}, False: {}}
        for about in group["variables"]:
            values = arrays[f"array_{number}"]
            sorts[about["coord"]][about["name"]] = xr.Variable(about["dims"], values, about["attrs"])
            number += 1
        groups[group["path"]] = xr.Dataset(sorts[False], sorts[True], group["attrs"])
    return xr.DataTree.from_dict(groups)


def _plain(attrs: Mapping[Any, Any]) -> dict[str, Any]:
    """Attributes that JSON holds; of NumPy's, the values."""
    found = {str(name): getattr(value, "tolist", lambda value=value: value)() for name, value in attrs.items()}
    return {name: value for name, value in found.items() if isinstance(value, str | int | float | bool | list)}
