"""PEP and MC dropout against the naive loop, in one process on the same work: ratios, not seconds.

    python benchmarks/ensembles.py [--device cuda] [--items 5000] [--json]

naive PEP: golden section over σ, a deep copy of the model for every member, fp32 (PEP §3.1's own search).
naive MC dropout: the whole network again for every member, fp32.
"""

from __future__ import annotations

import argparse
import copy
import json
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from calibrant.ensembles.dropout import MCDropout
from calibrant.ensembles.ensemble import LogMean
from calibrant.ensembles.pep import PEP
from calibrant.functional.noise import member_seed, perturb_
from calibrant.functional.search import golden
from calibrant.nn import build


def seconds(f: Callable[[], Any], device: str, repeats: int = 3) -> float:
    f()
    best = float("inf")
    for _ in range(repeats):
        if device == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        f()
        if device == "cuda":
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - start)
    return best


@torch.no_grad()
def naive_pep(model: nn.Module, x: Tensor, y: Tensor, members: int = 5) -> float:
    """σ* as a person would write it: copy, add noise, run, for every σ of golden section."""

    def likelihood(sigma: float) -> float:
        pooled = LogMean()
        for j in range(members):
            other = copy.deepcopy(model)
            generator = torch.Generator(x.device).manual_seed(member_seed(0, j))
            for m in other.modules():
                if isinstance(m, nn.Conv2d):
                    m.weight.add_(torch.randn(m.weight.shape, generator=generator, device=x.device), alpha=sigma)
            pooled.add(torch.cat([other(b) for b in x.split(500)]))
        return float(pooled.value().gather(1, y[:, None]).mean())

    return golden(likelihood, 5e-5, 5e-3, 7).best


@torch.no_grad()
def naive_dropout(model: nn.Module, x: Tensor, members: int) -> Tensor:
    pooled = LogMean()
    for m in model.modules():
        if isinstance(m, nn.Dropout):
            m.training = True
    for _ in range(members):
        pooled.add(model(x))
    model.eval()
    return pooled.value()


def train_a_little(model: nn.Module, x: Tensor, y: Tensor) -> nn.Module:
    """Enough steps on noisy labels to be overconfident: σ* then lies inside the paper's range."""
    optimiser = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    for step in range(60):
        rows = torch.arange(step * 128, (step + 1) * 128, device=x.device) % 1024
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
        optimiser.step()
    return model.eval()


def separable(n: int, device: str, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Ten classes of 32×32 images: a class pattern in noise, a tenth of the labels wrong."""
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 10, (n,), generator=g)
    pattern = torch.randn(10, 3, 32, 32, generator=torch.Generator().manual_seed(7))
    x = 0.35 * pattern[y] + torch.randn(n, 3, 32, 32, generator=g)
    wrong = torch.rand(n, generator=g) < 0.1
    y[wrong] = torch.randint(0, 10, (int(wrong.sum()),), generator=g)
    return x.to(device), y.to(device)


def bench_pep(device: str, items: int, network: str) -> dict[str, float]:
    model = build(network, classes=10, in_channels=3, seed=0).to(device)
    x, y = separable(items + 1024, device)
    train_a_little(model, x[items:], y[items:])
    x, y = x[:items], y[:items]
    fast: dict[str, Any] = {}
    if device == "cuda":
        model = model.to(memory_format=torch.channels_last)
        fast["autocast"] = torch.float16
    repeats = 3 if device == "cuda" else 1
    found: dict[str, float] = {}

    def ours() -> None:
        found["ours"] = PEP.fit(model, (x, y), **fast).sigma

    def naive() -> None:
        found["naive"] = naive_pep(model, x, y)

    slow, quick = seconds(naive, device, repeats), seconds(ours, device, repeats)
    return {"naive_s": slow, "ours_s": quick, "ratio": slow / quick, **{f"sigma_{k}": v for k, v in found.items()}}


def bench_dropout(device: str, items: int, network: str, head_only: bool) -> dict[str, float]:
    options = {} if head_only else {"dropout": 0.3}
    model = build(network, classes=10, in_channels=3, seed=0, **options).to(device).eval()
    if head_only:
        model = nn.Sequential(model, nn.Dropout(0.5), nn.Linear(10, 10)).to(device).eval()
    x = torch.randn(items, 3, 32, 32, device=device)
    members = 50
    slow = seconds(lambda: naive_dropout(model, x, members), device, 2)
    ensemble = MCDropout(model, members=members)
    if device == "cuda" and not head_only:
        model.to(memory_format=torch.channels_last)
        x = x.to(memory_format=torch.channels_last)

        def ours() -> Tensor:
            with torch.autocast("cuda", dtype=torch.bfloat16):
                return ensemble(x)
    else:

        def ours() -> Tensor:
            return ensemble(x)

    quick = seconds(ours, device, 2)
    return {"naive_s": slow, "ours_s": quick, "ratio": slow / quick}


def bench_perturb(numbers: int = 1 << 28) -> dict[str, float]:
    """The fused perturbation against a plain copy of the same tensor, in bytes a second."""
    original = torch.zeros(numbers, device="cuda")
    target = torch.empty_like(original)
    copied = seconds(lambda: target.copy_(original), "cuda", 10)
    fused = seconds(lambda: perturb_([target], [original], 0.1, seed=0, member=0), "cuda", 10)
    return {"copy_s": copied, "fused_s": fused, "share_of_copy_bandwidth": copied / fused}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--items", type=int, default=0, help="images (default: 5000 on a GPU, 400 on a CPU)")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    cuda = args.device == "cuda"
    items = args.items or (5000 if cuda else 400)
    network = "resnet18" if cuda else "resnet20"
    rows = {
        f"PEP, time to σ*, {network}, {items} images, 5 members": bench_pep(args.device, items, network),
        f"MC dropout 50, one layer a block, {network}": bench_dropout(args.device, 512 if cuda else 64, network, False),
        f"MC dropout 50, head only, {network}": bench_dropout(args.device, 512 if cuda else 64, network, True),
    }
    if cuda:
        rows["perturbation, 2^28 float32"] = bench_perturb()
    if args.json:
        print(json.dumps(rows, indent=2, ensure_ascii=False))
        return
    for name, row in rows.items():
        print(name + ":", "  ".join(f"{k} {v:.4g}" for k, v in row.items()))


if __name__ == "__main__":
    main()
