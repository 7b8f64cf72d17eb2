"""RC, "Rethinking Calibration of Deep Neural Networks": Tables 1 and 2.

ResNet-32 on SVHN and CIFAR, an eight-layer 1-D CNN on 20 Newsgroups.

Each method has the coefficient that the paper chose by ECE on test: an oracle choice, and noted as one. Table 1 is the
variant `as_trained`; Table 2 is the same networks after temperature scaling and histogram binning.
"""

from __future__ import annotations

from dataclasses import replace

from calibrant.papers.experiment import Experiment, Paper
from calibrant.training.recipes import RECIPES
from calibrant.training.settings import Choice

UNPRINTED = ("optimiser.weight_decay",)

NETWORKS = {"svhn": "resnet32", "cifar10": "resnet32", "cifar100": "resnet32", "news20": "text_cnn"}

# method → (recipe's suffix, key of the coefficient, {data: value})
METHODS: dict[str, tuple[str, str, dict[str, float]]] = {
    "cross_entropy": ("", "", {}),
    "smoothing": ("_smoothing", "targets.epsilon", {"svhn": 0.01, "cifar10": 0.05, "cifar100": 0.09, "news20": 0.09}),
    "l1": ("_l1", "penalties.0.weight", {"svhn": 0.01, "cifar10": 0.05, "cifar100": 0.01, "news20": 0.01}),
    "focal": ("_focal", "loss.gamma", {"svhn": 1.0, "cifar10": 3.0, "cifar100": 5.0, "news20": 5.0}),
}


def experiment(data: str, method: str, network: str = "") -> Experiment:
    """Table 1, or Table A of the appendix with ResNet-110; our copy of the paper has no appendix."""
    suffix, key, values = METHODS[method]
    recipe = replace(RECIPES[f"rc/{data}_{network or NETWORKS[data]}{suffix}"], selection=None)
    if key:
        recipe = recipe.with_settings({key: values[data]})
    return Experiment(
        paper="rc",
        table="table_a" if network else "table1",
        row=f"{data}_{method}",
        recipe=recipe,
        seeds=5,
        calibrators=("temperature", "histogram"),
        unprinted=UNPRINTED,
        note="schedule ours" + ("; coefficient is the paper's oracle choice" if key else ""),
    )


def chosen(data: str, method: str) -> Experiment:
    """The honest choice beside the paper's: the coefficient by ECE on validation, over the paper's grid."""
    return Experiment(
        paper="rc",
        table="selection",
        row=f"{data}_{method}",
        recipe=RECIPES[f"rc/{data}_{NETWORKS[data]}{METHODS[method][0]}"],
        seeds=5,
        calibrators=("temperature", "histogram"),
        unprinted=UNPRINTED,
        note="schedule ours; coefficient chosen by ECE on validation, the paper's on test",
    )


def inverse_focal(data: str, gamma: float) -> Experiment:
    """Figure 6, which prints no numbers; it claims a lower ECE than cross-entropy after temperature scaling."""
    recipe = replace(RECIPES[f"rc/{data}_{NETWORKS[data]}_inverse_focal"], selection=None)
    return Experiment(
        paper="rc",
        table="figure6",
        row=f"{data}_inverse_focal_{gamma:g}",
        recipe=recipe.with_settings({"loss.gamma": gamma}),
        seeds=5,
        calibrators=("temperature", "histogram"),
        unprinted=UNPRINTED,
        note="schedule ours; the paper gives a figure, not numbers",
    )


SEARCHED = Choice("temperature", {"objective": "ece"})


def searched(e: Experiment) -> Experiment:
    """The same network with T searched by ECE, because §4 names its pool of temperatures but not the criterion."""
    note = f"{e.note}; T by ECE on calibration: the paper does not name its criterion"
    return replace(e, table="searched", calibrators=(SEARCHED,), note=note)


PAPER = Paper(
    "rc",
    "Rethinking Calibration of Deep Neural Networks: Do Not Be Afraid of Overconfidence",
    (
        *(experiment(data, method) for data in NETWORKS for method in METHODS),
        *(experiment(data, method, "resnet110") for data in ("cifar10", "cifar100") for method in METHODS),
        *(chosen(data, method) for data in NETWORKS for method in METHODS if METHODS[method][1]),
        *(inverse_focal(data, gamma) for data in NETWORKS for gamma in (1.0, 2.0, 3.0)),
        *(searched(experiment(data, method)) for data in NETWORKS for method in METHODS),
        *(searched(inverse_focal(data, 2.0)) for data in NETWORKS),
    ),
)
