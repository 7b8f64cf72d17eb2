"""Published weights: every kind of file, the table of names, and the published outputs of six networks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from calibrant.data import DATASETS
from calibrant.data.cifar import read_mosaic
from calibrant.errors import FileError, UnknownNameError
from calibrant.nn import build, load_weights

AKAMASTER = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
CHENYAOFO = (DATASETS["cifar100"].mean, DATASETS["cifar100"].std)
PUBLISHED = [
    ("cifar10", "resnet20", "A", "akamaster", 0.9173),
    ("cifar10", "resnet32", "A", "akamaster", 0.9263),
    ("cifar10", "resnet44", "A", "akamaster", 0.9310),
    ("cifar10", "resnet56", "A", "akamaster", 0.9339),
    ("cifar100", "resnet20", "conv", "chenyaofo", 0.6883),
    ("cifar100", "resnet32", "conv", "chenyaofo", 0.7016),
]
ITEMS = 32


@pytest.mark.parametrize(("data", "network", "shortcut", "author", "accuracy"), PUBLISHED)
def test_published_networks_reach_their_published_accuracy(
    big_data: Path, data: str, network: str, shortcut: str, author: str, accuracy: float
) -> None:
    """The stored logits of all 10,000 test items have the stated accuracy, and ours equal them item by item."""
    stored = np.load(big_data / "logits" / f"{data}_{network}_{author}.npz")
    assert (stored["logits"].argmax(1) == stored["labels"]).mean() == pytest.approx(accuracy, abs=1e-9)
    model = build(network, classes=stored["logits"].shape[1], shortcut=shortcut)
    load_weights(model, big_data / "weights" / f"{data}_{network}_{author}.npz").eval()
    mean, std = AKAMASTER if author == "akamaster" else CHENYAOFO
    x = read_mosaic(big_data / data / "test_00.webp", 32)[:ITEMS].float() / 255
    x = (x - torch.tensor(mean).reshape(3, 1, 1)) / torch.tensor(std).reshape(3, 1, 1)
    with torch.no_grad():
        logits = model(x).numpy()
    np.testing.assert_allclose(logits, stored["logits"][:ITEMS], atol=2e-4)


@pytest.mark.parametrize(
    ("suffix", "classifier"), [(".npz", "linear."), (".safetensors", "fc."), (".pt", "head.fc."), (".pth", "linear.")]
)
def test_kinds_of_files_and_names(tmp_path: Path, suffix: str, classifier: str) -> None:
    """akamaster says `linear`, torchvision `fc`; BatchNorm counters may be missing; DataParallel adds "module."."""
    source = build("resnet20", classes=4, seed=1)
    held = {
        "module." + key.replace("head.fc.", classifier): value
        for key, value in source.state_dict().items()
        if not key.endswith("num_batches_tracked")
    }
    path = tmp_path / f"w{suffix}"
    if suffix == ".npz":
        np.savez(path, **{key: value.numpy() for key, value in held.items()})
    elif suffix == ".safetensors":
        save_file(held, path)
    else:
        torch.save({"state_dict": held} if suffix == ".pth" else held, path)
    model = load_weights(build("resnet20", classes=4, seed=2), path)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), source.parameters(), strict=True))


def test_misfits_are_named(tmp_path: Path) -> None:
    path = tmp_path / "w.npz"
    held = {key: value.numpy() for key, value in build("resnet20", classes=4).state_dict().items()}
    np.savez(path, **held)
    with pytest.raises(FileError, match=r"'head.fc.weight' is \(4, 64\) in the file and \(5, 64\)"):
        load_weights(build("resnet20", classes=5), path)
    with pytest.raises(FileError, match=r"'layer1.3.conv1.weight' is not in the file"):
        load_weights(build("resnet32", classes=4), path)
    kept = held.pop("bn1.weight")
    np.savez(path, **held)
    with pytest.raises(FileError, match=r"does not fit ResNet: 'bn1.weight' is not in the file"):
        load_weights(build("resnet20", classes=4), path)
    np.savez(path, **held, **{"bn1.weight": kept, "extra": kept})
    with pytest.raises(FileError, match="the network has no 'extra'"):
        load_weights(build("resnet20", classes=4), path)


def test_unreadable_files_are_errors(tmp_path: Path) -> None:
    model = build("mlp", classes=2, in_channels=1, size=4)
    with pytest.raises(FileError, match="no such file"):
        load_weights(model, tmp_path / "none.npz")
    said_of = {
        ".npz": "not a complete .npz archive",
        ".safetensors": "this file of weights is truncated or damaged",
        ".pt": "this file of weights is damaged or holds Python objects, which are never loaded",
    }
    for suffix, said in said_of.items():
        path = tmp_path / f"bad{suffix}"
        path.write_bytes(b"nonsense")
        with pytest.raises(FileError, match=said):
            load_weights(model, path)
    (tmp_path / "w.bin").write_bytes(b"")
    with pytest.raises(FileError, match=r"weights are \.npz"):
        load_weights(model, tmp_path / "w.bin")
    torch.save({"a": 1}, tmp_path / "other.pt")
    with pytest.raises(FileError, match="no state dict"):
        load_weights(model, tmp_path / "other.pt")
    with pytest.raises(UnknownNameError, match="akamaster"):
        load_weights(model, tmp_path / "none.npz", source="akamster")
