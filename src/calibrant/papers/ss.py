"""SS, "Blurs Behave Like Ensembles": Table E.1 on CIFAR, with and without MC dropout (50 passes) and smoothing.

Of a network with MC dropout, `as_trained` is one pass with dropout off and `dropout` what the paper reports.
"""

from __future__ import annotations

from dataclasses import replace

from calibrant.papers import ss_camvid, ss_studies
from calibrant.papers.experiment import AS_TRAINED, Experiment, Paper
from calibrant.training.recipes import RECIPES
from calibrant.training.recipes.ss import DROPOUT, passes, suffix

# Table E.1: (data, network) → NLL, ACC %, ECE % of the four variants: plain, smoothing, MC dropout, both
E1 = {
    ("cifar10", "vgg19"): ((0.401, 93.1, 3.80), (0.376, 93.2, 5.49), (0.238, 92.6, 3.55), (0.197, 93.3, 0.68)),
    ("cifar10", "resnet18"): ((0.182, 95.2, 2.75), (0.173, 95.4, 2.31), (0.157, 95.2, 1.14), (0.144, 95.5, 1.04)),
    ("cifar100", "vgg16"): ((2.047, 71.6, 19.2), (1.878, 72.2, 20.5), (1.133, 68.8, 3.66), (1.034, 71.4, 1.06)),
    ("cifar100", "vgg19"): ((2.016, 67.6, 21.2), (1.851, 71.7, 20.2), (1.215, 67.3, 6.37), (1.071, 70.4, 2.15)),
    ("cifar100", "resnet18"): ((0.886, 77.9, 4.97), (0.863, 78.9, 4.40), (0.848, 77.3, 3.01), (0.801, 78.9, 2.56)),
    ("cifar100", "resnext50"): ((0.804, 80.6, 8.23), (0.825, 80.8, 9.41), (0.762, 80.5, 5.67), (0.759, 80.7, 6.62)),
    ("cifar100", "resnet50"): ((0.835, 79.9, 8.88), (0.834, 80.7, 9.29), (0.822, 79.1, 6.63), (0.800, 80.1, 7.25)),
}


def experiment(data: str, network: str, dropout: bool, smooth: bool) -> Experiment:
    nll, accuracy, ece = E1[data, network][2 * dropout + smooth]
    name = f"{data}_{network}{suffix(DROPOUT * dropout, smooth)}"
    return Experiment(
        paper="ss",
        table="table_e1",
        row=name,
        recipe=RECIPES[f"ss/{name}"],
        seeds=3,
        ensemble=passes(network, {}) if dropout else None,
        calibrators=("temperature",),
        reported={"dropout" if dropout else AS_TRAINED: {"nll": nll, "accuracy": accuracy / 100, "ece": ece / 100}},
        note="the paper trains on all 50,000 images, we on 45,000",
    )


def nearly_all(data: str) -> Experiment:
    """The plain ResNet-18 once more, with nearly as many training images as in the paper."""
    usual = experiment(data, "resnet18", dropout=False, smooth=False)
    row = f"{usual.row}_nearly_all"
    return replace(usual, row=row, recipe=RECIPES[f"ss/{row}"], note="trained on 49,000 of the paper's 50,000 images")


PAPER = Paper(
    "ss",
    "Blurs Behave Like Ensembles: Spatial Smoothings to Improve Accuracy, Uncertainty, and Robustness",
    (
        *(
            experiment(data, network, dropout, smooth)
            for data, network in E1
            for dropout in (False, True)
            for smooth in (False, True)
        ),
        nearly_all("cifar10"),
        nearly_all("cifar100"),
        *ss_camvid.EXPERIMENTS,
        *ss_studies.EXPERIMENTS,
    ),
)
