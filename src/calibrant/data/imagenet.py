"""ImageNet (ILSVRC 2012) and ImageNet-v2 (Recht 2019): folders of classes, decoded when needed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from calibrant.data.image_folder import read_folders
from calibrant.data.records import DatasetSpec, Layout, Raw
from calibrant.types import Split

SHAPE = (3, 224, 224)
V2 = "imagenetv2-matched-frequency-format-val"


def read_imagenet(root: Path) -> Raw:
    """Papers test on the official validation images; `train` is optional."""
    inner = {Split.TEST: root / "imagenet" / "val"}
    if (root / "imagenet" / "train").is_dir():
        inner[Split.TRAIN] = root / "imagenet" / "train"
    return Raw(*read_folders(root / "imagenet", inner, SHAPE))


def read_imagenet_v2(root: Path) -> Raw:
    return Raw(*read_folders(root / V2, {Split.TEST: root / V2}, SHAPE))


IMAGENET = DatasetSpec(
    name="imagenet",
    title="ImageNet (ILSVRC 2012), folders of classes decoded by worker processes; "
    "the official validation part is test",
    layouts=(
        Layout(
            ("imagenet/val",), read_imagenet, "ILSVRC 2012 as folders of classes, CLASS/*.JPEG; imagenet/train likewise"
        ),
    ),
    classes=(),
    shape=SHAPE,
    mean=(0.485, 0.456, 0.406),
    std=(0.229, 0.224, 0.225),
    sizes={"validation": 25_000, "calibration": 25_000},
)
IMAGENET_V2 = replace(
    IMAGENET,
    name="imagenet_v2",
    title="ImageNet-v2, a new test set of 10,000 images for ImageNet's classes",
    layouts=(Layout((V2,), read_imagenet_v2, "imagenetv2-matched-frequency.tar.gz, unpacked"),),
    sizes={},
)
