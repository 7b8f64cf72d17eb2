"""SS, "Blurs Behave Like Ensembles": Table E.1 on CIFAR, with and without MC dropout (50 passes) and smoothing.

Of a network with MC dropout, `as_trained` is one pass with dropout off and `dropout` what the paper reports.
"""

from __future__ import annotations

from dataclasses import replace

from calibrant.papers import ss_camvid, ss_studies
from calibrant.papers.experiment import Experiment, Paper
from calibrant.papers.reported import said_of
from calibrant.training.recipes import RECIPES
from calibrant.training.recipes.ss import DROPOUT, passes, suffix
from calibrant.training.settings import Choice

FEWER = 10
"""Passes of MC dropout under the 95 corruptions."""
# Table E.1 on CIFAR
E1 = (
    ("cifar10", "vgg19"),
    ("cifar10", "resnet18"),
    ("cifar100", "vgg16"),
    ("cifar100", "vgg19"),
    ("cifar100", "resnet18"),
    ("cifar100", "resnext50"),
    ("cifar100", "resnet50"),
)


def experiment(data: str, network: str, dropout: bool, smooth: bool) -> Experiment:
    name = f"{data}_{network}{suffix(DROPOUT * dropout, smooth)}"
    return Experiment(
        paper="ss",
        table="table_e1",
        row=name,
        recipe=RECIPES[f"ss/{name}"],
        seeds=3,
        ensembles=(passes(network, {}),) if dropout else (),
        calibrators=("temperature",),
        reported=said_of(f"ss/table_e1/{name}"),
        note="the paper trains on all 50,000 images, we on 45,000",
    )


def nearly_all(data: str) -> Experiment:
    """The plain ResNet-18 once more, with nearly as many training images as in the paper."""
    usual = experiment(data, "resnet18", dropout=False, smooth=False)
    row = f"{usual.row}_nearly_all"
    return replace(usual, row=row, recipe=RECIPES[f"ss/{row}"], note="trained on 49,000 of the paper's 50,000 images")


def corrupted(dropout: bool, smooth: bool) -> Experiment:
    """Figure 9: ResNet-18 on CIFAR-100 by severity, and mCE, mCNLL and mCECE against an AlexNet."""
    usual = experiment("cifar100", "resnet18", dropout, smooth)
    ensembles = tuple(Choice(e.name, {**e.options, "members": FEWER}) for e in usual.ensembles)
    return replace(
        usual,
        table="figure9",
        ensembles=ensembles,
        shifts=("corruptions",),
        reference=RECIPES["ss/cifar100_alexnet"],
        reported={},
        note=f"{usual.note}; MC dropout with {FEWER} members; the reference is an AlexNet for 32 pixels trained here",
    )


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
        *(corrupted(dropout, smooth) for dropout in (False, True) for smooth in (False, True)),
        nearly_all("cifar10"),
        nearly_all("cifar100"),
        *ss_camvid.EXPERIMENTS,
        *ss_studies.EXPERIMENTS,
    ),
)
