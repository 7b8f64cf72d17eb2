"""Weights of single epochs beside a run: what SWA, SWAG and snapshot ensembles average.

RUN/epochs/weights-00012.safetensors      one file an epoch, members as `member.0.…`
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from torch import Tensor, nn

from calibrant.errors import FileError
from calibrant.files import atomic
from calibrant.files.listing import visible


def keep_weights(run: Path, epoch: int, members: Sequence[nn.Module]) -> Path:
    """Write every member's weights after `epoch`, whole or not at all."""
    from safetensors.torch import save

    tensors = {
        f"member.{m}.{name}": value.detach().cpu().contiguous()
        for m, network in enumerate(members)
        for name, value in network.state_dict().items()
    }
    return atomic.write_bytes(run / "epochs" / f"weights-{epoch:05d}.safetensors", save(tensors))


def kept_weights(run: str | Path, member: int = 0) -> list[dict[str, Tensor]]:
    """State dicts of one member in the order of epochs; empty when none were kept."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    prefix = f"member.{member}."
    out = []
    for path in visible(run, "epochs/weights-*.safetensors"):
        try:
            held = load_file(path)
        except (SafetensorError, OSError) as error:
            raise FileError(f"{path} is truncated or not safetensors; delete it, or train again") from error
        out.append({k.removeprefix(prefix): v for k, v in held.items() if k.startswith(prefix)})
    return out
