"""The panel as a torchmetrics `Metric`, for a training loop: update(logits, labels), compute() → dict of floats.

    panel = CalibrationPanel(num_classes=10)
    for x, y in loader:
        panel.update(model(x), y)
    panel.compute()["ece"]

Logits are reduced to scores at once and never kept. With `exact=True` the scores of all items are kept (about 50 bytes
each) and the values are those of `calibrant.evaluate`. With `exact=False` the state has a fixed size (`metrics.stream`)
and ranking metrics are within its bounds. All states are sums or concatenations, so that after torchmetrics'
synchronisation several processes give the result of one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric

from calibrant.errors import InputError
from calibrant.functional.inputs import predictions
from calibrant.functional.probabilities import look_like_probabilities, warn_of_probabilities
from calibrant.functional.scores import Classwise, Scores, reduce
from calibrant.metrics.evaluate import chosen_metrics, point_estimates
from calibrant.metrics.panel import Panel
from calibrant.metrics.stream import MEANS, RUNGS, StreamPanel, StreamState, state

_ITEMS = ("labels", "predicted", "confidence", "log_error", "log_p_label", "brier")
_SUMS = ("moments", "width", "ladder")
_CELLS = ("count", "confidence", "positive")


class CalibrationPanel(Metric):
    """Metrics by name. A value that does not exist (AUROC when all items are correct) is nan."""

    full_state_update = False
    is_differentiable = False

    def __init__(
        self, num_classes: int, metrics: Sequence[str] | None = None, bins: int = 15, exact: bool = True, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        if num_classes < 2:
            raise InputError(f"num_classes={num_classes}; at least two are needed")
        self.num_classes, self.bins, self.exact = num_classes, bins, exact
        self.metrics = tuple(m.name for m in chosen_metrics(metrics))
        self._suspected = True  # until a batch cannot be probabilities
        if exact:
            for name in _ITEMS:
                self.add_state(f"item_{name}", default=[], dist_reduce_fx="cat")
        else:
            shapes = {"moments": (len(MEANS), 3), "width": (4, bins), "ladder": (4, RUNGS)}
            for name in _SUMS:
                self._total(f"sum_{name}", *shapes[name])
            for name in ("n", "impossible"):
                self._total(f"sum_{name}")
        for name in _CELLS:
            self._total(f"cell_{name}", num_classes, bins)

    def _total(self, name: str, *shape: int) -> None:
        self.add_state(name, default=torch.zeros(shape, dtype=torch.float64), dist_reduce_fx="sum")

    def update(self, logits: Tensor, labels: Tensor) -> None:
        """One batch: logits [N, K], labels [N]."""
        p = predictions(logits, labels, doubt=False)
        assert p.logits is not None
        self._suspected = self._suspected and look_like_probabilities(p.logits, p.binary)
        scores = reduce(p, self.bins)
        if scores.k != self.num_classes:
            raise InputError(f"these logits have {scores.k} classes, the panel was made for {self.num_classes}")
        assert scores.classwise is not None
        for name in _CELLS:
            self._add(f"cell_{name}", getattr(scores.classwise, name))
        if self.exact:
            for name in _ITEMS:
                getattr(self, f"item_{name}").append(getattr(scores, name).to(self.device))
            return
        found = state(scores)
        for name in (*_SUMS, "n", "impossible"):
            self._add(f"sum_{name}", torch.as_tensor(getattr(found, name), dtype=torch.float64))

    def _add(self, name: str, increment: Tensor) -> None:
        setattr(self, name, getattr(self, name) + increment.to(self.device))

    def compute(self) -> dict[str, float]:
        """Name → value over all batches of all processes."""
        panel = Panel(self._scores()) if self.exact else StreamPanel(self._state())
        values = {name: e.value for name, e in point_estimates(chosen_metrics(self.metrics), panel).items()}
        if self._suspected:
            warn_of_probabilities()
        return {name: math.nan if found is None else found for name, found in values.items()}

    def _classwise(self) -> Classwise:
        return Classwise(*(getattr(self, f"cell_{name}").cpu() for name in _CELLS))

    def _joined(self, name: str) -> Tensor:
        # torchmetrics holds a list before synchronisation and one tensor after it
        column: Tensor | list[Tensor] = getattr(self, f"item_{name}")
        if len(column) == 0:
            raise InputError("compute() before any update(): there are no items")
        return (column if isinstance(column, Tensor) else torch.cat(column)).cpu()

    def _summed(self, name: str) -> Tensor:
        total: Tensor = getattr(self, f"sum_{name}")
        return total.cpu()

    def _scores(self) -> Scores:
        items: dict[str, Any] = {name: self._joined(name) for name in _ITEMS}
        correct = items["predicted"] == items["labels"]
        return Scores(**items, correct=correct, k=self.num_classes, bins=self.bins, classwise=self._classwise())

    def _state(self) -> StreamState:
        n, impossible = (int(self._summed(name)) for name in ("n", "impossible"))
        if n == 0:
            raise InputError("compute() before any update(): there are no items")
        sums: dict[str, Any] = {name: self._summed(name) for name in _SUMS}
        return StreamState(
            **sums,
            k=self.num_classes,
            bins=self.bins,
            about="top label",
            n=n,
            impossible=impossible,
            classwise=self._classwise(),
            grouped=False,
        )
