"""The control on labelled photos: how a photo says its class, and what is printed of a network that PEP cannot help."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from benchmarks.pep_control import labelled, measure, photos, say
from calibrant.errors import FileError


def test_labels_come_from_names_or_from_folders(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    for name in ("a_00_243.png", "b_3.png", "7/c_99.png"):
        Image.fromarray(np.zeros((9, 12, 3), np.uint8)).save(tmp_path / name)
    assert [(p.name, label) for p, label in labelled(tmp_path)] == [
        ("c_99.png", 7),
        ("a_00_243.png", 243),
        ("b_3.png", 3),
    ]
    x, y = photos(tmp_path, 8, (0.5,) * 3, (0.25,) * 3)
    assert x.shape == (3, 3, 8, 8) and (x == -2).all() and y.tolist() == [7, 243, 3]
    Image.fromarray(np.zeros((9, 9), np.uint8)).save(tmp_path / "unnamed.png")
    with pytest.raises(FileError, match=r"unnamed\.png: its label is not known"):
        labelled(tmp_path)


def test_an_underconfident_network_has_no_sigma() -> None:
    """Right nine times of ten, always 62% sure: above one half p is concave in the logit, and noise takes from it."""
    x, y = torch.eye(2).repeat(30, 1), torch.arange(2).repeat(30)
    y[:6] = 1 - y[:6]
    model = nn.Linear(2, 2, bias=False)
    with torch.no_grad():
        model.weight.copy_(0.5 * torch.eye(2))
    found = measure(model, x, y, members=4, noises=2)
    assert "says: underconfident" in say(found) and found["itself"]["accuracy"]["value"] == 0.9
    assert [row["sigma"] for row in found["noises"]] == [0.0, 0.0]
