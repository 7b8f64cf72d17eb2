"""`calibrant.smooth`: where it puts the layers, that the rest stays as it is, that it can be undone exactly; compile,
export, channels-last, autocast, copies and files of a smoothed network."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

import calibrant
from calibrant.ensembles.dropout import MCDropout, insert
from calibrant.errors import CalibrantWarning, InputError
from calibrant.nn import build
from calibrant.nn.activations import relu6
from calibrant.nn.antialias import blurpool
from calibrant.nn.smoothing import Blur, Prob, Smooth, reference
from calibrant.nn.surgery import Inserted, smoothed, unsmooth
from tests.nn.surgery_networks import Net, OwnConvolution, conv, stem

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


class Reused(Net):
    """One layer for two maps, of which only one is pooled."""

    def __init__(self) -> None:
        super().__init__(lambda m, x: m.b(F.max_pool2d(m.b(m.a(x)), 2)), a=conv(3, 4), b=conv(4, 4))


def conditional() -> Net:
    """A network of two arguments; a function pools a product, which no module returns."""
    return Net(
        lambda m, x, condition: (m.body(x) * m.scale(condition)[:, :, None, None]).mean((2, 3)),
        body=nn.Sequential(stem(), nn.MaxPool2d(2), conv(4, 4)), scale=nn.Linear(2, 4),
    )  # fmt: skip


def mixed() -> Net:
    """One activation for maps of one and of two axes."""
    return Net(lambda m, x: m.act(m.c(m.act(m.b(m.a(x))).mean(2))), a=conv(3, 4), b=conv(4, 4), c=nn.Conv1d(4, 4, 3),
        act=nn.ReLU(), never=conv(3, 3))  # fmt: skip


TWO = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU())
PAIR = (X, torch.zeros(2, 2))
BAD: list[tuple[Callable[[], Any], dict[str, Any], str]] = [
    (lambda: "resnet18", {}, "smooth a network .*, not str"),
    (lambda: nn.Sequential(nn.Flatten(), nn.Linear(8, 2)), {}, "no convolution"),
    (lambda: TWO, {}, "no stage"),
    (lambda: nn.Sequential(nn.Conv2d(3, 4, 8, 8), nn.Flatten(2)), {}, "no stage"),  # patches are not a map
    (lambda: nn.Sequential(OwnConvolution(3, 4), nn.MaxPool2d(2)), {}, "has no convolution.* pass example="),
    (lambda: TWO, {"where": ["1", "layer9"]}, "'layer9' matches no module; modules that take a feature map: 0, 1"),
    (lambda: TWO, {"where": lambda n, m: False}, "the function where= matches no module"),
    (lambda: TWO, {"where": []}, "an empty where= matches no module"),
    (lambda: TWO, {"where": 3}, "where=3 is not a name"),
    *((lambda: TWO, {"where": w}, r"where\(name, module\) -> bool; this one takes \(")
      for w in (lambda m: True, lambda a, b, c: True, lambda: True)),
    (lambda: TWO, {"where": "1", "tau": -1.0}, "tau"),
    (mixed, {"where": "never"}, "'never' is never called"),
    (mixed, {"where": "act"}, "'act' is called on maps of 1 and 2 axes"),
    (conditional, {}, "condition.*pass example="),
    (lambda: nn.Sequential(conditional(), nn.Conv1d(4, 4, 3)), {"where": "1"}, "over 1 and 2 axes; pass example="),
    (conditional, {"example": X}, "does not run on this example: .*condition"),
    (conditional, {"example": PAIR}, "mean in the network's own forward subsamples .*name places by where="),
    (conditional, {"where": "scale", "example": PAIR}, r"before 'scale' there is shape \(2, 2\), not a feature map"),
    (Reused, {}, "the output of one of several calls of 'b'.*where='after b' smooths it at every"),
    (network, {"kernel": (1, 4, 6, 4, 1), "example": X[..., :8, :8]}, r"layer3.0: .*4×4.*5 taps.*where="),
]  # fmt: skip


@pytest.mark.parametrize(("make", "options", "says"), BAD)
def test_bad_input_is_named(make: Callable[[], Any], options: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        calibrant.smooth(make(), **options)


def test_a_map_smaller_than_the_kernel_is_named_by_its_place() -> None:
    with pytest.raises(InputError, match="^after 'layer3': a map of 1×1 is smaller"):
        calibrant.smooth(network())(X[..., :4, :4])


@pytest.mark.filterwarnings("ignore:.*quantize.* deprecated:UserWarning")
def test_networks_in_other_forms_are_refused() -> None:
    with pytest.warns(DeprecationWarning):
        script = torch.jit.script(small().eval())
    lazy = nn.Sequential(nn.LazyConv2d(4, 3), nn.ReLU(), nn.LazyConv2d(4, 3), nn.MaxPool2d(2))
    whole = nn.Sequential(torch.ao.nn.quantized.Conv2d(3, 4, 3), nn.Flatten())
    said = {"TorchScript": script, "lazy layers.*run one first": lazy, "quantised, .* before quantising": whole}
    said["is compiled; smooth the network first"] = torch.compile(small())
    for says, model in said.items():
        with pytest.raises(InputError, match=says):
            calibrant.smooth(model)


def test_where_takes_names_functions_and_what_smoothed_returns() -> None:
    model = network()
    smooth = calibrant.smooth(model)
    again = calibrant.smooth(model, where=[*smoothed(smooth), "layer2.0"])  # a name given twice is one layer
    assert list(smoothed(again)) == PLACES and torch.equal(again(X), smooth(X))
    assert list(smoothed(calibrant.smooth(model, where=lambda name, m: name == "layer2"))) == ["before layer2"]


def test_an_example_may_be_a_tuple_or_a_dict_of_arguments() -> None:
    made = calibrant.smooth(conditional(), where="body.1", example=PAIR)
    assert list(smoothed(made)) == ["before body.1"] == list(smoothed(calibrant.smooth(conditional(), where="body.1")))
    by_name = calibrant.smooth(small(), example={"input": SMALL})
    assert list(smoothed(by_name)) == list(smoothed(calibrant.smooth(small())))


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


class Keyword(nn.Module):
    """A network that calls every module by keyword, and counts its passes in buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.p, self.c = stem(), nn.MaxPool2d(2), conv(4, 4)
        self.register_buffer("seen", torch.zeros((), dtype=torch.long))
        self.register_buffer("moved", torch.zeros(2))

    def forward(self, x: Tensor) -> Tensor:
        self.seen += 1
        self.moved = self.moved + 1
        return self.c(input=self.p(input=self.body(input=x)))


def test_a_module_that_is_called_by_keyword() -> None:
    model = Keyword().eval()
    smooth = calibrant.smooth(model)
    assert list(smoothed(smooth)) == ["before p"]
    expected = model.c(model.p(Smooth()(model.body(X))))
    for way in (smooth, torch.export.export(smooth, (X,)).module(), copy.deepcopy(smooth)):
        torch.testing.assert_close(way(X), expected)
    torch.testing.assert_close(torch.compile(smooth, backend="eager", fullgraph=True)(X), expected)
    torch._dynamo.reset()


@pytest.mark.parametrize("inplace", [False, True])
def test_tracing_restores_buffers_and_runs_the_copy_only(inplace: bool) -> None:
    model, ran = Keyword(), []
    model.p.register_forward_hook(lambda module, args, output: ran.append(module))
    moved = model.moved
    smooth = calibrant.smooth(model, inplace=inplace)
    assert all(int(one.seen) == 0 and not one.moved.any() for one in (model, smooth))
    assert model.moved is moved and (model.p in ran) == inplace


def test_smoothing_works_after_conversion_to_synchronised_norms() -> None:
    """The conversion makes new modules without hooks, so convert first (docs/smoothing.md)."""
    model = Net(lambda m, x: F.max_pool2d(F.relu(m.n(m.b(F.relu(m.a(x))))), 2), a=conv(3, 4), b=conv(4, 4),
        n=nn.BatchNorm2d(4)).eval()  # fmt: skip
    smooth = calibrant.smooth(nn.SyncBatchNorm.convert_sync_batchnorm(copy.deepcopy(model)).eval())
    assert isinstance(smooth.n, nn.SyncBatchNorm) and list(smoothed(smooth)) == ["after n"]
    torch.testing.assert_close(smooth(X), calibrant.smooth(model)(X))
