"""`calibrant.smooth`: where it puts the layers, that the rest stays as it is, that it can be undone exactly; compile,
export, channels-last, autocast, copies and files of a smoothed network."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

import calibrant
from calibrant.ensembles.dropout import MCDropout, insert
from calibrant.errors import CalibrantWarning, InputError
from calibrant.nn import build
from calibrant.nn.activations import relu6
from calibrant.nn.antialias import blurpool
from calibrant.nn.smoothing import Blur, Prob, Smooth, reference
from calibrant.nn.surgery import Inserted, smoothed, stages, unsmooth

# Dynamo instantiates an autograd.Function, of which torch warns
pytestmark = pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")

X = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
SMALL = torch.randn(4, 3, 16, 16, generator=torch.Generator().manual_seed(0))
PLACES = ["before layer2.0", "before layer3.0", "after layer3"]


def network() -> nn.Module:
    return build("resnet20", classes=10).eval()


def small() -> nn.Module:
    """A network small enough to compile in a second."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        body = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
        more = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 8, 3, 2, 1))
        return nn.Sequential(body, more, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5))


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("resnet18", ["layer2.0", "layer3.0", "layer4.0"], ["layer4"]),  # SS: three and one
        ("resnet20", ["layer2.0", "layer3.0"], ["layer3"]),
        ("resnet29v2", ["stages.1.0", "stages.2.0"], ["act"]),  # pooling is a function: after the last map
        ("vgg16", ["stages.0.4", "stages.1.4", "stages.2.5", "stages.3.5", "stages.4.5"], []),
        ("densenet121", ["body.11", "body.28", "body.57"], ["body"]),
        ("unet", ["pools.0", "pools.1", "pools.2", "pools.3"], []),  # its skips keep their maps
    ],
)
def test_stages_of_known_networks(name: str, before: list[str], after: list[str]) -> None:
    options = {"vgg16": {"hidden": (4,)}, "unet": {"width": 4}}.get(name, {})
    assert stages(build(name, classes=10, in_channels=3, **options)) == (before, after)


def test_the_layer_smooths_the_input_of_the_module() -> None:
    model = network()
    smooth = calibrant.smooth(model, where="layer2")
    with torch.no_grad():
        by_hand = model.layer3(model.layer2(Smooth()(model.layer1(_stem(model, X)))))
        inside = smooth.layer3(smooth.layer2(smooth.layer1(_stem(smooth, X))))
    torch.testing.assert_close(inside, by_hand)


def _stem(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Return the input of layer1 in one forward pass."""
    found: list[torch.Tensor] = []
    hook = model.layer1.register_forward_pre_hook(lambda m, args: found.append(args[0]))
    model(x)
    hook.remove()
    return found[0]


def test_the_original_is_unchanged_and_unsmooth_leaves_no_trace() -> None:
    model = network()
    with torch.no_grad():
        before = model(X)
        smooth = calibrant.smooth(model)
        assert torch.equal(model(X), before) and not smoothed(model)
        assert not torch.equal(smooth(X), before)
        assert list(smooth.state_dict()) == list(model.state_dict()) and repr(smooth) == repr(model)
        assert all(torch.equal(v, model.state_dict()[k]) for k, v in smooth.state_dict().items())
        assert torch.equal(unsmooth(smooth)(X), before) and not smoothed(smooth)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in smooth.modules())
    assert list(map(type, smooth.modules())) == list(map(type, model.modules()))


def test_in_place_smoothing_keeps_the_tensors_and_refuses_a_second_time() -> None:
    model, seen = network(), []
    pointers = [p.data_ptr() for p in model.parameters()]
    model.layer2[0].register_forward_pre_hook(lambda m, args: seen.append(args[0].shape))
    assert calibrant.smooth(model, inplace=True, kernel=(1, 2, 1), tau=5.0) is model
    assert pointers == [p.data_ptr() for p in model.parameters()]
    assert list(smoothed(model)) == PLACES  # as they run
    assert all(layer.prob.tau == 5.0 for layer in smoothed(model).values())
    with pytest.raises(InputError, match="already"):
        calibrant.smooth(model)
    seen.clear()
    unsmooth(model)(X)
    assert len(seen) == 1  # other hooks stay


def test_a_copy_stays_in_training_mode_and_trains_compiled_in_one_graph() -> None:
    smooth = calibrant.smooth(small().train())
    assert smooth.training
    twin = copy.deepcopy(smooth)
    twin(SMALL).square().sum().backward()
    torch.compile(smooth, backend="aot_eager", fullgraph=True)(SMALL).square().sum().backward()
    for a, b in zip(smooth.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad)
    torch._dynamo.reset()


@pytest.mark.parametrize(
    ("model", "options", "says"),
    [
        (nn.Sequential(nn.Flatten(), nn.Linear(8, 2)), {}, "no convolution"),
        (nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU()), {}, "no stage"),
        (nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()), {"where": "layer9"}, "0, 1"),
        (nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()), {"where": lambda n, m: False}, "matches no module"),
        (nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()), {"where": "1", "tau": -1.0}, "tau"),
        (nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()), {"where": 3}, "where=3 is not a name"),
    ],
)
def test_bad_input_is_named(model: Any, options: dict, says: str) -> None:
    with pytest.raises(InputError, match=says):
        calibrant.smooth(model, **options)


@pytest.mark.parametrize(
    ("kernel", "edge", "says"),
    [
        ((1, 1), 4, "^after 'layer3': a map of 1×1 is smaller"),
        ((1, 4, 6, 4, 1), 8, r"^before 'layer3.0': a map of 4×4 is smaller than the kernel of 5 taps"),
    ],
)
def test_a_map_smaller_than_the_kernel_is_named_by_its_place(kernel: tuple[int, ...], edge: int, says: str) -> None:
    with pytest.raises(InputError, match=says):
        calibrant.smooth(network(), kernel=kernel)(X[..., :edge, :edge])


def with_dropout(model: nn.Module) -> nn.Module:
    insert(model, 0.5, where=lambda _, m: isinstance(m, nn.ReLU))
    return model


@pytest.mark.parametrize("change", [relu6, with_dropout])
def test_layers_survive_a_change_of_the_activations_before_them(change: Callable[[nn.Module], nn.Module]) -> None:
    """The output of a block is smoothed after ReLU6 or dropout, whichever was inserted first."""
    outputs = []
    for model in (change(calibrant.smooth(network())), calibrant.smooth(change(network()))):
        assert list(smoothed(model)) == PLACES
        torch.manual_seed(0)
        outputs.append(model.train()(X))
    assert torch.equal(*outputs)


def test_a_hook_on_a_layer_is_called_for_every_member() -> None:
    model = calibrant.smooth(build("resnet20", classes=5, dropout=0.3))
    heard: list[int] = []
    next(iter(smoothed(model).values())).register_forward_hook(lambda *_: heard.append(1))
    with pytest.warns(CalibrantWarning, match="hooks on its modules"):
        MCDropout(model, 3).members(X)
    assert len(heard) == 3


def test_the_layer_compiles_whole_inside_and_outside_reference() -> None:
    layer = torch.compile(Smooth(), backend="eager", fullgraph=True)
    with reference():
        inside = layer(X)
    torch.testing.assert_close(inside, layer(X))
    torch._dynamo.reset()


def test_export_for_batches_of_any_size() -> None:
    model = calibrant.smooth(small()).eval()
    shapes = ({0: torch.export.Dim("items", min=1, max=64)},)
    exported = torch.export.export(model, (SMALL,), dynamic_shapes=shapes).module()
    torch.testing.assert_close(exported(SMALL.repeat(2, 1, 1, 1)), model(SMALL.repeat(2, 1, 1, 1)))


@pytest.mark.parametrize("make", [calibrant.smooth, blurpool])
def test_symbolic_tracing(make: Callable[[nn.Module], nn.Module]) -> None:
    model = make(network()).eval()  # its layers are before blocks, which tracing takes apart
    assert torch.equal(torch.fx.symbolic_trace(model)(X), model(X))
    alone = nn.Sequential(nn.Conv2d(3, 3, 1), Smooth((1, 2, 1), tau=2.0), Blur(), Prob("relu6"))
    assert torch.equal(torch.fx.symbolic_trace(alone)(X), alone(X))


def test_channels_last_in_and_out_of_every_layer() -> None:
    model = calibrant.smooth(small()).to(memory_format=torch.channels_last).eval()
    layer = next(iter(smoothed(model).values()))
    x = SMALL.contiguous(memory_format=torch.channels_last)
    assert layer(x).is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(model(x), calibrant.smooth(small()).eval()(x))


def test_autocast_runs_in_bfloat16_and_stays_close() -> None:
    model = calibrant.smooth(small()).eval()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        half = model(SMALL)
    assert half.dtype == torch.bfloat16
    torch.testing.assert_close(half.float(), model(SMALL), atol=0.02, rtol=0.05)


def test_copies_files_and_wrappers_keep_the_layers() -> None:
    model = calibrant.smooth(network())
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    for other in (copy.deepcopy(model), torch.load(file, weights_only=False)):
        assert list(smoothed(other)) == PLACES and torch.equal(other(X), model(X))
        next(iter(smoothed(other).values())).prob.tau = 1.0  # its own layer, not the first one's
        assert not torch.equal(other(X), model(X))
    wrapped = nn.Sequential(model, nn.Softmax(-1))
    assert list(smoothed(wrapped)) == [place.replace(" ", " 0.") for place in PLACES]
    assert list(smoothed(wrapped[0])) == PLACES


def test_a_model_sent_to_another_process_keeps_its_layers_when_hooks_come_and_go(monkeypatch) -> None:
    model = calibrant.smooth(small()).eval()
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    hooked = [m for m in model.modules() if any(isinstance(h, Inserted) for h in m._forward_pre_hooks.values())]
    first = next(iter(hooked[0]._forward_pre_hooks))
    monkeypatch.setattr(RemovableHandle, "next_id", first)  # a new process counts anew, and gets there too
    arrived = torch.load(file, weights_only=False)
    for module in arrived.modules():
        if any(isinstance(h, Inserted) for h in module._forward_pre_hooks.values()):
            module.register_forward_pre_hook(lambda m, args: None).remove()
    assert list(smoothed(arrived)) == list(smoothed(model))
    assert torch.equal(arrived(SMALL), model(SMALL))
