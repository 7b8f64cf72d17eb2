"""Intra-order-preserving maps keep the whole order of the classes and find a known bend."""

from __future__ import annotations

import torch

import calibrant
from calibrant.posthoc.order_preserving import increasing


def test_g_is_the_integral_of_its_slopes() -> None:
    knots = torch.tensor([-3.0, -1.0, 0.5]).double()
    slopes = torch.tensor([2.0, 0.5, 1.0, 3.0]).double()
    x = torch.tensor([-4.0, -3.0, -2.0, -1.0, 0.0, 0.5, 1.5]).double()
    assert increasing(x, knots, slopes).tolist() == [-2.0, 0.0, 0.5, 1.0, 2.0, 2.5, 5.5]


def test_order_is_kept_whole_and_a_bend_that_temperature_cannot_follow_is_found() -> None:
    g = torch.Generator().manual_seed(0)
    log_p = torch.log_softmax(3 * torch.randn(12_000, 6, generator=g, dtype=torch.float64), 1)
    bend = torch.where(log_p < -3, -3 + 0.2 * (log_p + 3), log_p)  # the rare are far more likely than said
    y = torch.multinomial(torch.softmax(bend, 1), 1, generator=g)[:, 0]
    p = calibrant.predictions(log_p, y)
    m, t = (calibrant.fit(name, p) for name in ("order_preserving", "temperature"))
    assert torch.equal(m(log_p).argsort(1), log_p.argsort(1))
    truth = torch.softmax(bend, 1)
    away, straight = (float((torch.softmax(f(log_p), 1) - truth).abs().mean()) for f in (m, t))
    assert away < 0.006 < straight
