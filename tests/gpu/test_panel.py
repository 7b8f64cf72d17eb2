"""The panel, its intervals and the fits of a device's tensors against those of the CPU: on CUDA, or its stand-in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext

import pytest
import torch
from torch import Tensor

import calibrant
from calibrant.metrics.frames import Frames
from calibrant.posthoc import CALIBRATORS
from tests.stand_in import StandIn, away

Move = Callable[[Tensor], Tensor]


@pytest.fixture(params=["stand-in", "cuda"])
def there(request: pytest.FixtureRequest) -> Iterator[Move]:
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    with StandIn() if request.param == "stand-in" else nullcontext():
        yield away if request.param == "stand-in" else Tensor.cuda


def sample(n: int, k: int, scale: float, ties: bool, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(n + k)
    z = scale * torch.randn(n, k, generator=g)
    y = torch.multinomial(torch.softmax(z / 2, 1), 1, generator=g)[:, 0]
    return (z.round() if ties else z).to(dtype), y


def same(there: calibrant.Report, here: calibrant.Report) -> None:
    for name, e in here.items():
        for end in ("value", "low", "high"):
            assert getattr(there[name], end) == pytest.approx(getattr(e, end), abs=1e-9), (name, end)


@pytest.mark.parametrize(
    ("n", "k", "scale", "ties", "dtype"),
    [
        (3, 2, 1.0, False, torch.float64),
        (700, 5, 3.0, True, torch.float32),
        (700, 5, 3.0, False, torch.float16),
        (700, 5, 3.0, True, torch.bfloat16),
        (5000, 40, 60.0, False, torch.float32),
        (5000, 40, 60.0, True, torch.float64),
        (1000, 1200, 2.0, False, torch.bfloat16),
        (1000, 1200, 2.0, True, torch.float16),
    ],
)
def test_the_panel_is_that_of_the_cpu(
    n: int, k: int, scale: float, ties: bool, dtype: torch.dtype, there: Move
) -> None:
    z, y = sample(n, k, scale, ties, dtype)
    found, expected = (calibrant.evaluate(*given, replicates=100) for given in ((there(z), there(y)), (z, y)))
    same(found, expected)
    assert found.extras["accuracy_at_coverage"] == [pytest.approx(r) for r in expected.extras["accuracy_at_coverage"]]


def test_members_groups_parts_and_the_positive_class(there: Move) -> None:
    z, y = sample(900, 2, 2.0, False)
    part = (torch.arange(900) % 3).numpy()
    for given in ({"about": "positive"}, {"group": torch.arange(900) // 9}, {"by": part}):
        same(*(calibrant.evaluate(a, y, replicates=50, **given) for a in (there(z), z)))
    members = torch.stack([z, 2 * z])
    same(*(calibrant.evaluate(a, y, replicates=50) for a in (there(members), members)))
    found, expected = (calibrant.compare(a, b, y, replicates=50) for a, b in ((there(z), there(2 * z)), (z, 2 * z)))
    assert [r.p for r in found.rows] == [pytest.approx(r.p, abs=1e-9) for r in expected.rows]


@pytest.mark.parametrize("name", CALIBRATORS)
def test_every_calibrator_fits_and_maps_tensors_of_the_device(name: str, there: Move) -> None:
    z, y = sample(600, 6, 4.0, False)
    here, far = calibrant.predictions(z, y), calibrant.predictions(there(z), y)
    for settings in CALIBRATORS[name].candidates:
        calibrator = CALIBRATORS[name](**settings)
        expected, found = calibrator.fit_map(here), calibrator.fit_map(far)
        assert all(t.device.type == "cpu" for t in found.tensors().values())
        after = found(there(z))
        assert after.is_cuda
        torch.testing.assert_close(torch.softmax(after.cpu(), 1), torch.softmax(expected(z), 1), rtol=1e-5, atol=1e-6)


def test_a_guarded_fit_and_the_hash_of_its_data(there: Move) -> None:
    z, y = sample(30_000, 12, 4.0, False)  # large enough for the steps that replace refits
    found, expected = (calibrant.fit("temperature", a, y) for a in (there(z), z))
    assert found.record.data == expected.record.data
    assert found.record.items == expected.record.items
    assert found.record.guard["nll_change"] == pytest.approx(expected.record.guard["nll_change"])
    within = [calibrant.fit("spline", a[:500], y[:500], within=2)(z[:9]) for a in (there(z), z)]
    torch.testing.assert_close(*within)


def test_decisions_and_frames(there: Move) -> None:
    z, y = sample(900, 4, 4.0, False)
    for goal in ({"accept": 0.5}, {"set_coverage": 0.9}, {"costs": 1 - torch.eye(4)}):
        rule = calibrant.decide(there(z), y, **goal)
        assert torch.equal(rule(there(z)).accepted, calibrant.decide(z, y, **goal)(z).accepted)
    frames = [Frames(), Frames()]
    for each, image in zip(frames, (there(z), z), strict=True):
        each.add(image.reshape(30, 30, 4), y.reshape(30, 30))
    same(*(f.report() for f in frames))
