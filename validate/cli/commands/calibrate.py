"""`rooffloor calibrate`: error rates of the tests, or of `check`, by simulation."""

import argparse

from rooffloor.validate.cli.options import add, add_runner, check_file, check_runner, path, positive, runner_of
from rooffloor.validate.cli.streams import show
from rooffloor.validate.common.errors import DONE

DOES, SEED = "how often is each test wrong? size, power and coverage by simulation", 1


def add_options(command: argparse.ArgumentParser) -> None:
    text = "simulated, at the margin of H1, half elsewhere (default: 1000); with --check of each truth and design"
    add(command, "--studies", text, "N", positive, default=1000)
    add(command, "--check", "error rates of check instead of those of the tests", action="store_true")
    add(command, "--out", "write the table there, as CSV", "FILE", path)
    add_runner(command)


def run(options: argparse.Namespace) -> int:
    check_file(options, options.out)
    check_runner(options)
    from rooffloor.validate.simulation import check, hypotheses

    result = (check if options.check else hypotheses).calibrate(
        studies=options.studies, seed=options.seed, progress=not options.quiet, **runner_of(options)
    )
    if options.out is not None:
        result.save(options.out)
    show(result.data if options.json else result.text)
    return DONE
