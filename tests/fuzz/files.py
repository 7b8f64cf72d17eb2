"""Cases with files of predictions: good, with a known fault, or with changed bytes."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np

from tests.fuzz.bad import bad
from tests.fuzz.good import FORMATS, Rng, Sample, name, renamed, sample
from tests.fuzz.oracle import Case, End

METRICS = ["--no-intervals", "--metrics", "accuracy,nll"]


def good_case(folder: Path, rng: Rng, fitted: Path) -> Case:
    chosen = str(rng.choice(tuple(FORMATS)))
    write, kinds = FORMATS[chosen]
    s = sample(rng, kinds)
    if chosen in ("npz", "safetensors") and rng.random() < 0.2:
        s = renamed(s)
    words = [*write(folder / name(rng), s, rng), *s.options]
    what = f"{chosen} of {', '.join(f'{k} {v.dtype} {v.shape}' for k, v in s.arrays.items())}"
    if rng.random() < 0.1:
        return Case("good", what, ["audit", *words, *METRICS], (0,))
    return Case("good", what, ["audit", *words, *METRICS, "--json"], (0,), lambda end: _numbers(s, end))


def _numbers(s: Sample, end: End) -> str | None:
    (report,) = json.loads(end.out)
    found = {"n": report["n"], **{m: report["metrics"][m]["value"] for m in ("accuracy", "nll")}}
    truth = {"n": s.n, "accuracy": s.accuracy, "nll": s.nll}
    for key, value in truth.items():
        if value is None or found[key] is None:
            if value is not found[key]:
                return f"{key} is {found[key]}, not {value}"
        elif not math.isclose(found[key], value, rel_tol=1e-5, abs_tol=1e-6):
            return f"{key} is {found[key]}, not {value}"
    return None


def bad_case(folder: Path, rng: Rng, fitted: Path) -> Case:
    what, words = bad(folder, rng)
    argv = _command(words, rng, fitted)
    new_items = what.startswith("no labels") and argv[0] == "apply"  # a map needs no labels, only its classes
    return Case("bad", what, argv, (0, 2) if new_items else (2,))


def damaged_case(folder: Path, rng: Rng, fitted: Path) -> Case:
    """A valid file with some changed bytes, which must be refused or still be a file of predictions."""
    chosen = str(rng.choice(["npz", "npy", "safetensors", "csv", "parquet", "parts"]))
    write, kinds = FORMATS[chosen]
    s = sample(rng, kinds)
    words = [*write(folder / "p", s, rng), *s.options]
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    path = files[int(rng.integers(len(files)))]
    path.write_bytes(damage(path.read_bytes(), rng))
    argv = _command(words, rng, fitted)
    if argv[0] == "audit" and rng.random() < 0.2:
        argv += OPTIONS[int(rng.integers(len(OPTIONS)))]
    return Case("damaged", f"{chosen}, {path.name}", argv, (0, 2))


def _command(words: list[str], rng: Rng, fitted: Path) -> list[str]:
    """A verb that reads the file; `audit` if only that takes these options."""
    verb = str(rng.choice(["audit", "audit --json", "fit", "apply", "compare"]))
    plain = "--stream" not in words and not any(w.endswith(".npy") for w in words) and "--class-axis" not in words
    if verb == "fit" and plain:
        return ["fit", *words, "--method", "temperature", "--allow-reuse", "-o", "out/map"]
    if verb == "apply" and plain:
        return ["apply", str(fitted), *words, "-o", "out/p.npz"]
    if verb == "compare" and "--stream" not in words:
        files = [w for w in words if not w.startswith("-") and not w.isdigit()]
        return ["compare", *files, *words, "--metrics", "accuracy", "--replicates", "20"]
    return ["audit", *words, *METRICS, *(["--json"] if verb == "audit --json" else [])]


OPTIONS = tuple(
    line.split()
    for line in (
        *("--class-axis 0", "--class-axis 1", "--class-axis 9", "--ignore-index 0", "--about positive", "--bins 1"),
        *("--stream --exact", "--logits-key more", "--probs-key logits", "--labels y.npy"),
        "--predicted-key labels --confidence-key probs",
    )
)
"""Options that a valid file may or may not accept."""

TOKENS = (
    b"nan",
    b"-inf",
    b"1e999",
    b"\xff\xfe",
    b'"',
    b",",
    b"\n",
    b"\0" * 64,
    b"9" * 30,
    b"True",
    b"PK\x05\x06",
    b"[",
)


def damage(data: bytes, rng: Rng) -> bytes:
    """A few changes of the kinds that disks, transfers and editors make."""
    held = bytearray(data)
    for _ in range(int(rng.integers(1, 4))):
        size = len(held)
        a, b = sorted(rng.integers(0, size + 1, 2).tolist())
        near = min(b, a + 64)
        kind = int(rng.integers(7))
        if kind == 0 and size:
            for at in rng.integers(0, size, int(rng.integers(1, 8))):
                held[at] ^= 1 << int(rng.integers(8))
        elif kind == 1:
            held[a:near] = rng.integers(0, 256, near - a).astype(np.uint8).tobytes()
        elif kind == 2:
            del held[a:near]
        elif kind == 3:
            held[a:a] = held[a:near]
        elif kind == 4:
            held[a:near] = bytes(near - a)
        elif kind == 5:
            held[a:a] = TOKENS[int(rng.integers(len(TOKENS)))]
        else:
            del held[b:]
    return bytes(held)
