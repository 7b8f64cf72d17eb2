"""A network whose classes stand elsewhere, as torch's convolutions leave them ([N, K, H, W]), with its classes last."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from calibrant.functional.output import logits_of
from calibrant.functional.rows import classes_last


class ClassesLast(nn.Module):
    """`network`, asked as before; its logits [N, K, H, W] come out as [N, H, W, K], like all logits here."""

    def __init__(self, network: nn.Module, class_axis: int) -> None:
        super().__init__()
        self.network, self.class_axis = network, class_axis

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        return classes_last(logits_of(self.network(*args, **kwargs)), self.class_axis, "logits")
