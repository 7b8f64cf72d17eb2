"""Networks that others trained as units, and the test items by robustness and by confidence."""

from __future__ import annotations

from itertools import chain, pairwise
from pathlib import Path

import pytest
import torch

from calibrant.bench import robustness
from calibrant.bench.networks import over_networks
from calibrant.bench.reproduction import judged
from calibrant.bench.store import Cell
from calibrant.bench.verdict import interval
from calibrant.errors import UnknownNameError
from calibrant.files import hashed
from calibrant.functional.inputs import predictions
from calibrant.papers import experiments
from calibrant.papers.reported import Claim, Pair, Source

ROWS = ("cifar10_resnet20_akamaster", "cifar10_resnet32_akamaster", "cifar10_resnet44_akamaster")


def cell(row: str, seed: int, plain: float, pep: float) -> Cell:
    return Cell(
        experiment=f"pep/networks/{row}",
        seed=seed,
        scale="paper",
        key=f"{row}-{seed}",
        status="done",
        settings={"recipe": {"network": row}, "published": {"weights": row}},
        measured={"as_trained": {"nll": plain}, "pep": {"nll": pep, "auroc": None}},
    )


CELLS = [
    cell(row, s, 1 + unit + s, 1 + unit + s - d) for unit, row in enumerate(ROWS) for s, d in enumerate((0.1, 0.3))
]


def test_a_network_is_one_unit_however_often_its_test_set_was_halved() -> None:
    found = list(over_networks(CELLS, "pep/networks/cifar10_*"))
    assert [(c.experiment, c.seed) for c in found] == [("pep/networks/cifar10_*", unit) for unit in range(3)]
    assert [c.measured["as_trained"]["nll"] for c in found] == [1.5, 2.5, 3.5]
    assert all("auroc" not in c.measured["pep"] for c in found), "a number that is missing has no mean"
    assert not list(over_networks(CELLS, "pep/networks/cifar100_*"))


def test_stars_match_any_characters_of_a_row() -> None:
    assert [e.row for e in experiments("pep/networks/cifar100_*")] == [
        "cifar100_resnet20_chenyaofo",
        "cifar100_resnet32_chenyaofo",
    ]
    assert experiments("pep/networks/*") == experiments("pep/networks")
    with pytest.raises(UnknownNameError, match="svhn_"):
        experiments("pep/networks/svhn_*")


def test_a_claim_about_networks_is_judged_over_networks() -> None:
    sources = (Source("pep/networks/cifar10_*", "pep"), Source("pep/networks/cifar10_*"))
    claim = Claim("a/b", "§1", "says", "words", (Pair("PEP − baseline", *sources, "nll", -1),))
    [found] = judged(claim, CELLS)
    assert found.verdict.word == "reproduced" and found.verdict.seeds == 3
    expected = interval([-0.2, -0.2, -0.2])
    assert (found.verdict.low, found.verdict.high) == pytest.approx(expected)


def test_items_by_robustness_by_confidence_and_of_equal_confidence(tmp_path: Path) -> None:
    g = torch.Generator().manual_seed(0)
    p = predictions(torch.randn(41, 3, generator=g, dtype=torch.float64) * 3, torch.randint(0, 3, (41,), generator=g))
    robust = torch.randperm(41, generator=g)
    hashed.write(tmp_path / robustness.FILE, {"rank": robust.tolist()})
    assert p.logits is not None
    sure = torch.softmax(p.logits, 1).amax(1).tolist()
    ids = {tuple(row): i for i, row in enumerate(p.logits.tolist())}
    found = {
        name: [ids[tuple(row)] for row in q.logits.tolist()]  # type: ignore[union-attr]
        for name, q in robustness.parts(tmp_path, p)
    }
    for name, value in (("level", robust.tolist()), ("confidence", sure)):
        cut = [found[f"{name}_{number}"] for number in range(10)]
        assert sorted(chain(*cut)) == list(range(41)) and {len(c) for c in cut} == {4, 5}
        assert all(max(value[i] for i in a) < min(value[i] for i in b) for a, b in pairwise(cut))
    order = sorted(range(41), key=lambda i: sure[i])
    pairs = [sorted(order[k : k + 2], key=lambda i: int(robust[i])) for k in range(0, 40, 2)]
    assert list(zip(found["less_robust"], found["more_robust"], strict=True)) == [tuple(pair) for pair in pairs]
