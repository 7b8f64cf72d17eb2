"""A run's networks on re-collected test sets (DS Table 3): an experiment's `shifts` are names of data sets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from calibrant.data import DATASETS, Batches, Data, load
from calibrant.data.subsets import split_name
from calibrant.ensembles.single import predict
from calibrant.errors import InputError
from calibrant.training.run_folder import load as load_run
from calibrant.types import Predictions, Split

BATCH = 500


def shifted_sets(names: Sequence[str], root: str | Path | None, data: Data) -> dict[str, Data]:
    """The sets, read before anything is trained: data that is not there is no failed run."""
    for name in names:
        if split_name(name)[0] not in DATASETS:
            raise InputError(f"{name} is no data set; corruptions are measured by `calibrant stress` on the run")
    found = {name: load(name, root=root) for name in names}
    for name, other in found.items():
        if other.k != data.k or tuple(other.shape) != tuple(data.shape):
            raise InputError(
                f"{name} has {other.k} classes of images {tuple(other.shape)}, {data.name} has {data.k} of "
                f"{tuple(data.shape)}: not the same task"
            )
    return found


def on_shifted(run: Path, sets: Mapping[str, Data], device: torch.device) -> dict[str, Predictions]:
    """What the run's networks (members pooled by whoever reads them) say about each set's test items."""
    trained = load_run(run)
    members = [m.to(device) for m in trained.members]
    model = members if len(members) > 1 else members[0]
    return {
        name: predict(
            model,
            Batches(other[Split.TEST], BATCH, device=device, mean=trained.mean, std=trained.std),
            device=device,
            split=Split.TEST,
        )
        for name, other in sets.items()
    }
