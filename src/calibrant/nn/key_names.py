"""How other people's checkpoints name the parameters of our networks: source → (prefix there, prefix here), in order.

akamaster: akamaster/pytorch_resnet_cifar10 on GitHub, 6n+2 ResNets with option A; `linear` is the classifier.
torchvision: torchvision's ResNets, and chenyaofo's CIFAR models that follow them; `fc` is the classifier.
A leading "module." (left by DataParallel) is dropped for every source.
"""

KEY_NAMES: dict[str, tuple[tuple[str, str], ...]] = {
    "calibrant": (),
    "akamaster": (("linear.", "head.fc."),),
    "torchvision": (("fc.", "head.fc."),),
}


def rename(key: str, source: str) -> str:
    """The name here of a parameter called `key` there."""
    plain = key.removeprefix("module.")
    for there, here in KEY_NAMES[source]:
        if plain.startswith(there):
            return here + plain.removeprefix(there)
    return plain
