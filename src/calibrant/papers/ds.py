"""DS, "On the Dark Side of Calibration for Modern Neural Networks": Tables 1 to 4, calibration and refinement
jointly, on clean data, under natural shift, and with a confidence model.

The paper's row TS is the baseline network with T = 1.5 (1.1 on ImageNet). We also measure a fitted T.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from calibrant.papers.experiment import Experiment, Paper
from calibrant.papers.networks import NETWORKS as NETWORKS_OF_OTHERS
from calibrant.papers.networks import published_network
from calibrant.training.recipes import RECIPES
from calibrant.training.settings import Choice

METHODS = {"baseline": "", "entropy": "_entropy", "smoothing": "_smoothing", "mixup": "_mixup", "focal": "_focal"}
NETWORKS = ("vgg16", "resnet50", "densenet121")
DATA = ("cifar10", "cifar100")
SHIFTS = ("cifar10_1", "cifar10_2")
FIXED = Choice("temperature", {"T": 1.5})
"""The paper's temperature (A.3)."""
HELD_OUT = (
    "both models learn from the calibration split, not from training data, and ConfidNet starts from the network's "
    "ranking and does not fine-tune the encoder"
)


def experiment(data: str, network: str, method: str) -> Experiment:
    """Table 2."""
    recipe = f"{data}_{network}{METHODS[method]}"
    return _row("table2", f"{data}_{network}_{method}", recipe, calibrators=("temperature", FIXED))


def natural_shift(method: str) -> Experiment:
    """Table 3 on CIFAR-10.1 and CIFAR-10.2."""
    row = _row(
        "table3",
        f"vgg16_{method}",
        f"cifar10_vgg16{METHODS[method]}",
        calibrators=("temperature", FIXED),
        shifts=SHIFTS,
    )
    return replace(row, note=f"{row.note}; CIFAR-10.1 is version 6")


def imagenet(method: str) -> Experiment:
    """Table 1, and the rows of Table 3 on ImageNet-v2; for those who have the data."""
    calibrators = ("temperature", Choice("temperature", {"T": 1.1}))
    recipe = f"imagenet_resnet50{METHODS[method]}"
    row = _row("table1", f"imagenet_resnet50_{method}", recipe, calibrators=calibrators, shifts=("imagenet_v2",))
    return replace(row, seeds=1, note="momentum, weight decay, batch and crops ours")


def confidence_models(data: str) -> Experiment:
    """Table 4."""
    row = _row("table4", f"{data}_vgg16", f"{data}_vgg16", calibrators=("confidnet", "trust_score"))
    return replace(row, note=f"{row.note}; {HELD_OUT}")


def of_others(name: str) -> Experiment:
    """Table 4's question for a network that others trained, with temperature scaling beside it."""
    row = published_network("ds", name, calibrators=("confidnet", "trust_score", "temperature"))
    return replace(row, note=f"{row.note}; {HELD_OUT}")


def _row(table: str, row: str, recipe: str, **asked: Any) -> Experiment:
    note = "momentum, weight decay and batch ours"
    return Experiment(paper="ds", table=table, row=row, recipe=RECIPES[f"ds/{recipe}"], seeds=3, note=note, **asked)


PAPER = Paper(
    "ds",
    "On the Dark Side of Calibration for Modern Neural Networks",
    (
        *(imagenet(method) for method in METHODS),
        *(experiment(data, network, method) for data in DATA for network in NETWORKS for method in METHODS),
        *(natural_shift(method) for method in METHODS),
        *(confidence_models(data) for data in DATA),
        *(of_others(name) for name in NETWORKS_OF_OTHERS),
    ),
)
