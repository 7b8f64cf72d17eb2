"""Errors that other calibration toolkits make, each as a test that we get it right; and real networks' numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score, roc_auc_score

import calibrant
from calibrant.functional.binning import equal_mass


def evaluate(*args: object, **kwargs: object) -> calibrant.Report:
    return calibrant.evaluate(*args, intervals=False, **kwargs)  # type: ignore[arg-type]


def test_confidence_of_one_is_in_the_last_bin_not_in_a_phantom_one() -> None:
    probs = np.array([[1.0, 0.0]] * 3 + [[0.96, 0.04]] * 3)
    report = evaluate(probs=probs, labels=[1, 0, 0, 0, 0, 0])
    # one bin of six: mean confidence .98, accuracy 5/6; two bins would give |1 − 2/3|/2 + |.96 − 1|/2
    assert report["ece"].value == pytest.approx(0.98 - 5 / 6, abs=1e-12)


def test_an_edge_belongs_to_the_bin_below_it() -> None:
    probs = np.array([[0.6, 0.4], [0.59, 0.41]])  # .6 = 9/15 is the right end of the ninth bin, .59 is inside it
    assert evaluate(probs=probs, labels=[0, 1])["ece"].value == pytest.approx(abs(0.595 - 0.5), abs=1e-12)


def test_float32_sums_do_not_drift_at_a_million_rows() -> None:
    n = 1_000_000
    generator = torch.Generator().manual_seed(0)
    z = torch.stack([torch.zeros(n), 3 + torch.randn(n, generator=generator)], 1)
    y = (torch.rand(n, generator=generator) < 0.9).long()
    p = torch.softmax(z.double(), 1).numpy()
    conf, hit = p.max(1), (p.argmax(1) == y.numpy()).astype(float)
    index = np.clip(np.ceil(conf * 15) - 1, 0, 14).astype(int)
    naive = np.abs(np.bincount(index, conf, 15) - np.bincount(index, hit, 15)).sum() / n
    assert evaluate(z, y)["ece"].value == pytest.approx(naive, abs=1e-12)


def test_logits_inside_zero_and_one_are_logits() -> None:
    z, y = np.array([[0.9, 0.1], [0.2, 0.8]]), [0, 1]
    expected = 1 / (1 + np.exp(-np.array([0.8, 0.6])))
    with pytest.warns(calibrant.CalibrantWarning, match="probs="):
        report = evaluate(z, y)
    assert report["gap"].value == pytest.approx(expected.mean() - 1, abs=1e-12)


def test_members_are_pooled_by_probability_not_by_summed_log_probabilities() -> None:
    p = np.array([[[0.99, 0.01]], [[0.4, 0.6]]])
    report = evaluate(np.log(p), [0])
    assert report["nll"].value == pytest.approx(-np.log((0.99 + 0.4) / 2), abs=1e-12)
    assert report.conventions["members"] == 2


def test_equal_mass_bins_do_not_depend_on_row_order() -> None:
    conf = torch.tensor([0.5] * 40 + [0.9] * 20).double()
    generator = torch.Generator().manual_seed(1)
    base = equal_mass(conf, 15)
    order = torch.randperm(60, generator=generator)
    assert torch.equal(equal_mass(conf[order], 15), base[order])


@pytest.mark.parametrize(("votes", "k"), [(100, 4), (100, 10), (10, 10)])
def test_equal_votes_tie_whatever_order_they_are_added_in(votes: int, k: int) -> None:
    """A forest's probabilities: log, softmax and sums round, but .4, .3, .2, .1 in any order ties at .4."""
    rng = np.random.default_rng(votes + k)
    truth = rng.dirichlet(np.full(k, 0.5), 3000)
    counts = np.stack([rng.multinomial(votes, q) for q in truth])
    y = np.array([rng.choice(k, p=q) for q in truth])
    top, right = counts.max(1), counts.argmax(1) == y
    report = evaluate(probs=counts / votes, labels=y)
    assert report["auroc"].value == pytest.approx(roc_auc_score(right, top), abs=1e-12)
    assert report["aupr_success"].value == pytest.approx(average_precision_score(right, top), abs=1e-12)
    assert report["aupr_error"].value == pytest.approx(average_precision_score(~right, -top), abs=1e-12)
    levels, which, size = np.unique(top, return_inverse=True, return_counts=True)
    bins = np.floor((np.cumsum(size) - size / 2) * 15 / 3000).astype(int).clip(0, 14)[which]
    signed = top / votes - right
    assert report["ece_mass"].value == pytest.approx(np.abs(np.bincount(bins, signed)).sum() / 3000, abs=1e-12)
    walk = [abs(signed[top <= level].sum()) / 3000 for level in levels]
    assert report["ks"].value == pytest.approx(max(walk), abs=1e-12)
    order = rng.permutation(3000)
    again = evaluate(probs=counts[order] / votes, labels=y[order])
    assert all(again[m].value == pytest.approx(report[m].value, abs=1e-12) for m in report)


def test_a_class_missing_from_the_labels_still_counts() -> None:
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.ones(3), 60)
    y = rng.integers(2, size=60)  # class 2 never occurs
    report = evaluate(probs=p, labels=y)
    total = 0.0
    for k in range(3):
        index = np.clip(np.ceil(p[:, k] * 15 - 1e-11) - 1, 0, 14).astype(int)
        total += np.abs(np.bincount(index, p[:, k] - (y == k), 15)).sum() / 60
    assert report["ece_classwise"].value == pytest.approx(total / 3, abs=1e-12)


def test_saturated_float32_confidences_keep_their_ranking() -> None:
    margin = torch.linspace(18, 60, 400)  # p_max is 1.0 in float32 for all of them
    z = torch.stack([torch.zeros(400), margin], 1)
    generator = torch.Generator().manual_seed(2)
    y = (torch.rand(400, generator=generator) < torch.linspace(0.5, 1, 400)).long()
    assert float(torch.softmax(z, 1).amax(1).min()) == 1.0
    expected = roc_auc_score((y == 1).numpy(), margin.numpy())
    assert evaluate(z, y)["auroc"].value == pytest.approx(expected, abs=1e-12)


def test_ten_thousand_apart_is_not_an_overflow() -> None:
    z = torch.tensor([[1e4, -1e4, 0.0], [0.0, 1e4, -1e4]])
    report = evaluate(z, [0, 2])
    assert report["nll"].value == pytest.approx(1e4, rel=1e-12)
    assert report["brier"].value == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_every_precision_is_read_as_it_is(dtype: torch.dtype) -> None:
    z = torch.randn(50, 7, generator=torch.Generator().manual_seed(0)).to(dtype)
    y = torch.arange(50).remainder(7).to(torch.uint8)
    assert evaluate(z, y)["nll"].value == pytest.approx(evaluate(z.double(), y)["nll"].value, abs=1e-12)


def test_a_hundred_thousand_classes() -> None:
    z = torch.randn(6, 100_000, generator=torch.Generator().manual_seed(0))
    y = z.argmax(1)
    report = evaluate(z, y)
    expected = -torch.log_softmax(z.double(), 1).amax(1).mean()
    assert report["nll"].value == pytest.approx(float(expected), abs=1e-12)
    assert report["ece_classwise"].value is not None


@pytest.mark.parametrize(
    ("name", "accuracy", "nll", "ece"),
    [
        ("cifar10_lenet5_netcal", 0.5308, 1.3699, 0.1079),
        ("cifar10_wrn16-4_netcal", 0.9109, 0.3782, 0.0537),
        ("cifar100_wrn16-4_netcal", 0.7543, 0.9564, 0.0581),
        ("cifar10_vgg16_plambda", 0.9359, 0.2571, 0.0398),
        ("cifar10_resnet18_torchuq", 0.9524, 0.1782, 0.0265),
        ("cifar10_resnet110_kerrigan", 0.9389, 0.2362, 0.0306),
        ("cifar10_resnet20_akamaster", 0.9173, 0.3727, 0.0532),
        ("cifar10_resnet32_akamaster", 0.9263, 0.3741, 0.0508),
        ("cifar10_resnet44_akamaster", 0.9310, 0.3332, 0.0469),
        ("cifar10_resnet56_akamaster", 0.9339, 0.3458, 0.0464),
        ("cifar100_resnet20_chenyaofo", 0.6883, 1.2253, 0.1034),
        ("cifar100_resnet32_chenyaofo", 0.7016, 1.3273, 0.1329),
        ("imagenet_nips17_efficientnet_lite0", 0.914, None, None),
    ],
)
def test_published_networks(big_data: Path, name: str, accuracy: float, nll: float | None, ece: float | None) -> None:
    with np.load(big_data / "logits" / f"{name}.npz") as file:
        key = "logits" if "logits" in file else "probs"
        p = calibrant.predictions(**{key: file[key]}, labels=file["labels"])
    report = evaluate(p)
    assert report["accuracy"].value == pytest.approx(accuracy, abs=5.1e-5)
    if nll is not None and ece is not None:
        assert report["nll"].value == pytest.approx(nll, abs=5.1e-5)
        assert report["ece"].value == pytest.approx(ece, abs=5.1e-5)
    else:
        assert report["gap"].value is not None and report["gap"].value < 0  # under-confident


@pytest.mark.parametrize("name", ["top1_ImageNet_timm", "top1_ImageNet_torchvision", "top1_markus93"])
def test_published_top1_files(big_data: Path, name: str) -> None:
    known = {"top1_markus93": {(0.700, 0.2116), (0.936, 0.0475), (0.731, 0.0235)}}.get(name)
    found = set()
    with np.load(big_data / "logits" / f"{name}.npz") as file:
        for net in sorted({key.rsplit("__", 1)[0] for key in file}):
            label, predicted, conf = (file[f"{net}__{part}"] for part in ("label", "pred", "conf"))
            p = calibrant.predictions(labels=label, predicted=predicted, confidence=conf)
            report = evaluate(p)
            assert report["nll"].value is None and "top-1" in str(report["nll"].reason)
            assert report["accuracy"].value is not None and report["ece"].value is not None
            found.add((round(report["accuracy"].value, 3), round(report["ece"].value, 4)))
    if known is not None:
        assert found == known
    else:
        assert all(0.7505 <= a <= 0.7985 and 0.0190 <= e <= 0.1230 for a, e in found)
