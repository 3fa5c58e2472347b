"""Floor structures ranked by how well each predicts a cell that it has not seen: elpd, weights, the one chosen."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from rooffloor.models.floor.structures import FloorStructure
from rooffloor.models.specs.cells import Cells
from rooffloor.validate.published.printed_figures import PER_GPU

type Array = NDArray[np.float64]
type Found = Mapping[str, Any]
"""What a worker returned."""

STUDY = PER_GPU
CLOSE_ELPD = 4.0
CLOSE_SE = 2.0
"""A structure predicts about as well as the best within so much elpd or so many standard errors of the difference."""
FAR_ELPD, FAR_SE = 20.0, 6.0
"""A structure whose short fit is so much elpd, and so many standard errors of the difference, below the best is far
behind: it is not fitted again for refits either."""
GOOD_K = 0.7
"""From a larger Pareto k on, PSIS-LOO is not to be trusted."""
SHORT = "short fit"
"""What stands at the gate of a structure that was not fitted again."""
RESAMPLES = 40
"""Bootstrap samples of the cells that stacking weights are averaged over."""


def parameters(structure: FloorStructure, cells: Cells, classes: Mapping[str, str]) -> int:
    """Free parameters of the floors, the measure of simplicity: floors, growth with launches, terms, latency, q."""
    if structure.sharing is None:
        return 0
    groups = structure.groups(cells, classes)
    floors = len(set(zip(cells.gpu_code.tolist(), groups.code.tolist(), strict=True)))
    growth = len(cells.gpus) * structure.sharing.per_launch + structure.sharing.kernel_latency
    return floors + growth + len(cells.gpus) * len(structure.terms) + structure.q_free


def difference(elpd: Array, other: Array) -> tuple[float, float]:
    """How much more elpd, summed over cells, and the standard error of that."""
    gap = elpd - other
    return float(gap.sum()), float(np.sqrt(len(gap) * gap.var()))


def is_clear(gain: float, dse: float) -> bool:
    """Whether a difference of elpd is more than two structures that predict alike have."""
    return abs(gain) > max(CLOSE_ELPD, CLOSE_SE * dse)


def is_far(short: Found, best: Found) -> bool:
    """Whether a short fit tells that a structure is far behind the best."""
    gap, dse = difference(short["elpd"], best["elpd"])
    return bool(short["passed"]) and gap < -max(FAR_ELPD, FAR_SE * dse)


def is_below(short: Found, best: Found) -> bool:
    """Whether a short fit, settled or not, tells that a structure is far behind: its best chain is, in sample."""
    gap, dse = difference(short["ceiling"], best["elpd"])
    return gap < -max(FAR_ELPD, FAR_SE * dse)


def rank(
    competing: Sequence[FloorStructure],
    found: Mapping[str, Found],
    cells: Cells,
    classes: Mapping[str, str],
    *,
    weighted: bool = True,
) -> list[dict[str, Any]]:
    """Rows of `Comparison.structures`, best first; failed fits last. Weights are 0 unless `weighted`."""
    good = {str(s): found[str(s)]["elpd"] for s in competing if found[str(s)]["passed"]}
    weights = dict(zip(good, stacking_weights(list(good.values())) if weighted else np.zeros(len(good)), strict=True))
    top = max(good.values(), key=np.sum, default=None)
    rows = []
    for s in competing:
        name, r = str(s), found[str(s)]
        row: dict[str, Any] = {
            "name": name,
            "shared_by": s.shared_by,
            "combine": s.combine if s.sharing is not None else "none",
            "parameters": parameters(s, cells, classes),
        }
        if name in good and top is not None:
            diff, dse = difference(r["elpd"], top)
            row |= {
                "elpd": float(r["elpd"].sum()),
                "se": float(np.sqrt(len(top) * r["elpd"].var())),
                "elpd_diff": diff,
                "dse": dse,
                "weight": float(weights[name]),
                "p_loo": float(r["p"].sum()),
            }
        else:
            row |= dict.fromkeys(("elpd", "se", "elpd_diff", "dse", "weight", "p_loo"))
        row |= {
            "exact": int(r["exact"].sum()),
            "gate": ("passed" if name in good else str(r["failures"]))
            if "short" not in r
            else _of_short(r, name in good),
        }
        row |= {key: r[key].item() for key in ("rhat", "ess", "divergences", "attempts")}
        rows.append(row)
    return sorted(rows, key=lambda row: -np.inf if row["elpd"] is None else row["elpd"], reverse=True)


def _of_short(found: Found, passed: bool) -> str:
    return SHORT if passed else f"{found['failures']} in a {SHORT}"


def is_close(row: Mapping[str, Any]) -> bool:
    """Whether a structure predicts about as well as the best."""
    return row["elpd"] is not None and not is_clear(row["elpd_diff"], row["dse"])


def choose(rows: Sequence[Mapping[str, Any]]) -> str:
    """Name of the simplest structure that predicts about as well as the best."""
    close = [row for row in rows if is_close(row)]
    return str(min(close, key=lambda row: (row["parameters"], -row["elpd"]))["name"])


def stacking_weights(elpd: Sequence[Array], *, resamples: int = RESAMPLES) -> Array:
    """Weights of a mixture of predictions that scores best, [structure], from the elpd of each cell.

    The mean over bootstrap samples of the cells: where two structures predict alike, as nested ones do, one set of
    cells gives all weight to either by a hair, and another set to the other.
    """
    if len(elpd) < 2:
        return np.ones(len(elpd))
    values, rng = np.array(elpd), np.random.default_rng(len(elpd))
    cells = values.shape[1]
    return np.asarray(np.mean([_stacked(values[:, rng.integers(cells, size=cells)]) for _ in range(resamples)], axis=0))


def _stacked(values: Array) -> Array:
    """Stacking weights [structure] for elpd [structure, cell]: those whose mixture has the largest log score.

    The sum of the weights is 1 where the mean log score less that sum is largest, so that it needs no constraint.
    """
    density, count = np.exp(values - values.max(0)), len(values)

    def loss(weight: Array) -> tuple[float, Array]:
        mixed = np.maximum(weight @ density, 1e-300)
        return float(weight.sum() - np.log(mixed).mean()), 1.0 - (density / mixed).mean(1)

    options = {"maxiter": 1000, "ftol": 1e-11, "gtol": 1e-7}
    start, bounds = np.full(count, 1.0 / count), [(0.0, None)] * count
    weight = minimize(loss, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options).x
    return np.asarray(weight / weight.sum())
