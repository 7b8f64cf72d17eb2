"""What lies in a folder, in the order of names, without hidden names.

A write that was killed leaves its temporary file (`atomic`), which begins with a dot and has the suffix of its target:
`Path.glob("*.json")` finds it, this does not. Nor what other programs hide: `._photo.jpg`, `.ipynb_checkpoints`.
"""

from __future__ import annotations

import os
from pathlib import Path


def visible(folder: str | os.PathLike[str], pattern: str = "*") -> list[Path]:
    """Paths in `folder` that fit `pattern` (`**/` for any depth), sorted; empty if there is no such folder."""
    root = Path(folder)
    above = len(root.parts)
    return sorted(p for p in root.glob(pattern) if not any(n.startswith(".") for n in p.parts[above:]))
