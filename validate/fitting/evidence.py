"""From a study to `Draws`: which models are fitted to which cells, and what is kept of them.

An imputed study: every imputed grid with its own T_gpu, latent constants and floors per (GPU, model); see `imputed`.
A measured study: constants joint (all cells) and cut (the anchor's cells alone), under the roof's plain structure and
with the query-head limb; see `measured`. One of these that fails its gate is a warning in its place; where it is the
primary one, the first of the others that passes stands in for it.
"""

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rooffloor.models.calibration.draws import Calibration
from rooffloor.models.floor.structures import PER_SEQUENCE
from rooffloor.models.inference.gate import GateFailure
from rooffloor.models.inference.kernel_priors import kernel_prior, named_priors
from rooffloor.models.inference.priors import DEFAULT_PRIORS, Priors
from rooffloor.validate.common.errors import GateError, InputError
from rooffloor.validate.estimates.cell_draws import IMPUTED, Draws
from rooffloor.validate.fitting import calibration, imputed
from rooffloor.validate.published.imputation.reconstruction import Reconstruction
from rooffloor.validate.published.imputation.reconstruction import load as load_reconstruction

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

    from rooffloor.validate.measurements.load import Measurements
    from rooffloor.validate.study.study import Study

type Array = NDArray[np.float64]

MAX_FAILED = 0.02
"""Share of imputations whose fit may fail its gate; they are listed and left out."""
TREATMENTS = {
    "cut": "cut: constants from the anchor's cells alone",
    "joint": "joint: constants from all cells",
}
"""Of the constants of measured cells."""
NUISANCE = "What is reported met the gate; this parameter only stands behind it, and had more draws."


@dataclass(frozen=True, eq=False)
class Evidence:
    """A fitted study: what `test` and `report` judge.

    Attributes
    ----------
    study : Study
    seed : int
        Of the fits.
    draws : Draws
        Of the primary treatment.
    variants : mapping of name to Draws
        Other treatments of the same data.
    without_flagged : Draws or None
        The primary treatment without flagged (model, GPU) grids, where there are any: refitted where they could have
        moved the constants or the anchor's floors.
    measurements : Measurements or None
    reconstruction : Reconstruction or None
    fits : list of dict
        One row of diagnostics per fit, those that failed too, or one for all imputations.
    constants : mapping of variant name ("primary" too) to {constant: {gpu or "all GPUs": draws}}
    recomputed : dict or None
        How refitted imputations compare with their cached posteriors.
    datatree : xarray.DataTree
        What posterior.nc holds.
    structure, treatment : str
        Of the primary treatment, in words.
    warnings : list of str
    sensitivity : list of dict
        Power-scaling of prior and likelihood for the floors and constants behind the hypotheses.
    seconds : float
        What the fits took.
    instead : str
        That and why another treatment stands in for the primary one; empty where that has an answer itself.
    """

    study: "Study"
    seed: int
    draws: Draws
    variants: Mapping[str, Draws]
    without_flagged: Draws | None
    measurements: "Measurements | None"
    reconstruction: Reconstruction | None
    fits: Sequence[dict[str, Any]]
    constants: Mapping[str, Mapping[str, Mapping[str, Array]]]
    recomputed: dict[str, Any] | None
    datatree: "xr.DataTree"
    structure: str
    treatment: str
    warnings: Sequence[str] = ()
    sensitivity: Sequence[dict[str, Any]] = ()
    seconds: float = 0.0
    instead: str = ""

    def __repr__(self) -> str:
        cells, passed = self.draws.cells, sum(row["passed"] for row in self.fits)
        return (
            f"Evidence({self.study.name}: {len(cells)} cells of {len(cells.models)} models on {len(cells.gpus)} GPUs, "
            f"{self.draws.label}; {self.treatment.split(':')[0]}; {passed} of {len(self.fits)} fits passed)"
        )

    @property
    def diagnostics(self) -> "pd.DataFrame":
        """Convergence of every fit, a row each: R-hat, effective draws, divergences, E-BFMI, attempts."""
        import pandas as pd

        return pd.DataFrame(list(self.fits))

    @property
    def priors_said(self) -> str:
        """Where the priors of a measured study's constants come from, in a sentence."""
        if self.measurements is None or self.study.efficiency.priors != "kernels":
            return "Priors of the constants are the same for all GPUs (wide)."
        return f"Priors of the constants: {kernel_prior(list(self.measurements.gpus.values())).text}."

    @property
    def saw_families(self) -> frozenset[str]:
        """Variants beside a cut whose constants were fitted to all cells: no test of transfer."""
        cut = self.treatment == TREATMENTS["cut"]
        return frozenset(name for name in self.variants if cut and name.endswith(", joint"))

    @cached_property
    def calibration(self) -> Calibration:
        """The primary treatment as plain draws, which `check`, `plan` and `predict` take."""
        treatment = "study" if self.draws.label == IMPUTED else self.treatment.split(":")[0]
        found = calibration.of_draws(self.study, self.draws, self.constants["primary"], treatment, self.priors)
        if self.measurements is None:
            return found
        served = calibration.served_by(self.measurements)
        return replace(found, stack=served["stack"], mode=served["mode"])

    @property
    def priors(self) -> Priors:
        """Of the constants, floors and noise."""
        if self.measurements is None:
            return DEFAULT_PRIORS
        return named_priors(self.study.efficiency.priors, list(self.measurements.gpus.values()))


def fit(
    study: "Study",
    *,
    seed: int | None = None,
    refit: bool = False,
    quiet: bool = True,
    primary_only: bool = False,
    jobs: int | None = None,
    folder: Path | None = None,
    tell: Callable[[str], None] | None = None,
) -> Evidence:
    """Fit (or read from the cache) what a study needs.

    Parameters
    ----------
    study : Study
    seed : int, optional
        Default: that of the study.
    refit : bool
        Fit every imputation anew instead of reading cached posteriors.
    quiet : bool
        False: say on stderr what is being fitted, with progress bars.
    primary_only : bool
        Leave out the side-by-side treatments and the check of the cache.
    jobs : int, optional
        Imputations that are fitted at a time; default: 2.
    folder : Path, optional
        Where fits to measured cells are kept as they finish, so that an interrupted run resumes.
    tell : callable, optional
        Is told what is being fitted, in a few words; default: as `quiet` says.

    Returns
    -------
    Evidence

    Raises
    ------
    GateError
        No treatment of measured cells passed its gate, or too many imputations did not.
    InputError
        The study's data cannot be used, or `folder` cannot be written.

    Examples
    --------
    >>> import rooffloor as rf
    >>> fit = rf.fit(rf.Study.load("transfer-study"), primary_only=True)
    >>> fit.draws
    Draws(9600 draws of 150 cells, imputed from published aggregates)
    >>> fit.calibration.anchor
    'Llama-3.1-8B'
    """
    seed, started = study.seed if seed is None else seed, time.monotonic()
    tell = tell if tell is not None or quiet else _on_stderr
    try:
        if study.data.format == "published":
            found = _imputed(study, seed, refit, quiet, primary_only, jobs or 2, tell)
        else:
            found = _measured(study, seed, quiet, primary_only, tell, folder)
        return replace(found, seconds=time.monotonic() - started)
    except GateFailure as error:
        raise GateError(str(error)) from error


def _on_stderr(what: str) -> None:
    print(f"rooffloor: {what}", file=sys.stderr)


def _imputed(
    study: "Study",
    seed: int,
    refit: bool,
    quiet: bool,
    primary_only: bool,
    jobs: int,
    tell: Callable[[str], None] | None,
) -> Evidence:
    folder = study.data.path.parent
    result = load_reconstruction(folder)
    grids = imputed.Imputed.of(study, result.cells)
    _check_anchor(study, grids.cells.models)
    stored = None if refit else imputed.read_cache(folder / imputed.CACHE, imputed.cache_key(folder, grids.classes))
    anew, notes = stored is None, []
    if stored is None:
        if not refit:
            notes.append("No cached posteriors match the imputed grids: every imputation was fitted anew.")
        if tell is not None:
            tell("fitting every imputed grid")
        stored = grids.fit_all(quiet=quiet, jobs=jobs)
    failed = np.flatnonzero(~stored["passed"])
    if len(failed) > MAX_FAILED * len(grids.weight):
        raise GateError(f"{len(failed)} of {len(grids.weight)} fits to imputed grids failed their gate")
    recomputed, scaled = None, []
    if not primary_only and not anew:
        if tell is not None:
            tell("refitting some imputed grids, to compare them with their cached posteriors")
        which, fits = imputed.refitted(grids, seed, quiet=quiet, jobs=jobs)
        recomputed = imputed.compared_with_cache(which, fits, stored)
        scaled = imputed.power_scaled(grids, which, fits)
    good = np.flatnonzero(stored["passed"])
    main, sensitivity = good[grids.weight[good] > 0], good[grids.weight[good] == 0]
    draws = grids.draws(stored, main)
    variants = {}
    if len(sensitivity) and not primary_only:
        variants[f"sensitivity: {grids.roof[sensitivity[0]]}"] = grids.draws(stored, sensitivity)
    first = {g: np.flatnonzero(grids.cells.gpu == g)[0] for g in grids.cells.gpus}
    constants = {
        name: {g: np.repeat(values[main][:, cell], imputed.KEEP) for g, cell in first.items()}
        for name, values in grids.constants.items()
    }
    row = {
        "name": f"{len(grids.weight)} imputed grids, floor per (GPU, model)",
        "passed": not len(failed),
        "failed": failed.tolist(),
        "rhat": float(stored["rhat"][good].max()),
        "ess_bulk": float(stored["ess"][good].min()),
        "ess_tail": float(stored["ess"][good].min()),
        "divergences": int(stored["divergences"][good].sum()),
        "ebfmi": float(stored["ebfmi"][good].min()),
        "attempts": int(stored["attempts"].max()),
    }
    return Evidence(
        study=study,
        seed=seed,
        draws=draws,
        variants=variants,
        without_flagged=None,
        measurements=None,
        reconstruction=result,
        fits=[row],
        constants={"primary": constants},
        recomputed=recomputed,
        datatree=imputed.tree_of(draws),
        structure="three constants and a launch latency per GPU and class; floors per (GPU, model), added, signed",
        treatment="the study's own, latent in each imputation",
        warnings=notes,
        sensitivity=scaled,
    )


def _check_anchor(study: "Study", models: Sequence[str]) -> None:
    if study.anchor not in models:
        where = f"{study.data.path.name}: the anchor {study.anchor!r}"
        raise InputError(f"{where} has no usable cells; models there: {', '.join(models)}")


def _measured(
    study: "Study",
    seed: int,
    quiet: bool,
    primary_only: bool,
    tell: Callable[[str], None] | None,
    folder: Path | None,
) -> Evidence:
    from rooffloor.validate.fitting.measured import Measured, failed_row, variant

    measurements = study.measurements()
    cells = measurements.cells()
    _check_anchor(study, cells.models)
    anchor_on = {gpu for model, gpu in zip(cells.model, cells.gpu, strict=True) if model == study.anchor}
    how: dict[str, Any] = {"quiet": quiet, "tell": tell, "folder": folder}
    fitted = Measured(study, measurements, seed, **how)
    preset = study.efficiency.preset
    beside = "study" if preset != "study" else "query heads"
    treatment = "cut" if study.efficiency.treatment == "study" else study.efficiency.treatment
    treatments = tuple(TREATMENTS) if len(cells.models) > 1 else ("joint",)
    treatment = treatment if treatment in treatments else "joint"
    if preset == "per gpu" and (lacking := sorted({*cells.gpus} - anchor_on)):
        where = f"{study.data.path.name}: the anchor has no usable cells on {lacking[0]}"
        raise InputError(f"{where}: [efficiency] preset 'per gpu' needs some for the constants of each GPU")
    primary = (preset, treatment)
    # Under the other roof the primary treatment alone: a joint fit, which saw the families, is no test of transfer.
    order = dict.fromkeys([primary, *((preset, one) for one in treatments), (beside, treatment)])
    fits: list[dict[str, Any]] = []
    failed: dict[str, str] = {}
    passed: dict[tuple[str, str], tuple[Draws, Mapping[str, Mapping[str, Array]], xr.DataTree]] = {}

    def fails(name: str, failure: GateFailure) -> None:
        failed[name] = str(failure)
        fits.append(failed_row(name, failure))

    for one in order:
        if passed and primary_only:
            break
        try:
            draws, row, constants, tree = fitted.fit(*one)
        except GateFailure as failure:
            fails(variant(*one), failure)
            continue
        fits.append(row)
        if not passed:
            try:
                draws, row = fitted.with_class_floors(draws, one[0])
                fits.append(row)
            except GateFailure as failure:
                fails(f"{variant(one[0], 'joint')}, {fitted.per_class}", failure)
        passed[one] = draws, constants, tree
    if not passed:
        said = "; ".join(f"{name}: {why}" for name, why in failed.items())
        raise GateError(f"no treatment of the constants has an answer: {said}", fits)
    chosen = next(iter(passed))
    draws, of_primary, tree = passed[chosen]
    tree.attrs["label"] = draws.label
    instead = ""
    if chosen != primary:
        why = failed.pop(variant(*primary))
        instead = (
            f"The primary treatment, {variant(*primary)}, has no answer ({why}). This report stands under "
            f"{variant(*chosen)} in its place."
        )
    kept = None
    flagged = set(measurements.flagged_grids)
    measured_pairs = list(zip(cells.model.tolist(), cells.gpu.tolist(), strict=True))
    if flagged and not primary_only:
        if chosen[1] == "cut" and not any(model == study.anchor for model, _ in flagged):
            # Constants and anchor floors come from the anchor's cells, which all stay; all that a refit could move is
            # how far other floors are drawn together.
            kept = draws.where(np.array([pair not in flagged for pair in measured_pairs]))
        else:
            name = f"{variant(*chosen)}, without flagged grids"
            left = {model for model, gpu in measured_pairs if (model, gpu) not in flagged}
            if study.anchor not in left or (chosen[1] == "cut" and len(left) < 2):
                failed[name] = "too few cells are left"
            else:
                try:
                    kept, row, *_ = Measured(study, measurements.without_flagged(), seed, **how).fit(*chosen)
                    fits.append(row | {"name": f"{row['name']}, without flagged grids"})
                except GateFailure as failure:
                    fails(name, failure)
    beside_it = [one for one in order if one != chosen and one in passed]
    return Evidence(
        study=study,
        seed=seed,
        draws=draws,
        variants={variant(*one): passed[one][0] for one in beside_it},
        without_flagged=kept,
        measurements=measurements,
        reconstruction=None,
        fits=fits,
        constants={"primary": of_primary} | {variant(*one): passed[one][1] for one in beside_it},
        recomputed=None,
        datatree=tree,
        structure=variant(*chosen).split(",")[0] + ("" if study.floor == PER_SEQUENCE else f", {study.floor}"),
        treatment=TREATMENTS[chosen[1]],
        warnings=(
            *(str(w) for w in measurements.provenance.get("warnings", ())),
            *(f"{name} has no answer and is left out: {why}." for name, why in failed.items()),
            *(f"{row['name']}: {row['note']}. {NUISANCE}" for row in fits if row["passed"] and row["note"]),
        ),
        sensitivity=fitted.sensitivity,
        instead=instead,
    )
