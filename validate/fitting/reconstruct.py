"""The whole reconstruction of the published study, as `rooffloor reconstruct` makes it."""

from pathlib import Path

from rooffloor.validate.common.files import check_writable
from rooffloor.validate.fitting.imputed import CACHE, build_cache
from rooffloor.validate.published.imputation import acceptance, reconstruction
from rooffloor.validate.published.imputation.reconstruction import Reconstruction
from rooffloor.validate.study.study import Study

OUT = Path("reports") / "reconstruction"
"""Where it goes by default."""
FILES = (
    reconstruction.TABLE,
    "indices.csv",
    "figures.csv",
    CACHE,
    "acceptance.csv",
    "acceptance_studies.csv",
    ".parts/any",
)
"""What is written there."""


def run(
    *,
    out: str | Path | None = None,
    seed: int = 20261129,
    per_index: int = 24,
    jobs: int = 2,
    accept: int = 0,
    quiet: bool = False,
) -> Reconstruction:
    """Make everything that the embedded study ships beside its published figures.

    Writes into the folder `out` (default reports/reconstruction) imputed_grids.csv.gz, indices.csv, figures.csv and
    imputed_posteriors.npz, and with `accept` > 0 the acceptance on so many simulated studies. Finished parts are kept
    in `out`/.parts: an interrupted run resumes.

    Raises
    ------
    InputError
        The folder cannot be written: said before anything is computed.
    """
    target = Path(out) if out is not None else OUT
    check_writable(target, FILES)
    parts = target / ".parts"
    result = reconstruction.reconstruct(seed=seed, per_index=per_index, jobs=jobs, progress=not quiet, folder=parts)
    reconstruction.save(result, target)
    build_cache(Study.load("transfer-study"), target, quiet=quiet)
    if accept:
        acceptance.save(acceptance.accept(accept, seed=seed, jobs=jobs, progress=not quiet, folder=parts), target)
    return result
