"""Subsets of classes, out-of-distribution images, and a user's folders of corrupted images."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from calibrant.data import load
from calibrant.data.corruption_folder import CorruptionFolder, corruption_folder
from calibrant.data.image_arrays import read_set
from calibrant.data.image_folder import read_part
from calibrant.data.ood import LUMA, fit_shape, ood_images, usual_ood
from calibrant.data.subsets import class_numbers, complement, split_name
from calibrant.errors import CalibrantError, FileError, InputError


def test_five_of_ten_classes_are_those_items_numbered_anew() -> None:
    whole, five = load("digits"), load("digits[0,2,4,6-7]")
    assert five.classes == ("0", "2", "4", "6", "7") and five.k == 5 and five.name == "digits[0,2,4,6-7]"
    total = sum(int((p.y == c).sum()) for p in whole.splits.values() for c in (0, 2, 4, 6, 7))
    assert sum(p.n for p in five.splits.values()) == total
    means = {c: torch.cat([p.x[p.y == c] for p in whole.splits.values()]).double().mean() for c in (0, 2, 4, 6, 7)}
    for new, old in enumerate((0, 2, 4, 6, 7)):
        mine = torch.cat([p.x[p.y == new] for p in five.splits.values()]).double().mean()
        assert mine == pytest.approx(float(means[old]))


def test_subset_names_and_their_complements() -> None:
    classes = ("cat", "dog", "bird", "7")
    assert split_name("cifar10[0-4]") == ("cifar10", "0-4") and split_name("cifar10") == ("cifar10", None)
    assert class_numbers("cat, 2-3", classes, "pets") == (0, 2, 3)
    assert complement("digits[0-4]", load("digits").classes) == "digits[5,6,7,8,9]"
    assert complement("digits", load("digits").classes) is None
    for text, word in (("cats,dog", "did you mean 'cat'"), ("0-9", "'0-9' is not a class"), ("1", "two or more")):
        with pytest.raises(CalibrantError, match=word):
            class_numbers(text, classes, "pets")


def test_ood_images_are_fitted_with_a_note() -> None:
    colour = torch.randint(256, (5, 3, 32, 32), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    small, said = fit_shape(colour, (1, 8, 8))
    assert small.shape == (5, 1, 8, 8) and small.dtype == torch.uint8
    assert "grey by luma" in said and "32×32 to 8×8" in said
    grey, _ = fit_shape(colour, (1, 32, 32))
    want = sum(w * colour[:, i].double() for i, w in enumerate(LUMA))
    assert (grey[:, 0].double() - want).abs().max() <= 0.51
    back, said = fit_shape(grey, (3, 32, 32))
    assert torch.equal(back[:, 0], back[:, 2]) and "repeated" in said
    assert fit_shape(colour, (3, 32, 32))[1] == "as it is"
    with pytest.raises(InputError, match="4 channels"):
        fit_shape(torch.zeros(2, 4, 8, 8, dtype=torch.uint8), (3, 8, 8))


@pytest.mark.parametrize("name", ["photographs", "noise_uniform", "noise_gaussian", "digits[5-9]"])
def test_ood_sets_that_need_no_file(name: str) -> None:
    a, b, c = (ood_images(name, (1, 8, 8), n=20, seed=s) for s in (0, 0, 1))
    assert a.x.shape == (20, 1, 8, 8) and a.x.dtype == torch.uint8 and torch.equal(a.x, b.x) and a.note
    assert a.x.double().std() > 10 and (name == "digits[5-9]" or not torch.equal(a.x, c.x))


def test_usual_ood_sets() -> None:
    assert usual_ood(load("digits[0-4]"), None)[0][0] == "digits[5,6,7,8,9]"
    assert usual_ood(load("digits"), None)[0] == ["photographs", "noise_uniform", "noise_gaussian"]
    with pytest.raises(InputError, match="images"):
        ood_images("photographs", (500,), n=3)


def test_a_folder_of_corruptions_with_labels_once_or_in_every_block(tmp_path: Path) -> None:
    y = np.arange(6) % 3
    x = np.arange(5 * 6 * 4 * 4, dtype=np.int64).reshape(30, 4, 4) % 251
    np.save(tmp_path / "mine.npy", x.astype(np.uint8))
    np.save(tmp_path / "labels.npy", y)
    short = CorruptionFolder(tmp_path, 3)
    images, labels = short.cell("mine", 2)
    assert images.shape == (6, 1, 4, 4) and labels.tolist() == y.tolist()
    np.testing.assert_array_equal(images[:, 0].numpy(), x[6:12])
    np.save(tmp_path / "labels.npy", np.tile(y, 5))
    long = CorruptionFolder(tmp_path, 3)
    assert torch.equal(long.cell("mine", 5)[0], short.cell("mine", 5)[0]) and long.types == ("mine",)
    np.save(tmp_path / "labels.npy", y)
    np.save(tmp_path / "mine.npy", x[:12].astype(np.uint8))
    assert CorruptionFolder(tmp_path, 3).check("mine")[1] == 2
    with pytest.raises(InputError, match="severities 1 … 2, not 3"):
        CorruptionFolder(tmp_path, 3).cell("mine", 3)
    with pytest.raises(CalibrantError, match="did you mean 'mine'"):
        CorruptionFolder(tmp_path, 3).cell("mines", 1)


def test_one_set_as_npz_or_as_a_pair_of_npy(tmp_path: Path) -> None:
    x, y = np.zeros((4, 5, 5, 3), np.uint8), np.array([0, 1, 2, 1])
    np.savez(tmp_path / "a.npz", x=x, y=y, keywords=np.array(["b"] * 4))
    np.save(tmp_path / "cifar10.1_v6_data.npy", x)
    np.save(tmp_path / "cifar10.1_v6_labels.npy", y)
    for name in ("a.npz", "cifar10.1_v6_data.npy"):
        images, labels = read_set(tmp_path / name, 3)
        assert images.shape == (4, 3, 5, 5) and labels.tolist() == y.tolist()
    np.savez(tmp_path / "torch.npz", images=x.transpose(0, 3, 1, 2), labels=y)
    assert read_set(tmp_path / "torch.npz", 3)[0].shape == (4, 3, 5, 5)
    np.save(tmp_path / "alone.npy", x)
    for name, word in (("alone.npy", "labels are missing"), ("none.npz", "no such file"), ("a.txt", "no such file")):
        with pytest.raises(FileError, match=word):
            read_set(tmp_path / name, 3)


def test_own_ood_images_need_no_labels(tmp_path: Path) -> None:
    from PIL import Image

    x = np.random.default_rng(0).integers(0, 256, (6, 8, 8, 3)).astype(np.uint8)
    np.savez(tmp_path / "mine.npz", images=x)
    np.save(tmp_path / "mine.npy", x)
    for i, picture in enumerate(x):
        (tmp_path / "folder" / str(i % 2)).mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture).save(tmp_path / "folder" / str(i % 2) / f"{i}.png")
    for name in ("mine.npz", "mine.npy"):
        found = ood_images(str(tmp_path / name), (3, 8, 8), n=5)
        assert torch.equal(found.x.permute(0, 2, 3, 1), torch.from_numpy(x[:5])) and found.note == "as it is"
    folder = ood_images(str(tmp_path / "folder"), (3, 8, 8), n=6).x.permute(0, 2, 3, 1).numpy()
    np.testing.assert_array_equal(folder, x[[0, 2, 4, 1, 3, 5]])
    assert ood_images(str(tmp_path / "folder"), (3, 8, 8), n=2).x.shape == (2, 3, 8, 8)
    assert ood_images(str(tmp_path / "mine.npz"), (1, 4, 4), n=9).x.shape == (6, 1, 4, 4)


def image_corruptions(folder: Path, n: int = 24, classes: int = 12, group: str = "") -> tuple[np.ndarray, np.ndarray]:
    """Write ImageNet-C's layout, TYPE/SEVERITY/CLASS/*.png; in alphabetical order, class 10 would precede class 2."""
    from PIL import Image

    x = np.random.default_rng(0).integers(0, 256, (n, 8, 8, 3)).astype(np.uint8)
    y = np.arange(n) % classes
    for name in ("speckle_noise", "anything"):
        for severity in range(1, 6):
            for i in range(n):
                cell = folder / group / name / str(severity) / str(y[i])
                cell.mkdir(parents=True, exist_ok=True)
                Image.fromarray(x[i] // severity).save(cell / f"{i:03d}.png")
    order = np.lexsort((np.arange(n), y))
    return x[order], y[order]


@pytest.mark.parametrize("group", ["", "noise"])
def test_corruptions_as_folders_of_images_are_those_of_the_arrays(tmp_path: Path, group: str) -> None:
    x, y = image_corruptions(tmp_path / "images", group=group)
    (tmp_path / "arrays").mkdir()
    np.save(tmp_path / "arrays" / "anything.npy", np.concatenate([x // s for s in range(1, 6)]))
    np.save(tmp_path / "arrays" / "labels.npy", y)
    images = corruption_folder(tmp_path / "images", [str(i) for i in range(12)], (3, 8, 8))
    arrays = corruption_folder(tmp_path / "arrays", 12, (3, 8, 8))
    assert images.types == ("anything", "speckle_noise") and arrays.types == ("anything",)
    assert images.severities("anything") == arrays.severities("anything") == (1, 2, 3, 4, 5)
    for severity in (1, 4):
        a, b = images.part("anything", severity), arrays.part("anything", severity)
        decoded = torch.stack([a.items[int(i)][0] for i in a.index])
        assert torch.equal(decoded, b.x) and torch.equal(a.y, b.y) and b.y.max() == 11
    assert images.content(("anything",)) != images.content(("speckle_noise",))


def test_folders_of_images_with_classes_by_name(tmp_path: Path) -> None:
    image_corruptions(tmp_path / "c", classes=2)
    for cell in (tmp_path / "c").glob("*/*"):
        (cell / "0").rename(cell / "dog")
        (cell / "1").rename(cell / "cat")
    part = corruption_folder(tmp_path / "c", ["bird", "dog", "cat"], (3, 8, 8)).part("anything", 3)
    assert part.y.tolist() == [2] * 12 + [1] * 12  # cat comes first in the folder, and is 2 to the model
    with pytest.raises(InputError, match="'cat' is not a class of the model"):
        corruption_folder(tmp_path / "c", ["bird", "dog"], (3, 8, 8)).part("anything", 3)


def test_cells_of_images_must_show_the_same_items(tmp_path: Path) -> None:
    image_corruptions(tmp_path)
    (tmp_path / "anything" / "3" / "7" / "007.png").unlink()
    held = corruption_folder(tmp_path, 12, (3, 8, 8))
    with pytest.raises(FileError, match="anything/3: not the same classes and files"):
        held.severities("anything")
    with pytest.raises(CalibrantError, match="did you mean 'anything'"):
        held.severities("anythin")
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileError, match=r"neither TYPE.npy with labels.npy nor TYPE/SEVERITY/CLASS"):
        _ = corruption_folder(tmp_path / "empty", 12, (3, 8, 8)).types


def test_recollected_sets_in_the_published_layouts(tmp_path: Path) -> None:
    from PIL import Image

    x = np.random.default_rng(0).integers(0, 256, (24, 8, 8, 3)).astype(np.uint8)
    y = np.arange(24) % 12
    classes = [str(i) for i in range(12)]
    one, two, v2 = tmp_path / "CIFAR-10.1" / "datasets", tmp_path / "cifar-10.2", tmp_path / "v2"
    for folder in (one, two, v2):
        folder.mkdir(parents=True)
    for version, n in (("v4", 20), ("v6", 24)):
        np.save(one / f"cifar10.1_{version}_data.npy", x[:n])
        np.save(one / f"cifar10.1_{version}_labels.npy", y[:n].astype(np.int32))
    np.savez(two / "cifar102_test.npz", images=x, labels=y, keywords=np.array([["a"], 2], dtype=object))
    for i in range(24):
        (v2 / str(y[i])).mkdir(exist_ok=True)
        Image.fromarray(x[i]).save(v2 / str(y[i]) / f"{i:02d}.png")
    for path, n in ((one.parent, 24), (one, 24), (one / "cifar10.1_v4_data.npy", 20), (two, 24)):
        part = read_part(path, classes, (3, 8, 8))
        assert torch.equal(part.x.permute(0, 2, 3, 1), torch.from_numpy(x[:n])) and part.y.tolist() == y[:n].tolist()
    folder = read_part(v2, classes, (3, 8, 8))
    assert folder.y.tolist() == sorted(y.tolist())  # by value: the alphabet puts 10 before 2
    np.testing.assert_array_equal(folder.items[2][0].permute(1, 2, 0).numpy(), x[1])
    np.save(tmp_path / "cifar102_test.npy", {"images": x, "labels": y}, allow_pickle=True)  # type: ignore[arg-type]
    with pytest.raises(FileError, match="pickled Python objects, which are never loaded"):
        read_part(tmp_path / "cifar102_test.npy", classes, (3, 8, 8))
    with pytest.raises(FileError, match=r"images are \(3, 8, 8\), the classifier's are \(3, 32, 32\)"):
        read_part(two, classes, (3, 32, 32))
