"""`rooffloor report`: fit a study, judge it, and write the report."""

import argparse
from pathlib import Path

import rooffloor as rf
from rooffloor.validate.cli import options as shared
from rooffloor.validate.cli.options import add, path
from rooffloor.validate.cli.streams import show, tell
from rooffloor.validate.common.errors import DONE

DOES, SEED = "run the main job on a study and write its report", shared.SEED_OF_STUDY
FILES = ("report.html", "report.json", "report.md", "posterior.nc", "posterior.npz", "run.json", "figures/any")
"""What is written into the folder."""


def add_options(command: argparse.ArgumentParser) -> None:
    shared.add_study(command)
    add(command, "--out", "where the report goes (default: reports/STUDY)", "DIR", path)
    add(command, "--refit", "recompute every fit, use no cached posterior", action="store_true")
    add(command, "--full", "measured cells: also the refits without each model, GPU, pair (long)", action="store_true")
    shared.add_runner(command)


def run(options: argparse.Namespace) -> int:
    study = shared.study_of(options)
    folder = options.out or Path("reports") / study.name
    shared.check_folder(options, folder, FILES)
    given = {"seed": options.seed, "quiet": options.quiet}
    fit = rf.fit(study, refit=options.refit, jobs=options.jobs, **given)
    floors = None
    if fit.measurements is not None:
        if not options.quiet:
            tell(f"rooffloor: fitting floor structures{' and refits without each model, GPU and pair' * options.full}")
        floors = rf.compare_floors(study, refits=options.full, **shared.runner_of(options), **given)
    result = rf.report(fit, floors=floors, out=folder)
    show(result.data if options.json else result.text)
    return DONE
