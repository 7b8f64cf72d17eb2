"""AR A.1–A.3. ResNet-29 v2: Adam, batch 256, 200 epochs, 1e-3 → 1e-4/1e-5/1e-6/0.5e-6 at 80/120/160/180.

LS ε 0.02, AdaLS α 0.05, AR-AdaLS α 0.005 with R = 10 levels, mixup 0.2, CCAT within 0.01, ensembles of 5. AR-AdaLS
needs robustness levels, so its runs first train and attack a vanilla twin (`training.levels`). DDN is our default
ruler, CW (`targets.ruler=cw`) the paper's. The paper tunes and calibrates on one held-out set; here it is halved. The
Keras example's shift and flip are done by crop and flip.

The paper does not describe WRN-28-10 (edward2's deterministic baseline: SGD 0.1, Nesterov, 5e-4 → their 2e-4 L2, 200
epochs, × 0.2 at 60/120/160); constants that it does not print are edward2's as we know them.

`ar-adals/cifar10` is AR A.1 with levels computed once; `ar-adals/cifar100` and `cifar10_wrn28_10` recompute them after
65 and 130 epochs, as the paper does for WRN-28-10. Fashion-MNIST and digits are ours, small enough for a CPU. Their
networks train until they are overconfident, because otherwise there is nothing to calibrate; digits has few validation
items, hence five levels and a larger α.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from calibrant.training.optimiser import Optimiser, Schedule
from calibrant.training.recipe import AugmentSettings, DataSettings, Recipe
from calibrant.training.settings import Choice

HELD_OUT = {"validation": 2_500, "calibration": 2_500}
LEVELS = 10
PGD = {"name": "pgd", "iterations": 10, "alpha": 0.025, "maximise": "confidence"}
CCAT = Choice("ccat", {"epsilon": 0.01, "attack": PGD})
"""AR A.1: the step exceeds the bound, and the projection brings it back."""

RESNET29 = Recipe(
    name="ar/cifar10_resnet29",
    about="AR A.1, ResNet-29 v2 on cifar10",
    data=DataSettings("cifar10", sizes=HELD_OUT),
    network=Choice("resnet29v2"),
    augment=AugmentSettings(4, True),
    optimiser=Optimiser("adam", lr=1e-3),
    schedule=Schedule("multistep", milestones=(80, 120, 160, 180), factors=(1e-1, 1e-2, 1e-3, 0.5e-3)),
    epochs=200,
    batch=256,
    channels_last=True,
)

WRN = replace(
    RESNET29,
    optimiser=Optimiser("sgd", lr=0.1, momentum=0.9, nesterov=True, weight_decay=2e-4),
    schedule=Schedule("multistep", milestones=(60, 120, 160), gamma=0.2, warmup=1),
    network=Choice("wide_resnet28_10"),
    batch=128,
)

EVERY = ("smoothing", "adals", "ar_adals", "mixup", "ccat", "deep", "ar_adals_of_ensemble")


def methods(
    plain: Recipe, epsilon: float, alpha: float, levels: Choice, members: int, names: Sequence[str] = EVERY
) -> tuple[Recipe, ...]:
    """The plain recipe and those of the methods that the paper compares it with, with their settings for its data."""
    changes: dict[str, tuple[str, dict[str, Any]]] = {
        "smoothing": (f"label smoothing, ε = {epsilon}", {"targets": Choice("smoothing", {"epsilon": epsilon})}),
        "adals": (f"AdaLS, α = {alpha}", {"targets": Choice("adals", {"alpha": alpha})}),
        "ar_adals": (f"AR-AdaLS, R = {LEVELS}", {"targets": levels}),
        "mixup": ("mixup, β = 0.2", {"transforms": (Choice("mixup", {"alpha": 0.2}),)}),
        "ccat": ("CCAT, PGD within 0.01", {"transforms": (CCAT,)}),
        "deep": (f"deep ensemble of {members}", {"members": members}),
        "ar_adals_of_ensemble": (
            f"AR-AdaLS of Ensemble, {members} members in lock-step",
            {"targets": levels, "members": members},
        ),
    }
    made = (
        replace(plain, name=f"{plain.name}_{name}", about=f"{plain.about}; {about}", **change)
        for name in names
        for about, change in [changes[name]]
    )
    return (plain, *made)


def _ar_adals(**options: object) -> Choice:
    return Choice("ar_adals", {"levels": LEVELS, **options})


def _wrn(data: str, epsilon: float) -> tuple[Recipe, ...]:
    plain = replace(
        WRN,
        name=f"ar/{data}_wrn28_10",
        about=f"AR A.1–A.2, WRN-28-10 on {data}; schedule after edward2",
        data=DataSettings(data, sizes=HELD_OUT),
    )
    return methods(plain, epsilon, 0.005, _ar_adals(alpha=0.005, refresh_after=(65, 130)), 4, EVERY[:-1])


def _imagenet() -> tuple[Recipe, ...]:
    """A.3; what it does not print is edward2's: SGD 0.1 × batch/256, Nesterov 0.9, ÷ 10 at 30, 60 and 80, 5 epochs of
    warm-up. The batch of a machine is ours; crops are within 16 pixels of the middle."""
    plain = replace(
        WRN,
        name="ar/imagenet_resnet101",
        about="AR A.3, ResNet-101 v1 on imagenet; schedule after edward2, batch ours",
        data=DataSettings("imagenet"),
        network=Choice("resnet101", {"stem": "imagenet"}),
        augment=AugmentSettings(16, True),
        optimiser=replace(WRN.optimiser, weight_decay=1e-4),
        schedule=Schedule("multistep", milestones=(30, 60, 80), gamma=0.1, warmup=5),
        epochs=90,
        batch=256,
    )
    levels = _ar_adals(alpha=((0, 0.001), (60, 0.05)))
    return methods(plain, 0.02, 0.03, levels, 5, ("smoothing", "adals", "ar_adals", "ar_adals_of_ensemble"))


PAPER = (
    *_imagenet(),
    *methods(RESNET29, 0.02, 0.05, _ar_adals(alpha=0.005), 5),
    *_wrn("cifar10", 0.02),
    *_wrn("cifar100", 0.07),
)


def _of_paper(name: str, source: str, about: str, **targets: object) -> Recipe:
    recipe = next(r for r in PAPER if r.name == f"ar/{source}")
    options = {**recipe.targets.options, **targets}
    return replace(recipe, name=f"ar-adals/{name}", about=about, targets=Choice("ar_adals", options))


DIGITS = Recipe(
    name="ar-adals/digits",
    about="AR-AdaLS on digits, R = 5, levels by CW; two minutes on two cores",
    data=DataSettings("digits", sizes={"train": 300, "validation": 500, "calibration": 400, "test": 597}),
    network=Choice("mlp", {"hidden": (200, 200), "batch_norm": False}),
    targets=Choice("ar_adals", {"alpha": 0.02, "levels": 5, "ruler": "cw"}),
    optimiser=Optimiser("adam", lr=2e-3),
    schedule=Schedule("constant"),
    epochs=100,
    batch=25,
)

FASHION = Recipe(
    name="ar-adals/fashion_mnist",
    about="AR-AdaLS on 10,000 images of Fashion-MNIST, an MLP, R = 10; CPU-sized",
    data=DataSettings("fashion_mnist", sizes={"train": 10_000, "validation": 2_500, "calibration": 2_500}),
    network=Choice("mlp", {"hidden": (256, 256), "batch_norm": False}),
    targets=Choice("ar_adals", {"alpha": 0.02, "levels": 10}),
    optimiser=Optimiser("adam", lr=1e-3),
    schedule=Schedule("constant"),
    epochs=40,
    batch=128,
)

RECIPES = (
    *PAPER,
    DIGITS,
    replace(
        DIGITS,
        name="ar-adals/digits_on_the_fly",
        about="AR-AdaLS on digits, levels by DDN, recomputed after 25, 50 and 75 epochs",
        targets=Choice("ar_adals", {**DIGITS.targets.options, "ruler": "ddn", "refresh_after": (25, 50, 75)}),
    ),
    replace(
        DIGITS,
        name="ar-adals/digits_of_ensemble",
        about="AR-AdaLS of Ensemble on digits: 3 members in lock-step, soft labels from their pooled prediction",
        members=3,
    ),
    FASHION,
    replace(
        FASHION,
        name="ar-adals/fashion_mnist_of_ensemble",
        about="AR-AdaLS of Ensemble on Fashion-MNIST: 5 members in lock-step",
        members=5,
    ),
    _of_paper("cifar10", "cifar10_resnet29_ar_adals", "AR A.1: AR-AdaLS on CIFAR-10, ResNet-29 v2, from nothing"),
    _of_paper(
        "cifar10_of_ensemble",
        "cifar10_resnet29_ar_adals_of_ensemble",
        "AR §5.3: AR-AdaLS of Ensemble on CIFAR-10, ResNet-29 v2, 5 members in lock-step, from nothing",
    ),
    _of_paper(
        "cifar10_on_the_fly",
        "cifar10_resnet29_ar_adals",
        "AR-AdaLS on CIFAR-10, ResNet-29 v2, levels recomputed after 65 and 130 epochs",
        refresh_after=(65, 130),
    ),
    _of_paper("cifar10_wrn28_10", "cifar10_wrn28_10_ar_adals", "AR Table 2: AR-AdaLS on CIFAR-10, WRN-28-10"),
    _of_paper("cifar100", "cifar100_wrn28_10_ar_adals", "AR Tables 2 and 4: AR-AdaLS on CIFAR-100, WRN-28-10"),
)
