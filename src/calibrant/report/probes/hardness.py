"""Does the trained network still know which samples were hard? (RC Fig. 4 and 5)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from calibrant.diagnostics.hardness import NEVER, SampleHardness
from calibrant.report.panels import Figure, Panel, Table
from calibrant.report.plots.lines import Curve, curves, stacked
from calibrant.report.probes import Result, plain, with_interval

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
