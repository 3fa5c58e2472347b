"""`rooffloor test`: one hypothesis."""

import argparse

from rooffloor.validate.cli.options import SEED_OF_STUDY, add, add_study, study_of
from rooffloor.validate.cli.streams import show
from rooffloor.validate.common.errors import DONE, REFUTED, UNDECIDED

DOES, SEED = "test one hypothesis; the exit code is the verdict", SEED_OF_STUDY


def add_options(command: argparse.ArgumentParser) -> None:
    add(command, "hypothesis", "which", "H1|H2|H3", str.upper, choices=["H1", "H2", "H3"])
    add_study(command)


def run(options: argparse.Namespace) -> int:
    study = study_of(options)
    from rooffloor.validate.fitting.evidence import fit
    from rooffloor.validate.hypotheses.test import test

    result = test(fit(study, seed=options.seed, quiet=options.quiet), options.hypothesis)
    show(result.data if options.json else result.text)
    return {"supported": DONE, "refuted": REFUTED}.get(result.verdict, UNDECIDED)
