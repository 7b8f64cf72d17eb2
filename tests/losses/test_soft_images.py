"""Soft targets of images, against torch's own cross entropy."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

import calibrant
from calibrant.errors import InputError

G = torch.Generator().manual_seed(0)
LOSS = calibrant.losses.CrossEntropy()


@pytest.mark.parametrize("shape", [(2, 3, 8, 8), (2, 3, 8), (2, 3, 4, 5, 6)])
@pytest.mark.parametrize("weight", [None, (0.2, 1.0, 3.0)])
def test_soft_targets_of_images_are_read_as_torch_reads_them(shape: tuple[int, ...], weight: tuple[float, ...]) -> None:
    z, q = torch.randn(shape, generator=G), torch.rand(shape, generator=G)
    q = q / q.sum(1, keepdim=True)
    of_torch = functional.cross_entropy(z, q, weight=None if weight is None else torch.tensor(weight))
    loss = calibrant.losses.CrossEntropy(weight=weight)
    torch.testing.assert_close(loss(z, q), of_torch)
    torch.testing.assert_close(loss(z, q.movedim(1, -1)), of_torch)  # as our targets give them


def test_one_hot_targets_are_the_labels() -> None:
    z, y = torch.randn(2, 3, 8, 8, generator=G), torch.randint(3, (2, 8, 8), generator=G)
    hot = functional.one_hot(y, 3).float()
    torch.testing.assert_close(LOSS(z, hot.movedim(-1, 1)), LOSS(z, y))
    torch.testing.assert_close(LOSS(z, hot), LOSS(z, y))


def test_shapes_that_fit_both_ways_are_refused() -> None:
    with pytest.raises(InputError, match="fit with the classes at axis 1 and at the last; pass logits.movedim"):
        LOSS(torch.zeros(2, 3, 3, 3), torch.zeros(2, 3, 3, 3))
