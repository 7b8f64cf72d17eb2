"""The panel of metrics and peers that compute some of the same metrics, for `speed` and `device`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

import calibrant

SIZES = ((50_000, 1_000), (1_000_000, 10))


@dataclass(frozen=True)
class Case:
    """A call to time on (logits, labels), and which of our metrics give the same numbers."""

    name: str
    call: Callable[[Tensor, Tensor], object]
    shared: tuple[str, ...] | None = None  # None: the whole panel


def ours(metrics: tuple[str, ...] | None) -> Callable[[Tensor, Tensor], object]:
    return lambda z, y: calibrant.evaluate(z, y, metrics=metrics, intervals=False)


def torch_uncertainty() -> Case:
    from torch_uncertainty.metrics import (
        AURC,
        FPR95,
        AdaptiveCalibrationError,
        BrierScore,
        CalibrationError,
        CategoricalNLL,
    )
    from torchmetrics.classification import BinaryAUROC, MulticlassAccuracy

    def call(z: Tensor, y: Tensor) -> object:
        p, k = torch.softmax(z, -1), z.shape[1]
        conf, guess = p.max(1)
        hit = (guess == y).long()
        many = [
            MulticlassAccuracy(num_classes=k, average="micro"),
            CategoricalNLL(),
            BrierScore(num_classes=k),
            CalibrationError(task="multiclass", num_classes=k, num_bins=15),
            AdaptiveCalibrationError(task="multiclass", num_classes=k, num_bins=15),
            AURC(),
        ]
        out = [m(p, y) for m in many]
        return out, BinaryAUROC()(conf, hit), FPR95(pos_label=1)(conf, hit)

    return Case("torch-uncertainty", call, ("accuracy", "nll", "brier", "ece", "ece_mass", "aurc", "auroc", "fpr95"))


def probmetrics() -> Case:
    from probmetrics.metrics import Metrics

    wanted = Metrics.from_names(["accuracy", "logloss", "brier", "ece-15"])
    return Case(
        "probmetrics",
        lambda z, y: wanted.compute_all_from_labels_logits(y, z),
        ("accuracy", "nll", "brier", "ece"),
    )


def torchmetrics() -> Case:
    from torchmetrics.functional.classification import multiclass_calibration_error

    return Case(
        "torchmetrics (ECE alone)",
        lambda z, y: multiclass_calibration_error(torch.softmax(z, -1), y, num_classes=z.shape[1], n_bins=15),
        ("ece",),
    )


def netcal() -> Case:
    from netcal.metrics import ECE

    return Case("netcal (ECE alone)", lambda z, y: ECE(15).measure(torch.softmax(z, -1).numpy(), y.numpy()), ("ece",))


def uncertainty_calibration() -> Case:
    from calibration import get_ece

    return Case(
        "uncertainty-calibration (ECE alone)",
        lambda z, y: get_ece(torch.softmax(z, -1).numpy(), y.numpy(), num_bins=15),
        ("ece",),
    )


PEERS: tuple[Callable[[], Case], ...] = (torch_uncertainty, probmetrics, torchmetrics, netcal, uncertainty_calibration)


def data(n: int, k: int) -> tuple[Tensor, Tensor]:
    """Logits like those of a network that is right about three times in four."""
    generator = torch.Generator().manual_seed(0)
    z = 2 * torch.randn(n, k, generator=generator)
    y = torch.randint(k, (n,), generator=generator)
    z[torch.arange(n), y] += 4 + 3 * torch.randn(n, generator=generator)
    return z, y
