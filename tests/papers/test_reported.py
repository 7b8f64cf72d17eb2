"""What the papers report: complete, in range, and consistent where a paper reports a number twice."""

from __future__ import annotations

import math

import pytest

from calibrant.metrics import METRICS
from calibrant.papers import PAPERS
from calibrant.papers.reported import CLAIMS, TABLES, Row, reported_numbers

# table → rows, numbers; counted in the papers. DS Table 3 is two tables here.
SIZES = {
    "pep/table1": (18, 6 * 13),
    "pep/table2": (30, 120),
    "pep/ood": (3, 3),
    "ss/table1": (2, 4),
    "ss/table2": (4, 16),
    "ss/table_b1": (32, 96),
    "ss/table_b2": (16, 48),
    "ss/table_c1": (16, 48),
    "ss/table_c1_training": (16, 48),
    "ss/table_c2": (16, 48),
    "ss/table_e1": (40, 120),
    "ss/section_e1": (2, 2),
    "ss/table_e2": (8, 16),
    "ss/table_e3": (6, 12),
    "ss/table_e4": (8, 32),
    "ar/table1": (3, 3),
    "ar/table2": (18, 18),
    "ar/table3": (18, 18),
    "ar/table4": (5, 20),
    "ar/table5": (8, 48),
    "ar/ood": (3, 3),
    "rc/table1": (16, 32),
    "rc/table2": (16, 48),
    "ds/table1": (6, 18),
    "ds/table2": (36, 108),
    "ds/table3": (6, 36),
    "ds/table3_imagenet": (6, 18),
    "ds/table4": (4, 8),
}


def shown(table: str, block: str, label: str) -> tuple[float, ...]:
    """The values of the table's columns, in the order NLL, accuracy, ECE of the SS tables."""
    row = TABLES[table].find(block, label)
    return tuple(row.numbers[c.name].value for c in TABLES[table].columns)


def test_every_table_has_all_its_rows_and_numbers() -> None:
    found = {
        t.name: (len(t.rows), sum(c.name in r.numbers for r in t.rows for c in t.columns)) for t in TABLES.values()
    }
    assert found == SIZES


@pytest.mark.parametrize("name", SIZES)
def test_numbers_are_fractions_and_rows_have_unique_names(name: str) -> None:
    table = TABLES[name]
    assert len({(r.block, r.label) for r in table.rows}) == len(table.rows)
    for row in table.rows:
        for column in (c for c in table.columns if c.name in row.numbers):
            number = row.numbers[column.name]
            share = column.percent or (column.metric in METRICS and METRICS[column.metric].percent)
            assert 0 < number.value <= (1 if share else 5)
            assert number.spread is None or 0 <= number.spread < 0.5 * number.value


def test_every_row_names_one_of_our_experiments_which_has_its_numbers() -> None:
    ours = {e.name: e for paper in PAPERS.values() for e in paper.experiments}
    named = {r.experiment for t in TABLES.values() for r in t.rows if r.experiment}
    assert named <= set(ours)
    assert all(ours[name].reported == reported_numbers(name) != {} for name in named)
    assert reported_numbers("pep/table2/mnist_mlp")["swa"]["accuracy"] == pytest.approx(1 - 0.02082)
    assert reported_numbers("ds/table3/vgg16_baseline")["cifar10_2+temperature[T=1.5]"]["auroc"] == 0.8306


@pytest.mark.parametrize("block", ["SVHN", "CIFAR-10", "CIFAR-100", "20 Newsgroups"])
def test_rc_marks_lie_on_the_side_of_the_difference_and_cross_entropy_is_the_most_confident(block: str) -> None:
    table = TABLES["rc/table2"]
    rows = [r for r in table.rows if r.block.startswith(f"{block},")]
    first = rows[0]
    assert len(rows) == 4
    for row in rows[1:]:
        for name in ("temperature:ece", "histogram:ece"):
            assert row.numbers[name].mark == ("▲" if row.numbers[name].value > first.numbers[name].value else "▼")
        assert row.numbers["temperature:temperature"].value < first.numbers["temperature:temperature"].value
    assert table.oracle == TABLES["rc/table1"].oracle != ""


def test_pep_says_the_same_in_its_text() -> None:
    for row in TABLES["pep/table2"].rows:
        first = TABLES["pep/table2"].baseline(row)
        if row.label == "temperature scaling":  # it has no effect on errors
            assert first is not None and row.numbers["error"] == first.numbers["error"]
        if row.label in ("PEP", "temperature scaling"):
            assert first is not None and row.numbers["nll"].value < first.numbers["nll"].value
    errors = [TABLES["pep/table1"].find("DenseNet169", x).numbers["error"].value for x in ("baseline", "PEP")]
    assert errors[0] - errors[1] == pytest.approx(0.015, abs=0.001)  # "by about 1.5 percentage points"
    for block in dict.fromkeys(r.block for r in TABLES["pep/table2"].rows):  # "the best NLL and classification errors"
        rows = [r for r in TABLES["pep/table2"].rows if r.block == block]
        assert all(min(rows, key=lambda r: r.numbers[m].value).label == "deep ensemble" for m in ("nll", "error"))


@pytest.mark.parametrize("network", ["VGG-16", "VGG-19", "ResNet-18", "ResNet-50"])
def test_ss_tables_that_share_a_network_share_its_numbers(network: str) -> None:
    dropped = shown("ss/table_e1", f"{network}, CIFAR-100, MC dropout", "plain")
    assert shown("ss/table_b1", f"{network}, Prob alone", "nothing") == dropped
    if network != "ResNet-18":  # its GAP has other numbers there
        own = "MLP" if network.startswith("VGG") else "GAP"
        assert shown("ss/table_c1", network, own) == dropped
    if network.startswith("VGG"):
        assert shown("ss/table_c2", f"{network}, MC dropout", "post-activation") == dropped
        plain = shown("ss/table_e1", f"{network}, CIFAR-100", "plain")
        assert shown("ss/table_c2", network, "post-activation") == plain
        kernel = shown("ss/table_b2", network, "kernel of 2")
        assert kernel == shown("ss/table_e1", f"{network}, CIFAR-100, MC dropout", "smoothing")
    else:
        smooth = shown("ss/table_e1", f"{network}, CIFAR-100, MC dropout", "smoothing")
        assert shown("ss/table_b1", f"{network}, Blur and Prob", "Blur after tanh") == smooth


def test_ss_attack_success_is_the_share_of_the_accuracy_that_is_lost() -> None:
    for dropout in ("", ", MC dropout"):
        for label in ("plain", "smoothing"):
            clean = shown("ss/table_e1", f"ResNet-50, ImageNet{dropout}", label)[1]
            for attack in ("FGSM", "PGD"):
                accuracy, success = shown("ss/table_e2", f"{attack}{dropout}", label)
                assert 1 - accuracy / clean == pytest.approx(success, abs=0.004)


def test_ar_says_the_same_twice() -> None:
    for row in TABLES["ar/table5"].rows:
        each = [row.numbers[f"intensity_{i}:variance"].value for i in range(1, 6)]
        assert math.fsum(each) / 5 == pytest.approx(row.numbers["corruptions:variance"].value, abs=1e-3)
    for two, four in {
        "vanilla": "vanilla",
        "temperature scaling": "temperature scaling",
        "label smoothing": "label smoothing",
        "AR-AdaLS": "AR-AdaLS, on the fly",
    }.items():
        fine, coarse = (
            TABLES[t].find("CIFAR-100", x).numbers["ece"] for t, x in (("ar/table2", two), ("ar/table4", four))
        )
        assert round(fine.value, 3) == pytest.approx(coarse.value)


def test_ds_finds_label_smoothing_the_least_refined_and_the_five_methods_calibrated() -> None:
    table = TABLES["ds/table2"]
    for block in dict.fromkeys(r.block for r in table.rows):
        rows = [r for r in table.rows if r.block == block]

        def auroc(row: Row) -> float:
            return row.numbers["auroc"].value

        assert min(rows, key=auroc).label == "label smoothing"  # "consistently acquires the lowest refinement"
        scaled = next(r for r in rows if r.label == "temperature")
        assert scaled.numbers["ece"].value < rows[0].numbers["ece"].value


def test_tables_and_claims_read_only_extras_that_a_step_writes() -> None:
    read = {r.source(c).variant for t in TABLES.values() for r in t.rows for c in t.columns}
    read |= {s.variant for c in CLAIMS.values() for p in c.pairs for s in (p.method, p.baseline)}
    assert {v.split("/")[1] for v in read if v.startswith("extras/")} == {"curve"}
