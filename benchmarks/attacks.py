"""CW-L2 against foolbox and cleverhans at the paper's settings, and DDN against CW; ratios measured in one process.

    python -m benchmarks.attacks [--device cuda] [--peers FOLDER] [--items 128] [--json]
    python -m benchmarks.attacks --levels [--run RUN/] --device cuda      CW and DDN over 50,000 CIFAR-10 images

AR A.4: 3 search steps, 500 iterations, learning rate 0.005. The network is a CNN trained here on Fashion-MNIST
(CALIBRANT_DATA), or on the bundled digits without it. All attacks start from the same images and the network's own
predictions, and distances are of pixels in [0, 1]. The images are from the second half of the test set, without its
first 64, because the attacks' constants were chosen on earlier images. On a busy machine use --repeats 3: the attacks
take turns, and the ratio is the median. FOLDER holds peers that are not installed
(`pip install --no-deps --target FOLDER foolbox eagerpy GitPython gitdb smmap cleverhans`, and `requests` with what it
needs).
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.side_by_side import options, timed
from calibrant.attacks import DDN, Bounds, CarliniWagner
from calibrant.data import load
from calibrant.nn import build

PAPER = {"search_steps": 3, "iterations": 500, "lr": 0.005}
Peer = Callable[[nn.Module, Tensor, Tensor, Bounds], Tensor]


def foolbox(model: nn.Module, x: Tensor, own: Tensor, bounds: Bounds) -> Tensor:
    import foolbox as fb

    preprocessing = {"mean": list(bounds.mean or (0.0,)), "std": list(bounds.std or (1.0,)), "axis": -3}
    wrapped = fb.PyTorchModel(model, bounds=(0, 1), preprocessing=preprocessing, device=x.device)
    attack = fb.attacks.L2CarliniWagnerAttack(binary_search_steps=3, steps=500, stepsize=0.005)
    _, adversarial, _ = attack(wrapped, bounds.pixels(x), own, epsilons=None)
    return bounds.inputs(adversarial, x.dtype)


def cleverhans(model: nn.Module, x: Tensor, own: Tensor, bounds: Bounds) -> Tensor:
    from cleverhans.torch.attacks.carlini_wagner_l2 import carlini_wagner_l2

    def over_pixels(pixel: Tensor) -> Tensor:
        out: Tensor = model(bounds.inputs(pixel, x.dtype))
        return out

    settings = {"binary_search_steps": 3, "max_iterations": 500, "lr": 0.005}
    adversarial = carlini_wagner_l2(over_pixels, bounds.pixels(x), 10, y=own, **settings)
    return bounds.inputs(adversarial, x.dtype)


MOST = {"cleverhans": 256}
"""Images for a peer on CUDA; few for cleverhans, which waits for every image's result at every iteration."""
PEERS: dict[str, Peer] = {"foolbox": foolbox, "cleverhans": cleverhans}


def trained(device: str, seed: int) -> tuple[nn.Module, Tensor, Bounds, str]:
    """(a small CNN trained here, test images, their bounds, a name)."""
    root = os.environ.get("CALIBRANT_DATA")
    data = load("fashion_mnist", root=root) if root else load("digits")
    assert data.mean is not None and data.std is not None
    bounds = Bounds(mean=data.mean, std=data.std)
    part = data["train"]
    x, y = bounds.inputs(part.x.to(device).float() / 255, torch.float32), part.y.to(device)
    model = build("cifar_cnn", classes=data.k, in_channels=data.shape[0], size=data.shape[1:], seed=seed)
    model = model.to(device)
    optimiser = torch.optim.Adam(model.parameters(), 2e-3)
    epochs = 2 if root else 20
    for epoch in range(epochs):
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(1000 * seed + epoch)).to(device)
        for rows in order.split(128):
            optimiser.zero_grad()
            nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
            optimiser.step()
    test = data["test"]
    return model.eval(), bounds.inputs(test.x.to(device).float() / 255, torch.float32), bounds, data.name


@torch.no_grad()
def predicted(model: nn.Module, x: Tensor) -> Tensor:
    """The labels that all attacks start from, of one pass, because in another batch a borderline image may change."""
    label: Tensor = model(x).argmax(-1)
    return label


@torch.no_grad()
def distances(model: nn.Module, x: Tensor, own: Tensor, adversarial: Tensor, bounds: Bounds) -> Tensor:
    """L2 distances in pixels; infinite where a fresh forward pass still gives the original label."""
    success = predicted(model, adversarial) != own
    distance = torch.linalg.vector_norm((bounds.pixels(adversarial) - bounds.pixels(x)).flatten(1), dim=1)
    return torch.where(success, distance, torch.inf)


def judged(distance: Tensor) -> dict[str, float]:
    return {"success": torch.isfinite(distance).float().mean().item(), "median_l2": distance.median().item()}


def spearman(a: Tensor, b: Tensor) -> float:
    ranks = torch.stack([v.argsort().argsort().double() for v in (a, b)])
    return torch.corrcoef(ranks)[0, 1].item()


def compare(device: str, items: int, engine: str, repeats: int, seed: int) -> list[dict[str, Any]]:
    model, x, bounds, name = trained(device, seed)
    x = x[len(x) // 2 + 64 :][:items]
    items = len(x)
    on_cuda = {"engine": engine} if device == "cuda" else {}
    cw, ddn = CarliniWagner(bounds=bounds, **PAPER, **on_cuda), DDN(bounds=bounds, **on_cuda)
    cw.run(model, x[:8])  # libraries load and choose kernels
    own = predicted(model, x)
    ours, seconds = timed(lambda: cw.run(model, x, own), device)
    reached = distances(model, x, own, ours.adversarial, bounds)
    rows = [{"what": f"calibrant CW on {name}, {items} images", "seconds": seconds, "ratio": 1.0,
             **judged(reached), "said": ours.success.float().mean().item(),
             "calls": ours.calls.float().mean().item()}]  # fmt: skip
    for peer, attack in PEERS.items():
        try:
            __import__(peer)
        except (ImportError, AttributeError) as error:  # numba, which foolbox asks for, may break on other packages
            rows.append({"what": peer, "skipped": f"{error}; pip install it or name a folder by --peers"})
            continue
        some = x[: MOST.get(peer, items)] if device == "cuda" else x
        fled = own[: len(some)]
        ratios = []
        for _ in range(repeats):
            short = timed(lambda some=some, fled=fled: cw.run(model, some, fled), device)[1]
            adversarial, took = timed(lambda a=attack, some=some, fled=fled: a(model, some, fled, bounds), device)
            ratios.append(took / short)
        theirs, mine = distances(model, some, fled, adversarial, bounds), reached[: len(some)]
        found = judged(theirs) | {f"{k}_of_calibrant": v for k, v in judged(mine).items()}
        both = torch.isfinite(theirs) & torch.isfinite(mine)
        found["median_of_ours_over_theirs"] = (mine / theirs)[both].median().item()  # of each image
        ratio = torch.tensor(ratios).median().item()
        rows.append({"what": f"{peer}, {len(some)} images", "seconds": took, "ratio": ratio, **found})
    timed(lambda: ddn.run(model, x, own), device)
    cheap, took = timed(lambda: ddn.run(model, x, own), device)
    again = timed(lambda: cw.run(model, x, own), device)[1] if repeats > 1 else seconds
    rows.append(
        {
            "what": "calibrant DDN, the cheap ruler (ratio: CW's time over its own)",
            "seconds": took,
            "ratio": again / took,
            **judged(distances(model, x, own, cheap.adversarial, bounds)),
            "said": cheap.success.float().mean().item(),
            "calls": cheap.calls.float().mean().item(),
            "cheaper_in_calls": (ours.calls.float().mean() / cheap.calls.float().mean()).item(),
            "spearman_with_cw": spearman(cheap.distance, ours.distance),
        }
    )
    return rows


def rulers(device: str, run: str, items: int, cw_items: int, engine: str) -> list[dict[str, Any]]:
    """The levels of all training images with ResNet-29 v2 by DDN, and images per second of full CW on some of them.

    DDN runs first, so that its time includes loading libraries and choosing kernels, as for a user who measures levels
    once. After CW it runs again, warm.
    """
    from calibrant.attacks import levels, robustness
    from calibrant.data.batches import Batches

    if run:
        from calibrant.training.run_folder import load as load_run

        loaded = load_run(run)
        model, mean, std = loaded.members[0], loaded.mean, loaded.std
    else:
        model, mean, std = build("resnet29v2", classes=10), (0.4914, 0.4822, 0.4465), (0.247, 0.2435, 0.2616)
    model = model.to(device).eval()
    part = load("cifar10", sizes={"validation": 0, "calibration": 0})["train"]
    network = run or "ResNet-29 v2 of random weights"
    out: list[dict[str, Any]] = []
    measured: dict[str, Tensor] = {}
    for name, ruler, n in (("ddn", "ddn", items), ("cw", "cw", min(items, cw_items)), ("ddn, warm", "ddn", items)):
        chosen = part.take(torch.arange(min(n, part.n)), part.split)
        batches = Batches(chosen, 2048, device=device, mean=mean, std=std)
        settings = {"engine": engine} if device == "cuda" else {}
        distance, took = timed(lambda b=batches, r=ruler, s=settings: robustness(model, b, r, **s), device)
        row = {"what": f"{name}, {chosen.n} images, {network}", "seconds": took, "images_per_second": chosen.n / took}
        row |= {"success": torch.isfinite(distance).float().mean().item(), "median_l2": distance.median().item()}
        row["levels"] = levels(distance, min(10, chosen.n)).bincount().tolist()
        row["seconds_for_50000"] = 50_000 / chosen.n * took
        measured[name] = distance
        if ruler == "cw":
            row["spearman_with_ddn"] = spearman(distance, measured["ddn"][: chosen.n])
        out.append(row)
    cold, full, warm = (row["seconds_for_50000"] for row in out)
    scaled = "" if cw_items >= items else f", CW's scaled up from {cw_items} images with all it costs to start"
    out.append({"what": f"CW's time over DDN's{scaled}", "cold": full / cold, "warm": full / warm})
    return out


def main() -> None:
    given = options(
        __doc__, device="cpu", items=0, peers="", engine="auto", levels=False, run="", repeats=1, cw_items=4096, seed=0,
        json=False,
    )  # fmt: skip
    if given.peers:
        sys.path.insert(0, given.peers)
    if given.levels:
        rows = rulers(given.device, given.run, given.items or 50_000, given.cw_items, given.engine)
    else:
        items = given.items or (1000 if given.device == "cuda" else 64)
        rows = compare(given.device, items, given.engine, given.repeats, given.seed)
    for row in rows:
        print(json.dumps(row) if given.json else "  ".join(_words(row)))


def _words(row: dict[str, Any]) -> list[str]:
    return [f"{v:.4g} {k}" if isinstance(v, float) else f"{v}" if k == "what" else f"{k} {v}" for k, v in row.items()]


if __name__ == "__main__":
    main()
