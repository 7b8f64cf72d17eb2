"""Aggregates over corruptions against loops (SS §3.1, Eq. 34–36), and properties of their intervals."""

from __future__ import annotations

import math

import pytest
import torch

from calibrant.errors import InputError
from calibrant.functional.inputs import predictions
from calibrant.functional.scores import Scores, reduce
from calibrant.metrics.conventions import Resampling
from calibrant.metrics.corruption import Key, corruption_report
from calibrant.metrics.evaluate import evaluate_scores

TYPES, SEVERITIES, N, K = ("fog", "snow", "frost"), (1, 2, 3, 4, 5), 300, 5


def logits_of(seed: int, sharp: float, weak: float = 1.0) -> tuple[dict[Key, torch.Tensor], torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(K, (N,), generator=generator)
    out = {}
    for i, c in enumerate(TYPES):
        for s in SEVERITIES:
            signal = weak * (4 - 0.5 * s - 0.3 * i) * torch.nn.functional.one_hot(y, K)
            out[c, s] = sharp * (signal + torch.randn(N, K, generator=generator))
    return out, y


def cells(seed: int = 0, sharp: float = 2.0, weak: float = 1.0) -> dict[Key, Scores]:
    found, y = logits_of(seed, sharp, weak)
    return {key: reduce(predictions(z, y), classwise=False) for key, z in found.items()}


def naive(z: torch.Tensor, y: torch.Tensor) -> tuple[float, float, float]:
    """(error, NLL, ECE) of one cell, item by item in Python floats."""
    wrong, loss = 0, 0.0
    conf, hit = [0.0] * 15, [0.0] * 15
    for row, label in zip(z.double().tolist(), y.tolist(), strict=True):
        top = max(row)
        total = sum(math.exp(v - top) for v in row)
        p = [math.exp(v - top) / total for v in row]
        guess = row.index(top)
        wrong += guess != label
        loss -= math.log(p[label])
        b = max(0, math.ceil(p[guess] * 15) - 1)
        conf[b] += p[guess]
        hit[b] += guess == label
    return wrong / len(y), loss / len(y), sum(abs(c - h) for c, h in zip(conf, hit, strict=True)) / len(y)


def test_plain_means_are_averages_over_types_and_severities() -> None:
    found, y = logits_of(0, 2.0)
    report = corruption_report(cells())
    each = {key: naive(z, y) for key, z in found.items()}
    for i, name in enumerate(("mean_error", "mean_nll", "mean_ece")):
        want = sum(row[i] for row in each.values()) / len(each)
        assert report.means[name].value == pytest.approx(want, abs=1e-6)
    for s in SEVERITIES:
        want = sum(each[c, s][1] for c in TYPES) / len(TYPES)
        assert report.by_severity[s]["nll"].value == pytest.approx(want, abs=1e-6)
    for c in TYPES:
        want = sum(each[c, s][2] for s in SEVERITIES) / len(SEVERITIES)
        assert report.by_type[c]["ece"].value == pytest.approx(want, abs=1e-6)
    assert report.cells["fog", 1]["accuracy"] == pytest.approx(1 - each["fog", 1][0])


def test_ss_eq_34_35_36() -> None:
    """mCE, mCNLL, mCECE: the mean over types of Σ_s of the model over Σ_s of the reference."""
    model, y = logits_of(0, 2.0)
    reference, y_reference = logits_of(0, 1.0, 0.8)
    assert torch.equal(y, y_reference)
    report = corruption_report(cells(0, 2.0), cells(0, 1.0, 0.8))
    for i, name in enumerate(("mce", "mcnll", "mcece")):
        ratios = []
        for c in TYPES:
            above = sum(naive(model[c, s], y)[i] for s in SEVERITIES)
            below = sum(naive(reference[c, s], y)[i] for s in SEVERITIES)
            ratios.append(above / below)
        assert report.normalised[name].value == pytest.approx(sum(ratios) / len(ratios), rel=1e-5)
        one = report.by_type["snow"][{"mce": "ce", "mcnll": "cnll", "mcece": "cece"}[name]]
        assert one.value == pytest.approx(ratios[1], rel=1e-5)
    assert set(report.means) == {"mean_error", "mean_nll", "mean_ece", "mean_auroc"}  # named apart from the ratios


def test_a_model_relative_to_itself_is_exactly_one() -> None:
    same = corruption_report(cells(), cells(), resampling=Resampling(0, 100)).normalised
    assert all(e.value == pytest.approx(1) for e in same.values())
    assert same["mce"].low is None and "same value" in str(same["mce"].reason)


def test_items_are_resampled_jointly() -> None:
    """Fifteen copies of one cell say no more than the cell: independent resampling would shrink the interval by √15."""
    z, y = logits_of(3, 2.0)
    one = z["fog", 3]
    copies = {key: reduce(predictions(one, y), classwise=False) for key in z}
    joint = corruption_report(copies, resampling=Resampling(0, 400)).means["mean_error"]
    alone = corruption_report({("fog", 3): copies["fog", 3]}, resampling=Resampling(0, 400)).means["mean_error"]
    assert joint.low == pytest.approx(alone.low) and joint.high == pytest.approx(alone.high)


def test_mean_auroc_of_one_cell_has_the_interval_of_auroc() -> None:
    found, y = logits_of(0, 2.0)
    scores = reduce(predictions(found["fog", 5], y))
    drawn = Resampling(0, 400)
    mean = corruption_report({("fog", 5): scores}, resampling=drawn).means["mean_auroc"]
    alone = evaluate_scores(scores, metrics=["auroc"], resampling=drawn)["auroc"]
    assert mean.value == pytest.approx(alone.value, abs=1e-12)
    assert (mean.low, mean.high) == pytest.approx((alone.low, alone.high), abs=0.1 * (alone.high - alone.low))


def test_intervals_hold_their_values() -> None:
    report = corruption_report(cells(), cells(0, 1.0, 0.8), resampling=Resampling(0, 300))
    rows = [report.means, *report.by_severity.values(), *report.by_type.values()]
    for row in rows:
        for name in ("mean_error", "mean_nll", "mean_auroc", "error", "nll", "auroc", "ce", "cnll"):
            if name in row:
                e = row[name]
                assert e.low <= e.value <= e.high and e.method, name
    assert report.means["mean_ece"].low is not None
    assert "reference's ECEs as given" in str(report.normalised["mcece"].method)
    again = corruption_report(cells(), cells(0, 1.0, 0.8), resampling=Resampling(0, 300))
    assert again.to_json() == report.to_json()


def test_mcece_takes_the_references_eces_as_given() -> None:
    """For one type it is the interval of the model's mean ECE divided by a constant. For several types it lies within
    the range of their intervals."""
    reference = cells(0, 1.0, 0.8)
    whole = corruption_report(cells(), reference, resampling=Resampling(0, 300))
    for c in TYPES:
        below = sum(corruption_report(reference).cells[c, s]["ece"] or 0 for s in SEVERITIES) / len(SEVERITIES)
        ece, ratio = whole.by_type[c]["ece"], whole.by_type[c]["cece"]
        for a, b in ((ece.low, ratio.low), (ece.value, ratio.value), (ece.high, ratio.high)):
            assert b == pytest.approx(a / below, rel=1e-9)
    mean, each = whole.normalised["mcece"], [whole.by_type[c]["cece"] for c in TYPES]
    assert min(e.low for e in each) <= mean.low < mean.high <= max(e.high for e in each)


def test_groups_are_drawn_whole() -> None:
    """Every item twice: with the pair as a group the interval is that of the single items."""
    found, y = logits_of(1, 2.0)
    single = {k: reduce(predictions(z, y), classwise=False) for k, z in found.items()}
    pairs = torch.arange(N).repeat(2)
    double = {
        k: reduce(predictions(z.repeat(2, 1), y.repeat(2), group=pairs), classwise=False) for k, z in found.items()
    }
    a, b = (corruption_report(c, resampling=Resampling(0, 400)).means["mean_nll"] for c in (single, double))
    assert b.high - b.low == pytest.approx(a.high - a.low, rel=0.1)


def test_bad_input() -> None:
    with pytest.raises(InputError, match="no cells"):
        corruption_report({})
    mixed = cells() | {("fog", 1): cells(9)["fog", 1]}
    with pytest.raises(InputError, match="not the same items"):
        corruption_report(mixed)
    some = {key: s for key, s in cells().items() if key[0] != "fog"}
    with pytest.raises(InputError, match="the reference lacks fog at severity 1"):
        corruption_report(cells(), some)


@pytest.mark.parametrize("resampling", [None, Resampling(0, 50)], ids=["values", "intervals"])
def test_ratios_that_do_not_exist_have_a_reason(resampling: Resampling | None) -> None:
    """The ratio of NLLs was taken of cells that have none, which was a KeyError."""
    found, y = logits_of(0, 2.0)
    right = {key: reduce(predictions(50.0 * torch.nn.functional.one_hot(y, K), y)) for key in found}
    mce = corruption_report(cells(), right, resampling=resampling).normalised["mce"]
    assert mce.value is None and "nothing to divide by" in str(mce.reason)
    found["fog", 1][0, y[0]] = -torch.inf
    broken = {key: reduce(predictions(z, y), classwise=False) for key, z in found.items()}
    for model, reference in ((broken, cells(weak=0.5)), (cells(weak=0.5), broken)):
        ratios = corruption_report(model, reference, resampling=resampling).normalised
        assert ratios["mcnll"].value is None and "impossible" in str(ratios["mcnll"].reason)
        assert ratios["mce"].value is not None and ratios["mcece"].value is not None
