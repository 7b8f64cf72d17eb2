"""The rule for verdicts: hand-made cases, and its error rates when the truth is known."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats

from calibrant.bench.verdict import WORDS, interval, judge, pool


@pytest.mark.parametrize(
    ("each", "reported", "word"),
    [
        ([-3.0, -3.1, -2.9], -4.0, "reproduced"),
        ([3.0, 3.1, 2.9], 4.0, "reproduced"),
        ([-1.9, -2.0, -2.1], -4.0, "reproduced"),  # just half of it
        ([-1.0, -1.1, -0.9], -4.0, "direction only"),
        ([1.0, 1.1, 0.9], -4.0, "not reproduced"),  # the other side
        ([-0.1, 0.1, 0.0], -4.0, "not reproduced"),  # nothing, and surely not half of it
        ([-4.0, 1.0, -3.0], -4.0, "inconclusive"),
        ([-3.0, -3.1], -4.0, "inconclusive"),  # two seeds are not enough
        ([-3.0], -4.0, "single run"),
        ([], -4.0, "not run"),
    ],
)
def test_the_rule_on_cases_made_by_hand(each: list[float], reported: float, word: str) -> None:
    found = judge(each, reported)
    assert found.word == word and found.seeds == len(each) and word in WORDS


def test_other_scale_takes_precedence_and_keeps_its_interval() -> None:
    found = judge([-3.0, -3.1, -2.9], -4.0, other_scale=True)
    assert found.word == "other scale" and found.low is not None and found.low < -3 < (found.high or 0)
    assert judge([-3.0], -4.0, other_scale=True).word == "other scale"
    assert judge([], -4.0, other_scale=True).word == "not run"


def test_a_claim_without_a_number_is_judged_by_its_sign() -> None:
    assert judge([-0.1, -0.11, -0.09], None, sign=-1).word == "reproduced"
    assert judge([0.1, 0.11, 0.09], None, sign=-1).word == "not reproduced"
    assert judge([-0.1, 0.11, 0.09], None, sign=-1).word == "inconclusive"


def test_the_interval_of_one_method_is_students_t() -> None:
    each = [0.3, 0.5, 0.1, 0.4]
    wanted = scipy.stats.ttest_1samp(each, 0.0).confidence_interval(0.95)
    for pooled in (None, pool([each])):  # a pool of one method changes nothing
        assert interval(each, pooled) == pytest.approx((wanted.low, wanted.high))
    many = [*each, 0.2]
    assert interval(many, pool([many, [0.0, 100.0]])) == interval(many)  # five seeds speak for themselves


def test_a_pool_narrows_the_interval_of_three_seeds_but_not_of_a_noisy_method() -> None:
    quiet, noisy = [0.0, 0.09, -0.09], [0.0, 1.0, -1.0]
    shared = pool([quiet, [0.2, 0.3, 0.1], [0.0, 0.1, -0.1], [0.5, 0.4, 0.6]])
    alone, together = interval(quiet)[1], interval(quiet, shared)[1]
    assert alone is not None and together is not None and together < 0.7 * alone
    high = interval(noisy, pool([quiet, noisy]))[1]
    assert high is not None and high > interval([0.0, 0.7, -0.7], pool([quiet, [0.0, 0.7, -0.7]]))[1]  # type: ignore[operator]
    assert pool([[1.0], []]) is None


@pytest.mark.parametrize(
    ("noise", "coverage"), [((1.0, 1.0, 1.0, 1.0), 0.97), ((1.0, 1.0, 1.0, 3.0), 0.94), ((0.0, 0.0, 0.0, 1.0), 0.95)]
)
def test_error_rates_over_three_seeds(noise: tuple[float, ...], coverage: float) -> None:
    """Four methods and their baseline, seeds shared. What is not there is called reproduced in fewer than one of 40
    cases, or one of 25 for a method of three times the noise; a true effect of that size is hardly ever denied. Methods
    without noise are maps of one network: they do not make another one look sure."""
    rng = np.random.default_rng(0)
    times, wrong, denied, found, covered = 1500, 0, 0, 0, 0
    for _ in range(times):
        base = rng.normal(size=3) * bool(noise[0])
        runs = [rng.normal(scale=s, size=3) - base for s in noise]
        shared = pool([r.tolist() for r in runs])
        last = runs[-1]
        size = 4.0 * noise[-1]
        wrong += judge(last.tolist(), size, pooled=shared).word in ("reproduced", "direction only")
        denied += judge((last + size).tolist(), size, pooled=shared).word == "not reproduced"
        found += judge((last + size).tolist(), size, pooled=shared).word == "reproduced"
        low, high = interval(last.tolist(), shared)
        covered += low is not None and high is not None and low <= 0 <= high
    assert wrong / times < (0.04 if noise[-1] == 3.0 else 0.03)
    assert denied / times < 0.01
    assert found / times > 0.7
    assert covered / times == pytest.approx(coverage, abs=0.015)
