"""The σ curve of PEP (PEP Fig. 1): L(σ) of the ensemble, ln L of each member, ECE and Brier along σ.

Evaluations are remembered, and data is read once and kept on the device, so that a search over σ
costs forward passes and nothing else.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from calibrant.ensembles.ensemble import LogMean, checked
from calibrant.ensembles.inputs import Untouched
from calibrant.ensembles.single import Inputs, first, moved, unpack
from calibrant.errors import InputError, SplitError
from calibrant.functional.scores import reduce
from calibrant.metrics import METRICS, Panel
from calibrant.types import Predictions, Split

if TYPE_CHECKING:
    from calibrant.ensembles.pep import PEP


@dataclass(frozen=True)
class SigmaPoint:
    """One σ: means over the calibration items; −inf log-likelihood means the network was not finite."""

    sigma: float
    log_likelihood: float  # (1/N) Σ_i ln (1/m) Σ_j p_ij, Eq. 8 as an average
    standard_error: float  # of that mean over items
    members: tuple[float, ...]  # (1/N) Σ_i ln p_ij for each member j
    ece: float | None = None
    brier: float | None = None
    auroc: float | None = None
    gain_error: float | None = None  # standard error of L(σ) − L(0), item by item: the band of the plot


class Curve:
    """L(σ) on fixed data with fixed noise; `at` evaluates a σ once and remembers it."""

    def __init__(
        self, ensemble: PEP, batches: Sequence[tuple[Inputs, Tensor]], autocast: torch.dtype | None = None
    ) -> None:
        self.ensemble, self.batches, self.autocast = ensemble, batches, autocast
        self.labels = torch.cat([y for _, y in batches])
        self.seen: dict[float, SigmaPoint] = {}
        self.passes = self.rejected = 0
        self.report: Callable[[float, int, int], None] | None = None  # (σ, member, of how many), after each pass
        self._itself: Tensor | None = None  # ln p of each item at σ = 0

    def at(self, sigma: float) -> SigmaPoint:
        if sigma not in self.seen:
            self.seen[sigma] = self._evaluate(sigma)
        return self.seen[sigma]

    def points(self, sigmas: Iterable[float] = ()) -> tuple[SigmaPoint, ...]:
        """All evaluated points in the order of σ, after evaluating `sigmas` too."""
        for sigma in sigmas:
            self.at(sigma)
        return tuple(self.seen[s] for s in sorted(self.seen))

    def rough(self, share: float, members: int) -> Curve:
        """The same curve on the first `share` of the items and with fewer members: where to look."""
        few, left = [], max(1, round(share * len(self.labels)))
        for x, y in self.batches:
            few.append((first(x, left), y[:left]))
            left -= len(few[-1][1])
            if left == 0:
                break
        curve = Curve(self.ensemble.at(0.0, members), few, self.autocast)
        curve.report = self.report
        return curve

    def _gain_error(self, sigma: float, item: Tensor) -> float:
        """Of the mean difference to the network itself; the items are the same, so most of their spread cancels."""
        if sigma == 0:
            self._itself = item
        elif self._itself is None:
            self._evaluate(0.0)
        gain = item - (item if self._itself is None else self._itself)
        return float(gain.std() / len(gain) ** 0.5) if len(gain) > 1 else torch.nan

    def _evaluate(self, sigma: float) -> SigmaPoint:
        ensemble = self.ensemble.at(sigma, members=1 if sigma == 0 else None)  # at 0 all members are one
        singles: list[float] = []
        pooled = LogMean()
        lower = torch.autocast(self.labels.device.type, dtype=self.autocast, enabled=self.autocast is not None)
        for logits in ensemble.over([(x, len(y)) for x, y in self.batches], lower):
            self.passes += 1
            if self.report is not None:
                self.report(sigma, len(singles) + 1, ensemble.size)
            if not bool(torch.isfinite(logits).all()):
                self.rejected += 1
                return SigmaPoint(sigma, -torch.inf, torch.nan, ())
            log_p = torch.log_softmax(logits.double(), -1)
            singles.append(float(log_p.gather(1, self.labels[:, None]).mean()))
            pooled.add(logits)
        panel = Panel(reduce(Predictions(labels=self.labels, logits=pooled.value(), raw=False)))
        item = panel.scores.log_p_label
        assert item is not None
        spread = float(item.std() / len(item) ** 0.5) if len(item) > 1 else torch.nan
        both = METRICS["auroc"].missing(panel.scores) is None
        return SigmaPoint(
            sigma,
            float(item.mean()),
            spread,
            tuple(singles),
            ece=float(METRICS["ece"](panel)),
            brier=float(METRICS["brier"](panel)),
            auroc=float(METRICS["auroc"](panel)) if both else None,
            gain_error=self._gain_error(sigma, item),
        )


def sigma_curve(
    ensemble: PEP,
    calibration: Iterable[Any] | tuple[Tensor, Tensor],
    device: torch.device | str | None = None,
    autocast: torch.dtype | None = None,
) -> Curve:
    """The curve of an ensemble's noise on `calibration`: a loader of (x, y, …), or a pair of tensors."""
    if _is_test(calibration):
        raise SplitError(
            "calibration data is marked test; σ must be chosen on held-out data that is not the test split"
        )
    place = torch.device(device) if device is not None else ensemble.home
    pairs = _pairs(calibration, 1000 if place.type == "cuda" else 500)
    batches = [(moved(x, place), whole(y).to(place)) for x, y in pairs]
    if not sum(len(y) for _, y in batches):
        raise InputError("the calibration data is empty")
    with torch.no_grad(), ensemble.at(0.0).member(0) as network:
        inputs, labels = batches[0]
        args, kwargs = inputs
        with Untouched()(inputs):
            k = checked(network(*args, **kwargs), len(labels)).shape[1]
    known = torch.cat([y for _, y in batches])
    lowest, highest = int(known.min()), int(known.max())
    if highest >= k or lowest < 0:
        wrong = f"reach {highest} but" if highest >= k else f"start at {lowest}, and"
        raise InputError(f"labels {wrong} the model has {k} classes, 0 … {k - 1}")
    return Curve(ensemble, batches, autocast)


def whole(labels: Any) -> Tensor:
    """Class numbers, one an item."""
    y = torch.as_tensor(labels)
    if y.ndim != 1:
        raise InputError(f"labels have the shape {tuple(y.shape)}; expected [N], a class number an item")
    if y.is_floating_point() and not bool((y == y.round()).all()):
        raise InputError("labels are not whole numbers; expected class numbers")
    return y.long()


def _is_test(data: Any) -> bool:
    """Does a loader, its data set, or what that is a subset of call itself test?"""
    while data is not None:
        if str(getattr(data, "split", "")) == Split.TEST:
            return True
        data = getattr(data, "dataset", None)
    return False


def _pairs(calibration: Iterable[Any] | tuple[Tensor, Tensor], most: int) -> Iterable[tuple[Inputs, Tensor]]:
    """Batches of at most `most` items, fewer of large ones: activations are many times an input's size."""
    if isinstance(calibration, tuple) and len(calibration) == 2 and isinstance(calibration[0], (Tensor, np.ndarray)):
        x: Any = torch.as_tensor(calibration[0])
        y: Any = torch.as_tensor(calibration[1])
        if len(x) != len(y):
            raise InputError(f"{len(x)} inputs but {len(y)} labels")
        size = max(1, min(most, 2**23 * len(x) // max(x.numel(), 1)))
        yield from ((((a,), {}), b) for a, b in zip(x.split(size), y.split(size), strict=True))
        return
    if not isinstance(calibration, Iterable):
        what = type(calibration).__name__
        raise InputError(
            f"calibration is {what}, which holds no inputs; pass a loader of (x, labels) or a pair of tensors"
        )
    for batch in calibration:
        args, kwargs, y, _ = unpack(batch)
        yield (args, kwargs), y


@contextmanager
def searching(*, show: bool) -> Iterator[Callable[[float, int, int], None] | None]:
    """What the search is at, on stderr; how many σ are left is known to nobody, so passes are counted."""
    if not show:
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(file=sys.stderr), transient=True) as bar:
        task, passes = bar.add_task("looking for σ"), 0

        def report(sigma: float, member: int, of: int) -> None:
            nonlocal passes
            passes += 1
            bar.update(task, description=f"looking for σ: at {sigma:.3g}, member {member} of {of}, {passes} passes")

        yield report
