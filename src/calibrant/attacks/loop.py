"""The loop of every attack: slots that are always full, nothing read from the device between two looks.

Items enter the slots, step until they are done, and leave; others take their place, and when none are left the batch
shrinks. So a hard item does not keep easy ones computing. On CUDA one step of a slot size is captured as a graph and
replayed: small networks are bound by kernel launches otherwise. Items are rows that never meet, whatever the slot.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from calibrant.attacks.captured import Captured
from calibrant.attacks.field import FEWEST, Field
from calibrant.attacks.task import Seen, State, Task, norms, spread
from calibrant.errors import InputError, unknown

if TYPE_CHECKING:
    from calibrant.attacks.attack import Attack

SLOTS = {"cpu": 128, "cuda": 2048}
SMALLEST = {"cpu": FEWEST, "cuda": 64}
"""Slots are never fewer; on CUDA the time no longer shrinks with the batch below."""
ENGINES = ("auto", "eager", "graph", "compile")
NOBODY = -1
WORTH_CAPTURING = 8
"""Steps from which recording a graph pays."""
LONGEST = 64
"""Times its `steps` that an item may take while c is searched for; an attack that never says `done` ends there."""


class Loop:
    """`loop(task)` runs the attack on all items; what was captured serves the next call."""

    def __init__(self, attack: Attack, field: Field, device: torch.device) -> None:
        self.attack, self.field, self.device = attack, field, device
        self.size = attack.batch if attack.batch is not None else SLOTS.get(device.type, SLOTS["cpu"])
        if self.size < 1:
            raise InputError(f"batch must be at least 1, got {self.size}")
        self.smallest = SMALLEST.get(device.type, SMALLEST["cpu"])
        self.captures = self._captures()
        self._graphs: dict[tuple[object, ...], Captured] = {}

    def __call__(self, task: Task) -> State:
        """Of each item, in the task's order: `best` (a success, if there was one), last `point`, `calls`, `moved`."""
        n = len(task.origin)
        out = {
            "best": task.origin.clone(),
            "point": task.origin.clone(),
            "calls": torch.zeros(n, dtype=torch.long, device=self.device),
            "moved": torch.zeros(n, dtype=torch.bool, device=self.device),
        }
        waiting = min(self.size, n)
        rows = self._settle(self._fill(self._enter(task, torch.arange(waiting, device=self.device))), task.targeted)
        period = min(self.attack.period or self.attack.steps, self.attack.steps)
        while True:
            for _ in range(period):
                rows = self._advance(rows, task.targeted)
            done = rows["done"]
            left = int((~done).sum())  # the only wait for the device
            real = done & (rows["item"] >= 0)
            for name, values in out.items():
                values[rows["item"][real]] = rows[name][real]
            if waiting < n:
                slots = done.nonzero().squeeze(1)[: n - waiting]
                fresh = self._enter(task, torch.arange(waiting, waiting + len(slots), device=self.device))
                for name, values in rows.items():
                    values[slots] = fresh[name]
                waiting += len(slots)
            elif not left:
                return out
            else:
                rows = self._shrink(rows, left, task.targeted)

    def _enter(self, task: Task, items: Tensor) -> State:
        chosen = task.take(items)
        n = len(items)
        return {
            "item": items,
            "origin": chosen.origin,
            "reference": chosen.reference,
            "best": chosen.origin.clone(),
            "nearest": torch.full((n,), torch.inf, device=self.device, dtype=task.origin.dtype),
            "calls": torch.zeros(n, dtype=torch.long, device=self.device),
            "moved": torch.zeros(n, dtype=torch.bool, device=self.device),
            **self.attack.begin(chosen),
        }

    def _fill(self, rows: State) -> State:
        """At least as many rows as the smallest batch: copies of the first that are done from the start."""
        missing = self.smallest - len(rows["done"])
        if missing <= 0:
            return rows
        filled = {name: torch.cat([v, v[:1].expand(missing, *v.shape[1:])]) for name, v in rows.items()}
        filled["done"][-missing:] = True
        filled["item"][-missing:] = NOBODY
        return filled

    def _shrink(self, rows: State, left: int, targeted: bool) -> State:
        """Only the rows that are not done; on CUDA a power of two of slots, so that few graphs are recorded."""
        now = len(rows["done"])
        wanted = min(now, max(self.smallest, 1 << (left - 1).bit_length() if self.captures else left))
        if wanted > now * 7 // 8:
            return rows
        kept = rows["done"].int().argsort(stable=True)[:wanted]
        return self._settle({name: values[kept] for name, values in rows.items()}, targeted)

    def _settle(self, rows: State, targeted: bool) -> State:
        """Rows where the next step reads them: as they are, or in the buffers of the graph of their size."""
        if not self.captures:
            return rows
        key = self._key(rows, targeted)
        if key not in self._graphs:
            self._graphs[key] = Captured(lambda held: self._step(held, targeted), rows)
        return self._graphs[key].fill(rows)

    def _advance(self, rows: State, targeted: bool) -> State:
        return self._graphs[self._key(rows, targeted)].replay() if self.captures else self._step(rows, targeted)

    def _key(self, rows: State, targeted: bool) -> tuple[object, ...]:
        return len(rows["done"]), targeted, rows["point"].shape, rows["point"].dtype

    def _step(self, rows: State, targeted: bool) -> State:
        """One gradient evaluation of every row, what it tells, and the attack's own step."""
        attack = self.attack
        task = Task(rows["origin"], rows["reference"], attack.bounds, targeted, attack.confident)
        point, live = rows["point"], ~rows["done"]
        logits, gradient = self.field.gradient(point, lambda z: attack.objective(task, rows, z))
        evaluations = len(gradient)
        steepness = gradient.flatten(2).abs().sum(-1).amax(0)  # comparisons with what is no number are false
        success = task.succeeded(logits)
        distance = norms(point - task.origin, attack.norm)
        closer = distance < rows["nearest"] if attack.nearest else True
        better = live & success & closer
        seen = Seen(logits, gradient[0] if evaluations == 1 else gradient, success, distance)
        # logits may be wider than the items, which others enter later
        following = {name: v.to(rows[name].dtype) for name, v in attack.step(task, rows, seen).items()}
        calls = rows["calls"] + evaluations * live
        return {
            **rows,
            **following,
            # who is done stays where it is, whatever the step says of it
            "point": torch.where(spread(live, point), attack.bounds.clip(following["point"]), point),
            "best": torch.where(spread(better, point), point, rows["best"]),
            "nearest": torch.where(better, distance, rows["nearest"]),
            "calls": calls,
            "moved": rows["moved"] | ((steepness > 0) & (steepness < torch.inf)),
            "done": rows["done"] | following["done"] | (calls >= LONGEST * evaluations * attack.steps),
        }

    def _captures(self) -> bool:
        asked = self.attack.engine
        if asked not in ENGINES:
            raise unknown("engine", str(asked), ENGINES)
        if asked in ("graph", "compile") and self.device.type != "cuda":
            raise InputError(f"engine {asked!r} needs a CUDA device, not {self.device}; use engine='eager'")
        possible = self.device.type == "cuda" and not self.field.members
        return asked in ("graph", "compile") or (asked == "auto" and possible and self.attack.steps >= WORTH_CAPTURING)
