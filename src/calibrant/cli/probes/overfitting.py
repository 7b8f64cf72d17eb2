"""The probe `overfitting`: does PEP gain more in the epochs where a network overfits more? (PEP Fig. 3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from torch import Tensor

from calibrant.cli.probes.request import Request
from calibrant.cli.probes.results import Measured, Probed, Result, side_by_side
from calibrant.cli.probes.wording import plain
from calibrant.diagnostics import overfitting as measured
from calibrant.diagnostics.overfitting import Epoch
from calibrant.ensembles.pep import MEMBERS
from calibrant.ensembles.reference import Reference
from calibrant.errors import NotApplicableError
from calibrant.report.panels import Figure, Panel, Table
from calibrant.report.plots.pep import overfitting_curves, overfitting_scatter, rank_correlation
from calibrant.training.distances import items_hash
from calibrant.training.epochs import kept_weights
from calibrant.training.run_folder import chosen
from calibrant.types import Split

MOST = 1000
"""Items of each part, unless --limit gives another number."""


def overfitting(request: Request) -> Probed:
    split, members = request.splits[0], request.options["members"] or MEMBERS
    checkpoints = {model.name: _checkpoints(model.name) for model in request.models}
    limited = request.first(MOST)
    parts = (Split.TRAIN.value, Split.VALIDATION.value, split)

    def measure(model: Reference) -> Measured:
        batches = (limited.batches(model, part) for part in parts)
        rows = measured(request.network(model), checkpoints[model.name], *batches, members=members)
        record = {"split": split, "items": [limited.part(part).n for part in parts], "members": members}
        return record | {"epochs": [asdict(row) for row in rows]}, {}

    settings = {"split": split, "members": members, "epochs": [list(held) for held in checkpoints.values()]}
    settings |= {part: items_hash(limited.part(part)) for part in parts}
    return side_by_side(request, "overfitting", settings, measure, panel)


def _checkpoints(name: str) -> dict[int, dict[str, Tensor]]:
    found = kept_weights(chosen(Path(name))) if Path(name).is_dir() else {}
    if len(found) < 2:
        raise NotApplicableError(f"{name} has no weights of several epochs; train with --keep-weights N")
    return found


ALONG = (
    "network",
    "overfitting, last epoch",
    "PEP effect, last epoch",
    "σ*, last epoch",
    "ρ(overfitting, effect)",
)


def panel(found: Sequence[Result]) -> Panel:
    epochs = {r.name: [Epoch(**row) for row in r.record["epochs"]] for r in found}
    figures, rows = [], []
    for name, each in epochs.items():
        caption = f"{name}: NLL over the epochs. Where the network's rises and PEP's does not, PEP undoes overfitting."
        figures.append(Figure(overfitting_curves([each]), caption))
        last, rho = each[-1], _rho(each)
        cells = [plain(v) for v in (last.overfitting, last.effect, last.sigma)]
        rows.append((name, *cells, plain(rho, 2)))
    caption = "One point per epoch. PEP claims that its gain grows with overfitting. " + " ".join(
        f"{name}: {_words(each)}" for name, each in epochs.items()
    )
    figures.append(Figure(overfitting_scatter(epochs), caption))
    record = found[0].record
    train, validation, test = record["items"]
    return Panel(
        "Does PEP gain more from a network the more it is overfitted?",
        "Overfitting is the NLL on test minus the NLL on training items. PEP's effect is how much it lowers the NLL on "
        "test.",
        figures,
        [Table("PEP's effect along the training", ALONG, rows)],
        [
            f"{train} training items, {test} items of {record['split']}, {record['members']} members. σ* is fitted on "
            f"{validation} validation items anew for every epoch.",
            "ρ is Spearman's over epochs. Epochs of one training depend on each other, so it has no interval.",
        ],
    )


def _rho(epochs: Sequence[Epoch]) -> float | None:
    return rank_correlation([e.overfitting for e in epochs], [e.effect for e in epochs])


def _words(epochs: Sequence[Epoch]) -> str:
    rho = _rho(epochs)
    if rho is None:
        return "overfitting or PEP's gain is the same in every epoch."
    return f"ρ = {plain(rho, 2)} over {len(epochs)} epochs, without an interval."
