"""Centred isotonic regression: one point per PAVA block, at its mean score; ranking inside a block is kept."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import calibrant
from calibrant.functional.scores import reduce
from calibrant.posthoc.isotonic import CentredIsotonic, Isotonic, centred, pava


def test_points_are_the_means_of_the_blocks() -> None:
    values = np.array([0.1, 0.2, 0.3, 0.4, 0.6, 0.9])
    hit = np.array([False, True, False, True, True, True])
    steps = centred(pava(values, hit), values)
    assert steps.x == pytest.approx([0.1, 0.25, (0.4 + 0.6 + 0.9) / 3])
    assert steps.y == pytest.approx([0.0, 0.5, 1.0])


@pytest.mark.parametrize("kind", ["top", "one_vs_rest"])
def test_fewer_ties_than_isotonic(kind: str) -> None:
    g = torch.Generator().manual_seed(0)
    z = 3 * torch.randn(1500, 3, generator=g, dtype=torch.float64)
    y = torch.multinomial(torch.softmax(z / 2, 1), 1, generator=g)[:, 0]
    p = calibrant.predictions(z, y)
    plain, fine = (
        len(reduce(c.fit(p).predictions(p)).confidence.unique())
        for c in (Isotonic(kind=kind), CentredIsotonic(kind=kind))  # type: ignore[arg-type]
    )
    assert fine > 2 * plain
