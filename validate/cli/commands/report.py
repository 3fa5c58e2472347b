"""`rooffloor report`: fit a study, judge it, and write the report."""

import argparse
import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import rooffloor as rf
from rooffloor.validate.cli import options as shared
from rooffloor.validate.cli.options import add, path
from rooffloor.validate.cli.streams import Stages, show
from rooffloor.validate.common.errors import DONE, GateError, TaskError

if TYPE_CHECKING:
    from rooffloor.validate.comparison.comparison import Comparison
    from rooffloor.validate.fitting.evidence import Evidence
    from rooffloor.validate.study.study import Study

DOES, SEED = "run the main job on a study and write its report", shared.SEED_OF_STUDY
FILES = ("report.html", "report.json", "report.md", "posterior.nc", "posterior.npz", "run.json", "figures/any")
"""What is written into the folder."""
FEW_CORES = 4
"""On no more cores floor structures are compared in this process, chains side by side, while the study is fitted."""


def add_options(command: argparse.ArgumentParser) -> None:
    shared.add_study(command)
    add(command, "--out", "where the report goes (default: reports/STUDY)", "DIR", path)
    add(command, "--refit", "recompute every fit, use no cached posterior", action="store_true")
    add(command, "--full", "measured cells: also the refits without each model, GPU, pair (long)", action="store_true")
    shared.add_runner(command)


def run(options: argparse.Namespace) -> int:
    from rooffloor.validate.common.runner import one_thread

    study = shared.study_of(options)
    folder = options.out or Path("reports") / study.name
    shared.check_folder(options, folder, FILES)
    shared.check_runner(options)
    given = {"seed": options.seed, "quiet": options.quiet}
    with one_thread(), Stages(shown=not options.silent, repeated=options.quiet) as stage:
        floors_of = _Comparison(study, options)

        def tell(what: str) -> None:
            stage(what)
            floors_of.begin()

        try:
            fit = rf.fit(study, refit=options.refit, jobs=options.jobs, folder=options.keep, tell=tell, **given)
        except GateError as failure:
            _say_what_can_be_said(study, failure, folder, options.seed)
            raise
        floors = None
        if fit.measurements is not None:
            stage(f"fitting floor structures{' and refits without each model, GPU and pair' * options.full}")
            fit, floors = _compared(fit, floors_of)
        stage("judging and drawing")
        result = rf.report(fit, floors=floors, out=folder)
    show(result.data if options.json else result.text)
    return DONE


class _Comparison:
    """The comparison of floors, when it is asked for; beside the fits where `begin` was called.

    What the options ask of processes, a cluster or refits is done by itself, after the fits.
    """

    def __init__(self, study: "Study", options: argparse.Namespace):
        self._study, self._options = study, options
        self._wait: Callable[[], Comparison] | None = None

    def begin(self) -> None:
        """Start, if that can be beside the fits and has not been done."""
        from rooffloor.validate.common.runner import beside

        options = self._options
        few = (os.cpu_count() or 1) <= FEW_CORES
        alone = options.jobs is not None or options.dask is not None or options.full or not few
        if self._wait is None and not alone and self._study.data.format != "published":
            self._wait = beside(partial(self._made, quiet=True))

    def _made(self, quiet: bool) -> "Comparison":
        given = shared.runner_of(self._options) | {"seed": self._options.seed, "quiet": quiet}
        return rf.compare_floors(self._study, refits=self._options.full, **given)

    def __call__(self) -> "Comparison":
        """What it found.

        Raises
        ------
        GateError, TaskError
            It has no answer.
        """
        return self._made(self._options.quiet) if self._wait is None else self._wait()


def _compared(fit: "Evidence", floors: "_Comparison") -> tuple["Evidence", "Comparison | None"]:
    """The comparison of floors; where it has no answer, the fit with a warning in its place."""
    try:
        return fit, floors()
    except (GateError, TaskError) as failure:
        said = f"The comparison of floor structures has no answer and is left out: {failure}."
        return replace(fit, warnings=(*fit.warnings, said)), None


def _say_what_can_be_said(study: "Study", failure: GateError, folder: Path, seed: int | None) -> None:
    """Without any fit: measured numbers, least squares and tests, where there are cells."""
    if study.data.format == "published":
        return
    from rooffloor.validate.reporting.run import report_unanswered

    written = report_unanswered(study, failure, out=folder, seed=seed)
    failure.args = (f"{failure}; what can still be said: {written['report.html']}",)
