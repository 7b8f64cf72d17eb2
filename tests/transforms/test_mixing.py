"""mixup, cutmix and CCAT: what they compute, and that λ is Beta-distributed."""

from __future__ import annotations

import pytest
import torch
from scipy import stats
from torch import Tensor, nn

from calibrant.errors import InputError
from calibrant.transforms import CCAT, CutMix, Mixup
from calibrant.transforms.mixup import beta


@pytest.mark.parametrize("alpha", [0.2, 1.0, 4.0])
def test_beta_draws_are_beta(alpha: float) -> None:
    draws = beta(alpha, 4000, torch.Generator().manual_seed(0))
    assert draws.isfinite().all()
    assert stats.kstest(draws.numpy(), stats.beta(alpha, alpha).cdf).pvalue > 1e-3


def images(n: int, edge: int = 8) -> Tensor:
    """Image i is i everywhere, so that a mixed pixel tells its parents."""
    return torch.arange(n).float().reshape(n, 1, 1, 1).expand(n, 2, edge, edge).clone()


@pytest.mark.parametrize("per_item", [False, True])
def test_mixup_mixes_inputs_and_targets_alike(per_item: bool) -> None:
    x, q = images(8), torch.eye(8)
    mixed, soft = Mixup(alpha=1.0, per_item=per_item)(
        nn.Identity(), x, q, torch.arange(8), torch.Generator().manual_seed(1)
    )
    torch.testing.assert_close(mixed[:, 0, 0, 0], soft @ torch.arange(8.0))
    weights = {round(w, 6) for w in soft.diagonal().tolist()} - {1.0}
    assert (len(weights) > 1) is per_item


def test_cutmix_weight_is_the_area_that_remained() -> None:
    x, q = images(6), torch.eye(6)
    for seed in range(20):
        mixed, soft = CutMix()(nn.Identity(), x, q, torch.arange(6), torch.Generator().manual_seed(seed))
        for i in range(6):
            own = (mixed[i, 0] == i).float().mean().item()
            assert soft[i, i].item() == pytest.approx(own, abs=1e-6)
            assert len(mixed[i].unique()) <= 2


def test_cutmix_probability() -> None:
    x, q = images(4), torch.eye(4)
    rng = torch.Generator().manual_seed(0)
    changed = [
        not torch.equal(CutMix(probability=0.5)(nn.Identity(), x, q, torch.arange(4), rng)[0], x) for _ in range(200)
    ]
    assert 40 < sum(changed) < 110  # half, less the empty boxes and the identical permutations


def test_mixing_tokens_or_vectors_is_refused_where_it_has_no_meaning() -> None:
    tokens = torch.ones(4, 9, dtype=torch.long)
    for transform in (Mixup(), CutMix()):
        with pytest.raises(InputError, match="tokens"):
            transform(nn.Identity(), tokens, torch.eye(4), torch.arange(4), torch.Generator())
    with pytest.raises(InputError, match="use mixup"):
        CutMix()(nn.Identity(), torch.ones(4, 9), torch.eye(4), torch.arange(4), torch.Generator())


def test_settings_out_of_range() -> None:
    for make in (lambda: Mixup(alpha=-1), lambda: CutMix(probability=2), lambda: CCAT(lambda m, x, y: x, epsilon=0)):
        with pytest.raises(InputError):
            make()


def test_ccat_targets_move_to_uniform_with_distance() -> None:
    """λ(δ) = (1 − min(1, ‖δ‖∞/ε))^ρ, item by item; the first half of the batch stays as it was."""
    distances = [0.0, 0.001, 0.005, 0.02]
    std = (0.5, 0.25)

    def attack(model: nn.Module, x: Tensor, labels: Tensor) -> Tensor:
        assert not model.training and labels.tolist() == [4, 5, 6, 7]
        moved = x.clone()
        for i, distance in enumerate(distances):
            moved[i, 1, 0, 0] += distance / std[1]  # a distance between pixels, in normalised units
        return moved

    x, q = torch.zeros(8, 2, 3, 3), torch.eye(8)
    net = nn.Sequential(nn.BatchNorm2d(2), nn.Dropout()).train()
    net[1].eval()
    out, soft = CCAT(attack, epsilon=0.01, rho=10.0, std=std)(net, x, q, torch.arange(8), torch.Generator())
    assert net.training
    assert net[0].training
    assert not net[1].training  # every module's mode is put back
    assert torch.equal(out[:4], x[:4])
    assert torch.equal(soft[:4], q[:4])
    for i, distance in enumerate(distances):
        weight = (1 - min(1.0, distance / 0.01)) ** 10
        for k in range(8):
            assert soft[4 + i, k].item() == pytest.approx(weight * (k == 4 + i) + (1 - weight) / 8, abs=1e-5)
