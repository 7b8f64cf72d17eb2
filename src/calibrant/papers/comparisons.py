"""Which cells show what a method does to a network: each method beside the plain network of the same data and schedule.

A block is one network on one data set, or several networks that others trained on it. Its baseline is the network
trained with cross-entropy; a method is another training, an ensemble, or a map. `METHODS` has what each method costs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from calibrant.papers import ds, experiments, pep, rc, scorecard, ss
from calibrant.papers.reported import AS_TRAINED, Source
from calibrant.posthoc import CALIBRATORS, CONFIDENCES


@dataclass(frozen=True)
class Method:
    """What a method costs: `trainings` from scratch, and forward `passes` per prediction (as measured)."""

    title: str
    trainings: int = 1
    passes: int = 1


METHODS: dict[str, Method] = {
    "pep": Method("PEP", 0, 10),
    "dropout": Method("MC dropout", 1, 50),
    "swa": Method("SWA"),
    "swag": Method("SWAG", 1, 10),
    "snapshot": Method("snapshots of one training", 1, 5),
    "deep_ensemble": Method("deep ensemble", 5, 5),
    "smoothing": Method("label smoothing"),
    "adals": Method("AdaLS"),
    "ar_adals": Method("AR-AdaLS", 2),  # a twin is trained first, and attacked
    "ar_adals_on_the_fly": Method("AR-AdaLS, levels on the fly"),
    "ar_adals_of_ensemble": Method("AR-AdaLS of Ensemble", 10, 5),
    "focal": Method("focal loss"),
    "inverse_focal": Method("inverse focal loss"),
    "dual_focal": Method("dual focal loss"),
    "l1": Method("L1 norm of the logits"),
    "entropy": Method("entropy regularisation"),
    "mmce": Method("MMCE"),
    "ranking": Method("correctness ranking"),
    "mixup": Method("mixup"),
    "cutmix": Method("CutMix"),
    "ccat": Method("CCAT"),
    "spatial_smoothing": Method("spatial smoothing"),
    "dropout_spatial_smoothing": Method("dropout + spatial smoothing", 1, 50),
    "training_ensemble": Method("training-phase ensemble", 1, 10),
    **{name: Method(f"{name} map", 0) for name in CALIBRATORS},
    **{name: Method(f"{name} model", 0) for name in CONFIDENCES},
    "temperature": Method("temperature scaling", 0),
    "histogram": Method("histogram binning", 0),
}
"""Method → its cost."""


@dataclass(frozen=True)
class Entry:
    """A method of a block, and the plain network that it is compared with."""

    name: str
    method: Source
    baseline: Source


@dataclass(frozen=True)
class Block:
    """One network on one data set. `foreign` is the data set of its out-of-distribution test; `caveat` says what stands
    in for seeds where there are no trainings of one network."""

    where: str
    entries: tuple[Entry, ...]
    foreign: str = ""
    caveat: str = ""


DATA = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "svhn": "SVHN", "news20": "20 Newsgroups"}
NETWORKS = {
    "resnet32": "ResNet-32",
    "text_cnn": "1-D CNN",
    "vgg16": "VGG-16",
    "vgg19": "VGG-19",
    "resnet18": "ResNet-18",
    "resnet50": "ResNet-50",
    "resnext50": "ResNeXt-50",
    "densenet121": "DenseNet-121",
}
PEP_ROWS = dict(
    zip(pep.ROWS, ("MNIST, MLP", "MNIST, CNN", "Fashion, CNN", "CIFAR-10, CNN", "CIFAR-100, CNN"), strict=True)
)


OF_OTHERS = "seeds are networks that others trained"


def blocks() -> Iterator[Block]:
    """Every block, the scorecard first."""
    for data in scorecard.SHIFTS:
        foreign = next(s for s in scorecard.SHIFTS[data] if s.startswith("ood:")).removeprefix("ood:")
        yield Block(f"{DATA[data]}, ResNet-18, scorecard", tuple(_scorecard(data)), foreign)
    for data, network in rc.NETWORKS.items():
        base = f"rc/table1/{data}_cross_entropy"
        trained = {m: f"rc/table1/{data}_{m}" for m in rc.METHODS if m != "cross_entropy"}
        trained["inverse_focal"] = f"rc/figure6/{data}_inverse_focal_2"
        yield Block(
            f"{DATA[data]}, {NETWORKS[network]}", (*_variants(base, "temperature", "histogram"), *_rows(base, trained))
        )
    for data in ds.DATA:
        for network in ds.NETWORKS:
            base = f"ds/table2/{data}_{network}_baseline"
            trained = {m: f"ds/table2/{data}_{network}_{m}" for m in ds.METHODS if m != "baseline"}
            yield Block(
                f"{DATA[data]}, {NETWORKS[network]}, DS", (*_variants(base, "temperature"), *_rows(base, trained))
            )
    alone = ("smoothing", "adals", "ar_adals", "ar_adals_on_the_fly", "ar_adals_of_ensemble", "mixup", "ccat")
    trained = {**{m: f"ar/table3/{m}" for m in alone}, "deep_ensemble": "ar/table3/ensemble_of_vanilla"}
    base = "ar/table3/vanilla"
    yield Block("CIFAR-10, ResNet-29 v2", (*_variants(base, "temperature"), *_rows(base, trained)), "cifar100")
    for data, network in ((d, n) for d, n in ss.E1 if d in DATA):
        yield Block(f"{DATA[data]}, {NETWORKS[network]}", tuple(_smoothed(f"ss/table_e1/{data}_{network}")))
    for row, where in PEP_ROWS.items():
        base = f"pep/table2/{row}"
        dropout = Entry("dropout", Source(f"{base}_dropout", "dropout"), Source(base))
        same = _variants(base, "temperature", "pep", "swa")
        yield Block(where, (*same, dropout, *_rows(base, {"deep_ensemble": f"{base}_deep"})))
    for data in ("cifar10", "cifar100"):
        asked = {"scorecard": tuple(CALIBRATORS), "pep": ("pep",), "ds": tuple(CONFIDENCES)}
        for paper, names in asked.items():
            base = f"{paper}/networks/{data}_*"
            where = f"{DATA[data]}, {len(experiments(base))} networks of others"
            yield Block(where, tuple(_variants(base, *names)), caveat=OF_OTHERS)


def _scorecard(data: str) -> Iterator[Entry]:
    base = Source(f"scorecard/{data}/{scorecard.BASELINE}")
    yield Entry("temperature", Source(base.experiment, "temperature"), base)
    for row, method in scorecard.METHODS.items():
        experiment = f"scorecard/{data}/{row}"
        if row in ("maps", "confidences"):
            names = [c for c in (CALIBRATORS if row == "maps" else CONFIDENCES) if c != "temperature"]
            yield from (Entry(c, Source(experiment, c), base) for c in names)
        elif row != scorecard.BASELINE:
            yield Entry(row, Source(experiment, method.ensemble.name if method.ensemble else AS_TRAINED), base)


def _smoothed(base: str) -> Iterator[Entry]:
    plain = Source(base)
    yield Entry("temperature", Source(base, "temperature"), plain)
    yield Entry("spatial_smoothing", Source(f"{base}_smooth"), plain)
    yield Entry("dropout", Source(f"{base}_dropout", "dropout"), plain)
    yield Entry("dropout_spatial_smoothing", Source(f"{base}_dropout_smooth", "dropout"), plain)


def _variants(base: str, *names: str) -> Iterator[Entry]:
    """Methods that are applied to the baseline's own network."""
    for name in names:
        yield Entry(name, Source(base, name), Source(base))


def _rows(base: str, trained: dict[str, str]) -> Iterator[Entry]:
    """Methods that need another training."""
    for name, experiment in trained.items():
        yield Entry(name, Source(experiment), Source(base))
