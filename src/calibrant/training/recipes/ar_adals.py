"""AR-AdaLS from nothing, one command each: a vanilla twin is trained and attacked, then AR-AdaLS; both are audited.

`ar-adals/cifar10` is AR A.1 (ResNet-29 v2, pre-computed levels); `ar-adals/cifar100` and `cifar10_wrn28_10` recompute
levels after 65 and 130 epochs, as the paper does for WRN-28-10. Fashion-MNIST and digits are ours: small enough for a
CPU. Their networks are trained until they are overconfident, as there is nothing to calibrate otherwise; digits
have few validation items, hence five levels and a larger α.
"""

from __future__ import annotations

from dataclasses import replace

from calibrant.training.optimiser import Optimiser, Schedule
from calibrant.training.recipe import DataSettings, Recipe
from calibrant.training.recipes import ar
from calibrant.training.settings import Choice

PAPER = {recipe.name: recipe for recipe in ar.RECIPES}


def _of_paper(name: str, source: str, about: str, **targets: object) -> Recipe:
    recipe = PAPER[f"ar/{source}"]
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
