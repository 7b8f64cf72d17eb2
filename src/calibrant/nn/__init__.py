"""The networks of the papers by name, and `build`, which makes one from a seed and restores the global generator."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from calibrant.errors import CalibrantError, InputError, suggest_names, unknown, users_code
from calibrant.nn import alexnet, cnn, densenet, inception, mlp, preact, resnet, text_cnn, unet, vgg
from calibrant.nn.activations import relu6 as bounded_copy
from calibrant.nn.antialias import BlurPool
from calibrant.nn.antialias import blurpool as antialiased_copy
from calibrant.nn.blocks import Layers
from calibrant.nn.external import LIBRARIES, external
from calibrant.nn.smoothing import Blur, Prob, Smooth, reference
from calibrant.nn.surgery import smooth as smoothed_copy
from calibrant.nn.training_ensemble import TrainingEnsemble
from calibrant.nn.weights import load_weights


@dataclass(frozen=True)
class Network:
    """An entry of `MODELS`: a title, and a function of (classes, in_channels, size, layers, **options)."""

    title: str
    make: Callable[..., nn.Module]


MODELS: dict[str, Network] = {
    "mlp": Network("three hidden layers of 200 with BatchNorm (PEP §3.2)", mlp.MLP),
    "mnist_cnn": Network("two convolutions, two dense layers (PEP §3.2, MNIST and Fashion-MNIST)", cnn.mnist_cnn),
    "cifar_cnn": Network("four convolutions, one dense layer (PEP §3.2, CIFAR)", cnn.cifar_cnn),
    "resnet18": Network("ResNet-18 (He 2016a), stem for 32 or 224 pixels", resnet.resnet18),
    "resnet50": Network("ResNet-50 (He 2016a), stem for 32 or 224 pixels", resnet.resnet50),
    "resnet101": Network("ResNet-101 v1 (He 2016a), stem for 32 or 224 pixels", resnet.resnet101),
    "resnext50": Network("ResNeXt-50 32×4d (Xie 2017), stem for 32 or 224 pixels", resnet.resnext50),
    "resnet20": Network("CIFAR ResNet of 6n+2 layers, n = 3; shortcut A or 1×1 convolution", resnet.resnet20),
    "resnet32": Network("CIFAR ResNet of 6n+2 layers, n = 5 (RC §3.1)", resnet.resnet32),
    "resnet44": Network("CIFAR ResNet of 6n+2 layers, n = 7", resnet.resnet44),
    "resnet56": Network("CIFAR ResNet of 6n+2 layers, n = 9", resnet.resnet56),
    "resnet110": Network("CIFAR ResNet of 6n+2 layers, n = 18", resnet.resnet110),
    "resnet29v2": Network("ResNet-29 v2, pre-activation bottlenecks (AR A.1)", preact.resnet29v2),
    "preact_resnet18": Network("pre-activation ResNet-18 (He 2016b; SS C.2)", preact.preact_resnet18),
    "preact_resnet50": Network("pre-activation ResNet-50 (He 2016b; SS C.2)", preact.preact_resnet50),
    "wide_resnet28_10": Network("Wide-ResNet-28-10 (Zagoruyko 2016; AR A.1)", preact.wide_resnet28_10),
    "vgg16": Network("VGG-16 with BatchNorm and MLP head (SS A.1); head gap, max, median", vgg.vgg16),
    "vgg19": Network("VGG-19 with BatchNorm and MLP head (SS A.1); head gap, max, median", vgg.vgg19),
    "densenet121": Network("DenseNet-121 (Huang 2017), stem for 32 or 224 pixels", densenet.densenet121),
    "alexnet": Network("AlexNet (Krizhevsky 2014), for 224 or 32 pixels (SS, equations 34–36)", alexnet.AlexNet),
    "inception_v3": Network("Inception-v3 (Szegedy 2016), for 299 pixels (PEP §3.1)", inception.Inception),
    "unet": Network("U-Net with BatchNorm, a class for each pixel (SS A.2)", unet.UNet),
    "text_cnn": Network("eight-layer 1-D CNN on tokens (RC §3.1, 20 Newsgroups)", text_cnn.TextCNN),
    "densenet169": Network("DenseNet-169 (Huang 2017), stem for 32 or 224 pixels", densenet.densenet169),
}

LAYER_OPTIONS = frozenset(inspect.signature(Layers).parameters)


def build(
    name: str,
    *,
    classes: int,
    in_channels: int = 3,
    size: int | tuple[int, int] = 32,
    seed: int = 0,
    passes: int = 1,
    smooth: bool | Mapping[str, Any] = False,
    blurpool: bool | Mapping[str, Any] = False,
    relu6: bool = False,
    own: Callable[..., nn.Module] | None = None,
    **options: Any,
) -> nn.Module:
    """Make a freshly initialised network: one of `MODELS`, `timm:NAME` or `torchvision:NAME` if those are installed, or
    the one that the user's function `own` returns, which errors then call `name`.

    `size` is the height and width of the images; networks that do not depend on it ignore it. Options go to the network
    (`head=`, `shortcut=`, `stem=`, `hidden=`, …) or to its layers (`dropout=`, `norm=`, `act=`, `pool=`, `stage_end=`).
    `smooth` inserts smoothing before each subsampling and before global pooling (SS §2.3); the names and shapes of
    weights stay. `blurpool` anti-aliases layers that subsample (Zhang 2019; SS F). Both take True, or a table of
    settings of `calibrant.smooth` and `nn.antialias.blurpool`. `relu6` bounds every ReLU (SS C.3). `passes` > 1
    averages that many stochastic passes in training (SS D.4).
    """
    finish = partial(_finish, smooth=smooth, blurpool=blurpool, relu6=relu6, passes=passes)
    edges = (size, size) if isinstance(size, int) else (int(size[0]), int(size[1]))
    if own is not None or in_library(name):
        with seeded(seed):
            model = external(name, classes, in_channels, options) if own is None else _own(name, own, options)
        return finish(model, torch.zeros(2, in_channels, *edges))
    if name not in MODELS:
        raise unknown("model", name, MODELS)
    known = options_of(name)
    for key in options:
        if key not in known:
            raise unknown(f"option of model {name!r}", key, known)
    given = {key: options.pop(key) for key in LAYER_OPTIONS & options.keys()}
    used: set[str] = set()
    recording: dict[str, Any] = {key: _recording(key, v, used) if callable(v) else v for key, v in given.items()}
    layers = Layers(**recording)
    try:
        with seeded(seed):
            model = MODELS[name].make(classes, in_channels, edges, layers, **options)
    except CalibrantError:
        raise
    except (TypeError, ValueError, RuntimeError) as error:
        given_options = ", ".join(f"{key}={value!r}" for key, value in options.items())
        raise InputError(f"model {name!r} cannot be made with {given_options or 'these layers'}: {error}") from error
    if any(isinstance(module, nn.Dropout) and module.p == layers.dropout for module in model.modules()):
        used.add("dropout")
    for key in given:
        if key not in used and given[key]:
            raise InputError(f"model {name!r} has no place for {key}={given[key]!r}; drop it or choose another network")
    return finish(model, torch.zeros(2, in_channels, *edges))


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed torch's CPU generator and make modules on the CPU; restore both afterwards.

    `torch.manual_seed` would reseed every GPU too, without restoring them.
    """
    before = torch.default_generator.get_state()
    torch.default_generator.manual_seed(seed)
    try:
        with torch.device("cpu"):
            yield
    finally:
        torch.default_generator.set_state(before)


def in_library(name: str) -> bool:
    """Return whether this is `timm:NAME` or `torchvision:NAME`."""
    return ":" in name and name.partition(":")[0] in LIBRARIES


def _own(name: str, make: Callable[..., nn.Module], options: Mapping[str, Any]) -> nn.Module:
    said = ", ".join(f"{key}={value!r}" for key, value in options.items())
    with users_code(f"network {name!r}, called with {said or 'no arguments'},"):
        model = make(**options)
    if not isinstance(model, nn.Module):
        raise InputError(f"network {name!r} is {type(model).__name__}, not a torch.nn.Module")
    return model


def _finish(
    model: nn.Module,
    example: Tensor,
    *,
    smooth: bool | Mapping[str, Any],
    blurpool: bool | Mapping[str, Any],
    relu6: bool,
    passes: int,
) -> nn.Module:
    """Apply the requested surgery, and average over passes. Smoothing comes first: Prob stands before BlurPool."""
    for name, asked, surgery in (("smooth", smooth, smoothed_copy), ("blurpool", blurpool, antialiased_copy)):
        if asked is not False:
            known = [p for p in inspect.signature(surgery).parameters if p not in ("model", "example", "inplace")]
            if asked is not True and not isinstance(asked, Mapping):
                raise InputError(f"{name}={asked!r}: true, false, or a table of {', '.join(known)}")
            settings = {} if asked is True else dict(asked)
            for key in settings:
                if key not in known:
                    raise unknown(f"option of {name}", key, known)
            model = surgery(model, example=example, inplace=True, **settings)
    if relu6:
        model = bounded_copy(model, inplace=True)
    return TrainingEnsemble(model, passes, class_axis=-1) if passes != 1 else model


def _recording(key: str, make: Callable[..., nn.Module], used: set[str]) -> Callable[..., nn.Module]:
    """Wrap `make` to record that it was called, because an option without an effect is an error."""

    def made(*args: Any, **kwargs: Any) -> nn.Module:
        used.add(key)
        return make(*args, **kwargs)

    return made


def options_of(name: str) -> tuple[str, ...]:
    """Return the options of `build(name, …)` besides the arguments of `build` itself."""
    parameters = inspect.signature(MODELS[name].make).parameters.values()
    return tuple(sorted({p.name for p in parameters if p.kind is p.KEYWORD_ONLY} | LAYER_OPTIONS))


__all__ = [
    "MODELS", "Blur", "BlurPool", "Layers", "Network", "Prob", "Smooth", "build", "in_library", "load_weights",
    "options_of", "reference",
]  # fmt: skip

suggest_names(__name__)
