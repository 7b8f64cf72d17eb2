"""One-hot and label smoothing against their formula."""

from __future__ import annotations

import pytest
import torch

from calibrant.errors import InputError
from calibrant.functional.soft_labels import encoded, soft_labels
from calibrant.targets import TARGETS, AdaLS, ArAdaLS, Levels, OneHot, Smoothing


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


POLICIES = {
    "one_hot": OneHot(classes=3),
    "smoothing": Smoothing(classes=3),
    "adals": AdaLS(classes=3),
    "ar_adals": ArAdaLS(classes=3, levels=2, given=Levels(torch.tensor([0, 1]), torch.tensor([0, 1]))),
}


@pytest.mark.parametrize("name", TARGETS)
def test_a_label_of_no_class_is_an_error_for_every_policy(name: str) -> None:
    """Its row was all zeros, an item that costs nothing: the training went on without it, in silence."""
    for labels in ([5, 0], [2, 3]):
        with pytest.raises(InputError, match=rf"label {max(labels)} with classes=3: labels must be 0 … 2"):
            POLICIES[name](torch.tensor(labels), torch.arange(2))


def test_on_a_gpu_an_invalid_label_gives_a_row_of_nan() -> None:
    """On an accelerator, where a look would wait for the device: the loop names the items of a loss that is none."""
    q = encoded(torch.tensor([5, 0, -1]), 3, 0.1)
    assert q.isnan().all(-1).tolist() == [True, False, False]
    assert torch.equal(q[1:], soft_labels(torch.tensor([0, -1]), 3, 0.1)) and q[2].tolist() == [0.0] * 3


def test_fixed_targets_learn_nothing() -> None:
    for target in (OneHot(classes=3), Smoothing(classes=3)):
        assert not target.wants(0)
        with pytest.raises(InputError, match="ar_adals"):
            target.refresh(None)


def test_settings_out_of_range() -> None:
    with pytest.raises(InputError, match="epsilon"):
        Smoothing(classes=3, epsilon=1.2)
    for classes in (1, 2.5, "3", None, True):
        with pytest.raises(InputError, match="classes=.* must be"):
            OneHot(classes=classes)  # type: ignore[arg-type]
    for epsilon in ("a", None, True, float("nan"), -0.1):
        with pytest.raises(InputError, match="epsilon"):
            Smoothing(classes=3, epsilon=epsilon)  # type: ignore[arg-type]
