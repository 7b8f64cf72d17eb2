"""SS's tables and figures as experiments: every study has its rows, rows that are one network share a training, and
the networks whose places are named can be made."""

from __future__ import annotations

import pytest

from calibrant.nn import build
from calibrant.nn.activations import bounded
from calibrant.nn.antialias import blurpooled
from calibrant.nn.surgery import smoothed
from calibrant.papers import experiments


def key(name: str) -> str:
    [experiment] = experiments(f"ss/{name}")
    return experiment.recipe.key()


def test_rows_of_tables_have_numbers_and_single_seeds_are_noted() -> None:
    for table in ("table_b1", "table_b2", "table_c1", "table_c2"):  # tables have numbers, figures have none
        assert all(
            {"nll", "accuracy", "ece"} == set(row) for e in experiments(f"ss/{table}") for row in e.reported.values()
        )
    assert all("one seed" in e.note for e in experiments("ss") if e.seeds == 1 and e.table != "figure_e1")


def test_rows_of_one_network_share_a_training() -> None:
    plain = {
        "table_e1/cifar100_resnet18_dropout", "table_b1/resnet18_none", "figure_b2/none", "figure_a1/plain_0.3",
        "table_c1/resnet18_gap", "table_c2/resnet18_dropout",
    }  # fmt: skip
    smooth = {
        "table_e1/cifar100_resnet18_dropout_smooth", "table_b1/resnet18_blur_tanh", "table_b2/resnet18_k2",
        "figure_a1/smooth_0.3", "figure_b1/tau_10",
    }  # fmt: skip
    vgg = {"table_e1/cifar100_vgg16_dropout", "table_b1/vgg16_none", "table_c1/vgg16_mlp", "table_c2/vgg16_dropout"}
    for rows in (plain, smooth, vgg):
        assert len({key(row) for row in rows}) == 1
    assert key("table_b1/resnet18_tanh") == key("table_b2/resnet18_k1")
    assert key("figure_f1/vgg16_none") == key("table_c2/vgg16_preact_dropout")


@pytest.mark.parametrize(
    ("row", "smooth", "pools", "relus"),
    [
        ("table_b2/vgg16_k3", 4, 0, 0),
        ("table_b2/vgg16_k5", 3, 0, 0),
        ("table_b2/vgg19_k5", 3, 0, 0),
        ("table_b2/resnet50_k5", 3, 0, 0),
        ("table_b2/resnet18_k5", 3, 0, 0),
        ("figure_b2/s4", 1, 0, 0),
        ("figure_f1/vgg16_blur", 5, 0, 0),
        ("figure_f1/vgg16_blurpool", 0, 4, 0),
        ("figure_f1/vgg16_prob_blurpool", 5, 4, 0),
        ("figure_f1/resnet18_prob_blurpool", 4, 6, 0),
        ("section_c3/vgg16_relu6", 0, 0, 14),  # 13 of convolutions, one of the head
    ],
)
def test_the_networks_match_their_rows(row: str, smooth: int, pools: int, relus: int) -> None:
    [experiment] = experiments(f"ss/{row}")
    network = experiment.recipe.network
    light = {"hidden": (8,)} if network.name.startswith("vgg") else {}
    model = build(network.name, classes=100, **network.options, **light)
    assert (len(smoothed(model)), len(blurpooled(model)), len(bounded(model))) == (smooth, pools, relus)
