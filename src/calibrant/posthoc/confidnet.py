"""ConfidNet (Corbière 2019, §2; DS A.2): a small network learns the *true-class probability* from features.

The maximum probability is high by construction, for errors too. The probability of the true class, TCP = p_y, is high
only if the answer is right. It depends on the label, so a network learns it from the features f of the classifier:

    minimise  mean_n (σ(h(x_n)) − p_{y_n})²,      confidence(x) = σ(h(x)),      h(x) = a s(x) + b + g(f(x), ℓ(x); θ)

g is an MLP with ReLU, trained by Adam on standardised inputs. A seeded share of the items is held out, and the weights
of the epoch with the highest AUROC on it are kept (as in the paper; DS A.2 retains 10%). Everything is computed from
`seed` in float64 on the CPU, so the same data give the same bits. Differs from the paper:

- No second phase fine-tunes the encoder of the classifier, because a file of features has no encoder.
- h starts at the network's own confidence: s is the log-odds of the maximum probability, a and b are Platt's, and g
  starts at 0. So epoch 0 has the network's own ranking, and a later epoch is taken only if its ranking is better. With
  features alone, some thousands of calibration items are too few for 100 classes: AUROC fell from 84 to 70.
- Besides the features f, g reads the ten highest log-probabilities ℓ in order, which show how many classes compete.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

import torch
from torch import Tensor

from calibrant.errors import InputError, MapError
from calibrant.functional.probabilities import FLOOR
from calibrant.functional.ranking import auroc, rank, run_weights
from calibrant.posthoc.calibrator import certified
from calibrant.posthoc.confidence_model import ConfidenceMap, ConfidenceModel, features_of, pooled_logits
from calibrant.posthoc.map import FittedMap
from calibrant.posthoc.one_vs_rest import CERTAIN, top_odds
from calibrant.posthoc.platt import platt
from calibrant.posthoc.toplabel import top_of, top_of_logits
from calibrant.types import Predictions

LEAST_ITEMS = 20
HIGHEST = 10
"""Number of log-probabilities that g reads besides the features."""


@dataclass(frozen=True, eq=False)
class ConfidNetMap(ConfidenceMap):
    """σ(a s + b + g). θ holds the weights and biases of all layers of g end to end; `sizes` are the layers' widths."""

    theta: Tensor
    mean: Tensor
    scale: Tensor
    a: Tensor
    b: Tensor
    sizes: tuple[int, ...]
    width: int  # features per item
    method: ClassVar[str] = "confidnet"

    def confidence(self, features: Tensor, predicted: Tensor, logits: Tensor | None) -> Tensor:
        if logits is None:
            raise MapError("confidnet reads log-probabilities beside the features; a top-1 file does not have them")
        score, x = inputs(features, logits)
        return torch.sigmoid(self.a * score + self.b + mlp((x - self.mean) / self.scale, self.theta, self.sizes))

    def summary(self) -> dict[str, Any]:
        return {"layers": list(self.sizes), "numbers": self.theta.numel()}


@dataclass(frozen=True)
class ConfidNet(ConfidenceModel):
    """A small network learns the true-class probability from features (Corbière 2019).

    `hidden` units in each of `layers` hidden layers; `held_out` is the share whose AUROC picks the epoch.
    """

    hidden: int = 64
    layers: int = 2
    epochs: int = 200
    patience: int = 20  # training stops after this many epochs without a better one
    batch: int = 64
    learning_rate: float = 1e-3
    weight_decay: float = 1e-4
    held_out: float = 0.2
    seed: int = 0
    name: ClassVar[str] = "confidnet"
    map: ClassVar[type[FittedMap]] = ConfidNetMap

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("hidden", "layers", "epochs", "patience", "batch", "learning_rate"):
            self.require(getattr(self, name) > 0, name, "must be positive")
        self.require(0 < self.held_out < 1, "held_out", "must lie strictly between 0 and 1")

    def solve(self, p: Predictions) -> FittedMap:
        if p.logits is None:
            raise InputError(
                "confidnet learns the probability of the true class, which a top-1 file does not have; give logits or "
                "probabilities to fit it"
            )
        self.need(p.n, LEAST_ITEMS, "to learn from, and to choose the epoch by")
        features, z = features_of(p, self.name), pooled_logits(p)
        score, x = inputs(features, z)
        target = torch.softmax(z, 1).gather(1, p.labels.cpu()[:, None])[:, 0]  # TCP
        right = top_of(p).predicted.cpu() == p.labels.cpu()
        generator = torch.Generator().manual_seed(self.seed)
        shuffled = torch.randperm(p.n, generator=generator)
        kept = max(1, round(self.held_out * p.n))
        validation, training = shuffled[:kept], shuffled[kept:]
        a, b = starting(score[training], right[training])
        start = a * score + b
        mean, scale = x[training].mean(0), x[training].std(0)
        scale = torch.where(scale > 1e-12 * mean.abs().clamp_min(1.0), scale, torch.ones_like(scale))
        x = (x - mean) / scale
        sizes = (x.shape[1], *[self.hidden] * self.layers, 1)
        theta = initial(sizes, generator).requires_grad_()
        adam = torch.optim.Adam([theta], lr=self.learning_rate, weight_decay=self.weight_decay)

        def judged() -> tuple[float, float]:
            """AUROC (0 if all or none are right) and the negative loss on the held-out items; higher is better."""
            with torch.no_grad():
                h = start[validation] + mlp(x[validation], theta, sizes)
                loss = float((torch.sigmoid(h) - target[validation]).square().mean())
            area = auroc(*run_weights(rank(-h), right[validation])).nan_to_num(0.0)
            return float(area), -loss

        kept_theta, first, epoch = theta.detach().clone(), judged(), 0
        best = first
        for i in range(1, self.epochs + 1):
            order = training[torch.randperm(len(training), generator=generator)]
            for rows in torch.split(order, self.batch):
                with torch.enable_grad():
                    error = torch.sigmoid(start[rows] + mlp(x[rows], theta, sizes)) - target[rows]
                    adam.zero_grad()
                    error.square().mean().backward()  # type: ignore[no-untyped-call]
                adam.step()
            now = judged()
            if now > best:
                kept_theta, best, epoch = theta.detach().clone(), now, i
            elif i - epoch >= self.patience:
                break
        certificate = {
            "objective": "squared error of the true-class probability",
            "epoch": epoch,
            "epochs": i,
            "held_out_auroc": best[0] or None,
            "held_out_auroc_before": first[0] or None,
            "held_out_loss": -best[1],
            "held_out_loss_before": -first[1],
        }
        return ConfidNetMap(kept_theta, mean, scale, a, b, sizes, features.shape[1], record=certified(certificate))


def inputs(features: Tensor, logits: Tensor) -> tuple[Tensor, Tensor]:
    """Return s [N] and the inputs of g [N, D + at most ten]."""
    log_p = torch.log_softmax(logits, -1).clamp_min(math.log(FLOOR))
    highest = log_p.topk(min(HIGHEST, log_p.shape[1]), 1).values
    start = top_odds(top_of_logits(logits)).score.clamp_max(CERTAIN)
    return start, torch.cat([features, highest], 1)


def starting(score: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """Return Platt's a and b, or 1 and 0 if a is not positive (errors have higher scores), to keep the ranking."""
    a, b = platt(score[:, None], right[:, None].double())[0][0]
    return (a.clone(), b.clone()) if a > 0 else (torch.ones_like(a), torch.zeros_like(b))


def initial(sizes: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """He's initialisation, with a last layer of 0, so that training starts at the network's own ranking."""
    parts: list[Tensor] = []
    for i, (width, outputs) in enumerate(pairwise(sizes)):
        deviation = 0.0 if i == len(sizes) - 2 else (2 / width) ** 0.5
        parts += [
            deviation * torch.randn(outputs * width, generator=generator, dtype=torch.float64),
            torch.zeros(outputs, dtype=torch.float64),
        ]
    return torch.cat(parts)


def mlp(x: Tensor, theta: Tensor, sizes: tuple[int, ...]) -> Tensor:
    """[N, D] → [N]: linear layers with ReLU between them. Their weights are slices of θ."""
    at = 0
    for i, (inputs, outputs) in enumerate(pairwise(sizes)):
        weight = theta[at : at + inputs * outputs].view(outputs, inputs)
        bias = theta[at + inputs * outputs : at + (inputs + 1) * outputs]
        at += (inputs + 1) * outputs
        x = torch.nn.functional.linear(torch.relu(x) if i else x, weight, bias)
    return x[:, 0]
