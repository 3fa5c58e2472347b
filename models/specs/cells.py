"""Cells: the points (model, GPU, batch, context) at which a decode step is predicted or measured."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray


@dataclass(frozen=True, eq=False)
class Cells:
    """A flat list of cells, with models and GPUs as integer codes.

    Attributes
    ----------
    models, gpus : tuple of str
        Names; the codes index them.
    model_code, gpu_code : int arrays, shape (cell,)
    batch : float array, shape (cell,)
        Sequences per step.
    context : float array, shape (cell,)
        Tokens in the cache before the step; may be a mean and so not whole.
    step_ms : float array, shape (cell,), or None
        Measured or imputed step time, ms.
    step_sd_ms : float array, shape (cell,), or None
        Known measurement uncertainty of `step_ms`, ms (0 where none is known).

    Examples
    --------
    >>> Cells.from_columns(["Llama-3.1-8B"] * 2, ["H100", "L40S"], [1, 8], [512, 512])
    Cells(2 cells: 1 models x 2 GPUs)
    """

    models: tuple[str, ...]
    gpus: tuple[str, ...]
    model_code: NDArray[np.int64]
    gpu_code: NDArray[np.int64]
    batch: NDArray[np.float64]
    context: NDArray[np.float64]
    step_ms: NDArray[np.float64] | None = None
    step_sd_ms: NDArray[np.float64] | None = None

    def __post_init__(self) -> None:
        sizes = {len(self.model_code), len(self.gpu_code), len(self.batch), len(self.context)}
        sizes |= {len(a) for a in (self.step_ms, self.step_sd_ms) if a is not None}
        if len(sizes) != 1:
            raise ValueError(f"cells need columns of one length, got lengths {sorted(sizes)}")

    @classmethod
    def from_columns(
        cls,
        model: Sequence[str],
        gpu: Sequence[str],
        batch: ArrayLike,
        context: ArrayLike,
        step_ms: ArrayLike | None = None,
        step_sd_ms: ArrayLike | None = None,
    ) -> "Cells":
        """Code the names in order of first appearance."""
        models, gpus = tuple(dict.fromkeys(model)), tuple(dict.fromkeys(gpu))
        model_at = {name: i for i, name in enumerate(models)}
        gpu_at = {name: i for i, name in enumerate(gpus)}

        def column(values: ArrayLike | None) -> NDArray[np.float64] | None:
            return None if values is None else np.asarray(values, dtype=float)

        return cls(
            models,
            gpus,
            np.array([model_at[m] for m in model], dtype=np.int64),
            np.array([gpu_at[g] for g in gpu], dtype=np.int64),
            np.asarray(batch, dtype=float),
            np.asarray(context, dtype=float),
            column(step_ms),
            column(step_sd_ms),
        )

    def __len__(self) -> int:
        return len(self.batch)

    def __repr__(self) -> str:
        return f"Cells({len(self)} cells: {len(self.models)} models x {len(self.gpus)} GPUs)"

    @property
    def model(self) -> NDArray[np.str_]:
        """Model name of each cell, shape (cell,)."""
        return np.array(self.models)[self.model_code]

    @property
    def gpu(self) -> NDArray[np.str_]:
        """GPU name of each cell, shape (cell,)."""
        return np.array(self.gpus)[self.gpu_code]

    def where(self, mask: NDArray[np.bool_]) -> "Cells":
        """The cells where `mask` (shape (cell,)) is true, with names that no cell uses dropped."""
        return Cells.from_columns(
            list(self.model[mask]),
            list(self.gpu[mask]),
            self.batch[mask],
            self.context[mask],
            None if self.step_ms is None else self.step_ms[mask],
            None if self.step_sd_ms is None else self.step_sd_ms[mask],
        )

    def pairs(self) -> Iterator[tuple[str, str, NDArray[np.bool_]]]:
        """(model, GPU, mask over cells) of every measured pair, in the order of the models."""
        for m, model in enumerate(self.models):
            for g, gpu in enumerate(self.gpus):
                mask = (self.model_code == m) & (self.gpu_code == g)
                if mask.any():
                    yield model, gpu, mask
