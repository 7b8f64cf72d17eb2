"""Attacks on a CUDA device: the recorded loop in half precision finds what the eager one finds in float32."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from calibrant.attacks import DDN, CarliniWagner, DeepFool, robustness
from calibrant.nn import build

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.fixture(scope="module")
def network() -> nn.Module:
    """Trained a little on noise with a pattern per class, so that its gradients have a direction."""
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
    """Orders and sizes of batches, for which cuDNN chooses other kernels."""
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
def test_a_success_holds_in_other_batches(
    tf32: bool, attack: type[DDN], network: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in batches that the attack never saw, and without the TF32 that it was found with."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", tf32)
    x = images(256)
    own = labels(network, x, [torch.arange(256)])
    result = attack().run(network, x, own)
    assert torch.backends.cudnn.allow_tf32 is tf32 and result.success.float().mean() >= 0.99
    for parts in batches(256):
        assert (labels(network, result.adversarial, parts) != own)[result.success].float().mean() >= 0.98
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    clear = result.success & (labels(network, x, [torch.arange(256)]) == own)  # at a boundary, an input has two labels
    assert (labels(network, result.adversarial, [torch.arange(256)]) != own)[clear].float().mean() >= 0.98


@pytest.mark.parametrize("attack", [DDN, CarliniWagner, DeepFool])
def test_inputs_at_the_boundary_itself_are_moved_beyond_it(attack: type[DDN], network: nn.Module) -> None:
    """Half precision may take them for successes where they are."""
    x = images(256)
    found = DDN().run(network, x[:12]).adversarial
    x[:12] += torch.linspace(0.996, 1.002, 12, device="cuda")[:, None, None, None] * (found - x[:12])
    own = labels(network, x, [torch.arange(256)])
    result = attack().run(network, x, own)
    assert result.success.float().mean() >= 0.98
    near = result.distance[:12][result.success[:12]]
    assert float(near.median()) < 0.2 * float(result.distance[12:].median())


@pytest.mark.parametrize("attack", [DDN, CarliniWagner])
def test_graph_and_half_precision_measure_the_same_distance(attack: type[DDN], network: nn.Module) -> None:
    x = images(96)
    plain = attack(engine="eager", reduced=False).run(network, x)
    fast = attack().run(network, x)
    both = plain.success & fast.success
    assert both.float().mean() >= 0.98
    ratio = (fast.distance / plain.distance)[both]
    assert 0.97 < ratio.median() < 1.03 and 0.9 < ratio.mean() < 1.1


def test_distance_does_not_depend_on_the_batch(network: nn.Module) -> None:
    """Up to the rounding of TF32, in float32 from end to end."""
    x = images(96)
    whole = DDN(reduced=False).run(network, x).distance
    turned = DDN(reduced=False, batch=40).run(network, x.flip(0)).distance.flip(0)
    assert float((turned / whole).median()) == pytest.approx(1, abs=5e-3)
    assert float((turned / whole - 1).abs().quantile(0.8)) < 0.05


def test_finished_items_leave_the_batch(network: nn.Module) -> None:
    """The result of an item does not depend on how the batches shrink."""
    x = images(300)
    own = labels(network, x, [torch.arange(300)])  # in batches of 128 an input at the boundary may have another
    small = CarliniWagner(batch=128, iterations=200).run(network, x, own)
    whole = CarliniWagner(batch=512, iterations=200).run(network, x, own)
    for result in (small, whole):
        assert result.success.float().mean() >= 0.98
        assert int(result.calls.min()) < int(result.calls.max())
    both = small.success & whole.success
    assert 0.97 < float((small.distance / whole.distance)[both].median()) < 1.03


def test_everything_is_left_as_found(network: nn.Module) -> None:
    before = {k: v.clone() for k, v in network.state_dict().items()}
    formats = [p.stride() for p in network.parameters()]
    rng = torch.cuda.get_rng_state()
    robustness(network, images(64), "ddn")
    assert all(torch.equal(before[k], v) for k, v in network.state_dict().items())
    assert formats == [p.stride() for p in network.parameters()] and torch.equal(rng, torch.cuda.get_rng_state())
    assert all(p.grad is None and p.requires_grad and p.dtype == torch.float32 for p in network.parameters())
