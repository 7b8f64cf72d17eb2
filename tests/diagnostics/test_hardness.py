"""Learned epochs and optimal ECE (RC §5.1) against naive loops, and what a run records for them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import calibrant
from calibrant.diagnostics import optimal_ece, sample_hardness
from calibrant.errors import InputError
from calibrant.training import How, read, train
from calibrant.training.epochs import TopLogits, kept_top_logits

RNG = torch.Generator().manual_seed(0)


def recorded(right: list[list[int]]) -> dict[int, TopLogits]:
    """Return what a run records, from one row per epoch: 1 where a sample is classified correctly."""
    n = len(right[0])
    logits = torch.arange(n).float()
    return {
        e: TopLogits(1 - torch.tensor(row), logits, torch.zeros(n, dtype=torch.long), torch.arange(n))
        for e, row in enumerate(right, 1)
    }


def test_the_learned_epoch_is_the_first_of_those_that_are_right_until_the_end() -> None:
    found = sample_hardness(recorded([[1, 0, 1, 0, 0], [1, 1, 0, 0, 1], [1, 1, 1, 0, 0], [1, 1, 1, 1, 0]]))
    assert found.learned.tolist() == [1, 2, 3, 4, 0]  # the last sample is wrong at the end
    assert found.never == 1 and found.epochs == (1, 2, 3, 4)
    table = found.histogram([-0.5, 0.5, 1.5, 2.5, 3.5, 4.5])
    assert table.tolist() == torch.eye(5).tolist()
    assert found.rank_correlation().value == pytest.approx(1)  # here the largest logits grow with hardness


def test_rank_correlation_ranks_never_learned_last_and_its_interval_covers() -> None:
    covered, n, rho = 0, 200, 0.5
    truth = 6 / np.pi * np.arcsin(rho / 2)  # Spearman's ρ of a Gaussian pair
    for seed in range(100):
        rng = np.random.default_rng(seed)
        a, b = rng.multivariate_normal([0, 0], [[1, rho], [rho, 1]], n).T
        learned = torch.from_numpy(a.argsort().argsort() + 1)
        top = sample_hardness(recorded([[1] * n]))
        found = type(top)(learned, torch.from_numpy(b), torch.arange(n), (1, n)).rank_correlation()
        covered += found.low <= truth <= found.high
    assert covered >= 90
    same = sample_hardness(recorded([[1, 1, 1, 1, 1]])).rank_correlation()
    assert same.value is None and "same epoch" in same.reason


def test_optimal_ece_is_the_least_over_temperatures() -> None:
    labels = torch.randint(0, 4, (500,), generator=RNG)
    logits = 6 * (torch.randn(500, 4, generator=RNG) + torch.nn.functional.one_hot(labels, 4))
    (row,) = optimal_ece({3: calibrant.predictions(logits, labels, split="test")})
    naive = {}
    for t in np.geomspace(1 / 8, 8, 97):
        p = torch.softmax(logits.double() / t, -1)
        naive[t] = float(calibrant.evaluate(torch.log(p), labels, intervals=False)["ece"].value)
    assert row.epoch == 3 and row.oracle
    assert row.optimal_ece == pytest.approx(min(naive.values()), abs=1e-9)
    assert row.temperature == pytest.approx(min(naive, key=naive.get), rel=1e-6)
    assert row.ece == pytest.approx(calibrant.evaluate(logits, labels, intervals=False)["ece"].value, abs=1e-9)
    (validation,) = optimal_ece({3: calibrant.predictions(logits, labels, split="validation")})
    assert not validation.oracle


def test_a_run_that_keeps_its_epochs(tmp_path: Path) -> None:
    settings = ["epochs=3", "network={name='mlp', hidden=[16], batch_norm=false}"]
    settings.append("data.sizes={train=300, validation=30, calibration=30, test=30}")
    recipe = read("digits/cross_entropy", settings)
    train(recipe, tmp_path / "run", How("cpu", quiet=True, keep_epochs=True))
    found = sample_hardness(tmp_path / "run")
    kept = kept_top_logits(tmp_path / "run")
    for i in range(0, len(found.learned), 30):
        right = [int(kept[e].predicted[i] == kept[e].labels[i]) for e in (1, 2, 3)]
        learned = next((e for e in (1, 2, 3) if all(right[e - 1 :])), 0)
        assert int(found.learned[i]) == learned
    for kept_epoch in (tmp_path / "run" / "epochs").iterdir():
        kept_epoch.unlink()
    with pytest.raises(InputError, match="--keep-epochs"):
        sample_hardness(tmp_path / "run")
