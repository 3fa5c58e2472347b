"""The whole reconstruction of the published study, as `rooffloor reconstruct` makes it."""

from pathlib import Path

from rooffloor.validate.fitting.imputed import build_cache
from rooffloor.validate.published.imputation import acceptance, reconstruction
from rooffloor.validate.published.imputation.reconstruction import Reconstruction
from rooffloor.validate.study.study import Study


def run(
    *,
    out: str | Path | None = None,
    seed: int = 20261129,
    per_index: int = 10,
    jobs: int = 2,
    accept: int = 0,
    quiet: bool = False,
) -> Reconstruction:
    """Make everything that the embedded study ships beside its published figures.

    Writes into the folder `out` (default reports/reconstruction) imputed_grids.csv.gz, indices.csv, figures.csv and
    imputed_posteriors.npz, and with `accept` > 0 the acceptance on so many simulated studies. Finished parts are kept
    in `out`/.parts: an interrupted run resumes.
    """
    target = Path(out) if out is not None else Path("reports") / "reconstruction"
    parts = target / ".parts"
    result = reconstruction.reconstruct(seed=seed, per_index=per_index, jobs=jobs, progress=not quiet, folder=parts)
    reconstruction.save(result, target)
    build_cache(Study.load("transfer-study"), target, quiet=quiet)
    if accept:
        acceptance.save(acceptance.accept(accept, seed=seed, jobs=jobs, progress=not quiet, folder=parts), target)
    return result
