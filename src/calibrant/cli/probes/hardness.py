"""The probe `hardness`: do the logits still show which samples were hard? (RC §5.1, Fig. 4 and 5).

It reads the epochs that a run kept (`train --keep-epochs`): when each sample was learned, and the optimal ECE after
each epoch.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from calibrant.cli.probes.request import Request
from calibrant.cli.probes.results import Measured, Probed, Result, side_by_side
from calibrant.cli.probes.wording import SEEDS, compared_estimates, plain, with_interval
from calibrant.diagnostics import optimal_ece, sample_hardness
from calibrant.diagnostics.hardness import NEVER, SampleHardness
from calibrant.ensembles.reference import Reference
from calibrant.errors import NotApplicableError
from calibrant.files import read
from calibrant.files.paths import visible
from calibrant.report.panels import Figure, Panel, Table
from calibrant.report.plots.lines import Curve, curves, stacked
from calibrant.training.distances import items_hash
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

    settings: dict[str, Any] = {"splits": list(request.splits)}
    settings["items"] = [items_hash(request.part(split)) for split in others]
    settings["epochs"] = [[path.name for path in visible(folder, "epochs/*")] for folder in folders.values()]
    return side_by_side(request, "hardness", settings, measure, panel)


def _predicted(request: Request, model: Reference, folder: Path, split: str) -> dict[int, Predictions]:
    """Return {epoch: predictions} on one part, for the epochs whose weights were kept (`train --keep-weights N`)."""
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
    verdict = compared_estimates(found, [r.record["correlation"] for r in found], "the rank correlation")
    lead = (
        "Hard samples are learned late. If their largest logits stay smaller, a calibrator can tell them from easy "
        f"ones. Regularised losses make the logits alike (RC §5.1). {verdict}"
    )
    return Panel(
        "Do the logits still show which samples were hard?",
        lead.strip(),
        figures,
        [Table("Learned epochs", SAMPLES, samples), Table("Optimal ECE", EPOCHS, rows)],
        [
            "A sample's learned epoch is the one from which on it is classified correctly until the end. The "
            "correlation is Spearman's, of learned epoch and largest logit after the last epoch: at −1 the logits "
            "order samples by hardness, at 0 they do not show it.",
            "Optimal ECE is the ECE with the temperature that is best on the same items. So it is a lower bound, and "
            "has no interval; on test the temperature is an oracle choice.",
            SEEDS,
        ],
    )


def _histogram(r: Result) -> Figure:
    held = SampleHardness(r.arrays["learned"], r.arrays["largest_logit"], r.arrays["index"], tuple(r.record["epochs"]))
    low, high = float(held.largest_logit.min()), float(held.largest_logit.max())
    edges = np.linspace(low, high if high > low else low + 1, CELLS + 1).tolist()
    spans = held.spans()
    names = ["never" if a == NEVER else f"epoch {a}" if a == b else f"epochs {a} to {b}" for a, b in spans]
    ax = stacked(held.histogram(edges).numpy(), edges, names, "largest logit after the last epoch")
    width = _range_of_most(r)
    caption = f"{r.name}: largest logits by learned epoch; hard samples (red) should lie left of easy ones (blue). "
    return Figure(ax, f"{caption}90% of the logits lie within a range of {plain(width)}.")


def _range_of_most(r: Result) -> float:
    """Return the distance from the 5% to the 95% quantile of the largest logits."""
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
    caption = (
        f"ECE on {part} over the epochs: dashed without a temperature, solid with the best one, both without "
        "intervals. Where the solid line rises, training destroys what a temperature could have used."
    )
    return Figure(ax, caption + (" The temperature is an oracle choice." if oracle else ""))
