"""The interval of a difference of two calibration errors: it covers, shrinks as predictors agree, and agrees with p."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats

import calibrant
from calibrant.functional.scores import reduce
from calibrant.metrics import METRICS
from calibrant.metrics.calibration import estimated
from calibrant.metrics.conventions import Resampling
from calibrant.metrics.difference_range import (
    Curve,
    accepted_range,
    accepted_range_unpaired,
    chance,
    constant,
    critical,
    curve,
)
from calibrant.metrics.paired_noise import PairedNoise, coupled, gram, reach
from calibrant.metrics.panel import Panel
from calibrant.types import Predictions

ERRORS = [m.name for m in METRICS.values() if m.family == "calibration" and m.name != "gap"]
NORMS = [name for name in ERRORS if name not in ("ece_debiased", "ece_classwise")]


def draw(n: int, seed: int, k: int = 5) -> tuple[np.ndarray, np.ndarray]:
    """Calibrated logits and their labels."""
    rng = np.random.default_rng(seed)
    z = rng.normal(0, 2, (n, k))
    p = np.exp(z) / np.exp(z).sum(1, keepdims=True)
    return z, (p.cumsum(1) > rng.random((n, 1))).argmax(1)


@pytest.mark.parametrize("factor", [1.1, 1.5])
def test_it_covers_with_one_calibrated_predictor(factor: float) -> None:
    """The plain bootstrap held the true difference of ECE in 7 of 10 trials, of equal-mass ECE in 5 of 10."""
    names = ["ece", "ece_mass"]
    # overconfident everywhere: either of them is the mean of confidence − P(right), and 0 for the calibrated one
    z, _ = draw(200_000, 99)
    said, true = (np.exp(s * z) / np.exp(s * z).sum(1, keepdims=True) for s in (factor, 1.0))
    truth = float((said.max(1) - true.max(1)).mean())
    held = dict.fromkeys(names, 0)
    for seed in range(30):
        z, y = draw(800, seed)
        for row in calibrant.compare(z, factor * z, y, metrics=names, replicates=100).rows:
            held[row.metric] += row.low <= truth <= row.high
    assert min(held.values()) >= 26, held  # 95% of 30 is 28.5; 26 or more in 98% of such tests


def test_the_interval_of_twins_is_not_much_too_wide() -> None:
    """With the worst shape of gaps at each end it was 1.9 (ECE) and 2.3 times (equal mass) as wide as ±1.96 sd."""
    names = ["ece", "ece_mass"]
    rows: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    for seed in range(20):
        z, y = draw(2000, seed)
        a, b = 1.3 * z + np.random.default_rng(seed + 1000).normal(0, 0.3, (2, *z.shape))
        for row in calibrant.compare(a, b, y, metrics=names, replicates=100).rows:
            rows[row.metric].append((row.difference, row.high - row.low))
    for name, found in rows.items():
        difference, width = np.array(found).T
        assert width.mean() < 1.8 * 3.92 * difference.std(), name


@pytest.mark.parametrize("groups", [None, 9])
def test_a_predictor_equals_itself_exactly(groups: int | None) -> None:
    """The noise of groups goes through a pseudo-inverse, which left 1e-9 of it."""
    z, y = draw(200, 1)
    group = None if groups is None else np.arange(200) % groups
    for row in calibrant.compare(1.4 * z, 1.4 * z, y, replicates=50, group=group).rows:
        assert row.low is None or (row.low == row.high == 0 and row.p == 1 and row.verdict == "within noise"), row


@pytest.mark.parametrize("scores", ["right", "wrong", "sure"])
def test_all_right_or_all_wrong_gives_finite_ends(scores: str) -> None:
    """The slope of the debiased error, and of a root at 0, was NaN: a verdict of "better" had no interval."""
    z, _ = draw(60, 2)
    y = z.argmin(1) if scores == "wrong" else z.argmax(1)
    a, b = (1e4 * np.eye(5)[y], 1e4 * np.eye(5)[z.argmin(1)]) if scores == "sure" else (z, 2 * z)
    for group in (None, np.arange(60) // 5):
        for row in calibrant.compare(a, b, y, metrics=ERRORS, replicates=50, group=group).rows:
            assert math.isfinite(row.low) and row.low - 1e-12 <= row.difference <= row.high + 1e-12, row
            assert (row.p < 0.05) == (row.low > 0 or row.high < 0), row


def test_the_interval_shrinks_as_predictors_agree() -> None:
    names = ["ece", "ece_mass", "ece_l2", "ece_over", "oe", "ece_classwise", "ks"]
    z, y = draw(800, 4)
    jitter = np.random.default_rng(5).normal(0, 1, z.shape)
    widths = []
    for size in (0.3, 0.03, 0.003):
        rows = calibrant.compare(1.2 * z, 1.2 * z + size * jitter, y, metrics=names, replicates=200).rows
        widths.append(np.array([row.high - row.low for row in rows]))
    assert (widths[1] < widths[0]).all() and (widths[2] < widths[1]).all()
    assert (widths[2] < 0.4 * widths[0]).all()


def test_groups_of_four_copies_equal_single_items() -> None:
    z, y = draw(500, 7)
    alone = calibrant.compare(z, 1.3 * z, y, metrics=["ece", "ece_over"], replicates=400)
    four = calibrant.compare(
        np.repeat(z, 4, 0),
        1.3 * np.repeat(z, 4, 0),
        np.repeat(y, 4),
        metrics=["ece", "ece_over"],
        replicates=400,
        group=np.repeat(np.arange(500), 4),
    )
    for name in ("ece", "ece_over"):
        width = alone[name].high - alone[name].low
        assert four[name].high - four[name].low == pytest.approx(width, rel=0.35), name


def test_the_coverage_page_is_complete_and_above_ninety_percent() -> None:
    page = (Path(__file__).parents[2] / "docs" / "coverage_paired.md").read_text()
    for name in ERRORS:
        if name != "ece_debiased":
            assert len(re.findall(rf"^\| {name} \|", page, re.MULTILINE)) == 4, name  # one of them of 100 classes
    assert "⚠" not in page.split("↑ above 99")[1]


# the parts, against what they are said to be ---------------------------------------------------------------


def test_gram_is_the_correlation_of_the_cells_sums() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.integers(0, 3, 40), rng.integers(0, 4, 40)
    s, t = rng.normal(size=40), rng.normal(size=40)
    naive = np.zeros((3, 4))
    for c in range(3):
        for d in range(4):
            both = sum(s[i] * t[i] for i in range(40) if a[i] == c and b[i] == d)
            naive[c, d] = both / math.sqrt(sum(s[a == c] ** 2) * sum(t[b == d] ** 2))
    index = (torch.from_numpy(a), torch.from_numpy(b))
    found = gram(index, (torch.from_numpy(s), torch.from_numpy(t)))
    np.testing.assert_allclose(found, naive, atol=1e-14)
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(200_000, 3, dtype=torch.float64, generator=generator)
    y = coupled(x, found, torch.randn(200_000, 4, dtype=torch.float64, generator=generator))
    np.testing.assert_allclose(x.T @ y / len(x), naive, atol=0.01)
    np.testing.assert_allclose(y.T @ y / len(x), np.eye(4), atol=0.02)


@pytest.mark.parametrize("rho", [-0.5, 0.0, 0.9])
def test_far_from_zero_the_accepted_range_is_the_interval_of_two_correlated_normals(rho: float) -> None:
    """x_b − x_a ± z √(σ_a² + σ_b² − 2ρσ_aσ_b), and its p-value."""
    error = torch.linspace(0, 2, 2001, dtype=torch.float64)
    a, b = Curve(error, (0.9 - error) / 0.1), Curve(error, (1.0 - error) / 0.05)
    low, high, not_above, not_below = accepted_range(a, b, constant(rho), 1.96**2)
    sd = math.sqrt(0.1**2 + 0.05**2 - 2 * rho * 0.1 * 0.05)
    assert (low, high) == pytest.approx((0.1 - 1.96 * sd, 0.1 + 1.96 * sd), abs=2e-3)
    assert not_below == 0 and not_above == pytest.approx((0.1 / sd) ** 2, rel=0.02)
    wide = accepted_range_unpaired(a, b, 1.96)
    assert wide[:2] == pytest.approx((0.1 - 1.96 * 0.15, 0.1 + 1.96 * 0.15), abs=2e-3)
    assert wide[2] == pytest.approx(0.1 / 0.15, rel=0.02) and wide[3] == 0


def test_chance_is_a_mixture_of_two_chi_squares() -> None:
    for excess in (0.1, 3.84, 20.0):
        assert chance(excess) == pytest.approx((stats.chi2.sf(excess, 1) + stats.chi2.sf(excess, 2)) / 2, rel=1e-12)
    assert chance(critical(0.95)) == pytest.approx(0.05, rel=1e-9)


def test_a_pivot_is_the_normal_quantile_of_a_rank() -> None:
    normal = torch.special.ndtri((torch.arange(10_000, dtype=torch.float64) + 0.5) / 10_000)
    error = torch.tensor([0.0, 1.0, 2.0, 8.0], dtype=torch.float64)
    found = curve(error, error[:, None] + normal, 1.5)
    assert found.z.tolist() == pytest.approx([1.5, 0.5, -0.5, -6.5], abs=0.02)
    assert float(found.at(torch.tensor(9.0, dtype=torch.float64))) == -1e3  # beyond what is possible


@pytest.mark.parametrize("name", NORMS)
def test_reach_bounds_the_difference_by_the_gaps(name: str) -> None:
    """‖v‖ − ‖u‖ ≤ ‖v − u‖ for each metric, on what was observed."""
    for seed, factor in ((0, 1.3), (1, 0.7), (2, 1.01)):
        z, y = draw(300, seed)
        labels = torch.from_numpy(y)
        sets = [Predictions(labels=labels, logits=torch.from_numpy(s * z)) for s in (1.0, factor)]
        panels = (Panel(reduce(sets[0], 15)), Panel(reduce(sets[1], 15)))
        error = estimated(METRICS[name])
        assert error is not None
        down, up = reach(PairedNoise(panels, Resampling(0, 50)).cells(error.cells), error, 0.0)
        change = float(METRICS[name](panels[1])) - float(METRICS[name](panels[0]))
        slack = 0.01 if name == "ks" else 1e-12  # the walk is cut into 60 cells
        assert -down - slack <= change <= up + slack
