"""Less work by the clock and by chance, for tests that look at what is shown, written and refused, not at numbers."""

from __future__ import annotations

from functools import partialmethod

import pytest


def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """An audit's advice and the automatic choice try a few calibrators only, and intervals are rough."""
    from calibrant.posthoc.auto import Auto

    monkeypatch.setattr("calibrant.cli.audit.BUDGET", 0.2)
    monkeypatch.setattr(Auto, "__init__", partialmethod(Auto.__init__, budget=0.5))
    few_replicates(monkeypatch)


def few_replicates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Intervals from 100 replicates, wherever no number of them is given."""
    from calibrant.metrics.conventions import Resampling
    from calibrant.metrics.evaluate import evaluate

    assert Resampling.__init__.__defaults__ is not None and evaluate.__kwdefaults__ is not None
    seed, _, level = Resampling.__init__.__defaults__
    monkeypatch.setattr(Resampling.__init__, "__defaults__", (seed, 100, level))
    monkeypatch.setitem(evaluate.__kwdefaults__, "replicates", 100)
