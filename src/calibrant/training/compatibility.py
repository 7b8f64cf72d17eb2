"""Checks before anything is written: labels are classes, the network takes the data, the loss takes its logits.

Two blank items go through the network in evaluation mode, and before a training their logits go through the criterion.
This costs one small forward pass. Without it, a misfit would be a traceback from the first epoch, in a folder that
already looks like a run.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from calibrant.data import Data
from calibrant.errors import CalibrantError, InputError
from calibrant.nn.evaluation import evaluation
from calibrant.protocols import Criterion
from calibrant.training.step import per_pixel
from calibrant.types import Split

ITEMS = 2


def check_compatible(name: str, data: Data, network: nn.Module, criterion: Criterion) -> None:
    """Raise `InputError` if network, data and loss do not fit together; the message calls the network `name`."""
    part = data[Split.TRAIN]
    for split in (Split.TRAIN, Split.VALIDATION):  # a training step on an accelerator cannot check them without waiting
        if (highest := int(data[split].y.max())) >= data.k:
            raise InputError(
                f"the {split} part of {data.name} has the label {highest}, but its {data.k} classes are "
                f"0 … {data.k - 1}; correct the label, or name all classes"
            )
    logits = blank_logits(name, data, Split.TRAIN, network)
    expected = (ITEMS, *part.y.shape[1:], data.k)
    if tuple(logits.shape) != expected:
        raise InputError(
            f"network {name!r} returns shape {tuple(logits.shape)} for two items of {data.name}, not {expected}; "
            "choose another network"
        )
    per_pixel(criterion, logits.float(), torch.full_like(logits, 1 / data.k, dtype=torch.float32))


def blank_logits(name: str, data: Data, split: Split, network: nn.Module) -> Any:
    """The network's output for blank items of this data; modes, statistics and generators stay unchanged."""
    part, home = data[split], next(network.parameters(), torch.zeros(())).device
    tokens = part.items is None and part.x.dtype == torch.long
    x = torch.zeros(ITEMS, *data.shape, dtype=torch.long if tokens else torch.float32, device=home)
    try:
        with torch.no_grad(), evaluation(network):
            return network(x)
    except CalibrantError:
        raise
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        kind = "tokens" if tokens else "×".join(map(str, data.shape))
        raise InputError(
            f"network {name!r} cannot read {data.name} ({kind}): {reason}; choose a network or data that fit"
        ) from error
