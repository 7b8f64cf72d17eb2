"""Cross-validation of calibrators: stratified, seeded K-fold inside the calibration set.

Figures are per item and paired with those of the identity, so that their shared noise cancels. Items of one group
(image, sequence) stay in one fold, and standard errors then count groups.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence

from calibrant.errors import InputError
from calibrant.functional.ranking import TIE
from calibrant.functional.scores import CPU, Scores, merge, reduce
from calibrant.metrics.bca import sum_by_unit
from calibrant.posthoc.calibrator import Calibrator, Composition
from calibrant.posthoc.map import FittedMap, promises_label
from calibrant.posthoc.toplabel import least
from calibrant.types import Estimate, Predictions

Z95 = 1.959963984540054


@dataclass(frozen=True)
class HeldOut:
    """Held-out figures: the loss (−log p of the label) and the influence on AUROC of each item, and some totals."""

    loss: Tensor  # [N]; NaN for items whose label was impossible before the map
    influence: Tensor  # [N]; 0 in folds that have no AUROC
    auroc: float | None
    degrees: float = 0.0
    labels_changed: int = 0  # held-out labels that a map changed although it promised to keep them
    bounds: tuple[str, ...] = ()  # reasons from the certificates of maps whose optimum was out of bounds


def folds_of(p: Predictions, count: int, seed: int) -> Tensor:
    """The fold of each item, [N]. Labels are spread evenly over folds, and a group is never split."""
    g = torch.Generator().manual_seed(seed)
    if p.group is not None:
        groups = int(p.group.max()) + 1
        if groups < count:
            raise InputError(f"{groups} groups cannot be spread over {count} folds")
        return (torch.randperm(groups, generator=g) % count)[p.group.cpu()]
    if p.n < 2 * count:
        raise InputError(f"{p.n} items cannot be spread over {count} folds; cross-validation needs two items per fold")
    shuffled = torch.randperm(p.n, generator=g)
    by_label = shuffled[torch.argsort(p.labels.cpu()[shuffled], stable=True)]
    fold = torch.empty(p.n, dtype=torch.long)
    fold[by_label] = torch.arange(p.n) % count
    return fold


class Folds:
    """One assignment of items to folds, which candidates share, with the scores of each fold before any map."""

    def __init__(self, p: Predictions, count: int, seed: int) -> None:
        # nothing is reported about these items, so their hash and their ids are not needed
        self.p = replace(p, origin=p.origin or "cross-validation", ids=None)
        self.of_item = folds_of(p, count, seed)
        self.home = CPU if p.logits is None else p.logits.device  # scores stay on this device until the end
        items = [(self.of_item == f).nonzero()[:, 0] for f in range(count)]
        self.items = [rows.to(self.home) for rows in items]
        self.padded = pad_sequence(items, batch_first=True, padding_value=p.n).to(self.home)
        self._refits: dict[Calibrator, list[FittedMap]] = {}

    @cached_property
    def before(self) -> Scores:
        return reduce(self.p, classwise=False, home=self.home)

    @cached_property
    def identity(self) -> HeldOut:
        return self.figures(self.before)

    def figures(self, after: Scores) -> HeldOut:
        """The loss and the influence of each item, from its scores after the map of the other folds."""
        n = self.p.n
        loss = torch.where(torch.isinf(loss_of(self.before, n)), torch.nan, loss_of(after, n))
        auroc, influence = auroc_within(after, self.padded)
        return HeldOut(loss.cpu(), influence.cpu(), auroc)

    def refits(self, calibrator: Calibrator, fitted: FittedMap | None = None) -> list[FittedMap]:
        """The fit on all other folds, for each fold. It is made once, and shared by compositions that begin with it."""
        if calibrator not in self._refits:
            if isinstance(calibrator, Composition):
                firsts = enumerate(self.refits(calibrator.first))
                found = [calibrator.after(one, self.p.take((self.of_item != f).nonzero()[:, 0])) for f, one in firsts]
            else:
                found = list(calibrator.refits(self.p, self.of_item, fitted))
            self._refits[calibrator] = found
        return self._refits[calibrator]


def held_out(calibrator: Calibrator, folds: Folds, fitted: FittedMap | None = None) -> HeldOut:
    """Judge each fold by the fit on the other folds. `fitted` is the map of all items, if it is known."""
    p, refits = folds.p, folds.refits(calibrator, fitted)
    parts = [scored(refit, p, at, folds.home) for refit, at in zip(refits, folds.items, strict=True)]
    after = merge(parts).take(torch.argsort(torch.cat(folds.items)))
    changed = 0
    if p.members == 1:
        promised = torch.tensor([promises_label(refit) for refit in refits])[folds.of_item]
        changed = int((promised.to(folds.home) & (after.predicted != folds.before.predicted)).sum())
    return replace(
        folds.figures(after),
        degrees=sum(refit.degrees for refit in refits) / len(refits),
        labels_changed=changed,
        bounds=tuple(dict.fromkeys(reason for refit in refits for reason in bounds_of(refit))),
    )


def scored(fitted: FittedMap, p: Predictions, rows: Tensor | None = None, home: torch.device = CPU) -> Scores:
    """The scores of the mapped items, or only of `rows`. A map that only changes logits works chunk by chunk."""
    if p.logits is None or type(fitted).outcome is not FittedMap.outcome:
        return reduce(fitted.predictions(p if rows is None else p.take(rows)), classwise=False, home=home)
    logits_alone = replace(p, predicted=None, confidence=None)
    return reduce(logits_alone, classwise=False, through=fitted.apply, rows=rows, home=home)


def loss_of(scores: Scores, n: int) -> Tensor:
    """The loss of each item, [N]: −log p of the label.

    For a top-1 set it is −log p of whether the predicted label is right. A bin without errors has a confidence of
    exactly 1, which n items cannot prove, so there every confidence counts as at least `least(n)` away from 0 and 1.
    """
    if scores.log_p_label is not None:
        return -scores.log_p_label
    said = scores.confidence.clamp(least(n), 1 - least(n))
    return -torch.log(torch.where(scores.correct, said, 1 - said))


def average(runs: list[HeldOut]) -> HeldOut:
    """The mean over repeats with different folds."""
    if len(runs) == 1:
        return runs[0]
    areas = [r.auroc for r in runs if r.auroc is not None]
    return HeldOut(
        loss=torch.stack([r.loss for r in runs]).mean(0),
        influence=torch.stack([r.influence for r in runs]).mean(0),
        auroc=sum(areas) / len(areas) if areas else None,
        degrees=sum(r.degrees for r in runs) / len(runs),
        labels_changed=max(r.labels_changed for r in runs),
        bounds=tuple(dict.fromkeys(b for r in runs for b in r.bounds)),
    )


def bounds_of(fitted: FittedMap) -> list[str]:
    """The reasons in the certificates of a map and its parts why an optimum was out of bounds."""
    own = [str(fitted.record.certificate["reason"])] if fitted.record.certificate.get("bound") else []
    return own + [reason for part in getattr(fitted, "maps", ()) for reason in bounds_of(part) if reason not in own]


def auroc_within(scores: Scores, item: Tensor) -> tuple[float | None, Tensor]:
    """Return the mean AUROC within folds, and the influence of each item on it, [N] (DeLong 1988).

    `item` [F, M] holds the items of each fold; the rows of shorter folds are padded with N. A fold counts with its
    number of items, or not at all if all or none of them are right. Influences have mean 0, and their mean square / N
    is the variance of AUROC. That of a correct item is (share of errors ranked below it − AUROC) / (share of correct
    items); that of an error is the mirror image. Differences of influences give paired standard errors even if a map
    changes which items are correct.
    """
    padded = pad(scores.log_error, (0, 1), value=torch.inf)[item]
    log_error, order = padded.sort(1)  # most confident first, padding last
    item = item.gather(1, order)
    right = pad(scores.correct.double(), (0, 1))[item]
    counts = torch.stack([right, (item < scores.n).double() - right])  # [2, F, M]: correct items, errors
    run = pad((log_error.diff(dim=1) > TIE).cumsum(1), (1, 0)).expand_as(counts)
    in_run = torch.zeros_like(counts).scatter_add_(2, run, counts)
    above = (in_run.cumsum(2) - in_run / 2).gather(2, run)  # mid-rank: half of the item's own run of ties
    good, bad = counts.sum(2, keepdim=True)
    size, ranked = good + bad, (good > 0) & (bad > 0)
    errors_below = bad - above[1]
    area = (errors_below * right).sum(1, keepdim=True) / (good * bad)
    influence = torch.where(
        right > 0, (errors_below / bad - area) * size / good, (above[0] / good - area) * size / bad
    ).masked_fill_(~ranked, 0.0)
    total, weight = torch.stack([torch.where(ranked, area * size, 0.0).sum(), (size * ranked).sum()]).tolist()
    of_item = scores.log_error.new_zeros(scores.n + 1)
    of_item[item] = influence * (scores.n / weight if weight else 0.0)
    return (total / weight if weight else None), of_item[:-1]


def mean_of(values: Tensor, group: Tensor | None) -> Estimate:
    """The mean with its normal 95% interval. Groups, if there are any, are the units. NaN entries do not count."""
    kept = ~torch.isnan(values)
    n = int(kept.sum())
    if n == 0:
        return Estimate(None, reason="no item has a finite loss before the map")
    x = values[kept]
    mean = float(x.mean())
    error = standard_error(x, None if group is None else group.cpu()[kept])
    if not math.isfinite(mean):
        return Estimate(mean, mean, mean)
    return Estimate(mean, mean - Z95 * error, mean + Z95 * error)


def standard_error(x: Tensor, group: Tensor | None) -> float:
    """The standard error of the mean of x. With groups, x is summed within each group first."""
    centred = x - x.mean()
    if group is not None:
        centred = sum_by_unit(centred, group)
        units = max(2, int(torch.unique(group).numel()))
    else:
        units = max(2, len(x))
    return float((centred.square().sum() * units / (units - 1)).sqrt() / len(x))
