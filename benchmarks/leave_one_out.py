"""Families left out, on real stacks: do intervals of `predict` hold, and what does `check` say?

    python benchmarks/leave_one_out.py FOLDER --out real.csv [--sets mlenergy-v2 optimum] [--from anchor] [--no-check]

FOLDER holds public measured sets (`real_sets.py`). Every family of a set is left out in turn and predicted from the
anchor's cells alone and from those of all other families; then `check` judges its cells by the anchor's calibration.
One row per fold: cells, MAPE (percent) of the mean step, share of the cells in the 90 % interval of a measured step,
median ratio of its ends; P(holds), verdict and cause. All folds of a set stand on one GPU and one stack.
"""

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from real_sets import SETS, RealSet, read

import rooffloor as rf
from rooffloor.models.calibration.draws import Calibration
from rooffloor.validate.common.errors import GateError, InputError
from rooffloor.validate.common.files import write_text
from rooffloor.validate.fitting.calibration import calibrated
from rooffloor.validate.study.study import Roof
from rooffloor.validate.transfer.statements import DOES_NOT_HOLD, HOLDS

ANCHOR, OTHERS = "anchor", "all others"


def of_anchor(real: RealSet, seed: int) -> Calibration:
    """From the anchor's cells alone."""
    return calibrated(real.of([real.anchor]), real.anchor, seed=seed)


def of_others(real: RealSet, family: str, seed: int) -> Calibration:
    """From the cells of all families but one, constants common to them."""
    models = [m for m in real.shapes if m != family]
    anchor = real.anchor if real.anchor != family else models[0]
    study = rf.Study(
        real.of(models),
        anchor=anchor,
        models={m: real.shapes[m] for m in models},
        gpus={real.gpu.name: real.gpu},
        efficiency=Roof(treatment="joint"),
        name=real.name,
        seed=seed,
    )
    return rf.fit(study, seed=seed, primary_only=True).calibration


def predicted(real: RealSet, family: str, calibration: Calibration, seed: int) -> dict[str, Any]:
    """How the cells of a family lie in what the calibration predicts."""
    cells, _ = real.measurements.averaged(family)
    axes = [np.unique(values).astype(int).tolist() for values in (cells.batch, cells.context)]
    told = rf.predict(real.shapes[family], real.gpu, *axes, calibration=calibration, seed=seed)
    rows = {(row.batch, row.context): row for row in told.predicted}
    steps = np.asarray(cells.step_ms)
    keys = list(zip(cells.batch.tolist(), cells.context.tolist(), strict=True))
    there = [k for k, key in enumerate(keys) if key in rows]
    if not there:
        return {"cells": len(keys), "not_predicted": len(keys)}
    found = [rows[keys[k]].estimates for k in there]
    mean = np.array([one["mean_step_ms"].value for one in found])
    low, high = np.array([one["measured_step_ms"].intervals["90"] for one in found]).T
    y = steps[there]
    return {
        "cells": len(keys),
        "not_predicted": len(keys) - len(there),
        "mape": 100.0 * np.abs(mean / y - 1.0).mean(),
        "signed": 100.0 * (mean / y - 1.0).mean(),
        "covered": 100.0 * ((low <= y) & (y <= high)).mean(),
        "high_over_low": float(np.median(high / low)),
    }


def judged(real: RealSet, family: str, calibration: Calibration, seed: int) -> dict[str, Any]:
    """What `check` says of the family beside the anchor's calibration."""
    try:
        found = rf.check(real.shapes[family], real.of([family]), calibration=calibration, seed=seed)
    except (InputError, GateError) as error:
        return {"verdict": f"no answer: {error}"}
    low, high = found.data["overall"]["use"]["error"]["intervals"]["90"]
    return {
        "verdict": found.verdict,
        "p_holds": found.probability,
        "measured_mape": found.data["overall"]["use"]["measured_mape"],
        "error_low": low,
        "error_high": high,
        "cause": found.cause,
        "usable": found.data["calibration"]["usable"],
    }


def folds(real: RealSet, sources: Sequence[str], check: bool, seed: int) -> Iterator[dict[str, Any]]:
    """A row per family and source of the calibration."""
    anchors = of_anchor(real, seed)
    for family in real.shapes:
        if family == real.anchor and OTHERS not in sources:
            continue
        for source in sources:
            started = time.perf_counter()
            if source == ANCHOR and family == real.anchor:
                continue
            row: dict[str, Any] = {"set": real.name, "gpu": real.gpu.name, "family": family, "from": source}
            try:
                used = anchors if source == ANCHOR else of_others(real, family, seed)
                row |= predicted(real, family, used, seed)
                if check and source == ANCHOR:
                    row |= judged(real, family, used, seed)
            except GateError as error:
                row |= {"verdict": f"no answer: {error}"}
            yield row | {"seconds": time.perf_counter() - started}


def pooled(rows: pd.DataFrame) -> pd.DataFrame:
    """Per set and source, and over all: means of folds, share of folds below 60 % coverage, median of hi/lo."""

    def of(part: pd.DataFrame) -> dict[str, Any]:
        done = part.dropna(subset=["mape"])
        return {
            "folds": len(done),
            "mape": done["mape"].mean(),
            "worst": done["mape"].max(),
            "covered_cells": (done["covered"] * done["cells"]).sum() / max(done["cells"].sum(), 1),
            "covered": done["covered"].mean(),
            "below_60": 100.0 * (done["covered"] < 60.0).mean(),
            "high_over_low": done["high_over_low"].median(),
        }

    told: list[dict[str, Any]] = [{"set": "all", "from": s} | of(part) for s, part in rows.groupby("from", sort=False)]
    each: list[dict[str, Any]] = [
        {"set": n, "from": s} | of(part) for (n, s), part in rows.groupby(["set", "from"], sort=False)
    ]
    return pd.DataFrame([*each, *told]).round(2)


def verdicts(rows: pd.DataFrame, tolerance: float = 10.0) -> dict[str, Any]:
    """How often `check` says what the measured error says, of folds with 5 cells and more."""
    if "verdict" not in rows:
        return {}
    done = rows[(rows["from"] == ANCHOR) & rows["mape"].notna() & (rows["cells"] >= 5)]
    error = done["measured_mape"].astype(float)
    good, bad = done[error < tolerance], done[error > 1.5 * tolerance]
    said = done["verdict"] == HOLDS, done["verdict"] == DOES_NOT_HOLD
    wrong = (said[0] & (error > 1.5 * tolerance)) | (said[1] & (error < tolerance))
    return {
        "below the tolerance": f"{int(said[0][good.index].sum())} of {len(good)} said to hold",
        "1.5 times above it": f"{int(said[1][bad.index].sum())} of {len(bad)} said not to hold",
        "between": f"{dict(done['verdict'].drop([*good.index, *bad.index]).value_counts())}",
        "confidently wrong": f"{int(wrong.sum())} of {len(done)}",
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line: every fold, then what they come to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--sets", nargs="+", choices=list(SETS), default=list(SETS))
    parser.add_argument("--from", dest="sources", nargs="+", choices=["anchor", "others"], default=["anchor", "others"])
    parser.add_argument("--no-check", action="store_true")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    if not options.folder.is_dir():
        print(f"{options.folder}: no folder; expected one that holds the public measured sets", file=sys.stderr)
        return 2
    sources = [{"anchor": ANCHOR, "others": OTHERS}[s] for s in options.sources]
    rows = []
    for name in options.sets:
        try:
            real = read(options.folder, name)
        except InputError as error:
            print(error, file=sys.stderr)
            continue
        for row in folds(real, sources, not options.no_check, options.seed):
            rows.append(row)
            told = {k: round(v, 2) if isinstance(v, float) else v for k, v in row.items()}
            print(" ".join(str(v) for v in told.values()), file=sys.stderr, flush=True)
    if not rows:
        print("no set could be read", file=sys.stderr)
        return 2
    frame = pd.DataFrame(rows).drop(columns="seconds")
    if options.out is not None:
        write_text(options.out, frame.round(4).to_csv(index=False))
    print(pooled(frame).to_string(index=False))
    for what, told in verdicts(frame).items():
        print(f"{what}: {told}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
