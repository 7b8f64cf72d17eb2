"""The batches that a diagnostic reads: (x, y) pairs, a DataLoader, or dicts with `labels`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from calibrant.ensembles.inputs import moved, unpack
from calibrant.errors import InputError
from calibrant.functional.model_output import both_classes, logits_of

IGNORED = -100
"""The label that torch's losses ignore."""


def each_batch(batches: Any) -> Iterator[Any]:
    """Yield every batch, at least one; a single pair of tensors (x, y) is one batch."""
    empty = True
    single = isinstance(batches, tuple) and isinstance(next(iter(batches), None), Tensor)
    with torch.random.fork_rng(devices=[]):  # a DataLoader draws a seed for its workers from the global generator
        for batch in [batches] if single else batches:
            empty = False
            yield batch
    if empty:
        raise InputError("there are no batches; pass at least one")


def labelled(batch: Any, device: torch.device) -> tuple[tuple[Any, ...], dict[str, Any], Tensor]:
    """Return a batch's positional inputs, keyword inputs and labels (or soft targets), on that device."""
    args, kwargs, y, _ = unpack(batch)
    if args and isinstance(args[0], Tensor) and len(args[0]) != len(y):
        raise InputError(f"a batch has {len(args[0])} inputs but {len(y)} labels")
    return moved((args, kwargs, y), device)  # type: ignore[no-any-return]


def class_logits(network: Callable[..., Any], args: Any, kwargs: Any, y: Tensor) -> Tensor:
    """Return the logits of a batch; a network with one output gets two classes. `y` must be among the classes."""
    raw = logits_of(network(*args, **kwargs))
    if raw.ndim > 2:
        return raw
    logits = both_classes(raw)
    if y.ndim == 1 and not y.is_floating_point():  # neither soft targets nor maps
        k = logits.shape[-1]
        wrong = y[(y >= k) | (y < 0) & (y != IGNORED)]
        if len(wrong):
            raise InputError(f"a batch has the label {int(wrong[0])}; the classes of the model are 0 … {k - 1}")
    return logits
