"""Any PyMC model in the place of a compiled one: what the cut and the gate are tried on."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import nutpie
import pymc as pm
import xarray as xr

from rooffloor.models.inference.gate import DEFAULT_GATE, Attempt, Gate, diagnose, examined
from rooffloor.models.inference.sampling import Compiled, Fit


class AnyCompiled(Compiled):
    """`Compiled` of a PyMC model that is none of steps."""

    def __init__(self, model: pm.Model):
        object.__setattr__(self, "nutpie_model", nutpie.compile_pymc_model(model, backend="numba"))
        object.__setattr__(self, "names", tuple(rv.name for rv in model.free_RVs))

    free = property(lambda self: self.names)  # type: ignore[assignment]
    dims = property(lambda self: {})  # type: ignore[assignment]
    coords = property(lambda self: {})  # type: ignore[assignment]

    def fit(
        self,
        data: Mapping[str, Any] | None = None,
        *,
        target_accept: float = 0.95,
        gate: Gate = DEFAULT_GATE,
        progress: bool = False,
        seed: int,
        draws: int = 1000,
        tune: int = 1000,
        chains: int = 4,
        cores: int = 2,
    ) -> Fit:
        model = self.nutpie_model.with_data(**{n: np.asarray(v) for n, v in (data or {}).items()})
        options = {"draws": draws, "tune": tune, "chains": chains, "cores": min(cores, chains), "seed": seed}
        trace = nutpie.sample(model, target_accept=target_accept, save_warmup=False, progress_bar=progress, **options)
        posterior, stats = trace["posterior"].to_dataset(), trace["sample_stats"].to_dataset()
        found = diagnose(examined(self.free, posterior), stats)
        attempt = Attempt(draws, tune, chains, seed, target_accept, found, gate.failures(found), gate.warnings(found))
        return Fit(xr.DataTree.from_dict({"posterior": posterior, "sample_stats": stats}), (attempt,))
