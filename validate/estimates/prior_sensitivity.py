"""How far a posterior follows its prior and its likelihood: power-scaling, by importance weights and without refits.

A density raised to a power near 1 is slightly stronger or weaker; the sensitivity of a quantity is the distance that
its posterior then moves, per doubling of the power (Kallioinen et al. 2024, doi 10.1007/s11222-023-10366-5). 0.05 and
more counts: the mean of a normal posterior then moves by about a quarter of its sd. Too few draws look like
sensitivity: a density that has nothing to do with a quantity still gives about 0.3 sd(log density) / sqrt(effective
draws), and more where the quantity has a long tail (then take its logarithm). The prior of the floors includes their
hierarchy, so that sensitivity to it grows with the number of floors.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]

THRESHOLD = 0.05
"""From here on a sensitivity counts."""

MIN_DRAWS = 100
"""Fewest draws, of all chains together, for the weights to be smoothed."""

CONFLICT, WEAK, NONE = "prior-data conflict", "strong prior or weak likelihood", "-"


def power_scaling(
    quantities: Mapping[str, ArrayLike], log_prior: xr.Dataset, log_likelihood: ArrayLike
) -> list[dict[str, Any]]:
    """Sensitivity of posterior quantities to the prior, to each of its components, and to the likelihood.

    Parameters
    ----------
    quantities : mapping of name to array (chain, draw)
    log_prior : Dataset (chain, draw)
        Log density of each component, as `prior_density.log_prior` gives it.
    log_likelihood : array (chain, draw, cell)

    Returns
    -------
    list of dict
        One row per quantity: `quantity`; `prior`, all components together; `likelihood`; `components`, by name;
        `diagnosis`, see `diagnosis_of`. What is constant has sensitivity 0.

    Raises
    ------
    ValueError
        Shapes that differ, fewer than `MIN_DRAWS` draws, or values that are not finite.
    """
    values = {name: np.asarray(v, dtype=float) for name, v in quantities.items()}
    components = {str(n): v.transpose("chain", "draw").to_numpy() for n, v in log_prior.data_vars.items()}
    likelihood = np.asarray(log_likelihood, dtype=float).sum(axis=-1)
    for name, array in {**values, **components}.items():
        _check(name, array, likelihood.shape)
    _check("log likelihood", likelihood, likelihood.shape)
    prior = np.sum(list(components.values()), axis=0) if components else np.zeros(likelihood.shape)
    to_prior, to_likelihood = _sensitivity(values, prior), _sensitivity(values, likelihood)
    to_component = {component: _sensitivity(values, density) for component, density in components.items()}
    return [
        _row(name, to_prior[name], to_likelihood[name], {c: found[name] for c, found in to_component.items()})
        for name in values
    ]


def _row(quantity: str, prior: float, likelihood: float, components: dict[str, float]) -> dict[str, Any]:
    row = {"quantity": quantity, "prior": prior, "likelihood": likelihood, "components": components}
    return row | {"diagnosis": diagnosis_of(prior, likelihood)}


def averaged(tables: Sequence[Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """Rows of `power_scaling` for the same quantities in several posteriors, averaged, and diagnosed anew."""
    rows = []
    for same in zip(*tables, strict=True):
        prior, likelihood = (float(np.mean([row[name] for row in same])) for name in ("prior", "likelihood"))
        components = {c: float(np.mean([row["components"][c] for row in same])) for c in same[0]["components"]}
        rows.append(_row(same[0]["quantity"], prior, likelihood, components))
    return rows


def floors_against_anchor(floor_ms: "xr.DataArray", anchor: str, pairs: Iterable[tuple[str, str]]) -> dict[str, Array]:
    """The floors that the hypotheses are about, by name: the anchor's, and of other models less the anchor's.

    Parameters
    ----------
    floor_ms : DataArray (chain, draw, gpu, model)
    pairs : (model, GPU) that were measured
    """
    found = {}
    for model, gpu in dict.fromkeys(pairs):
        own = floor_ms.sel(gpu=gpu, model=model).to_numpy()
        if model == anchor:
            found[f"floor of {model} on {gpu}"] = own
        else:
            found[f"floor of {model} less the anchor's on {gpu}"] = own - floor_ms.sel(gpu=gpu, model=anchor).to_numpy()
    return found


def diagnosis_of(prior: float, likelihood: float) -> str:
    """The rule of priorsense: prior and likelihood both count, or the prior alone."""
    if prior < THRESHOLD:
        return NONE
    return WEAK if likelihood < THRESHOLD else CONFLICT


def _check(name: str, array: Array, shape: tuple[int, ...]) -> None:
    if array.shape != shape or len(shape) != 2:
        raise ValueError(f"{name} has shape {array.shape}: expected (chain, draw), {shape} as the likelihood")
    if array.size < MIN_DRAWS:
        raise ValueError(f"{array.size} draws are too few for power-scaling: {MIN_DRAWS} are needed")
    if not np.isfinite(array).all():
        raise ValueError(f"{name} is not finite in {np.count_nonzero(~np.isfinite(array))} of {array.size} draws")


def _is_constant(array: Array) -> bool:
    return bool(np.ptp(array) <= 1e-12 * np.abs(array).max())


def _sensitivity(values: Mapping[str, Array], log_density: Array) -> dict[str, float]:
    """Sensitivity of each quantity (chain, draw) to one log density (chain, draw)."""
    from arviz_stats import psense

    moving = {name: array for name, array in values.items() if not _is_constant(array)}
    found = dict.fromkeys(values, 0.0)
    if not moving or _is_constant(log_density):
        return found
    groups = {
        "posterior": xr.Dataset({"value": (("chain", "draw", "quantity"), np.stack([*moving.values()], axis=-1))}),
        "log_prior": xr.Dataset({"log_density": (("chain", "draw"), log_density)}),  # psense asks only for a sum
    }
    moved = psense(xr.DataTree.from_dict(groups), group="prior", sample_dims=["chain", "draw"])["value"]
    return found | dict(zip(moving, moved.to_numpy().tolist(), strict=True))


def warnings_of(rows: list[dict[str, Any]]) -> list[str]:
    """What to do about rows of `power_scaling`, conflicts first.

    One text for all quantities with the same diagnosis that the same component of the prior moves most.
    """
    grouped: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        if row["diagnosis"] != NONE:
            parts = row["components"]
            grouped.setdefault((row["diagnosis"], max(parts, key=parts.__getitem__)), []).append(row)
    return [_sentence(*key, grouped[key]) for key in sorted(grouped)]


def _sentence(diagnosis: str, component: str, rows: list[dict[str, Any]]) -> str:
    names = ", ".join(row["quantity"] for row in rows)
    sizes = [row["prior"] for row in rows]
    size = f"sensitivity {sizes[0]:.2f}" if len(rows) == 1 else f"sensitivities {min(sizes):.2f} to {max(sizes):.2f}"
    said = f"{diagnosis}: {names} ({size} to the prior, most to its part {component!r}). "
    if diagnosis == CONFLICT:
        return said + f"Prior and data pull apart: check the cells, or widen the priors of {component!r} and compare."
    return said + f"The prior decides: justify the priors of {component!r}, or add cells that see these quantities."
