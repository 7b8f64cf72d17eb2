"""Hessian products and time to the largest eigenvalue: Lanczos against power iteration, ours and PyHessian's own.

    python -m benchmarks.hessian [--network resnet18] [--width 16] [--classes 10] [--steps 2000]
                                 [--weights cifar10_resnet20_akamaster] [--batch 128] [--batches 3]
                                 [--spectrum 100] [--device cuda] [--peers FOLDER] [--json]

The true eigenvalue comes from a long Lanczos run (1e-9, in the network's own precision). For each method the script
counts the products until its estimate is within 1e-3 of the truth, and their seconds, the graph of the batch included.
Then it shows where the rules of `calibrant probe` and of PyHessian stop, and their error there. PyHessian computes
without TF32, as we do. Batches are CIFAR's training images (CALIBRANT_DATA), cropped and flipped.
--weights W    weights of the data folder; without it the network is trained here for --steps steps
--width W      a ResNet-18 whose first stage has W channels instead of 64: small enough for a CPU
--spectrum N   also time the largest eigenvalues of N mini-batches, and measure the memory beside the network
--peers FOLDER also run PyHessian from there (`pip install --no-deps --target FOLDER pyhessian`)
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from importlib import import_module
from itertools import islice
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.side_by_side import options, timed
from calibrant.cli.probes.hessian import TOLERANCE
from calibrant.data import data_root, load
from calibrant.data.batches import Augment, Batches
from calibrant.diagnostics import hessian_spectrum
from calibrant.diagnostics.curvature import Curvature, full_precision
from calibrant.functional.krylov import Eigenpairs, lanczos, power_iteration
from calibrant.nn import build, load_weights
from calibrant.nn.blocks import Layers
from calibrant.nn.resnet import Basic, ResNet

CLOSE = 1e-3


def images(classes: int, batch: int, device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield augmented batches, epoch after epoch."""
    rng = torch.Generator().manual_seed(0)
    data = load(f"cifar{classes}")
    mean_std: Any = {"mean": data.mean, "std": data.std}
    stream = Batches(data["train"], batch, device=device, generator=rng, shuffle=True, augment=Augment(), **mean_std)
    while True:
        for x, y, _ in stream:
            yield x, y


def network(args: argparse.Namespace, device: torch.device) -> nn.Module:
    options: dict[str, Any] = {"classes": args.classes, "in_channels": 3, "size": (32, 32)}
    if args.weights:
        options["shortcut"] = "A" if "akamaster" in args.weights else "conv"
        model = build(args.network, **options)
        return load_weights(model, data_root(None) / "weights" / f"{args.weights}.npz").to(device)
    torch.manual_seed(0)
    widths = [args.width * 2**i for i in range(4)]
    model = (
        ResNet(Basic, (2, 2, 2, 2), widths, layers=Layers(), **options)
        if args.width
        else build(args.network, **options)
    )
    model = model.to(device).train()
    optimiser = torch.optim.SGD(model.parameters(), 0.05, 0.9, weight_decay=5e-4)
    for x, y in islice(images(args.classes, 128, device), args.steps):
        optimiser.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimiser.step()
    return model


def near_gradient(matrix: Curvature, rng: torch.Generator, **how: Any) -> Eigenpairs:
    """Start as `hessian_spectrum` does."""
    return lanczos(matrix, 1, rng, near=matrix.gradient(), **how)


def from_random(matrix: Curvature, rng: torch.Generator, **how: Any) -> Eigenpairs:
    return lanczos(matrix, 1, rng, **how)


def by_power(matrix: Curvature, rng: torch.Generator, **how: Any) -> Eigenpairs:
    return power_iteration(matrix, 1, rng, **how)


METHODS = {"lanczos": near_gradient, "lanczos from random": from_random, "power iteration": by_power}


def first_close(found: Eigenpairs, truth: float) -> int | None:
    """Return the number of products after which the estimate is close to the truth."""
    return next((n for n, value in enumerate(found.history, 1) if abs(value - truth) <= CLOSE * abs(truth)), None)


def pyhessian(model: nn.Module, x: Tensor, y: Tensor, seed: int) -> tuple[float, int, float]:
    """Return PyHessian's estimate, products and seconds by its defaults: at most 100 iterations, tolerance 1e-3."""
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
            value, took = timed(run, x.device.type)
        return value, products, took
    finally:
        theirs.hessian_vector_product = own
        model.zero_grad()


def row(model: nn.Module, x: Tensor, y: Tensor, seed: int, peer: bool, most: int) -> dict[str, Any]:
    """Return what every method needs on one mini-batch."""

    def found(name: str, **how: Any) -> Eigenpairs:
        return METHODS[name](Curvature(model, [(x, y)]), torch.Generator().manual_seed(seed), **how)

    truth = float(found("lanczos", tol=1e-9, most=most).values[0])
    out: dict[str, Any] = {"truth": truth}
    for name in METHODS:
        n = first_close(found(name, tol=1e-6, most=most), truth)
        if n is not None:
            _, took = timed(lambda name=name, n=n: found(name, tol=0.0, most=n), x.device.type)  # type: ignore[misc]
            out[name] = {"products": n, "seconds": round(took, 3)}
    stopped, took = timed(lambda: found("lanczos", tol=TOLERANCE), x.device.type)
    out["lanczos stops"] = stop(stopped.products, float(stopped.values[0]), truth, took)
    if peer:
        value, products, took = pyhessian(model, x, y, seed)
        out["PyHessian stops"] = stop(products, value, truth, took)
    return out


def stop(products: int, value: float, truth: float, took: float) -> dict[str, float]:
    return {"products": products, "error": abs(value / truth - 1), "seconds": round(took, 3)}


def whole_spectrum(model: nn.Module, args: argparse.Namespace, device: torch.device) -> dict[str, Any]:
    """Return seconds and products over many mini-batches, and on CUDA the memory used beside the network."""
    seen = list(islice(images(args.classes, args.batch, device), args.spectrum))
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated() if device.type == "cuda" else 0
    found, took = timed(lambda: hessian_spectrum(model, seen, tol=TOLERANCE), device.type, time.perf_counter)
    out = {"batches": len(seen), "seconds": round(took, 1), "products": int(found.products.sum())}
    if device.type == "cuda":
        vectors = 21 * sum(p.numel() * p.element_size() for p in model.parameters())
        out |= {"peak MB": (torch.cuda.max_memory_allocated() - before) // 2**20, "vectors MB": vectors // 2**20}
    return out


def main() -> None:
    args = options(
        __doc__, network="resnet18", width=0, weights="", classes=10, batch=128, batches=3, spectrum=0, steps=100,
        device="cpu", most=400, peers="", json=False,
    )  # fmt: skip
    device = torch.device(args.device)
    if args.peers:
        sys.path.append(args.peers)
    model = network(args, device).eval()
    if args.spectrum:
        print(json.dumps({"spectrum": whole_spectrum(model, args, device)}), flush=True)
    ratios = []
    for i, (x, y) in enumerate(islice(images(args.classes, args.batch, device), args.batches)):
        found = row(model, x, y, i, bool(args.peers), args.most)
        print(json.dumps(found), flush=True)
        if "power iteration" in found:  # it may stop changing before it is close
            ratios.append(found["power iteration"]["products"] / found["lanczos"]["products"])
    if not args.json:
        said = ", ".join(f"{ratio:.1f}" for ratio in ratios)
        print(f"products to {CLOSE:g} of the truth, power iteration / Lanczos: {said}; {args.batches} batches")


if __name__ == "__main__":
    main()
