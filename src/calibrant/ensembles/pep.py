"""Parameter ensembling by perturbation (PEP §2, Eq. 5–9): θ_j = θ* + σ·ε_j, predictions averaged.

    L(σ) = Σ_i ln (1/m) Σ_j p(y_i; x_i, θ_j),    σ* = argmax L(σ) on held-out data        (Eq. 8)

Any `nn.Module`, not edited; no training data; one number is fitted. `PEP(model, sigma)` is a ready
predictor, `PEP.fit(model, calibration)` finds σ*. The paper's search is golden section on linear σ in
[5e-5, 5e-3] with 5 members (`search="golden"`). Ours, the default, uses that L(σ) is smooth when every
σ sees the same noise: antithetic pairs and a bracketing search, which also leaves the paper's range
when the maximum does (small CIFAR ResNets). σ = 0, the model itself, is always a candidate.
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
from calibrant.ensembles.perturbation import Where, drowned, perturbed, select, share
from calibrant.ensembles.sigma import Curve, SigmaPoint, searching, sigma_curve
from calibrant.ensembles.sigma_search import FLAT, first_guess, golden_section
from calibrant.errors import InputError, warn
from calibrant.functional.noise import DISTRIBUTIONS, Distribution
from calibrant.functional.search import Search, bracket

MEMBERS = 20
"""Ten pairs ±ε come within 0.01 of the NLL of 25 independent draws; the paper's 10 members do not on every network
(docs/ensembles.md, "How many members")."""

GROWTH = 64.0
"""How far beyond the given range the bracketing search may follow a maximum: σ up to 64 × its end."""


@dataclass(frozen=True)
class Certificate(Shown):
    """What the search saw: enough to check σ* without running it again."""

    search: str
    members: int  # of the search, whose likelihoods these are; the predictor may have more
    nll_at_zero: float
    nll: float
    interval: tuple[float, float]  # σ* lies inside, to the search's tolerance
    interior: bool  # False: the maximum is at the border of what was allowed
    probes: tuple[tuple[float, float], ...]  # (σ, mean log-likelihood), in order
    rejected: int  # probes where the perturbed network was not finite
    passes: int  # forward passes over the calibration set
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
        if certificate is None and (lost := drowned(self.parameters, sigma)):  # a fitted one's certificate notes it
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
        """Which share of the network's parameters is perturbed."""
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
        """The same noise at another σ: common random numbers are what makes L(σ) smooth."""
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
        """The predictor at σ* (Eq. 8), found on held-out items; never on the test split.

        The search averages `search_members` perturbed networks for every σ it tries, the predictor that is returned
        averages `members`; PEP §3.1 has 5 and 10.
        `calibration` is a loader of (x, y), or of dicts with `labels`, or a pair of tensors. `iterations` belongs to
        the golden search, `tolerance` (relative, in σ) to ours. `autocast=torch.float16` searches in mixed
        precision (bfloat16 would drown the noise), and the certificate notes that its likelihoods are of that.
        Labels may be maps [N, H, W], of which pixels of `ignore_index` do not count; `class_axis` as in calls.
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
        with searching(show=progress) as curve.report:
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
        # a gain that is not one is rounding, and the model itself costs one pass instead of m
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
        """What `save` wrote, around `model`: its predictions bit for bit on the same kind of device."""
        from calibrant.ensembles.storage import load

        return load(folder, model)

    def describe(self) -> dict[str, Any]:
        """What `save` stores: settings, never weights or noise."""
        if callable(self.where):
            where: Any = sorted(self.parameters)
        else:
            where = self.where
        out = {"sigma": self.sigma, "members": self.count, "distribution": self.distribution, "where": where}
        out |= {"share": self.share}
        out |= {"seed": self.seed, "antithetic": self.antithetic, "parameters": sorted(self.parameters)}
        return out | {"certificate": asdict(self.certificate) if self.certificate else None}


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
    if lost := drowned(start.parameters, sigma or low):
        notes.append(lost)
    return tuple(notes)
