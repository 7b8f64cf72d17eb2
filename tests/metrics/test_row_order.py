"""A report must not depend on the order of the rows, nor on the type in which a seed or setting is given."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

import calibrant


def tied(seed: int, n: int = 400) -> tuple[np.ndarray, np.ndarray]:
    """Logits with few values: most confidences are tied, of right and of wrong answers."""
    rng = np.random.default_rng(seed)
    z = np.round(2 * rng.standard_normal((n, 3))) / 2
    return z, np.where(rng.random(n) < 0.7, z.argmax(1), rng.integers(0, 3, n))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("grouped", [False, True])
def test_intervals_do_not_depend_on_the_order_of_rows(seed: int, grouped: bool) -> None:
    z, y = tied(seed)
    group = np.arange(len(y)) // 4 if grouped else None
    order = np.random.default_rng(9).permutation(len(y))
    a = calibrant.evaluate(z, y, group=group, replicates=200)
    b = calibrant.evaluate(z[order], y[order], group=None if group is None else group[order], replicates=200)
    for name in a:
        for end in ("value", "low", "high"):
            assert getattr(a[name], end) == pytest.approx(getattr(b[name], end), abs=1e-11), (name, end)


def test_top_one_sets_with_tied_confidences_too() -> None:
    rng = np.random.default_rng(0)
    sure, guess, y = rng.integers(0, 6, 300) / 5, rng.integers(0, 4, 300), rng.integers(0, 4, 300)
    order = rng.permutation(300)
    reports = [
        calibrant.evaluate(calibrant.predictions(labels=y[i], predicted=guess[i], confidence=sure[i]), replicates=200)
        for i in (np.arange(300), order)
    ]
    for name in reports[0]:
        assert reports[0][name].low == pytest.approx(reports[1][name].low, abs=1e-11), name


def test_numpy_integers_are_seeds() -> None:
    z, y = tied(0)
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
