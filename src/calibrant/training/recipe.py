"""A recipe: everything that decides what a run computes, in one frozen record.

It is read from a TOML file or from the table of named recipes, changed by `--set key=value`, and written to
`RUN/recipe.json`. Its `key()` is the content hash under which the store files a result.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from calibrant.errors import FileError, InputError, unknown
from calibrant.files import existing, hashed
from calibrant.metrics import METRICS
from calibrant.training.optimiser import Optimiser, Schedule
from calibrant.training.settings import Choice, assign, build, plain, setting

CHOICES = ("network", "loss", "targets")
"""Settings that are a name and its options."""


@dataclass(frozen=True)
class DataSettings:
    name: str = "digits"
    seed: int = 0  # of the splits, separate from the run's, so that runs share their test and calibration sets
    sizes: Mapping[str, Any] | None = None  # {"validation": 2500, …}, items or shares; None: the data set's defaults
    shape: tuple[int, ...] | None = None  # size to which a folder's images are brought; None: [3, 224, 224]
    ignore_index: int | None = None  # marks pixels without a class in label maps, besides −1 and −100


@dataclass(frozen=True)
class AugmentSettings:
    crop_padding: int = 4
    flip: bool = True

    def __post_init__(self) -> None:
        if self.crop_padding < 0:
            raise InputError(f"augment.crop_padding is {self.crop_padding}; it must be 0 or more")


@dataclass(frozen=True)
class Selection:
    """Train every point of a grid and keep the best by `criterion` on `split`. On `test` it is an oracle choice."""

    grid: Mapping[str, tuple[Any, ...]]  # dotted key of the recipe → values
    criterion: str = "nll"
    split: Literal["validation", "calibration", "test"] = "validation"

    def __post_init__(self) -> None:
        if self.criterion not in METRICS:
            raise unknown("metric", self.criterion, METRICS)
        if not self.grid or not all(self.grid.values()):
            raise InputError("selection.grid needs at least one key with at least one value")

    @property
    def oracle(self) -> bool:
        return self.split == "test"


@dataclass(frozen=True)
class Recipe:
    network: Choice
    name: str = ""
    about: str = ""  # which settings come from the paper, and which are ours
    data: DataSettings = field(default_factory=DataSettings)
    loss: Choice = field(default_factory=lambda: Choice("cross_entropy"))
    penalties: tuple[Choice, ...] = ()
    targets: Choice = field(default_factory=lambda: Choice("one_hot"))
    transforms: tuple[Choice, ...] = ()
    augment: AugmentSettings | None = None
    optimiser: Optimiser = field(default_factory=Optimiser)
    schedule: Schedule = field(default_factory=Schedule)
    epochs: int = 10
    batch: int = 128
    precision: Literal["float32", "bfloat16"] = "float32"
    engine: Literal["eager", "graph", "compile", "compile+graph", "auto"] = "eager"
    channels_last: bool = False
    ema: float = 0.0  # decay of averaged weights, which are then used to predict; 0: none
    seed: int = 0
    members: int = 1
    selection: Selection | None = None

    def __post_init__(self) -> None:
        for name in ("epochs", "batch", "members"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if not 0 <= self.ema < 1:
            raise InputError(f"ema is {self.ema}; it must be in [0, 1)")

    @property
    def title(self) -> str:
        """The line of `calibrant list recipes`."""
        return self.about

    def plain(self) -> dict[str, Any]:
        out: dict[str, Any] = plain(self)
        for name in ("shape", "ignore_index"):  # left out unless set, so that other recipes keep their keys
            if getattr(self.data, name) is None:
                del out["data"][name]
        return out

    def content(self) -> dict[str, Any]:
        """The settings that decide what a training computes."""
        return {k: v for k, v in self.plain().items() if k not in ("name", "about", "engine")}

    def key(self) -> str:
        """Content hash: trainings with the same key compute the same, by whichever engine."""
        return digest(self.content())

    def with_settings(self, settings: Mapping[str, Any]) -> Recipe:
        """A copy with dotted keys set: `recipe.with_settings({"optimiser.lr": 0.1})`."""
        table = self.plain()
        for key, value in settings.items():
            choice, _, last = key.rpartition(".")
            if last == "name" and choice in CHOICES and table[choice]["name"] != value:
                key = choice  # another loss or network: options of the old one do not carry over
            table = assign(table, key, value)
        return build(Recipe, table)

    def scaled(self, epochs: int) -> Recipe:
        """The same recipe over another number of epochs. Refreshes of levels and the schedule of α scale too."""
        targets, alpha = self.targets, self.targets.options.get("alpha")
        if after := targets.options.get("refresh_after"):
            targets = replace(targets, options={**targets.options, "refresh_after": self._moved(after, epochs)})
        if isinstance(alpha, tuple):
            moved = {round(start * epochs / self.epochs): value for start, value in alpha}
            targets = replace(targets, options={**targets.options, "alpha": tuple(moved.items())})
        return replace(self, epochs=epochs, schedule=self.schedule.scaled(epochs / self.epochs), targets=targets)

    def _moved(self, after: Sequence[int], epochs: int) -> tuple[int, ...]:
        """The scaled refreshes, without those after the last epoch, which would change nothing."""
        moved = {max(1, round(epoch * epochs / self.epochs)) for epoch in after}
        return tuple(sorted(epoch for epoch in moved if epoch < epochs))

    def points(self) -> list[tuple[dict[str, Any], Recipe]]:
        """The points of the grid: (the settings of a point, its recipe without a selection)."""
        if self.selection is None:
            return [({}, self)]
        settings: list[dict[str, Any]] = [{}]
        for key, values in self.selection.grid.items():
            settings = [{**s, key: v} for s in settings for v in values]
        bare = replace(self, selection=None)
        return [(s, bare.with_settings(s)) for s in settings]


def digest(content: Any) -> str:
    """sha256 of canonical JSON; 2.0 and 2 count as the same number."""
    text = json.dumps(_canonical(content), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _canonical(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(k): _canonical(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_canonical(v) for v in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def read(source: str | Path, settings: Iterable[str] = ()) -> Recipe:
    """A recipe by name, from a TOML file, or from a run's `recipe.json`, with `key=value` settings on top."""
    return _read(str(source), ()).with_settings(dict(map(setting, settings)))


def _read(source: str, above: tuple[Path, ...]) -> Recipe:
    """The recipe of a source; `above` are the files whose `base` it is."""
    from calibrant.training.recipes import RECIPES

    path = Path(source)
    if source in RECIPES:
        return RECIPES[source]
    if path.suffix != ".toml":
        record = path if path.suffix == ".json" else path / "recipe.json"
        if path.suffix != ".json" and not record.is_file():
            raise unknown("recipe", source, RECIPES)
        return _built(hashed.read(record), path)
    if path.resolve() in above:
        raise InputError(f"{path} is its own base; base names a recipe, or another file")
    table = _toml(path)
    if not table:
        raise FileError(f"{path} is empty; a recipe needs at least a network, or a base to change")
    if "base" not in table:
        return _built(table, path)
    base = table.pop("base")
    if not isinstance(base, str):
        raise InputError(f"{path}: key 'base' is {base!r}; it must be the name of a recipe, or of another file")
    try:
        if base not in RECIPES:
            place = path.parent / base  # relative to the file that names it
            if not place.suffix and not place.exists():
                raise unknown("recipe", base, RECIPES)
            base = str(place)
        return _read(base, (*above, path.resolve())).with_settings(dict(_flat(table)))
    except (InputError, KeyError) as error:
        raise type(error)(f"{path}: {error}") from None


def _built(table: Mapping[str, Any], path: Path) -> Recipe:
    try:
        return build(Recipe, table)
    except (InputError, KeyError) as error:
        raise type(error)(f"{path}: {error}") from None


def _toml(path: Path) -> dict[str, Any]:
    existing(path)
    try:
        table = tomllib.loads(path.read_text("utf-8"))
        json.dumps(table)  # dates are in no setting, and have no JSON
    except OSError as error:
        raise FileError(f"cannot read the recipe {path}: {error.strerror}") from error
    except (ValueError, TypeError, RecursionError) as error:
        raise FileError(f"{path} is not valid TOML of settings: {error}") from error
    return table


def _flat(table: Mapping[str, Any], path: str = "") -> Iterable[tuple[str, Any]]:
    """The leaves of nested tables by dotted key. A table with a key `name` is one leaf: it replaces a whole choice."""
    for key, value in table.items():
        if isinstance(value, Mapping) and "name" not in value and key != "grid":
            yield from _flat(value, f"{path}{key}.")
        else:
            yield path + key, value
