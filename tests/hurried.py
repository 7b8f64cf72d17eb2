"""Pages are run to see that they run: what they compare by the clock, they compare in less time."""

from __future__ import annotations

from functools import partialmethod

import pytest

from calibrant.cli import audit_advice
from calibrant.posthoc.auto import Auto


def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """The automatic choice and an audit's advice try a few calibrators only, unless a budget is given."""
    monkeypatch.setattr(audit_advice, "BUDGET", 0.2)
    monkeypatch.setattr(Auto, "__init__", partialmethod(Auto.__init__, budget=0.5))
