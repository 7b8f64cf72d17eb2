"""The panel, its intervals and the fits of CUDA tensors against those of the CPU."""

from __future__ import annotations

import pytest
import torch

import calibrant

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def sample(n: int, k: int, scale: float, ties: bool, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(n + k)
    z = scale * torch.randn(n, k, generator=g)
    y = torch.multinomial(torch.softmax(z / 2, 1), 1, generator=g)[:, 0]
    return (z.round() if ties else z).to(dtype), y


@pytest.mark.parametrize(
    ("dtype", "ties"), [(torch.float64, True), (torch.float32, False), (torch.float16, False), (torch.bfloat16, True)]
)
@pytest.mark.parametrize(("n", "k", "scale"), [(3, 2, 1.0), (700, 5, 3.0), (5000, 40, 60.0), (3000, 1200, 2.0)])
def test_the_panel_is_that_of_the_cpu(n: int, k: int, scale: float, ties: bool, dtype: torch.dtype) -> None:
    z, y = sample(n, k, scale, ties, dtype)
    here, there = calibrant.evaluate(z, y), calibrant.evaluate(z.cuda(), y.cuda())
    for name, e in here.items():
        for end in ("value", "low", "high"):
            assert getattr(there[name], end) == pytest.approx(getattr(e, end), abs=1e-9), (name, end)
    assert there.extras["accuracy_at_coverage"] == [pytest.approx(r) for r in here.extras["accuracy_at_coverage"]]


def test_members_groups_and_the_positive_class() -> None:
    z, y = sample(900, 2, 2.0, False, torch.float32)
    for given in ({"about": "positive"}, {"group": torch.arange(900) // 9}):
        here, there = calibrant.evaluate(z, y, **given), calibrant.evaluate(z.cuda(), y.cuda(), **given)
        assert there["ece"].high == pytest.approx(here["ece"].high, abs=1e-9)
    members = torch.stack([z, 2 * z])
    here, there = calibrant.evaluate(members, y), calibrant.evaluate(members.cuda(), y)
    assert there["nll"].value == pytest.approx(here["nll"].value, abs=1e-9)


@pytest.mark.parametrize("name", ["temperature", "vector", "structured_vector", "structured_matrix", "dirichlet"])
def test_fits_of_cuda_tensors(name: str) -> None:
    z, y = sample(4000, 12, 4.0, False, torch.float32)
    here, there = (calibrant.fit(name, *data) for data in ((z, y), (z.cuda(), y.cuda())))
    assert all(t.device.type == "cpu" for t in there.tensors().values())
    torch.testing.assert_close(torch.softmax(there(z), 1), torch.softmax(here(z), 1), rtol=1e-5, atol=1e-6)
    assert there.record.guard["ok"] == here.record.guard["ok"]
