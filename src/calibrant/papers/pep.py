"""PEP, "PEP: Parameter Ensembling by Perturbation": Table 2, small networks under six methods; networks of others.

One cell holds a row's network as trained, after temperature scaling, as PEP and as SWA. MC dropout needs a network with
dropout, and a deep ensemble needs several trainings, so they are rows of their own (`mnist_cnn_dropout`,
`mnist_cnn_deep`). `networks` asks the question of Table 1 (six networks on ImageNet) of published CIFAR ResNets: what
do temperature scaling and PEP do to a network that someone else trained?
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from calibrant.papers.experiment import Experiment, Paper
from calibrant.papers.networks import NETWORKS, published_network
from calibrant.training.recipes import RECIPES
from calibrant.training.settings import Choice

MEMBERS = 5
"""The members of a deep ensemble; the paper has 10. Five pools of five use the 25 trainings of the baseline."""
READINGS: dict[str, dict[str, Any]] = {
    "cifar10_cnn": {"norm_first": False},
    "cifar100_cnn": {"norm_first": False, "padding": 0},
}
"""The paper leaves details of the network open that decide whether it trains with dropout. We use the reading with the
lowest NLL of MC dropout on held-out data."""
ROWS = ("mnist_mlp", "mnist_cnn", "fashion_cnn", "cifar10_cnn", "cifar100_cnn")


def experiment(row: str) -> Experiment:
    return Experiment(
        paper="pep",
        table="table2",
        row=row,
        recipe=RECIPES[f"pep/{row}"],
        seeds=25,
        ensembles=(Choice("pep", {"members": 10}), Choice("swa", {"epochs": 5})),
        calibrators=("temperature",),
        note="batch and learning rate ours; the paper tunes on the whole held-out set, we on half of it",
    )


def deep(row: str) -> Experiment:
    plain = experiment(row)
    note = f"{plain.note}; {MEMBERS} members instead of 10"
    return replace(plain, row=f"{row}_deep", seeds=5, pool=MEMBERS, ensembles=(), note=note)


def dropout(row: str) -> Experiment:
    """The paper does not give the passes of MC dropout: 50 here."""
    plain, options = experiment(row), READINGS.get(row, {})
    note = plain.note + ("; order of BatchNorm and padding chosen by held-out NLL" if options else "")
    recipe = plain.recipe.with_settings({f"network.{k}": v for k, v in {"dropout": 0.5, **options}.items()})
    ensemble = Choice("dropout", {"members": 50})
    return replace(plain, row=f"{row}_dropout", recipe=recipe, ensembles=(ensemble,), note=note)


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
        note=f"{own}which five classes, the bins of entropy and the schedule are not given: classes 0–4, 30 log bins",
    )


def of_others(name: str) -> Experiment:
    """Table 1's question for a network that others trained."""
    ensembles = (Choice("pep", {"members": 20}),)
    return published_network("pep", name, seeds=5, ensembles=ensembles, calibrators=("temperature",))


PAPER = Paper(
    "pep",
    "PEP: Parameter Ensembling by Perturbation",
    (
        *(made(row) for made in (experiment, deep, dropout) for row in ROWS),
        five_classes("cifar_cnn"),
        five_classes("wide_resnet28_10"),
        *(of_others(name) for name in NETWORKS),
    ),
)
