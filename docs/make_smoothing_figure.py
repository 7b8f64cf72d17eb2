"""`python -m docs.make_smoothing_figure` draws docs/figures/smoothing.svg: Prob, Blur, temporal smoothing."""

from __future__ import annotations

from pathlib import Path

import torch
from matplotlib.figure import Figure

from calibrant.ensembles.temporal import DECAY, WINDOW, importances
from calibrant.nn.smoothing import TAU, Prob, Smooth, Upper
from calibrant.report.plots.style import COLOURS, SERIES, dress

PAGE = Path(__file__).with_name("figures") / "smoothing.svg"
PROBS: dict[Upper, str] = {
    "tanh": "τ tanh(z/τ), τ = 10",
    "relu6": "min(z, 6)",
    "constant": "z/τ, τ = 5",
    "none": "no bound",
}
EDGE = 24


def noisy_map() -> torch.Tensor:
    """A feature that is there within a disc, as one pass of MC dropout shows it."""
    g = torch.Generator().manual_seed(0)
    y, x = torch.meshgrid(torch.arange(EDGE), torch.arange(EDGE), indexing="ij")
    there = ((x - 12.5).square() + (y - 10.5).square() < 49).double()
    return (12 * there + 3 * torch.randn(EDGE, EDGE, generator=g).double()) * (
        torch.rand(EDGE, EDGE, generator=g) > 0.3
    )


def draw() -> Figure:
    figure = Figure(figsize=(11.5, 2.9), layout="constrained")
    axes = figure.subplots(1, 4, width_ratios=(1.2, 0.9, 0.9, 1.0))
    z = torch.linspace(-5, 20, 400, dtype=torch.float64)
    for (upper, label), colour in zip(PROBS.items(), SERIES, strict=False):
        axes[0].plot(z, Prob(upper, TAU[upper])(z), color=COLOURS[colour], label=label, linewidth=1.6)
    axes[0].set(xlabel="feature z", title="Prob: ReLU of an upper bound", ylim=(-0.5, 15))
    axes[0].legend(frameon=False, fontsize=8, loc="upper left", labelcolor=COLOURS["muted"])
    shown = noisy_map()
    for ax, values, title in (
        (axes[1], shown, "a feature map"),
        (axes[2], Smooth((1, 2, 1))(shown[None, None])[0, 0], "Blur ∘ Prob of it"),
    ):
        ax.imshow(values, cmap="Blues", vmin=0, vmax=12, interpolation="nearest")
        ax.set(title=title, xticks=[], yticks=[])
    axes[3].bar(range(-WINDOW, 1), importances(WINDOW + 1, DECAY).flip(0), color=COLOURS["accent"], width=0.7)
    axes[3].set(xlabel="frame, 0 is now", title="temporal smoothing: importance", xticks=range(-WINDOW, 1))
    for ax in axes:
        dress(ax)
        ax.title.set(fontsize=10, color=COLOURS["muted"])  # reads on white and on near-black
    for ax in axes[1:3]:
        ax.grid(False)
        ax.spines[:].set_visible(False)
    return figure


def main() -> None:
    import matplotlib

    with matplotlib.rc_context({"svg.hashsalt": "calibrant"}):
        draw().savefig(PAGE, metadata={"Date": None})


if __name__ == "__main__":
    main()
