"""Attacks on a CUDA device: the captured, half-precision loop finds what eager float32 finds, for every batch."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from calibrant.attacks import DDN, CarliniWagner, DeepFool, robustness
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


def batches(n: int) -> list[list[torch.Tensor]]:
    """Orders and sizes of batches: for each, kernels are chosen anew."""
    turned = torch.randperm(n, generator=torch.Generator().manual_seed(3))
    return [[torch.arange(n)], [turned], list(turned.split(32)), list(torch.arange(n).split(5)), list(turned.split(1))]


@torch.no_grad()
def labels(network: nn.Module, x: torch.Tensor, parts: list[torch.Tensor]) -> torch.Tensor:
    found = torch.zeros(len(x), dtype=torch.long, device="cuda")
    for rows in parts:
        found[rows.cuda()] = network(x[rows.cuda()]).argmax(-1)
    return found


@pytest.mark.parametrize("attack", [DDN, CarliniWagner, DeepFool])
@pytest.mark.parametrize("tf32", [True, False])
def test_a_success_is_one_in_every_batch(
    tf32: bool, attack: type[DDN], network: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in batches that the attack never saw, and without the TF32 that it was found with."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", tf32)
    x = images(96)
    own = labels(network, x, [torch.arange(96)])
    result = attack().run(network, x, own)
    assert torch.backends.cudnn.allow_tf32 is tf32 and bool(result.success.all())
    for parts in batches(96):
        assert bool((labels(network, result.adversarial, parts) != own).all())
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    clear = labels(network, x, [torch.arange(96)]) == own  # an input at the boundary itself has two labels
    assert clear.float().mean() > 0.95
    for parts in batches(96)[:3]:
        assert bool((labels(network, result.adversarial, parts) != own)[clear].all())


@pytest.mark.parametrize("attack", [DDN, CarliniWagner, DeepFool])
def test_inputs_at_the_boundary_itself_are_moved_beyond_the_noise(attack: type[DDN], network: nn.Module) -> None:
    """Half precision takes them for arrived, so that they are attacked apart, a few at a time, by other kernels."""
    x = images(512)
    found = DDN().run(network, x[:12]).adversarial
    x[:12] += torch.linspace(0.996, 1.002, 12, device="cuda")[:, None, None, None] * (found - x[:12])
    own = labels(network, x, [torch.arange(512)])
    result = attack().run(network, x, own)
    assert bool(result.success.all()) and bool((result.distance[:12] < 0.2 * result.distance[12:].median()).all())
    for parts in batches(512):
        assert bool((labels(network, result.adversarial, parts) != own).all())


@pytest.mark.parametrize("attack", [DDN, CarliniWagner])
def test_graph_and_half_precision_measure_the_same_distance(attack: type[DDN], network: nn.Module) -> None:
    x = images(96)
    plain = attack(engine="eager", reduced=False).run(network, x)
    fast = attack().run(network, x)
    assert bool(plain.success.all()) and bool(fast.success.all())
    ratio = fast.distance / plain.distance
    assert 0.97 < ratio.median() < 1.03 and 0.9 < ratio.mean() < 1.1


def test_distance_does_not_depend_on_the_batch(network: nn.Module) -> None:
    """Other neighbours, other slots: the same to the noise of TF32 (attacks in float32 from end to end)."""
    x = images(96)
    whole = DDN(reduced=False).run(network, x).distance
    turned = DDN(reduced=False, batch=40).run(network, x.flip(0)).distance.flip(0)
    assert float((turned / whole).median()) == pytest.approx(1, abs=5e-3)
    assert float((turned / whole - 1).abs().quantile(0.8)) < 0.05


def test_slots_are_refilled_and_shrink(network: nn.Module) -> None:
    """Every item passes through the slots once, in its own place, whatever stood there before it."""
    x = images(300)
    # a rate that is halved five times, every 15 iterations at most often, ends a search no sooner than after 75
    own = labels(network, x, [torch.arange(300)])  # in batches of 128 an input at the boundary may have another
    small = CarliniWagner(batch=128, iterations=200).run(network, x, own)
    whole = CarliniWagner(batch=512, iterations=200).run(network, x, own)
    for result in (small, whole):  # 200 iterations in half precision: not the paper's 500, whose success is 1
        assert result.success.float().mean() > 0.98
        assert 200 <= result.calls.min() < result.calls.max() <= 4 * 201  # who is done leaves
    both = small.success & whole.success
    assert 0.97 < float((small.distance / whole.distance)[both].median()) < 1.03
    assert bool((labels(network, small.adversarial, [torch.arange(300)]) != own)[small.success].all())


def test_everything_is_left_as_found(network: nn.Module) -> None:
    before = {k: v.clone() for k, v in network.state_dict().items()}
    formats = [p.stride() for p in network.parameters()]
    rng = torch.cuda.get_rng_state()
    robustness(network, images(64), "ddn")
    assert all(torch.equal(before[k], v) for k, v in network.state_dict().items())
    assert formats == [p.stride() for p in network.parameters()] and torch.equal(rng, torch.cuda.get_rng_state())
    assert all(p.grad is None and p.requires_grad and p.dtype == torch.float32 for p in network.parameters())
