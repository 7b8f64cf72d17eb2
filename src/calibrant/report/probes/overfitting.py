"""Does PEP gain more the more a network is overfitted? (PEP Fig. 3)."""

from __future__ import annotations

from collections.abc import Sequence

from calibrant.diagnostics.overfitting import Epoch
from calibrant.report.panels import Figure, Panel, Table
from calibrant.report.plots.overfitting import overfitting_curves, overfitting_scatter, rank_correlation
from calibrant.report.probes import Result, plain

HEAD = ("network", "overfitting, last epoch", "PEP effect, last epoch", "σ*, last epoch", "ρ(overfitting, effect)")


def panel(found: Sequence[Result]) -> Panel:
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
        [Table("PEP's effect along the training", HEAD, rows)],
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
