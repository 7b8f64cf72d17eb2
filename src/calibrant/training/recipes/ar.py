"""AR A.1–A.2. ResNet-29 v2: Adam, batch 256, 200 epochs, 1e-3 → 1e-4/1e-5/1e-6/0.5e-6 at 80/120/160/180.

LS ε 0.02, AdaLS α 0.05, AR-AdaLS α 0.005 with R = 10 levels, mixup 0.2, CCAT within 0.01, ensembles of 5. AR-AdaLS asks
the run for levels of robustness, which trains and attacks a vanilla twin first (`train.levels`); DDN is our default
ruler, CW (`targets.ruler=cw`) the paper's. One held-out set tunes and calibrates in the paper: here it is halved.
Augmentation is the Keras example's shift and flip, by crop and flip.
WRN-28-10 (edward2's deterministic baseline: SGD 0.1, Nesterov, 5e-4 → their 2e-4 L2, 200 epochs, × 0.2 at 60/120/160)
is not spelled out in the paper; the constants here that it does not print are edward2's as we know them.
"""

from __future__ import annotations

from dataclasses import replace

from calibrant.training.optimiser import Optimiser, Schedule
from calibrant.training.recipe import AugmentSettings, DataSettings, Recipe
from calibrant.training.settings import Choice

HELD_OUT = {"validation": 2_500, "calibration": 2_500}
LEVELS = 10
PGD = {"name": "pgd", "iterations": 10, "alpha": 0.025, "maximise": "confidence"}
CCAT = Choice("ccat", {"epsilon": 0.01, "attack": PGD})
"""AR A.1: the step exceeds the bound, and the projection takes it back."""

RESNET29 = Recipe(
    name="ar/cifar10_resnet29",
    about="AR A.1, ResNet-29 v2 on cifar10, cross-entropy",
    data=DataSettings("cifar10", sizes=HELD_OUT),
    network=Choice("resnet29v2"),
    augment=AugmentSettings(4, True),
    optimiser=Optimiser("adam", lr=1e-3),
    schedule=Schedule("multistep", milestones=(80, 120, 160, 180), factors=(1e-1, 1e-2, 1e-3, 0.5e-3)),
    epochs=200,
    batch=256,
    channels_last=True,
)

METHODS: dict[str, tuple[str, dict[str, object]]] = {
    "smoothing": ("label smoothing, ε = 0.02", {"targets": Choice("smoothing", {"epsilon": 0.02})}),
    "adals": ("AdaLS, α = 0.05", {"targets": Choice("adals", {"alpha": 0.05})}),
    "ar_adals": (
        "AR-AdaLS, α = 0.005, R = 10",
        {"targets": Choice("ar_adals", {"alpha": 0.005, "levels": LEVELS})},
    ),
    "mixup": ("mixup, β = 0.2", {"transforms": (Choice("mixup", {"alpha": 0.2}),)}),
    "ccat": ("CCAT, PGD within 0.01", {"transforms": (CCAT,)}),
    "deep": ("deep ensemble of 5", {"members": 5}),
    "ar_adals_of_ensemble": (
        "AR-AdaLS of Ensemble, 5 members in lock-step",
        {"targets": Choice("ar_adals", {"alpha": 0.005, "levels": LEVELS}), "members": 5},
    ),
}

WRN = replace(
    RESNET29,
    optimiser=Optimiser("sgd", lr=0.1, momentum=0.9, nesterov=True, weight_decay=2e-4),
    schedule=Schedule("multistep", milestones=(60, 120, 160), gamma=0.2, warmup=1),
    network=Choice("wide_resnet28_10"),
    batch=128,
)


def _wrn(data: str, epsilon: float) -> tuple[Recipe, ...]:
    plain = replace(
        WRN,
        name=f"ar/{data}_wrn28_10",
        about=f"AR A.1–A.2, WRN-28-10 on {data}; schedule after edward2",
        data=DataSettings(data, sizes=HELD_OUT),
    )
    targets = {
        "smoothing": Choice("smoothing", {"epsilon": epsilon}),
        "adals": Choice("adals", {"alpha": 0.005}),
        "ar_adals": Choice("ar_adals", {"alpha": 0.005, "levels": LEVELS, "refresh_after": (65, 130)}),
    }
    changed = [
        replace(plain, name=f"{plain.name}_{k}", about=f"{plain.about}; {k}", targets=t) for k, t in targets.items()
    ]
    mixed = replace(
        plain, name=f"{plain.name}_mixup", about=f"{plain.about}; mixup", transforms=(Choice("mixup", {"alpha": 0.2}),)
    )
    ccat = replace(plain, name=f"{plain.name}_ccat", about=f"{plain.about}; CCAT, PGD within 0.01", transforms=(CCAT,))
    deep = replace(plain, name=f"{plain.name}_deep", about=f"{plain.about}; ensemble of 4", members=4)
    return (plain, *changed, mixed, ccat, deep)


RECIPES = (
    RESNET29,
    *(
        replace(RESNET29, name=f"{RESNET29.name}_{key}", about=f"AR A.1, ResNet-29 v2 on cifar10, {about}", **changes)  # type: ignore[arg-type]
        for key, (about, changes) in METHODS.items()
    ),
    *_wrn("cifar10", 0.02),
    *_wrn("cifar100", 0.07),
)
