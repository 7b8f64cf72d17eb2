"""SS's studies on CIFAR-100, one seed a cell: what Prob, Blur, the place, τ, the dropout rate, the head,
pre-activation, BlurPool and ReLU6 everywhere each do (App. A.1, B, C, F), and deep ensembles with smoothing (Fig. E.1).
`benchmarks/smoothing_runs.py --only ss/table_b1` measures them; rows that are one network share its training.

Tables have the paper's numbers; of figures only what the text says is known, so those rows have none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from calibrant.papers.experiment import AS_TRAINED, Experiment
from calibrant.training.recipes import RECIPES
from calibrant.training.recipes.ss import DROPOUT, SMOOTH, as_authors, passes, suffix
from calibrant.training.settings import Choice

Row = tuple[float, float, float]
"""NLL, ACC %, ECE %."""

POOLS = {"stages.0.4": 32, "stages.1.4": 16, "stages.2.5": 8, "stages.3.5": 4, "stages.4.5": 2}
"""Of VGG-16: its pools, and the edge of the map that each takes."""
PLACES = {"s1": "layer2.0", "s2": "layer3.0", "s3": "layer4.0", "s4": "after layer4"}
"""Of a ResNet: where a stage ends, in the words of `calibrant.smooth` (App. B.3)."""
ENDS = ("stages.1.0", "stages.2.0", "stages.3.0", "after stages.3")
"""Of a pre-activation ResNet: where a stage ends. Found by tracing, the last is behind the final activation, which
would play Prob's part (App. F)."""

# Table B.1, ResNet-18 and VGG-16 with MC dropout: what is inserted → (settings of `smooth`, ResNet-18, VGG-16)
B1: dict[str, tuple[Mapping[str, Any] | None, Row, Row]] = {
    "none": (None, (0.848, 77.3, 3.01), (1.133, 68.8, 3.66)),
    "tanh": ({**SMOOTH, "kernel": (1,)}, (0.838, 77.7, 2.92), (1.064, 70.4, 2.99)),
    "relu6": ({"kernel": (1,), "prob": "relu6"}, (0.844, 77.4, 2.74), (1.093, 69.8, 4.26)),
    "constant": ({"kernel": (1,), "prob": "constant"}, (0.825, 77.7, 1.87), (0.995, 72.5, 2.11)),
    "blur": ({"prob": "identity"}, (0.806, 78.6, 2.56), (0.985, 72.4, 1.77)),
    "blur_tanh": (SMOOTH, (0.801, 78.9, 2.56), (0.984, 72.7, 2.07)),
    "blur_relu6": ({"prob": "relu6"}, (0.805, 78.9, 2.59), (0.982, 72.5, 1.84)),
    "blur_constant": ({"prob": "constant"}, (0.811, 78.5, 1.84), (0.991, 72.9, 1.03)),
}
# Table B.2: |k| → kernel, ResNet-18, VGG-16. Its |k| = 1 is Table B.1's tanh with other numbers.
B2: dict[int, tuple[tuple[int, ...], Row, Row]] = {
    1: ((1,), (0.840, 77.6, 2.63), (1.087, 69.8, 3.43)),
    2: ((1, 1), (0.801, 78.9, 2.56), (1.034, 71.4, 1.06)),
    3: ((1, 2, 1), (0.822, 78.7, 2.86), (0.986, 72.7, 1.03)),
    5: ((1, 4, 6, 4, 1), (0.837, 78.4, 3.05), (1.018, 72.0, 1.32)),
}
# Table C.1, on test, with MC dropout: head → ResNet-18, VGG-16
C1: dict[str, tuple[Row, Row]] = {
    "gap": ((0.841, 77.5, 2.92), (1.030, 72.3, 3.24)),
    "mlp": ((1.040, 74.8, 9.55), (1.133, 68.8, 3.66)),
    "max": ((0.905, 76.3, 5.23), (1.050, 72.2, 3.60)),
    "median": ((0.889, 76.4, 5.03), (1.042, 72.2, 3.35)),
}
# Table C.2: (network, MC dropout, pre-activation) → numbers. Its ResNet baselines are not Table E.1's.
C2: dict[tuple[str, bool, bool], Row] = {
    ("resnet18", False, False): (0.983, 77.1, 7.75),
    ("resnet18", False, True): (0.934, 77.6, 8.04),
    ("resnet18", True, False): (0.937, 76.9, 5.11),
    ("resnet18", True, True): (0.872, 77.6, 5.53),
    ("vgg16", False, False): (2.047, 71.6, 19.2),
    ("vgg16", False, True): (1.827, 72.5, 19.8),
    ("vgg16", True, False): (1.133, 68.8, 3.66),
    ("vgg16", True, True): (1.036, 71.7, 3.55),
}
MEMBERS = 5
RATES = (0.05, 0.1, 0.3, 0.5, 0.7)
TAUS = (0.2, 1.0, 2.0, 5.0, 10.0, 20.0, 100.0)


def study(
    table: str, row: str, network: str, options: Mapping[str, Any], reported: Row | None = None, note: str = ""
) -> Experiment:
    """One cell: the recipe of SS A.1 with another network."""
    drop = "dropout" in options
    base = RECIPES[f"ss/cifar100_{'vgg16' if network.startswith('vgg') else 'resnet18'}"]
    name = f"ss/{table}/{row}"
    said = {} if reported is None else {"nll": reported[0], "accuracy": reported[1] / 100, "ece": reported[2] / 100}
    return Experiment(
        paper="ss",
        table=table,
        row=row,
        recipe=replace(
            base, name=name, about=f"SS study, {row}", network=Choice(network, as_authors(network, options))
        ),
        seeds=1,
        ensemble=passes(network, options) if drop else None,
        reported={"dropout" if drop else AS_TRAINED: said} if said else {},
        note="; ".join(["one seed", "the paper trains on all 50,000 images, we on 45,000", *([note] if note else [])]),
    )


def dropped(smooth: Mapping[str, Any] | None, rate: float = DROPOUT) -> dict[str, Any]:
    return {"dropout": rate, **({} if smooth is None else {"smooth": dict(smooth)})}


def kernel_row(network: str, size: int) -> Experiment:
    kernel, resnet, vgg = B2[size]
    smooth: dict[str, Any] = {**SMOOTH, "kernel": kernel}
    note = ""
    if network == "vgg16" and size > min(POOLS.values()):
        smooth["where"] = tuple(name for name, edge in POOLS.items() if edge >= size)
        note = "not before the last pools, whose maps are smaller than the kernel"
    elif size > 4:  # the last map has 4 × 4 points
        smooth["where"] = tuple(name for stage, name in PLACES.items() if stage != "s4")
        note = "not before global pooling, whose map is smaller than the kernel"
    reported = vgg if network == "vgg16" else resnet
    return study("table_b2", f"{network}_k{size}", network, dropped(smooth), reported, note)


def head_row(network: str, head: str) -> Experiment:
    own = head == ("mlp" if network == "vgg16" else "gap")  # said or not, it is one network: one training
    options = {**dropped(None), **({} if own else {"head": head})}
    return study("table_c1", f"{network}_{head}", network, options, C1[head][network == "vgg16"])


def without_post_activation(network: str, what: str) -> Experiment:
    """Fig. F.1: pre-activation, where nothing but Prob plays Prob's part."""
    vgg = network == "vgg16"
    prob = what.startswith("prob_")
    options: dict[str, Any] = {"preact": True} if vgg else {}
    ends: dict[str, Any] = {} if vgg else {"where": ENDS}
    if what.endswith("blurpool"):
        options["blurpool"] = {"where": tuple(POOLS)[:-1]} if vgg else {}
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


def preact_row(network: str, drop: bool, pre: bool) -> Experiment:
    options: dict[str, Any] = dropped(None) if drop else {}
    name = network
    if pre and network == "vgg16":
        options["preact"] = True
    elif pre:
        name = "preact_resnet18"
    row = f"{network}{'_preact' if pre else ''}{'_dropout' if drop else ''}"
    return study("table_c2", row, name, options, C2[network, drop, pre])


F1 = ("none", "blur", "prob_blur", "blurpool", "prob_blurpool")
NETWORKS = ("resnet18", "vgg16")

EXPERIMENTS = (
    *(study("table_b1", f"resnet18_{k}", "resnet18", dropped(smooth), r) for k, (smooth, r, _) in B1.items()),
    *(study("table_b1", f"vgg16_{k}", "vgg16", dropped(smooth), v) for k, (smooth, _, v) in B1.items()),
    *(kernel_row(network, size) for network in NETWORKS for size in B2),
    study("figure_b2", "none", "resnet18", dropped(None)),
    *(study("figure_b2", s, "resnet18", dropped({**SMOOTH, "where": (name,)})) for s, name in PLACES.items()),
    *(
        study("figure_a1", f"{'smooth' if s else 'plain'}_{rate:g}", "resnet18", dropped(SMOOTH if s else None, rate))
        for rate in RATES
        for s in (False, True)
    ),
    *(study("figure_b1", f"tau_{t:g}", "resnet18", dropped({**SMOOTH, "tau": t})) for t in TAUS),
    *(head_row(network, head) for network in NETWORKS for head in C1),
    *(preact_row(*key) for key in C2),
    *(without_post_activation(network, what) for network in reversed(NETWORKS) for what in F1),
    *(relu6_row(network, drop) for network in NETWORKS for drop in (False, True)),
    *(deep(data, smooth) for data in ("cifar100", "cifar10") for smooth in (False, True)),
)
