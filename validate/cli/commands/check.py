"""`rooffloor check`: does the calibration hold for a model family?"""

import argparse

import rooffloor as rf
from rooffloor.validate.cli import options as shared
from rooffloor.validate.cli.options import add, given, name, path
from rooffloor.validate.cli.streams import show
from rooffloor.validate.common.errors import DONE, REFUTED, UNDECIDED

DOES, SEED = "does the calibration hold for a model family? The exit code is the verdict", 1
FILES = ("check.html", "check.json", "cells.csv", "figures/cells.png", "figures/verdict.png")
"""What is written into the folder."""


def add_options(command: argparse.ArgumentParser) -> None:
    shared.add_config(command)
    text = "measured cells: batch, context, step_ms; model and gpu where --config and --gpu do not say them"
    add(command, "--measurements", text, "FILE", path, required=True)
    add(command, "--gpu", "name or TOML file: the GPU of FILE, or which of its rows to use", "GPU", given)
    shared.add_model(command)
    shared.add_class(command)
    calibration = command.add_mutually_exclusive_group()
    shared.add_calibration(calibration, "calibration: a study")
    add(calibration, "--anchor", "calibrate on this model's rows of FILE instead", "MODEL", name)
    shared.add_format(command, default="schema")
    add(command, "--out", "write check.html, check.json and cells.csv there", "DIR", path)


def run(options: argparse.Namespace) -> int:
    if options.out is not None:
        shared.check_folder(options, options.out, FILES)
    from rooffloor.validate.transfer.check import TRANSFERS
    from rooffloor.validate.transfer.check import UNDECIDED as NOT_DECIDED

    result = rf.check(
        options.config,
        options.measurements,
        calibration=options.study or shared.DEFAULT_STUDY,
        **{
            name: getattr(options, name)
            for name in ("gpu", "anchor", "model", "klass", "format", "stack", "mode", "seed", "quiet")
        },
    )
    page = None if options.out is None else result.save(options.out)
    show(result.data if options.json else result.text)
    if page is not None and not options.json:
        show(f"Page: {page}")
    return {TRANSFERS: DONE, NOT_DECIDED: UNDECIDED}.get(result.verdict, REFUTED)
