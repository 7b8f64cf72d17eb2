"""DS, "On the Dark Side of Calibration for Modern Neural Networks": Tables 1 to 4, calibration and refinement
jointly, on clean data, under natural shift, and with a model of confidence.

Temperature scaling is the paper's row TS on the baseline network: T = 1.5 there (1.1 on ImageNet), and a fitted T
beside it here.
"""

from __future__ import annotations

from dataclasses import replace

from calibrant.papers.experiment import Experiment, Paper
from calibrant.papers.networks import NETWORKS as NETWORKS_OF_OTHERS
from calibrant.papers.networks import published
from calibrant.papers.reported import said_of
from calibrant.training.recipes import RECIPES
from calibrant.training.settings import Choice

METHODS = {"baseline": "", "entropy": "_entropy", "smoothing": "_smoothing", "mixup": "_mixup", "focal": "_focal"}
NETWORKS = ("vgg16", "resnet50", "densenet121")
DATA = ("cifar10", "cifar100")
SHIFTS = ("cifar10_1", "cifar10_2")
FIXED = Choice("temperature", {"T": 1.5})
"""A.3."""
HELD_OUT = (
    "both models learn from the calibration split, not from training data, and ConfidNet starts from the network's "
    "ranking and does not fine-tune the encoder"
)


def refined(data: str) -> Experiment:
    """Table 4."""
    return Experiment(
        paper="ds",
        table="table4",
        row=f"{data}_vgg16",
        recipe=RECIPES[f"ds/{data}_vgg16"],
        seeds=3,
        calibrators=("confidnet", "trust_score"),
        reported=said_of(f"ds/table4/{data}_vgg16"),
        note=f"momentum, weight decay and batch ours; {HELD_OUT}",
    )


def of_others(name: str) -> Experiment:
    """Table 4's question, asked of a network that others trained; temperature scaling beside it."""
    row = published("ds", name, calibrators=("confidnet", "trust_score", "temperature"))
    return replace(row, note=f"{row.note}; {HELD_OUT}")


def natural_shift(method: str) -> Experiment:
    """Table 3; ImageNet-v2's rows are those of Table 1 under this shift."""
    return Experiment(
        paper="ds",
        table="table3",
        row=f"vgg16_{method}",
        recipe=RECIPES[f"ds/cifar10_vgg16{METHODS[method]}"],
        seeds=3,
        calibrators=("temperature", FIXED),
        shifts=SHIFTS,
        reported=said_of(f"ds/table3/vgg16_{method}"),
        note="momentum, weight decay and batch ours; CIFAR-10.1 is version 6",
    )


def imagenet(method: str) -> Experiment:
    """Table 1, and the rows of Table 3 on ImageNet-v2; for those who have the data."""
    return Experiment(
        paper="ds",
        table="table1",
        row=f"imagenet_resnet50_{method}",
        recipe=RECIPES[f"ds/imagenet_resnet50{METHODS[method]}"],
        calibrators=("temperature", Choice("temperature", {"T": 1.1})),
        shifts=("imagenet_v2",),
        reported=said_of(f"ds/table1/imagenet_resnet50_{method}"),
        note="momentum, weight decay, batch and crops ours",
    )


def experiment(data: str, network: str, method: str) -> Experiment:
    return Experiment(
        paper="ds",
        table="table2",
        row=f"{data}_{network}_{method}",
        recipe=RECIPES[f"ds/{data}_{network}{METHODS[method]}"],
        seeds=3,
        calibrators=("temperature", FIXED),
        reported=said_of(f"ds/table2/{data}_{network}_{method}"),
        note="momentum, weight decay and batch ours",
    )


PAPER = Paper(
    "ds",
    "On the Dark Side of Calibration for Modern Neural Networks",
    (
        *(imagenet(method) for method in METHODS),
        *(experiment(data, network, method) for data in DATA for network in NETWORKS for method in METHODS),
        *(natural_shift(method) for method in METHODS),
        *(refined(data) for data in DATA),
        *(of_others(name) for name in NETWORKS_OF_OTHERS),
    ),
)
