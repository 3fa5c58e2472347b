"""Whether one roof, with constants shared by all SKUs, can print the published rows."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from rooffloor.models.roof.kernels import decode_work
from rooffloor.models.roof.roofline import Efficiency, work_ms
from rooffloor.validate.published.bounds.grid_programme import RATIO, Error, Floats, grid_programme
from rooffloor.validate.published.printed_figures import (
    A100,
    BATCHES,
    CONTEXTS,
    H100,
    H200,
    SMALL,
    Interval,
    PublishedFigures,
)


@dataclass(frozen=True)
class SharedRoof:
    """Whether one set of constants can print the rows.

    Attributes
    ----------
    rows : tuple of (model, gpu)
    ratio : float
        Steps of a grid of the 1B lie within this factor of its harmonic mean; of other models within `RATIO`.
    misfit_low, misfit_high : float
        The least misfit over all constants, points, lies between; above 0 at the lower end: excluded.
    efficiency : Efficiency
        The constants of `misfit_high`.
    batches, contexts : tuple of int
        The grid.
    compute : bool
        Whether eta_tc was free.
    """

    rows: tuple[tuple[str, str], ...]
    ratio: float
    misfit_low: float
    misfit_high: float
    efficiency: Efficiency
    batches: tuple[int, ...]
    contexts: tuple[int, ...]
    compute: bool

    @property
    def excluded(self) -> bool:
        return self.misfit_low > 0

    @property
    def statement(self) -> str:
        verdict = "cannot print" if self.excluded else "is not shown to be unable to print"
        return (
            f"One roof with shared eta_bw, eta_fa and "
            f"L_half{' and eta_tc' if self.compute else ', bound by bytes,'} {verdict} the rows "
            f"{', '.join('/'.join(r) for r in self.rows)} if the steps of a grid of {SMALL} lie within "
            f"{self.ratio:g}-fold: least misfit {self.misfit_low:.2f} to {self.misfit_high:.2f} points."
        )


def shared_roof(
    figures: PublishedFigures | None = None,
    ratio: float = 1.25,
    rows: tuple[tuple[str, str], ...] = ((SMALL, H100), (SMALL, H200), (SMALL, A100)),
    batches: tuple[int, ...] = BATCHES,
    contexts: tuple[int, ...] = CONTEXTS,
    compute: bool = False,
    rounds: int = 60,
) -> SharedRoof:
    """Least misfit of a roof with three shared constants (and L_half), over all constants and all steps.

    Without `compute` every kernel is bound by its bytes (eta_tc = 1: at these batches no GEMM then is
    compute-bound). Takes seconds, so that `exclusions` leaves it out.

    Branch and bound over boxes of constants (efficiencies from 0.05 to 1, L_half from 0 to 16384). T is
    monotone in each constant, so that a box bounds T in each cell. The MAPEs that a grid prints are means
    over cells of a curve in w = 1/y; the convex hull of these means is tested against the published
    rectangle in many directions. Both relaxations only lower the misfit: the lower bound is rigorous. The
    upper bound is that of the same test at single constants.

    Raises
    ------
    ValueError
        ratio < 1.
    """
    if ratio < 1:
        raise ValueError(f"expected ratio >= 1, got {ratio:g}")
    figures = PublishedFigures.load() if figures is None else figures
    batch, context = (a.ravel() for a in np.meshgrid(batches, contexts, indexing="ij"))
    tests = []
    for model, gpu in rows:
        programme = grid_programme(figures, model, gpu, len(batch), ratio if model == SMALL else RATIO)
        tests.append((decode_work(model, batch, context, gpu=gpu), programme))

    def roof(x: Floats) -> Efficiency:
        """x [box, 4] from 0 (slow) to 1 (fast)."""
        eta = 0.05 ** (1 - x[:, :3])
        l_half = np.expm1((1 - x[:, [3]]) * np.log(16385.0))
        return Efficiency(eta_tc=eta[:, [0]], eta_bw=eta[:, [1]], eta_fa=eta[:, [2]], l_half=l_half)

    def misfit(slow: Floats, fast: Floats) -> Floats:
        worst = np.zeros(len(slow))
        for work, programme in tests:
            t = work_ms(work, roof(fast)), work_ms(work, roof(slow))
            worst = np.maximum(worst, _hull_misfit(*t, programme.errors, programme.steps_ms))
        return worst

    slow, fast = np.zeros((1, 4)), np.ones((1, 4))
    slow[0, 0] = 0.0 if compute else 1.0
    low = misfit(slow, fast)
    best, best_at = np.inf, slow
    for _ in range(rounds):
        chosen = np.argsort(low, kind="stable")[:96]
        rest = np.setdiff1d(np.arange(len(low)), chosen)
        a, b = slow[chosen], fast[chosen]
        for _ in range(2):  # halve the widest side, twice
            side = np.eye(4)[np.argmax(b - a, axis=1)]
            middle = (a + b) / 2
            a, b = (
                np.vstack([a, np.where(side > 0, middle, a)]),
                np.vstack([np.where(side > 0, middle, b), b]),
            )
        centre = (a + b) / 2
        at = misfit(centre, centre)
        if at.min() < best:
            best, best_at = float(at.min()), centre[[int(at.argmin())]]
        slow, fast = np.vstack([slow[rest], a]), np.vstack([fast[rest], b])
        low = np.concatenate([low[rest], misfit(a, b)])
        keep = low < best
        slow, fast, low = slow[keep], fast[keep], low[keep]
        if best == 0 or not len(low) or best - low.min() < 2e-4:
            break
    found = roof(best_at)
    names = ("eta_tc", "eta_bw", "eta_fa", "l_half")
    values: dict[str, Any] = {name: float(getattr(found, name)[0, 0]) for name in names}
    constants = Efficiency(**values)
    bound = float(low.min()) if len(low) else best
    return SharedRoof(rows, ratio, 100 * min(bound, best), 100 * best, constants, batches, contexts, compute)


def _hull_misfit(t_low: Floats, t_high: Floats, errors: tuple[Error, ...], steps_ms: Interval) -> Floats:
    """Distance [box] (fraction, largest over the MAPEs) from the published MAPEs to what T [box, cell] can
    print."""
    raw = next(e for e in errors if e.name == "raw")
    worst = np.zeros(len(t_low))
    ends = 1 / steps_ms[1], 1 / steps_ms[0]
    angles = np.arange(16) * np.pi / 8
    for error in (e for e in errors if e is not raw):
        spans = [(t_low + e.offset_ms[0], t_high + e.offset_ms[1]) for e in (raw, error)]
        kinks = [v for lo, hi in spans for v in (lo, hi, (lo + hi) / 2)]
        w = np.stack(
            [np.full_like(t_low, end) for end in ends] + [np.clip(1 / np.maximum(v, 1e-9), *ends) for v in kinks],
            axis=-1,
        )
        least, most = [], []
        for lo, hi in spans:
            under, over = lo[..., None] * w - 1, hi[..., None] * w - 1
            least.append(np.maximum(0, np.maximum(under, -over)))
            most.append(np.maximum(-under, over))
        for angle in angles:
            u = np.array([np.cos(angle), np.sin(angle)])
            u /= np.abs(u).sum()
            reach = sum(c * (least[k] if c > 0 else most[k]) for k, c in enumerate(u)).min(-1).mean(-1)
            target = sum(max(c * v for v in e.mape) for c, e in zip(u, (raw, error), strict=True))
            worst = np.maximum(worst, reach - target)
    return worst
