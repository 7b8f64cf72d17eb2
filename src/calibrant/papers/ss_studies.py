"""SS's studies on CIFAR-100, one seed each: the effect of Prob, Blur, the place, τ, the dropout rate, the head,
pre-activation, BlurPool, ReLU6 everywhere and several passes in training (App. A.1, B, C, D.4, F), and deep ensembles
with smoothing (Fig. E.1). Rows of the same network share its training.

Rows of tables have the paper's numbers. Rows of figures have none, because we know only what the text says of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from calibrant.papers.experiment import Experiment
from calibrant.training.recipes import RECIPES
from calibrant.training.recipes.ss import DROPOUT, PASSES, SMOOTH, as_authors, passes, suffix
from calibrant.training.settings import Choice

POOLS = {
    "vgg16": {"stages.0.4": 32, "stages.1.4": 16, "stages.2.5": 8, "stages.3.5": 4, "stages.4.5": 2},
    "vgg19": {"stages.0.4": 32, "stages.1.4": 16, "stages.2.6": 8, "stages.3.6": 4, "stages.4.6": 2},
}
"""VGG → the names of its pools, and the side of the map that enters each."""
PLACES = {"s1": "layer2.0", "s2": "layer3.0", "s3": "layer4.0", "s4": "after layer4"}
"""Where the stages of a ResNet end, as `calibrant.smooth` names it (App. B.3)."""
ENDS = ("stages.1.0", "stages.2.0", "stages.3.0", "after stages.3")
"""Where the stages of a pre-activation ResNet end. They are named here because tracing would put the last one behind
the final activation, which would act as Prob (App. F)."""

# Table B.1: what is inserted → settings of `smooth`
B1: dict[str, Mapping[str, Any] | None] = {
    "none": None,
    "tanh": {**SMOOTH, "kernel": (1,)},
    "relu6": {"kernel": (1,), "prob": "relu6"},
    "constant": {"kernel": (1,), "prob": "constant"},
    "blur": {"prob": "identity"},
    "blur_tanh": SMOOTH,
    "blur_relu6": {"prob": "relu6"},
    "blur_constant": {"prob": "constant"},
}
# Table B.2: |k| → kernel
B2: dict[int, tuple[int, ...]] = {1: (1,), 2: (1, 1), 3: (1, 2, 1), 5: (1, 4, 6, 4, 1)}
HEADS = ("gap", "mlp", "max", "median")
MEMBERS = 5
RATES = (0.05, 0.1, 0.3, 0.5, 0.7)
TAUS = (0.2, 1.0, 2.0, 5.0, 10.0, 20.0, 100.0)
IN_TRAINING = (1, 2, 3, 5)
"""N_train: how many passes with dropout each training step averages (App. D.4)."""


def study(table: str, row: str, network: str, options: Mapping[str, Any], note: str = "") -> Experiment:
    """One cell: the recipe of SS A.1 with another network."""
    drop = "dropout" in options
    base = RECIPES[f"ss/cifar100_{'vgg16' if network.startswith('vgg') else 'resnet18'}"]
    name = f"ss/{table}/{row}"
    return Experiment(
        paper="ss",
        table=table,
        row=row,
        recipe=replace(
            base, name=name, about=f"SS study, {row}", network=Choice(network, as_authors(network, options))
        ),
        seeds=1,
        ensembles=(passes(network, options),) if drop else (),
        note="; ".join(["one seed", "the paper trains on all 50,000 images, we on 45,000", *([note] if note else [])]),
    )


def dropped(smooth: Mapping[str, Any] | None, rate: float = DROPOUT) -> dict[str, Any]:
    return {"dropout": rate, **({} if smooth is None else {"smooth": dict(smooth)})}


def kernel_row(network: str, size: int) -> Experiment:
    smooth: dict[str, Any] = {**SMOOTH, "kernel": B2[size]}
    note = ""
    if network.startswith("vgg"):
        if size > min(POOLS[network].values()):
            smooth["where"] = tuple(name for name, edge in POOLS[network].items() if edge >= size)
            note = "not before the last pools, whose maps are smaller than the kernel"
    elif size > 4:  # the last map has 4 × 4 points
        smooth["where"] = tuple(name for stage, name in PLACES.items() if stage != "s4")
        note = "not before global pooling, whose map is smaller than the kernel"
    return study("table_b2", f"{network}_k{size}", network, dropped(smooth), note)


def head_row(network: str, head: str) -> Experiment:
    own = head == ("mlp" if network.startswith("vgg") else "gap")  # the network's own head: share its training
    options = {**dropped(None), **({} if own else {"head": head})}
    return study("table_c1", f"{network}_{head}", network, options)


def without_post_activation(network: str, what: str) -> Experiment:
    """Fig. F.1: pre-activation, where no activation before the blur acts as Prob."""
    vgg = network == "vgg16"
    prob = what.startswith("prob_")
    options: dict[str, Any] = {"preact": True} if vgg else {}
    ends: dict[str, Any] = {} if vgg else {"where": ENDS}
    if what.endswith("blurpool"):
        options["blurpool"] = {"where": tuple(POOLS[network])[:-1]} if vgg else {}
        options |= {"smooth": {**SMOOTH, "kernel": (1,), **ends}} if prob else {}
    elif what != "none":
        options["smooth"] = {**(SMOOTH if prob else {"prob": "identity"}), **ends}
    note = "BlurPool of kernel (1, 2, 1)" + (", not at the last pool, whose map is smaller" if vgg else "")
    name = network if vgg else f"preact_{network}"
    row = f"{network}_{what}"
    return study("figure_f1", row, name, {**dropped(None), **options}, note=note if what.endswith("blurpool") else "")


def relu6_row(network: str, drop: bool) -> Experiment:
    options = {**(dropped(None) if drop else {}), "relu6": True}
    return study("section_c3", f"{network}_relu6{'_dropout' if drop else ''}", network, options)


def deep(data: str, smooth: bool) -> Experiment:
    """Fig. E.1: independent trainings pooled. The figure is of ImageNet; five members as in Table E.3."""
    name = f"{data}_resnet18{suffix(0.0, smooth)}"
    return Experiment(
        paper="ss",
        table="figure_e1",
        row=f"{name}_deep",
        recipe=replace(RECIPES[f"ss/{name}"], name=f"ss/{name}_deep", members=MEMBERS),
        note="the paper's figure is of ImageNet, and read by eye; we train on 45,000 images",
    )


def training_ensemble(n: int) -> Experiment:
    """Fig. D.3b: the paper gives neither network nor rate; those of Fig. D.2 here."""
    options = {**dropped(None), **({"passes": n} if n > 1 else {})}
    return study("figure_d3", f"resnet18_passes_{n}", "resnet18", options, "read by eye in the paper")


def training_ensemble_mlp(n: int, rate: float) -> Experiment:
    """The same question to a network that trains on a CPU in a minute."""
    base = RECIPES["pep/mnist_mlp_dropout"]
    options = {**base.network.options, "dropout": rate, **({"passes": n} if n > 1 else {})}
    row = f"mnist_mlp_{rate:g}_passes_{n}"
    about = f"SS D.4 asked of an MLP on MNIST: dropout {rate:g}, {n} pass{'es' if n > 1 else ''} in training"
    return Experiment(
        paper="ss",
        table="figure_d3",
        row=row,
        recipe=replace(base, name=f"ss/figure_d3/{row}", about=about, network=replace(base.network, options=options)),
        seeds=5,
        ensembles=(Choice("dropout", {"members": PASSES}),),
        note="an MLP on MNIST, which the paper does not have",
    )


def preact_row(network: str, drop: bool, pre: bool) -> Experiment:
    options: dict[str, Any] = dropped(None) if drop else {}
    name = network
    if pre and network.startswith("vgg"):
        options["preact"] = True
    elif pre:
        name = f"preact_{network}"
    row = f"{network}{'_preact' if pre else ''}{'_dropout' if drop else ''}"
    return study("table_c2", row, name, options)


F1 = ("none", "blur", "prob_blur", "blurpool", "prob_blurpool")
NETWORKS = ("resnet18", "vgg16")
ALL = (*NETWORKS, "vgg19", "resnet50")
"""The networks of Tables B.1 to C.2."""

EXPERIMENTS = (
    *(study("table_b1", f"{n}_{k}", n, dropped(smooth)) for n in ALL for k, smooth in B1.items()),
    *(kernel_row(network, size) for network in ALL for size in B2),
    study("figure_b2", "none", "resnet18", dropped(None)),
    *(study("figure_b2", s, "resnet18", dropped({**SMOOTH, "where": (name,)})) for s, name in PLACES.items()),
    *(
        study("figure_a1", f"{'smooth' if s else 'plain'}_{rate:g}", "resnet18", dropped(SMOOTH if s else None, rate))
        for rate in RATES
        for s in (False, True)
    ),
    *(study("figure_b1", f"tau_{t:g}", "resnet18", dropped({**SMOOTH, "tau": t})) for t in TAUS),
    *(training_ensemble_mlp(n, 0.5) for n in IN_TRAINING),
    *(training_ensemble_mlp(1, rate) for rate in (0.25, 0.1)),
    *(training_ensemble(n) for n in IN_TRAINING),
    *(head_row(network, head) for network in ALL for head in HEADS),
    *(preact_row(network, drop, pre) for network in ALL for drop in (False, True) for pre in (False, True)),
    *(without_post_activation(network, what) for network in reversed(NETWORKS) for what in F1),
    *(relu6_row(network, drop) for network in NETWORKS for drop in (False, True)),
    *(deep(data, smooth) for data in ("cifar100", "cifar10") for smooth in (False, True)),
)
