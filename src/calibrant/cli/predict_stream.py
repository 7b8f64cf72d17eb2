"""`calibrant predict --stream`: the part's items are frames of one stream, smoothed in time (SS §1.1, A.2)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from calibrant.errors import InputError

if TYPE_CHECKING:
    from calibrant.ensembles.ensemble import Ensemble


def streamed(
    made: Ensemble | None, networks: Sequence[Any], window: int | None, decay: float | None, scene_cut: float | None
) -> Ensemble:
    """The network (or one ensemble member per frame), averaged over recent frames."""
    from calibrant.ensembles.temporal import DECAY, WINDOW, TemporalSmoothing

    if isinstance(made, TemporalSmoothing):
        made = None  # `--ensemble temporal` is `--stream` of the network alone
    if made is None and len(networks) > 1:
        raise InputError(f"--stream takes one network or an ensemble; this is {len(networks)}: add --ensemble deep")
    return TemporalSmoothing(
        networks[0] if made is None else made,
        window=WINDOW if window is None else window,
        decay=DECAY if decay is None else decay,
        scene_cut=scene_cut,
    )


def only_with_stream(stream: bool, ensemble: str | None, **given: Any) -> bool:
    """Whether to smooth in time; a setting of the stream without a stream is an error that names it."""
    wanted = stream or ensemble == "temporal"
    if not wanted:
        for name, value in given.items():
            if value is not None:
                raise InputError(f"--{name.replace('_', '-')} is a setting of a stream; add --stream")
    return wanted
