"""The σ curve of PEP (PEP Fig. 1): L(σ) of the ensemble, ln L of each member, ECE and Brier score along σ.

Evaluations are remembered, and the data are read once and kept on the device, so that a search over σ costs forward
passes and nothing else.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from calibrant.ensembles.ensemble import LogMean, checked
from calibrant.ensembles.inputs import Inputs, batches_of, copied, first, moved, unpack
from calibrant.errors import InputError, SplitError
from calibrant.functional.scores import reduce
from calibrant.metrics import METRICS, Panel
from calibrant.types import Predictions, Split

if TYPE_CHECKING:
    from calibrant.ensembles.pep import PEP


@dataclass(frozen=True)
class SigmaPoint:
    """The means over the calibration items at one σ. A log-likelihood of −inf means that the network was not finite."""

    sigma: float
    log_likelihood: float  # (1/N) Σ_i ln (1/m) Σ_j p_ij, Eq. 8 as an average
    standard_error: float  # of that mean over items
    members: tuple[float, ...]  # (1/N) Σ_i ln p_ij for each member j
    ece: float | None = None
    brier: float | None = None
    auroc: float | None = None
    gain_error: float | None = None  # standard error of L(σ) − L(0) over paired items: the band of the plot


class Curve:
    """L(σ) on fixed data with fixed noise. `at` evaluates each σ once and remembers it."""

    def __init__(
        self,
        ensemble: PEP,
        batches: Sequence[tuple[Inputs, Tensor]],
        autocast: torch.dtype | None = None,
        class_axis: int | None = None,
        ignore_index: int | None = None,
    ) -> None:
        self.ensemble, self.batches, self.autocast = ensemble, batches, autocast
        self.class_axis, self.ignore_index = class_axis, ignore_index
        labels = torch.cat([y.reshape(-1) for _, y in batches])
        self.kept = has_class(labels, ignore_index).nonzero()[:, 0]  # the rows of a pass that count
        self.labels = labels[self.kept]
        pixels = torch.cat([torch.full((len(y),), y[:1].numel(), device=labels.device) for _, y in batches])
        self.image = torch.arange(len(pixels), device=labels.device).repeat_interleave(pixels)[self.kept]
        self.seen: dict[float, SigmaPoint] = {}
        self.passes = self.rejected = 0
        self.report: Callable[[float, int, int], None] | None = None  # (σ, member, members), called after each pass
        self._at_zero: Tensor | None = None  # ln p of each item at σ = 0

    def at(self, sigma: float) -> SigmaPoint:
        if sigma not in self.seen:
            self.seen[sigma] = self._evaluate(sigma)
        return self.seen[sigma]

    def points(self, sigmas: Iterable[float] = ()) -> tuple[SigmaPoint, ...]:
        """Evaluate `sigmas` and return all points evaluated so far, in the order of σ."""
        for sigma in sigmas:
            self.at(sigma)
        return tuple(self.seen[s] for s in sorted(self.seen))

    def rough(self, share: float, members: int) -> Curve:
        """Return a rough curve, from the first `share` of the items and with fewer members, to find where to search."""
        few, left = [], max(1, round(share * len(self.labels)))
        for x, y in self.batches:
            labels = has_class(y, self.ignore_index).reshape(len(y), -1).sum(1)
            n = min(len(y), 1 + int((labels.cumsum(0) < left).sum()))  # whole images, until there are enough labels
            few.append((first(x, n), y[:n]))
            left -= int(labels[:n].sum())
            if left <= 0:
                break
        curve = Curve(self.ensemble.at(0.0, members), few, self.autocast, self.class_axis, self.ignore_index)
        curve.report = self.report
        return curve

    def _gain_error(self, sigma: float, item: Tensor) -> float:
        """Return the standard error of the mean gain over the network itself. Items are paired, so most of their spread
        cancels."""
        if sigma == 0:
            self._at_zero = item
        elif self._at_zero is None:
            self._evaluate(0.0)
        return self._error(item - (item if self._at_zero is None else self._at_zero))

    def _error(self, values: Tensor) -> float:
        """Return the standard error of the mean. The pixels of an image are alike, so images count as the sample."""
        images = int(self.image.diff().count_nonzero()) + 1
        if images < 2:
            return torch.nan
        image = self.image.to(values.device)  # the scores of few items are computed on the CPU
        total = values.new_zeros(int(image.max()) + 1).index_add_(0, image, values - values.mean())
        return float((total.square().sum() * images / (images - 1)).sqrt() / len(values))

    def _evaluate(self, sigma: float) -> SigmaPoint:
        ensemble = self.ensemble.at(sigma, members=1 if sigma == 0 else None)  # at σ = 0 all members are equal
        singles: list[float] = []
        pooled = LogMean()
        lower = torch.autocast(self.labels.device.type, dtype=self.autocast, enabled=self.autocast is not None)
        for rows in ensemble.over([(x, y.shape) for x, y in self.batches], lower, self.class_axis):
            self.passes += 1
            logits = rows[self.kept]
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
        both = METRICS["auroc"].missing(panel) is None
        return SigmaPoint(
            sigma,
            float(item.mean()),
            self._error(item),
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
    *,
    class_axis: int | None = None,
    ignore_index: int | None = None,
) -> Curve:
    """Return the curve of an ensemble's noise on `calibration`: a loader of (x, y, …), or a pair of tensors.

    Labels may be maps [N, H, W]; pixels labelled `ignore_index` do not count.
    """
    if _is_test(calibration):
        raise SplitError(
            "calibration data is marked test; σ must be chosen on held-out data that is not the test split"
        )
    place = torch.device(device) if device is not None else ensemble.home
    pairs = _pairs(calibration, 1000 if place.type == "cuda" else 500)
    with torch.random.fork_rng(devices=[]):  # a DataLoader draws a seed for its workers from the global generator
        batches = [(moved(x, place), class_numbers(y).to(place)) for x, y in pairs]
    known = torch.cat([y[has_class(y, ignore_index)] for _, y in batches] or [torch.zeros(0)])
    if not len(known):
        raise InputError("the calibration data is empty, or every label is ignored; give labelled items")
    with torch.no_grad(), ensemble.at(0.0).member(0) as network:
        (args, kwargs), labels = copied(batches[0])
        k = checked(network(*args, **kwargs), labels.shape, ensemble.axis(class_axis)).shape[-1]
    lowest, highest = int(known.min()), int(known.max())
    if highest >= k or lowest < 0:
        wrong = f"reach {highest} but" if highest >= k else f"start at {lowest}, and"
        remedy = "" if labels.ndim == 1 else "; pass it as ignore_index= if it marks pixels without a class"
        raise InputError(f"labels {wrong} the model has {k} classes, 0 … {k - 1}{remedy}")
    return Curve(ensemble, batches, autocast, class_axis, ignore_index)


def has_class(labels: Tensor, ignore_index: int | None) -> Tensor:
    """Return which labels are those of a class, as a mask."""
    return torch.ones_like(labels, dtype=torch.bool) if ignore_index is None else labels != ignore_index


def class_numbers(labels: Any) -> Tensor:
    """Return the labels as class numbers, one per item or one per pixel."""
    y = torch.as_tensor(labels)
    if y.ndim < 1:
        raise InputError("labels are a single number; expected [N], or maps [N, H, W]")
    if y.is_floating_point() and not bool((y == y.round()).all()):
        raise InputError("labels are not whole numbers; expected class numbers")
    return y.long()


def _is_test(data: Any) -> bool:
    """Return whether a loader, its data set, or the data set behind a subset is marked as the test split."""
    while data is not None:
        if str(getattr(data, "split", "")) == Split.TEST:
            return True
        data = getattr(data, "dataset", None)
    return False


def _pairs(calibration: Iterable[Any] | tuple[Tensor, Tensor], most: int) -> Iterable[tuple[Inputs, Tensor]]:
    """Yield batches of at most `most` items, and fewer if items are large, because activations need more memory."""
    for batch in batches_of(calibration, most):
        args, kwargs, y, _ = unpack(batch)
        yield (args, kwargs), y


@contextmanager
def search_progress(*, show: bool) -> Iterator[Callable[[float, int, int], None] | None]:
    """Show the progress of the search on stderr. How many σ are left is unknown, so it counts passes."""
    if not show:
        yield None
        return
    from rich.console import Console

    passes = count(1)
    with Console(file=sys.stderr).status("looking for σ") as status:
        yield lambda sigma, member, of: status.update(
            f"looking for σ: at {sigma:.3g}, member {member} of {of}, {next(passes)} passes"
        )
