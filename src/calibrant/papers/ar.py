"""AR, "Improving Calibration through the Relationship with Adversarial Robustness": Tables 2 to 5, Fig. 1, 5 and §5.5.

Tables 2 and 4: WRN-28-10, levels on the fly. Tables 3 and 5: ResNet-29 v2, pre-computed levels, under the 19
corruptions of CIFAR-10-C (variants `corruptions`, `intensity_1` … `intensity_5`) and on CIFAR-100. Ensembles of AdaLS
and AR-AdaLS, which a training in lock-step would couple, are pools of trainings, and so are the variances over runs.
"""

from __future__ import annotations

from dataclasses import replace

from calibrant.papers.experiment import Experiment, Paper
from calibrant.papers.networks import NETWORKS, published_network
from calibrant.training.recipe import Recipe
from calibrant.training.recipes import RECIPES

HALVED = "one held-out set in the paper, halved here"
CORRUPTIONS, OOD = "corruptions", "ood:cifar100"
SHIFTS = {
    "table3": (CORRUPTIONS, OOD),
    "table5": (CORRUPTIONS, OOD),
    "figure5": (CORRUPTIONS, OOD),
    "table4": (CORRUPTIONS,),
    "ood": (OOD,),
}
"""Table → the shifts that it measures. All tables of ResNet-29 v2 have the same, so that they share the predictions."""

# method → recipe's suffix
TABLE2 = {
    "vanilla": "",
    "smoothing": "_smoothing",
    "adals": "_adals",
    "ar_adals": "_ar_adals",
    "mixup": "_mixup",
    "ccat": "_ccat",
    "ensemble_of_vanilla": "_deep",
}
TABLE4 = {
    "vanilla": "",
    "smoothing": "_smoothing",
    "ar_adals_precomputed": "_ar_adals",
    "ar_adals_on_the_fly": "_ar_adals",
}
TABLE3 = {
    "vanilla": "",
    "smoothing": "_smoothing",
    "adals": "_adals",
    "ar_adals": "_ar_adals",
    "ensemble_of_vanilla": "",
    "ensemble_of_smoothing": "_smoothing",
    "ensemble_of_adals": "_adals",
    "ensemble_of_ar_adals": "_ar_adals",
    "ar_adals_of_ensemble": "_ar_adals_of_ensemble",
    "mixup": "_mixup",  # this row and the next ones are not in the paper's table
    "ensemble_of_mixup": "_mixup",
    "ccat": "_ccat",
    "ar_adals_on_the_fly": "_ar_adals",
    "ensemble_of_ar_adals_on_the_fly": "_ar_adals",
}
IMAGENET = tuple(TABLE3)[:9]
ON_THE_FLY = (65, 130)
FIGURE5 = (1, 2, 4, 6, 8, 12, 14, 16)  # R; ten is Table 3's
TABLE5 = ("vanilla", "smoothing", "adals", "ar_adals")
SECTION55 = {"vanilla": "", "smoothing": "_smoothing", "mixup": "_mixup", "ar_adals": "_ar_adals"}
COUPLED = ("adals", "ar_adals")
MEMBERS = 5
ATTACKED = 2000
"""Test images of each published network whose robustness is measured."""


def table2(data: str, method: str) -> Experiment:
    return _row("table2", f"{data}_{method}", RECIPES[f"ar/{data}_wrn28_10{TABLE2[method]}"], 4)


def table3(method: str) -> Experiment:
    """ResNet-29 v2, alone, as the members of an ensemble, or in lock-step."""
    suffix = TABLE3[method]
    recipe = RECIPES[f"ar/cifar10_resnet29{suffix}"]
    if method.endswith("on_the_fly"):
        recipe = recipe.with_settings({"targets.refresh_after": list(ON_THE_FLY)})
    pooled = method.startswith("ensemble_of_")
    if pooled and not suffix.lstrip("_").startswith(COUPLED):
        # members that do not influence each other are a deep ensemble, however they are trained
        return _row("table3", method, replace(recipe, members=MEMBERS), 1)
    return replace(_row("table3", method, recipe, 1 if pooled else 5), pool=MEMBERS if pooled else 1)


def imagenet(method: str) -> Experiment:
    """Table 3 on ImageNet-C, ResNet-101, for those who have the data; all 19 corruptions, the paper's are 15."""
    single = method.removeprefix("ensemble_of_")
    recipe = RECIPES[f"ar/imagenet_resnet101{'' if single == 'vanilla' else f'_{single}'}"]
    pooled = single != method
    row = _row("table3", f"imagenet_{method}", recipe, 1 if pooled or method.endswith("of_ensemble") else 5)
    note = f"{row.note}; 19 corruptions instead of 15, made here"
    return replace(row, pool=MEMBERS if pooled else 1, shifts=(CORRUPTIONS,), note=note)


def figure5(count: int) -> Experiment:
    """Sensitivity to the number of levels; R = 1 is AdaLS with AR-AdaLS's α. The paper gives a figure, not numbers."""
    recipe = RECIPES["ar/cifar10_resnet29_ar_adals"].with_settings({"targets.levels": count})
    return _row("figure5", f"levels_{count}", recipe, 4)


def figure1() -> Experiment:
    """§3.1: the calibration of the vanilla network by how easily the test items are attacked."""
    row = _row("figure1", "vanilla", RECIPES["ar/cifar10_resnet29"], 5)
    return replace(row, calibrators=(), shifts=("levels",), note=f"{HALVED}; ruler DDN instead of CW")


def of_others(name: str) -> Experiment:
    """§3.1 for a network that others trained, on a seeded part of its test set, because attacks take minutes."""
    row = published_network("ar", name, test=2 * ATTACKED, calibrators=("temperature",), shifts=("levels",))
    metrics = (*row.metrics, "ece_debiased")  # of 200 items the plain one is mostly noise where confidences spread
    return replace(
        row, metrics=metrics, note=f"{row.note}; {ATTACKED} test images in ten levels; ruler DDN instead of CW"
    )


def table5(method: str) -> Experiment:
    """The variance over runs; each cell is a pool of them."""
    return replace(_row("table5", method, RECIPES[f"ar/cifar10_resnet29{TABLE3[method]}"], 1), pool=MEMBERS)


def table5_imagenet(method: str) -> Experiment:
    return replace(imagenet(method), table="table5", seeds=1, pool=MEMBERS)


def section55(method: str) -> Experiment:
    """Out-of-distribution data; the paper's numbers are of WRN-28-10."""
    return _row("ood", f"cifar10_{method}", RECIPES[f"ar/cifar10_wrn28_10{SECTION55[method]}"], 4)


def table4(method: str) -> Experiment:
    recipe = RECIPES[f"ar/cifar100_wrn28_10{TABLE4[method]}"]
    if method == "ar_adals_precomputed":
        recipe = recipe.with_settings({"targets.refresh_after": []})
    return _row("table4", f"cifar100_{method}", recipe, 1)


def _row(table: str, row: str, recipe: Recipe, seeds: int) -> Experiment:
    return Experiment(
        paper="ar",
        table=table,
        row=row,
        recipe=recipe,
        seeds=seeds,
        calibrators=("temperature",),
        shifts=SHIFTS.get(table, ()),
        note=HALVED + ("; ruler DDN instead of CW" if recipe.targets.name == "ar_adals" else ""),
    )


PAPER = Paper(
    "ar",
    "Improving Calibration through the Relationship with Adversarial Robustness",
    (
        *(table3(method) for method in TABLE3),
        *(imagenet(method) for method in IMAGENET),
        *(table2(data, method) for data in ("cifar10", "cifar100") for method in TABLE2),
        *(table4(method) for method in TABLE4),
        *(table5(method) for method in TABLE5),
        *(table5_imagenet(method) for method in TABLE5),
        figure1(),
        *(of_others(name) for name in NETWORKS),
        *(figure5(count) for count in FIGURE5),
        *(section55(method) for method in SECTION55),
    ),
)
