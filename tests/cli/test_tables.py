"""A user's table, with labels as words and other columns, through audit, fit, apply and compare."""

from __future__ import annotations

import csv
import json
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from calibrant.cli import run

CLASSES = ("type_1", "type_2", "owl")  # names that end in numbers are names
EXTRA = {"zip": "007", "note": 'said "so",\nthen left', "seen": "", "score": "1.50"}


def rows(n: int, seed: int) -> list[dict[str, Any]]:
    g = np.random.default_rng(seed)
    z = 1.5 * g.normal(size=(n, 3))
    p = np.exp(z) / np.exp(z).sum(1, keepdims=True)
    sharp = np.exp(3 * z) / np.exp(3 * z).sum(1, keepdims=True)
    return [
        {"species": CLASSES[g.choice(3, p=p[i])], "site": f"site {i % 3}", **EXTRA}
        | {f"prob_{name}": float(sharp[i, j]) for j, name in enumerate(CLASSES)}
        for i in range(n)
    ]


def save(path: Path, table: list[dict[str, Any]]) -> Path:
    if path.suffix == ".csv":
        with path.open("w", newline="") as stream:
            writer = csv.DictWriter(stream, list(table[0]))
            writer.writeheader()
            writer.writerows(table)
    else:
        pq.write_table(pa.Table.from_pylist([row | {"seen": None} for row in table]), path)
    return path


def load(path: Path) -> list[dict[str, Any]]:
    if path.suffix == ".csv":
        with path.open(newline="") as stream:
            return list(csv.DictReader(stream))
    return pq.read_table(path).to_pylist()


def said(capsys: pytest.CaptureFixture[str], *argv: object) -> str:
    code = run([str(a) for a in argv])
    out = capsys.readouterr()
    assert code == 0, out.err
    return out.out


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_table_goes_through_all_verbs_with_its_columns(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    before = rows(300, 1)
    save(Path(f"calibration.{kind}"), rows(300, 0))
    save(Path(f"test.{kind}"), before)
    key = ("--labels-key", "species")
    assert "fit" in said(capsys, "audit", f"test.{kind}", *key, "--by", "site")
    fitted = said(capsys, "fit", f"calibration.{kind}", *key, "--method", "histogram", "-o", "map")
    line = next(line for line in fitted.splitlines() if line.startswith("next: "))
    after = Path(f"calibrated.{kind}")
    assert shlex.split(line.removeprefix("next: calibrant ")) == (
        ["apply", "map", f"test.{kind}", "-o", str(after), *key]
    )
    said(capsys, *shlex.split(line.removeprefix("next: calibrant ")))
    for old, new in zip(before, load(after), strict=True):
        assert {name: new[name] or "" for name in ("species", "site", *EXTRA)} == (
            {name: old[name] for name in ("species", "site", *EXTRA)}
        )
        assert new["predicted"] in CLASSES
        assert not any(name.startswith("prob_") for name in new)
    assert "better in" in said(capsys, "compare", f"test.{kind}", after, *key)
    assert "site 2" in said(capsys, "audit", after, *key, "--by", "site")


def test_a_csv_names_its_scores_and_sets_after_the_classes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table, rule, out = save(tmp_path / "t.csv", rows(300, 0)), tmp_path / "rule", tmp_path / "o.csv"
    said(capsys, "decide", table, "--labels-key", "species", "--set-coverage", "0.9", "-o", rule)
    said(capsys, "apply", rule, save(tmp_path / "u.csv", rows(300, 1)), "--labels-key", "species", "-o", out)
    first = load(out)[0]
    assert {f"{stem}_{name}" for stem in ("logit", "sets") for name in CLASSES} <= first.keys()
    assert first["predicted"] in CLASSES
    assert first["species"] in CLASSES
    assert "classes" not in first


def test_ambiguous_class_names_become_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A column `logit_norm` would become a class, so the scores are numbered and `classes` names them."""
    table = [row | {"logit_norm": "1.0"} for row in rows(200, 0)]
    source, out = save(tmp_path / "t.csv", table), tmp_path / "o.csv"
    said(capsys, "fit", source, "--labels-key", "species", "--method", "temperature", "-o", tmp_path / "map")
    said(capsys, "apply", tmp_path / "map", source, "--labels-key", "species", "-o", out)
    assert {"logit_0", "logit_1", "logit_2", "logit_norm", "classes"} <= load(out)[0].keys()
    said(capsys, "compare", source, out, "--labels-key", "species")


def test_csv_becomes_parquet_with_types(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = save(tmp_path / "t.csv", rows(200, 0))
    said(capsys, "fit", table, "--labels-key", "species", "--method", "temperature", "-o", tmp_path / "map")
    out = tmp_path / "o.parquet"
    said(capsys, "apply", tmp_path / "map", table, "--labels-key", "species", "-o", out)
    assert pq.read_schema(out).field("score").type == pa.float64()
    said(capsys, "compare", table, out, "--labels-key", "species")


def test_streamed_parts_keep_their_columns_and_take_the_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "parts").mkdir()
    for i in range(2):
        save(tmp_path / "parts" / f"{i}.parquet", rows(150, i))
    key = ("--labels-key", "species")
    said(capsys, "fit", tmp_path / "parts", *key, "--method", "temperature", "-o", tmp_path / "map")
    words = ("apply", tmp_path / "map", tmp_path / "parts", *key, "-o", tmp_path / "out")
    record = json.loads(said(capsys, *words, "--json"))
    assert record["parts"] == 2 and record["n"] == 300 and record["nll_after"] < record["nll_before"]
    found = [row for part in sorted((tmp_path / "out").glob("*.parquet")) for row in load(part)]
    assert [row["species"] for row in found] == [row["species"] for i in range(2) for row in rows(150, i)]
    assert found[0]["note"] == EXTRA["note"]
    said(capsys, "compare", tmp_path / "parts", tmp_path / "out", *key)


def test_files_whose_labels_have_different_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    z, y = rng.normal(size=(60, 3)), rng.integers(0, 3, 60)
    a, b = tmp_path / "a.npz", tmp_path / "b.npz"
    np.savez(a, logits=z, y=y)
    np.savez(b, logits=z + 1, target=y)
    words = [str(a), str(b), "--metrics", "nll", "--json", "--labels-key"]
    assert run(["compare", *words, "y,target", "--replicates", "50"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert abs(found["metrics"]["nll"]["difference"]) < 1e-9, "a constant added to all logits changes no probability"
    assert run(["audit", *words, "y,target", "--no-intervals"]) == 0
    assert len({one["metrics"]["nll"]["value"] for one in json.loads(capsys.readouterr().out)}) == 1
    for key, said in (
        ("y", "no key 'y' for labels"),
        ("y,target,z", "has 3 names for 2 files; pass one name, or one for each file"),
    ):
        assert run(["compare", *words, key]) == 2
        assert said in capsys.readouterr().err
