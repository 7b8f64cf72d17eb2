"""What every calibrator returns: a fitted, frozen map from logits to logits.

A map is a frozen dataclass; its fields are its parameters (tensors) and settings (plain JSON values),
and that is all that is saved. A subclass writes `transform`, and says whether it keeps the label.
There is no unfitted state. Apply a map with `map(logits)`, or with `map.predictions(p)`, which guard, auto, metrics
and `apply` use, because a top-label map changes a confidence in a way that logits cannot carry.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from os import PathLike
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from calibrant.display import Rows, Shown
from calibrant.errors import MapError, warn
from calibrant.functional.class_names import listed
from calibrant.functional.model_output import both_classes
from calibrant.functional.pooling import pool
from calibrant.functional.probabilities import log_probabilities, look_like_probabilities
from calibrant.functional.tensors import as_tensor
from calibrant.posthoc import overlap
from calibrant.types import Predictions


@dataclass(frozen=True)
class FitRecord:
    """What is known about a fit besides its parameters. Saved in the header of the map's folder."""

    calibrator: str = ""  # name in the table, and the settings it was fitted with
    settings: Mapping[str, Any] = field(default_factory=dict)
    n: int = 0
    k: int | None = None
    classes: tuple[str, ...] = ()  # names of the columns, if the predictions had any
    split: str = "unknown"
    data: str = ""  # content hash of the calibration data
    items: tuple[int, ...] = ()  # a sketch that recognises its items in another order or precision
    certificate: Mapping[str, Any] = field(default_factory=dict)
    guard: Mapping[str, Any] = field(default_factory=dict)
    nll_before: float | None = None  # on the calibration data itself; the guard's figures are held-out
    nll_after: float | None = None
    reuse: bool = False  # fitted on a test split, on purpose
    ranking: tuple[Mapping[str, Any], ...] = ()  # what the automatic choice compared
    cut: str = ""  # what its budget left out, in words

    def check_classes(self, p: Predictions, what: str) -> None:
        """Refuse predictions whose columns are other classes, or the same in another order."""
        if p.logits is None or not p.classes or not self.classes or p.classes == self.classes:
            return
        where = f"{p.source}: " if p.source else ""
        same = set(p.classes) == set(self.classes)
        raise MapError(
            f"{where}{what} for the classes {listed(self.classes)}, in this order; these predictions have "
            f"{listed(p.classes)}; "
            + ("put their columns in that order" if same else "use predictions of the same classes, or fit on these")
        )


@dataclass(frozen=True, eq=False)
class FittedMap(Shown):
    """Abstract: subclass, add parameters as fields, write `transform`."""

    method: ClassVar[str]
    keeps_label: ClassVar[bool]  # promise: the predicted class never changes
    record: FitRecord = field(default_factory=FitRecord, kw_only=True)

    def transform(self, logits: Tensor) -> Tensor:
        """Float64 logits [..., N, K] → logits of the same shape (a pool drops the first axis)."""
        raise TypeError(f"{type(self).__name__} must define transform")

    @property
    def k(self) -> int | None:
        """Class count the map was made for; None when it takes any."""
        return None

    @property
    def degrees(self) -> int:
        """Number of fitted parameters: what the one-standard-error rule prefers fewer of."""
        return sum(t.numel() for t in self.tensors().values())

    def __call__(self, logits: Any = None, *, probs: Any = None) -> Tensor:
        """Tensor or array of logits, or of probabilities of all classes (`probs`) → float64 logits.

        With two classes, the logits may be the one column of class 1 ([N] or [N, 1]); the result has two columns.
        """
        if isinstance(logits, Predictions):
            raise MapError("a map is called with logits or probs=; of Predictions, use map.predictions(p)")
        if (logits is None) == (probs is None):
            raise MapError("pass a map either logits or probs=")
        if probs is not None:
            logits = log_probabilities(as_tensor(probs, "probs"))
            return self.apply(logits)
        z = logits if isinstance(logits, Tensor) else as_tensor(logits, "logits")
        if z.ndim > 1 and z.shape[-1] > 1 and look_like_probabilities(z, binary=False):
            warn(
                "these logits look like probabilities, which a map would change wrongly; if they are, call map(probs=…)"
            )
        return self.apply(z)

    def apply(self, z: Tensor) -> Tensor:
        """`map(logits)` without the doubt whether they are logits, which is said where they are read."""
        return self.to(z.device).transform(self.columns(z).double())

    def predictions(self, p: Predictions) -> Predictions:
        """The same items after the map. Top-label maps override this to set `predicted`/`confidence`."""
        if p.logits is None:
            raise MapError(f"{self.method} needs logits or probabilities, but {p.source or 'this set'} is top-1 only")
        return self.mapped(p, self.apply(p.logits))

    def mapped(
        self, p: Predictions, logits: Tensor | None, predicted: Tensor | None = None, confidence: Tensor | None = None
    ) -> Predictions:
        """The items with the result of the map. A confidence set by an earlier map is always replaced."""
        self.check_names(p)
        return replace(
            p,
            logits=logits,
            predicted=predicted,
            confidence=confidence,
            raw=False,
            origin=self.origin(p),
            fitted_on=self.record.data or p.fitted_on,
        )

    def origin(self, p: Predictions) -> str:
        """Content hash of what the map is applied to. If these are the calibration items again, it is their hash."""
        own = p.origin or p.fingerprint()
        came_back = own != self.record.data and p.n == self.record.n and not p.origin
        return self.record.data if came_back and self.overlap(p) >= overlap.SAME else own

    def overlap(self, p: Predictions) -> float:
        """Share of the map's calibration items that are among these; 0 where that cannot be known."""
        return overlap.share(self.record.items, p)

    @property
    def classes(self) -> int | None:
        """The number of classes it was fitted for, even if the map can be applied to any number."""
        return self.record.k if self.k is None else self.k

    def check_names(self, p: Predictions) -> None:
        self.record.check_classes(p, f"this {self.record.calibrator or self.method} map was fitted")

    def columns(self, logits: Tensor) -> Tensor:
        """[..., K], checked; for a map of two classes, one column becomes two."""
        if self.classes == 2:
            logits = both_classes(logits)
        self.check(logits)
        return logits

    def check(self, logits: Tensor) -> None:
        """Refuse predictions with another number of classes than the map was fitted for."""
        expected = self.classes
        if expected is not None and logits.shape[-1] != expected:
            raise MapError(
                f"this {self.record.calibrator or self.method} map was fitted for {expected} classes, "
                f"the predictions have {logits.shape[-1]}; fit one on predictions of the same classes"
            )

    def to(self, device: torch.device) -> Self:
        """The same map with its tensors on the device."""
        own = FittedMap.tensors(self)  # a chain has none: its parts move themselves
        moved: dict[str, Any] = {name: t.to(device) for name, t in own.items() if t.device != device}
        return replace(self, **moved) if moved else self

    def tensors(self) -> dict[str, Tensor]:
        """Parameters by field name, what safetensors stores."""
        return {f.name: getattr(self, f.name) for f in fields(self) if isinstance(getattr(self, f.name), Tensor)}

    def settings(self) -> dict[str, Any]:
        """Everything else by field name, what the JSON header stores."""
        return {
            f.name: getattr(self, f.name)
            for f in fields(self)
            if f.name != "record" and not isinstance(getattr(self, f.name), Tensor)
        }

    @classmethod
    def restore(cls, tensors: Mapping[str, Tensor], settings: Mapping[str, Any], record: FitRecord) -> Self:
        return cls(**tensors, **settings, record=record)

    def summary(self) -> dict[str, Any]:
        """Parameters for people and `--json`: {"temperature": 1.7}. Override it where the tensors are hard to read."""
        return {
            name: t.tolist() if t.numel() <= 32 else f"{tuple(t.shape)} values" for name, t in self.tensors().items()
        }

    def _shown(self) -> tuple[str, Rows]:
        r = self.record
        rows = [(name, _brief(value)) for name, value in self.summary().items()]
        if r.n:
            rows.append(("fitted on", f"{r.n:,} items of split {r.split}"))
        if r.nll_before is not None and r.nll_after is not None:
            rows.append(("NLL there", f"{r.nll_before:.4f} → {r.nll_after:.4f}"))
        if r.guard:
            rows.append(("guard", "ok" if r.guard.get("ok") else "; ".join(r.guard.get("reasons", ()))))
        return f"{r.calibrator or self.method} map", rows

    def save(self, folder: str | PathLike[str]) -> Path:
        """Write the map to a folder, whole or not at all; `calibrant.load(folder)` restores it bit for bit."""
        from calibrant.posthoc.storage import save  # here, because storage imports this module

        return save(self, folder)

    def with_record(self, record: FitRecord) -> Self:
        return replace(self, record=record)


@dataclass(frozen=True, eq=False)
class Identity(FittedMap):
    """Leaves logits alone: the candidate that every other map has to beat."""

    method: ClassVar[str] = "identity"
    keeps_label: ClassVar[bool] = True

    def transform(self, logits: Tensor) -> Tensor:
        return logits

    def predictions(self, p: Predictions) -> Predictions:
        if p.logits is not None:
            return super().predictions(p)
        return replace(p, origin=self.origin(p), fitted_on=self.record.data or p.fitted_on)


@dataclass(frozen=True, eq=False)
class Pool(FittedMap):
    """[M, N, K] → [N, K], mean probability: pooling is a map, so its order against others is a choice."""

    method: ClassVar[str] = "pool"
    keeps_label: ClassVar[bool] = True

    def transform(self, logits: Tensor) -> Tensor:
        return pool(logits) if logits.ndim == 3 else logits


@dataclass(frozen=True, eq=False)
class Chain(FittedMap):
    """Maps applied left to right."""

    maps: tuple[FittedMap, ...]
    method: ClassVar[str] = "chain"
    keeps_label: ClassVar[bool] = False  # depends on the parts: see `promises_label`

    @property
    def k(self) -> int | None:
        return next((m.k for m in self.maps if m.k is not None), None)

    @property
    def degrees(self) -> int:
        return sum(m.degrees for m in self.maps)

    def transform(self, logits: Tensor) -> Tensor:
        for each in self.maps:
            logits = each.apply(logits)
        return logits

    def settings(self) -> dict[str, Any]:
        return {}

    def tensors(self) -> dict[str, Tensor]:
        return {f"{i}.{name}": t for i, m in enumerate(self.maps) for name, t in m.tensors().items()}

    def summary(self) -> dict[str, Any]:
        return {name: value for m in self.maps for name, value in m.summary().items()}

    def predictions(self, p: Predictions) -> Predictions:
        if p.logits is not None:
            self.check(p.logits)
        self.check_names(p)
        origin = self.origin(p)
        for each in self.maps:
            p = each.predictions(p)
        return replace(p, origin=origin, fitted_on=self.record.data or p.fitted_on)


def _brief(value: Any) -> str:
    """A parameter as text: numbers with four digits, a long list by its length."""
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list):
        return ", ".join(map(_brief, value)) if len(value) <= 6 else f"{len(value)} values"
    return str(value)


def promises_label(m: FittedMap) -> bool:
    return all(promises_label(each) for each in m.maps) if isinstance(m, Chain) else m.keeps_label


def still_impossible(out: Tensor, logits: Tensor) -> Tensor:
    """A class with logit −inf stays impossible after a map that mixes classes."""
    return out.masked_fill(torch.isneginf(logits), -torch.inf)
