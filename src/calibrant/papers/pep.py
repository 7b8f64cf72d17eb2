"""PEP, "PEP: Parameter Ensembling by Perturbation": Table 2, small networks under six methods; networks of others.

A row's network as trained, after temperature scaling, as PEP and as SWA are one cell. MC dropout needs a network with
dropout, and a deep ensemble several trainings: they are rows of their own (`mnist_cnn_dropout`, `mnist_cnn_deep`).
Table 1 asks of six networks on ImageNet what `networks` asks of CIFAR ResNets whose weights are published: what do
temperature scaling and PEP do to a network that one did not train?
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from calibrant.papers.experiment import Experiment, Paper, Published
from calibrant.papers.reported import said_of
from calibrant.training.recipe import DataSettings, Recipe
from calibrant.training.recipes import RECIPES
from calibrant.training.settings import Choice

MEMBERS = 5
"""Of a deep ensemble; the paper has 10. Five pools of five take the trainings of the baseline's 25 runs."""
READINGS: dict[str, dict[str, Any]] = {
    "cifar10_cnn": {"norm_first": False},
    "cifar100_cnn": {"norm_first": False, "padding": 0},
}
"""Where the paper's network leaves a choice that decides whether dropout trains: the reading with the lowest NLL of MC
dropout on held-out data."""
ROWS = ("mnist_mlp", "mnist_cnn", "fashion_cnn", "cifar10_cnn", "cifar100_cnn")
AUTHORS: dict[str, tuple[dict[str, Any], tuple[float, ...], tuple[float, ...]]] = {
    "akamaster": ({"shortcut": "A"}, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "chenyaofo": ({"shortcut": "conv"}, (0.5070, 0.4865, 0.4409), (0.2673, 0.2564, 0.2761)),
}
"""Who published networks → options of our network of that name, and the mean and deviation of their training code."""
NETWORKS = (
    *(f"cifar10_resnet{depth}_akamaster" for depth in (20, 32, 44, 56)),
    *(f"cifar100_resnet{depth}_chenyaofo" for depth in (20, 32)),
)
"""Data, network and author: files of the data folder's `weights/`."""


def experiment(row: str) -> Experiment:
    return Experiment(
        paper="pep",
        table="table2",
        row=row,
        recipe=RECIPES[f"pep/{row}"],
        seeds=25,
        ensembles=(Choice("pep", {"members": 10}), Choice("swa", {"epochs": 5})),
        calibrators=("temperature",),
        reported=said_of(f"pep/table2/{row}"),
        note="batch and learning rate ours; the paper tunes on the whole held-out set, we on half of it",
    )


def deep(row: str) -> Experiment:
    plain = experiment(row)
    note = f"{plain.note}; {MEMBERS} members instead of 10"
    said = said_of(f"pep/table2/{row}_deep")
    return replace(plain, row=f"{row}_deep", seeds=5, pool=MEMBERS, ensembles=(), reported=said, note=note)


def dropout(row: str) -> Experiment:
    """The paper does not give the passes of MC dropout: 50 here."""
    plain, options = experiment(row), READINGS.get(row, {})
    note = plain.note + ("; order of BatchNorm and padding chosen by held-out NLL" if options else "")
    recipe = plain.recipe.with_settings({f"network.{k}": v for k, v in {"dropout": 0.5, **options}.items()})
    ensemble, said = Choice("dropout", {"members": 50}), said_of(f"pep/table2/{row}_dropout")
    return replace(plain, row=f"{row}_dropout", recipe=recipe, ensembles=(ensemble,), reported=said, note=note)


def five_classes(network: str) -> Experiment:
    """Out-of-distribution detection: the entropies of the classes that were held out."""
    own = "" if network == "wide_resnet28_10" else "NOT the paper's network, WRN-28-10; "
    return Experiment(
        paper="pep",
        table="ood",
        row=network,
        recipe=RECIPES[f"pep/ood_{network}"],
        ensembles=(Choice("pep"),),
        shifts=("ood",),
        calibrators=("temperature",),
        reported=said_of(f"pep/ood/{network}"),
        note=f"{own}which five classes, the bins of entropy and the schedule are not given: classes 0–4, 30 log bins",
    )


def published(name: str) -> Experiment:
    """Some of these networks were selected on the test set by their authors, which favours the baseline."""
    data, network, author = name.split("_")
    options, mean, std = AUTHORS[author]
    return Experiment(
        paper="pep",
        table="networks",
        row=name,
        recipe=Recipe(Choice(network, options), name=f"pep/{name}", data=DataSettings(data), epochs=1),  # the fewest
        seeds=5,
        ensembles=(Choice("pep", {"members": 20}),),
        calibrators=("temperature",),
        published=Published(name, mean, std),
        note="network trained by others; fitted on one half of test",
    )


PAPER = Paper(
    "pep",
    "PEP: Parameter Ensembling by Perturbation",
    (
        *(made(row) for made in (experiment, deep, dropout) for row in ROWS),
        five_classes("cifar_cnn"),
        five_classes("wide_resnet28_10"),
        *(published(name) for name in NETWORKS),
    ),
)
