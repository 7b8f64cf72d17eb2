"""Networks that others trained and published, as rows: a paper's question is asked without training anything.

A seed is a halving of the test set, so seeds say nothing about another training. Several networks do: a table of them
is judged over its rows (`bench.verdict`).
"""

from __future__ import annotations

from typing import Any

from calibrant.papers.experiment import Experiment, PublishedLogits, PublishedNetwork
from calibrant.training.recipe import DataSettings, Recipe
from calibrant.training.settings import Choice

AUTHORS: dict[str, tuple[dict[str, Any], tuple[float, ...], tuple[float, ...]]] = {
    "akamaster": ({"shortcut": "A"}, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "chenyaofo": ({"shortcut": "conv"}, (0.5070, 0.4865, 0.4409), (0.2673, 0.2564, 0.2761)),
}
"""Author → options of our network of that name, and the mean and standard deviation of the author's training code."""
NETWORKS = (
    *(f"cifar10_resnet{depth}_akamaster" for depth in (20, 32, 44, 56)),
    *(f"cifar100_resnet{depth}_chenyaofo" for depth in (20, 32)),
)
"""Data, network and author: files in `weights/` of the data folder."""
LOGITS = (
    "cifar10_lenet5_netcal",
    "cifar10_vgg16_plambda",
    "cifar10_wrn16-4_netcal",
    "cifar10_resnet18_torchuq",
    "cifar10_resnet110_kerrigan",
    "cifar100_wrn16-4_netcal",
    *NETWORKS,
)
"""The same, for files in `logits/` of the data folder."""


def published_network(paper: str, name: str, *, test: int | None = None, **asked: Any) -> Experiment:
    """What a paper asks of a published network, on the whole test set or on a seeded part of `test` items.

    The authors of some of these networks selected them on the test set, which favours the network as trained."""
    options, mean, std = AUTHORS[name.split("_")[2]]
    return _row(paper, name, PublishedNetwork(name, mean, std), options, test, asked)


def published_logits(paper: str, name: str, **asked: Any) -> Experiment:
    """What a paper asks of a network's published predictions: calibrators only."""
    return _row(paper, name, PublishedLogits(name), {}, None, asked)


def _row(
    paper: str,
    name: str,
    published: PublishedNetwork | PublishedLogits,
    options: dict[str, Any],
    test: int | None,
    asked: dict[str, Any],
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
