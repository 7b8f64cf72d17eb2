"""Measuring cells: keys, failures, ensembles, calibrators, intervals, and the command line."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import scipy.stats

from calibrant import files
from calibrant.bench import Cell, Store
from calibrant.bench.measure import blank
from calibrant.bench.seeds import interval, moments
from calibrant.bench.tables import compared, lines, row_statuses
from calibrant.cli import run
from calibrant.errors import CalibrantError, DivergedError, FileError, InputError
from calibrant.files import hashed
from calibrant.metrics import METRICS
from calibrant.metrics.evaluate import evaluate
from calibrant.papers import AS_TRAINED, PAPERS, Experiment, experiments
from calibrant.papers.reported import SAME_ROW
from calibrant.training import How, Selection
from calibrant.training import read as recipe
from calibrant.training.settings import Choice
from tests.bench.measuring import measure

EXPERIMENT = Experiment(
    paper="test",
    table="t1",
    row="digits",
    recipe=recipe("digits/cross_entropy", ["network.hidden=[16]", "epochs=20"]),
    seeds=2,
    calibrators=("temperature",),
    note="made up",
)


@pytest.mark.parametrize("paper", PAPERS)
def test_every_experiment_is_named_once_and_its_numbers_are_fractions(paper: str) -> None:
    found = PAPERS[paper].experiments
    assert len({e.name for e in found}) == len(found) == len(experiments(paper))
    for e in found:
        for row in e.reported.values():
            assert all(v >= 0 and (v <= 1 or m not in METRICS or not METRICS[m].percent) for m, v in row.items())
        averaged = any(c.name in ("swa", "swag", "snapshot") for c in e.ensembles)
        assert e.at(0, "smoke").epochs == 1 + averaged and e.at(3, "paper").seed == 3
        assert e.at(0, "small").schedule.milestones == pytest.approx([m / 10 for m in e.recipe.schedule.milestones])


def test_smoke_has_a_network_that_two_cores_can_train_and_says_so() -> None:
    [wide] = experiments("pep/ood/wide_resnet28_10")
    assert wide.at(0, "smoke").network.name == "resnet29v2"
    assert wide.remark("smoke").startswith("smoke: resnet29v2 instead of wide_resnet28_10; ")
    for scale in ("small", "paper"):  # these are results: the network does not change
        assert wide.at(0, scale).network == wide.recipe.network
    assert wide.remark("paper") == wide.note
    assert wide.remark(30) == f"NOT the paper's schedule: 30 epochs instead of 200 (milestones scaled); {wide.note}"
    assert EXPERIMENT.at(0, "smoke").network == EXPERIMENT.recipe.network and EXPERIMENT.remark("smoke") == "made up"


def test_a_key_depends_only_on_the_settings() -> None:
    same = replace(EXPERIMENT, note="other", recipe=replace(EXPERIMENT.recipe, name="x", about="y"))
    assert same.key(0, "paper") == EXPERIMENT.key(0, "paper")
    others = [
        EXPERIMENT.key(1, "paper"),
        EXPERIMENT.key(0, "small"),
        replace(EXPERIMENT, calibrators=()).key(0, "paper"),
    ]
    assert len({EXPERIMENT.key(0, "paper"), *others}) == 4


def test_a_cell_is_measured_once_and_reads_back(tmp_path: Path) -> None:
    store = Store(tmp_path / "results")
    cell = measure(EXPERIMENT, 0, "small", store, tmp_path / "runs")
    path = store.path(cell.key)
    assert cell == store.find(EXPERIMENT, 0, "small") and cell.status == "done"
    assert store.read(path) == [cell]
    of_paper = replace(cell, experiment="rc/table1/cifar10_cross_entropy").to_dict()["numbers"]["temperature"]["ece"]
    assert (of_paper["reported"], of_paper["measured"]) == (0.0095, cell.measured["temperature"]["ece"])
    assert {"commit", "environment", "seconds", "device", "command", "settings"} <= set(json.loads(path.read_text()))
    test = files.read(store.logits(cell.extras["run"], "test"))
    report = evaluate(test, metrics=EXPERIMENT.metrics)
    for name in EXPERIMENT.metrics:
        assert cell.measured[AS_TRAINED][name] == pytest.approx(report[name].value)
        assert cell.intervals[AS_TRAINED][name] == pytest.approx((report[name].low, report[name].high))
    assert cell.extras["temperature"] > 0
    before = path.read_bytes()
    assert measure(EXPERIMENT, 0, "small", store, tmp_path / "nowhere") == cell
    assert path.read_bytes() == before and not (tmp_path / "nowhere").exists()


def test_a_failed_run_is_stored_and_tried_again(tmp_path: Path) -> None:
    store = Store(tmp_path / "results")
    wild = replace(EXPERIMENT, recipe=EXPERIMENT.recipe.with_settings({"optimiser": {"name": "sgd", "lr": 1e30}}))
    with pytest.raises(DivergedError):
        measure(wild, 0, "small", store, tmp_path / "runs")
    found = store.find(wild, 0, "small")
    assert found is not None and found.status == "failed" and found.error is not None and "items" in found.error
    assert row_statuses([wild], store, 1, "small")[0].failed == 1
    with pytest.raises(DivergedError):
        measure(wild, 0, "small", store, tmp_path / "runs")


def test_unknown_shifts_and_options_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CalibrantError, match="unknown shift 'fog'.*corruptions"):
        measure(replace(EXPERIMENT, shifts=("fog",)), 0, "smoke", Store(tmp_path), tmp_path)
    assert not list(tmp_path.iterdir()), "before anything is trained"
    wrong = replace(EXPERIMENT, ensembles=(Choice("pep", {"member": 3}),))
    with pytest.raises(CalibrantError, match="members"):
        measure(wrong, 0, "smoke", Store(tmp_path / "results"), tmp_path / "runs")


def test_missing_data_is_not_a_failed_run(tmp_path: Path) -> None:
    wanting = replace(EXPERIMENT, recipe=EXPERIMENT.recipe.with_settings({"data.name": "mnist"}))
    with pytest.raises(CalibrantError, match="mnist"):
        measure(wanting, 0, "small", Store(tmp_path / "r"), tmp_path / "runs", How("cpu", root=tmp_path, quiet=True))
    assert not (tmp_path / "r").exists() and not (tmp_path / "runs").exists()


def test_a_calibrator_with_options_has_them_in_its_variant(tmp_path: Path) -> None:
    """RC does not name the criterion of its search of T, so both are run; DS fixes T = 1.5."""
    searched, fixed = Choice("temperature", {"objective": "ece"}), Choice("temperature", {"T": 1.5})
    experiment = replace(EXPERIMENT, calibrators=("temperature", searched, fixed))
    found = measure(experiment, 0, "small", Store(tmp_path / "results"), tmp_path / "runs")
    names = ["temperature", "temperature[objective=ece]", "temperature[T=1.5]"]
    assert list(found.measured) == [AS_TRAINED, *names] and found.extras[names[2]] == 1.5
    calibration, test = (
        files.read(tmp_path / "runs" / found.extras["run"] / f"{s}.npz") for s in ("calibration", "test")
    )
    errors = {
        t: evaluate(replace(calibration, logits=calibration.logits / t), metrics=("ece",), intervals=False)
        for t in (found.extras[names[1]], 0.9 * found.extras[names[1]], 1.1 * found.extras[names[1]])
    }
    assert min(errors, key=lambda t: errors[t]["ece"].value) == found.extras[names[1]]
    by_hand = evaluate(replace(test, logits=test.logits / 1.5), intervals=False)
    assert found.measured[names[2]]["nll"] == pytest.approx(by_hand["nll"].value)
    assert experiment.key(0, "small") != EXPERIMENT.key(0, "small")


def test_a_selection_is_measured_beside_the_oracle_choice(tmp_path: Path) -> None:
    grid = Selection({"loss.gamma": (0.0, 9.0)}, "ece", "validation")
    base = recipe("digits/focal", ["network.hidden=[16]", "epochs=20"])
    found = measure(
        replace(EXPERIMENT, recipe=replace(base, selection=grid)),
        0,
        "small",
        Store(tmp_path / "results"),
        tmp_path / "runs",
    )
    said = found.extras["selection"]
    assert said["points"] == 2 and said["split"] == "validation" and said["oracle"] is False
    assert set(said["chosen"]) == {"loss.gamma"} == set(said["oracle_choice"])
    assert ("oracle" in found.measured) == (said["chosen"] != said["oracle_choice"])
    best = min(v["ece"] for k, v in found.measured.items() if k in (AS_TRAINED, "oracle") and v["ece"] is not None)
    assert found.measured.get("oracle", found.measured[AS_TRAINED])["ece"] == best
    assert found.extras["epochs"] == 10


def cell(name: str, seed: int, ece: float | None, status: str = "done") -> Cell:
    return Cell(name, seed, "paper", f"{seed}" * 12, status, {}, {AS_TRAINED: {"ece": ece}})  # type: ignore[arg-type]


def test_lines_are_means_over_seeds_that_are_done() -> None:
    cells = [cell("a", 0, 0.1), cell("a", 1, 0.3), cell("a", 2, 0.9, "failed"), cell("a", 3, None)]
    [line] = lines(cells)
    assert (line.mean, line.seeds, line.reported) == (pytest.approx(0.2), 2, None)
    assert line.deviation == pytest.approx(0.1 * 2**0.5)
    assert moments([0.25]) == (0.25, None)


def test_an_interval_over_seeds_holds_the_seeds_and_the_items() -> None:
    """By hand: t(1) = 12.706; items' half-widths 0.03 and 0.05 average to 0.04 and are not shrunk by seeds."""
    made = [replace(cell("a", s, v), intervals={AS_TRAINED: {"ece": (v - h, v + h)}}) for s, v, h in SEEDS]
    [single] = lines(made[:1])
    assert (single.low, single.high) == (pytest.approx(0.07), pytest.approx(0.13)) and single.deviation is None
    [both] = lines(made)
    spread = 12.7062 * 0.1 * 2**0.5 / 2**0.5
    low, high, _ = interval([0.1, 0.3], [(-0.03, 0.03), (-0.05, 0.05)])
    assert high == pytest.approx(0.2 + (spread**2 + 0.04**2) ** 0.5, rel=1e-4) and low == pytest.approx(0.4 - high)
    assert low < 0 and high > 1 and (both.low, both.high) == (0.0, 1.0), "an ECE lies in 0…1, and so does its interval"
    assert (single.of, both.of) == ("items", "seeds and items")
    [full, smoke] = lines(
        [replace(made[0], experiment="rc/table1/cifar10_cross_entropy", scale=s) for s in ("paper", "smoke")]
    )
    assert (full.reported, smoke.reported) == (0.0643, None)


def test_cells_without_intervals_give_that_of_the_seeds_from_three_on() -> None:
    values = [0.1, 0.3, 0.2, 0.25]
    [line] = lines([cell("a", s, v) for s, v in enumerate(values)])
    expected = scipy.stats.t.interval(0.95, 3, np.mean(values), scipy.stats.sem(values))
    assert (line.low, line.high) == pytest.approx(expected) and line.of == "seeds"
    [two] = lines([cell("a", s, v) for s, v in enumerate(values[:2])])
    assert (two.low, two.high, two.of) == (None, None, "nothing")


SEEDS = ((0, 0.1, 0.03), (1, 0.3, 0.05))


def test_differences_are_paired_by_seed() -> None:
    a, b = [cell("a", s, v) for s, v in enumerate((0.1, 0.2, 0.3))], [cell("b", s, v) for s, v in enumerate((0.2, 0.3))]
    [d] = compared("a", "b", a + b)
    assert (d.mean, d.seeds, d.error) == (pytest.approx(0.1), 2, pytest.approx(0.0, abs=1e-12))


def with_decay(made: Cell, decay: float, engine: str = "graph") -> Cell:
    return replace(
        made, settings={"recipe": {"optimiser": {"weight_decay": decay}, "engine": engine, "seed": made.seed}}
    )


def test_other_settings_are_another_row_and_never_further_seeds() -> None:
    cells = [
        with_decay(cell("a", 0, 0.1), 0.0),
        with_decay(cell("a", 1, 0.3), 0.0, "compile"),
        with_decay(cell("a", 0, 0.9), 5e-4),
    ]
    assert [(x.settings, x.mean, x.seeds) for x in lines(cells)] == [
        ("optimiser.weight_decay=0.0", pytest.approx(0.2), 2),
        ("optimiser.weight_decay=0.0005", 0.9, 1),
    ]
    [alone] = lines(cells[:2])
    assert alone.settings == "", "seed and engine do not tell rows apart"
    [d] = compared("a", "b", [*cells, with_decay(cell("b", 0, 0.15), 0.0)])
    assert (d.mean, d.seeds, d.settings) == (pytest.approx(0.05), 1, "optimiser.weight_decay=0.0")


def test_a_file_that_is_not_a_cell_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "cells" / "abc.json"
    path.parent.mkdir()
    for body, says in ((None, "is not valid JSON"), ({}, "has schema None"), ({"schema": 2}, "is not a cell")):
        if body is None:
            path.write_text("[")
        else:
            hashed.write(path, body)
        with pytest.raises(FileError, match=rf"abc.json {says}"):
            list(Store(tmp_path).cells())


def test_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    paper = replace(PAPERS["rc"], name="test", experiments=(EXPERIMENT, replace(EXPERIMENT, row="other")))
    monkeypatch.setitem(PAPERS, "test", paper)
    monkeypatch.setitem(SAME_ROW, "test/t1/digits", "rc/table1/cifar10_cross_entropy")
    base = ["--scale", "small", "--json"]
    assert run(["bench", "run", "test", "--seeds", "2", "--device", "cpu", *base]) == 0
    assert len(json.loads(capsys.readouterr().out)["cells"]) == 4
    assert run(["bench", "status", "test/t1", *base]) == 0
    assert [r["done"] for r in json.loads(capsys.readouterr().out)["rows"]] == [2, 2]
    assert run(["bench", "run", "test/t1/digits", "--device", "cpu", "--scale", "smoke", "--results", "smoke"]) == 0
    said = capsys.readouterr()
    assert "single run, scale smoke" in said.out and "test/t1/digits, seed 0, smoke: " in said.err, (
        "smoke is one seed, unless asked"
    )
    assert run(["bench", "status", "--scale", "small"]) == 0
    every = capsys.readouterr().out
    assert "test/t1/other" in every and "pep/table2/mnist_mlp" in every, "without a name, every paper"
    assert run(["bench", "show", "test/t1/digits"]) == 0
    shown = capsys.readouterr().out
    assert "6.43%" not in shown and "scale 5of20: do not compare with the paper" in shown and "2 seeds" in shown
    assert run(["bench", "run", "test/t1/digits", "--seeds", "1", "--device", "cpu", "--set", "engine=eager"]) == 0
    assert run(["bench", "show", "test/t1/digits"]) == 0
    beside = [line.split() for line in capsys.readouterr().out.splitlines() if line.strip().startswith("as_trained")]
    [ece] = [words for words in beside[:8] if words[1] == "ece"]
    mean, low, high = (float(ece[i].rstrip("%")) for i in (3, 4, 6))
    assert ece[2] == "6.43%" and low <= mean <= high, ece
    assert run(["bench", "compare", "test/t1/digits", "test/t1/other", *base]) == 0
    assert json.loads(capsys.readouterr().out)["differences"][0]["mean"] == 0.0
    for wrong in (["show", "ss"], ["compare", "a", "b"], ["run", "test", "--scale", "huge"], ["status", "nope"]):
        assert run(["bench", *wrong]) == 2
        assert capsys.readouterr().err.startswith("calibrant: ")
    assert run(["bench", "compare", "test/t1/digit", "test/t1/other"]) == 2
    assert "did you mean 'test/t1/digits'?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("ss/nonsense", "unknown experiment 'ss/nonsense'; did you mean 'ss/"),
        ("ss/table_e4/camvid_unt", "did you mean 'ss/table_e4/camvid_unet'?"),
        ("sss", "unknown paper 'sss'; did you mean 'ss'?"),
        ("ss/table_e4", "no cells under results/ss/table_e4; measure some with `calibrant bench run ss/table_e4`"),
    ],
)
def test_only_existing_experiments_are_suggested(
    what: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["bench", "show", what]) == 2
    error = capsys.readouterr().err
    assert says in error and len(error.splitlines()) == 1


def test_an_interval_names_what_was_resampled(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A video's cells resample blocks of frames; the others still say items."""
    bounds = {"as_trained": {"ece": (0.05, 0.2)}}
    for name, settings, scale in (
        ("video", {"block": 15}, "paper"),
        ("still", {}, "paper"),
        ("one", {"block": 1}, "paper"),
    ):
        made = replace(cell(f"p/t/{name}", 0, 0.1), settings=settings, intervals=bounds, scale=scale, key=name * 6)
        Store(tmp_path).write(made)
    assert run(["bench", "show", "--results", str(tmp_path)]) == 0
    rows = [line for line in capsys.readouterr().out.splitlines() if " ece " in line]
    assert [r.split("% of ")[1] for r in rows] == ["frames", "items", "blocks of 15 frames"]
    seeds = [replace(cell("v", s, 0.1 * s), settings={"block": 15}, intervals=bounds) for s in range(3)]
    assert [x.of for x in lines(seeds)] == ["seeds and blocks of 15 frames"]


def test_a_shifted_set_is_measured_with_the_calibrators_of_clean_data(tmp_path: Path) -> None:
    """As in DS Table 3. The shifted items are those of the test set, so the numbers must be equal."""
    moved = replace(EXPERIMENT, shifts=("digits",), calibrators=("temperature",))
    cell = measure(moved, 0, "small", Store(tmp_path / "results"), tmp_path / "runs")
    for shifted, clean in (("digits", "as_trained"), ("digits+temperature", "temperature")):
        for name, value in cell.measured[clean].items():
            assert cell.measured[shifted][name] == pytest.approx(value, abs=1e-6), (shifted, name)
    with pytest.raises(InputError, match="not the same task"):
        measure(replace(EXPERIMENT, shifts=("digits[0-4]",)), 0, "smoke", Store(tmp_path), tmp_path)
    table = experiments("ds/table3/vgg16_baseline")[0]
    assert (
        table.shifts == ("cifar10_1", "cifar10_2") and table.reported["cifar10_2+temperature[T=1.5]"]["ece"] == 0.1307
    )


@pytest.mark.parametrize(
    ("settings", "scale", "says"),
    [
        ({}, "paper", ""),
        ({"engine": "eager", "precision": "bfloat16"}, "paper", ""),
        ({"optimiser.weight_decay": 0.0}, "paper", "weight_decay 0 instead of 0.0005, which the paper does not print"),
        ({"optimiser.momentum": 0.5}, "paper", "optimiser.momentum 0.5 instead of 0.9"),
        ({"optimiser.lr": 0.5}, "paper", "learning rate 0.5 instead of 0.1"),
        ({"loss.gamma": 1.0}, "paper", "loss.gamma 1 instead of 3"),
        ({"data.name": "svhn"}, "200of200-svhn", "data.name svhn instead of cifar10"),
        ({"network.width": 8}, "200of200-resnet32", "network.width 8 instead of none"),
        ({"network.name": "resnet110"}, "200of200-resnet110", "network.name resnet110 instead of resnet32"),
    ],
)
def test_other_settings_are_caveats_and_other_data_or_networks_another_scale(
    settings: dict[str, object], scale: str, says: str
) -> None:
    [row] = experiments("rc/table1/cifar10_focal")
    asked = row.changed(settings)
    assert asked.scale_name("paper") == scale
    said = asked.remark("paper")
    assert said == row.note if not says else says in said and said.endswith(row.note)
    assert ("does not print" in said) == ("optimiser.weight_decay" in settings)


def test_status_counts_only_cells_at_the_settings_of_their_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(PAPERS, "test", replace(PAPERS["rc"], name="test", experiments=(EXPERIMENT,)))

    def status(name: str, e: Experiment) -> str:
        for seed in (0, 1):
            made = replace(blank(e, seed, "paper", ""), status="done", measured={AS_TRAINED: {"ece": 0.1}})
            Store(tmp_path / name).write(made)
        assert run(["bench", "status", "test", "--results", str(tmp_path / name)]) == 0
        return capsys.readouterr().out.split(maxsplit=2)[2].rstrip()

    assert status("own", EXPERIMENT) == "2/2 done"
    assert status("precise", EXPERIMENT.changed({"precision": "bfloat16"})) == "2/2 done"
    decayed = EXPERIMENT.changed({"optimiser.weight_decay": 0.125})
    assert status("decay", decayed) == "0/2 done, 2 at other settings"
    assert status("stale", replace(EXPERIMENT, calibrators=())) == "0/2 done, 2 at other settings"
    free = replace(EXPERIMENT, unprinted=("optimiser.weight_decay",))
    monkeypatch.setitem(PAPERS, "test", replace(PAPERS["rc"], name="test", experiments=(free,)))
    assert status("free", decayed) == "2/2 done"
