"""Diagnostics: what a network's loss surface says. They read a model; they own no training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from calibrant.diagnostics.pep_effect import PEPEffect, pep_effect

DIAGNOSTICS: dict[str, Callable[..., Any]] = {"pep_effect": pep_effect}
"""Name → the function that computes it."""

__all__ = ["DIAGNOSTICS", "PEPEffect", "pep_effect"]
