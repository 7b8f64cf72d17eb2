"""Load weights from a file into a network: `.npz`, `.safetensors`, or `.pt`/`.pth`/`.th` with `weights_only=True`.

Files use different names for the same parameters. The first entry of `KEY_NAMES` fits under which the file has every
parameter of the network, with its shape, and nothing else. A file that fits no entry is an error that names a misfit.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from calibrant.errors import FileError, unknown
from calibrant.files.npz import read as read_npz
from calibrant.files.paths import readable

KEY_NAMES: dict[str, tuple[tuple[str, str], ...]] = {
    "calibrant": (),
    "akamaster": (("linear.", "head.fc."),),
    "torchvision": (("fc.", "head.fc."),),
}
"""How published checkpoints name the parameters of our networks: source → (their prefix, our prefix), in order.

akamaster: akamaster/pytorch_resnet_cifar10 on GitHub, 6n+2 ResNets with option A; `linear` is the classifier.
torchvision: torchvision's ResNets, and chenyaofo's CIFAR models that follow them; `fc` is the classifier.
A leading "module." (from DataParallel) is dropped for every source.
"""

COUNTER = "num_batches_tracked"
"""BatchNorm's counter. Older files lack it, and evaluation does not need it."""


def rename(key: str, source: str) -> str:
    """Return our name of the parameter that `source` calls `key`."""
    plain = key.removeprefix("module.")
    for there, here in KEY_NAMES[source]:
        if plain.startswith(there):
            return here + plain.removeprefix(there)
    return plain


def load_weights(model: nn.Module, path: str | Path, source: str | None = None) -> nn.Module:
    """Load weights into `model` in place and return it. `source` is an entry of `KEY_NAMES`; default: one that fits."""
    if source is not None and source not in KEY_NAMES:
        raise unknown("source of weights", source, KEY_NAMES)
    held = read_weights(path)
    wanted = model.state_dict()
    complaints = {}
    for name in KEY_NAMES if source is None else [source]:
        renamed = {rename(key, name): value for key, value in held.items()}
        complaints[name] = misfit(renamed, wanted)
        if complaints[name] is None:
            kept = {key: renamed.get(key, wanted[key]) for key in wanted}
            model.load_state_dict(kept)
            return model
    best = min((c for c in complaints.values() if c is not None), key=lambda c: c[0])
    raise FileError(f"{path}: does not fit {type(model).__name__}: {best[1]}; check the model's name and options")


def misfit(held: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> tuple[int, str] | None:
    """Return how many names or shapes disagree and a description of the first, or None if all agree."""
    missing = [key for key in wanted if key not in held and not key.endswith(COUNTER)]
    extra = [key for key in held if key not in wanted and not key.endswith(COUNTER)]
    shapes = [key for key in wanted if key in held and held[key].shape != wanted[key].shape]
    number = len(missing) + len(extra) + len(shapes)
    if not number:
        return None
    if shapes:
        key = shapes[0]
        return number, f"{key!r} is {tuple(held[key].shape)} in the file and {tuple(wanted[key].shape)} in the network"
    return number, f"{missing[0]!r} is not in the file" if missing else f"the network has no {extra[0]!r}"


def read_weights(path: str | Path) -> dict[str, Tensor]:
    """Return the tensors of a file of any of these kinds, by name."""
    file = Path(path)
    with readable(file, "this file of weights"):
        if file.suffix == ".npz":
            archive = read_npz(file)
            return {name: torch.from_numpy(archive.load(name)) for name in archive.names}
        if file.suffix == ".safetensors":
            from safetensors.torch import load_file

            return dict(load_file(file))
        if file.suffix in (".pt", ".pth", ".th"):
            try:
                held = torch.load(file, map_location="cpu", weights_only=True)
            except Exception as error:
                if "Weights only load failed" not in str(error):
                    raise
                raise FileError(
                    f"{file}: this file of weights is damaged or holds Python objects, which are never loaded; save "
                    "it again with torch.save(model.state_dict(), …)"
                ) from error
            held = held.get("state_dict", held) if isinstance(held, Mapping) else held
            if isinstance(held, Mapping) and all(isinstance(value, Tensor) for value in held.values()):
                return dict(held)
            raise FileError(f"{file}: holds no state dict (name → tensor)")
    raise FileError(f"{file}: weights are .npz, .safetensors, .pt, .pth or .th")
