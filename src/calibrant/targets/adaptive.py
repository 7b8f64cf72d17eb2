"""Adaptive label smoothing: AdaLS (AR §4.1 with R = 1) and AR-AdaLS (AR Algorithm 1, Eq. 1–4).

Training items are cut into R levels of adversarial robustness; p̃_r is the soft label of the right class in level r.
After each epoch, from the validation items of the same level:

    p̃_r ← clip( p̃_r − α·{conf(S_r) − acc(S_r)}, (1/Z, 1] )     Eq. 3
    ε_r = (p̃_r − 1)·Z / (1 − Z)                                  Eq. 4,   q = (1 − ε_r)·onehot + ε_r/Z   Eq. 1

The clip's open end needs a margin, which the paper does not give. Levels are passed in, at the start or at a refresh;
p̃_r belongs to the level, not to its items, so it survives a refresh. Predictions with members are pooled first:
that is "AR-AdaLS of Ensemble" (§5.3). Alg. 1's (1/R) Σ_r L is the mean over items, because levels are equally large.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from calibrant.errors import InputError, SplitError
from calibrant.functional import settings
from calibrant.functional.pooling import pooled
from calibrant.functional.soft_labels import soft_labels
from calibrant.functional.tensors import as_tensor
from calibrant.types import Predictions, Split

MARGIN = 1e-3
"""Distance kept from the open bound 1/Z, so that the right class stays the largest of its soft label."""


@dataclass(frozen=True, eq=False)
class Levels:
    """The robustness level of each item, from 0 (least robust) to R − 1.

    `train` is by training index, with −1 where an index is no training item. `validation` is in the order of the
    validation predictions."""

    train: Tensor
    validation: Tensor


def _as_levels(given: Any, name: str) -> Tensor:
    """Return levels as int64 [N], from any array of whole numbers. Distances are refused: levels are cut from them."""
    level = as_tensor(given, f"{name} levels")
    if level.ndim != 1 or level.is_floating_point() or level.dtype == torch.bool:
        raise InputError(
            f"{name} levels must be whole numbers [N], got {level.dtype} of shape {tuple(level.shape)}; "
            "calibrant.levels(distance, R) cuts distances into them"
        )
    return level.long()


def next_p_true(p_true: Tensor, gap: Tensor, alpha: float, classes: int, margin: float = MARGIN) -> Tensor:
    """Return the next p̃_r, from the gap conf − acc of each level (Eq. 3 and its clip)."""
    return (p_true - alpha * gap).clamp(1 / classes + margin, 1.0)


def epsilon_of(p_true: Tensor, classes: int) -> Tensor:
    """Return the ε_r that gives the right class the soft label p̃_r (Eq. 4)."""
    return (p_true - 1) * classes / (1 - classes)


def gaps(validation: Predictions, level: Tensor, levels: int, classes: int) -> Tensor:
    """Return conf(S_r) − acc(S_r) of each level, float64 [R]."""
    if validation.logits is None:
        raise InputError("adaptive label smoothing learns from validation logits, and these predictions have none")
    if validation.split is Split.TEST:
        raise SplitError("adaptive label smoothing would learn from the test split; pass validation predictions")
    if (k := validation.logits.shape[-1]) != classes:
        raise InputError(f"the validation predictions have {k} classes, and the targets {classes}")
    confidence, predicted = torch.softmax(pooled(validation.logits), -1).max(-1)
    error = confidence - (predicted == validation.labels).double()
    level = level.to(error.device)
    if level.shape != error.shape:
        raise InputError(f"{level.numel()} validation levels for {error.numel()} validation items; give one per item")
    total = torch.zeros(levels, dtype=torch.float64, device=error.device).index_add_(0, level, error)
    return (total / torch.bincount(level, minlength=levels)).cpu()


Rate = float | Sequence[Sequence[float]]
"""α: a number, or a schedule of (finished epochs, α from there on), as ((0, 0.001), (60, 0.05)) in AR A.3."""


def schedule_of(alpha: Any) -> Sequence[Any]:
    """Return α as a schedule, which a number is from the start on."""
    return alpha if isinstance(alpha, (list, tuple)) else [(0, alpha)]


def check_rate(alpha: Rate) -> None:
    """Refuse anything but a number, or a schedule that begins at 0 and rises."""
    schedule = schedule_of(alpha)
    starts = [pair[0] for pair in schedule if isinstance(pair, (list, tuple)) and len(pair) == 2]
    if len(starts) < len(schedule) or not starts or starts[0] != 0 or sorted(set(starts)) != starts:
        raise InputError(f"alpha must be a number or a schedule such as [[0, 0.001], [60, 0.05]], got {alpha!r}")
    for _, value in schedule:
        if settings.number("alpha", value) < 0:
            raise InputError(f"alpha must be 0 or more, got {value!r}")


def rate_after(alpha: Rate, finished: int) -> float:
    """Return α after this many finished epochs."""
    return float([value for start, value in schedule_of(alpha) if start <= finished][-1])


@dataclass(eq=False)
class AdaLS:
    """Label smoothing whose ε follows the validation gap (AR §4.1): AR-AdaLS with R = 1. α = 0 keeps it one-hot."""

    classes: int
    alpha: Rate = 0.05
    levels: ClassVar[int] = 1
    trajectory: Tensor = field(init=False, repr=False)  # p̃_r: one row per epoch and one column per level
    _epsilon: Tensor = field(init=False, repr=False)

    def __post_init__(self) -> None:
        settings.convert(self)
        settings.at_least(self, classes=2, levels=1)
        check_rate(self.alpha)
        self._set(torch.ones(1, self.levels, dtype=torch.float64))  # one-hot

    def __call__(self, labels: Tensor, index: Tensor | None = None) -> Tensor:
        return soft_labels(labels, self.classes, self._epsilon_on(labels.device)[:1].expand(labels.shape))

    def observe(self, epoch: int, validation: Predictions) -> None:
        self._learn(validation, torch.zeros(validation.n, dtype=torch.long))

    def wants(self, epoch: int) -> bool:
        return False

    def refresh(self, levels: Any) -> None:
        raise InputError("adals has one level for all items; use ar_adals for levels")

    def state(self) -> Mapping[str, Any]:
        return {"trajectory": self.trajectory}

    def load(self, state: Mapping[str, Any]) -> None:
        if "trajectory" not in state:
            raise InputError(f"this state is of another policy: it holds {sorted(state)}, and no trajectory")
        then, now = state["trajectory"].shape[1], self.trajectory.shape[1]
        if then != now:
            raise InputError(f"this state is of {then} levels, and the policy has {now}; make it with levels={then}")
        self._set(state["trajectory"])

    def record(self) -> dict[str, Any]:
        """Return the values of p̃_r and ε_r so far: one row per epoch (the first is the start), one column per level."""
        return {
            "alpha": self.alpha,
            "classes": self.classes,
            "levels": int(self.trajectory.shape[1]),
            "p_true": self.trajectory.tolist(),
            "epsilon": epsilon_of(self.trajectory, self.classes).abs().tolist(),  # −0.0 is 0.0
        }

    def _learn(self, validation: Predictions, level: Tensor) -> None:
        gap = gaps(validation, level, self.trajectory.shape[1], self.classes)
        alpha = rate_after(self.alpha, len(self.trajectory) - 1)  # its first row is the start
        following = next_p_true(self.trajectory[-1], gap, alpha, self.classes)
        self._set(torch.cat([self.trajectory, following[None]]))

    def _set(self, trajectory: Tensor) -> None:
        self.trajectory = trajectory.double().cpu()
        # level −1 (no training item) reads the last entry, NaN: the loop stops at that loss and names its items
        self._epsilon = torch.cat([epsilon_of(self.trajectory[-1], self.classes).float(), torch.tensor([math.nan])])

    def _epsilon_on(self, device: torch.device) -> Tensor:
        self._epsilon = self._epsilon.to(device)
        return self._epsilon


@dataclass(eq=False)
class ArAdaLS(AdaLS):
    """One ε for each level of adversarial robustness (AR Algorithm 1), R = 10 in the paper.

    The policy asks for levels until it has some, and for new ones after each epoch of `refresh_after`. It attacks
    nothing itself: `ruler` names the attack by which the caller measures the distances.
    """

    alpha: Rate = 0.005
    levels: int = 10  # type: ignore[misc]  # a setting here, a constant in AdaLS
    refresh_after: tuple[int, ...] = ()  # number of finished epochs: (65, 130) for WRN-28-10 in the paper
    ruler: Literal["ddn", "cw"] = "ddn"
    given: Levels | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        epochs = self.refresh_after
        if not isinstance(epochs, (list, tuple)) or not all(isinstance(e, int) and e >= 1 for e in epochs):
            raise InputError(f"refresh_after lists numbers of finished epochs, as in [65, 130], got {epochs!r}")
        if self.given is not None:
            self.refresh(self.given)

    def __call__(self, labels: Tensor, index: Tensor) -> Tensor:  # type: ignore[override]  # levels are by item
        known = self._levels()
        if known.train.device != index.device:
            self.given = known = Levels(known.train.to(index.device), known.validation)
        if index.device.type == "cpu" and index.numel():
            for end in (int(index.max()), int(index.min())):
                if not 0 <= end < len(known.train):
                    raise InputError(f"item {end} has no level: the levels are of items 0 … {len(known.train) - 1}")
        return soft_labels(labels, self.classes, self._epsilon_on(labels.device)[known.train[index]])

    def observe(self, epoch: int, validation: Predictions) -> None:
        self._learn(validation, self._levels().validation)

    def wants(self, epoch: int) -> bool:
        return self.given is None or epoch in self.refresh_after

    def refresh(self, levels: Any) -> None:
        checked = []
        for name in ("train", "validation"):
            given = getattr(levels, name, None)
            if given is None or len(given) == 0:
                raise InputError(f"ar_adals needs levels of training and validation items, but has none of {name}")
            checked.append(level := _as_levels(given, name))
            known = level[level >= 0] if name == "train" else level
            if known.numel() < self.levels:
                raise InputError(f"{self.levels} levels of {known.numel()} {name} items; lower targets.levels")
            counts = torch.bincount(known.cpu().clamp_min(0), minlength=self.levels)
            if int(known.min()) < 0 or int(level.min()) < -1 or counts.numel() != self.levels:
                found = f"{int(level.min())} … {int(level.max())}"
                raise InputError(f"{name} levels must lie in 0 … {self.levels - 1}, found {found}")
            if name == "validation" and int(counts.min()) == 0:
                raise InputError(f"no validation item has level {int(counts.argmin())}: its gap cannot be measured")
        self.given = Levels(*checked)

    def state(self) -> Mapping[str, Any]:
        if self.given is None:
            return super().state()
        return {**super().state(), "train": self.given.train.cpu(), "validation": self.given.validation.cpu()}

    def load(self, state: Mapping[str, Any]) -> None:
        super().load(state)
        self.given = Levels(state["train"], state["validation"]) if "train" in state else None

    def record(self) -> dict[str, Any]:
        return {**super().record(), "ruler": self.ruler, "refresh_after": list(self.refresh_after)}

    def _levels(self) -> Levels:
        if self.given is None:
            raise InputError("ar_adals has no levels yet; pass given=Levels(train, validation), or call refresh()")
        return self.given
