"""The one rule that decides whether a measurement reproduces a paper.

We judge a *difference*, method minus baseline, paired by seed; absolute numbers stand beside the paper's without a
verdict. Let r be the difference that the paper reports, and [low, high] the 95% interval of ours over seeds.

- *reproduced*: at least 3 seeds, the paper's sign, the interval excludes 0, and the mean is at least r/2
- *direction only*: the same, but the mean is less than r/2
- *not reproduced*: the interval lies on the other side of 0, or it contains 0 and excludes r/2
- *inconclusive*: it contains both 0 and r/2, or there are only 2 seeds
- *single run*, *other scale* (epochs, network or data are not the paper's), *not run*: no difference is judged

If a paper says only which of two is better, r is 0 and has the paper's sign; then nothing is "direction only".

A network that others trained takes the place of a seed: each network counts once, with its mean over the halvings of
its test set. A paper's claim about networks in general is judged on such networks too; a claim about its own networks
is *other scale* there.

The interval is Student's t over the seeds' differences. Three seeds say little about a variance. So below 5 seeds the
variance is pooled over the methods of the block, which share a baseline, with 4(n − k)/(k + 3) degrees of freedom for n
differences of k methods (a shared baseline correlates the methods by a half, so they count less than independent ones).
A method that varies more than the pool keeps its own variance and its own degrees of freedom. In simulations the
interval covers the truth in 97% of cases if all methods vary alike, in 94% for a method that varies three times as much
as the others, and in 95% if the others do not vary at all. Test items are not resampled: all seeds share them, so a
claim holds for this test set. Nothing is corrected for the number of comparisons: if forty differences are zero, about
one of them is called reproduced.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from calibrant.bench.seeds import FEWEST_SEEDS, half_width, moments

Word = Literal["reproduced", "direction only", "not reproduced", "inconclusive", "single run", "other scale", "not run"]
WORDS: tuple[Word, ...] = Word.__args__  # type: ignore[attr-defined]
POOLED_BELOW = 5
"""With this many seeds, a method's own variance is used."""


@dataclass(frozen=True)
class Spread:
    """A variance of differences, and its degrees of freedom."""

    variance: float
    freedom: float


@dataclass(frozen=True)
class Verdict:
    """`reported` and `mean` are differences, method minus baseline; without two seeds there is no interval."""

    word: Word
    sign: int  # of the paper's difference
    reported: float | None  # None where the paper says only which is better
    mean: float | None
    low: float | None
    high: float | None
    seeds: int

    @property
    def leaning(self) -> str:
        """On which side of 0 the interval lies, at any scale; of a single run, its sign."""
        if self.mean is None:
            return ""
        if self.low is None or self.high is None:
            return "as in the paper by one seed" if self.sign * self.mean > 0 else "the other way by one seed"
        ends = (self.sign * self.low, self.sign * self.high)
        return "as in the paper" if min(ends) > 0 else "the other way" if max(ends) < 0 else "open"


def pool(methods: Sequence[Sequence[float]]) -> Spread | None:
    """The pooled variance of several methods' differences from one baseline; None if no method has two seeds."""
    found = [m for m in methods if len(m) > 1]
    if not found:
        return None
    freedom = sum(len(m) - 1 for m in found)
    squares = math.fsum((v - moments(m)[0]) ** 2 for m in found for v in m)
    return Spread(squares / freedom, 4 * freedom / (len(found) + 3))


def interval(each: Sequence[float], pooled: Spread | None = None) -> tuple[float | None, float | None]:
    """The 95% interval of the mean difference over seeds; (None, None) for one seed."""
    if (spread := _spread(each, pooled)) is None:
        return None, None
    mean, half = moments(each)[0], half_width(spread.variance, spread.freedom, len(each))
    return mean - half, mean + half


def p_value(each: Sequence[float], pooled: Spread | None = None) -> float | None:
    """The two-sided p-value of "no difference" by the same test; below 5% if the interval excludes 0. None for one
    seed."""
    from scipy.stats import t

    if (spread := _spread(each, pooled)) is None:
        return None
    mean, error = moments(each)[0], math.sqrt(spread.variance / len(each))
    return 2 * float(t.sf(abs(mean) / error, spread.freedom)) if error else float(mean == 0)


def _spread(each: Sequence[float], pooled: Spread | None) -> Spread | None:
    _, deviation = moments(each)
    if deviation is None:
        return None
    own = Spread(deviation**2, len(each) - 1)
    if pooled is None or len(each) >= POOLED_BELOW or own.variance > pooled.variance:
        return own
    return pooled


def judge(
    each: Sequence[float],
    reported: float | None,
    *,
    sign: int | None = None,
    pooled: Spread | None = None,
    other_scale: bool = False,
) -> Verdict:
    """Apply the rule above to the differences of the seeds. `sign` is needed if `reported` is None."""
    assert sign or reported, "a difference has a sign"
    side = sign or (1 if (reported or 0) > 0 else -1)
    if not each:
        return Verdict("not run", side, reported, None, None, None, 0)
    (mean, _), (low, high) = moments(each), interval(each, pooled)
    word: Word
    if other_scale:
        word = "other scale"
    elif low is None or high is None:
        word = "single run"
    else:
        low_end, high_end = sorted((side * low, side * high))
        word = _word(side * mean, low_end, high_end, abs(reported or 0.0) / 2, len(each))
    return Verdict(word, side, reported, mean, low, high, len(each))


def _word(mean: float, low: float, high: float, half: float, seeds: int) -> Word:
    """The rule for a paper's difference that is positive; `half` is half of it."""
    if seeds < FEWEST_SEEDS:
        return "inconclusive"
    if low > 0:
        return "reproduced" if mean >= half else "direction only"
    return "not reproduced" if high < half else "inconclusive"
