"""Cases with folders that calibrant wrote (runs, maps, rules, stress cells) and one changed file, read or resumed."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tests.fuzz.files import damage
from tests.fuzz.good import Rng
from tests.fuzz.oracle import Case, End, call

TRAIN = ["train", "digits/cross_entropy", "--device", "cpu", "--set", "epochs=1", "--set", "network.hidden=[8]"]
GRID = ["--set", "selection={grid={seed=[0,1]}}"]
STRESS = ["--types", "gaussian_noise", "--severities", "1", "--limit", "20", "--calibrators=none", "--no-intervals"]
MADE: dict[str, list[str]] = {
    "map": ["fit", "cal.npz", "--method", "temperature", "-o", "map"],
    "rule": ["decide", "cal.npz", "--set-coverage", "0.6", "--map", "map", "--allow-reuse", "-o", "rule"],
    "run": [*TRAIN, "-o", "run"],
    "grid": [*TRAIN, *GRID, "-o", "grid"],
    "stress": ["stress", "run", "-o", "stress", *STRESS],
}
"""Folder → the command that writes it, in this order."""
READ: dict[str, list[str]] = {
    "map": ["apply", "map", "{root}/cal.npz", "-o", "out/p.npz"],
    "rule": ["apply", "rule", "{root}/cal.npz", "-o", "out/p.npz"],
    "run": ["predict", "run", "-o", "out/p.npz"],
    "grid": ["predict", "grid", "-o", "out/p.npz"],
}
RESUMED: dict[str, list[str]] = {
    "run": [*TRAIN, "-o", "out/run"],
    "grid": [*TRAIN, *GRID, "-o", "out/grid"],
    "stress": ["stress", "{root}/run", "-o", "out/stress", *STRESS],
}
"""Folder → the command that reads it, and the command that resumes it."""
RECORDS = ("recipe.json", "data.json")
"""Files of a run that its numbers depend on, besides its weights."""


def templates(root: Path) -> Path:
    """Make the intact folders once, and in `truth` what is read from them."""
    root.mkdir()
    rng = np.random.default_rng(0)
    np.savez(root / "cal.npz", logits=3 * rng.normal(size=(40, 3)), labels=rng.integers(0, 3, 40))
    for words in MADE.values():
        _done(words, root)
    for name, words in READ.items():
        shutil.copytree(root / name, root / "truth" / name / name)
        (root / "truth" / name / "out").mkdir()
        _done(_rooted(words, root), root / "truth" / name)
    return root


def _done(words: list[str], folder: Path) -> None:
    end = call(words, folder)
    assert end.code == 0, end.err


def _rooted(words: list[str], root: Path) -> list[str]:
    return [word.replace("{root}", str(root)) for word in words]


def case(folder: Path, rng: Rng, root: Path) -> Case:
    resumes = rng.random() < 0.3
    commands = RESUMED if resumes else READ
    kind = str(rng.choice(tuple(commands)))
    target = folder / "out" / kind if resumes else folder / kind
    shutil.copytree(root / kind, target)
    files = [path for path in sorted(target.rglob("*")) if path.is_file()]
    path = files[int(rng.integers(len(files)))]
    changes = {**CHANGES, **(JSON if path.suffix == ".json" else {})}
    change = str(rng.choice(tuple(changes)))
    changes[change](path, rng)
    what = f"{'resumed ' if resumes else ''}{path.relative_to(target.parent)}: {change}"
    codes = (0,) if "beside" in change else (2,) if not resumes and _spoilt(path, change) else (0, 2)
    argv, truth = _rooted(commands[kind], root), root / "truth" / kind / "out" / "p.npz"
    return Case("folder", what, argv, codes, lambda end: _same(end, folder / "out" / "p.npz", truth), resumes)


def _spoilt(path: Path, change: str) -> bool:
    """Whether the record of a run was changed in a way that its own hash shows."""
    if path.name not in RECORDS or path.parent.name != "run" or change == "bytes changed":
        return False
    return not change.startswith("edited") or b'sha256"' in path.read_bytes()


def _same(end: End, out: Path, truth: Path) -> str | None:
    """A changed folder, which must be refused or give the same result as before."""
    if end.code or not out.exists():
        return None
    with np.load(out) as found, np.load(truth) as whole:
        same = all(name in found and np.array_equal(found[name], whole[name]) for name in whole.files)
    return None if same else "other numbers than before the change"


def _missing(path: Path, rng: Rng) -> None:
    path.unlink()


def _bytes(path: Path, rng: Rng) -> None:
    path.write_bytes(damage(path.read_bytes(), rng))


def _content(data: bytes) -> Callable[[Path, Rng], None]:
    def write(path: Path, rng: Rng) -> None:
        path.write_bytes(data)

    return write


def _becomes(make: Callable[[Path], object]) -> Callable[[Path, Rng], None]:
    def replace(path: Path, rng: Rng) -> None:
        path.unlink()
        make(path)

    return replace


def _outside(path: Path) -> Path:
    return path.parents[-1] / "nowhere"


CHANGES: dict[str, Callable[[Path, Rng], None]] = {
    "missing": _missing,
    "empty": _content(b""),
    "bytes changed": _bytes,
    "not UTF-8": _content(b"\xff\xfe\x00{"),
    "a folder": _becomes(Path.mkdir),
    "a pipe": _becomes(os.mkfifo),
    "a dangling link": _becomes(lambda path: path.symlink_to(_outside(path))),
    "a link to itself": _becomes(lambda path: path.symlink_to(path)),
    "a device": _becomes(lambda path: path.symlink_to("/dev/null")),
    "a file beside it": lambda path, rng: _content(b"\xff")(path.with_name("extra.json"), rng),
    "a temporary beside it": lambda path, rng: _content(b"{")(
        path.with_name(f".{path.stem}.AAAAAAAA{path.suffix}"), rng
    ),
}

VALUES: tuple[Any, ...] = (
    *(None, True, -1, 0, 1e308, 10**30, "", "x", "../../outside", "/etc", "evil.payload:data", "\ud800", "\x1b[31m"),
    *([], [[]], {}, {"name": "evil.payload:data"}),
)


def _edited(path: Path, rng: Rng) -> None:
    """Replace one value at any depth."""
    held = json.loads(path.read_text("utf-8"))
    places: list[tuple[Any, Any]] = []

    def walk(node: Any) -> None:
        for key in node if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else ():
            places.append((node, key))
            walk(node[key])

    walk(held)
    node, key = places[int(rng.integers(len(places)))]
    kind = int(rng.integers(3))
    if kind == 0 and isinstance(node, dict):
        del node[key]
    elif kind == 1 and isinstance(node, dict):
        node[f"{key}_"] = node.pop(key)
    else:
        node[key] = VALUES[int(rng.integers(len(VALUES)))]
    path.write_text(json.dumps(held), "utf-8")


JSON: dict[str, Callable[[Path, Rng], None]] = {
    "edited": _edited,
    "edited again": _edited,
    "a list": _content(b"[]"),
    "a number": _content(b"7"),
    "null": _content(b"null"),
    "NaN": _content(b'{"epoch": NaN}'),
    "brackets without end": _content(b"[" * 100_000),
    "an empty table": _content(b"{}"),
}
