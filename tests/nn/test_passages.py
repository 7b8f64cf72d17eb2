"""The ends of our own networks' stages take a layer without a hook's longer way, and nothing else changes."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import calibrant
from calibrant.ensembles.dropout import MCDropout, insert
from calibrant.errors import InputError
from calibrant.nn import build
from calibrant.nn.activations import relu6
from calibrant.nn.insertion import Passage, inserted
from calibrant.nn.smoothing import Smooth, Upper
from calibrant.nn.surgery import smoothed, unsmooth

Where = Callable[[str, nn.Module], bool]
X = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
ENDINGS = [f"layer{i}.1.act2" for i in range(1, 5)]  # the last ReLU of each stage
ENDS = {"before layer2.0": "end1", "before layer3.0": "end2", "before layer4.0": "end3", "after layer4": "end4"}


def network() -> nn.Module:
    torch.manual_seed(0)
    return build("resnet18", classes=10).eval()


def hooked(model: nn.Module) -> nn.Module:
    """The same layers by name: as hooks."""
    return calibrant.smooth(model, list(ENDS))


def test_a_network_of_ours_is_smoothed_at_its_ends_and_calls_no_hook() -> None:
    for prob in ("tanh", "relu6"):
        model = calibrant.smooth(network(), prob=prob)
        through = ENDINGS if prob == "tanh" else list(ENDS.values())
        assert list(smoothed(model)) == list(ENDS) and [h.through for _, _, h in inserted(model)] == through
        assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def by_hooks_too(plain: nn.Module, training: bool = False, x: Tensor = X, **settings: Any) -> list[str]:
    """What the layers go through; outputs and gradients are those of the same layers by name, as hooks."""
    model = calibrant.smooth(plain, **settings)
    results = []
    for each in (model, calibrant.smooth(plain, list(smoothed(model)), **settings)):
        torch.manual_seed(0)
        out = each.train(training)(x)
        out.square().sum().backward()
        results.append([out, *(p.grad for p in each.parameters())])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True) if a is not None)
    return [hook.through for _, _, hook in inserted(model)]


@pytest.mark.parametrize("prob", ["tanh", "constant", "none", "relu6", "identity"])
def test_only_a_layer_that_begins_with_a_relu_stands_in_place_of_one(prob: Upper) -> None:
    """At zero, relu6's clamp has a slope that a ReLU has not: what stands before it is not to tell."""
    plain = network()
    with torch.no_grad():
        plain.layer1[1].bn2.weight.zero_()
        plain.layer1[1].bn2.bias.zero_()
    plain.layer1[0].act2 = nn.Softshrink(0.5)  # so that zero, above and below it are all in the sum
    sums: list[Tensor] = []
    plain.layer1[1].act2.register_forward_pre_hook(lambda m, a: sums.append(a[0]))
    plain(X)
    assert all(bool(part.any()) for part in (sums[0] == 0, sums[0] > 0, sums[0] < 0))
    plain.layer1[1].act2._forward_pre_hooks.clear()
    through = ENDINGS if prob in ("tanh", "constant", "none") else list(ENDS.values())
    assert by_hooks_too(plain, prob=prob) == through


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("laid", ["weights", "both"])
def test_gradients_are_those_of_hooks_with_channels_last(training: bool, laid: str) -> None:
    x = X.contiguous(memory_format=torch.channels_last) if laid == "both" else X
    assert by_hooks_too(network().to(memory_format=torch.channels_last), training, x) == ENDINGS


def shared(name: str, other: str) -> Callable[[nn.Module], None]:
    def share(model: nn.Module) -> None:
        parent, _, key = name.rpartition(".")
        setattr(model.get_submodule(parent), key, model.get_submodule(other))

    return share


class MayLeave(nn.Module):
    """Stochastic depth around a block."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, x: Tensor) -> Tensor:
        return x if self.training and float(torch.rand(())) < 0.9 else self.block(x)


class Drops(nn.Sequential):
    def forward(self, input: Tensor) -> Tensor:
        return F.dropout(super().forward(input), 0.3, self.training)


def wrapped_block(model: nn.Module) -> None:
    model.layer1[1] = MayLeave(model.layer1[1])


def wrapped_stage(model: nn.Module) -> None:
    model.layer1 = Drops(*model.layer1)


def patched(model: nn.Module) -> None:
    plain = model.layer1[1].forward
    model.layer1[1].forward = lambda x: F.dropout(plain(x), 0.3, model.training)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize(
    "change",
    [
        shared("layer1.1", "layer1.0"),
        shared("layer1.0.act2", "layer1.1.act2"),
        shared("layer2.0.act1", "layer1.1.act2"),
        shared("layer1.1.act1", "layer1.1.act2"),
        shared("layer1.1.act2", "layer2.1.act2"),
        shared("end2", "end1"),
        *(wrapped_block, wrapped_stage, patched),
    ],
)
def test_what_is_shared_or_somebody_elses_is_left_alone(change: Callable[[nn.Module], None], training: bool) -> None:
    """A trace in evaluation mode sees no dropout, and a ReLU of two places would be smoothed in both."""
    plain = network()
    change(plain)
    by_hooks_too(plain, training)


@pytest.mark.parametrize("name", ["layer1", "layer1.1", "layer1.1.act2", "end1"])
@pytest.mark.parametrize("kind", ["forward", "full_backward", "full_backward_pre", "forward_pre"])
def test_who_listens_to_a_block_hears_what_it_did_before(name: str, kind: str) -> None:
    heard: list[Tensor] = []
    plain = network()
    hear = getattr(plain.get_submodule(name), f"register_{kind}_hook")
    hear(lambda *said: heard.append(said[-1][0] if isinstance(said[-1], tuple) else said[-1]))
    model = calibrant.smooth(plain)
    for each in (calibrant.smooth(plain, list(ENDS)), model):
        each(X).square().sum().backward()
    assert torch.equal(*heard[-2:])  # the trace ran it, too
    inside = kind == "forward_pre" and name != "end1"  # before the ReLU
    first, *others = (h.through for _, _, h in inserted(model))
    assert others == ENDINGS[1:] and first in ([ENDINGS[0]] if inside else [""] if name == "end1" else ["end1", ""])


def test_a_traced_plain_network_is_what_it_was() -> None:
    traced = torch.fx.symbolic_trace(network())
    assert sum(type(m) is nn.ReLU for m in traced.modules()) == sum(type(m) is nn.ReLU for m in network().modules())
    assert list(smoothed(calibrant.smooth(traced)))


def test_layers_stand_behind_relus_again_whatever_their_names_are_now() -> None:
    class Aliased(nn.Module):
        def __init__(self, net: nn.Module) -> None:
            super().__init__()
            self.first, self.net = net.layer1, net

        def forward(self, x: Tensor) -> Tensor:
            return self.net(x)

    wanted = calibrant.smooth(relu6(network()))(X)
    taken_out = calibrant.smooth(nn.Sequential(network()))[0]
    for model in (relu6(taken_out), relu6(Aliased(calibrant.smooth(network())))):
        assert torch.equal(model(X), wanted)
    model = calibrant.smooth(network())
    relu6(model.layer1, inplace=True)
    assert [h.through for _, _, h in inserted(model)] == ["end1", *ENDINGS[1:]]


@pytest.mark.parametrize("change", [relu6, lambda m: dropped(m, lambda _, a: isinstance(a, nn.ReLU))])
def test_who_changes_the_activations_keeps_the_layers_behind_them(change: Callable[[nn.Module], nn.Module]) -> None:
    """Bounded or with dropout, what a block gives is smoothed afterwards, whichever was done first."""
    outputs = []
    for inside in (False, True):  # part of another network, by other names
        wrap = (lambda m: nn.Sequential(m)) if inside else (lambda m: m)
        after, before = change(wrap(calibrant.smooth(network()))), calibrant.smooth(change(wrap(network())))
        for model in (after, before):
            torch.manual_seed(0)
            outputs.append(model.train()(X))
        assert list(smoothed(after)) == list(smoothed(before))
    assert all(torch.equal(out, outputs[0]) for out in outputs)


def test_a_block_of_somebody_else_or_with_another_activation_keeps_its_own() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.act = nn.Conv2d(64, 64, 3, padding=1), nn.ReLU()

        def forward(self, x: Tensor) -> Tensor:
            y = self.act(self.conv(x))
            return y * 2 if self.training else y  # what else it does is its own affair

    model = network()
    model.layer1[1] = Block()
    assert through(model) == ["end1", *ENDINGS[1:]]
    assert through(build("resnet18", classes=5, act=nn.ReLU6)) == list(ENDS.values())


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
    ends = [m for m in model.modules() if isinstance(m, (Passage, nn.ReLU))]
    assert all(set(vars(m)) == set(vars(type(m)())) and getattr(m, "hook", None) is None for m in ends)
    assert list(map(type, model.modules())) == list(map(type, plain.modules()))


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


def through(model: nn.Module, **settings: Any) -> list[str]:
    return [hook.through for _, _, hook in inserted(calibrant.smooth(model, **settings))]


def test_names_follow_a_network_that_is_taken_out_of_another() -> None:
    wrapped = calibrant.smooth(nn.Sequential(network(), nn.Softmax(-1)))
    assert list(smoothed(wrapped)) == [place.replace(" ", " 0.") for place in ENDS]
    assert list(smoothed(wrapped[0])) == list(ENDS)
    vgg = calibrant.smooth(build("vgg16", classes=10))
    assert list(smoothed(vgg.stages[0])) == ["before 4"]


class Pieces(nn.Module):
    """Somebody's network of our parts, which also returns the maps between them."""

    def __init__(self) -> None:
        super().__init__()
        self.net = network()

    def forward(self, x: Tensor) -> list[Tensor]:
        net, maps = self.net, []
        x = net.act1(net.bn1(net.conv1(x)))
        for i in range(1, 5):
            x = getattr(net, f"end{i}")(getattr(net, f"layer{i}")(x))
            maps.append(x)
        return [net.head(x), *maps]


def test_a_network_of_our_parts_has_hooks_and_returns_the_maps_it_returned() -> None:
    model = Pieces().eval()
    assert not any(through(model))
    first = calibrant.smooth(model)(X)[1]
    assert torch.equal(first, model(X)[1])


def skipping(x: Tensor, net: nn.Module) -> Tensor:
    return net.pool(x).mean((2, 3)) + x.amax((2, 3))


def test_in_a_network_of_somebody_else_nothing_goes_through_a_passage() -> None:
    class Skips(nn.Module):
        """A skip reads the map beside the pool, as in a U-Net."""

        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
            self.end, self.pool = Passage(), nn.MaxPool2d(2)

        def forward(self, x: Tensor) -> Tensor:
            return skipping(self.end(self.last(self.first(x).relu())), self)

    assert not any(through(Skips().eval()))


def test_the_skips_of_our_u_net_keep_their_maps() -> None:
    places = inserted(calibrant.smooth(build("unet", classes=3)))
    assert [name for name, _, _ in places] == [f"pools.{i}" for i in range(4)]
    assert not any(hook.through for _, _, hook in places)


@pytest.mark.parametrize(
    "made",
    [
        lambda: build("vgg16", classes=5, pool=lambda **k: nn.Sequential(nn.Dropout(0.3), nn.MaxPool2d(**k))),
        lambda: build("resnet18", classes=5, stage_end=lambda c: nn.Sequential(Passage(), nn.Dropout(0.3))),
        lambda: dropped(network()),
    ],
)
def test_dropout_between_a_passage_and_its_place_is_not_jumped_over(made: Callable[[], nn.Module]) -> None:
    """Without dropout's noise both orders look alike, as they do in the trace."""
    model = made()
    by_default = calibrant.smooth(model).train()
    by_hooks = calibrant.smooth(model, list(smoothed(by_default))).train()
    outputs = []
    for smooth in (by_default, by_hooks):
        torch.manual_seed(0)
        outputs.append(smooth(X))
    assert torch.equal(*outputs)


def dropped(model: nn.Module, where: Where = lambda name, _: name in ENDS.values()) -> nn.Module:
    insert(model, 0.5, where=where)
    return model


def test_a_hook_on_the_layer_is_heard_by_every_member() -> None:
    model = calibrant.smooth(build("vgg16", classes=5, dropout=0.3, head="mlp", dropout_at="stages"))
    heard: list[int] = []
    next(iter(smoothed(model).values())).register_forward_hook(lambda m, a, out: heard.append(1))
    by_hooks = calibrant.smooth(unsmooth(copy.deepcopy(model)), list(smoothed(model)))
    also: list[int] = []
    next(iter(smoothed(by_hooks).values())).register_forward_hook(lambda m, a, out: also.append(1))
    for m in (model, by_hooks):
        MCDropout(m, 6).members(X)
    assert len(heard) == len(also) > 0


@pytest.mark.filterwarnings("ignore:.*torch.jit.script. is deprecated:DeprecationWarning")
def test_a_plain_network_says_and_scripts_what_it_did() -> None:
    """`repr` is part of the hash by which measured distances are kept."""
    assert repr(Passage()) == repr(nn.Identity()) and repr(calibrant.smooth(network())) == repr(network())
    model = build("vgg16", classes=5).eval()
    assert torch.equal(torch.jit.script(model)(X), model(X))


def test_a_map_smaller_than_the_kernel_is_named_by_its_place() -> None:
    with pytest.raises(InputError, match=r"after 'layer4': a map of 1×1 is smaller"):
        calibrant.smooth(network())(X[..., :8, :8])


def test_symbolic_tracing_and_export_follow_the_passage() -> None:
    model = calibrant.smooth(network())
    assert torch.equal(torch.fx.symbolic_trace(model)(X), model(X))
    exported = torch.export.export(model, (X,)).module()
    torch.testing.assert_close(exported(X), model(X))
    assert all(isinstance(layer, Smooth) for layer in smoothed(model).values())
