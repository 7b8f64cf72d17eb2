"""`.npz` (and a bare `.npy`): NumPy's own archive, never unpickled. A cut-off zip is said to be one."""

from __future__ import annotations

import lzma
import struct
import tokenize
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calibrant.errors import FileError
from calibrant.files.arrays import Arrays, Content

_BROKEN = (
    *(zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, ValueError, OSError, struct.error),
    *(SyntaxError, tokenize.TokenError, OverflowError, MemoryError),  # a header that is no header, or a shape of 10^20
    RuntimeError,  # encrypted, a compression that Python lacks, brackets nested too deeply
)
"""What zipfile and NumPy raise on damaged, hostile or exotic archives."""


def read(path: Path) -> Arrays:
    if not zipfile.is_zipfile(path):
        raise FileError(f"{path}: not a complete .npz archive (truncated, or another kind of file); save it again")
    try:
        with np.load(path, allow_pickle=False) as archive:
            names = tuple(archive.files)
    except _BROKEN as error:
        raise FileError(f"{path}: cannot be read as .npz ({error}); save it again") from error
    return Arrays(path, names, lambda name: _member(path, name))


def _member(path: Path, name: str) -> Any:
    try:
        with np.load(path, allow_pickle=False) as archive:
            return archive[name]
    except _BROKEN as error:
        raise _unreadable(path, f"key {name!r} ", error) from error


def read_npy(path: Path) -> Any:
    try:
        return np.load(path, allow_pickle=False)
    except _BROKEN as error:
        raise _unreadable(path, "", error) from error


def read_pair(scores: Path, labels: Path) -> Arrays:
    """Two `.npy`: the scores go by their file's name without `.npy`; a name that is no role means logits."""
    stem = scores.stem if scores.stem in ("logits", "logit", "probs", "prob") else "logits"
    files = {stem: scores, scores.stem: scores, "labels": labels}
    return Arrays(scores, tuple(files), lambda name: read_npy(files[name]))


def _unreadable(path: Path, what: str, error: Exception) -> FileError:
    if "pickle" in str(error).lower() or "object array" in str(error).lower():
        return FileError(
            f"{path}: {what}holds pickled Python objects, which are never loaded; save plain numbers or text "
            "(np.asarray(x, dtype=float) or dtype=str)"
        )
    if isinstance(error, MemoryError):
        return FileError(
            f"{path}: {what}does not fit into memory, or is damaged ({error}); large sets are streamed from Parquet"
        )
    return FileError(f"{path}: {what}is truncated or damaged ({error}); save it again")


def write(path: Path, content: Content) -> None:
    arrays: dict[str, Any] = {name: numpy(tensor) for name, tensor in content.tensors.items()}
    arrays |= {name: np.array(values, dtype=str) for name, values in content.lists.items()}
    arrays |= {name: np.array(text, dtype=str) for name, text in content.texts.items()}
    with path.open("wb") as stream:  # a name without a stream would get a second suffix
        np.savez(stream, **arrays)


def numpy(tensor: Tensor) -> np.ndarray[Any, Any]:
    """NumPy has no bfloat16; float32 holds each of its values exactly."""
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()
