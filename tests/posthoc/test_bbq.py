"""BBQ: evidence and rates of every binning by Naeini's formula with gamma functions, in plain loops."""

from __future__ import annotations

import math

import numpy as np
import pytest

from calibrant.posthoc.bbq import averaged, bin_counts


def naive(score: np.ndarray, hit: np.ndarray) -> np.ndarray:
    """Posterior mean at each item, scores distinct."""
    n = len(score)
    order = np.argsort(score)
    s, y = score[order], hit[order]
    evidence, predicted = [], []
    for bins in bin_counts(n):
        which = [min(int((i + 0.5) * bins / n), bins - 1) for i in range(n)]
        log_e, rate = 0.0, {}
        present = sorted(set(which))
        for b in present:
            inside = [i for i in range(n) if which[i] == b]
            low = 0.0 if b == present[0] else 1 / (1 + math.exp(-(s[inside[0]] + s[inside[0] - 1]) / 2))
            high = 1.0 if b == present[-1] else 1 / (1 + math.exp(-(s[inside[-1]] + s[inside[-1] + 1]) / 2))
            prior = 2 / len(present)
            alpha = prior * (low + high) / 2
            beta = prior - alpha
            size, m = len(inside), int(sum(y[i] for i in inside))
            log_e += math.lgamma(prior) - math.lgamma(size + prior)
            log_e += math.lgamma(m + alpha) - math.lgamma(alpha) + math.lgamma(size - m + beta) - math.lgamma(beta)
            rate[b] = (m + alpha) / (size + prior)
        evidence.append(log_e)
        predicted.append([rate[b] for b in which])
    weight = np.exp(np.array(evidence) - max(evidence))
    return (weight / weight.sum()) @ np.array(predicted)


def test_equals_the_formula() -> None:
    rng = np.random.default_rng(0)
    score = rng.normal(size=150)
    hit = rng.random(150) < 1 / (1 + np.exp(-2 * score))
    step, bins = averaged(score, hit)
    got = step.values[np.searchsorted(step.edges, np.sort(score))]
    assert got == pytest.approx(naive(score, hit), abs=1e-9)
    assert 1 <= bins <= 54
