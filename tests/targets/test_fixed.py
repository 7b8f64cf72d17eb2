"""One-hot and label smoothing against their formula."""

from __future__ import annotations

import pytest
import torch

from calibrant.errors import InputError
from calibrant.targets import OneHot, Smoothing


def test_smoothing_is_its_formula_and_torchs() -> None:
    labels = torch.tensor([2, 0, 1])
    q = Smoothing(classes=3, epsilon=0.09)(labels, torch.arange(3))
    for row, label in zip(q.tolist(), labels.tolist(), strict=True):
        assert row == pytest.approx([(1 - 0.09) * (k == label) + 0.09 / 3 for k in range(3)])
    logits = torch.randn(3, 3, generator=torch.Generator().manual_seed(0))
    ours = -(q * torch.log_softmax(logits, -1)).sum(-1)
    torch.testing.assert_close(
        ours, torch.nn.functional.cross_entropy(logits, labels, label_smoothing=0.09, reduction="none")
    )


def test_fixed_targets_learn_nothing() -> None:
    for target in (OneHot(classes=3), Smoothing(classes=3)):
        assert not target.wants(0)
        with pytest.raises(InputError, match="ar_adals"):
            target.refresh(None)


def test_settings_out_of_range() -> None:
    with pytest.raises(InputError, match="epsilon"):
        Smoothing(classes=3, epsilon=1.2)
    with pytest.raises(InputError, match="two classes"):
        OneHot(classes=1)
