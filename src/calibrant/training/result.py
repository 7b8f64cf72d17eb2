"""What `calibrant.train` returns: the record of the run (`metrics.json`) as a dict that shows its main results."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from calibrant.display import Rows, Shown
from calibrant.metrics.evaluate import evaluate
from calibrant.types import Predictions, Report


class TrainingResult(Shown, dict[str, Any]):
    """`result["metrics"]["test"]["ece"]` is a number; `result.report` has intervals, of the same predictions."""

    def __init__(self, record: Mapping[str, Any], predictions: Predictions, run: Path | None) -> None:
        super().__init__(record)
        self.predictions = predictions  # on the test split, or on the last split that the data has
        self.run = run  # the folder; None if nothing was kept

    @cached_property
    def report(self) -> Report:
        """Every metric of the predictions, with intervals."""
        return evaluate(self.predictions)

    @property
    def verdict(self) -> str:
        """The finding in one sentence: "overconfident: says 97%, is right 91%"."""
        return self.report.verdict

    def _shown(self) -> tuple[str, Rows]:
        title, rows = self.report._shown()
        return title, [*rows, ("split", self.predictions.split.value), ("run", str(self.run or "not kept"))]
