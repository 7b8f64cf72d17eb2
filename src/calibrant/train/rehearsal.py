"""Before anything is written: can this network read this data, and this loss its answer?

Two blank items go through a member in evaluation mode, and their logits through the criterion. That costs one small
forward pass; the alternative is a traceback out of the first epoch, in a folder that already looks like a run.
"""

from __future__ import annotations

import torch
from torch import nn

from calibrant.data import Data
from calibrant.errors import CalibrantError, InputError
from calibrant.protocols import Criterion
from calibrant.train.recipe import Recipe
from calibrant.types import Split

ITEMS = 2


def rehearse(recipe: Recipe, data: Data, network: nn.Module, criterion: Criterion) -> None:
    """Raise `InputError` where the parts do not fit; leaves modes, statistics and generators as they were."""
    part, device = data[Split.TRAIN], next(network.parameters()).device
    tokens = part.items is None and part.x.dtype == torch.long
    x = torch.zeros(ITEMS, *data.shape, dtype=torch.long if tokens else torch.float32, device=device)
    what = f"network {recipe.network.name!r} cannot read {data.name}"
    modes = [(module, module.training) for module in network.modules()]
    try:
        with torch.no_grad():
            logits = network.eval()(x)
    except CalibrantError:
        raise
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        kind = "tokens" if tokens else "×".join(map(str, data.shape))
        raise InputError(f"{what} ({kind}): {reason}; choose another network, or other options of it") from error
    finally:
        for module, training in modes:
            module.training = training
    expected = (ITEMS, *part.y.shape[1:], data.k)
    if tuple(logits.shape) != expected:
        raise InputError(f"{what}: it answers {tuple(logits.shape)} where {expected} is due; choose another network")
    criterion(logits.float(), torch.full_like(logits, 1 / data.k, dtype=torch.float32))
