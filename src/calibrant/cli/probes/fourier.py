"""The probe `fourier`: which frequencies feature maps hold (SS Prop. 2.2, Fig. 6b)."""

from __future__ import annotations

from collections.abc import Sequence

from calibrant.cli.probes.by_layer import STAGES, layered, sizes_of, values_of
from calibrant.cli.probes.request import Request
from calibrant.cli.probes.results import Measured, Probed, Result, side_by_side
from calibrant.cli.probes.wording import SEEDS, compared, mean_over, with_interval
from calibrant.diagnostics import feature_fourier
from calibrant.diagnostics.feature_fourier import HIGH, FeatureFourier
from calibrant.ensembles.reference import Reference
from calibrant.report.panels import Figure, Panel, Table
from calibrant.report.plots.lines import Curve, curves


def fourier(request: Request) -> Probed:
    split, layers, dropout = request.splits[0], request.options["layers"], request.options["dropout"]

    def measure(model: Reference) -> Measured:
        few = request.few(model, split)
        found = feature_fourier(request.network(model), few, layers=layers, dropout=dropout)
        return layered(split, found.sizes, found.log_amplitude, "log_amplitude")

    settings = {"split": request.few_hash(split), "dropout": dropout, "layers": layers}
    return side_by_side(request, "fourier", settings, measure, panel)


def fourier_of(r: Result) -> FeatureFourier:
    """Return what was measured, from what was stored of it."""
    return FeatureFourier(sizes_of(r), values_of(r, "log_amplitude"))


def panel(found: Sequence[Result]) -> Panel:
    held = [fourier_of(r) for r in found]
    figures, rows = [], []
    for stage in range(min(STAGES, *(len(each.ends) for each in held))):
        layers = [each.ends[stage] for each in held]
        high = [each.high(layer) for each, layer in zip(held, layers, strict=True)]
        drawn = [
            Curve.of(r.name, each.frequencies(layer).tolist(), [mean_over(c).to_dict() for c in each.relative(layer).T])
            for r, each, layer in zip(found, held, layers, strict=True)
        ]
        verdict = compared(found, high, f"the log-amplitude at {HIGH}π and above")
        axes = curves(drawn, "frequency, in units of π", "log-amplitude, relative to frequency 0")
        where = ", ".join(dict.fromkeys(layers))
        caption = f"End of stage {stage + 1} ({where}): the lower on the right, the less high frequency. {verdict}"
        figures.append(Figure(axes, caption.strip()))
        for r, each in zip(found, high, strict=True):
            rows.append((f"{r.name}, end of stage {stage + 1}", with_interval(mean_over(each))))
    return Panel(
        "Which frequencies do the feature maps hold?",
        "Dropout adds high frequencies, and smoothing filters them out (SS Proposition 2.2, Fig. 6b).",
        figures,
        [Table(f"Log-amplitude at {HIGH}π and above, relative to frequency 0", ("network", "mean over items"), rows)],
        [
            f"{found[0].record['items']} items of {found[0].record['split']}. Diagonal of each item's two-dimensional "
            "transform, root mean square over channels; bands are 95% intervals over items.",
            SEEDS,
        ],
    )
