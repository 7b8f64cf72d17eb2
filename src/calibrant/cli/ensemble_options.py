"""Options of an ensemble (`predict`, `stress`) and of a stream (`predict`): one that changes nothing is refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from calibrant.errors import InputError, unknown

if TYPE_CHECKING:
    from calibrant.ensembles.ensemble import Ensemble

METHODS = {
    "members": ("pep", "dropout", "deep", "swag"),  # SWA is one network, snapshots are those that were kept
    "where": ("pep", "dropout"),
    "sigma": ("pep",),
    "distribution": ("pep",),
    "search": ("pep",),
    "p": ("dropout",),
}
"""Which methods have a setting; by its name in `Ingredients`, with `--` on the command line."""


@dataclass(frozen=True)
class Ensembling:
    """The settings of an ensemble; None is the method's own."""

    members: Annotated[int | None, typer.Option(min=1, help="number of members; by default the method's own")] = None
    sigma: Annotated[float | None, typer.Option(help="PEP's σ; by default it is fitted")] = None
    where: Annotated[
        str | None,
        typer.Option(help="PEP: perturb auto, conv, weights or all; MC dropout: the dropouts below this name"),
    ] = None
    distribution: Annotated[str | None, typer.Option(help="PEP's noise: gaussian (default) or uniform")] = None
    search: Annotated[
        str | None, typer.Option(help="PEP's search for σ: bracket (default), or golden as in the paper")
    ] = None
    p: Annotated[float | None, typer.Option("--p", help="MC dropout: use this rate everywhere")] = None

    def of(self, ensemble: str | None) -> dict[str, Any]:
        """What was given: the method exists, and every setting is one of its own, with a value that it knows."""
        from calibrant.ensembles import ENSEMBLES
        from calibrant.ensembles.perturbation import WHERE
        from calibrant.ensembles.sigma_search import SEARCHES
        from calibrant.functional.noise import DISTRIBUTIONS

        if ensemble is not None and ensemble not in ENSEMBLES:
            raise unknown("ensemble", ensemble, ENSEMBLES)
        given = {name: getattr(self, name) for name in METHODS if getattr(self, name) is not None}
        for name in given:
            methods = METHODS[name]
            if ensemble not in methods:
                nothing = "without an ensemble" if ensemble is None else f"with {ensemble}"
                of = methods[0] if len(methods) == 1 else f"{', '.join(methods[:-1])} and {methods[-1]}"
                rest = "; add that" if len(methods) == 1 else f", and changes nothing {nothing}; add one"
                raise InputError(f"--{name} is a setting of --ensemble {of}{rest}, or drop --{name}")
        if ensemble == "pep":
            for name, known in (("where", WHERE), ("distribution", DISTRIBUTIONS), ("search", SEARCHES)):
                if given.get(name, known[0]) not in known:
                    raise InputError(f"--{name} {given[name]} is unknown; use {', '.join(known[:-1])} or {known[-1]}")
            if "search" in given and "sigma" in given:
                raise InputError("--search looks for σ, and --sigma gives it; drop one of them")
        return given


def kept(keep_members: bool, ensemble: str | None, stream: bool) -> None:
    """Whether there are members to keep."""
    if not keep_members:
        return
    if stream:
        raise InputError("--keep-members: a stream has one prediction per frame and no members; drop --keep-members")
    if ensemble is None:
        raise InputError(
            "--keep-members is a setting of --ensemble; add that, or drop --keep-members "
            "(several networks without an ensemble are always written member by member)"
        )


@dataclass(frozen=True)
class Smoothing:
    """Whether and how to smooth predictions in time (SS §1.1, A.2): the items are frames of one stream."""

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
