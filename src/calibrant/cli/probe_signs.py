"""The probe `signs`: does a network behave like an ensemble of the first one? One verdict for SS App. D."""

from __future__ import annotations

from typing import TYPE_CHECKING

from calibrant.cli.probe_features import fourier, variance
from calibrant.cli.probe_hessian import hessian
from calibrant.cli.probe_results import Probed, shown_of
from calibrant.errors import NotApplicableError
from calibrant.report.probes.signs import panel, signs_of

if TYPE_CHECKING:
    from calibrant.cli.probe_request import Request


def signs(request: Request) -> Probed:
    """From the numbers of `variance`, `fourier` and `hessian`, which are measured unless they are kept already."""
    if len(request.models) < 2:
        raise NotApplicableError("signs compares networks with the first one; pass two or more")
    parts = [each(request).results for each in (variance, fourier, hessian)]
    found, reference = signs_of(*parts), parts[0][0].name
    section = panel(reference, found)
    models = [
        {"name": model.name, "verdict": each.verdict, **{n: d.estimate for n, d in each.differences.items()}}
        for model, each in zip(request.models[1:], found.values(), strict=True)
    ]
    record = {"reference": request.models[0].name, "models": models, "says": [section.lead]}
    return Probed(record, shown_of("signs", section), [section])
