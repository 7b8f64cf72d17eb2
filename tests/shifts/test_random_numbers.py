"""The counter-based random numbers against SplitMix64 in Python integers, and statistical tests of them."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats

from calibrant.shifts.noise import poisson
from calibrant.shifts.random_numbers import GAMMA, draws, item_numbers, mix_
from calibrant.shifts.weather import PANES, ice_pieces

CPU = torch.device("cpu")


def splitmix(z: int) -> int:
    """Steele, Lea, Flood 2014, in unsigned 64 bits."""
    mask = 2**64 - 1
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
    return z ^ (z >> 31)


def test_the_hash_is_splitmix64() -> None:
    given = [0, 1, -1, 2**63 - 1, -(2**63), 123456789, -987654321987654321]
    expected = [splitmix(v % 2**64) for v in given]
    assert [v % 2**64 for v in mix_(torch.tensor(given)).tolist()] == expected
    assert GAMMA % 2**64 == 0x9E3779B97F4A7C15


def test_known_answer_of_the_published_generator() -> None:
    """The first outputs of SplitMix64 with seed 1234567, which its implementations agree on."""
    state = [(1234567 + i * 0x9E3779B97F4A7C15) % 2**64 for i in (1, 2, 3)]
    signed = torch.tensor([v - 2**64 if v >= 2**63 else v for v in state])
    assert [v % 2**64 for v in mix_(signed).tolist()] == [6457827717110365317, 3203168211198807973, 9817491932198370423]


def test_uniform_and_normal() -> None:
    numbers = draws(0, "test", 1, 200, CPU)
    u, z = numbers.uniform(999).double().numpy(), numbers.normal(999).double().numpy()
    assert u.min() > 0 and u.max() < 1
    assert stats.kstest(u.ravel(), "uniform").pvalue > 1e-3
    assert stats.kstest(z.ravel(), "norm").pvalue > 1e-3
    for a, b in ((z[:, :-1], z[:, 1:]), (z[:-1], z[1:]), (u[:, :-1], u[:, 1:]), (z[:, :400], z[:, 500:900])):
        assert abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) < 4 / math.sqrt(a.size)
    assert stats.chisquare(np.bincount(numbers.integers(-2, 2, 999).add(2).flatten().numpy())).pvalue > 1e-3


def test_streams_names_levels_and_seeds_are_apart() -> None:
    first = draws(0, "a", 1, 5, CPU)
    others = [
        first.normal(2000, stream=1),
        *(draws(*key, 5, CPU).normal(2000) for key in ((1, "a", 1), (0, "b", 1), (0, "a", 2))),
        draws(0, "a", 1, 5, CPU, 5).normal(2000),
    ]
    for other in others:
        assert abs(np.corrcoef(first.normal(2000).flatten(), other.flatten())[0, 1]) < 0.05


def test_items_are_numbered() -> None:
    assert item_numbers(None, 3, CPU).tolist() == [0, 1, 2]
    assert item_numbers(7, 3, CPU).tolist() == [7, 8, 9]
    assert item_numbers(torch.tensor([4, 4], dtype=torch.int32), 2, CPU).tolist() == [4, 4]


@pytest.mark.parametrize("photons", [500, 60, 3])
def test_poisson_inverts_the_distribution_function(photons: int) -> None:
    """Counts are scipy's quantiles; a float image has the mean of its own value."""
    levels = torch.arange(256).div(255).repeat_interleave(40).view(1, 1, -1, 40)
    u = draws(0, "u", 1, 1, CPU).uniform(*levels.shape[1:])
    got = poisson(levels, photons, u) * photons
    expected = stats.poisson.ppf(u.double().numpy(), levels.double().numpy() * photons)
    assert (np.abs(got.numpy() - np.maximum(expected, 0)) > 1e-3).mean() < 1e-3
    odd = torch.full((1, 1, 200, 200), 0.5011)
    noisy = poisson(odd, photons, draws(1, "u", 1, 1, CPU).uniform(1, 200, 200))
    assert float(noisy.mean()) == pytest.approx(0.5011, abs=4 * math.sqrt(0.5 / photons) / 200)
    assert float(noisy.var()) == pytest.approx(0.5 / photons, rel=0.04)


STEPS = {32: (0.0543, 0.0808, 0.0808, 0.1274, 0.1553), 224: (0.0391, 0.0469, 0.0475, 0.0786, 0.1039)}
"""Root mean square difference of neighbouring pixels, measured on the five photographs."""


@pytest.mark.parametrize("size", [32, 224])
def test_ice_has_the_measured_moments(size: int) -> None:
    """The photographs' means, deviations within pieces, and differences of neighbours: their size and their tails."""
    numbers = draws(0, "frost", 1, 400 if size == 32 else 60, CPU)
    ice, chosen = ice_pieces(numbers, size, size, size), numbers.integers(0, len(PANES), stream=0)
    mean, within = ice.mean((0, 2, 3)), ice.var((2, 3)).mean(0).sqrt()
    assert mean.tolist() == pytest.approx(np.mean([pane[0] for pane in PANES], axis=0).tolist(), abs=0.06)
    expected = np.sqrt(np.mean([np.square(pane[1]) for pane in PANES], axis=0))
    assert within.tolist() == pytest.approx(expected.tolist(), rel=0.1)
    for i, step in enumerate(STEPS[size]):
        apart = ice[chosen == i].mean(1).diff(dim=2)
        assert float(apart.square().mean().sqrt()) == pytest.approx(step, rel=0.1)
        assert 3.5 < float(apart.pow(4).mean() / apart.square().mean() ** 2) < 8
