"""The fused perturbation on a CUDA device has the right moments, is reproducible, and takes every layout and dtype."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from calibrant.ensembles.pep import PEP
from calibrant.functional.noise import perturb_

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def draw(shape: tuple[int, ...], dtype: torch.dtype = torch.float32, **settings: object) -> torch.Tensor:
    original = torch.zeros(shape, device="cuda", dtype=dtype)
    target = torch.empty_like(original)
    perturb_([target], [original], 1.0, **{"seed": 0, "member": 0} | settings)
    return target.double()


@pytest.mark.parametrize("distribution", ["gaussian", "uniform"])
def test_moments(distribution: str) -> None:
    noise = draw((1_000_003,), distribution=distribution)
    assert abs(noise.mean().item()) < 5e-3 and noise.std().item() == pytest.approx(1, abs=5e-3)
    fourth = 3.0 if distribution == "gaussian" else 1.8
    assert noise.pow(4).mean().item() == pytest.approx(fourth, rel=0.03)
    assert abs((noise[1:] * noise[:-1]).mean().item()) < 5e-3  # neighbours are independent


def test_seed_member_and_sign() -> None:
    assert torch.equal(draw((999,)), draw((999,)))
    assert not torch.equal(draw((999,)), draw((999,), member=1))
    assert torch.equal(draw((999,), member=2, antithetic=True), -draw((999,), member=3, antithetic=True))


def test_tensors_of_one_model_get_different_noise() -> None:
    originals = [torch.zeros(500, device="cuda"), torch.zeros(500, device="cuda")]
    targets = [torch.empty_like(t) for t in originals]
    perturb_(targets, originals, 1.0, seed=0, member=0)
    assert abs(torch.corrcoef(torch.stack(targets))[0, 1].item()) < 0.2


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_sees_the_same_noise_rounded_once(dtype: torch.dtype) -> None:
    assert torch.allclose(draw((4097,), dtype), draw((4097,)), atol=2e-2)


def test_a_model_on_the_device_is_restored_bit_for_bit_and_repeats() -> None:
    model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 36, 5)).cuda()
    model = model.to(memory_format=torch.channels_last).eval()
    before = [p.clone() for p in model.parameters()]
    x = torch.randn(4, 3, 8, 8, device="cuda")
    pep = PEP(model, 0.1, members=3, where="weights")
    assert torch.equal(pep.members(x), pep.members(x))
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
