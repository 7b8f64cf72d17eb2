"""Measure the papers' experiments: `run` makes cells, `Store` keeps them, `tables` and `reproduction` read them."""

from __future__ import annotations

from calibrant.bench.store import Cell, Store
from calibrant.errors import suggest_names

__all__ = ["Cell", "Store"]

suggest_names(__name__)
