"""Sentences and numbers of a probe's section: whether networks differ beyond noise, each compared with the first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from calibrant.cli.probes.results import Result
from calibrant.diagnostics.intervals import (
    UNBOUNDED,
    Difference,
    independent_difference,
    paired_difference,
    student,
)
from calibrant.types import Estimate

SEEDS = (
    "Noise is that of the items or mini-batches of these networks; a claim about the methods behind them needs several "
    "seeds."
)


def compared(found: Sequence[Result], values: Sequence[Tensor], what: str) -> str:
    """Say whether each network's `what` differs from the first's, item by item; empty for a single network."""
    first, sentences = found[0].name, []
    for other, theirs in zip(found[1:], values[1:], strict=True):
        if theirs.shape == values[0].shape:
            sentences.append(_sentence(first, other.name, what, paired_difference(values[0], theirs, len(found) - 1)))
        else:
            sentences.append(f"{other.name} was not measured on the same items as {first}: not compared.")
    return " ".join(sentences)


def compared_estimates(found: Sequence[Result], estimates: Sequence[dict[str, Any]], what: str) -> str:
    """Say whether each network's number differs from the first's, where each number has an interval of its own."""
    first, *others = (Estimate(**e) for e in estimates)
    each = zip(found[1:], others, strict=True)
    return " ".join(
        _sentence(found[0].name, r.name, what, independent_difference(first, e, len(others))) for r, e in each
    )


def _sentence(first: str, other: str, what: str, difference: Difference) -> str:
    e = difference.estimate
    if e.value is None:
        return f"{other} and {first}: {what} cannot be compared ({e.reason})."
    if e.low is None or e.high is None:
        return f"{other}: {what} differs from {first}'s by {signed(e.value)}, without an interval."
    if not difference.beyond:
        interval = f"{signed(e.value)} [{signed(e.low)}, {signed(e.high)}]"
        return f"{other} and {first}: {what} does not differ beyond noise ({interval})."
    word = "lower" if e.value < 0 else "higher"
    low, high = sorted((abs(e.low), abs(e.high)))
    return f"{other}: {what} is {word} than {first}'s by {abs(e.value):.3g} [{low:.3g}, {high:.3g}]: beyond noise."


def signed(value: float) -> str:
    """Return a difference with its sign; 0 has none."""
    return f"{value:+.3g}".replace("-", "\N{MINUS SIGN}") if value else "0"


def plain(value: float | None, digits: int = 3) -> str:
    """Return a number as tables print it; rounding errors around zero become 0."""
    if value is None:
        return "–"
    return f"{value if abs(value) > 1e-12 else 0:.{digits}g}".replace("-", "\N{MINUS SIGN}")


def with_interval(e: Estimate | dict[str, Any], scale: float = 1.0, unit: str = "") -> str:
    """Return a value with its interval as tables print it: '12.3 [11.2, 13.4]'."""
    held = e.to_dict() if isinstance(e, Estimate) else e
    value, low, high = (held.get(k) for k in ("value", "low", "high"))
    if value is None:
        return "–"
    shown = f"{plain(scale * value)}{unit}"
    return shown if low is None or high is None else f"{shown} [{plain(scale * low)}, {plain(scale * high)}]"


def mean_over(values: Tensor) -> Estimate:
    """Return the mean over items or mini-batches with Student's interval."""
    return student(values.tolist(), "Student's t", UNBOUNDED)
