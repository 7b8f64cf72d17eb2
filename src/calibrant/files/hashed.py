"""Files that carry their own hash: JSON records and tensors. Reading an edited or damaged one is an error.

In a record, the hash is the first key. It covers the bytes of the whole file, with zeros in its own place. Record and
hash are written together, so a kill cannot separate them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from calibrant.errors import FileError
from calibrant.files import atomic
from calibrant.files.paths import existing

if TYPE_CHECKING:
    from torch import Tensor

KEY = "sha256"
HEAD = "calibrant"
"""Key of the JSON header in the metadata of a file of tensors."""
BLANK = b"0" * 64


def write(
    path: Path,
    body: Mapping[str, Any],
    text: Callable[[Mapping[str, Any]], str] = lambda body: json.dumps(body, indent=2),
) -> Path:
    """Write the record; `text` lays it out as JSON."""
    data = text({KEY: BLANK.decode(), **body}).encode()
    return atomic.write_bytes(path, data.replace(BLANK, _hash(data), 1))


def read(path: Path) -> dict[str, Any]:
    """The record, checked against its hash."""
    data = _bytes(path)
    body = _table(data, path)
    claimed = body.pop(KEY, None)
    if claimed is None:
        raise FileError(
            f"{path} has no hash: it was edited, or a version before 0.2 wrote it; create it again elsewhere"
        )
    if _hash(data.replace(json.dumps(claimed).strip('"').encode(), BLANK, 1)).decode() != claimed:
        raise FileError(
            f"{path} was edited or damaged: its hash does not match; restore it, or create it again elsewhere"
        )
    return body


def write_tensors(path: Path, tensors: Mapping[str, Tensor], head: Mapping[str, Any]) -> Path:
    """Tensors and a header of JSON in one safetensors file, with a hash over both."""
    from safetensors.torch import save

    held = copied(tensors)
    text = json.dumps(dict(head), allow_nan=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    return atomic.write_bytes(path, save(held, metadata={HEAD: text, KEY: tensors_hash(held, text)}))


def read_tensors(path: Path, again: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """(tensors, header), checked against the hash; `again` is the remedy for a damaged file."""
    from safetensors import SafetensorError, safe_open

    existing(path)
    try:
        with safe_open(str(path), framework="pt") as stored:
            held = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118 - not a dict
            metadata = dict(stored.metadata() or {})
        text = metadata.get(HEAD, "")
        own = tensors_hash(held, text)
        if metadata.get(KEY, own) != own:  # weights kept by version 0.2 have no hash
            raise ValueError("its hash does not match")
        return held, json.loads(text or "{}")
    except (SafetensorError, OSError, ValueError) as error:
        raise FileError(f"{path} was truncated or edited ({error}); {again}") from error


def copied(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """On the CPU, as safetensors takes them: it refuses tensors that share memory or are not dense."""
    import torch

    dense = torch.contiguous_format
    return {name: t.detach().to("cpu", copy=True).contiguous(memory_format=dense) for name, t in tensors.items()}


def tensors_hash(named: Mapping[str, Tensor], head: str = "") -> str:
    """Hash of named tensors and of a text about them."""
    digest = hashlib.sha256(head.encode())
    for name in sorted(named):
        digest.update(f"{name}{tensor_hash(named[name])}".encode())
    return digest.hexdigest()


def tensor_hash(tensor: Tensor) -> str:
    """Hash of a tensor's shape, type and numbers, wherever it lies in memory."""
    import torch

    plain = tensor.detach().cpu().contiguous()
    digest = hashlib.sha256(f"{tuple(plain.shape)}{plain.dtype}".encode())
    digest.update(plain.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def table(path: Path) -> dict[str, Any]:
    """A JSON object from a file without such a hash; anything else is an error that names the file."""
    return _table(_bytes(path), path)


def _bytes(path: Path) -> bytes:
    existing(path)
    try:
        return path.read_bytes()
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror}") from error


def _table(data: bytes, path: Path) -> dict[str, Any]:
    try:
        body = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise FileError(f"{path} is not valid JSON ({error}); restore it, or create it again elsewhere") from error
    if not isinstance(body, dict):
        raise FileError(f"{path} does not hold a table; restore it, or create it again elsewhere")
    return body


def _hash(data: bytes) -> bytes:
    return hashlib.sha256(data).hexdigest().encode()
