"""Saved calibrations: reading them, and writing that of the embedded study."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

from rooffloor.models.calibration import store
from rooffloor.models.calibration.draws import Calibration
from rooffloor.models.specs.inputs import called
from rooffloor.validate.common import resources
from rooffloor.validate.common.errors import InputError
from rooffloor.validate.common.files import write_bytes
from rooffloor.validate.study.margins import Margins
from rooffloor.validate.study.study import Study

if TYPE_CHECKING:
    from rooffloor.validate.fitting.evidence import Evidence

FILE = "posterior.npz"


def load(calibration: str | Path | Calibration) -> Calibration:
    """A saved calibration, without fitting anything.

    Parameters
    ----------
    calibration : name of an embedded study, a posterior.npz, a report's folder that holds one, or a Calibration (as is)

    Raises
    ------
    InputError
        There is none.
    """
    if isinstance(calibration, Calibration):
        return calibration
    path = resources.embedded(calibration) or Path(calibration)
    if not os.path.exists(path):  # unlike Path.exists never an error
        raise InputError(
            f"{called(path)}: no study with saved draws; expected transfer-study, a posterior.npz or a report's folder"
        )
    file = path / FILE if path.is_dir() else path
    try:
        return store.load(file)
    except ValueError as error:
        raise InputError(str(error)) from error


def margins(study: str | Path) -> Margins | None:
    """Margins of a study that is named, None where `study` names a saved calibration alone."""
    folder = resources.embedded(study) or Path(study)
    return Study.load(study).margins if (folder / "study.toml").is_file() else None


def build(fit: "Evidence", folder: Path | None = None) -> Path:
    """Write the calibration of a study into a folder, by default beside the study's data."""
    return write_bytes((folder or fit.study.data.path.parent) / FILE, store.to_npz(fit.calibration))
