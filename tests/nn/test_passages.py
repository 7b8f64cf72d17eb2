"""The ends of our own networks' stages take a layer without a hook's longer way, and nothing else changes."""

from __future__ import annotations

import copy
import io

import pytest
import torch
from torch import Tensor, nn

import calibrant
from calibrant.errors import InputError
from calibrant.nn import build
from calibrant.nn.insertion import Passage, inserted
from calibrant.nn.smoothing import Smooth
from calibrant.nn.surgery import smoothed, unsmooth

X = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
ENDS = {"before layer2.0": "end1", "before layer3.0": "end2", "before layer4.0": "end3", "after layer4": "end4"}


def network() -> nn.Module:
    torch.manual_seed(0)
    return build("resnet18", classes=10).eval()


def hooked(model: nn.Module) -> nn.Module:
    """The same layers by name: as hooks."""
    return calibrant.smooth(model, list(ENDS))


def test_a_network_of_ours_is_smoothed_at_its_ends_and_calls_no_hook() -> None:
    model = calibrant.smooth(network())
    assert {place: hook.through for place, (_, _, hook) in zip(smoothed(model), inserted(model), strict=True)} == ENDS
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_values_and_gradients_are_those_of_hooks() -> None:
    plain, grads = network(), []
    by_ends, by_hooks = calibrant.smooth(plain), hooked(plain)
    assert list(smoothed(by_ends)) == list(smoothed(by_hooks))
    assert not any(hook.through for _, _, hook in inserted(by_hooks))
    for model in (by_ends, by_hooks):
        model(X).square().sum().backward()
        grads.append([p.grad for p in model.parameters()])
    assert torch.equal(by_ends(X), by_hooks(X)) and not torch.equal(by_ends(X), plain(X))
    assert all(torch.equal(a, b) for a, b in zip(*grads, strict=True))


@pytest.mark.parametrize("name", ["resnet18", "vgg16", "densenet121", "preact_resnet18"])
def test_taking_them_out_leaves_nothing(name: str) -> None:
    torch.manual_seed(0)
    plain = build(name, classes=10).eval()
    model = unsmooth(calibrant.smooth(plain))
    assert not smoothed(model) and torch.equal(model(X), plain(X))
    ends = [m for m in model.modules() if isinstance(m, Passage)]
    assert ends and all(set(vars(m)) == set(vars(Passage())) for m in ends)


def test_copies_files_and_wrappers_take_them_along() -> None:
    model = calibrant.smooth(network())
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    for other in (copy.deepcopy(model), torch.load(file, weights_only=False)):
        assert list(smoothed(other)) == list(ENDS) and torch.equal(other(X), model(X))
        next(iter(smoothed(other).values())).prob.tau = 1.0  # its own layer, not the first one's
        assert not torch.equal(other(X), model(X))
    wrapped = nn.Sequential(model, nn.Softmax(-1))
    assert list(smoothed(wrapped)) == [place.replace(" ", " 0.") for place in ENDS]
    assert list(model.state_dict()) == list(network().state_dict())


def test_a_map_that_others_read_is_smoothed_for_the_place_alone() -> None:
    class Skips(nn.Module):
        """A skip reads the map beside the pool, as in a U-Net."""

        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
            self.end, self.pool = Passage(), nn.MaxPool2d(2)

        def forward(self, x: Tensor) -> Tensor:
            x = self.end(self.last(self.first(x).relu()))
            return self.pool(x).mean((2, 3)) + x.amax((2, 3))

    model = Skips().eval()
    places = inserted(calibrant.smooth(model, "before-downsampling"))
    assert "pool" in [name for name, _, _ in places] and not any(h.through for n, _, h in places if n == "pool")


def test_a_map_smaller_than_the_kernel_is_named_by_its_place() -> None:
    with pytest.raises(InputError, match=r"after 'layer4': a map of 1×1 is smaller"):
        calibrant.smooth(network())(X[..., :8, :8])


def test_symbolic_tracing_and_export_follow_the_passage() -> None:
    model = calibrant.smooth(network())
    assert torch.equal(torch.fx.symbolic_trace(model)(X), model(X))
    exported = torch.export.export(model, (X,)).module()
    torch.testing.assert_close(exported(X), model(X))
    assert all(isinstance(layer, Smooth) for layer in smoothed(model).values())
