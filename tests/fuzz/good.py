"""Valid files of predictions in every variant, with the numbers that an audit must find, computed by NumPy alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from safetensors.numpy import save_file

Rng = np.random.Generator
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Sample:
    """Stored arrays by name, text beside them, the options to read them, and the true numbers."""

    arrays: dict[str, Array]
    text: dict[str, Any]
    options: tuple[str, ...]
    n: int
    accuracy: float
    nll: float | None

    @property
    def scores(self) -> str:
        return next(name for name in ("logits", "probs", "confidence") if name in self.arrays)


def renamed(s: Sample) -> Sample:
    """The same sample under names that need options."""
    if s.scores == "confidence":
        return s
    arrays = {"my scores": s.arrays[s.scores], "étiquettes": s.arrays["labels"], s.scores: np.ones(1)}
    options = (f"--{s.scores}-key", "my scores", "--labels-key", "étiquettes")
    return replace(s, arrays=arrays, options=(*s.options, *options))


def softmax(z: Array) -> Array:
    e = np.exp(z - z.max(-1, keepdims=True))
    return np.asarray(e / e.sum(-1, keepdims=True))


def sample(rng: Rng, kinds: tuple[str, ...] = ()) -> Sample:
    """A sample of a random kind of `KINDS`, with or without text beside it."""
    made = KINDS[str(rng.choice(kinds or tuple(KINDS)))](rng)
    text: dict[str, Any] = {}
    if rng.random() < 0.5:
        text["split"] = str(rng.choice(["train", "validation", "calibration", "test", "unknown"]))
    if rng.random() < 0.2:
        text["ids"] = [f"item-{i} é" for i in range(made.n)]
    return replace(made, text=text)


def _truth(p: Array, y: Array) -> tuple[int, float, float]:
    p = np.maximum(p.astype(np.float64), 1e-30)
    own = p[np.arange(len(y)), y] / p.sum(1)
    return len(y), float((p.argmax(1) == y).mean()), float(-np.log(own).mean())


def _draw(rng: Rng) -> tuple[Array, Array]:
    """Logits without ties, in a random type that holds small integers, and labels."""
    n, k = int(rng.integers(1, 30)), int(rng.integers(2, 6))
    return rng.permuted(np.tile(np.arange(k) - 2.0, (n, 1)), axis=1), rng.integers(0, k, n)


def _labels(rng: Rng, y: Array) -> Array:
    return y.astype(str(rng.choice(["u1", "i2", "i4", "i8", "u4", "f4", "f8"])))


def _logits(rng: Rng) -> Sample:
    z, y = _draw(rng)
    kind = str(rng.choice(["f2", "f4", "f8", "i1", "i4", "i8"]))
    if kind.startswith("f") and rng.random() < 0.2:  # an impossible class that is nobody's label
        z[0, (y[0] + 1) % z.shape[1]] = -np.inf
    return Sample({"logits": z.astype(kind), "labels": _labels(rng, y)}, {}, (), *_truth(softmax(z), y))


def _probs(rng: Rng) -> Sample:
    z, y = _draw(rng)
    p = softmax(z).astype(str(rng.choice(["f2", "f4", "f8"])))
    return Sample({"probs": p, "labels": _labels(rng, y)}, {}, (), *_truth(p, y))


def _members(rng: Rng) -> Sample:
    z, y = _draw(rng)
    z = z + rng.normal(size=(3, *z.shape))
    return Sample({"logits": z, "labels": y}, {}, (), *_truth(softmax(z).mean(0), y))


def _binary(rng: Rng) -> Sample:
    z = rng.normal(size=int(rng.integers(2, 30)))
    y = rng.integers(0, 2, len(z))
    p = 1 / (1 + np.exp(-z))
    name, stored = ("logits", z) if rng.random() < 0.5 else ("probs", p)
    return Sample({name: stored, "labels": y}, {}, (), *_truth(np.stack([1 - p, p], 1), y))


def _top1(rng: Rng) -> Sample:
    z, y = _draw(rng)
    guess, sure = z.argmax(1), softmax(z).max(1)
    arrays = {"predicted": guess, "confidence": sure, "labels": y}
    return Sample(arrays, {}, (), len(y), float((guess == y).mean()), None)


def _maps(rng: Rng) -> Sample:
    """Label maps, in which some pixels have no class."""
    z = rng.normal(size=(2, 3, 4, 5)).astype("f4")
    y = rng.integers(0, 3, (2, 4, 5))
    y[0, 0, :2] = 255
    p, flat = softmax(z.transpose(0, 2, 3, 1)).reshape(-1, 3), y.reshape(-1)
    truth = _truth(p[flat != 255], flat[flat != 255])
    return Sample({"logits": z, "labels": y}, {}, ("--class-axis", "1", "--ignore-index", "255"), *truth)


KINDS: dict[str, Callable[[Rng], Sample]] = {
    "logits": _logits,
    "probs": _probs,
    "members": _members,
    "binary": _binary,
    "top1": _top1,
    "maps": _maps,
}


def at(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


LAYOUTS: tuple[Callable[[Array], Array], ...] = (
    np.asarray,
    np.asfortranarray,
    lambda array: array.astype(array.dtype.newbyteorder(">")),
    lambda array: array[:, None] if array.ndim == 1 and array.dtype.kind in "iu" else array,
)
"""Ways to lay out the same numbers in an archive."""


def npz(path: Path, s: Sample, rng: Rng) -> list[str]:
    text = {name: np.array(value) for name, value in s.text.items()}
    save = np.savez_compressed if rng.random() < 0.3 else np.savez
    layout = LAYOUTS[int(rng.integers(len(LAYOUTS)))]
    arrays = {name: layout(array) for name, array in s.arrays.items()}
    save(at(path, ".npz"), **arrays, **text, more=np.ones(2))
    return [f"{path}.npz"]


def npy(path: Path, s: Sample, rng: Rng) -> list[str]:
    scores = path.with_name("probs.npy") if s.scores == "probs" else at(path, ".npy")
    np.save(scores, s.arrays[s.scores])
    np.save(path.with_name("y.npy"), s.arrays["labels"])
    return [str(scores), str(path.with_name("y.npy"))]


def safetensors(path: Path, s: Sample, rng: Rng) -> list[str]:
    text = {name: v if isinstance(v, str) else json.dumps(v) for name, v in s.text.items()}
    save_file({k: np.ascontiguousarray(v) for k, v in s.arrays.items()}, at(path, ".safetensors"), text)
    return [f"{path}.safetensors"]


def columns(s: Sample, rng: Rng) -> dict[str, list[Any]]:
    """The table, with one column per class or one column of lists."""
    found: dict[str, list[Any]] = {"label": s.arrays["labels"].tolist()}
    for name, array in s.arrays.items():
        if name != "labels":
            many = array.ndim == 2
            found |= {f"{name[:-1]}_{j}": array[:, j].tolist() for j in range(array.shape[1])} if many else {}
            found |= {} if many else {name: np.moveaxis(array, 0, 1).tolist() if array.ndim == 3 else array.tolist()}
    if "split" in s.text:
        found["split"] = [s.text["split"]] * s.n
    if "ids" in s.text:
        found["id"] = s.text["ids"]
    return found | {"note to self": list(range(s.n))}


def csv(path: Path, s: Sample, rng: Rng) -> list[str]:
    found = columns(s, rng)
    names = list(found)
    rng.shuffle(names)
    end, quote = str(rng.choice(["\n", "\r\n"])), str(rng.choice(["", '"']))
    rows = [names, *([repr(found[n][i]) if n != "id" else found[n][i] for n in names] for i in range(s.n))]
    lines = [",".join(f"{quote}{str(cell).strip(chr(39))}{quote}" for cell in row) for row in rows]
    bom = "\ufeff" if rng.random() < 0.2 else ""
    at(path, ".csv").write_bytes((bom + end.join(lines) + (end if rng.random() < 0.8 else "")).encode())
    return [f"{path}.csv"]


def table(s: Sample, rng: Rng) -> pa.Table:
    if s.arrays[s.scores].ndim == 2 and rng.random() < 0.5:
        listed = {"label": s.arrays["labels"].tolist(), s.scores: s.arrays[s.scores].tolist()}
        return pa.table(listed | ({"split": [s.text["split"]] * s.n} if "split" in s.text else {}))
    return pa.table(columns(s, rng))


def parquet(path: Path, s: Sample, rng: Rng) -> list[str]:
    pq.write_table(table(s, rng), at(path, ".parquet"), row_group_size=int(rng.integers(1, 20)))
    return [f"{path}.parquet", *(["--stream"] if rng.random() < 0.3 else [])]


def parts(path: Path, s: Sample, rng: Rng) -> list[str]:
    whole, cut = table(s, rng), int(rng.integers(0, s.n))
    folder = at(path, " parts")
    (folder / "more").mkdir(parents=True)
    if cut:
        pq.write_table(whole.slice(0, cut), folder / "0.parquet")
    pq.write_table(whole.slice(cut), folder / "more" / "1.parquet")
    (folder / "_SUCCESS").touch()
    (folder / ".0.parquet.crc").write_bytes(b"\0")
    return [str(folder), *(["--stream"] if rng.random() < 0.3 else [])]


FORMATS: dict[str, tuple[Callable[[Path, Sample, Rng], list[str]], tuple[str, ...]]] = {
    "npz": (npz, tuple(KINDS)),
    "npy": (npy, ("logits", "probs", "members", "binary", "maps")),
    "safetensors": (safetensors, tuple(KINDS)),
    "csv": (csv, ("logits", "probs", "top1")),
    "parquet": (parquet, ("logits", "probs", "members", "top1")),
    "parts": (parts, ("logits", "probs", "members", "top1")),
}
"""Format → its writer, and the kinds of sample that it can hold."""

NAMES = (
    "p",
    "two words",
    "é ü 数",
    "[red]x",
    "%s{0}",
    "'quoted\"",
    ".hidden",
    "a.b.c",
    "new\nline",
    "\x1b[31mred",
)


def name(rng: Rng) -> str:
    return str(rng.choice(NAMES)) if rng.random() < 0.3 else "p"
