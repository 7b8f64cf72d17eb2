"""Attacks on a CUDA device: the recorded loop in half precision finds what the eager one finds in float32; inputs on
the CPU, ensembles and a caller's autocast are as good there as anywhere."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from calibrant.attacks import ATTACKS, DDN, PGD, Attack, CarliniWagner, DeepFool, assess, robustness
from calibrant.data.batches import Batches
from calibrant.data.records import Part
from calibrant.ensembles import PEP, MCDropout
from calibrant.nn import build

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.fixture(scope="module")
def network() -> nn.Module:
    """A network trained briefly on noise with a pattern per class, so that its gradients have a direction."""
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
    """Yield orders and sizes of batches for which cuDNN chooses other kernels."""
    turned = torch.randperm(n, generator=torch.Generator().manual_seed(3))
    return [[torch.arange(n)], [turned], list(turned.split(32)), list(torch.arange(n).split(5)), list(turned.split(1))]


@torch.no_grad()
def labels(network: nn.Module, x: torch.Tensor, parts: list[torch.Tensor]) -> torch.Tensor:
    found = torch.zeros(len(x), dtype=torch.long, device="cuda")
    for rows in parts:
        found[rows.cuda()] = network(x[rows.cuda()]).argmax(-1)
    return found


@pytest.mark.parametrize(("attack", "tf32"), [(DDN, True), (DDN, False), (CarliniWagner, True), (DeepFool, True)])
def test_a_success_holds_in_other_batches(
    attack: type[DDN], tf32: bool, network: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A success holds in batches that the attack never used, and without TF32."""
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
    """In half precision these items may seem to be successes at the input."""
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
    """Distances agree up to the rounding of TF32, in float32 throughout."""
    x = images(96)
    whole = DDN(reduced=False).run(network, x).distance
    turned = DDN(reduced=False, batch=40).run(network, x.flip(0)).distance.flip(0)
    assert float((turned / whole).median()) == pytest.approx(1, abs=5e-3)
    assert float((turned / whole - 1).abs().quantile(0.8)) < 0.05


def test_finished_items_leave_the_batch(network: nn.Module) -> None:
    """The result of an item does not depend on how batches shrink."""
    x = images(300)
    own = labels(network, x, [torch.arange(300)])  # in batches of 128 an input at the boundary may have another
    small = CarliniWagner(batch=128, iterations=200).run(network, x, own)
    whole = CarliniWagner(batch=512, iterations=200).run(network, x, own)
    for result in (small, whole):
        assert result.success.float().mean() >= 0.98
        assert int(result.calls.min()) < int(result.calls.max())
    both = small.success & whole.success
    assert 0.97 < float((small.distance / whole.distance)[both].median()) < 1.03


BUDGETED = [made for made in ATTACKS.values() if not made.nearest]


@pytest.mark.parametrize("engine", ["eager", "graph"])
@pytest.mark.parametrize("attack", BUDGETED)
def test_a_budget_is_spent_as_on_the_cpu(attack: type[Attack], engine: str, network: nn.Module) -> None:
    """A sign may differ where the gradient is almost zero."""
    x, steps = images(16), {"iterations": 4} if attack is PGD else {}
    there = attack(epsilon=0.03, engine=engine, **steps)(network, x).cpu()  # type: ignore[call-arg, arg-type]
    here = attack(epsilon=0.03, **steps)(copy.deepcopy(network).cpu(), x.cpu())  # type: ignore[call-arg]
    assert ((there - here).abs() < 1e-3).float().mean() > 0.9


def test_inputs_may_come_from_the_cpu(network: nn.Module) -> None:
    x = images(40)
    y = labels(network, x, [torch.arange(40)]).cpu()
    part = Part((255 * x).byte().cpu(), y, torch.arange(40))
    exact = part.x.float() / 255
    found = [robustness(network, given, "ddn", chunk=17) for given in (exact, exact.cuda(), Batches(part, 16))]
    found.append(robustness(network, Batches(part, 16, device="cuda"), "ddn"))
    for distance in found:
        assert not distance.is_cuda and bool(torch.isfinite(distance).float().mean() > 0.97)
        assert float((distance / found[0]).nanmedian()) == pytest.approx(1, abs=0.02)
    strength = assess(network, DDN(), exact, y.to(torch.uint16))
    assert strength.accuracy > 0.9 and strength.success_rate > 0.9


def test_a_callers_autocast_does_not_decide_what_is_a_success(network: nn.Module) -> None:
    x = images(64)
    plain = DDN().run(network, x)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        inside = DDN().run(network, x)
    both = plain.success & inside.success
    assert both.float().mean() > 0.97
    assert float((inside.distance / plain.distance)[both].median()) == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize("kind", ["pep", "dropout"])
def test_ensembles_are_attacked_through_their_pool(kind: str, network: nn.Module) -> None:
    dropping = nn.Sequential(network, nn.Dropout(0.2), nn.Linear(4, 4)).cuda().eval()
    predictor = PEP(network, 0.01, members=3) if kind == "pep" else MCDropout(dropping, members=3)
    x = images(10).cpu()
    result = DDN(batch=4).run(predictor, x)
    own, moved = (predictor(z).argmax(-1) for z in (x.cuda(), result.adversarial))
    assert result.success.float().mean() > 0.8 and bool((own != moved)[result.success].all())


def test_everything_is_left_as_found(network: nn.Module) -> None:
    before = {k: v.clone() for k, v in network.state_dict().items()}
    formats = [p.stride() for p in network.parameters()]
    rng = torch.cuda.get_rng_state()
    robustness(network, images(64), "ddn")
    assert all(torch.equal(before[k], v) for k, v in network.state_dict().items())
    assert formats == [p.stride() for p in network.parameters()] and torch.equal(rng, torch.cuda.get_rng_state())
    assert all(p.grad is None and p.requires_grad and p.dtype == torch.float32 for p in network.parameters())
