"""The loss that a model's training minimised, on augmented mini-batches (SS A.3: on clean ones the Hessian differs).

A run's recipe names the loss, penalties, targets, transforms, augmentation and weight decay. For any other model the
loss is cross-entropy on the items as they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from calibrant.cli.probes.request import Request
from calibrant.data.batches import Augment, Batches
from calibrant.diagnostics.curvature import Loss
from calibrant.ensembles.reference import Reference
from calibrant.errors import NotApplicableError
from calibrant.protocols import Batch, Stateful
from calibrant.training.components import components, known_values
from calibrant.training.randomness import generator
from calibrant.training.recipe import Recipe, read
from calibrant.training.run_folder import chosen
from calibrant.types import Split

BATCH = 128
"""The batch size of SS Fig. 8."""


@dataclass(frozen=True)
class Objective:
    """Mini-batches (x, targets), their mean loss, the factor of ½‖θ‖², and a description in words."""

    batches: list[tuple[Tensor, Tensor]]
    loss: Loss
    weight_decay: float
    description: str


def recipe_of(model: Reference) -> Recipe | None:
    """Return the recipe of a run; other models have none."""
    return read(chosen(Path(model.name)) / "recipe.json") if Path(model.name).is_dir() else None


def batch_size(request: Request) -> int:
    """Return the batch size, one for all models, so that they see the same mini-batches."""
    recipe = recipe_of(request.models[0])
    asked = request.options["batch"]
    return int(asked) if asked else recipe.batch if recipe is not None else BATCH


def objective(request: Request, model: Reference, count: int) -> Objective:
    """Return `count` mini-batches of the training part and their loss; items and crops are the same for every model."""
    recipe, part = recipe_of(model), request.data[Split.TRAIN]
    augment = None
    if recipe is not None and recipe.augment is not None:
        augment = Augment(recipe.augment.crop_padding, recipe.augment.flip)
    size = min(batch_size(request), part.n)
    stream = Batches(
        part,
        size,
        device=request.device,
        generator=generator("cpu", 0, "probe"),
        shuffle=True,
        augment=augment,
        mean=model.mean,
        std=model.std,
        drop_last=True,
    )
    raw = [batch for batch, _ in zip(stream, range(count), strict=False)]
    if recipe is None:
        return Objective([(x, y) for x, y, _ in raw], F.cross_entropy, 0.0, "cross-entropy, no augmentation known")
    return _of_recipe(request, model, recipe, raw)


def _of_recipe(request: Request, model: Reference, recipe: Recipe, raw: list[Any]) -> Objective:
    made = components(recipe, known_values(request.data))
    penalties = made.penalties[0]
    for choice, penalty in zip(recipe.penalties, penalties, strict=True):
        if isinstance(penalty, Stateful):
            raise NotApplicableError(
                f"{model.name} was trained with the penalty {choice.name!r}, which depends on earlier batches; its "
                "loss has no Hessian on one mini-batch"
            )
    rng = generator(request.device, 0, "probe", "transforms")
    batches = []
    for x, y, index in raw:
        q = made.policy(y, index)
        for transform in made.transforms:
            x, q = transform(model.members[0], x, q, index, rng)
        batches.append((x, q))

    def loss(logits: Tensor, q: Tensor) -> Tensor:
        total = made.criterion(logits, q).mean()
        labels = None if made.mixes else q.argmax(-1)
        for penalty in penalties:
            total = total + penalty(logits, Batch(q, labels, torch.arange(len(q), device=q.device)))
        return total

    decay = recipe.optimiser.weight_decay
    words = [recipe.loss.name, *(c.name for c in recipe.penalties), f"targets {recipe.targets.name}"]
    words += ["augmented" if recipe.augment else "not augmented", *(c.name for c in recipe.transforms)]
    return Objective(batches, loss, decay, f"{', '.join(words)}, weight decay {decay:g}")
