"""What prediction sets under shift share: calibration scores, and a quantile that is chosen for each call."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from calibrant.decisions.choose import after_map
from calibrant.decisions.conformal import scorer
from calibrant.decisions.rule import Decisions, probability
from calibrant.errors import InputError
from calibrant.functional.inputs import predictions as checked
from calibrant.functional.tensors import as_tensor
from calibrant.posthoc.map import FittedMap
from calibrant.types import Predictions


class ShiftedSets:
    """Abstract: a subclass chooses the quantile and calls `up_to`.

    The calibration items must not be those that `map` was fitted on. `method`, `penalty` and `k_reg` are as in
    `calibrant.decide(…, set_coverage=…)`.
    """

    def __init__(
        self,
        predictions: Any,
        labels: Any = None,
        *,
        coverage: float = 0.9,
        method: str = "lac",
        penalty: float | None = None,
        k_reg: int | None = None,
        map: FittedMap | None = None,
    ) -> None:
        p = predictions if isinstance(predictions, Predictions) else checked(predictions, labels)
        if p.group is not None:
            raise InputError(
                f"{p.source + ': ' if p.source else ''}calibration items come in groups, and sets under shift count "
                "items as independent; give one item of each group, without `group`"
            )
        p, _ = after_map(p, map, allow_reuse=False)
        self.coverage = probability("coverage", coverage)
        self.map, self.n, self.k = map, p.n, p.k
        self.scorer = scorer(p, method, penalty=penalty, k_reg=k_reg)
        self.score, self.chance = self.scorer.of_labels(p)

    def up_to(self, logits: Any, quantile: Tensor) -> Decisions:
        """The sets for logits [N, K], with one quantile [1, 1] or one per item [N, 1]."""
        z = logits if isinstance(logits, Tensor) else as_tensor(logits, "logits")
        if z.ndim != 2 or z.shape[1] != self.k:
            raise InputError(f"logits have shape {tuple(z.shape)}; give [N, {self.k}], as at the calibration")
        p = Predictions(torch.zeros(len(z), dtype=torch.long, device=z.device), z, origin="applied")
        p = p if self.map is None else self.map.predictions(p)
        return self.scorer.up_to(p, quantile, torch.ones(1, 1)).without(z.isnan().any(-1).cpu())
