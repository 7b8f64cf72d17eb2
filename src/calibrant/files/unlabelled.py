"""Items without labels, as a model meets them in production: a map or a rule is applied to them all the same.

`Predictions` always have labels. These stand in for them while the map works; they are neither judged nor written.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from calibrant.files.arrays import ROLES, Arrays, Content, Keys, choose


def labelled(arrays: Arrays, keys: Keys) -> bool:
    """Whether the items have labels. A name that was asked for and is not there stays an error."""
    return keys.labels is not None or any(name in arrays.names for name in ROLES["labels"])


def filled(arrays: Arrays, keys: Keys, class_axis: int = -1) -> Arrays:
    """The same arrays, with labels that say nothing if there are none."""
    if labelled(arrays, keys):
        return arrays
    whole = replace(arrays, names=(*arrays.names, "labels"))

    def load(name: str) -> Any:
        return _stand_ins(whole, keys, class_axis) if name == "labels" else arrays.load(name)

    return replace(whole, load=load)


def _stand_ins(arrays: Arrays, keys: Keys, axis: int) -> Any:
    """Class 0 everywhere, in the shape of labels; of a top-1 set, what is predicted."""
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
    """What is written of such items."""
    return replace(content, tensors={role: tensor for role, tensor in content.tensors.items() if role != "labels"})
