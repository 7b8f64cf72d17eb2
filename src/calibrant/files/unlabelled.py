"""Items without labels: a map or a rule can be applied to them too.

`Predictions` always have labels, so placeholders stand in for them. They are neither evaluated nor written.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from calibrant.files.arrays import ROLES, Arrays, Content, Keys, choose


def labelled(arrays: Arrays, keys: Keys) -> bool:
    """Whether the items have labels. If the user named them (`--labels-key`), a missing name is an error later."""
    return keys.labels is not None or any(name in arrays.names for name in ROLES["labels"])


def filled(arrays: Arrays, keys: Keys, class_axis: int = -1) -> Arrays:
    """The same arrays, with placeholders if there are no labels."""
    if labelled(arrays, keys):
        return arrays
    whole = replace(arrays, names=(*arrays.names, "labels"))

    def load(name: str) -> Any:
        return _stand_ins(whole, keys, class_axis) if name == "labels" else arrays.load(name)

    return replace(whole, load=load)


def _stand_ins(arrays: Arrays, keys: Keys, axis: int) -> Any:
    """Placeholders in the shape of labels: class 0 everywhere, or the predicted classes of a top-1 file."""
    roles = choose(arrays, keys)
    scores = roles.get("logits") or roles.get("probs")
    if scores is None:
        return arrays.load(roles["predicted"])
    shape = np.shape(arrays.load(scores))
    if len(shape) < 3 or not -len(shape) <= axis < len(shape):
        return np.zeros(shape[:1], dtype=np.int64)
    members = len(shape) == 3 and axis in (-1, 2)
    rest = shape[1:2] if members else np.delete(shape, axis)
    return np.zeros(tuple(rest), dtype=np.int64)


def without_labels(content: Content) -> Content:
    """The content of a file of such items."""
    return replace(content, tensors={role: tensor for role, tensor in content.tensors.items() if role != "labels"})
