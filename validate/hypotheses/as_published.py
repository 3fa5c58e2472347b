"""The hypotheses on a study's figures as it prints them: no cell is imputed, and no model of a step enters.

H1 is tested on the printed residual MAPEs; their only uncertainty is rounding. Of H2 and H3 the printed figures say
which models diverge, what a floor of their own leaves, and how far off single cells are; slopes are not printed.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rooffloor.validate.estimates.estimate import Estimate
from rooffloor.validate.hypotheses import published_words as words
from rooffloor.validate.hypotheses.frequentist import TestResult, t_per_gpu
from rooffloor.validate.hypotheses.frequentist_h1 import dies
from rooffloor.validate.hypotheses.h1 import SPREAD
from rooffloor.validate.hypotheses.level import pooled_below
from rooffloor.validate.hypotheses.result import REFUTED, Result, verdict_of, weakest
from rooffloor.validate.published.printed_figures import Figure, PublishedFigures
from rooffloor.validate.study.margins import Margins

if TYPE_CHECKING:
    from rooffloor.validate.fitting.evidence import Evidence

type Array = NDArray[np.float64]

RAW, RESIDUAL, SELF_MAPE = "raw_mape", "residual_mape", "self_floor_mape"
STUDIES = 5_000
"""Simulated studies behind the error rates of H1 on printed figures."""
SELF_FLOOR, OFFSET, STEP, DISPATCH = "self_floor", "anchor_offset", "step_typical", "dispatch_median"


@dataclass(frozen=True)
class PublishedFamily:
    """H1 of one family on printed residual MAPEs, percent, in the order of `gpus`.

    Attributes
    ----------
    residual, anchor_residual : tuples of Figure
    margins : Margins
    spread : float
        Scale of the half-Cauchy prior on the sd between GPUs, in margins.
    """

    family: str
    anchor: str
    gpus: tuple[str, ...]
    residual: tuple[Figure, ...]
    anchor_residual: tuple[Figure, ...]
    margins: Margins
    spread: float = SPREAD

    @property
    def difference(self) -> Array:
        """Family less anchor as printed, points, (gpu,)."""
        return np.array([a.value - b.value for a, b in zip(self.residual, self.anchor_residual, strict=True)])

    @property
    def below_anchor(self) -> tuple[str, ...]:
        """GPUs on which the family lies below the anchor by more than rounding."""
        pairs = zip(self.gpus, self.residual, self.anchor_residual, strict=True)
        return tuple(gpu for gpu, a, b in pairs if a.interval[1] < b.interval[0])

    def mean_below(self, margin: float) -> float:
        """P(mean difference over GPUs like these below a margin), points."""
        return self._pooled(self.difference, self._sds, margin)

    @property
    def _sds(self) -> Array:
        """sd of each difference, which is rounding alone, (gpu,)."""
        return np.array([np.hypot(_sd(a), _sd(b)) for a, b in zip(self.residual, self.anchor_residual, strict=True)])

    @property
    def level_below(self) -> float:
        """P(mean residual MAPE over GPUs like these below the absolute margin)."""
        level = np.array([figure.value for figure in self.residual])
        return self._pooled(level, np.array(list(map(_sd, self.residual))), self.margins.h1_absolute)

    def _pooled(self, means: Array, sds: Array, margin: float) -> float:
        return float(pooled_below(means, sds, margin, self.spread * self.margins.h1_points))

    @property
    def verdict(self) -> str:
        """By the lower of the two probabilities."""
        return verdict_of(min(self.mean_below(self.margins.h1_points), self.level_below), self.margins)

    @property
    def clusters(self) -> dict[str, str] | None:
        """Die of each GPU, where some share one."""
        found = dies(self.gpus)
        return found if len(set(found.values())) < len(self.gpus) else None

    def t_test(self, clusters: Mapping[str, str] | None = None) -> TestResult:
        """t over GPUs (or dies) that the mean difference lies below the margin, K - 1 df."""
        return t_per_gpu(self.difference[:, None], self.gpus, self.margins.h1_points, clusters).results()[0]

    def supported_rate(self, difference: float, between: float) -> float:
        """Share of `STUDIES` simulated studies in which `mean_below` supports H1, by its own rule.

        Parameters
        ----------
        difference, between : float
            True mean difference over GPUs and its sd between GPUs, points.
        """
        rng = np.random.default_rng(len(self.gpus))
        gaps = difference + between * rng.standard_normal((STUDIES, len(self.gpus)))
        sds = np.broadcast_to(self._sds, gaps.shape)
        below = pooled_below(gaps, sds, self.margins.h1_points, self.spread * self.margins.h1_points)
        return float((below >= self.margins.probability).mean())

    def without(self, gpu: str) -> "PublishedFamily":
        """The same without a GPU."""
        kept = [i for i, name in enumerate(self.gpus) if name != gpu]
        return replace(
            self,
            gpus=tuple(self.gpus[i] for i in kept),
            residual=tuple(self.residual[i] for i in kept),
            anchor_residual=tuple(self.anchor_residual[i] for i in kept),
        )

    @property
    def data(self) -> dict[str, Any]:
        """As in report.json."""
        margin = self.margins.h1_points
        tests = {"t_per_gpu": self.t_test()}
        tests |= {"t_per_die": self.t_test(self.clusters)} if self.clusters else {}
        return {
            "family": self.family,
            "anchor": self.anchor,
            "verdict": self.verdict,
            "probability": _probability(self.mean_below(margin), f"P(mean difference < {margin:g} points)"),
            "absolute_probability": _probability(
                self.level_below, f"P(mean residual MAPE < {self.margins.h1_absolute:g} %)"
            ),
            "mean_difference": float(self.difference.mean()),
            "per_sku": [
                {
                    "gpu": gpu,
                    "residual": own.value,
                    "anchor_residual": other.value,
                    "difference": float(gap),
                    "probability": _probability(_below(gap, own, other, margin), f"P(difference < {margin:g} points)"),
                }
                for gpu, own, other, gap in zip(
                    self.gpus, self.residual, self.anchor_residual, self.difference, strict=True
                )
            ],
            "tests": {
                name: {k: None if v != v else v for k, v in asdict(test).items()} for name, test in tests.items()
            },
            "margins": [
                {"margin": m, "probability": self.mean_below(m)}
                | {f"on {gpu}": _below(gap, a, b, m) for gpu, gap, a, b in self._rows()}
                for m in np.linspace(0.0, 5.0, 21).tolist()
            ],
        }

    def _rows(self) -> list[tuple[str, float, Figure, Figure]]:
        return list(zip(self.gpus, self.difference.tolist(), self.residual, self.anchor_residual, strict=True))


@dataclass(frozen=True)
class PublishedDivergence:
    """What is printed of a smaller dense model, or of a mixture of experts, on one GPU; None is not printed."""

    model: str
    gpu: str
    raw: Figure | None
    residual: Figure | None
    self_floor: Figure | None
    self_mape: Figure | None
    anchor_offset: Figure | None
    step: Figure | None
    dispatch: Figure | None
    cell: Mapping[str, Figure]

    def diverges(self, margins: Margins) -> bool | None:
        """Whether the residual MAPE as printed exceeds the absolute margin; None where none is printed."""
        return None if self.residual is None else self.residual.value > margins.h1_absolute

    @property
    def floor_above_anchor(self) -> float | None:
        """Self-floor less the anchor's offset, ms."""
        if self.self_floor is None or self.anchor_offset is None:
            return None
        return self.self_floor.value - self.anchor_offset.value

    def least_residual(self, share: float = 0.5) -> float | None:
        """What the residual MAPE is at least, percent, though it is not printed.

        The anchor's floor lies d ms from the self-floor, so that the error of a cell grows by d/y at least, less the
        error under the self-floor: mean |e| >= d mean(1/y) - (self-floor's MAPE), and mean(1/y) >= share / y where at
        least that share of the cells take y or less (1: where y is the mean step, by Jensen's inequality).
        """
        if self.self_floor is None or self.anchor_offset is None or self.self_mape is None or self.step is None:
            return None
        (low, high), (other_low, other_high) = self.self_floor.interval, self.anchor_offset.interval
        apart = max(low - other_high, other_low - high, 0.0)
        return max(0.0, 100.0 * share * apart / self.step.interval[1] - self.self_mape.interval[1])

    @property
    def data(self) -> dict[str, Any]:
        """The printed numbers, as in report.json."""
        figures = {
            **{"raw": self.raw, "residual": self.residual, "self_floor": self.self_floor, "self_mape": self.self_mape},
            **{"anchor_offset": self.anchor_offset, "step": self.step, "dispatch": self.dispatch},
        }
        numbers: dict[str, Any] = {key: None if f is None else f.value for key, f in figures.items()}
        cell: dict[str, float | None] = {key: figure.value for key, figure in self.cell.items()}
        if self.cell:
            first = next(iter(self.cell.values()))
            cell |= {"batch": first.batch, "context": first.context}
        return {"model": self.model, "gpu": self.gpu, **numbers, "cell": cell or None}


@dataclass(frozen=True)
class AsPublished:
    """What a study's printed figures say of the hypotheses.

    Attributes
    ----------
    figures : PublishedFigures
    anchor : str
    gpus : tuple of str
        GPUs with printed residual MAPEs, in order.
    families, smaller, mixtures
        Of H1, H3 and H2.
    """

    figures: PublishedFigures
    anchor: str
    gpus: tuple[str, ...]
    margins: Margins
    families: tuple[PublishedFamily, ...]
    smaller: tuple[PublishedDivergence, ...]
    mixtures: tuple[PublishedDivergence, ...]

    @classmethod
    def of(
        cls, figures: PublishedFigures, anchor: str, classes: Mapping[str, str], gpus: Sequence[str], margins: Margins
    ) -> "AsPublished":
        """Read them.

        Parameters
        ----------
        classes : mapping of model to class
            The models of the study.
        gpus : sequence of str
            Its GPUs.
        """
        others = [model for model in classes if model != anchor]
        families = []
        for model in (m for m in others if classes[m] == classes[anchor]):
            on = tuple(g for g in gpus if figures.has(model, g, RESIDUAL) and figures.has(anchor, g, RESIDUAL))
            if on:
                own, beside = (tuple(figures.get(m, g, RESIDUAL) for g in on) for m in (model, anchor))
                families.append(PublishedFamily(model, anchor, on, own, beside, margins))

        def pairs(models: Sequence[str]) -> tuple[PublishedDivergence, ...]:
            found = (_pair(figures, m, g, anchor) for m in models for g in gpus)
            return tuple(pair for pair in found if pair is not None)

        return cls(
            figures,
            anchor,
            tuple(gpus),
            margins,
            tuple(families),
            pairs([m for m in others if classes[m] not in ("moe", classes[anchor])]),
            pairs([m for m in others if classes[m] == "moe"]),
        )

    @property
    def h1_verdict(self) -> str | None:
        """Of H1, the weakest of its families; None where no residual is printed."""
        return weakest({family.verdict for family in self.families}) if self.families else None

    @property
    def h2a_verdict(self) -> str | None:
        """Of H2a, where the printed figures alone decide it: refuted, or None."""
        least = [pair.least_residual() or 0.0 for pair in self.mixtures]
        return REFUTED if any(bound > self.margins.h1_absolute for bound in least) else None

    def residual(self, model: str, gpu: str) -> float | None:
        """Residual MAPE as printed, percent; None where none is."""
        return self.figures.value(model, gpu, RESIDUAL) if self.figures.has(model, gpu, RESIDUAL) else None

    def choices(self) -> Iterator[tuple[str, str, str]]:
        """H1 on printed figures with one choice of its test changed at a time: kind, name and verdict."""
        for factor in (0.5, 2.0) if self.families else ():
            other = {replace(family, spread=family.spread * factor).verdict for family in self.families}
            yield "as published: prior of the spread between GPUs", f"scale times {factor:g}", weakest(other)
        for gpu in self.gpus:
            left = {f.without(gpu).verdict for f in self.families if gpu in f.gpus and len(f.gpus) > 1}
            if left:
                yield "as published: GPU left out", gpu, weakest(left)


def read(fit: "Evidence") -> AsPublished | None:
    """The printed figures of a fitted study; None where its cells were measured."""
    if fit.reconstruction is None:
        return None
    cells = fit.draws.cells
    classes = {model: fit.draws.classes[model] for model in cells.models}
    return AsPublished.of(
        PublishedFigures.load(fit.study.data.path), fit.draws.anchor, classes, cells.gpus, fit.study.margins
    )


def published_first(result: Result, printed: AsPublished) -> Result:
    """A test on imputed cells behind what the printed figures say: their verdict where they give one, and sentences.

    `data` gains `as_published` (the printed numbers and, of H1, its test; `sentences`) and `refitted` (the verdict of
    the test on imputed cells); each row of a pair gains `published_residual`, percent or None.
    """
    data = dict(result.data)
    if "parts" not in data and "families" not in data and "per_sku" not in data:
        return result
    told: dict[str, Any]
    match result.name:
        case "H1":
            found, verdict = [f.data for f in printed.families], printed.h1_verdict
            own = [words.family(family) for family in printed.families]
            told = {
                "families": found,
                "sentences": [s for said in own for s in said],
                "error_rates": [words.rates(family) for family in printed.families],
            }
            if verdict is not None:
                told["sentences"].append(words.refitted(printed, result, verdict))
        case "H2":
            found, verdict = [pair.data for pair in printed.mixtures], printed.h2a_verdict
            parts = {key: say(printed) for key, say in words.MIXTURES.items()}
            told = {"pairs": found, "sentences": [s for said in parts.values() for s in said]}
            data["parts"] = {key: _part(part, parts[key], printed) for key, part in data["parts"].items()}
            if verdict is not None:
                data["parts"]["a"] |= {"verdict": verdict}
        case _:
            found, verdict = [pair.data for pair in printed.smaller], None
            told = {"pairs": found, "sentences": words.divergences(printed)}
    if not found:
        return result
    if "families" in data:
        data["families"] = [
            family | {"sentences": words.imputed(family["sentences"]), "per_sku": _rows(family, printed)}
            for family in data["families"]
        ]
    if "per_sku" in data:
        data["per_sku"] = _rows(data, printed)
    data |= {
        "verdict": verdict or result.verdict,
        "as_published": told,
        "refitted": result.verdict,
        "sentences": [*told["sentences"], *words.imputed(result.sentences)],
    }
    return replace(result, verdict=data["verdict"], data=data)


def _part(part: Mapping[str, Any], said: Sequence[str], printed: AsPublished) -> dict[str, Any]:
    sentences = [*said, *words.imputed(part["sentences"])]
    return {**part, "sentences": sentences, "per_sku": _rows(part, printed)}


def _rows(found: Mapping[str, Any], printed: AsPublished) -> list[dict[str, Any]]:
    """Rows of pairs, the residual MAPE as printed behind the names."""
    rows = []
    for row in found["per_sku"]:
        model = row.get("model", found.get("family"))
        named = {key: row[key] for key in ("model", "gpu") if key in row}
        rows.append(named | {"published_residual": printed.residual(model, row["gpu"])} | row)
    return rows


def _pair(figures: PublishedFigures, model: str, gpu: str, anchor: str) -> PublishedDivergence | None:
    def get(quantity: str, of: str = model) -> Figure | None:
        return figures.get(of, gpu, quantity) if figures.has(of, gpu, quantity) else None

    raw, residual, own, mape = (get(name) for name in (RAW, RESIDUAL, SELF_FLOOR, SELF_MAPE))
    cell = {f.quantity: f for f in figures if (f.kind, f.model, f.gpu) == ("cell", model, gpu)}
    if not any((raw, residual, own, mape)) and not cell:
        return None
    return PublishedDivergence(
        model, gpu, raw, residual, own, mape, get(OFFSET, anchor), get(STEP), get(DISPATCH), cell
    )


def _sd(figure: Figure) -> float:
    """sd of a number that is uniform within its rounding."""
    return figure.rounding / np.sqrt(3.0)


def _below(gap: float, own: Figure, other: Figure, margin: float) -> float:
    """P(difference below a margin) of two numbers uniform within their roundings (one rounding for both)."""
    width = own.rounding + other.rounding
    z = (margin - gap) / width if width > 0 else np.sign(margin - gap)
    return float(np.clip(0.5 + z - 0.5 * np.sign(z) * z**2, 0.0, 1.0)) if abs(z) < 1 else float(z > 0)


def _probability(value: float, of: str) -> dict[str, Any]:
    return Estimate(value, of, "probability", {}, None).data
