"""PEP, "PEP: Parameter Ensembling by Perturbation": Table 2, small networks under six methods.

`calibrant bench run` measures a row's network as trained and after temperature scaling; the other columns (PEP,
MC dropout, SWA, deep ensembles) share its trainings and are measured by `benchmarks/pep_table2.py`.
"""

from __future__ import annotations

from calibrant.papers.experiment import Experiment, Paper
from calibrant.papers.reported import said_of
from calibrant.training.recipes import RECIPES
from calibrant.training.settings import Choice

ROWS = ("mnist_mlp", "mnist_cnn", "fashion_cnn", "cifar10_cnn", "cifar100_cnn")


def experiment(row: str) -> Experiment:
    return Experiment(
        paper="pep",
        table="table2",
        row=row,
        recipe=RECIPES[f"pep/{row}"],
        seeds=25,
        calibrators=("temperature",),
        reported=said_of(f"pep/table2/{row}"),
        note="batch and learning rate ours; the paper tunes on the whole held-out set, we on half of it",
    )


def five_classes(network: str) -> Experiment:
    """Out-of-distribution detection; `benchmarks/stress_runs.py` measures `entropy_kl`, `bench run` the rest."""
    own = "" if network == "wide_resnet28_10" else "NOT the paper's network, WRN-28-10; "
    return Experiment(
        paper="pep",
        table="ood",
        row=network,
        recipe=RECIPES[f"pep/ood_{network}"],
        ensemble=Choice("pep"),
        calibrators=("temperature",),
        reported=said_of(f"pep/ood/{network}"),
        note=f"{own}which five classes, the bins of entropy and the schedule are not given: classes 0–4, 30 log bins",
    )


PAPER = Paper(
    "pep",
    "PEP: Parameter Ensembling by Perturbation",
    (*(experiment(row) for row in ROWS), five_classes("cifar_cnn"), five_classes("wide_resnet28_10")),
)
