"""AR's GPU runs on a CPU at smoke scale: order, time box, what fails or is not repeated, and what the cells say."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks import ar_cells, ar_figures, ar_measure, ar_runs, ar_table, ar_units
from benchmarks.locks import released
from calibrant import files
from calibrant.bench import Store, parcel
from calibrant.diagnostics import variance_over_runs
from calibrant.functional.pooling import pool
from calibrant.metrics.evaluate import evaluate
from calibrant.papers import experiments
from calibrant.posthoc.fit import fit

WORDS = [
    "--smoke", "--device", "cpu", "--epochs", "3", "--only", "vanilla", "ar_adals", "ccat", "--pgd", "2",
    "--shifts", "fog-1", "fog-5", "contrast-5", "--shift-items", "150",
]  # fmt: skip


def asked(*words: str) -> argparse.Namespace:
    a = ar_runs.parser().parse_args(list(words))
    a.set, a.start, a.deadline = list(a.set or ()), 0.0, float("inf")
    return a


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    root = tmp_path_factory.mktemp("ar_runs")
    assert ar_runs.main([*WORDS, "--runs", str(root), "--out", str(root / "out")]) == 0
    return root, root / "out"


def cells_of(root: Path) -> dict[tuple[str, int], Any]:
    return {(c.experiment, c.seed): c for c in Store(root / "smoke-store").cells()}


def test_cells_of_runs_of_their_pool_and_of_their_variance(done: tuple[Path, Path]) -> None:
    root, _ = done
    cells = cells_of(root)
    rows = {f"ar/table3/{m}" for m in ("vanilla", "ar_adals", "ccat", "ensemble_of_vanilla", "ensemble_of_ar_adals")}
    assert {name for name, _ in cells} == rows | {"ar/table5/vanilla", "ar/table5/ar_adals"}
    runs = [next((root / "smoke").glob(f"vanilla-{s}-*")) for s in (0, 1)]
    tests = [files.read(run / "test.npz") for run in runs]
    stacked = torch.from_numpy(np.stack([t.logits.numpy() for t in tests if t.logits is not None]))
    both = evaluate(pool(stacked), tests[0].labels, intervals=False)
    pooled = cells["ar/table3/ensemble_of_vanilla", 0]
    assert pooled.measured["as_trained"]["ece"] == pytest.approx(both["ece"].value)
    assert pooled.settings["pooled"] == [run.name for run in runs] and "a single run" in pooled.note
    spread = cells["ar/table5/vanilla", 0]
    expected = float(variance_over_runs(stacked, tests[0].labels).mean())
    assert spread.measured["as_trained"]["variance"] == pytest.approx(expected)
    assert spread.measured["corruptions"]["sets"] == 3 and "intensity_5" in spread.measured
    assert len(spread.extras["by_level"]["levels"]) == 5
    assert spread.reported["corruptions"]["variance"] == pytest.approx(0.116), "AR Table 5"
    one = cells["ar/table3/vanilla", 1]
    assert one.scale == "3of200b64-mlp" and one.note.startswith("NOT the paper's schedule: 3 epochs instead of 200")
    assert one.note.endswith("corruptions on the first 150 test images")
    assert one.intervals["as_trained"]["ece"][1] is not None and "temperature" in one.measured
    assert "PGD of 2 steps instead of 10" in cells["ar/table3/ccat", 0].note


def test_cells_of_ar_adals_keep_the_way_of_epsilon(done: tuple[Path, Path]) -> None:
    root, _ = done
    cells = cells_of(root)
    for seed in (0, 1):
        run = next((root / "smoke").glob(f"ar_adals-{seed}-*"))
        kept = json.loads((run / "targets.json").read_text("utf-8"))["epsilon"]
        way = cells["ar/table3/ar_adals", seed].extras["epsilon_by_epoch"]
        assert [len(row) for row in way] == [5] * 4 and way[0] == [0.0] * 5, "the start and three epochs, five levels"
        np.testing.assert_allclose(way, kept, rtol=0, atol=5.001e-5)
        assert all(e == round(e, 4) for row in way for e in row)
    assert not any("epsilon_by_epoch" in c.extras for (name, _), c in cells.items() if name != "ar/table3/ar_adals")


def test_under_corruption_as_trained_and_after_the_temperature_of_clean_data(done: tuple[Path, Path]) -> None:
    root, _ = done
    run = next((root / "smoke").glob("vanilla-0-*"))
    logits = torch.from_numpy(np.load(next(run.glob("shifted-150-3.npy"))))
    test, calibration = files.read(run / "test.npz"), files.read(run / "calibration.npz")
    assert logits.shape[:2] == (3, 150)
    cell = cells_of(root)["ar/table3/vanilla", 0]
    measured, by_type = cell.measured, cell.extras["by_type"]
    for prefix, change in (("", lambda z: z), ("temperature_", fit("temperature", calibration))):
        rows = [evaluate(change(z), test.labels[:150], intervals=False) for z in logits]
        for metric in ("accuracy", "ece", "nll", "auroc"):
            values = [row[metric].value for row in rows]
            assert measured[f"{prefix}corruptions"][metric] == pytest.approx(np.mean(values))
            assert measured[f"{prefix}intensity_5"][metric] == pytest.approx(np.mean(values[1:])), "fog-5, contrast-5"
            assert by_type[f"{prefix}fog"][metric] == pytest.approx(np.mean(values[:2]))


def test_a_second_call_trains_nothing(done: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    root, out = done
    assert ar_runs.main([*WORDS, "--runs", str(root), "--out", str(root / "again")]) == 0
    assert "train vanilla" not in capsys.readouterr().out
    first, second = Store(root / "first"), Store(root / "second")
    for folder, store in ((out, first), (root / "again", second)):
        assert parcel.unpack(folder, store).cells > 0
    assert [(c.experiment, c.measured) for c in first.cells()] == [(c.experiment, c.measured) for c in second.cells()]
    assert {p.name for p in out.iterdir()} == {"parcel-00.zip", "table.txt", "log.txt", "robustness.npz"}
    text = (out / "table.txt").read_text()
    assert "table3/vanilla (few)" in text and "ensemble_of_vanilla (single run)" in text and "16.7" in text


def test_nothing_is_begun_that_cannot_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--smoke", "--device", "cpu", "--runs", str(tmp_path), "--minutes", "0.01"]
    assert ar_runs.main(words) == 0
    assert "nothing is done yet" in capsys.readouterr().out and not list(tmp_path.glob("smoke/vanilla*"))


def test_seeds_of_a_method_are_asked_for_one_by_one_and_bring_the_levels_that_they_need(tmp_path: Path) -> None:
    a = asked("--only", "levels_4:2", "ccat:0", "--runs", str(tmp_path))
    a.set = []
    trained = [(u.method, u.seed) for u in ar_units.plan(a) if u.what == "train"]
    assert trained == [("vanilla", 0), ("ccat", 0), ("levels_4", 2)]


def test_a_training_that_is_cut_goes_on_later(tmp_path: Path) -> None:
    a = asked("--smoke", "--device", "cpu", "--epochs", "9", "--only", "smoothing", "--seeds", "1", "--no-corruptions")
    a.runs = tmp_path
    unit, measured = ar_units.plan(a)
    data = ar_runs.load("digits", sizes=unit.recipe.data.sizes)
    fresh = unit.seconds(data, ar_units.Pace(100.0, 100.0))
    a.deadline = 0.0
    with pytest.raises(ar_runs.OutOfTime, match="after epoch 1"):
        ar_runs.trained(unit, [unit, measured], data, a)
    assert not unit.done() and unit.seconds(data, ar_units.Pace(100.0, 100.0)) == fresh, "no checkpoint stands yet"
    a.deadline = float("inf")
    assert ar_runs.trained(unit, [unit, measured], data, a)["epochs"] == 9 and unit.done()


def test_a_unit_that_fails_is_said_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    honest = ar_runs.do

    def faulty(unit: ar_units.Unit, *rest: Any) -> None:
        if unit.method == "smoothing":
            raise ValueError("out of luck")
        honest(unit, *rest)

    monkeypatch.setattr(ar_runs, "do", faulty)
    words = ["--smoke", "--device", "cpu", "--epochs", "1", "--only", "smoothing", "mixup", "--seeds", "1"]
    assert ar_runs.main([*words, "--no-corruptions", "--runs", str(tmp_path), "--out", str(tmp_path / "out")]) == 0
    out = capsys.readouterr().out
    assert "train smoothing 0 FAILED: ValueError('out of luck')" in out and "train mixup 0:" in out
    assert "not done: train smoothing 0, measure smoothing 0" in out
    assert [c.experiment for c in Store(tmp_path / "smoke-store").cells()] == ["ar/table3/mixup"]


def test_the_plan_has_the_papers_schedule_unless_asked() -> None:
    a = asked("--set", "engine=graph")
    units = ar_units.plan(a)
    names = [u.name for u in units]
    assert names[:4] == ["train vanilla 0", "attack vanilla 0", "measure vanilla 0", "train vanilla 1"]
    assert len(set(names)) == len(names)
    assert [n for n in names if n.startswith("pool vanilla")] == ["pool vanilla of 3", "pool vanilla of 5"]
    recipe = next(u.recipe for u in units if u.method == "ar_adals")
    paper = experiments("ar/table3/ar_adals")[0].recipe
    assert recipe.plain() | {"engine": "eager"} == paper.plain() and ar_units.schedule_note(a) == ""
    a.epochs, a.batch, a.members, a.pgd = 40, 1024, 3, 4
    squeezed = ar_units.recipe_of("ar_adals", 0, a)
    assert squeezed.schedule.milestones == (16, 24, 32, 36) and squeezed.optimiser.lr == pytest.approx(2e-3)
    assert squeezed.targets.options["alpha"] == pytest.approx(0.025)
    assert "40 epochs instead of 200" in ar_units.schedule_note(a) and "batch 1024" in ar_units.schedule_note(a)
    assert ar_units.recipe_of("ar_adals_of_ensemble", 0, a).members == 3
    assert "3 members instead of 5" in ar_units.schedule_note(a, "ar_adals_of_ensemble")
    ccat = ar_units.recipe_of("ccat", 0, a)
    assert ccat.transforms[0].options["attack"]["iterations"] == 4 and ar_units.cost(ccat) == 4.0


def test_levels_come_before_who_needs_them() -> None:
    a = asked("--smoke", "--epochs", "2", "--seeds", "2", "--only", "ar_adals", "--no-corruptions")
    units = ar_units.plan(a)
    assert [u.name for u in units] == [
        "train vanilla 0", "attack vanilla 0", "measure vanilla 0", "train ar_adals 0", "measure ar_adals 0",
        "train ar_adals 1", "measure ar_adals 1", "pool ar_adals of 2",
    ]  # fmt: skip
    by = {u.name: u for u in units}
    needed = {name: [n.name for n in unit.needs(units)] for name, unit in by.items()}
    assert needed["train ar_adals 0"] == ["attack vanilla 0"] and needed["attack vanilla 0"] == ["train vanilla 0"]
    assert needed["pool ar_adals of 2"] == ["measure ar_adals 0", "measure ar_adals 1"]
    a.only, a.epochs = None, 40
    more = {u.method: u for u in ar_units.plan(a) if u.seed == 0 and u.what == "train"}
    assert more["ar_adals_on_the_fly"].recipe.targets.options["refresh_after"] == (13, 26)  # 65 and 130 of 200
    assert more["levels_4"].recipe.targets.options["levels"] == 4 and more["levels_4"].needs(units)


def test_one_process_has_a_unit(tmp_path: Path) -> None:
    a = asked("--smoke", "--runs", str(tmp_path), "--epochs", "2")
    unit = ar_units.plan(a)[0]
    assert ar_runs.claimed(unit) and not ar_runs.claimed(unit)
    released(ar_runs.mark(unit, "lock"))
    unit.run.mkdir(parents=True)
    (unit.run / "metrics.json").write_text("{}")
    assert not ar_runs.claimed(unit) and not ar_runs.mark(unit, "lock").exists(), "another one has done it since"


def test_foreign_images_are_told_by_entropy() -> None:
    """Against a count of pairs; a constant prediction is entropy ln K."""
    sure, unsure = torch.eye(4)[[0, 1, 2, 3]] * 9, torch.zeros(3, 4)
    inside = ar_measure.predictions(torch.cat([sure, unsure[:1]]), torch.tensor([0, 1, 2, 3, 0]))
    found = ar_measure.detection(inside, torch.cat([unsure, sure[:1]]))
    # three unsure outside items lie above four inside ones and tie with one; the sure one ties with four
    assert found["auroc_entropy"] == pytest.approx((3 * 4 + 3 * 0.5 + 4 * 0.5) / 20)


def test_the_table_says_how_many_runs(done: tuple[Path, Path]) -> None:
    root, _ = done
    text = ar_table.table(list(Store(root / "smoke-store").cells()))
    assert "NOT the paper's schedule: 3 epochs" in text and "by level, least robust first" in text
    assert ar_cells.command(asked("--epochs", "30", "--members", "3")).endswith("ar_runs.py --epochs 30 --members 3")


def test_figures_are_drawn_of_what_is_there(done: tuple[Path, Path], tmp_path: Path) -> None:
    root, _ = done
    drawn = ar_figures.draw(root / "smoke-store", tmp_path)
    assert [p.name for p in drawn] == [f"ar-figure{n}-3of200b64-mlp.svg" for n in (1, 2)], (
        "no other levels, no CIFAR-100"
    )
    assert "<svg" in drawn[0].read_text()


def test_the_papers_numbers_are_where_the_paper_has_them() -> None:
    """AR Tables 2 to 5 and §5.5, a number of each, as fractions."""
    said = {e.name: e.reported for e in experiments("ar")}
    assert said["ar/table2/cifar10_ar_adals"]["as_trained"]["ece"] == pytest.approx(0.0064)
    assert said["ar/table2/cifar100_vanilla"]["temperature"]["ece"] == pytest.approx(0.0426)
    assert said["ar/table2/cifar10_ccat"]["as_trained"]["ece"] == pytest.approx(0.0237)
    assert said["ar/table3/ar_adals_of_ensemble"]["corruptions"]["ece"] == pytest.approx(0.044)
    assert said["ar/table4/cifar100_ar_adals_on_the_fly"]["corruptions"]["accuracy"] == pytest.approx(0.521)
    assert said["ar/table5/ar_adals"]["intensity_5"]["variance"] == pytest.approx(0.0824)
    assert said["ar/ood/cifar10_ar_adals"]["cifar100"]["auroc_entropy"] == 0.885
    for method in ("vanilla", "smoothing", "adals", "ar_adals"):
        row = said[f"ar/table5/{method}"]
        mean = sum(row[f"intensity_{i}"]["variance"] for i in range(1, 6)) / 5
        assert mean == pytest.approx(row["corruptions"]["variance"], abs=6e-4), "the paper's own mean"
    assert all(
        e.recipe.targets.options.get("refresh_after") == ()
        for e in experiments("ar/table4/cifar100_ar_adals_precomputed")
    )
