"""Novelty scores and their metrics, against scikit-learn, closed forms and loops."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve

from calibrant.errors import InputError
from calibrant.functional import novelty
from calibrant.functional.inputs import predictions
from calibrant.functional.pooling import disagreement
from calibrant.metrics.conventions import Resampling
from calibrant.metrics.entropy_divergence import Binning, entropy_divergence
from calibrant.metrics.ood import novelty_score, ood, separated
from calibrant.types import Predictions


def some(n: int, scale: float, seed: int, members: int = 0) -> Predictions:
    generator = torch.Generator().manual_seed(seed)
    shape = (members, n, 6) if members else (n, 6)
    z = scale * torch.randn(*shape, generator=generator)
    return predictions(z, torch.zeros(n, dtype=torch.long))


@settings(max_examples=60)
@given(
    st.lists(st.integers(0, 6), min_size=1, max_size=40),
    st.lists(st.integers(0, 6), min_size=1, max_size=40),
)
def test_against_scikit_learn_with_many_ties(inside: list[int], outside: list[int]) -> None:
    a, b = torch.tensor(inside).double(), torch.tensor(outside).double()
    found = separated(a, b)
    score, foreign = np.r_[inside, outside], np.r_[np.zeros(len(inside)), np.ones(len(outside))]
    assert found["auroc"].value == pytest.approx(roc_auc_score(foreign, score))
    assert found["aupr_out"].value == pytest.approx(average_precision_score(foreign, score))
    assert found["aupr_in"].value == pytest.approx(average_precision_score(1 - foreign, -score))
    fpr, tpr, _ = roc_curve(1 - foreign, -score, drop_intermediate=False)
    assert found["fpr95"].value == pytest.approx(fpr[np.argmax(tpr >= 0.95 - 1e-12)])


def test_scores_by_hand() -> None:
    z = torch.tensor([[2.0, 1.0, 0.0], [0.0, 0.0, 0.0]])
    p = predictions(z, torch.zeros(2, dtype=torch.long))
    rows = z.double().tolist()
    for i, row in enumerate(rows):
        total = sum(math.exp(v) for v in row)
        probs = [math.exp(v) / total for v in row]
        assert novelty_score("max_probability", p)[i] == pytest.approx(math.log(1 - max(probs)))
        assert novelty_score("entropy", p)[i] == pytest.approx(-sum(q * math.log(q) for q in probs))
        assert novelty_score("energy", p)[i] == pytest.approx(-math.log(total))
        assert novelty_score("max_logit", p)[i] == pytest.approx(-max(row))


def test_mutual_information_equals_the_difference_of_entropies() -> None:
    p = some(50, 3.0, 2, members=5)
    assert p.logits is not None
    parts = disagreement(p.logits, p.labels)
    torch.testing.assert_close(novelty_score("mutual_information", p), parts.mutual_information, atol=1e-12, rtol=1e-9)


def test_tiny_entropies_keep_their_order() -> None:
    """exp(−40) and exp(−41) are both lost in 1 − p; their entropies are not."""
    z = torch.tensor([[0.0, -40.0], [0.0, -41.0], [0.0, -800.0]], dtype=torch.float64)
    h = novelty.entropy(z)
    for i, gap in enumerate((40, 41)):
        assert h[i] == pytest.approx(math.exp(-gap) * (gap + 1), rel=1e-12)
    assert h[0] > h[1] > h[2] == 0
    assert novelty.max_probability(z)[1] == pytest.approx(-41)
    familiar, foreign = torch.tensor([1e-13]).double(), torch.tensor([2e-13]).double()
    assert separated(familiar, foreign, logarithmic=True)["auroc"].value == 1


def test_impossible_classes_are_allowed() -> None:
    z = torch.tensor([[0.0, -torch.inf, 1.0]])
    assert novelty.entropy(z)[0] == pytest.approx(float(novelty.entropy(z[:, [0, 2]])[0]))


def test_raw_scores_refuse_log_probabilities() -> None:
    p = torch.softmax(torch.randn(10, 4, generator=torch.Generator().manual_seed(0)), 1)
    said = predictions(None, torch.zeros(10, dtype=torch.long), probs=p)
    for name in ("energy", "max_logit"):
        with pytest.raises(InputError, match="raw logits"):
            novelty_score(name, said)
    with pytest.raises(InputError, match="members"):
        novelty_score("mutual_information", said)
    report = ood(said, said, intervals=False)
    assert report["energy"]["auroc"].value is None and "raw" in str(report["energy"]["auroc"].reason)
    assert report["entropy"]["auroc"].value == 0.5
    with pytest.raises(KeyError, match="did you mean 'entropy'"):
        ood(said, said, scores=["entropie"])


def test_intervals_hold_the_value_and_depend_only_on_the_seed() -> None:
    inside, outside = some(400, 4.0, 0), some(300, 2.0, 1)
    a, b = (ood(inside, outside, seed=3, replicates=200) for _ in range(2))
    assert a.to_json() == b.to_json()
    for row in a.scores.values():
        for e in row.values():
            if e.value is not None:
                assert e.low is not None and e.high is not None and e.low <= e.value <= e.high


def test_symmetrised_kl_in_a_loop() -> None:
    inside, outside = some(200, 4.0, 0), some(150, 2.0, 1)
    h = [novelty_score("entropy", p).tolist() for p in (inside, outside)]
    for spacing in ("log", "linear"):
        binning = Binning(12, spacing)  # type: ignore[arg-type]
        edges = novelty.entropy_edges(6, 12, binning.spacing).tolist()
        counts = []
        for values in h:
            row = [0.5] * 12
            for v in values:
                b = sum(v > edge for edge in edges) - 1
                row[min(max(b, 0), 11)] += 1
            counts.append([c / sum(row) for c in row])
        want = sum((p - q) * math.log(p / q) for p, q in zip(*counts, strict=True))
        pair = (torch.tensor(h[0], dtype=torch.float64), torch.tensor(h[1], dtype=torch.float64))
        assert entropy_divergence(pair, 6, binning).value == pytest.approx(want)
        assert entropy_divergence((pair[1], pair[0]), 6, binning).value == pytest.approx(want)
    assert "12 linear bins from 0" in binning.describe(6)


def test_equal_populations_have_zero_in_the_interval() -> None:
    a, b = (novelty.entropy(4 * torch.randn(500, 6, generator=torch.Generator().manual_seed(s))) for s in (0, 1))
    e = entropy_divergence((a, b), 6, Binning(), Resampling(0, 200))
    assert e.value is not None and e.value > 0 and e.low == 0 and e.high is not None and e.high > 0


def test_bad_input() -> None:
    with pytest.raises(InputError, match="at least one item"):
        separated(torch.zeros(0), torch.zeros(3))
    with pytest.raises(InputError, match="NaN"):
        separated(torch.tensor([math.nan]), torch.zeros(3))
    with pytest.raises(InputError, match="6 classes and outside 4"):
        ood(some(5, 1.0, 0), predictions(torch.zeros(3, 4), torch.zeros(3, dtype=torch.long)))
    with pytest.raises(InputError, match="2 bins"):
        Binning(1)
    with pytest.raises(InputError, match="log or linear"):
        Binning(spacing="sqrt")  # type: ignore[arg-type]
