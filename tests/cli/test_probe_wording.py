"""Sentences that compare networks: what is beyond noise, what is not, and what cannot be compared."""

from __future__ import annotations

import torch

from calibrant.cli.probes.results import Result
from calibrant.cli.probes.wording import compared, compared_estimates

FOUND = [Result(name, {}, {}) for name in ("plain", "smooth")]
ITEMS = torch.tensor([1.0, 2.0, 3.0, 4.0])


def test_paired_values() -> None:
    lower = ITEMS - torch.tensor([1.0, 1.1, 0.9, 1.0])
    assert compared(FOUND, [ITEMS, lower], "the loss").startswith("smooth: the loss is lower than plain's by 1 [0.8")
    assert "does not differ beyond noise (0 [" in compared(FOUND, [ITEMS, ITEMS.flip(0)], "the loss")
    assert compared(FOUND, [ITEMS, ITEMS[:2]], "the loss") == (
        "smooth was not measured on the same items as plain: not compared."
    )
    assert "by +1, without an interval" in compared(FOUND, [ITEMS[:1], ITEMS[1:2]], "the loss")
    assert compared(FOUND[:1], [ITEMS], "the loss") == ""


def test_estimates_with_intervals_of_their_own() -> None:
    """Intervals that overlap do not hide a difference: ½ ± 0.1 and 0.65 ± 0.1 differ by 0.15 ± √2 · 0.1."""
    first, second = ({"value": v, "low": v - 0.1, "high": v + 0.1, "method": "t"} for v in (0.5, 0.65))
    assert compared_estimates(FOUND, [first, second], "ρ") == (
        "smooth: ρ is higher than plain's by 0.15 [0.00858, 0.291]: beyond noise."
    )
    missing = {"value": None, "low": None, "high": None, "reason": "all samples are alike"}
    assert compared_estimates(FOUND, [first, missing], "ρ") == (
        "smooth and plain: ρ cannot be compared (all samples are alike)."
    )
