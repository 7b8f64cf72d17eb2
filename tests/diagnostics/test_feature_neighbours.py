"""Covariance of neighbouring feature-map points (SS Eq. 9–13) against the closed form and a naive sum."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from calibrant.diagnostics import feature_neighbours
from calibrant.errors import InputError, NotApplicableError, UnknownNameError

RNG = torch.Generator().manual_seed(0)
SIDE = 9


class Map(nn.Module):
    """A network that ends in a map of one point, so that only the layers before it count."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layers(x).mean((2, 3))
        return out


def independent_points(side: int) -> Tensor:
    """Two items per pixel, ±e_p: over items the mean is 0 and the covariance exactly a multiple of the identity."""
    one = torch.eye(side * side, dtype=torch.float64).reshape(-1, 1, side, side)
    return torch.cat([one, -one])


def test_one_convolution_makes_neighbours_alike_as_eq_12_says() -> None:
    """Σ_l w_l w_{l+1} / Σ_l w_l², in two dimensions the kernel against itself, moved along either axis."""
    convolution = nn.Conv2d(1, 1, 3, bias=True, dtype=torch.float64)
    w = convolution.weight.detach()[0, 0]
    x = independent_points(SIDE)
    found = feature_neighbours(Map(convolution), [(x, torch.zeros(len(x)))], radius=5)
    r = found.correlation("layers.0").mean(0)
    for d in range(6):
        down = sum(float(w[a, b] * w[a + d, b]) for a in range(3 - d) for b in range(3))
        across = sum(float(w[a, b] * w[a, b + d]) for a in range(3) for b in range(3 - d))
        assert float(r[d]) == pytest.approx((down + across) / 2 / float((w * w).sum()), abs=1e-12), d
    assert abs(float(r[1])) > 1e-3 and float(r[3]) == pytest.approx(0, abs=1e-12), "a kernel of 3 reaches 2 points"


def test_naive_covariance_over_items_whatever_the_batches() -> None:
    x = torch.randn(6, 2, 4, 5, generator=RNG, dtype=torch.float64)
    found = feature_neighbours(Map(nn.Identity()), [(x[:4], x[:4, 0]), (x[4:], x[4:, 0])], radius=9)
    each = found.covariance["layers.0"]
    assert each.shape == (6, 4), "no further than the shorter side"
    m, i, d = x.mean(0), 3, 2
    down = [
        float((x[i, c, a, b] - m[c, a, b]) * (x[i, c, a + d, b] - m[c, a + d, b]))
        for c in range(2)
        for a in range(4 - d)
        for b in range(5)
    ]
    across = [
        float((x[i, c, a, b] - m[c, a, b]) * (x[i, c, a, b + d] - m[c, a, b + d]))
        for c in range(2)
        for a in range(4)
        for b in range(5 - d)
    ]
    by_hand = (sum(down) / len(down) + sum(across) / len(across)) / 2
    assert float(each[i, d]) == pytest.approx(by_hand, rel=1e-12)
    r = found.correlation("layers.0")
    assert r.mean(0).tolist() == pytest.approx((each.mean(0) / each[:, 0].mean()).tolist(), rel=1e-12)


def test_the_spread_over_items_covers_the_correlation() -> None:
    """95% intervals from `correlation` over 200 draws of 100 items, AR(1) along one axis: r(1) = (ρ + 0)/2."""
    from calibrant.cli.probes.wording import mean_over

    rho, hits = 0.6, 0
    for seed in range(200):
        rng = torch.Generator().manual_seed(seed)
        z = torch.randn(100, 1, 6, 6, generator=rng, dtype=torch.float64)
        for b in range(1, 6):
            z[..., b] = rho * z[..., b - 1] + (1 - rho**2) ** 0.5 * z[..., b]
        found = feature_neighbours(Map(nn.Identity()), (z, torch.zeros(100)), radius=1)
        e = mean_over(found.correlation("layers.0")[:, 1])
        assert e.low is not None and e.high is not None
        hits += e.low <= rho / 2 <= e.high
    assert 180 <= hits <= 198


def test_refusals() -> None:
    x, y = torch.randn(2, 3, 8, 8, generator=RNG), torch.zeros(2)
    with pytest.raises(InputError, match="at least 2"):
        feature_neighbours(Map(nn.Identity()), (x[:1], y[:1]))
    with pytest.raises(UnknownNameError, match="did you mean 'layers.0'"):
        feature_neighbours(Map(nn.Identity()), (x, y), layers=["layers.O"])
    with pytest.raises(NotApplicableError, match="has no feature maps"):
        feature_neighbours(nn.Sequential(nn.Flatten(), nn.Linear(192, 2)), (x, y))
