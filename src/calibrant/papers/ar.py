"""AR, "Improving Calibration through the Relationship with Adversarial Robustness": Tables 2 to 5, Fig. 5 and §5.5.

Tables 2 and 4: WRN-28-10, levels on the fly. Tables 3 and 5: ResNet-29 v2, pre-computed levels, under the 19
corruptions of CIFAR-10-C; `calibrant bench` measures the clean part (accuracy: Table 1). What joins several runs
(ensembles of AdaLS and AR-AdaLS, which a training in lock-step would couple; variance over runs) and what is under
corruptions (variants `corruptions`, `intensity_1` … `intensity_5`) or on CIFAR-100 is measured by
`benchmarks/ar_runs.py`.
"""

from __future__ import annotations

from dataclasses import replace

from calibrant.papers.experiment import AS_TRAINED, Experiment, Paper
from calibrant.training.recipe import Recipe
from calibrant.training.recipes import RECIPES
from calibrant.training.settings import Choice

HALVED = "one held-out set of 5,000 in the paper, halved here"
CORRUPTIONS = "corruptions"

# method → recipe's suffix, ECE % on CIFAR-10 and CIFAR-100 (means of four runs)
TABLE2 = {
    "vanilla": ("", 2.49, 6.11),
    "smoothing": ("_smoothing", 1.07, 2.76),
    "adals": ("_adals", 1.23, 2.65),
    "ar_adals": ("_ar_adals", 0.64, 2.27),
    "mixup": ("_mixup", 0.78, 1.69),
    "ccat": ("_ccat", 2.37, 7.95),
    "ensemble_of_vanilla": ("_deep", 0.90, 2.21),
}
TEMPERATURE2 = (0.80, 4.26)
# method → accuracy, accuracy under corruption, ECE, ECE under corruption, in percent; CIFAR-100, WRN-28-10
TABLE4 = {
    "vanilla": ("", 79.2, 52.0, 6.1, 18.2),
    "smoothing": ("_smoothing", 78.9, 51.7, 2.8, 16.3),
    "ar_adals_precomputed": ("_ar_adals", 79.3, 52.2, 2.6, 14.2),
    "ar_adals_on_the_fly": ("_ar_adals", 79.2, 52.1, 2.3, 13.2),
}
TEMPERATURE4 = (79.2, 52.0, 4.3, 14.0)
# method → recipe's suffix, mean ECE % over CIFAR-10-C; ResNet-29 v2
TABLE3: dict[str, tuple[str, float | None]] = {
    "vanilla": ("", 16.7),
    "smoothing": ("_smoothing", 10.1),
    "adals": ("_adals", 9.6),
    "ar_adals": ("_ar_adals", 6.4),
    "ensemble_of_vanilla": ("", 6.5),
    "ensemble_of_smoothing": ("_smoothing", 4.6),
    "ensemble_of_adals": ("_adals", 5.2),
    "ensemble_of_ar_adals": ("_ar_adals", 5.5),
    "ar_adals_of_ensemble": ("_ar_adals_of_ensemble", 4.4),
    "mixup": ("_mixup", None),  # this row and the next ones are not in the paper's table
    "ensemble_of_mixup": ("_mixup", None),
    "ccat": ("_ccat", None),
    "ar_adals_on_the_fly": ("_ar_adals", None),
    "ensemble_of_ar_adals_on_the_fly": ("_ar_adals", None),
}
ON_THE_FLY = (65, 130)
FIGURE5 = (1, 2, 4, 6, 8, 12, 14, 16)  # R; ten is Table 3's
ACCURACY = 91.4  # Table 1, vanilla ResNet-29 on CIFAR-10
# method → variance × 100 at intensities 1 … 5, and their mean
TABLE5 = {
    "vanilla": (7.85, 9.69, 11.2, 13.1, 16.0, 11.6),
    "smoothing": (5.54, 6.95, 8.11, 9.65, 11.8, 8.41),
    "adals": (5.47, 6.87, 7.95, 9.44, 11.5, 8.25),
    "ar_adals": (4.21, 5.06, 5.73, 6.66, 8.24, 5.98),
}
OOD = "cifar100"
# §5.5: AUROC of telling CIFAR-100 from CIFAR-10, WRN-28-10, levels on the fly; by entropy, as its Fig. 4 (not said)
SECTION55: dict[str, tuple[str, float | None]] = {
    "vanilla": ("", None),
    "smoothing": ("_smoothing", 0.832),
    "mixup": ("_mixup", 0.821),
    "ar_adals": ("_ar_adals", 0.885),
}
COUPLED = ("adals", "ar_adals")
MEMBERS = 5


def table2(data: str, method: str) -> Experiment:
    suffix, *ece = TABLE2[method]
    at = ("cifar10", "cifar100").index(data)
    reported = {AS_TRAINED: {"ece": ece[at] / 100}}
    if method == "vanilla":
        reported["temperature"] = {"ece": TEMPERATURE2[at] / 100}
    return _row("table2", f"{data}_{method}", RECIPES[f"ar/{data}_wrn28_10{suffix}"], reported, 4)


def table3(method: str) -> Experiment:
    """ResNet-29 v2, alone, as the members of an ensemble, or in lock-step."""
    suffix, shifted = TABLE3[method]
    recipe = RECIPES[f"ar/cifar10_resnet29{suffix}"]
    if method.endswith("on_the_fly"):
        recipe = recipe.with_settings({"targets.refresh_after": list(ON_THE_FLY)})
    reported = {} if shifted is None else {CORRUPTIONS: {"ece": shifted / 100}}
    if method == "vanilla":
        reported[AS_TRAINED] = {"accuracy": ACCURACY / 100}
    pooled = method.startswith("ensemble_of_")
    if pooled and not suffix.lstrip("_").startswith(COUPLED):
        # members that do not look at each other are a deep ensemble, however they are trained
        return _row("table3", method, replace(recipe, members=MEMBERS), reported, 1)
    ensemble = Choice("deep", {"members": MEMBERS}) if pooled else None
    return replace(_row("table3", method, recipe, reported, 5), ensemble=ensemble)


def figure5(count: int) -> Experiment:
    """Sensitivity to the number of levels; R = 1 is AdaLS with AR-AdaLS's α. The paper gives a figure, not numbers."""
    recipe = RECIPES["ar/cifar10_resnet29_ar_adals"].with_settings({"targets.levels": count})
    return _row("figure5", f"levels_{count}", recipe, {}, 4)


def table5(method: str) -> Experiment:
    """Variance over runs: of several trainings, so a cell of it joins their seeds."""
    *each, mean = TABLE5[method]
    reported = {f"intensity_{i}": {"variance": v / 100} for i, v in enumerate(each, 1)}
    reported[CORRUPTIONS] = {"variance": mean / 100}
    row = _row("table5", method, RECIPES[f"ar/cifar10_resnet29{TABLE3[method][0]}"], reported, 1)
    return replace(row, ensemble=Choice("deep", {"members": MEMBERS}))


def section55(method: str) -> Experiment:
    """Out-of-distribution data; the paper's numbers are of WRN-28-10."""
    suffix, auroc = SECTION55[method]
    reported = {} if auroc is None else {OOD: {"auroc_entropy": auroc}}
    return _row("ood", f"cifar10_{method}", RECIPES[f"ar/cifar10_wrn28_10{suffix}"], reported, 4)


def table4(method: str) -> Experiment:
    suffix, *numbers = TABLE4[method]
    recipe = RECIPES[f"ar/cifar100_wrn28_10{suffix}"]
    if method == "ar_adals_precomputed":
        recipe = recipe.with_settings({"targets.refresh_after": []})
    reported = _clean_and_shifted(numbers)
    if method == "vanilla":
        reported |= {"temperature": _clean_and_shifted(list(TEMPERATURE4))[AS_TRAINED]}
    return _row("table4", f"cifar100_{method}", recipe, reported, 1)


def _clean_and_shifted(numbers: list[float]) -> dict[str, dict[str, float]]:
    accuracy, shifted_accuracy, ece, shifted_ece = (v / 100 for v in numbers)
    return {
        AS_TRAINED: {"accuracy": accuracy, "ece": ece},
        CORRUPTIONS: {"accuracy": shifted_accuracy, "ece": shifted_ece},
    }


def _row(table: str, row: str, recipe: Recipe, reported: dict[str, dict[str, float]], seeds: int) -> Experiment:
    return Experiment(
        paper="ar",
        table=table,
        row=row,
        recipe=recipe,
        seeds=seeds,
        calibrators=("temperature",),
        reported=reported,
        note=HALVED + ("; ruler DDN instead of CW" if recipe.targets.name == "ar_adals" else ""),
    )


PAPER = Paper(
    "ar",
    "Improving Calibration through the Relationship with Adversarial Robustness",
    (
        *(table3(method) for method in TABLE3),
        *(table2(data, method) for data in ("cifar10", "cifar100") for method in TABLE2),
        *(table4(method) for method in TABLE4),
        *(table5(method) for method in TABLE5),
        *(figure5(count) for count in FIGURE5),
        *(section55(method) for method in SECTION55),
    ),
)
