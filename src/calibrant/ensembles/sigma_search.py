"""Where to look for σ*: the paper's golden section with guards (PEP §3.1), and a first guess for the bracketing one.

Near zero the gain is as small as σ², and the odd terms of one draw of the noise may outweigh it: its sign there says
nothing about where the peak is. So both look beyond the range before they call σ = 0 the best.
"""

from __future__ import annotations

import math
from dataclasses import replace

from calibrant.ensembles.sigma import Curve
from calibrant.functional.search import Search, crest, golden

SEARCHES = ("bracket", "golden")

FLAT = 1e-5
"""Nats an item: two σ whose likelihoods differ by less are equally good, and the search is over. So is σ = 0, then."""


def golden_section(curve: Curve, low: float, high: float, top: float, iterations: int) -> Search:
    """Golden section on linear σ; a maximum at the border of the range moves it, up to `top`."""

    def likelihood(sigma: float) -> float:
        return curve.at(sigma).log_likelihood

    found = golden(likelihood, low, high, iterations)
    if found.interval[0] == low and (sigma := _beyond(curve, found.value, high, top)) is not None:
        low, high = sigma / 4, min(sigma * 4, top)
        found = golden(likelihood, low, high, iterations)
    while not found.interior and found.interval[1] == high and high < top:  # the border is not a maximum
        low, high = found.interval[0], min(high * 4, top)
        found = golden(likelihood, low, high, iterations)
        found = replace(found, interior=found.interval[1] < high)
    return found


def _beyond(curve: Curve, best: float, high: float, top: float) -> float | None:
    """A σ past the range that is better than all in it, looked for in large steps until the likelihood falls."""
    sigma, best = high, max(best, curve.at(0.0).log_likelihood)
    while sigma <= top:
        value = curve.at(sigma).log_likelihood
        if value > best + FLAT:
            return sigma
        if best - value > 0.05:
            return None
        sigma *= 4
    return None


def first_guess(curve: Curve, low: float, high: float, top: float) -> tuple[float, float]:
    """Where to start and by which factor to step: a quarter of the data and one pair of members tell.

    They scan upwards until the likelihood falls (PEP Fig. 1: beyond the peak it does so dramatically).
    """
    rough = curve.rough(share=min(1.0, max(0.25, 200 / len(curve.labels))), members=min(2, curve.ensemble.size))
    if len(rough.labels) == len(curve.labels):
        rough.seen[0.0] = curve.at(0.0)  # all of the data: the network itself is known there
    start = (low * high) ** 0.5
    values = {0.0: rough.at(0.0).log_likelihood}
    sigma, best = start, 0.0
    while sigma <= top:
        values[sigma] = rough.at(sigma).log_likelihood
        if values[sigma] > values[best]:
            best = sigma
        elif values[best] - values[sigma] > max(0.05, 2 * (values[best] - values[0.0])):
            break
        sigma *= 2
    sigma = start / 3
    while best in (0.0, start, 3 * sigma) and sigma >= low:
        values[sigma] = rough.at(sigma).log_likelihood
        best = sigma if values[sigma] > values[best] else best
        sigma /= 3
    curve.passes += round(rough.passes * len(rough.labels) / len(curve.labels))
    curve.rejected += rough.rejected
    curve.seen |= {s: point for s, point in rough.seen.items() if not math.isfinite(point.log_likelihood)}
    if best == 0:
        return start, 3.0
    below, above = (max(s for s in values if s < best), min((s for s in values if s > best), default=0.0))
    return (crest(values, below, best, above) if above else best), 1.4
