"""`evaluate`: which values exist, reasons for those that do not, and what the report records."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

import calibrant
from calibrant.errors import InputError, SplitError, UnknownNameError
from calibrant.metrics import METRICS


def sample(n: int = 200, k: int = 4, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    z = 2 * torch.randn(n, k, generator=generator)
    return z, torch.multinomial(torch.softmax(z / 1.5, 1), 1, generator=generator)[:, 0]


def tied(n: int = 400) -> tuple[np.ndarray, np.ndarray]:
    """Logits with few values: most confidences are tied, of right and of wrong answers."""
    rng = np.random.default_rng(0)
    z = np.round(2 * rng.standard_normal((n, 3))) / 2
    return z, np.where(rng.random(n) < 0.7, z.argmax(1), rng.integers(0, 3, n))


def two_classes(confidence: np.ndarray, errors: int = 0, **more: Any) -> calibrant.Predictions:
    p = np.stack([confidence, 1 - confidence], 1)
    return calibrant.predictions(probs=p, labels=np.arange(len(p)) < errors, **more)


DEBIASED = {name for name, m in METRICS.items() if m.family == "calibration" and name != "gap"}
RNG = np.random.default_rng(1)
LOGITS = RNG.normal(size=(60, 3))
WORLDS = {
    "ties": calibrant.predictions(*tied()),
    "ties in groups": calibrant.predictions(*tied(), group=np.arange(400) // 4),
    "a top-1 set with ties": calibrant.predictions(
        labels=RNG.integers(0, 4, 300), predicted=RNG.integers(0, 4, 300), confidence=RNG.integers(0, 6, 300) / 5
    ),
    "all right": calibrant.predictions(LOGITS, LOGITS.argmax(1)),
    "all wrong": calibrant.predictions(LOGITS, LOGITS.argmin(1)),
    "certain": two_classes(np.ones(40)),
    "certain, in groups": two_classes(np.ones(60), group=np.arange(60) // 3),
    "nearly certain": two_classes(1 - RNG.uniform(0, 1, 110) ** 4 * 0.05),
    "few errors": two_classes(0.5 + 0.5 * RNG.beta(6, 2, 400), errors=12),
    "no error": two_classes(0.5 + 0.5 * RNG.beta(6, 2, 400)),
    "two items": calibrant.predictions(LOGITS[:2], [0, 1]),
    "one item": calibrant.predictions(LOGITS[:1], [0]),
}


@pytest.mark.parametrize("p", WORLDS.values(), ids=WORLDS)
def test_every_value_has_an_interval_or_a_reason_whatever_the_order_of_rows(p: calibrant.Predictions) -> None:
    order = torch.from_numpy(np.random.default_rng(9).permutation(p.n))
    report, shuffled = (calibrant.evaluate(q, replicates=200) for q in (p, p.take(order)))
    for name, e in report.items():
        for end in ("value", "low", "high"):
            assert getattr(shuffled[name], end) == pytest.approx(getattr(e, end), abs=1e-11), (name, end)
        assert (e.low is None) == (e.high is None) == (e.method is None), name
        if e.low is None:
            assert e.reason, name
            continue
        assert e.low < e.high and e.low <= e.value + 1e-12, name
        if name not in DEBIASED:  # their upper end may lie below a value that is mostly noise
            assert e.value <= e.high + 1e-12, name
        if name not in ("nll", "brier", "gap"):
            assert e.low >= 0 and e.high <= 1, name


def test_the_default_panel_has_every_metric_with_an_interval() -> None:
    report = calibrant.evaluate(*sample())
    assert list(report) == [name for name, m in METRICS.items() if m.default]
    for name, e in report.items():
        assert e.value is not None and e.low is not None and e.high is not None, name
        assert e.low <= e.high and e.method, name
    assert report.n == 200 and report.k == 4


def test_json_is_plain_and_reproducible() -> None:
    z, y = sample()
    text = calibrant.evaluate(z, y).to_json()
    assert text == calibrant.evaluate(z, y).to_json()
    assert json.loads(text)["conventions"]["interval"]["seed"] == 0
    assert calibrant.evaluate(z, y, seed=1).to_json() != text


def test_the_global_random_state_is_left_alone() -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    calibrant.evaluate(*sample())
    assert torch.equal(torch.get_rng_state(), before)


def test_without_intervals() -> None:
    report = calibrant.evaluate(*sample(), intervals=False)
    assert all(e.low is None and e.high is None for e in report.values())
    assert report.conventions["interval"] is None and "calibration_test" not in report.extras


def test_one_item() -> None:
    report = calibrant.evaluate([[2.0, 0.0]], [0])
    assert report["accuracy"].value == 1 and report["accuracy"].low is None
    assert report["ece"].reason == "one item: no interval"
    assert report["auroc"].value is None and "all predictions are correct" in str(report["auroc"].reason)


def test_an_impossible_label_makes_nll_infinite_and_is_named() -> None:
    z = np.array([[0.0, 1.0, -np.inf], [1.0, 0.0, 0.0]])
    report = calibrant.evaluate(z, [2, 0])
    assert report["nll"].value is None and "row 0" in str(report["nll"].reason)
    assert report["brier"].value is not None
    json.loads(report.to_json())


def test_members_are_pooled_and_give_ensemble_numbers() -> None:
    z = torch.randn(3, 40, 4, generator=torch.Generator().manual_seed(0))
    report = calibrant.evaluate(z, torch.arange(40) % 4, intervals=False)
    numbers = report.extras["ensemble"]
    assert numbers["mutual_information"] == pytest.approx(
        numbers["predictive_entropy"] - numbers["expected_entropy"], abs=1e-12
    )
    assert report.conventions["members"] == 3 and report.conventions["pooling"] == "mean probability"


def test_the_positive_class() -> None:
    p, y = np.array([0.9, 0.2, 0.6, 0.3]), [1, 0, 1, 1]
    report = calibrant.evaluate(probs=p, labels=y, about="positive", intervals=False)
    assert report.conventions["about"] == "positive class" and "binary" in report.conventions
    assert report["gap"].value == pytest.approx(p.mean() - 0.75, abs=1e-12)
    assert report["aurc"].value is None and "predicted label" in str(report["aurc"].reason)
    with pytest.raises(InputError, match="two classes"):
        calibrant.evaluate(*sample(), about="positive")


def test_reporting_on_fitted_items_must_be_allowed() -> None:
    p = calibrant.predictions(*sample())
    mapped = replace(p, origin=p.fingerprint(), fitted_on=p.fingerprint())
    with pytest.raises(SplitError, match="allow_reuse"):
        calibrant.evaluate(mapped)
    assert "allow_reuse" in calibrant.evaluate(mapped, allow_reuse=True, intervals=False).conventions
    other = replace(mapped, fitted_on="of other items")
    assert "allow_reuse" not in calibrant.evaluate(other, allow_reuse=True, intervals=False).conventions


def test_images_of_labels_are_items_in_groups() -> None:
    z = torch.randn(6, 3, 5, 4, generator=torch.Generator().manual_seed(0))
    y = torch.randint(3, (6, 5, 4), generator=torch.Generator().manual_seed(1))
    y[0, 0, 0] = 255
    report = calibrant.evaluate(z, y, class_axis=1, ignore_index=255)
    assert report.n == 6 * 20 - 1
    assert report.conventions["interval"]["resampled"] == "groups"


def test_accuracy_at_full_coverage_is_accuracy() -> None:
    report = calibrant.evaluate(*sample(), intervals=False)
    last = report.extras["accuracy_at_coverage"][-1]
    assert last["coverage"] == 1 and last["accuracy"] == pytest.approx(report["accuracy"].value)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"metrics": ["ecee"]}, "did you mean 'ece'"),
        ({"metrics": [3]}, "unknown metric '3'"),
        ({"replicates": 3}, "replicates=3"),
        *(({"bins": bins}, "bins=") for bins in (0, None, float("nan"), float("inf"), True, "15", 2.5)),
        *(({"seed": seed}, "seed=") for seed in (1.5, None, True, "a", 2**64)),
    ],
)
def test_bad_names_and_numbers_are_errors(said: dict[str, Any], words: str) -> None:
    z, y = sample(20)
    with pytest.raises((InputError, UnknownNameError), match=words):
        calibrant.evaluate(z, y, **said)


@pytest.mark.parametrize("said", [{"labels": [0]}, {"split": "test"}, {"class_axis": 0}, {"ignore_index": 1}])
@pytest.mark.parametrize("use", [calibrant.evaluate, partial(calibrant.fit, "temperature")])
def test_arguments_that_predictions_carry_are_errors(use: Callable[..., Any], said: dict[str, Any]) -> None:
    """`split="test"` beside Predictions was ignored, and a map was fitted on test."""
    with pytest.raises(InputError, match="carry their own"):
        use(calibrant.predictions(*sample()), **said)


def test_numpy_integers_are_seeds() -> None:
    z, y = tied()
    plain, numpys = (calibrant.evaluate(z, y, seed=s, replicates=50, metrics=["nll"]) for s in (3, np.int64(3)))
    assert plain["nll"] == numpys["nll"] and json.loads(numpys.to_json())["conventions"]["interval"]["seed"] == 3


def test_a_perfect_prediction_has_no_negative_zero() -> None:
    value = calibrant.evaluate([[0.0, -np.inf], [-np.inf, 0.0]], [0, 1], intervals=False)["nll"].value
    assert value == 0 and not np.signbit(value)


@pytest.mark.parametrize("scale", [1.0, 40.0, 1e4])
@pytest.mark.parametrize("about", ["top", "positive"])
def test_the_split_of_nll_is_finite_where_nll_is(scale: float, about: str) -> None:
    """KL(acc ‖ conf) of a bin where every confidence is 1 − 1e-20: 1 − conf is 0, its logarithm is not −∞."""
    g = torch.Generator().manual_seed(0)
    z = scale * torch.tensor([[0.0, 1.0]]).expand(50, 2) * (1 + torch.rand(50, 1, generator=g, dtype=torch.float64))
    y = torch.ones(50, dtype=torch.long)
    y[:3] = 0
    report = calibrant.evaluate(z, y, intervals=False, about=about)  # type: ignore[arg-type]
    split = report.extras["murphy_nll"]
    parts = [split[name] for name in ("calibration", "refinement", "residual", "rest")]
    assert np.isfinite(parts).all() and sum(parts) == pytest.approx(report["nll"].value, rel=1e-9)
    if scale == 40:  # one bin: the oracle needs no floats near 1
        log_missing = float(torch.logsumexp(-z[:, 1] - torch.log1p(torch.exp(-z[:, 1])), 0)) - np.log(50)
        acc = 47 / 50
        cross = -(1 - acc) * log_missing
        assert split["calibration"] == pytest.approx(cross + acc * np.log(acc) + (1 - acc) * np.log(1 - acc), rel=1e-9)
