"""Networks: published parameter counts, shapes, options, and initialisation that restores the global generator."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from calibrant.errors import InputError, UnknownNameError
from calibrant.nn import MODELS, build, options_of
from calibrant.nn.heads import Head
from calibrant.nn.surgery import smoothed, unsmooth
from calibrant.nn.training_ensemble import TrainingEnsemble
from calibrant.nn.vgg import DROPOUT_AT

IMAGENET = {"classes": 1000, "size": 224, "stem": "imagenet"}
PUBLISHED: list[tuple[str, dict[str, Any], int]] = [
    # kuangliu/pytorch-cifar and akamaster/chenyaofo's CIFAR networks
    ("resnet18", {}, 11_173_962),
    ("resnet50", {}, 23_520_842),
    ("resnet20", {"shortcut": "A"}, 269_722),
    ("resnet32", {"shortcut": "A"}, 464_154),
    ("resnet44", {"shortcut": "A"}, 658_586),
    ("resnet56", {"shortcut": "A"}, 853_018),
    ("resnet110", {"shortcut": "A"}, 1_727_962),
    ("resnet20", {"shortcut": "conv"}, 272_474),
    ("resnet32", {"shortcut": "conv"}, 466_906),
    ("resnet44", {"shortcut": "conv"}, 661_338),
    ("resnet56", {"shortcut": "conv"}, 855_770),
    ("vgg16", {"head": "gap"}, 14_728_266),
    ("vgg19", {"head": "gap"}, 20_040_522),
    ("densenet121", {}, 6_956_298),
    ("preact_resnet50", {}, 23_509_066 + 2 * 2048),  # kuangliu's PreActResNet50, and a norm before the head
    ("wide_resnet28_10", {}, 36_479_194),  # Zagoruyko's 36.5 M
    ("resnet29v2", {}, 843_786),  # trainable parameters of the Keras example
    # torchvision
    ("resnet18", IMAGENET, 11_689_512),
    ("resnet50", IMAGENET, 25_557_032),
    ("resnet101", IMAGENET, 44_549_160),
    ("resnext50", IMAGENET, 25_028_904),
    ("densenet121", IMAGENET, 7_978_856),
    ("densenet169", IMAGENET, 14_149_480),
    ("vgg16", {"classes": 1000, "size": 224}, 138_365_992),
    ("vgg19", {"classes": 1000, "size": 224}, 143_678_248),
    ("alexnet", {"classes": 1000, "size": 224}, 61_100_840),
    ("inception_v3", {"classes": 1000, "size": 299}, 23_834_568),  # without the auxiliary classifier
    ("unet", {"classes": 2}, 31_037_698),  # milesial/Pytorch-UNet
    # by hand: Σ (inputs + 1)·outputs + 2·outputs for each BatchNorm
    ("mlp", {"in_channels": 1, "size": 28}, 785 * 200 + 2 * 201 * 200 + 201 * 10 + 3 * 400),
    ("mlp", {"in_channels": 1, "size": 28, "batch_norm": False}, 785 * 200 + 2 * 201 * 200 + 201 * 10),
    (
        "mnist_cnn",
        {"in_channels": 1, "size": 28},
        (9 + 1) * 32 + (9 * 32 + 1) * 64 + (64 * 24 * 24 + 1) * 128 + 129 * 64 + 65 * 10 + 2 * (32 + 64 + 128 + 64),
    ),
    (
        "cifar_cnn",
        {},
        28 * 16 + (9 * 16 + 1) * 16 + (9 * 16 + 1) * 32 + (9 * 32 + 1) * 32 + 2 * 96 + 2049 * 128 + 129 * 10,
    ),
]  # fmt: skip


def count(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(("name", "options", "number"), PUBLISHED)
def test_parameter_count_is_the_published_one(name: str, options: dict[str, Any], number: int) -> None:
    options = {"classes": 10, **options}
    with _Unfilled():
        assert count(build(name, **options)) == number


class _Unfilled:
    """Skip initialisation, which takes most of the time for a network of 140 million parameters."""

    def __enter__(self) -> None:
        self.kept = {name: getattr(nn.init, name) for name in ("kaiming_uniform_", "kaiming_normal_", "uniform_")}
        for name in self.kept:
            setattr(nn.init, name, lambda tensor, *args, **kwargs: tensor)

    def __exit__(self, *_: object) -> None:
        for name, fill in self.kept.items():
            setattr(nn.init, name, fill)


SMALL = {"mlp", "mnist_cnn", "cifar_cnn", "resnet20", "resnet29v2", "resnet18"}


@pytest.mark.parametrize("name", sorted(SMALL))
def test_forward_features_and_gradients(name: str) -> None:
    model = build(name, classes=7, in_channels=2, size=8)
    x = torch.randn(3, 2, 8, 8, generator=torch.Generator().manual_seed(0))
    logits = model(x)
    assert logits.shape == (3, 7)
    logits.sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    model.eval()
    last = model.fc if hasattr(model, "fc") else model.head.fc
    torch.testing.assert_close(last(model.features(x)), model(x))


@pytest.mark.parametrize("name", ["preact_resnet18", "densenet121", "resnext50", "vgg16"])
def test_large_networks_run(name: str) -> None:
    options: dict[str, Any] = {"head": "gap"} if name == "vgg16" else {}
    edge = 32 if name == "vgg16" else 16
    with _Unfilled(), torch.no_grad():
        assert build(name, classes=4, **options).eval()(torch.zeros(1, 3, edge, edge)).shape == (1, 4)


def test_every_model_is_exercised() -> None:
    assert set(MODELS) == {name for name, _, _ in PUBLISHED} | {"preact_resnet18", "text_cnn"}


@pytest.mark.parametrize("name", ["mlp", "resnet20"])
def test_the_seed_determines_the_weights_and_the_global_generator_is_restored(name: str) -> None:
    before = torch.get_rng_state()
    one, two, other = (build(name, classes=3, seed=seed).state_dict() for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(one[key], two[key]) for key in one)
    assert not all(torch.equal(one[key], other[key]) for key in one)
    torch.rand(3)
    again = build(name, classes=3, seed=1).state_dict()
    assert all(torch.equal(one[key], again[key]) for key in one)


def test_a_failing_build_restores_the_global_generator() -> None:
    before = torch.get_rng_state()
    with pytest.raises(InputError, match="vanish"):
        build("vgg16", classes=3, size=16)
    assert torch.equal(torch.get_rng_state(), before)


def test_he_initialisation() -> None:
    weight = build("resnet18", classes=10).get_parameter("layer4.1.conv2.weight")
    assert weight.std().item() == pytest.approx((2 / (512 * 9)) ** 0.5, rel=0.01)


def drops(model: nn.Module) -> list[str]:
    return [name for name, module in model.named_modules() if isinstance(module, nn.Dropout) and module.p == 0.3]


def test_dropout_places() -> None:
    """SS A.1: one layer per block; PEP §3.2: after each hidden layer, or after all layers but the first and the
    last."""
    places = {"resnet18": 8, "resnet50": 16, "resnet20": 9, "resnet29v2": 9, "mlp": 3}
    places |= {"mnist_cnn": 3, "cifar_cnn": 4}  # conv 2, dense 1, dense 2; conv 2, 3, 4, dense
    with _Unfilled():
        for name, number in places.items():
            assert len(drops(build(name, classes=10, dropout=0.3))) == number, name
        assert drops(build("resnet18", classes=10)) == []


def test_dropout_stands_before_the_last_convolution() -> None:
    calls: list[str] = []
    block = build("resnet18", classes=10, dropout=0.3).get_submodule("layer1.0")
    for name, module in block.named_children():
        module.register_forward_hook(lambda *_, name=name: calls.append(name))
    block(torch.zeros(1, 64, 4, 4))
    assert calls == ["conv1", "bn1", "act1", "drop", "conv2", "bn2", "downsample", "act2"]


def test_layers_are_passed_in() -> None:
    class Mark(nn.Identity):
        def __init__(self, channels: int) -> None:
            super().__init__()
            self.channels = channels

    model = build("resnet18", classes=10, norm=lambda c: nn.GroupNorm(4, c), act=nn.GELU, stage_end=Mark)
    kinds = {type(module) for module in model.modules()}
    assert nn.GroupNorm in kinds
    assert nn.GELU in kinds
    assert not {nn.BatchNorm2d, nn.ReLU} & kinds
    assert [m.channels for m in model.modules() if isinstance(m, Mark)] == [64, 128, 256, 512]
    with _Unfilled():
        pooled = build("vgg16", classes=2, head="gap", pool=nn.AvgPool2d)
    assert sum(isinstance(m, nn.AvgPool2d) for m in pooled.modules()) == 5


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("gap", lambda x: x.mean()), ("max", lambda x: x.max()), ("median", lambda x: x.sort().values[4])],
)
def test_heads_pool_as_named(kind: str, expected: Any) -> None:
    x = torch.randn(2, 5, 3, 3, generator=torch.Generator().manual_seed(0))
    pooled = Head(kind, 5, 4).embed(x)
    for i in range(2):
        for c in range(5):
            assert pooled[i, c].item() == pytest.approx(expected(x[i, c].flatten()).item(), rel=1e-5)


def test_mlp_head_has_half_dropout_and_takes_the_whole_map() -> None:
    model = build("resnet18", classes=10, head="mlp", hidden=(32, 16))
    head = model.get_submodule("head")
    assert [m.p for m in head.modules() if isinstance(m, nn.Dropout)] == [0.5, 0.5]
    assert [m.in_features for m in head.modules() if isinstance(m, nn.Linear)] == [512 * 16, 32, 16]
    assert build("vgg16", classes=10, hidden=(8,)).eval()(torch.zeros(1, 3, 32, 32)).shape == (1, 10)


def test_option_a_is_strided_and_padded() -> None:
    block = build("resnet20", classes=10).get_submodule("layer2.0.downsample")
    x = torch.randn(2, 16, 6, 6)
    y: Tensor = block(x)
    assert y.shape == (2, 32, 3, 3)
    assert torch.equal(y[:, 8:24], x[:, :, ::2, ::2])
    assert not y[:, :8].any()
    assert not y[:, 24:].any()


def test_unet_predicts_a_class_per_pixel_for_any_size() -> None:
    model = build("unet", classes=3, width=8, size=(20, 26), dropout=0.3).eval()
    assert len(drops(model)) == 6
    with torch.no_grad():
        assert model(torch.zeros(1, 3, 20, 26)).shape == (1, 20, 26, 3)


def test_alexnet_and_inception_run_and_refuse_small_images() -> None:
    with _Unfilled(), torch.no_grad():
        model = build("alexnet", classes=5, size=64).eval()
        assert model(torch.zeros(1, 3, 64, 64)).shape == (1, 5)
        model = build("inception_v3", classes=5, size=75).eval()
        assert model(torch.zeros(1, 3, 75, 75)).shape == (1, 5)
        model = build("alexnet", classes=5, size=32).eval()
        assert model(torch.zeros(1, 3, 32, 32)).shape == (1, 5)
    with pytest.raises(InputError, match="75×75"):
        build("inception_v3", classes=5, size=64)
    with pytest.raises(InputError, match="15×15"):
        build("alexnet", classes=5, size=14)


def test_training_passes_are_averaged_in_probability() -> None:
    model = build("mlp", classes=4, in_channels=1, size=4, dropout=0.5, batch_norm=False, passes=3)
    x = torch.randn(5, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    inner = model.get_submodule("model")
    torch.manual_seed(0)
    together = model.train()(x)
    torch.manual_seed(0)
    each = torch.softmax(inner(torch.cat([x, x, x])).double(), -1)
    mean = (each[:5] + each[5:10] + each[10:]) / 3
    torch.testing.assert_close(together.exp().double(), mean, rtol=1e-5, atol=1e-7)
    assert not torch.allclose(each[:5], each[5:10])
    assert torch.equal(model.eval()(x), inner(x))
    with pytest.raises(InputError, match="passes"):
        build("mlp", classes=4, passes=0)


@pytest.mark.parametrize(
    ("shape", "said", "axis"),
    [((2, 4, 5, 4), None, 1), ((2, 5, 4, 4), -1, 3), ((2, 4, 6), 1, 1), ((2, 6, 4), -1, 2), ((2, 4), None, 1)],
)
def test_training_passes_are_averaged_over_the_classes(shape: tuple[int, ...], said: int | None, axis: int) -> None:
    x, each = torch.randn(shape), torch.randn(3, *shape)

    class Drawn(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return each.flatten(0, 1).clone()

    found = TrainingEnsemble(Drawn(), 3, class_axis=said)(x)
    torch.testing.assert_close(found.exp(), each.double().softmax(axis + 1).mean(0).float())


def test_training_passes_do_not_guess_of_three_axes() -> None:
    with pytest.raises(InputError, match="class_axis=1 or class_axis=-1"):
        TrainingEnsemble(nn.Identity(), 2)(torch.randn(2, 4, 6))


def test_training_passes_of_our_unet_have_classes_last() -> None:
    """By default four axes mean [N, K, H, W], but this network returns [N, H, W, K]."""
    model = build("unet", classes=4, width=4, size=(16, 16), passes=2)
    assert torch.allclose(model.train()(torch.randn(1, 3, 16, 16)).exp().sum(-1), torch.ones(1, 16, 16), atol=1e-5)


def test_mistakes_are_named() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'resnet18'"):
        build("resnet-18", classes=2)
    with pytest.raises(UnknownNameError, match="'shortcut'"):
        build("resnet20", classes=2, shortcuts="A")
    with pytest.raises(UnknownNameError, match="unknown shortcut 'B'"):
        build("resnet20", classes=2, shortcut="B")
    with pytest.raises(UnknownNameError, match="unknown head 'avg'"):
        build("resnet20", classes=2, head="avg")
    with pytest.raises(UnknownNameError, match="unknown stem"):
        build("resnet18", classes=2, stem="mnist")
    with pytest.raises(InputError, match="vanish"):
        build("mnist_cnn", classes=2, size=4)
    with pytest.raises(InputError, match="'mlp' has no place for norm="):
        build("mlp", classes=2, norm=nn.InstanceNorm2d)
    with pytest.raises(InputError, match=r"'inception_v3' has no place for dropout=0\.3"), _Unfilled():
        build("inception_v3", classes=2, size=75, dropout=0.3)
    assert "dropout" in options_of("mlp")
    assert "shortcut" in options_of("resnet20")


def test_smoothing_is_an_option_of_every_network_and_leaves_its_weights_alone() -> None:
    plain, made = (build("resnet20", classes=10, seed=3, **options) for options in ({}, {"smooth": True}))
    assert set(smoothed(made)) == {"before layer2.0", "before layer3.0", "after layer3"}
    assert all(str(layer.prob) == "Prob(tanh, tau=10)" for layer in smoothed(made).values())
    assert plain.state_dict().keys() == made.state_dict().keys()
    assert all(torch.equal(a, b) for a, b in zip(plain.parameters(), made.parameters(), strict=True))
    x = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    assert torch.equal(made.eval().head.fc(made.features(x)), made(x))  # its features are those of its prediction
    assert torch.equal(plain.eval()(x), unsmooth(made)(x))
    other = build("resnet20", classes=10, smooth={"kernel": (1, 2, 1), "prob": "relu6"})
    assert {layer.prob.upper for layer in smoothed(other).values()} == {"relu6"}
    with pytest.raises(UnknownNameError, match="'kernel'"):
        build("resnet18", classes=10, smooth={"kernal": (1, 1)})
    with pytest.raises(InputError, match="no .*convolution"):
        build("mlp", classes=10, in_channels=64, size=1, smooth=True)


@pytest.mark.parametrize(("option", "value"), [("smooth", 3), ("smooth", "yes"), ("smooth", 0), ("blurpool", [1, 2])])
def test_a_wrong_value_for_surgery_is_named(option: str, value: Any) -> None:
    with pytest.raises(InputError, match=rf"{option}=.*true, false, or a table of where, kernel"):
        build("resnet20", classes=10, **{option: value})


def dropouts(model: nn.Module) -> list[str]:
    return [name for name, module in model.named_modules() if isinstance(module, nn.Dropout)]


def test_vgg_has_dropout_per_stage_or_per_convolution() -> None:
    with _Unfilled():
        at = {where: build("vgg16", classes=3, head="gap", dropout=0.3, dropout_at=where) for where in DROPOUT_AT}
    assert dropouts(at["stages"]) == ["stages.0.2", "stages.1.2", "stages.2.3", "stages.3.3", "stages.4.3"]
    stages, convolutions = at["convolutions"].stages, dropouts(at["convolutions"])
    assert convolutions == [f"stages.{i}.{j}.3" for i, depth in enumerate((2, 2, 3, 3, 3)) for j in range(depth)]
    assert [type(m).__name__ for m in stages[0][0]] == ["Conv2d", "BatchNorm2d", "ReLU", "Dropout"]
    one, other = (model.state_dict() for model in at.values())
    assert one.keys() == other.keys()  # each network can load the weights of the other
    with pytest.raises(UnknownNameError, match="unknown dropout_at 'blocks'; known: convolutions, stages"):
        build("vgg16", classes=3, dropout_at="blocks")


def test_without_the_last_pool_vggs_global_heads_pool_several_points() -> None:
    x = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    outputs: dict[bool, list[Tensor]] = {True: [], False: []}
    with torch.no_grad():
        for last in outputs:
            model = build("vgg16", classes=3, head="gap", last_pool=last).eval()
            z = model.maps(x)
            for kind in ("gap", "max", "median"):
                model.head.kind = kind
                outputs[last].append(model.head(z))
    assert all(torch.equal(outputs[True][0], other) for other in outputs[True][1:])  # a map of one point
    assert all(not torch.allclose(outputs[False][0], other) for other in outputs[False][1:])  # of 2 × 2
    assert model(x[..., :16, :16]).shape == (2, 3)
    with pytest.raises(InputError, match="four pools; it needs 16×16"):
        build("vgg16", classes=3, head="gap", last_pool=False, size=15)


def test_vggs_mlp_can_read_the_expanded_last_map() -> None:
    model = build("vgg16", classes=3, hidden=(4,), head_edge=7).eval()
    first = model.head.mlp[0]
    assert first.in_features == 512 * 49
    x = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    [seen] = [last.flatten(1) for last in [model.stages(x)]]  # one point
    once = first.weight.unflatten(1, (512, 49)).sum(2)
    torch.testing.assert_close(first(model.spread(model.stages(x)).flatten(1)), seen @ once.T + first.bias)
    for bad, said in ((0, "head_edge=0 must be"), (True, "head_edge=True must be"), (7.5, "head_edge=7.5 must be")):
        with pytest.raises(InputError, match=said):
            build("vgg16", classes=3, head_edge=bad)
    with pytest.raises(InputError, match="head='gap' pools it: drop head_edge"):
        build("vgg16", classes=3, head="gap", head_edge=7)
