"""`rooffloor predict`: step time and throughput, with intervals."""

import argparse

import rooffloor as rf
from rooffloor.validate.cli import options as shared
from rooffloor.validate.cli.options import add, name, path
from rooffloor.validate.cli.streams import show
from rooffloor.validate.common.errors import DONE

DOES, SEED = "predict step time and throughput of a model on a GPU, with intervals", 1


def add_options(command: argparse.ArgumentParser) -> None:
    shared.add_config(command, "a folder of them, or a TOML file; may be repeated", action="append")
    shared.add_gpus(command)
    shared.add_formats(command)
    axes = "numbers, lists (1,4,16) and ranges, START:STOP:STEP (512:8192:512) or START:STOP:FACTORx (1:64:2x)"
    add(command, "--batch", f"sequences in the step: {axes}; default: 1,4,16", "N[,N...]", default="1,4,16")
    text = "tokens in the cache of each, written alike; default: 512,2048,8192"
    add(command, "--context", text, "N[,N...]", default="512,2048,8192")
    shared.add_calibration(command)
    shared.add_class(command)
    add(command, "--stack", "what will serve the model, to be told where the calibration is another's", kind=name)
    add(command, "--mode", "how it will launch kernels, likewise", choices=["eager", "graph"])
    add(command, "--mean", "show the mean step instead of the step that a measurement would show", action="store_true")
    add(command, "--out", "write every number there", "FILE.csv", path)
    add(command, "--figure", "draw curves with bands there: .png or .svg", "FILE", path)


def run(options: argparse.Namespace) -> int:
    shared.check_suffix("--out", options.out, ".csv")
    shared.check_suffix("--figure", options.figure, ".png", ".svg")
    shared.check_file(options, options.out, options.figure)
    from rooffloor.validate.transfer.prediction.axes import parse_axis

    result = rf.predict(
        options.config,
        options.gpu,
        parse_axis(options.batch, "batch", 1),
        parse_axis(options.context, "context", 0),
        calibration=options.study or shared.DEFAULT_STUDY,
        klass=options.klass,
        seed=options.seed,
        stack=options.stack or "",
        mode=options.mode or "",
        dtype=options.dtype,
        kv_dtype=options.kv_dtype,
    )
    step = "mean" if options.mean else "measured"
    drawn = None
    if options.figure is not None:  # before anything is written: more curves than there are colours are refused
        from rooffloor.validate.presentation.writers import image

        drawn = image(result.figure(step), options.figure.suffix[1:])
    if options.out is not None:
        result.to_csv(options.out)
    if drawn is not None:
        from rooffloor.validate.common.files import write_bytes

        write_bytes(options.figure, drawn)
    show(result.data if options.json else result.text_of(step))
    return DONE
