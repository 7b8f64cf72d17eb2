"""Labels as text, Series and Categoricals; data frames, CSV and Parquet tables."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import calibrant
from calibrant.cli import run
from calibrant.errors import CalibrantError, InputError

RNG = np.random.default_rng(0)
Z = RNG.normal(size=(60, 3)) * 2
P = np.exp(Z) / np.exp(Z).sum(1, keepdims=True)
NAMES = ["owl", "cat", "dog"]  # not in the order of the alphabet
Y = RNG.integers(0, 3, 60)
TEXT = [NAMES[y] for y in Y]
EXPECTED = calibrant.evaluate(probs=P, labels=Y, intervals=False)


def same(report: Any) -> bool:
    return all(report[name].value == pytest.approx(EXPECTED[name].value) for name in ("accuracy", "nll", "ece"))


KINDS: dict[str, Callable[[], Any]] = {
    "list": lambda: TEXT,
    "array": lambda: np.array(TEXT),
    "bytes": lambda: np.array(TEXT).astype("S3"),
    "Series": lambda: pytest.importorskip("pandas").Series(TEXT, index=range(100, 160)),
    "Categorical": lambda: pytest.importorskip("pandas").Categorical(TEXT),  # its own order, which classes= overrules
    "Polars": lambda: pytest.importorskip("polars").Series(TEXT),
}


@pytest.mark.parametrize("kind", KINDS)
def test_labels_of_text_follow_the_order_of_the_classes(kind: str) -> None:
    report = calibrant.evaluate(probs=P, labels=KINDS[kind](), classes=NAMES, intervals=False)
    assert same(report) and report.conventions["classes"] == "owl, cat, dog"
    p = calibrant.predictions(Z, KINDS[kind](), classes=NAMES)
    assert p.labels.tolist() == Y.tolist() and p.classes == tuple(NAMES)


def test_a_categorical_brings_its_order() -> None:
    pandas = pytest.importorskip("pandas")
    labels = pandas.Series(pandas.Categorical(TEXT, categories=NAMES))
    assert same(calibrant.evaluate(probs=P, labels=labels, intervals=False))
    assert same(calibrant.evaluate(probs=pandas.DataFrame(P, columns=NAMES), labels=TEXT, intervals=False))


def test_columns_of_scores_say_the_order_whatever_order_the_categories_have() -> None:
    pandas = pytest.importorskip("pandas")
    labels = pandas.Series(TEXT, dtype="category")  # cat, dog, owl
    for names in (NAMES, [f"prob_{name}" for name in NAMES]):
        report = calibrant.evaluate(probs=pandas.DataFrame(P, columns=names), labels=labels, intervals=False)
        assert same(report) and report.conventions["classes"] == "owl, cat, dog"
    unnamed = pandas.DataFrame(P, columns=["p1", "p2", "p3"])
    ordered = pandas.Series(pandas.Categorical(TEXT, categories=NAMES))
    assert same(calibrant.evaluate(probs=unnamed, labels=ordered, intervals=False))


def test_categories_of_polars_and_a_frame_that_is_not_read_yet() -> None:
    polars = pytest.importorskip("polars")
    table = frame("polars").with_columns(polars.col("species").cast(polars.Categorical))
    assert same(calibrant.evaluate(table, labels_key="species", intervals=False))
    with pytest.raises(InputError, match=r"pass data\.collect\(\)"):
        calibrant.evaluate(table.lazy(), labels_key="species")


def test_numbers_of_pandas_are_numbers() -> None:
    pandas = pytest.importorskip("pandas")
    for labels in (pandas.Series(Y), pandas.Series(Y, dtype="Int64"), pandas.Series(Y, dtype="category")):
        assert same(calibrant.evaluate(probs=P, labels=labels, intervals=False))


def test_every_function_accepts_text_labels() -> None:
    fitted = calibrant.fit("temperature", Z[:30], TEXT[:30], classes=NAMES)
    assert torch.equal(fitted.temperature, calibrant.fit("temperature", Z[:30], Y[:30]).temperature)  # type: ignore[attr-defined]
    after = calibrant.compare(Z, fitted(Z), TEXT, classes=NAMES, metrics=["nll"])
    assert after["nll"].difference == calibrant.compare(Z, fitted(Z), Y, metrics=["nll"])["nll"].difference
    rule = calibrant.decide(Z, TEXT, classes=NAMES, accept=0.5)
    assert rule.record.n == 60


@pytest.mark.parametrize(
    ("labels", "classes", "words"),
    [
        (TEXT, None, ["row 0 is", "text and not a number", "classes=[…]", "prob_cat"]),
        (["owl", "bat", *TEXT[2:]], NAMES, ["row 1 is 'bat'", "not a class", "owl, cat, dog"]),
        (["owl", None, *TEXT[2:]], NAMES, ["row 1 is empty"]),
        (TEXT, ["owl", "cat"], ["row", "not a class"]),
        (TEXT, ["owl", "cat", "owl"], ["'owl' is named twice"]),
    ],
)
def test_mistakes_in_a_table_are_named(labels: Any, classes: Any, words: list[str]) -> None:
    with pytest.raises(InputError) as error:
        calibrant.evaluate(Z, labels, classes=classes)
    assert all(word in str(error.value) for word in words), error.value


def frame(kind: str) -> Any:
    columns = {f"prob_{name}": P[:, i] for i, name in enumerate(NAMES)}
    data: dict[str, Any] = {"species": TEXT, **columns, "hospital": ["a", "b"] * 30}
    if kind == "arrow":
        return pytest.importorskip("pyarrow").table(data)
    return pytest.importorskip(kind).DataFrame(data)


@pytest.mark.parametrize("kind", ["arrow", "pandas", "polars"])
def test_a_data_frame_is_evaluated_by_its_columns(kind: str) -> None:
    table = frame(kind)
    assert same(calibrant.evaluate(table, labels_key="species", intervals=False))
    p = calibrant.read(table, labels_key="species", group_key="hospital", split="test")
    assert p.classes == tuple(NAMES) and p.group_names == ("a", "b") and p.split == "test"
    assert calibrant.compare(table, table, labels_key="species", metrics=["nll"])["nll"].difference == 0
    calibrant.fit("temperature", table, labels_key="species")
    with pytest.raises(InputError, match="no column 'label'; columns found: species, .*prob_.*labels_key="):
        calibrant.evaluate(table)
    with pytest.raises(InputError, match=r"calibrant.read\(df"):
        calibrant.predictions(table)


@pytest.mark.parametrize("name", ["x.csv", "x.parquet"])
def test_the_same_on_the_command_line(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    table = frame("arrow")
    if name.endswith(".csv"):
        from pyarrow import csv

        csv.write_csv(table, name)
    else:
        from pyarrow import parquet

        parquet.write_table(table, name)
    assert run(["audit", name, "--labels-key", "species", "--no-intervals", "--json"]) == 0
    [found] = json.loads(capsys.readouterr().out)
    assert found["metrics"]["nll"]["value"] == pytest.approx(EXPECTED["nll"].value)
    assert found["conventions"]["classes"] == "owl, cat, dog"
    assert run(["audit", name, "--labels-key", "species"]) == 0
    assert "3 classes: owl, cat, dog" in capsys.readouterr().out
    if name.endswith(".parquet"):
        assert run(["audit", name, "--labels-key", "species", "--stream", "--no-intervals", "--json"]) == 0
        [streamed] = json.loads(capsys.readouterr().out)
        assert streamed["metrics"]["nll"]["value"] == pytest.approx(EXPECTED["nll"].value)


@pytest.mark.parametrize("name", ["logits", "probs"])
def test_one_column_of_a_csv_file_holds_lists(name: str, tmp_path: Path) -> None:
    cells = [str([float(v) for v in row]) for row in {"logits": Z, "probs": P}[name]]
    rows = [f'{y},"{cell}"' for y, cell in zip(Y, cells, strict=True)]
    path = tmp_path / "lists.csv"
    path.write_text("\n".join([f"label,{name}", *rows]) + "\n")
    p = calibrant.read(path)
    assert p.raw == (name == "logits") and same(calibrant.evaluate(p, intervals=False))
    path.write_text("\n".join([f"label,{name}", *rows[:7], '0,"[0.5, 0.5]"']))
    with pytest.raises(CalibrantError, match=r"row 7 \(line 9\): column '.*' has 2 values, 3 in row 0"):
        calibrant.read(path)
    path.write_text(f'label,{name}\n0,"[0.5, x, 0.5]"\n')
    with pytest.raises(CalibrantError, match=r"row 0 \(line 2\): column '.*' is ' x', not a number"):
        calibrant.read(path)


def test_a_top_1_table_of_text(tmp_path: Path) -> None:
    path = tmp_path / "top1.csv"
    path.write_text("label,predicted,confidence\ncat,cat,0.9\ndog,cat,0.6\nowl,owl,0.8\n")
    assert calibrant.evaluate(calibrant.read(path), intervals=False)["accuracy"].value == pytest.approx(2 / 3)


def test_other_columns_beside_numbered_scores_are_ignored(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("prob_0,prob_1,prob_max,prob_min,label\n0.9,0.1,0.9,0.1,0\n0.2,0.8,0.8,0.2,1\n")
    assert calibrant.read(path).k == 2
    path.write_text("prob_cat,prob_dog,label\n0.9,x,cat\n")
    with pytest.raises(CalibrantError, match="row 0 .*'prob_dog' is 'x', not a number"):
        calibrant.read(path)
