"""`calibrant predict --stream`: the part's items are frames of one stream, smoothed in time (SS §1.1, A.2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from calibrant.errors import InputError

if TYPE_CHECKING:
    from calibrant.ensembles.ensemble import Ensemble


@dataclass(frozen=True)
class Smoothing:
    """Whether and how to smooth in time."""

    stream: Annotated[
        bool,
        typer.Option("--stream", help="the items are frames of one stream: average each with the ones before"),
    ] = False
    window: Annotated[int | None, typer.Option(min=0, help="stream: frames before this one (default: 5)")] = None
    decay: Annotated[float | None, typer.Option(help="stream: weight relative to the next frame (exp(-0.8))")] = None
    scene_cut: Annotated[float | None, typer.Option(help="stream: start again at a change this large, 0 … 1")] = None

    def wanted(self, ensemble: str | None) -> bool:
        """Whether to smooth in time; a setting of the stream without a stream is an error that names it."""
        wanted = self.stream or ensemble == "temporal"
        if not wanted:
            for name in ("window", "decay", "scene_cut"):
                if getattr(self, name) is not None:
                    raise InputError(f"--{name.replace('_', '-')} is a setting of a stream; add --stream")
        return wanted

    def of(self, made: Ensemble | None, networks: Sequence[Any]) -> Ensemble:
        """The network (or one ensemble member per frame), averaged over recent frames."""
        from calibrant.ensembles.temporal import DECAY, WINDOW, TemporalSmoothing

        if isinstance(made, TemporalSmoothing):
            made = None  # `--ensemble temporal` is `--stream` of the network alone
        if made is None and len(networks) > 1:
            raise InputError(f"--stream takes one network or an ensemble; this is {len(networks)}: add --ensemble deep")
        return TemporalSmoothing(
            networks[0] if made is None else made,
            window=WINDOW if self.window is None else self.window,
            decay=DECAY if self.decay is None else self.decay,
            scene_cut=self.scene_cut,
        )
