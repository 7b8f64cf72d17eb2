"""ConfidNet (Corbière 2019, §2; DS A.2): a small network learns the *true-class probability* from features.

The maximum probability is high by construction, for errors too; the probability of the true class, TCP = p_y, is high
only when the answer is right. It needs the label, so a network learns it from the features f of the classifier:

    least  mean_n (σ(h(f_n; θ)) − p_{y_n})²,      confidence(x) = σ(h(f(x); θ))

h is an MLP with ReLU, trained by Adam on standardised features. A seeded share of the items is held out, and the
weights are those of the epoch with the least loss on it (the paper validates likewise; DS A.2 retains 10 %). All
follows from `seed`; float64 on the CPU, so the same data give the same bits. Differs from the paper: no second phase
fine-tunes the classifier's encoder, because a file of features has none.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

import torch
from torch import Tensor

from calibrant.errors import InputError
from calibrant.functional.pooling import pool
from calibrant.posthoc.calibrator import at_least, certified
from calibrant.posthoc.confidences import ConfidenceMap, ConfidenceModel, features_of
from calibrant.posthoc.map import FittedMap
from calibrant.types import Predictions

LEAST_ITEMS = 20


@dataclass(frozen=True, eq=False)
class ConfidNetMap(ConfidenceMap):
    """σ of the MLP; θ holds weights and biases of all layers end to end, `sizes` says how they are cut."""

    theta: Tensor
    mean: Tensor
    scale: Tensor
    sizes: tuple[int, ...]
    method: ClassVar[str] = "confidnet"

    @property
    def width(self) -> int:
        return len(self.mean)

    def confidence(self, features: Tensor, predicted: Tensor) -> Tensor:
        return torch.sigmoid(mlp((features - self.mean) / self.scale, self.theta, self.sizes))

    def summary(self) -> dict[str, Any]:
        return {"layers": list(self.sizes), "numbers": self.theta.numel()}


@dataclass(frozen=True)
class ConfidNet(ConfidenceModel):
    """A small network learns the true-class probability from features (Corbière 2019).

    `hidden` units in each of `layers` hidden layers; `held_out` is the share that picks the epoch.
    """

    hidden: int = 64
    layers: int = 2
    epochs: int = 200
    patience: int = 20  # epochs without a better one before it stops
    batch: int = 64
    learning_rate: float = 1e-3
    weight_decay: float = 1e-4
    held_out: float = 0.2
    seed: int = 0
    name: ClassVar[str] = "confidnet"
    map: ClassVar[type[FittedMap]] = ConfidNetMap

    def __post_init__(self) -> None:
        for name in ("hidden", "layers", "epochs", "patience", "batch", "learning_rate"):
            if not getattr(self, name) > 0:
                raise InputError(f"confidnet: {name}={getattr(self, name)} must be positive")
        if not 0 < self.held_out < 1:
            raise InputError(f"confidnet: held_out={self.held_out} must lie strictly between 0 and 1")

    def solve(self, p: Predictions) -> FittedMap:
        if p.logits is None:
            raise InputError(
                "confidnet learns the probability of the true class, which a top-1 file does not have; give logits or "
                "probabilities to fit it"
            )
        at_least(p, LEAST_ITEMS, "some to learn from, some to choose the epoch by", self.name)
        x, target = features_of(p, self.name), true_class_probability(p)
        generator = torch.Generator().manual_seed(self.seed)
        shuffled = torch.randperm(p.n, generator=generator)
        kept = max(1, round(self.held_out * p.n))
        validation, training = shuffled[:kept], shuffled[kept:]
        mean, scale = x[training].mean(0), x[training].std(0)
        scale = torch.where(scale > 1e-12 * mean.abs().clamp_min(1.0), scale, torch.ones_like(scale))
        x = (x - mean) / scale
        sizes = (x.shape[1], *[self.hidden] * self.layers, 1)
        theta, certificate = self._train(x, target, training, validation, sizes, generator)
        return ConfidNetMap(theta, mean, scale, sizes, record=certified(certificate))

    def _train(
        self,
        x: Tensor,
        target: Tensor,
        training: Tensor,
        validation: Tensor,
        sizes: tuple[int, ...],
        g: torch.Generator,
    ) -> tuple[Tensor, dict[str, Any]]:
        theta = initial(sizes, target[training], g).requires_grad_()
        adam = torch.optim.Adam([theta], lr=self.learning_rate, weight_decay=self.weight_decay)
        best, least, epoch = theta.detach().clone(), loss_of(theta, x[validation], target[validation], sizes), 0
        start = least
        for i in range(1, self.epochs + 1):
            order = training[torch.randperm(len(training), generator=g)]
            for rows in torch.split(order, self.batch):
                with torch.enable_grad():
                    error = torch.sigmoid(mlp(x[rows], theta, sizes)) - target[rows]
                    adam.zero_grad()
                    error.square().mean().backward()  # type: ignore[no-untyped-call]
                adam.step()
            now = loss_of(theta, x[validation], target[validation], sizes)
            if now < least:
                best, least, epoch = theta.detach().clone(), now, i
            elif i - epoch >= self.patience:
                break
        certificate = {
            "objective": "squared error of the true-class probability",
            "epoch": epoch,
            "epochs": i,
        }
        return best, certificate | {"held_out_loss": least, "held_out_loss_of_a_constant": start}


def true_class_probability(p: Predictions) -> Tensor:
    """TCP: p_y of each item, members pooled."""
    assert p.logits is not None
    z = pool(p.logits) if p.logits.ndim == 3 else p.logits.double()
    return torch.softmax(z.cpu(), -1).gather(1, p.labels.cpu()[:, None])[:, 0]


def initial(sizes: tuple[int, ...], target: Tensor, generator: torch.Generator) -> Tensor:
    """He's initialisation; the last layer is 0 but for its bias, so that training starts at the mean target."""
    parts: list[Tensor] = []
    for i, (inputs, outputs) in enumerate(pairwise(sizes)):
        last = i == len(sizes) - 2
        deviation = 0.0 if last else (2 / inputs) ** 0.5
        parts += [
            deviation * torch.randn(outputs * inputs, generator=generator, dtype=torch.float64),
            torch.logit(target.mean().clamp(1e-3, 1 - 1e-3)).expand(1) if last else torch.zeros(outputs).double(),
        ]
    return torch.cat(parts)


def mlp(x: Tensor, theta: Tensor, sizes: tuple[int, ...]) -> Tensor:
    """[N, D] → [N]: linear layers with ReLU between them, cut from θ."""
    at = 0
    for i, (inputs, outputs) in enumerate(pairwise(sizes)):
        weight = theta[at : at + inputs * outputs].view(outputs, inputs)
        bias = theta[at + inputs * outputs : at + (inputs + 1) * outputs]
        at += (inputs + 1) * outputs
        x = torch.nn.functional.linear(torch.relu(x) if i else x, weight, bias)
    return x[:, 0]


def loss_of(theta: Tensor, x: Tensor, target: Tensor, sizes: tuple[int, ...]) -> float:
    with torch.no_grad():
        return float((torch.sigmoid(mlp(x, theta, sizes)) - target).square().mean())
