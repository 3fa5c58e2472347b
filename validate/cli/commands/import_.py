"""`rooffloor import`: another tool's results as measurements."""

import argparse

from rooffloor.validate.cli.options import add, check_file, given, name, path, positive, refuse_overwriting
from rooffloor.validate.cli.streams import show, tell
from rooffloor.validate.common.errors import DONE
from rooffloor.validate.measurements.importers import FORMATS

DOES, SEED = "turn another tool's results into measurements that the others read", 1


def add_options(command: argparse.ArgumentParser) -> None:
    said = command.add_argument_group("what the file does not say")
    add(command, "format", "; ".join(f"{k}: {v.what}" for k, v in FORMATS.items()), "FORMAT", choices=list(FORMATS))
    add(command, "file", "the tool's result file", "FILE", path)
    add(command, "--out", "write the CSV there (default: print it)", "FILE", path)
    add(command, "--configs", "folder of config.json files of models in FILE", "DIR", path)
    add(said, "--config", "the model, by its config.json (--model then names it)", "MODEL", given)
    add(said, "--model", "the model, by a name of the catalog or of --configs", "NAME", name)
    add(said, "--gpu", "the GPU, by a name of the catalog", "NAME", given)
    add(said, "--batch", "sequences in the batch", "N", positive)
    add(said, "--input-len", "tokens of each prompt", "N", positive)
    add(said, "--output-len", "tokens generated for each", "N", positive)
    add(said, "--stack", "the serving stack; of a file that mixes several, the one to use", kind=name)
    add(said, "--stack-version", "its version", "VERSION", name)
    add(said, "--mode", "how kernels were launched", choices=["eager", "graph", "unknown"])
    add(said, "--dtype", "type of the weights", kind=name)
    add(said, "--shorter", "vllm-latency: the same cell, fewer output tokens", "FILE", path)
    add(said, "--shorter-output-len", "tokens generated for each there", "N", positive)


def run(options: argparse.Namespace) -> int:
    from rooffloor.validate.common.files import write_text
    from rooffloor.validate.measurements import convert
    from rooffloor.validate.measurements.given_specs import config_files
    from rooffloor.validate.measurements.importers import argonne
    from rooffloor.validate.measurements.importers.source import Given

    beside = [] if options.configs is None else list(config_files(options.configs).values())
    beside += filter(None, [argonne.ttft_file(options.file.parent)])
    refuse_overwriting(options, options.out, beside=beside)
    given = Given(**{name: getattr(options, name) for name in Given.__dataclass_fields__})
    check_file(options, options.out)
    result = convert.run(
        options.file, options.format, *convert.known(options.format, given, options.config, options.configs)
    )
    if options.out is not None:
        write_text(options.out, result.csv)
    if options.json:
        show(result.data)
    elif options.out is not None:
        show(result.text)
    else:
        show(result.csv.removesuffix("\n"))
        tell(result.text)
    return DONE
