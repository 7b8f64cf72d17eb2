"""The one `__call__` of every attack: (predictor, x) → x', no label needed.

An attack moves away from the predictor's own prediction (AR §3: f(x + δ) ≠ f(x)) or from a given label, or, targeted,
towards one. This file owns the bounds, what counts as a success, which point is kept and the count of gradient
evaluations. A new attack writes `step`, from what it saw at a point to the next point, and `begin` if it remembers
anything of an item. The state of an item is its own, so its result does not depend on the other items of the batch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, final

import torch
from torch import Tensor, nn

from calibrant.attacks import boundary, settings
from calibrant.attacks.bounds import Bounds
from calibrant.attacks.gradients import PixelModel
from calibrant.attacks.loop import Loop, even, slots
from calibrant.attacks.networks import home, modules, untouched
from calibrant.attacks.task import Seen, State, Task, norms
from calibrant.errors import InputError, NoGradientError

BOX = Bounds()
"""Pixels in [0, 1], which are the network's input."""


@dataclass(frozen=True, eq=False)
class AttackResult:
    """What an attack did to N items, in the order of the input."""

    adversarial: Tensor  # in the network's own input space
    success: Tensor  # bool [N], by a fresh forward pass in full precision
    distance: Tensor  # [N], in pixels and the attack's norm; infinite where there was no success
    calls: Tensor  # [N], gradient evaluations that the item took


@dataclass(frozen=True, kw_only=True)
class Attack(ABC):
    """Abstract: what an attack has to write, and what it gets for it."""

    bounds: Bounds = BOX
    batch: int | None = None  # items attacked at once; None: what suits the device
    engine: Literal["auto", "eager", "graph"] = "auto"  # on CUDA
    reduced: bool | None = None  # gradients in half precision; None: on CUDA, for minimum-norm attacks on networks
    norm: ClassVar[float] = 2.0
    nearest: ClassVar[bool] = True  # looks for the nearest success; else the attack spends a budget
    kappa: ClassVar[float] = 0.0  # by how much the logit of a success must lead: a setting of CW

    def __post_init__(self) -> None:
        settings.settle(self)  # an attack that checks ranges does so after this

    @property
    def steps(self) -> int:
        """Steps that an item may take at most: one, unless the attack has `iterations`."""
        return int(getattr(self, "iterations", 1))

    def begin(self, task: Task) -> State:
        """Whatever the attack remembers of each item; `point`, if it does not begin at the input."""
        return {}

    @abstractmethod
    def step(self, task: Task, state: State, seen: Seen) -> State:
        """The next state, with `done` if an item may end early; `point` is clipped to the bounds afterwards.

        `state` also holds `t`, the number of steps so far, and `nearest`, the distance of the best success."""

    def objective(self, task: Task, state: State, logits: Tensor) -> Tensor:
        """What `seen.gradient` is the gradient of: [N], or [J, N]. By default the log-odds of success."""
        return task.odds(logits)

    @final
    def __call__(self, predictor: Any, x: Tensor, labels: Tensor | None = None) -> Tensor:
        """The attacked inputs: away from `labels`, or from the predictor's own prediction."""
        return self.run(predictor, x, labels).adversarial

    @final
    def run(
        self, predictor: Any, x: Tensor, labels: Tensor | None = None, targets: Tensor | None = None
    ) -> AttackResult:
        """Away from `labels` (default: the predictor's own prediction), or towards `targets`."""
        if not isinstance(x, Tensor):
            raise InputError(f"attack a tensor of inputs, not {type(x).__name__}")
        with self.against(predictor, home(predictor, x.device), x.dtype) as attacked:
            return attacked(x, labels, targets)

    @final
    @contextmanager
    def against(
        self, predictor: Any, device: torch.device, dtype: torch.dtype
    ) -> Iterator[Callable[..., AttackResult]]:
        """`attacked(x, labels=None, targets=None)` on one predictor, for many batches; recorded graphs are kept."""
        if not isinstance(self.bounds, Bounds):
            raise InputError(f"bounds={self.bounds!r}: an attack takes bounds=calibrant.attacks.Bounds(low, high)")
        with untouched(predictor, device):
            model = PixelModel(predictor, self.bounds, dtype)
            network = isinstance(predictor, nn.Module)
            half = (device.type == "cuda" and self.nearest and network) if self.reduced is None else self.reduced
            loops = [Loop(self, PixelModel(predictor, self.bounds, dtype, half=half), device)]
            if half and self.nearest:  # once more for items that half precision loses
                loops.append(Loop(self, model, device))

            def attacked(x: Tensor, labels: Tensor | None = None, targets: Tensor | None = None) -> AttackResult:
                return self._attack(loops, model, x.to(device), labels, targets)

            yield attacked

    def _attack(
        self, loops: Sequence[Loop], model: PixelModel, x: Tensor, labels: Tensor | None, targets: Tensor | None
    ) -> AttackResult:
        origin = self.bounds.pixels(x)
        batch = even(len(x), slots(self, x.device))
        clean = _clean(model, origin, batch)
        clearance = self.kappa + boundary.rounding(clean, model.dtype)
        task = Task(origin, _reference(clean, labels, targets), clearance, self.bounds, targets is not None)
        point, found = origin.clone(), (task.margin(clean) > 0) & self.nearest
        calls = torch.zeros(len(x), dtype=torch.long, device=x.device)
        moved = found.clone()
        for loop in loops:
            rows = torch.arange(len(x), device=x.device) if model.whole_batch else (~found).nonzero().squeeze(1)
            if bool(found.all()):
                break
            some = task.take(rows)
            end = loop(some, found[rows])
            calls[rows] += end["calls"]
            moved[rows] |= end["moved"]
            if self.nearest:
                point[rows], found[rows] = boundary.nearest(model, some, end["best"], batch)
            else:
                point[rows] = end["point"]
        if not bool(moved.any()):
            raise NoGradientError(
                "the gradient is zero or NaN everywhere: the model returns constant logits, or ones that do "
                "not depend on the input; there is no direction to attack in"
            )
        adversarial = self.bounds.inputs(point, x.dtype)
        if adversarial.dtype != point.dtype:  # inputs in half precision: measure what is returned
            point = self.bounds.clip(self.bounds.denormalised(adversarial))
        # searched for with all of the clearance, checked with half of it: this pass rounds differently
        success = task.lead(model.logits(point, batch)) > (clearance + self.kappa) / 2
        distance = torch.where(success, norms(point - origin, self.norm), torch.inf)
        return AttackResult(adversarial, success, distance, calls)


def _clean(model: PixelModel, origin: Tensor, batch: int) -> Tensor:
    """Logits of the inputs: the first pass, in which weights of another precision show."""
    try:
        clean = model.logits(origin, batch)
    except RuntimeError as error:
        weights = {p.dtype for network in modules(model.predictor) for p in network.parameters()}
        if model.dtype in weights or not weights:
            raise
        other = str(weights.pop())
        raise InputError(f"x is {model.dtype} and the model's weights are {other}; pass x.to({other})") from error
    if not bool(torch.isfinite(clean).all()):
        raise InputError("the model returns logits that are not finite on the clean inputs; nothing to attack")
    return clean


def _reference(logits: Tensor, labels: Tensor | None, targets: Tensor | None) -> Tensor:
    given, name = (labels, "labels") if targets is None else (targets, "targets")
    if labels is not None and targets is not None:
        raise InputError("an attack moves away from labels or towards targets; give one of them")
    if given is None:
        return logits.argmax(-1)
    n, k = logits.shape
    try:
        given = torch.as_tensor(given).to(logits.device)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"{name} must be {n} whole numbers, got {type(given).__name__} ({error})") from error
    if given.shape != (n,) or given.is_floating_point() or given.is_complex():
        raise InputError(f"{name} must be {n} whole numbers, got {tuple(given.shape)} of {given.dtype}")
    given = given.long()  # torch cannot compare uint16; what overflows is negative and refused below
    if bool(((given < 0) | (given >= k)).any()):
        raise InputError(f"{name} reach from {int(given.min())} to {int(given.max())}; the model has {k} classes")
    return given
