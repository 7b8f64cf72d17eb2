"""Networks side by side in words, each against the first: what is beyond noise, with intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from calibrant.cli.probes.results import Result
from calibrant.diagnostics.student import paired_difference, student
from calibrant.types import Estimate

SEEDS = (
    "Noise is that of the items or mini-batches, paired, for these networks; a claim about the methods behind them "
    "needs several seeds."
)


def compared(found: Sequence[Result], values: Sequence[Tensor], what: str) -> str:
    """Whether each network's `what` differs from the first's, beyond noise; empty for a single network."""
    first, said = found[0], []
    for other, theirs in zip(found[1:], values[1:], strict=True):
        if theirs.shape != values[0].shape:
            said.append(f"{other.name} was not measured on the same items as {first.name}: not compared.")
            continue
        d = paired_difference(values[0], theirs, len(found) - 1)
        e = d.estimate
        assert e.value is not None
        if e.low is None or e.high is None:
            said.append(
                f"{other.name}: {what} differs from {first.name}'s by {signed(e.value)}; one pair has no interval."
            )
        elif d.beyond:
            word = "lower" if e.value < 0 else "higher"
            ends = sorted((abs(e.low), abs(e.high)))
            said.append(
                f"{other.name}: {what} is {word} than {first.name}'s by {abs(e.value):.3g} "
                f"[{ends[0]:.3g}, {ends[1]:.3g}]: beyond noise."
            )
        else:
            inside = f"{signed(e.value)} [{signed(e.low)}, {signed(e.high)}]"
            said.append(f"{other.name} and {first.name}: {what} does not differ beyond noise ({inside}).")
    return " ".join(said)


def signed(value: float) -> str:
    return f"{value:+.3g}".replace("-", "\N{MINUS SIGN}")


def plain(value: float | None, digits: int = 3) -> str:
    """A number as tables print it; what is zero but for rounding is 0."""
    if value is None:
        return "–"
    return f"{value if abs(value) > 1e-12 else 0:.{digits}g}".replace("-", "\N{MINUS SIGN}")


def with_interval(e: Estimate | dict[str, Any], scale: float = 1.0, unit: str = "") -> str:
    """'12.3 [11.2, 13.4]'."""
    held = e.to_dict() if isinstance(e, Estimate) else e
    value, low, high = (held.get(k) for k in ("value", "low", "high"))
    if value is None:
        return "–"
    shown = f"{plain(scale * value)}{unit}"
    return shown if low is None or high is None else f"{shown} [{plain(scale * low)}, {plain(scale * high)}]"


def over(values: Tensor) -> Estimate:
    """Mean over items or mini-batches, with Student's interval."""
    return student(values.tolist(), "Student's t", (-math.inf, math.inf))
