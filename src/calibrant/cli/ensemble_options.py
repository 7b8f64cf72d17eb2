"""Options of an ensemble (`predict`, `stress`) and of a stream (`predict`). An option without effect is an error."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from calibrant.errors import InputError, unknown

if TYPE_CHECKING:
    from calibrant.cli.model_data import Setting
    from calibrant.ensembles.ensemble import Ensemble


@dataclass(frozen=True)
class Ensembling:
    """Which ensemble, and its settings; None is the ensemble's own default."""

    ensemble: Annotated[
        str | None, typer.Option(help="pep, dropout, deep, swa, swag, snapshot or, for a stream, temporal")
    ] = None
    members: Annotated[int | None, typer.Option(min=1, help="number of members; by default the ensemble's own")] = None
    sigma: Annotated[float | None, typer.Option(help="PEP: σ of the noise; by default it is fitted")] = None
    where: Annotated[
        str | None,
        typer.Option(help="PEP: perturb auto, conv, weights or all; MC dropout: only dropouts below this module"),
    ] = None
    distribution: Annotated[str | None, typer.Option(help="PEP: gaussian (default) or uniform noise")] = None
    search: Annotated[
        str | None, typer.Option(help="PEP: how σ is fitted, bracket (default) or golden as in the paper")
    ] = None
    p: Annotated[float | None, typer.Option("--p", help="MC dropout: use this rate everywhere")] = None

    @property
    def given(self) -> dict[str, Any]:
        """The settings that were given, by their names in `Ingredients`."""
        return {name: value for name, value in vars(self).items() if name != "ensemble" and value is not None}

    def check(self, **others: Any) -> None:
        """Refuse an unknown ensemble, an option that it does not have (`others` too), and an unknown value."""
        from calibrant.ensembles import ENSEMBLES
        from calibrant.ensembles.perturbation import WHERE
        from calibrant.ensembles.sigma_search import SEARCHES
        from calibrant.functional.noise import DISTRIBUTIONS

        if self.ensemble is not None and self.ensemble not in ENSEMBLES:
            raise unknown("ensemble", self.ensemble, ENSEMBLES)
        given = self.given | {name: value for name, value in others.items() if value is not None}
        for name in given:
            methods = [method for method, made in ENSEMBLES.items() if name in made.options]
            if self.ensemble not in methods:
                option = f"--{name.replace('_', '-')}"
                nothing = "without an ensemble" if self.ensemble is None else f"with {self.ensemble}"
                of = methods[0] if len(methods) == 1 else f"{', '.join(methods[:-1])} and {methods[-1]}"
                rest = "; add that" if len(methods) == 1 else f", and changes nothing {nothing}; add one"
                raise InputError(f"{option} is a setting of --ensemble {of}{rest}, or drop {option}")
        if self.ensemble == "pep":
            for name, known in (("where", WHERE), ("distribution", DISTRIBUTIONS), ("search", SEARCHES)):
                if given.get(name, known[0]) not in known:
                    raise InputError(f"--{name} {given[name]} is unknown; use {', '.join(known[:-1])} or {known[-1]}")
            if "search" in given and "sigma" in given:
                raise InputError("--search fits σ and --sigma sets it; drop one of them")

    def assemble(
        self, found: Setting, batches: Callable[[str], Iterable[Any]], *, fit_on: str, **more: Any
    ) -> Ensemble | None:
        """The ensemble of the networks that were found; None without --ensemble. `batches` yields a split's items."""
        from calibrant.ensembles import assemble
        from calibrant.ensembles.ingredients import Ingredients
        from calibrant.training.epochs import kept_weights

        if self.ensemble is None:
            return None
        run = found.first.name
        ingredients = Ingredients(
            found.networks,
            **self.given,
            **more,
            held_out=lambda: batches(fit_on),
            checkpoints=lambda: list(kept_weights(run).values()) if Path(run).is_dir() else [],
            training=lambda: (x for x, _, _ in batches("train")),
            progress=sys.stderr.isatty(),
        )
        return assemble(self.ensemble, ingredients)


@dataclass(frozen=True)
class Smoothing:
    """Temporal smoothing of predictions on the frames of one stream (SS §1.1, A.2)."""

    stream: Annotated[
        bool,
        typer.Option(
            "--stream", help="the items are the frames of one stream: average each prediction with those before it"
        ),
    ] = False
    window: Annotated[int | None, typer.Option(min=0, help="stream: number of earlier frames (default: 5)")] = None
    decay: Annotated[
        float | None, typer.Option(help="stream: weight of a frame relative to the next one (default: exp(-0.8))")
    ] = None
    scene_cut: Annotated[
        float | None, typer.Option(help="stream: restart the average when predictions change by this much, 0 … 1")
    ] = None

    def wanted(self, ensemble: str | None) -> bool:
        """Whether the items are a stream. Settings of a stream are refused without one."""
        wanted = self.stream or ensemble == "temporal"
        if not wanted:
            for name in ("window", "decay", "scene_cut"):
                if getattr(self, name) is not None:
                    raise InputError(f"--{name.replace('_', '-')} is a setting of a stream; add --stream")
        return wanted

    def wrap(self, made: Ensemble | None, networks: Sequence[Any]) -> Ensemble:
        """The network, or an ensemble with one member per frame, averaged over recent frames."""
        from calibrant.ensembles.temporal import DECAY, WINDOW, TemporalSmoothing

        if isinstance(made, TemporalSmoothing):
            made = None  # --ensemble temporal is --stream without an ensemble
        if made is None and len(networks) > 1:
            raise InputError(f"--stream takes one network or an ensemble; this is {len(networks)}: add --ensemble deep")
        return TemporalSmoothing(
            networks[0] if made is None else made,
            window=WINDOW if self.window is None else self.window,
            decay=DECAY if self.decay is None else self.decay,
            scene_cut=self.scene_cut,
        )
