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
import hashlib
import json
import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from calibrant.display import Rows
from calibrant.ensembles.ensemble import Ensemble, Network, evaluating, positive
from calibrant.ensembles.ingredients import Ingredients
from calibrant.ensembles.perturbation import Where, perturbed, precision_note, select, share
from calibrant.ensembles.sigma import search_progress, sigma_curve
from calibrant.ensembles.sigma_search import Certificate, find_sigma
from calibrant.errors import InputError, MapError, warn
from calibrant.files import atomic, hashed, outputs
from calibrant.files.paths import check_links
from calibrant.functional.noise import DISTRIBUTIONS, Distribution
from calibrant.types import jsonable

MEMBERS = 20
"""The default number of members: ten pairs ±ε come within 0.01 of the NLL of 25 independent draws. The paper's 10
members do not do so on every network (docs/ensembles.md, "How many members")."""


VERSION = 1
"""Version of the file that `save` writes."""


class PEP(Ensemble):
    """A model whose predictions are averaged over m Gaussian perturbations of its weights."""

    options = ("members", "sigma", "where", "distribution", "search", "fit_on", "save")

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
        if distribution not in DISTRIBUTIONS:
            raise InputError(f"distribution={distribution!r} is unknown; use gaussian or uniform")
        self.model, self.sigma, self.count = model, _finite(sigma), positive("members", members)
        self.distribution, self.where, self.seed = distribution, where, seed
        self.antithetic, self.certificate = antithetic, certificate
        self.parameters = select(model, where)
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
        other = copy.copy(self)
        other.sigma, other.count, other.certificate = _finite(sigma), members or self.count, None
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
            found, certificate = find_sigma(curve, low, high, search=search, iterations=iterations, tolerance=tolerance)
        return cls(model, found, members, distribution, where, seed, start.antithetic, certificate)

    def save(self, folder: str | Path) -> Path:
        """Write σ, seeds, `where` and the certificate to `folder`, all or nothing; never weights or noise."""
        body = {"version": VERSION, "ensemble": "pep", **jsonable(self.describe())}
        text = json.dumps({"sha256": _digest(body), **body}, indent=2, ensure_ascii=False)
        with atomic.folder(folder, outputs.ENSEMBLE) as temporary:
            (temporary / "ensemble.json").write_text(text, encoding="utf-8")
        return Path(folder)

    @classmethod
    def load(cls, folder: str | Path, model: nn.Module) -> PEP:
        """Load what `save` wrote, around `model`. Predictions repeat bit for bit on the same kind of device."""
        path = Path(folder) / "ensemble.json"
        if not path.exists():
            raise MapError(f"{folder} holds no ensemble.json; it was not written by save()")
        check_links(Path(folder))
        body = hashed.table(path)
        if body.pop("sha256", None) != _digest(body):
            raise MapError(f"{path} was edited or truncated (its hash does not match); save the ensemble again")
        if body["version"] > VERSION:
            raise MapError(f"{path} is of version {body['version']}, newer than {VERSION}; update calibrant")
        names = set(body["parameters"])
        where: Any = body["where"] if isinstance(body["where"], str) else (lambda name, _: name in names)
        found = None if body["certificate"] is None else Certificate.restored(body["certificate"])
        keys = ("sigma", "members", "distribution", "seed", "antithetic")
        ensemble = cls(model, **{k: body[k] for k in keys}, where=where, certificate=found)
        if set(ensemble.parameters) != names:
            odd = sorted(set(ensemble.parameters) ^ names)[0]
            raise MapError(f"{path} was made for another model: parameter {odd!r} is not in both")
        return ensemble

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


def _finite(sigma: Any) -> float:
    if sigma is None or isinstance(sigma, str) or not 0 <= float(sigma) < math.inf:
        raise InputError(f"sigma={sigma!r} must be a finite number, 0 or more")
    return float(sigma)


def _digest(body: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True, ensure_ascii=False).encode()).hexdigest()
