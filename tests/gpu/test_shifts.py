"""Shifts on a CUDA device: the CPU's images up to rounding, whatever the batch and the precision the caller set."""

from __future__ import annotations

import pytest
import torch

from calibrant.shifts import PERTURBATIONS, SHIFTS, corrupt, perturb
from calibrant.shifts.random_numbers import draws
from tests.shifts.pictures import pictures

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def test_numbers_are_the_cpus() -> None:
    here, there = (draws(3, "x", 2, 50, torch.device(d)) for d in ("cpu", "cuda"))
    assert torch.equal(here.bits(1000, 1), there.bits(1000, 1).cpu())
    assert torch.equal(here.uniform(999), there.uniform(999).cpu())
    torch.testing.assert_close(here.normal(999), there.normal(999).cpu(), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", SHIFTS)
@pytest.mark.parametrize(("size", "severities"), [(32, (1, 5)), (120, (3,))])
def test_corruptions_are_the_cpus(name: str, size: int, severities: tuple[int, ...]) -> None:
    x = pictures(6, size, size)
    for severity in severities:
        here, there = corrupt(x, name, severity), corrupt(x.cuda(), name, severity)
        assert there.is_cuda
        off = (here.int() - there.cpu().int()).abs()
        # a step where a value lies on the edge; of JPEG a coefficient, of shot noise a photon
        assert (off > 1).float().mean() < 0.02 and off.float().mean() < 0.05


@pytest.mark.parametrize("name", SHIFTS)
def test_corruptions_do_not_depend_on_the_batch(name: str) -> None:
    x = pictures(64).cuda()
    whole = corrupt(x, name, 4)
    cut = torch.cat([corrupt(x[a:b], name, 4, index=a) for a, b in ((0, 1), (1, 8), (8, 64))])
    off = (whole.int() - cut.int()).abs()
    # libraries choose their kernels by size, so that a sum may round the other way
    assert (off > 0).float().mean() < 1e-3


@pytest.mark.parametrize("name", PERTURBATIONS)
def test_perturbations_are_the_cpus(name: str) -> None:
    x = pictures(4)
    off = (perturb(x, name, 6).int() - perturb(x.cuda(), name, 6).cpu().int()).abs()
    assert (off > 1).float().mean() < 0.02 and off.float().mean() < 0.05


@pytest.mark.parametrize("name", ["gaussian_blur", "jpeg_compression", "zoom_blur"])
def test_precision_of_the_caller_does_not_matter(name: str) -> None:
    x = pictures(8).cuda()
    expected = corrupt(x, name, 3)
    before = torch.backends.cuda.matmul.fp32_precision
    try:
        torch.backends.cuda.matmul.fp32_precision = "tf32"
        with torch.autocast("cuda", dtype=torch.bfloat16):
            assert torch.equal(corrupt(x, name, 3), expected)
        assert torch.backends.cuda.matmul.fp32_precision == "tf32"
    finally:
        torch.backends.cuda.matmul.fp32_precision = before
