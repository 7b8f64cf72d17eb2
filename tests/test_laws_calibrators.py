"""Laws that every calibrator of the table obeys; a new line of the table is tested without further code."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, get_origin

import pytest
import torch
from torch import Tensor

import calibrant
from calibrant.errors import InputError
from calibrant.functional.scores import reduce
from calibrant.functional.settings import kinds_of
from calibrant.posthoc import CALIBRATORS, CONFIDENCES, Calibrator, load
from calibrant.posthoc.confidnet import ConfidNet
from calibrant.posthoc.map import FittedMap, promises_label
from calibrant.posthoc.trust_score import TrustScore
from calibrant.types import Predictions
from tests.posthoc.simulated import simulated


def variants() -> list[tuple[str, Calibrator]]:
    """Every calibrator with every setting that `auto` would try."""
    out = []
    for name, cls in CALIBRATORS.items():
        for i, settings in enumerate(cls.candidates):
            out.append((f"{name}-{i}" if i else name, cls(**settings)))
    return out


MODELS: list[Calibrator] = [ConfidNet(hidden=16, layers=1, epochs=10), TrustScore()]
each = pytest.mark.parametrize("calibrator", [c for _, c in variants()], ids=[n for n, _ in variants()])
each_and_models = pytest.mark.parametrize("calibrator", [c for _, c in variants()] + MODELS, ids=lambda c: str(c.name))


SMOOTH = (
    "temperature",
    "vector",
    "structured_vector",
    "structured_matrix",
    "dirichlet",
    "matrix",
    "ets",
    "order_preserving",
)


@pytest.fixture(scope="module")
def fitted() -> dict[str, FittedMap]:
    return {}


def fit(calibrator: Calibrator, cache: dict[str, FittedMap]) -> FittedMap:
    key = repr(calibrator)
    if key not in cache:
        cache[key] = calibrator.fit(featured(1500))
    return cache[key]


def featured(n: int, seed: int = 0) -> Predictions:
    """Predictions with features, which models of confidence read."""
    p = simulated(n, scale=2.0, seed=seed)
    return replace(p, features=p.logits)


def test_every_confidence_model_is_tested() -> None:
    assert {model.name for model in MODELS} == CONFIDENCES.keys()


@each
def test_shape_dtype_and_finiteness(calibrator: Calibrator, fitted: dict[str, FittedMap]) -> None:
    new = simulated(200, seed=1, scale=2.0)
    assert new.logits is not None
    for z in (new.logits, new.logits.float()):
        out = fit(calibrator, fitted)(z)
        assert out.shape == z.shape and out.dtype == torch.float64 and bool(torch.isfinite(out).all())
    after = fit(calibrator, fitted).predictions(new)
    assert after.n == new.n and after.origin == new.fingerprint()
    assert after.fitted_on == simulated(1500, scale=2.0).fingerprint()


@each_and_models
def test_label_is_kept_if_promised(calibrator: Calibrator, fitted: dict[str, FittedMap]) -> None:
    m, new = fit(calibrator, fitted), featured(2000, seed=2)
    if promises_label(m):
        assert torch.equal(reduce(m.predictions(new)).predicted, reduce(new).predicted)


@each
def test_it_helps_when_overconfident_and_leaves_calibrated_alone(calibrator: Calibrator) -> None:
    big = simulated(6000)
    m = calibrator.fit(big)
    new = simulated(4000, seed=3)
    before, after = reduce(new), reduce(m.predictions(new))
    assert float((after.confidence - before.confidence).abs().mean()) < 0.04
    loud = calibrator.fit(simulated(6000, scale=3.0))
    test = simulated(4000, seed=4, scale=3.0)
    before, after = reduce(test), reduce(loud.predictions(test))
    assert after.log_p_label is not None and before.log_p_label is not None
    assert -after.log_p_label.mean() < -before.log_p_label.mean() - 0.05


@each
def test_saturated_logits(calibrator: Calibrator) -> None:
    p = simulated(800, scale=1e4)
    m = calibrator.fit(p)
    assert p.logits is not None
    extremes = torch.tensor([[1e4, -1e4, 0, 0], [0, 0, 0, 0], [-1e4, -1e4, -1e4, 1e4]], dtype=torch.float32)
    for z in (p.logits, extremes):
        probabilities = torch.softmax(m(z), -1)
        assert bool(torch.isfinite(probabilities).all())
    scores = reduce(m.predictions(p))
    assert bool(((scores.confidence >= 0) & (scores.confidence <= 1)).all())


@each
def test_probabilities_of_exactly_zero_and_one_and_impossible_classes(calibrator: Calibrator) -> None:
    g = torch.Generator().manual_seed(5)
    probs = torch.softmax(2 * torch.randn(600, 4, generator=g), 1)
    probs[:60] = torch.nn.functional.one_hot(torch.randint(4, (60,), generator=g), 4).float()
    y = torch.multinomial(torch.softmax(torch.log(probs + 0.05), 1), 1, generator=g)[:, 0]
    p = calibrant.predictions(probs=probs, labels=y)
    m = calibrator.fit(p)
    assert p.logits is not None
    assert bool(torch.isfinite(torch.softmax(m(p.logits), -1)).all())
    impossible = torch.tensor([[0.0, -torch.inf, -1.0, -torch.inf]])
    mapped = m(impossible)
    assert bool(torch.isfinite(torch.softmax(mapped, -1)).all())
    assert bool(torch.isneginf(mapped[0, [1, 3]]).all()), "an impossible class stays impossible"


@each
def test_fit_with_impossible_classes_among_the_logits(calibrator: Calibrator) -> None:
    p = simulated(700, scale=2.0)
    assert p.logits is not None
    z = p.logits.clone()
    row = torch.arange(100)
    z[row, (p.labels[:100] + 1) % 4] = -torch.inf
    m = calibrator.fit(calibrant.predictions(z, p.labels))
    assert bool(torch.isfinite(torch.softmax(m(z), -1)).all())


@pytest.mark.parametrize("calibrator", [c for _, c in variants() if c.name in SMOOTH], ids=lambda c: str(c.name))
def test_items_whose_label_is_impossible_do_not_decide_a_smooth_map(calibrator: Calibrator) -> None:
    """Their NLL is infinite after every map, so the fit is that of the other items."""
    p = simulated(700, scale=2.0)
    assert p.logits is not None
    z = p.logits.clone()
    z[torch.arange(9), p.labels[:9]] = -torch.inf
    m, others = (calibrator.fit(calibrant.predictions(z[i:], p.labels[i:])) for i in (0, 9))
    for name, tensor in m.tensors().items():
        assert torch.allclose(tensor, others.tensors()[name], atol=1e-6)


@each
def test_permutation_of_classes(calibrator: Calibrator, fitted: dict[str, FittedMap]) -> None:
    p = simulated(1500, scale=2.0)
    assert p.logits is not None
    permutation = torch.tensor([2, 0, 3, 1])
    inverse = torch.argsort(permutation)
    moved = calibrant.predictions(p.logits[:, permutation], inverse[p.labels], split="calibration")
    a = torch.softmax(fit(calibrator, fitted)(p.logits), -1)[:, permutation]
    b = torch.softmax(calibrator.fit(moved)(p.logits[:, permutation]), -1)
    assert torch.allclose(a, b, atol=1e-5)


@each
def test_row_order_does_not_matter(calibrator: Calibrator, fitted: dict[str, FittedMap]) -> None:
    p = simulated(1500, scale=2.0)
    shuffled = p.take(torch.randperm(p.n, generator=torch.Generator().manual_seed(6)))
    new = simulated(300, seed=7, scale=2.0)
    a, b = (reduce(m.predictions(new)).confidence for m in (fit(calibrator, fitted), calibrator.fit(shuffled)))
    assert torch.allclose(a, b, atol=1e-5)


@each_and_models
def test_disk_round_trip_is_bit_for_bit(calibrator: Calibrator, fitted: dict[str, FittedMap], tmp_path: Path) -> None:
    m = fit(calibrator, fitted)
    again = load(m.save(tmp_path / "map"))
    assert type(again) is type(m) and again.settings() == m.settings()
    for name, tensor in m.tensors().items():
        assert same_bits(tensor, again.tensors()[name])
    before, after = (one.predictions(featured(300, seed=8)) for one in (m, again))
    assert before.logits is not None and after.logits is not None and same_bits(before.logits, after.logits)
    assert same_bits(reduce(before).confidence, reduce(after).confidence)
    assert again.record.data == m.record.data and again.record.n == 1500


@each_and_models
def test_same_data_gives_the_same_map_and_no_global_randomness(calibrator: Calibrator) -> None:
    p = featured(500)
    torch.manual_seed(1)
    state = torch.get_rng_state()
    a = calibrator.fit(p)
    assert torch.equal(state, torch.get_rng_state())
    torch.manual_seed(2)
    b = calibrator.fit(p)
    for name, tensor in a.tensors().items():
        assert same_bits(tensor, b.tensors()[name])


@each
def test_members_give_one_prediction_per_item(calibrator: Calibrator) -> None:
    p = simulated(600, scale=2.0)
    assert p.logits is not None
    noise = torch.randn(3, 600, 4, generator=torch.Generator().manual_seed(9))
    m = calibrator.fit(calibrant.predictions(p.logits[None] + noise, p.labels))
    scores = reduce(m.predictions(calibrant.predictions(p.logits[None] + noise, p.labels)))
    assert scores.n == 600 and bool(torch.isfinite(scores.confidence).all())


@each
def test_a_class_absent_from_the_calibration_set(calibrator: Calibrator) -> None:
    """Works where it can, else names method and reason."""
    p = simulated(800, scale=2.0)
    p = p.take((p.labels != 2).nonzero()[:, 0])
    try:
        m = calibrator.fit(p)
    except InputError as error:
        assert calibrator.name in str(error) and "class 2" in str(error) and "\n" not in str(error)
        return
    assert p.logits is not None
    assert bool(torch.isfinite(torch.softmax(m(p.logits), -1)).all())


@each
def test_two_classes(calibrator: Calibrator) -> None:
    p = simulated(800, k=2, scale=2.0)
    m = calibrator.fit(p)
    assert p.logits is not None and m(p.logits).shape == (800, 2)


@pytest.mark.parametrize("name", [*CALIBRATORS, *CONFIDENCES])
def test_a_setting_that_is_a_word_refuses_other_words_by_name(name: str) -> None:
    cls = {**CALIBRATORS, **CONFIDENCES}[name]
    words = [s for s, kinds in kinds_of(cls).items() if any(get_origin(kind) is Literal for kind in kinds)]
    for setting in words:
        with pytest.raises(InputError, match=f"^{name}: {setting}='no such word' is unknown; use '"):
            cls(**{setting: "no such word"})


@pytest.mark.parametrize("name", [*CALIBRATORS, *CONFIDENCES])
def test_a_setting_that_is_a_number_refuses_everything_else(name: str) -> None:
    """In Python too, not only by `fit` and --set; and a count refuses a fraction."""
    cls = {**CALIBRATORS, **CONFIDENCES}[name]
    wrong: dict[type, tuple[Any, ...]] = {
        float: ("a number", "many", True, [1.0], math.nan),
        int: ("a whole number", "many", True, [1], 2.5, math.inf),
        bool: ("True or False", "many", 1),
    }
    for setting, value in cls().settings().items():
        kind, *slips = wrong.get(type(value), ("",))
        for slip in slips:
            with pytest.raises(InputError, match=rf"^{name}: {setting}=.* must be {kind}"):
                cls(**{setting: slip})


def same_bits(a: Tensor, b: Tensor) -> bool:
    return a.dtype == b.dtype and torch.equal(
        a.view(torch.uint8) if a.ndim else a, b.view(torch.uint8) if b.ndim else b
    )
