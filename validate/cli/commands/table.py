"""`rooffloor table`: the two-number table alone."""

import argparse

from rooffloor.validate.cli.options import SEED_OF_STUDY, add_study, study_of
from rooffloor.validate.cli.streams import show
from rooffloor.validate.common.errors import DONE

DOES, SEED = "print the two-number table: MAPE without and with the anchor's floor", SEED_OF_STUDY
add_options = add_study


def run(options: argparse.Namespace) -> int:
    study = study_of(options)
    from rooffloor.validate.reporting import run as reporting

    result = reporting.table(study, seed=options.seed)
    show(result.data if options.json else result.text)
    return DONE
