"""The scorecard's rows, the evidence of every method on every network, and the advice that ships with the package."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import t, ttest_rel

from calibrant.bench.evidence import COLUMNS, evidence, word
from calibrant.bench.store import Cell, Store
from calibrant.bench.verdict import interval, p_value, pool
from calibrant.cli import run
from calibrant.papers import experiments
from calibrant.papers.comparisons import METHODS, blocks
from calibrant.report import advice

RESULTS = Path(__file__).resolve().parents[2] / "results"


def test_the_baseline_is_the_plain_network_of_smoothing_and_ensembles_train_nothing() -> None:
    rows = {e.row: e for e in experiments("scorecard/cifar100")}
    [plain] = experiments("ss/table_e1/cifar100_resnet18")
    trained = plain.recipe.key()
    for row in ("cross_entropy", "pep", "swa", "swag", "snapshot", "deep_ensemble", "maps", "confidences"):
        assert rows[row].recipe.key() == trained
    others = {row: e.recipe.key() for row, e in rows.items() if e.recipe.key() != trained}
    assert len(set(others.values())) == len(others)


def test_every_comparison_names_an_experiment_and_a_method_that_exist() -> None:
    for block in blocks():
        assert len({e.name for e in block.entries}) == len(block.entries)
        for entry in block.entries:
            assert entry.name in METHODS
            for source in (entry.method, entry.baseline):
                paper = source.experiment.split("/")[0]
                assert experiments(source.experiment), (paper, source)


def test_the_p_value_is_the_paired_t_test_and_agrees_with_the_interval() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        a, b = rng.normal(0.8, size=6), rng.normal(size=6)
        each = [float(d) for d in a - b]
        p = p_value(each)
        assert p == pytest.approx(ttest_rel(a, b).pvalue)
        low, high = interval(each)
        assert low is not None and high is not None and (p < 0.05) == (low > 0 or high < 0)
    assert p_value([0.3]) is None and p_value([0.0, 0.0]) == 1 and p_value([0.2, 0.2]) == 0
    three = [0.1, 0.2, 0.15]
    shared = pool([three, [0.5, -0.5, 0.1]])
    assert shared is not None
    error = np.sqrt(shared.variance / 3)
    assert p_value(three, shared) == pytest.approx(2 * t.sf(np.mean(three) / error, shared.freedom))


def made(experiment: str, seed: int, nll: float, auroc: float, variant: str = "as_trained") -> Cell:
    return Cell(
        experiment=experiment,
        seed=seed,
        scale="paper",
        key=f"{experiment}-{seed}",
        status="done",
        settings={},
        measured={variant: {"nll": nll, "auroc": auroc, "ece": 0.1}},
    )


def test_differences_are_paired_by_seed_and_corrected_by_holm() -> None:
    base = [1.0, 2.0, 3.0]
    gains = {"smoothing": [-0.1, -0.1, -0.1001], "focal": [0.2, -0.3, 0.05], "mixup": [0.4, 0.4001, 0.4]}
    cells = [made("scorecard/cifar100/cross_entropy", s, v, 0.8) for s, v in enumerate(base)]
    for row, each in gains.items():
        cells += [made(f"scorecard/cifar100/{row}", s, base[s] + d, 0.8) for s, d in enumerate(each)]
    found = {r.method: r for r in evidence(cells)}
    assert set(found) == set(gains) and all(r.seeds == 3 for r in found.values())
    for row, each in gains.items():
        value = found[row].values["nll"]
        assert value.baseline == 2.0 and value.mean == pytest.approx(np.mean(each))
        assert value.low is not None and value.high is not None and value.low < value.mean < value.high
    shared = pool(list(gains.values()))
    plain = {row: p_value(each, shared) for row, each in gains.items()}
    smallest = min(plain, key=lambda row: plain[row] or 0.0)
    assert found[smallest].values["nll"].p == pytest.approx(3 * (plain[smallest] or 0.0))
    assert found["mixup"].values["nll"].word == "worse" and found["focal"].values["nll"].word == "open"
    two = evidence([c for c in cells if c.seed < 2])
    assert {r.values["nll"].word for r in two} == {"few seeds"}
    assert word("auroc", [0.1, 0.1, 0.1], 0.01) == "better" and word("ece", [0.1, 0.1, 0.1], 0.01) == "worse"


def test_the_full_schedule_with_enough_seeds_is_preferred() -> None:
    cells = [made(f"scorecard/cifar100/{r}", s, 1.0 + s, 0.8) for r in ("cross_entropy", "focal") for s in range(3)]
    short = [replace(c, scale="20of200", key=f"short-{c.key}", seed=c.seed + k) for c in cells for k in (0, 3)]
    assert {r.scale for r in evidence([*short, *cells])} == {"paper"}
    assert {(r.scale, r.seeds) for r in evidence([*short, *(c for c in cells if c.seed == 0)])} == {("20of200", 6)}


def value(word: str, mean: float, baseline: float = 1.0) -> dict[str, object]:
    return {"baseline": baseline, "mean": mean, "low": None, "high": None, "p": None, "word": word}


def source(**rows: list[tuple[str, str]]) -> dict[str, object]:
    """Method → its words for NLL and AUROC on some networks."""
    methods = {
        name: {"title": name, "trainings": int(name != "map"), "passes": 1 + 9 * (name == "many")} for name in rows
    }
    return {
        "methods": methods,
        "rows": [
            {
                "method": m,
                "where": f"{i}",
                "scale": "paper",
                "caveat": "",
                "values": {
                    "nll": value(nll, -0.1),
                    "nll_rival": value(nll, -0.1),
                    "ece": value("open", 0),
                    "auroc": value(a, 0),
                },
            }
            for m, each in rows.items()
            for i, (nll, a) in enumerate(each)
        ],
    }


def test_a_method_is_recommended_if_it_helps_twice_and_harms_nowhere() -> None:
    given = source(
        map=[("better", "open"), ("better", "open")],
        once=[("better", "open"), ("open", "open")],
        harms=[("better", "open"), ("better", "open"), ("worse", "open")],
        ranks_worse=[("better", "worse"), ("better", "open")],
        many=[("better", "better"), ("better", "worse"), ("few seeds", "few seeds")],
    )
    found = {o.name: o for o in advice.options(advice.Situation(True, None), given)}
    assert [n for n, o in found.items() if o.recommended] == list(found)[:2] and set(list(found)[:2]) == {"map", "many"}
    assert found["many"].nll == advice.Tally(better=2, worse=0, judged=2, networks=3)
    assert "many" not in {o.name for o in advice.options(advice.Situation(True, 9), given)}
    [only] = advice.options(advice.Situation(False, 1), given)
    assert only.name == "map" and advice.sentence([only]) == "Use map (NLL better on 2 of 2 networks)."
    assert "Nothing" in advice.sentence([o for o in found.values() if not o.recommended])


def test_what_a_method_has_to_beat_is_the_scaled_network() -> None:
    for columns, change in ((("nll_rival",), 0.3), (("nll_rival", "nll_scaled"), 0.2)):
        given = source(a=[("better", "open"), ("better", "open")], temperature=[("better", "open")])
        for row in given["rows"]:  # type: ignore[attr-defined]
            row["values"] |= {c: value("open", {"nll_rival": 0.3, "nll_scaled": 0.2}[c]) for c in columns}
        found = {o.name: o for o in advice.options(advice.Situation(True, None), given)}
        assert found["a"].nll.better == 0 and found["a"].change == pytest.approx(change) and not found["a"].recommended
        assert found["temperature"].nll.better == 1, "which itself has to beat the plain network"


def test_a_method_that_was_not_compared_with_the_scaled_network_is_promising_at_best() -> None:
    given = source(a=[("better", "open"), ("better", "open")], temperature=[("better", "open"), ("better", "open")])
    for row in given["rows"]:  # type: ignore[attr-defined]
        del row["values"]["nll_rival"]
    found = advice.options(advice.Situation(True, None), given)
    assert [(o.name, o.recommended, o.promising) for o in found] == [("temperature", True, False), ("a", False, True)]
    assert "Use temperature (" in advice.sentence(found) and "Promising: a (" in advice.sentence(found)


def test_shortened_trainings_are_said() -> None:
    given = source(a=[("better", "open"), ("better", "open")])
    for row in given["rows"]:  # type: ignore[attr-defined]
        row["scale"] = "20of200"
    [option] = advice.options(advice.Situation(True, 1), given)
    assert "on shortened trainings only" in advice.sentence([option]) and "‡" in advice.line(option)[3]


def test_networks_of_others_are_units_and_halvings_are_none() -> None:
    def halving(network: str, seed: int, nll: float) -> Cell:
        cell = made(f"pep/networks/cifar10_{network}_akamaster", seed, 1.0, 0.9)
        return replace(cell, measured={**cell.measured, "pep": {"nll": nll, "auroc": 0.9, "ece": 0.05}})

    cells = [halving("resnet20", s, 0.8 + 0.001 * s) for s in range(5)]
    assert {r.values["nll"].word for r in evidence(cells)} == {"few seeds"}
    cells += [halving(f"resnet{depth}", 0, 0.801) for depth in (32, 44, 56)]
    [row] = evidence(cells)
    assert row.seeds == 4 and row.values["nll"].word == "better" and row.caveat


def test_what_ships_is_what_the_cells_say() -> None:
    from docs.make_scorecard import DOCS, SHIPPED, page, shipped

    remedy = "cells or comparisons have changed: run `python -m docs.make_scorecard` and commit what it wrote"
    text = shipped()
    assert SHIPPED.read_text("utf-8") == text, remedy
    assert (DOCS / "scorecard.md").read_text("utf-8") == page(json.loads(text)), remedy


def test_a_row_that_ships_is_in_the_cells() -> None:
    """By hand, for one row: the mean of paired differences over the seeds of two experiments."""
    row = next(r for r in advice.rows("l1") if r["where"].startswith("20 Newsgroups"))
    cells = {(c.experiment, c.seed): c for c in Store(RESULTS).cells() if c.experiment in row["cells"]}
    method, base = row["cells"]
    for column in ("nll", "auroc"):
        each = [
            (cells[method, s].measured["as_trained"][column] or 0)
            - (cells[base, s].measured["as_trained"][column] or 0)
            for s in range(5)
        ]
        assert row["values"][column]["mean"] == pytest.approx(np.mean(each), abs=2e-6) and row["seeds"] == 5
    assert set(row["values"]) <= set(COLUMNS)


def test_the_verb(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["advise"]) == 0
    text = capsys.readouterr().out
    assert text.count("You may") == 4 and max(map(len, text.splitlines())) <= 80
    assert run(["advise", "--no-retrain", "--passes", "1", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    [situation] = shown["situations"]
    assert situation["advice"].startswith("Use temperature scaling") and not situation["retrain"]
    assert all(not o["trainings"] and o["passes"] == 1 for o in situation["options"]) and shown["rows"]
    assert run(["advise", "swa"]) == 0
    assert "SWA" in (said := capsys.readouterr().out) and max(map(len, said.splitlines())) <= 80
    assert run(["advise", "snapshot"]) == 0 and "not measured yet" in capsys.readouterr().out
    for wrong, why in (
        (["advise", "sva"], "did you mean 'swa'"),
        (["advise", "--passes", "0"], "--passes 0"),
        (["advise", "swa", "--no-retrain"], "leave them out"),
    ):
        assert run(wrong) == 2 and why in capsys.readouterr().err
