"""`calibrant apply` to new items without labels: the same scores and decisions, and the output has no labels either."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from calibrant.cli import run
from calibrant.files import reader

Z = np.random.default_rng(0).normal(0, 3, (400, 3))
Y = (Z + 3 * np.random.default_rng(1).gumbel(size=Z.shape)).argmax(1)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    np.savez("calibration.npz", logits=Z, labels=Y)
    table = {f"logit_{j}": Z[:, j] for j in range(3)} | {"animal": [f"animal {i}" for i in range(400)]}
    for folder, more in (("new", {}), ("known", {"label": Y})):
        Path(folder).mkdir()
        np.savez(f"{folder}/z.npz", logits=Z, **({} if folder == "new" else {"labels": Y}))
        pq.write_table(pa.table(table | more), f"{folder}/z.parquet")
        pa.csv.write_csv(pa.table(table | more), f"{folder}/z.csv")
        np.save(f"{folder}/z.npy", Z)
    np.save("known/y.npy", Y)
    assert run(["fit", "calibration.npz", "--method", "temperature", "-o", "map"]) == 0
    assert run(["decide", "calibration.npz", "--accept", "0.5", "-o", "rule"]) == 0


def scores(path: str) -> np.ndarray:
    found = reader(Path(path)).read(Path(path))
    assert not {"label", "labels"} & {*found.names}
    return np.asarray(found.load("logits" if "logits" in found.names else "logit"))


@pytest.mark.parametrize("kind", ["npz", "csv", "parquet", "npy"])
def test_a_map_and_a_rule_need_no_labels(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    out = "out.npz" if kind == "npy" else f"out.{kind}"
    beside = ["--labels", "known/y.npy"] if kind == "npy" else []
    for folder in ("map", "rule"):
        capsys.readouterr()
        assert run(["apply", folder, f"new/z.{kind}", "-o", out]) == 0
        said = capsys.readouterr().out
        assert "400 items" in said and "NLL" not in said
        assert run(["apply", folder, f"known/z.{kind}", *beside, "-o", f"known/{out}"]) == 0
        with_labels = reader(Path("known") / out).read(Path("known") / out)
        name = "logits" if "logits" in with_labels.names else "logit"
        np.testing.assert_array_equal(scores(out), np.asarray(with_labels.load(name)))
        assert {"label", "labels"} & {*with_labels.names}
    if kind in ("csv", "parquet"):
        table = pa.csv.read_csv(out) if kind == "csv" else pq.read_table(out)
        assert table.column("animal").to_pylist()[7] == "animal 7"


def test_parts_need_no_labels(capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert run(["apply", "map", "new/z.parquet", "-o", "parts", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["nll_before"] is None and found["nll_after"] is None and found["n"] == 400
    assert scores("parts").shape == (400, 3)


def test_pixels_and_top_1_sets_need_no_labels() -> None:
    maps = np.random.default_rng(2).normal(size=(4, 3, 5, 5))
    np.savez("maps.npz", logits=maps)
    assert run(["apply", "map", "maps.npz", "--class-axis", "1", "--ignore-index", "0", "-o", "pixels.npz"]) == 0
    assert scores("pixels.npz").shape == (100, 3)
    confidence = np.random.default_rng(3).uniform(0.3, 1, 300)
    np.savez("top.npz", predicted=Y[:300], confidence=confidence, labels=Y[:300] ^ (confidence < 0.5))
    np.savez("top-new.npz", predicted=Y[:300], confidence=confidence)
    assert run(["fit", "top.npz", "--method", "isotonic", "-o", "top"]) == 0
    assert run(["apply", "top", "top-new.npz", "-o", "top-out.npz"]) == 0
    assert {"predicted", "confidence"} <= {*np.load("top-out.npz")} and "labels" not in np.load("top-out.npz")
