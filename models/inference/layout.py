"""Where the floors of a grid [SKU, group] come from, and the contrasts in which they are measured (no PyMC)."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rooffloor.models.floor.structures import FloorStructure
from rooffloor.models.specs.cells import Cells

type Array = NDArray[np.float64]
type Codes = NDArray[np.int64]


@dataclass(frozen=True)
class KnownFloors:
    """Floors that are given and not estimated: those of an anchor, in the second stage of a cut.

    Attributes
    ----------
    model : str
        The anchor; every model that shares its group under the structure has these floors.
    floor_ms : mapping of GPU name to ms
        One floor per SKU on which the anchor was measured.
    q : float
        The overlap drawn with them, where the structure has one.
    launches : float
        Kernel launches of the anchor in one step, where floors grow with them.
    """

    model: str
    floor_ms: Mapping[str, float]
    q: float = 1.0
    launches: float = 0.0


@dataclass(frozen=True, eq=False)
class Layout:
    """Where each floor of the grid [gpu, group] comes from: estimated, known (the anchor's) or never measured.

    `measured`, `known` and `unmeasured` are index pairs (gpu, group), each (2, n); `code` [cell] counts the measured
    floors and then the known ones.
    """

    gpus: tuple[str, ...]
    dim: str | None
    labels: tuple[str, ...]
    measured: Codes
    known: Codes
    unmeasured: Codes
    code: Codes
    known_ms: Array

    @classmethod
    def of(
        cls, cells: Cells, classes: Mapping[str, str], structure: FloorStructure, known: KnownFloors | None
    ) -> "Layout":
        """The layout of the cells' floors under a structure that has some."""
        sharing = structure.sharing
        assert sharing is not None
        groups = structure.groups(cells, classes)
        gpus, anchor = cells.gpus, -1
        if known is not None:
            gpus = tuple(dict.fromkeys((*gpus, *known.floor_ms)))
            label = sharing.label(known.model, classes[known.model])
            groups = groups.including(label)
            anchor = groups.labels.index(label)
        given = {(gpus.index(g), anchor): ms for g, ms in (known.floor_ms if known else {}).items()}
        of_cell = list(zip(cells.gpu_code.tolist(), groups.code.tolist(), strict=True))
        estimated = [pair for pair in dict.fromkeys(of_cell) if pair not in given]
        rest = [p for p in np.ndindex(len(gpus), len(groups.labels)) if p not in given and p not in set(estimated)]
        order = {pair: i for i, pair in enumerate([*estimated, *given])}

        def index(pairs: list[tuple[int, int]]) -> Codes:
            return np.array(pairs, dtype=np.int64).reshape(-1, 2).T

        return cls(
            gpus,
            groups.dim,
            groups.labels,
            index(estimated),
            index(list(given)),
            index(rest),
            np.array([order[pair] for pair in of_cell], dtype=np.int64),
            np.array(list(given.values()), dtype=float),
        )

    @property
    def size(self) -> tuple[int, int]:
        """SKUs and groups of the grid."""
        return len(self.gpus), len(self.labels)

    @property
    def sampled(self) -> Codes:
        """Measured and known floors, (2, n)."""
        return np.concatenate([self.measured, self.known], axis=1)

    @property
    def order(self) -> Codes:
        """Measured, known and unmeasured floors in the order of the grid, row by row."""
        gpu, group = np.concatenate([self.sampled, self.unmeasured], axis=1)
        return np.argsort(gpu * len(self.labels) + group)

    def names(self, pairs: Codes) -> list[str]:
        """Labels of some floors."""
        return [self.gpus[g] if self.dim is None else f"{self.gpus[g]} | {self.labels[c]}" for g, c in pairs.T]

    def contrasts(self) -> tuple[Array, Codes]:
        """Contrasts of the measured floors and what each compares; see `contrasts`."""
        return contrasts(self.measured, self.known[0])

    def grid_contrasts(self) -> tuple[Array, Codes]:
        """Contrasts of the whole grid, row by row."""
        grid = np.indices(self.size).reshape(2, -1)
        return contrasts(grid, np.array([], dtype=np.int64))

    def fill(self) -> tuple[Array, Array]:
        """Unmeasured floors from the others, [unmeasured, other]: least squares; and their sd in pairs'."""

        def design(pairs: Codes) -> Array:
            return np.hstack([pairs[k][:, None] == np.arange(n) for k, n in enumerate(self.size)]).astype(float)

        if not self.unmeasured.shape[1]:
            return np.zeros((0, self.sampled.shape[1])), np.zeros(0)
        fit = design(self.unmeasured) @ np.linalg.pinv(design(self.sampled))
        return fit, np.sqrt(1.0 + (fit**2).sum(axis=1))


def contrasts(pairs: Codes, pinned: Codes) -> tuple[Array, Codes]:
    """Orthonormal contrasts of the floors of `pairs` [pair, contrast], and what each compares.

    0: overall; 1: SKUs; 2: groups; 3: what is left, the pairs. SKUs in `pinned` have a known floor and so
    no contrast.
    """
    gpu, group = pairs
    blocks = (
        np.ones((len(gpu), 1)),
        (gpu[:, None] == np.setdiff1d(gpu, pinned)).astype(float),
        (group[:, None] == np.unique(group)).astype(float),
        np.eye(len(gpu)),
    )
    basis, block = np.zeros((len(gpu), 0)), []
    for kind, columns in enumerate(blocks):
        left, size, _ = np.linalg.svd(columns - basis @ (basis.T @ columns), full_matrices=False)
        new = left[:, size > 1e-8]
        basis = np.concatenate([basis, new], axis=1)
        block += [kind] * new.shape[1]
    return basis, np.array(block, dtype=np.int64)


def noise_basis(models: int) -> Array:
    """Orthonormal contrasts of the noise of `models` models, [model, model - 1]."""
    return np.asarray(np.linalg.svd(np.eye(models) - 1.0 / models)[0][:, : models - 1])
