"""A network that someone else trained, as a step: it becomes a folder like a training's, and goes on from there.

The training set is what such a network has memorised, so everything is fitted on one seeded half of the official test
set, which is its calibration part, and judged on the other half.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from calibrant.bench.place import Place, Placed
from calibrant.bench.pooled import BATCH
from calibrant.bench.store import BOTH, KEY_LENGTH
from calibrant.data import Batches, Data, data_root
from calibrant.ensembles.single import predict
from calibrant.errors import FileError
from calibrant.executors import Step
from calibrant.files import hashed, write
from calibrant.nn import load_weights
from calibrant.papers.experiment import Published
from calibrant.training import checkpoint, run_folder
from calibrant.training.networks import network_of
from calibrant.training.recipe import Recipe, digest
from calibrant.training.run import make_fabric
from calibrant.training.settings import plain
from calibrant.types import Split


@dataclass(frozen=True)
class Downloaded(Placed):
    """A published network on one halving of its test set."""

    recipe: Recipe
    published: Published
    place: Place

    @property
    def _content(self) -> str:
        return digest([plain(self.published), self.recipe.key()])[:KEY_LENGTH]

    @property
    def key(self) -> str:
        return f"downloaded-{self._content}"

    @property
    def name(self) -> str:
        return f"network {self.published.weights}, halving {self.recipe.seed}"

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
        """Two halves of the test set, and its author's normalisation."""
        whole = self.place.data(self.recipe)
        test = whole[Split.TEST]
        order = torch.randperm(test.n, generator=torch.Generator().manual_seed(self.recipe.seed))
        parts = dict(zip(BOTH, order.tensor_split(2), strict=True))
        splits = {split: test.take(items, split) for split, items in parts.items()}
        return replace(whole, splits=splits, mean=self.published.mean, std=self.published.std)

    def run(self, deadline: float | None) -> None:
        file, data = self._file(), self.data()
        network = load_weights(network_of(self.recipe, data.k, data.shape), file).eval()
        fabric = make_fabric(self.recipe, self.place.how)
        run_folder.describe(self.folder, self.recipe, data, fabric)
        tensors = {f"member.0.model.{name}": value for name, value in network.state_dict().items()}
        checkpoint.save(self.folder / "checkpoint", checkpoint.Checkpoint(0, tensors, {"recipe": self.recipe.key()}))
        network.to(fabric.device)
        for split in BOTH:
            batches = Batches(data[split], BATCH, device=fabric.device, mean=data.mean, std=data.std)
            said = predict(network, batches, device=fabric.device, split=split, classes=data.classes)
            write(self.folder / f"{split.value}.npz", said)
        sha256 = hashlib.sha256(file.read_bytes()).hexdigest()
        hashed.write(self.folder / "metrics.json", {"train_seconds": 0.0, "epochs": 0, "weights_sha256": sha256})

    def _file(self) -> Path:
        root, name = data_root(self.place.how.root), f"weights/{self.published.weights}.npz"
        if root is None:
            raise FileError(f"no data folder is named; set CALIBRANT_DATA or --data-root to one that has {name}")
        if not (root / name).is_file():
            raise FileError(f"{root / name} is not there; put the published weights into this file of the data folder")
        return root / name
