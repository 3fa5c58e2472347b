"""`rooffloor test`: one hypothesis."""

import argparse

import rooffloor as rf
from rooffloor.validate.cli.options import SEED_OF_STUDY, add, add_study, study_of
from rooffloor.validate.cli.streams import show, tell
from rooffloor.validate.common.errors import DONE, REFUTED, UNDECIDED

DOES, SEED = "test one hypothesis; the exit code is the verdict", SEED_OF_STUDY


def add_options(command: argparse.ArgumentParser) -> None:
    add(command, "hypothesis", "which", "H1|H2|H3", str.upper, choices=["H1", "H2", "H3"])
    add_study(command)


def run(options: argparse.Namespace) -> int:
    fit = rf.fit(study_of(options), seed=options.seed, quiet=options.quiet)
    if fit.instead:
        tell(f"rooffloor: {fit.instead}")
    result = rf.test(fit, options.hypothesis)
    show(result.data if options.json else result.text)
    return {"supported": DONE, "refuted": REFUTED}.get(result.verdict, UNDECIDED)
