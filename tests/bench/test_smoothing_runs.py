"""What the GPU runs of SS Fig. 3 compute, on a small network: pooled curves, the claim, its interval over seeds."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
import torch
from torch import nn

from benchmarks.smoothing_measure import (
    Network,
    claim,
    claim_over_seeds,
    corrupted,
    corruptions,
    curve,
    deep_curve,
    nll_of_items,
)
from benchmarks.smoothing_pack import over_seeds
from calibrant.data import Data
from calibrant.data.records import Part
from calibrant.ensembles import MCDropout
from calibrant.shifts import corrupt
from calibrant.types import Split


def network(seed: int = 0) -> tuple[Network, torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    x, y = torch.randint(0, 256, (40, 1, 8, 8), generator=g, dtype=torch.uint8), torch.arange(40) % 4
    part = Part(x, y, torch.arange(40), Split.TEST)
    data = Data("noise", {Split.TEST: part}, ("a", "b", "c", "d"), (1, 8, 8), (0.5,), (0.25,))
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Dropout(0.5), nn.Linear(144, 4))
    return Network(model.eval(), data, torch.device("cpu")), x, y


def test_the_curve_is_that_of_ever_larger_ensembles() -> None:
    made, x, y = network()
    found = curve(made, x, y, 5, seed=3)
    [batch] = made.batches(x, y)
    for size in (1, 2, 5):
        pooled = MCDropout(made.model, members=size, seed=3)(batch)
        nll = -pooled.gather(1, y[:, None]).mean().item()
        assert found.rows["nll"][size - 1] == pytest.approx(nll, rel=1e-6)
    assert sorted(found.kept) == [1, 2, 5]
    torch.testing.assert_close(nll_of_items(found.kept[5]).mean().item(), found.rows["nll"][4], rtol=1e-5, atol=0)


def test_the_claim_compares_two_with_smoothing_to_all_without() -> None:
    (plain, x, y), (smooth, _, _) = network(0), network(1)
    a, b = curve(plain, x, y, 6, seed=0), curve(smooth, x, y, 6, seed=0)
    said = claim(a, b)
    assert (said["smooth_members"], said["plain_members"]) == (2, 6)
    row = said["metrics"]["nll"]
    assert row["difference"] == pytest.approx(b.rows["nll"][1] - a.rows["nll"][5], abs=1e-6)
    assert row["low"] < row["difference"] < row["high"]
    same = claim(a, a)
    assert same["smallest_smooth_ensemble_as_good"] is not None


def test_the_interval_over_seeds_holds_both_spreads() -> None:
    """Var of the mean = Var(seeds)/S + Var(items)/N, for differences that are a seed's part plus an item's."""
    g = torch.Generator().manual_seed(0)
    seeds, items = torch.randn(40, 1, dtype=torch.float64, generator=g), torch.randn(1, 500, generator=g).double()
    said = claim_over_seeds(seeds + items)
    width = math.hypot(2.023 * math.sqrt(seeds.var().item() / 40), 1.965 * math.sqrt(items.var().item() / 500))
    assert (said["high"] - said["low"]) / 2 == pytest.approx(width, rel=1e-3)
    assert said["nll"] == pytest.approx((seeds.mean() + items.mean()).item())
    alone = claim_over_seeds(items)
    interval = scipy.stats.ttest_1samp(items[0].numpy(), 0).confidence_interval(0.95)
    assert (alone["low"], alone["high"]) == pytest.approx(tuple(interval)) and "items alone" in alone["interval"]


@pytest.mark.parametrize("spread", [0.0, 0.05, 0.2])
def test_three_seeds_cover_what_they_say(spread: float) -> None:
    g = torch.Generator().manual_seed(1)
    covered = 0
    for _ in range(200):
        seeds, items, rest = (torch.randn(*shape, generator=g) for shape in ((3, 1), (1, 300), (3, 300)))
        said = claim_over_seeds((spread * seeds + 0.9 * items + 0.5 * rest).double())
        covered += said["low"] <= 0 <= said["high"]
    assert covered >= 0.93 * 200


def test_what_the_claim_says_and_what_it_is_to_be_compared_with() -> None:
    item = np.random.default_rng(0).standard_normal(400).astype(np.float32)
    items = {
        f"{row}|s|{seed}|nll_{size}": nll + 0.1 * item
        for seed in (0, 1, 2)
        for row, size, nll in (
            ("c_dropout", 2, 1.3), ("c_dropout", 50, 1.2), ("c_dropout_smooth", 2, 1.1 + 0.001 * seed + 0.01 * item),
        )
    }  # fmt: skip
    [said] = over_seeds(items)
    assert said["verdict"] == "better" and said["each"] == [0, 1, 2]
    assert said["plain_few_minus_many"] == pytest.approx(0.1, abs=1e-6)


def test_a_deep_ensemble_of_seeds() -> None:
    singles = []
    for seed in (0, 1, 2):
        made, _, y = network(seed)
        singles.append(curve(made, network(0)[1], y, 1, seed=0).kept[1])
    rows = deep_curve(singles)
    mean = torch.stack([torch.softmax(p.logits.double(), -1) for p in singles]).mean(0)
    expected = -mean.log().gather(1, singles[0].labels[:, None]).mean().item()
    assert rows["nll"][2] == pytest.approx(expected, rel=1e-6) and len(rows["nll"]) == 3
    assert rows["nll"][0] == pytest.approx(nll_of_items(singles[0]).mean().item(), rel=1e-6)


def test_corruptions_by_ensemble_size(tmp_path: Path) -> None:
    made, x, y = network()
    asked = (x, tmp_path, made.device, ("gaussian_noise", "saturate"), (1, 5))
    images = corruptions(*asked)
    assert torch.equal(images["saturate", 5], corrupt(x, "saturate", 5, 0))
    [kept] = tmp_path.iterdir()  # made once: the second time they are read
    before = kept.stat().st_mtime_ns
    assert torch.equal(corruptions(*asked)["saturate", 5], images["saturate", 5])
    assert kept.stat().st_mtime_ns == before
    said = corrupted(made, images, y, (1, 3), 0)
    assert said["items"] == 40 and set(said["1"]["cells"]) == {
        "gaussian_noise-1", "gaussian_noise-5", "saturate-1", "saturate-5"
    }  # fmt: skip
    values = [cell["nll"] for cell in said["3"]["cells"].values()]
    assert said["3"]["all"]["mean_nll"]["value"] == pytest.approx(sum(values) / 4)
    fifteen = [said["3"]["cells"][f"gaussian_noise-{s}"]["nll"] for s in (1, 5)]  # saturate is one of the extra four
    assert said["3"]["fifteen"]["mean_nll"]["value"] == pytest.approx(sum(fifteen) / 2)
