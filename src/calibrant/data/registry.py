"""The table of data sets. Each is a `DatasetSpec` in the file of its reader."""

from __future__ import annotations

from calibrant.data.camvid import CAMVID
from calibrant.data.cifar import CIFAR10, CIFAR100
from calibrant.data.cifar_shifts import CIFAR10_1, CIFAR10_2
from calibrant.data.digits import DIGITS
from calibrant.data.imagenet import IMAGENET, IMAGENET_V2
from calibrant.data.mnist import FASHION_MNIST, MNIST
from calibrant.data.news20 import NEWS20
from calibrant.data.records import DatasetSpec
from calibrant.data.svhn import SVHN

DATASETS: dict[str, DatasetSpec] = {
    spec.name: spec
    for spec in (
        DIGITS,
        MNIST,
        FASHION_MNIST,
        CIFAR10,
        CIFAR100,
        SVHN,
        CIFAR10_1,
        CIFAR10_2,
        CAMVID,
        IMAGENET,
        IMAGENET_V2,
        NEWS20,
    )
}
"""Name → what `load` needs to know of it."""
