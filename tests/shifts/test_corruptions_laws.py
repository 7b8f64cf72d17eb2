"""Laws that every corruption in `SHIFTS` obeys."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise, product

import numpy as np
import pytest
import torch

from calibrant.shifts import SEVERITIES, SHIFTS, SUBSETS, corrupt
from calibrant.shifts.blur import zoom_factors
from tests.shifts.pictures import pictures

NAMES = list(SHIFTS)
DETERMINISTIC = {
    "defocus_blur", "zoom_blur", "brightness", "contrast", "pixelate", "jpeg_compression", "gaussian_blur", "saturate"
}  # fmt: skip
NOT_MONOTONE = {
    "glass_blur": "published: less blur but two rounds from severity 4 on",
    "frost": "published: the image is dimmed from severity 3 on, which cancels the added light",
    "elastic_transform": "published: the affine part shrinks while the displacement grows rougher",
    "spatter": "published: water up to severity 3, then mud",
    "saturate": "published: 1 and 2 take colour away, 3 to 5 add it",
}


@pytest.fixture(scope="module")
def x() -> torch.Tensor:
    return pictures(12)


@pytest.fixture(autouse=True)
def global_state_untouched() -> Iterator[None]:
    before = torch.random.get_rng_state()
    yield
    assert torch.equal(before, torch.random.get_rng_state())


def test_the_subsets_are_the_published_ones() -> None:
    assert all(len(names) == len(set(names)) == int(size) for size, names in SUBSETS.items())
    assert set(SUBSETS["15"]) < set(SUBSETS["19"]) and set(SUBSETS["17"]) < set(SUBSETS["19"]) <= set(SHIFTS)


def test_every_corruption_has_its_name_and_five_strengths() -> None:
    assert all(SHIFTS[name].name == name for name in SHIFTS)
    assert all(len(SHIFTS[name].strengths[size]) == SEVERITIES for name in SHIFTS for size in (32, 224))


def test_zoom_factors_are_the_published_ranges() -> None:
    ends = {
        32: [(1.06, 0.01), (1.11, 0.01), (1.16, 0.01), (1.21, 0.01), (1.26, 0.01)],
        224: [(1.11, 0.01), (1.16, 0.01), (1.21, 0.02), (1.26, 0.02), (1.31, 0.03)],
    }
    for size, published in ends.items():
        for (end, step), constant in zip(published, SHIFTS["zoom_blur"].strengths[size], strict=True):
            assert zoom_factors(*constant) == np.arange(1, end, step).tolist()


def test_severity_0_is_identity_and_an_empty_batch_stays_empty(x: torch.Tensor) -> None:
    for name in NAMES:
        assert torch.equal(corrupt(x, name, 0), x)
        assert torch.equal(corrupt(x / 255, name, 0), x / 255)
        assert corrupt(torch.zeros(0, 3, 32, 32), name, 3).shape == (0, 3, 32, 32)


@pytest.mark.parametrize("name", NAMES)
def test_range_dtype_and_shape_are_kept(name: str, x: torch.Tensor) -> None:
    for dtype in (torch.uint8, torch.float32, torch.float64, torch.float16, torch.bfloat16):
        given = x[:2] if dtype == torch.uint8 else (x[:2] / 255).to(dtype)
        kept = given.clone()
        y = corrupt(given, name, 5)
        assert y.dtype == dtype and y.shape == given.shape and y.device == given.device
        assert y.min() >= 0 and y.max() <= (255 if dtype == torch.uint8 else 1), dtype
        assert torch.equal(given, kept), f"the input is the caller's ({dtype})"


@pytest.mark.parametrize("name", NAMES)
def test_floats_and_bytes_agree(name: str, x: torch.Tensor) -> None:
    whole, real = corrupt(x[:4], name, 2).float(), corrupt(x[:4] / 255, name, 2) * 255
    assert (whole - real).abs().max() <= 1.001


@pytest.mark.parametrize("name", NAMES)
def test_deterministic_by_seed(name: str, x: torch.Tensor) -> None:
    a, b, other = corrupt(x, name, 4, seed=3), corrupt(x, name, 4, seed=3), corrupt(x, name, 4, seed=4)
    assert torch.equal(a, b)
    assert torch.equal(a, other) == (name in DETERMINISTIC)
    twins = corrupt(x[:1].expand(2, -1, -1, -1), name, 4)
    assert torch.equal(twins[0], twins[1]) == (name in DETERMINISTIC), "items differ in their randomness"
    used = torch.Generator().manual_seed(3)
    torch.rand(5, generator=used)
    state = used.get_state()
    assert torch.equal(a, SHIFTS[name]()(x, 4, used)), "a generator counts by its seed alone"
    assert torch.equal(state, used.get_state())


@pytest.mark.parametrize("name", NAMES)
def test_independent_of_the_batch(name: str, x: torch.Tensor) -> None:
    for severity in (1, 4):
        whole = corrupt(x, name, severity)
        cut = [corrupt(x[a:b], name, severity, index=a) for a, b in ((0, 1), (1, 4), (4, 12))]
        assert torch.equal(torch.cat(cut), whole), severity
        order = torch.tensor([7, 2, 11])
        assert torch.equal(corrupt(x[order], name, severity, index=order), whole[order]), severity


@pytest.mark.parametrize("name", NAMES)
def test_change_grows_with_severity(name: str, x: torch.Tensor) -> None:
    change = [float((corrupt(x, name, s).float() - x.float()).abs().mean()) for s in range(SEVERITIES + 1)]
    assert change[0] == 0 and min(change[1:]) > 0.3
    if name not in NOT_MONOTONE:
        # motion blur of (6, 2) and (8, 2) differ by taps of weight 0.001
        assert all(b >= 0.97 * a for a, b in pairwise(change)), change
    if name != "elastic_transform":
        assert change[5] > change[1]


@pytest.mark.parametrize("name", NAMES)
def test_memory_layout_does_not_matter(name: str, x: torch.Tensor) -> None:
    expected = corrupt(x[:3], name, 3)
    assert torch.equal(corrupt(x[:3].contiguous(memory_format=torch.channels_last), name, 3), expected)
    strided = torch.zeros(3, 3, 32, 64, dtype=torch.uint8)[..., ::2].copy_(x[:3])
    assert torch.equal(corrupt(strided, name, 3), expected)


@pytest.mark.parametrize("name", NAMES)
def test_an_image_alone_is_the_same_to_the_last_bit(name: str) -> None:
    """At any size. Floats show differences that bytes round away: torch transforms a single plane by another algorithm
    than several planes, and adds the products of an unaligned plane in another order."""
    shapes = ((1, 8, 8), (1, 28, 28), (3, 8, 8), (3, 9, 9), (1, 13, 9), (3, 31, 10), (3, 33, 47), (3, 101, 99))
    for shape, severity in product(shapes, (1, 4, 5)):
        x = torch.rand(4, *shape, generator=torch.Generator().manual_seed(0))
        alone = torch.cat([corrupt(x[i : i + 1], name, severity, index=i) for i in range(len(x))])
        assert torch.equal(alone, corrupt(x, name, severity)), (shape, severity)


@pytest.mark.parametrize("name", ["gaussian_blur", "jpeg_compression", "zoom_blur"])
def test_autocast_of_the_caller_does_not_matter(name: str, x: torch.Tensor) -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(corrupt(x, name, 3), corrupt(x.clone(), name, 3))
        inside = corrupt(x, name, 3)
    assert torch.equal(inside, corrupt(x, name, 3))


@pytest.mark.parametrize("name", NAMES)
def test_the_laws_at_the_size_of_imagenet(name: str) -> None:
    for white, channels in ((255, 3), (1, 1)):  # colour in bytes, grey in floats
        x = pictures(2, 224, 224, channels=channels)
        x = x if white == 255 else x / 255
        y = corrupt(x, name, 3, seed=1)
        assert y.dtype == x.dtype and y.shape == x.shape and y.min() >= 0 and y.max() <= white
        assert torch.equal(y[1:], corrupt(x[1:], name, 3, seed=1, index=1))
        changed = bool((y.float() - x.float()).abs().max() > 1e-6)
        assert changed != (name == "saturate" and channels == 1), "grey has no colour to multiply"
