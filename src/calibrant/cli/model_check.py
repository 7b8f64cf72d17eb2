"""Checks that the models' outputs fit the data, on a few blank items, before `predict` or `probe` computes anything."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from calibrant.cli.model_data import is_arrays
from calibrant.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

    from calibrant.data import Data
    from calibrant.ensembles.reference import Reference
    from calibrant.types import Split


def blank_outputs(
    models: Sequence[str], found: Sequence[Reference], loaded: Data, split: Split, class_axis: int
) -> dict[str, Tensor]:
    """Model → its output on blank items, classes last. Empty for items of different sizes, where no size is known."""
    from calibrant.functional.model_output import logits_of
    from calibrant.functional.segmentation import classes_last
    from calibrant.training.networks import blank_logits

    return {
        text: classes_last(logits_of(output), class_axis, f"{text}: logits")
        for text, reference in zip(models, found if loaded.shape else (), strict=False)
        for output in [blank_logits(text, loaded, split, reference.members[0])]
    }


def known_classes(first: Reference, loaded: Data, name: str, labels: Tensor) -> Sequence[Any] | None:
    """The class names; None if only labels show the classes, and a small file may not contain all of them."""
    classes = loaded.classes if first.classes is None or len(first.classes) == loaded.k else first.classes
    incomplete = is_arrays(name) or (labels.ndim > 1 and ":" in name)
    return classes if first.classes is not None or not incomplete else None


def check_outputs(outputs: Mapping[str, Tensor], data: str, known: Sequence[Any] | None, labels: Tensor) -> None:
    """Check that every output has the shape of the labels, and that all have the same number of classes.

    Labels are one class per item or one map per image. The classes of the data count too, where they are known.
    """
    for text, z in outputs.items():
        _check_shape(text, z, data, labels)
    counts = {text: int(z.shape[-1]) for text, z in outputs.items()}
    first = next(iter(counts), "")
    if first and known is not None and len(known) != counts[first]:
        raise InputError(
            f"{first} has {counts[first]} classes and {data} has {len(known)}; pass data with the same classes"
        )
    for text, k in counts.items():
        if k != counts[first]:
            raise InputError(
                f"{text} has {k} classes and {first} has {counts[first]}; members must agree on the classes"
            )
    if first and labels.ndim > 1:
        from calibrant.data.label_maps import check_classes

        check_classes(labels, counts[first], data, first)


def _check_shape(text: str, z: Tensor, data: str, labels: Tensor) -> None:
    """Refuse anything but [N, K] for labels [N], and [N, H, W, K] for label maps [N, H, W]."""
    found, expected = tuple(z.shape[1:-1]), tuple(labels.shape[1:])
    if z.ndim > 1 and found == expected:
        return
    if not expected:
        remedy = "; pass label maps [N, H, W], or a network with one answer per item" if z.ndim > 2 else ""
        raise InputError(
            f"{text} returns shape {tuple(z.shape)} for {len(z)} items of {data}, which have one label each; "
            f"expected [N, K]{remedy}"
        )
    size = _by(expected)
    if z.ndim < 3:
        raise InputError(
            f"{text} returns {tuple(z.shape)}, one answer per image, but the labels of {data} are maps of {size}; "
            "use a network that classifies each pixel, or one label per image"
        )
    if tuple(z.shape[2:]) == expected:
        raise InputError(
            f"{text} returns shape {tuple(z.shape)} for {len(z)} images of {data}, whose labels are maps of {size}: "
            "expected its classes last; for [N, K, H, W] pass --class-axis 1"
        )
    raise InputError(
        f"{text} returns maps of {_by(found)}, but the labels of {data} are maps of {size}; resize the network's "
        "output or the labels to the same size (for logits [N, K, H, W] pass --class-axis 1)"
    )


def _by(size: Sequence[int]) -> str:
    return " × ".join(map(str, size))
