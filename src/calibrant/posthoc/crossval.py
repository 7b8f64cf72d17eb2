"""Cross-validation of calibrators: stratified, seeded K-fold inside the calibration set.

Figures are per item and paired with those of the identity, so that their shared noise cancels. Items of one group
(image, sequence) stay in one fold, and standard errors then count groups.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from calibrant.errors import InputError
from calibrant.functional.ranking import rank
from calibrant.functional.scores import CPU, Scores, reduce
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
        self.items = [(self.of_item == f).nonzero()[:, 0].to(self.home) for f in range(count)]
        self._refits: dict[Calibrator, list[FittedMap]] = {}

    @cached_property
    def before(self) -> list[Scores]:
        whole = reduce(self.p, classwise=False, home=self.home)
        return [whole.take(at) for at in self.items]

    @cached_property
    def identity(self) -> HeldOut:
        return _held_out(self, self.before)

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
    p, count = folds.p, len(folds.items)
    degrees, changed, bounds, after = 0.0, 0, [], []
    for refit, at, before in zip(folds.refits(calibrator, fitted), folds.items, folds.before, strict=True):
        after.append(scored(refit, p, at, folds.home))
        degrees += refit.degrees / count
        if promises_label(refit) and p.members == 1:
            changed += int((after[-1].predicted != before.predicted).sum())
        bounds += bounds_of(refit)
    return replace(
        _held_out(folds, after), degrees=degrees, labels_changed=changed, bounds=tuple(dict.fromkeys(bounds))
    )


def _held_out(folds: Folds, scores: Sequence[Scores]) -> HeldOut:
    """The figures from the scores of each fold."""
    n = folds.p.n
    loss = torch.full((n,), torch.nan, dtype=torch.float64, device=folds.home)
    influence = torch.zeros_like(loss)
    areas: list[tuple[float, int]] = []
    for at, before, after in zip(folds.items, folds.before, scores, strict=True):
        loss[at] = torch.where(torch.isinf(loss_of(before, n)), torch.nan, loss_of(after, n))
        area = auroc_influence(after)
        if area is not None:
            influence[at] = area[1]
            areas.append((area[0], len(at)))
    weight = sum(n for _, n in areas)
    auroc = sum(a * n for a, n in areas) / weight if weight else None
    influence *= n / weight if weight else 0.0
    return HeldOut(loss.cpu(), influence.cpu(), auroc)


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


def auroc_influence(scores: Scores) -> tuple[float, Tensor] | None:
    """Return AUROC and the influence of each item on it, or None if all or none are right (DeLong 1988).

    Influences have mean 0, and their mean square / N is the variance of AUROC. That of a correct item is (share of
    errors ranked below it − AUROC) / (share of correct items); that of an error is the mirror image. Differences of
    influences give paired standard errors even if a map changes which items are correct.
    """
    good, bad = scores.right, scores.n - scores.right
    if not good or not bad:
        return None
    ranking = rank(scores.log_error)  # most confident first
    hit = scores.correct[ranking.order].double()
    in_run = hit.new_zeros(ranking.runs, 2).index_add_(0, ranking.run, torch.stack([hit, 1 - hit], 1))
    above = torch.cumsum(in_run, 0) - in_run / 2  # mid-rank: half of the item's own run of ties
    errors_below = (bad - above[:, 1])[ranking.run] / bad
    correct_above = above[:, 0][ranking.run] / good
    area = float((errors_below * hit).sum() / good)
    influence = torch.empty_like(hit)
    influence[ranking.order] = torch.where(
        hit > 0, (errors_below - area) * scores.n / good, (correct_above - area) * scores.n / bad
    )
    return area, influence


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
