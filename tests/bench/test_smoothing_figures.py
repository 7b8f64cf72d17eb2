"""SS Fig. 3 and 9 as pictures of whatever cells are there: each scale by itself, and single runs called so."""

from __future__ import annotations

import math
from pathlib import Path

from benchmarks import smoothing_figures, smoothing_studies
from calibrant.bench.store import Cell, Store
from calibrant.papers import AS_TRAINED, experiments
from calibrant.training.recipe import digest


def filed(
    store: Store, row: str, seed: int, members: int, scale: str = "2of200", *, shifted: bool = True, nll: float = 0.5
) -> None:
    curve = {metric: [0.5 / size for size in range(1, members + 1)] for metric in smoothing_figures.METRICS}
    under = {f"fog-{s}": {"nll": 1.0 + s, "accuracy": 0.5, "ece": 0.1} for s in (1, 2, 3, 4, 5)}
    extras = {"curve": curve} | ({"corruption": {"items": 9, "1": {"cells": under}}} if shifted else {})
    [e] = experiments(f"ss/table_e1/{row}")
    cell = Cell(experiment=e.name, seed=seed, scale=scale, key=digest([row, seed, scale]), status="done", settings={},
                measured={AS_TRAINED: {"nll": nll}}, intervals={}, note="", command="", extras=extras)  # fmt: skip
    store.write(cell)


def test_a_figure_a_data_set_and_scale_that_says_its_scale_and_its_seeds(tmp_path: Path) -> None:
    store = Store(tmp_path / "results")
    for seed in (0, 1):
        filed(store, "cifar100_resnet18", seed, 1)
    filed(store, "cifar100_resnet18_dropout", 0, 50)
    filed(store, "cifar100_vgg16", 0, 1)
    filed(store, "cifar100_vgg16_dropout", 0, 50)
    filed(store, "cifar100_resnet18", 0, 1, "smoke")
    *drawn, third, ninth = smoothing_figures.draw(tmp_path / "results", tmp_path / "out")
    names = ["ss-figure3-cifar100-2of200.svg", "ss-figure9-cifar100-2of200.svg"]
    assert [path.name for path in drawn] == names
    for path in drawn:
        text = path.read_text("utf-8")
        assert "2 of 200 epochs, NOT the paper's schedule" in text
        assert "deterministic (2 seeds)" in text and "MC dropout (1 seed: single run)" in text
    assert [third.name, ninth.name] == ["ss-figure3-cifar100-vgg16-2of200.svg", "ss-figure9-cifar100-vgg16-2of200.svg"]
    text = third.read_text("utf-8")
    assert "VGG-16" in text and "deterministic (1 seed: single run)" in text and "MC dropout (1 seed" in text


def test_without_mc_dropout_there_is_no_curve_and_without_corruptions_no_severity(tmp_path: Path) -> None:
    filed(Store(tmp_path / "results"), "cifar10_resnet18", 0, 1, "paper", shifted=False)
    assert smoothing_figures.draw(tmp_path / "results", tmp_path / "out") == []


def test_a_network_that_did_not_learn_is_named_and_not_drawn(tmp_path: Path) -> None:
    store, nothing = Store(tmp_path / "results"), math.log(100)
    filed(store, "cifar100_vgg16", 0, 1, nll=nothing)
    filed(store, "cifar100_vgg16_dropout", 0, 50)
    filed(store, "cifar100_vgg16_dropout", 1, 50, nll=nothing)
    for path in smoothing_figures.draw(tmp_path / "results", tmp_path / "out"):
        text = path.read_text("utf-8")
        assert "not drawn, did not learn: deterministic (1 seed: single run), MC dropout (1 seed: single run)" in text
        assert text.count("deterministic (") == 1 and text.count("MC dropout (1 seed") == 2  # above; above and below


def test_the_studies_have_a_picture_a_network_and_scale_with_the_rows_that_are_there(tmp_path: Path) -> None:
    store = Store(tmp_path / "results")
    rows = ("table_b2/resnet18_k3", "table_b2/resnet18_k2", "table_c2/vgg16", "table_c2/vgg16_preact")
    for row, scale in [(row, "2of200") for row in rows] + [("table_b2/resnet18_k5", "paper")]:
        [e] = experiments(f"ss/{row}")
        values = {"dropout": {"nll": 0.9}} if "b2" in row else {}
        values[AS_TRAINED] = {"nll": math.log(100) if row == "table_c2/vgg16" else 1.0}
        cell = Cell(experiment=e.name, seed=0, scale=scale, key=digest([row, scale]), status="done", settings={},
                    measured=values, intervals={v: {"nll": (0.8, 1.1)} for v in values})  # fmt: skip
        store.write(cell)
    drawn = smoothing_studies.draw(tmp_path / "results", tmp_path / "out")
    names = ["ss-studies-resnet18-2of200.svg", "ss-studies-resnet18-paper.svg", "ss-studies-vgg16-2of200.svg"]
    assert [path.name for path in drawn] == names
    squeezed, whole, vgg = (path.read_text("utf-8") for path in drawn)
    assert "single runs, 2 of 200 epochs, NOT the paper's schedule" in squeezed and "NOT" not in whole
    assert squeezed.index("k2") < squeezed.index("k3") and "k5" not in squeezed  # in the paper's order
    assert "Table C.2" in vgg and "as it is" in vgg and "Table B.2" not in vgg
    assert vgg.count("did not learn") == 1 and "did not learn" not in squeezed
