"""The main job: from what was fitted to report.html, report.md, report.json, run.json, posterior.nc and figures."""

import importlib.metadata
import platform
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rooffloor.models.calibration.store import to_npz
from rooffloor.validate.common import files
from rooffloor.validate.common.errors import GateError
from rooffloor.validate.fitting import evidence, saved
from rooffloor.validate.fitting.evidence import Evidence
from rooffloor.validate.presentation import writers
from rooffloor.validate.reporting import figures, pages, record, tables, unanswered

if TYPE_CHECKING:
    from rooffloor.validate.comparison.comparison import Comparison
    from rooffloor.validate.study.study import Study

PACKAGES = ("numpy", "pandas", "scipy", "pymc", "pytensor", "nutpie", "arviz", "xarray", "numba", "matplotlib")


@dataclass(frozen=True, eq=False)
class ReportResult:
    """What `report` wrote: `paths` of the files, `data` as in report.json, `text` for a terminal."""

    paths: Mapping[str, Path]
    data: dict[str, Any]
    text: str

    def __repr__(self) -> str:
        return f"ReportResult({self.data['study']['name']}: {self.paths['report.html']})"


@dataclass(frozen=True, eq=False)
class TableResult:
    """The two-number table: `data` as in report.json, and as `text`."""

    data: dict[str, Any]
    text: str


def report(
    fit: Evidence, *, floors: "Comparison | None" = None, out: str | Path | None = None, seed: int | None = None
) -> ReportResult:
    """Judge, draw and write what was fitted; nothing is left half-written.

    Parameters
    ----------
    fit : Evidence
        Of `rooffloor.fit`.
    floors : Comparison, optional
        Of `rooffloor.compare_floors`, for measured cells.
    out : path, optional
        Folder for report.html, report.md, report.json, run.json, the posterior and the figures; default:
        reports/<study>.
    seed : int, optional
        Default: that of the study.

    Raises
    ------
    InputError
        The folder cannot be written.

    Examples
    --------
    >>> import rooffloor as rf
    >>> fit = rf.fit(rf.Study.load("transfer-study"), primary_only=True)
    >>> rf.report(fit, out="reports/mine")
    ReportResult(transfer-study: reports/mine/report.html)
    """
    started, study = time.time(), fit.study
    target = Path(out) if out is not None else Path("reports") / study.name
    data = record.assemble(fit, floors, seed=fit.seed if seed is None else seed)
    drawn = figures.draw(fit, data, floors)
    with files.folder(target) as folder:
        files.write_json(folder / "report.json", data)
        images = {key: writers.image(figure) for key, figure in drawn.items()}
        files.write_text(folder / "report.html", pages.html(data, images))
        files.write_text(folder / "report.md", pages.markdown(data, list(drawn)))
        for key, figure in drawn.items():
            files.write_bytes(folder / "figures" / f"{key}.png", images[key])
            files.write_bytes(folder / "figures" / f"{key}.svg", writers.image(figure, "svg"))
        files.write_bytes(folder / "posterior.nc", bytes(fit.datatree.to_netcdf()))
        files.write_bytes(folder / saved.FILE, to_npz(fit.calibration))
        files.write_json(folder / "run.json", _run_facts(study, started, fit.seconds))
        written = sorted(p.relative_to(folder) for p in folder.rglob("*") if p.is_file())
    paths = {str(p): target / p for p in written}
    return ReportResult(paths, data, f"{pages.text(data)}\nReport: {target / 'report.html'}\n")


def report_unanswered(
    study: "Study", failure: GateError, *, out: str | Path | None = None, seed: int | None = None
) -> Mapping[str, Path]:
    """Write what can be said of measured cells of which no fit has an answer.

    Parameters
    ----------
    study : Study
    failure : GateError
        Of `rooffloor.fit`.
    out, seed
        As for `report`.

    Returns
    -------
    mapping of name to path
        report.html, report.md, report.json and run.json. Of an earlier report, the posterior and the figures stay:
        the page says so.

    Raises
    ------
    InputError
        The folder cannot be written.
    """
    started = time.time()
    target = Path(out) if out is not None else Path("reports") / study.name
    data = unanswered.assemble(study, failure, seed=study.seed if seed is None else seed)
    stay = [name for name in ("posterior.nc", saved.FILE, "figures") if (target / name).exists()]
    if stay:
        data["status"]["sentences"].append(f"Of an earlier report are, in this folder: {', '.join(stay)}.")
    with files.folder(target) as folder:
        files.write_json(folder / "report.json", data)
        plain: Any = files.json_ready(data)
        files.write_text(folder / "report.html", unanswered.html(plain))
        files.write_text(folder / "report.md", unanswered.markdown(plain))
        files.write_json(folder / "run.json", _run_facts(study, started))
        written = sorted(p.relative_to(folder) for p in folder.rglob("*") if p.is_file())
    return {str(p): target / p for p in written}


def table(study: "Study", *, seed: int | None = None) -> TableResult:
    """The two-number table alone, from the primary treatment."""
    fitted = evidence.fit(study, seed=seed, primary_only=True)
    published, offsets = record.published_of(fitted)
    rows = tables.two_numbers(fitted.draws, published, offsets, fitted.seed)
    data = {"study": study.name, "label": fitted.draws.label, "table": rows}
    said = [f"{study.name}: data {fitted.draws.label}"]
    if fitted.instead:
        data, said = data | {"instead": fitted.instead}, [*said, fitted.instead]
    return TableResult(data, f"{'\n'.join(said)}\n\n{pages.table_text(rows)}")


def _run_facts(study: "Study", started: float, fit_seconds: float = 0.0) -> dict[str, Any]:
    """What differs from run to run or machine to machine, kept out of report.json."""
    return {
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(started)),
        "fit_seconds": round(fit_seconds, 1),
        "seconds": round(fit_seconds + time.time() - started, 1),
        "data": str(study.data.path),
        "host": platform.node(),
        "platform": platform.platform(),
        "python": sys.version.split()[0],
        "packages": {name: importlib.metadata.version(name) for name in PACKAGES},
    }
