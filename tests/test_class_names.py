"""Columns that have names are never taken for others: not by a map, not by a rule, not by classes=."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest
import torch

import calibrant
from calibrant.decisions.choose import decide
from calibrant.errors import InputError, MapError
from calibrant.functional.class_names import known_classes
from calibrant.types import Predictions

NAMES = ("cat", "dog", "owl")
G = torch.Generator().manual_seed(0)
Z = 2 * torch.randn(400, 3, generator=G) + torch.tensor([1.0, 0.0, -1.0])
Y = torch.multinomial(torch.softmax(Z / 2, 1), 1, generator=G)[:, 0]


def named(*names: str) -> Predictions:
    """The same items with these classes in this order."""
    at = [NAMES.index(name) if name in NAMES else i for i, name in enumerate(names)]
    return calibrant.predictions(Z[:, at], torch.tensor(at).argsort()[Y], classes=names, split="calibration")


def test_a_map_refuses_its_classes_in_another_order_and_other_classes(tmp_path: Path) -> None:
    here = named(*NAMES)
    fitted = calibrant.load(calibrant.fit("matrix", here).save(tmp_path / "map"))
    unnamed = calibrant.predictions(Z, Y)
    assert torch.equal(fitted.predictions(here).logits, fitted.predictions(unnamed).logits)
    with pytest.raises(
        MapError, match="cat, dog, owl, in this order; .* owl, dog, cat; put their columns in that order"
    ):
        fitted.predictions(named("owl", "dog", "cat"))
    with pytest.raises(MapError, match="have cat, dog, emu; use predictions of the same classes"):
        fitted.predictions(named("cat", "dog", "emu"))


@pytest.mark.parametrize("method", ["histogram", "temperature+histogram_mass"])
def test_so_do_maps_with_their_own_way_of_applying(method: str) -> None:
    with pytest.raises(MapError, match="put their columns in that order"):
        calibrant.fit(method, named(*NAMES)).predictions(named("owl", "dog", "cat"))


def test_a_rule_refuses_them_too(tmp_path: Path) -> None:
    rule = calibrant.load(decide(named(*NAMES), set_coverage=0.9, by="class").save(tmp_path / "rule"))
    assert len(rule.decisions(named(*NAMES)).accepted) == 400
    with pytest.raises(MapError, match="the rule was chosen for the classes cat, dog, owl, in this order"):
        rule.decisions(named("owl", "dog", "cat"))


def test_classes_does_not_rename_columns_that_have_names() -> None:
    prob = torch.softmax(Z, 1).double()
    table = pa.table(
        {f"prob_{n}": prob[:, i].numpy() for i, n in enumerate(NAMES)} | {"species": [NAMES[i] for i in Y]}
    )
    right = calibrant.evaluate(table, labels_key="species", intervals=False)["accuracy"]
    assert calibrant.evaluate(table, labels_key="species", classes=NAMES, intervals=False)["accuracy"] == right
    with pytest.raises(InputError, match="classes= says owl, dog, cat, but the scores are in the order cat, dog, owl"):
        calibrant.evaluate(table, labels_key="species", classes=["owl", "dog", "cat"])
    with pytest.raises(InputError, match="the scores are of the classes cat, dog, owl"):
        calibrant.evaluate(table, labels_key="species", classes=["cat", "dog", "emu"])


def test_nor_the_columns_of_a_data_frame_of_scores() -> None:
    with_columns = SimpleNamespace(columns=[f"prob_{n}" for n in NAMES])  # what pandas and Polars have
    assert known_classes(list(NAMES), Y, with_columns) == list(NAMES)
    assert known_classes(["a", "b", "c"], Y, SimpleNamespace(columns=["p1", "p2", "p3"])) == ["a", "b", "c"]
    with pytest.raises(InputError, match="but the scores are in the order cat, dog, owl"):
        known_classes(["owl", "dog", "cat"], Y, with_columns)
