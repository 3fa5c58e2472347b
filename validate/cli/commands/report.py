"""`rooffloor report`: fit a study, judge it, and write the report."""

import argparse
from pathlib import Path

from rooffloor.validate.cli import options as shared
from rooffloor.validate.cli.options import add, path
from rooffloor.validate.cli.streams import show
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
    from rooffloor.validate.reporting import run as reporting

    result = reporting.run(
        study,
        out=folder,
        seed=options.seed,
        refit=options.refit,
        full=options.full,
        jobs=options.jobs,
        dask=options.dask,
        keep=options.keep,
        quiet=options.quiet,
    )
    show(result.data if options.json else result.summary)
    return DONE
