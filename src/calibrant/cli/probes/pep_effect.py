"""The probe `pep_effect`: what PEP does to each item, and what curvature predicts (PEP Fig. 2c, Eq. 15, 20)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from calibrant.cli.probes.request import Request
from calibrant.cli.probes.results import Measured, Probed, Result, side_by_side
from calibrant.cli.probes.wording import SEEDS, compared, plain, with_interval
from calibrant.diagnostics import pep_effect as by_curvature
from calibrant.diagnostics import pep_items
from calibrant.ensembles.pep import MEMBERS, PEP
from calibrant.ensembles.reference import Reference
from calibrant.report.panels import Figure, Panel, Table
from calibrant.report.plots.lines import histogram, plain_log
from calibrant.report.plots.style import COLOURS, legend
from calibrant.training.distances import items_hash
from calibrant.types import Estimate

if TYPE_CHECKING:
    from matplotlib.axes import Axes


LOW, PROBES, NAMED = 0.1, 16, 20


def pep_effect(request: Request) -> Probed:
    split, sigma = request.splits[0], request.options["sigma"]
    members = request.options["members"] or MEMBERS

    def measure(model: Reference) -> Measured:
        network = request.network(model)
        if sigma is None:
            pep = PEP.fit(network, request.batches(model, "validation"), members=members, progress=request.progress)
        else:
            pep = PEP(network, sigma, members)
        found = pep_items(pep, request.batches(model, split))
        few = [(x, y) for x, y, _ in request.few(model, split)]
        curvature = by_curvature(network, few, probes=PROBES)
        gain, error = curvature.predict(pep.sigma), curvature.standard_error(pep.sigma)
        record = {
            "split": split,
            "items": len(found.labels),
            "members": members,
            "sigma": pep.sigma,
            "effect": found.effect(),
            "predicted": Estimate(gain, gain - 2 * error, gain + 2 * error, method="± 2 standard errors over probes"),
            "curvature_items": curvature.items,
            "corrected": len(found.corrected),
            "spoiled": len(found.spoiled),
            "largest_corrected": found.corrected[:NAMED].tolist(),
            "largest_spoiled": found.spoiled[:NAMED].tolist(),
            "share_of_low": found.share_of_low(LOW),
        }
        return record, dict(vars(found))

    settings = {"split": split, "items": items_hash(request.part(split)), "sigma": sigma, "members": members}
    settings["fitted_on"] = None if sigma is not None else items_hash(request.data["validation"])
    return side_by_side(request, "pep_effect", settings, measure, panel)


HEAD = ("network", "σ", "mean gain", "gain by curvature", "corrected", "spoiled", "share of the lowest tenth")
EXAMPLES = 3


def panel(found: Sequence[Result]) -> Panel:
    gains = [r.arrays["pooled"] - r.arrays["baseline"] for r in found]
    changes = [(r.name, (r.arrays["pooled"].exp() - r.arrays["baseline"].exp()).tolist()) for r in found]
    ax = histogram(changes, "change of p(true)", "items")
    plain_log(ax, "symlog", linthresh=1)
    caption = "Items on the right get a likelier true class by PEP. "
    caption += compared(found, gains, "PEP's gain in log-likelihood")
    if unchanged := [r.name for r in found if r.record["sigma"] == 0]:
        caption += f" For {' and '.join(unchanged)} the best σ is 0: no perturbation. Pass --sigma to try one."
    figures = [Figure(ax, caption.strip())]
    for r in found:
        for place in r.record["largest_corrected"][:EXAMPLES]:
            figures.append(Figure(_members(r, place), _example(r, place)))
    rows = [
        (
            r.name,
            plain(r.record["sigma"]),
            with_interval(r.record["effect"]),
            with_interval(r.record["predicted"]),
            str(r.record["corrected"]),
            str(r.record["spoiled"]),
            "–" if r.record["share_of_low"] is None else f"{100 * r.record['share_of_low']:.0f}%",
        )
        for r in found
    ]
    return Panel(
        "What does PEP do to single items?",
        "PEP averages copies of the network with perturbed weights. Its gain may come from a few items whose true "
        "class the network finds unlikely (PEP Eq. 15).",
        figures,
        [Table("PEP's effect, in log-likelihood per item", HEAD, rows)],
        [
            f"{found[0].record['items']} items of {found[0].record['split']}, {found[0].record['members']} members. "
            "--sigma gives σ; by default it is fitted on the validation part.",
            "The gain by curvature is PEP Eq. 20 on the first "
            f"{found[0].record['curvature_items']} items; it holds for small σ. The last column is the share of the "
            "total gain that comes from the tenth of items with the lowest likelihood. Above 100%, the others lose.",
            SEEDS,
        ],
    )


def _members(r: Result, place: int) -> Axes:
    """Draw p(true) of every member, with lines for the network and for PEP (PEP Fig. 2c)."""
    ax = histogram(
        [(f"{r.record['members']} members", r.arrays["members"][:, place].exp().tolist())],
        "p(true)",
        "members",
        cells=12,
    )
    for key, colour, name in (("baseline", "bad", "the network"), ("pooled", "good", "PEP")):
        ax.axvline(float(r.arrays[key][place].exp()), color=COLOURS[colour], linewidth=1.8, label=name)
    legend(ax)
    return ax


def _example(r: Result, place: int) -> str:
    before, after = (float(r.arrays[k][place].exp()) for k in ("baseline", "pooled"))
    return f"{r.name}, item {place}: PEP corrects the answer; p(true) goes from {before:.2f} to {after:.2f}."
