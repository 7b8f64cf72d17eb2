"""Bad input: one line on stderr that names the thing, exit code 2, nothing written. Extremes: they work."""

from __future__ import annotations

import io
import json
import math
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import save_file

from calibrant.cli import run

RNG = np.random.default_rng(0)
Z = RNG.normal(size=(20, 3))
Y = RNG.integers(0, 3, 20)
P = np.exp(Z) / np.exp(Z).sum(1, keepdims=True)
TOUCHED: list[str] = []


class Touch:
    """Unpickling this would leave a mark."""

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return TOUCHED.append, ("unpickled",)


def at(array: np.ndarray[Any, Any], where: Any, value: Any) -> np.ndarray[Any, Any]:
    changed = array.copy()
    changed[where] = value
    return changed


def npz(path: Path, **arrays: Any) -> str:
    np.savez(path, **arrays)
    return path.name


def csv(path: Path, text: str | bytes) -> str:
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path.name


def cut(path: Path, share: float = 0.6) -> str:
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])
    return path.name


def pickled(path: Path) -> str:
    """An archive whose `logits` is an object array, written by hand."""
    buffer = io.BytesIO()
    np.save(buffer, np.array([Touch()], dtype=object), allow_pickle=True)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("logits.npy", buffer.getvalue())
        buffer = io.BytesIO()
        np.save(buffer, Y)
        archive.writestr("labels.npy", buffer.getvalue())
    return path.name


def parquet(path: Path, **columns: Any) -> str:
    pq.write_table(pa.table(columns), path)
    return path.name


def damaged(path: Path) -> str:
    """The directory of the archive is whole, an entry is not."""
    np.savez(path, logits=np.arange(3000.0).reshape(1000, 3), labels=np.zeros(1000, int))
    data = bytearray(path.read_bytes())
    data[5000:5100] = bytes(100)
    path.write_bytes(bytes(data))
    return path.name


def folder(path: Path, *writes: Callable[[Path], Any]) -> str:
    path.mkdir()
    for i, write in enumerate(writes):
        write(path / f"part-{i}.parquet")
    return path.name


def npy(root: Path, scores: Any, labels: Any) -> list[str]:
    np.save(root / "z.npy", scores)
    np.save(root / "y.npy", labels)
    return ["z.npy", "y.npy"]


def both(*parts: Any) -> list[str]:
    return [str(p) for p in parts]


GOOD = "label,logit_0,logit_1\n0,1.5,0.5\n1,0.25,2\n"

BAD: dict[str, tuple[Callable[[Path], Any], list[str]]] = {
    "missing file": (lambda d: "none.npz", ["none.npz", "no such file"]),
    "a folder": (lambda d: folder(d / "sub"), ["sub", "is a folder"]),
    "a folder named npz": (lambda d: folder(d / "x.npz"), ["x.npz", "is a folder"]),
    "unknown format": (lambda d: csv(d / "x.pkl", "x"), ["x.pkl", "'.pkl'", ".npz"]),
    "no suffix": (lambda d: csv(d / "preds", "x"), ["preds", "unknown format"]),
    "truncated npz": (lambda d: (npz(d / "x.npz", logits=Z, labels=Y), cut(d / "x.npz"))[1], ["x.npz", "truncated"]),
    "damaged npz": (lambda d: damaged(d / "x.npz"), ["x.npz", "'logits'", "damaged"]),
    "empty npz": (lambda d: csv(d / "x.npz", ""), ["x.npz", "not a complete .npz"]),
    "text named npz": (lambda d: csv(d / "x.npz", "hello"), ["x.npz", "not a complete .npz"]),
    "truncated parquet": (
        lambda d: (parquet(d / "x.parquet", label=Y, logits=list(Z)), cut(d / "x.parquet"))[1],
        ["x.parquet", "truncated"],
    ),
    "truncated part": (
        lambda d: folder(
            d / "parts",
            lambda p: parquet(p, label=Y, logits=list(Z)),
            lambda p: (parquet(p, label=Y, logits=list(Z)), cut(p)),
        ),
        ["part-1.parquet", "truncated"],
    ),
    "part without a column": (
        lambda d: folder(
            d / "parts", lambda p: parquet(p, label=Y, logits=list(Z)), lambda p: parquet(p, logits=list(Z))
        ),
        ["part-1.parquet", "'label'", "missing"],
    ),
    "parts of different types": (
        lambda d: folder(
            d / "parts",
            lambda p: parquet(p, label=Y, logits=list(Z)),
            lambda p: parquet(p, label=[str(y) for y in Y], logits=list(Z)),
        ),
        ["parts", "disagree on the type of 'label'"],
    ),
    "truncated safetensors": (
        lambda d: (save_file({"logits": Z, "labels": Y}, d / "x.safetensors"), cut(d / "x.safetensors"))[1],
        ["x.safetensors", "truncated"],
    ),
    "pickled objects": (lambda d: pickled(d / "x.npz"), ["x.npz", "'logits'", "pickled", "never loaded"]),
    "NaN": (lambda d: npz(d / "x.npz", logits=at(Z, (7, 1), np.nan), labels=Y), ["x.npz", "row 7", "nan"]),
    "+inf": (lambda d: npz(d / "x.npz", logits=at(Z, (7, 1), np.inf), labels=Y), ["x.npz", "row 7", "inf"]),
    "all -inf": (lambda d: npz(d / "x.npz", logits=at(Z, 7, -np.inf), labels=Y), ["x.npz", "row 7", "impossible"]),
    "NaN probability": (lambda d: npz(d / "x.npz", probs=at(P, (7, 1), np.nan), labels=Y), ["x.npz", "row 7", "nan"]),
    "label too large": (lambda d: npz(d / "x.npz", logits=Z, labels=at(Y, 4, 3)), ["x.npz", "row 4", "is 3", "0…2"]),
    "label negative": (lambda d: npz(d / "x.npz", logits=Z, labels=at(Y, 4, -1)), ["x.npz", "row 4", "is -1"]),
    "label not an integer": (
        lambda d: npz(d / "x.npz", logits=Z, labels=at(Y.astype(float), 4, 1.5)),
        ["x.npz", "row 4", "1.5", "integer"],
    ),
    "label NaN": (lambda d: npz(d / "x.npz", logits=Z, labels=at(Y.astype(float), 4, np.nan)), ["row 4", "nan"]),
    "label text": (
        lambda d: npz(d / "x.npz", logits=Z, labels=Y.astype(str)),
        ["x.npz", "label in row 0", "not a number"],
    ),
    "lengths differ": (lambda d: npz(d / "x.npz", logits=Z, labels=Y[:-1]), ["x.npz", "20 rows", "19 labels"]),
    "one class": (lambda d: npz(d / "x.npz", logits=np.zeros((1, 20, 1)), labels=Y), ["x.npz", "1 class", "two"]),
    "one class, as a column": (
        lambda d: npz(d / "x.npz", probs=np.ones((20, 1)), labels=Y * 0),
        ["x.npz", "one class only", "(20,)"],
    ),
    "one class in a table": (
        lambda d: csv(d / "x.csv", "label,prob_0\n0,0.2\n1,0.9\n"),
        ["x.csv", "'prob_1'", "'prob'"],
    ),
    "N = 0": (lambda d: npz(d / "x.npz", logits=Z[:0], labels=Y[:0]), ["x.npz", "no items"]),
    "all ignored": (
        lambda d: both(npz(d / "x.npz", logits=Z, labels=Y * 0), "--ignore-index", 0),
        ["x.npz", "no items"],
    ),
    "sum not 1": (lambda d: npz(d / "x.npz", probs=at(P, 5, P[5] * 1.1), labels=Y), ["x.npz", "row 5", "1.1,"]),
    "negative probability": (
        lambda d: npz(d / "x.npz", probs=at(P, 5, [-0.1, 0.6, 0.5]), labels=Y),
        ["x.npz", "row 5", "-0.1"],
    ),
    "logits as probs": (lambda d: npz(d / "x.npz", probs=Z, labels=Y), ["x.npz", "row 0", "pass them as logits"]),
    "logits as one column of probs": (
        lambda d: npz(d / "x.npz", probs=np.array([0.5, 1.5]), labels=[0, 1]),
        ["row 1", "1.5"],
    ),
    "wrong key": (
        lambda d: both(npz(d / "x.npz", outputs=Z, labels=Y), "--logits-key", "output"),
        ["x.npz", "'output'", "keys found: outputs, labels"],
    ),
    "no scores": (
        lambda d: npz(d / "x.npz", outputs=Z, labels=Y),
        ["x.npz", "keys found: outputs, labels", "--logits-key"],
    ),
    "no labels": (lambda d: npz(d / "x.npz", logits=Z), ["x.npz", "'labels'", "keys found: logits"]),
    "multilabel": (lambda d: npz(d / "x.npz", logits=Z, labels=np.eye(3, dtype=int)[Y]), ["x.npz", "multilabel"]),
    "column missing": (
        lambda d: csv(d / "x.csv", "label,logit_0,logit_2\n0,1,2\n"),
        ["x.csv", "'logit_1'", "missing"],
    ),
    "a cell of 140,000 characters": (
        lambda d: csv(d / "x.csv", GOOD + f"1,{'9' * 140_000}x,2\n"),
        ["x.csv", "row 2", "131072"],
    ),
    "a bad byte in a number, far from the start": (
        lambda d: csv(d / "x.csv", (GOOD + "1,1,2\n" * 5000).encode() + b"1,\xff,2\n"),
        ["x.csv", "row 5002", "'logit_0'"],
    ),
    "a bad byte in a text, far from the start": (
        lambda d: csv(d / "x.csv", b"label,logit_0,logit_1,id\n" + b"1,1,2,a\n" * 5000 + b"1,1,2,\xff\n"),
        ["x.csv", "row 5000", "'id'", "UTF-8"],
    ),
    "a bad byte in the header": (lambda d: csv(d / "x.csv", b"label,logit_0,\xff\n0,1,2\n"), ["x.csv", "UTF-8"]),
    "label column missing": (
        lambda d: csv(d / "x.csv", "y,logit_0,logit_1\n0,1,2\n"),
        ["x.csv", "columns found: y", "--labels-key"],
    ),
    "text in a number": (
        lambda d: csv(d / "x.csv", GOOD + "1,0.5,high\n"),
        ["x.csv", "row 2", "line 4", "'logit_1'", "'high'"],
    ),
    "empty cell": (lambda d: csv(d / "x.csv", GOOD + "1,,2\n"), ["x.csv", "row 2", "'logit_0'", "empty"]),
    "short line": (lambda d: csv(d / "x.csv", GOOD + "1,2\n"), ["x.csv", "row 2", "2 cells", "3"]),
    "label text in a CSV": (lambda d: csv(d / "x.csv", GOOD + "cat,1,2\n"), ["x.csv", "row 2", "label", "'cat'"]),
    "NaN in a CSV": (lambda d: csv(d / "x.csv", GOOD + "1,nan,2\n"), ["x.csv", "row 2", "nan"]),
    "fraction as label in a CSV": (
        lambda d: csv(d / "x.csv", GOOD + "0.5,1,2\n"),
        ["x.csv", "row 2", "0.5", "integer"],
    ),
    "header only": (lambda d: csv(d / "x.csv", "label,logit_0,logit_1\n"), ["x.csv", "no items"]),
    "empty CSV": (lambda d: csv(d / "x.csv", ""), ["x.csv", "empty"]),
    "column twice": (lambda d: csv(d / "x.csv", "label,logit_0,logit_0\n0,1,2\n"), ["x.csv", "'logit_0'", "twice"]),
    "null in parquet": (
        lambda d: parquet(d / "x.parquet", label=[0, None], logit_0=[1.0, 2.0], logit_1=[1.0, 2.0]),
        ["x.parquet", "'label'", "row 1"],
    ),
    "ragged lists": (
        lambda d: parquet(d / "x.parquet", label=[0, 1], logits=[[1.0, 2.0], [1.0, 2.0, 3.0]]),
        ["x.parquet", "'logits'", "row 1", "3 values"],
    ),
    "text in parquet": (
        lambda d: parquet(d / "x.parquet", label=[0, 1], logit_0=["a", "b"], logit_1=[1.0, 2.0]),
        ["x.parquet", "'logit_0'", "number"],
    ),
    "top-1 confidence above 1": (
        lambda d: npz(d / "x.npz", predicted=Y, confidence=at(np.full(20, 0.5), 6, 1.01), labels=Y),
        ["x.npz", "confidence", "row 6", "1.01"],
    ),
    "top-1 without confidence": (
        lambda d: npz(d / "x.npz", predicted=Y, labels=Y),
        ["x.npz", "'confidence'", "keys found"],
    ),
    "two splits": (
        lambda d: npz(d / "x.npz", logits=Z[:2], labels=Y[:2], split=np.array(["train", "test"])),
        ["x.npz", "split", "test and train"],
    ),
    "one npy": (lambda d: npy(d, Z, Y)[:1], ["z.npy", "--labels"]),
    "npy of objects": (lambda d: npy(d, np.array([Touch()], dtype=object), Y), ["z.npy", "pickled"]),
    "second file bad": (
        lambda d: both(npz(d / "a.npz", logits=Z, labels=Y), npz(d / "b.npz", logits=Z, labels=Y + 3)),
        ["b.npz", "row 0"],
    ),
    "gate that is none": (lambda d: both(npz(d / "x.npz", logits=Z, labels=Y), "--fail-if", "ece >> 1"), ["ece >> 1"]),
    "gate of an unknown metric": (
        lambda d: both(npz(d / "x.npz", logits=Z, labels=Y), "--fail-if", "eec > 1"),
        ["'eec'", "did you mean 'ece'"],
    ),
    "gate left out by --metrics": (
        lambda d: both(npz(d / "x.npz", logits=Z, labels=Y), "--metrics", "ece", "--fail-if", "nll > 1"),
        ["nll", "--metrics"],
    ),
    "unknown metric": (lambda d: both(npz(d / "x.npz", logits=Z, labels=Y), "--metrics", "ece,aurco"), ["'aurco'"]),
    "bins 0": (lambda d: both(npz(d / "x.npz", logits=Z, labels=Y), "--bins", 0), ["bins", "0"]),
    "positive of three": (lambda d: both(npz(d / "x.npz", logits=Z, labels=Y), "--about", "positive"), ["two classes"]),
    "unknown option": (lambda d: both(npz(d / "x.npz", logits=Z, labels=Y), "--binz", 3), ["--binz"]),
}


def arguments(made: Any) -> list[str]:
    return [made] if isinstance(made, str) else made


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_line(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make, words = BAD[name]
    monkeypatch.chdir(tmp_path)
    argv = arguments(make(tmp_path))
    before = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*")}
    code = run(["audit", *argv, "--html", "report.html"])
    out, err = capsys.readouterr()
    assert code == 2, err
    assert out == ""
    assert len(err.splitlines()) == 1 and err.startswith("calibrant: ")
    for word in words:
        assert word in err, (word, err)
    assert {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*")} == before
    assert TOUCHED == []


def test_bad_input_of_a_real_process(tmp_path: Path) -> None:
    make, words = BAD["truncated npz"]
    argv = arguments(make(tmp_path))
    done = subprocess.run(
        [sys.executable, "-m", "calibrant.cli", "audit", *argv, "--json"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1)
    assert "Traceback" not in done.stderr and all(word in done.stderr for word in words)


@dataclass(frozen=True)
class Extreme:
    make: Callable[[Path], Any]
    n: int
    k: int | None
    check: Callable[[dict[str, Any]], bool]


def value(name: str, wanted: float, tolerance: float = 1e-12) -> Callable[[dict[str, Any]], bool]:
    return lambda m: bool(abs(m[name]["value"] - wanted) <= tolerance)


def null(name: str, word: str) -> Callable[[dict[str, Any]], bool]:
    return lambda m: m[name]["value"] is None and word in m[name]["reason"]


RIGHT = np.eye(3)[Y] * 8 + Z
SIGMOID = 1 / (1 + np.exp(-Z[:, 0]))
ONE = (Y > 0).astype(int)

EXTREMES: dict[str, Extreme] = {
    "N = 1": Extreme(
        lambda d: npz(d / "x.npz", logits=Z[:1], labels=Y[:1]),
        1,
        3,
        lambda m: m["ece"]["low"] is None and bool(m["ece"]["reason"]),
    ),
    "exact 0 and 1, right": Extreme(
        lambda d: npz(d / "x.npz", probs=np.eye(3)[Y], labels=Y), 20, 3, value("nll", 0, 1e-9)
    ),
    "exact 0 and 1, wrong": Extreme(
        lambda d: npz(d / "x.npz", probs=np.eye(3)[(Y + 1) % 3], labels=Y), 20, 3, value("nll", -math.log(1e-30), 1e-9)
    ),
    "all correct": Extreme(
        lambda d: npz(d / "x.npz", logits=RIGHT, labels=Y), 20, 3, null("auroc", "all predictions are correct")
    ),
    "one bin": Extreme(
        lambda d: both(npz(d / "x.npz", logits=Z, labels=Y), "--bins", 1),
        20,
        3,
        lambda m: math.isclose(m["ece"]["value"], abs(m["gap"]["value"]), rel_tol=1e-12),
    ),
    "K = 2": Extreme(
        lambda d: npz(d / "x.npz", logits=Z[:, :2], labels=ONE), 20, 2, lambda m: m["ece"]["value"] is not None
    ),
    "saturated": Extreme(
        lambda d: npz(d / "x.npz", logits=np.where(np.eye(3)[Y] > 0, 1e4, -1e4), labels=(Y + 1) % 3),
        20,
        3,
        value("nll", 2e4, 1e-6),
    ),
    "impossible classes": Extreme(
        lambda d: npz(d / "x.npz", logits=np.where(np.eye(3)[Y] > 0, 0, -np.inf), labels=Y), 20, 3, value("nll", 0)
    ),
    "impossible label": Extreme(
        lambda d: npz(d / "x.npz", logits=np.where(np.eye(3)[Y] > 0, 0, -np.inf), labels=at(Y, 9, (Y[9] + 1) % 3)),
        20,
        3,
        null("nll", "row 9"),
    ),
    "float16": Extreme(
        lambda d: npz(d / "x.npz", logits=Z.astype(np.float16), labels=Y), 20, 3, lambda m: m["nll"]["value"] > 0
    ),
    "float16 probabilities": Extreme(
        lambda d: npz(d / "x.npz", probs=P.astype(np.float16), labels=Y), 20, 3, lambda m: m["nll"]["value"] > 0
    ),
    "uint32 labels": Extreme(
        lambda d: npz(d / "x.npz", logits=Z, labels=Y.astype(np.uint32)),
        20,
        3,
        value("accuracy", float((Z.argmax(1) == Y).mean())),
    ),
    "K = 100000": Extreme(
        lambda d: npz(d / "x.npz", logits=np.zeros((3, 100_000), np.float32), labels=[0, 5, 99_999]),
        3,
        100_000,
        value("nll", math.log(100_000), 1e-9),
    ),
    "top-1 file": Extreme(
        lambda d: npz(d / "x.npz", predicted=Y, confidence=np.full(20, 0.75), labels=at(Y, 0, 9)),
        20,
        None,
        lambda m: value("ece", 0.2)(m) and null("nll", "top-1")(m) and null("ece_classwise", "top-1")(m),
    ),
    "one column of probabilities": Extreme(
        lambda d: npz(d / "x.npz", probs=SIGMOID, labels=ONE),
        20,
        2,
        value("brier", float(2 * ((SIGMOID - ONE) ** 2).mean())),
    ),
    "one column in a CSV": Extreme(
        lambda d: csv(
            d / "x.csv",
            "label,prob\n" + "".join(f"{y},{p!r}\n" for y, p in zip(ONE.tolist(), SIGMOID.tolist(), strict=True)),
        ),
        20,
        2,
        value("brier", float(2 * ((SIGMOID - ONE) ** 2).mean())),
    ),
    "one logit, about the positive class": Extreme(
        lambda d: both(npz(d / "x.npz", logits=Z[:, :1], labels=ONE), "--about", "positive"),
        20,
        2,
        value("gap", float((SIGMOID - ONE).mean())),
    ),
    "members": Extreme(
        lambda d: npz(d / "x.npz", logits=np.stack([Z, Z[::-1]]), labels=Y),
        20,
        3,
        value("nll", float(-np.log((P + P[::-1])[np.arange(20), Y] / 2).mean())),
    ),
    "segmentation": Extreme(
        lambda d: both(
            npz(
                d / "x.npz",
                logits=Z.reshape(1, 4, 5, 3).transpose(0, 3, 1, 2),
                labels=at(Y, 3, 255).reshape(1, 4, 5).astype(np.uint8),
            ),
            "--class-axis",
            1,
            "--ignore-index",
            255,
        ),
        19,
        3,
        value("accuracy", float((Z.argmax(1) == Y)[np.arange(20) != 3].mean())),
    ),
    "one class missing from the labels": Extreme(
        lambda d: npz(d / "x.npz", logits=Z, labels=Y * 0), 20, 3, lambda m: m["ece_classwise"]["value"] is not None
    ),
    "logits inside 0…1": Extreme(
        lambda d: npz(d / "x.npz", logits=P, labels=Y),
        20,
        3,
        value("nll", float(-np.log((np.exp(P) / np.exp(P).sum(1, keepdims=True))[np.arange(20), Y]).mean())),
    ),
    "npy pair": Extreme(lambda d: npy(d, Z, Y), 20, 3, value("accuracy", float((Z.argmax(1) == Y).mean()))),
}


@pytest.mark.parametrize("name", EXTREMES)
def test_extremes_work(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    case = EXTREMES[name]
    monkeypatch.chdir(tmp_path)
    argv = arguments(case.make(tmp_path))
    code = run(["audit", *argv, "--json"])
    out, err = capsys.readouterr()
    assert (code, err) == (0, "")
    (report,) = json.loads(out)
    assert (report["n"], report["k"]) == (case.n, case.k)
    assert case.check(report["metrics"]), report["metrics"]
    assert run(["audit", *argv]) == 0  # and the table for people does not stumble over what is null
