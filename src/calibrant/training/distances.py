"""Adversarial robustness of the items of a split, stored beside the attacked network (AR §3).

    RUN/robustness/RULER/SPLIT.safetensors      distance[N], index[N]; the header identifies items and network
    RUN/robustness/RULER/SPLIT.….parts/         finished chunks, while the measurement runs

A distance is L2, in pixels of [0, 1], to the nearest input with another prediction. The header carries content hashes
of items and weights, so that nobody trains with the robustness of another data set, split or network. Distances that an
earlier edition of the rulers measured are measured again, because those of two editions cannot be ranked together.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from calibrant.attacks import RULERS, robustness
from calibrant.attacks.bounds import ROUNDING
from calibrant.attacks.networks import predictor_device, weights_hash
from calibrant.attacks.store import EDITION
from calibrant.data import Batches, Data
from calibrant.data.records import Part
from calibrant.errors import FileError, InputError, unknown
from calibrant.files import hashed, outputs
from calibrant.files.paths import visible
from calibrant.functional.pooling import pool
from calibrant.training.environment import enough_threads
from calibrant.types import SCHEMA, Split

FOLDER = "robustness"
BATCH = 1000


@dataclass(frozen=True, eq=False)
class Distances:
    """The distance of each item to another prediction, in the order of the split, and what was attacked."""

    distance: Tensor  # float64 [N]
    index: Tensor  # place in the data set, as in `Part.index`
    data: str
    split: Split
    items: str  # content hash of the items
    network: str  # content hash of the weights
    ruler: str
    edition: int = EDITION  # of the rulers; each edition measures slightly differently

    @property
    def unmoved(self) -> int:
        """Number of items for which no other prediction was found. Their distance is infinite."""
        return int(torch.isinf(self.distance).sum())

    def describe_unmoved(self) -> str:
        """A message about those items, which names the first few by their places in the data set."""
        where = self.index[torch.isinf(self.distance)].tolist()
        named = ", ".join(map(str, where[:5])) + (", …" if len(where) > 5 else "")
        return (
            f"{len(where)} of {len(self.distance)} {self.split} items (places {named}); they count as the most robust, "
            "ranked by their order"
        )

    def sha256(self) -> str:
        return hashlib.sha256(self.distance.double().contiguous().numpy().tobytes()).hexdigest()

    def check(self, data: Data, split: Split, source: str) -> None:
        """Refuse distances of other items."""
        if self.items != items_hash(data[split]):
            of = f"the {self.split} part of {self.data}"
            other = "another seed or other sizes of its splits" if (self.data, self.split) == (data.name, split) else of
            raise InputError(
                f"{source} does not hold the robustness of the {split} part of {data.name}, but of {other}: "
                f"the content of the items differs; measure it with `calibrant probe RUN/ --what robustness`"
            )


def load_or_measure(
    members: Sequence[nn.Module],
    data: Data,
    split: Split | str,
    folder: Path,
    *,
    spare: Path | None = None,
    ruler: str = "ddn",
    limit: int | None = None,
    device: torch.device | str = "cpu",
    progress: bool = False,
) -> Distances:
    """The distances of a split, read from `folder` (RUN/robustness), or measured by an attack and stored there.

    With a `spare` folder, `folder` may be read-only: distances that it lacks are then stored in the spare one.
    """
    if ruler not in RULERS:
        raise unknown("ruler", ruler, RULERS)
    name = Split(split)
    check_attackable(data, name)
    if spare is not None and not outputs.is_writable(folder / ruler):
        folder = spare if needs_attack(members, data, [name], folder, ruler=ruler, limit=limit) else folder
    part, path = _items_and_file(data, name, folder, ruler, limit)
    items, weights = items_hash(part), network_hash(members)
    if (found := _stored(path, items, weights, ruler)) is not None:
        _remove_chunks(path)  # a kill may have left some
        return found
    # chunks of other weights, or of the ruler's former settings or edition, are never reused
    settings = hashlib.sha256(f"{RULERS[ruler]()!r}{EDITION}".encode()).hexdigest()
    chunks = path.with_suffix(f".{weights[:8]}-{settings[:8]}.parts")
    with enough_threads(data.shape, 64, device):
        distance = _attacked(_as_network(members), part, data, ruler, chunks, torch.device(device), progress)
    out = Distances(distance.double().cpu(), part.index.cpu(), data.name, name, items, weights, ruler)
    write(path, out)
    _remove_chunks(path)
    return out


def needs_attack(
    members: Sequence[nn.Module],
    data: Data,
    splits: Sequence[Split],
    folder: Path,
    *,
    ruler: str,
    limit: int | None = None,
) -> bool:
    """Whether `load_or_measure` would have to attack, and so need a folder that it can write to."""
    weights = network_hash(members)
    for split in splits:
        part, path = _items_and_file(data, split, folder, ruler, limit)
        try:
            if _stored(path, items_hash(part), weights, ruler) is None:
                return True
        except (FileError, PermissionError):  # unreadable: it would have to be measured again
            return True
    return False


def _items_and_file(data: Data, split: Split, folder: Path, ruler: str, limit: int | None) -> tuple[Part, Path]:
    """A part, or its first `limit` items, and the file for its distances."""
    part, name = data[split], split.value
    if limit is not None and limit < part.n:
        part, name = part.take(torch.arange(limit), split), f"{name}-first-{limit}"
    return part, folder / ruler / f"{name}.safetensors"


def _stored(path: Path, items: str, weights: str, ruler: str) -> Distances | None:
    """The stored distances, if they are of these items and weights, by this ruler in its present edition."""
    if not path.is_file():
        return None
    found = read(path)
    same = (found.items, found.network, found.ruler, found.edition) == (items, weights, ruler, EDITION)
    return found if same else None


def network_hash(members: Sequence[nn.Module]) -> str:
    """Content hash of the attacked network, or of the pool of several."""
    return weights_hash(_as_network(members))


def _as_network(members: Sequence[nn.Module]) -> Any:
    return members[0] if len(members) == 1 else Pooled(members)


def _remove_chunks(path: Path) -> None:
    """Remove chunks that are joined in `path`, or that belong to other weights."""
    for done in visible(path.parent, f"{path.stem}.*.parts"):
        shutil.rmtree(done, ignore_errors=True)


def check_attackable(data: Data, split: Split) -> None:
    """Refuse items that the attacks cannot measure: not images in memory, or pixels outside [0, 1]."""
    part = data[split]
    if part.x.dtype == torch.long or part.items is not None or part.y.ndim > 1:
        raise InputError(f"robustness needs images held in memory with one label each, which {data.name} does not have")
    if part.x.is_floating_point():
        low, high = (float(end) for end in torch.aminmax(part.x))
        if not (low >= -ROUNDING and high <= 1 + ROUNDING):
            raise InputError(
                f"pixels of the {split} part of {data.name} reach from {low:.4g} to {high:.4g}, outside the bounds "
                "[0, 1] that robustness is measured in; pass pixels in [0, 1], they are normalised afterwards"
            )


def write(path: Path, found: Distances) -> Path:
    head = {"schema": SCHEMA, "data": found.data, "split": found.split.value, "items": found.items}
    head |= {"network": found.network, "ruler": found.ruler, "edition": found.edition}
    return hashed.write_tensors(path, {"distance": found.distance, "index": found.index}, head)


def read(path: Path) -> Distances:
    """Read distances from their file; any other content is an error that names the file."""
    if not path.is_file():
        split = path.stem
        raise FileError(f"{path} is missing; measure it with `calibrant probe RUN/ --what robustness --split {split}`")
    held, head = hashed.read_tensors(path, "delete it")
    try:
        names = {k: head[k] for k in ("data", "items", "network", "ruler", "edition")}
        return Distances(held["distance"], held["index"], split=Split(head["split"]), **names)
    except (KeyError, ValueError, TypeError) as error:
        raise FileError(f"{path} is not a file of robustness ({error}); delete it") from error


def items_hash(part: Part) -> str:
    """sha256 over inputs, labels and places."""
    return hashlib.sha256("".join(hashed.tensor_hash(t) for t in (part.x, part.y, part.index)).encode()).hexdigest()


class Pooled(nn.Module):
    """Several members as the one network that is attacked: the log of their mean probability."""

    def __init__(self, members: Sequence[nn.Module]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)

    def forward(self, x: Tensor) -> Tensor:
        return pool(torch.stack([m(x) for m in self.members])).to(x.dtype)


def _attacked(
    network: nn.Module, part: Part, data: Data, ruler: str, chunks: Path, device: torch.device, bar: bool
) -> Tensor:
    came_from = predictor_device(network, device)
    try:
        batches = Batches(part, BATCH, device=device, mean=data.mean, std=data.std)
        return robustness(network.to(device), batches, ruler, store=chunks, progress=bar)
    finally:
        network.to(came_from)
