"""The inversion of the published figures: its map, its derivatives, and what the committed grids return."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from rooffloor.models.inference.priors import DEFAULT_PRIORS
from rooffloor.models.roof.roofline import Efficiency, bytes_floor_ms, gpu_ms
from rooffloor.validate.common import resources
from rooffloor.validate.published.evidence.marginal import Effort as LadderEffort
from rooffloor.validate.published.imputation import aggregates, reconstruction
from rooffloor.validate.published.imputation.acceptance import Acceptance, simulate
from rooffloor.validate.published.imputation.acceptance import load as load_acceptance
from rooffloor.validate.published.imputation.chains import Effort, Part, pieces_of, reach, sample_part, starts
from rooffloor.validate.published.imputation.inversion import WIDE, Inversion, Prior
from rooffloor.validate.published.imputation.manifold import TOLERANCE
from rooffloor.validate.published.imputation.prior_draws import prior_draws
from rooffloor.validate.published.imputation.readings import (
    DISCREPANCIES,
    FALL,
    GRIDS,
    NAMED_CELL,
    PIECES,
    READINGS,
    ROOFS,
    UNORDERED,
    WEIGHTED,
    Index,
    Piece,
    row_names,
    targets,
)
from rooffloor.validate.published.imputation.reconstruction import assemble, complete, log_bayes_factor, roof_weights
from rooffloor.validate.published.printed_figures import CELLS, SKUS, PublishedFigures
from rooffloor.validate.reporting import words

FIGURES = PublishedFigures.load()
INTERVALS = targets(FIGURES)
LIGHT = LadderEffort(prior=1000, first=100.0, chains=8, draws=3, thin=1, levels=60, repeats=1)
SMALL_EFFORT = Effort(LIGHT, draws=5, warmup=10, thin=1, rounds=1)


def index(
    reading: str = "smallest batch", roof: int = 2, grid: int = 0, discrepancy: int = 0, ordered: bool = True
) -> Index:
    return Index(GRIDS[grid], reading, ROOFS[roof], (DISCREPANCIES if ordered else UNORDERED)[discrepancy])


def test_every_grid_holds_the_named_cell() -> None:
    for grid in GRIDS:
        assert grid.points.shape == (CELLS, 2)
        assert (grid.points == NAMED_CELL).all(1).sum() == 1


def test_most_figures_are_conditioned_on() -> None:
    assert set(INTERVALS) == set(row_names())
    assert len(INTERVALS) == 38
    assert len(list(FIGURES)) == 42


@pytest.mark.parametrize(
    ("roof", "piece"),
    [(roof, piece) for roof in range(3) for piece in (Piece(), Piece(("H100",)))]
    + [(roof, piece) for roof in (3, 4) for piece in PIECES],
)
def test_derivatives_agree_with_differences(roof: int, piece: Piece) -> None:
    rng = np.random.default_rng(roof)
    for reading in READINGS:
        inversion = Inversion(index(reading, roof, discrepancy=1), INTERVALS, piece.gpus, models=piece.models)
        manifold = inversion.manifold()
        q = 0.5 * rng.standard_normal((1, inversion.size))
        jacobian = manifold.jacobians(q)[0]
        for column in rng.choice(inversion.size, 25, replace=False):
            step = np.zeros(inversion.size)
            step[column] = 1e-6
            slope = (manifold.values(q + step) - manifold.values(q - step))[0] / 2e-6
            np.testing.assert_allclose(jacobian[:, column], slope, rtol=1e-3, atol=1e-2)


def test_figures_are_what_their_names_say() -> None:
    inversion = Inversion(index("median"), INTERVALS)
    q = 0.4 * np.random.default_rng(1).standard_normal((3, inversion.size))
    grids, found = inversion.grids(q), inversion.figures(q)
    at = {pair: slice(k * CELLS, (k + 1) * CELLS) for k, pair in enumerate(inversion.blocks)}
    y, T = grids.y[1], grids.T[1]
    small, anchor = at["Llama-3.2-1B", "A100-40GB"], at["Llama-3.1-8B", "A100-40GB"]
    offset = np.median(y[anchor] - T[anchor])
    assert found["anchor_offset A100-40GB"][1] == pytest.approx(offset)
    raw = 100 * np.mean(np.abs(T[small] / y[small] - 1))
    assert found["raw_mape Llama-3.2-1B A100-40GB"][1] == pytest.approx(raw)
    residual = 100 * np.mean(np.abs((T[small] + offset) / y[small] - 1))
    assert found["residual_mape Llama-3.2-1B A100-40GB"][1] == pytest.approx(residual)
    own = np.median(y[small] - T[small])
    assert found["self_floor Llama-3.2-1B"][1] == pytest.approx(own)
    rise = y[small][(inversion.points == (16, 8192)).all(1)] - y[small][(inversion.points == (16, 512)).all(1)]
    assert found["long_context_rise Llama-3.2-1B"][1] == pytest.approx(rise[0])


def test_least_mape_reading_is_the_best_offset() -> None:
    rng = np.random.default_rng(2)
    y, T = rng.uniform(5, 20, CELLS), rng.uniform(3, 15, CELLS)
    best = READINGS["least MAPE"].offset(y[None], T[None], GRIDS[0].points)[0]
    tried = np.append(np.linspace(best - 3, best + 3, 2001), best)
    errors = np.abs((T + tried[:, None] - y) / y).mean(-1)
    assert errors[-1] == pytest.approx(errors.min(), abs=1e-12)


def test_t_is_the_roof() -> None:
    inversion = Inversion(index(), INTERVALS, ("H100",))
    q = 0.3 * np.random.default_rng(3).standard_normal((1, inversion.size))
    grids = inversion.grids(q)
    constants = {name: float(v[0, 0]) for name, v in grids.constants.items()}
    points = inversion.points
    T = gpu_ms("Llama-3.2-1B", "H100", points[:, 0], points[:, 1], Efficiency(**constants))
    block = inversion.blocks.index(("Llama-3.2-1B", "H100"))
    np.testing.assert_allclose(grids.T[0, block * CELLS : (block + 1) * CELLS], T, rtol=1e-12)


def test_an_infeasible_reading_reports_its_least_misfit() -> None:
    part = reach(index("mean", 3, ordered=False), INTERVALS, PIECES[-1], [1], 6)
    assert part.q.size == 0
    assert part.arrived == 0
    assert part.least_misfit > 0.5
    assert part.worst_row in row_names()


def test_draws_lie_on_every_figure() -> None:
    part = sample_part(index(roof=3), INTERVALS, PIECES[2], [2], SMALL_EFFORT)
    assert part.inversion.places(part.q.reshape(-1, part.inversion.size))[1].all()
    found = part.inversion.figures(part.q.reshape(-1, part.inversion.size))
    for name in part.inversion.rows:
        low, high = INTERVALS[name]
        assert (found[name] >= low - 1e-6).all()
        assert (found[name] <= high + 1e-6).all()
    again = sample_part(index(roof=3), INTERVALS, PIECES[2], [2], SMALL_EFFORT)
    np.testing.assert_array_equal(part.q, again.q)


def test_assembled_studies_obey_the_pooled_figures() -> None:
    rng = np.random.default_rng(0)
    parts = []
    for gpu in SKUS:
        inversion = Inversion(index(), {}, (gpu,))
        parts.append(Part(inversion, 0.3 * rng.standard_normal((6, 4, inversion.size)), 1.0, 0.0))
    figures = [p.inversion.figures(p.q.reshape(-1, p.inversion.size)) for p in parts]
    centre = np.mean([np.median(f[f"residual_mape Llama-3.2-1B {g}"]) for f, g in zip(figures, SKUS, strict=True)])
    bound = {"residual_mape Llama-3.2-1B pooled": (centre - 5.0, centre + 5.0)}
    chosen = assemble(parts, bound, 5, [1])
    assert len(chosen[0]) > 0
    residuals = [
        p.inversion.figures(q)[f"residual_mape Llama-3.2-1B {g}"] for p, q, g in zip(parts, chosen, SKUS, strict=True)
    ]
    assert (np.abs(np.mean(residuals, axis=0) - centre) <= 5.0).all()


def test_simulated_studies_round_like_the_published_one() -> None:
    roundings = {name: (high - low) / 2 for name, (low, high) in INTERVALS.items()}
    inversion, q, intervals = simulate(index("median"), Piece(("H200",)), roundings, np.random.default_rng(5))
    assert inversion.places(q)[1].all()
    exact = Inversion(index("median"), {}, ("H200",)).figures(q)
    for name, (low, high) in intervals.items():
        assert low - 1e-9 <= exact[name][0] <= high + 1e-9
        assert high - low == pytest.approx(2 * roundings[name])
    assert inversion.unknowns == q.shape[1]


def test_eta_has_the_prior_of_every_fit() -> None:
    """Draws of the two eta against the moments of their Betas; the slope of the curve against differences."""
    inversion = Inversion(index(), {}, ("H200",))
    q = np.random.default_rng(6).standard_normal((20_000, inversion.size))
    for k, name in enumerate(("eta_bw", "eta_fa")):
        own = [v[k] for v in Prior().eta()]
        values = np.array([aggregates.on_curve(z, *own)[0] for z in q[:, k]])
        mean, sd = getattr(DEFAULT_PRIORS, name)
        assert values.mean() == pytest.approx(mean, abs=4 * sd / np.sqrt(len(q)))
        assert values.std() == pytest.approx(sd, rel=0.02)
        for prior in (Prior(), WIDE):
            curve = [v[k] for v in prior.eta()]
            for z in (-7.0, -2.345, 0.0, 1.2345, 5.0):
                ends = [aggregates.on_curve(z + h, *curve)[0] for h in (-1e-5, 1e-5)]
                assert aggregates.on_curve(z, *curve)[1] == pytest.approx((ends[1] - ends[0]) / 2e-5, rel=1e-5)
    middle = aggregates.on_curve(0.0, *(v[0] for v in WIDE.eta()))[0]
    assert middle == pytest.approx(WIDE.eta_bw[0])


def test_prior_draws_of_ordered_grids_agree_with_rejection() -> None:
    """Weighted draws of two blocks against joint rejection: chance to be possible, mean step, mean eta."""
    inversion = Inversion(index(), {}, ("A100-40GB",))
    found = prior_draws(inversion, 3000, np.random.default_rng(7))
    weight = np.exp(found.log_weight)
    weight /= weight.sum()
    q = np.random.default_rng(8).standard_normal((150_000, inversion.size))
    possible = inversion.places(q)[1]
    assert found.log_possible == pytest.approx(np.log(possible.mean()), abs=0.15)
    kept = inversion.grids(q[possible])
    drawn = inversion.grids(found.q)
    assert inversion.places(found.q)[1].all()
    for ours, theirs in (
        (np.log(drawn.y).mean(1), np.log(kept.y).mean(1)),
        (drawn.constants["eta_fa"][:, 0], kept.constants["eta_fa"][:, 0]),
    ):
        error = theirs.std() * np.sqrt(1 / len(theirs) + (weight**2).sum())
        assert weight @ ours == pytest.approx(theirs.mean(), abs=4 * error)


def test_order_is_what_it_says() -> None:
    inversion = Inversion(index(), {}, ("A100-40GB",))
    blocks = len(inversion.blocks)
    T = np.tile(np.linspace(30.0, 60.0, CELLS), blocks)
    y = np.tile(40.0 + np.add.outer(np.arange(5.0), np.arange(3.0)).ravel(), blocks)

    def possible(y: np.ndarray, T: np.ndarray = T) -> bool:
        return bool(aggregates.is_possible(y, T, inversion.tables))

    def changed(values: np.ndarray, cell: int, value: float) -> np.ndarray:
        out = values.copy()
        out[cell] = value
        return out

    T = np.maximum.accumulate(np.maximum(T, inversion.tables.minimum_ms[:CELLS].max()))
    assert possible(y, T)
    assert possible(changed(y, 1, 40.0), T)  # a fall within the noise of no neighbour
    assert possible(changed(y, 5, (1 - FALL) * y[4] + 1e-9), T)
    assert not possible(changed(y, 5, (1 - FALL) * y[4] - 1e-9), T)  # falls where the context grows
    assert not possible(changed(y, 8, (1 - FALL) * y[5] - 1e-6), T)  # falls where the batch grows
    assert not possible(changed(y, 1, 39.99), T)  # below the first cell
    assert not possible(changed(y, CELLS - 1, 3.0 * 40.0 + 1e-6), T)
    assert not possible(y, changed(T, 4, 0.5 * T[4]))
    free = inversion.tables._replace(ratio=0.0)
    assert aggregates.is_possible(changed(y, 8, 30.0), T, free)


def test_classes_with_their_own_constants_are_inverted_apart() -> None:
    assert pieces_of(index(roof=3)) == PIECES
    assert [p.label for p in PIECES] == ["H100", "H100 (MoE)", "H200", "A100-40GB"]
    names = [name for piece in PIECES for name in row_names(*piece)]
    assert sorted(names) == sorted(n for n in row_names() if not n.endswith("pooled"))
    with pytest.raises(ValueError, match="each class is inverted by itself"):
        Inversion(index(roof=3), INTERVALS, ("H100",))


def test_roofs_are_weighted_by_their_evidence() -> None:
    """The factor of the mixture's T, normal a posteriori: the ratio of the densities at 0 is a closed form."""
    main, free = (ROOFS.index(roof) for roof in WEIGHTED)
    rng = np.random.default_rng(9)
    piece = PIECES[1]
    inversion = Inversion(index(roof=free, ordered=False), {}, piece.gpus, models=piece.models)
    q = rng.standard_normal((40, 100, inversion.size))
    at = inversion.tables.constants + 2 + CELLS
    assert inversion.grids(q[0] * (np.arange(inversion.size) == at)).T.std(0).max() > 0  # it is the factor
    prior = log_bayes_factor(Part(inversion, q, 1.0, 0.0), np.random.default_rng(1))
    assert prior == pytest.approx(0.0, abs=0.1)
    q[:, :, at] = 1.5 + 0.5 * q[:, :, at]
    part = Part(inversion, q, 1.0, 0.0)
    expected = -np.log(0.5) - 0.5 * 3.0**2
    assert log_bayes_factor(part, np.random.default_rng(1)) == pytest.approx(expected, abs=0.3)
    tried = [(index(roof=free), [(p, part) for p in PIECES])]
    assert complete(tried[0])
    weights, log_bf = roof_weights(tried, 1)
    assert log_bf == pytest.approx(4 * expected, abs=1.0)
    assert weights[ROOFS[main].name] == pytest.approx(1 / (1 + np.exp(-log_bf)))
    assert sum(weights.values()) == pytest.approx(1.0)


def test_starts_are_tried_on_ever_narrower_intervals() -> None:
    inversion = Inversion(index(ordered=False), INTERVALS, ("A100-40GB",))
    q, misfit = starts(inversion, 6, np.random.SeedSequence(3))
    arrived = misfit < TOLERANCE
    assert arrived.any()
    assert inversion.manifold().all_allowed(q).all()


# ---- what is committed ------------------------------------------------------------------------------------------

FOLDER = resources.path("transfer-study")


@pytest.fixture(scope="module")
def committed() -> reconstruction.Reconstruction:
    return reconstruction.load(FOLDER)


def test_enough_grids_with_labels_and_weights(committed: reconstruction.Reconstruction) -> None:
    heads = committed.cells.drop_duplicates("imputation")
    weighted = heads[heads["weight"] > 0]
    assert len(weighted) >= 200
    assert weighted["weight"].sum() == pytest.approx(1.0, abs=1e-6)
    assert set(committed.cells["origin"]) == {"imputed"}
    assert {"grid", "reading", "roof", "discrepancy"} <= set(committed.cells)


def test_figures_come_back(committed: reconstruction.Reconstruction) -> None:
    figures = committed.figures
    assert len(figures) == 42
    assert (figures["share_within"] > 0.995).mean() >= 0.9
    table = figures[figures["quantity"].isin(["raw_mape", "residual_mape"])]
    assert (np.abs(table["imputed"] - table["published"]) <= 0.1).all()


def test_figures_recomputed_from_the_file_alone(committed: reconstruction.Reconstruction) -> None:
    """The committed cells, read back, print the raw MAPE of the table: no code of the inversion is involved."""
    frame = committed.cells.assign(error=lambda f: 100 * (f["gpu_ms"] / f["step_ms"] - 1).abs())
    raw = frame.groupby(["imputation", "model", "gpu"])["error"].mean().reset_index()
    for model, gpu in {(f.model, f.gpu) for f in FIGURES if f.quantity == "raw_mape"}:
        low, high = FIGURES.interval(model, gpu, "raw_mape")
        own = raw[(raw["model"] == model) & (raw["gpu"] == gpu)]["error"]
        assert own.between(low - 1e-4, high + 1e-4).all()


def test_no_imputed_step_is_below_its_bytes(committed: reconstruction.Reconstruction) -> None:
    for (model, gpu), cells in committed.cells.groupby(["model", "gpu"]):
        floor = bytes_floor_ms(str(model), str(gpu), cells["batch"], cells["context"], experts="active")
        assert (cells["step_ms"].to_numpy() >= floor * (1 - 1e-6)).all()
        assert (cells["gpu_ms"].to_numpy() >= floor * (1 - 1e-6)).all()


def test_infeasible_readings_are_listed(committed: reconstruction.Reconstruction) -> None:
    assert set(committed.readings) == set(READINGS)
    assert set(committed.indices["roof"]) == {roof.name for roof in ROOFS}
    unfit = {name for name, fits in committed.readings.items() if not fits}
    assert unfit == {"mean", "relative least squares", "largest batch", "longest context"}
    lean = committed.indices[committed.indices["roof"] == ROOFS[0].name]
    assert not lean["feasible"].any()
    assert (lean["least_misfit"] > 0).all()


def test_acceptance_is_committed_and_told() -> None:
    """On at least 12 simulated studies intervals cover at the nominal rate, up to the noise of so many studies."""
    result = load_acceptance(FOLDER)
    assert result.studies["study"].nunique() >= 12
    assert result.studies["reconstructed"].mean() > 0.95
    covered = result.coverage()
    assert {"mean step", "mean T_gpu", "offset (unrounded)"} <= set(covered["kind"])
    for level in (50, 90):  # 14 comparisons: 3 standard errors are a family-wise level of 4 %
        assert (np.abs(covered[f"in_{level}"] - level / 100) < 3.0 * covered[f"se_{level}"]).all()
    assert words._undercoverage(covered.to_dict("records")) == []


def test_coverage_counts() -> None:
    rows = pd.DataFrame(
        {
            "study": [0, 0, 1, 1, 0, 1],
            "kind": ["a", "a", "a", "a", "b", "b"],
            "in_50": [True, False, True, True, False, True],
            "in_90": [True, True, True, True, False, False],
        }
    )
    result = Acceptance(rows, pd.DataFrame({"study": [0, 1], "reconstructed": [True, False]}))
    found = result.coverage().set_index("kind")
    assert found.loc["a", "in_50"] == 0.75
    assert found.loc["a", "se_50"] == pytest.approx(0.25)  # studies cover 0.5 and 1: sd 0.354 over sqrt(2)
    assert found.loc["b", "in_90"] == 0.0
    assert "1 parts not reconstructed" in repr(result)
    told = " ".join(words._undercoverage(result.coverage().to_dict("records")))
    assert "b 0 %" in told
    assert "a " not in told.split(":")[1]


def test_save_and_load(tmp_path: Path, committed: reconstruction.Reconstruction) -> None:
    few = committed.cells[committed.cells["imputation"] < 2]
    one = reconstruction.Reconstruction(few, committed.indices, committed.figures)
    reconstruction.save(one, tmp_path)
    first = (tmp_path / reconstruction.TABLE).read_bytes()
    reconstruction.save(one, tmp_path)
    assert (tmp_path / reconstruction.TABLE).read_bytes() == first
    back = reconstruction.load(tmp_path)
    np.testing.assert_allclose(back.cells["step_ms"], few["step_ms"], rtol=1e-7)
