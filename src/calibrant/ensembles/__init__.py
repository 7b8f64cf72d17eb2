"""Predictors: one model or many, pooled. A new ensemble is one file and one line in the table."""

from __future__ import annotations

from typing import Any

from calibrant.ensembles.single import Single, predict

ENSEMBLES: dict[str, Any] = {}
"""Name → the class of an ensemble."""

__all__ = ["ENSEMBLES", "Single", "predict"]
