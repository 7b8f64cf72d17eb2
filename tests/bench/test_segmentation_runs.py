"""What the GPU runs of SS Tables 2 and E.4 compute, on a network of one convolution and frames of noise."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from benchmarks import segmentation_runs
from benchmarks.segmentation_pack import BLOCK, difference
from benchmarks.segmentation_runs import Footage, random_frames, variants
from calibrant.bench.store import Store
from calibrant.metrics.frames import Frames
from calibrant.papers import experiments
from calibrant.types import Split


class Pixels(nn.Module):
    """A class a pixel, classes last, with dropout."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.conv, self.drop = nn.Conv2d(3, 4, 3, padding=1), nn.Dropout(0.3)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(self.drop(x)).permute(0, 2, 3, 1)


@pytest.fixture(scope="module")
def video() -> Footage:
    return Footage(random_frames(), Split.VALIDATION, torch.device("cpu"), limit=None, bfloat16=False)


def log_p(model: nn.Module, video: Footage) -> list[Tensor]:
    with torch.no_grad():
        return [torch.log_softmax(model(x)[0].double(), -1) for x, _, _ in video.batches]


def test_a_deterministic_network_has_two_rows(video: Footage) -> None:
    model = Pixels().eval()
    found = variants(model, video, 1, seed=0)
    assert list(found) == ["as_trained", "temporal"]
    each = log_p(model, video)
    labels = [y[0] for _, y, _ in video.batches]
    decay = torch.exp(torch.tensor(-0.8)).item()
    for name, window in (("as_trained", 0), ("temporal", 5)):
        expected = Frames()
        for t in range(len(each)):
            recent = [each[t - i].exp() * decay**i for i in range(min(window, t) + 1)]
            total = sum(decay**i for i in range(len(recent)))
            expected.add((torch.stack(recent).sum(0) / total).log(), labels[t])
        mine, theirs = found[name].report(), expected.report()
        for metric in ("nll", "accuracy", "ece", "consistency"):
            assert mine[metric].value == pytest.approx(theirs[metric].value, rel=1e-4), (name, metric)
    assert found["temporal"].report()["consistency"].value > found["as_trained"].report()["consistency"].value


def test_mc_dropout_has_three_and_temporal_takes_one_pass_a_frame(video: Footage) -> None:
    calls = 0
    model = Pixels().eval()

    def count(*_: object) -> None:
        nonlocal calls
        calls += 1

    model.conv.register_forward_hook(count)
    found = variants(model, video, 3, seed=0)
    frames = len(video.batches)
    assert list(found) == ["as_trained", "dropout", "temporal"] and calls == frames * (1 + 3 + 1)


def test_the_difference_is_of_nll_on_the_same_frames(video: Footage) -> None:
    found = variants(Pixels().eval(), video, 1, seed=0)
    sums = {v: f.units(1)["pixels"] for v, f in found.items()}
    said = difference(sums["as_trained"], sums["temporal"])
    plain, smooth = (found[v].report()["nll"].value for v in ("as_trained", "temporal"))
    assert said["nll"] == pytest.approx(smooth - plain) and said["low"] <= said["nll"] <= said["high"]
    same = difference(sums["temporal"], sums["temporal"])
    assert same["nll"] == same["low"] == same["high"] == 0


def test_seven_blocks_cover_what_they_say() -> None:
    """Frames of a video that err alike, in seconds: the interval of the difference is not a bootstrap's."""
    g = torch.Generator().manual_seed(0)
    covered = 0
    for _ in range(200):
        seconds = torch.randn(7, generator=g, dtype=torch.float64).repeat_interleave(BLOCK)[:101]
        n = 100 + torch.randint(50, (101,), generator=g).double()
        a = torch.stack([n, n, n], 1)
        b = torch.stack([n, n, n * (1 + seconds + 0.1 * torch.randn(101, generator=g, dtype=torch.float64))], 1)
        said = difference(a, b)
        covered += said["low"] <= 0 <= said["high"]
    assert covered >= 0.93 * 200
    assert difference(a[:9], b[:9])["low"] is None  # one block


def test_table_2_is_the_bayesian_half_of_table_e4() -> None:
    halves = {e.row: e.reported for e in experiments("ss/table_e4") if e.ensemble is not None}
    assert {e.row: e.reported for e in experiments("ss/table2")} == halves
    assert len(experiments("ss/table_e4")) == 4 and all(e.recipe.loss.options for e in experiments("ss/table_e4"))


def test_a_call_trains_measures_and_packs_and_a_second_has_nothing_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--smoke", "--out", str(tmp_path), "--only", "_dropout", "_dropout_smooth", "--minutes", "5"]
    assert segmentation_runs.main(words) == 0
    cells = list(Store(tmp_path / "runs" / "seg-cells").cells())
    assert sorted(c.experiment for c in cells) == sorted(
        f"ss/{table}/camvid_unet_dropout{s}" for table in ("table2", "table_e4") for s in ("", "_smooth")
    )
    smooth = next(c for c in cells if c.experiment == "ss/table_e4/camvid_unet_dropout_smooth")
    assert set(smooth.measured) == {"as_trained", "dropout", "temporal"} == set(smooth.extras["spatial_against_none"])
    assert smooth.extras["test"]["nll"]["value"] > 0 and "NOT the paper's schedule" in smooth.note
    before = capsys.readouterr().out
    assert before.count("measured in") == 2
    assert segmentation_runs.main(words) == 0
    assert capsys.readouterr().out.strip() == "packed parcel-00.zip"
