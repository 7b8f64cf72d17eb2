"""The guard of every fit: would this map make things worse on items that it has not seen?

Cross-validation inside the calibration set compares the map with the identity, item by item. It flags the map if NLL
rises beyond noise (for a top-1 set: the NLL of "the label is right"), if a map that promised to keep labels changes
one, or if AUROC of confidence falls beyond noise and by more than 0.001 (a smaller fall changes no decision). It also
flags an optimum that is out of bounds. With `strict` such a map is refused; otherwise it is flagged wherever it is
shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from calibrant.errors import InputError
from calibrant.posthoc.calibrator import Calibrator
from calibrant.posthoc.crossval import Folds, HeldOut, held_out, mean_of
from calibrant.posthoc.map import FittedMap
from calibrant.types import Estimate, Predictions

MATERIAL_AUROC = 1e-3
FOLDS = 5


@dataclass(frozen=True)
class Verdict:
    """The reasons not to trust the map, and the paired held-out figures that they come from."""

    reasons: tuple[str, ...]
    nll_before: Estimate | None = None
    nll_after: Estimate | None = None
    nll_change: Estimate | None = None
    auroc_change: Estimate | None = None
    folds: int = FOLDS
    seed: int = 0
    loss_before: Tensor | None = None  # [N] of the items before the map; NaN if the label was impossible

    @property
    def ok(self) -> bool:
        return not self.reasons

    def to_dict(self) -> dict[str, Any]:
        out: dict[str, Any] = {"ok": self.ok, "reasons": list(self.reasons), "folds": self.folds, "seed": self.seed}
        for name in ("nll_before", "nll_after", "nll_change", "auroc_change"):
            estimate = getattr(self, name)
            out[name] = None if estimate is None else estimate.to_dict()
        return out


def guard(
    calibrator: Calibrator, p: Predictions, *, fitted: FittedMap | None = None, seed: int = 0, folds: int = FOLDS
) -> Verdict:
    """Judge a calibrator on these items. `fitted` is its map of all of them, if it is known already."""
    try:
        spread = Folds(p, folds, seed)
        identity, after = spread.identity, held_out(calibrator, spread, fitted)
    except InputError as error:
        return Verdict((f"could not be cross-validated ({error}), so nothing is known about unseen items",), seed=seed)
    return judge(identity, after, p, folds=folds, seed=seed)


def judge(identity: HeldOut, after: HeldOut, p: Predictions, *, folds: int = FOLDS, seed: int = 0) -> Verdict:
    """The verdict from held-out figures."""
    reasons = [f"the optimum is out of bounds ({why})" for why in after.bounds]
    group = p.group
    change = widened(mean_of(after.loss - identity.loss, group), folds)
    if change.value is not None and change.low is not None and change.low > 0:
        reasons.append(f"held-out NLL rises by {change.value:.4g} [{change.low:.4g}, {change.high:.4g}]")
    if after.labels_changed:
        reasons.append(f"{after.labels_changed} labels changed although the map promised to keep them")
    area = widened(auroc_change(identity, after, p), folds)
    if area.value is not None and area.high is not None and area.value < -MATERIAL_AUROC and area.high < 0:
        reasons.append(
            f"held-out AUROC of confidence falls by {-area.value:.4f} [{-area.high:.4f}, {-(area.low or 0):.4f}]"
        )
    losses = (mean_of(identity.loss, group), mean_of(after.loss, group))
    return Verdict(tuple(reasons), *losses, change, area, folds=folds, seed=seed, loss_before=identity.loss)


def auroc_change(identity: HeldOut, after: HeldOut, p: Predictions) -> Estimate:
    """The change of AUROC within folds, with its interval from paired influences."""
    if identity.auroc is None or after.auroc is None:
        return Estimate(None, reason="every held-out answer is right, or every one is wrong: nothing to rank")
    spread = mean_of(after.influence - identity.influence, p.group)
    assert spread.value is not None and spread.low is not None
    change, half = after.auroc - identity.auroc, spread.value - spread.low
    return Estimate(change, change - half, change + half)


def widened(estimate: Estimate, folds: int) -> Estimate:
    """Widen the interval, because the training sets of the folds overlap."""
    if estimate.value is None or estimate.low is None or estimate.high is None:
        return estimate
    low, high = (estimate.value + overlap(folds) * (end - estimate.value) for end in (estimate.low, estimate.high))
    return Estimate(estimate.value, low, high, method="normal, corrected for overlapping folds")


def overlap(folds: int) -> float:
    """√(1 + J · n_test/n_train), the factor by which errors of J-fold differences are too small (Nadeau & Bengio 2003).

    Without this factor, a needless but harmless temperature would be flagged a quarter of the time.
    """
    return float((1 + folds / (folds - 1)) ** 0.5)


def sentence(figures: Mapping[str, Any]) -> str:
    """The verdict in words, from the figures in a map's record."""
    if not figures.get("ok"):
        return "flagged: " + "; ".join(figures.get("reasons") or ["it was not guarded"])
    change = figures.get("nll_change")
    if not change or change.get("value") is None:
        return "ok: labels and ranking are kept"
    if change["high"] < 0:
        span = f"[{-change['high']:.4f}, {-change['low']:.4f}]"
        return f"ok: on held-out items NLL falls by {-change['value']:.4f} {span}"
    return f"ok, but no measurable gain: held-out NLL changes by {change['value']:+.4f}, within noise"
