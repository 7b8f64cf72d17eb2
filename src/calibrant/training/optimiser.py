"""SGD and Adam, and the learning rate as a pure function of the step.

    lr(step) = lr · warm(step) · f(t),   t = step / steps per epoch
    multistep: f = γ^#{milestones ≤ t}, or the factor named for the last one passed;   cosine: f = (1 + cos πt/T)/2

Because the rate depends only on the step, a resumed run needs no scheduler state. On CUDA the rate is a tensor and the
optimiser is fused and capturable, so that a captured step reads a new rate without being captured again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn

from calibrant.errors import InputError


@dataclass(frozen=True)
class Optimiser:
    name: Literal["sgd", "adam"] = "sgd"
    lr: float = 0.1
    momentum: float = 0.9
    nesterov: bool = False
    beta1: float = 0.9
    beta2: float = 0.999
    weight_decay: float = 0.0  # added to the gradient, in Adam too (as the papers' frameworks did)

    def __post_init__(self) -> None:
        if not 0 < self.lr < math.inf:
            raise InputError(f"optimiser.lr is {self.lr}; it must be positive")
        if not 0 <= self.weight_decay < math.inf or not 0 <= self.momentum < 1:
            raise InputError("optimiser.weight_decay must be 0 or more and optimiser.momentum in [0, 1)")
        if self.nesterov and self.momentum == 0:
            raise InputError("optimiser.nesterov needs optimiser.momentum above 0")
        if not 0 <= self.beta1 < 1 or not 0 <= self.beta2 < 1:
            raise InputError(f"optimiser.beta1 and beta2 must be in [0, 1), got {self.beta1} and {self.beta2}")


@dataclass(frozen=True)
class Schedule:
    name: Literal["constant", "multistep", "cosine"] = "constant"
    milestones: tuple[float, ...] = ()  # epochs
    gamma: float = 0.1
    factors: tuple[float, ...] = ()  # of the initial rate, one per milestone; empty: powers of gamma
    warmup: float = 0.0  # epochs, linear (Goyal 2017)

    def __post_init__(self) -> None:
        if self.name == "multistep" and not self.milestones:
            raise InputError("schedule 'multistep' needs schedule.milestones, the epochs after which the rate drops")
        if list(self.milestones) != sorted(self.milestones):
            raise InputError(f"schedule.milestones must increase, but are {list(self.milestones)}")
        if self.factors and len(self.factors) != len(self.milestones):
            raise InputError(f"{len(self.factors)} schedule.factors for {len(self.milestones)} schedule.milestones")
        if not all(0 <= x < math.inf for x in (self.gamma, self.warmup, *self.factors)):
            raise InputError("schedule.gamma, schedule.warmup and schedule.factors must be 0 or more")

    def factor(self, step: int, steps: int, epochs: int) -> float:
        """The factor on the initial rate at `step` (from 0), with `steps` steps per epoch."""
        t = step / steps
        rise = min(1.0, (step + 1) / max(1.0, self.warmup * steps)) if self.warmup else 1.0
        if self.name == "cosine":
            return rise * 0.5 * (1 + math.cos(math.pi * min(1.0, t / epochs)))
        if self.name == "multistep":
            passed = sum(t >= m for m in self.milestones)
            if self.factors:
                return rise * (self.factors[passed - 1] if passed else 1.0)
            return rise * self.gamma**passed
        return rise

    def scaled(self, share: float) -> Schedule:
        """The same schedule over `share` of the epochs."""
        return replace(self, milestones=tuple(m * share for m in self.milestones), warmup=self.warmup * min(1.0, share))


def make_optimiser(settings: Optimiser, model: nn.Module) -> torch.optim.Optimizer:
    """Make torch's optimiser with all of its state allocated, so that it can be saved before the first step."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    if not parameters:
        raise InputError("the network has no parameters to train")
    device = parameters[0].device
    cuda = device.type == "cuda"
    lr: float | Tensor = torch.tensor(settings.lr, device=device) if cuda else settings.lr
    if settings.name == "sgd":
        sgd = torch.optim.SGD(
            parameters,
            lr=lr,
            momentum=settings.momentum,
            weight_decay=settings.weight_decay,
            nesterov=settings.nesterov,
            fused=True if cuda else None,
        )
        if settings.momentum:
            for p in parameters:
                # torch starts the buffer at the first gradient: μ·0 + g is the same number
                sgd.state[p]["momentum_buffer"] = torch.zeros_like(p, memory_format=torch.preserve_format)
        return sgd
    adam = torch.optim.Adam(
        parameters,
        lr=lr,
        betas=(settings.beta1, settings.beta2),
        weight_decay=settings.weight_decay,
        fused=True if cuda else None,
        capturable=cuda,
    )
    for p in parameters:
        adam.state[p] = {
            "step": torch.zeros((), dtype=torch.float32, device=device if cuda else "cpu"),
            "exp_avg": torch.zeros_like(p, memory_format=torch.preserve_format),
            "exp_avg_sq": torch.zeros_like(p, memory_format=torch.preserve_format),
        }
    return adam


def set_rate(optimiser: torch.optim.Optimizer, lr: float) -> None:
    for group in optimiser.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(lr)
        else:
            group["lr"] = lr


def state_tensors(optimiser: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Every tensor of the optimiser's state by a stable name; the tensors themselves, not copies."""
    parameters = [p for group in optimiser.param_groups for p in group["params"]]
    return {f"{i}.{key}": value for i, p in enumerate(parameters) for key, value in sorted(optimiser.state[p].items())}
