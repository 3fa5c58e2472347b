"""`rooffloor kernels`: bandwidth and latency of measured kernels."""

import argparse

from rooffloor.validate.cli.options import add, check_file, check_suffix, path, refuse_overwriting
from rooffloor.validate.cli.streams import show
from rooffloor.validate.common.errors import DONE

DOES, SEED = "say what share of the bandwidth, and what latency, measured kernels show by GPU and format", 1


def add_options(command: argparse.ArgumentParser) -> None:
    text = "benchmarks of matrix products or of decode attention, Parquet or CSV (docs/kernels.md lists the columns)"
    add(command, "files", text, "FILE", path, nargs="+")
    add(command, "--out", "write the table there, as CSV", "FILE", path)


def run(options: argparse.Namespace) -> int:
    from rooffloor.validate.common.files import write_text
    from rooffloor.validate.kernels import report

    check_suffix("--out", options.out, ".csv")
    refuse_overwriting(options, options.out, beside=options.files)
    check_file(options, options.out)
    found = report.run(options.files)
    if options.out is not None:
        write_text(options.out, found.csv)
    show(found.data if options.json else found.text)
    return DONE
