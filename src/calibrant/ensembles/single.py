"""Run any model over any loader and return `Predictions`, which audit, fit and compare start from.

    logits[m, i] = model_m(x_i),   in the loader's order, in eval mode, without gradients

A model may return a tensor [N, K] (a binary one also [N] or [N, 1], the logit of class 1), or an object or a dict with
`logits`, as transformers do. A batch may be (x, y), (x, y, index, …) or a dict with `labels`. The training flag of each
module is restored.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from calibrant.ensembles.inputs import Untouched, batches_of, moved, unpack
from calibrant.ensembles.penultimate import Penultimate
from calibrant.errors import InputError
from calibrant.functional.inputs import predictions
from calibrant.functional.model_output import both_classes, logits_of
from calibrant.functional.segmentation import classes_last
from calibrant.nn.evaluation import device_of, evaluation
from calibrant.posthoc.attach import Calibrated
from calibrant.types import Predictions, Split

Model = Callable[..., Any]
T = TypeVar("T")


@dataclass(frozen=True)
class Single:
    """One model as a `Predictor`: M = 1."""

    model: Model

    def __call__(self, x: Tensor) -> Tensor:
        return logits_of(self.model(x))

    def members(self, x: Tensor) -> Tensor:
        return self(x)[None]


def predict(
    model: Model | Sequence[Model],
    loader: Iterable[Any],
    *,
    device: torch.device | str | None = None,
    split: Split | str = Split.UNKNOWN,
    classes: Sequence[Any] | None = None,
    class_axis: int | None = None,
    ignore_index: int | None = None,
    autocast: torch.dtype | None = None,
    features: bool = False,
    progress: bool = False,
    source: str = "",
) -> Predictions:
    """Run `model` over every batch of `loader`, or over a pair (x, y). A list of models gives logits [M, N, K].

    `device` defaults to that of the model's parameters; a model that is moved is moved back afterwards. A third entry
    of a batch, if it holds integers, becomes the items' ids. `autocast=torch.bfloat16` runs in mixed precision. For
    images of labels, pixels are items and each image is a group. `class_axis` is the same as for every `Ensemble`: by
    default the last of two axes, axis 1 of four or more ([N, K, H, W]), or the model's attribute `class_axis`.
    `features=True` keeps the input of the last linear layer (`penultimate.py`), for ConfidNet and TrustScore.
    """
    many = isinstance(model, Sequence) and not isinstance(model, nn.Module)
    models = _callables(list(model) if many else [model])  # type: ignore[arg-type, list-item]
    if features and len(models) > 1:
        raise InputError(f"features are of one network, not of {len(models)}; predict with each of them alone")
    networks = [_classes_last(m, class_axis) for m in models]
    modules = [m for m in models if isinstance(m, nn.Module)]
    where = device_of(models) if device is None else torch.device(device)
    rows, untouched, loader = _Rows(many), Untouched(), batches_of(loader)
    with (
        torch.random.fork_rng(devices=[]),  # a DataLoader draws a seed for its workers from the global generator
        evaluation(*modules),
        _placed(modules, where),
        torch.inference_mode(),
        _precision(where, autocast),
        Penultimate(models[0] if features else None) as penultimate,
    ):
        for arguments, keywords, y, ids in map(unpack, with_progress(loader, "predicting", show=progress)):
            args, kwargs = moved(arguments, where), moved(keywords, where)
            labels = torch.as_tensor(y).detach().cpu()
            out = []
            for m, network in zip(models, networks, strict=True):
                with untouched((args, kwargs)):
                    scores = network(*args, **kwargs)
                out.append(_checked(scores, labels, m))
                if features:
                    rows.features.append(penultimate.features(scores))
            rows.add(out, labels, ids)
    raw = not any(map(_normalises, models))
    return rows.predictions(split=split, classes=classes, ignore_index=ignore_index, source=source, raw=raw)


def _normalises(model: Model) -> bool:
    """Return whether a model gives log-probabilities: it pools members, or has a map behind it."""
    from calibrant.ensembles.ensemble import Ensemble  # which imports this file

    return isinstance(model, Ensemble | Calibrated)


class _Rows:
    """The rows of all batches so far. Pixels of maps are items, and each image is a group."""

    def __init__(self, many: bool) -> None:
        self.many, self.images = many, 0
        self.logits: list[Tensor] = []
        self.labels: list[Tensor] = []
        self.ids: list[Any] = []
        self.groups: list[Tensor] = []
        self.features: list[Tensor] = []

    def add(self, members: Sequence[Tensor], labels: Tensor, ids: Any) -> None:
        """Add a batch: each member's logits [N, K], and labels [N] or maps of labels with N pixels in all."""
        for j, logits in enumerate(members):
            if logits.shape != members[0].shape:
                raise InputError(
                    f"model {j} has {logits.shape[-1]} classes and model 0 has {members[0].shape[-1]}; "
                    "the members must agree on the classes"
                )
        image = torch.arange(len(labels))
        if len(members[0]) != len(labels):
            image = image.repeat_interleave(labels[0].numel())
            self.groups.append(image + self.images)
        self.images += len(labels)  # the group of an image is its place in the loader, whatever its batch
        self.logits.append(torch.stack([both_classes(z) for z in members]) if self.many else members[0])
        self.labels.append(labels.reshape(-1))
        if ids is not None:
            entries = ids.tolist() if isinstance(ids, Tensor) else list(ids)
            self.ids.extend(entries[i] for i in image.tolist())

    def predictions(self, **options: Any) -> Predictions:
        if not self.logits:
            raise InputError("the loader yielded no batches; is the data set empty?")
        return predictions(
            torch.cat(self.logits, -2),
            torch.cat(self.labels),
            ids=self.ids or None,
            features=torch.cat(self.features) if self.features else None,
            group=torch.cat(self.groups) if self.groups else None,
            **options,
        )


def _callables(models: list[Model]) -> list[Model]:
    """Return the models if they can be called. Models that remember a stream (temporal smoothing) start anew."""
    if not models:
        raise InputError("predict was given an empty list of models; pass at least one")
    for each in models:
        if not callable(each):
            raise InputError(f"{type(each).__name__} is not a model: it cannot be called on a batch")
    return [m if (restarted := getattr(m, "restarted", None)) is None else restarted() for m in models]


def reading(network: Model, class_axis: int | None) -> Model:
    """Return the network as a function that returns logits, classes last."""
    return lambda *args, **kwargs: classes_last(logits_of(network(*args, **kwargs)), class_axis, "the model's output")


def _classes_last(model: Model, class_axis: int | None) -> Model:
    from calibrant.ensembles.ensemble import Ensemble  # which imports this file

    if isinstance(model, Ensemble):
        axis = model.axis(class_axis)
        return reading(partial(model, class_axis=axis), axis)
    return reading(model, getattr(model, "class_axis", None) if class_axis is None else class_axis)


def _checked(logits: Tensor, labels: Tensor, model: Model) -> Tensor:
    logits = logits[:, None] if logits.ndim == 1 else logits  # one logit per item: a binary model
    if logits.ndim < 2 or logits.shape[0] != len(labels) or (logits.ndim > 2 and logits.shape[:-1] != labels.shape):
        name = type(model).__name__ if isinstance(model, nn.Module) else getattr(model, "__name__", "the model")
        raise InputError(
            f"{name} returned shape {tuple(logits.shape)} for a batch of {len(labels)}; expected [N, K]"
            + (" (for images of labels say class_axis=1, --class-axis 1)" if logits.ndim > 2 else "")
        )
    logits = logits.detach().reshape(-1, logits.shape[-1])
    # half precision becomes float32, because sums over classes would lose digits
    return logits.cpu() if logits.dtype == torch.float64 else logits.float().cpu()


@contextmanager
def _placed(networks: Sequence[nn.Module], device: torch.device) -> Iterator[None]:
    """Move the networks to `device`, and back afterwards."""
    elsewhere = [(m, home) for m in networks if (home := device_of([m])) != device]
    try:
        for m, _ in elsewhere:
            m.to(device)
        yield
    finally:
        for m, home in elsewhere:
            m.to(home)


@contextmanager
def _precision(device: torch.device, dtype: torch.dtype | None) -> Iterator[None]:
    with torch.autocast(device.type, dtype=dtype, enabled=dtype is not None):
        yield


def with_progress(items: Iterable[T], title: str, *, show: bool) -> Iterable[T]:
    """Return the items, with a progress bar on stderr if `show`."""
    if not show:
        return items
    from rich.console import Console
    from rich.progress import track

    total = len(items) if isinstance(items, Sized) else None
    return track(items, title, total=total, console=Console(file=sys.stderr), transient=True)
