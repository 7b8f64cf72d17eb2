"""The probe `sharpness`: how much the loss fluctuates under dropout, by ensemble size (SS D.3, Fig. D.3a)."""

from __future__ import annotations

import math
from collections.abc import Sequence

from calibrant.cli.probes.request import Request
from calibrant.cli.probes.results import Measured, Probed, Result, side_by_side
from calibrant.cli.probes.wording import SEEDS, compared_estimates, plain, with_interval
from calibrant.diagnostics.sharpness import PASSES, SIZES, loss_sharpness
from calibrant.ensembles.dropout import dropouts
from calibrant.ensembles.reference import Reference
from calibrant.errors import NotApplicableError
from calibrant.report.panels import Figure, Panel, Table
from calibrant.report.plots.lines import Curve, curves, plain_log
from calibrant.types import Split


def sharpness(request: Request) -> Probed:
    train = Split.TRAIN.value
    without = [model.name for model in request.models if not dropouts(model.members[0])]
    if without:
        raise NotApplicableError(f"{without[0]} has no dropout, so its loss does not fluctuate; probe the others")

    def measure(model: Reference) -> Measured:
        found = loss_sharpness(request.network(model), request.few(model, train), passes=PASSES)
        rows = [
            {
                "size": size,
                "variance": found.variance(size),
                "predicted_variance": found.predicted_variance(size),
                "expected_sharpness": found.expected(size),
            }
            for size in SIZES
        ]
        return {"items": found.log_p.shape[1], "passes": PASSES, "sizes": rows}, {"log_p": found.log_p}

    return side_by_side(request, "sharpness", {"items": request.few_hash(train)}, measure, panel)


HEAD = ("network, ensemble of", "V[L]", "by Eq. 27", "expected sharpness", "√(V[L] / 2π)")


def panel(found: Sequence[Result]) -> Panel:
    rows, drawn = [], []
    for i, r in enumerate(found):
        each = r.record["sizes"]
        sizes = [row["size"] for row in each]
        drawn.append(Curve.of(r.name, sizes, [row["variance"] for row in each], colour=i))
        predicted = [row["predicted_variance"] for row in each]
        drawn.append(Curve(f"{r.name}, Eq. 27", sizes, predicted, dashed=True, colour=i))
        for row in each:
            gaussian = (row["variance"]["value"] / math.tau) ** 0.5
            cells = (plain(row["predicted_variance"]), plain(row["expected_sharpness"]), plain(gaussian))
            rows.append((f"{r.name}, {row['size']}", with_interval(row["variance"]), *cells))
    ax = curves(drawn, "ensemble size N", "variance of the loss, V[L]")
    ax.set_xscale("log")
    ax.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    ax.xaxis.minorticks_off()
    ax.set_xticks(sizes, [str(size) for size in sizes])
    plain_log(ax, "log")
    caption = (
        f"The variance of the training loss falls as 1/N where it follows the dashed line (Eq. 27). {_verdict(found)}"
    )
    return Panel(
        "How much does dropout make the loss fluctuate?",
        "Every mask gives another loss. Averaging the predictions of N masks in training makes the loss steadier (SS "
        "Proposition 2.3).",
        [Figure(ax, caption)],
        [Table("Fluctuation of the training loss", HEAD, rows)],
        [
            f"{found[0].record['items']} training items, {found[0].record['passes']} masks; ensembles of one size "
            "share no mask. Intervals are χ², for a Gaussian loss. Eq. 27 is a first-order approximation: it holds "
            "where the label's p stays near its mean.",
            "Expected sharpness is the mean rise of the loss above its own mean (Eq. 16). For a Gaussian loss it is "
            "the last column, proportional to the standard deviation of the loss (Eq. 21).",
            SEEDS,
        ],
    )


def _verdict(found: Sequence[Result]) -> str:
    sentences = []
    for r in found:
        last = r.record["sizes"][-1]
        low, high = last["variance"]["low"], last["variance"]["high"]
        word = "within" if low <= last["predicted_variance"] <= high else "outside"
        sentences.append(f"{r.name}, N = {last['size']}: Eq. 27 lies {word} the interval.")
    sentences.append(compared_estimates(found, [r.record["sizes"][0]["variance"] for r in found], "V[L] of one mask"))
    return " ".join(sentences).strip()
