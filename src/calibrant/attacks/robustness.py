"""Adversarial robustness (AR §3): how far an input is from another prediction than the model's own.

    robustness(x) = min ‖δ‖₂ such that f(x + δ) ≠ f(x)

No label is needed: a misclassified input has a distance like any other. The ruler (the attack that measures) is CW-L2
with the paper's settings, or DDN, which ranks items almost alike and is much cheaper. Distances are in pixels, however
the input is normalised.

Levels (AR §3) rank the items by their distance and cut them into R subsets of equal size; level 0 is the least robust.
If N is not a multiple of R, sizes differ by one. Equal distances are ranked by index.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields, replace
from numbers import Real
from os import PathLike
from pathlib import Path
from types import NoneType
from typing import Any

import torch
from torch import Tensor

from calibrant.attacks.attack import Attack, AttackResult
from calibrant.attacks.bounds import Bounds, check_batch
from calibrant.attacks.cw import CarliniWagner
from calibrant.attacks.ddn import DDN
from calibrant.attacks.loop import most_items
from calibrant.attacks.networks import predictor_device, weights_hash
from calibrant.attacks.store import Store, open_store
from calibrant.data.batches import Batches
from calibrant.errors import InputError, NoGradientError, unknown
from calibrant.files.hashed import tensor_hash
from calibrant.functional.settings import whole_number
from calibrant.functional.tensors import as_tensor
from calibrant.types import Split, jsonable

RULERS: dict[str, type[Attack]] = {"cw": CarliniWagner, "ddn": DDN}


def robustness(
    model: Any,
    x: Tensor | Batches,
    ruler: str | Attack = "cw",
    *,
    bounds: Bounds | Sequence[float] | None = None,
    store: str | Path | None = None,
    chunk: int | None = None,
    device: torch.device | str | None = None,
    progress: bool | None = None,
    **settings: Any,
) -> Tensor:
    """Return the distance of each input to another prediction than the model's own: float32 [N], in the order of `x`.

    The distance is infinite where no other prediction was found, and only there.

    `x` is what the model is fed: a tensor [N, …] or `Batches`, which know their normalisation. For a tensor of
    normalised inputs pass `bounds=Bounds(mean=…, std=…)`, for pixels of another range than [0, 1] `bounds=(low, high)`.
    `ruler` is "cw", "ddn" or an attack; `settings` are passed to the ruler. With `store`, finished chunks are kept in
    that folder, and a second call continues after them. `progress=None` shows a bar if stderr is a terminal.
    """
    if not isinstance(x, (Tensor, Batches)):
        raise InputError(f"x must be a tensor of inputs or Batches, not {type(x).__name__}")
    if isinstance(x, Tensor):
        check_batch(x)
    if chunk is not None and (chunk := whole_number("chunk", chunk)) < 1:
        raise InputError(f"chunk={chunk} must be at least 1 item")
    if not isinstance(store, (str, PathLike, NoneType)):
        raise InputError(f"store={store!r} must be a folder to keep distances in")
    attack = _ruler(ruler, _bounds(x, None if bounds is None else Bounds.of(bounds)), settings)
    where = predictor_device(model, x.device)
    if device is not None and str(device).partition(":")[0] != where.type:
        raise InputError(f"the model is on {where}, not on {device}; move it there first: model.to({str(device)!r})")
    n = len(x.part) if isinstance(x, Batches) else len(x)
    if not n:
        raise InputError("there is no item to measure: the Batches are empty")
    first = x[:1] if isinstance(x, Tensor) else x.part.inputs(slice(1))
    size = chunk or max(attack.batch or 1, most_items(where, first.numel()))  # a chunk is one batch
    kept: Store | None = None
    if store is not None:
        name = next((k for k, v in RULERS.items() if type(attack) is v), type(attack).__name__)
        header = {"model": weights_hash(model), "ruler": name, "settings": _settings(attack), "n": n}
        kept = open_store(store, header, chunk, size)
        size = kept.chunk
    with attack.against(model, where, x.dtype) as attacked:
        return _measure(attacked, _with_bar(_chunks(x, size), -(-n // size), _title(x), progress), kept)


def levels(distance: Any, R: int = 10) -> Tensor:
    """Return the level 0 … R − 1 of each item: long [N]. `distance` is a tensor, array or list of N distances."""
    distance = as_tensor(distance, "distance")
    if distance.ndim != 1:
        raise InputError(f"distances must be one number per item, got the shape {tuple(distance.shape)}")
    if not (n := len(distance)):
        raise InputError("there is no distance to cut into levels; measure the robustness of some items")
    if not isinstance(R, Real) or isinstance(R, bool) or not 1 <= R <= n or int(R) != R:
        raise InputError(f"R={R} levels of {n} items: every level needs one; choose R from 1 to {n}")
    if bool(torch.isnan(distance).any()):
        first = int(torch.isnan(distance).nonzero()[0])
        raise InputError(f"the distance of item {first} is not a number; measure the robustness again")
    rank = torch.empty(n, dtype=torch.long, device=distance.device)
    rank[distance.argsort(stable=True)] = torch.arange(n, device=distance.device)
    return rank * int(R) // n


def _measure(attacked: Callable[..., AttackResult], chunks: Iterable[Tensor], kept: Store | None) -> Tensor:
    """Return the distances of all chunks; those that are stored are not measured again.

    A chunk without any gradient is infinitely far away, and is not stored. If no chunk has a gradient, the model is
    refused."""
    distances: list[Tensor] = []
    refusal: NoGradientError | None = None
    measured = False
    for number, part in enumerate(chunks):
        data = tensor_hash(part) if kept is not None else ""
        distance = kept.get(number, data) if kept is not None else None
        if distance is None:
            try:
                distance = attacked(part).distance.float().cpu()
                if kept is not None:
                    kept.put(number, data, distance)
            except NoGradientError as error:
                refusal = error
        measured |= distance is not None
        distances.append(torch.full((len(part),), torch.inf) if distance is None else distance)
    if refusal is not None and not measured:
        raise refusal
    return torch.cat(distances)


def _ruler(ruler: str | Attack, bounds: Bounds, settings: dict[str, Any]) -> Attack:
    if isinstance(ruler, Attack):
        if settings:
            raise InputError(f"the ruler is an attack that has its settings already; leave out {', '.join(settings)}")
        made = ruler if bounds == Bounds() else replace(ruler, bounds=bounds)
    else:
        if not isinstance(ruler, str):
            kind = f"{ruler.__name__}()" if isinstance(ruler, type) and issubclass(ruler, Attack) else "'cw' or 'ddn'"
            raise InputError(f"ruler must be a name or an attack, got {ruler!r}; use {kind}")
        if ruler not in RULERS:
            raise unknown("ruler", ruler, RULERS)
        known = {f.name for f in fields(RULERS[ruler])}
        for name in settings:
            if name not in known:
                raise unknown(f"setting of the ruler {ruler!r}", name, known)
        made = RULERS[ruler](bounds=bounds, **settings)
    if not made.nearest:
        raise InputError(f"{type(made).__name__} spends a budget and measures no distance; use ruler='cw' or 'ddn'")
    return made


def _bounds(x: Tensor | Batches, bounds: Bounds | None) -> Bounds:
    if not isinstance(x, Batches):
        return bounds or Bounds()
    if x.shuffle or x.augment is not None:
        raise InputError("distances come in the order of the data; pass Batches without shuffle and augment")
    if bounds is not None and (bounds.mean, bounds.std) != (None, None):
        raise InputError("Batches know the mean and std of their inputs; pass bounds=Bounds(low, high) alone")
    known = bounds or Bounds()
    mean = None if x.mean is None else tuple(x.mean)
    std = None if x.std is None else tuple(x.std)
    return Bounds(known.low, known.high, mean, std)


def _settings(attack: Attack) -> dict[str, Any]:
    """Return the settings that change the distances; batch and engine do not."""
    held = {f.name: getattr(attack, f.name) for f in fields(attack) if f.name not in ("bounds", "batch", "engine")}
    box = {f.name: getattr(attack.bounds, f.name) for f in fields(attack.bounds)}
    plain: dict[str, Any] = jsonable({**held, **box})
    return plain


def _chunks(x: Tensor | Batches, size: int) -> Iterator[Tensor]:
    """Yield `size` items at a time, whatever the size of the batches is."""
    if isinstance(x, Tensor):
        yield from torch.split(x, min(size, len(x)))
        return
    held: list[Tensor] = []
    count = 0
    for batch, _, _ in x:
        held.append(batch)
        count += len(batch)
        while count >= size:
            joined = torch.cat(held)
            yield joined[:size]
            held, count = [joined[size:]], count - size
    if count:
        yield torch.cat(held)


def _title(x: Tensor | Batches) -> str:
    """Return the title of the progress bar. It names the split, because a run measures several splits in turn."""
    split = Split(x.part.split) if isinstance(x, Batches) else Split.UNKNOWN
    return "robustness" if split is Split.UNKNOWN else f"robustness, {split.value} items"


def _with_bar(chunks: Iterable[Tensor], count: int, title: str, progress: bool | None) -> Iterable[Tensor]:
    """Return the chunks, with a progress bar on stderr."""
    if not (sys.stderr.isatty() if progress is None else progress):
        return chunks
    from rich.console import Console
    from rich.progress import track

    return track(chunks, title, total=count, console=Console(file=sys.stderr), transient=True)
