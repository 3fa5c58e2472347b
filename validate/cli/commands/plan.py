"""`rooffloor plan`: which cells of a new model to measure next."""

import argparse

import rooffloor as rf
from rooffloor.validate.cli import options as shared
from rooffloor.validate.cli.options import add, name, path, positive
from rooffloor.validate.cli.streams import show
from rooffloor.validate.common.errors import DONE, InputError

DOES, SEED = "say which cells of a new model to measure next", 1
_MEASURED = ("model", "format", "stack", "mode")
"""Options that describe the file given by --measurements."""


def add_options(command: argparse.ArgumentParser) -> None:
    shared.add_config(command)
    shared.add_gpus(command)
    shared.add_formats(command)
    text = "cells to measure, 60 at most (shape: 30, overlap: 12; default: what --width needs)"
    add(command, "--budget", text, "N", positive)
    text = "narrow the floor (default), tell it from an error of T_gpu's shape, or tell added from overlapped floors"
    add(command, "--goal", text, "floor|shape|overlap", name, default="floor")
    text = "also say how many cells a 90 %% interval of +-X needs: ms (floor) or a relative error (shape)"
    add(command, "--width", text, "X", float)
    add(command, "--batches", "of the cells to choose from (default: 1,2,4,8,16)", "N[,N...]")
    add(command, "--contexts", "likewise (default: 512,1024,2048,4096,8192)", "N[,N...]")
    add(command, "--measurements", "cells of the model that are in hand, as for check", "FILE", path)
    shared.add_model(command)
    shared.add_format(command)
    shared.add_calibration(command)
    add(command, "--noise", "relative sd of a step (default: the calibration's)", "X", float)
    add(command, "--repeats", "a cell may be measured more than once", action="store_true")
    add(command, "--out", "write the cells there", "FILE.csv", path)


def run(options: argparse.Namespace) -> int:
    shared.check_suffix("--out", options.out, ".csv")
    shared.check_file(options, options.out)
    from rooffloor.validate.measurements.given_specs import in_format
    from rooffloor.validate.transfer.plan.measured import read_measured
    from rooffloor.validate.transfer.prediction.axes import parse_axis

    shapes = in_format(rf.load_model(options.config), options.dtype, options.kv_dtype)
    gpus = [rf.load_gpu(gpu) for gpu in options.gpu]
    axes = {
        name: parse_axis(getattr(options, name), name, 1).astype(int).tolist()
        for name in ("batches", "contexts")
        if getattr(options, name) is not None
    }
    about = {name: value for name in _MEASURED if (value := getattr(options, name)) is not None}
    if about and options.measurements is None:
        raise InputError(f"{', '.join(f'--{name}' for name in about)}: only with --measurements FILE")
    result = rf.plan(
        shapes,
        gpus,
        options.budget,
        calibration=options.study or shared.DEFAULT_STUDY,
        goal=options.goal,
        width=options.width,
        measured=() if options.measurements is None else read_measured(options.measurements, shapes, gpus, **about),
        noise=options.noise,
        repeats=options.repeats,
        seed=options.seed,
        **axes,
    )
    if options.out is not None:
        result.to_csv(options.out)
    show(result.data if options.json else result.text)
    return DONE
