"""How far calibrant's corruptions are from an independent implementation with random numbers of its own.

python -m benchmarks.shifts_effect --weights cifar10_resnet20.npz [--images 500] [--frost FOLDER] [--json]

On CIFAR-10 test images (CALIBRANT_DATA), means over five severities: change of a byte; distance of the spectra of the
change (root mean square over eight rings of frequencies, in decibels: 0 is the same, 3 twice the power); accuracy of a
fixed ResNet-20. `--frost` is a folder with the five published photographs (frost1.png … frost5.jpg); without it frost
is left out.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.shifts_reference import Legacy, apply, frost
from calibrant.data import load
from calibrant.nn import build, load_weights
from calibrant.shifts import SEVERITIES, SHIFTS, corrupt
from calibrant.types import Split


def reference(name: str, severity: int, x: Tensor, pictures: list[Any]) -> Tensor:
    constant, numbers = SHIFTS[name].strengths[32][severity - 1], Legacy(severity)
    made = []
    for image in x.permute(0, 2, 3, 1).numpy():
        if name == "frost":
            picture = pictures[int(numbers.integers(0, 5, ()))]
            made.append(np.uint8(np.clip(frost(image / 255.0, constant, numbers, picture), 0, 1) * 255))
        else:
            made.append(apply(name, image, constant, numbers))
    return torch.from_numpy(np.stack(made)).permute(0, 3, 1, 2)


def rings(change: Tensor) -> Tensor:
    """Mean power of the change in eight rings of frequencies."""
    power = torch.fft.fft2(change.double()).abs().square().mean((0, 1))
    f = torch.fft.fftfreq(change.shape[-1]).abs()
    ring = (torch.maximum(f[:, None], f) * 16).long().clamp(max=7)
    return torch.stack([power[ring == r].mean() for r in range(8)])


def accuracy(model: torch.nn.Module, x: Tensor, y: Tensor, mean: Tensor, std: Tensor) -> float:
    with torch.no_grad():
        return float((model((x / 255 - mean) / std).argmax(1) == y).double().mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", required=True)
    parser.add_argument("--images", type=int, default=500)
    parser.add_argument("--frost", type=Path)
    parser.add_argument("--only", nargs="*", default=list(SHIFTS))
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    test = load("cifar10").splits[Split.TEST]
    x, y = test.x[: args.images], test.y[: args.images]
    model = load_weights(build("resnet20", classes=10, shortcut="A"), args.weights).eval()
    mean, std = torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1), torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1)
    pictures = []
    for file in ("frost1.png", "frost2.png", "frost3.png", "frost4.jpg", "frost5.jpg") if args.frost else ():
        picture = Image.open(args.frost / file).convert("RGB")
        small = picture.width // 5, picture.height // 5
        # reduced without averaging, as OpenCV's linear interpolation does
        place = Image.Transform.AFFINE, (5, 0, 0, 0, 5, 0), Image.Resampling.BILINEAR
        pictures.append(np.asarray(picture.transform(small, *place)))
    rows: dict[str, Any] = {"clean": {"accuracy": accuracy(model, x, y, mean, std)}}
    for name in args.only:
        if name == "frost" and not pictures:
            continue
        found: dict[str, list[float]] = {key: [] for key in ("ours", "theirs", "decibels", "ours_acc", "theirs_acc")}
        for severity in range(1, SEVERITIES + 1):
            ours, theirs = corrupt(x, name, severity), reference(name, severity, x, pictures)
            a, b = ours.float() - x, theirs.float() - x
            found["ours"].append(float(a.abs().mean()))
            found["theirs"].append(float(b.abs().mean()))
            distance = 10 * (rings(a) / rings(b)).log10()
            found["decibels"].append(math.sqrt(float(distance.square().mean())))
            found["ours_acc"].append(accuracy(model, ours, y, mean, std))
            found["theirs_acc"].append(accuracy(model, theirs, y, mean, std))
        rows[name] = found
        if not args.json:
            m = {key: float(np.mean(values)) for key, values in found.items()}
            print(f"| {name} | {m['ours']:.2f} | {m['theirs']:.2f} | {m['decibels']:.2f} |", end=" ")
            print(f"{100 * m['ours_acc']:.1f} | {100 * m['theirs_acc']:.1f} |", flush=True)
    print(json.dumps(rows) if args.json else rows["clean"])


if __name__ == "__main__":
    main()
