"""The scorecard: every method on one network, judged jointly (ResNet-18 on CIFAR-100, SS A.1's 200 epochs).

It is not a paper's table: nothing is reported, and every row is compared with plain cross-entropy, paired by seed. All
rows share data, network and schedule. A method has the coefficient that its paper prints for CIFAR (AR's ε = 0.07 for
CIFAR-100), or its author's default; we chose none. Methods that need no training of their own (PEP, SWA, maps) use the
baseline's network, each in a row of its own, so that they can be measured one by one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from calibrant.papers.experiment import Experiment, Paper
from calibrant.papers.networks import LOGITS, published_logits
from calibrant.posthoc import CALIBRATORS, CONFIDENCES
from calibrant.training.recipe import Recipe
from calibrant.training.recipes import RECIPES
from calibrant.training.recipes.ar import CCAT, LEVELS
from calibrant.training.recipes.ss import DROPOUT, SMOOTH
from calibrant.training.settings import Choice

SHIFTS = {"cifar100": ("corruptions", "ood:cifar10"), "cifar10": ("corruptions", "ood:cifar100")}
PASSES = 10
"""The members of ensembles that are measured under the 95 corruptions."""
POOL = 3
"""The networks of a deep ensemble, which are the seeds of the baseline."""
BASELINE = "cross_entropy"


@dataclass(frozen=True)
class Method:
    """A method: a `change` of the recipe, the ensemble and the calibrators to measure, and the networks of a `pool`."""

    change: Mapping[str, Any] = field(default_factory=dict)
    ensemble: Choice | None = None
    calibrators: tuple[str | Choice, ...] = ("temperature",)
    shifted: bool = True
    pool: int = 1
    seeds: int = 3
    note: str = ""


def _network(**options: Any) -> dict[str, Any]:
    return {"network": Choice("resnet18", options)}


MC_DROPOUT = Choice("dropout", {"members": PASSES})

METHODS: dict[str, Method] = {
    BASELINE: Method(),
    "smoothing": Method({"targets": Choice("smoothing", {"epsilon": 0.07})}),
    "adals": Method({"targets": Choice("adals", {"alpha": 0.005})}),
    "ar_adals": Method({"targets": Choice("ar_adals", {"alpha": 0.005, "levels": LEVELS})}, note="levels by DDN"),
    "focal": Method({"loss": Choice("focal", {"gamma": 3.0})}),
    "inverse_focal": Method({"loss": Choice("inverse_focal", {"gamma": 2.0})}),
    "dual_focal": Method({"loss": Choice("dual_focal")}),
    "l1": Method({"penalties": (Choice("lp_norm", {"weight": 0.01, "p": 1.0}),)}),
    "entropy": Method({"penalties": (Choice("entropy", {"weight": 0.1}),)}),
    "mmce": Method({"penalties": (Choice("mmce"),)}),
    "ranking": Method({"penalties": (Choice("ranking"),)}, seeds=1, note="trained eagerly, so one seed"),
    "mixup": Method({"transforms": (Choice("mixup", {"alpha": 0.2}),)}),
    "cutmix": Method({"transforms": (Choice("cutmix"),)}),
    "ccat": Method({"transforms": (CCAT,)}),
    "dropout": Method(_network(dropout=DROPOUT), MC_DROPOUT),
    "spatial_smoothing": Method(_network(smooth=SMOOTH)),
    "dropout_spatial_smoothing": Method(_network(dropout=DROPOUT, smooth=SMOOTH), MC_DROPOUT),
    "training_ensemble": Method(_network(dropout=DROPOUT, passes=2), MC_DROPOUT, note="two passes in training"),
    "pep": Method(ensemble=Choice("pep", {"members": PASSES})),
    "swa": Method(ensemble=Choice("swa")),
    "swag": Method(ensemble=Choice("swag", {"members": PASSES})),
    "snapshot": Method(ensemble=Choice("snapshot"), note="the last third of one training, without cycles"),
    "deep_ensemble": Method(pool=POOL, seeds=1, note="the three seeds of the baseline"),
    "maps": Method(calibrators=tuple(CALIBRATORS), shifted=False),
    "confidences": Method(calibrators=tuple(CONFIDENCES), shifted=False),
}
"""Row → method."""


def experiment(data: str, row: str) -> Experiment:
    method, plain = METHODS[row], RECIPES[f"ss/{data}_resnet18"]
    return Experiment(
        paper="scorecard",
        table=data,
        row=row,
        recipe=_changed(plain, f"scorecard/{data}_{row}", method.change),
        seeds=method.seeds,
        pool=method.pool,
        ensembles=(method.ensemble,) if method.ensemble else (),
        calibrators=method.calibrators,
        shifts=SHIFTS[data] if method.shifted else (),
        note=method.note,
    )


def _changed(plain: Recipe, name: str, change: Mapping[str, Any]) -> Recipe:
    """The changed recipe, or, if nothing changes, the baseline's own: the training of SS E.1's plain ResNet-18."""
    return replace(plain, name=name, about=f"{plain.about}; {name}", **change) if change else plain


def of_others(name: str) -> Experiment:
    """All calibrators on a network that others trained."""
    return published_logits("scorecard", name, seeds=2, calibrators=tuple(CALIBRATORS))


PAPER = Paper(
    "scorecard",
    "The scorecard: every method on one network, and every map on networks of others",
    (*(experiment(data, row) for data in SHIFTS for row in METHODS), *(of_others(name) for name in LOGITS)),
)
