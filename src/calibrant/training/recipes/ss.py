"""SS A.1: SGD 0.1, momentum 0.9, weight decay 5e-4, batch 128, 200 epochs, × 0.2 at 60/130/160, one epoch of warm-up.

Dropout 0.3 on CIFAR (0.05 on ImageNet) in the Bayesian networks, crop and flip. The paper trains on all 50,000; here
5,000 are held out (2,500 for validation, 2,500 for calibration).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from calibrant.training.optimiser import Optimiser, Schedule
from calibrant.training.recipe import AugmentSettings, DataSettings, Recipe
from calibrant.training.settings import Choice

HELD_OUT = {"validation": 2_500, "calibration": 2_500}
TAU, KERNEL, DROPOUT, IMAGENET_DROPOUT = 10.0, (1, 1), 0.3, 0.05
PASSES = 50
NETWORKS = ("vgg16", "vgg19", "resnet18", "resnet50", "resnext50")
SMOOTH = {"kernel": KERNEL, "prob": "tanh", "tau": TAU}
VGG_MLP = {"head_edge": 7}
"""Options of the authors' VGG, whose MLP sees the last map enlarged to 7 × 7."""
VGG_DROPOUT = {"dropout_at": "convolutions"}
"""The same with one MC dropout layer after every convolution."""


def as_authors(network: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that a network has in the authors' code, where the paper is ambiguous (VGG)."""
    if not network.startswith("vgg"):
        return dict(options)
    pooled = options.get("head", "mlp") != "mlp"
    head = {"last_pool": False} if pooled else VGG_MLP
    return {**options, **head, **(VGG_DROPOUT if "dropout" in options else {})}


def passes(network: str, options: Mapping[str, Any]) -> Choice:
    """MC dropout as in the authors' code: an MLP's own dropout is off at test time, as usual."""
    if options.get("head", "mlp" if network.startswith("vgg") else "gap") != "mlp":
        return Choice("dropout", {"members": PASSES})
    where = ("stages",) if network.startswith("vgg") else ("layer1", "layer2", "layer3", "layer4")
    return Choice("dropout", {"members": PASSES, "where": where})


def suffix(dropout: float, smooth: bool) -> str:
    """The suffix of a recipe's or an experiment's name, for the variants of Table E.1."""
    return ("_dropout" if dropout else "") + ("_smooth" if smooth else "")


def variant(dropout: float, smooth: bool) -> tuple[dict[str, Any], str]:
    """(options of the network, what a recipe's description says of them)."""
    options = {**({"dropout": dropout} if dropout else {}), **({"smooth": SMOOTH} if smooth else {})}
    return options, (f", MC dropout {dropout}" if dropout else "") + (", smoothing" if smooth else "")


def recipe(network: str, data: str, *, dropout: float = 0.0, smooth: bool = False) -> Recipe:
    options, extra = variant(dropout, smooth)
    return Recipe(
        name=f"ss/{data}_{network}{suffix(dropout, smooth)}",
        about=f"SS A.1, {network} on {data}{extra}; 5,000 held out is ours",
        data=DataSettings(data, sizes=HELD_OUT),
        network=Choice(network, as_authors(network, options)),
        augment=AugmentSettings(4, True),
        optimiser=Optimiser("sgd", lr=0.1, momentum=0.9, weight_decay=5e-4),
        schedule=Schedule("multistep", milestones=(60, 130, 160), gamma=0.2, warmup=1),
        epochs=200,
        batch=128,
        channels_last=True,
    )


def nearly_all(network: str, data: str) -> Recipe:
    """Trained on 49,000 items: close to the paper's 50,000, with some left for validation and calibration."""
    usual = recipe(network, data)
    return replace(
        usual,
        name=f"{usual.name}_nearly_all",
        about=usual.about.replace("5,000 held out is ours", "1,000 held out is ours"),
        data=DataSettings(data, sizes={"validation": 500, "calibration": 500}),
    )


def alexnet(data: str) -> Recipe:
    """The reference of mCE, mCNLL and mCECE (Eq. 34–36); without BatchNorm a rate of 0.1 diverges, so a tenth of it."""
    usual = recipe("alexnet", data)
    about = f"SS Eq. 34–36, AlexNet for 32 pixels on {data}, the reference of corruption errors; rate 0.01 ours"
    return replace(usual, about=about, optimiser=replace(usual.optimiser, lr=0.01))


def imagenet(network: str, *, dropout: float = 0.0, smooth: bool = False) -> Recipe:
    """SS A.1 on ImageNet: 90 epochs, × 0.2 at 30/60/80, batch 256 (ResNeXt: batch 128 at half the rate)."""
    cifar = recipe(network, "imagenet", dropout=dropout, smooth=smooth)
    half = network == "resnext50"
    return replace(
        cifar,
        about=cifar.about.replace(
            "5,000 held out is ours", "crops within 16 pixels of the middle and 50,000 held out ours"
        ),
        data=DataSettings("imagenet"),
        network=Choice(network, {"stem": "imagenet", **cifar.network.options}),
        augment=AugmentSettings(16, True),
        optimiser=replace(cifar.optimiser, lr=0.05 if half else 0.1),
        schedule=Schedule("multistep", milestones=(30, 60, 80), gamma=0.2),
        epochs=90,
        batch=128 if half else 256,
    )


def camvid(dropout: float = 0.0, smooth: bool = False) -> Recipe:
    """SS A.2: Adam 1e-3 → 2e-4 after 100 of 130 epochs, batch 3, crop and flip, median-frequency weights."""
    options, extra = variant(dropout, smooth)
    return Recipe(
        name=f"ss/camvid_unet{suffix(dropout, smooth)}",
        about=f"SS A.2, U-Net on camvid{extra}; frames of 180 × 240",
        data=DataSettings("camvid"),
        network=Choice("unet", options),
        loss=Choice("cross_entropy", {"class_weights": "median_frequency"}),
        augment=AugmentSettings(4, True),
        optimiser=Optimiser("adam", lr=1e-3),
        schedule=Schedule("multistep", milestones=(100,), gamma=0.2),
        epochs=130,
        batch=3,
        channels_last=True,
    )


VARIANTS = tuple((dropout, smooth) for dropout in (0.0, DROPOUT) for smooth in (False, True))

RECIPES = (
    *(
        recipe(network, data, dropout=dropout, smooth=smooth)
        for data in ("cifar10", "cifar100")
        for network in NETWORKS
        for dropout, smooth in VARIANTS
    ),
    alexnet("cifar10"),
    alexnet("cifar100"),
    nearly_all("resnet18", "cifar10"),
    nearly_all("resnet18", "cifar100"),
    *(
        imagenet(network, dropout=IMAGENET_DROPOUT if dropout else 0.0, smooth=smooth)
        for network in ("resnet18", "resnet50", "resnext50")
        for dropout, smooth in VARIANTS
    ),
    *(camvid(0.5 if dropout else 0.0, smooth) for dropout, smooth in VARIANTS),
)
