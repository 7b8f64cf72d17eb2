"""Files that cannot be read: every error of a parser becomes one `FileError` that names the file.

Each library has errors of its own for truncated, hostile or exotic files, and more of them with every version. None is
listed here: whatever a parser raises means that the file is no good.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from calibrant.errors import CalibrantError, FileError, out_of_memory
from calibrant.files.listing import existing

SMALL = 1 << 26
"""Bytes. A file below this that asks for more memory than there is has a header that lies."""


@contextmanager
def readable(path: Path, what: str) -> Iterator[None]:
    """Reading `what` ("this image", "key 'logits'") of a file inside this block fails by `FileError` alone.

    A pipe or a device is refused before the block begins."""
    existing(path)
    try:
        yield
    except CalibrantError:  # said already
        raise
    except Exception as error:
        if out_of_memory(error) and not (path.is_file() and path.stat().st_size < SMALL):
            raise
        first = next(iter(str(error).splitlines()), "") or type(error).__name__
        raise FileError(f"{path}: {what} is truncated or damaged ({first}); save it again") from error
