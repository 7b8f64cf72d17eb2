from __future__ import annotations

import pytest

from calibrant.display import short_names


@pytest.mark.parametrize(
    ("names", "short"),
    [
        (["/data/x/test.npz"], ["test.npz"]),
        (["run/a/test.npz", "run/b/test.npz"], ["a/test.npz", "b/test.npz"]),
        (["x.npz", "x.npz"], ["x.npz", "x.npz (2)"]),
        (["parts/"], ["parts"]),
        (["a\\b.npz"], ["b.npz"]),
        (["A", "B"], ["A", "B"]),
        (["/"], ["/"]),
        (["nets:plain@w/a.npz", "nets:smooth@w/a.npz"], ["nets:plain", "nets:smooth"]),
        (["nets:plain@w/a.npz", "nets:plain@w/b.npz"], ["a.npz", "b.npz"]),
        ([], []),
    ],
)
def test_short_and_still_distinct(names: list[str], short: list[str]) -> None:
    assert short_names(names) == short
