"""Other tools' results as a file in our schema: what `rooffloor import` does."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from rooffloor.validate.common.errors import InputError
from rooffloor.validate.measurements import csvfile
from rooffloor.validate.measurements.given_specs import configured, load_model, renamed
from rooffloor.validate.measurements.importers import FORMATS
from rooffloor.validate.measurements.importers.source import Given
from rooffloor.validate.measurements.load import Measurements, load_measurements
from rooffloor.validate.measurements.names import Names
from rooffloor.validate.measurements.schema import KNOWN, SCHEMA

ASSUMED = "assumed: "


@dataclass(frozen=True, repr=False)
class Imported:
    """Measurements of another tool.

    Attributes
    ----------
    measurements : Measurements
    """

    measurements: Measurements

    def __repr__(self) -> str:
        return f"Imported({self.measurements!r})"

    @property
    def rows(self) -> pd.DataFrame:
        """The accepted rows in columns of the schema, in its order."""
        m = self.measurements
        frame = m.frame.assign(source=f"{m.provenance['file']} sha256:{m.provenance['sha256'][:12]}")
        for column in ("stack", "mode"):
            if column not in frame:
                frame[column] = m.provenance[column]
        return frame[[column for column in KNOWN if column in frame]]

    @property
    def csv(self) -> str:
        """The rows as text of a CSV file that `load_measurements` reads."""
        return csvfile.table_text(self.rows.columns, self.rows.itertuples(index=False))

    @property
    def text(self) -> str:
        """Text for a person: what is in, what is out and why, what was assumed."""
        assumptions = (ASSUMED + text for text in self.measurements.provenance["assumptions"])
        return "\n".join([self.measurements.text, *assumptions])

    @property
    def data(self) -> dict[str, Any]:
        """rows, excluded, assumptions and provenance, for JSON."""
        provenance = dict(self.measurements.provenance)
        excluded = self.measurements.excluded
        known = [c for c in excluded.columns if c in (*KNOWN, "reason", "detail")]
        return {
            "rows": _records(self.rows),
            "excluded": _records(excluded[known].rename_axis("row").reset_index()),
            "assumptions": provenance.pop("assumptions"),
            "provenance": provenance,
        }


def _records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Rows as dicts, whole numbers as such."""
    whole = [c for c in frame.columns if c in SCHEMA.columns and SCHEMA.columns[c].metadata["whole"]]
    records = frame.to_dict("records")
    return [
        {str(k): int(v) if k in whole and isinstance(v, float) and v.is_integer() else v for k, v in row.items()}
        for row in records
    ]


def known(
    format: str, given: Given, config: str | Path | None = None, configs: Path | None = None
) -> tuple[Given, Names]:
    """What the caller says of a file, and the models beyond the catalog.

    Parameters
    ----------
    format : one of `importers.FORMATS`
    given : what the file does not say; its `model` names that of `config`
    config : config.json of the model in the file
    configs : folder of them, for a file that names its models

    Raises
    ------
    InputError
        A config cannot be read, or the format has no place for one model.
    """
    models = {} if configs is None else configured(configs)
    if config is None:
        return given, Names(models)
    if "model" not in FORMATS[format].takes:
        raise InputError(f"--config: not with format {format}, which names its models; give --configs DIR")
    shapes = load_model(config)
    shapes = shapes if given.model is None else renamed(shapes, given.model)
    return replace(given, model=shapes.name), Names({**models, shapes.name: shapes})


def run(path: Path, format: str, given: Given, names: Names | None = None) -> Imported:
    """Read a file of another tool.

    Parameters
    ----------
    path : the file
    format : one of `importers.FORMATS`
    given : what the file does not say
    names : models and GPUs beyond the catalog

    Raises
    ------
    InputError
        The file is not what `format` says, lacks what is needed, or no row of it can be used.
    """
    return Imported(
        load_measurements(path, format=format, stack=given.stack, mode=given.mode, names=names, given=given)
    )
