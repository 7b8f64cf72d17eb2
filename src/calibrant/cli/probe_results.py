"""What a probe measured of each model: kept under the folder of results, and not measured twice.

    STORE/WHAT/KEY.safetensors        arrays; the header holds the numbers and a hash over both

KEY is a hash of the weights, of the items and of every setting that changes a number. A file is written whole or not at
all: a kill loses the model in flight.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from calibrant.cli.console import say
from calibrant.errors import FileError
from calibrant.files import atomic
from calibrant.types import jsonable

if TYPE_CHECKING:
    from torch import Tensor

    from calibrant.cli.probe_request import Request
    from calibrant.ensembles.reference import Reference
    from calibrant.report.probes import Result

EDITION = 1
"""Raised when a probe of the same settings would find other numbers."""

Measure = Callable[["Reference"], tuple[dict[str, Any], dict[str, "Tensor"]]]
"""A model → numbers for JSON, and arrays."""


def results(request: Request, what: str, settings: Mapping[str, Any], measure: Measure) -> list[Result]:
    """Each model's result: read if it is there, else measured and written."""
    from calibrant.report.names import short_names
    from calibrant.report.probes import Result
    from calibrant.training.distances import network_hash
    from calibrant.training.recipe import digest

    names = short_names([model.name for model in request.models])
    out = []
    for name, model in zip(names, request.models, strict=True):
        own = {**settings, "fed": [model.mean, model.std], "edition": EDITION, "recipe": model.recipe}
        own["network"] = network_hash(model.members)
        path = request.place(what) / f"{digest(jsonable(own))[:16]}.safetensors"
        found = _read(path)
        if found is None:
            atomic.check_place(path.parent, "keep the results in with -o")
            if request.progress:
                say(f"{what}: {model.name}", err=True)
            record, arrays = measure(model)
            found = jsonable(record), arrays
            _write(path, *found, model.name)
        out.append(Result(name, *found))
    return out


def _write(path: Path, record: Mapping[str, Any], arrays: Mapping[str, Tensor], name: str) -> None:
    from safetensors.torch import save

    from calibrant.attacks.store import tensors_hash

    held = {key: t.detach().cpu().contiguous() for key, t in arrays.items()}
    text = json.dumps(jsonable({"model": name, "record": dict(record)}), allow_nan=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic.write_bytes(path, save(held, metadata={"calibrant": text, "sha256": tensors_hash(held, text)}))


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]] | None:
    from safetensors import SafetensorError, safe_open

    from calibrant.attacks.store import tensors_hash

    if not path.is_file():
        return None
    try:
        with safe_open(str(path), framework="pt") as stored:
            arrays = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118 - not a dict
            metadata = dict(stored.metadata() or {})
        if metadata["sha256"] != tensors_hash(arrays, metadata["calibrant"]):
            raise ValueError("its hash does not match")
        return json.loads(metadata["calibrant"])["record"], arrays
    except (SafetensorError, OSError, KeyError, ValueError) as error:
        raise FileError(f"{path} was truncated or edited ({error}); delete it, and it is measured again") from error
