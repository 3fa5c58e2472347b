"""Assumptions of a report that the imputed grids rest on, in numbers of the grids at hand."""

import numpy as np

from rooffloor.models.roof.roofline import bytes_floor_ms
from rooffloor.validate.estimates.cell_draws import Draws
from rooffloor.validate.published.bounds.grid_programme import RATIO
from rooffloor.validate.published.imputation.inversion import Prior
from rooffloor.validate.published.imputation.readings import DISCREPANCIES, FALL, ROOF, WEIGHTED
from rooffloor.validate.published.imputation.reconstruction import Reconstruction
from rooffloor.validate.published.printed_figures import A100, SMALL
from rooffloor.validate.reporting import tables

CONSTANTS = (
    "Constants have one prior in all fits and imputed grids (eta_bw a Beta with mean {0[0]:.2f} and sd {0[1]:.2f}, "
    "eta_fa {1[0]:.2f} and {1[1]:.2f}). The comparison of floor structures alone keeps wider ones and unordered grids, "
    "so that no structure is put out of reach by them."
).format(Prior().eta_bw, Prior().eta_fa)


def order(reconstruction: Reconstruction, draws: Draws) -> list[str]:
    """How grids are ordered, and what that leaves of the 1B's rise."""
    smooth, rough = (f"{100 * d.smooth_share:.0f} %" for d in DISCREPANCIES)
    falls = tables.falling_share(draws, 0.5 * FALL)
    found = [
        f"Imputed steps never fall by more than {100 * FALL:g} % where batch or context grows (by more than half of "
        f"that in {100 * falls:.1f} % of neighbours), T_gpu never falls, and the largest step of a grid is at most "
        f"{RATIO:g} times the least. What roof and floor leave varies smoothly in log batch and log context for "
        f"{smooth} of its variance; grids with {rough} stand among the sensitivities."
    ]
    small = reconstruction.cells.query("model == @SMALL and gpu == @A100 and weight > 0")
    top = small[small["batch"] == small["batch"].max()]
    ends = top.groupby("imputation")
    rise = ends["step_ms"].last() - ends["step_ms"].first()
    least = np.diff(bytes_floor_ms(SMALL, A100, [16, 16], [512, 8192]))[0]
    if len(rise) and rise.max() < least:
        found.append(
            f"So read, the rise of {SMALL} on {A100} ({rise.mean():.1f} ms) is less than its KV bytes need at peak "
            f"bandwidth ({least:.2f} ms): in every imputed grid part of the KV read hides under the floor, and what is "
            "excluded where a step rises at least by its KV read does not apply to that grid."
        )
    return found


def roofs(reconstruction: Reconstruction) -> list[str]:
    """Which roofs carry weight, and the evidence for that."""
    weight = reconstruction.cells.drop_duplicates("imputation").groupby("roof")["weight"].sum()
    shown = "; ".join(f"{name} {100 * weight[name]:.0f} %" for name in (r.name for r in WEIGHTED) if name in weight)
    found = [
        f"Roofs are weighted by the evidence of the published figures: {shown}. A factor on T_gpu per model and GPU "
        f"(sd of its logarithm {Prior().free:g}) is set against none by the density at 1 that the posterior of all "
        "factors has, over that of their prior."
    ]
    columns = ("roof", "grid", "reading", "discrepancy", "gpus", "log_ml")
    logs = {tuple(row[:-1]): float(row[-1]) for row in reconstruction.indices[list(columns)].to_numpy().tolist()}
    for (roof, grid, reading, discrepancy, gpu), log_ml in logs.items():
        pieces = (gpu, f"{gpu} (MoE)")
        apart = sum(logs.get((WEIGHTED[0].name, grid, reading, discrepancy, one), np.nan) for one in pieces)
        if roof == ROOF.name and np.isfinite(apart):
            both = f"the log marginal likelihood of the figures on {gpu} ({reading})"
            told = (
                f"{both} is {log_ml:.0f} against {apart:.0f} for a set of each"
                if np.isfinite(log_ml)
                else f"the ladder to the figures on {gpu} ({reading}) did not reach them; a set of each did"
            )
            found.append(
                "Dense models and the mixture have constants of their own in the imputed grids. Under one set for "
                f"both, which the study claims, {told}."
            )
    return found
