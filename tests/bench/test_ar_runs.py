"""AR's GPU runs on a CPU at smoke scale: the order, the time box, what is not repeated, and what the cells say."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks import ar_runs, gpu_runs
from calibrant import files
from calibrant.bench import Store
from calibrant.diagnostics import variance_over_runs
from calibrant.functional.pooling import pool
from calibrant.metrics.evaluate import evaluate
from calibrant.papers import experiments

WORDS = ["--smoke", "--device", "cpu", "--epochs", "3", "--only", "vanilla", "ar_adals", "--shifts", "fog-1", "fog-5"]


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    root = tmp_path_factory.mktemp("ar_runs")
    assert ar_runs.main([*WORDS, "--runs", str(root), "--out", str(root / "out")]) == 0
    return root, root / "out"


def test_cells_of_runs_of_their_pool_and_of_their_variance(done: tuple[Path, Path]) -> None:
    root, _ = done
    cells = {(c.experiment, c.seed): c for c in Store(root / "smoke-store").cells()}
    rows = {f"ar/table3/{m}" for m in ("vanilla", "ar_adals", "ensemble_of_vanilla", "ensemble_of_ar_adals")}
    assert {name for name, _ in cells} == rows | {"ar/table5/vanilla", "ar/table5/ar_adals"}
    tests = [files.read(next((root / "smoke").glob(f"vanilla-{s}-*")) / "test.npz") for s in (0, 1)]
    logits = np.stack([t.logits.numpy() for t in tests if t.logits is not None])
    import torch

    stacked = torch.from_numpy(logits)
    both = evaluate(pool(stacked), tests[0].labels, intervals=False)
    pooled = cells["ar/table3/ensemble_of_vanilla", 0]
    assert pooled.measured["as_trained"]["ece"] == pytest.approx(both["ece"].value)
    assert pooled.settings["seeds"] == [0, 1]
    spread = cells["ar/table5/vanilla", 0]
    expected = float(variance_over_runs(stacked, tests[0].labels).mean())
    assert spread.measured["as_trained"]["variance"] == pytest.approx(expected)
    assert spread.measured["corruptions"]["sets"] == 2 and "intensity_5" in spread.measured
    assert len(spread.extras["by_level"]["levels"]) == 5
    assert spread.reported["corruptions"]["variance"] == pytest.approx(0.116), "AR Table 5"
    one = cells["ar/table3/vanilla", 1]
    assert one.scale == "small" and one.note.startswith("NOT the paper's schedule: 3 epochs instead of 200")
    assert one.intervals["as_trained"]["ece"][1] is not None and "temperature" in one.measured


def test_a_second_call_trains_nothing(done: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    root, out = done
    packed = (out / "cells.jsonl").read_text()
    assert ar_runs.main([*WORDS, "--runs", str(root), "--out", str(root / "again")]) == 0
    assert "train vanilla" not in capsys.readouterr().out
    strip = lambda text: [json.loads(line)["cell"]["numbers"] for line in text.splitlines()]  # noqa: E731
    assert strip((root / "again" / "cells.jsonl").read_text()) == strip(packed)
    gpu_runs.unpack(out, root / "results")
    assert len(list(Store(root / "results").cells())) == len(packed.splitlines())


def test_nothing_is_begun_that_cannot_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--smoke", "--device", "cpu", "--runs", str(tmp_path), "--minutes", "0.01"]
    assert ar_runs.main(words) == 0
    out = capsys.readouterr().out
    assert "not done: train vanilla 0" in out and "nothing is done yet" in out


def test_the_plan_has_the_papers_schedule_unless_asked() -> None:
    a = argparse.Namespace(
        smoke=False, set=["engine=graph"], epochs=None, batch=None, seeds=5, only=None, more=False, runs=Path("runs")
    )
    units = ar_runs.plan(a)
    assert [u.name for u in units][:3] == ["train vanilla 0", "attack vanilla 0", "train ar_adals 0"]
    assert len({(u.what, u.method, u.seed) for u in units}) == len(units)
    recipe = next(u.recipe for u in units if u.method == "ar_adals")
    paper = experiments("ar/table3/ar_adals")[0].recipe
    assert recipe.plain() | {"engine": "eager"} == paper.plain() and ar_runs.schedule_note(a) == ""
    a.epochs, a.batch = 40, 1024
    squeezed = ar_runs.recipe_of("ar_adals", 0, a)
    assert squeezed.schedule.milestones == (16, 24, 32, 36) and squeezed.optimiser.lr == pytest.approx(2e-3)
    assert squeezed.targets.options["alpha"] == pytest.approx(0.025)
    assert "40 epochs instead of 200" in ar_runs.schedule_note(a) and "batch 1024" in ar_runs.schedule_note(a)


def test_levels_come_before_who_needs_them(tmp_path: Path) -> None:
    a = argparse.Namespace(
        smoke=True, set=[], epochs=2, batch=None, seeds=2, only=["ar_adals"], more=False, runs=tmp_path
    )
    units = ar_runs.plan(a)
    assert [u.name for u in units] == [
        "train vanilla 0", "attack vanilla 0", "train ar_adals 0", "train ar_adals 1",
    ]  # fmt: skip
    assert [n.name for n in units[2].needs(units)] == ["attack vanilla 0"]
    a.only, a.more, a.epochs = None, True, 40
    more = {u.method: u for u in ar_runs.plan(a) if u.seed == 0}
    assert more["ar_adals_on_the_fly"].recipe.targets.options["refresh_after"] == (13, 26)  # 65 and 130 of 200
    assert more["levels_4"].recipe.targets.options["levels"] == 4 and more["levels_4"].needs(units)
    assert [n.name for n in units[1].needs(units)] == ["train vanilla 0"]


def test_a_lock_of_a_process_that_is_gone_is_taken_over(tmp_path: Path) -> None:
    a = argparse.Namespace(smoke=True, set=[], epochs=2, batch=None, seeds=1, only=None, more=False, runs=tmp_path)
    unit = ar_runs.plan(a)[0]
    assert ar_runs.claimed(unit) and not ar_runs.claimed(unit)
    ar_runs.lock(unit).write_text("999999999")
    assert ar_runs.claimed(unit)


def test_the_papers_numbers_are_where_the_paper_has_them() -> None:
    """AR Tables 2 to 5, a number of each, as fractions."""
    said = {e.name: e.reported for e in experiments("ar")}
    assert said["ar/table2/cifar10_ar_adals"]["as_trained"]["ece"] == pytest.approx(0.0064)
    assert said["ar/table2/cifar100_vanilla"]["temperature"]["ece"] == pytest.approx(0.0426)
    assert said["ar/table2/cifar10_ccat"]["as_trained"]["ece"] == pytest.approx(0.0237)
    assert said["ar/table3/ar_adals_of_ensemble"]["corruptions"]["ece"] == pytest.approx(0.044)
    assert said["ar/table4/cifar100_ar_adals_on_the_fly"]["corruptions"]["accuracy"] == pytest.approx(0.521)
    assert said["ar/table5/ar_adals"]["intensity_5"]["variance"] == pytest.approx(0.0824)
    for method in ("vanilla", "smoothing", "adals", "ar_adals"):
        row = said[f"ar/table5/{method}"]
        mean = sum(row[f"intensity_{i}"]["variance"] for i in range(1, 6)) / 5
        assert mean == pytest.approx(row["corruptions"]["variance"], abs=6e-4), "the paper's own mean"
    assert all(
        e.recipe.targets.options.get("refresh_after") == ()
        for e in experiments("ar/table4/cifar100_ar_adals_precomputed")
    )
