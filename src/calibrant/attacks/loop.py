"""The loop of every attack: all items take steps together, and finished items leave the batch.

Every few steps the loop asks which items are done. When half of the batch is, the rest continues in a batch of half the
size. The sizes are powers of two, because cuDNN plans every new size. On CUDA a step is recorded as a graph, one per
size, because kernel launches would limit small networks. Nothing is read from the device between two such checks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from calibrant.attacks.gradients import PixelModel
from calibrant.attacks.task import Seen, State, Task, norms, spread
from calibrant.errors import InputError

if TYPE_CHECKING:
    from calibrant.attacks.attack import Attack

BATCH_LIMITS = {"cpu": 128, "cuda": 2048}
"""The most items attacked at once, unless the attack has a `batch`."""
MOST_NUMBERS = 2**27
"""The most numbers attacked at once: half a gigabyte, of which an attack needs about ten times as much memory."""
PERIOD = 5
"""Number of steps between two checks of which items are done."""
SMALLEST_GRAPH = 64
"""The smallest batch of a graph: on CUDA, a step of fewer items takes no less time."""
WORTH_RECORDING = 8
"""The fewest steps for which recording a graph pays off."""
WARM_STEPS = 3
"""Eager steps before recording, in which libraries choose algorithms and allocate workspaces."""
RESULTS = ("best", "point", "calls", "moved")


class Loop:
    """`loop(task, done)` runs the attack on all items that are not done; recorded graphs serve the next call too."""

    def __init__(self, attack: Attack, model: PixelModel, device: torch.device) -> None:
        self.attack, self.model, self.device = attack, model, device
        self.records = self._records()
        self._graphs: dict[tuple[object, ...], RecordedStep] = {}

    def __call__(self, task: Task, done: Tensor) -> State:
        """Return each item's nearest success `best`, last `point`, `calls`, and `moved`: whether it had a gradient."""
        size = len(done) if self.model.whole_batch else batch_size(self.attack, task.origin)
        parts = []
        for rows in torch.split(torch.arange(len(done), device=self.device), size):
            n = len(rows)
            if self.records and not self.model.whole_batch:  # pad, or every number of items would need its own graph
                rows = torch.cat([rows, rows[:1].expand(self._size(n) - n)])
            finished = done[rows]
            finished[n:] = True
            ended = self._run(task.take(rows), finished)
            parts.append({name: values[:n] for name, values in ended.items()})
        return {name: torch.cat([part[name] for part in parts]) for name in RESULTS}

    def _initial(self, task: Task, done: Tensor) -> State:
        n = len(done)
        return {
            "item": torch.arange(n, device=self.device),
            "origin": task.origin,
            "reference": task.reference,
            "clearance": task.clearance,
            "best": task.origin.clone(),
            "nearest": torch.full((n,), torch.inf, device=self.device, dtype=task.origin.dtype),
            "t": torch.zeros(n, dtype=torch.long, device=self.device),
            "calls": torch.zeros(n, dtype=torch.long, device=self.device),
            "moved": torch.zeros(n, dtype=torch.bool, device=self.device),
            "point": task.origin.clone(),
            **self.attack.begin(task),
            "done": done.clone(),
        }

    def _run(self, task: Task, done: Tensor) -> State:
        rows = self._initial(task, done)
        ended = {name: rows[name].clone() for name in RESULTS}
        for taken in range(0, self.attack.steps, PERIOD):
            left = int((~rows["done"]).sum())  # the only place that waits for the device
            if not left:
                break
            if self._size(left) < len(rows["done"]) and not self.model.whole_batch:
                _copy_rows(rows, ended)
                kept = rows["done"].int().argsort(stable=True)[: self._size(left)]
                rows = {name: values[kept] for name, values in rows.items()}
            rows = self._advance(rows, min(PERIOD, self.attack.steps - taken), task.targeted)
        _copy_rows(rows, ended)
        return ended

    def _size(self, left: int) -> int:
        """Return the batch size for the remaining items: a power of two."""
        return max(1 << (left - 1).bit_length(), SMALLEST_GRAPH if self.records else 1)

    def _advance(self, rows: State, steps: int, targeted: bool) -> State:
        if not self.records:
            for _ in range(steps):
                rows = self._step(rows, targeted)
            return rows
        key = (len(rows["done"]), targeted, rows["point"].shape, rows["point"].dtype)
        if key not in self._graphs:
            self._graphs[key] = RecordedStep(lambda held: self._step(held, targeted), rows)
        return self._graphs[key](rows, steps)

    def _step(self, rows: State, targeted: bool) -> State:
        """Evaluate the gradient of every row, note successes, and take the attack's own step."""
        attack = self.attack
        task = Task(rows["origin"], rows["reference"], rows["clearance"], attack.bounds, targeted)
        point, live = rows["point"], ~rows["done"]
        logits, gradient = self.model.gradient(point, lambda z: attack.objective(task, rows, z))
        gradient = gradient.nan_to_num(0.0, 0.0, 0.0)
        success, distance = task.margin(logits) > 0, norms(point - task.origin, attack.norm)
        better = live & success & (distance < rows["nearest"])
        seen = Seen(logits, gradient[0] if len(gradient) == 1 else gradient, success, distance)
        following = {name: v.to(rows[name].dtype) for name, v in attack.step(task, rows, seen).items()}
        return {
            **rows,
            **following,
            # finished items are not moved any further
            "point": torch.where(spread(live, point), attack.bounds.clip(following["point"]), point),
            "best": torch.where(spread(better, point), point, rows["best"]),
            "nearest": torch.where(better, distance, rows["nearest"]),
            "t": rows["t"] + 1,
            "calls": rows["calls"] + len(gradient) * live,
            "moved": rows["moved"] | (gradient != 0).flatten(2).any(-1).any(0),
            "done": rows["done"] | following.get("done", rows["done"]),
        }

    def _records(self) -> bool:
        asked = self.attack.engine
        if asked == "graph" and self.device.type != "cuda":
            raise InputError(f"engine 'graph' needs a CUDA device, not {self.device}; use engine='eager'")
        possible = self.device.type == "cuda" and not self.model.members and self.attack.steps >= WORTH_RECORDING
        return asked == "graph" or (asked == "auto" and possible)


class RecordedStep:
    """One step recorded as a CUDA graph that reads and writes its own buffers."""

    def __init__(self, step: Callable[[State], State], rows: State) -> None:
        self.buffers = {name: values.clone() for name, values in rows.items()}
        device = rows["done"].device
        side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(side):
            for _ in range(WARM_STEPS):
                step(self.buffers)
        torch.cuda.current_stream(device).wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(self.graph, stream=side):  # by default that of the current device
                for name, values in step(self.buffers).items():
                    if values is not self.buffers[name]:
                        self.buffers[name].copy_(values)
        except RuntimeError as error:
            reason = str(error).splitlines()[0]
            raise InputError(f"this model cannot be captured as a CUDA graph ({reason}); use engine='eager'") from error

    def __call__(self, rows: State, steps: int) -> State:
        for name, values in rows.items():
            if values is not self.buffers[name]:
                self.buffers[name].copy_(values)
        for _ in range(steps):
            self.graph.replay()
        return dict(self.buffers)


def _copy_rows(rows: State, results: State) -> None:
    for name, values in results.items():
        values[rows["item"]] = rows[name]


def batch_size(attack: Attack, x: Tensor) -> int:
    """Return the number of items that are attacked at once, such that all batches are equally large."""
    batches = -(-len(x) // (attack.batch or most_items(x.device, x[0].numel())))
    return -(-len(x) // batches)


def most_items(device: torch.device, numbers: int) -> int:
    """Return the most items that are attacked at once, if an item has this many numbers."""
    return max(1, min(BATCH_LIMITS.get(device.type, BATCH_LIMITS["cpu"]), MOST_NUMBERS // max(1, numbers)))
