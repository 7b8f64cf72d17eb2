"""The shared `__call__` of all attacks: (predictor, x) → x'. It needs no label.

An attack moves each item away from the predictor's own prediction (AR §3: f(x + δ) ≠ f(x)), away from a given label, or
towards a target. This file checks the inputs, decides what counts as a success, keeps the best point and counts
gradient evaluations. A new attack writes `step`, which computes the next point, and `begin` if it keeps any state. Each
item has its own state, so its result does not depend on the other items of the batch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, final

import torch
from torch import Tensor, nn

from calibrant.attacks import boundary
from calibrant.attacks.bounds import Bounds
from calibrant.attacks.gradients import PixelModel
from calibrant.attacks.loop import Loop, batch_size
from calibrant.attacks.networks import modules, predictor_device, untouched
from calibrant.attacks.task import Seen, State, Task, norms
from calibrant.errors import InputError, NoGradientError
from calibrant.functional import settings

BOX = Bounds()
"""Pixels in [0, 1] that the network takes as they are."""


@dataclass(frozen=True, eq=False)
class AttackResult:
    """The result of an attack on N items, in the order of the input."""

    adversarial: Tensor  # [N, …], normalised like the input
    success: Tensor  # bool [N], checked by a fresh forward pass in full precision
    distance: Tensor  # [N], in pixels and the attack's norm; infinite for an item without a success
    calls: Tensor  # [N], number of gradient evaluations


@dataclass(frozen=True, kw_only=True)
class Attack(ABC):
    """The abstract base class of all attacks."""

    bounds: Bounds = BOX
    batch: int | None = None  # items attacked at once; None: the default of the device
    engine: Literal["auto", "eager", "graph"] = "auto"  # on CUDA
    reduced: bool | None = None  # gradients in half precision; None: on CUDA, for minimum-norm attacks on networks
    norm: ClassVar[float] = 2.0
    nearest: ClassVar[bool] = True  # True: searches for the nearest success; False: spends a fixed budget
    kappa: ClassVar[float] = 0.0  # required lead of the winning logit; CW makes it a setting

    def __post_init__(self) -> None:
        settings.convert(self, unbounded=("norm",))  # a subclass checks its ranges after this
        settings.at_least(self, batch=1)

    @property
    def steps(self) -> int:
        """The most steps an item may take: one, unless the attack has `iterations`."""
        return int(getattr(self, "iterations", 1))

    def begin(self, task: Task) -> State:
        """Return the attack's initial state, one row per item. Include `point` to start elsewhere than at the input."""
        return {}

    @abstractmethod
    def step(self, task: Task, state: State, seen: Seen) -> State:
        """Return the next state: the next `point`, and `done` if items may end early.

        `point` is clipped to the bounds afterwards. `state` also holds `t`, the number of steps so far, and `nearest`,
        the distance of the best success so far."""

    def objective(self, task: Task, state: State, logits: Tensor) -> Tensor:
        """Return the function whose gradient `step` sees: [N], or [J, N]. By default the log-odds of success."""
        return task.odds(logits)

    @final
    def __call__(self, predictor: Any, x: Tensor, labels: Tensor | None = None) -> Tensor:
        """Return the attacked inputs, moved away from `labels` or from the predictor's own prediction."""
        return self.run(predictor, x, labels).adversarial

    @final
    def run(
        self, predictor: Any, x: Tensor, labels: Tensor | None = None, targets: Tensor | None = None
    ) -> AttackResult:
        """Attack `x` away from `labels` (default: the predictor's own prediction), or towards `targets`."""
        if not isinstance(x, Tensor):
            raise InputError(f"attack a tensor of inputs, not {type(x).__name__}")
        with self.against(predictor, predictor_device(predictor, x.device), x.dtype) as attacked:
            return attacked(x, labels, targets)

    @final
    @contextmanager
    def against(
        self, predictor: Any, device: torch.device, dtype: torch.dtype
    ) -> Iterator[Callable[..., AttackResult]]:
        """Yield `attacked(x, labels=None, targets=None)`, which attacks one predictor on many batches.

        CUDA graphs that were recorded for one batch are reused for the next."""
        if not isinstance(self.bounds, Bounds):
            raise InputError(f"bounds={self.bounds!r}: an attack takes bounds=calibrant.attacks.Bounds(low, high)")
        with untouched(predictor, device):
            model = PixelModel(predictor, self.bounds, dtype)
            network = isinstance(predictor, nn.Module)
            half = (device.type == "cuda" and self.nearest and network) if self.reduced is None else self.reduced
            loops = [Loop(self, PixelModel(predictor, self.bounds, dtype, half=half), device)]
            if half and self.nearest:  # repeat the items that fail in half precision
                loops.append(Loop(self, model, device))

            def attacked(x: Tensor, labels: Tensor | None = None, targets: Tensor | None = None) -> AttackResult:
                return self._attack(loops, model, x.to(device), labels, targets)

            yield attacked

    def _attack(
        self, loops: Sequence[Loop], model: PixelModel, x: Tensor, labels: Tensor | None, targets: Tensor | None
    ) -> AttackResult:
        origin = self.bounds.pixels(x)
        batch = batch_size(self, origin)
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
                point[rows], found[rows] = boundary.bisect(model, some, end["best"], batch)
            else:
                point[rows] = end["point"]
        if not bool(moved.any()):
            raise NoGradientError(
                "the gradient is zero or NaN everywhere: the model returns constant logits, or ones that do "
                "not depend on the input; there is no direction to attack in"
            )
        adversarial = self.bounds.inputs(point, x.dtype)
        if adversarial.dtype != point.dtype:  # half-precision inputs: measure the rounded point that is returned
            point = self.bounds.clip(self.bounds.denormalised(adversarial))
        # The search demanded the whole clearance; this check demands half of it, because this pass rounds differently.
        success = task.lead(model.logits(point, batch)) > (clearance + self.kappa) / 2
        distance = torch.where(success, norms(point - origin, self.norm), torch.inf)
        return AttackResult(adversarial, success, distance, calls)


def _clean(model: PixelModel, origin: Tensor, batch: int) -> Tensor:
    """Return the logits of the inputs. A mismatch between the precision of x and of the weights shows in this pass."""
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
    """Return the class that each item must leave (or reach, for targets): [N]."""
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
    given = given.long()  # torch cannot compare uint16; a value that overflows is negative and refused below
    if bool(((given < 0) | (given >= k)).any()):
        raise InputError(f"{name} reach from {int(given.min())} to {int(given.max())}; the model has {k} classes")
    return given
