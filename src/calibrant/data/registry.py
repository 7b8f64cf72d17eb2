"""The table of data sets: where their files lie under the root, their classes, and constants of the papers."""

from __future__ import annotations

from calibrant.data.camvid import CAMVID
from calibrant.data.camvid import CLASSES as CAMVID_CLASSES
from calibrant.data.cifar_files import CIFAR10_FILES, CIFAR100_FILES, binary_archive, python_archive
from calibrant.data.digits import DIGITS
from calibrant.data.folder import IMAGENET, IMAGENET_SHAPE, IMAGENET_V2
from calibrant.data.idx import idx_files
from calibrant.data.new_tests import CIFAR10_1, CIFAR10_2
from calibrant.data.news import LENGTH, NEWS
from calibrant.data.packed import mosaics, npz
from calibrant.data.records import DatasetSpec, numbered
from calibrant.data.svhn import SVHN

CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
FASHION_CLASSES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)
IMAGENET_MOMENTS = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
CIFAR10_MOMENTS = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
PACKED = "lossless mosaics, 2,500 images a WebP file, with labels.npz"
HELD_OUT = {"validation": 5000, "calibration": 5000}

_SPECS = (
    DatasetSpec(
        "digits",
        "1,797 handwritten digits of 8 × 8, bundled with scikit-learn",
        (DIGITS,),
        numbered(10),
        (1, 8, 8),
        (0.3053,),
        (0.3761,),
        {"validation": 180, "calibration": 360, "test": 450},
    ),
    DatasetSpec(
        "mnist",
        "70,000 handwritten digits of 28 × 28",
        (
            npz("mnist", "mnist.npz", "x_train, y_train, x_test, y_test in one npz"),
            idx_files("mnist", "", "the official idx files"),
            idx_files("mnist", ".gz", "the official idx files, gzipped"),
        ),
        numbered(10),
        (1, 28, 28),
        (0.1307,),
        (0.3081,),
        HELD_OUT,
    ),
    DatasetSpec(
        "fashion_mnist",
        "70,000 pieces of clothing, 28 × 28",
        (
            npz("fashion_mnist", "fashion_mnist.npz", "x_train, y_train, x_test, y_test in one npz"),
            idx_files("fashion_mnist", "", "the official idx files"),
            idx_files("fashion_mnist", ".gz", "the official idx files, gzipped (Debian: dataset-fashion-mnist)"),
        ),
        FASHION_CLASSES,
        (1, 28, 28),
        (0.2860,),
        (0.3530,),
        HELD_OUT,
    ),
    DatasetSpec(
        "cifar10",
        "60,000 colour images of 32 × 32, 10 classes",
        (
            mosaics("cifar10", 20, 4, 32, PACKED),
            python_archive("cifar-10-batches-py", CIFAR10_FILES, b"labels", "cifar-10-python.tar.gz, unpacked"),
            binary_archive("cifar-10-batches-bin", CIFAR10_FILES, 1, "cifar-10-binary.tar.gz, unpacked"),
        ),
        CIFAR10_CLASSES,
        (3, 32, 32),
        *CIFAR10_MOMENTS,
        HELD_OUT,
    ),
    DatasetSpec(
        "cifar100",
        "60,000 colour images of 32 × 32, 100 classes",
        (
            mosaics("cifar100", 20, 4, 32, PACKED),
            python_archive("cifar-100-python", CIFAR100_FILES, b"fine_labels", "cifar-100-python.tar.gz, unpacked"),
            binary_archive("cifar-100-binary", CIFAR100_FILES, 2, "cifar-100-binary.tar.gz, unpacked"),
        ),
        numbered(100),
        (3, 32, 32),
        (0.5070, 0.4865, 0.4409),
        (0.2673, 0.2564, 0.2761),
        HELD_OUT,
    ),
)

_MORE = (
    DatasetSpec(
        "svhn",
        "99,289 street-view digits of 32 × 32 (RC §3.1)",
        (SVHN,),
        numbered(10),
        (3, 32, 32),
        (0.4377, 0.4438, 0.4728),
        (0.1980, 0.2010, 0.1970),
        HELD_OUT,
    ),
    DatasetSpec(
        "cifar10_1",
        "CIFAR-10.1, a new test set of 2,000 images for CIFAR-10's classes",
        (CIFAR10_1,),
        CIFAR10_CLASSES,
        (3, 32, 32),
        *CIFAR10_MOMENTS,
    ),
    DatasetSpec(
        "cifar10_2",
        "CIFAR-10.2, another new test set of 2,000 images",
        (CIFAR10_2,),
        CIFAR10_CLASSES,
        (3, 32, 32),
        *CIFAR10_MOMENTS,
    ),
    DatasetSpec(
        "camvid",
        "701 road scenes of 180 × 240 with a class for each pixel (SS A.2)",
        (CAMVID,),
        CAMVID_CLASSES,
        (3, 180, 240),
        (0.4117, 0.4251, 0.4322),
        (0.3022, 0.3062, 0.3023),
    ),
    DatasetSpec(
        "imagenet",
        "ImageNet (ILSVRC 2012), folders of classes decoded by worker processes; the official validation part is test",
        (IMAGENET,),
        (),
        IMAGENET_SHAPE,
        *IMAGENET_MOMENTS,
        {"validation": 25_000, "calibration": 25_000},
    ),
    DatasetSpec(
        "imagenet_v2",
        "ImageNet-v2, a new test set of 10,000 images for ImageNet's classes",
        (IMAGENET_V2,),
        (),
        IMAGENET_SHAPE,
        *IMAGENET_MOMENTS,
    ),
    DatasetSpec(
        "news20",
        "18,846 messages of 20 Newsgroups as 500 tokens each (RC §3.1)",
        (NEWS,),
        numbered(20),
        (LENGTH,),
        sizes={"validation": 1000, "calibration": 1000},
    ),
)

DATASETS: dict[str, DatasetSpec] = {spec.name: spec for spec in (*_SPECS, *_MORE)}
