"""What every calibrator returns: a fitted, frozen map from logits to logits.

A map is a frozen dataclass. Its fields are its parameters (tensors) and its settings (plain JSON values), and only
these are saved. A subclass writes `transform` and says whether the map keeps the label. There is no unfitted state.

`map(logits)` gives logits. `map.predictions(p)` gives predictions, and is what the guard, `auto`, the metrics and
`apply` use, because a top-label map sets a confidence that logits cannot carry.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
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
    """What is known about a fit besides its parameters. It is saved in the header of the map's folder."""

    calibrator: str = ""  # its name in the table; `settings` are those it was fitted with
    settings: Mapping[str, Any] = field(default_factory=dict)
    n: int = 0
    k: int | None = None
    classes: tuple[str, ...] = ()  # names of the columns, if the predictions had any
    split: str = "unknown"
    data: str = ""  # content hash of the calibration data
    items: tuple[int, ...] = ()  # a sketch that recognises the same items in another order or precision
    certificate: Mapping[str, Any] = field(default_factory=dict)
    guard: Mapping[str, Any] = field(default_factory=dict)
    nll_before: float | None = None  # on the calibration data itself; the figures of the guard are held-out
    nll_after: float | None = None
    reuse: bool = False  # fitted on a test split, on purpose
    ranking: tuple[Mapping[str, Any], ...] = ()  # what the automatic choice compared
    cut: str = ""  # what the budget of the automatic choice left out, in words

    def check_classes(self, p: Predictions, what: str) -> None:
        """Refuse predictions whose columns are other classes, or the same classes in another order."""
        if p.logits is None or not p.classes or not self.classes or p.classes == self.classes:
            return
        where = f"{p.source}: " if p.source else ""
        same = set(p.classes) == set(self.classes)
        raise MapError(
            f"{where}{what} for the classes {listed(self.classes)}, in this order; these predictions have "
            f"{listed(p.classes)}; "
            + ("put their columns in that order" if same else "use predictions of the same classes, or fit on these")
        )


class Parameters(Shown):
    """Abstract: a frozen dataclass that can be saved. Its tensors are its parameters, its other fields its settings."""

    def tensors(self) -> dict[str, Tensor]:
        """The parameters by field name, which safetensors stores."""
        return {name: value for name, value in self._fields().items() if isinstance(value, Tensor)}

    def settings(self) -> dict[str, Any]:
        """The other fields by name, except the record and a map in front, which the JSON header stores."""
        return {
            name: value
            for name, value in self._fields().items()
            if not isinstance(value, Tensor) and name not in ("record", "map")
        }

    def _fields(self) -> dict[str, Any]:
        assert is_dataclass(self)
        return {f.name: getattr(self, f.name) for f in fields(self)}


@dataclass(frozen=True, eq=False)
class FittedMap(Parameters):
    """Abstract: subclass it, add parameters as fields, and write `transform`."""

    method: ClassVar[str]
    keeps_label: ClassVar[bool]  # a promise: the map never changes the predicted class
    record: FitRecord = field(default_factory=FitRecord, kw_only=True)

    def transform(self, logits: Tensor) -> Tensor:
        """Float64 logits [..., N, K] → logits of the same shape (a pool drops the first axis)."""
        raise TypeError(f"{type(self).__name__} must define transform")

    @property
    def k(self) -> int | None:
        """The number of classes that the parameters are for; None if the map can be applied to any number."""
        return None

    @property
    def degrees(self) -> int:
        """The number of fitted parameters. `auto` prefers maps with fewer of them."""
        return sum(t.numel() for t in self.tensors().values())

    def __call__(self, logits: Any = None, *, probs: Any = None) -> Tensor:
        """Return float64 logits for logits, or for the probabilities of all classes (`probs`).

        With two classes, the logits may be the one column of class 1 ([N] or [N, 1]); the result has two columns.
        """
        if isinstance(logits, Predictions):
            raise MapError("a map is called with logits or probs=; for Predictions, use map.predictions(p)")
        if (logits is None) == (probs is None):
            raise MapError("pass a map either logits or probs=")
        if probs is not None:
            return self.apply(log_probabilities(as_tensor(probs, "probs")))
        z = logits if isinstance(logits, Tensor) else as_tensor(logits, "logits")
        if z.ndim > 1 and z.shape[-1] > 1 and look_like_probabilities(z, binary=False):
            warn(
                "these logits look like probabilities, which a map would change wrongly; if they are, call map(probs=…)"
            )
        return self.apply(z)

    def apply(self, z: Tensor) -> Tensor:
        """Return `map(logits)` without the warning about values that look like probabilities."""
        return self.to(z.device).transform(self.columns(z).double())

    def predictions(self, p: Predictions) -> Predictions:
        """The same items after the map."""
        self.record.check_classes(p, f"this {self.name} map was fitted")
        if p.logits is not None:
            self.check(p.logits)
        return replace(self.outcome(p), origin=self.origin(p), fitted_on=self.record.data or p.fitted_on)

    def outcome(self, p: Predictions) -> Predictions:
        """What the map makes of checked predictions. A map that sets `predicted` and `confidence` overrides this."""
        if p.logits is None:
            raise MapError(f"{self.method} needs logits or probabilities, but {p.source or 'this set'} is top-1 only")
        return replace(p, logits=self.apply(p.logits), predicted=None, confidence=None, raw=False)

    def origin(self, p: Predictions) -> str:
        """The content hash of what the map is applied to, or that of the calibration items if it is these again."""
        own = p.origin or p.fingerprint()
        may_be_same = own != self.record.data and p.n == self.record.n and not p.origin
        return self.record.data if may_be_same and self.overlap(p) >= overlap.SAME else own

    def overlap(self, p: Predictions) -> float:
        """The share of the map's calibration items that are among these; 0 if that cannot be known."""
        return overlap.share(self.record.items, p)

    @property
    def name(self) -> str:
        """What messages call the map: its calibrator, or else its method."""
        return self.record.calibrator or self.method

    @property
    def classes(self) -> int | None:
        """The number of classes that the map was fitted on, even if it can be applied to any number."""
        return self.record.k if self.k is None else self.k

    def columns(self, logits: Tensor) -> Tensor:
        """[..., K] with the right number of classes; for a map of two classes, one column becomes two."""
        if self.classes == 2:
            logits = both_classes(logits)
        self.check(logits)
        return logits

    def check(self, logits: Tensor) -> None:
        """Refuse logits with another number of classes than the map was fitted for."""
        expected = self.classes
        if expected is not None and logits.shape[-1] != expected:
            raise MapError(
                f"this {self.name} map was fitted for {expected} classes, the predictions have {logits.shape[-1]}; "
                "fit one on predictions of the same classes"
            )

    def to(self, device: torch.device) -> Self:
        """The same map with its tensors on the device."""
        own = Parameters.tensors(self)  # a chain has none: its parts move themselves
        moved: dict[str, Any] = {name: t.to(device) for name, t in own.items() if t.device != device}
        return replace(self, **moved) if moved else self

    def summary(self) -> dict[str, Any]:
        """The parameters for people and `--json`: {"temperature": 1.7}. Override it if the tensors are hard to read."""
        return {
            name: t.tolist() if t.numel() <= 32 else f"{tuple(t.shape)} values" for name, t in self.tensors().items()
        }

    def _shown(self) -> tuple[str, Rows]:
        r = self.record
        rows = [(name, _brief(value)) for name, value in self.summary().items()]
        if r.n:
            rows.append(("fitted on", f"{r.n:,} items of split {r.split}"))
        if r.nll_before is not None and r.nll_after is not None:
            rows.append(("NLL on them", f"{r.nll_before:.4f} → {r.nll_after:.4f}"))
        if r.guard:
            rows.append(("guard", "ok" if r.guard.get("ok") else "; ".join(r.guard.get("reasons", ()))))
        return f"{self.name} map", rows

    def save(self, folder: str | PathLike[str]) -> Path:
        """Write the map to a folder, whole or not at all; `calibrant.load(folder)` restores it bit for bit."""
        from calibrant.posthoc.storage import save  # here, because storage imports this module

        return save(self, folder)


@dataclass(frozen=True, eq=False)
class Identity(FittedMap):
    """Changes nothing: the candidate that every other map has to beat."""

    method: ClassVar[str] = "identity"
    keeps_label: ClassVar[bool] = True

    def transform(self, logits: Tensor) -> Tensor:
        return logits

    def outcome(self, p: Predictions) -> Predictions:
        return p  # an explicit confidence stays too


@dataclass(frozen=True, eq=False)
class Pool(FittedMap):
    """Replaces members [M, N, K] by their mean probability [N, K]. As a map it can come before or after others."""

    method: ClassVar[str] = "pool"
    keeps_label: ClassVar[bool] = True

    def transform(self, logits: Tensor) -> Tensor:
        return pool(logits) if logits.ndim == 3 else logits


@dataclass(frozen=True, eq=False)
class Chain(FittedMap):
    """Maps applied left to right."""

    maps: tuple[FittedMap, ...]
    method: ClassVar[str] = "chain"
    keeps_label: ClassVar[bool] = False  # it depends on the parts: see `promises_label`

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

    def outcome(self, p: Predictions) -> Predictions:
        for each in self.maps:
            p = each.outcome(p)
        return p


def _brief(value: Any) -> str:
    """A parameter as text: a number with four digits, a long list as its length."""
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list):
        return ", ".join(map(_brief, value)) if len(value) <= 6 else f"{len(value)} values"
    return str(value)


def promises_label(m: FittedMap) -> bool:
    """Whether the map, with all its parts, promises to keep the predicted class."""
    return all(promises_label(each) for each in m.maps) if isinstance(m, Chain) else m.keeps_label


def still_impossible(out: Tensor, logits: Tensor) -> Tensor:
    """Set the classes with logit −inf to −inf again, after a map that mixes classes."""
    return out.masked_fill(torch.isneginf(logits), -torch.inf)
