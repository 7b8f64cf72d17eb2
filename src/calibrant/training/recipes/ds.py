"""DS A.3: 300 epochs, SGD 0.1 ÷ 5 (cross-entropy, entropy regularisation, mixup) or ÷ 10 (smoothing, focal).

The rate drops after 150 and 225 epochs; ε 0.05, γ 3, β 0.1, mixup 0.2, T = 1.5, 3 runs.
Momentum 0.9, weight decay 5e-4, batch size 128 and 5,000 held-out items are ours. On
ImageNet batch 256 and weight decay 1e-4 are the usual ones.
"""

from __future__ import annotations

from dataclasses import replace

from calibrant.training.optimiser import Optimiser, Schedule
from calibrant.training.recipe import AugmentSettings, DataSettings, Recipe
from calibrant.training.settings import Choice

RUNS = 3
HELD_OUT = {"validation": 2_500, "calibration": 2_500}
NETWORKS = ("vgg16", "resnet50", "densenet121")

METHODS: dict[str, tuple[str, float, dict[str, object]]] = {
    "": ("cross-entropy", 0.2, {}),
    "_entropy": ("entropy regularisation, β = 0.1", 0.2, {"penalties": (Choice("entropy", {"weight": 0.1}),)}),
    "_mixup": ("mixup, 0.2", 0.2, {"transforms": (Choice("mixup", {"alpha": 0.2}),)}),
    "_smoothing": ("label smoothing, ε = 0.05", 0.1, {"targets": Choice("smoothing", {"epsilon": 0.05})}),
    "_focal": ("focal loss, γ = 3", 0.1, {"loss": Choice("focal", {"gamma": 3.0})}),
}


def recipe(data: str, network: str, method: str) -> Recipe:
    about, gamma, changes = METHODS[method]
    plain = Recipe(
        name=f"ds/{data}_{network}{method}",
        about=f"DS A.3, {network} on {data}, {about}; momentum, decay and batch ours",
        data=DataSettings(data, sizes=HELD_OUT),
        network=Choice(network),
        augment=AugmentSettings(4, True),
        optimiser=Optimiser("sgd", lr=0.1, momentum=0.9, weight_decay=5e-4),
        schedule=Schedule("multistep", milestones=(150, 225), gamma=gamma),
        epochs=300,
        batch=128,
        channels_last=True,
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


def imagenet(method: str) -> Recipe:
    """A.3: ResNet-50, 100 epochs, ÷ 10 at 30, 60 and 90; label smoothing with ε = 0.1, the rest as on CIFAR."""
    cifar = recipe("imagenet", "resnet50", method)
    if method == "_smoothing":
        cifar = replace(cifar, targets=Choice("smoothing", {"epsilon": 0.1}))
    return replace(
        cifar,
        about=cifar.about.replace("ε = 0.05", "ε = 0.1").replace(
            "momentum, decay and batch", "momentum, decay, batch 256 and crops within 16 pixels"
        ),
        data=DataSettings("imagenet"),
        network=Choice("resnet50", {"stem": "imagenet"}),
        augment=AugmentSettings(16, True),
        optimiser=replace(cifar.optimiser, weight_decay=1e-4),
        schedule=Schedule("multistep", milestones=(30, 60, 90), gamma=0.1),
        epochs=100,
        batch=256,
    )


RECIPES = (
    *(recipe(data, network, method) for data in ("cifar10", "cifar100") for network in NETWORKS for method in METHODS),
    *(imagenet(method) for method in METHODS),
)
