"""The step of a network that someone else trained. It leaves a folder like that of a training, and the experiment goes
on from there. Where only the network's predictions are published, the folder has no weights, so only calibrators can be
measured.

Such a network has seen the whole training set. So everything is fitted on one seeded half of the official test set, its
calibration part, and judged on the other half.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import torch

from calibrant.bench.ensembles import BATCH
from calibrant.bench.place import BenchStep, Place
from calibrant.bench.store import BOTH, KEY_LENGTH
from calibrant.data import Batches, Data, data_root
from calibrant.ensembles.prediction import predict
from calibrant.errors import FileError
from calibrant.executors import Step
from calibrant.files import hashed, read, write
from calibrant.nn import load_weights
from calibrant.papers.experiment import PublishedLogits, PublishedNetwork
from calibrant.training import checkpoint, run_folder
from calibrant.training.networks import network_of
from calibrant.training.recipe import Recipe, digest
from calibrant.training.run import make_fabric
from calibrant.training.settings import plain
from calibrant.types import Predictions, Split


@dataclass(frozen=True)
class Downloaded(BenchStep):
    """A published network, with one halving of its test set."""

    recipe: Recipe
    published: PublishedNetwork | PublishedLogits
    place: Place

    @cached_property
    def _content(self) -> str:
        return digest([plain(self.published), self.recipe.key()])[:KEY_LENGTH]

    @property
    def key(self) -> str:
        return f"downloaded-{self._content}"

    @property
    def name(self) -> str:
        return f"network {self._file().stem}, halving {self.recipe.seed}"

    @property
    def needs(self) -> tuple[str, ...]:
        return ()

    @property
    def before(self) -> list[Step]:
        return []

    @property
    def folder(self) -> Path:
        return self.place.runs / self._content

    def done(self) -> bool:
        return (self.folder / "metrics.json").is_file()

    def data(self) -> Data:
        """The two halves of the test set, normalised as the network's author did."""
        whole, published = self.place.data(self.recipe), self.published
        test = whole[Split.TEST]
        order = torch.randperm(test.n, generator=torch.Generator().manual_seed(self.recipe.seed))
        halves = zip(BOTH, order.tensor_split(2), strict=True)
        data = replace(whole, splits={split: test.take(items, split) for split, items in halves})
        if isinstance(published, PublishedLogits):
            return data
        return replace(data, mean=published.mean, std=published.std)

    def run(self, deadline: float | None) -> None:
        file, data = self._existing_file(), self.data()
        fabric = make_fabric(self.recipe, self.place.how)
        run_folder.write_records(self.folder, self.recipe, data, fabric)
        if isinstance(self.published, PublishedLogits):
            predictions = _read_logits(file, data)
        else:
            predictions = self._predict(file, data, fabric.device)
        for split in BOTH:
            write(self.folder / f"{split.value}.npz", predictions[split])
        sha256 = hashlib.sha256(file.read_bytes()).hexdigest()
        hashed.write(self.folder / "metrics.json", {"train_seconds": 0.0, "epochs": 0, "weights_sha256": sha256})

    def _predict(self, file: Path, data: Data, device: torch.device) -> dict[Split, Predictions]:
        """The network's predictions of both halves; its weights become the folder's checkpoint."""
        network = load_weights(network_of(self.recipe, data.k, data.shape), file).eval()
        tensors = {f"member.0.model.{name}": value for name, value in network.state_dict().items()}
        checkpoint.save(self.folder / "checkpoint", checkpoint.Checkpoint(0, tensors, {"recipe": self.recipe.key()}))
        network.to(device)
        each = {s: Batches(data[s], BATCH, device=device, mean=data.mean, std=data.std) for s in BOTH}
        return {s: predict(network, b, device=device, split=s, classes=data.classes) for s, b in each.items()}

    def _file(self) -> Path:
        """The published file, inside the data folder."""
        own = self.published
        return Path(f"logits/{own.logits}.npz" if isinstance(own, PublishedLogits) else f"weights/{own.weights}.npz")

    def _existing_file(self) -> Path:
        root, name = data_root(self.place.how.root), self._file()
        if root is None:
            raise FileError(f"no data folder is named; set CALIBRANT_DATA or --data-root to one that has {name}")
        if not (root / name).is_file():
            raise FileError(f"{root / name} is missing; put the published {name.parent} into that file")
        return root / name


def _read_logits(file: Path, data: Data) -> dict[Split, Predictions]:
    """The published predictions of both halves; the file has those of the whole test set, in its own order."""
    whole, halves = read(file), {}
    for split in BOTH:
        items = data[split].index
        if int(items.max()) >= whole.n or not torch.equal(whole.labels[items], data[split].y):
            raise FileError(f"the labels of {file} are not those of the test set of {data.name} in its own order")
        halves[split] = replace(whole.take(items), split=split)
    return halves
