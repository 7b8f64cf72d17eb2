"""PEP on networks that someone else trained (CIFAR ResNets of the data root's `weights/`): before and after.

    python benchmarks/pep_networks.py [NAME…] [--store results] [--data-root DIR] [--device cuda]

σ and T are fitted on one half of the official test set and judged on the other (the training set is what these
networks have memorised; some were selected on the test set by their authors, which favours the baseline). Five
seeded halvings give the spread; the noise of PEP has the seed of its halving.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch

from calibrant.bench.store import Cell, Store
from calibrant.data import data_root, load
from calibrant.data.batches import Batches
from calibrant.ensembles.pep import PEP
from calibrant.functional.inputs import predictions
from calibrant.nn import build, load_weights
from calibrant.posthoc.temperature import Temperature
from calibrant.training.environment import environment
from calibrant.training.evaluate import summary
from calibrant.training.recipe import digest
from calibrant.types import Split

METRICS = ("accuracy", "nll", "brier", "ece", "ece_mass", "auroc", "aurc", "gap")
NORMALISATION = {  # of the authors' own training code
    "akamaster": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225), {"shortcut": "A"}),
    "chenyaofo": ((0.5070, 0.4865, 0.4409), (0.2673, 0.2564, 0.2761), {"shortcut": "conv"}),
}
NAMES = (
    *(f"cifar10_resnet{d}_akamaster" for d in (20, 32, 44, 56)),
    *(f"cifar100_resnet{d}_chenyaofo" for d in (20, 32)),
)


@torch.no_grad()
def measure(name: str, root: str | None, device: str, halvings: int, members: int) -> dict[int, tuple[Any, Any]]:
    """seed → (measured, extras)"""
    data_name, network, author = name.split("_")
    mean, std, options = NORMALISATION[author]
    data = load(data_name, root=root)
    model = build(network, classes=len(data.classes), in_channels=3, **options).to(device).eval()
    folder = data_root(root)
    assert folder is not None, "set CALIBRANT_DATA or pass --data-root"
    load_weights(model, folder / "weights" / f"{name}.npz")
    batches = Batches(data.splits[Split.TEST], 2500, device=device, mean=mean, std=std)
    x, y = (torch.cat(t) for t in zip(*((x, y) for x, y, _ in batches), strict=True))
    logits = torch.cat([model(b) for b in x.split(2500)]).cpu()
    out = {}
    for seed in range(halvings):
        order = torch.randperm(len(y), generator=torch.Generator().manual_seed(seed)).to(device)
        fit, judge = order[: len(y) // 2], order[len(y) // 2 :]
        baseline = predictions(logits[judge.cpu()], y[judge].cpu(), split=Split.TEST)
        held = predictions(logits[fit.cpu()], y[fit].cpu(), split=Split.CALIBRATION)
        temperature = Temperature().fit(held)
        pep = PEP.fit(model, (x[fit], y[fit]), members=members, search_members=6, seed=seed)
        after = predictions(torch.cat([pep(b) for b in x[judge].split(2500)]).cpu(), y[judge].cpu(), split=Split.TEST)
        pooled = torch.cat([pep(b) for b in x[fit].split(2500)]).cpu()
        both = Temperature().fit(predictions(pooled, y[fit].cpu(), split=Split.CALIBRATION))
        measured = {
            "as_trained": summary(baseline, METRICS),
            "temperature": summary(temperature.predictions(baseline), METRICS),
            "pep": summary(after, METRICS),
            "pep_then_temperature": summary(both.predictions(after), METRICS),
        }
        assert pep.certificate is not None
        extras = {"sigma": pep.sigma, "temperature": temperature.summary()["temperature"]}
        extras |= {"passes": pep.certificate.passes, "notes": list(pep.certificate.notes)}
        out[seed] = (measured, extras)
        row = {k: {m: round(v[m] or 0, 4) for m in ("nll", "ece", "auroc")} for k, v in measured.items()}
        print(name, seed, f"σ* {pep.sigma:.4g}", json.dumps(row), file=sys.stderr, flush=True)
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=list(NAMES))
    parser.add_argument("--store", type=Path, default=Path("results"))
    parser.add_argument("--data-root", default=None)
    parser.add_argument("--halvings", type=int, default=5)
    parser.add_argument("--members", type=int, default=20)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    where, store = environment(args.device), Store(args.store)
    for name in args.names:
        start = time.perf_counter()
        found = measure(name, args.data_root, args.device, args.halvings, args.members)
        for seed, (measured, extras) in found.items():
            settings = {"weights": name, "members": args.members, "seed": seed, "split": "halves of the test set"}
            cell = Cell(
                experiment=f"pep/networks/{name}", seed=seed, scale="paper", key=digest(settings), status="done",
                settings=settings, measured=measured, note="network trained by others; fitted on one half of test",
                seconds=(time.perf_counter() - start) / len(found), device=where["device"], environment=where,
                commit=where["commit"], command=f"python benchmarks/pep_networks.py {name}", extras=extras,
            )  # fmt: skip
            store.write(cell)


if __name__ == "__main__":
    main()
