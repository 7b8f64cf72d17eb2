"""Scores that differ only by the rounding of a sum count as equal, in the fit and when the map is applied.

A forest's rows (.4, .3, .2, .1) and (.4, .1, .2, .3) are equally sure. Which of them is larger in its last bit must not
decide a bin, a block or a step.
"""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
import torch

import calibrant
from calibrant.functional.binning import settled
from calibrant.posthoc import CALIBRATORS

VOTES = np.array(
    [
        [0.40, 0.30, 0.20, 0.10],
        [0.37, 0.33, 0.29, 0.01],
        [0.50, 0.30, 0.15, 0.05],
        [0.55, 0.21, 0.13, 0.11],
        [0.70, 0.17, 0.09, 0.04],
        [0.90, 0.06, 0.03, 0.01],
    ]
)
ORDERS = np.array(list(permutations(range(4))))
OF_TOP = [
    "isotonic",
    "isotonic_centred",
    "histogram",
    "histogram_mass",
    "spline",
    "scaling_binning",
    "venn_abers",
    "bbq",
]


def forest(n: int = 900) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    rows = np.stack([rng.permutation(VOTES[i]) for i in rng.integers(0, len(VOTES), n)])
    return rows, np.where(rng.random(n) < 0.6, rows.argmax(1), rng.integers(0, 4, n))


def confidences(fitted: calibrant.posthoc.FittedMap, rows: np.ndarray) -> np.ndarray:
    found = fitted.predictions(calibrant.predictions(probs=rows, labels=np.zeros(len(rows), int))).confidence
    assert found is not None
    return found.numpy()


@pytest.mark.parametrize("name", OF_TOP)
def test_equal_votes_get_equal_confidence(name: str) -> None:
    rows, y = forest()
    fitted = CALIBRATORS[name]().fit(calibrant.predictions(probs=rows, labels=y))
    for votes in VOTES:
        found = confidences(fitted, votes[ORDERS])
        assert np.ptp(found) < 1e-9, votes


def test_distinct_values_stay_distinct() -> None:
    values = torch.rand(1000, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).numpy()
    same, ordered = settled(values)
    assert same is values and np.array_equal(ordered, np.sort(values))
    nudged = np.concatenate([values, np.nextafter(values, 1)])
    one, ordered = settled(nudged)
    assert np.array_equal(one[:1000], one[1000:]) and np.array_equal(ordered, np.sort(one))
    assert np.array_equal(one[:1000], values)
