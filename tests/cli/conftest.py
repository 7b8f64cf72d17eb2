"""What the tests of all verbs share."""

from __future__ import annotations

import pytest

from calibrant.cli import audit_advice


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """An audit's advice compares a few calibrators only: most pages are not about it."""
    monkeypatch.setattr(audit_advice, "BUDGET", 0.2)
