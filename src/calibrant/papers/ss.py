"""SS, "Blurs Behave Like Ensembles": Table E.1, the deterministic networks on CIFAR."""

from __future__ import annotations

from calibrant.papers.experiment import AS_TRAINED, Experiment, Paper
from calibrant.train.recipes import RECIPES

# Table E.1, rows without MC dropout and without smoothing: (data, network) → NLL, ACC %, ECE %
E1 = {
    ("cifar10", "vgg19"): (0.401, 93.1, 3.80),
    ("cifar10", "resnet18"): (0.182, 95.2, 2.75),
    ("cifar100", "vgg16"): (2.047, 71.6, 19.2),
    ("cifar100", "vgg19"): (2.016, 67.6, 21.2),
    ("cifar100", "resnet18"): (0.886, 77.9, 4.97),
    ("cifar100", "resnet50"): (0.835, 79.9, 8.88),
}

PAPER = Paper(
    "ss",
    "Blurs Behave Like Ensembles: Spatial Smoothings to Improve Accuracy, Uncertainty, and Robustness",
    tuple(
        Experiment(
            paper="ss",
            table="table_e1",
            row=f"{data}_{network}",
            recipe=RECIPES[f"ss/{data}_{network}"],
            seeds=3,
            calibrators=("temperature",),
            reported={AS_TRAINED: {"nll": nll, "accuracy": accuracy / 100, "ece": ece / 100}},
            note="the paper trains on all 50,000 images, we on 45,000",
        )
        for (data, network), (nll, accuracy, ece) in E1.items()
    ),
)
