"""Do the 95% intervals over frames cover 95%? Trials on simulated videos with and without correlated frames.

    python -m benchmarks.coverage_frames [--trials 120] [--frames 100] [--rho 0.8]

The difficulty of a frame follows an AR(1) process with correlation rho from frame to frame, and the errors in a frame
are correlated. The true values are those of a long video. The output is the table of docs/smoothing.md.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from benchmarks.side_by_side import options
from calibrant.metrics.conventions import Resampling
from calibrant.metrics.frames import Frames

EDGE, K = 8, 4
NAMES = ("accuracy", "nll", "ece", "miou", "consistency")


def video(frames: int, rho: float, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Logits [F, H, W, K] and labels [F, H, W]; difficulty drifts with correlation rho."""
    noise = torch.randn(frames, generator=generator).tolist()
    ease, level = [], noise[0]
    for step in noise:
        level = rho * level + math.sqrt(1 - rho * rho) * step
        ease.append(1.5 + level)
    y = torch.randint(K, (frames, EDGE, EDGE), generator=generator)
    y = torch.minimum(y, torch.randint(K, y.shape, generator=generator))  # some classes are rare
    clear = torch.tensor(ease)[:, None, None, None] * torch.nn.functional.one_hot(y, K)
    return torch.randn(*y.shape, K, generator=generator) + clear, y


def gathered(logits: Tensor, labels: Tensor) -> Frames:
    frames = Frames()
    for z, y in zip(logits, labels, strict=True):
        frames.add(z, y)
    return frames


def main() -> None:
    a = options(__doc__, trials=120, frames=100, long=5000, rho=[0.0, 0.5, 0.8])
    rng = torch.Generator().manual_seed(1)
    print("| rho | block | " + " | ".join(NAMES) + " |")
    print("|---:|---:|" + "---:|" * len(NAMES))
    blocks: tuple[Any, ...] = (5, 10, 20, "auto")
    for rho in a.rho:
        whole = gathered(*video(a.long, rho, rng)).report()
        trials = [gathered(*video(a.frames, rho, rng)) for _ in range(a.trials)]
        for block in blocks:
            held = dict.fromkeys(NAMES, 0)
            for seed, frames in enumerate(trials):
                found = frames.report(resampling=Resampling(seed, 500), block=block)
                for name in NAMES:
                    truth, e = whole[name].value, found[name]
                    assert truth is not None and e.low is not None and e.high is not None
                    held[name] += e.low <= truth <= e.high
            shares = " | ".join(f"{100 * held[name] / a.trials:.0f}" for name in NAMES)
            print(f"| {rho} | {block} | {shares} |", flush=True)


if __name__ == "__main__":
    main()
