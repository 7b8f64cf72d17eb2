"""Cases of folders that calibrant wrote (a training run, a fitted map) with one file changed."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tests.fuzz.files import damage
from tests.fuzz.good import Rng
from tests.fuzz.oracle import Case, End, call

TRAIN = ["train", "digits/cross_entropy", "--set", "epochs=1", "--set", "network.hidden=[8]", "--device", "cpu"]


@dataclass(frozen=True)
class Templates:
    """Whole folders, and what predictions come of them."""

    run: Path
    map: Path
    preds: Path
    predicted: dict[str, Any]
    applied: dict[str, Any]


def templates(root: Path) -> Templates:
    """Made once: a small training, a map fitted on three classes, and their outputs."""
    root.mkdir()
    rng = np.random.default_rng(0)
    z, y = rng.normal(size=(40, 3)), rng.integers(0, 3, 40)
    np.savez(root / "cal.npz", logits=3 * z, labels=y)
    for words in (
        [*TRAIN, "-o", "run"],
        ["predict", "run", "-o", "predicted.npz"],
        ["fit", "cal.npz", "--method", "temperature", "-o", "map"],
        ["apply", "map", "cal.npz", "-o", "applied.npz"],
    ):
        end = call(words, root)
        assert end.code == 0, end.err
    held = [_arrays(root / name) for name in ("predicted.npz", "applied.npz")]
    return Templates(root / "run", root / "map", root / "cal.npz", *held)


def _arrays(path: Path) -> dict[str, Any]:
    with np.load(path) as archive:
        return {name: archive[name].tolist() for name in ("logits", "labels")}


def case(folder: Path, rng: Rng, t: Templates) -> Case:
    is_map = rng.random() < 0.25
    target = folder / ("map" if is_map else "run")
    shutil.copytree(t.map if is_map else t.run, target)
    files = [path for path in sorted(target.rglob("*")) if path.is_file()]
    path = files[int(rng.integers(len(files)))]
    changes = {**CHANGES, **(JSON if path.suffix == ".json" else {})}
    change = str(rng.choice(tuple(changes)))
    changes[change](path, rng)
    what = f"{path.relative_to(folder)}: {change}"
    if is_map:
        words, truth = ["apply", "map", str(t.preds), "-o", "out/p.npz"], t.applied
    else:
        words, truth = ["predict", "run", "-o", "out/p.npz"], t.predicted
    return Case("folder", what, words, (0, 2), lambda end: _same(end, folder / "out" / "p.npz", truth))


def _same(end: End, out: Path, truth: dict[str, Any]) -> str | None:
    """A folder that was changed is refused, or gives what it gave before."""
    return "other numbers than before the change" if end.code == 0 and _arrays(out) != truth else None


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
    """One value, at any depth, becomes another."""
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
