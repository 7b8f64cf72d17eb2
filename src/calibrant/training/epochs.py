"""Files that single epochs leave in a run's folder.

RUN/epochs/validation-00012.npz           the validation predictions
RUN/epochs/train-00012.npz                predicted class and largest logit of every training item
RUN/epochs/weights-00012.safetensors      weights, members as `member.0.…`, for SWA, SWAG and snapshots
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from calibrant.files import atomic, hashed, npz, write
from calibrant.files.paths import readable, visible
from calibrant.types import Predictions


@dataclass(frozen=True)
class TopLogits:
    """Predictions on the training part after one epoch, without augmentation, for RC's learned epochs and Figure 5.

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
    """Return {epoch: predictions on the training part after it}; empty without `--keep-epochs`."""
    out = {}
    for path in visible(run, "epochs/train-*.npz"):
        with readable(path, "this epoch"):
            held = npz.read(path)
            arrays = {k: torch.from_numpy(held.load(k)) for k in ("predicted", "largest_logit", "labels", "index")}
        whole = {k: v if k == "largest_logit" else v.long() for k, v in arrays.items()}
        out[int(path.stem.removeprefix("train-"))] = TopLogits(**whole)
    return out


def keep_weights(run: Path, epoch: int, members: Sequence[nn.Module]) -> Path:
    """Write every member's weights after `epoch`, in one atomic step."""
    tensors = {f"member.{m}.{k}": v for m, network in enumerate(members) for k, v in network.state_dict().items()}
    return hashed.write_tensors(run / "epochs" / f"weights-{epoch:05d}.safetensors", tensors, {})


def kept_weights(run: str | Path, member: int = 0) -> dict[int, dict[str, Tensor]]:
    """Return {epoch: state dict} of one member, in order; empty if none were kept."""
    prefix = f"member.{member}."
    out = {}
    for path in visible(run, "epochs/weights-*.safetensors"):
        held, _ = hashed.read_tensors(path, "delete it, or train again")
        epoch = int(path.stem.removeprefix("weights-"))
        out[epoch] = {k.removeprefix(prefix): v for k, v in held.items() if k.startswith(prefix)}
    return out
