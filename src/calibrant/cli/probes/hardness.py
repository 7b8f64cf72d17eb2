"""The probe `hardness`: does the network still know which samples were hard? (RC §5.1, Fig. 4 and 5).

It reads the epochs that a run kept: when each sample was learned, and the optimal ECE after each epoch.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from calibrant.cli.probes.request import Request
from calibrant.cli.probes.results import Measured, Probed, Result, side_by_side
from calibrant.cli.probes.wording import plain, with_interval
from calibrant.diagnostics import optimal_ece, sample_hardness
from calibrant.diagnostics.hardness import NEVER, SampleHardness
from calibrant.ensembles.reference import Reference
from calibrant.errors import NotApplicableError
from calibrant.files import read
from calibrant.files.paths import visible
from calibrant.report.panels import Figure, Panel, Table
from calibrant.report.plots.lines import Curve, curves, stacked
from calibrant.training.epochs import kept_weights
from calibrant.training.run_folder import chosen
from calibrant.types import Predictions


def hardness(request: Request) -> Probed:
    folders = {}
    for model in request.models:
        if not Path(model.name).is_dir():
            raise NotApplicableError(
                f"hardness reads the epochs of a run, and {model.name} is not a run; pass a run's folder"
            )
        folders[model.name] = chosen(Path(model.name))
    others = [split for split in request.splits if split != "validation"]

    def measure(model: Reference) -> Measured:
        folder = folders[model.name]
        found = sample_hardness(folder)
        kept = visible(folder, "epochs/validation-*.npz")
        parts = {"validation": {int(p.stem.removeprefix("validation-")): read(p) for p in kept}}
        parts |= {split: _predicted(request, model, folder, split) for split in others}
        record = {
            "samples": len(found.learned),
            "never": found.never,
            "epochs": list(found.epochs),
            "correlation": found.rank_correlation(),
            "optimal_ece": {part: [vars(e) for e in optimal_ece(held)] for part, held in parts.items() if held},
        }
        return record, {"learned": found.learned, "largest_logit": found.largest_logit, "index": found.index}

    return side_by_side(request, "hardness", {"splits": list(request.splits)}, measure, panel)


def _predicted(request: Request, model: Reference, folder: Path, split: str) -> dict[int, Predictions]:
    """A part's predictions after each epoch whose weights were kept (`train --keep-weights N`)."""
    network = copy.deepcopy(model.members[0])
    out = {}
    for epoch, weights in kept_weights(folder).items():
        network.load_state_dict(weights)
        out[epoch] = request.predictions(model, split, [network])
    return out


SAMPLES = ("network", "samples", "never learned", "rank correlation")
EPOCHS = ("network, part", "last ECE", "optimal ECE", "least optimal ECE")
CELLS = 40


def panel(found: Sequence[Result]) -> Panel:
    samples, rows, figures = [], [], []
    for r in found:
        figures.append(_histogram(r))
        samples.append(
            (r.name, *(str(r.record[k]) for k in ("samples", "never")), with_interval(r.record["correlation"]))
        )
        for part, epochs in r.record["optimal_ece"].items():
            last, least = epochs[-1], min(epochs, key=lambda e: e["optimal_ece"])
            own = (f"{100 * last[k]:.2f}%" for k in ("ece", "optimal_ece"))
            named = f"{r.name}, {part}" + (" (oracle)" if last["oracle"] else "")
            rows.append((named, *own, f"{100 * least['optimal_ece']:.2f}% in epoch {least['epoch']}"))
    figures += [_epochs(found, part) for part in found[0].record["optimal_ece"]]
    return Panel(
        "Does the network still know which samples were hard?",
        "Hard samples are learned late. If their largest logits stay smaller, a map can tell them from easy ones. "
        "Regularised losses press the logits together (RC §5.1). " + _verdict(found),
        figures,
        [Table("Learned epochs", SAMPLES, samples), Table("Optimal ECE", EPOCHS, rows)],
        [
            "The learned epoch is the one since which a sample is classified correctly to the end. The correlation is "
            "Spearman's, of learned epoch and largest logit after the last epoch; −1: the logits order samples by "
            "hardness, 0: they have lost it.",
            "Optimal ECE: the temperature is chosen on the same items, so it is a lower bound and has no interval; on "
            "test it is an oracle choice.",
        ],
    )


def _histogram(r: Result) -> Figure:
    held = SampleHardness(r.arrays["learned"], r.arrays["largest_logit"], r.arrays["index"], tuple(r.record["epochs"]))
    low, high = float(held.largest_logit.min()), float(held.largest_logit.max())
    edges = np.linspace(low, high if high > low else low + 1, CELLS + 1).tolist()
    spans = held.spans()
    names = ["never" if a == NEVER else f"epoch {a}" if a == b else f"epochs {a} to {b}" for a, b in spans]
    ax = stacked(held.histogram(edges).numpy(), edges, names, "largest logit after the last epoch")
    width = _spread(r)
    caption = f"{r.name}: largest logits by learned epoch; hard samples (red) should lie left of easy ones (blue). "
    return Figure(ax, f"{caption}Nine tenths of the logits span {plain(width)}.")


def _spread(r: Result) -> float:
    low, high = np.quantile(r.arrays["largest_logit"].numpy(), [0.05, 0.95])
    return float(high - low)


def _epochs(found: Sequence[Result], part: str) -> Figure:
    drawn: list[Curve] = []
    for i, r in enumerate(found):
        epochs: list[dict[str, Any]] = r.record["optimal_ece"].get(part, [])
        x = [e["epoch"] for e in epochs]
        drawn.append(Curve(r.name, x, [e["optimal_ece"] for e in epochs], colour=i))
        drawn.append(Curve("", x, [e["ece"] for e in epochs], dashed=True, colour=i))
    ax = curves(drawn, "epoch", f"ECE on {part}", percent=True, marks=False)
    ax.locator_params(axis="x", integer=True)
    oracle = any(e["oracle"] for r in found for e in r.record["optimal_ece"].get(part, []))
    said = "Where the optimal ECE rises, training spoils what a temperature could have used."
    return Figure(
        ax,
        f"ECE on {part} over the epochs: dashed as it is, solid with the best temperature. {said}"
        + (" The temperature is an oracle choice." if oracle else ""),
    )


def _verdict(found: Sequence[Result]) -> str:
    first, said = found[0], []
    for other in found[1:]:
        a, b = first.record["correlation"], other.record["correlation"]
        if a["value"] is None or b["value"] is None:
            continue
        apart = b["low"] > a["high"] or b["high"] < a["low"]
        word = "the intervals do not overlap: beyond noise" if apart else "the intervals overlap: within noise"
        said.append(f"Correlation of {other.name} {with_interval(b)}, of {first.name} {with_interval(a)}; {word}.")
    return " ".join(said)
