"""`rooffloor reconstruct`: whole grids from published aggregates."""

import argparse

from rooffloor.validate.cli.options import add, check_folder, path, positive
from rooffloor.validate.cli.streams import show
from rooffloor.validate.common.errors import DONE

DOES, SEED = "impute whole grids from the study's published aggregates", "that of the committed grids"


def add_options(command: argparse.ArgumentParser) -> None:
    add(command, "--out", "where the grids go (default: reports/reconstruction)", "DIR", path)
    add(command, "--per-index", "grids per index of an imputation", "N", positive)
    add(command, "--accept", "also reconstruct N simulated studies and report coverage", "N", positive)
    add(command, "--jobs", "processes (default: one per core)", "N", positive)


def run(options: argparse.Namespace) -> int:
    from rooffloor.validate.fitting import reconstruct

    check_folder(options, options.out or reconstruct.OUT, reconstruct.FILES)
    given = {name: getattr(options, name) for name in ("out", "seed", "per_index", "jobs", "accept")}
    given = {name: value for name, value in given.items() if value is not None}  # the rest are run's defaults
    result = reconstruct.run(**given, quiet=options.quiet)
    show(result.data if options.json else result.text)
    return DONE
