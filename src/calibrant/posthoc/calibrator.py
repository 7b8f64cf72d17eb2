"""What every calibrator is: a frozen record of settings whose `fit` RETURNS the fitted map.

A subclass has a name and a map class, and writes `solve`. `fit` does what all calibrators share: it checks the split,
pools members for methods that take one prediction per item, and attaches the record. Settings are checked by their
annotations. Cross-validation calls `fit_map`, which computes no hash and checks no split.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

from torch import Tensor

from calibrant.errors import InputError, SplitError
from calibrant.functional.pooling import pool
from calibrant.functional.scores import CPU
from calibrant.functional.settings import convert
from calibrant.posthoc.map import Chain, FitRecord, FittedMap, Pool
from calibrant.posthoc.overlap import sketch
from calibrant.types import Predictions, Split


@dataclass(frozen=True)
class Calibrator:
    """Abstract: subclass it, add settings as fields with defaults, and write `solve`."""

    name: ClassVar[str]
    map: ClassVar[type[FittedMap]]
    maps: ClassVar[tuple[type[FittedMap], ...]] = ()  # further map classes that `solve` may return
    takes_members: ClassVar[bool] = False  # `solve` takes [M, N, K]; otherwise members are pooled first
    takes_top1: ClassVar[bool] = False  # `solve` takes predicted + confidence without logits
    cost: ClassVar[int] = 1  # `auto` tries 0 first: 0 closed form, 1 a few numbers, 2 O(K), 3 O(K²) or a network
    candidates: ClassVar[tuple[Mapping[str, Any], ...]] = ({},)  # the settings that `auto` tries

    def solve(self, p: Predictions) -> FittedMap:
        """Fit the map to these items. Its record may hold a certificate."""
        raise TypeError(f"{type(self).__name__} must define solve")

    def fit(self, p: Predictions, *, allow_reuse: bool = False) -> FittedMap:
        """Return the fitted map with its record. A test split is refused unless `allow_reuse` is true."""
        refuse_test(p, allow_reuse)
        fitted = self.fit_map(p)
        record = replace(
            fitted.record,
            calibrator=fitted.record.calibrator or self.name,
            settings=self.settings(),
            reuse=p.split is Split.TEST,
            **described(p),
        )
        return replace(fitted, record=record)

    def fit_map(self, p: Predictions) -> FittedMap:
        """Fit without computing a hash and without checking the split, as cross-validation does many times."""
        if p.logits is None and not self.takes_top1:
            raise InputError(
                f"{self.name} needs logits or probabilities, but {p.source or 'this set'} holds only "
                f"predicted and confidence; use one of auto, {', '.join(of_top1())}"
            )
        if p.logits is not None:
            p = replace(p, labels=p.labels.to(p.logits.device))
        if p.logits is None or p.logits.ndim == 2 or self.takes_members:
            return self.solve(p).to(CPU)  # a map is kept on the CPU, wherever it was solved
        fitted = self.solve(replace(p, logits=pool(p.logits))).to(CPU)
        return Chain((Pool(), fitted), record=fitted.record)

    def refits(self, p: Predictions, fold: Tensor, fitted: FittedMap | None = None) -> Iterator[FittedMap]:
        """Yield the fit on all items except those of each fold. Override it if the fit on all items is a shortcut."""
        for f in range(int(fold.max()) + 1):
            yield self.fit_map(p.take((fold != f).nonzero()[:, 0]))

    def settings(self) -> dict[str, Any]:
        return {f.name: getattr(self, f.name) for f in fields(self)}

    def __post_init__(self) -> None:
        """Check every setting against its annotation. A subclass adds rules with `require`."""
        convert(self, f"{self.name}: ")

    def require(self, met: bool, setting: str, rule: str) -> None:
        """Refuse the value of a setting that breaks a rule."""
        if not met:
            raise InputError(f"{self.name}: {setting}={getattr(self, setting)!r} {rule}")

    def need(self, n: int, items: int, why: str) -> None:
        """Refuse n items if the method needs more."""
        if n < items:
            raise InputError(f"{self.name} needs at least {items} items ({why}), these predictions have {n}")


@dataclass(frozen=True)
class Composition(Calibrator):
    """Two calibrators in a row: the second is fitted to the result of the first on the same items.

    `Composition(Temperature(), HistogramMass())` is `--method temperature+histogram_mass` on the command line.
    """

    first: Calibrator
    second: Calibrator
    map: ClassVar[type[FittedMap]] = Chain
    takes_members: ClassVar[bool] = True

    @property
    def name(self) -> str:  # type: ignore[override]
        return f"{self.first.name}+{self.second.name}"

    def solve(self, p: Predictions) -> FittedMap:
        return self.after(self.first.fit_map(p), p)

    def after(self, one: FittedMap, p: Predictions) -> FittedMap:
        """Return the composition for these items, given its first map."""
        return Chain((one, self.second.fit_map(one.predictions(p))))

    def settings(self) -> dict[str, Any]:
        return {"first": self.first.settings(), "second": self.second.settings()}


def of_top1() -> list[str]:
    """The names of the calibrators that can be fitted on predicted and confidence alone."""
    from calibrant.posthoc import CALIBRATORS

    return [name for name, cls in CALIBRATORS.items() if cls.takes_top1]


def refuse_test(p: Predictions, allow_reuse: bool) -> None:
    """Refuse a test split, unless `allow_reuse` is true."""
    if p.split is Split.TEST and not allow_reuse:
        raise SplitError(
            f"{p.source or 'these predictions'}: split is test; fit on a calibration split "
            "(or pass allow_reuse=True, --allow-reuse, to do it on purpose)"
        )


def described(p: Predictions) -> dict[str, Any]:
    """What a record says about the data."""
    return {
        "n": p.n,
        "k": p.k,
        "classes": (p.classes or ()) if p.logits is not None else (),  # a top-1 set knows only the classes that occur
        "split": p.split.value,
        "data": p.origin or p.fingerprint(),
        "items": sketch(p),
    }


def certified(certificate: Mapping[str, Any]) -> FitRecord:
    """Return a record with a certificate. `fit` adds the description of the data."""
    return FitRecord(certificate=certificate)
