"""IRM equals scikit-learn's isotonic regression over all N · K pairs, made strict and normalised."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.isotonic import IsotonicRegression

import calibrant
from calibrant.posthoc.irm import Irm


def test_equals_scikit_learn_over_all_pairs_and_keeps_the_order() -> None:
    g = torch.Generator().manual_seed(0)
    z = 3 * torch.randn(700, 4, generator=g, dtype=torch.float64)
    y = torch.multinomial(torch.softmax(z / 2, 1), 1, generator=g)[:, 0]
    m = Irm(epsilon=0.01).fit(calibrant.predictions(z, y))
    p = torch.softmax(z, 1).numpy()
    oracle = IsotonicRegression(out_of_bounds="clip").fit(p.ravel(), np.eye(4)[y.numpy()].ravel())
    q = 0.99 * oracle.predict(p.ravel()).reshape(p.shape) + 0.01 * p
    assert torch.softmax(m(z), 1).numpy() == pytest.approx(q / q.sum(1, keepdims=True), abs=1e-9)
    assert torch.equal(m(z).argsort(1), z.argsort(1))
