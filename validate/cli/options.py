"""Options that several commands share, the types of arguments, and what follows from them."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rooffloor as rf
from rooffloor.validate.common.errors import InputError
from rooffloor.validate.measurements.importers import FORMATS, STUDY_FORMATS

if TYPE_CHECKING:
    from rooffloor.validate.study.study import Study

DEFAULT_STUDY = "transfer-study"
LARGEST_COUNT, LARGEST_SEED = 10**9, 2**63 - 1
SEED_OF_STUDY = "the study's"
_DATA = ("format", "stack", "mode", "anchor", "configs", "priors")
"""Options that describe the file given by --data."""
_INPUTS = ("study", "data", "config", "configs", "gpu", "measurements", "file", "shorter")
"""Options that may name a file or folder that is read."""
_HOLDS = ("config.json", "study.toml", "posterior.npz")
"""What is read of a folder that such an option names."""


def path(text: str) -> Path:
    """A path, whether anything is there or not."""
    return Path(given(text))


def given(text: str) -> str:
    """A name of a file, folder or thing."""
    if not text.strip():
        raise argparse.ArgumentTypeError("expected a name, found nothing")
    return text


def name(text: str) -> str:
    """A name that is told on: no bytes that are no text."""
    if not text.isascii() and any("\ud800" <= c <= "\udfff" for c in text):
        raise argparse.ArgumentTypeError(f"expected text in UTF-8, found {text!r}")
    return given(text)


def positive(text: str) -> int:
    """A count."""
    return _integer(text, 1, LARGEST_COUNT)


def _seed(text: str) -> int:
    return _integer(text, 0, LARGEST_SEED)


def _integer(text: str, least: int, most: int) -> int:
    if not text.isdecimal() or len(text) > len(str(most)) or not least <= int(text) <= most:
        raise argparse.ArgumentTypeError(f"expected a whole number from {least} to {most}, found {text[:40]!r}")
    return int(text)


def add(command: argparse._ActionsContainer, flag: str, text: str, of: str = "", kind: Any = None, **more: Any) -> None:
    """One option, or argument, with its help; `of` is what the help calls its value, `kind` the type of that."""
    value = {"metavar": of or None, "type": kind} if of or kind else {}
    command.add_argument(flag, help=text, **value, **more)


def add_common(command: argparse.ArgumentParser, seed: int | str) -> None:
    """What every command has; `seed` is the default, or says in words whose it is where that is decided later."""
    add(command, "--json", "print JSON instead of text", action="store_true")
    default = None if isinstance(seed, str) else seed
    add(command, "--seed", f"seed of every random draw (default: {seed})", "N", _seed, default=default)
    add(command, "--quiet", "no progress bars (they show on a terminal only)", action="store_true")


def add_config(command: argparse.ArgumentParser, what: str = "its folder or a TOML file", **more: Any) -> None:
    """--config of a model."""
    text = f"name in the catalog, a config.json, {what}"
    add(command, "--config", text, "MODEL", given, **{"required": True, **more})


def add_formats(command: argparse.ArgumentParser) -> None:
    """--dtype and --kv-dtype of the model."""
    text = "number format of its weights, in place of what its config says: bf16, fp8, int8, int4, mxfp4, nvfp4, ..."
    add(command, "--dtype", text, "FORMAT", name)
    add(command, "--kv-dtype", "number format of its cache, likewise", "FORMAT", name)


def add_gpus(command: argparse.ArgumentParser) -> None:
    """--gpu, once or more."""
    text = "name, or a TOML file; may be repeated"
    add(command, "--gpu", text, "GPU", given, action="append", required=True)


def add_class(command: argparse.ArgumentParser) -> None:
    """--class of the model."""
    add(command, "--class", "class whose floors the model shares (default: by its size)", "NAME", name, dest="klass")


def add_model(command: argparse.ArgumentParser) -> None:
    """--model, by the name that a file of measurements has for it."""
    add(command, "--model", "what FILE calls the model (default: as --config)", "NAME", name)


def add_format(
    command: argparse._ActionsContainer, choices: Sequence[str] = ("schema", *FORMATS), default: str | None = None
) -> None:
    """--format of a file of measurements, and which of its rows."""
    add(command, "--format", "of FILE (default: schema)", choices=choices, default=default)
    add(command, "--stack", "use the rows of this serving stack", kind=name)
    add(command, "--mode", "use the rows of this mode: eager, graph", kind=name)


def add_calibration(command: argparse._ActionsContainer, what: str = "whose saved draws: a name") -> None:
    """--study whose calibration is used."""
    text = f"{what}, a posterior.npz, or a report's folder (default: {DEFAULT_STUDY})"
    add(command, "--study", text, "STUDY", given)


def add_study(command: argparse.ArgumentParser) -> None:
    """A study, or the measurements that make one (`study_of`)."""
    add(command, "study", f"name or study.toml (default: {DEFAULT_STUDY})", "STUDY", given, nargs="?")
    data = command.add_argument_group("measurements instead of a study")
    add(data, "--data", "measured cells; margins are then defaults", "FILE", path)
    add_format(data, STUDY_FORMATS)
    add(data, "--anchor", "the model on which constants are calibrated", "MODEL", name)
    text = "of constants and host time: from measured kernels (default), or wide"
    add(data, "--priors", text, choices=("kernels", "wide"), default=None)
    add(data, "--configs", "folder of Hugging Face config.json files of models in FILE", "DIR", path)


def add_runner(command: argparse.ArgumentParser) -> None:
    """Where many fits run (`runner_of`)."""
    add(command, "--jobs", "processes (default: one per core)", "N", positive)
    add(command, "--dask", "use the Dask cluster with this scheduler instead", "ADDRESS", name)
    add(command, "--keep", "keep finished work there: an interrupted run resumes", "DIR", path)


def study_of(options: argparse.Namespace) -> "Study":
    """The study that is named, or that of --data."""
    about = {name: value for name in _DATA if (value := getattr(options, name)) is not None}
    if options.data is None:
        if about:
            raise InputError(f"{', '.join(f'--{name}' for name in about)}: only with --data FILE")
        return rf.Study.load(options.study or DEFAULT_STUDY)
    if options.study is not None:
        raise InputError(f"{options.study}: a study brings its own data; give either STUDY or --data FILE")
    return rf.Study.from_data(options.data, **about)


def check_runner(options: argparse.Namespace) -> None:
    """InputError where no cluster answers at --dask, or nothing can be kept at --keep; before the work is done."""
    if options.keep is not None:
        check_folder(options, options.keep, ())
    if options.dask is not None:
        from rooffloor.validate.common.runner import check_scheduler

        check_scheduler(options.dask)


def check_file(options: argparse.Namespace, *outputs: Path | None) -> None:
    """InputError where an output cannot be written, or is a file that is read; before the work is done."""
    from rooffloor.validate.common import files

    refuse_overwriting(options, *outputs)
    for output in outputs:
        if output is not None:
            files.check_writable_file(output)


def runner_of(options: argparse.Namespace) -> dict[str, Any]:
    """The options of `add_runner` as arguments."""
    return {"jobs": options.jobs, "dask": options.dask, "folder": options.keep}


def refuse_overwriting(options: argparse.Namespace, *outputs: Path | None, beside: Sequence[Path] = ()) -> None:
    """InputError where an output is a file that the command reads; `beside` are such files that no option names."""
    from rooffloor.validate.common import files

    read = list(beside)
    for option in _INPUTS:
        value = getattr(options, option, None)
        for one in value if isinstance(value, list) else [value]:
            if one is not None:
                read += [Path(one), *(Path(one) / held for held in _HOLDS)]
    files.refuse_overwriting([output for output in outputs if output is not None], read)


def check_folder(options: argparse.Namespace, folder: Path, names: Sequence[str]) -> None:
    """InputError where the files of these names cannot be written, or are read; before the work is done."""
    from rooffloor.validate.common import files

    refuse_overwriting(options, *(folder / name for name in names))
    files.check_writable(folder, names)


def check_suffix(option: str, output: Path | None, *suffixes: str) -> None:
    """InputError where the file that an option names is of another kind."""
    if output is not None and output.suffix not in suffixes:
        raise InputError(f"{option} {output}: expected the name of a {' or '.join(suffixes)} file")
