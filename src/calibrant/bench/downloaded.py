"""A network that someone else trained, as a step: it becomes a folder like a training's, and goes on from there.
Where only its predictions are published, the folder has no weights, and no more than maps can be asked of it.

The training set is what such a network has memorised, so everything is fitted on one seeded half of the official test
set, which is its calibration part, and judged on the other half.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from calibrant.bench.place import Place, Placed
from calibrant.bench.pooled import BATCH
from calibrant.bench.store import BOTH, KEY_LENGTH
from calibrant.data import Batches, Data, data_root
from calibrant.ensembles.single import predict
from calibrant.errors import FileError
from calibrant.executors import Step
from calibrant.files import hashed, read, write
from calibrant.nn import load_weights
from calibrant.papers.experiment import Published, Said
from calibrant.training import checkpoint, run_folder
from calibrant.training.networks import network_of
from calibrant.training.recipe import Recipe, digest
from calibrant.training.run import make_fabric
from calibrant.training.settings import plain
from calibrant.types import Predictions, Split


@dataclass(frozen=True)
class Downloaded(Placed):
    """A published network on one halving of its test set."""

    recipe: Recipe
    published: Published | Said
    place: Place

    @property
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
        """Two halves of the test set, and its author's normalisation."""
        whole, own = self.place.data(self.recipe), self.published
        test = whole[Split.TEST]
        splits = {split: test.take(items, split) for split, items in self._halves(test.n).items()}
        if isinstance(own, Said):
            return replace(whole, splits=splits)
        return replace(whole, splits=splits, mean=own.mean, std=own.std)

    def _halves(self, n: int) -> dict[Split, Tensor]:
        order = torch.randperm(n, generator=torch.Generator().manual_seed(self.recipe.seed))
        return dict(zip(BOTH, order.tensor_split(2), strict=True))

    def run(self, deadline: float | None) -> None:
        file, data = self._there(), self.data()
        fabric = make_fabric(self.recipe, self.place.how)
        run_folder.write_records(self.folder, self.recipe, data, fabric)
        said = self._read(file, data) if isinstance(self.published, Said) else self._asked(file, data, fabric.device)
        for split in BOTH:
            write(self.folder / f"{split.value}.npz", said[split])
        sha256 = hashlib.sha256(file.read_bytes()).hexdigest()
        hashed.write(self.folder / "metrics.json", {"train_seconds": 0.0, "epochs": 0, "weights_sha256": sha256})

    def _asked(self, file: Path, data: Data, device: torch.device) -> dict[Split, Predictions]:
        """What the network says of both halves; its weights become the folder's checkpoint."""
        network = load_weights(network_of(self.recipe, data.k, data.shape), file).eval()
        tensors = {f"member.0.model.{name}": value for name, value in network.state_dict().items()}
        checkpoint.save(self.folder / "checkpoint", checkpoint.Checkpoint(0, tensors, {"recipe": self.recipe.key()}))
        network.to(device)
        each = {s: Batches(data[s], BATCH, device=device, mean=data.mean, std=data.std) for s in BOTH}
        return {s: predict(network, b, device=device, split=s, classes=data.classes) for s, b in each.items()}

    def _read(self, file: Path, data: Data) -> dict[Split, Predictions]:
        whole = read(file)
        said = {s: replace(whole.take(items), split=s) for s, items in self._halves(whole.n).items()}
        if any(not torch.equal(said[s].labels, data[s].y) for s in BOTH):
            raise FileError(f"the labels of {file} are not those of the test set of {data.name} in its own order")
        return said

    def _file(self) -> Path:
        """In the data folder."""
        own = self.published
        return Path(f"logits/{own.logits}.npz" if isinstance(own, Said) else f"weights/{own.weights}.npz")

    def _there(self) -> Path:
        root, name = data_root(self.place.how.root), self._file()
        if root is None:
            raise FileError(f"no data folder is named; set CALIBRANT_DATA or --data-root to one that has {name}")
        if not (root / name).is_file():
            raise FileError(f"{root / name} is not there; put the published {name.parent} into that file")
        return root / name
