"""Parameter ensembling by perturbation (PEP §2, Eq. 5–9): θ_j = θ* + σ·ε_j, predictions averaged.

    L(σ) = Σ_i ln (1/m) Σ_j p(y_i; x_i, θ_j),    σ* = argmax L(σ) on held-out data        (Eq. 8)

PEP works on any `nn.Module` without changing its code, needs no training data, and fits one number. `PEP(model, sigma)`
is a ready predictor; `PEP.fit(model, calibration)` finds σ*.

The paper's search (`search="golden"`) is golden section on linear σ in [5e-5, 5e-3] with 5 members. Our search, the
default, makes use of the fact that L(σ) is smooth if every σ sees the same noise: it uses antithetic pairs and brackets
the maximum, also outside the paper's range (as for small CIFAR ResNets). σ = 0, the model itself, is always a
candidate.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from calibrant.display import Rows, Shown
from calibrant.ensembles.ensemble import Ensemble, Network, evaluating, positive
from calibrant.ensembles.ingredients import Ingredients
from calibrant.ensembles.perturbation import Where, perturbed, precision_note, select, share
from calibrant.ensembles.sigma import Curve, SigmaPoint, search_progress, sigma_curve
from calibrant.ensembles.sigma_search import FLAT, first_guess, golden_section
from calibrant.errors import InputError, warn
from calibrant.functional.noise import DISTRIBUTIONS, Distribution
from calibrant.functional.search import Search, bracket

MEMBERS = 20
"""The default number of members: ten pairs ±ε come within 0.01 of the NLL of 25 independent draws. The paper's 10
members do not do so on every network (docs/ensembles.md, "How many members")."""

GROWTH = 64.0
"""The searches may follow a maximum beyond the given range, up to 64 times its upper end."""


@dataclass(frozen=True)
class Certificate(Shown):
    """The record of the search, from which σ* can be checked without running it again."""

    search: str
    members: int  # number of members in the search; the predictor may have more
    nll_at_zero: float
    nll: float
    interval: tuple[float, float]  # contains σ*, up to the tolerance of the search
    interior: bool  # False: the maximum is at the border of the allowed range
    probes: tuple[tuple[float, float], ...]  # (σ, mean log-likelihood), in order
    rejected: int  # number of probes at which the perturbed network was not finite
    passes: int  # number of forward passes over the calibration set
    notes: tuple[str, ...] = ()
    curve: tuple[SigmaPoint, ...] = ()  # everything measured at each probe, in the order of σ

    def _shown(self) -> tuple[str, Rows]:
        low, high = self.interval
        rows = [
            ("σ lies in", f"[{low:.3g}, {high:.3g}]" + ("" if self.interior else ", at the border of the search")),
            ("search", f"{self.search}, {len(self.probes)} values of σ, {self.passes} passes over the data"),
            *(("note", note) for note in self.notes),
        ]
        return f"NLL {self.nll_at_zero:.4f} → {self.nll:.4f} with {self.members} members, where σ was fitted", rows


@dataclass(frozen=True, eq=False)
class PEP(Ensemble):
    """A model whose predictions are averaged over m Gaussian perturbations of its weights."""

    model: nn.Module
    sigma: float
    count: int = MEMBERS
    distribution: Distribution = "gaussian"
    where: Where = "auto"
    seed: int = 0
    antithetic: bool = True
    certificate: Certificate | None = None
    parameters: Mapping[str, nn.Parameter] = field(init=False, repr=False)

    def __init__(
        self,
        model: nn.Module,
        sigma: float,
        members: int = MEMBERS,
        distribution: Distribution = "gaussian",
        where: Where = "auto",
        seed: int = 0,
        antithetic: bool = True,
        certificate: Certificate | None = None,
    ) -> None:
        _finite(sigma)
        positive("members", members)
        if distribution not in DISTRIBUTIONS:
            raise InputError(f"distribution={distribution!r} is unknown; use gaussian or uniform")
        values = {"model": model, "sigma": float(sigma), "count": members, "distribution": distribution}
        values |= {"where": where, "seed": seed, "antithetic": antithetic, "certificate": certificate}
        values |= {"parameters": select(model, where)}
        for name, value in values.items():
            object.__setattr__(self, name, value)
        if certificate is None and (lost := precision_note(self.parameters, sigma)):  # a certificate holds this note
            warn(lost)

    @classmethod
    def build(cls, given: Ingredients) -> PEP:
        model, members = given.network("pep"), given.members or MEMBERS
        kind: dict[str, Any] = {"distribution": given.distribution or "gaussian", "where": given.where or "auto"}
        if given.sigma is not None:
            return cls(model, given.sigma, members, seed=given.seed, **kind)
        if given.held_out is None:
            raise InputError("PEP needs held-out data to choose σ; give it, or --sigma")
        kind |= {"class_axis": given.class_axis, "ignore_index": given.ignore_index, "progress": given.progress}
        search: Any = given.search or "bracket"
        return cls.fit(model, given.held_out(), members=members, search=search, seed=given.seed, **kind)

    def _shown(self) -> tuple[str, Rows]:
        where = "a choice" if callable(self.where) else self.where
        what = f"{type(self.model).__name__}, sigma={self.sigma:.4g}, members={self.count}, {self.distribution}"
        title = f"PEP({what}, where={where}: {self.share:.1%} of the weights)"
        if self.certificate is None:
            return title, []
        found, rows = self.certificate._shown()
        return title, [("found", found), *rows]

    @property
    def size(self) -> int:
        return self.count

    @property
    def share(self) -> float:
        """The share of the network's parameters that is perturbed."""
        return share(self.model, self.parameters)

    @contextmanager
    def member(self, j: int) -> Iterator[Network]:
        noise = perturbed(
            self.parameters,
            self.sigma,
            seed=self.seed,
            member=j,
            distribution=self.distribution,
            antithetic=self.antithetic,
        )
        with evaluating(self.model) as network, noise:
            yield network

    def at(self, sigma: float, members: int | None = None) -> PEP:
        """Return the ensemble with the same noise at another σ. Common random numbers make L(σ) smooth."""
        _finite(sigma)
        other = copy.copy(self)
        for name, value in {"sigma": float(sigma), "count": members or self.count, "certificate": None}.items():
            object.__setattr__(other, name, value)
        return other

    @classmethod
    def fit(
        cls,
        model: nn.Module,
        calibration: Iterable[Any] | tuple[Tensor, Tensor],
        range: tuple[float, float] = (5e-5, 5e-3),
        members: int = MEMBERS,
        iterations: int = 7,
        *,
        search_members: int = 5,
        search: Literal["bracket", "golden"] = "bracket",
        tolerance: float = 0.05,
        distribution: Distribution = "gaussian",
        where: Where = "auto",
        seed: int = 0,
        device: torch.device | str | None = None,
        autocast: torch.dtype | None = None,
        class_axis: int | None = None,
        ignore_index: int | None = None,
        progress: bool = False,
    ) -> PEP:
        """Return the predictor at σ* (Eq. 8), found on held-out items and never on the test split.

        The search averages `search_members` perturbed networks for every σ that it tries; the returned predictor
        averages `members`. PEP §3.1 uses 5 and 10. `calibration` is a loader of (x, y) or of dicts with `labels`, or a
        pair of tensors. `iterations` is a setting of the golden search, `tolerance` (relative, in σ) of ours.
        `autocast=torch.float16` searches in mixed precision, which the certificate notes; bfloat16 would lose the
        noise. Labels may be maps [N, H, W]; pixels labelled `ignore_index` do not count. `class_axis` is the same as in
        calls.
        """
        if autocast == torch.bfloat16:
            raise InputError("bfloat16 rounds weights more coarsely than σ; use autocast=torch.float16")
        positive("iterations", iterations)
        positive("members", members)
        positive("search_members", search_members)
        low, high = _ends(range)
        start = cls(model, 0.0, search_members, distribution, where, seed, antithetic=search == "bracket")
        maps: dict[str, Any] = {"class_axis": class_axis, "ignore_index": ignore_index}
        curve = sigma_curve(start, calibration, device=device, autocast=autocast, **maps)
        with search_progress(show=progress) as curve.report:
            found, certificate = cls._search(start, curve, low, high, iterations, search, tolerance)
        return cls(model, found, members, distribution, where, seed, start.antithetic, certificate)

    @classmethod
    def _search(
        cls, start: PEP, curve: Curve, low: float, high: float, iterations: int, search: str, tolerance: float
    ) -> tuple[float, Certificate]:
        zero, top = curve.at(0.0), high * GROWTH
        if not math.isfinite(zero.log_likelihood):
            raise InputError(
                "the model's own outputs are not finite on the calibration data; check its input and weights"
            )

        def likelihood(sigma: float) -> float:
            return curve.at(sigma).log_likelihood

        if search == "golden":
            found = golden_section(curve, low, high, top, iterations)
        elif search == "bracket":
            first, step = first_guess(curve, low, high, top)
            found = bracket(
                likelihood, zero.log_likelihood, first, low=low, limit=top, factor=step, tolerance=tolerance, flat=FLAT
            )
        else:
            raise InputError(f"search={search!r} is unknown; use bracket or golden")
        # a smaller gain is rounding, and the model itself costs one pass instead of m
        sigma = found.best if found.value > zero.log_likelihood + FLAT else 0.0
        best = curve.at(sigma)
        certificate = Certificate(
            search=search,
            members=start.count,
            nll_at_zero=-zero.log_likelihood,
            nll=-best.log_likelihood,
            interval=found.interval,
            interior=found.interior and sigma > 0,
            probes=((0.0, zero.log_likelihood), *found.probes),
            rejected=curve.rejected,
            passes=curve.passes,
            notes=_notes(start, found, sigma, curve, low),
            curve=curve.points(),
        )
        return sigma, certificate

    def save(self, folder: str | Path) -> Path:
        """σ, seeds, where and certificate, as `ensemble.json` in `folder`; never weights or noise."""
        from calibrant.ensembles.storage import save

        return save(self, folder)

    @classmethod
    def load(cls, folder: str | Path, model: nn.Module) -> PEP:
        """Load what `save` wrote, around `model`. Predictions repeat bit for bit on the same kind of device."""
        from calibrant.ensembles.storage import load

        return load(folder, model)

    def describe(self) -> dict[str, Any]:
        """Return what `save` stores: settings, never weights or noise."""
        names = sorted(self.parameters)
        return {
            "sigma": self.sigma,
            "members": self.count,
            "distribution": self.distribution,
            "where": names if callable(self.where) else self.where,
            "share": self.share,
            "seed": self.seed,
            "antithetic": self.antithetic,
            "parameters": names,
            "certificate": asdict(self.certificate) if self.certificate else None,
        }


def _ends(range: Any) -> tuple[float, float]:
    try:
        low, high = map(float, range)
    except (TypeError, ValueError):
        low = high = math.nan
    if not 0 < low < high < math.inf:
        raise InputError(f"range={range!r} must be two numbers with 0 < low < high")
    return low, high


def _finite(sigma: Any) -> None:
    if sigma is None or isinstance(sigma, str) or not 0 <= float(sigma) < math.inf:
        raise InputError(f"sigma={sigma!r} must be a finite number, 0 or more")


def _notes(start: PEP, found: Search, sigma: float, curve: Curve, low: float) -> tuple[str, ...]:
    notes = []
    if sigma == 0:
        notes.append(f"no σ beats the model itself on this data by more than {FLAT:g} nats per item: σ = 0")
    elif not found.interior:
        notes.append(f"the maximum lies at the border of the range, σ = {sigma:.3g}: widen `range`")
    if curve.rejected:
        notes.append(f"{curve.rejected} probe(s) rejected: the perturbed network was not finite")
    if curve.autocast is not None:
        notes.append(f"likelihoods were measured under {str(curve.autocast).removeprefix('torch.')} autocast")
    if lost := precision_note(start.parameters, sigma or low):
        notes.append(lost)
    return tuple(notes)
