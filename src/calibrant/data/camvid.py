"""CamVid (Brostow 2008) in SegNet's split: road scenes with a class for each pixel, from one zip.

`{train,val,test}/NAME.webp` and `{train,val,test}annot/NAME.png`; label 11 is "unlabelled" and becomes −1, which
targets turn into a row of zeros. Frames are sorted by name: the validation part is one run of 101 frames at 15 Hz.
"""

from __future__ import annotations

import io
from pathlib import Path
from zipfile import ZipFile

import numpy as np
import torch
from numpy.typing import NDArray

from calibrant.data.records import DatasetSpec, Layout, Part, Raw
from calibrant.errors import FileError
from calibrant.files.paths import readable
from calibrant.types import Split

ZIP = "camvid/camvid_180x240_webp95.zip"
UNLABELLED = 11
FOLDERS = {Split.TRAIN: "train", Split.VALIDATION: "val", Split.TEST: "test"}


def read_camvid(root: Path) -> Raw:
    path = root / ZIP
    with readable(path, "this zip"), ZipFile(path) as archive:
        return Raw({split: frames(archive, folder, path, split) for split, folder in FOLDERS.items()})


def frames(archive: ZipFile, folder: str, path: Path, split: Split) -> Part:
    """Images uint8 [N, 3, H, W] and labels long [N, H, W] of one folder."""
    names = sorted(name for name in archive.namelist() if name.startswith(f"{folder}/") and not name.endswith("/"))
    held = set(archive.namelist())
    images, labels = [], []
    for name in names:
        annotation = f"{folder}annot/{Path(name).stem}.png"
        if annotation not in held:
            raise FileError(f"{path}: {name} has no {annotation}")
        images.append(_pixels(archive, name, "RGB").transpose(2, 0, 1))
        labels.append(_pixels(archive, annotation, "L"))
    if not images:
        raise FileError(f"{path}: has no frames under {folder}/")
    y = np.stack(labels).astype(np.int64)
    return Part.of(torch.from_numpy(np.stack(images)), torch.from_numpy(np.where(y == UNLABELLED, -1, y)), split)


def _pixels(archive: ZipFile, name: str, mode: str) -> NDArray[np.uint8]:
    from PIL import Image

    with Image.open(io.BytesIO(archive.read(name))) as image:
        return np.array(image if mode == "L" else image.convert(mode))


CAMVID = DatasetSpec(
    name="camvid",
    title="701 road scenes of 180 × 240 with a class for each pixel (SS A.2)",
    layouts=(Layout((ZIP,), read_camvid, "SegNet's CamVid, 180 × 240, as one zip"),),
    classes=(
        "Sky", "Building", "Pole", "Road", "Pavement", "Tree", "SignSymbol", "Fence", "Car", "Pedestrian", "Bicyclist",
    ),
    shape=(3, 180, 240),
    mean=(0.4117, 0.4251, 0.4322),
    std=(0.3022, 0.3062, 0.3023),
)  # fmt: skip
