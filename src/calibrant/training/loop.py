"""The loop: members in lock-step, epoch by epoch; a killed epoch is repeated from its start.

    for each epoch:  for each batch, each member:  q = targets(labels);  x, q = transforms(x, q);  update(x, q)
                     validation = all members on the validation part;  targets.observe;  checkpoint

Every random number of an epoch comes from (seed, purpose, epoch), so a run that is killed and resumed ends with the
same weights bit for bit. Lightning Fabric provides device, precision and processes; checkpoints are our own.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from calibrant.data import Data
from calibrant.data.batches import Augment, Batches
from calibrant.errors import DivergedError, InputError
from calibrant.executors import OutOfTime
from calibrant.training import checkpoint
from calibrant.training.components import Components, components, known_values
from calibrant.training.epochs import TopLogits
from calibrant.training.evaluate import as_predictions, collect_logits, largest_logit, pool_members, summary
from calibrant.training.optimiser import make_optimiser, set_rate
from calibrant.training.progress import Progress
from calibrant.training.randomness import generator, seeded_generators
from calibrant.training.recipe import Recipe
from calibrant.training.step import (
    Captured,
    CompiledIfPossible,
    Member,
    Step,
    choose_engine,
    tuned_cudnn,
)
from calibrant.types import Predictions, Split

if TYPE_CHECKING:
    from lightning.fabric import Fabric

Refresh = Callable[[Sequence[nn.Module], int], Any]
"""(members, finished epochs) → what the target policy's `refresh` takes, such as robustness levels."""

CHECK_EVERY = 64
"""Steps between checks of the loss on an accelerator: each check waits for the device."""

EVALUATION_PIXELS = 1000 * 32 * 32
"""Pixels in a batch of predictions: a thousand small images, or a few large ones."""


@dataclass
class Loop:
    """One training. `run()` continues from the last checkpoint to the end; `predict` uses the members as they are."""

    recipe: Recipe
    data: Data
    fabric: Fabric
    networks: Sequence[nn.Module]
    folder: Path | None = None  # for checkpoints; None: nothing is saved
    every: int = 1  # epochs between checkpoints
    refresh: Refresh | None = None
    handed: Mapping[str, Any] = field(default_factory=dict)  # what a recipe cannot write: an attack for CCAT
    listen: Callable[[int, Predictions], None] | None = None  # (finished epochs, validation predictions)
    progress: Progress = field(default_factory=lambda: Progress("train", 0, quiet=True))
    history: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        r = self.recipe
        self.device = torch.device(self.fabric.device)
        self._resident: dict[tuple[Split, bool], Batches] = {}
        known = known_values(self.data)
        self.parts: Components = components(r, {**known, **self.handed})
        items, kind = self.data[Split.TRAIN].n, self.device.type
        self.engine, why = choose_engine(r, kind, self.fabric.world_size, self.parts.penalties[0], items)
        if why:
            self.progress.say(why)
        self.members = [self._member(network) for network in self.networks]
        self.steps: list[Step | Captured] = [
            Step(m, self.parts.criterion, p, r.ema, self.fabric.autocast, self.fabric.backward, self.fabric.world_size)
            for m, p in zip(self.members, self.parts.penalties, strict=True)
        ]
        if "graph" in self.engine and self.device.type != "cuda":
            raise InputError(f"engine {self.engine!r} needs a CUDA device, not {self.device.type}; --set engine=eager")
        if (n := self.data[Split.TRAIN].n) < 2 * self.fabric.world_size:
            raise InputError(f"the training part has {n} item(s), fewer than two per process; raise data.sizes")
        self.augment = None if r.augment is None else Augment(r.augment.crop_padding, r.augment.flip)

    def _member(self, network: nn.Module) -> Member:
        network.to(self.device)
        if self.recipe.channels_last:
            network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        forward: Any = network
        if "compile" in self.engine:
            auto = self.recipe.engine == "auto"
            forward = CompiledIfPossible(network, self.progress.say) if auto else torch.compile(network)
        if self.fabric.world_size > 1:
            forward = self.fabric.setup_module(network, _reapply_compile=False)
        average = copy.deepcopy(network).requires_grad_(False) if self.recipe.ema else None
        return Member(network, make_optimiser(self.recipe.optimiser, network), forward, average)

    # -- the run ---------------------------------------------------------------------------------------------------

    def run(self) -> list[dict[str, Any]]:
        """Train the remaining epochs and return one row of numbers per epoch."""
        done, self.history = 0, []
        if self.folder is not None:
            done, self.history = checkpoint.resume_training(
                self.folder, self.recipe, self.members, self.parts, self.progress.say
            )
        self.progress.begin(done, len(self._batches(Split.TRAIN, learn=True)))
        try:
            if done == 0:
                self._refresh(0)
            for epoch in range(done, self.recipe.epochs):
                row, validation = self._epoch(epoch)
                self.history.append(row)
                self.parts.policy.observe(epoch + 1, pool_members(validation))
                self._refresh(epoch + 1)
                if self.fabric.is_global_zero:
                    self._end_epoch(epoch + 1, row, validation)
        finally:
            self.progress.end()
        return self.history

    def _end_epoch(self, done: int, row: dict[str, Any], validation: Predictions) -> None:
        """Report the epoch and save the state. If the listener is out of time, its error is raised after that."""
        stopped = None
        try:
            if self.listen is not None:
                self.listen(done, validation)
        except OutOfTime as error:
            stopped = error
        self.progress.epoch(row)
        # the checkpoint comes last: after a kill before it, the epoch and its files are made again
        if self.folder is not None and (stopped or done % self.every == 0 or done == self.recipe.epochs):
            checkpoint.save_training(self.folder, done, self.recipe, self.members, self.parts, self.history)
        if stopped is not None:
            raise stopped

    def _epoch(self, epoch: int) -> tuple[dict[str, Any], Predictions]:
        start = time.perf_counter()
        for m in self.members:
            m.model.train()
        with (
            seeded_generators(self.device, self.recipe.seed, "layers", epoch, self.fabric.global_rank),
            tuned_cudnn(self.device),
        ):
            losses, hits, images = self._steps(epoch, start)
        if self.fabric.world_size > 1:
            losses = cast(Tensor, self.fabric.all_reduce(losses, reduce_op="mean"))
            hits = cast(Tensor, self.fabric.all_reduce(hits, reduce_op="sum"))
        loss, accuracy = float(losses.mean()), float(hits) / images  # waits for the device
        seconds = time.perf_counter() - start
        validation = self.predict(Split.VALIDATION)
        row = {
            "epoch": epoch + 1,
            "loss": loss,
            "train_accuracy": accuracy,
            **summary(validation),
            "lr": self.recipe.optimiser.lr * self._factor(epoch * len(losses), len(losses)),
            "images_per_second": images / seconds,
            "seconds": time.perf_counter() - start,
        }
        return row, validation

    def _steps(self, epoch: int, start: float) -> tuple[Tensor, Tensor, int]:
        r, parts = self.recipe, self.parts
        streams = [self._batches(Split.TRAIN, m, epoch, learn=True) for m in range(r.members)]
        rank = self.fabric.global_rank
        rngs = [generator(self.device, r.seed, "transforms", m, epoch, rank) for m in range(r.members)]
        steps = len(streams[0])
        losses = torch.zeros(steps, r.members, device=self.device)
        hits = torch.zeros((), dtype=torch.float64, device=self.device)
        seen: list[list[Tensor]] = []
        images, rate, look = 0, -1.0, 1 if self.device.type == "cpu" else CHECK_EVERY
        for i, batches in enumerate(zip(*streams, strict=True)):
            rate, before = r.optimiser.lr * self._factor(epoch * steps + i, steps), rate
            if rate != before:
                for member in self.members:
                    set_rate(member.optimiser, rate)
            total = min(r.batch, streams[0].part.n - i * r.batch)  # over all processes
            for m, (x, y, index) in enumerate(batches):
                q = parts.policy(y, index)
                for transform in parts.transforms:
                    x, q = transform(self.members[m].model, x, q, index, rngs[m])
                labels = None if parts.mixes else y
                loss, hit = self._update(m)(x, q, labels, index, total)
                losses[i, m] = loss
                hits += hit
                images += total
            seen.append([b[2] for b in batches])
            if (i + 1) % look == 0 or i + 1 == steps:
                self._check(losses, seen, epoch, i + 1)
                self.progress.step(epoch * steps + i + 1, images, time.perf_counter() - start)
        return losses, hits, images

    def _update(self, m: int) -> Callable[..., tuple[Tensor, Tensor]]:
        step = self.steps[m]
        if "graph" not in self.engine or isinstance(step, Captured):
            return step

        def first(x: Tensor, q: Tensor, labels: Tensor | None, index: Tensor, total: int) -> tuple[Tensor, Tensor]:
            captured = self.steps[m] = Captured(step, x, q, labels, index)
            return captured(x, q, labels, index, total)

        return first

    def _check(self, losses: Tensor, seen: list[list[Tensor]], epoch: int, done: int) -> None:
        """Raise an error that names the items of a batch whose loss is not finite; forget the batches before."""
        first = done - len(seen)
        latest = losses[first:done]
        if self.fabric.world_size > 1:  # all processes must stop together, or the others would wait forever
            latest = cast(Tensor, self.fabric.all_reduce(latest.clone(), reduce_op="sum"))
        bad = (~torch.isfinite(latest)).nonzero()
        if len(bad):
            step, member = int(bad[0][0]), int(bad[0][1])
            items = seen[step][member].tolist()
            saved = self.folder is not None and checkpoint.exists(self.folder)
            kept = f"the last good checkpoint in {self.folder} is kept" if saved else "no checkpoint was written yet"
            raise DivergedError(
                f"the loss is {float(latest[step, member])} in epoch {epoch + 1}, step {first + step + 1}, "
                f"member {member}, items {items}; {kept}: lower optimiser.lr or check these items"
            )
        seen.clear()

    def predict(self, split: Split) -> Predictions:
        """Predictions of all members (their averages, with EMA) on one part of the data, in its order."""
        with seeded_generators(self.device, self.recipe.seed, "predict"):  # worker processes of a loader draw a seed
            found = collect_logits([m.predictor for m in self.members], self._batches(split), self.fabric.autocast)
        return as_predictions(*found, split, self.data.classes)

    def top_logits(self, split: Split) -> TopLogits:
        """The predicted class and the largest logit of every item of a part, without augmentation."""
        with seeded_generators(self.device, self.recipe.seed, "predict"):
            found, labels, index = collect_logits(
                [m.predictor for m in self.members], self._batches(split), self.fabric.autocast, keep=largest_logit
            )
        both = found[0] if len(found) == 1 else found
        return TopLogits(both[..., 1].long().cpu(), both[..., 0].cpu(), labels.cpu(), index.cpu())

    # -- batches, rates, refreshes ---------------------------------------------------------------------------------

    def _batches(self, split: Split, member: int = 0, epoch: int = 0, learn: bool = False) -> Batches:
        """Batches of a part, which is kept on the device once; members and epochs differ only in the generator.

        With `learn`, items are shuffled, augmented and shared between processes; otherwise they keep their order."""
        if (split, learn) not in self._resident:
            part = self.data[split]
            pixels = math.prod(self.data.shape[1:]) if len(self.data.shape) == 3 else 1
            size = self.recipe.batch if learn else max(self.recipe.batch, EVALUATION_PIXELS // max(pixels, 1024))
            world = self.fabric.world_size if learn else 1
            self._resident[split, learn] = Batches(
                part,
                size,
                device=self.device,
                generator=torch.Generator(),
                shuffle=learn,
                augment=self.augment if learn else None,
                mean=self.data.mean,
                std=self.data.std,
                drop_last=learn and 0 < part.n % size < 2 * world,  # BatchNorm cannot normalise a batch of one item
                channels_last=self.recipe.channels_last,
                shard=(self.fabric.global_rank if learn else 0, world),
            )
        batches = copy.copy(self._resident[split, learn])
        batches.generator = generator("cpu", self.recipe.seed, "order", member, epoch)
        return batches

    def _factor(self, step: int, steps: int) -> float:
        return self.recipe.schedule.factor(step, steps, self.recipe.epochs)

    def _refresh(self, epoch: int) -> None:
        if not self.parts.policy.wants(epoch):
            return
        if self.refresh is None:
            name = self.recipe.targets.name
            raise InputError(f"targets {name!r} want levels after {epoch} epochs; pass refresh=, which computes them")
        self.parts.policy.refresh(self.refresh([m.predictor for m in self.members], epoch))
