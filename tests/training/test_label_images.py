"""Maps of labels: each labelled pixel counts as an item, and class weights follow the median frequency."""

from __future__ import annotations

from pathlib import Path
from statistics import median

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from calibrant.data import Data, Part
from calibrant.files import read as read_predictions
from calibrant.files import write
from calibrant.functional.soft_labels import soft_labels
from calibrant.losses import CrossEntropy
from calibrant.training import How, read
from calibrant.training.components import median_frequency
from calibrant.training.evaluate import summary
from calibrant.training.loop import Loop
from calibrant.training.optimiser import Optimiser, make_optimiser
from calibrant.training.run import make_fabric
from calibrant.training.step import Member, Step
from calibrant.types import Split


class Pixels(nn.Module):
    """1×1 convolution, classes last."""

    def __init__(self) -> None:
        super().__init__()
        self.map = nn.Conv2d(3, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.map(x).permute(0, 2, 3, 1)


def test_the_loss_is_torchs_mean_over_labelled_pixels() -> None:
    rng = torch.Generator().manual_seed(0)
    x, y = torch.randn(2, 3, 5, 5, generator=rng), torch.randint(-1, 4, (2, 5, 5), generator=rng)
    model = Pixels()
    member = Member(model, make_optimiser(Optimiser("sgd", 0.1), model), model)
    expected = F.cross_entropy(model.map(x), y, ignore_index=-1).detach()
    right = (model.map(x).argmax(1) == y)[y >= 0].double().mean()
    loss, hits = Step(member, CrossEntropy(reduction="none"))(x, soft_labels(y, 4, 0.0), y, torch.arange(2), 2)
    assert float(loss) == pytest.approx(float(expected), rel=1e-6)
    assert float(hits) / 2 == pytest.approx(float(right))


def test_median_frequency_by_hand() -> None:
    y = torch.tensor([[[0, 0], [0, 1]], [[0, 0], [2, -1]]])  # class 3 never occurs
    shares = {0: 5 / 7, 1: 1 / 4, 2: 1 / 3}  # of the labelled pixels of the images that hold the class
    middle = median(shares.values())
    assert median_frequency(y, 4) == pytest.approx([middle / shares[0], middle / shares[1], middle / shares[2], 0.0])
    assert median_frequency(torch.tensor([0, 0, 0, 1]), 2) == pytest.approx([0.5 / 0.75, 0.5 / 0.25])  # between the two


def test_the_loop_trains_on_tiny_scenes(tmp_path: Path) -> None:
    rng = torch.Generator().manual_seed(0)

    def part(n: int, split: Split) -> Part:
        y = torch.randint(0, 3, (n, 4, 4), generator=rng).repeat_interleave(4, 1).repeat_interleave(4, 2)
        x = (y[:, None] * 80).expand(-1, 3, -1, -1).to(torch.uint8)
        y[:, 0] = -1
        return Part(x, y, torch.arange(n), split)

    splits = {s: part(n, s) for s, n in ((Split.TRAIN, 12), (Split.VALIDATION, 4), (Split.TEST, 4))}
    data = Data("scenes", splits, ("a", "b", "c", "d"), (3, 16, 16), (0.3,) * 3, (0.3,) * 3)
    recipe = read("ss/camvid_unet", ["epochs=30", "optimiser.lr=0.1", "augment.crop_padding=1"])
    how = How(device="cpu", quiet=True)
    loop = Loop(recipe, data, make_fabric(recipe, how), [Pixels()])
    rows = loop.run()
    p = loop.predict(Split.TEST)
    assert p.n == 4 * 15 * 16 and p.group is not None and len(p.group.unique()) == 4  # the unlabelled row is out
    assert summary(p)["accuracy"] > 0.9 and rows[-1]["loss"] < rows[0]["loss"]  # type: ignore[operator]
    write(tmp_path / "p.npz", p)
    assert read_predictions(tmp_path / "p.npz").n == p.n
