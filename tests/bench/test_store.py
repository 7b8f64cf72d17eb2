"""The store: no measurement is lost or stored twice, and stores move between machines unchanged."""

from __future__ import annotations

import errno
import json
import shutil
import time
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from calibrant import files
from calibrant.bench import Cell, Store, parcel
from calibrant.bench.place import Place
from calibrant.bench.plan import plan
from calibrant.bench.run import run as run_steps
from calibrant.bench.store import SCHEMA, text
from calibrant.bench.tables import row_statuses
from calibrant.cli import run
from calibrant.errors import FileError
from calibrant.executors import InProcess
from calibrant.files import hashed
from calibrant.papers import AS_TRAINED, PAPERS, Experiment, experiments
from calibrant.training import read as recipe
from calibrant.training import train
from calibrant.training.recipe import digest
from tests.bench.measuring import QUIET, measure
from tests.killed import ENDED, begin

RESULTS = Path(__file__).resolve().parents[2] / "results"
EXPERIMENT = Experiment("test", "t1", "digits", recipe("digits/cross_entropy", ["network.hidden=[8]", "epochs=20"]))


def test_a_measurement_is_stored_once_and_arrays_are_on_one_line() -> None:
    names = [p.name for p in (RESULTS / "cells").iterdir() if p.suffix == ".json"]
    cells = list(Store(RESULTS).cells())
    assert len(cells) > len(names), "rows share measurements"
    shared = [c.experiment for c in cells if c.key.startswith(_key_of("ss/table_b1/resnet18_none", cells))]
    assert {"ss/table_e1/cifar100_resnet18_dropout", "ss/figure_b2/none"} <= set(shared)
    for name in names:
        text = (RESULTS / "cells" / name).read_text()
        assert len(text.splitlines()) < 100
    for cell in cells:
        assert cell.key == digest(cell.settings), "a key is the content of the settings"
        assert "engine" not in cell.settings.get("recipe", {}), "the engine is recorded and not keyed"


def _key_of(row: str, cells: list[Cell]) -> str:
    return next(c.key for c in cells if c.experiment == row)


def made(row: str, seed: int, value: float, **changes: Any) -> Cell:
    settings = {"recipe": {"seed": seed, "batch": changes.pop("batch", 8)}}
    numbers = {"measured": {AS_TRAINED: {"ece": value}}, "intervals": {AS_TRAINED: {"ece": (value, value + 0.1)}}}
    return Cell(row, seed, "paper", digest(settings), "done", settings, **{**numbers, **changes})


def test_rows_of_one_measurement_share_a_file_and_have_scales_and_notes_of_their_own(tmp_path: Path) -> None:
    store, first = Store(tmp_path), made("a/t/x", 0, 0.1, note="as it is")
    path = store.write(first)
    assert store.write(replace(first, experiment="b/t/y", scale="3of9", note="another table")) == path
    assert [(c.experiment, c.scale, c.note) for c in store.cells()] == [
        ("a/t/x", "paper", "as it is"),
        ("b/t/y", "3of9", "another table"),
    ]
    assert [c.experiment for c in store.cells("a/t")] == ["a/t/x"] and not list(store.cells("a/t/xx"))
    more = replace(first, measured={AS_TRAINED: {"nll": 0.5}}, intervals={}, extras={"sigma": 1})
    store.write(more)
    assert [c.measured for c in store.cells("b")] == [{AS_TRAINED: {"ece": 0.1, "nll": 0.5}}], "numbers add up"


def test_an_edited_cell_is_reported_and_the_rest_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = Store(tmp_path / "store")
    bad, good = (store.write(made("rc/table1/cifar10_focal", seed, 0.25)) for seed in (0, 1))
    bad.write_text(bad.read_text().replace("0.25", "0.01"))
    for words, says in (
        (["show", "rc"], "25.00%"),
        (["status", "rc/table1/cifar10_focal"], "1 at other settings"),
        (["report", "-o", str(tmp_path / "page.html")], "the page, for a browser"),
    ):
        assert run(["bench", *words, "--results", str(store.root)]) == 1
        said = capsys.readouterr()
        assert says in said.out and "1.00%" not in said.out
        named, remedy = said.err.splitlines()
        assert bad.name in named and "edited or damaged" in named and good.name not in said.err
        assert "delete such a file, and `calibrant bench run` measures its cell again" in remedy
    bad.unlink()
    bad.symlink_to(Store(tmp_path / "other").write(made("rc/table1/cifar10_focal", 0, 0.25)))
    assert run(["bench", "status", "rc/table1/cifar10_focal", "--results", str(store.root)]) == 1
    assert f"{bad.name} is a link that leads out of" in capsys.readouterr().err
    good.unlink()
    assert run(["bench", "show", "rc", "--results", str(store.root)]) == 2
    assert bad.name in capsys.readouterr().err.splitlines()[0], "it is named where nothing else is left, too"


def test_an_edited_cell_stops_neither_plan_compare_merge_nor_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is reported with a remedy, does not count as done, stays unchanged, and the command fails after its work."""
    made = [EXPERIMENT, replace(EXPERIMENT, row="other", recipe=replace(EXPERIMENT.recipe, batch=32))]
    place = Place(tmp_path / "store", tmp_path / "runs", QUIET)
    for e in made:
        measure(e, 0, 1, place.store, place.runs)
    bad = place.store.path(made[0].key(0, 1))
    bad.write_text(bad.read_text().replace('"seed": 0', '"seed": 9', 1))
    edited = bad.read_bytes()
    found = run_steps(made, [0, 1], 1, place, InProcess())
    [failed] = found.open
    assert failed.ending == "failed" and bad.name in failed.why and "if you delete it" in failed.why
    assert [(c.experiment[-5:], c.seed) for c in found.cells] == [("igits", 1), ("other", 0), ("other", 1)]
    newer = place.store.path(made[1].key(0, 1))
    known = newer.read_bytes()
    hashed.write(newer, {**hashed.read(newer), "schema": SCHEMA + 1}, text)
    [_, other] = run_steps(made, [0, 1], 1, place, InProcess()).open
    assert other.ending == "failed" and f"{newer.name} has schema {SCHEMA + 1}" in other.why
    newer.write_bytes(known)
    tolerant = Store(place.results, lambda error: None)
    costs = plan(made, tolerant.cells(), 2, 1, place)
    assert [(c.done, c.trainings) for c in costs] == [(1, 0), (2, 0)]
    assert [s.done for s in row_statuses(made, tolerant, 2, 1)] == [1, 2]
    store = str(place.results)
    assert run(["bench", "compare", "rc/table1/cifar10_focal", "rc/table1/cifar10_l1", "--results", store]) == 2
    assert run(["bench", "merge", store, str(tmp_path / "merged")]) == 1
    said = capsys.readouterr()
    assert "3 new cells" in said.out and said.err.count(bad.name) == 2 and "1 damaged cell left out" in said.err
    assert run(["bench", "plan", "rc/table1/cifar10_focal", "--results", store]) == 1
    assert bad.name in capsys.readouterr().err and bad.read_bytes() == edited
    there = f"file://{place.results}"
    assert run(["bench", "merge", there, str(tmp_path / "merged")]) == 1
    assert capsys.readouterr().err.startswith(f"{there}/cells/{bad.name} was edited"), "not its temporary copy"
    out = str(tmp_path / "out")
    assert run(["bench", "pack", "--results", store, "-o", out]) == 0
    assert run(["bench", "unpack", out, "--results", str(tmp_path / "home"), "--runs", str(tmp_path / "away")]) == 1
    assert capsys.readouterr().err.startswith(f"{out}: cells/{bad.name} was edited")
    bad.unlink()
    assert not run_steps(made, [0, 1], 1, place, InProcess()).open and bad.is_file()
    assert run(["bench", "merge", store, str(tmp_path / "merged")]) == 0
    there = tmp_path / "merged" / "cells" / bad.name
    there.write_bytes(edited)
    assert run(["bench", "merge", store, str(tmp_path / "merged")]) == 1 and there.read_bytes() == edited


def test_a_folder_that_is_not_a_store_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "file").write_text("a file")
    for place in ("none", "other", "file"):
        assert run(["bench", "status", "rc", "--results", str(tmp_path / place)]) == 2
        said = capsys.readouterr()
        assert f"{place} is not a store of results" in said.err and "bench run" in said.err and not said.out


@pytest.mark.parametrize("option", ["--results", "--runs"])
def test_a_file_cannot_be_the_folder_of_cells_or_trainings(
    option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(PAPERS, "test", replace(PAPERS["rc"], name="test", experiments=(EXPERIMENT,)))
    (tmp_path / "file").write_text("a file")
    assert run(["bench", "run", "test", "--epochs", "1", "--device", "cpu", option, str(tmp_path / "file")]) == 2
    assert "file is a file; name a folder to keep the" in capsys.readouterr().err
    assert [p.name for p in tmp_path.iterdir()] == ["file"], "before anything is trained"


def test_any_number_of_epochs_is_a_scale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(PAPERS, "test", replace(PAPERS["rc"], name="test", experiments=(EXPERIMENT,)))
    for scale in (["--epochs", "3"], ["--scale", "small"]):
        assert run(["bench", "run", "test", "--device", "cpu", *scale]) == 0
    capsys.readouterr()
    assert run(["bench", "status", "test", "--json"]) == 0
    assert {r["scale"]: r["done"] for r in json.loads(capsys.readouterr().out)["rows"]} == {"3of20": 1, "5of20": 1}
    assert run(["bench", "status", "test", "--epochs", "5"]) == 0
    assert capsys.readouterr().out.split() == ["test/t1/digits", "5of20", "1/1", "done"], "small is five of its epochs"
    assert run(["bench", "compare", "test/t1/digits", "test/t1/digits", "--json"]) == 0
    assert {d["scale"] for d in json.loads(capsys.readouterr().out)["differences"]} == {"3of20", "5of20"}
    assert run(["bench", "run", "test", "--epochs", "3", "--scale", "paper"]) == 2
    assert "--scale and --epochs" in capsys.readouterr().err


def test_ten_thousand_cells_have_a_status_in_seconds(tmp_path: Path) -> None:
    """About three seconds on a free core; the bound leaves room for a busy one."""
    row = experiments("rc/table1")[0]
    body = replace(made(row.name, 0, 0.1), extras={"curve": list(range(300))})
    store = Store(tmp_path)
    path = store.write(body)
    text = path.read_bytes()
    for i in range(10_000):
        (path.parent / f"{i:012x}.json").write_bytes(text)
    start = time.process_time()
    [found] = row_statuses([row], store)
    assert found.done == 1 and time.process_time() - start < 6


def test_stores_are_merged_and_nothing_is_lost_or_doubled(tmp_path: Path) -> None:
    a, b = Store(tmp_path / "a"), Store(tmp_path / "b")
    a.write(made("p/t/x", 0, 0.1))
    a.write(made("p/t/x", 1, 0.2))
    b.write(replace(made("p/t/x", 1, 0.2), experiment="p/t/z"))
    b.write(replace(made("p/t/x", 2, 0.3), status="failed", error="it diverged", measured={}, intervals={}))
    a.write(made("p/t/x", 2, 0.3))
    assert parcel.merge(b, a) == parcel.Merged(0, 2, 0)
    assert [(c.experiment, c.seed, c.status) for c in a.cells()] == [
        ("p/t/x", 0, "done"), ("p/t/x", 1, "done"), ("p/t/x", 2, "done"), ("p/t/z", 1, "done"),
    ]  # fmt: skip
    assert parcel.merge(a, b) == parcel.Merged(1, 2, 0)
    assert list(a.cells()) == list(b.cells())


def test_a_store_behind_a_url_is_merged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Store(tmp_path / "a").write(made("p/t/x", 0, 0.1))
    assert run(["bench", "merge", str(tmp_path / "a"), f"file://{tmp_path}/far"]) == 0
    assert run(["bench", "merge", f"file://{tmp_path}/far", str(tmp_path / "b")]) == 0
    assert list(Store(tmp_path / "b").cells()) == list(Store(tmp_path / "a").cells())
    capsys.readouterr()
    for wrong in (str(tmp_path / "none"), "file:///nowhere/at/all", "nonsense://x"):
        assert run(["bench", "merge", wrong, str(tmp_path / "b")]) == 2
        assert wrong in capsys.readouterr().err


def test_a_merge_onto_a_full_disk_names_the_file_and_goes_on_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    store, home = Store(tmp_path / "a"), tmp_path / "b"
    store.write(made("p/t/x", 0, 0.1))
    arrays = store.logits("0" * 12, "test")
    arrays.parent.mkdir()
    arrays.write_bytes(b"logits")
    words = ["bench", "merge", str(store.root), str(home)]

    def full(source: Path, target: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(source), None, str(target))

    with monkeypatch.context() as context:
        context.setattr(shutil, "copyfile", full)
        assert run(words) == 1
    said = capsys.readouterr().err
    assert f"No space left on device: '{home / 'logits' / arrays.name}'; make room there" in said
    assert run(words) == 0 and (home / "logits" / arrays.name).read_bytes() == b"logits"


def test_cells_that_stand_in_no_table_are_shown_beside_no_number_of_the_paper(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store, row = Store(tmp_path), "rc/table1/cifar10_focal"
    store.write(replace(made(row, 0, 0.25), scale="smoke"))
    store.write(replace(made(row, 1, 0.5), settings={"recipe": {}, "editions": {"train": -1}}))
    assert run(["bench", "show", "rc/table1", "--results", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "scale smoke: do not compare with the paper" in said and "25.00%" in said and "3.00" not in said
    assert f"{row} seed 1 is stale" in said and "50.00%" not in said and "not run" not in said
    assert "only smoke runs, failed or stale cells, which stand in no table: rc/table1" in said


def test_packed_results_unpack_unchanged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store, how = Store(tmp_path / "store"), replace(QUIET, keep_epochs=True)
    cells = [measure(EXPERIMENT, seed, 2, store, tmp_path / "runs", how) for seed in (0, 1)]
    words = ["--results", str(store.root), "--max-mib", "0.05", "--max-files", "4"]
    assert run(["bench", "pack", "-o", str(tmp_path / "out"), *words]) == 0
    parcels = sorted((tmp_path / "out").iterdir())
    assert len(parcels) > 1 and all(p.stat().st_size <= 0.05 * 2**20 for p in parcels)
    assert run(["bench", "unpack", str(tmp_path / "out"), "--results", str(tmp_path / "home")]) == 0
    home = Store(tmp_path / "home")
    assert cells == list(home.cells())
    for cell in cells:
        for split in ("test", "calibration", "validation"):
            mine, theirs = (files.read(s.logits(cell.extras["run"], split)) for s in (home, store))
            assert np.array_equal(mine.logits.numpy(), theirs.logits.numpy())  # type: ignore[union-attr]
        with np.load(home.logits(cell.extras["run"], "epochs")) as epochs:
            assert epochs["predicted"].shape == (2, len(epochs["labels"]))
    small = parcel.pack(store, tmp_path / "few", 1, 0.02)
    assert small.left and all(name.startswith("logits/") for name in small.left), "cells go first"
    assert run(["bench", "pack", "-o", str(tmp_path / "out"), *words]) == 2
    assert "parcel-00.zip already" in capsys.readouterr().err


def test_an_interrupted_training_resumes_from_a_parcel(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Interrupted after three of six epochs, packed and unpacked, it ends with the numbers of an unbroken training."""
    store, long = Store(tmp_path / "store"), EXPERIMENT.at(0, 6)

    def listen(epoch: int, validation: object) -> None:
        if epoch == 3:
            raise KeyboardInterrupt

    measure(EXPERIMENT, 1, 2, store, tmp_path / "runs")
    name = long.key()[:12]
    large = tmp_path / "runs" / ("f" * 12) / "checkpoint"
    large.mkdir(parents=True)
    with (large / "00001.safetensors").open("wb") as weights:
        weights.truncate(40 << 20)  # more than two parcels
    with pytest.raises(KeyboardInterrupt):
        train(long, tmp_path / "runs" / name, replace(QUIET, listen=listen))
    out, words = str(tmp_path / "out"), ["--results", str(tmp_path / "home"), "--runs", str(tmp_path / "there")]
    assert run(["bench", "pack", "-o", out, "--results", str(store.root), "--runs", str(tmp_path / "runs")]) == 0
    assert "no room for 1: runs/ffffffffffff" in capsys.readouterr().out
    assert run(["bench", "unpack", out, *words]) == 0
    assert "1 training to resume" in capsys.readouterr().out
    assert [p.name for p in (tmp_path / "there").iterdir()] == [name], "what is measured does not travel again"
    again = measure(EXPERIMENT, 0, 6, Store(tmp_path / "home"), tmp_path / "there")
    calm = measure(EXPERIMENT, 0, 6, Store(tmp_path / "calm"), tmp_path / "calm-runs")
    assert again.measured == calm.measured
    rows = (tmp_path / "there" / name / "log.jsonl").read_text().splitlines()
    assert [json.loads(row)["epoch"] for row in rows] == [1, 2, 3, 4, 5, 6]
    first = [json.loads(row) for row in (tmp_path / "runs" / name / "log.jsonl").read_text().splitlines()]
    assert first[:2] == [json.loads(row) for row in rows[:2]], "its first epochs are not run again"


def test_a_parcel_cannot_write_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    with zipfile.ZipFile(tmp_path / "in" / "parcel-00.zip", "w") as archive:
        archive.writestr("../../evil.json", "{}")
    with pytest.raises(FileError, match=r"evil\.json, no file of a store"):
        parcel.unpack(tmp_path / "in", Store(tmp_path / "out"), tmp_path / "runs")
    (tmp_path / "in" / "parcel-00.zip").write_bytes(b"PK nonsense")
    with pytest.raises(FileError, match=r"parcel-00\.zip"):
        parcel.unpack(tmp_path / "in", Store(tmp_path / "out"), tmp_path / "runs")
    assert not (tmp_path / "out").exists()


def test_two_processes_write_rows_of_one_measurement(tmp_path: Path) -> None:
    code = """
import sys
from pathlib import Path
from tests.bench.test_store import made
from calibrant.bench import Store
for i in range(40):
    Store(Path(sys.argv[1])).write(made(f"p/{sys.argv[2]}/{i}", 0, 0.1))
"""
    two = [begin(code, str(tmp_path), name) for name in "ab"]
    assert [heard.recv() for _, heard in two] == [ENDED, ENDED]
    assert len(list(Store(tmp_path).cells())) == 80


def test_a_failure_never_replaces_a_measurement(tmp_path: Path) -> None:
    """Two rows share a key and two commands a store, so one may fail to measure what the other has measured."""
    store, done = Store(tmp_path), made("p/t/x", 0, 0.1)
    store.write(replace(done, status="failed", error="no memory", measured={}, intervals={}))
    store.write(done)
    store.write(replace(done, experiment="p/t/y", status="failed", error="no memory", measured={}, intervals={}))
    assert list(store.cells()) == [done, replace(done, experiment="p/t/y")]


def test_a_merge_keeps_the_targets_numbers_beside_its_logits_and_adds_what_it_lacks(tmp_path: Path) -> None:
    a, b = Store(tmp_path / "a"), Store(tmp_path / "b")
    a.write(made("p/t/x", 0, 0.1, extras={"temperature": 1.5}, seconds=7.0))
    theirs = {AS_TRAINED: {"ece": 0.4, "nll": 0.6}, "temperature": {"ece": 0.2}}
    extras = {"temperature": 2.5, "sigma": 0.3}
    b.write(made("p/t/z", 0, 0.4, measured=theirs, intervals={}, extras=extras, seconds=9.0))
    parcel.merge(b, a)
    for cell, row in zip(a.cells(), ("p/t/x", "p/t/z"), strict=True):
        assert cell.experiment == row and cell.seconds == 7.0
        assert cell.measured == {AS_TRAINED: {"ece": 0.1, "nll": 0.6}, "temperature": {"ece": 0.2}}
        assert cell.intervals == {AS_TRAINED: {"ece": (0.1, 0.2)}}
        assert cell.extras == {"temperature": 1.5, "sigma": 0.3}


def test_an_interrupted_unpack_leaves_no_partial_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "in").mkdir()
    names = ["checkpoint", "log.jsonl", "recipe.json"]
    with zipfile.ZipFile(tmp_path / "in" / "parcel-00.zip", "w") as archive:
        for name in names:
            archive.writestr(f"runs/0123456789ab/{name}", "{}")
    whole, home, runs = shutil.copytree, Store(tmp_path / "home"), tmp_path / "runs"

    def cut_off(source: Path, target: Path, **options: Any) -> None:
        whole(source, target, ignore=shutil.ignore_patterns("recipe.json"), **options)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(shutil, "copytree", cut_off)
        parcel.unpack(tmp_path / "in", home, runs)
    assert parcel.unpack(tmp_path / "in", home, runs).trainings == 1
    assert sorted(p.name for p in (runs / "0123456789ab").iterdir()) == names
