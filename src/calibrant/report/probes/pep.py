"""What does PEP do to single items (PEP Fig. 2c)? Does it gain more the more a network is overfitted (Fig. 3)?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from calibrant.diagnostics.overfitting import Epoch
from calibrant.report.panels import Figure, Panel, Table
from calibrant.report.plots.lines import histogram, plain_log
from calibrant.report.plots.pep import overfitting_curves, overfitting_scatter, rank_correlation
from calibrant.report.plots.style import COLOURS, legend
from calibrant.report.probes import SEEDS, Result, compared, plain, with_interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes

HEAD = ("network", "σ", "mean gain", "gain by curvature", "corrected", "spoiled", "share of the lowest tenth")
EXAMPLES = 3


def panel(found: Sequence[Result]) -> Panel:
    gains = [r.arrays["pooled"] - r.arrays["baseline"] for r in found]
    changes = [(r.name, (r.arrays["pooled"].exp() - r.arrays["baseline"].exp()).tolist()) for r in found]
    ax = histogram(changes, "change of p(true)", "items")
    plain_log(ax, "symlog", linthresh=1)
    said = "To the right, PEP makes the true class likelier. " + compared(found, gains, "PEP's gain in log-likelihood")
    if still := [r.name for r in found if r.record["sigma"] == 0]:
        said += f" σ = 0 leaves {' and '.join(still)} as it is; pass --sigma to see a perturbation."
    figures = [Figure(ax, said.strip())]
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
        "PEP averages copies of the network with perturbed weights. Its gain may come from few items that the network "
        "holds for unlikely (PEP Eq. 15).",
        figures,
        [Table("PEP's effect, in log-likelihood per item", HEAD, rows)],
        [
            f"{found[0].record['items']} items of {found[0].record['split']}, {found[0].record['members']} members; σ "
            "is that of --sigma, else fitted on the validation part.",
            "The gain by curvature is PEP Eq. 20, which holds for small σ, on the first "
            f"{found[0].record['curvature_items']} items. The last column is the share of the total gain "
            "that comes from the tenth of items with the lowest likelihood; above 100%, the others lose.",
            SEEDS,
        ],
    )


def _members(r: Result, place: int) -> Axes:
    """Fig. 2c: p(true) of every member, with lines at the network's and at PEP's."""
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


ALONG = (
    "network",
    "overfitting, last epoch",
    "PEP effect, last epoch",
    "σ*, last epoch",
    "ρ(overfitting, effect)",
)


def overfitting_panel(found: Sequence[Result]) -> Panel:
    epochs = {r.name: [Epoch(**row) for row in r.record["epochs"]] for r in found}
    figures, rows = [], []
    for name, each in epochs.items():
        said = f"{name}: NLL over the epochs. Where the network's rises and PEP's does not, PEP takes overfitting back."
        figures.append(Figure(overfitting_curves([each]), said))
        last, rho = each[-1], _rho(each)
        cells = [plain(v) for v in (last.overfitting, last.effect, last.sigma)]
        rows.append((name, *cells, plain(rho, 2)))
    caption = "One point per epoch: PEP's gain should grow with overfitting. " + " ".join(
        f"{name}: {_words(each)}" for name, each in epochs.items()
    )
    figures.append(Figure(overfitting_scatter(epochs), caption))
    record = found[0].record
    train, validation, test = record["items"]
    return Panel(
        "Does PEP gain more from a network the more it is overfitted?",
        "Overfitting is the NLL on test less that on training items; the effect is the NLL that PEP takes away.",
        figures,
        [Table("PEP's effect along the training", ALONG, rows)],
        [
            f"{train} training items, {test} items of {record['split']}, {record['members']} members; σ* is found on "
            f"{validation} validation items for every epoch anew.",
            "ρ is Spearman's over epochs. Epochs of one training depend on each other, so it has no interval.",
        ],
    )


def _rho(epochs: Sequence[Epoch]) -> float | None:
    return rank_correlation([e.overfitting for e in epochs], [e.effect for e in epochs])


def _words(epochs: Sequence[Epoch]) -> str:
    rho = _rho(epochs)
    if rho is None:
        return "overfitting or PEP's gain is the same at every epoch."
    return f"ρ = {plain(rho, 2)} over {len(epochs)} epochs, without an interval."
