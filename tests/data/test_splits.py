"""Splits are disjoint, of exact size and stratified; the seed alone decides them."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from calibrant.data import load
from calibrant.data.records import Part
from calibrant.data.splits import split_parts, stratify
from calibrant.errors import InputError, UnknownNameError
from calibrant.types import Split


@settings(max_examples=60, deadline=None)
@given(
    counts=st.lists(st.integers(1, 40), min_size=2, max_size=6),
    shares=st.tuples(st.floats(0, 0.4), st.floats(0, 0.3), st.floats(0, 0.3)),
    seed=st.integers(0, 2**31),
)
def test_parts_are_disjoint_exact_and_stratified(
    counts: list[int], shares: tuple[float, float, float], seed: int
) -> None:
    y = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    n = y.numel()
    names = (Split.TEST, Split.CALIBRATION, Split.VALIDATION)
    sizes = {name: int(share * n) for name, share in zip(names, shares, strict=True)}
    parts = stratify(y, sizes, seed)
    assert {name: part.numel() for name, part in parts.items()} == sizes
    together = torch.cat(list(parts.values()))
    assert together.unique().numel() == together.numel()
    left = torch.tensor(counts)
    for name in names:
        got = torch.bincount(y[parts[name]], minlength=len(counts))
        fair = left.double() * sizes[name] / max(int(left.sum()), 1)
        assert ((got - fair).abs() < 1).all()
        left = left - got


def test_digits_are_split_in_four_and_nothing_is_lost() -> None:
    data = load("digits")
    assert {name: part.n for name, part in data.splits.items()} == {
        Split.TRAIN: 807, Split.VALIDATION: 180, Split.CALIBRATION: 360, Split.TEST: 450,
    }  # fmt: skip
    index = torch.cat([part.index for part in data.splits.values()])
    assert index.sort().values.tolist() == list(range(1797))
    assert all(part.split is name for name, part in data.splits.items())
    assert data.shape == tuple(data["train"].x.shape[1:]) == (1, 8, 8)
    assert data.k == 10


def test_digits_are_scikit_learns() -> None:
    from sklearn.datasets import load_digits

    held = load_digits()
    part = load("digits")["test"]
    back = part.x[:, 0].double() * (16 / 255)
    torch.testing.assert_close(back.round(), torch.from_numpy(held.images)[part.index])
    assert part.y.tolist() == held.target[part.index.numpy()].tolist()


def test_a_seed_decides_and_the_global_generator_is_left_alone() -> None:
    before = torch.get_rng_state()
    one, two, other = (load("digits", seed=seed)["train"].index for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(one, two)
    assert not torch.equal(one, other)


def official(n: int = 100) -> dict[Split, Part]:
    x, y = torch.arange(n).reshape(n, 1, 1, 1).to(torch.uint8), torch.arange(n) % 4
    return {Split.TRAIN: Part.of(x, y, Split.TRAIN), Split.TEST: Part.of(x[:20], y[:20], Split.TEST)}


def test_official_test_stays_test() -> None:
    for seed in (0, 1):
        parts = split_parts(official(), {"validation": 10, "calibration": 0.2}, seed)
        assert parts[Split.TEST].index.tolist() == list(range(20))
        assert {name: part.n for name, part in parts.items()} == {
            Split.TRAIN: 70, Split.VALIDATION: 10, Split.CALIBRATION: 20, Split.TEST: 20,
        }  # fmt: skip
        for part in parts.values():
            assert torch.equal(part.x.flatten().long(), part.index)  # images travel with their index


def test_sizes_cap_and_drop() -> None:
    parts = split_parts(official(), {"train": 12, "validation": 0, "test": 8}, 0)
    assert {name: part.n for name, part in parts.items()} == {Split.TRAIN: 12, Split.TEST: 8}


def test_mistakes_are_named() -> None:
    with pytest.raises(InputError, match="do not fit into 100"):
        split_parts(official(), {"validation": 80, "calibration": 40}, 0)
    with pytest.raises(UnknownNameError, match="did you mean 'validation'"):
        load("digits", sizes={"validaton": 3})
    with pytest.raises(UnknownNameError, match="did you mean 'digits'"):
        load("digit")
    with pytest.raises(InputError, match="validation part must be"):
        split_parts(official(), {"validation": -1}, 0)
    with pytest.raises(InputError, match="no validation part"):
        load("digits", sizes={"validation": 0})["validation"]
