"""Search for σ*: the paper's golden section with safeguards (PEP §3.1), and a first guess for the bracketing search.

Near zero the gain is of order σ², and the odd terms of one draw of the noise may outweigh it. Its sign there tells
nothing about the position of the peak, so both searches look beyond the range before they return σ = 0.
"""

from __future__ import annotations

import math
from dataclasses import replace

from calibrant.ensembles.sigma import Curve
from calibrant.functional.search import Search, crest, golden

SEARCHES = ("bracket", "golden")

FLAT = 1e-5
"""Nats per item. Two σ whose likelihoods differ by less are equally good, and the search ends; σ = 0 is preferred."""


def golden_section(curve: Curve, low: float, high: float, top: float, iterations: int) -> Search:
    """Golden section on linear σ. If the maximum is at the border of the range, the range moves, up to `top`."""

    def likelihood(sigma: float) -> float:
        return curve.at(sigma).log_likelihood

    found = golden(likelihood, low, high, iterations)
    if found.interval[0] == low and (sigma := _beyond(curve, found.value, high, top)) is not None:
        low, high = sigma / 4, min(sigma * 4, top)
        found = golden(likelihood, low, high, iterations)
    while not found.interior and found.interval[1] == high and high < top:  # the maximum is beyond the border
        low, high = found.interval[0], min(high * 4, top)
        found = golden(likelihood, low, high, iterations)
        found = replace(found, interior=found.interval[1] < high)
    return found


def _beyond(curve: Curve, best: float, high: float, top: float) -> float | None:
    """Return a σ beyond the range that is better than all inside, or None. Large steps, until the likelihood falls."""
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
    """Return where to start the bracketing search, and the factor of its steps.

    A quarter of the data and one pair of members scan upwards until the likelihood falls, which it does dramatically
    beyond the peak (PEP Fig. 1).
    """
    rough = curve.rough(share=min(1.0, max(0.25, 200 / len(curve.labels))), members=min(2, curve.ensemble.size))
    if len(rough.labels) == len(curve.labels):
        rough.seen[0.0] = curve.at(0.0)  # the rough curve has all of the data, so the network itself is known
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
