"""Inputs stay what they were, whatever a network does to them: one that begins with `x.sub_(mean)` would show every
member another input, and leave the caller's data spoiled."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves


class Untouched:
    """`with untouched(inputs):` around a pass puts them back where it wrote to them.

    That takes a copy. Once a pass has written nothing none is made any more, so that many passes pay for one.
    """

    def __init__(self) -> None:
        self.wary = True

    @contextmanager
    def __call__(self, inputs: Any) -> Iterator[None]:
        if not self.wary:
            yield
            return
        before = [(t, t.clone(), _version(t)) for t in tree_leaves(inputs) if isinstance(t, Tensor)]
        self.wary = False
        try:
            yield
        finally:
            for tensor, copy, version in before:
                if not _same(tensor, copy, version):
                    self.wary = True
                    with torch.no_grad():
                        tensor.copy_(copy)


def _version(tensor: Tensor) -> int | None:
    """How often it was written to; tensors of inference mode do not count."""
    return None if tensor.is_inference() else tensor._version


def _same(tensor: Tensor, copy: Tensor, version: int | None) -> bool:
    return torch.equal(tensor, copy) if version is None else tensor._version == version
