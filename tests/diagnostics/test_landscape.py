"""The loss on a plane against losses computed at moved weights, filter norms, checkpoints, masks and resuming."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from calibrant.diagnostics import landscape as module
from calibrant.diagnostics import loss_landscape
from calibrant.diagnostics.landscape import plane_through, random_plane
from calibrant.errors import FileError, InputError
from calibrant.nn import build

RNG = torch.Generator().manual_seed(0)
X, Y = torch.randn(30, 6, generator=RNG), torch.arange(30) % 3
BATCHES = [(X[:10], Y[:10]), (X[10:], Y[10:])]


def network(seed: int = 0, *more: nn.Module) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), *more, nn.Linear(8, 3))


def test_the_loss_at_each_point_is_that_of_the_moved_network() -> None:
    model = network().train()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    found = loss_landscape(model, BATCHES, points=5, seed=3)
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items()) and model.training
    plane = random_plane(model, 3)
    for i, j in ((0, 0), (2, 2), (4, 1)):
        moved = copy.deepcopy(model).eval()
        for name, p in moved.named_parameters():
            p.data += float(found.a[j]) * plane.u[name] + float(found.b[i]) * plane.v[name]
        for k, (x, y) in enumerate(BATCHES):
            assert float(found.each[0, i, j, k]) == pytest.approx(
                float(F.cross_entropy(moved(x), y).detach()), rel=1e-5
            )
    far = torch.sqrt(found.a**2 + found.b[:, None] ** 2)
    near = [found.each[0, i, j] - found.each[0, 2, 2] for i in range(5) for j in range(5) if 0 < far[i, j] <= 0.5]
    torch.testing.assert_close(found.rise(), torch.stack(near).mean(0))


def test_a_callers_autocast_does_not_hide_that_weights_have_moved() -> None:
    """Autocast caches casts of the weights."""
    plain = loss_landscape(network(), BATCHES, points=3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = loss_landscape(network(), BATCHES, points=3)
    torch.testing.assert_close(found.each, plain.each, atol=0.02, rtol=0.02)


def test_directions_are_as_long_as_the_filters() -> None:
    model = build("resnet20", classes=10, in_channels=3, size=(32, 32))
    plane = random_plane(model)
    for name, p in model.named_parameters():
        if p.ndim < 2:
            assert not plane.u[name].any()
        else:
            torch.testing.assert_close(plane.u[name].flatten(1).norm(dim=1), p.detach().flatten(1).norm(dim=1))
    assert any((plane.u[name] != plane.v[name]).any() for name in plane.u)


def test_three_checkpoints_lie_on_their_plane() -> None:
    first, second, third = (network(seed).eval() for seed in (0, 1, 2))
    second[1].running_var.fill_(2.0)
    plane = plane_through(first, second.state_dict(), third.state_dict())
    for other, (a, b) in zip((first, second, third), plane.marks, strict=True):
        found = loss_landscape(first, BATCHES, plane, a=(a, a + 1), b=(b, b + 1), points=2)
        for k, (x, y) in enumerate(BATCHES):
            assert float(found.each[0, 0, 0, k]) == pytest.approx(
                float(F.cross_entropy(other(x), y).detach()), rel=1e-4
            )
    with pytest.raises(InputError, match="the network itself"):
        plane_through(first, first.state_dict(), third.state_dict())
    with pytest.raises(InputError, match="on a line"):
        plane_through(first, second.state_dict(), second.state_dict())
    with pytest.raises(InputError, match=r"no 0.weight of shape \(8, 6\)"):
        plane_through(first, {}, third.state_dict())


def test_every_mask_is_a_landscape_of_its_own() -> None:
    found = loss_landscape(network(0, nn.Dropout(0.4)), BATCHES, points=3, masks=3)
    assert found.loss.shape == (3, 3, 3) and len({float(v) for v in found.loss[:, 1, 1]}) == 3
    with pytest.raises(InputError, match="no dropout"):
        loss_landscape(network(), BATCHES, masks=2)


def test_an_interrupted_grid_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, file = network(), tmp_path / "grid.safetensors"
    whole = loss_landscape(model, BATCHES, points=4)

    def dying(rows: object) -> object:
        for i in rows:  # type: ignore[attr-defined]
            if i == 2:
                raise KeyboardInterrupt
            yield i

    with pytest.raises(KeyboardInterrupt):
        loss_landscape(model, BATCHES, points=4, store=file, progress=dying)  # type: ignore[arg-type]
    computed, own = [], module._losses
    monkeypatch.setattr(module, "_losses", lambda *a: computed.append(1) or own(*a))
    again = loss_landscape(model, BATCHES, points=4, store=file)
    assert len(computed) == 8 and torch.equal(again.each, whole.each)
    loss_landscape(model, BATCHES, points=4, store=file)
    assert len(computed) == 8
    with pytest.raises(InputError, match="other weights, items or settings"):
        loss_landscape(network(5), BATCHES, points=4, store=file)
    file.write_bytes(file.read_bytes()[:-4])
    with pytest.raises(FileError, match="truncated"):
        loss_landscape(model, BATCHES, points=4, store=file)
