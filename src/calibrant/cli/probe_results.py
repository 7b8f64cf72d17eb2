"""What a probe measured of each model: kept under the folder of results, and not measured twice.

    STORE/WHAT/KEY.safetensors        arrays; the header holds the numbers and a hash over both

KEY is a hash of the weights, of the items and of every setting that changes a number. A file is written whole or not at
all: a kill loses the model in flight.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from calibrant.cli.console import say
from calibrant.files import atomic, hashed
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
        if not path.is_file():
            atomic.check_place(path.parent, "keep the results in with -o")
            if request.progress:
                say(f"{what}: {model.name}", err=True)
            record, tensors = measure(model)
            hashed.write_tensors(path, tensors, {"model": model.name, "record": jsonable(record)})
        arrays, head = hashed.read_tensors(path, "delete it, and it is measured again")
        out.append(Result(name, head["record"], arrays))
    return out
