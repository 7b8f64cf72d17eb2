"""Hessian products and time to the largest eigenvalue: our Lanczos against power iteration, ours and PyHessian's own.

    python -m benchmarks.hessian [--network resnet18] [--weights cifar10_resnet20_akamaster] [--batch 128] [--batches 3]
                                 [--device cuda] [--most 400] [--peers FOLDER] [--json]

The truth is a long Lanczos run (1e-9, in the network's own precision). Counted are the products until an estimate is
within 1e-3 of it; for Lanczos and PyHessian also where their own rules stop, how wrong they are there, and the seconds.
PyHessian computes without TF32, as we do. Lanczos stops by the tolerance of `calibrant probe`.
Batches are CIFAR's training images (CALIBRANT_DATA), cropped and flipped. Without --weights the network is trained here
for --steps steps. FOLDER holds PyHessian (`pip install --no-deps --target FOLDER pyhessian`).
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from importlib import import_module
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.side_by_side import options, timed
from calibrant.cli.probes.hessian import TOLERANCE
from calibrant.data import data_root, load
from calibrant.data.batches import Augment, Batches
from calibrant.diagnostics.curvature import Curvature, full_precision
from calibrant.functional.krylov import Eigenpairs, lanczos, power_iteration
from calibrant.nn import build, load_weights

CLOSE = 1e-3


def images(classes: int, batch: int, count: int, device: torch.device) -> list[tuple[Tensor, Tensor]]:
    rng = torch.Generator().manual_seed(0)
    data = load(f"cifar{classes}")
    mean_std: Any = {"mean": data.mean, "std": data.std}
    stream = Batches(data["train"], batch, device=device, generator=rng, shuffle=True, augment=Augment(), **mean_std)
    return [(x, y) for (x, y, _), _ in zip(stream, range(count), strict=False)]


def network(args: argparse.Namespace, device: torch.device) -> nn.Module:
    options: dict[str, Any] = {"classes": args.classes, "in_channels": 3, "size": (32, 32)}
    if args.weights:
        options["shortcut"] = "A"
        return load_weights(build(args.network, **options), data_root(None) / "weights" / f"{args.weights}.npz").to(
            device
        )
    torch.manual_seed(0)
    model = build(args.network, **options).to(device).train()
    optimiser = torch.optim.SGD(model.parameters(), 0.05, 0.9, weight_decay=5e-4)
    for x, y in images(args.classes, 128, args.steps, device):
        optimiser.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimiser.step()
    return model


def first_close(found: Eigenpairs, truth: float) -> int | None:
    """Products after which the estimate is close."""
    return next((n for n, value in enumerate(found.history, 1) if abs(value - truth) <= CLOSE * abs(truth)), None)


def pyhessian(model: nn.Module, x: Tensor, y: Tensor, seed: int) -> tuple[float, int, float]:
    """Its estimate, its products and its seconds, as it comes: 100 iterations at most, 1e-3 between two of them."""
    theirs: Any = import_module("pyhessian.hessian")  # the package has a class of this name
    products, own = 0, theirs.hessian_vector_product

    def counting(*arguments: Any) -> Any:
        nonlocal products
        products += 1
        return own(*arguments)

    def run() -> float:
        return float(theirs.hessian(model, F.cross_entropy, data=(x, y), cuda=x.is_cuda).eigenvalues()[0][0])

    torch.manual_seed(seed)
    theirs.hessian_vector_product = counting
    try:
        with full_precision():
            value, took = timed(run, x.device.type, time.perf_counter)
        return value, products, took
    finally:
        theirs.hessian_vector_product = own
        model.zero_grad()


def row(model: nn.Module, x: Tensor, y: Tensor, seed: int, peer: bool, most: int) -> dict[str, Any]:
    matrix = Curvature(model, [(x, y)])

    def start() -> torch.Generator:
        return torch.Generator().manual_seed(seed)

    long = lanczos(matrix, 1, start(), tol=1e-9, most=most)
    truth = float(long.values[0])
    power = power_iteration(matrix, 1, start(), tol=1e-6, most=most)
    fresh = Curvature(model, [(x, y)])
    stopped, took = timed(lambda: lanczos(fresh, 1, start(), tol=TOLERANCE), x.device.type, time.perf_counter)
    out: dict[str, Any] = {"truth": truth, "lanczos": first_close(long, truth), "power": first_close(power, truth)}
    out |= {"lanczos_stops": stopped.products, "lanczos_error": abs(float(stopped.values[0]) / truth - 1)}
    out["seconds"] = took
    if peer:
        value, products, took = pyhessian(model, x, y, seed)
        out |= {"pyhessian_stops": products, "pyhessian_error": abs(value / truth - 1), "pyhessian_seconds": took}
    return out


def main() -> None:
    args = options(
        __doc__, network="resnet18", weights="", classes=10, batch=128, batches=3, steps=100, device="cpu", most=400,
        peers="", json=False,
    )  # fmt: skip
    device = torch.device(args.device)
    if args.peers:
        sys.path.append(args.peers)
    model = network(args, device).eval()
    rows = []
    for i, (x, y) in enumerate(images(args.classes, args.batch, args.batches, device)):
        rows.append(row(model, x, y, i, bool(args.peers), args.most))
        print(json.dumps(rows[-1]), flush=True)
    if not args.json:
        both = [r["power"] / r["lanczos"] for r in rows if r["power"]]
        said = f"median {statistics.median(both):.1f}, " if both else ""
        missed = f"power iteration stood still before that in {len(rows) - len(both)} of {len(rows)} batches"
        print(f"products to {CLOSE:g} of the truth, power iteration / Lanczos: {said}{missed}")


if __name__ == "__main__":
    main()
