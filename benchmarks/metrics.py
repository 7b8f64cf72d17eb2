"""How fast is the panel of metrics? Ratios against `torch.log_softmax` and against peers.

    python -m benchmarks.metrics [--threads 1] [--rounds 7]

Everything runs in one process, interleaved, with pinned threads; the figure is the median over rounds of
the ratio within a round, by processor time, so that a busy machine changes both sides alike. Peers that
are not installed are skipped with a line. `[bench]` installs them.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

import calibrant
from calibrant.functional.scores import reduce
from calibrant.metrics.conventions import Resampling
from calibrant.metrics.evaluate import evaluate_scores

SIZES = ((50_000, 1_000), (1_000_000, 10))


@dataclass(frozen=True)
class Case:
    """Something to time on (logits, labels), and the metrics of ours that give the same numbers."""

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
    """Logits of a network that is right about three times in four."""
    generator = torch.Generator().manual_seed(0)
    z = 2 * torch.randn(n, k, generator=generator)
    y = torch.randint(k, (n,), generator=generator)
    z[torch.arange(n), y] += 4 + 3 * torch.randn(n, generator=generator)
    return z, y


def seconds(call: Callable[[Tensor, Tensor], object], z: Tensor, y: Tensor) -> float:
    start = time.process_time()
    call(z, y)
    return time.process_time() - start


def ratio(over: Callable[..., object], under: Callable[..., object], z: Tensor, y: Tensor, rounds: int) -> float:
    """Median of over/under, one after the other in every round."""
    over(z, y), under(z, y)
    return statistics.median(seconds(over, z, y) / max(seconds(under, z, y), 1e-9) for _ in range(rounds))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=7)
    a = parser.parse_args()
    torch.set_num_threads(a.threads)
    cases = []
    for make in PEERS:
        try:
            cases.append(make())
        except ImportError as error:
            print(f"skipped {make.__name__}: not installed ({error})")
    for n, k in SIZES:
        z, y = data(n, k)
        panel = ratio(ours(None), lambda z, y: torch.log_softmax(z, -1), z, y, a.rounds)
        print(f"{n:,} x {k:,}: whole panel / log_softmax = {panel:.2f}", flush=True)
        for case in cases:
            try:
                found = ratio(case.call, ours(case.shared), z, y, max(3, a.rounds // 2))
            except Exception as error:
                print(f"{n:,} x {k:,}: {case.name} failed: {type(error).__name__}: {error}")
                continue
            print(f"{n:,} x {k:,}: {case.name} / ours on the same numbers = {found:.2f}", flush=True)
    z, y = data(50_000, 10)
    scores = reduce(calibrant.predictions(z, y))
    start = time.process_time()
    evaluate_scores(scores, resampling=Resampling())
    print(f"N = 50,000: whole panel with 1,000 replicates: {time.process_time() - start:.2f} s of processor time")


if __name__ == "__main__":
    main()
