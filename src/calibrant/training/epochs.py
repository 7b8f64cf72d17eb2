"""Files that single epochs leave in a run's folder.

RUN/epochs/validation-00012.npz           the validation predictions
RUN/epochs/train-00012.npz                predicted class and largest logit of every training item
RUN/epochs/weights-00012.safetensors      weights, members as `member.0.…`, for SWA, SWAG and snapshots
"""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from calibrant.attacks.store import tensors_hash
from calibrant.errors import FileError
from calibrant.files import atomic, write
from calibrant.files.paths import visible
from calibrant.types import Predictions


@dataclass(frozen=True)
class TopLogits:
    """The training part after one epoch, without augmentation. RC's learned epochs and Figure 5 are made from it.

    With several members, `predicted` and `largest_logit` have a first axis for them.
    """

    predicted: Tensor  # [N] or [M, N]
    largest_logit: Tensor  # [N] or [M, N]
    labels: Tensor  # [N]
    index: Tensor  # [N], places in the data set


def keep_validation(run: Path, epoch: int, validation: Predictions) -> None:
    write(run / "epochs" / f"validation-{epoch:05d}.npz", validation)


def keep_top_logits(run: Path, epoch: int, top: TopLogits, classes: int) -> None:
    """Class numbers are stored in a small integer type: 200 epochs of CIFAR take 90 MB instead of 216."""
    small = np.uint8 if classes <= 255 else np.int32  # -1, which marks pixels without a label, becomes 255
    arrays = {
        "predicted": top.predicted.numpy().astype(small),
        "largest_logit": top.largest_logit.numpy().astype(np.float32),
        "labels": top.labels.numpy().astype(small),
        "index": top.index.numpy().astype(np.int32),
    }
    with atomic.file(run / "epochs" / f"train-{epoch:05d}.npz") as temporary:
        np.savez(temporary, **arrays)  # type: ignore[arg-type]


def kept_top_logits(run: str | Path) -> dict[int, TopLogits]:
    """Epoch → the training part after it; empty without `--keep-epochs`."""
    out = {}
    for path in visible(run, "epochs/train-*.npz"):
        try:
            with np.load(path, allow_pickle=False) as held:
                arrays = {k: torch.from_numpy(held[k]) for k in ("predicted", "largest_logit", "labels", "index")}
        except (OSError, ValueError, KeyError, EOFError, TypeError, zipfile.BadZipFile) as error:
            raise FileError(f"{path} is damaged; delete it, or train again with --keep-epochs") from error
        whole = {k: v if k == "largest_logit" else v.long() for k, v in arrays.items()}
        out[int(path.stem.removeprefix("train-"))] = TopLogits(**whole)
    return out


def keep_weights(run: Path, epoch: int, members: Sequence[nn.Module]) -> Path:
    """Write every member's weights after `epoch`, in one atomic step."""
    from safetensors.torch import save

    tensors = {
        f"member.{m}.{name}": value.detach().cpu().contiguous()
        for m, network in enumerate(members)
        for name, value in network.state_dict().items()
    }
    path = run / "epochs" / f"weights-{epoch:05d}.safetensors"
    return atomic.write_bytes(path, save(tensors, metadata={"sha256": tensors_hash(tensors)}))


def kept_weights(run: str | Path, member: int = 0) -> dict[int, dict[str, Tensor]]:
    """{epoch: state dict} of one member, in order; empty if none were kept."""
    from safetensors import SafetensorError, safe_open

    prefix = f"member.{member}."
    out = {}
    for path in visible(run, "epochs/weights-*.safetensors"):
        try:
            with safe_open(str(path), framework="pt") as stored:
                held = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118 - not a dict
                claimed = (stored.metadata() or {}).get("sha256")  # version 0.1 wrote none
        except (SafetensorError, OSError) as error:
            raise FileError(f"{path} is truncated or not safetensors; delete it, or train again") from error
        if claimed is not None and claimed != tensors_hash(held):
            raise FileError(f"{path} was edited: its hash does not match; delete it, or train again")
        epoch = int(path.stem.removeprefix("weights-"))
        out[epoch] = {k.removeprefix(prefix): v for k, v in held.items() if k.startswith(prefix)}
    return out
