"""SS, "Blurs Behave Like Ensembles": Tables E.1 to E.3, with and without MC dropout (50 passes) and smoothing.

For a network with MC dropout, `as_trained` is one pass without dropout, and `dropout` is what the paper reports.
"""

from __future__ import annotations

from dataclasses import replace

from calibrant.papers import ss_camvid, ss_studies
from calibrant.papers.experiment import Experiment, Paper
from calibrant.training.recipes import RECIPES
from calibrant.training.recipes.ss import DROPOUT, passes, suffix
from calibrant.training.settings import Choice

FEWER = 10
"""Passes of MC dropout under the 95 corruptions, under attack and on sequences."""
CIFAR_NOTE = "the paper trains on all 50,000 images, we on 45,000"
IMAGENET_NOTE = "crops within 16 pixels of the middle, and 50,000 images held out, are ours"
FEWER_NOTE = f"MC dropout with {FEWER} members"
# Table E.1
E1 = (
    ("cifar10", "vgg19"),
    ("cifar10", "resnet18"),
    ("cifar100", "vgg16"),
    ("cifar100", "vgg19"),
    ("cifar100", "resnet18"),
    ("cifar100", "resnext50"),
    ("cifar100", "resnet50"),
    *(("imagenet", network) for network in ("resnet18", "resnet50", "resnext50")),
)
HALVES = tuple((dropout, smooth) for dropout in (False, True) for smooth in (False, True))


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
        note=IMAGENET_NOTE if data == "imagenet" else CIFAR_NOTE,
    )


def with_shifts(table: str, usual: Experiment, *shifts: str, note: str = "") -> Experiment:
    """The same network on other data than clean ones; MC dropout with fewer members."""
    ensembles = tuple(Choice(e.name, {**e.options, "members": FEWER}) for e in usual.ensembles)
    words = [usual.note, *([FEWER_NOTE] if ensembles else []), *([note] if note else [])]
    return replace(usual, table=table, ensembles=ensembles, shifts=shifts, note="; ".join(words))


def nearly_all(data: str) -> Experiment:
    """The plain ResNet-18, trained on nearly as many images as in the paper."""
    usual = experiment(data, "resnet18", dropout=False, smooth=False)
    row = f"{usual.row}_nearly_all"
    return replace(usual, row=row, recipe=RECIPES[f"ss/{row}"], note="trained on 49,000 of the paper's 50,000 images")


def corrupted(data: str, members: int, smooth: bool) -> Experiment:
    """Figure 9: ResNet-18 on CIFAR-C, by severity and by the members of MC dropout (0: none); on CIFAR-100 also mCE,
    mCNLL and mCECE, which are relative to an AlexNet."""
    usual = experiment(data, "resnet18", members > 0, smooth)
    note = "the reference is an AlexNet for 32 pixels trained here" if data == "cifar100" else ""
    row = replace(with_shifts("figure9", usual, "corruptions", note=note))
    if data == "cifar100":
        row = replace(row, reference=RECIPES["ss/cifar100_alexnet"])
    if members not in (0, FEWER):
        few = tuple(Choice(e.name, {**e.options, "members": members}) for e in row.ensembles)
        row = replace(
            row, row=f"{row.row}_{members}", ensembles=few, note=row.note.replace(FEWER_NOTE, f"{members} passes")
        )
    return row


def attacked(data: str, network: str, dropout: bool, smooth: bool) -> Experiment:
    """Table E.2: ResNet-50 on ImageNet, and our ResNet-18 on CIFAR-100."""
    usual = replace(experiment(data, network, dropout, smooth), calibrators=())
    return with_shifts(
        "table_e2", usual, "attack:fgsm", "attack:pgd", note="budgets of 8/255 ours; the first 1,000 images"
    )


def on_sequences(dropout: bool, smooth: bool, *, deep: bool = False) -> Experiment:
    """Table E.3: ResNet-18 on the ten sequences of CIFAR-10-P, made here; the mean over them."""
    usual = replace(experiment("cifar10", "resnet18", dropout, smooth), calibrators=())
    if deep:
        name = f"{usual.row}_deep"
        usual = replace(usual, row=name, recipe=replace(usual.recipe, name=f"ss/{name}", members=ss_studies.MEMBERS))
    return with_shifts("table_e3", usual, "perturbations", note="sequences made here")


def on_training(usual: Experiment, row: str) -> Experiment:
    """Section E.1 and the training columns of Table C.1: the same network on its training items."""
    note = f"{usual.note}; training items without augmentation"
    return replace(usual, table="training", row=row, shifts=("train",), calibrators=(), note=note)


PAPER = Paper(
    "ss",
    "Blurs Behave Like Ensembles: Spatial Smoothings to Improve Accuracy, Uncertainty, and Robustness",
    (
        *(experiment(data, network, dropout, smooth) for data, network in E1 for dropout, smooth in HALVES),
        *(
            corrupted(data, members, smooth)
            for data in ("cifar100", "cifar10")
            for members in (0, 2, FEWER)
            for smooth in (False, True)
        ),
        *(
            attacked(data, network, dropout, smooth)
            for data, network in (("imagenet", "resnet50"), ("cifar100", "resnet18"))
            for dropout, smooth in HALVES
        ),
        *(on_sequences(dropout, smooth) for dropout, smooth in HALVES),
        *(on_sequences(False, smooth, deep=True) for smooth in (False, True)),
        nearly_all("cifar10"),
        nearly_all("cifar100"),
        *ss_camvid.EXPERIMENTS,
        *ss_studies.EXPERIMENTS,
        *(on_training(e, e.row) for e in ss_studies.EXPERIMENTS if e.table == "table_c1"),
        *(
            on_training(experiment("cifar100", "resnet18", True, smooth), f"resnet18{suffix(0, smooth)}")
            for smooth in (False, True)
        ),
    ),
)
