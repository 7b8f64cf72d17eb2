"""The probe `signs`: does a network behave like an ensemble of the first one? (SS §2.2, App. D).

It gives one verdict from the probes `variance`, `fourier` and `hessian`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from calibrant.cli.probes.fourier import fourier, fourier_of
from calibrant.cli.probes.hessian import hessian
from calibrant.cli.probes.request import Request
from calibrant.cli.probes.results import Probed, Result, shown_of
from calibrant.cli.probes.variance import variance, variance_of
from calibrant.cli.probes.wording import SEEDS, signed
from calibrant.diagnostics.ensemble_signs import SIGNS, EnsembleSigns, ensemble_signs
from calibrant.errors import NotApplicableError
from calibrant.report.panels import Panel, Table


def signs(request: Request) -> Probed:
    """Compare every network with the first one; what the three probes measured before is not measured again."""
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


def signs_of(
    variance: Sequence[Result], fourier: Sequence[Result], hessian: Sequence[Result]
) -> dict[str, EnsembleSigns]:
    """Return {network: its signs}, by model uncertainty where all networks have it, else by data uncertainty."""
    kind = "model" if all("model" in r.arrays for r in variance) else "data"
    varying = [variance_of(r).at_ends(kind) for r in variance]
    high = [fourier_of(r).high() for r in fourier]
    largest = [r.arrays["eigenvalues"][:, 0] for r in hessian]
    for each in (varying, high, largest):
        if any(values.shape != each[0].shape for values in each):
            raise NotApplicableError(
                "signs needs the same items and mini-batches for all networks; these runs have others"
            )
    others = range(1, len(variance))
    pairs = [[(each[0], each[i]) for each in (varying, high, largest)] for i in others]
    return {variance[i].name: ensemble_signs(v, f, h, len(pairs)) for i, (v, f, h) in zip(others, pairs, strict=True)}


def panel(reference: str, found: Mapping[str, EnsembleSigns]) -> Panel:
    rows = [
        (f"{name} − {reference}", *(_cell(each, sign) for sign in SIGNS), str(len(each.shown)))
        for name, each in found.items()
    ]
    head = ("network", "deviation of feature maps", "log-amplitude from 0.3π", "largest eigenvalue", "signs")
    return Panel(
        "Does it behave like an ensemble?",
        " ".join(f"Against {reference}, {name} {each.verdict}." for name, each in found.items()),
        [],
        [Table("Differences; an ensemble's are below 0", head, rows)],
        [
            "Standard deviations at the ends of the stages, over dropout masks where all networks have dropout, else "
            "over the points of a map; log-amplitude at the end of stage 1; largest Hessian eigenvalue by mini-batch. "
            "The three signs of all networks share the 5%.",
            SEEDS,
        ],
    )


def _cell(found: EnsembleSigns, sign: str) -> str:
    e = found.differences[sign].estimate
    assert e.value is not None
    ends = "" if e.low is None or e.high is None else f" [{signed(e.low)}, {signed(e.high)}]"
    return signed(e.value) + ends
