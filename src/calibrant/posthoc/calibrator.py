"""What every calibrator is: a frozen record of settings whose `fit` RETURNS the fitted map.

A subclass names itself and its map class and writes `solve`. `fit` owns what all share: the split is
checked, members are pooled for methods that take one prediction per item, and the record is attached. The settings of
a calibrator are checked in one place, by their annotations.
Cross-validation calls `solve` through `fold`, which computes no hash and checks no split.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from numbers import Real
from types import NoneType, UnionType
from typing import Any, ClassVar, Literal, Union, get_args, get_origin, get_type_hints

from torch import Tensor

from calibrant.errors import InputError, SplitError
from calibrant.functional.pooling import pool
from calibrant.functional.scores import CPU
from calibrant.posthoc.map import Chain, FitRecord, FittedMap, Pool
from calibrant.posthoc.overlap import sketch
from calibrant.types import Predictions, Split


@dataclass(frozen=True)
class Calibrator:
    """Abstract: subclass, add settings as fields with defaults, write `solve`."""

    name: ClassVar[str]
    map: ClassVar[type[FittedMap]]
    maps: ClassVar[tuple[type[FittedMap], ...]] = ()  # further map classes that `solve` may return
    takes_members: ClassVar[bool] = False  # solve understands [M, N, K]; otherwise members are pooled first
    takes_top1: ClassVar[bool] = False  # solve may understand predicted + confidence without logits
    equivariant: ClassVar[bool] = True  # permuting the classes permutes the result
    cost: ClassVar[int] = 1  # `auto` tries cheap first: 0 closed form, 1 a few numbers, 2 O(K), 3 O(K²) or a network
    candidates: ClassVar[tuple[Mapping[str, Any], ...]] = ({},)  # the settings that `auto` tries

    def solve(self, p: Predictions) -> FittedMap:
        """The map that fits these items; its record may hold a certificate."""
        raise TypeError(f"{type(self).__name__} must define solve")

    def fit(self, p: Predictions, *, allow_reuse: bool = False) -> FittedMap:
        """The fitted map with its record. Fitting on a test split is an error without `allow_reuse`."""
        refuse_test(p, allow_reuse)
        fitted = self.fold(p)
        record = replace(
            fitted.record,
            calibrator=fitted.record.calibrator or self.name,
            settings=self.settings(),
            n=p.n,
            k=p.k,
            classes=(p.classes or ()) if p.logits is not None else (),  # of a top-1 set, only those that occur
            split=p.split.value,
            data=p.origin or p.fingerprint(),
            items=sketch(p),
            reuse=p.split is Split.TEST,
        )
        return fitted.with_record(record)

    def fold(self, p: Predictions) -> FittedMap:
        """`solve` with its checks and pooling, without hash and split check: what cross-validation repeats."""
        if p.logits is None and not self.takes_top1:
            raise InputError(
                f"{self.name} needs logits or probabilities, but {p.source or 'this set'} holds only "
                f"predicted and confidence; use one of auto, {', '.join(of_top1())}"
            )
        if p.logits is not None:
            p = replace(p, labels=p.labels.to(p.logits.device))
        if p.logits is None or p.logits.ndim == 2 or self.takes_members:
            return self.solve(p).to(CPU)  # maps live there, wherever they were solved
        fitted = self.solve(replace(p, logits=pool(p.logits))).to(CPU)
        return Chain((Pool(), fitted), record=fitted.record)

    def refits(self, p: Predictions, fold: Tensor, fitted: FittedMap | None = None) -> Iterator[FittedMap]:
        """For each fold, the fit on all items but its own. Override it where the fit on all items is a shortcut."""
        for f in range(int(fold.max()) + 1):
            yield self.fold(p.take((fold != f).nonzero()[:, 0]))

    def settings(self) -> dict[str, Any]:
        return {f.name: getattr(self, f.name) for f in fields(self)}

    def __post_init__(self) -> None:
        """Check every setting against its annotation. A subclass adds its own rules with `require`."""
        kinds = _kinds(type(self))
        for f in fields(self):
            self._check_type(f.name, getattr(self, f.name), kinds[f.name])

    def _check_type(self, setting: str, value: Any, kinds: tuple[Any, ...]) -> None:
        if value is None and NoneType in kinds:
            return
        if words := _words(kinds):
            known = " or ".join(map(repr, words))
            self.require(isinstance(value, str) and value in words, setting, f"is unknown; use {known}")
        elif float in kinds or int in kinds:
            self.require(isinstance(value, Real) and not isinstance(value, bool), setting, "is not a number")
            whole = float in kinds or float(value).is_integer()  # infinity is no whole number either
            self.require(whole, setting, "is not a whole number")

    def require(self, met: bool, setting: str, rule: str) -> None:
        """Refuse the value of a setting that breaks its rule, in one line."""
        if not met:
            raise InputError(f"{self.name}: {setting}={getattr(self, setting)!r} {rule}")

    def need(self, p: Predictions, items: int, why: str) -> None:
        """Refuse fewer items than the method needs, in one line."""
        if p.n < items:
            raise InputError(f"{self.name} needs at least {items} items ({why}), these predictions have {p.n}")


def _kinds(calibrator: type[Calibrator]) -> dict[str, tuple[Any, ...]]:
    """Setting → what it may be, by its annotation: types, NoneType, Literal[…]."""
    hints = get_type_hints(calibrator).items()
    return {name: get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,) for name, hint in hints}


def _words(kinds: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(word for kind in kinds if get_origin(kind) is Literal for word in get_args(kind))


def choices(calibrator: type[Calibrator]) -> dict[str, tuple[Any, ...]]:
    """The settings that are one of several words, with those words; None where it is allowed."""
    found = {name: (_words(kinds), (None,) if NoneType in kinds else ()) for name, kinds in _kinds(calibrator).items()}
    return {name: words + none for name, (words, none) in found.items() if words}


@dataclass(frozen=True)
class Composition(Calibrator):
    """Two calibrators in a row: the second is fitted on what the first makes of the same items.

    `Composition(Temperature(), HistogramMass())`; on the command line `--method temperature+histogram_mass`.
    """

    first: Calibrator
    second: Calibrator
    map: ClassVar[type[FittedMap]] = Chain
    takes_members: ClassVar[bool] = True

    @property
    def name(self) -> str:  # type: ignore[override]
        return f"{self.first.name}+{self.second.name}"

    def solve(self, p: Predictions) -> FittedMap:
        return self.after(self.first.fold(p), p)

    def after(self, one: FittedMap, p: Predictions) -> FittedMap:
        """The composition, given the first map of these items."""
        return Chain((one, self.second.fold(one.predictions(p))))

    def settings(self) -> dict[str, Any]:
        return {"first": self.first.settings(), "second": self.second.settings()}


def of_top1() -> list[str]:
    """Names of the calibrators that can be fitted on predicted and confidence alone."""
    from calibrant.posthoc import CALIBRATORS

    return [name for name, cls in CALIBRATORS.items() if cls.takes_top1]


def refuse_test(p: Predictions, allow_reuse: bool) -> None:
    if p.split is Split.TEST and not allow_reuse:
        raise SplitError(
            f"{p.source or 'these predictions'}: split is test; fit on a calibration split "
            "(or pass allow_reuse=True, --allow-reuse, to do it on purpose)"
        )


def certified(certificate: Mapping[str, Any]) -> FitRecord:
    """A record with a certificate; `fit` adds what describes the data."""
    return FitRecord(certificate=certificate)
