"""Rankings with few errors: the interval of AUROC covers, and intervals that would not are null, with a reason."""

from __future__ import annotations

import numpy as np
import pytest

import calibrant
from calibrant.metrics.bca import NEWCOMBE, newcombe
from calibrant.metrics.intervals import caveats_line

DRAWN = ["aupr_success", "aupr_error", "aurc", "eaurc", "fpr95"]


def file(n: int, errors: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities of two classes and labels; errors are less sure, as a rule."""
    rng = np.random.default_rng(seed)
    wrong = np.arange(n) < errors
    c = 0.5 + 0.5 * rng.beta(np.where(wrong, 2.0, 6.0), 2.0)
    return np.stack([c, 1 - c], 1), wrong.astype(int)


@pytest.mark.parametrize(("auroc", "errors", "correct"), [(0.5, 3, 3), (0.93, 5, 195), (0.2, 40, 4), (1.0, 3, 97)])
def test_newcombe_s_ends_are_the_roots_of_his_quartic(auroc: float, errors: int, correct: int) -> None:
    theta, middle = np.poly1d([1, 0]), (errors + correct) / 2 - 1
    both = (2 - theta) * (1 + theta)
    variance = theta * (1 - theta) * (both + middle * ((1 - theta) * (1 + theta) + theta * (2 - theta)))
    roots = (errors * correct * (auroc - theta) ** 2 * both - 1.959964**2 * variance).roots
    inside = sorted(r.real for r in roots if abs(r.imag) < 1e-9 and -1e-9 <= r.real <= 1 + 1e-9)
    assert newcombe(auroc, errors, correct, 0.95) == pytest.approx((inside[0], inside[-1]), abs=1e-6)


@pytest.mark.parametrize("n", [100, 200, 300])
def test_auroc_s_interval_covers_at_97_percent_accuracy(n: int) -> None:
    """The bootstrap held the truth in 83 to 89% of such trials."""
    rng = np.random.default_rng(n)
    c = 1 - 0.5 * rng.beta(0.25, 3.9, 200_000)  # calibrated: right with probability c
    order = np.argsort(c)
    bad = (1 - c)[order]
    truth = float((c[order] * (np.cumsum(bad) - bad / 2)).sum() / (c.sum() * bad.sum()))
    assert c.mean() == pytest.approx(0.97, abs=0.002)
    held = made = 0
    for _ in range(200):
        drawn = c[rng.integers(len(c), size=n)]
        y = (rng.random(n) > drawn).astype(int)
        found = calibrant.evaluate(probs=np.stack([drawn, 1 - drawn], 1), labels=y, metrics=["auroc"])["auroc"]
        if found.low is not None:
            made += 1
            held += found.low <= truth <= found.high
    assert made > 80 and held >= 0.93 * made, (held, made)


@pytest.mark.parametrize(("errors", "auroc", "others"), [(2, False, False), (3, True, False), (10, True, True)])
@pytest.mark.parametrize("wrong", [True, False])
def test_too_few_errors_give_no_interval_and_a_reason(errors: int, auroc: bool, others: bool, wrong: bool) -> None:
    p, y = file(120, errors if wrong else 120 - errors)
    found = calibrant.evaluate(probs=p, labels=y)
    for name, exists in [("auroc", auroc), *((m, others) for m in DRAWN)]:
        assert found[name].value is not None and (found[name].low is not None) == exists, name
        if not exists:
            assert (
                found[name].reason
                == f"fewer than {3 if name == 'auroc' else 10} errors or correct answers: no interval"
            )


def test_errors_in_a_group_count_once() -> None:
    p, y = file(300, 60)
    within = np.arange(300) // 20  # all errors in three groups
    found = calibrant.evaluate(probs=p, labels=y, group=within)
    for name in ("auroc", *DRAWN):
        assert found[name].low is None and "fewer than 10" in str(found[name].reason), name
    spread = calibrant.evaluate(probs=p, labels=y, group=np.arange(300) % 30)
    assert spread["auroc"].low is not None and "groups" in str(spread["auroc"].method)


def test_a_report_names_intervals_that_are_too_short() -> None:
    p, y = file(400, 12)
    few = calibrant.evaluate(probs=p, labels=y)
    assert str(few["auroc"].method).startswith(NEWCOMBE)
    assert "may cover less than 90%" in str(few["aurc"].method)
    line = str(caveats_line(few))
    assert "nll" in line and "aurc" in line and "auroc" not in line and "less than 90%" in line
    assert "may cover less than 90%" in repr(few)
    p, y = file(400, 100)
    many = calibrant.evaluate(probs=p, labels=y)
    assert "bootstrap" in str(many["auroc"].method)
    assert caveats_line(many) is None


def test_differences_of_rankings_of_few_errors_are_null() -> None:
    p, y = file(200, 6)
    z = np.log(p)
    rows = calibrant.compare(z, z + np.random.default_rng(1).normal(0, 0.1, z.shape), y, replicates=50)
    for name in ("auroc", *DRAWN):
        assert rows[name].difference is not None and rows[name].low is None and "fewer than" in str(rows[name].reason)
    assert rows["nll"].low is not None
