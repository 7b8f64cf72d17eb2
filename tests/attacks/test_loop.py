"""What runs on CUDA, tested on the CPU: shrinking batches, buffers (replaying a step instead of a graph), half
precision."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from torch import Tensor, nn

from calibrant.attacks import DDN, CarliniWagner, DeepFool
from calibrant.attacks import loop as loop_module
from calibrant.attacks.attack import Attack
from calibrant.attacks.loop import Loop
from calibrant.attacks.task import Seen, State, Task
from tests.attacks.conftest import Victim


class Replayed:
    """A `RecordedStep` without a graph: every step writes to its own buffers."""

    sizes: ClassVar[list[int]] = []

    def __init__(self, step: Callable[[State], State], rows: State) -> None:
        self.step, self.buffers = step, {name: values.clone() for name, values in rows.items()}
        self.sizes.append(len(rows["done"]))

    def __call__(self, rows: State, steps: int) -> State:
        for name, values in rows.items():
            self.buffers[name].copy_(values)
        for _ in range(steps):
            for name, values in self.step(self.buffers).items():
                self.buffers[name].copy_(values)
        return dict(self.buffers)


@pytest.mark.parametrize("attack", [DeepFool, DDN, CarliniWagner])
def test_buffers_change_nothing(attack: type[DDN], victim: Victim, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"iterations": 12} if attack is CarliniWagner else {}
    plain = attack(bounds=victim.bounds, batch=32, **settings).run(victim.model, victim.x)
    monkeypatch.setattr(loop_module, "RecordedStep", Replayed)
    monkeypatch.setattr(loop_module, "SMALLEST_GRAPH", 8)
    monkeypatch.setattr(Loop, "_records", lambda self: True)
    Replayed.sizes.clear()
    buffered = attack(bounds=victim.bounds, batch=32, **settings).run(victim.model, victim.x)
    torch.testing.assert_close(buffered.distance, plain.distance, rtol=1e-6, atol=0)
    assert torch.equal(buffered.calls, plain.calls)
    assert set(Replayed.sizes) <= {8, 16, 32}  # 60 items in two parts; few sizes, each recorded once
    assert len(set(Replayed.sizes)) == len(Replayed.sizes)


@pytest.mark.parametrize("scale", [1.0, 1e6, 1e-12])
def test_half_precision_measures_the_same_distances(scale: float, victim: Victim) -> None:
    """In float16, large weights become infinite and small logits have no gradient. Those items are attacked again."""

    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(64, 16), nn.Linear(16, 4)
            with torch.no_grad():
                g = torch.Generator().manual_seed(0)
                for p in self.parameters():
                    p.copy_(torch.randn(p.shape, generator=g) / 4)
                for p in self.first.parameters():
                    p.mul_(scale)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.second(torch.tanh(self.first(x.flatten(1)) / scale)) * min(1.0, scale)
            return out

    model = Scaled().eval()
    plain = DDN(bounds=victim.bounds).run(model, victim.x[:12])
    half = DDN(bounds=victim.bounds, reduced=True).run(model, victim.x[:12])
    assert bool(plain.success.all()) and bool(half.success.all())
    torch.testing.assert_close(half.distance, plain.distance, rtol=0.02, atol=0)


@pytest.mark.parametrize(
    "attack", [DDN(batch=4), CarliniWagner(batch=4, iterations=20)], ids=lambda a: type(a).__name__
)
def test_logits_may_be_wider_than_the_inputs(attack: Attack) -> None:
    g = torch.Generator().manual_seed(0)
    w = torch.randn(5, 12, generator=g, dtype=torch.float64)
    x = torch.rand(11, 12, generator=g)
    result = attack.run(lambda x: torch.tanh(x.double() @ w.T), x)
    assert bool(result.success.all()) and result.distance.dtype == x.dtype


@dataclass(frozen=True, kw_only=True)
class Once(Attack):
    """Spends its budget in one of three steps, and is done."""

    nearest: ClassVar[bool] = False
    steps: ClassVar[int] = 3  # type: ignore[assignment]

    def step(self, task: Task, state: State, seen: Seen) -> State:
        return {"point": state["point"] + 0.1, "done": seen.distance >= 0}


def test_an_item_that_is_done_is_not_moved_any_further() -> None:
    result = Once().run(nn.Linear(4, 2), torch.zeros(3, 4))
    torch.testing.assert_close(result.adversarial, torch.full((3, 4), 0.1))
    assert result.calls.tolist() == [1, 1, 1]
