"""What `smoothing_runs` measures of a trained network: SS Fig. 3 (against ensemble size), the claim, SS Fig. 9.

curve        NLL, accuracy, ECE, AUROC of MC dropout with 1 … M members, pooled as they come: one pass over members
claim        "2 with smoothing ≈ 50 without": paired on the same test items, with its interval; over seeds too
corrupted    the same under corruptions × severities, for a few ensemble sizes, the items resampled jointly
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.workers import once
from calibrant.attacks.store import tensor_hash
from calibrant.data import Data
from calibrant.data.batches import Batches
from calibrant.ensembles.dropout import MCDropout
from calibrant.ensembles.ensemble import LogMean, evaluating
from calibrant.functional.inputs import predictions
from calibrant.functional.scores import Scores, reduce
from calibrant.metrics.compare import compare
from calibrant.metrics.conventions import Resampling
from calibrant.training.evaluate import summary
from calibrant.training.recipe import digest
from calibrant.types import Predictions, Split

METRICS = ("nll", "accuracy", "ece", "auroc")
FEW, MANY = 2, 50
"""The claim's ensemble sizes: with smoothing, and without."""
BATCH = 1000


@dataclass(frozen=True)
class Network:
    """A trained network on its device, with what its inputs look like and how it computes."""

    model: nn.Module
    data: Data
    device: torch.device
    bfloat16: bool = False
    channels_last: bool = True
    where: tuple[str, ...] | None = None  # the dropouts that are sampled; None: all

    def batches(self, x: Tensor, y: Tensor) -> list[Tensor]:
        part = replace(self.data[Split.TEST], x=x, y=y, index=torch.arange(len(y)))
        options: dict[str, Any] = {"mean": self.data.mean, "std": self.data.std, "channels_last": self.channels_last}
        return [batch for batch, _, _ in Batches(part, BATCH, device=self.device, **options)]

    def autocast(self) -> AbstractContextManager[Any]:
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.bfloat16)

    def members(self, batches: Sequence[Tensor], members: int, seed: int) -> Iterator[Tensor]:
        """Member after member, logits [N, K] in float32; one member: the network as it is, dropout off."""
        if members == 1:
            with torch.no_grad(), evaluating(self.model) as network, self.autocast():
                yield torch.cat([network(x).float() for x in batches])
            return
        for logits in MCDropout(self.model, members=members, seed=seed, where=self.where).over(
            batches, self.autocast()
        ):
            yield logits.float()


@dataclass(frozen=True)
class Curve:
    """Metrics by ensemble size 1 … M, and the pooled predictions of some sizes."""

    rows: Mapping[str, list[float | None]]
    kept: Mapping[int, Predictions] = field(default_factory=dict)


def pooled(members: Iterable[Tensor]) -> Iterator[Tensor]:
    """The log of the mean probability of the first 1, 2, … members."""
    mean = LogMean()
    for logits in members:
        mean.add(logits)
        yield mean.value()


def curve(
    network: Network, x: Tensor, y: Tensor, members: int, seed: int, keep: Sequence[int] = (1, FEW, MANY)
) -> Curve:
    rows: dict[str, list[float | None]] = {name: [] for name in METRICS}
    kept: dict[int, Predictions] = {}
    for size, log_p in enumerate(pooled(network.members(network.batches(x, y), members, seed)), 1):
        p = predictions(log_p.cpu(), y, split=Split.TEST, classes=network.data.classes, raw=members == 1)
        for name, value in summary(p, METRICS).items():
            rows[name].append(value)
        if size in keep or size == members:
            kept[size] = replace(p, logits=None if p.logits is None else p.logits.float())
    return Curve(rows, kept)


def deep_curve(members: Sequence[Predictions]) -> dict[str, list[float | None]]:
    """Metrics of the first 1, 2, … networks pooled."""
    rows: dict[str, list[float | None]] = {name: [] for name in METRICS}
    for log_p in pooled(p.logits for p in members if p.logits is not None):
        for name, value in summary(replace(members[0], logits=log_p, raw=False), METRICS).items():
            rows[name].append(value)
    return rows


def claim(plain: Curve, smooth: Curve) -> dict[str, Any]:
    """FEW members with smoothing against MANY (or as many as there are) without, on the same items."""
    few, many = min(FEW, max(smooth.kept)), max(plain.kept)
    found = compare(plain.kept[many], smooth.kept[few], metrics=METRICS, names=(f"{many} plain", f"{few} smooth"))
    target = plain.rows["nll"][many - 1]
    assert target is not None
    enough = [n for n, nll in enumerate(smooth.rows["nll"], 1) if nll is not None and nll <= target]
    return {
        "smooth_members": few,
        "plain_members": many,
        "difference": "smooth − plain, items resampled in pairs",
        "metrics": found.to_dict()["metrics"],
        "smallest_smooth_ensemble_as_good": enough[0] if enough else None,
    }


def nll_of_items(p: Predictions) -> Tensor:
    assert p.logits is not None
    return -torch.log_softmax(p.logits.double(), -1).gather(1, p.labels[:, None])[:, 0]


def claim_over_seeds(differences: Tensor, level: float = 0.95) -> dict[str, Any]:
    """Of per-item NLL differences [S, N]: their mean, its interval over seeds and items both, and what that says.

    The means of the seeds and the means of the items each have their own Student's t; squares of the two widths add.
    (A bootstrap of three seeds covers 79 % where it says 95 %: it takes two thirds of their variance, and a normal for
    the t of two degrees of freedom.)
    """
    from scipy.stats import t

    def half(means: Tensor) -> float:
        n = len(means)
        return 0.0 if n < 2 else float(t.ppf((1 + level) / 2, n - 1)) * float(means.std()) / n**0.5

    seeds, mean = len(differences), differences.mean()
    width = (half(differences.mean(1)) ** 2 + half(differences.mean(0)) ** 2) ** 0.5
    low, high = float(mean) - width, float(mean) + width
    verdict = "better" if high < 0 else "worse" if low > 0 else "not told apart"
    said = "Student's t over seeds and over items, squares added" if seeds > 1 else "one seed: items alone"
    return {"nll": float(mean), "low": low, "high": high, "verdict": verdict, "seeds": seeds, "interval": said}


def corruptions(
    x: Tensor, folder: Path, device: torch.device, names: Sequence[str] | None, severities: Sequence[int]
) -> dict[tuple[str, int], Tensor]:
    """(corruption, severity) → the images x under it, seed 0: made once a folder, whoever asks first."""
    from calibrant.shifts import SHIFTS, corrupt

    cells = [(name, severity) for name in names or SHIFTS for severity in severities]
    key = digest({"x": tensor_hash(x), "cells": cells})[:12]

    def make(path: Path) -> None:
        found = np.lib.format.open_memmap(path, "w+", np.uint8, (len(cells), *x.shape))
        for i, (name, severity) in enumerate(cells):
            found[i] = corrupt(x.to(device), name, severity, 0).cpu().numpy()
        found.flush()

    made = np.load(once(folder / f"corrupted-{key}.npy", make), mmap_mode="r", allow_pickle=False)
    return {cell: torch.from_numpy(np.array(made[i])) for i, cell in enumerate(cells)}


def corrupted(
    network: Network, images: Mapping[tuple[str, int], Tensor], y: Tensor, sizes: Sequence[int], seed: int
) -> dict[str, Any]:
    """By ensemble size: the aggregates over all corruptions and over SS's 15, plain means with intervals (Fig. 9)."""
    from calibrant.metrics.corruption import corruption_report
    from calibrant.shifts import SUBSETS

    cells: dict[int, dict[tuple[str, int], Scores]] = {size: {} for size in sizes}
    for cell, shifted in images.items():
        members = network.members(network.batches(shifted, y), max(sizes), seed)
        for size, log_p in enumerate(pooled(members), 1):
            if size in cells:
                cells[size][cell] = reduce(predictions(log_p.cpu(), y))
    out: dict[str, Any] = {"items": len(y), "severities": sorted({severity for _, severity in images})}
    for size, found in cells.items():
        report = corruption_report(found, resampling=Resampling(seed, 500)).to_dict()
        main = {key: scores for key, scores in found.items() if key[0] in SUBSETS["15"]}
        fifteen = corruption_report(main, resampling=Resampling(seed, 500)).to_dict()["means"] if main else {}
        out[str(size)] = {"all": report["means"], "fifteen": fifteen, "cells": report["cells"]}
    return out
