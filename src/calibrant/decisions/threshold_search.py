"""The three ways to a threshold: the boldest that keeps a risk, the one that accepts a share, or a given one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from calibrant.decisions import threshold
from calibrant.decisions.grouped import Grouped
from calibrant.decisions.rule import KNOWN_GROUPS, asked, cells_of, floor, rows_of, units_of
from calibrant.decisions.threshold import Chosen, Ordered, Threshold
from calibrant.errors import InputError
from calibrant.functional.binomial import Floats, clopper_pearson
from calibrant.functional.scores import Scores
from calibrant.functional.tensors import as_tensor
from calibrant.posthoc.map import FitRecord
from calibrant.types import Predictions

Items = Ordered | Grouped


@dataclass(frozen=True)
class ThresholdSearch:
    """Searches thresholds on predictions that the map has been applied to."""

    p: Predictions
    scores: Scores
    delta: float  # the promise holds with probability 1 − delta
    by: str | None  # None, "class" or "group": what has a promise of its own

    def keeping(self, risk: float, loss: Any) -> Threshold:
        """The boldest threshold that keeps the risk, for each cell."""
        per_item, scale, p_value, called = losses(self.scores, loss)
        if not 0 < risk < scale:
            raise InputError(f"risk={risk!r} must lie between 0 and the largest loss, {scale:g}")
        level = risk / scale
        least = threshold.needed(level, self.delta)
        ordered, names = self.ordered(per_item, p_value)
        most = max(o.units for o in ordered)
        if most < least:
            raise InputError(
                f"{self.where}{most} {self.kind}{'' if self.by is None else f' of each {self.by}'} are too few to "
                f"promise {self.aim(risk, called)}: {least} are needed, even if all of them are right"
                f"{'' if self.group is None else KNOWN_GROUPS}"
            )
        found = [o.choose(level, self.delta) for o in ordered]
        if not any(c.count for c in found):
            best = min(self.reachable(o) for o in ordered)
            raise InputError(
                f"{self.where}no threshold is sure to keep {self.aim(risk, called)}; the best reachable with these "
                f"{self.units:,} {self.kind} is {self.aim(best * scale, called, up=True)}; give more {self.kind}, or "
                f"{'ask for less' if called is None else 'allow more'} on other {self.kind} (a target taken from this "
                "message promises nothing about these)"
            )
        rule = self.rule(found, ordered, names, {"risk": level, "loss": called, "scale": scale, "new": None})
        table = None if loss is None else as_tensor(loss, "loss").double()
        return rule if table is None or table.ndim != 2 else replace(rule, loss=table)

    def reachable(self, items: Items) -> float:
        """The smallest risk that some threshold can be promised to keep (1: none can)."""
        return threshold.least_risk(lambda risk: items.choose(risk, self.delta).count > 0)

    def surest(self, share: float) -> Threshold:
        """Accept the surest share of each cell. No label is used, so the exact bound needs no correction."""
        from scipy.special import betaincinv

        ordered, names = self.ordered(1.0 - self.scores.correct.double().numpy(), threshold.binomial_p)
        found = [o.surest(share) for o in ordered]
        most = max(o.bound(c, self.delta) for o, c in zip(ordered, found, strict=True) if c.count)
        count, n, new = found[0].accepted, self.p.n, None
        if self.group is None and self.by is None and count < n:  # the threshold is one order statistic
            new = betaincinv(count + 1, n - count, [0.025, 0.975]).tolist()
        return self.rule(found, ordered, names, {"risk": most, "loss": None, "scale": 1.0, "new": new})

    def given(self, least: float) -> Threshold:
        """A threshold that was chosen without these items, with exact bounds of accuracy and coverage."""
        ordered, names = self.ordered(1.0 - self.scores.correct.double().numpy(), threshold.binomial_p)
        found = ordered[0].at(least)
        if not found.count:
            raise InputError(
                f"{self.where}no item has a confidence of {least:.12g} or more, so nothing is known about such items; "
                f"the surest has {float(ordered[0].confidence.max()):.6g}"
            )
        most = ordered[0].bound(found, self.delta)
        new = None if self.group is not None else [float(b) for b in clopper_pearson(found.count, self.p.n)]
        return self.rule([found], ordered, names, {"risk": most, "loss": None, "scale": 1.0, "new": new})

    def rule(
        self, found: list[Chosen], ordered: Sequence[Items], names: tuple[str, ...], promise: dict[str, Any]
    ) -> Threshold:
        count = sum(c.count for c in found)
        promise |= {
            "guarantee": 1 - self.delta,
            "coverage": sum(c.accepted for c in found) / self.p.n,
            "grouped": self.group is not None,
            "seen": sum(c.total for c in found) / count,
        }
        if self.by is not None:
            promise["cells"] = {
                name: {
                    "threshold": c.threshold,
                    "n": len(o.confidence),
                    "accepted": c.accepted,
                    "seen": c.total / c.count if c.count else None,
                }
                for name, c, o in zip(names, found, ordered, strict=True)
            }
        return Threshold(
            torch.tensor([c.threshold for c in found], dtype=torch.float64),
            by=self.by,
            groups=names if self.by == "group" else (),
            record=FitRecord(certificate=promise),
        )

    def ordered(self, loss: Floats, p_value: threshold.PValue) -> tuple[list[Items], tuple[str, ...]]:
        """The items of each cell."""
        cell, names = cells_of(self.by, self.p, self.scores.predicted)
        confidence, group = self.scores.confidence.numpy(), self.group
        rows = rows_of(cell, len(names))
        if group is None:
            return [Ordered.of(confidence[i], loss[i], p_value) for i in rows], names
        return [Grouped(confidence[i], loss[i], group[i]) for i in rows], names

    @property
    def group(self) -> NDArray[np.int64] | None:
        """The group of each item, if the promise is about groups; None if it is about items."""
        group = units_of(self.p, self.by)
        return None if group is None else group.numpy()

    @property
    def units(self) -> int:
        """The number of groups or items that the promise rests on."""
        return self.p.n if self.group is None else len(np.unique(self.group))

    @property
    def kind(self) -> str:
        """What `units` counts."""
        return "items" if self.group is None else "groups"

    @property
    def where(self) -> str:
        return f"{self.p.source}: " if self.p.source else ""

    def aim(self, risk: float, called: str | None, up: bool = False) -> str:
        """The accuracy or mean loss in words; with `up` it is what can be reached, so it is never rounded up."""
        if called is not None:
            return f"a mean {called} of {risk:.4g}"
        return f"an accuracy of {floor(1 - risk) if up else asked(1 - risk)}"


def losses(scores: Scores, loss: Any) -> tuple[Floats, float, Callable[..., Floats], str | None]:
    """Return the loss of each item in 0…1, the loss that 1 stands for, the p-value for such losses, and their name."""
    if loss is None:
        return 1.0 - scores.correct.double().numpy(), 1.0, threshold.binomial_p, None
    values: Tensor = as_tensor(loss, "loss").double()
    if values.ndim == 1 and len(values) == scores.n:
        if not bool(((values >= 0) & (values <= 1)).all()):
            raise InputError("loss of each item must lie in 0…1: divide it by its largest possible value")
        return values.numpy(), 1.0, threshold.hoeffding_bentkus_p, "loss"
    if values.shape != (scores.k, scores.k):
        raise InputError(
            f"loss has shape {tuple(values.shape)}; give a table of {scores.k} × {scores.k} (label, prediction), or "
            f"one loss for each of the {scores.n} items"
        )
    scale = float(values.max())
    if not bool((values >= 0).all()) or not 0 < scale < float("inf"):
        raise InputError("losses must be finite, 0 or more, and not all 0")
    each = values[scores.labels, scores.predicted].numpy() / scale
    two = bool(((values == 0) | (values == scale)).all())  # decided by the table, not by the losses that were seen
    return each, scale, threshold.binomial_p if two else threshold.hoeffding_bentkus_p, "loss"
