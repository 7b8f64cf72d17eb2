"""A rule decides what to do with each item, from its logits. Like a map it is frozen, and saved without pickle.

A subclass is a frozen dataclass of tensors (its numbers) and plain JSON values (its settings). It writes `decide`,
`sentence`, and for export `in_graph` and `formula`. A map in front belongs to the rule and is saved with it. A rule may
have one number for all items, one for each class, or one for each group of items (`by`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from numbers import Real
from os import PathLike
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from calibrant.display import Rows, Shown
from calibrant.errors import InputError, SplitError, warn
from calibrant.functional.inputs import numbered_groups
from calibrant.functional.pooling import pooled
from calibrant.functional.probabilities import look_like_probabilities
from calibrant.functional.segmentation import classes_back, classes_last
from calibrant.functional.tensors import as_tensor
from calibrant.posthoc import overlap
from calibrant.posthoc.map import FitRecord, FittedMap, Parameters
from calibrant.types import Predictions

LARGE = 0.2
"""Judging is refused if at least this share of the items that the rule was chosen on is among the judged items."""


@dataclass(frozen=True)
class Decisions(Shown):
    """One entry per item. `sets` and `action` are None if the rule has none."""

    accepted: Tensor  # bool: act on the answer; False: hand it to a person
    predicted: Tensor  # the likeliest class
    sets: Tensor | None = None  # [N, K] bool: the classes that may be the truth
    action: Tensor | None = None  # index into the rule's actions; −1 for an item whose logits are NaN

    def _shown(self) -> tuple[str, Rows]:
        n = self.accepted.numel()
        title = f"{n:,} decisions: {float(self.accepted.double().mean()):.1%} accepted" if n else "no decisions"
        rows = (
            [("classes in a set", f"{float(self.sets.sum()) / n:.2f} on average")]
            if n and self.sets is not None
            else []
        )
        return title, rows

    def reshaped(self, shape: Sequence[int], class_axis: int) -> Decisions:
        """Turn rows back into pixels: one entry per pixel, with the classes of a set at the axis of the logits."""
        action = None if self.action is None else self.action.reshape(shape)
        sets = None if self.sets is None else classes_back(self.sets.reshape(*shape, -1), class_axis)
        return Decisions(self.accepted.reshape(shape), self.predicted.reshape(shape), sets, action)

    def without(self, unknown: Tensor, abstain: int = -1) -> Decisions:
        """Hand the `unknown` items, whose logits are NaN, to a person; their sets hold every class."""
        if not bool(unknown.any()):
            return self
        sets = None if self.sets is None else self.sets | unknown[:, None]
        action = None if self.action is None else self.action.masked_fill(unknown, abstain)
        return replace(self, accepted=self.accepted & ~unknown, sets=sets, action=action)


@dataclass(frozen=True, eq=False)
class Rule(Parameters):
    """Abstract: add numbers and settings as fields, and write `decide`, `sentence`, `in_graph` and `formula`."""

    kind: ClassVar[str]
    needs_logits: ClassVar[bool] = True
    outputs: ClassVar[tuple[str, ...]] = ("accepted",)  # names of what `in_graph` returns
    map: FittedMap | None = field(default=None, kw_only=True)
    by: str | None = field(default=None, kw_only=True)  # None, "class" or "group": what has a number of its own
    groups: tuple[str, ...] = field(default=(), kw_only=True)
    record: FitRecord = field(default_factory=FitRecord, kw_only=True)

    def decide(self, p: Predictions) -> Decisions:
        """Decisions about predictions that the map has been applied to."""
        raise TypeError(f"{type(self).__name__} must define decide")

    def in_graph(self, logits: Tensor, predicted: Tensor, confidence: Tensor, unknown: Tensor) -> tuple[Tensor, ...]:
        """`outputs` for mapped logits [N, K], in tensor operations that can be exported; `unknown` logits were NaN."""
        raise TypeError(f"{type(self).__name__} must define in_graph")

    @property
    def formula(self) -> str:
        """The rule in words and symbols, for a program in another language. z' are the mapped logits."""
        raise TypeError(f"{type(self).__name__} must define formula")

    @property
    def grouped(self) -> bool:
        """Whether the promise is about groups of items. Rules of version 0.2 do not say, and theirs is about items."""
        return bool(self.record.certificate.get("grouped"))

    @property
    def abstain(self) -> int:
        """The index of the action that hands an item to a person; −1 if there is none."""
        return -1

    @property
    def sentence(self) -> str:
        """What the rule does and what it promises."""
        raise TypeError(f"{type(self).__name__} must define sentence")

    def __call__(self, logits: Any, *, group: Any = None, class_axis: int | None = None) -> Decisions:
        """Decide about logits, [N, K] or [M, N, K] for members. A rule by group needs the `group` of each item.

        With `class_axis` it decides about pixels: class_axis=1 takes [N, K, H, W], and gives decisions [N, H, W] and
        sets [N, K, H, W].
        """
        z = logits if isinstance(logits, Tensor) else as_tensor(logits, "logits")
        if class_axis is not None:
            last = classes_last(z, class_axis, "logits")
            return self(last.reshape(-1, last.shape[-1]), group=group).reshaped(last.shape[:-1], class_axis)
        if z.ndim not in (2, 3):
            raise InputError(
                f"logits have shape {tuple(z.shape)}; a rule takes [N, K], [M, N, K] for members, or [N, K, H, W] with "
                "class_axis=1"
            )
        if z.shape[-1] > 1 and look_like_probabilities(z, binary=False):
            warn("these logits look like probabilities; if they are, the rule decides wrongly: pass their logarithms")
        ids, names = numbered_groups(group, z.shape[-2])
        nothing = torch.zeros(z.shape[-2], dtype=torch.long, device=z.device)
        # an origin saves the map from hashing the logits, which only a report needs
        found = self.decisions(Predictions(nothing, z, group=ids, group_names=names, origin="applied"))
        unknown = z.amax(-1).isnan()  # amax is NaN if any logit is
        return found.without((unknown if z.ndim == 2 else unknown.any(0)).cpu(), self.abstain)

    def decisions(self, p: Predictions) -> Decisions:
        """Decisions about predictions that the map has not been applied to."""
        return self.decide(self.mapped(p))

    def mapped(self, p: Predictions) -> Predictions:
        """The predictions after the map, checked: they must be of the classes that the rule was chosen for."""
        where = f"{p.source}: " if p.source else ""
        if p.logits is None and self.needs_logits:
            raise InputError(
                f"{where}a rule of {self.kind} needs the probabilities of all classes, and this is a top-1 set"
            )
        if p.k is not None and self.record.k is not None and p.k != self.record.k:
            raise InputError(
                f"{where}the rule was chosen for {self.record.k} classes, these predictions have {p.k}; "
                "choose one on predictions of the same classes"
            )
        self.record.check_classes(p, "the rule was chosen")
        return p if self.map is None else self.map.predictions(p)

    def cell(self, p: Predictions, predicted: Tensor) -> Tensor:
        """[N]: the index of each item's number in the rule, which is its `predicted` class if the rule is by class."""
        if self.by == "class":
            return predicted
        if self.by is None:
            return torch.zeros(p.n, dtype=torch.long)
        where = f"{p.source}: " if p.source else ""
        if p.group is None:
            raise InputError(f"{where}the rule is by group; pass the group of each item (group)")
        place = {name: i for i, name in enumerate(self.groups)}
        names = group_names(p)
        present = torch.unique(p.group).tolist()
        unseen = [names[i] for i in present if names[i] not in place]
        if unseen:
            raise InputError(
                f"{where}group {unseen[0]!r} was not among the {len(place)} groups that the rule was chosen on; "
                "choose the rule on items of that group too, or without groups"
            )
        return torch.tensor([place.get(name, -1) for name in names])[p.group.cpu()]

    def refuse_reuse(self, p: Predictions, allow_reuse: bool = False) -> None:
        """Refuse to judge the rule on items that it was chosen on, or that its map was fitted on."""
        if allow_reuse:
            return
        own = p.origin or p.fingerprint()
        fitted = [] if self.map is None else [(self.map.record, "its map was fitted")]
        for record, what in [(self.record, "the rule was chosen"), *fitted]:
            common = 1.0 if own == record.data else overlap.share(record.items, p)
            if common >= LARGE:
                raise SplitError(
                    f"{p.source or 'these predictions'}: {what} on {'' if common == 1 else f'{common:.0%} of '}these "
                    "very items; judge it on other items, or pass allow_reuse=True (--allow-reuse)"
                )

    def to_dict(self) -> dict[str, Any]:
        """The kind of rule, its numbers and what it promises, for `--json`."""
        return {
            "rule": self.kind,
            "sentence": self.sentence,
            **self.settings(),
            **{name: t.tolist() for name, t in self.tensors().items()},
            "map": None if self.map is None else self.map.record.calibrator or self.map.method,
            "promise": dict(self.record.certificate),
            "n": self.record.n,
            "k": self.record.k,
            "split": self.record.split,
            "allow_reuse": self.record.reuse,
        }

    def _shown(self) -> tuple[str, Rows]:
        chosen = f"{self.record.n:,} items of split {self.record.split}"
        return self.sentence, [("chosen on", chosen), ("map", "none" if self.map is None else self.map._shown()[0])]

    def save(self, folder: str | PathLike[str]) -> Path:
        """Write the rule and its map to a folder, whole or not at all; `calibrant.load(folder)` restores it."""
        from calibrant.decisions.storage import save  # imported here, because storage imports this module

        return save(self, folder)


def batches(p: Predictions, numbers: int) -> Iterator[tuple[slice, Tensor]]:
    """Yield (rows, their pooled float64 logits [n, K]), about `numbers` numbers at a time."""
    assert p.logits is not None
    size = max(1, numbers // (int(p.logits.shape[-1]) * p.members))
    for start in range(0, p.n, size):
        rows = slice(start, start + size)
        yield rows, pooled(p.logits[..., rows, :].cpu())


def group_names(p: Predictions) -> tuple[str, ...]:
    assert p.group is not None
    return p.group_names or tuple(str(i) for i in range(int(p.group.max()) + 1))


def percent(share: float) -> str:
    """A measured share with one decimal: 78.2%."""
    return f"{100 * share:.1f}%"


def asked(share: float) -> str:
    """A share that a user asked for, with all its digits: 99.95%."""
    return f"{100 * share:.6g}%"


def floor(share: float) -> str:
    """A lower bound, which is never rounded up: 93.17%."""
    return asked(math.floor(share * 1e4 + 1e-7) / 1e4)


def probability(name: str, value: Any) -> float:
    """Check that the number lies in (0, 1)."""
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 < float(value) < 1:
        raise InputError(f"{name}={value!r} must lie between 0 and 1, such as 0.95")
    return float(value)


def units_of(p: Predictions, by: str | None) -> Tensor | None:
    """The group of each item, if the promise is about groups; None if it is about items.

    A rule by group makes its promise about the items of each group, so it counts items.
    """
    return None if p.group is None or by == "group" else p.group.cpu()


KNOWN_GROUPS = "; if these groups are known and come again, make a promise for each (by='group', --by group)"
"""What a message adds if there are too few groups."""


def rows_of(cell: Tensor, count: int) -> list[NDArray[np.int64]]:
    """The items of each of `count` cells, in order."""
    ends = np.cumsum(np.bincount(cell.numpy(), minlength=count))[:-1]
    return np.split(np.argsort(cell.numpy(), kind="stable"), ends)


def cells_of(by: str | None, p: Predictions, predicted: Tensor) -> tuple[Tensor, tuple[str, ...]]:
    """The cell of each item [N] and the names of the cells, when a rule is chosen: one cell has one number."""
    if by is None:
        return torch.zeros(p.n, dtype=torch.long), ("",)
    if by == "class":
        count = p.k if p.k is not None else int(max(predicted.max(), p.labels.max())) + 1
        return predicted.cpu(), tuple(p.classes or (str(i) for i in range(count)))
    if by == "group":
        if p.group is None:
            where = f"{p.source} has" if p.source else "these predictions have"
            raise InputError(f"{where} no groups; add `group`, or drop --by group")
        return p.group.cpu(), group_names(p)
    raise InputError(f"by={by!r} is unknown; use 'class' or 'group'")
