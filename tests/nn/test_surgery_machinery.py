"""A smoothed network under torch's machinery: compile, export, channels-last, autocast, copies, checkpoints."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

import calibrant
from calibrant.nn import build
from calibrant.nn.antialias import blurpool
from calibrant.nn.smoothing import Blur, Prob, Smooth, reference
from calibrant.nn.surgery import Inserted, smoothed, unsmooth

# Dynamo instantiates an autograd.Function, and torch warns itself of it
pytestmark = pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")

X = torch.randn(4, 3, 16, 16, generator=torch.Generator().manual_seed(0))


def small() -> nn.Module:
    """A residual network small enough to compile in a second."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        body = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
        more = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 8, 3, 2, 1))
        return nn.Sequential(body, more, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5))


def test_compile_in_one_graph_forward_and_backward() -> None:
    model = calibrant.smooth(small()).train()
    twin = copy.deepcopy(model)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    compiled(X).square().sum().backward()
    twin(X).square().sum().backward()
    for a, b in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad)
    torch._dynamo.reset()


def test_the_layer_compiles_whole_inside_and_outside_reference() -> None:
    layer = torch.compile(Smooth(), backend="eager", fullgraph=True)
    with reference():
        inside = layer(X)
    torch.testing.assert_close(inside, layer(X))
    torch._dynamo.reset()


@pytest.mark.parametrize("dynamic", [False, True])
def test_export(dynamic: bool) -> None:
    model = calibrant.smooth(small()).eval()
    shapes = ({0: torch.export.Dim("items", min=1, max=64)},) if dynamic else None
    exported = torch.export.export(model, (X,), dynamic_shapes=shapes).module()
    x = torch.cat([X, X]) if dynamic else X
    torch.testing.assert_close(exported(x), model(x))


@pytest.mark.parametrize("make", [calibrant.smooth, blurpool])
def test_symbolic_tracing(make: Callable[[nn.Module], nn.Module]) -> None:
    model = make(build("resnet20", classes=10)).eval()  # its layers are before blocks, which tracing takes apart
    graph = torch.fx.symbolic_trace(model)
    assert torch.equal(graph(X), model(X))
    alone = nn.Sequential(nn.Conv2d(3, 3, 1), Smooth((1, 2, 1), tau=2.0), Blur(), Prob("relu6"))
    assert torch.equal(torch.fx.symbolic_trace(alone)(X), alone(X))


def test_channels_last_in_and_out_of_every_layer() -> None:
    model = calibrant.smooth(small()).to(memory_format=torch.channels_last).eval()
    plain = calibrant.smooth(small()).eval()
    layer = next(iter(smoothed(model).values()))
    x = X.contiguous(memory_format=torch.channels_last)
    assert layer(x).is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(model(x), plain(X))


def test_autocast_runs_in_bfloat16_and_stays_close() -> None:
    model = calibrant.smooth(small()).eval()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        half = model(X)
    assert half.dtype == torch.bfloat16
    torch.testing.assert_close(half.float(), model(X), atol=0.02, rtol=0.05)


def test_copies_checkpoints_and_whole_models_keep_their_layers() -> None:
    model = calibrant.smooth(small(), kernel=(1, 2, 1), tau=7.0).eval()
    twin = copy.deepcopy(model)
    assert torch.equal(twin(X), model(X)) and list(smoothed(twin)) == list(smoothed(model))
    unsmooth(twin)
    assert smoothed(model)  # a copy's layers are its own
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    fresh = small()
    fresh.load_state_dict(
        torch.load(file, weights_only=True)
    )  # a checkpoint of the smoothed network fits the plain one
    assert torch.equal(calibrant.smooth(fresh, kernel=(1, 2, 1), tau=7.0).eval()(X), model(X))


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
    assert torch.equal(arrived(X), model(X))


def test_other_hooks_stay() -> None:
    model, seen = small(), []
    model[3].register_forward_pre_hook(lambda m, args: seen.append(args[0].shape))
    calibrant.smooth(model, inplace=True)
    seen.clear()
    unsmooth(model)(X)
    assert len(seen) == 1


def test_pretrained_weights_are_the_same_tensors_in_place() -> None:
    model = small()
    pointers = [p.data_ptr() for p in model.parameters()]
    calibrant.smooth(model, inplace=True)
    assert pointers == [p.data_ptr() for p in model.parameters()]
