"""Attacks on a CUDA device: the captured, reduced-precision loop finds what the eager float32 one finds."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from calibrant.attacks import DDN, CarliniWagner, robustness
from calibrant.nn import build

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.fixture(scope="module")
def network() -> nn.Module:
    """Trained a little on coloured noise with a planted pattern, so that gradients point somewhere."""
    model = build("resnet20", classes=4).cuda()
    g = torch.Generator("cuda").manual_seed(0)
    patterns = torch.rand(4, 3, 32, 32, device="cuda", generator=g)
    optimiser = torch.optim.Adam(model.parameters(), 1e-3)
    for _ in range(150):
        y = torch.randint(4, (128,), device="cuda", generator=g)
        x = 0.5 * patterns[y] + 0.5 * torch.rand(128, 3, 32, 32, device="cuda", generator=g)
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimiser.step()
    optimiser.zero_grad(set_to_none=True)
    return model.eval()


def images(n: int) -> torch.Tensor:
    return 0.2 + 0.6 * torch.rand(n, 3, 32, 32, device="cuda", generator=torch.Generator("cuda").manual_seed(7))


@pytest.mark.parametrize("attack", [DDN, CarliniWagner])
def test_graph_and_bfloat16_measure_the_same_distance(attack: type[DDN], network: nn.Module) -> None:
    x = images(96)
    plain = attack(engine="eager", reduced=False).run(network, x)
    fast = attack().run(network, x)
    assert bool(plain.success.all()) and bool(fast.success.all())
    with torch.no_grad():
        assert bool((network(fast.adversarial).argmax(-1) != network(x).argmax(-1)).all())
    ratio = fast.distance / plain.distance
    assert 0.97 < ratio.median() < 1.03 and 0.9 < ratio.mean() < 1.1


def test_slots_are_refilled_and_shrink(network: nn.Module) -> None:
    x = images(300)
    small = CarliniWagner(batch=128, iterations=60).run(network, x)
    assert bool(small.success.all()) and small.calls.min() > 0


def test_everything_is_left_as_found(network: nn.Module) -> None:
    before = {k: v.clone() for k, v in network.state_dict().items()}
    formats = [p.stride() for p in network.parameters()]
    rng = torch.cuda.get_rng_state()
    robustness(network, images(64), "ddn")
    assert all(torch.equal(before[k], v) for k, v in network.state_dict().items())
    assert formats == [p.stride() for p in network.parameters()] and torch.equal(rng, torch.cuda.get_rng_state())
    assert all(p.grad is None and p.requires_grad and p.dtype == torch.float32 for p in network.parameters())
