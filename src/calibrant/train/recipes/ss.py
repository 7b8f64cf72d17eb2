"""SS A.1: SGD 0.1, momentum 0.9, weight decay 5e-4, batch 128, 200 epochs, × 0.2 at 60/130/160, one epoch of warm-up.

Dropout 0.3 on CIFAR in the Bayesian networks, crop and flip. The paper trains on all 50,000; 5,000 are held out here
(2,500 to watch, 2,500 to calibrate).
"""

from __future__ import annotations

from calibrant.train.optimiser import Optimiser, Schedule
from calibrant.train.recipe import AugmentSettings, DataSettings, Recipe
from calibrant.train.settings import Choice

HELD_OUT = {"validation": 2_500, "calibration": 2_500}
TAU, KERNEL, DROPOUT = 10.0, (1, 1), 0.3
PASSES = 50
NETWORKS = ("vgg16", "vgg19", "resnet18", "resnet50")


def recipe(network: str, data: str, *, dropout: float = 0.0) -> Recipe:
    extra = f", MC dropout {dropout}" if dropout else ""
    return Recipe(
        name=f"ss/{data}_{network}" + ("_dropout" if dropout else ""),
        about=f"SS A.1, {network} on {data}{extra}; 5,000 held out is ours",
        data=DataSettings(data, sizes=HELD_OUT),
        network=Choice(network, {"dropout": dropout} if dropout else {}),
        augment=AugmentSettings(4, True),
        optimiser=Optimiser("sgd", lr=0.1, momentum=0.9, weight_decay=5e-4),
        schedule=Schedule("multistep", milestones=(60, 130, 160), gamma=0.2, warmup=1),
        epochs=200,
        batch=128,
        channels_last=True,
    )


def camvid(dropout: float = 0.0) -> Recipe:
    """SS A.2: Adam 1e-3 → 2e-4 after 100 of 130 epochs, batch 3, crop and flip, median-frequency weights."""
    return Recipe(
        name="ss/camvid_unet" + ("_dropout" if dropout else ""),
        about="SS A.2, U-Net on camvid" + (f", MC dropout {dropout}" if dropout else "") + "; frames of 180 × 240",
        data=DataSettings("camvid"),
        network=Choice("unet", {"dropout": dropout} if dropout else {}),
        loss=Choice("cross_entropy", {"class_weights": "median_frequency"}),
        augment=AugmentSettings(4, True),
        optimiser=Optimiser("adam", lr=1e-3),
        schedule=Schedule("multistep", milestones=(100,), gamma=0.2),
        epochs=130,
        batch=3,
        channels_last=True,
    )


RECIPES = (
    *(
        recipe(network, data, dropout=dropout)
        for data in ("cifar10", "cifar100")
        for network in NETWORKS
        for dropout in (0.0, DROPOUT)
    ),
    camvid(),
    camvid(0.5),
)
