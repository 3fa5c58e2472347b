"""`rooffloor check`: does the calibration hold for a model family?"""

import argparse

import rooffloor as rf
from rooffloor.validate.cli import options as shared
from rooffloor.validate.cli.options import add, given, name, path
from rooffloor.validate.cli.streams import show
from rooffloor.validate.common.errors import DONE, REFUTED, UNDECIDED

DOES, SEED = "does the calibration hold for a model family, and why not? The exit code is the verdict", 1
FILES = ("check.html", "check.json", "cells.csv", "figures/cells.png", "figures/verdict.png")
"""What is written into the folder for one family."""
CODES = """\
exit codes: 0 holds (P(MAPE within the tolerance) at least .95), 1 does not hold (at most .05), 2 the input cannot be
used, 3 the fit of --anchor failed its gate, 4 undecided (in between). Of many families: 1 if it is sure for one, given
their number, that the calibration does not hold, 0 if for all that it holds, else 4. The cause changes no exit code."""


def add_options(command: argparse.ArgumentParser) -> None:
    command.epilog, command.formatter_class = CODES, argparse.RawDescriptionHelpFormatter
    shared.add_config(command, "its folder or a TOML file; without, every model of FILE is checked", required=False)
    text = "measured cells: batch, context, step_ms; model and gpu where --config and --gpu do not say them"
    add(command, "--measurements", text, "FILE", path, required=True)
    add(command, "--gpu", "name or TOML file: the GPU of FILE, or which of its rows to use", "GPU", given)
    shared.add_model(command)
    shared.add_formats(command)
    shared.add_class(command)
    add(command, "--configs", "without --config: folder of config.json files of models in FILE", "DIR", path)
    calibration = command.add_mutually_exclusive_group()
    shared.add_calibration(calibration, "calibration: a study")
    add(calibration, "--anchor", "calibrate on this model's rows of FILE instead", "MODEL", name)
    add(command, "--tolerance", "MAPE up to which the calibration holds (default: 10)", "PERCENT", float, default=10.0)
    shared.add_format(command, default="schema")
    add(command, "--out", "write check.html, check.json and cells.csv there; of many families a table", "DIR", path)


def run(options: argparse.Namespace) -> int:
    from rooffloor.validate.common.errors import InputError
    from rooffloor.validate.measurements.given_specs import in_format
    from rooffloor.validate.transfer import families
    from rooffloor.validate.transfer.check import DOES_NOT_HOLD, HOLDS, Check

    one = options.config is not None
    if one and options.configs is not None:
        raise InputError("--configs is for many families: give it, or --config of one")
    if not one and any(value is not None for value in (options.model, options.klass, options.dtype, options.kv_dtype)):
        raise InputError(
            "--model and --class are of one family, and so are --dtype and --kv-dtype: name it with --config"
        )
    if options.out is not None:
        shared.check_folder(options, options.out, FILES if one else families.FILES)
    about = {
        option: getattr(options, option)
        for option in ("gpu", "anchor", "tolerance", "format", "stack", "mode", "seed", "quiet")
    }
    about["calibration"] = options.study or shared.DEFAULT_STUDY
    result: Check | families.Families
    if one:
        family = in_format(rf.load_model(options.config), options.dtype, options.kv_dtype)
        result = rf.check(family, options.measurements, model=options.model, klass=options.klass, **about)
    else:
        result = families.check_families(options.measurements, configs=options.configs, **about)
    page = None if options.out is None else result.save(options.out)
    show(result.data if options.json else result.text)
    if page is not None and not options.json:
        show(f"{'Page' if one else 'Table'}: {page}")
    return {HOLDS: DONE, DOES_NOT_HOLD: REFUTED}.get(result.verdict, UNDECIDED)
