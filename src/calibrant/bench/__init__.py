"""Experiments measured and filed: `measure` makes a cell, `Store` keeps it, `tables` reads it back."""

from __future__ import annotations

from calibrant.bench.store import Cell, Store
from calibrant.errors import suggest_names

__all__ = ["Cell", "Store"]

suggest_names(__name__)
