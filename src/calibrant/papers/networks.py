"""Networks that others trained and published, as rows: nothing is trained, and what a paper asks is asked of them.

A seed is a halving of the test set, so seeds say nothing about another training. The networks do: a table of them is
judged over its rows (`bench.verdict`).
"""

from __future__ import annotations

from typing import Any

from calibrant.papers.experiment import Experiment, Published, Said
from calibrant.training.recipe import DataSettings, Recipe
from calibrant.training.settings import Choice

AUTHORS: dict[str, tuple[dict[str, Any], tuple[float, ...], tuple[float, ...]]] = {
    "akamaster": ({"shortcut": "A"}, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "chenyaofo": ({"shortcut": "conv"}, (0.5070, 0.4865, 0.4409), (0.2673, 0.2564, 0.2761)),
}
"""Who published networks → options of our network of that name, and the mean and deviation of their training code."""
NETWORKS = (
    *(f"cifar10_resnet{depth}_akamaster" for depth in (20, 32, 44, 56)),
    *(f"cifar100_resnet{depth}_chenyaofo" for depth in (20, 32)),
)
"""Data, network and author: files of the data folder's `weights/`."""
SAID = (
    "cifar10_lenet5_netcal",
    "cifar10_vgg16_plambda",
    "cifar10_wrn16-4_netcal",
    "cifar10_resnet18_torchuq",
    "cifar10_resnet110_kerrigan",
    "cifar100_wrn16-4_netcal",
    *NETWORKS,
)
"""The same of the data folder's `logits/`."""


def published(paper: str, name: str, *, test: int | None = None, **asked: Any) -> Experiment:
    """What a paper asks of a published network, on the whole test set or a seeded part of this many items.

    Some of these networks were selected on the test set by their authors, which favours the network as it is."""
    options, mean, std = AUTHORS[name.split("_")[2]]
    return _row(paper, name, Published(name, mean, std), options, test, asked)


def said(paper: str, name: str, **asked: Any) -> Experiment:
    """What a paper asks of the published predictions of a network: maps only."""
    return _row(paper, name, Said(name), {}, None, asked)


def _row(
    paper: str, name: str, published: Published | Said, options: dict[str, Any], test: int | None, asked: dict[str, Any]
) -> Experiment:
    data, network, _ = name.split("_")
    settings = DataSettings(data, sizes=None if test is None else {"test": test})
    return Experiment(
        paper=paper,
        table="networks",
        row=name,
        recipe=Recipe(Choice(network, options), name=f"{paper}/{name}", data=settings, epochs=1),  # the fewest
        published=published,
        note="network trained by others; fitted on one half of test",
        **asked,
    )
