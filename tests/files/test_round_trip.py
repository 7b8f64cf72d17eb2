"""Every format reads back what it wrote, and names alone decide what an array is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import calibrant
from calibrant import files
from calibrant.errors import CalibrantError, FileError
from calibrant.types import Predictions, Split

FIELDS = ("labels", "logits", "predicted", "confidence", "features", "group")
PLAIN = ("split", "raw", "ids", "classes", "binary", "fitted_on", "origin")


def full(n: int = 7, k: int = 3, members: int | None = None, seed: int = 0) -> Predictions:
    rng = np.random.default_rng(seed)
    shape = (n, k) if members is None else (members, n, k)
    built = calibrant.predictions(
        rng.normal(size=shape),
        rng.integers(0, k, n),
        split="test",
        predicted=rng.integers(0, k, n),
        confidence=rng.random(n),
        ids=[f"item,{i} “ü”" for i in range(n)],
        classes=["<b>cat</b>", 'a "dog"', "x\ny"][:k],
        features=rng.normal(size=(n, 4)),
        group=rng.integers(0, 3, n),
        raw=False,
    )
    return replace(built, fitted_on="a" * 64, origin="b" * 64)


def same(a: Predictions, b: Predictions) -> None:
    for name in FIELDS:
        x, y = getattr(a, name), getattr(b, name)
        assert (x is None) == (y is None), name
        if x is not None:
            assert torch.equal(x.double(), y.double()), name
    for name in PLAIN:
        assert getattr(a, name) == getattr(b, name), name


@pytest.mark.parametrize("suffix", [".npz", ".safetensors", ".parquet", ".csv"])
def test_everything_round_trips(tmp_path: Path, suffix: str) -> None:
    p = full()
    path = files.write(tmp_path / f"p{suffix}", p)
    back = files.read(path)
    same(p, back)
    assert back.source == str(path)
    assert back.fingerprint() == p.fingerprint()
    assert [q.name for q in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("suffix", [".npz", ".safetensors", ".parquet"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64, torch.bfloat16])
def test_members_and_dtypes(tmp_path: Path, suffix: str, dtype: torch.dtype) -> None:
    p = replace(full(members=4), logits=torch.randn(4, 7, 3, generator=torch.Generator().manual_seed(0)).to(dtype))
    back = files.read(files.write(tmp_path / f"p{suffix}", p))
    same(p, back)
    assert back.logits is not None
    kept = dtype if suffix == ".safetensors" or dtype != torch.bfloat16 else torch.float32
    assert back.logits.dtype == kept


def test_csv_says_what_it_cannot_hold(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"cannot hold logits of shape \(4, 7, 3\)"):
        files.write(tmp_path / "p.csv", full(members=4))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("suffix", [".npz", ".safetensors", ".parquet", ".csv"])
def test_top1_and_binary(tmp_path: Path, suffix: str) -> None:
    top1 = calibrant.predictions(labels=[0, 1, 2], predicted=[0, 2, 2], confidence=[0.5, 1.0, 0.0])
    same(top1, files.read(files.write(tmp_path / f"t{suffix}", top1)))
    binary = calibrant.predictions(probs=[0.2, 1.0, 0.0], labels=[0, 1, 1])
    back = files.read(files.write(tmp_path / f"b{suffix}", binary))
    same(binary, back)
    assert back.binary and not back.raw


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.lists(st.floats(allow_nan=False, width=64, max_value=1e300), min_size=3, max_size=3), min_size=1, max_size=6
    )
)
def test_any_float_survives_csv_and_parquet(tmp_path: Path, rows: list[list[float]]) -> None:
    if any(all(v == float("-inf") for v in row) for row in rows):
        return
    p = calibrant.predictions(np.array(rows), [0] * len(rows))
    for suffix in (".csv", ".parquet"):
        same(p, files.read(files.write(tmp_path / f"p{suffix}", p)))


def test_keys(tmp_path: Path) -> None:
    z, y = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32), np.arange(5) % 3
    path = tmp_path / "p.npz"
    np.savez(path, outputs=z, target=y, extra=np.array("x"))
    with pytest.raises(FileError, match=r"no key 'outptus' for logits; did you mean 'outputs'\? keys found: outputs"):
        files.read(path, logits_key="outptus", labels_key="target")
    got = files.read(path, logits_key="outputs", labels_key="target")
    assert got.logits is not None and np.array_equal(got.logits.numpy(), z) and got.split is Split.UNKNOWN


def test_both_logits_and_probs_must_be_chosen(tmp_path: Path) -> None:
    z = np.zeros((2, 2))
    np.savez(tmp_path / "p.npz", logits=z, probs=z + 0.5, label=[0, 1])
    with pytest.raises(FileError, match="--logits-key logits or --probs-key probs"):
        files.read(tmp_path / "p.npz")
    assert files.read(tmp_path / "p.npz", logits_key="logits").raw
    assert not files.read(tmp_path / "p.npz", probs_key="probs").raw
    np.savez(tmp_path / "q.npz", logits=z, label=[0, 1], labels=[0, 1])
    with pytest.raises(FileError, match="both 'labels' and 'label'.*--labels-key"):
        files.read(tmp_path / "q.npz")


def test_a_prediction_without_its_confidence_is_ignored_beside_logits(tmp_path: Path) -> None:
    np.savez(tmp_path / "p.npz", logits=2 * np.eye(2), labels=[0, 1], predicted=[1, 0])
    assert files.read(tmp_path / "p.npz").predicted is None


def test_splits(tmp_path: Path) -> None:
    np.savez(tmp_path / "two.npz", logits=2 * np.eye(2), labels=[0, 1], split=np.array(["test", "train"]))
    with pytest.raises(FileError, match="split holds test and train"):
        files.read(tmp_path / "two.npz")
    np.savez(tmp_path / "p.npz", logits=2 * np.eye(2), labels=[0, 1], split=np.array(["test", "test"]))
    assert files.read(tmp_path / "p.npz").split is Split.TEST
    (tmp_path / "p.csv").write_text("label,logit_0,logit_1,split\n0,1,2,dev\n")
    with pytest.raises(CalibrantError, match="unknown split 'dev'"):
        files.read(tmp_path / "p.csv")


def test_images_of_labels(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    z, y = rng.normal(size=(2, 3, 4, 5)), rng.integers(0, 3, (2, 4, 5))
    y[0, 0, 0] = 255
    np.savez(tmp_path / "p.npz", logits=z, labels=y.astype(np.uint8))
    got = files.read(tmp_path / "p.npz", class_axis=1, ignore_index=255)
    assert got.n == 39 and got.k == 3 and got.group is not None and got.group.unique().tolist() == [0, 1]
    assert got.logits is not None and np.array_equal(got.logits[0].numpy(), z[0, :, 0, 1])


def test_npy_pair(tmp_path: Path) -> None:
    np.save(tmp_path / "probs.npy", np.full((3, 4), 0.25))
    np.save(tmp_path / "z.npy", 2 * np.eye(3))
    np.save(tmp_path / "y.npy", np.arange(3, dtype=np.uint8))
    assert not files.read(tmp_path / "probs.npy", labels=tmp_path / "y.npy").raw  # by its name
    assert files.read(tmp_path / "z.npy", labels=tmp_path / "y.npy").raw
    assert files.read(tmp_path / "z.npy", labels=tmp_path / "y.npy", logits_key="z").raw
    np.save(tmp_path / "q.npy", np.full((3, 4), 0.25))
    assert not files.read(tmp_path / "q.npy", labels=tmp_path / "y.npy", probs_key="q").raw
    with pytest.raises(FileError, match="needs a .npy of labels"):
        files.read(tmp_path / "z.npy")


def test_labels_in_a_separate_file(tmp_path: Path) -> None:
    np.savez(tmp_path / "p.npz", logits=2 * np.eye(3))
    np.save(tmp_path / "y.npy", np.array([2, 1, 0]))
    assert files.read(tmp_path / "p.npz", labels=tmp_path / "y.npy").labels.tolist() == [2, 1, 0]


def test_parquet_forms_and_parts(tmp_path: Path) -> None:
    z = np.random.default_rng(0).normal(size=(6, 3))
    y = [0, 1, 2, 0, 1, 2]
    numbered = {f"logit_{j}": z[:, j] for j in (2, 0, 1)}  # any order of columns
    pq.write_table(pa.table({"label": y, **numbered}), tmp_path / "wide.parquet")
    pq.write_table(pa.table({"label": y, "logits": list(z)}), tmp_path / "lists.parquet")
    folder = tmp_path / "parts"
    folder.mkdir()
    for i, rows in enumerate((slice(0, 2), slice(2, 6))):
        pq.write_table(pa.table({"label": y[rows], "logits": list(z[rows])}), folder / f"part-{i}.parquet")
    (folder / "_SUCCESS").touch()
    for path in (tmp_path / "wide.parquet", tmp_path / "lists.parquet", folder):
        got = files.read(path)
        assert got.logits is not None and np.array_equal(got.logits.numpy(), z) and got.labels.tolist() == y
