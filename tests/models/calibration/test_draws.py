"""Saved draws: what a floor never measured is drawn from, the scales behind floors, files good and hostile."""

import io
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from toy_calibration import CLASSES, FLOORS, GPUS, MEASURED, MODELS, POSITIVE, SCALES, grid, simulated_floors, toy

from rooffloor.models.calibration import store
from rooffloor.models.calibration.floors import EFFECTS, LEVEL_SD_MS, MOE_WIDER, floor_scales
from rooffloor.models.floor.structures import FloorStructure
from rooffloor.models.inference.priors import DEFAULT_PRIORS
from rooffloor.models.roof.roofline import Efficiency, bytes_floor_ms, gpu_ms
from rooffloor.models.specs import gpus, shapes
from rooffloor.validate.common.errors import InputError
from rooffloor.validate.fitting import saved

# ---- floors through the hierarchy -------------------------------------------------------------------------------


def prior_covariance(pairs, scales, overall_sd, sizes) -> np.ndarray:
    """Entry by entry: the common level, and every effect that two pairs share, as large as the pair is."""
    gpu, klass, gpu_class, model, gpu_model = scales
    out = np.empty((len(pairs), len(pairs)))
    for i, (g, k, m) in enumerate(pairs):
        for j, (h, c, o) in enumerate(pairs):
            out[i, j] = overall_sd**2
            alike = klass**2 * (k == c) + model**2 * (m == o)
            alike += gpu_class**2 * (g == h and k == c) + gpu_model**2 * (g == h and m == o)
            out[i, j] += gpu**2 * (g == h) + sizes[i] * sizes[j] * alike
    return out


@pytest.mark.parametrize(
    ("gpu", "model", "klass"),
    [
        ("A100-40GB", "Qwen2.5-7B", "dense 5-10B"),  # the class was measured there
        ("A100-40GB", "Qwen1.5-MoE-A2.7B", "moe"),  # the model was measured elsewhere
        ("H100", "another", "dense 2-5B"),  # a class never measured
        ("L40S", "Llama-3.1-8B", "dense 5-10B"),  # a GPU never measured
        ("L40S", "another", "dense >20B"),
    ],
)
@pytest.mark.parametrize("combine", ["added", "added, H >= 0"])
def test_a_floor_never_measured_is_the_conditional_of_the_joint_normal(gpu, model, klass, combine):
    positive = combine != "added"
    scales = (0.3, 0.6, 0.2, 0.15, 0.1) if positive else SCALES
    posterior = toy(20_000, POSITIVE if positive else FLOORS, scales, combine=combine)
    where = [(g, m) for g in range(3) for m in range(4) if MEASURED[g, m]]
    pairs = [(GPUS[g], CLASSES[m], MODELS[m]) for g, m in where]
    values = np.array([(np.log(POSITIVE) if positive else FLOORS)[g, m] for g, m in where])
    middle, sd = DEFAULT_PRIORS.floor_overall if positive else DEFAULT_PRIORS.floor_overall_ms
    level = np.log(middle) if positive else middle
    sizes = np.ones(len(pairs) + 1)
    if not positive:  # told by the measured floors alone; effects of mixtures are larger
        sd = np.hypot(sd, LEVEL_SD_MS)
        sizes = np.array([MOE_WIDER if k == "moe" else 1.0 for _, k, _ in [*pairs, (gpu, klass, model)]])
        sizes /= sizes[:-1].mean()
    joint = prior_covariance([*pairs, (gpu, klass, model)], scales, sd, sizes)
    inverse = np.linalg.inv(joint[:-1, :-1])
    mean = level + joint[-1, :-1] @ inverse @ (values - level)
    expected_sd = np.sqrt(joint[-1, -1] - joint[-1, :-1] @ inverse @ joint[:-1, -1])

    drawn = posterior.floor_of(gpu, model, klass, np.random.default_rng(3))
    drawn = np.log(drawn) if positive else drawn
    assert drawn.mean() == pytest.approx(mean, abs=4 * expected_sd / np.sqrt(len(drawn)))
    assert drawn.std() == pytest.approx(expected_sd, rel=0.02)


def test_effects_are_what_two_pairs_share():
    assert list(EFFECTS) == ["gpu", "class", "gpu, class", "model", "gpu, model"]


def test_a_measured_pair_keeps_its_own_draws():
    posterior = toy()
    rng = np.random.default_rng(1)
    assert np.array_equal(posterior.floor_of("H200", "Llama-3.2-1B", "moe", rng), posterior.floor_ms[:, 1, 2])
    assert np.array_equal(posterior.noise_of("H200", "Llama-3.2-1B", rng), posterior.noise_relative[:, 1, 2])
    assert posterior.measured("H100", "Qwen1.5-MoE-A2.7B")
    assert not posterior.measured("H200", "Qwen1.5-MoE-A2.7B")
    assert not posterior.measured("L40S", "Qwen2.5-7B")


def test_nearer_relatives_narrow_a_floor():
    posterior = toy(4000)
    spread = {
        key: posterior.floor_of(*key, np.random.default_rng(1)).std()
        for key in [
            ("A100-40GB", "Qwen2.5-7B", "dense 5-10B"),
            ("A100-40GB", "new", "dense 5-10B"),
            ("A100-40GB", "new", "dense 2-5B"),
            ("L40S", "new", "dense 2-5B"),
        ]
    }
    assert list(spread.values()) == sorted(spread.values())


def test_what_a_floor_may_differ_by_is_a_share_of_the_models_own_step():
    """A model with a step a fifth as long has a floor that differs by less; both lie around the measured floors."""
    posterior, spec = toy(20_000, np.full_like(FLOORS, 2.0)).without(MODELS[-1]), gpus.load("H100")
    given = {
        name: posterior.floor_of("H100", "new", "another", np.random.default_rng(1), of=(shapes.load(name), spec))
        for name in ("Llama-3.1-8B", "Llama-3.2-1B")
    }
    large, small = given.values()
    assert small.std() < 0.9 * large.std()
    assert np.median(small) == pytest.approx(np.median(large), abs=0.1)


def test_floors_that_are_alike_everywhere_say_the_level():
    """One floor on every measured pair: that of a class never measured lies around it, not between it and 0."""
    posterior = toy(20_000, np.full_like(FLOORS, 9.0), (0.5, 0.5, 0.2, 0.2, 0.1))
    drawn = posterior.floor_of("H100", "another", "dense 2-5B", np.random.default_rng(3))
    assert drawn.mean() == pytest.approx(9.0, abs=0.05)


def test_noise_never_measured_lies_around_that_of_the_measured_pairs():
    drawn = toy(4000, noise=0.05).noise_of("L40S", "new", np.random.default_rng(1))
    assert np.exp(np.log(drawn).mean()) == pytest.approx(0.05, rel=0.03)
    assert 0.1 < np.log(drawn).std() < DEFAULT_PRIORS.noise_spread


def test_floor_scales_recover_large_and_small_scales():
    """Large effects of the class and of the pair, none else: the posterior medians tell them apart."""
    rng, pairs, structure = np.random.default_rng(5), grid(4, 6, 2), FloorStructure("gpu, model")
    known = np.array([0.2, 8.0, 0.1, 0.1, 3.0])
    found = []
    for _ in range(5):
        floors = np.tile(simulated_floors(pairs, known, rng), (40, 1))
        found.append(np.median(floor_scales(pairs, floors, structure, rng), 0))
    median = np.median(found, 0)
    assert 4.0 < median[1] < 12.0
    assert 1.5 < median[4] < 4.5
    assert (median[[0, 2, 3]] < 2.0).all()


@pytest.mark.parametrize("sets", [24, pytest.param(60, marks=pytest.mark.calibration)])
@pytest.mark.parametrize("combine", ["added", "overlapped"])
def test_ranks_of_known_scales_are_uniform(combine: str, sets: int):
    """Scales from their prior, floors from the effects: the true scale has a uniform rank among the draws."""
    rng, pairs, structure = np.random.default_rng(11), grid(3, 3, 1), FloorStructure("gpu, model", combine)
    unit = "" if structure.positive else "_ms"
    tops = np.array([getattr(DEFAULT_PRIORS, f"floor_sd_{prior}{unit}") for prior, _ in EFFECTS.values()])
    ranks = []
    for _ in range(sets):
        known = np.abs(rng.standard_normal(5) if structure.positive else rng.standard_t(3, 5)) * tops
        overall = (np.log(4.0), 1.0) if structure.positive else (0.0, 5.0)
        floors = simulated_floors(pairs, known, rng, overall)
        floors = np.tile(np.exp(floors) if structure.positive else floors, (80, 1))
        ranks.append((floor_scales(pairs, floors, structure, rng) < known).mean(0))
    ranks = np.array(ranks)
    standard_error = np.sqrt(1 / 12 / len(ranks))
    assert np.abs(ranks.mean(0) - 0.5).max() < 3.5 * standard_error
    assert np.abs((np.abs(ranks - 0.5) < 0.45).mean(0) - 0.9).max() < 0.14
    assert ((ranks - 0.5) ** 2).mean() == pytest.approx(1 / 12, abs=3 / np.sqrt(180 * ranks.size))  # sd off by 1.4


# ---- steps ------------------------------------------------------------------------------------------------------


def test_the_gpu_branch_is_that_of_the_roofline_with_the_draws_constants():
    posterior, model = toy(3), shapes.load("Qwen2.5-7B")
    found = posterior.gpu_ms(model, gpus.load("H100"), [1, 16], [512, 8192], np.random.default_rng(0))
    expected = gpu_ms(model, "H100", [1, 16], [512, 8192], Efficiency(eta_bw=0.7, eta_fa=0.6))
    assert found == pytest.approx(np.tile(expected, (3, 1)), rel=1e-12)
    assert (found >= bytes_floor_ms(model, "H100", [1, 16], [512, 8192])).all()


def test_a_gpu_never_measured_takes_the_constants_of_some_other_in_each_draw():
    constants = {"eta_bw": np.tile([0.6, 0.7, 0.8], (300, 1))}
    posterior = toy(300, constants=constants)
    drawn = posterior.efficiency("L40S", np.random.default_rng(1)).eta_bw
    assert set(np.unique(drawn)) == {0.6, 0.7, 0.8}
    assert set(np.unique(posterior.efficiency("H200", np.random.default_rng(1)).eta_bw)) == {0.7}


@pytest.mark.parametrize(
    ("combine", "q", "expected"),
    [("added", 1.0, 13.0), ("added, H >= 0", 1.0, 13.0), ("overlapped", 0.5, np.hypot(9, 4)), ("max", 0.0, 9.0)],
)
def test_steps_join_as_the_structure_says(combine, q, expected):
    posterior = toy(2, POSITIVE, combine=combine, q=q)
    step = posterior.step_ms(np.full((2, 1), 9.0), np.full(2, 4.0))
    assert step == pytest.approx(np.full((2, 1), expected), rel=1e-6)


# ---- files ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("combine", ["added", "overlapped"])
def test_saved_and_loaded_draws_are_the_same(tmp_path, combine):
    posterior = toy(24, POSITIVE, combine=combine, q=0.6, label="measured", stack="vLLM", mode="graph")
    file = tmp_path / "posterior.npz"
    file.write_bytes(store.to_npz(posterior))
    again = store.load(file)
    for name in ("gpus", "models", "classes", "anchor", "combine", "experts", "domain", "label", "source", "stack"):
        assert getattr(again, name) == getattr(posterior, name)
    for name in ("floor_ms", "noise_relative", "q", "scales", "weight", "anchor_step_ms", "anchor_gpu_ms"):
        assert getattr(again, name) == pytest.approx(getattr(posterior, name), rel=1e-6, nan_ok=True)
    assert np.array_equal(again.unit, posterior.unit)
    assert again.constants["eta_bw"] == pytest.approx(posterior.constants["eta_bw"], rel=1e-6)
    assert [s.bandwidth for s in again.specs.values()] == [s.bandwidth for s in posterior.specs.values()]
    assert store.to_npz(again) == store.to_npz(posterior)
    assert repr(again) == repr(posterior)


def test_the_embedded_draws_load():
    posterior = saved.load("transfer-study")
    assert posterior.label == "imputed from published aggregates"
    assert not posterior.measured("A100-40GB", "Qwen1.5-MoE-A2.7B")
    assert posterior.measured("H100", "Qwen1.5-MoE-A2.7B")


def test_an_embedded_study_goes_before_a_folder_of_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("transfer-study").mkdir()
    assert saved.load("transfer-study").source == "transfer-study"


def arrays() -> dict[str, np.ndarray]:
    with np.load(io.BytesIO(store.to_npz(toy(4)))) as stored:
        return {name: stored[name] for name in stored.files}


def written(content: dict[str, np.ndarray], allow_pickle: bool = False) -> bytes:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, allow_pickle=allow_pickle, **content)
    return buffer.getvalue()


class Evil:
    """Would run at unpickling."""

    def __reduce__(self):
        return pytest.fail, ("unpickled a stranger's object",)


def changed(**changes) -> bytes:
    return written(arrays() | changes)


def without(*names: str) -> bytes:
    return written({name: values for name, values in arrays().items() if name not in names})


def squeezed() -> bytes:
    """A zip member that says it is far larger than any calibration."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as out, out.open("weight.npy", "w") as member:
        for _ in range(300):
            member.write(bytes(2**20))
    return buffer.getvalue()


def unknown_compression() -> bytes:
    content = bytearray(store.to_npz(toy(4)))
    at = content.rindex(b"PK\x01\x02")
    content[at + 10] = 99
    return bytes(content)


def corrupted() -> bytes:
    content = bytearray(store.to_npz(toy(4)))
    start = content.index(b"floor_ms.npy") + 60
    content[start : start + 20] = bytes(20)
    return bytes(content)


def no_npy() -> bytes:
    """A member that is called an array and is none."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(store.to_npz(toy(4)))) as good, zipfile.ZipFile(buffer, "w") as out:
        for name in good.namelist():
            out.writestr(name, b"hello" if name == "texts.npy" else good.read(name))
    return buffer.getvalue()


HOSTILE = {
    "empty": lambda: b"",
    "text": lambda: b"model,gpu\n",
    "truncated": lambda: store.to_npz(toy(4))[:-200],
    "half": lambda: store.to_npz(toy(4))[:900],
    "corrupted": corrupted,
    "compression": unknown_compression,
    "bomb": squeezed,
    "pickled": lambda: written({"version": np.array([Evil()], dtype=object)}, allow_pickle=True),
    "pickled names": lambda: written(
        arrays() | {"gpus": np.array(["H100", Evil(), "x"], dtype=object)}, allow_pickle=True
    ),
    "no keys": lambda: written({}),
    "no floors": lambda: without("floor_ms"),
    "no version": lambda: without("version"),
    "version": lambda: changed(version=np.array(3)),
    "versions": lambda: changed(version=np.array([1, 2])),
    "texts": lambda: changed(texts=np.array(["a", "b"])),
    "shape": lambda: changed(floor_ms=np.zeros((4, 3, 5), dtype=np.float32)),
    "flat": lambda: changed(scales=np.zeros(4, dtype=np.float32)),
    "domain": lambda: changed(domain=np.zeros((2, 2))),
    "domain falls": lambda: changed(domain=np.array([[16.0, 1.0], [1, 2], [1, 2]])),
    "words": lambda: changed(floor_ms=np.full((4, 3, 4), "x")),
    "no weight": lambda: changed(weight=np.zeros(4)),
    "negative weight": lambda: changed(weight=np.array([2.0, -1.0, 0.0, 0.0])),
    "nan weight": lambda: changed(weight=np.array([np.nan, 1.0, 1.0, 1.0])),
    "no draws": lambda: written(
        {k: v[:0] if v.shape[:1] == (4,) and k != "models" and k != "classes" else v for k, v in arrays().items()}
    ),
    "infinite scale": lambda: changed(scales=np.full((4, 5), np.inf, dtype=np.float32)),
    "negative noise": lambda: changed(noise_relative=-np.ones((4, 3, 4), dtype=np.float32)),
    "some floors": lambda: changed(
        floor_ms=np.where(np.arange(4)[:, None, None] == 2, np.nan, np.ones((4, 3, 4))).astype(np.float32)
    ),
    "constant": lambda: changed(constant_eta_bw=np.zeros((4, 3), dtype=np.float32)),
    "nan constant": lambda: changed(constant_eta_bw=np.full((4, 3), np.nan, dtype=np.float32)),
    "unknown constant": lambda: changed(constant_magic=np.ones((4, 3), dtype=np.float32)),
    "combine": lambda: changed(texts=np.array([MODELS[0], "glued", "active", "x", "x", "", ""])),
    "escape": lambda: changed(texts=np.array([MODELS[0], "added", "active", "\x1b[31m", "x", "", ""])),
    "anchor": lambda: changed(texts=np.array(["GPT", "added", "active", "x", "x", "", ""])),
    "same names": lambda: changed(gpus=np.array(["H100", "H100", "H200"])),
    "numbers as names": lambda: changed(gpus=np.arange(3)),
    "gpu code": lambda: changed(anchor_gpu=np.array([0, 1, 7], dtype=np.int16)),
    "no bandwidth": lambda: changed(spec=np.zeros((3, 4))),
    "above the peak": lambda: changed(constant_eta_bw=np.full((4, 3), 70.0, dtype=np.float32)),
    "just above the peak": lambda: changed(constant_eta_bw=np.full((4, 3), 1.001, dtype=np.float32)),
    "tiny noise": lambda: changed(noise_relative=np.full((4, 3, 4), 1e-38, dtype=np.float32)),
    "no steps": lambda: changed(anchor_step_ms=np.zeros((4, 3), dtype=np.float32)),
    "no T_gpu": lambda: changed(anchor_gpu_ms=np.zeros((4, 3), dtype=np.float32)),
    "huge scales": lambda: changed(scales=np.full((4, 5), 1e38, dtype=np.float32)),
    "huge floors": lambda: changed(floor_ms=np.full((4, 3, 4), 1e38, dtype=np.float32)),
    "huge batch": lambda: changed(anchor_batch=np.full((4, 3), 1e38, dtype=np.float32)),
    "no NPY": no_npy,
    "q": lambda: changed(q=np.full(4, 3.0, dtype=np.float32)),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_file_that_is_no_calibration_is_one_line(tmp_path, kind):
    file = tmp_path / "posterior.npz"
    file.write_bytes(HOSTILE[kind]())
    with pytest.raises(InputError) as error:
        saved.load(file)
    message = str(error.value)
    assert message.startswith(f"{file}: expected a posterior.npz of rooffloor (")
    assert "\n" not in message


def test_constants_that_single_precision_rounded_up_to_their_peak_are_the_peak(tmp_path):
    file = tmp_path / "posterior.npz"
    file.write_bytes(changed(constant_eta_bw=np.full((4, 3), np.nextafter(np.float32(1), np.float32(2)))))
    assert (saved.load(file).constants["eta_bw"] == 1.0).all()


def test_no_file_is_one_line(tmp_path):
    for study in ("no-such-study", str(tmp_path / "none.npz"), tmp_path / "none.npz"):
        with pytest.raises(InputError, match="no study with saved draws; expected transfer-study"):
            saved.load(study)
    with pytest.raises(InputError, match=r"posterior\.npz: expected a posterior\.npz"):
        saved.load(tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"specs": {"H100": gpus.load("H100"), "L40S": gpus.load("L40S")}}, "must go with"),
        ({"weight": np.full(40, 1.0)}, "weights of sum 1"),
        ({"combine": "overlapped"}, "floors above 0"),
        ({"q": np.ones(3)}, "q must have the shape"),
    ],
)
def test_draws_that_contradict_each_other_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        replace(toy(), **changes)
