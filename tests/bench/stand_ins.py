"""Small replacements for the papers' data and networks, so that every table runs in seconds: digits, generated texts
and frames.

A cell says what stood in for what, is of scale `smoke`, and stands beside no number of a paper.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import TensorDataset

from calibrant.data import load
from calibrant.papers import Experiment
from calibrant.papers.experiment import SMOKE_SIZES, PublishedLogits, PublishedNetwork
from calibrant.training.networks import network_of
from calibrant.training.recipe import Recipe
from calibrant.training.settings import Choice

FOREIGN, SAME_TASK = "ood:noise_gaussian", "digits"
TEXTS, FRAMES = (f"{__name__}:{made}" for made in ("texts", "frames"))


def texts() -> Mapping[str, TensorDataset]:
    """Texts of four classes; each class has its own words among the common ones."""
    g = torch.Generator().manual_seed(0)

    def part(n: int) -> TensorDataset:
        y = torch.arange(n) % 4
        common, own = (torch.randint(0, 40, (n, 32), generator=g) for _ in range(2))
        words = torch.where(torch.rand(n, 32, generator=g) < 0.5, 2 + common, 50 + 40 * y[:, None] + own)
        return TensorDataset(words, y)

    return {name: part(n) for name, n in SMOKE_SIZES.items()}


def frames() -> Mapping[str, TensorDataset]:
    """A bright block on dark ground that moves to the right and starts again; one column of pixels has no class."""

    def part(n: int) -> TensorDataset:
        x, y = torch.zeros(n, 3, 24, 32, dtype=torch.uint8), torch.zeros(n, 24, 32, dtype=torch.long)
        for i in range(n):
            columns = slice(i % 20, i % 20 + 12)
            x[i, :, 4:20, columns], y[i, 4:20, columns] = 200, 1
        y[:, :, 0] = -1
        return TensorDataset(x, y)

    # the calibration part of smoke scale is cut from training, as it is from CamVid's
    return {"train": part(SMOKE_SIZES["calibration"] + 16), "validation": part(20), "test": part(4)}


def stand_in(e: Experiment) -> Experiment:
    """The same experiment on a small network and data that need no download."""
    shifts = tuple(_shift(name) for name in e.shifts)
    reference = None if e.reference is None else _small(e.reference)
    # where a network drops and where smoothing goes are places of the paper's network
    ensembles = tuple(Choice(c.name, {k: v for k, v in c.options.items() if k != "where"}) for c in e.ensembles)
    published = e.published
    if isinstance(published, PublishedNetwork):
        published = PublishedNetwork(published.weights, (0.5,), (1.0,))
    same = {"shifts": shifts, "reference": reference, "ensembles": ensembles, "published": published}
    return replace(e, recipe=_small(e.recipe), original=e.recipe, **same)


def publish(e: Experiment, root: Path, moved: int = 0) -> None:
    """Write random weights or predictions as a published network's files; `moved` shifts their labels."""
    if isinstance(e.published, PublishedLogits):
        parts = load("digits").splits.values()  # the file has every item of the set, not the few of a smoke run
        labels = torch.cat([p.y for p in parts])[torch.cat([p.index for p in parts]).argsort()]
        logits = torch.randn(len(labels), 10, generator=torch.Generator().manual_seed(0))
        arrays = {"logits": logits.numpy(), "labels": labels.roll(moved).numpy()}
        file = root / "logits" / f"{e.published.logits}.npz"
    elif e.published is not None:
        network = network_of(e.recipe, 10, (1, 8, 8), seed=0)
        arrays = {name: value.numpy() for name, value in network.state_dict().items()}
        file = root / "weights" / f"{e.published.weights}.npz"
    else:
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    np.savez(file, **arrays)  # type: ignore[arg-type]


def factory(e: Experiment) -> str:
    """The `module:function` that makes the experiment's data; empty for digits."""
    return e.recipe.data.name if ":" in e.recipe.data.name else ""


def _shift(name: str) -> str:
    if name.startswith("ood:"):
        return FOREIGN
    own = name in ("corruptions", "perturbations", "ood", "train", "levels") or name.startswith("attack:")
    return name if own else SAME_TASK


def _small(recipe: Recipe) -> Recipe:
    dropout: dict[str, Any] = {"dropout": recipe.network.options.get("dropout", 0.0)}
    name = recipe.data.name
    if name == "camvid":
        data, network = FRAMES, Choice("unet", {"width": 8, **dropout})
    elif name == "news20":
        data, network = TEXTS, Choice("text_cnn", {"embedding": 8, "channels": 8, "vocabulary": 210})
    else:
        data, network = "digits" + name[len(name.split("[")[0]) :], Choice("mlp", {"hidden": (16,), **dropout})
    selection = recipe.selection
    if selection is not None:
        selection = replace(selection, grid={key: values[:2] for key, values in selection.grid.items()})
    return replace(recipe, data=replace(recipe.data, name=data), network=network, selection=selection)
