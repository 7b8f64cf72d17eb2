"""Laws over the table of metrics: what holds for every one of them, on any data."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import calibrant
from calibrant.functional.scores import Scores, merge, reduce
from calibrant.metrics import METRICS
from calibrant.metrics.panel import Panel

CLOSE = 1e-10


@st.composite
def predictions(draw: st.DrawFn) -> calibrant.Predictions:
    """A few items, some saturated, some tied, with at least one right and one wrong answer."""
    n, k = draw(st.integers(4, 40)), draw(st.integers(2, 6))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    z = rng.normal(size=(n, k)) * draw(st.sampled_from([0.5, 3.0, 40.0]))
    if draw(st.booleans()):
        z[n // 2 :] = z[: n - n // 2]
    y = rng.integers(k, size=n)
    y[0], y[1] = z[0].argmax(), (z[1].argmax() + 1) % k
    return calibrant.predictions(z, y)


def values(scores: Scores) -> dict[str, float]:
    panel = Panel(scores)
    return {name: float(m(panel)) for name, m in METRICS.items() if m.missing(panel) is None}


@settings(max_examples=30)
@given(predictions(), st.integers(0, 99))
def test_order_of_rows_does_not_matter(p: calibrant.Predictions, seed: int) -> None:
    order = torch.randperm(p.n, generator=torch.Generator().manual_seed(seed))
    assert values(reduce(p.take(order))) == pytest.approx(values(reduce(p)), abs=CLOSE)


@settings(max_examples=30)
@given(predictions())
def test_duplicating_the_data_changes_nothing(p: calibrant.Predictions) -> None:
    """AURC is a finite sum over coverages k/N, so it moves by O(1/N); a debiased ECE must move, because twice
    the items have less bias; everything else stays."""
    once, twice = values(reduce(p)), values(reduce(p.take(torch.arange(p.n).repeat(2))))
    assert twice.pop("ece_debiased") >= once.pop("ece_debiased") - CLOSE
    for name, value in once.items():
        tolerance = 1.5 / p.n if name in ("aurc", "eaurc") else CLOSE
        assert twice[name] == pytest.approx(value, abs=tolerance), name


@settings(max_examples=30)
@given(predictions(), st.integers(1, 3))
def test_merging_parts_is_evaluating_the_whole(p: calibrant.Predictions, cut: int) -> None:
    parts = [reduce(p.take(torch.arange(a, b))) for a, b in ((0, cut), (cut, p.n))]
    assert values(merge(parts)) == pytest.approx(values(reduce(p)), abs=CLOSE)


@settings(max_examples=30)
@given(predictions(), st.integers(0, 99))
def test_names_of_classes_do_not_matter(p: calibrant.Predictions, seed: int) -> None:
    assert p.logits is not None and p.k is not None
    new = torch.randperm(p.k, generator=torch.Generator().manual_seed(seed))
    logits = torch.empty_like(p.logits)
    logits[:, new] = p.logits
    renamed = calibrant.predictions(logits, new[p.labels])
    assert values(reduce(renamed)) == pytest.approx(values(reduce(p)), abs=CLOSE)


@settings(max_examples=30)
@given(predictions(), st.integers(0, 99))
def test_a_weight_is_a_repetition(p: calibrant.Predictions, seed: int) -> None:
    """Bins of equal mass stay those of the sample under weights, and classwise sums are kept per cell."""
    times = torch.randint(1, 4, (p.n,), generator=torch.Generator().manual_seed(seed))
    scores, repeated = reduce(p), reduce(p.take(torch.arange(p.n).repeat_interleave(times)))
    for name, m in METRICS.items():
        if name in ("ece_mass", "ece_classwise") or m.missing(Panel(scores)) is not None:
            continue
        assert float(m(scores, times[None].double())) == pytest.approx(float(m(repeated)), abs=CLOSE), name


@settings(max_examples=30)
@given(predictions(), st.floats(-50, 50))
def test_a_shift_of_all_logits_changes_nothing(p: calibrant.Predictions, shift: float) -> None:
    assert p.logits is not None
    moved = calibrant.predictions(p.logits + shift, p.labels)
    ours, theirs = values(reduce(p)), values(reduce(moved))
    for name in ("accuracy", "nll", "brier", "gap"):
        assert theirs[name] == pytest.approx(ours[name], abs=1e-7), name


@settings(max_examples=30)
@given(predictions())
def test_values_are_in_range_and_parts_add_up(p: calibrant.Predictions) -> None:
    v = values(reduce(p))
    for name, value in v.items():
        if name not in ("nll", "brier", "gap"):
            assert -CLOSE <= value <= 1 + CLOSE, name
    assert v["ece_over"] + v["ece_under"] == pytest.approx(v["ece"], abs=CLOSE)
    assert v["ece_over"] - v["ece_under"] == pytest.approx(v["gap"], abs=CLOSE)
    assert v["ece"] <= v["ece_l2"] + CLOSE <= v["ece_max"] + 2 * CLOSE
    assert abs(v["gap"]) <= v["ks"] + CLOSE
    assert v["ece_debiased"] <= v["ece"] + CLOSE


@settings(max_examples=30)
@given(predictions(), st.integers(1, 40))
def test_chunks_do_not_matter(p: calibrant.Predictions, rows: int) -> None:
    assert p.k is not None
    assert values(reduce(p, chunk=rows * p.k)) == pytest.approx(values(reduce(p)), abs=CLOSE)


@settings(max_examples=30)
@given(predictions(), st.integers(0, 99), st.integers(1, 40))
def test_scores_of_rows_equal_scores_of_a_copy(p: calibrant.Predictions, seed: int, chunk: int) -> None:
    assert p.k is not None
    some = torch.randint(p.n, (seed + 1,), generator=torch.Generator().manual_seed(seed))  # also more rows than items
    gathered, copied = reduce(p, rows=some, chunk=chunk * p.k), reduce(p.take(some))
    for name in ("labels", "predicted", "confidence", "log_error", "log_p_label", "brier"):
        assert torch.equal(getattr(gathered, name), getattr(copied, name)), name
