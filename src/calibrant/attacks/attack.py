"""The one `__call__` of every attack: (predictor, x) → x', no label needed.

An attack runs away from the predictor's own prediction (AR §3: f(x + δ) ≠ f(x)) or from a given label, or, targeted, to
one. Here live the bounds, clipping, what counts as a success, which point is kept, and the count of gradient
evaluations. A new attack writes `begin`, the state of each item, and `step`, from what was seen at its point to the
next; an item's state is its own, so that its result does not depend on what else is in its batch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal, final

import torch
from torch import Tensor

from calibrant.attacks import noise, second, settings
from calibrant.attacks.behind import home, modules, untouched
from calibrant.attacks.boundary import clears, firm, settle
from calibrant.attacks.bounds import Bounds
from calibrant.attacks.captured import fast_copy
from calibrant.attacks.field import Field
from calibrant.attacks.loop import Loop
from calibrant.attacks.task import Seen, State, Task, norms, spread
from calibrant.errors import InputError, NoGradientError


@dataclass(frozen=True, eq=False)
class AttackResult:
    """What an attack did to N items, in the order they came in."""

    adversarial: Tensor  # in the network's own input space
    success: Tensor  # bool [N], by a forward pass in full precision
    distance: Tensor  # [N], in pixels and the attack's norm; infinite where there was no success
    calls: Tensor  # [N], gradient evaluations that the item took


EIGHTHS = tuple(share / 8 for share in range(7, 0, -1))
"""Of a budget: what is tried where one step of all of it is no success. A long step may go past a class and into the
item's own again, and what a smaller budget reaches, a larger one is not to lose."""
BOX = Bounds()
"""Pixels in [0, 1], which the network is fed as they are."""


@dataclass(frozen=True, kw_only=True)
class Attack(ABC):
    """Abstract: what an attack has to write, and what it gets for it."""

    bounds: Bounds = BOX
    batch: int | None = None  # items attacked at once; None: what suits the device
    engine: Literal["auto", "eager", "graph", "compile"] = "auto"  # on CUDA; `compile` is also captured as a graph
    reduced: bool | None = (
        None  # half-precision gradients; None: on CUDA, for attacks whose end is searched in full precision
    )
    norm: ClassVar[float] = 2.0
    nearest: ClassVar[bool] = True  # keeps the nearest success; else the last one, or the last point
    looks: ClassVar[int] = 0  # classes whose linearised boundaries are tried too (`linear`), for the nearest
    most: ClassVar[int] = 9  # the same, where a less likely class may have the nearest
    search: ClassVar[bool] = False  # tries smaller budgets where all of it is no success: a setting of FGSM
    period: ClassVar[int | None] = None  # steps between two looks at who is done; None: all take all steps

    def __post_init__(self) -> None:
        settings.settle(self)  # an attack that checks ranges does so after this

    @property
    @abstractmethod
    def steps(self) -> int:
        """Gradient evaluations that an item may take."""

    @abstractmethod
    def begin(self, task: Task) -> State:
        """`point` (where to look first), `done` (all false), and whatever the attack remembers of each item."""

    @abstractmethod
    def step(self, task: Task, state: State, seen: Seen) -> State:
        """The next state; `point` is clipped to the bounds afterwards."""

    @property
    def confident(self) -> float:
        """By how much a success's logit must exceed the other: CW's κ."""
        return 0.0

    def shorter(self, delta: Tensor, share: float) -> Tensor:
        """What δ, the step of an attack that takes but one, is with a share of its budget."""
        return share * delta

    def rescue(self) -> Attack | None:
        """A dearer attack for items that this one leaves without a success though they have a gradient."""
        return None

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
        """`attacked(x, labels=None, targets=None)` on one predictor, for many batches: what is captured is kept."""
        if not isinstance(self.bounds, Bounds):
            raise InputError(f"bounds={self.bounds!r}: an attack takes bounds=calibrant.attacks.Bounds(low, high)")
        reduced = (device.type == "cuda" and self.nearest) if self.reduced is None else self.reduced
        with untouched(predictor, device):
            full = Field(predictor, self.bounds, dtype)
            quick = full
            if reduced:
                copied = fast_copy(predictor, compiled=self.engine == "compile")
                quick = Field(copied, self.bounds, torch.float32, reduced=True)
            # the second serves what the first loses by its precision, and is captured too: a few hard items in eager
            # steps took longer than all others together
            rescue = self.rescue()
            last = None if rescue is None else Loop(rescue, full, device)
            loops = (Loop(self, quick, device), Loop(self, full, device), last)

            def attacked(x: Tensor, labels: Tensor | None = None, targets: Tensor | None = None) -> AttackResult:
                return self._attack(*loops, full, x.to(device), labels, targets)

            yield attacked

    def _attack(
        self,
        loop: Loop,
        exact: Loop,
        rescue: Loop | None,
        field: Field,
        x: Tensor,
        labels: Tensor | None,
        targets: Tensor | None,
    ) -> AttackResult:
        origin = self.bounds.pixels(x)
        # where a row's logits belong to its batch (dropout's masks), the batch is all of x, as in a fresh forward pass,
        # whatever `batch` has attacked at once
        size = len(x) if field.drawn else _even(len(x), loop.size)
        clean = _clean(field, origin, size)
        if not bool(torch.isfinite(clean).all()):
            raise InputError("the model returns logits that are not finite on the clean inputs; nothing to attack")
        reference = _reference(clean, labels, targets)
        task = Task(origin, reference, self.bounds, targets is not None, self.confident)
        margin, slack = task.margin(clean), noise.around(field, origin, clean, size)
        # a label that rounding takes away has not flipped; a budget is spent on every item, as the textbooks have it
        away = ~(margin > slack) | (not self.nearest)
        point, found = origin.clone(), ~away
        calls = torch.zeros(len(x), dtype=torch.long, device=x.device)
        if bool(away.any()):
            chosen, rows = task.take(away), away.nonzero().squeeze(1)
            end = loop(chosen)
            settled = partial(settle, batch=size, search=self.nearest)
            seen = field.among(origin, rows)
            # one step has no other success to fall back on than the input itself
            success_on_the_way = end["point"] if self.steps == 1 else end["best"]
            best, success = settled(seen, chosen, success_on_the_way, end["point"], margin[rows], slack[rows])
            if self.search:
                self._sooner(field, origin, rows, chosen, best, success, slack[rows])
            easily = success.clone()
            # who seems to have arrived is asked for no gradient
            count, moved = end["calls"], end["moved"] | (margin[rows] > 0)

            def again(by: Loop, lost: Tensor) -> None:
                some = chosen.take(lost)
                end = by(some)
                moved[lost] |= end["moved"]
                count[lost] += end["calls"]
                these = rows[lost]
                seen = field.among(origin, these)
                best[lost], success[lost] = settled(seen, some, end["best"], end["point"], margin[these], slack[these])

            if loop.field.reduced and not bool(success.all()):  # once more in full precision, what was lost without it
                again(exact, ~success)
            if not bool(moved.any()):
                raise NoGradientError(
                    "the gradient is zero or no number everywhere: the model returns constant logits, or ones that do "
                    "not depend on the input; there is no direction to attack in"
                )
            # who stands at a boundary, and has no success for it, aims at what is past its noise
            beyond = torch.where(success, 0.0, 2 * slack[rows]).to(origin.dtype)
            asked = (margin[rows].abs() < beyond) & self.nearest | bool(self.looks)
            if bool(asked.any()):
                looked = field.among(origin, rows)
                classes = (self.looks, self.most) if self.looks else (second.TIED, second.TIED)
                held = torch.where(success, norms(best - chosen.origin, 2), torch.inf)
                nearest, evaluations = second.boundary(
                    loop.field, looked, chosen, clean[rows], easily, beyond, held, classes, loop.size
                )
                candidate, promising = second.reached(looked, chosen, nearest, (best, success), size, self.norm)
                promising &= asked
                if bool(promising.any()):
                    some, own = chosen.take(promising), (best[promising], success[promising])
                    these = rows[promising]
                    seen = field.among(origin, these)
                    other = settled(seen, some, candidate[promising], some.origin, margin[these], slack[these])
                    best[promising], success[promising] = second.nearer(some, own, other, self.norm)
                count += evaluations * asked
            if rescue is not None and bool((moved & ~success).any()):
                again(rescue, moved & ~success)
            point[away], found[away], calls[away] = best, success, count
            if self.nearest and not field.drawn:
                point, kept = firm(field, task, point, found & away, margin, size)
                found = kept | ~away
        adversarial = self.bounds.inputs(point, x.dtype)
        if adversarial.dtype != point.dtype:  # inputs in half precision: what is measured is what is handed out
            handed = self.bounds.clip(self.bounds.denormalised(adversarial))
            point = torch.where(spread(away, point), handed, point)
        distance = norms(point - origin, self.norm)
        return AttackResult(adversarial, found, torch.where(found, distance, torch.inf), calls)

    def _sooner(
        self, field: Field, origin: Tensor, rows: Tensor, task: Task, best: Tensor, success: Tensor, slack: Tensor
    ) -> None:
        """Writes into `best` and `success` what less of the budget reaches."""
        delta = best - task.origin
        for share in EIGHTHS:
            lost = (~success).nonzero().squeeze(1)
            if not len(lost):
                break
            some = task.take(lost)
            point = some.bounds.clip(some.origin + self.shorter(delta[lost], share))
            clear = clears(field.among(origin, rows[lost]), some, point, slack[lost])
            best[lost[clear]], success[lost[clear]] = point[clear], True


def _clean(field: Field, origin: Tensor, size: int) -> Tensor:
    """Logits of the inputs: the first pass of all, in which weights of another precision show."""
    try:
        return torch.cat([field.logits(part) for part in torch.split(origin, size)])
    except RuntimeError as error:
        weights = {p.dtype for network in modules(field.predictor) for p in network.parameters()}
        if field.dtype in weights or not weights:
            raise
        other = str(weights.pop())
        raise InputError(f"x is {field.dtype} and the model's weights are {other}; hand in x.to({other})") from error


def _even(n: int, most: int) -> int:
    """Rows of parts that are alike in size: the few of a remainder would be judged by a small batch's kernel."""
    parts = -(-n // most)
    return -(-n // parts)


def _reference(logits: Tensor, labels: Tensor | None, targets: Tensor | None) -> Tensor:
    given, name = (labels, "labels") if targets is None else (targets, "targets")
    if labels is not None and targets is not None:
        raise InputError("an attack runs away from labels or towards targets; give one of them")
    if given is None:
        return logits.argmax(-1)
    n, k = logits.shape
    try:
        given = torch.as_tensor(given).to(logits.device)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"{name} must be {n} whole numbers, got {type(given).__name__} ({error})") from error
    if given.shape != (n,) or given.is_floating_point() or given.is_complex():
        raise InputError(f"{name} must be {n} whole numbers, got {tuple(given.shape)} of {given.dtype}")
    given = given.long()  # torch compares no uint16; what no long holds is negative then, and of no class
    if bool(((given < 0) | (given >= k)).any()):
        raise InputError(f"{name} reach from {int(given.min())} to {int(given.max())}; the model has {k} classes")
    return given
