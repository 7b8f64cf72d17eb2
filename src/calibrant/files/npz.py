"""`.npz` and `.npy`: NumPy's own formats, never unpickled."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calibrant.errors import FileError
from calibrant.files.arrays import Arrays, Content
from calibrant.files.paths import readable


def read(path: Path) -> Arrays:
    if not zipfile.is_zipfile(path):
        raise FileError(f"{path}: not a complete .npz archive (truncated, or another kind of file); save it again")
    with readable(path, "this .npz archive"), _archive(path) as archive:
        names = tuple(archive.files)
    return Arrays(path, names, lambda name: _member(path, name))


@contextmanager
def _archive(path: Path) -> Iterator[Any]:
    with path.open("rb") as stream, np.load(stream, allow_pickle=False) as archive:  # NumPy does not close damaged ones
        yield archive


def _member(path: Path, name: str) -> Any:
    with unpickled(path, f"key {name!r}"), _archive(path) as archive:
        return archive[name]


def read_npy(path: Path, *, mapped: bool = False) -> Any:
    """One array, never pickled objects. With `mapped` it stays on disk until parts of it are read."""
    with unpickled(path, "this array"):
        return np.load(path, mmap_mode="r" if mapped else None, allow_pickle=False)


def read_pair(scores: Path, labels: Path | None) -> Arrays:
    """The arrays of a `.npy` file of scores, and of one of labels if given.

    The scores are what their file is called (`logits.npy`, `probs.npy`); under any other name they are logits.
    """
    stem = scores.stem if scores.stem in ("logits", "logit", "probs", "prob") else "logits"
    files = {stem: scores, scores.stem: scores} | ({} if labels is None else {"labels": labels})
    return Arrays(scores, tuple(files), lambda name: read_npy(files[name]))


@contextmanager
def unpickled(path: Path, what: str) -> Iterator[None]:
    """Like `readable`, with its own message for arrays of Python objects."""
    with readable(path, what):
        try:
            yield
        except ValueError as error:
            if "pickle" not in str(error).lower() and "object array" not in str(error).lower():
                raise
            raise FileError(
                f"{path}: {what} holds pickled Python objects, which are never loaded; save plain numbers or text "
                "(np.asarray(x, dtype=float) or dtype=str)"
            ) from error


def write(path: Path, content: Content) -> None:
    arrays: dict[str, Any] = {name: numpy(tensor) for name, tensor in content.tensors.items()}
    arrays |= {name: np.array(values, dtype=str) for name, values in content.lists.items()}
    arrays |= {name: np.array(text, dtype=str) for name, text in content.texts.items()}
    with path.open("wb") as stream:  # a name without a stream would get a second suffix
        np.savez(stream, **arrays)


def numpy(tensor: Tensor) -> np.ndarray[Any, Any]:
    """NumPy has no bfloat16; float32 holds each of its values exactly."""
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()
