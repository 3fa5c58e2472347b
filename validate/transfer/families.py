"""Many families in one file: a check of each against one calibration, and what stands of it given their number."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from rooffloor.models.calibration.draws import Calibration
from rooffloor.models.specs.gpus import GpuSpec
from rooffloor.validate.common.errors import InputError
from rooffloor.validate.common.files import folder as new_folder
from rooffloor.validate.common.files import write_json, write_text, written
from rooffloor.validate.estimates.estimate import Estimate
from rooffloor.validate.hypotheses.result import say
from rooffloor.validate.measurements.csvfile import table_text
from rooffloor.validate.measurements.given_specs import configured, load_gpu
from rooffloor.validate.measurements.load import Measurements, load_measurements
from rooffloor.validate.measurements.names import Names
from rooffloor.validate.presentation.text_table import text_table
from rooffloor.validate.study.margins import Margins
from rooffloor.validate.transfer import domain, words
from rooffloor.validate.transfer.check import Check, check, judge_by
from rooffloor.validate.transfer.statements import DOES_NOT_HOLD, HOLDS, UNDECIDED
from rooffloor.validate.transfer.use import CERTAIN, TOLERANCE

FILES = ("families.csv", "families.json")


@dataclass(frozen=True, eq=False)
class Families:
    """Checks of the families of one file.

    Attributes
    ----------
    checks : tuple of Check
    stands : mapping of family to bool
        Whether its verdict is sure enough for one of so many (Holm's rule); False where it is undecided.
    refused : mapping of family to str
        Families that could not be checked, and why.
    """

    checks: tuple[Check, ...]
    stands: Mapping[str, bool]
    refused: Mapping[str, str]

    def __repr__(self) -> str:
        counts = ", ".join(f"{said} {sum(c.verdict == said for c in self.checks)}" for said in (HOLDS, DOES_NOT_HOLD))
        return f"Families({len(self.checks)} checked: {counts}; {len(self.refused)} refused)"

    @property
    def verdict(self) -> str:
        """Does not hold where that stands for one; holds where it stands for all; else undecided."""
        if any(self.stands[c.data["model"]] and c.verdict == DOES_NOT_HOLD for c in self.checks):
            return DOES_NOT_HOLD
        whole = all(self.stands[c.data["model"]] for c in self.checks) and not self.refused
        return HOLDS if whole else UNDECIDED

    @property
    def data(self) -> dict[str, Any]:
        """Everything, ready for JSON."""
        return {
            "verdict": self.verdict,
            "families": [c.data | {"stands_among_all": self.stands[c.data["model"]]} for c in self.checks],
            "refused": dict(self.refused),
        }

    def to_frame(self) -> pd.DataFrame:
        """One row a family: the row of all its GPUs, as `Check.to_frame` has it."""
        rows = []
        for one in self.checks:
            last = one.to_frame().iloc[-1].drop("gpu").to_dict()
            about = {"model": one.data["model"], "gpus": " ".join(row["gpu"] for row in one.data["per_sku"])}
            about["cells"] = one.data["measurements"]["cells"]
            rows.append(about | {"stands among all": self.stands[one.data["model"]]} | last)
        return pd.DataFrame(rows)

    def to_csv(self, path: str | Path | None = None) -> str:
        """`to_frame` as CSV text, written to `path` where one is given."""
        frame = self.to_frame()
        return written(table_text(frame.columns, frame.to_numpy()), path)

    @property
    def text(self) -> str:
        """One row a family, then who could not be checked and what the calibration warns of."""
        head = ("", "verdict", "P(holds)", "stands", "cells", "measured MAPE", "of further cells (%)", "why")
        rows = [head]
        for one in self.checks:
            row, use = one.data["overall"], one.data["overall"]["use"]
            numbers = f"{use['measured_mape']:.1f}", str(Estimate(**use["error"]))
            stands = "yes" if self.stands[one.data["model"]] else "no"
            about = one.verdict, say(one.probability), stands, str(use["cells"])
            rows.append((one.data["model"], *about, *numbers, words.cause_of(row)))
        first = self.checks[0].data
        lines = [
            f"{len(self.checks)} families, tolerance {first['overall']['use']['tolerance']:g} % MAPE: {self.verdict}",
            f"Data: {words.label(first)}",
            "",
            *text_table(rows),
            "",
            "Stands: the verdict is sure enough for one of so many (Holm's rule over the families).",
            *(f"Not checked: {name}: {why}" for name, why in self.refused.items()),
            *(f"The calibration is not usable as it is: {one['sentence']}" for one in first["conflicts"]),
        ]
        return "\n".join(line.rstrip() for line in lines)

    def save(self, path: str | Path) -> Path:
        """Write families.csv and families.json into a folder; its path."""
        with new_folder(path) as temporary:
            write_json(temporary / "families.json", self.data)
            write_text(temporary / "families.csv", self.to_csv())
        return Path(path)


def check_families(
    measurements: str | Path | pd.DataFrame | Measurements,
    *,
    configs: str | Path | None = None,
    anchor: str | None = None,
    calibration: str | Path | Calibration = domain.DEFAULT_STUDY,
    gpu: str | Path | GpuSpec | None = None,
    margins: Margins | None = None,
    tolerance: float = TOLERANCE,
    format: str = "schema",
    stack: str | None = None,
    mode: str | None = None,
    seed: int = 1,
    quiet: bool = True,
) -> Families:
    """Check every model of a file that the catalog or a folder of configs knows, but for the anchor.

    Parameters
    ----------
    configs : path of a folder, optional
        config.json files of models that the catalog lacks.
    anchor : str, optional
        Calibrate on this model's rows, once, instead of `calibration`.

    The others as `check.check`.

    Returns
    -------
    Families

    Raises
    ------
    InputError
        The file cannot be read, or none of its families can be checked.
    GateError
        The fit of `anchor` failed its gate.
    """
    spec = None if gpu is None else load_gpu(gpu)
    try:
        models = {} if configs is None else configured(Path(configs))
        names = Names(models, {} if spec is None else {spec.name: spec}, stored=anchor is None)
    except ValueError as error:
        raise InputError(str(error)) from error
    found = (
        measurements
        if isinstance(measurements, Measurements)
        else load_measurements(measurements, format=format, stack=stack, mode=mode, names=names)
    )
    given, margins = judge_by(found, calibration, anchor, margins, seed=seed, quiet=quiet)
    checks, refused = list[Check](), dict[str, str]()
    for model in dict.fromkeys(found.frame["model"]):
        if model == given.anchor:
            continue
        about: dict[str, Any] = {"gpu": spec, "margins": margins, "tolerance": tolerance, "model": model, "seed": seed}
        try:
            checks.append(check(found.shapes[model], found, calibration=given, **about))
        except InputError as error:
            refused[model] = str(error)
    if not checks:
        why = "; ".join(f"{name}: {reason}" for name, reason in refused.items()) or "it has no model but the anchor"
        raise InputError(f"{found.provenance.get('file')}: no family can be checked: {why}")
    return Families(tuple(checks), stands_among(checks), refused)


def stands_among(checks: Sequence[Check]) -> dict[str, bool]:
    """Which verdicts are sure enough for one of so many.

    By Holm's rule the n-th surest of K must have a probability to be wrong of (1 - `CERTAIN`) / (K - n + 1) at most,
    and so must all that are surer: the chance that any that stands is wrong stays below what one alone may have.
    """
    wrong = {
        c.data["model"]: {HOLDS: 1.0 - c.probability, DOES_NOT_HOLD: c.probability}.get(c.verdict, 1.0) for c in checks
    }
    found, stands = dict[str, bool](), True
    for n, name in enumerate(sorted(wrong, key=wrong.__getitem__)):
        stands = stands and wrong[name] <= (1.0 - CERTAIN) / (len(wrong) - n) + 1e-12
        found[name] = stands
    return found
