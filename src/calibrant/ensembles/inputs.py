"""Take the inputs of a network from a batch of any loader."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sized
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.data import DataLoader, Dataset, IterableDataset

from calibrant.errors import InputError

Inputs = tuple[tuple[Any, ...], dict[str, Any]]
"""The inputs of a batch that are passed by position, and those that are passed by name."""

_LABELS = ("labels", "label", "y")
_IDS = ("ids", "id", "index")


def copied(inputs: Any) -> Any:
    """Return inputs with copies of their tensors, so that a network that writes to them changes only the copies."""
    return tree_map(lambda leaf: leaf.clone() if isinstance(leaf, Tensor) else leaf, inputs)


def batches_of(loader: Any, most: int = 500) -> Any:
    """Cut a pair (inputs, labels) or a Dataset into batches of at most `most` items; other loaders stay as they are."""
    if not hasattr(loader, "__iter__") and not hasattr(loader, "__getitem__"):
        what = type(loader).__name__
        raise InputError(
            f"the data is {what}, which holds no inputs; pass a loader of (x, labels) or a pair of tensors"
        )
    if isinstance(loader, Dataset) and not isinstance(loader, IterableDataset) and isinstance(loader, Sized):
        return _batched(loader, most)
    if not (isinstance(loader, tuple | list) and len(loader) == 2 and isinstance(loader[0], Tensor | np.ndarray)):
        return loader
    x, y = torch.as_tensor(loader[0]), torch.as_tensor(loader[1])
    if len(x) != len(y):
        raise InputError(f"{len(x)} inputs but {len(y)} labels")
    size = max(1, min(most, 2**23 * len(x) // max(x.numel(), 1)))  # smaller batches of large items
    return list(zip(torch.split(x, size), torch.split(y, size), strict=True))


def _batched(items: Dataset[Any], most: int) -> Any:
    """Return a loader of the items in their order, which does not use the global random generator."""
    if not len(items):  # type: ignore[arg-type]
        raise InputError(f"this {type(items).__name__} has no items")
    largest = max((leaf.numel() for leaf in tree_leaves(items[0]) if isinstance(leaf, Tensor)), default=1)
    size = max(1, min(most, 2**23 // max(largest, 1)))  # smaller batches of large items
    return DataLoader(items, batch_size=size, generator=torch.Generator())


def unpack(batch: Any) -> tuple[tuple[Any, ...], dict[str, Any], Any, Any]:
    """Split a batch into (positional inputs, keyword inputs, labels, ids)."""
    if isinstance(batch, Mapping):
        key = next((k for k in _LABELS if k in batch), None)
        if key is None:
            raise InputError(f"a batch has the keys {', '.join(map(str, batch))}; one must be 'labels'")
        ids = next((batch[k] for k in _IDS if k in batch), None)
        inputs = {k: v for k, v in batch.items() if k != key and k not in _IDS}
        if not inputs:
            raise InputError(f"a batch has nothing but {key!r}; it must also hold the model's input")
        if len(inputs) == 1:  # passed by position, whatever its name
            return tuple(inputs.values()), {}, batch[key], ids
        return (), inputs, batch[key], ids
    if isinstance(batch, (list, tuple)) and len(batch) >= 2:
        third = batch[2] if len(batch) > 2 else None
        ids = third if isinstance(third, Tensor) and third.ndim == 1 and not third.is_floating_point() else None
        return (batch[0],), {}, batch[1], ids
    raise InputError(f"a batch is {type(batch).__name__}; expected (x, labels) or a dict with 'labels'")


def moved(value: Any, device: torch.device) -> Any:
    """Move a batch's inputs to that device."""
    return _each_tensor(value, lambda tensor: tensor.to(device, non_blocking=True))


def first(value: Any, n: int) -> Any:
    """Return the first `n` items of a batch's inputs."""
    return _each_tensor(value, lambda tensor: tensor[:n] if tensor.ndim else tensor)


def _each_tensor(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Apply `change` to every tensor in nested containers. torch's tree_map skips the mappings of other libraries."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, Mapping):
        return {k: _each_tensor(v, change) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_each_tensor(v, change) for v in value)
    return value
