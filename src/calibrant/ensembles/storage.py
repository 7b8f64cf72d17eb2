"""Save a fitted PEP ensemble as a folder with one JSON file. It holds settings and seeds, never weights or noise.

`parameters` lists the perturbed parameters, so that loading it with a model of other layers is an error.
"""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from typing import Any, cast

from torch import nn

from calibrant.ensembles.pep import PEP
from calibrant.ensembles.perturbation import Where
from calibrant.ensembles.sigma import SigmaPoint
from calibrant.ensembles.sigma_search import Certificate
from calibrant.errors import MapError
from calibrant.files import atomic, hashed, outputs
from calibrant.types import jsonable

VERSION = 1


def save(ensemble: PEP, folder: str | Path) -> Path:
    """Write the ensemble's settings to `folder`, all or nothing."""
    body = {"version": VERSION, "ensemble": "pep", **jsonable(ensemble.describe())}
    text = json.dumps({"sha256": _digest(body), **body}, indent=2, ensure_ascii=False)
    with atomic.folder(folder, outputs.ENSEMBLE) as temporary:
        (temporary / "ensemble.json").write_text(text, encoding="utf-8")
    return Path(folder)


def load(folder: str | Path, model: nn.Module) -> PEP:
    """Load the ensemble saved in `folder`, around `model`. Its predictions repeat bit for bit on the same device."""
    path = Path(folder) / "ensemble.json"
    if not path.exists():
        raise MapError(f"{folder} holds no ensemble.json; it was not written by save()")
    body = hashed.table(path)
    if body.pop("sha256", None) != _digest(body):
        raise MapError(f"{path} was edited or truncated (its hash does not match); save the ensemble again")
    if body["version"] > VERSION:
        raise MapError(f"{path} is of version {body['version']}, newer than {VERSION}; update calibrant")
    names = set(body["parameters"])
    where = cast(Where, body["where"]) if isinstance(body["where"], str) else (lambda name, _: name in names)
    seen = body["certificate"]
    if seen is not None:
        pairs = {"interval": tuple(seen["interval"]), "probes": tuple(map(tuple, seen["probes"]))}
        curve = tuple(_point(point) for point in seen.get("curve", ()))
        seen = Certificate(**{**seen, **pairs, "notes": tuple(seen["notes"]), "curve": curve})
    keys = ("sigma", "members", "distribution", "seed", "antithetic")
    ensemble = PEP(model, **{k: body[k] for k in keys}, where=where, certificate=seen)
    if set(ensemble.parameters) != names:
        odd = sorted(set(ensemble.parameters) ^ names)[0]
        raise MapError(f"{path} was made for another model: parameter {odd!r} is not in both")
    return ensemble


def _point(body: dict[str, Any]) -> SigmaPoint:
    """Restore a point from JSON, which has no −inf and no NaN: a rejected probe has no likelihood and no error."""
    rejected = {"log_likelihood": -math.inf, "standard_error": math.nan}
    known = {k: v for k, v in body.items() if v is not None}
    return SigmaPoint(**{**rejected, **known, "members": tuple(body["members"])})


def _digest(body: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True, ensure_ascii=False).encode()).hexdigest()
