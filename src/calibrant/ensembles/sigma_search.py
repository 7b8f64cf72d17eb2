"""Search for σ* (PEP Eq. 8): the paper's golden section with safeguards (PEP §3.1), or a bracketing search.

Near zero the gain is of order σ², and the odd terms of one draw of the noise may outweigh it. Its sign there tells
nothing about the position of the peak, so both searches look beyond the range before they return σ = 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from calibrant.display import Rows, Shown
from calibrant.ensembles.perturbation import precision_note
from calibrant.ensembles.sigma import Curve, SigmaPoint
from calibrant.errors import InputError
from calibrant.functional.search import Search, bracket, crest, golden

SEARCHES = ("bracket", "golden")

FLAT = 1e-5
"""Nats per item. Two σ whose likelihoods differ by less are equally good, and the search ends; σ = 0 is preferred."""

GROWTH = 64.0
"""The searches may follow a maximum beyond the given range, up to 64 times its upper end."""


@dataclass(frozen=True)
class Certificate(Shown):
    """The record of the search, from which σ* can be checked without running it again."""

    search: str
    members: int  # number of members in the search; the predictor may have more
    nll_at_zero: float
    nll: float
    interval: tuple[float, float]  # contains σ*, up to the tolerance of the search
    interior: bool  # False: the maximum is at the border of the allowed range
    probes: tuple[tuple[float, float], ...]  # (σ, mean log-likelihood), in order
    rejected: int  # number of probes at which the perturbed network was not finite
    passes: int  # number of forward passes over the calibration set
    notes: tuple[str, ...] = ()
    curve: tuple[SigmaPoint, ...] = ()  # everything measured at each probe, in the order of σ

    @classmethod
    def restored(cls, body: Mapping[str, Any]) -> Certificate:
        """Return the certificate from JSON, which has no −inf and no NaN: a rejected probe lacks these numbers."""
        rejected = {"log_likelihood": -math.inf, "standard_error": math.nan}
        points = ({**rejected, **{k: v for k, v in p.items() if v is not None}} for p in body.get("curve", ()))
        curve = tuple(SigmaPoint(**{**p, "members": tuple(p["members"])}) for p in points)
        pairs = {"interval": tuple(body["interval"]), "probes": tuple(map(tuple, body["probes"]))}
        return cls(**{**body, **pairs, "notes": tuple(body["notes"]), "curve": curve})

    def _shown(self) -> tuple[str, Rows]:
        low, high = self.interval
        rows = [
            ("σ lies in", f"[{low:.3g}, {high:.3g}]" + ("" if self.interior else ", at the border of the search")),
            ("search", f"{self.search}, {len(self.probes)} values of σ, {self.passes} passes over the data"),
            *(("note", note) for note in self.notes),
        ]
        return f"NLL {self.nll_at_zero:.4f} → {self.nll:.4f} with {self.members} members, where σ was fitted", rows


def find_sigma(
    curve: Curve, low: float, high: float, *, search: str, iterations: int, tolerance: float
) -> tuple[float, Certificate]:
    """Return σ*, or 0 if no σ beats the model itself, and the certificate of the search.

    The golden search takes `iterations`, the bracketing one stops at `tolerance` (relative, in σ)."""
    zero, top = curve.at(0.0), high * GROWTH
    if not math.isfinite(zero.log_likelihood):
        raise InputError("the model's own outputs are not finite on the calibration data; check its input and weights")

    def likelihood(sigma: float) -> float:
        return curve.at(sigma).log_likelihood

    if search == "golden":
        found = golden_section(curve, low, high, top, iterations)
    elif search == "bracket":
        first, step = first_guess(curve, low, high, top)
        found = bracket(
            likelihood, zero.log_likelihood, first, low=low, limit=top, factor=step, tolerance=tolerance, flat=FLAT
        )
    else:
        raise InputError(f"search={search!r} is unknown; use bracket or golden")
    # a smaller gain is rounding, and the model itself costs one pass instead of m
    sigma = found.best if found.value > zero.log_likelihood + FLAT else 0.0
    return sigma, Certificate(
        search=search,
        members=curve.ensemble.count,
        nll_at_zero=-zero.log_likelihood,
        nll=-curve.at(sigma).log_likelihood,
        interval=found.interval,
        interior=found.interior and sigma > 0,
        probes=((0.0, zero.log_likelihood), *found.probes),
        rejected=curve.rejected,
        passes=curve.passes,
        notes=_notes(found, sigma, curve, low),
        curve=curve.points(),
    )


def _notes(found: Search, sigma: float, curve: Curve, low: float) -> tuple[str, ...]:
    notes = []
    if sigma == 0:
        notes.append(f"no σ beats the model itself on this data by more than {FLAT:g} nats per item: σ = 0")
    elif not found.interior:
        notes.append(f"the maximum lies at the border of the range, σ = {sigma:.3g}: widen `range`")
    if curve.rejected:
        notes.append(f"{curve.rejected} probe(s) rejected: the perturbed network was not finite")
    if curve.autocast is not None:
        notes.append(f"likelihoods were measured under {str(curve.autocast).removeprefix('torch.')} autocast")
    if lost := precision_note(curve.ensemble.parameters, sigma or low):
        notes.append(lost)
    return tuple(notes)


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
