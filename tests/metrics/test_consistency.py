"""SS Eq. 37 – 39 and the flip rate, against loops in float64."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from calibrant.errors import InputError
from calibrant.metrics.consistency import consistency, cross_entropy_consistency, flip_rate, relative_confidence

T, N, K = 6, 5, 4
RNG = np.random.default_rng(0)
Z = RNG.normal(size=(T, N, K)) * 2
Y = RNG.integers(K, size=N)
P = np.exp(Z) / np.exp(Z).sum(-1, keepdims=True)
LOGITS = torch.from_numpy(Z)


def test_ss_eq_37() -> None:
    expected = [
        sum(int(np.argmax(P[t, i]) == np.argmax(P[t + 1, i])) for t in range(T - 1)) / (T - 1) for i in range(N)
    ]
    assert consistency(LOGITS).tolist() == pytest.approx(expected)
    assert len(set(expected)) > 1


def test_ss_eq_38() -> None:
    expected = [
        -sum(P[t, i, k] * math.log(P[t + 1, i, k]) for t in range(T - 1) for k in range(K)) / (T - 1) for i in range(N)
    ]
    assert cross_entropy_consistency(LOGITS).tolist() == pytest.approx(expected)


def test_ss_eq_39() -> None:
    got = relative_confidence(LOGITS, torch.from_numpy(Y))
    for t in range(T):
        for i in range(N):
            assert float(got[t, i]) == pytest.approx(P[t, i, Y[i]] / max(P[t, i]))
            assert (float(got[t, i]) == 1) == (int(np.argmax(P[t, i])) == Y[i])


def test_flip_rate_by_loops() -> None:
    labels = P.argmax(-1)
    for i in range(N):
        previous = np.mean([labels[t, i] != labels[t - 1, i] for t in range(1, T)])
        first = np.mean([labels[t, i] != labels[0, i] for t in range(1, T)])
        assert float(flip_rate(LOGITS)[i]) == pytest.approx(previous)
        assert float(flip_rate(LOGITS, against="first")[i]) == pytest.approx(first)


def test_impossible_classes() -> None:
    z = torch.tensor([[[0.0, 0.0, -math.inf]], [[0.0, 0.0, -math.inf]]])
    assert float(cross_entropy_consistency(z)) == pytest.approx(math.log(2))
    assert math.isinf(float(cross_entropy_consistency(torch.tensor([[[0.0, 0.0]], [[0.0, -math.inf]]]))))


def test_shapes_are_checked() -> None:
    with pytest.raises(InputError, match="two frames or more"):
        consistency(LOGITS[:1])
    with pytest.raises(InputError, match=r"\[frames, items, classes\]"):
        cross_entropy_consistency(LOGITS[0])
    with pytest.raises(InputError, match="do not fit"):
        relative_confidence(LOGITS, torch.zeros(N + 1, dtype=torch.long))
    with pytest.raises(InputError, match="'previous' or 'first'"):
        flip_rate(LOGITS, against="last")  # type: ignore[arg-type]
