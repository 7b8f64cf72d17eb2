"""The driver of GPU runs under shift: a trained run becomes one cell of numbers, without logits."""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.stress_runs import main, scale_of
from calibrant.bench.store import Store
from calibrant.cli import run
from calibrant.papers import experiments


def test_a_run_becomes_a_cell(tmp_path: Path) -> None:
    small = ["--set", "epochs=2", "--set", "network.hidden=[16]", "--device", "cpu"]
    assert run(["train", "digits/smoothing", "-o", str(tmp_path / "runs" / "one"), *small]) == 0
    store, keep = tmp_path / "results", tmp_path / "keep"
    few = ["--limit", "40", "--types", "fog", "--replicates", "50", "--device", "cpu", "--scale", "smoke"]
    main([str(tmp_path / "runs"), "--store", str(store), "--keep", str(keep), *few])
    (cell,) = Store(store).cells("digits/shift")
    assert cell.experiment == "digits/shift/smoothing" and cell.status == "done"
    assert {"clean", "corruptions", "severity_5", "type_fog", "temperature_corruptions"} <= set(cell.measured)
    assert {"auroc", "error", "ece", "nll"} == set(cell.measured["corruptions"])
    assert cell.measured["ood_noise_uniform"]["entropy_kl"] is not None
    low, high = cell.intervals["corruptions"]["error"]
    value = cell.measured["corruptions"]["error"]
    assert low is not None and high is not None and value is not None and low <= value <= high
    assert not list(store.rglob("*.npz")) and len(list(keep.rglob("corruption-fog-*.npz"))) == 5


def test_peps_five_classes_are_an_experiment() -> None:
    wide = experiments("pep/ood/wide_resnet28_10")[0]
    assert wide.recipe.data.name == "cifar10[0-4]" and wide.reported["pep"]["entropy_kl"] == 0.72
    assert wide.at(0, "smoke").data.name == "cifar10[0-4]"


def test_a_squeezed_schedule_is_never_filed_as_the_papers() -> None:
    recipe = experiments("pep/ood/cifar_cnn")[0].recipe
    asked = argparse.Namespace(scale="paper")
    assert scale_of(recipe, asked) == ("paper", "")
    assert scale_of(recipe.scaled(3), asked) == ("small", "NOT the paper's schedule: 3 epochs instead of 15")
