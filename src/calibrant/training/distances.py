"""Adversarial robustness of the items of a split, kept beside the network that was attacked (AR §3).

    RUN/robustness/RULER/SPLIT.safetensors      distance[N], index[N]; whose they are stands in the header
    RUN/robustness/RULER/SPLIT.….parts/         finished chunks, while it is being measured

Distances are L2 in pixels of [0, 1], to another prediction than the network's own. The header carries the content
hash of the items and of the weights: nobody trains with the robustness of another data set, split or network. What
an earlier edition of the rulers measured is measured again, for two editions' distances rank in no common order.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from calibrant.attacks import RULERS, robustness
from calibrant.attacks.behind import home
from calibrant.attacks.bounds import ROUNDING
from calibrant.attacks.store import EDITION, tensor_hash, tensors_hash, weights_hash
from calibrant.data import Batches, Data
from calibrant.data.records import Part
from calibrant.errors import FileError, InputError, unknown
from calibrant.files import atomic
from calibrant.files.listing import visible
from calibrant.functional.pooling import pool
from calibrant.training.threads import enough_threads
from calibrant.types import SCHEMA, Split

FOLDER = "robustness"
BATCH = 1000


@dataclass(frozen=True, eq=False)
class Distances:
    """Distance to another prediction of each item, in the split's order, and what was measured on what."""

    distance: Tensor  # float64 [N]
    index: Tensor  # place in the data set, as in `Part.index`
    data: str
    split: Split
    items: str  # content hash of the items
    network: str  # content hash of the weights
    ruler: str
    edition: int = EDITION  # of the rulers, which measure a little differently in each

    @property
    def unmoved(self) -> int:
        """Items on which the attack found no other prediction: infinitely far, so of the most robust level."""
        return int(torch.isinf(self.distance).sum())

    def far(self) -> str:
        """Which items those are, for a sentence: the first few by their places in the data set."""
        where = self.index[torch.isinf(self.distance)].tolist()
        named = ", ".join(map(str, where[:5])) + (", …" if len(where) > 5 else "")
        return (
            f"{len(where)} of {len(self.distance)} {self.split} items (places {named}); they count as the most robust, "
            "among themselves by their order"
        )

    def sha256(self) -> str:
        return hashlib.sha256(self.distance.double().contiguous().numpy().tobytes()).hexdigest()

    def check(self, data: Data, split: Split, source: str) -> None:
        """Refuse distances that are not of just these items."""
        if self.items != items_hash(data[split]):
            of = f"the {self.split} part of {self.data}"
            other = "another seed or other sizes of its splits" if (self.data, self.split) == (data.name, split) else of
            raise InputError(
                f"{source} does not hold the robustness of the {split} part of {data.name}, but of {other}: "
                f"the content of the items differs; measure it with `calibrant probe RUN/ --what robustness`"
            )


def measured(
    members: Sequence[nn.Module],
    data: Data,
    split: Split | str,
    folder: Path,
    *,
    ruler: str = "ddn",
    limit: int | None = None,
    device: torch.device | str = "cpu",
    progress: bool = False,
) -> Distances:
    """From `folder` (RUN/robustness) where these items, weights and edition lie, else attacked, chunk by chunk."""
    if ruler not in RULERS:
        raise unknown("ruler", ruler, RULERS)
    name = Split(split)
    part = data[name]
    attackable(data, name)
    if limit is not None and limit < part.n:
        part = part.take(torch.arange(limit), name)
    path = file_of(folder, data, name, ruler, limit)
    items, weights = items_hash(part), network_hash(members)
    if (found := _kept(path, items, weights, ruler)) is not None:
        _drop_chunks(path)  # a kill may have left some of them
        return found
    # chunks of a network that was trained on since, or of the ruler's former settings or edition, are no use
    settings = hashlib.sha256(f"{RULERS[ruler]()!r}{EDITION}".encode()).hexdigest()
    chunks = path.with_suffix(f".{weights[:8]}-{settings[:8]}.parts")
    with enough_threads(data.shape, 64, device):
        distance = _attacked(_one(members), part, data, ruler, chunks, torch.device(device), progress)
    out = Distances(distance.double().cpu(), part.index.cpu(), data.name, name, items, weights, ruler)
    path.parent.mkdir(parents=True, exist_ok=True)
    write(path, out)
    _drop_chunks(path)
    return out


def _kept(path: Path, items: str, weights: str, ruler: str) -> Distances | None:
    """What is kept there, if it is of these items and weights, by this ruler in its present edition."""
    if not path.is_file():
        return None
    found = read(path)
    same = (found.items, found.network, found.ruler, found.edition) == (items, weights, ruler, EDITION)
    return found if same else None


def to_measure(
    members: Sequence[nn.Module],
    data: Data,
    splits: Sequence[Split],
    folder: Path,
    *,
    ruler: str,
    limit: int | None = None,
) -> bool:
    """Would `measured` attack anything, and so need a place to write to?"""
    weights = network_hash(members)
    for split in splits:
        part = data[split]
        if limit is not None and limit < part.n:
            part = part.take(torch.arange(limit), split)
        try:
            found = _kept(file_of(folder, data, split, ruler, limit), items_hash(part), weights, ruler)
        except (FileError, PermissionError):  # of no use: it would be measured again, elsewhere or once it is deleted
            return True
        if found is None:
            return True
    return False


def file_of(folder: Path, data: Data, split: Split, ruler: str, limit: int | None = None) -> Path:
    """Where the distances of a part, or of its first items, are kept below `folder` (RUN/robustness)."""
    whole = limit is None or limit >= data[split].n
    return folder / ruler / f"{split.value if whole else f'{split.value}-first-{limit}'}.safetensors"


def network_hash(members: Sequence[nn.Module]) -> str:
    """Of what is attacked: a network, or the pool of several."""
    return weights_hash(_one(members))


def _one(members: Sequence[nn.Module]) -> Any:
    return members[0] if len(members) == 1 else Pooled(members)


def _drop_chunks(path: Path) -> None:
    """They are joined in `path`, or of a network that was trained on since."""
    for done in visible(path.parent, f"{path.stem}.*.parts"):
        shutil.rmtree(done, ignore_errors=True)


def attackable(data: Data, split: Split) -> None:
    """Refuse items that no distance is measured of, or whose pixels lie outside the bounds of the attacks."""
    part = data[split]
    if part.x.dtype == torch.long or part.items is not None or part.y.ndim > 1:
        raise InputError(f"robustness needs images held in memory with one label each; {data.name} is not of that kind")
    if part.x.is_floating_point():
        low, high = (float(end) for end in torch.aminmax(part.x))
        if not (low >= -ROUNDING and high <= 1 + ROUNDING):
            raise InputError(
                f"pixels of the {split} part of {data.name} reach from {low:.4g} to {high:.4g}, outside the bounds "
                "[0, 1] that robustness is measured in; hand in pixels of [0, 1], which are normalised afterwards"
            )


def write(path: Path, found: Distances) -> Path:
    from safetensors.torch import save

    head = {"schema": SCHEMA, "data": found.data, "split": found.split.value, "items": found.items}
    head |= {"network": found.network, "ruler": found.ruler, "edition": found.edition}
    tensors = {"distance": found.distance.contiguous(), "index": found.index.contiguous()}
    text = json.dumps(head)
    return atomic.write_bytes(path, save(tensors, metadata={"calibrant": text, "sha256": tensors_hash(tensors, text)}))


def read(path: Path) -> Distances:
    """Distances from their file; what is not one is an error naming it."""
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        split = path.stem
        raise FileError(f"{path} is missing; measure it with `calibrant probe RUN/ --what robustness --split {split}`")
    if not os.access(path, os.R_OK):
        raise FileError(f"no permission to read {path}")
    try:
        with safe_open(str(path), framework="pt") as stored:
            said = dict(stored.metadata() or {})
            head = json.loads(said["calibrant"])
            distance, index = stored.get_tensor("distance"), stored.get_tensor("index")
        own = tensors_hash({"distance": distance, "index": index}, said["calibrant"])
        if said.get("sha256", own) != own:  # those of version 0.1 have none
            raise ValueError("it was edited: its hash does not match")
        names = {k: head[k] for k in ("data", "items", "network", "ruler")}
        # files of before editions were noted have none, and so another one than today's
        return Distances(distance, index, split=Split(head["split"]), edition=int(head.get("edition", 0)), **names)
    except (SafetensorError, KeyError, ValueError, TypeError) as error:
        raise FileError(f"{path} is not a file of robustness, or was truncated ({error}); delete it") from error


def items_hash(part: Part) -> str:
    """sha256 over the inputs, their labels and their places."""
    return hashlib.sha256("".join(tensor_hash(t) for t in (part.x, part.y, part.index)).encode()).hexdigest()


class Pooled(nn.Module):
    """Members in lock-step as the one network that is attacked: log of the mean probability."""

    def __init__(self, members: Sequence[nn.Module]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)

    def forward(self, x: Tensor) -> Tensor:
        return pool(torch.stack([m(x) for m in self.members])).to(x.dtype)


def _attacked(
    network: nn.Module, part: Part, data: Data, ruler: str, chunks: Path, device: torch.device, bar: bool
) -> Tensor:
    came_from = home(network, device)
    try:
        batches = Batches(part, BATCH, device=device, mean=data.mean, std=data.std)
        return robustness(network.to(device), batches, ruler, store=chunks, progress=bar)
    finally:
        network.to(came_from)
