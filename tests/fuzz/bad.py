"""Files of predictions with one fault each; every file must end with exit code 2.

A fault is in the arrays (`ARRAYS`: a legal sample is spoilt, then written in any format that can hold it), in the
file (`FILES`: bytes that no writer of ours makes), in the parts of a folder, or in the path.
"""

from __future__ import annotations

import io
import os
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from safetensors.numpy import save

from tests.fuzz.good import FORMATS, Array, Rng, Sample, name, sample

ANY = ("npz", "safetensors", "csv", "parquet", "parts")
KEYS = ("npz", "safetensors")
TEXTS = ("npz", "csv", "parquet", "parts")


def _with(s: Sample, **arrays: Any) -> Sample:
    return replace(s, arrays={**s.arrays, **arrays})


def _scores(value: float) -> Callable[[Sample, Rng], Sample]:
    def spoil(s: Sample, rng: Rng) -> Sample:
        z = s.arrays["logits"].astype(float)
        z[rng.integers(s.n), rng.integers(z.shape[1])] = value
        return _with(s, logits=z)

    return spoil


def _labels(value: float) -> Callable[[Sample, Rng], Sample]:
    def spoil(s: Sample, rng: Rng) -> Sample:
        y = s.arrays["labels"].astype(float)
        y[rng.integers(s.n)] = value
        return _with(s, labels=y)

    return spoil


def _row(make: Callable[[int], Array]) -> Callable[[Sample, Rng], Sample]:
    """A row that is not a probability distribution."""

    def spoil(s: Sample, rng: Rng) -> Sample:
        k = s.arrays["logits"].shape[1]
        p = np.full((s.n, k), 1 / k)
        p[rng.integers(s.n)] = make(k)
        return replace(s, arrays={"probs": p, "labels": s.arrays["labels"]})

    return spoil


def _impossible(s: Sample, rng: Rng) -> Sample:
    z = s.arrays["logits"].astype(float)
    z[rng.integers(s.n)] = -np.inf
    return _with(s, logits=z)


def _without(role: str) -> Callable[[Sample, Rng], Sample]:
    return lambda s, rng: replace(s, arrays={k: v for k, v in s.arrays.items() if k != role})


ARRAYS: dict[str, tuple[Callable[[Sample, Rng], Sample], tuple[str, ...]]] = {
    "NaN": (_scores(np.nan), ANY),
    "+inf": (_scores(np.inf), ANY),
    "all impossible": (_impossible, ANY),
    "label too large": (_labels(99), ANY),
    "label of 64 bits": (_labels(2.0**62), ANY),
    "label negative": (_labels(-1), ANY),
    "label NaN": (_labels(np.nan), ANY),
    "label inf": (_labels(np.inf), ANY),
    "label a fraction": (_labels(0.5), ANY),
    "sum not 1": (_row(lambda k: np.full(k, 0.9)), ANY),
    "negative probability": (_row(lambda k: np.r_[-0.5, 1.5, np.zeros(k - 2)]), ANY),
    "NaN probability": (_row(lambda k: np.full(k, np.nan)), ANY),
    "labels of text": (lambda s, rng: _with(s, labels=np.array(["cat"] * s.n)), ("npz", "csv", "parquet", "parts")),
    "no labels": (_without("labels"), KEYS),
    "no scores": (_without("logits"), KEYS),
    "one label more": (lambda s, rng: _with(s, labels=np.zeros(s.n + 1, int)), KEYS),
    "no items": (lambda s, rng: _with(s, logits=s.arrays["logits"][:0], labels=s.arrays["labels"][:0]), KEYS),
    "one class": (lambda s, rng: _with(s, logits=np.zeros((2, s.n, 1))), KEYS),
    "one-hot labels": (lambda s, rng: _with(s, labels=np.ones(s.arrays["logits"].shape, int)), KEYS),
    "five axes": (lambda s, rng: _with(s, logits=np.zeros((1, 1, 1, s.n, 3))), KEYS),
    "a number": (lambda s, rng: _with(s, logits=np.array(1.0)), ("npz",)),
    "complex": (lambda s, rng: _with(s, logits=s.arrays["logits"].astype(complex)), ("npz",)),
    "dates": (lambda s, rng: _with(s, logits=np.zeros((s.n, 3), "M8[s]")), ("npz",)),
    "records": (lambda s, rng: _with(s, logits=np.zeros(s.n, [("a", "f8")])), ("npz",)),
    "objects": (lambda s, rng: _with(s, logits=np.array([{}] * s.n, dtype=object)), ("npz",)),
    "both names": (lambda s, rng: _with(s, logit=s.arrays["logits"]), KEYS),
    "both scores": (lambda s, rng: _with(s, probs=np.full((s.n, 2), 0.5)), KEYS),
    "unknown split": (lambda s, rng: replace(s, text={"split": "exam"}), (*TEXTS, "safetensors")),
    "two splits": (lambda s, rng: replace(s, text={"split": ["train", "test"]}), ("npz",)),
    "one id too few": (lambda s, rng: replace(s, text={"ids": ["a"] * (s.n + 1)}), KEYS),
    "classes too many": (lambda s, rng: replace(s, text={"classes": list("abcdefgh")}), KEYS),
    "classes that are no list": (lambda s, rng: replace(s, text={"classes": "{"}), ("safetensors",)),
    "group with NaN": (lambda s, rng: _with(s, group=np.full(s.n, np.nan)), KEYS),
    "group too short": (lambda s, rng: _with(s, group=np.zeros(s.n + 1)), KEYS),
}


def member(name: str, header: str, body: bytes = bytes(480)) -> bytes:
    """An archive whose scores have a given header."""
    text = header.encode() + b" " * 32 + b"\n"
    held = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + body
    labels, archive = io.BytesIO(), io.BytesIO()
    np.save(labels, np.zeros(20, int))
    with zipfile.ZipFile(archive, "w") as z:
        z.writestr(f"{name}.npy", held)
        z.writestr("labels.npy", labels.getvalue())
    return archive.getvalue()


def shaped(shape: str, order: str = "False", descr: str = "'<f8'") -> bytes:
    return member("logits", f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}")


def _parquet(**columns: Any) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(columns), sink)
    return bytes(sink.getvalue())


WHOLE = save({"logits": np.eye(3), "labels": np.arange(3)})
LINES = b"label,logit_0,logit_1\n0,1.5,0.5\n1,0.25,2\n"
FILES: dict[str, tuple[str, bytes]] = {
    "booleans in a shape": ("x.npz", shaped("(True, 3)")),
    "a shape of petabytes": ("x.npz", shaped("(1000000000000000, 3)")),
    "a shape beyond 64 bits": ("x.npz", shaped("(100000000000000000000, 3)")),
    "a negative shape": ("x.npz", shaped("(-5, 3)")),
    "a shape of text": ("x.npz", shaped("('a', 3)")),
    "a shape without end": ("x.npz", shaped("(20, 3")),
    "an order that is none": ("x.npz", shaped("(20, 3)", order="7")),
    "a type that is none": ("x.npz", shaped("(20, 3)", descr="'<q9'")),
    "a type that is a loop": ("x.npz", shaped("(20, 3)", descr="[" * 500 + "]" * 500)),
    "no npy inside": ("x.npz", member("logits", "{{{")),
    "an empty npz": ("x.npz", b""),
    "text named npz": ("x.npz", b"hello"),
    "a header of exabytes": ("x.safetensors", b"\xff" * 8 + WHOLE[8:]),
    "a header of nothing": ("x.safetensors", bytes(8) + WHOLE[8:]),
    "a header that is no JSON": ("x.safetensors", (4).to_bytes(8, "little") + b"{{{{"),
    "an empty safetensors": ("x.safetensors", b""),
    "text named parquet": ("x.parquet", b"PAR1hello PAR1"),
    "an empty parquet": ("x.parquet", b""),
    "null labels": ("x.parquet", _parquet(label=[0, None], logit_0=[1.0, 2.0], logit_1=[0.0, 1.0])),
    "ragged lists": ("x.parquet", _parquet(label=[0, 1], logits=[[1.0, 2.0], [1.0]])),
    "empty lists": ("x.parquet", _parquet(label=[0, 1], logits=pa.array([[], []], pa.list_(pa.float64())))),
    "structs": ("x.parquet", _parquet(label=[0, 1], logits=[{"a": 1.0}, {"a": 2.0}])),
    "an empty csv": ("x.csv", b""),
    "a header alone": ("x.csv", LINES.splitlines(True)[0]),
    "a blank header": ("x.csv", b"\n" + LINES),
    "a short line": ("x.csv", LINES + b"1,2\n"),
    "a long line": ("x.csv", LINES + b"1,2,3,4\n"),
    "an empty cell": ("x.csv", LINES + b"1,,2\n"),
    "words for a number": ("x.csv", LINES + b"1,high,2\n"),
    "a bad byte": ("x.csv", LINES + b"1,\xff,2\n"),
    "a bad byte far away": ("x.csv", LINES + b"1,1,2\n" * 3000 + b"1,\xfe,2\n"),
    "a NUL": ("x.csv", LINES + b"1,\0,2\n"),
    "a cell without end": ("x.csv", LINES + b'1,"' + b"9" * 140_000),
    "a column twice": ("x.csv", LINES.replace(b"logit_1", b"logit_0")),
    "a class missing": ("x.csv", LINES.replace(b"logit_1", b"logit_7")),
    "UTF-16": ("x.csv", LINES.decode().encode("utf-16")),
    "another format": ("x.pkl", LINES),
    "no suffix": ("preds", LINES),
}


def array_fault(folder: Path, rng: Rng) -> tuple[str, list[str]]:
    fault = str(rng.choice(tuple(ARRAYS)))
    spoil, formats = ARRAYS[fault]
    s = spoil(sample(rng, ("logits",)), rng)
    chosen = str(rng.choice(formats))
    return f"{fault}, {chosen}", [*FORMATS[chosen][0](folder / name(rng), s, rng), *s.options]


def file_fault(folder: Path, rng: Rng) -> tuple[str, list[str]]:
    fault = str(rng.choice(tuple(FILES)))
    file, data = FILES[fault]
    (folder / file).write_bytes(data)
    return fault, [str(folder / file)]


def truncated(folder: Path, rng: Rng) -> tuple[str, list[str]]:
    """Every format but CSV is damaged without its last byte."""
    chosen = str(rng.choice(["npz", "safetensors", "parquet"]))
    (path, *more) = FORMATS[chosen][0](folder / "p", sample(rng, ("logits", "probs")), rng)
    data = Path(path).read_bytes()
    Path(path).write_bytes(data[: int(rng.integers(len(data)))])
    return f"truncated {chosen}", [path, *more]


def parts_fault(folder: Path, rng: Rng) -> tuple[str, list[str]]:
    """A second part that does not match the first."""
    good: dict[str, Any] = {"label": [0, 1], "logit_0": [1.0, 2.0], "logit_1": [0.0, 1.0]}
    more: dict[str, dict[str, Any]] = {
        "labels of text": good | {"label": ["0", "1"]},
        "lists": good | {"logit_1": [[1.0], [2.0]]},
        "a column less": {k: v for k, v in good.items() if k != "logit_1"},
        "a class more": good | {"logit_2": [0.0, 0.0]},
        "another split": good | {"split": ["test", "train"]},
    }
    fault = str(rng.choice(tuple(more)))
    for i, columns in enumerate((good, more[fault])):
        pq.write_table(pa.table(columns | {"split": columns.get("split", ["test"] * 2)}), folder / f"{i}.parquet")
    return f"parts: {fault}", [str(folder)]


def path_fault(folder: Path, rng: Rng) -> tuple[str, list[str]]:
    suffix = str(rng.choice([".npz", ".csv", ".parquet", ".safetensors"]))
    fault = str(
        rng.choice(["missing", "a pipe", "too long", "an empty folder", "a loop", "a dangling link", "in a file"])
    )
    path = folder / f"x{suffix}"
    if fault == "a pipe":
        os.mkfifo(path)
    elif fault == "too long":
        path = folder / ("x" * 300 + suffix)
    elif fault == "an empty folder":
        path.mkdir()
    elif fault in ("a loop", "a dangling link"):
        path.symlink_to(path if fault == "a loop" else folder / "nowhere")
    elif fault == "in a file":
        (folder / "file").touch()
        path = folder / "file" / path.name
    return f"{fault}, {suffix}", [str(path)]


def bad(folder: Path, rng: Rng) -> tuple[str, list[str]]:
    """What is wrong, and the arguments that name the file."""
    makers = [array_fault, file_fault, truncated, parts_fault, path_fault]
    return makers[int(rng.choice(5, p=[0.4, 0.3, 0.1, 0.1, 0.1]))](folder, rng)
