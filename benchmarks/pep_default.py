"""How many members PEP needs, and of which kind: the study behind the defaults of `PEP.fit`.

    python benchmarks/pep_default.py [NAME…] [--items 1000] [--where auto] [--seeds 1] [--store results]

NAME is a network that someone else trained (`weights/` of the data root) or one of the small overfitted ones below,
which are trained here in a minute. Every predictor has its own σ: the one of a grid with the lowest NLL on the
calibration half of the items. The choice between predictors is made there too; the other half only judges.
The noise of `pairs` is ±ε₁, ±ε₂, …; of `plain`, ε₁, ε₂, … with the same ε, so that both see the same luck.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from calibrant.bench.store import Cell, Store
from calibrant.data import data_root, load
from calibrant.data.batches import Batches
from calibrant.ensembles.pep import PEP
from calibrant.ensembles.perturbation import perturbed, select
from calibrant.functional.inputs import predictions
from calibrant.nn import build, load_weights
from calibrant.training.environment import environment
from calibrant.training.evaluate import summary
from calibrant.training.recipe import digest
from calibrant.types import Predictions, Split

METRICS = ("accuracy", "nll", "ece", "auroc")
STEP = 1.2
"""Of the grid of σ, which begins at a first guess and grows until every predictor's best σ lies inside."""

COUNTS = {"plain": (5, 10, 25), "pairs": (5, 6, 10, 16, 20)}
SEARCHES, MEMBERS = ("pairs_5", "pairs_6", "pairs_10"), ("pairs_10", "pairs_16", "pairs_20")
"""σ found with few members, predictions of more."""

NORMALISATION = {  # of the authors' own training code
    "akamaster": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225), {"shortcut": "A"}),
    "chenyaofo": ((0.5070, 0.4865, 0.4409), (0.2673, 0.2564, 0.2761), {"shortcut": "conv"}),
}
OVERFITTED = {"mnist_mlp": ("mnist", 600), "fashion_cnn": ("fashion_mnist", 2000)}
"""Trained for 30 epochs on this many items only."""

Items = tuple[Tensor, Tensor]


def items(data: Any, split: Split, count: int, mean: Any, std: Any) -> Items:
    for x, y, _ in Batches(data.splits[split], count, mean=mean, std=std):
        return x, y
    raise SystemExit(f"{data.name} has no {split} items")


def pretrained(name: str, root: str | None, count: int) -> tuple[nn.Module, Items]:
    data_name, network, author = name.split("_")
    mean, std, options = NORMALISATION[author]
    data, folder = load(data_name, root=root), data_root(root)
    assert folder is not None, "set CALIBRANT_DATA or pass --data-root"
    model = build(network, classes=len(data.classes), in_channels=3, **options)
    load_weights(model, folder / "weights" / f"{name}.npz")
    return model, items(data, Split.TEST, count, mean, std)


def overfitted(name: str, root: str | None, count: int) -> tuple[nn.Module, Items]:
    """Small, without normalisation layers, trained until its training loss vanishes; images of 14 × 14."""
    data_name, few = OVERFITTED[name]
    data = load(data_name, root=root)
    pool = nn.AvgPool2d(2)
    (x, y), (test, labels) = (
        (pool(a), b)
        for a, b in (items(data, s, n, data.mean, data.std) for s, n in ((Split.TRAIN, few), (Split.TEST, count)))
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layers: list[nn.Module] = [nn.Flatten(), nn.Linear(196, 200), nn.ReLU(), nn.Linear(200, 200)]
        if name.endswith("cnn"):
            layers = [nn.Conv2d(1, 16, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3), nn.ReLU()]
            layers += [nn.Flatten(), nn.Linear(512, 128)]
        model = nn.Sequential(*layers, nn.ReLU(), nn.LazyLinear(10))
        model(x[:2])
        optimiser = torch.optim.Adam(model.parameters(), 2e-3)
        for _ in range(30):
            for batch in torch.randperm(len(y)).split(64):
                optimiser.zero_grad()
                nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
                optimiser.step()
    return model, (test, labels)


@torch.no_grad()
def log_p(model: nn.Module, x: Tensor) -> Tensor:
    return torch.cat([torch.log_softmax(model(b).double(), -1) for b in x.split(50)])


def draws(model: nn.Module, x: Tensor, where: Any, sigma: float, seed: int) -> dict[tuple[int, int], Tensor]:
    """(sign, noise) → ln p [N, K]: 25 noises, the first ten with both signs."""
    weights, out = select(model, where), {}
    for sign, count in ((1, max(COUNTS["plain"])), (-1, max(COUNTS["pairs"]) // 2)):
        for j in range(count):
            with perturbed(weights, sign * sigma, seed=seed, member=j):
                out[sign, j] = log_p(model, x)
    return out


def pooled(drawn: dict[tuple[int, int], Tensor], kind: str, members: int) -> Tensor:
    order = [(1, j) if kind == "plain" else (1 - 2 * (j % 2), j // 2) for j in range(members)]
    return torch.logsumexp(torch.stack([drawn[key] for key in order]), 0) - math.log(members)


def study(model: nn.Module, data: Items, where: Any, seed: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """(judged, extras): metrics on the judging half, and what the calibration half says."""
    x, y = data
    model = model.eval().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    half = len(y) // 2

    def halves(logits: Tensor) -> tuple[Predictions, Predictions]:
        parts = ((slice(None, half), Split.CALIBRATION), (slice(half, None), Split.TEST))
        first, second = (predictions(logits[part], y[part], split=split) for part, split in parts)
        return first, second

    def nll(p: Predictions) -> float:
        value = summary(p, ("nll",))["nll"]
        assert value is not None
        return value

    guess = PEP.fit(model, (x[:half][:250], y[:half][:250]), where=where, seed=seed + 1000).sigma
    if guess == 0:
        raise SystemExit("no σ beats this network on its calibration items: nothing to study")
    itself = halves(log_p(model, x))
    curves: dict[str, dict[float, float]] = {f"{kind}_{m}": {} for kind, counts in COUNTS.items() for m in counts}
    judging: dict[tuple[str, float], Predictions] = {}

    def measure(sigma: float) -> None:
        drawn = draws(model, x, where, sigma, seed)
        for name, curve in curves.items():
            kind, _, members = name.partition("_")
            first, judging[name, sigma] = halves(pooled(drawn, kind, int(members)))
            curve[sigma] = nll(first)
        print(f"  σ {sigma:.4g}", {k: round(c[sigma], 4) for k, c in curves.items()}, file=sys.stderr, flush=True)

    def best(name: str) -> float:
        return min(curves[name], key=curves[name].__getitem__)

    low = high = guess
    measure(guess)
    while any(best(name) == high for name in curves):
        high *= STEP
        measure(high)
    while any(best(name) == low for name in curves):
        low /= STEP
        measure(low)
    judged: dict[str, Any] = {"as_trained": summary(itself[1], METRICS)}
    calibration = {"as_trained": nll(itself[0])}
    rules = {name: (name, name) for name in curves}
    rules |= {f"{s}_then_{m.partition('_')[2]}": (s, m) for s in SEARCHES for m in MEMBERS if s != m}
    for rule, (search, members) in rules.items():
        judged[rule] = summary(judging[members, best(search)], METRICS)
        calibration[rule] = curves[members][best(search)]
    return judged, {"sigma": {name: best(name) for name in curves}, "calibration_nll": calibration}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=["cifar10_resnet20_akamaster", *OVERFITTED])
    parser.add_argument("--items", type=int, default=1000, help="half of them calibrate")
    parser.add_argument("--where", default="auto")
    parser.add_argument("--seeds", type=int, default=1, help="draws of the noise")
    parser.add_argument("--store", type=Path, default=Path("results"))
    parser.add_argument("--data-root", default=None)
    args = parser.parse_args()
    machine, store = environment("cpu"), Store(args.store)
    for name in args.names:
        make: Callable[..., tuple[nn.Module, Items]] = overfitted if name in OVERFITTED else pretrained
        model, data = make(name, args.data_root, args.items)
        for seed in range(args.seeds):
            print(name, args.where, "noise", seed, file=sys.stderr, flush=True)
            start = time.perf_counter()
            judged, extras = study(model, data, args.where, seed)
            settings = {"weights": name, "where": args.where, "items": args.items, "seed": seed, "step": STEP}
            cell = Cell(
                experiment=f"pep/default/{name}_{args.where}", seed=seed, scale="small", key=digest(settings),
                status="done", settings=settings, measured=judged, extras=extras, device=machine["device"],
                note="σ and the choice on one half of the items, measured on the other",
                seconds=time.perf_counter() - start, environment=machine, commit=machine["commit"],
                command=f"python benchmarks/pep_default.py {name} --items {args.items} --where {args.where}",
            )  # fmt: skip
            store.write(cell)


if __name__ == "__main__":
    main()
