"""How much an attack harms a predictor: accuracy under attack, attack success rate, median distance.

ASR = 1 − acc_adv / acc_clean      (fits the rows of SS Table E.2; the paper does not state it)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from calibrant.attacks.attack import Attack
from calibrant.attacks.gradients import PixelModel
from calibrant.attacks.networks import predictor_device, untouched
from calibrant.attacks.task import norms
from calibrant.errors import InputError

BATCH = 512


@dataclass(frozen=True)
class Strength:
    """The strength of an attack on labelled items. Items that are misclassified before the attack stay wrong."""

    accuracy: float
    accuracy_under_attack: float
    success_rate: float
    median_distance: float  # over items that were right before; infinite if fewer than half of them became wrong
    calls: float  # mean number of gradient evaluations over the same items


def assess(predictor: Any, attack: Attack, x: Tensor, labels: Tensor) -> Strength:
    """Attack `x` away from its labels. Fresh forward passes before and after tell which items are right."""
    result = attack.run(predictor, x, labels=labels)
    labels = torch.as_tensor(labels).to(result.success.device).long()  # torch cannot compare uint16
    right, still = (predicted(predictor, attack, inputs) == labels for inputs in (x, result.adversarial))
    if not bool(right.any()):
        raise InputError("no item is classified correctly, so there is nothing to attack; check the labels")
    still &= right  # an attack cannot make a wrong item right
    clean, under = right.double().mean().item(), still.double().mean().item()
    moved = norms(attack.bounds.pixels(result.adversarial) - attack.bounds.pixels(x.to(still.device)), attack.norm)
    return Strength(
        clean,
        under,
        attack_success_rate(clean, under),
        median_distance(torch.where(still, torch.inf, moved)[right]),
        result.calls[right].double().mean().item(),
    )


def predicted(predictor: Any, attack: Attack, x: Tensor) -> Tensor:
    """Return the predicted classes [N], from a forward pass in eval mode that leaves the networks as they were."""
    device = predictor_device(predictor, x.device)
    with untouched(predictor, device):
        model = PixelModel(predictor, attack.bounds, x.dtype)
        return model.logits(attack.bounds.pixels(x.to(device)), BATCH).argmax(-1)


def attack_success_rate(accuracy: float, accuracy_under_attack: float) -> float:
    """Return 1 − acc_adv / acc_clean."""
    if not 0 < accuracy <= 1 or not 0 <= accuracy_under_attack <= 1:
        raise InputError(
            f"accuracy must be in (0, 1], under attack in [0, 1]; got {accuracy} and {accuracy_under_attack}"
        )
    return 1 - accuracy_under_attack / accuracy


def median_distance(distance: Tensor) -> float:
    """Return the median distance; an item without a success is infinitely far away."""
    ordered = torch.as_tensor(distance).double().sort().values
    n = len(ordered)
    if not n:
        raise InputError("there is no distance to take the median of; attack at least one item")
    return ((ordered[(n - 1) // 2] + ordered[n // 2]) / 2).item()
