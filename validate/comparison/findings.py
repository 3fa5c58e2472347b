"""What the fits of a comparison say beyond the ranking, for JSON: overlap, noise, trends, constants, refits."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rooffloor.models.floor.structures import Q_MAX, FloorStructure
from rooffloor.models.specs.cells import Cells
from rooffloor.validate.comparison import answer
from rooffloor.validate.comparison.ranking import Found, difference, is_clear
from rooffloor.validate.comparison.tension import simulated_p, tension
from rooffloor.validate.comparison.worker import TRENDS, Task, baseline_log_score

type Array = NDArray[np.float64]
type Row = dict[str, Any]

Q_PRIOR_SD = Q_MAX / np.sqrt(12.0)
LAUNCHES, LATENCY = "gpu, launches", "gpu, kernel latency"


def overlap(rows: Sequence[Row], competing: Sequence[FloorStructure], found: Mapping[str, Found]) -> Row:
    """q of the best structure that frees it."""
    frees = {str(s) for s in competing if s.q_free}
    name = next((row["name"] for row in rows if row["elpd"] is not None and row["name"] in frees), None)
    if name is None:
        return {"structure": None, "identified": False}
    q = found[name]["constant_q"]
    low, high = np.quantile(q, [0.05, 0.95])
    with np.errstate(divide="ignore"):
        p = 1.0 / np.array([np.median(q), high, low])
    return {
        "structure": name,
        "q": {"mean": float(q.mean()), "sd": float(q.std()), "low_90": float(low), "high_90": float(high)},
        "p": {"median": float(p[0]), "low_90": float(p[1]), "high_90": float(p[2])},
        "identified": bool(q.std() <= 0.5 * Q_PRIOR_SD),
        "misfit": float((q > 1.0).mean()),
        "informative_share": found[name]["informative"].item(),
    }


def trends(slopes: Array) -> list[Row]:
    """Slopes [draw, trend] of what the chosen structure leaves over."""
    rows = []
    for name, s in zip(TRENDS, slopes.T, strict=True):
        low, high = (float(v) for v in np.quantile(s, [0.05, 0.95]))
        row: Row = {"trend": name, "slope": float(s.mean()), "low_90": low, "high_90": high}
        rows.append(row | {"sentence": answer.of_trend(row)})
    return rows


def noise(repeats: float, residual: float) -> Row:
    """Spread of repeats (NaN where there are none) against the relative sd that a structure leaves over."""
    known = not np.isnan(repeats)
    row: Row = {
        "repeats": repeats if known else None,
        "residual": residual,
        "discrepancy_share": max(0.0, 1.0 - repeats**2 / residual**2) if known else None,
    }
    return row | {"sentence": answer.of_noise(row)}


def likelihoods(normal: Found, student: Found) -> Row:
    """Normal against Student-t noise: elpd difference and the posterior predictive p of the largest residual."""
    row: Row = {"chosen": "normal", "normal_largest_p": normal["largest_p"].item()}
    if student["passed"]:
        gain, dse = difference(student["elpd"], normal["elpd"])
        row |= {
            "chosen": "student" if gain > 0 and is_clear(gain, dse) else "normal",
            "student_minus_normal_elpd": gain,
            "dse": dse,
            "student_largest_p": student["largest_p"].item(),
        }
    else:
        row["student"] = str(student["failures"])
    return row | {"sentence": answer.of_likelihoods(row)}


def roles(rows: Sequence[Row], found: Mapping[str, Found]) -> Row:
    """The column of launches read in both ways: the host's time per launch, or the GPU's latency per kernel."""
    best: dict[str, str] = {}
    for row in rows:
        if row["elpd"] is not None and row["combine"] in ("added, H >= 0", "overlapped"):
            best.setdefault(row["shared_by"], row["name"])
    if not {LAUNCHES, LATENCY} <= set(best):
        return {}
    host, kernel = best[LAUNCHES], best[LATENCY]
    gain, dse = difference(found[host]["elpd"], found[kernel]["elpd"])
    latency = 1e3 * found[kernel]["constant_latency_ms"]
    low, high = np.quantile(latency, [0.05, 0.95])
    row = {
        "launches": host,
        "latency": kernel,
        "elpd_diff": gain,
        "dse": dse,
        "latency_us": {"mean": float(latency.mean()), "low_90": float(low), "high_90": float(high)},
    }
    return row | {"sentence": answer.of_roles(row, is_clear(gain, dse))}


def constants(
    apart: Mapping[str, Found], found: Mapping[str, Found], chosen: str, reference: Array | None
) -> tuple[list[Row], list[Row]]:
    """Constants under the cut and jointly, and the transfer tension, of every structure whose fits passed.

    Parameters
    ----------
    apart, found : mapping of structure
        Fits under the cut and joint ones.
    reference : float array, optional
        Simulated statistics of the chosen structure's tension; NaN where a fit failed.
    """
    told, pulled = [], []
    for name, cut in apart.items():
        row: Row = {"structure": name, "statistic": None, "freedom": None, "p_chi2": None, "p": None}
        if not cut["passed"]:
            pulled.append(row | {"sentence": answer.of_tension(row)})
            continue
        own, joint = (
            {k.removeprefix("constant_"): v for k, v in one.items() if k.startswith("constant_")}
            for one in (cut, found[name])
        )
        if not own:
            continue
        result = tension(own, joint)
        for constant in own:
            one: Row = {"structure": name, "constant": constant}
            for treatment, draws in (("cut", own[constant]), ("joint", joint[constant])):
                one |= {f"{treatment}_mean": float(draws.mean()), f"{treatment}_sd": float(draws.std())}
            z = result.z[constant]
            told.append(one | {"z": None if np.isnan(z) else float(z)})
        p = None if np.isnan(result.p_chi2) else result.p_chi2
        good = [] if name != chosen or reference is None else reference[np.isfinite(reference)].tolist()
        simulated = simulated_p(result.statistic, good) if good else None
        row |= {"statistic": result.statistic, "freedom": result.freedom, "p_chi2": p, "p": simulated}
        pulled.append(row | {"simulated": len(good), "sentence": answer.of_tension(row)})
    return told, pulled


def left_out(tasks: Sequence[Task], results: Sequence[Found], cells: Cells) -> list[Row]:
    """How the cells of each fold were predicted without them, against a baseline that knows no hardware."""
    return [
        {
            "structure": str(task.structure),
            "kind": kind,
            "left_out": what,
            "cells": int(mask.sum()),
            "coverage_50": row[0],
            "coverage_90": row[1],
            "relative_width_90": row[2],
            "log_score": row[3],
            "baseline_log_score": baseline_log_score(cells, mask),
            "passed": bool(row[4]),
        }
        for task, result in zip(tasks, results, strict=True)
        for (kind, what, mask), row in zip(task.folds, result["folds"].tolist(), strict=True)
    ]


def cut_floors(results: Mapping[str, Found], found: Mapping[str, Found], cells: Cells, anchor: str) -> list[Row]:
    """Mean floor of each (model, SKU) but the anchor's under the cut and jointly, ms."""
    theirs = cells.model != anchor
    others = cells.where(theirs)
    rows = []
    for name, cut in results.items():
        joint = {key: found[name][f"floor_{key}"][theirs] for key in ("mean", "sd")}
        for model, gpu in dict.fromkeys(zip(others.model.tolist(), others.gpu.tolist(), strict=True)):
            at = (others.model == model) & (others.gpu == gpu)
            row: Row = {"structure": name, "model": model, "gpu": gpu}
            for treatment, one in (("cut", cut), ("joint", joint)):
                for key in ("mean", "sd"):
                    value = float(one[key][at].mean())
                    row[f"{treatment}_{key}_ms"] = value if np.isfinite(value) else None
            rows.append(row | {"failed": str(cut["failed"])})
    return rows
