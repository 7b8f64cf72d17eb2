"""Batches of a part that is kept on the device: gathered, cropped, flipped and normalised there, all images at once.

The order of an epoch and its random offsets are drawn from the generator when iteration starts, in a few kernels per
epoch; a batch is then one gather from the bytes on the device and one scale-and-shift. Nothing waits for the device,
and the result depends only on the generator (a CPU generator gives the same batches on every device).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from calibrant.data.items import stack_inputs
from calibrant.data.label_maps import IGNORED
from calibrant.data.records import Part
from calibrant.errors import InputError

SHOWN = 4
"""Channels whose mean and deviation are spelled out."""


@dataclass(frozen=True)
class Augment:
    """Random crop after zero-padding (before normalisation: black) and horizontal flip (SS A.1)."""

    crop_padding: int = 4
    flip: bool = True


class Batches:
    """Iterating yields (x float, y, index). `batch_size` counts over all shards; each takes its share of a batch."""

    def __init__(
        self,
        part: Part,
        batch_size: int,
        *,
        device: torch.device | str = "cpu",
        generator: torch.Generator | None = None,
        shuffle: bool = False,
        augment: Augment | None = None,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        drop_last: bool = False,
        channels_last: bool = False,
        dtype: torch.dtype = torch.float32,
        shard: tuple[int, int] = (0, 1),
    ) -> None:
        if batch_size < 1:
            raise InputError(f"batch_size must be at least 1, got {batch_size}")
        if (shuffle or augment is not None) and generator is None:
            raise InputError("shuffling and augmentation draw from an explicit generator; pass generator=")
        if augment is not None and part.items is None and part.x.ndim != 4:
            raise InputError(f"crop and flip are for images [N, C, H, W], not {tuple(part.x.shape)}; drop augment")
        if augment is not None and part.y.ndim == 3 and part.y.shape[1:] != part.x.shape[2:]:
            sizes = f"{tuple(part.y.shape[1:])} of images of {tuple(part.x.shape[2:])}"
            raise InputError(f"crop and flip take maps of labels as large as the images, not {sizes}; drop augment")
        self.part, self.batch_size, self.generator, self.shuffle = part, batch_size, generator, shuffle
        self.augment, self.drop_last, self.channels_last = augment, drop_last, channels_last
        self.device, self.dtype, self.shard = torch.device(device), dtype, shard
        self.workers = int(getattr(part.items, "workers", 0))  # processes that fetch items of a Dataset
        self.mean, self.std = mean, std
        self._y, self._index = part.y.to(self.device), part.index.to(self.device)
        self._x = self._resident(part.x) if part.items is None else None
        self._scale: tuple[Tensor, Tensor] | None = None

    def __len__(self) -> int:
        return self.part.n // self.batch_size if self.drop_last else -(-self.part.n // self.batch_size)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        order = self._order()
        shifts = self._shifts()
        rank, world = self.shard
        spans = [slice(b * self.batch_size + rank, (b + 1) * self.batch_size, world) for b in range(len(self))]
        fetched = iter(self._loader(order, spans)) if self.part.items is not None else None
        order = order.to(self.device, non_blocking=True)
        labels, index = self._y[order], self._index[order]
        for span in spans:
            chosen = order[span]
            if fetched is not None:
                store, rows = self._resident(next(fetched).to(self.device)), torch.arange(len(chosen)).to(self.device)
            else:
                assert self._x is not None
                store, rows = self._x, chosen
            x, y = store, labels[span]
            if self.augment is not None:
                down, right, flip = (shift[span] for shift in shifts)
                edges = self._edges(store)
                x = _crop(store, rows, down, right, flip, *edges, channels_last=self.channels_last)
                if y.ndim == 3:
                    padded = F.pad(y[:, None], [self.augment.crop_padding] * 4, value=IGNORED)
                    y = _crop(padded, torch.arange(len(y), device=y.device), down, right, flip, *edges)[:, 0]
            else:
                x = store[rows]
            yield self._normalised(x), y, index[span]

    def _order(self) -> Tensor:
        n = self.part.n
        if not self.shuffle:
            return torch.arange(n)
        assert self.generator is not None
        return torch.randperm(n, generator=self.generator, device=self.generator.device)

    def _shifts(self) -> tuple[Tensor, ...]:
        """Down, right, flip for each place in the epoch; all drawn at once."""
        if self.augment is None:
            return ()
        assert self.generator is not None
        options: dict[str, Any] = {"generator": self.generator, "device": self.generator.device}
        n, reach = self.part.n, 2 * self.augment.crop_padding + 1
        down, right = (torch.randint(reach, (n,), **options) for _ in range(2))
        flip = torch.randint(2, (n,), **options) if self.augment.flip else torch.zeros_like(down)
        return tuple(t.to(self.device, non_blocking=True) for t in (down, right, flip))

    def _resident(self, x: Tensor) -> Tensor:
        """On the device, padded once if crops will be taken, channels last in memory if requested."""
        x = x.to(self.device)
        if x.ndim == 4:
            if self.augment is not None and self.augment.crop_padding:
                x = F.pad(x, [self.augment.crop_padding] * 4)
            if self.channels_last:
                x = x.permute(0, 2, 3, 1).contiguous()
        return x

    def _edges(self, store: Tensor) -> tuple[int, int]:
        assert self.augment is not None
        height, width = store.shape[1:3] if self.channels_last else store.shape[2:4]
        return height - 2 * self.augment.crop_padding, width - 2 * self.augment.crop_padding

    def _normalised(self, x: Tensor) -> Tensor:
        """(x/255 − mean)/std for bytes, (x − mean)/std for floats; tokens unchanged. Shape [N, C, …]."""
        last = self.channels_last and x.ndim == 4
        if x.dtype == torch.long:
            return x
        if self._scale is None:
            self._scale = self._affine(x)
        scale, shift = self._scale
        out = x.to(self.dtype).mul_(scale).add_(shift) if x.dtype != self.dtype else x.mul(scale).add_(shift)
        return out.permute(0, 3, 1, 2) if last else out

    def _affine(self, x: Tensor) -> tuple[Tensor, Tensor]:
        unit = 255.0 if x.dtype == torch.uint8 else 1.0
        mean = torch.tensor(self.mean if self.mean is not None else [0.0], dtype=torch.float64)
        std = torch.tensor(self.std if self.std is not None else [1.0], dtype=torch.float64)
        shape = (-1,) if self.channels_last and x.ndim == 4 else (-1, *[1] * (x.ndim - 2))
        made = ((1 / (unit * std)).reshape(shape), (-mean / std).reshape(shape))
        return made[0].to(self.device, self.dtype), made[1].to(self.device, self.dtype)

    def _loader(self, order: Tensor, spans: list[slice]) -> Any:
        """A loader for items that stay in their Dataset: worker processes fetch and stack them, batch by batch."""
        places = self.part.index[order.cpu()]
        batches = [places[span].tolist() for span in spans]
        from torch.utils.data import DataLoader

        return DataLoader(self.part.items, batch_sampler=batches, num_workers=self.workers, collate_fn=stack_inputs)


def normalisation(part: Part, mean: Sequence[float] | None, std: Sequence[float] | None) -> str:
    """A description of what `Batches` do to the inputs of a part."""
    dtype = part.inputs(slice(1)).dtype
    if dtype == torch.long:
        return "as they are (numbers of tokens)"
    parts = ["divided by 255"] if dtype == torch.uint8 else []
    for word, values in (("minus mean", mean), ("divided by std", std)):
        if values is not None:
            shown = ",".join(f"{value:.4g}" for value in values[:SHOWN])
            parts.append(f"{word} {shown}" + (f",… ({len(values)} values)" if len(values) > SHOWN else ""))
    return ", ".join(parts) or "as they are"


def _crop(
    store: Tensor,
    items: Tensor,
    down: Tensor,
    right: Tensor,
    flip: Tensor,
    height: int,
    width: int,
    channels_last: bool = False,
) -> Tensor:
    """One random window of each image, flipped where `flip` is 1.

    All windows are views of the store. On a CPU, gathering whole windows is three times as fast as gathering pixels."""
    first = 1 if channels_last else 2
    windows = store.unfold(first, height, 1).unfold(first + 1, width, 1)
    if channels_last:  # [N, down, right, C, H, W] → channels last in memory again
        x = windows.permute(0, 1, 2, 4, 5, 3)[items, down, right]
    else:
        x = windows.permute(0, 2, 3, 1, 4, 5)[items, down, right]
    return torch.where((flip == 1)[:, None, None, None], x.flip(2 if channels_last else 3), x)
