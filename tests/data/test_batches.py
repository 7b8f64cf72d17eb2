"""Batches against a plain loop over images; the generator alone decides their order and crops."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor

from calibrant.data import Augment, Batches, Part
from calibrant.errors import InputError

MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)


@pytest.fixture
def part() -> Part:
    rng = torch.Generator().manual_seed(0)
    x = torch.randint(1, 256, (23, 3, 6, 5), generator=rng).to(torch.uint8)
    return Part(x, torch.arange(23) % 3, torch.arange(23) + 100)


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(image: Tensor) -> Tensor:
    """(x/255 − mean)/std, channel by channel."""
    return torch.stack([(image[c].double() / 255 - MEAN[c]) / STD[c] for c in range(3)]).float()


@pytest.mark.parametrize("channels_last", [False, True])
def test_plain_batches_in_order(part: Part, channels_last: bool) -> None:
    batches = Batches(part, 8, mean=MEAN, std=STD, channels_last=channels_last)
    assert len(batches) == 3
    seen = list(batches)
    assert [len(y) for _, y, _ in seen] == [8, 8, 7]
    x = torch.cat([x for x, _, _ in seen])
    torch.testing.assert_close(x, torch.stack([normal(image) for image in part.x]), rtol=1e-5, atol=1e-5)
    assert torch.equal(torch.cat([y for _, y, _ in seen]), part.y)
    assert torch.equal(torch.cat([i for _, _, i in seen]), part.index)
    memory = torch.channels_last if channels_last else torch.contiguous_format
    assert all(x.is_contiguous(memory_format=memory) for x, _, _ in seen)


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("augment", [Augment(), Augment(2, flip=False), Augment(0, flip=True)])
def test_crops_and_flips_are_crops_and_flips(part: Part, augment: Augment, channels_last: bool) -> None:
    """Every image of a batch is a crop, perhaps flipped, of the padded item that its index names."""
    pad = augment.crop_padding
    scale = torch.tensor(STD).reshape(3, 1, 1), torch.tensor(MEAN).reshape(3, 1, 1)
    shifts: set[tuple[int, ...]] = set()
    flips: set[int] = set()
    for seed in range(2):
        batches = Batches(
            part, 8, generator=rng(seed), shuffle=True, augment=augment, mean=MEAN, std=STD, channels_last=channels_last
        )
        for x, y, index in batches:
            assert x.is_contiguous(memory_format=torch.channels_last if channels_last else torch.contiguous_format)
            for image, label, place in zip(x, y, index, strict=True):
                original = part.x[int(place) - 100]
                assert label == part.y[int(place) - 100]
                versions: dict[bytes, set[tuple[int, int, int]]] = {}
                padded = torch.zeros(3, 6 + 2 * pad, 5 + 2 * pad, dtype=torch.uint8)
                padded[:, pad : pad + 6, pad : pad + 5] = original
                for down in range(2 * pad + 1):
                    for right in range(2 * pad + 1):
                        crop = padded[:, down : down + 6, right : right + 5]
                        versions.setdefault(crop.numpy().tobytes(), set()).add((down, right, 0))
                        versions.setdefault(crop.flip(-1).numpy().tobytes(), set()).add((down, right, 1))
                seen = (image * scale[0] + scale[1]).mul(255).round().to(torch.uint8)
                hits = versions[seen.contiguous().numpy().tobytes()]
                shifts.add(min(hits)[:2])
                flips.update(hit[2] for hit in hits if len(hits) == 1)
    assert len(shifts) > (15 if pad else 0)
    assert flips == ({0, 1} if augment.flip else {0})


def test_the_generator_decides_the_batches_and_advances(part: Part) -> None:
    make = lambda seed: Batches(part, 8, generator=rng(seed), shuffle=True, augment=Augment())  # noqa: E731
    before = torch.get_rng_state()
    one, two = make(1), make(1)
    first = [[t.clone() for t in batch] for batch in one]
    assert all(torch.equal(a, b) for x, y in zip(first, two, strict=True) for a, b in zip(x, y, strict=True))
    assert not torch.equal(first[0][2], next(iter(one))[2])  # the second epoch
    assert not torch.equal(first[0][2], next(iter(make(2)))[2])
    assert torch.equal(torch.get_rng_state(), before)
    every = torch.cat([index for _, _, index in make(3)])
    assert every.sort().values.tolist() == part.index.tolist()


def test_drop_last(part: Part) -> None:
    batches = Batches(part, 8, drop_last=True)
    assert [len(y) for _, y, _ in batches] == [8, 8]
    assert len(batches) == 2


def test_shards_share_every_batch(part: Part) -> None:
    whole = list(Batches(part, 8, generator=rng(), shuffle=True, augment=Augment()))
    shards = [
        list(Batches(part, 8, generator=rng(), shuffle=True, augment=Augment(), shard=(rank, 2))) for rank in (0, 1)
    ]
    for (x, _, index), left, right in zip(whole, *shards, strict=True):
        assert torch.equal(index[0::2], left[2])
        assert torch.equal(index[1::2], right[2])
        assert torch.equal(x[0::2], left[0])


def test_labelled_images_move_with_their_pixels() -> None:
    labels = torch.randint(0, 200, (6, 8, 8), generator=rng())
    part = Part(labels[:, None].to(torch.uint8), labels, torch.arange(6))
    for x, y, _ in Batches(part, 3, generator=rng(), shuffle=True, augment=Augment(2)):
        inside = y >= 0
        assert torch.equal((x[:, 0] * 255).round().long()[inside], y[inside])
        assert not x[:, 0][~inside].any()


def test_floats_tokens_and_precision(part: Part) -> None:
    values = torch.randn(5, 7, generator=rng())
    (x, _, _) = next(iter(Batches(Part(values, torch.zeros(5).long(), torch.arange(5)), 5)))
    assert torch.equal(x, values)
    x += 1  # a batch is the caller's: the resident data must not move with it
    assert not torch.equal(x, values)
    tokens = torch.randint(0, 99, (5, 7), generator=rng())
    (x, _, _) = next(iter(Batches(Part(tokens, torch.zeros(5).long(), torch.arange(5)), 5)))
    assert torch.equal(x, tokens)
    (x, _, _) = next(iter(Batches(part, 4, dtype=torch.bfloat16)))
    assert x.dtype == torch.bfloat16


def test_mistakes_are_named(part: Part) -> None:
    with pytest.raises(InputError, match="generator="):
        Batches(part, 4, shuffle=True)
    with pytest.raises(InputError, match="batch_size"):
        Batches(part, 0)
    flat = Part(torch.zeros(3, 4), torch.zeros(3).long(), torch.arange(3))
    with pytest.raises(InputError, match="drop augment"):
        Batches(flat, 2, augment=Augment(), generator=rng())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("channels_last", [False, True])
def test_on_the_gpu_the_same_batches_without_a_wait(part: Part, channels_last: bool) -> None:
    options = {"shuffle": True, "augment": Augment(), "mean": MEAN, "std": STD, "channels_last": channels_last}
    here = list(Batches(part, 8, generator=rng(), **options))
    there = iter(Batches(part, 8, generator=rng(), device="cuda", **options))
    seen = [next(there)]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*prototype feature")  # torch, about the mode itself
        torch.cuda.set_sync_debug_mode("error")
        try:
            seen.extend(there)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    for cpu, gpu in zip(here, seen, strict=True):
        for a, b in zip(cpu, gpu, strict=True):
            torch.testing.assert_close(b.cpu(), a)
