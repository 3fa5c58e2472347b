"""`rooffloor compare`: which floor structure measured cells support."""

import argparse

import rooffloor as rf
from rooffloor.validate.cli.options import SEED_OF_STUDY, add, add_runner, add_study, check_runner, runner_of, study_of
from rooffloor.validate.cli.streams import show
from rooffloor.validate.common.errors import DONE, InputError

DOES, SEED = "which floor structure do measured cells support?", SEED_OF_STUDY


def add_options(command: argparse.ArgumentParser) -> None:
    add_study(command)
    text = "skip Student-t noise and the refits without each model, GPU, pair"
    add(command, "--no-refits", text, action="store_true")
    add_runner(command)


def run(options: argparse.Namespace) -> int:
    study = study_of(options)
    if study.data.format == "published":
        raise InputError(f"{study.name} publishes aggregates, no cells: compare needs --data FILE")
    check_runner(options)
    result = rf.compare_floors(
        study, seed=options.seed, refits=not options.no_refits, quiet=options.quiet, **runner_of(options)
    )
    show(result.data if options.json else result.text)
    return DONE
