"""Run any model over any loader and return `Predictions`, which audit, fit and compare start from.

    logits[m, i] = model_m(x_i),   in the loader's order, in eval mode, without gradients

A model may return a tensor [N, K] (a binary one also [N] or [N, 1], the logit of class 1), or an object or a dict with
`logits`, as transformers do. A batch may be (x, y), (x, y, index, …) or a dict with `labels`. The training flag of each
module is restored. The features of a classifier are the input of its last linear layer, logits = W f(x) + b.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from calibrant.ensembles.ensemble import Ensemble, with_progress
from calibrant.ensembles.inputs import batches_of, copied, moved, unpack
from calibrant.errors import InputError
from calibrant.functional.inputs import predictions
from calibrant.functional.model_output import both_classes, logits_of
from calibrant.functional.segmentation import classes_last
from calibrant.nn.evaluation import device_of, evaluation
from calibrant.posthoc.attach import Calibrated
from calibrant.types import Predictions, Split

Model = Callable[..., Any]


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
    `features=True` keeps the input of the last linear layer, for ConfidNet and TrustScore.
    """
    many = isinstance(model, Sequence) and not isinstance(model, nn.Module)
    models = _callables(list(model) if many else [model])  # type: ignore[arg-type, list-item]
    if features and len(models) > 1:
        raise InputError(f"features are of one network, not of {len(models)}; predict with each of them alone")
    networks = [_reading(m, class_axis) for m in models]
    modules = [m for m in models if isinstance(m, nn.Module)]
    where = device_of(models) if device is None else torch.device(device)
    rows, loader = _Rows(many), batches_of(loader)
    with (
        torch.random.fork_rng(devices=[]),  # a DataLoader draws a seed for its workers from the global generator
        evaluation(*modules),
        _placed(modules, where),
        torch.inference_mode(),
        torch.autocast(where.type, dtype=autocast, enabled=autocast is not None),
        _penultimate(models[0] if features else None) as features_of,
    ):
        for arguments, keywords, y, ids in map(unpack, with_progress(loader, "predicting", show=progress)):
            inputs = moved(arguments, where), moved(keywords, where)
            labels = torch.as_tensor(y).detach().cpu()
            out = []
            for m, network in zip(models, networks, strict=True):
                args, kwargs = copied(inputs)
                scores = network(*args, **kwargs)
                out.append(_checked(scores, labels, m))
                if features:
                    rows.features.append(features_of(scores))
            rows.add(out, labels, ids)
    raw = not any(isinstance(m, Ensemble | Calibrated) for m in models)  # those return log-probabilities
    return rows.predictions(split=split, classes=classes, ignore_index=ignore_index, source=source, raw=raw)


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


def _reading(model: Model, class_axis: int | None) -> Model:
    """Return the model as a function that returns logits, classes last."""
    if isinstance(model, Ensemble):
        axis = model.axis(class_axis)
        model = partial(model, class_axis=axis)
    else:
        axis = getattr(model, "class_axis", None) if class_axis is None else class_axis
    return lambda *args, **kwargs: classes_last(logits_of(model(*args, **kwargs)), axis, "the model's output")


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
def _penultimate(model: Any) -> Iterator[Callable[[Tensor], Tensor]]:
    """Yield a function (logits of the last call) → its features f(x) [N, D], float32 on the CPU.

    The last linear layer is the one that ran last, and its output must have the shape of the logits.
    """
    layers = [m for m in model.modules() if isinstance(m, nn.Linear)] if isinstance(model, nn.Module) else []
    last: list[tuple[Tensor, Any]] = []  # input of the layer that ran last, and shape of its output

    def keep(_: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        last[:] = [(inputs[0], tuple(output.shape))]

    def features(logits: Tensor) -> Tensor:
        found, shape = last.pop() if last else (None, None)
        if found is None or shape != tuple(logits.shape):
            raise InputError(
                f"{type(model).__name__} has no features to write: they are the input of a last nn.Linear whose output "
                f"is the logits {tuple(logits.shape)}, and "
                + ("no nn.Linear ran" if found is None else f"the last one gave {shape}")
            )
        return found.detach().float().cpu()

    hooks = [layer.register_forward_hook(keep) for layer in layers]
    try:
        yield features
    finally:
        for hook in hooks:
            hook.remove()
