"""PEP fitted on maps of labels: σ* and its certificate against loops over pixels, in float64."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from calibrant import PEP
from calibrant.ensembles.sigma import sigma_curve
from calibrant.errors import InputError

K, IGNORED = 4, 255
G = torch.Generator().manual_seed(0)
X = torch.randn(12, 3, 5, K, generator=G)


def network() -> nn.Module:
    """An overconfident network, which noise helps. The number of classes equals the width of the image."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, K, 1)).eval()
    with torch.no_grad():
        model[2].weight *= 12
    return model


def labels() -> Tensor:
    """Labels drawn from a less confident network, with gaps: the first three images have no labels."""
    with torch.no_grad():
        p = (network()(X) / 6).softmax(1).movedim(1, -1)
    y = torch.multinomial(p.reshape(-1, K), 1, generator=torch.Generator().manual_seed(1)).reshape(12, 5, K)
    y[:3] = y[4, 2:] = y[7, :, 1] = IGNORED
    return y


Y = labels()
FIT: dict[str, Any] = {"range": (1e-3, 1.0), "where": "all"}


def likelihoods(pep: PEP, x: Tensor, y: Tensor) -> list[tuple[int, float]]:
    """Return (image, ln of the mean probability of the label) for each labelled pixel."""
    found, p = [], torch.zeros(())
    for j in range(pep.size):
        with pep.member(j) as member, torch.no_grad():
            p = p + torch.softmax(member(x).double(), 1) / pep.size
    for i in range(len(y)):
        for row in range(y.shape[1]):
            for column in range(y.shape[2]):
                if (label := int(y[i, row, column])) != IGNORED:
                    found.append((i, math.log(float(p[i, label, row, column]))))
    return found


def mean(values: list[tuple[int, float]]) -> float:
    return sum(v for _, v in values) / len(values)


@pytest.mark.parametrize("search", ["bracket", "golden"])
def test_sigma_is_the_best_for_the_labelled_pixels(search: Any) -> None:
    model = network()
    pep = PEP.fit(model, [(X[:5], Y[:5]), (X[5:], Y[5:])], ignore_index=IGNORED, search=search, **FIT)
    seen = pep.certificate
    assert seen is not None and pep.sigma > 0 and seen.nll < seen.nll_at_zero - 0.01
    searched = pep.at(pep.sigma, seen.members)
    assert -seen.nll == pytest.approx(mean(likelihoods(searched, X, Y)), rel=1e-6)
    assert -seen.nll_at_zero == pytest.approx(mean(likelihoods(pep.at(0.0, 1), X, Y)), rel=1e-6)
    grid = [mean(likelihoods(searched.at(s * pep.sigma), X, Y)) for s in (0.6, 0.8, 1.25, 1.6)]
    assert -seen.nll > max(grid) - 1e-3


def test_the_class_axis_and_the_pair_of_tensors_give_the_same_sigma() -> None:
    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = network()

        def forward(self, x: Tensor) -> Tensor:
            return self.network(x).permute(0, 2, 3, 1)

    front = PEP.fit(network(), (X, Y), ignore_index=IGNORED, **FIT)
    last = PEP.fit(Last(), (X, Y), ignore_index=IGNORED, class_axis=-1, **FIT)
    assert front.sigma == last.sigma > 0 and front.certificate == last.certificate


def test_the_error_of_a_likelihood_counts_images_not_pixels() -> None:
    pep = PEP(network(), 0.1, members=3, where="all")
    point = sigma_curve(pep, (X, Y), ignore_index=IGNORED).at(0.1)
    each = likelihoods(pep, X, Y)
    m, groups = mean(each), {}
    for image, value in each:
        groups[image] = groups.get(image, 0.0) + value - m
    n, total = len(groups), sum(v * v for v in groups.values())
    assert n == 9
    assert point.standard_error == pytest.approx(math.sqrt(total * n / (n - 1)) / len(each), rel=1e-9)


REFUSED: list[tuple[str, Callable[[], Any]]] = [
    ("reach 255 but the model has 4 classes.*ignore_index", lambda: PEP.fit(network(), (X, Y))),
    ("every label is ignored", lambda: PEP.fit(network(), (X[:3], Y[:3]), ignore_index=IGNORED)),
    (r"labels of shape \(12, 2, 4\)", lambda: PEP.fit(network(), (X, Y[:, :2]), ignore_index=IGNORED)),
    ("for 12 items", lambda: PEP.fit(network(), (X, Y[:, 0, 0].clamp_max(3)))),
    ("class_axis=7 does not exist", lambda: PEP.fit(network(), (X, Y), ignore_index=IGNORED, class_axis=7)),
]


@pytest.mark.parametrize(("says", "ask"), REFUSED)
def test_misfits_are_named(says: str, ask: Callable[[], Any]) -> None:
    with pytest.raises(InputError, match=says):
        ask()
