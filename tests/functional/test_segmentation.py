"""Pixels of label maps become items, and ignored pixels are dropped with their columns."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import calibrant
from calibrant.errors import InputError

RNG = np.random.default_rng(0)
Z, Y = RNG.normal(size=(30, 3)), RNG.integers(0, 3, 30)
VOID = np.where(np.arange(30) % 4 == 0, 255, Y)
KEPT = np.flatnonzero(VOID != 255)


def test_ignored_pixels_drop_their_columns() -> None:
    p = calibrant.predictions(
        Z, VOID, ignore_index=255, ids=[f"item {i}" for i in range(30)], features=Z * 2, group=np.arange(30) // 3
    )
    assert p.ids == tuple(f"item {i}" for i in KEPT) and p.labels.tolist() == Y[KEPT].tolist()
    assert p.features is not None and np.array_equal(p.features.numpy(), Z[KEPT] * 2)
    assert p.group is not None and len(p.group) == len(KEPT)
    binary = calibrant.predictions(Z[:, 0], np.where(VOID == 255, 255, VOID % 2), ignore_index=255)
    assert binary.logits is not None and np.array_equal(binary.logits[:, 1].numpy(), Z[KEPT, 0])


def test_a_top1_set_ignores_too() -> None:
    p = calibrant.predictions(labels=VOID, predicted=Y, confidence=np.full(30, 0.5), ignore_index=255)
    assert p.n == len(KEPT) and calibrant.evaluate(p, intervals=False)["accuracy"].value == 1.0


def test_images_of_top1_and_ids_of_images() -> None:
    shape = (2, 3, 5)
    p = calibrant.predictions(
        labels=torch.from_numpy(VOID.reshape(shape)),
        predicted=torch.from_numpy(Y.reshape(shape)),
        confidence=np.full(shape, 0.5),
        ids=["left", "right"],
        ignore_index=255,
    )
    assert p.n == len(KEPT) and p.ids == tuple("left" if i < 15 else "right" for i in KEPT)
    assert p.group is not None and p.group.tolist() == [int(i >= 15) for i in KEPT]


def test_unequal_lengths_are_an_error_first() -> None:
    with pytest.raises(InputError, match="29 rows of scores but 30 labels"):
        calibrant.predictions(Z[:-1], VOID, ignore_index=255)
